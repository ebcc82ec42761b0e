"""The real program in processes of its own: without a terminal, and with one."""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import preloaded
from ferrule import Event, Tool, ToolCall
from ferrule.approval import printable
from ferrule.cli.call import parse_arguments
from ferrule.cli.list import describe_effect
from ferrule.cli.program import COMMANDS, EXAMPLES, main, make_parser
from ferrule.cli.timeline import Timeline
from ferrule.values.frozen import freeze
from products import sampled
from waits import BOUND

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
from ferrule import Runner, Toolset, allow
from tools import note, shout

runner = Runner(Toolset([note]), guards=[lambda call, context: allow()])
"""
BARE = """
from ferrule import Runner
from tools import note

runner = Runner([note])
"""
OWNED = """
from ferrule import Runner, ask, deny
from tools import note

runner = Runner([note], guards=[lambda call, context: ask("mine")], approve=lambda call, decision, context: False)
strict = Runner([note], guards=[lambda call, context: deny("never")])
"""
PIN = """
from pathlib import Path

from ferrule import Runner, ask, tool


@tool(private=["pin"])
def note(text: str, pin: str) -> str:
    Path("note.txt").write_text(text)
    return "written"


runner = Runner([note], guards=[lambda call, context: None if "pin" in call.arguments else ask("who?", into="pin")])
"""
ASKING = """
from ferrule import Runner, ask
from tools import note

runner = Runner([note], guards=[lambda call, context: ask("mine to ask")])
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


