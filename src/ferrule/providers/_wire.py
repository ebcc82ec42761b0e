"""Shared code of the provider modules: reading SDK objects and plain dicts alike, ids, names, results as text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from math import isfinite
from typing import Any

from pydantic_core import from_json

from ferrule.arguments.repair import is_same_call
from ferrule.definition.tool import Tool, to_wire_name
from ferrule.errors import DefinitionError
from ferrule.providers import WHERE_POSSIBLE, Strict
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, Text, clean_text, to_json_text, to_jsonable
from ferrule.values.json_text import Malformed, parse_json, parse_json_object
from ferrule.values.result import ToolResult

# Reading


def read(value: Any, key: str, default: Any = None) -> Any:
    """Return the attribute or the key `key` of `value`; `default` if it is absent or null."""
    kind = type(value)
    if kind is dict or (kind is not str and isinstance(value, Mapping)):
        found = value.get(key)
    else:
        found = getattr(value, key, None)
    return default if found is None else found


def read_list(value: Any, key: str) -> list[Any]:
    """Return the list under `key`; an empty one if there is none."""
    found = read(value, key)
    return found if isinstance(found, list) else []


def read_text(value: Any, key: str) -> str:
    """Return the text under `key`; empty if it is absent. Any other value becomes JSON text."""
    found = read(value, key, "")
    return found if isinstance(found, str) else to_json_text(to_plain(found))


def read_content_text(content: Any) -> str:
    """Return the text of a message's content: a text, a part or a list of these."""
    parts = content if isinstance(content, list) else [content]
    return "".join(part if isinstance(part, str) else _text_of_part(get_fields(part)) for part in parts)


def _text_of_part(part: Mapping[str, Any]) -> str:
    return read_text(part, "text") if part.get("type", "text") == "text" else ""


_NO_FIELDS: dict[str, Any] = {}


def get_fields(value: Any) -> Mapping[str, Any]:
    """Return the fields of a dict or an SDK object by name, not copied; an empty mapping for other values. Do not
    change it.

    Reading attributes of a pydantic model one by one costs several times as much.
    """
    if type(value) is dict:
        return value
    try:
        extra = value.__pydantic_extra__
    except AttributeError:
        return value if isinstance(value, Mapping) else _NO_FIELDS
    return {**value.__dict__, **extra} if extra else value.__dict__


def list_sent_fields(value: Any) -> Set[str]:
    """Return the names of the fields with which a dict or an SDK object was made, null or not. It includes fields that
    the SDK does not know: objects made by the SDK from a server's answer do not have these in `model_fields_set`."""
    if type(value) is dict:
        return value.keys()
    named: Set[str] | None = getattr(value, "__pydantic_fields_set__", None)
    if named is None:
        return value.keys() if isinstance(value, Mapping) else frozenset()
    extra = value.__pydantic_extra__
    return named | extra.keys() if extra else named


def list_fields(value: Any) -> list[Mapping[str, Any]]:
    """Return the `get_fields` each record in a list: the same items as `to_plain_list`, without copying."""
    found: list[Mapping[str, Any]] = []
    for item in value if isinstance(value, list) else ():
        fields = item if type(item) is dict else get_fields(item)
        if fields is not _NO_FIELDS:
            found.append(fields)
    return found


def get_first_choice(response: Any) -> Any:
    """Return the first of a response's `choices`; an empty dict if there is none."""
    choices = get_fields(response).get("choices")
    return choices[0] if choices and isinstance(choices, list) else {}


def read_name(item: Mapping[str, Any]) -> str:
    """Return the name in a call, as text that a history can hold."""
    name = item.get("name")
    return name if type(name) is str and name.isascii() else clean_text(read_text(item, "name"))


