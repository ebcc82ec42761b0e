"""The memory of a policy: the runs and the counted calls of each session, in the runner's journal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

from ferrule.policy.rule import Rule, list_mounted_names
from ferrule.policy.when import (
    SessionFacts,
    count_others,
    is_count_of,
    is_day_over,
    make_count_mark,
    make_run_marks,
)
from ferrule.stores.session_rows import Marks, SessionRows
from ferrule.types import Journal
from ferrule.values.call import format_run_id
from ferrule.values.call_key import hash_parts
from ferrule.values.context import RunningCall, ToolContext
from ferrule.values.event import Event

_ENDS = ("tool:post", "tool:error", "tool:suspended")
_TICKET_CHARACTERS = 16


class Ticket(NamedTuple):
    """A call for the memory of a policy.

    Attributes:
        id: Identifies the call in the counts, also after it is resumed; empty for a call that does not run.
        session: The key of the row of its principal and session.
        day: The key of the row of its principal.
        now: Returns the seconds since the epoch, by the clock of its runner.
        is_job: Whether it is a background job.
    """

    id: str
    session: str
    day: str
    now: Callable[[], float]
    is_job: bool = False

    def make_facts(self, session: Marks | None, day: Marks | None) -> SessionFacts:
        """Return the facts about the session of the call, now."""
        return SessionFacts(self.now(), session, day, self.id, self.is_job)


class SessionState:
    """The memory of a policy. `read` and `count` block."""

    def __init__(self) -> None:
        self._rows = SessionRows("policy")
        self._watched: WeakKeyDictionary[RunningCall, Ticket] = WeakKeyDictionary()
        self._counted: set[str] = set()

    def follow(self, journal: Journal | None) -> None:
        """Keep the marks in this journal from now on."""
        self._rows.follow(journal)

    def make_ticket(self, context: ToolContext, *, records_runs: bool = False) -> Ticket:
        """Return the ticket of a call. If the call may run, watch its start and its end.

        Args:
            records_runs: Whether a rule looks for runs of its tool.
        """
        call = context.running_call
        keys = self._rows.make_key(context.principal, context.session), self._rows.make_key(context.principal)
        now = time.time if context.clock is None else context.clock.now
        if call is None or context.is_trial:
            return Ticket("", *keys, now)
        ticket = self._watched.get(call)
        if ticket is None:
            number = hash_parts(format_run_id(call.run_id), call.call.id)[:_TICKET_CHARACTERS]
            ticket = self._watched[call] = Ticket(number, *keys, now, call.is_job)
            context.observe(self._make_observer(ticket, list_mounted_names(context.tool), records_runs=records_runs))
        return ticket

    def read(self, ticket: Ticket) -> SessionFacts:
        """Return the facts about the session of a call.

        Raises:
            StoreError: The store cannot be read.
        """
        return ticket.make_facts(self._rows.read(ticket.session), self._rows.read(ticket.day))

    def count(self, ticket: Ticket, rules: Iterable[Rule]) -> bool:
        """Make these rules, and no others, count the call. Return False if one of them is full meanwhile.

        The marks of a row change in one step, so no two calls get the last place.

        Raises:
            StoreError: The store cannot be read or changed.
        """
        counting = list(rules)
        if counting:
            self._counted.add(ticket.id)
        by_day = [rule for rule in counting if rule.when is not None and rule.when.per == "day"]
        by_session = [rule for rule in counting if rule not in by_day]
        return self._count_in_row(ticket.session, ticket, by_session) and self._count_in_row(ticket.day, ticket, by_day)

    def _count_in_row(self, key: str, ticket: Ticket, rules: Iterable[Rule]) -> bool:
        full: list[Rule] = []

        def change(marks: Marks) -> Marks:
            facts = ticket.make_facts(marks, marks)
            full[:] = [rule for rule in rules if _is_full(rule, marks, facts)]
            own = {} if full else {make_count_mark(rule.key, ticket.id): facts.now for rule in rules}
            kept = _without(marks, ticket)
            if key == ticket.day:
                kept = {name: at for name, at in kept.items() if not is_day_over(at, facts.now)}
            return {**kept, **own}

        self._rows.change(key, change)
        return not full

    def _make_observer(self, ticket: Ticket, mounted: Iterable[str], *, records_runs: bool) -> Callable[[Event], None]:
        """Return an observer that records the start and the success of a call, and uncounts it if it does not run."""

        def add(marks: Mapping[str, float]) -> None:
            self._rows.record(ticket.session, lambda stored: {**stored, **marks})

        def on_event(event: Event) -> None:
            if event.kind == "tool:started" and records_runs:
                add(make_run_marks(event.call.name, mounted, ticket.now(), succeeded=False))
            elif event.kind in _ENDS:
                result = event.data["result"]
                has_run = result.executed is not False and not result.is_replayed
                is_done = event.kind == "tool:post" and "ticket" not in result.metadata  # that is of a background job
                if is_done and records_runs and has_run:
                    add(make_run_marks(event.call.name, (), ticket.now(), succeeded=True))
                self._end(ticket, has_run=has_run)

        return on_event

    def _end(self, ticket: Ticket, *, has_run: bool) -> None:
        """Forget a call that has ended, and uncount it if it has not run. If the store fails, it stays counted."""
        is_counted = ticket.id in self._counted
        self._counted.discard(ticket.id)
        for key in (ticket.session, ticket.day) if is_counted and not has_run else ():
            self._rows.change(key, lambda marks: _without(marks, ticket))


def _is_full(rule: Rule, marks: Marks, facts: SessionFacts) -> bool:
    when = rule.when
    is_counted = make_count_mark(rule.key, facts.ticket) in marks
    return when is not None and not is_counted and count_others(marks, rule.key, when, facts) >= (when.limit or 0)


def _without(marks: Marks, ticket: Ticket) -> Marks:
    """Return the marks without the counts of this call."""
    return {name: at for name, at in marks.items() if not is_count_of(name, ticket.id)}
