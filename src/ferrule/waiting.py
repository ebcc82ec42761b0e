"""The calls of one runner that wait for keys and slots, and whether what one waits for can ever come.

A call that runs may call others, and is not done before they are. So two calls that each call what needs a key or a
slot of the other wait in a ring, and would until `queue_timeout`. The call that closes such a ring is not to wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from ferrule.core.context import CallState
from ferrule.core.keys import Hold
from ferrule.core.limiter import Limiter

_For: TypeAlias = "Hold | tuple[Limiter, ...]"
_MOST_STEPS = 1_000
"""Of one search; who is not known to wait in a ring by then, waits, and `queue_timeout` is the bound."""


class Waiting:
    """Which calls wait, and what for: keys, or a slot of any of some limiters.

    Attributes:
        live: All calls that are under way.
    """

    __slots__ = ("_below", "_nested", "_what", "live")

    def __init__(self, live: set[CallState]) -> None:
        self.live = live
        self._what: dict[CallState, _For] = {}
        self._below: dict[CallState, dict[CallState, None]] = {}
        self._nested = 0

    def __len__(self) -> int:
        return len(self._what)

    def add(self, state: CallState, what: _For) -> None:
        """Note that a call waits."""
        self._what[state] = what
        self._nested += state.parent is not None
        for ancestor in ancestors(state):
            self._below.setdefault(ancestor, {})[state] = None

    def remove(self, state: CallState) -> None:
        """Note that it does not wait any more."""
        if self._what.pop(state, None) is None:
            return
        self._nested -= state.parent is not None
        for ancestor in ancestors(state):
            below = self._below.get(ancestor, {})
            below.pop(state, None)
            if not below:
                self._below.pop(ancestor, None)

    def in_a_ring(self, state: CallState) -> bool:
        """Whether a call that waits does so, perhaps by way of others, for its own end."""
        return self._nested > 0 and not _Search(self).may_end(state)

    def what(self, state: CallState) -> _For | None:
        """What a call waits for."""
        return self._what.get(state)

    def below(self, state: CallState) -> Iterable[CallState]:
        """Those of its descendants that wait."""
        return self._below.get(state, ())


class _Search:
    """One look at who waits for whom. A call may end where

    - it waits for keys, and all calls before it there may;
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
        taken = sum(limiter.running for limiter in what)
        for holder in self._holders(what):
            taken -= 1
            if self.may_end(holder):
                return True
        return taken > 0

    def _holders(self, limiters: tuple[Limiter, ...]) -> Iterator[CallState]:
        for state in self._waiting.live:
            for one in state.held:
                if one in limiters:
                    yield state


def ancestors(state: CallState) -> Iterator[CallState]:
    """The calls whose handlers made it, the nearest first."""
    parent = state.parent
    while parent is not None:
        yield parent
        parent = parent.parent
