"""What a journal of one's own, and the use of Ferrule's, look like to a type checker."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, assert_type

from ferrule import Deferred, Event, Journal, Runner, ToolCall, ToolContext, ToolResult, tool
from ferrule.journal import MemoryJournal, SQLiteJournal, memory
from ferrule.stores.store import Memory, Store
from ferrule.testing import JournalContract
from ferrule.tools import background
from ferrule.types import Begun
from ferrule.values.frozen import JsonObject
from ferrule.values.journal_entry import Intent, JournalEntry


class OwnJournal(Journal):
    """The shape of one's own."""

    def __init__(self) -> None:
        self.calls: dict[str, JournalEntry] = {}
        self.kept = Memory()

    def note(self, event: Event) -> None:
        print(event.kind)

    async def find(self, key: str, *, wait: bool = False) -> JournalEntry | None:
        return self.calls.get(key)

    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
        self.calls[intent.key] = JournalEntry(intent=intent, state="running")
        return Begun(after, other_arguments=False)

    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        self.calls[intent.key] = JournalEntry(intent=intent, state="ended", outcome=outcome)

    async def unfinished(self, *, ticket: str | None = None) -> list[JournalEntry]:
        return [kept for kept in self.calls.values() if kept.state != "ended"]

    async def settle(self, entry: JournalEntry, outcome: JsonObject | None) -> bool:
        return entry.intent.key in self.calls and outcome is not None

    async def take(self, key: str, expires_at: float) -> bool:
        return expires_at > 0

    @property
    def store(self) -> Store:
        return self.kept


class TestOwn(JournalContract):
    """Its tests."""

    def make(self) -> Journal:
        return OwnJournal()

    def second(self, journal: Journal) -> Journal:
        return journal

    def reopen(self, journal: Journal) -> Journal:
        return journal


async def look(call: ToolCall, context: ToolContext) -> ToolResult | Literal[False] | None:
    return ToolResult(context.idempotency_key) if call.arguments else False


def look_at_once(call: ToolCall, context: ToolContext) -> ToolResult | None:
    return None


@tool(reconcile=look)
async def pay(euros: int) -> str:
    """Pay."""
    return str(euros)


@tool(reconcile=look_at_once)
def order(book: str, context: ToolContext) -> str | Deferred:
    """Order."""
    return book if context.answer else Deferred("t-1", poll_after=60, expires_in=3600)


@tool(background=True)
async def crunch(numbers: list[int]) -> int:
    """Crunch."""
    return sum(numbers)


async def use(path: Path) -> None:
    """The journals that there are."""
    journal = Journal.open(path, durable="normal", keep=90)
    assert_type(journal, SQLiteJournal)
    assert_type(memory(), MemoryJournal)
    runner = Runner([pay, order, crunch, *background.tools], journal=Journal.open("calls.db"))
    assert_type(runner.journal, Journal | None)
    assert_type(await runner.recover(), list[ToolResult])
    assert_type(await runner.resolve("t-1", ToolResult("done")), ToolResult)
    assert_type([work.result for work in runner.jobs], list[ToolResult | None])
    for own in (OwnJournal(), memory(), journal):
        await Runner([pay], journal=own).run(ToolCall("c1", "pay", {"euros": 3}), session="s", turn="1")
