"""A state machine does everything to one runner, in any order: each call has one result and leaves nothing behind.

It sends calls, lets handlers end, answers, suspends, resumes, cancels, lets time pass, and leaves the runner. It knows
only what it did; handlers, guards, the approver and an observer record what came of it. The loop's time stands still
until the machine moves it, so no deadline depends on the speed of the tests.

`FERRULE_TESTS=all` runs four times as many machines, and `FERRULE_MACHINES=40` forty times as many.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import probe
from ferrule import Decision, Runner, Tool, ToolCall, ToolContext, ToolResult, Waits, allow, ask, deny, tool
from ferrule.kernel.batch import Batch
from ferrule.kernel.state import RELIABLE_CANCELLING
from waits import wait_until
from watched import BOUND, TERMINAL, Watch

pytestmark = pytest.mark.slow

MACHINES = int(os.environ.get("FERRULE_MACHINES", "4" if os.environ.get("FERRULE_TESTS") == "all" else "1"))
CHANGED, EDITED, FORBIDDEN = 100, 7, 13
TIMEOUT, PAST_DEADLINE, PAST_ALL = 10.0, 11.0, 70.0
"""Longer than the wait for a slot and the wait when the runner is left."""

EXCLUSIVE = ("write", "nest")
KEYED = (*EXCLUSIVE, "block")
KINDS = ("think", "write", "few", "block", "stubborn", "say", "redo")
CHILDREN = ("think", "few", "block", "write", "say")
PATIENCE = [BOUND]
"""Seconds for what happens outside the loop. Fewer once a machine has failed, or shrinking it would take hours."""
NOT_RUN = ("denied", "invalid", "suspended", "limited", "not_found")
ANSWERS = ("yes", "later", "no", "edit", "forbidden", "unfit", "breaks", "later", "later")


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time passes only when a test moves it."""

    _ready: Any
    _scheduled: Any
    now = 0.0

    def time(self) -> float:
        return self.now


class Hand:
    """What the machine decides about one call, and what its handler has recorded."""

    def __init__(self, n: int, tool: str, mode: str = "", key: str = "a", principal: str | None = None) -> None:
        self.n, self.tool, self.mode, self.key, self.principal = n, tool, mode, key, principal
        self.parent: Hand | None = None
        self.child: Hand | None = None
        self.malformed = False
        self.told = ""
        self.answer = ""
        self.began = 0.0
        self.judged: list[int] = []
        self.seen: list[int] = []
        self.within = 0
        self.tries: list[Try] = []
        self.ending, self.answered, self.thought = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.let_go = threading.Event()

    @property
    def arguments(self) -> dict[str, Any]:
        return {"n": self.n, "m": "x" if self.malformed else 0, "mode": self.mode, "key": self.key}

    @property
    def inside(self) -> bool:
        return self.within > 0

    def tell(self, how: str) -> None:
        """Let the handler end, at once if it has not begun."""
        self.told = how
        self.ending.set()
        self.let_go.set()

    def said(self, m: int) -> int:
        if self.told == "raise":
            raise ValueError("told to")
        return m

    def __repr__(self) -> str:
        return (
            f"<{self.tool} {self.n} {self.mode!r} {self.told!r} {self.answer!r} {[one.status for one in self.tries]}>"
        )


class Try:
    """A call that was sent or resumed: the results that are possible, and the one it had."""

    def __init__(self, hand: Hand, sent: Sent, answer: str = "", *, again: bool = False) -> None:
        self.hand = hand
        self.sent = sent
        self.answer = answer
        self.again = again
        self.disturbed: set[str] = set()
        self.result: ToolResult | None = None
        hand.tries.append(self)

    @property
    def status(self) -> str:
        return "?" if self.result is None else self.result.status

    def outcome(self, guarded: bool) -> tuple[str, int | None]:
        """Return the status if nothing disturbs it, and the `m` for the handler, or None if it must not run."""
        hand, mode, m = self.hand, self.hand.mode if guarded else "", 0
        answer = self.answer or hand.answer
        if hand.malformed or self.again:
            return "invalid", None
        if "deny" in mode or "forbidden" in mode:
            return "denied", None
        if "change" in mode:
            m = CHANGED
        if "ask" in mode and answer != "yes":
            if answer == "later":
                return "suspended", None
            if answer != "edit" or "change" in mode:  # a guard that would change it after the answer
                return "denied", None
            m = EDITED
        return ("failed" if hand.told == "raise" else "ok"), m

    def allowed(self, guarded: bool, timed: bool) -> set[str]:
        """Return the statuses that are possible after what the machine did."""
        found = {self.outcome(guarded)[0]}
        if self.disturbed & {"cancel", "closing"} or (self.hand.parent is not None and self.disturbed):
            found.add("cancelled")
        if "clock" in self.disturbed:
            found |= (
                {"limited"} | ({"timeout"} if timed else set()) | ({"denied"} if "slow" in self.hand.mode else set())
            )
        return found


