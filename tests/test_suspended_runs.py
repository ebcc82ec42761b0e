"""A suspended run is one value: it goes on where it stood, once, in another process too."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Decision, Event, Media, Runner, Text, ToolContext, ToolResult, Toolset, allow, ask, deny, tool
from ferrule.errors import DefinitionError
from ferrule.loop import Finished, LoopResult, NotResumed, Run, TurnStarted, resume, run
from ferrule.loop.suspended_run import with_bytes, without_bytes
from ferrule.models import Reply, Scripted, Step
from ferrule.selection import pinned, search_tool
from ferrule.testing import ManualClock
from ferrule.values.call import ToolCall
from waits import BOUND

KEY = b"k" * 32
ASK: list[dict[str, Any]] = [{"role": "user", "content": "Pay them."}]
PNG = bytes.fromhex("89504e470d0a1a0a") + bytes(range(256))


def asks(call: ToolCall, context: ToolContext) -> Decision | None:
    return ask(f"pay {call.arguments['to']}?") if call.name == "pay" else None


def later(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    return decision


class Office:
    """Tools that keep what was done, and runners of them, each as in a process of its own."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.seen: list[ToolContext] = []

    def tools(self) -> Toolset:
        @tool
        async def pay(to: str) -> str:
            """Pay somebody."""
            self.paid.append(to)
            if to == "nobody":
                raise ValueError("there is no account")
            return f"paid {to}"

        @tool(read_only=True)
        async def look() -> ToolResult:
            """Look at the bill."""
            return ToolResult(
                content=[Text("the bill"), Media("image", PNG, "image/png", "s3://b/bill.png", "bill.png", fetch=True)]
            )

        @tool(read_only=True)
        async def whoami(context: ToolContext) -> str:
            """Who asks."""
            self.seen.append(context)
            return str(context.principal)

        return Toolset([pay, look, whoami])

    def runner(self, **options: Any) -> Runner:
        return Runner(self.tools(), **{"guards": [asks], "approve": later, "resume_key": KEY, **options})


def come_to(going: Callable[[], Run]) -> LoopResult:
    async def main() -> LoopResult:
        async with asyncio.timeout(BOUND):
            return await going()

    return asyncio.run(main())


def suspended(office: Office, turn: Step, **options: Any) -> dict[str, Any]:
    """The state of a run in which something waits, as another process reads it."""
    came = come_to(lambda: run(Scripted([turn]), ASK, office.runner(), **options))
    assert came.status == "suspended" and came.suspended is not None
    found: dict[str, Any] = json.loads(json.dumps(came.suspended))
    return found


def go_on(office: Office, state: Any, answers: Any, steps: Sequence[Step] = ("Done.",), **options: Any) -> LoopResult:
    return come_to(lambda: resume(state, answers, Scripted(steps), office.runner(), **options))


PAY = ("pay", {"to": "ada"})
PAY_BOB = ("pay", {"to": "bob"})


def test_an_answered_run_goes_on_with_the_results_of_the_whole_turn_in_call_order() -> None:
    office = Office()
    state = suspended(office, ("Let me.", [("look", {}), PAY, ("whoami", {})]))
    sent: list[Any] = []

    def last(messages: Sequence[Any]) -> str:
        sent.extend(messages)
        return "All paid."

    came = go_on(office, state, {"call_2": True}, [last], by="eve")
    assert (came.status, came.text, came.turns, came.suspended) == ("done", "All paid.", 2, None)
    assert [result.status for result in came.results] == ["ok", "ok", "ok"]
    assert came.results[1].approved_by == "eve" and office.paid == ["ada"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "tool"]
    assert sent[1]["content"] == "Let me."
    assert [one["tool_call_id"] for one in sent[2:]] == ["call_1", "call_2", "call_3"]
    assert "the bill" in sent[2]["content"] and sent[3]["content"] == "paid ada" and sent[4]["content"] == "None"
    assert came.messages == [*sent, {"role": "assistant", "content": "All paid."}]


def test_nothing_is_suspended_where_nothing_waits() -> None:
    assert come_to(lambda: run(Scripted(["Hello."]), ASK, Office().runner())).suspended is None


