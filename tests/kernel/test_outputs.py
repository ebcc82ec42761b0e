"""What a handler returns: shown within bounds, where it ran, and by one result, whatever its methods do."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, get_args

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Base64UrlBytes, BaseModel, ConfigDict, Field, field_serializer
from typing_extensions import TypedDict

from ferrule import Decision, Event, Runner, Text, Tool, ToolCall, ToolContext, ToolError, ToolResult, ask, deny, tool
from ferrule.executors.process.transfer import pack, unpack
from ferrule.middleware import after
from ferrule.values import content
from ferrule.values.frozen import thaw
from ferrule.values.result import Status
from steps import lines
from waits import BOUND
from watched import Watch, go, plain, run

ENDS: list[type[BaseException]] = [SystemExit, GeneratorExit, asyncio.CancelledError, RecursionError, ValueError]


def asynchronous(make: Callable[[], Any]) -> Tool:
    async def give() -> Any:
        return make()

    return tool(give, name="give")


def threaded(make: Callable[[], Any]) -> Tool:
    def give() -> Any:
        return make()

    return tool(give, name="give")


WAYS = pytest.mark.parametrize("way", [asynchronous, threaded])


class Blob(BaseModel):
    data: bytes
    anything: Any = None


class InHex(BaseModel):
    model_config = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex")
    data: bytes
    blob: Blob


class BlobDict(TypedDict):
    data: bytes
    blobs: list[Blob]


@dataclass
class BlobData:
    data: bytes


def decoded(text: Any) -> bytes:
    return base64.b64decode(text, validate=True)


@pytest.mark.parametrize("data", [b"", b"abc", b"\xff\xfe\xfa\x00a"])
def test_bytes_in_a_value_are_base64_wherever_they_are(data: bytes) -> None:
    blob = Blob(data=data, anything=data)
    given_out: list[tuple[Any, Any, Callable[[Any], Any]]] = [
        (dict[str, bytes], {"a": data}, lambda shown: decoded(shown["a"])),
        (list[bytes], [data], lambda shown: decoded(shown[0])),
        (BlobData, BlobData(data), lambda shown: decoded(shown["data"])),
        (Blob, blob, lambda shown: decoded(shown["data"])),
        (Blob, blob, lambda shown: decoded(shown["anything"])),
        (list[Blob], [blob], lambda shown: decoded(shown[0]["data"])),
        (BlobDict, {"data": data, "blobs": [blob]}, lambda shown: decoded(shown["blobs"][0]["data"])),
        (InHex, InHex(data=data, blob=blob), lambda shown: decoded(shown["blob"]["data"])),
        (InHex, InHex(data=data, blob=blob), lambda shown: bytes.fromhex(shown["data"])),
    ]
    for returns, value, read in given_out:
        made = tool(returning(value, returns))
        result, _ = run(made, "give")
        assert (result.status, read(result.output)) == ("ok", data), (returns, result.error)
        assert unpack(pack(value, "json"), "json") == result.output  # as a worker gives it
        assert '"contentEncoding": "base64"' in json.dumps(thaw(made.output.schema))


class Plain:
    def __str__(self) -> str:
        return "plain"


@pytest.mark.parametrize("value", [Plain(), [Plain()], {None: 1, (1, 2): 2}, range(3), ValueError("x"), {"a": Plain}])
def test_what_has_no_json_form_comes_from_a_worker_as_it_is_shown_anywhere(value: object) -> None:
    result, _ = run(tool(lambda: value, name="give"), "give")
    assert (result.status, unpack(pack(value, "json"), "json")) == ("ok", result.output)


def returning(value: Any, returns: Any) -> Callable[[], Any]:
    def give() -> Any:
        return value

    give.__annotations__["return"] = returns
    return give


def test_bytes_alone_stay_bytes_and_a_serializer_of_ones_own_is_kept() -> None:
    class Own(BaseModel):
        data: bytes
        url: Base64UrlBytes

        @field_serializer("data")
        def own(self, data: bytes) -> str:
            return f"{len(data)} bytes"

    for value in (b"\xff\xfe", bytearray(b"\xff\xfe")):
        result, _ = run(tool(returning(value, bytes)), "give")
        assert result.output == b"\xff\xfe"
    result, _ = run(tool(returning(Own(data=b"\xff", url=b"__8="), Own)), "give")
    assert result.output == {"data": "1 bytes", "url": "__8="}


class Lengths(BaseModel):
    data: Annotated[bytes, Field(min_length=2, max_length=7)]


@pytest.mark.parametrize("data", [b"\xff" * length for length in range(2, 8)])
def test_the_output_schema_of_bytes_with_a_length_takes_what_they_are_written_as(data: bytes) -> None:
    made = tool(returning(Lengths(data=data), Lengths))
    result, _ = run(made, "give")
    assert jsonschema_rs.validator_for(thaw(made.output.schema)).is_valid(result.output)


class Endless(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        return map(str, itertools.count())

    def __len__(self) -> int:
        return 3


class Holder(BaseModel):
    inside: Any


@dataclass
class Held:
    inside: Any


async def chunks() -> Any:
    yield 1


def doubled() -> Any:
    value: Any = [1]
    for _ in range(60):
        value = [value, value]
    return value


ITERATORS: dict[str, Callable[[], Any]] = {
    "in a dict": lambda: {"rows": (n for n in itertools.count())},
    "in a list": lambda: [itertools.count()],
    "in a set": lambda: {iter([1])},
    "in a tuple": lambda: (map(str, [1]),),
    "in a dataclass": lambda: Held(inside=[itertools.count()]),
    "an async generator": lambda: {"rows": chunks()},
    "in a result": lambda: ToolResult({"rows": itertools.count()}),
    "in a deque": lambda: deque([iter([1])]),
    "in a deque in a dict": lambda: {"lines": deque([iter([1])])},
    "in a deque in a dataclass": lambda: Held(deque([iter([1])])),
    "in an enum": lambda: Enum("Kind", {"one": iter([1])})["one"],
    "bare": lambda: itertools.count(),
}


@WAYS
@pytest.mark.parametrize("make", ITERATORS.values(), ids=ITERATORS.keys())
def test_an_iterator_in_a_value_is_refused_and_not_read(way: Any, make: Callable[[], Any]) -> None:
    result, watch = run(way(make), "give")
    assert (result.status, result.executed, watch.ends()) == ("failed", True, ["tool:error"])
    assert "was run, but it returned an iterator" in (result.error or "") and "list" in (result.error or "")


@pytest.mark.parametrize(
    ("way", "make"),
    [
        (asynchronous, Endless),
        (threaded, doubled),
        (asynchronous, lambda: {"a": [Endless()]}),
        (threaded, lambda: Holder(inside=Endless())),
    ],
)
def test_a_value_without_end_ends(way: Any, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "MAX_VALUES", 20_000)  # it is reached sooner
    result, watch = run(way(make), "give")
    assert (result.executed, watch.ends()) == (True, ["tool:post" if result.success else "tool:error"])
    assert result.success or "return fewer of them" in (result.error or "")
    assert len(plain(result)) <= 100_000


SHARED = """
import asyncio, resource
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from ferrule import Runner, tool
from ferrule.values import content

