"""What came of looking for tools in a place: those that were taken, and what was left out and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ferrule import Tool, Toolset
from ferrule.definition.tokens import definition_tokens


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What is not offered. See docs/sources.md#the-report.

    Attributes:
        what: Where it stands: an operation, a file, a plug-in.
        reason: Why.
    """

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what} is left out: {self.reason}"


@dataclass(frozen=True, slots=True)
class Taken:
    """A tool that was made. See docs/sources.md#the-report.

    Attributes:
        name: The tool's.
        what: What it was made of.
        tokens: What its definition costs, as an estimate.
        notes: What is otherwise than where it comes from.
    """

    name: str
    what: str
    tokens: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What came of looking for tools in a place; as text it is a table. See docs/sources.md#the-report.

    Attributes:
        taken: The tools, in their order.
        left_out: What is not offered.
        not_chosen: How many there were besides that nobody asked for.
    """

    taken: tuple[Taken, ...]
    left_out: tuple[LeftOut, ...]
    not_chosen: int = 0

    @property
    def tokens(self) -> int:
        """What all definitions cost, as an estimate."""
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
    """A toolset that a source has made, and the report of that. See docs/sources.md#the-report.

    Its methods give plain toolsets.
    """

    report: Report

    def __init__(self, tools: Iterable[Tool], report: Report) -> None:
        super().__init__(tools)
        vars(self).update(report=report)


def taken(tool: Tool, what: str, notes: Iterable[str] = ()) -> Taken:
    """How the report has a tool."""
    return Taken(tool.name, what, definition_tokens(tool), tuple(notes))
