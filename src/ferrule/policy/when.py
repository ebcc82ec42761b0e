"""The conditions of a rule on the session and on the time.

`When` is a value, and answers from `SessionFacts`, so it reads no store and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.policy.conditions import check_glob, every, matches_glob
from ferrule.policy.hours import Hours
from ferrule.policy.span import format_span, parse_span

Per: TypeAlias = Literal["session", "day"]
DAY_SECONDS: Final = 86_400.0
_MOST_CALLS: Final = 1000
_RAN, _SUCCEEDED, _COUNTED = "ran", "ok", "count"


class SessionFacts(NamedTuple):
    """The facts about a call's session, at one moment.

    A mark has the name `ran TOOL`, `ok TOOL` or `count KEY TICKET`, and the seconds since the epoch as its value.

    Attributes:
        now: Seconds since the epoch.
        session: The marks of the principal in this session; `None` if they cannot be read.
        day: The marks of the principal in all its sessions; `None` likewise.
        ticket: Identifies the call among the counted ones.
        is_job: Whether it is a background job: the call that has started it is counted in its place.
    """

    now: float
    session: Mapping[str, float] | None = None
    day: Mapping[str, float] | None = None
    ticket: str = ""
    is_job: bool = False

    @property
    def is_counted(self) -> bool:
        """Whether a rule counts the call."""
        return any(is_count_of(mark, self.ticket) for marks in (self.session, self.day) for mark in marks or ())


@dataclass(frozen=True, slots=True)
class When:
    """Conditions on the session and on the time. See docs/policy.md#the-session-and-the-time.

    Attributes:
        after: A glob for a tool. It has run in the session.
        before: A glob for a tool. It has not run in the session.
        within: The seconds for `after` and `before`: earlier runs do not count.
        at_most: For an allow: the number of calls that the rule allows.
        more_than: For an ask or a deny: the number of calls that the rule lets through first.
        per: The span of these counts: a session, or 24 hours of all sessions of a principal.
        during: The hours in which the rule holds.
        outside: The hours in which it does not hold.
    """

    after: str | None = None
    before: str | None = None
    within: float | None = None
    at_most: int | None = None
    more_than: int | None = None
    per: Per | None = None
    during: Hours | None = None
    outside: Hours | None = None

    def __post_init__(self) -> None:
        for name in self.names:
            check_glob(name)
        if self.within is not None and not self.names:
            raise DefinitionError('within = "1h" goes with after or before: it says how long ago the call may be')
        if self.per is not None and self.limit is None:
            raise DefinitionError("per goes with at_most or more_than")
        for key, count in (("at_most", self.at_most), ("more_than", self.more_than)):
            if count is not None and not 1 <= count <= _MOST_CALLS:
                raise DefinitionError(f"{key} is a number from 1 to {_MOST_CALLS}, not {count}")

    @property
    def names(self) -> tuple[str, ...]:
        """The globs of `after` and `before`."""
        return tuple(name for name in (self.after, self.before) if name is not None)

    @property
    def limit(self) -> int | None:
        """The number of calls to count, or None."""
        return self.more_than if self.at_most is None else self.at_most

    @property
    def needs_marks(self) -> bool:
        """Whether an answer needs the marks of the session, and not only the time."""
        return bool(self.names) or self.limit is not None

    def check_decision(self, decide: str) -> None:
        """Refuse a count that does not fit the decision of the rule.

        Raises:
            DefinitionError: It does not fit.
        """
        if self.at_most is not None and decide != "allow":
            raise DefinitionError(f'at_most is for decide = "allow"; to {decide} any further call, write more_than')
        if self.more_than is not None and decide == "allow":
            raise DefinitionError('more_than is for decide = "ask" or "deny"; to allow a few calls, write at_most')

    def matches(self, facts: SessionFacts | None, key: str, *, allows: bool, counts: bool = True) -> bool | None:
        """Return whether all conditions hold, or None if that is unknown.

        Args:
            key: The key of the rule in the marks.
            allows: Whether the rule allows. If a run has failed or has not ended, it counts for the stricter answer.
            counts: Whether the number of calls counts.
        """
        if facts is None:
            return None
        answers: list[bool | None] = [] if self.during is None else [self.during.contains(facts.now)]
        answers += [] if self.outside is None else [not self.outside.contains(facts.now)]
        if self.names and facts.session is None:
            answers.append(None)
        elif self.names:
            answers += self._match_runs(facts, facts.session or {}, allows)
        if counts and self.limit is not None:
            answers.append(self._match_count(facts, key))
        return every(answers, empty=True)

    def _match_runs(self, facts: SessionFacts, marks: Mapping[str, float], allows: bool) -> Iterator[bool]:
        """Yield the answers of `after` and `before`: the ones that allow less, if a run is in doubt."""
        if self.after is not None:
            yield self._has_run(facts.now, marks, self.after, surely=allows)
        if self.before is not None:
            yield not self._has_run(facts.now, marks, self.before, surely=not allows)

    def _has_run(self, now: float, marks: Mapping[str, float], glob: str, *, surely: bool) -> bool:
        """Return whether a tool has run in time. `surely` wants a success, and no time in the future."""
        kind = _SUCCEEDED if surely else _RAN
        ages = [now - at for at in _find_times(marks, kind, glob)]
        if self.within is None:
            return bool(ages)
        return any((age >= 0 or not surely) and age <= self.within for age in ages)

    def _match_count(self, facts: SessionFacts, key: str) -> bool | None:
        marks = facts.day if self.per == "day" else facts.session
        if marks is None:
            return None
        others = count_others(marks, key, self, facts)
        is_own = facts.is_job or make_count_mark(key, facts.ticket) in marks
        is_full = others >= (self.limit or 0) and not is_own
        return is_full if self.at_most is None else not is_full

    @property
    def text(self) -> str:
        """The conditions in words: `after run_tests within 1h`."""
        within = "" if self.within is None else f" within {format_span(self.within)}"
        texts = [
            "" if self.after is None else f"after {self.after}{within}",
            "" if self.before is None else f"before {self.before}{within}",
            "" if self.at_most is None else f"at most {self.at_most} per {self.per or 'session'}",
            "" if self.more_than is None else f"more than {self.more_than} per {self.per or 'session'}",
            "" if self.during is None else f"during {self.during.text}",
            "" if self.outside is None else f"outside {self.outside.text}",
        ]
        return " ".join(filter(None, texts))


# -- marks -------------------------------------------------------------------------------------------------------------


def make_run_marks(name: str, others: Iterable[str], at: float, *, succeeded: bool) -> dict[str, float]:
    """Return the marks of a run.

    Args:
        others: The names of the tool in the runners that it was mounted from. Only asks and denies look at them.
    """
    if succeeded:
        return {f"{_SUCCEEDED} {name}": at}
    return {f"{_RAN} {one}": at for one in (name, *others)}


def make_count_mark(key: str, ticket: str) -> str:
    """Return the name of the mark of a counted call."""
    return f"{_COUNTED} {key} {ticket}"


def count_others(marks: Mapping[str, float], key: str, when: When, facts: SessionFacts) -> int:
    """Return the number of other calls that a rule counts."""
    prefix, own = make_count_mark(key, ""), make_count_mark(key, facts.ticket)
    return sum(
        name.startswith(prefix) and name != own and not (when.per == "day" and is_day_over(at, facts.now))
        for name, at in marks.items()
    )


def is_count_of(mark: str, ticket: str) -> bool:
    """Return whether a mark counts the call with this ticket."""
    return mark.startswith(f"{_COUNTED} ") and mark.endswith(f" {ticket}")


def is_day_over(at: float, now: float) -> bool:
    """Return whether 24 hours have passed."""
    return now - at >= DAY_SECONDS


def _find_times(marks: Mapping[str, float], kind: str, glob: str) -> list[float]:
    prefix = f"{kind} "
    return [
        at for mark, at in marks.items() if mark.startswith(prefix) and matches_glob(glob, mark.removeprefix(prefix))
    ]


# -- read --------------------------------------------------------------------------------------------------------------


def _read_word(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise DefinitionError(f"{key} is text, not {value!r:.80}")
    return value


def read_span(value: Any, key: str) -> float:
    """Read a span of time, such as `1h`."""
    try:
        return parse_span(_read_word(value, key))
    except ValueError as error:
        raise DefinitionError(f"{key}: {error}") from None


def read_moment(value: Any, key: str) -> float:
    """Read a date with a time, in UTC unless it names an offset."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(_read_word(value, key))
    except ValueError:
        raise DefinitionError(f"{key} is a date with a time, such as 2026-11-30 09:00, not {value!r:.80}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _read_count(value: Any, key: str) -> int:
    if type(value) is not int:
        raise DefinitionError(f"{key} is a number of calls, not {value!r:.80}")
    return value


def _read_per(value: Any, key: str) -> Per:
    if value not in ("session", "day"):
        raise DefinitionError(f'{key} is "session" or "day", not {value!r:.80}')
    return value  # type: ignore[no-any-return]


def _read_hours(value: Any, key: str) -> Hours:
    return Hours(_read_word(value, key))


WHEN_READERS: Final = {
    "after": _read_word,
    "before": _read_word,
    "within": read_span,
    "at_most": _read_count,
    "more_than": _read_count,
    "per": _read_per,
    "during": _read_hours,
    "outside": _read_hours,
}
"""The keys of a `[[rule]]` for its `When`, with the reader of each."""
