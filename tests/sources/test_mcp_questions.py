"""What an MCP server wants to know of a person is the runner's question, and the answer goes back to it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from mcp_servers import ERAS, PROGRAM, Made, go, http, made, text

from ferrule import Decision, Event, Runner, ToolCall, ToolContext, ToolResult, allow, ask, deny, mcp

DAY = {"type": "object", "properties": {"day": {"type": "integer", "minimum": 1}}, "required": ["day"]}
KEY = b"k" * 32
STATE = "opaque \u00e9\u2028 {not: json"


def form(message: str = "Which day?", schema: Any = None) -> types.ElicitRequest:
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=DAY if schema is None else schema)
    )


def booking(**requests: types.ElicitRequest) -> Made:
    """A server of 2026-07-28, whose tool wants these before it answers with what it was told."""
    server = Made()

    async def book(context: Any, arguments: dict[str, Any]) -> Any:
        params = server.calls[-1]
        if params.input_responses is None:
            return types.InputRequiredResult(input_requests=requests, request_state=STATE)
        assert params.request_state == STATE
        told = {
            key: one.model_dump(exclude_none=True, exclude={"result_type"})
            for key, one in params.input_responses.items()
        }
        return text(json.dumps([arguments, told], sort_keys=True))

    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    return server.add("book", book, schema)


def answering(answer: object) -> Callable[..., Any]:
    return lambda call, decision, context: answer


async def book(server: Made, approve: Any, **options: Any) -> ToolResult:
    async with mcp.connect(server.memory()) as toolset:
        return await Runner(toolset, approve=approve, **options).run("book", {"city": "Rome"})


async def test_the_approver_is_asked_and_the_server_gets_the_answer_and_its_own_state() -> None:
    seen: list[Decision] = []

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        seen.append(decision)
        return allow({"day": 5})

    server = booking(when=form())
    result = await book(server, approve)
    told = {"when": {"action": "accept", "content": {"day": 5}}}
    assert json.loads(result.output) == [{"city": "Rome"}, told]
    assert seen[0].reason == "made asks: Which day?" and dict(seen[0].schema or {}) == DAY
    assert len(server.calls) == 2


def test_it_is_suspended_and_goes_on_over_another_connection() -> None:
    server = booking(when=form())
    first = go(book(server, lambda call, decision, context: decision, resume_key=KEY))
    assert first.status == "suspended" and first.pending is not None and first.pending["kind"] == "input"
    record = json.loads(json.dumps(first.record()))

    async def later() -> ToolResult:
        async with mcp.connect(server.memory()) as toolset:
            return await Runner(toolset, resume_key=KEY).resume(record, allow({"day": 7}))

    assert '"day": 7' in go(later()).output


async def test_a_record_belongs_to_the_server_and_to_the_tool_that_asked() -> None:
    server, other = booking(when=form()), booking(when=form())
    server.tools["cancel"] = server.tools["book"][0].model_copy(update={"name": "cancel"}), server.tools["book"][1]

    async def tried(address: str, record: Any, renamed: dict[str, str]) -> ToolResult:
        async with mcp.connect(address) as toolset:
            tools = toolset.only("cancel").renamed(renamed) if renamed else toolset
            return await Runner(tools, resume_key=KEY).resume(record, allow({"day": 7}))

    async def main() -> tuple[ToolResult, ...]:
        async with http(server.server) as address, http(other.server) as elsewhere:
            async with mcp.connect(f"{address}?token=blue-horse-7") as toolset:
                runner = Runner(toolset, resume_key=KEY, approve=lambda call, decision, context: decision)
                first = await runner.run("book", {"city": "Rome"})
                assert "blue-horse" not in f"{first.record()} {toolset.get('book').server}"
            calls = (address, {}), (f"{elsewhere}?token=blue-horse-7", {}), (f"{address}?token=blue-horse-7", RENAMED)
            return tuple([await tried(at, first.record(), renamed) for at, renamed in calls])

    for result in await main():
        assert (result.status, result.executed) == ("invalid", False) and "its server" in str(result.error)
    assert len(server.calls) == 1 and other.calls == []


RENAMED = {"cancel": "book"}


def test_what_makes_a_server_the_one_that_it_is() -> None:
    def identities(*servers: Any) -> int:
        return len({tuple(server.identity) for server in servers})

    one, url = mcp.Stdio("python", ["a.py"]), "https://example.com/mcp"
    assert identities(one, mcp.Stdio("python", ["a.py"], env={"KEY": "new"}, name="own")) == 1
    assert identities(one, mcp.Stdio("python", ["b.py"]), mcp.Stdio("python3", ["a.py"]), mcp.Stdio("python")) == 4
    assert identities(one, mcp.Stdio("python", ["a.py"], cwd="/tmp")) == 2
    assert identities(mcp.Http(url), mcp.Http("https://me:secret@EXAMPLE.com/mcp#x", headers={"X-Key": "new"})) == 1
    assert (
        identities(*map(mcp.Http, (url, f"{url}2", f"{url}?a=1", "http://example.com/mcp", f"{url[:-4]}:1/mcp"))) == 5
    )


async def test_several_requests_are_one_question_with_a_property_for_each() -> None:
    url = types.ElicitRequest(params=types.ElicitRequestURLParams(message="Sign in", url="https://example.com/in"))
    server = booking(when=form(), sign=url)
    seen: list[Decision] = []

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        seen.append(decision)
        return allow({"when": {"day": 3}})

    result = await book(server, approve)
    told = {"when": {"action": "accept", "content": {"day": 3}}, "sign": {"action": "accept"}}
    assert json.loads(result.output)[1] == told
    assert "Which day?" in seen[0].reason and "https://example.com/in" in seen[0].reason


async def test_an_address_is_a_plain_yes() -> None:
    url = types.ElicitRequest(params=types.ElicitRequestURLParams(message="Sign in", url="https://example.com/in"))
    assert json.loads((await book(booking(sign=url), answering(True))).output)[1] == {"sign": {"action": "accept"}}


@pytest.mark.parametrize("answer", [deny("no"), False, allow({"day": 0}), allow({"other": 1})])
async def test_what_is_refused_or_does_not_fit_ends_the_call_and_reaches_no_server(answer: object) -> None:
    server = booking(when=form())
    assert (await book(server, answering(answer))).status == "denied"
    assert len(server.calls) == 1


async def test_a_schema_that_is_none_fails_the_call() -> None:
    hostile = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
    result = await book(booking(when=form(schema=hostile)), answering(allow({"a": "b"})))
    assert result.status in ("failed", "denied")


async def test_state_alone_is_asked_again_a_few_times() -> None:
    server = Made()

    async def slow(context: Any, arguments: dict[str, Any]) -> Any:
        state = server.calls[-1].request_state
        step = 0 if state is None else int(state)
        return types.InputRequiredResult(request_state=str(step + 1)) if step < arguments["steps"] else text("done")

    server.add("slow", slow)

    async def main() -> list[ToolResult]:
        async with mcp.connect(server.memory()) as toolset:
            runner = Runner(toolset)
            return [await runner.run("slow", {"steps": steps}) for steps in (3, 100)]

    done, endless = await main()
    assert done.output == "done"
    assert endless.status == "failed" and "only asked to be called again" in str(endless.error)
    assert len(server.calls) == 4 + 10


async def test_what_was_not_offered_is_not_given() -> None:
    sampling = types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[], max_tokens=5))
    result = await book(booking(model=sampling), answering(True))  # type: ignore[arg-type]
    assert result.status == "failed" and "'sampling/createMessage', which Ferrule did not offer" in str(result.error)


@pytest.mark.parametrize("offered", [True, False])
async def test_servers_are_told_whether_they_may_ask(offered: bool) -> None:
    told: list[Any] = []

    async def look(context: Any, arguments: dict[str, Any]) -> Any:
        told.append(context.session.client_params.capabilities.elicitation)
        return text("")

    async def main() -> None:
        async with mcp.connect(made("look", look).memory("legacy"), elicitation=offered) as toolset:
            await Runner(toolset).run("look")

    await main()
    assert (told[0] is not None) == offered


# -- the 2025 revisions ------------------------------------------------------------------------------------------------


async def elicit(context: Any, arguments: dict[str, Any]) -> Any:
    answer = await context.session.elicit_form("Which day?", DAY, context.request_id)
    return text(f"{answer.action} {answer.content}")


@pytest.mark.parametrize(
    ("answer", "output"),
    [(allow({"day": 4}), "accept {'day': 4}"), (deny("no"), "decline None"), (allow({"day": 0}), "decline None")],
)
async def test_a_server_of_2025_asks_while_its_tool_runs(answer: object, output: str) -> None:
    async def main() -> ToolResult:
        async with mcp.connect(made("ask", elicit).memory("legacy")) as toolset:
            runner = Runner(toolset, approve=answering(answer))
            await runner.run("ask")
            return await runner.run("ask")

    assert (await main()).output == output


async def test_the_deadline_stands_still_while_a_server_of_2025_asks() -> None:
    async def main() -> ToolResult:
        async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
            await asyncio.sleep(0.5)
            return allow({"day": 1})

        async with mcp.connect(made("ask", elicit).memory("legacy")) as toolset:
            return await Runner(toolset, approve=approve, timeout=0.3).run("ask")

    assert (await main()).success


async def test_a_program_with_several_calls_under_way_asks_nobody_and_is_told_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> ToolResult:
        begun = asyncio.Event()

        def observe(event: Event) -> None:
            if event.kind == "tool:progress":
                begun.set()

        program = mcp.Stdio(PROGRAM[0], [*PROGRAM[1:], str(tmp_path / "cancelled")], mode="legacy")
        async with mcp.connect(program) as toolset:
            runner = Runner(toolset, approve=answering(allow({"day": 1})), observers=[observe])
            waiting = asyncio.ensure_future(runner.run("wait"))
            await begun.wait()
            asked = await runner.run("ask")
            waiting.cancel()
            await asyncio.wait({waiting})
            return asked

    with caplog.at_level(logging.WARNING, "ferrule.mcp"):
        result = await main()
    why = "asked nobody: 2 calls are running, and it does not name one of them"
    assert result.output == f"decline None Ferrule {why}" and why in caplog.text


@pytest.mark.parametrize("over", ["memory", "http"])
async def test_with_several_calls_under_way_the_person_of_the_right_one_is_asked(over: str) -> None:
    """Where each call has a stream of its own, on which its questions come."""

    async def main() -> list[Any]:
        everybody, count = asyncio.Event(), 0

        async def elicit_together(context: Any, arguments: dict[str, Any]) -> Any:
            nonlocal count
            count += 1
            if count == 8:
                everybody.set()
            await everybody.wait()
            return await elicit(context, arguments)

        async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
            return allow({"day": context.metadata["day"]})

        server = made("ask", elicit_together)
        async with AsyncExitStack() as stack:
            where = server.memory("legacy")
            if over == "http":
                where = mcp.Http(await stack.enter_async_context(http(server.server)), mode="legacy")
            toolset = await stack.enter_async_context(mcp.connect(where))
            runner = Runner(toolset, approve=approve)
            calls = [runner.run("ask", context=ToolContext(metadata={"day": day})) for day in range(1, 9)]
            return [result.output for result in await asyncio.gather(*calls)]

    assert (await main()) == [f"accept {{'day': {day}}}" for day in range(1, 9)]


@pytest.mark.parametrize("over", ["memory", "stdio", "http"])
def test_the_approver_has_the_context_variables_of_the_call(over: str) -> None:
    who: ContextVar[str] = ContextVar("who", default="the connection")
    seen: list[str] = []

    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        seen.append(who.get())
        return allow({"day": 1})

    async def run(runner: Runner, name: str) -> ToolResult:
        who.set(name)
        return await runner.run("ask")

    async def main() -> None:
        server = made("ask", elicit)
        async with AsyncExitStack() as stack:
            where: Any = server.memory("legacy")
            if over == "stdio":
                where = mcp.Stdio(PROGRAM[0], PROGRAM[1:], mode="legacy")
            elif over == "http":
                where = mcp.Http(await stack.enter_async_context(http(server.server)), mode="legacy")
            runner = Runner(await stack.enter_async_context(mcp.connect(where)), approve=approve)
            for name in ("Ann", "Bob"):
                assert (await asyncio.create_task(run(runner, name))).success

    go(main())
    assert seen == ["Ann", "Bob"]


async def test_a_question_ends_with_its_call() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        asked = asyncio.Event()

        async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("the approver was let go")
            return ask("later")

        async with mcp.connect(made("ask", elicit).memory("legacy")) as toolset:
            waiting = asyncio.ensure_future(Runner(toolset, approve=approve).run("ask"))
            await asked.wait()
            waiting.cancel()
            await asyncio.wait({waiting})
        return seen

    assert (await main()) == ["the approver was let go"]


async def test_a_question_ends_with_its_call_though_the_server_goes_on() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        asked, gone = asyncio.Event(), asyncio.Event()

        async def stubborn(context: Any, arguments: dict[str, Any]) -> Any:
            with anyio.CancelScope(shield=True):
                seen.append((await context.session.elicit_form("Which day?", DAY)).action)
                gone.set()

        async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError("nobody answers")

        async with mcp.connect(made("ask", stubborn).memory("legacy")) as toolset:
            waiting = asyncio.ensure_future(Runner(toolset, approve=approve).run("ask"))
            await asked.wait()
            waiting.cancel()
            await asyncio.wait({waiting})
            await gone.wait()
        return seen

    assert (await main()) == ["cancel"]


async def test_an_address_that_a_server_of_2025_wants_visited_is_asked_for_and_the_call_goes_again() -> None:
    visited: list[str] = []

    async def guarded(context: Any, arguments: dict[str, Any]) -> Any:
        if not visited:
            wanted = {"mode": "url", "message": "Sign in", "url": "https://example.com/in", "elicitationId": "1"}
            raise MCPError(types.URL_ELICITATION_REQUIRED, "sign in first", {"elicitations": [wanted]})
        return text("inside")

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        visited.append(decision.reason)
        return allow()

    async def main() -> ToolResult:
        async with mcp.connect(made("enter", guarded).memory("legacy")) as toolset:
            return await Runner(toolset, approve=approve).run("enter")

    assert (await main()).output == "inside"
    assert "https://example.com/in" in visited[0]


async def test_a_late_question_of_a_call_that_was_given_up_reaches_nobody_else() -> None:

    begun, answered = asyncio.Event(), asyncio.Event()
    answers: list[str] = []
    asked: list[str] = []

    async def stubborn(context: Any, arguments: Any) -> Any:
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
        assert (await runner.run("stubborn", principal="alice", timeout=0.2)).status == "timeout"
        assert (await runner.run("slow", principal="bob")).output == "slow"
    assert (answers, asked) == (["decline"], [])


HIDING = {
    "type": "object",
    "properties": {"day": {"type": "integer", "title": "d\u202eay", "description": "pay\u200b \U000e0041all"}},
}
HIDDEN_NAME = {"type": "object", "properties": {"da\u200by": {"type": "integer"}}}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_what_nobody_sees_is_in_no_schema_that_a_person_gets(mode: str) -> None:
    seen: list[Any] = []

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        if decision.schema is not None:
            seen.append(decision.schema["properties"])
        return allow(None if decision.schema is None else {"day": 1})

    async def main(schema: Any) -> ToolResult:
        async def elicit(context: Any, arguments: Any) -> Any:
            return text((await context.session.elicit_form("Which day?", schema)).action)

        server = Made().add("book", elicit) if mode == "legacy" else booking(when=form(schema=schema))
        async with mcp.connect(server.memory(mode)) as toolset:
            return await Runner(toolset, approve=approve).run("book")

    assert go(main(HIDING)).success
    assert seen == [{"day": {"type": "integer", "title": "day", "description": "pay all"}}]
    refused = go(main(HIDDEN_NAME))
    assert len(seen) == 1
    assert refused.output == "decline" if mode == "legacy" else "hidden characters" in str(refused.error)


@pytest.mark.parametrize("mode", ERAS)
async def test_no_server_asks_a_person_more_than_sixteen_times_in_one_call(mode: mcp.Mode) -> None:
    asked: list[str] = []
    answers: list[str] = []

    async def pester(context: Any, arguments: dict[str, Any]) -> Any:
        if mode == "legacy":
            for _ in range(40):
                answers.append((await context.session.elicit_form("Which day?", DAY, context.request_id)).action)
            return text("done")
        return types.InputRequiredResult(input_requests={"day": form()}, request_state="again")

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        asked.append(decision.reason)
        return allow({"day": 1})

    async def main() -> ToolResult:
        async with mcp.connect(made("pester", pester).memory(mode)) as toolset:
            return await Runner(toolset, approve=approve).run("pester")

    result = await main()
    assert len(asked) == 16
    assert answers == ([] if mode == "auto" else 16 * ["accept"] + 24 * ["decline"])
    assert result.success is (mode == "legacy")
