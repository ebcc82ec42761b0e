"""What a worker is told: how a tool is made again, and one call of it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from ferrule.definition.importable import Place, importable
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.isolation.protocol import CannotCross, Transfer, packed_items, pickled, to_bytes
from ferrule.values.call import ToolCall
from ferrule.values.context import UNSET
from ferrule.values.json_text import dumps

_TRAITS = ("read_only", "destructive", "idempotent", "open_world", "parallel")


def found_again(place: Place, function: Any, name: str) -> None:
    """Check that the name leads to `function` itself, or to the tool that was made of it.

    Raises:
        DefinitionError: where the worker would run something else, such as a function without its decorator.
    """
    found: Any = sys.modules.get(place[0])
    try:
        for part in place[1].split("."):
            found = getattr(found, part)
    except AttributeError:
        found = None
    if (found.handler if isinstance(found, Tool) else found) != function:
        where = f"{place[0]}:{place[1]}"
        raise DefinitionError(
            f"tool {name!r}: an isolated tool is imported by another process, where {where} would be {found!r} and not "
            "the function that this tool was made of; give each a name of its own at the top level of the module"
        )


class Recipe:
    """How a worker makes a tool again: compiled once for each tool.

    Args:
        tool: Whose handler is importable.
        transfer: How arguments and results cross.

    Raises:
        DefinitionError: where another process could not make it.
    """

    __slots__ = ("context", "data", "name", "transfer")

    def __init__(self, tool: Tool, transfer: Transfer = "json") -> None:
        handling, kinds = tool._handling, tool._kinds
        target = importable(tool.handler, tool.name)
        found_again(target, tool.handler, tool.name)
        model, wrap = kinds["args_model"], handling.wrap
        recipe = {
            "name": tool.name,
            "target": target,
            "model": None if model is None else importable(model, tool.name),
            "wrap": None if wrap is None else importable(wrap, tool.name),
            "options": _options(tool),
            "callables": [name for name in _TRAITS if callable(getattr(tool, name))],
        }
        self.name = tool.name
        self.transfer: Transfer = transfer
        self.context = tool.context
        self.data = json.dumps(recipe).encode()


def _options(tool: Tool) -> dict[str, Any]:
    options: dict[str, Any] = {
        "description": tool.description,
        "private": list(tool.private),
        "unknown": tool.unknown,
        "title": tool.title,
        "tags": list(tool.tags),
        "metadata": packed_items(tool.metadata, "json").get("kept", {}),
        **{name: value for name in _TRAITS if not callable(value := getattr(tool, name))},
    }
    if tool._kinds["input_schema"] is not None:
        options["input_schema"] = json.loads(dumps(tool._kinds["input_schema"]))
    return options


class Order:
    """One call, ready to be sent: made where it is submitted, so that what is sent is what was judged.

    Args:
        recipe: The tool's.
        call: With the judged arguments as its `raw` text.
        given: Session, principal, working directory, deps, metadata and secrets, as a `ToolContext` keeps them.
        values: The validated values, which cross where the transfer is pickle.
        remaining: Seconds until the deadline.

    Raises:
        CannotCross: where arguments or context cannot be sent.
    """

    __slots__ = ("body", "deadline", "head", "recipe")

    def __init__(
        self, recipe: Recipe, call: ToolCall, given: tuple[Any, ...], values: Any, remaining: float | None
    ) -> None:
        session, principal, directory, _, metadata, secrets = given
        transfer, context = recipe.transfer, recipe.context
        text = call.raw if isinstance(call.raw, str) else to_bytes(dict(call.arguments), "arguments").decode()
        self.deadline = None if remaining is None else time.monotonic() + remaining
        head = {
            "id": call.id,
            "parent": call.parent,
            "transfer": transfer,
            "session": session,
            "principal": principal,
            "working_directory": directory,
            "metadata": packed_items(metadata, transfer) if metadata else {},
            "secrets": packed_items(secrets, transfer) if secrets else {},
            "context": packed_items(context, transfer)
            if context is not UNSET and isinstance(context, Mapping)
            else None,
            "deadline": self.deadline,
        }
        self.recipe = recipe
        try:
            self.head = json.dumps(head).encode()
        except (TypeError, ValueError) as error:
            raise CannotCross(f"the context of the call cannot cross: {error}") from None
        self.body = (
            pickled((values, text), "its arguments") if transfer == "pickle" else text.encode("utf-8", "surrogatepass")
        )
