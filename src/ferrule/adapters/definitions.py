"""Definitions as dicts, and objects with an `execute`, structurally."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Unpack, cast

from pydantic import BaseModel

from ferrule.adapters.checks import make_foreign_guard
from ferrule.adapters.shapes import read_options
from ferrule.definition.decorator import tool
from ferrule.definition.handler import Handler
from ferrule.definition.options import OPTIONS, ToolOptions, accepts, check_callable, refuse_unknown, wrong_option
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.types import Executable, Guard
from ferrule.values.call import ToolCall
from ferrule.values.content import to_json_text
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision
from ferrule.values.result import ToolResult

_OWN_KEYS = ("name", "execute", "check_permissions", "is_read_only", "is_concurrency_safe")
_KEYS = (*_OWN_KEYS, *(key for key in OPTIONS if key not in {"read_only", "parallel"}))
"""The keys of a definition: the options of a tool, except those with another name there."""
_DESCRIPTION_KEYS = (
    *("name", "description", "input_schema", "output_schema", "examples", "metadata", "provider"),
    "check_permissions",
)
"""The keys of a definition for a handler that is not its own: none about the handler's effects on the world."""
_KEYS_OF_OBJECTS = (*_OWN_KEYS, "description", "input_schema")
_FOREIGN_METHODS = ("invoke", "on_invoke_tool", "forward", "run")
"""The methods that run a tool of LangChain, OpenAI Agents, smolagents and others."""
_WRAP_HINT = (
    "wrap it with build_tool({'name': …, 'description': …, 'input_schema': …}, handler), where handler(payload) calls "
    "that, or give the function that it was made of"
)
_ADAPTERS = {
    "agents.tool": "openai_agents.from_tools([…])",
    "axio": "axio.from_tools([…])",
    "claude_agent_sdk": "claude_agent.from_tools([…])",
    "fastmcp": "fastmcp.from_tools(server), awaited,",
    "google.adk": "google_adk.from_tools([…])",
    "langchain_core": "langchain.from_tools([…])",
    "pydantic_ai.tools": "pydantic_ai.from_tools([…])",
    "pydantic_ai.toolsets": "pydantic_ai.from_toolset(…), awaited,",
    "strands": "strands.from_tools([…])",
}
"""The adapters for the tools of a framework, by the module of their classes or base classes."""
_RESULT_KEYS = {"success", "output", "error", "metadata", "duration_ms"}


def from_definition(
    definition: Mapping[str, object] | BaseModel,
    handler: Callable[..., object] | None = None,
    **options: Unpack[ToolOptions],
) -> Tool:
    """Implement `ferrule.build_tool`. See docs/forms.md."""
    if isinstance(definition, BaseModel):
        definition = definition.model_dump(by_alias=True, exclude_none=True)
    if not isinstance(definition, Mapping):
        raise DefinitionError(f"build_tool(definition, handler) takes a definition as a dict, not {definition!r}")
    given = read_options(definition)
    refuse_unknown(given, _KEYS, "build_tool")
    if "name" not in given:
        raise DefinitionError("build_tool: the definition has no 'name'")
    fields: dict[str, Any] = given | options
    about = f"build_tool: the definition of {fields['name']!r}"
    if handler is not None:
        if "execute" in fields:
            raise DefinitionError(f"{about} has an 'execute' beside the handler; leave one out")
        if handler_keys := sorted(given.keys() - _DESCRIPTION_KEYS):
            raise DefinitionError(
                f"{about} has {handler_keys[0]!r}, which describes the handler; pass it as an option: "
                "build_tool(definition, handler, read_only=…, ask=…, …)"
            )
        return _build_tool({**fields, "execute": handler})
    if "execute" not in fields:
        raise DefinitionError(f"{about} has no 'execute'; pass a function, build_tool(definition, handler)")
    if fields.get("check_permissions") is None:
        fields.setdefault("ask", f"{fields['name']} has no check_permissions")
    return _build_tool({"is_concurrency_safe": False, **fields}).with_adapter(convert_results)


def from_object(obj: Executable) -> Tool:
    """Return a tool of any object with a `name` and an `execute(payload)` or `execute(payload, context)`. See
    docs/forms.md.

    Its `description`, `input_schema`, `check_permissions`, `is_read_only` and `is_concurrency_safe` are used if
    present. No base class is needed.
    """
    options = {key: value for key in _KEYS_OF_OBJECTS if (value := getattr(obj, key, None)) is not None}
    return _build_tool({"is_concurrency_safe": False, **options}).with_adapter(convert_results)