def test_a_person_is_shown_what_waits_by_the_id_of_the_call() -> None:
    waiting = suspended(Office(), [PAY, PAY_BOB])["waiting"]
    assert {call_id: pending["reason"] for call_id, pending in waiting.items()} == {
        "call_1": "pay ada?",
        "call_2": "pay bob?",
    }
    assert waiting["call_2"]["arguments"] == {"to": "bob"}


def test_a_suspended_run_still_has_a_history_in_which_every_call_is_answered() -> None:
    came = come_to(lambda: run(Scripted([[PAY]]), ASK, Office().runner()))
    assert came.messages[-1]["tool_call_id"] == "call_1" and "resume first" in came.messages[-1]["content"]
    assert came.tool_executions[0]["pending"]["arguments"] == {"to": "ada"}


# -- one answer at a time ----------------------------------------------------------------------------------------------


def test_while_a_call_waits_the_model_is_not_asked_and_the_run_is_suspended_again() -> None:
    office = Office()
    state = suspended(office, [PAY, PAY_BOB, ("look", {})])
    came = go_on(office, state, {"call_2": True}, [])
    assert came.status == "suspended" and came.suspended is not None and came.suspended["waiting"].keys() == {"call_1"}
    assert [result.status for result in came.results] == ["suspended", "ok", "ok"]
    assert came.tool_executions[0]["pending"] == state["waiting"]["call_1"]
    came = go_on(office, json.loads(json.dumps(came.suspended)), {"call_1": False})
    assert (came.status, office.paid) == ("done", ["bob"])
    assert [result.status for result in came.results] == ["denied", "ok", "ok"]
    assert came.results[2].content[1] == Media("image", PNG, "image/png", "s3://b/bill.png", "bill.png", fetch=True)


def test_without_any_answer_it_stays_as_it_was() -> None:
    office = Office()
    state = suspended(office, [PAY, ("look", {})])
    assert go_on(office, state, {}, []).suspended == state
    assert office.paid == []


def test_a_call_that_came_twice_is_answered_once_and_runs_once() -> None:
    office = Office()
    twice = ToolCall("c", "pay", {"to": "ada"})
    came = go_on(office, suspended(office, [twice, twice]), {"c": True})
    assert (came.status, office.paid) == ("done", ["ada"])
    assert [result.status for result in came.results] == ["ok", "ok"]


def test_an_answer_may_change_the_arguments_deny_or_ask_again() -> None:
    office = Office()
    state = suspended(office, [PAY, PAY, PAY_BOB, PAY_BOB, ("pay", {"to": "eve"})])
    answers = {"call_1": allow({"to": "adele"}), "call_3": deny("not him"), "call_5": ask("who is eve?")}
    came = go_on(office, state, answers, [])
    assert office.paid == ["adele"]
    assert [result.status for result in came.results] == ["ok", "suspended", "denied", "suspended", "suspended"]
    assert came.suspended is not None
    reasons = [pending["reason"] for pending in came.suspended["waiting"].values()]
    assert sorted(reasons) == ["pay ada?", "pay bob?", "who is eve?"]
    came = go_on(office, came.suspended, dict.fromkeys(came.suspended["waiting"], True))
    assert (came.status, office.paid) == ("done", ["adele", "ada", "bob", "eve"])


# -- once --------------------------------------------------------------------------------------------------------------


def test_a_state_that_was_gone_on_from_runs_nothing_again_and_the_model_is_not_asked() -> None:
    office = Office()
    state = suspended(office, [PAY])

    async def main() -> None:
        runner = office.runner()
        assert (await resume(state, {"call_1": True}, Scripted(["Done."]), runner)).status == "done"
        again = resume(state, {"call_1": True}, Scripted([]), runner)
        with pytest.raises(NotResumed, match=r"'call_1' was not resumed.*resumed already") as found:
            await again
        assert found.value.call_id == "call_1" and again.suspended is None
        assert "resumed already" in again.messages[-1]["content"]
        came = await run(Scripted(["I see."]), again.messages, runner, state=again.state)
        assert (came.status, office.paid) == ("done", ["ada"])

    asyncio.run(asyncio.wait_for(main(), BOUND))


