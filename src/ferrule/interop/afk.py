"""AFK's policies as a guard: `policy(engine)` asks an AFK `PolicyEngine`, or one of its policy roles, about each call.

    runner = Runner(tools, guards=[afk.policy(engine)], approve=console())

It needs nothing of AFK but the engine that it is given. See docs/coming-from.md#from-afk.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ferrule.definition.handler import is_async
from ferrule.errors import DefinitionError
from ferrule.executors.threads import Raised, in_own_thread
from ferrule.types import GuardFunction
from ferrule.values.call import ToolCall
from ferrule.values.context import JUDGED_TRAITS, ToolContext
from ferrule.values.decision import Decision, allow, ask, deny
from ferrule.values.frozen import thaw

__all__ = ["PolicyEvent", "policy"]

PolicyRole: TypeAlias = Callable[["PolicyEvent"], Any]
"""What answers an event, at once or by a coroutine: a decision, or an object that holds it as `decision`."""

_DEFERS = ("defer", "request_approval")
_INPUT_MARKERS = ("user_input", "input")


@dataclass(frozen=True, slots=True)
class PolicyEvent:
    """What an engine is told of a call: the fields of AFK's own event. See docs/coming-from.md#from-afk.

    Attributes:
        run_id: The call's id.
        thread_id: The session; empty where there is none.
        context: The metadata of the call's context, with its principal as `user_id`.
        tool_args: The arguments as they are judged; a copy.
        metadata: What the tool does with these arguments (`read_only`, `destructive` and so on).
    """

    event_type: str
    run_id: str
    thread_id: str
    step: int
    context: dict[str, Any]
    tool_name: str | None = None
    tool_args: dict[str, Any] | None = None
    subagent_name: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


def policy(engine: object) -> GuardFunction:
    """A guard that sends a `tool_before_execute` event to AFK's `PolicyEngine`, or to a policy role, and does as it
    says; what is no answer denies. See docs/coming-from.md#from-afk.

    Args:
        engine: What has `evaluate(event)`, or is called with the event. Where that is no coroutine function, it is
            called in a thread, so that one that does not answer in time denies, as for any guard.

    Raises:
        DefinitionError: for what is neither.
    """
    evaluate: Any = getattr(engine, "evaluate", engine)
    if isinstance(engine, type) or not callable(evaluate):
        raise DefinitionError(f"afk.policy takes an engine with evaluate(event), or a policy role, not {engine!r}")

    async def afk_policy(call: ToolCall, context: ToolContext) -> Decision | None:
        event = _event_of(call, context)
        if is_async(evaluate):
            return _decision_of(await evaluate(event), call.name)
        answer = await in_own_thread(lambda: evaluate(event))
        if isinstance(answer, Raised):
            raise answer.error
        return _decision_of(await answer if inspect.isawaitable(answer) else answer, call.name)

    return afk_policy


def _event_of(call: ToolCall, context: ToolContext) -> PolicyEvent:
    known: dict[str, Any] = thaw(context.metadata)
    if context.principal is not None:
        known["user_id"] = context.principal
    return PolicyEvent(
        event_type="tool_before_execute",
        run_id=call.id,
        thread_id=context.session or "",
        step=0,
        context=known,
        tool_name=call.name,
        tool_args=thaw(call.arguments),
        metadata={name: getattr(context.tool, name) for name in JUDGED_TRAITS},
    )


def _decision_of(answer: object, name: str) -> Decision | None:
    """What AFK's runner makes of an answer, but that it lets a call run where the answer is none."""
    said = getattr(answer, "decision", answer)
    action, arguments = getattr(said, "action", None), getattr(said, "updated_tool_args", None)
    rule = _stripped_text(getattr(said, "policy_id", None))
    reason = _stripped_text(getattr(said, "reason", None))
    if action == "deny":
        return deny(reason or "denied by policy", rule=rule)
    if action == "allow" and arguments is None:
        return None
    if action == "allow" and isinstance(arguments, Mapping):
        return allow(arguments)
    payload = getattr(said, "request_payload", None) or {}
    if arguments is not None or not isinstance(payload, Mapping):
        return deny("the policy asks, and would change the arguments as well", rule=rule)
    marker = (_stripped_text(payload.get("interaction")) or "").lower()
    if action == "request_user_input" or (action == "defer" and marker in _INPUT_MARKERS):
        prompt = _stripped_text(payload.get("prompt")) or reason or f"a value is wanted for {name}"
        return ask(prompt, into=_stripped_text(payload.get("target_arg")), rule=rule)
    if action in _DEFERS:
        return ask(reason or f"approval is wanted for {name}", rule=rule)
    return deny("the policy gave no answer that is known", rule=rule)


def _stripped_text(value: object) -> str | None:
    """The text, as AFK reads it: without blanks round it, and none where nothing is left."""
    return value.strip() or None if isinstance(value, str) else None
