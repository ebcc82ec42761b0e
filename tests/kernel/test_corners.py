"""Rare cases."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, Field

from ferrule import Runner, ToolCall, ToolContext, ToolError, ToolResult, tool
from ferrule.errors import NotStartedError
from ferrule.middleware import retry
from gates import Gate
from waits import BOUND


def test_a_trait_that_raises_has_its_careful_value() -> None:
    def breaks(arguments: Mapping[str, Any]) -> bool:
        raise KeyError("x")

    made = tool(
        lambda: 1, name="t", read_only=breaks, parallel=breaks, destructive=breaks, idempotent=breaks, open_world=breaks
    )
    said = {name: made.trait(name, {}) for name in ("read_only", "parallel", "destructive", "idempotent", "open_world")}
    careful = {"read_only": False, "parallel": False, "idempotent": False, "destructive": True, "open_world": True}
    assert said == careful


async def test_a_validator_that_breaks_refuses_its_call_and_no_other() -> None:
    def known(text: str) -> str:
        return {"a": "A", "A": "A"}[text]

    @tool(resources=lambda arguments: ["k"])
    async def pick(name: Annotated[str, AfterValidator(known)]) -> str:
        return name

    runner = Runner([pick])
    calls = [ToolCall("a", "pick", {"name": "a"}), ToolCall("b", "pick", {"name": "zz"})]
    results = await runner.run_all(calls)
    assert [result.status for result in results] == ["ok", "invalid"]
    assert (await runner.decide(calls[1])).kind == "deny"


async def test_two_concurrent_attempts_of_one_call_are_refused() -> None:
    ran: list[int] = []

    @tool
    async def work(n: int) -> int:
        ran.append(n)
        await asyncio.sleep(0)
        return n

    async def twice(call: ToolCall, context: ToolContext[Any], next: Any) -> Any:
        first, second = await asyncio.gather(
            next(call.replace(arguments={"n": 1}), context),
            next(call.replace(arguments={"n": 2}), context),
            return_exceptions=True,
        )
        assert isinstance(second, Exception)
        return first

    result = await Runner([work], around=[twice], timeout=BOUND).run("work", {"n": 0})
    assert (result.output, ran) == (1, [1])


async def test_a_private_parameter_with_an_alias_is_private() -> None:
    @tool(private=("pin",))
    async def pay(amount: int, pin: Annotated[str, Field(alias="PIN")]) -> str:
        return pin

    assert list(pay.input_schema["properties"]) == ["amount"]
    runner = Runner([pay])
    assert (await runner.run("pay", {"amount": 1, "PIN": "model"})).status == "invalid"
    assert (await runner.run("pay", {"amount": 1})).status == "denied"
    assert (await Runner([pay.bind(PIN="1234")]).run("pay", {"amount": 1})).output == "1234"


@tool(read_only=True)
async def pay(n: int) -> int:
    """Pay."""
    return n


@pytest.mark.parametrize(("id", "name"), [("c", None), (["c"], "pay"), (1, "pay")])
def test_a_call_whose_id_or_name_is_no_text_cannot_be_made(id: Any, name: Any) -> None:
    with pytest.raises(TypeError, match="texts"):
        ToolCall(id, name)


@pytest.mark.parametrize("seconds", [True, float("nan"), -1, 10**400, "soon", 3])
async def test_only_a_valid_retry_after_is_on_the_result(seconds: Any) -> None:
    class Busy(ValueError):
        retry_after = seconds

    @tool
    async def fails() -> None:
        raise Busy("try later")

    result = await Runner([fails]).run("fails")
    assert "Busy: try later" in str(result.error)
    assert dict(result.metadata) == ({"retry_after": 3.0} if seconds == 3 else {})


async def test_a_retry_that_sent_nothing_does_not_hide_the_first_run() -> None:
    said: list[bool | None] = [True, False]

    @tool(idempotent=True)
    async def send() -> None:
        raise ToolError("the line is down", executed=said.pop(0), retry_after=0)

    result = await Runner([send], inside=[retry(attempts=2)]).run("send")
    assert said == [] and result.executed is not False and "Nothing was run" not in str(result.error)


@pytest.mark.parametrize("error", [ToolError("the line is down", executed=False), NotStartedError("of another call")])
async def test_the_error_of_a_called_tool_does_not_deny_the_callers_run(error: Exception) -> None:
    @tool
    async def inner() -> None:
        raise error

    @tool
    async def outer() -> None:
        await inner()

    result = await Runner([inner, outer]).run("outer")
    assert (result.status, result.executed) == ("failed", True)


@pytest.mark.parametrize("how", ["batch", "leave"])
async def test_no_retry_starts_once_batch_or_runner_is_stopped(how: str) -> None:
    ran: list[int] = []
    between = Gate()

    @tool(idempotent=True)
    async def flaky() -> None:
        ran.append(1)
        raise ValueError("no")

    async def again(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await next(call, context)
        await between.wait()
        return await next(call, context)  # type: ignore[no-any-return]

    async with Runner([flaky], inside=[again]) as runner:
        batch = runner.batch([ToolCall("c1", "flaky", "{}")])
        await between.inside.wait()
        if how == "batch":
            batch.cancel()
        asyncio.get_running_loop().call_soon(between.open.set)
        if how == "leave":
            await runner.__aexit__()
        (result,) = await batch
    assert (result.status, result.executed, ran) == ("cancelled", True, [1])
    assert "may have happened" in str(result.error)
