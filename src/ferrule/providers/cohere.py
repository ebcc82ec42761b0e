"""Cohere's chat API, version 2."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ferrule.errors import DefinitionError
from ferrule.providers._read import (
    Names,
    Stop,
    arguments,
    as_json_text,
    block_text,
    call_of,
    error_text,
    ids_of,
    in_order,
    known_id,
    left_open,
    name_of,
    not_run,
    object_text,
    once,
    plain,
    plain_list,
    read,
    read_text,
    sent_name,
    strict_wanted,
    view,
    views,
    with_ids,
)
from ferrule.providers._stream import TurnStream, joined, place, said_of
from ferrule.providers._strict import COHERE, strict_schema
from ferrule.providers._write import definitions
from ferrule.values.call import ToolCall
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

_STOPS: dict[str, Stop] = {"COMPLETE": "end", "STOP_SEQUENCE": "end", "TOOL_CALL": "calls", "MAX_TOKENS": "cut"}
_WHOLE = ("end", "calls")
_FAILED = ("ERROR", "TIMEOUT")


def tools(
    toolset: Iterable[Tool], *, strict: Names = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[dict[str, Any]]:
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
    first, later = in_order(toolset, deferred)
    offered = first + later
    wanted = strict_wanted(offered, strict)
    some = sum(map(wanted, offered))
    if 0 < some < len(offered):
        raise DefinitionError(
            f"Cohere is strict for all tools of a request or for none, and strict=... names {some} of {len(offered)}: "
            f"pass strict=True, and strict_tools=True in the request"
        )
    written = definitions(offered, strict, _function, COHERE)
    return [{"type": "function", "function": said} for said in written]


def _function(tool: Tool, strict: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.wire_name}
    if tool.description:
        function["description"] = tool.description
    return function | {"parameters": strict_schema(tool, COHERE) if strict else tool.input_schema}


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> dict[str, Any]:
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
    return {"tool_choice": choice.upper()}


def calls(response: Any) -> list[ToolCall]:
    """The calls in a response, in order."""
    asked = views(view(view(response).get("message")).get("tool_calls"))
    if not asked:
        return []
    problem = _problem(response)
    found = [
        _call(id, view(item.get("function")), problem)
        for id, item in zip(ids_of(response, asked, "id"), asked, strict=True)
    ]
    return once(found, asked, "id")


def _call(id: str, function: Mapping[str, Any], problem: str | None) -> ToolCall:
    return ToolCall(id, name_of(function), arguments(function.get("arguments")), problem=problem)


def _problem(response: Any) -> str | None:
    reason = read_text(response, "finish_reason")
    found = _STOPS.get(reason)
    if found in _WHOLE:
        return None
    if found == "cut":
        return not_run(f"the turn was cut off ({reason!r})")
    if reason in _FAILED:
        return not_run(f"the turn ended in an error ({reason!r})")
    if reason:
        return not_run(f"the turn ended for a reason that is not known here ({reason!r})")
    return (
        not_run("the turn has no end yet (its finish_reason is null)") if left_open(response, "finish_reason") else None
    )


def turn(response: Any) -> list[dict[str, Any]]:
    """The message, with the plan that came before its calls."""
    message = plain(read(response, "message"))
    if not isinstance(message, dict):
        return []
    message["tool_calls"] = plain_list(message.get("tool_calls"))
    with_ids(response, message["tool_calls"], "id")
    for item in message["tool_calls"]:
        function = item.get("function")
        if isinstance(function, dict):
            function["name"] = sent_name(name_of(function))
            function["arguments"] = object_text(function.get("arguments"))
    # What is null or empty is not taken back.
    kept = {key: item for key, item in message.items() if key != "role" and item not in (None, "", [])}
    return [{"role": "assistant", **kept}] if kept else []


def stop(response: Any) -> Stop:
    """Why the model stopped."""
    reason = read_text(response, "finish_reason")
    found = _STOPS.get(reason, "other")
    if found not in _WHOLE and (reason or left_open(response, "finish_reason")):
        return found
    if views(view(read(response, "message")).get("tool_calls")):
        return "calls"
    return "malformed" if found == "calls" else "end"


def results(results: Iterable[ToolResult]) -> list[dict[str, Any]]:
    """One `{"role": "tool", "tool_call_id", "content": [...]}` for each result: text blocks, or a document whose data
    has the error; this API takes no images here."""
    return [{"role": "tool", "tool_call_id": call_of(result).id, "content": _content(result)} for result in results]


def _content(result: ToolResult) -> list[dict[str, Any]]:
    if result.status != "ok":
        return [{"type": "document", "document": {"data": {"error": error_text(result)}}}]
    texts = [block_text(block) for block in result.content] or [""]
    return [{"type": "text", "text": as_json_text(text)} for text in texts]


class Stream(TurnStream, reading=(calls, turn, stop)):
    """The same from a stream: feed it each event. Until `message-end`, every call has a `problem`."""

    __slots__ = (
        "_by_id",
        "_by_index",
        "_calls",
        "_citations",
        "_content",
        "_end",
        "_finish",
        "_id",
        "_newest",
        "_plan",
    )

    def __init__(self) -> None:
        super().__init__()
        self._id: Any = None
        self._plan: list[str] = []
        self._content: dict[int | None, _Part] = {}
        self._citations: list[Any] = []
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}
        self._by_index: dict[int | None, _Call] = {}
        """The newest call under each index, and the newest of all under `None`."""
        self._finish: str | None = None
        self._end: dict[str, Any] = {}

    def _goes_on(self, event: Any) -> bool:
        if type(event) is dict:
            kind, message = event["type"], event["delta"]["message"]
            if kind == "content-delta":
                text, pieces = message["content"]["text"], self._content[event["index"]].text
            else:
                text = message["tool_calls"]["function"]["arguments"]
                pieces = self._by_index[event["index"]].fragments
        else:
            kind, message = event.type, event.delta.message
            if kind == "content-delta":
                text, pieces = message.content.text, self._content[event.index].text
            else:
                text = message.tool_calls.function.arguments
                pieces = self._by_index[event.index].fragments
        if type(text) is str and kind[-6:] == "-delta":
            pieces.append(text)
            return True
        return False

    def _take(self, event: Any) -> None:
        kind, index = read_text(event, "type"), place(read(event, "index"))
        delta = read(event, "delta")
        message = read(delta, "message")
        if kind == "message-start":
            self._id = plain(read(event, "id"))
        elif kind == "tool-plan-delta":
            self._plan.append(read_text(message, "tool_plan"))
        elif kind in {"content-start", "content-delta"}:
            self._content.setdefault(index, _Part()).take(read(message, "content"))
        elif kind in {"tool-call-start", "tool-call-delta"}:
            asked = read(message, "tool_calls")
            for item in asked if isinstance(asked, list) else [asked]:
                self._call_of(kind, known_id(read(item, "id")), index).take(read(item, "function"))
        elif kind == "citation-start":
            found = plain(read(message, "citations"))
            self._citations += found if isinstance(found, list) else [found] if found else []
        elif kind == "message-end":
            self._finish = read_text(delta, "finish_reason")
            if read(delta, "error"):
                self._error = said_of(read(delta, "error"))
            elif self._finish in _FAILED:
                self._error = repr(self._finish)
            self._end = {key: plain(read(delta, key)) for key in ("usage", "error") if read(delta, key) is not None}

    def _call_of(self, kind: str, id: str | None, index: int | None) -> _Call:
        """The call that a fragment belongs to: by its id, then by its index; a start without a known id is new."""
        at = self._by_index.get(index)
        call = None if not id else at if at is not None and at.id == id else self._by_id.get(id)
        if call is not None and kind == "tool-call-start" and call.index != index:
            call = None  # another call with an id that is known
        elif call is None and kind == "tool-call-delta":
            call = self._by_index.get(index)
            call = None if call is not None and id and call.id else call
        if call is None:
            call = _Call(index)
            self._calls.append(call)
        self._by_index[index] = self._by_index[None] = call
        if id and not call.id:
            call.id = id
            self._by_id[id] = call
        return call

    def _so_far(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant"}
        if self._calls:
            message["tool_calls"] = [call.whole() for call in self._calls]
        if self._plan:
            message["tool_plan"] = joined(self._plan)
        content = [whole for part in self._content.values() for whole in part.whole()]
        if content:
            message["content"] = content
        if self._citations:
            message["citations"] = self._citations
        head = {} if self._id is None else {"id": self._id}
        return {**head, "finish_reason": self._finish, "message": message, **self._end}


class _Part:
    """One item of the content, in fragments."""

    __slots__ = ("text", "thinking")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.thinking: list[str] = []

    def take(self, content: Any) -> None:
        for pieces, key in ((self.text, "text"), (self.thinking, "thinking")):
            found = read(content, key)
            if isinstance(found, str) and found:
                pieces.append(found)

    def whole(self) -> list[dict[str, Any]]:
        thinking, text = joined(self.thinking), joined(self.text)
        return ([{"type": "thinking", "thinking": thinking}] if thinking else []) + (
            [{"type": "text", "text": text}] if text else []
        )


class _Call:
    """One call, with the fragments of its arguments."""

    __slots__ = ("fragments", "id", "index", "name")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id: str | None = None
        self.name = ""
        self.fragments: list[str] = []

    def take(self, function: Any) -> None:
        name, given = read(function, "name"), read(function, "arguments")
        if isinstance(name, str) and name != self.name:
            self.name += name
        if isinstance(given, str):
            self.fragments.append(given)

    def whole(self) -> dict[str, Any]:
        found = {"id": self.id} if self.id else {}
        return {**found, "type": "function", "function": {"name": self.name, "arguments": joined(self.fragments)}}
