"""Which rows of a journal are those of one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.journal.grouping import ENDS, Group, Grouping, Row, grouped

PROCESSES = (1, 2, 3)


class World:
    """Processes that make calls of one identity, and the rows that they write, each with the call that it is of.

    Attributes:
        rows: All rows, in order.
        truth: The number of the call of each row.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.truth: list[int] = []
        self.results: dict[int, dict[str, Any]] = {}
        self.active: dict[int, list[int]] = {process: [] for process in PROCESSES}
        self.arrived: dict[int, float] = {}
        self.suspended: list[int] = []
        self.cut_off: list[int] = []
        self.calls = 0

    def write(self, process: int, call: int, kind: str, **result: Any) -> None:
        seq = len(self.rows) + 1
        row = Row(seq, float(seq), kind, process)
        if kind in ENDS or kind == "tool:suspended":
            self.results[seq] = {"latency_ms": (row.at - self.arrived[call]) * 1000, "executed": True, **result}
        self.rows.append(row)
        self.truth.append(call)

    def result_of(self, row: Row) -> Mapping[str, Any]:
        return self.results[row.seq]

    def arrive(self, process: int) -> None:
        self.calls += 1
        self.arrived[self.calls] = float(len(self.rows) + 1)
        self.active[process].append(self.calls)
        self.write(process, self.calls, "tool:pre")

    def suspend(self, process: int, call: int) -> None:
        self.write(process, call, "tool:suspended")
        self.active[process].remove(call)
        self.suspended.append(call)

    def resume(self, process: int) -> None:
        call = min(self.suspended)  # of several the oldest: their rows do not say which
        self.suspended.remove(call)
        self.arrived[call] = float(len(self.rows) + 1)
        self.active[process].append(call)
        self.write(process, call, "tool:decided")

    def end(self, process: int, call: int, kind: str) -> None:
        self.write(process, call, kind)
        self.active[process].remove(call)

    def crash(self, process: int) -> None:
        self.cut_off += self.active.pop(process)
        self.active[max(PROCESSES) + len(self.rows) + 1] = []  # another one takes its place

    def settle(self, process: int) -> None:
        call = self.cut_off.pop()
        self.arrived[call] = float(len(self.rows) + 1)
        self.write(process, call, "tool:error", executed=None)

    def refuse(self, process: int) -> None:
        """Take up the call that ended last once more."""
        call = next(of for row, of in zip(self.rows[::-1], self.truth[::-1], strict=True) if row.kind in ENDS)
        self.arrived[call] = float(len(self.rows) + 1)
        self.write(process, call, "tool:error", executed=False)

    @property
    def is_quiet(self) -> bool:
        return not self.suspended and not self.cut_off and not any(self.active.values())


def act(world: World, draw: Any, *, at_once: bool) -> None:
    """One thing that may happen; only with `at_once` a process has several calls of the same identity under way."""
    process = draw(st.sampled_from(sorted(world.active)))
    mine = world.active[process]
    alone = not any(world.active.values()) and not world.suspended
    can = {
        "arrive": at_once or not mine,
        "step": bool(mine),
        "end": bool(mine),
        "suspend": bool(mine) and not at_once,
        "resume": bool(world.suspended) and not mine,
        "crash": bool(mine) and not at_once,
        "settle": alone and len(world.cut_off) == 1,
        "refuse": not at_once and world.is_quiet and any(row.kind in ENDS for row in world.rows),
    }
    what = draw(st.sampled_from([name for name, possible in can.items() if possible]))
    if what in ("step", "end", "suspend"):
        call = draw(st.sampled_from(mine))
        if what == "step":
            world.write(process, call, draw(st.sampled_from(["tool:decided", "tool:started", "tool:progress"])))
        elif what == "end":
            world.end(process, call, draw(st.sampled_from(sorted(ENDS))))
        else:
            world.suspend(process, call)
    else:
        getattr(world, what)(process)


def simulated(data: st.DataObject, *, at_once: bool) -> World:
    world = World()
    world.arrive(1)
    for _ in range(data.draw(st.integers(0, 30))):
        act(world, data.draw, at_once=at_once)
    return world


def calls_of(world: World, group: Group) -> list[int]:
    return [world.truth[row.seq - 1] for row in group.rows]


@given(st.data())
@settings(max_examples=150)
def test_calls_that_follow_each_other_have_all_of_their_rows_and_no_others(data: st.DataObject) -> None:
    world = simulated(data, at_once=False)
    groups = grouped(world.rows, world.result_of)
    assert [sorted({*calls_of(world, group)}) for group in groups] == [[call] for call in range(1, world.calls + 1)]
    assert sum(len(group.rows) for group in groups) == len(world.rows)


@given(st.data())
@settings(max_examples=150)
def test_of_calls_at_once_each_has_its_own_begin_and_its_own_end(data: st.DataObject) -> None:
    world = simulated(data, at_once=True)
    groups = grouped(world.rows, world.result_of)
    assert len(groups) == world.calls
    for group in groups:
        edges = [row for row in group.rows if row.kind == "tool:pre" or row.kind in ENDS]
        assert len({world.truth[row.seq - 1] for row in edges}) == 1
        assert [row.kind for row in group.rows].count("tool:pre") == 1
    assert sorted(row.seq for group in groups for row in group.rows) == [row.seq for row in world.rows]


@given(st.data())
@settings(max_examples=50)
def test_to_go_on_where_one_was_gives_what_reading_all_of_it_gives(data: st.DataObject) -> None:
    world = simulated(data, at_once=data.draw(st.booleans()))
    cut = data.draw(st.integers(0, len(world.rows)))
    grouping, found = Grouping(world.result_of), dict[int, Group]()
    for row in world.rows:
        if row.seq == cut:
            for group in grouping.open:
                assert found[group.rows[0].seq] is group
        group = grouping.add(row)
        found[group.rows[0].seq] = group
    whole = grouped(world.rows, world.result_of)
    assert [found[group.rows[0].seq].rows for group in whole] == [group.rows for group in whole]


def test_who_takes_up_what_is_under_way_does_not_say_what_it_came_to() -> None:
    world = World()
    world.arrive(1)
    world.suspend(1, 1)
    world.resume(1)
    world.write(1, 1, "tool:started")
    resumed_at = world.arrived[1]
    world.arrived[1] = float(len(world.rows) + 1)
    world.write(2, 1, "tool:error", executed=False)  # a second click, at another process
    world.arrived[1] = resumed_at
    world.write(1, 1, "tool:post")
    [group] = grouped(world.rows, world.result_of)
    end = group.end(world.result_of)
    assert end is not None and end.kind == "tool:post"


def test_rows_whose_first_ones_are_not_there_are_a_call() -> None:
    rows = [Row(7, 7.0, "tool:started", 2), Row(8, 8.0, "tool:post", 2), Row(9, 9.0, "tool:pre", 2)]
    first, second = grouped(rows, lambda row: {"latency_ms": 1.0})
    assert [row.seq for row in first.rows] == [7, 8] and [row.seq for row in second.rows] == [9]
