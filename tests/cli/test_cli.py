"""The commands `list`, `schema`, `call` and `run` as programs: without a terminal, and with one."""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import preloaded
from ferrule.cli.call import parse_arguments
from ferrule.cli.program import COMMANDS, EXAMPLES, make_parser
from ferrule.values.frozen import freeze
from waits import BOUND

if os.name != "nt":
    from tests.cli.terminal import Terminal

ROOT = Path(__file__).parent.parent.parent
PROGRAM = [sys.executable, "-m", "ferrule"]
TOOLS = '''
from __future__ import annotations

from pathlib import Path
from typing import Literal

from ferrule import ToolError, tool

@tool(read_only=True)
def shout(text: str, times: int = 1, end: Literal["!", "?"] = "!") -> str:
    """Say it loudly.

    And more than once.
    """
    return " ".join([text.upper() + end] * times)

@tool(read_only=True)
def peek(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()

@tool(destructive=False)
def note(text: str) -> str:
    """Write a note."""
    Path("note.txt").write_text(text)
    return "written"

@tool
def wipe() -> str:
    """Remove the note."""
    Path("note.txt").unlink()
    return "gone"

@tool(read_only=True)
def stumble() -> str:
    """Never work."""
    raise ValueError("no good")

@tool(read_only=True)
def regret() -> str:
    """Say why not."""
    raise ToolError("there is no such customer")
'''
RUNNERS = """
from pathlib import Path

from ferrule import Runner, allow, ask, deny, tool
from ferrule.journal import events
from tools import note

@tool(name="note", private=["pin"])
def sign(text: str, pin: str) -> str:
    Path("note.txt").write_text(text)
    return "written"

allowing = Runner([note], guards=[lambda call, context: allow()])
asking = Runner([note], guards=[lambda call, context: ask("mine to ask")])
strict = Runner([note], guards=[lambda call, context: deny("never")])
owned = Runner([note], guards=[lambda call, context: ask("mine")], approve=lambda call, decision, context: False)
logged = Runner([note], observers=[events.to_file("calls.jsonl")])
signing = Runner([sign], guards=[lambda call, context: None if "pin" in call.arguments else ask("who?", into="pin")])
"""
ODD = r"""
from ferrule import Tool

async def nothing() -> str:
    return ""

long = Tool("n" * 128, nothing, description="long " * 20_000)
wild = Tool("wild", nothing, description="red \x1b[31m text\rhidden \x9b31m\u202e")
"""

STEPS = """
steps = [
    ("I will look.", [("shout", '{"text": "a",}'), ("shout", {"words": "b"}), ("peek", {"path": "../secret.txt"})]),
    ("And note it.", [("note", {"text": "kept"})]),
    lambda messages: "The tools said: " + " / ".join(m["content"] for m in messages if m["role"] == "tool"),
]
"""
RUN = ("run", "Look around", "--tools", "tools.py", "--model", "scripted:steps.py")


pytestmark = pytest.mark.slow
needs_terminal = pytest.mark.skipif(os.name == "nt", reason="there are no pseudo-terminals here")


