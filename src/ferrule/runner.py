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
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any, overload

from ferrule import own_loop as sync
from ferrule.arguments.argument_errors import nearest
from ferrule.arguments.parameters import Invalid
from ferrule.definition.tool import Tool, _callables, _count, _direct, _kinds, _seconds
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError, GuardError, HandlerError, ToolError, ToolTimeoutError, ValidationError
from ferrule.pipeline import acquire as slots
from ferrule.pipeline import authorize as approving
from ferrule.pipeline import invoke as execution
from ferrule.pipeline import results
from ferrule.pipeline.batch import Batch, Seat
from ferrule.pipeline.hooks import settled
from ferrule.pipeline.plan import Mount, Plan, Settings
from ferrule.pipeline.results import NOTHING_RUN, Halt
from ferrule.pipeline.waiting import Waiting, ancestors
from ferrule.scheduling.limiter import Limiter, Shares
from ferrule.scheduling.locks import KeyLocks
from ferrule.scheduling.timer import Timer, wake
from ferrule.types import Approver, Guard, Journal, Middleware, Observer
from ferrule.values.call import ToolCall, judged_call
from ferrule.values.content import clean, cut, jsonable
from ferrule.values.context import CURRENT, NO_CONTEXT, CallState, ToolContext, new_state, running
from ferrule.values.decision import ALLOW, Decision
from ferrule.values.event import EventKind, emit
from ferrule.values.frozen import freeze
from ferrule.values.json_text import dumps
from ferrule.values.result import Status, ToolResult, keep_seal

