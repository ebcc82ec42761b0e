"""Compile a tool for a runner, once, so that unused features cost nothing in a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from ferrule.arguments.parameters import Invalid
from ferrule.definition.bounds import Sizes
from ferrule.definition.guard_forms import guard_function, make_asking_guard
from ferrule.definition.hooks import split_chain
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.executors import Executor
from ferrule.executors.event_loop import LoopExecutor, StreamExecutor
from ferrule.executors.threads import ThreadExecutor
from ferrule.scheduling.limiter import Limiter, PrincipalLimits
from ferrule.types import Coro, Guard, GuardFunction, Leases, Middleware, Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ContextFields, ToolContext, make_context
from ferrule.values.frozen import JsonObject
from ferrule.values.json_text import format_arguments
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.kernel.runner_state import RunnerState

T = TypeVar("T")
AsksT = TypeVar("AsksT", bound=GuardFunction | Middleware)
Innermost: TypeAlias = Callable[["Plan", ToolCall, ToolContext], Coro[ToolResult]]
"""The innermost function of a chain of middleware, for the plan that it belongs to."""


@dataclass(eq=False, repr=False, kw_only=True)
class Settings:
    """The settings that a runner gives to each of its tools. A mounted tool brings those of its own runner along."""

    guards: tuple[Guard, ...]
    around: tuple[Middleware, ...]
    inside: tuple[Middleware, ...]
    limiter: Limiter | None
    principal_limits: PrincipalLimits | None
    limits: Leases | None
    deps: object
    secrets: JsonObject
    timeout: float | None
    idle_timeout: float | None
    expose: tuple[type[BaseException], ...]
    sizes: Sizes


class Mount(NamedTuple):
    """The runner that a mounted tool comes from: its settings, the tool's name there, and its tools."""

    settings: Settings
    name: str
    tools: Toolset