def test_two_that_go_on_at_once_run_it_once_and_one_asks_the_model() -> None:
    office = Office()
    state = suspended(office, [PAY])

    async def main() -> list[Any]:
        runner = office.runner()
        both = [_awaited(resume(state, {"call_1": True}, Scripted(["Done."]), runner)) for _ in range(2)]
        return await asyncio.wait_for(asyncio.gather(*both, return_exceptions=True), BOUND)

    came = asyncio.run(main())
    assert sorted(type(one).__name__ for one in came) == ["LoopResult", "NotResumed"]
    assert office.paid == ["ada"]


async def _awaited(going: Run) -> LoopResult:
    return await going


def test_a_run_that_goes_on_from_an_older_state_runs_nothing_twice() -> None:
    office = Office()
    state = suspended(office, [PAY, PAY_BOB])

    async def main() -> None:
        runner = office.runner()
        assert (await resume(state, {"call_1": True}, Scripted([]), runner)).status == "suspended"
        old = resume(state, {"call_1": True, "call_2": True}, Scripted([]), runner)
        with pytest.raises(NotResumed):
            await old
        assert office.paid == ["ada"]
        assert old.suspended is not None and old.suspended["waiting"].keys() == {"call_2"}

    asyncio.run(asyncio.wait_for(main(), BOUND))


def test_a_record_that_came_too_late_is_told_to_the_model() -> None:
    office = Office()
    state = suspended(office, [PAY])
    clock = ManualClock(now=state["waiting"]["call_1"]["expires_at"] + 1)
    came = come_to(lambda: resume(state, {"call_1": True}, Scripted(["Too late."]), office.runner(clock=clock)))
    assert (came.status, office.paid) == ("done", [])
    assert "too late" in came.messages[-2]["content"]


# -- what goes on with it ----------------------------------------------------------------------------------------------


def test_turns_calls_usage_and_the_models_state_go_on() -> None:
    office = Office()
    call = ToolCall("c", "pay", {"to": "ada"})
    turn = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function"}]}
    first = Reply("", [call], [turn], "calls", {"input_tokens": 2}, state={"container": "c_1"})
    states: list[Any] = []

    class Keeping(Scripted):
        async def __call__(self, messages: Any, toolset: Any, /, *, state: Any = None) -> Reply:
            states.append(state)
            return await super().__call__(messages, toolset)

    state = suspended(office, first, max_turns=3, max_calls=2)
    assert (state["turns"], state["calls_left"], state["state"]) == (1, 2, {"container": "c_1"})
    more = Reply("", [ToolCall("d", "look"), ToolCall("e", "look")], [turn], "calls", {"input_tokens": 5})
    model = Keeping([more, Reply("Done.", (), [], "end", {"input_tokens": 1})])
    going = resume(state, {"c": True}, model, office.runner())
    came = come_to(lambda: going)
    assert states == [{"container": "c_1"}, None]
    assert [result.status for result in came.results] == ["ok", "ok", "limited"]  # two calls in all
    assert (came.status, came.turns, came.usage) == ("limited", 3, {"input_tokens": 8})
    assert came.usage_by_turn == going.usage_by_turn == [{"input_tokens": 2}, {"input_tokens": 5}, {"input_tokens": 1}]
    assert going.usage == came.usage


def test_the_last_turn_is_the_last_one_of_the_whole_run() -> None:
    office = Office()
    came = go_on(office, suspended(office, [PAY], max_turns=2), {"call_1": True}, [[("look", {})]])
    assert (came.status, came.turns) == ("limited", 2)
    assert [result.status for result in came.results] == ["ok", "limited"]


def test_a_run_that_was_limited_before_it_waited_is_limited_in_the_end() -> None:
    office = Office()
    state = suspended(office, [PAY, ("look", {})], max_calls=1)
    assert go_on(office, state, {"call_1": True}).status == "limited"


@pytest.mark.parametrize(
    ("on_failure", "status", "steps"), [("fail", "failed", []), ("degrade", "degraded", ["Sorry."])]
)
def test_what_follows_a_failure_goes_on_too(on_failure: Any, status: str, steps: list[str]) -> None:
    office = Office()
    state = suspended(office, [("pay", {"to": "nobody"})], on_failure=on_failure)
    assert go_on(office, state, {"call_1": True}, steps).status == status


