"""Where a limit may be kept, for tests that hold wherever that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from typing import Any, TypeAlias

import pytest

import ferrule
import probe
from ferrule import Journal, ToolResult
from ferrule.stores.limits import SharedLimits, share_limits
from ferrule.stores.store import Memory, Postgres, Store
from ferrule.testing import ManualClock

SHARED = ["memory", "journal", pytest.param("postgres", marks=pytest.mark.slow)]
PLACES = ["process", *SHARED]
Place: TypeAlias = Callable[[], SharedLimits | None]
"""New limits each time, in the same place, which count apart; `None` in the process itself."""

NAMES = map(str, count())


_NOW: list[Place] = [lambda: None]


@pytest.fixture(params=PLACES, scope="module", autouse=True)
def where(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """All tests of a module that imports this hold in one process, and where programs share the limits."""
    _NOW.append(place_of(request, tmp_path_factory))
    yield _NOW[-1]
    _NOW.pop()


def now() -> SharedLimits | None:
    """New limits in the place that the present test is for."""
    return _NOW[-1]()


async def out_of_patience(runner: ferrule.Runner, call: Coroutine[Any, Any, ToolResult]) -> ToolResult:
    """What comes of a call of this runner that waits for longer than its `queue_timeout`, by the runner's clock. That
    stands still for all other calls: a busy machine may take its time for those."""
    clock, seconds = probe.patience(runner)
    assert isinstance(clock, ManualClock) and seconds is not None
    waits = asyncio.ensure_future(call)
    while not runner.waiting or probe.unanswered(runner):
        assert not waits.done(), waits.result()
        await asyncio.sleep(0)
    await clock.advance(seconds)
    return await waits


class Runner(ferrule.Runner):
    """A runner whose limits are kept there."""

    def __init__(self, tools: Any, **options: Any) -> None:
        super().__init__(tools, **{"limits": now(), **options})


def place_of(request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> Place:
    """The place that a fixture with these parameters asks for."""
    if request.param == "process":
        return lambda: None
    store = store_of(request.param, request, factory)
    return lambda: share_limits(store, name=next(NAMES))


def store_of(kind: str, request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> Store:
    """A store of this kind, which several programs can share where it is not memory."""
    if kind == "memory":
        return Memory()
    if kind == "journal":
        return Journal.open(factory.mktemp("limits") / "calls.db", durable="normal").store
    return Postgres(request.getfixturevalue("postgres_url")(f"limits_{next(NAMES)}"))
