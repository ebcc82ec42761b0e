"""Rare cases."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, Field

from cast import ask_always
from ferrule import Media, Runner, ToolCall, ToolContext, ToolError, ToolResult, allow, ask, build_tool, tool
from ferrule.errors import NotStartedError
from ferrule.middleware import retry
from gates import Gate
from waits import BOUND, until


async def test_blocking_parents_in_all_threads_do_not_deadlock() -> None:
    @tool(read_only=True)
    def child(n: int) -> int:
        return n

    @tool(read_only=True)
    def parent(n: int) -> int:
        return int(runner.run_sync("child", {"n": n}).output)

    runner = Runner([child, parent], concurrency=None)
    results = await runner.run_all([ToolCall(f"c{n}", "parent", {"n": n}) for n in range(100)])
    assert [result.output for result in results] == list(range(100))


async def test_tasks_that_outlive_their_call_wait_for_slots() -> None:
    over, tasks, gate = asyncio.Event(), [], Gate(read_only=True)

    async def later() -> ToolResult:
        await over.wait()
        return await runner.run("wait")

    @tool
    async def leave() -> None:
        tasks.extend(asyncio.create_task(later()) for _ in range(3))

    runner = Runner([leave, gate.tool], concurrency=1)
    await runner.run("leave")
    over.set()
    await until(lambda: runner.waiting == 2)
    assert gate.runs == 1
    gate.open.set()
    assert all(result.success for result in await asyncio.gather(*tasks))


async def test_an_async_handler_that_blocks_past_its_deadline_is_late() -> None:
    @tool(timeout=0.02)
    async def block() -> str:
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            pass
        return "late"

    result = await Runner([block]).run("block")
    assert (result.status, result.executed) == ("timeout", True)


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


async def test_an_iterable_is_checked_before_anything_runs() -> None:
    @tool
    async def total(numbers: Iterable[int]) -> int:
        return sum(numbers)

    runner = Runner([total])
    assert (await runner.run("total", {"numbers": [1, 2]})).output == 3
    result = await runner.run("total", {"numbers": ["x"]})
    assert (result.status, result.executed) == ("invalid", False)


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


async def test_a_private_value_that_does_not_fit_is_not_shown() -> None:
    @tool(private=("pin",))
    async def pay(amount: int, pin: int) -> str:
        return "paid"

    guards = [lambda call, context: ask("the pin?", into="pin")]
    runner = Runner([pay], guards=guards, approve=lambda *_: allow({"pin": "hunter2"}))
    result = await runner.run("pay", {"amount": 1})
    assert result.status == "denied"
    assert "hun" not in str(result.error)


async def test_the_defaults_of_a_schema_reach_guards_and_the_handler() -> None:
    seen: list[Any] = []
    schema = {"type": "object", "properties": {"limit": {"type": "integer", "default": 10}}}
    run, check = lambda payload: payload, lambda payload, context: None
    made = build_tool({"name": "t", "input_schema": schema, "execute": run, "check_permissions": check})
    runner = Runner([made], guards=[lambda call, context: seen.append(dict(call.arguments))])
    assert (await runner.run("t", {})).output == {"limit": 10}
    assert seen == [{"limit": 10}]


async def test_an_id_that_ferrule_makes_up_is_not_one_of_the_models() -> None:
    @tool(read_only=True)
    async def work() -> int:
        return 1

    calls = [ToolCall("", "work"), *(ToolCall(f"call_{n}", "work") for n in range(50))]
    assert all(result.success for result in (await Runner([work]).run_all(calls)))


def test_direct_calls_from_two_loops_at_once_do_not_meet() -> None:
    entered, leave = threading.Event(), threading.Event()

    @tool(read_only=True)
    async def work(n: int) -> int:
        if n == 1:
            entered.set()
            await asyncio.to_thread(leave.wait, BOUND)
        return n

    async def call(n: int) -> int:
        return int(await work(n=n))

    with ThreadPoolExecutor() as threads:
        found = threads.submit(lambda: asyncio.run(call(1)))
        assert entered.wait(BOUND)
        assert [asyncio.run(call(n)) for n in (2, 3)] == [2, 3]
        leave.set()
        assert found.result() == 1


async def test_names_and_addresses_of_media_are_valid_utf_8() -> None:
    @tool(read_only=True)
    async def file() -> ToolResult:
        return ToolResult(content=[Media("file", b"x", "text/plain", uri="\ud800", name="caf\udce9.txt")])

    [block] = (await Runner([file]).run("file")).content
    assert isinstance(block, Media)
    f"{block.uri}{block.name}".encode()


def test_a_tool_that_a_class_only_stores_is_not_its_method() -> None:
    @tool
    async def add(a: int, b: int) -> int:
        return a + b

    class Agent:
        helper = add

    assert list(Agent().helper.input_schema["properties"]) == ["a", "b"]


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


async def test_arguments_that_do_not_fit_are_blamed_on_who_changed_them() -> None:
    changes = lambda *rest: allow({"n": "x"})  # noqa: E731
    by_guard = await Runner([pay], guards=[changes]).run("pay", {"n": 1})
    by_person = await Runner([pay], guards=[ask_always], approve=changes).run("pay", {"n": 1})
    for result, who in ((by_guard, "a guard's"), (by_person, "the answer's")):
        assert str(result.error).startswith(f"Denied: {who} arguments do not fit: ")
        assert str(result.error).count("Nothing was run") == 1 and "call again" not in str(result.error)


@pytest.mark.parametrize("executed", [True, False, None])
async def test_a_tool_error_may_say_whether_its_effect_happened(executed: bool | None) -> None:
    @tool
    async def send() -> None:
        raise ToolError("the line is down", executed=executed, retry_after=0)

    result = await Runner([send]).run("send")
    assert (result.status, result.executed) == ("failed", executed)
    not_sent = "send could not be run: the line is down. Nothing was run."
    assert result.error == (not_sent if executed is False else "the line is down")


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
