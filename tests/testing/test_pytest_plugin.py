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


def pytest_of(folder: Path, program: str, *options: str, code: int = 0) -> str:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(TOOLS + program)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_where_no_fixture_is_used_ferrule_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.hasplugin('ferrule')\n"
        "    assert not [name for name in sys.modules if name.split('.')[0] in ('ferrule', 'pydantic')]\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "1 passed" in done.stdout, done.stdout


FAKES = """
def test_fakes(fake_tools, recorder, manual_clock):
    runner = Runner(fake_tools([find_order]), observers=[recorder], clock=manual_clock)
    result = runner.run_sync("find_order", {"order": "4711"})
    print("answered", result.output)
    recorder.assert_called(find_order, order="4711", times=1)
    assert result.success and not RUNS and manual_clock.time() == 0.0
    given = fake_tools([find_order], answers={"find_order": {"paid": 5}})
    assert Runner(given).run_sync("find_order", {"order": "1"}).output == {"paid": 5}
"""


def test_fakes_are_the_same_in_each_run_of_a_test(tmp_path: Path) -> None:
    def answered() -> list[str]:
        return [line for line in pytest_of(tmp_path, FAKES, "-s").splitlines() if "answered" in line]

    first = answered()
    assert first and answered() == first


def test_a_test_that_fails_shows_what_the_tools_were_called_with(tmp_path: Path) -> None:
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

@pytest.mark.parametrize("order", ["4711", "a/b", "a-b"])
def test_orders(cassette, order):
    runner = Runner([find_order], inside=[cassette])
    assert runner.run_sync("find_order", {"order": order}).output == {"paid": 80}
    assert (len(RUNS) > 0) is (cassette.mode == "record")
"""


def test_a_cassette_is_recorded_beside_the_test_and_given_again(tmp_path: Path) -> None:
    missing = pytest_of(tmp_path, CASSETTE, code=1)
    assert "pytest --cassettes=record" in missing
    pytest_of(tmp_path, CASSETTE, "--cassettes=record")
    files = sorted(path.name for path in (tmp_path / "cassettes" / "test_it").iterdir())
    assert len(files) == 3 and files[0].startswith("test_orders-4711-")
    assert "3 passed" in pytest_of(tmp_path, CASSETTE)
    assert "3 passed" in pytest_of(tmp_path, CASSETTE, "--cassettes=strict")


def test_a_call_without_a_recording_fails_the_test_whatever_that_looks_at(tmp_path: Path) -> None:
    program = """
def test_orders(cassette):
    Runner([find_order], inside=[cassette]).run_sync("find_order", {"order": ORDER})
"""
    pytest_of(tmp_path, f"\nORDER = '4711'{program}", "--cassettes=record")
    said = pytest_of(tmp_path, f"\nORDER = '4712'{program}", code=1)
    assert '-  "order": "4711"' in said and "1 failed" in said and "pytest_ferrule.py" not in said
    strict = f"\nORDER = '4711'{program}".replace("    Runner", "    return\n    Runner")
    assert "was not called with" in pytest_of(tmp_path, strict, "--cassettes=strict", code=1)


def test_tests_of_one_name_in_two_classes_have_a_recording_each(tmp_path: Path) -> None:
    program = "".join(
        f"""
class Test{name}:
    def test_it(self, cassette):
        result = Runner([find_order], inside=[cassette]).run_sync("find_order", {{"order": {name!r}}})
        assert result.output == {{"paid": 80}}
"""
        for name in ("A", "B")
    )
    pytest_of(tmp_path, program, "--cassettes=record")
    assert "2 passed" in pytest_of(tmp_path, program)
    files = sorted(path.name for path in (tmp_path / "cassettes" / "test_it").iterdir())
    assert files == ["TestA.test_it.json", "TestB.test_it.json"]


def test_a_recording_of_a_test_that_fails_is_not_kept(tmp_path: Path) -> None:
    program = """
def test_orders(cassette):
    assert Runner([find_order], inside=[cassette]).run_sync("find_order", {"order": "4711"}).output == PAID
