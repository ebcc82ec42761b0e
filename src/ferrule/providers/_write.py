"""Definitions, written once for each tool and handed out as new dicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ferrule.providers._read import Names, strict_wanted
from ferrule.providers._strict import Rules, check_request

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

Write: TypeAlias = "Callable[[Tool, bool], dict[str, Any]]"
"""Writes the definition of a tool, strict or not; a function of the module, as it is the key of what it wrote."""


def definitions(tools: Sequence[Tool], strict: Names, write: Write, rules: Rules | None = None) -> list[dict[str, Any]]:
    """New dicts of what `write` says of each tool. It is asked once for each; what is inside is shared, and so must be
    read-only.

    Args:
        tools: In the order of the request.
        strict: For all, or for the tools of these names.
        write: Writes one.
        rules: Of the strict mode, where there is one.

    Raises:
        DefinitionError: where `strict` names a tool that is not there, or the strict tools are too many for `rules`.
    """
    if strict is False:
        key = write, False
        return [dict(tool._exports.get(key) or _written(tool, False, write)) for tool in tools]
    wanted = strict_wanted(tools, strict)
    found: dict[str, dict[str, Any]] = {}
    for tool in tools:
        found[tool.name] = tool._exports.get((write, wanted(tool))) or _written(tool, wanted(tool), write)
    if rules is not None:
        check_request([tool for tool in tools if wanted(tool)], rules)
    return [dict(found[tool.name]) for tool in tools]


def _written(tool: Tool, strict: bool, write: Write) -> dict[str, Any]:
    found = tool._exports[write, strict] = write(tool, strict)
    return found
