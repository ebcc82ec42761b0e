"""A run with a key is one run, however often its request comes: `loop.run(…, key="request-17")`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from processes import SECONDS, program

from ferrule import Decision, DefinitionError, Journal, Media, Runner, Text, ToolCall, ToolContext, ask, tool
from ferrule.approval import web
from ferrule.errors import JournalError
from ferrule.journal import MemoryJournal, memory
from ferrule.loop import LoopResult, ModelText, NotResumed, Run, RunKeyError, TurnStarted, resume, run
from ferrule.models import ModelError, Reply, Scripted, Step
from ferrule.selection import pinned, search_tool
from ferrule.values.event import Event
from ferrule.values.frozen import JsonObject
from ferrule.values.journal_entry import Intent, JournalEntry

SEALED = b"k" * 32
ASK = [{"role": "user", "content": "Pay them."}]
KEY = "request-17"


class Model:
    """A model whose answer depends on the messages alone, as that of a real one; each turn begins its ids anew."""

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
    """Tools that count what was done, and runners of them, each as in a process of its own."""

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


async def test_a_request_that_is_sent_again_gets_the_same_result_and_nothing_is_asked_or_run() -> None:

    office, journal = Office(), memory()
    first = await run(Model(TWO_TURNS), ASK, office.runner(journal), key=KEY, principal="ann")
    model, said, events = Model(TWO_TURNS), [], []
    again = run(model, ASK, office.runner(journal, observers=[events.append]), key=KEY, principal="ann")
    async for event in again:
        said += [event.text] if isinstance(event, ModelText) else []
    assert facts(again.result) == facts(first) and first.status == "done"
    assert (office.paid, office.looked, model.asked, events) == (["ada", "bob"], 1, [], [])
    assert said == ["One.", "Two.", "All paid."]


async def test_whatever_a_run_came_to_is_found_again_as_it_was() -> None:

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
        ([[("fails", {})], "I cannot."], {"on_failure": "degrade"}),
        ([[("fails", {}), pay("ada")]], {"on_failure": "fail"}),
        ([[pay("ada"), pay("bob")], "One."], {"max_calls": 1}),
        ([[pay("ada")], [pay("bob")]], {"max_turns": 2}),
        ([paused, garbled, half], {}),
        ([[("pay", {"to": []})]] * 3, {}),
        ([[("bake", {"loaves": 2})], [("look", {})], "Baked."], {}),
    ]
    for script, options in runs:
        journal = memory()
        runner = office.runner(journal)
        first = await run(Scripted(script), ASK, runner, key=KEY, state={"begins": 1}, **options)
        model = Scripted([])
        again = await run(model, ASK, runner, key=KEY, state={"begins": 1}, **options)
        assert facts(again) == facts(first) and model.requests == []
        # Other limits change nothing of a run that has ended.
        other = await run(model, ASK, runner, key=KEY, max_turns=9, max_calls=1, on_failure="continue")
        assert facts(other)[:3] == facts(first)[:3] and model.requests == []


async def test_another_principal_session_or_key_is_another_run() -> None:

    office, journal = Office(), memory()
    people: list[dict[str, Any]] = [{}, {"principal": "ann"}]
    who = [{**one, **more} for one in people for more in ({}, {"session": "s"})]
    for one in who:
        for key in ("a", "b"):
            for _ in range(2):
                await run(Model(TWO_TURNS), ASK, office.runner(journal), key=key, **one)
    assert Counter(office.paid) == {"ada": 8, "bob": 8}


@pytest.mark.parametrize("other", ["messages", "model", "tools"])
async def test_the_same_key_with_another_request_is_refused(other: str) -> None:
    class Another(Model):
        pass

    @tool(read_only=True)
    async def more() -> None:
        """One more tool."""

    office, journal = Office(), memory()
    await run(Model(TWO_TURNS), ASK, office.runner(journal), key=KEY)
    messages = [*ASK, *ASK] if other == "messages" else ASK
    model = (Another if other == "model" else Model)(TWO_TURNS)
    office.tools += [more] if other == "tools" else []
    with pytest.raises(RunKeyError, match="'request-17' began with other messages, another model or other tools"):
        await run(model, messages, office.runner(journal), key=KEY)
    assert office.paid == ["ada", "bob"] and model.asked == []


def test_a_key_needs_a_journal_and_is_a_text() -> None:
    with pytest.raises(DefinitionError, match=r"a run with a key needs a journal.*journal=Journal\.open"):
        run(Model(TWO_TURNS), ASK, Runner(Office().tools), key=KEY)
    for key in ("", 17):
        with pytest.raises(DefinitionError, match="key is the name of the request, such as 'request-17', not "):
            run(Model(TWO_TURNS), ASK, Office().runner(memory()), key=key)  # type: ignore[arg-type]


# -- stopped in between ------------------------------------------------------------------------------------------------


class Killed(JournalError):
    """The process is dead."""


class Process(Journal):
    """A journal as one process has it that is killed at a step: before that is written, or after."""

    def __init__(self, shared: MemoryJournal, dies_at: int, *, after: bool) -> None:
        self.shared, self.dies_at, self.after = shared, dies_at, after
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
        return await self._step(self.shared.begin(intent, after=after))

    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        await self._step(self.shared.end(intent, outcome))

    async def take(self, key: str, expires_at: float) -> bool:
        return bool(await self._step(self.shared.take(key, expires_at)))

    async def settle(self, kept: JournalEntry, outcome: JsonObject) -> bool:
        return bool(await self._step(self.shared.settle(kept, outcome)))

    async def find(self, key: str, *, wait: bool = False) -> JournalEntry | None:
        return await self.shared.find(key, wait=wait)

    async def unfinished(self, *, ticket: str | None = None) -> list[JournalEntry]:
        return await self.shared.unfinished(ticket=ticket)

    def note(self, event: Event) -> None:
        pass

    @property
    def store(self) -> Any:
        return self.shared.store


@example([(3, True), (4, True)])
@given(st.lists(st.tuples(st.integers(1, 14), st.booleans()), min_size=1, max_size=3))
def test_a_run_whose_process_is_killed_again_and_again_pays_once_and_comes_to_its_end(
    kills: list[tuple[int, bool]],
) -> None:
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
        # What was not paid, or nobody knows, is never told as paid; and what was paid is told as that, or as unknown.
        told = {result.call.arguments["to"]: result.status for result in result.results if result.tool_name == "pay"}
        assert told.keys() == {"ada", "bob"} and set(told.values()) <= {"ok", "unknown"}
        assert all(to in office.paid for to, status in told.items() if status == "ok")
        again = Model(TWO_TURNS)
        assert facts(await run(again, ASK, office.runner(journal), key=KEY)) == facts(result) and again.asked == []

    go(main())


@pytest.mark.parametrize("stop", ["raises", "cancel", "task", "left"])
@pytest.mark.parametrize("turn", [0, 1, 2])
async def test_a_run_that_was_stopped_goes_on_where_it_was(stop: str, turn: int) -> None:

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


async def test_who_comes_while_the_run_is_under_way_waits_for_its_result() -> None:

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


KILLED = """
from ferrule import Runner, tool
from ferrule.loop import run
from ferrule.models import Scripted

