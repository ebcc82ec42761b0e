"""A run with a key is one run, however often its request comes: `loop.run(…, key="request-17")`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from processes import SECONDS

from cast import add
from ferrule import Decision, DefinitionError, Event, Journal, Media, Runner, Text, ToolCall, ToolContext, ask, tool
from ferrule.errors import JournalError
from ferrule.journal import MemoryJournal, memory
from ferrule.loop import LoopResult, ModelText, NotResumed, Run, RunKeyError, TurnStarted, resume, run
from ferrule.models import ModelError, Reply, Scripted, Step
from ferrule.selection import pinned, search_tool
from ferrule.values.frozen import JsonObject
from ferrule.values.journal_entry import Intent, JournalEntry

SEALED = b"k" * 32
ASK = [{"role": "user", "content": "Pay them."}]
KEY = "request-17"


class Model:
    """A model whose answer depends on the messages alone; each turn begins its ids anew."""

    api = "openai_chat"

    def __init__(self, script: Sequence[Step], before: Callable[[int], object] = lambda turn: None) -> None:
        self.script = script
        self.before = before
        self.asked: list[int] = []

    async def __call__(self, messages: Sequence[Any], toolset: Any) -> Reply:
        turn = sum(message["role"] == "assistant" for message in messages)
        self.asked.append(turn)
        waits = self.before(turn)
        if isinstance(waits, Coroutine):
            await waits
        return await Scripted([self.script[turn]])(messages, toolset)

    def results(self, results: Any) -> list[Any]:
        return Scripted([]).results(results)


class Office:
    """Tools that count what was done, and runners of them."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.looked = 0

        @tool
        async def pay(to: str) -> str:
            """Pay somebody."""
            self.paid.append(to)
            return f"paid {to}"

        @tool(read_only=True)
        async def look() -> int:
            """Look how often somebody has looked."""
            self.looked += 1
            return self.looked

        self.tools = [pay, look]

    def runner(self, journal: Journal, **options: Any) -> Runner:
        return Runner(self.tools, journal=journal, resume_key=SEALED, **options)

    def asking(self, journal: Journal) -> Runner:
        def asks(call: ToolCall, context: ToolContext) -> Decision | None:
            return ask(f"pay {call.arguments['to']}?") if call.name == "pay" else None

        return self.runner(journal, guards=[asks], approve=lambda call, decision, context: decision)


def pay(to: str) -> tuple[str, dict[str, Any]]:
    return ("pay", {"to": to})


TWO_TURNS: list[Step] = [("One.", [pay("ada"), ("look", {})]), ("Two.", [pay("bob")]), "All paid."]


def go(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, SECONDS))


def facts(result: LoopResult) -> Any:
    """All of a result that is not a matter of time."""
    records = [{**record, "duration_ms": 0, "at": 0} for record in result.tool_executions]
    replies = [(reply.text, list(reply.calls), reply.stop, reply.reason, dict(reply.usage)) for reply in result.replies]
    return [
        *(result.status, result.text, result.messages, records, result.turns, result.usage_by_turn, replies),
        *(result.reason, result.state, result.suspended, result.offered),
    ]


async def test_a_repeated_request_runs_nothing() -> None:
    office, journal = Office(), memory()
    first = await run(Model(TWO_TURNS), ASK, office.runner(journal), key=KEY, principal="ann")
    model, said, events = Model(TWO_TURNS), [], []
    again = run(model, ASK, office.runner(journal, observers=[events.append]), key=KEY, principal="ann")
    async for event in again:
        said += [event.text] if isinstance(event, ModelText) else []
    assert facts(again.result) == facts(first) and first.status == "done"
    assert (office.paid, office.looked, model.asked, events) == (["ada", "bob"], 1, [], [])
    assert said == ["One.", "Two.", "All paid."]


