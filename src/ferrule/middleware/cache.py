"""`cache(seconds)`: the same question to a tool that only reads is answered once."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections.abc import Hashable
from contextlib import suppress
from typing import Any, Literal, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.middleware._counted import By, Ticking, keyed, number, whole
from ferrule.scheduling.clock import Clock
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.json_text import SECRET_STARS
from ferrule.values.result import ToolResult, get_original, set_slot

_Shared: TypeAlias = ToolResult | Literal["again", "alone"]
"""The success of a call; or that another has to run instead of it, or that each has to run by itself."""
_WaitingCall: TypeAlias = "tuple[asyncio.AbstractEventLoop, asyncio.Future[_Shared]]"
_CacheKey: TypeAlias = tuple[Any, str, Hashable]
_canonical = json.JSONEncoder(sort_keys=True).encode
_UNCHANGING = frozenset({str, int, float, bool, bytes, type(None)})


def cache(seconds: float = 300.0, *, entries: int = 1000, by: By | None = None, clock: Clock | None = None) -> Cache:
    """A middleware that keeps the successes of tools that only read (`read_only` for this call), for `seconds`.
    See docs/limits.md.

    An answer is kept for the tool (another version or copy of it is another one), the judged arguments whatever their
    order, and what of the context may change it. Calls for the same at the same time run once, and all get the success
    of that one; where it fails, each runs by itself; where it is cancelled or its deadline comes, another of them runs,
    once its handler has ended. A call for which a person was asked, or which made such a call, shares nothing and gets
    nothing of another. What comes from the cache or was shared has `metadata["cached"]` and was not `executed`;
    its output is a copy.

    It belongs in `inside`: in `around`, an answer would go round the guards. Calls of other tools pass. A result with
    `metadata["cache"]` `False` is neither kept nor shared, nor is one that cannot be copied.

    Args:
        seconds: How long an answer is good, from when it was there.
        entries: How many are kept; then the one that was not asked for the longest goes.
        by: What of the context may change an answer. Left out: principal, session, working directory, `deps` and
            `secrets` (these two as the very objects). Else `"principal"`, `"session"`, `"all"` where nothing does;
            several; or a function of call and context that gives the key. Where it raises or gives no key, the call
            fails and nothing is run.
        clock: What tells the time; left out, what the runner goes by that calls it first.

    Raises:
        DefinitionError: for parameters that could not work, and where it stands in `around`.
    """
    return Cache(seconds, entries, by, clock)


class _Flight:
    """A call that runs, and who waits for what it comes to."""

    __slots__ = ("loop", "parent", "waiters")

    def __init__(self, parent: str | None, loop: asyncio.AbstractEventLoop) -> None:
        self.parent = parent
        self.loop = loop
        self.waiters: list[_WaitingCall] = []

    def end(self, shared: _Shared) -> None:
        """Tell all who wait what it came to."""
        for loop, waiter in self.waiters:
            with suppress(RuntimeError):  # a loop that is closed, and who waited on it with it
                loop.call_soon_threadsafe(_wake_waiter, waiter, shared)


class Cache:
    """What `cache` makes."""

    only_inside = "cache(…) belongs in `inside`: in `around`, what it keeps would go round the guards"

    def __init__(self, seconds: float, entries: int, by: By | None, clock: Clock | None) -> None:
        self._seconds = number("cache(seconds)", seconds)
        self._most = whole("cache(entries)", entries)
        self._scope = _everything if by is None else keyed("cache", by)[0]
        self._clock = Ticking("cache", clock)
        self._kept: dict[_CacheKey, tuple[float, ToolResult]] = {}
        self._flights: dict[_CacheKey, _Flight] = {}
        self._lock = threading.Lock()

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        if context.call is None or not context.tool.read_only:
            return await next(call, context)
        if not context.inside:
            raise DefinitionError(self.only_inside)
        if context.asked or context.answer is not None:
            return await next(call, context)
        # The tool itself stands for its fingerprint, which says nothing of what is fixed in it or of its handler.
        asked = _canonical(dict(call.arguments))
        if SECRET_STARS in asked:  # of two secrets that validation has made of what was sent
            asked += str(call.raw)
        key: _CacheKey = (context.tool.definition, asked, self._scope(call, context))
        shared: _Shared = "again"
        self._clock.of(context)
        while shared == "again":
            entry = self._look_up(key, call)
            if isinstance(entry, _Flight):
                return await self._lead(key, entry, call, context, next)
            shared = await entry if isinstance(entry, asyncio.Future) else entry
        found = shared if isinstance(shared, str) else _for_another(shared)
        return await next(call, context) if isinstance(found, str) else found

    def _look_up(self, key: _CacheKey, call: ToolCall) -> _Shared | _Flight | asyncio.Future[_Shared]:
        """What is kept, or what is to be done: to lead a flight, to wait for another's, or to run by itself."""
        loop = asyncio.get_running_loop()
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is not None and self._clock.time() < kept[0]:
                self._kept[key] = kept
                return kept[1]
            flight = self._flights.get(key)
            if flight is None or flight.loop.is_closed():
                if flight is not None:
                    flight.end("again")
                flight = self._flights[key] = _Flight(call.parent, loop)
                return flight
            if flight.parent != call.parent:
                # It may be one of those that the leader itself waits for: only sisters wait for each other.
                return "alone"
            waiter: asyncio.Future[_Shared] = loop.create_future()
            flight.waiters.append((loop, waiter))
            return waiter

    async def _lead(
        self, key: _CacheKey, flight: _Flight, call: ToolCall, context: ToolContext, next: Next
    ) -> ToolResult:
        shared: _Shared = "alone"
        try:
            result = await next(call, context)
            if context.remaining(own=True) == 0:  # what came too late is dropped
                shared = "again"
            elif result.success and not context.asked:
                shared = _snapshot(result)
            return result
        except asyncio.CancelledError:
            shared = "again"
            raise
        finally:
            with self._lock:
                if self._flights.get(key) is flight:
                    del self._flights[key]
                    if isinstance(shared, ToolResult):
                        self._keep(key, shared)
            flight.end(shared)

    def _keep(self, key: _CacheKey, result: ToolResult) -> None:
        self._kept[key] = (self._clock.time() + self._seconds, result)
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


def _everything(call: ToolCall, context: ToolContext) -> Hashable:
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
    content = result.content
    copied = _deep_copy(result)
    return copied if isinstance(copied, str) else copied.replace(content=content)


def _for_another(result: ToolResult) -> _Shared:
    """A result that was kept or is shared, for another call: nothing was run for that one."""
    copied = _deep_copy(result)
    if isinstance(copied, str):
        return copied
    return copied.replace(executed=False, metadata={**copied.metadata, "cached": True})


def _deep_copy(result: ToolResult) -> _Shared:
    value, own = get_original(result)
    if type(value) in _UNCHANGING and not result.metadata:
        return result
    try:
        value, output, metadata = copy.deepcopy((value, result.output, dict(result.metadata)))
    except KeyboardInterrupt:
        raise
    except BaseException:  # an output that cannot be copied, such as a connection, whatever its methods raise
        return "alone"
    copied = result.replace(output=output, metadata=metadata, content=result.content)
    set_slot(copied, "_original", (value, own))
    return copied


def _wake_waiter(waiter: asyncio.Future[_Shared], shared: _Shared) -> None:
    if not waiter.done():
        waiter.set_result(shared)
