"""The agent loop: ask the model, run its calls, answer them, and ask again until it is done.

    text alone                   done
    calls                        run through the runner, every one answered, and the model is asked again
    paused                       the turn goes back as it is, its calls are not run, and the model is asked again
    cut off or malformed         its calls carry a problem and are answered; the model is asked again
    more calls than max_calls    the ones over it are answered as limited and never run
    calls in the last turn       the same: nobody would read what they did
    refused                      its calls are answered, and it is over
    nothing at all               failed
    text, but no known end       failed: the answer may be half of one, such as that of a stream that broke off
    the same invalid calls       failed at the third time in a row
    a tool failed                on_failure: go on, answer without tools, or stop
    a call was suspended         the turn is answered, the suspended call as waiting, and it is over
    cancelled                    what runs ends, or is stopped; every call is answered, and the model is asked no more

It knows no provider: a model brings its own messages, and the runner decides what may run.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.models import Message, Model, Reply
from ferrule.values.call import ToolCall
from ferrule.values.event import Event
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.pipeline.batch import Batch
    from ferrule.runner import Runner
    from ferrule.values.context import ToolContext

Status: TypeAlias = Literal["done", "degraded", "failed", "limited", "suspended", "cancelled"]
OnFailure: TypeAlias = Literal["continue", "degrade", "fail"]
Messages: TypeAlias = list[Message]
_MOST_INVALID = 3
_INVALID = frozenset({"invalid", "not_found"})


@dataclass(frozen=True, slots=True)
class LoopResult:
    """What a run came to."""

    status: Status
    """`"done"`; `"degraded"`: answered without tools after one failed; `"failed"`: stopped after a tool failed, or the
    model refused, gave nothing, made the same invalid calls three times in a row, or did not come to an end that is
    known; `"limited"`: `max_turns`, `max_calls` or the model's own limit came in between; `"suspended"`: a call waits
    for an answer, `runner.resume(result.record(), answer)` takes up the one in `results`, and the history tells the
    model that it waits; `"cancelled"`: it would have gone on, but for `Run.cancel()`."""
    text: str
    """What the model said last."""
    messages: Messages
    """The whole history, every call answered but those of a paused turn."""
    tool_executions: list[dict[str, Any]]
    """The record of every result."""
    turns: int
    """How often the model was asked."""
    usage: dict[str, Any]
    """The replies' counts, added up."""
    results: list[ToolResult]
    """The result of every call, in call order."""
    reason: str | None = None
    """Why the model's last turn is no answer, or not all of one, in the API's own words where it has some."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """What the next request needs besides the messages: give it to `run(..., state=...)` to go on."""


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The model is asked, for the `number`th time."""

    number: int


@dataclass(frozen=True, slots=True)
class ModelText:
    """The model said something."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is over; the last event."""

    result: LoopResult


LoopEvent: TypeAlias = Event | TurnStarted | ModelText | Finished


