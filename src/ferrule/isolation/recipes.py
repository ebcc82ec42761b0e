"""How a worker makes a tool again: written down in the program, followed in the worker."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ferrule.arguments.argument_errors import ArgumentErrors
from ferrule.arguments.dumping import NoJudgedForm
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.isolation.importable import Place, importable
from ferrule.isolation.transfer import Plain, Transfer, pack_items
from ferrule.values.arguments import Arguments
from ferrule.values.context import JUDGED_TRAITS, UNSET
from ferrule.values.frozen import thaw
from ferrule.values.json_text import dumps


class Recipe:
    """How a worker makes a tool again: one for each tool.

    Attributes:
        name: The tool's.
        text: The recipe itself, as JSON.
        transfer: How arguments and results are sent.
        context: The tool's `context=`, of which each call gets what can be sent.

    Raises:
        DefinitionError: where another process could not make the tool.
    """

    __slots__ = ("context", "name", "text", "transfer")

    def __init__(self, tool: Tool) -> None:
        target = importable(tool.handler, tool.name)
        _check_found_again(target, tool)
        model, wrap = tool.options.get("args_model"), tool.adapt
        self.name = tool.name
        self.transfer: Transfer = tool.transfer
        self.context: Mapping[str, object] | None = tool.context if isinstance(tool.context, Mapping) else None
        recipe = {
            "name": tool.name,
            "target": target,
            "model": None if model is None else importable(model, tool.name),
            "wrap": None if wrap is None else importable(wrap, tool.name),
            "options": _options(tool),
            "defaults": _inner_defaults(tool),
            "callables": [name for name in JUDGED_TRAITS if callable(getattr(tool, name))],
        }
        self.text = json.dumps(recipe)


def _inner_defaults(tool: Tool) -> str:
    """What the schema says below the top level, where validation of what was sent fills in defaults."""
    parameters = tool.handling.parameters
    schema = thaw(parameters.schema) if parameters.exact else {}
    for node in schema.get("properties", {}).values():
        if isinstance(node, dict):
            node.pop("default", None)
    return json.dumps(schema, sort_keys=True)


def _check_found_again(place: Place, tool: Tool) -> None:
    """Check that the name leads to the handler itself, or to the tool that was made of it.

    Raises:
        DefinitionError: where the worker would run something else, such as a function without its decorator.
    """
    module, qualname, _ = place
    try:
        found = _member(sys.modules[module], qualname)
    except (KeyError, AttributeError):
        found = None
    if (found.handler if isinstance(found, Tool) else found) != tool.handler:
        raise DefinitionError(
            f"tool {tool.name!r}: an isolated tool is imported by another process, where {module}:{qualname} would be "
            f"{found!r} and not the function that this tool was made of; give each a name of its own at the top level "
            "of the module"
        )


def _options(tool: Tool) -> Plain:
    options: Plain = {
        "description": tool.description,
        "private": list(tool.private),
        "unknown": tool.unknown,
        "title": tool.title,
        "tags": list(tool.tags),
        "metadata": pack_items(tool.metadata, "json")["sent"],
        **{name: value for name in JUDGED_TRAITS if not callable(value := getattr(tool, name))},
    }
    if (schema := tool.options.get("input_schema")) is not None:
        options["input_schema"] = json.loads(dumps(schema))
    return options


# -- in the worker ---------------------------------------------------------------------------------------------------


def make_tool(text: str) -> Tool:
    """The tool of a recipe: made from the handler itself, as the program made its own.

    Raises:
        Exception: whatever the import of its module raises.
    """
    recipe: Plain = json.loads(text)
    options: Plain = recipe["options"]
    target = _imported(*recipe["target"])
    if recipe["model"] is not None:
        options["args_model"] = _imported(*recipe["model"])
    if isinstance(target, Tool):
        if target.context is not UNSET:
            options["context"] = target.context
        options |= {name: getattr(target, name) for name in recipe["callables"]}
        target = target.handler
    tool = Tool(recipe["name"], target, **options)
    if recipe["wrap"] is not None:
        tool = tool.adapted(_imported(*recipe["wrap"]))
    if _inner_defaults(tool) != recipe["defaults"]:
        raise DefinitionError(
            f"tool {tool.name!r} has other defaults in the process where it would run: let them not depend on where "
            "or when its module is imported"
        )
    return tool


def judged_values(tool: Tool, text: str) -> object:
    """What the handler gets of the judged arguments, validated here once more.

    Raises:
        ValueError: where they do not fit, or would not be what was judged.
    """
    parameters = tool.handling.parameters
    try:
        return parameters.again(Arguments(text, None, parameters))
    except NoJudgedForm as other:
        raise ValueError(str(other)) from None
    except ArgumentErrors as refused:
        wrong = "; ".join(f"{'.'.join(map(str, one.path))} {one.expected}".strip() for one in refused.errors[:5])
        raise ValueError(f"the arguments do not fit the handler in its module: {wrong}") from None


def _imported(module: str, qualname: str, file: str | None) -> Any:
    return _member(_module(module, file), qualname)


def _member(found: Any, qualname: str) -> Any:
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


def _module(name: str, file: str | None) -> ModuleType:
    """Import a module, from its file where the program has it under a name that no path leads to."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if file is None or error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
