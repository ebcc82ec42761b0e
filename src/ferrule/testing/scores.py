"""How well the calls of a model fit the right ones. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import fsum
from typing import Any

from ferrule.errors import DefinitionError
from ferrule.testing.cases import Case, ExpectedCall
from ferrule.testing.comparing import format_call, include_all


@dataclass(frozen=True, slots=True)
class Scores:
    """Shares from 0 to 1, of one case or as means over cases; `None` if no case asks for it.

    See docs/evaluation.md#the-scores.
    """

    chosen: float | None
    """The right tools, as often as they are expected: F1 of the two lists of names."""
    arguments: float | None
    """The share of the expected calls with the right arguments, among those that were made."""
    order: float | None
    """The share of calls in the order of the case, among the expected calls made with the right arguments."""
    refusals: float | None
    """Whether nothing was called if nothing should be, and no tool that must not be called."""
    exact: float
    """1 if everything of the case is right, else 0; over all, the share of such cases."""


SCORES = tuple(one.name for one in fields(Scores))
"""The names of the scores, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class CallMade:
    """A call that a model made. See docs/evaluation.md#the-scores."""

    name: str
    """The tool's own name; the model's name for it if no tool has it."""
    arguments: dict[str, Any]
    """The validated arguments, with defaults; the sent ones if they do not fit."""
    status: str
    """The status of the call. A call of the last turn is not run; it is `invalid` if its arguments do not fit."""
    error: str | None = None

    def is_right(self, wanted: ExpectedCall) -> bool:
        """Return whether it is the wanted call: the same name, and valid arguments that include the wanted ones."""
        return self.name == wanted.name and self.status != "invalid" and include_all(self.arguments, wanted.arguments)

    def __str__(self) -> str:
        return f"{format_call(self.name, self.arguments)} → {self.status}"


def score_case(case: Case, expected: Sequence[ExpectedCall], called: Sequence[CallMade], is_restrained: bool) -> Scores:
    """Return the scores of one case.

    Args:
        case: The case.
        expected: Its calls, under the names of the tools.
        called: The calls of the model.
        is_restrained: Whether the model called nothing that it must not.
    """
    wanted, made = Counter(one.name for one in expected), Counter(one.name for one in called)
    same = (wanted & made).total()
    right = len(find_matches(expected, called))
    chosen = 2 * same / (len(expected) + len(called)) if expected else None
    arguments = right / same if same else None
    in_order = _count_in_order(expected, called)
    order = in_order / right if case.in_order and right else None
    refusals = float(is_restrained) if case.refuses or case.never else None
    whole = right == len(expected) and (not expected or len(called) == right)
    exact = whole and refusals in (None, 1.0) and order in (None, 1.0)
    return Scores(chosen, arguments, order, refusals, float(exact))


def score_failed_case(case: Case) -> Scores:
    """Return the scores of a case in which the model failed: 0 in all that the case asks for."""
    calls = 0.0 if case.expected else None
    return Scores(calls, calls, 0.0 if case.in_order else None, 0.0 if case.refuses or case.never else None, 0.0)


def check_minimums(least: Mapping[str, float], cases: Iterable[Case]) -> None:
    """Check that scores over these cases can be compared with these minimums.

    Raises:
        DefinitionError: A score does not exist, a minimum is no share, or no case asks for the score.
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


def find_matches(expected: Sequence[ExpectedCall], called: Sequence[CallMade]) -> set[int]:
    """Return the indices of as many expected calls as can have a right call each."""
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


def _count_in_order(expected: Sequence[ExpectedCall], called: Sequence[CallMade]) -> int:
    """Return the highest number of expected calls with a right call each, in the same order."""
    before = [0] * (len(called) + 1)
    for wanted in expected:
        row = [0]
        for at, call in enumerate(called):
            row.append(before[at] + 1 if call.is_right(wanted) else max(before[at + 1], row[at]))
        before = row
    return before[-1]


def compute_means(cases: Sequence[tuple[Case, Scores]]) -> Scores:
    """Return the scores over all cases: each the mean over the cases with it. If cases have calls, and no expected one
    was made, `arguments` is 0. If cases ask for an order, and no call was right, `order` is 0.
    """
    by_name = {name: _compute_mean(getattr(scores, name) for _, scores in cases) for name in SCORES}
    if by_name["arguments"] is None and any(case.expected for case, _ in cases):
        by_name["arguments"] = 0.0
    if by_name["order"] is None and any(case.in_order for case, _ in cases):
        by_name["order"] = 0.0
    return Scores(**by_name)  # type: ignore[arg-type]


def _compute_mean(values: Iterable[float | None]) -> float | None:
    listed = [value for value in values if value is not None]
    return fsum(listed) / len(listed) if listed else None
