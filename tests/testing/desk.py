"""A framework that fits on a page, and its adapter, for the tests of `AdapterContract`."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from ferrule import Media, Runner, ToolCall, ToolContext, ToolResult
from ferrule.adapters.adapter import Adapter, record_from_result
from ferrule.testing import Framework, FrameworkRun, ModelView, Question, ScriptedCall

Record = Literal["unchanged", "changed", "lost"]
_conversations = itertools.count(1)


class DeskRun(FrameworkRun):
    """The model's calls, which run beside each other, and what a person says to those that wait."""

    def __init__(self, runner: Runner, session: str, calls: tuple[ScriptedCall, ...], suspends: bool = True) -> None:
        super().__init__()
        self.adapter = self.adapter_of(runner, suspends)
        self.session, self.calls = session, {said.id: said for said in calls}
        self.records: dict[str, Any] = {}

    def adapter_of(self, runner: Runner, suspends: bool) -> Adapter:
        return Adapter(runner, "Desk", suspends=suspends)

    def context(self) -> ToolContext:
        return ToolContext(session=self.session, principal="ada", deps="DEPS")

    def call(self, call_id: str) -> ToolCall:
        said = self.calls[call_id]
        return ToolCall(said.id, said.name, said.arguments)

    async def run_all(self) -> None:
        await asyncio.gather(*map(self.run_one, self.calls))

    async def run_one(self, call_id: str) -> None:
        async def tell(done: float, total: float | None, message: str | None) -> None:
            self.progress.append((call_id, done, total, message))

        self.see(call_id, await self.adapter.run(self.call(call_id), self.context(), tell))

    def see(self, call_id: str, result: ToolResult) -> None:
        if result.pending is not None:
            record = record_from_result(result)
            self.records.setdefault(call_id, record)
            self.questions[call_id] = self.question(record["pending"])
        else:
            self.results[call_id] = self.read(result)

    def question(self, pending: dict[str, Any]) -> Question:
        return Question(pending["arguments"], pending["reason"])

    def read(self, result: ToolResult) -> ModelView:
        media = tuple(
            block.data for block in result.content if isinstance(block, Media) and isinstance(block.data, bytes)
        )
        return ModelView(result.text, not result.success, media)

    async def answer(self, answers: Mapping[str, bool | dict[str, Any]], record: Record = "unchanged") -> None:
        for call_id, answer in answers.items():
            self.questions.pop(call_id, None)
            brought = copy.deepcopy(self.records[call_id])
            if record == "changed":
                brought["pending"]["arguments"]["euros"] = 500
            self.see(call_id, await self.answer_one(call_id, answer, None if record == "lost" else brought))

    async def answer_one(self, call_id: str, answer: bool | dict[str, Any], record: Any) -> ToolResult:
        return await self.adapter.answer(self.call(call_id), self.context(), answer, record)


class Desk(Framework):
    malformed_text = True
    has_principals = True
    stores_data = True
    suspends: ClassVar[bool] = True
    run: ClassVar[type[DeskRun]] = DeskRun

    async def start_run(self, runner: Runner, *calls: ScriptedCall) -> DeskRun:
        driven = self.run(runner, f"desk {next(_conversations)}", calls, self.suspends)
        await driven.run_all()
        return driven

    def export_run(self, waiting: DeskRun) -> Any:
        return waiting.session, tuple(waiting.calls.values()), waiting.records

    async def import_run(self, runner: Runner, stored: Any) -> DeskRun:
        session, calls, records = stored
        driven = self.run(runner, session, calls)
        driven.records = records
        return driven


class BlockingDesk(Desk):
    """One where no call can wait."""

    suspends = False
