"""No test measures time: `steps.py` counts steps, and `benchmarks/` measures seconds."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent
CLOCKS = {"perf_counter", "perf_counter_ns", "process_time", "process_time_ns", "thread_time", "thread_time_ns"}


def clocks_in(source: str) -> set[str]:
    if not any(clock in source for clock in CLOCKS):
        return set()
    nodes = list(ast.walk(ast.parse(source)))
    imported = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    return CLOCKS & (imported | {node.attr for node in nodes if isinstance(node, ast.Attribute)})


def test_no_test_reads_a_measuring_clock() -> None:
    found = {path.name: clocks_in(path.read_text(encoding="utf-8")) for path in TESTS.rglob("*.py")}
    assert {name: clocks for name, clocks in found.items() if clocks} == {}


def test_a_measuring_clock_is_found() -> None:
    assert clocks_in("from time import process_time as now") == {"process_time"}
    assert clocks_in("import time as clock\nclock.perf_counter()") == {"perf_counter"}
    assert clocks_in("import time\ntime.monotonic()") == set()
