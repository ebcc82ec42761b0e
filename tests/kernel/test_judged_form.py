"""A guard is shown the JSON that makes what the handler gets, whatever validation makes of what was sent."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import json
import os
import uuid
from collections import deque
from dataclasses import InitVar
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    Json,
    PlainSerializer,
    PlainValidator,
    Secret,
    SecretStr,
    StringConstraints,
    computed_field,
    field_serializer,
    model_serializer,
    model_validator,
)
from pydantic.dataclasses import dataclass as validated_dataclass
from pydantic_core import to_json
from typing_extensions import TypedDict

from cast import ask_always
from ferrule import (
    Decision,
    DefinitionError,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolHandler,
    allow,
    deny,
    tool,
)
from ferrule.middleware import retry
from watched import run

BOTH = pytest.mark.parametrize("way", ["function", "class", "model"])


def make_tool(annotation: Any, way: str, got: list[Any]) -> Tool:
    """Return a tool whose one parameter has this annotation, written in one of three ways."""
    if way == "function":

        async def take(value: Any) -> str:
            got.append(value)
            return "taken"

        take.__annotations__ = {"value": annotation, "return": str}
        return tool(take)
    if way == "model":
        model = type("Arguments", (BaseModel,), {"__annotations__": {"value": annotation}})

        @tool(input_schema=model, name="take")
        async def with_model(args: Any) -> str:
            got.append(args.value)
            return "taken"

        return with_model

    async def call(self: Any) -> str:
        got.append(self.value)
        return "taken"

    space = {"__annotations__": {"value": annotation}, "__call__": call, "__doc__": "Take it."}
    return tool(type("Take", (ToolHandler,), space), name="take")


def run_guarded(annotation: Any, sent: Any, way: str = "function") -> tuple[Any, list[Any], list[Any]]:
    """Return the result of a call, what its guard was shown, and what its handler got."""
    shown: list[Any] = []
    got: list[Any] = []
    guards = [lambda call, context: shown.append(dict(call.arguments)["value"])]
    result, _ = run(make_tool(annotation, way, got), "take", {"value": sent}, guards=guards)
    return result, shown, got


# -- values that validation changes ------------------------------------------------------------------------------------

Lowered = Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True)]
Scaled = Annotated[int, AfterValidator(lambda value: value * 100)]
LoweredByCode = Annotated[str, AfterValidator(str.lower)]
Cents = Annotated[Scaled, PlainSerializer(lambda value: value // 100)]


class Fruit(enum.Enum):
    APPLE = "apple"

    @classmethod
    def _missing_(cls, value: object) -> Fruit:
        return cls.APPLE


class Fixed(enum.Enum):
    A = "a"

    @staticmethod
    def _missing_(value: object) -> Fixed:
        return Fixed.A


class Inherits(BaseModel):
    model_config = ConfigDict(str_to_lower=True)
    names: list[str]


class Hides(BaseModel):
    """All the ways in which Pydantic leaves something out or writes it otherwise."""

    path: Path = Field(exclude=True)
    name: Lowered = Field(serialization_alias="harmless")
    told: Annotated[Lowered, PlainSerializer(lambda value: "harmless")]
    field: Lowered

    @field_serializer("field")
    def harmless(self, value: str) -> str:
        return "harmless"

    @computed_field
    def more(self) -> int:
        return 1


class Further(TypedDict, extra_items=Path):  # type: ignore[call-arg]
    name: str


class StripsFurtherKeys(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[Annotated[str, AfterValidator(str.strip)], str]
    file: Path


class Token:
    """A class of somebody's own."""

    def __init__(self, text: str) -> None:
        self.text = text.lower().strip()


Written = Annotated[Token, PlainValidator(Token, json_schema_input_type=str), PlainSerializer(lambda token: token.text)]
Unwritten = Annotated[Token, PlainValidator(Token, json_schema_input_type=str)]


class Folded(BaseModel):
    """A base whose own validator gives an object of a derived class."""

    name: str

    @model_validator(mode="wrap")
    @classmethod
    def derive(cls, value: Any, handler: Any) -> Any:
        made = handler(value)
        return Derived(name=made.name, path=f"/{made.name}") if cls is Folded else made


class Derived(Folded):
    path: str


