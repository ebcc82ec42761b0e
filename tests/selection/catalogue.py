"""A few tools to select from."""

from __future__ import annotations

from collections.abc import Iterable

from ferrule import Tool, Toolset, build_tool


async def nothing(arguments: dict[str, object]) -> str:
    return ""


def made(name: str, description: str = "", tags: Iterable[str] = (), **parameters: str) -> Tool:
    """A tool of these parameters, each with its description."""
    properties = {key: {"type": "string", "description": said} for key, said in parameters.items()}
    schema = {"type": "object", "properties": properties}
    return build_tool({"name": name, "description": description, "input_schema": schema}, nothing, tags=tags)


SHOP = Toolset(
    [
        made("refund_order", "Give the money of an order back.", ["orders"], order="The number of the order."),
        made("read_order", "What an order holds.", ["orders", "reads"], order="The number of the order."),
        made("read_parcel", "Where a parcel is.", ["reads"], parcel="The number of the parcel."),
        made("send_email", "Send an email to a customer.", text="What it says."),
        made("weather", "The weather of a city."),
    ]
)
SEARCH = made("search_tools", "Find tools by words.", ["tool_search"], query="What the tool should do.")


def names(tools: Iterable[Tool]) -> list[str]:
    return [tool.name for tool in tools]