def run(
    model: Model,
    messages: Iterable[Message],
    runner: Runner,
    *,
    context: ToolContext | None = None,
    max_turns: int = 20,
    max_calls: int = 100,
    on_failure: OnFailure = "continue",
    state: Mapping[str, Any] | None = None,
) -> Run:
    """Runs the loop, as its events are iterated or as it is awaited.

    Args:
        model: Asked once in every turn.
        messages: The history so far, in the model's own form; not changed.
        runner: Its `tools` are offered, and it runs every call.
        context: What the calls may use.
        max_turns: How often the model is asked at most. Calls that it makes in the last turn are not run.
        max_calls: How many calls are run at most, in all turns together; the model is told of the others. One that
            never ran, because it was invalid or denied, does not count.
        on_failure: What follows a call with the status `failed` or `timeout`: `"continue"` tells the model;
            `"degrade"` asks it once more without any tools; `"fail"` stops when the other calls of the turn are done.
        state: The `LoopResult.state` of the run that these messages come from.

    Raises:
        DefinitionError: where a limit or `on_failure` makes no sense, messages are no list, or the runner is none.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise DefinitionError(f"messages are a list, such as model.user('Hello'), not {messages!r}")
    if not callable(getattr(runner, "batch", None)):
        raise DefinitionError(f"the loop needs a Runner, such as Runner([one_tool, another_tool]), not {runner!r}")
    if max_turns < 1 or max_calls < 0:
        raise DefinitionError(f"max_turns is at least 1 and max_calls at least 0, not {max_turns} and {max_calls}")
    if on_failure not in {"continue", "degrade", "fail"}:
        raise DefinitionError(f"on_failure is 'continue', 'degrade' or 'fail', not {on_failure!r}")
    return Run(model, messages, runner, context, max_turns, max_calls, on_failure, state or {})


class Run:
    """One run of the loop: an async iterator of events, with a `result` at the end; `await` gives that too.

    It runs once, while somebody iterates or awaits it. Leaving the iteration cancels what is running; to be sure that
    it has ended when you go on, leave by `async with`:

        async with run(model, messages, runner) as events:
            async for event in events:
                ...

    `cancel()` ends it with all its events, and with a result that can be gone on from.
    """

    def __init__(
        self,
        model: Model,
        messages: Iterable[Message],
        runner: Runner,
        context: ToolContext | None,
        max_turns: int,
        max_calls: int,
        on_failure: OnFailure,
        state: Mapping[str, Any],
    ) -> None:
        self.messages: Messages = list(messages)
        """The history so far; every call in it but those of a paused turn is answered, also when the iteration was left
        early."""
        self.results: list[ToolResult] = []
        """The result of every call so far, in call order; also there when the model raised."""
        self.state = state
        """What the next request needs besides the messages; also there when the model raised."""
        self._model = model
        self._runner = runner
        self._context = context
        self._max_turns = max_turns
        self._calls_left = max_calls
        self._on_failure = on_failure
        self._invalid_turns: list[Any] = []
        """What the last turns asked for, while nothing of it was valid and it was the same in all of them."""
        self._turns = 0
        self._limited = self._cancelled = self._now = False
        self._text = ""
        self._reason: str | None = None
        self._asking: asyncio.Future[Reply] | None = None
        self._running: Batch | None = None
        self._usage: dict[str, Any] = {}
        self._result: LoopResult | None = None
        # Weak: a consumer that breaks off drops the iteration, and asyncio then closes it in a task of its own.
        self._iteration: weakref.ref[AsyncGenerator[LoopEvent, None]] | None = None
        self._over: asyncio.Event | None = None

    @property
    def result(self) -> LoopResult:
        """What it came to.

        Raises:
            RuntimeError: before the end.
        """
        if self._result is None:
            raise RuntimeError("the run has no result yet: iterate it to its end, or await it")
        return self._result

    def __aiter__(self) -> AsyncIterator[LoopEvent]:
        return self._start()

    def _start(self) -> AsyncGenerator[LoopEvent, None]:
        if self._iteration is not None:
            raise RuntimeError("this run was started before: call run(...) again for another one")
        iteration = self._events()
        self._iteration = weakref.ref(iteration)
        return iteration

    def __await__(self) -> Generator[Any, None, LoopResult]:
        return self._finish().__await__()

    async def _finish(self) -> LoopResult:
        if self._result is None:
            async with aclosing(self._start()) as events:
                async for _ in events:
                    pass
        return self.result

    def cancel(self, *, now: bool = False) -> None:
        """Start nothing new, and let finish what runs; the second time, or with `now=True`, stop that too.

        What runs is a turn of calls, as in `Batch.cancel`, or the model, whose answer is then the last; the calls that
        it asks for are `cancelled`. The events go on to the end. Each call has its one result and its one terminal
        event, the history has an answer for each of them, and the status is `"cancelled"` where the run had not come
        to an end of its own. An answer of the model that is stopped is not in the history. In the thread of the loop.
        """
        self._now = now or self._cancelled
        self._cancelled = True
        if self._running is not None:
            self._running.cancel(now=self._now)
        if self._asking is not None and self._now:
            self._asking.cancel()

    async def aclose(self) -> None:
        """Ends the iteration, and cancels and awaits what is running."""
        iteration = self._iteration() if self._iteration is not None else None
        if iteration is not None:
            await iteration.aclose()
        elif self._over is not None:
            await self._over.wait()

    async def __aenter__(self) -> Run:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _events(self) -> AsyncGenerator[LoopEvent, None]:
        self._over = asyncio.Event()
        try:
            async with aclosing(self._take_turns()) as events:
                async for event in events:
                    yield event
        finally:
            self._over.set()

    async def _take_turns(self) -> AsyncGenerator[LoopEvent, None]:
        offered, degraded = self._runner.tools, False
        status: Status | None = "cancelled" if self._cancelled else None
        while status is None:
            yield TurnStarted(self._turns + 1)
            reply = await self._ask(offered)
            if reply is None:
                status = "cancelled"
                break
            self._text, self._reason = reply.text, reply.reason
            if reply.text:
                yield ModelText(reply.text)
            before = len(self.results)
            if reply.calls and reply.stop != "pause":
                async with aclosing(self._answer(reply, self._refusal(degraded))) as events:
                    async for event in events:
                        yield event
            statuses = {result.status for result in self.results[before:]}
            failed = not statuses.isdisjoint({"failed", "timeout"})
            status = self._stuck(reply, self.results[before:])
            status = status or self._status(reply, failed, degraded, "suspended" in statuses)
            if failed and self._on_failure == "degrade":
                offered, degraded = Toolset([]), True
                unforced = getattr(self._model, "unforced", None)
                self._model = unforced() if unforced else self._model
        self._result = self._come_to(status)
        yield Finished(self._result)

    async def _ask(self, offered: Toolset) -> Reply | None:
        """What the model says; `None` where the run was cancelled before."""
        if self._cancelled:
            return None
        self._turns += 1
        reply = await self._said(offered)
        if reply is None:
            return None
        if reply.stop == "malformed" and not reply.calls:
            self.messages += self._told(reply)
        elif not reply.calls or reply.stop == "pause":
            self.messages += reply.messages
        self.state = reply.state
        for name, count in reply.usage.items():
            if isinstance(count, int | float):
                self._usage[name] = self._usage.get(name, 0) + count
        return reply

    def _told(self, reply: Reply) -> list[Message]:
        """A turn that wrote no valid call, and what was wrong with it; nothing where the model has no messages for
        that. Most APIs refuse a request that ends with a turn of their own."""
        user = getattr(self._model, "user", None)
        if user is None:
            return []
        return [*reply.messages, *user(f"Your last answer held no valid call: {reply.reason or 'it was malformed'}.")]

    async def _said(self, offered: Toolset) -> Reply | None:
        """The model's answer, asked for in a task of its own, which `cancel` can stop without the one that iterates."""
        model: Any = self._model
        given = {"state": self.state} if self.state else {}  # most models know of none
        asking = self._asking = asyncio.ensure_future(model(list(self.messages), offered, **given))
        try:
            await asyncio.wait({asking})
        finally:
            self._asking = None
            if not asking.done():
                asking.cancel()
                await asyncio.wait({asking})
                asking.cancelled() or asking.exception()  # marked as seen: whoever iterates has left
        return None if asking.cancelled() and self._now else asking.result()

    def _refusal(self, degraded: bool) -> str:
        """Why none of this turn's calls may run; empty where they may."""
        if degraded:
            return "No tools are offered any more, because a call failed"
        return "This was the last turn of the run" if self._turns == self._max_turns else ""

    def _status(self, reply: Reply, failed: bool, degraded: bool, suspended: bool) -> Status | None:
        """What the run has come to with this turn; `None` where it goes on."""
        if failed and self._on_failure == "fail":
            return "failed"
        if suspended:
            return "suspended"
        if reply.stop == "refused" or (reply.stop == "other" and not reply.calls):
            return "failed"
        if reply.stop == "end" and reply.is_empty:
            self._reason = "the model gave neither a text nor a call"
            return "failed"
        unanswered = reply.stop == "pause" or (reply.stop == "malformed" and not reply.calls)
        if self._cancelled and (unanswered or (reply.calls and not degraded)):
            return "cancelled"
        if unanswered or (reply.calls and not degraded):
            return "limited" if self._turns == self._max_turns else None
        if degraded:
            return "degraded"
        return "limited" if self._limited or reply.stop == "cut" else "done"

    def _stuck(self, reply: Reply, results: Sequence[ToolResult]) -> Status | None:
        """`"failed"` where the model makes the same invalid calls, or such as nobody can read, again and again."""
        unreadable = reply.stop == "malformed" and not reply.calls
        if not unreadable and not (results and all(result.status in _INVALID for result in results)):
            self._invalid_turns = []
            return None
        asked = [(call.name, call.raw) for call in reply.calls]
        self._invalid_turns = [*(turn for turn in self._invalid_turns if turn == asked), asked]
        if len(self._invalid_turns) < _MOST_INVALID:
            return None
        what, why = ("calls that nobody can read", reply.reason) if unreadable else ("the same calls", results[0].error)
        self._reason = f"the model made {what} {_MOST_INVALID} times" + (f": {why}" if why else "")
        return "failed"

    def _come_to(self, status: Status) -> LoopResult:
        records = [result.record() for result in self.results]
        ended = (self._usage, self.results, self._reason, self.state)
        return LoopResult(status, self._text, self.messages, records, self._turns, *ended)

    async def _answer(self, reply: Reply, refusal: str) -> AsyncGenerator[Event, None]:
        """Runs the calls that may run (none where there is a `refusal`), answers all of them, and appends the turn
        together with its answers to the history."""
        count = 0 if refusal else min(len(reply.calls), self._calls_left)
        allowed, over = reply.calls[:count], reply.calls[count:]
        self._calls_left -= count
        self._limited = self._limited or bool(over)
        refused = [self._refused(call, refusal or "This run may make no more calls") for call in over]
        answers: list[ToolResult] = []
        try:
            if allowed:
                async with aclosing(self._batch(allowed, answers)) as events:
                    async for event in events:
                        yield event
            for result in refused:
                yield Event("tool:pre", _call_of(result))
                yield Event("tool:error", _call_of(result), result)
        finally:
            self._calls_left += sum(result.executed is False and not result.success for result in answers)
            if len(answers) == count:
                answers += refused
                self.results += answers
                self.messages += [*reply.messages, *self._model.results(answers)]

    async def _batch(self, calls: Sequence[ToolCall], answers: list[ToolResult]) -> AsyncGenerator[Event, None]:
        """The events of `calls` while they run; their results go into `answers`, also when this is left early."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        batch = self._running = self._runner.batch(calls, self._context, observers=(_putting(queue),))
        if self._cancelled:
            batch.cancel(now=self._now)
        waiting = asyncio.ensure_future(batch)
        waiting.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._running = None
            if not waiting.done():
                batch.cancel(now=True)
                await asyncio.wait({waiting})
            broken = None if waiting.cancelled() else waiting.exception()
            answers += batch.results
        if broken is not None:
            raise broken

    def _refused(self, call: ToolCall, why: str) -> ToolResult:
        tool = self._runner.tools.find(call.name)
        return ToolResult(
            error=f"{why}. Nothing was run; answer with what there is.",
            call=call,
            tool_name=tool.name if tool else call.name,
            status="limited",
            executed=False,
        )


def _call_of(result: ToolResult) -> ToolCall:
    """The call of `result` under the tool's own name, as events have it."""
    assert result.call is not None
    return result.call.replace(name=result.tool_name)


def _putting(queue: asyncio.Queue[Event | None]) -> Callable[[Event], None]:
    """An observer that fills `queue`; progress may be made in any thread."""
    loop, home = asyncio.get_running_loop(), threading.get_ident()

    def put(event: Event) -> None:
        if threading.get_ident() == home:
            queue.put_nowait(event)
        else:
            loop.call_soon_threadsafe(queue.put_nowait, event)

    return put
