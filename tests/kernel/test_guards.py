"""Guards: the stricter wins, whatever breaks denies, and what was judged is what runs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

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
    build_tool,
    deny,
    tool,
)
from ferrule.kernel import tasks
from ferrule.scheduling.clock import Cancellable, Clock
from waits import BOUND
from watched import Watch, go, run


class Ran:
    """A tool that remembers what it was run with."""

    def __init__(self, **options: Any) -> None:
        self.with_: list[int] = []

        async def double(n: int, pin: str = "") -> int:
            self.with_.append(n)
            return n * 2

        self.tool = tool(double, **options)


def judged(guards: Any, arguments: Any = None, **options: Any) -> tuple[Any, list[int], Watch]:
    ran = Ran()
    result, watch = run(ran.tool, "double", {"n": 1} if arguments is None else arguments, guards=guards, **options)
    assert len(watch.ends()) == 1
    assert bool(ran.with_) is result.success
    return result, ran.with_, watch


def saying(answer: Any) -> Any:
    return lambda call, context: answer


def later(answer: Any) -> Any:
    async def guard(call: ToolCall, context: ToolContext) -> Any:
        await asyncio.sleep(0)
        return answer

    return guard


# -- the forms -------------------------------------------------------------------------------------------------------


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


class ChecksArguments:
    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.seen: list[Any] = []

    def check(self, tool: Tool, **arguments: Any) -> Any:
        self.seen.append((tool.name, arguments["n"]))
        return self.answer


class ChecksArgumentsLater(ChecksArguments):
    async def check(self, tool: Tool, **arguments: Any) -> Any:  # type: ignore[override]
        return super().check(tool, **arguments)


@pytest.mark.parametrize("form", [Checks, ChecksLater, ChecksArguments, ChecksArgumentsLater])
def test_a_guard_with_check_is_asked_by_its_signature_and_may_answer_by_a_bool(form: Any) -> None:
    for answer, status in ((None, "ok"), (True, "ok"), (allow(), "ok"), (deny("no"), "denied"), (False, "denied")):
        guard = form(answer)
        result, _, _ = judged([guard])
        assert result.status == status
        assert guard.seen == [("double", 1)]
    for odd in (1, "yes", []):
        said = "a check must return True, None or allow() to permit a call"
        result, _, _ = judged([form(odd)])
        assert (result.status, said in str(result.error)) == ("denied", True)


class Shout(ToolHandler):
    """Say it."""

    text: str
    at: list[int] = Field(default_factory=lambda: [next(_numbers)])

    async def __call__(self) -> str:
        return f"{self.text} {self.at}"


_numbers = itertools.count()


def test_a_check_of_call_and_context_may_have_options_of_its_own() -> None:
    class Lenient:
        def check(self, call: ToolCall, context: ToolContext, *, strict: bool = False) -> Decision:
            return deny(f"{call.name} {strict}")

    result, _, _ = judged([Lenient()])
    assert (result.status, "double False" in str(result.error)) == ("denied", True)


def test_a_check_that_is_no_function_is_no_form_of_a_guard() -> None:
    class Says:
        check = True

        def __call__(self, call: ToolCall, context: ToolContext) -> Decision:
            return deny("says no")

    result, _, _ = judged([Says()])
    assert (result.status, "says no" in str(result.error)) == ("denied", True)


def test_a_class_in_the_place_of_a_guard_is_refused_by_the_runner() -> None:
    class Called:
        def __call__(self, call: ToolCall, context: ToolContext) -> None: ...

    for guard in (Called, Checks):
        with pytest.raises(DefinitionError, match=rf"is a class; give an instance of it: {guard.__name__}"):
            judged([guard])


class Open(ToolHandler):
    """Take anything."""

    model_config = ConfigDict(extra="allow")
    text: str

    async def __call__(self) -> str:
        return f"{self.text} {self.model_extra}"


def test_a_guard_of_an_instance_may_take_away_what_was_not_declared() -> None:
    class Cleans:
        def check(self, handler: Open) -> None:
            assert handler.model_extra is not None
            handler.model_extra.pop("force", None)

    result, _ = run(tool(Open, name="open"), "open", {"text": "a", "force": True, "x": 1}, guards=[Cleans()])
    assert result.output == "a {'x': 1}"


@pytest.mark.parametrize("slow", [False, True])
def test_a_guard_of_an_instance_may_change_its_fields(slow: bool) -> None:
    class Fixes:
        def check(self, handler: Shout) -> None:
            handler.text = handler.text.strip()

    class FixesLater:
        async def check(self, handler: Shout) -> Shout:
            handler.text = handler.text.strip()
            return handler

    class Refuses:
        def check(self, handler: Shout) -> None:
            raise GuardError(f"not {handler.text!r}")

    fix = FixesLater() if slow else Fixes()
    result, _ = run(tool(Shout, name="shout"), "shout", {"text": " hi ", "at": [0]}, guards=[fix])
    assert result.output == "hi [0]"
    result, _ = run(tool(Shout, name="shout"), "shout", {"text": " hi ", "at": [0]}, guards=[fix, Refuses()])
    assert (result.status, "not 'hi'" in str(result.error)) == ("denied", True)


def test_a_default_that_is_made_is_made_once_and_everybody_sees_the_same() -> None:
    seen: list[Any] = []

    class Looks:
        def check(self, handler: Shout) -> None:
            seen.append(list(handler.at))

    def guard(call: ToolCall, context: ToolContext) -> None:
        seen.append(list(call.arguments["at"]))

    tries: list[Any] = []

    async def twice(call: ToolCall, context: ToolContext, next: Any) -> Any:
        tries.append((await next(call, context)).output)
        return await next(call, context)

    result, _ = run(tool(Shout, name="shout"), "shout", {"text": "a"}, guards=[guard, Looks()], inside=[twice])
    assert {str(at) for at in seen} == {result.output.removeprefix("a ")}
    assert tries == [result.output]


# -- what answers mean -----------------------------------------------------------------------------------------------

STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}


@given(st.lists(st.sampled_from(["none", "allow", "ask", "deny"]), max_size=5), st.booleans())
def test_the_strictest_guard_wins_whatever_the_order(answers: list[str], slow: bool) -> None:
    values = {"none": None, "allow": allow(), "ask": ask("really?"), "deny": deny("no")}
    form = later if slow else saying
    guards = [form(values[answer]) for answer in answers]
    strictest = max((STRICTNESS.get(answer, 0) for answer in answers), default=0)
    result, _, _ = judged(guards)
    assert result.status == ("ok" if strictest == 0 else "denied")
    asked: list[str] = []

    def approver(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        asked.append(decision.reason)
        return True

    result, _, _ = judged(guards, approve=approver)
    assert result.status == ("denied" if strictest == 2 else "ok")
    assert asked == (["really?"] if strictest == 1 else [])


@pytest.mark.parametrize("form", [saying, later])
@pytest.mark.parametrize("answer", [0, 1, "", "allow", True, False, object(), [], Decision, ["n"], float("nan")])
def test_an_answer_that_is_none_of_the_forms_denies_and_says_which_there_are(answer: Any, form: Any) -> None:
    result, _, _ = judged([form(answer)])
    said = f"a guard answered with {type(answer).__name__}, and has to answer None, allow(), ask(reason), deny(reason)"
    assert (result.status, said in str(result.error)) == ("denied", True)


BREAKING = [ValueError("x"), SystemExit(1), asyncio.CancelledError(), StopIteration(), BaseException(), TimeoutError()]


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("error", BREAKING)
def test_a_guard_that_breaks_denies_and_tells_the_model_nothing(error: BaseException, slow: bool) -> None:
    def breaks(call: ToolCall, context: ToolContext) -> None:
        raise type(error)("secret")

    async def breaks_later(call: ToolCall, context: ToolContext) -> None:
        await asyncio.sleep(0)
        raise type(error)("secret")

    result, _, _ = judged([breaks_later if slow else breaks])
    assert (result.status, result.executed) == ("denied", False)
    assert "secret" not in str(result.error)


class Broken(Mapping[str, Any]):
    """Arguments that raise when they are read."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getitem__(self, key: str) -> Any:
        raise self.error

    def __iter__(self) -> Iterator[str]:
        raise self.error

    def __len__(self) -> int:
        return 1


