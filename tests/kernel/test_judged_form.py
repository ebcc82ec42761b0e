"""What a guard is shown is what the handler gets, whatever validation makes of what was sent."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import ipaddress
import json
import operator
import os
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import InitVar
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AllowInfNan,
    AnyUrl,
    Base64Str,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    EncodedStr,
    EncoderProtocol,
    Field,
    HttpUrl,
    Json,
    OnErrorOmit,
    PlainSerializer,
    PlainValidator,
    RootModel,
    Secret,
    SecretStr,
    SerializeAsAny,
    StringConstraints,
    WrapValidator,
    computed_field,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.dataclasses import dataclass as validated_dataclass
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import core_schema, to_json
from typing_extensions import TypedDict

from ferrule import (
    Decision,
    DefinitionError,
    InputRequired,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolHandler,
    allow,
    ask,
    deny,
    tool,
)
from ferrule.middleware import before, retry
from watched import run

Lowered = Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True)]
Scaled = Annotated[int, AfterValidator(lambda value: value * 100)]
Cents = Annotated[Scaled, PlainSerializer(lambda value: value // 100)]


class Fruit(enum.Enum):
    APPLE = "apple"

    @classmethod
    def _missing_(cls, value: object) -> Fruit:
        return cls.APPLE


class Plain(enum.Enum):
    A = "a"


class Stripped(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    name: str


class Inner(BaseModel):
    name: str


class Inherits(BaseModel):
    model_config = ConfigDict(str_to_lower=True)
    names: list[str]


class Shouting(BaseModel):
    name: str

    @model_validator(mode="after")
    def shout(self) -> Shouting:
        self.name = self.name.upper()
        return self


class OfField(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def lower(cls, value: str) -> str:
        return value.lower()


class PostInit(BaseModel):
    name: str

    def model_post_init(self, context: Any) -> None:
        self.name = self.name.strip()


class Careless(BaseModel):
    model_config = ConfigDict(extra="ignore")
    name: str


@dataclasses.dataclass
class Point:
    x: int
    label: str = ""

    def __post_init__(self) -> None:
        self.label = self.label.strip()


@validated_dataclass
class Place:
    path: Path


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


class Disguised(BaseModel):
    name: Lowered

    @model_serializer
    def harmless(self) -> dict[str, str]:
        return {"name": "harmless"}


class Tree(BaseModel):
    path: Path
    branches: list[Tree] = []


class Dated(TypedDict):
    day: date
    note: str


class Cat(BaseModel):
    kind: Literal["cat"]
    name: Lowered


class Dog(BaseModel):
    kind: Literal["dog"]
    age: int


class Token:
    """A class of somebody's own."""

    def __init__(self, text: str) -> None:
        self.text = text.lower()


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


@dataclasses.dataclass
class Base:
    name: str


@dataclasses.dataclass
class Extended(Base):
    path: str = "/"


class Defaults(BaseModel):
    name: str
    mode: str = "w"
    tags: list[str] = Field(default_factory=lambda: ["made"])


class Named(BaseModel):
    name: Lowered


class Placed(Named):
    path: Path = Field(alias="file")
    tag: Written


class Spot(NamedTuple):
    path: Path
    hides: Hides | None = None


class Numbers:
    """Not what the list was that it is made of."""

    def __init__(self, items: list[int]) -> None:
        self.items = items


class Fixed(enum.Enum):
    A = "a"

    @staticmethod
    def _missing_(value: object) -> Fixed:
        return Fixed.A


REWRITTEN: dict[str, tuple[Any, Any, Any]] = {
    "constraints": (Lowered, " Users", "users"),
    "a model's setting": (Stripped, {"name": " a "}, {"name": "a"}),
    "a model's setting, inherited": (Inherits, {"names": ["A"]}, {"names": ["a"]}),
    "after": (Annotated[str, AfterValidator(os.path.expandvars)], "$FERRULE_TEST/x", "etc/x"),
    "before": (Annotated[str, BeforeValidator(lambda v: v.strip())], " a ", "a"),
    "wrap": (Annotated[str, WrapValidator(lambda v, handler: handler(v).strip())], " ab", "ab"),
    "a member for anything": (Fruit, "banana", "apple"),
    "web address": (HttpUrl, "http://EXAMPLE.com", "http://example.com/"),
    "any address": (AnyUrl, "HTTP://EXAMPLE.com", "http://example.com/"),
    "ip": (ipaddress.IPv4Address | ipaddress.IPv6Address, "0:0::1", "::1"),
    "path": (Path, "a//b/.", "a/b"),
    "path or nothing": (Path | None, "a//b", "a/b"),
    "keys": (dict[Path, str], {"a//b": "x"}, {"a/b": "x"}),
    "numbers as keys": (dict[int, str], {"01": "x"}, {"1": "x"}),
    "uuid": (uuid.UUID, "12345678123456781234567812345678", "12345678-1234-5678-1234-567812345678"),
    "date and time": (datetime, "2026-01-02T03:04:05.000+00:00", "2026-01-02T03:04:05Z"),
    "duration": (timedelta, "P1DT24H", "P2D"),
    "decimal": (Decimal, "1.50", "1.50"),
    "json": (Json[list[int]], "[1 ]", "[1]"),
    "base64": (Base64Str, "aGk=", "aGk="),
    "bytes": (ByteSize, "1kb", 1000),
    "cents, with the inverse": (Cents, 5, 5),
    "a list": (list[Lowered], [" A"], ["a"]),
    "a sequence": (Sequence[Lowered], [" A"], ["a"]),
    "a deque": (deque[Lowered], [" A"], ["a"]),
    "a set": (set[Lowered], ["C", " b", "A"], ["a", "b", "c"]),
    "a tuple": (tuple[Lowered, int], [" A", 1], ["a", 1]),
    "what is left out": (list[OnErrorOmit[Annotated[str, Field(max_length=1)]]], ["a", "bb"], ["a"]),
    "a model's validator": (Shouting, {"name": "a"}, {"name": "A"}),
    "a field's validator": (OfField, {"name": "A"}, {"name": "a"}),
    "after a model is made": (PostInit, {"name": " a"}, {"name": "a"}),
    "keys that are ignored": (Careless, {"name": "a", "more": 1}, {"name": "a"}),
    "after a dataclass is made": (Point, {"x": 1, "label": " a"}, {"x": 1, "label": "a"}),
    "a dataclass": (Place, {"path": "a//b"}, {"path": "a/b"}),
    "what hides": (
        Hides,
        {"path": "a//b", "name": "A", "told": " B", "field": "C"},
        {"path": "a/b", "name": "a", "told": "harmless", "field": "harmless"},
    ),
    "what is disguised": (Disguised, {"name": "A"}, {"name": "harmless"}),
    "a tree": (Tree, {"path": "a//b", "branches": [{"path": "c//d"}]}, None),
    "a typed dict": (Dated, {"day": "2026-01-02", "note": "x"}, {"day": "2026-01-02", "note": "x"}),
    "one of two": (Cat | Dog, {"kind": "cat", "name": "A"}, {"kind": "cat", "name": "a"}),
    "one of two, told apart": (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        {"kind": "cat", "name": "A"},
        {"kind": "cat", "name": "a"},
    ),
    "a class of one's own": (Written, "A", "a"),
    "a root": (RootModel[Lowered], " A", "a"),
    "a derived model": (Folded, {"name": "a"}, {"name": "a"}),
    "derived models": (list[Folded], [{"name": "a"}], [{"name": "a"}]),
    "one of two, derived": (Folded | int, {"name": "a"}, {"name": "a"}),
    "one of two, the other derived": (
        list[Named | Placed],
        [{"name": "A"}, {"name": "A", "file": "a//b", "tag": "B"}],
        [{"name": "a"}, {"name": "a", "file": "a/b", "tag": "b"}],
    ),
    "a derived dataclass": (
        Annotated[Base, AfterValidator(lambda one: Extended(one.name))],
        {"name": "a"},
        {"name": "a"},
    ),
    "what is made further down": (Defaults, {"name": "a"}, {"name": "a", "mode": "w", "tags": ["made"]}),
    "what came twice in a set": (set[int | bool], [2, 1, True, 2], [1, 2]),
    "sets in a set": (frozenset[frozenset[int]], [[2, 1], [3], [1, 2]], [[1, 2], [3]]),
    "a named tuple": (Spot, ["a//b"], ["a/b", None]),
    "a member for anything, by a static method": (Fixed, "b", "a"),
    "a list of another class": (
        Annotated[list[int], AfterValidator(lambda items: Numbers(items)), PlainSerializer(lambda n: n.items)],
        [1],
        [1],
    ),
    "a model of another class": (
        Annotated[
            Inner, AfterValidator(lambda one: Token(one.name)), PlainSerializer(lambda token: {"name": token.text})
        ],
        {"name": "A"},
        {"name": "a"},
    ),
    "one of two of another class": (
        Annotated[str | int, AfterValidator(lambda one: Token(str(one))), PlainSerializer(lambda token: token.text)],
        "A",
        "a",
    ),
    "a secret": (SecretStr, "tell", "tell"),
    "secrets in a secret": (Secret[list[SecretStr]], ["tell"], ["tell"]),
    "secrets as keys": (dict[SecretStr, int], {"a": 1, "b": 2}, {"a": 1, "b": 2}),
}
EXACT: dict[str, tuple[Any, Any]] = {
    "anything": (Any, {"a": [1, None]}),
    "numbers": (list[int | float | bool | None], [1, 1.5, True, None]),
    "text": (Annotated[str, Field(pattern="a+", max_length=9)], "aa"),
    "bytes": (bytes, "YWE="),
    "literals": (Literal["a", 1], 1),
    "a member": (Plain, "a"),
    "a model": (Inner, {"name": " A "}),
    "a dict": (dict[str, list[Inner]], {" K ": [{"name": "a"}]}),
    "a sequence": (Sequence[int], [1, 2]),
    "models told apart": (Annotated[Dog | Inner, Field(union_mode="left_to_right")], {"kind": "dog", "age": 1}),
}
BOTH = pytest.mark.parametrize("way", ["function", "class", "model"])


