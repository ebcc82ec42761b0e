"""A handler that needs input from a person."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cast import put_off
from ferrule import (
    Decision,
    DefinitionError,
    InputRequired,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolHandler,
    ToolResult,
    allow,
    ask,
    deny,
    tool,
)
from ferrule.journal import memory
from ferrule.testing import ManualClock
from ferrule.types import Next
from gates import Gate
from waits import until
from watched import go

KEY = b"k" * 32
DAY = {"type": "object", "properties": {"day": {"type": "integer", "minimum": 1}}, "required": ["day"]}


def ask_day(city: str, context: ToolContext, state: Any = None) -> Any:
    """Ask for a day at first, then return it with the state."""
    if context.answer is None:
        return InputRequired("Which day?", DAY, {"city": city} if state is None else state)
    return f"{city} {context.answer.value['day']} {json.dumps(context.answer.state, sort_keys=True)}"


@tool
async def book(city: str, context: ToolContext) -> str:
    return ask_day(city, context)  # type: ignore[no-any-return]


class Book(ToolHandler):
    city: str

    async def __call__(self, context: ToolContext) -> str:
        return ask_day(self.city, context)  # type: ignore[no-any-return]


def blocking(payload: Any, context: ToolContext) -> Any:
    return ask_day(payload["city"], context)


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORMS = {
    "async": book,
    "class": Tool(name="book", handler=Book, description="Book."),
    "blocking": Tool("book", blocking, input_schema=SCHEMA, description="Book."),
}


async def run_book(answer: object, made: Tool = book, **options: Any) -> ToolResult:
    """Run the tool with an approver that gives this answer."""
    return await Runner([made], approve=lambda *_: answer, **options).run("book", {"city": "Rome"})


async def suspend(made: Tool = book) -> dict[str, Any]:
    """Suspend a call and return its record as another process reads it."""
    result = await Runner([made], approve=put_off, resume_key=KEY).run("book", {"city": "Rome"})
    assert (result.status, result.executed) == ("suspended", None)
    return json.loads(json.dumps(result.record(), allow_nan=False))  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", FORMS)
async def test_a_handler_goes_on_with_the_answer(form: str) -> None:
    result = await run_book(allow({"day": 5}), FORMS[form])
    assert (result.status, result.output, result.executed) == ("ok", 'Rome 5 {"city": "Rome"}', True)


@pytest.mark.parametrize("form", FORMS)
async def test_a_suspended_handler_goes_on_in_another_process(form: str) -> None:
    record = await suspend(FORMS[form])
    pending = record["pending"]
    assert (pending["kind"], pending["reason"]) == ("input", "Which day?")
    assert (pending["schema"], pending["state"]) == (DAY, {"city": "Rome"})
    other = Runner([FORMS[form]], resume_key=KEY)
    assert (await other.resume(record, allow({"day": 7}))).output == 'Rome 7 {"city": "Rome"}'


STATES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(STATES.filter(lambda state: state is not None), st.integers(1, 2**53))
def test_a_handler_gets_its_state_and_the_answer_back_unchanged(state: Any, day: int) -> None:
    @tool
    async def book(city: str, context: ToolContext) -> str:
        return ask_day(city, context, state)  # type: ignore[no-any-return]

    expected = f"Rome {day} {json.dumps(state, sort_keys=True)}"
    assert go(run_book(allow({"day": day}), book)).output == expected
    record = go(suspend(book))
    assert go(Runner([book], resume_key=KEY).resume(record, allow({"day": day}))).output == expected


async def test_the_approver_sees_the_schema_of_a_handlers_question_only() -> None:
    seen: list[Decision] = []

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        seen.append(decision)
        return allow(None if decision.schema is None else {"day": 1})

    runner = Runner([book], approve=approve, guards=[lambda call, context: ask("may it?")])
    assert (await runner.run("book", {"city": "Rome"})).success
    assert [(decision.reason, decision.schema) for decision in seen] == [("may it?", None), ("Which day?", DAY)]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (allow({"day": 0}), "minimum"),
        (allow({"day": 1, "hour": 2}), "hour"),
        (True, "the question wants 'day', and the answer was a plain yes"),
        (deny("not today"), "not today"),
        (False, "refused"),
    ],
)
async def test_an_answer_that_does_not_fit_denies(answer: object, error: str) -> None:
    ran: list[object] = []

    @tool
    async def book(city: str, context: ToolContext) -> str:
        ran.append(context.answer)
        return ask_day(city, context)  # type: ignore[no-any-return]

    result = await run_book(answer, book)
    assert (result.status, ran) == ("denied", [None])
    assert error in str(result.error) and "Nothing was run" not in str(result.error)


@pytest.mark.parametrize("schema", [{"properties": {"a": {"type": "nonsense"}}}, {"type": "string"}])
@pytest.mark.parametrize("is_running", [False, True])
async def test_nobody_is_asked_a_question_with_an_invalid_schema(
    is_running: bool, schema: Any, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    @tool
    async def book(context: ToolContext) -> object:
        question = InputRequired("?", schema)
        return await context.ask(question) if is_running else question

    result = await Runner([book], approve=lambda *question: asked.append(question)).run("book", {})
    assert result.status == "failed" and isinstance(result.exception, DefinitionError) and not asked
    assert "InputRequired(schema=…)" in caplog.text


async def run_twice(call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
    await next(call, context)
    return await next(call, context)


def make_claim(executed: bool | None = None, *, fails_first: bool = False) -> Tool:
    """Return a tool that asks, and does nothing after the answer; it may do something in an earlier run."""
    runs = 0

    @tool
    async def claim(context: ToolContext) -> str | InputRequired:
        nonlocal runs
        runs += 1
        if fails_first and runs == 1:
            raise ToolError("One half was done.")
        if context.answer is None:
            return InputRequired("Which day?", DAY, executed=executed)
        raise ToolError("The person stopped.", executed=False)

    return claim


@pytest.mark.parametrize("is_resumed", [False, True])
async def test_a_call_that_did_something_before_it_asked_runs_once(is_resumed: bool) -> None:
    effects = []

    @tool
    async def reserve(context: ToolContext) -> str | InputRequired:
        if context.answer is None:
            effects.append("reserved")
            return InputRequired("Which day?", DAY)
        raise ToolError("The shop cannot be reached.", executed=False)

    approve = put_off if is_resumed else lambda *_: allow({"day": 1})
    runner = Runner([reserve], approve=approve, journal=memory(), resume_key=KEY)
    call = ToolCall("c1", "reserve", {})
    result = await runner.run(call, session="s")
    if is_resumed:
        result = await runner.resume(result.record(), allow({"day": 1}))
    assert (result.status, result.executed) == ("failed", None)
    assert (await runner.run(call, session="s")).executed is None and effects == ["reserved"]


@pytest.mark.parametrize(
    ("said", "fails_first", "executed"), [(None, False, None), (False, False, False), (False, True, None)]
)
async def test_a_no_says_that_nothing_was_done_only_if_the_question_says_it(
    said: bool | None, fails_first: bool, executed: bool | None
) -> None:
    made = make_claim(said, fails_first=fails_first)
    around = [run_twice] if fails_first else []
    denied = await Runner([made], approve=lambda *_: deny("no time"), around=around).run("claim", {})
    assert (denied.status, denied.executed) == ("denied", executed)
    assert ("may have happened" in str(denied.error)) is (executed is None)

    made = make_claim(said, fails_first=fails_first)
    suspended = await Runner([made], approve=put_off, resume_key=KEY, around=around).run("claim", {})
    resumed = await Runner([made], resume_key=KEY).resume(json.loads(json.dumps(suspended.record())), False)
    assert (resumed.status, suspended.executed, resumed.executed) == ("denied", executed, executed)


@pytest.mark.parametrize("running", [5, 40])
async def test_one_call_asks_at_most_16_times(running: int) -> None:
    asked: list[str] = []

    @tool
    async def endless(context: ToolContext) -> InputRequired:
        for _ in range(running if context.answer is None else 0):
            await context.ask(InputRequired("while it runs?"))
        return InputRequired("and now?")

    approve = lambda call, decision, context: not asked.append(decision.reason)  # noqa: E731
    result = await Runner([endless], approve=approve).run("endless")
    assert (result.status, result.executed) == ("failed", None) and "more than 16 times" in str(result.error)
    assert len(asked) == 16 and asked.count("while it runs?") == min(running, 16)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: InputRequired(""), "question"),
        (lambda: InputRequired("?", ["day"]), "JSON Schema"),  # type: ignore[arg-type]
        (lambda: InputRequired("?", state=object()), "plain JSON"),
    ],
)
def test_an_invalid_question_is_refused_at_once(make: Callable[[], object], error: str) -> None:
    with pytest.raises(DefinitionError, match=error):
        make()


@pytest.mark.parametrize("answer", [allow({"day": 3}), False, ask("later"), allow({"day": "soon"}), object()])
async def test_the_deadline_pauses_while_a_running_handler_asks(answer: object) -> None:
    clock, left = ManualClock(), []

    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> object:
        await clock.advance(20)
        return answer

    @tool
    async def book(context: ToolContext) -> object:
        found = await context.ask(InputRequired("Which day?", DAY))
        left.append(context.remaining())
        return None if found is None else dict(found)

    result = await Runner([book], approve=approve, timeout=10, clock=clock).run("book")
    assert (result.status, left) == ("ok", [10])
    assert result.output == ({"day": 3} if answer == allow({"day": 3}) else None), "None if nobody answers"


async def test_the_deadline_goes_on_after_two_concurrent_questions() -> None:
    clock, asked, both, answered = ManualClock(), [], asyncio.Event(), asyncio.Event()

    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        asked.append(decision.reason)
        if len(asked) == 2:
            both.set()
        await both.wait()
        return True

    @tool
    async def book(context: ToolContext) -> None:
        await asyncio.gather(context.ask(InputRequired("one?")), context.ask(InputRequired("two?")))
        answered.set()
        await asyncio.Event().wait()

    call = asyncio.ensure_future(Runner([book], approve=approve, timeout=10, clock=clock).run("book"))
    await answered.wait()
    await clock.advance(10)
    assert (await call).status == "timeout"


async def test_a_context_asks_nobody_outside_its_handler() -> None:
    contexts: list[ToolContext] = []
    asked: list[str] = []

    @tool
    async def book(context: ToolContext) -> None:
        contexts.append(context)

    async def guard(call: ToolCall, context: ToolContext) -> None:
        assert await context.ask(InputRequired("within a guard?")) is None

    approve = lambda call, decision, context: not asked.append(decision.reason)  # noqa: E731
    assert (await Runner([book], approve=approve, guards=[guard]).run("book")).success
    assert await contexts[0].ask(InputRequired("too late?")) is None and asked == []
    with pytest.raises(RuntimeError, match="inside a call"):
        await ToolContext().ask(InputRequired("?"))


async def test_a_replacement_shares_the_keys_that_calls_hold() -> None:
    gate = Gate(resources=lambda arguments: ["door"])
    quick = tool(gate.open.is_set, name="quick", description="Look.", resources=lambda arguments: ["door"])
    first = Runner([gate.tool])
    running = asyncio.ensure_future(first.run("wait"))
    await gate.inside.wait()
    second = first.replace(tools=[quick])
    waits = asyncio.ensure_future(second.run("quick"))
    await until(lambda: second.waiting)
    gate.open.set()
    assert (await running).success and (await waits).output is True
