"""One tool, compiled once for one runner: what is not used costs nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.pipeline.guards import Judge, judge_of
from ferrule.pipeline.hooks import Ahead, Behind, parted
from ferrule.scheduling.limiter import Limiter, Shares
from ferrule.types import Guard, Middleware, Next
from ferrule.values.context import CallState
from ferrule.values.result import ToolResult


class Owner(Protocol):
    """What a plan needs of its runner."""

    def announce(self, state: CallState, what: Mapping[str, Any]) -> None: ...

    def run_nested(
        self, state: CallState, name: str, arguments: Mapping[str, Any] | str | None
    ) -> Awaitable[ToolResult]: ...

    def remaining(self, deadline: float) -> float: ...

    def look_disabled(self) -> None: ...


class Settings:
    """What a runner gives to each of its tools, and what a tool that is mounted in another runner brings along.

    Attributes:
        off: Why tools are turned off, by name.
        runners: Those that use these settings, and are told when `off` changes.
    """

    __slots__ = ("around", "expose", "guards", "inside", "limiter", "max_output", "off", "runners", "shares", "timeout")

    def __init__(
        self,
        guards: tuple[Guard, ...] = (),
        around: tuple[Middleware, ...] = (),
        inside: tuple[Middleware, ...] = (),
        limiter: Limiter | None = None,
        timeout: float | None = None,
        expose: tuple[type[BaseException], ...] = (),
        max_output: int | None = None,
        shares: Shares | None = None,
    ) -> None:
        self.guards = guards
        self.around = around
        self.inside = inside
        self.limiter = limiter
        self.timeout = timeout
        self.expose = expose
        self.max_output = max_output
        self.shares = shares
        self.off: dict[str, str] = {}
        self.runners: WeakSet[Owner] = WeakSet()

    def changed(self) -> None:
        """Tell all runners that tools were turned off or on."""
        for runner in list(self.runners):
            runner.look_disabled()


class Mount(NamedTuple):
    """Where a mounted tool comes from: its runner's settings, and its name there."""

    settings: Settings
    name: str


