"""Limits among real programs, some of which are killed."""

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
from ferrule import Runner, ToolResult, Waits, tool
from ferrule.stores.limits import share_limits

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="the programs count in a file that they lock as Unix does"),
]
PROGRAMS = 3


@pytest.fixture(params=["journal", "postgres"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the limits are, as the programs are told."""
    if request.param == "journal":
        return str(tmp_path / "calls.db")
    url: str = request.getfixturevalue("postgres_url")("programs")
    return url


@contextmanager
def started(*arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(ferrule.__file__)), **variables}
    command = [sys.executable, sharing.__file__, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as program:
        try:
            yield program
        finally:
            program.kill()


def counted(tmp_path: Path) -> list[int]:
    return [int(number) for number in (tmp_path / "counter").read_bytes().split()]


def outcomes(what: str, written: str, tmp_path: Path) -> list[str]:
    """What the calls of three programs at once came to."""
    arguments = (what, written, str(tmp_path / "counter"))
    with started(*arguments) as one, started(*arguments) as two, started(*arguments) as three:
        return [str(program.communicate(timeout=120)[0]).strip() for program in (one, two, three)]


@pytest.mark.parametrize(("what", "most"), [("runner", sharing.MOST), ("tool", sharing.MOST), ("keys", 1)])
def test_no_more_calls_of_three_programs_run_at_once_than_the_limit(
    written: str, tmp_path: Path, what: str, most: int
) -> None:
    assert outcomes(what, written, tmp_path) == [f"ok={sharing.CALLS}"] * PROGRAMS
    inside, highest, came = counted(tmp_path)
    assert (inside, came) == (0, PROGRAMS * sharing.CALLS) and 1 <= highest <= most


@pytest.mark.parametrize("what", ["rate", "budget"])
def test_three_programs_together_get_as_many_calls_through_as_the_limit_and_not_one_more(
    written: str, tmp_path: Path, what: str
) -> None:
    found = outcomes(what, written, tmp_path)
    through = [int(part.removeprefix("ok=")) for line in found for part in line.split() if part.startswith("ok=")]
    assert sum(through) == sharing.MOST * 10 == counted(tmp_path)[2]


async def test_what_a_killed_program_had_is_anothers_once_its_lease_has_ended(written: str) -> None:
    @tool(concurrency=1)
    async def work() -> str:
        return "had it"

    async def main() -> ToolResult:
        limits = share_limits(sharing.place(written), lease=1.5)
        with started("holds", written, "", LEASE="1.5") as holder:
            assert holder.stdout is not None and holder.stdout.readline() == "holds\n"
            early = await Runner([work], limits=limits, waits=Waits(slot=0.01)).run("work")
            assert (early.status, early.executed) == ("limited", False)
            waits = asyncio.create_task(Runner([work], limits=limits).run("work"))
            holder.kill()
            return await asyncio.wait_for(waits, 60)

    assert (await main()).output == "had it"


def test_what_a_program_gave_back_as_it_ended_is_free_at_once(written: str, tmp_path: Path) -> None:
    with started("runner", written, str(tmp_path / "counter"), LEASE="3600") as program:
        program.communicate(timeout=120)
    limits = share_limits(sharing.place(written), lease=3600)
    assert limits.store.items() == {}


async def test_a_lease_is_renewed_while_the_loop_stands_still(written: str) -> None:
    """The holder's program renews it, whatever its event loop does; so another one waits for longer than a lease."""

    @tool(concurrency=1)
    async def work() -> None:
        """Work."""

    async def main() -> ToolResult:
        with started("holds", written, "", LEASE="3") as holder:
            assert holder.stdout is not None and holder.stdout.readline() == "holds\n"
            limits = share_limits(sharing.place(written), lease=3)
            return await Runner([work], limits=limits, waits=Waits(slot=5)).run("work")

    assert (await main()).status == "limited"
