"""The calls that wait for a person: those in the queues of this process, and those that a journal only knows about."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferrule import Decision, Runner, ToolResult, allow
from ferrule.approval import AcceptedAnswer, AnswerRefused, Asked, NotWaiting, QuestionChanged, WaitingCall, web
from ferrule.approval.request import run_blocking
from ferrule.approval.web import Web, list_queues
from ferrule.errors import DefinitionError
from ferrule.journal.reading import Filter, LoggedCall, Reader
from ferrule.stores.store import Memory, Store
from ferrule.values.frozen import thaw

QUESTIONS = "questions"
"""The topic of all questions."""
_MOST_ELSEWHERE = 50


@dataclass(frozen=True)
class Waiting:
    """A question that this page can show.

    Attributes:
        queue: The queue that it waits in.
        call: The call, with a current preview.
        can_resume: Whether an answer continues the call: it still runs, or the runner holds the key of its record.
    """

    queue: Web
    call: WaitingCall
    can_resume: bool

    @property
    def asked(self) -> Asked:
        """The question."""
        return self.call.request

    @property
    def pending(self) -> Mapping[str, Any]:
        """The sealed record."""
        return self.call.record.get("pending") or {}

    @property
    def wanted_schema(self) -> Mapping[str, Any] | None:
        """The schema of the answer, if a yes is not enough: the input of a tool, or the value of one parameter."""
        decision, tool = self.asked.decision, self.asked.tool
        if decision.schema is not None and decision.schema.get("properties"):
            return thaw(decision.schema)  # type: ignore[no-any-return]
        if decision.into is None:
            return None
        schema = thaw(tool.definition.handling.parameters.schema) if _has_parameters(tool) else {}
        node = schema.get("properties", {}).get(decision.into, {"type": "string"})
        properties = {"type": "object", "properties": {decision.into: {**node, "format": "password"}}}
        return {**properties, "required": [decision.into], "$defs": schema.get("$defs", {})}


def _has_parameters(tool: object) -> bool:
    parameters = getattr(getattr(getattr(tool, "definition", None), "handling", None), "parameters", None)
    return isinstance(getattr(parameters, "schema", None), Mapping)


class Questions:
    """All queues of a runner.

    Args:
        queue: The queue of the application; by default those in the store of the runner's journal, or one in memory.
    """

    def __init__(self, runner: Runner, queue: Web | None) -> None:
        self._queue = queue
        self._store: Store = Memory() if runner.journal is None or queue is not None else runner.journal.store
        self.use(runner)

    def use(self, runner: Runner) -> None:
        """Use another runner from now on."""
        self._runner = runner
        self._default = web(self._store, tools=runner.tools) if self._queue is None else self._queue

    @property
    def store(self) -> Store:
        """The store of the queues."""
        return self._default.store

    def find_conflict(self, person: str, principal: str) -> str:
        """Return why a person may not call under a principal, or an empty text.

        Where nobody may allow their own call, another name would turn it into somebody else's.
        """
        if self._queue is None or self._queue.own or principal == person:
            return ""
        return (
            f"Nobody may allow their own call here, so you call under your own name: write {person!r} as the principal."
        )

    async def put(self, result: ToolResult) -> str | None:
        """Add a suspended call, and return the id of its question; None if it waits for no person."""
        pending = result.pending
        if pending is None or pending["kind"] not in ("approval", "input"):
            return None
        return await self._default.put(result)

    async def count(self) -> int:
        """Return the number of questions."""
        return sum([await queue.count() for queue in await self._list_queues()])

    async def list_waiting(self) -> list[Waiting]:
        """Return all questions, the oldest first."""
        found = [self._make(queue, call) for queue in await self._list_queues() for call in await queue.waiting()]
        return sorted(found, key=lambda one: one.pending.get("asked_at", 0.0))

    async def find(self, id: str) -> Waiting:
        """Return one question.

        Raises:
            NotWaiting: It does not wait, or no longer.
        """
        found = next((one for one in await self.list_waiting() if one.call.id == id), None)
        if found is None:
            raise NotWaiting("this call does not wait: somebody has answered, or its time is over")
        return found

    async def _list_queues(self) -> list[Web]:
        if self._queue is not None:
            return [self._queue]
        names = await run_blocking(lambda: list_queues(self._store))
        tools = self._runner.tools
        return [self._default, *(web(self._store, tools=tools, name=name) for name in names if name)]

    def _make(self, queue: Web, call: WaitingCall) -> Waiting:
        try:
            can_resume = call.is_live or self._runner.is_sealed(call.record)
        except DefinitionError:
            can_resume = False
        return Waiting(queue, call, can_resume)

    async def answer(self, waiting: Waiting, digest: str, decision: Decision, by: str) -> AcceptedAnswer:
        """Take a question with its answer, once.

        Raises:
            AnswerRefused: The answer does not count.
        """
        if not waiting.can_resume:
            raise AnswerRefused("only the program that suspended this call can continue it: this one lacks its key")
        return await waiting.queue.answer(waiting.call.id, digest, decision, by=by)

    async def edit(self, waiting: Waiting, arguments: Mapping[str, Any]) -> Asked:
        """Return a question with other arguments and a new preview.

        Raises:
            ValueError: The arguments do not fit.
        """
        return await run_blocking(lambda: waiting.asked.with_arguments(arguments))

    async def approve_edited(
        self, waiting: Waiting, digest: str, arguments: Mapping[str, Any], edited_digest: str, by: str
    ) -> AcceptedAnswer:
        """Take a question with changed arguments, as they were shown.

        Raises:
            AnswerRefused: The question or the preview has changed, or the answer does not count.
            ValueError: The arguments do not fit.
        """
        edited = await self.edit(waiting, arguments)
        if edited.digest != edited_digest:
            raise QuestionChanged("the preview has changed since you saw it. Read it again, and then answer")
        return await self.answer(waiting, digest, edited.approve(by=by).decision, by)


def give_input(waiting: Waiting, values: Mapping[str, Any]) -> Decision:
    """Return the answer to a question for input."""
    if waiting.asked.decision.into is not None:
        return allow({**waiting.asked.call.arguments, **values})
    return allow(dict(values))


def list_elsewhere(reader: Reader, known: Sequence[Waiting]) -> list[LoggedCall]:
    """Return the suspended calls of a journal that no queue has. Only their own programs can continue them."""
    here = {(one.pending.get("call") or {}).get("id") for one in known}
    wanted = Filter(status={"suspended"}, since=time.time() - 30 * 86_400)
    return [call for call in reader.calls(wanted, newest=_MOST_ELSEWHERE) if call.call_id not in here]