DEEPEST = 200
"""The depth that pydantic-core reads; `json` writes about a thousand levels."""
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def format_name(name: str, pattern: re.Pattern[str] = NAME) -> str:
    """Return the name of a called tool for a history. An API refuses a history with an invalid tool name, and so every
    later request; models make such names up."""
    return name if pattern.fullmatch(name) else to_wire_name(name or "_")


def is_null(value: Any, key: str) -> bool:
    """Return whether `key` was sent as null, as at the beginning of a streamed message."""
    return key in list_sent_fields(value) and read(value, key) is None


def to_plain(value: Any, *, keep_bytes: bool = False) -> Any:
    """Return a copy of `value` as plain JSON data: exactly the data from the API, writable as UTF-8. Levels too deep
    for any parser are cut off."""
    return _copy_plain(value, DEEPEST, keep_bytes)


def _copy_plain(value: Any, levels: int, keep_bytes: bool) -> Any:
    kind = type(value)
    if kind is str or isinstance(value, str):
        return clean_text(value)
    if value is None or kind is bool:
        return value
    if kind is int or kind is float:
        return to_plain_number(value)
    if hasattr(value, "model_dump"):
        value = _dump_model(value)
    if not levels and isinstance(value, Mapping | list | tuple):
        return "…"
    if isinstance(value, Mapping):
        return {clean_text(str(key)): _copy_plain(item, levels - 1, keep_bytes) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copy_plain(item, levels - 1, keep_bytes) for item in value]
    return value if keep_bytes and isinstance(value, bytes) else to_jsonable(value)


_LARGEST_NUMBER = 10**300


def to_plain_number(value: float) -> Any:
    """Return `value`, or a text of it if JSON, or CPython's limit on digits, cannot write it."""
    if isinstance(value, int):
        return value if -_LARGEST_NUMBER < value < _LARGEST_NUMBER else to_jsonable(value)
    return value if isfinite(value) else to_jsonable(value)


def _dump_model(value: Any) -> Any:
    try:
        # `by_alias` for `async`, `exclude_unset` for the SDK's own defaults, no `warnings` for blocks that are newer
        # than the SDK, and "python" because JSON mode raises on lone surrogates, which `clean` then replaces.
        return value.model_dump(mode="python", exclude_unset=True, by_alias=True, warnings=False)
    except (ValueError, RecursionError):  # it nests without end
        return {name: getattr(value, name, None) for name in list_sent_fields(value)}


def to_plain_list(value: Any) -> list[dict[str, Any]]:
    """Return the dicts of a list of blocks or items."""
    items = to_plain(value)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


# Arguments


def read_arguments(value: Any) -> str | Mapping[str, Any] | None:
    """Return arguments for `ToolCall`, as the same object. Values that are no arguments become JSON text, and *decode*
    answers that."""
    kind = type(value)
    if kind is str or kind is dict or value is None or isinstance(value, str | Mapping):
        return value  # type: ignore[no-any-return]
    return to_json_text(value)


def parse_object_or_text(text: Any) -> Any:
    """Return the object in the JSON `text`; `text` itself if it is no valid object."""
    if not isinstance(text, str) or not text.rstrip().endswith("}"):  # as most texts of an unfinished stream
        return text
    try:
        found = parse_json(text)
    except Malformed:
        return text
    return found if isinstance(found, dict) else text


_LONGEST_REPAIRED = 1_000_000
"""Characters. The repairs of ten million take seconds, and *decode* has tried them once."""


def to_object_text(value: Any) -> str:
    """Return `value` if it is the text of a JSON object; otherwise the text of its `to_object`."""
    if isinstance(value, str) and isinstance(_from_json(value), dict):
        return value
    return to_json_text(to_object(value))


def to_object(value: Any) -> dict[str, Any]:
    """Return arguments for a history: a mapping, also from JSON text, with the text repairs of *decode*. It is empty if
    the text cannot be read."""
    if not isinstance(value, str):
        return dict(value) if isinstance(value, Mapping) else {}
    found = _from_json(value)
    if isinstance(found, dict):
        return found
    if len(value) > _LONGEST_REPAIRED:
        return {}
    try:
        return parse_json_object(value)[0]
    except Malformed:
        return {}


