"""The loop answers every call, keeps its limits and leaves nothing running."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from cast import add
from ferrule import Event, Runner, ToolContext, Toolset, tool
from ferrule.errors import DefinitionError
from ferrule.loop import Finished, LoopResult, ModelText, TurnStarted, run
from ferrule.middleware import cache
from ferrule.models import Reply, Scripted, Step
from ferrule.providers import openai_chat
from ferrule.values.call import ToolCall

ASK: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]


@tool
async def fail() -> str:
    """Fails."""
    raise ValueError("broken")


RUNNER_TOOLS = Toolset([add, fail])


async def go(steps: Sequence[Step], **options: Any) -> LoopResult:
    return await run(Scripted(steps), ASK, Runner(RUNNER_TOOLS), **options)


def asked_and_answered(messages: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    asked = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    return asked, [message["tool_call_id"] for message in messages if message["role"] == "tool"]


def kinds(events: list[Any]) -> list[str]:
    return [event.kind if isinstance(event, Event) else type(event).__name__ for event in events]


def test_a_run_is_a_coroutine_for_asyncio() -> None:
    model = Scripted(["Hello."] * 3)
    make_run = lambda: run(model, model.user("Hi."), Runner([]))  # noqa: E731
    assert asyncio.run(make_run()).text == "Hello."

    async def as_tasks() -> list[LoopResult]:
        return await asyncio.gather(make_run(), asyncio.create_task(make_run()))

    assert [result.text for result in asyncio.run(as_tasks())] == ["Hello."] * 2


async def test_a_run_ends_with_the_text_of_the_model() -> None:
    came = await go([[("add", {"a": 1, "b": 2})], lambda messages: f"It is {messages[-1]['content']}."])
    assert (came.status, came.text, came.turns) == ("done", "It is 3.", 2)
    assert [message["role"] for message in came.messages] == ["user", "assistant", "tool", "assistant"]
    assert [record["tool_name"] for record in came.tool_executions] == ["add"]
    assert came.tool_executions[0]["success"] and [result.output for result in came.results] == [3]
    json.dumps(came.tool_executions)
    assert ASK == [{"role": "user", "content": "Go."}]  # what was given stays as it was


async def test_events_come_in_order_and_end_with_the_result() -> None:
    going = run(Scripted([("Hm.", [("add", {"a": 1, "b": 2})]), "Three."]), ASK, Runner(RUNNER_TOOLS))
    events = [event async for event in going]
    calls, turn = ["tool:pre", "tool:started", "tool:post"], ["TurnStarted", "ModelText"]
    assert kinds(events) == [*turn, *calls, *turn, "Finished"]
    assert events[:2] == [TurnStarted(1, ("add", "fail")), ModelText("Hm.")]
    assert events[-1] == Finished(going.result)


async def test_progress_made_in_a_thread_is_an_event() -> None:
    @tool
    def work(context: ToolContext) -> str:
        """Says how far it is."""
        context.progress(1, 2, "half")
        return "done"

    events = [event async for event in run(Scripted([[("work", {})], "Done."]), ASK, Runner([work]))]
    assert kinds(events)[1:5] == ["tool:pre", "tool:started", "tool:progress", "tool:post"]


@pytest.mark.parametrize(
    ("reply", "status", "reason"),
    [
        (Reply("Once upon a", (), [], "cut"), "limited", None),
        (Reply("The sum is", (), [], "other"), "failed", None),
        (Reply("", (), [], "refused", reason="SAFETY: not that"), "failed", "SAFETY: not that"),
        (" \n", "failed", "the model gave neither a text nor a call"),
    ],
)
async def test_a_reply_without_a_proper_end_is_not_done(reply: Step, status: str, reason: str | None) -> None:
    for before in ([], [[("add", {"a": 1, "b": 2})]]):
        came = await go([*before, reply])
        assert came.status == status and (reason is None or came.reason == reason)


async def test_a_run_runs_once_and_keeps_its_result() -> None:
    going = run(Scripted(["Hello."]), ASK, Runner(RUNNER_TOOLS))
    with pytest.raises(RuntimeError, match="no result yet"):
        _ = going.result
    came = await going
    going.cancel(now=True)  # too late to change anything
    assert came is await going and came.status == "done" and came.reason is None
    with pytest.raises(RuntimeError, match="started already"):
        async for _ in going:
            pass


async def test_calls_of_a_cut_turn_are_answered_and_not_run() -> None:
    cut = ToolCall("c1", "add", {"a": 1, "b": 2}, problem="cut off; nothing was run")
    came = await go([Reply("", [cut], [{"role": "assistant", "tool_calls": [{"id": "c1"}]}], "cut"), "Again."])
    assert (came.status, came.turns, came.results[0].executed) == ("done", 2, False)
    assert "cut off" in came.messages[2]["content"]


async def test_a_paused_turn_is_sent_back_and_runs_nothing() -> None:
    turn = {"role": "assistant", "content": "Searching", "tool_calls": [{"id": "c", "type": "function"}]}
    paused = Reply("", [ToolCall("c", "add", {"a": 1, "b": 2})], [turn], "pause")
    came = await go([paused, "Found."])
    assert (came.status, came.turns, came.text) == ("done", 2, "Found.")
    assert came.messages[1] == turn and came.results == []
    assert (await go([paused], max_turns=1)).status == "limited"


async def test_calls_over_the_limit_do_not_run() -> None:
    runs: list[int] = []

    @tool
    def note(number: int) -> None:
        """Notes that it ran."""
        runs.append(number)

    steps: list[Step] = [[("note", {"number": n}) for n in range(5)], [("note", {"number": 9})], "That is all."]
    going = run(Scripted(steps), ASK, Runner(Toolset([note])), max_calls=3)
    events, came = [event async for event in going], going.result
    assert runs == [0, 1, 2]
    assert [result.status for result in came.results] == ["ok"] * 3 + ["limited"] * 3
    assert [result.executed for result in came.results[3:]] == [False] * 3
    assert (came.status, came.text) == ("limited", "That is all.")
    assert asked_and_answered(came.messages) == ([f"call_{n}" for n in range(1, 7)],) * 2
    assert kinds(events).count("tool:pre") == 6 and kinds(events).count("tool:error") == 3


async def test_calls_that_never_ran_do_not_count() -> None:
    right = [("add", {"a": 1, "b": 2})]
    came = await go([[("add", {"a": "x"}), ("nothing", {})], right, "Three."], max_calls=2)
    assert came.status == "done"
    assert [result.status for result in came.results] == ["invalid", "not_found", "ok"]


async def test_the_last_turn_answers_calls_without_running_them() -> None:
    came = await go([[("add", {"a": 1, "b": 2})], [("add", {"a": 3, "b": 4})]], max_turns=2)
    assert (came.status, came.turns) == ("limited", 2)
    assert [result.status for result in came.results] == ["ok", "limited"]
    assert asked_and_answered(came.messages)[0] == asked_and_answered(came.messages)[1]


@pytest.mark.parametrize(
    ("options", "status", "reason"),
    [
        ({"max_turns": 1}, "limited", "max_turns=1 was reached"),
        ({"max_calls": 0}, "limited", "max_calls was reached"),
        ({"on_failure": "fail"}, "failed", "a call failed, and on_failure is 'fail'"),
        ({}, "done", None),
    ],
)
async def test_a_run_says_what_stopped_it(options: Any, status: str, reason: str | None) -> None:
    came = await go([[("fail", {})], "Done."], **options)
    assert (came.status, came.reason) == (status, reason)


async def test_a_degraded_run_continues_without_tools() -> None:
    offered: list[list[str]] = []
    steps = Scripted([[("fail", {}), ("add", {"a": 1, "b": 2})], ("No idea.", [("add", {"a": 1, "b": 2})])])

    class Watched:
        results = staticmethod(steps.results)

        async def __call__(self, messages: Any, toolset: Toolset) -> Reply:
            offered.append([each.name for each in toolset])
            return await steps(messages, toolset)

    came = await run(Watched(), ASK, Runner(RUNNER_TOOLS), on_failure="degrade")
    assert offered == [["add", "fail"], []]
    assert (came.status, came.text) == ("degraded", "No idea.")
    assert [result.status for result in came.results] == ["failed", "ok", "limited"]
    assert asked_and_answered(came.messages)[0] == asked_and_answered(came.messages)[1]


async def test_a_failing_run_stops_after_the_whole_batch() -> None:
    came = await go([[("fail", {}), ("add", {"a": 1, "b": 2})]], on_failure="fail")
    assert (came.status, came.turns) == ("failed", 1)
    assert asked_and_answered(came.messages) == (["call_1", "call_2"], ["call_1", "call_2"])


class Streaming:
    """A model that says its words one by one, each when it is let go, from the loop or from a thread."""

    def __init__(self, *words: str, in_thread: bool = False) -> None:
        self.words, self.in_thread = words, in_thread
        self.heard = asyncio.Event()

    async def __call__(self, messages: Any, toolset: Toolset, /, *, on_text: Callable[[str], object]) -> Reply:
        for word in self.words:
            self.heard.clear()
            if self.in_thread:
                await asyncio.to_thread(on_text, word)
            else:
                on_text(word)
            await self.heard.wait()
        return Reply("".join(self.words), usage={"output_tokens": len(self.words)})

    results = staticmethod(openai_chat.results)


@pytest.mark.parametrize("in_thread", [False, True])
async def test_streamed_text_is_reported_once_as_it_comes(in_thread: bool) -> None:
    model = Streaming("Two ", "dollars ", "are 1.80 EUR.", in_thread=in_thread)
    going, said = run(model, ASK, Runner([])), []
    async for event in going:
        if isinstance(event, ModelText):
            said.append(event.text)
            model.heard.set()  # it goes on only when this was an event
    assert said == list(model.words) and going.result.text == "".join(said)


async def test_a_cancelled_stream_leaves_no_text_in_the_history() -> None:
    going = run(Streaming("Two ", "never said"), ASK, Runner([]))
    async for event in going:
        if isinstance(event, ModelText):
            going.cancel(now=True)
    assert (going.result.status, going.result.messages, going.result.text) == ("cancelled", ASK, "")


async def test_usage_is_summed_and_kept_by_turn() -> None:
    paused = Reply("", (), [], "pause", {"input_tokens": 2, "model": "m"})
    going, seen = run(Scripted([paused, paused, "Done."]), ASK, Runner([])), []
    async for event in going:
        if isinstance(event, TurnStarted):
            seen.append((going.usage.get("input_tokens", 0), len(going.usage_by_turn)))
    came = going.result
    assert seen == [(0, 0), (2, 1), (4, 2)]
    assert came.usage == {"input_tokens": 4}
    assert came.usage_by_turn == [{"input_tokens": 2}, {"input_tokens": 2}, {}]


async def test_a_run_continues_after_an_error() -> None:
    def busy(messages: Any) -> str:
        raise ConnectionError("no network")

    runner = Runner([add, whoami])
    going = run(Scripted([[("add", {"a": 1, "b": 2})], busy]), ASK, runner, principal="ann")
    with pytest.raises(ConnectionError):
        await going
    with pytest.raises(RuntimeError, match=r"started already.*with its messages to go on with them"):
        await going
    model = Scripted([[("whoami", {})], "Ann."])
    came = await run(model, going.messages, runner, state=going.state, context=going.context)
    assert [request.messages[: len(going.messages)] for request in model.requests] == [going.messages] * 2
    assert going.messages[-1]["content"] == "3" and came.messages[-2]["content"] == "ann"


@tool(read_only=True)
async def whoami(context: ToolContext) -> str:
    """Who asks."""
    return f"{context.principal}"


async def test_named_options_override_the_context() -> None:
    seen: list[Any] = []

    @tool(read_only=True)
    async def look(context: ToolContext) -> None:
        """Look."""
        seen.append((context.deps, context.principal, context.session))

    context = ToolContext(principal="bob", session="s")
    going = run(Scripted([[("look", {})], "Done."]), ASK, Runner([look]), context=context, deps=1, principal="ann")
    assert (await going).status == "done"
    assert seen == [(1, "ann", "s")] and going.context.principal == "ann"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_turns": 0}, "max_turns is a whole number of at least 1, not 0"),
        ({"max_calls": "5"}, "max_calls is a whole number of at least 0, not '5'"),
        ({"on_failure": ["fail"]}, "on_failure is 'continue', 'degrade' or 'fail', not"),
        ({"state": "x"}, "state is the `state` of a run or its result, not 'x'"),
        ({"context": {"deps": 1}}, r"loop.run: a context is ToolContext\(deps=….*not of the type dict"),
        ({"max_turn": 3}, "no option 'max_turn'. The options are: .*max_turns"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        run(Scripted(["Hello."]), ASK, Runner(RUNNER_TOOLS), **options)


async def _reply(messages: Any, toolset: Any) -> Reply:
    return Reply("Hello.")


def test_a_wrong_model_runner_or_list_of_messages_is_refused() -> None:
    for model in ("anthropic:claude-sonnet-5-5", Scripted, _reply):
        with pytest.raises(DefinitionError, match=r"needs a model, such as models.Anthropic\("):
            run(model, ASK, Runner([]))  # type: ignore[arg-type]
    for runner in ([add], Runner):
        with pytest.raises(DefinitionError, match=r"needs a Runner, such as Runner\(\[one_tool"):
            run(Scripted([]), ASK, runner)  # type: ignore[arg-type]
    for messages in ("Hello.", {"role": "user", "content": "Hello."}, None):
        with pytest.raises(DefinitionError, match=r"messages are a list, such as model.user\('Hello'\), not "):
            run(Scripted([]), messages, Runner([]))  # type: ignore[arg-type]


class Endless:
    """A runner with a tool that ends by cancellation only, and says so."""

    def __init__(self) -> None:
        self.started, self.ended = asyncio.Event(), asyncio.Event()

        @tool
        async def endless() -> None:
            """Never ends."""
            self.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()

        self.runner = Runner(Toolset([endless]))
        self.run = run(Scripted([[("endless", {}), ("endless", {})]]), ASK, self.runner)

    def assert_all_answered(self) -> None:
        assert asked_and_answered(self.run.messages) == (["call_1", "call_2"],) * 2


async def test_leaving_the_block_cancels_and_awaits_running_calls() -> None:
    before = asyncio.all_tasks()
    endless = Endless()
    async with endless.run as going:
        async for event in going:
            if isinstance(event, Event):
                await endless.started.wait()
                break
    assert endless.ended.is_set()
    endless.assert_all_answered()
    assert asyncio.all_tasks() == before


async def test_leaving_awaits_running_calls_even_when_cancelled() -> None:
    ended, started = list[str](), asyncio.Event()

    @tool
    async def cleans_up() -> None:
        """Takes a while to end."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            ended.append("call")

    with anyio.CancelScope() as scope:
        async with run(Scripted([[("cleans_up", {})]]), ASK, Runner([cleans_up])) as going:
            async for event in going:
                if isinstance(event, Event):
                    await started.wait()
                    asyncio.get_running_loop().call_soon(scope.cancel)
    ended.append("block")
    assert scope.cancelled_caught and asked_and_answered(going.messages) == (["call_1"],) * 2
    assert ended == ["call", "block"]