class Defaults(BaseModel):
    name: str
    mode: str = "w"
    tags: list[str] = Field(default_factory=lambda: ["made"])


class ReadsAsPython(BaseModel):
    """Its validator gives Python values for what JSON writes otherwise."""

    name: str
    tags: set[str] = set()
    amount: Decimal = Decimal("1.5")
    pair: tuple[int, int] = (1, 2)
    data: bytes = b""
    lasts: timedelta = timedelta(1)

    @model_validator(mode="before")
    @classmethod
    def as_python(cls, value: Any) -> Any:
        return dict(value)


OBJECT = {"name": "a"}
# test_dumps.py has the types of Pydantic's own.
REWRITTEN: dict[str, tuple[Any, Any, Any]] = {
    "constraints": (Lowered, " Users", "users"),
    "a model's setting, inherited": (Inherits, {"names": ["A"]}, {"names": ["a"]}),
    "after": (Annotated[str, AfterValidator(os.path.expandvars)], "$FERRULE_TEST/x", "etc/x"),
    "a member for anything": (Fruit, "banana", "apple"),
    "keys": (dict[Path, str], {"a//b": "x"}, {"a/b": "x"}),
    "json": (Json[list[int]], "[1 ]", "[1]"),
    "cents, with the inverse": (Cents, 5, 5),
    "what hides": (
        Hides,
        {"path": "a//b", "name": "A", "told": " B", "field": "C"},
        {"path": "a/b", "name": "a", "told": "harmless", "field": "harmless"},
    ),
    "further keys of a typed dict": (Further, {"name": "a", "at": "b//c"}, {"name": "a", "at": "b/c"}),
    "further keys of a model": (StripsFurtherKeys, {"file": "a", " b ": "c"}, {"file": "a", "b": "c"}),
    "a class of one's own": (Written, "A", "a"),
    "derived models": (list[Folded], [OBJECT], [OBJECT]),
    "what is made further down": (Defaults, OBJECT, {"name": "a", "mode": "w", "tags": ["made"]}),
    "Python values": (
        ReadsAsPython,
        {"name": "a", "tags": ["b"], "amount": "2.50"},
        {"name": "a", "tags": ["b"], "amount": "2.50", "pair": [1, 2], "data": "", "lasts": "P1D"},
    ),
    "secrets in a secret": (Secret[list[SecretStr]], ["tell"], ["tell"]),
}


