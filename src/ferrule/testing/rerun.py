"""`rerun`: the calls of a recorded run again, of the tools as they are now, and where their results differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from ferrule import loop
from ferrule.journal.reading import LoggedCall
from ferrule.loop import LoopResult
from ferrule.models import Scripted
from ferrule.runner import Runner
from ferrule.values.context import ToolContext

_COMPARED_FACTS = ("status", "output", "error")
_MOST_TURNS = 100_000


@dataclass(frozen=True, slots=True)
class Difference:
    """A call whose result is another one now. See docs/testing.md#rerun.

    Attributes:
        tool_name: The tool's name.
        arguments: Those of the call.
        recorded: What it came to then: its `status`, `output` and `error`.
        now: What it comes to.
    """

    tool_name: str
    arguments: Any
    recorded: Mapping[str, Any]
    now: Mapping[str, Any]

    def __str__(self) -> str:
        lines = list(unified_diff(_facts_as_lines(self.recorded), _facts_as_lines(self.now), n=1, lineterm=""))[3:]
        called = f"{self.tool_name} {json.dumps(self.arguments, ensure_ascii=False, default=str)}"
        return "\n".join([called, *(f"  {line}" for line in lines)])


@dataclass(frozen=True, slots=True)
class Rerun:
    """What came of `rerun`. See docs/testing.md#rerun.

    Attributes:
        result: The new run.
        calls: How many calls were made again.
        differences: Those of them whose results differ, in order.
    """

    result: LoopResult
    calls: int
    differences: Sequence[Difference]

    def assert_same(self) -> None:
        """Look whether nothing differs.

        Raises:
            AssertionError: with the report.
        """
        __tracebackhide__ = True
        if self.differences:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        said = f"{len(self.differences)} of {self.calls} results differ; recorded (-), now (+)"
        return "\n\n".join(
            [said if self.differences else f"all {self.calls} results are the same"]
            + [str(one) for one in self.differences]
        )


async def rerun(
    recorded: LoopResult | Iterable[LoggedCall], runner: Runner, *, context: ToolContext | None = None
) -> Rerun:
    """Make the calls of a recorded run again, with the tools, the guards and the approver of `runner`, and compare what
    they come to: status, output and error. See docs/testing.md#rerun.

        (await rerun(result, Runner(tools))).assert_same()

    The model is the recorded one (`models.Scripted.from_run`), so it goes on as it did, whatever it is told now.

    Args:
        recorded: The result of `loop.run`, or the calls of a session as a journal's `Reader` has them.
        runner: Its tools are live: they do what they do.
        context: What the calls may use.

    Raises:
        DefinitionError: where that is neither, or has no turns.
    """
    if not isinstance(recorded, LoopResult):
        recorded = sorted(recorded, key=lambda call: call.began_at)
    model = Scripted.from_run(recorded)
    most = _MOST_TURNS
    if isinstance(recorded, LoopResult) and recorded.status == "limited":
        most = len(recorded.replies)  # what was not run then is not run now
    result = await loop.run(model, model.user(""), runner, context=context, max_turns=most, max_calls=_MOST_TURNS)
    pairs = list(zip(_records(recorded), _records(result), strict=False))
    found = [Difference(then["tool_name"], then["input"], _facts(then), _facts(now)) for then, now in pairs]
    return Rerun(result, len(pairs), tuple(one for one in found if one.recorded != one.now))


def _records(run: LoopResult | Iterable[LoggedCall]) -> list[dict[str, Any]]:
    """The record of each call that the model made, in order."""
    if isinstance(run, LoopResult):
        return [result.record() for result in run.results]
    return [call.record() for call in run if call.parent is None]


def _facts(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in _COMPARED_FACTS}


def _facts_as_lines(facts: Mapping[str, Any]) -> list[str]:
    return json.dumps(facts, indent=2, ensure_ascii=False, sort_keys=True).splitlines()
