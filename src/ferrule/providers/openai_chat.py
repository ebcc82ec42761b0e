"""OpenAI's Chat Completions API, and whatever is compatible with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict

from ferrule.providers import Stop, Strict
from ferrule.providers._read import (
    COMPLETE,
    allowed_names,
    answered_call,
    arguments,
    block_text,
    fields_of,
    fields_of_each,
    fill_ids,
    first_choice,
    forced_name,
    ids_of,
    is_null,
    known_id,
    mark_repeats,
    marked_error_text,
    name_in_history,
    name_of,
    object_text,
    plain,
    plain_list,
    read,
    read_list,
    read_text,
    split_deferred,
    turn_problem,
)
from ferrule.providers._stream import (
    Brackets,
    TurnStream,
    as_index,
    chunk_text,
    describe_api_error,
    join_chunks,
    merge_delta,
    merged_value,
    object_or_text,
)
from ferrule.providers._strict import OPENAI
from ferrule.providers._write import definition, definitions
from ferrule.values.call import ToolCall
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from openai.types.chat import (
        ChatCompletion,
        ChatCompletionChunk,
        ChatCompletionFunctionToolParam,
        ChatCompletionMessageParam,
        ChatCompletionToolChoiceOptionParam,
    )

    from ferrule.definition.tool import Tool

    Response: TypeAlias = ChatCompletion | Mapping[str, Any]
    Event: TypeAlias = ChatCompletionChunk | Mapping[str, Any]

    class Choice(TypedDict):
        """Keyword arguments of a request."""

        tool_choice: ChatCompletionToolChoiceOptionParam
        parallel_tool_calls: NotRequired[bool]


_STOPS: dict[str, Stop] = {"stop": "end", "tool_calls": "calls", "length": "cut", "content_filter": "refused"}
# "array too long. Expected an array with maximum length 128"; compatible servers take more without strict mode.
_RULES = replace(OPENAI, most_tools=128)


def tools(
    toolset: Iterable[Tool], *, strict: Strict = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[ChatCompletionFunctionToolParam]:
    """`[{"type": "function", "function": {"name", "description", "parameters"}}]`, deferred tools last.

    Args:
        strict: Whether the API holds the model to the schema: for all, or for the tools of these names.
        cache: Nothing to mark here; the API caches an unchanged beginning by itself.
        deferred: Names of tools that came later. This API cannot defer: they are placed last, in this order, so that
            what stands before them stays cached.

    Raises:
        DefinitionError: where a tool's schema cannot be strict, strict tools are too many, or a name is no tool's.
    """
    first, later = split_deferred(toolset, deferred)
    written = definitions(first + later, strict, _function, _RULES)
    return [{"type": "function", "function": fields} for fields in written]


def _function(tool: Tool, strict: bool) -> dict[str, Any]:
    if strict:
        return {**definition(tool, "parameters", _RULES), "strict": True}
    return definition(tool, "parameters")


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> Choice:
    """`{"tool_choice": ...}`, and `"parallel_tool_calls": False` where one call at a time is wanted.

    Raises:
        DefinitionError: for `only` beside `"none"` or a name.
    """
    fields: Any = choice
    if only is not None:
        listed = [_function_reference(name) for name in allowed_names(choice, only, "OpenAI")]
        fields = {"type": "allowed_tools", "allowed_tools": {"mode": choice, "tools": listed}}
    elif choice not in {"auto", "required", "none"}:
        fields = _function_reference(forced_name(choice))
    return {"tool_choice": fields} if parallel else {"tool_choice": fields, "parallel_tool_calls": False}


def _function_reference(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def calls(response: Response) -> list[ToolCall]:
    """The calls in the first choice, in order. `data` is `{"type": "custom"}` for a call of a custom tool."""
    choice = fields_of(first_choice(response))
    message = choice.get("message")
    requested = fields_of_each((message if type(message) is dict else fields_of(message)).get("tool_calls"))
    if not requested:
        return []
    problem = None if choice.get("finish_reason") == "tool_calls" else _problem(first_choice(response))
    found = [_call(item, id, problem) for id, item in zip(ids_of(response, requested, "id"), requested, strict=True)]
    return mark_repeats(found, requested, "id")


def _call(item: Mapping[str, Any], id: str, problem: str | None) -> ToolCall:
    function = item.get("function")
    if function is None and (custom := item.get("custom")) is not None:
        text = {"input": read_text(custom, "input")}
        return ToolCall(id, name_of(fields_of(custom)), text, problem=problem, data={"type": "custom"})
    function = fields_of(function)
    return ToolCall(id, name_of(function), arguments(function.get("arguments")), problem=problem)


def _problem(choice: Any) -> str | None:
    open_field = "finish_reason" if is_null(choice, "finish_reason") else ""
    return turn_problem(read_text(choice, "finish_reason"), _STOPS, open_field)


def _message(response: Any) -> Any:
    message = plain(read(first_choice(response), "message", {}))
    if not isinstance(message, dict):
        return {}
    if "tool_calls" in message:
        message["tool_calls"] = plain_list(message["tool_calls"])
        fill_ids(response, message["tool_calls"], "id")
    # Compatible servers send these as null or [], which the API does not take back.
    for key in ("tool_calls", "function_call", "audio"):
        if key in message and not message[key]:
            del message[key]
    return message


def turn(response: Response) -> list[ChatCompletionMessageParam]:
    """The first choice's message. The API does not take what the SDK's `parse` adds, and of what is spoken its id
    alone."""
    message = _message(response)
    message.pop("parsed", None)
    audio = message.pop("audio", None)
    if isinstance(audio, dict) and audio.get("id"):
        message["audio"] = {"id": audio["id"]}
    for item in message.get("tool_calls", ()):
        function, custom = item.get("function"), item.get("custom")
        for called in (function, custom):
            if isinstance(called, dict):
                called["name"] = name_in_history(name_of(called))
        if isinstance(function, dict):
            function["arguments"] = object_text(function.get("arguments"))
            function.pop("parsed_arguments", None)
    if not any(value for key, value in message.items() if key != "role"):
        return []
    message["role"] = "assistant"
    return [message]


def stop(response: Response) -> Stop:
    """Why the model stopped."""
    choice = first_choice(response)
    reason = read_text(choice, "finish_reason")
    found = _STOPS.get(reason, "other")
    if found not in COMPLETE and (reason or not choice or is_null(choice, "finish_reason")):
        return found
    message = read(choice, "message", {})
    if read(message, "tool_calls"):
        return "calls"
    if found == "calls":
        return "malformed"
    return "refused" if read(message, "refusal") else "end"


def results(results: Iterable[ToolResult]) -> list[ChatCompletionMessageParam]:
    """One `{"role": "tool", "tool_call_id", "content"}` for each result; this API takes text only."""
    return [
        {"role": "tool", "tool_call_id": answered_call(result).id, "content": _content(result)} for result in results
    ]


def _content(result: ToolResult) -> str:
    if result.status != "ok":
        return marked_error_text(result)
    return "\n".join(block_text(block) for block in result.content)


_REPEATED_FIELDS = frozenset({"role"})
"""What some servers send again with every chunk."""


class Stream(TurnStream["Event", "ChatCompletionMessageParam"], readers=(calls, turn, stop)):
    """The same from a stream: feed it each chunk. Until one has a `finish_reason`, every call has a `problem`."""

    __slots__ = ("_by_id", "_by_index", "_finish_reason", "_head", "_message", "_streamed_calls", "_texts", "_usage")

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] | None = None
        self._usage: Any = None
        self._message: dict[str, Any] = {}
        self._texts: defaultdict[str, list[str]] = defaultdict(list)
        self._streamed_calls: list[_StreamedCall] = []
        self._by_id: dict[str, _StreamedCall] = {}
        self._by_index: dict[int | None, _StreamedCall] = {}
        """The newest call under each index, and the newest of all under `None`."""
        self._finish_reason: str | None = None

    def _append_chunk(self, event: Any) -> bool:
        if type(event) is dict:
            (choice,) = event["choices"]
            delta = choice["delta"]
            alone = len(delta) == 1
        else:
            (choice,) = event.__dict__["choices"]  # a pydantic model's attributes take longer
            choice = choice.__dict__
            delta = choice["delta"]
            extra, delta = delta.__pydantic_extra__, delta.__dict__
            alone = not extra and delta["refusal"] is None and delta["audio"] is None
        if alone and self._head is not None and choice["finish_reason"] is None and not choice["index"]:
            items, content = delta.get("tool_calls"), delta.get("content")
            if items is None and type(content) is str:
                self._texts["content"].append(content)
                return True
            if content is None:
                (item,) = items
                item = item if type(item) is dict else item.__dict__
                called, id = item["function"], item.get("id")
                called = called if type(called) is dict else called.__dict__
                call = self._by_index[item.get("index")]
                if id and id != call.id:
                    return False
                text, name = called["arguments"], called.get("name")
                if type(text) is str and text and (not name or (id and name == call.name)):
                    call.arguments.append(text)
                    return True
        return False

    def _apply(self, event: Any) -> None:
        if self._head is None:
            self._read_head(event)
        fields = fields_of(event)
        choices = fields.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            given = fields_of(choice)
            if not given.get("index"):
                self._add_choice(given)
        usage = fields.get("usage")
        if usage is not None:
            self._usage = usage

    def _read_head(self, chunk: Any) -> None:
        """What the first chunk says besides its choices, and every other repeats."""
        keys = ("id", "created", "model", "service_tier", "system_fingerprint")
        found = {key: plain(read(chunk, key)) for key in keys}
        self._head = {key: value for key, value in found.items() if value is not None}
        for choice in read_list(chunk, "choices"):
            fields = plain(read(choice, "delta"))
            if isinstance(fields, dict) and "refusal" in fields:
                self._message["refusal"] = None

    def _add_choice(self, choice: Mapping[str, Any]) -> None:
        self._add_delta(fields_of(choice.get("delta")))
        reason = choice.get("finish_reason")
        if reason is not None:
            self._finish_reason = chunk_text(reason)
        if choice.get("error"):  # OpenRouter's place for it
            self._error = describe_api_error(choice["error"])

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        for key, value in delta.items():
            if value is None:
                continue
            if key == "tool_calls":
                taken: set[int] = set()
                for item in fields_of_each(value):
                    self._add_call_delta(item, taken)
            elif type(value) is str and key != "role":  # some servers send the role with every chunk
                self._texts[key].append(value)
            else:
                merge_delta(self._message, {key: plain(value)}, _REPEATED_FIELDS)

    def _add_call_delta(self, item: Mapping[str, Any], taken: set[int]) -> None:
        """A call, or a chunk of one; `taken` are the calls that the same delta has named already."""
        function, custom = item.get("function"), item.get("custom")
        kind, inner = ("custom", custom) if function is None and custom is not None else ("function", function)
        name, text = read(inner, "name"), read(inner, "input" if kind == "custom" else "arguments")
        own, index = known_id(item.get("id")), as_index(item.get("index"))
        call = self._call_of(own, index, name, text)
        if name and id(call) in taken:
            call = self._new_call(own, index)
        taken.add(id(call))
        if inner is not None:
            call.kind = kind
        if isinstance(name, str) and name != call.name:  # some servers repeat it, and it may come in chunks
            call.name += name
        if isinstance(text, str):
            call.arguments.append(text)
        elif isinstance(text, Mapping) and text:
            call.object = text
        merge_delta(call.more, {key: plain(item[key]) for key in item.keys() - _CALL_FIELDS}, _REPEATED_FIELDS)

    def _call_of(self, id: str | None, index: int | None, name: Any, text: Any) -> _StreamedCall:
        """The call that a chunk belongs to: by its id, then by its index; else a new one."""
        at = self._by_index.get(index)
        call = at if not id or (at is not None and at.id == id) else self._by_id.get(id)
        if call is not None and id and name and None not in (index, call.index) and index != call.index:
            call = None  # a known id under another index
        elif call is None and at is not None:  # a new id under a used index is another call's, or comes late
            call = None if at.id or (name and at.name) else at
        elif call is not None and not id and call.ends_before(name, text):
            call = None
        if call is None:
            return self._new_call(id, index)
        if id and not call.id:
            call.id = id
            self._by_id[id] = call
        return call

    def _new_call(self, id: str | None, index: int | None) -> _StreamedCall:
        call = _StreamedCall(id, index)
        self._streamed_calls.append(call)
        self._by_index[index] = self._by_index[None] = call
        if id:
            self._by_id[id] = call
        return call

    def _assembled(self) -> dict[str, Any]:
        message = {"role": "assistant", "content": None} | merged_value(self._message)
        message |= {key: join_chunks(chunks) for key, chunks in self._texts.items()}
        if self._streamed_calls:
            message["tool_calls"] = [call.assembled() for call in self._streamed_calls]
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        usage = {} if self._usage is None else {"usage": self._usage}
        return {"object": "chat.completion", **(self._head or {}), "choices": [choice], **usage}


class _StreamedCall:
    """One call, with the chunks of its arguments."""

    __slots__ = ("arguments", "brackets", "ended", "id", "index", "kind", "more", "name", "object")

    def __init__(self, id: str | None, index: int | None) -> None:
        self.id = id
        self.index = index
        self.name = ""
        self.arguments: list[str] = []
        self.brackets = Brackets()
        self.ended: bool | None = None
        self.object: Mapping[str, Any] | None = None
        self.kind = "function"
        self.more: dict[str, Any] = {}

    def ends_before(self, name: Any, text: Any) -> bool:
        """Whether a chunk without an id begins another call: one that has a name, after this one has all it needs.

        Some servers send every call whole, all under the index 0; others repeat the name with every chunk.
        """
        if not name or not self.name:
            return False
        if name != self.name:
            return True
        if isinstance(text, Mapping):
            return self.object is not None or bool(self.arguments)
        begins = isinstance(text, str) and text.lstrip().startswith("{")
        return begins and self._is_whole()

    def _is_whole(self) -> bool:
        """Whether the arguments so far are an object, which is found out once, when their brackets are closed."""
        if self.ended is None and self.brackets.closed_in(self.arguments):
            self.ended = isinstance(object_or_text(join_chunks(self.arguments)), dict)
        return self.ended is True

    def assembled(self) -> dict[str, Any]:
        found: dict[str, Any] = {"id": self.id} if self.id else {}
        given: Any = self.object if self.object is not None else join_chunks(self.arguments)
        fields = {"name": self.name, "input" if self.kind == "custom" else "arguments": given}
        return {**found, "type": self.kind, self.kind: fields, **merged_value(self.more)}


_CALL_FIELDS = frozenset({"id", "index", "type", "function", "custom"})
