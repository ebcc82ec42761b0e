"""Limits that real programs share, some of which are killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sharing

import ferrule
from cast import add
from ferrule import Runner, Waits
from ferrule.stores.limits import share_limits
from products import sampled
from waits import BOUND

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="the programs count in a file that they lock as Unix does"),
]
PROGRAMS = 3
ADD = add.replace(name="work", concurrency=1).bind(a=1, b=2)


@pytest.fixture(params=["journal", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the limits are: a file or a URL, as the programs are told."""
    if request.param == "journal":
        return str(tmp_path / "calls.db")
    return request.getfixturevalue("postgres_url")("programs")


@contextmanager
def start(*arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(ferrule.__file__)), **variables}
    command = [sys.executable, sharing.__file__, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as program:
        try:
            if arguments[0] == "holds":
                assert program.stdout is not None and program.stdout.readline() == "holds\n"
            yield program
        finally:
            program.kill()


def run_programs(what: str, place: str, tmp_path: Path) -> tuple[list[str], list[int]]:
    """Return the statuses of the calls of three programs at once, and the counter that they share."""
    arguments = (what, place, str(tmp_path / "counter"))
    with start(*arguments) as one, start(*arguments) as two, start(*arguments) as three:
        outputs = [str(program.communicate(timeout=120)[0]).strip() for program in (one, two, three)]
    return outputs, [int(number) for number in (tmp_path / "counter").read_bytes().split()]


@pytest.mark.large
@pytest.mark.parametrize(("what", "most"), [("runner", sharing.MOST), ("tool", sharing.MOST), ("keys", 1)])
def test_three_programs_stay_within_one_limit(place: str, tmp_path: Path, what: str, most: int) -> None:
    outputs, (inside, highest, came) = run_programs(what, place, tmp_path)
    assert outputs == [f"ok={sharing.CALLS}"] * PROGRAMS
    assert (inside, came) == (0, PROGRAMS * sharing.CALLS) and 1 <= highest <= most


@pytest.mark.parametrize("what", sampled(["rate", "budget"], 2))
def test_three_programs_together_make_exactly_as_many_calls_as_the_limit(place: str, tmp_path: Path, what: str) -> None:
    outputs, counter = run_programs(what, place, tmp_path)
    through = [int(part.removeprefix("ok=")) for line in outputs for part in line.split() if part.startswith("ok=")]
    assert sum(through) == sharing.MOST * 10 == counter[2]


async def test_the_slot_of_a_killed_program_is_free_once_its_lease_has_ended(place: str) -> None:
    limits = share_limits(sharing.place(place), lease=5)
    with start("holds", place, "", LEASE="5") as holder:
        early = await Runner([ADD], limits=limits, waits=Waits(slot=0.01)).run("work")
        assert (early.status, early.executed) == ("limited", False)
        waits = asyncio.create_task(Runner([ADD], limits=limits).run("work"))
        holder.kill()
        assert (await asyncio.wait_for(waits, BOUND)).output == 3


async def test_a_lease_is_renewed_while_the_loop_is_blocked(place: str) -> None:
    """Another program waits for longer than a lease, and gets no slot."""
    with start("holds", place, "", LEASE="6"):
        limits = share_limits(sharing.place(place), lease=6)
        assert (await Runner([ADD], limits=limits, waits=Waits(slot=9)).run("work")).status == "limited"
