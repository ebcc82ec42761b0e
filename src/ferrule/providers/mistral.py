"""Mistral's chat API."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ferrule.errors import DefinitionError
from ferrule.providers._read import (
    Names,
    Stop,
    arguments,
    base64_text,
    block_text,
    call_of,
    chosen_name,
    given_ids,
    ids_of,
    in_order,
    known_id,
    left_open,
    marked_error_text,
    media_type,
    name_of,
    not_run,
    object_text,
    once,
    plain,
    plain_list,
    read,
    read_list,
    read_text,
    sent_name,
    view,
    views,
    web_address,
)
from ferrule.providers._stream import TurnStream, as_object, joined, place
from ferrule.providers._strict import MISTRAL, strict_schema
from ferrule.providers._write import definitions
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, clean, jsonable
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

_STOPS: dict[str, Stop] = {"stop": "end", "tool_calls": "calls", "length": "cut", "model_length": "cut"}
_WHOLE = ("end", "calls")
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
# docs.mistral.ai and github.com/mistralai/mistral-common: "Tool call id … must be a-z, A-Z, 0-9, with a length of 9."
_ID = re.compile(r"[a-zA-Z0-9]{9}")
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def tools(
    toolset: Iterable[Tool], *, strict: Names = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[dict[str, Any]]:
    """`[{"type": "function", "function": {"name", "description", "parameters"}}]`, deferred tools last.

    Args:
        strict: Whether the API holds the model to the schema: for all, or for the tools of these names.
        cache: Nothing to mark here; `prompt_cache_key` in the request says what belongs together.
        deferred: Names of tools that came later. This API cannot defer: they are placed last, in this order, so that
            what stands before them stays cached.

    Raises:
        DefinitionError: where a tool's schema cannot be strict, or a name is no tool's.
    """
    first, later = in_order(toolset, deferred)
    written = definitions(first + later, strict, _function, MISTRAL)
    return [{"type": "function", "function": said} for said in written]


def _function(tool: Tool, strict: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.wire_name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = strict_schema(tool, MISTRAL) if strict else tool.input_schema
    return function | {"strict": True} if strict else function


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> dict[str, Any]:
    """`{"tool_choice": ...}`, and `"parallel_tool_calls": False` where one call at a time is wanted.

    Raises:
        DefinitionError: for `only`, which this API cannot say.
    """
    if only is not None:
        raise DefinitionError("Mistral has no list of allowed tools: offer fewer, tools(toolset.only(...))")
    said: Any = _CHOICES.get(choice)
    if said is None:
        said = {"type": "function", "function": {"name": chosen_name(choice)}}
    return {"tool_choice": said} if parallel else {"tool_choice": said, "parallel_tool_calls": False}


def calls(response: Any) -> list[ToolCall]:
    """The calls in the first choice, in order, with the ids as they came."""
    choice = view(_choice(response))
    asked = _asked(choice)
    if not asked:
        return []
    problem = None if choice.get("finish_reason") == "tool_calls" else _problem(_choice(response))
    found = []
    for id, item in zip(given_ids(asked, "id") or _ids(response, asked), asked, strict=True):
        function = item.get("function")
        function = function if type(function) is dict else view(function)
        found.append(ToolCall(id, name_of(function), arguments(function.get("arguments")), problem=problem))
    return once(found, asked, "id")


def _asked(choice: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The calls in a choice's message, or in its messages."""
    message = choice.get("message")
    if message is not None:
        return views(view(message).get("tool_calls"))
    return [item for message in _messages(choice) for item in views(view(message).get("tool_calls"))]


