"""A suspended call that is resumed: it goes on as the call that was judged, and as no other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cast import ask_always, put_off
from ferrule import (
    Decision,
    DefinitionError,
    InputRequired,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    allow,
    approval,
    ask,
    deny,
    tool,
)
from watched import Watch

KEY = b"k" * 32
STARS = "**********"
RECORDED = {"path": "here", "times": 2, "mode": "change"}


def make_write() -> tuple[Tool, list[int]]:
    ran: list[int] = []

    @tool
    async def write(n: int) -> int:
        ran.append(n)
        return n

    return write, ran


async def suspend(write: Tool, **options: Any) -> tuple[dict[str, Any], Watch]:
    """Return the record of a suspended call as another process reads it, and what an observer saw."""
    watch = Watch()
    options = {"guards": [ask_always], **options}
    runner = Runner([write], approve=put_off, resume_key=KEY, observers=[watch], **options)
    result = await runner.run(ToolCall("c1", "write", {"n": 1}, data={"k": [1]}))
    assert (result.status, result.executed) == ("suspended", False)
    return json.loads(json.dumps(result.record(), allow_nan=False)), watch


async def resume(write: Tool, record: dict[str, Any], answer: Any, **options: Any) -> tuple[ToolResult, Watch]:
    """Resume the call in another runner."""
    watch = Watch()
    options = {"guards": [ask_always], **options}
    runner = Runner([write], observers=[watch], resume_key=KEY, **options)
    return await runner.resume(record, answer), watch


@pytest.mark.parametrize("answer", [{"approve": True}, "yes", None, 1])
async def test_an_answer_of_an_unknown_form_raises_and_leaves_the_record(answer: Any) -> None:
    write, ran = make_write()
    record, _ = await suspend(write)
    runner = Runner([write], resume_key=KEY)
    with pytest.raises(DefinitionError, match=r"values go into allow\(\{…\}\)"):
        await runner.resume(record, answer)
    assert ran == []
    assert (await runner.resume(record, True)).success and ran == [1]


async def test_guards_judge_a_resumed_call_once_more() -> None:
    write, ran = make_write()
    record, _ = await suspend(write)
    result, _ = await resume(write, record, True, guards=[lambda call, context: deny("the rules have changed")])
    assert (result.status, ran) == ("denied", [])


async def test_a_resumed_call_whose_tool_is_gone_has_one_terminal_event() -> None:
    record, _ = await suspend(make_write()[0])
    watch = Watch()
    result = await Runner([], observers=[watch], resume_key=KEY).resume(record, True)
    assert (result.status, watch.kinds()) == ("not_found", ["tool:error"])


async def test_a_resumed_call_has_its_recorded_context_and_new_deps_and_secrets() -> None:
    @tool
    async def look(context: ToolContext) -> list[Any]:
        return [context.session, context.principal, dict(context.metadata), context.deps, dict(context.secrets)]

    runner = Runner([look], guards=[ask_always], approve=put_off)
    given = ToolContext(session="s", principal="p", deps=object(), metadata={"m": 1}, secrets={"key": "hidden-key"})
    record = (await runner.run("look", {}, given)).record()
    result = await runner.resume(record, True, ToolContext(deps="new", secrets={"key": "new"}))
    assert result.output == ["s", "p", {"m": 1}, "new", {"key": "new"}]


async def test_everybody_sees_the_recorded_arguments_and_nobody_changes_them() -> None:
    seen: list[tuple[str, dict[str, Any], dict[str, Any]]] = []

    @tool(read_only=lambda arguments: arguments["mode"] == "look")
    async def write(path: str, mode: str, context: ToolContext, times: int = 2) -> str:
        assert context.call is not None
        seen.append(("handler", dict(context.call.arguments), {"path": path, "mode": mode, "times": times}))
        context.progress(1)
        return path

    def guard(call: ToolCall, context: ToolContext) -> Decision:
        assert context.call is not None
        seen.append(("guard", dict(context.call.arguments), dict(call.arguments)))
        return deny("it changes nothing") if context.tool.read_only else ask("sure?")

    async def changes(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        assert dict(call.arguments) == {"path": "here", "times": 2}
        return await next(call.replace(arguments={"path": "elsewhere", "times": 99}), context)  # type: ignore[no-any-return]

    async def inside(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        assert dict(call.arguments) == RECORDED
        return await next(call, context)  # type: ignore[no-any-return]

    bound, watch = write.bind(mode="change"), Watch()
    first = Runner([bound], guards=[ask_always], approve=put_off, resume_key=KEY)
    record = json.loads(json.dumps((await first.run("write", {"path": "here"})).record()))
    options: Any = {"guards": [guard], "around": [changes], "inside": [inside], "observers": [watch]}
    result = await Runner([bound], resume_key=KEY, **options).resume(record, True)
    assert result.output == "here", result.error
    assert seen == [("guard", RECORDED, RECORDED), ("handler", RECORDED, RECORDED)]
    told = {event.kind: dict(event.call.arguments) for event in watch.events}
    assert told["tool:decided"] == told["tool:progress"] == RECORDED | {"mode": STARS}


@pytest.mark.parametrize("again", [True, False])
async def test_a_private_value_of_a_person_is_supplied_again_or_nothing_runs(again: bool) -> None:
    ran: list[int] = []
    resumed = False

    @tool(private=["limit"])
    async def order(item: str, context: ToolContext, limit: int = 1000) -> Any:
        if context.answer is None:
            return InputRequired("which colour?", {"type": "object"})
        ran.append(limit)
        return "ordered"

    def limits(call: ToolCall, context: ToolContext) -> Any:
        if call.arguments["limit"] == 1000:
            return {**call.arguments, "limit": 10} if resumed and again else ask("up to which sum?", into="limit")
        return None

    answers = [allow({"limit": 10}), ask("later")]
    runner = Runner([order], guards=[limits], approve=lambda *given: answers.pop(0), resume_key=KEY)
    waiting = await runner.run("order", {"item": "a"})
    assert waiting.status == "suspended" and "10" not in str(waiting.pending["arguments"])  # type: ignore[index]
    resumed = True
    result = await runner.resume(json.loads(json.dumps(waiting.record())), allow({}))
    assert (result.status, ran) == (("ok", [10]) if again else ("denied", [])), result.error


@pytest.mark.parametrize("form", [lambda result: result, lambda result: result.pending, ToolResult.record])
async def test_a_result_its_pending_or_its_record_can_be_queued_and_resumed(form: Any) -> None:
    runner = Runner([make_write()[0]], guards=[ask_always], approve=put_off)
    given = form(await runner.run("write", {"n": 1}))
    queue = approval.web()
    id = await queue.put(given)
    [waiting] = await queue.waiting()
    taken = await queue.answer(id, waiting.digest, True, by="eve")
    assert taken.by == "eve" and runner.is_sealed(given)
    assert (await runner.resume(given, True)).output == 1


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (ToolResult("done"), "with status 'ok'"),
        (ToolResult("done").record(), "with status 'ok'"),
        ({"metadata": {"resume": {"key": "k"}}}, "of type dict"),
        ({"pending": "text"}, "of type dict"),
        (None, "of type NoneType"),
    ],
)
async def test_only_a_suspended_call_can_be_queued_or_resumed(given: Any, what: str) -> None:
    for use in (approval.web().put(given), Runner([]).resume(given, True)):
        with pytest.raises(DefinitionError, match=rf"takes a suspended result, its \.pending or .* one {what}"):
            await use
