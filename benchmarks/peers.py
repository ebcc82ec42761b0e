"""What Ferrule and its nearest peers cost, side by side in one run: by CPU time, each the way in which it runs a tool
itself, without a model. They judge nothing, ask nobody and bound nothing; ours is shown with everything on, and with
nothing in brackets.

Run: python benchmarks/peers.py   (where they are installed: pip install pydantic-ai-slim openai-agents strands-agents)
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from types import FunctionType
from typing import Any, Protocol

from cases import CASES, CONTEXT, Case, floor, order, settings
from measure import Block, measure_rounds

from ferrule import Runner, Tool, ToolCall, tool
from ferrule.providers import anthropic, openai_chat

Function = Callable[..., Any]
WRONG = '{"a": "one", "c": 2}'


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

    async def ready(self, made: Any) -> Callable[[str], Awaitable[Any]]:
        """What runs a call of the tool, given the text of its arguments, and gives what the model would read."""

    def export(self, made: Sequence[Any]) -> object: ...


class Ours:
    def __init__(self, case: Case | None) -> None:
        self.options: dict[str, Any] = {} if case is None else settings(case)

    def define(self, function: Function) -> Tool:
        made = tool(function, concurrency=None if not self.options else 2_000)
        assert made.input_schema
        return made

    async def ready(self, made: Tool) -> Callable[[str], Awaitable[Any]]:
        runner = Runner([made], concurrency=None, **self.options)
        return lambda text: runner.run(ToolCall(id="call_1", name=made.name, arguments=text), CONTEXT)

    def export(self, made: Sequence[Tool]) -> object:
        return anthropic.tools(made), openai_chat.tools(made)


class PydanticAI:
    def define(self, function: Function) -> Any:
        from pydantic_ai import Tool

        return Tool(function, max_retries=1_000_000)

    async def ready(self, made: Any) -> Callable[[str], Awaitable[Any]]:
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

    async def ready(self, made: Any) -> Callable[[str], Awaitable[Any]]:
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

    async def ready(self, made: Any) -> Callable[[str], Awaitable[Any]]:
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


PEERS: dict[str, tuple[str, str, Callable[[], Framework]]] = {
    "pydantic-ai": ("pydantic_ai", "pydantic-ai-slim", PydanticAI),
    "openai-agents": ("agents", "openai-agents", OpenAIAgents),
    "strands": ("strands", "strands-agents", Strands),
}


def frameworks(case: Case) -> dict[str, Framework]:
    """Those that are installed, and ours with everything and with nothing on."""
    found = {name: make() for name, (module, _, make) in PEERS.items() if importlib.util.find_spec(module)}
    return {**found, "ours": Ours(case), "(nothing on)": Ours(None)}


def copies(function: Any, count: int) -> list[Any]:
    """Functions of the same signature, which no framework has seen."""
    made = []
    for number in range(count):
        copied = FunctionType(function.__code__, function.__globals__, f"tool_{number}", function.__defaults__)
        copied.__annotations__, copied.__doc__ = function.__annotations__, function.__doc__
        copied.__kwdefaults__, copied.__module__ = function.__kwdefaults__, function.__module__
        made.append(copied)
    return made


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


def defining(framework: Framework) -> Block:
    async def calls(count: int) -> None:
        for function in copies(order, count):
            framework.define(function)

    return calls


async def ratios(case: Case, text: str | None = None) -> dict[str, float]:
    """The time of one call of each, as a ratio to that of `validate_json`; in µs, where the arguments are wrong."""
    sent = text or case.text
    blocks = {name: await in_sequence(one, case.function, sent) for name, one in frameworks(case).items()}
    blocks["floor"] = floor(case.function, case.text)
    times = await measure_rounds(blocks, calls=case.calls, rounds=20)
    unit = median(times.pop("floor")) if text is None else 1.0
    return {name: median(found) / unit for name, found in times.items()}


async def in_flight(seconds: float = 0.01, count: int = 1_000) -> dict[str, float]:
    """CPU of each of 1,000 calls at once, in µs, over that of the bare functions at once."""
    case, text = _case(nap, lambda arguments: arguments["seconds"]), json.dumps({"seconds": seconds})
    blocks = {name: await at_once(one, nap, text) for name, one in frameworks(case).items()}

    async def bare(calls: int) -> None:
        await asyncio.gather(*(nap(seconds) for _ in range(calls)))

    times = await measure_rounds({**blocks, "bare": bare}, calls=count, rounds=7)
    base = median(times.pop("bare"))
    return {name: median(found) - base for name, found in times.items()}


async def measure_definitions() -> dict[str, float]:
    blocks = {name: defining(one) for name, one in frameworks(CASES[1]).items()}
    times = await measure_rounds(blocks, calls=10, rounds=7)
    return {name: median(found) / 1000 for name, found in times.items()}


async def measure_exports(count: int = 1_000) -> dict[str, float]:
    """CPU of the first export, in ms."""
    found = {}
    for name, one in frameworks(CASES[0]).items():
        made = [one.define(function) for function in copies(order, count)]
        begin = time.process_time()
        one.export(made)
        found[name] = (time.process_time() - begin) * 1000
    return found


async def measure_blocking(seconds: float = 0.01, count: int = 200) -> dict[str, float]:
    """Wall time, in ms."""
    case, text = _case(block, lambda arguments: arguments["seconds"]), json.dumps({"seconds": seconds})
    found = {}
    for name, one in frameworks(case).items():
        calls, walls = await at_once(one, block, text), []
        for _ in range(5):
            begin = time.perf_counter()
            await calls(count)
            walls.append((time.perf_counter() - begin) * 1000)
        found[name] = median(walls)
    return found


def _case(function: Function, reads: Callable[[Any], object]) -> Case:
    return Case("", "", function, "", reads, (0, 0), 0)


# What ours is to reach: a ratio to the floor, or, where the figure depends on the machine, to that of pydantic-ai.
ROWS: tuple[tuple[str, float, str, Callable[[], Any]], ...] = (
    ("two integers, times the floor", 15, "", lambda: ratios(CASES[0])),
    ("2 KB order, times the floor", 2.5, "", lambda: ratios(CASES[1])),
    ("1,000 calls of 10 ms in flight, each, µs", 0.5, "pydantic-ai", in_flight),
    ("a tool with a nested model is defined, ms", 1.15, "pydantic-ai", measure_definitions),
    ("1,000 tools exported, the first time, ms", 12, "pydantic-ai", measure_exports),
    ("wrong arguments told, µs", 0.7, "pydantic-ai", lambda: ratios(CASES[0], WRONG)),
    ("200 blocking calls of 10 ms, ms", 0.85, "pydantic-ai", measure_blocking),
)


def main() -> None:
    logging.disable(logging.ERROR)
    os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")
    missing = [package for module, package, _ in PEERS.values() if importlib.util.find_spec(module) is None]
    if missing:
        print(f"not installed, and left out: {', '.join(missing)} (pip install {' '.join(missing)})")
    names = list(frameworks(CASES[0]))
    print(f"Python {sys.version.split()[0]}, by CPU time")
    print(f"{'':44}" + "".join(f"{name:>15}" for name in names) + f"{'to reach':>10}")
    for title, asked, of, measure in ROWS:
        found = asyncio.run(measure())
        goal = asked * found.get(of, float("nan")) if of else asked
        print(f"{title:44}" + "".join(f"{found[name]:15.1f}" for name in names) + f"{goal:10.1f}", flush=True)


if __name__ == "__main__":
    main()
