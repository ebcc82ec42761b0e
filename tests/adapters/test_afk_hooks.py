"""AFK's hooks, records and events, after its documentation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ferrule import (
    HandlerError,
    Runner,
    ToolCall,
    ToolContext,
    ToolError,
    ToolTimeoutError,
    ValidationError,
    approval,
    ask,
    deny,
    tool,
)
from ferrule.adapters import afk

RAN: list[str] = []


@tool
async def send(text: str, times: int = 1) -> str:
    """Send a text."""
    RAN.append(text)
    return text * times


@tool
async def break_down() -> str:
    """Break."""
    raise RuntimeError("inside")


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


def ran(runner: Runner, arguments: Any, name: str = "send", **options: Any) -> Any:
    return runner.run_sync(ToolCall("c1", name, arguments), None, ToolContext(**options))


@tool(read_only=True)
async def customer() -> dict[str, str]:
    return {"name": "Ada", "card": "4111"}


def hide(result: dict[str, Any]) -> dict[str, Any]:
    result["output"]["card"] = "***"
    return result


async def hide_in_place(result: dict[str, Any]) -> None:
    hide(result)


async def hide_between(call_next: Any, args: dict[str, Any], ctx: ToolContext) -> Any:
    output = await call_next(args, ctx)
    output["card"] = "***"
    return output


@pytest.mark.parametrize(
    "hook",
    [afk.post_hook(hide), afk.post_hook(hide_in_place), afk.middleware(hide_between)],
    ids=["post hook", "post hook that gives nothing", "middleware"],
)
@pytest.mark.parametrize("where", ["inside", "around"])
def test_a_hook_changes_the_output_that_the_model_reads(hook: Any, where: str) -> None:
    options: Any = {where: [hook]}
    result = ran(Runner([customer], **options), {}, name="customer")
    assert result.text == '{"name": "Ada", "card": "***"}'
    assert result.output == {"name": "Ada", "card": "***"}


def test_guards_judge_the_arguments_of_a_pre_hook() -> None:
    def shout(args: dict[str, Any]) -> dict[str, Any]:
        args["text"] = args["text"].upper()
        return args

    def no_shouting(call: ToolCall, context: ToolContext) -> Any:
        return deny("too loud") if call.arguments["text"].isupper() else None

    assert ran(Runner([send], around=[afk.pre_hook(shout)]), {"text": "a"}).output == "A"
    result = ran(Runner([send], around=[afk.pre_hook(shout)], guards=[no_shouting]), {"text": "b"})
    assert result.status == "denied" and RAN == ["A"]


@pytest.mark.parametrize(
    ("given", "status"), [(None, "failed"), ({"text": 5}, "invalid"), ({"other": 1}, "invalid"), (KeyError, "failed")]
)
def test_a_failing_pre_hook_stops_the_call(given: Any, status: str) -> None:
    def hook(args: Any) -> Any:
        if given is KeyError:
            raise KeyError("x")
        return given

    result = ran(Runner([send], around=[afk.pre_hook(hook)]), {"text": "a"})
    assert (result.status, result.executed, RAN) == (status, False, [])


def test_a_pre_hook_does_not_run_for_malformed_arguments() -> None:
    runner = Runner([send], around=[afk.pre_hook(lambda args: {"text": "made up"})])
    assert ran(runner, '{"text": ').status == "invalid"
    assert RAN == []


def test_guards_judge_the_arguments_of_middleware() -> None:
    async def other(call_next: Any, args: Any, ctx: Any) -> Any:
        return await call_next({**args, "text": "secret"}, ctx)

    def no_secrets(call: ToolCall, context: ToolContext) -> Any:
        return deny("a secret") if call.arguments["text"] == "secret" else None

    runner = Runner([send], around=[afk.middleware(other)], guards=[no_secrets])
    assert (ran(runner, {"text": "x"}).status, RAN) == ("denied", [])
    assert ran(Runner([send], inside=[afk.middleware(other)]), {"text": "x"}).status == "failed"
    assert RAN == []


async def giving(call_next: Any, args: Any, ctx: Any) -> Any:
    try:
        return await call_next(args, ctx)
    except ToolError:
        return "not available"


@pytest.mark.parametrize(("guard", "status"), [(ask("sure?"), "suspended"), (deny("no"), "denied")])
def test_middleware_cannot_undo_a_denial_or_a_suspension(guard: Any, status: str) -> None:
    options: Any = {"guards": [lambda call, context: guard], "approve": approval.later}
    plain = ran(Runner([send], **options), {"text": "x"})
    result = ran(Runner([send], around=[afk.middleware(giving)], **options), {"text": "x"})
    assert (result.status, result.text, result.executed) == (status, plain.text, False)
    assert (result.pending is not None) is (status == "suspended")


@pytest.mark.parametrize("wrong", [5, "text", {"out": 1}, RuntimeError("hook")])
def test_a_failing_post_hook_fails_the_call_and_skips_outer_hooks(wrong: Any) -> None:
    seen: list[Any] = []

    def hook(result: Any) -> Any:
        if isinstance(wrong, Exception):
            raise wrong
        return wrong

    result = ran(Runner([send], inside=[afk.post_hook(seen.append), afk.post_hook(hook)]), {"text": "a"})
    assert (result.status, result.executed, seen) == ("failed", True, [])


@tool(timeout=0.01)
async def hang() -> str:
    await asyncio.get_running_loop().create_future()
    return "never"


@pytest.mark.parametrize(
    ("called", "arguments", "error"),
    [(send, {}, ValidationError), (break_down, {}, HandlerError), (hang, {}, ToolTimeoutError)],
)
async def test_a_call_raises_only_with_raise_on_error(called: Any, arguments: Any, error: type[ToolError]) -> None:
    assert not (await afk.call(called, arguments)).success
    with pytest.raises(error) as raised:
        await afk.call(called, arguments, raise_on_error=True)
    assert raised.value.result is not None and not raised.value.result.success
    assert (await afk.call(send, {"text": "a"}, raise_on_error=True)).output == "a"


def test_executions_and_completed_events_have_the_same_fields() -> None:
    completed: list[dict[str, Any]] = []
    runner = Runner([send, break_down], observers=[afk.tool_completed(completed.append)])
    results = [ran(runner, {"text": "a"}), ran(runner, {}, "break_down"), ran(runner, {}, "nobody")]
    executions = afk.tool_executions(results)
    assert [one["success"] for one in executions] == [True, False, False]
    assert set(executions[0]) == {"tool_name", "tool_call_id", "success", "output", "error", "latency_ms"}
    assert (executions[0]["tool_name"], executions[0]["tool_call_id"], executions[0]["output"]) == ("send", "c1", "a")
    assert [{"type": "tool_completed", **one} for one in executions] == completed
