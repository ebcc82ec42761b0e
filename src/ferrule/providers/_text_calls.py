"""Calls that a model wrote into its text, behind a server that does not read them: the forms of Hermes and Qwen."""

from __future__ import annotations

import re
from typing import Any

from ferrule.providers._read import read, text_of
from ferrule.providers._stream import object_or_text

_THOUGHTS_END = "</think>"
_CODE_FENCE = "```"
_CALL = re.compile(r"^[ \t]*(?=<tool_call>\s*(?:\{|<function=)|<function=[\w.:-]+>)", re.MULTILINE)
"""Where a line begins as a call; a text that only speaks of the marks has them elsewhere."""
_FUNCTION = re.compile(r"<function=([\w.:-]+)>(.*?)</function>", re.DOTALL)
_SPACE = re.compile(r"\s*")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)


def is_text_call(text: str) -> bool:
    """Whether a line of the text, behind the model's thoughts and outside of code, begins as a call."""
    return _first_call(text) is not None


def move_text_calls(message: Any) -> bool:
    """Makes the calls with which the text of `message` ends the calls of it; whether that was done. It is not where the
    message has calls, where the text does not end with calls, and where one cannot be read whole."""
    text = text_of(read(message, "content"))
    begin = None if read(message, "tool_calls") else _first_call(text)
    if begin is None:
        return False
    calls, at = [], begin
    while at < len(text):
        found = _read_call(text, at)
        if found is None:
            return False
        call, at = found
        calls.append({"function": call})
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches anywhere
    message |= {"content": text[:begin].strip(), "tool_calls": calls}
    return True


def _first_call(text: str) -> int | None:
    thoughts = text.rfind(_THOUGHTS_END)
    begin = 0 if thoughts < 0 else thoughts + len(_THOUGHTS_END)
    said, at, in_code = text[begin:], 0, False
    if said.lstrip().startswith(("<tool_call>", "<function=")):
        return len(text) - len(said.lstrip())
    for match in _CALL.finditer(said):
        in_code ^= said.count(_CODE_FENCE, at, match.start()) % 2 == 1
        at = match.start()
        if not in_code:
            return begin + match.end()
    return None


def _read_call(text: str, at: int) -> tuple[dict[str, Any], int] | None:
    """The call that begins there, and where it ends; `None` where it is not whole."""
    if text.startswith("<function=", at):
        function = _FUNCTION.match(text, at)
        call = None if function is None else _function(function[1], function[2])
        return None if function is None or call is None else (call, function.end())
    if not text.startswith("<tool_call>", at):
        return None
    end = text.find("</tool_call>", at)
    if end < 0:
        return None
    inside = text[at + len("<tool_call>") : end].strip()
    function = _FUNCTION.fullmatch(inside)
    call = _function(function[1], function[2]) if function is not None else _named(object_or_text(inside))
    return None if call is None else (call, end + len("</tool_call>"))


def _named(call: Any) -> dict[str, Any] | None:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    return {"name": call["name"], "arguments": call.get("arguments", call.get("parameters", {}))}


def _function(name: str, inside: str) -> dict[str, Any] | None:
    """Its arguments stand in an object, or one by one as text, which the repairs read as it fits."""
    if "<parameter=" not in inside:
        return {"name": name, "arguments": object_or_text(inside.strip() or "{}")}
    found: dict[str, Any] = {}
    at = 0
    while parameter := _PARAMETER.match(inside, at):
        if parameter[1] in found:
            return None
        found[parameter[1]] = parameter[2].strip("\n")
        at = parameter.end()
    return None if inside[at:].strip() else {"name": name, "arguments": found}