content.MAX_VALUES = 20_000  # it is reached sooner

@dataclass
class Held:
    left: Any = None
    right: Any = None

@dataclass(slots=True, frozen=True)
class Slotted:
    left: Any = None
    right: Any = None

@dataclass
class Broken(Held):
    late: Any = field(init=False)

ONCE = {
    "held": lambda node: Held(node, node),
    "slotted": lambda node: Slotted(node, node),
    "broken": lambda node: Broken(node, node),
    "deque": lambda node: deque([node, node]),
    "enum": lambda node: Enum("Kind", {"one": (node, node)})["one"],
    "mixed": lambda node: Held({"a": node}, deque([node])),
}

def graph(name):
    async def give() -> Any:
        node = None
        for _ in range(40):
            node = ONCE[name](node)
        return node
    return tool(give, name="give")

async def main():
    for name in ONCE:
        result = await Runner([graph(name)]).run("give")
        print(name, result.status, len(repr(result)) < 1000, len(str(result.record())) < 1000)

resource.setrlimit(resource.RLIMIT_AS, (1_500_000_000, 1_500_000_000))
asyncio.run(main())
"""


def test_what_objects_share_is_counted_at_each_place() -> None:
    done = subprocess.run([sys.executable, "-c", SHARED], capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert len(lines) == 6, done.stderr[-300:]
    assert all(line.endswith("True True") for line in lines), lines
    assert all(" failed " in line for line in lines), lines


class Link(BaseModel):
    value: int
    next: Link | None = None


@pytest.mark.parametrize("depth", [90, 110, 200])
def test_of_models_that_nest_deep_the_outer_ones_are_shown(depth: int) -> None:
    async def give() -> Any:
        link = None
        for value in range(depth):
            link = Link(value=value, next=link)
        return link

    result, _ = run(tool(give), "give")
    shown, output = [], result.output
    while isinstance(output, dict):
        shown.append(output["value"])
        output = output["next"]
    assert shown == [*range(depth)][::-1][: len(shown)] and len(shown) >= 90


def test_many_keys_are_shown_in_a_few_steps_for_each() -> None:
    many = {str(n): n for n in range(20_000)}
    result, _ = run(asynchronous(lambda: many), "give")
    assert result.success
    assert lines(lambda: run(asynchronous(lambda: many), "give")) < 150 * len(many)
    assert len(result.text) <= 100_000 and json.loads(result.text)["0"] == 0


@WAYS
def test_rendering_belongs_to_the_deadline(way: Any) -> None:
    slow = way(lambda: [[str(n) for n in range(1000)]] * 600)
    result, _ = run(slow.replace(timeout=0.02), "give")
    assert result.status == "timeout"


class Breaks:
    """Everything that is asked of it raises."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def breaks(self, *args: object) -> Any:
        raise self.error("of the handler's")

    __str__ = __repr__ = __iter__ = __len__ = __bool__ = __eq__ = __hash__ = __getitem__ = breaks  # type: ignore[assignment]