async def test_cancelling_the_consumer_cancels_running_calls() -> None:
    before = asyncio.all_tasks()
    endless = Endless()
    consumer = asyncio.ensure_future(endless.run)
    await endless.started.wait()
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert endless.ended.is_set()
    endless.assert_all_answered()
    assert asyncio.all_tasks() == before


class Held:
    """A model and a runner that go on when they are told to, and all that they said."""

    def __init__(self, *turns: Step, model: bool = False) -> None:
        self.started, self.goes_on = asyncio.Event(), asyncio.Event()
        self.asked, self.answers = asyncio.Event(), asyncio.Event()
        self.said: list[Any] = []
        steps = Scripted(turns)

        class Model:
            results = staticmethod(steps.results)

            async def __call__(_, messages: Any, toolset: Toolset) -> Reply:
                self.asked.set()
                if model:
                    await self.answers.wait()
                return await steps(messages, toolset)

        @tool(read_only=True)
        async def hold() -> str:
            """Goes on when it may."""
            self.started.set()
            await self.goes_on.wait()
            return "held"

        @tool
        async def change() -> str:
            """Runs alone."""
            return "changed"

        self.run = run(Model(), ASK, Runner(Toolset([hold, change])))

    async def come_to(self) -> LoopResult:
        async for event in self.run:
            self.said.append(event)
        return self.run.result

    def statuses(self) -> list[str]:
        return [result.status for result in self.run.results]

    def assert_one_end_each(self) -> None:
        """One terminal event and one answer for each call."""
        ends = [one.call.id for one in self.said if isinstance(one, Event) and one.kind in {"tool:post", "tool:error"}]
        asked, answered = asked_and_answered(self.run.messages)
        assert sorted(ends) == sorted(asked) == sorted(answered)


