"""Tools that the API's own code calls: programmatic tool calling."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ferrule.definition.toolset import SEARCH_TAG, Toolset

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool


def mark_callers(
    provider: str,
    tools: Iterable[Tool],
    globs: tuple[str, ...],
    callers: list[str],
    *,
    has_output_schema: bool = False,
) -> Toolset:
    """Return the tools, those with a name for one of the globs with `allowed_callers` in their definitions.

    Args:
        provider: The name of the provider module.
        callers: The callers to allow.
        has_output_schema: Whether the API also takes the schema of a result, which is JSON.

    Raises:
        DefinitionError: A glob is no text, or no tool has a name.
    """
    listed = tools if isinstance(tools, Toolset) else Toolset(tools)
    chosen = set(listed.only(*globs)) if globs else set(listed)

    def mark(tool: Tool) -> Tool:
        if tool not in chosen or SEARCH_TAG in tool.tags:
            return tool
        marks: dict[str, Any] = {"allowed_callers": callers}
        if has_output_schema and tool.output_schema is not None and tool.output_schema.get("type") in _WRITTEN_AS_JSON:
            marks["output_schema"] = tool.output_schema
        return tool.replace(provider={**tool.provider, provider: {**tool.provider.get(provider, {}), **marks}})

    return Toolset(mark(tool) for tool in listed)


_WRITTEN_AS_JSON = ("object", "array")
"""The types whose results are JSON in a request. A text is itself."""
