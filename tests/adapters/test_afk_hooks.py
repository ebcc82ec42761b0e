"""AFK's hooks, records and events, as its documentation says that they are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from ferrule import (
    DefinitionError,
    HandlerError,
    Runner,
    ToolCall,
    ToolContext,
    ToolError,
    Toolset,
    ToolTimeoutError,
    ValidationError,
    approval,
    ask,
    deny,
    tool,
)
from ferrule.adapters import afk
from ferrule.loop import run as run_loop
from ferrule.models import Scripted
from ferrule.providers import openai_chat
from waits import BOUND

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
    return asyncio.run(asyncio.wait_for(runner.run(ToolCall("c1", name, arguments), ToolContext(**options)), BOUND))


@tool(read_only=True)
async def customer() -> dict[str, str]:
    """A customer."""
    return {"name": "Ada", "card": "4111"}


def hide(result: dict[str, Any]) -> dict[str, Any]:
    result["output"]["card"] = "***"
    return result


async def hide_between(call_next: Any, args: dict[str, Any], ctx: ToolContext) -> Any:
    output = await call_next(args, ctx)
    output["card"] = "***"
    return output


@pytest.mark.parametrize(
    "hook",
    [
        afk.post_hook(hide),
        afk.post_hook(lambda result: hide(result) and None),
        afk.middleware(hide_between),
    ],
    ids=["post hook", "post hook that gives nothing", "middleware"],
)
@pytest.mark.parametrize("where", ["inside", "around"])
def test_what_a_hook_changes_in_the_output_that_it_was_given_is_what_the_model_reads(hook: Any, where: str) -> None:
    options: Any = {where: [hook]}
    result = ran(Runner([customer], **options), {}, name="customer")
    assert result.text == '{"name": "Ada", "card": "***"}'
    assert result.output == {"name": "Ada", "card": "***"}


# -- pre hooks ---------------------------------------------------------------------------------------------------------


def test_a_pre_hook_changes_the_arguments_and_guards_judge_what_it_gave() -> None:
    def shout(args: dict[str, Any]) -> dict[str, Any]:
        args["text"] = args["text"].upper()
        return args

    def no_shouting(call: ToolCall, context: ToolContext) -> Any:
        return deny("too loud") if call.arguments["text"].isupper() else None

    assert ran(Runner([send], around=[afk.pre_hook(shout)]), {"text": "a"}).output == "A"
    result = ran(Runner([send], around=[afk.pre_hook(shout)], guards=[no_shouting]), {"text": "b"})
    assert result.status == "denied" and RAN == ["A"]


def test_a_pre_hook_may_take_the_context_and_be_async() -> None:
    async def sign(args: dict[str, Any], ctx: ToolContext) -> dict[str, Any]:
        return {**args, "text": f"{args['text']} {ctx.principal}"}

    assert ran(Runner([send], around=[afk.pre_hook(sign)]), {"text": "by"}, principal="ada").output == "by ada"


@pytest.mark.parametrize(
    ("given", "status"),
    [(None, "failed"), ("text", "failed"), (["text"], "failed"), ({"text": 5}, "invalid"), ({"other": 1}, "invalid")],
)
def test_a_pre_hook_that_gives_no_dict_or_what_does_not_fit_stops_the_call(given: Any, status: str) -> None:
    result = ran(Runner([send], around=[afk.pre_hook(lambda args: given)]), {"text": "a"})
    assert (result.status, result.executed, RAN) == (status, False, [])


def test_a_pre_hook_that_raises_stops_the_call() -> None:
    def broken(args: Any) -> Any:
        raise KeyError("x")

    result = ran(Runner([send], around=[afk.pre_hook(broken)]), {"text": "a"})
    assert (result.status, result.executed, RAN) == ("failed", False, [])


def test_of_arguments_that_cannot_be_read_a_pre_hook_is_not_told() -> None:
    told: list[Any] = []

    def note(args: Any) -> Any:
        told.append(args)
        return {"text": "made up"}

    assert ran(Runner([send], around=[afk.pre_hook(note)]), '{"text": ').status == "invalid"
    assert (told, RAN) == ([], [])


# -- middleware --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["around", "inside"])
def test_middleware_goes_round_a_call_and_may_give_another_output(stage: str) -> None:
    order: list[str] = []

    def named(name: str) -> Any:
        async def middleware(call_next: Any, args: Any, ctx: Any) -> Any:
            order.append(f"{name}>")
            output = await call_next(args, ctx)
            order.append(f"<{name}")
            return f"{name}({output})"

        return afk.middleware(middleware)

    options: Any = {stage: [named("a"), named("b")]}
    result = ran(Runner([send], **options), {"text": "x"})
    assert (result.output, result.text) == ("a(b(x))", "a(b(x))")
    assert order == ["a>", "b>", "<b", "<a"]


def test_middleware_may_answer_by_itself() -> None:
    async def cached(call_next: Any, args: Any, ctx: Any) -> Any:
        return "kept"

    assert ran(Runner([send], inside=[afk.middleware(cached)]), {"text": "x"}).output == "kept"
    assert RAN == []


def test_what_middleware_changes_round_a_call_is_judged() -> None:
    async def other(call_next: Any, args: Any, ctx: Any) -> Any:
        return await call_next({**args, "text": "secret"}, ctx)

    def no_secrets(call: ToolCall, context: ToolContext) -> Any:
        return deny("a secret") if call.arguments["text"] == "secret" else None

    runner = Runner([send], around=[afk.middleware(other)], guards=[no_secrets])
    assert (ran(runner, {"text": "x"}).status, RAN) == ("denied", [])
    assert ran(Runner([send], inside=[afk.middleware(other)]), {"text": "x"}).status == "failed"
    assert RAN == []


@pytest.mark.parametrize("stage", ["around", "inside"])
def test_a_failure_passes_through_middleware_as_it_is_and_may_be_caught(stage: str) -> None:
    async def passing(call_next: Any, args: Any, ctx: Any) -> Any:
        return await call_next(args, ctx)

    async def catching(call_next: Any, args: Any, ctx: Any) -> Any:
        try:
            return await call_next(args, ctx)
        except ToolError as error:
            return f"instead of {error.result.status if error.result else '?'}"

    passed: Any = {stage: [afk.middleware(passing)]}
    caught: Any = {stage: [afk.middleware(catching)]}
    plain = ran(Runner([break_down]), {}, "break_down")
    assert ran(Runner([break_down], **passed), {}, "break_down").error == plain.error
    assert ran(Runner([break_down], **caught), {}, "break_down").output == "instead of failed"


async def giving(call_next: Any, args: Any, ctx: Any) -> Any:
    try:
        return await call_next(args, ctx)
    except ToolError:
        return "not available"


async def raising(call_next: Any, args: Any, ctx: Any) -> Any:
    try:
        return await call_next(args, ctx)
    except ToolError:
        raise RuntimeError("not available") from None


@pytest.mark.parametrize("caught", [giving, raising])
@pytest.mark.parametrize(("guard", "status"), [(ask("sure?"), "suspended"), (deny("no"), "denied")])
def test_what_was_refused_or_waits_for_a_person_stays_so_whatever_middleware_makes_of_it(
    caught: Any, guard: Any, status: str
) -> None:
    options: Any = {"guards": [lambda call, context: guard], "approve": approval.later}
    plain = ran(Runner([send], **options), {"text": "x"})
    result = ran(Runner([send], around=[afk.middleware(caught)], **options), {"text": "x"})
    assert (result.status, result.text, result.executed) == (status, plain.text, False)
    assert (result.pending is not None) is (status == "suspended")


# -- post hooks --------------------------------------------------------------------------------------------------------


def test_a_post_hook_changes_the_output_or_only_looks() -> None:
    seen: list[Mapping[str, Any]] = []

    def shorten(result: dict[str, Any]) -> dict[str, Any]:
        return {**result, "output": result["output"][:2]}

    async def look(result: dict[str, Any]) -> None:
        seen.append(result)

    runner = Runner([send], inside=[afk.post_hook(look), afk.post_hook(shorten)])
    result = ran(runner, {"text": "abc"})
    assert (result.output, result.text) == ("ab", "ab")
    assert seen == [{"output": "ab", "tool_name": "send"}]


@pytest.mark.parametrize("wrong", [5, "text", {"out": 1}, RuntimeError("hook")])
def test_a_post_hook_that_fails_fails_the_call_and_those_further_out_are_not_asked(wrong: Any) -> None:
    seen: list[Any] = []

    def hook(result: Any) -> Any:
        if isinstance(wrong, Exception):
            raise wrong
        return wrong

    result = ran(Runner([send], inside=[afk.post_hook(seen.append), afk.post_hook(hook)]), {"text": "a"})
    assert (result.status, result.executed, seen) == ("failed", True, [])


def test_a_post_hook_is_not_asked_about_a_failure() -> None:
    seen: list[Any] = []
    assert ran(Runner([break_down], inside=[afk.post_hook(seen.append)]), {}, "break_down").status == "failed"
    assert seen == []


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (afk.pre_hook, 5),
        (afk.pre_hook, lambda a, b, c: a),
        (afk.middleware, lambda args: 1),
        (afk.post_hook, lambda: 1),
    ],
)
def test_what_has_another_form_is_refused_with_the_right_one(make: Any, given: Any) -> None:
    with pytest.raises(DefinitionError, match=r"takes a function of \("):
        make(given)


# -- one call, records, events -----------------------------------------------------------------------------------------


@tool(timeout=0.01)
async def hang() -> str:
    """Hang."""
    await asyncio.get_running_loop().create_future()
    return "never"


@pytest.mark.parametrize(
    ("called", "arguments", "error"),
    [(send, {}, ValidationError), (break_down, {}, HandlerError), (hang, {}, ToolTimeoutError)],
)
def test_a_call_raises_only_where_it_is_told_to(called: Any, arguments: Any, error: type[ToolError]) -> None:
    assert not asyncio.run(afk.call(called, arguments)).success
    with pytest.raises(error) as raised:
        asyncio.run(afk.call(called, arguments, raise_on_error=True))
    assert raised.value.result is not None and not raised.value.result.success
    assert asyncio.run(afk.call(send, {"text": "a"}, raise_on_error=True)).output == "a"


def test_the_definitions_are_those_of_the_chat_api() -> None:
    tools = Toolset([send, break_down])
    assert afk.to_openai_function_tools(tools) == openai_chat.tools(tools)


def test_executions_and_completed_calls_have_the_fields_of_a_record() -> None:
    completed: list[dict[str, Any]] = []
    runner = Runner([send, break_down], observers=[afk.tool_completed(completed.append)])
    results = [ran(runner, {"text": "a"}), ran(runner, {}, "break_down"), ran(runner, {}, "nobody")]
    executions = afk.tool_executions(results)
    assert [one["success"] for one in executions] == [True, False, False]
    assert set(executions[0]) == {"tool_name", "tool_call_id", "success", "output", "error", "latency_ms"}
    assert (executions[0]["tool_name"], executions[0]["tool_call_id"], executions[0]["output"]) == ("send", "c1", "a")
    assert [{"type": "tool_completed", **one} for one in executions] == completed


@pytest.mark.parametrize(("policy", "status"), [("continue", "done"), ("degrade", "degraded"), ("fail", "failed")])
async def test_what_follows_a_failure_is_the_policy_of_the_loop(policy: Any, status: str) -> None:
    model = Scripted([[ToolCall("c1", "break_down")], "said"])
    result = await _awaited_loop(model, policy)
    assert result.status == status
    assert [one["success"] for one in result.tool_executions] == [False]


async def _awaited_loop(model: Any, policy: Any) -> Any:
    return await run_loop(model, [{"role": "user", "content": "go"}], Runner([break_down]), on_failure=policy)
