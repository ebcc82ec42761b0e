"""Guards in all their forms as functions of one signature, and what their answers mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from ferrule.arguments.dumping import NoJudgedForm
from ferrule.arguments.typed_parameters import TypedParameters
from ferrule.definition.handler import Handler
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, GuardError
from ferrule.types import Answer, Guard, GuardFunction
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import ALLOW, Decision, allow, ask, deny
from ferrule.values.frozen import thaw
from ferrule.values.json_text import same
from ferrule.values.masking import masked_text

_FORMS = "check(call, context), check(handler) or check(tool, **arguments)"
LATE = deny("a guard did not answer in time")
BROKEN = deny("a guard broke, so the call may not run")


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
    try:
        signature = inspect.signature(check)
    except (TypeError, ValueError):  # some that are written in C
        raise DefinitionError(f"the guard {guard!r} must have {_FORMS}, and its check has no signature") from None
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    by_name = [p for p in parameters if p.kind in (p.VAR_KEYWORD, p.KEYWORD_ONLY)]
    takes_tool = bool(positional) and positional[0].name == "tool"
    options = all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in by_name)
    if len(required) == 2 and options and not takes_tool:
        return check  # type: ignore[no-any-return]
    if takes_tool or by_name:
        return _check_of_arguments(check, guard, tool)
    if len(required) == 1:
        return _check_of_instance(check, guard, tool)
    raise DefinitionError(f"the guard {guard!r} must have {_FORMS}, not check{signature}")


def ask_always(tool: Tool) -> GuardFunction:
    """The guard of a tool with `ask`."""
    asked = ask(tool.ask if isinstance(tool.ask, str) else f"really run {tool.name}?")
    return lambda call, context: asked


def _check_of_arguments(check: Callable[..., object], guard: Guard, tool: Tool) -> GuardFunction:
    function, given = (check.__func__, (guard, tool)) if inspect.ismethod(check) else (check, (tool,))
    names = tool.handling.parameters.schema.get("properties", {})
    try:
        inspect.signature(function).bind(*given, **dict.fromkeys(names))
    except TypeError as error:
        raise DefinitionError(
            f"the guard {guard!r} has check{inspect.signature(check)}, which cannot be given the arguments of "
            f"{tool.name!r}: {error}; write check(self, tool, /, **arguments)"
        ) from None
    return lambda call, context: check(tool, **thaw(call.arguments))  # type: ignore[return-value]


def _check_of_instance(check: Callable[..., object], guard: Guard, tool: Tool) -> GuardFunction:
    handling: Handler = tool.handling
    if not handling.makes_instance:
        raise DefinitionError(
            f"the guard {guard!r} wants a handler's instance, and {tool.name!r} is no handler class; "
            "give it check(call, context)"
        )

    parameters = handling.parameters
    assert isinstance(parameters, TypedParameters)

    async def ask_guard(call: ToolCall, context: ToolContext) -> Answer:
        instance = parameters.again(call.arguments)
        before = parameters.fields_of(instance)
        answer = check(instance)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None:
            answer = instance
        if not isinstance(answer, type(instance)):
            return answer  # type: ignore[return-value]  # `decision_of` looks at it
        try:
            after = parameters.fields_of(answer)
        except NoJudgedForm as error:
            raise GuardError(f"a guard changed the handler, and {error}") from error
        changed = {key: after[key] for key in after if key not in before or not same(before[key], after[key])}
        removed = before.keys() - after.keys()
        if not changed and not removed:
            return None
        return allow({key: value for key, value in call.arguments.items() if key not in removed} | changed)

    return ask_guard


def decision_of(answer: object) -> Decision:
    """What a guard's answer means; anything that is none of the forms denies."""
    if answer is None or answer is ALLOW:
        return ALLOW
    if isinstance(answer, Mapping):
        answer = allow(answer)
    if not isinstance(answer, Decision):
        return deny(f"a guard answered with {type(answer).__name__}, which is neither a decision nor arguments")
    if answer.kind == "allow" and answer.arguments is not None:
        return allow(thaw(answer.arguments))  # a mapping of somebody's own may raise anything when it is read
    return answer


def name_of(guard: Guard) -> str:
    """What a guard is called: its function's name, or its class's."""
    return str(getattr(guard, "__name__", type(guard).__name__))


def broken(error: BaseException, hide: Callable[[str], str] = str) -> Decision:
    """The decision for a guard that raised: a `GuardError`, or a `PermissionError` that no system call raised, is its
    way to say no, anything else is a fault."""
    if isinstance(error, GuardError):
        return deny(str(error) or "not permitted")
    if isinstance(error, PermissionError) and error.errno is None:
        return deny(masked_text(error, hide) or "not permitted")
    return LATE if isinstance(error, TimeoutError) else BROKEN
