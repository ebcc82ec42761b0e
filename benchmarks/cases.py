"""What the benchmarks of one call share: the functions and texts, what is configured round them, and the floor."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Literal

from measure import Block
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


class Order(BaseModel):
    id: str
    customer: Customer
    items: list[Item]
    placed: datetime
    currency: Currency = Currency.EUR
    due: datetime | None = None
    remarks: str | None = None


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


async def place(order: Order, note: str | None = None) -> str:
    """Place an order, with a note of its own."""
    return order.id


async def keep(text: str) -> int:
    """Keep a text."""
    return len(text)


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
PLACED = f'{{"order": {ORDER}}}'
LONG = json.dumps({"text": "a, b: c; " * 11_400})


@dataclass(frozen=True)
class Case:
    """One function with one text.

    Attributes:
        key: What it is called on a command line.
        reads: What the guard of `everything` reads of the arguments.
        asked: The ratios for everything and for nothing configured.
        calls: How many of them one measurement takes.
    """

    key: str
    title: str
    function: Callable[..., Awaitable[Any]]
    text: str
    reads: Callable[[Mapping[str, Any]], object]
    asked: tuple[float, float]
    calls: int


CASES = (
    Case("add", "two integers", add, ADD, lambda arguments: arguments["a"], (9.5, 5.0), 500),
    Case(
        "order", "2 KB order with dates", order, ORDER, lambda arguments: arguments["items"][0]["sku"], (1.8, 1.3), 100
    ),
    Case(
        "nested",
        "nested lists that share names with the top level",
        place,
        PLACED,
        lambda arguments: arguments["order"]["items"][0]["sku"],
        (2.1, 1.25),
        100,
    ),
    Case("text", "100 KB text", keep, LONG, lambda arguments: arguments["text"], (1.35, 1.2), 50),
)


CONTEXT = ToolContext(session="s", principal="p")


def observe(event: object) -> None:
    pass


def keep_arguments(arguments: object) -> None:
    return None


def keep_result(result: object) -> None:
    return None


def runs(text: str, subject: Tool, context: ToolContext | None = None, **options: Any) -> Block:
    """Calls as a program writes them."""
    runner = Runner([subject], **options)
    name = subject.name

    async def block(calls: int) -> None:
        run = runner.run
        if context is None:
            for _ in range(calls):
                await run(ToolCall(id="call_1", name=name, arguments=text))
        else:
            for _ in range(calls):
                await run(ToolCall(id="call_1", name=name, arguments=text), context)

    return block


def floor(function: Callable[..., Awaitable[Any]], text: str) -> Block:
    adapter = TypeAdapter(function)

    async def block(calls: int) -> None:
        validate = adapter.validate_json
        for _ in range(calls):
            await validate(text)

    return block


def settings(case: Case) -> dict[str, Any]:
    """What the runner of `everything` has: the deadline is what gives the handler a task of its own."""

    def guard(call: ToolCall, context: ToolContext) -> None:
        case.reads(call.arguments)

    return {
        "observers": [observe],
        "guards": [guard],
        "around": [before(keep_arguments)],
        "inside": [after(keep_result)],
        "timeout": 30,
    }


def nothing(case: Case) -> Block:
    """A runner with nothing configured, and a context."""
    return runs(case.text, tool(case.function), CONTEXT)


def everything(case: Case) -> Block:
    """Events, a context, a limit, a guard that reads an argument, a `before`, an `after` and a deadline."""
    return runs(case.text, tool(case.function).replace(concurrency=8), CONTEXT, **settings(case))
