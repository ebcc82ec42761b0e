"""The calls that the page makes or resumes, while this process lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from ferrule import Batch, Decision, Event, Runner, ToolCall, ToolContext, ToolResult
from ferrule.approval import AcceptedAnswer
from ferrule.journal.event_log import EventLog
from ferrule.journal.reading import LoggedCall
from ferrule.values.call import new_id
from ferrule.web.live import Topics

log = logging.getLogger("ferrule")
_MOST_RUNS = 200


@dataclass(eq=False)
class Run:
    """One call of the page.

    Attributes:
        id: Its id in addresses of the page.
        call: The call as the person sent it.
        verdicts: What each guard says about the call, before it runs.
        result: The result that observers saw, or None while it runs.
        question: The id of the question that it waits for, or None.
        problem: Why it could not run; an error of the program, not of the tool.
        is_stopping: Whether the person has stopped it.
    """

    id: str
    call: ToolCall
    log: EventLog = field(default_factory=EventLog)
    verdicts: tuple[Decision, ...] = ()
    result: ToolResult | None = None
    question: str | None = None
    problem: str = ""
    is_stopping: bool = False
    batch: Batch | None = None
    task: asyncio.Task[None] | None = None

    @property
    def topic(self) -> str:
        """The topic of its changes."""
        return f"run:{self.id}"

    @property
    def logged(self) -> LoggedCall | None:
        """Its events so far, as a journal has them."""
        return self.log.call

    @property
    def status(self) -> str:
        """Its status, or `running`."""
        if self.problem:
            return "failed"
        logged = self.logged
        return "running" if logged is None or (logged.status == "suspended" and not self.is_over) else logged.status

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen, unless somebody answers."""
        return self.task is not None and self.task.done()


class Runs:
    """The newest calls of the page.

    Args:
        topics: Are told about each event.
        put_question: Is given each suspended result, and returns the id of its question.
    """

    def __init__(self, topics: Topics, put_question: Callable[[ToolResult], Awaitable[str | None]]) -> None:
        self._topics = topics
        self._put_question = put_question
        self._runs: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, id: str) -> Run | None:
        """Return the call with this id, or None."""
        return self._runs.get(id)

    def find_by_question(self, question: str) -> Run | None:
        """Return the call that waits for the answer to a question, or None."""
        return next((run for run in self._runs.values() if run.question == question), None)

    def begin(self, runner: Runner, call: ToolCall, context: ToolContext) -> Run:
        """Begin a call, and return it."""
        run = self._add(Run(call.id or new_id(), call))

        async def work() -> None:
            run.verdicts = tuple(await runner.explain(call, context))
            run.batch = runner.batch([call], context, observers=[lambda event: self._observe(run, event)])
            if run.is_stopping:
                run.batch.cancel(now=True)
            [result] = await run.batch
            await self._settle(run, result)

        self._start(run, work)
        return run

    def resume(self, runner: Runner, answer: AcceptedAnswer, question: str, call: ToolCall) -> Run:
        """Resume a suspended call with an answer, and return it."""
        run = self.find_by_question(question) or self._add(Run(new_id(), call))
        run.question, run.batch = None, None

        async def work() -> None:
            observers = [lambda event: self._observe(run, event)]
            result = await runner.resume(answer.record, answer.decision, by=answer.by, observers=observers)
            await self._settle(run, result)

        self._start(run, work)
        return run

    def stop(self, run: Run) -> None:
        """Cancel a call."""
        run.is_stopping = True
        if run.batch is not None:
            run.batch.cancel(now=True)
        elif run.task is not None and len(run.log):
            run.task.cancel()
        self._topics.announce(run.topic)

    async def close(self) -> None:
        """Wait until the calls have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _add(self, run: Run) -> Run:
        self._runs[run.id] = run
        over = [one.id for one in self._runs.values() if one.is_over and one.question is None]
        for id in over[: max(len(self._runs) - _MOST_RUNS, 0)]:
            del self._runs[id]
        return run

    def _start(self, run: Run, work: Callable[[], Awaitable[None]]) -> None:
        async def guarded() -> None:
            try:
                await work()
            except Exception as error:
                log.exception("a call of the page could not run")
                run.problem = f"{type(error).__name__}: {error}"

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._topics.announce(run.topic)

        run.task = asyncio.ensure_future(guarded())
        self._tasks.add(run.task)
        run.task.add_done_callback(end)

    def _observe(self, run: Run, event: Event) -> None:
        if event.call.id != run.call.id and len(run.log) and event.call.parent is not None:
            return  # a call that the tool made itself
        run.log.note(event)
        result: Any = event.data.get("result")
        if isinstance(result, ToolResult):
            run.result = result
        self._topics.announce(run.topic)

    async def _settle(self, run: Run, result: ToolResult) -> None:
        if result.status == "suspended":
            run.question = await self._put_question(result)
        elif run.logged is None:  # it never began: its record was not accepted
            run.problem = result.error or result.status
