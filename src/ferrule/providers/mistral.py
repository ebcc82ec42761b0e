"""Mistral's chat API."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict

from ferrule.providers import Strict
from ferrule.providers._api import Api, End, chosen, ending, no_state, problem_of, read_calls, read_function_call
from ferrule.providers._plain import PLAIN_MISTRAL
from ferrule.providers._read import (
    answered_call,
    block_text,
    data_url,
    fields_of,
    fields_of_each,
    first_choice,
    ids_as_sent,
    ids_of,
    is_null,
    known_id,
    marked_error_text,
    media_type,
    name_in_history,
    name_of,
    object_text,
    plain,
    plain_list,
    read,
    read_list,
    read_text,
    split_deferred,
    text_of,
    text_or_parts,
)
from ferrule.providers._stream import Readers, StreamedCall, StreamedCalls, TurnStream, as_index, join_chunks
from ferrule.providers._strict import MISTRAL
from ferrule.providers._write import definition, definitions
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, clean, jsonable
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from mistralai.client.models import (
        ChatCompletionRequestMessageTypedDict,
        ChatCompletionRequestToolChoiceTypedDict,
        ChatCompletionResponse,
        CompletionEvent,
        ToolTypedDict,
    )

    from ferrule.definition.tool import Tool

    Response: TypeAlias = ChatCompletionResponse | Mapping[str, Any]
    Event: TypeAlias = CompletionEvent | Mapping[str, Any]

    class Choice(TypedDict):
        """Keyword arguments of a request."""

        tool_choice: ChatCompletionRequestToolChoiceTypedDict
        parallel_tool_calls: NotRequired[bool]


_API = Api(
    title="Mistral",
    end_field="finish_reason",
    stops={
        "stop": "end",
        "tool_calls": "calls",
        "length": "cut",
        "model_length": "cut",
        "error": "other",
    },
    choices={"auto": "auto", "required": "any", "none": "none"},
    one_at_a_time=True,
    images=frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"}),
)
# docs.mistral.ai and github.com/mistralai/mistral-common: "Tool call id … must be a-z, A-Z, 0-9, with a length of 9."
_ID = re.compile(r"[a-zA-Z0-9]{9}")
_DIGITS_AND_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def tools(
    toolset: Iterable[Tool], *, strict: Strict = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[ToolTypedDict]:
    """`[{"type": "function", "function": {"name", "description", "parameters"}}]`, deferred tools last.

    Args:
        strict: Whether the API holds the model to the schema: for all, or for the tools of these names.
        cache: Nothing to mark here; `prompt_cache_key` in the request says what belongs together.
        deferred: Names of tools that came later. This API cannot defer: they are placed last, in this order, so that
            what stands before them stays cached.

    Raises:
        DefinitionError: where a tool's schema cannot be sent or strict, or a name is no tool's.
    """
    first, later = split_deferred(toolset, deferred)
    written = definitions(first + later, strict, _function, MISTRAL)
    return [{"type": "function", "function": function} for function in written]


def _function(tool: Tool, strict: bool) -> dict[str, Any]:
    if strict:
        return {**definition(tool, "parameters", MISTRAL), "strict": True}
    return definition(tool, "parameters", PLAIN_MISTRAL)


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> Choice:
    """`{"tool_choice": ...}`, and `"parallel_tool_calls": False` where one call at a time is wanted.

    Raises:
        DefinitionError: for `only`, which this API cannot say.
    """
    word, names = chosen(_API, choice, parallel, only)
    fields: Any = word or {"type": "function", "function": {"name": names[0]}}
    return {"tool_choice": fields} if parallel else {"tool_choice": fields, "parallel_tool_calls": False}


def calls(response: Response) -> list[ToolCall]:
    """The calls in the first choice, in order, with the ids as they came."""
    choice = fields_of(first_choice(response))
    requested = _tool_calls(choice)
    if not requested:
        return []
    problem = None if choice.get("finish_reason") == "tool_calls" else problem_of(_API, _end(response))
    ids = ids_as_sent(requested, "id") or _call_ids(response, requested)
    return read_calls(response, requested, "id", read_function_call, problem, ids)


def _tool_calls(choice: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The calls in a choice's message, or in its messages."""
    message = choice.get("message")
    if message is not None:
        return fields_of_each(fields_of(message).get("tool_calls"))
    return [item for message in _messages(choice) for item in fields_of_each(fields_of(message).get("tool_calls"))]


