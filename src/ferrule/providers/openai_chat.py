"""OpenAI's Chat Completions API, and compatible servers. See docs/providers/openai-chat.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict

from ferrule.providers import Strict
from ferrule.providers import _wire as wire
from ferrule.providers._api import Api, End, make_stop_readers, no_state, read_calls, read_function_call, resolve_choice
from ferrule.providers._chat import ChatStream, format_choice, write_calls_for_history
from ferrule.providers._plain import PLAIN_CHAT
from ferrule.providers._stream import LABELS, Readers, describe_api_error, join_text, merge_delta, merged_value
from ferrule.providers._strict import OPENAI
from ferrule.providers._text_calls import move_text_calls
from ferrule.providers._write import Definitions
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
# "array too long. Expected an array with maximum length 128"; compatible servers accept more without strict mode.
_DEFINITIONS = Definitions(
    name="openai_chat", plain=PLAIN_CHAT, strict=replace(OPENAI, most_together={"strict tools": 128}), in_function=True
)

MOST_DESCRIPTION = 1_024
"""The most characters of a tool's description. For a longer one, OpenAI and Azure answer the whole request with "string
too long. Expected a string with maximum length 1024". Other servers of this API accept more."""


def tools(
    toolset: Iterable[Tool], *, strict: Strict = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[ChatCompletionFunctionToolParam]:
    """Return `[{"type": "function", "function": {"name", "description", "parameters"}}]`, deferred tools last.

    Args:
        strict: Whether the API holds the model to the schema: for all tools, or for the tools of these names.
        cache: No effect; the API caches an unchanged beginning by itself.
        deferred: The names of tools that came later. This API cannot defer: they come last, in this order, so that the
            part before them stays cached.

    Raises:
        DefinitionError: A tool's schema cannot be sent or strict, strict tools are too many, or a name belongs to no
            tool.
    """
    first, later = _DEFINITIONS.write(toolset, strict, deferred)
    return first + later


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> Choice:
    """Return `{"tool_choice": ...}`, with `"parallel_tool_calls": False` unless `parallel`.

    Raises:
        DefinitionError: There is `only` beside `"none"` or a name.
    """
    word, names = resolve_choice(_API, choice, parallel, only)
    listed = [_function_reference(name) for name in names]
    fields: Any = word or listed[0]
    if word and listed:
        fields = {"type": "allowed_tools", "allowed_tools": {"mode": word, "tools": listed}}
    return format_choice(fields, parallel)  # type: ignore[no-any-return]


def _function_reference(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def calls(response: Response) -> list[ToolCall]:
    """Return the calls in the first choice, in order. `data` is `{"type": "custom"}` for a call of a custom tool."""
    message = wire.read(wire.get_first_choice(response), "message")
    requested = wire.list_fields(wire.get_fields(message).get("tool_calls"))
    return read_calls(_API, response, requested, "id", _read_call, _read_end)


def _read_call(id: str, item: Any, problem: str | None) -> ToolCall:
    function = item.get("function")
    if function is None and (custom := item.get("custom")) is not None:
        text = {"input": wire.read_text(custom, "input")}
        return ToolCall(id, wire.read_name(wire.get_fields(custom)), text, problem=problem, data={"type": "custom"})
    return read_function_call(id, item, problem)


def _error(response: Any) -> Any:
    """Return the error of a compatible server, beside the choices or in one (OpenRouter)."""
    return wire.get_fields(response).get("error") or wire.get_fields(wire.get_first_choice(response)).get("error")


def _read_end(response: Response) -> End:
    choice = wire.get_fields(wire.get_first_choice(response))
    error = _error(response)
    message = choice.get("message")
    return End(
        "error" if error else wire.read_text(choice, "finish_reason"),
        open=not choice or wire.is_null(wire.get_first_choice(response), "finish_reason"),
        calls=bool(wire.read(message, "tool_calls")),
        refused=bool(wire.read(message, "refusal")),
        details=describe_api_error(error) if error else "",
    )


def turn(response: Response) -> list[ChatCompletionMessageParam]:
    """Return the first choice's message. The API refuses the fields that the SDK's `parse` adds, and accepts only the
    id of audio."""
    found = wire.to_plain(wire.read(wire.get_first_choice(response), "message"))
    message: Any = found if isinstance(found, dict) else {}
    message.pop("parsed", None)
    audio, requested = message.pop("audio", None), wire.to_plain_list(message.pop("tool_calls", None))
    if isinstance(audio, dict) and audio.get("id"):
        message["audio"] = {"id": audio["id"]}
    if requested:
        message["tool_calls"] = requested
    # Compatible servers send it as null or empty, but the API refuses that in a history.
    if not wire.read_text(message.get("function_call"), "name").strip():
        message.pop("function_call", None)
    wire.fill_ids(response, requested, "id")
    write_calls_for_history(requested)
    for item in requested:
        function, custom = item.get("function"), item.get("custom")
        if isinstance(function, dict):
            function.pop("parsed_arguments", None)
        if isinstance(custom, dict):
            custom["name"] = wire.format_name(wire.read_name(custom))
    if not any(value for key, value in message.items() if key != "role"):
        return []
    message["role"] = "assistant"
    return [message]


def text(response: Response) -> str:
    """Return the model's text, or its refusal."""
    message = wire.get_fields(wire.read(wire.get_first_choice(response), "message"))
    return wire.read_content_text(message.get("content")) or wire.read_text(message, "refusal")


stop, reason = make_stop_readers(_API, _read_end, text)
state = no_state


def with_text_calls(response: Response, tools: Iterable[Tool] = ()) -> Mapping[str, Any]:
    """Return the response with the calls at the end of its text as its calls, for models behind servers that do not
    read them.

    Calls are read in the forms `<tool_call>{"name", "arguments"}</tool_call>`, `<function=name>…</function>` and
    `<invoke name="name">…</invoke>`, and as JSON if it names one of the offered `tools`. If the text holds no call, or
    an unreadable one, the response is unchanged.
    """
    found: dict[str, Any] = wire.to_plain(wire.get_fields(response) if isinstance(response, Mapping) else response)
    message = wire.read(wire.get_first_choice(found), "message")
    if not move_text_calls(message, tools):
        return found
    message["content"] = message["content"] or None
    message["tool_calls"] = [{"type": "function", **call} for call in message["tool_calls"]]
    if _API.stops.get(wire.read_text(wire.get_first_choice(found), "finish_reason")) == "end":
        found["choices"][0]["finish_reason"] = "tool_calls"
    return found


def results(results: Iterable[ToolResult]) -> list[ChatCompletionMessageParam]:
    """Return one `{"role": "tool", "tool_call_id", "content"}` for each result; this API accepts only text."""
    return [
        {"role": "tool", "tool_call_id": wire.require_call(result).id, "content": wire.format_result(result)}
        for result in results
    ]


class Stream(
    ChatStream["Event", "ChatCompletionMessageParam"],
    readers=Readers(calls, text, turn, stop, reason, state, _read_end),
):
    """A `Stream`: feed it each chunk. Until one has a `finish_reason`, every call has a `problem`."""

    __slots__ = ("_other", "_texts")

    def __init__(self) -> None:
        super().__init__()
        self._texts: defaultdict[str, list[str]] = defaultdict(list)
        self._other: dict[str, Any] = {}
        """The message's fields besides its texts and calls."""

    def _read_head(self, chunk: Mapping[str, Any]) -> None:
        super()._read_head(chunk)
        for choice in wire.read_list(chunk, "choices"):
            if wire.is_null(wire.read(choice, "delta"), "refusal"):
                self._other["refusal"] = None

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        for key, value in delta.items():
            if value is None:
                continue
            if key == "tool_calls":
                self._add_calls(value)
            elif type(value) is str and key not in LABELS:
                self._texts[key].append(value)
            else:
                merge_delta(self._other, {key: wire.to_plain(value)})

    def _message(self) -> dict[str, Any]:
        texts = {key: join_text(key, chunks) for key, chunks in self._texts.items()}
        return {"role": "assistant", "content": None, **merged_value(self._other), **texts}
