"""Guards are shown what the handler gets, and no secret that the model did not send."""

from __future__ import annotations

import dataclasses
import json
import uuid
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest
from pydantic import (
    AfterValidator,
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    RootModel,
    SecretStr,
    WrapValidator,
    model_validator,
)
from typing_extensions import TypedDict

from ferrule import (
    Decision,
    DefinitionError,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolHandler,
    Toolset,
    allow,
    ask,
    tool,
)
from ferrule.guards import ask_before_changes, within
from watched import go, run


def taking(annotation: Any, got: list[Any]) -> Tool:
    async def take(value: Any) -> str:
        got.append(value)
        return "taken"

    take.__annotations__ = {"value": annotation, "return": str}
    return tool(take)


def judged(annotation: Any, sent: Any) -> tuple[Any, list[Any], list[Any]]:
    """The result of a call, what its guard was shown, and what its handler got."""
    shown: list[Any] = []
    got: list[Any] = []

    def guard(call: ToolCall, context: ToolContext) -> None:
        shown.append(dict(call.arguments)["value"])

    result, _ = run(taking(annotation, got), "take", {"value": sent}, guards=[guard])
    return result, shown, got


# -- objects of another class than is declared -------------------------------------------------------------------------


class Ref(BaseModel):
    name: str


class Resolved(BaseModel):
    name: str
    path: Path


class Row:
    """No model: a row of somebody's database."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = f"/etc/{name}"


@dataclasses.dataclass
class RefData:
    name: str


@dataclasses.dataclass
class ResolvedData:
    name: str
    path: Path


class Wrapping(BaseModel):
    name: str

    @model_validator(mode="wrap")
    @classmethod
    def resolve(cls, value: Any, handler: Any) -> Any:
        return Resolved(name=handler(value).name, path=Path("/etc/passwd"))


class Holds(BaseModel):
    ref: Ref

    @model_validator(mode="after")
    def resolve(self) -> Holds:
        self.ref = Row(self.ref.name)  # type: ignore[assignment]
        return self


PASSWD = {"name": "passwd"}
OF_ANOTHER_CLASS: dict[str, tuple[Any, Any]] = {
    "a model": (Annotated[Ref, AfterValidator(lambda ref: Resolved(name=ref.name, path=Path("/etc/passwd")))], PASSWD),
    "a plain object": (Annotated[Ref, AfterValidator(lambda ref: Row(ref.name))], PASSWD),
    "a dataclass for a model": (
        Annotated[Ref, AfterValidator(lambda ref: ResolvedData(ref.name, Path("/etc/passwd")))],
        PASSWD,
    ),
    "a dataclass": (
        Annotated[RefData, AfterValidator(lambda ref: ResolvedData(ref.name, Path("/etc/passwd")))],
        PASSWD,
    ),
    "an address": (Annotated[Ref, AfterValidator(lambda ref: AnyUrl("http://host/etc/passwd"))], PASSWD),
    "by a model's validator": (Wrapping, PASSWD),
    "in a field": (Holds, {"ref": PASSWD}),
    "in a list": (list[Annotated[Ref, AfterValidator(lambda ref: Row(ref.name))]], [PASSWD]),
}


@pytest.mark.parametrize("case", OF_ANOTHER_CLASS)
def test_a_validator_changes_no_value_to_another_class_than_is_declared(case: str) -> None:
    result, shown, got = judged(*OF_ANOTHER_CLASS[case])
    assert (result.status, shown, got) == ("failed", [], [])


@pytest.mark.parametrize("case", ["a model", "a dataclass", "by a model's validator"])
def test_within_sees_the_path_of_an_object_of_another_class(case: str, tmp_path: Path) -> None:
    annotation, sent = OF_ANOTHER_CLASS[case]
    got: list[Any] = []
    result, _ = run(taking(annotation, got), "take", {"value": sent}, guards=[within(tmp_path)])
    assert not result.success, got


# -- keys --------------------------------------------------------------------------------------------------------------


class Entry(TypedDict):
    name: str


def located(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "path": Path("/etc") / entry["name"]}


class HasEntry(BaseModel):
    entry: Annotated[Entry, AfterValidator(located)]


@pytest.mark.parametrize(
    ("annotation", "sent"),
    [
        (Annotated[Entry, AfterValidator(located)], PASSWD),
        (Annotated[Entry, WrapValidator(lambda value, handler: located(handler(value)))], PASSWD),
        (list[Annotated[Entry, AfterValidator(located)]], [PASSWD]),
        (HasEntry, {"entry": PASSWD}),
    ],
    ids=["after", "wrap", "a list", "a model"],
)
def test_within_sees_the_path_that_a_validator_adds_to_a_typed_dict(annotation: Any, sent: Any, tmp_path: Path) -> None:
    got: list[Any] = []
    assert not run(taking(annotation, got), "take", {"value": sent}, guards=[within(tmp_path)])[0].success
    assert got == []


class Further(TypedDict, extra_items=Path):  # type: ignore[call-arg]
    name: str


def test_a_typed_dict_that_says_what_further_keys_hold_takes_them() -> None:
    result, shown, got = judged(Further, {"name": "a", "at": "b//c"})
    assert (result.status, shown, got) == ("ok", [{"name": "a", "at": "b/c"}], [{"name": "a", "at": Path("b/c")}])


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    path: Path = Field(alias="file")


def test_a_key_that_the_model_adds_hides_no_field() -> None:
    annotation = Annotated[Any, AfterValidator(Open.model_validate)]
    result, shown, got = judged(annotation, {"file": "/etc/passwd", "path": "harmless"})
    assert not result.success or "/etc/passwd" in str(shown), (shown, got)


class Rewritten(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[Annotated[str, AfterValidator(str.strip)], str]
    file: Path


def test_what_a_validator_makes_of_keys_that_a_model_does_not_declare_is_shown() -> None:
    result, shown, got = judged(Rewritten, {"file": "a", " b ": "c"})
    assert (result.status, shown, got[0].b) == ("ok", [{"file": "a", "b": "c"}], "c")


class Token:
    """A class of somebody's own, whose objects are equal to themselves alone."""

    def __init__(self, text: str) -> None:
        self.text = text.strip()