def taking(annotation: Any, way: str, got: list[Any]) -> Tool:
    """A tool whose one parameter has this annotation, written in one of three ways."""
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


@BOTH
@pytest.mark.parametrize("case", REWRITTEN)
def test_a_guard_is_shown_what_the_handler_gets(case: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRULE_TEST", "etc")
    annotation, sent, expected = REWRITTEN[case]
    expected = expected or {"path": "a/b", "branches": [{"path": "c/d", "branches": []}]}
    got: list[Any] = []
    one, shown = taking(annotation, way, got), []

    def sees(call: ToolCall, context: ToolContext) -> Decision | None:
        shown.append((call.arguments["value"], dict(call.arguments)["value"]))
        return deny("this one") if call.arguments["value"] == expected else None

    assert run(one, "take", {"value": sent}, guards=[sees])[0].status == "denied"
    assert (shown, got) == ([(expected, expected)], [])
    result, watch = run(one, "take", {"value": sent}, guards=[lambda call, context: None])
    assert (result.status, len(got)) == ("ok", 1)
    assert [event.data["input"]["value"] for event in watch.events[1:]] == [expected] * 3


@BOTH
@pytest.mark.parametrize("case", EXACT)
def test_what_nothing_changes_is_judged_as_it_was_sent(case: str, way: str) -> None:
    annotation, sent = EXACT[case]
    got: list[Any] = []
    one = taking(annotation, way, got)
    assert one.handling.parameters.exact
    result, _ = run(
        one, "take", {"value": sent}, guards=[lambda c, _: deny("") if c.arguments["value"] != sent else None]
    )
    assert result.success


class WithPath(Inner):
    path: str = "/etc"


class PutsInAfterwards(BaseModel):
    inner: Inner

    def model_post_init(self, context: Any) -> None:
        self.inner = WithPath(name=self.inner.name)


class PutsInWhenMade(BaseModel):
    inner: Inner

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.inner = WithPath(name=self.inner.name)


@validated_dataclass
class PutsInADataclass:
    inner: Inner

    def __post_init__(self) -> None:
        self.inner = WithPath(name=self.inner.name)


class HasItByDefault(BaseModel):
    day: date
    inner: Inner = WithPath(name="a", path="/root")


class KeepsBesides(BaseModel):
    name: str
    _more: Any = None

    @model_validator(mode="wrap")
    @classmethod
    def keep(cls, value: Any, handler: Any) -> Any:
        made = handler({"name": value["name"]})
        made._more = value.get("more", "nothing")
        return made


class Labelled:
    """A class whose serializer writes only a label of it."""

    def __init__(self, text: str) -> None:
        self.label, _, self.more = text.partition(" ")


class Named2(str):
    more = "nothing"


def named(text: str) -> Named2:
    made = Named2(text.partition(" ")[0])
    made.more = text.partition(" ")[2]
    return made


LEFT_OUT: dict[str, tuple[Any, Any, Any, Any]] = {
    "a private attribute": (
        KeepsBesides,
        {"name": "a", "more": "rm"},
        {"name": "a"},
        lambda one: one._more == "nothing",
    ),
    "what a serializer does not write": (
        Annotated[
            Labelled, PlainValidator(Labelled, json_schema_input_type=str), PlainSerializer(lambda one: one.label)
        ],
        "a rm",
        "a",
        lambda one: one.more == "",
    ),
    "an attribute of a derived string": (
        Annotated[str, AfterValidator(named)],
        "a rm",
        "a",
        lambda one: one.more == "",
    ),
    "a field of a derived class": (HasItByDefault, {"day": "2026-01-02"}, None, lambda one: type(one.inner) is Inner),
}


@BOTH
@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_a_serializer_leaves_out_does_not_arrive(case: str, way: str) -> None:
    annotation, sent, expected, holds = LEFT_OUT[case]
    expected = expected or {"day": "2026-01-02", "inner": {"name": "a"}}
    got: list[Any] = []
    shown: list[Any] = []
    for guards in ([], [lambda c, _: shown.append(c.arguments["value"])]):
        result, _ = run(taking(annotation, way, got), "take", {"value": sent}, guards=guards)
        assert result.success, result.error
        assert shown == [expected] * len(guards) and holds(got[-1])


class Excludes(BaseModel):
    n: Decimal
    hidden: str = Field("", exclude=True)


Bound = TypeVar("Bound", bound=Excludes)


class Generic2(BaseModel, Generic[Bound]):
    of: Bound
    path: Path


class Encodes(EncoderProtocol):
    @classmethod
    def decode(cls, data: bytes) -> bytes:
        return b"rm " + data

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return b"harmless"

    @classmethod
    def get_json_format(cls) -> str:
        return "x"


class Cleans(BaseModel):
    command: str
    before: Any = None

    def clean(self) -> Cleans:
        self.before, self.command = self.command, "ls"
        return self


class FiltersPaths:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.list_schema(handler(Path), serialization=core_schema.filter_seq_schema(exclude={0}))


class Rounds:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.decimal_schema(serialization=core_schema.format_ser_schema(".2f"))


UNSEEN: dict[str, tuple[Any, Any]] = {
    "serialized as any": (SerializeAsAny[Excludes], {"n": "1", "hidden": "rm"}),
    "a bound type variable": (Generic2, {"of": {"n": "1", "hidden": "rm"}, "path": "a"}),
    "a model in a secret": (Secret[Excludes], {"n": "1", "hidden": "rm"}),
    "an encoder": (Annotated[str, EncodedStr(encoder=Encodes)], "/"),
    "a caller of a method": (Annotated[Cleans, AfterValidator(operator.methodcaller("clean"))], {"command": "rm"}),
    "a filter": (FiltersPaths, ["rm", "b"]),
    "a format": (Rounds, "1.23456"),
}


@BOTH
@pytest.mark.parametrize("case", UNSEEN)
def test_what_pydantic_writes_by_code_or_settings_of_an_author_is_made_of_what_was_judged(case: str, way: str) -> None:
    annotation, sent = UNSEEN[case]
    got: list[Any] = []
    shown: list[Any] = []
    one = taking(annotation, way, got)
    assert not one.handling.parameters.exact
    result, _ = run(one, "take", {"value": sent}, guards=[lambda c, _: shown.append(c.arguments["value"])])
    assert result.status == "failed" or "rm" not in repr(got[0]) or "rm" in str(shown), (shown, got)


@BOTH
@pytest.mark.parametrize("annotation", [PutsInAfterwards, PutsInWhenMade, PutsInADataclass])
def test_an_object_that_a_model_puts_in_is_made_of_what_was_judged(annotation: Any, way: str) -> None:
    shown: list[Any] = []
    got: list[Any] = []
    guards = [lambda c, _: shown.append(c.arguments["value"]["inner"])]
    result, _ = run(taking(annotation, way, got), "take", {"value": {"inner": {"name": "a"}}}, guards=guards)
    assert result.success, result.error
    assert shown == [{"name": "a"}] and got[0].inner == WithPath(name="a")


class OneOfTwo(RootModel[Annotated[Cat | Dog, Field(discriminator="kind")]]):
    """Arguments that are one of two models, one of which rewrites a name."""


def test_arguments_that_are_a_union_as_a_whole_are_shown_as_they_come_out() -> None:
    shown: list[Any] = []

    @tool(input_schema=OneOfTwo)
    async def take(args: OneOfTwo) -> str:
        return getattr(args.root, "name", "none")

    guards = [lambda c, _: shown.append(dict(c.arguments))]
    assert run(take, "take", {"kind": "cat", "name": " A"}, guards=guards)[0].output == "a"
    assert run(take, "take", {"kind": "dog", "age": 1}, guards=guards)[0].output == "none"
    assert shown == [{"kind": "cat", "name": "a"}, {"kind": "dog", "age": 1}]


class Cyclic(BaseModel):
    name: str
    itself: Any = None

    @model_validator(mode="after")
    def close(self) -> Cyclic:
        self.itself = [self]
        return self


@BOTH
@pytest.mark.parametrize(
    "annotation",
    [
        Unwritten,
        Annotated[str, AfterValidator(lambda value: Token(value))],
        Annotated[str, AfterValidator(lambda value: 5)],
        Annotated[float, AfterValidator(lambda value: float("nan"))],
        Annotated[str, AfterValidator(lambda value: "\ud800")],
        Cyclic,
        Scaled,
        Annotated[str, WrapValidator(lambda v, handler: handler(v)[::-1])],
    ],
    ids=["unknown", "of another class", "of another type", "nan", "half a character", "a cycle", "scaled", "turned"],
)
def test_what_has_no_json_form_runs_under_no_guard(annotation: Any, way: str) -> None:
    got: list[Any] = []
    asked: list[Any] = []
    sent: Any = 1.5 if "float" in str(annotation) else {"name": "a"} if annotation is Cyclic else "ab"
    sent = 5 if annotation is Scaled else sent
    result, _ = run(taking(annotation, way, got), "take", {"value": sent}, guards=[lambda c, _: asked.append(c)])
    assert (result.status, result.executed, got, asked) == ("failed", False, [], [])
    assert "'value'" in str(result.error) and "PlainSerializer" in str(result.error)


def test_a_field_that_no_object_keeps_is_refused_when_the_tool_is_defined() -> None:
    @validated_dataclass
    class Made:
        x: int
        hidden: InitVar[str]

    with pytest.raises(DefinitionError, match=r"'hidden'.*InitVar"):
        taking(list[Made], "function", [])


def test_a_dataclass_that_takes_any_key_is_refused_when_the_tool_is_defined() -> None:
    @validated_dataclass(config=ConfigDict(extra="allow"))
    class Open:
        x: int

    with pytest.raises(DefinitionError, match="make it a model"):
        taking(Open, "function", [])


class Dated(BaseModel):
    at: datetime
    what: str
    dry_run: bool = True


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    what: str


class Job(ToolHandler):
    """Do a job."""

    task: Dated | Loose
    dated: Dated | None = None
    loose: Loose | None = None

    async def __call__(self, context: ToolContext) -> Any:
        seen.append(self.task)
        if context.call.id == "asks" and context.answer is None:
            return InputRequired("really?", {"type": "object"})
        if context.call.id == "again" and len(seen) == 2:  # a guard has looked at the first
            raise ConnectionError
        return "done"


seen: list[Any] = []


@pytest.mark.parametrize("way", ["once", "again", "asks"])
@pytest.mark.parametrize("at", ["2026-01-01 00:00:00Z", "2026-01-01T00:00:00Z"])
async def test_which_of_several_models_is_meant_is_told_once_for_guards_and_every_run(way: str, at: str) -> None:
    class Looks:
        def check(self, handler: Any) -> None:
            seen.append(handler.task)

    seen.clear()
    options: Any = {"inside": [retry(wait=0.0)]} if way == "again" else {}
    runner = Runner(
        [Tool("job", Job, read_only=True)], guards=[Looks()], approve=lambda call, asked, context: allow({}), **options
    )
    sent = {"task": {"at": at, "what": "rm", "dry_run": False}}
    assert (await runner.run(ToolCall(way, "job", sent))).success
    assert len(seen) >= (2 if way == "once" else 3) and all(one == seen[0] and type(one) is Dated for one in seen)


class Stay(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True, str_to_lower=True, str_max_length=5, regex_engine="python-re")
    day: date | None = None
    at: datetime | None = None
    hour: time | None = None


@pytest.mark.parametrize("odd", [" {}", "{} ", "{}\n", "\t{}"])
@pytest.mark.parametrize(
    ("field", "text"), [("day", "2026-12-24"), ("at", "2026-12-24T12:30:00Z"), ("hour", "12:30:00")]
)
def test_a_date_is_shown_as_it_runs_whatever_its_model_makes_of_strings(field: str, text: str, odd: str) -> None:
    got: list[Any] = []
    shown: list[Any] = []
    guards = [lambda c, _: shown.append(c.arguments["value"][field])]
    stay = taking(Stay, "function", got)
    assert run(stay, "take", {"value": {field: text}}, guards=guards)[0].success
    result, _ = run(stay, "take", {"value": {field: odd.format(text)}}, guards=guards)
    assert result.status == "invalid" or shown[-1] == text
    assert set(shown) == {text} and {getattr(one, field) for one in got} == {getattr(got[0], field)}


@pytest.mark.parametrize("raised", [ToolError("down", executed=False), ConnectionError()])
def test_another_attempt_has_nothing_of_what_the_first_made_of_its_objects(raised: Exception) -> None:
    sent: list[int] = []

    @tool(read_only=True)
    async def pay(order: Dated) -> str:
        """Pay."""
        sent.append(len(order.what))
        order.what *= 100
        if len(sent) == 1:
            raise raised
        return "paid"

    args = {"order": {"what": "12345", "at": "2026-01-01T00:00:00Z"}}
    assert run(pay, "pay", args, guards=[lambda c, _: None], inside=[retry(wait=0.0)])[0].success
    assert sent == [5, 5]


class Patch(ToolHandler):
    """Change a customer."""

    id: int
    email: str | None = None

    async def __call__(self) -> Any:
        return self.model_dump(exclude_unset=True)


@pytest.mark.parametrize("guarded", [False, True])
def test_what_guards_are_shown_alike_runs_alike(guarded: bool) -> None:
    """Declared defaults are shown, so they count as sent."""
    shown: list[Any] = []
    guards = [lambda c, _: shown.append(dict(c.arguments))] if guarded else []
    answers = [run(tool(Patch), "Patch", sent, guards=guards)[0] for sent in ({"id": 1}, {"id": 1, "email": None})]
    assert [one.output for one in answers] == [{"id": 1, "email": None}] * 2, answers
    assert shown == [{"id": 1, "email": None}] * len(shown)


def test_an_alias_beside_the_further_keys_of_a_function_is_refused_when_the_tool_is_defined() -> None:
    def query(tenant: Annotated[str, Field(alias="tenantId")], **more: str) -> str:
        return tenant

    with pytest.raises(DefinitionError, match="'tenant' has an alias beside further keys"):
        tool(query)


class Aliased(BaseModel):
    model_config = ConfigDict(extra="allow")
    tenant: str = Field(alias="tenantId")
    day: date | None = None


@pytest.mark.parametrize("annotation", [Aliased, list[Aliased]])
def test_an_alias_beside_the_further_keys_of_a_model_is_refused_when_the_tool_is_defined(annotation: Any) -> None:
    with pytest.raises(DefinitionError, match="'tenant' has an alias beside further keys"):
        taking(annotation, "function", [])


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*given: Any, **named: Any) -> Any:
        return function(*given, **named)

    return wrapper


