"""What one call costs, as a ratio to Pydantic's own validate-and-call, and what each promise adds.

Run: python benchmarks/call.py
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from enum import Enum
from typing import Any, Literal

from measure import Block, measured
from pydantic import BaseModel, TypeAdapter

from ferrule import Runner, Tool, ToolCall, ToolContext, tool
from ferrule.middleware import after, before


class Currency(Enum):
    EUR = "EUR"
    USD = "USD"


class Item(BaseModel):
    sku: str
    name: str
    quantity: int
    price: float
    kind: Literal["book", "toy", "tool"] = "tool"
    note: str | None = None


class Customer(BaseModel):
    name: str
    email: str
    since: datetime
    vip: bool = False


async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


async def order(
    id: str,
    customer: Customer,
    items: list[Item],
    placed: datetime,
    currency: Currency = Currency.EUR,
    due: datetime | None = None,
    remarks: str | None = None,
) -> str:
    """Place an order."""
    return id


ADD = '{"a": 1, "b": 2}'
ORDER = json.dumps(
    {
        "id": "o-20261",
        "customer": {"name": "Ada Byron", "email": "ada@example.org", "since": "2020-02-03T04:05:06Z", "vip": True},
        "placed": "2026-11-20T10:11:12Z",
        "currency": "USD",
        "due": "2026-12-01T00:00:00Z",
        "items": [
            {"sku": f"S{n:04}", "name": f"Thing {n}", "quantity": n + 1, "price": 9.5, "kind": "toy", "note": None}
            for n in range(20)
        ],
    }
)


def observe(event: Any) -> None:
    pass


def unchanged(arguments: Any) -> None:
    return None


def untouched(result: Any) -> None:
    return None


def guard(name: str) -> Any:
    def reads_one(call: ToolCall, context: ToolContext) -> None:
        call.arguments[name]

    return reads_one


def runs(text: str, subject: Tool, context: ToolContext | None = None, **options: Any) -> Block:
    runner = Runner([subject], **options)
    name = subject.name

    async def block(calls: int) -> None:
        run = runner.run
        if context is None:
            for _ in range(calls):
                await run(ToolCall("call_1", name, text))
        else:
            for _ in range(calls):
                await run(ToolCall("call_1", name, text), context)

    return block


def floor(function: Any, text: str) -> Block:
    adapter = TypeAdapter(function)

    async def block(calls: int) -> None:
        validate = adapter.validate_json
        for _ in range(calls):
            await validate(text)

    return block


async def _one_task() -> None:
    pass


def created_tasks() -> Block:
    import asyncio

    async def block(calls: int) -> None:
        for _ in range(calls):
            await asyncio.create_task(_one_task())

    return block


def report(title: str, function: Any, text: str, reads: str, limits: tuple[float, float], calls: int) -> None:
    bare = tool(function)
    context = ToolContext(session="s", principal="p")
    everything: dict[str, Any] = {
        "observers": [observe],
        "guards": [guard(reads)],
        "around": [before(unchanged)],
        "inside": [after(untouched)],
        "timeout": 30,
    }
    blocks = {
        "floor: TypeAdapter(fn).validate_json": floor(function, text),
        "nothing configured": runs(text, bare),
        "+ context": runs(text, bare, context),
        "+ concurrency of the tool": runs(text, bare.replace(concurrency=8)),
        "+ deadline": runs(text, bare, timeout=30),
        "+ observer": runs(text, bare, observers=[observe]),
        "+ guard that reads one argument": runs(text, bare, guards=[guard(reads)]),
        "+ before": runs(text, bare, around=[before(unchanged)]),
        "+ after": runs(text, bare, inside=[after(untouched)]),
        "everything": runs(text, bare.replace(concurrency=8), context, **everything),
        "(one create_task)": created_tasks(),
    }
    found = measured(blocks, calls=calls, rounds=15)
    base, nothing = found["floor: TypeAdapter(fn).validate_json"], found["nothing configured"]
    print(f"\n{title} ({len(text)} bytes), Python {sys.version.split()[0]}")
    for name, time in found.items():
        extra = f"{time - nothing:+7.2f} µs" if name.startswith("+") else " " * 10
        print(f"  {name:38} {time:8.2f} µs {time / base:6.2f} x  {extra}")
    print(f"  asked for: nothing configured {limits[0]} x, everything {limits[1]} x (on 3.11 plus one create_task)")


if __name__ == "__main__":
    report("two integers", add, ADD, "a", (2.5, 6.0), 20_000)
    report("nested order", order, ORDER, "id", (1.15, 1.35), 4_000)