"""
    pytest_of(tmp_path, f"\nPAID = {{'paid': 80}}{program}", "--cassettes=record")
    pytest_of(tmp_path, f"\nPAID = 7{program.replace('4711', '4712')}", "--cassettes=record", code=1)
    assert "1 passed" in pytest_of(tmp_path, f"\nPAID = {{'paid': 80}}{program}")


def test_parameters_that_look_like_classes_have_a_recording_each(tmp_path: Path) -> None:
    program = CASSETTE.replace('["4711", "a/b", "a-b"]', '["a::b", "a.b"]')
    pytest_of(tmp_path, program, "--cassettes=record")
    assert "2 passed" in pytest_of(tmp_path, program, "--cassettes=strict")


def test_a_test_that_is_skipped_or_never_begins_keeps_the_recording_that_there_is(tmp_path: Path) -> None:
    program = """
import pytest

@pytest.fixture
def later(cassette):
    if BROKEN == "setup":
        raise RuntimeError

def test_orders(cassette, later):
    if BROKEN == "skip":
        pytest.skip()
    Runner([find_order], inside=[cassette]).run_sync("find_order", {"order": "4711"})
"""
    pytest_of(tmp_path, f"\nBROKEN = None\n{program}", "--cassettes=record")
    pytest_of(tmp_path, f"\nBROKEN = 'setup'\n{program}", "--cassettes=record", code=1)
    pytest_of(tmp_path, f"\nBROKEN = 'skip'\n{program}", "--cassettes=record")
    assert "1 passed" in pytest_of(tmp_path, f"\nBROKEN = None\n{program}", "--cassettes=strict")


def test_a_call_of_a_fixture_that_ends_counts_too(tmp_path: Path) -> None:
    program = """
import pytest

@pytest.fixture
def shop(cassette):
    runner = Runner([find_order], inside=[cassette])
    yield runner
    runner.run_sync("find_order", {"order": ORDER})

def test_orders(shop):
    assert shop
"""
    pytest_of(tmp_path, f"\nORDER = '4711'\n{program}", "--cassettes=record")
    assert "1 passed" in pytest_of(tmp_path, f"\nORDER = '4711'\n{program}", "--cassettes=strict")
    assert "no recording" in pytest_of(tmp_path, f"\nORDER = '4712'\n{program}", code=1)


def test_a_test_that_fails_by_itself_is_not_told_twice(tmp_path: Path) -> None:
    program = """
def test_orders(cassette):
    Runner([find_order], inside=[cassette]).run_sync("find_order", {"order": "4711"})
    assert cassette.mode == "record"
"""
    pytest_of(tmp_path, program, "--cassettes=record")
    said = pytest_of(tmp_path, program.replace("4711", "4712"), code=1)
    assert "1 failed" in said and "error" not in said.splitlines()[-1]
    assert "calls without a recording (Ferrule)" in said and '-  "order": "4711"' in said


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


def test_a_contract_that_fails_shows_its_sentence_and_no_frame_of_ferrule(tmp_path: Path) -> None:
    shown = pytest_of(tmp_path, CONTRACT, code=1)
    failures = shown.partition("= FAILURES =")[2].partition("short test summary")[0]
    lines = [line for line in failures.splitlines() if line and line[0] not in "_="]
    assert lines == ["{'count': 1} (ok: ordered) made [('ordered', b'1')] of []"]


def test_a_cassette_that_fits_no_more_says_what_changed_and_how_to_record_it(tmp_path: Path) -> None:
    program = """
def test_it(cassette):
    result = Runner([find_order], inside=[cassette]).run_sync("find_order", {"order": "4711"})
    assert result.success
"""
    pytest_of(tmp_path, program, "--cassettes=record")
    shown = pytest_of(tmp_path, program.replace("4711", "4712"), code=1)
    assert '-  "order": "4711"' in shown and '+  "order": "4712"' in shown
    assert "Record it again: pytest --cassettes=record." in shown
