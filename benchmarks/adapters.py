"""What a call costs through an adapter, beside the framework's own way for a plain function and beside the runner's.

Run: python benchmarks/adapters.py [NAME …]

Each framework is measured in its environment (scripts/frameworks.py), all ways in turns, in process time. LangChain's
is a node of a graph. What is promised: through the adapter costs at most the framework's own way plus ours.

"of the sum" compares with the two of them, each in a loop of its own; "of both" with the two one after the other. The
former costs 3 to 10 µs less than a program pays that makes both: code that runs alone stays in the processor's caches.

What is above it, as "of both" (and "of the sum"), on Python 3.11 and 3.13:

    pydantic_ai   1.15 (1.5)   1.14 (1.45)  5 µs: their function is called as it is, where ours has a context made of
                                            theirs, its progress followed and its result's text read; 1.10 and 1.08 in
                                            instructions (callgrind)
    strands       1.4  (1.8)   0.95 (1.3)   14 µs: the agent's cancel_signal and a call's progress come while it runs,
                                            so it is a task, and before Python 3.12 none begins at once
    amplifier     1.8  (2.1)   1.8  (2.1)   0.3 ms: one hook of theirs, by which the adapter sees that an orchestrator
                                            tells the hooks itself
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import warnings
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

from measure import Block, measure_rounds

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


MADE = (pydantic_ai, openai_agents, langchain, google_adk, fastmcp, strands, axio, amplifier)
WAYS = {made.__name__: made for made in MADE}


async def measure(name: str) -> str:
    """A line of the table."""
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
    own_time, our_time, both_time, through_time = (statistics.median(found) for found in times.values())
    ratios = f"{through_time / (own_time + our_time):12.2f}{through_time / both_time:10.2f}"
    return f"{name:15}{own_time:10.0f}{our_time:10.1f}{through_time:10.0f}{ratios}"


def main() -> None:
    if inside := os.environ.get("FERRULE_FRAMEWORK"):
        warnings.simplefilter("ignore")
        print(asyncio.run(measure(inside)))
        return
    sys.path.insert(0, str(ROOT / "scripts"))
    from frameworks import environment

    print("µs for a call   their own      ours   through  of the sum   of both")
    for name in sys.argv[1:] or WAYS:
        given = {**os.environ, "FERRULE_FRAMEWORK": name, "PYTHONPATH": str(ROOT / "src")}
        subprocess.run([str(environment(name)), __file__], env=given, check=True)


if __name__ == "__main__":
    main()