async def cancels_itself(call: ToolCall, context: ToolContext) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@pytest.mark.parametrize(
    "guard", [cancels_itself, *(saying(Broken(error)) for error in (asyncio.CancelledError(), SystemExit(3)))]
)
def test_a_guard_that_cancels_itself_or_answers_what_cannot_be_read_denies(guard: Any) -> None:
    result, _, watch = judged([guard])
    assert (result.status, result.executed) == ("denied", False)
    assert watch.kinds() == ["tool:pre", "tool:decided", "tool:error"]
    runner = Runner([Ran().tool], guards=[guard])
    assert go(runner.decide(ToolCall("c1", "double", {"n": 1}))).kind == "deny"


class OverLimit(Exception):
    """What somebody else's policy raises."""


class OfTool:
    def check(self, tool: Tool, **arguments: Any) -> None:
        raise OverLimit(f"token=abc over the limit of hunter22 {'x' * 1000}")


class OfInstance:
    async def check(self, handler: Any) -> None:
        OfTool().check(handler)


class Double(ToolHandler):
    n: int

    async def __call__(self) -> int:
        return self.n * 2


@pytest.mark.parametrize("guard", [OfTool(), OfInstance()])
async def test_what_a_guard_of_others_raises_is_the_reason_bounded_and_without_secrets(
    guard: Any, caplog: pytest.LogCaptureFixture
) -> None:
    runner = Runner([tool(Double)], guards=[guard], secrets={"password": "hunter22"})
    result = await runner.run("double", {"n": 1})
    said = str(result.error)
    assert (result.status, result.executed) == ("denied", False)
    assert said.startswith("Denied: token=*** over the limit of ********** xxx") and len(said) < 550
    (record,) = caplog.records
    assert "raised" in record.getMessage() and "OverLimit" in record.getMessage()
    assert "hunter22" not in record.getMessage()


