"""A suspended run, as plain JSON: the data to go on with it, in another process too."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)

from ferrule.errors import DefinitionError
from ferrule.models import Reply
from ferrule.providers import Stop
from ferrule.providers._wire import to_plain
from ferrule.values.call import ToolCall
from ferrule.values.content import Media, Text
from ferrule.values.frozen import freeze
from ferrule.values.result import Status, ToolResult, set_kernel_facts


class Part(BaseModel):
    """A part of a saved run. It is read exactly as it was written, or refused: no value is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class SavedCall(Part):
    """A call, as the model sent it."""

    id: str
    name: str
    arguments: str | dict[str, Any] | None
    problem: str | None
    data: Any
    parent: str | None

    @classmethod
    def from_call(cls, call: ToolCall) -> SavedCall:
        """Save a call."""
        raw = call.raw if call.raw is None or isinstance(call.raw, str) else to_plain(call.raw)
        return cls(
            id=call.id,
            name=call.name,
            arguments=raw,
            problem=call.problem,
            data=to_plain(call.data),
            parent=call.parent,
        )

    def call(self) -> ToolCall:
        """Return the call again."""
        return ToolCall(**dict(self))


class SavedText(Part):
    """A block of text."""

    kind: Literal["text"] = "text"
    text: str


class SavedMedia(Part):
    """A block of media."""

    kind: Literal["image", "audio", "file", "resource"]
    data: bytes | None
    mime_type: str
    uri: str | None
    name: str | None
    fetch: bool


SavedBlock: TypeAlias = Annotated[SavedText | SavedMedia, Field(discriminator="kind")]


_IN_RECORD = ("input", "session", "principal", "at", "answered_by")
"""The fields in the record of a result that only the runner sets."""


class SavedResult(Part):
    """The result of a call, with everything that the model reads about it."""

    call: SavedCall
    tool_name: str
    status: Status
    output: Any
    content: list[SavedBlock]
    error: str | None
    executed: bool | None
    retryable: bool | None = None
    repairs: list[str]
    metadata: dict[str, Any]
    duration_ms: NonNegativeFloat
    input: dict[str, Any] | str | None = None
    """The judged arguments."""
    session: str | None = None
    principal: str | None = None
    at: float | None = None
    answered_by: str | None = None

    @classmethod
    def from_result(cls, result: ToolResult) -> SavedResult:
        """Save a result, with its whole record except `pending`."""
        assert result.call is not None
        record = result.record()
        return cls(
            call=SavedCall.from_call(result.call),
            tool_name=result.tool_name,
            status=result.status,
            output=record["output"],
            content=[_saved_block(block) for block in result.content],
            error=result.error,
            executed=result.executed,
            retryable=result.retryable,
            repairs=list(result.repairs),
            metadata=record["metadata"],
            duration_ms=result.duration_ms,
            **{name: record[name] for name in _IN_RECORD},
        )

    def result(self, pending: Mapping[str, Any] | None = None) -> ToolResult:
        """Return the result again. `pending` is that of a suspended result."""
        fields = {name: getattr(self, name) for name in type(self).model_fields if name not in _IN_RECORD}
        fields["content"] = [_block_again(saved) for saved in self.content]
        fields["repairs"] = tuple(self.repairs)
        call = fields["call"] = self.call.call()
        result = ToolResult(**fields)
        judged = None if self.input is None else call.replace(name=self.tool_name, arguments=self.input)
        ended_at = None if self.at is None else self.at + self.duration_ms / 1000
        by_and_duration = self.answered_by, self.duration_ms
        set_kernel_facts(result, (judged, self.session, self.principal, ended_at, freeze(pending), *by_and_duration))
        return result

    @model_validator(mode="after")
    def _check_it_is_a_result(self) -> SavedResult:
        try:
            self.result()
        except TypeError as error:
            raise ValueError(str(error)) from None
        return self


def _saved_block(block: Text | Media) -> SavedText | SavedMedia:
    if isinstance(block, Text):
        return SavedText(text=block.text)
    return SavedMedia(**{name: getattr(block, name) for name in SavedMedia.model_fields})


