"""LangChain's agents and LangGraph's own `ToolNode`, driven by a scripted chat model."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import (
    BaseTool,
    BaseToolkit,
    InjectedToolArg,
    InjectedToolCallId,
    ToolException,
)
from langchain_core.tools import tool as lc_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphInterrupt
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, InjectedStore, ToolNode, ToolRuntime, tools_condition
from langgraph.types import Command, interrupt
from pydantic import AfterValidator, BaseModel

from ferrule import (
    Deferred,
    DefinitionError,
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
from ferrule.journal import memory
from ferrule.testing import AdapterContract, Framework, FrameworkRun, ModelView, Question, ScriptedCall
from ferrule.testing.world import World
from ferrule.values.frozen import thaw
from waits import BOUND

GO = {"messages": [HumanMessage("go")]}
THREAD: Any = {"configurable": {"thread_id": "t1"}}
ADA, BOB = ScriptedCall("c1", "pay", {"to": "ada"}), ScriptedCall("c2", "pay", {"to": "bob"})


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


def message_of(*calls: ScriptedCall, id: str | None = None) -> AIMessage:
    made = [{"name": said.name, "args": said.arguments, "id": said.id, "type": "tool_call"} for said in calls]
    return AIMessage("", tool_calls=made, id=id)


def model_of(*calls: ScriptedCall) -> Scripted:
    """Return a model that makes these calls and ends."""
    return Scripted(messages=iter([message_of(*calls), AIMessage("done")]))


def agent_of(model: Any, tools: Any, saver: Any = None) -> Any:
    """Return an agent; each call of a message is a task of its own."""
    return create_agent(model, tools=tools, checkpointer=saver or InMemorySaver(), context_schema=str)


def graph_of(model: Any, tools: Any, saver: Any = None, **options: Any) -> Any:
    """Return a graph; all calls of a message are one task."""
    graph = StateGraph(MessagesState, context_schema=str)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools, **options))
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
        await driven.run(GO)
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


def waiting_for(driven: FrameworkRun) -> list[str]:
    return sorted(driven.questions)


async def test_questions_of_one_node_wait_until_its_other_calls_end() -> None:
    """A `ToolNode` leaves its other calls behind at the first interrupt, and a program that ends cancels them."""

    @tool
    async def save(name: str) -> str:
        for _ in range(200):
            await asyncio.sleep(0)
        saved.append(name)
        return f"saved {name}"

    def for_pay(call: ToolCall, context: ToolContext) -> Any:
        return ask("paying") if call.name == "pay" else None

    world, saved = World(), list[str]()
    runner = Runner([save, *world.runner().tools], guards=[for_pay], timeout=BOUND)
    calls = [ADA, ScriptedCall("c2", "save", {"name": "x"}), ScriptedCall("c3", "pay", {"to": "bob"})]
    driven = await LangChain(graph_of).start_run(runner, *calls)
    assert saved == ["x"] and waiting_for(driven) == ["c1", "c3"]
    await driven.answer({"c1": True, "c3": True})
    assert saved == ["x"] and world.paid == {"ada 1": 1, "bob 1": 1}
    assert driven.results["c2"] == ModelView("saved x")


@PROGRAMS
async def test_a_retried_node_pays_once_even_if_an_id_repeats(program_of: Any) -> None:
    """It breaks in the second of three turns; then a graph without the checkpoints starts anew."""

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
        turns = [message_of(ADA, id=f"turn {number}") for number in range(3)]
        driven = DrivenGraph(program_of(Scripted(messages=iter([*turns, AIMessage("done")])), made))
        if breaks:
            with pytest.raises(OSError, match="killed"):
                await driven.run(GO)
            assert world.paid == {"ada 1": 2}
        await driven.run(None if breaks else GO)
        assert world.paid == {"ada 1": 3}

    world, journal = World(), memory()
    await run(journal, breaks=True)
    await run(journal, breaks=False)


@pytest.mark.parametrize("answer", [{"decisions": [{"type": "approve"}]}, {"type": "approve"}, True], ids=repr)
async def test_each_form_of_a_yes_runs_the_call(answer: Any) -> None:
    world = World()
    message = await message_after(world, answer)
    assert message.content == "paid 1 EUR to ada" and message.artifact["status"] == "ok"


@pytest.mark.parametrize(
    "answer",
    [
        "yes",
        {"decisions": [{"type": "approve"}, {"type": "approve"}]},
        {"decisions": [{"type": "edit", "edited_action": {"name": "look", "args": {"to": "bob"}}}]},
    ],
    ids=repr,
)
async def test_a_malformed_answer_asks_again(answer: Any) -> None:
    world = World()
    assert await message_after(world, answer) is None
    assert not world.paid


async def message_after(world: World, answer: Any) -> Any:
    """Return the message of the one call after this answer, or None if it is asked again."""
    driven: Any = await LangChain(agent_of).start_run(world.runner(), ADA)
    await driven.run(Command(resume=answer))
    state = await driven.program.aget_state(driven.config)
    found = [message for message in state.values["messages"] if isinstance(message, ToolMessage)]
    assert bool(found) is not bool(driven.questions)
    return found[0] if found else None


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"type": "approve"}, "saw tea"),
        ({"type": "reject", "message": "not today"}, "not today"),
        ({"type": "respond", "message": "green tea"}, "green tea"),
    ],
    ids=["yes", "no", "instead"],
)
async def test_an_answered_call_keeps_its_outcome_when_its_node_reruns(said: Any, told: str) -> None:
    world = World()
    runner = world.runner(guards=[lambda call, context: ask("sure?")], journal=memory())
    calls = [ScriptedCall("c1", "look", {"name": "tea"}), ScriptedCall("c2", "pay", {"to": "ada"})]
    driven = DrivenGraph(graph_of(model_of(*calls), langchain.tools(runner)))
    await driven.run(GO)
    await driven.run(Command(resume={"decisions": [said, {"type": "no answer"}]}))
    assert waiting_for(driven) == ["c2"], "who is asked again"
    await driven.run(Command(resume={"decisions": [{"type": "approve"}]}))
    assert told in driven.results["c1"].text
    assert len(world.deps) == (told == "saw tea") and world.paid == {"ada 1": 1}


async def test_values_that_do_not_fit_a_question_are_asked_for_again() -> None:
    wanted = {"type": "object", "properties": {"euros": {"type": "integer"}}, "required": ["euros"]}

    @tool
    async def claim(context: ToolContext) -> str | InputRequired:
        return InputRequired("How much?", wanted) if context.answer is None else f"{context.answer.value['euros']} EUR"

    driven: Any = await LangChain(agent_of).start_run(Runner([claim]), ScriptedCall("c1", "claim"))
    assert driven.waiting[0].value["review_configs"][0]["allowed_decisions"] == ["edit", "reject", "respond"]
    edit = {"type": "edit", "edited_action": {"name": "claim", "args": {"euros": "lots"}}}
    for decision in (edit, {"type": "approve"}):
        await driven.run(Command(resume={"decisions": [decision]}))
        [request] = driven.waiting[0].value["action_requests"]
        assert request["description"].startswith("How much?\n") and "euros" in request["description"]
    await driven.answer({"c1": {"euros": 900}})
    assert driven.results["c1"] == ModelView("900 EUR")


@pytest.mark.parametrize("was_asked_before", [False, True])
async def test_a_late_call_does_not_take_the_answer_of_another(was_asked_before: bool) -> None:
    """A middleware holds it back until its node has asked, or nobody answered its question of an earlier turn."""

    async def hold_back(request: Any, execute: Any) -> Any:
        ours = asked if request.tool_call["id"] == "c1" else ended
        if ours is ended and len(turns) == 1:
            await asked.wait()
        try:
            return await execute(request)
        finally:
            if len(turns) == 1:
                ours.set()

    world, asked, ended = World(), asyncio.Event(), asyncio.Event()
    turns = [*([message_of(BOB)] if was_asked_before else []), message_of(ADA, BOB), AIMessage("done")]
    model = SimpleNamespace(invoke=lambda messages: turns.pop(0))
    driven = DrivenGraph(graph_of(model, langchain.tools(world.runner()), awrap_tool_call=hold_back))
    for _ in range(len(turns) - 1):
        await driven.run(GO)
    await ended.wait()
    await driven.answer({"c1": True}, record="lost")
    assert world.paid == {"ada 1": 1} and waiting_for(driven) == ["c2"]


async def test_deferred_work_ends_with_the_response() -> None:
    @tool
    async def print_book(pages: int) -> Deferred:
        return Deferred("order-7", reason="the print shop")

    driven: Any = await LangChain(agent_of).start_run(
        Runner([print_book]), ScriptedCall("c1", "print_book", {"pages": 3})
    )
    [waiting] = driven.waiting
    assert waiting.value["review_configs"][0]["allowed_decisions"] == ["approve", "reject", "respond"]
    await driven.run(Command(resume={"type": "respond", "message": "3 pages"}))
    assert driven.results["c1"] == ModelView("3 pages")


@PROGRAMS
def test_a_graph_runs_without_an_event_loop(program_of: Any) -> None:
    world = World()
    calls = [ScriptedCall("c0", "look", {"name": "x"}), ADA, BOB]
    program = program_of(model_of(*calls), langchain.tools(world.runner()))
    found = program.invoke(GO, THREAD, context="DEPS")
    for _ in range(2):
        resume = {}
        for one in found.get("__interrupt__", ()):
            people = [request["args"]["to"] for request in one.value["action_requests"]]
            resume[one.id] = {"decisions": [decision(to == "ada", "pay") for to in people]}
        found = program.invoke(Command(resume=resume), THREAD, context="DEPS") if resume else found
    texts = {message.tool_call_id: message for message in found["messages"] if isinstance(message, ToolMessage)}
    assert texts["c0"].content == "saw x" and texts["c1"].content == "paid 1 EUR to ada"
    assert texts["c2"].status == "error" and world.paid == {"ada 1": 1}
    assert set(world.deps) == {"DEPS"}


@pytest.mark.parametrize("name", ["run_manager", "callbacks", "tool_call_id", "root", "kwargs", "args", "input"])
async def test_a_parameter_may_have_a_name_of_langchain(name: str) -> None:
    async def handler(payload: dict[str, Any]) -> str:
        return f"{name} is {payload[name]}"

    schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    runner = Runner([Tool("named", handler, input_schema=schema, read_only=True)])
    for program_of in (agent_of, graph_of):
        driven = await LangChain(program_of).start_run(runner, ScriptedCall("c1", "named", {name: "x"}))
        assert driven.results["c1"] == ModelView(f"{name} is x")


async def test_a_context_function_gets_the_runtime() -> None:
    def to_context(runtime: Any) -> ToolContext:
        return ToolContext(principal=runtime.context["user"])

    @tool(read_only=True)
    async def who(context: ToolContext) -> str:
        return f"{context.principal} in {context.session}"

    made = langchain.tools(Runner([who]), context=to_context)
    program = create_agent(model_of(ScriptedCall("c1", "who")), tools=made, checkpointer=InMemorySaver())
    assert (await program.ainvoke(GO, THREAD, context={"user": "ada"}))["messages"][2].content == "ada in t1"


async def test_a_tool_may_be_called_outside_a_graph() -> None:
    world = World()
    made = {one.name: one for one in langchain.tools(world.runner())}
    assert await made["look"].ainvoke({"name": "x"}) == "saw x"
    assert await made["look"].arun({"name": "x"}) == "saw x"
    with pytest.raises(ToolException, match="waits for a decision"):
        await made["pay"].ainvoke({"to": "ada"})
    assert made["look"].invoke({"name": "y"}) == "saw y"
    assert not world.paid


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


async def run_theirs(theirs: Any, arguments: dict[str, Any]) -> ToolResult:
    return await Runner(langchain.from_tools([theirs])).run(
        ToolCall("c1", theirs.name, arguments), ToolContext(session="s1")
    )


async def test_a_langchain_tool_keeps_its_schema() -> None:
    [ours] = langchain.from_tools([roll])
    assert ours.name == "roll" and ours.description == "Roll."
    assert ours.input_schema["properties"].keys() == {"sides", "times"}
    assert ours.input_schema["properties"]["sides"]["description"] == "How many it has."
    assert not ours.read_only
    assert (await run_theirs(roll, {"sides": 6})).text == "s1 c1: 6 x 2"


@pytest.mark.parametrize("handled", [False, True, "It went wrong."], ids=repr)
async def test_a_handled_tool_error_is_a_failure(handled: Any) -> None:
    theirs = roll.model_copy(update={"handle_tool_error": handled})
    result = await run_theirs(theirs, {"sides": 1})
    assert not result.success and (handled if isinstance(handled, str) else "at least 2") in result.text


async def test_blocks_and_artifacts_are_converted() -> None:
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

    result = await run_theirs(picture, {})
    assert result.content == (Text("a dot"), *2 * (Media("image", b"\x89PNG", "image/png"),))
    assert thaw(result.metadata)["artifact"] == {"size": 4}


class WithRuntime(BaseTool):
    name: str = "with_runtime_in_run"
    description: str = "Wants the runtime in its method."

    def _run(self, x: int, runtime: ToolRuntime) -> str:
        return ""


@pytest.mark.parametrize(
    ("injected", "kind"),
    [
        (ToolRuntime, "ToolRuntime"),
        (Annotated[dict[str, Any], InjectedState], "InjectedState"),
        (Annotated[Any, InjectedStore()], "InjectedStore"),
        (Annotated[str, InjectedToolArg], "InjectedToolArg"),
    ],
)
def test_a_tool_that_needs_a_graph_is_refused(injected: Any, kind: str) -> None:
    def needs(x: int, runtime: Any) -> str:
        "Needs what a graph injects."
        return ""

    needs.__annotations__["runtime"] = injected
    with pytest.raises(DefinitionError, match=f"needs.*{kind}"):
        langchain.from_tools([lc_tool(needs)])
    with pytest.raises(DefinitionError, match=r"with_runtime_in_run.*ToolRuntime"):
        langchain.from_tools([WithRuntime()])


async def test_a_command_or_interrupt_of_a_tool_is_a_failure() -> None:
    @lc_tool
    def go() -> Any:
        "Goes on elsewhere."
        return Command(goto="end")

    @lc_tool
    def wait() -> Any:
        "Stops the graph."
        raise GraphInterrupt(())

    assert "graph" in (await run_theirs(go, {})).text and not (await run_theirs(go, {})).success
    assert "graph" in (await run_theirs(wait, {})).text and not (await run_theirs(wait, {})).success


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
async def test_only_errors_of_the_arguments_are_shown_to_the_model(number: int) -> None:
    text = (await Runner(langchain.from_tools([halve]), expose=()).run("halve", {"number": number})).text
    assert "secret" not in text
    assert ("it is odd" in text) is (number == 3), "what does not fit its schema is told"


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
async def test_an_interrupted_graph_as_a_tool_is_a_failure() -> None:
    def node(state: Even) -> dict[str, Any]:
        return {"number": interrupt("pay?")}

    graph = StateGraph(Even)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    theirs = graph.compile(checkpointer=InMemorySaver()).as_tool(
        name="pay", description="Pay.", arg_types={"number": int}
    )
    result = await run_theirs(theirs, {"number": 4})
    assert result.status == "failed" and "interrupted" in result.text


async def test_an_interrupt_of_a_langchain_tool_takes_no_other_answer() -> None:
    @lc_tool
    async def water(what: str) -> str:
        "Waters, once a person has said so."
        return f"watered by {interrupt(f'water {what}?')}"

    runner = Runner(langchain.from_tools([water]), journal=memory())

    async def node(state: MessagesState) -> dict[str, Any]:
        told = (await runner.run(ToolCall("c1", "water", {"what": "roses"}))).text
        return {"messages": [AIMessage(f"{told}; {interrupt('shut the door?')}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    program = graph.compile(checkpointer=InMemorySaver())
    await program.ainvoke({"messages": []}, THREAD)
    done = await program.ainvoke(Command(resume="yes"), THREAD)
    for told in (done["messages"][-1].text, (await run_theirs(water, {"what": "roses"})).text + "; yes"):
        assert "stops its graph" in told and "watered" not in told and told.endswith("; yes")


def test_a_toolkit_is_a_list_of_tools() -> None:
    class Kit(BaseToolkit):
        def get_tools(self) -> list[BaseTool]:
            return [roll]

    assert [one.name for one in langchain.from_tools(Kit())] == ["roll"]
