"""LangChain's agents and LangGraph's own `ToolNode`, driven by a scripted chat model."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import (
    BaseTool,
    BaseToolkit,
    InjectedToolArg,
    InjectedToolCallId,
    StructuredTool,
    ToolException,
)
from langchain_core.tools import tool as lc_tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphInterrupt
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, InjectedStore, ToolNode, ToolRuntime, tools_condition
from langgraph.types import Command, RetryPolicy, interrupt
from pydantic import AfterValidator, BaseModel

from ferrule import (
    Deferred,
    DefinitionError,
    Event,
    InputRequired,
    Journal,
    Media,
    Runner,
    Text,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    ask,
    tool,
)
from ferrule.adapters import langchain
from ferrule.guards import ask_before_changes
from ferrule.journal import memory
from ferrule.stores.store import Memory
from ferrule.testing import AdapterContract, Framework, FrameworkRun, ModelView, Question, ScriptedCall
from ferrule.testing.bounded import in_time
from ferrule.testing.world import PAY, World
from ferrule.values.frozen import thaw
from waits import BOUND


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


def model_of(*calls: ScriptedCall) -> Scripted:
    """A model that makes these calls, and ends."""
    made = [{"name": said.name, "args": said.arguments, "id": said.id, "type": "tool_call"} for said in calls]
    return Scripted(messages=iter([AIMessage("", tool_calls=made), AIMessage("done")]))


def agent_of(model: Any, tools: Any, saver: Any = None) -> Any:
    """Each call of a message is a task of its own."""
    return create_agent(model, tools=tools, checkpointer=saver or InMemorySaver(), context_schema=str)


def graph_of(model: Any, tools: Any, saver: Any = None) -> Any:
    """All calls of a message are one task."""
    graph = StateGraph(MessagesState, context_schema=str)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver or InMemorySaver())


class DrivenGraph(FrameworkRun):
    def __init__(self, program: Any, thread: str = "t1") -> None:
        super().__init__()
        self.program = program
        user = SimpleNamespace(identity="ada")  # as a LangGraph server gives it
        self.config: Any = {"configurable": {"thread_id": thread, "langgraph_auth_user": user}}
        self.waiting: list[Any] = []

    async def run(self, given: Any) -> None:
        async for mode, seen in self.program.astream(
            given, self.config, context="DEPS", stream_mode=["custom", "values"]
        ):
            if mode == "custom":
                self.progress.append((seen["tool_call_id"], seen["done"], seen["total"], seen["message"]))
        await self.see()

    async def see(self) -> None:
        state = await self.program.aget_state(self.config)
        for message in state.values["messages"]:
            if isinstance(message, ToolMessage):
                self.results[message.tool_call_id] = seen_by_model(message)
        self.questions = {}
        if state.interrupts:
            self.waiting = list(state.interrupts)
        for one in state.interrupts:
            for request, record in zip(one.value["action_requests"], one.value["ferrule"], strict=True):
                question = Question(request["args"], request["description"])
                self.questions[record["pending"]["call"]["id"]] = question

    async def answer(
        self,
        answers: Mapping[str, bool | dict[str, Any]],
        record: Literal["unchanged", "changed", "lost"] = "unchanged",
    ) -> None:
        resume = {}
        for one in self.waiting:
            ids = [kept["pending"]["call"]["id"] for kept in one.value["ferrule"]]
            if not answers.keys() & set(ids):
                continue
            names = [request["name"] for request in one.value["action_requests"]]
            decisions = [decision(answers[call_id], name) for call_id, name in zip(ids, names, strict=True)]
            resume[one.id] = {"decisions": decisions}
            if record != "lost":
                resume[one.id]["ferrule"] = one.value["ferrule"]
            if record == "changed":
                for kept in one.value["ferrule"]:
                    kept["pending"]["arguments"]["euros"] = 500
        await self.run(Command(resume=resume))


def decision(answer: bool | dict[str, Any], name: str) -> dict[str, Any]:
    if isinstance(answer, dict):
        return {"type": "edit", "edited_action": {"name": name, "args": answer}}
    return {"type": "approve"} if answer else {"type": "reject", "message": "no"}


def seen_by_model(message: ToolMessage) -> ModelView:
    blocks = message.content if isinstance(message.content, list) else []
    media = tuple(base64.b64decode(block["base64"]) for block in blocks if block["type"] == "image")
    return ModelView(message.text, message.status == "error", media)


class LangChain(Framework):
    has_principals = True

    def __init__(self, program_of: Callable[..., Any]) -> None:
        self._program_of = program_of

    async def start_run(self, runner: Runner, *calls: ScriptedCall) -> DrivenGraph:
        driven = DrivenGraph(self._program_of(model_of(*calls), langchain.tools(runner)))
        await driven.run({"messages": [HumanMessage("go")]})
        return driven

    def export_run(self, waiting: DrivenGraph) -> Any:
        return waiting.program.checkpointer, waiting.waiting  # the first holds bytes

    async def import_run(self, runner: Runner, stored: Any) -> FrameworkRun:
        saver, waiting = stored
        driven = DrivenGraph(self._program_of(model_of(), langchain.tools(runner), saver))
        await driven.see()
        driven.waiting = waiting
        return driven


class TestCreateAgent(AdapterContract):
    framework = LangChain(agent_of)


class TestToolNode(AdapterContract):
    framework = LangChain(graph_of)


PROGRAMS = pytest.mark.parametrize("program_of", [agent_of, graph_of], ids=["create_agent", "ToolNode"])
"""Where each call is a task of its own, and where all calls of a message are one."""


def waiting_for(driven: FrameworkRun) -> list[str]:
    return sorted(driven.questions)


@PROGRAMS
def test_an_answer_reaches_its_own_call_whichever_guard_is_quicker(program_of: Any) -> None:
    async def slow_for_ada(call: ToolCall, context: ToolContext) -> None:
        judged[call.arguments["to"]] += 1
        rounds = 50 if (call.arguments["to"] == "ada") is (judged["ada"] == 1) else 0  # the first time, then bob
        for _ in range(rounds):
            await asyncio.sleep(0)

    async def run() -> FrameworkRun:
        runner = world.runner(guards=[slow_for_ada, ask_before_changes])
        calls = [ScriptedCall("c1", "pay", {"to": "ada"}), ScriptedCall("c2", "pay", {"to": "bob"})]
        driven = await LangChain(program_of).start_run(runner, *calls)
        assert waiting_for(driven) == ["c1", "c2"]
        await driven.answer({"c1": True, "c2": False})
        return driven

    world, judged = World(), Counter[str]()
    driven = in_time(run())
    assert world.paid == {"ada 1": 1}
    assert driven.results["c1"] == ModelView("paid 1 EUR to ada") and driven.results["c2"].failed


@PROGRAMS
def test_an_answer_to_a_record_that_is_gone_reaches_nobody(program_of: Any) -> None:
    async def run() -> FrameworkRun:
        runner = world.runner(journal=memory())
        calls = [
            ScriptedCall("c1", "pay", {"to": "ada"}),
            ScriptedCall("c2", "pay", {"to": "bob"}),
            ScriptedCall("c3", "pay", {"to": "cy"}),
        ]
        driven = await LangChain(program_of).start_run(runner, *calls)
        records = runner.journal.store
        for key, record in records.items("interop ").items():
            if record["pending"]["arguments"]["to"] == "ada":
                assert records.compare_and_set(key, record, None)
        await driven.answer({"c1": True, "c2": False, "c3": True}, record="lost")
        assert waiting_for(driven) == ["c1"] and world.paid == {"cy 1": 1}
        await driven.answer({"c1": True}, record="lost")
        return driven

    world = World()
    driven = in_time(run())
    assert not driven.questions
    assert world.paid == {"ada 1": 1, "cy 1": 1} and driven.results["c2"].failed


class Flaky:
    """A store that is there or not."""

    def __init__(self) -> None:
        self.store, self.is_down = memory().store, False

    def get(self, key: str) -> Any:
        self._look()
        return self.store.get(key)

    def compare_and_set(self, key: str, old: Any, new: Any) -> bool:
        self._look()
        return self.store.compare_and_set(key, old, new)

    def items(self, prefix: str = "") -> Any:
        return self.store.items(prefix)

    def _look(self) -> None:
        if self.is_down:
            raise ConnectionError("no way to redis://svc:hunter2@10.0.0.7")


def flaky_graph(store: Flaky, world: World, **options: Any) -> DrivenGraph:
    """One whose `ToolNode` tells the model the text of any exception."""
    tools = langchain.tools(world.runner(journal=memory(), **options), records=store)
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=True))
    graph.add_edge(START, "tools")
    return DrivenGraph(graph.compile(checkpointer=InMemorySaver()))


def wanted(*calls: ScriptedCall) -> Any:
    made = [{"name": said.name, "args": said.arguments, "id": said.id, "type": "tool_call"} for said in calls]
    return {"messages": [AIMessage("", tool_calls=made)]}


def test_a_store_that_is_not_there_is_told_to_no_model() -> None:
    store, world = Flaky(), World()
    store.is_down = True
    driven = flaky_graph(store, world)
    in_time(driven.run(wanted(ScriptedCall("c1", "pay", {"to": "ada"}))))
    assert driven.results["c1"] == ModelView("pay failed. It is unknown whether anything was run.", failed=True)


@pytest.mark.parametrize("name", ["pay", "look"])
def test_a_call_that_ran_and_cannot_be_kept_is_told_as_it_went(name: str, caplog: pytest.LogCaptureFixture) -> None:
    def break_down(event: Event) -> None:
        store.is_down = event.kind == "tool:post"

    async def run() -> DrivenGraph:
        driven = flaky_graph(store, world, guards=[lambda call, context: ask("sure?")], observers=[break_down])
        await driven.run(wanted(ScriptedCall("c1", name, {"to": "ada"} if name == "pay" else {"name": "x"})))
        await driven.answer({"c1": True}, record="lost")
        return driven

    store, world = Flaky(), World()
    assert in_time(run()).results["c1"] == ModelView("paid 1 EUR to ada" if name == "pay" else "saw x")
    assert ("the outcome of a call of tool" in caplog.text) is (name == "look")  # the journal has that of `pay`


def in_threads(program: Any) -> Any:
    return lambda *given: program.invoke(*given)


def beside(program: Any) -> Any:
    return lambda *given: in_time(program.ainvoke(*given))


@pytest.mark.parametrize("how", [in_threads, beside])
def test_a_no_whose_record_is_gone_does_not_run_what_only_reads(how: Any) -> None:
    """Such as one that fetches an address, in which what was read before may leave."""
    world, tainted, saver = World(), {"t1"}, InMemorySaver()
    config: Any = {"configurable": {"thread_id": "t1"}}

    def start(*calls: ScriptedCall) -> Any:
        runner = world.runner(guards=[lambda call, context: ask("it is tainted") if tainted else None])
        return how(agent_of(model_of(*calls), langchain.tools(runner), saver))

    start(ScriptedCall("c1", "look", {"name": "x"}))({"messages": "go"}, config)
    tainted.clear()
    found = start()(Command(resume={"decisions": [{"type": "reject"}]}), config)
    assert found["__interrupt__"] and not world.deps


def test_a_record_that_comes_along_is_enough_where_none_is_kept() -> None:
    async def run() -> FrameworkRun:
        runner = world.runner(journal=memory())
        driven = await LangChain(graph_of).start_run(
            runner, ScriptedCall("c1", "pay", {"to": "ada"}), ScriptedCall("c2", "pay", {"to": "bob"})
        )
        records = runner.journal.store
        for key, record in records.items("interop ").items():
            assert records.compare_and_set(key, record, None)
        await driven.answer({"c1": False, "c2": True})
        return driven

    world = World()
    driven = in_time(run())
    assert world.paid == {"bob 1": 1} and driven.results["c1"].failed and not driven.questions


def test_calls_of_one_node_are_asked_at_once_when_the_others_have_ended() -> None:
    """A `ToolNode` leaves its other calls behind at the first interrupt, and a program that ends cancels them."""

    @tool
    async def save(name: str) -> str:
        """Save."""
        for _ in range(200):
            await asyncio.sleep(0)
        saved.append(name)
        return f"saved {name}"

    def for_pay(call: ToolCall, context: ToolContext) -> Any:
        return ask("paying") if call.name == "pay" else None

    async def begin() -> FrameworkRun:
        runner = Runner([save, *world.runner().tools], guards=[for_pay], timeout=BOUND)
        calls = [
            ScriptedCall("c1", "pay", {"to": "ada"}),
            ScriptedCall("c2", "save", {"name": "x"}),
            ScriptedCall("c3", "pay", {"to": "bob"}),
        ]
        return await LangChain(graph_of).start_run(runner, *calls)

    world, saved = World(), list[str]()
    driven = in_time(begin())
    assert saved == ["x"] and waiting_for(driven) == ["c1", "c3"]
    in_time(driven.answer({"c1": True, "c3": True}))
    assert saved == ["x"] and world.paid == {"ada 1": 1, "bob 1": 1}
    assert driven.results["c2"] == ModelView("saved x")


def test_calls_of_two_runners_in_one_node_are_asked_at_once_also_in_threads() -> None:
    """Each runner has a loop of its own then, and the first to ask waits on the other's."""

    def beside_save(call: ToolCall, context: ToolContext) -> None:
        assert began.wait(BOUND)

    def after_pay(call: ToolCall, context: ToolContext) -> None:
        began.set()
        assert asked.wait(BOUND)
        for _ in range(20):  # until the loop of the first has nothing left to do
            asyncio.run_coroutine_threadsafe(asyncio.to_thread(int), first.loop_for_sync()).result(BOUND)

    @tool
    async def save(name: str) -> str:
        """Save."""
        return f"saved {name}"

    began, asked, found = threading.Event(), threading.Event(), list[Any]()
    guards = [beside_save, ask_before_changes]
    first = World().runner(
        guards=guards, observers=[lambda event: asked.set() if event.kind == "tool:suspended" else None]
    )
    second = Runner([save], guards=[after_pay, ask_before_changes], timeout=BOUND)
    program = graph_of(
        model_of(PAY, ScriptedCall("c2", "save", {"name": "x"})), [*langchain.tools(first), *langchain.tools(second)]
    )
    config: Any = {"configurable": {"thread_id": "t1"}}

    def run() -> None:
        found.append(program.invoke({"messages": "go"}, config))
        [asking] = found[0]["__interrupt__"]
        decisions = [one["name"] == "pay" for one in asking.value["action_requests"]]
        found.append(program.invoke(Command(resume={"decisions": decisions}), config))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(BOUND)
    [_, done] = found
    assert [one.status for one in done["messages"] if isinstance(one, ToolMessage)] == ["success", "error"]