def _from_json(text: str) -> Any:
    # pydantic-core refuses the same texts as other parsers: lone surrogates, NaN, endless numbers, deep nesting.
    try:
        return from_json(text, allow_inf_nan=False)
    except (ValueError, TypeError):
        return None


def _hash_source(source: Any) -> str:
    """Return the hash in a derived call id. It is the same whenever the turn is read."""
    return hashlib.blake2s(clean_text(str(source)).encode(), digest_size=8).hexdigest()


def parse_id(value: Any) -> str | None:
    """Return `value` if it is an id. Some clients write `"null"` for none."""
    return value if isinstance(value, str) and value.strip() and value != "null" else None


def fill_ids(response: Any, items: Sequence[dict[str, Any]], key: str) -> None:
    """Fill in the missing ids of the calls `items` of `response`, under `key`, from `list_ids`."""
    for item, id in zip(items, list_ids(response, items, key), strict=True):
        item[key] = id


def list_ids(response: Any, items: Sequence[Any], key: str) -> list[str]:
    """Return the ids of the calls `items` of `response`, under `key`, for a history. A missing or repeated id is
    replaced by a derived one. It is the same in any other reading of that response, streamed or not."""
    found = list_sent_ids(items, key)
    return _ids_with_derived(response, items, key) if found is None else found


def list_sent_ids(items: Sequence[Any], key: str) -> list[str] | None:
    """Return the ids of the calls `items` if each has an id of its own that can go into a history unchanged; otherwise
    None."""
    found = []
    for item in items:
        id = item.get(key) if type(item) is dict else read(item, key)
        if type(id) is not str or not id.isidentifier() or id == "null":
            return None
        found.append(id)
    return found if len(found) < 2 or len(set(found)) == len(found) else None


def _ids_with_derived(response: Any, items: Sequence[Any], key: str) -> list[str]:
    ids: list[str | None] = []
    taken: set[str | None] = set()
    for item in items:
        found = parse_id(read(item, key))
        id = None if found is None else clean_text(found)
        ids.append(None if id in taken else id)
        taken.add(id)
    if None not in ids:
        return [id for id in ids if id is not None]
    source = read(response, "id") or read(response, "created") or read(response, "created_at") or _turn_text(items, key)
    turn = _hash_source(source)
    return [f"call_{turn}_{position}" if id is None else id for position, id in enumerate(ids)]


_TWICE = "The same call came before under the same id, and has its answer there. Nothing was run."


def mark_repeats(calls: list[ToolCall], items: Sequence[Any], key: str) -> list[ToolCall]:
    """Return the `calls` from `items`. A repeated call under the same id in the same turn is answered, and not run.

    A gateway that sends a call twice means it once. Different calls that share an id are two calls.
    """
    if len(calls) == 1:
        return calls
    first: dict[str, ToolCall] = {}
    for position, (call, item) in enumerate(zip(calls, items, strict=True)):
        id = parse_id(read(item, key))
        before = call if id is None else first.setdefault(id, call)
        if before is not call and call.problem is None and is_same_call(before, call.replace(id=before.id)):
            calls[position] = call.replace(problem=_TWICE)
    return calls


def _turn_text(items: Sequence[Any], key: str) -> str:
    """Return the turn itself as text, for a response with neither an id of its own nor a time stamp."""
    return to_json_text([_comparable({**item, key: parse_id(item.get(key))}) for item in to_plain_list(list(items))])


def _comparable(value: Any) -> Any:
    """Return the same data for a streamed value and a whole one: JSON in a text is parsed, and nulls are left out."""
    if isinstance(value, str):
        found = _from_json(value)
        return found if isinstance(found, dict) else value
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items() if item is not None}
    return [_comparable(item) for item in value] if isinstance(value, list) else value


