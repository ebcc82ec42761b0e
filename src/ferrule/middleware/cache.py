"""`cache(seconds)`: answer equal calls of a read-only tool from one run."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections.abc import Hashable
from contextlib import suppress
from typing import Any, Literal, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.middleware._limits import By, MiddlewareClock, check_number, check_whole_number, make_key
from ferrule.scheduling.clock import Clock
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.json_text import SECRET_STARS
from ferrule.values.result import ToolResult, get_original, set_slot

Shared: TypeAlias = ToolResult | Literal["again", "alone"]
"""The success of a call, or `"again"` if another waiting call must run instead, or `"alone"` if each must run by
itself.
"""
_WaitingCall: TypeAlias = "tuple[asyncio.AbstractEventLoop, asyncio.Future[Shared]]"
_CacheKey: TypeAlias = tuple[Any, str, Hashable]
_encode = json.JSONEncoder(sort_keys=True).encode
_IMMUTABLE_TYPES = frozenset({str, int, float, bool, bytes, type(None)})


def cache(seconds: float = 300.0, *, entries: int = 1000, by: By | None = None, clock: Clock | None = None) -> Cache:
    """Return a middleware that stores the successes of read-only tools (`read_only` for this call) for `seconds`. See
    docs/limits.md.

    An answer is stored for the tool (another version or copy is another tool), the judged arguments in any order, and
    the parts of the context that may change it. Equal calls at the same time run once, and all get that success. If the
    run fails, each of them runs by itself. If it is cancelled or reaches its deadline, another of them runs, once the
    handler has ended. A call shares nothing and receives nothing from another if a person was asked for it or for a
    call it made. A cached or shared result has `metadata["cached"]` and was not `executed`; its output is a copy.

    It belongs in `inside`: in `around`, an answer would bypass the guards. Calls of other tools pass. A result is
    neither stored nor shared if its `metadata["cache"]` is `False` or if it cannot be copied.

    Args:
        seconds: The lifetime of an answer, from its arrival.
        entries: The number of stored answers. The least recently requested one goes first.
        by: The parts of the context that may change an answer. By default principal, session, working directory,
            metadata, `deps` and `secrets` (these two as the very objects). Otherwise `"principal"`, `"session"`,
            `"all"` if no part does; several; or a function of call and context that returns the key. If it raises or
            returns no key, the call fails and nothing is run.
        clock: The clock; by default that of the first runner to call it.

    Raises:
        DefinitionError: A parameter is not valid, or the middleware is in `around`.
    """
    return Cache(seconds, entries, by, clock)


class _Flight:
    """A running call and the calls that wait for its outcome."""

    __slots__ = ("loop", "parent", "waiters")

    def __init__(self, parent: str | None, loop: asyncio.AbstractEventLoop) -> None:
        self.parent = parent
        self.loop = loop
        self.waiters: list[_WaitingCall] = []

    def end(self, shared: Shared) -> None:
        """Give the outcome to all waiting calls."""
        for loop, waiter in self.waiters:
            with suppress(RuntimeError):  # a closed loop; its waiting calls ended with it
                loop.call_soon_threadsafe(_wake_waiter, waiter, shared)


class Cache:
    """The middleware of `cache`."""

    only_inside = "cache(…) belongs in `inside`: in `around`, a stored answer would bypass the guards"

    def __init__(self, seconds: float, entries: int, by: By | None, clock: Clock | None) -> None:
        self._seconds = check_number("cache(seconds)", seconds)
        self._limit = check_whole_number("cache(entries)", entries)
        self._scope = _default_key if by is None else make_key("cache", by)[0]
        self._clock = MiddlewareClock("cache", clock)
        self._stored: dict[_CacheKey, tuple[float, ToolResult]] = {}
        self._flights: dict[_CacheKey, _Flight] = {}
        self._lock = threading.Lock()

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        if context.call is None or not context.tool.read_only:
            return await next(call, context)
        if not context.inside:
            raise DefinitionError(self.only_inside)
        if context.asked or context.answer is not None:
            return await next(call, context)
        # The key has the tool itself: its fingerprint does not cover its fixed arguments or its handler.
        arguments = _encode(dict(call.arguments))
        if SECRET_STARS in arguments:  # distinguishes two secrets that validation has replaced by stars
            arguments += str(call.raw)
        key: _CacheKey = (context.tool.definition, arguments, self._scope(call, context))
        shared: Shared = "again"
        self._clock.get(context)
        while shared == "again":
            entry = self._look_up(key, call)
            if isinstance(entry, _Flight):
                return await self._lead(key, entry, call, context, next)
            shared = await entry if isinstance(entry, asyncio.Future) else entry
        found = shared if isinstance(shared, str) else _copy_for_another(shared)
        return await next(call, context) if isinstance(found, str) else found

    def _look_up(self, key: _CacheKey, call: ToolCall) -> Shared | _Flight | asyncio.Future[Shared]:
        """Return the stored result, a flight to lead, a future to wait for, or `"alone"` if the call must run by
        itself.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            stored = self._stored.pop(key, None)
            if stored is not None and self._clock.time() < stored[0]:
                self._stored[key] = stored
                return stored[1]
            flight = self._flights.get(key)
            if flight is None or flight.loop.is_closed():
                if flight is not None:
                    flight.end("again")
                flight = self._flights[key] = _Flight(call.parent, loop)
                return flight
            if flight.parent != call.parent:
                # The leader itself may wait for this call, so only calls with the same parent wait for each other.
                return "alone"
            waiter: asyncio.Future[Shared] = loop.create_future()
            flight.waiters.append((loop, waiter))
            return waiter

    async def _lead(
        self, key: _CacheKey, flight: _Flight, call: ToolCall, context: ToolContext, next: Next
    ) -> ToolResult:
        shared: Shared = "alone"
        try:
            result = await next(call, context)
            if context.remaining(own=True) == 0:  # a result after the deadline is dropped
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
                        self._store(key, shared)
            flight.end(shared)

    def _store(self, key: _CacheKey, result: ToolResult) -> None:
        self._stored[key] = (self._clock.time() + self._seconds, result)
        if len(self._stored) > self._limit:
            del self._stored[next(iter(self._stored))]

    def forget(self, tool: str | None = None) -> None:
        """Drop the stored results of the tool of this name, or of all tools.

        Calls that run at present are not stored either.
        """
        with self._lock:
            self._stored = {key: stored for key, stored in self._stored.items() if tool not in (None, key[0].name)}
            self._flights = {key: one for key, one in self._flights.items() if tool not in (None, key[0].name)}

    def __len__(self) -> int:
        return len(self._stored)


