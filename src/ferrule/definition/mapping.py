"""Tools from what others have written: definitions as dicts, and objects with an `execute`, structurally."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from ferrule.definition import function as handlers
from ferrule.definition.tool import Tool, tool
from ferrule.errors import DefinitionError
from ferrule.types import Guard
from ferrule.values.call import ToolCall
from ferrule.values.content import to_text
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, ask, deny
from ferrule.values.result import ToolResult

_KEYS = {
    "name", "description", "input_schema", "execute", "check_permissions", "is_read_only", "is_concurrency_safe",
    "output_schema", "title", "version", "tags", "metadata", "timeout", "concurrency", "guards", "around", "inside",
    "destructive", "idempotent", "open_world", "resources", "private", "expose", "context", "unknown", "examples",
}  # fmt: skip
_RESULT_KEYS = {"success", "output", "error", "metadata", "duration_ms"}


def build_tool(definition: Mapping[str, Any]) -> Tool:
    """A tool of a definition with `name`, `description`, `input_schema` and `execute(payload, context)`.

    Every flag that is left out has its safest value: it changes things, runs alone, and without a `check_permissions`
    each call asks.

    Raises:
        DefinitionError: for a key that is missing, unknown or wrong.
    """
    if not isinstance(definition, Mapping):
        raise DefinitionError(f"build_tool takes a definition as a dict, not {definition!r}")
    unknown = sorted(map(str, definition.keys() - _KEYS))
    if unknown:
        raise DefinitionError(f"build_tool: unknown keys {unknown!r}; it knows {sorted(_KEYS)!r}")
    for key in ("name", "execute"):
        if key not in definition:
            raise DefinitionError(f"build_tool: the definition has no {key!r}")
    given = {key: _unwrapped(value) for key, value in definition.items()}
    check = given.pop("check_permissions", None)
    guard = permission_guard(given["name"], check) if check is not None else ask_unchecked
    guards = (guard, *given.pop("guards", ()))
    execute = given.pop("execute")
    if "input_schema" in given and given["input_schema"] is None:
        del given["input_schema"]
    read_only = _flag(given["name"], "is_read_only", given.pop("is_read_only", False))
    parallel = _flag(given["name"], "is_concurrency_safe", given.pop("is_concurrency_safe", False))
    return _execute_tool(given.pop("name"), execute, guards=guards, read_only=read_only, parallel=parallel, **given)


def _execute_tool(name: Any, execute: Any, *, input_schema: Any = None, **options: Any) -> Tool:
    if not callable(execute):
        raise DefinitionError(f"tool {name!r}: execute must be a function, not {execute!r}")
    made = Tool(name, execute, input_schema={"type": "object"} if input_schema is None else input_schema, **options)
    object.__setattr__(made, "_handling", _understanding(made._handling))
    return made


def _understanding(handling: handlers.Handler) -> handlers.Handler:
    """The same handler, whose results may have the shape of the author's own result class."""
    call = handling.call
    handling.wrap = _understanding
    if handling.is_async:

        async def understood_async(values: Any, context: ToolContext[Any]) -> Any:
            return understood(await call(values, context))

        handling.call = understood_async
    else:

        def understood_sync(values: Any, context: ToolContext[Any]) -> Any:
            value = call(values, context)
            return _awaited(value) if inspect.isawaitable(value) else understood(value)

        handling.call = understood_sync
    return handling


async def _awaited(value: Any) -> Any:
    return understood(await value)


def _unwrapped(value: Any) -> Any:
    return value.__func__ if isinstance(value, staticmethod) else value


def _flag(name: Any, key: str, value: Any) -> bool:
    """What `is_read_only` or `is_concurrency_safe` says, as a method, a function or a plain bool."""
    if callable(value):
        try:
            value = value()
        except Exception as error:
            raise DefinitionError(f"tool {name!r}: {key}() raised {error!r}") from error
    if not isinstance(value, bool):
        raise DefinitionError(
            f"tool {name!r}: {key} must be True or False, or a function that returns it, not {value!r}"
        )
    return value


