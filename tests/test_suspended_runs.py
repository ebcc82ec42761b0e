"""A suspended run is one value: it continues once, in another process too."""

from __future__ import annotations

import asyncio
import copy
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
from ferrule.loop import LoopResult, NotResumed, TurnStarted, resume, run
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


async def suspended(office: Office, turn: Step, **options: Any) -> dict[str, Any]:
    """The state of a run in which something waits, as another process reads it."""
    came = await run(Scripted([turn]), ASK, office.runner(), **options)
    assert came.status == "suspended" and came.suspended is not None
    found: dict[str, Any] = json.loads(json.dumps(came.suspended))
    return found


async def go_on(
    office: Office, state: Any, answers: Any, steps: Sequence[Step] = ("Done.",), **options: Any
) -> LoopResult:
    return await resume(state, answers, Scripted(steps), office.runner(), **options)


PAY = ("pay", {"to": "ada"})
PAY_BOB = ("pay", {"to": "bob"})


async def test_an_answered_run_continues_with_the_whole_turn_in_order() -> None:
    office = Office()
    state = await suspended(office, ("Let me.", [("look", {}), PAY, ("whoami", {})]))
    sent: list[Any] = []

    def last(messages: Sequence[Any]) -> str:
        sent.extend(messages)
        return "All paid."

    came = await go_on(office, state, {"call_2": True}, [last], by="eve")
    assert (came.status, came.text, came.turns, came.suspended) == ("done", "All paid.", 2, None)
    assert [result.status for result in came.results] == ["ok", "ok", "ok"]
    assert came.results[1].answered_by == "eve" and office.paid == ["ada"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "tool"]
    assert sent[1]["content"] == "Let me."
    assert [one["tool_call_id"] for one in sent[2:]] == ["call_1", "call_2", "call_3"]
    assert "the bill" in sent[2]["content"] and sent[3]["content"] == "paid ada" and sent[4]["content"] == "None"
    assert came.messages == [*sent, {"role": "assistant", "content": "All paid."}]


# -- one answer at a time ----------------------------------------------------------------------------------------------


async def test_a_run_is_suspended_again_while_a_call_waits() -> None:
    office = Office()
    state = await suspended(office, [PAY, PAY_BOB, ("look", {})])
    shown = {call_id: (pending["reason"], pending["arguments"]["to"]) for call_id, pending in state["waiting"].items()}
    assert shown == {"call_1": ("pay ada?", "ada"), "call_2": ("pay bob?", "bob")}
    assert (await go_on(office, state, {}, [])).suspended == state and office.paid == []  # no answer changes nothing
    came = await go_on(office, state, {"call_2": True}, [])
    assert came.status == "suspended" and came.suspended is not None and came.suspended["waiting"].keys() == {"call_1"}
    assert [result.status for result in came.results] == ["suspended", "ok", "ok"]
    assert came.tool_executions[0]["pending"] == state["waiting"]["call_1"]
    came = await go_on(office, json.loads(json.dumps(came.suspended)), {"call_1": False})
    assert (came.status, office.paid) == ("done", ["bob"])
    assert [result.status for result in came.results] == ["denied", "ok", "ok"]
    assert came.results[2].content[1] == Media("image", PNG, "image/png", "s3://b/bill.png", "bill.png", fetch=True)


async def test_an_answer_may_change_the_arguments_deny_or_ask_again() -> None:
    office = Office()
    state = await suspended(office, [PAY, PAY, PAY_BOB, PAY_BOB, ("pay", {"to": "eve"})])
    answers = {"call_1": allow({"to": "adele"}), "call_3": deny("not him"), "call_5": ask("who is eve?")}
    came = await go_on(office, state, answers, [])
    assert office.paid == ["adele"]
    assert [result.status for result in came.results] == ["ok", "suspended", "denied", "suspended", "suspended"]
    assert came.suspended is not None
    reasons = [pending["reason"] for pending in came.suspended["waiting"].values()]
    assert sorted(reasons) == ["pay ada?", "pay bob?", "who is eve?"]
    came = await go_on(office, came.suspended, dict.fromkeys(came.suspended["waiting"], True))
    assert (came.status, office.paid) == ("done", ["adele", "ada", "bob", "eve"])


# -- once --------------------------------------------------------------------------------------------------------------


