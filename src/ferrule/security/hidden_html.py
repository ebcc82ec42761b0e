"""Remove the parts of HTML that a browser does not show: comments, and elements hidden by an attribute."""

from __future__ import annotations

import html
import re

__all__ = ["remove_hidden_html"]

_PART = (
    r"<!--(?:-?>|[\s\S]*?(?:--!?>|\Z))"
    r"|(?i:<!(?!doctype|\[CDATA\[|--)|</(?![a-z>]))[^<>]*>"
    r"""|<(?P<end>/?)(?P<name>[a-zA-Z][\w:-]*)(?P<attributes>(?:=\s*(?:"[^"]*"|'[^']*')|[^<>])*+)(?:>|\Z)"""
)
"""Matches a comment, also one that a browser makes of `<!x>` or `</ x>`, or a tag. Quotes count only behind a `=`."""
_ATTRIBUTE = (
    r"""(?P<name>[^\s"'>/=][^\s>/=]*)"""
    r"""(?:\s*=\s*(?:(?P<quote>\\{0,9}["'])(?P<quoted>[\s\S]*?)(?P=quote)|(?P<plain>[^\s>]*)))?"""
)
_HIDING_STYLE = (
    r"(?i)display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)"
    r"|opacity\s*:\s*0*(?:\.0*)?(?![\d.])|font-size\s*:\s*0*(?:\.\d*)?(?:px|pt|em|rem|%)?(?![\d.\w])"
    r"|text-indent\s*:\s*-\d{3}|(?:left|top)\s*:\s*-\d{3}|color\s*:\s*transparent"
)
_CSS_ESCAPE = r"\\(?:([0-9a-fA-F]{1,6})\s?|([^\n\"']))"
_MAY_HIDE = r"(?i)<!|</[^a-z>]|<template\b|hidden|style\s*="
_WITHOUT_CONTENT = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"]
)
_ENDED_BY_THE_NEXT = frozenset(["p", "li", "dt", "dd", "tr", "td", "th", "option"])
"""Elements without an end tag of their own, mostly: the next one of the same name ends them."""
_MOST_LAYERS = 8


def remove_hidden_html(text: str) -> tuple[str, int, int]:
    """Return the text without comments and hidden elements, and the numbers of both.

    A hidden element without an end goes to the end of the text, as in a browser. A style sheet, and a text in the
    colour of its background, are not looked at. The parts around a removed one may be hidden together, so the result is
    searched again. If that has no end, its tags become text.
    """
    all_comments = all_elements = 0
    for _ in range(_MOST_LAYERS):
        if "<" not in text or not re.search(_MAY_HIDE, text):
            break
        before = text
        text, comments, elements = _remove_once(text)
        if text == before:
            break
        all_comments, all_elements = all_comments + comments, all_elements + elements
    else:
        text = text.replace("<", "&lt;")
    return text, all_comments, all_elements


def _remove_once(text: str) -> tuple[str, int, int]:
    shown, at, comments, elements = list[str](), 0, 0, 0
    inside, depth = "", 0  # the name of the hidden element around the present place, and how often it is open
    for part in re.finditer(_PART, text):
        name = (part["name"] or "").lower()
        if inside:
            if name == inside:
                ends = bool(part["end"]) or name in _ENDED_BY_THE_NEXT
                depth += -1 if ends else 1
                if not depth:
                    inside, at = "", part.end() if part["end"] else part.start()
            if inside or part["end"]:
                continue
        if name and part.end("attributes") == part.end() and "<" in part["attributes"]:
            # The tag has no end: not every reader sees one here, so look for others in its quotes.
            return "".join([*shown, text[at : part.start()], "&lt;", text[part.start() + 1 :]]), comments, elements
        if not name:
            comments += 1
        elif not part["end"] and (name == "template" or _is_hidden(name, part["attributes"])):
            elements += 1
            if name not in _WITHOUT_CONTENT:
                inside, depth = name, 1
        else:
            continue
        shown.append(text[at : part.start()])
        at = part.end()
    return "".join([*shown, "" if inside else text[at:]]), comments, elements


def _is_hidden(element: str, attributes: str) -> bool:
    """Return whether one of the attributes of a tag hides its element."""
    for found in re.finditer(_ATTRIBUTE, attributes) if attributes else ():
        name, value = found["name"].lower(), found["quoted"] or found["plain"] or ""
        if name == "hidden" or (element, name, value.lower()) == ("input", "type", "hidden"):
            return True
        if name == "style" and re.search(_HIDING_STYLE, _read_style(value)):
            return True
    return False


def _read_style(value: str) -> str:
    """Return the style without comments, and without the escapes of HTML and CSS."""

    def read_escape(found: re.Match[str]) -> str:
        number = int(found[1], 16) if found[1] else 0
        return found[2] or (chr(number) if number < 0x110000 else "")

    return re.sub(_CSS_ESCAPE, read_escape, re.sub(r"(?s)/\*.*?(?:\*/|\Z)", "", html.unescape(value)))
