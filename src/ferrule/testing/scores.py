"""How well the calls that a model made fit those that were right. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import fsum
from typing import Any

from ferrule.errors import DefinitionError
from ferrule.testing.cases import Case, ExpectedCall
from ferrule.testing.comparing import as_call, have


@dataclass(frozen=True, slots=True)
class Scores:
    """Shares from 0 to 1, of one case or as means over cases; `None` where no case asks for it.

    See docs/evaluation.md#the-scores.
    """

    chosen: float | None
    """The right tools, as often as they are expected: F1 of the two lists of names."""
    arguments: float | None
    """Of the expected calls that were made, how many had the right arguments."""
    order: float | None
    """Of the expected calls that were made with the right arguments, how many stand in the order of the case."""
    refusals: float | None
    """Whether nothing was called where nothing was to be, and no tool that must not be called."""
    exact: float
    """1 where everything of the case is right, else 0; over all, the share of such cases."""


SCORES = tuple(one.name for one in fields(Scores))
"""The names of the scores, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class CallMade:
    """A call that a model made. See docs/evaluation.md#the-scores."""

    name: str
    """The tool's own name; where no tool has it, what the model wrote."""
    arguments: dict[str, Any]
    """As they were validated, with defaults; as they were sent, where they do not fit."""
    status: str
    """What it came to; `invalid` also of a call of the last turn, which is not run, whose arguments do not fit."""
    error: str | None = None

    def is_right(self, wanted: ExpectedCall) -> bool:
        """Whether it is that call: the name, valid arguments, and among them those that are wanted."""
        return self.name == wanted.name and self.status != "invalid" and have(self.arguments, wanted.arguments)

    def __str__(self) -> str:
        return f"{as_call(self.name, self.arguments)} → {self.status}"


def scores_of(case: Case, expected: Sequence[ExpectedCall], called: Sequence[CallMade], kept: bool) -> Scores:
    """The scores of one case.

    Args:
        case: What was asked for.
        expected: Its calls, under the names that the tools have.
        called: What the model called.
        kept: Whether it called nothing that it must not.
    """
    wanted, made = Counter(one.name for one in expected), Counter(one.name for one in called)
    same = (wanted & made).total()
    right = len(matched(expected, called))
    chosen = 2 * same / (len(expected) + len(called)) if expected else None
    arguments = right / same if same else None
    in_order = _longest_in_order(expected, called)
    order = in_order / right if case.in_order and right else None
    refusals = float(kept) if case.refuses or case.never else None
    whole = right == len(expected) and (not expected or len(called) == right)
    exact = whole and refusals in (None, 1.0) and order in (None, 1.0)
    return Scores(chosen, arguments, order, refusals, float(exact))


def scores_of_failed(case: Case) -> Scores:
    """Those of a case in which the model failed: 0 in all that the case asks for."""
    calls = 0.0 if case.expected else None
    return Scores(calls, calls, 0.0 if case.in_order else None, 0.0 if case.refuses or case.never else None, 0.0)


def check_least(least: Mapping[str, float], cases: Iterable[Case]) -> None:
    """Look whether scores over these cases can be held against what they are to be at least.

    Raises:
        DefinitionError: for a score that there is not, one that is no share, and one that no case asks for.
    """
    listed = list(cases)
    asked = {
        "chosen": any(case.expected for case in listed),
        "arguments": any(case.expected for case in listed),
        "order": any(case.in_order for case in listed),
        "refusals": any(case.refuses or case.never for case in listed),
        "exact": True,
    }
    for name, share in least.items():
        if name not in asked:
            raise DefinitionError(f"there is no score {name!r}; there are {', '.join(SCORES)}")
        if not 0 <= share <= 1:
            raise DefinitionError(f"{name}={share!r}: give a number from 0 to 1, such as 0.9")
        if not asked[name]:
            raise DefinitionError(f"no case asks for {name}, so that {name}={share!r} could never fail")


def matched(expected: Sequence[ExpectedCall], called: Sequence[CallMade]) -> set[int]:
    """The places of as many expected calls as can have a right call each."""
    taken: dict[int, int] = {}

    def place(wanted: int, seen: set[int]) -> bool:
        for at, call in enumerate(called):
            if at not in seen and call.is_right(expected[wanted]):
                seen.add(at)
                if at not in taken or place(taken[at], seen):
                    taken[at] = wanted
                    return True
        return False

    for wanted in range(len(expected)):
        place(wanted, set())
    return set(taken.values())


def _longest_in_order(expected: Sequence[ExpectedCall], called: Sequence[CallMade]) -> int:
    """The most expected calls that have a right call each, these in the same order."""
    before = [0] * (len(called) + 1)
    for wanted in expected:
        row = [0]
        for at, call in enumerate(called):
            row.append(before[at] + 1 if call.is_right(wanted) else max(before[at + 1], row[at]))
        before = row
    return before[-1]


def means(cases: Sequence[tuple[Case, Scores]]) -> Scores:
    """The scores over all cases: each the mean over the cases that have it. Where cases have calls, and none of these
    was made, `arguments` is 0; so is `order` where none was right."""
    by_name = {name: _mean_of(getattr(scores, name) for _, scores in cases) for name in SCORES}
    if by_name["arguments"] is None and any(case.expected for case, _ in cases):
        by_name["arguments"] = 0.0
    if by_name["order"] is None and any(case.in_order for case, _ in cases):
        by_name["order"] = 0.0
    return Scores(**by_name)  # type: ignore[arg-type]


def _mean_of(values: Iterable[float | None]) -> float | None:
    listed = [value for value in values if value is not None]
    return fsum(listed) / len(listed) if listed else None
