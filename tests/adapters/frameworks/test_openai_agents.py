"""OpenAI Agents, driven by its own scripted model."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from agents import (
    Agent,
    FunctionTool,
    RunConfig,
    RunContextWrapper,
    RunState,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    WebSearchTool,
    function_tool,
    set_trace_processors,
    set_tracing_disabled,
)
from agents import Runner as AgentsRunner
from agents.exceptions import ModelBehaviorError, UserError
from agents.mcp import MCPServerStdio, MCPUtil
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext as TheirContext
from agents.tool_guardrails import ToolGuardrailFunctionOutput, tool_input_guardrail
from mcp.types import Tool as McpTool
from pydantic import AfterValidator

from ferrule import (
    Decision,
    DefinitionError,
    InputRequired,
    Journal,
    Media,
    Runner,
    Text,
    ToolCall,
    ToolContext,
    ToolResult,
    allow,
    approval,
    ask,
    tool,
)
from ferrule.adapters import openai_agents
from ferrule.guards import ask_before_changes
from ferrule.testing import AdapterContract, Framework, FrameworkRun, ModelView, Question, ScriptedCall
from ferrule.testing.bounded import in_time
from ferrule.testing.world import PNG, World
from ferrule.values.frozen import thaw

set_trace_processors([])  # nothing is sent anywhere
_conversations = iter(range(1_000_000))


def agent_of(tools: list[FunctionTool], *turns: tuple[ScriptedCall, ...]) -> Agent[Any]:
    """An agent whose model makes these calls, turn by turn, and then says that it is done."""
    made = ([function_call(said.name, said.arguments, call_id=said.id) for said in turn] for turn in turns)
    steps = [*made, *([assistant_message("done")] for _ in range(9))]
    return Agent("desk", tools=list(tools), model=ScriptedModel(steps))


class DrivenAgent(FrameworkRun):
    def __init__(self, runner: Runner, *turns: tuple[ScriptedCall, ...]) -> None:
        super().__init__()
        self._runner = runner
        self.agent = agent_of(openai_agents.tools(runner), *turns)
        self.config = RunConfig(
            group_id=f"conversation {next(_conversations)}", tool_not_found_behavior="return_error_to_model"
        )
        self.stored = ""
        """The run that waits, as its `RunState` writes it."""

    async def run(self, given: Any) -> None:
        done = await AgentsRunner.run(self.agent, given, context="DEPS", run_config=self.config)
        for item in done.new_items:
            if item.type == "tool_call_output_item":
                self.results[item.raw_item["call_id"]] = seen(item)
        self.questions = {item.call_id: await self._question(item) for item in done.interruptions}
        if done.interruptions:
            self.stored = done.to_state().to_string(context_serializer=lambda deps: {"deps": deps})

    async def _question(self, item: Any) -> Question:
        """An interruption says no reason; the runner does."""
        decision = await self._runner.decide(ToolCall(item.call_id, item.name, item.arguments))
        return Question(json.loads(item.arguments), decision.reason)

    async def answer(
        self,
        answers: Mapping[str, bool | dict[str, Any]],
        record: Literal["unchanged", "changed", "lost"] = "unchanged",
    ) -> None:
        state = await RunState.from_string(self.agent, self.stored, context_deserializer=lambda kept: kept["deps"])
        for item in state.get_interruptions():
            if item.call_id in answers:
                (state.approve if answers[item.call_id] else state.reject)(item)
        await self.run(state)


def seen(item: Any) -> ModelView:
    output = item.raw_item["output"]
    failed = ((item.custom_data or {}).get("ferrule") or {}).get("success") is False
    if isinstance(output, str):
        return ModelView(output, failed)
    texts = [block["text"] for block in output if block["type"] == "input_text"]
    media = [block["image_url"].partition(",")[2] for block in output if block["type"] == "input_image"]
    return ModelView(" ".join(texts), failed, tuple(map(base64.b64decode, media)))


class OpenAIAgents(Framework):
    asks_once = True  # what is asked about is decided before the person's answers are looked at
    edits = False  # a person says yes or no
    asks_about_changes = False  # a person is shown what the model has sent
    brings_record = False  # a `RunState` has nothing of ours in it
    holds_yes = True
    tells_progress = False  # there is no channel for it
    malformed_text = True
    stores_data = True

    async def start_run(self, runner: Runner, *calls: ScriptedCall) -> FrameworkRun:
        driven = DrivenAgent(runner, calls)
        await driven.run("go")
        return driven

    def export_run(self, waiting: DrivenAgent) -> Any:
        return waiting.stored, waiting.config.group_id

    async def import_run(self, runner: Runner, stored: Any) -> FrameworkRun:
        driven = DrivenAgent(runner)
        driven.stored, driven.config.group_id = stored
        return driven


class TestOpenAIAgents(AdapterContract):
    framework = OpenAIAgents()


# -- what is asked -----------------------------------------------------------------------------------------------------


def outputs(result: Any) -> dict[str, Any]:
    items = (item for item in result.new_items if item.type == "tool_call_output_item")
    return {item.raw_item["call_id"]: item.raw_item["output"] for item in items}


async def approved(agent: Agent[Any], result: Any, **options: Any) -> Any:
    """The run after a yes to all that waits."""
    state = result.to_state()
    for item in result.interruptions:
        state.approve(item, **options)
    return await AgentsRunner.run(agent, state)


PAY = ScriptedCall("c1", "pay", {"to": "ada", "euros": 5})


def test_a_yes_to_all_calls_of_a_tool_is_none_to_what_nobody_was_asked_about(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> Any:
        agent = agent_of(
            openai_agents.tools(world.runner()), (PAY,), (ScriptedCall("c2", "pay", {"to": "eve", "euros": 900}),)
        )
        return await approved(agent, await AgentsRunner.run(agent, "go"), always_approve=True)

    world = World()
    result = in_time(run())
    assert world.paid == {"ada 5": 1}
    assert "Nothing was run" in outputs(result)["c2"]
    assert "remember" in caplog.text


def test_a_yes_to_all_calls_of_a_tool_is_one_to_those_that_wait_beside_it() -> None:
    async def run() -> Any:
        agent = agent_of(
            openai_agents.tools(world.runner()), (PAY, ScriptedCall("c2", "pay", {"to": "eve", "euros": 9}))
        )
        result = await AgentsRunner.run(agent, "go")
        state = result.to_state()
        first, _ = state.get_interruptions()
        state.approve(first, always_approve=True)
        return await AgentsRunner.run(agent, state)

    world = World()
    assert not in_time(run()).interruptions
    assert world.paid == {"ada 5": 1, "eve 9": 1}


def test_what_was_granted_here_runs_and_all_else_waits() -> None:
    @tool(destructive=False, open_world=False)
    async def order(item: str, pieces: int) -> str:
        """Order something."""
        return f"ordered {pieces}"

    class AtTheDesk:
        async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
            return (await self.answer(approval.Asked.of(call, decision, context))).decision

        async def answer(self, asked: approval.Asked) -> approval.Answer:
            return approval.Answer(allow(), next(offer for offer in asked.offers if offer.key == "always"))

    def runner(approver: Any) -> Runner:
        return Runner([order], guards=[ask_before_changes], approve=approval.remembered(approver, grants))

    async def run() -> Any:
        assert (await runner(AtTheDesk()).run("order", {"item": "tea", "pieces": 2}, principal="ada")).success
        made = openai_agents.tools(
            runner(approval.later), context=lambda ctx: ToolContext(principal="ada", session="s")
        )
        calls = (
            ScriptedCall("c1", "order", {"item": "tea", "pieces": 1}),
            ScriptedCall("c2", "order", {"item": "tea", "pieces": 9}),
        )
        waiting = await AgentsRunner.run(agent := agent_of(made, calls), "go")
        assert [item.call_id for item in waiting.interruptions] == ["c2"]
        return outputs(waiting) | outputs(await approved(agent, waiting))

    grants = approval.Grants()
    assert in_time(run()) == {"c1": "ordered 1", "c2": "ordered 9"}


def test_a_yes_is_none_to_other_arguments_under_the_same_id_and_no_yes_is_none() -> None:
    async def run() -> Any:
        [pay] = [made for made in openai_agents.tools(world.runner(), context=in_a_session) if made.name == "pay"]
        result = await AgentsRunner.run(agent := agent_of([pay], (PAY,)), "go")
        ctx = TheirContext(context=None, tool_name="pay", tool_call_id="c1", tool_arguments="")
        unasked = await pay.on_invoke_tool(ctx, json.dumps(PAY.arguments))
        ctx.approve_tool(result.interruptions[0])
        other = await pay.on_invoke_tool(ctx, json.dumps({"to": "eve", "euros": 900}))
        return unasked, other, outputs(await approved(agent, result))["c1"]

    world = World()
    unasked, other, own = in_time(run())
    assert "Nothing was run" in unasked
    assert "Nothing was run" in other
    assert own == "paid 5 EUR to ada"
    assert world.paid == {"ada 5": 1}


def in_a_session(ctx: RunContextWrapper[Any]) -> ToolContext[Any]:
    return ToolContext(session="s1", deps=ctx.context)


@pytest.mark.parametrize("text", ['{"to": "ada",}', '{"to": "ada"', "[1]", ""])
def test_text_that_the_sdk_has_a_person_asked_about_is_not_run_by_their_yes(text: str) -> None:
    async def run() -> Any:
        agent = agent_of(openai_agents.tools(world.runner()), (ScriptedCall("c1", "pay", text),))
        return await approved(agent, await AgentsRunner.run(agent, "go"))

    world = World()
    assert "othing was run" in outputs(in_time(run()))["c1"]
    assert not world.paid


def test_what_a_guard_makes_of_the_arguments_is_not_asked_about_until_the_model_sends_it() -> None:
    def at_most_ten(call: ToolCall, context: ToolContext) -> Any:
        if call.arguments["euros"] > 10:
            return allow({**call.arguments, "euros": 10})
        return ask("a payment")

    async def run() -> tuple[Any, Any]:
        [pay] = [made for made in openai_agents.tools(world.runner(guards=[at_most_ten])) if made.name == "pay"]
        sent = (
            (ScriptedCall("c1", "pay", {"to": "ada", "euros": 50}),),
            (ScriptedCall("c2", "pay", {"to": "ada", "euros": 10}),),
        )
        result = await AgentsRunner.run(agent := agent_of([pay], *sent), "go")
        return result, await approved(agent, result)

    world = World()
    waiting, done = in_time(run())
    assert 'send these arguments: {"to": "ada", "euros": 10}' in outputs(waiting)["c1"]
    assert [item.call_id for item in waiting.interruptions] == ["c2"]
    assert outputs(done)["c2"] == "paid 10 EUR to ada"
    assert world.paid == {"ada 10": 1}


def test_defaults_that_are_filled_in_are_no_change() -> None:
    async def run() -> Any:
        agent = agent_of(openai_agents.tools(world.runner()), (ScriptedCall("c1", "pay", {"to": "ada"}),))
        return await approved(agent, await AgentsRunner.run(agent, "go"))

    world = World()
    assert outputs(in_time(run()))["c1"] == "paid 1 EUR to ada"


def test_a_value_that_only_a_person_can_supply_cannot_be_given() -> None:
    ran = []

    @tool(private=["pin"])
    async def draw(euros: int, pin: str) -> str:
        """Draw money."""
        ran.append(pin)
        return "drawn"

    async def run(guards: Any) -> Any:
        return await AgentsRunner.run(
            agent_of(openai_agents.tools(Runner([draw], guards=guards)), (ScriptedCall("c1", "draw", {"euros": 5}),)),
            "go",
        )

    result = in_time(run([lambda call, context: ask("the PIN?", into="pin")]))
    assert not result.interruptions
    assert "a person must provide a value" in outputs(result)["c1"]
    with pytest.raises(DefinitionError, match=r"draw.*bind\(pin=…\)"):
        openai_agents.tools(Runner([draw]))
    assert [made.name for made in openai_agents.tools(Runner([draw.bind(pin="1234")]))] == ["draw"]
    assert not ran


def test_input_that_a_handler_wants_while_it_runs_cannot_be_given() -> None:
    @tool(read_only=True)
    async def book(context: ToolContext) -> Any:
        """Book a table."""
        return InputRequired("which table?", {"type": "object", "properties": {"table": {"type": "integer"}}})

    async def run() -> Any:
        return await AgentsRunner.run(
            agent_of(openai_agents.tools(Runner([book])), (ScriptedCall("c1", "book"),)), "go"
        )

    result = in_time(run())
    assert not result.interruptions
    assert "which table?" in outputs(result)["c1"] and "cannot wait" in outputs(result)["c1"]
    assert "It had been started" in outputs(result)["c1"] and "Nothing was run" not in outputs(result)["c1"]


def test_a_tool_that_says_that_it_may_want_input_is_refused() -> None:
    @tool(read_only=True)
    async def book() -> str | InputRequired:
        """Book a table."""
        return "booked"

    with pytest.raises(DefinitionError, match="'book' may return an InputRequired"):
        openai_agents.tools(Runner([book]))


def test_a_person_answers_in_another_process(tmp_path: Path) -> None:
    """No group is given: the run's trace is its session."""

    def made(world: World, journal: Journal) -> Agent[Any]:
        runner = world.runner(journal=journal, resume_key=b"k" * 32)
        return agent_of(openai_agents.tools(runner), (PAY,))

    async def first() -> str:
        with closing(Journal.open(tmp_path / "calls.db")) as journal:
            return (await AgentsRunner.run(made(World(), journal), "go")).to_state().to_string()

    async def second(text: str) -> Any:
        with closing(Journal.open(tmp_path / "calls.db")) as journal:
            agent = made(world, journal)
            agent.model = ScriptedModel([[assistant_message("done")]])
            state = await RunState.from_string(agent, text)
            state.approve(state.get_interruptions()[0])
            return await AgentsRunner.run(agent, state)

    world = World()
    text = in_time(first())
    assert outputs(in_time(second(text)))["c1"] == "paid 5 EUR to ada"
    assert outputs(in_time(second(text)))["c1"] == "paid 5 EUR to ada", "what came of it is kept"
    assert world.paid == {"ada 5": 1}