def test_what_is_given_by_name_is_for_the_calls_and_the_later_turns() -> None:
    office = Office()
    state = suspended(office, [PAY, ("look", {})], principal="bob", deps="old")
    came = go_on(office, state, {"call_1": True}, [[("whoami", {})], "Done."], deps="new", session="s2")
    assert came.status == "done"
    assert [(seen.principal, seen.deps, seen.session) for seen in office.seen] == [("bob", "new", "s2")]


class OfApi(Scripted):
    """A model that says what its messages are written for, or does not."""

    def __init__(self, steps: Sequence[Step], api: Any) -> None:
        super().__init__(steps)
        self.api = api


def test_a_model_of_another_api_is_refused_before_anything_runs() -> None:
    office = Office()
    state = suspended(office, [PAY])
    assert state["api"] == "openai_chat"
    with pytest.raises(DefinitionError, match=r"form of 'openai_chat', and this model takes those of 'gemini'"):
        resume(state, {"call_1": True}, OfApi([], "gemini"), office.runner())
    assert office.paid == [] and go_on(office, state, {"call_1": True}).status == "done"


@pytest.mark.parametrize(("before", "after"), [(None, "gemini"), ("gemini", None), (object(), "gemini")])
def test_models_that_do_not_say_what_their_messages_are_written_for_go_on(before: Any, after: Any) -> None:
    office = Office()
    came = come_to(lambda: run(OfApi([[PAY]], before), ASK, office.runner()))
    assert came.suspended is not None
    going = functools.partial(resume, came.suspended, {"call_1": True}, OfApi(["Done."], after), office.runner())
    assert (come_to(going).status, office.paid) == ("done", ["ada"])


def test_what_is_no_model_or_no_context_is_refused_at_once() -> None:
    office = Office()
    state = suspended(office, [PAY])
    wrong: Any = {"deps": 1}
    with pytest.raises(DefinitionError, match=r"needs a model, such as models.Anthropic"):
        resume(state, {}, "anthropic:claude-sonnet-5-5", office.runner())  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"loop.resume: a context is ToolContext"):
        resume(state, {}, Scripted([]), office.runner(), context=wrong)


def test_the_context_goes_on_and_what_the_caller_gives_goes_first() -> None:
    office = Office()
    context = ToolContext(principal="bob", session="s1", deps="old", metadata={"tenant": 7})
    state = suspended(office, [PAY, ("pay", {"to": "eve"})], context=context)
    given = ToolContext(deps="new", session="s2")
    came = go_on(office, state, {"call_1": True, "call_2": True}, [[("whoami", {})], "Done."], context=given)
    assert came.status == "done"
    [seen] = office.seen
    assert (seen.principal, seen.session, seen.deps, seen.metadata) == ("bob", "s2", "new", {"tenant": 7})


def test_a_principal_that_is_written_into_the_state_is_not_believed() -> None:
    office = Office()
    state = suspended(office, [PAY], context=ToolContext(principal="bob"))
    state["waiting"]["call_1"]["context"]["principal"] = "root"
    with pytest.raises(NotResumed):
        go_on(office, state, {"call_1": True}, [])
    assert (office.paid, office.seen) == ([], [])


def test_a_model_that_raises_after_the_answers_leaves_all_that_was_done() -> None:
    office = Office()

    def busy(messages: Any) -> str:
        raise ConnectionError("no network")

    async def main() -> None:
        going = resume(suspended_state, {"call_1": True}, Scripted([busy]), office.runner())
        with pytest.raises(ConnectionError):
            await going
        assert going.suspended is None and going.messages[-1]["content"] == "paid ada"
        assert [result.status for result in going.results] == ["ok"]
        model = Scripted([[("whoami", {})], "Done."])
        came = await run(model, going.messages, office.runner(), state=going.state, context=going.context)
        assert (came.status, office.paid) == ("done", ["ada"])
        assert model.requests[0].messages == going.messages
        assert [(seen.principal, seen.session) for seen in office.seen] == [("bob", "s1")]

    suspended_state = suspended(office, [PAY], context=ToolContext(principal="bob", session="s1"))
    asyncio.run(asyncio.wait_for(main(), BOUND))


