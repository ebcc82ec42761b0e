"""Handlers on the actors of a Ray cluster: what they get, how many run, and what a dead one leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import far_tools
import pytest
from test_dbos_queue import most_at_once, noted
from workers import cluster

from ferrule import Runner, ToolCall, Waits, tool
from ferrule.remote import ray


@pytest.fixture(scope="module", autouse=True)
def started() -> Iterator[None]:
    with cluster({"special": 1}):
        yield


async def test_a_dead_actor_fails_its_call_and_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "noted"
    place = ray.actors(1, options={"*": {"max_task_retries": 3}})
    runner = Runner([tool(far_tools.die, idempotent=True, isolation=place), tool(far_tools.add, isolation=place)])
    died, added = await runner.run("die", {"file": str(file)}), await runner.run("add", {"a": 1})
    assert (died.status, died.executed) == ("failed", None) and "may have happened" in (died.error or "")
    assert (added.status, added.output) == ("ok", 3)
    assert noted(file) == [["died"]]


async def test_a_tool_has_actors_with_its_own_options() -> None:
    place = ray.actors(1, options={"who": {"resources": {"special": 1}}, "add": {"resources": {"missing": 1}}})
    has = await Runner([tool(far_tools.who, isolation=place)]).run("who")
    lacks = await Runner([tool(far_tools.add, isolation=place)], waits=Waits(slot=2)).run("add", {"a": 1})
    assert has.status == "ok"
    assert (lacks.status, lacks.executed) == ("limited", False)


def broken_once(file: str) -> str:
    """There is no database until there is this file."""
    if not Path(file).exists():
        Path(file).touch()
        raise OSError("no database")
    return "made"


async def test_a_failed_actor_runs_nothing_and_is_tried_again(tmp_path: Path) -> None:
    place = ray.actors(1, deps=partial(broken_once, str(tmp_path / "there")))
    runner = Runner([tool(far_tools.held, isolation=place)])
    refused, had = await runner.run("held"), await runner.run("held")
    assert (refused.status, refused.executed) == ("limited", False)
    assert "no actor can be made" in (refused.error or "") and "no database" not in (refused.error or "")
    assert had.output == ["made", {}]


async def test_actors_keep_their_concurrency(tmp_path: Path) -> None:
    file = tmp_path / "noted"
    runner = Runner([tool(far_tools.occupy, read_only=True, isolation=ray.actors(2, concurrency=3))], concurrency=50)
    arguments = {"file": str(file), "line": "x", "seconds": 0.05}
    results = await runner.run_all([ToolCall(str(n), "occupy", arguments) for n in range(40)])
    assert Counter(result.status for result in results) == {"ok": 40}
    lines = noted(file)
    assert most_at_once(lines, lambda line: "all")["all"] <= 6
    of_each = most_at_once(lines, lambda line: line[2])
    assert len(of_each) == 2 and max(of_each.values()) <= 3
