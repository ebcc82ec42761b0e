"""A run that waits for answers, continued in other processes: `bills.py ask`, then `bills.py answer call_1 yes eve`."""

import asyncio
import json
import os
import sqlite3
import sys

from ferrule import Journal, Runner, approval, models, tool
from ferrule.loop import LoopResult, NotResumed, resume, run


@tool(ask="it costs money")
def pay(to: str, euros: int) -> str:
    """Pay a bill."""
    return f"paid {to} {euros} EUR"


def show(result: LoopResult, database: sqlite3.Connection) -> None:
    database.execute("REPLACE INTO runs VALUES (1, ?)", [json.dumps(result.suspended)])
    for call_id, pending in (result.suspended or {"waiting": {}})["waiting"].items():
        print(f"{call_id}: {pending['reason']} {pending['arguments']}")
    if result.suspended is None:
        print(result.text)


async def main(command: str, *answer: str) -> None:
    database = sqlite3.connect("bills.db", isolation_level=None)
    database.execute("CREATE TABLE IF NOT EXISTS runs (id INTEGER PRIMARY KEY, suspended TEXT)")
    key = os.environ["RESUME_KEY"].encode()  # the same in every process, at least 32 bytes
    runner = Runner([pay], approve=approval.later, resume_key=key, journal=Journal.open("calls.db"))
    if command == "ask":
        bills = [("pay", {"to": "ada", "euros": 500}), ("pay", {"to": "bob", "euros": 20})]
        model = models.Scripted([bills])  # or models.Anthropic("claude-sonnet-5-5")
        show(await run(model, model.user("Pay the bills."), runner, principal="kim"), database)
        return
    call_id, word, by = answer
    [row] = database.execute("SELECT suspended FROM runs")
    model = models.Scripted([lambda messages: str(messages[-1]["content"])])
    try:
        show(await resume(json.loads(row[0]), {call_id: word == "yes"}, model, runner, by=by), database)
    except NotResumed as error:
        print(error)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
