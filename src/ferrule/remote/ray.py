"""Handlers on the actors of a Ray cluster.

    CLUSTER = ray.actors(4, options={"render": {"num_gpus": 1}})

    @tool(isolation=CLUSTER)
    def render(path: str) -> str: ...

The application itself calls `ray.init`. See docs/beyond-one-machine.md.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, NotStartedError, WorkerDiedError
from ferrule.executors import Executor
from ferrule.remote._executor import OrderTransport, RemoteExecutor
from ferrule.remote._order_runner import OrderRunner, Place, list_places
from ferrule.remote._seal import Seal
from ferrule.scheduling.limiter import Limiter
from ferrule.stores.store import KEY_BYTES

__all__ = ["Actors", "actors"]

_RAY = "ray"
_CANCELS, _CANCEL_AGAIN = 20, 0.2


def actors(
    count: int = 1,
    *,
    concurrency: int = 8,
    options: Mapping[str, Mapping[str, object]] | None = None,
    deps: Callable[[], object] | None = None,
    secrets: Callable[[], Mapping[str, object]] | None = None,
) -> Actors:
    """Return a value for `isolation=`: the handlers of these tools run in actors.

    The actors are made on the first call and end with the last reference to this value. See
    docs/beyond-one-machine.md#actors-of-a-cluster.

    A call whose actor dies is `failed`, with `executed=None`; the actor is made again, and the call is not repeated.

    Args:
        count: The number of actors. Each tool with its own `options` has as many again.
        concurrency: The number of calls that one actor runs at once.
        options: The options of `ray.remote` for a tool's actors, by the tool's name, such as `{"render": {"num_gpus":
            1}}`. `"*"` is for all others.
        deps: Make the `deps` of the handlers' contexts, once in each actor.
        secrets: The same for `secrets`.

    Raises:
        DefinitionError: A count is no whole number from 1, or `options` is no mapping of mappings.
    """
    return Actors(count, concurrency, options or {}, deps, secrets)


class Actors:
    """The value from `actors`. See docs/beyond-one-machine.md#actors-of-a-cluster."""

    def __init__(
        self,
        count: int,
        concurrency: int,
        options: Mapping[str, Mapping[str, object]],
        deps: Callable[[], object] | None,
        secrets: Callable[[], Mapping[str, object]] | None,
    ) -> None:
        for name, value in {"count": count, "concurrency": concurrency}.items():
            given: object = value
            if isinstance(given, bool) or not isinstance(given, int) or given < 1:
                raise DefinitionError(f"actors({name}) must be a whole number of at least 1, not {value!r}")
        if not all(isinstance(one, Mapping) for one in (options, *options.values())):
            raise DefinitionError("actors(options) must be options by the name of a tool, {'render': {'num_gpus': 1}}")
        self._shape = (count, concurrency)
        self._options = options
        self._factories = (deps, secrets)
        self._key = os.urandom(KEY_BYTES)  # only the actors get it
        self._groups: dict[str, _Group] = {}

    def executor(self, tool: Tool) -> Executor:
        """Return the executor of the handler of `tool`.

        Raises:
            DefinitionError: No other process could make the tool, or Ray is not installed.
        """
        _ray()
        name = tool.name if tool.name in self._options else "*"
        group = self._groups.get(name)
        if group is None:
            options = dict(self._options.get(name, {}))
            group = self._groups[name] = _Group(*self._shape, options, self._key, *self._factories)
        executor = RemoteExecutor(tool, _ActorTransport(group, tool), Seal(self._key), _RAY)
        executor.limiter = group.slots
        return executor


class _ActorSlot:
    """An actor, the number of its calls, and whether it is known to be ready."""

    def __init__(self) -> None:
        self.actor: Any = None
        self.calls = 0
        self.ready = False


class _Group:
    """Actors with the same options. Each call goes to the one with the fewest calls.

    Attributes:
        slots: As many slots as calls can run at once. A call waits for one like for any slot.
    """

    def __init__(
        self,
        count: int,
        concurrency: int,
        options: dict[str, object],
        key: bytes,
        deps: Callable[[], object] | None,
        secrets: Callable[[], Mapping[str, object]] | None,
    ) -> None:
        self.slots = Limiter(count * concurrency)
        self._options = {**options, "max_restarts": 0, "max_concurrency": concurrency, "max_task_retries": 0}
        self._actor_arguments = (key, deps, secrets)
        self._actor_slots = [_ActorSlot() for _ in range(count)]

    def next(self) -> _ActorSlot:
        """Return the slot for the next call."""
        return min(self._actor_slots, key=lambda slot: slot.calls)

    def make_actor(self) -> Any:
        """Return a new actor."""
        return _ray().remote(Actor).options(**self._options).remote(*self._actor_arguments)

    def replace(self, slot: _ActorSlot) -> None:
        """Replace an actor that is gone or cannot be made."""
        if slot in self._actor_slots:
            self._actor_slots[self._actor_slots.index(slot)] = _ActorSlot()


