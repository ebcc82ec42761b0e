"""What the provider modules share: reading SDK objects and plain dicts alike, ids, names, results as text."""

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
    """The attribute or the key `key` of `value`; `default` where it is absent or null."""
    kind = type(value)
    if kind is dict or (kind is not str and isinstance(value, Mapping)):
        found = value.get(key)
    else:
        found = getattr(value, key, None)
    return default if found is None else found


def read_list(value: Any, key: str) -> list[Any]:
    """The list under `key`; an empty one where there is none."""
    found = read(value, key)
    return found if isinstance(found, list) else []


def read_text(value: Any, key: str) -> str:
    """The text under `key`; empty where it is absent, and never anything but text."""
    found = read(value, key, "")
    return found if isinstance(found, str) else to_json_text(plain(found))


def text_of(content: Any) -> str:
    """The text of a message's content, which is a text, a part or a list of these."""
    parts = content if isinstance(content, list) else [content]
    return "".join(part if isinstance(part, str) else _text_of_part(fields_of(part)) for part in parts)


def _text_of_part(part: Mapping[str, Any]) -> str:
    return read_text(part, "text") if part.get("type", "text") == "text" else ""


_NO_FIELDS: dict[str, Any] = {}


def fields_of(value: Any) -> Mapping[str, Any]:
    """What a dict or an SDK object says by name, as it is and not copied; nothing for what is neither.

    Reading attributes of a pydantic model one by one costs several times as much. Not to be changed.
    """
    if type(value) is dict:
        return value
    try:
        extra = value.__pydantic_extra__
    except AttributeError:
        return value if isinstance(value, Mapping) else _NO_FIELDS
    return {**value.__dict__, **extra} if extra else value.__dict__


def sent_names(value: Any) -> Set[str]:
    """The names of what a dict or an SDK object was made with, null or not, and also those that the SDK does not know:
    it makes objects of what a server sent without a word on these in `model_fields_set`."""
    if type(value) is dict:
        return value.keys()
    named: Set[str] | None = getattr(value, "__pydantic_fields_set__", None)
    if named is None:
        return value.keys() if isinstance(value, Mapping) else frozenset()
    extra = value.__pydantic_extra__
    return named | extra.keys() if extra else named


def fields_of_each(value: Any) -> list[Mapping[str, Any]]:
    """The `fields_of` each item of a list that is a record: what `plain_list` would copy."""
    found: list[Mapping[str, Any]] = []
    for item in value if isinstance(value, list) else ():
        fields = item if type(item) is dict else fields_of(item)
        if fields is not _NO_FIELDS:
            found.append(fields)
    return found


def first_choice(response: Any) -> Any:
    """The first of a response's `choices`; an empty dict where there is none."""
    choices = fields_of(response).get("choices")
    return choices[0] if choices and isinstance(choices, list) else {}


def name_of(item: Mapping[str, Any]) -> str:
    """The name in a call, as text that a history can hold."""
    name = item.get("name")
    return name if type(name) is str and name.isascii() else clean_text(read_text(item, "name"))


DEEPEST = 200
"""As deep as pydantic-core reads; `json` writes about a thousand levels."""
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def name_in_history(name: str, pattern: re.Pattern[str] = NAME) -> str:
    """The name of a called tool in a history. An API refuses a history with a name that it does not take for tools,
    and so every later request; models make such names up."""
    return name if pattern.fullmatch(name) else to_wire_name(name or "_")


def is_null(value: Any, key: str) -> bool:
    """Whether `key` was sent as null: what a stream's unfinished message begins with."""
    return key in sent_names(value) and read(value, key) is None


def plain(value: Any, *, keep_bytes: bool = False) -> Any:
    """A copy of `value` as plain JSON data: what an API sent, no more and no less, and writable as UTF-8. What is
    nested deeper than any parser reads is cut off there."""
    return _plain(value, DEEPEST, keep_bytes)


