"""A queue in which groups take turns: a thousand entries of one do not stand before the first of another."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """First come, first served within a group; the groups one entry after the other. Not locked."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[Hashable, deque[T]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def __bool__(self) -> bool:
        return bool(self._groups)

    def put(self, group: Hashable, item: T) -> None:
        """Add an entry at the end of its group."""
        queue = self._groups.get(group)
        if queue is None:
            queue = self._groups[group] = deque()
        queue.append(item)

    def put_back(self, group: Hashable, item: T) -> None:
        """Put an entry that was taken before all others."""
        queue = self._groups.pop(group, None) or deque()
        queue.appendleft(item)
        self._groups = {group: queue, **self._groups}

    def clear(self) -> list[T]:
        """Take out all that is there."""
        found = [item for queue in self._groups.values() for item in queue]
        self._groups.clear()
        return found

    def take(self) -> T:
        """The first entry of the group whose turn it is; the next one is another group's."""
        group, queue = next(iter(self._groups.items()))
        item = queue.popleft()
        del self._groups[group]
        if queue:
            self._groups[group] = queue
        return item

    def remove(self, group: Hashable, item: T) -> bool:
        """Take an entry out; whether it was still there."""
        queue = self._groups.get(group)
        if queue is None or item not in queue:
            return False
        queue.remove(item)
        if not queue:
            del self._groups[group]
        return True
