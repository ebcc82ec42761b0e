"""Calls that a model wrote into its text, because the server did not parse them.

A text holds a call in these cases, after the model's thoughts and outside of code (a fenced block, a block indented by
four spaces, backticks):

1. a line begins with the opening of a call, in one of the forms of `_OPENINGS`;
2. or the whole text begins with the mark of a form, and no word follows it as in prose;
3. or there is an opening within a line, and the text ends with a bracket, as calls do. In quotation marks, in a
   quotation, in an item of a list and in a row of a table it is prose;
4. or the text ends with JSON, in a fence or from the beginning of a line, that names tools and has arguments for them.

An opening is a mark followed by the beginning of a call. A text with only the mark mentions it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

from ferrule.providers._wire import parse_object_or_text, read, read_content_text
from ferrule.values.json_text import Malformed, parse_json

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

Calls: TypeAlias = list[dict[str, Any]]
"""For each call `{"name", "arguments"}`."""

_CALL_NAME = r"[\w.:-]{1,128}"
_PIPE = "[|\N{FULLWIDTH VERTICAL LINE}]"
_JOIN = "[_\N{LOWER ONE EIGHTH BLOCK}]"
_TAG_PREFIX = rf"(?:[\w-]{{1,32}}[:_]|{_PIPE}{{1,2}}DSML{_PIPE}{{1,2}})?"  # `antml:`, `minimax:`, `seed:`; DeepSeek
_LIST = rf"{_TAG_PREFIX}(?:tool_calls?|tool_use|function_?calls?|TOOLCALL)"
_ONE = rf"{_TAG_PREFIX}(?:invoke|function|tool_call|tool_use)"
_BRACKET = r"\[TOOL_(?:CALLS|REQUEST)\]"  # Mistral, LM Studio; `functools[` is Phi's
# Openings with "<": the mark, and the beginning of a call that has to follow it.
_MARKS: dict[str, str] = {
    # Hermes, Qwen, GLM, MiniMax, Granite since 3.1, Jamba, Hunyuan, Nemotron, OLMo, Seed, LongCat, Claude
    f"{_LIST}>": (
        rf"(?:\s*(?:[{{\[]|<{_TAG_PREFIX}(?:invoke\s+name=|function=|arg_key>|name>))"
        rf"|\n?{_CALL_NAME}\s*(?:[{{(]|<(?:arg_key>|/)))"
    ),
    f"{_ONE} name=": rf"[\"']{_CALL_NAME}[\"']",
    "function=": rf"{_CALL_NAME}>",  # Llama, Qwen3-Coder
    # DeepSeek, Kimi and Step
    f"{_PIPE}tool{_JOIN}calls?(?:{_JOIN}section)?{_JOIN}begin{_PIPE}>": (
        rf"\s*(?:<{_PIPE}|{_CALL_NAME}\s*(?:<{_PIPE}|\n))"
    ),
    r"\|python_(?:tag|start)\|>": r"(?:[\w{\[#]|\n)",  # Llama: JSON, calls in Python, or a program
    # Granite 3.0, Phi, LFM, Gemma, Cohere, InternLM, Apertus
    r"(?:\|(?:tool_calls?(?:_start)?|START_ACTION|action_start|tools_prefix)\|?|start_function_call)>": (
        r"\s*(?:[{\[]|call:|<\|)"
    ),
}
# harmony (gpt-oss), unchanged and without the tokens that servers leave out; its marks alone do not mean a call
_CHANNEL = r"(?:<\|start\|>assistant\s*)?<\|channel\|>[a-z]{1,20}\s+to=\w|<\|start\|>assistant\s+to=\w"
_BARE_CHANNEL = (
    rf"(?:(?:assistant)?(?:commentary|analysis)\s*)?to=functions\.{_CALL_NAME}"
    r"\s*(?:<\|constrain\|>)?\s*(?:json|code)?\s*(?:<\|message\|>)?\s*\{"
)
_OPENINGS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("<", re.compile(f"<(?:{'|'.join(mark + call for mark, call in _MARKS.items())})")),
    ("[", re.compile(rf"{_BRACKET}\s*(?:\[?\s*\{{|{_CALL_NAME}\s*(?:[{{(]|\[(?:ARGS|CALL_ID)\]))|functools\[\s*\{{")),
    ("<|", re.compile(_CHANNEL)),
    ("to=functions.", re.compile(_BARE_CHANNEL)),
)
"""The openings of calls, each after a text that any of them contains."""
_ANY_MARK = rf"(?:<(?:{'|'.join(_MARKS)})|{_BRACKET})"
_MARK = re.compile(rf"\s*{_ANY_MARK}(?P<prose> \w)?")
_MARK_AT_END = re.compile(rf"(?:^|\n) {{0,3}}{_ANY_MARK}\Z")
_CLOSING = (">", "}", "]")
_QUOTES = "\"'`\u201c\u201d\u201e\u2018\u2019\u201a\u00ab\u00bb\u300c"  # the last are those of other languages
_IN_PROSE = re.compile(r"[ \t]*(?:[>|*+-]|\d{1,9}[.)])[ \t]")
_CODE_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
_INDENT = re.compile(r"[ \t]*")
_SPACE = re.compile(r"\s*")
_WRAPPER = re.compile(rf"<({_LIST})>")
_CALL = re.compile(
    rf"<(?P<tag>function(?==)|{_ONE}(?= name=))(?:=| name=)([\"']?)(?P<name>[\w.:-]+)\2>"
    r"(?P<inside>.*?)</(?P=tag)>",
    re.DOTALL,
)
_PARAMETER = re.compile(
    rf"\s*<{_TAG_PREFIX}parameter(?:=| name=)([\"']?)(?P<key>[^\"'>\n]+)\1(?: string=\"(?P<is_text>true|false)\")?>"
    rf"(?P<value>.*?)</{_TAG_PREFIX}parameter>",
    re.DOTALL,
)
_JSON_LINE = re.compile(r"^ {0,3}(?:[{\[]|```(?!`))", re.MULTILINE)
_MOST_STARTS = 200  # each costs up to a millisecond
_BEFORE_JSON = re.compile(r"(?:[\s;,]|```(?!`)[\w+.-]*)*+")
_BETWEEN_JSON = re.compile(r"(?:[\s;,]|```(?!`)[\w+.-]*|<\|\w{1,32}\|>)*+")
_NAME_KEYS = ("name", "tool", "tool_name", "function", "action")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "action_input")
_KEYS_BESIDE = frozenset({"type", "id", "call_id", "toolUseId", "status", "role", "content"})
_CALLS_KEY = re.compile("(?:tool|function)_?(?:calls?|use)?", re.IGNORECASE)
_DECODER = json.JSONDecoder()


def holds_text_call(text: str, tools: Iterable[Tool] = ()) -> bool:
    """Return whether the text holds a call. JSON is a call only if it names one of these tools."""
    return _first_opening(text) is not None or _json_calls(text, tools) is not None


def move_text_calls(message: Any, tools: Iterable[Tool] = ()) -> bool:
    """Move the calls at the end of the text of `message` into its `tool_calls`, and return whether that was done.

    It is not done if the message has calls, its text does not end with calls that begin a line, or one of them cannot
    be read whole.
    """
    text = read_content_text(read(message, "content"))
    if read(message, "tool_calls"):
        return False
    if (begin := _first_opening(text)) is None:
        found = _json_calls(text, tools)
    else:
        line = max(text.rfind("\n", 0, begin) + 1, _end_of_thoughts(text))
        found = None if text[line:begin].strip() else _read_calls_from(text, begin)
    if found is None:
        return False
    begin, calls = found
    message |= {"content": text[:begin].strip(), "tool_calls": [{"function": call} for call in calls]}
    return True


# The beginning of a call


def _first_opening(text: str) -> int | None:
    begin, text = _end_of_thoughts(text), text.rstrip()
    mark = _MARK.match(text, begin)
    ends_as_call = text.endswith(_CLOSING)
    if mark is not None and (ends_as_call or mark["prose"] is None):
        return _SPACE.match(text, begin).end()  # type: ignore[union-attr]  # it matches anywhere
    openings = [pattern.finditer(text, begin) for sign, pattern in _OPENINGS if sign in text]
    found = sorted(match.start() for match in chain.from_iterable(openings))
    if (at_end := _MARK_AT_END.search(text, max(begin, len(text) - 200))) is not None:
        found.append(_SPACE.match(text, at_end.start()).end())  # type: ignore[union-attr]
    line = seen = begin
    ticks = 0
    for at in _outside_fences(text, begin, found):
        if (end := text.rfind("\n", seen, at)) >= 0:
            line = seen = end + 1
            ticks = 0
        ticks += text.count("`", seen, at)  # from the last place on: a line may hold a hundred thousand
        seen = at
        if at == _INDENT.match(text, line, at).end():  # type: ignore[union-attr]  # it matches anywhere
            if at - line <= 3 and "\t" not in text[line:at]:
                return at
        elif ends_as_call and ticks % 2 == 0 and text[at - 1] not in _QUOTES and not _IN_PROSE.match(text, line):
            return at
    return None


def _end_of_thoughts(text: str) -> int:
    return len(text) - len(text.rpartition("</think>")[2])


def _outside_fences(text: str, begin: int, places: list[int]) -> Iterator[int]:
    """Yield those of the ascending `places` that are not in a fenced block."""
    fences = _CODE_FENCE.finditer(text, begin) if places else iter(())
    fence, opened = next(fences, None), ""
    for place in places:
        while fence is not None and fence.start() < place:
            marks, rest = fence[1], fence[2]
            if not opened:
                opened = "" if marks[0] == "`" and "`" in rest else marks  # that is code within a line
            elif marks.startswith(opened) and not rest.strip():
                opened = ""
            fence = next(fences, None)
        if not opened:
            yield place


# Reading calls


_Found: TypeAlias = tuple[int, Calls] | None
"""A place in the text, and calls."""


def _read_calls_from(text: str, begin: int, read_next: Callable[[str, int], _Found] | None = None) -> _Found:
    """Read the calls from `begin` to the end; None if there is anything else, or a call is incomplete."""
    calls, at = Calls(), begin
    while at < len(text):
        found = (read_next or _next_calls)(text, at)
        if found is None:
            return None
        at = _SPACE.match(text, found[0]).end()  # type: ignore[union-attr]
        calls += found[1]
    return (begin, calls) if calls else None


def _next_calls(text: str, at: int) -> _Found:
    wrapper = _WRAPPER.match(text, at)
    if wrapper is None:
        return _next_call(text, at)
    close = f"</{wrapper[1]}>"
    end = text.find(close, wrapper.end())
    inside = text[wrapper.end() : end].strip()
    if end < 0 or not inside:
        return None
    if inside[0] in "{[`":
        calls, read_to = _read_json(inside, 0, None)
        return (end + len(close), calls) if calls and read_to == len(inside) else None
    found = _read_calls_from(inside, 0, _next_call)
    return None if found is None else (end + len(close), found[1])


def _next_call(text: str, at: int) -> _Found:
    """Read one call. Its arguments are an object, or single texts, to be converted by the repairs."""
    if (call := _CALL.match(text, at)) is None:
        return None
    inside = call["inside"].strip()
    if not inside or inside.startswith("{"):
        return call.end(), [{"name": call["name"], "arguments": parse_object_or_text(inside or "{}")}]
    found: dict[str, Any] = {}
    at = 0
    while match := _PARAMETER.match(inside, at):
        if match["key"] in found:
            return None
        found[match["key"]] = match["value"].strip("\n")
        if match["is_text"] == "false":
            with suppress(Malformed):  # then the repairs convert the text
                found[match["key"]] = parse_json(match["value"])
        at = match.end()
    return None if inside[at:].strip() else (call.end(), [{"name": call["name"], "arguments": found}])


# JSON


def _json_calls(text: str, tools: Iterable[Tool]) -> _Found:
    """Read the JSON at the end of the text; None if it is no call of these tools."""
    begin = _end_of_thoughts(text)
    if not text.endswith(("```", "}", "]", "|>"), begin, len(text.rstrip(" \t\r\n;"))):
        return None
    names = {name for tool in tools for name in (tool.name, tool.wire_name)}
    text = text[begin:]
    read_to = 0
    starts = [match.start() for match in _JSON_LINE.finditer(text)]
    for start in islice(_outside_fences(text, 0, starts), _MOST_STARTS):
        if start >= read_to:
            calls, read_to = _read_json(text, start, names)
            if calls and read_to == len(text):
                return begin + start, calls
    return None


def _read_json(text: str, at: int, names: set[str] | None) -> tuple[Calls, int]:
    """Read adjacent calls in JSON. Return them, and the place after them."""
    calls = Calls()
    while True:
        between = _BETWEEN_JSON if calls else _BEFORE_JSON
        at = between.match(text, at).end()  # type: ignore[union-attr]  # it matches anywhere
        found = Calls()
        with suppress(ValueError, RecursionError):
            end = _DECODER.raw_decode(text, at)[1]
            found = _parse_calls(parse_json(text[at:end]), names)
        if not found:
            return calls, at
        calls += found
        at = end


def _parse_calls(value: Any, names: set[str] | None) -> Calls:
    """Return the calls in a JSON value; none if anything in it is no call.

    Args:
        names: The tools that may be called; then a call needs arguments, and no other keys. It is None
            if a mark shows that it is a call.
    """
    if isinstance(value, list):
        found = [_parse_calls(item, names) for item in value]
        return [call for calls in found for call in calls] if all(found) else []
    if not isinstance(value, dict):
        return []
    said = {key: item for key, item in value.items() if key not in _KEYS_BESIDE}
    if len(said) == 1 and isinstance(inside := next(iter(said.values())), dict | list):
        return _parse_calls(inside, names) if _CALLS_KEY.fullmatch(next(iter(said))) else []
    name = [said.pop(key) for key in _NAME_KEYS if key in said]
    given = [parse_object_or_text(said.pop(key)) for key in _ARGUMENT_KEYS if key in said]
    if len(name) != 1 or not isinstance(name[0], str) or len(given) > 1:
        return []
    if names is not None and (said or name[0] not in names or not given or not isinstance(given[0], dict)):
        return []
    return [{"name": name[0], "arguments": given[0] if given else {}}]
