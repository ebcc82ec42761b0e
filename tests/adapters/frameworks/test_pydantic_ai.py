"""pydantic-ai, driven by a `FunctionModel`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import pytest
from pydantic import TypeAdapter
from pydantic_ai import Agent, BinaryContent, FunctionToolset, ImageUrl, RunContext, ToolReturn, WrapperToolset
from pydantic_ai import Tool as TheirTool
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    repair_messages,
)
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.tools import DeferredToolRequests, ToolApproved, ToolDefinition, ToolDenied
from pydantic_ai.toolsets import DynamicToolset, ExternalToolset

from ferrule import (
    Deferred,
    DefinitionError,
    InputRequired,
    Media,
    Runner,
    Text,
    ToolCall,
    ToolContext,
    ToolResult,
    WaitingFor,
    deny,
    tool,
)
from ferrule.adapters import pydantic_ai
from ferrule.guards import ask_before_changes
from ferrule.journal import memory
from ferrule.stores.store import Memory
from ferrule.testing import AdapterContract, Framework, FrameworkRun, ModelView, Question, ScriptedCall
from ferrule.testing.world import PNG, World

REQUESTS = TypeAdapter(DeferredToolRequests)


class DrivenAgent(FrameworkRun):
    def __init__(self, runner: Runner, calls: tuple[ScriptedCall, ...]) -> None:
        super().__init__()
        self._calls = calls
        self._agent = Agent(
            FunctionModel(stream_function=self._reply),
            toolsets=[pydantic_ai.toolset(runner)],
            output_type=[str, DeferredToolRequests],
            deps_type=str,
        )
        self.stored: tuple[bytes, bytes] | None = None
        """The messages and the requests of the run that waits, as an application stores them."""

    async def _reply(self, messages: list[Any], info: Any) -> AsyncIterator[Any]:
        if not any(isinstance(part, UserPromptPart) for part in messages[-1].parts):
            yield "done"
            return
        for place, said in enumerate(self._calls):
            text = said.arguments if isinstance(said.arguments, str) else json.dumps(said.arguments)
            yield {place: DeltaToolCall(name=said.name, json_args=text, tool_call_id=said.id)}

    async def run(self, **given: Any) -> None:
        done = await self._agent.run(deps="DEPS", event_stream_handler=self._see, **given)
        self.messages = done.all_messages()
        for message in self.messages:
            for part in message.parts:
                if isinstance(part, ToolReturnPart | RetryPromptPart) and part.tool_call_id:
                    self.results[part.tool_call_id] = seen(part)
        self.questions = {}
        if isinstance(done.output, DeferredToolRequests):
            self.stored = ModelMessagesTypeAdapter.dump_json(done.all_messages()), REQUESTS.dump_json(done.output)
            for part in done.output.approvals:
                reason = done.output.metadata[part.tool_call_id]["reason"]
                self.questions[part.tool_call_id] = Question(part.args_as_dict(), reason)

    async def _see(self, ctx: Any, events: Any) -> None:
        async for event in events:
            if isinstance(event, pydantic_ai.Progress):
                self.progress.append((event.tool_call_id, event.done, event.total, event.message))

    async def answer(
        self,
        answers: Mapping[str, bool | dict[str, Any]],
        record: Literal["unchanged", "changed", "lost"] = "unchanged",
    ) -> None:
        assert self.stored is not None
        history, requests = (
            ModelMessagesTypeAdapter.validate_json(self.stored[0]),
            REQUESTS.validate_json(self.stored[1]),
        )
        metadata = requests.metadata
        if record == "changed":
            for kept in metadata.values():
                kept["ferrule"]["pending"]["arguments"]["euros"] = 500
        approvals = {
            call_id: ToolApproved(override_args=answer) if isinstance(answer, dict) else answer or ToolDenied("no")
            for call_id, answer in answers.items()
        }
        given = {} if record == "lost" else {"metadata": metadata}
        results = requests.build_results(approvals=approvals, **given)
        await self.run(message_history=history, deferred_tool_results=results)


def seen(part: ToolReturnPart | RetryPromptPart) -> ModelView:
    if isinstance(part, RetryPromptPart):
        return ModelView(part.model_response(), failed=True)
    content = part.content if isinstance(part.content, list) else [part.content]
    media = tuple(block.data for block in content if isinstance(block, BinaryContent))
    return ModelView(
        " ".join(str(block) for block in content if isinstance(block, str)), part.outcome != "success", media
    )


class PydanticAI(Framework):
    stores_data = True

    async def start_run(self, runner: Runner, *calls: ScriptedCall) -> FrameworkRun:
        driven = DrivenAgent(runner, calls)
        await driven.run(user_prompt="go")
        return driven

    def export_run(self, waiting: DrivenAgent) -> Any:
        return waiting.stored

    async def import_run(self, runner: Runner, stored: Any) -> FrameworkRun:
        driven = DrivenAgent(runner, ())
        driven.stored = stored
        return driven


class TestPydanticAI(AdapterContract):
    framework = PydanticAI()


DAY = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}


@tool
async def book(city: str, context: ToolContext) -> str | InputRequired:
    if context.answer is None:
        return InputRequired(f"Which day in {city}?", DAY)
    if "time" not in (context.answer.state or {}):
        return InputRequired("When?", DAY, state={"time": True})
    return f"booked {city} on {context.answer.value['day']} for {context.deps}"


@tool
async def build() -> Deferred:
    return Deferred("build-7", reason="it is built elsewhere")


def asks_once(runner: Runner, call: ToolCallPart, toolset: Any = None, **options: Any) -> Agent[Any, Any]:
    """Return an agent whose model makes this call and ends."""

    def reply(messages: list[Any], info: Any) -> ModelResponse:
        return ModelResponse([call] if len(messages) == 1 else [TextPart("done")])

    return Agent(
        FunctionModel(reply),
        toolsets=[toolset or pydantic_ai.toolset(runner, **options)],
        output_type=[str, DeferredToolRequests],
        deps_type=str,
    )


def returned(done: Any) -> ToolReturnPart:
    """What the model was told of the last call."""
    parts = [part for message in done.all_messages() for part in message.parts]
    return [part for part in parts if isinstance(part, ToolReturnPart)][-1]


def in_json(requests: DeferredToolRequests) -> DeferredToolRequests:
    """The requests, after an application has stored them."""
    return REQUESTS.validate_json(REQUESTS.dump_json(requests))


@pytest.mark.parametrize("kept", [False, True], ids=["the record travels", "the record is kept"])
async def test_an_answer_to_a_question_runs_the_handler_again(kept: bool) -> None:
    options: dict[str, Any] = {"records": Memory()} if kept else {}
    runner = Runner([book], journal=memory())
    agent = asks_once(runner, ToolCallPart("book", {"city": "Rome"}, "c1"), **options)
    first = await agent.run("go", deps="DEPS")
    requests = in_json(first.output)
    assert requests.kind("c1") == "question"
    assert requests.metadata["c1"]["reason"] == "Which day in Rome?"
    assert requests.metadata["c1"]["schema"] == DAY
    assert ("ferrule" in requests.metadata["c1"]) is not kept

    context = ToolContext(session=first.conversation_id, deps="DEPS")
    with pytest.raises(CallDeferred) as again:
        await pydantic_ai.answer(runner, requests, "c1", {"day": "Monday"}, context, **options)
    assert again.value.metadata is not None
    assert again.value.metadata["reason"] == "When?"
    requests.metadata["c1"] = again.value.metadata
    came = await pydantic_ai.answer(runner, requests, "c1", {"day": "noon"}, context, **options)
    results = requests.build_results(calls={"c1": came})
    done = await agent.run(message_history=first.all_messages(), deferred_tool_results=results, deps="DEPS")
    assert done.output == "done"
    assert (returned(done).content, returned(done).outcome) == ("booked Rome on noon for DEPS", "success")


@pytest.mark.parametrize("said", [{"day": 7}, False, True])
async def test_a_wrong_answer_to_a_question_fails_the_call(said: Any) -> None:
    runner = Runner([book], journal=memory())
    first = await asks_once(runner, ToolCallPart("book", {"city": "Rome"}, "c1")).run("go")
    context = ToolContext(session=first.conversation_id)
    assert isinstance((await pydantic_ai.answer(runner, first.output, "c1", said, context)), ToolFailed)


async def test_an_id_repeated_in_a_later_turn_is_another_call() -> None:
    """Such as those of servers that count from `call_0` in each."""
    world = World()
    driven = DrivenAgent(world.runner(journal=memory()), (ScriptedCall("call_0", "pay", {"to": "ada"}),))
    await driven.run(user_prompt="go")
    await driven.answer({"call_0": True})
    await driven.run(user_prompt="and again", message_history=driven.messages)
    assert list(driven.questions) == ["call_0"] and world.paid == {"ada 1": 1}
    for record in ("unchanged", "lost"):
        await driven.answer({"call_0": True}, record)
        assert driven.results["call_0"] == ModelView("paid 1 EUR to ada") and world.paid == {"ada 1": 2}


async def test_a_placeholder_result_does_not_make_a_call_new() -> None:
    world = World()
    driven = DrivenAgent(world.runner(journal=memory(), guards=[]), (ScriptedCall("call_0", "pay", {"to": "ada"}),))
    await driven.run(user_prompt="go")
    cut_off = repair_messages(driven.messages[:2])
    assert [part.outcome for part in cut_off[-1].parts] == ["interrupted"]
    await driven.run(user_prompt="and again", message_history=cut_off)
    assert driven.results["call_0"] == ModelView("paid 1 EUR to ada")
    assert world.paid == {"ada 1": 1}


async def test_an_answer_runs_only_the_call_that_asked() -> None:
    """Such as one that whoever stores the requests has put in its place."""
    paid: list[str] = []

    @tool
    async def pay(city: str) -> str:
        paid.append(city)
        return "paid"

    runner = Runner([book, pay], journal=memory())
    first = await asks_once(runner, ToolCallPart("book", {"city": "Rome"}, "c1")).run("go")
    session, here = first.conversation_id, ToolContext(session=first.conversation_id)
    requests = in_json(first.output)
    requests.metadata["c1"]["tool"] = "pay"
    for changed, context in ((requests, here), (in_json(first.output), ToolContext(session=session, principal="eve"))):
        with pytest.raises(DefinitionError, match="no record"):
            await pydantic_ai.answer(runner, changed, "c1", {"day": "Monday"}, context)
    with pytest.raises(DefinitionError, match="approvals"):
        await pydantic_ai.answer(runner, requests, "c2", True, here)
    assert not paid


async def test_deferred_work_is_an_external_call() -> None:
    runner = Runner([build], journal=memory())
    agent = asks_once(runner, ToolCallPart("build", {}, "c1"))
    first = await agent.run("go")
    requests = in_json(first.output)
    assert requests.kind("c1") == "external"
    assert requests.metadata["c1"]["ticket"] == "build-7"
    context = ToolContext(session=first.conversation_id)
    came = await pydantic_ai.answer(runner, requests, "c1", ToolResult("built"), context)
    results = requests.build_results(calls={"c1": came})
    done = await agent.run(message_history=first.all_messages(), deferred_tool_results=results)
    assert returned(done).content == "built"


@pytest.mark.parametrize(("euros", "override"), [(5, None), (3, {"euros": 3})])
async def test_an_answer_to_a_nested_call_shows_its_arguments_and_names_the_person(euros: int, override: Any) -> None:
    @tool(ask="it costs money")
    async def pay(euros: int, context: ToolContext) -> str:
        return f"{context.answered_by} paid {euros}"

    @tool(recorded=True)
    async def settle(order: str, context: ToolContext) -> str | WaitingFor:
        paid = await context.run("pay", {"euros": 5}, id="pay")
        return WaitingFor(paid) if paid.status == "suspended" else paid.text

    agent = asks_once(Runner([settle, pay], journal=memory()), ToolCallPart("settle", {"order": "A"}, "c1"))
    first = await agent.run("go")
    metadata = first.output.metadata
    assert metadata["c1"]["question"] == {"tool": "pay", "arguments": {"euros": 5}}
    metadata["c1"]["answered_by"] = "ann"
    approvals = {"c1": ToolApproved(override_args=override)}
    results = first.output.build_results(approvals=approvals, metadata=metadata)
    done = await agent.run(message_history=first.all_messages(), deferred_tool_results=results)
    assert returned(done).content == f"ann paid {euros}"


async def test_metadata_has_no_secrets_no_deps_and_no_stored_record() -> None:
    """With instrumentation on, it stands in the span of the call."""

    @tool(private=["token"])
    async def pay(euros: int, context: ToolContext, token: str = "bound-token") -> str:
        return f"paid {euros}"

    async def run(**options: Any) -> dict[str, Any]:
        runner = Runner([pay], guards=[ask_before_changes], secrets={"key": "a-secret"}, journal=memory())
        agent = asks_once(runner, ToolCallPart("pay", {"euros": 5}, "c1"), **options)
        first = await agent.run("go", deps="the-deps")
        results = first.output.build_results(approve_all=True, metadata=first.output.metadata)
        done = await agent.run(message_history=first.all_messages(), deferred_tool_results=results)
        assert returned(done).content == "paid 5"
        found: dict[str, Any] = first.output.metadata["c1"]
        return found

    text = json.dumps(await run())
    assert "euros" in text and not any(word in text for word in ("bound-token", "a-secret", "the-deps"))
    assert set(await run(records=Memory())) == {"reason", "tool"}


@pytest.mark.parametrize("metadata", ["unchanged", "lost"])
@pytest.mark.parametrize("changed", ["arguments", "calls swapped"])
async def test_a_yes_does_not_cover_a_call_changed_in_the_history(changed: str, metadata: str) -> None:
    world = World()
    driven: Any = await PydanticAI().start_run(
        world.runner(journal=memory()),
        ScriptedCall("c1", "pay", {"to": "ada"}),
        ScriptedCall("c2", "pay", {"to": "eve"}),
    )
    history = ModelMessagesTypeAdapter.validate_json(driven.stored[0])
    calls: Any = history[-1].parts
    if changed == "arguments":
        calls[0].args = json.dumps({"to": "eve", "euros": 500})
    else:
        calls[0].tool_call_id, calls[1].tool_call_id = "c2", "c1"
    driven.stored = ModelMessagesTypeAdapter.dump_json(history), driven.stored[1]
    await driven.answer({"c1": True, "c2": False}, "unchanged" if metadata == "unchanged" else "lost")
    assert not world.paid
    assert set(driven.questions) == {"c1"}, "the person is asked about what is there now"


async def test_the_model_gets_a_url_only_if_the_developer_allows_it() -> None:
    @tool(read_only=True)
    async def pictures() -> ToolResult:
        blocks = [Media("image", None, "image/png", uri=f"https://a.example/{name}") for name in ("one", "two")]
        return ToolResult("two", content=[Text("two"), blocks[0], dataclasses.replace(blocks[1], fetch=True)])

    told = returned(await asks_once(Runner([pictures]), ToolCallPart("pictures", {}, "c1")).run("go"))
    assert told.content == [
        "two",
        "[image https://a.example/one]",
        ImageUrl("https://a.example/two", media_type="image/png"),
    ]


@pytest.mark.parametrize(
    ("arguments", "outcome"), [({"two": 1}, "retried"), ({"to": "x"}, "success"), ({"to": "eve"}, "failed")]
)
async def test_wrong_arguments_cost_a_retry_and_a_denial_does_not(arguments: dict[str, Any], outcome: str) -> None:
    def not_eve(call: ToolCall, context: ToolContext) -> Any:
        return deny("not her") if call.arguments["to"] == "eve" else None

    @tool(read_only=True)
    async def look(to: str) -> str:
        return to

    agent = asks_once(Runner([look], guards=[not_eve]), ToolCallPart("look", arguments, "c1"))
    assert returned(await agent.run("go")).outcome == outcome


def roll(ctx: RunContext[str], sides: int, times: int = 2) -> str:
    """Roll a die.

    Args:
        sides: How many.
    """
    if sides < 2:
        raise ModelRetry("at least 2 sides")
    return f"{ctx.deps} {ctx.conversation_id} {ctx.tool_call_id}: {times}d{sides}"


def ask_there(ctx: RunContext[Any], euros: int) -> str:
    """Pay."""
    if not ctx.tool_call_approved:
        raise ApprovalRequired({"reason": "it is money", "rate": 2})
    return f"paid {euros * ctx.tool_call_metadata['rate']}"


def run_of(*theirs: Any, **options: Any) -> Runner:
    return Runner(pydantic_ai.from_tools(theirs), **options)


async def test_a_pydantic_ai_tool_keeps_its_options() -> None:
    theirs = TheirTool(roll, requires_approval=True, timeout=3, sequential=True, metadata={"team": "games"})
    [ours] = pydantic_ai.from_tools([theirs])
    assert (ours.name, ours.description, ours.ask, ours.timeout) == ("roll", "Roll a die.", True, 3)
    assert (ours.parallel, ours.metadata, ours.read_only) == (False, {"team": "games"}, False)
    assert ours.input_schema["properties"]["sides"] == {"type": "integer", "description": "How many."}
    assert ours.output_schema == {"type": "string"}
    runner = Runner([ours], approve=lambda call, decision, context: True, deps="DEPS")
    calls = [ToolCall("c1", "roll", {"sides": sides}) for sides in (6, 1, "six")]
    results = [await runner.run(call, session="s") for call in calls]
    assert [result.status for result in results] == ["ok", "failed", "invalid"]
    assert [result.text for result in results[:2]] == ["DEPS s c1: 2d6", "at least 2 sides"]
    assert (await Runner([ours]).run("roll", {"sides": 6})).status == "denied"


async def test_approval_required_in_a_tool_asks_a_person() -> None:
    runner = run_of(ask_there, approve=lambda call, decision, context: decision)
    waits = await runner.run("ask_there", {"euros": 5})
    assert waits.pending is not None
    assert waits.pending["reason"] == "it is money"
    no = await runner.run("ask_there", {"euros": 5})
    yes, no = [await runner.resume(waits.record(), True), await runner.resume(no.record(), False)]
    assert (yes.text, no.status) == ("paid 10", "denied")


async def test_a_deferred_call_of_a_tool_ends_with_its_result() -> None:
    def build() -> str:
        """Build."""
        raise CallDeferred({"reason": "in the queue"})

    runner = run_of(build)
    waits = await runner.run(ToolCall("c1", "build", {}))
    assert waits.pending is not None
    assert (waits.pending["reason"], waits.pending["state"]["ticket"]) == ("in the queue", "c1")
    assert (await runner.resume(waits.record(), ToolResult("built"))).text == "built"


async def test_reading_the_run_of_an_agent_fails_the_call() -> None:
    def look(ctx: RunContext[Any]) -> str:
        """Look."""
        return str(ctx.messages[-1])

    result = await run_of(look).run("look")
    assert result.status == "failed" and "run of pydantic-ai" in result.text


async def test_media_are_converted() -> None:
    def picture() -> list[Any]:
        """A picture."""
        return ["a dot", BinaryContent(PNG, media_type="image/png"), ImageUrl("https://example.org/a.png")]

    def report() -> ToolReturn[dict[str, int]]:
        """A report, and what the model reads beside it."""
        return ToolReturn({"rows": 2}, content="two rows", metadata={"file": "a.csv"})

    runner = run_of(picture, report)
    assert (await runner.run("picture")).content == (
        Text("a dot"),
        Media("image", PNG, "image/png"),
        Media("image", None, "image/png", uri="https://example.org/a.png"),
    )
    result = await runner.run("report")
    assert (result.output, result.metadata["file"]) == ({"rows": 2}, "a.csv")
    assert [block.text for block in result.content] == ['{"rows":2}', "two rows"]


async def test_from_toolset_takes_any_toolset() -> None:
    class Counted(WrapperToolset[Any]):
        inside = 0

        async def __aenter__(self) -> Any:
            type(self).inside += 1
            return self

        async def __aexit__(self, *raised: object) -> None:
            type(self).inside -= 1

        async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
            assert self.inside == 1
            return await super().call_tool(name, tool_args, ctx, tool)

    theirs = FunctionToolset([roll, ask_there]).prefixed("x")
    theirs = theirs.filtered(lambda ctx, definition: ctx.deps == "L" and definition.name == "x_roll")
    tools = await pydantic_ai.from_toolset(Counted(theirs).approval_required(), deps="L")
    assert [tool.name for tool in tools] == ["x_roll"]
    runner = Runner(tools, approve=lambda call, decision, context: True, deps="L")
    good, bad = [await runner.run("x_roll", {"sides": sides}, session="s") for sides in (6, 1)]
    assert good.text.startswith("L s") and good.text.endswith("2d6")
    assert (bad.status, bad.text) == ("failed", "at least 2 sides")
    assert Counted.inside == 0


async def test_a_filter_of_a_toolset_applies_to_each_call() -> None:
    ran: list[Any] = []

    async def wipe(ctx: RunContext[str]) -> str:
        """Wipe."""
        ran.append(ctx.deps)
        return "wiped"

    for_admins = FunctionToolset([wipe]).filtered(lambda ctx, definition: ctx.deps == "admin")
    runner = Runner(await pydantic_ai.from_toolset(for_admins, deps="admin"))
    wiped, refused = [await runner.run("wipe", {}, deps=deps) for deps in ("admin", "guest")]
    assert wiped.text == "wiped" and ran == ["admin"]
    assert not refused.success and refused.executed is False and "not offered" in refused.text


async def test_dynamic_and_external_tools_are_refused() -> None:
    prepared = TheirTool(roll, prepare=lambda ctx, definition: None)
    with pytest.raises(DefinitionError, match="prepare"):
        pydantic_ai.from_tools([prepared])
    with pytest.raises(DefinitionError, match="from_toolset"):
        pydantic_ai.from_tools(FunctionToolset([roll]))  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="list of"):
        pydantic_ai.from_tools([3])  # type: ignore[list-item]
    with pytest.raises(DefinitionError, match="prepare"):
        await pydantic_ai.from_toolset(FunctionToolset([prepared]).prefixed("x"))
    with pytest.raises(DefinitionError, match="in each run"):
        await pydantic_ai.from_toolset(DynamicToolset(lambda ctx: FunctionToolset([roll])))
    with pytest.raises(DefinitionError, match="external"):
        await pydantic_ai.from_toolset(ExternalToolset([ToolDefinition(name="roll")]))
    with pytest.raises(DefinitionError, match="toolsets"):
        await pydantic_ai.from_toolset([roll])  # type: ignore[arg-type]