def test_of_two_keys_that_are_written_as_one_the_one_that_is_shown_arrives() -> None:
    key = Annotated[Token, PlainValidator(Token, json_schema_input_type=str), PlainSerializer(lambda one: one.text)]
    result, shown, got = judged(dict[key, str], {" a": "rm -rf /", "a": "ls"})
    assert (result.status, shown, list(got[0].values())) == ("ok", [{"a": "ls"}], ["ls"])


def test_a_parameter_with_an_alias_beside_further_ones_is_refused() -> None:
    async def take(raw: Annotated[str, Field(alias="text")], **others: str) -> str:
        """Take all."""
        return f"{raw} {others}"

    with pytest.raises(DefinitionError, match="give it the alias as its name"):
        tool(take)


# -- stars -------------------------------------------------------------------------------------------------------------


class Operation(BaseModel):
    model_config = ConfigDict(frozen=True)
    mode: str = "delete"
    name: str


def test_text_of_stars_mixes_no_items_of_a_set() -> None:
    _, shown, got = judged(set[Operation], [{"name": "x**********"}, {"name": "y", "mode": "read"}])
    assert {(one["name"], one["mode"]) for one in shown[0]} == {(one.name, one.mode) for one in got[0]}


OWN = SecretStr("the program's own")


@dataclasses.dataclass
class ServerData:
    host: str
    password: SecretStr = OWN


class ServerTuple(NamedTuple):
    host: str
    password: SecretStr = OWN


@pytest.mark.parametrize("annotation", [ServerData, dict[str, list[ServerData]], ServerTuple])
def test_a_secret_that_is_a_default_is_refused_when_the_tool_is_defined(annotation: Any) -> None:
    with pytest.raises(DefinitionError, match=r"context\.secrets"):
        taking(annotation, [])


class ServerModel(BaseModel):
    host: str
    password: SecretStr = OWN


class LookedUp(BaseModel):
    host: str
    password: SecretStr | None = None

    @model_validator(mode="after")
    def look_up(self) -> LookedUp:
        self.password = OWN
        return self


class LookedUpLater(BaseModel):
    host: str
    password: SecretStr | None = None

    def model_post_init(self, context: Any) -> None:
        self.password = OWN


NOT_SENT: dict[str, tuple[Any, Any]] = {
    "of a model that a validator makes": (Annotated[Any, AfterValidator(lambda host: ServerModel(host=host))], "a"),
    "looked up by a validator": (LookedUp, {"host": "a"}),
    "looked up after a model is made": (LookedUpLater, {"host": "a"}),
}


@pytest.mark.parametrize("case", NOT_SENT)
def test_a_secret_that_the_model_did_not_send_fails_the_call(case: str) -> None:
    annotation, sent = NOT_SENT[case]
    result, shown, got = judged(annotation, sent)
    assert (result.status, shown, got) == ("failed", [], [])


@pytest.mark.parametrize("case", NOT_SENT)
def test_a_model_reads_no_secret_of_the_programs_in_a_refusal(case: str) -> None:
    annotation, sent = NOT_SENT[case]
    one = taking(annotation, [])
    refused, watch = run(one, "take", {"value": sent}, guards=[ask_before_changes])
    waiting, _ = run(one, "take", {"value": sent}, guards=[ask_before_changes], approve=lambda c, asked, _: asked)
    assert (refused.status, waiting.status) == ("failed", "failed")
    assert "the program's own" not in refused.text
    assert "the program's own" not in str([event.data for event in watch.events])
    assert "the program's own" not in json.dumps(waiting.record())


