"""Strands Agents, driven by a model of our own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from strands import Agent, Snapshot
from strands import ToolContext as StrandsContext
from strands import tool as strands_tool
from strands.models import Model
from strands.session import FileSessionManager
from strands.types.tools import AgentTool

from ferrule import (
    DefinitionError,
    Event,
    InputRequired,
    Journal,
    Media,
    Runner,
    ToolCall,
    ToolContext,
    ToolResult,
    allow,
    ask,
    deny,
    tool,
)
from ferrule.adapters import strands
from ferrule.guards import ask_before_changes
from ferrule.journal import memory
from ferrule.testing import AdapterContract, Framework, FrameworkRun, ModelView, Question, ScriptedCall
from ferrule.testing.bounded import in_time
from ferrule.testing.world import PNG, World


class Scripted(Model):
    """Makes its calls in the first turn, and then ends."""

    def __init__(self, calls: tuple[ScriptedCall, ...]) -> None:
        self._calls = calls

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {}

    async def structured_output(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield

    async def stream(self, messages: list[Any], *given: Any, **options: Any) -> AsyncIterator[Any]:
        asked = any("toolUse" in block for message in messages for block in message["content"])
        yield {"messageStart": {"role": "assistant"}}
        for said in () if asked else self._calls:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": said.name, "toolUseId": said.id}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(said.arguments)}}}}
            yield {"contentBlockStop": {}}
        if asked:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "done"}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if asked else "tool_use"}}


def with_deps(context: StrandsContext) -> ToolContext:
    return strands.to_context(context).replace(deps=context.invocation_state["deps"])


class DrivenAgent(FrameworkRun):
    def __init__(
        self, runner: Runner, calls: tuple[ScriptedCall, ...] = (), session: str | None = None, **options: Any
    ) -> None:
        super().__init__()

        def context(theirs: StrandsContext) -> ToolContext:
            made = with_deps(theirs)
            return made if session is None else made.replace(session=session)

        tools = strands.tools(runner, context=context)
        self.agent = Agent(model=Scripted(calls), tools=tools, callback_handler=None, **options)
        self.interrupts: dict[str, Any] = {}
        self.waiting: Any = None

    async def run(self, prompt: Any) -> None:
        async for event in self.agent.stream_async(prompt, invocation_state={"deps": "DEPS"}):
            if "tool_stream_event" in event:
                step = event["tool_stream_event"]
                self.progress.append((step["tool_use"]["toolUseId"], *step["data"].values()))
            if "result" in event:
                result = event["result"]
        self.interrupts = {interrupt.reason["call_id"]: interrupt for interrupt in result.interrupts or ()}
        self.questions = {
            call_id: Question(interrupt.reason["arguments"], interrupt.reason["reason"])
            for call_id, interrupt in self.interrupts.items()
        }
        for message in self.agent.messages:
            for block in message["content"]:
                if "toolResult" in block:
                    self.results[block["toolResult"]["toolUseId"]] = seen(block["toolResult"])
        if self.interrupts:
            self.waiting = self.agent.take_snapshot(preset="session"), self.interrupts

    async def answer(
        self,
        answers: Mapping[str, bool | dict[str, Any]],
        record: Literal["unchanged", "changed", "lost"] = "unchanged",
    ) -> None:
        waiting, interrupts = self.waiting
        self.agent.load_snapshot(waiting)
        await self.respond(
            {
                interrupts[call_id].id: {"arguments": answer} if isinstance(answer, dict) else answer
                for call_id, answer in answers.items()
            }
        )

    async def respond(self, responses: Mapping[str, Any]) -> None:
        """Resume with these responses, by the ids of interrupts."""
        await self.run(
            [{"interruptResponse": {"interruptId": id, "response": response}} for id, response in responses.items()]
        )


def seen(result: dict[str, Any]) -> ModelView:
    text = " ".join(block["text"] for block in result["content"] if "text" in block)
    media = tuple(block["image"]["source"]["bytes"] for block in result["content"] if "image" in block)
    return ModelView(text, result["status"] == "error", media)


class Strands(Framework):
    stores_data = True
    brings_record = False
    """An interrupt is answered by its id, which is of one record; the record itself stays here."""

    async def start_run(self, runner: Runner, *calls: ScriptedCall) -> DrivenAgent:
        driven = DrivenAgent(runner, calls)
        await driven.run("go")
        return driven

    def export_run(self, waiting: DrivenAgent) -> Any:
        snapshot, interrupts = waiting.waiting
        return waiting.agent.session_id, json.dumps(snapshot.to_dict()), interrupts

    async def import_run(self, runner: Runner, stored: Any) -> DrivenAgent:
        session, snapshot, interrupts = stored
        driven = DrivenAgent(runner, session=session)
        driven.waiting = Snapshot.from_dict(json.loads(snapshot)), interrupts
        return driven


class Looked:
    """A store that counts how often somebody looks."""

    def __init__(self) -> None:
        self.store, self.looked = memory().store, 0

    def get(self, key: str) -> Any:
        self.looked += 1
        return self.store.get(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class TestStrands(AdapterContract):
    framework = Strands()

    def test_where_only_one_of_two_questions_is_answered_the_other_waits_on(self) -> None:
        async def run() -> DrivenAgent:
            calls = [ScriptedCall("c1", "pay", {"to": "ada"}), ScriptedCall("c2", "pay", {"to": "bob"})]
            driven = await Strands().start_run(world.runner(), *calls)
            await driven.answer({"c2": True})
            assert list(driven.questions) == ["c1"] and world.paid == {"bob 1": 1}
            await driven.answer({"c1": True})
            return driven

        world = World()
        assert not in_time(run()).questions
        assert world.paid == {"ada 1": 1, "bob 1": 1}

    def test_a_yes_to_a_question_whose_record_is_gone_is_asked_again(self) -> None:
        async def run() -> None:
            runner = world.runner(journal=memory())
            driven = await Strands().start_run(runner, ScriptedCall("c1", "pay", {"to": "ada"}))
            first = driven.interrupts["c1"].id
            records = runner.journal.store
            for key, value in records.items("interop ").items():
                assert records.compare_and_set(key, value, None)
            await driven.answer({"c1": True})
            assert list(driven.questions) == ["c1"] and driven.interrupts["c1"].id != first
            assert not world.paid
            await driven.answer({"c1": True})

        world = World()
        in_time(run())
        assert world.paid == {"ada 1": 1}

    def test_a_question_whose_record_is_gone_waits_on_beside_one_that_is_answered(self) -> None:
        async def run() -> DrivenAgent:
            runner = world.runner(guards=[lambda call, context: ask("tainted") if tainted else None], journal=log)
            driven = await Strands().start_run(
                runner, ScriptedCall("c1", "pay", {"to": "ada"}), ScriptedCall("c2", "pay", {"to": "bob"})
            )
            tainted.clear()
            for key, value in log.store.items("interop ").items():
                assert log.store.compare_and_set(key, value, None)
            await driven.answer({"c2": False})
            assert list(driven.questions) == ["c1"] and not world.paid
            await driven.answer({"c1": True})
            return driven

        world, tainted, log = World(), {"s"}, memory()
        driven = in_time(run())
        assert world.paid == {"ada 1": 1} and driven.results["c2"].failed

    def test_an_answer_reaches_its_call_in_another_process(self, tmp_path: Path) -> None:
        def agent(*calls: ScriptedCall) -> DrivenAgent:
            runner = world.runner(resume_key=b"k" * 32, journal=Journal.open(tmp_path / "calls.db"))
            kept = FileSessionManager(session_id="s", storage_dir=str(tmp_path))
            return DrivenAgent(runner, calls, session_manager=kept, agent_id="shop")

        async def run() -> None:
            asked = agent(ScriptedCall("c1", "pay", {"to": "ada"}))
            await asked.run("go")
            after = agent()
            await after.respond({asked.interrupts["c1"].id: True})
            assert after.results["c1"] == ModelView("paid 1 EUR to ada")

        world = World()
        in_time(run())
        assert world.paid == {"ada 1": 1}

    def test_a_record_is_looked_for_only_where_an_agent_was_resumed(self) -> None:
        async def run() -> tuple[int, int]:
            driven = DrivenAgent(world.runner())
            driven.agent = Agent(
                model=Scripted((ScriptedCall("c1", "pay", {"to": "ada"}), ScriptedCall("c2", "look", {"name": "x"}))),
                tools=strands.tools(world.runner(), context=with_deps, records=records),
                callback_handler=None,
            )
            await driven.run("go")
            fresh = records.looked
            records.looked = 0
            await driven.answer({"c1": True})
            return fresh, records.looked

        world, records = World(), Looked()
        assert in_time(run()) == (1, 1), "the first is of `keep`, which looks at what it replaces"
        assert world.paid == {"ada 1": 1}

    def test_a_text_is_a_no_with_that_reason(self) -> None:
        world = World()
        _, driven = self.run_and_answer(world, {"c1": "too much"}, ScriptedCall("c1", "pay", {"to": "ada"}))  # type: ignore[dict-item]
        assert driven.results["c1"].failed and "too much" in driven.results["c1"].text
        assert not world.paid

    def test_a_tool_may_ask_for_more_after_it_was_approved(self) -> None:
        schema = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}

        @tool
        async def book(city: str, context: ToolContext) -> str | InputRequired:
            """Book."""
            return InputRequired("Which day?", schema) if context.answer is None else context.answer.value["day"]

        async def run() -> DrivenAgent:
            driven = await Strands().start_run(
                Runner([book], guards=[ask_before_changes]), ScriptedCall("c1", "book", {"city": "Rome"})
            )
            await driven.answer({"c1": True})
            assert driven.interrupts["c1"].reason["schema"] == schema
            await driven.answer({"c1": {"day": "Monday"}})
            return driven

        assert in_time(run()).results["c1"] == ModelView("Monday")

    def test_a_direct_call_that_is_asked_about_runs_nothing(self) -> None:
        world = World()
        agent = Agent(model=Scripted(()), tools=strands.tools(world.runner()), callback_handler=None)
        with pytest.raises(RuntimeError, match="interrupt"):
            agent.tool.pay(to="ada")
        assert not world.paid

    def test_an_agent_that_is_cancelled_cancels_its_calls(self) -> None:
        async def run() -> None:
            driven = DrivenAgent(world.runner(), (ScriptedCall("c1", "wait"),))
            task = asyncio.ensure_future(driven.run("go"))
            await world.entered.wait()
            driven.agent.cancel()
            await task
            assert driven.results["c1"] == ModelView("The call was cancelled.", failed=True)

        world = World()
        in_time(run())
        assert world.cancelled == 1

    def test_a_call_of_an_agent_that_was_cancelled_before_does_not_begin(self) -> None:
        async def run() -> Any:
            [made] = strands.tools(Runner([look]))
            agent = Agent(model=Scripted(()), callback_handler=None)
            agent.cancel()
            sent: Any = {"name": "look", "toolUseId": "c1", "input": {}}
            return [event["tool_result"] async for event in made.stream(sent, {"agent": agent})]

        looked = []

        @tool(read_only=True)
        async def look() -> None:
            """Look."""
            looked.append(True)

        assert [seen(result) for result in in_time(run())] == [ModelView("The call was cancelled.", failed=True)]
        assert not looked

    def test_a_call_that_ends_while_a_step_is_looked_at_has_all_its_steps_before_its_result(self) -> None:
        ended = asyncio.Event()

        @tool(read_only=True)
        async def count(context: ToolContext) -> str:
            """Count."""
            for step in range(3):
                context.progress(step, 3)
                await asyncio.sleep(0)
            return "counted"

        def note(event: Event) -> None:
            if event.kind == "tool:post":
                ended.set()

        async def run() -> Any:
            [made] = strands.tools(Runner([count], observers=[note]))
            agent = Agent(model=Scripted(()), callback_handler=None)
            sent: Any = {"name": "count", "toolUseId": "c1", "input": {}}
            found = []
            async for event in made.stream(sent, {"agent": agent}):
                found.append(event.get("done", "the result"))
                await ended.wait()
                for _ in range(20):  # the turns of the loop in which the task of the call ends
                    await asyncio.sleep(0)
            return found

        assert in_time(run()) == [0, 1, 2, "the result"]

    def test_a_call_in_the_background_waits_for_its_person(self) -> None:
        async def run() -> None:
            call = ScriptedCall("c1", "pay", {"to": "ada"})
            driven = DrivenAgent(world.runner(), (call,), background_tasks={"always": ["pay"]})
            await driven.run("go")
            assert driven.questions == {"c1": Question({"to": "ada", "euros": 1}, "pay changes things")}
            assert not world.paid
            await driven.respond({driven.interrupts["c1"].id: True})

        world = World()
        in_time(run())
        assert world.paid == {"ada 1": 1}

    def test_a_call_without_a_session_cannot_wait_and_tells_the_model_nothing_of_why(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def run() -> DrivenAgent:
            driven = DrivenAgent(world.runner())
            driven.agent = Agent(
                model=Scripted((ScriptedCall("c1", "pay", {"to": "ada"}),)),
                tools=strands.tools(world.runner(), context=lambda context: ToolContext()),
                callback_handler=None,
            )
            await driven.run("go")
            return driven

        world = World()
        assert in_time(run()).results["c1"] == ModelView(
            "pay needs a person's answer, and nobody can be asked here. Nothing was run.", failed=True
        )
        assert not world.paid and "a function that returns a ToolContext with a session" in caplog.text

    def test_the_session_of_the_agent_is_the_session_and_the_invocation_state_the_deps(self) -> None:
        agent = Agent(model=Scripted(()), callback_handler=None)
        use = {"name": "look", "toolUseId": "c1", "input": {}}
        made = strands.to_context(StrandsContext(use, agent, {"database": "DB"}))
        assert (made.session, made.deps) == (agent.session_id, {"database": "DB"})

    def test_a_document_goes_as_one_under_a_name_that_is_taken(self) -> None:
        @tool(read_only=True)
        async def report() -> ToolResult:
            """A report."""
            return ToolResult("it", content=[Media("file", b"a,b", "text/csv; charset=utf-8", name="q3/sums.csv")])

        driven = in_time(Strands().start_run(Runner([report]), ScriptedCall("c1", "report")))
        [result] = [
            block["toolResult"]
            for message in driven.agent.messages
            for block in message["content"]
            if "toolResult" in block
        ]
        assert result["content"] == [
            {"document": {"format": "csv", "name": "q3-sums-csv", "source": {"bytes": b"a,b"}}}
        ]


# -- their tools as ours ----------------------------------------------------------------------------------------------


@strands_tool
def roll(sides: int, times: int = 2) -> dict[str, Any]:
    """Roll dice.

    Args:
        sides: How many.
    """
    if sides < 2:
        raise ValueError("sides must be 2 or more")
    return {"status": "success", "content": [{"json": {"rolled": f"{times} of {sides}"}}]}


@strands_tool(context=True)
async def ask_leave(tool_context: StrandsContext) -> str:
    """Ask for leave."""
    days = tool_context.interrupt("days", "How many days?")
    place = tool_context.interrupt("place", "Where?")
    return f"{days} days in {place}"


class Served(AgentTool):
    """A tool as an MCP server gives it."""

    tool_name = "served"
    tool_type = "python"
    tool_spec = {
        "name": "served",
        "description": "Served.",
        "inputSchema": {"json": {"type": "object", "properties": {}}},
        "outputSchema": {"json": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
        "annotations": {"readOnlyHint": True},
    }

    async def stream(self, tool_use: Any, invocation_state: dict[str, Any], **kwargs: Any) -> AsyncIterator[Any]:
        picture = {"image": {"format": "png", "source": {"bytes": PNG}}}
        content = [{"text": "one"}, picture]
        yield {"toolUseId": "c1", "status": "success", "content": content, "structuredContent": {"n": 1}}


def run_ours(theirs: Any, arguments: dict[str, Any], agent: Any = None, **options: Any) -> ToolResult:
    runner = Runner(strands.from_tools([theirs], agent=agent), **options)
    return in_time(runner.run(ToolCall("c1", theirs.tool_name, arguments)))


@pytest.mark.parametrize(("expose", "told"), [({}, False), ({"expose": (RuntimeError,)}, True)])
def test_what_a_tool_of_strands_raised_is_told_where_the_runner_exposes_it(expose: Any, told: bool) -> None:
    @strands_tool
    def breaking() -> str:
        """Breaks."""
        raise RuntimeError("the database at 10.0.0.7 is down")

    result = run_ours(breaking, {}, **expose)
    assert result.status == "failed" and ("10.0.0.7" in result.text) is told


def test_a_tool_of_strands_has_its_description_and_schema() -> None:
    made = strands.from_tools([roll]).get("roll")
    assert made.description == "Roll dice."
    assert made.input_schema["properties"].keys() == {"sides", "times"}
    assert run_ours(roll, {"sides": 6}).output == {"rolled": "2 of 6"}
    assert run_ours(roll, {"sides": "six"}).status == "invalid"


def test_what_a_tool_of_strands_ends_with_as_an_error_is_a_failure() -> None:
    result = run_ours(roll, {"sides": 1})
    assert not result.success and "sides must be 2 or more" in result.text


def test_structured_content_and_pictures_are_kept_and_hints_are_no_promise() -> None:
    result = run_ours(Served(), {})
    assert result.output == {"n": 1} and result.text == "one"
    assert [block.data for block in result.content if isinstance(block, Media)] == [PNG]
    made = strands.from_tools([Served()]).get("served")
    assert list(made.output_schema["required"]) == ["n"]
    assert made.read_only is False and made.metadata["annotations"] == {"readOnlyHint": True}


def test_what_a_tool_of_strands_streams_is_progress() -> None:
    @strands_tool
    async def count(to: int) -> AsyncIterator[Any]:
        """Count."""
        for step in range(to):
            yield step
        yield "counted"

    told: list[Any] = []
    result = run_ours(count, {"to": 2}, observers=[lambda event: told.append(event.data.get("chunk"))])
    assert result.output == "counted"
    assert [chunk for chunk in told if chunk is not None] == [0, 1, "counted"]


def test_a_tool_that_takes_the_run_of_an_agent_is_refused_without_one() -> None:
    with pytest.raises(DefinitionError, match=r"'ask_leave' takes 'tool_context'.*agent=…"):
        strands.from_tools([ask_leave])
    with pytest.raises(DefinitionError, match="functions with @tool"):
        strands.from_tools([len])  # type: ignore[list-item]


def test_a_tool_of_strands_that_interrupts_is_run_again_with_each_answer() -> None:
    said = {"How many days?": 3, "Where?": "Rome"}
    agent = Agent(model=Scripted(()), callback_handler=None)
    result = run_ours(
        ask_leave, {}, agent, approve=lambda call, decision, context: allow({"response": said[decision.reason]})
    )
    assert result.output == "3 days in Rome"


def test_an_answer_to_an_interrupt_is_none_to_another_call_of_that_id() -> None:
    def approve(call: ToolCall, decision: Any, context: ToolContext) -> Any:
        asked.append((context.principal, call.arguments["path"], decision.reason))
        return allow({"response": "yes"}) if context.principal == "ada" else deny("no")

    @strands_tool(context=True)
    async def delete(path: str, tool_context: StrandsContext) -> str:
        """Delete."""
        return str(tool_context.interrupt("sure", f"delete {path}?"))

    async def run() -> list[str]:
        runner = Runner(strands.from_tools([delete], agent=agent), approve=approve)
        one, other = (ToolCall("call_0", "delete", {"path": path}) for path in ("a", "/etc"))
        given = [(one, "ada", "s"), (other, "bob", "s"), (other, "bob", None), (one, "bob", "s"), (one, "ada", None)]
        return [
            (await runner.run(call, principal=principal, session=session)).status for call, principal, session in given
        ]

    agent, asked = Agent(model=Scripted(()), callback_handler=None), list[Any]()
    assert in_time(run()) == ["ok", "denied", "denied", "denied", "ok"]
    assert len(asked) == 5
    assert not agent._interrupt_state.interrupts, "nor is there one for the agent's own calls"


def test_an_answer_to_an_interrupt_reaches_the_tool_in_another_process() -> None:
    def runner() -> Runner:
        agent = Agent(model=Scripted(()), callback_handler=None)
        tools = strands.from_tools([ask_leave], agent=agent)
        return Runner(tools, resume_key=b"k" * 32, approve=lambda call, decision, context: decision)

    async def run() -> ToolResult:
        result = await runner().run(ToolCall("c1", "ask_leave", {}))
        for answer in (3, "Rome"):
            result = await runner().resume(json.loads(json.dumps(result.record())), allow({"response": answer}))
        return result

    assert in_time(run()).output == "3 days in Rome"
