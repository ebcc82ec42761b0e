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
import os
import weakref
from asyncio import current_task, get_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from time import perf_counter
from typing import Any, overload

from ferrule import approving, execution, sync
from ferrule.batch import Batch
from ferrule.core.arguments import Arguments
from ferrule.core.content import bound, clean, cut, jsonable, size
from ferrule.core.context import CURRENT, NO_CONTEXT, CallState, ToolContext, new_state, running
from ferrule.core.errors import DefinitionError, GuardError, HandlerError, ToolError, ToolTimeoutError, ValidationError
from ferrule.core.jsontext import dumps
from ferrule.core.keys import Hold, KeyLocks
from ferrule.core.limiter import Limiter
from ferrule.core.mistakes import nearest
from ferrule.core.output import OutputMismatch
from ferrule.core.parameters import Invalid
from ferrule.core.plan import Plan, Settings
from ferrule.core.tool import Tool, _callables, _count, _direct, _kinds, _seconds
from ferrule.core.toolset import Toolset
from ferrule.core.types import Approver, Guard, Journal, Middleware, Observer
from ferrule.core.values import (
    ALLOW,
    Decision,
    EventKind,
    Status,
    ToolCall,
    ToolResult,
    happened,
    judged_call,
    keep_seal,
    success,
)
from ferrule.pool import PoolExhausted, Raised