async def test_a_used_state_runs_nothing_again() -> None:
    office = Office()
    state = await suspended(office, [PAY])
    runner = office.runner()
    assert (await resume(state, {"call_1": True}, Scripted(["Done."]), runner)).status == "done"
    again = resume(state, {"call_1": True}, Scripted([]), runner)
    with pytest.raises(NotResumed, match=r"'call_1' was not resumed.*resumed already") as found:
        await again
    assert found.value.call_id == "call_1" and again.suspended is None
    assert "resumed already" in again.messages[-1]["content"]
    came = await run(Scripted(["I see."]), again.messages, runner, state=again.state)
    assert (came.status, office.paid) == ("done", ["ada"])


async def test_two_concurrent_resumes_run_the_call_once() -> None:
    office = Office()
    state = await suspended(office, [PAY])
    runner = office.runner()
    both = [resume(state, {"call_1": True}, Scripted(["Done."]), runner) for _ in range(2)]
    came = await asyncio.wait_for(asyncio.gather(*both, return_exceptions=True), BOUND)
    assert sorted(type(one).__name__ for one in came) == ["LoopResult", "NotResumed"]
    assert office.paid == ["ada"]


async def test_an_expired_record_is_reported_to_the_model() -> None:
    office = Office()
    state = await suspended(office, [PAY])
    clock = ManualClock(now=state["waiting"]["call_1"]["expires_at"] + 1)
    came = await resume(state, {"call_1": True}, Scripted(["Too late."]), office.runner(clock=clock))
    assert (came.status, office.paid) == ("done", [])
    assert "too late" in came.messages[-2]["content"]


# -- what goes on with it ----------------------------------------------------------------------------------------------


async def test_counters_usage_and_state_continue() -> None:
    office = Office()
    call = ToolCall("c", "pay", {"to": "ada"})
    turn = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function"}]}
    first = Reply("", [call], [turn], "calls", {"input_tokens": 2}, state={"container": "c_1"})
    states: list[Any] = []

    class Keeping(Scripted):
        async def __call__(self, messages: Any, toolset: Any, /, *, state: Any = None) -> Reply:
            states.append(state)
            return await super().__call__(messages, toolset)

    state = await suspended(office, first, max_turns=3, max_calls=2)
    assert (state["turns"], state["calls_left"], state["state"]) == (1, 2, {"container": "c_1"})
    more = Reply("", [ToolCall("d", "look"), ToolCall("e", "look")], [turn], "calls", {"input_tokens": 5})
    model = Keeping([more, Reply("Done.", (), [], "end", {"input_tokens": 1})])
    going = resume(state, {"c": True}, model, office.runner())
    came = await going
    assert states == [{"container": "c_1"}, None]
    assert [result.status for result in came.results] == ["ok", "ok", "limited"]  # two calls in all
    assert (came.status, came.turns, came.usage) == ("limited", 3, {"input_tokens": 8})
    assert came.usage_by_turn == going.usage_by_turn == [{"input_tokens": 2}, {"input_tokens": 5}, {"input_tokens": 1}]
    assert going.usage == came.usage


@pytest.mark.parametrize(
    ("on_failure", "status", "steps"), [("fail", "failed", []), ("degrade", "degraded", ["Sorry."])]
)
async def test_on_failure_holds_across_a_suspension(on_failure: Any, status: str, steps: list[str]) -> None:
    office = Office()
    state = await suspended(office, [("pay", {"to": "nobody"})], on_failure=on_failure)
    assert (await go_on(office, state, {"call_1": True}, steps)).status == status


class OfApi(Scripted):
    """A model that says what its messages are written for, or does not."""

    def __init__(self, steps: Sequence[Step], api: Any) -> None:
        super().__init__(steps)
        self.api = api


async def test_a_model_of_another_api_is_refused() -> None:
    office = Office()
    state = await suspended(office, [PAY])
    assert state["api"] == "openai_chat"
    with pytest.raises(DefinitionError, match=r"form of 'openai_chat', and this model takes those of 'gemini'"):
        resume(state, {"call_1": True}, OfApi([], "gemini"), office.runner())
    assert office.paid == []
    unsaid = await resume(state, {"call_1": True}, OfApi(["Done."], None), office.runner())
    assert (unsaid.status, office.paid) == ("done", ["ada"])


async def test_a_wrong_model_context_or_runner_is_refused() -> None:
    office = Office()
    state = await suspended(office, [PAY])
    wrong: Any = {"deps": 1}
    with pytest.raises(DefinitionError, match=r"needs a model, such as models.Anthropic"):
        resume(state, {}, "anthropic:claude-sonnet-5-5", office.runner())  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"loop.resume: a context is ToolContext"):
        resume(state, {}, Scripted([]), office.runner(), context=wrong)
    with pytest.raises(DefinitionError, match="the loop needs a Runner"):
        resume(state, {}, Scripted([]), [asks])  # type: ignore[arg-type]


