"""Parse a docstring in Google, NumPy or Sphinx style."""

from __future__ import annotations

import inspect
import re

# Texts and not `re.compile`, so that importing this module compiles nothing.
_GOOGLE = (
    r"(?i)^(args|arguments|parameters|params|keyword args|keyword arguments|returns?|raises|yields?|attributes"
    r"|examples?|notes?|see also|warnings?|references|todo):\s*$"
)
_NUMPY = r"^-{3,}\s*$"
_SPHINX = r"(?m)^:(\w+)(?:[ \t]+([^:\n]*?))?:[ \t]*(.*(?:\n[ \t]+\S.*)*)\n?"
_GOOGLE_PARAMETER = r"(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$"
_NUMPY_PARAMETER = r"([^\s:][^:]*)()"
_PARAMETERS = {"args", "arguments", "parameters", "params", "keyword args", "keyword arguments", "other parameters"}
_SPHINX_PARAMETERS = {"param", "parameter", "arg", "argument", "key", "keyword"}


def parse_docstring(doc: str | None) -> tuple[str, dict[str, str]]:
    """Return the description (all text before the first section), and the text for each parameter."""
    parameters: dict[str, str] = {}

    def read_sphinx(field: re.Match[str]) -> str:
        kind, name, text = field.groups()
        if kind.lower() in _SPHINX_PARAMETERS and name:
            parameters[name.split()[-1].lstrip("*")] = " ".join(line.strip() for line in text.splitlines()).strip()
        return ""

    lines = re.sub(_SPHINX, read_sphinx, inspect.cleandoc(doc or "")).splitlines()
    description: list[str] = []
    current, numpy = description, False
    sections: list[tuple[str, bool, list[str]]] = []
    for line, below in zip(lines, [*lines[1:], ""], strict=False):
        google, underlined = re.match(_GOOGLE, line), bool(line.strip() and re.match(_NUMPY, below))
        if google or underlined:
            current, numpy = [], underlined
            sections.append(((google.group(1) if google else line).strip().lower(), numpy, current))
            continue
        if not numpy and line.strip() and not line[0].isspace():  # in Google style, this line ends a section
            current = description
        current.append(line)
    for name, numpy, body in sections:
        if name in _PARAMETERS:
            parameters |= _read_section(body[1:], _NUMPY_PARAMETER) if numpy else _read_section(body, _GOOGLE_PARAMETER)
    return "\n".join(description).strip(), {name: text for name, text in parameters.items() if text}


def _read_section(lines: list[str], parameter: str) -> dict[str, str]:
    """Return the text for each parameter of a section. Other lines continue the text before them."""
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in inspect.cleandoc("\n" + "\n".join(lines)).splitlines():
        if match := re.match(parameter, line):
            names = [name.strip().lstrip("*") for name in match.group(1).split(",")]
            found.update({name: [match.group(2)] for name in names})
        else:
            for name in names:
                found[name].append(line.strip())
    return {name: " ".join(filter(None, parts)) for name, parts in found.items()}