@BOTH
@pytest.mark.parametrize("case", REWRITTEN)
def test_a_guard_is_shown_what_the_handler_gets(case: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRULE_TEST", "etc")
    annotation, sent, expected = REWRITTEN[case]
    got: list[Any] = []
    one, shown = make_tool(annotation, way, got), []

    def sees(call: ToolCall, context: ToolContext) -> Decision | None:
        shown.append((call.arguments["value"], dict(call.arguments)["value"]))
        return deny("this one") if call.arguments["value"] == expected else None

    assert run(one, "take", {"value": sent}, guards=[sees])[0].status == "denied"
    assert (shown, got) == ([(expected, expected)], [])
    result, watch = run(one, "take", {"value": sent}, guards=[lambda call, context: None])
    assert (result.status, len(got)) == ("ok", 1)
    assert [event.data["input"]["value"] for event in watch.events[1:]] == [expected] * 3


# -- values that hold more than their JSON says ------------------------------------------------------------------------


class Dated(BaseModel):
    at: datetime
    name: str


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


@BOTH
def test_a_time_spelled_otherwise_makes_the_same_model_of_a_union(way: str) -> None:
    result, _, got = run_guarded(Dated | Loose, {"at": "2026-01-01 00:00:00Z", "name": "a"}, way)
    assert result.success and type(got[0]) is Dated


class Cyclic(BaseModel):
    name: str
    itself: Any = None

    @model_validator(mode="after")
    def close(self) -> Cyclic:
        self.itself = [self]
        return self


class Ref(BaseModel):
    name: str


class Resolved(BaseModel):
    name: str
    path: Path = Path("/etc/passwd")


WITHOUT_JSON: dict[str, tuple[Any, Any]] = {
    "unknown": (Unwritten, "ab"),
    "of another class": (Annotated[str, AfterValidator(lambda value: Token(value))], "ab"),
    "nan": (Annotated[float, AfterValidator(lambda value: float("nan"))], 1.5),
    "half a character": (Annotated[str, AfterValidator(lambda value: "\ud800")], "ab"),
    "a cycle": (Cyclic, OBJECT),
    "a model of another class": (Annotated[Ref, AfterValidator(lambda ref: Resolved(name=ref.name))], OBJECT),
    "scaled": (Scaled, 5),
}


@BOTH
@pytest.mark.parametrize("case", WITHOUT_JSON)
def test_a_value_unlike_its_json_never_runs(case: str, way: str) -> None:
    result, shown, got = run_guarded(*WITHOUT_JSON[case], way)
    assert (result.status, result.executed, shown, got) == ("failed", False, [], [])
    assert "'value'" in str(result.error) and "PlainSerializer" in str(result.error)


# -- secrets that nobody sent ------------------------------------------------------------------------------------------

OWN = SecretStr("the program's own")


class Keyed(BaseModel):
    path: Path
    key: SecretStr = Field(default_factory=lambda: OWN)


class KeyedByDefault(BaseModel):
    path: Path
    key: SecretStr = OWN


@BOTH
def test_a_secret_that_nobody_sent_fails_the_call(way: str) -> None:
    got: list[Any] = []
    one = make_tool(Keyed, way, got)
    for options in ({"guards": [ask_always]}, {"guards": [ask_always], "approve": lambda call, asked, _: asked}):
        result, watch = run(one, "take", {"value": {"path": "a"}}, **options)
        assert (result.status, result.executed, got) == ("failed", False, [])
        assert "context.secrets" in str(result.error)
        assert "own" not in str(([event.data for event in watch.events], result.text, result.record()))
    _, shown, got = run_guarded(Keyed, {"path": "a", "key": "sent"}, way)
    assert shown == [{"key": "sent", "path": "a"}] and got[0].key.get_secret_value() == "sent"


# -- types that are refused when the tool is defined -------------------------------------------------------------------


@dataclasses.dataclass
class HasInitVar:
    x: int
    port: InitVar[int] = 22


@validated_dataclass(config=ConfigDict(extra="allow"))
class OpenData:
    x: int


class OpenAliased(BaseModel):
    model_config = ConfigDict(extra="allow")
    tenant: str = Field(alias="tenantId")
    day: date | None = None


class Twice(BaseModel):
    raw: str = Field(alias="text")
    lowered: Lowered = Field(alias="text")


class HasInfinity(BaseModel):
    most: float = float("inf")


@dataclasses.dataclass
class SecretData:
    host: str
    password: SecretStr = OWN


class ExportedOtherwise(BaseModel):
    model_config = ConfigDict(json_schema_mode_override="serialization")
    key: str = Field("-", validation_alias="key_in", serialization_alias="key_out")


class RemovesFromSchema(BaseModel):
    model_config = ConfigDict(json_schema_extra=lambda schema: schema["properties"].pop("admin"))
    to: str
    admin: bool = False


class PathModel(BaseModel):
    base: str
    part: str

    def __fspath__(self) -> str:
        return f"{self.base}/{self.part}"


ALIAS = "'tenant' has an alias beside further keys"


@BOTH
@pytest.mark.parametrize(
    ("annotation", "error"),
    [
        (list[validated_dataclass(HasInitVar)], r"'port'.*InitVar"),
        (OpenData, "make it a model"),
        (OpenAliased, ALIAS),
        (list[Twice], "two fields have the name 'text'"),
        (list[HasInfinity], "no JSON form"),
        (KeyedByDefault, r"context\.secrets"),
        (dict[str, list[SecretData]], r"context\.secrets"),
        (ExportedOtherwise, "key"),
        (list[RemovesFromSchema], "'admin'"),
        (PathModel, "is a path"),
    ],
)
def test_a_type_whose_values_cannot_be_judged_is_refused_at_definition(annotation: Any, error: str, way: str) -> None:
    with pytest.raises(DefinitionError, match=error):
        make_tool(annotation, way, [])


def test_a_default_that_calls_would_share_is_refused_beside_a_schema() -> None:
    def add(to: str, also: list[str] = []) -> str:  # noqa: B006
        return to

    schema = {**OPEN, "properties": {**OPEN["properties"], "also": {"type": "array"}}, "additionalProperties": False}
    with pytest.raises(DefinitionError, match="'also' would be the same object in all calls"):
        Tool("add", add, description="Add.", input_schema=schema)


# -- parameters that only the program fills ----------------------------------------------------------------------------

OPEN = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"], "additionalProperties": True}


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*given: Any, **named: Any) -> Any:
        return function(*given, **named)

    return wrapper