def test_the_events_of_what_is_taken_up_come_before_the_next_turn() -> None:
    office = Office()
    state = suspended(office, [PAY])

    async def main() -> list[Any]:
        return [
            event async for event in resume(state, {"call_1": True}, Scripted(["Done."]), office.runner(), by="eve")
        ]

    events = asyncio.run(asyncio.wait_for(main(), BOUND))
    kinds = [event.kind if isinstance(event, Event) else type(event).__name__ for event in events]
    assert kinds == ["tool:decided", "tool:started", "tool:post", "TurnStarted", "ModelText", "Finished"]
    assert (
        events[0].data["by"] == "eve"
        and events[3] == TurnStarted(2, ("pay", "look", "whoami"))
        and isinstance(events[-1], Finished)
    )


def test_what_a_tool_announces_and_the_calls_that_it_makes_are_not_taken_for_its_result() -> None:
    @tool
    async def pay(to: str, context: ToolContext) -> str:
        """Pay somebody."""
        inner = await context.run("look", {})
        context.announce({"result": "none of it"})
        return f"paid {to}: {inner.output}"

    @tool(read_only=True)
    async def look() -> str:
        """Look at the bill."""
        return "the bill"

    runner = Runner([pay, look], guards=[asks], approve=later)

    async def main() -> None:
        state = (await run(Scripted([[PAY]]), ASK, runner)).suspended
        assert state is not None
        going = resume(state, {"call_1": True}, Scripted(["Done."]), runner)
        kinds = [event.kind async for event in going if isinstance(event, Event)]
        assert "tool:progress" in kinds
        assert [result.output for result in going.results] == ["paid ada: the bill"]

    asyncio.run(asyncio.wait_for(main(), BOUND))


# -- stopping ----------------------------------------------------------------------------------------------------------


