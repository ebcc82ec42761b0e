"""What the command line keeps of what a person allowed, and `ferrule grants`, which lists and revokes it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from terminal import PROGRAM

import preloaded
from ferrule import Decision, Journal, Runner, ToolCall, ToolContext, allow, ask, tool
from ferrule.approval import Answer, Asked, Grants, remembered
from ferrule.cli import runners
from ferrule.cli.grant_store import GrantStore
from ferrule.cli.program import main
from ferrule.guards import rules, within
from ferrule.stores.store import ReachableError, StoreError
from waits import BOUND


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of a person's own, and a working directory beside them."""
    for variable, folder in (("XDG_STATE_HOME", "state"), ("XDG_CONFIG_HOME", "config")):
        monkeypatch.setenv(variable, str(tmp_path / folder))
    monkeypatch.delenv("FERRULE_GRANTS_KEY", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@tool(destructive=False, open_world=False)
async def note(text: str, copies: int = 1) -> str:
    """Leave a note."""
    return text


class Always:
    """Allows for always, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        raise NotImplementedError

    async def answer(self, asked: Asked) -> Answer:
        self.asked += 1
        return Answer(allow(by="ada"), asked.offers[-1])


def asked_about_a_note() -> bool:
    person = Always()
    runner = Runner([note], guards=[lambda *_: ask("?")], approve=remembered(person, Grants(GrantStore())))
    assert asyncio.run(runner.run("note", {"text": "a"}, principal="kim")).success
    return bool(person.asked)


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(words) == code
    streams = capsys.readouterr()
    return " ".join((streams.out + streams.err).split())


def test_what_was_allowed_is_listed_and_asked_about_again_once_it_is_revoked(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert said(capsys, "grants") == "There are no grants."
    assert asked_about_a_note() and not asked_about_a_note()
    [grant] = Grants(GrantStore()).list_active()
    assert main(["grants"]) == 0
    first, second = capsys.readouterr().out.splitlines()  # however narrow the terminal is
    assert first.startswith(f"{grant.id}  note with any text and copies")
    assert f"in {Path.cwd()}, for kim, given by ada, until 20" in second and second.endswith("uses left: any number")
    assert said(capsys, "grants", "revoke", grant.id) == f"revoked {grant.id}"
    assert said(capsys, "grants") == "There are no grants."
    assert asked_about_a_note()


def test_a_call_that_a_grant_answers_is_allowed_by_the_grant(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert asked_about_a_note()
    [grant] = Grants(GrantStore()).list_active()

    async def run_again() -> None:
        journal = Journal.open(tmp_path / "calls.db")
        approve = remembered(Always(), Grants(GrantStore()))
        runner = Runner([note], guards=[lambda *_: ask("?")], approve=approve, journal=journal)
        assert (await runner.run("note", {"text": "b"}, principal="kim")).success
        await journal.flush()
        journal.close()

    asyncio.run(run_again())
    shown = said(capsys, "log", str(tmp_path / "calls.db"))
    assert f"grant {grant.id}" in shown and "ada" not in shown


def test_all_are_revoked_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "grants", "revoke", "--all") == "There are no grants."
    asked_about_a_note()
    assert said(capsys, "grants", "revoke", "--all").startswith("revoked ")
    assert asked_about_a_note()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("revoke",), "ferrule grants revoke ID"),
        (("revoke", "--all", "1234"), "ferrule grants revoke ID"),
        (("revoke", "1234"), "there is no grant '1234'"),
        (("--all",), "ferrule grants revoke ID"),
        (("list", "1234"), "ferrule grants revoke ID"),
    ],
)
def test_what_cannot_be_meant_is_said_and_revokes_nothing(
    words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_about_a_note()
    assert expected in said(capsys, "grants", *words, code=2)
    assert not asked_about_a_note()


def test_nothing_is_made_before_something_is_kept_and_then_both_files_are_their_owners_alone(home: Path) -> None:
    kept = GrantStore()
    assert kept.items() == {} and kept.get("a") is None and not kept.compare_and_set("a", 1, 2)
    assert not (home / "state").exists()
    assert kept.compare_and_set("a", None, 1) and GrantStore().get("a") == 1
    if os.name != "nt":
        for file, mode in ((home / "state/ferrule/grants.json", 0o600), (home / "config/ferrule/grants.key", 0o400)):
            assert stat.S_IMODE(file.stat().st_mode) == mode
            assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert len((home / "config/ferrule/grants.key").read_text()) == 64


def test_the_key_may_be_in_the_environment_and_then_in_no_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRULE_GRANTS_KEY", "k" * 32)
    assert GrantStore().compare_and_set("a", None, 1) and not (home / "config").exists()
    monkeypatch.setenv("FERRULE_GRANTS_KEY", "o" * 32)
    with pytest.raises(StoreError, match="sealed with another key"):
        GrantStore()


@pytest.mark.parametrize(
    "break_it", ["no key", "another key", "a short key", "an empty key", "a key that is none", "an edit", "a link"]
)
def test_what_is_not_as_it_was_kept_is_an_error_and_nothing_is_begun_anew(
    break_it: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_about_a_note()
    file, key = home / "state/ferrule/grants.json", home / "config/ferrule/grants.key"
    if break_it == "an edit":
        file.write_text(file.read_text().replace("note", "Note"))
    elif break_it == "a link":
        key.rename(home / "moved")
        key.symlink_to(home / "moved")
    elif break_it == "no key":
        key.unlink()
    else:
        keys = {"another key": "00" * 32, "a short key": "00", "an empty key": "", "a key that is none": "zz" * 32}
        key.write_text(keys[break_it])
    before = file.read_bytes()
    told = said(capsys, "grants", code=2)
    assert "ferrule: " in told and ("is no key" in told) is (
        break_it in {"a short key", "an empty key", "a key that is none"}
    )
    (Path.cwd() / "tools.py").write_text("def hello() -> str:\n    'Say it.'\n    return 'hello'\n")
    assert "ferrule: " in said(capsys, "call", "hello", "--tools", "tools.py", code=2)
    assert file.read_bytes() == before


def test_of_several_that_keep_something_first_none_finds_half_a_key(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = home / "config/ferrule/grants.key"
    seen: list[str] = []

    def noted(number: int) -> str:
        """What the key file holds while its text is made."""
        seen.extend([key.read_text()] if key.exists() else [])
        return "ab" * number

    monkeypatch.setattr("ferrule.stores.store.secrets.token_hex", noted)
    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(lambda number: GrantStore().compare_and_set(f"{number}", None, 1), range(16)))
    assert len(GrantStore().items()) == 16 and "" not in seen


def test_neither_file_may_lie_where_tools_reach_nor_one_beside_the_other(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("state", "config"):
        with pytest.raises(ReachableError, match="tools may reach it"):
            GrantStore([str(home / folder)])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "state"))
    with pytest.raises(StoreError, match="in the folder of the file that it seals"):
        GrantStore()


def test_in_a_folder_above_them_nothing_is_remembered_and_the_person_is_told_and_grants_are_listed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    assert said(capsys, "grants") == "There are no grants."
    (home / "tools.py").write_text("def hello() -> str:\n    'Say it.'\n    return 'hello'\n")
    asked = runners.join_tools(["tools.py"], remember="folder").approve
    assert "answers are not remembered here" in asked.note  # type: ignore[union-attr]
    assert said(capsys, "call", "hello", "--tools", "tools.py", code=1).startswith("Denied: nobody is there to ask")


SHOP = """
from decimal import Decimal
from pathlib import Path
from typing import Literal

from ferrule import tool


@tool
def remove(path: Path) -> str:
    "Remove a file."
    return "done"


@tool(destructive=False, open_world=False)
def note(text: str, copies: int = 1, kind: Literal["a", "b"] = "a") -> str:
    "Leave a note."
    return "done"


@tool(destructive=False)
def label(tags: set[str], price: Decimal = Decimal("1.5"), where: str = "here") -> str:
    "Label something."
    return "done"


@tool
def shell(command: str) -> str:
    "Run a command."
    return "done"
"""
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
CALLS = st.one_of(
    st.tuples(st.just("remove"), st.fixed_dictionaries({"path": st.sampled_from(["a.txt", "deep/b", "./a", "."])})),
    st.tuples(st.just("shell"), st.fixed_dictionaries({"command": st.sampled_from(["git status", "rm a | sh", "ls"])})),
    st.tuples(st.just("note"), st.fixed_dictionaries({"text": WORDS, "copies": st.integers(-3, 10**20)})),
    st.tuples(st.just("label"), st.fixed_dictionaries({"tags": st.lists(WORDS, max_size=3, unique=True)})),
)


class Chooses(Always):
    """Allows with the offer of this number, if there is one."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.offers = number, 0

    async def answer(self, asked: Asked) -> Answer:
        self.offers = len(asked.offers)
        chosen = asked.offers[self.number] if self.number < self.offers else None
        return Answer(allow(by="ada"), chosen)


def test_every_offer_that_is_taken_answers_the_same_call_of_the_next_program(home: Path) -> None:
    (home / "work/shop.py").write_text(SHOP, encoding="utf-8")

    @settings(max_examples=settings().max_examples // 3)  # each starts several programs
    @given(CALLS, st.sampled_from([None, "s1"]))
    def hold(call: tuple[str, dict[str, Any]], session: str | None) -> None:
        name, arguments = call
        number, offers = 0, 1
        while number < offers:
            for grant in Grants(GrantStore()).list_active():
                Grants(GrantStore()).revoke(grant.id)
            person = Chooses(number)
            runner = runners.join_tools(["shop.py"], remember="folder" if session is None else "session")
            runner.approve.inner = person  # type: ignore[union-attr]
            result = asyncio.run(runner.run(name, arguments, session=session or f"cli-{number}"))
            if result.status == "denied":  # a text that is a path out of the folder
                return
            assert result.success and person.offers, result.error
            words = [name, json.dumps(arguments), "--tools", "shop.py"]
            words += [] if session is None else ["--session", session]
            again = preloaded.run([*PROGRAM, "call", *words], timeout=BOUND)
            assert (again.stdout, again.returncode) == ("done\n", 0), again.stderr
            number, offers = number + 1, person.offers

    hold()


async def test_a_grant_for_the_folder_holds_in_no_other_and_one_for_a_session_in_no_other_session(home: Path) -> None:
    (home / "work/shop.py").write_text(SHOP, encoding="utf-8")
    (home / "work/deep").mkdir()
    for scope, session, command in (("folder", None, "ls"), ("session", "s1", "pwd")):
        runner = runners.join_tools(["shop.py"], remember=scope)  # type: ignore[arg-type]
        runner.approve.inner = Chooses(0)  # type: ignore[union-attr]
        assert (await runner.run("shell", {"command": command}, session=session)).success
    call = [*PROGRAM, "call", "shell", "--tools", str(home / "work/shop.py")]
    codes = {
        (folder, *words): preloaded.run([*call, *words], timeout=BOUND, cwd=folder).returncode
        for folder in (".", "deep")
        for words in (("command=ls",), ("command=pwd",), ("command=pwd", "--session", "s1"))
    }
    assert {words for words, code in codes.items() if code == 0} == {
        (".", "command=ls"),
        (".", "command=pwd", "--session", "s1"),
    }


def test_the_roots_of_a_runner_of_the_programs_own_count(home: Path) -> None:
    (Path.cwd() / "tools.py").write_text(
        f"from ferrule import Runner, tool\nfrom ferrule.guards import within\n"
        f"@tool\ndef hello() -> str:\n    'Say it.'\n    return 'hello'\n"
        f"runner = Runner([hello], guards=[within({str(home)!r})])\n"
    )
    asked = runners.join_tools(["tools.py"], remember="folder").approve
    assert "answers are not remembered here" in asked.note  # type: ignore[union-attr]
    assert within("a", "b").roots == (str(Path.cwd() / "a"), str(Path.cwd() / "b"))  # type: ignore[attr-defined]


def test_under_a_policy_no_path_parameter_leads_to_either_file(home: Path) -> None:
    @tool
    async def write(path: str) -> str:
        """Write somewhere."""
        return path

    (home / "work/policy.toml").write_text('allow = ["write"]\n')
    runner = Runner([write], guards=[rules("policy.toml")])
    assert asyncio.run(runner.run("write", {"path": "other"})).success
    for file in ("state/ferrule/grants.json", "config/ferrule/grants.key", "config/ferrule"):
        assert asyncio.run(runner.run("write", {"path": f"../{file}"})).status == "denied", file
