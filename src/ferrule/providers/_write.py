"""Definitions of tools, as each API takes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ferrule.providers import Strict
from ferrule.providers._read import split_deferred, strict_wanted
from ferrule.providers._schemas import Subset, written
from ferrule.providers._strict import Rules, check_request, refuse_strict

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool


@dataclass(frozen=True, eq=False, kw_only=True)
class Definitions:
    """How one API takes the definition of a tool."""

    plain: Subset
    strict: Rules | None = None
    """The rules of its strict mode; `None` where it has none for single tools."""
    no_strict_hint: str = ""
    """What to do instead of a strict tool, where there is no such mode."""
    key: str = "parameters"
    """What the schema stands under."""
    head: Mapping[str, Any] = field(default_factory=dict)
    """What stands before the name."""
    plain_mark: Mapping[str, Any] = field(default_factory=dict)
    strict_mark: Mapping[str, Any] = field(default_factory=lambda: {"strict": True})
    in_function: bool = False
    """Whether it stands in `{"type": "function", "function": ...}`."""
    defers: bool = False
    """Whether a deferred tool is marked, for the model to find by a tool search."""
    _written: Mapping[bool, WeakKeyDictionary[Tool, dict[str, Any]]] = field(
        default_factory=lambda: defaultdict(WeakKeyDictionary), init=False
    )
    """The plain and the strict definitions, each for as long as its tool lives: writing one anew takes twice as long as
    a copy."""

    def write(self, toolset: Iterable[Tool], strict: Strict, deferred: Collection[str]) -> tuple[list[Any], list[Any]]:
        """New dicts for the tools that are there from the start, and for the deferred ones; the schemas are shared, and
        read-only.

        Raises:
            DefinitionError: where a tool's schema cannot be sent or strict, the strict tools are too many, or a name is
                no tool's.
        """
        first, later = split_deferred(toolset, deferred)
        tools = first + later
        if self.strict is None:
            refuse_strict(tools, strict, self.plain.provider, self.no_strict_hint)
        is_strict = strict_wanted(tools, strict)
        found = [dict(self._written[is_strict(tool)].get(tool) or self._write(tool, is_strict(tool))) for tool in tools]
        if strict and self.strict is not None:
            check_request([tool for tool in tools if is_strict(tool)], self.strict)
        if self.in_function:
            found = [{"type": "function", "function": definition} for definition in found]
        if self.defers:
            for definition in found[len(first) :]:
                definition["defer_loading"] = True
        return found[: len(first)], found[len(first) :]

    def _write(self, tool: Tool, strict: bool) -> dict[str, Any]:
        """A tool's name, its description where it has one, and its schema."""
        rules, mark = (self.strict, self.strict_mark) if strict and self.strict else (self.plain, self.plain_mark)
        schema, told, _ = written(tool, rules)
        description = tool.description
        if told:  # it may begin with the same words
            begun = f"{told}\n\n".startswith(f"{description}\n\n")
            description = told if begun else "\n\n".join(filter(None, [description, told]))
        described = {"description": description} if description else {}
        found = {**self.head, "name": tool.wire_name, **described, self.key: schema, **mark}
        self._written[strict][tool] = found
        return found
