"""One tool, compiled once for one runner: what is not used costs nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

from ferrule.arguments.parameters import Invalid
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.executors import Executor
from ferrule.executors.in_loop import InChunks, InLoop
from ferrule.executors.threads import InThread
from ferrule.pipeline.guards import ask_always, guard_function
from ferrule.pipeline.hooks import split_chain
from ferrule.scheduling.limiter import Limiter, PrincipalLimits
from ferrule.types import Coro, Guard, GuardFunction, Leases, Middleware, Next
from ferrule.values.call import ToolCall
from ferrule.values.context import UNSET, ContextFields, ToolContext, bound_context
from ferrule.values.frozen import JsonObject
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.pipeline.runner_state import RunnerState

T = TypeVar("T")
AsksT = TypeVar("AsksT", bound=GuardFunction | Middleware)
EndOf: TypeAlias = Callable[["Plan", ToolCall, ToolContext], Coro[ToolResult]]
"""What a chain of middleware goes round, for the plan that it belongs to."""


@dataclass(eq=False, kw_only=True)
class Settings:
    """What a runner gives to each of its tools, and what a tool that is mounted in another runner brings along.

    Attributes:
        disabled: Why tools are turned off, by name.
        runners: Those that use these settings, and are told when `disabled` changes.
    """

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
    max_output: int
    max_media: int
    max_input: int | None
    disabled: dict[str, str] = field(default_factory=dict)
    runners: WeakSet[RunnerState] = field(default_factory=WeakSet)

    def tell_runners(self) -> None:
        """Tell all runners that tools were turned off."""
        for runner in list(self.runners):
            runner.tell_disabled()


class Mount(NamedTuple):
    """Where a mounted tool comes from: its runner's settings, its name there, and the tools beside it."""

    settings: Settings
    name: str
    tools: Toolset


