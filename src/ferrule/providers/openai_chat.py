"""OpenAI's Chat Completions API, and whatever is compatible with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict

from ferrule.providers import Strict
from ferrule.providers._api import Api, End, chosen, ending, no_state, problem_of, read_calls, read_function_call
from ferrule.providers._plain import PLAIN_CHAT
from ferrule.providers._read import (
    answered_call,
    fields_of,
    fields_of_each,
    fill_ids,
    first_choice,
    is_null,
    known_id,
    name_in_history,
    name_of,
    object_text,
    plain,
    plain_list,
    read,
    read_list,
    read_text,
    result_text,
    split_deferred,
    text_of,
)
from ferrule.providers._stream import (
    Readers,
    StreamedCall,
    StreamedCalls,
    TurnStream,
    as_index,
    chunk_text,
    describe_api_error,
    join_chunks,
    merge_delta,
    merged_value,
)
from ferrule.providers._strict import OPENAI
from ferrule.providers._text_calls import is_text_call, text_calls
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


_API = Api(
    title="OpenAI",
    end_field="finish_reason",
    stops={
        "stop": "end",
        # Words of compatible servers.
        **dict.fromkeys(("eos", "eos_token", "end", "end_turn", "STOP"), "end"),
        "tool_calls": "calls",
        "length": "cut",
        "model_length": "cut",
        "content_filter": "refused",
        "error": "other",
    },
    choices={"auto": "auto", "required": "required", "none": "none"},
    narrows=True,
    one_at_a_time=True,
)
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
        DefinitionError: where a tool's schema cannot be sent or strict, strict tools are too many, or a name is no
            tool's.
    """
    first, later = split_deferred(toolset, deferred)
    written = definitions(first + later, strict, _function, _RULES)
    return [{"type": "function", "function": fields} for fields in written]


def _function(tool: Tool, strict: bool) -> dict[str, Any]:
    if strict:
        return {**definition(tool, "parameters", _RULES), "strict": True}
    return definition(tool, "parameters", PLAIN_CHAT)


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> Choice:
    """`{"tool_choice": ...}`, and `"parallel_tool_calls": False` where one call at a time is wanted.

    Raises:
        DefinitionError: for `only` beside `"none"` or a name.
    """
    word, names = chosen(_API, choice, parallel, only)
    listed = [_function_reference(name) for name in names]
    fields: Any = word or listed[0]
    if word and listed:
        fields = {"type": "allowed_tools", "allowed_tools": {"mode": word, "tools": listed}}
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
    ended = choice.get("finish_reason") == "tool_calls" and not _error(response)
    problem = None if ended else problem_of(_API, _end(response))
    return read_calls(response, requested, "id", _read_call, problem)


def _read_call(id: str, item: Any, problem: str | None) -> ToolCall:
    function = item.get("function")
    if function is None and (custom := item.get("custom")) is not None:
        text = {"input": read_text(custom, "input")}
        return ToolCall(id, name_of(fields_of(custom)), text, problem=problem, data={"type": "custom"})
    return read_function_call(id, item, problem)


def _error(response: Any) -> Any:
    """What compatible servers say of an error, beside the choices or in one (OpenRouter)."""
    return fields_of(response).get("error") or fields_of(first_choice(response)).get("error")


def _end(response: Response) -> End:
    choice = fields_of(first_choice(response))
    error = _error(response)
    message = choice.get("message")
    return End(
        "error" if error else read_text(choice, "finish_reason"),
        open=not choice or is_null(first_choice(response), "finish_reason"),
        calls=bool(read(message, "tool_calls")),
        refused=bool(read(message, "refusal")),
        details=describe_api_error(error) if error else "",
        text_call=is_text_call(text_of(read(message, "content"))),
    )


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


def text(response: Response) -> str:
    """What the model says, a refusal too."""
    message = fields_of(read(first_choice(response), "message"))
    return text_of(message.get("content")) or read_text(message, "refusal")


stop, reason = ending(_API, _end)
state = no_state