def test_a_person_can_be_asked_where_the_run_has_a_session_alone() -> None:
    async def run(**options: Any) -> Any:
        agent = agent_of(openai_agents.tools(world.runner(), **options), (PAY,))
        return await approved(agent, await AgentsRunner.run(agent, "go"))

    world = World()
    set_tracing_disabled(True)
    try:
        with pytest.raises(UserError, match=r"no session.*context="):
            in_time(run())
        assert outputs(in_time(run(context=in_a_session)))["c1"] == "paid 5 EUR to ada"
    finally:
        set_tracing_disabled(False)
    assert world.paid == {"ada 5": 1}


def test_a_run_that_streams_is_interrupted_and_goes_on() -> None:
    async def run() -> Any:
        agent = agent_of(openai_agents.tools(world.runner()), (PAY,))
        result: Any = AgentsRunner.run_streamed(agent, "go")
        [_ async for _ in result.stream_events()]
        state = result.to_state()
        state.approve(result.interruptions[0])
        result = AgentsRunner.run_streamed(agent, state)
        [_ async for _ in result.stream_events()]
        return result

    world = World()
    assert outputs(in_time(run()))["c1"] == "paid 5 EUR to ada"


def test_what_an_agent_within_an_agent_asks_waits_in_the_outer_run() -> None:
    async def run() -> Any:
        inner = agent_of(openai_agents.tools(world.runner()), (PAY,))
        outer = agent_of([inner.as_tool("clerk", "Pays.")], (ScriptedCall("o1", "clerk", {"input": "pay ada"}),))
        result = await AgentsRunner.run(outer, "go")
        assert [item.name for item in result.interruptions] == ["pay"]
        return await approved(outer, result)

    world = World()
    assert outputs(in_time(run()))["o1"] == "done"
    assert world.paid == {"ada 5": 1}


