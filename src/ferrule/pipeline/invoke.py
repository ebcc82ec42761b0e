"""How a handler is executed: within a deadline, in a task of its own; in a thread, where it blocks."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from types import AsyncGeneratorType, CodeType, CoroutineType, GeneratorType, coroutine
from typing import Any
from weakref import WeakSet

from ferrule.definition.tool import Tool
from ferrule.errors import NotStartedError
from ferrule.executors import threads as pool
from ferrule.executors.chunks import collected
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.results import broke, timed_out
from ferrule.scheduling.timer import Timer, wake
from ferrule.values.context import CallState
from ferrule.values.result import ToolResult

_Coroutine = Coroutine[Any, Any, Any]

if sys.version_info >= (3, 12):

    def start(coroutine: _Coroutine, loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any]:
        """A task of its own, begun at once: many handlers never wait."""
        return asyncio.Task(coroutine, loop=loop, eager_start=True)

else:

    def start(coroutine: _Coroutine, loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any]:
        """A task of its own."""
        return asyncio.Task(coroutine, loop=loop)


EAGER = sys.version_info >= (3, 12)
"""Whether a task begins at once."""

WATCHED = sys.version_info < (3, 13)
"""Whether what others wrote has to be `watched`.

Before Python 3.13 an `asyncio.TaskGroup` that cancelled its own task while it waited for its children leaves that
task's `cancelling()` raised (CPython issue 116720). That must not be taken for a cancellation from outside.
"""


@coroutine
def watched(handler: Any) -> Generator[Any, Any, Any]:
    """Await `handler`; a cancellation that its own task group made, and would leave behind, is taken back."""
    steps: Any = handler if hasattr(handler, "send") else handler.__await__()
    try:
        waits_for = steps.send(None)
        while True:
            try:
                sent = yield waits_for
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError):
                    _take_back(handler)
                waits_for = steps.throw(error)
            else:
                waits_for = steps.send(sent)
    except StopIteration as ended:
        return ended.value


def _take_back(handler: Any) -> None:
    """Uncancel the task once for each group that has cancelled it while it waited for its children.

    One that did so before takes it back itself, and knows of a `CancelledError` when it begins to wait.
    """
    task = asyncio.current_task()
    for frame in _frames(handler):
        group, before = frame.f_locals.get("self"), frame.f_locals.get("et")
        if before is None and group._parent_cancel_requested and group not in _TAKEN_BACK and task is not None:
            _TAKEN_BACK.add(group)
            task.uncancel()


_TAKEN_BACK: WeakSet[Any] = WeakSet()
_WAITS_FOR_CHILDREN: CodeType = asyncio.TaskGroup.__aexit__.__code__
_WATCHED: CodeType = watched.__code__


def _frames(awaited: Any) -> Iterator[Any]:
    """The frames of `TaskGroup.__aexit__` in what a suspended coroutine awaits."""
    while awaited is not None:
        if isinstance(awaited, CoroutineType):
            frame, inner = awaited.cr_frame, awaited.cr_await
        elif isinstance(awaited, GeneratorType):
            frame, inner = awaited.gi_frame, awaited.gi_yieldfrom
            if awaited.gi_code is _WATCHED and frame is not None:
                inner = frame.f_locals["handler"]
        elif isinstance(awaited, AsyncGeneratorType):
            frame, inner = awaited.ag_frame, awaited.ag_await
        else:  # what wraps one of them, such as the iterator of a coroutine's `__await__`, does not show it
            held = (one for one in gc.get_referents(awaited) if isinstance(one, _SUSPENDED))
            frame, inner = None, next(held, None)
        if frame is not None and frame.f_code is _WAITS_FOR_CHILDREN:
            yield frame
        awaited = inner


_SUSPENDED = (CoroutineType, GeneratorType, AsyncGeneratorType)


def own(handling: _Coroutine, loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any]:
    """Start what handles a call in a task of its own."""
    return start(_watched_in_task(handling) if WATCHED else handling, loop)


async def _watched_in_task(handling: _Coroutine) -> Any:
    return await watched(handling)


async def contained(inside: Awaitable[ToolResult], state: CallState) -> ToolResult:
    """The chain of middleware inside, for a task of its own: a `SystemExit` there would end the loop."""
    try:
        return await inside
    except SystemExit as error:
        return broke(state, error)
    finally:
        if state.waiter is not None:
            wake(state.waiter)


async def within(task: asyncio.Task[Any], plan: Plan, state: CallState, timer: Timer, grace: float) -> ToolResult:
    """What the task that handles a call comes to, which has the seconds of `timer`.

    At the deadline it is cancelled, gets `grace` seconds to end, and is then abandoned and reported. Whatever it makes
    of the cancellation, and whether it raises a `TimeoutError` of its own, changes nothing about that.
    """
    try:
        if not EAGER:
            await _turn()  # it takes its first step, and a handler that never waits is done without a timer
        if not task.done():
            try:
                await _waiter(task, state, timer)
            finally:
                timer.remove(state.waiter)
    except asyncio.CancelledError:
        await _stopped(task, state, timer.loop, grace)
        raise
    if not task.done() or timer.loop.time() > (state.deadline or 0.0):  # it may have blocked the loop meanwhile
        await _stopped(task, state, timer.loop, grace)
        return timed_out(plan, state, timer.seconds)
    return task.result()  # type: ignore[no-any-return]


@coroutine
def _turn() -> Generator[None, None, None]:
    """Let the loop run what is ready."""
    yield


def _waiter(task: asyncio.Task[Any], state: CallState, timer: Timer) -> asyncio.Future[None]:
    """What is done when the task has ended, or the time of `timer` is over.

    The task wakes it itself, at its end: a callback would cost one more turn of the loop.
    """
    waiter: asyncio.Future[None] = timer.loop.create_future()
    state.waiter = waiter
    if task.cancelling():  # a task that is cancelled before its first step never comes to its end
        task.add_done_callback(lambda _: wake(waiter))
    timer.add(waiter)
    return waiter


async def _stopped(task: asyncio.Task[Any], state: CallState, loop: asyncio.AbstractEventLoop, grace: float) -> None:
    """Cancel the task and wait for it, at most `grace` seconds; then it is left running."""
    while not task.done():
        task.cancel()
        timer = Timer(loop, grace)
        try:
            await _waiter(task, state, timer)
        except asyncio.CancelledError:  # once more: whoever cancels does not want to wait
            pass
        finally:
            timer.remove(state.waiter)
        if not task.done():
            state.left = (*state.left, _Left(task))
            return
    if not task.cancelled():
        task.exception()  # marked as seen: the result tells of the deadline


class _Left:
    """A task that outlived its deadline."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    def when_done(self, callback: Callable[[], object]) -> None:
        def ended(task: asyncio.Task[Any]) -> None:
            if not task.cancelled():
                task.exception()  # marked as seen
            callback()

        self._task.add_done_callback(ended)


