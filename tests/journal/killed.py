"""The journal of a program that is killed before it writes what its calls came to."""

from __future__ import annotations

from typing import Any

from ferrule.journal import MemoryJournal
from ferrule.values.journal_entry import Intent


class DyingJournal(MemoryJournal):
    """A journal that stores no outcome while it is `dying`.

    Attributes:
        spares: The calls whose outcome it stores all the same; all of its other calls are cut off.
    """

    dying = False

    def __init__(self) -> None:
        super().__init__()
        self.spares = lambda call_id: False

    async def end(self, intent: Intent, outcome: Any) -> None:
        if not self.dying or self.spares(intent.call_id):
            await super().end(intent, outcome)

    async def while_dying(self, work: Any) -> Any:
        """Await `work` in a program that is killed then, and return what it gave."""
        self.dying = True
        try:
            return await work
        finally:
            self.dying = False
            self.cut_off()
