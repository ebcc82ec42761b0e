"""Find the texts in a query, which may be messages in the format of any API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ferrule.selection.matching import Query
from ferrule.values.content import clean_text


class Conversation(NamedTuple):
    """The last texts of a conversation. A missing text is empty, and a long one has no middle."""

    user: str
    """The user's last text, of at most 4,000 characters; the other texts have at most 2,000."""
    user_before: str
    """The user's text before that."""
    assistant: str
    """The model's last text, with the plan that Cohere's models write beside their calls; no thoughts, no calls."""
    result: str
    """The result of the last call: the text blocks, and the strings in structured values."""


def read_conversation(query: Query) -> Conversation:
    """Return the last text of each side, in messages of any API that Ferrule knows. Other values are skipped."""
    conversation = Conversation("", "", "", "")
    for sender, value in _newest_first(query):
        place = "user_before" if sender == "user" and conversation.user else sender
        if not getattr(conversation, place) and (text := _join_strings(value, _LONGEST[place])):
            conversation = conversation._replace(**{place: text})
            if all(conversation):
                break
    return conversation


_LONGEST = {"user": 4_000, "user_before": 2_000, "assistant": 2_000, "result": 2_000}
_MOST_MESSAGES, _MOST_NODES = 10_000, 1_000
_ROLES = {
    "user": "user",
    "assistant": "assistant",
    "model": "assistant",
    "tool": "result",
    "function": "result",
    # The types that Gemini's Interactions and OpenAI's Responses use in place of a role.
    "user_input": "user",
    "model_output": "assistant",
    "function_result": "result",
    "function_call_output": "result",
    "custom_tool_call_output": "result",
}
_RESULT_FIELDS = ("content", "output", "result", "response")
_RESULT_PARTS = ("toolResult", "functionResponse", "function_response")
_TEXT_PARTS = (None, "text", "input_text", "output_text")
# Base64, addresses and words of the API, in the blocks of a result; `tool_name` is from Anthropic's references.
_NO_TEXT = frozenset({"data", "bytes", "type", "mime_type", "media_type", "uri", "url", "image_url", "id", "tool_name"})


def _newest_first(query: Any) -> Iterator[tuple[str, Any]]:
    """Yield the sender and the content of each message: a text, or the texts and other values in it."""
    if isinstance(query, str):
        yield "user", query
        return
    messages = [query] if isinstance(query, Mapping) else query
    if not isinstance(messages, Sequence) or isinstance(messages, bytes | bytearray):
        return
    for message in islice(reversed(messages), _MOST_MESSAGES):
        if isinstance(message, str):
            yield "user", message
        else:
            yield from _read_message(_get_fields(message))


def _read_message(message: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    role = message.get("role") or message.get("type") or ("user" if "parts" in message else None)
    sender = _ROLES.get(role) if isinstance(role, str) else None
    if sender == "result":
        yield "result", _get_first(message, _RESULT_FIELDS)
    elif sender is not None:
        yield from _read_parts(sender, message)


def _read_parts(sender: str, message: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the content of a message with parts.

    Some APIs send results in a user message; then the user's own text in it is newer than they are.
    """
    content = _get_first(message, ("content", "parts"))
    plan = [message["tool_plan"]] if isinstance(message.get("tool_plan"), str) else []
    texts: list[str] = []
    results: list[Any] = []
    for part in _list_parts([content] if isinstance(content, str | Mapping) else content):
        fields = {"text": part} if isinstance(part, str) else _get_fields(part)
        kind = fields.get("type")
        if isinstance(kind, str) and kind.endswith("tool_result"):
            results.append(_get_first(fields, _RESULT_FIELDS))
        elif (result := _get_first(fields, _RESULT_PARTS)) is not None:
            results.append(_get_first(_get_fields(result), _RESULT_FIELDS))
        elif kind in _TEXT_PARTS and isinstance(fields.get("text"), str) and not fields.get("thought"):
            texts.append(fields["text"])
    yield sender, plan + texts
    for result in reversed(results):
        yield "result", result


def _get_first(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _list_parts(value: Any) -> Sequence[Any]:
    return value[:_MOST_NODES] if isinstance(value, list | tuple) else ()


def _get_fields(value: Any) -> Mapping[str, Any]:
    """Return the fields of a dict or of an SDK's object."""
    if isinstance(value, Mapping):
        return value
    return getattr(value, "__dict__", {}) if hasattr(type(value), "model_fields") else {}


def _join_strings(value: Any, most: int) -> str:
    """Return the strings in `value`, the outer ones of nested values in their order. A long text loses its middle."""
    pieces: list[str] = []
    waiting = [value]
    for _ in range(_MOST_NODES):
        if not waiting:
            break
        item = waiting.pop()
        if isinstance(item, str):
            pieces.append(_cut_middle(item.strip(), most))
        elif isinstance(item, list | tuple):
            waiting += reversed(item[:_MOST_NODES])
        elif fields := _get_fields(item):
            waiting += reversed(
                [found for name, found in islice(fields.items(), _MOST_NODES) if _may_be_text(name, found)]
            )
    return clean_text(_cut_middle("\n".join(filter(None, pieces)), most))


def _may_be_text(name: Any, value: Any) -> bool:
    return name not in _NO_TEXT or not isinstance(value, str)


def _cut_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]} … {text[-half:]}"