def _ids(response: Any, asked: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ids as they came; one that is derived is already what this API takes."""
    found, came = ids_of(response, asked, "id"), [known_id(item.get("id")) for item in asked]
    return [id if id == clean(own or "") else wire_id(id) for id, own in zip(found, came, strict=True)]


def wire_id(id: str) -> str:
    """`id` as this API takes it, nine letters or digits: one that fits stays, another becomes a hash of itself."""
    if _ID.fullmatch(id):
        return id
    number = int.from_bytes(hashlib.blake2s(clean(id).encode(), digest_size=16).digest(), "big")
    return "".join(_LETTERS[number // 62**power % 62] for power in range(9))


def _choice(response: Any) -> Any:
    choices = view(response).get("choices")
    return choices[0] if isinstance(choices, list) and choices else {}


def _messages(choice: Any) -> list[Any]:
    """The choice's message; several, where built-in tools ran in between."""
    message = view(choice).get("message")
    return read_list(choice, "messages") if message is None else [message]


def _problem(choice: Any) -> str | None:
    reason = read_text(choice, "finish_reason")
    found = _STOPS.get(reason)
    if found in _WHOLE:
        return None
    if found == "cut":
        return not_run(f"the turn was cut off ({reason!r})")
    if reason == "error":
        return not_run("the turn ended in an error ('error')")
    if reason:
        return not_run(f"the turn ended for a reason that is not known here ({reason!r})")
    return (
        not_run("the turn has no end yet (its finish_reason is null)") if left_open(choice, "finish_reason") else None
    )


def turn(response: Any) -> list[dict[str, Any]]:
    """The first choice's message, with the ids that `results` answers: all in nine letters or digits."""
    messages = plain_list(_messages(_choice(response)))
    asked = []
    for message in messages:
        listed = plain_list(message.get("tool_calls"))
        asked += listed
        # Some servers send these as null or [].
        if listed:
            message["tool_calls"] = listed
        else:
            message.pop("tool_calls", None)
    for id, item in zip(_ids(response, asked), asked, strict=True):
        item["id"] = wire_id(id)
        function = item.get("function")
        if isinstance(function, dict):
            function["name"] = sent_name(name_of(function))
            function["arguments"] = _sent(function.get("arguments"))
    return [
        {"role": "assistant", **message} for message in messages if message.get("content") or "tool_calls" in message
    ]


def _sent(given: Any) -> Any:
    return jsonable(given) if isinstance(given, Mapping) else object_text(given)


def stop(response: Any) -> Stop:
    """Why the model stopped."""
    choice = _choice(response)
    reason = read_text(choice, "finish_reason")
    found = _STOPS.get(reason, "other")
    if found not in _WHOLE and (reason or not choice or left_open(choice, "finish_reason")):
        return found
    if _asked(view(choice)):
        return "calls"
    return "malformed" if found == "calls" else "end"


def results(results: Iterable[ToolResult]) -> list[dict[str, Any]]:
    """One `{"role": "tool", "tool_call_id", "name", "content"}` for each result."""
    return [_result(result) for result in results]


def _result(result: ToolResult) -> dict[str, Any]:
    call = call_of(result)
    said = {"role": "tool", "tool_call_id": wire_id(call.id), "name": sent_name(call.name)}
    return {**said, "content": _content(result)}


def _content(result: ToolResult) -> str | list[dict[str, Any]]:
    if result.status != "ok":
        return marked_error_text(result)
    chunks = [_chunk(block) for block in result.content]
    if all(chunk["type"] == "text" for chunk in chunks):
        return "\n".join(chunk["text"] for chunk in chunks)
    return [chunk for chunk in chunks if chunk != {"type": "text", "text": ""}]


def _chunk(block: Block) -> dict[str, Any]:
    if isinstance(block, Media):
        kind = media_type(block)
        address = f"data:{kind};base64,{base64_text(block)}" if block.data else web_address(block)
        if address and kind in _IMAGES:
            return {"type": "image_url", "image_url": address}
        if address and kind == "application/pdf":
            named = {"document_name": clean(block.name)} if block.name else {}
            return {"type": "document_url", "document_url": address, **named}
    return {"type": "text", "text": block_text(block)}


class Stream(TurnStream, reading=(calls, turn, stop)):
    """The same from a stream: feed it each event. Until one has a `finish_reason`, every call has a `problem`."""

    __slots__ = ("_by_id", "_by_index", "_calls", "_chunks", "_finish", "_head", "_usage")

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] = {}
        self._chunks: list[_Text | _Thought | dict[str, Any]] = []
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}
        self._by_index: dict[int | None, _Call] = {}
        """The newest call under each index, and the newest of all under `None`."""
        self._finish: str | None = None
        self._usage: Any = None

    def _goes_on(self, event: Any) -> bool:
        if type(event) is dict:
            (choice,) = event.get("data", event)["choices"]
            if choice.get("index"):
                return False
            delta = choice["delta"]
            text, more, reason = delta.get("content"), delta.get("tool_calls"), choice.get("finish_reason")
        else:
            (choice,) = event.data.choices
            if choice.index:
                return False
            delta = choice.delta
            text, more, reason = delta.content, delta.tool_calls, choice.finish_reason
        if reason or not self._head:
            return False
        if type(text) is str and not more:
            self._chunks[-1].pieces.append(text)  # type: ignore[union-attr]  # a chunk of another kind has none
            return True
        return not text and bool(more) and self._more(more)

    def _more(self, items: Any) -> bool:
        """Takes a fragment of arguments and nothing else, of a call that is known by its index."""
        (item,) = items
        if type(item) is dict:
            id, index, function = item.get("id"), item["index"], item["function"]
            name, text = function.get("name"), function["arguments"]
        else:
            id, index, function = item.id, item.index, item.function
            name, text = function.name, function.arguments
        if name or (id and id != "null") or type(text) is not str:
            return False
        self._by_index[index].fragments.append(text)
        return True

    def _take(self, event: Any) -> None:
        chunk = read(event, "data", event)
        for key in ("id", "object", "created", "model") if not self._head else ():
            found = plain(read(chunk, key))
            if found is not None:
                self._head[key] = found
        usage = plain(read(chunk, "usage"))
        self._usage = self._usage if usage is None else usage
        for choice in views(read(chunk, "choices")):
            if not choice.get("index"):
                self._choose(choice)

    def _choose(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta")
        content = read(delta, "content")
        for part in content if isinstance(content, list) else [content]:
            self._add(part)
        seen: set[int] = set()
        for item in read_list(delta, "tool_calls"):
            self._continue(item, seen)
        if choice.get("finish_reason") is not None:
            self._finish = read_text(choice, "finish_reason")
            if self._finish == "error":
                self._error = repr(self._finish)

    def _add(self, part: Any) -> None:
        """A text, or a chunk; texts, and thoughts, that follow each other are one."""
        last = self._chunks[-1] if self._chunks else None
        kind = "text" if isinstance(part, str) else read(part, "type")
        text = part if isinstance(part, str) else read(part, "text")
        if kind == "text" and isinstance(text, str):
            if not isinstance(last, _Text):
                last = _Text()
                self._chunks.append(last)
            last.pieces.append(text)
        elif kind == "thinking":
            if not isinstance(last, _Thought):
                last = _Thought()
                self._chunks.append(last)
            last.take(part)
        elif isinstance(chunk := plain(part), dict):
            self._chunks.append(chunk)

    def _continue(self, item: Any, taken: set[int]) -> None:
        """A call, or a fragment of one; `taken` are the calls that the same delta has spoken of already."""
        function = read(item, "function")
        # The SDK's own default for an index that did not come is 0.
        came = getattr(item, "model_fields_set", ("index",))
        index = place(read(item, "index")) if "index" in came else None
        call = self._call_of(known_id(read(item, "id")), index, read(function, "name"), taken)
        taken.add(id(call))
        call.take(read(function, "name"), read(function, "arguments"))

    def _call_of(self, id_: str | None, index: int | None, name: Any, taken: set[int]) -> _Call:
        """The call that a fragment belongs to: by its id, then by its index; else a new one."""
        at = self._by_index.get(index)
        call = None if not id_ else at if at is not None and at.id == id_ else self._by_id.get(id_)
        if call is not None and (id(call) in taken or (name and index is not None and call.index != index)):
            call = None  # another call with an id that is known
        elif call is None and at is not None:
            call = None if id(at) in taken or at.ends_before(id_, name) else at
        if call is None:
            call = _Call(index)
            self._calls.append(call)
        self._by_index[index] = self._by_index[None] = call
        if id_ and not call.id:
            call.id = id_
            self._by_id[id_] = call
        return call

    def _so_far(self) -> dict[str, Any]:
        chunks = [chunk if isinstance(chunk, dict) else chunk.whole() for chunk in self._chunks]
        content: Any = [chunk for chunk in chunks if chunk != {"type": "text", "text": ""}]
        if all(chunk.get("type") == "text" and isinstance(chunk.get("text"), str) for chunk in content):
            content = "".join(chunk["text"] for chunk in content)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self._calls:
            message["tool_calls"] = [call.whole() for call in self._calls]
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        usage = {} if self._usage is None else {"usage": self._usage}
        return {"object": "chat.completion", **self._head, "choices": [choice], **usage}


class _Text:
    """One text, in fragments."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def whole(self) -> dict[str, Any]:
        return {"type": "text", "text": joined(self.pieces)}


class _Thought:
    """One chunk of thinking, in fragments."""

    __slots__ = ("more", "parts")

    def __init__(self) -> None:
        self.parts: list[_Text | dict[str, Any]] = []
        self.more: dict[str, Any] = {}

    def take(self, chunk: Any) -> None:
        for part in read_list(chunk, "thinking"):
            text = read(part, "text") if read(part, "type", "text") == "text" else None
            if isinstance(text, str):
                if not self.parts or isinstance(self.parts[-1], dict):
                    self.parts.append(_Text())
                self.parts[-1].pieces.append(text)  # type: ignore[union-attr]  # it is a text by now
            elif isinstance(more := plain(part), dict):
                self.parts.append(more)
        for key in ("signature", "closed"):
            found = read(chunk, key)
            if found:  # the SDK has an object that is false where nothing came
                self.more[key] = plain(found)

    def whole(self) -> dict[str, Any]:
        parts = [part if isinstance(part, dict) else part.whole() for part in self.parts]
        return {"type": "thinking", "thinking": parts, **self.more}


class _Call:
    """One call, with the fragments of its arguments; mostly there is one."""

    __slots__ = ("fragments", "id", "index", "name", "object")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id: str | None = None
        self.name = ""
        self.fragments: list[str] = []
        self.object: Mapping[str, Any] | None = None

    def ends_before(self, id: str | None, name: Any) -> bool:
        """Whether a fragment under the same index begins another call: one with an id of its own, or with a name
        after the arguments are whole (they are, in one fragment, where this API does not stream them)."""
        if id:
            return self.id is not None or bool(name and self.name)
        if not name or not self.name:
            return False
        whole = self.object is not None or (len(self.fragments) == 1 and isinstance(as_object(self.fragments[0]), dict))
        return name != self.name or whole

    def take(self, name: Any, given: Any) -> None:
        if isinstance(name, str) and name != self.name:
            self.name += name
        if isinstance(given, str) and given:
            self.fragments.append(given)
        elif isinstance(given, Mapping):
            self.object = given

    def whole(self) -> dict[str, Any]:
        found = {"id": self.id} if self.id else {}
        given = joined(self.fragments) if self.object is None or self.fragments else self.object
        return {**found, "type": "function", "function": {"name": self.name, "arguments": given}}
