"""Guards in all their forms behind one signature, and what their answers mean."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from ferrule.core.content import jsonable
from ferrule.core.context import ToolContext
from ferrule.core.errors import DefinitionError, GuardError
from ferrule.core.frozen import thaw
from ferrule.core.handlers import Handler
from ferrule.core.jsontext import dumps, loads, same
from ferrule.core.tool import Tool
from ferrule.core.types import Answer, Guard
from ferrule.core.values import ALLOW, Decision, ToolCall, allow, deny

Judge: TypeAlias = Callable[[ToolCall, ToolContext[Any]], Answer | Awaitable[Answer]]


def judge_of(guard: Guard, tool: Tool) -> Judge:
    """`guard` as a function of call and context.

    An object with `check` is asked by its signature: `check(call, context)`, `check(handler)`, or
    `check(tool, **arguments)`.

    Raises:
        DefinitionError: where its form does not go with the tool.
    """
    check = getattr(guard, "check", None)
    if check is None or isinstance(guard, type):
        if not callable(guard):
            raise DefinitionError(f"{guard!r} is no guard: it is neither callable nor has check()")
        return guard
    parameters = list(inspect.signature(check).parameters.values())
    by_name = any(p.kind in (p.VAR_KEYWORD, p.KEYWORD_ONLY) for p in parameters)
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if by_name or (parameters and parameters[0].name == "tool"):
        return _check_of_arguments(check, tool)
    if len(required) == 1:
        return _check_of_instance(check, guard, tool)
    if len(required) == 2:
        return check  # type: ignore[no-any-return]
    raise DefinitionError(
        f"the guard {guard!r} must have check(call, context), check(handler) or check(tool, **arguments), "
        f"not check{inspect.signature(check)}"
    )


def _check_of_arguments(check: Callable[..., Any], tool: Tool) -> Judge:
    def judge(call: ToolCall, context: ToolContext[Any]) -> Any:
        return check(tool, **thaw(call.arguments))

    return judge


def _check_of_instance(check: Callable[..., Any], guard: Guard, tool: Tool) -> Judge:
    handling: Handler = tool._handling
    if not handling.instance:
        raise DefinitionError(
            f"the guard {guard!r} wants a handler's instance, and {tool.name!r} is no handler class; "
            "give it check(call, context)"
        )

    async def judge(call: ToolCall, context: ToolContext[Any]) -> Answer:
        instance = handling.parameters.values(str(call.raw))
        before = _fields(instance)
        answer = check(instance)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None:
            answer = instance
        if not isinstance(answer, type(instance)):
            return answer  # type: ignore[no-any-return]
        after = _fields(answer)
        changed = {key: value for key, value in after.items() if key not in before or not same(before[key], value)}
        return allow({**call.arguments, **changed}) if changed else None

    return judge


def _fields(instance: Any) -> dict[str, Any]:
    """The JSON of the fields, under the names that a model fills them by."""
    found = {name: _json(value) for name, value in (instance.model_extra or {}).items()}
    for name, field in type(instance).model_fields.items():
        wire = field.validation_alias or field.alias
        found[wire if isinstance(wire, str) else name] = _json(getattr(instance, name))
    return found


def _json(value: Any) -> Any:
    try:
        return loads(dumps(value))
    except ValueError:
        return jsonable(value)


def answer_of(answer: Any, judged: ToolCall) -> Decision:
    """What a guard's answer means; anything that is none of the forms denies.

    Changed arguments that change nothing are a plain allow.
    """
    if answer is None or answer is ALLOW:
        return ALLOW
    if isinstance(answer, Mapping):
        answer = allow(answer)
    if not isinstance(answer, Decision):
        return deny(f"a guard answered with {type(answer).__name__}, which is neither a decision nor arguments")
    if answer.kind == "allow" and answer.arguments is not None:
        if _is_same(answer.arguments, judged.arguments):
            return ALLOW
    return answer


def _is_same(changed: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    return changed is arguments or same(thaw(changed), thaw(arguments))


def broken(guard: Guard, error: BaseException) -> Decision:
    """The decision for a guard that raised: a `GuardError` is its way to say no, anything else is a fault."""
    if isinstance(error, GuardError):
        return deny(str(error) or "not permitted")
    if isinstance(error, TimeoutError):
        return deny("a guard did not answer in time")
    return deny("a guard broke, so the call may not run")
