"""Guards in all their forms as functions of one signature, and what their answers mean."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from pydantic import AliasChoices

from ferrule.arguments.argument_errors import ArgumentErrors
from ferrule.definition.handler import Handler
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, GuardError
from ferrule.types import Answer, Guard
from ferrule.values.call import ToolCall
from ferrule.values.content import jsonable
from ferrule.values.context import ToolContext
from ferrule.values.decision import ALLOW, Decision, allow, deny
from ferrule.values.frozen import thaw
from ferrule.values.json_text import dumps, loads, same

GuardFunction: TypeAlias = Callable[[ToolCall, ToolContext], Answer | Awaitable[Answer]]


def guard_function(guard: Guard, tool: Tool) -> GuardFunction:
    """`guard` as a function of call and context.

    An object with `check` is asked by its signature: `check(call, context)`, `check(handler)`, or
    `check(tool, **arguments)`.

    Raises:
        DefinitionError: where its form does not go with the tool.
    """
    if isinstance(guard, type):
        raise DefinitionError(f"the guard {guard.__name__} is a class; give an instance of it: {guard.__name__}(...)")
    check = getattr(guard, "check", None)
    if not callable(check):
        if not callable(guard):
            raise DefinitionError(f"{guard!r} is no guard: it is neither callable nor has check()")
        return guard
    form = _form(check)
    if form == "arguments":
        return _check_of_arguments(check, guard, tool)
    if form == "instance":
        return _check_of_instance(check, guard, tool)
    if form == "call":
        return check  # type: ignore[no-any-return]
    raise DefinitionError(
        f"the guard {guard!r} must have check(call, context), check(handler) or check(tool, **arguments), not {form}"
    )


def _form(check: Callable[..., object]) -> str:
    """What `check` wants to be given; else how it is written."""
    try:
        signature = inspect.signature(check)
    except (TypeError, ValueError):  # some that are written in C
        return f"{check!r}, which has no signature"
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    by_name = [p for p in parameters if p.kind in (p.VAR_KEYWORD, p.KEYWORD_ONLY)]
    options = all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in by_name)
    if positional and positional[0].name == "tool":
        return "arguments"
    if len(required) == 2 and options:
        return "call"
    if by_name:
        return "arguments"
    return "instance" if len(required) == 1 else f"check{signature}"


def _check_of_arguments(check: Callable[..., object], guard: Guard, tool: Tool) -> GuardFunction:
    taken = _names_taken(check, guard, tool)

    def ask_guard(call: ToolCall, context: ToolContext) -> Any:
        arguments = thaw(call.arguments)
        for name in taken & arguments.keys():  # of a tool that takes what it does not declare
            raise GuardError(f"no argument may be called {name!r} here")
        return check(tool, **arguments)

    return ask_guard


def _names_taken(check: Callable[..., object], guard: Guard, tool: Tool) -> set[str]:
    """The parameters that the guard itself and the tool fill, so that no argument of their name can be given.

    Raises:
        DefinitionError: where the tool's arguments could not be given.
    """
    function, given = (check.__func__, (guard, tool)) if inspect.ismethod(check) else (check, (tool,))
    parameters = inspect.signature(function).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    taken = {p.name for p in positional[: len(given)] if p.kind is p.POSITIONAL_OR_KEYWORD}
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} - taken
    required = {p.name for p in parameters if p.name in names and p.default is p.empty}
    schema = tool.handling.parameters.schema
    arguments = schema.get("properties", {}).keys()
    if clash := sorted(taken & arguments):
        why = f"has an argument {clash[0]!r}, which Python cannot give beside the parameter of that name"
    elif (extra := sorted(arguments - names)) and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        why = f"has an argument {extra[0]!r}, which it does not take"
    elif (lacking := sorted(required - arguments)) and schema.get("additionalProperties") is False:
        raise DefinitionError(
            f"the guard {guard!r} has a parameter {lacking[0]!r} in check{inspect.signature(check)}, and the tool "
            f"{tool.name!r} no such argument; give it a default"
        )
    else:
        return taken
    raise DefinitionError(
        f"the guard {guard!r} has check{inspect.signature(check)}, and the tool {tool.name!r} {why}; "
        f"write check({'self, ' if inspect.ismethod(check) else ''}tool, /, **arguments)"
    )


def _check_of_instance(check: Callable[..., object], guard: Guard, tool: Tool) -> GuardFunction:
    handling: Handler = tool.handling
    if not handling.makes_instance:
        raise DefinitionError(
            f"the guard {guard!r} wants a handler's instance, and {tool.name!r} is no handler class; "
            "give it check(call, context)"
        )

    async def ask_guard(call: ToolCall, context: ToolContext) -> Answer:
        instance = handling.parameters.values(str(call.raw))
        before = _fields(instance)
        answer = check(instance)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None:
            answer = instance
        if not isinstance(answer, type(instance)):
            return answer  # type: ignore[return-value]  # `decision_of` looks at it
        given = _values(answer)
        after = {key: _json(value) for key, value in given.items()}
        changed = {key: value for key, value in after.items() if key not in before or not same(before[key], value)}
        removed = before.keys() - after.keys()
        kept = {key: value for key, value in call.arguments.items() if key not in removed}
        if not changed and not removed:
            return None
        arguments = {**kept, **changed}
        for key in changed:
            if not _carried(key, given[key], handling, arguments):
                raise GuardError(f"a guard changed {key!r} to what JSON does not carry")
        return allow(arguments)

    return ask_guard


def _fields(instance: Any) -> dict[str, object]:
    return {key: _json(value) for key, value in _values(instance).items()}


def _values(instance: Any) -> dict[str, object]:
    """The fields, under the names that a model fills them by."""
    found = dict(instance.model_extra or {})
    for name, field in type(instance).model_fields.items():
        wire = field.validation_alias or field.alias
        if isinstance(wire, AliasChoices):
            wire = wire.choices[0]
        found[wire if isinstance(wire, str) else name] = getattr(instance, name)
    return found


def _json(value: object) -> Any:
    try:
        return loads(dumps(value))
    except ValueError:
        return jsonable(value)


def _carried(key: str, value: object, handling: Handler, arguments: dict[str, object]) -> bool:
    """Whether the handler would get the value that the guard meant, and not the text that stands for it: bytes that
    are no UTF-8 have a JSON form only where their field says which."""
    try:
        dumps(value)
    except ValueError:
        with suppress(ArgumentErrors):  # what does not fit is the kernel's to tell
            return bool(_values(handling.parameters.values(dumps(arguments)))[key] == value)
    return True


def decision_of(answer: object, judged: ToolCall) -> Decision:
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


def _is_same(changed: Mapping[str, object], arguments: Mapping[str, object]) -> bool:
    return changed is arguments or same(thaw(changed), thaw(arguments))


def broken(guard: Guard, error: BaseException) -> Decision:
    """The decision for a guard that raised: a `GuardError` is its way to say no, anything else is a fault."""
    if isinstance(error, GuardError):
        return deny(str(error) or "not permitted")
    if isinstance(error, TimeoutError):
        return deny("a guard did not answer in time")
    return deny("a guard broke, so the call may not run")