OPEN = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"], "additionalProperties": True}


@pytest.mark.parametrize("options", [{}, {"input_schema": OPEN}])
@pytest.mark.parametrize("made", [lambda f: f, decorated, lambda f: functools.partial(decorated(f), x="1")])
def test_what_a_partial_has_filled_no_model_fills(made: Any, options: Any) -> None:
    def pay(to: str, admin: bool = False, **more: str) -> str:
        return f"{to} {admin} {more.get('note')}"

    paying = Tool("pay", made(functools.partial(pay, admin=False)), description="Pay.", **options)
    refused, _ = run(paying, "pay", {"to": "a", "admin": "yes"})
    assert refused.status == "invalid" and "admin" in str(refused.error)
    assert run(paying, "pay", {"to": "a", "note": "x"})[0].output == "a False x"


def test_what_no_schema_names_but_the_function_itself_no_model_fills() -> None:
    async def pay(to: str, context: ToolContext, force: bool = False, **more: str) -> str:
        return f"{to} {force}"

    paying = Tool("pay", pay, description="Pay.", input_schema=OPEN)
    for name in ("force", "context"):
        refused, _ = run(paying, "pay", {"to": "a", name: "yes"})
        assert (refused.status, refused.executed) == ("invalid", False) and name in str(refused.error)
    assert run(paying, "pay", {"to": "a", "note": "x"})[0].output == "a False"


