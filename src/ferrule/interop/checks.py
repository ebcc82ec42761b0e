"""Guards whose `check` takes a handler's instance, `check(handler)`, or the tool and its arguments,
`check(tool, **arguments)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from ferrule.arguments.dumping import NoJudgedForm
from ferrule.arguments.typed_parameters import TypedParameters
from ferrule.definition.handler import Handler
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, GuardError
from ferrule.types import Guard, GuardFunction, Verdict
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import allow
from ferrule.values.frozen import thaw
from ferrule.values.json_text import same

_FORMS = "check(call, context), check(handler) or check(tool, **arguments)"


def guard_of(guard: Guard, check: Callable[..., object], tool: Tool) -> GuardFunction:
    """The guard as a function of call and context, by the signature of its `check`.

    Raises:
        DefinitionError: where it is none of the forms, or does not go with the tool.
    """
    try:
        signature = inspect.signature(check)
    except (TypeError, ValueError):  # some that are written in C
        raise DefinitionError(f"the guard {guard!r} must have {_FORMS}, and its check has no signature") from None
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind in (p.VAR_KEYWORD, p.KEYWORD_ONLY) for p in parameters) or (
        positional[:1] and positional[0].name == "tool"
    ):
        return _of_arguments(check, guard, tool)
    if sum(p.default is p.empty for p in positional) == 1:
        return _of_instance(check, guard, tool)
    raise DefinitionError(f"the guard {guard!r} must have {_FORMS}, not check{signature}")


def _of_arguments(check: Callable[..., object], guard: Guard, tool: Tool) -> GuardFunction:
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


def _of_instance(check: Callable[..., object], guard: Guard, tool: Tool) -> GuardFunction:
    handling: Handler = tool.handling
    if not handling.makes_instance:
        raise DefinitionError(
            f"the guard {guard!r} wants a handler's instance, and {tool.name!r} is no handler class; "
            "give it check(call, context)"
        )

    parameters = handling.parameters
    assert isinstance(parameters, TypedParameters)

    async def ask_guard(call: ToolCall, context: ToolContext) -> Verdict:
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
