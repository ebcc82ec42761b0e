"""What the tests of single providers share: two tools, two calls of them, and what is seen of calls and results."""

from __future__ import annotations

from typing import Any

from apis_more import Asked

from ferrule import Toolset, tool
from ferrule.values.call import ToolCall
from ferrule.values.result import ToolResult

ADD: Asked = ("call_a", "add", {"a": 1, "b": 2})
GREET: Asked = ("call_b", "greet", {"name": "Ada"})
PNG = b"\x89PNG\r\n\x1a\n"


@tool(read_only=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def greet(name: str, greeting: str = "Hello") -> str:
    """Greet somebody."""
    return f"{greeting} {name}"


TOOLS = Toolset([add, greet])


def result(call: ToolCall, output: Any = None, **more: Any) -> ToolResult:
    return ToolResult(output, call=call, tool_name=call.name, **more)


def seen(calls: list[ToolCall]) -> list[Any]:
    return [(call.id, call.name, dict(call.arguments), call.problem, call.data) for call in calls]