def _build_tool(options: dict[str, Any]) -> Tool:
    """Return a tool from the keys of a definition."""
    name, execute, check = options.pop("name", ""), options.pop("execute", None), options.pop("check_permissions", None)
    for key, option in (("is_read_only", "read_only"), ("is_concurrency_safe", "parallel")):
        if key in options:
            value = options.pop(key)
            answer = value() if callable(value) else value
            if not isinstance(answer, bool):
                raise wrong_option(key, value, "True or False, or a function that returns it")
            options.setdefault(option, answer)
    if options.get("input_schema") is None:
        options["input_schema"] = {"type": "object"}
    tool = Tool(name, execute, **options)
    return tool if check is None else tool.replace(guards=(make_permission_guard(check), *tool.guards))


def convert_results(handler: Handler) -> Handler:
    """Return the same handler, with results that may have the shape of the author's own result class."""
    call = handler.call

    def call_either(values: object, context: ToolContext) -> object:
        value = call(values, context)
        return _await_result(value) if inspect.isawaitable(value) else to_tool_result(value)

    return replace(handler, call=call_either)


async def _await_result(value: Awaitable[object]) -> object:
    return to_tool_result(await value)


def make_permission_guard(check: Callable[..., object]) -> Guard:
    """Return a guard of `check_permissions(payload, context)`, which cannot change the arguments.

    Raises:
        DefinitionError: It is neither a sync nor an async function of one or two arguments.
    """
    if inspect.isgeneratorfunction(check) or inspect.isasyncgenfunction(check):
        raise wrong_option("check_permissions", check, "a function that returns its answer; this one yields")
    two = accepts(check, "(payload, context)")
    if not two:
        check_callable("(payload)")("check_permissions", check)

    def check_permissions(call: ToolCall, context: ToolContext) -> Any:
        payload = dict(call.arguments)
        return check(payload, context) if two else check(payload)

    return make_foreign_guard(check_permissions, check_permissions, (Decision,))


def to_tool_result(value: object) -> object:
    """Return a result in the author's own shape (`output`, `error`, `success`, `metadata` …) as a `ToolResult`."""
    if isinstance(value, ToolResult):
        return value
    if isinstance(value, Mapping):
        if not isinstance(value.get("success"), bool) or value.keys() - _RESULT_KEYS:
            return value
        fields = dict(value)
    elif all(hasattr(value, key) for key in ("output", "error")) and not isinstance(value, type):
        fields = {key: getattr(value, key) for key in _RESULT_KEYS if hasattr(value, key)}
    else:
        return value
    error = _error_text(fields.get("error"))
    if error is None and fields.get("success") is False:
        error = _error_text(fields.get("output")) or "the tool reports a failure without a reason"
    metadata = fields.get("metadata")
    return ToolResult(fields.get("output"), error, metadata if isinstance(metadata, Mapping) else None)


def _error_text(error: object) -> str | None:
    if error is None or isinstance(error, str):
        return error or None
    message = error.get("message") if isinstance(error, Mapping) else None
    return message if isinstance(message, str) else to_json_text(error)


def tool_from_object(obj: object) -> Tool:
    """Return a tool of a definition, of an object with `execute`, or of a callable. See docs/forms.md.

    Raises:
        DefinitionError: The object is none of these, or a tool of a framework, even a callable one: only an adapter
            keeps its settings and asks its guards.
    """
    if isinstance(obj, Mapping):
        return from_definition(obj)
    if (adapter := _find_adapter(obj)) is not None:
        kind = f"{type(obj).__module__}.{type(obj).__qualname__}"
        raise DefinitionError(f"a {kind} is of a framework: ferrule.adapters.{adapter} makes a toolset of it")
    if hasattr(obj, "execute"):
        return from_object(cast("Executable", obj))
    if callable(obj):
        return tool(obj)
    raise DefinitionError(
        f"{obj!r} is no tool: it is no function, ToolHandler, definition or object with execute()"
        + next((f"; it has {name}(): {_WRAP_HINT}" for name in _FOREIGN_METHODS if hasattr(obj, name)), "")
    )


def is_tool_form(obj: object) -> bool:
    """Return whether an object stands for one tool. Its methods are not tools then: one may be its permission.

    See docs/forms.md.
    """
    if hasattr(obj, "execute") and (hasattr(obj, "name") or hasattr(obj, "check_permissions")):
        return True
    if isinstance(obj, type):
        return False
    return isinstance(obj, Mapping) or callable(obj) or _find_adapter(obj) is not None


def _find_adapter(obj: object) -> str | None:
    """Return the call of the adapter for an object, as text; `None` if it is from no known framework."""
    modules = [f"{cls.__module__}." for cls in type(obj).__mro__]
    found = (call for prefix, call in _ADAPTERS.items() if any(name.startswith(f"{prefix}.") for name in modules))
    return next(found, None)