class Plan:
    """A tool compiled for one runner.

    Attributes:
        runner: The state shared by all calls of the runner.
        run: Runs the handler, by its executor.
        quick: Validates a text strictly. Raises anything if the text may need repairs.
        guards: Each guard as a function, with the guard itself; the runner's first.
        around, inside: The chain of middleware as one function, the first outermost; None if there is none.
        before_hook, after_hook: The hook next to `validate`, and the hook next to the handler, or None.
        limiters: The limits of which a call takes a slot, in this order: the tool's, then the runners', the executor's
            last. So a call waits for its tool before it takes a slot of the runner. `acquire` inserts the principal's
            limit after the tool's.
        principal_limits: The limits for each principal.
        leases: Shares named limits and keys with other programs.
        executor_limiter: The last of `limiters`, if `leases` are used.
        has_call_limits: Whether a call takes more than `limiters`: a slot of its principal, keys, or a lease.
        has_resources: Whether calls lock the keys of `resources`.
        hidden: Whether the tool has parameters that no model fills.
        has_middleware: Whether middleware may replace the kernel's result.
        max_input: Characters of JSON that are read at most; None for no limit.
        deps, secrets: Defaults for the context; None for nothing.
        needs_judged_arguments: Whether somebody reads the judged arguments, or the handler's values come from them.
        fingerprint: The tool's fingerprint, for the journal.
        job: For a background tool: the plan of the job itself.
        changes: Whether the tool may change something.
        journaled: Whether its calls are recorded in the journal.
    """

    # Class attributes are defaults that few plans overwrite: an object with over thirty attributes is slow to read.
    leases: Leases | None = None
    executor_limiter: Limiter | None = None
    job: Plan | None = None
    fingerprint: str = ""
    idle_timeout: float | None = None

    def __init__(self, tool: Tool, runner: RunnerState, settings: Settings, core: Innermost, handle: Innermost) -> None:
        handler = tool.handling
        mounts: tuple[Mount, ...] = tool.mounts
        outer_first = [settings, *(mount.settings for mount in mounts)]
        inner_first = outer_first[::-1]
        self.runner = runner
        self.tool = tool
        self.name = tool.name
        self.parameters = handler.parameters
        self.quick = handler.parameters.validate_strictly
        self.output = tool.output
        self.changes = tool.read_only is not True
        self.has_resources = tool.resources is not None
        executor = make_executor(tool)
        self.run: Callable[..., Awaitable[object]] = executor.run
        owners: tuple[Settings | Tool, ...] = (*outer_first, tool)
        asked = (make_asking_guard(tool),) if tool.ask else ()
        self.guards: tuple[tuple[GuardFunction, Guard], ...] = tuple(
            (_bind_to_mount(guard_function(guard, tool), level, tool), guard)
            for level, owner in enumerate(owners)
            for guard in (*owner.guards, *(asked if owner is tool else ()))
        )
        limiters = [tool.limiter, *(one.limiter for one in inner_first), executor.limiter]
        self.limiters: tuple[Limiter, ...] = tuple(dict.fromkeys(filter(None, limiters)))
        self.principal_limits = tuple(one.principal_limits for one in inner_first if one.principal_limits is not None)
        if settings.limits is not None:
            self.leases, self.executor_limiter = settings.limits, executor.limiter
        if any(mount.settings.limits is not None for mount in mounts):
            raise DefinitionError(
                f"{tool.name!r} is mounted from a runner with limits=: leave them out there, and give them to the "
                "runner that mounts it, whose limits, keys and tools hold among all programs then"
            )
        self.has_call_limits = self.has_resources or bool(self.principal_limits) or self.leases is not None
        self.timeout: float | None = _first_set(tool.timeout, *(one.timeout for one in inner_first))
        if (idle := _first_set(tool.idle_timeout, *(one.idle_timeout for one in inner_first))) is not None:
            self.idle_timeout = idle
        self.expose = inner_first[0].expose
        self.max_output = min(one.sizes.output for one in outer_first)
        self.max_media = min(one.sizes.media for one in outer_first)
        longest = [one.sizes.input for one in outer_first if one.sizes.input is not None]
        self.max_input = min(longest, default=None)
        self.deps = _first_set(*(one.deps for one in inner_first))
        self.secrets = next((one.secrets for one in inner_first if one.secrets), None)
        self.hidden = bool(handler.parameters.hidden)
        around = [_bind_to_mount(one, level, tool) for level, owner in enumerate(owners) for one in owner.around]
        inside = [_bind_to_mount(one, level, tool) for level, owner in enumerate(owners) for one in owner.inside]
        self.has_middleware = bool(around or inside)
        chain, self.before_hook = split_chain(around, "before")
        self.around = _build_chain(chain, partial(core, self))
        chain, self.after_hook = split_chain(inside, "after")
        self.inside = _build_chain(chain, partial(handle, self))
        has_journal = runner.journal is not None
        self.journaled = False
        if self.changes or tool.recorded:
            self.record_calls()
        reads = bool(self.guards) or self.has_resources or self.hidden or self.has_middleware or callable(tool.parallel)
        # A worker process gets the text of the judged arguments.
        uses = handler.kwargs_call is None or not handler.parameters.exact or tool.isolation is not None
        self.needs_judged_arguments = reads or uses or has_journal

    def record_calls(self) -> None:
        """Record the calls in the journal, if the runner has one."""
        if self.runner.journal is not None:
            self.journaled, self.fingerprint = True, self.tool.fingerprint

    def check_input(self, raw: str | JsonObject | None) -> None:
        """Check the length of the arguments.

        Raises:
            Invalid: They are too long; with a text for the model.
        """
        try:
            length = len(raw if isinstance(raw, str) else format_arguments(raw))
        except Exception:  # `validate` says what is wrong with them
            return
        if self.max_input is not None and length > self.max_input:
            read = f"have {length:,} characters, and at most {self.max_input:,} are read"
            raise Invalid(f"The arguments for {self.name} {read}. Nothing was run: send less in one call.")

    def fields(self, given: ContextFields) -> ContextFields:
        """Return the context fields of a call, with the runner's defaults."""
        if self.deps is not None and given.deps is None:
            given = replace(given, deps=self.deps)
        return given if given.secrets or self.secrets is None else replace(given, secrets=self.secrets)

    @property
    def is_listed(self) -> bool:
        """Whether the runner lists this tool, instead of only reaching it through a mounted one."""
        found = self.runner.plans.get(self.name)
        return found is self or (found is not None and found.job is self)


def make_executor(tool: Tool) -> Executor:
    """Return the executor of a tool's handler.

    Raises:
        DefinitionError: The handler cannot run there.
    """
    handler = tool.handling
    if isinstance(tool.isolation, str):
        from ferrule.executors.process.executor import ProcessExecutor  # 20 ms, for the programs that need it

        return ProcessExecutor(tool)
    if tool.isolation is not None:
        made: object = tool.isolation.executor(tool)
        if not isinstance(made, Executor):
            raise DefinitionError(f"isolation={tool.isolation!r} must give an Executor for {tool.name!r}, not {made!r}")
        return made
    if handler.streams:
        return StreamExecutor(handler, text=tool.output.is_text)
    return LoopExecutor(handler) if handler.is_async else ThreadExecutor(handler, tool.output.render)


def _bind_to_mount(function: AsksT, level: int, tool: Tool) -> AsksT:
    """For a mounted tool, wrap a guard or middleware so that its context calls the tools of its own runner."""
    if not tool.mounts:
        return function

    def at_level(call: ToolCall, context: ToolContext, *following: Next) -> Any:
        return function(call, make_context(context.fields, context.running_call, level), *following)

    return at_level  # type: ignore[return-value]


def _first_set(*values: T | None) -> T | None:
    """Return the first value that is not None."""
    return next((value for value in values if value is not None), None)


def _build_chain(middleware: Sequence[Middleware], innermost: Next) -> Next | None:
    """Return one function that runs all middleware around `innermost`, the first outermost; None if there is none."""
    link = innermost
    for one in reversed(middleware):
        link = _wrap_next(one, link)
    return link if middleware else None


def _wrap_next(middleware: Middleware, following: Next) -> Next:
    return lambda call, context: middleware(call, context, following)
