"""Whatever happens to calls of a journal, in any order: each comes to one outcome, which stays.

A machine sends the same few calls again and again, answers, postpones, resumes, lets handlers end, cancels, lets time
pass, holds the journal before and after its operations, kills the program at that moment and begins another, with the
same definitions or changed ones. A killed program is one whose journal nobody uses any more: the next one goes on with
a copy of it.

The machine knows only what it did. What became of it, handlers, an observer, `reconcile` and the journal have seen.
`FERRULE_TESTS=all` runs four times as many machines, and `FERRULE_MACHINES=40` forty times as many.
"""

from __future__ import annotations

import asyncio
import copy
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import probe
from ferrule import Decision, Runner, ToolCall, ToolContext, ToolResult, Waits, allow, ask, tool
from ferrule.journal import MemoryJournal, SQLiteJournal
from ferrule.journal._waiting import Waiters
from ferrule.testing import ManualClock
from ferrule.testing.clock import wait_until_idle
from ferrule.types import Begun
from ferrule.values.frozen import thaw
from ferrule.values.journal_entry import Intent, JournalEntry

pytestmark = pytest.mark.slow

T = TypeVar("T")
RESUME_KEY = b"0123456789abcdef0123456789abcdef"
CHANGED = 100
TIMEOUT, QUEUE_TIMEOUT = 8.0, 30.0
TERMINAL = ("tool:post", "tool:error", "tool:suspended")
NOT_FINAL = ("suspended", "limited", "denied", "invalid")
HOLDS = ("before begin", "after begin", "before end", "after end", "before settle", "after settle", "after take")
ONCE = ("pay", "book")


