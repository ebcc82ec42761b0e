"""How a test compares a call with the expected one, and how it shows calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import SequenceMatcher, unified_diff
from typing import Any

from ferrule.arguments.parameters import Invalid
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.security.similar_names import NameIndex
from ferrule.values.call import ToolCall
from ferrule.values.content import to_jsonable
from ferrule.values.frozen import thaw
from ferrule.values.result import ToolResult

_MAX_VALUE_CHARACTERS = 200
_MAX_DIFF_LINES = 40  # lines
_MISSING = object()


def arguments_of(call: ToolCall, tool: Tool | None) -> dict[str, Any]:
    """Return the validated arguments if the tool is known and they fit, else the arguments of the call."""
    arguments = call.arguments
    if tool is not None and tool.name == call.name and arguments.validated is None:
        with suppress(Invalid):
            arguments = tool.handling.parameters.parse_arguments(call.name, call.raw)
    return thaw(arguments)  # type: ignore[no-any-return]


def check_arguments(tool: Tool, expected: Iterable[str]) -> None:
    """Check that the tool has parameters of these names.

    Raises:
        DefinitionError: The tool lacks one (the error names the nearest), or one is hidden.
    """
    schema = tool.handling.parameters.schema
    closed = False in (schema.get("additionalProperties"), schema.get("unevaluatedProperties"))
    known = list(schema["properties"])
    for name in expected:
        if name in tool.hidden:
            raise DefinitionError(f"{name!r} of {tool.name!r} is bound or private: events have stars in its place")
        if closed and name not in known:
            near = NameIndex(known).find_nearest(name, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {known!r}"
            raise DefinitionError(f"the tool {tool.name!r} has no parameter {name!r}; {hint}")


def include_all(arguments: Mapping[str, Any], expected: Mapping[str, object]) -> bool:
    """Return whether the arguments include all wanted ones. Other arguments are ignored."""
    return all(_is_equal(value, arguments.get(name, _MISSING)) for name, value in expected.items())


def _is_equal(expected: Any, actual: Any) -> bool:
    return bool(expected == actual) or bool(to_jsonable(expected) == actual)


def compute_similarity(one: str, other: str) -> float:
    """Return the similarity of two shown calls, from 0 to 1."""
    return SequenceMatcher(None, one[:_MAX_VALUE_CHARACTERS], other[:_MAX_VALUE_CHARACTERS]).ratio()


def compute_json_similarity(one: Any, other: Any) -> float:
    """Return the similarity of two JSON values, from 0 to 1."""
    return SequenceMatcher(None, _json_lines(one), _json_lines(other)).ratio()


def format_json_diff(one: Any, other: Any) -> str:
    """Return the differences of two JSON values, line by line: the first value's lines (-), and the other's (+)."""
    lines = list(unified_diff(_json_lines(one), _json_lines(other), n=2, lineterm=""))[3:]
    return "\n".join(f"  {line}" for line in lines[:_MAX_DIFF_LINES])


def _json_lines(value: Any) -> list[str]:
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True).splitlines()


def format_call(name: str, arguments: Mapping[str, object]) -> str:
    """Return a call as text, such as `refund(order='4711', euros=80)`."""
    return f"{name}({', '.join(f'{key}={abbreviate(value)}' for key, value in arguments.items())})"


def abbreviate(value: object) -> str:
    """Return the value as Python writes it, cut if it is long."""
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[:_MAX_VALUE_CHARACTERS]}…"


def came_to(result: ToolResult | None) -> str:
    """Return the outcome of a call as text: its status, whether it ran, and its error."""
    if result is None:
        return "not ended yet"
    ran = ", not run" if result.executed is False else ""
    ran = ", replayed" if result.metadata.get("replayed") is True else ran
    why = f": {abbreviate(result.error)}" if result.error is not None else ""
    return f"{result.status}{ran}{why}"