class Slow(Office):
    """One whose payments wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.let_go = asyncio.Event(), asyncio.Event()

    def tools(self) -> Toolset:
        @tool
        async def pay(to: str) -> str:
            """Pay somebody."""
            self.paid.append(to)
            self.started.set()
            await self.let_go.wait()
            return f"paid {to}"

        return Toolset([pay])


@pytest.mark.parametrize("now", [False, True])
def test_cancelled_while_one_is_taken_up_the_others_go_on_waiting(now: bool) -> None:
    async def main() -> None:
        office = Slow()
        state = (await run(Scripted([[PAY, PAY_BOB]]), ASK, office.runner())).suspended
        assert state is not None
        going = resume(state, dict.fromkeys(state["waiting"], True), Scripted([]), office.runner())
        awaited = asyncio.ensure_future(_awaited(going))
        await office.started.wait()
        going.cancel(now=now)
        office.let_go.set()
        came = await awaited
        assert came.status == "suspended" and came.suspended is not None
        assert (came.suspended["waiting"].keys(), office.paid) == ({"call_2"}, ["ada"])
        assert [result.status for result in came.results] == ["cancelled" if now else "ok", "suspended"]

    asyncio.run(asyncio.wait_for(main(), BOUND))


def test_cancelled_before_it_begins_everything_goes_on_waiting() -> None:
    office = Office()
    state = suspended(office, [PAY])

    def cancelled() -> Run:
        going = resume(state, {"call_1": True}, Scripted([]), office.runner())
        going.cancel()
        return going

    came = come_to(cancelled)
    assert (came.status, came.suspended, office.paid) == ("suspended", state, [])


def test_left_early_what_is_taken_up_is_stopped_and_noted_and_the_rest_waits() -> None:
    async def main() -> None:
        office = Slow()
        state = (await run(Scripted([[PAY, PAY_BOB]]), ASK, office.runner())).suspended
        assert state is not None
        going = resume(state, dict.fromkeys(state["waiting"], True), Scripted([]), office.runner())
        assert going.suspended == state
        awaited = asyncio.ensure_future(_awaited(going))
        await office.started.wait()
        awaited.cancel()
        with pytest.raises(asyncio.CancelledError):
            await awaited
        assert [result.status for result in going.results] == ["cancelled", "suspended"]
        assert going.suspended is not None and going.suspended["waiting"].keys() == {"call_2"}
        assert [one["role"] for one in going.messages] == ["user", "assistant", "tool", "tool"]

    asyncio.run(asyncio.wait_for(main(), BOUND))


# -- edits and mistakes ------------------------------------------------------------------------------------------------


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if path:
        yield path
    for key, item in inner:
        yield from leaves(item, (*path, key))


def edited(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    found = copy.deepcopy(state)
    place = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return found


def test_an_edit_of_any_field_to_another_type_is_refused_before_anything_runs_or_changes_nothing() -> None:
    """The form of the model's messages, what a tool itself gave, and texts that may be left out are not described."""

    async def main() -> None:
        office = Office()
        everything = [*office.tools(), search_tool(office.tools())]
        runner = Runner(everything, guards=[asks], approve=later, resume_key=KEY)
        turn = [PAY, PAY_BOB, ("look", {}), ("search_tools", {"query": "who asks"}), ("whoami", {"more": 1})]
        context = ToolContext(principal="bob", metadata={"found": 5})
        came = await run(Scripted([turn]), ASK, runner, context=context, selector=pinned("pay", "look", "search_tools"))
        state = json.loads(json.dumps(came.suspended))
        assert state["found"] == ["whoami"] and len(state["waiting"]) == 2
        goes_on = []
        for path in leaves(state):
            for value in (None, "x", -1, 1.5, True, [], {}, [5], {"$bytes": 1}, {"x": [None]}):
                if kind_of(value) == kind_of(value_at(state, path)):
                    continue
                changed = edited(state, path, value)
                office.paid.clear()
                try:
                    going = resume(changed, {"call_1": True, "call_2": True}, Scripted(["Done."]), again(runner))
                    result = await going
                except (DefinitionError, NotResumed):
                    assert office.paid == [], path
                else:
                    assert office.paid == ["ada", "bob"] and result.status == "done", path
                    goes_on.append(path)
        assert {path[-1] for path in goes_on if not is_somebody_elses(path)} <= {*MAY_BE_NULL, "version"}  # true is 1

    asyncio.run(asyncio.wait_for(main(), 240))


def again(runner: Runner) -> Runner:
    """The same in another process, which has taken up nothing yet."""
    return Runner(runner.tools, guards=[asks], approve=later, resume_key=KEY)


def kind_of(value: Any) -> type:
    return float if type(value) is int else type(value)


def value_at(state: Any, path: tuple[Any, ...]) -> Any:
    return functools.reduce(lambda place, key: place[key], path, state)


MAY_BE_NULL = {"api", "reason", "error", "executed", "retryable", "problem", "parent", "uri", "name", "data", "key"}
MAY_BE_NULL |= {"input", "session", "principal", "at", "approved_by"}


def is_somebody_elses(path: tuple[Any, ...]) -> bool:
    """Whether it belongs to the model's API or to a tool, and not to the loop."""
    if path[0] in ("messages", "turn"):
        return len(path) > 2
    own = path[2:3] in (("output",), ("metadata",), ("input",)) or path[2:4] in (
        ("call", "arguments"),
        ("call", "data"),
    )
    return path[0] == "state" or (path[0] == "results" and own)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("usage_by_turn",), [{"input_tokens": "5"}], "usage_by_turn.*input_tokens.*valid"),
        (("found",), 5, "found: Input should be a valid list"),
        (("limited",), "yes", "limited: Input should be a valid boolean"),
        (("turns",), "1", "turns: Input should be a valid integer"),
        (("results", 1, "content", 1, "fetch"), "yes", "fetch: Input should be a valid boolean"),
        (("results", 1, "content", 1, "mime_type"), "no type", "Media whose mime_type is 'no type'"),
    ],
)
def test_an_edit_is_named_with_its_place(path: tuple[Any, ...], value: Any, says: str) -> None:
    office = Office()
    state = suspended(office, [PAY, ("look", {})])
    with pytest.raises(DefinitionError, match=says):
        resume(edited(state, path, value), {"call_1": True}, Scripted(["Done."]), office.runner())