def test_a_default_that_calls_would_share_is_refused_beside_a_schema() -> None:
    def add(to: str, also: list[str] = []) -> str:  # noqa: B006
        return to

    schema = {**OPEN, "properties": {**OPEN["properties"], "also": {"type": "array"}}, "additionalProperties": False}
    with pytest.raises(DefinitionError, match="'also' would be the same object in all calls"):
        Tool("add", add, description="Add.", input_schema=schema)


class Unseen(BaseModel):
    q: str
    admin: SkipJsonSchema[bool] = False


class Otherwise(BaseModel):
    model_config = ConfigDict(json_schema_mode_override="serialization")
    key: str = Field("-", validation_alias="key_in", serialization_alias="key_out")


@pytest.mark.parametrize("annotation", [Unseen, list[Unseen], Otherwise, Annotated[bool, SkipJsonSchema()]])
def test_what_is_taken_and_not_exported_is_refused_when_the_tool_is_defined(annotation: Any) -> None:
    for way in ("function", "class"):
        with pytest.raises(DefinitionError):
            taking(annotation, way, [])


@pytest.mark.parametrize("annotation", [Annotated[float, AllowInfNan()], Annotated[Decimal, AllowInfNan()]])
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_what_is_no_number_in_json_does_not_run_whatever_a_type_says(annotation: Any, number: str) -> None:
    got: list[Any] = []
    result, _ = run(taking(annotation, "function", got), "take", f'{{"value": {number}}}', guards=[lambda c, _: None])
    assert result.status == "invalid" or got == [Decimal(number)], result.error


def test_what_a_middleware_changed_is_what_events_and_records_tell() -> None:
    @tool
    async def add(a: int) -> int:
        return a

    result, watch = run(add, "add", {"a": 1}, around=[before(lambda call, context: {"a": 99})])
    told = [event.data["input"] for event in watch.events if event.kind in ("tool:started", "tool:post")]
    assert result.output == 99 and told == [{"a": 99}] * 2 and result.record()["input"] == {"a": 99}