CALLS: list[Any] = [("hold", {}), ("change", {})]


async def test_a_cancelled_run_finishes_running_calls_and_starts_none() -> None:
    held = Held(("Working.", CALLS), "never said")
    going = asyncio.ensure_future(held.come_to())
    await held.started.wait()
    held.run.cancel()
    held.goes_on.set()
    came = await going
    assert (came.status, came.text, came.turns) == ("cancelled", "Working.", 1)
    assert held.statuses() == ["ok", "cancelled"]
    assert came.results[1].executed is False
    held.assert_one_end_each()
    assert kinds(held.said)[-1] == "Finished"


@pytest.mark.parametrize("now", [True, False])
async def test_cancelling_twice_or_now_stops_running_calls(now: bool) -> None:
    held = Held(CALLS, "never said")
    going = asyncio.ensure_future(held.come_to())
    await held.started.wait()
    held.run.cancel(now=now)
    if not now:
        held.run.cancel()
    assert (await going).status == "cancelled"
    assert held.statuses() == ["cancelled", "cancelled"]
    assert [result.executed for result in held.run.results] == [None, False]
    held.assert_one_end_each()


async def test_calls_that_arrive_after_a_cancellation_do_not_run() -> None:
    held = Held(("Let me.", CALLS), "never said", model=True)
    going = asyncio.ensure_future(held.come_to())
    await held.asked.wait()
    held.run.cancel()
    held.answers.set()
    came = await going
    assert (came.status, came.text, came.turns) == ("cancelled", "Let me.", 1)
    assert not held.started.is_set()
    assert [result.executed for result in came.results] == [False, False]
    held.assert_one_end_each()