def test_what_a_search_found_is_a_list_of_definitions_and_metadata_of_other_tools_is_their_own() -> None:
    office = Office()
    runner = Runner([*office.tools(), search_tool(office.tools())], guards=[asks], approve=later, resume_key=KEY)
    came = come_to(lambda: run(Scripted([[PAY, ("look", {}), ("search_tools", {"query": "who"})]]), ASK, runner))
    for wrong in (5, [5], [{"name": []}], None):
        changed = edited(came.suspended, ("results", 2, "metadata", "found"), wrong)
        with pytest.raises(DefinitionError, match="'search_tools' found is a list of definitions, not"):
            resume(changed, {"call_1": True}, Scripted(["Done."]), again(runner))
    own = edited(came.suspended, ("results", 1, "metadata", "found"), 5)
    assert come_to(lambda: resume(own, {"call_1": True}, Scripted(["Done."]), again(runner))).status == "done"


def test_where_one_record_was_changed_none_of_the_others_is_taken_up() -> None:
    office = Office()
    state = suspended(office, [PAY, PAY_BOB])
    changed = edited(state, ("waiting", "call_2", "arguments", "to"), "eve")
    with pytest.raises(NotResumed, match=r"'call_2' was not resumed.*give both the same resume_key"):
        go_on(office, changed, {"call_1": True, "call_2": True}, [])
    assert office.paid == []
    assert go_on(office, state, {"call_1": True, "call_2": True}).status == "done"


def test_an_edit_of_what_is_sealed_pays_nobody_and_uses_nothing_up() -> None:
    office = Office()
    state = suspended(office, [PAY], context=ToolContext(principal="bob"))
    for path in leaves(state["waiting"]["call_1"]):
        with pytest.raises((DefinitionError, NotResumed)):
            go_on(office, edited(state, ("waiting", "call_1", *path), "x"), {"call_1": True}, [])
    assert office.paid == []
    assert go_on(office, state, {"call_1": True}).status == "done"


def test_a_record_under_the_id_of_another_call_is_refused() -> None:
    office = Office()
    state = suspended(office, [PAY, PAY_BOB])
    ada, bob = state["waiting"].values()
    with pytest.raises(DefinitionError, match="'call_1' is the record of another call"):
        go_on(office, {**state, "waiting": {"call_1": bob, "call_2": ada}}, {"call_1": True}, [])


def test_a_call_that_waits_cannot_be_given_a_result_nor_forgotten() -> None:
    office = Office()
    state = suspended(office, [PAY, PAY_BOB])
    with pytest.raises(DefinitionError, match="and the suspended calls are"):
        go_on(office, edited(state, ("results", 0, "status"), "ok"), {}, [])
    for changed in (state, edited(edited(state, ("results", 0, "status"), "ok"), ("results", 1, "status"), "ok")):
        with pytest.raises(DefinitionError, match="no call waits in it"):
            go_on(office, {**changed, "waiting": {}}, {}, [])


def test_what_another_runner_sealed_is_an_error_that_names_the_key() -> None:
    office = Office()
    state = come_to(lambda: run(Scripted([[PAY]]), ASK, office.runner(resume_key=None))).suspended

    async def main() -> None:
        going = resume(state or {}, {"call_1": True}, Scripted([]), office.runner(resume_key=None))
        with pytest.raises(NotResumed, match="give both the same resume_key"):
            await going
        assert going.suspended == state and office.paid == []

    asyncio.run(asyncio.wait_for(main(), BOUND))


CALL_1: dict[str, Any] = {"call_1": True}
MISTAKES: list[tuple[Callable[[Any], Any], Any, str]] = [
    (lambda state: None, CALL_1, "not None: nothing waits there"),
    (json.dumps, CALL_1, r"json.loads of a text.*not str"),
    (lambda state: {}, CALL_1, "this is not a result's `suspended`: waiting: Field required"),
    (lambda state: state["waiting"]["call_1"], CALL_1, "this is not a result's `suspended`"),
    (lambda state: {**state, "version": 2}, CALL_1, "version: Input should be 1"),
    (lambda state: {**state, "more": 1}, CALL_1, "more: Extra inputs"),
    (lambda state: {**state, "messages": [object()]}, CALL_1, "not JSON serializable"),
    (lambda state: state, True, "answers go by the id of the call.*the waiting calls are 'call_1'"),
    (lambda state: state, {"call_9": True}, "no call 'call_9' waits.*the waiting calls are 'call_1'"),
    (lambda state: state, {"call_1": "yes"}, "is True, False, allow.*not 'yes'"),
]


