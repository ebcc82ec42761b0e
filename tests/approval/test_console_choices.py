"""A person at the terminal may edit a call, give a reason, or choose an offer."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from terminals import ALLOW, PROMPT, Terminal

from ferrule import Decision, Runner, ToolCall, ToolContext, ToolResult, approval, ask, tool
from ferrule.approval import Answer, Asked, Offer
from ferrule.guards import ask_before_changes, within
from ferrule.tools import files
from waits import BOUND

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("EDITOR", raising=False)
    return Path(os.path.realpath(tmp_path))


@tool
def pay(to: str, euros: int, times: list[int] | None = None) -> str:
    """Pay somebody."""
    return f"paid {to} {euros} {times}"


def ran(
    terminal: Terminal,
    *dialogue: tuple[str, str | Callable[[], str]],
    tools: Any = (pay,),
    call: ToolCall | None = None,
    guards: Any = (),
    by: str | None = "ann",
    context: ToolContext[Any] | None = None,
) -> ToolResult:
    async def run() -> ToolResult:
        approve = approval.console(terminal.input, terminal.output, by=by)
        runner = Runner(tools, guards=[*guards, ask_before_changes], approve=approve)
        made = call or ToolCall("1", "pay", {"to": "ada", "euros": 5})
        running = asyncio.ensure_future(runner.run(made, context))
        await terminal.answer(dialogue)
        return await asyncio.wait_for(running, BOUND)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("by", "recorded", "typed"), [("ann", "ann", "y\n"), (None, "kim", "y\n"), ("ann", "ann", "n no\n")]
)
def test_the_record_says_who_answered(
    by: str | None, recorded: str, typed: str, terminal: Terminal, monkeypatch: Any
) -> None:
    monkeypatch.setenv("LOGNAME", "kim")
    assert ran(terminal, (PROMPT, typed), by=by).record()["answered_by"] == recorded


@pytest.mark.parametrize("said", ["n too much\n", "no too much\n", "N  too much \n"])
def test_the_model_reads_the_reason_of_a_no(said: str, terminal: Terminal) -> None:
    result = ran(terminal, (PROMPT, said))
    assert result.error == "Denied: the person who was asked said no: too much. Nothing was run."
    assert "  by rule: ask_before_changes\r\n" in terminal.seen


@pytest.mark.parametrize("said", ["y please\n", "e now\n", "m n\n", "1\n", "0\n", "\u00b2\n"])
def test_an_unknown_choice_is_a_no(said: str, terminal: Terminal) -> None:
    assert ran(terminal, (PROMPT, said)).error == "Denied: the person who was asked said no. Nothing was run."


# Editing


def edit(to: str = "", euros: str = "", times: str = "") -> tuple[tuple[str, str], ...]:
    """The answers for each parameter; an empty one keeps the value."""
    return (("\r\nto: ", f"{to}\n"), ("\r\neuros: ", f"{euros}\n"), ("\r\ntimes: ", f"{times}\n"))


@pytest.mark.parametrize(
    ("edits", "output"),
    [
        (edit(euros="3", times="[1, 2]"), "paid ada 3 [1, 2]"),
        (edit(to='"a\\nb"'), "paid a\nb 5 None"),  # a text may be written as JSON
        (edit(to="愛\u3000👩\u200d🚀"), "paid 愛\u3000👩\u200d🚀 5 None"),
        ((*edit(euros="three"), *edit(euros="3")), "paid ada 3 None"),
        ((*edit(euros="three"), *edit()), "paid ada 5 None"),
    ],
)
def test_an_edit_is_asked_about(edits: Any, output: str, terminal: Terminal) -> None:
    assert ran(terminal, (ALLOW, "e\n"), *edits, (ALLOW, "y\n")).output == output
    _, is_asked_again, again = terminal.seen.rpartition("pay would run with your changes:")
    assert ("Not valid: " in terminal.seen) is (edits[:3] == edit(euros="three"))
    assert bool(is_asked_again) is (output != "paid ada 5 None")
    assert "  euros = 3\r\n" in again or "paid ada 3" not in output


@pytest.mark.parametrize("typed", ["\x1b[D3", "3\x08", "\x0c", "3\x7f4"], ids=repr)
def test_control_characters_are_refused_in_a_value(typed: str, terminal: Terminal) -> None:
    quoted = "".join(f"\x16{c}" if c in "\x08\x7f" else c for c in typed)  # ctrl-V has the terminal take them
    edits = edit(euros=quoted)[:2] + edit(euros="7")[1:]
    assert ran(terminal, (PROMPT, "\x1b[Ay\n"), (PROMPT, "e\n"), *edits, (PROMPT, "y\n")).output == "paid ada 7 None"
    assert terminal.seen.count("Type it again") == 2


def test_a_hidden_value_is_not_edited(terminal: Terminal) -> None:
    bound, call = pay.bind(to="eve"), ToolCall("1", "pay", {"euros": 5})
    dialogue = ((PROMPT, "e\n"), *edit(euros="3")[1:], (PROMPT, "y\n"))
    assert ran(terminal, *dialogue, tools=[bound], call=call).output == "paid eve 3 None"
    assert "eve" not in terminal.seen


@pytest.mark.parametrize("path", ["/etc/hosts", "b.txt"])
def test_an_edited_path_is_judged_and_shown(path: str, terminal: Terminal, root: Path) -> None:
    (root / "b.txt").write_text("old b\n", encoding="utf-8")
    call = ToolCall("1", "write_file", {"path": "a.txt", "content": "new\n"})
    dialogue = ((ALLOW, "e\n"), ("\r\npath: ", f"{path}\n"), ("\r\ncontent: ", "\n"), (ALLOW, "y\n"))
    context = ToolContext[Any](working_directory=root)
    result = ran(terminal, *dialogue, tools=files.tools, call=call, guards=[within(root)], context=context)
    if path == "b.txt":
        assert result.success and (root / "b.txt").read_text(encoding="utf-8") == "new\n"
        again = terminal.seen.rpartition("would run with your changes:")[2]
        assert "-old b" in again and "+new" in again
    else:
        assert result.status == "denied" and "outside" in str(result.error)


@pytest.mark.parametrize(("last", "left"), [("y\n", "new\n"), ("\n", "two\n")])
def test_a_file_that_changes_before_the_yes_is_shown_again(
    last: str, left: str, terminal: Terminal, root: Path
) -> None:
    path = root / "a.txt"
    path.write_text("one\n", encoding="utf-8")

    def change() -> str:
        path.write_text("two\n", encoding="utf-8")
        return "y\n"

    call = ToolCall("1", "write_file", {"path": str(path), "content": "new\n"})
    result = ran(terminal, (ALLOW, change), (ALLOW, last), tools=files.tools, call=call)
    first, _, then = terminal.seen.partition("The preview has changed")
    assert "-one" in first and "-two" in then
    assert result.success is (last == "y\n") and path.read_text(encoding="utf-8") == left


# The editor

EDITOR = """
import os, stat, sys
path = sys.argv[1]
with open(path, newline="") as file: text = file.read()
assert sys.stdin.isatty() and sys.stdout.isatty()
with open({seen!r}, "w") as seen:
    seen.write(repr((path, stat.S_IMODE(os.stat(path).st_mode), stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode))))