def _block_again(saved: SavedText | SavedMedia) -> Text | Media:
    return Text(saved.text) if isinstance(saved, SavedText) else Media(**dict(saved))


class SuspendedRun(Part):
    """The content of a run's `suspended`.

    The runner seals the records in `waiting`. Everything else is not sealed: a person with write access can put words
    into the conversation. Keep it in a place to which only your program can write. The messages of a model's API and
    the metadata of a tool have their own formats and are not described here.
    """

    version: Literal[1] = 1
    kind: Literal["run"] = "run"
    waiting: dict[str, dict[str, Any]]
    """The `pending` of each waiting call, by call id."""
    run: str
    """The id of the run, because calls of another run may have the same ids."""
    key: str | None = None
    """The `key` of the run, if it has one; `run` is then its key in the journal."""
    api: str | None
    """The format of the messages; `None` if the model has no `api`."""
    results: list[SavedResult]
    """The results of all calls of the turn, in call order."""
    messages: list[dict[str, Any]]
    """The history before the turn."""
    turn: list[dict[str, Any]]
    """The turn itself, without the answers to its calls."""
    text: str
    stop: Stop
    reason: str | None
    state: dict[str, Any]
    """The model's own state."""
    usage_by_turn: list[dict[str, int | float]]
    turns: NonNegativeInt
    calls_left: NonNegativeInt
    limited: bool
    max_turns: PositiveInt
    on_failure: Literal["continue", "degrade", "fail"]
    found: list[str] = []
    """The wire names of the tools found by search. They only mark tools: the records have the names of the offered
    ones."""

    @model_validator(mode="after")
    def _check_ids(self) -> SuspendedRun:
        if not self.waiting:
            raise ValueError("no call waits in it")
        suspended = {saved.call.id for saved in self.results if saved.status == "suspended"}
        if suspended != self.waiting.keys():
            raise ValueError(
                f"the waiting calls are {sorted(self.waiting)}, and the suspended calls are {sorted(suspended)}"
            )
        for call_id, pending in self.waiting.items():
            call = pending.get("call")
            if not isinstance(call, dict) or call.get("id") != call_id:
                raise ValueError(f"under {call_id!r} is the record of another call")
        return self

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        found: dict[str, Any] = without_bytes(self.model_dump())
        return found

    def reply(self) -> Reply:
        """Return the model's turn, with the calls to be answered."""
        calls = [saved.call.call() for saved in self.results]
        return Reply(self.text, calls, self.turn, self.stop, reason=self.reason, state=self.state)


def parse_suspended_run(state: object) -> SuspendedRun:
    """Return the suspended run in `state`.

    Raises:
        DefinitionError: `state` is not a suspended run.
    """
    if not isinstance(state, Mapping):
        what = "None: nothing waits there" if state is None else f"{type(state).__name__}"
        raise DefinitionError(f"resume takes a result's `suspended`, a dict (json.loads of a text), not {what}")
    try:
        copied = json.loads(json.dumps(dict(state)))
        return SuspendedRun.model_validate(with_bytes(copied))
    except ValidationError as error:
        problem = error.errors()[0]
        why = ": ".join([*map(str, problem["loc"]), problem["msg"]])
    except (TypeError, ValueError, RecursionError) as error:
        why = str(error)
    raise DefinitionError(f"this is not a result's `suspended`: {why}")


_BYTES = "$bytes"
"""Marks bytes in a history, such as Bedrock's images: `{"$bytes": base64}`. An object with this one key alone is
written as `{"$bytes": {…}}`."""


def without_bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: b64encode(value).decode()}
    if isinstance(value, dict):
        found = {key: without_bytes(item) for key, item in value.items()}
        return {_BYTES: found} if found.keys() == {_BYTES} else found
    return [without_bytes(item) for item in value] if isinstance(value, list | tuple) else value


def with_bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [with_bytes(item) for item in value]
    if not isinstance(value, dict):
        return value
    inner = value[_BYTES] if value.keys() == {_BYTES} else value
    if isinstance(inner, str):
        return b64decode(inner, validate=True)
    if not isinstance(inner, dict):
        raise ValueError(f"{_BYTES} is followed by {inner!r}, which is no base64")
    return {key: with_bytes(item) for key, item in inner.items()}
