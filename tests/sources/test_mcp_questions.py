"""A question of an MCP server is the runner's question, and the answer goes back to that server."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp_servers import ERAS, PROGRAM, Made, http, made, text

from cast import Person
from ferrule import Decision, Event, Runner, ToolCall, ToolContext, ToolResult, allow, deny, mcp
from ferrule.testing import ManualClock

DAY = {"type": "object", "properties": {"day": {"type": "integer", "minimum": 1}}, "required": ["day"]}
KEY = b"k" * 32
STATE = "opaque \u00e9\u2028 {not: json"


def form(message: str = "Which day?", schema: Any = None) -> types.ElicitRequest:
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=DAY if schema is None else schema)
    )


def booking(**requests: types.ElicitRequest) -> Made:
    """A server of 2026-07-28, whose tool wants these answered, and then returns the answers."""
    server = Made()

    async def book(context: Any, arguments: dict[str, Any]) -> Any:
        params = server.calls[-1]
        if params.input_responses is None:
            return types.InputRequiredResult(input_requests=requests, request_state=STATE)
        assert params.request_state == STATE
        answers = {
            key: one.model_dump(exclude_none=True, exclude={"result_type"})
            for key, one in params.input_responses.items()
        }
        return text(json.dumps([arguments, answers], sort_keys=True))

    return server.add("book", book, {"type": "object", "properties": {"city": {"type": "string"}}})


async def book(server: Made, approve: Any, **options: Any) -> ToolResult:
    async with mcp.connect(server.memory()) as toolset:
        return await Runner(toolset, approve=approve, **options).run("book", {"city": "Rome"})


async def test_the_server_gets_the_answer_of_the_approver_and_its_own_state() -> None:
    server, person = booking(when=form()), Person(allow({"day": 5}))
    result = await book(server, person)
    assert json.loads(result.output) == [{"city": "Rome"}, {"when": {"action": "accept", "content": {"day": 5}}}]
    [asked] = person.decisions
    assert asked.reason == "made asks: Which day?" and dict(asked.schema or {}) == DAY
    assert len(server.calls) == 2


async def test_a_suspended_call_goes_on_over_another_connection() -> None:
    server = booking(when=form())
    first = await book(server, lambda call, decision, context: decision, resume_key=KEY)
    assert first.status == "suspended" and first.pending is not None and first.pending["kind"] == "input"
    record = json.loads(json.dumps(first.record()))
    async with mcp.connect(server.memory()) as toolset:
        assert '"day": 7' in (await Runner(toolset, resume_key=KEY).resume(record, allow({"day": 7}))).output


async def test_a_record_belongs_to_the_server_and_to_the_tool_that_asked() -> None:
    server, other = booking(when=form()), booking(when=form())
    server.tools["cancel"] = server.tools["book"][0].model_copy(update={"name": "cancel"}), server.tools["book"][1]

    async def resume(address: str, record: Any, rename: bool) -> ToolResult:
        async with mcp.connect(address) as toolset:
            tools = toolset.only("cancel").renamed({"cancel": "book"}) if rename else toolset
            return await Runner(tools, resume_key=KEY).resume(record, allow({"day": 7}))

    async with http(server) as address, http(other) as elsewhere:
        async with mcp.connect(f"{address}?token=blue-horse-7") as toolset:
            runner = Runner(toolset, resume_key=KEY, approve=lambda call, decision, context: decision)
            record = (await runner.run("book", {"city": "Rome"})).record()
            assert "blue-horse" not in f"{record} {toolset.get('book').server}"
        for at, rename in (
            (address, False),
            (f"{elsewhere}?token=blue-horse-7", False),
            (f"{address}?token=blue-horse-7", True),
        ):
            result = await resume(at, record, rename)
            assert (result.status, result.executed) == ("invalid", False) and "its server" in str(result.error)
    assert len(server.calls) == 1 and other.calls == []


async def test_several_requests_are_one_question() -> None:
    person = Person(allow({"when": {"day": 3}}))
    sign = types.ElicitRequest(params=types.ElicitRequestURLParams(message="Sign in", url="https://example.com/in"))
    result = await book(booking(when=form(), sign=sign), person)
    answers = {"when": {"action": "accept", "content": {"day": 3}}, "sign": {"action": "accept"}}
    assert json.loads(result.output)[1] == answers
    [asked] = person.decisions
    assert "Which day?" in asked.reason and "https://example.com/in" in asked.reason
    refused = await book(booking(**{"da\u200by": form(), "sign": sign}), person)
    assert refused.status == "failed" and len(person.decisions) == 1


@pytest.mark.parametrize("answer", [deny("no"), allow({"day": 0}), allow({"other": 1})])
async def test_a_refused_or_invalid_answer_ends_the_call_and_reaches_no_server(answer: Decision) -> None:
    server = booking(when=form())
    assert (await book(server, Person(answer))).status == "denied"
    assert len(server.calls) == 1


async def test_a_server_that_gives_only_its_state_is_called_again_a_few_times() -> None:
    server = Made()

    async def slow(context: Any, arguments: dict[str, Any]) -> Any:
        state = server.calls[-1].request_state
        step = 0 if state is None else int(state)
        return types.InputRequiredResult(request_state=str(step + 1)) if step < arguments["steps"] else text("done")

    async with mcp.connect(server.add("slow", slow).memory()) as toolset:
        done, endless = [await Runner(toolset).run("slow", {"steps": steps}) for steps in (3, 100)]
    assert done.output == "done"
    assert endless.status == "failed" and "only asked to be called again" in str(endless.error)
    assert len(server.calls) == 4 + 10


async def test_a_request_that_ferrule_does_not_offer_fails_the_call() -> None:
    sampling = types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[], max_tokens=5))
    result = await book(booking(model=sampling), Person(allow()))  # type: ignore[arg-type]
    assert result.status == "failed" and "'sampling/createMessage', which Ferrule did not offer" in str(result.error)


async def test_a_server_knows_whether_it_may_ask() -> None:
    seen: list[Any] = []

    async def look(context: Any, arguments: dict[str, Any]) -> Any:
        seen.append(context.session.client_params.capabilities.elicitation)
        return text("")

    for offered in (True, False):
        async with mcp.connect(made("look", look).memory("legacy"), elicitation=offered) as toolset:
            await Runner(toolset).run("look")
    assert [one is not None for one in seen] == [True, False]


async def elicit(context: Any, arguments: dict[str, Any]) -> Any:
    answer = await context.session.elicit_form("Which day?", DAY, context.request_id)
    return text(f"{answer.action} {answer.content}")


@pytest.mark.parametrize(
    ("answer", "output"),
    [(allow({"day": 4}), "accept {'day': 4}"), (deny("no"), "decline None"), (allow({"day": 0}), "decline None")],
)
async def test_a_server_of_2025_asks_while_its_tool_runs(answer: Decision, output: str) -> None:
    async with mcp.connect(made("ask", elicit).memory("legacy")) as toolset:
        runner = Runner(toolset, approve=Person(answer))
        assert [(await runner.run("ask")).output for _ in range(2)] == [output] * 2


async def test_the_deadline_is_paused_while_a_server_of_2025_asks() -> None:
    clock = ManualClock()

    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        await clock.advance(500)
        return allow({"day": 1})

    async with mcp.connect(made("ask", elicit).memory("legacy")) as toolset:
        assert (await Runner(toolset, approve=approve, timeout=300, clock=clock).run("ask")).success


@pytest.mark.large
async def test_a_program_with_several_running_calls_asks_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()

    def observe(event: Event) -> None:
        if event.kind == "tool:progress":
            begun.set()

    program = mcp.Stdio(PROGRAM[0], [*PROGRAM[1:], str(tmp_path / "cancelled")], mode="legacy")
    with caplog.at_level(logging.WARNING, "ferrule.mcp"):
        async with mcp.connect(program) as toolset:
            runner = Runner(toolset, approve=Person(allow({"day": 1})), observers=[observe])
            waiting = asyncio.ensure_future(runner.run("wait"))
            await begun.wait()
            result = await runner.run("ask")
            waiting.cancel()
            await asyncio.wait({waiting})
    why = "asked nobody: 2 calls are running, and it does not name one of them"
    assert result.output == f"decline None Ferrule {why}" and why in caplog.text


async def test_of_several_running_calls_the_person_of_the_right_one_is_asked() -> None:
    """Each call has a stream of its own there, on which its questions come."""
    together = asyncio.Barrier(8)

    async def elicit_together(context: Any, arguments: dict[str, Any]) -> Any:
        await together.wait()
        return await elicit(context, arguments)

    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return allow({"day": context.metadata["day"]})

    server = made("ask", elicit_together)
    async with http(server) as address, mcp.connect(mcp.Http(address, mode="legacy")) as toolset:
        runner = Runner(toolset, approve=approve)
        calls = [runner.run("ask", context=ToolContext(metadata={"day": day})) for day in range(1, 9)]
        results = await asyncio.gather(*calls)
    assert [result.output for result in results] == [f"accept {{'day': {day}}}" for day in range(1, 9)]


async def test_a_late_question_of_an_abandoned_call_reaches_nobody_else() -> None:
    entered, begun, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()
    answers: list[str] = []
    asked: list[str] = []

    async def stubborn(context: Any, arguments: Any) -> Any:
        entered.set()
        try:
            await asyncio.Event().wait()
        except BaseException:  # takes no notice of the cancellation
            pass
        with anyio.CancelScope(shield=True):
            await begun.wait()
            answers.append((await context.session.elicit_form("Your PIN?", DAY)).action)
        answered.set()
        return text("late")

    async def slow(context: Any, arguments: Any) -> Any:
        begun.set()
        await answered.wait()
        return text("slow")

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        if decision.schema is not None:
            asked.append(str(context.principal))
            return allow({"day": 1})
        return allow()

    server = Made().add("stubborn", stubborn).add("slow", slow)
    async with mcp.connect(server.memory("legacy")) as toolset:
        runner = Runner(toolset, approve=approve)
        abandoned = asyncio.ensure_future(runner.run("stubborn", principal="alice"))
        await entered.wait()
        abandoned.cancel()
        await asyncio.wait({abandoned})
        assert (await runner.run("slow", principal="bob")).output == "slow"
    assert (answers, asked) == (["decline"], [])


HIDING = {
    "type": "object",
    "properties": {"day": {"type": "integer", "title": "d\u202eay", "description": "pay\u200b \U000e0041all"}},
}
HIDDEN_NAME = {"type": "object", "properties": {"da\u200by": {"type": "integer"}}}


async def test_a_person_sees_no_schema_with_hidden_characters() -> None:
    person = Person(allow({"day": 1}))
    assert (await book(booking(when=form(schema=HIDING)), person)).success
    [asked] = person.decisions
    assert (asked.schema or {})["properties"] == {"day": {"type": "integer", "title": "day", "description": "pay all"}}
    refused = await book(booking(when=form(schema=HIDDEN_NAME)), person)
    assert len(person.decisions) == 1 and "hidden characters" in str(refused.error)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_server_asks_a_person_at_most_sixteen_times_in_one_call(mode: mcp.Mode) -> None:
    person, answers = Person(allow({"day": 1})), list[str]()

    async def pester(context: Any, arguments: dict[str, Any]) -> Any:
        if mode == "legacy":
            for _ in range(40):
                answers.append((await context.session.elicit_form("Which day?", DAY, context.request_id)).action)
            return text("done")
        return types.InputRequiredResult(input_requests={"day": form()}, request_state="again")

    async with mcp.connect(made("pester", pester).memory(mode)) as toolset:
        result = await Runner(toolset, approve=person).run("pester")
    assert len(person.decisions) == 16
    assert answers == ([] if mode == "auto" else 16 * ["accept"] + 24 * ["decline"])
    assert result.success is (mode == "legacy")
