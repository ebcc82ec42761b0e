"""The result of an evaluation of tool use: each case, the scores over all, and their minimums."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from ferrule.models import Reply
from ferrule.testing.cases import Case, ExpectedCall
from ferrule.testing.comparing import abbreviate, compute_similarity, format_call
from ferrule.testing.scores import SCORES, CallMade, Scores, check_minimums, compute_means, find_matches

COUNTED_STATUSES = ("not_found", "invalid", "denied")
"""The statuses of calls that are counted by themselves."""
_MAX_WORST_CASES = 5
_MAX_ERROR_CHARACTERS = 500
_ID_WIDTH = 28


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case. See docs/evaluation.md#the-result."""

    case: Case
    expected: tuple[ExpectedCall, ...]
    """The calls of the case, under the names of the tools."""
    called: tuple[CallMade, ...]
    """The calls of the model, in its order."""
    scores: Scores
    text: str = ""
    """The last text of the model."""
    error: str | None = None
    """The error that the model raised."""
    replies: tuple[Reply, ...] = ()
    """The replies of the model, turn by turn: `models.Scripted.from_run(outcome)` gives the same again."""

    def lines(self) -> list[str]:
        """Return lines with the missing calls and the nearest actual call to each, and all actual calls."""
        shown = ", ".join(f"{name} {value:.2f}" for name, value in _values(self.scores).items() if name != "exact")
        found = [f"{_join_lines(self.case.id)} ({shown}): {abbreviate(self.case.request)}"]
        if self.error is not None:
            found.append(f"  the model failed: {_join_lines(self.error)[:_MAX_ERROR_CHARACTERS]}")
        right = find_matches(self.expected, self.called)
        found += [self._describe_missed(one) for at, one in enumerate(self.expected) if at not in right]
        if self.case.refuses:
            found.append("  expected no call at all")
        if self.case.never:
            found.append(f"  expected no call of {', '.join(self.case.never)}")
        return [*found, *([f"  called {call}" for call in self.called] or ["  called nothing"])]

    def _describe_missed(self, wanted: ExpectedCall) -> str:
        shown = format_call(*wanted)
        nearest = max(
            self.called,
            key=lambda call: (
                call.name == wanted.name,
                compute_similarity(shown, format_call(call.name, call.arguments)),
            ),
            default=None,
        )
        return f"  expected {shown}{'' if nearest is None else f'; the nearest call is {nearest}'}"


@dataclass(frozen=True)
class ToolUse:
    """How a model used tools: the result of `evaluate`. See docs/evaluation.md#the-result."""

    outcomes: tuple[Outcome, ...]
    """One outcome for each case, in their order."""

    @cached_property
    def scores(self) -> Scores:
        """The scores over all cases: each the mean over the cases with it."""
        return compute_means([(one.case, one.scores) for one in self.outcomes])

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How many calls had an unknown tool name (`not_found`), were `invalid`, and were `denied`."""
        found = Counter(call.status for one in self.outcomes for call in one.called)
        return {status: found[status] for status in COUNTED_STATUSES}

    def table(self) -> str:
        """Return the scores of each case and over all as plain text, at most 80 characters wide."""
        rows = [_table_row(one.case.id, one.scores, "yes" if one.scores.exact else "no") for one in self.outcomes]
        exact = sum(one.scores.exact == 1 for one in self.outcomes)
        rows.append(_table_row("all", self.scores, f"{exact} of {len(self.outcomes)}"))
        said = {"not_found": "with a name that no tool has", "invalid": "with invalid arguments", "denied": "denied"}
        counts = [f"{self.counts[status]} {what}" for status, what in said.items()]
        failed = sum(one.error is not None for one in self.outcomes)
        head = f"{'case':{_ID_WIDTH}}{''.join(f'{name:>11}' for name in SCORES[:-1])}  exact"
        return "\n".join(
            [head, *rows, "", f"calls: {', '.join(counts)}", *([f"the model failed in {failed}"] * (failed > 0))]
        )

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain JSON values. A value that is no JSON, such as `ANY`, is shown as Python writes
        it.
        """
        cases = [
            {
                "id": one.case.id,
                "scores": asdict(one.scores),
                "expected": [{"name": name, "arguments": dict(arguments)} for name, arguments in one.expected],
                "called": [asdict(call) for call in one.called],
                "text": one.text,
                "error": one.error,
            }
            for one in self.outcomes
        ]
        found = {"scores": asdict(self.scores), "counts": dict(self.counts), "cases": cases}
        return json.loads(json.dumps(found, default=repr))  # type: ignore[no-any-return]

    def find_missed(self, **least: float | None) -> list[str]:
        """Return a line for each score below its minimum; `None` sets no minimum.

        Raises:
            DefinitionError: A score does not exist, a minimum is no share, or no case asks for the score.
        """
        asked = {name: share for name, share in least.items() if share is not None}
        check_minimums(asked, [one.case for one in self.outcomes])
        return [
            f"{name} is {value:.4f}, and at least {asked[name]:g} was asked for"
            for name, value in _values(self.scores).items()
            if name in asked and value < asked[name]
        ]

    def worst(self, most: int = _MAX_WORST_CASES) -> Sequence[Outcome]:
        """Return the cases that are not exactly right, the worst first."""
        wrong = [one for one in self.outcomes if one.scores.exact < 1]
        return sorted(wrong, key=lambda one: sum(_values(one.scores).values()) / len(_values(one.scores)))[:most]

    def assert_at_least(
        self,
        *,
        chosen: float | None = None,
        arguments: float | None = None,
        order: float | None = None,
        refusals: float | None = None,
        exact: float | None = None,
    ) -> None:
        """Check that the scores over all are at least these. See docs/evaluation.md#the-result.

        Raises:
            AssertionError: A score is below; the error names such scores and the worst cases: expected, called, the
                nearest.
            DefinitionError: A minimum is no share from 0 to 1, or no case asks for the score.
        """
        __tracebackhide__ = True
        find_missed = self.find_missed(chosen=chosen, arguments=arguments, order=order, refusals=refusals, exact=exact)
        if find_missed:
            worst = [line for one in self.worst() for line in one.lines()]
            raise AssertionError("\n".join([*find_missed, "The worst cases:", *worst]))


def _values(scores: Scores) -> dict[str, float]:
    return {name: value for name in SCORES if (value := getattr(scores, name)) is not None}


def _table_row(name: str, scores: Scores, exact: str) -> str:
    line = _join_lines(name)
    short = line if len(line) < _ID_WIDTH else f"{line[: _ID_WIDTH - 2]}…"
    values = [getattr(scores, one) for one in SCORES[:-1]]
    return f"{short:{_ID_WIDTH}}{''.join('          –' if one is None else f'{one:11.2f}' for one in values)}  {exact}"


def _join_lines(text: str) -> str:
    return " ".join(text.split())
