"""The guards' verdict, and the answer of whoever is asked.

Changed arguments are validated and judged again by every guard but the one that changed them, at most eight rounds.
After an answer, and after any wait for a person, all guards judge once more: an ask no longer counts, a deny or a
further change denies.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from ferrule.arguments.parameters import Invalid
from ferrule.definition.function import is_async
from ferrule.errors import DefinitionError
from ferrule.executors import threads as pool
from ferrule.pipeline import invoke as execution
from ferrule.pipeline.guards import Judge, answer_of, broken
from ferrule.pipeline.plan import Plan
from ferrule.types import Approver, Guard
from ferrule.values.call import ToolCall, judged_call
from ferrule.values.content import jsonable
from ferrule.values.context import CallState, ToolContext
from ferrule.values.decision import ALLOW, Decision, allow, ask, deny

log = logging.getLogger("ferrule")
ROUNDS = 8
GUARD_SECONDS = 10.0


class Verdict:
    """A decision, with the call and the values that it is about."""

    __slots__ = ("call", "decision", "values")

    def __init__(self, decision: Decision, call: ToolCall, values: Any) -> None:
        self.decision = decision
        self.call = call
        self.values = values


def first_word(
    judges: tuple[tuple[Judge, Guard], ...], call: ToolCall, context: ToolContext[Any]
) -> tuple[int, Any] | None:
    """The first guard that does not stay silent, by its place, and its answer; most calls are done with this."""
    position = 0
    try:
        for judge, _ in judges:
            answer: Any = judge(call, context)
            if answer is not None:
                return position, answer
            position += 1
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        return position, pool.Raised(error)
    return None


async def judged(
    plan: Plan, call: ToolCall, values: Any, state: CallState, first: tuple[int, Any] | None = None
) -> Verdict:
    """What all guards say together; changed arguments are judged again.

    `first` is what `first_word` found: those before it are silent, and it is not asked twice.
    """
    changed_by = -1
    for _ in range(ROUNDS):
        decision = ALLOW
        for position, (judge, guard) in enumerate(plan.judges):
            if position == changed_by or (first is not None and position < first[0]):
                continue
            (_, answer), first = first or (0, _Unasked), None
            said = await _said(plan, judge, guard, call, state, answer)
            if said is ALLOW:
                continue
            if said.kind == "deny":
                return Verdict(said, call, values)
            if said.kind == "ask":
                decision = _both(decision, said)
            elif said.arguments is not None:
                changed_by = position
                try:
                    values, call = _changed(plan, call, said.arguments, state)
                except Invalid as invalid:
                    log.error("a guard of tool %r changed the arguments to what does not fit: %s", plan.name, invalid)
                    return Verdict(
                        deny(f"a guard changed the arguments to what does not fit{_misfit(plan, invalid)}"),
                        call,
                        values,
                    )
                except Exception as error:  # a mapping of the guard's own may raise anything when it is read
                    return Verdict(_broken(plan, guard, error), call, values)
                break
        else:
            return Verdict(decision, call, values)
    return Verdict(deny("the guards kept changing the arguments"), call, values)


class _Unasked:
    """In the place of an answer that a guard has still to give."""


async def _said(plan: Plan, judge: Judge, guard: Any, call: ToolCall, state: CallState, answer: Any) -> Decision:
    """One guard's answer as a decision."""
    try:
        if answer is _Unasked:
            answer = judge(call, state.context)
        if answer is None:
            return ALLOW
        if isinstance(answer, pool.Raised):
            raise answer.error
        if not isinstance(answer, Decision | Mapping) and inspect.isawaitable(answer):
            answer = await _in_time(answer)
        return answer_of(answer, call)
    except _NOT_OURS:
        raise
    except _Cancelled:
        raise asyncio.CancelledError from None
    except BaseException as error:
        return _broken(plan, guard, error)


def _both(one: Decision, other: Decision) -> Decision:
    """Two decisions of which none denies; of two asks, a person has to see both."""
    if one.kind == other.kind == "ask" and one.reason != other.reason:
        return ask(f"{one.reason}; {other.reason}", into=one.into or other.into)
    return one.stricter(other)


def _misfit(plan: Plan, invalid: Invalid) -> str:
    """What does not fit, for the model, which cannot mend it; nothing of a value that it is not to see."""
    return "" if plan.hidden else f": {str(invalid).partition(' Nothing was run')[0]}"


class _Cancelled(BaseException):
    """A cancellation from outside while a guard was awaited, told from one that the guard raised."""


_NOT_OURS = (KeyboardInterrupt, GeneratorExit)


def _broken(plan: Plan, guard: Any, error: BaseException) -> Decision:
    decision = broken(guard, error)
    if decision.reason.startswith("a guard"):
        log.error("the guard %r of tool %r broke", guard, plan.name, exc_info=error)
    return decision


async def _in_time(answer: Awaitable[Any]) -> Any:
    """A guard's awaited answer, within its time; a late one is cancelled and not waited for.

    Raises:
        TimeoutError: where it is late.
    """

    async def waited() -> Any:
        try:
            return await answer
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            return pool.Raised(error)

    task = execution.start(waited(), asyncio.get_running_loop())
    if not task.done():
        try:
            await asyncio.wait({task}, timeout=GUARD_SECONDS)
        except asyncio.CancelledError as error:
            task.cancel()
            raise _Cancelled from error
    if not task.done():
        task.cancel()
        raise TimeoutError
    outcome = task.result()
    if isinstance(outcome, pool.Raised):
        raise outcome.error
    return outcome