def _call_ids(response: Any, requested: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ids as they came; one that is derived is already what this API takes."""
    found, came = ids_of(response, requested, "id"), [known_id(item.get("id")) for item in requested]
    return [id if id == clean(own or "") else wire_id(id) for id, own in zip(found, came, strict=True)]


def wire_id(id: str) -> str:
    """`id` as this API takes it, nine letters or digits: one that fits stays, another becomes a hash of itself."""
    if _ID.fullmatch(id):
        return id
    number = int.from_bytes(hashlib.blake2s(clean(id).encode(), digest_size=16).digest(), "big")
    return "".join(_DIGITS_AND_LETTERS[number // 62**power % 62] for power in range(9))


def _messages(choice: Any) -> list[Any]:
    """The choice's message; several, where built-in tools ran in between."""
    message = fields_of(choice).get("message")
    return read_list(choice, "messages") if message is None else [message]


def _end(response: Response) -> End:
    choice = first_choice(response)
    return End(
        read_text(choice, "finish_reason"),
        open=not choice or is_null(choice, "finish_reason"),
        calls=bool(_tool_calls(fields_of(choice))),
    )


def turn(response: Response) -> list[ChatCompletionRequestMessageTypedDict]:
    """The first choice's message, with the ids that `results` answers: all in nine letters or digits."""
    messages: list[Any] = plain_list(_messages(first_choice(response)))
    requested = []
    for message in messages:
        listed = plain_list(message.get("tool_calls"))
        requested += listed
        # Some servers send these as null or [].
        if listed:
            message["tool_calls"] = listed
        else:
            message.pop("tool_calls", None)
    for id, item in zip(_call_ids(response, requested), requested, strict=True):
        item["id"] = wire_id(id)
        function = item.get("function")
        if isinstance(function, dict):
            function["name"] = name_in_history(name_of(function))
            function["arguments"] = _arguments_in_history(function.get("arguments"))
    for message in messages:
        message["role"] = "assistant"
    return [message for message in messages if message.get("content") or "tool_calls" in message]


def _arguments_in_history(given: Any) -> Any:
    return jsonable(given) if isinstance(given, Mapping) else object_text(given)


def text(response: Response) -> str:
    """What the model says."""
    return "".join(text_of(fields_of(message).get("content")) for message in _messages(first_choice(response)))


stop, reason = ending(_API, _end)
state = no_state


def results(results: Iterable[ToolResult]) -> list[ChatCompletionRequestMessageTypedDict]:
    """One `{"role": "tool", "tool_call_id", "name", "content"}` for each result."""
    return [_result(result) for result in results]


def _result(result: ToolResult) -> Any:
    call = answered_call(result)
    message = {"role": "tool", "tool_call_id": wire_id(call.id), "name": name_in_history(call.name)}
    return {**message, "content": _content(result)}


def _content(result: ToolResult) -> str | list[dict[str, Any]]:
    if result.status != "ok":
        return marked_error_text(result)
    return text_or_parts([_content_part(block) for block in result.content])


def _content_part(block: Block) -> dict[str, Any]:
    if isinstance(block, Media):
        kind, address = media_type(block), data_url(block)
        if address and kind in _API.images:
            return {"type": "image_url", "image_url": address}
        if address and kind == "application/pdf":
            named = {"document_name": clean(block.name)} if block.name else {}
            return {"type": "document_url", "document_url": address, **named}
    return {"type": "text", "text": block_text(block)}


class Stream(
    TurnStream["Event", "ChatCompletionRequestMessageTypedDict"],
    readers=Readers(calls, text, turn, stop, reason, state),
):
    """The same from a stream: feed it each event. Until one has a `finish_reason`, every call has a `problem`."""

    __slots__ = ("_content_parts", "_finish_reason", "_head", "_streamed_calls", "_usage")

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] = {}
        self._content_parts: list[_StreamedText | _StreamedThinking | dict[str, Any]] = []
        self._streamed_calls = StreamedCalls()
        self._finish_reason: str | None = None
        self._usage: Any = None

    def _append_chunk(self, event: Any) -> bool:
        fields = event.get("data", event) if type(event) is dict else event.data.__dict__
        (choice,) = fields["choices"]
        choice = choice if type(choice) is dict else choice.__dict__
        delta = choice["delta"]
        delta = delta if type(delta) is dict else delta.__dict__
        text, more = delta.get("content"), delta.get("tool_calls")
        if choice.get("index") or choice.get("finish_reason") or not self._head:
            return False
        if type(text) is str and not more:
            self._content_parts[-1].chunks.append(text)  # type: ignore[union-attr]  # a chunk of another kind has none
            return True
        return not text and more is not None and self._append_arguments(*more)

    def _append_arguments(self, item: Any) -> bool:
        """Adds a chunk of arguments and nothing else to a call that is known by its index; whether it was one."""
        item = item if type(item) is dict else item.__dict__
        function, id = item["function"], item.get("id")
        function = function if type(function) is dict else function.__dict__
        name, text = function.get("name"), function["arguments"]
        if name or (id and id != "null") or type(text) is not str:
            return False
        self._streamed_calls.by_index[item["index"]].arguments.append(text)
        return True

    def _apply(self, event: Any) -> None:
        chunk = read(event, "data", event)
        for key in ("id", "object", "created", "model") if not self._head else ():
            found = plain(read(chunk, key))
            if found is not None:
                self._head[key] = found
        usage = plain(read(chunk, "usage"))
        self._usage = self._usage if usage is None else usage
        for choice in fields_of_each(read(chunk, "choices")):
            if not choice.get("index"):
                self._add_choice(choice)

    def _add_choice(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta")
        content = read(delta, "content")
        for part in content if isinstance(content, list) else [content]:
            self._add_content(part)
        seen: set[StreamedCall] = set()
        for item in read_list(delta, "tool_calls"):
            self._add_call_delta(item, seen)
        if choice.get("finish_reason") is not None:
            self._finish_reason = read_text(choice, "finish_reason")
            if self._finish_reason == "error":
                self._error = repr(self._finish_reason)

    def _add_content(self, part: Any) -> None:
        """A text, or a chunk; texts, and thoughts, that follow each other are one."""
        last = self._content_parts[-1] if self._content_parts else None
        kind = "text" if isinstance(part, str) else read(part, "type")
        text = part if isinstance(part, str) else read(part, "text")
        if kind == "text" and isinstance(text, str):
            if not isinstance(last, _StreamedText):
                last = _StreamedText()
                self._content_parts.append(last)
            last.chunks.append(text)
        elif kind == "thinking":
            if not isinstance(last, _StreamedThinking):
                last = _StreamedThinking()
                self._content_parts.append(last)
            last.add(part)
        elif isinstance(chunk := plain(part), dict):
            self._content_parts.append(chunk)

    def _add_call_delta(self, item: Any, taken: set[StreamedCall]) -> None:
        # The SDK's own default for an index that did not come is 0.
        came = getattr(item, "model_fields_set", ("index",))
        index = as_index(read(item, "index")) if "index" in came else None
        function = read(item, "function")
        self._streamed_calls.add(
            known_id(read(item, "id")), index, read(function, "name"), read(function, "arguments"), taken
        )

    def _assembled(self) -> dict[str, Any]:
        parts = [chunk if isinstance(chunk, dict) else chunk.assembled() for chunk in self._content_parts]
        content: Any = [chunk for chunk in parts if chunk != {"type": "text", "text": ""}]
        if all(chunk.get("type") == "text" and isinstance(chunk.get("text"), str) for chunk in content):
            content = "".join(chunk["text"] for chunk in content)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self._streamed_calls:
            message["tool_calls"] = self._streamed_calls.assembled()
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        usage = {} if self._usage is None else {"usage": self._usage}
        return {"object": "chat.completion", **self._head, "choices": [choice], **usage}


class _StreamedText:
    """One text that comes in chunks."""

    __slots__ = ("chunks",)

    def __init__(self) -> None:
        self.chunks: list[str] = []

    def assembled(self) -> dict[str, Any]:
        return {"type": "text", "text": join_chunks(self.chunks)}


class _StreamedThinking:
    """One part of thinking that comes in chunks."""

    __slots__ = ("more", "parts")

    def __init__(self) -> None:
        self.parts: list[_StreamedText | dict[str, Any]] = []
        self.more: dict[str, Any] = {}

    def add(self, chunk: Any) -> None:
        for part in read_list(chunk, "thinking"):
            text = read(part, "text") if read(part, "type", "text") == "text" else None
            if isinstance(text, str):
                if not self.parts or isinstance(self.parts[-1], dict):
                    self.parts.append(_StreamedText())
                self.parts[-1].chunks.append(text)  # type: ignore[union-attr]  # it is a text by now
            elif isinstance(more := plain(part), dict):
                self.parts.append(more)
        for key in ("signature", "closed"):
            found = read(chunk, key)
            if found:  # the SDK has an object that is false where nothing came
                self.more[key] = plain(found)

    def assembled(self) -> dict[str, Any]:
        parts = [part if isinstance(part, dict) else part.assembled() for part in self.parts]
        return {"type": "thinking", "thinking": parts, **self.more}
