"""A run that waits for answers, as plain JSON: all that is needed to go on with it, in another process too."""

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
from ferrule.providers._read import plain
from ferrule.values.call import ToolCall
from ferrule.values.content import Media, Text
from ferrule.values.result import Status, ToolResult


class _Part(BaseModel):
    """What is saved is read as it was written, or refused: nothing is read as what it only looks like."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class SavedCall(_Part):
    """A call, as the model sent it."""

    id: str
    name: str
    arguments: str | dict[str, Any] | None
    problem: str | None
    data: Any
    parent: str | None


class SavedText(_Part):
    """A block of text."""

    kind: Literal["text"] = "text"
    text: str


class SavedMedia(_Part):
    """A block of something else."""

    kind: Literal["image", "audio", "file", "resource"]
    data: bytes | None
    mime_type: str
    uri: str | None
    name: str | None
    fetch: bool


SavedBlock: TypeAlias = Annotated[SavedText | SavedMedia, Field(discriminator="kind")]


class SavedResult(_Part):
    """The result of a call, with all that the model is told of it."""

    call: SavedCall
    tool_name: str
    status: Status
    output: Any
    content: list[SavedBlock]
    error: str | None
    executed: bool | None
    repairs: list[str]
    metadata: dict[str, Any]
    duration_ms: NonNegativeFloat

    @classmethod
    def of(cls, result: ToolResult) -> SavedResult:
        """What is kept of a result; of its output what its record has."""
        sent = result.call
        assert sent is not None
        raw = sent.raw if sent.raw is None or isinstance(sent.raw, str) else plain(sent.raw)
        call = SavedCall(
            id=sent.id, name=sent.name, arguments=raw, problem=sent.problem, data=plain(sent.data), parent=sent.parent
        )
        record = result.record()
        return cls(
            call=call,
            tool_name=result.tool_name,
            status=result.status,
            output=record["output"],
            content=[_saved_block(block) for block in result.content],
            error=result.error,
            executed=result.executed,
            repairs=list(result.repairs),
            metadata=record["metadata"],
            duration_ms=result.duration_ms,
        )

    def result(self) -> ToolResult:
        """The result again."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        fields["content"] = [_block_again(saved) for saved in self.content]
        fields["repairs"] = tuple(self.repairs)
        fields["call"] = ToolCall(**dict(self.call))
        return ToolResult(**fields)

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


class SuspendedRun(_Part):
    """What stands in a run's `suspended`.

    The records in `waiting` are sealed by the runner, and everything else is not: whoever can change it can put words
    into the conversation. Keep it where your program alone can write. What a model's API makes of its own messages, and
    what a tool makes of its own metadata, is not described here.
    """

    version: Literal[1] = 1
    kind: Literal["run"] = "run"
    waiting: dict[str, dict[str, Any]]
    """By the id of the call, the `pending` of what waits for an answer."""
    run: str
    """Which run it is: calls of another one may have the same ids."""
    api: str | None
    """The form of the messages; `None` where the model does not say it."""
    results: list[SavedResult]
    """Of every call of the turn, in call order."""
    messages: list[dict[str, Any]]
    """The history before the turn."""
    turn: list[dict[str, Any]]
    """The turn itself, without the answers to its calls."""
    text: str
    stop: Stop
    reason: str | None
    state: dict[str, Any]
    """The model's own."""
    usage_by_turn: list[dict[str, int | float]]
    turns: NonNegativeInt
    calls_left: NonNegativeInt
    limited: bool
    max_turns: PositiveInt
    on_failure: Literal["continue", "degrade", "fail"]
    found: list[str] = []
    """Which tools were found, by wire name: no more than how they are shown. What is offered is in the records."""

    @model_validator(mode="after")
    def _check_ids(self) -> SuspendedRun:
        if not self.waiting:
            raise ValueError("no call waits in it")
        suspended = {saved.call.id for saved in self.results if saved.status == "suspended"}
        if suspended != self.waiting.keys():
            raise ValueError(f"what waits is {sorted(self.waiting)}, and the suspended calls are {sorted(suspended)}")
        for call_id, pending in self.waiting.items():
            call = pending.get("call")
            if not isinstance(call, dict) or call.get("id") != call_id:
                raise ValueError(f"under {call_id!r} stands what another call waits for")
        return self

    def as_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        found: dict[str, Any] = _without_bytes(self.model_dump())
        return found

    def reply(self) -> Reply:
        """The turn of the model, with the calls that were to be answered."""
        calls = [ToolCall(**dict(saved.call)) for saved in self.results]
        return Reply(self.text, calls, self.turn, self.stop, reason=self.reason, state=self.state)


def read_suspended(given: object) -> SuspendedRun:
    """The suspended run that `given` is.

    Raises:
        DefinitionError: where it is none.
    """
    if not isinstance(given, Mapping):
        what = "None: nothing waits there" if given is None else f"{type(given).__name__}"
        raise DefinitionError(f"resume takes a result's `suspended`, a dict (json.loads of a text), not {what}")
    try:
        copied = json.loads(json.dumps(dict(given)))
        return SuspendedRun.model_validate(_with_bytes(copied))
    except ValidationError as error:
        problem = error.errors()[0]
        why = ": ".join([*map(str, problem["loc"]), problem["msg"]])
    except (TypeError, ValueError, RecursionError) as error:
        why = str(error)
    raise DefinitionError(f"this is not a result's `suspended`: {why}")


_BYTES = "$bytes"
"""Stands for bytes in a history, such as Bedrock's images: `{"$bytes": base64}`. An object that has this one key by
itself is `{"$bytes": {…}}`."""


def _without_bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: b64encode(value).decode()}
    if isinstance(value, dict):
        found = {key: _without_bytes(item) for key, item in value.items()}
        return {_BYTES: found} if found.keys() == {_BYTES} else found
    return [_without_bytes(item) for item in value] if isinstance(value, list | tuple) else value


def _with_bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_bytes(item) for item in value]
    if not isinstance(value, dict):
        return value
    inner = value[_BYTES] if value.keys() == {_BYTES} else value
    if isinstance(inner, str):
        return b64decode(inner, validate=True)
    if not isinstance(inner, dict):
        raise ValueError(f"{_BYTES} is followed by {inner!r}, which is no base64")
    return {key: _with_bytes(item) for key, item in inner.items()}
