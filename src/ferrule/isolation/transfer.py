"""The forms in which arguments, results and what a context holds are sent between a program and its workers."""

from __future__ import annotations

import json
import pickle
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from pydantic_core import PydanticSerializationError, to_json

from ferrule.errors import ToolError
from ferrule.values.call import ToolCall
from ferrule.values.content import Media, NotShowable, Text, clean, plain
from ferrule.values.deferred import PUT_OFF
from ferrule.values.frozen import thaw
from ferrule.values.result import ToolResult, keep_pending

Transfer: TypeAlias = Literal["json", "pickle"]
Plain: TypeAlias = dict[str, Any]
"""A JSON object."""


def judged_text(call: ToolCall) -> str:
    """The arguments of a judged call, with their defaults, as text that `make_tool`'s own parameters validate again;
    with what is bound or private in clear.

    Raises:
        ToolError: where they have no JSON form.
    """
    return json_bytes(thaw(call.arguments), "arguments").decode()


def pack(value: object, transfer: Transfer) -> bytes:
    """What a handler returned, to be sent.

    Raises:
        ToolError: where it has no form in which it could be.
    """
    what = "what it returned"
    if type(value) in PUT_OFF:
        raise ToolError(
            f"{what} is {type(value).__name__}, which a process of its own cannot give: it ends with a value"
        )
    if transfer == "pickle":
        return pickled(value, what)
    try:
        return json_bytes(_tagged(value), what)
    except NotShowable as error:
        raise ToolError(f"{what} is {error}") from None


def unpack(data: bytes, transfer: Transfer) -> object:
    """What `pack` made. `transfer` is what the program asked for, never what a worker says.

    Raises:
        ToolError: where it cannot be read here.
    """
    try:
        return pickle.loads(data) if transfer == "pickle" else _untagged(json.loads(data))
    except Exception as error:
        raise ToolError(f"what it returned cannot be read back: {type(error).__name__}: {error}") from error


def pickled(value: object, what: str) -> bytes:
    """`value` pickled; `what` it is, for the text of the error.

    Raises:
        ToolError: where it cannot be.
    """
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # any class may refuse in its own way
        raise ToolError(f"{what} cannot be pickled: {type(error).__name__}: {error}") from error


def json_bytes(value: object, what: str) -> bytes:
    """`value` as JSON, written as a result's content is: secrets of Pydantic's stay veiled.

    Raises:
        ToolError: where something in it has no JSON form.
    """
    try:
        return to_json(value, inf_nan_mode="constants", bytes_mode="base64", fallback=_as_dict)
    except (PydanticSerializationError, UnicodeError, RecursionError) as error:
        try:  # json escapes what UTF-8 cannot hold, lone surrogates
            return json.dumps(value, default=_as_dict).encode()
        except (TypeError, ValueError, RecursionError):
            reason = str(error).removeprefix("Error serializing to JSON: ").removeprefix("TypeError: ")
            raise ToolError(
                f"{what} cannot be sent as JSON: {clean(reason)[:300]}; give plain data, or choose transfer='pickle'"
            ) from None


def _as_dict(value: object) -> dict[object, object]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


_OF_A_RESULT = (
    *("output", "error", "metadata", "status", "executed", "retryable"),
    *("call", "tool_name", "repairs", "duration_ms"),
)


# -- results ---------------------------------------------------------------------------------------------------------


def _tagged(value: object) -> Plain:
    """What JSON alone would not bring back as it was says what it is: results, blocks, bytes, and lists of these.

    Raises:
        NotShowable: for an iterator, which it may have no end to write, and for too much.
    """
    if isinstance(value, ToolResult):
        parts = {name: getattr(value, name) for name in _OF_A_RESULT}
        parts |= {"content": value._content, "pending": thaw(value.pending)}
        return {"result": {name: _tagged(part) for name, part in parts.items()}}
    if isinstance(value, ToolCall):
        sent = value.raw if isinstance(value.raw, str) else judged_text(value)  # which may be no JSON
        return {"call": [value.id, value.name, sent, value.parent]}
    if isinstance(value, Text):
        return {"text": value.text}
    if isinstance(value, Media):
        return {"media": [_tagged(getattr(value, name)) for name in Media.__match_args__]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": b64encode(value).decode()}
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return {"texts": value}
    if isinstance(value, list | tuple) and any(isinstance(item, Text | Media) for item in value):
        return {"list": [_tagged(item) for item in value]}
    return {"value": plain(value, finite=False)}


def _untagged(plain: Plain) -> Any:
    ((kind, held),) = plain.items()
    match kind:
        case "result":
            parts = {name: _untagged(part) for name, part in held.items()}
            pending = parts.pop("pending", None)
            result = ToolResult(**parts)
            if pending is not None:
                keep_pending(result, pending)
            return result
        case "call":
            return ToolCall(*held[:3], parent=held[3])
        case "texts":
            return tuple(held)
        case "text":
            return Text(held)
        case "media":
            return Media(*map(_untagged, held))
        case "bytes":
            return b64decode(held)
        case "list":
            return [_untagged(item) for item in held]
    return held


# -- what a context holds --------------------------------------------------------------------------------------------


class SentMapping(dict[str, Any]):
    """A mapping of the program's without the items that could not be sent: to ask for one says why."""

    def __init__(self, items: Mapping[str, object], missing: Mapping[str, str]) -> None:
        super().__init__(items)
        self.missing = missing

    def __missing__(self, key: str) -> object:
        why = self.missing.get(key)
        raise KeyError(key if why is None else f"{key!r} did not come to the isolated process: {why}")


def pack_items(items: Mapping[str, object], transfer: Transfer) -> Plain:
    """A mapping of which each item is sent by itself: what cannot be stays behind with the reason.

    Guards and middleware keep objects of theirs there that no handler wants.
    """
    sent: Plain = {}
    missing: dict[str, str] = {}
    for key, value in items.items():
        try:
            if transfer == "pickle":
                sent[key] = b64encode(pickled(value, "it")).decode()
            else:
                sent[key] = json.loads(json_bytes(_secret_value(value), "it"))
        except ToolError as error:
            missing[key] = str(error)
    return {"sent": sent, "missing": missing}


def unpack_items(packed: Plain, transfer: Transfer) -> SentMapping:
    """What `pack_items` made."""
    sent = packed["sent"]
    if transfer == "pickle":
        sent = {key: pickle.loads(b64decode(value)) for key, value in sent.items()}
    return SentMapping(sent, packed["missing"])


def _secret_value(value: object) -> object:
    """What a Pydantic secret holds: the handler needs it, and Pydantic would write stars."""
    return getattr(value, "get_secret_value", lambda: value)()
