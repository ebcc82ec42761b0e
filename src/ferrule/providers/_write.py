"""Definitions of tools, as each API takes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ferrule.definition.toolset import SEARCH_TAG
from ferrule.errors import DefinitionError
from ferrule.providers import Strict
from ferrule.providers._schemas import Subset, written
from ferrule.providers._strict import Rules, check_request, make_strict_test, refuse_strict
from ferrule.providers._wire import list_tools, read_found_tools, separate_deferred_tools
from ferrule.values.frozen import freeze

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool
    from ferrule.values.result import ToolResult


_OWN_KEYS = {
    **dict.fromkeys(("name", "description"), "it is an option of the tool"),
    **dict.fromkeys(("parameters", "parametersJsonSchema", "input_schema", "inputSchema"), "it is the tool's schema"),
    **dict.fromkeys(("type", "function"), "leave it out"),
    "input_examples": "it is examples=… of the tool",
    "strict": "it is strict=… of tools(…)",
}
"""The keys that a definition sets itself, and the alternatives for the user."""


def refused_keys(tool: Tool, provider: str) -> str | None:
    """Return the error text for the keys that a tool has for one provider, or `None` if they are valid."""
    for key in tool.provider.get(provider, {}):
        if key in _OWN_KEYS:
            remedy = _OWN_KEYS[key]
            return f"provider={{{provider!r}: …}} has {key!r}, which the definition sets itself: {remedy}"
    return None


@dataclass(frozen=True, eq=False, kw_only=True)
class Definitions:
    """The form of a tool's definition in one API."""

    name: str
    """The name of the provider module, as in `Tool(provider=…)`."""
    plain: Subset
    strict: Rules | None = None
    """The rules of its strict mode; `None` if it has none for single tools."""
    no_strict_hint: str = ""
    """The alternative to a strict tool, if there is no such mode."""
    key: str = "parameters"
    """The key of the schema."""
    head: Mapping[str, Any] = field(default_factory=dict)
    """The fields before the name."""
    plain_mark: Mapping[str, Any] = field(default_factory=dict)
    strict_mark: Mapping[str, Any] = field(default_factory=lambda: {"strict": True})
    in_function: bool = False
    """Whether the definition is wrapped in `{"type": "function", "function": ...}`."""
    defers: bool = False
    """Whether a deferred tool is marked, for the model to find by a tool search."""
    examples: str = ""
    """The key of the examples; empty if the API takes none."""

    def write(self, toolset: Iterable[Tool], strict: Strict, deferred: Collection[str]) -> tuple[list[Any], list[Any]]:
        """Return new dicts for the tools offered from the start, and for the deferred ones. The schemas are shared and
        read-only.

        Raises:
            DefinitionError: A tool's schema cannot be sent or strict, the strict tools are too many, or a name belongs
                to no tool.
        """
        listed = list_tools(toolset)
        is_strict = make_strict_test(listed, strict, self.strict)
        first, later = separate_deferred_tools(listed, deferred)
        if marked := [tool for tool in first if self._is_deferred(tool)]:
            first, later = [tool for tool in first if not self._is_deferred(tool)], marked + later
        tools = first + later
        if self.strict is None:
            refuse_strict(tools, is_strict, self.plain.provider, self.no_strict_hint)
        if strict and self.strict is not None:
            check_request([tool for tool in tools if is_strict(tool)], self.strict)
        found = [self._write(tool, is_strict(tool)) for tool in tools]
        if self.in_function:
            found = [{"type": "function", "function": definition} for definition in found]
        if self.defers:
            for definition in found[len(first) :]:
                definition["defer_loading"] = True
        # Anthropic refuses the two together. A tool that finds others will lead to deferred tools, and the prompt
        # before them has to stay the same.
        if self.examples and (later or any(SEARCH_TAG in tool.tags for tool in tools)):
            for definition in found:
                definition.pop(self.examples, None)
        return found[: len(first)], found[len(first) :]

    def write_found_tools(self, result: ToolResult) -> list[Any]:
        """Return the deferred definitions of the tools that a search tool found."""
        definitions = []
        for one in read_found_tools(result):
            schema, added, _ = self.plain.write(freeze(one["input_schema"]))
            described = self._describe(one["name"], one["description"], added)
            definitions.append({**self.head, **described, self.key: schema, **self.plain_mark, "defer_loading": True})
        return definitions

    def _describe(self, name: str, description: str, added: str) -> dict[str, Any]:
        """Return the name, and the description if there is one. `added` may already begin with it."""
        if added:
            begun = f"{added}\n\n".startswith(f"{description}\n\n")
            description = added if begun else "\n\n".join(filter(None, [description, added]))
        return {"name": name, "description": description} if description else {"name": name}

    def _is_deferred(self, tool: Tool) -> bool:
        return self.defers and bool(tool.provider.get(self.name, {}).get("defer_loading"))

    def _write(self, tool: Tool, strict: bool) -> dict[str, Any]:
        """Return a tool's name, its description if it has one, and its schema."""
        rules, mark = (self.strict, self.strict_mark) if strict and self.strict else (self.plain, self.plain_mark)
        schema, added, _ = written(tool, rules)
        found = {**self.head, **self._describe(tool.wire_name, tool.description, added), self.key: schema, **mark}
        if self.examples and tool.examples:
            shown = [{key: example[key] for key in example if key not in tool.hidden} for example in tool.examples]
            found[self.examples] = shown
        if self.name in tool.provider:
            if problem := refused_keys(tool, self.name):
                raise DefinitionError(f"tool {tool.name!r}: {problem}")
            found |= tool.provider[self.name]
        return found
