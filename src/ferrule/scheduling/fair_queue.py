"""A queue in which groups take turns: a thousand entries of one do not stand before the first of another."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """First come, first served within a group; the groups one entry after the other. Not locked.

    Attributes:
        groups: The entries of each group; one and the same dict for good, so that whoever is in a hurry may keep it.
    """

    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: dict[Hashable, deque[T]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.groups.values()))

    def __bool__(self) -> bool:
        return bool(self.groups)

    def put(self, group: Hashable, item: T) -> None:
        """Add an entry at the end of its group."""
        queue = self.groups.get(group)
        if queue is None:
            queue = self.groups[group] = deque()
        queue.append(item)

    def take(self) -> T:
        """The first entry of the group whose turn it is; the next one is another group's."""
        group, queue = next(iter(self.groups.items()))
        item = queue.popleft()
        del self.groups[group]
        if queue:
            self.groups[group] = queue
        return item

    def remove(self, group: Hashable, item: T) -> bool:
        """Take an entry out; whether it was still there."""
        queue = self.groups.get(group)
        if queue is None or item not in queue:
            return False
        queue.remove(item)
        if not queue:
            del self.groups[group]
        return True
