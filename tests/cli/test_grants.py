"""The grants that the command line stores, and `ferrule grants`, which lists and revokes them."""

from __future__ import annotations

import asyncio
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from terminal import PROGRAM

import preloaded
from ferrule import Decision, Journal, Runner, ToolCall, ToolContext, allow, ask, tool
from ferrule.approval import Answer, Asked, Grants, remembered
from ferrule.cli import runners
from ferrule.cli.grant_store import GrantStore
from ferrule.guards import rules
from ferrule.stores.store import ReachableError, StoreError
from waits import BOUND

NONE = "There are no grants of the command line."


@pytest.fixture(autouse=True)
def home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the person, above the working directory."""
    monkeypatch.delenv("FERRULE_GRANTS_KEY", raising=False)
    (folder / "tools.py").write_text("def hello() -> str:\n    'Say it.'\n    return 'hello'\n")
    return folder.parent


@tool(destructive=False, open_world=False)
async def note(text: str, copies: int = 1) -> str:
    """Leave a note."""
    return text


class Always:
    """Allows with the last offer, which is for always, and counts how often it is asked."""

    chosen = -1

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        raise NotImplementedError

    async def answer(self, asked: Asked) -> Answer:
        self.asked += 1
        return Answer(allow(by="ada"), asked.offers[self.chosen])


async def asks_about_a_note(journal: Journal | None = None) -> bool:
    """Run a call that needs an answer, and return whether a person was asked."""
    person = Always()
    approve = remembered(person, Grants(GrantStore()))
    runner = Runner([note], guards=[lambda *_: ask("?")], approve=approve, journal=journal)
    assert (await runner.run("note", {"text": "a"}, principal="kim")).success
    return bool(person.asked)


async def test_grants_are_listed_answer_calls_and_can_be_revoked(
    ferrule: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert ferrule("grants").text == ferrule("grants", "revoke", "--all").text == NONE
    assert await asks_about_a_note()
    [grant] = Grants(GrantStore()).list_active()
    first, second = ferrule("grants").out.splitlines()  # however narrow the terminal is
    assert first.startswith(f"{grant.id}  note with any text and copies")
    assert f"in {Path.cwd()}, for kim, given by ada, until 20" in second and second.endswith("uses left: any number")
    journal = Journal.open(home / "calls.db")
    assert not await asks_about_a_note(journal)
    await journal.flush()
    journal.close()
    shown = ferrule("log", str(home / "calls.db")).text
    assert f"grant {grant.id}" in shown and "ada" not in shown  # the grant allowed it
    assert ferrule("grants", "revoke", grant.id).text == f"revoked {grant.id}"
    assert ferrule("grants").text == NONE
    assert await asks_about_a_note()
    assert ferrule("grants", "revoke", "--all").text.startswith("revoked ")
    assert await asks_about_a_note()


async def test_a_wrong_command_revokes_nothing(ferrule: Any) -> None:
    await asks_about_a_note()
    usage = "ferrule grants revoke ID"
    for words, error in (
        (("revoke",), usage),
        (("revoke", "--all", "1234"), usage),
        (("revoke", "1234"), "there is no grant '1234'"),
        (("list", "1234"), usage),
    ):
        done = ferrule("grants", *words)
        assert done.code == 2 and error in done.text
    assert not await asks_about_a_note()


def test_files_are_made_with_the_first_grant_and_private(home: Path) -> None:
    kept = GrantStore()
    assert kept.items() == {} and kept.get("a") is None and not kept.compare_and_set("a", 1, 2)
    assert not (home / "state").exists()
    assert kept.compare_and_set("a", None, 1) and GrantStore().get("a") == 1
    if os.name != "nt":
        for file, mode in ((home / "state/ferrule/grants.json", 0o600), (home / "config/ferrule/grants.key", 0o400)):
            assert stat.S_IMODE(file.stat().st_mode) == mode
            assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert len((home / "config/ferrule/grants.key").read_text()) == 64


def test_a_key_in_the_environment_makes_no_key_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRULE_GRANTS_KEY", "k" * 32)
    assert GrantStore().compare_and_set("a", None, 1) and not (home / "config").exists()
    monkeypatch.setenv("FERRULE_GRANTS_KEY", "o" * 32)
    with pytest.raises(StoreError, match="sealed with another key"):
        GrantStore()


KEYS = {"another key": "00" * 32, "a short key": "00", "no hexadecimal": "zz" * 32}


@pytest.mark.parametrize("damage", [*KEYS, "no key", "an edit", "a link"])
def test_a_damaged_grant_file_is_an_error_and_not_begun_anew(damage: str, home: Path, ferrule: Any) -> None:
    asyncio.run(asks_about_a_note())
    file, key = home / "state/ferrule/grants.json", home / "config/ferrule/grants.key"
    if damage == "an edit":
        file.write_text(file.read_text().replace("note", "Note"))
    elif damage == "a link":
        key.rename(home / "moved")
        key.symlink_to(home / "moved")
    elif damage == "no key":
        key.unlink()
    else:
        key.write_text(KEYS[damage])
    before = file.read_bytes()
    done = ferrule("grants")
    assert done.code == 2 and "ferrule: " in done.text
    assert ("is no key" in done.text) is (damage in {"a short key", "no hexadecimal"})
    assert ferrule("call", "hello", "--tools", "tools.py").code == 2
    assert file.read_bytes() == before


def test_concurrent_first_grants_never_read_half_a_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_grants_and_key_lie_apart_and_out_of_reach(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("state", "config"):
        with pytest.raises(ReachableError, match="tools may reach it"):
            GrantStore([str(home / folder)])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "state"))
    with pytest.raises(StoreError, match="in the folder of the file that it seals"):
        GrantStore()


def test_grants_are_not_stored_where_tools_reach(home: Path, monkeypatch: pytest.MonkeyPatch, ferrule: Any) -> None:
    (home / "here/own.py").write_text(
        f"from ferrule import Runner\nfrom ferrule.guards import within\nfrom tools import hello\n"
        f"runner = Runner([hello], guards=[within({str(home)!r})])\n"
    )
    assert "answers are not remembered here" in runners.join_tools(["own.py"], remember="folder").approve.note  # type: ignore[union-attr]
    monkeypatch.chdir(home)
    assert ferrule("grants").text == NONE
    asked = runners.join_tools(["here/tools.py"], remember="folder").approve
    assert "answers are not remembered here" in asked.note  # type: ignore[union-attr]
    assert ferrule("call", "hello", "--tools", "here/tools.py").text.startswith("Denied: nobody is there to ask")


SHOP = """
from ferrule import tool

