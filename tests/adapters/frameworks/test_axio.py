"""axio, driven by its `StubTransport`; and its tools and guards in a runner."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from axio.agent import Agent
from axio.blocks import ContentBlock, ImageBlock, TextBlock, ToolResultBlock, ToolUseBlock
from axio.context import MemoryContextStore
from axio.events import IterationEnd, ToolInputDelta, ToolUseStart
from axio.exceptions import GuardError, HandlerError, StreamError
from axio.permission import ConcurrentGuard, PermissionGuard
from axio.testing import StubTransport, make_text_response
from axio.tool import CONTEXT
from axio.tool import Tool as AxioTool
from axio.tool_access import Access, file_access
from axio.types import StopReason, Usage

from ferrule import Media, Runner, Text, ToolCall, ToolContext, tool
from ferrule.adapters import axio
from ferrule.guards import ask_before_changes
from ferrule.testing import BlockingAdapterContract, Framework, FrameworkRun, ModelView, ScriptedCall


class Axio(Framework):
    has_principals = True
    tells_progress = False  # a before_tools hook has no way to the stream of events

    async def start_run(self, runner: Runner, *calls: ScriptedCall) -> FrameworkRun:
        return await drive(agent_of(runner, *calls))


def turn(*calls: ScriptedCall) -> list[Any]:
    events: list[Any] = []
    for place, said in enumerate(calls):
        events += [ToolUseStart(place, said.id, said.name), ToolInputDelta(place, said.id, json.dumps(said.arguments))]
    return [*events, IterationEnd(1, StopReason.tool_use, Usage(1, 1))]


def agent_of(runner: Runner, *calls: ScriptedCall, **options: Any) -> Agent:
    context = ToolContext(session="s", principal="ada", deps="DEPS")
    given = {"before_tools": axio.before_tools(runner, context), "tools": axio.tools(runner), **options}
    return Agent("You pay.", StubTransport([turn(*calls), make_text_response()]), **given)


async def drive(agent: Agent) -> FrameworkRun:
    driven, store = FrameworkRun(), MemoryContextStore()
    await agent.run("go", store)
    for message in await store.get_history():
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                driven.results[block.tool_use_id] = seen(block)
    return driven


def seen(block: ToolResultBlock) -> ModelView:
    content = [TextBlock(block.content)] if isinstance(block.content, str) else block.content
    media = tuple(one.data for one in content if isinstance(one, ImageBlock))
    return ModelView(" ".join(one.text for one in content if isinstance(one, TextBlock)), block.is_error, media)


class TestAxio(BlockingAdapterContract):
    framework = Axio()


@tool
async def pay(to: str, euros: int = 1) -> str:
    return f"paid {euros} EUR to {to}"


async def test_a_context_function_that_raises_runs_nothing() -> None:
    def unmade() -> ToolContext:
        raise RuntimeError("the secret inside")

    runner = Runner([pay])
    agent = agent_of(runner, ScriptedCall("c1", "pay", {"to": "ada"}), before_tools=axio.before_tools(runner, unmade))
    seen = (await drive(agent)).results["c1"]
    assert seen.failed and seen.text.startswith("pay failed") and "secret" not in seen.text


async def test_two_calls_with_one_id_run_once() -> None:
    ran: list[str] = []

    @tool
    async def note(word: str) -> str:
        ran.append(word)
        return word

    blocks = [ToolUseBlock("c1", "note", {"word": "a"}), ToolUseBlock("c1", "note", {"word": "b"})]
    [result] = await axio.before_tools(Runner([note]))(blocks, 1)
    assert (result.tool_use_id, result.content, ran) == ("c1", "a", ["a"])


async def test_tools_without_before_tools_run_nothing() -> None:
    driven = await drive(agent_of(Runner([pay]), ScriptedCall("c1", "pay", {"to": "ada"}), before_tools=None))
    assert driven.results["c1"].failed and "before_tools" in driven.results["c1"].text


async def test_guards_of_the_agent_are_refused() -> None:
    agent = agent_of(Runner([pay]), ScriptedCall("c1", "pay", {"to": "ada"}), tool_guards=(AtMost(),))
    with pytest.raises(StreamError, match=r"guards=\[axio.guard"):
        await drive(agent)


class AtMost(PermissionGuard):
    async def check(self, tool: Any, **arguments: Any) -> dict[str, Any]:
        if arguments["euros"] > 100:
            raise GuardError("more than 100 EUR")
        return {**arguments, "to": arguments["to"].lower()}


@pytest.mark.parametrize("guard", [axio.guard(AtMost()), AtMost()])
async def test_a_guard_of_axio_denies_and_changes_arguments(guard: Any) -> None:
    runner = Runner([pay], guards=[guard])
    denied = await runner.run("pay", {"to": "ada", "euros": 500})
    assert (denied.status, denied.executed) == ("denied", False)
    assert "more than 100 EUR" in denied.text
    assert (await runner.run("pay", {"to": "ADA"})).text == "paid 1 EUR to ada"


async def test_a_guard_that_returns_nothing_denies() -> None:
    class Forgets(PermissionGuard):
        async def check(self, tool: Any, **arguments: Any) -> Any:
            return None

    assert (await Runner([pay], guards=[axio.guard(Forgets())]).run("pay", {"to": "ada"})).status == "denied"


@pytest.mark.parametrize("taken", [axio.guard, lambda guard: guard])
async def test_a_concurrent_guard_checks_one_call_at_a_time(taken: Any) -> None:
    class Counts(ConcurrentGuard):
        now = most = 0

        async def check(self, tool: Any, **arguments: Any) -> dict[str, Any]:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.gather(*(asyncio.to_thread(int) for _ in range(3)))
            self.now -= 1
            return arguments

    guard = Counts()
    runner = Runner([pay.replace(parallel=True)], guards=[taken(guard)])
    results = await runner.run_all([ToolCall(f"c{n}", "pay", {"to": "ada"}) for n in range(4)])
    assert all(result.success for result in results)
    assert guard.most == 1


async def roll(sides: int, times: int = 2) -> str:
    """Roll dice."""
    if sides == 7:
        raise RuntimeError("the secret inside")
    if sides == 8:
        raise HandlerError("no die has eight sides here")
    return f"{sides}x{times} {CONTEXT.get()}"


class Small(PermissionGuard):
    async def check(self, tool: Any, **arguments: Any) -> dict[str, Any]:
        if arguments["sides"] > 100:
            raise GuardError(f"{tool.name} of {tool.context}: too many sides")
        return {**arguments, "times": max(arguments["times"], 3)}


async def test_a_tool_keeps_its_schema_guards_context_and_limit() -> None:
    (ours,) = axio.from_tools([AxioTool("roll", roll, guards=(Small(),), concurrency=2, context="CUP")])
    assert (ours.name, ours.description, ours.concurrency) == ("roll", "Roll dice.", 2)
    assert [*ours.input_schema["required"]] == ["sides"]
    runner = Runner([ours])
    assert (await runner.run("roll", {"sides": 6})).text == "6x3 CUP"
    denied = await runner.run("roll", {"sides": 600})
    assert denied.status == "denied" and "roll of CUP: too many sides" in denied.text
    assert (await runner.run("roll", {"side": 6})).status == "invalid"


async def test_a_failure_has_only_the_text_meant_for_the_model() -> None:
    runner = Runner(axio.from_tools([AxioTool("roll", roll)]))
    meant, raised = [await runner.run("roll", {"sides": sides}) for sides in (8, 7)]
    assert (meant.status, meant.error) == ("failed", "no die has eight sides here")
    assert raised.status == "failed" and "secret" not in raised.text and isinstance(raised.exception, RuntimeError)


@pytest.mark.parametrize(
    ("access", "reads"),
    [
        (None, False),
        (file_access("read", "path"), True),
        (file_access("write", "path"), False),
        (lambda arguments: (), True),
        (lambda arguments: (Access("unknown"),), False),
        (lambda arguments: (Access("read", "a"), Access("execute")), False),
    ],
)
async def test_a_tool_is_read_only_if_its_access_says_so(access: Any, reads: bool) -> None:
    async def look(path: str) -> str:
        """Look."""
        return path

    runner = Runner(axio.from_tools([AxioTool("look", look, access=access)]), guards=[ask_before_changes])
    decision = await runner.decide(ToolCall("c1", "look", {"path": "a"}))
    assert (decision.kind == "allow") is reads


async def test_blocks_are_converted() -> None:
    async def picture() -> list[ContentBlock]:
        """A picture."""
        return [TextBlock("a dot"), ImageBlock("image/png", b"PNG")]

    result = await Runner(axio.from_tools([AxioTool("picture", picture)])).run("picture", {})
    assert result.content == (Text("a dot"), Media("image", b"PNG", "image/png"))
