"""Handlers that the tests run in threads, in processes, on workers of DBOS and on actors of Ray, which import this."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ferrule import Media, Text, ToolContext, ToolError


class Item(BaseModel):
    name: str
    count: int


class OutOfStock(ToolError):
    """A tool's own."""


async def echo(value: Any) -> Any:
    return value


def add(a: int, b: int = 2) -> int:
    return a + b


def kinds(day: date, item: Item) -> list[str]:
    return [type(day).__name__, type(item).__name__, day.isoformat(), item.name]


def fail(kind: str) -> str:
    if kind == "own":
        raise OutOfStock("none left", retry_after=3)
    if kind == "not run":
        raise ToolError("it was never sent", executed=False)
    if kind == "exit":
        raise SystemExit(3)
    if kind == "cancelled":
        raise asyncio.CancelledError
    raise {"value": ValueError, "runtime": RuntimeError}[kind]("the text")


async def fail_async(kind: str) -> str:
    return fail(kind)


def blocks() -> list[Any]:
    return [Text("one"), Media("image", b"\x00\xff", "image/png")]


def data() -> bytes:
    return b"\x00\xff"


async def chunks(count: int) -> AsyncIterator[str]:
    for chunk in range(count):
        yield f"{chunk} "
        await asyncio.sleep(0)


async def linger(began: str, ended: str) -> str:
    Path(began).touch()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        Path(ended).touch()
        raise
    return "slept"


def linger_in_thread(began: str, ended: str, context: ToolContext) -> str:
    Path(began).touch()
    until = time.monotonic() + 60
    while not context.cancelled and time.monotonic() < until:
        time.sleep(0.01)
    Path(ended).touch()
    return "slept"


def who(context: ToolContext) -> dict[str, Any]:
    call = context.call
    assert call is not None
    return {
        "session": context.session,
        "principal": context.principal,
        "metadata": dict(context.metadata),
        "key": context.idempotency_key,
        "id": call.id,
        "arguments": dict(call.arguments),
        "remaining": context.remaining(),
    }


def held(context: ToolContext) -> list[Any]:
    return [context.deps, dict(context.secrets)]


def guarded(path: str, token: str) -> str:
    return f"{path} with {token}"


async def nested(context: ToolContext) -> str:
    return (await context.run("add", {"a": 1})).text


def note(file: str, line: str) -> str:
    """Add a line to a file: an effect that can be counted."""
    with open(file, "a", encoding="utf-8") as written:
        written.write(f"{line}\n")
    return line


async def occupy(file: str, line: str, seconds: float) -> str:
    """Note the beginning and the end, with the process."""
    note(file, f"+ {line} {os.getpid()} {time.time()}")
    await asyncio.sleep(seconds)
    note(file, f"- {line} {os.getpid()} {time.time()}")
    return line


def die(file: str) -> str:
    note(file, "died")
    os._exit(3)


def note_or_die(file: str, line: str) -> str:
    """Note it; the process dies then, once, where a file says so."""
    note(file, line)
    wanted = Path(f"{file}.die")
    if wanted.exists():
        wanted.unlink()
        os._exit(9)
    return line


def look_or_die(file: str, line: str) -> str:
    return note_or_die(file, line)


HANDLERS = [
    *(echo, add, kinds, fail, fail_async, blocks, data, chunks, linger, linger_in_thread),
    *(who, held, guarded, nested, note, occupy, die),
]