class Sent:
    """A call, a batch or a resumed call, with the task that awaits it."""

    def __init__(self, ids: list[str], batch: Batch | None = None) -> None:
        self.ids = ids
        self.batch = batch
        self.task: asyncio.Task[Any]
        self.tries: list[Try] = []  # in the order of the calls
        self.children: list[Try] = []
        self.timed = False
        self.cancelled = self.stopped = False

    @property
    def was_cut_off(self) -> bool:
        """Return whether its task was cancelled, and so raises what the handler made of that."""
        task = self.task
        if not task.done() or task.cancelled() or task.exception() is None:
            return task.done() and task.cancelled()
        made_of_it = [one.hand.tool for one in self.tries if one.hand.told == "raise"]
        return self.cancelled and isinstance(task.exception(), ValueError) and made_of_it == ["stubborn"]

    def disturb(self, what: str, *, inside: bool = True) -> None:
        """Record what happened to its unfinished calls, or only to those whose handler does not run."""
        if not self.task.done():
            for one in (*self.tries, *self.children):
                spared = not inside and (one.hand.inside or (one.hand.parent is not None and one.hand.parent.inside))
                if not spared:
                    one.disturbed.add(what)

    def overtaken(self, hand: Hand) -> list[ToolResult]:
        """Return the unfinished results of earlier calls in the batch that share the key of `hand`."""
        before = [] if self.batch is None else self.tries[: [one.hand for one in self.tries].index(hand)]
        results = [] if self.batch is None else self.batch.results
        return [
            result
            for one, result in zip(before, results, strict=False)
            if result.status == "unknown" and one.hand.tool in KEYED and one.hand.key == hand.key
            if one.hand.tool in EXCLUSIVE or hand.tool in EXCLUSIVE
        ]