async def test_a_final_answer_after_a_cancellation_counts() -> None:
    held = Held("All done.", model=True)
    going = asyncio.ensure_future(held.come_to())
    await held.asked.wait()
    held.run.cancel()
    held.answers.set()
    came = await going
    assert (came.status, came.text) == ("done", "All done.")


async def test_cancelling_now_stops_the_model() -> None:
    held = Held("never said", model=True)
    going = asyncio.ensure_future(held.come_to())
    await held.asked.wait()
    held.run.cancel(now=True)
    came = await going
    assert (came.status, came.turns, came.messages, came.results) == ("cancelled", 1, ASK, [])
    assert kinds(held.said) == ["TurnStarted", "Finished"]


async def test_a_run_cancelled_before_it_begins_asks_nobody() -> None:
    held = Held("never said")
    held.run.cancel()
    came = await held.come_to()
    assert (came.status, came.turns, came.text, came.messages) == ("cancelled", 0, "", ASK)
    assert kinds(held.said) == ["Finished"]
    later = Held("never said")
    async for event in later.run:
        if isinstance(event, TurnStarted):
            later.run.cancel()
    assert (later.run.result.status, later.run.result.turns) == ("cancelled", 0)
    assert not held.asked.is_set() and not later.asked.is_set()


async def test_answers_from_a_cache_count_as_calls() -> None:
    """A model that repeats itself would else be stopped by nothing."""

    @tool(read_only=True)
    async def look() -> str:
        return "the same"

    steps: list[Step] = [[("look", {})] for _ in range(5)]
    runner = Runner(Toolset([look]), inside=[cache()])
    came = await run(Scripted([*steps, "Enough."]), ASK, runner, max_calls=2)
    assert [result.status for result in came.results] == ["ok", "ok", "limited", "limited", "limited"]


