"""Definitions, written once for each tool and handed out as new dicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from ferrule.providers import Strict
from ferrule.providers._read import strict_wanted
from ferrule.providers._schemas import Subset, written
from ferrule.providers._strict import Rules, check_request

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

Write: TypeAlias = "Callable[[Tool, bool], dict[str, Any]]"
"""Writes the definition of a tool, strict or not; a function of the module, as it is the key of what it wrote."""


def definition(tool: Tool, key: str, rules: Subset) -> dict[str, Any]:
    """A tool's name, its description where it has one, and its schema under `key`, as `rules` take it."""
    schema, told = written(tool, rules)
    if not f"{told}\n\n".startswith(f"{tool.description}\n\n"):  # the schema may begin with the same words
        told = "\n\n".join(filter(None, [tool.description, told]))
    return {"name": tool.wire_name, **({"description": told} if told else {}), key: schema}


_DEFINITIONS: defaultdict[tuple[Write, bool], WeakKeyDictionary[Tool, dict[str, Any]]] = defaultdict(WeakKeyDictionary)
"""What was written of each tool, for as long as the tool lives."""


def definitions(tools: Sequence[Tool], strict: Strict, write: Write, rules: Rules | None = None) -> list[Any]:
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
        written = _DEFINITIONS[write, False]
        return [dict(written.get(tool) or _write_once(tool, False, write)) for tool in tools]
    is_strict = strict_wanted(tools, strict)
    found = [
        _DEFINITIONS[write, is_strict(tool)].get(tool) or _write_once(tool, is_strict(tool), write) for tool in tools
    ]
    if rules is not None:
        check_request([tool for tool in tools if is_strict(tool)], rules)
    return [dict(definition) for definition in found]


def _write_once(tool: Tool, strict: bool, write: Write) -> dict[str, Any]:
    definition = _DEFINITIONS[write, strict][tool] = write(tool, strict)
    return definition