def pay_all(to: str, admin: bool = False, **more: str) -> str:
    return f"{to} {admin} {sorted(more)}"


def pay_with_context(to: str, context: ToolContext, admin: bool = False, **more: str) -> str:
    return f"{to} {admin} {sorted(more)}"


def pay_only(to: str, admin: bool = False) -> str:
    return f"{to} {admin} []"


FILLED = functools.partial(pay_all, admin=False)
CLOSED = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
ONLY_THE_PROGRAM_FILLS: list[tuple[Any, Any, str]] = [
    *[(made, schema, "admin") for made in (FILLED, decorated(FILLED)) for schema in (None, OPEN)],
    (functools.partial(decorated(FILLED), x="1"), OPEN, "admin"),
    (pay_with_context, OPEN, "admin"),
    (pay_with_context, OPEN, "context"),
    (pay_only, {**CLOSED, "allOf": [{"additionalProperties": True}]}, "admin"),
    (pay_only, {**CLOSED, "anyOf": [{"additionalProperties": True}]}, "admin"),
    (pay_only, {**CLOSED, "allOf": [{"properties": {"admin": {"type": "string"}}}]}, "admin"),
]


@pytest.mark.parametrize(("made", "schema", "name"), ONLY_THE_PROGRAM_FILLS)
def test_the_model_cannot_fill_what_only_the_program_fills(made: Any, schema: Any, name: str) -> None:
    paying = Tool("pay", made, description="Pay.", **({"input_schema": schema} if schema else {}))
    refused, _ = run(paying, "pay", {"to": "a", name: "yes"})
    assert (refused.status, refused.executed) == ("invalid", False) and name in str(refused.error)
    assert str(run(paying, "pay", {"to": "a"})[0].output).startswith("a False")


# -- defaults, numbers, dates and further keys -------------------------------------------------------------------------


# -- objects that are made again ---------------------------------------------------------------------------------------


class Signed(BaseModel):
    cents: Cents
    paths: list[Path]
    id: uuid.UUID = Field(default_factory=uuid.uuid4)


@pytest.mark.parametrize("raised", [ToolError("down", executed=False), ConnectionError()])
def test_a_retry_gets_fresh_objects(raised: Exception) -> None:
    got: list[Any] = []
    shown: list[Any] = []

    @tool(idempotent=True)
    async def take(ones: list[Signed]) -> str:
        [one] = ones
        got.append((one.cents, list(one.paths), str(one.id)))
        ones.append(one)
        one.cents *= 100
        one.paths.append(Path("spoilt"))
        if len(got) == 1:
            raise raised
        return "taken"

    guards = [lambda c, _: shown.append(c.arguments["ones"][0]["id"])]
    result, _ = run(take, "take", {"ones": [{"cents": 5, "paths": ["a//b"]}]}, guards=guards, inside=[retry(wait=0.0)])
    assert result.success, result.error
    assert got == [(500, [Path("a/b")], shown[0])] * 2


def test_a_retry_whose_value_comes_out_otherwise_does_not_run() -> None:
    count = iter(range(100))
    got: list[str] = []

    async def take(value: Any) -> str:
        got.append(value)
        raise OSError("again")

    take.__annotations__["value"] = Annotated[str, AfterValidator(lambda value: value if next(count) < 2 else "b")]
    counted, guards = tool(take, idempotent=True), [lambda c, _: None]
    result, _ = run(counted, "take", {"value": "a"}, guards=guards, inside=[retry(9, wait=0)])
    assert (result.status, got) == ("failed", ["a", "a"])
    assert "otherwise than judged" in str(result.error)


# -- arguments that a guard or a person changes ------------------------------------------------------------------------


@tool
async def pay(cents: Cents, to: Lowered, when: date | None = None, note: str = "-") -> str:
    """Pay."""
    return f"{cents} {to} {when} {note}"