@pytest.mark.parametrize("slow", [False, True])
def test_the_text_of_a_guard_error_is_the_reason(slow: bool) -> None:
    def breaks(call: ToolCall, context: ToolContext) -> None:
        raise GuardError("only on weekdays")

    async def breaks_later(call: ToolCall, context: ToolContext) -> None:
        raise GuardError("only on weekdays")

    result, _, _ = judged([breaks_later if slow else breaks])
    assert result.status == "denied" and "only on weekdays" in str(result.error)


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_guard_that_is_late_denies_and_is_not_waited_for(monkeypatch: Any, stubborn: bool) -> None:
    monkeypatch.setattr(tasks, "ANSWER_SECONDS", 0.02)
    let_go: list[asyncio.Event] = []

    async def slow(call: ToolCall, context: ToolContext) -> None:
        let_go.append(asyncio.Event())
        while True:
            try:
                await let_go[0].wait()
                return
            except asyncio.CancelledError:
                if not stubborn:
                    raise

    ran = Ran()
    result = await Runner([ran.tool], guards=[slow]).run("double", {"n": 1})
    assert (result.status, ran.with_) == ("denied", [])
    let_go[0].set()


async def test_a_guard_that_is_woken_at_its_very_deadline_is_late_and_not_broken() -> None:
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

    ran = Ran()
    result = await Runner([ran.tool], guards=[slow], clock=clock).run("double", {"n": 1})
    assert (result.status, ran.with_) == ("denied", []) and "in time" in str(result.error)