def text_that_breaks(error: type[BaseException]) -> str:
    def breaks(*args: object) -> Any:
        raise error

    methods = ("__str__", "__repr__", "__len__", "__eq__", "__hash__", "encode", "isascii", "__iter__", "__getitem__")
    broken: type[str] = type("BrokenText", (str,), dict.fromkeys(methods, breaks))
    return broken("hello")


def results_that_break(error: type[BaseException]) -> list[Any]:
    class Mine(ToolResult):
        @property
        def status(self) -> Any:  # type: ignore[override]
            raise error

    class Rows(Mapping[str, int]):
        def __getitem__(self, key: str) -> int:
            raise error

        def __iter__(self) -> Iterator[str]:
            raise error

        def __len__(self) -> int:
            raise error

    class Listed(list[int]):
        def __iter__(self) -> Any:
            raise error

    class Keyed(dict[str, int]):
        def items(self) -> Any:
            raise error

        __iter__ = items

    class Modelled(BaseModel):
        def __iter__(self) -> Any:
            raise error

        def __repr__(self) -> str:
            raise error

        __str__ = __repr__

    odd, text = Breaks(error), text_that_breaks(error)
    held = [odd, text, {"a": odd}, [text], {"a": text}, Rows(), {"rows": Rows()}, Listed([1]), Keyed(a=1), Modelled()]
    built = [ToolResult(odd), ToolResult(None, text), ToolResult(1, None, {"a": odd}), ToolResult(1, None, {"a": text})]
    return [*held, *built, ToolResult(1, None, None, [Text(text)]), Text(text), [Text(text)]]


@WAYS
@pytest.mark.parametrize("error", ENDS)
def test_whatever_the_methods_of_an_output_raise_there_is_one_result(way: Any, error: type[BaseException]) -> None:
    for value in results_that_break(error):
        for options in ({}, {"timeout": 5.0}):
            seen: list[Any] = []

            def look(event: Event, seen: list[Any] = seen) -> None:
                result = event.data.get("result")
                seen.append(repr(result) + str(result and result.output) + json.dumps(result and result.record()))

            result, watch = run(way(lambda value=value: value), "give", observers=[look], **options)
            assert watch.ends() == ["tool:post" if result.success else "tool:error"], value.__class__
            assert result.executed is True and "Nothing was run" not in (result.error or "")
            assert len(seen) == 3
            plain(result)


