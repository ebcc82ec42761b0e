"""Definitions in the shapes of model APIs or MCP, as the options of a tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule.definition.options import check_mapping
from ferrule.errors import DefinitionError

_RENAMED = {
    "parameters": "input_schema",
    "parametersJsonSchema": "input_schema",
    "parameters_json_schema": "input_schema",
    "inputSchema": "input_schema",
    "outputSchema": "output_schema",
    "input_examples": "examples",
}
_API_KEYS = ("cache_control", "defer_loading", "allowed_callers", "eager_input_streaming", "async")
"""The keys of a definition for one API alone."""
_MCP_KEYS = ("annotations", "icons", "execution", "_meta")


def read_options(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition under the names of a tool's options. A definition in Ferrule's own shape stays the same.

    Keys of only one API go into `provider`, and keys of only MCP go into `metadata`. `strict` is left out: it belongs
    where the definitions are written, `tools(…, strict=…)`.

    Raises:
        DefinitionError: The tool is run by an API itself, or the definition has two keys for one option.
    """
    options, api = dict(_unwrap(definition)), "anthropic"
    kind = options.pop("type", None)
    if isinstance(inner := options.get("function"), Mapping):
        del options["function"]
        options, api = options | dict(inner), "openai_chat"
    elif kind == "function" or "parameters" in options:
        api = "openai_responses"
    if kind not in (None, "function", "custom") or (kind == "custom" and "format" in options):
        raise DefinitionError(
            f"build_tool: a definition of the type {kind!r} is not of a function with a schema, so no handler can run "
            "it; what an API runs itself goes there as it is"
        )
    options.pop("strict", None)
    if "inputSchema" in options:
        metadata = {key: options.pop(key) for key in _MCP_KEYS if key in options}
        hints = check_mapping("annotations", metadata.get("annotations"))
        if (title := options.pop("title", hints.get("title"))) is not None:
            metadata["title"] = title
        options = {"metadata": metadata} | options
    if api_keys := {key: options.pop(key) for key in _API_KEYS if key in options}:
        if "provider" in options:
            raise DefinitionError(
                f"build_tool: {min(api_keys)!r} stands beside 'provider'; put it in there, for {api!r}"
            )
        options["provider"] = {api: api_keys}
    for key in _RENAMED.keys() & options.keys():
        if _RENAMED[key] in options:
            raise DefinitionError(f"build_tool: {key!r} and {_RENAMED[key]!r} say the same; leave one out")
        options[_RENAMED[key]] = options.pop(key)
    return options


def _unwrap(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return Bedrock's `toolSpec` with its schema, or the one function of Gemini's `functionDeclarations`."""
    match definition:
        case {"toolSpec": {"inputSchema": {"json": schema}} as spec, **others} if not others:
            return {**{key: value for key, value in spec.items() if key != "inputSchema"}, "input_schema": schema}
        case {"functionDeclarations": [Mapping() as one], **others} if not others:
            return one
        case {"functionDeclarations": _}:
            raise DefinitionError("build_tool: give it each function of 'functionDeclarations' by itself")
    return definition