async def test_every_kind_of_outcome_of_a_run_is_replayed() -> None:
    async def picture() -> list[Any]:
        """Make a picture."""
        return [Text("a dot"), Media("image", b"\x89PNG", "image/png", name="dot.png")]

    @tool(read_only=True)
    async def fails() -> None:
        """Fail."""
        raise ValueError("no paper")

    @tool(background=True)
    async def bake(loaves: int) -> str:
        """Bake."""
        return f"{loaves} loaves"

    office = Office()
    office.tools += [picture, fails, bake, search_tool([picture])]
    call = ToolCall("", "pay", {"to": "ada"}, data={"signature": "s"})
    paused = Reply("", [], [{"role": "assistant", "content": "…"}], "pause", {"tokens": 3}, state={"container": "c"})
    garbled = Reply("", [], [{"role": "assistant", "content": "{"}], "malformed", reason="cut JSON")
    half = Reply("Half of", [], [{"role": "assistant", "content": "Half of"}], "other", reason="the line went dead")
    runs: list[tuple[list[Step], dict[str, Any]]] = [
        ([[call, ("picture", {})], "Paid."], {}),
        ([[("pay", {"to": 5})], [("nothing", {})], "No."], {}),
        ([[("search_tools", {"query": "dot"})], [("picture", {})], "A dot."], {"selector": pinned("pay")}),
        ([[("fails", {}), pay("ada")]], {"on_failure": "fail"}),
        ([[pay("ada"), pay("bob")], "One."], {"max_calls": 1}),
        ([[pay("ada")], [pay("bob")]], {"max_turns": 2}),
        ([paused, garbled, half], {}),
        ([[("fails", {})], "I cannot."], {"on_failure": "degrade"}),
        ([[("pay", {"to": []})]] * 3, {}),
        ([[("bake", {"loaves": 2})], [("look", {})], "Baked."], {}),
    ]
    for script, options in runs:
        runner = office.runner(memory())
        first = await run(Scripted(script), ASK, runner, key=KEY, state={"begins": 1}, **options)
        model = Scripted([])
        again = await run(model, ASK, runner, key=KEY, state={"begins": 1}, **options)
        assert facts(again) == facts(first) and model.requests == []
        # Other limits change nothing of a run that has ended.
        other = await run(model, ASK, runner, key=KEY, max_turns=9, max_calls=1, on_failure="continue")
        assert facts(other)[:3] == facts(first)[:3] and model.requests == []


async def test_another_principal_session_or_key_is_another_run() -> None:
    office, journal = Office(), memory()
    others: list[dict[str, Any]] = [{}, {"principal": "ann"}, {"session": "s"}, {"key": "b"}]
    for other in others * 2:
        await run(Model(TWO_TURNS), ASK, office.runner(journal), **{"key": "a", **other})
    assert Counter(office.paid) == {"ada": 4, "bob": 4}


@pytest.mark.parametrize("other", ["messages", "model", "tools"])
async def test_the_same_key_with_another_request_is_refused(other: str) -> None:
    class AnotherModel(Model):
        pass

    office, journal = Office(), memory()
    await run(Model(TWO_TURNS), ASK, office.runner(journal), key=KEY)
    messages = [*ASK, *ASK] if other == "messages" else ASK
    model = (AnotherModel if other == "model" else Model)(TWO_TURNS)
    office.tools += [add] if other == "tools" else []
    with pytest.raises(RunKeyError, match="'request-17' began with other messages, another model or other tools"):
        await run(model, messages, office.runner(journal), key=KEY)
    assert office.paid == ["ada", "bob"] and model.asked == []


def test_a_key_needs_a_journal_and_is_a_text() -> None:
    with pytest.raises(DefinitionError, match=r"a run with a key needs a journal.*journal=Journal\.open"):
        run(Model(TWO_TURNS), ASK, Runner(Office().tools), key=KEY)
    for key in ("", 17):
        with pytest.raises(DefinitionError, match="key is the name of the request"):
            run(Model(TWO_TURNS), ASK, Office().runner(memory()), key=key)  # type: ignore[arg-type]


# -- stopped in between ------------------------------------------------------------------------------------------------


class Killed(JournalError):
    """The process is dead."""