async def test_a_cancellation_from_outside_reaches_through_a_guard() -> None:
    started = asyncio.Event()
    watch = Watch()

    async def waits(call: ToolCall, context: ToolContext) -> None:
        started.set()
        await asyncio.Event().wait()

    async def main() -> None:
        ran = Ran()
        task = asyncio.create_task(Runner([ran.tool], guards=[waits], observers=[watch]).run("double", {"n": 1}))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await Runner([ran.tool], guards=[waits]).run("double", {"n": 1})
        assert ran.with_ == []

    await main()
    assert watch.ends() == ["tool:error"]


# -- changed arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [allow, dict])
def test_a_guard_may_change_arguments_and_every_guard_judges_them_again(form: Any) -> None:
    seen: list[tuple[str, int]] = []

    def first(call: ToolCall, context: ToolContext) -> None:
        seen.append(("first", call.arguments["n"]))

    def changes(call: ToolCall, context: ToolContext) -> Any:
        seen.append(("changes", call.arguments["n"]))
        return form({"n": 21})

    def last(call: ToolCall, context: ToolContext) -> None:
        seen.append(("last", call.arguments["n"]))

    result, ran, _ = judged([first, changes, last])
    assert ran == [21]
    assert result.output == 42
    assert seen == [("first", 1), ("changes", 1), ("first", 21), ("changes", 21), ("last", 21)]


def test_changed_arguments_do_not_go_round_a_guard_that_said_yes_before() -> None:
    def small_only(call: ToolCall, context: ToolContext) -> Decision | None:
        return deny("too large") if call.arguments["n"] > 10 else None

    assert judged([small_only, saying({"n": 11})])[0].status == "denied"
    assert judged([small_only, later({"n": 11})])[0].status == "denied"


@pytest.mark.parametrize(
    "arguments",
    [
        {"n": "many"},
        {},
        {"n": 1, "x": 1},
        {"n": object()},
        {"n": {1, 2}},
        {"n": float("nan")},
        {1: 2},
        {"n": True},
        {"n": b"\xff"},
        {"n": 1, "pin": "\ud800"},
    ],
)
@pytest.mark.parametrize("form", [allow, dict])
def test_a_change_that_does_not_validate_denies(arguments: Any, form: Any) -> None:
    result, _, _ = judged([saying(form(arguments))])
    assert (result.status, result.executed) == ("denied", False)


def test_a_change_that_cannot_even_be_read_denies() -> None:
    looped: dict[str, Any] = {"n": 1}
    looped["pin"] = looped

    class Breaks(Mapping[str, Any]):
        def __getitem__(self, name: str) -> Any:
            raise RuntimeError

        def __iter__(self) -> Any:
            raise RuntimeError

        def __len__(self) -> int:
            return 1

    for arguments in (looped, Breaks()):
        for form in (allow, lambda value: value):
            assert judged([saying(form(arguments))])[0].status == "denied"


def counting_up(call: ToolCall, context: ToolContext) -> dict[str, Any]:
    return {"n": call.arguments["n"] + 1}


def counting_down(call: ToolCall, context: ToolContext) -> dict[str, Any]:
    return {"n": call.arguments["n"] - 1}


def test_guards_that_keep_changing_the_arguments_deny_after_eight_rounds() -> None:
    asked: list[int] = []

    def counts(call: ToolCall, context: ToolContext) -> None:
        asked.append(call.arguments["n"])

    assert judged([counts, counting_up, counting_down])[0].status == "denied"
    assert len(asked) <= 8


def test_a_guard_that_changes_nothing_is_no_change() -> None:
    result, ran, _ = judged([lambda call, context: dict(call.arguments), saying({"n": 1, "pin": ""})])
    assert ran == [1] and result.success