class Plan:
    """How one runner runs one tool.

    Attributes:
        runner: What its calls share with all others.
        run: The executor's.
        dumped: Whether what is judged is written from the validated values.
        quick: Strict validation of a text as it is; raises anything where repairs may be needed.
        guards: Each guard as a function, with the guard itself, the runner's first.
        around, inside: The chain of middleware, the first the outermost; `None` where there is none.
        before_hooks, handler_hooks: What hooks do next to decode, and next to the handler.
        limiters: The slots that a call takes, in the order in which it takes them: the tool's before the runners', the
            thread or process last, so that who waits for a busy tool or runner holds nothing that others want.
        principal_limits: The limits for each principal, where there are any.
        leases: Where its named limits, and its keys, hold among all programs; and `place`, which limit is the last.
        limits_vary: Whether a call takes more than the slots of `limiters`: its principal's, keys, or a lease.
        locks: Whether calls lock the keys of `resources`.
        hidden: Whether it has parameters that no model fills.
        has_middleware: Whether a middleware may put another result in the place of the kernel's.
        max_input: The characters of JSON that are read at most; `None` for no limit.
        deps, secrets: What contexts have where callers give none; `None` for nothing.
        judged: Whether anybody reads the judged call, or what runs is made of it.
        fingerprint: What the tool is, for the journal.
        work: How its work is run, where that is a call of its own in the background.
        changes: Whether it may change things; `journaled` whether its calls are kept in the journal for that.
    """

    # What few plans have is kept at the class: more than thirty attributes of its own make each of them slow to read.
    leases: Leases | None = None
    place: Limiter | None = None
    work: Plan | None = None
    fingerprint: str = ""
    idle_timeout: float | None = None

    def __init__(self, tool: Tool, runner: RunnerState, settings: Settings, core: EndOf, handle: EndOf) -> None:
        handler = tool.handling
        mounts: tuple[Mount, ...] = tool.mounts
        outer_first = [settings, *(mount.settings for mount in mounts)]
        for one in outer_first:
            one.runners.add(runner)
        inner_first = outer_first[::-1]
        self._disabled = (
            (settings.disabled, tool.name),
            *((mount.settings.disabled, mount.name) for mount in mounts),
        )
        self.runner = runner
        self.tool = tool
        self.name = tool.name
        self.parameters = handler.parameters
        self.quick = handler.parameters.quick
        self.output = tool.output
        self.changes = tool.read_only is not True
        self.locks = tool.resources is not None
        executor = executor_for(tool)
        self.run: Callable[..., Awaitable[object]] = executor.run
        owners: tuple[Settings | Tool, ...] = (*outer_first, tool)
        asked = (ask_always(tool),) if tool.ask else ()
        self.guards: tuple[tuple[GuardFunction, Guard], ...] = tuple(
            (_at_level(guard_function(guard, tool), level, tool), guard)
            for level, owner in enumerate(owners)
            for guard in (*owner.guards, *(asked if owner is tool else ()))
        )
        limiters = [tool.limiter, *(one.limiter for one in inner_first), executor.limiter]
        self.limiters: tuple[Limiter, ...] = tuple(dict.fromkeys(filter(None, limiters)))
        self.principal_limits = tuple(one.principal_limits for one in inner_first if one.principal_limits is not None)
        if settings.limits is not None:
            self.leases, self.place = settings.limits, executor.limiter
        if any(mount.settings.limits is not None for mount in mounts):
            raise DefinitionError(
                f"{tool.name!r} is mounted from a runner with limits=: leave them out there, and give them to the "
                "runner that mounts it, whose limits, keys and tools hold among all programs then"
            )
        self.limits_vary = self.locks or bool(self.principal_limits) or self.leases is not None
        self.timeout: float | None = _first(tool.timeout, *(one.timeout for one in inner_first))
        if (idle := _first(tool.idle_timeout, *(one.idle_timeout for one in inner_first))) is not None:
            self.idle_timeout = idle
        self.expose = _first(tool.expose, *(one.expose for one in inner_first)) or ()
        self.max_output = min(one.max_output for one in outer_first)
        self.max_media = min(one.max_media for one in outer_first)
        longest = [one.max_input for one in outer_first if one.max_input is not None]
        self.max_input = tool.max_input if tool.max_input is not UNSET else min(longest, default=None)
        self.deps = _first(*(one.deps for one in inner_first))
        self.secrets = next((one.secrets for one in inner_first if one.secrets), None)
        self.hidden = bool(handler.parameters.hidden)
        around = [_at_level(one, level, tool) for level, owner in enumerate(owners) for one in owner.around]
        inside = [_at_level(one, level, tool) for level, owner in enumerate(owners) for one in owner.inside]
        self.has_middleware = bool(around or inside)
        chain, self.before_hooks = split_chain(around, "before")
        self.around = _linked(chain, partial(core, self))
        chain, hooks = split_chain(inside, "after")
        self.handler_hooks = hooks[::-1]
        self.inside = _linked(chain, partial(handle, self))
        has_journal = runner.journal is not None
        self.journaled = has_journal and self.changes
        if self.journaled:
            self.fingerprint = tool.fingerprint
        reads = bool(self.guards) or self.locks or self.hidden or handler.by_keywords is None or self.has_middleware
        isolated = tool.isolation is not None  # the process gets the judged text
        self.judged = reads or isolated or has_journal or callable(tool.parallel) or not handler.parameters.exact

    def check_input(self, raw: str | JsonObject | None) -> None:
        """Refuse arguments that are too long to be read.

        Raises:
            Invalid: with the text for the model.
        """
        try:
            length = len(raw if isinstance(raw, str) else self.parameters.write(raw))
        except Exception:  # told by what reads them
            return
        if self.max_input is not None and length > self.max_input:
            read = f"have {length:,} characters, and at most {self.max_input:,} are read"
            raise Invalid(f"The arguments for {self.name} {read}. Nothing was run: send less in one call.")

    def fields(self, given: ContextFields) -> ContextFields:
        """What the context of a call has."""
        if self.deps is not None and given.deps is None:
            given = given._replace(deps=self.deps)
        return given if given.secrets or self.secrets is None else given._replace(secrets=self.secrets)

    @property
    def is_listed(self) -> bool:
        """Whether its runner has the tool itself, and not only a tool that is mounted there calls it."""
        found = self.runner.plans.get(self.name)
        return found is self or (found is not None and found.work is self)

    @property
    def disabled(self) -> str | None:
        """Why its calls are denied at present, as its own runner says, or one that it is mounted from; `None` where
        they are not."""
        for reasons, name in self._disabled:
            if name in reasons:
                return reasons.get(name)
        return None


def executor_for(tool: Tool) -> Executor:
    """Where the tool's handler runs.

    Raises:
        DefinitionError: where it cannot run there.
    """
    handler = tool.handling
    if isinstance(tool.isolation, str):
        from ferrule.isolation.executor import InProcess  # 20 ms, for the programs that need it

        return InProcess(tool)
    if tool.isolation is not None:
        made: object = tool.isolation.executor(tool)
        if not isinstance(made, Executor):
            raise DefinitionError(f"isolation={tool.isolation!r} must give an Executor for {tool.name!r}, not {made!r}")
        return made
    if handler.streams:
        return InChunks(handler, text=tool.output.exact is str)
    return InLoop(handler) if handler.is_async else InThread(handler, tool.output.shape)


def _at_level(function: AsksT, level: int, tool: Tool) -> AsksT:
    """A guard or a middleware that calls the tools of the runner that it was given to: of a tool that is not mounted
    itself, of another one with a context that says at which level that runner is."""
    if not tool.mounts:
        return function

    def at_level(call: ToolCall, context: ToolContext, *following: Next) -> Any:
        return function(call, bound_context(context.fields, context.running, level), *following)

    return at_level  # type: ignore[return-value]


def _first(*values: T | None) -> T | None:
    """The first that is not `None`."""
    return next((value for value in values if value is not None), None)


def _linked(middleware: Sequence[Middleware], innermost: Next) -> Next | None:
    """One function that goes through all of `middleware`, the first outermost, to `innermost`; `None` for none."""
    link = innermost
    for one in reversed(middleware):
        link = _link(one, link)
    return link if middleware else None


def _link(middleware: Middleware, following: Next) -> Next:
    return lambda call, context: middleware(call, context, following)
