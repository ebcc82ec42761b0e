"""`cache(seconds)`: the same question to a tool that only reads is answered once."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeAlias

from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.middleware._counted import By, is_inside, keyed, number, own_time, ticking, whole
from ferrule.scheduling.clock import MONOTONIC, Clock
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.context import CallState, ToolContext
from ferrule.values.result import ToolResult

_Shared: TypeAlias = ToolResult | Literal["again", "alone"]
"""What a call came to; or that another has to run instead of it, or that each has to run by itself."""
_Waiter: TypeAlias = "tuple[asyncio.AbstractEventLoop, asyncio.Future[_Shared]]"
_Key: TypeAlias = tuple[Tool, str, Hashable]
_canonical = json.JSONEncoder(sort_keys=True).encode
_UNCHANGING = frozenset({str, int, float, bool, bytes, type(None)})
_NO_TIME = 0.002  # seconds: a timer may come a little before its time


def cache(seconds: float = 300.0, *, entries: int = 1000, by: By | None = None, clock: Clock = MONOTONIC) -> Cache:
    """A middleware that keeps the successes of tools that only read (`read_only` for this call), for `seconds`.

    An answer is kept for the tool (another version or copy of it is another one), the judged arguments whatever their
    order, and what of the context may change it. Calls for the same at the same time run once, and all get what that
    one came to, a failure too; where it is cancelled or its deadline comes, another of them runs: at once where there
    is a deadline, else when the handler has ended. What comes from the cache or was shared has `metadata["cached"]`
    and was not `executed`; its output is a copy.

    It belongs inside: further out, an answer would go round the guards. Calls of other tools pass. A result with
    `metadata["cache"]` `False` is neither kept nor shared, nor is one that cannot be copied.

    Args:
        seconds: How long an answer is good, from when it was there.
        entries: How many are kept; then the one that was not asked for the longest goes.
        by: What of the context may change an answer. Left out: principal, session, working directory, `deps` and
            `secrets` (these two as the very objects). Else `"principal"`, `"session"`, `"all"` where nothing does;
            several; or a function of call and context that gives the key. Where it raises or gives no key, the call
            fails and nothing is run.
        clock: What tells the time.

    Raises:
        DefinitionError: for parameters that could not work; and from a call, where it does not stand inside.
    """
    return Cache(seconds, entries, by, clock)


class _Flight:
    """A call that runs, and who waits for what it comes to."""

    __slots__ = ("_landed", "_task", "_watched", "leader", "loop", "waiters")

    def __init__(self, leader: CallState, loop: asyncio.AbstractEventLoop) -> None:
        self.leader = leader
        self.loop = loop
        self.waiters: list[_Waiter] = []
        self._landed = False
        self._task = leader.task
        self._watched: dict[asyncio.Future[Any], Callable[..., object]] = {}

    @property
    def given_up(self) -> bool:
        """Whether the leader's result will be another than this comes to, whatever its handler does."""
        leader = self.leader
        if leader.ended or self.loop.is_closed():
            return True
        left = own_time(leader)  # where there is none, all wait until the handler has ended
        return left is not None and (left < _NO_TIME or leader.cancelled_in(self._task))

    def watch(self, give_up: Callable[..., object]) -> None:
        """Call `give_up` once the leader is given up, at its deadline or from outside; on the leader's loop."""
        if self._landed:
            return
        if self.given_up:
            give_up()
            return
        # Who waits for its handler is woken at the deadline, and cancelled where the call is.
        for one in (self._task, self.leader.waiter):
            if one is not None:
                one.add_done_callback(give_up)
                self._watched[one] = give_up

    def land(self, shared: _Shared) -> None:
        """The leader is there: on its loop."""
        self._landed = True
        while self._watched:  # emptied, so that no cycle is left for the collector
            one, give_up = self._watched.popitem()
            one.remove_done_callback(give_up)
        self.tell(shared)

    def tell(self, shared: _Shared) -> None:
        """Tell all who wait."""
        for loop, waiter in self.waiters:
            with suppress(RuntimeError):  # a loop that is closed, and who waited on it with it
                loop.call_soon_threadsafe(_tell, waiter, shared)


