"""Shared code of the APIs with messages in the form of OpenAI's Chat Completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ferrule.providers import _wire as wire
from ferrule.providers._stream import (
    EventT,
    MessageT,
    StreamedCall,
    StreamedCalls,
    TurnStream,
    as_index,
    chunk_text,
    describe_api_error,
    merge_delta,
)


def write_calls_for_history(
    calls: Iterable[Mapping[str, Any]],
    name: Callable[[str], str] = wire.format_name,
    arguments: Callable[[Any], Any] = wire.to_object_text,
) -> None:
    """Write the name and the arguments of each call in the form that the API accepts in a history."""
    for call in calls:
        function = call.get("function")
        if isinstance(function, dict):
            function["name"] = name(wire.read_name(function))
            function["arguments"] = arguments(function.get("arguments"))


def format_choice(tool_choice: Any, parallel: bool) -> Any:
    """Return `tool_choice` as keyword arguments, with the switch against parallel calls unless `parallel`."""
    return {"tool_choice": tool_choice} | ({} if parallel else {"parallel_tool_calls": False})


_CALL_FIELDS = frozenset({"id", "index", "type", "function", "custom"})


class ChatStream(TurnStream[EventT, MessageT]):
    """A turn that comes as `{"choices": [{"delta"}]}`. A subclass defines the meaning of a delta:

    _add_delta(delta)    reads the fields of it that are not null
    _message()           the message so far, without its calls
    """

    __slots__ = ("_finish_reason", "_head", "_streamed_calls", "_usage")

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] = {}
        self._usage: Any = None
        self._streamed_calls = StreamedCalls()
        self._finish_reason: str | None = None

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _message(self) -> dict[str, Any]:
        raise NotImplementedError

    def _read_event(self, event: Any) -> None:
        fields = _chunk_fields(event)
        if not self._head:
            self._read_head(fields)
        for choice in wire.list_fields(fields.get("choices")):
            if not choice.get("index"):
                self._add_choice(choice)
        if fields.get("usage") is not None:
            self._usage = fields["usage"]

    def _read_head(self, chunk: Mapping[str, Any]) -> None:
        """Read the fields beside the choices in the first chunk. Every other chunk repeats them."""
        for key in ("id", "created", "model", "service_tier", "system_fingerprint"):
            if chunk.get(key) is not None:
                self._head[key] = wire.to_plain(chunk[key])

    def _add_choice(self, choice: Mapping[str, Any]) -> None:
        self._add_delta(wire.get_fields(choice.get("delta")))
        if choice.get("finish_reason") is not None:
            self._finish_reason = chunk_text(choice["finish_reason"])
        if choice.get("error"):  # OpenRouter's place for it
            self._error = describe_api_error(choice["error"])

    def _add_calls(self, items: Any) -> None:
        calls_in_event: set[StreamedCall] = set()
        for item in items if isinstance(items, list) else ():
            if wire.get_fields(item):
                self._add_call_delta(item, calls_in_event)

    def _add_call_delta(self, item: Any, calls_in_event: set[StreamedCall]) -> None:
        fields = wire.get_fields(item)
        # Mistral's SDK has a default of 0 for a missing index.
        index = as_index(fields.get("index")) if "index" in wire.list_sent_fields(item) else None
        function, custom = fields.get("function"), fields.get("custom")
        kind, inner = ("custom", custom) if function is None and custom is not None else ("function", function)
        given = wire.read(inner, "input" if kind == "custom" else "arguments")
        call = self._streamed_calls.add(
            wire.parse_id(fields.get("id")), index, wire.read(inner, "name"), given, calls_in_event
        )
        if inner is not None:
            call.kind = kind
        merge_delta(call.more, {key: wire.to_plain(fields[key]) for key in fields.keys() - _CALL_FIELDS})

    def _assemble(self) -> dict[str, Any]:
        message = self._message()
        if self._streamed_calls:
            message["tool_calls"] = self._streamed_calls.assemble()
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        usage = {} if self._usage is None else {"usage": self._usage}
        return {"object": "chat.completion", **self._head, "choices": [choice], **usage}


def _chunk_fields(event: Any) -> Mapping[str, Any]:
    """Return the fields of a chunk; Mistral's SDK wraps it."""
    fields = wire.get_fields(event)
    return wire.get_fields(fields["data"]) if "data" in fields else fields