def ferrule(*words: str, cwd: Path, stdin: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program with `words`, without a terminal."""
    known = {**os.environ, "PYTHONIOENCODING": "utf-8", **environment}
    return preloaded.run([*PROGRAM, *words], cwd=cwd, input=stdin or "", timeout=BOUND, env=known)


def read_refusal(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line that a wrong command line prints."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("ferrule: "), done.stderr
    return done.stderr


def run_at_terminal(*words: str, cwd: Path, answer: str = "") -> tuple[int, str]:
    """Return the exit code and the text of a program in a terminal, where a person answers its question."""
    with Terminal(*words, cwd=cwd, columns=300) as terminal:
        if answer:
            terminal.until("[y/N]")
            terminal.type(f"{answer}\n")
        return terminal.end(), terminal.said


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with the modules of this file."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name, text in {"tools": TOOLS, "runners": RUNNERS, "odd": ODD, "steps": STEPS}.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


# list and schema


def test_list_shows_effect_and_first_line_of_each_tool(here: Path) -> None:
    shown = ferrule("list", "--tools", "tools.py", cwd=here).stdout
    found = {line.split()[0]: line.split()[1] for line in shown.splitlines()}
    assert found.items() >= {"shout": "read-only", "note": "changes", "wipe": "destructive"}.items()
    assert "Say it loudly." in shown and "more than once" not in shown


def test_tools_come_from_files_modules_attributes_or_are_built_in(here: Path) -> None:
    def list_tools(*places: str) -> list[str]:
        words = [word for place in places for word in ("--tools", place)]
        return [line.split()[0] for line in ferrule("list", *words, cwd=here).stdout.splitlines()[1:]]

    assert list_tools("tools.py:note") == list_tools("tools:note") == ["note"]
    files = list_tools()
    assert "read_file" in files
    assert list_tools("tools:shout", "ferrule.tools.files") == ["shout", *files]
    (here / "listed.py").write_text("from ferrule.tools import files\nTOOLS = files.tools\ndef run(): ...\n")
    assert list_tools("listed.py") == files


@pytest.mark.large
@needs_terminal
def test_list_and_schema_keep_control_characters_off_the_screen(here: Path) -> None:
    code, screen = run_at_terminal("list", "--tools", "odd.py:wild", cwd=here)  # Screen refuses what is not printable
    assert code == 0 and "red \ufffd[31m text" in screen and "hidden" in screen and "\u202e" not in screen
    words = ("schema", "--provider", "anthropic", "--tools", "odd.py:wild")
    code, screen = run_at_terminal(*words, cwd=here)
    assert code == 0 and json.loads(screen) == json.loads(ferrule(*words, cwd=here).stdout)


def test_schema_prints_clean_json_with_one_definition_for_each_tool(here: Path) -> None:
    (here / "chatty.py").write_text(f"print('hello')\n{TOOLS.replace('from __future__ import annotations', '')}")
    for provider in ("anthropic", "openai_chat"):
        done = ferrule("schema", "--provider", provider, "--tools", "chatty.py", cwd=here)
        names = {one.get("name") or one["function"]["name"] for one in json.loads(done.stdout)}
        assert names == {"shout", "peek", "note", "wipe", "stumble", "regret"}
        assert done.stderr == "hello\n"


# call


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ("call shout text=hey times=2 end=? --tools tools.py", "HEY? HEY?"),
        ("call shout text=a --tools tools.py -- times=2", "A! A!"),
        ("call shout text=007 --tools tools.py", "007!"),
        ("""call shout '{"text": "a=b",}' --tools tools.py""", "A=B!"),
    ],
)
def test_a_call_prints_its_content(here: Path, words: str, output: str) -> None:
    done = ferrule(*shlex.split(words), cwd=here)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{output}\n", "")


@pytest.mark.parametrize("words", [(), ("-",)])
def test_a_call_reads_json_from_standard_input(here: Path, words: tuple[str, ...]) -> None:
    done = ferrule("call", "shout", *words, "--tools", "tools.py", cwd=here, stdin='{"text": "a", "times": 3}')
    assert (done.returncode, done.stdout) == (0, "A! A! A!\n"), done.stderr


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("""call shout '{"text": '""", "invalid: The arguments for shout cannot be read"),
        ("call shout text=x times=many", "Invalid "),
        ("call shout", "Invalid "),
        ("call regret", "failed: "),
        ("call note text=x", "Denied: nobody is there to ask"),
        ("call peek path=../secret.txt", "Denied: "),
    ],
)
def test_a_call_that_does_not_succeed_says_why(here: Path, words: str, error: str) -> None:
    (here.parent / "secret.txt").write_text("secret", encoding="utf-8")
    done = ferrule(*shlex.split(words), "--tools", "tools.py", cwd=here)
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith(error), done.stderr
    assert "Traceback" not in done.stderr and "--verbose" not in done.stderr
    assert not (here / "note.txt").exists()


def test_a_tool_that_raises_has_a_traceback_with_verbose(here: Path) -> None:
    done = ferrule("call", "stumble", "--tools", "tools.py", cwd=here)
    assert done.returncode == 1 and done.stderr.startswith("failed: ") and "Traceback" not in done.stderr
    assert "no good" in done.stderr and done.stderr.endswith("ferrule: --verbose prints the traceback\n")
    done = ferrule("call", "stumble", "--verbose", "--tools", "tools.py", cwd=here)
    assert "Traceback" in done.stderr and "--verbose" not in done.stderr


@pytest.mark.parametrize(
    "words", ["tools.py --yes wipe --yes note", "runners.py:asking --yes note", "runners.py:allowing"]
)
def test_a_call_runs_if_yes_or_its_runner_allows_it(here: Path, words: str) -> None:
    done = ferrule("call", "note", "text=x", "--tools", *words.split(), cwd=here)
    assert (done.returncode, done.stdout) == (0, "written\n"), done.stderr
    assert (here / "note.txt").read_text(encoding="utf-8") == "x"


def test_yes_lifts_no_denial(here: Path) -> None:
    done = ferrule("call", "note", "text=x", "--tools", "runners.py:strict", "--yes", "note", cwd=here)
    assert (done.returncode, done.stderr) == (1, "Denied: never. Nothing was run.\n")
    done = ferrule("call", "write_file", "path=../x", "content=x", "--yes", "write_file", cwd=here)
    assert done.returncode == 1 and done.stderr.startswith("Denied: ") and not (here.parent / "x").exists()
    done = ferrule("call", "note", "text=x", "--tools", "runners.py:signing", "--yes", "note", cwd=here)
    assert done.returncode == 1 and "nobody is there to ask" in done.stderr
    line = read_refusal(ferrule("call", "note", "text=x", "--tools", "runners.py:owned", "--yes", "note", cwd=here))
    assert "'runners.py:owned' has its own approver" in line
    assert not (here / "note.txt").exists()


def test_runners_without_guards_or_beside_other_tools_are_under_the_policy(here: Path) -> None:
    for places in (("runners.py:logged",), ("runners:logged", "tools:shout"), ("runners:allowing", "tools:shout")):
        words = [word for place in places for word in ("--tools", place)]
        done = ferrule("call", "note", "text=x", *words, cwd=here)
        assert done.returncode == 1 and done.stderr.startswith("Denied: ")
    assert not (here / "note.txt").exists()
    lines = [json.loads(line) for line in (here / "calls.jsonl").read_text().splitlines()]  # its observers still see it
    assert [(line["tool_name"], line["status"]) for line in lines] == [("note", "denied")] * 2


@needs_terminal
def test_a_runner_with_guards_and_no_approver_asks_at_the_terminal(here: Path) -> None:
    code, screen = run_at_terminal("call", "note", "text=x", "--tools", "runners.py:asking", cwd=here, answer="y")
    assert code == 0 and "mine to ask" in screen
    assert (here / "note.txt").read_text(encoding="utf-8") == "x"


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "3", 3),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "3", 3),
        ({"$ref": "#/$defs/Colour"}, "1", "1"),
        ({"type": "array", "items": {"type": "string"}}, '["a"]', ["a"]),
        ({"type": "integer"}, "[" * 100_000, "[" * 100_000),
        ({"enum": freeze([{"a": 1}])}, '{"a": 1}', {"a": 1}),
    ],
)
def test_a_value_is_read_by_its_schema(schema: dict[str, object], text: str, value: object) -> None:
    whole = {"properties": {"x": schema}, "$defs": {"Colour": {"type": "string", "enum": ["1"]}}}
    assert parse_arguments([f"x={text}"], whole) == {"x": value}


# streams


@pytest.mark.large
@pytest.mark.skipif(os.name == "nt", reason="the shell's way to close a stream")
@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ("list >&-", 1, "ferrule: standard output is closed\n"),
        ("list >/dev/full", 1, "ferrule: [Errno 28] No space left on device\n"),
        ("call read_file <&-", 1, "Invalid "),
        ("call shout text=a --tools tools.py 2>&-", 0, ""),
    ],
)
def test_a_closed_or_full_stream_is_not_a_crash(here: Path, words: str, code: int, error: str) -> None:
    command = ["/bin/sh", "-c", f'"$0" -m ferrule {words}', sys.executable]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == code and done.stderr.startswith(error), done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


# run


def test_a_run_shows_each_call_the_answer_and_a_table(here: Path) -> None:
    (here.parent / "secret.txt").write_text("secret", encoding="utf-8")
    for environment in ({}, {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}):
        done = ferrule(*RUN, cwd=here, **environment)
        assert done.returncode == 0, done.stderr
        assert [c for c in done.stdout if not c.isprintable() and c != "\n"] == []  # no terminal, no colours
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 120 and "SCRIPTED" in done.stdout and "--max-turns" not in done.stdout
    for pattern in ("✓ #1 shout .*repaired", "! #2 shout .*Invalid ", "⊘ #3 peek .*Denied: ", r"\? #4 note .*asked: "):
        assert re.search(pattern, done.stdout), pattern
    answer, _, table = done.stdout.partition("\nanswer\n")[2].partition("\n\n")
    assert answer.startswith("The tools said: A! / ")
    rows = [" ".join(line.split()[:4]) for line in table.splitlines()[1:]]
    assert rows == ["1 shout ok yes", "2 shout invalid no", "3 peek denied no", "4 note denied no"]


STOP = "__import__('os').kill(__import__('os').getpid(), __import__('signal').SIGINT)"


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGINT for a child")
@pytest.mark.parametrize(
    ("last", "code", "error"),
    [
        ("", 2, "ferrule: the script has 1 step"),
        (", lambda m: m[99]", 1, "ferrule: the model failed: IndexError: list index out of range\n"),
        (f", lambda m: {STOP} or 'never'", 128 + signal.SIGINT, ""),
    ],
)
def test_a_run_that_breaks_off_still_shows_its_table(here: Path, last: str, code: int, error: str) -> None:
    (here / "steps.py").write_text(f'steps = [[("shout", {{"text": "a"}})]{last}]', encoding="utf-8")
    done = ferrule(*RUN, cwd=here)
    assert done.returncode == code and done.stderr.startswith(error), done.stderr
    assert re.search(r"(?m)^ *1 +shout +ok +yes", done.stdout)
    assert done.stderr.count("\n") == 1 if error else "Traceback" not in done.stderr


def test_a_run_ends_at_its_maximum_of_turns(here: Path) -> None:
    done = ferrule(*RUN, "--max-turns", "1", cwd=here)
    assert done.returncode == 1 and "turn 2" not in done.stdout
    assert "the run ended: limited\nthe limit is 1 turn; --max-turns sets another\n" in done.stdout


@pytest.mark.large
@needs_terminal
@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_change_runs_if_the_person_says_yes(here: Path, answer: str) -> None:
    code, screen = run_at_terminal(*RUN, cwd=here, answer=answer)
    assert code == 0 and screen.index("asked: ") < screen.index("[y/N]")
    assert (here / "note.txt").exists() is (answer == "y")


@needs_terminal
def test_the_text_of_a_tool_cannot_move_the_cursor(here: Path) -> None:
    (here / "evil.txt").write_text("\x1b]0;owned\x07\x1b[2J", encoding="utf-8")
    steps = 'steps = [[("peek", {"path": "evil.txt"})], lambda m: m[-1]["content"]]'
    (here / "steps.py").write_text(steps, encoding="utf-8")
    assert "\x1b" not in ferrule(*RUN, cwd=here).stdout
    assert "\ufffd[2J" in run_at_terminal(*RUN, cwd=here)[1]


def test_a_model_that_cannot_be_reached_is_named_with_its_address(here: Path) -> None:
    pytest.importorskip("openai")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    words = ("run", "x", "--tools", "tools.py", "--model", "openai:m", "--base-url", f"http://me:pw@{address}/v1")
    done = ferrule(*words, cwd=here, OPENAI_API_KEY="k")
    said = f"ferrule: the model failed: cannot reach it at http://{address}/v1/chat/completions: "
    assert done.returncode == 1 and done.stderr == f"{said}{os.strerror(errno.ECONNREFUSED)}\n"


def test_the_demo_works_and_is_journaled(tmp_path: Path) -> None:
    words = ("run", "Explore", "--tools", "ferrule.tools.files", "--model", "scripted:examples/demo/steps.py")
    done = ferrule(*words, "--journal", str(tmp_path / "demo.db"), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    shown = ferrule("log", str(tmp_path / "demo.db"), cwd=ROOT).stdout
    assert shown.count("edit_file") == 1 and shown.count("within()") == 1
    answer = done.stdout.partition("\nanswer\n")[2]
    modules = list((ROOT / "src" / "ferrule").rglob("*.py"))
    assert f"The package has {len(modules)} Python files" in answer
    assert "pydantic and jsonschema-rs" in answer and "Runner (src/ferrule/runner.py)" in answer
    assert [word for word in ("repaired: ", "Invalid ", "Denied: ", "asked: ") if word not in done.stdout] == []
    assert "(nothing noted yet)" in (ROOT / "build" / "demo-notes.md").read_text(encoding="utf-8")


# what is wrong with a command line

CALL = "call shout --tools tools.py"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("lst", "'lst' 'list'"),
        ("--tools tools.py list", "before its options: ferrule list --tools"),
        ("list --tools absent.py", "'absent.py' no file"),
        ("list --tools broken.py", "NameError line 2"),
        ("list --tools runners.py", "runners.py:allowing runners.py:strict"),
        ("tools.py", "'tools.py' ferrule list --tools tools.py"),
        ("call shout text=a --json", "--json choose from"),
        ("lint --provider openai", "did you mean 'openai_chat' or 'openai_responses'?"),
        ("call shout", "'shout' read_file built in --tools"),
        (f"{CALL} text hey", "'text' is not key=value write text=value"),
        (f"""{CALL} times=2 '{{"text": "a=b"}}'""", "one JSON object with all arguments"),
        ("call note text=a --tools tools.py --yes '*'", "--yes: '*' note"),
        ("run 'a task'", "--model is missing: anthropic scripted:FILE"),
        ("run 'a task' --model steps.py", "write scripted:steps.py"),
        ("run 'a task' --model scripted:steps.py --max-turns 0", "--max-turns whole number of at least 1, not '0'"),
    ],
)
def test_a_wrong_command_line_is_one_line_with_the_remedy(here: Path, words: str, says: str) -> None:
    (here / "broken.py").write_text("x = 1\ny = undefined\n", encoding="utf-8")
    line = read_refusal(ferrule(*shlex.split(words), cwd=here))
    assert [word for word in says.split() if word not in line] == [], line


def test_without_rich_one_line_says_what_to_install(here: Path) -> None:
    code = "import sys; sys.modules['rich'] = None; from ferrule.cli import main; sys.exit(main(['list']))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=BOUND, check=False)
    assert 'pip install "ferrule[cli]"' in read_refusal(done)


def test_the_help_imports_no_command_and_no_extra() -> None:
    code = (
        "import sys, ferrule; before = set(sys.modules); from ferrule.cli import main; main(['--help']); "
        "print(*set(sys.modules) - before, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND, check=True)
    loaded = set(done.stderr.split())
    ours = {name for name in loaded if name.startswith("ferrule.cli")}
    assert ours == {"ferrule.cli", "ferrule.cli.program", "ferrule.cli.text", "ferrule.cli.usage"}
    assert not loaded & {"rich", "mcp", "anthropic", "openai"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_and_its_example_is_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parser = make_parser(name, importlib.import_module(f"ferrule.cli.{name}"))
    shown = parser.format_help()
    assert max(map(len, shown.splitlines())) <= 80
    assert shlex.join(shlex.split(EXAMPLES[name])) in shlex.join(shlex.split(shown.partition("example: ")[2]))
    parser.parse_intermixed_args(shlex.split(EXAMPLES[name]))
