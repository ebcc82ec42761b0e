"""`within` in a runner: paths are judged wherever they stand, by their types, their schema or their names."""

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, Base64Bytes, BaseModel, BeforeValidator, Field, StringConstraints, create_model
from pydantic_core import to_jsonable_python

from ferrule import Runner, Tool, ToolContext, ToolHandler, ToolResult, tool
from ferrule.guards import within

posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX")


def make_world(root: Path) -> Path:
    """A folder `ws` beside a secret that a link in it leads to."""
    for folder in ("sub", "a b"):
        (root / "ws" / folder).mkdir(parents=True)
    (root / "ws" / "a.txt").write_text("ok")
    (root / "secret.txt").write_text("SECRET")
    (root / "ws" / "out").symlink_to("../secret.txt")
    (root / "ws" / "in").symlink_to("sub")
    return root / "ws"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`make_world`, as the working directory."""
    made = make_world(Path(os.path.realpath(tmp_path)))
    monkeypatch.chdir(made)
    return made


@contextmanager
def working_folder() -> Iterator[Path]:
    """The same, for each example of a property."""
    with tempfile.TemporaryDirectory() as made:
        base = make_world(Path(os.path.realpath(made)))
        with chdir(base):
            yield base


class Taken:
    """Runs a tool with one parameter under the guard, and remembers what its handler got."""

    def __init__(self, kind: Any, name: str = "value", guard: Any = None) -> None:
        self.got: list[Any] = []
        self.name = name
        model = create_model("Arguments", **{name: (kind, ...)})

        @tool(name="take", input_schema=model)
        def take(arguments: model) -> str:  # type: ignore[valid-type]
            self.got.append(getattr(arguments, name))
            return "done"

        self.runner = Runner([take], guards=[guard or within()])

    def __call__(self, value: Any, directory: Any = None) -> ToolResult:
        context = ToolContext[Any](working_directory=directory)
        return asyncio.run(self.runner.run("take", {self.name: value}, context))


# -- by type and by schema ---------------------------------------------------------------------------------------------

Named = Annotated[str, Field(json_schema_extra={"format": "path"})]
kinds = st.recursive(
    st.sampled_from([("path", Path), ("path", Named), ("text", str), ("number", int)]),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["list", "dict", "keys", "optional", "union"]), inner),
        st.tuples(st.sampled_from(["tuple", "model"]), inner, inner),
    ),
    max_leaves=6,
)


def type_of(kind: Any) -> Any:
    how, *inner = kind
    if how in {"path", "text", "number"}:
        return inner[0]
    types = [type_of(one) for one in inner]
    made: dict[str, Callable[[], Any]] = {
        "list": lambda: list[types[0]],
        "dict": lambda: dict[str, types[0]],
        "keys": lambda: dict[Path, types[0]],
        "optional": lambda: types[0] | None,
        "union": lambda: types[0] | list[bool],
        "tuple": lambda: tuple[types[0], types[1]],
        "model": lambda: create_model("Made", one=(types[0], ...), other=(types[1], ...)),
    }
    return made[how]()


def value_of(kind: Any, paths: Iterator[str]) -> Any:
    how, *inner = kind
    simple: dict[str, Callable[[], Any]] = {
        "path": lambda: next(paths),
        "text": lambda: "plain",
        "number": lambda: 7,
        "dict": lambda: {"k": value_of(inner[0], paths)},
        "keys": lambda: {next(paths): value_of(inner[0], paths)},
        "model": lambda: {"one": value_of(inner[0], paths), "other": value_of(inner[1], paths)},
        "tuple": lambda: [value_of(inner[0], paths), value_of(inner[1], paths)],
        "list": lambda: [value_of(inner[0], paths), value_of(inner[0], paths)],
    }
    return simple[how]() if how in simple else value_of(inner[0], paths)


def texts_in(value: Any) -> Iterator[str]:
    """The paths in what a handler got."""
    if isinstance(value, Path):
        yield str(value)
    elif isinstance(value, BaseModel):
        yield from texts_in(value.__dict__)
    elif isinstance(value, dict):
        yield from texts_in(list(value) + list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)


OUTSIDE = ["../secret.txt", "/etc/passwd", "out", "sub/../../x", "~/x", "~", "in/../../x", ".."]


@given(kinds, st.sampled_from(OUTSIDE), st.integers(0, 20))
def test_a_path_outside_is_denied_in_any_type(kind: Any, outside: str, where: int) -> None:
    with working_folder() as base:
        take = Taken(type_of(kind))
        count = 0

        def inside() -> Iterator[str]:
            nonlocal count
            while True:
                count += 1
                yield f"in/{count}"

        result = take(value_of(kind, inside()))
        assert result.success, result.error
        assert all(text.startswith(f"{base}/sub/") for text in texts_in(take.got.pop()))
        if count:
            paths = [f"in/{number}" for number in range(count)]
            paths[where % count] = outside
            assert take(value_of(kind, iter(paths))).status == "denied" and not take.got


REWRITTEN: dict[str, tuple[Any, Any]] = {
    "stripped": (Annotated[str, StringConstraints(strip_whitespace=True)], "{ws}/.. "),
    "replaced": (Annotated[str, BeforeValidator(lambda value: value.replace("_", "."))], "__/secret.txt"),
    "made a path": (Annotated[Any, AfterValidator(lambda value: [Path(value[0])])], ["/etc/passwd"]),
}


@pytest.mark.parametrize("case", REWRITTEN)
def test_a_path_is_judged_after_its_validators(case: str, world: Path) -> None:
    kind, value = REWRITTEN[case]
    take = Taken(kind, "path")
    assert take(value.format(ws=world) if isinstance(value, str) else value).status == "denied"
    assert not take.got


class Write(ToolHandler):
    where: Path

    async def __call__(self) -> str:
        return str(self.where)


async def test_tools_of_every_kind_are_judged(world: Path) -> None:
    schema = {"type": "object", "properties": {"where": {"type": "string", "format": "path"}}}
    by_schema = Tool(name="by_schema", description="x", handler=lambda payload: payload["where"], input_schema=schema)
    by_class = Tool(name="by_class", description="x", handler=Write)
    mounted = [one.replace(name=f"mounted_{one.name}") for one in Runner([by_schema, by_class]).as_tools()]
    runner = Runner([by_schema, by_class, *mounted], guards=[within(world)])
    for name in [one.name for one in runner.tools]:
        assert (await runner.run(name, {"where": "in/x"})).text == str(world / "sub" / "x")
        assert (await runner.run(name, {"where": "../x"})).status == "denied"


# -- by name -----------------------------------------------------------------------------------------------------------


class File(BaseModel):
    path: str
    content: str


class Value(BaseModel):
    value: str


Text = Annotated[str, Field(json_schema_extra={"contentMediaType": "text/x-python"})]


UNDER_A_NAME: list[tuple[str, Any, Any]] = [
    *(("files", dict[str, str], value) for value in ({"/etc/passwd": "x"}, {"a.txt": "../x"})),
    ("files", list[File], [{"path": "out", "content": "x"}]),
    ("files", dict[str, File], {"../x": {"path": "a.txt", "content": "x"}}),
    ("paths", dict[str, list[str]], {"a": ["b", "~/x"]}),
    *(("path", Any, value) for value in ({"k": {"z": [["/etc/passwd"]]}}, 3)),
    ("path", Value, {"value": "/etc/passwd"}),
    ("target", Any, {"k": "/etc/passwd"}),
    *((name, str, "../x") for name in ("path_to_config", "logfile")),
]


@pytest.mark.parametrize(("name", "kind", "value"), UNDER_A_NAME)
def test_values_under_the_name_of_a_path_are_judged(name: str, kind: Any, value: Any, world: Path) -> None:
    take = Taken(kind, name)
    assert take(value).status == "denied"
    assert not take.got


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (dict[str, str], {"in/a": "text", "b": "", "c": "see a/b\n" * 1000}),
        (dict[Path, str], {"in/a": "// text", "b": "in ../x"}),
        (dict[str, Text], {"in/a": "../x", "b": "/etc/passwd"}),
    ],
)
def test_the_content_for_a_path_is_unchanged(kind: Any, value: Any, world: Path) -> None:
    take = Taken(kind, "files")
    result = take(value)
    assert result.success, result.error
    expected = {str(world / key.replace("in/", "sub/")): text for key, text in value.items()}
    assert to_jsonable_python(take.got) == [expected]


@pytest.mark.parametrize("kind", [dict[str, str], dict[Path, str]])
def test_two_keys_that_are_one_path_are_denied(kind: Any, world: Path) -> None:
    take = Taken(kind, "files")
    result = take({"in/a": "x", str(world / "sub" / "a"): "y"})
    assert result.status == "denied"
    assert "one path" in str(result.error)
    assert not take.got


# -- any other text ----------------------------------------------------------------------------------------------------


class Step(BaseModel):
    run: str = ""
    code: Text = ""
    more: list["Step"] = []


class Report(ToolHandler):
    output: str
    steps: list[Step] = []
    free: dict[str, Any] = {}

    async def __call__(self) -> str:
        return "done"


def reporting() -> list[Tool]:
    """The same tool in every form: of a class, of a schema as an MCP server gives it, without one, mounted."""
    schema = {**Report.model_json_schema(), "additionalProperties": False}
    given: dict[str, Any] = {"description": "x", "handler": lambda payload: "done"}
    tools = [
        Tool(name="of_class", description="x", handler=Report),
        Tool(name="of_schema", input_schema=schema, **given),
        Tool(name="read_only", input_schema=schema, read_only=True, **given),
        Tool(name="open", input_schema={"type": "object"}, **given),
        tool(lambda **values: "done", name="by_keywords", description="x"),
    ]
    return [*tools, *(one.replace(name=f"mounted_{one.name}") for one in Runner(tools).as_tools())]


def statuses(arguments: Any, **options: Any) -> set[str]:
    runner = Runner(reporting(), guards=[within("sub", **options)])
    return {asyncio.run(runner.run(one.name, arguments)).status for one in runner.tools}


@posix
@pytest.mark.parametrize("path", ["/etc/passwd", "../secret.txt", "~/x", "sub/../a.txt", "file:///etc/passwd"])
def test_a_text_that_reads_as_a_path_is_judged_in_every_tool(path: str, world: Path) -> None:
    assert statuses({"output": path}) == {"denied"}
    assert statuses({"output": "a", "steps": [{"more": [{"run": path}]}]}) == {"denied"}
    assert statuses({"output": "a", "free": {path: 1}}) == {"denied"}
    assert statuses({"output": "a", "free": {"x": [[path]]}}) == {"denied"}
    assert statuses({"output": str(world / "sub" / "x"), "free": {str(world / "sub"): "sub/../sub"}}) == {"ok"}


@posix
async def test_a_name_for_text_counts_only_if_the_schema_has_it(world: Path) -> None:
    runner = Runner(reporting(), guards=[within("sub", text=["output", "run"])])

    async def status(name: str, arguments: Any) -> str:
        return (await runner.run(name, arguments)).status

    for name in ("of_class", "of_schema", "read_only", "mounted_of_class"):
        assert await status(name, {"output": "/etc/passwd", "steps": [{"run": "../x"}]}) == "ok"
        for made_up in ({"run": "/etc/passwd"}, {"x": {"output": "../x"}}):
            assert await status(name, {"output": "a", "free": made_up}) == "denied"
    for name in ("open", "by_keywords"):
        assert await status(name, {"output": "/etc/passwd"}) == "denied"


# How handlers read a text that they take for a path.
READERS: list[Callable[[str], str]] = [
    *(str, str.strip, lambda text: text.strip("'\""), os.path.normpath, lambda text: os.path.normpath(text.strip())),
    *(lambda text: text.replace("\\", "/") if ".." in text else text, os.path.expanduser),
]
bits = st.sampled_from(
    ["/", "//", "..", ".", "~", "ws", "sub", "a b", " ", "\n", "'", "\\", "secret.txt", "in", "out", "x"]
)


@posix
@given(st.lists(bits, min_size=1, max_size=10), st.booleans())
def test_no_allowed_text_is_a_path_outside_however_it_is_read(parts: list[str], rooted: bool) -> None:
    with working_folder() as base:
        text = (f"{base.parent}/" if rooted else "") + "".join(parts)
        if Taken(str)(text).success:
            for read in READERS:
                path = read(text)
                if os.path.isabs(path) or ".." in path.split("/"):
                    ways = (path, os.path.normpath(path), Path(path).resolve())
                    reached = {one for one in ways if os.path.exists(one)}
                    assert all(Path(one).resolve().is_relative_to(base) for one in reached), (path, reached)


class Shell(BaseModel):
    kind: Literal["shell"]
    code: str


class Python(BaseModel):
    kind: Literal["python"]
    code: Text


def test_text_in_one_form_of_a_union_is_judged_in_the_others(world: Path) -> None:
    take = Taken(Annotated[Shell | Python, Field(discriminator="kind")])
    assert take({"kind": "shell", "code": "/etc/passwd"}).status == "denied"
    assert Taken(Python | None)({"kind": "python", "code": "/etc/passwd"}).success
    assert Taken(Text | None)("/etc/passwd").success
    assert Taken(Base64Bytes | None)("/9j/").success  # as every JPEG begins
    assert Taken(bytes | None)("/etc/passwd").status == "denied"
    assert Taken(Text | Path)("/etc/passwd").status == "denied"


@pytest.mark.parametrize(
    ("bound", "status"), [({"script": "/opt/app/run.sh"}, "ok"), ({"script": "x", "path": "/etc"}, "denied")]
)
async def test_a_bound_value_is_judged_only_if_it_is_a_path(bound: Any, status: str, world: Path) -> None:
    @tool
    def run(script: str, path: str = ".") -> str:
        return script

    assert (await Runner([run.bind(**bound)], guards=[within()]).run("run", {})).status == status


# -- roots -------------------------------------------------------------------------------------------------------------


def test_a_change_of_the_directory_changes_nothing(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take, everywhere = Taken(Path, guard=within("sub")), Taken(Path)
    for directory in ("/", world / "sub"):
        monkeypatch.chdir(directory)
        assert take("sub/x").success and everywhere("x").success
        assert (take.got.pop(), everywhere.got.pop()) == (world / "sub" / "x", world / "x")
        assert take("x").status == take("../x").status == "denied"


def test_paths_and_roots_start_at_the_directory_of_the_caller(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Taken(Path, guard=within("sub"))
    (world / "other" / "sub").mkdir(parents=True)
    monkeypatch.chdir("/")
    for directory in (world / "other", "other"):
        assert take("sub/x", directory).success
        assert take.got.pop() == world / "other" / "sub" / "x"
        assert take(world / "sub" / "x", directory).status == "denied"


@posix
def test_a_root_exchanged_for_a_link_leads_nowhere_else(world: Path) -> None:
    take = Taken(Path, guard=within("sub"))
    assert take("sub/x").success and take("sub/x", world).success
    (world / "sub").rmdir()
    (world / "sub").symlink_to("/etc")
    assert take("sub/passwd").status == take("sub/passwd", world).status == "denied"
