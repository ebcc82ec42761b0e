"""AFK's parts for a runner: its policies as a guard, its three forms of hooks as middleware, and its records of a call.

    runner = Runner(
        tools,
        guards=[afk.policy(engine)],
        around=[afk.pre_hook(strip)],
        inside=[afk.middleware(timed), afk.post_hook(shorten)],
        observers=[afk.tool_completed(print)],
    )

It uses only the objects of AFK that you pass in. See docs/coming-from.md#from-afk.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ferrule.definition.handler import is_async
from ferrule.definition.hooks import Hook
from ferrule.definition.options import accepts
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, ToolError
from ferrule.executors.threads import Raised, run_in_thread
from ferrule.runner import error_of
from ferrule.types import GuardFunction, Middleware, Next, Observer
from ferrule.values.call import ToolCall
from ferrule.values.context import JUDGED_TRAITS, ToolContext
from ferrule.values.decision import Decision, allow, ask, deny
from ferrule.values.event import Event
from ferrule.values.frozen import thaw
from ferrule.values.json_text import Malformed, is_same_json, parse_json_object
from ferrule.values.result import ToolResult

__all__ = [
    "PolicyEvent",
    "call",
    "middleware",
    "policy",
    "post_hook",
    "pre_hook",
    "to_openai_function_tools",
    "tool_completed",
    "tool_executions",
]

PolicyRole: TypeAlias = Callable[["PolicyEvent"], Any]
"""A function that answers an event, sync or async: with a decision, or with an object that has a `decision`."""

_ASKING_ACTIONS = ("defer", "request_approval")
_INPUT_MARKERS = ("user_input", "input")
_FINAL_STATUSES = ("suspended", "denied")
_EXECUTION_FIELDS = {
    "tool_name": "tool_name",
    "tool_call_id": "call_id",
    "success": "success",
    "output": "output",
    "error": "error",
    "latency_ms": "duration_ms",
}


@dataclass(frozen=True, slots=True)
class PolicyEvent:
    """An event about a call for an engine: the fields of AFK's own event. See docs/coming-from.md#from-afk.

    Attributes:
        run_id: The call's id.
        thread_id: The session; empty if there is none.
        context: The metadata of the call's context, with its principal as `user_id`.
        tool_args: The judged arguments; a copy.
        metadata: The tool's traits with these arguments (`read_only`, `destructive` and so on).
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
    """Return a guard that sends a `tool_before_execute` event to AFK's `PolicyEngine`, or to a policy role.

    The guard follows the answer, and denies if it is invalid. See docs/coming-from.md#from-afk.

    Args:
        engine: An object with `evaluate(event)`, or a function of the event. If it is no coroutine function, it is
            called in a thread, so that a late answer denies, as for any guard.

    Raises:
        DefinitionError: `engine` is neither.
    """
    evaluate: Any = getattr(engine, "evaluate", engine)
    if isinstance(engine, type) or not callable(evaluate):
        raise DefinitionError(f"afk.policy takes an engine with evaluate(event), or a policy role, not {engine!r}")

    async def afk_policy(call: ToolCall, context: ToolContext) -> Decision | None:
        event = _make_event(call, context)
        if is_async(evaluate):
            return _read_decision(await evaluate(event), call.name)
        answer = await run_in_thread(lambda: evaluate(event))
        if isinstance(answer, Raised):
            raise answer.error
        return _read_decision(await answer if inspect.isawaitable(answer) else answer, call.name)

    return afk_policy


# -- hooks -------------------------------------------------------------------------------------------------------------