class Process(MemoryJournal):
    """The shared journal in a process that is killed at a step: before that is written, or after."""

    def __init__(self, shared: MemoryJournal, dies_at: int, *, after: bool) -> None:
        vars(self).update(vars(shared))
        self.dies_at, self.after = dies_at, after
        self.steps = 0

    async def _step(self, work: Coroutine[Any, Any, Any]) -> Any:
        self.steps += 1
        if self.steps < self.dies_at:
            return await work
        if self.steps == self.dies_at and self.after:
            await work
        work.close()
        raise Killed("killed")

    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Any:
        return await self._step(super().begin(intent, after=after))

    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        await self._step(super().end(intent, outcome))

    async def take(self, key: str, expires_at: float) -> bool:
        return bool(await self._step(super().take(key, expires_at)))

    async def settle(self, kept: JournalEntry, outcome: JsonObject) -> bool:
        return bool(await self._step(super().settle(kept, outcome)))


@example([(3, True), (4, True)])
@given(st.lists(st.tuples(st.integers(1, 14), st.booleans()), min_size=1, max_size=3))
def test_a_run_killed_at_any_step_pays_once_and_ends(kills: list[tuple[int, bool]]) -> None:
    async def main() -> None:
        office, journal = Office(), memory()
        for step, after in kills:
            try:
                await run(Model(TWO_TURNS), ASK, office.runner(Process(journal, step, after=after)), key=KEY)
            except Killed:
                pass
            journal.cut_off()
        result = await run(Model(TWO_TURNS), ASK, office.runner(journal), key=KEY)
        assert result.status == "done" and max(Counter(office.paid).values(), default=0) <= 1  # perhaps nobody is paid
        # A payment that was not made is never reported as made; one that was made is reported as made or unknown.
        told = {result.call.arguments["to"]: result.status for result in result.results if result.tool_name == "pay"}
        assert told.keys() == {"ada", "bob"} and set(told.values()) <= {"ok", "unknown"}
        assert all(to in office.paid for to, status in told.items() if status == "ok")
        again = Model(TWO_TURNS)
        assert facts(await run(again, ASK, office.runner(journal), key=KEY)) == facts(result) and again.asked == []

    go(main())


@pytest.mark.parametrize("stop", ["raises", "cancel", "task", "left"])
@pytest.mark.parametrize("turn", [0, 2])
async def test_a_stopped_run_goes_on_where_it_was(stop: str, turn: int) -> None:
    office, journal = Office(), memory()
    stopped = asyncio.Event()

    def before(number: int) -> object:
        if number != turn:
            return None
        stopped.set()
        if stop == "raises":
            raise ModelError("too much to do")
        return asyncio.Event().wait()

    first = run(Model(TWO_TURNS, before), ASK, office.runner(journal), key=KEY)
    if stop == "left":
        async with first as events:
            async for event in events:
                if event == TurnStarted(turn + 1, ("pay", "look")):
                    break
    else:
        going = asyncio.ensure_future(_result(first))
        await stopped.wait()
        if stop == "raises":
            with pytest.raises(ModelError):
                await going
        elif stop == "cancel":
            first.cancel(now=True)
            assert (await going).status == "cancelled"
        else:
            going.cancel()
            await asyncio.wait([going])
    model = Model(TWO_TURNS)
    result = await run(model, ASK, office.runner(journal), key=KEY)
    assert (result.status, result.turns, model.asked) == ("done", 3, list(range(turn, 3)))
    assert (office.paid, office.looked) == (["ada", "bob"], 1)


@pytest.mark.parametrize("during", ["model", "call"])
async def test_calls_that_a_cancelled_run_did_not_make_are_made_when_it_goes_on(during: str) -> None:
    office, journal = Office(), memory()
    script: list[Step] = [[pay("ada"), pay("bob"), ("look", {})], "All paid."]

    def stop(at: str) -> None:
        if at == during:
            first.cancel()

    def stop_after_a_payment(event: Event) -> None:
        if event.kind == "tool:post":
            stop("call")

    first = run(
        Model(script, lambda turn: stop("model")),
        ASK,
        office.runner(journal, observers=[stop_after_a_payment]),
        key=KEY,
    )
    result = await first
    assert result.status == "cancelled" and len(office.paid) == (during == "call")
    model = Model(script)
    result = await run(model, ASK, office.runner(journal), key=KEY)
    assert (result.status, model.asked, {one.status for one in result.results}) == ("done", [1], {"ok"})
    assert (office.paid, office.looked) == (["ada", "bob"], 1)


