"""What a docstring says: the description for the model, and a line for each parameter.

Google, NumPy and Sphinx styles.
"""

from __future__ import annotations

import inspect
import re

_GOOGLE = re.compile(
    r"^(args|arguments|parameters|params|keyword args|keyword arguments|returns?|raises|yields?|attributes"
    r"|examples?|notes?|see also|warnings?|references|todo):\s*$",
    re.IGNORECASE,
)
_NUMPY = re.compile(r"^-{3,}\s*$")
_SPHINX = re.compile(r"^:(\w+)(?:[ \t]+([^:\n]*?))?:[ \t]*(.*(?:\n[ \t]+\S.*)*)\n?", re.MULTILINE)
_PARAMETER = re.compile(r"^(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_PARAMETERS = {"args", "arguments", "parameters", "params", "keyword args", "keyword arguments", "other parameters"}
_SPHINX_PARAMETERS = {"param", "parameter", "arg", "argument", "key", "keyword"}


def parse(doc: str | None) -> tuple[str, dict[str, str]]:
    """The description (all before the first section) and the text for each parameter."""
    description: list[str] = []
    parameters: dict[str, str] = {}

    def read_sphinx(field: re.Match[str]) -> str:
        kind, name, text = field.groups()
        if kind.lower() in _SPHINX_PARAMETERS and name:
            parameters[name.split()[-1].lstrip("*")] = " ".join(line.strip() for line in text.splitlines()).strip()
        return ""

    lines = _SPHINX.sub(read_sphinx, inspect.cleandoc(doc or "")).splitlines()
    position = 0
    while position < len(lines):
        line = lines[position]
        numpy = position + 1 < len(lines) and bool(line.strip()) and _NUMPY.match(lines[position + 1])
        google = _GOOGLE.match(line)
        if google or numpy:
            name = (google.group(1) if google else line).strip().lower()
            start = position + (1 if google else 2)
            position = _end(lines, start, numpy=bool(numpy))
            if name in _PARAMETERS:
                read = _read_numpy if numpy else _read_google
                parameters |= read(lines[start:position])
        else:
            description.append(line)
            position += 1
    return "\n".join(description).strip(), parameters


def _end(lines: list[str], start: int, *, numpy: bool) -> int:
    """Where a section ends: at the next section, or, in Google style, at text that is not indented."""
    for position in range(start, len(lines)):
        line = lines[position]
        if not line.strip():
            continue
        underlined = position + 1 < len(lines) and bool(_NUMPY.match(lines[position + 1]))
        if _GOOGLE.match(line) or underlined or (not numpy and not line[0].isspace()):
            return position
    return len(lines)


def _read_google(lines: list[str]) -> dict[str, str]:
    body = inspect.cleandoc("\n" + "\n".join(lines)).splitlines()
    found: dict[str, list[str]] = {}
    name = ""
    for line in body:
        match = _PARAMETER.match(line)
        if match and not line[0].isspace():
            name = match.group(1).lstrip("*")
            found[name] = [match.group(2)]
        elif name and line.strip():
            found[name].append(line.strip())
    return {key: " ".join(filter(None, parts)) for key, parts in found.items()}


def _read_numpy(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in lines:
        if line.strip() and not line[0].isspace():
            names = [name.strip().lstrip("*") for name in line.split(":")[0].split(",")]
            found.update({name: [] for name in names})
        elif line.strip():
            for name in names:
                found[name].append(line.strip())
    return {key: " ".join(parts) for key, parts in found.items() if parts}