def test_a_serializer_of_a_field_with_a_factory_writes_it() -> None:
    class Price(BaseModel):
        cents: Annotated[int, AfterValidator(lambda euros: euros * 100)] = Field(default_factory=int)

        @field_serializer("cents")
        def in_euros(self, cents: int) -> int:
            return cents // 100

    got: list[Any] = []
    assert run(taking(Price, "function", got), "take", {"value": {"cents": 5}}, guards=[lambda c, _: None])[0].success
    assert got[0].cents == 500


def test_a_key_that_came_twice_is_refused_where_the_arguments_are_a_root_model() -> None:
    class Body(RootModel[dict[str, int]]):
        pass

    async def take(body: Body) -> str:
        return str(body.root)

    taken = Tool("take", take, input_schema=Body, description="Take.")
    result, _ = run(taken, "take", '{"v": 1, "v": 2}')
    assert result.status == "invalid" and "twice" in str(result.error)


def test_two_fields_that_a_model_fills_by_one_name_are_refused_when_the_tool_is_defined() -> None:
    class Twice(BaseModel):
        raw: str = Field(alias="text")
        lowered: Lowered = Field(alias="text")

    @dataclasses.dataclass
    class TwiceAgain:
        text: str
        lowered: Annotated[Lowered, Field(alias="text")] = ""

    async def take(raw: Annotated[str, Field(alias="text")], text: Lowered) -> None: ...

    for define in (
        lambda: taking(list[Twice], "class", []),
        lambda: taking(validated_dataclass(TwiceAgain), "model", []),
        lambda: tool(take),
    ):
        with pytest.raises(DefinitionError, match="two fields have the name 'text'"):
            define()


class Keyed(BaseModel):
    path: Path
    key: SecretStr = Field(default_factory=lambda: SecretStr("the program's own"))


class KeyedByValidator(BaseModel):
    path: Path
    key: SecretStr | None = None

    @model_validator(mode="after")
    def fill(self) -> KeyedByValidator:
        self.key = self.key or SecretStr("the program's own")
        return self


@BOTH
@pytest.mark.parametrize("annotation", [Keyed, KeyedByValidator])
def test_a_secret_that_nobody_sent_fails_the_call(annotation: Any, way: str) -> None:
    got: list[Any] = []
    shown: list[Any] = []
    one = taking(annotation, way, got)
    guards = [lambda c, _: shown.append(dict(c.arguments["value"]))]
    result, watch = run(one, "take", {"value": {"path": "a"}}, guards=guards)
    assert (result.status, result.executed, got) == ("failed", False, [])
    assert "context.secrets" in str(result.error)
    assert "own" not in str([event.data for event in watch.events])
    assert run(one, "take", {"value": {"path": "a", "key": "sent"}}, guards=guards)[0].success
    assert shown == [{"key": "sent", "path": "a"}] and got[0].key.get_secret_value() == "sent"


@BOTH
def test_a_secret_is_no_default(way: str) -> None:
    class KeyedByDefault(BaseModel):
        key: SecretStr = SecretStr("the program's own")

    with pytest.raises(DefinitionError, match=r"context\.secrets"):
        taking(KeyedByDefault, way, [])


# -- objects that are made again ---------------------------------------------------------------------------------------


def test_another_attempt_gets_new_objects_of_the_same_form() -> None:
    got: list[list[Path]] = []

    @tool(idempotent=True)
    async def take(paths: list[Path]) -> str:
        got.append(list(paths))
        paths.append(Path("spoilt"))
        if len(got) == 1:
            raise OSError("again")
        return "taken"

    result, _ = run(take, "take", {"paths": ["a//b"]}, guards=[lambda c, _: None], inside=[retry(2, wait=0)])
    assert (result.status, got) == ("ok", [[Path("a/b")], [Path("a/b")]])


class Numbered(BaseModel):
    path: Path
    id: uuid.UUID = Field(default_factory=uuid.uuid4)


def test_another_attempt_gets_what_was_made_anew_as_it_was_judged() -> None:
    got: list[Numbered] = []
    shown: list[Any] = []

    @tool(idempotent=True)
    async def take(one: Numbered) -> str:
        got.append(one)
        raise OSError("again")

    run(
        take,
        "take",
        {"one": {"path": "a"}},
        guards=[lambda c, _: shown.append(c.arguments["one"])],
        inside=[retry(2, wait=0)],
    )
    assert [str(one.id) for one in got] == [shown[0]["id"]] * 2


class Signed(BaseModel):
    cents: Cents
    id: uuid.UUID = Field(default_factory=uuid.uuid4)


def test_another_attempt_gets_what_was_scaled_once() -> None:
    got: list[Any] = []

    @tool(idempotent=True)
    async def take(ones: list[Signed]) -> str:
        """Take them."""
        got.append([(one.cents, one.id) for one in ones])
        raise OSError("again")

    run(take, "take", {"ones": [{"cents": 5}]}, guards=[lambda c, _: None], inside=[retry(2, wait=0)])
    assert len(got) == 2 and got[0] == got[1] and got[0][0][0] == 500


def test_another_attempt_of_what_comes_out_otherwise_does_not_run() -> None:
    count = iter(range(100))
    Counted = Annotated[str, AfterValidator(lambda value: value if next(count) < 2 else "b")]
    got: list[str] = []

    async def take(value: Any) -> str:
        got.append(value)
        raise OSError("again")

    take.__annotations__["value"] = Counted
    result, _ = run(
        tool(take, idempotent=True), "take", {"value": "a"}, guards=[lambda c, _: None], inside=[retry(9, wait=0)]
    )
    assert (result.status, got) == ("failed", ["a", "a"])
    assert "otherwise than judged" in str(result.error)


@pytest.mark.parametrize("watched", [True, False])
def test_values_are_made_of_what_was_judged_whoever_looks(watched: bool) -> None:
    made: list[str] = []

    def note(value: str) -> str:
        made.append(value)
        return value.strip()

    got: list[str] = []

    @tool
    async def take(value: Annotated[str, AfterValidator(note)]) -> str:
        got.append(value)
        return value

    guards = [lambda c, _: None] if watched else []
    assert run(take, "take", {"value": " a"}, guards=guards)[0].success
    assert (made, got) == ([" a", "a"], ["a"])
    assert run(take, "take", '{ "value": "\\u0061" }', guards=guards)[0].success
    assert (made, got) == ([" a", "a", "a"], ["a", "a"]), "what is the very JSON that was sent is not made again"


def test_a_guard_of_an_instance_sees_the_values_and_changes_them_in_judged_terms() -> None:
    class Pay(ToolHandler):
        """Pay."""

        cents: Cents
        to: Lowered
        note: str = ""

        async def __call__(self) -> str:
            return f"{self.cents} {self.to} {self.note}"

    class Says:
        def __init__(self, **changes: Any) -> None:
            self.changes = changes

        def check(self, handler: Pay) -> None:
            seen.append((handler.cents, handler.to))
            for name, value in self.changes.items():
                setattr(handler, name, value)

    def paid(**changes: Any) -> Any:
        return run(tool(Pay, name="pay"), "pay", {"cents": 5, "to": " Ada"}, guards=[Says(**changes)])[0]

    seen: list[Any] = []
    assert paid().output == "500 ada " and seen == [(500, "ada")]
    assert paid(note="x").output == "500 ada x"
    assert paid(to="bob").output == "500 bob "
    assert paid(to=" Bob").status == "denied"
    assert paid(cents=700).output == "700 ada "


