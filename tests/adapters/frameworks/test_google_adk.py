"""Google ADK, driven by a scripted model under its `Runner`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from google.adk.agents import LlmAgent
from google.adk.environment import LocalEnvironment
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool, LongRunningFunctionTool, exit_loop, google_search, transfer_to_agent
from google.adk.tools import ToolContext as AdkContext
from google.adk.tools.environment._execute_tool import ExecuteTool
from google.genai import types

from ferrule import (
    DefinitionError,
    InputRequired,
    Media,
    Runner,
    ToolCall,
    ToolContext,
    ToolResult,
    allow,
    approval,
    tool,
)
from ferrule.adapters import google_adk
from ferrule.journal import memory
from ferrule.testing import AdapterContract, Framework, FrameworkRun, ModelView, Question, ScriptedCall
from ferrule.testing.world import PNG, World

APP = "app"
ASKS = "adk_request_confirmation"


class Scripted(BaseLlm):
    """Makes its calls in the first turn, what it has to make again in the next, and then ends."""

    model: str = "scripted"
    calls: tuple[ScriptedCall, ...] = ()
    again: tuple[ScriptedCall, ...] = ()

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncIterator[LlmResponse]:
        made = {
            part.function_call.id for content in llm_request.contents for part in content.parts if part.function_call
        }
        due = [said for said in (self.again if made else self.calls) if said.id not in made]
        calls = [types.FunctionCall(id=said.id, name=said.name, args=dict(said.arguments)) for said in due]
        parts = [types.Part(function_call=call) for call in calls] or [types.Part(text="done")]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


def with_deps(context: AdkContext) -> ToolContext:
    made = google_adk.to_context(context)
    return made.replace(deps=made.deps["deps"])


class DrivenAgent(FrameworkRun):
    def __init__(self, runner: Runner, calls: tuple[ScriptedCall, ...]) -> None:
        super().__init__()
        self.runner = runner
        agent = LlmAgent(
            name="agent", model=Scripted(calls=calls), tools=[google_adk.toolset(runner, context=with_deps)]
        )
        self.app = InMemoryRunner(agent, app_name=APP)
        self.session_id = ""
        self.waiting: dict[str, types.FunctionCall] = {}
        self._first: dict[str, types.FunctionCall] = {}

    async def start(self) -> None:
        made = await self.app.session_service.create_session(app_name=APP, user_id="ada", state={"deps": "DEPS"})
        self.session_id = made.id
        await self.send(types.Part(text="go"))
        self._first = dict(self.waiting)

    async def send(self, *parts: types.Part) -> None:
        message = types.Content(role="user", parts=list(parts))
        async for event in self.app.run_async(user_id="ada", session_id=self.session_id, new_message=message):
            self.see(event)
        self.questions = {}
        for call_id, call in self.waiting.items():
            asked = call.args["toolConfirmation"]
            self.questions[call_id] = Question(asked["payload"]["arguments"], asked["hint"])
            self.results.pop(call_id, None)

    def see(self, event: Any) -> None:
        for response in event.get_function_responses():
            self.results[response.id] = seen(response)
        for call in event.get_function_calls():
            if call.name == ASKS:
                self.waiting[call.args["originalFunctionCall"]["id"]] = call

    async def answer(
        self,
        answers: Mapping[str, bool | dict[str, Any]],
        record: Literal["unchanged", "changed", "lost"] = "unchanged",
    ) -> None:
        parts = []
        for call_id, answer in answers.items():
            call = self.waiting.pop(call_id, None) or self._first[call_id]
            payload = json.loads(json.dumps(call.args["toolConfirmation"]["payload"]))
            if record == "changed":
                payload["ferrule"]["pending"]["arguments"]["euros"] = 500
            if isinstance(answer, dict):
                payload["arguments"] = answer
            response = {"confirmed": bool(answer), "payload": None if record == "lost" else payload}
            parts.append(types.Part(function_response=types.FunctionResponse(id=call.id, name=ASKS, response=response)))
        if record == "lost":
            await self.forget()
        await self.send(*parts)

    async def forget(self) -> None:
        """Take the records out of the session's events."""
        stored = self.app.session_service.sessions[APP]["ada"][self.session_id]
        for event in stored.events:
            for asked in event.actions.requested_tool_confirmations.values():
                asked.payload = None


def seen(response: types.FunctionResponse) -> ModelView:
    failed = "error" in response.response
    media = tuple(part.inline_data.data for part in response.parts or () if part.inline_data)
    return ModelView(response.response["error" if failed else "result"], failed, media)


