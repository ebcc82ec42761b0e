"""Programs that are killed by SIGKILL at a point of a call, and programs that come after them.

Each is forked from a process that has imported Ferrule and has no thread (`Forks`), so that one takes no more than some
milliseconds. What a program did and what it was told it writes at the end of files, whose pages outlive the process.
Where it is killed is said in the program alone: by the journal that it makes, by its tools, its guard and its observer,
by the statements of its SQLite connection, or by the count of the functions that it has called.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from ferrule import Deferred, Runner, ToolCall, ToolContext, ToolResult, Waits, allow, ask, tool
from ferrule.journal import SQLiteJournal
from ferrule.types import Begun
from ferrule.values.journal_entry import Intent, JournalEntry

PRINCIPAL = "ann"
RESUME_KEY = b"0123456789abcdef0123456789abcdef"
TOOLS = ("pay", "put", "book")
"""Not idempotent; idempotent; not idempotent, with a `reconcile` that can see whether it happened. Two more, not
idempotent, are for tests of their own: `hand`, which hands its work to somebody else; `grind`, in the background."""


# -- in a program that is killed ---------------------------------------------------------------------------------------


def kill() -> None:
    """The end of this process."""
    os.kill(os.getpid(), signal.SIGKILL)


class Stops:
    """Kills this program at the `count`-th time that it comes to a point, or pauses it there."""

    def __init__(self, order: Order, control: socket.socket) -> None:
        self._order = order
        self._control = control
        self._left = order.count

    def at(self, point: str) -> None:
        if point == self._order.pause_at:  # its other threads go on: one of them may be about to let go of a lock
            self._control.sendall(b"stands still\n")
            assert self._control.recv(1)
        if point == self._order.at:
            self._left -= 1
            if not self._left:
                kill()


class Journal(SQLiteJournal):
    """One that says which statement it is at."""

    def __init__(self, path: str, stops: Stops, *, always_checkpoint: bool) -> None:
        super().__init__(path)
        self._stops = stops
        self._doing = "nothing"
        self._always_checkpoint = always_checkpoint
        self._writer._connection.set_trace_callback(self._traced)

    def _traced(self, statement: str) -> None:
        if self._always_checkpoint:
            self._writer._checkpoint_at = 0
        if statement.startswith("BEGIN"):
            self._stops.at(f"{self._doing} queued")
        elif statement == "COMMIT":
            self._stops.at(f"{self._doing} not committed")
        elif "wal_checkpoint" in statement:
            self._stops.at("checkpoint")

    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
        self._doing = "intent"
        found = await super().begin(intent, after=after)
        self._doing = "nothing"
        self._stops.at("intent committed")
        return found

    async def end(self, intent: Intent, outcome: Any) -> None:
        self._stops.at("outcome made")
        self._doing = "outcome"
        await super().end(intent, outcome)
        self._doing = "nothing"
        self._stops.at("outcome committed")

    async def settle(self, kept: JournalEntry, outcome: Any) -> bool:
        self._doing = "settling"
        found = await super().settle(kept, outcome)
        self._doing = "nothing"
        self._stops.at("settling committed")
        return found

    async def take(self, key: str, expires_at: float) -> bool:
        self._doing = "taking"
        found = await super().take(key, expires_at)
        self._doing = "nothing"
        self._stops.at("taking committed")
        return found


@dataclass
class Order:
    """What a program does, and where it is killed.

    Attributes:
        folder: The folder of `calls.db`, and of `effects` and `said`, to which it adds lines.
        session: The session of its calls.
        calls: The tool of each call; the id is its place.
        does: Its steps: `recover`, `send` all calls at once, `suspend` them, `resume` those; `resolve` deferred work.
        at: The name of the point at which it is killed, the `count`-th time that it comes there.
        step: The number of the call or return of a function, in any thread, at which it is killed.
        pause_at: The name of the point at which it stops until it gets a byte.
        patient: Whether it waits for calls that another program runs.
        records: The records that it resumes.
    """

    folder: str
    session: str
    calls: list[str]
    does: list[str]
    at: str | None = None
    count: int = 1
    step: int | None = None
    pause_at: str | None = None
    patient: bool = True
    records: list[Any] = field(default_factory=list)


def perform(order: Order, control: socket.socket | None = None) -> None:
    """Do it all in this process, unless it is killed."""
    logging.disable(logging.WARNING)
    stops = Stops(order, control or socket.socketpair()[0])
    said, effects = (
        os.open(Path(order.folder, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT) for name in ("said", "effects")
    )

    def say(what: str, results: list[ToolResult]) -> None:
        for result in results:
            made_by = result.call and result.call.parent  # of a work in the background, the call that the model made
            told = {"what": what, "id": made_by or result.call_id, "status": result.status, "text": result.text}
            told |= {"executed": result.executed, "metadata": dict(result.metadata), "pid": os.getpid()}
            told |= {"record": result.record()} if result.status == "suspended" else {}
            os.write(said, json.dumps([order.session, told]).encode() + b"\n")

    def effect(n: int, context: ToolContext) -> str:
        stops.at("handler entered")
        receipt = os.urandom(8).hex()
        line = [order.session, {"id": f"c{n}", "key": context.idempotency_key, "receipt": receipt}]
        os.write(effects, json.dumps(line).encode() + b"\n")
        stops.at("effect made")
        return f"receipt {receipt}"

    @tool
    async def pay(n: int, context: ToolContext) -> str:
        """Pay."""
        return effect(n, context)

    @tool(idempotent=True)
    def put(n: int, context: ToolContext) -> str:
        """Put, in a thread."""
        return effect(n, context)

    async def find_out(call: ToolCall, context: ToolContext) -> ToolResult | bool:
        stops.at("reconciling")
        for session, made in lines(order.folder, "effects"):
            if session == order.session and made["key"] == context.idempotency_key:
                return ToolResult(f"receipt {made['receipt']}")
        return False

    @tool(reconcile=find_out)
    async def book(n: int, context: ToolContext) -> str:
        """Book."""
        return effect(n, context)

    @tool
    async def hand(n: int, context: ToolContext) -> Deferred:
        """Hand it on."""
        effect(n, context)
        return Deferred(ticket_of(n))

    @tool(background=True)
    async def grind(n: int, context: ToolContext) -> str:
        """Grind."""
        return effect(n, context)

    def ticket_of(n: int) -> str:
        return f"{order.session}/c{n}"

    async def resolve(runner: Runner, n: int) -> ToolResult:
        """Resolve deferred work with its receipt."""
        [receipt] = [
            made["receipt"]
            for session, made in lines(order.folder, "effects")
            if (session, made["id"]) == (order.session, f"c{n}")
        ]
        result = await runner.resolve(ticket_of(n), ToolResult(f"receipt {receipt}"))
        return result if result.call else result.replace(call=ToolCall(f"c{n}", "hand"))

    async def come_to(runner: Runner, sent: ToolResult) -> ToolResult:
        """The result of a call, or of its work in the background, in whatever process that was done."""
        if "ticket" not in sent.metadata:
            return sent
        found: list[Any] = []

        @tool(read_only=True)
        async def look(context: ToolContext) -> None:
            found.append(await context.find_job(sent.metadata["ticket"]))
            await found[0].wait(60)

        looking = runner.replace(tools=[*runner.tools, look], guards=[])
        assert (await looking.run("look", session=order.session, principal=PRINCIPAL)).success
        result: ToolResult = found[0].result
        return result.replace(call=sent.call)

    def guard(call: ToolCall, context: ToolContext) -> Any:
        stops.at("judged")
        return ask("may it?") if {"suspend", "resume"} & {*order.does} else allow()

    async def put_off(call: ToolCall, decision: Any, context: ToolContext) -> Any:
        return ask("later")

    def observe(event: Any) -> None:
        if event.kind in ("tool:post", "tool:error"):
            stops.at("being told")

    async def main() -> None:
        runner = Runner(
            [pay, put, book, hand, grind],
            guards=[guard],
            approve=put_off,
            observers=[observe],
            journal=journal,
            resume_key=RESUME_KEY,
            waits=Waits(slot=60 if order.patient else 0.001),
        )
        calls = [ToolCall(f"c{n}", name, {"n": n}) for n, name in enumerate(order.calls)]
        for what in order.does:
            if what == "recover":
                results = await runner.recover()
            elif what == "resume":
                results = [await runner.resume(record, True) for record in order.records]
            elif what == "resolve":
                results = [await resolve(runner, n) for n in range(len(calls))]
            else:
                sent = await asyncio.gather(
                    *(runner.run(call, session=order.session, principal=PRINCIPAL) for call in calls)
                )
                results = [await come_to(runner, result) for result in sent]
            say(what, results)
            stops.at("told")

    if order.step is not None:
        kill_at_step(order.step)
    journal = Journal(str(Path(order.folder, "calls.db")), stops, always_checkpoint=order.at == "checkpoint")
    asyncio.run(main())
    journal.close()


def kill_at_step(step: int) -> None:
    """Kill this process at so many calls and returns of functions, of this thread and of all that it begins."""
    left = step

    def called(frame: object, event: str, argument: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            kill()

    threading.setprofile(called)
    sys.setprofile(called)


def lines(folder: str | Path, name: str) -> list[Any]:
    """The lines of a file, without one that was cut off."""
    path = Path(folder, name)
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


# -- in the process of the tests ---------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """That of a program that imports what the tests do."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}