CHANGES: list[tuple[dict[str, Any], str | None]] = [
    ({}, "500 ada None -"),
    ({"note": "x"}, "500 ada None x"),
    ({"to": "bob"}, "500 bob None -"),
    ({"when": "2026-01-02"}, "500 ada 2026-01-02 -"),
    ({"cents": 7, "to": "ada"}, "700 ada None -"),
    ({"cents": "5"}, None),
    ({"to": " Bob"}, None),
    ({"to": "BOB", "note": "x"}, None),
]


@pytest.mark.parametrize(("changes", "expected"), CHANGES)
def test_a_change_arrives_as_given_or_denies(changes: Any, expected: str | None) -> None:
    shown: list[Any] = []

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        assert dict(call.arguments) == {"cents": 5, "to": "ada", "when": None, "note": "-"}
        return allow({**call.arguments, **changes})

    change = lambda call, context: {**call.arguments, **changes}  # noqa: E731
    sees = lambda call, context: shown.append(call.arguments["cents"])  # noqa: E731
    for options in ({"guards": [change, sees]}, {"guards": [ask_always, sees], "approve": approve}):
        result, _ = run(pay, "pay", {"cents": 5, "to": " Ada"}, **options)
        assert (result.status, result.output) == (("ok", expected) if expected else ("denied", None))
    assert set(shown) <= {5, 7}


def run_edited(annotation: Any, sent: Any, edit: Any) -> tuple[Any, list[Any]]:
    """Return the result of a call whose arguments a person edits, and what the handler got."""
    got: list[Any] = []

    async def take(value: Any, n: int = 1) -> None:
        got.append(value)

    take.__annotations__ = {"value": annotation, "n": int}
    approve = lambda call, decision, context: allow(edit(copy.deepcopy(call.arguments)))  # noqa: E731
    return run(tool(take), "take", {"value": sent}, guards=[ask_always], approve=approve)[0], got


class Item(BaseModel):
    cents: Cents
    to: Lowered = "nobody"
    id: uuid.UUID = Field(default_factory=uuid.uuid4)


class Forced(BaseModel):
    """Puts back what was taken out, past what Pydantic knows to be set."""

    model_config = ConfigDict(frozen=True)
    name: Path
    force: bool = False

    @model_validator(mode="after")
    def put_back(self) -> Forced:
        object.__setattr__(self, "force", True)
        return self


@dataclasses.dataclass
class Sent:
    to: Path
    copies: int = 1
    sizes: tuple[int, ...] = (1, 2)


UUID = uuid.UUID(int=0xAB)
ITEM = {"cents": 5, "id": str(UUID)}
EDITS: list[tuple[Any, Any, Any, Any]] = [
    # what is left out is its default
    (Forced, {"name": "a", "force": False}, {"name": "a"}, None),
    (list[Sent], [{"to": "a", "copies": 3}], [{"to": "a", "sizes": [5]}], [Sent(Path("a"), sizes=(5,))]),
    (Sent, {"to": "a"}, {"copies": 1}, None),
    (Item, {**ITEM, "to": " Ada"}, {"cents": 7, "id": str(UUID)}, Item(cents=7, id=UUID)),
    (Item, {"cents": 5}, {"cents": 5, "to": "eve"}, None),  # its id was made once
    # what is edited is read as a model's arguments are, unless code would change it
    (Decimal, 5, 7.5, Decimal("7.5")),
    (Annotated[float, AfterValidator(abs)], 500, 100, 100.0),  # as a browser writes 100.0
    (dict[str, list[Decimal]], {"a": ["5"]}, {"a": [7, "8.0"]}, {"a": [Decimal(7), Decimal("8.0")]}),
    (Path, "a", "b//c", Path("b/c")),
    (HttpUrl, "http://a.example", "http://B.example", HttpUrl("http://b.example/")),
    (Annotated[HttpUrl, AfterValidator(lambda one: one)], "http://a.example", "http://B.example", None),
    (Annotated[str, PlainSerializer(lambda one: one.lower())], "a", "B", None),
    (set[LoweredByCode], ["B", "A"], ["b", "x"], {"b", "x"}),
    (set[LoweredByCode], ["B", "A"], ["x", "b"], None),
    (set[LoweredByCode], ["B", "A"], ["b", "b"], None),
]