def test_the_guards_of_a_runner_that_is_mounted_ask_too() -> None:
    async def run() -> Any:
        outer = Runner(world.runner().as_tools())
        agent = agent_of(openai_agents.tools(outer), (PAY,))
        result = await AgentsRunner.run(agent, "go")
        assert [item.name for item in result.interruptions] == ["pay"]
        return await approved(agent, result)

    world = World()
    assert outputs(in_time(run()))["c1"] == "paid 5 EUR to ada"


def test_a_guard_that_asks_where_it_says_that_it_does_not_runs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def careful(call: ToolCall, context: ToolContext) -> Any:
        return ask("after all")

    async def run(**options: Any) -> Any:
        agent = agent_of(openai_agents.tools(world.runner(**options)), (PAY,))
        return await AgentsRunner.run(agent, "go")

    world = World()
    vars(careful)["asks"] = False
    assert "nobody can be asked" in outputs(in_time(run(guards=[careful])))["c1"]
    assert "nobody can be asked" in outputs(in_time(run(approve=lambda call, decision, context: decision)))["c1"]
    assert "`asks`" in caplog.text and "suspends = True" in caplog.text
    assert not world.paid


def test_only_what_a_guard_may_ask_about_has_a_callable_approval() -> None:
    made = {one.name: callable(one.needs_approval) for one in openai_agents.tools(World().runner())}
    assert made.pop("pay") is True
    assert not any(made.values())