# -- arguments of a guard or a person ----------------------------------------------------------------------------------


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
def test_what_a_guard_changes_comes_out_as_it_was_given_or_is_denied(changes: Any, expected: str | None) -> None:
    seen: list[Any] = []
    others = [lambda c, _: seen.append(dict(c.arguments))]
    changer = lambda c, _: {**c.arguments, **changes}  # noqa: E731
    result, _ = run(pay, "pay", {"cents": 5, "to": " Ada"}, guards=[changer, *others])
    assert (result.status, result.output) == (("ok", expected) if expected else ("denied", None))
    assert all(one["cents"] in (5, 7) for one in seen)


@pytest.mark.parametrize(("changes", "expected"), CHANGES)
def test_what_a_person_changes_comes_out_as_it_was_given_or_is_denied(changes: Any, expected: str | None) -> None:
    asked: list[Any] = []

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        asked.append(dict(call.arguments))
        return allow({**call.arguments, **changes})

    guards = [lambda c, _: ask("sure?")]
    result, _ = run(pay, "pay", {"cents": 5, "to": " Ada"}, guards=guards, approve=approve)
    assert (result.status, result.output) == (("ok", expected) if expected else ("denied", None))
    assert asked == [{"cents": 5, "to": "ada", "when": None, "note": "-"}]


def test_a_change_of_what_a_model_checks_as_a_whole_is_held_to_what_comes_out() -> None:
    class Range(ToolHandler):
        """Take a range."""

        low: int
        high: int

        @model_validator(mode="after")
        def order(self) -> Range:
            self.low, self.high = sorted((self.low, self.high))
            return self

        async def __call__(self) -> str:
            return f"{self.low} to {self.high}"

    def ranged(**changes: int) -> Any:
        return run(
            tool(Range, name="range"), "range", {"low": 9, "high": 1}, guards=[lambda c, _: {**c.arguments, **changes}]
        )[0]

    assert ranged().output == "1 to 9"
    assert ranged(low=0, high=5).output == "0 to 5"
    assert ranged(low=99).status == "denied"


class Item(BaseModel):
    cents: Cents
    to: Lowered = "nobody"
    id: uuid.UUID = Field(default_factory=uuid.uuid4)


class Order(BaseModel):
    items: list[Item]
    groups: dict[str, Item] = {}
    tags: set[Lowered] = set()
    note: str = "-"


def item(judged: Any, **changes: Any) -> dict[str, Any]:
    """An item, changed."""
    return {**judged, **changes}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda order: {"note": "x"}, "5 ada, 7 bob, 9 ada / a,b x"),
        (lambda order: {"items": [item(order["items"][0])]}, "5 ada, 9 ada / a,b -"),
        (
            lambda order: {"items": [item(order["items"][0], to="eve"), item(order["items"][1])]},
            "5 eve, 7 bob, 9 ada / a,b -",
        ),
        (lambda order: {"items": [{"cents": 5, "id": order["items"][0]["id"]}]}, "5 nobody, 9 ada / a,b -"),
        (lambda order: {"items": [{"cents": 5, "to": "eve"}]}, None),
        (lambda order: {"items": [{"cents": 5, "to": "Eve"}]}, None),
        (lambda order: {"items": [{"cents": 5, "to": None}]}, None),
        (lambda order: {"groups": {"a": item(order["groups"]["a"], cents=8)}}, "5 ada, 7 bob, 8 ada / a,b -"),
        (lambda order: {"tags": ["b", "x"]}, "5 ada, 7 bob, 9 ada / b,x -"),
        (lambda order: {"tags": ["x", "b"]}, None),
        (lambda order: {"tags": ["b", "b"]}, None),
    ],
)
def test_a_change_deep_in_a_value_comes_out_as_it_was_given(change: Any, expected: str | None) -> None:
    ids: list[Any] = []

    @tool
    async def order(order: Order) -> str:
        """Order."""
        items = [*order.items, *order.groups.values()]
        assert [str(one.id) for one in items] == ids[-1]
        shown = ", ".join(f"{one.cents // 100} {one.to}" for one in items)
        return f"{shown} / {','.join(sorted(order.tags))} {order.note}"

    def keep_ids(call: ToolCall, context: ToolContext) -> None:
        judged = call.arguments["order"]
        ids.append([one["id"] for one in (*judged["items"], *judged["groups"].values())])

    sent = {
        "items": [{"cents": 5, "to": " Ada"}, {"cents": 7, "to": "Bob"}],
        "groups": {"a": {"cents": 9, "to": "ada"}},
    }
    guards = [lambda c, _: {"order": {**c.arguments["order"], **change(c.arguments["order"])}}, keep_ids]
    result, _ = run(order, "order", {"order": {**sent, "tags": ["B", "A"]}}, guards=guards)
    assert (result.status, result.output) == (("ok", expected) if expected else ("denied", None)), result.error


class Forces(BaseModel):
    name: str
    force: bool = False
    reason: str | None = None

    @model_validator(mode="before")
    @classmethod
    def put_back(cls, value: dict[str, Any]) -> dict[str, Any]:
        return {**value, "force": True} if value.get("reason") else value


@BOTH
@pytest.mark.parametrize("who", ["guard", "person"])
def test_what_is_taken_out_and_put_back_by_a_validator_does_not_run(way: str, who: str) -> None:
    got: list[Any] = []

    def without_force(call: ToolCall, *rest: Any) -> Decision:
        kept = {key: value for key, value in call.arguments["value"].items() if key != "force"}
        return allow({**call.arguments, "value": kept})

    asking = {"guards": [lambda c, _: ask("sure?")], "approve": without_force}
    options: Any = {"guards": [without_force]} if who == "guard" else asking
    sent = {"name": "a", "reason": "so"}
    result, _ = run(taking(Forces, way, got), "take", {"value": sent}, **options)
    assert (result.status, got) == ("denied", [])
    assert run(taking(Forces, way, got), "take", {"value": {"name": "a", "force": True}}, **options)[0].success
    assert got[0].force is False


class Note3(BaseModel):
    model_config = ConfigDict(extra="allow")
    text: str


class Command(BaseModel):
    model_config = ConfigDict(extra="allow")
    text: str
    sudo: bool = True


class KindCat(BaseModel):
    kind: Literal["cat"]
    name: str = "x"


class KindDog(BaseModel):
    kind: Literal["dog"]
    age: int = 1


def answered(annotation: Any, sent: Any, edit: Any, **default: Any) -> tuple[Any, list[Any]]:
    """What a call comes to whose arguments a person edits, and what the handler got."""
    got: list[Any] = []

    async def take(value: Any, n: int = 1) -> None:
        got.append(value)

    take.__annotations__ = {"value": annotation, "n": int}
    approve = lambda call, decision, context: allow(edit(copy.deepcopy(call.arguments)))  # noqa: E731
    return run(tool(take), "take", {"value": sent}, guards=[lambda c, _: ask("sure?")], approve=approve)[0], got