# Tools


def list_tools(given: object) -> list[Tool]:
    """Return the tools of a toolset.

    Raises:
        DefinitionError: `given` is no toolset.
    """
    tools: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    if not isinstance(given, Iterable) or not all(isinstance(tool, Tool) for tool in tools):
        raise DefinitionError(f"tools(…) takes a toolset, such as runner.tools, not {given!r}")
    return tools


def separate_deferred_tools(tools: list[Tool], deferred: Collection[str]) -> tuple[list[Tool], list[Tool]]:
    """Return the tools offered from the start, and the deferred ones.

    The deferred ones have the order of `deferred` (of the toolset, if that is a set), so that adding one keeps a cached
    prefix.

    Raises:
        DefinitionError: `deferred` names a missing tool.
    """
    listed = _as_names(deferred)
    if not listed:
        return tools, []
    is_deferred = _is_among(listed, "deferred", tools)
    first = [tool for tool in tools if not is_deferred(tool)]
    later = [tool for tool in tools if is_deferred(tool)]
    if isinstance(deferred, Sequence):
        rank = {name: position for position, name in reversed(list(enumerate(listed)))}
        later.sort(key=lambda tool: min(rank.get(tool.name, len(rank)), rank.get(tool.wire_name, len(rank))))
    return first, later


def _as_names(names: Collection[str]) -> Collection[str]:
    return (names,) if isinstance(names, str) else names


def make_named_test(tools: Sequence[Tool], strict: Strict) -> Callable[[Tool], bool]:
    """Return a function that tells which of `tools` are to be strict.

    Raises:
        DefinitionError: `strict` names a missing tool.
    """
    if isinstance(strict, bool):
        return lambda tool: strict
    return _is_among(_as_names(strict), "strict", tools)


def _is_among(names: Collection[str], option: str, tools: Sequence[Tool]) -> Callable[[Tool], bool]:
    there = {name for tool in tools for name in (tool.name, tool.wire_name)}
    unknown = [name for name in names if name not in there]
    if unknown:
        other = f"; strict={WHERE_POSSIBLE!r} means all that can be" if option == "strict" else ""
        raise DefinitionError(
            f"{option}={unknown!r} names no tool of this toolset; it has {sorted(t.name for t in tools)}{other}"
        )
    listed = frozenset(names)
    return lambda tool: tool.name in listed or tool.wire_name in listed


# Results


def require_call(result: ToolResult) -> ToolCall:
    """Return the call that `result` answers, as the model sent it.

    Raises:
        DefinitionError: The result has no call.
    """
    if result.call is None:
        raise DefinitionError(f"{result!r} belongs to no call: pass results that a Runner gave")
    return result.call


def format_error(result: ToolResult) -> str:
    """Return the text for the model about a result that is not ok. It is never empty."""
    call = require_call(result)
    if result.status == "suspended":
        why = f" ({result.error})" if result.error else ""
        return f"the call {call.id!r} of {call.name!r} is suspended{why}: it waits for an answer; resume first"
    fields = "\n".join(shown for shown in map(format_block, result.content) if shown.strip())
    error = clean_text(result.error or "")
    if not error.strip():
        error = f"the call of {call.name!r} ended with the status {result.status!r} and no error text"
    return fields if error in fields else f"{error}\n{fields}".strip()


_FOUND = {"name": str, "description": str, "input_schema": dict}


def read_found_tools(result: ToolResult) -> list[dict[str, Any]]:
    """Return the definitions of the tools that a search tool's result found: `{"name", "description", "input_schema"}`.
    Return none if anything in it has another shape: then the tool uses the same key for other data."""
    found = to_jsonable(result.metadata.get("found")) if result.status == "ok" else None
    return found if isinstance(found, list) and all(map(_is_definition, found)) else []