def way_of(plan: Plan) -> Callable[[Plan, Any, CallState], Awaitable[Any]]:
    """How a handler is run: in a process, piece by piece, in the loop, or in a thread."""
    if plan.isolated is not None:
        return in_process
    if plan.streams:
        return in_pieces
    return in_loop if plan.is_async else in_thread


async def in_loop(plan: Plan, values: Any, state: CallState) -> Any:
    """Await an async handler."""
    return await plan.call(values, state.context)


async def in_pieces(plan: Plan, values: Any, state: CallState) -> Any:
    """Take all that an async generator yields."""
    return await collected(plan.call(values, state.context), state, text=plan.output.exact is str)


async def in_process(plan: Plan, values: Any, state: CallState) -> Any:
    """Run an isolated handler in a worker, which is killed with its whole group where this is cancelled.

    Raises:
        Unstarted: where it could not be started, or what it is to get cannot cross.
        WorkerDiedError: where the process ended before the handler.
        BaseException: whatever the handler raised.
    """
    from ferrule.isolation import workers  # 20 ms, for the programs that need them

    pieces: list[Any] = []
    state.pieces = pieces

    def told(what: Mapping[str, Any]) -> None:
        if "piece" in what:
            pieces.append(what["piece"])
        plan.announce(state, what)

    try:
        order = workers.ordered(plan.isolated, state.call, state.given, values, state.context.remaining())
        job = workers.shared().submit(order, told)
    except NotStartedError as error:
        raise pool.Unstarted from error
    try:
        value = await job.future
    except asyncio.CancelledError:
        if job.kill():
            state.take_back_start()
        raise
    if isinstance(value, pool.Raised):
        if isinstance(value.error, NotStartedError) and not isinstance(value, workers.RaisedThere):
            raise pool.Unstarted from value.error
        raise value.error
    return value


def isolate(plan: Plan, recipe: Any) -> None:
    """Let the calls of a plan run in workers, which are slots of their own; the runners', which all want, come last."""
    from ferrule.isolation import workers

    own = len(plan.tool._limiters)
    plan.isolated = recipe
    plan.limiters = (*plan.limiters[:own], workers.SLOTS, *plan.limiters[own:])


def isolated(tools: Iterable[Tool]) -> dict[str, Any]:
    """What workers are told of the isolated ones among `tools`, by name; a first worker is started.

    Raises:
        DefinitionError: where another process would not find a handler.
    """
    found = [tool for tool in tools if tool.isolation is not None]
    if not found:
        return {}
    from ferrule.isolation import workers
    from ferrule.isolation.orders import Recipe

    recipes = {tool.name: Recipe(tool, tool.transfer) for tool in found}
    workers.shared().warm(1, recipes.values())
    return recipes


async def in_thread(plan: Plan, values: Any, state: CallState) -> Any:
    """Run a blocking handler in the pool, with the context copied.

    Raises:
        PoolExhausted: where too many that outlived their deadlines still run.
        BaseException: whatever the handler raised.
    """
    direct, call = plan.direct, plan.call
    job = pool.shared().submit(
        (lambda: direct(**values)) if direct is not None else (lambda: call(values, state.context)),
        group=(plan.name, state.given[1]),
        nested=state.parent is not None,
    )
    try:
        value = await job.future
    except asyncio.CancelledError:
        if job.cancel():
            state.take_back_start()
        elif job.running:
            state.left = (*state.left, job)
        raise
    if isinstance(value, pool.Raised):
        error = value.error
        if isinstance(error, KeyboardInterrupt | GeneratorExit | StopIteration):
            raise RuntimeError(f"{type(error).__name__} raised in a thread") from error
        raise error
    return await value if inspect.isawaitable(value) else value