class _Identity:
    """An object as a key, equal to itself alone. It keeps the object alive, so no other one gets its address."""

    __slots__ = ("_object",)

    def __init__(self, object: Any) -> None:
        self._object = object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other._object is self._object

    def __hash__(self) -> int:
        return id(self._object)


def _default_key(call: ToolCall, context: ToolContext) -> Hashable:
    where = (context.session, context.principal, context.working_directory)
    try:
        metadata: Hashable = _encode(dict(context.metadata))
    except (TypeError, ValueError):  # no JSON form: the object itself is the key
        metadata = _Identity(context.metadata)
    return (*where, metadata, _Identity(context.deps), _Identity(context.secrets))


def _snapshot(result: ToolResult) -> Shared:
    """Return a copy of `result` for others, independent of later changes to it."""
    return "alone" if result.metadata.get("cache") is False else _deep_copy(result)


def _copy_for_another(result: ToolResult) -> Shared:
    """Return a stored or shared result for another call, for which nothing was run."""
    copied = _deep_copy(result)
    if isinstance(copied, str):
        return copied
    return copied.replace(executed=False, metadata={**copied.metadata, "cached": True})


def _deep_copy(result: ToolResult) -> Shared:
    value, is_original = get_original(result)
    if type(value) in _IMMUTABLE_TYPES and not result.metadata:
        return result
    try:
        value, output, metadata = copy.deepcopy((value, result.output, dict(result.metadata)))
    except KeyboardInterrupt:
        raise
    except BaseException:  # an output that cannot be copied, such as a connection, whatever its methods raise
        return "alone"
    copied = result.replace(output=output, metadata=metadata, content=result.content)
    set_slot(copied, "_original", (value, is_original))
    return copied


def _wake_waiter(waiter: asyncio.Future[Shared], shared: Shared) -> None:
    if not waiter.done():
        waiter.set_result(shared)
