"""A suspended call that is resumed: everybody sees the call that was judged, and no other."""

from __future__ import annotations

import json
from typing import Any

import pytest

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
    tool,
)
from ferrule.kernel.results import Suspended
from waits import BOUND
from watched import Watch, go

SEEN = list[tuple[str, dict[str, Any], dict[str, Any]]]


def later(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    return ask("later")


def asks(call: ToolCall, context: ToolContext) -> Decision:
    return ask("sure?")


def writing(seen: SEEN) -> Tool:
    @tool(read_only=lambda arguments: arguments["mode"] == "look")
    async def write(path: str, mode: str, context: ToolContext, times: int = 2) -> str:
        assert context.call is not None
        seen.append(("handler", dict(context.call.arguments), {"path": path, "mode": mode, "times": times}))
        context.progress(1)
        return path

    return write.bind(mode="change")


def noting(seen: SEEN) -> Any:
    def guard(call: ToolCall, context: ToolContext) -> Decision:
        assert context.call is not None
        seen.append(("guard", dict(context.call.arguments), dict(call.arguments)))
        return Decision("deny", "it changes nothing") if context.tool.read_only else ask("sure?")

    return guard


async def other(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    return await next(call.replace(arguments={"path": "elsewhere", "times": 99}), context)  # type: ignore[no-any-return]


KEY = b"k" * 32
RECORDED = {"path": "here", "times": 2, "mode": "change"}


@pytest.mark.parametrize("timeout", [None, BOUND])
@pytest.mark.parametrize("around", [[], [other]])
async def test_guards_observers_and_the_handler_see_the_recorded_arguments(
    around: list[Any], timeout: float | None
) -> None:
    seen: SEEN = []
    write, watch = writing(seen), Watch()

    async def main() -> ToolResult:
        runner = Runner([write], guards=[asks], approve=later, resume_key=KEY)
        first = await runner.run("write", {"path": "here"})
        record = json.loads(json.dumps(first.record()))
        options: Any = {"guards": [noting(seen)], "observers": [watch], "resume_key": KEY}
        second = Runner([write], around=around, timeout=timeout, **options)
        return await second.resume(record, True)

    result = await main()
    assert result.success, result.error
    assert result.output == "here"
    assert [who for who, *_ in seen] == ["guard", "handler"]
    for who, of_context, given in seen:
        assert of_context == RECORDED, who
        assert given == RECORDED, who
    told = {event.kind: dict(event.call.arguments) for event in watch.events}
    assert told["tool:decided"] == told["tool:progress"] == RECORDED | {"mode": "**********"}


async def test_a_resumed_call_that_is_suspended_again_keeps_the_recorded_arguments() -> None:
    seen: SEEN = []
    write = writing(seen)

    async def main() -> ToolResult:
        runner = Runner([write], guards=[asks], approve=later, resume_key=KEY)
        record = (await runner.run("write", {"path": "here"})).record()
        second = Runner([write], guards=[asks], around=[other], resume_key=KEY)
        again = await second.resume(record, ask("not yet"))
        assert again.status == "suspended"
        return await second.resume(again.record(), True)

    assert (await main()).output == "here"
    assert [given for *_, given in seen] == [RECORDED]


async def test_a_call_that_a_resumed_handler_makes_is_its_child() -> None:
    parents: list[str | None] = []

    @tool
    async def outer(context: ToolContext) -> None:
        await context.run("inner")

    @tool
    async def inner(context: ToolContext) -> None:
        assert context.call is not None
        parents.append(context.call.parent)

    def first(call: ToolCall, context: ToolContext) -> Decision | None:
        return ask("sure?") if call.name == "outer" else None

    async def main() -> ToolResult:
        runner = Runner([outer, inner], guards=[first], approve=later)
        record = (await runner.run(ToolCall("o1", "outer"))).record()
        return await runner.resume(record, True)

    result = await main()
    assert result.success, result.error
    assert parents == ["o1"]


@pytest.mark.parametrize("again", [True, False])
async def test_what_a_person_gave_for_a_private_parameter_is_given_again_or_nothing_runs(again: bool) -> None:
    ran: list[int] = []

    @tool(private=["limit"])
    async def order(item: str, context: ToolContext, limit: int = 1000) -> Any:
        """Order."""
        if context.answer is None:
            return InputRequired("which colour?", {"type": "object"})
        ran.append(limit)
        return "ordered"

    def limits(call: ToolCall, context: ToolContext) -> Any:
        if call.arguments["limit"] == 1000:
            return {**call.arguments, "limit": 10} if resumed and again else ask("up to which sum?", into="limit")
        return None

    async def main() -> ToolResult:
        nonlocal resumed
        answers = [allow({"limit": 10}), ask("later")]
        runner = Runner([order], guards=[limits], approve=lambda *given: answers.pop(0), resume_key=KEY)
        waiting = await runner.run("order", {"item": "a"})
        assert waiting.status == "suspended" and "10" not in str(waiting.pending["arguments"])  # type: ignore[index]
        resumed = True
        return await runner.resume(json.loads(json.dumps(waiting.record())), allow({}))

    resumed = False
    result = await main()
    assert (result.status, ran) == (("ok", [10]) if again else ("denied", [])), result.error


async def test_a_step_after_the_guards_may_find_that_it_has_to_wait_for_somebody() -> None:
    ran: list[str] = []

    @tool
    async def write(path: str) -> str:
        """Write."""
        ran.append(path)
        return "written"

    async def elsewhere(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        if context.approved_by is None:
            raise Suspended(context.running_call.plan, ask("is it done elsewhere?"), {"job": 7})  # type: ignore[union-attr]
        return await next(call, context)  # type: ignore[no-any-return]

    async def main() -> tuple[ToolResult, ToolResult]:
        runner = Runner([write], inside=[elsewhere], resume_key=KEY, concurrency=1)
        waiting = await runner.run("write", {"path": "here"})
        return waiting, await runner.resume(json.loads(json.dumps(waiting.record())), allow(by="ann"))

    waiting, done = await main()
    assert (waiting.status, waiting.executed) == ("suspended", False)
    assert waiting.pending is not None and waiting.pending["state"] == {"job": 7}
    assert (done.output, ran) == ("written", ["here"])


GIVEN: dict[str, Any] = {
    "result": lambda result: result,
    "pending": lambda result: result.pending,
    "record": lambda result: json.loads(json.dumps(result.record())),
}


@pytest.mark.parametrize("form", GIVEN)
async def test_a_suspended_call_is_resumed_and_queued_by_its_result_its_pending_or_its_record(form: str) -> None:
    async def main() -> tuple[ToolResult, str]:
        runner = Runner([writing([])], guards=[asks], approve=later)
        suspended = await runner.run("write", {"path": "here"})
        queue = approval.web()
        id = await queue.put(GIVEN[form](suspended))
        [waiting] = await queue.waiting()
        taken = await queue.answer(id, waiting.digest, True, by="eve")
        assert runner.is_sealed(GIVEN[form](suspended))
        return await runner.resume(GIVEN[form](suspended), True), taken.by

    result, by = await main()
    assert (result.output, by) == ("here", "eve")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (ToolResult("done"), "with status 'ok'"),
        (ToolResult("done").record(), "with status 'ok'"),
        ("c1", "of type str"),
        ({}, "of type dict"),
        (None, "of type NoneType"),
    ],
)
def test_what_is_no_suspended_call_is_refused_and_the_error_says_what_it_is(given: Any, what: str) -> None:
    async def main() -> None:
        for use in (approval.web().put(given), Runner([]).resume(given, True)):
            with pytest.raises(DefinitionError, match=rf"takes a suspended result, its \.pending or .* one {what}"):
                await use

    go(main())
