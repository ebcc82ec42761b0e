"""The forms in which arguments, results and contexts are sent between a program and its workers."""

from __future__ import annotations

import json
import pickle
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from pydantic_core import PydanticSerializationError, to_json

from ferrule.errors import ToolError
from ferrule.values.call import ToolCall
from ferrule.values.content import Media, NotShowable, Text, clean_text, is_json, to_output
from ferrule.values.frozen import thaw
from ferrule.values.result import Suspending, ToolResult, set_pending

Transfer: TypeAlias = Literal["json", "pickle"]
Plain: TypeAlias = dict[str, Any]
"""A JSON object."""


def judged_text(call: ToolCall) -> str:
    """Return the judged arguments of the call as JSON text, with defaults and with bound and private values in clear.
    See docs/long-work.md#somewhere-else.

    The tool that `make_tool` makes validates this text again.

    Raises:
        ToolError: The arguments have no JSON form.
    """
    return to_json_bytes(thaw(call.arguments), "arguments").decode()


def pack(value: object, transfer: Transfer) -> bytes:
    """Return a handler's value in the form in which it is sent. See docs/long-work.md#somewhere-else.

    Raises:
        ToolError: The value has no such form.
    """
    subject = "what it returned"
    if issubclass(type(value), Suspending):
        raise ToolError(
            f"{subject} is {type(value).__name__}, which a process of its own cannot give: it ends with a value"
        )
    if transfer == "pickle":
        return to_pickle(value, subject)
    try:
        return to_json_bytes(_add_type_tag(value), subject)
    except NotShowable as error:
        raise ToolError(f"{subject} is {error}") from None


def unpack(data: bytes, transfer: Transfer) -> object:
    """Return the value that `pack` wrote. Take `transfer` from your own tool, never from the sender. See
    docs/long-work.md#somewhere-else.

    Raises:
        ToolError: The data cannot be read here.
    """
    try:
        return pickle.loads(data) if transfer == "pickle" else _remove_type_tag(json.loads(data))
    except Exception as error:
        raise ToolError(f"what it returned cannot be read back: {type(error).__name__}: {error}") from error


def to_pickle(value: object, subject: str) -> bytes:
    """Pickle the value. `subject` names it in the error.

    Raises:
        ToolError: The value cannot be pickled.
    """
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # any class may refuse in its own way
        raise ToolError(f"{subject} cannot be pickled: {type(error).__name__}: {error}") from error


def to_json_bytes(value: object, subject: str) -> bytes:
    """Write the value as JSON, in the form of a result's content. Pydantic's secrets stay hidden.

    Raises:
        ToolError: A part of the value has no JSON form. `subject` names the value in the error.
    """
    try:
        return to_json(value, inf_nan_mode="constants", bytes_mode="base64", fallback=_mapping_to_dict)
    except (PydanticSerializationError, UnicodeError, RecursionError) as error:
        try:  # json escapes lone surrogates, and UTF-8 cannot hold them
            return json.dumps(value, default=_mapping_to_dict).encode()
        except (TypeError, ValueError, RecursionError):
            reason = str(error).removeprefix("Error serializing to JSON: ").removeprefix("TypeError: ")
            advice = "give plain data, or choose isolation=Workers(…, transfer='pickle')"
            raise ToolError(f"{subject} cannot be sent as JSON: {clean_text(reason)[:300]}; {advice}") from None


def _mapping_to_dict(value: object) -> dict[object, object]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


# -- results -----------------------------------------------------------------------------------------------------------

_SENT_FIELDS = (
    *("output", "error", "metadata", "status", "executed", "retryable"),
    *("call", "tool_name", "repairs", "duration_ms"),
)


def _add_type_tag(value: object) -> Plain:
    """Return the value under a tag with its type: results, content blocks, bytes, and lists of these.

    JSON alone would lose those types.

    Raises:
        NotShowable: The value is an iterator, which may have no end, or is too large.
    """
    if isinstance(value, ToolResult):
        parts = {name: getattr(value, name) for name in _SENT_FIELDS}
        parts |= {"content": value._content, "pending": thaw(value.pending)}
        return {"result": {name: _add_type_tag(part) for name, part in parts.items()}}
    if isinstance(value, ToolCall):
        arguments = value.raw if isinstance(value.raw, str) else judged_text(value)  # the raw text may be no JSON
        return {"call": [value.id, value.name, arguments, value.parent]}
    if isinstance(value, Text):
        return {"text": value.text}
    if isinstance(value, Media):
        return {"media": [_add_type_tag(getattr(value, name)) for name in Media.__match_args__]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": b64encode(value).decode()}
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return {"texts": value}
    if isinstance(value, list | tuple) and any(isinstance(item, Text | Media) for item in value):
        return {"list": [_add_type_tag(item) for item in value]}
    shown = to_output(value)  # it draws a figure
    return {"value": shown} if is_json(shown) else _add_type_tag(shown)


def _remove_type_tag(tagged: Plain) -> Any:
    ((tag, value),) = tagged.items()
    match tag:
        case "result":
            parts = {name: _remove_type_tag(part) for name, part in value.items()}
            pending = parts.pop("pending", None)
            result = ToolResult(**parts)
            if pending is not None:
                set_pending(result, pending)
            return result
        case "call":
            return ToolCall(*value[:3], parent=value[3])
        case "texts":
            return tuple(value)
        case "text":
            return Text(value)
        case "media":
            return Media(*map(_remove_type_tag, value))
        case "bytes":
            return b64decode(value)
        case "list":
            return [_remove_type_tag(item) for item in value]
    return value


# -- contexts ----------------------------------------------------------------------------------------------------------


class ReceivedItems(dict[str, Any]):
    """The items of a mapping that could be sent. Asking for another item raises a `KeyError` with the reason.

    Attributes:
        missing: The reason for each item that could not be sent.
    """

    def __init__(self, items: Mapping[str, object], missing: Mapping[str, str]) -> None:
        super().__init__(items)
        self.missing = missing

    def __missing__(self, key: str) -> object:
        reason = self.missing.get(key)
        raise KeyError(key if reason is None else f"{key!r} did not come to the isolated process: {reason}")


def pack_items(items: Mapping[str, object], transfer: Transfer) -> Plain:
    """Return the items that can be sent, and the reason for each that cannot. See docs/long-work.md#somewhere-else.

    A context may hold objects for guards and middleware that no handler needs.
    """
    sent: Plain = {}
    missing: dict[str, str] = {}
    for key, value in items.items():
        try:
            if transfer == "pickle":
                sent[key] = b64encode(to_pickle(value, "it")).decode()
            else:
                sent[key] = json.loads(to_json_bytes(_reveal_secret(value), "it"))
        except ToolError as error:
            missing[key] = str(error)
    return {"sent": sent, "missing": missing}


def unpack_items(packed: Plain, transfer: Transfer) -> ReceivedItems:
    """Return the items that `pack_items` wrote. See docs/long-work.md#somewhere-else."""
    items = packed["sent"]
    if transfer == "pickle":
        items = {key: pickle.loads(b64decode(value)) for key, value in items.items()}
    return ReceivedItems(items, packed["missing"])


def _reveal_secret(value: object) -> object:
    """Return the value of a Pydantic secret, because Pydantic would write stars; else the value itself."""
    return getattr(value, "get_secret_value", lambda: value)()
