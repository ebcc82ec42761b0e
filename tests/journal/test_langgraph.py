"""A graph runs an interrupted node again from its start, with all the calls in it: with a journal it pays once.

LangGraph, with its own `ToolNode`, its checkpoints and its `interrupt`: the calls of one message are one node, and what
of them has ended is run again with each answer to another.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import needs
import pytest

from ferrule import Journal, Runner, ToolCall, ToolContext, tool
from ferrule.guards import ask_before_changes
from ferrule.journal import memory
from ferrule.values.frozen import thaw

try:
    import langgraph  # noqa: F401
except ImportError:
    if needs.required():
        raise
    pytest.skip("langgraph is not there: `make test` installs it", allow_module_level=True)

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

pytestmark = pytest.mark.slow


class Bound(BaseTool):
    """A tool of a runner, as LangGraph has them: what is suspended asks by `interrupt`."""

    args_schema: Any = None
    runner: Any = None

    def _run(self, **given: Any) -> None:
        raise NotImplementedError

    async def ainvoke(self, input: Any, config: Any = None, **given: Any) -> ToolMessage:
        call = ToolCall(input["id"], self.name, input["args"])
        context: ToolContext[Any] = ToolContext(session=config["configurable"]["thread_id"])
        result = await self.runner.run(call, context)
        while result.status == "suspended":
            answer = interrupt(thaw(result.pending["arguments"]))
            result = await self.runner.resume(result.record(), answer)
        return ToolMessage(result.text, tool_call_id=call.id, name=self.name)


async def pay_in_a_graph(runner: Runner, thread: str, names: list[str]) -> tuple[list[str], int]:
    """A graph whose model wants to pay all of them at once, and a person who agrees to each: what the tools said, and
    how often the person was asked."""
    asked = [{"name": "pay", "args": {"to": name, "euros": 5}, "id": f"call_{name}"} for name in names]
    bound = [
        Bound(name=one.wire_name, description=one.description, args_schema=thaw(one.input_schema), runner=runner)
        for one in runner.tools
    ]
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [AIMessage("", tool_calls=asked)]})
    graph.add_node("tools", ToolNode(bound))
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    graph.add_edge("tools", END)
    program = graph.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": thread}}
    found: Any = await program.ainvoke({"messages": [HumanMessage("pay them")]}, config)
    answers = 0
    while "__interrupt__" in found:
        answers += 1
        found = await program.ainvoke(Command(resume={one.id: True for one in found["__interrupt__"]}), config)
    return [str(message.content) for message in found["messages"] if isinstance(message, ToolMessage)], answers


def paying(**options: Any) -> tuple[Runner, Counter[str]]:
    """A runner that asks before it pays, and what was paid."""
    paid: Counter[str] = Counter()

    @tool(parallel=True)
    async def pay(to: str, euros: int) -> str:
        """Pay."""
        paid[to] += euros
        return f"paid {to}, {paid[to]} in all"

    async def put_off(call: ToolCall, decision: Any, context: ToolContext[Any]) -> Any:
        return decision

    return Runner([pay], guards=[ask_before_changes], approve=put_off, **options), paid


JOURNALS: dict[str, Callable[[Path], Journal]] = {
    "memory": lambda folder: memory(),
    "file": lambda folder: Journal.open(folder / "calls.db"),
}


@pytest.mark.parametrize("kind", JOURNALS)
def test_a_graph_that_runs_its_node_again_pays_once_with_a_journal(kind: str, tmp_path: Path) -> None:
    journal = JOURNALS[kind](tmp_path)
    runner, paid = paying(journal=journal)
    texts, answers = asyncio.run(pay_in_a_graph(runner, "t1", ["ada", "bob"]))
    journal.close()
    assert paid == {"ada": 5, "bob": 5} and answers > 1
    assert texts == ["paid ada, 5 in all", "paid bob, 5 in all"]


def test_it_pays_again_without_one() -> None:
    runner, paid = paying()
    asyncio.run(pay_in_a_graph(runner, "t1", ["ada", "bob"]))
    assert max(paid.values()) > 5


def test_the_same_graph_in_another_thread_pays_for_itself(tmp_path: Path) -> None:
    journal = memory()
    runner, paid = paying(journal=journal)
    for thread in ("t1", "t2"):
        asyncio.run(pay_in_a_graph(runner, thread, ["ada"]))
    assert paid == {"ada": 10}


def test_a_graph_that_is_run_again_by_another_program_pays_nothing_more(tmp_path: Path) -> None:
    texts: list[list[str]] = []
    total: Counter[str] = Counter()
    for _ in range(2):
        journal = Journal.open(tmp_path / "calls.db")
        runner, paid = paying(journal=journal)
        texts.append(asyncio.run(pay_in_a_graph(runner, "t1", ["ada", "bob"]))[0])
        total += paid
        journal.close()
    assert total == {"ada": 5, "bob": 5} and texts[0] == texts[1]