def test_a_record_that_another_runner_has_sealed_is_asked_again() -> None:
    """As after a restart without a `resume_key`."""

    async def run() -> FrameworkRun:
        journal, saver = memory(), InMemorySaver()
        for number in range(2):
            model = model_of(ScriptedCall("c1", "pay", {"to": "ada"})) if number == 0 else model_of()
            made = agent_of(model, langchain.tools(world.runner(journal=journal)), saver)
            driven = DrivenGraph(made)
            await (driven.see() if number else driven.run({"messages": [HumanMessage("go")]}))
        await driven.answer({"c1": True}, record="lost")
        assert not world.paid and waiting_for(driven) == ["c1"]
        await driven.answer({"c1": True}, record="lost")
        return driven

    world = World()
    assert in_time(run()).results["c1"] == ModelView("paid 1 EUR to ada")
    assert world.paid == {"ada 1": 1}


@PROGRAMS
def test_another_program_goes_on_with_what_the_first_has_asked(program_of: Any, tmp_path: Path) -> None:
    async def begin(journal: Journal) -> Any:
        runner = world.runner(journal=journal, resume_key=b"k" * 32)
        driven = await LangChain(lambda model, tools: program_of(model, tools, saver)).start_run(runner, *calls)
        await driven.answer({"c1": True, "c2": True} if program_of is graph_of else {"c1": True})
        return driven

    async def go_on(journal: Journal) -> FrameworkRun:
        runner = world.runner(journal=journal, resume_key=b"k" * 32)
        driven = DrivenGraph(program_of(model_of(), langchain.tools(runner), saver))
        await driven.see()
        while driven.questions:
            await driven.answer(dict.fromkeys(driven.questions, True), record="lost")
        return driven

    def in_a_program(run: Any) -> Any:
        journal = Journal.open(tmp_path / "calls.db")
        try:
            return in_time(run(journal))
        finally:
            journal.close()

    world, saver = World(), InMemorySaver()
    calls = [ScriptedCall("c1", "pay", {"to": "ada"}), ScriptedCall("c2", "pay", {"to": "bob"})]
    in_a_program(begin)
    driven = in_a_program(go_on)
    assert world.paid == {"ada 1": 1, "bob 1": 1}
    assert driven.results == {"c1": ModelView("paid 1 EUR to ada"), "c2": ModelView("paid 1 EUR to bob")}


