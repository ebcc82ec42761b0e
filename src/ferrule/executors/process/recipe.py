"""Make a tool again in another process, from a recipe that the program writes."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ferrule.arguments.argument_errors import ArgumentErrors
from ferrule.arguments.dumping import NotJudgeable
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.executors.process.imports import ImportPlace, find_import_place
from ferrule.executors.process.transfer import Plain, Transfer, pack_items
from ferrule.values.arguments import Arguments
from ferrule.values.context import JUDGED_TRAITS, UNSET
from ferrule.values.frozen import thaw
from ferrule.values.json_text import format_json


class Recipe:
    """The recipe from which another process makes a tool. See docs/long-work.md#somewhere-else.

    Attributes:
        text: The recipe as JSON.
        transfer: The form in which arguments and results are sent. A pickle can hold any Python object.
        context: The tool's `context=`. Each call gets the items that can be sent.

    Raises:
        DefinitionError: No other process could make the tool.
    """

    __slots__ = ("context", "text", "transfer")

    def __init__(self, tool: Tool, transfer: Transfer = "json") -> None:
        target = find_import_place(tool.handler, tool.name)
        _check_importable(target, tool)
        adapter, schema = tool.adapter, tool.options.get("input_schema")
        self.transfer = transfer
        self.context: Mapping[str, object] | None = tool.context if isinstance(tool.context, Mapping) else None
        recipe = {
            "name": tool.name,
            "target": target,
            "model": find_import_place(schema, tool.name) if isinstance(schema, type) else None,
            "wrap": None if adapter is None else find_import_place(adapter, tool.name),
            "options": _tool_options(tool),
            "defaults": _dump_nested_schema(tool),
            "callables": [name for name in JUDGED_TRAITS if callable(getattr(tool, name))],
        }
        self.text = json.dumps(recipe)


def _dump_nested_schema(tool: Tool) -> str:
    """Return the schema without its top-level defaults, as JSON text.

    Judged arguments have those defaults. Validation fills in the nested ones again, so they must be the same there.
    """
    parameters = tool.handling.parameters
    schema = thaw(parameters.schema) if parameters.exact else {}
    for node in schema.get("properties", {}).values():
        if isinstance(node, dict):
            node.pop("default", None)
    return json.dumps(schema, sort_keys=True)


def _check_importable(place: ImportPlace, tool: Tool) -> None:
    """Check that the place has the handler, or the tool that was made from it.

    Raises:
        DefinitionError: It has something else, such as the function without its decorator.
    """
    module, qualname, _ = place
    try:
        found = _get_member(sys.modules[module], qualname)
    except (KeyError, AttributeError):
        found = None
    if (found.handler if isinstance(found, Tool) else found) != tool.handler:
        raise DefinitionError(
            f"tool {tool.name!r}: an isolated tool is imported by another process, where {module}:{qualname} would be "
            f"{found!r} and not the function that this tool was made of; give each a name of its own at the top level "
            "of the module"
        )


def _tool_options(tool: Tool) -> Plain:
    options: Plain = {
        "description": tool.description,
        "private": list(tool.private),
        "tags": list(tool.tags),
        "metadata": pack_items(tool.metadata, "json")["sent"],
        **{name: value for name in JUDGED_TRAITS if not callable(value := getattr(tool, name))},
    }
    schema = tool.options.get("input_schema")
    if schema is not None and not isinstance(schema, type):
        options["input_schema"] = json.loads(format_json(schema))
    return options


# -- in the other process ----------------------------------------------------------------------------------------------


def make_tool(text: str) -> Tool:
    """Import the handler and make the tool of a recipe. See docs/long-work.md#somewhere-else.

    Raises:
        DefinitionError: The nested defaults of the arguments are not those of the program.
        Exception: The import of the handler's module failed.
    """
    recipe: Plain = json.loads(text)
    options: Plain = recipe["options"]
    target = _import_object(*recipe["target"])
    if recipe["model"] is not None:
        options["input_schema"] = _import_object(*recipe["model"])
    if isinstance(target, Tool):
        if target.context is not UNSET:
            options["context"] = target.context
        options |= {name: getattr(target, name) for name in recipe["callables"]}
        target = target.handler
    tool = Tool(recipe["name"], target, **options)
    if recipe["wrap"] is not None:
        tool = tool.with_adapter(_import_object(*recipe["wrap"]))
    if _dump_nested_schema(tool) != recipe["defaults"]:
        raise DefinitionError(
            f"tool {tool.name!r} has other defaults in the process where it would run: let them not depend on where "
            "or when its module is imported"
        )
    return tool


def validate_judged_arguments(tool: Tool, text: str) -> object:
    """Validate the judged arguments again, and return the handler's values. See docs/long-work.md#somewhere-else.

    Raises:
        ValueError: The arguments do not fit the tool, or its values would not be those that were judged.
    """
    parameters = tool.handling.parameters
    try:
        return parameters.revalidate(Arguments(text, None, parameters))
    except NotJudgeable as error:
        raise ValueError(str(error)) from None
    except ArgumentErrors as invalid:
        facts = "; ".join(f"{'.'.join(map(str, one.path))} {one.expected}".strip() for one in invalid.errors[:5])
        raise ValueError(f"the arguments do not fit the handler in its module: {facts}") from None


def _import_object(module: str, qualname: str, file: str | None) -> Any:
    return _get_member(_import_module(module, file), qualname)


def _get_member(owner: Any, qualname: str) -> Any:
    for name in qualname.split("."):
        owner = getattr(owner, name)
    return owner


def _import_module(name: str, file: str | None) -> ModuleType:
    """Import a module. Load it from its file if its name is not on the import path."""
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
