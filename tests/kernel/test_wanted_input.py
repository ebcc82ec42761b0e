"""A handler that wants to know something from a person: it is asked like any other question, and can be suspended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import (
    Decision,
    DefinitionError,
    Event,
    InputRequired,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolHandler,
    ToolResult,
    allow,
    ask,
    build_tool,
    deny,
    tool,
)
from waits import BOUND
from watched import go

KEY = b"k" * 32
DAY = {"type": "object", "properties": {"day": {"type": "integer", "minimum": 1}}, "required": ["day"]}
Given = Callable[[ToolCall, Decision, ToolContext], Any]


def step(city: str, context: ToolContext, state: Any = None) -> Any:
    if context.answer is None:
        return InputRequired("Which day?", DAY, {"city": city} if state is None else state)
    return f"{city} {context.answer.value['day']} {json.dumps(context.answer.state, sort_keys=True)}"


def as_async() -> Tool:
    @tool
    async def book(city: str, context: ToolContext) -> str:
        return step(city, context)  # type: ignore[no-any-return]

    return book


def as_plain() -> Tool:
    @tool
    def book(city: str, context: ToolContext) -> str:
        return step(city, context)  # type: ignore[no-any-return]

    return book


def as_class() -> Tool:
    class Book(ToolHandler):
        city: str

        async def __call__(self, context: ToolContext) -> str:
            return step(self.city, context)  # type: ignore[no-any-return]

    return Tool(name="book", handler=Book, description="Book.")


def as_definition() -> Tool:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    made = {"name": "book", "description": "Book.", "input_schema": schema, "check_permissions": lambda *_: None}

    async def execute(payload: Any, context: ToolContext) -> Any:
        return step(payload["city"], context)

    return build_tool({**made, "execute": execute})


SHAPES = [as_async, as_plain, as_class, as_definition]


def answering(answer: object) -> Given:
    return lambda call, decision, context: answer


def put_off(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    return decision


def run(approve: Given | None, book: Tool | None = None, **options: Any) -> ToolResult:
    return go(Runner([book or as_async()], approve=approve, **options).run("book", {"city": "Rome"}))


def record_of(result: ToolResult) -> dict[str, Any]:
    """As another process would read it."""
    return json.loads(json.dumps(result.record(), allow_nan=False))  # type: ignore[no-any-return]


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_asked_and_goes_on_with_the_answer(shape: Callable[[], Tool]) -> None:
    result = run(answering(allow({"day": 5})), shape())
    assert (result.status, result.output, result.executed) == ("ok", 'Rome 5 {"city": "Rome"}', True)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_suspended_and_goes_on_in_another_process(shape: Callable[[], Tool]) -> None:
    first = run(put_off, shape(), resume_key=KEY)
    assert (first.status, first.executed) == ("suspended", None)
    pending = record_of(first)["pending"]
    assert (pending["kind"], pending["reason"]) == ("input", "Which day?")
    assert (pending["schema"], pending["state"]) == (DAY, {"city": "Rome"})
    other = Runner([shape()], resume_key=KEY)
    assert go(other.resume(record_of(first), allow({"day": 7}))).output == 'Rome 7 {"city": "Rome"}'


STATES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(STATES.filter(lambda state: state is not None), st.integers(1, 2**53))
def test_the_handler_gets_its_own_state_and_the_answer_as_they_were_given(state: Any, day: int) -> None:
    @tool
    async def book(city: str, context: ToolContext) -> str:
        return step(city, context, state)  # type: ignore[no-any-return]

    expected = f"Rome {day} {json.dumps(state, sort_keys=True)}"
    assert run(answering(allow({"day": day})), book).output == expected
    first = run(put_off, book, resume_key=KEY)
    assert go(Runner([book], resume_key=KEY).resume(record_of(first), allow({"day": day}))).output == expected


def test_the_approver_sees_what_is_wanted_and_an_ask_of_a_guard_wants_nothing() -> None:
    seen: list[Decision] = []

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        seen.append(decision)
        return allow(None if decision.schema is None else {"day": 1})

    assert run(approve, guards=[lambda call, context: ask("may it?")]).success
    assert [(decision.reason, decision.schema) for decision in seen] == [("may it?", None), ("Which day?", DAY)]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (allow({"day": 0}), "minimum"),
        (allow({"day": "soon"}), "integer"),
        (allow({"day": 1, "hour": 2}), "hour"),
        (True, "day"),
        (deny("not today"), "not today"),
        (False, "refused"),
    ],
)
def test_an_answer_that_does_not_fit_or_is_none_denies(answer: object, error: str) -> None:
    ran: list[object] = []

    @tool
    async def book(city: str, context: ToolContext) -> str:
        ran.append(context.answer)
        return step(city, context)  # type: ignore[no-any-return]

    result = run(answering(answer), book)
    assert (result.status, ran) == ("denied", [None])
    assert error in str(result.error) and "Nothing was run" not in str(result.error)


def test_with_nobody_to_ask_it_is_denied() -> None:
    result = run(None)
    assert result.status == "denied" and "nobody is there to ask" in str(result.error)


def test_a_sealed_question_cannot_be_changed() -> None:
    record = record_of(run(put_off, resume_key=KEY))
    record["pending"]["schema"] = {"type": "object"}
    result = go(Runner([as_async()], resume_key=KEY).resume(record, allow({"day": "soon"})))
    assert result.status == "invalid"


def test_it_is_taken_up_once() -> None:
    runner = Runner([as_async()], approve=put_off)
    record = record_of(go(runner.run("book", {"city": "Rome"})))
    assert go(runner.resume(record, allow({"day": 1}))).success
    assert go(runner.resume(record, allow({"day": 1}))).status == "invalid"


def test_the_guards_are_asked_once_more_after_the_answer() -> None:
    allowed = [True, False]
    result = run(
        answering(allow({"day": 1})), guards=[lambda call, context: None if allowed.pop(0) else deny("closed by now")]
    )
    assert result.status == "denied" and "closed by now" in str(result.error)


async def test_its_slot_is_free_while_somebody_is_asked() -> None:
    async def main() -> list[str]:
        order: list[str] = []
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
            asked.set()
            await go_on.wait()
            return allow({"day": 1})

        @tool
        async def other() -> None:
            order.append("other")

        runner = Runner([as_async(), other], approve=approve, concurrency=1, timeout=BOUND)
        booking = asyncio.ensure_future(runner.run("book", {"city": "Rome"}))
        await asked.wait()
        assert (await runner.run("other")).success
        go_on.set()
        order.append((await booking).status)
        return order

    assert (await main()) == ["other", "ok"]


async def test_the_handler_gets_fresh_objects_the_second_time() -> None:
    @tool
    async def book(cities: list[str], context: ToolContext) -> object:
        cities.append("changed")
        return InputRequired("sure?") if context.answer is None else cities

    result = await Runner([book], approve=answering(True)).run("book", {"cities": ["Rome"]})
    assert result.output == ["Rome", "changed"]


def test_it_may_ask_again_but_not_for_ever() -> None:
    asked: list[str] = []

    @tool
    async def book(context: ToolContext) -> object:
        step = 0 if context.answer is None else context.answer.state
        return InputRequired(f"step {step}?", state=step + 1) if step < 3 else "booked"

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        asked.append(decision.reason)
        return True

    assert go(Runner([book], approve=approve).run("book")).output == "booked"
    assert asked == ["step 0?", "step 1?", "step 2?"]

    @tool
    async def endless() -> InputRequired:
        return InputRequired("and now?")

    result = go(Runner([endless], approve=answering(True)).run("endless"))
    assert result.status == "failed" and "16" in str(result.error) and result.executed is None


@pytest.mark.parametrize("running", [0, 5, 16, 40])
async def test_one_call_asks_at_most_sixteen_times_in_whichever_way(running: int) -> None:
    asked: list[str] = []

    @tool
    async def endless(context: ToolContext) -> InputRequired:
        for _ in range(running if context.answer is None else 0):
            await context.ask(InputRequired("while it runs?"))
        return InputRequired("and now?")

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        asked.append(decision.reason)
        return True

    result = await Runner([endless], approve=approve).run("endless")
    assert result.status == "failed" and "more than 16 times" in str(result.error)
    assert len(asked) == 16 and asked.count("while it runs?") == min(running, 16)


def test_a_resumed_call_that_asks_again_is_suspended_again() -> None:
    @tool
    async def book(context: ToolContext) -> object:
        step = 0 if context.answer is None else context.answer.state
        return InputRequired(f"step {step}?", state=step + 1) if step < 2 else "booked"

    runner = Runner([book], approve=put_off, resume_key=KEY)
    second = go(runner.resume(record_of(go(runner.run("book"))), True))
    assert second.status == "suspended" and record_of(second)["pending"]["reason"] == "step 1?"
    assert go(runner.resume(record_of(second), True)).output == "booked"


def test_its_events_tell_of_the_question_and_not_of_what_was_answered() -> None:
    events: list[Event] = []
    assert run(answering(allow({"day": 11})), observers=[events.append]).success
    kinds = [event.kind for event in events]
    assert kinds == ["tool:pre", "tool:started", "tool:decided", "tool:started", "tool:post"]
    assert "11" not in str(dict(events[2].data))


async def test_an_answer_to_a_schema_that_is_none_denies() -> None:
    @tool
    async def book() -> InputRequired:
        return InputRequired("?", {"type": "object", "properties": {"a": {"type": "nonsense"}}})

    result = await Runner([book], approve=answering(True)).run("book")
    assert result.status == "denied" and "the answer's arguments cannot be read" in str(result.error)


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (lambda: InputRequired(""), "question"),
        (lambda: InputRequired("?", ["day"]), "JSON Schema"),  # type: ignore[arg-type]
        (lambda: InputRequired("?", state=object()), "plain JSON"),
    ],
)
def test_what_cannot_be_asked_is_told_where_it_is_made(made: Callable[[], object], error: str) -> None:
    with pytest.raises(DefinitionError, match=error):
        made()


def test_it_is_no_part_of_the_output_schema() -> None:
    @tool
    async def book() -> int | InputRequired:
        return InputRequired("sure?")

    @tool
    async def plain() -> int:
        return 1

    assert book.output_schema == plain.output_schema


# -- asked while the handler runs --------------------------------------------------------------------------------------


def waiting(answer: object, **options: Any) -> tuple[ToolResult, float]:
    """A handler that asks while it runs, of an approver that takes longer than its deadline."""

    async def main() -> tuple[ToolResult, float]:
        left: list[float] = []

        async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> object:
            loop = asyncio.get_running_loop()
            reached = loop.create_future()
            loop.call_later(0.2, reached.set_result, None)
            await reached
            return answer

        @tool
        async def book(context: ToolContext) -> object:
            found = await context.ask(InputRequired("Which day?", DAY))
            left.append(context.remaining() or 0.0)
            return None if found is None else dict(found)

        return await Runner([book], approve=approve, timeout=0.1, **options).run("book"), left[0]

    return go(main())


def test_the_deadline_stands_still_while_a_running_handler_asks() -> None:
    result, left = waiting(allow({"day": 3}))
    assert result.output == {"day": 3} and 0 < left <= 0.1


@pytest.mark.parametrize("answer", [False, deny("no"), ask("later"), allow({"day": "soon"}), object()])
def test_a_running_handler_is_told_nothing_where_nobody_answers(answer: object) -> None:
    result, _ = waiting(answer)
    assert (result.status, result.output) == ("ok", None)


async def test_after_the_answer_the_deadline_counts_again() -> None:
    async def main() -> ToolResult:
        @tool
        async def book(context: ToolContext) -> None:
            await context.ask(InputRequired("sure?"))
            await asyncio.Event().wait()

        return await Runner([book], approve=answering(True), timeout=0.05).run("book")

    assert (await main()).status == "timeout"


async def test_outside_a_call_nothing_can_be_asked() -> None:
    with pytest.raises(RuntimeError, match="inside a call"):
        await ToolContext().ask(InputRequired("?"))


# -- a runner with other tools -----------------------------------------------------------------------------------------


def test_a_runner_with_other_tools_shares_limits_and_records_and_tells_it() -> None:
    events: list[Event] = []

    @tool(description="Another one.")
    async def other() -> str:
        return "other"

    first = Runner([as_async()], approve=put_off, observers=[events.append])
    record = record_of(go(first.run("book", {"city": "Rome"})))
    events.clear()
    second = first.replace(tools=[as_async(), other])
    assert [event.kind for event in events] == ["tools:changed"]
    assert {key: events[0].data[key] for key in ("added", "removed", "changed")} == {
        "added": ["other"],
        "removed": [],
        "changed": [],
    }
    assert go(second.run("other")).output == "other" and go(first.run("other")).status == "not_found"
    assert go(second.resume(record, allow({"day": 2}))).success
    assert go(first.resume(record, allow({"day": 2}))).status == "invalid"


def test_it_is_told_by_name_which_tools_came_went_and_changed() -> None:
    events: list[Event] = []
    one, two, three = (tool(lambda: 1, name=name) for name in ("one", "two", "three"))
    first = Runner([one, two], observers=[events.append])
    first.replace(tools=[three, one.replace(description="Another one.")])
    assert {key: events[0].data[key] for key in ("added", "removed", "changed")} == {
        "added": ["three"],
        "removed": ["two"],
        "changed": ["one"],
    }


async def test_a_key_that_one_of_them_holds_is_held_for_both() -> None:
    async def main() -> list[str]:
        order: list[str] = []
        entered, leave = asyncio.Event(), asyncio.Event()

        @tool(resources=lambda arguments: ["door"])
        async def slow() -> None:
            entered.set()
            await leave.wait()
            order.append("slow")

        @tool(resources=lambda arguments: ["door"])
        async def quick() -> None:
            order.append("quick")

        first = Runner([slow])
        running = asyncio.ensure_future(first.run("slow"))
        await entered.wait()
        second = first.replace(tools=[quick])
        waits = asyncio.ensure_future(second.run("quick"))
        while not second.waiting:
            await asyncio.sleep(0)
        leave.set()
        await asyncio.gather(running, waits)
        return order

    assert (await main()) == ["slow", "quick"]


async def test_two_questions_at_once_hold_the_deadline_and_give_it_back() -> None:
    async def main() -> ToolResult:
        both, waiting = asyncio.Event(), []

        async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
            waiting.append(decision.reason)
            if len(waiting) == 2:
                both.set()
            await both.wait()
            return True

        @tool
        async def book(context: ToolContext) -> None:
            await asyncio.gather(context.ask(InputRequired("one?")), context.ask(InputRequired("two?")))
            await asyncio.Event().wait()

        return await Runner([book], approve=approve, timeout=0.1).run("book")

    assert (await main()).status == "timeout"


async def test_after_its_call_and_outside_of_its_handler_a_context_asks_nobody() -> None:
    kept: list[ToolContext] = []
    asked: list[str] = []

    async def main() -> list[object]:
        async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
            asked.append(decision.reason)
            return True

        @tool
        async def book(context: ToolContext) -> None:
            kept.append(context)

        async def guard(call: ToolCall, context: ToolContext) -> None:
            assert await context.ask(InputRequired("within a guard?")) is None

        assert (await Runner([book], approve=approve, guards=[guard]).run("book")).success
        return [await kept[0].ask(InputRequired("too late?"))]

    assert (await main()) == [None] and asked == []


@pytest.mark.parametrize("levels", [16, 40])
def test_an_output_schema_that_doubles_at_each_level_is_refused_where_it_is_defined(levels: int) -> None:
    twice = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**twice, f"a{levels}": {"type": "integer"}}}
    with pytest.raises(DefinitionError, match="the schema is too large"):
        tool(output_schema=schema)(as_plain)