def test_the_same_calls_in_another_thread_are_others_and_in_another_program_the_same(tmp_path: Path) -> None:
    async def run(journal: Journal, thread: str) -> FrameworkRun:
        driven = DrivenGraph(graph_of(model_of(*calls), langchain.tools(world.runner(journal=journal))), thread)
        await driven.run({"messages": [HumanMessage("go")]})
        while driven.questions:
            await driven.answer(dict.fromkeys(driven.questions, True))
        return driven

    def in_a_program(thread: str) -> FrameworkRun:
        journal = Journal.open(tmp_path / "calls.db")
        try:
            return in_time(run(journal, thread))
        finally:
            journal.close()

    world = World()
    calls = [ScriptedCall("c1", "pay", {"to": "ada"}), ScriptedCall("c2", "pay", {"to": "bob"})]
    first = in_a_program("t1")
    assert in_a_program("t1").results == first.results and world.paid == {"ada 1": 1, "bob 1": 1}
    in_a_program("t2")
    assert world.paid == {"ada 1": 2, "bob 1": 2}


@PROGRAMS
def test_an_id_that_comes_again_in_a_later_turn_is_another_call(program_of: Any, tmp_path: Path) -> None:
    """Such as those of servers that count from `call_0` in each; with an answer in another program, and once more."""

    def runner(journal: Journal) -> Runner:
        return world.runner(journal=journal, resume_key=b"k" * 32)

    async def run() -> None:
        turn = AIMessage("", tool_calls=[{"name": "pay", "args": {"to": "ada"}, "id": "call_0", "type": "tool_call"}])
        saver, turns = InMemorySaver(), Scripted(messages=iter([turn, turn.model_copy(update={"id": "second"})]))
        with closing(Journal.open(tmp_path / "calls.db")) as journal:
            driven = DrivenGraph(program_of(turns, langchain.tools(runner(journal)), saver))
            await driven.run({"messages": [HumanMessage("go")]})
            await driven.run(Command(resume={driven.waiting[0].id: True}))
            assert world.paid == {"ada 1": 1} and len(driven.questions) == 1
        for _ in range(2):
            with closing(Journal.open(tmp_path / "calls.db")) as journal:
                last = DrivenGraph(program_of(model_of(), langchain.tools(runner(journal)), saver))
                await last.run(Command(resume={driven.waiting[0].id: True}))
                assert last.results["call_0"] == ModelView("paid 1 EUR to ada")
                assert world.paid == {"ada 1": 2}

    world = World()
    in_time(run())