# -- results -----------------------------------------------------------------------------------------------------------


def test_a_program_finds_what_a_call_came_to_beside_the_text_for_the_model() -> None:
    async def run() -> Any:
        agent = agent_of(openai_agents.tools(World().runner()), (ScriptedCall("c1", "explode"),))
        return await AgentsRunner.run(agent, "go")

    [item] = (item for item in in_time(run()).new_items if item.type == "tool_call_output_item")
    assert item.custom_data["ferrule"]["status"] == "failed"
    assert "output" not in item.custom_data["ferrule"]


def test_files_arrive_as_files_and_what_has_no_form_there_in_words() -> None:
    @tool(read_only=True)
    async def files() -> ToolResult:
        """Files."""
        data, pdf = b"%PDF-1.7", "application/pdf"
        linked = Media("image", None, "image/png", uri="https://example.org/a.png", fetch=True)
        return ToolResult(
            content=[
                Media("file", data, pdf, name="a.pdf"),
                linked,
                Media("audio", b"RIFF", "audio/wav"),
                Media("file", None, pdf, uri="https://example.org/b.pdf"),
            ]
        )

    async def run() -> Any:
        return await AgentsRunner.run(
            agent_of(openai_agents.tools(Runner([files])), (ScriptedCall("c1", "files"),)), "go"
        )

    file, image, audio, unfetched = outputs(in_time(run()))["c1"]
    assert file == {
        "type": "input_file",
        "filename": "a.pdf",
        "file_data": "data:application/pdf;base64," + base64.b64encode(b"%PDF-1.7").decode(),
    }
    assert image == {"type": "input_image", "image_url": "https://example.org/a.png"}
    assert audio == {"type": "input_text", "text": "[audio audio/wav]"}
    assert unfetched == {"type": "input_text", "text": "[file https://example.org/b.pdf]"}