class Actor:
    """The object that runs in an actor."""

    def __init__(
        self, key: bytes, deps: Callable[[], object] | None, secrets: Callable[[], Mapping[str, object]] | None
    ) -> None:
        self._order_runner = OrderRunner(
            (), Seal(key), deps=deps() if deps else None, secrets=secrets() if secrets else None
        )

    async def ready(self) -> None:
        """Do nothing: an answer shows that the actor is there."""

    async def stream_messages(self, order: str, workflow: str, places: list[Place]) -> AsyncGenerator[str, None]:
        """Yield the messages about an order, and allow the imports of `places` for it.

        The caller of an actor may run any code in the cluster anyway, so the program decides about the places.
        """
        self._order_runner.places.update(places)
        async with aclosing(self._order_runner.run(order, queue=_RAY, workflow=workflow)) as messages:
            async for message in messages:
                yield message

    async def collect_messages(self, order: str, workflow: str, places: list[Place]) -> list[str]:
        """Return all messages about an order at its end. For handlers without a context, which report no progress."""
        return [message async for message in self.stream_messages(order, workflow, places)]


class _ActorTransport(OrderTransport):
    """A line to an actor."""

    def __init__(self, group: _Group, tool: Tool) -> None:
        self._group = group
        self._places = sorted(list_places([tool]))
        self._streams = tool.handling.kwargs_call is None or tool.handling.streams

    async def send(
        self, workflow: str, order: str, *, repeatable: bool, principal: str | None
    ) -> AsyncGenerator[str | None, None]:
        ray, sent = _ray(), None
        if not ray.is_initialized():  # Ray would start its own cluster, for seconds, on this loop
            raise NotStartedError("Ray is not initialized: call ray.init(…) first")
        slot = self._group.next()
        slot.calls += 1
        try:
            await self._await_ready(slot)
            if self._streams:
                sent = slot.actor.stream_messages.options(num_returns="streaming").remote(order, workflow, self._places)
                yield None
                async for message in sent:
                    yield await message
            else:  # a stream takes half as long again
                sent = slot.actor.collect_messages.remote(order, workflow, self._places)
                yield None
                for message in await sent:
                    yield message
        except asyncio.CancelledError:
            await _cancel_remote(ray, sent)
            raise
        except NotStartedError:
            raise
        except Exception as error:
            self._group.replace(slot)
            if not isinstance(error, ray.exceptions.RayError):  # for example an error of a cluster that was left
                raise
            raise WorkerDiedError(f"the actor that ran it is gone ({type(error).__name__})") from error
        finally:
            slot.calls -= 1

    async def _await_ready(self, slot: _ActorSlot) -> None:
        """Wait until an actor is there. It may have to be made, on a machine that has to be found.

        Raises:
            NotStartedError: There is no actor.
        """
        try:
            if not slot.ready:
                if slot.actor is None:
                    slot.actor = self._group.make_actor()
                await slot.actor.ready.remote()
                slot.ready = True
        except asyncio.CancelledError as error:
            raise NotStartedError("no actor was ready in time", limited=True) from error
        except Exception as error:  # from Ray, or from the function that makes `deps`
            self._group.replace(slot)
            raise NotStartedError(f"no actor can be made ({type(error).__name__})", limited=True) from error


async def _cancel_remote(ray: Any, sent: Any) -> None:
    """Repeat the cancellation until the call has ended: Ray forgets a cancellation that arrives before the call."""
    last = sent.completed() if hasattr(sent, "completed") else sent
    ended = asyncio.ensure_future(_wait_for_end(last))
    for _ in range(_CANCELS):
        ray.cancel(sent)
        done, _pending = await asyncio.wait([ended], timeout=_CANCEL_AGAIN)
        if done:
            return


async def _wait_for_end(ref: Any) -> None:
    with suppress(Exception):
        await ref


def _ray() -> Any:
    try:
        import ray  # takes seconds, so only programs that need it import it
    except ImportError:
        raise DefinitionError("remote.ray needs Ray: pip install 'ferrule[ray]'") from None
    return ray