@pytest.mark.parametrize(("made", "answers", "says"), MISTAKES)
def test_what_is_no_suspended_run_or_no_answer_is_refused_at_once(made: Any, answers: Any, says: str) -> None:
    office = Office()
    state = suspended(office, [PAY])
    with pytest.raises(DefinitionError, match=says):
        resume(made(state), answers, Scripted([]), office.runner())
    assert office.paid == []


def test_it_needs_a_runner() -> None:
    wrong: Any = [asks]
    with pytest.raises(DefinitionError, match="the loop needs a Runner"):
        resume(suspended(Office(), [PAY]), {}, Scripted([]), wrong)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["$bytes", "a", ""]) | st.text(), inner),
)


@given(JSON)
def test_bytes_in_a_history_come_back_and_nothing_else_becomes_bytes(value: Any) -> None:
    assert with_bytes(json.loads(json.dumps(without_bytes(value)))) == value


def test_bytes_in_the_messages_that_a_run_began_with_come_back() -> None:
    office, image = Office(), {"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": PNG}}}]}
    came = come_to(lambda: run(Scripted([[PAY]]), [image], office.runner()))
    assert go_on(office, json.loads(json.dumps(came.suspended)), {"call_1": True}).messages[0] == image


def test_objects_of_an_sdk_in_the_history_become_what_the_api_sends() -> None:
    from openai.types.chat import ChatCompletionMessage

    office = Office()
    said: Any = ChatCompletionMessage(role="assistant", content="How can I help?")
    came = come_to(lambda: run(Scripted([[PAY]]), [said, *ASK], office.runner()))
    assert came.suspended is not None
    assert came.suspended["messages"][0] == {"role": "assistant", "content": "How can I help?"}


# -- another process ---------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parent.parent / "docs" / "approvals.md"


def process(folder: Path, *words: str, **environment: str) -> str:
    """What the program on the page says, in a process of its own."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("```python\n# bills.py\n")
    (folder / "bills.py").write_text(rest.partition("\n```\n")[0], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "bills.py", *words],
        cwd=folder,
        env={**os.environ, "RESUME_KEY": "k" * 32, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_run_goes_on_in_other_processes(tmp_path: Path) -> None:
    asked = process(tmp_path, "ask").splitlines()
    assert [line.partition(":")[0] for line in asked] == ["call_1", "call_2"] and "ada" in asked[0]
    assert process(tmp_path, "answer", "call_2", "yes", "eve") == asked[0]
    said = process(tmp_path, "answer", "call_1", "no", "eve")
    assert said.endswith("paid bob 20 EUR") and "paid ada" not in said


@pytest.mark.slow
def test_what_one_process_has_taken_up_no_other_does_again(tmp_path: Path) -> None:
    process(tmp_path, "ask")
    with closing(sqlite3.connect(tmp_path / "bills.db", isolation_level=None)) as sql:
        [kept] = sql.execute("SELECT suspended FROM runs")
        process(tmp_path, "answer", "call_1", "yes", "eve")
        sql.execute("UPDATE runs SET suspended = ?", kept)
    assert "'call_1' was not resumed" in process(tmp_path, "answer", "call_1", "yes", "eve")


@pytest.mark.slow
def test_another_process_needs_the_key_and_is_told_so(tmp_path: Path) -> None:
    process(tmp_path, "ask")
    assert "give both the same resume_key" in process(tmp_path, "answer", "call_1", "yes", "eve", RESUME_KEY="o" * 32)
    process(tmp_path, "answer", "call_1", "yes", "eve")
    assert process(tmp_path, "answer", "call_2", "yes", "eve") == "paid ada 500 EUR, paid bob 20 EUR"