async def test_the_resumers_context_overrides_the_saved_one() -> None:
    office = Office()
    context = ToolContext(principal="bob", session="s1", deps="old", metadata={"tenant": 7})
    state = await suspended(office, [PAY, ("pay", {"to": "eve"})], context=context)
    given = ToolContext(deps="new", session="s2")
    came = await go_on(office, state, {"call_1": True, "call_2": True}, [[("whoami", {})], "Done."], context=given)
    assert came.status == "done"
    [seen] = office.seen
    assert (seen.principal, seen.session, seen.deps, seen.metadata) == ("bob", "s2", "new", {"tenant": 7})


async def test_events_of_resumed_calls_come_before_the_next_turn() -> None:
    office = Office()
    state = await suspended(office, [PAY])
    events = [event async for event in resume(state, {"call_1": True}, Scripted(["Done."]), office.runner(), by="eve")]
    kinds = [event.kind if isinstance(event, Event) else type(event).__name__ for event in events]
    assert kinds == ["tool:decided", "tool:started", "tool:post", "TurnStarted", "ModelText", "Finished"]
    assert events[0].data["by"] == "eve" and events[3] == TurnStarted(2, ("pay", "look", "whoami"))


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
async def test_cancelling_a_resume_leaves_the_other_calls_waiting(now: bool) -> None:
    office = Slow()
    state = (await run(Scripted([[PAY, PAY_BOB]]), ASK, office.runner())).suspended
    assert state is not None
    going = resume(state, dict.fromkeys(state["waiting"], True), Scripted([]), office.runner())
    awaited = asyncio.ensure_future(going)
    await office.started.wait()
    going.cancel(now=now)
    office.let_go.set()
    came = await awaited
    assert came.status == "suspended" and came.suspended is not None
    assert (came.suspended["waiting"].keys(), office.paid) == ({"call_2"}, ["ada"])
    assert [result.status for result in came.results] == ["cancelled" if now else "ok", "suspended"]


async def test_a_resume_cancelled_before_it_begins_changes_nothing() -> None:
    office = Office()
    state = await suspended(office, [PAY])
    going = resume(state, {"call_1": True}, Scripted([]), office.runner())
    assert going.suspended == state
    going.cancel()
    came = await going
    assert (came.status, came.suspended, office.paid) == ("suspended", state, [])


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


@pytest.mark.large
async def test_an_edit_of_any_field_runs_nothing_else() -> None:
    office = Office()
    everything = [*office.tools(), search_tool(office.tools())]
    runner = Runner(everything, guards=[asks], approve=later, resume_key=KEY)
    turn = [PAY, PAY_BOB, ("look", {}), ("search_tools", {"query": "who asks"}), ("whoami", {"more": 1})]
    context = ToolContext(principal="bob", metadata={"found": 5})
    came = await run(Scripted([turn]), ASK, runner, context=context, selector=pinned("pay", "look", "search_tools"))
    state = json.loads(json.dumps(came.suspended))
    assert state["found"] == ["whoami"] and len(state["waiting"]) == 2
    for path in leaves(state):
        for value in (None, "x", 1.5, True, [5], {"$bytes": 1}):
            changed = edited(state, path, value)
            office.paid.clear()
            try:
                await resume(changed, {"call_1": True, "call_2": True}, Scripted(["Done."]), again(runner))
            except (DefinitionError, NotResumed):
                assert office.paid == [], path
            else:
                assert office.paid == ["ada", "bob"], path


def again(runner: Runner) -> Runner:
    """The same in another process, which has taken up nothing yet."""
    return Runner(runner.tools, guards=[asks], approve=later, resume_key=KEY)


async def test_one_changed_record_stops_the_whole_resume() -> None:
    office = Office()
    state = await suspended(office, [PAY, PAY_BOB])
    changed = edited(state, ("waiting", "call_2", "arguments", "to"), "eve")
    with pytest.raises(NotResumed, match=r"'call_2' was not resumed.*give both the same resume_key"):
        await go_on(office, changed, {"call_1": True, "call_2": True}, [])
    assert office.paid == []
    assert (await go_on(office, state, {"call_1": True, "call_2": True})).status == "done"


