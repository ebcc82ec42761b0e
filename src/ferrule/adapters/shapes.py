"""Definitions in the shapes of OpenAI, Anthropic or MCP, as the options of a tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule.definition.options import check_mapping
from ferrule.errors import DefinitionError

_RENAMED = {
    "parameters": "input_schema",
    "inputSchema": "input_schema",
    "outputSchema": "output_schema",
    "input_examples": "examples",
}
_OF_THE_API = ("cache_control", "defer_loading", "allowed_callers", "eager_input_streaming", "async")
"""The keys of a definition for one API alone."""
_OF_MCP = ("annotations", "icons", "execution", "_meta")


def options_of(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition under the names of a tool's options. A definition in Ferrule's own shape stays the same.

    Keys of only one API go into `provider`, and keys of only MCP go into `metadata`. `strict` is left out: it belongs
    where the definitions are written, `tools(…, strict=…)`.

    Raises:
        DefinitionError: The tool is run by an API itself, or the definition has two keys for one option.
    """
    said, api = dict(definition), "anthropic"
    kind = said.pop("type", None)
    if isinstance(inner := said.get("function"), Mapping):
        del said["function"]
        said, api = said | dict(inner), "openai_chat"
    elif kind == "function" or "parameters" in said:
        api = "openai_responses"
    if kind not in (None, "function", "custom") or (kind == "custom" and "format" in said):
        raise DefinitionError(
            f"build_tool: a definition of the type {kind!r} is not of a function with a schema, so no handler can run "
            "it; what an API runs itself goes there as it is"
        )
    said.pop("strict", None)
    if "inputSchema" in said:
        known = {key: said.pop(key) for key in _OF_MCP if key in said}
        hints = check_mapping("annotations", known.get("annotations"))
        if (title := said.pop("title", hints.get("title"))) is not None:
            known["title"] = title
        said = {"metadata": known} | said
    if own := {key: said.pop(key) for key in _OF_THE_API if key in said}:
        if "provider" in said:
            raise DefinitionError(f"build_tool: {min(own)!r} stands beside 'provider'; put it in there, for {api!r}")
        said["provider"] = {api: own}
    for key in _RENAMED.keys() & said.keys():
        if _RENAMED[key] in said:
            raise DefinitionError(f"build_tool: {key!r} and {_RENAMED[key]!r} say the same; leave one out")
        said[_RENAMED[key]] = said.pop(key)
    return said