class Forks:
    """A process that programs are forked from, one after the other; several such run beside each other."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment(),
        )
        theirs.close()
        self._heard = self._control.makefile("r")

    def start(self, order: Order) -> None:
        """Fork a program for it."""
        self._control.sendall(json.dumps(vars(order)).encode() + b"\n")

    def wait(self) -> bool:
        """Whether the program was killed; one that ended otherwise than well is an error."""
        heard = self._heard.readline()
        assert heard, "the process that programs are forked from has ended"
        code = int(heard)
        assert code in (0, -signal.SIGKILL), f"a program ended with {code}: its standard error says why"
        return code != 0

    @contextmanager
    def paused(self, order: Order) -> Iterator[None]:
        """A program that stands still in this block at a point of its order, and then goes on and ends well."""
        self.start(order)
        heard = self._heard.readline()
        assert heard == "stands still\n", f"it did not come to {order.pause_at!r}: {heard}"
        try:
            yield
        finally:
            self._control.sendall(b".")
            killed = self.wait()
        assert not killed

    def run(self, order: Order) -> bool:
        """Both."""
        self.start(order)
        return self.wait()

    def close(self) -> None:
        self._control.close()
        self._heard.close()
        self._process.wait()


def serve(control: socket.socket) -> None:
    """Fork a program for each order that comes, once all is loaded that they need."""
    with tempfile.TemporaryDirectory() as folder:
        perform(Order(folder, "s", ["pay"], ["suspend", "recover"]))
        perform(Order(folder, "s", ["pay", "book"], ["send"]))
    assert threading.active_count() == 1, "a thread is not there in a fork, and what it held stays held"
    gc.freeze()
    for line in control.makefile("r"):
        pid = os.fork()
        if not pid:
            try:
                perform(Order(**json.loads(line)), control)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        control.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


# -- laws --------------------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """The effects of one call of a session, and the results that were given, in order."""

    tool: str
    effects: list[dict[str, Any]]
    told: list[dict[str, Any]]

    def check(self) -> None:
        """The laws that hold wherever programs were killed.

        Raises:
            AssertionError: where one does not.
        """
        assert not self.doubled, f"it happened twice: {self}"
        assert not self.changed, f"what was told was lost or changed: {self}"
        assert len({effect["key"] for effect in self.effects}) <= 1, f"it had another key: {self}"
        for one in self.told:
            did_not_happen = one["status"] == "failed" and one["executed"] is False  # as `reconcile` says
            assert did_not_happen or one["status"] in ("ok", "unknown", "suspended", "invalid", "not_found"), self
            assert (one["status"] == "ok") == (one["executed"] is True), self
        receipts = {f"receipt {effect['receipt']}" for effect in self.effects}
        assert {one["text"] for one in self.told if one["status"] == "ok"} <= receipts, f"nothing of it is so: {self}"

    @property
    def doubled(self) -> bool:
        """Whether what may happen once has happened twice."""
        return self.tool != "put" and len(self.effects) > 1

    @property
    def changed(self) -> bool:
        """Whether something else was told after an outcome."""
        settled = [one for one in self.told if one["status"] not in ("invalid", "not_found")]
        texts = [one["text"] if one["status"] == "ok" else None for one in settled]
        first = next((n for n, text in enumerate(texts) if text is not None), len(texts))
        return len({*texts[first:]}) > 1


def seen(folder: str | Path, session: str, calls: list[str]) -> list[Seen]:
    """The effects and results of the calls of a session."""
    found = {f"c{n}": Seen(name, [], []) for n, name in enumerate(calls)}
    for name in ("effects", "said"):
        for of, what in lines(folder, name):
            if of == session:
                one = found[what["id"]]
                (one.effects if name == "effects" else one.told).append(what)
    return list(found.values())


# -- many programs at once ---------------------------------------------------------------------------------------------


STEPS = 14_000
"""About how many functions a program calls and returns from that opens the journal and sends four calls."""


def soak(folder: Path, several: list[Forks], *, rounds: int, seed: int) -> Counter[str]:
    """In each round some programs at once send the same calls, most of which are killed at a step, until there is one
    that is not: how many kills there were, and what came of it.

    Raises:
        AssertionError: where a law does not hold.
    """
    chance, found = Random(seed), Counter[str](doubled=0, lost=0)
    for n in range(rounds):
        order = Order(str(folder), f"s{seed}.{n}", chance.choices(TOOLS, k=4), ["send"])
        for _ in range(2):
            for one in several:
                does = chance.choice([["send"], ["send", "send"], ["recover", "send"], ["recover"]])
                step = chance.randrange(1, STEPS) if chance.random() < 0.9 else None
                one.start(replace(order, does=does, step=step))
            found["kills"] += sum([one.wait() for one in several])
        assert not several[0].run(replace(order, does=["recover", "send", "send"]))
        calls = seen(folder, order.session, order.calls)
        found["calls"] += len(calls)
        for call in calls:
            found["doubled"] += call.doubled
            found["lost"] += call.changed
            found["effects"] += len(call.effects)
            found["replayed"] += sum("replayed" in one["metadata"] for one in call.told)
            found[call.told[-1]["status"]] += 1
            call.check()
            assert call.told[-1]["status"] == "ok" or call.tool == "pay", call
    return found


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        serve(socket.socket(fileno=int(sys.argv[1])))
    else:
        perform(Order(**json.loads(sys.argv[1])))