# -- their tools -------------------------------------------------------------------------------------------------------


def ran(theirs: FunctionTool, arguments: dict[str, Any], **options: Any) -> ToolResult:
    async def run() -> ToolResult:
        return await Runner(openai_agents.from_tools([theirs]), deps="DEPS", **options).run(theirs.name, arguments)

    return in_time(run())


def test_a_parameter_with_a_default_may_be_left_out_though_a_strict_schema_requires_it() -> None:
    @function_tool
    async def roll(ctx: RunContextWrapper[str], sides: int, times: int = 2, label: str | None = None) -> str:
        """Roll dice.

        Args:
            sides: How many sides.
        """
        return f"{ctx.context}: {times} of {sides} {label}"

    [made] = openai_agents.from_tools([roll])
    assert (made.name, made.description) == ("roll", "Roll dice.")
    assert made.input_schema["properties"]["sides"]["description"] == "How many sides."
    assert list(made.input_schema["required"]) == ["sides"]
    assert ran(roll, {"sides": 6}).output == "DEPS: 2 of 6 None"
    assert ran(roll, {"sides": 6, "times": 3, "label": "x"}).output == "DEPS: 3 of 6 x"
    assert ran(roll, {"times": 3}).status == "invalid"


def test_what_is_left_out_is_judged_as_what_it_is_then() -> None:
    async def all_of_it(ctx: RunContextWrapper[str], arguments: dict[str, Any], call_id: str) -> bool:
        told.append(arguments)
        return arguments["euros"] is None

    @function_tool(needs_approval=all_of_it)
    def refund(order: str, euros: float | None, note: str | None = None) -> str:
        return f"{order} {euros} {note}"

    def look(call: ToolCall, context: ToolContext) -> None:
        judged.append(thaw(call.arguments))

    told: list[dict[str, Any]] = []
    judged: list[dict[str, Any]] = []
    assert ran(refund, {"order": "o1"}, guards=[look]).status == "denied"
    assert told == judged == [{"order": "o1", "euros": None, "note": None}]
    assert ran(refund, {"order": "o1", "euros": 5}).output == "o1 5.0 None"


