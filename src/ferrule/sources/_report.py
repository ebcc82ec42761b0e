"""The report of a search for tools: the tools, and the left-out ones with the reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ferrule import Tool, Toolset
from ferrule.definition.tokens import definition_tokens
from ferrule.values.count import format_count


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An item that is not offered. See docs/sources.md#the-report.

    Attributes:
        item: The item: an operation, a file, a plug-in.
        reason: The reason.
    """

    item: str
    reason: str

    def __str__(self) -> str:
        return f"{self.item} is left out: {self.reason}"


@dataclass(frozen=True, slots=True)
class ImportedTool:
    """A tool of a source. See docs/sources.md#the-report.

    Attributes:
        name: The tool's name.
        source: The place that it comes from.
        tokens: The cost of its definition, as an estimate.
        notes: The differences from its source.
    """

    name: str
    source: str
    tokens: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The report of a search for tools; as text it is a table. See docs/sources.md#the-report.

    Attributes:
        tools: The tools, in their order.
        left_out: The items that are not offered.
        not_chosen: The number of further items that nobody asked for.
    """

    tools: tuple[ImportedTool, ...]
    left_out: tuple[LeftOut, ...]
    not_chosen: int = 0

    @property
    def tokens(self) -> int:
        """The cost of all definitions, as an estimate."""
        return sum(tool.tokens for tool in self.tools)

    def __str__(self) -> str:
        width = max((len(tool.name) for tool in self.tools), default=0)
        lines = [f"{format_count(len(self.tools), 'tool')}, about {format_count(self.tokens, 'token')}"]
        for tool in self.tools:
            lines.append(f"  {tool.name:<{width}}  {tool.tokens:>6,}  {tool.source}")
            lines += [f"    {note}" for note in tool.notes]
        lines += map(str, self.left_out)
        if self.not_chosen:
            lines.append(f"{self.not_chosen} more {'was' if self.not_chosen == 1 else 'were'} not asked for")
        return "\n".join(lines)


class Imported(Toolset):
    """A toolset from a source, with its report. See docs/sources.md#the-report.

    Its methods give plain toolsets.
    """

    report: Report

    def __init__(self, tools: Iterable[Tool], report: Report) -> None:
        super().__init__(tools)
        vars(self).update(report=report)


def make_entry(tool: Tool, source: str, notes: Iterable[str] = ()) -> ImportedTool:
    """Return the report's entry for a tool."""
    return ImportedTool(tool.name, source, definition_tokens(tool), tuple(notes))