def ferrule(*words: str, cwd: Path, stdin: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program with `words`; there is no terminal."""
    known = {**os.environ, "PYTHONIOENCODING": "utf-8", **environment}
    return preloaded.run([*PROGRAM, *words], cwd=cwd, input=stdin or "", timeout=BOUND, env=known)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a command line that cannot be meant."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("ferrule: ")
    return done.stderr


def with_a_terminal(*words: str, cwd: Path, answer: str) -> tuple[int, str]:
    """The exit code and all that was on the screen, of a program in a terminal where somebody gives one answer."""
    pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")
    ours, theirs = pty.openpty()
    with subprocess.Popen([*PROGRAM, *words], cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs) as program:
        os.close(theirs)
        try:
            screen, answered, end = b"", False, time.monotonic() + BOUND
            while chunk := _read(ours, end):
                screen += chunk
                if not answered and b"[y/N]" in screen:
                    os.write(ours, f"{answer}\n".encode())
                    answered = True
            return program.wait(BOUND), screen.decode()
        finally:
            program.kill()
            os.close(ours)


def _read(terminal: int, end: float) -> bytes:
    """What comes next; nothing when the program has closed its side."""
    ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
    assert ready, "the program says nothing any more"
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux's way to say that the other side is closed
        return b""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with tools.py, runners.py and steps.py."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "tools.py").write_text(TOOLS, encoding="utf-8")
    (folder / "runners.py").write_text(RUNNERS, encoding="utf-8")
    (folder / "steps.py").write_text(STEPS, encoding="utf-8")
    return folder


# list


def test_list_says_what_each_tool_does_to_the_world(here: Path) -> None:
    done = ferrule("list", "--tools", "tools.py", cwd=here)
    assert done.returncode == 0, done.stderr
    found = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()}
    assert found.items() >= {"shout": "read-only", "note": "changes", "wipe": "destructive"}.items()


def test_list_shows_the_first_line_of_a_description_alone(here: Path) -> None:
    shown = ferrule("list", "--tools", "tools.py", cwd=here).stdout
    assert "Say it loudly." in shown
    assert "more than once" not in shown


def test_without_a_place_for_tools_the_file_tools_are_meant(here: Path) -> None:
    done = ferrule("list", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "read_file" in done.stdout


def test_tools_of_several_places_are_joined(here: Path) -> None:
    shown = ferrule("list", "--tools", "tools:shout", "--tools", "ferrule.tools.files", cwd=here).stdout
    assert "shout" in shown
    assert "read_file" in shown
    assert "wipe" not in shown


ODD = r"""
from ferrule import Tool


async def nothing() -> str:
    return ""


long = Tool("n" * 128, nothing, description="long " * 20_000)
wild = Tool("wild", nothing, description="red \x1b[31m text\rhidden \x9b31m\u202e")
"""


@pytest.mark.parametrize(
    ("traits", "worst"),
    [
        ({"read_only": True}, "read-only"),
        ({"read_only": bool}, "destructive"),
        ({"destructive": False}, "changes"),
        ({"destructive": bool}, "destructive"),
        ({"read_only": bool, "destructive": False}, "changes"),
    ],
)
def test_a_trait_that_depends_on_the_arguments_counts_as_its_worse_value(traits: Any, worst: str) -> None:
    assert describe_effect(Tool("wipe", lambda: None, **traits)) == worst


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_list_shows_what_a_tool_does_however_long_its_name_and_description_are(here: Path, columns: str) -> None:
    (here / "odd.py").write_text(ODD, encoding="utf-8")
    done = ferrule("list", "--tools", "odd.py", cwd=here, COLUMNS=columns)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith(("nnn", "wi"))] == ["destructive"] * 2
    assert max(map(len, lines)) <= int(columns)
    assert len(done.stdout) < 3000


def test_list_keeps_control_characters_off_the_screen(here: Path) -> None:
    (here / "odd.py").write_text(ODD, encoding="utf-8")
    code, screen = with_a_terminal("list", "--tools", "odd.py", cwd=here, answer="")
    assert code == 0, screen
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202e]", screen)
    assert "\x1b[31m" not in screen
    assert "hidden" in screen


# schema


def test_schema_on_a_screen_writes_control_characters_as_json_does(here: Path) -> None:
    (here / "odd.py").write_text(ODD, encoding="utf-8")
    words = ("schema", "--provider", "anthropic", "--tools", "odd.py:wild")
    code, screen = with_a_terminal(*words, cwd=here, answer="")
    assert code == 0, screen
    assert "\x9b" not in screen
    assert json.loads(screen) == json.loads(ferrule(*words, cwd=here).stdout)


@pytest.mark.parametrize("provider", ["anthropic", "openai_chat", "openai_responses"])
def test_schema_prints_one_definition_for_each_tool(here: Path, provider: str) -> None:
    done = ferrule("schema", "--provider", provider, "--tools", "tools.py", cwd=here)
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)
    assert len(written) == 6
    assert {"shout", "wipe"} <= {one.get("name") or one["function"]["name"] for one in written}


@pytest.mark.parametrize("command", ["schema", "lint"])
def test_a_provider_with_two_apis_is_answered_with_both(here: Path, command: str) -> None:
    line = refused(ferrule(command, "--provider", "openai", cwd=here))
    assert "did you mean 'openai_chat' or 'openai_responses'?" in line


def test_an_unknown_provider_is_answered_with_the_right_one(here: Path) -> None:
    assert "'anthropic'" in refused(ferrule("schema", "--provider", "antropic", cwd=here))
    line = refused(ferrule("schema", "--provider", "zzz", cwd=here))
    assert "anthropic" in line
    assert "openai_chat" in line


# call


def test_a_call_prints_its_content(here: Path) -> None:
    done = ferrule("call", "shout", "text=hey", "times=2", "end=?", "--tools", "tools.py", cwd=here)
    assert (done.returncode, done.stdout, done.stderr) == (0, "HEY? HEY?\n", "")


def test_a_string_parameter_stays_a_string(here: Path) -> None:
    done = ferrule("call", "shout", "text=007", "--tools", "tools.py", cwd=here)
    assert done.stdout == "007!\n"


def test_a_call_takes_json_on_standard_input(here: Path) -> None:
    for words in ((), ("-",)):
        done = ferrule("call", "shout", *words, "--tools", "tools.py", cwd=here, stdin='{"text": "a", "times": 3}')
        assert (done.returncode, done.stdout) == (0, "A! A! A!\n"), done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "call shout text=a times=2 --tools tools.py",
        "call shout --tools tools.py text=a times=2",
        "call --tools tools.py shout text=a --verbose times=2",
        "call shout text=a --tools tools.py -- times=2",
    ],
)
def test_options_and_arguments_come_in_any_order(here: Path, words: str) -> None:
    done = ferrule(*words.split(), cwd=here)
    assert (done.returncode, done.stdout) == (0, "A! A!\n"), done.stderr


@pytest.mark.parametrize("given", ['{"text": "a=b"}', ' {"text": "a=b",}', '{"text": "a=b", "times": "1"}'])
def test_a_call_takes_json_as_an_argument_and_reads_it_as_a_models(here: Path, given: str) -> None:
    done = ferrule("call", "shout", given, "--tools", "tools.py", cwd=here)
    assert (done.returncode, done.stdout) == (0, "A=B!\n"), done.stderr


def test_json_that_cannot_be_read_is_answered_as_a_models(here: Path) -> None:
    done = ferrule("call", "shout", '{"text": ', "--tools", "tools.py", cwd=here)
    assert done.returncode == 1
    assert done.stderr.startswith("invalid: The arguments for shout cannot be read")


def test_a_tool_that_is_named_before_runs_without_a_question(here: Path) -> None:
    done = ferrule("call", "note", "text=x", "--tools", "tools.py", "--yes", "wipe", "--yes", "note", cwd=here)
    assert (done.returncode, done.stdout) == (0, "written\n"), done.stderr
    assert (here / "note.txt").read_text(encoding="utf-8") == "x"


def test_a_tool_that_is_not_named_before_is_still_asked_about(here: Path) -> None:
    done = ferrule("call", "note", "text=x", "--tools", "tools.py", "--yes", "wipe", cwd=here)
    assert done.returncode == 1
    assert not (here / "note.txt").exists()


def test_what_is_denied_stays_denied_for_a_tool_that_is_named_before(here: Path) -> None:
    (here / "owned.py").write_text(OWNED, encoding="utf-8")
    done = ferrule("call", "note", "text=x", "--tools", "owned.py:strict", "--yes", "note", cwd=here)
    assert (done.returncode, done.stderr) == (1, "Denied: never. Nothing was run.\n")
    done = ferrule("call", "write_file", "path=../x", "content=x", "--yes", "write_file", cwd=here)
    assert done.returncode == 1
    assert done.stderr.startswith("Denied: ")
    assert not (here.parent / "x").exists()


def test_a_runner_that_asks_at_the_terminal_takes_the_answer_that_was_given_before(here: Path) -> None:
    (here / "asking.py").write_text(ASKING, encoding="utf-8")
    done = ferrule("call", "note", "text=x", "--tools", "asking.py", "--yes", "note", cwd=here)
    assert (done.returncode, done.stdout) == (0, "written\n"), done.stderr


def test_an_answer_given_before_does_not_stand_in_for_a_runners_own_approver(here: Path) -> None:
    (here / "owned.py").write_text(OWNED, encoding="utf-8")
    line = refused(ferrule("call", "note", "text=x", "--tools", "owned.py:runner", "--yes", "note", cwd=here))
    assert "'owned.py:runner' has its own approver" in line
    assert not (here / "note.txt").exists()


def test_an_answer_given_before_is_no_value_that_is_asked_for(here: Path) -> None:
    (here / "pin.py").write_text(PIN, encoding="utf-8")
    done = ferrule("call", "note", "text=x", "--tools", "pin.py", "--yes", "note", cwd=here)
    assert done.returncode == 1
    assert "nobody is there to ask" in done.stderr
    assert not (here / "note.txt").exists()


def test_a_change_is_refused_where_nobody_is_there_to_ask(here: Path) -> None:
    done = ferrule("call", "note", "text=x", "--tools", "tools.py", cwd=here)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Denied: ")
    assert not (here / "note.txt").exists()


def test_a_path_outside_the_working_directory_is_denied(here: Path) -> None:
    (here.parent / "secret.txt").write_text("secret", encoding="utf-8")
    done = ferrule("call", "peek", "path=../secret.txt", "--tools", "tools.py", cwd=here)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Denied: ")
    assert ferrule("call", "peek", "path=runners.py", "--tools", "tools.py", cwd=here).stdout == RUNNERS + "\n"


def test_arguments_that_do_not_fit_fail_the_call(here: Path) -> None:
    done = ferrule("call", "shout", "text=x", "times=many", "--tools", "tools.py", cwd=here)
    assert done.returncode == 1
    assert done.stderr.startswith("Invalid ")
    assert "times" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_tool_that_raises_fails_the_call(here: Path) -> None:
    done = ferrule("call", "stumble", "--tools", "tools.py", cwd=here)
    assert done.returncode == 1
    assert done.stderr.startswith("failed: ")
    assert "no good" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith("ferrule: --verbose prints the traceback\n")
    done = ferrule("call", "stumble", "--verbose", "--tools", "tools.py", cwd=here)
    assert "Traceback" in done.stderr
    assert "--verbose" not in done.stderr


@pytest.mark.parametrize(("tool", "status"), [("regret", "failed"), ("note", "denied"), ("shout", "invalid")])
def test_what_has_no_more_to_show_does_not_hint_at_the_log(here: Path, tool: str, status: str) -> None:
    done = ferrule("call", tool, "--tools", "tools.py", cwd=here, stdin='{"text": "x"}' if tool == "note" else "")
    assert done.returncode == 1
    assert done.stderr.lower().startswith(status)
    assert "--verbose" not in done.stderr


def test_a_runner_with_guards_is_used_as_its_developer_made_it(here: Path) -> None:
    done = ferrule("call", "note", "text=x", "--tools", "runners.py", cwd=here)
    assert (done.returncode, done.stdout) == (0, "written\n"), done.stderr
    assert (here / "note.txt").read_text(encoding="utf-8") == "x"


def test_a_runner_without_guards_is_under_the_programs_policy(here: Path) -> None:
    (here / "bare.py").write_text(BARE, encoding="utf-8")
    done = ferrule("call", "note", "text=x", "--tools", "bare.py", cwd=here)
    assert done.returncode == 1
    assert done.stderr.startswith("Denied: ")
    assert not (here / "note.txt").exists()


LOGGED = """
from ferrule import Runner
from ferrule.journal import events
from tools import note

runner = Runner([note], observers=[events.to_file("calls.jsonl")])
"""


@pytest.mark.parametrize("beside", [(), ("--tools", "tools.py:shout")])
def test_a_runner_whose_guards_are_the_programs_keeps_its_log(here: Path, beside: tuple[str, ...]) -> None:
    (here / "logged.py").write_text(LOGGED, encoding="utf-8")
    ferrule("call", "note", "text=x", "--tools", "logged.py", *beside, cwd=here)
    lines = [json.loads(line) for line in (here / "calls.jsonl").read_text().splitlines()]
    assert [(line["tool_name"], line["status"]) for line in lines] == [("note", "denied")]


def test_a_runner_with_guards_and_nobody_to_ask_asks_at_the_terminal(here: Path) -> None:
    (here / "asking.py").write_text(ASKING, encoding="utf-8")
    code, screen = with_a_terminal("call", "note", "text=x", "--tools", "asking.py", cwd=here, answer="y")
    assert code == 0, screen
    assert "mine to ask" in screen
    assert (here / "note.txt").read_text(encoding="utf-8") == "x"


def test_a_runner_beside_other_tools_is_under_the_programs_policy(here: Path) -> None:
    done = ferrule("call", "note", "text=x", "--tools", "runners:runner", "--tools", "tools:shout", cwd=here)
    assert done.returncode == 1
    assert not (here / "note.txt").exists()


def test_an_attribute_names_what_is_meant(here: Path) -> None:
    for place in ("tools.py:note", "tools:note"):
        shown = ferrule("list", "--tools", place, cwd=here).stdout
        assert "note" in shown
        assert "shout" not in shown


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "true", "true"),
        ({"type": "integer"}, "3", 3),
        ({"type": "integer"}, "three", "three"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", "null"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "3", 3),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "[3]", "[3]"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"$ref": "#/$defs/Colour"}, "1", "1"),
        ({"type": "array", "items": {"type": "string"}}, '["a"]', ["a"]),
        ({}, '{"a": 1}', {"a": 1}),
        ({}, "a=b", "a=b"),
        ({"type": "integer"}, "[" * 100_000, "[" * 100_000),
        ({"enum": freeze([{"a": 1}])}, '{"a": 1}', {"a": 1}),
    ],
)
def test_a_value_means_what_the_schema_wants(schema: dict[str, object], text: str, value: object) -> None:
    whole = {"properties": {"x": schema}, "$defs": {"Colour": {"type": "string", "enum": ["1"]}}}
    assert parse_arguments([f"x={text}"], whole) == {"x": value}


def test_a_call_that_needs_nothing_does_not_wait_for_a_silent_standard_input(here: Path) -> None:
    ours, theirs = os.pipe()
    try:
        done = subprocess.run(
            [*PROGRAM, "call", "list_files"], cwd=here, stdin=ours, capture_output=True, timeout=BOUND, check=False
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0, done.stderr


def test_standard_input_that_is_no_text_cannot_be_meant(here: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "call", "shout", "-", "--tools", "tools.py"],
        cwd=here,
        input=b'{"text": "\xff"}',
        capture_output=True,
        timeout=BOUND,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == b"ferrule: standard input is not utf-8 text (byte 10)\n"


# errors


def test_what_cannot_be_imported_is_one_line_without_control_characters(here: Path) -> None:
    (here / "broken.py").write_text(r'raise ValueError("one\ntwo \x1b[31m" + "three " * 9000)', encoding="utf-8")
    line = refused(ferrule("list", "--tools", "broken.py", cwd=here))
    assert "ValueError: one two \ufffd[31m" in line
    assert len(line) <= 2001


def test_an_attribute_that_cannot_be_read_is_no_crash(here: Path) -> None:
    (here / "lazy.py").write_text("def __getattr__(name):\n    raise RuntimeError(name)\n", encoding="utf-8")
    assert "RuntimeError: nothing" in refused(ferrule("list", "--tools", "lazy.py:nothing", cwd=here))


def test_of_many_tools_the_first_are_named(here: Path) -> None:
    (here / "many.py").write_text(
        "from ferrule import tool\n\n\ndef f() -> None: ...\n\n\n"
        'tools = [tool(f, name=f"name_{n}") for n in range(1000)]\n',
        encoding="utf-8",
    )
    line = refused(ferrule("call", "zzzzz", "--tools", "many.py:tools", cwd=here))
    assert "name_11 and 988 more" in line
    assert "name_12" not in line


# streams


@pytest.mark.skipif(os.name == "nt", reason="the shell's way to close a stream")
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("list >&-", 1, "ferrule: standard output is closed\n"),
        ("list >/dev/full", 1, "ferrule: [Errno 28] No space left on device\n"),
        ("call read_file <&-", 1, "Invalid "),
        ("call shout text=a --tools tools.py 2>&-", 0, ""),
    ],
)
def test_a_stream_that_cannot_be_used_is_no_crash(here: Path, words: str, code: int, says: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -m ferrule {words}', sys.executable],
        cwd=here,
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(says)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_what_a_file_prints_while_it_is_imported_does_not_spoil_the_json(here: Path) -> None:
    (here / "chatty.py").write_text(f"print('hello')\n{TOOLS.replace('from __future__ import annotations', '')}")
    done = ferrule("schema", "--provider", "anthropic", "--tools", "chatty.py", cwd=here)
    assert len(json.loads(done.stdout)) == 6
    assert done.stderr == "hello\n"


def test_text_on_the_screen_cannot_hide_or_turn_round_other_text() -> None:
    assert printable("a\u202eb\u200bc\x1b\td\n\ue000") == "a\ufffdb\ufffdc\ufffd\td\n\ufffd"


@pytest.mark.parametrize("data", [{"done": 1, "total": "two", "message": "x"}, {"done": 10**400, "message": object()}])
def test_progress_of_any_kind_is_a_line(data: dict[str, object]) -> None:
    written = io.StringIO()
    Timeline(Console(file=written), lambda: 0.0).event(Event("tool:progress", ToolCall("1", "t", {}), data))
    assert written.getvalue().count("#1 t") == 1


def test_names_and_messages_on_the_timeline_are_bounded() -> None:
    written = io.StringIO()
    event = Event("tool:progress", ToolCall("1", "n" * 5000, {}), {"done": 1, "message": "m" * 5000})
    Timeline(Console(file=written, width=10_000), lambda: 0.0).event(event)
    assert written.getvalue().count("n") < 100
    assert len(written.getvalue()) < 500


def test_a_terminal_without_utf8_gets_ascii() -> None:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii", errors="strict"))
    timeline = Timeline(console, lambda: 0.0)
    timeline.model_text("Hm.")
    console.file.flush()
    assert b"Hm." in raw.getvalue()


# run


def test_progress_that_cannot_be_counted_does_not_end_the_run(here: Path) -> None:
    (here / "odd.py").write_text(
        "from ferrule import ToolContext, tool\n\n\n@tool(read_only=True)\n"
        'def odd(context: ToolContext) -> str:\n    """Odd."""\n'
        '    context.progress(1, "two", "x")\n    return "fine"\n',
        encoding="utf-8",
    )
    (here / "steps.py").write_text('steps = [[("odd", {})], "Done."]', encoding="utf-8")
    done = ferrule("run", "x", "--tools", "odd.py", "--model", "scripted:steps.py", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "1/two x" in done.stdout


@pytest.mark.parametrize("last", ["", ', lambda messages: messages[99], "never"'])
def test_a_run_that_breaks_still_shows_the_table_of_what_has_run(here: Path, last: str) -> None:
    (here / "steps.py").write_text(f'steps = [[("shout", {{"text": "a"}})]{last}]', encoding="utf-8")
    done = ferrule(*RUN, cwd=here)
    assert done.returncode != 0
    assert re.search(r"(?m)^ *1 +shout +ok +yes", done.stdout)


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGINT for a child")
def test_a_run_that_is_stopped_still_shows_the_table_of_what_has_run(here: Path) -> None:
    (here / "steps.py").write_text(
        "import os, signal\n"
        "def stop(messages):\n    os.kill(os.getpid(), signal.SIGINT)\n    return 'never'\n"
        'steps = [[("shout", {"text": "a"})], stop]',
        encoding="utf-8",
    )
    done = ferrule(*RUN, cwd=here)
    assert done.returncode == 128 + signal.SIGINT
    assert re.search(r"(?m)^ *1 +shout +ok +yes", done.stdout)


def test_a_run_without_a_terminal_is_plain_text(here: Path) -> None:
    for environment in ({}, {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}):
        done = ferrule(*RUN, cwd=here, **environment)
        assert done.returncode == 0, done.stderr
        assert [c for c in done.stdout if not c.isprintable() and c != "\n"] == []
        assert max(map(len, done.stdout.splitlines())) <= 120


def test_a_run_asks_the_model_as_often_as_it_is_told_to(here: Path) -> None:
    done = ferrule(*RUN, "--max-turns", "1", cwd=here)
    assert done.returncode == 1
    assert "the run ended: limited\nthe limit is 1 turn; --max-turns sets another\n" in done.stdout
    assert "turn 2" not in done.stdout
    assert "--max-turns" not in ferrule(*RUN, "--max-turns", "3", cwd=here).stdout


def test_a_run_takes_the_answer_that_was_given_before(here: Path) -> None:
    done = ferrule(*RUN, "--yes", "note", cwd=here)
    assert done.returncode == 0, done.stderr
    assert (here / "note.txt").read_text(encoding="utf-8") == "kept"


def test_a_run_hints_at_the_log_where_a_tool_raised(here: Path) -> None:
    (here / "steps.py").write_text('steps = [[("stumble", {}), ("shout", {"text": "a"})], "Done."]', encoding="utf-8")
    hint = "\n--verbose prints the traceback of a tool that failed\n"
    assert ferrule(*RUN, cwd=here).stdout.endswith(hint)
    assert hint not in ferrule(*RUN, "--verbose", cwd=here).stdout
    (here / "steps.py").write_text('steps = [[("regret", {})], "Done."]', encoding="utf-8")
    assert hint not in ferrule(*RUN, cwd=here).stdout


def test_a_run_says_that_its_model_is_scripted(here: Path) -> None:
    assert "SCRIPTED" in ferrule(*RUN, cwd=here).stdout


def test_a_run_shows_what_was_repaired_refused_denied_and_asked(here: Path) -> None:
    (here.parent / "secret.txt").write_text("secret", encoding="utf-8")
    lines = ferrule(*RUN, cwd=here).stdout.splitlines()
    assert [line for line in lines if re.search(r"✓ #1 shout .*repaired: ", line)]
    assert [line for line in lines if re.search(r"! #2 shout .*Invalid ", line)]
    assert [line for line in lines if re.search(r"⊘ #3 peek .*Denied: ", line)]
    assert [line for line in lines if re.search(r"\? #4 note .*asked: ", line)]
    assert [line for line in lines if re.search(r"⊘ #4 note .*Denied: ", line)]


def test_a_run_ends_with_the_answer_and_a_table_of_executions(here: Path) -> None:
    shown = ferrule(*RUN, cwd=here).stdout
    answer, _, table = shown.partition("\nanswer\n")[2].partition("\n\n")
    assert answer.startswith("The tools said: A! / ")
    rows = [line.split()[:4] for line in table.splitlines()]
    assert rows == [
        ["#", "tool", "status", "executed"],
        ["1", "shout", "ok", "yes"],
        ["2", "shout", "invalid", "no"],
        ["3", "peek", "denied", "no"],
        ["4", "note", "denied", "no"],
    ]


def test_a_change_runs_when_the_person_at_the_terminal_says_yes(here: Path) -> None:
    code, screen = with_a_terminal(*RUN, cwd=here, answer="y")
    assert code == 0, screen
    assert screen.index("asked: ") < screen.index("[y/N]")
    assert (here / "note.txt").read_text(encoding="utf-8") == "kept"


def test_a_change_does_not_run_when_the_person_at_the_terminal_says_no(here: Path) -> None:
    code, screen = with_a_terminal(*RUN, cwd=here, answer="n")
    assert code == 0, screen
    assert "Denied: " in screen
    assert not (here / "note.txt").exists()


def test_text_from_a_tool_cannot_move_the_cursor(here: Path) -> None:
    (here / "evil.txt").write_text("\x1b]0;owned\x07\x1b[2J", encoding="utf-8")
    (here / "evil.py").write_text(
        """steps = [[("peek", {"path": "evil.txt"})], lambda m: m[-1]["content"]]""", encoding="utf-8"
    )
    words = ("run", "x", "--tools", "tools.py", "--model", "scripted:evil.py")
    assert "\x1b" not in ferrule(*words, cwd=here).stdout
    assert "\x1b]0;" not in with_a_terminal(*words, cwd=here, answer="")[1]


def test_a_script_that_is_too_short_is_said_in_one_line(here: Path) -> None:
    (here / "steps.py").write_text("""steps = [[("shout", {"text": "a"})]]""", encoding="utf-8")
    done = ferrule(*RUN, cwd=here)
    assert done.returncode == 2
    assert done.stderr.startswith("ferrule: the script has 1 steps")
    assert done.stderr.count("\n") == 1


def test_a_model_that_breaks_is_said_in_one_line(here: Path) -> None:
    (here / "steps.py").write_text("steps = [lambda messages: messages[7]]", encoding="utf-8")
    done = ferrule(*RUN, cwd=here)
    assert done.returncode == 1
    assert done.stderr == "ferrule: the model failed: IndexError: list index out of range\n"
    assert "Traceback" in ferrule(*RUN, "--verbose", cwd=here).stderr


def test_a_model_that_cannot_be_reached_is_said_in_one_line_with_its_address(here: Path) -> None:
    pytest.importorskip("openai")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    words = ("run", "x", "--tools", "tools.py", "--model", "openai:m", "--base-url", f"http://me:pw@{address}/v1")
    done = ferrule(*words, cwd=here, OPENAI_API_KEY="k")
    said = f"ferrule: the model failed: cannot reach it at http://{address}/v1/chat/completions: "
    assert done.returncode == 1 and done.stderr == f"{said}{os.strerror(errno.ECONNREFUSED)}\n"


def test_the_demo_shows_what_its_tools_really_gave_and_keeps_it(tmp_path: Path) -> None:
    words = ("run", "Explore", "--tools", "ferrule.tools.files", "--model", "scripted:examples/demo/steps.py")
    for times in (1, 2):
        done = ferrule(*words, "--journal", str(tmp_path / "demo.db"), cwd=ROOT)
        assert done.returncode == 0, done.stderr
        shown = ferrule("log", str(tmp_path / "demo.db"), cwd=ROOT).stdout
        assert shown.count("edit_file") == times and shown.count("within()") == times
    answer = done.stdout.partition("\nanswer\n")[2]
    modules = list((ROOT / "src" / "ferrule").rglob("*.py"))
    assert f"The package has {len(modules)} Python files" in answer
    assert "pydantic and jsonschema-rs" in answer
    assert "Runner (src/ferrule/runner.py)" in answer
    assert [word for word in ("repaired: ", "Invalid ", "Denied: ", "asked: ") if word not in done.stdout] == []
    assert "(nothing noted yet)" in (ROOT / "build" / "demo-notes.md").read_text(encoding="utf-8")


# what cannot be meant


@pytest.mark.parametrize(
    ("words", "says"),
    sampled(
        [
            (["lst"], ["'lst'", "'list'"]),
            (["frobnicate"], ["'frobnicate'", "list", "schema", "call", "run"]),
            (["list", "--tools", "absent.py"], ["'absent.py'", "no file"]),
            (["list", "--tools", "absent.module"], ["'absent.module'", "no module"]),
            (["list", "--tools", "a b"], ["'a b'"]),
            (["list", "--tools", "tools.py:absent"], ["'absent'", "'tools.py'"]),
            (["list", "--colour"], ["--colour"]),
            (["schema"], ["--provider is missing: one of anthropic, ", "openai_chat"]),
            (["run", "a task"], ["--model is missing: ", "anthropic", "scripted:FILE"]),
            (["shout", "text=1", "--tools", "tools.py"], ["'shout'", "ferrule call shout …"]),
            (["help"], ["'help'", "ferrule --help describes"]),
            (["call", "shout", "text", "hey", "--tools", "tools.py"], ["'text' is not key=value", "write text=value"]),
            (["call", "shuot", "--tools", "tools.py"], ["'shuot'", "'shout'"]),
            (["call", "shout", "hey", "--tools", "tools.py"], ["'hey'", "write text=hey"]),
            (["call", "shout", "text=1", "text=2", "--tools", "tools.py"], ["'text'", "twice"]),
            (["run", "a task", "--model", "gpt-7"], ["'gpt-7'", "scripted:FILE"]),
            (["run", "a task", "--model", "scripted:absent.py"], ["'absent.py'"]),
            (["run", "a task", "--model", "scripted:tools.py"], ["'tools.py'", "steps"]),
            (["run", "a task", "--model", "scripted:readme.md"], ["'readme.md'", ".py"]),
            (["run", "a task", "--model", "scripted:five.py"], ["'five.py'", "steps", "5"]),
            (["list", "--tools", "leaves.py"], ["'leaves.py'", "SystemExit: 3"]),
            (["-x"], ["ferrule COMMAND -x", "--help"]),
            (["call"], ["TOOL is missing: name of the tool ("]),
            (["test"], ["FILE is missing: a file of tests"]),
            (["list", "tools.py"], ["'tools.py'", "ferrule list --tools tools.py"]),
            (["schema", "my tools.py", "--provider", "anthropic"], ["ferrule schema --tools 'my tools.py'"]),
            (["lint", "tools.py"], ["ferrule lint --tools tools.py"]),
            (["tools.py"], ["'tools.py'", "ferrule list --tools tools.py"]),
            (["call", "tools.py"], ["'tools.py'", "--tools tools.py"]),
            (["call", "shout"], ["'shout'", "read_file", "built in", "--tools"]),
            (["call", "shout", "--text", "a", "--tools", "tools.py"], ["'--text'", "text=…"]),
            (["call", "shout", "--tolls", "tools.py"], ["'--tolls'", "did you mean '--tools'?"]),
            (["call", "shout", "a b", "--tools", "tools.py"], ["'a b'", "'text=a b'", """'{"text": "a b"}'"""]),
            (["call", "shout", '["a"]', "--tools", "tools.py"], ["one JSON object with all arguments"]),
            (
                ["call", "shout", "times=2", '{"text": "a=b"}', "--tools", "tools.py"],
                ["one JSON object with all arguments"],
            ),
            (
                ["call", "note", "text=a", "--tools", "tools.py", "--yes"],
                ["--yes: expected one argument", "ferrule call [options] TOOL"],
            ),
            (["call", "note", "text=a", "--tools", "tools.py", "--yes", "nte"], ["--yes: ", "'nte'", "'note'"]),
            (["call", "note", "text=a", "--tools", "tools.py", "--yes", "*"], ["--yes: ", "'*'", "note"]),
            (["call", "note", "text=a", "--tools", "tools.py", "--yes="], ["--yes: ", "''", "note"]),
            (["run", *RUN[1:], "--yes", "nte"], ["--yes: ", "'nte'", "'note'"]),
            (["run", *RUN[1:], "--max-turns", "0"], ["--max-turns", "whole number of at least 1, not '0'"]),
            (["run", *RUN[1:], "--max-turns", "x"], ["--max-turns", "whole number of at least 1, not 'x'"]),
            (["run", "Look", "around", *RUN[2:]], ["'around'", "quotes"]),
            (["--tools", "tools.py"], ["before its options", "ferrule COMMAND --tools"]),
            (["--tools", "tools.py", "list"], ["ferrule list --tools"]),
        ],
        one_in=4,
    ),
)
def test_one_line_says_what_is_wrong_and_what_would_be_right(here: Path, words: list[str], says: list[str]) -> None:
    (here / "readme.md").write_text("# Read me", encoding="utf-8")
    (here / "five.py").write_text("steps = 5", encoding="utf-8")
    (here / "leaves.py").write_text("import sys\nsys.exit(3)\n", encoding="utf-8")
    line = refused(ferrule(*words, cwd=here))
    assert [word for word in says if word not in line] == []


def test_a_file_that_cannot_be_imported_is_named_with_the_line(here: Path) -> None:
    (here / "broken.py").write_text("x = 1\ny = undefined\n", encoding="utf-8")
    line = refused(ferrule("list", "--tools", "broken.py", cwd=here))
    assert "NameError" in line
    assert "line 2" in line


def test_of_several_runners_one_must_be_named(here: Path) -> None:
    (here / "two.py").write_text(RUNNERS + "\nother = Runner(Toolset([shout]))\n", encoding="utf-8")
    line = refused(ferrule("list", "--tools", "two.py", cwd=here))
    assert "two.py:runner" in line
    assert "two.py:other" in line


def test_without_rich_one_line_says_what_to_install(here: Path) -> None:
    code = "import sys; sys.modules['rich'] = None; from ferrule.cli import main; sys.exit(main(['list']))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=here, capture_output=True, text=True, timeout=BOUND, check=False
    )
    assert 'pip install "ferrule[cli]"' in refused(done)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["--help", "list"]])
def test_the_help_has_the_commands_and_the_exit_codes(here: Path, words: list[str]) -> None:
    done = ferrule(*words, cwd=here, COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    commands, _, codes = done.stdout.partition("exit codes:\n")
    assert re.findall(r"(?m)^    (\w+) ", commands) == list(COMMANDS)
    assert re.findall(r"(?m)^  (\d+) ", codes) == ["0", "1", "2", "3", "130"]
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_help_imports_no_command_and_no_extra() -> None:
    code = (
        "import sys, ferrule; before = set(sys.modules); from ferrule.cli import main; main(['--help']); "
        "print(*set(sys.modules) - before, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND, check=True)
    loaded = set(done.stderr.split())
    assert {name for name in loaded if name.startswith("ferrule.cli")} == {
        "ferrule.cli",
        "ferrule.cli.program",
        "ferrule.cli.text",
        "ferrule.cli.usage",
    }
    assert not loaded & {"rich", "mcp", "anthropic", "openai"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_a_terminal_and_its_example_is_accepted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parser = make_parser(name, importlib.import_module(f"ferrule.cli.{name}"))
    shown = parser.format_help()
    assert max(map(len, shown.splitlines())) <= 80
    assert shlex.join(shlex.split(EXAMPLES[name])) in shlex.join(shlex.split(shown.partition("example: ")[2]))
    parser.parse_intermixed_args(shlex.split(EXAMPLES[name]))


@pytest.mark.parametrize("provider", ["anthropic", "openai", "gemini", "mistral", "cohere", "bedrock"])
def test_a_missing_key_names_the_environment_variable_and_no_argument_of_python(
    provider: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for variable in [name for name in os.environ if name.endswith(("_API_KEY", "_PROFILE", "_TOKEN"))]:
        monkeypatch.delenv(variable)
    assert main(["run", "hi", "--model", f"{provider}:some-model"]) == 2
    said = capsys.readouterr().err
    assert re.search(r"needs credentials: set [A-Z_]+_KEY", said) and "client=" not in said
