"""What a person at the terminal may say besides yes and no."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from test_console import BOUND, PROMPT, Terminal

from ferrule import Decision, Runner, ToolCall, ToolContext, ToolResult, approval, ask, deny, tool
from ferrule.approval import Answer, Asked, Offer
from ferrule.guards import ask_before_changes, within
from ferrule.tools import files

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")

ALLOW = "Allow it? [y/N"


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("EDITOR", raising=False)
    return Path(os.path.realpath(tmp_path))


@tool
def pay(to: str, euros: int, times: list[int] | None = None) -> str:
    """Pay somebody."""
    return f"paid {to} {euros} {times}"


async def typed(terminal: Terminal, dialogue: tuple[tuple[str, str | Callable[[], str]], ...]) -> None:
    """Wait for each prompt, and type its answer; or call what does something meanwhile and gives the answer."""
    for number, (prompt, answer) in enumerate(dialogue):
        earlier = sum(prompt == before for before, _ in dialogue[:number])
        await asyncio.to_thread(terminal.until, prompt, earlier + 1)
        terminal.type(answer if isinstance(answer, str) else answer())


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
        await typed(terminal, dialogue)
        return await asyncio.wait_for(running, BOUND)

    return asyncio.run(run())


def test_the_record_says_who_allowed_it(terminal: Terminal) -> None:
    assert ran(terminal, (PROMPT, "y\n")).record()["approved_by"] == "ann"


def test_it_is_the_user_of_the_system_where_nobody_is_named(terminal: Terminal, monkeypatch: Any) -> None:
    monkeypatch.setenv("LOGNAME", "kim")
    assert ran(terminal, (PROMPT, "y\n"), by=None).record()["approved_by"] == "kim"


@pytest.mark.parametrize("said", ["n too much\n", "no too much\n", "N  too much \n"])
def test_the_model_reads_why_not(said: str, terminal: Terminal) -> None:
    result = ran(terminal, (PROMPT, said))
    assert result.error == "Denied: the person who was asked said no: too much. Nothing was run."


@pytest.mark.parametrize("said", ["y please\n", "yes but less\n", "e now\n", "m n\n", "1\n", "0\n", "\u00b2\n"])
def test_what_is_none_of_the_choices_is_a_plain_no(said: str, terminal: Terminal) -> None:
    assert ran(terminal, (PROMPT, said)).error == "Denied: the person who was asked said no. Nothing was run."


def test_the_question_has_the_rule_that_asks(terminal: Terminal) -> None:
    ran(terminal, (PROMPT, "n\n"))
    assert "  by rule: ask_before_changes\r\n" in terminal.seen


# Editing

KEPT = ("\r\nto: ", "\n")


def test_an_edit_is_shown_and_asked_about_again_and_then_it_runs(terminal: Terminal) -> None:
    edit = (KEPT, ("\r\neuros: ", "3\n"), ("\r\ntimes: ", "[1, 2]\n"))
    result = ran(terminal, (PROMPT, "e\n"), *edit, (PROMPT, "y\n"))
    assert result.output == "paid ada 3 [1, 2]"
    again = terminal.seen.rpartition("pay would run with your changes:")[2]
    assert "  euros = 3\r\n" in again and "  to = 'ada'\r\n" in again


@pytest.mark.parametrize("typed", ["\x1b[D3\n", "3\x08\n", "\x0c\n", "3\x7f4\n"], ids=repr)
def test_control_characters_are_not_taken_into_a_value(typed: str, terminal: Terminal) -> None:
    quoted = "".join(f"\x16{c}" if c in "\x08\x7f" else c for c in typed)  # ctrl-V has the terminal take them
    edit = (KEPT, ("\r\neuros: ", quoted), ("\r\neuros: ", "7\n"), ("\r\ntimes: ", "\n"))
    assert ran(terminal, (PROMPT, "\x1b[Ay\n"), (PROMPT, "e\n"), *edit, (PROMPT, "y\n")).output == "paid ada 7 None"
    assert terminal.seen.count("Type it again") == 2


def test_letters_of_all_alphabets_are_taken_into_a_value(terminal: Terminal) -> None:
    edit = (("\r\nto: ", "愛\u3000👩\u200d🚀\n"), ("\r\neuros: ", "\n"), ("\r\ntimes: ", "\n"))
    assert ran(terminal, (PROMPT, "e\n"), *edit, (PROMPT, "y\n")).output == "paid 愛\u3000👩\u200d🚀 5 None"


def test_an_edit_alone_runs_nothing(terminal: Terminal) -> None:
    edit = (KEPT, ("\r\neuros: ", "3\n"), ("\r\ntimes: ", "\n"))
    assert ran(terminal, (PROMPT, "e\n"), *edit, (PROMPT, "\n")).status == "denied"


def test_an_edit_that_does_not_fit_is_told_and_edited_further(terminal: Terminal) -> None:
    wrong = (KEPT, ("\r\neuros: ", "three\n"), ("\r\ntimes: ", "\n"))
    right = (KEPT, ("\r\neuros: ", "3\n"), ("\r\ntimes: ", "\n"))
    result = ran(terminal, (PROMPT, "e\n"), *wrong, *right, (PROMPT, "y\n"))
    assert "Not valid: " in terminal.seen and "euros" in terminal.seen
    assert result.output == "paid ada 3 None"


def test_an_edit_that_is_left_as_it_does_not_fit_changes_nothing(terminal: Terminal) -> None:
    wrong = (KEPT, ("\r\neuros: ", "three\n"), ("\r\ntimes: ", "\n"))
    left = (KEPT, ("\r\neuros: ", "\n"), ("\r\ntimes: ", "\n"))
    result = ran(terminal, (PROMPT, "e\n"), *wrong, *left, (PROMPT, "y\n"))
    assert result.output == "paid ada 5 None"
    assert "with your changes" not in terminal.seen


def test_a_text_may_be_written_as_json(terminal: Terminal) -> None:
    edit = (("\r\nto: ", '"a\\nb"\n'), ("\r\neuros: ", "\n"), ("\r\ntimes: ", "\n"))
    assert ran(terminal, (ALLOW, "e\n"), *edit, (ALLOW, "y\n")).output == "paid a\nb 5 None"


def test_what_is_hidden_is_not_edited_and_stays(terminal: Terminal) -> None:
    bound = pay.bind(to="eve")
    edit = (("\r\neuros: ", "3\n"), ("\r\ntimes: ", "\n"))
    call = ToolCall("1", "pay", {"euros": 5})
    assert ran(terminal, (PROMPT, "e\n"), *edit, (PROMPT, "y\n"), tools=[bound], call=call).output == "paid eve 3 None"
    assert "eve" not in terminal.seen


def test_an_edit_is_judged_by_the_guards(terminal: Terminal, root: Path) -> None:
    call = ToolCall("1", "write_file", {"path": "a.txt", "content": "new"})
    edit = (("\r\npath: ", "/etc/hosts\n"), ("\r\ncontent: ", "\n"))
    dialogue = ((ALLOW, "e\n"), *edit, (ALLOW, "y\n"))
    context = ToolContext[Any](working_directory=root)
    result = ran(terminal, *dialogue, tools=files.tools, call=call, guards=[within(root)], context=context)
    assert result.status == "denied" and "outside" in str(result.error)


def test_an_edited_path_is_shown_against_what_is_there_now_and_is_written(terminal: Terminal, root: Path) -> None:
    (root / "b.txt").write_text("old b\n", encoding="utf-8")
    call = ToolCall("1", "write_file", {"path": "a.txt", "content": "new\n"})
    edit = (("\r\npath: ", "b.txt\n"), ("\r\ncontent: ", "\n"))
    context = ToolContext[Any](working_directory=root)
    dialogue = ((ALLOW, "e\n"), *edit, (ALLOW, "y\n"))
    result = ran(terminal, *dialogue, tools=files.tools, call=call, guards=[within(root)], context=context)
    assert result.success and (root / "b.txt").read_text(encoding="utf-8") == "new\n"
    again = terminal.seen.rpartition("would run with your changes:")[2]
    assert "-old b" in again and "+new" in again


def test_what_changes_between_the_question_and_the_yes_is_shown_and_asked_about_anew(
    terminal: Terminal, root: Path
) -> None:
    path = root / "a.txt"
    path.write_text("one\n", encoding="utf-8")

    def changed_meanwhile() -> str:
        path.write_text("two\n", encoding="utf-8")
        return "y\n"

    call = ToolCall("1", "write_file", {"path": str(path), "content": "new\n"})
    result = ran(terminal, (ALLOW, changed_meanwhile), (ALLOW, "y\n"), tools=files.tools, call=call)
    first, _, then = terminal.seen.partition("The preview has changed")
    assert "-one" in first and "-two" in then
    assert result.success and path.read_text(encoding="utf-8") == "new\n"


def test_nothing_is_written_where_the_person_does_not_want_what_has_changed(terminal: Terminal, root: Path) -> None:
    path = root / "a.txt"

    def made_meanwhile() -> str:
        path.write_text("mine\n", encoding="utf-8")
        return "y\n"

    call = ToolCall("1", "write_file", {"path": str(path), "content": "new\n"})
    assert ran(terminal, (ALLOW, made_meanwhile), (ALLOW, "\n"), tools=files.tools, call=call).status == "denied"
    assert path.read_text(encoding="utf-8") == "mine\n"


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


def test_a_long_text_is_edited_in_a_private_file_that_is_gone_afterwards(
    terminal: Terminal, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = long_text(root, monkeypatch)
    result = ran(terminal, (ALLOW, "e\n"), *IN_EDITOR, (ALLOW, "y\n"), call=call)
    assert result.output == "paid one\r\n2\nthree 5 None"
    path, mode, of_folder = eval((root / "seen").read_text(encoding="utf-8"))
    assert (mode, of_folder) == (0o600, 0o700)
    assert not os.path.exists(os.path.dirname(path))


def test_an_editor_that_fails_changes_nothing(terminal: Terminal, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = long_text(root, monkeypatch, code=3)
    result = ran(terminal, (ALLOW, "e\n"), *IN_EDITOR, (ALLOW, "y\n"), call=call)
    assert "The editor failed: " in terminal.seen and "exit code 3" in terminal.seen
    assert result.output == "paid one\r\ntwo\nthree 5 None"


def test_an_editor_that_is_not_there_is_told(terminal: Terminal, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = long_text(root, monkeypatch)
    monkeypatch.setenv("VISUAL", str(root / "none"))
    ran(terminal, (ALLOW, "e\n"), *IN_EDITOR, (ALLOW, "n\n"), call=call)
    assert "The editor failed: " in terminal.seen and "No such file" in terminal.seen


def test_a_call_that_is_cancelled_ends_the_editor_and_leaves_no_file(
    terminal: Terminal, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = long_text(root, monkeypatch)
    os.mkfifo(root / "begun")
    program = root / "waits.py"
    program.write_text(
        f"import os, sys, time\nopen({str(root / 'begun')!r}, 'w').write(repr((os.getpid(), sys.argv[1])))\n"
        "time.sleep(600)\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("EDITOR", f"'{sys.executable}' '{program}'")

    async def run() -> tuple[int, str]:
        approve = approval.console(terminal.input, terminal.output)
        running = asyncio.ensure_future(Runner([pay], guards=[ask_before_changes], approve=approve).run(call))
        await typed(terminal, ((ALLOW, "e\n"), IN_EDITOR[0]))
        begun: tuple[int, str] = eval(await asyncio.to_thread((root / "begun").read_text))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.to_thread(terminal.until, "[no longer asked]")
        return begun

    process, path = asyncio.run(run())
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert not os.path.exists(os.path.dirname(path))


# Always


def offered(terminal: Terminal, offers: tuple[Offer, ...], *dialogue: tuple[str, str]) -> Answer:
    async def run() -> Answer:
        call = ToolCall("1", "shell", {"command": "pytest tests"})
        asked = Asked.of(call, ask("why"), ToolContext(), offers)
        answer = asyncio.ensure_future(approval.console(terminal.input, terminal.output, by="ann").answer(asked))
        await typed(terminal, dialogue)
        return await asyncio.wait_for(answer, BOUND)

    return asyncio.run(run())


OFFER = Offer("always", "save", arguments={"path": {"within": ["/srv/notes"]}}, seconds=8 * 3600)
CONFIRM = "Allow it always? [y/N] "


def test_an_offer_is_chosen_by_its_number_and_has_to_be_confirmed(terminal: Terminal) -> None:
    keep = (("\r\npath: ", "\n"), ("\r\nfor: ", "\n"))
    answer = offered(terminal, (Offer("once", "save", exactly=True), OFFER), (PROMPT, "2\n"), *keep, (CONFIRM, "y\n"))
    assert answer == Answer(Decision("allow", by="ann"), OFFER)
    assert "  2 = always: save with path within /srv/notes, in this folder, for 8h" in terminal.seen.replace(
        "\r\n    ┆ ", ""
    )


@pytest.mark.parametrize("number", ["0", "2", "00010", "1.", "\u0661"])
def test_a_number_that_is_not_shown_is_a_no(terminal: Terminal, number: str) -> None:
    answer = offered(terminal, (OFFER,), (PROMPT, f"{number}\n"))
    assert answer == Answer(deny("the person who was asked said no"))


def test_an_offer_that_is_not_confirmed_puts_the_question_again(terminal: Terminal) -> None:
    keep = (("\r\npath: ", "\n"), ("\r\nfor: ", "\n"))
    answer = offered(terminal, (OFFER,), (PROMPT, "1\n"), *keep, (CONFIRM, "\n"), (PROMPT, "y\n"))
    assert answer == Answer(Decision("allow", by="ann"))


def test_what_changes_while_an_offer_is_chosen_is_shown_as_it_is_now(terminal: Terminal, root: Path) -> None:
    path = root / "a.txt"
    path.write_text("one\n", encoding="utf-8")

    def changed_meanwhile() -> str:
        path.write_text("two\n", encoding="utf-8")
        return "y\n"

    async def run() -> Answer:
        [write] = [one for one in files.tools if one.name == "write_file"]
        call = ToolCall("1", "write_file", {"path": str(path), "content": "new\n"})
        offers = (Offer("always", "write_file", exactly=True),)
        request = Asked.of(call, ask("why"), ToolContext(working_directory=root), offers)
        request = replace(request, tool=write)
        answer = asyncio.ensure_future(approval.console(terminal.input, terminal.output, by="ann").answer(request))
        await typed(terminal, ((ALLOW, "1\n"), (CONFIRM, changed_meanwhile), (ALLOW, "y\n")))
        return await asyncio.wait_for(answer, BOUND)

    answer = asyncio.run(run())
    _, changed, then = terminal.seen.partition("The preview has changed")
    assert changed and "-two" in then and "-one" not in then
    assert answer.offer is None and (answer.decision.arguments or {})["expected"] == sha256(b"two\n").hexdigest()


@pytest.mark.parametrize("said", ["y\x04\x04", "\x04"])
def test_what_is_not_ended_with_enter_is_no_yes(said: str, terminal: Terminal) -> None:
    assert "got no answer" in (ran(terminal, (PROMPT, said)).error or "")


@pytest.mark.parametrize("answers", [("1\n", "\x04"), ("1\n", "\n", "\x04"), ("1\n", "/srv \x04\x04")])
def test_the_end_of_input_while_an_offer_is_narrowed_is_a_no(answers: tuple[str, ...], terminal: Terminal) -> None:
    prompts = (PROMPT, "\r\npath: ", "\r\nfor: ")
    answer = offered(terminal, (OFFER,), *zip(prompts, answers, strict=False))
    assert answer.offer is None and answer.decision.kind == "deny"


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
        ({"within": ["/srv/notes"]}, "/srv", None),
        ({"within": ["/srv/notes"]}, "/srv/notes/../other", None),
        ({"hosts": ["*.example.org"]}, "a.example.org", {"hosts": ["a.example.org"]}),
        ({"hosts": ["*.example.org"]}, "example.com", None),
        ({"hosts": ["*.example.org"]}, "", None),
        ({"at_least": 0, "at_most": 100}, "=50", {"equals": 50}),
        ({"at_most": 100}, "<=50", {"at_most": 50}),
        ({"at_most": 100}, "50", {"equals": 50}),
        ({"at_most": 100}, "<=500", None),
        ({"at_most": 100}, ">=5", None),
        ({"equals": "a"}, "b", None),
        ({"one_of": ["a", "b"]}, "a", {"equals": "a"}),
        (None, "within /srv", {"within": ["/srv"]}),
        (None, "<", None),
    ],
)
def test_a_condition_is_narrowed_to_part_of_it_or_not_at_all(given: Any, text: str, narrowed: Any) -> None:
    offer = Offer("always", "x", arguments={"it": given})
    if narrowed is not None:
        assert offer.narrow("it", text).arguments == {"it": narrowed}
        return
    with pytest.raises(ValueError, match=r"\w"):
        offer.narrow("it", text)


def test_a_part_that_an_offer_has_not_cannot_be_narrowed() -> None:
    for part in ("other", "for"):
        with pytest.raises(ValueError, match="unknown part"):
            Offer("always", "x", arguments={"it": None}).narrow(part, "1h")