class GoogleADK(Framework):
    has_principals = True
    asks_once = True
    """It makes no confirmation out of what a tool asks when it is run with an answer, read in 2.13."""
    tells_progress = False
    """A tool has no public way to an event before its result, read in 2.13: `_enqueue_event` is not one."""

    async def start_run(self, runner: Runner, *calls: ScriptedCall) -> DrivenAgent:
        driven = DrivenAgent(runner, calls)
        await driven.start()
        return driven

    def export_run(self, waiting: DrivenAgent) -> Any:
        return waiting.app.session_service, waiting.session_id

    async def import_run(self, runner: Runner, stored: Any) -> DrivenAgent:
        driven = DrivenAgent(runner, ())
        driven.app.session_service, driven.session_id = stored
        session = await stored[0].get_session(app_name=APP, user_id="ada", session_id=stored[1])
        for event in session.events:
            if event.author == "agent":
                driven.see(event)
        return driven


class TestGoogleADK(AdapterContract):
    framework = GoogleADK()

    async def test_an_answer_finds_its_record_in_the_session_events(self) -> None:
        world = World()
        key = b"k" * 32
        driven = await GoogleADK().start_run(world.runner(resume_key=key), ScriptedCall("c1", "pay", {"to": "ada"}))
        after = await GoogleADK().import_run(
            world.runner(resume_key=key, journal=memory()), GoogleADK().export_run(driven)
        )
        asked = after.waiting.pop("c1")
        given = types.FunctionResponse(id=asked.id, name=ASKS, response={"confirmed": True})
        await after.send(types.Part(function_response=given))
        assert after.results["c1"] == ModelView("paid 1 EUR to ada")
        assert world.paid == {"ada 1": 1}

    async def test_a_tool_asks_for_input_with_a_schema(self) -> None:
        schema = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}

        @tool(read_only=True)
        async def book(city: str, context: ToolContext) -> str | InputRequired:
            return InputRequired("Which day?", schema) if context.answer is None else context.answer.value["day"]

        driven = await GoogleADK().start_run(Runner([book]), ScriptedCall("c1", "book", {"city": "Rome"}))
        asked = driven.waiting["c1"].args["toolConfirmation"]
        assert (asked["hint"], asked["payload"]["schema"]) == ("Which day?", schema)
        await driven.answer({"c1": {"day": "Monday"}})
        assert driven.results["c1"] == ModelView("Monday")

    async def test_the_model_gets_a_url_only_if_it_may_be_fetched(self) -> None:
        shown, hidden = (
            Media("image", None, "image/png", f"https://example.org/{fetch}.png", fetch=fetch)
            for fetch in (True, False)
        )

        @tool(read_only=True)
        async def pictures() -> ToolResult:
            return ToolResult("two", content=[shown, hidden])

        response = await one_response(Runner([pictures]), ScriptedCall("c1", "pictures"))
        assert [part.file_data.file_uri for part in response.parts] == [shown.uri]
        assert response.response == {"result": f"[image {hidden.uri}]"}


async def one_response(runner: Runner, said: ScriptedCall) -> types.FunctionResponse:
    driven = await GoogleADK().start_run(runner, said)
    service = driven.app.session_service
    session = await service.get_session(app_name=APP, user_id="ada", session_id=driven.session_id)
    return next(response for event in session.events for response in event.get_function_responses())


def roll(sides: int, tool_context: AdkContext, times: int = 2) -> dict[str, Any]:
    """Roll dice.

    Args:
        sides: How many.
    """
    rolls = tool_context.state["rolls"] = tool_context.state.get("rolls", 0) + 1
    if sides < 2:
        return {"error": "sides must be 2 or more"}
    return {"rolled": f"{times} of {sides}", "rolls": rolls, "user": tool_context.user_id}


async def run_ours(tools: list[Any], name: str, arguments: dict[str, Any], **options: Any) -> Any:
    runner = Runner(google_adk.from_tools(tools), **options)
    return await runner.run(ToolCall("c1", name, arguments), ToolContext(session="s", principal="ada"))


async def test_an_adk_function_keeps_description_and_schema() -> None:
    made = google_adk.from_tools([roll]).get("roll")
    assert made.description.startswith("Roll dice.")
    assert made.input_schema["properties"].keys() == {"sides", "times"}
    assert (await run_ours([roll], "roll", {"sides": 6})).output == {"rolled": "2 of 6", "rolls": 1, "user": "ada"}
    assert (await run_ours([roll], "roll", {"sides": "six"})).status == "invalid"


