"""`Runner`: a toolset with guards and middleware, and the one path that every call takes.

    receive    give the call an id; reject unknown names, reused ids and calls with a `problem`
    around…    middleware around the call as the model made it
    ├ validate   JSON text to arguments: strict, then lossless recorded repairs, then defaults
    ├ replay     if the journal knows the call, judge it and return its recorded result
    ├ authorize  guards of tool and runner (deny, then ask, then allow), then the approver; changes are judged again
    ├ acquire    slots and resource keys, with a bounded wait; never held while a person is asked
    ├ invoke     journal the intent, start the deadline
    │ └ inside…    middleware around the run
    │   └ handler    in the loop, a thread, a process, or another machine
    └ release
    seal       bind the result to its call, bound and clean it; then the journal has the outcome, and observers the end

The judged arguments are the ones that run: they change only before `acquire`, and each change is judged again.
To read on, begin at `kernel/path.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from ferrule.definition import options
from ferrule.definition.bounds import SIZES, WAITS, Sizes, Waits
from ferrule.definition.options import ContextOptions, RunOptions, build_context, check_count, check_seconds
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError, GuardError, HandlerError, ToolError, ToolTimeoutError, ValidationError
from ferrule.executors.background_loop import BackgroundLoop, run_on_loop
from ferrule.kernel.authorize import VALUE_MISSING, explain, find_verdict, foresee, judge
from ferrule.kernel.begin import find_plan
from ferrule.kernel.live_call import LiveCall
from ferrule.kernel.plan import Mount, Settings
from ferrule.kernel.receive import receive, resume_call, unknown_tool
from ferrule.kernel.redact import redact
from ferrule.kernel.results import NOTHING_RUN, Rejected
from ferrule.kernel.runner_state import ResumedRecords, RunnerState
from ferrule.kernel.state import NO_ORIGIN, Origin
from ferrule.kernel.suspension import NOT_SEALED, open_suspended_record
from ferrule.kernel.validate import validate
from ferrule.scheduling.clock import MONOTONIC, Clock
from ferrule.scheduling.limiter import Limiter, PrincipalLimits
from ferrule.types import Approver, Coro, Guard, Journal, Leases, Middleware, Observer, ToolInput
from ferrule.values.call import ToolCall, new_id
from ferrule.values.content import clean_text
from ferrule.values.context import NO_CONTEXT, ToolContext, find_running_call
from ferrule.values.decision import Decision
from ferrule.values.event import emit
from ferrule.values.frozen import JsonObject
from ferrule.values.result import ToolResult, get_original

if TYPE_CHECKING:
    from ferrule.kernel.background import BackgroundJob
    from ferrule.kernel.batch import Batch

log = logging.getLogger("ferrule")
_offer: Callable[..., Toolset | None] = options.make_check(
    "a Toolset, such as runner.tools.only('read_*')", lambda value: isinstance(value, Toolset), none=None
)
_waits: Callable[..., Waits] = options.make_check("Waits(slot=…)", lambda value: isinstance(value, Waits))
_sizes: Callable[..., Sizes] = options.make_check("Sizes(output=…)", lambda value: isinstance(value, Sizes))
_turn, _seen_by = options.check_label, options.check_observers
_OF_RUN: dict[str, Any] = {"timeout": check_seconds, "offered": _offer, "observers": _seen_by, "turn": _turn}
_REPLACEABLE: dict[str, Any] = {
    "approve": options.check_approver,
    "clock": options.check_clock,
    "journal": options.check_journal,
    "observers": _seen_by,
}
EXPOSED: tuple[type[BaseException], ...] = (ValueError, LookupError, OSError)
_ASKERS = 32  # open questions to an approver that is a plain function, where `concurrency` says nothing


class CallOptions(RunOptions, total=False):
    """The options of `run`. In its signature, each of them would cost every call 150 instructions."""

    offered: Toolset | None
    observers: Iterable[Observer]
    turn: str | None


class Runner:
    """A toolset with guards and middleware: it takes calls and returns results. See docs/start/first-tool.md.

    A runner without guards runs every tool that you gave it. It runs calls on one event loop at a time, and moves to
    another loop when it is idle.

    Args:
        tools: A toolset, or a list of tools in any form.
        guards: Guards for every call. They are asked before the tool's own.
        around: Middleware around the call as the model made it, the first outermost.
        inside: Middleware around the run of the handler, within its deadline.
        approve: Answers an "ask"; without it, an ask is denied. A blocking function runs in a thread of its own. At
            most `concurrency` questions are open at once (32 without a limit); the others wait.
        observers: See every event. They cannot change or break a call.
        journal: Records calls, so that a call that changes something runs at most once: `Journal.open("calls.db")`. See
            docs/journal.md.
        deps: The default for `context.deps`. Mounted tools keep the one of their own runner.
        secrets: The default for `context.secrets`, likewise.
        concurrency: Calls that run at once; `None` for no limit.
        per_principal: Calls of one principal that run at once; `None` for no limit.
        limits: Shares these two limits, the limits of tools and their keys with other programs:
            `ferrule.stores.share_limits(…)`. See docs/limits.md#among-several-programs.
        timeout: Seconds that a call may take once it has its slot, unless the call or its tool sets another limit.
        idle_timeout: Seconds that a call may take without progress, unless its tool sets another limit. Progress
            extends it, up to `timeout`. See docs/long-work.md#an-idle-deadline.
        waits: Seconds that it waits for a slot, for a cancelled handler, when it is left, and for a person's answer:
            `Waits(slot=60)`.
        sizes: Sizes of arguments and results: `Sizes(output=100_000)`.
        resume_key: Seals the records of suspended calls: at least 32 bytes, or a list of such keys. The first signs,
            all verify. Without it the key is random, and only this runner and its replacements can resume.
        expose: Exception types whose text a model may read; any other shows its type only.
        clock: The clock of deadlines, waits and expiries, and of middleware without one, such as a
            `ferrule.testing.ManualClock`.

    Raises:
        DefinitionError: The settings do not fit together; the error says what would be right.
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
        waits: Waits = WAITS,
        sizes: Sizes = SIZES,
        resume_key: bytes | Sequence[bytes] | None = None,
        expose: tuple[type[BaseException], ...] = EXPOSED,
        clock: Clock | None = None,
    ) -> None:
        toolset = tools if isinstance(tools, Toolset) else Toolset(tools)
        limit, share = check_count("concurrency", concurrency), check_count("per_principal", per_principal)
        settings = Settings(
            guards=options.check_guards("guards", guards),
            around=options.check_middleware("around", around),
            inside=options.check_middleware("inside", inside),
            limiter=None if limit is None else Limiter(limit, "runner" if limits else None),
            principal_limits=None if share is None else PrincipalLimits(share, named=limits is not None),
            limits=options.check_limits("limits", limits),
            deps=deps,
            secrets=options.check_secrets("secrets", secrets),
            timeout=check_seconds("timeout", timeout),
            idle_timeout=check_seconds("idle_timeout", idle_timeout),
            expose=options.check_exceptions("expose", expose) or (),
            sizes=_sizes("sizes", sizes),
        )
        clock = options.check_clock("clock", clock) or MONOTONIC
        state = RunnerState(
            settings=settings,
            tools=toolset,
            observers=_seen_by("observers", observers),
            approve=options.check_approver("approve", approve),
            journal=options.check_journal("journal", journal),
            waits=_waits("waits", waits),
            questions=Limiter(limit or _ASKERS),
            resume_keys=options.check_resume_keys(resume_key),
            receive=receive,
            clock=clock,
            resumed_records=ResumedRecords(clock),
        )
        self._set_up(state)

    def _set_up(self, state: RunnerState) -> None:
        self._state = state
        self._background_loop = BackgroundLoop(self)
        mounted: dict[object, Tool] = {}
        for tool in state.tools:
            if (other := mounted.setdefault(tool.mounts or tool, tool)) is not tool:
                raise DefinitionError(
                    f"{other.name!r} and {tool.name!r} are one tool of a runner that is mounted twice, and what calls "
                    "it by name could mean either: mount two runners, each once"
                )
            plan = state.compile(tool)
            state.plans[tool.name] = state.plans[tool.wire_name] = plan
        guards = [guard for plan in state.plans.values() for _, guard in plan.guards]
        for part in {id(one): one for one in (*guards, *state.own_observers)}.values():
            if callable(check_runner := getattr(part, "check_runner", None)):
                check_runner(self)
        if state.journal is not None:
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
        clock: Clock | None = None,
        sizes: Sizes | None = None,
    ) -> Runner:
        """Return a runner with the same settings except for those given.

        Both share limits, keys and the records that were resumed. Running calls go on, and leaving this runner leaves
        the new one as well.

        Raises:
            DefinitionError: The settings do not fit together.
        """
        given = {"approve": approve, "journal": journal, "observers": observers, "clock": clock}
        changed: dict[str, Any] = {key: _REPLACEABLE[key](key, one) for key, one in given.items() if one is not None}
        if tools is not None:
            changed["tools"] = tools if isinstance(tools, Toolset) else Toolset(tools)
        settings = self._state.settings
        if guards is not None:
            settings = replace(settings, guards=options.check_guards("guards", guards))
        if inside is not None:
            settings = replace(settings, inside=options.check_middleware("inside", inside))
        if sizes is not None:
            settings = replace(settings, sizes=_sizes("sizes", sizes))
        state = self._state.copy_with(settings=settings, **changed)
        made = object.__new__(Runner)
        made._set_up(state)
        return made

    def report_refused_client(self, reason: str, address: str) -> None:
        """Emit `client:refused`. The journal does not record it, because anybody can send such requests without end."""
        facts = {"reason": reason, "address": address}
        emit(self._state.own_observers, "client:refused", ToolCall("", ""), facts, NO_CONTEXT.fields)

    @property
    def tools(self) -> Toolset:
        """The tools of this runner."""
        return self._state.tools

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The guards of this runner, without those of its tools."""
        return self._state.settings.guards

    @property
    def around(self) -> tuple[Middleware, ...]:
        """The middleware around the calls of this runner, the first outermost, without that of its tools."""
        return self._state.settings.around

    @property
    def inside(self) -> tuple[Middleware, ...]:
        """The middleware around the runs of this runner, the first outermost, without that of its tools."""
        return self._state.settings.inside

    @property
    def sizes(self) -> Sizes:
        """The sizes of arguments and results."""
        return self._state.settings.sizes

    @property
    def approve(self) -> Approver | None:
        """The approver, which answers an "ask"."""
        return self._state.approve

    @property
    def journal(self) -> Journal | None:
        """The journal of its calls."""
        return self._state.journal

    @property
    def observers(self) -> tuple[Observer, ...]:
        """The observers of every event."""
        return self._state.own_observers

    @property
    def left_running(self) -> int:
        """Number of handlers that outlived their deadline and still run."""
        return len(self._state.abandoned)

    @property
    def waiting(self) -> int:
        """Number of calls that wait for a slot or a key."""
        return len(self._state.waiting)

    @property
    def jobs(self) -> tuple[BackgroundJob, ...]:
        """The background jobs: all that run, and the newest that have ended, a thousand in all."""
        return tuple(self._state.jobs.values())

    async def find_job(self, ticket: str, context: ToolContext[Any] | None = None) -> BackgroundJob | None:
        """Return the background job with that ticket, also one of another process that shares the journal.

        Return `None` if there is none, or if it belongs to another principal or session than the context. See
        docs/long-work.md#in-the-background.

        Raises:
            JournalError: The journal cannot be read.
        """
        return await self._state.find_job((context or NO_CONTEXT).fields, ticket)

    # -- run ----------------------------------------------------------------------------------------------------------

    def run(
        self,
        call: ToolCall | str,
        given: JsonObject | str | ToolContext[Any] | None = None,
        /,
        context: ToolContext[Any] | None = None,
        **options: Unpack[CallOptions],
    ) -> Coro[ToolResult]:
        """Run one call: `await run(call, context)` or `await run("name", {...}, context)`. Return its result.

        You can also give parts of the context by name: `run("name", {...}, deps=…, principal=…, session=…)`. They
        override the context, and the context overrides the runner's `deps` and `secrets`.

        `run` raises nothing that a model or a tool caused. A cancellation from outside cancels the call. `observers`
        see the events of this call only. Only tools in `offered` run, such as `runner.tools.only("read_*")`; a call of
        any other is `not_found`. See docs/selection.md#in-the-loop.

        Raises:
            DefinitionError: The call, the context or an option is not valid.
            RuntimeError: The runner is busy on another loop.
        """
        if not isinstance(call, ToolCall):
            if not isinstance(call, str):
                raise _no_call("run", call)
            call = ToolCall(new_id(), call, given)  # type: ignore[arg-type]
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
            context = build_context(context, options, "run('name', {…}, context, deps=…)", tuple(_OF_RUN))
        return receive(self._state, call, context.fields, origin)

    def run_sync(
        self,
        call: ToolCall | str,
        given: JsonObject | str | ToolContext[Any] | None = None,
        /,
        context: ToolContext[Any] | None = None,
        **options: Unpack[CallOptions],
    ) -> ToolResult:
        """Run one call from a program without a loop, and return its result.

        The call runs on a loop in a thread of the runner's own, or on the loop where the runner is busy.

        Raises:
            RuntimeError: This thread runs that loop (`await runner.run(…)` here), or the loop ended before the call.
        """
        return run_on_loop(self.loop_for_sync(), lambda: self.run(call, given, context, **options))

    def run_all_sync(
        self,
        calls: Iterable[ToolCall],
        context: ToolContext[Any] | None = None,
        *,
        offered: Toolset | None = None,
        turn: str | None = None,
        **given: Unpack[ContextOptions],
    ) -> list[ToolResult]:
        """Run several calls from a program without a loop. See `run_sync`."""
        coroutine = partial(self.run_all, calls, context, offered=offered, turn=turn, **given)
        return run_on_loop(self.loop_for_sync(), coroutine)

    def loop_for_sync(self) -> asyncio.AbstractEventLoop:
        """Return the loop for `run_sync`: the one where calls run already, or the runner's own."""
        return self._state.busy_loop or self._background_loop.get()

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
        """Run the calls of one turn: `await runner.run_all(calls, principal="ann")`. Return results in call order.

        Calls that may run in parallel do. The others are barriers; `resources` narrow that to calls that share a key.
        Only tools in `offered` run, as in `run`.
        """
        return await self.batch(calls, context, offered=offered, turn=turn, **given)

    def batch(
        self,
        calls: Iterable[ToolCall],
        context: ToolContext[Any] | None = None,
        *,
        observers: Iterable[Observer] = (),
        offered: Toolset | None = None,
        turn: str | None = None,
        **given: Unpack[ContextOptions],
    ) -> Batch:
        """Return a handle on the calls of one turn: await it, or iterate over the results as they come.

        The calls begin at once, in the order of `run_all`. The handle has `.results`, complete at any time, and
        `.cancel()`. For thousands of independent calls see `ferrule.loop.run_many`.

        Args:
            observers: See the events of these calls only.
            offered: The tools that the model was offered, as in `run`.
            turn: The turn of the conversation, if call ids may repeat in another turn; see docs/journal.md.

        Raises:
            RuntimeError: No event loop runs, or the runner is busy on another one.
        """
        fields = build_context(context, given, "batch", ("observers", "offered", "turn")).fields
        given_calls: Any = calls
        listed: list[Any] = list(calls) if isinstance(given_calls, Iterable) else [None]
        if not all(isinstance(call, ToolCall) for call in listed):
            raise DefinitionError(
                f"a batch takes a list of calls, such as [ToolCall('', name, {{}})]; not {calls!r}. For an async "
                "iterable, or thousands of calls, there is ferrule.loop.run_many"
            )
        offered = _offer("offered", offered)
        seen_by = _seen_by("observers", observers)
        from ferrule.kernel.batch import Batch

        return Batch(self._state, listed, fields, seen_by, offered, _turn("turn", turn)).begin()

    # -- decide, resume -----------------------------------------------------------------------------------------------

    async def decide(
        self, call: ToolCall, context: ToolContext[Any] | None = None, **given: Unpack[ContextOptions]
    ) -> Decision:
        """Return the decision of the guards without running anything. An unknown or invalid call is denied.

        If they ask, and the approver has `async foresee(call, decision, context)`, its decision is returned: the answer
        that the approver would give without asking a person.
        """
        try:
            state = self._validate("decide", call, context, given)
        except Rejected as rejection:
            return Decision("deny", rejection.error)
        plan, validated = state.plan, state.call
        decision = await judge(plan, state, find_verdict(plan.guards, state))
        if decision.kind == "ask":
            decision = await foresee(plan, state, decision)
        state.task = None
        if decision.kind != "allow":
            return decision
        if plan.hidden and plan.parameters.find_missing_hidden(state.call.arguments):
            return Decision("deny", VALUE_MISSING)
        return decision if state.call is validated else replace(decision, arguments=state.redacted_call.arguments)

    async def explain(
        self, call: ToolCall, context: ToolContext[Any] | None = None, **given: Unpack[ContextOptions]
    ) -> list[Decision]:
        """Return the decision of each guard about the call as it was sent, with reason and `rule`, the runner's first.

        An unknown or invalid call gives one deny. `decide` returns the decision of all guards together.
        """
        try:
            state = self._validate("explain", call, context, given)
        except Rejected as rejection:
            return [Decision("deny", rejection.error)]
        decisions = await explain(state.plan, state)
        state.task = None
        return decisions

    def _validate(self, who: str, call: ToolCall, context: ToolContext[Any] | None, given: ContextOptions) -> LiveCall:
        """Return the state of a validated call.

        Raises:
            Rejected: No guard would see the call.
        """
        if not isinstance(call, ToolCall):
            raise _no_call(who, call)
        fields = build_context(context, given, who).fields
        plan = find_plan(self._state, call.name)
        if call.problem is not None:
            raise Rejected("denied", call.problem)
        if plan is None:
            raise Rejected("denied", unknown_tool(self._state, call.name).error)
        named = call if call.name == plan.name else call.replace(name=plan.name)
        current: object = find_running_call()
        parent = current if isinstance(current, LiveCall) else None
        state = LiveCall(plan, fields, call, named, parent)
        try:
            validate(plan, named, state, judged=True)
        except Rejected as rejection:
            raise Rejected("denied", redact(state, rejection.error)) from None
        return state

    def is_sealed(self, record: ToolResult | JsonObject) -> bool:
        """Return whether this runner, or one with its `resume_key`, has sealed the record of a suspended call.

        Raises:
            DefinitionError: It is no record of a suspended call.
        """
        return open_suspended_record(record, self._state.resume_keys, False, None) is not None

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
        """Resume a suspended call with a person's answer, once. Return its result.

        A record that was changed, or that no key of this runner has sealed, is `invalid`, and nothing in it is used. A
        record that was resumed before is `invalid` too, unless the journal has the outcome: then you get that, with
        `metadata["resumed_already"]`. Only the tools that were offered with the call may run.

        Args:
            record: The suspended result, its `.pending` or its `.record()`, perhaps from another process.
            answer: `allow(…)` or `True` runs the call, `ask(…)` suspends it again, `deny(…)` or `False` denies it. For
                deferred work (`pending["kind"]` is `"work"`): the `ToolResult` of the work, which ends it; `True`,
                which lets the handler look; or `False`, which gives it up. See
                docs/long-work.md#work-that-ends-elsewhere.
            context: For `deps` and `secrets`, which no record holds. Session, principal, working directory and metadata
                come from the record.
            by: The name of the person, for the event and the record of the result.
            deps: Overrides the context's `deps`.
            observers: See the events of this call only.

        Raises:
            DefinitionError: It is no record of a suspended call, or the answer does not fit it.
        """
        if by is not None and not isinstance(by, str):
            raise DefinitionError(f"resume(by=…) is the name of who answers, not {type(by).__name__}")
        resumed = open_suspended_record(record, self._state.resume_keys, answer, by and clean_text(by))
        if resumed is None:
            log.warning("a record was not resumed: %s", NOT_SEALED)
            return ToolResult(None, f"{NOT_SEALED} {NOTHING_RUN}", status="invalid", executed=False)
        given = build_context(context, {} if deps is None else {"deps": deps}, "resume")
        fields = given.replace(**resumed.record["context"]).fields
        return await resume_call(self._state, resumed, fields, _seen_by("observers", observers))

    async def resolve(self, ticket: str, answer: ToolResult | bool, by: str | None = None) -> ToolResult:
        """Resume the deferred work that the journal has under this ticket, as a webhook does. Return its result.

        The result is `not_found` unless exactly one such work waits. See docs/long-work.md#work-that-ends-elsewhere.

        Raises:
            DefinitionError: The runner has no journal.
            JournalError: The journal cannot be read.
        """
        from ferrule.kernel.recovery import find_deferred_record

        if (record := await find_deferred_record(self._state, ticket)) is None:
            text = f"No deferred work waits under the ticket {ticket!r}, or more than one does. {NOTHING_RUN}"
            return ToolResult(None, text, status="not_found", executed=False)
        return await self.resume(record, answer, by=by)

    async def recover(self) -> list[ToolResult]:
        """Settle the calls that a crash cut off, look at deferred work that is due, and return the results.

        A call that the tool's `reconcile` does not know is `unknown`; so is deferred work that has expired. A call that
        may run again is left alone, and runs when it comes again. See docs/journal.md.

        Raises:
            DefinitionError: The runner has no journal.
            JournalError: The journal cannot be read or written.
        """
        from ferrule.kernel.recovery import recover

        return await recover(self._state)

    def as_tools(self) -> list[Tool]:
        """Return the tools to mount in another runner. They bring this runner's guards, middleware and limits along.

        Each call takes one path, with the guards of both runners and the outer runner's approver. Names in
        `context.run` are looked up in this runner; if the outer runner changed that tool, its version is used. A guard
        or a middleware calls the tools of its own runner, the approver those of the outer one. Mount a runner only once
        in another; for two tenants, make two.
        """
        every = (*self.tools, *self.tools.quarantined)
        return [tool.with_mount(Mount(self._state.settings, tool.name, self.tools)) for tool in every]

    # -- leave --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Runner:
        self._state.enter()
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Take no new calls, and wait at most `drain` seconds for running calls and batches. Then cancel them.

        Replacements are left together with it. Nested calls of running calls still run. A handler that does not end
        within `grace` after its cancellation is left running.

        Raises:
            RuntimeError: A call of the runner leaves it, or its calls run on another event loop.
        """
        await self._state.leave()


def _no_call(who: str, given: object) -> DefinitionError:
    return DefinitionError(f"{who}(ToolCall('', 'name', {{…}})) is right, or run('name', {{…}}); not {given!r}")


# -- direct calls: `await some_tool(…)` --------------------------------------------------------------------------------

_ERRORS: dict[str, type[ToolError]] = {
    "invalid": ValidationError,
    "denied": GuardError,
    "suspended": GuardError,
    "timeout": ToolTimeoutError,
    "failed": HandlerError,
}


async def call_directly(tool: Tool, arguments: dict[str, object]) -> Any:
    """Run `await some_tool(**arguments)` on the path of every call, with the tool's own guards and nobody to ask.

    Raises:
        ToolError: The call did not succeed.
        Exception: The handler raised it.
    """
    runner: Runner | None = getattr(tool.in_this_thread, "runner", None)  # a runner runs one loop at a time
    if runner is None:
        runner = tool.in_this_thread.runner = Runner([_run_in_foreground(tool)], concurrency=None, expose=(Exception,))
    result = await runner.run(ToolCall(new_id(), tool.name, arguments))
    if result.success:
        return get_original(result)[0]
    # With hidden values the exception itself could show them; the log has it with stars.
    raise error_of(result) from None if tool.handling.parameters.hidden else result.exception


def error_of(result: ToolResult) -> ToolError:
    """Return the exception for a result without success."""
    return _ERRORS.get(result.status, ToolError)(result.error or "", result=result)


def run_directly(tool: Tool, arguments: Any, context: ToolContext | None, options: RunOptions) -> Coro[ToolResult]:
    """Run `await some_tool.run({...})` on the same path, and return its result."""
    build_context(context, options, "some_tool.run({…}, context, deps=…)", ("timeout",))
    return Runner([_run_in_foreground(tool)], concurrency=None).run(tool.name, arguments, context, **options)


def _run_in_foreground(tool: Tool) -> Tool:
    """Return the tool without `background`: a direct call waits for it."""
    return tool.replace(background=False) if tool.background else tool