class Plan:
    """How one runner runs one tool.

    Attributes:
        judges: Each guard's function with the guard itself, the runner's first.
        around, inside: The chain of middleware, the first the outermost; `None` where there is none.
        ahead, behind: What halves do next to decode; `done` is what they do next to the handler.
        limiters: The slots that a call takes, in the order in which it takes them: the tool's before the runners', so
            that who waits for a busy tool holds nothing that others want.
        shares: The limits for each principal, where there are any.
        careful: Whether slots are taken one by one, with a look at who holds what.
        hidden: Whether it has parameters that no model fills.
        seals: Whether a middleware may have put another result in the place of the kernel's.
        straight: Whether a call may take the runner's short way.
        disabled: Why calls are denied at present; `None` where they are not.
        plain: Whether the handler is an async function of just the keyword arguments.
        execute: How the handler is run where it is not plain: in the loop, in a thread, in a process.
        isolated: What a worker process is told of the tool, where it runs in one.
        judged: Whether anybody reads the judged call.
        timer: Wakes those who wait for its handler at their deadlines.
    """

    __slots__ = (
        "_owner",
        "_switches",
        "ahead",
        "around",
        "behind",
        "call",
        "careful",
        "changes",
        "direct",
        "disabled",
        "done",
        "execute",
        "expose",
        "hidden",
        "inside",
        "is_async",
        "isolated",
        "judged",
        "judges",
        "limiters",
        "locks",
        "max_output",
        "name",
        "output",
        "parameters",
        "plain",
        "quick",
        "seals",
        "shares",
        "straight",
        "streams",
        "timeout",
        "timer",
        "tool",
    )

    def __init__(self, tool: Tool, owner: Owner, settings: Settings) -> None:
        handling = tool._handling
        mounts: tuple[Mount, ...] = tool._mounted or ()
        mounted = [mount.settings for mount in mounts]
        self._switches = (Mount(settings, tool.name), *mounts)
        self._owner = owner
        self.tool = tool
        self.name = tool.name
        self.parameters = handling.parameters
        self.quick = handling.parameters.quick
        self.direct = handling.direct
        self.call = handling.call
        self.is_async = handling.is_async
        self.streams = handling.streams
        self.plain = handling.is_async and handling.direct is not None and tool.isolation is None
        self.isolated: Any = None
        self.timer: Any = None
        self.execute: Callable[[Plan, Any, CallState], Awaitable[Any]]
        self.output = tool._output
        self.changes = tool.read_only is not True
        self.locks = tool.resources is not None
        guards = (*settings.guards, *(g for s in mounted for g in s.guards), *tool.guards)
        self.judges: tuple[tuple[Judge, Guard], ...] = tuple((judge_of(guard, tool), guard) for guard in guards)
        self.limiters: tuple[Limiter, ...] = tuple(
            dict.fromkeys(
                [*tool._limiters, *(s.limiter for s in reversed(mounted) if s.limiter), *_some(settings.limiter)]
            )
        )
        inner_first = [*reversed(mounted), settings]
        self.timeout = _first(tool.timeout, *(s.timeout for s in inner_first))
        self.expose: tuple[type[BaseException], ...] = _first(tool.expose, *(s.expose for s in inner_first)) or ()
        self.max_output = min(m for m in (settings.max_output, *(s.max_output for s in mounted)) if m is not None)
        self.shares: tuple[Shares, ...] = tuple(
            s.shares for s in (*reversed(mounted), settings) if s.shares is not None
        )
        self.careful = self.locks or bool(self.shares)
        self.hidden = bool(handling.parameters.hidden)
        self.seals = False
        self.straight = False
        self.disabled: str | None = None
        self.ahead: tuple[Ahead, ...] = ()
        self.behind: tuple[Behind, ...] = ()
        self.done: tuple[Behind, ...] = ()
        self.around: Next | None = None
        self.inside: Next | None = None
        own_text = tool.isolation is not None  # the process gets the judged text
        reads = bool(self.judges or self.locks or handling.parameters.hidden)
        self.judged = reads or own_text or handling.direct is None

    def chain(self, settings: Settings, enter: Next, handle: Next) -> None:
        """Link the middleware round `enter` (decode and what follows) and round `handle` (the handler)."""
        mounted = [mount.settings for mount in self.tool._mounted or ()]
        around = (*settings.around, *(m for s in mounted for m in s.around), *self.tool.around)
        inside = (*settings.inside, *(m for s in mounted for m in s.inside), *self.tool.inside)
        self.seals = bool(around or inside)
        self.judged = self.judged or bool(inside)
        around, self.ahead, self.behind = parted(around)
        outer, early, self.done = parted(inside)
        if early:  # a change of the arguments there is a mistake, which the end of a chain finds
            outer, self.done = inside, ()
        if around:
            self.around = linked(around, enter)
        if outer:
            self.inside = linked(outer, handle)

    def turned_off(self) -> str | None:
        """Why its calls are denied: what its own runner says, or one that it is mounted from."""
        return next(
            (mount.settings.off[mount.name] for mount in self._switches if mount.name in mount.settings.off), None
        )

    def may_go_straight(self) -> bool:
        """Whether nothing but one limit is configured for an async function of plain arguments."""
        free = not self.seals and self.timeout is None and not self.judged
        return free and self.plain and self.quick is not None and len(self.limiters) <= 1 and not self.careful

    def announce(self, state: CallState, what: Mapping[str, Any]) -> None:
        self._owner.announce(state, what)

    def run_nested(
        self, state: CallState, name: str, arguments: Mapping[str, Any] | str | None
    ) -> Awaitable[ToolResult]:
        return self._owner.run_nested(state, name, arguments)

    def remaining(self, deadline: float) -> float:
        return self._owner.remaining(deadline)


def _some(limiter: Limiter | None) -> tuple[Limiter, ...]:
    return () if limiter is None else (limiter,)


def _first(*values: Any) -> Any:
    """The first that is not `None`."""
    return next((value for value in values if value is not None), None)


def linked(middleware: Iterable[Middleware], innermost: Next) -> Next:
    """One function that goes through all of `middleware`, the first outermost, to `innermost`."""
    link: Next = innermost
    for one in reversed(tuple(middleware)):
        link = _link(one, link)
    return link


def _link(middleware: Middleware, following: Next) -> Next:
    call: Callable[..., Awaitable[ToolResult]] = middleware
    if not callable(call):
        raise DefinitionError(f"{middleware!r} is no middleware: it is not callable")
    return lambda tool_call, context: call(tool_call, context, following)
