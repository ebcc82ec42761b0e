"""Gemini's Interactions, for `ferrule.providers.gemini`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule.providers import _stream as streams
from ferrule.providers import _wire as wire
from ferrule.providers._api import Api, End, make_stop_readers, read_calls
from ferrule.providers._gemini_names import GEMINI_NAME
from ferrule.providers._stream import Blocks, Readers, TurnStream
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, clean_text, to_jsonable
from ferrule.values.result import ToolResult

API = Api(
    title="Gemini",
    end_field="status",
    stops={
        "completed": "end",
        "requires_action": "calls",
        "requires_continuation": "pause",
        "incomplete": "cut",
        "budget_exceeded": "cut",
        "failed": "other",
        "cancelled": "other",
    },
    choices={"auto": "auto", "required": "any", "none": "none"},
    narrows=True,
    images=frozenset(f"image/{kind}" for kind in ("png", "jpeg", "webp", "heic", "heif", "gif", "bmp", "tiff")),
    names=GEMINI_NAME,
)


def _call_steps(response: Any) -> list[Mapping[str, Any]]:
    return [
        step for step in wire.list_fields(wire.get_fields(response).get("steps")) if step.get("type") == "function_call"
    ]


def calls(response: Any) -> list[ToolCall]:
    """Return the calls of an interaction, in order. Their `data` marks them as calls of an interaction."""
    return read_calls(API, response, _call_steps(response), "id", _read_call, _read_end)


def _read_call(id: str, step: Any, problem: str | None) -> ToolCall:
    given = wire.read_arguments(step.get("arguments"))
    return ToolCall(id, wire.read_name(step), given, problem=problem, data={"type": "function_call"})


def _read_end(response: Any) -> End:
    status = wire.read_text(response, "status")
    errors = wire.to_plain_list(wire.read(response, "errors"))
    return End(
        status,
        open=status in ("", "queued", "in_progress"),
        calls=bool(_call_steps(response)),
        details=streams.describe_api_error(errors[0]) if errors else "",
    )


def turn(response: Any) -> list[Any]:
    """Return the steps that the model made."""
    # The caller's steps are in the history already.
    steps = [step for step in wire.to_plain_list(wire.read(response, "steps")) if step.get("type") not in _CALLER_STEPS]
    requested = [step for step in steps if step.get("type") == "function_call"]
    wire.fill_ids(response, requested, "id")
    for step in requested:
        step["name"] = wire.format_name(wire.read_name(step), API.names)
        step["arguments"] = to_jsonable(wire.to_object(step.get("arguments")))
    return steps


_CALLER_STEPS = ("user_input", "function_result")


def text(response: Any) -> str:
    """Return the model's text."""
    steps = wire.list_fields(wire.get_fields(response).get("steps"))
    return "".join(wire.read_content_text(step.get("content")) for step in steps if step.get("type") == "model_output")


stop, reason = make_stop_readers(API, _read_end, text)


def state(response: Any) -> dict[str, Any]:
    """Return `{"previous_interaction_id": id, "continuation_token": token}` for a turn that `requires_continuation`."""
    found = {
        "previous_interaction_id": wire.read(response, "id"),
        "continuation_token": wire.read(response, "continuation_token"),
    }
    if wire.read_text(response, "status") != "requires_continuation" or not found["continuation_token"]:
        return {}
    return {key: clean_text(value) for key, value in found.items() if isinstance(value, str) and value}


def function_result(result: ToolResult) -> dict[str, Any]:
    """Return the `function_result` step for one result."""
    call = wire.require_call(result)
    step: dict[str, Any] = {
        "type": "function_result",
        "call_id": call.id,
        "name": wire.format_name(call.name, API.names),
    }
    if result.status != "ok":
        return step | {"result": wire.format_error(result), "is_error": True}
    return step | {"result": wire.join_parts([_content(block) for block in result.content])}


def _content(block: Block) -> dict[str, Any]:
    if isinstance(block, Media):
        mime_type = wire.get_media_type(block)
        kind = "image" if mime_type in API.images else "document" if mime_type == "application/pdf" else None
        address = wire.get_fetch_address(block)
        where = {"data": wire.encode_base64(block)} if block.data else {"uri": address} if address else None
        if kind and where:
            return {"type": kind, "mime_type": mime_type, **where}
    return {"type": "text", "text": wire.format_block(block)}


READERS = Readers(calls, text, turn, stop, reason, state, _read_end)


