"""A call whose process is killed at any point runs at most once, and no outcome that was given is lost.

Each test kills a program at a named point, or at one step of many, and starts others on the same file (`crashes.py`).
`FERRULE_CRASHES=100` is how often each point is tried: CI does so on the newest Python.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import crashes
import pytest
from crashes import TOOLS, Forks, Order, Seen, environment, seen, soak

from needed import needed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.time_limit(600),  # CI kills programs a hundred times at each point
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
]
ROUNDS = int(os.environ.get("FERRULE_CRASHES", "1"))


class Came(NamedTuple):
    """How far a call had come when its program was killed."""

    begun: bool = False
    effect: bool = False
    ended: bool = False


NOTHING, BEGUN, DONE, ENDED = Came(), Came(True), Came(True, True), Came(True, True, True)
POINTS = {
    "judged": NOTHING,
    "intent queued": NOTHING,
    "intent not committed": NOTHING,
    "intent committed": BEGUN,
    "handler entered": BEGUN,
    "effect made": DONE,
    "outcome made": DONE,
    "outcome queued": DONE,
    "outcome not committed": DONE,
    "outcome committed": ENDED,
    "being told": ENDED,
    "told": ENDED,
}


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


@pytest.fixture(scope="module")
def others() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def check_files(tmp_path: Path) -> Iterator[None]:
    """Check at the end of each test that its journals are whole."""
    yield
    for file in tmp_path.rglob("calls.db"):
        with closing(sqlite3.connect(file)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def orders(folder: Path, tool: str, does: str = "send", *, one_in: int) -> Iterator[tuple[int, Order]]:
    """An order of a session of its own for each of the rounds, one in so many."""
    for n in range(-(-ROUNDS // one_in)):
        yield n, Order(str(folder), f"s{n}", [tool], [does])


def the_call(order: Order) -> Seen:
    """The one call of an order, of which all laws hold."""
    [call] = seen(order.folder, order.session, order.calls)
    call.check()
    return call


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("point", POINTS)
def test_a_call_killed_at_any_point_runs_at_most_once(point: str, name: str, forks: Forks, tmp_path: Path) -> None:
    came = POINTS[point]
    for n, order in orders(tmp_path, name, one_in=len(TOOLS)):
        assert forks.run(replace(order, at=point)), "it was not killed"
        before = the_call(order)
        assert (len(before.effects), len(before.told)) == (came.effect, point == "told"), before
        recovers_first = (n + TOOLS.index(name)) % 2
        after = ["recover", "send", "send"] if recovers_first else ["send", "recover", "send"]
        assert not forks.run(replace(order, does=after))
        call = the_call(order)
        first, again = (one for one in call.told[len(before.told) :] if one["what"] == "send")
        unknown = came.begun and not came.ended and name == "pay"
        assert first["status"] == again["status"] == ("unknown" if unknown else "ok"), call
        runs = came.effect if unknown else came.effect + 1 if name == "put" and not came.ended else 1
        assert len(call.effects) == runs, call
        assert again["metadata"] == {"replayed": True}, call
        assert ("replayed" in first["metadata"]) or not came.ended, call


SETTLING = ["settling queued", "settling not committed", "settling committed", "being told", "told"]
RUNNING = ["intent queued", "intent not committed", "intent committed", "effect made", "outcome committed", "told"]
AFTERWARDS = {
    ("pay", "recover"): SETTLING,
    ("put", "send"): RUNNING,
    ("book", "recover"): ["reconciling", *SETTLING],
    ("book", "send"): ["reconciling", *SETTLING, *RUNNING],
}


@pytest.mark.parametrize(
    ("name", "does", "point"),
    [(*what, point) for what, points in AFTERWARDS.items() for point in dict.fromkeys(points)],
)
def test_a_second_kill_during_recovery_changes_nothing(
    name: str, does: str, point: str, forks: Forks, tmp_path: Path
) -> None:
    for n, order in orders(tmp_path, name, one_in=2):
        had_effect = (n + len(point)) % 2
        first = "effect made" if had_effect else "intent committed"
        assert forks.run(replace(order, at=first))
        forks.run(replace(order, does=[does], at=point))  # there may be nothing to settle, or nothing to run
        assert not forks.run(replace(order, does=["recover", "send", "send"]))
        call = the_call(order)
        last = call.told[-1]
        assert last["status"] == ("unknown" if name == "pay" else "ok"), call
        assert last["metadata"] == {"replayed": True}, call
        assert len(call.effects) == had_effect if name == "pay" else len(call.effects) >= 1, call


TAKING = {"taking queued": NOTHING, "taking not committed": NOTHING, "taking committed": NOTHING}


@pytest.mark.parametrize("point", [*TAKING, *POINTS])
def test_a_killed_call_runs_at_most_once(point: str, forks: Forks, tmp_path: Path) -> None:
    came = {**POINTS, **TAKING}[point]
    for n in range(ROUNDS if point in TAKING else -(-ROUNDS // 3)):
        name = TOOLS[(n + len(point)) % len(TOOLS)]
        order = Order(str(tmp_path), f"s{n}", [name], ["suspend"])
        assert not forks.run(order)
        [call] = seen(tmp_path, order.session, order.calls)
        order = replace(order, does=["resume"], records=[call.told[-1]["record"]])
        assert forks.run(replace(order, at=point)), "it was not killed"
        assert not forks.run(replace(order, does=["resume", "send"]))
        call = the_call(order)
        resumed, sent = call.told[-2:]
        if came.begun:  # it is as where it is sent again, and nobody is asked
            unknown = name == "pay" and not came.ended
            assert resumed["status"] == sent["status"] == ("unknown" if unknown else "ok"), call
            runs = came.effect if unknown else came.effect + 1 if name == "put" and not came.ended else 1
            assert len(call.effects) == runs, call
        elif point in ("taking queued", "taking not committed"):  # the answer still counts
            assert resumed["status"] == "ok" and sent["metadata"] == {"replayed": True}, call
        else:  # the answer is used up, and nothing was run: who sends it is asked anew
            assert (resumed["status"], sent["status"], call.effects) == ("invalid", "suspended", []), call


# -- work that ends elsewhere, and in the background -------------------------------------------------------------------


HANDED_ON = {point: came for point, came in POINTS.items() if point not in ("judged", "being told")}


@pytest.mark.parametrize("point", HANDED_ON)
def test_deferred_work_killed_at_any_point_begins_and_ends_once(point: str, forks: Forks, tmp_path: Path) -> None:
    came = HANDED_ON[point]
    for _, order in orders(tmp_path, "hand", one_in=5):
        assert forks.run(replace(order, at=point)), "it was not killed"
        after = ["resolve", "resolve", "send"] if came.effect else ["send", "resolve", "resolve", "send"]
        if came.begun and not came.effect:
            after = ["recover", "send"]
        assert not forks.run(replace(order, does=after))
        call = the_call(order)
        said = [(one["what"], one["status"]) for one in call.told if one["what"] != "recover"]
        if came.begun and not came.ended:  # that it was handed on is not known
            assert said[-1] == ("send", "unknown") and {status for _, status in said} <= {"unknown", "not_found"}, call
            assert len(call.effects) == came.effect, call
        else:
            assert said[-3:] == [("resolve", "ok"), ("resolve", "not_found"), ("send", "ok")], call
            assert len(call.effects) == 1 and call.told[-1]["metadata"]["replayed"], call


@pytest.mark.parametrize("point", POINTS)
def test_background_work_killed_at_any_point_runs_at_most_once(point: str, forks: Forks, tmp_path: Path) -> None:
    came = POINTS[point]
    for n, order in orders(tmp_path, "grind", one_in=5):
        assert forks.run(replace(order, at=point)), "it was not killed"
        assert not forks.run(replace(order, does=["recover", "send", "send"] if n % 2 else ["send", "recover", "send"]))
        call = the_call(order)
        last = call.told[-1]["status"]
        if point == "being told":  # that it has begun: how far the work is by then is its own affair
            assert (last, len(call.effects)) in (("unknown", 0), ("unknown", 1), ("ok", 1)), call
        elif came.begun and not came.ended:
            assert (last, len(call.effects)) == ("unknown", came.effect), call
        else:
            assert (last, len(call.effects)) == ("ok", 1), call


# -- two programs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cut_off_at", "does", "point", "effects"),
    [
        *((name, None, "send", "judged", 1) for name in TOOLS),
        ("put", "effect made", "send", "judged", 2),
        ("book", "intent committed", "send", "reconciling", 1),
        ("book", "effect made", "send", "reconciling", 1),
        ("book", "effect made", "recover", "reconciling", 1),
    ],
)
def test_one_of_two_programs_that_may_run_a_call_runs_it(
    name: str, cut_off_at: str | None, does: str, point: str, effects: int, forks: Forks, others: Forks, tmp_path: Path
) -> None:
    order = Order(str(tmp_path), "s", [name], ["send"])
    if cut_off_at is not None:
        assert forks.run(replace(order, at=cut_off_at))
    with forks.paused(replace(order, does=[does], pause_at=point)):
        assert not others.run(order)
    assert not forks.run(order)
    call = the_call(order)
    assert len(call.effects) == effects, call
    assert {one["status"] for one in call.told} == {"ok"}, call
    assert len(call.told) == (2 if does == "recover" else 3), call


# -- anywhere ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2])
def test_a_kill_during_a_checkpoint_loses_nothing(nth: int, forks: Forks, tmp_path: Path) -> None:
    for n in range(ROUNDS):
        order = Order(str(tmp_path), f"s{n}", [*TOOLS], ["send"])
        assert forks.run(replace(order, at="checkpoint", count=nth)), "it was not killed"
        assert not forks.run(replace(order, does=["recover", "send", "send"], at="checkpoint", count=1000))
        for call in seen(tmp_path, order.session, order.calls):
            call.check()
            assert call.told[-1]["status"] == "ok" or call.tool == "pay", call


@pytest.mark.large
def test_kills_of_several_programs_at_any_step_double_and_lose_nothing(tmp_path: Path) -> None:
    several = [Forks() for _ in range(3)]
    try:
        found = soak(tmp_path, several, rounds=max(3, ROUNDS), seed=1)
    finally:
        for one in several:
            one.close()
    assert found["doubled"] == found["lost"] == 0
    assert found["kills"] and found["effects"] and found["replayed"]


@pytest.mark.large
@pytest.mark.parametrize("writes", ["pwrite64", "fdatasync,fsync", "ftruncate,unlink"])
def test_a_kill_at_each_write_doubles_and_loses_nothing(writes: str, forks: Forks, tmp_path: Path) -> None:
    strace, killed = needed("strace")["strace"], True
    nth = 0
    while killed:
        nth += 1
        folder = tmp_path / str(nth)  # each makes the journal first
        folder.mkdir()
        order = Order(str(folder), "s", [*TOOLS], ["send", "send"], at="checkpoint", count=1000)
        inject = ["-e", f"trace={writes}", "-e", f"inject={writes}:signal=SIGKILL:when={nth}"]
        command = [strace, "-f", "-o", os.devnull, *inject, sys.executable, crashes.__file__]
        ended = subprocess.run([*command, json.dumps(vars(order))], env=environment(), timeout=60)
        killed = ended.returncode == -signal.SIGKILL
        assert killed or ended.returncode == 0
        assert not forks.run(replace(order, does=["recover", "send", "send"]))
        for call in seen(folder, order.session, order.calls):
            call.check()
            assert call.told[-1]["status"] == "ok" or call.tool == "pay", call
    assert nth > 2, "nothing was killed"