log = logging.getLogger("ferrule")
EXPOSED: tuple[type[BaseException], ...] = (ValueError, LookupError, OSError)
_MISSING = "a value that only the program or a person can supply is missing"
_ids = itertools.count(1)
_TURN = 0.05  # for a handler that was cancelled to come to its end, where there is no grace
_PREFIX = os.urandom(4).hex()  # no id of a model's or another process's is met


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
        per_principal: How many calls of one principal run at once; `None` for no limit but the others.
        timeout: Seconds that a call may take once it has its slot, where neither call nor tool says so.
        grace: Seconds that a handler has to end after its cancellation.
        queue_timeout: Seconds that a call waits for its slot before it is `limited`; `None` waits for ever.
        drain: Seconds that leaving `async with` waits for the calls that run, before it cancels them; `None` waits for
            ever.
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
        per_principal: int | None = None,
        timeout: float | None = None,
        grace: float = 1.0,
        queue_timeout: float | None = 60.0,
        drain: float | None = 60.0,
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
        share = _count("per_principal", per_principal, "")
        self._grace = 0.0 if grace == 0 else float(_seconds("grace", grace, "") or 0.0)
        self._queue_timeout = _seconds("queue_timeout", queue_timeout, "")
        self._drain = 0.0 if drain == 0 else _seconds("drain", drain, "")
        self._settings = Settings(
            _callables("guards", guards, "", attribute="check"),
            _callables("around", around, ""),
            _callables("inside", inside, ""),
            None if limit is None else Limiter(limit),
            _seconds("timeout", timeout, ""),
            _kinds("expose", expose, "") or (),
            _count("max_output", max_output, "") or 100_000,
            None if share is None else Shares(share),
        )
        self._settings.runners.add(self)
        self._plans: dict[str, Plan] = {}
        recipes = execution.isolated(self._tools)
        for one in self._tools:
            plan = self._compiled(one, recipes.get(one.name))
            for mount in one._mounted or ():
                mount.settings.runners.add(self)
            self._plans[one.name] = self._plans[one.wire_name] = plan
        self._keys = KeyLocks()
        self._live: set[CallState] = set()
        self._waiting = Waiting(self._live)
        self._left: dict[Any, Callable[[], None]] = {}
        self._writing: set[asyncio.Task[None]] = set()
        self._closing = False
        self._idle: list[tuple[asyncio.Future[None], frozenset[CallState]]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own_loop = sync.OwnLoop(self)
        self._resumed: dict[str, None] = {}
        _RUNNERS.add(self)

    def _compiled(self, tool: Tool, recipe: Any) -> Plan:
        plan = Plan(tool, self, self._settings)
        if recipe is not None:
            execution.isolate(plan, recipe)
        plan.execute = execution.way_of(plan)
        plan.judged = plan.judged or self._journals(plan)

        def enter(call: ToolCall, context: ToolContext[Any]) -> Coroutine[Any, Any, ToolResult]:
            return self._entered(plan, call, _state_of(plan, context))

        def handle(call: ToolCall, context: ToolContext[Any]) -> Coroutine[Any, Any, ToolResult]:
            return self._handled_unchanged(plan, call, context)

        plan.chain(self._settings, enter, handle)
        plan.disabled = plan.turned_off()
        plan.straight = plan.disabled is None and self._may_go_straight(plan)
        return plan

    def _journals(self, plan: Plan) -> bool:
        return self._journal is not None and plan.changes

    @property
    def tools(self) -> Toolset:
        """The tools of this runner."""
        return self._tools

    @property
    def left_running(self) -> int:
        """How many handlers outlived their deadline and still run."""
        return len(self._left)

    @property
    def waiting(self) -> int:
        """How many calls wait for a slot or a key."""
        return len(self._waiting)

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
        seat: Seat | None = None,
        resumed: Any = None,
    ) -> Coroutine[Any, Any, ToolResult]:
        """Receive: what is known at once is answered; all else goes its way."""
        if not call.id:
            call = call.replace(id=self._new_id())
        plan = self._plan_of(call.name)
        if plan is None:
            return self._answered(call, "not_found", self._unknown(call.name), seat)
        if call.problem is not None:
            return self._answered(call, "invalid", results.problem(call).error, seat)
        simple = timeout is None and parent is None and resumed is None and not (seat and seat.observers)
        if simple and plan.straight and call.name in self._plans:
            return self._straight(plan, call, given, seat)
        return self._performed(plan, call, given, timeout, parent, seat, resumed)

    def _plan_of(self, name: str) -> Plan | None:
        """The tool of that name, or the one that can only be meant."""
        plan = self._plans.get(name)
        if plan is None and (tool := self._tools.meant(name)) is not None:
            plan = self._plans[tool.name]
        return plan

    def _unknown(self, name: str) -> str:
        near = nearest(name, self._tools._by_name)
        names = near or list(self._tools._by_name)[:12]
        known = (
            f"{'Did you mean' if near else 'There are'} {', '.join(map(repr, names))}" if names else "There are none"
        )
        return f"There is no tool {cut(clean(name), 80)!r}. {known}{'?' if near else '.'} {NOTHING_RUN}"

    @staticmethod
    def _new_id() -> str:
        return f"call_{_PREFIX}_{next(_ids)}"

    async def _answered(
        self, call: ToolCall, status: Status, error: str, seat: Seat | None, resumed: Any = None
    ) -> ToolResult:
        """The answer to a call that goes no further, with its two events; one that was suspended has had the first."""
        plan = self._plan_of(call.name)
        arrived = call if plan is None or call.name == plan.name else call.replace(name=plan.name)
        result = results.unheard(call, arrived.name, status, error)
        everyone = self._observers if seat is None else (*self._observers, *seat.observers)
        if resumed is None:
            emit(everyone, "tool:pre", arrived)
        else:
            self._use(resumed.key)
        emit(everyone, "tool:error", arrived, result)
        return result

    # -- seal ---------------------------------------------------------------------------------------------------------

    async def _performed(
        self,
        plan: Plan,
        call: ToolCall,
        given: ToolContext[Any],
        timeout: float | None = None,
        parent: CallState | None = None,
        seat: Seat | None = None,
        resumed: Any = None,
    ) -> ToolResult:
        """The whole way of one call: what goes round it, and the seal and the terminal event at its end."""
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
                return await self._answered(call, "cancelled", f"The runner is closing. {NOTHING_RUN}", seat, resumed)
            lineage = call.parent or (parent.call.id if parent is not None else None)
            arrived = call.replace(name=plan.name, parent=lineage)
        if arrived.raw.__class__ is not str:
            arrived = _snapshot(arrived)
        observers = self._observers
        task: Any = current_task()
        cancels = task.cancelling()
        state = new_state(given._given, plan, call, arrived, parent, started, task, cancels, observers)
        if call.name != plan.name and call.name != plan.tool.wire_name:
            state.repairs = (f"read the name {cut(clean(call.name), 80)!r} as {plan.name!r}",)
        if seat is not None:
            observers = state.observers = (*observers, *seat.observers)
            state.beside = seat.beside
            seat.state = state
        if timeout is not None:
            state.timeout = timeout
        if resumed is not None:
            state.resumed = resumed
        live = self._live
        live.add(state)
        try:
            if observers and resumed is None:
                emit(observers, "tool:pre", arrived)
            try:
                way = (
                    self._entered(plan, arrived, state) if plan.around is None else plan.around(arrived, state.context)
                )
                result = await (execution.watched(way) if execution.WATCHED else way)
            except BaseException as error:
                result = self._broke(state, arrived, error, seat)
            if state.made is None or result is not state.made or not results.fits(result, plan.max_output):
                result = results.sealed(state, result)
            elif plan.seals:
                keep_seal(result, (perf_counter() - started) * 1000, state.repairs)
            if task.cancelling() > state.cancels and not _took_back(state):
                # A handler swallowed a cancellation from outside: the caller's wish counts.
                self._cut_off(state, arrived, seat, result)
                raise asyncio.CancelledError
        finally:
            live.discard(state)
            state.ended = True
            state._context = state.task = None  # no cycle is left for the collector
            if self._idle is not None:
                self._look_idle()
        if observers:
            kind: EventKind = "tool:post" if result.status == "ok" else "tool:error"
            emit(observers, "tool:suspended" if result.status == "suspended" else kind, arrived, result)
        if self._journal is not None and plan.changes:
            keeping = self._kept(result, seat)
            await (execution.watched(keeping) if execution.WATCHED else keeping)
        return result

    async def _straight(
        self, plan: Plan, call: ToolCall, given: ToolContext[Any], seat: Seat | None = None
    ) -> ToolResult:
        """The way of a call that nobody judges, watches or goes round, and that has to wait for nothing.

        It is `_performed` and `_entered` in one coroutine, without what they would skip, which is a third of the cost.
        At the first thing that is not so it leaves the call to them; by then nothing has happened.
        """
        started = perf_counter()
        current = CURRENT.get()
        limiter = plan.limiters[0] if plan.limiters else None
        values = None
        if current is None or (current.ended and current.parent is None):
            try:  # noqa: SIM105, `suppress` costs as much as the validation
                values = plan.quick(call.raw)  # type: ignore[misc,arg-type]
            except Exception:  # the long way says what is wrong, or mends it
                pass
        late = self._closing or not plan.straight  # it was turned off since `run` was called
        late = late or get_running_loop() is not self._loop
        if values is None or late or not (limiter is None or limiter.try_acquire()):
            return await self._performed(plan, call, given, seat=seat)
        task: Any = current_task()
        cancels = task.cancelling()
        state = new_state(given._given, plan, call, call, None, started, task, cancels)
        state.executed = None
        state.held = plan.limiters
        if seat is not None:
            seat.state = state
        live = self._live
        live.add(state)
        CURRENT.set(state)
        try:
            try:
                handling = plan.direct(**values)  # type: ignore[misc]
                value = await (execution.watched(handling) if execution.WATCHED else handling)
            except BaseException as error:
                result = results.raised(plan, state, error)
            else:
                result = results.shaped(plan, state, value)
            if not results.fits(result, plan.max_output):
                result = results.sealed(state, result)
        except BaseException as error:
            result = self._broke(state, call, error, seat)
        finally:
            if state.loans:
                slots.give_back(state, state.held)
            elif limiter is not None:
                limiter.release()
            state.held = ()
            live.discard(state)
            state.ended = True
            if self._idle is not None:
                self._look_idle()
        if task.cancelling() > state.cancels and not _took_back(state):
            self._cut_off(state, call, seat, result)
            raise asyncio.CancelledError
        state.task = None  # no cycle is left for the collector
        return result

    def _broke(self, state: CallState, arrived: ToolCall, error: BaseException, seat: Seat | None) -> ToolResult:
        """What came out of the middleware: a fault of the program, or the end of the task from outside.

        Raises:
            BaseException: what ends the task, once the call has its result and its event.
        """
        cancelled = isinstance(error, asyncio.CancelledError)
        if cancelled and _took_back(state):
            return results.halted(state, state.halt)
        outside = cancelled and state.task.cancelling() > state.cancels
        if not outside and not isinstance(error, KeyboardInterrupt | GeneratorExit):
            return results.broke(state, error)
        self._cut_off(state, arrived, seat, error)
        raise (state.cut or error) from None

    def _cut_off(
        self, state: CallState, arrived: ToolCall, seat: Seat | None, cause: BaseException | ToolResult
    ) -> None:
        """A cancellation from outside: the result that the batch keeps, and the terminal event."""
        result = results.cut_off(state, cause)
        state.ended = True
        emit(state.observers, "tool:error", arrived, result)
        if seat is not None:
            seat.result = result
        if self._journal is not None and state.plan.changes and not isinstance(cause, GeneratorExit):
            # Awaited here, it would be cut off like the call itself.
            writing = get_running_loop().create_task(self._recorded(result))
            self._writing.add(writing)
            writing.add_done_callback(self._writing.discard)

    # -- decode, validate, guards, approve, slot ----------------------------------------------------------------------

    async def _entered(self, plan: Plan, call: ToolCall, state: CallState) -> ToolResult:
        """All that `around` goes round: *decode* to *shape*, with the halves next to them."""
        if state.entered:
            raise DefinitionError("a middleware called `next` while its other `next` was under way; one at a time")
        if plan.around is not None:
            state.entered = True
        try:
            for ahead in plan.ahead:
                answer = ahead(call, state.context)
                if answer is not None:
                    call = await settled(answer, call)
            if call is not state.call and (call.id, call.name) != (state.call.id, plan.name):
                raise DefinitionError("a middleware gave `next` a call with another id or name")
            try:
                if call.problem is not None:
                    raise results.problem(call)
                if plan.disabled is not None:
                    if state.resumed is not None:
                        self._use(state.resumed.key)
                    raise results.denied(plan.disabled)
                if state.resumed is None:
                    text: Any = call.raw
                    try:
                        if text.__class__ is not str:
                            text = dumps(text)
                        values = plan.quick(text)  # type: ignore[misc]
                    except Exception:  # the ladder says what is wrong, or mends it
                        values, text = self._decoded(plan, call, state)
                    if plan.judged:
                        state.call = call = judged_call(state.call, text, values, plan.parameters)
                        first = approving.first_word(plan.judges, call, state.context) if plan.judges else None
                        if first is not None or plan.hidden:
                            values = await self._judged(plan, call, values, state, first)
                        elif plan.judges and state.observers:
                            emit(state.observers, "tool:decided", call, ALLOW)
                else:
                    values = await self._taken_up(plan, state)
                held: Any = plan.limiters
                if plan.careful or state.parent is not None or state.beside:
                    held = await self._slot(plan, state)
                else:
                    ready = 0
                    try:
                        for limiter in held:
                            limiter.take()
                            ready += 1
                    except IndexError:
                        held = await self._slot(plan, state, ready)
                state.held = held
                if plan.disabled is not None:
                    raise _given_back(state, results.denied(plan.disabled))
            except Halt as halt:
                result = results.halted(state, halt)
            except asyncio.CancelledError:
                if not _took_back(state):
                    raise
                result = results.halted(state, state.halt)
            else:
                try:
                    if self._journal is not None and plan.changes:
                        await self._intended(state)
                    if state.task.cancelling() > state.cancels:  # somebody on the way here made nothing of it
                        raise asyncio.CancelledError
                    CURRENT.set(state)
                    if state.timeout is not None or plan.timeout is not None:
                        result = await self._timed(plan, state, values)
                    elif plan.inside is not None:
                        state.values = values
                        result = await plan.inside(state.call, state.context)
                    else:
                        result = await self._handled(plan, state, values)
                finally:
                    state.held = ()
                    if state.left:
                        self._release_later(state, held)
                    else:
                        slots.give_back(state, held)
            for behind in plan.behind:
                changed = behind(result, state.context)
                if changed is not None:
                    result = await settled(changed, result)
            return result
        finally:
            if plan.around is not None:
                state.entered = False

    def _decoded(self, plan: Plan, call: ToolCall, state: CallState) -> tuple[Any, str]:
        try:
            values, text, repairs = plan.parameters.decode(plan.name, call.raw)
        except Invalid as invalid:
            raise Halt("invalid", str(invalid)) from None
        except Exception as error:  # a mapping of the sender's own may raise anything when it is read
            log.error("the arguments for tool %r cannot be read", plan.name, exc_info=error)
            raise Halt("invalid", f"The arguments for {plan.name} cannot be read. {NOTHING_RUN}") from None
        state.repairs = tuple(dict.fromkeys((*state.repairs, *repairs)))  # `around` may come here twice
        return values, text

    async def _taken_up(self, plan: Plan, state: CallState) -> Any:
        """Take up a suspended call: the answer is about what was recorded, whatever `around` makes of it now."""
        if not self._use(state.resumed.key):
            raise Halt("invalid", f"This call was resumed already. {NOTHING_RUN}")
        try:
            values, text, state.repairs = plan.parameters.judge(plan.name, state.resumed.arguments)
        except Invalid as invalid:
            raise Halt("invalid", str(invalid)) from None
        state.call = judged_call(state.call, text, values, plan.parameters)
        verdict = approving.Verdict(state.resumed.decision, state.call, values)
        return await self._decided(plan, verdict, state, state.resumed.approve)

    def _use(self, key: str) -> bool:
        """Note that a suspended call was taken up; whether it had not been."""
        if key in self._resumed:
            return False
        self._resumed[key] = None
        if len(self._resumed) > 10_000:
            del self._resumed[next(iter(self._resumed))]
        return True

    async def _judged(
        self, plan: Plan, call: ToolCall, values: Any, state: CallState, first: tuple[int, Any] | None
    ) -> Any:
        """Ask the guards, and whoever is to be asked: the values that are to run; `state.call` is the call."""
        verdict = await approving.judged(plan, call, values, state, first)
        if plan.judges and state.observers:
            emit(state.observers, "tool:decided", verdict.call, verdict.decision)
        return await self._decided(plan, verdict, state, self._approve)

    async def _decided(self, plan: Plan, verdict: approving.Verdict, state: CallState, approve: Approver | None) -> Any:
        if verdict.decision.kind == "ask":
            asked = verdict.decision
            verdict = await approving.answered(plan, verdict, state, approve)
            if state.observers:
                emit(state.observers, "tool:decided", verdict.call, verdict.decision)
            if verdict.decision.kind == "ask":
                raise Halt(
                    "suspended",
                    f"{plan.name} waits for a decision: {cut(clean(asked.reason), 500)}. {NOTHING_RUN}",
                    metadata={"resume": approving.remembered(verdict.call, state, verdict.decision)},
                )
        if verdict.decision.kind == "deny":
            raise results.denied(verdict.decision.reason)
        if plan.hidden and plan.parameters.missing(verdict.call.arguments):
            raise results.denied(_MISSING)
        state.call = verdict.call
        return verdict.values

    async def _slot(self, plan: Plan, state: CallState, ready: int = 0) -> slots.Held:
        if state.beside and not plan.tool.trait("parallel", state.call.arguments):
            said = f"{plan.name} may not run beside other calls with the arguments as they were changed"
            raise Halt("limited", f"{said}. {NOTHING_RUN} Send it alone.")
        return await slots.taken(plan, state, self._keys, self._waiting, self._queue_timeout, ready)

    def _release_later(self, state: CallState, held: slots.Held) -> None:
        """What was given up and still runs is counted, and keeps the slots and keys until the last of it ends."""
        others = list(state.left[1:])

        def ended(one: Any) -> None:  # perhaps told twice, and by threads whose loop is closed: each `pop` is atomic
            if self._left.pop(one, None) is None:
                return
            try:
                others.pop()
            except IndexError:  # it was the last
                _give_back_all(state, held)

        for one in state.left:
            self._left[one] = told = partial(ended, one)
            one.when_done(told)

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

    async def _kept(self, result: ToolResult, seat: Seat | None) -> None:
        try:
            await self._recorded(result)
        except asyncio.CancelledError:
            if seat is not None:
                seat.result = result
            raise

    async def _recorded(self, result: ToolResult) -> None:
        assert self._journal is not None
        try:
            await self._journal.result(result.record())
        except Exception:
            log.exception("the journal did not take the result of %s", result.tool_name)

    # -- handler and shape --------------------------------------------------------------------------------------------

    def _timed(self, plan: Plan, state: CallState, values: Any) -> Coroutine[Any, Any, ToolResult]:
        """Handled in a task of its own, which has a deadline."""
        timer = plan.timer
        seconds: float = state.timeout or plan.timeout
        loop = get_running_loop()
        if timer is None or timer.loop is not loop or timer.seconds != seconds:
            timer = Timer(loop, seconds)
            if state.timeout is None:
                plan.timer = timer
        state.deadline = loop.time() + seconds
        if plan.inside is None:
            handling = self._handled(plan, state, values)
        else:
            state.values = values
            handling = execution.contained(plan.inside(state.call, state.context), state)
        return execution.within(execution.own(handling, loop), plan, state, timer, self._grace)

    def _handled_unchanged(
        self, plan: Plan, call: ToolCall, context: ToolContext[Any]
    ) -> Coroutine[Any, Any, ToolResult]:
        """The end of the chain of `inside`: what was judged is what runs."""
        state = _state_of(plan, context)
        if call is not state.call and call != state.call:
            raise DefinitionError("a middleware inside gave `next` another call; arguments change only in `around`")
        if state.cancelled_in(current_task()):  # a middleware inside made nothing of it
            raise asyncio.CancelledError
        values, state.values = state.values, None
        if values is None:  # a second attempt: the first may have changed its own objects
            halt = self._no_more(plan, state)
            if halt is not None:
                return _given(results.halted(state, halt))
            values = plan.parameters.values(str(state.call.raw))
        return self._handled(plan, state, values)

    def _no_more(self, plan: Plan, state: CallState) -> Halt | None:
        """Why there is no further attempt; `None` where there may be one."""
        if plan.disabled is not None:
            return results.denied(plan.disabled)
        if state.stopping or (self._closing and state.parent is None):
            return Halt("cancelled", f"The call was cancelled. {NOTHING_RUN}")
        return None

    async def _handled(self, plan: Plan, state: CallState, values: Any) -> ToolResult:
        """The handler, what it came to, and the halves next to it; in a task of its own where there is a deadline."""
        if plan.disabled is not None:  # since the task was made
            return results.halted(state, results.denied(plan.disabled))
        state.executed = None
        state.runs += 1
        try:
            try:
                if plan.plain:
                    value = await plan.direct(**values)  # type: ignore[misc]
                else:
                    value = await plan.execute(plan, values, state)
            except BaseException as error:
                result = results.raised(plan, state, error)
            else:
                result = results.shaped(plan, state, value)
            for behind in plan.done:
                changed = behind(result, state.context)
                if changed is not None:
                    result = await settled(changed, result)
            return result
        except SystemExit as error:  # in a task of its own it would end the loop
            return results.broke(state, error)
        finally:
            if state.waiter is not None and plan.inside is None:
                wake(state.waiter)

    # -- what a bound context asks ------------------------------------------------------------------------------------

    def announce(self, state: CallState, what: Mapping[str, Any]) -> None:
        """Emit a `tool:progress` of a call that still runs, on the loop's own thread."""
        loop = self._loop
        if not state.observers or state.ended or loop is None:
            return
        told = freeze(jsonable(dict(what)))  # the handler may change a piece, and no observer may

        def tell() -> None:
            if not state.ended:
                emit(state.observers, "tool:progress", state.call, told)

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
        plan = self._plan_of(call.name)
        if plan is None:
            return Decision("deny", self._unknown(call.name))
        if call.problem is not None or plan.disabled is not None:
            return Decision("deny", call.problem or plan.disabled or "")
        arrived = call if call.name == plan.name else call.replace(name=plan.name)
        state = new_state((context or NO_CONTEXT)._given, plan, call, arrived, running(), perf_counter())
        try:
            values, text = self._decoded(plan, arrived, state)
        except Halt as halt:
            return Decision("deny", halt.error)
        state.call = judged = judged_call(arrived, text, values, plan.parameters)
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
        loop = self._loop if running() is not None and self._live else None
        if loop is None or loop.is_closed():
            loop = self._own_loop.get()
        found: ToolResult = sync.wait(loop, lambda: self.run(call, *rest, **options))
        return found

    def as_tools(self) -> list[Tool]:
        """Its tools, to be mounted in another runner: they carry this runner's guards, middleware and limits with them.

        There is one path and one event for each call, and the outer runner's approver.
        """
        return [one._with(_mounted=(Mount(self._settings, one.name), *(one._mounted or ()))) for one in self._tools]

    # -- one loop at a time, and the end ------------------------------------------------------------------------------

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and self._live and not self._loop.is_closed():
            raise RuntimeError(
                "this runner is busy on another event loop; await it there, or give this loop a runner of its own"
            )
        if self._loop is not None and self._loop.is_closed():
            self._let_go()
        self._loop = loop

    def _let_go(self) -> None:
        """End what went with its loop, which was closed: it gives back its slots. Threads end by themselves."""
        for state in sorted(self._live, key=lambda state: bool(state.held)):  # who waits is not to be woken there
            with suppress(Exception):
                state.task.get_coro().close()
            if state.waiter is not None:
                with suppress(RuntimeError):  # who waited is gone; else its handler would say so when it is collected
                    wake(state.waiter)
        for one, ended in list(self._left.items()):
            if not getattr(one, "running", False):
                ended()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._live = set()
        self._keys = KeyLocks()
        self._waiting = Waiting(self._live)
        self._writing = set()
        self._idle = self._loop = None

    def _forked(self) -> list[Any]:
        """Begin anew in a forked process, where nothing of what runs goes on; that is what is returned."""
        parents = [self._live, self._left, self._writing, self._loop, self._waiting, self._keys]
        for state in self._live:
            state.loans = ()
        for plan in self._plans.values():
            for limiter in plan.limiters:
                limiter.refill()
            for shares in plan.shares:
                shares.refill()
        self._left = {}
        self._begin_anew()
        return parents

    def _rest(self) -> None:
        """Hold no loop while nothing runs."""
        if not self._live:
            self._loop = None
            for plan in self._plans.values():
                plan.timer = None

    def _look_idle(self) -> None:
        for idle, own in self._idle or ():
            if not idle.done() and self._live <= self._spared(own):
                idle.set_result(None)

    def _spared(self, own: frozenset[CallState]) -> frozenset[CallState]:
        """The calls that one who leaves does not wait for: those it is part of, and those that leave like it."""
        return own.union(*(other for _, other in self._idle or ())) if own else own

    async def __aenter__(self) -> Runner:
        self._closing = False
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Takes no new calls, and waits for those that run, at most `drain` seconds; then these are cancelled.

        Children of running calls still run. What does not end by its cancellation within `grace` is left running. A
        call whose handler or middleware does this itself is not waited for, and not cancelled.
        """
        self._closing = True
        loop = self._loop
        if loop is None or not (self._live or self._writing):
            return
        own = self._part_of()
        if loop is get_running_loop():
            await self._drained(own)
        elif loop.is_running():
            await self._drained_there(own, loop)

    def _part_of(self) -> frozenset[CallState]:
        """The calls that the present code belongs to."""
        task, inner = current_task(), running()
        family = () if inner is None else (inner, *ancestors(inner))
        return frozenset([*family, *(state for state in list(self._live) if state.task is task)])

    async def _drained(self, own: frozenset[CallState]) -> None:
        self._stop_waiting()  # no further attempt of what runs
        if not await self._emptied(self._drain, own):
            left = self._live - self._spared(own)
            log.warning("%d calls still ran %s s after the runner was left: cancelled", len(left), self._drain)
            said = "The runner was closed before the call had ended."
            for state in left:
                _interrupt(state, Halt("cancelled", f"{said} {NOTHING_RUN}"))
            await self._emptied(self._grace + _TURN, own)
        if self._writing:
            await asyncio.wait(set(self._writing), timeout=self._drain)

    async def _drained_there(self, own: frozenset[CallState], loop: asyncio.AbstractEventLoop) -> None:
        """The same where the calls run on another loop, which may be blocked, or end meanwhile."""
        work = self._drained(own)
        try:
            there = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
        except RuntimeError:  # it was closed just now
            work.close()
            return
        bound = None if self._drain is None else 2 * (self._drain + _TURN) + self._grace
        try:
            await asyncio.wait({there}, timeout=bound)
        finally:
            there.cancel()
        if not there.cancelled():
            there.result()

    async def _emptied(self, seconds: float | None, own: frozenset[CallState]) -> bool:
        """Wait until no other call runs, at most that long; whether that is so."""
        idle = get_running_loop().create_future()
        entry = (idle, own)
        self._idle = [*(self._idle or ()), entry]
        self._look_idle()
        try:
            await asyncio.wait({idle}, timeout=seconds)
        finally:
            self._idle = [one for one in self._idle or () if one is not entry] or None
        return idle.done()

    # -- turning tools off --------------------------------------------------------------------------------------------

    def disable(self, glob: str, reason: str) -> None:
        """From now on, deny every call of the tools whose name fits `glob`, with `reason`; where they are mounted, too.

        Calls that wait for a slot or for a person are denied at once; those whose handler runs are left to run. It may
        be called from any thread.

        Raises:
            DefinitionError: where no tool fits, or the reason is empty.
        """
        given: Any = reason
        if not isinstance(given, str) or not given.strip():
            raise DefinitionError(f"disable({glob!r}, reason): say why, the model is told; not {reason!r}")
        for name in self._fitting(glob):
            self._settings.off[name] = reason
        self._settings.changed()

    def look_disabled(self) -> None:
        """See which tools are turned off, here or where they are mounted from, and stop what waits to run them."""
        for plan in self._plans.values():
            plan.disabled = plan.turned_off()
            plan.straight = plan.disabled is None and self._may_go_straight(plan)
        loop = self._loop
        if self._live and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._stop_waiting)

    def _stop_waiting(self) -> None:
        for state in list(self._live):
            if state.plan.disabled is not None and state.executed is False:
                _interrupt(state, results.denied(state.plan.disabled))
            elif state.pausing is not None and self._no_more(state.plan, state) is not None:
                wake(state.pausing)

    def enable(self, glob: str) -> None:
        """Take back what `disable` did to the tools whose name fits `glob`.

        Raises:
            DefinitionError: where no tool fits.
        """
        for name in self._fitting(glob):
            self._settings.off.pop(name, None)
        self._settings.changed()

    def _fitting(self, glob: str) -> list[str]:
        names = [one.name for one in self._tools.only(glob)]
        if not names:
            raise DefinitionError(f"no tool fits {glob!r}: there are {', '.join(self._tools._by_name) or 'none'}")
        return names

    def _may_go_straight(self, plan: Plan) -> bool:
        return plan.may_go_straight() and not self._observers and not self._journals(plan)


async def _given(result: ToolResult) -> ToolResult:
    return result


def _given_back(state: CallState, halt: Halt) -> Halt:
    slots.give_back(state, state.held)
    state.held = ()
    return halt


def _give_back_all(state: CallState, held: slots.Held) -> None:
    for one in held:
        with suppress(RuntimeError):  # the next in turn for a key has its loop closed
            slots.give_back(state, [one])


def _interrupt(state: CallState, halt: Halt) -> None:
    """Stop a call from outside: its task is cancelled, and the call takes that back and gives `halt` as its answer."""
    if state.halt is None and not state.ended and state.task is not current_task():
        state.halt = halt
        state.task.cancel()


def _took_back(state: CallState) -> bool:
    """Whether it was the runner, and nobody else, that cancelled the call's task; that is taken back once."""
    if state.halt is None:
        return False
    if not state.taken_back:
        state.taken_back = True
        state.task.uncancel()
    return bool(state.task.cancelling() <= state.cancels)