def pre_hook(function: Callable[..., Any]) -> Middleware:
    """Return AFK's pre hook, `(args)` or `(args, ctx)`, as a middleware for `around`. See docs/coming-from.md#from-afk.

    The hook returns the arguments to validate and then judge, as a dict. If it returns anything else, including `None`,
    or raises, the call fails and nothing runs. If its arguments do not fit the tool, the call is answered as invalid.
    The hook is not called for arguments that cannot be read.

    Raises:
        DefinitionError: The function accepts neither form.
    """
    with_context = _has_first_form("pre_hook", function, "(args, ctx)", "(args)")

    def read_arguments(call: ToolCall) -> dict[str, Any] | None:
        try:
            return None if isinstance(call.raw, str) and parse_json_object(call.raw) is None else thaw(call.arguments)
        except Malformed:
            return None

    async def afk_pre_hook(call: ToolCall, context: ToolContext) -> ToolCall:
        arguments = read_arguments(call)
        if arguments is None or call.problem is not None:
            return call
        answer = function(arguments, context) if with_context else function(arguments)
        answer = await answer if inspect.isawaitable(answer) else answer
        if not isinstance(answer, dict):
            raise ToolError(f"a pre hook of {call.name} must return a dict, not {type(answer).__name__}")
        return call.replace(arguments=answer)

    return Hook(before=afk_pre_hook)