def _plain(value: Any, levels: int, keep_bytes: bool) -> Any:
    kind = type(value)
    if kind is str or isinstance(value, str):
        return clean_text(value)
    if value is None or kind is bool:
        return value
    if kind is int or kind is float:
        return plain_number(value)
    if hasattr(value, "model_dump"):
        value = _dumped(value)
    if not levels and isinstance(value, Mapping | list | tuple):
        return "…"
    if isinstance(value, Mapping):
        return {clean_text(str(key)): _plain(item, levels - 1, keep_bytes) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, levels - 1, keep_bytes) for item in value]
    return value if keep_bytes and isinstance(value, bytes) else to_jsonable(value)


_LARGEST_NUMBER = 10**300


def plain_number(value: float) -> Any:
    """`value`, or a text of it where JSON, or CPython's limit on digits, has no way to write it."""
    if isinstance(value, int):
        return value if -_LARGEST_NUMBER < value < _LARGEST_NUMBER else to_jsonable(value)
    return value if isfinite(value) else to_jsonable(value)


def _dumped(value: Any) -> Any:
    try:
        # `by_alias` for `async`, `exclude_unset` for the SDK's own defaults, no `warnings` for blocks that are newer
        # than the SDK, and "python" because JSON mode raises on lone surrogates, which `clean` then replaces.
        return value.model_dump(mode="python", exclude_unset=True, by_alias=True, warnings=False)
    except (ValueError, RecursionError):  # it nests without end
        return {name: getattr(value, name, None) for name in sent_names(value)}


def plain_list(value: Any) -> list[dict[str, Any]]:
    """The dicts of a list of blocks or items."""
    items = plain(value)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


# Arguments


def arguments(value: Any) -> str | Mapping[str, Any] | None:
    """Arguments as `ToolCall` takes them, the very object that came; anything else goes as its JSON text, which
    *decode* then answers."""
    kind = type(value)
    if kind is str or kind is dict or value is None or isinstance(value, str | Mapping):
        return value  # type: ignore[no-any-return]
    return to_json_text(value)


def object_or_text(text: Any) -> Any:
    """The object that `text` is the JSON of; `text` itself where it is none, or none that can be trusted."""
    if not isinstance(text, str) or not text.rstrip().endswith("}"):  # most that a stream has not ended
        return text
    try:
        found = parse_json(text)
    except Malformed:
        return text
    return found if isinstance(found, dict) else text


_LONGEST_REPAIRED = 1_000_000
"""Characters. The repairs of ten million take seconds, and *decode* has tried them once."""


def object_text(value: Any) -> str:
    """`value` where it is the text of a JSON object; else the text of what `object_value` reads."""
    if isinstance(value, str) and isinstance(_from_json(value), dict):
        return value
    return to_json_text(object_value(value))


def object_value(value: Any) -> dict[str, Any]:
    """Arguments for a history: a mapping, also as JSON text, with the repairs of the text that *decode* makes. Empty
    where nothing can be read."""
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
    # pydantic-core refuses what other parsers choke on too: lone surrogates, NaN, endless numbers, deep nesting.
    try:
        return from_json(text, allow_inf_nan=False)
    except (ValueError, TypeError):
        return None


def _hash_of(source: Any) -> str:
    """What an id for a call is made of that has none: the same whenever its turn is read."""
    return hashlib.blake2s(clean_text(str(source)).encode(), digest_size=8).hexdigest()


def known_id(value: Any) -> str | None:
    """`value` where it is an id; `"null"` is what some clients write for none."""
    return value if isinstance(value, str) and value.strip() and value != "null" else None


def fill_ids(response: Any, items: Sequence[dict[str, Any]], key: str) -> None:
    """Fills in the ids that the calls `items` of `response` lack, under `key`: those that `ids_of` gives."""
    for item, id in zip(items, ids_of(response, items, key), strict=True):
        item[key] = id


def ids_of(response: Any, items: Sequence[Any], key: str) -> list[str]:
    """The ids of the calls `items` of `response`, under `key`, as they are in a history: where one is missing, or was
    another call's, the same as in any other reading of that response, streamed or not."""
    found = ids_as_sent(items, key)
    return _ids_with_derived(response, items, key) if found is None else found