def _changed(plan: Plan, call: ToolCall, arguments: Mapping[str, Any], state: CallState) -> tuple[Any, ToolCall]:
    values, text, _ = plan.parameters.judge(plan.name, arguments, str(call.raw))
    changed = judged_call(call, text, values, plan.parameters)
    state.call = changed
    return values, changed


async def answered(plan: Plan, verdict: Verdict, state: CallState, approve: Approver | None) -> Verdict:
    """The verdict once somebody has answered the ask; still an ask where it is put off."""
    asked, call, values = verdict.decision, verdict.call, verdict.values
    if approve is None:
        return Verdict(deny(f"nobody is there to ask ({asked.reason})"), call, values)
    answer = await _answer(plan, approve, call, asked, state.context)
    if answer.kind == "ask":
        return Verdict(ask(answer.reason or asked.reason, into=answer.into or asked.into), call, values)
    if answer.kind == "deny":
        return Verdict(answer, call, values)
    if answer.arguments is not None:
        try:
            edited = {**call.arguments, **answer.arguments} if asked.into else answer.arguments
            values, call = _changed(plan, call, edited, state)
        except Invalid as invalid:
            log.warning("an answer for tool %r does not fit: %s", plan.name, invalid)
            return Verdict(deny(f"the answer's arguments do not fit{_misfit(plan, invalid)}"), call, values)
        except Exception as error:
            log.error("the answer's arguments for tool %r cannot be read", plan.name, exc_info=error)
            return Verdict(deny("the answer's arguments cannot be read"), call, values)
    final = await judged(plan, call, values, state)
    if final.decision.kind == "deny":
        return final
    if final.call is not call:
        return Verdict(deny("a guard would change the arguments after they were approved"), call, values)
    return Verdict(ALLOW, call, values)


async def _answer(
    plan: Plan, approve: Approver, call: ToolCall, asked: Decision, context: ToolContext[Any]
) -> Decision:
    task = asyncio.current_task()
    cancels = task.cancelling() if task is not None else 0
    try:
        if is_async(approve):
            answer: Any = await approve(call, asked, context)  # type: ignore[misc]
        else:
            answer = await pool.apart(lambda: approve(call, asked, context))
            if isinstance(answer, pool.Raised):
                raise answer.error
            if inspect.isawaitable(answer):
                answer = await answer
    except GeneratorExit:
        raise
    except BaseException as error:
        if task is not None and task.cancelling() > cancels:
            raise
        log.error("the approver broke on tool %r", plan.name, exc_info=error)
        return deny("the question could not be asked")
    if answer is True:
        return ALLOW
    if isinstance(answer, Decision):
        return answer if answer.kind != "deny" or answer.reason else deny("refused")
    return deny("refused by the person who was asked" if answer is False else "refused")


# -- suspended calls ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """What a record keeps of a suspended call."""

    key: str
    id: str
    name: str
    arguments: dict[str, Any]
    data: Any
    parent: str | None
    decision: Decision
    context: dict[str, Any]


class Resumed:
    """The answer to a suspended call, on its way to the place where the question was asked."""

    __slots__ = ("answer", "arguments", "decision", "key")

    def __init__(self, key: str, arguments: dict[str, Any], decision: Decision, answer: Any) -> None:
        self.key = key
        self.arguments = arguments
        self.decision = decision
        self.answer = answer

    async def approve(self, call: ToolCall, decision: Decision, context: ToolContext[Any]) -> Any:
        return self.answer


def remembered(call: ToolCall, state: CallState, decision: Decision) -> dict[str, Any]:
    """All, as plain JSON, that another process needs to take the call up again."""
    sent, context = state.sent, state.context
    kept: dict[str, Any] = jsonable(
        {
            "id": sent.id,
            "name": sent.name,
            "arguments": _unbound(call.arguments, state.plan.parameters.bound),
            "data": sent.data,
            "parent": call.parent,
            "decision": {"reason": decision.reason, "into": decision.into},
            "context": {
                "session": context.session,
                "principal": context.principal,
                "working_directory": context._given[2],
                "metadata": dict(context.metadata),
            },
        }
    )
    return {"key": os.urandom(16).hex(), **kept}


def _unbound(arguments: Mapping[str, Any], bound: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without those that the program fixes by itself, here as there."""
    return {name: value for name, value in arguments.items() if name not in bound or value != bound[name]}


def recalled(record: Mapping[str, Any]) -> Memory:
    """The suspended call that a record keeps.

    Raises:
        DefinitionError: where it keeps none.
    """
    try:
        kept = record["metadata"]["resume"]
        decision = ask(str(kept["decision"]["reason"]), into=kept["decision"]["into"])
        return Memory(
            str(kept["key"]),
            str(kept["id"]),
            str(kept["name"]),
            dict(kept["arguments"]),
            kept["data"],
            kept["parent"],
            decision,
            dict(kept["context"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DefinitionError(f"resume takes the .record() of a suspended result; this is none ({error!r})") from None


def recalled_context(memory: Memory, given: ToolContext[Any]) -> ToolContext[Any]:
    """The context of the suspended call, with the `deps` and `secrets` of this process."""
    kept = {key: memory.context.get(key) for key in ("session", "principal", "working_directory", "metadata")}
    return given.replace(**kept)


def with_changes(verdict: Verdict, judged: ToolCall) -> Decision:
    """The verdict's decision, with the arguments where guards would change them."""
    if verdict.decision.kind == "allow" and verdict.call is not judged:
        return allow(verdict.call.arguments)
    return verdict.decision