class Cache:
    """What `cache` makes."""

    def __init__(self, seconds: float, entries: int, by: By | None, clock: Clock) -> None:
        self._seconds = number("cache(seconds)", seconds)
        self._most = whole("cache(entries)", entries)
        self._scope = _everything if by is None else keyed("cache", by)[0]
        self._time = ticking("cache", clock).time
        self._kept: dict[_Key, tuple[float, ToolResult]] = {}
        self._flights: dict[_Key, _Flight] = {}
        self._lock = threading.Lock()

    async def __call__(self, call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
        state = context._state
        if state is None or not state.plan.tool.trait("read_only", call.arguments):
            return await next(call, context)
        if not is_inside(state):
            raise DefinitionError("cache(…) belongs in `inside`: in `around`, what it keeps would go round the guards")
        # The tool itself stands for its fingerprint, which says nothing of what is fixed in it or of its handler.
        arguments = _canonical(dict(call.arguments))
        key: _Key = (state.plan.tool, arguments, self._scope(call, context))
        shared: _Shared = "again"
        while shared == "again":
            found = self._found(key, state)
            if isinstance(found, _Flight):
                return await self._led(key, found, call, context, next)
            shared = await found if isinstance(found, asyncio.Future) else found
        return await next(call, context) if isinstance(shared, str) else _again(shared)

    def _found(self, key: _Key, state: CallState) -> _Shared | _Flight | asyncio.Future[_Shared]:
        """What is kept, or what is to be done: to lead a flight, to wait for another's, or to run by itself."""
        loop = asyncio.get_running_loop()
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is not None and self._time() < kept[0]:
                self._kept[key] = kept
                return kept[1]
            flight = self._flights.get(key)
            if flight is None or flight.given_up:
                if flight is not None:
                    flight.tell("again")
                flight = self._flights[key] = _Flight(state, loop)
                return flight
            if flight.leader.parent is not state.parent:
                # It may be one of those that the leader itself waits for: only sisters wait for each other.
                return "alone"
            waiter: asyncio.Future[_Shared] = loop.create_future()
            flight.waiters.append((loop, waiter))
            if len(flight.waiters) == 1:
                flight.loop.call_soon_threadsafe(flight.watch, partial(self._gave_up, key, flight))
            return waiter

    def _gave_up(self, key: _Key, flight: _Flight, *_: object) -> None:
        """Let one of those who wait run instead of a leader that nobody waits for any more."""
        with self._lock:
            if self._flights.get(key) is flight:
                del self._flights[key]
        flight.tell("again")

    async def _led(
        self, key: _Key, flight: _Flight, call: ToolCall, context: ToolContext[Any], next: Next
    ) -> ToolResult:
        shared: _Shared = "alone"
        try:
            result = await next(call, context)
            shared = _snapshot(result)
            return result
        except asyncio.CancelledError:
            shared = "again"
            raise
        finally:
            with self._lock:
                if self._flights.get(key) is flight:
                    del self._flights[key]
                    if isinstance(shared, ToolResult) and shared.success:
                        self._keep(key, shared)
            flight.land(shared)

    def _keep(self, key: _Key, result: ToolResult) -> None:
        self._kept[key] = (self._time() + self._seconds, result)
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]

    def forget(self, tool: str | None = None) -> None:
        """Drop what is kept of the tool of this name, or of all; what runs at present is not kept either."""
        with self._lock:
            self._kept = {key: kept for key, kept in self._kept.items() if tool not in (None, key[0].name)}
            self._flights = {key: one for key, one in self._flights.items() if tool not in (None, key[0].name)}

    def __len__(self) -> int:
        return len(self._kept)


class _Same:
    """An object as a key: equal to itself alone, and kept alive, so that no other one gets its address."""

    __slots__ = ("_object",)

    def __init__(self, object: Any) -> None:
        self._object = object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._object is self._object

    def __hash__(self) -> int:
        return id(self._object)


def _everything(call: ToolCall, context: ToolContext[Any]) -> Hashable:
    where = (context.session, context.principal, context.working_directory)
    try:
        metadata: Hashable = _canonical(dict(context.metadata))
    except (TypeError, ValueError):  # no JSON form: what it is stands for what it says
        metadata = _Same(context.metadata)
    return (*where, metadata, _Same(context.deps), _Same(context.secrets))


def _snapshot(result: ToolResult) -> _Shared:
    """`result` as others may have it, whatever becomes of this one."""
    if result.metadata.get("cache") is False:
        return "alone"
    try:
        content = result.content
        return _copied(result).replace(content=content)
    except Exception:  # an output that cannot be copied, such as a connection
        return "alone"


def _again(result: ToolResult) -> ToolResult:
    """A result that was kept or is shared, for another call: nothing was run for that one."""
    copied = _copied(result)
    return copied.replace(executed=False, metadata={**copied.metadata, "cached": True})


def _copied(result: ToolResult) -> ToolResult:
    if type(result.output) in _UNCHANGING and not result.metadata:
        return result
    output, metadata = copy.deepcopy((result.output, dict(result.metadata)))
    return result.replace(output=output, metadata=metadata, content=result._content)


def _tell(waiter: asyncio.Future[_Shared], shared: _Shared) -> None:
    if not waiter.done():
        waiter.set_result(shared)
