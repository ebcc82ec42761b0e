"""Remove the parts of HTML that a browser does not show: comments, and elements hidden by an attribute."""

from __future__ import annotations

import re

__all__ = ["remove_hidden_html"]

_PART = (
    r"<!--(?:-?>|[\s\S]*?(?:--!?>|\Z))"
    r"""|<(?P<end>/?)(?P<name>[a-zA-Z][\w:-]*)(?P<attributes>(?:[^<>"']|"[^"]*"|'[^']*')*+)>"""
)
_HIDDEN = (
    r"""(?i)(?:^|[\s"'/])hidden(?=[\s/=>]|\Z)|(?:^|[\s"'/])style\s*+=[^<>]*?(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)"""
    r"""|opacity\s*:\s*0*(?:\.0*)?(?![\d.])|font-size\s*:\s*0*(?:\.\d*)?(?:px|pt|em|rem|%)?(?![\d.\w])"""
    r"""|text-indent\s*:\s*-\d{3}|(?:left|top)\s*:\s*-\d{3}|color\s*:\s*transparent)"""
)
_MAY_HIDE = r"(?i)<!--|<template\b|<[^<>]*(?:hidden|none|opacity|font-size|text-indent|:\s*-\d|transparent|collapse)"
_WITHOUT_CONTENT = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"]
)
_ENDED_BY_THE_NEXT = frozenset(["p", "li", "dt", "dd", "tr", "td", "th", "option"])
"""Elements without an end tag of their own, mostly: the next one of the same name ends them."""


def remove_hidden_html(text: str) -> tuple[str, int, int]:
    """Return the text without comments and hidden elements, and the numbers of both.

    A hidden element without an end goes to the end of the text, as in a browser. A style sheet, and a text in the
    colour of its background, are not looked at.
    """
    if "<" not in text or not re.search(_MAY_HIDE, text):
        return text, 0, 0
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
        if not name:
            comments += 1
        elif not part["end"] and (name == "template" or re.search(_HIDDEN, part["attributes"])):
            elements += 1
            if name not in _WITHOUT_CONTENT:
                inside, depth = name, 1
        else:
            continue
        shown.append(text[at : part.start()])
        at = part.end()
    return "".join([*shown, "" if inside else text[at:]]), comments, elements