class Holds:
    """Stops a journal once, before or after an operation.

    Attributes:
        place: Where it stops next.
        held: Who waits there.
        asked: How often it was asked anything.
    """

    def __init__(self) -> None:
        self.place: str | None = None
        self.held: list[tuple[str, asyncio.Event]] = []
        self.asked = 0

    async def at(self, place: str) -> None:
        self.asked += 1
        if self.place == place:
            self.place, let_go = None, asyncio.Event()
            self.held.append((place, let_go))
            try:
                await let_go.wait()
            finally:
                self.held.remove((place, let_go))

    async def around(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        try:
            await self.at(f"before {name}")
            found = await work
            await self.at(f"after {name}")
            return found
        finally:
            work.close()


class Held:
    """A journal that may be held."""

    def __init__(self, *path: Path) -> None:
        super().__init__(*path)
        self.holds = Holds()

    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
        return await self.holds.around("begin", super().begin(intent, after=after))

    async def end(self, intent: Intent, outcome: Any) -> None:
        await self.holds.around("end", super().end(intent, outcome))

    async def settle(self, kept: JournalEntry, outcome: Any) -> bool:
        return await self.holds.around("settle", super().settle(kept, outcome))

    async def take(self, key: str, expires_at: float) -> bool:
        return await self.holds.around("take", super().take(key, expires_at))


class InMemory(Held, MemoryJournal):
    def after_a_kill(self) -> InMemory:
        """The journal that the next program finds."""
        found = InMemory()
        alone = {"holds": found.holds, "_waiters": Waiters(), "_lock": threading.Lock(), "_store": self._store}
        vars(found).update({name: copy.copy(value) for name, value in vars(self).items() if name not in alone} | alone)
        found.cut_off()
        return found

    def kept(self) -> list[JournalEntry]:
        return list(self._calls.values())


class InFile(Held, SQLiteJournal):
    """A journal in a folder of its own."""

    def after_a_kill(self) -> InFile:
        """The journal that the next program finds: a copy of the files, of which nobody has a lock."""
        place = Path(tempfile.mkdtemp(dir=Path(self.path).parent))
        with self._lock.committing():
            for ending in ("", "-wal"):
                shutil.copy(f"{self.path}{ending}", place / f"calls.db{ending}")
        self.close()
        return InFile(place / "calls.db")

    def kept(self) -> list[JournalEntry]:
        found = [self._read_entry(key) for (key,) in self._reads.rows("SELECT key FROM calls", ())]
        return [kept for kept in found if kept is not None]


class Call:
    """A call that may come again: all that was seen of it.

    Attributes:
        runs: Of each run of the handler: the version of its tool, and the life of the program.
        told: What was told of it by calls that nobody cancelled, and the life in which it was.
        kills: How often the program was killed while it was begun.
    """

    def __init__(self, name: str, id: str, n: int, mode: str, session: str, principal: str) -> None:
        self.name, self.n, self.mode = name, n, mode
        self.session, self.principal = session, principal
        self.sent = ToolCall(id, name, {"n": n, "mode": mode})
        self.runs: list[Run] = []
        self.told: list[ToolResult] = []

    @property
    def judged(self) -> dict[str, Any]:
        """The arguments that its handler is to see."""
        return {**self.sent.arguments, "m": CHANGED if "change" in self.mode else 0}

    @property
    def final(self) -> list[ToolResult]:
        """The final results that were given; an unknown outcome may become known later."""
        return [one for one in self.told if one.executed is not False and one.status not in (*NOT_FINAL, "unknown")]

    def __repr__(self) -> str:
        told = [(one.status, one.executed, one.text[:30]) for one in self.told]
        return f"<{self.name} {self.sent.id} {self.sent.arguments} of {self.runs}: {told}>"


class Run:
    """A run of a handler."""

    def __init__(self, call: Call, version: str, life: int, number: int) -> None:
        self.call, self.version, self.life, self.number = call, version, life, number
        self.ending = asyncio.Event()
        self.how = ""
        self.inside = True

    def __repr__(self) -> str:
        return f"run {self.number} in life {self.life} of version {self.version} {self.how}"


class Try:
    """A call on its way; `came_late` is whether it was known by then what the call had come to."""

    def __init__(self, call: Call, task: asyncio.Task[ToolResult], resumes: str = "", answer: bool = True) -> None:
        self.call, self.task = call, task
        self.resumes, self.answer = resumes, answer
        self.came_late = bool(call.final)
        self.cancelled = self.looked_at = False


# How fast the disk is decides what there is at a step; what is drawn must not depend on that.
PLACES = st.integers(0, 11)


def at(place: int, things: list[T]) -> list[T]:
    """The one at that place, counted round; none of none."""
    return [things[place % len(things)]] if things else []


class KeptCalls(RuleBasedStateMachine):
    """All that can happen, with a journal in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.complaints: list[Any] = []
        self.loop.set_exception_handler(lambda loop, context: self.complaints.append(context))
        self.faults: list[str] = []
        self.calls: dict[tuple[Any, ...], Call] = {}
        self.runs: list[Run] = []
        self.life, self.version = 0, "1"
        self.tries: list[Try] = []
        self.refused: set[str] = set()
        self.records: list[tuple[Call, Any]] = []
        self.folder = tempfile.TemporaryDirectory()
        self.journal = self.made_journal()

    def made_journal(self) -> Any:
        return InMemory()

    @initialize(concurrency=st.sampled_from([1, 2, 3]))
    def start(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.begin_life()

    # -- a program -----------------------------------------------------------------------------------------------------

    def begin_life(self) -> None:
        self.life += 1
        self.clock = ManualClock(1000.0 * self.life)
        self.tries = []
        self.questions: list[asyncio.Future[Decision | bool]] = []
        self.terminal: Counter[str] = Counter()
        self.settled = 0
        life, version = self.life, self.version

        async def handle(context: ToolContext, n: int, mode: str, m: int = 0) -> str:
            return await self.handled(context, {"n": n, "mode": mode, "m": m}, version, life)

        async def find_out(call: ToolCall, context: ToolContext) -> ToolResult | bool:
            runs = self.call_of(call.name, call.id, dict(call.arguments), context).runs
            return ToolResult(f"run {runs[-1].number}") if runs else False

        def observe(event: Any) -> None:
            if life == self.life and event.kind in TERMINAL:
                self.terminal[event.call.id] += 1

        options: dict[str, Any] = {"metadata": {"version": version}, "parallel": True, "timeout": TIMEOUT}
        self.runner = Runner(
            [
                tool(handle, name="pay", **options),
                tool(handle, name="put", idempotent=True, **options),
                tool(handle, name="book", reconcile=find_out, **options),
            ],
            guards=[self.guard],
            approve=self.asked,
            observers=[observe],
            journal=self.journal,
            resume_key=RESUME_KEY,
            concurrency=self.concurrency,
            waits=Waits(slot=QUEUE_TIMEOUT),
            clock=self.clock,
        )

    def call_of(self, name: str, id: str, arguments: dict[str, Any], context: ToolContext) -> Call:
        return self.calls[name, id, arguments["n"], arguments["mode"], context.session, context.principal]

    async def handled(self, context: ToolContext, seen: dict[str, Any], version: str, life: int) -> str:
        assert context.call is not None
        call = self.call_of(context.call.name, context.call.id, seen, context)
        if life != self.life:
            raise asyncio.CancelledError  # a program that is dead runs nothing
        run = Run(call, version, life, len(self.runs) + 1)
        self.check_run(call, run, seen)
        self.runs.append(run)
        call.runs.append(run)
        try:
            await run.ending.wait()
        finally:
            run.inside = False
        if run.how == "raise":
            raise ValueError("told to")
        return f"run {run.number}"

    def check_run(self, call: Call, run: Run, seen: dict[str, Any]) -> None:
        """Record a fault if the handler must not run now."""
        if seen != call.judged:
            self.faults.append(f"{call} ran on {seen}")
        if call.final:
            self.faults.append(f"{call} ran though it has come to something")
        if any(one.inside and one.life == self.life for one in call.runs):
            self.faults.append(f"{call} ran beside itself")
        if call.runs and call.name in ONCE:
            self.faults.append(f"{call} ran twice")
        if any(one.version != run.version for one in call.runs):
            self.faults.append(f"{call} ran again though its tool had changed")
        if sum(one.inside for one in self.runs if one.life == self.life) >= self.concurrency:
            self.faults.append(f"more than {self.concurrency} ran at once")

    def guard(self, call: ToolCall, context: ToolContext) -> Decision | None:
        if "change" in call.arguments["mode"] and call.arguments["m"] != CHANGED:
            return allow({**call.arguments, "m": CHANGED})
        return ask("may it?") if "ask" in call.arguments["mode"] else None

    async def asked(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision | bool:
        question = self.loop.create_future()
        self.questions.append(question)
        try:
            return await question
        finally:
            if question in self.questions:
                self.questions.remove(question)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    async def quiet(self) -> None:
        """Until every task waits for the machine."""
        before = -1
        while before != self.journal.holds.asked:
            before = self.journal.holds.asked
            await wait_until_idle()
            await self.journal.flush()
            await wait_until_idle()

    def then(self) -> None:
        """Wait until all is quiet, and check the calls that have ended."""
        self.run(self.quiet())
        for one in self.tries:
            if one.task.done() and not one.looked_at:
                one.looked_at = True
                self.look_at(one)

    def look_at(self, one: Try) -> None:
        if one.task.cancelled():
            assert one.cancelled, f"{one.call} was cancelled by nobody"
            return
        result, call = one.task.result(), one.call
        if one.cancelled:
            return
        if one.resumes in self.refused:
            not_run = result.status in ("invalid", "failed") and result.executed is False  # failed: not noted in time
            assert not_run or "replayed" in result.metadata, f"it was refused before: {call}"
        if one.resumes and not one.answer and result.status == "denied":
            self.refused.add(one.resumes)
        final = call.final
        call.told.append(result)
        if result.status == "suspended":
            self.records.append((call, result.record()))
            assert not one.came_late, f"{call} is asked though it has come to something"
        if result.status == "limited":
            assert result.executed is False, call
        if final and call.final != final:
            had, has = final[0], call.final[-1]
            assert (had.status, had.text) == (has.status, has.text), f"it was told something else: {call}"
        if final and result.executed is not False:
            assert call.final != final, f"it is not known any more: {call}"
        if result.status == "ok":
            assert result.text in {f"run {run.number}" for run in call.runs}, f"nothing of it is so: {call}"

    # -- what may happen -----------------------------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(["pay", "put", "book"]),
        id=st.sampled_from(["c1", "c1", "c1", "c2"]),
        n=st.sampled_from([0, 0, 0, 1]),
        mode=st.sampled_from(["", "ask", "ask", "change"]),
        session=st.sampled_from(["s", "s", "s", "t"]),
        principal=st.sampled_from(["p", "p", "p", "q"]),
    )
    def submit(self, name: str, id: str, n: int, mode: str, session: str, principal: str) -> None:
        place = (name, id, n, mode, session, principal)
        if place not in self.calls:
            self.calls[place] = Call(name, id, n, mode, session, principal)
        self.send(self.calls[place])

    @rule(place=PLACES, times=st.sampled_from([1, 2]))
    def submit_again(self, place: int, times: int) -> None:
        for call in at(place, list(self.calls.values())[-3:]) * times:
            self.send(call)

    def send(self, call: Call) -> None:
        work = self.runner.run(call.sent, session=call.session, principal=call.principal)
        self.tries.append(Try(call, self.loop.create_task(work)))
        self.then()

    @rule(place=PLACES, answer=st.sampled_from([True, True, False]))
    def resume(self, place: int, answer: bool) -> None:
        for call, record in at(place, self.records):
            task = self.loop.create_task(self.runner.resume(record, answer))
            self.tries.append(Try(call, task, record["pending"]["key"], answer))
            self.then()

    @rule(place=PLACES, answer=st.sampled_from(["yes", "yes", "no", "later"]))
    def answer(self, place: int, answer: str) -> None:
        for question in at(place, self.questions):
            question.set_result(ask("later") if answer == "later" else answer == "yes")
            self.then()

    @rule(place=PLACES, how=st.sampled_from(["return", "return", "raise"]))
    def let_end(self, place: int, how: str) -> None:
        for run in at(place, self.inside()):
            run.how = how
            run.ending.set()
            self.then()

    @rule(place=PLACES)
    def cancel(self, place: int) -> None:
        for one in at(place, self.open()):
            one.cancelled = True
            one.task.cancel()
            self.then()

    @rule(place=st.sampled_from(HOLDS))
    def hold(self, place: str) -> None:
        self.journal.holds.place = place

    @rule()
    def let_go(self) -> None:
        for _, let_go in self.journal.holds.held:
            let_go.set()
        self.then()

    @rule(seconds=st.sampled_from([TIMEOUT + 1, QUEUE_TIMEOUT + 1]))
    def pass_time(self, seconds: float) -> None:
        if any("end" in place for place, _ in self.journal.holds.held):
            return
        self.journal.holds.place = None  # an outcome that is late is told all the same, and not kept
        self.run(self.clock.advance(seconds))
        self.then()

    @rule(changed=st.sampled_from([False, False, False, True]))
    def kill(self, changed: bool) -> None:
        """The program is killed, and another begins, perhaps with a tool that has changed."""
        dead, tries = self.journal, self.tries
        self.journal = dead.after_a_kill()
        self.life += 1  # nobody sees what the dead one does any more
        self.bury(dead, tries)
        self.version = str(int(self.version) + changed)
        self.begin_life()
        self.then()

    def bury(self, dead: Any, tries: list[Try]) -> None:
        """Nothing is left of it in this process."""

        async def end() -> None:
            dead.holds.place = None
            for one in tries:
                one.task.cancel()
            for _, let_go in dead.holds.held:
                let_go.set()
            for run in self.runs:
                run.ending.set()
            await asyncio.gather(*(one.task for one in tries), return_exceptions=True)
            await asyncio.gather(*self.runner._state.writes, return_exceptions=True)

        if self.life:
            self.run(end())

    @rule()
    def recover(self) -> None:
        self.journal.holds.place = None
        for result in self.run(self.runner.recover()):
            self.settled += 1
            call = next(
                call
                for call in self.calls.values()
                if (call.name, call.sent.id, call.session, call.principal)
                == (result.tool_name, result.call_id, result.record()["session"], result.record()["principal"])
                and call.judged == result.record()["input"]
            )
            assert not call.final, f"{call} was settled though it had come to something"
            if result.status == "ok":
                assert call.name == "book" and result.text == f"run {call.runs[-1].number}"
                call.told.append(result)
        self.then()

    # -- what must be --------------------------------------------------------------------------------------------------

    def inside(self) -> list[Run]:
        return [run for run in self.runs if run.inside and not run.how and run.life == self.life]

    def open(self) -> list[Try]:
        return [one for one in self.tries if not one.task.done()]

    @invariant()
    def nothing_was_seen_that_must_not_be(self) -> None:
        assert self.faults == [] and self.complaints == []

    @invariant()
    def each_call_that_ended_has_one_terminal_event(self) -> None:
        ended = sum(one.task.done() for one in self.tries)
        if self.life:
            assert self.terminal.total() == ended + self.settled, (self.terminal, self.tries)

    @invariant()
    def the_journal_has_what_was_seen(self) -> None:
        if not self.life:
            return
        live = {id(one.call) for one in self.open()}
        for kept in self.journal.kept():
            given = thaw(kept.intent.arguments)
            place = (kept.intent.tool_name, kept.intent.call_id, given["n"], given["mode"])
            call = self.calls[*place, kept.intent.session, kept.intent.principal]
            assert given == call.judged, f"it keeps {given} of {call}"
            if kept.state == "running":
                assert id(call) in live or call.told == [] or self.writes(), f"nobody runs {call}"
            elif kept.state == "cut_off":
                assert not call.final, f"it does not keep what was told of {call}"
            elif call.final and kept.outcome is not None:
                assert kept.outcome["status"] == call.final[0].status, f"it keeps {kept.outcome} of {call}"

    def writes(self) -> bool:
        return bool(self.journal.holds.held)

    def teardown(self) -> None:
        try:
            if self.life:
                self.end_well()
        finally:
            self.bury(self.journal, self.tries)
            self.journal.close()
            self.loop.close()
            self.folder.cleanup()

    def end_well(self) -> None:
        """All comes to an end, slots come back, and nothing waits."""
        self.journal.holds.place = None
        while self.open() or self.journal.holds.held:
            before = len(self.open()), len(self.questions), len(self.inside()), len(self.journal.holds.held)
            if self.journal.holds.held:
                self.let_go()
            for question in [*self.questions]:
                question.set_result(False)
            for run in self.inside():
                run.how = "return"
                run.ending.set()
            self.then()
            after = len(self.open()), len(self.questions), len(self.inside()), len(self.journal.holds.held)
            assert before != after, f"something waits for nothing: {[one.call for one in self.open()]}"
        self.run(self.quiet())
        self.each_call_that_ended_has_one_terminal_event()
        self.nothing_was_seen_that_must_not_be()
        assert (probe.slots_taken(self.runner), self.runner.waiting) == (0, 0)
        assert not [*probe.live_calls(self.runner)]
        assert not any(kept.state == "running" for kept in self.journal.kept())
        self.recover()
        for kept in self.run(self.journal.unfinished()):
            assert kept.intent.tool_name in ("put", "book"), f"it is not settled: {kept}"


class KeptInFile(KeptCalls):
    """All that can happen, with a journal in a file."""

    def made_journal(self) -> Any:
        return InFile(Path(self.folder.name, "calls.db"))


MACHINES = int(os.environ.get("FERRULE_MACHINES", "4" if os.environ.get("FERRULE_TESTS") == "all" else "1"))
TestKeptInMemory = pytest.mark.large(pytest.mark.time_limit(600)(KeptCalls.TestCase))
TestKeptInMemory.settings = settings(max_examples=60 * MACHINES, stateful_step_count=40)
TestKeptInFile = KeptInFile.TestCase
TestKeptInFile.settings = settings(max_examples=15 * MACHINES, stateful_step_count=30)