def test_guards_cannot_change_the_arguments_in_place() -> None:
    class Order(BaseModel):
        items: list[dict[str, int]]

    got: list[Any] = []

    @tool
    async def send(order: Order, tags: list[str]) -> None:
        got.append((order.items, tags))

    def meddles(call: ToolCall, context: ToolContext) -> None:
        for change in (
            lambda: call.arguments.__setitem__("tags", []),
            lambda: call.arguments["tags"].append("x"),
            lambda: call.arguments["order"]["items"].append({}),
            lambda: call.arguments["order"]["items"][0].update(a=2),
            lambda: call.arguments["order"].__setitem__("items", []),
            lambda: setattr(call, "raw", "{}"),
        ):
            with pytest.raises((TypeError, AttributeError)):
                change()

    sent = {"order": {"items": [{"a": 1}]}, "tags": ["t"]}
    for arguments in (sent, '{"order": {"items": [{"a": 1}]}, "tags": ["t"]}'):
        result, _ = run(send, "send", arguments, guards=[meddles])
        assert result.success, result.error
    assert got == [([{"a": 1}], ["t"])] * 2


def test_a_handler_that_changes_its_objects_does_not_change_what_others_saw() -> None:
    @tool
    async def grow(items: list[int], more: dict[str, list[int]]) -> int:
        items.append(99)
        more["x"].append(99)
        return len(items)

    calls: list[ToolCall] = []
    payload = build_tool(
        {
            "name": "payload",
            "description": "",
            "input_schema": {"properties": {"items": {"type": "array"}, "more": {"type": "object"}}},
            "execute": lambda payload: payload["items"].append(99) or payload["more"]["x"].append(99),
            "check_permissions": lambda *rest: None,
        }
    )
    for one in (grow, payload):
        sent = {"items": [1], "more": {"x": [1]}}
        _, watch = run(one, one.name, sent, guards=[lambda call, context: calls.append(call)])
        assert calls[-1].arguments == {"items": [1], "more": {"x": [1]}}
        assert watch.events[-1].data["input"] == {"items": [1], "more": {"x": [1]}}
        assert sent == {"items": [1], "more": {"x": [1]}}


def test_a_second_try_gets_fresh_values() -> None:
    async def retry(call: ToolCall, context: ToolContext, next: Any) -> Any:
        await next(call, context)
        return await next(call, context)

    @tool
    async def grow(items: list[int]) -> int:
        items.append(1)
        return len(items)

    assert run(grow, "grow", {"items": []}, inside=[retry])[0].output == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda call: call.replace(arguments={"n": 5}),
        lambda call: call.replace(arguments='{"n": 5}'),
        lambda call: call.replace(id="other"),
        lambda call: call.replace(name="other"),
        lambda call: ToolCall(call.id, call.name, {"n": 5}),
    ],
)
@pytest.mark.parametrize("timeout", [None, BOUND])
def test_inside_nothing_else_than_what_was_judged_can_run(change: Any, timeout: float | None) -> None:
    async def swaps(call: ToolCall, context: ToolContext, next: Any) -> Any:
        return await next(change(call), context)

    result, ran, _ = judged([], inside=[swaps], timeout=timeout)
    assert (result.status, result.executed, ran) == ("failed", False, [])


def test_guards_see_defaults_and_repairs() -> None:
    seen: list[Any] = []
    result, _, _ = judged([lambda call, context: seen.append(dict(call.arguments))], '{"n": "1"}')
    assert seen == [{"n": 1, "pin": ""}] and result.repairs
    result, _, _ = judged([lambda call, context: seen.append(dict(call.arguments))], '{"n": 1}')
    assert seen[-1] == {"n": 1, "pin": ""}


def test_the_tools_guards_and_the_runners_judge_together() -> None:
    ran = Ran(guards=[saying(deny("the tool says no"))])
    assert run(ran.tool, "double", {"n": 1}, guards=[saying(allow())])[0].status == "denied"
    assert (
        run(Ran(guards=[saying(allow())]).tool, "double", {"n": 1}, guards=[saying(deny("no"))])[0].status == "denied"
    )