@PROGRAMS
def test_a_node_that_is_tried_again_pays_once_also_where_an_id_comes_again(program_of: Any) -> None:
    """In the second of three turns; and once more from the start, in a graph that has none of the checkpoints."""

    async def run(journal: Journal, *, breaks: bool) -> None:
        tries = Counter[str]()

        class Breaking(langchain.RunnerTool):
            async def arun(self, *given: Any, **options: Any) -> Any:
                done = await super().arun(*given, **options)
                tries["run"] += 1
                if breaks and tries["run"] == 2:
                    raise OSError("killed")
                return done

        made = langchain.tools(world.runner(journal=journal, guards=[]))
        for one in made:
            one.__class__ = Breaking
        turn = AIMessage("", tool_calls=[{"name": "pay", "args": {"to": "ada"}, "id": "call_0", "type": "tool_call"}])
        turns = [turn.model_copy(update={"id": f"turn {number}"}) for number in range(3)]
        driven = DrivenGraph(program_of(Scripted(messages=iter([*turns, AIMessage("done")])), made))
        if breaks:
            with pytest.raises(OSError, match="killed"):
                await driven.run({"messages": [HumanMessage("go")]})
            assert world.paid == {"ada 1": 2}
        await driven.run(None if breaks else {"messages": [HumanMessage("go")]})
        assert world.paid == {"ada 1": 3}

    world, journal = World(), memory()
    in_time(run(journal, breaks=True))
    in_time(run(journal, breaks=False))


def test_a_node_that_is_run_again_tells_of_what_was_answered_before_what_it_came_to() -> None:
    """As it is for an answer that comes later: of the others the journal has what changed something, and no more."""
    wanted = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}

    @tool
    async def book(city: str, context: ToolContext) -> Any:
        """Book."""
        return InputRequired("Which day?", wanted) if context.answer is None else f"booked {context.answer.value}"

    @tool(read_only=True, ask=True)
    async def peek(name: str) -> str:
        """Peek."""
        peeked.append(name)
        return f"peeked at {name}"

    async def run() -> FrameworkRun:
        runner = Runner([book, peek, *world.runner().tools], guards=[ask_before_changes], journal=memory())
        pays, books = ScriptedCall("c1", "pay", {"to": "ada"}), ScriptedCall("c2", "book", {"city": "Rome"})
        driven = await LangChain(graph_of).start_run(runner, pays, books, ScriptedCall("c3", "peek", {"name": "x"}))
        await driven.answer({"c1": False, "c2": True, "c3": True})
        assert list(driven.questions) == ["c2"]
        await driven.answer({"c2": {"day": "Monday"}})
        return driven

    world, peeked = World(), list[str]()
    driven = in_time(run())
    assert driven.results["c1"] == ModelView("Denied: no. Nothing was run.", failed=True)
    assert driven.results["c2"] == ModelView("booked {'day': 'Monday'}")
    assert driven.results["c3"] == ModelView("peeked at x")
    assert peeked == ["x"] and not world.paid


def test_a_result_that_a_middleware_made_up_makes_no_other_call_of_one_that_was_cut_off() -> None:
    async def run() -> None:
        turn = AIMessage("", tool_calls=[{"name": "pay", "args": {"to": "ada"}, "id": "call_0", "type": "tool_call"}])
        journal = memory()
        before = turn.model_copy(update={"id": "before"})
        for made_up in ([], [HumanMessage("go"), before, ToolMessage("cancelled", tool_call_id="call_0")]):
            model = Scripted(messages=iter([turn.model_copy(update={"id": "now"}), AIMessage("done")]))
            driven = DrivenGraph(agent_of(model, langchain.tools(world.runner(journal=journal, guards=[]))))
            await driven.run({"messages": [*made_up, HumanMessage("go")]})
        assert world.paid == {"ada 1": 1}

    world = World()
    in_time(run())


def test_an_id_that_comes_again_with_other_arguments_is_another_call() -> None:
    async def run() -> FrameworkRun:
        turns = [AIMessage("", tool_calls=[made(to)]) for to in ("ada", "bob")]
        model = Scripted(messages=iter([turns[0], turns[1], AIMessage("done")]))
        driven = DrivenGraph(agent_of(model, langchain.tools(world.runner(journal=memory()))))
        await driven.run({"messages": [HumanMessage("go")]})
        await driven.answer({"c1": False})
        assert driven.questions["c1"].arguments == {"to": "bob", "euros": 1}
        await driven.answer({"c1": True})
        return driven

    def made(to: str) -> Any:
        return {"name": "pay", "args": {"to": to}, "id": "c1", "type": "tool_call"}

    world = World()
    assert in_time(run()).results["c1"] == ModelView("paid 1 EUR to bob")
    assert world.paid == {"bob 1": 1}


def test_a_node_that_is_tried_again_keeps_to_the_answers_of_its_calls() -> None:
    """`interrupt` goes on counting in the second attempt."""

    @lc_tool
    def flaky() -> str:
        "Fails once after each answer."
        if len(fails) < 2 and waiting:
            fails.append("")
            raise ConnectionError
        return "there"

    async def run() -> FrameworkRun:
        calls = [
            ScriptedCall("c1", "pay", {"to": "ada"}),
            ScriptedCall("c2", "flaky"),
            ScriptedCall("c3", "pay", {"to": "bob"}),
        ]
        model, graph = model_of(*calls), StateGraph(MessagesState, context_schema=str)
        graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
        again = RetryPolicy(initial_interval=0, jitter=False)
        graph.add_node("tools", ToolNode([*langchain.tools(world.runner()), flaky]), retry_policy=again)
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        driven = DrivenGraph(graph.compile(checkpointer=InMemorySaver()))
        await driven.run({"messages": [HumanMessage("go")]})
        waiting.append("")
        await driven.answer({"c1": True, "c3": False})
        return driven

    world, fails, waiting = World(), list[str](), list[str]()
    driven = in_time(run())
    assert len(fails) == 2 and world.paid == {"ada 1": 1}
    assert driven.results["c1"] == ModelView("paid 1 EUR to ada") and driven.results["c3"].failed


