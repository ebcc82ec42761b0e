"""The tools of a shop, as the tests of the page call them: nested arguments, media, tables, progress, a preview."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from ferrule import Diff, Media, Text, ToolContext, ToolError, ToolResult, Toolset, tool

PRICES = {"tea": 4, "coffee": 7, "cocoa": 5}


class Address(BaseModel):
    """Where it goes."""

    street: str
    city: str = "Berlin"


class Pickup(BaseModel):
    """The customer comes."""

    kind: Literal["pickup"]
    day: Literal["monday", "friday"]


class Delivery(BaseModel):
    """We send it."""

    kind: Literal["delivery"]
    address: Address
    express: bool = False


class Line(BaseModel):
    """One line of an order."""

    article: Literal["tea", "coffee", "cocoa"]
    count: Annotated[int, Field(ge=1, le=100)] = 1


@tool(read_only=True, tags=["stock"])
def stock(article: Literal["tea", "coffee", "cocoa"]) -> int:
    """Say how many of an article are there."""
    return {"tea": 3, "coffee": 0, "cocoa": 12}[article]


@tool(read_only=True)
def list_orders(limit: int = 3) -> list[dict[str, Any]]:
    """List the newest orders as a table."""
    articles = list(PRICES)
    return [{"order": 1000 + n, "article": articles[n % 3], "count": n + 1, "paid": n % 2 == 0} for n in range(limit)]


@tool(destructive=False, open_world=False)
def order(lines: list[Line], ship: Pickup | Delivery, note: str | None = None, labels: dict[str, str] = {}) -> Any:  # noqa: B006
    """Order articles for a customer.

    Args:
        lines: What is ordered.
        ship: How it leaves the shop.
        note: A word for the packers.
        labels: Anything else, by name.
    """
    total = sum(PRICES[line.article] * line.count for line in lines)
    return {"total": total, "lines": [line.model_dump() for line in lines], "ship": ship.model_dump(), "note": note}


def show_price(arguments: Mapping[str, Any]) -> Diff:
    """The price list as it is and as it would be."""
    article, euros = arguments["article"], arguments["euros"]
    after = {**PRICES, article: euros}
    before, now = ("".join(f"{name}: {price} EUR\n" for name, price in one.items()) for one in (PRICES, after))
    return Diff(before, now, "prices.txt", {"seen": PRICES.get(article)})


@tool(preview=show_price, private=["seen"], open_world=False)
def set_price(article: str, euros: Annotated[int, Field(ge=1, le=50)], seen: int | None = None) -> str:
    """Set the price of an article. Everybody sees it at once."""
    if seen is not None and PRICES.get(article) != seen:
        raise ToolError("the price has changed since it was shown", executed=False)
    PRICES[article] = euros
    return f"{article} costs {euros} EUR now"


@tool(destructive=False, open_world=False)
async def pack(boxes: int, context: ToolContext) -> str:
    """Pack boxes, and say how far it is."""
    for number in range(boxes):
        context.progress(number + 1, boxes, f"box {number + 1} is packed")
        await asyncio.sleep(0)
    return f"packed {boxes} boxes"


def draw_square() -> bytes:
    """A PNG with one colour, of 64 pixels each way."""
    rows = b"".join(b"\0" + b"\x0b\x6b\x63" * 64 for _ in range(64))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@tool(read_only=True)
def label(order_id: int) -> ToolResult:
    """Draw the label of a parcel, say its name, and give its form."""
    silence = b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0@\x1f\0\0@\x1f\0\0\x01\0\x08\0data\0\0\0\0"
    blocks = [
        Text(f"label of order {order_id}"),
        Media("image", draw_square(), "image/png", name="label.png"),
        Media("audio", silence, "audio/wav", name="name.wav"),
        Media("file", b"<script>alert(1)</script>", "text/html", name="form.html"),
        Media("image", None, "image/png", uri="http://127.0.0.1:9/elsewhere.png"),
    ]
    return ToolResult(content=blocks)


tools = Toolset([stock, list_orders, order, set_price, pack, label])
POLICY = Path(__file__).with_name("policy.toml")