def test_what_their_tools_raise_is_a_failure_with_the_text_that_their_author_chose() -> None:
    async def explain(ctx: RunContextWrapper[Any], error: Exception) -> str:
        return f"no: {error}"

    async def broken(x: int) -> str:
        raise RuntimeError("the secret inside")

    def made(**options: Any) -> FunctionTool:
        return function_tool(broken, name_override="broken", **options)

    chosen = ran(made(failure_error_function=explain), {"x": 1})
    assert (chosen.status, chosen.error) == ("failed", "no: the secret inside")
    for untold in (ran(made(), {"x": 1}), ran(made(failure_error_function=None), {"x": 1})):
        assert untold.status == "failed" and "secret" not in untold.text
    kept = made(failure_error_function=explain)
    ran(kept, {"x": 1})
    ctx = TheirContext(context=None, tool_name="broken", tool_call_id="c1", tool_arguments="")
    assert in_time(kept.on_invoke_tool(ctx, '{"x": 1}')) == "no: the secret inside", "theirs is as it was"


Even = Annotated[int, AfterValidator(lambda number: number if number % 2 == 0 else int("it is odd"))]


@pytest.mark.parametrize("number", [3, 4])
def test_what_a_model_did_wrong_within_a_function_of_theirs_is_told_as_far_as_the_runner_exposes_it(
    number: int,
) -> None:
    async def halve(number: Even) -> str:
        raise ModelBehaviorError("Invalid JSON when parsing the secret inside")

    text = ran(function_tool(halve), {"number": number}, expose=()).text
    assert "secret" not in text
    assert ("Invalid JSON input for tool halve" in text) is (number == 3), "what does not fit its schema is told"


