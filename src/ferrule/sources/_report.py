"""The report of a search for tools: the tools, and the left-out ones with the reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ferrule import Tool, Toolset
from ferrule.definition.tokens import definition_tokens


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An item that is not offered. See docs/sources.md#the-report.

    Attributes:
        what: The item: an operation, a file, a plug-in.
        reason: The reason.
    """

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what} is left out: {self.reason}"


@dataclass(frozen=True, slots=True)
class Taken:
    """A tool that was made. See docs/sources.md#the-report.

    Attributes:
        name: The tool's name.
        what: The source of the tool.
        tokens: The cost of its definition, as an estimate.
        notes: The differences from its source.
    """

    name: str
    what: str
    tokens: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The report of a search for tools; as text it is a table. See docs/sources.md#the-report.

    Attributes:
        taken: The tools, in their order.
        left_out: The items that are not offered.
        not_chosen: The number of further items that nobody asked for.
    """

    taken: tuple[Taken, ...]
    left_out: tuple[LeftOut, ...]
    not_chosen: int = 0

    @property
    def tokens(self) -> int:
        """The cost of all definitions, as an estimate."""
        return sum(one.tokens for one in self.taken)

    def __str__(self) -> str:
        width = max((len(one.name) for one in self.taken), default=0)
        lines = [f"{len(self.taken)} tools, about {self.tokens:,} tokens"]
        for one in self.taken:
            lines.append(f"  {one.name:<{width}}  {one.tokens:>6,}  {one.what}")
            lines += [f"    {note}" for note in one.notes]
        lines += map(str, self.left_out)
        if self.not_chosen:
            lines.append(f"{self.not_chosen} more were not asked for")
        return "\n".join(lines)


class Imported(Toolset):
    """A toolset from a source, with its report. See docs/sources.md#the-report.

    Its methods give plain toolsets.
    """

    report: Report

    def __init__(self, tools: Iterable[Tool], report: Report) -> None:
        super().__init__(tools)
        vars(self).update(report=report)


def taken(tool: Tool, what: str, notes: Iterable[str] = ()) -> Taken:
    """Return the report's entry for a tool."""
    return Taken(tool.name, what, definition_tokens(tool), tuple(notes))