@WAYS
@pytest.mark.parametrize("error", ENDS)
async def test_a_batch_never_says_that_nothing_ran_of_a_call_that_did(way: Any, error: type[BaseException]) -> None:
    for value in results_that_break(error):
        watch = Watch()
        runner = Runner([way(lambda value=value: value)], observers=[watch])
        results = await runner.run_all([ToolCall("a", "give"), ToolCall("b", "give")])
        assert [result.executed for result in results] == [True, True]
        assert (len(watch.ends("a")), len(watch.ends("b"))) == (1, 1)


@WAYS
def test_an_output_is_plain_data_and_a_direct_call_gives_the_value(way: Any) -> None:
    value = Holder(inside=(1, {2}))
    give = way(lambda: value)
    result, _ = run(give, "give")
    assert result.output == {"inside": [1, [2]]} and result.text == '{"inside": [1, [2]]}'
    assert go(_awaited(give)) is value


async def _awaited(give: Tool) -> Any:
    return await give()


class Place(BaseModel):
    name: str
    near: list[Place] = []
    source: Any = Field(None, exclude=True, repr=True)

    @field_serializer("near")
    def names(self, near: list[Place]) -> list[str]:
        return [place.name for place in near]


def test_what_a_model_leaves_out_or_writes_itself_is_not_looked_into() -> None:
    places = [Place(name=f"p{n}", source=itertools.count()) for n in range(30)]
    for place in places:
        place.near = places
    result, _ = run(asynchronous(lambda: {"places": places}), "give")
    names = [place.name for place in places]
    assert result.output == {"places": [{"name": name, "near": names} for name in names]}


def test_models_that_hold_each_other_in_a_ring_are_shown_by_their_class() -> None:
    holder = Holder(inside=None)
    holder.inside = {"again": holder}
    result, _ = run(asynchronous(lambda: [holder]), "give")
    assert result.output == ["<Holder>"]


def test_what_a_model_leaves_out_is_not_shown_where_it_cannot_be_written() -> None:
    place = Holder(inside=Place(name="here", source="s3cret"))
    place.inside = [place.inside, place]
    result, _ = run(asynchronous(lambda: place), "give")
    assert "s3cret" not in plain(result)


def test_a_result_with_an_integer_of_any_length_has_a_repr() -> None:
    result, _ = run(asynchronous(lambda: 10**5000), "give")
    assert repr(result) == "<ToolResult give ok <int>>"


def test_what_a_handler_changes_later_is_not_seen() -> None:
    rows = [1]
    result, _ = run(asynchronous(lambda: {"rows": rows}), "give")
    rows.append(2)
    assert (result.output, result.text) == ({"rows": [1]}, '{"rows": [1]}')


def test_a_middleware_that_returns_what_breaks_fails_the_call() -> None:
    for value in (
        Breaks(SystemExit),
        text_that_breaks(asyncio.CancelledError),
        None,
        ToolResult(Breaks(GeneratorExit)),
    ):
        result, watch = run(asynchronous(lambda: 1), "give", around=[_instead(value)])
        assert len(watch.ends()) == 1
        plain(result)


def _instead(value: Any) -> Any:
    async def instead(call: ToolCall, context: Any, next: Any) -> Any:
        await next(call, context)
        return value

    return instead


