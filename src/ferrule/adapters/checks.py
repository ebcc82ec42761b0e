"""Guards with a `check`: of the call, of an instance of the handler class, or of the tool and its arguments.

All of them may answer with a bool. A foreign check may also say no by raising.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from ferrule.arguments.dumping import NotJudgeable
from ferrule.arguments.typed_parameters import TypedParameters
from ferrule.definition.guard_forms import guard_name
from ferrule.definition.handler import Handler
from ferrule.definition.signature import read_signature
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, GuardError
from ferrule.kernel.redact import log_exception, redact
from ferrule.security.masking import format_masked_error
from ferrule.types import Guard, GuardFunction, Verdict
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, deny
from ferrule.values.frozen import thaw
from ferrule.values.json_text import is_same_json

_FORMS = "check(call, context), check(handler) or check(tool, **arguments)"


def make_check_guard(guard: Guard, check: Callable[..., object], tool: Tool) -> GuardFunction:
    """Return the guard as a function of call and context, by the signature of its `check`. See docs/forms.md.

    Raises:
        DefinitionError: It has none of the forms, or does not fit the tool.
    """
    try:
        signature = read_signature(check)
    except (TypeError, ValueError):  # some functions written in C
        raise DefinitionError(f"the guard {guard!r} must have {_FORMS}, and its check has no signature") from None
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    others = [p for p in parameters if p.kind in (p.VAR_KEYWORD, p.KEYWORD_ONLY)]
    options = all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in others)
    takes_tool = positional[:1] and positional[0].name == "tool"
    if required == 2 and options and not takes_tool:
        return _accept_bools(check)
    if others or takes_tool:
        return make_foreign_guard(_ask_with_arguments(check, guard, tool), guard)
    if required == 1:
        return make_foreign_guard(_ask_with_instance(check, guard, tool), guard)
    raise DefinitionError(f"the guard {guard!r} must have {_FORMS}, not check{signature}")


GuardQuestion: TypeAlias = Callable[[ToolCall, ToolContext], object]


def make_foreign_guard(
    ask: GuardQuestion, guard: Guard, answer_types: tuple[type, ...] = (Decision, Mapping)
) -> GuardFunction:
    """Return the guard of a function that was not written for Ferrule. Any exception from it denies with its text.

    Args:
        guard: The guard for the log and for the name in decisions.
        answer_types: The types of its answers besides a bool.
    """

    async def ask_guard(call: ToolCall, context: ToolContext) -> Verdict:
        try:
            answer = ask(call, context)
            return _to_verdict(await answer if inspect.isawaitable(answer) else answer, answer_types)
        except GuardError:
            raise
        except Exception as error:
            running: Any = context.running_call
            if not isinstance(error, PermissionError):
                level = logging.WARNING
                log_exception(running, "the guard %r of tool %r raised", guard, call.name, error=error, level=level)
            raise GuardError(format_masked_error(error, partial(redact, running))) from error

    ask_guard.__name__ = guard_name(guard)
    return ask_guard


def _accept_bools(check: Callable[..., object]) -> GuardFunction:
    """Return the guard of a check that may answer with a bool."""

    def ask_guard(call: ToolCall, context: ToolContext) -> Verdict | Awaitable[Verdict]:
        answer = check(call, context)
        return ask_later(answer) if inspect.isawaitable(answer) else _to_verdict(answer)

    async def ask_later(answer: Awaitable[object]) -> Verdict:
        return _to_verdict(await answer)

    return ask_guard


def _to_verdict(answer: object, answer_types: tuple[type, ...] = (Decision, Mapping)) -> Verdict:
    if answer is None or answer is True:
        return None
    if answer is False:
        return deny("not permitted")
    if isinstance(answer, answer_types):
        return answer  # type: ignore[return-value]
    return deny(
        f"a check must return True, None or allow() to permit a call, or False, deny(reason) or ask(reason); it "
        f"returned {type(answer).__name__}"
    )


def _ask_with_arguments(check: Callable[..., object], guard: Guard, tool: Tool) -> GuardQuestion:
    function, leading = (check.__func__, (guard, tool)) if inspect.ismethod(check) else (check, (tool,))
    names = tool.handling.parameters.schema.get("properties", {})
    try:
        read_signature(function).bind(*leading, **dict.fromkeys(names))
    except TypeError as error:
        raise DefinitionError(
            f"the guard {guard!r} has check{read_signature(check)}, which does not fit the arguments of {tool.name!r}: "
            f"{error}; write check(self, tool, /, **arguments)"
        ) from None
    ask_tool: Callable[..., object] = guard if _takes_tool(guard) else check  # type: ignore[assignment]
    return lambda call, context: ask_tool(tool, **thaw(call.arguments))


def _takes_tool(guard: Guard) -> bool:
    """Return whether the guard itself is called with the tool: axio's may apply a limit there, around their `check`."""
    entry = getattr(type(guard), "__call__", None)  # noqa: B004
    return inspect.isfunction(entry) and [*read_signature(entry).parameters][1:2] == ["tool"]


def _ask_with_instance(check: Callable[..., object], guard: Guard, tool: Tool) -> GuardQuestion:
    handling: Handler = tool.handling
    if not handling.makes_instance:
        raise DefinitionError(
            f"the guard {guard!r} needs an instance of a handler class, and {tool.name!r} is none; write "
            "check(call, context)"
        )

    parameters = handling.parameters
    assert isinstance(parameters, TypedParameters)

    async def ask_guard(call: ToolCall, context: ToolContext) -> object:
        instance = parameters.revalidate(call.arguments)
        before = parameters.dump_fields(instance)
        answer = check(instance)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None or answer is True:
            answer = instance
        if not isinstance(answer, type(instance)):
            return answer
        try:
            after = parameters.dump_fields(answer)
        except NotJudgeable as error:
            raise GuardError(f"a guard changed the handler, and {error}") from error
        changed = {key: after[key] for key in after if key not in before or not is_same_json(before[key], after[key])}
        removed = before.keys() - after.keys()
        if not changed and not removed:
            return None
        return allow({key: value for key, value in call.arguments.items() if key not in removed} | changed)

    return ask_guard
