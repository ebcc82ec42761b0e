"""Mistral's chat API. See docs/providers/mistral.md."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict

from ferrule.providers import Strict
from ferrule.providers import _wire as wire
from ferrule.providers._api import Api, End, make_stop_readers, no_state, read_calls, read_function_call, resolve_choice
from ferrule.providers._chat import ChatStream, format_choice, write_calls_for_history
from ferrule.providers._plain import PLAIN_MISTRAL
from ferrule.providers._stream import Readers, continue_text, merged_value
from ferrule.providers._strict import MISTRAL
from ferrule.providers._write import Definitions
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, clean_text, to_jsonable
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
_DEFINITIONS = Definitions(name="mistral", plain=PLAIN_MISTRAL, strict=MISTRAL, in_function=True)
# docs.mistral.ai and github.com/mistralai/mistral-common: "Tool call id … must be a-z, A-Z, 0-9, with a length of 9."
_CALL_ID = re.compile(r"[a-zA-Z0-9]{9}")
_DIGITS_AND_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def tools(
    toolset: Iterable[Tool], *, strict: Strict = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[ToolTypedDict]:
    """Return `[{"type": "function", "function": {"name", "description", "parameters"}}]`, deferred tools last.

    Args:
        strict: Whether the API holds the model to the schema: for all tools, or for the tools of these names.
        cache: No effect; use `prompt_cache_key` in the request.
        deferred: The names of tools that came later. This API cannot defer: they come last, in this order, so that the
            part before them stays cached.

    Raises:
        DefinitionError: A tool's schema cannot be sent or strict, or a name belongs to no tool.
    """
    first, later = _DEFINITIONS.write(toolset, strict, deferred)
    return first + later


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> Choice:
    """Return `{"tool_choice": ...}`, with `"parallel_tool_calls": False` unless `parallel`.

    Raises:
        DefinitionError: There is `only`, but this API has no such option.
    """
    word, names = resolve_choice(_API, choice, parallel, only)
    fields: Any = word or {"type": "function", "function": {"name": names[0]}}
    return format_choice(fields, parallel)  # type: ignore[no-any-return]


def calls(response: Response) -> list[ToolCall]:
    """Return the calls in the first choice, in order, with unchanged ids."""
    return read_calls(_API, response, _list_calls(response), "id", read_function_call, _read_end, _list_call_ids)


def _list_calls(response: Response) -> list[Mapping[str, Any]]:
    messages = _list_messages(wire.get_first_choice(response))
    return [item for message in messages for item in wire.list_fields(wire.get_fields(message).get("tool_calls"))]


def _list_call_ids(response: Any, requested: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    """Return the unchanged ids. A derived id has the API's form already."""
    sent = wire.list_sent_ids(requested, key)
    if sent is not None:
        return sent
    found, came = wire.list_ids(response, requested, key), [wire.parse_id(item.get(key)) for item in requested]
    return [id if id == clean_text(own or "") else wire_id(id) for id, own in zip(found, came, strict=True)]


