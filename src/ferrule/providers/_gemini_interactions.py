"""Gemini's Interactions: what `ferrule.providers.gemini` reads and writes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule.providers import Stop
from ferrule.providers._gemini_names import function_name
from ferrule.providers._read import (
    COMPLETE,
    answered_call,
    arguments,
    base64_text,
    block_text,
    error_text,
    fields_of,
    fields_of_each,
    fill_ids,
    http_url,
    ids_of,
    known_id,
    mark_repeats,
    media_type,
    name_of,
    not_run_problem,
    object_value,
    plain,
    plain_list,
    read,
    read_text,
)
from ferrule.providers._stream import TurnStream, as_index, describe_api_error, join_chunks, object_or_text
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, jsonable
from ferrule.values.result import ToolResult

_STOPS: dict[str, Stop] = {
    "completed": "end",
    "requires_action": "calls",
    "incomplete": "cut",
    "budget_exceeded": "cut",
    "requires_continuation": "cut",
}
_IMAGES = {"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "image/gif", "image/bmp", "image/tiff"}


def _call_steps(response: Any) -> list[Mapping[str, Any]]:
    return [step for step in fields_of_each(fields_of(response).get("steps")) if step.get("type") == "function_call"]


def calls(response: Any) -> list[ToolCall]:
    """The calls of an interaction, in order; `data` says that they are."""
    requested = _call_steps(response)
    if not requested:
        return []
    problem = _problem(response)
    found = [
        ToolCall(id, name_of(step), arguments(step.get("arguments")), problem=problem, data={"type": "function_call"})
        for id, step in zip(ids_of(response, requested, "id"), requested, strict=True)
    ]
    return mark_repeats(found, requested, "id")


def _problem(response: Any) -> str | None:
    status = read_text(response, "status")
    found = _STOPS.get(status)
    if found in COMPLETE:
        return None
    if found == "cut":
        return not_run_problem(f"the turn was cut off ({status!r})")
    return not_run_problem(f"the turn was not completed ({status or 'no status yet'!r})")


def turn(response: Any) -> list[Any]:
    """The steps that the model made."""
    # What the caller sent is in the history already.
    steps = [step for step in plain_list(read(response, "steps")) if step.get("type") not in _CALLER_STEPS]
    requested = [step for step in steps if step.get("type") == "function_call"]
    fill_ids(response, requested, "id")
    for step in requested:
        step["name"] = function_name(name_of(step))
        step["arguments"] = jsonable(object_value(step.get("arguments")))
    return steps


_CALLER_STEPS = ("user_input", "function_result")


def stop(response: Any) -> Stop:
    """Why the model stopped."""
    found = _STOPS.get(read_text(response, "status"), "other")
    if found not in COMPLETE:
        return found
    return "calls" if _call_steps(response) else "malformed" if found == "calls" else "end"


def function_result(result: ToolResult) -> dict[str, Any]:
    """The `function_result` step for one result."""
    call = answered_call(result)
    step: dict[str, Any] = {"type": "function_result", "call_id": call.id, "name": function_name(call.name)}
    if result.status != "ok":
        return step | {"result": error_text(result), "is_error": True}
    content = [_content(block) for block in result.content]
    if all(item["type"] == "text" for item in content):
        return step | {"result": "\n".join(item["text"] for item in content)}
    return step | {"result": [item for item in content if item != {"type": "text", "text": ""}]}


def _content(block: Block) -> dict[str, Any]:
    if isinstance(block, Media):
        mime_type = media_type(block)
        kind = "image" if mime_type in _IMAGES else "document" if mime_type == "application/pdf" else None
        where = {"data": base64_text(block)} if block.data else {"uri": http_url(block)}
        if kind and (block.data or http_url(block)):
            return {"type": kind, "mime_type": mime_type, **where}
    return {"type": "text", "text": block_text(block)}


class Stream(TurnStream[Any, Any], readers=(calls, turn, stop)):
    """The same from the events of an interaction. Until it is `interaction.completed`, every call has a `problem`."""

    __slots__ = ("_by_id", "_call_steps", "_completed", "_head", "_open")

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] = {}
        self._call_steps: list[_StreamedStep] = []
        self._by_id: dict[str, _StreamedStep] = {}
        self._open: dict[int | None, _StreamedStep] = {}
        """The newest step under each index, and the newest of all under `None`."""
        self._completed = False

    def _append_chunk(self, event: Any) -> bool:
        if type(event) is dict:
            delta = event["delta"]
            kind = delta["type"]
            if kind == "text":
                text, chunks = delta["text"], self._open[event["index"]].text
            else:
                text, chunks = delta["arguments"], self._open[event["index"]].arguments
        else:
            delta = event.delta
            kind = delta.type
            if kind == "text":
                text, chunks = delta.text, self._open[event.index].text
            else:
                text, chunks = delta.arguments, self._open[event.index].arguments
        if type(text) is str and chunks is not None and kind in ("text", "arguments_delta"):
            chunks.append(text)
            return True
        return False

    def _apply(self, event: Any) -> None:
        event = read(event, "data", event)
        kind = read_text(event, "event_type")
        if kind == "step.start":
            self._begin(as_index(read(event, "index")), plain(read(event, "step")))
        elif kind == "step.delta":
            index = as_index(read(event, "index"))
            if index not in self._open:
                self._begin(index, {})
            self._open[index].add(plain(read(event, "delta")))
        elif kind in {"interaction.created", "interaction.completed"}:
            found = plain(read(event, "interaction"))
            self._head |= found if isinstance(found, dict) else {}
            self._completed = self._completed or kind == "interaction.completed"
            if self._head.get("status") == "failed":
                errors = plain_list(self._head.get("errors"))
                self._error = describe_api_error(errors[0] if errors else "the interaction failed")

    def _begin(self, index: int | None, start: Any) -> None:
        start = start if isinstance(start, dict) else {}
        id = known_id(start.get("id"))
        step = self._by_id.get(id) if id else None
        if step is None or step.index != index:
            step = _StreamedStep(start, index)
            self._call_steps.append(step)
            if id:
                self._by_id[id] = step
        self._open[index] = self._open[None] = step

    def _assembled(self) -> dict[str, Any]:
        steps = [step.assembled() for step in self._call_steps] or plain_list(self._head.get("steps"))
        found = {"status": "in_progress", **self._head, "steps": steps}
        return found if self._completed else found | {"status": "in_progress"}

    def partial(self) -> dict[str, Any]:
        """The interaction so far, as it comes without a stream."""
        found = self._assembled()
        for step in found["steps"]:
            if step.get("type") == "function_call":
                step["arguments"] = object_or_text(step.get("arguments"))
        return plain(found)  # type: ignore[no-any-return]


class _StreamedStep:
    """One step, as it came at its start, and the deltas since then."""

    __slots__ = ("arguments", "content", "index", "more", "signature", "start", "summary", "text")

    def __init__(self, start: dict[str, Any], index: int | None) -> None:
        self.start = start
        self.index = index
        self.arguments: list[str] = []
        self.content: list[dict[str, Any]] = plain_list(start.get("content"))
        self.summary: list[dict[str, Any]] = plain_list(start.get("summary"))
        self.signature: list[str] = []
        self.text: list[str] | None = None
        """The chunks of the text that is being written, at the end of `content`."""
        self.more: dict[str, Any] = {}

    def add(self, delta: Any) -> None:
        kind = delta.get("type") if isinstance(delta, dict) else None
        if kind == "text":
            self._append_text(read_text(delta, "text"))
        elif kind == "arguments_delta":
            self.arguments.append(read_text(delta, "arguments"))
        elif kind == "thought_signature":
            self.signature.append(read_text(delta, "signature"))
        elif kind == "thought_summary":
            self._append_summary(delta.get("content"))
        elif kind == "text_annotation_delta" and self.content:
            self.content[-1].setdefault("annotations", []).extend(plain_list(delta.get("annotations")))
        elif kind in ("image", "audio", "video", "document"):
            self.text = None
            self.content.append(delta)
        elif isinstance(delta, dict):
            self.more |= {key: item for key, item in delta.items() if key != "type"}

    def _append_text(self, text: str) -> None:
        if not self.content or self.content[-1].get("type") != "text":
            self.content.append({"type": "text", "text": ""})
        self.text = _text_chunks(self.content[-1])
        self.text.append(text)

    def _append_summary(self, content: Any) -> None:
        """What follows each other in words is one summary."""
        last = self.summary[-1] if self.summary else {}
        if not isinstance(content, dict):
            return
        if last.get("type") == content.get("type") == "text":
            _text_chunks(last).append(read_text(content, "text"))
        else:
            self.summary.append(content)

    def assembled(self) -> dict[str, Any]:
        found = {**self.start, **self.more}
        if join_chunks(self.arguments).strip():
            found["arguments"] = join_chunks(self.arguments)
        for key, items in (("content", self.content), ("summary", self.summary)):
            if items:
                found[key] = [_with_joined_text(item) for item in items]
        if self.signature:
            found["signature"] = join_chunks(self.signature)
        return found


def _text_chunks(item: dict[str, Any]) -> list[str]:
    """The chunks of an item's text, to be continued."""
    if not isinstance(item.get("text"), list):
        item["text"] = [read_text(item, "text")]
    return item["text"]  # type: ignore[no-any-return]


def _with_joined_text(item: dict[str, Any]) -> dict[str, Any]:
    text = item.get("text")
    return {**item, "text": join_chunks(text)} if isinstance(text, list) else item