async def test_a_repeated_request_waits_for_the_run_under_way() -> None:
    office, journal = Office(), memory()
    begun, go_on = asyncio.Event(), asyncio.Event()

    def before(turn: int) -> object:
        begun.set()
        return go_on.wait()

    first = asyncio.ensure_future(_result(run(Model(TWO_TURNS, before), ASK, office.runner(journal), key=KEY)))
    await begun.wait()
    model = Model(TWO_TURNS)
    second = asyncio.ensure_future(_result(run(model, ASK, office.runner(journal), key=KEY)))
    gives_up = run(model, ASK, office.runner(journal), key=KEY)
    third = asyncio.ensure_future(_result(gives_up))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not second.done() and model.asked == []
    gives_up.cancel(now=True)
    assert (await third).status == "cancelled"
    go_on.set()
    assert facts(await first) == facts(await second) and model.asked == []
    assert office.paid == ["ada", "bob"]


async def _result(going: Run) -> LoopResult:
    return await going


# -- suspended ---------------------------------------------------------------------------------------------------------


async def test_a_suspended_run_is_replayed_before_and_after_its_answers() -> None:
    office, journal = Office(), memory()
    script: list[Step] = [[pay("ada"), pay("bob"), ("look", {})], "Paid."]
    first = await run(Model(script), ASK, office.asking(journal), key=KEY, principal="ann")
    again = await run(Model(script), ASK, office.asking(journal), key=KEY, principal="ann")
    assert first.status == "suspended" and facts(again) == facts(first) and office.looked == 1
    state = json.loads(json.dumps(again.suspended))
    one = await resume(state, {"call_1": True}, Model(script), office.asking(journal))
    assert (one.status, office.paid) == ("suspended", ["ada"])
    # The earlier state answers the other call: the progress of the run since then counts.
    done = await resume(state, {"call_2": True}, Model(script), office.asking(journal))
    assert (done.status, [result.status for result in done.results]) == ("done", ["ok", "ok", "ok"])
    with pytest.raises(NotResumed, match=r"resumed already.*run\(…, key='request-17'\)"):
        await resume(state, {"call_2": True}, Model(script), office.asking(journal))
    model = Model(script)
    assert done.results[0].record()["session"] == f"key {KEY}"
    last = await run(model, ASK, office.asking(journal), key=KEY, principal="ann")
    assert (last.status, last.text, model.asked, last.suspended) == ("done", "Paid.", [], None)
    assert last.messages == done.messages and office.paid == ["ada", "bob"]


@given(st.integers(1, 12), st.booleans())
def test_a_resumed_run_killed_at_any_step_pays_once_and_ends(step: int, after: bool) -> None:
    async def main() -> None:
        office, journal = Office(), memory()
        script: list[Step] = [[pay("ada"), pay("bob")], "Paid."]
        answers = {"call_1": True, "call_2": True}
        state = (await run(Model(script), ASK, office.asking(journal), key=KEY)).suspended
        assert state is not None
        try:
            await resume(state, answers, Model(script), office.asking(Process(journal, step, after=after)))
        except Killed:
            pass
        journal.cut_off()
        result = await run(Model(script), ASK, office.asking(journal), key=KEY)
        if result.suspended is not None:
            result = await resume(result.suspended, answers, Model(script), office.asking(journal))
        assert result.status == "done" and max(Counter(office.paid).values(), default=0) <= 1
        assert {one.status for one in result.results} <= {"ok", "unknown", "invalid"}
        assert len(office.paid) >= sum(one.status == "ok" for one in result.results)

    go(main())


async def test_an_answer_resumes_only_the_run_of_its_question() -> None:
    office, journal = Office(), memory()
    script: list[Step] = [[pay("ada")], "Paid."]
    mine, of_others = [
        (await run(Model(script), ASK, office.asking(journal), key=KEY, principal=who)).suspended
        for who in ("ann", "bob")
    ]
    assert mine is not None and of_others is not None
    edited = {**mine, "run": of_others["run"]}
    with pytest.raises(NotResumed):
        await resume(edited, {"call_1": True}, Model(script), office.asking(journal))
    assert office.paid == []
    assert (await resume(of_others, {"call_1": True}, Model(script), office.asking(journal))).status == "done"
