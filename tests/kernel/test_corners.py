"""Corners of the contract: where waiting calls meet, where authors' objects break, and what a copy keeps."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, Field

from ferrule import Media, Runner, ToolCall, ToolContext, ToolResult, ask, build_tool, tool
from ferrule.kernel import tasks
from ferrule.values.decision import Decision
from waits import BOUND


def go(make: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(make(), BOUND)

    return asyncio.run(bounded())


# -- waiting ---------------------------------------------------------------------------------------------------------


def test_blocking_parents_that_fill_all_threads_do_not_wait_for_their_children_for_ever() -> None:
    @tool(read_only=True)
    def child(n: int) -> int:
        return n

    @tool(read_only=True)
    def parent(n: int) -> int:
        return int(runner.run_sync("child", {"n": n}).output)

    runner = Runner([child, parent], concurrency=None)

    async def main() -> list[ToolResult]:
        return await runner.run_all([ToolCall(f"c{n}", "parent", {"n": n}) for n in range(100)])

    assert [result.output for result in go(main)] == list(range(100))


async def test_tasks_that_outlive_their_call_take_slots_like_anybody() -> None:
    over = asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []
    most: list[int] = []
    now = 0

    async def later() -> None:
        await over.wait()
        await runner.run("work")

    @tool
    async def keep() -> None:
        tasks.extend(asyncio.create_task(later()) for _ in range(5))

    @tool(read_only=True)
    async def work() -> None:
        nonlocal now
        now += 1
        most.append(now)
        await asyncio.sleep(0)
        now -= 1

    runner = Runner([keep, work], concurrency=1)

    async def main() -> None:
        await runner.run("keep")
        over.set()
        await asyncio.gather(*tasks)

    await main()
    assert max(most) == 1


def test_an_async_handler_that_blocks_past_its_deadline_is_late() -> None:
    @tool(timeout=0.02)
    async def block() -> str:
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            pass
        return "late"

    result = go(lambda: Runner([block]).run("block"))
    assert (result.status, result.executed) == ("timeout", True)


# -- what authors bring ----------------------------------------------------------------------------------------------


def test_an_output_that_breaks_when_it_is_read_breaks_nothing_else() -> None:
    class Rows(Mapping[str, int]):
        def __getitem__(self, key: str) -> int:
            raise RuntimeError("gone")

        def __iter__(self) -> Iterator[str]:
            return iter(["a"])

        def __len__(self) -> int:
            return 1

    @tool(read_only=True)
    async def rows() -> Any:
        return Rows()

    @tool(read_only=True)
    async def fine() -> int:
        return 1

    events: list[str] = []
    runner = Runner([rows, fine], observers=[lambda event: events.append(event.kind)])
    results = go(lambda: runner.run_all([ToolCall("a", "rows"), ToolCall("b", "fine")]))
    assert results[1].output == 1
    results[0].record()
    assert sorted(events) == [*["tool:post"] * 2, *["tool:pre"] * 2, *["tool:started"] * 2]


def test_an_iterator_is_no_output() -> None:
    @tool(read_only=True)
    async def endless() -> Any:
        return iter(int, 1)

    result = go(lambda: Runner([endless]).run("endless"))
    assert (result.status, result.executed) == ("failed", True)
    assert "iterator" in str(result.error)


def test_a_trait_that_breaks_gives_the_careful_answer() -> None:
    def breaks(arguments: Mapping[str, Any]) -> bool:
        raise KeyError("x")

    made = tool(
        lambda: 1, name="t", read_only=breaks, parallel=breaks, destructive=breaks, idempotent=breaks, open_world=breaks
    )
    said = {name: made.trait(name, {}) for name in ("read_only", "parallel", "destructive", "idempotent", "open_world")}
    assert said == {
        "read_only": False,
        "parallel": False,
        "destructive": True,
        "idempotent": False,
        "open_world": True,
    }


def test_a_guard_has_ten_seconds() -> None:
    assert tasks.ANSWER_SECONDS == 10.0


def test_a_validator_that_breaks_refuses_its_call_and_no_other() -> None:
    def known(text: str) -> str:
        return {"a": "A", "A": "A"}[text]

    @tool(resources=lambda arguments: ["k"])
    async def pick(name: Annotated[str, AfterValidator(known)]) -> str:
        return name

    runner = Runner([pick])
    calls = [ToolCall("a", "pick", {"name": "a"}), ToolCall("b", "pick", {"name": "zz"})]
    results = go(lambda: runner.run_all(calls))
    assert [result.status for result in results] == ["ok", "invalid"]
    assert go(lambda: runner.decide(calls[1])).kind == "deny"


def test_an_iterable_is_checked_before_anything_runs() -> None:
    @tool
    async def total(numbers: Iterable[int]) -> int:
        return sum(numbers)

    runner = Runner([total])
    assert go(lambda: runner.run("total", {"numbers": [1, 2]})).output == 3
    result = go(lambda: runner.run("total", {"numbers": ["x"]}))
    assert (result.status, result.executed) == ("invalid", False)


def test_two_attempts_of_one_call_at_the_same_time_are_refused() -> None:
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

    result = go(lambda: Runner([work], around=[twice], timeout=BOUND).run("work", {"n": 0}))
    assert (result.output, ran) == (1, [1])


def test_a_result_that_a_handler_makes_keeps_the_repairs_and_the_time() -> None:
    @tool
    async def work(n: int) -> ToolResult:
        return ToolResult(output=n)

    result = go(lambda: Runner([work]).run("work", '{"n": "5"}'))
    assert result.repairs == ("read the string in 'n' as integer",)
    assert result.duration_ms > 0


# -- what is judged and seen -----------------------------------------------------------------------------------------


def test_a_private_parameter_with_an_alias_is_private() -> None:
    @tool(private=("pin",))
    async def pay(amount: int, pin: Annotated[str, Field(alias="PIN")]) -> str:
        return pin

    assert list(pay.input_schema["properties"]) == ["amount"]
    runner = Runner([pay])
    assert go(lambda: runner.run("pay", {"amount": 1, "PIN": "model"})).status == "invalid"
    assert go(lambda: runner.run("pay", {"amount": 1})).status == "denied"
    assert go(lambda: Runner([pay.bind(PIN="1234")]).run("pay", {"amount": 1})).output == "1234"


def test_a_private_value_that_does_not_fit_is_not_told() -> None:
    @tool(private=("pin",))
    async def pay(amount: int, pin: int) -> str:
        return "paid"

    def person(call: ToolCall, decision: Decision, context: ToolContext[Any]) -> Any:
        from ferrule import allow

        return allow({**call.arguments, "pin": "hunter2"})

    runner = Runner([pay], guards=[lambda call, context: ask("the pin?", into="pin")], approve=person)
    result = go(lambda: runner.run("pay", {"amount": 1}))
    assert result.status == "denied"
    assert "hun" not in str(result.error)


def test_a_bound_value_is_not_on_the_record_of_a_suspended_call() -> None:
    @tool
    async def send(text: str, token: str) -> str:
        return f"{text} by {token}"

    def guard(call: ToolCall, context: ToolContext[Any]) -> Decision:
        return ask("send it?")

    def runner(token: str) -> Runner:
        later = lambda call, decision, context: decision  # noqa: E731
        return Runner([send.bind(token=token)], guards=[guard], approve=later, resume_key=b"k" * 32)

    waiting = go(lambda: runner("s3cr3t").run("send", {"text": "hi"}))
    assert "s3cr3t" not in str(waiting.record())
    assert go(lambda: runner("other").resume(waiting.record(), True)).status == "invalid"
    assert go(lambda: runner("s3cr3t").resume(waiting.record(), True)).output == "hi by s3cr3t"


def test_the_defaults_of_a_schema_that_guards_judge_reach_the_handler() -> None:
    seen: list[Any] = []
    schema = {"type": "object", "properties": {"limit": {"type": "integer", "default": 10}}}
    made = build_tool(
        {
            "name": "t",
            "input_schema": schema,
            "execute": lambda payload: payload,
            "check_permissions": lambda p, c: None,
        }
    )
    runner = Runner([made], guards=[lambda call, context: seen.append(dict(call.arguments))])
    assert go(lambda: runner.run("t", {})).output == {"limit": 10}
    assert seen == [{"limit": 10}]


def test_a_person_sees_every_reason_to_ask() -> None:
    asked: list[str] = []

    @tool
    async def wipe() -> str:
        return "wiped"

    def person(call: ToolCall, decision: Decision, context: ToolContext[Any]) -> bool:
        asked.append(decision.reason)
        return True

    guards = [lambda call, context: ask("a backup?"), lambda call, context: ask("the whole disk?")]
    go(lambda: Runner([wipe], guards=guards, approve=person).run("wipe"))
    assert asked == ["a backup?; the whole disk?"]


async def test_an_answer_that_was_cut_off_before_it_was_used_can_be_given_again() -> None:
    @tool
    async def work() -> str:
        return "done"

    async def main() -> ToolResult:
        runner = Runner([work], guards=[lambda c, x: ask("sure?")], approve=lambda call, decision, context: decision)
        record = (await runner.run("work")).record()
        early = asyncio.ensure_future(runner.resume(record, True))
        early.cancel()
        with pytest.raises(asyncio.CancelledError):
            await early
        return await runner.resume(record, True)

    assert (await main()).output == "done"


@pytest.mark.parametrize("first", [True, False])
def test_what_follows_from_read_only_follows_in_a_copy(first: bool) -> None:
    made = tool(lambda: 1, name="t", read_only=first).replace(read_only=not first)
    assert (made.read_only, made.parallel, made.destructive) == (not first, not first, first)
    said = tool(lambda: 1, name="t", read_only=True, parallel=False).replace(read_only=False)
    assert said.parallel is False


def test_the_id_that_a_call_gets_is_no_id_that_a_model_gives() -> None:
    @tool(read_only=True)
    async def work() -> int:
        return 1

    calls = [ToolCall("", "work"), *(ToolCall(f"call_{n}", "work") for n in range(50))]
    assert all(result.success for result in go(lambda: Runner([work]).run_all(calls)))


# -- loops that end, copies that are kept ----------------------------------------------------------------------------


def test_direct_calls_from_two_loops_at_once_do_not_meet() -> None:
    entered, leave = threading.Event(), threading.Event()

    @tool(read_only=True)
    async def work(n: int) -> int:
        if n == 1:
            entered.set()
            await asyncio.to_thread(leave.wait, 5)
        return n

    async def call(n: int) -> int:
        return int(await work(n=n))

    found: list[int] = []
    other = threading.Thread(target=lambda: found.append(asyncio.run(call(1))))
    other.start()
    assert entered.wait(5)
    assert [asyncio.run(call(n)) for n in (2, 3)] == [2, 3]
    leave.set()
    other.join(5)
    assert found == [1]


def test_names_and_addresses_of_media_are_valid_utf_8() -> None:
    @tool(read_only=True)
    async def file() -> ToolResult:
        return ToolResult(content=[Media("file", b"x", "text/plain", uri="\ud800", name="caf\udce9.txt")])

    [block] = go(lambda: Runner([file]).run("file")).content
    assert isinstance(block, Media)
    f"{block.uri}{block.name}".encode()


def test_a_tool_that_a_class_only_keeps_is_not_its_method() -> None:
    @tool
    async def add(a: int, b: int) -> int:
        return a + b

    class Agent:
        helper = add

    assert list(Agent().helper.input_schema["properties"]) == ["a", "b"]
