"""The calls of one runner that wait for keys and slots, and whether what one waits for can ever come.

A call that runs may call others, and is not done before they are. So two calls that each call what needs a key or a
slot of the other wait in a ring, and would until `queue_timeout`. The call that closes such a ring is not to wait.

Only calls that run, and calls that these have made, can stand in a ring. A call that nobody made, and that does not
run yet, is passed by: `keys.py` lets others take the keys before it, and a slot that it has already, while it waits
for another, is given to a call made by one that runs. It keeps that slot otherwise, or several that want the same two
would pass them round for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any, TypeAlias

from ferrule.scheduling.limiter import Limiter
from ferrule.scheduling.locks import Hold
from ferrule.values.context import CallState

_For: TypeAlias = "Hold | tuple[Limiter, ...]"
Slots: TypeAlias = dict[Any, Limiter]
"""What a call that still waits has so far; it may be taken from there."""
_MOST_STEPS = 100
"""Of one search; who is not known to wait in a ring by then, waits, and `queue_timeout` is the bound."""


class Waiting:
    """Which calls wait, and what for: keys, or a slot of any of some limiters.

    Attributes:
        live: All calls that are under way.
    """

    __slots__ = ("_below", "_slots", "_wanted", "_what", "live")

    def __init__(self, live: set[CallState]) -> None:
        self.live = live
        self._what: dict[CallState, _For] = {}
        self._slots: dict[CallState, Slots] = {}
        self._below: dict[CallState, dict[CallState, None]] = {}
        self._wanted: Counter[Limiter] = Counter()

    def __len__(self) -> int:
        return len(self._what)

    def add(self, state: CallState, what: _For, slots: Slots | None = None) -> None:
        """Note that a call waits, and which slots it has so far."""
        self._what[state] = what
        if slots:
            self._slots[state] = slots
        if state.parent is not None:
            self._wanted.update(_limiters(what))
        for ancestor in ancestors(state):
            self._below.setdefault(ancestor, {})[state] = None

    def remove(self, state: CallState) -> None:
        """Note that it does not wait any more."""
        what = self._what.pop(state)
        self._slots.pop(state, None)
        if state.parent is not None:
            for limiter in _limiters(what):
                self._wanted[limiter] -= 1
                if not self._wanted[limiter]:
                    del self._wanted[limiter]
        for ancestor in ancestors(state):
            below = self._below[ancestor]
            del below[state]
            if not below:
                del self._below[ancestor]

    def in_a_ring(self, state: CallState) -> bool:
        """Whether a call that waits does so, perhaps by way of others, for its own end."""
        if state.parent is None:
            return False
        try:
            return not _Search(self).may_end(state)
        except RecursionError:  # near the end of the caller's own stack
            return False

    def give_way(self, limiters: Collection[Limiter]) -> bool:
        """Let those who only wait give back their slots of these limiters; whether there were any."""
        found = [(state, one) for state, slots in self._slots.items() for one, of in slots.items() if of in limiters]
        for state, one in found:
            slots = self._slots[state]
            slots.pop(one).release()
            if not slots:
                del self._slots[state]
        return bool(found)

    def wanted_by_children(self, limiters: Iterable[Limiter]) -> bool:
        """Whether a call that another one made waits for a slot of one of these."""
        return any(limiter in self._wanted for limiter in limiters)

    def what(self, state: CallState) -> _For | None:
        """What a call waits for."""
        return self._what.get(state)

    def below(self, state: CallState) -> Iterable[CallState]:
        """Those of its descendants that wait."""
        return self._below.get(state, ())


class _Search:
    """One look at who waits for whom. A call may end where

    - it waits for keys, and all that run with them may;
    - it waits for a slot, and any that has one may, or is none of this runner's;
    - it waits for nothing, and all of its descendants that wait may.
    """

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._way: set[CallState] = set()
        self._may: set[CallState] = set()
        self._steps = 0

    def may_end(self, state: CallState) -> bool:
        """Whether it may; what it is asked about again on the way there is a ring, and may not."""
        if state in self._may or self._steps > _MOST_STEPS:
            return True
        if state in self._way:
            return False
        self._steps += 1
        self._way.add(state)
        found = self._found(state)
        self._way.discard(state)
        if found:
            self._may.add(state)
        return found

    def _found(self, state: CallState) -> bool:
        what = self._waiting.what(state)
        if what is None:
            return all(map(self.may_end, self._waiting.below(state)))
        if isinstance(what, Hold):
            return all(self.may_end(hold.owner) for hold in what.in_the_way())
        holders = [one for one in self._waiting.live if one.held and any(slot in what for slot in one.held)]
        if len(holders) < sum(limiter.running for limiter in what):
            return True
        return any(not self._waiting.below(one) for one in holders) or any(map(self.may_end, holders))


def _limiters(what: _For) -> tuple[Limiter, ...]:
    return what if isinstance(what, tuple) else ()


def ancestors(state: CallState) -> Iterator[CallState]:
    """The calls whose handlers made it, the nearest first."""
    parent = state.parent
    while parent is not None:
        yield parent
        parent = parent.parent