@pytest.mark.parametrize(
    "answer",
    [
        {"decisions": [{"type": "approve"}]},
        {"type": "approve"},
        True,
    ],
    ids=repr,
)
def test_a_yes_is_one_in_each_of_its_forms(answer: Any) -> None:
    world = World()
    message = answered_with(world, answer)
    assert message.content == "paid 1 EUR to ada" and message.artifact["status"] == "ok"


@pytest.mark.parametrize(
    "answer",
    [
        "yes",
        {"decisions": []},
        {"decisions": [{"type": "approve"}, {"type": "approve"}]},
        {"decisions": [{"type": "approved"}]},
        {"decisions": [{"type": "edit", "edited_action": {"name": "look", "args": {"to": "bob"}}}]},
        {"decisions": "approve"},
        [True],
        1,
    ],
    ids=repr,
)
def test_what_is_no_answer_is_none_and_the_person_is_asked_again(answer: Any) -> None:
    world = World()
    assert answered_with(world, answer) is None
    assert not world.paid


def test_a_person_may_answer_in_the_place_of_the_tool() -> None:
    world = World()
    message = answered_with(world, {"decisions": [{"type": "respond", "message": "It was paid in cash."}]})
    assert message.content == "It was paid in cash." and message.status == "success"
    assert message.artifact["status"] == "denied" and not world.paid


def answered_with(world: World, answer: Any) -> ToolMessage | None:
    """The message of the one call, after this answer."""

    async def run() -> Any:
        driven: Any = await LangChain(agent_of).start_run(world.runner(), ScriptedCall("c1", "pay", {"to": "ada"}))
        await driven.run(Command(resume=answer))
        state = await driven.program.aget_state(driven.config)
        found = [message for message in state.values["messages"] if isinstance(message, ToolMessage)]
        assert bool(found) is not bool(driven.questions)
        return found[0] if found else None

    return in_time(run())


def test_calls_of_one_node_are_asked_about_in_their_order() -> None:
    async def later_for_ada(call: ToolCall, context: ToolContext) -> Any:
        for _ in range(50 if call.arguments["to"] == "ada" else 0):
            await asyncio.sleep(0)
        return ask("sure?")

    async def run() -> list[str]:
        runner = world.runner(guards=[later_for_ada], journal=memory())
        calls = [ScriptedCall(f"c{place}", "pay", {"to": to}) for place, to in enumerate(["ada", "bob", "cy"])]
        driven = DrivenGraph(graph_of(model_of(*calls), langchain.tools(runner)))
        await driven.run({"messages": [HumanMessage("go")]})
        await driven.run(Command(resume={"decisions": [{"type": "no answer"}] * 3}))
        return [request["args"]["to"] for request in driven.waiting[0].value["action_requests"]]

    world = World()
    assert in_time(run()) == ["ada", "bob", "cy"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"type": "approve"}, "saw tea"),
        ({"type": "reject", "message": "not today"}, "not today"),
        ({"type": "respond", "message": "green tea"}, "green tea"),
    ],
    ids=["yes", "no", "instead"],
)
def test_what_an_answered_call_came_to_stands_when_its_node_runs_again(said: Any, told: str) -> None:
    async def run() -> DrivenGraph:
        runner = world.runner(guards=[lambda call, context: ask("sure?")], journal=memory())
        calls = [ScriptedCall("c1", "look", {"name": "tea"}), ScriptedCall("c2", "pay", {"to": "ada"})]
        driven = DrivenGraph(graph_of(model_of(*calls), langchain.tools(runner)))
        await driven.run({"messages": [HumanMessage("go")]})
        await driven.run(Command(resume={"decisions": [said, {"type": "no answer"}]}))
        assert waiting_for(driven) == ["c2"], "who is asked again"
        await driven.run(Command(resume={"decisions": [{"type": "approve"}]}))
        return driven

    world = World()
    driven = in_time(run())
    assert told in driven.results["c1"].text
    assert len(world.deps) == (told == "saw tea") and world.paid == {"ada 1": 1}


def test_a_node_of_ones_own_may_ask_between_two_calls() -> None:
    async def run() -> Any:
        made = langchain.tools(world.runner(journal=memory()))
        pay = next(one for one in made if one.name == "pay")

        async def node(state: MessagesState) -> dict[str, Any]:
            first = await pay.ainvoke({"type": "tool_call", "id": "c1", "name": "pay", "args": {"to": "ada"}})
            to = interrupt("and whom else?")
            second = await pay.ainvoke({"type": "tool_call", "id": "c2", "name": "pay", "args": {"to": to}})
            return {"messages": [first, second]}

        graph = StateGraph(MessagesState)
        graph.add_node("node", node)
        graph.add_edge(START, "node")
        driven = DrivenGraph(graph.compile(checkpointer=InMemorySaver()))
        given: Any = {"messages": []}
        for answer in ({"type": "reject", "message": "not her"}, "bob", {"type": "approve"}):
            await driven.program.ainvoke(given, driven.config)
            given = Command(resume=answer)
        return await driven.program.ainvoke(given, driven.config)

    world = World()
    refused, paid = in_time(run())["messages"]
    assert "not her" in refused.text and paid.text == "paid 1 EUR to bob"
    assert world.paid == {"bob 1": 1}


def test_what_a_handler_wants_to_know_is_asked_with_its_schema() -> None:
    day = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}

    @tool
    async def book(city: str, context: ToolContext) -> str | InputRequired:
        """Book."""
        if context.answer is None:
            return InputRequired("Which day?", day)
        return f"{city} on {context.answer.value['day']}"

    async def run() -> FrameworkRun:
        driven: Any = await LangChain(agent_of).start_run(Runner([book]), ScriptedCall("c1", "book", {"city": "Rome"}))
        [waiting] = driven.waiting
        assert waiting.value["review_configs"][0]["args_schema"] == day
        await driven.answer({"c1": {"day": "2026-12-24"}})
        return driven

    assert in_time(run()).results["c1"] == ModelView("Rome on 2026-12-24")