log = logging.getLogger("ferrule")
EXPOSED: tuple[type[BaseException], ...] = (ValueError, LookupError, OSError)
_NOTHING_RUN = "Nothing was run."
_MISSING = "a value that only the program or a person can supply is missing"
_ids = itertools.count(1)
_PREFIX = os.urandom(4).hex()  # no id of a model's or another process's is met


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
        self._generation = 0
        self._writing: set[asyncio.Task[None]] = set()
        self._closing = False
        self._idle: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own_loop: sync.OwnLoop | None = None
        self._resumed: dict[str, None] = {}

    def _compiled(self, tool: Tool) -> Plan:
        plan = Plan(tool, self, self._settings)
        if self._journal is not None and plan.changes:
            plan.judged = True

        async def enter(call: ToolCall, context: ToolContext[Any]) -> ToolResult:
            state = _state_of(plan, context)
            if state.entered:
                raise DefinitionError("a middleware called `next` while its other `next` was under way; one at a time")
            state.entered = True
            try:
                return await self._entered(plan, call, state)
            finally:
                state.entered = False

        def handle(call: ToolCall, context: ToolContext[Any]) -> Awaitable[ToolResult]:
            return self._handled_unchanged(plan, call, context)

        plan.chain(self._settings, enter, handle)
        told = bool(self._observers) or (self._journal is not None and plan.changes)
        plan.straight = plan.may_go_straight() and not told and not execution.OWN_TASK
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
        self, call: ToolCall, /, *, context: ToolContext[Any] | None = None, timeout: float | None = None
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
        /,
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
    ) -> Coroutine[Any, Any, ToolResult]:
        """Run one call: `run(call, context)` or `run("name", {...}, context)`; await the result.

        It never raises for anything that a model or a tool caused. A cancellation from outside cancels.

        Raises:
            DefinitionError: for a wrong time-out.
            RuntimeError: where the runner is busy on another loop.
        """
        if timeout is not None:
            _seconds("timeout", timeout, "")
        if isinstance(call, str):
            return self._started(ToolCall("", call, second), third or context or NO_CONTEXT, timeout)
        plan = self._plans.get(call.name)
        if plan is None or call.problem is not None or not call.id:
            return self._started(call, second or context or NO_CONTEXT, timeout)
        if plan.straight and timeout is None:
            return self._straight(plan, call, second or context or NO_CONTEXT)
        return self._performed(plan, call, second or context or NO_CONTEXT, timeout)

    def _started(
        self,
        call: ToolCall,
        given: ToolContext[Any],
        timeout: float | None = None,
        parent: CallState | None = None,
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
            said = cut(clean(call.problem), 500)
            return self._answered(
                call, "invalid", said if _NOTHING_RUN in said else f"{said} {_NOTHING_RUN}", observers
            )
        if plan.straight and timeout is None and parent is None and observers is None and resumed is None:
            return self._straight(plan, call, given, sink)
        return self._performed(plan, call, given, timeout, parent, observers, sink, resumed)

    def _unknown(self, name: str) -> str:
        near = nearest(name, self._tools._by_name)
        names = near or list(self._tools._by_name)[:12]
        known = (
            f"{'Did you mean' if near else 'There are'} {', '.join(map(repr, names))}" if names else "There are none"
        )
        return f"There is no tool {cut(clean(name), 80)!r}. {known}{'?' if near else '.'} {_NOTHING_RUN}"

    @staticmethod
    def _new_id() -> str:
        return f"call_{_PREFIX}_{next(_ids)}"

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
        result = ToolResult(None, error, call=call, tool_name=arrived.name, status=status, executed=False)
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
        parent: CallState | None = None,
        extra: tuple[Observer, ...] | None = None,
        sink: Callable[[ToolResult], None] | None = None,
        resumed: Any = None,
    ) -> ToolResult:
        started = perf_counter()
        loop = get_running_loop()
        if loop is not self._loop:
            self._move(loop)
        if parent is None:
            parent = CURRENT.get()
        while parent is not None and parent.ended:
            parent = parent.parent
        arrived = call
        if parent is not None or self._closing or call.name != plan.name:
            if self._closing and parent is None:
                return await self._answered(call, "cancelled", f"The runner is closing. {_NOTHING_RUN}", extra)
            lineage = call.parent or (parent.call.id if parent is not None else None)
            arrived = call.replace(name=plan.name, parent=lineage)
        if arrived.raw.__class__ is not str:
            arrived = _snapshot(arrived)
        observers = self._observers if extra is None else (*self._observers, *extra)
        task: Any = current_task()
        cancels = task.cancelling()
        state = new_state(given._given, plan, call, arrived, parent, started)
        state.timeout, state.observers, state.cancels, state.resumed = timeout, observers, cancels, resumed
        self._running += 1
        generation = self._generation
        try:
            if observers and resumed is None:
                self._emit(observers, "tool:pre", arrived)
            try:
                if plan.around is None:
                    result = await self._entered(plan, arrived, state)
                else:
                    result = await plan.around(arrived, state.context)
            except Exception as error:
                result = self._broke(state, error)
            except asyncio.CancelledError as error:
                if task.cancelling() > cancels:
                    self._cut_off(state, arrived, sink, error)
                    raise (state.cut or error) from None
                result = self._broke(state, error)
            except (KeyboardInterrupt, GeneratorExit) as error:
                self._cut_off(state, arrived, sink, error)
                raise
            except BaseException as error:
                result = self._broke(state, error)
            if (
                plan.seals
                or result.error is not None
                or result._content is not None
                or not _short(result.output, plan.max_output)
            ):
                result = self._sealed(state, result)
            if task.cancelling() > cancels:
                # A handler swallowed a cancellation from outside: the caller's wish counts.
                self._cut_off(state, arrived, sink, result)
                raise asyncio.CancelledError
        finally:
            if generation == self._generation:  # not of a loop that was closed over it
                self._running -= 1
            state.ended = True
            state._context = None  # no cycle is left for the collector
            if self._idle is not None:
                self._look_idle()
        if observers:
            kind: EventKind = "tool:post" if result.status == "ok" else "tool:error"
            self._emit(observers, "tool:suspended" if result.status == "suspended" else kind, arrived, result)
        if self._journal is not None and plan.changes:
            try:
                await self._recorded(result)
            except asyncio.CancelledError:
                if sink is not None:
                    sink(result)
                raise
        return result

    async def _straight(
        self,
        plan: Plan,
        call: ToolCall,
        given: ToolContext[Any],
        sink: Callable[[ToolResult], None] | None = None,
    ) -> ToolResult:
        """The way of a call that nobody judges, watches or goes round, and that has to wait for nothing.

        It is `_performed` and `_entered` in one coroutine, without what they would skip, which is a third of the cost.
        At the first thing that is not so it leaves the call to them; by then nothing has happened.
        """
        started = perf_counter()
        current = CURRENT.get()
        try:
            values = plan.quick(call.raw)  # type: ignore[misc,arg-type]
        except Exception:
            return await self._performed(plan, call, given, None, None, None, sink)
        limiter = plan.limiters[0]
        nested = current is not None and (not current.ended or current.parent is not None)
        if nested or self._closing or get_running_loop() is not self._loop or not limiter.try_acquire():
            return await self._performed(plan, call, given, None, None, None, sink)
        state = new_state(given._given, plan, call, call, None, started)
        task: Any = current_task()
        state.cancels = cancels = task.cancelling()
        state.executed = None
        self._running += 1
        generation = self._generation
        CURRENT.set(state)
        try:
            try:
                value = await plan.direct(**values)  # type: ignore[misc]
            except BaseException as error:
                result = self._raised(plan, state, error)
            else:
                result = self._shaped(plan, state, value)
            if result.error is not None or result._content is not None or not _short(result.output, plan.max_output):
                result = self._sealed(state, result)
        except BaseException as error:
            self._cut_off(state, call, sink, error)
            raise (state.cut or error) from None
        finally:
            limiter.release()
            if generation == self._generation:  # not of a loop that was closed over it
                self._running -= 1
            state.ended = True
            if self._idle is not None:
                self._look_idle()
        if task.cancelling() > cancels:
            self._cut_off(state, call, sink, result)
            raise asyncio.CancelledError
        return result

    def _cut_off(
        self,
        state: CallState,
        arrived: ToolCall,
        sink: Callable[[ToolResult], None] | None,
        cause: BaseException | ToolResult,
    ) -> None:
        """A cancellation from outside: the result that the batch keeps, and the terminal event."""
        executed = cause.executed if isinstance(cause, ToolResult) else state.executed
        ran = _NOTHING_RUN if executed is False else "It had been started, so its effect may have happened."
        result = self._result(
            state,
            "cancelled",
            f"The call was cancelled. {ran}",
            exception=cause if isinstance(cause, BaseException) else None,
        ).replace(executed=executed)
        keep_seal(result, _milliseconds(state), state.repairs)
        state.ended = True
        self._emit(state.observers, "tool:error", arrived, result)
        if sink is not None:
            sink(result)
        if self._journal is not None and state.plan.changes and not isinstance(cause, GeneratorExit):
            # Awaited here, it would be cut off like the call itself.
            writing = get_running_loop().create_task(self._recorded(result))
            self._writing.add(writing)
            writing.add_done_callback(self._writing.discard)

    def _sealed(self, state: CallState, result: Any) -> ToolResult:
        """The result bound to its call, bounded, cleaned and measured."""
        if isinstance(result, ToolResult):
            sealed = result
        else:
            wrong = TypeError(f"a middleware of {state.plan.name!r} returned {result!r}, which is no ToolResult")
            sealed = self._broke(state, wrong)
        if sealed is not state.made:
            # It comes from elsewhere, perhaps a cache that will give it again: it is copied, not filled in.
            sealed = sealed.replace(call=state.sent, tool_name=state.plan.name, repairs=())
        if sealed.error is not None or sealed._content is not None or not _short(sealed.output, state.plan.max_output):
            sealed = self._bounded(sealed, state.plan.max_output)
        keep_seal(sealed, _milliseconds(state), state.repairs)
        return sealed

    def _bounded(self, result: ToolResult, limit: int) -> ToolResult:
        if result.error is not None and (len(result.error) > limit or not result.error.isascii()):
            result = result.replace(error=cut(clean(result.error), limit))
        if size(result.content) > limit:
            result = result.replace(content=bound(result.content, limit))
        return result

    def _broke(self, state: CallState, error: BaseException) -> ToolResult:
        """A middleware that raised: a fault of the program, told to the model without its inside."""
        log.error("a middleware of tool %r raised", state.plan.name, exc_info=error)
        ran = _NOTHING_RUN if state.executed is False else "The tool had been started."
        text = str(error) if isinstance(error, ToolError) else f"{type(error).__name__} outside the tool itself"
        said = f"{state.plan.name} could not be run: {cut(clean(text), 500)}. {ran}"
        return self._result(state, "failed", said, exception=error)

    def _emit(self, observers: tuple[Observer, ...], kind: EventKind, call: ToolCall, what: Any = None) -> None:
        event = happened(kind, call, what)
        for observer in observers:
            try:
                observer(event)
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException:
                log.exception("an observer broke on %s of %s", kind, call.name)

    # -- decode, validate, guards, approve, slot ----------------------------------------------------------------------

    async def _entered(self, plan: Plan, call: ToolCall, state: CallState) -> ToolResult:
        try:
            if call is not state.call and (call.id, call.name) != (state.call.id, plan.name):
                raise DefinitionError("a middleware gave `next` a call with another id or name")
            if state.resumed is not None:
                values = await self._taken_up(plan, state)
            else:
                text: Any = call.raw
                try:
                    if text.__class__ is not str:
                        text = dumps(text)
                    values = plan.quick(text)  # type: ignore[misc]
                except Exception:  # the ladder says what is wrong, or mends it
                    values, text = self._decoded(plan, call, state)
            if plan.judged and state.resumed is None:
                state.call = call = judged_call(state.call, text, plan.parameters.arguments(text, values))
                first = approving.first_word(plan, call, state.context) if plan.judges else None
                if first is not None or plan.hidden:
                    values = await self._judged(plan, call, values, state, first)
                elif plan.judges and state.observers:
                    self._emit(state.observers, "tool:decided", call, ALLOW)
            held: Any = plan.limiters
            if plan.locks or state.parent is not None:
                held = await self._slot(plan, state, 0)
            else:
                for taken, limiter in enumerate(plan.limiters):
                    if not limiter.try_acquire():
                        held = await self._slot(plan, state, taken)
                        break
        except Halt as halt:
            return self._result(state, halt.status, halt.error, metadata=halt.metadata)
        try:
            if self._journal is not None and plan.changes:
                await self._intended(state)
            seconds = state.timeout or plan.timeout
            if seconds is not None or (execution.OWN_TASK and plan.is_async):
                state.values = values
                loop = get_running_loop()
                if seconds is not None:
                    state.deadline = loop.time() + seconds
                task = execution.start(execution.contained(self, plan, state), loop)
                if task.done():
                    outcome = task.result()
                    if seconds is not None and loop.time() > (state.deadline or 0.0):  # it blocked the loop meanwhile
                        return execution.timed_out(self, plan, state, seconds)
                else:
                    outcome = await execution.within(task, self, plan, state, seconds, self._grace)
                if outcome.__class__ is Raised:
                    raise outcome.error
                return outcome  # type: ignore[no-any-return]
            CURRENT.set(state)
            if plan.plain and plan.inside is None:
                # The commonest case without one more coroutine: a tenth of the whole path.
                state.executed = None
                try:
                    value = await plan.direct(**values)  # type: ignore[misc]
                except BaseException as error:
                    return self._raised(plan, state, error)
                return self._shaped(plan, state, value)
            state.values = values
            if plan.inside is not None:
                return await plan.inside(state.call, state.context)
            return await self._handled(plan, state)
        finally:
            if state.left is not None:
                self._release_later(state, held)
            else:
                for one in held:
                    one.release()

    def _decoded(self, plan: Plan, call: ToolCall, state: CallState) -> tuple[Any, str]:
        try:
            values, text, state.repairs = plan.parameters.decode(plan.name, call.raw)
        except Invalid as invalid:
            raise Halt("invalid", str(invalid)) from None
        return values, text

    async def _taken_up(self, plan: Plan, state: CallState) -> Any:
        """Take up a suspended call: the answer is about what was recorded, whatever `around` makes of it now."""
        key = state.resumed.key
        if key in self._resumed:
            raise Halt("invalid", f"This call was resumed already. {_NOTHING_RUN}")
        self._resumed[key] = None
        if len(self._resumed) > 10_000:
            del self._resumed[next(iter(self._resumed))]
        try:
            values, text, state.repairs = plan.parameters.judge(plan.name, state.resumed.arguments)
        except Invalid as invalid:
            raise Halt("invalid", str(invalid)) from None
        state.call = judged_call(state.call, text, plan.parameters.arguments(text, values))
        verdict = approving.Verdict(state.resumed.decision, state.call, values)
        return await self._decided(plan, verdict, state, state.resumed.approve)

    async def _judged(
        self, plan: Plan, call: ToolCall, values: Any, state: CallState, first: tuple[int, Any] | None
    ) -> Any:
        """Ask the guards, and whoever is to be asked: the values that are to run; `state.call` is the call."""
        verdict = await approving.judged(plan, call, values, state, first)
        if plan.judges and state.observers:
            self._emit(state.observers, "tool:decided", verdict.call, verdict.decision)
        return await self._decided(plan, verdict, state, self._approve)

    async def _decided(self, plan: Plan, verdict: approving.Verdict, state: CallState, approve: Approver | None) -> Any:
        if verdict.decision.kind == "ask":
            asked = verdict.decision
            verdict = await approving.answered(plan, verdict, state, approve)
            if state.observers:
                self._emit(state.observers, "tool:decided", verdict.call, verdict.decision)
            if verdict.decision.kind == "ask":
                raise Halt(
                    "suspended",
                    f"{plan.name} waits for a decision: {cut(clean(asked.reason), 500)}. {_NOTHING_RUN}",
                    metadata={"resume": approving.remembered(verdict.call, state, verdict.decision)},
                )
        if verdict.decision.kind == "deny":
            raise Halt("denied", _denied(verdict.decision.reason))
        missing = plan.parameters.missing(verdict.call.arguments) if plan.hidden else []
        if missing:
            raise Halt("denied", _denied(_MISSING))
        state.call = verdict.call
        return verdict.values

    async def _slot(self, plan: Plan, state: CallState, taken: int) -> list[Limiter | Hold]:
        """Wait for keys and slots, without those that an ancestor holds; the first `taken` are there already."""
        loop = get_running_loop()
        until = None if self._queue_timeout is None else loop.time() + self._queue_timeout
        family = list(_ancestors(state))
        held: list[Limiter | Hold] = list(plan.limiters[:taken])
        try:
            if plan.locks:
                shared = plan.tool.trait("parallel", state.call.arguments)
                keys = self._resources(plan, state)
                hold = await self._keys.acquire(keys, state, family, shared=shared, timeout=_left_until(until, loop))
                if hold is None:
                    raise _busy(plan, "what it works on is in use")
                held.append(hold)
            theirs = {limiter for one in family for limiter in one.plan.limiters}
            wanted = [limiter for limiter in plan.limiters if limiter not in theirs]
            for early in plan.limiters[:taken]:
                early.release()
                held.remove(early)
            while (busy := _first_busy(wanted, held)) is not None:
                if not await busy.acquire(_left_until(until, loop)):
                    raise _busy(plan, f"{busy.limit} calls run already, the most that may run at once")
                held.append(busy)
        except BaseException:
            for one in held:
                one.release()
            raise
        return held

    @staticmethod
    def _resource_keys(state: CallState, arguments: Mapping[str, Any]) -> list[str]:
        token = CURRENT.set(state)  # for keys that depend on the call's working directory or principal
        try:
            keys = state.plan.tool.resources(arguments)
            return [keys] if isinstance(keys, str) else [str(key) for key in keys]
        finally:
            CURRENT.reset(token)

    def _resources(self, plan: Plan, state: CallState) -> list[str]:
        try:
            return self._resource_keys(state, state.call.arguments)
        except Exception as error:
            log.error("resources of tool %r raised", plan.name, exc_info=error)
            raise Halt("failed", f"{plan.name} could not be run: its resources are not known. {_NOTHING_RUN}") from None

    def _release_later(self, state: CallState, held: Iterable[Limiter | Hold]) -> None:
        """What outlived its deadline keeps its slots and keys until it ends, and is counted."""
        self._left += 1

        def ended() -> None:
            self._left -= 1
            for one in held:
                one.release()

        state.left.when_done(ended)

    async def _intended(self, state: CallState) -> None:
        call = state.call
        record = {
            "tool_name": state.plan.name,
            "tool_call_id": call.id,
            "input": jsonable(dict(call.arguments)),
            "session": state.given[0],
            "principal": state.given[1],
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

    # -- handler and shape --------------------------------------------------------------------------------------------

    def _handled_unchanged(
        self, plan: Plan, call: ToolCall, context: ToolContext[Any]
    ) -> Coroutine[Any, Any, ToolResult]:
        """The end of the chain of `inside`: what was judged is what runs."""
        state = _state_of(plan, context)
        if call is not state.call and call != state.call:
            raise DefinitionError("a middleware inside gave `next` another call; arguments change only in `around`")
        if state.values is None:
            # A second attempt: the first may have changed its own objects.
            state.values = plan.parameters.values(str(state.call.raw))
        return self._handled(plan, state)

    async def _handled(self, plan: Plan, state: CallState) -> ToolResult:
        values = state.values
        state.values = state.executed = None
        try:
            if not plan.is_async:
                value = await execution.in_thread(plan, values, state)
            elif plan.direct is not None:
                value = await plan.direct(**values)
            else:
                value = await plan.call(values, state.context)
        except PoolExhausted as exhausted:
            state.executed = False
            return self._result(state, "limited", f"{plan.name} cannot be started: {exhausted}. {_NOTHING_RUN}")
        except BaseException as error:
            return self._raised(plan, state, error)
        return self._shaped(plan, state, value)

    def _raised(self, plan: Plan, state: CallState, error: BaseException) -> ToolResult:
        """What a handler raised, for the model: its text where it is meant or known to be harmless, else its type.

        Raises:
            CancelledError: where the task was cancelled from outside; then it is no failure of the handler.
        """
        if isinstance(error, KeyboardInterrupt | GeneratorExit):
            raise error
        task = current_task()
        if task is not None and task.cancelling() > state.cancels:
            if not isinstance(error, asyncio.CancelledError):
                state.cut = error
            raise asyncio.CancelledError from None
        state.executed = True
        log.warning("tool %r raised", plan.name, exc_info=error)
        text = approving.safe_text(error, plan.expose)
        after = " It had been started, so its effect may have happened." if plan.changes else ""
        return self._result(state, "failed", f"{plan.name} failed: {text}.{after}", exception=error)

    def _shaped(self, plan: Plan, state: CallState, value: Any) -> ToolResult:
        """The value becomes a result; the output schema is checked."""
        state.executed = True
        output = plan.output
        if type(value) is not output.exact:
            if isinstance(value, ToolResult):
                status: Status = "ok" if value.error is None else "failed"
                return value.replace(
                    call=state.sent,
                    tool_name=plan.name,
                    status=status,
                    executed=True,
                    repairs=state.repairs,
                    duration_ms=_milliseconds(state),
                )
            if hasattr(type(value), "__next__"):
                said = f"{plan.name} was run, but it returned an iterator, which could be read only once, and no list"
                return self._result(state, "failed", said)
            if not output.free:
                try:
                    output.check(value)
                except OutputMismatch as mismatch:
                    said = f"{plan.name} was run, but what it returned does not fit its output schema: {mismatch}"
                    return self._result(state, "failed", cut(clean(said), 500), output=value)
        state.made = success(value, state.sent, plan.name, state.repairs, (perf_counter() - state.started) * 1000)
        return state.made

    def _result(
        self,
        state: CallState,
        status: Status,
        error: str,
        *,
        output: Any = None,
        metadata: Mapping[str, Any] | None = None,
        exception: BaseException | None = None,
    ) -> ToolResult:
        state.made = ToolResult(
            output,
            error,
            metadata,
            call=state.sent,
            tool_name=state.plan.name,
            status=status,
            executed=state.executed,
            exception=exception,
        )
        return state.made

    # -- what a bound context asks ------------------------------------------------------------------------------------

    def progress(self, state: CallState, done: float, total: float | None, message: str) -> None:
        """Emit a `tool:progress` of a call that still runs, on the loop's own thread."""
        loop = self._loop
        if not state.observers or state.ended or loop is None:
            return
        what = {"done": done, "total": total, "message": clean(str(message))[:500]}

        def tell() -> None:
            if not state.ended:
                self._emit(state.observers, "tool:progress", state.call, what)

        try:
            here = asyncio.get_running_loop() is loop
        except RuntimeError:
            here = False
        if here:
            tell()
        else:
            loop.call_soon_threadsafe(tell)

    def run_nested(
        self, state: CallState, name: str, arguments: Mapping[str, Any] | str | None
    ) -> Coroutine[Any, Any, ToolResult]:
        """Run another call as a child of the one that `state` belongs to."""
        return self._started(ToolCall("", name, arguments, parent=state.call.id), state.context, None, state)

    def remaining(self, deadline: float) -> float:
        """Seconds from now until `deadline`, which is in the loop's time."""
        loop = self._loop
        return max(0.0, deadline - loop.time()) if loop is not None else 0.0

    # -- batches, questions, and programs without a loop --------------------------------------------------------------

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
        state = new_state((context or NO_CONTEXT)._given, plan, call, arrived, running(), perf_counter())
        try:
            values, text = self._decoded(plan, arrived, state)
        except Halt as halt:
            return Decision("deny", halt.error)
        state.call = judged = judged_call(arrived, text, plan.parameters.arguments(text, values))
        verdict = await approving.judged(plan, judged, values, state)
        state.ended = True
        if verdict.decision.kind == "allow" and plan.hidden and plan.parameters.missing(verdict.call.arguments):
            return Decision("deny", _MISSING)
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
        resumed = approving.Resumed(memory.key, memory.arguments, memory.decision, answer)
        return self._started(call, given, resumed=resumed)

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
        loop = self._loop if running() is not None and self._running else None
        found: ToolResult = sync.wait(
            self._own_loop.get() if loop is None else loop, lambda: self.run(call, *rest, **options)
        )
        return found

    def as_tools(self) -> list[Tool]:
        """Its tools, to be mounted in another runner: they carry this runner's guards, middleware and limits with them.

        There is one path and one event for each call, and the outer runner's approver.
        """
        return [one._with(_mounted=(self._settings, *(one._mounted or ()))) for one in self._tools]

    # -- one loop at a time, and the end ------------------------------------------------------------------------------

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and self._running and not self._loop.is_closed():
            raise RuntimeError(
                "this runner is busy on another event loop; await it there, or give this loop a runner of its own"
            )
        if self._loop is not None and self._loop.is_closed():
            self._running = 0
            self._generation += 1
            self._keys = KeyLocks()
        self._loop = loop

    def _look_idle(self) -> None:
        if self._idle is not None and not self._idle.done() and not self._running:
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
        if self._writing:
            await asyncio.wait(set(self._writing))


def _snapshot(call: ToolCall) -> ToolCall:
    """The call with its arguments as text: the sender's own mapping may change, what is judged and told does not."""
    if call.raw is None:
        return call
    try:
        text = dumps(call.raw)
    except ValueError:  # answered at decode
        return call
    return judged_call(call, text, Arguments(text))


def _milliseconds(state: CallState) -> float:
    return (perf_counter() - state.started) * 1000


def _short(output: Any, limit: int) -> bool:
    """Whether an output's content needs no bounding: text within the limit, numbers with few digits."""
    kind = type(output)
    if kind is str:
        return len(output) <= limit
    return (kind is int and -_LARGE < output < _LARGE) or output is None or kind is bool or kind is float


_LARGE = 1 << 63


def _denied(reason: str) -> str:
    return f"Denied: {cut(clean(reason), 500).rstrip('.')}. {_NOTHING_RUN}"


def _first_busy(wanted: list[Limiter], held: list[Any]) -> Limiter | None:
    """Take all slots, or give back those that were taken: the first that is not free.

    Who held one slot while it waits for another could be waited for by the one that it waits for.
    """
    for limiter in wanted:
        if limiter in held:
            continue
        if not limiter.try_acquire():
            for one in [one for one in held if one in wanted]:
                one.release()
                held.remove(one)
            return limiter
        held.append(limiter)
    return None


def _busy(plan: Plan, why: str) -> Halt:
    return Halt("limited", f"{plan.name} could not be started in time: {why}. {_NOTHING_RUN} Try again later.")


def _left_until(until: float | None, loop: asyncio.AbstractEventLoop) -> float | None:
    return None if until is None else max(0.0, until - loop.time())


def _ancestors(state: CallState) -> Iterable[CallState]:
    parent = state.parent
    while parent is not None:
        yield parent
        parent = parent.parent


def _state_of(plan: Plan, context: ToolContext[Any]) -> CallState:
    state = context._state
    if state is None or state.plan is not plan:
        raise DefinitionError("a middleware gave `next` a context of its own making; give it the one that it got")
    return state


_ERRORS: dict[str, type[ToolError]] = {
    "invalid": ValidationError,
    "denied": GuardError,
    "suspended": GuardError,
    "timeout": ToolTimeoutError,
    "failed": HandlerError,
}


async def _call_directly(tool: Tool, arguments: dict[str, Any]) -> Any:
    """`await some_tool(**arguments)`: the same path, with the tool's own guards and limits and nobody to ask."""
    if tool._alone is None:
        object.__setattr__(tool, "_alone", weakref.WeakKeyDictionary())
    loop = get_running_loop()
    runner: Runner | None = tool._alone.get(loop)
    if runner is None:
        runner = tool._alone[loop] = Runner([tool], concurrency=None, expose=(Exception,))
    result = await runner.run(ToolCall("", tool.name, arguments))
    if result.success:
        return result.output
    error = _ERRORS.get(result.status, ToolError)(result.error or "", result=result)
    raise error from result.exception


_direct.append(_call_directly)