SAME = [("add", {"a": "one"})]


@pytest.mark.parametrize("calls", [SAME, [("nothing", {})]])
async def test_three_equal_invalid_turns_end_the_run(calls: Any) -> None:
    came = await go([calls, calls, calls, "Never asked for."])
    assert (came.status, came.turns, len(came.results)) == ("failed", 3, 3)
    assert came.reason is not None and came.results[0].error is not None
    assert came.reason.startswith("the model made the same calls 3 times: ")
    assert came.results[0].error in came.reason
    assert asked_and_answered(came.messages)[0] == asked_and_answered(came.messages)[1]


@pytest.mark.parametrize(
    "between",
    [
        [("add", {"a": "two"})],
        [*SAME, ("add", {"a": 1, "b": 2})],
        Reply("Hm.", stop="malformed", reason="no call"),
    ],
    ids=["other arguments", "one of two valid", "malformed"],
)
async def test_interrupted_invalid_turns_do_not_end_the_run(between: Step) -> None:
    came = await go([SAME, SAME, between, SAME, SAME, "Sorry."])
    assert (came.status, came.turns) == ("done", 6)


def malformed(number: int) -> Reply:
    return Reply("", stop="malformed", reason=f"MALFORMED_FUNCTION_CALL {number}")


async def test_three_malformed_turns_end_the_run() -> None:
    came = await go([malformed(1), malformed(2), malformed(3)])
    assert (came.status, came.turns) == ("failed", 3)
    assert came.reason == "the model made calls that nobody can read 3 times: MALFORMED_FUNCTION_CALL 3"
    assert (await go([malformed(1), malformed(2), "Done."])).status == "done"


