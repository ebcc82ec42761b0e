"""Calls that a model wrote into its text, because nobody between it and here has read them.

A text holds a call where, behind the model's thoughts and outside of code (a fenced block, a block indented by four
spaces, backticks),

1. a line begins with the opening of a call, in one of the forms of `_OPENINGS`;
2. or the whole text begins with the mark of a form, and no word follows it as in prose;
3. or an opening stands within a line, and the text ends with a bracket, as calls do. In quotation marks, in a
   quotation, in an item of a list and in a row of a table it is prose;
4. or the text ends with JSON, in a fence or as all of the text, that names one of the tools and has arguments for it.

An opening is a mark with the begin of a call behind it. A text that only names the mark speaks of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from ferrule.providers._read import object_or_text, read, text_of
from ferrule.values.json_text import Malformed, loads

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

Calls: TypeAlias = list[dict[str, Any]]
"""Of each call `{"name", "arguments"}`."""

_THOUGHTS_END = "</think>"
_CALL_NAME = r"[\w.:-]{1,128}"
_NAMESPACE = r"(?:[\w-]{1,32}:)?"  # `antml:`, `minimax:`, `seed:`
_LIST = r"(?:[\w-]{1,32}[:_])?(?:tool_calls?|function_?calls?|TOOLCALL)"
_PIPE = "[|\N{FULLWIDTH VERTICAL LINE}]"
_JOIN = "[_\N{LOWER ONE EIGHTH BLOCK}]"
# What begins with "<": the mark, and what of a call has to stand behind it.
_MARKS: dict[str, str] = {
    # Hermes, Qwen, GLM, MiniMax, Granite since 3.1, Jamba, Hunyuan, Nemotron, OLMo, Seed, LongCat, Claude
    f"{_LIST}>": (
        rf"(?:\s*(?:[{{\[]|<{_NAMESPACE}(?:invoke\s+name=|function=|arg_key>|name>))"
        rf"|\n?{_CALL_NAME}\s*(?:[{{(]|<(?:arg_key>|/)))"
    ),
    f"{_NAMESPACE}invoke name=": rf"[\"']{_CALL_NAME}[\"']",
    "function=": rf"{_CALL_NAME}>",  # Llama, Qwen3-Coder
    # DeepSeek, which has also written these as MiniMax does, Kimi and Step
    f"{_PIPE}tool{_JOIN}calls?(?:{_JOIN}section)?{_JOIN}begin{_PIPE}>": (
        rf"\s*(?:<{_PIPE}|{_CALL_NAME}\s*(?:<{_PIPE}|\n))"
    ),
    f"{_PIPE}{{1,2}}DSML{_PIPE}{{1,2}}": r"\w",
    r"\|tool_call(?:_start)?\|?>": r"\s*(?:[{\[]|call:)",  # Granite 3.0, Phi, LFM, Gemma
    "start_function_call>": r"\s*call:",
    r"\|python_tag\|>": r"(?:[\w{\[#]|\n)",  # Llama: JSON, or a program
    r"\|START_ACTION\|>": r"\s*\[",  # Cohere
    r"\|action_start\|>": r"\s*<\|",  # InternLM
    r"\|tools_prefix\|>": r"\s*\[",  # Apertus
}
# harmony (gpt-oss), as it is, and without the tokens that servers leave out; its marks alone say nothing of a call
_CHANNEL = r"(?:<\|start\|>assistant\s*)?<\|channel\|>[a-z]{1,20}\s+to=\w|<\|start\|>assistant\s+to=\w"
_BARE_CHANNEL = (
    rf"(?:(?:assistant)?(?:commentary|analysis)\s*)?to=functions\.{_CALL_NAME}"
    r"\s*(?:<\|constrain\|>)?\s*(?:json|code)?\s*(?:<\|message\|>)?\s*\{"
)
_OPENINGS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("<", re.compile(f"<(?:{'|'.join(mark + call for mark, call in _MARKS.items())})")),
    ("[TOOL_CALLS]", re.compile(rf"\[TOOL_CALLS\]\s*(?:\[\s*\{{|{_CALL_NAME}\s*(?:[{{(]|\[(?:ARGS|CALL_ID)\]))")),
    ("functools[", re.compile(r"functools\[\s*\{")),  # Phi
    ("<|", re.compile(_CHANNEL)),
    ("to=functions.", re.compile(_BARE_CHANNEL)),
)
"""The openings of calls, each behind a text that a search for it may look for first."""
_ANY_MARK = rf"(?:<(?:{'|'.join(_MARKS)})|\[TOOL_CALLS\])"
_MARK = re.compile(rf"\s*{_ANY_MARK}(?P<prose> \w)?")
_MARK_AT_END = re.compile(rf"(?:^|\n) {{0,3}}{_ANY_MARK}\Z")
_CLOSING = (">", "}", "]")
_QUOTES = "\"'`\u201c\u201d\u201e\u2018\u2019\u201a\u00ab\u00bb\u300c"  # the last are those of other languages
_IN_PROSE = re.compile(r"[ \t]*(?:[>|*+-]|\d{1,9}[.)])[ \t]")
_CODE_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
_INDENT = re.compile(r"[ \t]*")
_SPACE = re.compile(r"\s*")
_LANGUAGE = re.compile(r"[\w+.-]*")
_WRAPPER = re.compile(rf"<({_NAMESPACE}(?:tool_calls?|function_calls))>")
_FUNCTION = re.compile(r"<function=(?P<name>[\w.:-]+)>(?P<inside>.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)
_INVOKE = re.compile(rf"<({_NAMESPACE})invoke name=([\"'])(?P<name>[\w.:-]+)\2>(?P<inside>.*?)</\1invoke>", re.DOTALL)
_NAMED_PARAMETER = re.compile(
    rf"\s*<{_NAMESPACE}parameter name=[\"']([^\"'>\n]+)[\"']>(.*?)</{_NAMESPACE}parameter>", re.DOTALL
)
_NAME_KEYS, _ARGUMENT_KEYS = ("name", "tool", "tool_name", "function"), ("arguments", "parameters", "args")


def holds_text_call(text: str, tools: Iterable[Tool] = ()) -> bool:
    """Return whether the text holds a call. JSON is one only of these tools."""
    return _first_opening(text) is not None or _json_calls(text, tools) is not None


def move_text_calls(message: Any, tools: Iterable[Tool] = ()) -> bool:
    """Make the calls with which the text of `message` ends its `tool_calls`, and return whether that was done.

    It is not if the message has calls, its text does not end with calls that begin a line, or one of them cannot be
    read whole.
    """
    text = text_of(read(message, "content"))
    if read(message, "tool_calls"):
        return False
    begin = _first_opening(text)
    found = _json_calls(text, tools) if begin is None else _calls_from(text, begin)
    if found is None or (begin is not None and not _begins_a_line(text, begin)):
        return False
    begin, calls = found
    message |= {"content": text[:begin].strip(), "tool_calls": [{"function": call} for call in calls]}
    return True


# Where a call begins


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
        ticks += text.count("`", seen, at)  # from where the last was: a line may hold a hundred thousand
        seen = at
        if at == _INDENT.match(text, line, at).end():  # type: ignore[union-attr]  # it matches anywhere
            if at - line <= 3 and "\t" not in text[line:at]:
                return at
        elif ends_as_call and ticks % 2 == 0 and text[at - 1] not in _QUOTES and not _IN_PROSE.match(text, line):
            return at
    return None


def _begins_a_line(text: str, at: int) -> bool:
    return not text[max(text.rfind("\n", 0, at) + 1, _end_of_thoughts(text)) : at].strip()


def _end_of_thoughts(text: str) -> int:
    thoughts = text.rfind(_THOUGHTS_END)
    return 0 if thoughts < 0 else thoughts + len(_THOUGHTS_END)


def _outside_fences(text: str, begin: int, places: list[int]) -> Iterator[int]:
    """Give those of `places`, which ascend, that are not in a fenced block."""
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


def _calls_from(text: str, begin: int, read_next: Callable[[str, int], _Found] | None = None) -> _Found:
    """Read the calls from `begin` to the end; None if there is anything else, or one is not whole."""
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
    if inside[0] in "{[":
        value = _from_json(inside)
        named = [_named(item) for item in (value if isinstance(value, list) else [value])]
        calls = [call for call in named if call is not None]
        return (end + len(close), calls) if calls and len(calls) == len(named) else None
    found = _calls_from(inside, 0, _next_call)
    return None if found is None else (end + len(close), found[1])


def _next_call(text: str, at: int) -> _Found:
    match, parameter = _FUNCTION.match(text, at), _PARAMETER
    if match is None:
        match, parameter = _INVOKE.match(text, at), _NAMED_PARAMETER
    call = None if match is None else _function(match["name"], match["inside"], parameter)
    return None if match is None or call is None else (match.end(), [call])


def _named(call: Any) -> dict[str, Any] | None:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    return {"name": call["name"], "arguments": call.get("arguments", call.get("parameters", {}))}


def _function(name: str, inside: str, parameter: re.Pattern[str]) -> dict[str, Any] | None:
    """Its arguments stand in an object, or one by one as text, which the repairs read as it fits."""
    if not inside.strip() or inside.lstrip().startswith("{"):
        return {"name": name, "arguments": object_or_text(inside.strip() or "{}")}
    found: dict[str, Any] = {}
    at = 0
    while match := parameter.match(inside, at):
        if match[1] in found:
            return None
        found[match[1]] = match[2].strip("\n")
        at = match.end()
    return None if inside[at:].strip() else {"name": name, "arguments": found}


# JSON


def _json_calls(text: str, tools: Iterable[Tool]) -> _Found:
    """Read the JSON with which the text ends, in fences or as all of it; None if it is no call of these tools."""
    begin, end = _end_of_thoughts(text), len(text.rstrip())
    if not text.endswith(("```", "}", "]"), begin, end):
        return None
    names = {name for tool in tools for name in (tool.name, tool.wire_name)}
    calls = Calls()
    while text.endswith("```", begin, end):
        fence = text.rfind("```", begin, end - 3)
        inside = _LANGUAGE.match(text, fence + 3, end - 3).end()  # type: ignore[union-attr]  # it matches anywhere
        line = max(text.rfind("\n", begin, fence) + 1, begin)
        found = _calls_of(text[inside : end - 3], names) if fence >= 0 else None
        if found is None or text[line:fence].strip():
            break
        calls[:0], end = found, fence
        while end > begin and text[end - 1].isspace():
            end -= 1
    if calls:
        return end, calls
    found = _calls_of(text[begin:end], names)
    return None if found is None else (begin, found)


def _calls_of(text: str, names: set[str]) -> Calls | None:
    text = text.strip()
    value = _from_json(text) if text.startswith(("{", "[")) and text.endswith(("}", "]")) else None
    found = [_json_call(item, names) for item in (value if isinstance(value, list) else [value])]
    calls = [call for call in found if call is not None]
    return calls if calls and len(calls) == len(found) else None


def _json_call(value: Any, names: set[str]) -> dict[str, Any] | None:
    """Return the call that an object is: a name that is known, arguments, and nothing else but `type` and `id`."""
    if not isinstance(value, dict):
        return None
    if isinstance(function := value.get("function"), dict):
        value = {**function, **{key: item for key, item in value.items() if key != "function"}}
    name = [value[key] for key in _NAME_KEYS if key in value]
    given = [value[key] for key in _ARGUMENT_KEYS if key in value]
    if len(name) != 1 or len(given) != 1 or value.keys() - {*_NAME_KEYS, *_ARGUMENT_KEYS, "type", "id"}:
        return None
    arguments = object_or_text(given[0])
    known = isinstance(name[0], str) and name[0] in names
    return {"name": name[0], "arguments": arguments} if known and isinstance(arguments, dict) else None


def _from_json(text: str) -> Any:
    try:
        return loads(text)
    except Malformed:
        return None
