"""pydantic-ai, driven by a `FunctionModel`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

from conformance import Conformance, Driven, Framework, Question, Said, Seen
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    RetryPromptPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.tools import DeferredToolRequests, ToolApproved, ToolDenied

from ferrule import Runner
from ferrule.interop import pydantic_ai


class DrivenAgent(Driven):
    def __init__(self, runner: Runner, calls: tuple[Said, ...]) -> None:
        super().__init__()
        self._calls = calls
        self._agent = Agent(
            FunctionModel(stream_function=self._reply),
            toolsets=[pydantic_ai.toolset(runner)],
            output_type=[str, DeferredToolRequests],
            deps_type=str,
        )
        self._waiting: Any = None

    async def _reply(self, messages: list[Any], info: Any) -> AsyncIterator[Any]:
        if len(messages) > 1:
            yield "done"
            return
        for place, said in enumerate(self._calls):
            text = said.arguments if isinstance(said.arguments, str) else json.dumps(said.arguments)
            yield {place: DeltaToolCall(name=said.name, json_args=text, tool_call_id=said.id)}

    async def run(self, **given: Any) -> None:
        done = await self._agent.run(deps="DEPS", event_stream_handler=self._see, **given)
        for message in done.all_messages():
            for part in message.parts:
                if isinstance(part, ToolReturnPart | RetryPromptPart) and part.tool_call_id:
                    self.results[part.tool_call_id] = seen(part)
        self.questions = {}
        if isinstance(done.output, DeferredToolRequests):
            self._waiting = done
            for part in done.output.approvals:
                reason = done.output.metadata[part.tool_call_id]["reason"]
                self.questions[part.tool_call_id] = Question(part.args_as_dict(), reason)

    async def _see(self, ctx: Any, events: Any) -> None:
        async for event in events:
            if isinstance(event, pydantic_ai.Progress):
                self.progress.append((event.tool_call_id, event.done, event.total, event.message))

    async def answer(
        self, answers: Mapping[str, bool | dict[str, Any]], record: Literal["kept", "changed", "lost"] = "kept"
    ) -> None:
        waiting = self._waiting
        metadata = json.loads(json.dumps(waiting.output.metadata))
        if record == "changed":
            for kept in metadata.values():
                kept["ferrule"]["pending"]["arguments"]["euros"] = 500
        approvals = {
            call_id: ToolApproved(override_args=answer) if isinstance(answer, dict) else answer or ToolDenied("no")
            for call_id, answer in answers.items()
        }
        given = {} if record == "lost" else {"metadata": metadata}
        results = waiting.output.build_results(approvals=approvals, **given)
        history = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(waiting.all_messages()))
        await self.run(message_history=history, deferred_tool_results=results)


def seen(part: ToolReturnPart | RetryPromptPart) -> Seen:
    if isinstance(part, RetryPromptPart):
        return Seen(part.model_response(), failed=True)
    content = part.content if isinstance(part.content, list) else [part.content]
    media = tuple(block.data for block in content if isinstance(block, BinaryContent))
    return Seen(" ".join(str(block) for block in content if isinstance(block, str)), part.outcome != "success", media)


class PydanticAI(Framework):
    async def drive(self, runner: Runner, *calls: Said) -> Driven:
        driven = DrivenAgent(runner, calls)
        await driven.run(user_prompt="go")
        return driven


class TestPydanticAI(Conformance):
    framework = PydanticAI()