open(path + "~", "w").write(text)
with open(path, "w", newline="") as file: file.write(text.replace("two", "2") + "\\n")
sys.exit({code})
"""


def long_text(root: Path, monkeypatch: Any, code: int = 0) -> ToolCall:
    program = root / "editor.py"
    program.write_text(EDITOR.format(seen=str(root / "seen"), code=code), encoding="utf-8")
    monkeypatch.setenv("EDITOR", f"'{sys.executable}' '{program}'")
    return ToolCall("1", "pay", {"to": "one\r\ntwo\nthree", "euros": 5})


IN_EDITOR = (("(e for the editor): ", "e\n"), ("\r\neuros: ", "\n"), ("\r\ntimes: ", "\n"))


def test_a_long_text_is_edited_in_a_private_temporary_file(
    terminal: Terminal, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = long_text(root, monkeypatch)
    result = ran(terminal, (ALLOW, "e\n"), *IN_EDITOR, (ALLOW, "y\n"), call=call)
    assert result.output == "paid one\r\n2\nthree 5 None"
    path, mode, of_folder = eval((root / "seen").read_text(encoding="utf-8"))
    assert (mode, of_folder) == (0o600, 0o700)
    assert not os.path.exists(os.path.dirname(path))


@pytest.mark.parametrize(("editor", "said"), [(None, "exit code 3"), ("none", "No such file")])
def test_an_editor_that_fails_changes_nothing(
    editor: str | None, said: str, terminal: Terminal, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = long_text(root, monkeypatch, code=3)
    if editor:
        monkeypatch.setenv("VISUAL", str(root / editor))
    result = ran(terminal, (ALLOW, "e\n"), *IN_EDITOR, (ALLOW, "y\n"), call=call)
    assert "The editor failed: " in terminal.seen and said in terminal.seen
    assert result.output == "paid one\r\ntwo\nthree 5 None"


async def test_a_cancelled_call_ends_the_editor_and_leaves_no_file(
    terminal: Terminal, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = long_text(root, monkeypatch)
    os.mkfifo(root / "begun")
    program = root / "waits.py"
    begins = f"open({str(root / 'begun')!r}, 'w').write(repr((os.getpid(), sys.argv[1])))"
    program.write_text(f"import os, sys, time\n{begins}\ntime.sleep(600)\n", encoding="utf-8")
    monkeypatch.setenv("EDITOR", f"'{sys.executable}' '{program}'")
    approve = approval.console(terminal.input, terminal.output)
    running = asyncio.ensure_future(Runner([pay], guards=[ask_before_changes], approve=approve).run(call))
    await terminal.answer(((ALLOW, "e\n"), IN_EDITOR[0]))
    process, path = eval(await asyncio.to_thread((root / "begun").read_text))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.to_thread(terminal.until, "[no longer asked]")
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert not os.path.exists(os.path.dirname(path))


# Always


def offered(terminal: Terminal, offers: tuple[Offer, ...], *dialogue: tuple[str, str]) -> Answer:
    async def run() -> Answer:
        call = ToolCall("1", "shell", {"command": "pytest tests"})
        asked = Asked.of(call, ask("why"), ToolContext(), offers)
        answer = asyncio.ensure_future(approval.console(terminal.input, terminal.output, by="ann").answer(asked))
        await terminal.answer(dialogue)
        return await asyncio.wait_for(answer, BOUND)

    return asyncio.run(run())


KEEP = (("\r\npath: ", "\n"), ("\r\nfor: ", "\n"))
OFFER = Offer("always", "save", arguments={"path": {"within": ["/srv/notes"]}}, seconds=8 * 3600)
CONFIRM = "Allow it always? [y/N] "


def test_an_offer_is_chosen_by_its_number_and_confirmed(terminal: Terminal) -> None:
    answer = offered(terminal, (Offer("once", "save", exactly=True), OFFER), (PROMPT, "2\n"), *KEEP, (CONFIRM, "y\n"))
    assert answer == Answer(Decision("allow", by="ann"), OFFER)
    shown = terminal.seen.replace("\r\n    ┆ ", "")
    assert "  2 = always: save with path within /srv/notes, in this folder, for 8h" in shown


@pytest.mark.parametrize("number", ["0", "2", "00010", "1.", "\u0661"])
def test_a_number_that_is_not_shown_is_a_no(terminal: Terminal, number: str) -> None:
    answer = offered(terminal, (OFFER,), (PROMPT, f"{number}\n"))
    assert answer == Answer(Decision("deny", "the person who was asked said no", by="ann"))


def test_an_unconfirmed_offer_asks_the_question_again(terminal: Terminal) -> None:
    answer = offered(terminal, (OFFER,), (PROMPT, "1\n"), *KEEP, (CONFIRM, "\n"), (PROMPT, "y\n"))
    assert answer == Answer(Decision("allow", by="ann"))


@pytest.mark.parametrize("answers", [("n\n",), ("\n", "no\n")])
def test_a_no_leaves_an_offer_for_the_question(answers: tuple[str, ...], terminal: Terminal) -> None:
    narrowing = zip(("\r\npath: ", "\r\nfor: "), answers, strict=False)
    answer = offered(terminal, (OFFER,), (PROMPT, "1\n"), *narrowing, (PROMPT, "n\n"))
    assert answer.offer is None and answer.decision.kind == "deny"


@pytest.mark.parametrize("said", ["y\x04\x04", "\x04"])
def test_a_yes_without_enter_is_no_answer(said: str, terminal: Terminal) -> None:
    assert "got no answer" in (ran(terminal, (PROMPT, said)).error or "")


def test_an_offer_is_narrowed_and_never_widened(terminal: Terminal) -> None:
    narrow = (("\r\npath: ", "/srv\n"), ("\r\npath: ", "/srv/notes/own\n"), ("\r\nfor: ", "9h\n"))
    answer = offered(terminal, (OFFER,), (PROMPT, "1\n"), *narrow, ("\r\nfor: ", "30m\n"), (CONFIRM, "y\n"))
    assert answer.offer is not None
    assert answer.offer.arguments == {"path": {"within": ["/srv/notes/own"]}} and answer.offer.seconds == 1800
    assert terminal.seen.count("Not valid: ") == 2


@pytest.mark.parametrize(
    ("given", "text", "narrowed"),
    [
        (None, "runs git *", {"equals": "runs git *"}),
        ({"within": ["/srv/notes"]}, "/srv/notes/a|/srv/notes/b", {"within": ["/srv/notes/a", "/srv/notes/b"]}),
        ({"within": ["/srv/notes"]}, "/srv/notes/../other", None),
        ({"hosts": ["*.example.org"]}, "a.example.org", {"hosts": ["a.example.org"]}),
        ({"at_least": 0, "at_most": 100}, "=50", {"equals": 50}),
        ({"at_most": 100}, "<=50", {"at_most": 50}),
        ({"at_most": 100}, "<=500", None),
        ({"one_of": ["a", "b"]}, "a", {"equals": "a"}),
        (None, "within /srv", {"within": ["/srv"]}),
        (None, "<", None),
    ],
)
def test_a_condition_is_narrowed_to_a_part_of_it(given: Any, text: str, narrowed: Any) -> None:
    offer = Offer("always", "x", arguments={"it": given})
    if narrowed is not None:
        assert offer.narrow("it", text).arguments == {"it": narrowed}
        return
    with pytest.raises(ValueError, match=r"\w"):
        offer.narrow("it", text)


def test_an_unknown_part_of_an_offer_cannot_be_narrowed() -> None:
    with pytest.raises(ValueError, match="unknown part"):
        Offer("always", "x", arguments={"it": None}).narrow("other", "1h")