async def test_each_session_has_its_own_state() -> None:
    runner = Runner(google_adk.from_tools([roll]))
    contexts = [ToolContext(session=session, principal="ada") for session in ("s", "s", "t", None, None)]
    assert [(await runner.run("roll", {"sides": 6}, context)).output["rolls"] for context in contexts] == [
        1,
        2,
        1,
        1,
        1,
    ]


async def test_a_returned_error_is_a_failure() -> None:
    result = await run_ours([roll], "roll", {"sides": 1})
    assert not result.success and "sides must be 2 or more" in result.text


@pytest.mark.filterwarnings("ignore:.EXPERIMENTAL")
async def test_an_error_status_is_a_failure_with_all_its_output(tmp_path: Path) -> None:
    """`isError` of its MCP tools is one, and the status of a command another."""
    runner = Runner(google_adk.from_tools([ExecuteTool(LocalEnvironment(working_dir=tmp_path))]))
    failed, done = [await runner.run("Execute", {"command": f"echo no money; exit {code}"}) for code in (3, 0)]
    assert failed.status == "failed" and "no money" in failed.text and '"exit_code": 3' in failed.text
    assert done.output == {"status": "ok", "stdout": "no money\n"}


def hand_over(tool_context: AdkContext) -> str:
    tool_context.actions.set_model_response = {}
    return "handed over"


@pytest.mark.parametrize(
    ("theirs", "arguments"), [(exit_loop, {}), (transfer_to_agent, {"agent_name": "ada"}), (hand_over, {})]
)
async def test_a_tool_that_steers_an_agent_fails(theirs: Any, arguments: dict[str, Any]) -> None:
    result = await run_ours([theirs], theirs.__name__, arguments)
    assert result.status == "failed" and "steers an agent" in result.text


@pytest.mark.parametrize(("sides", "asks"), [(6, False), (100, True)])
async def test_require_confirmation_asks_a_person(sides: int, asks: bool) -> None:
    theirs = FunctionTool(roll, require_confirmation=lambda sides, **rest: sides > 20)
    runner = Runner(google_adk.from_tools([theirs]), approve=lambda call, decision, context: decision)
    result = await runner.run(ToolCall("c1", "roll", {"sides": sides}), ToolContext(session="s"))
    assert (result.pending is not None) is asks
    if asks:
        result = await runner.resume(result.record(), True)
    assert result.output["rolled"] == f"2 of {sides}"


async def test_a_confirmation_does_not_cover_arguments_changed_by_a_guard() -> None:
    def wipe(path: str, tool_context: AdkContext) -> str:
        if tool_context.tool_confirmation is None:
            tool_context.request_confirmation(hint=f"wipe {path}?")
            return "asked"
        return f"wiped {path}"

    def jail(call: ToolCall, context: ToolContext) -> Any:
        return allow(arguments={"path": "/home/x"}) if call.arguments["path"] == "/etc" else None

    theirs = FunctionTool(wipe, require_confirmation=lambda path, **rest: path == "/etc")
    made = google_adk.from_tools([theirs]).map(lambda tool: tool.replace(guards=[*tool.guards, jail]))
    result = await Runner(made, approve=approval.later).run("wipe", {"path": "/etc"})
    assert (result.status, result.pending["reason"]) == ("suspended", "wipe /home/x?")


async def test_a_tool_that_asks_while_running_runs_again() -> None:
    def leave(tool_context: AdkContext) -> str:
        """Ask for leave."""
        given = tool_context.tool_confirmation
        if given is None:
            tool_context.request_confirmation(hint="How many days?", payload={"days": 0})
            return "asked"
        return f"{given.payload['days']} days"

    async def answer(call: ToolCall, decision: Any, context: ToolContext) -> Any:
        assert decision.reason == "How many days?"
        return allow({"payload": {"days": 3}})

    assert (await run_ours([leave], "leave", {}, guards=[], approve=answer)).output == "3 days"


async def test_a_picture_is_converted() -> None:
    def draw() -> dict[str, Any]:
        """Draw."""
        return {"title": "a dot", "picture": types.Part.from_bytes(data=PNG, mime_type="image/png")}

    result = await run_ours([draw], "draw", {})
    assert [block.data for block in result.content if isinstance(block, Media)] == [PNG]
    assert "a dot" in result.text


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        (LongRunningFunctionTool(roll), "background=True"),
        (google_search, "runs in the model's API"),
        ("roll", "not 'roll'"),
    ],
)
def test_an_unsupported_tool_is_refused_with_the_reason(theirs: Any, reason: str) -> None:
    with pytest.raises(DefinitionError, match=reason):
        google_adk.from_tools([theirs])
