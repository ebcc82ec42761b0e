"""OpenAI Agents, driven by its own scripted model."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
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
    DefinitionError,
    InputRequired,
    Media,
    Runner,
    Text,
    ToolCall,
    ToolContext,
    ToolResult,
    ask,
    tool,
)
from ferrule.adapters import openai_agents
from ferrule.testing import AdapterContract, Framework, FrameworkRun, ModelView, Question, ScriptedCall
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


async def test_always_approve_does_not_cover_later_calls(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    agent = agent_of(
        openai_agents.tools(world.runner()), (PAY,), (ScriptedCall("c2", "pay", {"to": "eve", "euros": 900}),)
    )
    result = await approved(agent, await AgentsRunner.run(agent, "go"), always_approve=True)
    assert world.paid == {"ada 5": 1}
    assert "Nothing was run" in outputs(result)["c2"]
    assert "remember" in caplog.text


async def test_an_approval_covers_only_the_approved_arguments() -> None:
    world = World()
    [pay] = [made for made in openai_agents.tools(world.runner(), context=in_a_session) if made.name == "pay"]
    result = await AgentsRunner.run(agent := agent_of([pay], (PAY,)), "go")
    ctx = TheirContext(context=None, tool_name="pay", tool_call_id="c1", tool_arguments="")
    unasked = await pay.on_invoke_tool(ctx, json.dumps(PAY.arguments))
    ctx.approve_tool(result.interruptions[0])
    other = await pay.on_invoke_tool(ctx, json.dumps({"to": "eve", "euros": 900}))
    own = outputs(await approved(agent, result))["c1"]
    assert "Nothing was run" in unasked
    assert "Nothing was run" in other
    assert own == "paid 5 EUR to ada"
    assert world.paid == {"ada 5": 1}


def in_a_session(ctx: RunContextWrapper[Any]) -> ToolContext[Any]:
    return ToolContext(session="s1", deps=ctx.context)


@pytest.mark.parametrize("text", ['{"to": "ada",}', '{"to": "ada"', "[1]", ""])
async def test_malformed_arguments_do_not_run_after_a_yes(text: str) -> None:
    world = World()
    agent = agent_of(openai_agents.tools(world.runner()), (ScriptedCall("c1", "pay", text),))
    assert "othing was run" in outputs(await approved(agent, await AgentsRunner.run(agent, "go")))["c1"]
    assert not world.paid


async def test_a_private_value_cannot_be_asked_for() -> None:
    ran = []

    @tool(private=["pin"])
    async def draw(euros: int, pin: str) -> str:
        ran.append(pin)
        return "drawn"

    async def run(guards: Any) -> Any:
        return await AgentsRunner.run(
            agent_of(openai_agents.tools(Runner([draw], guards=guards)), (ScriptedCall("c1", "draw", {"euros": 5}),)),
            "go",
        )

    result = await run([lambda call, context: ask("the PIN?", into="pin")])
    assert not result.interruptions
    assert "a person must provide a value" in outputs(result)["c1"]
    with pytest.raises(DefinitionError, match=r"draw.*bind\(pin=…\)"):
        openai_agents.tools(Runner([draw]))
    assert [made.name for made in openai_agents.tools(Runner([draw.bind(pin="1234")]))] == ["draw"]
    assert not ran


async def test_a_handler_that_asks_for_input_fails() -> None:
    @tool(read_only=True)
    async def book(context: ToolContext) -> Any:
        return InputRequired("which table?", {"type": "object", "properties": {"table": {"type": "integer"}}})

    result = await AgentsRunner.run(agent_of(openai_agents.tools(Runner([book])), (ScriptedCall("c1", "book"),)), "go")
    assert not result.interruptions
    assert "which table?" in outputs(result)["c1"] and "cannot wait" in outputs(result)["c1"]
    assert "It had been started" in outputs(result)["c1"] and "Nothing was run" not in outputs(result)["c1"]


def test_a_tool_annotated_with_input_required_is_refused() -> None:
    @tool(read_only=True)
    async def book() -> str | InputRequired:
        return "booked"

    with pytest.raises(DefinitionError, match="'book' may return an InputRequired"):
        openai_agents.tools(Runner([book]))


async def test_a_question_needs_a_session() -> None:
    async def run(**options: Any) -> Any:
        agent = agent_of(openai_agents.tools(world.runner(), **options), (PAY,))
        return await approved(agent, await AgentsRunner.run(agent, "go"))

    world = World()
    set_tracing_disabled(True)
    try:
        with pytest.raises(UserError, match=r"no session.*context="):
            await run()
        assert outputs(await run(context=in_a_session))["c1"] == "paid 5 EUR to ada"
    finally:
        set_tracing_disabled(False)
    assert world.paid == {"ada 5": 1}


async def test_a_guard_that_asks_against_its_asks_runs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def careful(call: ToolCall, context: ToolContext) -> Any:
        return ask("after all")

    async def run(**options: Any) -> Any:
        agent = agent_of(openai_agents.tools(world.runner(**options)), (PAY,))
        return await AgentsRunner.run(agent, "go")

    world = World()
    vars(careful)["asks"] = False
    assert "nobody can be asked" in outputs(await run(guards=[careful]))["c1"]
    assert "nobody can be asked" in outputs(await run(approve=lambda call, decision, context: decision))["c1"]
    assert "`asks`" in caplog.text and "suspends = True" in caplog.text
    assert not world.paid


async def test_files_are_converted_and_other_media_described() -> None:
    @tool(read_only=True)
    async def files() -> ToolResult:
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

    file, image, audio, unfetched = outputs(
        await AgentsRunner.run(agent_of(openai_agents.tools(Runner([files])), (ScriptedCall("c1", "files"),)), "go")
    )["c1"]
    assert file == {
        "type": "input_file",
        "filename": "a.pdf",
        "file_data": "data:application/pdf;base64," + base64.b64encode(b"%PDF-1.7").decode(),
    }
    assert image == {"type": "input_image", "image_url": "https://example.org/a.png"}
    assert audio == {"type": "input_text", "text": "[audio audio/wav]"}
    assert unfetched == {"type": "input_text", "text": "[file https://example.org/b.pdf]"}


async def ran(theirs: FunctionTool, arguments: dict[str, Any], **options: Any) -> ToolResult:
    return await Runner(openai_agents.from_tools([theirs]), deps="DEPS", **options).run(theirs.name, arguments)


async def test_omitted_arguments_are_judged_with_their_defaults() -> None:
    async def all_of_it(ctx: RunContextWrapper[str], arguments: dict[str, Any], call_id: str) -> bool:
        told.append(arguments)
        return arguments["euros"] is None

    @function_tool(needs_approval=all_of_it)
    def refund(order: str, euros: float | None, note: str | None = None) -> str:
        return f"{order} {euros} {note}"

    def look(call: ToolCall, context: ToolContext) -> None:
        judged.append(thaw(call.arguments))

    [made] = openai_agents.from_tools([refund])
    assert (made.name, list(made.input_schema["required"])) == ("refund", ["order"])
    told: list[dict[str, Any]] = []
    judged: list[dict[str, Any]] = []
    assert (await ran(refund, {"order": "o1"}, guards=[look])).status == "denied"
    assert told == judged == [{"order": "o1", "euros": None, "note": None}]
    assert (await ran(refund, {"order": "o1", "euros": 5})).output == "o1 5.0 None"


async def test_an_exception_is_a_failure_with_the_authors_text() -> None:
    async def explain(ctx: RunContextWrapper[Any], error: Exception) -> str:
        return f"no: {error}"

    async def broken(x: int) -> str:
        raise RuntimeError("the secret inside")

    def made(**options: Any) -> FunctionTool:
        return function_tool(broken, name_override="broken", **options)

    chosen = await ran(made(failure_error_function=explain), {"x": 1})
    assert (chosen.status, chosen.error) == ("failed", "no: the secret inside")
    for untold in (await ran(made(), {"x": 1}), await ran(made(failure_error_function=None), {"x": 1})):
        assert untold.status == "failed" and "secret" not in untold.text
    kept = made(failure_error_function=explain)
    await ran(kept, {"x": 1})
    ctx = TheirContext(context=None, tool_name="broken", tool_call_id="c1", tool_arguments="")
    assert await kept.on_invoke_tool(ctx, '{"x": 1}') == "no: the secret inside", "theirs is as it was"


Even = Annotated[int, AfterValidator(lambda number: number if number % 2 == 0 else int("it is odd"))]


@pytest.mark.parametrize("number", [3, 4])
async def test_only_errors_of_the_arguments_are_shown_to_the_model(number: int) -> None:
    async def halve(number: Even) -> str:
        raise ModelBehaviorError("Invalid JSON when parsing the secret inside")

    text = (await ran(function_tool(halve), {"number": number}, expose=())).text
    assert "secret" not in text
    assert ("Invalid JSON input for tool halve" in text) is (number == 3), "what does not fit its schema is told"


async def test_needs_approval_asks_a_person() -> None:
    async def large(ctx: RunContextWrapper[str], arguments: dict[str, Any], call_id: str) -> bool:
        return arguments["euros"] > 100 and ctx.context == "DEPS"

    @function_tool(needs_approval=large)
    async def refund(euros: int) -> str:
        return f"{euros}"

    @function_tool(needs_approval=True)
    async def close(account: str) -> str:
        return account

    assert (await ran(refund, {"euros": 5})).success
    asked = await ran(refund, {"euros": 500}, approve=lambda call, decision, context: decision)
    assert asked.status == "suspended" and "refund needs approval" in asked.text
    assert (await ran(close, {"account": "a"})).status == "denied"


async def test_output_blocks_are_converted() -> None:
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

    text, image, data, linked, uploaded = (await ran(blocks, {})).content
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
def test_a_tool_that_needs_a_run_of_the_sdk_is_refused(theirs: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        openai_agents.from_tools([theirs])
