"""What a folder holds runs only where the user names it: every command, in a folder of files that nobody named."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from products import sampled
from waits import BOUND

SCRIPT = [str(Path(sys.executable).with_name("ferrule"))]
MODULE = [sys.executable, "-m", "ferrule"]
NOT_HERE = ("opentelemetry", "httptools", "uvloop", "numpy", "h2", "brotli", "zstandard", "email_validator", "org")
"""What libraries use where it is installed, besides the modules of Python for other systems."""
OWN_TOOLS = """
from pydantic import BaseModel

from ferrule import tool
from own_helper import total

class Pair(BaseModel):
    a: int
    b: int

@tool(read_only=True)
def add(pair: Pair) -> int:
    "Add two numbers."
    return total(pair.a, pair.b)

@tool(read_only=True, isolation="process")
def add_elsewhere(pair: Pair) -> int:
    "Add two numbers in a process."
    import own_late

    return total(pair.a, pair.b) + own_late.NOTHING
"""
COMMANDS = {
    "list": ["list"],
    "schema": ["schema", "--provider", "anthropic"],
    "lint": ["lint"],
    "select": ["select", "why", "numbers", "--by", "own_choice:best"],
    "call": ["call", "list_files"],
    "run": ["run", "Say it.", "--model", "scripted:own_steps.py", "--select", "own_choice.py:best"],
    "serve": ["serve"],
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def loaded_first() -> set[str]:
    """What Python itself imports to run a module, before the module's own first line."""
    listing = "import runpy, importlib.util, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", listing], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def full_folder(tmp_path_factory: pytest.TempPathFactory, loaded_first: set[str]) -> Path:
    """Tools, selector and steps of a user's, among modules and a Pydantic plugin that say that they were run."""
    tmp_path = tmp_path_factory.mktemp("full")
    trap = "open({!r}, 'a').write({!r} + ' ')\nraise ImportError('a trap')\n"
    names = {*sys.stdlib_module_names, *packages_distributions(), *NOT_HERE} - loaded_first - {"ferrule"}
    for name in filter(str.isidentifier, names):
        (tmp_path / f"{name}.py").write_text(trap.format(str(tmp_path / "ran"), name))
    (tmp_path / "rich.py").unlink()
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text(trap.format(str(tmp_path / "ran"), "rich"))
    (tmp_path / "plugin_of_nobody.py").write_text(trap.format(str(tmp_path / "ran"), "plugin"))
    metadata = tmp_path / "nobody-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: nobody\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[pydantic]\nnobody = plugin_of_nobody:plugin\n[ferrule.selectors]\nnobody = plugin_of_nobody:best\n"
    )
    (tmp_path / "own_tools.py").write_text(OWN_TOOLS)
    (tmp_path / "own_helper.py").write_text("def total(*numbers):\n    return sum(numbers)\n")
    (tmp_path / "own_late.py").write_text("NOTHING = 0\n")
    (tmp_path / "own_choice.py").write_text("from ferrule.selection import keyword\n\nbest = keyword(2)\n")
    (tmp_path / "own_steps.py").write_text('steps = ["It is run_command."]\n')
    return tmp_path


@pytest.fixture
def folder(full_folder: Path) -> Path:
    """The folder, of which nothing has run yet."""
    (full_folder / "ran").unlink(missing_ok=True)
    return full_folder


def read_traps(folder: Path) -> str:
    return (folder / "ran").read_text() if (folder / "ran").exists() else ""


def run_command(folder: Path, program: list[str], *words: str) -> str:
    """What a command writes that works, and runs nothing that nobody named."""
    done = subprocess.run(
        [*program, *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BOUND
    )
    assert read_traps(folder) == ""
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", sampled(COMMANDS, one_in=2))
def test_a_command_runs_no_unnamed_file(folder: Path, command: str) -> None:
    assert run_command(folder, SCRIPT, *COMMANDS[command]) or command == "serve"


@pytest.mark.large
@pytest.mark.parametrize("command", sampled(["call", "schema", "run", "select"], one_in=2))
def test_beside_named_tools_only_their_imports_run(folder: Path, command: str) -> None:
    words = ["call", "add", 'pair={"a": 1, "b": 2}'] if command == "call" else COMMANDS[command]
    assert run_command(folder, MODULE, *words, "--tools", "own_tools")


@pytest.mark.large
@pytest.mark.parametrize("word", ["-mferrule", "-Bmferrule.cli"])
def test_a_module_option_in_one_word_is_recognized(folder: Path, word: str) -> None:
    assert "list_files" in run_command(folder, [sys.executable, word], "list")


@pytest.mark.large
def test_the_worker_of_a_tool_runs_only_its_imports(folder: Path) -> None:
    call = ["call", "add_elsewhere", 'pair={"a": 1, "b": 2}']
    assert run_command(folder, SCRIPT, *call, "--tools", "own_tools.py") == "3\n"
    assert run_command(folder, MODULE, *call, "--tools", "own_tools") == "3\n"


def test_a_plug_in_of_the_folder_is_not_loaded(folder: Path) -> None:
    words = ["run", "Say it.", "--model", "scripted:own_steps.py", "--select", "nobody", "--tools", "own_tools.py"]
    done = subprocess.run([*SCRIPT, *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert read_traps(folder) == ""
    assert "there is no selector 'nobody'" in done.stderr


def test_a_module_with_the_name_of_another_is_refused(folder: Path) -> None:
    done = subprocess.run([*SCRIPT, "list", "--tools", "calendar"], cwd=folder, capture_output=True, text=True)
    assert read_traps(folder) == ""
    assert done.returncode == 2
    assert str(folder / "calendar.py") in done.stderr
    assert done.stderr.count("calendar.py") == 2
    assert "Write the path of the file" in done.stderr
