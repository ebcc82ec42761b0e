"""Handlers on the actors of a Ray cluster.

    CLUSTER = ray.actors(4, options={"render": {"num_gpus": 1}})

    @tool(isolation=CLUSTER)
    def render(path: str) -> str: ...

`ray.init` is the application's. See docs/beyond-one-machine.md.
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
from ferrule.remote._far import FarSide, Place, places_of
from ferrule.remote._near import Line, RemoteExecutor
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
    """For `isolation=`: the handlers of these tools run in actors, which are made on the first call and end with the
    last reference to this. See docs/beyond-one-machine.md#actors-of-a-cluster.

    A call whose actor dies is `failed`, with `executed=None`; the actor is made again, and the call is not repeated.

    Args:
        count: How many actors; where a tool has `options` of its own, as many again.
        concurrency: How many calls one actor runs at once.
        options: What Ray is to give an actor for a tool, by the tool's name, such as `{"render": {"num_gpus": 1}}`:
            the options of `ray.remote`. `"*"` is for all others.
        deps: Makes what the contexts of the handlers have as `deps`, once in each actor.
        secrets: The same of `secrets`.

    Raises:
        DefinitionError: for counts that are no whole numbers from 1, and options that are no mapping of mappings.
    """
    return Actors(count, concurrency, options or {}, deps, secrets)


class Actors:
    """What `actors` makes. See docs/beyond-one-machine.md#actors-of-a-cluster."""

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
        self._made = (deps, secrets)
        self._key = os.urandom(KEY_BYTES)  # which goes to the actors alone
        self._groups: dict[str, _Group] = {}

    def executor(self, tool: Tool) -> Executor:
        """What runs the handler of `tool`.

        Raises:
            DefinitionError: where no other process could make it, or Ray is not installed.
        """
        _ray()
        name = tool.name if tool.name in self._options else "*"
        group = self._groups.get(name)
        if group is None:
            options = dict(self._options.get(name, {}))
            group = self._groups[name] = _Group(*self._shape, options, self._key, *self._made)
        made = RemoteExecutor(tool, _OnActor(group, tool), Seal(self._key), _RAY)
        made.limiter = group.slots
        return made


class _Member:
    """An actor, how many calls it has, and whether it is known to be there."""

    def __init__(self) -> None:
        self.actor: Any = None
        self.calls = 0
        self.ready = False


class _Group:
    """Actors of the same options, of which each call gets the one with the fewest calls.

    Attributes:
        slots: As many as they run at once: a call waits for one as for any slot.
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
        self._given = (key, deps, secrets)
        self._members = [_Member() for _ in range(count)]

    def next(self) -> _Member:
        """The one that the next call goes to."""
        return min(self._members, key=lambda member: member.calls)

    def made(self) -> Any:
        """A new actor."""
        return _ray().remote(Actor).options(**self._options).remote(*self._given)

    def leave(self, member: _Member) -> None:
        """Have another one made in the place of an actor that is gone, or cannot be made."""
        if member in self._members:
            self._members[self._members.index(member)] = _Member()


class Actor:
    """What runs in an actor."""

    def __init__(
        self, key: bytes, deps: Callable[[], object] | None, secrets: Callable[[], Mapping[str, object]] | None
    ) -> None:
        made: dict[str, Any] = {"deps": None if deps is None else deps()}
        made["secrets"] = None if secrets is None else secrets()
        self._far = FarSide((), Seal(key), **made)

    async def ready(self) -> None:
        """Nothing: who gets an answer knows that it is there."""

    async def tell(self, order: str, workflow: str, places: list[Place]) -> AsyncGenerator[str, None]:
        """What is told of an order, as it comes, for which this may be imported: who may call an actor may run whatever
        they like in the cluster, so the program says it."""
        self._far.places.update(places)
        async with aclosing(self._far.run(order, queue=_RAY, workflow=workflow)) as messages:
            async for message in messages:
                yield message

    async def answer(self, order: str, workflow: str, places: list[Place]) -> list[str]:
        """What is told of an order, at its end: of a handler that has no context to tell of progress."""
        return [message async for message in self.tell(order, workflow, places)]


class _OnActor(Line):
    """Calls an actor."""

    def __init__(self, group: _Group, tool: Tool) -> None:
        self._group = group
        self._places = sorted(places_of([tool]))
        self._tells = tool.handling.kwargs_call is None or tool.handling.streams

    async def send(
        self, workflow: str, order: str, *, repeatable: bool, principal: str | None
    ) -> AsyncGenerator[str | None, None]:
        ray, sent = _ray(), None
        if not ray.is_initialized():  # it would start a cluster of its own, for seconds, on this loop
            raise NotStartedError("Ray is not there: call ray.init(…) first")
        member = self._group.next()
        member.calls += 1
        try:
            await self._await_ready(member)
            if self._tells:
                sent = member.actor.tell.options(num_returns="streaming").remote(order, workflow, self._places)
                yield None
                async for told in sent:
                    yield await told
            else:  # a stream takes half as long again
                sent = member.actor.answer.remote(order, workflow, self._places)
                yield None
                for message in await sent:
                    yield message
        except asyncio.CancelledError:
            await _end_there(ray, sent)
            raise
        except NotStartedError:
            raise
        except Exception as error:
            self._group.leave(member)
            if not isinstance(error, ray.exceptions.RayError):  # such as of a cluster that was left
                raise
            raise WorkerDiedError(f"the actor that ran it is gone ({type(error).__name__})") from error
        finally:
            member.calls -= 1

    async def _await_ready(self, member: _Member) -> None:
        """Wait until an actor is there: it may have to be made, on a machine that has to be found.

        Raises:
            NotStartedError: where it cannot be had.
        """
        try:
            if not member.ready:
                if member.actor is None:
                    member.actor = self._group.made()
                await member.actor.ready.remote()
                member.ready = True
        except asyncio.CancelledError as error:
            raise NotStartedError("no actor was there in time", limited=True) from error
        except Exception as error:  # of Ray, or of the function that makes `deps`
            self._group.leave(member)
            raise NotStartedError(f"no actor can be had ({type(error).__name__})", limited=True) from error


async def _end_there(ray: Any, sent: Any) -> None:
    """Cancel what was sent until it has ended: Ray forgets a cancellation that comes before the call has."""
    last = sent.completed() if hasattr(sent, "completed") else sent
    ended = asyncio.ensure_future(_came_to_its_end(last))
    for _ in range(_CANCELS):
        ray.cancel(sent)
        done, _pending = await asyncio.wait([ended], timeout=_CANCEL_AGAIN)
        if done:
            return


async def _came_to_its_end(ref: Any) -> None:
    with suppress(Exception):
        await ref


def _ray() -> Any:
    try:
        import ray  # seconds, for the programs that need it
    except ImportError:
        raise DefinitionError("remote.ray needs Ray: pip install 'ferrule[ray]'") from None
    return ray