def reach(point):
    if point == sys.argv[2]:
        say(point)
        wait()

class Model:
    async def __call__(self, messages, toolset):
        turn = sum(message["role"] == "assistant" for message in messages)
        reach(f"turn {turn}")
        script = [[("pay", {"to": "ada"})], [("pay", {"to": "bob"})], "All paid."]
        return await Scripted([script[turn]])(messages, toolset)

    results = staticmethod(Scripted([]).results)

@tool
async def pay(to: str) -> str:
    "Pay somebody."
    with open(path + ".bank", "a") as bank:
        bank.write(to + chr(10))
    reach(f"after {to}")
    return f"paid {to}"

async def main():
    runner = Runner([pay], journal=Journal.open(path))
    result = await run(Model(), [{"role": "user", "content": "Pay them."}], runner, key="request-17")
    say(result.status, *[one.status for one in result.results])

asyncio.run(main())
"""


def test_a_request_whose_process_was_killed_is_sent_again_and_pays_once(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    for at in ("turn 0", "after ada", "turn 1"):
        with program(KILLED, path, at) as killed:
            assert killed.heard() == at
            killed.kill()
    with program(KILLED, path, "turn 2") as last:
        assert last.heard() == "turn 2"
        with program(KILLED, path, "nowhere") as waits:  # while the last one lives
            last.kill()
            assert waits.rest() == "done unknown ok"
    with program(KILLED, path, "nowhere") as again:
        assert again.rest() == "done unknown ok"
    assert Path(f"{path}.bank").read_text().split() == ["ada", "bob"]


# -- suspended ---------------------------------------------------------------------------------------------------------


async def test_a_suspended_run_comes_again_as_it_waits_and_after_its_answer_with_its_end() -> None:

    office, journal = Office(), memory()
    script: list[Step] = [[pay("ada"), pay("bob"), ("look", {})], "Paid."]
    first = await run(Model(script), ASK, office.asking(journal), key=KEY, principal="ann")
    again = await run(Model(script), ASK, office.asking(journal), key=KEY, principal="ann")
    assert first.status == "suspended" and facts(again) == facts(first) and office.looked == 1
    state = json.loads(json.dumps(again.suspended))
    one = await resume(state, {"call_1": True}, Model(script), office.asking(journal))
    assert (one.status, office.paid) == ("suspended", ["ada"])
    # The other call is answered by the state of before: what has become of the run meanwhile counts.
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
def test_a_resumed_run_whose_process_is_killed_pays_once_and_comes_to_its_end(step: int, after: bool) -> None:
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


async def test_an_answer_resumes_no_run_but_that_of_its_question() -> None:

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


async def test_a_run_that_another_journal_has_is_not_resumed() -> None:

    office = Office()
    state = (await run(Model([[pay("ada")]]), ASK, office.asking(memory()), key=KEY)).suspended
    assert state is not None
    with pytest.raises(RunKeyError, match="is not in this journal"):
        await resume(state, {"call_1": True}, Model([]), office.asking(memory()))
    with pytest.raises(DefinitionError, match="needs a journal"):
        resume(state, {"call_1": True}, Model([]), Runner(office.tools, resume_key=SEALED))
    assert office.paid == []


@pytest.mark.parametrize("key", [None, KEY])
async def test_every_suspended_result_has_its_pending_and_waits_in_a_queue(key: str | None) -> None:

    office, journal, queue = Office(), memory(), web()
    script: list[Step] = [[pay("ada"), pay("bob")], "Paid."]
    first = await run(Model(script), ASK, office.asking(journal), key=key, principal="ann", session="s")
    assert first.suspended is not None
    one = await resume(first.suspended, {"call_1": True}, Model(script), office.asking(journal))
    [waits] = [result for result in one.results if result.status == "suspended"]
    id = await queue.put(waits)
    [shown] = await queue.waiting()
    assert shown.id == id and office.paid == ["ada"]
    before, after = (result.results[1].record() for result in (first, one))
    assert before.pop("at") == pytest.approx(after.pop("at")) and before == after
    taken = await queue.answer(id, shown.digest, True, by="eve")
    assert (await office.asking(journal).resume(taken.record, taken.decision, by=taken.by)).text == "paid bob"
