"""A desk whose calls a journal keeps: what tests of reading it look into."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ferrule import Decision, Journal, Runner, ToolCall, ToolContext, allow, ask, tool
from ferrule.guards import ask_before_changes
from ferrule.journal.reading import Filter, LoggedCall, Reader

KEY = b"k" * 32
ADA = ToolContext(principal="ada", session="s1")
DESK = """
from journal_desk import *

async def kept(path, work):
    journal = Journal.open(path)
    try:
        await work(desk(journal))
    finally:
        await journal.flush()
"""


@tool
async def refund(order: str, euros: int = 1) -> str:
    """Refund an order; of one that is named "slow", print so and wait for ever."""
    if order == "slow":
        print("slow", flush=True)
        await asyncio.Event().wait()
    return f"refunded {order}"


@tool(read_only=True)
async def look(order: str) -> str:
    """Look an order up."""
    if order == "slow":
        print("slow", flush=True)
        await asyncio.Event().wait()
    if order == "bad":
        raise LookupError("there is no such order")
    return f"{order} is paid"


async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    """Eve allows all but what is for later."""
    return ask("somebody else decides") if call.arguments.get("order") == "later" else allow(by="eve")


def desk(journal: Journal, **options: Any) -> Runner:
    """A runner of the desk's tools."""
    given: dict[str, Any] = {"tools": [refund, look], "guards": [ask_before_changes], "approve": approve}
    return Runner(**{**given, "resume_key": KEY, "journal": journal, **options})


def journaled(path: Path, work: Callable[[Runner], Awaitable[Any]], **options: Any) -> Any:
    """What `work` gives of a desk whose journal is closed then."""

    async def main() -> Any:
        journal = Journal.open(path)
        try:
            return await work(desk(journal, **options))
        finally:
            journal.close()

    return asyncio.run(main())


def call(id: str, name: str = "refund", **arguments: Any) -> ToolCall:
    return ToolCall(id, name, {"order": "o1", **arguments})


async def one_of_each(runner: Runner) -> None:
    """A call that is `ok`, the same once more, one that is suspended, one that is `failed`, and `not_found`."""
    await runner.run(call("c1"), ADA)
    await runner.run(call("c1"), ADA)
    await runner.run(call("c2", order="later"), ADA)
    await runner.run(call("c3", "look", order="bad"), ADA)
    await runner.run(call("c4", "refnd"), ToolContext(principal="bob", session="s2"))


def found(path: Path | str, **wanted: Any) -> list[tuple[str, str]]:
    """The ids and the statuses of the records that fit."""
    return [(one.call_id, one.status) for one in Reader(path).calls(Filter(every=True, **wanted))]


def the_call(path: Path | str, call_id: str) -> LoggedCall:
    [one] = Reader(path).call(call_id)
    return one


class CountingReader(Reader):
    """A reader that counts the steps of SQLite's machine, in hundreds."""

    steps = 0

    def _connect(self, *, still: bool) -> sqlite3.Connection:
        def count() -> None:
            self.steps += 1

        connection = super()._connect(still=still)
        connection.set_progress_handler(count, 100)
        return connection


def aged(path: Path, days: float) -> None:
    """Let all that is there have happened so many days earlier."""
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE events SET at = at - ?", (days * 86_400,))
        connection.execute("UPDATE calls SET at = at - ?, ended_at = ended_at - ?", (days * 86_400,) * 2)
        rows = connection.execute("SELECT seq, json_extract(data, '$.pending.expires_at') FROM events").fetchall()
        for seq, expires_at in rows:
            if expires_at is not None:
                change = "UPDATE events SET data = json_set(data, '$.pending.expires_at', ?) WHERE seq = ?"
                connection.execute(change, (expires_at - days * 86_400, seq))
    connection.close()
