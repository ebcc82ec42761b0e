"""Gemini's Interactions: what `ferrule.providers.gemini` reads and writes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule.providers._gemini_names import function_name
from ferrule.providers._read import (
    Stop,
    arguments,
    base64_text,
    block_text,
    call_of,
    error_text,
    ids_of,
    known_id,
    media_type,
    name_of,
    not_run,
    object_value,
    once,
    plain,
    plain_list,
    read,
    read_text,
    view,
    views,
    web_address,
    with_ids,
)
from ferrule.providers._stream import TurnStream, as_object, joined, place, said_of
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
_WHOLE = ("end", "calls")
_IMAGES = {"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "image/gif", "image/bmp", "image/tiff"}


def _steps(response: Any) -> list[Mapping[str, Any]]:
    return [step for step in views(view(response).get("steps")) if step.get("type") == "function_call"]


def calls(response: Any) -> list[ToolCall]:
    """The calls of an interaction, in order; `data` says that they are."""
    asked = _steps(response)
    if not asked:
        return []
    problem = _status_problem(response)
    found = [
        ToolCall(id, name_of(step), arguments(step.get("arguments")), problem=problem, data={"type": "function_call"})
        for id, step in zip(ids_of(response, asked, "id"), asked, strict=True)
    ]
    return once(found, asked, "id")


def _status_problem(response: Any) -> str | None:
    status = read_text(response, "status")
    found = _STOPS.get(status)
    if found in _WHOLE:
        return None
    if found == "cut":
        return not_run(f"the turn was cut off ({status!r})")
    return not_run(f"the turn was not completed ({status or 'no status yet'!r})")


def turn(response: Any) -> list[dict[str, Any]]:
    """The steps that the model made."""
    # What the caller sent is in the history already.
    steps = [step for step in plain_list(read(response, "steps")) if step.get("type") not in _CALLERS]
    asked = [step for step in steps if step.get("type") == "function_call"]
    with_ids(response, asked, "id")
    for step in asked:
        step["name"] = function_name(name_of(step))
        step["arguments"] = jsonable(object_value(step.get("arguments")))
    return steps


_CALLERS = ("user_input", "function_result")


def stop(response: Any) -> Stop:
    """Why the model stopped."""
    found = _STOPS.get(read_text(response, "status"), "other")
    if found not in _WHOLE:
        return found
    return "calls" if _steps(response) else "malformed" if found == "calls" else "end"


def answer(result: ToolResult) -> dict[str, Any]:
    """The `function_result` step for one result."""
    call = call_of(result)
    step: dict[str, Any] = {"type": "function_result", "call_id": call.id, "name": function_name(call.name)}
    if result.status != "ok":
        return step | {"result": error_text(result), "is_error": True}
    content = [_shown(block) for block in result.content]
    if all(item["type"] == "text" for item in content):
        return step | {"result": "\n".join(item["text"] for item in content)}
    return step | {"result": [item for item in content if item != {"type": "text", "text": ""}]}


def _shown(block: Block) -> dict[str, Any]:
    if isinstance(block, Media):
        said = media_type(block)
        kind = "image" if said in _IMAGES else "document" if said == "application/pdf" else None
        where = {"data": base64_text(block)} if block.data else {"uri": web_address(block)}
        if kind and (block.data or web_address(block)):
            return {"type": kind, "mime_type": said, **where}
    return {"type": "text", "text": block_text(block)}


class Stream(TurnStream, reading=(calls, turn, stop)):
    """The same from the events of an interaction. Until it is `interaction.completed`, every call has a `problem`."""

    __slots__ = ("_by_id", "_completed", "_head", "_open", "_steps")

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] = {}
        self._steps: list[_Step] = []
        self._by_id: dict[str, _Step] = {}
        self._open: dict[int | None, _Step] = {}
        """The newest step under each index, and the newest of all under `None`."""
        self._completed = False

    def _goes_on(self, event: Any) -> bool:
        if type(event) is dict:
            delta = event["delta"]
            kind = delta["type"]
            if kind == "text":
                text, pieces = delta["text"], self._open[event["index"]].text
            else:
                text, pieces = delta["arguments"], self._open[event["index"]].arguments
        else:
            delta = event.delta
            kind = delta.type
            if kind == "text":
                text, pieces = delta.text, self._open[event.index].text
            else:
                text, pieces = delta.arguments, self._open[event.index].arguments
        if type(text) is str and pieces is not None and kind in ("text", "arguments_delta"):
            pieces.append(text)
            return True
        return False

    def _take(self, event: Any) -> None:
        event = read(event, "data", event)
        kind = read_text(event, "event_type")
        if kind == "step.start":
            self._begin(place(read(event, "index")), plain(read(event, "step")))
        elif kind == "step.delta":
            index = place(read(event, "index"))
            if index not in self._open:
                self._begin(index, {})
            self._open[index].take(plain(read(event, "delta")))
        elif kind in {"interaction.created", "interaction.completed"}:
            found = plain(read(event, "interaction"))
            self._head |= found if isinstance(found, dict) else {}
            self._completed = self._completed or kind == "interaction.completed"
            if self._head.get("status") == "failed":
                self._error = said_of(next(iter(plain_list(self._head.get("errors"))), "the interaction failed"))

    def _begin(self, index: int | None, start: Any) -> None:
        start = start if isinstance(start, dict) else {}
        id = known_id(start.get("id"))
        step = self._by_id.get(id) if id else None
        if step is None or step.index != index:
            step = _Step(start, index)
            self._steps.append(step)
            if id:
                self._by_id[id] = step
        self._open[index] = self._open[None] = step

    def _so_far(self) -> dict[str, Any]:
        steps = [step.whole() for step in self._steps] or plain_list(self._head.get("steps"))
        found = {"status": "in_progress", **self._head, "steps": steps}
        return found if self._completed else found | {"status": "in_progress"}

    def partial(self) -> dict[str, Any]:
        """The interaction so far, as it comes without a stream."""
        found = self._so_far()
        for step in found["steps"]:
            if step.get("type") == "function_call":
                step["arguments"] = as_object(step.get("arguments"))
        return plain(found)  # type: ignore[no-any-return]


class _Step:
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
        """The fragments of the text that is being written, at the end of `content`."""
        self.more: dict[str, Any] = {}

    def take(self, delta: Any) -> None:
        kind = delta.get("type") if isinstance(delta, dict) else None
        if kind == "text":
            self._write(read_text(delta, "text"))
        elif kind == "arguments_delta":
            self.arguments.append(read_text(delta, "arguments"))
        elif kind == "thought_signature":
            self.signature.append(read_text(delta, "signature"))
        elif kind == "thought_summary":
            self._think(delta.get("content"))
        elif kind == "text_annotation_delta" and self.content:
            self.content[-1].setdefault("annotations", []).extend(plain_list(delta.get("annotations")))
        elif kind in ("image", "audio", "video", "document"):
            self.text = None
            self.content.append(delta)
        elif isinstance(delta, dict):
            self.more |= {key: item for key, item in delta.items() if key != "type"}

    def _write(self, text: str) -> None:
        if not self.content or self.content[-1].get("type") != "text":
            self.content.append({"type": "text", "text": ""})
        self.text = _pieces(self.content[-1])
        self.text.append(text)

    def _think(self, content: Any) -> None:
        """What follows each other in words is one summary."""
        last = self.summary[-1] if self.summary else {}
        if not isinstance(content, dict):
            return
        if last.get("type") == content.get("type") == "text":
            _pieces(last).append(read_text(content, "text"))
        else:
            self.summary.append(content)

    def whole(self) -> dict[str, Any]:
        found = {**self.start, **self.more}
        if joined(self.arguments).strip():
            found["arguments"] = joined(self.arguments)
        for key, items in (("content", self.content), ("summary", self.summary)):
            if items:
                found[key] = [_settled(item) for item in items]
        if self.signature:
            found["signature"] = joined(self.signature)
        return found


def _pieces(item: dict[str, Any]) -> list[str]:
    """The fragments of an item's text, to be continued."""
    if not isinstance(item.get("text"), list):
        item["text"] = [read_text(item, "text")]
    return item["text"]  # type: ignore[no-any-return]


def _settled(item: dict[str, Any]) -> dict[str, Any]:
    text = item.get("text")
    return {**item, "text": joined(text)} if isinstance(text, list) else item
