"""What a call costs through an adapter, ÷ (the framework's own way for a plain function + the runner's).

Each framework is measured in its environment (scripts/frameworks.py), all ways in turns, in process time. LangChain's
is a node of a graph.

Two figures: beside "both", the two of them one after the other, and beside the sum of each in a loop of its own. The
latter is 3 to 10 µs less than a program pays that makes both: code that runs alone stays in the processor's caches.

The largest costs beside "both": pydantic_ai, 10 µs: a context is made of theirs, an observer follows the progress, and
the result's text is read. strands, 10 µs: the agent's cancel_signal and a call's progress come while it runs, so it is
a task; before Python 3.12 no task begins at once, and it is 25 µs. An agent of Strands adds 140 µs to both ways.
amplifier, 0.15 ms: one hook of theirs, by which the adapter sees that an orchestrator tells the hooks itself.
claude_agent costs a quarter of the SDK's own way, which makes a validator for each call.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import warnings
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

from measure import Block, Line, measure_rounds

ROOT = Path(__file__).parent.parent
ROUNDS, CALLS = 15, 100
ARGUMENTS = {"a": 20, "b": 22}
Way: TypeAlias = Callable[[int], Awaitable[Any]]
"""Makes the call of this number, whose id nothing else has."""


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def runner() -> Any:
    """With a journal, as adapters want one."""
    from ferrule import Runner, tool
    from ferrule.journal import memory

    return Runner([tool(add, read_only=True)], journal=memory())


async def pydantic_ai() -> tuple[Way, Way]:
    from pydantic_ai import FunctionToolset, RunContext
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.usage import RunUsage

    from ferrule.adapters import pydantic_ai as ours

    async def way(toolset: Any) -> Way:
        def context(number: int) -> Any:
            given = {"deps": None, "model": TestModel(), "usage": RunUsage(), "conversation_id": "s"}
            return RunContext(tool_call_id=f"c{number}", tool_name="add", **given)

        tool = (await toolset.get_tools(context(0)))["add"]

        async def call(number: int) -> Any:
            validated = tool.args_validator.validate_python(ARGUMENTS)
            return await toolset.call_tool("add", validated, context(number), tool)

        return call

    return await way(FunctionToolset([add])), await way(ours.toolset(runner()))


async def openai_agents() -> tuple[Way, Way]:
    from agents import function_tool
    from agents.tool_context import ToolContext

    from ferrule.adapters import openai_agents as ours

    def way(tool: Any) -> Way:
        text = json.dumps(ARGUMENTS)

        async def call(number: int) -> Any:
            context = ToolContext(context=None, tool_name="add", tool_call_id=f"c{number}", tool_arguments=text)
            return await tool.on_invoke_tool(context, text)

        return call

    return way(function_tool(add)), way(ours.tools(runner())[0])


async def langchain() -> tuple[Way, Way]:
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool as their_tool
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    from ferrule.adapters import langchain as ours

    def way(tool: Any) -> Way:
        graph = StateGraph(MessagesState).add_node("tools", ToolNode([tool])).add_edge(START, "tools").compile()

        async def call(number: int) -> Any:
            wanted = AIMessage("", tool_calls=[{"id": f"c{number}", "name": "add", "args": ARGUMENTS}])
            return await graph.ainvoke({"messages": [wanted]}, {"configurable": {"thread_id": "s"}})

        return call

    return way(their_tool(add)), way(ours.tools(runner())[0])


async def fastmcp() -> tuple[Way, Way]:
    from fastmcp import Client, FastMCP

    from ferrule.adapters import fastmcp as ours

    async def way(server: Any) -> Way:
        client = await Client(server).__aenter__()

        async def call(number: int) -> Any:
            return await client.call_tool("add", ARGUMENTS)

        return call

    own, through = FastMCP("own"), FastMCP("through")
    own.tool(add)
    through.add_provider(ours.provider(runner()))
    return await way(own), await way(through)


async def google_adk() -> tuple[Way, Way]:
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.sessions import InMemorySessionService
    from google.adk.tools import FunctionTool
    from google.adk.tools.tool_context import ToolContext

    from ferrule.adapters import google_adk as ours

    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name="a", user_id="u")
    invocation = InvocationContext(session_service=sessions, session=session, invocation_id="i")

    def way(tool: Any) -> Way:
        async def call(number: int) -> Any:
            context = ToolContext(invocation_context=invocation, function_call_id=f"c{number}")
            return await tool.run_async(args=dict(ARGUMENTS), tool_context=context)

        return call

    return way(FunctionTool(add)), way((await ours.toolset(runner()).get_tools())[0])


async def strands() -> tuple[Way, Way]:
    import strands as theirs

    from ferrule.adapters import strands as ours

    no_model: Any = SimpleNamespace(stateful=False)
    agent = theirs.Agent(model=no_model, callback_handler=None)

    def way(tool: Any) -> Way:
        async def call(number: int) -> Any:
            sent = {"name": "add", "toolUseId": f"c{number}", "input": dict(ARGUMENTS)}
            return [event async for event in tool.stream(sent, {"agent": agent})][-1]

        return call

    return way(theirs.tool(add)), way(ours.tools(runner())[0])


async def claude_agent() -> tuple[Way, Way]:
    """Without Claude Code: the server of its tools, and for ours the hook that comes before each call."""
    from claude_agent_sdk import create_sdk_mcp_server
    from claude_agent_sdk import tool as their_tool
    from mcp import Client

    from ferrule.adapters import claude_agent as ours

    async def add_up(given: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": str(await add(**given))}]}

    async def way(config: Any, name: str, before: Callable[..., Awaitable[Any]] | None = None) -> Way:
        client = await Client(config["instance"]).__aenter__()
        about = {"tool_name": "mcp__ferrule__add", "session_id": "s", "cwd": "/", "tool_input": ARGUMENTS}

        async def call(number: int) -> Any:
            if before is not None:
                await before({**about, "tool_use_id": f"c{number}"}, f"c{number}", {})
            return await client.call_tool(name, ARGUMENTS, meta={"claudecode/toolUseId": f"c{number}"})

        return call

    own = create_sdk_mcp_server("own", tools=[their_tool("add", "Add two numbers.", {"a": int, "b": int})(add_up)])
    guarded = ours.client(runner())
    guarded._gate.connected.set()  # as `connect` does with Claude Code
    options: Any = guarded.options
    through = await way(options.mcp_servers["ferrule"], "add", options.hooks["PreToolUse"][0].hooks[0])
    return await way(own, "add"), through


async def axio() -> tuple[Way, Way]:
    from axio.agent import Agent
    from axio.blocks import ToolUseBlock
    from axio.testing import make_stub_transport
    from axio.tool import Tool

    from ferrule.adapters import axio as ours

    def way(**options: Any) -> Way:
        agent = Agent("", make_stub_transport(), **options)

        async def call(number: int) -> Any:
            return await agent.dispatch_tools([ToolUseBlock(f"c{number}", "add", dict(ARGUMENTS))], 1)

        return call

    made = runner()
    return way(tools=[Tool("add", add)]), way(tools=ours.tools(made), before_tools=ours.before_tools(made))


async def amplifier() -> tuple[Way, Way]:
    from amplifier_core import ToolResult
    from amplifier_core.testing import MockCoordinator

    from ferrule.adapters import amplifier as ours

    class Plain:
        async def execute(self, input: dict[str, Any]) -> ToolResult:
            return ToolResult(output=await add(**input))

    async def way(mount: Callable[..., Awaitable[Any]]) -> Way:
        coordinator = MockCoordinator()
        await mount(coordinator)

        async def call(number: int) -> Any:
            told = {"tool_name": "add", "tool_input": ARGUMENTS}
            await coordinator.hooks.emit("tool:pre", told)
            result = await coordinator.get("tools", "add").execute(dict(ARGUMENTS))
            await coordinator.hooks.emit("tool:post", told)
            return result

        return call

    async def plain(coordinator: Any) -> None:
        await coordinator.mount("tools", Plain(), name="add")

    return await way(plain), await way(ours.mount(runner()))


async def agent_framework() -> tuple[Way, Way]:
    from agent_framework import Agent, BaseChatClient, ChatResponse, Content, FunctionInvocationLayer, Message
    from agent_framework import tool as their_tool

    from ferrule.adapters import agent_framework as ours

    class Client(FunctionInvocationLayer, BaseChatClient):  # type: ignore[misc]
        """Makes one call, and then ends."""

        def _inner_get_response(self, *, messages: Any, **options: Any) -> Any:
            wanted = Content.from_function_call("c1", "add", arguments=ARGUMENTS)
            contents = [wanted if len(messages) == 1 else "done"]

            async def respond() -> ChatResponse:
                return ChatResponse(messages=[Message("assistant", contents)])

            return respond()

    def way(**options: Any) -> Way:
        agent = Agent(Client(), **options)

        async def call(number: int) -> Any:
            return await agent.run("go", session=agent.create_session())

        return call

    return way(tools=[their_tool(add)]), way(context_providers=[ours.context_provider(runner())])


MADE = (
    pydantic_ai,
    openai_agents,
    langchain,
    google_adk,
    fastmcp,
    strands,
    axio,
    amplifier,
    agent_framework,
    claude_agent,
)
WAYS = {made.__name__: made for made in MADE}


async def measure_ways(name: str) -> dict[str, float]:
    """The medians of each way, in µs."""
    from ferrule import ToolCall, ToolContext

    own, through = await WAYS[name]()
    ours, context, ids = runner(), ToolContext(session="s"), count()

    async def run(number: int) -> Any:
        return await ours.run(ToolCall(f"c{number}", "add", ARGUMENTS), context)

    async def both(number: int) -> Any:
        await own(number)
        await run(number)

    def block(way: Way) -> Block:
        async def calls(count: int) -> None:
            for _ in range(count):
                await way(next(ids))

        return calls

    blocks = {"own": block(own), "ours": block(run), "both": block(both), "through": block(through)}
    times = await measure_rounds(blocks, calls=CALLS, rounds=ROUNDS)
    return {way: statistics.median(found) for way, found in times.items()}


def measure() -> Iterator[Line]:
    """A line for each adapter."""
    from frameworks import environment

    for name in WAYS:
        work = f"adapter {name}, ÷ (own + ours)"
        given = {**os.environ, "FERRULE_FRAMEWORK": name, "PYTHONPATH": str(ROOT / "src")}
        try:
            command = [str(environment(name)), __file__]
            done = subprocess.run(command, env=given, check=True, capture_output=True, text=True)
        except (LookupError, subprocess.CalledProcessError) as error:
            yield Line(work, "×", None, 1.2, note=(getattr(error, "stderr", None) or str(error)).splitlines()[-1])
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        note = f"{found['through'] / (found['own'] + found['ours']):.2f} of the sum; through {found['through']:.0f} µs"
        yield Line(work, "×", found["through"] / found["both"], 1.2, note=note)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(asyncio.run(measure_ways(os.environ["FERRULE_FRAMEWORK"]))))
