"""Guards in all their forms as functions of one signature, and what their answers mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ferrule.definition.forms import of_others
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, GuardError
from ferrule.types import Guard, GuardFunction
from ferrule.values.decision import ALLOW, Decision, allow, ask, deny
from ferrule.values.frozen import thaw
from ferrule.values.masking import masked_text

LATE = deny("a guard did not answer in time")
BROKEN = deny("a guard broke, so the call may not run")


def guard_function(guard: Guard, tool: Tool) -> GuardFunction:
    """`guard` as a function of call and context: it is one, or has a `check`.

    Raises:
        DefinitionError: where its form does not go with the tool, or its `check_tool` refuses the tool.
    """
    if isinstance(guard, type):
        raise DefinitionError(f"the guard {guard.__name__} is a class; give an instance of it: {guard.__name__}(...)")
    check_tool = getattr(guard, "check_tool", None)
    if callable(check_tool):
        check_tool(tool)
    check = getattr(guard, "check", None)
    return of_others("guard_of", guard, check, tool) if callable(check) else guard  # type: ignore[return-value]


def ask_always(tool: Tool) -> GuardFunction:
    """The guard of a tool with `ask`."""
    asked = ask(tool.ask if isinstance(tool.ask, str) else f"really run {tool.name}?")
    return lambda call, context: asked


def decision_of(answer: object) -> Decision:
    """What a guard's answer means; anything that is none of the forms denies."""
    if answer is None or answer is ALLOW:
        return ALLOW
    if isinstance(answer, Mapping):
        answer = allow(answer)
    if not isinstance(answer, Decision):
        return deny(
            f"a guard answered with {type(answer).__name__}, and has to answer None, allow(), ask(reason), "
            "deny(reason) or the arguments to use"
        )
    if answer.kind == "allow" and answer.arguments is not None:
        return allow(thaw(answer.arguments))  # a mapping of somebody's own may raise anything when it is read
    return answer


def name_of(guard: Guard) -> str:
    """Return what a guard is called: its function's name, or its class's; without the underscore that marks a name of
    Ferrule's own code as private."""
    name = str(getattr(guard, "__name__", type(guard).__name__))
    ours = str(getattr(guard, "__module__", "")).partition(".")[0] == "ferrule"
    return name.lstrip("_") if ours else name


def broken(error: BaseException, hide: Callable[[str], str] = str) -> Decision:
    """The decision for a guard that raised: a `GuardError`, or a `PermissionError` that no system call raised, is its
    way to say no, anything else is a fault."""
    if isinstance(error, GuardError):
        return deny(str(error) or "not permitted")
    if isinstance(error, PermissionError) and error.errno is None:
        return deny(masked_text(error, hide) or "not permitted")
    return LATE if isinstance(error, TimeoutError) else BROKEN
