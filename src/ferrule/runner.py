"""`Runner`: a toolset with guards and middleware; the one path that every call takes.

    receive    an id where there is none; names that are unknown or were not offered, used ids and calls with a
               `problem` are answered here
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
The steps are functions in `pipeline/`: go on reading in `pipeline/call.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack, overload

from ferrule import own_loop
from ferrule.definition import options
from ferrule.definition.options import ContextOptions, RunOptions, context_of, exception_classes, seconds, whole_number
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset, changes
from ferrule.errors import DefinitionError
from ferrule.pipeline.authorize import VALUE_MISSING, explain, foresee, judge, next_found
from ferrule.pipeline.background import Work
from ferrule.pipeline.batch import Batch
from ferrule.pipeline.call import find_plan, note_judged, receive, receive_again, unknown_tool, validate
from ferrule.pipeline.hiding import hide
from ferrule.pipeline.live_call import LiveCall
from ferrule.pipeline.long_batch import LongBatch
from ferrule.pipeline.plan import Mount, Settings
from ferrule.pipeline.recovery import deferred_record, recover
from ferrule.pipeline.results import NOTHING_RUN, Rejected
from ferrule.pipeline.runner_state import RunnerState, TakenUp
from ferrule.pipeline.state import NO_ORIGIN, Origin
from ferrule.pipeline.suspension import NOT_SEALED, answered_call, resume_keys
from ferrule.scheduling.clock import MONOTONIC, Clock
from ferrule.scheduling.limiter import Limiter, PrincipalLimits
from ferrule.types import Approver, Coro, Guard, Journal, Leases, Middleware, Observer, ToolInput
from ferrule.values.call import ToolCall, new_id
from ferrule.values.content import MOST_MEDIA, clean
from ferrule.values.context import NO_CONTEXT, ToolContext, running
from ferrule.values.decision import Decision
from ferrule.values.event import emit
from ferrule.values.frozen import JsonObject
from ferrule.values.result import ToolResult

log = logging.getLogger("ferrule")
_offer: Callable[..., Toolset | None] = options.kind(
    "a Toolset, such as runner.tools.only('read_*')", lambda value: isinstance(value, Toolset), none=None
)
_turn, _seen_by = options.label, options.observers
_OF_RUN: dict[str, Any] = {"timeout": seconds, "offered": _offer, "observers": _seen_by, "turn": _turn}
_REPLACEABLE: dict[str, Any] = {"approve": options.approver, "journal": options.journal, "observers": _seen_by}
EXPOSED: tuple[type[BaseException], ...] = (ValueError, LookupError, OSError)
_ASKERS = 32  # open questions to an approver that is a plain function, where `concurrency` says nothing


class CallOptions(RunOptions, total=False):
    """What `run` takes by name; in its signature, each of these would cost every call 150 instructions."""

    offered: Toolset | None
    observers: Iterable[Observer]
    turn: str | None


class Runner:
    """A toolset with guards and middleware; takes calls, gives results. See docs/first-tool.md.

    A runner without guards runs what its developer gave it. It runs calls on one event loop at a time: idle, it moves
    to another.

    Args:
        tools: A toolset, or whatever makes one.
        guards: Asked for every call, before the tool's own.
        around: Middleware round the call as the model made it, the first outermost.
        inside: Middleware round the run itself, within the deadline.
        approve: Who answers an "ask"; with nobody, an ask is denied. A plain function is called in a thread of its
            own, because it may wait for a person: at most `concurrency` at once (32 where that is `None`), the other
            questions wait.
        observers: See every event; cannot change a call and cannot break one.
        journal: Where calls are kept, so that none that changes something is run twice: `Journal.open("calls.db")`.
            See docs/journal.md.
        deps: What the context of a call has as `deps`, where the caller gives none; mounted tools keep their runner's.
        secrets: The same of `secrets`.
        concurrency: How many calls run at once; `None` for no limit.
        per_principal: How many calls of one principal run at once; `None` for no limit but the others.
        limits: Where these two, the limits of tools and their keys hold among all programs that give the same:
            `ferrule.limits.shared(…)`. See docs/limits.md#among-several-programs.
        timeout: Seconds that a call may take once it has its slot, where neither call nor tool says so.
        idle_timeout: Seconds that a call may take without progress, where its tool does not say. Progress extends it,
            up to `timeout`. See docs/long-work.md#an-idle-deadline.
        grace: Seconds that a handler has to end after its cancellation.
        queue_timeout: Seconds that a call waits for its slot before it is `limited`; `None` waits for ever, but a call
            that another one made 60 s.
        drain: Seconds that leaving `async with` waits for the calls that run, before it cancels them; `None` waits for
            ever.
        max_output: Characters of a result, altogether.
        max_media: Bytes of images, audio and files in a result, altogether.
        max_input: Characters of JSON that are read as the arguments of a call, where its tool does not say; `None` for
            no limit.
        resume_key: What seals the records of suspended calls: at least 32 bytes, or a list of such keys, of which the
            first signs and all verify. Left out it is a random one, and only this runner and its replacements resume.
        resume_within: Seconds after which a suspended call can no longer be resumed.
        expose: Kinds of exceptions whose text a model may see; of all others it sees the type.
        clock: What deadlines, waits and expiries go by, and middleware without a clock of its own, such as a
            `ferrule.testing.ManualClock`; left out, the machine's. `drain` goes by the machine's in any case.

    Raises:
        DefinitionError: for whatever could not work.
    """

    def __init__(
        self,
        tools: Iterable[ToolInput],
        *,
        guards: Iterable[Guard] = (),
        around: Iterable[Middleware] = (),
        inside: Iterable[Middleware] = (),
        approve: Approver | None = None,
        observers: Iterable[Observer] = (),
        journal: Journal | None = None,
        deps: object = None,
        secrets: Mapping[str, object] | None = None,
        concurrency: int | None = 32,
        per_principal: int | None = None,
        limits: Leases | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        grace: float = 1.0,
        queue_timeout: float | None = 60.0,
        drain: float | None = 60.0,
        max_output: int = 100_000,
        max_media: int = MOST_MEDIA,
        max_input: int | None = 1_000_000,
        resume_key: bytes | Sequence[bytes] | None = None,
        resume_within: float = 86_400.0,
        expose: tuple[type[BaseException], ...] = EXPOSED,
        clock: Clock | None = None,
    ) -> None:
        toolset = tools if isinstance(tools, Toolset) else Toolset(tools)
        limit, share = whole_number("concurrency", concurrency), whole_number("per_principal", per_principal)
        settings = Settings(
            guards=options.guards("guards", guards),
            around=options.middleware("around", around),
            inside=options.middleware("inside", inside),
            limiter=None if limit is None else Limiter(limit, "runner" if limits else None),
            principal_limits=None if share is None else PrincipalLimits(share, named=limits is not None),
            limits=options.limits("limits", limits),
            deps=deps,
            secrets=options.mapping("secrets", secrets),
            timeout=seconds("timeout", timeout),
            idle_timeout=seconds("idle_timeout", idle_timeout),
            expose=exception_classes("expose", expose) or (),
            max_output=whole_number("max_output", max_output) or 100_000,
            max_media=whole_number("max_media", max_media) or MOST_MEDIA,
            max_input=whole_number("max_input", max_input),
        )
        clock = options.clock("clock", clock) or MONOTONIC
        state = RunnerState(
            settings=settings,
            tools=toolset,
            observers=_seen_by("observers", observers),
            approve=options.approver("approve", approve),
            journal=options.journal("journal", journal),
            grace=0.0 if grace == 0 else float(seconds("grace", grace) or 0.0),
            queue_timeout=seconds("queue_timeout", queue_timeout),
            drain=0.0 if drain == 0 else seconds("drain", drain),
            questions=Limiter(limit or _ASKERS),
            resume_keys=resume_keys(resume_key),
            resume_within=seconds("resume_within", resume_within) or 86_400.0,
            receive=receive,
            clock=clock,
            taken_up=TakenUp(clock),
        )
        self._set_up(state)

    def _set_up(self, state: RunnerState) -> None:
        self._state = state
        self._own_loop = own_loop.OwnLoop(self)
        mounted: dict[object, Tool] = {}
        for tool in state.tools:
            if (other := mounted.setdefault(tool.mounts or tool, tool)) is not tool:
                raise DefinitionError(
                    f"{other.name!r} and {tool.name!r} are one tool of a runner that is mounted twice, and what calls "
                    "it by name could mean either: mount two runners, each once"
                )
            plan = state.compile(tool)
            state.plans[tool.name] = state.plans[tool.wire_name] = plan
        if state.journal is not None:
            guards = [guard for plan in state.plans.values() for _, guard in plan.guards]
            roots = [getattr(guard, "roots", ()) for guard in guards]
            state.journal.check_reach({root for given in roots if isinstance(given, tuple) for root in given})

    def replace(
        self,
        *,
        approve: Approver | None = None,
        observers: Iterable[Observer] | None = None,
        tools: Iterable[ToolInput] | None = None,
        guards: Iterable[Guard] | None = None,
        inside: Iterable[Middleware] | None = None,
        journal: Journal | None = None,
    ) -> Runner:
        """A runner of the same settings that asks somebody else, is seen by others, keeps its calls elsewhere, or has
        other tools, guards or middleware inside.

        It shares with this one the limits, the keys, the tools that are turned off, and the records that were taken up;
        the calls of this one go on, and who leaves this one leaves it too. What other tools there are is told by an
        event `tools:changed`.

        Raises:
            DefinitionError: for what could not work.
        """
        given = {"approve": approve, "journal": journal, "observers": observers}
        changed: dict[str, Any] = {key: _REPLACEABLE[key](key, one) for key, one in given.items() if one is not None}
        if tools is not None:
            changed["tools"] = tools if isinstance(tools, Toolset) else Toolset(tools)
        settings = self._state.settings
        if guards is not None:
            settings = replace(settings, guards=options.guards("guards", guards))
        if inside is not None:
            settings = replace(settings, inside=options.middleware("inside", inside))
        state = self._state.like_this(settings=settings, **changed)
        made = object.__new__(Runner)
        made._set_up(state)
        if tools is not None:
            emit(state.observers, "tools:changed", ToolCall("", ""), changes(self.tools, state.tools))
        return made

    def tell_refused(self, reason: str, address: str) -> None:
        """Tell the observers that a client of this runner was refused. The journal does not keep it: anybody can send
        as many such requests as he likes."""
        emit(self._state.given_observers, "client:refused", ToolCall("", ""), {"reason": reason, "address": address})

    @property
    def tools(self) -> Toolset:
        """The tools of this runner."""
        return self._state.tools

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The guards of this runner; its tools may have their own."""
        return self._state.settings.guards

    @property
    def around(self) -> tuple[Middleware, ...]:
        """The middleware round the calls of this runner, the first outermost; its tools may have their own."""
        return self._state.settings.around

    @property
    def inside(self) -> tuple[Middleware, ...]:
        """The middleware round the runs of this runner, the first outermost; its tools may have their own."""
        return self._state.settings.inside

    @property
    def approve(self) -> Approver | None:
        """Who answers an "ask"."""
        return self._state.approve

    @property
    def journal(self) -> Journal | None:
        """Where its calls are kept."""
        return self._state.journal

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Who sees every event."""
        return self._state.given_observers

    @property
    def left_running(self) -> int:
        """How many handlers outlived their deadline and still run."""
        return len(self._state.abandoned)

    @property
    def waiting(self) -> int:
        """How many calls wait for a slot or a key."""
        return len(self._state.waiting)

    @property
    def works(self) -> tuple[Work, ...]:
        """The calls in the background: all that go on, and the newest that have ended, a thousand in all."""
        return tuple(self._state.works.values())

    # -- run ----------------------------------------------------------------------------------------------------------

    def run(
        self,
        call: ToolCall | str,
        given: JsonObject | str | ToolContext[Any] | None = None,
        /,
        context: ToolContext[Any] | None = None,
        **options: Unpack[CallOptions],
    ) -> Coro[ToolResult]:
        """Run one call: `run(call, context)` or `run("name", {...}, context)`; await the result.

        What the call may use is in the context, or given by name: `run("name", {...}, deps=…, principal=…, session=…)`.
        What is given by name goes before the context, and the context before the runner's own `deps` and `secrets`.
        It never raises for anything that a model or a tool caused. A cancellation from outside cancels.
        `observers` see the events of this call only. Of tools that are not in `offered`, which the model was offered,
        such as `runner.tools.only("read_*")`, none runs: a call is `not_found`; see docs/execution.md.

        Raises:
            DefinitionError: for what is no call and no context, a wrong time-out, what was offered and is no toolset,
                a turn, session or principal that is no text, and an option that there is not.
            RuntimeError: where the runner is busy on another loop.
        """
        if isinstance(call, str):
            call = ToolCall(new_id(), call, given)  # type: ignore[arg-type]
        elif not isinstance(call, ToolCall):
            raise _no_call("run", call)
        elif given is not None:
            if context is not None:
                raise DefinitionError(f"run(ToolCall(…), context) takes one context; it was given {context!r} too")
            context = given  # type: ignore[assignment]
        origin = NO_ORIGIN
        if options:
            every: Any = options
            origin = Origin(**{key: check(key, every.pop(key)) for key, check in _OF_RUN.items() if key in every})
        if context is None:
            context = NO_CONTEXT
        if options or not isinstance(context, ToolContext):
            context = context_of(context, options, "run('name', {…}, context, deps=…)", tuple(_OF_RUN))
        return receive(self._state, call, context.fields, origin)

    def run_sync(
        self,
        call: ToolCall | str,
        given: JsonObject | str | ToolContext[Any] | None = None,
        /,
        context: ToolContext[Any] | None = None,
        **options: Unpack[CallOptions],
    ) -> ToolResult:
        """`run` for programs without a loop: the runner has a loop in a thread of its own. Where it is busy on another
        thread's loop, the call runs there.

        Raises:
            RuntimeError: where this thread runs that loop: `await runner.run(…)` here; and where the loop ended before
                the call did.
        """
        return own_loop.wait(self.loop_for_sync(), lambda: self.run(call, given, context, **options))

    def run_all_sync(
        self,
        calls: Iterable[ToolCall],
        context: ToolContext[Any] | None = None,
        *,
        offered: Toolset | None = None,
        turn: str | None = None,
        **given: Unpack[ContextOptions],
    ) -> list[ToolResult]:
        """`run_all` for programs without a loop, which `run_sync` says more of."""
        coroutine = partial(self.run_all, calls, context, offered=offered, turn=turn, **given)
        return own_loop.wait(self.loop_for_sync(), coroutine)

    def loop_for_sync(self) -> asyncio.AbstractEventLoop:
        """The loop that `run_sync` runs calls on: one where calls run already, or the runner's own."""
        return self._state.busy_loop or self._own_loop.get()

    # -- batch --------------------------------------------------------------------------------------------------------

    async def run_all(
        self,
        calls: Iterable[ToolCall],
        context: ToolContext[Any] | None = None,
        *,
        offered: Toolset | None = None,
        turn: str | None = None,
        **given: Unpack[ContextOptions],
    ) -> list[ToolResult]:
        """One result for every call, in call order, always: `await runner.run_all(calls, principal="ann")`.

        Calls that may run in parallel do; the others are barriers, which `resources` narrow to calls that share a key.
        Of tools that are not in `offered`, where it is given, none runs, as in `run`.
        """
        return await self.batch(calls, context, offered=offered, turn=turn, **given)

    @overload
    def batch(
        self,
        calls: Iterable[ToolCall],
        context: ToolContext[Any] | None = None,
        *,
        observers: Iterable[Observer] = (),
        offered: Toolset | None = None,
        turn: str | None = None,
        concurrency: None = None,
        **given: Unpack[ContextOptions],
    ) -> Batch: ...

    @overload
    def batch(
        self,
        calls: Iterable[ToolCall] | AsyncIterable[ToolCall],
        context: ToolContext[Any] | None = None,
        *,
        observers: Iterable[Observer] = (),
        offered: Toolset | None = None,
        turn: str | None = None,
        concurrency: int,
        progress: bool = False,
        **given: Unpack[ContextOptions],
    ) -> LongBatch: ...

    def batch(
        self,
        calls: Iterable[ToolCall] | AsyncIterable[ToolCall],
        context: ToolContext[Any] | None = None,
        *,
        observers: Iterable[Observer] = (),
        offered: Toolset | None = None,
        turn: str | None = None,
        concurrency: int | None = None,
        progress: bool = False,
        **given: Unpack[ContextOptions],
    ) -> Batch | LongBatch:
        """Return a handle on several calls: await it, or iterate over the results as they come.

        Without `concurrency` these are the calls of one turn, as in `run_all`. They begin at once, and the handle has
        `.results`, complete at any time, and `.cancel()`. With `concurrency` they are a long batch of independent calls
        from any iterable, also an async one. It holds no more than so many at once, and awaiting it gives a summary.
        See docs/long-work.md#many-calls.

        Args:
            concurrency: How many calls of a long batch run at once.
            progress: Whether a long batch shows how far it is, on standard error, if that is a terminal.
            observers: See the events of these calls only.
            offered: The tools that the model was offered, as in `run`.
            turn: Which turn of the conversation they come from, where ids may come again in another one; see
                docs/journal.md.

        Raises:
            RuntimeError: where no event loop runs, or the runner is busy on another one.
        """
        names = ("observers", "offered", "turn", "concurrency", "progress")
        fields = context_of(context, given, "batch", names).fields
        given_calls: Any = calls
        if progress and concurrency is None:
            raise DefinitionError("progress=True is for a long batch: give it a concurrency=…")
        if concurrency is not None:
            origin = Origin(
                observers=_seen_by("observers", observers),
                offered=_offer("offered", offered),
                turn=_turn("turn", turn),
                brief_log=True,
            )
            run = partial(receive, self._state, fields=fields, origin=origin)
            at_once, needs_ids = whole_number("concurrency", concurrency) or 1, self._state.journal is not None
            return LongBatch(given_calls, run, at_once, self._state.clock, needs_ids=needs_ids, progress=progress)
        listed: list[Any] = list(given_calls) if isinstance(given_calls, Iterable) else [None]
        if not all(isinstance(call, ToolCall) for call in listed):
            raise DefinitionError(
                f"a batch takes a list of calls, such as [ToolCall('', name, {{}})], or any iterable of calls with "
                f"concurrency=…; not {calls!r}"
            )
        offered = _offer("offered", offered)
        seen_by = _seen_by("observers", observers)
        return Batch(self._state, listed, fields, seen_by, offered, _turn("turn", turn)).begin()

    # -- decide, resume -----------------------------------------------------------------------------------------------

    async def decide(
        self, call: ToolCall, context: ToolContext[Any] | None = None, **given: Unpack[ContextOptions]
    ) -> Decision:
        """What the guards would say, without running anything; a call that is unknown or invalid is a deny.

        Where they ask, and the approver has `async foresee(call, decision, context)`, the decision that this gives is
        the answer: what the approver would say without asking anybody, which uses nothing up.
        """
        try:
            state = self._validated("decide", call, context, given)
        except Rejected as rejection:
            return Decision("deny", rejection.error)
        plan, validated = state.plan, state.call
        decision = await judge(plan, state, next_found(plan.guards, state))
        if decision.kind == "ask":
            decision = await foresee(plan, state, decision)
        state.task = None
        if decision.kind != "allow":
            return decision
        if plan.hidden and plan.parameters.missing(state.call.arguments):
            return Decision("deny", VALUE_MISSING)
        return decision if state.call is validated else replace(decision, arguments=state.told.arguments)

    async def explain(
        self, call: ToolCall, context: ToolContext[Any] | None = None, **given: Unpack[ContextOptions]
    ) -> list[Decision]:
        """What each guard says of the call as it was sent, with its reason and its `rule`, the runner's guards first;
        of a call that is unknown or invalid the one deny. What comes of it all is said by `decide`."""
        try:
            state = self._validated("explain", call, context, given)
        except Rejected as rejection:
            return [Decision("deny", rejection.error)]
        said = await explain(state.plan, state)
        state.task = None
        return said

    def _validated(self, who: str, call: ToolCall, context: ToolContext[Any] | None, given: ContextOptions) -> LiveCall:
        """The call as guards see it.

        Raises:
            Rejected: where they do not see it.
        """
        if not isinstance(call, ToolCall):
            raise _no_call(who, call)
        fields = context_of(context, given, who).fields
        plan = find_plan(self._state, call.name)
        wrong = unknown_tool(self._state, call.name).error if plan is None else plan.disabled
        wrong = wrong if call.problem is None else call.problem
        if plan is None or wrong is not None:
            raise Rejected("denied", wrong or "")
        named = call if call.name == plan.name else call.replace(name=plan.name)
        above: object = running()
        parent = above if isinstance(above, LiveCall) else None
        state = LiveCall(plan, fields, call, named, parent)
        try:
            note_judged(plan, state, *validate(plan, named, state))
        except Rejected as rejection:
            raise Rejected("denied", hide(state, rejection.error)) from None
        return state

    def is_sealed(self, record: ToolResult | JsonObject) -> bool:
        """Whether the record of a suspended call is as this runner, or one with its `resume_key`, has made it.

        Raises:
            DefinitionError: for a record of no suspended call.
        """
        return answered_call(record, self._state.resume_keys, False, None) is not None

    async def resume(
        self,
        record: ToolResult | Mapping[str, object],
        answer: Decision | bool | ToolResult,
        context: ToolContext[Any] | None = None,
        *,
        by: str | None = None,
        deps: object = None,
        observers: Iterable[Observer] = (),
    ) -> ToolResult:
        """Take a suspended call up again with a person's answer, once: await its result.

        A record that was changed, or that no key of this runner has sealed, is `invalid`: nothing in it is believed.
        The call keeps to the names of what was offered when it was made. A record that was taken up before is
        `invalid`; where the journal knows what came of it, it is that, with `metadata["resumed_already"]`.

        Args:
            record: The suspended result, its `.pending` or its `.record()`, perhaps from another process. Of it
                `pending` alone is read.
            answer: `allow(…)` or `True` runs it, `ask(…)` suspends it again, everything else denies. Of deferred work
                (`pending["kind"]` is `"work"`), the `ToolResult` that it came to, which ends it; `True`, which has the
                handler look; or `False`, which gives it up. See docs/long-work.md#work-that-ends-elsewhere.
            context: For `deps` and `secrets`, which no record holds; session, principal, working directory and
                metadata come from the record.
            by: Who answers, for the event and the record of the result.
            deps: What goes before the context's.
            observers: See the events of this call only.

        Raises:
            DefinitionError: for a record of no suspended call, and for what is no answer to it.
        """
        if by is not None and not isinstance(by, str):
            raise DefinitionError(f"resume(by=…) is the name of who answers, not {type(by).__name__}")
        answered = answered_call(record, self._state.resume_keys, answer, by and clean(by))
        if answered is None:
            log.warning("a record was not resumed: %s", NOT_SEALED)
            return ToolResult(None, f"{NOT_SEALED} {NOTHING_RUN}", status="invalid", executed=False)
        given = context_of(context, {} if deps is None else {"deps": deps}, "resume")
        fields = given.replace(**answered.record["context"]).fields
        return await receive_again(self._state, answered, fields, _seen_by("observers", observers))

    async def resolve(self, ticket: str, answer: ToolResult | bool, by: str | None = None) -> ToolResult:
        """`resume` for deferred work that the journal has under this ticket, as a web hook knows it: await its result,
        which is `not_found` where not exactly one such work waits. See docs/long-work.md#work-that-ends-elsewhere.

        Raises:
            DefinitionError: where the runner has no journal.
            JournalError: where that cannot be read.
        """
        if (record := await deferred_record(self._state, ticket)) is None:
            text = f"No deferred work waits under the ticket {ticket!r}, or more than one does. {NOTHING_RUN}"
            return ToolResult(None, text, status="not_found", executed=False)
        return await self.resume(record, answer, by=by)

    async def recover(self) -> list[ToolResult]:
        """Settle the calls of its tools that a crash cut off, look at deferred work that is due, and say what each came
        to; see docs/journal.md.

        What a tool's `reconcile` does not know is `unknown`, and so is deferred work that has expired. A call that may
        be run again is not: it says so in its metadata (`runs_again`), and is run when it comes again.

        Raises:
            DefinitionError: where the runner has no journal.
            JournalError: where that cannot be read or written.
        """
        return await recover(self._state)

    def as_tools(self) -> list[Tool]:
        """Its tools, to be mounted in another runner: they carry this runner's guards, middleware and limits with them.

        There is one path and one event for each call, and the outer runner's approver. What one of them calls by
        `context.run` is another tool of this runner, whatever the outer one has under that name, and as the outer one
        has changed it; it too is judged by both runners' guards. A guard or a middleware calls the tools of the runner
        that it was given to, the approver those of the outer one. A runner is mounted once in another: for two
        tenants, make two.
        """
        every = (*self.tools, *self.tools.quarantined)
        return [tool.mounted(Mount(self._state.settings, tool.name, self.tools)) for tool in every]

    # -- leave --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Runner:
        self._state.enter()
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Takes no new calls, and waits for the calls and batches that run, at most `drain` seconds; then what runs is
        cancelled, and what has not begun never does.

        Its replacements are left with it. Children of running calls still run. What does not end by its cancellation
        within `grace` is left running.

        Raises:
            RuntimeError: where a call of the runner leaves it, or its calls run on another event loop. It takes no new
                calls then.
        """
        await self._state.leave()

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
            self._state.settings.disabled[name] = reason
        self._state.settings.tell_runners()

    def enable(self, glob: str) -> None:
        """Take back what `disable` did to the tools whose name fits `glob`.

        Raises:
            DefinitionError: where no tool fits.
        """
        for name in self._fitting(glob):
            self._state.settings.disabled.pop(name, None)

    def _fitting(self, glob: str) -> list[str]:
        names = [tool.name for tool in self.tools.only(glob)]
        if not names:
            raise DefinitionError(f"no tool fits {glob!r}: there are {', '.join(t.name for t in self.tools) or 'none'}")
        return names


def _no_call(who: str, given: object) -> DefinitionError:
    return DefinitionError(f"{who}(ToolCall('', 'name', {{…}})) is right, or run('name', {{…}}); not {given!r}")
