"""Give every form of guard one signature, and turn its answer into a decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ferrule.definition.forms import call_interop
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, GuardError
from ferrule.security.masking import format_masked_error
from ferrule.types import Guard, GuardFunction
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import ALLOW, Decision, allow, ask, deny
from ferrule.values.frozen import thaw

LATE = deny("a guard did not answer in time")
BROKEN = deny("a guard broke, so the call may not run")


def guard_function(guard: Guard, tool: Tool) -> GuardFunction:
    """Return the guard as a function of call and context.

    Raises:
        DefinitionError: Its form does not fit the tool, or its `check_tool` refuses the tool.
    """
    if isinstance(guard, type):
        raise DefinitionError(f"the guard {guard.__name__} is a class; give an instance of it: {guard.__name__}(...)")
    check_tool = getattr(guard, "check_tool", None)
    if callable(check_tool):
        check_tool(tool)
    check = getattr(guard, "check", None)
    return call_interop("make_check_guard", guard, check, tool) if callable(check) else guard  # type: ignore[return-value]


def make_asking_guard(tool: Tool) -> GuardFunction:
    """Return the guard of a tool with `ask`. Its name is what a person and the log see as the rule."""
    asked = ask(tool.ask if isinstance(tool.ask, str) else f"really run {tool.name}?")

    def ask_of_the_tool(call: ToolCall, context: ToolContext) -> Decision:
        return asked

    ask_of_the_tool.__name__ = f"ask of {tool.name}"
    return ask_of_the_tool


def to_decision(answer: object) -> Decision:
    """Return the decision that a guard's answer stands for.

    Raises:
        TypeError: The answer has an unknown form. The text lists the forms, for the log.
        Exception: A foreign mapping raised it.
    """
    if answer is None or answer is ALLOW:
        return ALLOW
    if isinstance(answer, Mapping):
        answer = allow(answer)
    if not isinstance(answer, Decision):
        raise TypeError(
            f"a guard answered with {type(answer).__name__}, and has to answer None, allow(), ask(reason), "
            "deny(reason) or the arguments to use"
        )
    if answer.kind == "allow" and answer.arguments is not None:
        return allow(thaw(answer.arguments))  # a foreign mapping may raise anything when it is read
    return answer


def guard_name(guard: Guard) -> str:
    """Return the name of a guard's function or class. Names in Ferrule itself lose their leading underscore."""
    name = str(getattr(guard, "__name__", type(guard).__name__))
    ours = str(getattr(guard, "__module__", "")).partition(".")[0] == "ferrule"
    return name.lstrip("_") if ours else name


def decision_for_error(error: BaseException, redact: Callable[[str], str] = str) -> Decision:
    """Return the decision for a guard that raised. Every exception denies.

    A `GuardError`, or a `PermissionError` without an errno, denies with its own text.
    """
    if isinstance(error, GuardError):
        return deny(str(error) or "not permitted")
    if isinstance(error, PermissionError) and error.errno is None:
        return deny(format_masked_error(error, redact) or "not permitted")
    return LATE if isinstance(error, TimeoutError) else BROKEN