async def test_editing_a_sealed_record_runs_nothing() -> None:
    office = Office()
    state = await suspended(office, [PAY], context=ToolContext(principal="bob"))
    for path in leaves(state["waiting"]["call_1"]):
        with pytest.raises((DefinitionError, NotResumed)):
            await go_on(office, edited(state, ("waiting", "call_1", *path), "x"), {"call_1": True}, [])
    assert office.paid == []
    assert (await go_on(office, state, {"call_1": True})).status == "done"


async def test_a_record_under_the_id_of_another_call_is_refused() -> None:
    office = Office()
    state = await suspended(office, [PAY, PAY_BOB])
    ada, bob = state["waiting"].values()
    with pytest.raises(DefinitionError, match="'call_1' is the record of another call"):
        await go_on(office, {**state, "waiting": {"call_1": bob, "call_2": ada}}, {"call_1": True}, [])


async def test_a_waiting_call_cannot_be_answered_by_editing() -> None:
    office = Office()
    state = await suspended(office, [PAY, PAY_BOB])
    with pytest.raises(DefinitionError, match="and the suspended calls are"):
        await go_on(office, edited(state, ("results", 0, "status"), "ok"), {}, [])
    for changed in (state, edited(edited(state, ("results", 0, "status"), "ok"), ("results", 1, "status"), "ok")):
        with pytest.raises(DefinitionError, match="no call waits in it"):
            await go_on(office, {**changed, "waiting": {}}, {}, [])


CALL_1: dict[str, Any] = {"call_1": True}
MISTAKES: list[tuple[Callable[[Any], Any], Any, str]] = [
    (lambda state: None, CALL_1, "not None: nothing waits there"),
    (json.dumps, CALL_1, r"json.loads of a text.*not str"),
    (lambda state: {}, CALL_1, "this is not a result's `suspended`: waiting: Field required"),
    (lambda state: {**state, "version": 2}, CALL_1, "version: Input should be 1"),
    (lambda state: {**state, "messages": [object()]}, CALL_1, "not JSON serializable"),
    (lambda state: state, True, "answers go by the id of the call.*the waiting calls are 'call_1'"),
    (lambda state: state, {"call_9": True}, "no call 'call_9' waits.*the waiting calls are 'call_1'"),
    (lambda state: state, {"call_1": "yes"}, "is True, False, allow.*not 'yes'"),
]


@pytest.mark.parametrize(("made", "answers", "says"), MISTAKES)
async def test_an_invalid_state_or_answer_is_refused(made: Any, answers: Any, says: str) -> None:
    office = Office()
    state = await suspended(office, [PAY])
    with pytest.raises(DefinitionError, match=says):
        resume(made(state), answers, Scripted([]), office.runner())
    assert office.paid == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["$bytes", "a", ""]) | st.text(), inner),
)


@given(JSON)
def test_only_bytes_become_bytes_again(value: Any) -> None:
    assert with_bytes(json.loads(json.dumps(without_bytes(value)))) == value


async def test_sdk_objects_in_the_history_become_json() -> None:
    from openai.types.chat import ChatCompletionMessage

    office = Office()
    said: Any = ChatCompletionMessage(role="assistant", content="How can I help?")
    came = await run(Scripted([[PAY]]), [said, *ASK], office.runner())
    assert came.suspended is not None
    assert came.suspended["messages"][0] == {"role": "assistant", "content": "How can I help?"}


# -- another process ---------------------------------------------------------------------------------------------------

PROGRAM = Path(__file__).parent / "support" / "bills.py"


def process(folder: Path, *words: str, **environment: str) -> str:
    """What the program says, in a process of its own."""
    done = subprocess.run(
        [sys.executable, os.fspath(PROGRAM), *words],
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
def test_a_run_continues_in_other_processes_once(tmp_path: Path) -> None:
    asked = process(tmp_path, "ask").splitlines()
    assert [line.partition(":")[0] for line in asked] == ["call_1", "call_2"] and "ada" in asked[0]
    assert "give both the same resume_key" in process(tmp_path, "answer", "call_2", "yes", "eve", RESUME_KEY="o" * 32)
    with closing(sqlite3.connect(tmp_path / "bills.db", isolation_level=None)) as sql:
        [kept] = sql.execute("SELECT suspended FROM runs")
        assert process(tmp_path, "answer", "call_2", "yes", "eve") == asked[0]
        said = process(tmp_path, "answer", "call_1", "no", "eve")
        assert said.endswith("paid bob 20 EUR") and "paid ada" not in said
        sql.execute("UPDATE runs SET suspended = ?", kept)
    assert "'call_2' was not resumed" in process(tmp_path, "answer", "call_2", "yes", "eve")
