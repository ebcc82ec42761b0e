"""`rerun`: make the calls of a recorded run again, with the current tools, and compare the results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferrule.errors import DefinitionError
from ferrule.journal.reading import LoggedCall
from ferrule.loop.agent_loop import LoopResult
from ferrule.runner import Runner
from ferrule.testing.comparing import format_json_diff
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.count import pluralize
from ferrule.values.result import ToolResult

_COMPARED_FACTS = ("status", "output", "error")


@dataclass(frozen=True, slots=True)
class Difference:
    """A call with another result than in the recording. See docs/testing.md#rerun.

    Attributes:
        tool_name: The tool's name.
        arguments: The arguments of the call.
        recorded: The recorded `status`, `output` and `error`.
        now: The current ones.
    """

    tool_name: str
    arguments: Any
    recorded: Mapping[str, Any]
    now: Mapping[str, Any]

    def __str__(self) -> str:
        called = f"{self.tool_name} {json.dumps(self.arguments, ensure_ascii=False, default=str)}"
        return f"{called}\n{format_json_diff(self.recorded, self.now)}"


@dataclass(frozen=True, slots=True)
class Rerun:
    """The outcome of `rerun`. See docs/testing.md#rerun.

    Attributes:
        results: The current results of the calls, in order.
        differences: The calls with different results, in order.
        left_out: How many calls of the recording were not made, because nothing had run then.
    """

    results: Sequence[ToolResult]
    differences: Sequence[Difference]
    left_out: int

    def assert_same(self) -> None:
        """Check that nothing differs.

        Raises:
            AssertionError: Something differs; the error has the report.
        """
        __tracebackhide__ = True
        if self.differences:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        total = f"{len(self.results)} {pluralize(len(self.results), 'result')}"
        differ = pluralize(len(self.differences), "differs", "differ")
        summary = f"of {total}, {len(self.differences)} {differ}; recorded (-), now (+)"
        if not self.differences:
            summary = f"{total}, no difference"
        if self.left_out:
            summary += f" (and {self.left_out} {pluralize(self.left_out, 'call')} not made, of which nothing had run)"
        return "\n\n".join([summary, *map(str, self.differences)])


async def rerun(
    recorded: LoopResult | Iterable[LoggedCall], runner: Runner, *, context: ToolContext | None = None
) -> Rerun:
    """Make the calls of a recorded run again, one after the other, with the tools, the guards and the approver of
    `runner`, and compare the outcomes: status, output and error. See docs/testing.md#rerun.

        (await rerun(result, Runner(tools))).assert_same()

    A call that had not run then, because it was denied, invalid, suspended, limited, or a repetition, is not run now.

    Args:
        recorded: The result of `loop.run`, or the calls of a session as a journal's `Reader` has them.
        runner: The runner with the tools. They are live: they have their real effects.
        context: The context of the calls.

    Raises:
        DefinitionError: It is neither, has no calls, or has one with incomplete arguments: a journal replaces secrets
            by stars.
    """
    pairs = _list_run_calls(recorded) if isinstance(recorded, LoopResult) else _list_journal_calls(recorded, runner)
    if not pairs:
        raise DefinitionError("rerun: there are no calls; a journal that is open writes down what there was by flush()")
    made = [(call, earlier) for call, earlier in pairs if _had_run(earlier)]
    results = [await runner.run(call, context) for call, _ in made]
    found = [
        Difference(call.name, earlier["input"], _facts(earlier), _facts(now.record()))
        for (call, earlier), now in zip(made, results, strict=True)
    ]
    different = tuple(one for one in found if one.recorded != one.now)
    return Rerun(tuple(results), different, len(pairs) - len(made))


def _list_run_calls(run: LoopResult) -> list[tuple[ToolCall, dict[str, Any]]]:
    """Return the calls as the model sent them, with their outcomes."""
    return [(_copy_call(result.call), result.record()) for result in run.results if result.call is not None]


def _copy_call(call: ToolCall) -> ToolCall:
    return ToolCall("", call.name, call.raw, problem=call.problem)


def _list_journal_calls(calls: Iterable[LoggedCall], runner: Runner) -> list[tuple[ToolCall, dict[str, Any]]]:
    """Return the calls of the model, in the order in which they came, with their outcomes."""
    listed = sorted((call for call in calls if call.parent is None), key=lambda call: call.began_at)
    return [(_copy_call(call.to_call(runner.tools)), call.record()) for call in listed]


def _had_run(record: Mapping[str, Any]) -> bool:
    """Return whether the call itself ran then. A repeated call had the result of the first from the journal."""
    return record["executed"] is not False and record["metadata"].get("replayed") is not True


def _facts(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in _COMPARED_FACTS}