class Remembering:
    """Says how often it was asked, in its state."""

    results = staticmethod(Scripted([]).results)

    def __init__(self, *stops: Any) -> None:
        self.given: list[Any] = []
        self.stops = list(stops)

    async def __call__(self, messages: Any, toolset: Toolset, *, state: Any = None) -> Reply:
        self.given.append(state)
        stop = self.stops.pop(0) if self.stops else "end"
        reason = None if stop == "end" else stop
        return Reply("Hm.", stop=stop, reason=reason, state={"asked": (state or {}).get("asked", 0) + 1})


async def test_the_state_of_a_reply_goes_into_the_next_request() -> None:
    model = Remembering("pause", "pause")
    came = await run(model, ASK, Runner(RUNNER_TOOLS))
    assert model.given == [None, {"asked": 1}, {"asked": 2}]
    assert came.state == {"asked": 3}
    again = await run(model, ASK, Runner(RUNNER_TOOLS), state={"asked": 7})
    assert (model.given[3:], again.state) == ([{"asked": 7}], {"asked": 8})
    cancelled = run(model, ASK, Runner(RUNNER_TOOLS), state={"asked": 7})
    cancelled.cancel()
    assert (await cancelled).state == {"asked": 7}


class Untellable(Scripted):
    """A model that has no messages in which a user says a text."""

    user = None  # type: ignore[assignment]


async def test_a_malformed_turn_is_reported_to_the_model() -> None:
    seen: list[list[Any]] = []

    def done(messages: Any) -> str:
        seen.append(list(messages))
        return "Done."

    turn = {"role": "assistant", "content": "Let me"}
    said = Reply("Let me", (), [turn], "malformed", reason="it says 'tool_calls', and there is no call")
    for model, roles in ((Scripted, ["user", "assistant", "user"]), (Untellable, ["user"])):
        result = await run(model([said, done]), ASK, Runner([]))
        assert (result.status, result.text) == ("done", "Done.")
        assert [message["role"] for message in seen.pop()] == roles
        assert model is Untellable or "there is no call" in result.messages[2]["content"]