def test_what_needs_approval_there_is_asked_about_here() -> None:
    async def large(ctx: RunContextWrapper[str], arguments: dict[str, Any], call_id: str) -> bool:
        return arguments["euros"] > 100 and ctx.context == "DEPS"

    @function_tool(needs_approval=large)
    async def refund(euros: int) -> str:
        return f"{euros}"

    @function_tool(needs_approval=True)
    async def close(account: str) -> str:
        return account

    assert ran(refund, {"euros": 5}).success
    asked = ran(refund, {"euros": 500}, approve=lambda call, decision, context: decision)
    assert asked.status == "suspended" and "refund needs approval" in asked.text
    assert ran(close, {"account": "a"}).status == "denied"


def test_their_time_out_and_the_schema_of_their_output_are_kept() -> None:
    @function_tool(timeout=0.01, output_json_schema={"type": "object", "properties": {"a": {"type": "integer"}}})
    async def wait() -> dict[str, int]:
        await asyncio.get_running_loop().create_future()
        return {"a": 1}

    [made] = openai_agents.from_tools([wait])
    assert made.output_schema is not None and list(made.output_schema["required"]) == ["a"]
    assert ran(wait, {}).status == "timeout"


def test_their_blocks_are_ours() -> None:
    picture = "data:image/png;base64," + base64.b64encode(PNG).decode()

    @function_tool
    def blocks() -> Any:
        return [
            ToolOutputText(text="a dot"),
            ToolOutputImage(image_url=picture),
            ToolOutputFileContent(file_data=base64.b64encode(b"x").decode(), filename="x.bin"),
            ToolOutputFileContent(file_url="https://example.org/b.pdf"),
            {"type": "image", "file_id": "file-1"},
        ]

    text, image, data, linked, uploaded = ran(blocks, {}).content
    assert uploaded == Text("[image file-1]")
    assert text == Text("a dot")
    assert image == Media("image", PNG, "image/png")
    assert data == Media("file", b"x", "application/octet-stream", name="x.bin")
    assert linked == Media("file", None, "application/octet-stream", uri="https://example.org/b.pdf")


@tool_input_guardrail
def nothing_else(data: Any) -> ToolGuardrailFunctionOutput:
    """A guardrail."""
    return ToolGuardrailFunctionOutput.allow()


def nothing() -> None:
    """A handler."""


def of_a_server() -> FunctionTool:
    """A tool as the SDK makes it of one that an MCP server lists."""
    listed = McpTool.model_validate({"name": "pay", "description": "Pay.", "inputSchema": {"type": "object"}})
    server = MCPServerStdio({"command": "bank"}, name="bank")
    return MCPUtil.to_function_tool(listed, server, convert_schemas_to_strict=False)


@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        (WebSearchTool(), "WebSearchTool is none"),
        (nothing, "function is none"),
        (function_tool(nothing, tool_input_guardrails=[nothing_else]), "guardrails"),
        (function_tool(nothing, is_enabled=False), "leave it out"),
        (function_tool(nothing, is_enabled=lambda ctx, agent: True), "use a guard"),
        (function_tool(nothing, allowed_callers=["programmatic"]), "programs of the API"),
        (Agent("clerk").as_tool("clerk", "Pays."), r"Runner\.run"),
        (of_a_server(), r"ferrule\.mcp\.connect"),
    ],
)
def test_what_needs_their_run_is_refused(theirs: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        openai_agents.from_tools([theirs])


def test_their_tools_come_back_to_an_agent_judged() -> None:
    @function_tool
    def delete(file: str) -> str:
        """Delete."""
        return f"deleted {file}"

    async def run() -> Any:
        runner = Runner(openai_agents.from_tools([delete]), guards=[ask_before_changes])
        agent = agent_of(openai_agents.tools(runner), (ScriptedCall("c1", "delete", {"file": "a"}),))
        result = await AgentsRunner.run(agent, "go")
        assert [item.name for item in result.interruptions] == ["delete"]
        return await approved(agent, result)

    assert outputs(in_time(run()))["c1"] == "deleted a"