def ask_unchecked(call: ToolCall, context: ToolContext[Any]) -> Decision:
    """The guard of a tool that says nothing about permissions."""
    return ask(f"{call.name} has no check_permissions")


def permission_guard(name: Any, check: Any) -> Guard:
    """A guard of `check_permissions(payload, context)`.

    It says no by raising `PermissionError`, whose text is the reason; `None` is no objection; all else denies.

    Raises:
        DefinitionError: where it is neither a sync nor an async function of two arguments.
    """
    if not callable(check) or inspect.isgeneratorfunction(check) or inspect.isasyncgenfunction(check):
        raise DefinitionError(
            f"tool {name!r}: check_permissions must be a sync or async function of (payload, context), not {check!r}"
        )
    count = handlers.takes(name, "check_permissions", check, 1, 2)

    async def check_permissions(call: ToolCall, context: ToolContext[Any]) -> Decision | None:
        payload = dict(call.arguments)
        try:
            answer = check(payload, context) if count == 2 else check(payload)
            if inspect.isawaitable(answer):
                answer = await answer
        except PermissionError as error:
            return deny(str(error) or "not permitted")
        if answer is None:
            return None
        return deny(f"check_permissions of {call.name} answered neither yes nor no")

    return check_permissions


def from_object(thing: Any) -> Tool:
    """A tool of any object with a `name` and an `execute(payload)` or `execute(payload, context)`.

    Its `description`, `input_schema`, `check_permissions`, `is_read_only` and `is_concurrency_safe` are used where
    it has them. No base class is needed.
    """
    name = getattr(thing, "name", None)
    check = getattr(thing, "check_permissions", None)
    options: dict[str, Any] = {"guards": [permission_guard(name, check)] if check is not None else []}
    if not callable(thing.execute):
        raise DefinitionError(f"tool {name!r}: execute must be a function, not {thing.execute!r}")
    return _execute_tool(
        name,
        thing.execute,
        description=str(getattr(thing, "description", None) or ""),
        input_schema=getattr(thing, "input_schema", None),
        read_only=_flag(name, "is_read_only", getattr(thing, "is_read_only", False)),
        parallel=_flag(name, "is_concurrency_safe", getattr(thing, "is_concurrency_safe", False)),
        **options,
    )


def understood(value: Any) -> Any:
    """A result in the author's own shape (`output`, `error`, `success`, `metadata` …) as a `ToolResult`."""
    if isinstance(value, ToolResult):
        return value
    if isinstance(value, Mapping):
        if not isinstance(value.get("success"), bool) or value.keys() - _RESULT_KEYS:
            return value
        fields: dict[str, Any] = dict(value)
    elif all(hasattr(value, key) for key in ("output", "error")) and not isinstance(value, type):
        fields = {key: getattr(value, key) for key in _RESULT_KEYS if hasattr(value, key)}
    else:
        return value
    error = _error_text(fields.get("error"))
    if error is None and fields.get("success") is False:
        error = _error_text(fields.get("output")) or "the tool says that it failed, and no more"
    metadata = fields.get("metadata")
    return ToolResult(fields.get("output"), error, metadata if isinstance(metadata, Mapping) else None)


def _error_text(error: Any) -> str | None:
    if error is None or isinstance(error, str):
        return error or None
    if isinstance(error, Mapping) and isinstance(error.get("message"), str):
        return str(error["message"])
    return to_text(error)


def as_tool(thing: Any) -> Tool:
    """Whatever a developer put into a toolset, as a `Tool`.

    Raises:
        DefinitionError: for what is none of the forms.
    """
    if isinstance(thing, Tool):
        return thing
    if isinstance(thing, Mapping):
        return build_tool(thing)
    if isinstance(thing, type) and not issubclass(thing, BaseModel):
        raise DefinitionError(
            f"{thing.__name__} is a class: pass an instance, or use Toolset.of({thing.__name__}(...))"
        )
    if not isinstance(thing, type) and hasattr(thing, "execute"):
        return from_object(thing)
    if callable(thing):
        made: Tool = tool(thing)
        return made
    raise DefinitionError(f"{thing!r} is no tool: it is no function, ToolHandler, definition or object with execute()")
