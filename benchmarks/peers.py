"""The frameworks that Ferrule is measured beside: how each defines a tool, runs a call of it, and exports its tools.

Each way is the one in which the framework runs a tool itself, without a model. They judge nothing, ask nobody and bound
nothing. `table.py` runs this file in the environment of each framework, which is that of its adapter's tests:

    FERRULE_PEER=strands python benchmarks/peers.py     prints the measures as JSON
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import logging
import os
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median
from types import FunctionType
from typing import Any, Protocol

from cases import ADD, CASES, CONTEXT, Case, floor, order, settings
from measure import Block, measure_rounds

from ferrule import Runner, Tool, ToolCall, tool
from ferrule.providers import anthropic, openai_chat

Function = Callable[..., Any]
Run = Callable[[str], Awaitable[Any]]
WRONG = '{"a": "one", "c": 2}'
NO_READER: Callable[[Mapping[str, Any]], object] = dict


async def nap(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "done"


def block(seconds: float) -> str:
    """Block a thread."""
    time.sleep(seconds)
    return "done"


class Framework(Protocol):
    """How one framework defines a tool, runs a call of it, and exports its tools for a request."""

    def define(self, function: Function) -> Any: ...

    async def ready(self, made: Any) -> Run:
        """Return what runs a call of the tool, given the text of its arguments, and gives what the model would read."""

    def export(self, made: Sequence[Any]) -> object: ...


class Ours:
    """A runner with everything on, or with nothing on if there is no case."""

    def __init__(self, case: Case | None) -> None:
        self.options: dict[str, Any] = {} if case is None else settings(case)

    def define(self, function: Function) -> Tool:
        made = tool(function, concurrency=None if not self.options else 2_000)
        assert made.input_schema
        return made

    async def ready(self, made: Tool) -> Run:
        runner = Runner([made], concurrency=None, **self.options)
        return lambda text: runner.run(ToolCall(id="call_1", name=made.name, arguments=text), CONTEXT)

    def export(self, made: Sequence[Tool]) -> object:
        return anthropic.tools(made), openai_chat.tools(made)


class PydanticAI:
    def define(self, function: Function) -> Any:
        from pydantic_ai import Tool

        return Tool(function, max_retries=1_000_000)

    async def ready(self, made: Any) -> Run:
        from pydantic_ai import FunctionToolset, RunContext
        from pydantic_ai.exceptions import ToolRetryError
        from pydantic_ai.messages import ToolCallPart
        from pydantic_ai.models.test import TestModel
        from pydantic_ai.tool_manager import ToolManager
        from pydantic_ai.usage import RunUsage

        context: Any = RunContext(deps=None, model=TestModel(), usage=RunUsage())
        manager = await ToolManager(FunctionToolset([made])).for_run_step(context)

        async def run(text: str) -> Any:
            try:
                return await manager.handle_call(ToolCallPart(made.name, text, "call_1"))
            except ToolRetryError as error:
                return error.tool_retry.model_response_str()

        return run

    def export(self, made: Sequence[Any]) -> object:
        found = [one.tool_def for one in made]
        return [(one.name, one.description, one.parameters_json_schema) for one in found]


class OpenAIAgents:
    def define(self, function: Function) -> Any:
        from agents import function_tool

        return function_tool(function)

    async def ready(self, made: Any) -> Run:
        from agents.tool_context import ToolContext

        def run(text: str) -> Awaitable[Any]:
            context = ToolContext(None, tool_name=made.name, tool_call_id="call_1", tool_arguments=text)
            return made.on_invoke_tool(context, text)

        return run

    def export(self, made: Sequence[Any]) -> object:
        from agents.models.chatcmpl_converter import Converter

        return [Converter.tool_to_openai(one) for one in made]


class Strands:
    def define(self, function: Function) -> Any:
        from strands import tool as strands_tool

        return strands_tool(function)

    async def ready(self, made: Any) -> Run:
        async def run(text: str) -> Any:
            use = {"toolUseId": "call_1", "name": made.tool_name, "input": json.loads(text)}
            return [event async for event in made.stream(use, {})]

        return run

    def export(self, made: Sequence[Any]) -> object:
        from strands.tools.registry import ToolRegistry

        registry = ToolRegistry()
        for one in made:
            registry.register_tool(one)
        return registry.get_all_tool_specs()


class LangChain:
    def define(self, function: Function) -> Any:
        from langchain_core.tools import StructuredTool

        given = {"coroutine": function} if asyncio.iscoroutinefunction(function) else {"func": function}
        made = StructuredTool.from_function(**given, handle_validation_error=True)
        assert made.args
        return made

    async def ready(self, made: Any) -> Run:
        return lambda text: made.ainvoke({"type": "tool_call", "id": "1", "name": made.name, "args": json.loads(text)})

    def export(self, made: Sequence[Any]) -> object:
        from langchain_core.utils.function_calling import convert_to_openai_tool

        return [convert_to_openai_tool(one) for one in made]


class FastMCP:
    def define(self, function: Function) -> Any:
        from fastmcp.tools import Tool

        return Tool.from_function(function)

    async def ready(self, made: Any) -> Run:
        async def run(text: str) -> Any:
            try:
                return await made.run(json.loads(text))
            except Exception as error:  # its server answers with this text
                return str(error)

        return run

    def export(self, made: Sequence[Any]) -> object:
        return [one.to_mcp_tool() for one in made]


class GoogleADK:
    def define(self, function: Function) -> Any:
        from google.adk.tools import FunctionTool

        made = FunctionTool(function)
        assert made._get_declaration()
        return made

    async def ready(self, made: Any) -> Run:
        from google.adk.agents.invocation_context import InvocationContext
        from google.adk.sessions import InMemorySessionService
        from google.adk.tools.tool_context import ToolContext

        sessions = InMemorySessionService()
        session = await sessions.create_session(app_name="a", user_id="u")
        invocation = InvocationContext(session_service=sessions, session=session, invocation_id="i")

        def run(text: str) -> Awaitable[Any]:
            context = ToolContext(invocation_context=invocation, function_call_id="call_1")
            return made.run_async(args=json.loads(text), tool_context=context)

        return run

    def export(self, made: Sequence[Any]) -> object:
        return [one._get_declaration() for one in made]


PEERS: dict[str, tuple[str, Callable[[], Framework]]] = {
    "pydantic_ai": ("pydantic-ai-slim", PydanticAI),
    "openai_agents": ("openai-agents", OpenAIAgents),
    "strands": ("strands-agents", Strands),
    "langchain": ("langchain-core", LangChain),
    "fastmcp": ("fastmcp", FastMCP),
    "google_adk": ("google-adk", GoogleADK),
}
"""The distribution of each, by the name of its environment."""


def copies(function: Any, count: int) -> list[Any]:
    """Functions of the same signature, which no framework has seen."""
    made = []
    for number in range(count):
        copied = FunctionType(function.__code__, function.__globals__, f"tool_{number}", function.__defaults__)
        copied.__annotations__, copied.__doc__ = function.__annotations__, function.__doc__
        copied.__kwdefaults__, copied.__module__ = function.__kwdefaults__, function.__module__
        made.append(copied)
    return made


Frameworks = Callable[[Case], dict[str, Framework]]
Found = dict[str, float]


async def in_sequence(framework: Framework, function: Function, text: str) -> Block:
    run = await framework.ready(framework.define(function))

    async def calls(count: int) -> None:
        for _ in range(count):
            await run(text)

    return calls


async def at_once(framework: Framework, function: Function, text: str) -> Block:
    run = await framework.ready(framework.define(function))

    async def calls(count: int) -> None:
        await asyncio.gather(*(run(text) for _ in range(count)))

    return calls


async def measure_calls(frameworks: Frameworks, case: Case) -> Found:
    """CPU of one call of each, in times of `validate_json`."""
    blocks = {name: await in_sequence(one, case.function, case.text) for name, one in frameworks(case).items()}
    blocks["floor"] = floor(case.function, case.text)
    times = await measure_rounds(blocks, calls=case.calls, rounds=15)
    unit = median(times.pop("floor"))
    return {name: median(found) / unit for name, found in times.items()}


async def measure_wrong(frameworks: Frameworks) -> Found:
    """CPU of one call with two wrong arguments, in µs."""
    case = CASES[0]
    blocks = {name: await in_sequence(one, case.function, WRONG) for name, one in frameworks(case).items()}
    times = await measure_rounds(blocks, calls=200, rounds=15)
    return {name: median(found) for name, found in times.items()}


async def measure_in_flight(frameworks: Frameworks, seconds: float = 0.01, count: int = 1_000) -> Found:
    """CPU of each of 1,000 calls at once, in µs, over that of the bare functions at once."""
    case, text = _case(nap), json.dumps({"seconds": seconds})
    blocks = {name: await at_once(one, nap, text) for name, one in frameworks(case).items()}

    async def bare(calls: int) -> None:
        await asyncio.gather(*(nap(seconds) for _ in range(calls)))

    times = await measure_rounds({**blocks, "bare": bare}, calls=count, rounds=7)
    base = median(times.pop("bare"))
    return {name: median(found) - base for name, found in times.items()}


async def measure_definitions(frameworks: Frameworks) -> Found:
    """CPU of the definition of one tool with nested models, in ms."""

    def defining(framework: Framework) -> Block:
        async def calls(count: int) -> None:
            for function in copies(order, count):
                framework.define(function)

        return calls

    blocks = {name: defining(one) for name, one in frameworks(CASES[1]).items()}
    times = await measure_rounds(blocks, calls=10, rounds=7)
    return {name: median(found) / 1000 for name, found in times.items()}


async def measure_exports(frameworks: Frameworks, count: int = 1_000, rounds: int = 7) -> Found:
    """CPU of the first export of tools with nested models, in ms for a thousand of them."""
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, one in frameworks(CASES[0]).items():
            made = [one.define(function) for function in copies(order, count // rounds)]
            begin = time.process_time()
            one.export(made)
            times.setdefault(name, []).append((time.process_time() - begin) * 1_000_000 / len(made))
    return {name: median(found) for name, found in times.items()}


async def measure_blocking(frameworks: Frameworks, seconds: float = 0.01, count: int = 200) -> Found:
    """Wall time of 200 calls at once that block a thread for 10 ms each, in ms."""
    text = json.dumps({"seconds": seconds})
    blocks = {name: await at_once(one, block, text) for name, one in frameworks(_case(block)).items()}
    times: dict[str, list[float]] = {}
    for _ in range(7):
        for name, calls in blocks.items():
            begin = time.perf_counter()
            await calls(count)
            times.setdefault(name, []).append((time.perf_counter() - begin) * 1000)
    return {name: median(found) for name, found in times.items()}


def _case(function: Function) -> Case:
    return Case("", "", function, "", NO_READER, (0, 0), 0)


ROWS: dict[str, Callable[[Frameworks], Awaitable[Found]]] = {
    "two integers": lambda frameworks: measure_calls(frameworks, CASES[0]),
    "order": lambda frameworks: measure_calls(frameworks, CASES[1]),
    "wrong arguments": measure_wrong,
    "export": measure_exports,
    "definition": measure_definitions,
    "in flight": measure_in_flight,
    "blocking": measure_blocking,
}
"""What is measured of each framework and of ours, in turns within one process."""


async def check_framework(framework: Framework) -> None:
    """Fail unless the framework runs the call that is measured."""
    answer = await (await framework.ready(framework.define(CASES[0].function)))(ADD)
    assert "3" in str(answer), answer


def measure_peer(name: str, rows: Sequence[str]) -> dict[str, Any]:
    """Return the version of a framework, and the figures of each row: `peer`, `ours` and `bare`; or the reason why
    there are none."""
    distribution, make = PEERS[name]
    result: dict[str, Any] = {"version": importlib.metadata.version(distribution)}
    asyncio.run(check_framework(make()))
    for row in rows:
        try:
            result[row] = asyncio.run(
                ROWS[row](lambda case: {"peer": make(), "ours": Ours(case), "bare": Ours(None)})  # type: ignore[arg-type]
            )
        except Exception as error:
            result[row] = f"{type(error).__name__}: {error}"
    return result


if __name__ == "__main__":
    import sys

    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")
    print(json.dumps(measure_peer(os.environ["FERRULE_PEER"], sys.argv[1:] or list(ROWS))))
