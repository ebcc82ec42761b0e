"""Microsoft Agent Framework, driven by a chat client of our own."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import AsyncIterator, Mapping
from datetime import date
from typing import Any, Literal

import pytest
from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    ContextProvider,
    FunctionInvocationContext,
    FunctionInvocationLayer,
    FunctionTool,
    Message,
    ResponseStream,
)
from agent_framework import tool as their_tool

from ferrule import (
    DefinitionError,
    InputRequired,
    Media,
    Runner,
    ToolCall,
    ToolContext,
    ToolResult,
    deny,
    tool,
)
from ferrule.adapters import agent_framework
from ferrule.guards import ask_before_changes
from ferrule.journal import memory
from ferrule.testing import AdapterContract, Framework, FrameworkRun, ModelView, Question, ScriptedCall
from ferrule.testing.world import PNG, World

PAY_ADA = ScriptedCall("c1", "pay", {"to": "ada"})


class Scripted(FunctionInvocationLayer, BaseChatClient):  # type: ignore[misc]
    """Makes these calls in its first turn, and then ends."""

    def __init__(self, calls: tuple[ScriptedCall, ...]) -> None:
        super().__init__()
        self.calls = calls
        self.read: dict[str, ModelView] = {}
        """The results that the model has read."""

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **rest: Any) -> Any:
        self.read |= results_in(messages)
        calls, self.calls = self.calls, ()
        contents = [Content.from_function_call(call.id, call.name, arguments=call.arguments) for call in calls]

        async def respond() -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", contents or ["done"])])

        async def update() -> AsyncIterator[ChatResponseUpdate]:
            yield ChatResponseUpdate(contents=contents or [Content.from_text("done")], role="assistant")

        return ResponseStream(update(), finalizer=ChatResponse.from_updates) if stream else respond()


def results_in(messages: Any) -> dict[str, ModelView]:
    contents = [content for message in messages for content in message.contents]
    return {content.call_id: seen(content) for content in contents if content.type == "function_result"}


def seen(result: Any) -> ModelView:
    media = tuple(base64.b64decode(item.uri.partition(",")[2]) for item in result.items if item.type == "data")
    status = result.items[0].additional_properties.get("ferrule", {}).get("status", "ok")
    return ModelView(result.result, status != "ok" or result.exception is not None, media)


def with_deps(context: FunctionInvocationContext) -> ToolContext:
    return agent_framework.to_context(context).replace(deps=context.kwargs["deps"])


class DrivenAgent(FrameworkRun):
    def __init__(
        self,
        runner: Runner,
        calls: tuple[ScriptedCall, ...] = (),
        session: AgentSession | None = None,
        context: Any = with_deps,
        read_only: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        super().__init__()
        self.client = Scripted(calls)
        provider = agent_framework.context_provider(runner, context=context, read_only=read_only)
        self.agent = Agent(self.client, context_providers=[provider], **options)
        self.session = session or self.agent.create_session()
        self.waiting: Any = None

    async def run(self, message: Any) -> None:
        response = await self.agent.run(message, session=self.session, function_invocation_kwargs={"deps": "DEPS"})
        self.results |= results_in(response.messages) | self.client.read
        requests = response.user_input_requests
        self.questions = {
            request.function_call.call_id: Question(shown["arguments"], shown["reason"])
            for request in requests
            if (shown := request.additional_properties.get("ferrule"))
        }
        if requests:
            self.waiting = json.loads(json.dumps([self.session.to_dict(), [one.to_dict() for one in requests]]))

    async def answer(
        self,
        answers: Mapping[str, bool | dict[str, Any]],
        record: Literal["unchanged", "changed", "lost"] = "unchanged",
    ) -> None:
        session, requests = copy.deepcopy(self.waiting)
        self.session, responses = AgentSession.from_dict(session), []
        for request in map(Content.from_dict, requests):
            if request.function_call.call_id in answers:
                given = answers[request.function_call.call_id]
                response = request.to_function_approval_response(given is not False)
                if isinstance(given, dict):
                    response.additional_properties["ferrule"]["arguments"] = given
                if record == "changed":
                    response.additional_properties["ferrule"]["record"]["pending"]["arguments"]["euros"] = 500
                if record == "lost":
                    del response.additional_properties["ferrule"]
                responses.append(response)
        await self.run(Message("user", responses))


class AgentFramework(Framework):
    stores_data = True
    malformed_text = True
    tells_progress = False

    async def start_run(self, runner: Runner, *calls: ScriptedCall) -> DrivenAgent:
        driven = DrivenAgent(runner, calls)
        await driven.run("go")
        return driven

    def export_run(self, waiting: DrivenAgent) -> Any:
        return waiting.waiting

    async def import_run(self, runner: Runner, stored: Any) -> DrivenAgent:
        driven = DrivenAgent(runner)
        driven.waiting = stored
        return driven


class TestAgentFramework(AdapterContract):
    framework = AgentFramework()

    async def test_a_models_repeated_id_is_another_call(self) -> None:
        world = World()
        driven = await AgentFramework().start_run(world.runner(guards=[]), PAY_ADA)
        driven.client.calls = (PAY_ADA,)
        await driven.run("again")
        assert world.paid == {"ada 1": 2}

    async def test_a_streamed_run_waits_for_a_person(self) -> None:
        world = World()
        driven, given = DrivenAgent(world.runner(), (PAY_ADA,)), {"function_invocation_kwargs": {"deps": "DEPS"}}
        stream = driven.agent.run("go", session=driven.session, stream=True, **given)
        [request] = (await stream.get_final_response()).user_input_requests
        answer = Message("user", [request.to_function_approval_response(True)])
        await driven.agent.run(answer, session=driven.session, stream=True, **given).get_final_response()
        assert driven.client.read["c1"] == ModelView("paid 1 EUR to ada") and world.paid == {"ada 1": 1}

    async def test_an_approved_tool_may_ask_for_more(self) -> None:
        schema = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}

        @tool
        async def book(city: str, context: ToolContext) -> str | InputRequired:
            return InputRequired("Which day?", schema) if context.answer is None else context.answer.value["day"]

        driven = await AgentFramework().start_run(
            Runner([book], guards=[ask_before_changes]), ScriptedCall("c1", "book", {"city": "Rome"})
        )
        await driven.answer({"c1": True})
        assert driven.waiting[1][0]["additional_properties"]["ferrule"]["schema"] == schema
        await driven.answer({"c1": {"day": "Monday"}})
        assert driven.results["c1"] == ModelView("Monday")

    async def test_a_question_of_a_run_without_a_session_runs_nothing(self) -> None:
        world = World()
        agent = DrivenAgent(world.runner(), (PAY_ADA,)).agent
        given = {"function_invocation_kwargs": {"deps": "DEPS"}}
        response = await agent.run("go", **given)
        [request] = response.user_input_requests
        await agent.run([*response.messages, Message("user", [request.to_function_approval_response(True)])], **given)
        assert not world.paid

    async def test_a_tool_without_its_provider_runs_nothing(self) -> None:
        world = World()
        other = Other("other")
        provider = agent_framework.context_provider(world.runner(guards=[]))
        await Agent(Scripted(()), context_providers=[provider, other]).run("go")
        agent = Agent(Scripted((PAY_ADA,)), tools=other.tools)
        await agent.run("go")
        assert agent.client.read["c1"].failed and not world.paid

    async def test_an_error_of_the_context_does_not_reach_the_model(self) -> None:
        world = World()
        driven = DrivenAgent(world.runner(guards=[]), (PAY_ADA,), context=lambda theirs: theirs.kwargs["the secret"])
        await driven.run("go")
        text = "pay failed. It is unknown whether anything was run."
        assert driven.results["c1"] == ModelView(text, failed=True) and not world.paid


class Other(ContextProvider):  # type: ignore[misc]
    """Another provider of an agent, which sees the tools and adds its middleware."""

    def __init__(self, source_id: str, *middleware: Any) -> None:
        super().__init__(source_id)
        self.middleware = middleware
        self.tools: list[Any] = []

    async def before_run(self, *, agent: Any, session: Any, context: Any, state: Any) -> None:
        self.tools = [*context.tools]
        context.extend_middleware(self.source_id, self.middleware)


def deny_all(call: ToolCall, context: ToolContext) -> Any:
    return deny("closed")


class Mailing:
    """A local function of an agent, and what it has sent."""

    def __init__(self, **options: Any) -> None:
        self.sent: list[str] = []

        async def mail(to: str, text: str = "hello") -> str:
            """Send a mail."""
            self.sent.append(f"{to} {text}")
            return f"sent to {to}"

        self.function: FunctionTool = their_tool(mail, **options)


MAIL = ScriptedCall("c1", "mail", {"to": "ada"})


async def run_mail(guard: Any, mailing: Mailing, *calls: ScriptedCall, **options: Any) -> DrivenAgent:
    runner = Runner([], guards=[guard], journal=memory())
    driven = DrivenAgent(runner, calls or (MAIL,), tools=[mailing.function], **options)
    await driven.run("go")
    return driven


async def test_a_guard_denies_a_local_function() -> None:
    mailing = Mailing()
    driven = await run_mail(deny_all, mailing)
    assert driven.results["c1"] == ModelView("Denied: closed. Nothing was run.", failed=True) and not mailing.sent


@pytest.mark.parametrize(("answer", "sent"), [(True, ["ada hello"]), ({"to": "bob"}, ["bob hello"]), (False, [])])
async def test_a_person_is_asked_about_a_local_function(answer: Any, sent: list[str]) -> None:
    mailing = Mailing()
    driven = await run_mail(ask_before_changes, mailing)
    assert driven.questions["c1"].arguments == {"to": "ada", "text": "hello"} and not mailing.sent
    await driven.answer({"c1": answer})
    await driven.answer({"c1": True})
    assert mailing.sent == sent, "a second answer, to an old copy of the session, has no effect"


async def test_a_local_function_that_only_reads_is_not_asked_about() -> None:
    mailing = Mailing()
    driven = await run_mail(ask_before_changes, mailing, read_only=("mail",))
    assert not driven.questions and mailing.sent == ["ada hello"]


async def test_the_framework_asks_before_the_guards() -> None:
    """Its own question, by `approval_mode`, has no record of ours."""
    mailing = Mailing(approval_mode="always_require")
    for guard, sent in ((lambda call, context: None, ["ada hello"]), (deny_all, [])):
        mailing.sent.clear()
        driven = await run_mail(guard, mailing)
        assert driven.waiting and not driven.questions
        session, [request] = driven.waiting
        driven.session = AgentSession.from_dict(session)
        await driven.run(Message("user", [Content.from_dict(request).to_function_approval_response(True)]))
        assert mailing.sent == sent


async def test_an_exception_of_a_local_function_does_not_reach_the_model() -> None:
    @their_tool
    async def breaking() -> str:
        """Breaks."""
        raise RuntimeError("the database at 10.0.0.7 is down")

    driven = DrivenAgent(Runner([]), (ScriptedCall("c1", "breaking"),), tools=[breaking])
    await driven.run("go")
    assert driven.results["c1"].failed and "10.0.0.7" not in driven.results["c1"].text


async def test_a_date_of_a_local_function_stays_a_date() -> None:
    seen_dates: list[Any] = []

    async def book(day: date, nights: int = 1) -> str:
        """Book."""
        seen_dates.append((day, nights))
        return "booked"

    for guard in (lambda call, context: None, lambda call, context: {**call.arguments, "nights": 2}):
        driven = DrivenAgent(
            Runner([], guards=[guard]),
            (ScriptedCall("c1", "book", {"day": "2026-11-30"}),),
            tools=[their_tool(book)],
        )
        await driven.run("go")
        assert driven.results["c1"] == ModelView("booked")
    assert seen_dates == [(date(2026, 11, 30), 1), (date(2026, 11, 30), 2)]


# -- their functions in a runner --------------------------------------------------------------------------------------


async def run_ours(theirs: FunctionTool, arguments: dict[str, Any], **options: Any) -> ToolResult:
    return await Runner(agent_framework.from_tools([theirs]), **options).run(ToolCall("c1", theirs.name, arguments))


async def test_a_function_keeps_its_description_schema_and_question() -> None:
    mailing = Mailing(approval_mode="always_require")
    made = agent_framework.from_tools([mailing.function]).get("mail")
    assert made.description == "Send a mail." and made.input_schema["required"] == ["to"] and made.ask is True
    assert (await run_ours(mailing.function, {"to": 5}, approve=lambda *given: True)).status == "invalid"
    assert (await run_ours(mailing.function, {"to": "ada"}, approve=lambda *given: False)).status == "denied"
    assert (await run_ours(mailing.function, {"to": "ada"}, approve=lambda *given: True)).output == "sent to ada"


@pytest.mark.parametrize(("expose", "told"), [({}, False), ({"expose": (RuntimeError,)}, True)])
async def test_an_exception_is_shown_only_if_the_runner_exposes_it(expose: Any, told: bool) -> None:
    @their_tool
    def breaking() -> str:
        """Breaks."""
        raise RuntimeError("the database at 10.0.0.7 is down")

    result = await run_ours(breaking, {}, **expose)
    assert result.status == "failed" and ("10.0.0.7" in result.text) is told


async def test_a_function_gets_the_deps_and_gives_media() -> None:
    @their_tool
    def picture(ctx: FunctionInvocationContext) -> list[Content]:
        """A picture."""
        return [Content.from_text(ctx.kwargs["name"]), Content.from_data(PNG, "image/png", name="dot.png")]

    runner = Runner(agent_framework.from_tools([picture]))
    result = await runner.run(ToolCall("c1", "picture", {}), ToolContext(deps={"name": "a dot"}))
    assert result.text == "a dot"
    assert [block for block in result.content if isinstance(block, Media)] == [
        Media("image", PNG, "image/png", name="dot.png")
    ]


def test_a_declaration_cannot_run() -> None:
    with pytest.raises(DefinitionError, match="can run"):
        agent_framework.from_tools([FunctionTool(name="only", func=None)])