# -- private parameters ----------------------------------------------------------------------------------------------


def pinned(**options: Any) -> tuple[Tool, list[str]]:
    got: list[str] = []

    @tool(private=("pin",), **options)
    async def pay(amount: int, pin: str) -> None:
        got.append(pin)

    return pay, got


def test_a_private_parameter_is_never_shown_and_never_filled_by_the_model() -> None:
    pay, got = pinned()
    assert "pin" not in str(pay.input_schema)
    result, _ = run(pay, "pay", {"amount": 1, "pin": "0000"})
    assert (result.status, got) == ("invalid", [])


def test_a_middleware_around_may_not_fill_it_either() -> None:
    async def fills(call: ToolCall, context: ToolContext, next: Any) -> Any:
        return await next(call.replace(arguments={**call.arguments, "pin": "0000"}), context)

    pay, got = pinned()
    assert run(pay, "pay", {"amount": 1}, around=[fills])[0].status == "invalid"
    assert got == []


def test_a_private_parameter_comes_from_bind_a_guard_or_a_person_and_else_the_call_is_denied() -> None:
    pay, got = pinned()
    assert run(pay, "pay", {"amount": 1})[0].status == "denied"
    assert run(pay.bind(pin="bound"), "pay", {"amount": 1})[0].success
    guard = lambda call, context: {**call.arguments, "pin": "guard"}  # noqa: E731
    assert run(pay, "pay", {"amount": 1}, guards=[guard])[0].success
    asks = lambda call, context: ask("your PIN?", into="pin")  # noqa: E731
    person = lambda call, decision, context: allow({decision.into: "person"})  # noqa: E731
    assert run(pay, "pay", {"amount": 1}, guards=[asks], approve=person)[0].success
    assert run(pay, "pay", {"amount": 1}, guards=[asks], approve=lambda *rest: True)[0].status == "denied"
    assert got == ["bound", "guard", "person"]


def test_a_bound_value_cannot_be_changed_by_the_model() -> None:
    pay, got = pinned()
    bound = Toolset([pay]).bind(pin="bound")
    assert run([bound], "pay", {"amount": 1, "pin": "x"})[0].status == "invalid"
    assert got == []


# -- decide ----------------------------------------------------------------------------------------------------------


async def _awaits(call: ToolCall, context: ToolContext) -> Decision:
    await asyncio.sleep(0)
    return ask("q")


def test_decide_and_explain_await_guards_on_another_loop_than_the_calls_before() -> None:
    runner = Runner([Ran().tool], guards=[_awaits], approve=lambda *_: True)
    assert go(runner.run("double", {"n": 1})).success
    call = ToolCall("c1", "double", {"n": 1})
    assert go(runner.decide(call)) == ask("q")
    assert go(runner.explain(call)) == [ask("q")]


async def test_decide_says_what_the_guards_would_and_runs_nothing() -> None:

    ran, watch = Ran(), Watch()
    call = ToolCall("c1", "double", {"n": 1})

    def runner(*guards: Any) -> Runner:
        return Runner([ran.tool], guards=guards, observers=[watch], approve=lambda *rest: True)

    assert (await runner().decide(call)).kind == "allow"
    assert await runner(later(ask("q")), saying(None)).decide(call) == ask("q")
    assert await runner(saying(ask("q")), saying(deny("d"))).decide(call) == deny("d")
    assert (await runner(saying(7)).decide(call)).kind == "deny"
    changed = await runner(saying({"n": 3})).decide(call)
    assert changed.kind == "allow" and changed.arguments is not None and changed.arguments["n"] == 3
    assert (await runner().decide(ToolCall("c1", "nothing"))).kind == "deny"
    assert (await runner().decide(ToolCall("c1", "double", "{"))).kind == "deny"
    assert (await runner().decide(ToolCall("c1", "double", {"n": "x"}))).kind == "deny"
    assert (await runner().decide(ToolCall("c1", "double", {"n": 1}, problem="cut off"))).kind == "deny"
    assert ran.with_ == [] and watch.events == []