class Stream(TurnStream[Any, Any], readers=READERS):
    """A `Stream` of the events of an interaction. Until it is `interaction.completed`, every call has a `problem`."""

    __slots__ = ("_completed", "_head", "_steps")

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] = {}
        self._steps: Blocks[_StreamedStep] = Blocks()
        self._completed = False

    def _read_event(self, event: Any) -> None:
        event = wire.read(event, "data", event)
        kind = wire.read_text(event, "event_type")
        if kind == "step.start":
            self._begin(streams.as_index(wire.read(event, "index")), wire.to_plain(wire.read(event, "step")))
        elif kind == "step.delta":
            index = streams.as_index(wire.read(event, "index"))
            if index not in self._steps.by_index:
                self._begin(index, {})
            self._steps.by_index[index].add(wire.to_plain(wire.read(event, "delta")))
        elif kind in {"interaction.created", "interaction.completed"}:
            found = wire.to_plain(wire.read(event, "interaction"))
            if kind == "interaction.created":
                self._begin_response(self._head, found)
            self._head |= found if isinstance(found, dict) else {}
            self._completed = self._completed or kind == "interaction.completed"
            if self._head.get("status") == "failed":
                self._error = _read_end(self._head).details or "the interaction failed"
        elif kind == "interaction.status_update" and wire.read(event, "status") == "requires_continuation":
            # As in google-genai's _interactions_continuation: it ends this request too, and has a token of its own.
            given = {"status": wire.read(event, "status"), "continuation_token": wire.read(event, "continuation_token")}
            self._head |= wire.to_plain(given)
            self._completed = True

    def _begin(self, index: int | None, start: Any) -> None:
        start = start if isinstance(start, dict) else {}
        self._steps.begin(wire.parse_id(start.get("id")), _StreamedStep(start, index))

    def _assemble(self) -> dict[str, Any]:
        steps = [step.assemble() for step in self._steps] or wire.to_plain_list(self._head.get("steps"))
        found = {"status": "in_progress", **self._head, "steps": steps}
        return found if self._completed else found | {"status": "in_progress"}

    def partial(self) -> dict[str, Any]:
        """Return the interaction so far, in the form of one without a stream."""
        found = self._assemble()
        for step in found["steps"]:
            if step.get("type") == "function_call":
                step["arguments"] = wire.parse_object_or_text(step.get("arguments"))
        return wire.to_plain(found)  # type: ignore[no-any-return]


class _StreamedStep:
    """One step: its start, and the deltas since then."""

    __slots__ = ("arguments", "content", "index", "more", "start", "summary")

    def __init__(self, start: dict[str, Any], index: int | None) -> None:
        self.start = start
        self.index = index
        self.arguments: list[str] = []
        self.content = [_to_continue(item) for item in wire.to_plain_list(start.get("content"))]
        self.summary = [_to_continue(item) for item in wire.to_plain_list(start.get("summary"))]
        self.more: dict[str, Any] = {}

    def add(self, delta: Any) -> None:
        kind = delta.get("type") if isinstance(delta, dict) else None
        if kind == "text":
            if not self.content or self.content[-1].get("type") != "text":
                self.content.append({"type": "text"})
            streams.merge_delta(self.content[-1], {"text": wire.read_text(delta, "text")})
        elif kind == "arguments_delta":
            self.arguments.append(wire.read_text(delta, "arguments"))
        elif kind == "thought_signature":
            streams.merge_delta(self.more, {"signature": wire.read_text(delta, "signature")})
        elif kind == "thought_summary":
            self._append_summary(wire.read(delta, "content"))
        elif kind == "text_annotation_delta" and self.content:
            streams.merge_delta(self.content[-1], {"annotations": wire.to_plain_list(delta.get("annotations"))})
        elif kind in ("image", "audio", "video", "document"):
            self.content.append(delta)
        elif isinstance(delta, dict):
            self.more |= {key: item for key, item in delta.items() if key != "type"}

    def _append_summary(self, content: Any) -> None:
        """Append to the summary. Adjacent texts become one."""
        last = self.summary[-1] if self.summary else {}
        if last.get("type") == wire.read(content, "type") == "text":
            streams.merge_delta(last, {"text": wire.read_text(content, "text")})
        elif isinstance(content, dict):
            self.summary.append(_to_continue(content))

    def assemble(self) -> dict[str, Any]:
        found = {**self.start, **streams.merged_value(self.more)}
        text = streams.join_arguments(self.arguments)
        if text.strip():
            found["arguments"] = text
        for key, items in (("content", self.content), ("summary", self.summary)):
            if items:
                found[key] = [streams.merged_value(item) for item in items]
        return found


def _to_continue(item: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `item` that `merge_delta` can continue."""
    found: dict[str, Any] = {}
    streams.merge_delta(found, item)
    return found