def test_a_handler_may_ask_twice_and_each_answer_is_for_its_question() -> None:
    wanted = {"type": "object", "properties": {"it": {"type": "string"}}, "required": ["it"]}

    @tool
    async def book(context: ToolContext) -> str | InputRequired:
        """Book."""
        if context.answer is None:
            return InputRequired("Which city?", wanted, state=[])
        known = [*context.answer.state, context.answer.value["it"]]
        return InputRequired("Which day?", wanted, state=known) if len(known) < 2 else " on ".join(known)

    async def run() -> FrameworkRun:
        driven = await LangChain(agent_of).start_run(Runner([book]), ScriptedCall("c1", "book"))
        for reason, it in (("Which city?", "Rome"), ("Which day?", "Monday")):
            assert driven.questions["c1"].reason == reason
            await driven.answer({"c1": {"it": it}})
        return driven

    assert in_time(run()).results["c1"] == ModelView("Rome on Monday")


@pytest.mark.parametrize("was_asked_before", [False, True])
def test_a_call_that_comes_late_gets_no_answer_of_another(was_asked_before: bool) -> None:
    """One whose node has asked already, since a middleware held it back; and whose question of an earlier turn nobody
    has answered."""

    async def hold_back(request: Any, execute: Any) -> Any:
        ours = asked if request.tool_call["id"] == "c1" else ended
        if ours is ended and len(turns) == 1:
            await asked.wait()
        try:
            return await execute(request)
        finally:
            if len(turns) == 1:
                ours.set()

    async def run() -> FrameworkRun:
        graph = StateGraph(MessagesState, context_schema=str)
        graph.add_node("model", lambda state: {"messages": [turns.pop(0)]})
        graph.add_node("tools", ToolNode(langchain.tools(world.runner()), awrap_tool_call=hold_back))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        driven = DrivenGraph(graph.compile(checkpointer=InMemorySaver()))
        for _ in range(len(turns) - 1):
            await driven.run({"messages": [HumanMessage("go")]})
        await ended.wait()
        await driven.answer({"c1": True}, record="lost")
        return driven

    world, asked, ended = World(), asyncio.Event(), asyncio.Event()
    ada, bob = (
        {"name": "pay", "args": {"to": to}, "id": call_id, "type": "tool_call"}
        for to, call_id in (("ada", "c1"), ("bob", "c2"))
    )
    turns = [AIMessage("", tool_calls=[ada, bob]), AIMessage("done")]
    if was_asked_before:
        turns.insert(0, AIMessage("", tool_calls=[bob]))
    driven = in_time(run())
    assert world.paid == {"ada 1": 1} and waiting_for(driven) == ["c2"]


def test_work_that_ends_elsewhere_ends_by_the_answer() -> None:
    @tool
    async def print_book(pages: int) -> Deferred:
        """Print."""
        return Deferred("order-7", reason="the print shop")

    async def run() -> FrameworkRun:
        driven: Any = await LangChain(agent_of).start_run(
            Runner([print_book]), ScriptedCall("c1", "print_book", {"pages": 3})
        )
        [waiting] = driven.waiting
        assert waiting.value["review_configs"][0]["allowed_decisions"] == ["approve", "reject", "respond"]
        await driven.run(Command(resume={"type": "respond", "message": "3 pages"}))
        return driven

    assert in_time(run()).results["c1"] == ModelView("3 pages")


@PROGRAMS
def test_a_program_without_a_loop_may_run_the_graph(program_of: Any) -> None:
    world = World()
    calls = [
        ScriptedCall("c0", "look", {"name": "x"}),
        ScriptedCall("c1", "pay", {"to": "ada"}),
        ScriptedCall("c2", "pay", {"to": "bob"}),
    ]
    program = program_of(model_of(*calls), langchain.tools(world.runner()))
    config = {"configurable": {"thread_id": "t1"}}
    found = program.invoke({"messages": [HumanMessage("go")]}, config, context="DEPS")
    for _ in range(2):
        resume = {}
        for one in found.get("__interrupt__", ()):
            people = [request["args"]["to"] for request in one.value["action_requests"]]
            resume[one.id] = {"decisions": [decision(to == "ada", "pay") for to in people]}
        found = program.invoke(Command(resume=resume), config, context="DEPS") if resume else found
    texts = {message.tool_call_id: message for message in found["messages"] if isinstance(message, ToolMessage)}
    assert texts["c0"].content == "saw x" and texts["c1"].content == "paid 1 EUR to ada"
    assert texts["c2"].status == "error" and world.paid == {"ada 1": 1}
    assert set(world.deps) == {"DEPS"}


def test_callbacks_see_the_call_and_how_it_ended() -> None:
    class Seeing(AsyncCallbackHandler):
        async def on_tool_start(self, serialized: Any, text: str, **given: Any) -> None:
            seen.append((serialized["name"], given["tool_call_id"], given["inputs"]))

        async def on_tool_end(self, output: Any, **given: Any) -> None:
            seen.append(output.content)

    async def run() -> None:
        program = agent_of(model_of(ScriptedCall("c1", "look", {"name": "x"})), langchain.tools(World().runner()))
        config = {"configurable": {"thread_id": "t1"}, "callbacks": [Seeing()]}
        await program.ainvoke({"messages": [HumanMessage("go")]}, config, context="DEPS")

    seen: list[Any] = []
    in_time(run())
    assert seen == [("look", "c1", {"name": "x"}), "saw x"]


@pytest.mark.parametrize("name", ["run_manager", "callbacks", "tool_call_id", "root", "kwargs", "args", "input"])
def test_no_name_of_a_parameter_is_taken_away(name: str) -> None:
    async def handler(payload: dict[str, Any]) -> str:
        return f"{name} is {payload[name]}"

    schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    runner = Runner([Tool("named", handler, input_schema=schema, read_only=True)])
    for program_of in (agent_of, graph_of):
        driven = in_time(LangChain(program_of).start_run(runner, ScriptedCall("c1", "named", {name: "x"})))
        assert driven.results["c1"] == ModelView(f"{name} is x")


