"""A framework of a few lines, its adapter, and the tests that an adapter has to pass."""

import asyncio
import itertools

from ferrule import Media, ToolCall, ToolContext
from ferrule.adapters import Adapter, record_from_result
from ferrule.testing import AdapterContract, Framework, FrameworkRun, ModelView, Question

numbers = itertools.count(1)


class DeskRun(FrameworkRun):  # the framework: calls that run beside each other
    def __init__(self, runner, session, calls):
        super().__init__()
        self.adapter = Adapter(runner, "Desk", suspends=True)
        self.context = ToolContext(principal="ada", session=session, deps="DEPS")
        self.calls = {call.id: call for call in calls}
        self.records = {}

    def make_call(self, call_id):
        call = self.calls[call_id]
        return ToolCall(call.id, call.name, call.arguments)

    async def run(self, call_id):
        async def on_progress(done, total, message):
            self.progress.append((call_id, done, total, message))

        self.show(call_id, await self.adapter.run(self.make_call(call_id), self.context, on_progress))

    def show(self, call_id, result):
        if result.pending:
            self.records.setdefault(call_id, record_from_result(result))
            self.questions[call_id] = Question(result.pending["arguments"], result.pending["reason"])
        else:
            media = [block.data for block in result.content if isinstance(block, Media)]
            self.results[call_id] = ModelView(result.text, not result.success, tuple(media))

    async def answer(self, answers, record="unchanged"):
        for call_id, answer in answers.items():
            stored = {"pending": dict(self.records[call_id]["pending"])}
            if record == "changed":
                stored["pending"]["arguments"] = {"to": "ada", "euros": 500}
            sent = None if record == "lost" else stored
            self.questions.pop(call_id, None)
            self.show(call_id, await self.adapter.answer(self.make_call(call_id), self.context, answer, sent))


class Desk(Framework):
    malformed_text = True
    has_principals = True
    stores_data = True

    async def start_run(self, runner, *calls):
        run = DeskRun(runner, f"conversation {next(numbers)}", calls)
        await asyncio.gather(*map(run.run, run.calls))
        return run

    def export_run(self, waiting):
        return waiting.context.session, tuple(waiting.calls.values()), waiting.records

    async def import_run(self, runner, stored):
        session, calls, records = stored
        run = DeskRun(runner, session, calls)
        run.records = records
        return run


class TestDesk(AdapterContract):
    framework = Desk()
