"""Strands Agents, driven by a model of our own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import pytest
from strands import Agent, Snapshot
from strands import ToolContext as StrandsContext
from strands import tool as strands_tool
from strands.models import Model
from strands.types.tools import AgentTool

from ferrule import (
    DefinitionError,
    Media,
    Runner,
    ToolCall,
    ToolContext,
    ToolResult,
    allow,
    deny,
    tool,
)
from ferrule.adapters import strands
from ferrule.testing import AdapterContract, Framework, FrameworkRun, ModelView, Question, ScriptedCall
from ferrule.testing.world import PNG, World


class Scripted(Model):
    """Makes its calls in the first turn, and then ends."""

    def __init__(self, calls: tuple[ScriptedCall, ...]) -> None:
        self._calls = calls

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {}

    async def structured_output(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield

    async def stream(self, messages: list[Any], *given: Any, **options: Any) -> AsyncIterator[Any]:
        asked = any("toolUse" in block for message in messages for block in message["content"])
        yield {"messageStart": {"role": "assistant"}}
        for said in () if asked else self._calls:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": said.name, "toolUseId": said.id}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(said.arguments)}}}}
            yield {"contentBlockStop": {}}
        if asked:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "done"}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if asked else "tool_use"}}


def with_deps(context: StrandsContext) -> ToolContext:
    return strands.to_context(context).replace(deps=context.invocation_state["deps"])


class DrivenAgent(FrameworkRun):
    def __init__(
        self, runner: Runner, calls: tuple[ScriptedCall, ...] = (), session: str | None = None, **options: Any
    ) -> None:
        super().__init__()

        def context(theirs: StrandsContext) -> ToolContext:
            made = with_deps(theirs)
            return made if session is None else made.replace(session=session)

        tools = strands.tools(runner, context=context)
        self.agent = Agent(model=Scripted(calls), tools=tools, callback_handler=None, **options)
        self.interrupts: dict[str, Any] = {}
        self.waiting: Any = None

    async def run(self, prompt: Any) -> None:
        async for event in self.agent.stream_async(prompt, invocation_state={"deps": "DEPS"}):
            if "tool_stream_event" in event:
                step = event["tool_stream_event"]
                self.progress.append((step["tool_use"]["toolUseId"], *step["data"].values()))
            if "result" in event:
                result = event["result"]
        self.interrupts = {interrupt.reason["call_id"]: interrupt for interrupt in result.interrupts or ()}
        self.questions = {
            call_id: Question(interrupt.reason["arguments"], interrupt.reason["reason"])
            for call_id, interrupt in self.interrupts.items()
        }
        for message in self.agent.messages:
            for block in message["content"]:
                if "toolResult" in block:
                    self.results[block["toolResult"]["toolUseId"]] = seen(block["toolResult"])
        if self.interrupts:
            self.waiting = self.agent.take_snapshot(preset="session"), self.interrupts

    async def answer(
        self,
        answers: Mapping[str, bool | dict[str, Any]],
        record: Literal["unchanged", "changed", "lost"] = "unchanged",
    ) -> None:
        waiting, interrupts = self.waiting
        self.agent.load_snapshot(waiting)
        await self.respond(
            {
                interrupts[call_id].id: {"arguments": answer} if isinstance(answer, dict) else answer
                for call_id, answer in answers.items()
            }
        )

    async def respond(self, responses: Mapping[str, Any]) -> None:
        """Resume with these responses, by the ids of interrupts."""
        await self.run(
            [{"interruptResponse": {"interruptId": id, "response": response}} for id, response in responses.items()]
        )


def seen(result: dict[str, Any]) -> ModelView:
    text = " ".join(block["text"] for block in result["content"] if "text" in block)
    media = tuple(block["image"]["source"]["bytes"] for block in result["content"] if "image" in block)
    return ModelView(text, result["status"] == "error", media)


class Strands(Framework):
    stores_data = True
    brings_record = False
    """An interrupt is answered by its id, which is of one record; the record itself stays here."""

    async def start_run(self, runner: Runner, *calls: ScriptedCall) -> DrivenAgent:
        driven = DrivenAgent(runner, calls)
        await driven.run("go")
        return driven

    def export_run(self, waiting: DrivenAgent) -> Any:
        snapshot, interrupts = waiting.waiting
        return waiting.agent.session_id, json.dumps(snapshot.to_dict()), interrupts

    async def import_run(self, runner: Runner, stored: Any) -> DrivenAgent:
        session, snapshot, interrupts = stored
        driven = DrivenAgent(runner, session=session)
        driven.waiting = Snapshot.from_dict(json.loads(snapshot)), interrupts
        return driven


class TestStrands(AdapterContract):
    framework = Strands()

    def test_a_text_is_a_denial_with_that_reason(self) -> None:
        world = World()
        _, driven = self.run_and_answer(world, {"c1": "too much"}, ScriptedCall("c1", "pay", {"to": "ada"}))  # type: ignore[dict-item]
        assert driven.results["c1"].failed and "too much" in driven.results["c1"].text
        assert not world.paid

    async def test_a_cancelled_agent_cancels_its_calls(self) -> None:
        world = World()
        driven = DrivenAgent(world.runner(), (ScriptedCall("c1", "wait"),))
        task = asyncio.ensure_future(driven.run("go"))
        await world.entered.wait()
        driven.agent.cancel()
        await task
        assert driven.results["c1"] == ModelView("The call was cancelled.", failed=True)
        assert world.cancelled == 1

    async def test_a_call_of_a_cancelled_agent_does_not_begin(self) -> None:
        looked = []

        @tool(read_only=True)
        async def look() -> None:
            looked.append(True)

        [made] = strands.tools(Runner([look]))
        agent = Agent(model=Scripted(()), callback_handler=None)
        agent.cancel()
        sent: Any = {"name": "look", "toolUseId": "c1", "input": {}}
        assert [
            seen(result) for result in [event["tool_result"] async for event in made.stream(sent, {"agent": agent})]
        ] == [ModelView("The call was cancelled.", failed=True)]
        assert not looked

    async def test_a_closed_stream_cancels_its_call(self) -> None:
        cancelled = []

        @tool(read_only=True)
        async def wait(context: ToolContext) -> None:
            context.progress(1)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                cancelled.append(True)

        [made] = strands.tools(Runner([wait]))
        agent = Agent(model=Scripted(()), callback_handler=None)
        sent: Any = {"name": "wait", "toolUseId": "c1", "input": {}}
        events: Any = made.stream(sent, {"agent": agent})
        assert (await anext(events))["done"] == 1
        await events.aclose()
        assert cancelled

    async def test_a_background_call_waits_for_a_person(self) -> None:
        world = World()
        call = ScriptedCall("c1", "pay", {"to": "ada"})
        driven = DrivenAgent(world.runner(), (call,), background_tasks={"always": ["pay"]})
        await driven.run("go")
        assert driven.questions == {"c1": Question({"to": "ada", "euros": 1}, "pay changes things")}
        assert not world.paid
        await driven.respond({driven.interrupts["c1"].id: True})
        assert world.paid == {"ada 1": 1}

    async def test_a_call_without_a_session_cannot_wait(self, caplog: pytest.LogCaptureFixture) -> None:
        world = World()
        driven = DrivenAgent(world.runner())
        driven.agent = Agent(
            model=Scripted((ScriptedCall("c1", "pay", {"to": "ada"}),)),
            tools=strands.tools(world.runner(), context=lambda context: ToolContext()),
            callback_handler=None,
        )
        await driven.run("go")
        assert driven.results["c1"] == ModelView(
            "pay needs a person's answer, and nobody can be asked here. Nothing was run.", failed=True
        )
        assert not world.paid and "a function that returns a ToolContext with a session" in caplog.text

    async def test_a_document_gets_a_valid_name(self) -> None:
        @tool(read_only=True)
        async def report() -> ToolResult:
            return ToolResult("it", content=[Media("file", b"a,b", "text/csv; charset=utf-8", name="q3/sums.csv")])

        driven = await Strands().start_run(Runner([report]), ScriptedCall("c1", "report"))
        [result] = [
            block["toolResult"]
            for message in driven.agent.messages
            for block in message["content"]
            if "toolResult" in block
        ]
        assert result["content"] == [
            {"document": {"format": "csv", "name": "q3-sums-csv", "source": {"bytes": b"a,b"}}}
        ]


@strands_tool
def roll(sides: int, times: int = 2) -> dict[str, Any]:
    """Roll dice.

    Args:
        sides: How many.
    """
    if sides < 2:
        raise ValueError("sides must be 2 or more")
    return {"status": "success", "content": [{"json": {"rolled": f"{times} of {sides}"}}]}


@strands_tool(context=True)
async def ask_leave(tool_context: StrandsContext) -> str:
    """Ask for leave."""
    days = tool_context.interrupt("days", "How many days?")
    place = tool_context.interrupt("place", "Where?")
    return f"{days} days in {place}"


class Served(AgentTool):
    """A tool as an MCP server gives it."""

    tool_name = "served"
    tool_type = "python"
    tool_spec = {
        "name": "served",
        "description": "Served.",
        "inputSchema": {"json": {"type": "object", "properties": {}}},
        "outputSchema": {"json": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
        "annotations": {"readOnlyHint": True},
    }

    async def stream(self, tool_use: Any, invocation_state: dict[str, Any], **kwargs: Any) -> AsyncIterator[Any]:
        picture = {"image": {"format": "png", "source": {"bytes": PNG}}}
        content = [{"text": "one"}, picture]
        yield {"toolUseId": "c1", "status": "success", "content": content, "structuredContent": {"n": 1}}


async def run_ours(theirs: Any, arguments: dict[str, Any], agent: Any = None, **options: Any) -> ToolResult:
    runner = Runner(strands.from_tools([theirs], agent=agent), **options)
    return await runner.run(ToolCall("c1", theirs.tool_name, arguments))


@pytest.mark.parametrize(("expose", "told"), [({}, False), ({"expose": (RuntimeError,)}, True)])
async def test_an_exception_is_shown_only_if_the_runner_exposes_it(expose: Any, told: bool) -> None:
    @strands_tool
    def breaking() -> str:
        """Breaks."""
        raise RuntimeError("the database at 10.0.0.7 is down")

    result = await run_ours(breaking, {}, **expose)
    assert result.status == "failed" and ("10.0.0.7" in result.text) is told


async def test_a_strands_tool_keeps_description_and_schema() -> None:
    made = strands.from_tools([roll]).get("roll")
    assert made.description == "Roll dice."
    assert made.input_schema["properties"].keys() == {"sides", "times"}
    assert (await run_ours(roll, {"sides": 6})).output == {"rolled": "2 of 6"}
    assert (await run_ours(roll, {"sides": "six"})).status == "invalid"
    failed = await run_ours(roll, {"sides": 1})
    assert not failed.success and "sides must be 2 or more" in failed.text


async def test_structured_content_and_media_are_kept() -> None:
    result = await run_ours(Served(), {})
    assert result.output == {"n": 1} and result.text == "one"
    assert [block.data for block in result.content if isinstance(block, Media)] == [PNG]
    made = strands.from_tools([Served()]).get("served")
    assert list(made.output_schema["required"]) == ["n"]
    assert made.read_only is False and made.metadata["annotations"] == {"readOnlyHint": True}


async def test_streamed_values_are_progress() -> None:
    @strands_tool
    async def count(to: int) -> AsyncIterator[Any]:
        """Count."""
        for step in range(to):
            yield step
        yield "counted"

    told: list[Any] = []
    result = await run_ours(count, {"to": 2}, observers=[lambda event: told.append(event.data.get("chunk"))])
    assert result.output == "counted"
    assert [chunk for chunk in told if chunk is not None] == [0, 1, "counted"]


def test_a_tool_with_a_context_needs_an_agent() -> None:
    with pytest.raises(DefinitionError, match=r"'ask_leave' takes 'tool_context'.*agent=…"):
        strands.from_tools([ask_leave])
    with pytest.raises(DefinitionError, match="functions with @tool"):
        strands.from_tools([len])  # type: ignore[list-item]


async def test_an_answer_to_an_interrupt_counts_for_one_call() -> None:
    def approve(call: ToolCall, decision: Any, context: ToolContext) -> Any:
        asked.append((context.principal, call.arguments["path"], decision.reason))
        return allow({"response": "yes"}) if context.principal == "ada" else deny("no")

    @strands_tool(context=True)
    async def delete(path: str, tool_context: StrandsContext) -> str:
        """Delete."""
        return str(tool_context.interrupt("sure", f"delete {path}?"))

    agent, asked = Agent(model=Scripted(()), callback_handler=None), list[Any]()
    runner = Runner(strands.from_tools([delete], agent=agent), approve=approve)
    one, other = (ToolCall("call_0", "delete", {"path": path}) for path in ("a", "/etc"))
    given = [(one, "ada", "s"), (other, "bob", "s"), (other, "bob", None), (one, "bob", "s"), (one, "ada", None)]
    assert (
        [(await runner.run(call, principal=principal, session=session)).status for call, principal, session in given]
    ) == ["ok", "denied", "denied", "denied", "ok"]
    assert len(asked) == 5
    assert not agent._interrupt_state.interrupts, "nor is there one for the agent's own calls"