@pytest.mark.parametrize(
    ("annotation", "sent", "expected"),
    [
        (Note3 | Command, {"text": "x"}, Note3(text="x")),
        (Annotated[KindCat | KindDog, Field(discriminator="kind")], {"kind": "cat"}, KindCat(kind="cat")),
        (KindCat | KindDog, {"kind": "dog"}, KindDog(kind="dog")),
        (list[Defaults], [{"name": "a"}], [Defaults(name="a")]),
    ],
)
def test_a_change_beside_a_union_leaves_the_alternative_that_was_judged(
    annotation: Any, sent: Any, expected: Any
) -> None:
    result, got = answered(annotation, sent, lambda arguments: {**arguments, "n": 2})
    assert result.success, result.error
    assert got == [expected]


class FactoryForce(BaseModel):
    target: str
    force: bool = Field(default_factory=lambda: False)
    path: Path = Path("a")


def test_what_a_person_takes_out_is_not_put_back_where_the_model_had_sent_it() -> None:
    without = lambda arguments: {"value": {"target": "a"}}  # noqa: E731
    result, got = answered(FactoryForce, {"target": "a", "force": True}, without)
    assert (result.status, got) == ("denied", [])


class ReadsAsPython(BaseModel):
    name: str
    tags: set[str] = set()
    amount: Decimal = Decimal("1.5")
    key: uuid.UUID | None = None
    pair: tuple[int, int] = (1, 2)
    data: bytes = b""
    lasts: timedelta = timedelta(1)

    @model_validator(mode="before")
    @classmethod
    def as_python(cls, value: Any) -> Any:
        return dict(value)


@BOTH
def test_a_validator_that_gives_python_values_may_stand_before_what_json_writes_otherwise(way: str) -> None:
    got: list[Any] = []
    sent = {"name": "a", "tags": ["b"], "key": str(uuid.UUID(int=1)), "amount": "2.50"}
    for value in ({"name": "a"}, sent):
        result, _ = run(taking(ReadsAsPython, way, got), "take", {"value": value}, guards=[lambda c, _: None])
        assert result.success, result.error
    assert (got[1].tags, got[1].amount, got[1].key) == ({"b"}, Decimal("2.50"), uuid.UUID(int=1))


def test_a_serializer_may_look_for_a_context() -> None:
    def by_context(value: str, info: Any) -> str:
        return value.replace("x", "") if info.context and info.context.get("hide") else value

    annotation = Annotated[str, PlainSerializer(by_context)]
    assert run(taking(annotation, "function", []), "take", {"value": "ax"}, guards=[lambda c, _: None])[0].success


@dataclasses.dataclass
class HasInitVar:
    x: int
    port: InitVar[int] = 22


class HasInfinity(BaseModel):
    most: float = float("inf")


class HasEmptySecret(BaseModel):
    key: SecretStr = SecretStr("")


@pytest.mark.parametrize("annotation", [validated_dataclass(HasInitVar), HasInfinity, HasEmptySecret])
def test_what_cannot_be_judged_is_refused_when_the_tool_is_defined(annotation: Any) -> None:
    with pytest.raises(DefinitionError, match=r"InitVar|no JSON form|context\.secrets"):
        taking(list[annotation], "function", [])


def test_a_secret_that_a_validator_changes_is_told_as_that() -> None:
    bearer = Annotated[SecretStr, AfterValidator(lambda one: SecretStr(one.get_secret_value().removeprefix("Bearer ")))]
    result, _ = run(taking(bearer, "function", []), "take", {"value": "Bearer x"}, guards=[lambda c, _: None])
    assert result.status == "failed" and "a secret that was not sent as it is" in str(result.error)


def test_a_guard_that_keeps_changing_the_arguments_is_denied_by_name() -> None:
    def counts_up(call: ToolCall, context: ToolContext) -> Any:
        return {**call.arguments, "note": call.arguments["note"] + "+"}

    result, _ = run(pay, "pay", {"cents": 5, "to": "ada"}, guards=[counts_up])
    assert result.status == "denied" and "counts_up" in str(result.error)


def test_a_change_that_is_none_is_made_as_often_as_a_guard_likes() -> None:
    asked: list[Any] = []

    def fixes(call: ToolCall, context: ToolContext) -> Any:
        asked.append(call.arguments["note"])
        return {"cents": 5, "to": "ada", "note": "fixed"}

    assert run(pay, "pay", {"cents": 5, "to": "ada"}, guards=[fixes])[0].output == "500 ada None fixed"
    assert asked == ["-", "fixed"]


def test_what_a_guard_leaves_out_is_its_default_and_what_a_factory_made_is_not_to_be_left_out() -> None:
    @tool
    async def take(value: Defaults, note: str = "-") -> str:
        """Take it."""
        return f"{value.name} {value.mode} {value.tags} {note}"

    shown: list[Any] = []

    def taken(given: Any) -> Any:
        guards = [
            lambda c, _: None if c.arguments["value"]["name"] == "b" else {"value": given},
            lambda c, _: shown.append(dict(c.arguments)["value"]),
        ]
        return run(take, "take", {"value": {"name": "a"}, "note": "x"}, guards=guards)[0]

    assert taken({"name": "b", "tags": ["made"]}).output == "b w ['made'] -"
    assert shown == [{"name": "b", "mode": "w", "tags": ["made"]}]
    refused = taken({"name": "b"})
    assert refused.status == "denied" and "'value' would come out otherwise" in str(refused.error)
    assert len(shown) == 1


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


@pytest.mark.parametrize(
    ("annotation", "sent", "left", "expected"),
    [
        (Forced, {"name": "a", "force": False}, {"name": "a"}, None),
        (Sent, {"to": "a", "copies": 3}, {"to": "a"}, Sent(Path("a"))),
        (list[Sent], [{"to": "a", "copies": 3}], [{"to": "a", "sizes": [5]}], [Sent(Path("a"), sizes=(5,))]),
        (dict[str, Sent], {"k": {"to": "a"}}, {}, {}),
        (list[Sent], [{"to": "a"}, {"to": "b"}], [{"to": "b"}], [Sent(Path("b"))]),
        (Sent, {"to": "a"}, {"to": "a", "sizes": [1]}, Sent(Path("a"), sizes=(1,))),
        (Sent, {"to": "a"}, {"to": "a", "size": 1}, None),
        (Sent, {"to": "a"}, {"copies": 1}, None),
    ],
)
def test_what_a_person_leaves_out_is_its_default_at_every_depth(
    annotation: Any, sent: Any, left: Any, expected: Any
) -> None:
    result, got = answered(annotation, sent, lambda arguments: {"value": left})
    assert (result.status, got) == (("denied", []) if expected is None else ("ok", [expected])), result.error


class Renamed(ToolHandler):
    """Take it."""

    model_config = ConfigDict(extra="ignore")
    path: Path
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def rename(cls, value: dict[str, Any]) -> dict[str, Any]:
        return {"path": value["file"], **value} if "file" in value else value

    async def __call__(self) -> str:
        return f"{self.path} {self.note}"