def with_text_calls(response: Response) -> Mapping[str, Any]:
    """The response with the calls that its text holds as its calls, for models behind servers that do not read them:
    `<tool_call>{"name", "arguments"}</tool_call>` and `<function=name>...</function>`, as Hermes and Qwen models write
    them. Where the text holds none, or one that cannot be read, it is as it was."""
    found: dict[str, Any] = plain(fields_of(response) if isinstance(response, Mapping) else response)
    message = read(first_choice(found), "message")
    parsed = None if read(message, "tool_calls") else text_calls(text_of(read(message, "content")))
    if parsed is None:
        return found
    message["content"] = parsed.text or None
    message["tool_calls"] = [{"type": "function", "function": call} for call in parsed.calls]
    if _API.stops.get(read_text(first_choice(found), "finish_reason")) == "end":
        found["choices"][0]["finish_reason"] = "tool_calls"
    return found


def results(results: Iterable[ToolResult]) -> list[ChatCompletionMessageParam]:
    """One `{"role": "tool", "tool_call_id", "content"}` for each result; this API takes text only."""
    return [
        {"role": "tool", "tool_call_id": answered_call(result).id, "content": result_text(result)} for result in results
    ]


_REPEATED_FIELDS = frozenset({"role"})
"""What some servers send again with every chunk."""


class Stream(
    TurnStream["Event", "ChatCompletionMessageParam"], readers=Readers(calls, text, turn, stop, reason, state)
):
    """The same from a stream: feed it each chunk. Until one has a `finish_reason`, every call has a `problem`."""

    __slots__ = ("_finish_reason", "_head", "_message", "_streamed_calls", "_texts", "_usage")

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] | None = None
        self._usage: Any = None
        self._message: dict[str, Any] = {}
        self._texts: defaultdict[str, list[str]] = defaultdict(list)
        self._streamed_calls = StreamedCalls()
        self._finish_reason: str | None = None

    def _append_chunk(self, event: Any) -> bool:
        event = fields_of(event)
        choice = fields_of(*event["choices"])
        if "error" in event or "error" in choice:
            return False
        delta = choice["delta"]
        if type(delta) is dict:
            alone = len(delta) == 1
        else:
            extra, delta = delta.__pydantic_extra__, delta.__dict__
            alone = not extra and delta["refusal"] is None and delta["audio"] is None
        if not alone or self._head is None or choice["finish_reason"] is not None or choice["index"]:
            return False
        items, content = delta.get("tool_calls"), delta.get("content")
        if items is None and type(content) is str:
            self._texts["content"].append(content)
            return True
        return content is None and self._append_arguments(*items)

    def _append_arguments(self, item: Any) -> bool:
        """Adds a chunk of arguments and nothing else to a call that is known by its index; whether it was one."""
        item = item if type(item) is dict else item.__dict__
        called, id = item["function"], item.get("id")
        called = called if type(called) is dict else called.__dict__
        call = self._streamed_calls.by_index[item.get("index")]
        text, name = called["arguments"], called.get("name")
        if id and id != call.id:
            return False
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
                taken: set[StreamedCall] = set()
                for item in fields_of_each(value):
                    self._add_call_delta(item, taken)
            elif type(value) is str and key != "role":  # some servers send the role with every chunk
                self._texts[key].append(value)
            else:
                merge_delta(self._message, {key: plain(value)}, _REPEATED_FIELDS)

    def _add_call_delta(self, item: Mapping[str, Any], taken: set[StreamedCall]) -> None:
        function, custom = item.get("function"), item.get("custom")
        kind, inner = ("custom", custom) if function is None and custom is not None else ("function", function)
        given = read(inner, "input" if kind == "custom" else "arguments")
        call = self._streamed_calls.add(
            known_id(item.get("id")), as_index(item.get("index")), read(inner, "name"), given, taken
        )
        if inner is not None:
            call.kind = kind
        merge_delta(call.more, {key: plain(item[key]) for key in item.keys() - _CALL_FIELDS}, _REPEATED_FIELDS)

    def _assembled(self) -> dict[str, Any]:
        message = {"role": "assistant", "content": None} | merged_value(self._message)
        message |= {key: join_chunks(chunks) for key, chunks in self._texts.items()}
        if self._streamed_calls:
            message["tool_calls"] = self._streamed_calls.assembled()
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        usage = {} if self._usage is None else {"usage": self._usage}
        return {"object": "chat.completion", **(self._head or {}), "choices": [choice], **usage}


_CALL_FIELDS = frozenset({"id", "index", "type", "function", "custom"})