async def test_the_log_of_what_cannot_be_judged_shows_nothing_that_is_bound(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def send(text: str, api_key: Annotated[str, AfterValidator(str.encode)]) -> str:
        """Send it."""
        return "sent"

    runner = Runner(Toolset([send]).bind(api_key="sk-4711"), guards=[lambda c, _: None])
    assert (await runner.run("send", {"text": "a"})).status == "failed"
    assert "cannot be judged" in caplog.text
    assert "sk-4711" not in caplog.text


# -- numbers -----------------------------------------------------------------------------------------------------------


class Pay(ToolHandler):
    """Pay."""

    receipt: Path
    euros: float

    async def __call__(self) -> str:
        return str(self.euros)


@tool
async def pay(euros: Annotated[float, AfterValidator(abs)]) -> str:
    """Pay."""
    return str(euros)


@pytest.mark.parametrize(
    ("made", "sent"), [(tool(Pay, name="pay"), {"receipt": "a", "euros": 500}), (pay, {"euros": 500})]
)
def test_a_whole_number_that_a_guard_gives_for_a_float_is_that_number(made: Tool, sent: dict[str, Any]) -> None:
    def cap(call: ToolCall, context: ToolContext) -> dict[str, Any] | None:
        return {**call.arguments, "euros": 100} if call.arguments["euros"] > 100 else None

    result, _ = run(made, "pay", sent, guards=[cap])
    assert result.output == "100.0", result.error


def test_an_answer_that_was_written_by_a_browser_changes_no_number() -> None:
    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        assert call.arguments["euros"] == 5
        return allow({**call.arguments, "euros": 5})  # JSON.stringify writes 5.0 so

    result, _ = run(pay, "pay", {"euros": 5}, guards=[lambda c, _: ask("sure?")], approve=approve)
    assert result.output == "5.0", result.error


# -- what a model fills in by itself -----------------------------------------------------------------------------------


class Note(BaseModel):
    path: Path
    id: uuid.UUID = Field(default_factory=uuid.uuid4)


@dataclasses.dataclass
class NoteData:
    path: Path
    id: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)


class Keep(ToolHandler):
    """Keep it."""

    note: Note
    tag: str = ""

    async def __call__(self) -> str:
        return "taken"


class Tags:
    def check(self, handler: Keep) -> None:
        handler.tag = "checked"


NOTES = pytest.mark.parametrize("annotation", [Note, NoteData, list[Note]])


def note_for(annotation: Any) -> Any:
    return [{"path": "a"}] if annotation == list[Note] else {"path": "a"}


@NOTES
def test_a_call_whose_value_has_an_id_of_its_own_is_resumed(annotation: Any) -> None:
    asked = lambda call, decision, context: decision  # noqa: E731
    runner = Runner([taking(annotation, [])], guards=[lambda c, _: ask("sure?")], approve=asked)
    waiting = go(runner.run("take", {"value": note_for(annotation)}))
    assert waiting.status == "suspended"
    resumed = go(runner.resume(json.loads(json.dumps(waiting.record())), True))
    assert resumed.success, resumed.error


@NOTES
def test_within_lets_a_path_through_beside_which_an_id_is_made(annotation: Any) -> None:
    result, _ = run(taking(annotation, []), "take", {"value": note_for(annotation)}, guards=[within(".")])
    assert result.success, result.error


@NOTES
def test_an_answer_that_changes_nothing_is_a_yes(annotation: Any) -> None:
    answer = lambda call, decision, context: allow(dict(call.arguments))  # noqa: E731
    one = taking(annotation, [])
    result, _ = run(one, "take", {"value": note_for(annotation)}, guards=[lambda c, _: ask("sure?")], approve=answer)
    assert result.success, result.error


def test_a_guard_of_an_instance_may_change_one_field_beside_another_with_an_id() -> None:
    result, _ = run(tool(Keep, name="keep"), "keep", {"note": {"path": "a"}}, guards=[Tags()])
    assert result.success, result.error


# -- paths -------------------------------------------------------------------------------------------------------------


class PathModel(BaseModel):
    base: str
    part: str

    def __fspath__(self) -> str:
        return f"{self.base}/{self.part}"


class PathRoot(RootModel[str]):
    def __fspath__(self) -> str:
        return self.root


@dataclasses.dataclass
class PathData:
    base: str
    part: str

    def __fspath__(self) -> str:
        return f"{self.base}/{self.part}"


@pytest.mark.parametrize("annotation", [PathModel, PathRoot, PathData, list[PathData]])
def test_a_class_with_fields_that_is_a_path_is_refused(annotation: Any) -> None:
    with pytest.raises(DefinitionError, match="is a path"):
        taking(annotation, [])