def test_what_a_model_does_not_keep_of_what_was_sent_is_not_shown() -> None:
    shown: list[Any] = []
    sent = {"file": "a//b", "dry_run": True}

    def renamed(**changes: Any) -> Any:
        guards = [lambda c, _: {**c.arguments, **changes}, lambda c, _: shown.append(dict(c.arguments))]
        return run(tool(Renamed, name="take"), "take", sent, guards=guards)[0]

    result, _ = run(tool(Renamed, name="take"), "take", sent, guards=[lambda c, _: shown.append(dict(c.arguments))])
    assert (result.output, shown) == ("a/b ", [{"path": "a/b", "note": ""}]), result.error
    assert renamed(note="x").output == "a/b x"
    assert shown[-1] == {"path": "a/b", "note": "x"}


class Size(enum.Enum):
    S = "s"
    XXL = "xxl"

    @classmethod
    def _missing_(cls, value: object) -> Size:
        return cls.XXL


@pytest.mark.parametrize(
    ("annotation", "sent", "edited", "expected"),
    [
        (Decimal, "5", 7, Decimal(7)),
        (Decimal, 5, 7.5, Decimal("7.5")),
        (dict[str, list[Decimal]], {"a": ["5"]}, {"a": [7, "8.0"]}, {"a": [Decimal(7), Decimal("8.0")]}),
        (uuid.UUID, str(uuid.UUID(int=1)), str(uuid.UUID(int=0xAB)).upper(), uuid.UUID(int=0xAB)),
        (Path, "a", "b//c", Path("b/c")),
        (HttpUrl, "http://a.example", "http://B.example", HttpUrl("http://b.example/")),
        (Annotated[HttpUrl, AfterValidator(lambda one: one)], "http://a.example", "http://B.example", None),
        (Annotated[str, PlainSerializer(lambda one: one.lower())], "a", "B", None),
        (Decimal, "5", "x", None),
        (Sent, {"to": "a"}, {"to": "b", "copy": 2}, None),
        (Size, "s", "large", None),
    ],
)
def test_an_edit_is_read_as_a_models_arguments_are_unless_code_would_change_it(
    annotation: Any, sent: Any, edited: Any, expected: Any
) -> None:
    result, got = answered(annotation, sent, lambda arguments: {"value": edited})
    assert (result.status, got) == (("denied", []) if expected is None else ("ok", [expected])), result.error


def test_the_answer_tells_which_change_comes_out_otherwise() -> None:
    result, _ = run(pay, "pay", {"cents": 5, "to": "a"}, guards=[lambda c, _: {**c.arguments, "to": " A"}])
    assert "'to' would come out otherwise than it was given" in str(result.error)


# -- for random types --------------------------------------------------------------------------------------------------

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


def plain(value: Any) -> Any:
    """The JSON data of all that a value holds, whatever its classes write of it."""
    if isinstance(value, BaseModel):
        return plain(vars(value))
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value), key=to_json)
    if isinstance(value, list | tuple | deque):
        return [plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, Path | Decimal | date) else value


def wrapped(inner: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Annotations that hold others, with what may be sent for them."""

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
def test_for_any_type_the_view_of_a_guard_makes_what_the_handler_gets(data: st.DataObject) -> None:
    annotation, values = data.draw(st.recursive(st.sampled_from(LEAVES), wrapped, max_leaves=4))
    sent = data.draw(values)
    got: list[Any] = []
    shown: list[Any] = []
    result, _ = run(
        taking(annotation, data.draw(st.sampled_from(["function", "class", "model"])), got),
        "take",
        json.dumps({"value": sent}),
        guards=[lambda c, _: shown.append(c.arguments["value"])],
    )
    assert result.success, result.error
    assert result.repairs == ()
    guards = [lambda c, _: shown.append(c.arguments["value"])]
    assert run(taking(annotation, "function", got), "take", {"value": shown[0]}, guards=guards)[0].success
    assert shown[0] == shown[1] and plain(got[0]) == plain(got[1])


# -- what a type says of further keys, its schema and its defaults -----------------------------------------------------


def no_admin(key: str) -> str:
    if key.startswith("admin"):
        raise ValueError("no")
    return key


class User(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[Annotated[str, AfterValidator(no_admin)], str] = Field(init=False)
    name: str


def test_what_a_model_says_of_further_keys_is_enforced() -> None:
    taken = taking(User, "function", [])
    assert run(taken, "take", {"value": {"name": "a", "admin_role": "1"}})[0].status == "invalid"
    assert run(taken, "take", {"value": {"name": "a", "note": "b"}})[0].success


@dataclasses.dataclass
class Point:
    x: int = 0


class Shape(BaseModel):
    model_config = ConfigDict(extra="allow")
    at: Point


def test_a_plain_dataclass_in_a_model_that_takes_any_key_takes_its_own() -> None:
    got: list[Any] = []
    taken = taking(Shape, "function", got)
    assert run(taken, "take", {"value": {"at": {"x": 1}, "note": 1}})[0].success
    assert run(taken, "take", {"value": {"at": {"x": 1, "y": 1}}})[0].status == "invalid"


@pytest.mark.parametrize(
    "composed",
    [
        {"allOf": [{"additionalProperties": True}]},
        {"anyOf": [{"additionalProperties": True}]},
        {"allOf": [{"properties": {"role": {"type": "string"}}}]},
    ],
)
def test_what_a_function_fills_itself_no_composed_schema_lets_a_model_fill(composed: Any) -> None:
    def pay(a: str, role: str = "user") -> str:
        return f"{a} {role}"

    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], **composed}
    paying = Tool("pay", pay, description="Pay.", input_schema=schema)
    assert run(paying, "pay", {"a": "x", "role": "admin"})[0].status == "invalid"
    assert run(paying, "pay", {"a": "x"})[0].output == "x user"


class Sends(ToolHandler):
    """Send."""

    model_config = ConfigDict(json_schema_extra=lambda schema: schema.update(required=list(schema["properties"])))
    to: str
    force: bool = True

    async def __call__(self) -> str:
        return f"{self.to} {self.force}"


class Counts(ToolHandler):
    """Count."""

    n: int = Field(5, json_schema_extra={"default": 3})

    async def __call__(self) -> str:
        return str(self.n)


def test_a_default_that_the_schema_does_not_tell_is_shown_as_it_runs() -> None:
    shown: list[Any] = []
    guards = [lambda call, context: shown.append(dict(call.arguments))]
    assert run(tool(Sends), "Sends", {"to": "a"}, guards=guards)[0].output == "a True"
    assert run(tool(Counts), "Counts", {}, guards=guards)[0].output == "5"
    assert shown == [{"to": "a", "force": True}, {"n": 5}]


def test_a_field_that_is_taken_out_of_the_schema_is_refused_when_the_tool_is_defined() -> None:
    class Hides(ToolHandler):
        """Hide."""

        model_config = ConfigDict(json_schema_extra=lambda schema: schema["properties"].pop("admin"))
        to: str
        admin: bool = False

        async def __call__(self) -> str:
            return self.to

    with pytest.raises(DefinitionError, match="'admin'"):
        tool(Hides)
