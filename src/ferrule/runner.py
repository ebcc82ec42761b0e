"""`Runner`: the one path that every call takes.

    receive    an id where there is none; unknown names, used ids and calls with a `problem` are answered here
    seal       the outermost ring: binds the call, bounds and cleans the result to valid JSON and UTF-8, measures, and
    │          emits the one terminal event, for every result from wherever it came
    ├ around…    middleware round the call as the model made it (not its id or name)
    │ ├ decode     text becomes arguments; what is malformed is answered, and nothing runs
    │ ├ validate   the schema, strictly; then defaults and recorded repairs; unknown arguments are refused
    │ ├ guards     the tool's and the runner's together; deny > ask > allow; one that breaks or is late denies
    │ ├ approve    an "ask" goes to the approver: allowed, denied, or suspended as a value
    │ ├ slot       concurrency and resource locks, with a bounded wait; never held while somebody is asked
    │ ├ intent     (journal) committed before a tool that changes things runs
    │ └ deadline   counted from here
    │   ├ inside…    middleware round the run itself
    │   │ ├ handler    async: a task of its own where there is a deadline; sync: a thread
    │   │ └ shape      the value becomes content; the output schema is checked

What was judged is what runs: arguments change only before the slot, and each change is validated and judged again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from asyncio import current_task, get_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from time import perf_counter
from typing import Any, overload

from ferrule import approving, execution, sync
from ferrule.batch import Batch
from ferrule.core.content import bound, clean, cut, jsonable, size
from ferrule.core.context import (
    CURRENT,
    NO_CONTEXT,
    ToolContext,
    bind_context,
    set_call,
    set_cut,
    set_ended,
    set_executed,
    set_repairs,
    set_resumed,
    set_values,
)
from ferrule.core.errors import DefinitionError, GuardError, HandlerError, ToolError, ToolTimeoutError, ValidationError
from ferrule.core.keys import Hold, KeyLocks
from ferrule.core.limiter import Limiter
from ferrule.core.mistakes import nearest
from ferrule.core.output import OutputMismatch
from ferrule.core.parameters import Invalid
from ferrule.core.plan import Plan, Settings
from ferrule.core.tool import Tool, _callables, _count, _direct, _kinds, _seconds
from ferrule.core.toolset import Toolset
from ferrule.core.types import Approver, Guard, Journal, Middleware, Observer
from ferrule.core.values import Decision, Event, EventKind, Status, ToolCall, ToolResult, judged_call, keep_seal
from ferrule.pool import PoolExhausted

log = logging.getLogger("ferrule")
EXPOSED: tuple[type[BaseException], ...] = (ValueError, LookupError, OSError)
_NOTHING_RUN = "Nothing was run."
_SHORT = (int, bool, float, type(None))
_ids = itertools.count(1)


class Halt(Exception):
    """A call that ends before its handler is started."""

    def __init__(self, status: Status, error: str, *, metadata: Mapping[str, Any] | None = None) -> None:
        super().__init__(error)
        self.status: Status = status
        self.error = error
        self.metadata = metadata


class Runner:
    """A toolset with guards and middleware; takes calls, gives results.

    A runner without guards runs what its developer gave it. It belongs to one running loop at a time.

    Args:
        tools: A toolset, or whatever makes one.
        guards: Asked for every call, before the tool's own.
        around: Middleware round the call as the model made it, the first outermost.
        inside: Middleware round the run itself, within the deadline.
        approve: Who answers an "ask"; with nobody, an ask is denied. A plain function is called in a thread of its
            own, because it may wait for a person.
        observers: See every event; cannot change a call and cannot break one.
        journal: Where the intent to change something is committed before it is done.
        concurrency: How many calls run at once; `None` for no limit.
        timeout: Seconds that a call may take once it has its slot, where neither call nor tool says so.
        grace: Seconds that a handler has to end after its cancellation.
        queue_timeout: Seconds that a call waits for its slot before it is `limited`; `None` waits for ever.
        max_output: Characters of a result, altogether.
        expose: Kinds of exceptions whose text a model may see; of all others it sees the type.

    Raises:
        DefinitionError: for whatever could not work.
    """

    def __init__(
        self,
        tools: Iterable[Any],
        *,
        guards: Iterable[Guard] = (),
        around: Iterable[Middleware] = (),
        inside: Iterable[Middleware] = (),
        approve: Approver | None = None,
        observers: Iterable[Observer] = (),
        journal: Journal | None = None,
        concurrency: int | None = 32,
        timeout: float | None = None,
        grace: float = 1.0,
        queue_timeout: float | None = 60.0,
        max_output: int = 100_000,
        expose: tuple[type[BaseException], ...] = EXPOSED,
    ) -> None:
        self._tools = tools if isinstance(tools, Toolset) else Toolset(tools)
        if approve is not None and not callable(approve):
            raise DefinitionError(f"approve must be a function of (call, decision, context), not {approve!r}")
        self._approve = approve
        self._observers: tuple[Observer, ...] = _callables("observers", observers, "")
        self._journal = journal
        limit = _count("concurrency", concurrency, "")
        self._grace = 0.0 if grace == 0 else float(_seconds("grace", grace, "") or 0.0)
        self._queue_timeout = _seconds("queue_timeout", queue_timeout, "")
        self._settings = Settings(
            _callables("guards", guards, "", attribute="check"),
            _callables("around", around, ""),
            _callables("inside", inside, ""),
            None if limit is None else Limiter(limit),
            _seconds("timeout", timeout, ""),
            _kinds("expose", expose, "") or (),
            _count("max_output", max_output, "") or 100_000,
        )
        self._plans: dict[str, Plan] = {}
        for one in self._tools:
            plan = self._compiled(one)
            self._plans[one.name] = self._plans[one.wire_name] = plan
        self._keys = KeyLocks()
        self._running = 0
        self._left = 0
        self._closing = False
        self._idle: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own_loop: sync.OwnLoop | None = None
        self._resumed: dict[str, None] = {}

    def _compiled(self, tool: Tool) -> Plan:
        plan = Plan(tool, self, self._settings)
        if self._journal is not None and plan.changes:
            plan.judged = True

        def enter(call: ToolCall, context: ToolContext[Any]) -> Awaitable[ToolResult]:
            return self._entered(plan, call, context)

        def handle(call: ToolCall, context: ToolContext[Any]) -> Awaitable[ToolResult]:
            return self._handled_unchanged(plan, call, context)

        plan.chain(self._settings, enter, handle)
        return plan

    @property
    def tools(self) -> Toolset:
        """The tools of this runner."""
        return self._tools

    @property
    def left_running(self) -> int:
        """How many handlers outlived their deadline and still run."""
        return self._left

    # -- taking calls -------------------------------------------------------------------------------------------------

    @overload
    def run(
        self, call: ToolCall, context: ToolContext[Any] | None = None, /, *, timeout: float | None = None
    ) -> Coroutine[Any, Any, ToolResult]: ...
    @overload
    def run(
        self, call: ToolCall, *, context: ToolContext[Any] | None = None, timeout: float | None = None
    ) -> Coroutine[Any, Any, ToolResult]: ...
    @overload
    def run(
        self,
        call: str,
        arguments: Mapping[str, Any] | str | None = None,
        context: ToolContext[Any] | None = None,
        /,
        *,
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, ToolResult]: ...
    @overload
    def run(
        self,
        call: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        context: ToolContext[Any] | None = None,
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, ToolResult]: ...
    def run(
        self,
        call: ToolCall | str,
        second: Any = None,
        third: ToolContext[Any] | None = None,
        /,
        *,
        context: ToolContext[Any] | None = None,
        timeout: float | None = None,
        **named: Any,
    ) -> Coroutine[Any, Any, ToolResult]:
        """Run one call: `run(call, context)` or `run("name", {...}, context)`; await the result.

        It never raises for anything that a model or a tool caused. A cancellation from outside cancels.

        Raises:
            DefinitionError: for a wrong time-out.
            RuntimeError: where the runner is busy on another loop.
        """
        if isinstance(call, str):
            if named:
                second = named.pop("arguments", second)
            call = ToolCall("", call, second)
            given = third or context
        else:
            given = second or context
        if named:
            raise TypeError(f"run() got unexpected arguments {sorted(named)!r}")
        if timeout is not None:
            _seconds("timeout", timeout, "")
        return self._started(call, given or NO_CONTEXT, timeout)

    def _started(
        self,
        call: ToolCall,
        given: ToolContext[Any],
        timeout: float | None = None,
        *,
        parent: ToolContext[Any] | None = None,
        observers: tuple[Observer, ...] | None = None,
        sink: Callable[[ToolResult], None] | None = None,
        resumed: Any = None,
    ) -> Coroutine[Any, Any, ToolResult]:
        """Receive: what is known at once is answered; all else goes its way."""
        if not call.id:
            call = call.replace(id=self._new_id())
        plan = self._plans.get(call.name)
        if plan is None:
            return self._answered(call, "not_found", self._unknown(call.name), observers)
        if call.problem is not None:
            return self._answered(call, "invalid", f"{cut(call.problem, 500)} {_NOTHING_RUN}", observers)
        return self._performed(plan, call, given, timeout, parent, observers, sink, resumed)

    def _unknown(self, name: str) -> str:
        near = nearest(name, self._tools._by_name)
        names = near or list(self._tools._by_name)[:12]
        known = f"{'Did you mean' if near else 'There are'} {', '.join(map(repr, names))}" if names else "There are none"
        return f"There is no tool {cut(clean(name), 80)!r}. {known}{'?' if near else '.'} {_NOTHING_RUN}"

    @staticmethod
    def _new_id() -> str:
        return f"call_{next(_ids)}"

    def _reused_id(self, call: ToolCall, observers: tuple[Observer, ...] | None) -> Coroutine[Any, Any, ToolResult]:
        error = f"The id {cut(clean(call.id), 80)!r} was used for another call before. {_NOTHING_RUN}"
        return self._answered(call, "invalid", error, observers)

    def _cancelled_early(
        self, call: ToolCall, observers: tuple[Observer, ...] | None
    ) -> Coroutine[Any, Any, ToolResult]:
        return self._answered(call, "cancelled", f"The call was cancelled. {_NOTHING_RUN}", observers)

    async def _answered(
        self, call: ToolCall, status: Status, error: str, observers: tuple[Observer, ...] | None
    ) -> ToolResult:
        plan = self._plans.get(call.name)
        arrived = call if plan is None or call.name == plan.name else call.replace(name=plan.name)
        result = ToolResult(
            None, error, call=call, tool_name=arrived.name, status=status, executed=False
        )
        everyone = self._observers if observers is None else (*self._observers, *observers)
        self._emit(everyone, "tool:pre", arrived)
        self._emit(everyone, "tool:error", arrived, result)
        return result

    # -- seal ---------------------------------------------------------------------------------------------------------

    async def _performed(
        self,
        plan: Plan,
        call: ToolCall,
        given: ToolContext[Any],
        timeout: float | None,
        parent: ToolContext[Any] | None,
        observers: tuple[Observer, ...] | None,
        sink: Callable[[ToolResult], None] | None,
        resumed: Any,
    ) -> ToolResult:
        started = perf_counter()
        loop = get_running_loop()
        if loop is not self._loop:
            self._move(loop)
        if parent is None:
            parent = CURRENT.get()
        if parent is not None and parent._ended:
            parent = None
        if self._closing and parent is None:
            return await self._answered(call, "cancelled", f"The runner is closing. {_NOTHING_RUN}", observers)
        arrived = call if call.name == plan.name else call.replace(name=plan.name)
        if parent is not None and call.parent is None and parent.call is not None:
            arrived = arrived.replace(parent=parent.call.id)
        everyone = self._observers if observers is None else (*self._observers, *observers)
        context = bind_context(given, plan, call, arrived, parent, timeout, everyone)
        task = current_task()
        cancels = task.cancelling() if task is not None else 0
        self._running += 1
        try:
            if resumed is not None:
                set_resumed(context, resumed)
            elif everyone:
                self._emit(everyone, "tool:pre", arrived)
            try:
                if plan.around is None:
                    result = await self._entered(plan, arrived, context)
                else:
                    result = await plan.around(arrived, context)
            except Exception as error:
                result = self._broke(plan, call, context, error)
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() == cancels:
                    result = self._broke(plan, call, context, error)
                else:
                    self._cut_off(plan, call, arrived, context, started, everyone, sink, error)
                    raise (context._cut or error) from None
            result = self._sealed(plan, call, context, result, started)
            if task is not None and task.cancelling() > cancels:
                # A handler that swallowed a cancellation from outside: the caller's wish counts.
                self._cut_off(plan, call, arrived, context, started, everyone, sink, result)
                raise asyncio.CancelledError
        finally:
            self._running -= 1
            set_ended(context, True)
            if self._idle is not None:
                self._look_idle()
        if everyone:
            kind: EventKind = "tool:post" if result.status == "ok" else "tool:error"
            self._emit(everyone, "tool:suspended" if result.status == "suspended" else kind, arrived, result)
        if self._journal is not None and plan.changes:
            await self._recorded(result)
        return result

    def _cut_off(
        self,
        plan: Plan,
        call: ToolCall,
        arrived: ToolCall,
        context: ToolContext[Any],
        started: float,
        observers: tuple[Observer, ...],
        sink: Callable[[ToolResult], None] | None,
        cause: BaseException | ToolResult,
    ) -> None:
        """A cancellation from outside: the result that the batch keeps, and the terminal event."""
        executed = cause.executed if isinstance(cause, ToolResult) else context._executed
        ran = _NOTHING_RUN if executed is False else "It had been started, so its effect may have happened."
        result = ToolResult(
            None,
            f"The call was cancelled. {ran}",
            call=call,
            tool_name=plan.name,
            status="cancelled",
            executed=executed,
            repairs=context._repairs,
            duration_ms=(perf_counter() - started) * 1000,
            exception=cause if isinstance(cause, BaseException) else None,
        )
        set_ended(context, True)
        self._emit(observers, "tool:error", arrived, result)
        if sink is not None:
            sink(result)

    def _sealed(
        self, plan: Plan, call: ToolCall, context: ToolContext[Any], result: Any, started: float
    ) -> ToolResult:
        """The result bound to its call, bounded, cleaned and measured."""
        if not isinstance(result, ToolResult):
            error = TypeError(f"a middleware of {plan.name!r} returned {result!r}, which is no ToolResult")
            result = self._broke(plan, call, context, error)
        if result.call is not call:
            # It comes from elsewhere, perhaps a cache that will give it again: it is copied, not filled in.
            result = result.replace(call=call, tool_name=plan.name)
        limit = plan.max_output
        output = result.output
        kind = type(output)
        plain = result.error is None and result._content is None
        if not (plain and ((kind is str and len(output) <= limit) or (kind in _SHORT and kind is not int))):
            result = self._bounded(result, limit)
        keep_seal(result, (perf_counter() - started) * 1000, context._repairs)
        return result

    def _bounded(self, result: ToolResult, limit: int) -> ToolResult:
        if result.error is not None and (len(result.error) > limit or not result.error.isascii()):
            result = result.replace(error=cut(clean(result.error), limit))
        if size(result.content) > limit:
            result = result.replace(content=bound(result.content, limit))
        return result

    def _broke(self, plan: Plan, call: ToolCall, context: ToolContext[Any], error: BaseException) -> ToolResult:
        """A middleware that raised: a fault of the program, told to the model without its inside."""
        log.error("a middleware of tool %r raised", plan.name, exc_info=error)
        ran = _NOTHING_RUN if context._executed is False else "The tool had been started."
        text = str(error) if isinstance(error, ToolError) else f"{type(error).__name__} outside the tool itself"
        return ToolResult(
            None,
            f"{plan.name} could not be run: {cut(text, 500)}. {ran}",
            call=call,
            tool_name=plan.name,
            status="failed",
            executed=context._executed,
            exception=error,
        )

    def _emit(self, observers: tuple[Observer, ...], kind: EventKind, call: ToolCall, what: Any = None) -> None:
        event = Event(kind, call, what)
        for observer in observers:
            try:
                observer(event)
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException:
                log.exception("an observer broke on %s of %s", kind, call.name)

    # -- decode, validate, guards, approve, slot -------------------------------------------------------------------------

    async def _entered(self, plan: Plan, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        if context._kernel is not plan:
            raise DefinitionError("a middleware gave `next` a context of its own making; give it the one that it got")
        if call is not context.call and (call.id, call.name) != (context._sent.id, plan.name):
            raise DefinitionError("a middleware gave `next` a call with another id or name")
        try:
            values, text = self._decoded(plan, call, context)
            if plan.judged:
                call = judged_call(call, plan.name, text, plan.parameters.arguments(text, values))
                set_call(context, call)
                if plan.judges or plan.parameters.hidden or context._resumed is not None:
                    call, values = await self._judged(plan, call, values, context)
            held: Any = plan.limiters
            for position, limiter in enumerate(plan.limiters):
                if context._parent is not None or plan.locks or not limiter.try_acquire():
                    held = await self._slot(plan, call, context, plan.limiters[:position])
                    break
        except Halt as halt:
            return ToolResult(
                None,
                halt.error,
                halt.metadata,
                call=context._sent,
                tool_name=plan.name,
                status=halt.status,
                executed=False,
            )
        try:
            if self._journal is not None and plan.changes:
                await self._intended(plan, call, context)
            set_values(context, values)
            seconds = context._timeout or plan.timeout
            if seconds is not None:
                return await execution.within(self, plan, call, context, seconds, self._grace)
            token = CURRENT.set(context)
            try:
                if plan.inside is not None:
                    return await plan.inside(call, context)
                return await self._handled(plan, call, context)
            finally:
                CURRENT.reset(token)
        finally:
            if context._left is None:
                for limiter in held:
                    limiter.release() if type(limiter) is Limiter else self._keys.release(limiter)
            else:
                self._release_later(context, held)

    def _decoded(self, plan: Plan, call: ToolCall, context: ToolContext[Any]) -> tuple[Any, str]:
        raw = call.raw
        if plan.quick is not None and type(raw) is str and context._resumed is None:
            try:
                return plan.quick(raw), raw
            except Exception:
                log.debug("the arguments of %r need a closer look", plan.name, exc_info=True)
        try:
            if context._resumed is not None:
                values, text, repairs = plan.parameters.judge(plan.name, context._resumed.arguments)
            else:
                values, text, repairs = plan.parameters.decode(plan.name, raw)
        except Invalid as invalid:
            raise Halt("invalid", str(invalid)) from None
        if repairs:
            set_repairs(context, repairs)
        return values, text

    async def _judged(
        self, plan: Plan, call: ToolCall, values: Any, context: ToolContext[Any]
    ) -> tuple[ToolCall, Any]:
        """Ask the guards, and whoever they say is to be asked: the call that is to run, with its values."""
        resumed = context._resumed
        if resumed is None:
            verdict = await approving.judged(plan, call, values, context)
            if plan.judges and context._observers:
                self._emit(context._observers, "tool:decided", verdict.call, verdict.decision)
        else:
            verdict = approving.Verdict(resumed.decision, call, values)
        decision = verdict.decision
        if decision.kind == "deny":
            raise Halt("denied", _denied(decision.reason))
        if decision.kind == "ask":
            approve = self._approve if resumed is None else resumed.approve
            verdict = await approving.answered(plan, verdict, context, approve)
            if context._observers:
                self._emit(context._observers, "tool:decided", verdict.call, verdict.decision)
            if verdict.decision.kind == "ask":
                raise Halt(
                    "suspended",
                    f"{plan.name} waits for a decision: {cut(decision.reason, 500)}. {_NOTHING_RUN}",
                    metadata={"resume": approving.remembered(plan, verdict.call, context, verdict.decision)},
                )
            if verdict.decision.kind == "deny":
                raise Halt("denied", _denied(verdict.decision.reason))
        missing = plan.parameters.missing(verdict.call.arguments) if plan.parameters.hidden else []
        if missing:
            raise Halt("denied", _denied("a value that only the program or a person can supply is missing"))
        set_call(context, verdict.call)
        return verdict.call, verdict.values

    async def _slot(
        self, plan: Plan, call: ToolCall, context: ToolContext[Any], taken: tuple[Limiter, ...]
    ) -> list[Limiter | Hold]:
        """Wait for keys and slots, in that order, without those that an ancestor holds."""
        loop = get_running_loop()
        until = None if self._queue_timeout is None else loop.time() + self._queue_timeout
        family = list(_ancestors(context))
        held: list[Limiter | Hold] = list(taken)
        try:
            if plan.locks:
                hold = await self._keys.acquire(
                    self._resources(plan, call),
                    context,
                    family,
                    shared=plan.tool.trait("parallel", call.arguments),
                    timeout=_left_until(until, loop),
                )
                if hold is None:
                    raise _busy(plan, "what it works on is in use")
                held.append(hold)
            theirs = {limiter for one in family for limiter in _limiters_of(one)}
            for limiter in plan.limiters[len(taken) :]:
                if limiter in theirs:
                    continue
                if not await limiter.acquire(_left_until(until, loop)):
                    raise _busy(plan, f"{limiter.limit} calls run already, the most that may run at once")
                held.append(limiter)
        except BaseException:
            for one in held:
                one.release() if isinstance(one, Limiter) else self._keys.release(one)
            raise
        return held

    @staticmethod
    def _resource_keys(plan: Plan, arguments: Mapping[str, Any]) -> list[str]:
        keys = plan.tool.resources(arguments)
        return [keys] if isinstance(keys, str) else [str(key) for key in keys]

    def _resources(self, plan: Plan, call: ToolCall) -> list[str]:
        try:
            return self._resource_keys(plan, call.arguments)
        except Exception as error:
            log.error("resources of tool %r raised", plan.name, exc_info=error)
            raise Halt("failed", f"{plan.name} could not be run: its resources are not known. {_NOTHING_RUN}") from None

    def _release_later(self, context: ToolContext[Any], held: Iterable[Limiter | Hold]) -> None:
        """What outlived its deadline keeps its slots and keys until it ends, and is counted."""
        self._left += 1

        def ended() -> None:
            self._left -= 1
            for one in held:
                one.release() if isinstance(one, Limiter) else self._keys.release(one)
            if self._idle is not None:
                self._look_idle()

        context._left.when_done(ended)

    async def _intended(self, plan: Plan, call: ToolCall, context: ToolContext[Any]) -> None:
        record = {
            "tool_name": plan.name,
            "tool_call_id": call.id,
            "input": jsonable(dict(call.arguments)),
            "session": context.session,
            "principal": context.principal,
            "parent": call.parent,
        }
        assert self._journal is not None
        await self._journal.intent(record)

    async def _recorded(self, result: ToolResult) -> None:
        assert self._journal is not None
        try:
            await self._journal.result(result.record())
        except Exception:
            log.exception("the journal did not take the result of %s", result.tool_name)

    # -- handler and shape ----------------------------------------------------------------------------------------------

    async def _handled_unchanged(self, plan: Plan, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        """The end of the chain of `inside`: what was judged is what runs."""
        judged = context.call
        if call is not judged and (judged is None or call != judged):
            raise DefinitionError("a middleware inside gave `next` another call; arguments change only in `around`")
        if context._values is None:
            # A second attempt: the first may have changed its own objects.
            set_values(context, plan.parameters.values(str(call.raw)))
        return await self._handled(plan, call, context)

    async def _handled(self, plan: Plan, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        values = context._values
        set_values(context, None)
        task = current_task()
        cancels = task.cancelling() if task is not None else 0
        set_executed(context, None)
        try:
            if not plan.is_async:
                value = await execution.in_thread(plan, values, context)
            elif plan.direct is not None:
                value = await plan.direct(**values)
            else:
                value = await plan.call(values, context)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except PoolExhausted as exhausted:
            set_executed(context, False)
            return self._result(plan, context, "limited", f"{plan.name} cannot be started: {exhausted}. {_NOTHING_RUN}")
        except BaseException as error:
            if task is not None and task.cancelling() > cancels:
                if not isinstance(error, asyncio.CancelledError):
                    set_cut(context, error)
                raise asyncio.CancelledError from None
            set_executed(context, True)
            return self._raised(plan, context, error)
        set_executed(context, True)
        return self._shaped(plan, context, value)

    def _shaped(self, plan: Plan, context: ToolContext[Any], value: Any) -> ToolResult:
        """The value becomes a result; the output schema is checked."""
        if type(value) is not plan.output.exact:
            if isinstance(value, ToolResult):
                return value.replace(call=context._sent, tool_name=plan.name, executed=True)
            if not plan.output.free:
                try:
                    plan.output.check(value)
                except OutputMismatch as mismatch:
                    error = f"{plan.name} was run, but what it returned does not fit its output schema: {mismatch}"
                    return self._result(plan, context, "failed", cut(error, 500), output=value)
        return ToolResult(value, call=context._sent, tool_name=plan.name)

    def _result(
        self,
        plan: Plan,
        context: ToolContext[Any],
        status: Status,
        error: str,
        *,
        output: Any = None,
        exception: BaseException | None = None,
    ) -> ToolResult:
        return ToolResult(
            output,
            error,
            call=context._sent,
            tool_name=plan.name,
            status=status,
            executed=context._executed,
            exception=exception,
        )

    def _raised(self, plan: Plan, context: ToolContext[Any], error: BaseException) -> ToolResult:
        """What a handler raised, for the model: its text where it is meant or known to be harmless, else its type."""
        log.warning("tool %r raised", plan.name, exc_info=error)
        text = approving.safe_text(error, plan.expose)
        after = " It had been started, so its effect may have happened." if plan.changes else ""
        return self._result(plan, context, "failed", f"{plan.name} failed: {text}{after}", exception=error)

    # -- what a bound context asks ---------------------------------------------------------------------------------------

    def progress(self, context: ToolContext[Any], done: float, total: float | None, message: str) -> None:
        """Emit a `tool:progress` of a call that still runs, on the loop's own thread."""
        loop = self._loop
        if not context._observers or context._ended or loop is None:
            return
        what = {"done": done, "total": total, "message": clean(str(message))[:500]}

        def tell() -> None:
            if not context._ended and context.call is not None:
                self._emit(context._observers, "tool:progress", context.call, what)

        try:
            here = asyncio.get_running_loop() is loop
        except RuntimeError:
            here = False
        if here:
            tell()
        else:
            loop.call_soon_threadsafe(tell)

    def run_nested(
        self, context: ToolContext[Any], name: str, arguments: Mapping[str, Any] | str | None
    ) -> Coroutine[Any, Any, ToolResult]:
        """Run another call as a child of the one that `context` belongs to."""
        parent = None if context._ended else context
        call = ToolCall("", name, arguments, parent=context.call.id if context.call else None)
        return self._started(call, context, parent=parent)

    def remaining(self, deadline: float) -> float:
        """Seconds from now until `deadline`, which is in the loop's time."""
        loop = self._loop
        return max(0.0, deadline - loop.time()) if loop is not None else 0.0

    # -- batches, questions, and programs without a loop -----------------------------------------------------------------

    async def run_all(self, calls: Iterable[ToolCall], context: ToolContext[Any] | None = None) -> list[ToolResult]:
        """One result for every call, in call order, always.

        Calls that may run in parallel do; the others are barriers, which `resources` narrow to calls that share a key.
        """
        return await self.batch(calls, context)

    def batch(
        self,
        calls: Iterable[ToolCall],
        context: ToolContext[Any] | None = None,
        *,
        observers: Iterable[Observer] = (),
    ) -> Batch:
        """The same as a handle: awaitable, `.cancel()`, and `.results`, complete at any time.

        Args:
            observers: See the events of these calls only.
        """
        return Batch(self, list(calls), context or NO_CONTEXT, _callables("observers", observers, ""))

    async def decide(self, call: ToolCall, context: ToolContext[Any] | None = None) -> Decision:
        """What the guards would say, without running anything; a call that is unknown or invalid is a deny."""
        plan = self._plans.get(call.name)
        if plan is None:
            return Decision("deny", self._unknown(call.name))
        if call.problem is not None:
            return Decision("deny", call.problem)
        arrived = call if call.name == plan.name else call.replace(name=plan.name)
        bound_context = bind_context(context or NO_CONTEXT, plan, call, arrived, CURRENT.get(), None, ())
        try:
            values, text = self._decoded(plan, arrived, bound_context)
        except Halt as halt:
            return Decision("deny", halt.error)
        judged = judged_call(arrived, plan.name, text, plan.parameters.arguments(text, values))
        set_call(bound_context, judged)
        verdict = await approving.judged(plan, judged, values, bound_context)
        set_ended(bound_context, True)
        return approving.with_changes(verdict, judged)

    def resume(
        self, record: Mapping[str, Any], answer: Decision | bool, context: ToolContext[Any] | None = None
    ) -> Coroutine[Any, Any, ToolResult]:
        """Take a suspended call up again with a person's answer: await its result.

        Args:
            record: The suspended result's `.record()`, perhaps from another process.
            answer: `allow(…)` or `True` runs it, `ask(…)` suspends it again, everything else denies.
            context: For `deps` and `secrets`, which no record holds; session, principal, working directory and
                metadata come from the record.

        Raises:
            DefinitionError: for a record of no suspended call.
        """
        memory = approving.recalled(record)
        given = approving.recalled_context(memory, context or NO_CONTEXT)
        call = ToolCall(memory.id, memory.name, memory.arguments, data=memory.data, parent=memory.parent)
        if memory.key in self._resumed:
            return self._answered(call, "invalid", f"This call was resumed already. {_NOTHING_RUN}", None)
        self._resumed[memory.key] = None
        if len(self._resumed) > 10_000:
            del self._resumed[next(iter(self._resumed))]
        return self._started(call, given, resumed=approving.Resumed(memory.arguments, memory.decision, answer))

    @overload
    def run_sync(
        self, call: ToolCall, context: ToolContext[Any] | None = None, /, *, timeout: float | None = None
    ) -> ToolResult: ...
    @overload
    def run_sync(
        self,
        call: str,
        arguments: Mapping[str, Any] | str | None = None,
        context: ToolContext[Any] | None = None,
        /,
        *,
        timeout: float | None = None,
    ) -> ToolResult: ...
    def run_sync(self, call: Any, *rest: Any, **options: Any) -> ToolResult:
        """`run` for programs without a loop: the runner has a loop in a thread of its own.

        Raises:
            RuntimeError: where the runner is busy on another loop, or this is that very loop.
        """
        if self._own_loop is None:
            self._own_loop = sync.OwnLoop(self)
        nested = CURRENT.get()
        loop = self._loop if nested is not None and not nested._ended and self._running else None
        return sync.wait(self._own_loop.get() if loop is None else loop, lambda: self.run(call, *rest, **options))

    def as_tools(self) -> list[Tool]:
        """Its tools, to be mounted in another runner: they carry this runner's guards, middleware and limits with them.

        There is one path and one event for each call, and the outer runner's approver.
        """
        return [one._with(_mounted=(self._settings, *(one._mounted or ()))) for one in self._tools]

    # -- one loop at a time, and the end -------------------------------------------------------------------------------

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and self._running and not self._loop.is_closed():
            raise RuntimeError(
                "this runner is busy on another event loop; await it there, or give this loop a runner of its own"
            )
        if self._loop is not None and self._loop.is_closed():
            self._running = 0
            self._keys = KeyLocks()
        self._loop = loop

    def _look_idle(self) -> None:
        if self._idle is not None and not self._idle.done() and not self._running and not self._left:
            self._idle.set_result(None)

    async def __aenter__(self) -> Runner:
        self._closing = False
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Takes no new calls, and waits for those that run; children of running calls still run."""
        self._closing = True
        loop = get_running_loop()
        if self._running and self._loop is loop:
            self._idle = loop.create_future()
            try:
                await self._idle
            finally:
                self._idle = None


def _denied(reason: str) -> str:
    return f"Denied: {cut(clean(reason), 500).rstrip('.')}. {_NOTHING_RUN}"


def _busy(plan: Plan, why: str) -> Halt:
    return Halt("limited", f"{plan.name} could not be started in time: {why}. {_NOTHING_RUN} Try again later.")


def _left_until(until: float | None, loop: asyncio.AbstractEventLoop) -> float | None:
    return None if until is None else max(0.0, until - loop.time())


def _ancestors(context: ToolContext[Any]) -> Iterable[ToolContext[Any]]:
    parent = context._parent
    while parent is not None:
        yield parent
        parent = parent._parent


def _limiters_of(context: ToolContext[Any]) -> tuple[Limiter, ...]:
    kernel = context._kernel
    return kernel.limiters if isinstance(kernel, Plan) else ()


_ERRORS: dict[str, type[ToolError]] = {
    "invalid": ValidationError,
    "denied": GuardError,
    "suspended": GuardError,
    "timeout": ToolTimeoutError,
    "failed": HandlerError,
}


async def _call_directly(tool: Tool, arguments: dict[str, Any]) -> Any:
    """`await some_tool(**arguments)`: the same path, with the tool's own guards and limits and nobody to ask."""
    runner: Runner | None = tool._alone
    if runner is None or (runner._running and runner._loop is not get_running_loop()):
        runner = Runner([tool], concurrency=None, queue_timeout=None, expose=(Exception,))
        object.__setattr__(tool, "_alone", runner)
    result = await runner.run(ToolCall("", tool.name, arguments))
    if result.success:
        return result.output
    error = _ERRORS.get(result.status, ToolError)(result.error or "", result=result)
    raise error from result.exception


_direct.append(_call_directly)