def test_a_context_of_ones_own_is_made_of_the_runtime() -> None:
    def to_context(runtime: Any) -> ToolContext:
        return ToolContext(principal=runtime.context["user"])

    @tool(read_only=True)
    async def who(context: ToolContext) -> str:
        """Who."""
        return f"{context.principal} in {context.session}"

    async def run() -> Any:
        made = langchain.tools(Runner([who]), context=to_context)
        program = create_agent(model_of(ScriptedCall("c1", "who")), tools=made, checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": "t1"}}
        return await program.ainvoke({"messages": [HumanMessage("go")]}, config, context={"user": "ada"})

    assert in_time(run())["messages"][2].content == "ada in t1"


def test_of_the_runs_of_nodes_that_have_ended_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(langchain, "_MOST_EXECUTIONS", 2)
    for _ in range(4):
        in_time(LangChain(agent_of).start_run(World().runner(), ScriptedCall("c1", "pay", {"to": "ada"})))
    assert len(langchain._EXECUTIONS) == 2


def test_a_tool_that_calls_another_of_its_node_does_not_wait_for_itself() -> None:
    @tool
    async def pay_by_hand(to: str) -> str:
        """Calls the agent's tool."""
        message = await pay.ainvoke({"type": "tool_call", "id": "inner", "name": "pay", "args": {"to": to}})
        return f"{message.status}: {message.content}"

    def for_pay(call: ToolCall, context: ToolContext) -> Any:
        return ask("paying") if call.name == "pay" else None

    world = World()
    runner = Runner([pay_by_hand, *world.runner().tools], guards=[for_pay])
    made = langchain.tools(runner)
    pay = next(one for one in made if one.name == "pay")
    driven = DrivenGraph(graph_of(model_of(ScriptedCall("c1", "pay_by_hand", {"to": "ada"})), made))
    in_time(driven.run({"messages": [HumanMessage("go")]}))
    assert driven.results["c1"].text.startswith("error: pay waits for a decision")
    assert not world.paid


class LateRecords(Memory):
    """Finds the record of a call when `ready` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = threading.Event()
        self.ready.set()

    def get(self, key: str) -> Any:
        found = super().get(key)
        assert found is None or self.ready.wait(BOUND)
        return found


@pytest.mark.parametrize("within", ["a handler", "a graph in a handler"])
def test_an_interrupt_of_a_handler_gets_no_answer_to_a_call_of_its_node(within: str) -> None:
    @tool(read_only=True)
    async def water(what: str) -> str:
        """Water, once a person has said so."""
        try:
            if within == "a handler":
                water_now({})
            else:
                await graph.compile().ainvoke({"messages": []})
        finally:
            records.ready.set()
        return "watered"

    def water_now(state: Any) -> dict[str, Any]:
        watered.append(interrupt("water?"))
        return {}

    async def run() -> FrameworkRun:
        guards = [lambda call, context: ask("paying") if call.name == "pay" else None]
        runner = Runner([water, *world.runner().tools], guards=guards, journal=memory())
        calls = [ScriptedCall("c1", "water", {"what": "roses"}), ScriptedCall("c2", "pay", {"to": "ada"})]
        driven = DrivenGraph(graph_of(model_of(*calls), langchain.tools(runner, records=records)))
        await driven.run({"messages": [HumanMessage("go")]})
        assert waiting_for(driven) == ["c2"]
        records.ready.clear()
        await driven.run(Command(resume={"decisions": [{"type": "approve"}]}))
        return driven

    graph = StateGraph(MessagesState)
    graph.add_node("water", water_now)
    graph.add_edge(START, "water")
    world, records, watered = World(), LateRecords(), list[Any]()
    driven = in_time(run())
    assert not watered and driven.results["c1"].failed
    assert world.paid == {"ada 1": 1}


def test_outside_a_graph_a_tool_is_called_as_a_function() -> None:
    async def run() -> None:
        assert await made["look"].ainvoke({"name": "x"}) == "saw x"
        assert await made["look"].arun({"name": "x"}) == "saw x"
        with pytest.raises(ToolException, match="waits for a decision"):
            await made["pay"].ainvoke({"to": "ada"})

    world = World()
    made = {one.name: one for one in langchain.tools(world.runner())}
    in_time(run())
    assert made["look"].invoke({"name": "y"}) == "saw y"
    assert not world.paid


def test_the_model_is_shown_the_schema_of_the_tool() -> None:
    runner = World().runner()
    shown = {one.name: convert_to_openai_tool(one)["function"] for one in langchain.tools(runner)}
    for one in runner.tools:
        assert shown[one.name]["description"] == one.description
        assert shown[one.name]["parameters"]["properties"] == thaw(one.input_schema).get("properties", {})


# -- their tools as ours -----------------------------------------------------------------------------------------------


@lc_tool(parse_docstring=True)
async def roll(
    sides: int, tool_call_id: Annotated[str, InjectedToolCallId], config: RunnableConfig, times: int = 2
) -> str:
    """Roll.

    Args:
        sides: How many it has.
    """
    if sides < 2:
        raise ToolException("at least 2")
    return f"{config['configurable']['thread_id']} {tool_call_id}: {sides} x {times}"


def run_theirs(theirs: Any, arguments: dict[str, Any]) -> ToolResult:
    async def run() -> ToolResult:
        return await Runner(langchain.from_tools([theirs])).run(
            ToolCall("c1", theirs.name, arguments), ToolContext(session="s1")
        )

    return in_time(run())


def test_their_tool_is_a_tool_with_their_schema_and_our_call_and_session() -> None:
    [ours] = langchain.from_tools([roll])
    assert ours.name == "roll" and ours.description == "Roll."
    assert ours.input_schema["properties"].keys() == {"sides", "times"}
    assert ours.input_schema["properties"]["sides"]["description"] == "How many it has."
    assert not ours.read_only
    assert run_theirs(roll, {"sides": 6}).text == "s1 c1: 6 x 2"


def test_wrong_arguments_are_refused_before_their_tool_runs() -> None:
    assert run_theirs(roll, {"sides": "six"}).status == "invalid"
    assert run_theirs(roll, {"sides": 6, "tool_call_id": "forged"}).status == "invalid"


@pytest.mark.parametrize("handled", [False, True, "It went wrong."], ids=repr)
def test_a_failure_of_theirs_is_one_however_they_tell_it(handled: Any) -> None:
    theirs = roll.model_copy(update={"handle_tool_error": handled})
    result = run_theirs(theirs, {"sides": 1})
    assert not result.success and (handled if isinstance(handled, str) else "at least 2") in result.text


def test_a_plain_function_of_theirs_runs_in_a_thread() -> None:
    @lc_tool
    def where() -> str:
        "Where."
        return threading.current_thread().name

    assert run_theirs(where, {}).text != threading.main_thread().name


def test_their_blocks_and_their_artifact_arrive() -> None:
    data = base64.b64encode(b"\x89PNG").decode()

    @lc_tool(response_format="content_and_artifact")
    def picture() -> Any:
        "Picture."
        blocks = [
            {"type": "text", "text": "a dot"},
            {"type": "image", "base64": data, "mime_type": "image/png"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        ]
        return blocks, {"size": 4}

    result = run_theirs(picture, {})
    assert result.content == (Text("a dot"), *2 * (Media("image", b"\x89PNG", "image/png"),))
    assert thaw(result.metadata)["artifact"] == {"size": 4}


@lc_tool
def with_runtime(x: int, runtime: ToolRuntime) -> str:
    "Wants the runtime."
    return ""


@lc_tool
def with_state(x: int, state: Annotated[dict[str, Any], InjectedState]) -> str:
    "Wants the state."
    return ""


@lc_tool
def with_field(x: int, name: Annotated[str, InjectedState("name")]) -> str:
    "Wants a field of the state."
    return ""


@lc_tool
def with_store(x: int, store: Annotated[Any, InjectedStore()]) -> str:
    "Wants the store."
    return ""


@lc_tool
def with_own(x: int, user: Annotated[str, InjectedToolArg]) -> str:
    "Wants what a program of its own gives."
    return ""


class WithRuntime(BaseTool):
    name: str = "with_runtime_in_run"
    description: str = "Wants the runtime in its method."

    def _run(self, x: int, runtime: ToolRuntime) -> str:
        return ""


@pytest.mark.parametrize(
    ("theirs", "kind"),
    [
        (with_runtime, "ToolRuntime"),
        (with_state, "InjectedState"),
        (with_field, "InjectedState"),
        (with_store, "InjectedStore"),
        (with_own, "InjectedToolArg"),
        (WithRuntime(), "ToolRuntime"),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_a_tool_that_needs_its_graph_is_refused_when_it_is_taken_in(theirs: Any, kind: str) -> None:
    with pytest.raises(DefinitionError, match=f"{theirs.name}.*{kind}"):
        langchain.from_tools([theirs])


def test_what_only_a_graph_can_follow_is_told_as_a_failure() -> None:
    @lc_tool
    def go() -> Any:
        "Goes on elsewhere."
        return Command(goto="end")

    @lc_tool
    def wait() -> Any:
        "Stops the graph."
        raise GraphInterrupt(())

    assert "graph" in run_theirs(go, {}).text and not run_theirs(go, {}).success
    assert "graph" in run_theirs(wait, {}).text and not run_theirs(wait, {}).success


class Login(BaseModel):
    token: int


class Even(BaseModel):
    number: Annotated[int, AfterValidator(lambda number: number if number % 2 == 0 else int("it is odd"))]


@lc_tool(args_schema=Even)
async def halve(number: int) -> str:
    """Halve."""
    Login.model_validate({"token": "the secret inside"})
    return ""


@pytest.mark.parametrize("number", [3, 4])
def test_what_a_function_of_theirs_found_invalid_is_told_as_far_as_the_runner_exposes_it(number: int) -> None:
    async def run() -> ToolResult:
        return await Runner(langchain.from_tools([halve]), expose=()).run("halve", {"number": number})

    text = in_time(run()).text
    assert "secret" not in text
    assert ("it is odd" in text) is (number == 3), "what does not fit its schema is told"


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
@pytest.mark.parametrize("saver", [InMemorySaver, lambda: None])
def test_a_graph_that_is_interrupted_as_a_tool_has_failed(saver: Any) -> None:
    def node(state: Even) -> dict[str, Any]:
        return {"number": interrupt("pay?")}

    graph = StateGraph(Even)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    theirs = graph.compile(checkpointer=saver()).as_tool(name="pay", description="Pay.", arg_types={"number": int})
    result = run_theirs(theirs, {"number": 4})
    assert result.status == "failed" and "interrupted" in result.text


def test_a_text_about_interrupts_is_none() -> None:
    @lc_tool
    async def read() -> str:
        "Read."
        return "{'__interrupt__': [Interrupt(value='pay?')]}"

    assert run_theirs(read, {}).success


def test_a_tool_of_theirs_that_interrupts_gets_no_answer_to_another_question() -> None:
    @lc_tool
    async def water(what: str) -> str:
        "Waters, once a person has said so."
        return f"watered by {interrupt(f'water {what}?')}"

    runner = Runner(langchain.from_tools([water]), journal=memory())

    async def node(state: MessagesState) -> dict[str, Any]:
        told = (await runner.run(ToolCall("c1", "water", {"what": "roses"}))).text
        return {"messages": [AIMessage(f"{told}; {interrupt('shut the door?')}")]}

    async def run() -> Any:
        graph = StateGraph(MessagesState)
        graph.add_node("node", node)
        graph.add_edge(START, "node")
        program, config = graph.compile(checkpointer=InMemorySaver()), {"configurable": {"thread_id": "t1"}}
        await program.ainvoke({"messages": []}, config)
        return await program.ainvoke(Command(resume="yes"), config)

    for told in (in_time(run())["messages"][-1].text, run_theirs(water, {"what": "roses"}).text + "; yes"):
        assert "stops its graph" in told and "watered" not in told and told.endswith("; yes")


@pytest.mark.parametrize("given", [roll, [len], 3], ids=["a tool", "a function", "a number"])
def test_what_is_no_list_of_their_tools_is_refused(given: Any) -> None:
    with pytest.raises(DefinitionError, match="from_tools"):
        langchain.from_tools(given)


def test_the_tools_of_a_toolkit_are_taken() -> None:
    class Kit(BaseToolkit):
        def get_tools(self) -> list[BaseTool]:
            return [roll]

    assert [one.name for one in langchain.from_tools(Kit())] == ["roll"]


def test_a_tool_whose_types_are_there_for_type_checkers_alone_is_refused() -> None:
    """One of them may be what a run of theirs injects."""

    def find(name: str) -> str:
        return name

    theirs = StructuredTool.from_function(find, description="Find.")
    find.__annotations__["name"] = "Elsewhere"
    with pytest.raises(DefinitionError, match="'Elsewhere' is not defined"):
        langchain.from_tools([theirs])
