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
    """

    id: str
    session: str
    day: str
    now: Callable[[], float]

    def make_facts(self, session: Marks | None, day: Marks | None) -> SessionFacts:
        """Return the facts about the session of the call, now."""
        return SessionFacts(self.now(), session, day, self.id)


class SessionState:
    """The memory of a policy. `read`, `count` and `uncount` block."""

    def __init__(self) -> None:
        self._rows = SessionRows("policy")
        self._watched: WeakKeyDictionary[RunningCall, Ticket] = WeakKeyDictionary()

    def follow(self, journal: Journal | None) -> None:
        """Keep the marks in this journal from now on."""
        self._rows.follow(journal)

    def make_ticket(self, context: ToolContext) -> Ticket:
        """Return the ticket of a call. If the call may run, watch its start and its end."""
        call = context.running_call
        keys = self._rows.make_key(context.principal, context.session), self._rows.make_key(context.principal)
        now = time.time if context.clock is None else context.clock.now
        if call is None or context.is_trial:
            return Ticket("", *keys, now)
        ticket = self._watched.get(call)
        if ticket is None:
            number = hash_parts(format_run_id(call.run_id), call.call.id)[:_TICKET_CHARACTERS]
            ticket = self._watched[call] = Ticket(number, *keys, now)
            self._watch(context, ticket)
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

    def uncount(self, ticket: Ticket) -> None:
        """Make no rule count the call, because it has not run. If the store fails, the call stays counted.

        Raises:
            StoreError: The store cannot be read or changed.
        """
        for key in (ticket.session, ticket.day):
            self._rows.change(key, lambda marks: _without(marks, ticket))

    def _watch(self, context: ToolContext, ticket: Ticket) -> None:
        """Record the start and the success of a call, and uncount it if it does not run."""
        mounted = list_mounted_names(context.tool)

        def add(marks: Mapping[str, float]) -> None:
            self._rows.record(ticket.session, lambda stored: {**stored, **marks})

        def on_event(event: Event) -> None:
            if event.kind == "tool:started":
                add(make_run_marks(event.call.name, mounted, ticket.now(), succeeded=False))
            elif event.kind in _ENDS:
                result = event.data["result"]
                if result.is_replayed or result.executed is False:
                    self.uncount(ticket)
                elif event.kind == "tool:post" and result.executed:
                    add(make_run_marks(event.call.name, (), ticket.now(), succeeded=True))

        context.observe(on_event)


def _is_full(rule: Rule, marks: Marks, facts: SessionFacts) -> bool:
    when = rule.when
    is_counted = make_count_mark(rule.key, facts.ticket) in marks
    return when is not None and not is_counted and count_others(marks, rule.key, when, facts) >= (when.limit or 0)


def _without(marks: Marks, ticket: Ticket) -> Marks:
    """Return the marks without the counts of this call."""
    return {name: at for name, at in marks.items() if not is_count_of(name, ticket.id)}