@pytest.mark.parametrize(("annotation", "sent", "edited", "expected"), EDITS)
def test_an_edit_arrives_as_it_was_written_or_denies(annotation: Any, sent: Any, edited: Any, expected: Any) -> None:
    result, got = run_edited(annotation, sent, lambda arguments: {"value": edited})
    assert (result.status, got) == (("denied", []) if expected is None else ("ok", [expected])), result.error


# -- any type ----------------------------------------------------------------------------------------------------------

LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, st.text(max_size=5)),
    (int, st.integers(-100, 100)),
    (Lowered, st.text(max_size=5)),
    (Cents, st.integers(-100, 100)),
    (Path, st.from_regex(r"[ab./]{1,6}", fullmatch=True)),
    (Decimal, st.from_regex(r"[1-9]\.[0-9]{1,3}", fullmatch=True)),
    (date, st.dates().map(str)),
    # Beside a Decimal, what has more digits than a double keeps is refused.
    (float, st.integers(-9, 9) | st.floats(-1e6, 1e6).map(lambda value: round(value, 8))),
    (bool, st.booleans()),
    (Literal["a", 1, None], st.sampled_from(["a", 1, None])),
    (Fruit, st.text(max_size=3)),
    (Fixed, st.text(max_size=3)),
    (Annotated[str, AfterValidator(lambda v: v.replace("a", ""))], st.text("ab", max_size=4)),
]


class Discreet(BaseModel):
    """Its own serializer says nothing of what it holds."""

    held: Any

    @model_serializer
    def harmless(self) -> dict[str, str]:
        return {"held": "harmless"}


def to_plain(value: Any) -> Any:
    """Return the JSON data of all that a value holds, whatever its classes serialize."""
    if isinstance(value, BaseModel):
        return to_plain(vars(value))
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(to_plain, value), key=to_json)
    if isinstance(value, list | tuple | deque):
        return [to_plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, Path | Decimal | date) else value


def containers(inner: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Return annotations that hold others, with what may be sent for them."""

    def model(kind: int, parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
        space = {f"f{n}": annotation for n, (annotation, _) in enumerate(parts)}
        made = type("Generated", (BaseModel,), {"__annotations__": space})
        derived = type("Derived", (made,), {"__annotations__": {"more": str}, "more": "more"})
        annotation = [
            made,
            dataclasses.make_dataclass("Generated", list(space.items())),
            Annotated[made, AfterValidator(lambda one: derived.model_construct(**vars(one), more="more"))],
            Annotated[Any, AfterValidator(lambda one: deque([Discreet(held=one)]))],
            NamedTuple("Generated", list(space.items())),  # type: ignore[misc]
        ][kind]
        return annotation, st.fixed_dictionaries({f"f{n}": values for n, (_, values) in enumerate(parts)})

    return st.one_of(
        inner.map(lambda one: (list[one[0]], st.lists(one[1], max_size=3))),
        inner.map(lambda one: (dict[str, one[0]], st.dictionaries(st.text(max_size=3), one[1], max_size=2))),
        inner.map(lambda one: (one[0] | None, st.none() | one[1])),
        st.tuples(inner, inner).map(
            lambda two: (tuple[two[0][0], two[1][0]], st.tuples(two[0][1], two[1][1]).map(list))
        ),
        st.sampled_from(LEAVES).map(lambda one: (set[one[0]], st.lists(one[1], max_size=4))),
        st.builds(model, st.integers(0, 4), st.lists(inner, min_size=1, max_size=3)),
    )


@given(st.data())
def test_a_guard_sees_what_the_handler_gets(data: st.DataObject) -> None:
    annotation, values = data.draw(st.recursive(st.sampled_from(LEAVES), containers, max_leaves=4))
    got: list[Any] = []
    shown: list[Any] = []
    guards = [lambda c, _: shown.append(c.arguments["value"])]
    one = make_tool(annotation, data.draw(st.sampled_from(["function", "class", "model"])), got)
    result, _ = run(one, "take", json.dumps({"value": data.draw(values)}), guards=guards)
    assert result.success and result.repairs == (), result.error
    assert run(make_tool(annotation, "function", got), "take", {"value": shown[0]}, guards=guards)[0].success
    assert shown[0] == shown[1] and to_plain(got[0]) == to_plain(got[1])