def wire_id(id: str) -> str:
    """Return `id` in the form of this API, nine letters or digits: an id that fits stays, another one becomes a hash of
    itself."""
    if _CALL_ID.fullmatch(id):
        return id
    number = int.from_bytes(hashlib.blake2s(clean_text(id).encode(), digest_size=16).digest(), "big")
    return "".join(_DIGITS_AND_LETTERS[number // 62**power % 62] for power in range(9))


def _list_messages(choice: Any) -> list[Any]:
    """Return the choice's message; several messages if built-in tools ran in between."""
    message = wire.get_fields(choice).get("message")
    return wire.read_list(choice, "messages") if message is None else [message]


def _read_end(response: Response) -> End:
    choice = wire.get_first_choice(response)
    return End(
        wire.read_text(choice, "finish_reason"),
        open=not choice or wire.is_null(choice, "finish_reason"),
        calls=bool(_list_calls(response)),
    )


def turn(response: Response) -> list[ChatCompletionRequestMessageTypedDict]:
    """Return the first choice's message, with the same ids as in `results`: all in nine letters or digits."""
    messages: list[Any] = wire.to_plain_list(_list_messages(wire.get_first_choice(response)))
    for message in messages:
        message["role"] = "assistant"
        message["tool_calls"] = wire.to_plain_list(message.get("tool_calls"))
        if not message["tool_calls"]:  # some servers send these as null or []
            del message["tool_calls"]
    requested = [item for message in messages for item in message.get("tool_calls", ())]
    for id, item in zip(_list_call_ids(response, requested, "id"), requested, strict=True):
        item["id"] = wire_id(id)
    write_calls_for_history(requested, arguments=_arguments_in_history)
    return [message for message in messages if message.get("content") or "tool_calls" in message]


def _arguments_in_history(given: Any) -> Any:
    return to_jsonable(given) if isinstance(given, Mapping) else wire.to_object_text(given)


def text(response: Response) -> str:
    """Return the model's text."""
    return "".join(
        wire.read_content_text(wire.get_fields(message).get("content"))
        for message in _list_messages(wire.get_first_choice(response))
    )


stop, reason = make_stop_readers(_API, _read_end, text)
state = no_state


def results(results: Iterable[ToolResult]) -> list[ChatCompletionRequestMessageTypedDict]:
    """Return one `{"role": "tool", "tool_call_id", "name", "content"}` for each result."""
    return [_result(result) for result in results]


def _result(result: ToolResult) -> Any:
    call = wire.require_call(result)
    message = {"role": "tool", "tool_call_id": wire_id(call.id), "name": wire.format_name(call.name)}
    return {**message, "content": wire.format_text_or_parts(result, _content)}


def _content(block: Block) -> dict[str, Any]:
    if isinstance(block, Media):
        kind, address = wire.get_media_type(block), wire.format_data_url(block)
        if address and kind in _API.images:
            return {"type": "image_url", "image_url": address}
        if address and kind == "application/pdf":
            named = {"document_name": clean_text(block.name)} if block.name else {}
            return {"type": "document_url", "document_url": address, **named}
    return {"type": "text", "text": wire.format_block(block)}


class Stream(
    ChatStream["Event", "ChatCompletionRequestMessageTypedDict"],
    readers=Readers(calls, text, turn, stop, reason, state, _read_end),
):
    """A `Stream`: feed it each event. Until one has a `finish_reason`, every call has a `problem`."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[dict[str, Any]] = []

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        content = delta.get("content")
        for part in content if isinstance(content, list) else [content]:
            self._add_part(part)
        self._add_calls(delta.get("tool_calls"))

    def _add_choice(self, choice: Mapping[str, Any]) -> None:
        super()._add_choice(choice)
        if self._finish_reason == "error":
            self._error = repr(self._finish_reason)

    def _add_part(self, part: Any) -> None:
        """Add a text or another part. Adjacent texts become one, and so do adjacent thoughts."""
        kind = "text" if isinstance(part, str) else wire.read(part, "type")
        text = part if isinstance(part, str) else wire.read(part, "text")
        if kind == "text" and isinstance(text, str):
            continue_text(self._parts, text, {"type": "text"})
        elif kind == "thinking":
            self._add_thinking(part)
        elif isinstance(chunk := wire.to_plain(part), dict):
            self._parts.append(chunk)

    def _add_thinking(self, chunk: Any) -> None:
        if not self._parts or self._parts[-1].get("type") != "thinking":
            self._parts.append({"type": "thinking", "thinking": []})
        thinking = self._parts[-1]
        for part in wire.read_list(chunk, "thinking"):
            text = wire.read(part, "text") if wire.read(part, "type", "text") == "text" else None
            if isinstance(text, str):
                continue_text(thinking["thinking"], text, {"type": "text"})
            elif isinstance(more := wire.to_plain(part), dict):
                thinking["thinking"].append(more)
        for key in ("signature", "closed"):
            found = wire.read(chunk, key)
            if found:  # without a value, the SDK has an object that is false
                thinking[key] = wire.to_plain(found)

    def _message(self) -> dict[str, Any]:
        content: Any = [part for part in merged_value(self._parts) if part != {"type": "text", "text": ""}]
        if all(part.get("type") == "text" and isinstance(part.get("text"), str) for part in content):
            content = "".join(part["text"] for part in content)
        return {"role": "assistant", "content": content}