def ids_as_sent(items: Sequence[Any], key: str) -> list[str] | None:
    """The ids of the calls `items`, where each came with one of its own that goes into a history as it is."""
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
        found = known_id(read(item, key))
        id = None if found is None else clean_text(found)
        ids.append(None if id in taken else id)
        taken.add(id)
    if None not in ids:
        return [id for id in ids if id is not None]
    source = read(response, "id") or read(response, "created") or read(response, "created_at") or _turn_text(items, key)
    turn = _hash_of(source)
    return [f"call_{turn}_{position}" if id is None else id for position, id in enumerate(ids)]


_TWICE = "The same call came before under the same id, and has its answer there. Nothing was run."


def mark_repeats(calls: list[ToolCall], items: Sequence[Any], key: str) -> list[ToolCall]:
    """`calls`, read from `items`; one that came before under the same id in the same turn is answered, and not run.

    A gateway that sends a call twice does not mean it twice; two that only share an id are two.
    """
    if len(calls) == 1:
        return calls
    first: dict[str, ToolCall] = {}
    for position, (call, item) in enumerate(zip(calls, items, strict=True)):
        id = known_id(read(item, key))
        before = call if id is None else first.setdefault(id, call)
        if before is not call and call.problem is None and is_same_call(before, call.replace(id=before.id)):
            calls[position] = call.replace(problem=_TWICE)
    return calls


def _turn_text(items: Sequence[Any], key: str) -> str:
    """The turn itself, where a response has neither an id of its own nor a time stamp."""
    return to_json_text([_comparable({**item, key: known_id(item.get(key))}) for item in plain_list(list(items))])


def _comparable(value: Any) -> Any:
    """What `value` says, whether it was streamed or not: JSON in a text is read, and what is null is left out."""
    if isinstance(value, str):
        found = _from_json(value)
        return found if isinstance(found, dict) else value
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items() if item is not None}
    return [_comparable(item) for item in value] if isinstance(value, list) else value


# Tools


def list_of_tools(given: object) -> list[Tool]:
    """The tools of a toolset.

    Raises:
        DefinitionError: where it is none.
    """
    tools: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    if not isinstance(given, Iterable) or not all(isinstance(tool, Tool) for tool in tools):
        raise DefinitionError(f"tools(…) takes a toolset, such as runner.tools, not {given!r}")
    return tools


def split_deferred(tools: Iterable[Tool], deferred: Collection[str]) -> tuple[list[Tool], list[Tool]]:
    """The tools that are there from the start, and the deferred ones behind them.

    These stand as `deferred` lists them (a set: as the toolset does), so that adding one keeps a cached prefix.

    Raises:
        DefinitionError: where `deferred` names a tool that is not there.
    """
    tools, listed = list_of_tools(tools), _as_names(deferred)
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


def strict_wanted(tools: Sequence[Tool], strict: Strict) -> Callable[[Tool], bool]:
    """Which of `tools` are to be strict.

    Raises:
        DefinitionError: where `strict` names a tool that is not there.
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


def answered_call(result: ToolResult) -> ToolCall:
    """The call that `result` answers, as the model sent it.

    Raises:
        DefinitionError: where it has none.
    """
    if result.call is None:
        raise DefinitionError(f"{result!r} belongs to no call: pass results that a Runner gave")
    return result.call


def error_text(result: ToolResult) -> str:
    """What the model is told of a result that is not ok: text only, and never empty."""
    call = answered_call(result)
    if result.status == "suspended":
        why = f" ({result.error})" if result.error else ""
        return f"the call {call.id!r} of {call.name!r} is suspended{why}: it waits for an answer; resume first"
    fields = "\n".join(shown for shown in map(block_text, result.content) if shown.strip())
    error = clean_text(result.error or "")
    if not error.strip():
        error = f"the call of {call.name!r} ended with the status {result.status!r} and no further word"
    return fields if error in fields else f"{error}\n{fields}".strip()


_FOUND = {"name": str, "description": str, "input_schema": dict}


def found_in(result: ToolResult) -> list[dict[str, Any]]:
    """The definitions of the tools that a search tool's result found: `{"name", "description", "input_schema"}`. None
    where anything in it has another shape: then it is something else that a tool keeps under the same name."""
    found = to_jsonable(result.metadata.get("found")) if result.status == "ok" else None
    return found if isinstance(found, list) and all(map(_is_definition, found)) else []


def _is_definition(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != _FOUND.keys():
        return False
    return all(isinstance(value[key], kind) for key, kind in _FOUND.items()) and bool(NAME.fullmatch(value["name"]))


def marked_error_text(result: ToolResult) -> str:
    """The same for an API that has no mark for an error: the text says that it is one."""
    text = error_text(result)
    return text if text[:6].lower() == "error:" else f"Error: {text}"


def result_text(result: ToolResult) -> str:
    """A result for an API that takes text alone, and has no mark for an error."""
    if result.status != "ok":
        return marked_error_text(result)
    return "\n".join(map(block_text, result.content))


def text_or_parts_of(result: ToolResult, part: Callable[[Block], dict[str, Any]]) -> str | list[dict[str, Any]]:
    """A result for an API that takes text or parts, and has no mark for an error; each part as `part` writes it."""
    if result.status != "ok":
        return marked_error_text(result)
    return text_or_parts([part(block) for block in result.content])


def text_or_parts(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """What a result's parts say as one text, where all are texts; else the parts, without empty texts."""
    if all("text" in part for part in parts):
        return "\n".join(part["text"] for part in parts)
    return [part for part in parts if part.get("text") != ""]