@pytest.mark.parametrize("error", [GeneratorExit, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("timeout", [None, BOUND])
def test_what_anybody_raises_stays_in_run(error: type[BaseException], timeout: float | None) -> None:
    def breaks(*args: object) -> Any:
        raise error

    async def breaks_later(*args: object) -> Any:
        raise error

    async def instead(call: ToolCall, context: Any, next: Any) -> Any:
        raise error

    give = asynchronous(lambda: 1)
    for options in (
        {"guards": [breaks]},
        {"guards": [breaks_later]},
        {"observers": [breaks]},
        {"around": [instead]},
        {"inside": [instead]},
        {"inside": [after(breaks)]},
        {"around": [after(breaks_later)]},
        {"inside": [after(breaks_later)]},
    ):
        result, watch = run(give, "give", timeout=timeout, **options)
        assert result.success is ("observers" in options) and len(watch.ends()) == 1, options
    for way in (asynchronous, threaded):
        result, watch = run(way(breaks), "give", timeout=timeout)
        assert (result.status, result.executed, watch.ends()) == ("failed", True, ["tool:error"])


@WAYS
@pytest.mark.parametrize("end", ENDS)
def test_an_exception_whose_methods_raise_is_one_failure(way: Any, end: type[BaseException]) -> None:
    def breaks(*args: object) -> Any:
        raise end

    names = ("__str__", "__repr__")
    odd = [type("Odd", (ValueError,), dict.fromkeys(names, breaks))]
    if issubclass(end, Exception):
        odd.append(type("Odd", (ToolError,), {"retry_after": property(breaks, lambda *_: None)}))

    def raises(kind: type[BaseException]) -> Any:
        raise kind("of the handler's")

    async def passes_on(call: ToolCall, context: Any, next: Any) -> Any:
        raise kind("of a middleware's")

    for kind in odd:
        for options in ({}, {"timeout": 5.0}, {"inside": [passes_on]}, {"around": [passes_on]}):
            result, watch = run(way(lambda kind=kind: raises(kind)), "give", **options)
            assert (result.status, watch.ends()) == ("failed", ["tool:error"])


@pytest.mark.parametrize("timeout", [None, BOUND])
def test_a_keyboard_interrupt_ends_the_program_after_the_result_is_sealed(timeout: float | None) -> None:
    def breaks() -> Any:
        raise KeyboardInterrupt

    watch = Watch()
    with pytest.raises(KeyboardInterrupt):
        go(Runner([asynchronous(breaks)], observers=[watch], timeout=timeout).run("give"))
    assert len(watch.ends()) == 1 and watch.events[-1].data["result"].executed is not False


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_json_data_are_shown_as_they_are(value: Any) -> None:
    result, _ = run(asynchronous(lambda: value), "give")
    told = value if isinstance(value, str) else json.loads(result.text)
    assert result.success and told == value == result.output


# -- a result that a handler returns -----------------------------------------------------------------------------------


def test_a_returned_result_keeps_its_status_and_whether_it_was_executed() -> None:
    for status, executed in itertools.product(get_args(Status), (True, False, None)):
        given = ToolResult({"a": 1}, None if status == "ok" else "why", {"b": 2}, status=status, executed=executed)
        result, _ = run(asynchronous(lambda given=given: given), "give")  # type: ignore[misc]
        assert (result.output, result.error, result.metadata) == (given.output, given.error, given.metadata)
        # Nothing that a handler makes can be resumed.
        assert result.status == ("failed" if status == "suspended" else status)
        assert result.executed is executed and result.pending is None
    with pytest.raises(TypeError, match="status must be one of ok, invalid"):
        ToolResult(status="done")  # type: ignore[arg-type]


@pytest.mark.parametrize("read_only", [True, False])
def test_who_returns_the_result_of_another_call_has_its_status_and_not_that_nothing_was_done(read_only: bool) -> None:
    paid: list[str] = []

    @tool
    async def send() -> None:
        """Send a mail."""

    @tool(read_only=read_only)
    async def outer(context: ToolContext) -> ToolResult:
        """Do something, and send a mail."""
        paid.append("ada")
        return await context.run("send", {})

    def guard(call: ToolCall, context: ToolContext) -> Decision | None:
        return deny("no mails") if call.name == "send" else None

    result, _ = run([send, outer], "outer", guards=[guard])
    assert result.status == "denied" and "no mails" in str(result.error) and paid == ["ada"]
    assert result.executed is not read_only


def test_a_suspended_result_has_its_pending_in_another_process_too() -> None:
    @tool
    async def send() -> None:
        """Send a mail."""

    result, _ = run(send, "send", guards=[lambda call, context: ask("?")], approve=lambda call, asked, context: asked)
    for transfer in ("json", "pickle"):
        again = unpack(pack(result, transfer), transfer)
        assert result.pending is not None and again.pending == result.pending, transfer
