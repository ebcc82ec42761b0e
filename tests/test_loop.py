"""The loop: every call is answered, limits hold, and nothing goes on running."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import anyio
import pytest

from ferrule import Event, Runner, ToolContext, Toolset, ask, tool
from ferrule.errors import DefinitionError
from ferrule.guards import ask_before_changes
from ferrule.loop import Finished, LoopResult, ModelText, TurnStarted, run
from ferrule.middleware import cache
from ferrule.models import Reply, Scripted, Step
from ferrule.providers import openai_chat
from ferrule.values.call import ToolCall
from waits import BOUND

ASK: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]


@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def fail() -> str:
    """Fails."""
    raise ValueError("broken")


RUNNER_TOOLS = Toolset([add, fail])


def go(steps: Sequence[Step], **options: Any) -> LoopResult:
    async def main() -> LoopResult:
        return await asyncio.wait_for(_awaited(run(Scripted(steps), ASK, Runner(RUNNER_TOOLS), **options)), BOUND)

    return asyncio.run(main())


async def bounded(work: Coroutine[Any, Any, None]) -> None:
    await asyncio.wait_for(work, BOUND)


async def _awaited(going: Any) -> LoopResult:
    found: LoopResult = await going
    return found


def asked_and_answered(messages: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    asked = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    return asked, [message["tool_call_id"] for message in messages if message["role"] == "tool"]


def kinds(events: list[Any]) -> list[str]:
    return [event.kind if isinstance(event, Event) else type(event).__name__ for event in events]


def test_a_run_ends_with_the_text_of_the_model() -> None:
    came = go([[("add", {"a": 1, "b": 2})], lambda messages: f"It is {messages[-1]['content']}."])
    assert (came.status, came.text, came.turns) == ("done", "It is 3.", 2)
    assert [message["role"] for message in came.messages] == ["user", "assistant", "tool", "assistant"]
    assert [record["tool_name"] for record in came.tool_executions] == ["add"]
    assert came.tool_executions[0]["success"] and [result.output for result in came.results] == [3]
    json.dumps(came.tool_executions)


def test_the_messages_that_were_given_are_not_changed() -> None:
    go(["Hello."])
    assert ASK == [{"role": "user", "content": "Go."}]


def test_events_come_in_order_and_the_last_has_the_result() -> None:
    async def main() -> tuple[list[Any], LoopResult]:
        going = run(Scripted([("Hm.", [("add", {"a": 1, "b": 2})]), "Three."]), ASK, Runner(RUNNER_TOOLS))
        events = [event async for event in going]
        return events, going.result

    events, came = asyncio.run(main())
    assert kinds(events) == [
        "TurnStarted",
        "ModelText",
        "tool:pre",
        "tool:started",
        "tool:post",
        "TurnStarted",
        "ModelText",
        "Finished",
    ]
    assert (
        events[0] == TurnStarted(1, ("add", "fail")) and events[1] == ModelText("Hm.") and events[-1] == Finished(came)
    )


def test_events_are_live() -> None:
    async def main() -> None:
        goes_on = asyncio.Event()

        @tool
        async def wait() -> str:
            """Waits until its own start was seen."""
            await goes_on.wait()
            return "seen"

        async def consume() -> None:
            async for event in run(Scripted([[("wait", {})], "Done."]), ASK, Runner(Toolset([wait]))):
                if isinstance(event, Event) and event.kind == "tool:pre":
                    goes_on.set()

        await asyncio.wait_for(consume(), BOUND)

    asyncio.run(main())


def test_progress_made_in_a_thread_is_an_event() -> None:
    @tool
    def work(context: ToolContext) -> str:
        """Says how far it is."""
        context.progress(1, 2, "half")
        return "done"

    async def main() -> list[Any]:
        return [event async for event in run(Scripted([[("work", {})], "Done."]), ASK, Runner(Toolset([work])))]

    assert kinds(asyncio.run(main()))[1:5] == ["tool:pre", "tool:started", "tool:progress", "tool:post"]


def test_a_result_before_the_end_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no result yet"):
        _ = run(Scripted([]), ASK, Runner(RUNNER_TOOLS)).result


def test_a_run_runs_once_and_its_result_stays() -> None:
    async def main() -> None:
        going = run(Scripted(["Hello."]), ASK, Runner(RUNNER_TOOLS))
        assert await going is await going
        with pytest.raises(RuntimeError, match="started already"):
            async for _ in going:
                pass

    asyncio.run(main())


def test_malformed_arguments_are_answered_and_the_run_goes_on() -> None:
    came = go([[("add", '{"a": 1, "b":'), ("nothing", {})], "Sorry."])
    assert came.status == "done"
    assert [result.status for result in came.results] == ["invalid", "not_found"]
    assert asked_and_answered(came.messages)[0] == asked_and_answered(came.messages)[1]
    assert came.messages[1]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_calls_of_a_cut_turn_are_answered_and_not_run() -> None:
    cut = ToolCall("c1", "add", {"a": 1, "b": 2}, problem="cut off; nothing was run")
    came = go([Reply("", [cut], [{"role": "assistant", "tool_calls": [{"id": "c1"}]}], "cut"), "Again."])
    assert (came.status, came.turns, came.results[0].executed) == ("done", 2, False)
    assert "cut off" in came.messages[2]["content"]


def test_a_paused_turn_goes_back_and_counts() -> None:
    paused = Reply("", (), [{"role": "assistant", "content": "Searching"}], "pause")
    came = go([paused, "Found."])
    assert (came.status, came.turns, came.text) == ("done", 2, "Found.")
    assert came.messages[1] == {"role": "assistant", "content": "Searching"}
    assert go([paused], max_turns=1).status == "limited"


def test_a_text_that_was_cut_off_is_not_done() -> None:
    assert go([Reply("Once upon a", (), [], "cut")]).status == "limited"


def test_a_text_without_a_known_end_is_not_done() -> None:
    for calls_before in ([], [[("add", {"a": 1, "b": 2})]]):
        result = go([*calls_before, Reply("The sum is", (), [{"role": "assistant", "content": "The sum is"}], "other")])
        assert (result.status, result.text) == ("failed", "The sum is")
        assert result.messages[-1]["content"] == "The sum is"


def test_why_there_is_no_answer_is_told() -> None:
    refused = Reply("", (), (), "refused", reason="SAFETY: not that")
    assert go([refused]).reason == "SAFETY: not that"
    assert go([refused]).status == "failed"
    assert go([[("add", {"a": 1, "b": 2})], "3"]).reason is None


def test_a_refusal_is_not_done() -> None:
    assert go([Reply("", (), [], "refused")]).status == "failed"


def test_after_a_refusal_the_model_is_not_asked_again() -> None:
    call = ToolCall("c1", "add", {"a": 1, "b": 2}, problem="refused; nothing was run")
    came = go([Reply("", [call], [{"role": "assistant", "tool_calls": [{"id": "c1"}]}], "refused")])
    assert (came.status, came.turns) == ("failed", 1)
    assert asked_and_answered(came.messages) == (["c1"], ["c1"])


def test_calls_over_the_limit_never_run_and_are_answered() -> None:
    runs: list[int] = []

    @tool
    def note(number: int) -> None:
        """Notes that it ran."""
        runs.append(number)

    async def main() -> tuple[list[Any], LoopResult]:
        steps: list[Step] = [[("note", {"number": n}) for n in range(5)], [("note", {"number": 9})], "That is all."]
        going = run(Scripted(steps), ASK, Runner(Toolset([note])), max_calls=3)
        return [event async for event in going], going.result

    events, came = asyncio.run(main())
    assert runs == [0, 1, 2]
    assert [result.status for result in came.results] == ["ok"] * 3 + ["limited"] * 3
    assert [result.executed for result in came.results[3:]] == [False] * 3
    assert (came.status, came.text) == ("limited", "That is all.")
    assert asked_and_answered(came.messages) == ([f"call_{n}" for n in range(1, 7)],) * 2
    assert kinds(events).count("tool:pre") == 6 and kinds(events).count("tool:error") == 3


def test_calls_that_never_ran_do_not_count() -> None:
    right = [("add", {"a": 1, "b": 2})]
    came = go([[("add", {"a": "x"}), ("nothing", {})], right, "Three."], max_calls=2)
    assert came.status == "done"
    assert [result.status for result in came.results] == ["invalid", "not_found", "ok"]


def test_a_suspended_call_stops_the_run_with_every_call_answered() -> None:
    async def main() -> LoopResult:
        runner = Runner(
            RUNNER_TOOLS,
            guards=[lambda call, context: ask("later?") if call.name == "fail" else None],
            approve=lambda call, decision, context: decision,
        )
        model = Scripted([[("add", {"a": 1, "b": 2}), ("fail", {})], "never said"])
        return await asyncio.wait_for(_awaited(run(model, ASK, runner)), BOUND)

    came = asyncio.run(main())
    assert (came.status, came.turns) == ("suspended", 1)
    assert [result.status for result in came.results] == ["ok", "suspended"]
    asked, answered = asked_and_answered(came.messages)
    assert asked == answered and "resume first" in came.messages[-1]["content"]


def test_calls_of_a_paused_turn_are_sent_back_and_not_run() -> None:
    turn = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function"}]}
    call = ToolCall("c", "add", {"a": 1, "b": 2})
    came = go([Reply("", [call], [turn], "pause"), "Done."])
    assert (came.status, came.results) == ("done", [])
    assert came.messages[:2] == [*ASK, turn] and len(came.messages) == 3


def test_at_the_last_turn_calls_are_answered_and_the_model_is_asked_no_more() -> None:
    came = go([[("add", {"a": 1, "b": 2})], [("add", {"a": 3, "b": 4})]], max_turns=2)
    assert (came.status, came.turns) == ("limited", 2)
    assert [result.status for result in came.results] == ["ok", "limited"]
    assert asked_and_answered(came.messages)[0] == asked_and_answered(came.messages)[1]


def test_after_a_failure_the_model_is_told_by_default() -> None:
    came = go([[("fail", {})], lambda messages: messages[-1]["content"]])
    assert came.status == "done" and "broken" in came.text


def test_degraded_the_model_answers_without_tools() -> None:
    offered: list[list[str]] = []
    steps = Scripted([[("fail", {}), ("add", {"a": 1, "b": 2})], ("No idea.", [("add", {"a": 1, "b": 2})])])

    class Watched:
        results = staticmethod(steps.results)

        async def __call__(self, messages: Any, toolset: Toolset) -> Reply:
            offered.append([each.name for each in toolset])
            return await steps(messages, toolset)

    async def main() -> LoopResult:
        return await run(Watched(), ASK, Runner(RUNNER_TOOLS), on_failure="degrade")

    came = asyncio.run(main())
    assert offered == [["add", "fail"], []]
    assert (came.status, came.text) == ("degraded", "No idea.")
    assert [result.status for result in came.results] == ["failed", "ok", "limited"]
    assert asked_and_answered(came.messages)[0] == asked_and_answered(came.messages)[1]


def test_failing_stops_when_the_whole_batch_is_answered() -> None:
    came = go([[("fail", {}), ("add", {"a": 1, "b": 2})]], on_failure="fail")
    assert (came.status, came.turns) == ("failed", 1)
    assert asked_and_answered(came.messages) == (["call_1", "call_2"], ["call_1", "call_2"])


def test_a_call_that_was_refused_is_no_failure() -> None:
    async def main() -> LoopResult:
        runner = Runner(RUNNER_TOOLS, guards=[ask_before_changes])
        return await run(Scripted([[("fail", {})], "All right."]), ASK, runner, on_failure="fail")

    assert asyncio.run(main()).status == "done"


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
def test_what_a_model_says_is_an_event_as_it_comes_and_not_again_at_the_end(in_thread: bool) -> None:
    async def main() -> None:
        model = Streaming("Two ", "dollars ", "are 1.80 EUR.", in_thread=in_thread)
        going, said = run(model, ASK, Runner([])), []
        async for event in going:
            if isinstance(event, ModelText):
                said.append(event.text)
                model.heard.set()  # it goes on only when this was an event
        assert said == list(model.words) and going.result.text == "".join(said)

    asyncio.run(bounded(main()))


def test_a_model_that_is_cancelled_in_the_middle_of_a_text_is_over_and_what_it_said_is_not_in_the_history() -> None:
    async def main() -> None:
        going = run(Streaming("Two ", "never said"), ASK, Runner([]))
        async for event in going:
            if isinstance(event, ModelText):
                going.cancel(now=True)
        assert (going.result.status, going.result.messages, going.result.text) == ("cancelled", ASK, "")

    asyncio.run(bounded(main()))


def test_usage_is_added_up_and_kept_by_turn() -> None:
    paused = Reply("", (), [], "pause", {"input_tokens": 2, "model": "m"})
    came = go([paused, paused, "Done."])
    assert came.usage == {"input_tokens": 4}
    assert came.usage_by_turn == [{"input_tokens": 2}, {"input_tokens": 2}, {}]


def test_usage_is_there_while_a_run_goes() -> None:
    async def main() -> None:
        paused = Reply("", (), [], "pause", {"input_tokens": 2})
        going, seen = run(Scripted([paused, paused, "Done."]), ASK, Runner([])), []
        async for event in going:
            if isinstance(event, TurnStarted):
                seen.append((going.usage.get("input_tokens", 0), len(going.usage_by_turn)))
        assert seen == [(0, 0), (2, 1), (4, 2)]

    asyncio.run(bounded(main()))


def test_a_model_that_raises_is_not_hidden() -> None:
    with pytest.raises(DefinitionError, match="asked once more"):
        go([[("add", {"a": 1, "b": 2})]])


def test_a_run_whose_model_raised_is_gone_on_with_from_its_messages_state_and_context() -> None:
    def busy(messages: Any) -> str:
        raise ConnectionError("no network")

    async def main() -> None:
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

    asyncio.run(bounded(main()))


@tool(read_only=True)
async def whoami(context: ToolContext) -> str:
    """Who asks."""
    return f"{context.principal}"


def test_deps_principal_and_session_are_given_by_name_and_go_before_the_context() -> None:
    seen: list[Any] = []

    @tool(read_only=True)
    async def look(context: ToolContext) -> None:
        """Look."""
        seen.append((context.deps, context.principal, context.session))

    async def main() -> None:
        context = ToolContext(principal="bob", session="s")
        going = run(Scripted([[("look", {})], "Done."]), ASK, Runner([look]), context=context, deps=1, principal="ann")
        assert (await going).status == "done"
        assert seen == [(1, "ann", "s")] and going.context.principal == "ann"

    asyncio.run(bounded(main()))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_turns": 0}, "max_turns is a whole number of at least 1, not 0"),
        ({"max_turns": None}, "max_turns is a whole number of at least 1, not None"),
        ({"max_calls": -1}, "max_calls is a whole number of at least 0, not -1"),
        ({"max_calls": "5"}, "max_calls is a whole number of at least 0, not '5'"),
        ({"on_failure": "ignore"}, "on_failure is 'continue', 'degrade' or 'fail', not 'ignore'"),
        ({"on_failure": ["fail"]}, "on_failure is 'continue', 'degrade' or 'fail', not"),
        ({"state": "x"}, "state is the `state` of a run or its result, not 'x'"),
        ({"context": {"deps": 1}}, r"loop.run: a context is ToolContext\(deps=….*not of the type dict"),
        ({"max_turn": 3}, "no option 'max_turn'. The options are: .*max_turns"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        run(Scripted(["Hello."]), ASK, Runner(RUNNER_TOOLS), **options)


async def _reply(messages: Any, toolset: Any) -> Reply:
    return Reply("Hello.")


@pytest.mark.parametrize("model", ["anthropic:claude-sonnet-5-5", Scripted, None, _reply, Runner([])], ids=repr)
def test_what_is_no_model_is_told_with_what_is_one(model: Any) -> None:
    with pytest.raises(DefinitionError, match=r"needs a model, such as models.Anthropic\(.*and has `results`, not "):
        run(model, ASK, Runner([]))


@pytest.mark.parametrize("runner", [[add], RUNNER_TOOLS, Runner, Scripted([])], ids=repr)
def test_what_is_no_runner_is_told_with_what_is_one(runner: Any) -> None:
    with pytest.raises(DefinitionError, match=r"needs a Runner, such as Runner\(\[one_tool"):
        run(Scripted([]), ASK, runner)


@pytest.mark.parametrize("messages", ["Hello.", {"role": "user", "content": "Hello."}, None])
def test_what_is_no_list_of_messages_is_told_with_what_is_one(messages: Any) -> None:
    with pytest.raises(DefinitionError, match=r"messages are a list, such as model.user\('Hello'\), not "):
        run(Scripted([]), messages, Runner([]))


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


def test_leaving_the_block_cancels_and_awaits_what_runs() -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        endless = Endless()
        async with endless.run as going:
            async for event in going:
                if isinstance(event, Event):
                    await asyncio.wait_for(endless.started.wait(), BOUND)
                    break
        assert endless.ended.is_set()
        endless.assert_all_answered()
        assert asyncio.all_tasks() == before

    asyncio.run(bounded(main()))


def test_leaving_waits_for_what_runs_also_where_it_is_cancelled_again_and_again() -> None:
    ended: list[str] = []

    async def main() -> None:
        started = asyncio.Event()

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

    asyncio.run(bounded(main()))
    assert ended == ["call", "block"]


def test_breaking_off_cancels_what_runs() -> None:
    async def main() -> None:
        endless = Endless()
        async for event in endless.run:
            if isinstance(event, Event):
                await asyncio.wait_for(endless.started.wait(), BOUND)
                break
        gc.collect()
        await asyncio.wait_for(endless.ended.wait(), BOUND)

    asyncio.run(bounded(main()))


def test_cancelling_the_consumer_cancels_what_runs() -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        endless = Endless()
        consumer = asyncio.ensure_future(_awaited(endless.run))
        await asyncio.wait_for(endless.started.wait(), BOUND)
        consumer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumer
        assert endless.ended.is_set()
        endless.assert_all_answered()
        assert asyncio.all_tasks() == before

    asyncio.run(bounded(main()))


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


def test_a_cancelled_run_lets_finish_what_runs_and_starts_nothing_new() -> None:
    async def main() -> None:
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

    asyncio.run(bounded(main()))


@pytest.mark.parametrize("now", [True, False])
def test_cancelled_twice_or_now_a_run_stops_what_runs(now: bool) -> None:
    async def main() -> None:
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

    asyncio.run(bounded(main()))


def test_the_model_that_is_asked_when_a_run_is_cancelled_answers_and_its_calls_are_not_run() -> None:
    async def main() -> None:
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

    asyncio.run(bounded(main()))


def test_an_answer_that_comes_after_a_cancellation_and_asks_for_nothing_is_an_end_of_its_own() -> None:
    async def main() -> None:
        held = Held("All done.", model=True)
        going = asyncio.ensure_future(held.come_to())
        await held.asked.wait()
        held.run.cancel()
        held.answers.set()
        came = await going
        assert (came.status, came.text) == ("done", "All done.")

    asyncio.run(bounded(main()))


def test_the_model_is_stopped_where_a_run_is_cancelled_now() -> None:
    async def main() -> None:
        held = Held("never said", model=True)
        going = asyncio.ensure_future(held.come_to())
        await held.asked.wait()
        held.run.cancel(now=True)
        came = await going
        assert (came.status, came.turns, came.messages, came.results) == ("cancelled", 1, ASK, [])
        assert kinds(held.said) == ["TurnStarted", "Finished"]

    asyncio.run(bounded(main()))


def test_a_run_that_is_cancelled_before_it_begins_asks_nobody() -> None:
    async def main() -> None:
        held = Held("never said")
        held.run.cancel()
        came = await held.come_to()
        assert (came.status, came.turns, came.text, came.messages) == ("cancelled", 0, "", ASK)
        assert kinds(held.said) == ["Finished"]
        assert not held.asked.is_set()

    asyncio.run(bounded(main()))


def test_whoever_hears_that_a_turn_starts_can_still_cancel_it() -> None:
    async def main() -> None:
        held = Held("never said")
        async for event in held.run:
            if isinstance(event, TurnStarted):
                held.run.cancel()
        assert (held.run.result.status, held.run.result.turns) == ("cancelled", 0)
        assert not held.asked.is_set()

    asyncio.run(bounded(main()))


def test_a_cancellation_after_the_end_changes_nothing() -> None:
    async def main() -> None:
        held = Held(CALLS, "Done.")
        held.goes_on.set()
        came = await held.come_to()
        held.run.cancel(now=True)
        assert held.run.result is came and came.status == "done"
        assert held.statuses() == ["ok", "ok"]

    asyncio.run(bounded(main()))


def test_a_turn_that_would_be_the_last_one_is_cancelled_and_not_limited() -> None:
    async def main() -> None:
        held = Held(CALLS, model=True)
        held.run._max_turns = 1
        going = asyncio.ensure_future(held.come_to())
        await held.asked.wait()
        held.run.cancel()
        held.answers.set()
        assert (await going).status == "cancelled"
        held.assert_one_end_each()

    asyncio.run(bounded(main()))


def test_leaving_a_run_cancels_and_awaits_the_model() -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        held = Held("never said", model=True)
        consumer = asyncio.ensure_future(held.come_to())
        await held.asked.wait()
        consumer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumer
        assert asyncio.all_tasks() == before
        assert held.run.messages == ASK

    asyncio.run(bounded(main()))


def test_answers_from_a_cache_count_as_calls() -> None:
    """A model that repeats itself would else be stopped by nothing."""

    @tool(read_only=True)
    async def look() -> str:
        return "the same"

    async def main() -> LoopResult:
        steps: list[Step] = [[("look", {})] for _ in range(5)]
        runner = Runner(Toolset([look]), inside=[cache()])
        return await run(Scripted([*steps, "Enough."]), ASK, runner, max_calls=2)

    came = asyncio.run(main())
    assert [result.status for result in came.results] == ["ok", "ok", "limited", "limited", "limited"]


SAME = [("add", {"a": "one"})]


@pytest.mark.parametrize("calls", [SAME, [("nothing", {})], [("add", '{"a": 1, "b":')]])
def test_the_same_invalid_calls_three_times_in_a_row_end_the_run_with_the_reason(calls: Any) -> None:
    came = go([calls, calls, calls, "Never asked for."])
    assert (came.status, came.turns, len(came.results)) == ("failed", 3, 3)
    assert came.reason is not None and came.results[0].error is not None
    assert came.reason.startswith("the model made the same calls 3 times: ")
    assert came.results[0].error in came.reason
    assert asked_and_answered(came.messages)[0] == asked_and_answered(came.messages)[1]


@pytest.mark.parametrize(
    "between",
    [
        [("add", {"a": 1, "b": 2})],
        [("add", {"a": "two"})],
        [*SAME, ("add", {"a": 1, "b": 2})],
        Reply("Hm.", stop="pause", reason="pause"),
        Reply("Hm.", stop="malformed", reason="no call"),
    ],
    ids=["valid", "other arguments", "one of two valid", "paused", "malformed"],
)
def test_invalid_calls_with_anything_else_between_them_do_not_end_the_run(between: Step) -> None:
    came = go([SAME, SAME, between, SAME, SAME, "Sorry."])
    assert (came.status, came.turns) == ("done", 6)


def test_calls_of_which_one_is_valid_may_be_made_again_and_again() -> None:
    calls = [*SAME, ("add", {"a": 1, "b": 2})]
    assert go([calls, calls, calls, "Sorry."]).status == "done"


def malformed(number: int) -> Reply:
    return Reply("", stop="malformed", reason=f"MALFORMED_FUNCTION_CALL {number}")


def test_three_turns_in_a_row_that_nobody_can_read_end_the_run_with_the_last_ones_reason() -> None:
    came = go([malformed(1), malformed(2), malformed(3)])
    assert (came.status, came.turns) == ("failed", 3)
    assert came.reason == "the model made calls that nobody can read 3 times: MALFORMED_FUNCTION_CALL 3"


def test_two_turns_that_nobody_can_read_are_asked_for_once_more() -> None:
    assert go([malformed(1), malformed(2), "Done."]).status == "done"


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_reply_with_neither_text_nor_calls_is_failed_with_a_reason(text: str) -> None:
    came = go([[("add", {"a": 1, "b": 2})], text])
    assert (came.status, came.reason) == ("failed", "the model gave neither a text nor a call")


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


def test_the_state_of_a_reply_is_given_with_the_next_question_and_is_in_the_result() -> None:
    model = Remembering("pause", "pause")
    came = asyncio.run(bounded_run(run(model, ASK, Runner(RUNNER_TOOLS))))
    assert model.given == [None, {"asked": 1}, {"asked": 2}]
    assert came.state == {"asked": 3}


def test_a_run_goes_on_with_the_state_of_another() -> None:
    model = Remembering()
    came = asyncio.run(bounded_run(run(model, ASK, Runner(RUNNER_TOOLS), state={"asked": 7})))
    assert (model.given, came.state) == ([{"asked": 7}], {"asked": 8})


def test_a_run_that_asked_nobody_keeps_the_state_that_it_was_given() -> None:
    async def main() -> LoopResult:
        going = run(Remembering(), ASK, Runner(RUNNER_TOOLS), state={"asked": 7})
        going.cancel()
        return await going

    assert asyncio.run(main()).state == {"asked": 7}


async def bounded_run(going: Any) -> LoopResult:
    return await asyncio.wait_for(_awaited(going), BOUND)


class Untellable(Scripted):
    """A model that has no messages in which a user says a text."""

    user = None  # type: ignore[assignment]


def test_a_malformed_turn_is_told_to_the_model_and_no_request_ends_with_its_own_turn() -> None:
    seen: list[list[Any]] = []

    def done(messages: Any) -> str:
        seen.append(list(messages))
        return "Done."

    turn = {"role": "assistant", "content": "Let me"}
    said = Reply("Let me", (), [turn], "malformed", reason="it says 'tool_calls', and there is no call")
    for model, roles in ((Scripted, ["user", "assistant", "user"]), (Untellable, ["user"])):
        result = asyncio.run(awaited(run(model([said, done]), [{"role": "user", "content": "Go."}], Runner([]))))
        assert (result.status, result.text) == ("done", "Done.")
        assert [message["role"] for message in seen.pop()] == roles
        assert model is Untellable or "there is no call" in result.messages[2]["content"]


async def awaited(running: Any) -> Any:
    return await running