def without_last_thoughts(turn: list[Any], is_thought: Callable[[Any], bool]) -> list[Any]:
    """A turn without the thoughts that nothing follows, for an API that refuses a history with them: the turn was cut
    off there, or came to nothing."""
    while turn and is_thought(turn[-1]):
        turn = turn[:-1]
    return turn


def media_type(block: Media) -> str:
    """The type of `block` as APIs list theirs: in lower case, without parameters (RFC 2045), a JPEG by its name."""
    kind = block.mime_type.partition(";")[0].strip().lower()
    return "image/jpeg" if kind == "image/jpg" else kind


def block_text(block: Block) -> str:
    """A block as text: a text file's text, and of other media that they are not shown."""
    if isinstance(block, Text):
        return clean_text(block.text)
    kind = media_type(block)
    if block.data is not None and (kind.startswith("text/") or kind == "application/json"):
        return block.data.decode("utf-8", "replace")
    size = "" if block.data is None else f" of {len(block.data)} bytes"
    named = f" named {_at_most(block.name)!r}" if block.name else ""
    where = f", at {_at_most(block.uri)!r}" if block.uri else ""
    return clean_text(
        f"[{block.kind}{size}{named}, {block.mime_type}{where}: it cannot be shown in a tool result here]"
    )


_LONGEST_NAMED = 1_000
"""Characters of a name or of an address in words."""


def _at_most(text: str) -> str:
    return text if len(text) <= _LONGEST_NAMED else f"{text[:_LONGEST_NAMED]}…"


def base64_text(block: Media) -> str:
    """The bytes of `block` in base64; empty where it has none."""
    return base64.b64encode(block.data or b"").decode()


WEB = ("https://", "http://")


def fetched_address(block: Media, schemes: tuple[str, ...] = WEB) -> str | None:
    """Where the API is to fetch `block` itself, with the rights of the account that it is asked by: only where a
    developer said so, and with a scheme that it takes. All other uses of `uri` are words."""
    return block.uri if block.fetch and block.uri and block.uri.startswith(schemes) else None


def data_url(block: Media) -> str | None:
    """The bytes of `block` in a URL, or where the API is to fetch it itself."""
    return f"data:{media_type(block)};base64,{base64_text(block)}" if block.data else fetched_address(block)


def lossless_json(text: str) -> Any:
    """The object or the list that `text` is the JSON of, where nothing is lost: not a digit, not a key, not a space;
    else `None`."""
    try:
        value = json.loads(text) if text[:1] in ("{", "[") else None
        return value if to_json_text(value) == text else None
    except (ValueError, RecursionError):
        return None


def non_blank(text: str) -> str:
    """`text`, or its JSON where it is blank: for an API that refuses blank text."""
    return text if text.strip() else json.dumps(text)