def _is_definition(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != _FOUND.keys():
        return False
    return all(isinstance(value[key], kind) for key, kind in _FOUND.items()) and bool(NAME.fullmatch(value["name"]))


def format_marked_error(result: ToolResult) -> str:
    """Return the same for an API without a mark for errors: the text begins with "Error:"."""
    text = format_error(result)
    return text if text[:6].lower() == "error:" else f"Error: {text}"


def format_result(result: ToolResult) -> str:
    """Return a result for an API that accepts only text, and has no mark for errors."""
    if result.status != "ok":
        return format_marked_error(result)
    return "\n".join(map(format_block, result.content))


def format_text_or_parts(result: ToolResult, part: Callable[[Block], dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return a result for an API that accepts text or parts, and has no mark for errors. `part` writes each part."""
    if result.status != "ok":
        return format_marked_error(result)
    return join_parts([part(block) for block in result.content])


def join_parts(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return a result's parts as one text if all are texts; otherwise the parts, without empty texts."""
    if all("text" in part for part in parts):
        return "\n".join(part["text"] for part in parts)
    return [part for part in parts if part.get("text") != ""]


def drop_last_thoughts(turn: list[Any], is_thought: Callable[[Any], bool]) -> list[Any]:
    """Return a turn without the thoughts at its end, for an API that refuses a history with them: the turn was cut off
    there, or had no result."""
    while turn and is_thought(turn[-1]):
        turn = turn[:-1]
    return turn


def get_media_type(block: Media) -> str:
    """Return the type of `block` as in the APIs' lists: in lower case, without parameters (RFC 2045), and `image/jpeg`
    for `image/jpg`."""
    kind = block.mime_type.partition(";")[0].strip().lower()
    return "image/jpeg" if kind == "image/jpg" else kind


def format_block(block: Block) -> str:
    """Return a block as text: a text file's text, or a note that other media cannot be shown."""
    if isinstance(block, Text):
        return clean_text(block.text)
    kind = get_media_type(block)
    if block.data is not None and (kind.startswith("text/") or kind == "application/json"):
        return block.data.decode("utf-8", "replace")
    size = "" if block.data is None else f" of {len(block.data)} bytes"
    named = f" named {_shorten(block.name)!r}" if block.name else ""
    where = f", at {_shorten(block.uri)!r}" if block.uri else ""
    return clean_text(
        f"[{block.kind}{size}{named}, {block.mime_type}{where}: it cannot be shown in a tool result here]"
    )


_LONGEST_NAMED = 1_000
"""Characters of a name or of an address in a text."""


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_NAMED else f"{text[:_LONGEST_NAMED]}…"


def encode_base64(block: Media) -> str:
    """Return the bytes of `block` in base64; empty if it has none."""
    return base64.b64encode(block.data or b"").decode()


WEB = ("https://", "http://")


def get_fetch_address(block: Media, schemes: tuple[str, ...] = WEB) -> str | None:
    """Return the address from which the API is to fetch `block`, with the rights of the calling account. It is None
    unless a developer allowed it with `fetch` and the API supports the scheme. All other uses of `uri` are words."""
    return block.uri if block.fetch and block.uri and block.uri.startswith(schemes) else None


def format_data_url(block: Media) -> str | None:
    """Return the bytes of `block` in a URL, or the address from which the API is to fetch it."""
    return f"data:{get_media_type(block)};base64,{encode_base64(block)}" if block.data else get_fetch_address(block)


def parse_lossless_json(text: str) -> Any:
    """Return the object or list in the JSON `text` if nothing is lost: not a digit, not a key, not a space. Otherwise
    return `None`."""
    try:
        value = json.loads(text) if text[:1] in ("{", "[") else None
        return value if to_json_text(value) == text else None
    except (ValueError, RecursionError):
        return None


def to_non_blank(text: str) -> str:
    """Return `text`, or its JSON if it is blank: for an API that refuses blank text."""
    return text if text.strip() else json.dumps(text)