def middleware(function: Callable[..., Any]) -> Middleware:
    """Return AFK's middleware, `(call_next, args, ctx)`, for `inside`, or for `around` if it changes the arguments.

    `await call_next(args, ctx)` returns the tool's output, and the function's return value replaces it. Changed
    arguments are judged in `around`. See docs/coming-from.md#from-afk.

    If a call does not succeed, `call_next` raises a `ToolError` with it as `result`. If the function lets the error
    through, the result stays as it is. A refused call, or one that waits for a person, stays as it is in any case.

    Raises:
        DefinitionError: The function does not accept the three arguments.
    """
    _has_first_form("middleware", function, "(call_next, args, ctx)")

    async def afk_middleware(call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        before = thaw(call.arguments)
        last: ToolResult | None = None
        output_before: Any = None

        async def call_next(args: Any, ctx: ToolContext) -> Any:
            nonlocal last, output_before
            last = await next(call if is_same_json(args, thaw(call.arguments)) else call.replace(arguments=args), ctx)
            if not last.success:
                raise error_of(last)
            output_before = thaw(last.output)
            return output_before

        try:
            answer = function(call_next, before, context)
            output = await answer if inspect.isawaitable(answer) else answer
        except Exception as error:
            if last is not None and (last.status in _FINAL_STATUSES or getattr(error, "result", None) is last):
                return last
            raise
        if last is not None and last.status in _FINAL_STATUSES:
            return last
        return _with_output(last, output, output_before) if last is not None and last.success else ToolResult(output)

    return afk_middleware


def post_hook(function: Callable[..., Any]) -> Middleware:
    """Return AFK's post hook, `({"output": …, "tool_name": …})`, as a middleware for `inside`. It sees only successes.

    The hook's `"output"` replaces the output. If it returns `None`, its argument counts, with the changes made there.
    See docs/coming-from.md#from-afk.

    If the hook returns anything else, or raises, the call fails, and outer hooks are not called.

    Raises:
        DefinitionError: The function does not accept one argument.
    """
    _has_first_form("post_hook", function, "(result)")

    async def afk_post_hook(result: ToolResult, context: ToolContext) -> ToolResult | None:
        if not result.success:
            return None
        name = result.tool_name if context.call is None else context.call.name
        output_before = thaw(result.output)
        payload = {"output": output_before, "tool_name": name}
        answer = function(payload)
        answer = await answer if inspect.isawaitable(answer) else answer
        answer = payload if answer is None else answer
        if not isinstance(answer, Mapping) or "output" not in answer:
            raise TypeError(f"a post hook must return {{'output': …}} or None, not {type(answer).__name__}")
        return _with_output(result, answer["output"], output_before)

    return Hook(after=afk_post_hook)


def _with_output(result: ToolResult, output: Any, output_before: Any) -> ToolResult:
    """Return the result with this output, unless it is `output_before`, an unchanged copy of the result's own."""
    return (
        result
        if output is output_before and is_same_json(output_before, thaw(result.output))
        else result.replace(output=output)
    )


def _has_first_form(name: str, function: object, *forms: str) -> bool:
    """Return whether the function accepts the first of the forms.

    Raises:
        DefinitionError: It accepts none of them.
    """
    if callable(function):
        for form in forms:
            if accepts(function, form):
                return form is forms[0]
    raise DefinitionError(f"afk.{name} takes a function of {' or '.join(forms)}, not {function!r}")


# -- one call ----------------------------------------------------------------------------------------------------------


async def call(
    tool: Tool, arguments: Mapping[str, Any], context: ToolContext[Any] | None = None, *, raise_on_error: bool = False
) -> ToolResult:
    """Run one call of a tool by itself, as AFK's `tool.call(…)`. Only the tool's own guards are asked.

    See docs/coming-from.md#from-afk.

    Raises:
        ToolError: The call did not succeed, and `raise_on_error` is true: `ValidationError`, `GuardError`,
            `ToolTimeoutError`, `HandlerError`; it has the result.
    """
    result = await tool.run(arguments, context)
    if raise_on_error and not result.success:
        raise error_of(result)
    return result


def to_openai_function_tools(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """Return the definitions for OpenAI's Chat Completions and compatible APIs. See docs/coming-from.md#from-afk."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.wire_name,
                "description": tool.description,
                "parameters": thaw(tool.input_schema),
            },
        }
        for tool in tools
    ]


def tool_executions(results: Iterable[ToolResult]) -> list[dict[str, Any]]:
    """Return a `ToolExecutionRecord` of each result, as a dict of plain JSON. See docs/coming-from.md#from-afk.

    Its keys are `tool_name`, `tool_call_id`, `success`, `output`, `error` and `latency_ms`.
    """
    return [_make_execution(result) for result in results]


def tool_completed(handler: Callable[[dict[str, Any]], object]) -> Observer:
    """Return an observer that passes on one dict for each ended call. See docs/coming-from.md#from-afk.

    It has `type`, which is `"tool_completed"`, and the keys of `tool_executions`.
    """

    def observe(event: Event) -> None:
        if event.kind in ("tool:post", "tool:error"):
            handler({"type": "tool_completed", **_make_execution(event.data["result"])})

    return observe


def _make_execution(result: ToolResult) -> dict[str, Any]:
    record = result.record()
    return {theirs: record[ours] for theirs, ours in _EXECUTION_FIELDS.items()}


# -- policies ----------------------------------------------------------------------------------------------------------


def _make_event(call: ToolCall, context: ToolContext) -> PolicyEvent:
    metadata: dict[str, Any] = thaw(context.metadata)
    if context.principal is not None:
        metadata["user_id"] = context.principal
    return PolicyEvent(
        event_type="tool_before_execute",
        run_id=call.id,
        thread_id=context.session or "",
        step=0,
        context=metadata,
        tool_name=call.name,
        tool_args=thaw(call.arguments),
        metadata={name: getattr(context.tool, name) for name in JUDGED_TRAITS},
    )


def _read_decision(answer: object, name: str) -> Decision | None:
    """Return AFK's decision for an answer. Unlike AFK's runner, deny if the answer is invalid."""
    decision = getattr(answer, "decision", answer)
    action, arguments = getattr(decision, "action", None), getattr(decision, "updated_tool_args", None)
    rule = _strip_text(getattr(decision, "policy_id", None))
    reason = _strip_text(getattr(decision, "reason", None))
    if action == "deny":
        return deny(reason or "denied by policy", rule=rule)
    if action == "allow" and arguments is None:
        return None
    if action == "allow" and isinstance(arguments, Mapping):
        return allow(arguments)
    payload = getattr(decision, "request_payload", None) or {}
    if arguments is not None or not isinstance(payload, Mapping):
        return deny("the policy asks and changes the arguments; it can do only one", rule=rule)
    marker = (_strip_text(payload.get("interaction")) or "").lower()
    if action == "request_user_input" or (action == "defer" and marker in _INPUT_MARKERS):
        prompt = _strip_text(payload.get("prompt")) or reason or f"{name} needs a value"
        return ask(prompt, into=_strip_text(payload.get("target_arg")), rule=rule)
    if action in _ASKING_ACTIONS:
        return ask(reason or f"{name} needs approval", rule=rule)
    return deny("the policy's answer is unknown", rule=rule)


def _strip_text(value: object) -> str | None:
    """Return the text as AFK reads it: without surrounding blanks, and None if it is empty."""
    return value.strip() or None if isinstance(value, str) else None