async def again(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    """Retry a failed call once."""
    result: ToolResult = await next(call, context)
    assert context.tool.idempotent
    return result if result.success else await next(call, context)


class Calls(RuleBasedStateMachine):
    # -- the runner ---------------------------------------------------------------------------------------------------

    def __init__(self) -> None:
        super().__init__()
        self.loop = Clock()
        self.complaints: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda loop, context: self.complaints.append(context))
        self.faults: list[str] = []
        self.hands: dict[int, Hand] = {}
        self.sent: list[Sent] = []
        self.watch = Watch()
        self.settled = True
        self.leaving: asyncio.Task[None] | None = None
        wait_until(lambda: not probe.threads_busy())

    @initialize(
        concurrency=st.sampled_from([1, 2, 3]),
        share=st.sampled_from([None, None, 1]),
        timeout=st.sampled_from([None, TIMEOUT]),
        grace=st.sampled_from([0, 1.0]),
        observed=st.sampled_from([True, True, False]),
        guarded=st.sampled_from([True, True, False]),
    )
    def start(
        self, concurrency: int, share: int | None, timeout: float | None, grace: float, observed: bool, guarded: bool
    ) -> None:
        self.timeout, self.observed, self.guarded = timeout, observed, guarded
        self.concurrency, self.share = concurrency, share
        self.runner = Runner(
            self.tools(),
            guards=[self.changes, self.watchman] if guarded else [],
            approve=self.approve,
            observers=[self.watch] if observed else [],
            concurrency=concurrency,
            per_principal=share,
            timeout=timeout,
            waits=Waits(grace=grace),
        )

    def tools(self) -> list[Tool]:
        """Return the tools. Each takes the number of its hand, and waits until that lets it end."""

        async def think(n: int, m: int = 0, mode: str = "", key: str = "") -> int:
            return await self.waits(n, m)

        async def nest(context: ToolContext, n: int, m: int = 0, mode: str = "", key: str = "") -> int:
            child = self.hands[n].child
            with self.entered(n, m):
                if child is not None:
                    child.tries[0].result = await context.run(child.tool, child.arguments)
                await self.hands[n].ending.wait()
            return self.hands[n].said(m)

        async def stubborn(n: int, m: int = 0, mode: str = "", key: str = "") -> int:
            with self.entered(n, m):
                while not self.hands[n].told:
                    try:
                        await self.hands[n].ending.wait()
                    except asyncio.CancelledError:
                        pass
            return self.hands[n].said(m)

        async def say(n: int, m: int = 0, mode: str = "", key: str = "") -> AsyncIterator[str]:
            yield f"{m}"
            yield f"={await self.waits(n, m)}"

        def block(n: int, m: int = 0, mode: str = "", key: str = "") -> int:
            with self.entered(n, m):
                assert self.hands[n].let_go.wait(BOUND)
            return self.hands[n].said(m)

        def keys(arguments: Any) -> list[str]:
            return [arguments["key"]]

        return [
            tool(think, parallel=True),
            tool(think, name="write", resources=keys),
            tool(think, name="few", parallel=True, concurrency=1),
            tool(think, name="redo", parallel=True, idempotent=True, inside=[again]),
            tool(nest, resources=keys),
            tool(stubborn, parallel=True),
            tool(say, parallel=True),
            tool(block, read_only=True, resources=keys),
        ]

    @contextmanager
    def entered(self, n: int, m: int) -> Iterator[None]:
        """Record that a handler runs, and what must not be true when it begins."""
        hand = self.hands[n]
        if hand.parent is None and hand.tool in KEYED and (before := hand.tries[0].sent.overtaken(hand)):
            self.faults.append(f"{hand} did not wait for what came before it: {before}")
        hand.seen.append(m)
        hand.within += 1
        self.crowded()
        try:
            yield
        finally:
            hand.within -= 1

    async def waits(self, n: int, m: int) -> int:
        with self.entered(n, m):
            await self.hands[n].ending.wait()
        return self.hands[n].said(m)

    def crowded(self) -> None:
        """Record if too many handlers run, or two on one key."""
        inside = [hand for hand in list(self.hands.values()) if hand.inside]
        roots = [hand for hand in inside if hand.parent is None]
        if len(roots) > self.concurrency:
            self.faults.append(f"more than {self.concurrency} ran at once: {roots}")
        if sum(hand.tool == "few" for hand in inside) > 1:
            self.faults.append(f"more than one of a tool that takes one ran at once: {inside}")
        for who in (None, "p"):
            if self.share and sum(hand.principal == who for hand in roots) > self.share:
                self.faults.append(f"more than {self.share} of {who} ran at once: {roots}")
        for one in inside:
            beside = [other for other in inside if other.tool in KEYED and other.key == one.key]
            if one.tool in EXCLUSIVE and any(not _related(one, other) for other in beside):
                self.faults.append(f"{one} ran beside another on the same key: {beside}")

    # -- guards and who is asked ---------------------------------------------------------------------------------------

    def changes(self, call: ToolCall, context: ToolContext) -> Any:
        mode, m = call.arguments["mode"], call.arguments["m"]
        if "change" in mode and m < CHANGED:
            return allow({**call.arguments, "m": m + CHANGED})
        return allow({**call.arguments, "m": FORBIDDEN}) if "forbidden" in mode and m == 0 else None

    def watchman(self, call: ToolCall, context: ToolContext) -> Decision | Awaitable[Decision | None] | None:
        hand = self.hands[call.arguments["n"]]
        hand.judged.append(call.arguments["m"])
        if call.arguments["m"] == FORBIDDEN or "deny" in hand.mode:
            return deny("no")
        return self.hesitates(hand) if "slow" in hand.mode else ask("?") if "ask" in hand.mode else None

    async def hesitates(self, hand: Hand) -> Decision | None:
        await hand.thought.wait()
        return ask("?") if "ask" in hand.mode else None

    async def approve(self, call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        hand = self.hands[call.arguments["n"]]
        await hand.answered.wait()
        return _answer(hand.answer, dict(call.arguments))

    # -- sending -------------------------------------------------------------------------------------------------------

    def hand(self, kind: str, mode: str = "", key: str = "a", principal: str | None = None) -> Hand:
        hand = self.hands[len(self.hands)] = Hand(len(self.hands), kind, mode, key, principal)
        return hand

    def send(self, sent: Sent, work: Coroutine[Any, Any, Any], hands: list[Hand], answer: str = "") -> None:
        sent.tries = [Try(hand, sent, answer) for hand in hands]
        sent.task = self.loop.create_task(work)
        sent.children = [Try(hand.child, sent) for hand in hands if hand.child is not None and not answer]
        self.sent.append(sent)
        for one in (*sent.tries, *sent.children):
            one.hand.began = self.loop.now
            if self.leaving is not None:
                one.disturbed.add("closing")

    pace = st.sampled_from([None, None, None, 0, 1, 2, 3, 5])
    kind = st.sampled_from(KINDS)
    mode = st.sampled_from(["", "", "", "", "change", "forbidden", "deny", "slow", "ask", "ask change"])
    key = st.sampled_from("aab")
    who = st.integers(0, 5)

    @rule(kind=kind, mode=mode, key=key, principal=st.sampled_from([None, "p"]), own=st.booleans(), pace=pace)
    def submit(self, kind: str, mode: str, key: str, principal: str | None, own: bool, pace: int | None) -> None:
        """Send one call, perhaps with a deadline of its own."""
        self.one(self.hand(kind, mode, key, principal), TIMEOUT if own else None, pace)

    @rule(
        mode=st.sampled_from(["ask", "ask change", "ask slow"]), kind=kind, answer=st.sampled_from(ANSWERS), pace=pace
    )
    def submit_what_is_asked_about(self, mode: str, kind: str, answer: str, pace: int | None) -> None:
        """Send a call whose answer is there before the question, mostly "not now"."""
        hand = self.hand(kind, mode)
        hand.answer = answer
        hand.answered.set()
        self.one(hand, None, pace)

    @rule(kind=kind, pace=pace)
    def submit_malformed(self, kind: str, pace: int | None) -> None:
        hand = self.hand(kind)
        hand.malformed = True
        self.one(hand, None, pace)

    @rule(kind=st.sampled_from(CHILDREN), mode=mode, key=key, pace=pace)
    def submit_nested(self, kind: str, mode: str, key: str, pace: int | None) -> None:
        """Send a call that makes another on the same key. On other keys two of these could deadlock."""
        self.one(self.with_child(self.hand("nest", "", key), kind, mode), None, pace)

    def with_child(self, hand: Hand, kind: str, mode: str) -> Hand:
        hand.child = self.hand(kind, mode, hand.key)
        hand.child.parent = hand
        return hand

    def one(self, hand: Hand, timeout: float | None, pace: int | None) -> None:
        call = ToolCall(f"c{hand.n}", hand.tool, json.dumps(hand.arguments))
        sent = Sent([call.id])
        sent.timed = timeout is not None
        self.send(sent, self.runner.run(call, principal=hand.principal, timeout=timeout), [hand])
        self.pump(pace)

    part = st.tuples(st.sampled_from((*KINDS, "nest")), mode, key)

    @rule(parts=st.lists(part, min_size=2, max_size=4), twice=st.sampled_from([False, False, True]), pace=pace)
    def submit_batch(self, parts: list[tuple[str, str, str]], twice: bool, pace: int | None) -> None:
        """Send several calls of one turn, perhaps with the first id a second time."""
        hands = [self.hand(kind, mode, key) for kind, mode, key in parts]
        for hand in list(hands):
            if hand.tool == "nest":
                self.with_child(hand, "think", hand.mode)
        self.together(hands, pace, twice=twice)

    def together(self, hands: list[Hand], pace: int | None, *, twice: bool = False) -> None:
        ids = [f"c{hand.n}" for hand in hands]
        if twice:
            hands = [*hands, self.hand(hands[0].tool)]
            hands[-1].malformed = True
            ids.append(ids[0])
        calls = [ToolCall(id, hand.tool, json.dumps(hand.arguments)) for id, hand in zip(ids, hands, strict=True)]
        asyncio._set_running_loop(self.loop)  # it begins with the next turn, like what is sent beside it
        batch = self.runner.batch(calls)
        asyncio._set_running_loop(None)
        self.send(Sent(ids, batch), _awaited(batch), hands)
        self.pump(pace)

    # -- what happens to them ------------------------------------------------------------------------------------------

    def untold(self) -> list[Hand]:
        return [hand for hand in self.hands.values() if not hand.told]

    def unanswered(self) -> list[Hand]:
        return [hand for hand in self.hands.values() if "ask" in hand.mode and not hand.answer]

    def undecided(self) -> list[Hand]:
        return [hand for hand in self.hands.values() if "slow" in hand.mode and not hand.thought.is_set()]

    def put_off(self) -> list[Hand]:
        return [hand for hand in self.hands.values() if hand.answer == "later" and hand.parent is None]

    def uncancelled(self) -> list[Sent]:
        return [sent for sent in self.sent if not sent.cancelled]

    @precondition(lambda self: self.untold())
    @rule(who=who, how=st.sampled_from(["return", "return", "return", "raise"]), pace=pace)
    def let_end(self, who: int, how: str, pace: int | None) -> None:
        _picked(self.untold(), who).tell(how)
        self.pump(pace)

    @precondition(lambda self: self.unanswered())
    @rule(who=who, answer=st.sampled_from(ANSWERS), pace=pace)
    def answer(self, who: int, answer: str, pace: int | None) -> None:
        hand = _picked(self.unanswered(), who)
        hand.answer = answer
        hand.answered.set()
        self.pump(pace)

    @precondition(lambda self: self.undecided())
    @rule(who=who, pace=pace)
    def let_the_guard_answer(self, who: int, pace: int | None) -> None:
        _picked(self.undecided(), who).thought.set()
        self.pump(pace)

    @precondition(lambda self: self.put_off())
    @rule(who=who, answer=st.sampled_from(("yes", "yes", *ANSWERS)), pace=pace)
    def resume(self, who: int, answer: str, pace: int | None) -> None:
        """Resume a suspended call from its record, perhaps a second time."""
        self.pump(None)
        found = [hand for hand in self.put_off() if any(one.status == "suspended" for one in hand.tries)]
        if not found or self.leaving is not None:
            return
        hand = _picked(found, who)
        asked = [one.result for one in hand.tries if one.result is not None and one.status == "suspended"]
        record = json.loads(json.dumps(asked[-1].record()))
        given = _answer("no" if answer == "breaks" else answer, record["pending"]["arguments"])
        sent = Sent([asked[-1].call_id])
        before = hand.tries[-1]
        self.send(sent, self.runner.resume(record, given), [hand], answer)
        sent.tries[0].again = before.status != "suspended"
        self.pump(pace)

    @precondition(lambda self: self.uncancelled())
    @rule(who=who, pace=pace)
    def cancel(self, who: int, pace: int | None) -> None:
        """Cancel the task that awaits a call or a batch."""
        sent = _picked(self.uncancelled(), who)
        sent.disturb("cancel")
        sent.cancelled = sent.task.cancel()
        self.pump(pace)

    @precondition(lambda self: any(sent.batch for sent in self.sent))
    @rule(who=who, now=st.booleans(), pace=pace)
    def cancel_batch(self, who: int, now: bool, pace: int | None) -> None:
        sent = _picked([sent for sent in self.sent if sent.batch], who)
        assert sent.batch is not None
        gently = self.settled and not now and not sent.stopped
        sent.disturb("cancel", inside=not gently)
        sent.stopped = True
        sent.batch.cancel(now=now)
        self.pump(pace)

    @precondition(lambda self: self.sent)
    @rule(seconds=st.sampled_from([1.0, PAST_DEADLINE, PAST_DEADLINE, PAST_ALL]))
    def let_time_pass(self, seconds: float) -> None:
        self.pump(None)
        for sent in self.sent:
            sent.disturb("clock")
        late = [hand for hand in self.hands.values() if self.is_late(hand, seconds)]
        self.loop.now += seconds
        self.pump(None)
        assert not [hand for hand in late if not {one.status for one in hand.tries} & {"timeout", "?"}], late
        assert not [hand for hand in late if hand.tool != "block" and hand.inside], late

    def is_late(self, hand: Hand, seconds: float) -> bool:
        """Return whether its handler will be past its deadline and ends with it."""
        timed = self.timeout is not None or hand.tries[-1].sent.timed
        live = any(state.call.arguments["n"] == hand.n for state in probe.live_calls(self.runner))
        return live and timed and seconds > TIMEOUT and hand.inside and hand.tool != "stubborn" and not hand.parent

    @precondition(lambda self: self.sent)
    @rule(pace=pace)
    def leave(self, pace: int | None) -> None:
        if self.leaving is None:
            for sent in self.sent:
                sent.disturb("closing")
            self.leaving = self.loop.create_task(self.runner.__aexit__())
        self.pump(pace)

    @precondition(lambda self: self.sent)
    @rule(pace=pace)
    def enter(self, pace: int | None) -> None:
        self.pump(None)
        if self.leaving is not None and self.leaving.done():
            self.leaving = None
            self.loop.run_until_complete(self.runner.__aenter__())
        self.pump(pace)

    # -- turns of the loop ---------------------------------------------------------------------------------------------

    def pump(self, turns: int | None) -> None:
        """Run this many turns of the loop, or until nothing moves here or in threads."""
        self.settled = turns is None
        self.loop.run_until_complete(_turns(turns) if turns is not None else self.rest())
        self.gather()

    async def rest(self) -> None:
        until = time.monotonic() + PATIENCE[0]
        await asyncio.sleep(0)
        # In this order: what has just stopped moving may have left something.
        while self.moves() or probe.is_ready(self.loop):
            if time.monotonic() > until:
                PATIENCE[0] = 0.5
                raise AssertionError(f"it does not come to rest: {self.hands}")
            await asyncio.sleep(0)

    def moves(self) -> bool:
        """Return whether something moves in a thread."""
        blocked = sum(hand.inside and not hand.told for hand in self.hands.values() if hand.tool == "block")
        if probe.threads_busy() > blocked:
            return True
        for state in probe.live_calls(self.runner):
            hand = self.hands[state.call.arguments["n"]]
            stays = hand.inside and not hand.told and not state.cancelled
            if hand.tool == "block" and state.attempt.executed is None and not stays:
                return True
        return False

    def gather(self) -> None:
        """Collect the results so far."""
        for sent in self.sent:
            if not sent.task.done() or sent.was_cut_off:
                continue
            found = sent.task.result()
            results = found if isinstance(found, list) else [found]
            assert [result.call_id for result in results] == sent.ids
            for one, result in zip(sent.tries, results, strict=False):
                one.result = result

    # -- what has to be true -------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_wrong(self) -> None:
        self.crowded()
        assert not self.faults
        assert not self.complaints
        for sent in self.sent:
            assert sent.batch is None or [result.call_id for result in sent.batch.results] == sent.ids

    @invariant()
    def slots_are_held_by_those_who_run(self) -> None:
        if not self.settled or not self.hands or self.runner.waiting:
            return  # who waits for two slots may have the first of them
        inside = [hand for hand in self.hands.values() if hand.inside]
        roots = [hand for hand in inside if hand.parent is None]
        running = probe.slots_taken_of(self.runner)
        assert len(roots) <= running <= min(len(inside), self.concurrency), inside  # a child's may be its parent's
        few = self.runner.tools.find("few")
        assert few is not None and probe.slots_taken_by(few) == sum(hand.tool == "few" for hand in inside)
        live = {state.call.arguments["n"] for state in probe.live_calls(self.runner)}
        left = [hand for hand in inside if hand.n not in live]
        assert self.runner.left_running == len(left), left

    @invariant()
    def every_result_is_one_that_may_be(self) -> None:
        for hand in self.hands.values():
            self.check_runs(hand)
            for one in hand.tries:
                if one.result is not None:
                    self.check(one, one.result)

    def check(self, one: Try, result: ToolResult) -> None:
        hand, timed = one.hand, self.timeout is not None or one.sent.timed
        status, m = one.outcome(self.guarded)
        assert result.status in one.allowed(self.guarded, timed), (hand, result, one.disturbed)
        if result.status == "ok":
            assert (result.executed, result.output) == (True, f"{m}={m}" if hand.tool == "say" else m)
        if result.status in NOT_RUN:
            assert result.executed is False, result
        if len(hand.tries) == 1 and result.executed is False:
            assert not hand.seen, (hand, result)
        if result.executed:
            assert len(hand.seen) == (2 if hand.tool == "redo" and status == "failed" else 1) or one.disturbed, hand

    def check_runs(self, hand: Hand) -> None:
        """A handler runs at most once unless it is retried, and on the judged arguments."""
        may_see = {one.outcome(self.guarded)[1] for one in hand.tries} - {None}
        assert len(hand.seen) <= (2 if hand.tool == "redo" else 1), hand
        assert not set(hand.seen) - may_see, hand
        if self.guarded and hand.seen:
            assert hand.seen[-1] == hand.judged[-1], hand

    # -- the end -------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if self.hands:
                self.end()
        finally:
            for hand in self.hands.values():
                if not hand.told:
                    hand.tell("return")
            self.loop.close()

    def end(self) -> None:
        """Let everything end and check what is left. Time passes only if calls wait for each other."""
        for hand in self.hands.values():
            hand.thought.set()
            hand.answer = hand.answer or "yes"
            hand.answered.set()
            if not hand.told:
                hand.tell("return")
        self.pump(None)
        self.let_rings_end()
        assert all(sent.task.done() for sent in self.sent), [sent.tries for sent in self.sent if not sent.task.done()]
        assert self.leaving is None or self.leaving.done()
        for sent in self.sent:
            # Before Python 3.13 a handler that makes nothing of a cancellation has its way.
            swallowed = not RELIABLE_CANCELLING and any(one.hand.tool == "stubborn" for one in sent.tries)
            assert sent.was_cut_off == sent.cancelled or (swallowed and not sent.was_cut_off), sent.tries
        self.nothing_is_wrong()
        self.every_result_is_one_that_may_be()
        self.check_cancelled_batches()
        if self.observed:
            self.check_events()
        self.nothing_is_left()

    def let_rings_end(self) -> None:
        """End the waits of calls that wait for each other's keys and slots."""
        for _ in self.hands:
            live = probe.live_calls(self.runner)
            if not any(state.parent is not None and state.attempt.executed is False for state in live):
                return
            assert self.runner.waiting, live
            for sent in self.sent:
                sent.disturb("clock")
            self.loop.now += PAST_ALL
            self.pump(None)

    def check_cancelled_batches(self) -> None:
        """A cancelled batch has all its results."""
        for sent in self.sent:
            if sent.batch is not None:
                known = {one.hand.n: one for one in sent.tries}
                for call, result in zip(probe.batched(sent.batch), sent.batch.results, strict=True):
                    assert result.call_id == call.id
                    self.check(known[call.arguments["n"]], result)

    def check_events(self) -> None:
        """A call has one first event, and one terminal event for each time that it was sent or resumed."""
        for hand in self.hands.values():
            events = [event for event in self.watch.events if event.call.arguments["n"] == hand.n]
            kinds = [event.kind for event in events]
            if not kinds:  # cancelled before its first step, or a child whose parent never ran
                assert not hand.seen and all(one.status in ("?", "cancelled") for one in hand.tries), hand
                continue
            assert kinds[0] == "tool:pre" and kinds.count("tool:pre") == 1, (hand, kinds)
            ends = [event.data["result"] for event in events if event.kind in (*TERMINAL, "tool:suspended")]
            cut = sum(one.result is None for one in hand.tries)  # perhaps before its first step
            assert len(hand.tries) - cut <= len(ends) <= len(hand.tries), (hand, kinds)
            assert len(ends) >= 1 and kinds[-1] in (*TERMINAL, "tool:suspended"), (hand, kinds)
            for one in hand.tries:
                assert one.result is None or any(_same(end, one.result) for end in ends), (hand, ends)
            if cut == len(hand.tries) == 1:
                self.check(hand.tries[0], ends[0])

    def nothing_is_left(self) -> None:
        assert probe.is_at_rest(self.runner)
        assert not asyncio.all_tasks(self.loop)
        assert not probe.timers(self.loop)


# -- small things ------------------------------------------------------------------------------------------------------


def _related(one: Hand, other: Hand) -> bool:
    return one is other or one.parent is other or other.parent is one


def _picked(found: list[Any], who: int) -> Any:
    """Return one of them, counted from the latest."""
    return found[-1 - who % len(found)]


def _answer(answer: str, arguments: dict[str, Any]) -> Decision | bool:
    if answer == "breaks":
        raise RuntimeError("told to")
    changed: dict[str, Any] = {"edit": EDITED, "forbidden": FORBIDDEN, "unfit": "x"}
    if answer in changed:
        return allow({**arguments, "m": changed[answer]})
    return ask("later") if answer == "later" else answer == "yes"


def _same(one: ToolResult, other: ToolResult) -> bool:
    return (one.status, one.executed, one.output) == (other.status, other.executed, other.output)


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _awaited(batch: Batch) -> list[ToolResult]:
    return await batch


def _machines(count: int, steps: int) -> settings:
    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(max_examples=count * MACHINES, stateful_step_count=steps, deadline=None, suppress_health_check=slow)


TestCalls = Calls.TestCase
TestCalls.settings = _machines(30, 30)
