"""Guards: their forms, what their answers mean, and the arguments that they change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ConfigDict

from cast import Unreadable
from ferrule import (
    Decision,
    DefinitionError,
    GuardError,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolHandler,
    Toolset,
    allow,
    ask,
    deny,
    tool,
)
from ferrule.scheduling.clock import Cancellable, Clock
from waits import BOUND
from watched import Watch, run

CALL = ToolCall("c1", "double", {"n": 1})


def make_double(**options: Any) -> tuple[Tool, list[int]]:
    ran: list[int] = []

    async def double(n: int, pin: str = "") -> int:
        ran.append(n)
        return n * 2

    return tool(double, **options), ran


def judge(guards: Any, arguments: Any = None, **options: Any) -> tuple[Any, list[int], Watch]:
    """Run one call: its result, the numbers that the handler got, and what an observer saw."""
    double, ran = make_double()
    result, watch = run(double, "double", {"n": 1} if arguments is None else arguments, guards=guards, **options)
    assert len(watch.ends()) == 1
    assert bool(ran) is result.success
    return result, ran, watch


def saying(answer: Any) -> Any:
    """Return a guard with this answer; an exception is raised."""

    def guard(call: ToolCall, context: ToolContext) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return guard


def later(answer: Any) -> Any:
    """Return a guard that answers after a turn of the loop."""

    async def guard(call: ToolCall, context: ToolContext) -> Any:
        await asyncio.sleep(0)
        return saying(answer)(call, context)

    return guard


BOTH = pytest.mark.parametrize("form", [saying, later])


class Checks:
    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.seen: list[tuple[str, int]] = []

    def check(self, call: ToolCall, context: ToolContext) -> Any:
        self.seen.append((call.name, call.arguments["n"]))
        return self.answer


class ChecksLater(Checks):
    async def check(self, call: ToolCall, context: ToolContext) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().check(call, context)


class ChecksArguments(Checks):
    def check(self, tool: Tool, **arguments: Any) -> Any:  # type: ignore[override]
        self.seen.append((tool.name, arguments["n"]))
        return self.answer


@pytest.mark.parametrize("form", [Checks, ChecksLater, ChecksArguments])
def test_check_is_called_by_its_signature_and_may_return_a_bool(form: Any) -> None:
    for answer, status in ((None, "ok"), (True, "ok"), (allow(), "ok"), (deny("no"), "denied"), (False, "denied")):
        guard = form(answer)
        assert judge([guard])[0].status == status
        assert guard.seen == [("double", 1)]
    for odd in (1, "yes", []):
        result = judge([form(odd)])[0]
        assert result.status == "denied"
        assert "a check must return True, None or allow() to permit a call" in str(result.error)


def test_a_check_may_have_options_and_must_be_a_function() -> None:
    class Lenient:
        def check(self, call: ToolCall, context: ToolContext, *, strict: bool = False) -> Decision:
            return deny(f"{call.name} {strict}")

    class Called:
        check = True

        def __call__(self, call: ToolCall, context: ToolContext) -> Decision:
            return deny("it was called")

    for guard, reason in ((Lenient(), "double False"), (Called(), "it was called")):
        result = judge([guard])[0]
        assert result.status == "denied" and reason in str(result.error)

    class TakesThree:
        def check(self, a: Any, b: Any, c: Any) -> None: ...

    with pytest.raises(DefinitionError, match=r"must have .* not check"):
        judge([TakesThree()])
    for guard in (Called, Checks):
        with pytest.raises(DefinitionError, match=rf"is a class; give an instance of it: {guard.__name__}"):
            judge([guard])


class Shout(ToolHandler):
    """Say it."""

    model_config = ConfigDict(extra="allow")
    text: str

    async def __call__(self) -> str:
        return f"{self.text} {self.model_extra}"


@pytest.mark.parametrize("slow", [False, True])
def test_a_guard_of_an_instance_may_change_fields_and_remove_keys(slow: bool) -> None:
    class Fixes:
        def check(self, handler: Shout) -> Any:
            handler.text = handler.text.strip()
            assert handler.model_extra is not None
            handler.model_extra.pop("force", None)

    class FixesLater:
        async def check(self, handler: Shout) -> Shout:
            Fixes().check(handler)
            return handler

    class Refuses:
        def check(self, handler: Shout) -> None:
            raise GuardError(f"not {handler.text!r}")

    shout, fix, sent = tool(Shout, name="shout"), FixesLater() if slow else Fixes(), {"text": " hi ", "x": 1}
    assert run(shout, "shout", {**sent, "force": True}, guards=[fix])[0].output == "hi {'x': 1}"
    result, _ = run(shout, "shout", sent, guards=[fix, Refuses()])
    assert result.status == "denied" and "not 'hi'" in str(result.error)


STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}


@given(st.lists(st.sampled_from(["none", "allow", "ask", "deny"]), max_size=5), st.booleans())
def test_the_strictest_guard_wins_whatever_the_order(answers: list[str], slow: bool) -> None:
    values = {"none": None, "allow": allow(), "ask": ask("really?"), "deny": deny("no")}
    guards = [(later if slow else saying)(values[answer]) for answer in answers]
    strictest = max((STRICTNESS.get(answer, 0) for answer in answers), default=0)
    assert judge(guards)[0].status == ("ok" if strictest == 0 else "denied")
    asked: list[str] = []
    approve = lambda call, decision, context: not asked.append(decision.reason)  # noqa: E731
    assert judge(guards, approve=approve)[0].status == ("denied" if strictest == 2 else "ok")
    assert asked == (["really?"] if strictest == 1 else [])


@BOTH
@pytest.mark.parametrize("answer", [0, "allow", True, False, [], Decision])
def test_any_other_answer_of_a_guard_denies_and_the_log_lists_the_forms(
    answer: Any, form: Any, caplog: pytest.LogCaptureFixture
) -> None:
    result = judge([form(answer)])[0]
    listed = f"answered with {type(answer).__name__}, and has to answer None, allow(), ask(reason), deny(reason)"
    assert result.status == "denied" and listed in caplog.text
    assert type(answer).__name__ not in str(result.error)


@BOTH
@pytest.mark.parametrize("kind", [ValueError, SystemExit, asyncio.CancelledError, StopIteration, TimeoutError])
def test_a_guard_that_raises_denies_and_tells_the_model_nothing(kind: type[BaseException], form: Any) -> None:
    result = judge([form(kind("secret"))])[0]
    assert (result.status, result.executed) == ("denied", False)
    assert "secret" not in str(result.error)


async def cancel_itself(call: ToolCall, context: ToolContext) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


LOOPED: dict[str, Any] = {"n": 1}
LOOPED["pin"] = LOOPED


@pytest.mark.parametrize("answer", [None, LOOPED, Unreadable(RuntimeError()), Unreadable(asyncio.CancelledError())])
async def test_a_guard_that_cancels_itself_or_answers_unreadable_data_denies(answer: Any) -> None:
    (double, ran), watch = make_double(), Watch()
    runner = Runner([double], guards=[cancel_itself if answer is None else saying(answer)], observers=[watch])
    result = await runner.run(CALL)
    assert (result.status, result.executed, ran) == ("denied", False, [])
    assert watch.kinds() == ["tool:pre", "tool:decided", "tool:error"]
    assert (await runner.decide(CALL)).kind == "deny"


class OverLimit(Exception):
    """An error of a foreign policy."""


class OfTool:
    def check(self, tool: Tool, **arguments: Any) -> None:
        raise OverLimit(f"token=abc over the limit of hunter22 {'x' * 1000}")


async def test_the_error_of_a_foreign_guard_is_a_bounded_reason_without_secrets(caplog: Any) -> None:
    runner = Runner([make_double()[0]], guards=[OfTool()], secrets={"password": "hunter22"})
    result = await runner.run(CALL)
    said = str(result.error)
    assert (result.status, result.executed) == ("denied", False)
    assert said.startswith("Denied: token=*** over the limit of ********** xxx") and len(said) < 550
    (record,) = caplog.records
    assert "raised" in record.getMessage() and "OverLimit" in record.getMessage()
    assert "hunter22" not in record.getMessage()


async def test_a_guard_that_answers_exactly_at_its_deadline_is_late() -> None:
    class Alarm(Clock):
        time = staticmethod(lambda: 0.0)

        def call_at(self, when: float, callback: Callable[..., object], /, *arguments: Any) -> Cancellable:
            self.ring = partial(callback, *arguments)
            return asyncio.get_running_loop().call_later(BOUND, self.ring)

    clock = Alarm()

    async def slow(call: ToolCall, context: ToolContext) -> None:
        woken = asyncio.Event()

        def wake_at_deadline() -> None:  # in one turn of the loop, as under load
            woken.set()
            clock.ring()

        asyncio.get_running_loop().call_soon(wake_at_deadline)
        await woken.wait()

    double, ran = make_double()
    result = await Runner([double], guards=[slow], clock=clock).run(CALL)
    assert (result.status, ran) == ("denied", []) and "in time" in str(result.error)


@pytest.mark.parametrize("form", [allow, dict])
def test_every_guard_judges_changed_arguments_again(form: Any) -> None:
    seen: list[tuple[str, int]] = []

    def note(name: str, answer: Any = None) -> Any:
        return lambda call, context: seen.append((name, call.arguments["n"])) or answer

    result, ran, _ = judge([note("first"), note("changes", form({"n": 21})), note("last")])
    assert (result.output, ran) == (42, [21])
    assert seen == [("first", 1), ("changes", 1), ("first", 21), ("changes", 21), ("last", 21)]


def test_guards_that_keep_changing_the_arguments_deny() -> None:
    asked: list[int] = []

    def counts_up(call: ToolCall, context: ToolContext) -> dict[str, Any]:
        asked.append(call.arguments["n"])
        return {"n": call.arguments["n"] + 1}

    result = judge([counts_up, lambda call, context: {"n": call.arguments["n"] - 1}])[0]
    assert result.status == "denied" and "counts_up" in str(result.error)
    assert len(asked) <= 8


def grow(items: list[int]) -> None:
    """Add an item."""
    items.append(99)


ARRAY = {"type": "object", "properties": {"items": {"type": "array"}}}
GROWS = Tool("grow", lambda payload: grow(payload["items"]), input_schema=ARRAY, description="Grow.")


@pytest.mark.parametrize("made", [tool(grow), GROWS], ids=["function", "schema"])
def test_a_handler_cannot_change_what_guards_and_observers_saw(made: Tool) -> None:
    calls: list[ToolCall] = []
    sent = {"items": [1]}
    result, watch = run(made, "grow", sent, guards=[lambda call, context: calls.append(call)])
    assert result.success, result.error
    assert calls[-1].arguments == watch.events[-1].data["input"] == sent == {"items": [1]}


@pytest.mark.parametrize("change", [{"arguments": {"n": 5}}, {"id": "other"}, {"name": "other"}])
@pytest.mark.parametrize("timeout", [None, BOUND])
def test_middleware_inside_cannot_swap_the_judged_call(change: Any, timeout: float | None) -> None:
    async def swaps(call: ToolCall, context: ToolContext, next: Any) -> Any:
        return await next(call.replace(**change), context)

    result, ran, _ = judge([], inside=[swaps], timeout=timeout)
    assert (result.status, result.executed, ran) == ("failed", False, [])


def make_pay() -> tuple[Tool, list[str]]:
    got: list[str] = []

    @tool(private=("pin",))
    async def pay(amount: int, pin: str) -> None:
        got.append(pin)

    return pay, got


def test_the_model_neither_sees_nor_fills_a_private_or_bound_parameter() -> None:
    async def fills(call: ToolCall, context: ToolContext, next: Any) -> Any:
        return await next(call.replace(arguments={**call.arguments, "pin": "0000"}), context)

    pay, got = make_pay()
    assert "pin" not in str(pay.input_schema)
    for tools in ([pay], [Toolset([pay]).bind(pin="bound")]):
        assert run(tools, "pay", {"amount": 1, "pin": "0000"})[0].status == "invalid"
        assert run(tools, "pay", {"amount": 1}, around=[fills])[0].status == "invalid"
    assert got == []


def test_only_bind_a_guard_or_a_person_fills_a_private_parameter() -> None:
    pay, got = make_pay()
    assert run(pay, "pay", {"amount": 1})[0].status == "denied"
    assert run(pay.bind(pin="bound"), "pay", {"amount": 1})[0].success
    guard = lambda call, context: {**call.arguments, "pin": "guard"}  # noqa: E731
    assert run(pay, "pay", {"amount": 1}, guards=[guard])[0].success
    asks = lambda call, context: ask("your PIN?", into="pin")  # noqa: E731
    person = lambda call, decision, context: allow({decision.into: "person"})  # noqa: E731
    assert run(pay, "pay", {"amount": 1}, guards=[asks], approve=person)[0].success
    assert run(pay, "pay", {"amount": 1}, guards=[asks], approve=lambda *rest: True)[0].status == "denied"
    assert got == ["bound", "guard", "person"]


async def test_decide_returns_what_the_guards_would_say_and_runs_nothing() -> None:
    (double, ran), watch = make_double(), Watch()

    async def decide(*guards: Any, call: ToolCall = CALL) -> Decision:
        return await Runner([double], guards=guards, observers=[watch], approve=lambda *rest: True).decide(call)

    assert (await decide()).kind == "allow"
    assert await decide(later(ask("q")), saying(None)) == ask("q")
    assert await decide(saying(ask("q")), saying(deny("d"))) == deny("d")
    assert (await decide(saying(7))).kind == "deny"
    changed = await decide(saying({"n": 3}))
    assert changed.kind == "allow" and changed.arguments is not None and changed.arguments["n"] == 3
    wrong = [ToolCall("c1", "nothing"), CALL.replace(arguments="{"), CALL.replace(arguments={"n": "x"})]
    for call in (*wrong, CALL.replace(problem="cut off")):
        assert (await decide(call=call)).kind == "deny"
    assert ran == [] and watch.events == []
    assert (await Runner([make_pay()[0]]).decide(ToolCall("c1", "pay", {"amount": 1}))).kind == "deny"


def by_rule(decision: Decision, rule: str) -> Any:
    """Return a guard that answers by a rule."""
    return saying(Decision(decision.kind, decision.reason, rule=rule))


def decisions(watch: Watch) -> list[tuple[str, str | None, str | None]]:
    """Return the decisions of the events: kind, rule and person."""
    found = [event.data["decision"] for event in watch.events if event.kind == "tool:decided"]
    return [(one.kind, one.rule, one.by) for one in found]


def test_events_name_the_rules_by_which_guards_allow() -> None:
    allowed = judge([saying(None), by_rule(allow(), "a:1"), later(None), by_rule(allow(), "b:2")])[2]
    assert decisions(allowed) == [("allow", "a:1; b:2", None)]
    asked = judge([by_rule(allow(), "a:1"), by_rule(ask("q"), "b:2")])[2]
    assert decisions(asked) == [("ask", "b:2", None), ("deny", "b:2", None)]


async def test_events_after_an_answer_name_the_rule_and_the_person() -> None:
    watch, answers = Watch(), [Decision("allow", by="ada", rule="grant 1"), deny("no"), ask("later")]
    options: Any = {"observers": [watch], "approve": lambda *rest: answers.pop(0)}
    runner = Runner([make_double()[0]], guards=[by_rule(ask("q"), "a:1")], **options)
    for _ in range(3):
        suspended = await runner.run("double", {"n": 1})
    assert (await runner.resume(suspended.record(), True, by="ada")).success
    answered = [one for one in decisions(watch) if one[0] != "ask"]
    assert answered == [("allow", "grant 1", "ada"), ("deny", "a:1", None), ("allow", "a:1", "ada")]