@tool
def shell(command: str) -> str:
    "Run a command."
    return "done"
"""


class AlwaysThis(Always):
    """Allows with the first offer, which is for these arguments."""

    chosen = 0


async def test_a_grant_holds_for_the_next_program_in_its_folder_or_session(home: Path) -> None:
    (home / "here/shop.py").write_text(SHOP, encoding="utf-8")
    (home / "here/deep").mkdir()
    for scope, session, command in (("folder", None, "ls"), ("session", "s1", "pwd")):
        runner = runners.join_tools(["shop.py"], remember=scope)  # type: ignore[arg-type]
        runner.approve.inner = AlwaysThis()  # type: ignore[union-attr]
        assert (await runner.run("shell", {"command": command}, session=session)).success
    call = [*PROGRAM, "call", "shell", "--tools", str(home / "here/shop.py")]
    codes = {
        (folder, *words): preloaded.run([*call, *words], timeout=BOUND, cwd=folder).returncode
        for folder in (".", "deep")
        for words in (("command=ls",), ("command=pwd",), ("command=pwd", "--session", "s1"))
    }
    assert {words for words, code in codes.items() if code == 0} == {
        (".", "command=ls"),
        (".", "command=pwd", "--session", "s1"),
    }


async def test_under_a_policy_no_path_reaches_the_grant_files(home: Path) -> None:
    @tool
    async def write(path: str) -> str:
        """Write somewhere."""
        return path

    (home / "here/policy.toml").write_text('allow = ["write"]\n')
    runner = Runner([write], guards=[rules("policy.toml")])
    assert (await runner.run("write", {"path": "other"})).success
    for file in ("state/ferrule/grants.json", "config/ferrule/grants.key", "config/ferrule"):
        assert (await runner.run("write", {"path": f"../{file}"})).status == "denied", file
