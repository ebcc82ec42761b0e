"""The fixtures that pytest has where Ferrule is installed, each in a run of pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TOOLS = '''
import asyncio
from ferrule import Runner, ToolCall, tool

RUNS = []

@tool
async def find_order(order: str) -> dict[str, int]:
    """Find an order."""
    RUNS.append(order)
    return {"paid": 80}
'''


def pytest_of(folder: Path, program: str, *options: str, code: int = 0, tools: str = TOOLS) -> str:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(tools + program)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_ferrule_is_not_imported_without_a_fixture(tmp_path: Path) -> None:
    program = """
import sys

def test_it(pytestconfig):
    assert pytestconfig.pluginmanager.hasplugin('ferrule')
    assert not [name for name in sys.modules if name.split('.')[0] in ('ferrule', 'pydantic')]
"""
    assert "1 passed" in pytest_of(tmp_path, program, tools="")


FAKES = """
def test_fakes(fake_tools, recorder, manual_clock):
    runner = Runner(fake_tools([find_order]), observers=[recorder], clock=manual_clock)
    result = runner.run_sync("find_order", {"order": "4711"})
    recorder.assert_called(find_order, order="4711", times=1)
    assert result.success and not RUNS and manual_clock.time() == 0.0
    given = fake_tools([find_order], answers={"find_order": {"paid": 5}})
    assert Runner(given).run_sync("find_order", {"order": "1"}).output == {"paid": 5}
"""


def test_a_test_may_run_with_fakes_a_recorder_and_a_clock(tmp_path: Path) -> None:
    assert "1 passed" in pytest_of(tmp_path, FAKES)


def test_a_failing_test_shows_its_tool_calls(tmp_path: Path) -> None:
    program = """
def test_fails(fake_tools, recorder):
    runner = Runner(fake_tools([find_order], answers={"find_order": {"paid": 5}}), observers=[recorder])
    runner.run_sync("find_order", {"order": "4711"})
    runner.run_sync("find_order", {"order": 7})
    assert runner.run_sync("find_odrer", {}).success

def test_passes(recorder):
    pass

def test_fails_without_a_call(recorder):
    assert not recorder
"""
    said = pytest_of(tmp_path, program, code=1)
    assert said.count("calls of the tools (Ferrule)") == 2
    assert """find_order(order='4711') → ok: '{"paid": 5}'""" in said
    assert "find_order(order=7) → invalid, not run: " in said and "find_odrer() → not_found, not run: " in said
    assert "there was no call" in said


CASSETTE = """
import pytest

@pytest.mark.parametrize("order", ["4711", "a/b", "a-b", "a::b", "a.b"])
def test_orders(cassette, order):
    runner = Runner([find_order], inside=[cassette])
    assert runner.run_sync("find_order", {"order": order}).output == {"paid": 80}
    assert (len(RUNS) > 0) is (cassette.mode == "record")

class TestA:
    def test_it(self, cassette):
        assert Runner([find_order], inside=[cassette]).run_sync("find_order", {"order": "A"}).output == {"paid": 80}

class TestB:
    def test_it(self, cassette):
        assert Runner([find_order], inside=[cassette]).run_sync("find_order", {"order": "B"}).output == {"paid": 80}
"""


def test_a_cassette_is_recorded_beside_the_test(tmp_path: Path) -> None:
    missing = pytest_of(tmp_path, CASSETTE, code=1)
    assert "pytest --cassettes=record" in missing
    pytest_of(tmp_path, CASSETTE, "--cassettes=record")
    files = sorted(path.name for path in (tmp_path / "cassettes" / "test_it").iterdir())
    assert files[:2] == ["TestA.test_it.json", "TestB.test_it.json"]
    assert len(files) == 7 and files[2].startswith("test_orders-4711-")
    assert "7 passed" in pytest_of(tmp_path, CASSETTE)


@pytest.mark.large
def test_a_call_without_a_recording_fails_the_test(tmp_path: Path) -> None:
    program = """
def test_orders(cassette):
    Runner([find_order], inside=[cassette]).run_sync("find_order", {"order": ORDER})
"""
    pytest_of(tmp_path, f"\nORDER = '4711'{program}", "--cassettes=record")
    said = pytest_of(tmp_path, f"\nORDER = '4712'{program}", code=1)
    assert '-  "order": "4711"' in said and '+  "order": "4712"' in said
    assert "1 failed" in said and "pytest_ferrule.py" not in said
    assert "Record it again: pytest --cassettes=record." in said
    strict = f"\nORDER = '4711'{program}".replace("    Runner", "    return\n    Runner")
    assert "was not called with" in pytest_of(tmp_path, strict, "--cassettes=strict", code=1)


CONTRACT = """
from ferrule.testing import ToolContract

@tool(read_only=True)
async def order(count: int) -> str:
    "Order."
    with open("ordered", "w") as file:  # although it is read-only
        file.write(str(count))
    return "ordered"

class TestOrder(ToolContract):
    def tool(self):
        return order

    def arguments(self):
        return [{"count": 1}]
"""


def test_a_failing_contract_shows_only_its_sentence(tmp_path: Path) -> None:
    shown = pytest_of(tmp_path, CONTRACT, code=1)
    failures = shown.partition("= FAILURES =")[2].partition("short test summary")[0]
    lines = [line for line in failures.splitlines() if line and line[0] not in "_="]
    assert lines == ["{'count': 1} (ok: ordered) made [('ordered', b'1')] of []"]
