"""Decide how much "always" may cover for a call: one condition per argument, bounded by the shown arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ferrule.errors import DefinitionError
from ferrule.policy import parse_condition
from ferrule.policy.conditions import OneOf
from ferrule.security.characters import HIDDEN
from ferrule.security.command_arguments import (
    ARGUMENT_NAMES,
    find_options,
    is_command_name,
    may_be_code,
    may_run_code,
    read_lines,
)
from ferrule.security.commands import is_transparent
from ferrule.security.paths import PATH_NAMES, has_last_word, resolve_path
from ferrule.security.schema_walk import find_forms
from ferrule.security.urls import HOST_NAMES, URL_NAMES, read_host, read_url
from ferrule.values.context import ToolContext, Traits
from ferrule.values.frozen import thaw
from ferrule.values.json_text import is_same_json, json_or_text

_CODE_NAMES = frozenset(
    {"code", "program", "source", "snippet", "sql", "statement", "statements", "expression", "expr"}
)
"""More names of parameters for an interpreter. Their values have no known bound.

A grant is more careful than a guard: a `zip_code` counts too.
"""
_COMBINING_KEYWORDS = {"$ref", "anyOf", "oneOf", "allOf"}
_URL_FORMATS = {"uri", "url", "iri", "uri-reference", "iri-reference", "multi-host-uri"}
_SKIPPED = rf"(?:[\s'\"`<(\[{{]|{HIDDEN})*"
"""Characters that readers of paths and URLs may skip."""
_URL_START = rf"{_SKIPPED}(?:[A-Za-z][A-Za-z0-9+.-]+:(?!\s|\Z)|\S*://)"
"""The beginning of a text that may be a URL. Its slashes may be missing or turned, as browsers accept."""
_PATH_START = rf"{_SKIPPED}(?:[/~\\]|[A-Za-z]:[\\/])"
"""The beginning of a text that may be a path to another folder."""


class _Unbounded(Exception):
    """The shown arguments set no bound for this argument."""


def needs_exact_arguments(tool: Traits, arguments: Mapping[str, Any], context: ToolContext) -> bool:
    """Return whether a grant covers these exact arguments alone, because the call is or may be a command line.

    It is one if the name of the tool or of an argument says so. It may be one if the tool may reach the open world and
    has an argument of free text or a list. See docs/approvals.md#remembered-answers.
    """
    if _has_code(tool.name, arguments):
        return True
    return tool.open_world and any(
        bool(value) and _may_be_line(name, value, tool, context) for name, value in arguments.items()
    )


def _may_be_line(name: str, value: Any, tool: Traits, context: ToolContext) -> bool:
    is_text = isinstance(value, str) and _text_kind(name, value, tool, context) == "text"
    return is_text or isinstance(value, list | dict)


def _has_code(tool: str, arguments: Any) -> bool:
    """Return whether arguments hold a shell line or code, by their names at any depth or by the name of the tool."""
    return may_run_code(tool) or any(
        may_be_code(name) or has_last_word(name, _CODE_NAMES) for name in _iterate_keys(arguments)
    )


def find_bounds(tool: Traits, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any] | None:
    """Return the condition of each argument, as JSON, or None if only these exact arguments may be offered.

    The result is None for a destructive tool, and if the call runs a shell, an interpreter or something unknown.

    A number may be at most as large. A choice stays the same, a path stays in its folder, and a URL on its host. Other
    text may be any text other than a path or a URL. The arguments of a call that is or may be a command line stay the
    same.

    A tool without a `destructive` declaration counts as destructive. If it runs commands, they decide instead.
    """
    declared = tool.definition.options.get("destructive")
    if tool.destructive and (declared is not None or not any(map(is_command_name, arguments))):
        return None
    if _has_code(tool.name, arguments) and not _runs_known_commands(arguments):
        return None
    if needs_exact_arguments(tool, arguments, context):
        return {name: {"equals": value} for name, value in arguments.items()}
    try:
        conditions = {name: _find_bound(name, value, tool, context) for name, value in arguments.items()}
    except (_Unbounded, DefinitionError, OSError, ValueError):
        return None
    covers_call = all(meets_condition(conditions[name], name, arguments, context) for name in arguments)
    return conditions if covers_call else None


def _runs_known_commands(arguments: Mapping[str, Any]) -> bool:
    """Return whether a call runs only shell lines whose words say everything that runs."""
    commands = {name: value for name, value in arguments.items() if is_command_name(name) and value is not None}
    others = {name: value for name, value in arguments.items() if name not in commands}
    lines = [line for name, value in commands.items() for line in read_lines(name, value, arguments)]
    return bool(lines) and all(map(is_transparent, lines)) and not (_has_code("", others) or find_options(arguments))


def _find_bound(name: str, value: Any, tool: Traits, context: ToolContext) -> Any:
    if isinstance(value, str):
        return _find_text_bound(name, value, tool, context)
    if value is None or isinstance(value, bool | list | dict) or value <= 0:
        return {"equals": value}
    return {"at_least": 0, "at_most": value}


def _text_kind(
    name: str, text: str, tool: Traits, context: ToolContext
) -> Literal["choice", "url", "host", "path", "number", "text"]:
    """Return the kind of text in an argument, by its schema, its type or its name."""
    schema = tool.input_schema
    forms = find_forms([schema.get("properties", {}).get(name, {})], schema)
    texts = [form for form in forms if "string" in form.get("type", "string") and not _COMBINING_KEYWORDS & form.keys()]
    if texts and all("enum" in form or "const" in form for form in texts):
        return "choice"
    if has_last_word(name, URL_NAMES) or any(form.get("format") in _URL_FORMATS for form in forms):
        return "url"
    if has_last_word(name, HOST_NAMES):
        return "host"
    if any(found.place[:1] == (name,) for found in context.paths) or has_last_word(name, PATH_NAMES):
        return "path"
    is_number = any(form.get("type") in {"number", "integer"} for form in forms) and _plain_number(text) is not None
    return "number" if is_number else "text"


def _find_text_bound(name: str, text: str, tool: Traits, context: ToolContext) -> Any:
    kind = _text_kind(name, text, tool, context)
    if kind == "choice" or has_last_word(name, ARGUMENT_NAMES):
        return {"equals": text}
    if kind == "url" or "://" in text:
        return {"hosts": [_read_host_and_port(text)]}
    if kind == "host":
        read_host(text)
        return {"hosts": [text]}
    if _is_url_or_option(text):
        return {"equals": text}
    if kind == "path" or may_lead_elsewhere(text):
        return {"within": [_find_folder(text, context)]}
    if kind == "number":  # a decimal, sent as text in JSON
        return {"at_least": 0, "at_most": _plain_number(text)}
    return None


def _plain_number(text: str) -> int | float | None:
    """Return the number in a numeral if it is greater than 0, otherwise None."""
    number = json_or_text(text)
    return number if type(number) in {int, float} and number > 0 else None


def _read_host_and_port(text: str) -> str:
    url = read_url(text)
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{host}:{url.port}" if url.port else host


def _find_folder(text: str, context: ToolContext) -> str:
    """Return the folder of a path. The path itself is the result if it is a folder, or lies directly in the root.

    Raises:
        _Unbounded: The path is the root, which holds everything.
    """
    path = resolve_path(text, context.working_directory)
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    if os.path.dirname(path) == path:
        raise _Unbounded
    return path if os.path.dirname(folder) == folder else folder


def _iterate_keys(value: Any) -> Iterable[str]:
    """Yield the keys at every depth."""
    if isinstance(value, Mapping):
        yield from value
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for inner in value:
        yield from _iterate_keys(inner)


def may_lead_elsewhere(text: str) -> bool:
    """Return whether a whole text may be a path out of its folder, or a URL."""
    return _may_be_url(text) or bool(re.match(_PATH_START, text)) or ".." in re.split(r"[/\\]", text.strip())


def _may_be_url(text: str) -> bool:
    return re.match(_URL_START, text) is not None


def _is_url_or_option(text: str) -> bool:
    """Return whether a program may read a text as a URL or an option instead of a path."""
    return text.startswith("-") or _may_be_url(text)


def meets_condition(expected: Any, name: str, arguments: Mapping[str, Any], context: ToolContext) -> bool:
    """Return whether an argument meets a condition, or False if that is unknown.

    Args:
        expected: The condition as JSON; `None` for any text except a path out of its folder or a URL.
    """
    value = arguments[name]
    if expected is None:
        return isinstance(value, str) and not may_lead_elsewhere(value)
    if expected.keys() == {"equals"}:
        return is_same_json(thaw(expected["equals"]), value)
    if "within" in expected and (_is_url_or_option(str(value)) or not all(map(_is_real, expected["within"]))):
        return False
    if "glob" in expected and (not isinstance(value, str) or may_lead_elsewhere(value)):
        return False
    return parse_condition(expected).matches(value, context) is True


def _is_real(root: str) -> bool:
    """Return whether a granted folder is still itself, and not replaced by a link."""
    try:
        return resolve_path(root, os.sep) == root
    except (OSError, ValueError):
        return False


def resolve_roots(expected: Any, directory: str) -> Any:
    """Return a condition with its folders as real paths.

    Raises:
        ValueError: A folder cannot be a path.
    """
    if expected is None or "within" not in expected:
        return expected
    return {**expected, "within": [resolve_path(root, directory) for root in expected["within"]]}


def is_at_most(expected: Any, offered: Any) -> bool:
    """Return whether one condition allows nothing beyond another.

    Raises:
        DefinitionError: `expected` or `offered` is no condition.
    """
    if expected is None:
        return offered is None
    if is_same_json(expected, offered):
        return True
    narrower = parse_condition(expected)
    if offered is not None:
        return "equals" not in offered and parse_condition(offered).covers(narrower)
    if not isinstance(narrower, OneOf):
        return "glob" in expected
    return all(isinstance(one, str) and not may_lead_elsewhere(one) for one in narrower.values)