def _snapshot(call: ToolCall) -> ToolCall:
    """The call with its arguments as text: the sender's own mapping may change, what is judged and told does not."""
    if call.raw is None:
        return call
    try:
        text = dumps(call.raw)
    except Exception:  # answered at decode
        return call
    return judged_call(call, text)


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
    runner = _alone(tool, get_running_loop())
    try:
        result = await runner.run(ToolCall("", tool.name, arguments))
    finally:
        runner._rest()
    if result.success:
        return result.output
    error = _ERRORS.get(result.status, ToolError)(result.error or "", result=result)
    raise error from result.exception


def _alone(tool: Tool, loop: asyncio.AbstractEventLoop) -> Runner:
    """The tool's own runner for direct calls on this loop."""
    alone: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Runner] | None = tool._alone
    if alone is None:
        alone = weakref.WeakKeyDictionary()
        object.__setattr__(tool, "_alone", alone)
    runner = alone.get(loop)
    if runner is None:
        for old in [reference() for reference in alone.keyrefs()]:
            if old is not None and old.is_closed():
                alone.pop(old)._let_go()
        runner = alone[loop] = Runner([tool], concurrency=None, expose=(Exception,))
    if runner._loop is None:
        runner._move(loop)  # so that the call may go straight
    return runner


_direct.append(_call_directly)

_RUNNERS: weakref.WeakSet[Runner] = weakref.WeakSet()
_PARENTS: list[Any] = []
"""What ran in the process that this one was forked from: collected here, it would give back what it does not have."""


def _after_fork() -> None:
    for runner in list(_RUNNERS):
        _PARENTS.append(runner._forked())


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_after_fork)
