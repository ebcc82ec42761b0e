"""Cohere's chat API, version 2.

Definitions and messages are dicts, which its Python client takes; its types have no name for them, hence `Any`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from ferrule.errors import DefinitionError
from ferrule.providers import Stop, Strict
from ferrule.providers._read import (
    COMPLETE,
    answered_call,
    arguments,
    block_text,
    error_text,
    fields_of,
    fields_of_each,
    fill_ids,
    ids_of,
    is_null,
    known_id,
    mark_repeats,
    name_in_history,
    name_of,
    non_blank,
    object_text,
    plain,
    plain_list,
    read,
    read_text,
    split_deferred,
    strict_wanted,
    turn_problem,
)
from ferrule.providers._stream import TurnStream, as_index, describe_api_error, join_chunks
from ferrule.providers._strict import COHERE
from ferrule.providers._write import definition, definitions
from ferrule.values.call import ToolCall
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from cohere import V2ChatResponse, V2ChatStreamResponse

    from ferrule.definition.tool import Tool

    Response: TypeAlias = V2ChatResponse | Mapping[str, Any]
    Event: TypeAlias = V2ChatStreamResponse | Mapping[str, Any]

    class Choice(TypedDict, total=False):
        """Keyword arguments of a request."""

        tool_choice: Literal["REQUIRED", "NONE"]


_STOPS: dict[str, Stop] = {
    "COMPLETE": "end",
    "STOP_SEQUENCE": "end",
    "TOOL_CALL": "calls",
    "MAX_TOKENS": "cut",
    "ERROR": "other",
    "TIMEOUT": "other",
}
_FAILED_REASONS = ("ERROR", "TIMEOUT")


def tools(
    toolset: Iterable[Tool], *, strict: Strict = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[Any]:
    """`[{"type": "function", "function": {"name", "description", "parameters"}}]`, deferred tools last.

    Args:
        strict: Whether the API is to hold the model to the schemas. It does so for all tools of a request or for
            none: with `True` the schemas are rewritten, and the request needs `strict_tools=True` besides.
        cache: Nothing to mark here.
        deferred: Names of tools that came later. This API cannot defer: they are placed last, in this order, so that
            what stands before them stays the same.

    Raises:
        DefinitionError: where a tool's schema cannot be strict, strict ones are too large together, `strict` names some
            of the tools only, or a name is no tool's.
    """
    first, later = split_deferred(toolset, deferred)
    offered = first + later
    wanted = strict_wanted(offered, strict)
    some = sum(map(wanted, offered))
    if 0 < some < len(offered):
        raise DefinitionError(
            f"Cohere is strict for all tools of a request or for none, and strict=... names {some} of {len(offered)}: "
            f"pass strict=True, and strict_tools=True in the request"
        )
    written = definitions(offered, strict, _function, COHERE)
    return [{"type": "function", "function": function} for function in written]


def _function(tool: Tool, strict: bool) -> dict[str, Any]:
    return definition(tool, "parameters", COHERE if strict else None)


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> Choice:
    """`{"tool_choice": "REQUIRED"}` or `"NONE"`; nothing for `"auto"`.

    Raises:
        DefinitionError: for a tool's name, `parallel=False` and `only`, which this API cannot say.
    """
    if only is not None:
        raise DefinitionError("Cohere has no list of allowed tools: offer fewer, tools(toolset.only(...))")
    if not parallel:
        raise DefinitionError("Cohere has no switch for parallel calls: leave parallel=False out")
    if choice == "auto":
        return {}
    if choice not in {"required", "none"}:
        raise DefinitionError(
            f"Cohere cannot force the tool {choice!r}: offer it alone, tools(toolset.only({choice!r})), with 'required'"
        )
    return {"tool_choice": "REQUIRED" if choice == "required" else "NONE"}


def calls(response: Response) -> list[ToolCall]:
    """The calls in a response, in order."""
    requested = fields_of_each(fields_of(fields_of(response).get("message")).get("tool_calls"))
    if not requested:
        return []
    problem = _problem(response)
    found = [
        _call(id, fields_of(item.get("function")), problem)
        for id, item in zip(ids_of(response, requested, "id"), requested, strict=True)
    ]
    return mark_repeats(found, requested, "id")


def _call(id: str, function: Mapping[str, Any], problem: str | None) -> ToolCall:
    return ToolCall(id, name_of(function), arguments(function.get("arguments")), problem=problem)


def _problem(response: Any) -> str | None:
    open_field = "finish_reason" if is_null(response, "finish_reason") else ""
    return turn_problem(read_text(response, "finish_reason"), _STOPS, open_field)


def turn(response: Response) -> list[Any]:
    """The message, with the plan that came before its calls."""
    message = plain(read(response, "message"))
    if not isinstance(message, dict):
        return []
    message["tool_calls"] = plain_list(message.get("tool_calls"))
    fill_ids(response, message["tool_calls"], "id")
    for item in message["tool_calls"]:
        function = item.get("function")
        if isinstance(function, dict):
            function["name"] = name_in_history(name_of(function))
            function["arguments"] = object_text(function.get("arguments"))
    # What is null or empty is not taken back.
    kept = {key: item for key, item in message.items() if key != "role" and item not in (None, "", [])}
    return [{"role": "assistant", **kept}] if kept else []


def stop(response: Response) -> Stop:
    """Why the model stopped."""
    reason = read_text(response, "finish_reason")
    found = _STOPS.get(reason, "other")
    if found not in COMPLETE and (reason or is_null(response, "finish_reason")):
        return found
    if fields_of_each(fields_of(read(response, "message")).get("tool_calls")):
        return "calls"
    return "malformed" if found == "calls" else "end"


def results(results: Iterable[ToolResult]) -> list[Any]:
    """One `{"role": "tool", "tool_call_id", "content": [...]}` for each result: text blocks, or a document whose data
    has the error; this API takes no images here."""
    return [
        {"role": "tool", "tool_call_id": answered_call(result).id, "content": _content(result)} for result in results
    ]


def _content(result: ToolResult) -> list[dict[str, Any]]:
    if result.status != "ok":
        return [{"type": "document", "document": {"data": {"error": error_text(result)}}}]
    texts = [block_text(block) for block in result.content] or [""]
    return [{"type": "text", "text": non_blank(text)} for text in texts]


class Stream(TurnStream["Event", "Any"], readers=(calls, turn, stop)):
    """The same from a stream: feed it each event. Until `message-end`, every call has a `problem`."""

    __slots__ = (
        "_by_id",
        "_by_index",
        "_citations",
        "_content",
        "_end",
        "_finish_reason",
        "_id",
        "_newest",
        "_plan",
        "_streamed_calls",
    )

    def __init__(self) -> None:
        super().__init__()
        self._id: Any = None
        self._plan: list[str] = []
        self._content: dict[int | None, _StreamedContent] = {}
        self._citations: list[Any] = []
        self._streamed_calls: list[_StreamedCall] = []
        self._by_id: dict[str, _StreamedCall] = {}
        self._by_index: dict[int | None, _StreamedCall] = {}
        """The newest call under each index, and the newest of all under `None`."""
        self._finish_reason: str | None = None
        self._end: dict[str, Any] = {}

    def _append_chunk(self, event: Any) -> bool:
        if type(event) is dict:
            kind, message = event["type"], event["delta"]["message"]
            if kind == "content-delta":
                text, chunks = message["content"]["text"], self._content[event["index"]].text
            else:
                text = message["tool_calls"]["function"]["arguments"]
                chunks = self._by_index[event["index"]].chunks
        else:
            kind, message = event.type, event.delta.message
            if kind == "content-delta":
                text, chunks = message.content.text, self._content[event.index].text
            else:
                text = message.tool_calls.function.arguments
                chunks = self._by_index[event.index].chunks
        if type(text) is str and kind[-6:] == "-delta":
            chunks.append(text)
            return True
        return False

    def _apply(self, event: Any) -> None:
        kind, index = read_text(event, "type"), as_index(read(event, "index"))
        delta = read(event, "delta")
        message = read(delta, "message")
        if kind == "message-start":
            self._id = plain(read(event, "id"))
        elif kind == "tool-plan-delta":
            self._plan.append(read_text(message, "tool_plan"))
        elif kind in {"content-start", "content-delta"}:
            self._content.setdefault(index, _StreamedContent()).add(read(message, "content"))
        elif kind in {"tool-call-start", "tool-call-delta"}:
            requested = read(message, "tool_calls")
            for item in requested if isinstance(requested, list) else [requested]:
                self._call_of(kind, known_id(read(item, "id")), index).add(read(item, "function"))
        elif kind == "citation-start":
            found = plain(read(message, "citations"))
            self._citations += found if isinstance(found, list) else [found] if found else []
        elif kind == "message-end":
            self._finish_reason = read_text(delta, "finish_reason")
            if read(delta, "error"):
                self._error = describe_api_error(read(delta, "error"))
            elif self._finish_reason in _FAILED_REASONS:
                self._error = repr(self._finish_reason)
            self._end = {key: plain(read(delta, key)) for key in ("usage", "error") if read(delta, key) is not None}

    def _call_of(self, kind: str, id: str | None, index: int | None) -> _StreamedCall:
        """The call that a chunk belongs to: by its id, then by its index; a start without a known id is new."""
        at = self._by_index.get(index)
        call = None if not id else at if at is not None and at.id == id else self._by_id.get(id)
        if call is not None and kind == "tool-call-start" and call.index != index:
            call = None  # another call with an id that is known
        elif call is None and kind == "tool-call-delta":
            call = self._by_index.get(index)
            call = None if call is not None and id and call.id else call
        if call is None:
            call = _StreamedCall(index)
            self._streamed_calls.append(call)
        self._by_index[index] = self._by_index[None] = call
        if id and not call.id:
            call.id = id
            self._by_id[id] = call
        return call

    def _assembled(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant"}
        if self._streamed_calls:
            message["tool_calls"] = [call.assembled() for call in self._streamed_calls]
        if self._plan:
            message["tool_plan"] = join_chunks(self._plan)
        content = [assembled for part in self._content.values() for assembled in part.assembled()]
        if content:
            message["content"] = content
        if self._citations:
            message["citations"] = self._citations
        head = {} if self._id is None else {"id": self._id}
        return {**head, "finish_reason": self._finish_reason, "message": message, **self._end}


class _StreamedContent:
    """One item of the content, which comes in chunks."""

    __slots__ = ("text", "thinking")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.thinking: list[str] = []

    def add(self, content: Any) -> None:
        for chunks, key in ((self.text, "text"), (self.thinking, "thinking")):
            found = read(content, key)
            if isinstance(found, str) and found:
                chunks.append(found)

    def assembled(self) -> list[dict[str, Any]]:
        thinking, text = join_chunks(self.thinking), join_chunks(self.text)
        return ([{"type": "thinking", "thinking": thinking}] if thinking else []) + (
            [{"type": "text", "text": text}] if text else []
        )


class _StreamedCall:
    """One call, with the chunks of its arguments."""

    __slots__ = ("chunks", "id", "index", "name")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id: str | None = None
        self.name = ""
        self.chunks: list[str] = []

    def add(self, function: Any) -> None:
        name, given = read(function, "name"), read(function, "arguments")
        if isinstance(name, str) and name != self.name:
            self.name += name
        if isinstance(given, str):
            self.chunks.append(given)

    def assembled(self) -> dict[str, Any]:
        found = {"id": self.id} if self.id else {}
        return {**found, "type": "function", "function": {"name": self.name, "arguments": join_chunks(self.chunks)}}