async def test_decide_and_run_agree_where_a_private_value_is_missing() -> None:
    pay, _ = pinned()
    assert (await Runner([pay]).decide(ToolCall("c1", "pay", {"amount": 1}))).kind == "deny"


def test_the_decision_is_an_event_where_there_are_guards_and_only_there() -> None:
    assert judged([])[2].kinds() == ["tool:pre", "tool:post"]
    assert judged([saying(None)])[2].kinds() == ["tool:pre", "tool:decided", "tool:post"]
    watch = judged([saying(deny("no"))])[2]
    assert watch.kinds() == ["tool:pre", "tool:decided", "tool:error"]
    assert watch.events[1].data["decision"] == deny("no")


def by_rule(decision: Decision, rule: str) -> Any:
    """A guard that answers by a rule of its own."""
    return saying(Decision(decision.kind, decision.reason, rule=rule))


def said_by(*guards: Any, **options: Any) -> list[tuple[str, str | None, str | None]]:
    """The decisions that were told of one call: what, by which rule and by whom."""
    watch = judged(list(guards), **options)[2]
    told = [event.data["decision"] for event in watch.events if event.kind == "tool:decided"]
    return [(one.kind, one.rule, one.by) for one in told]


def test_the_rules_by_which_guards_allow_are_told_and_silence_has_none() -> None:
    assert said_by(saying(None), by_rule(allow(), "a:1"), later(None), by_rule(allow(), "b:2")) == [
        ("allow", "a:1; b:2", None)
    ]
    assert said_by(by_rule(allow(), "a:1"), by_rule(ask("q"), "b:2")) == [("ask", "b:2", None), ("deny", "b:2", None)]


def test_after_an_answer_it_is_told_which_rule_asked_and_who_answered() -> None:
    asks = by_rule(ask("q"), "a:1")
    assert said_by(asks, approve=lambda *rest: allow(by="ada"))[1:] == [("allow", "a:1", "ada")]
    assert said_by(asks, approve=lambda *rest: deny("no"))[1:] == [("deny", "a:1", None)]


async def test_a_call_that_was_resumed_still_has_the_rule_that_asked() -> None:

    ran, watch = Ran(), Watch()
    guards = [by_rule(ask("q"), "a:1")]
    runner = Runner([ran.tool], guards=guards, observers=[watch], approve=lambda *rest: ask("later"))
    suspended = await runner.run(ToolCall("c1", "double", {"n": 1}))
    assert (await runner.resume(suspended.record(), True, by="ada")).success
    last = [event.data["decision"] for event in watch.events if event.kind == "tool:decided"][-1]
    assert (last.kind, last.rule, last.by) == ("allow", "a:1", "ada")


def test_what_a_person_refuses_says_why_it_was_asked() -> None:
    result = judged([saying(ask("offer a voucher instead"))], approve=lambda *rest: False)[0]
    assert result.error == "Denied: refused by the person who was asked (offer a voucher instead). Nothing was run."


async def test_a_runner_with_other_guards_judges_by_these_and_shares_what_is_turned_off() -> None:
    @tool
    async def ping() -> str:
        """Ping."""
        return "pong"

    async def main() -> list[str]:
        free = Runner([ping])
        closed = free.replace(guards=[lambda call, context: deny("closed")])
        opened = closed.replace(approve=lambda call, decision, context: True)  # which keeps the guards
        said = [(await runner.run("ping", {})).status for runner in (free, closed, opened, opened.replace(guards=[]))]
        free.disable("ping", "it is late")
        decided = await opened.replace(guards=[]).decide(ToolCall("", "ping", {}))
        return [*said, decided.reason]

    assert (await main()) == ["ok", "denied", "denied", "ok", "it is late"]
