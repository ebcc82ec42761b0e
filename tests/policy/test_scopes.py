"""A project grants itself nothing, and a file counts in the version that a person trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from ferrule import Tool, tool
from ferrule.errors import DefinitionError
from ferrule.guards import rules
from ferrule.policy import Policy, TrustedFiles
from ferrule.policy.lock import LOCK_FILE
from policy.policies import decided, move, policy_of, refund, shell, write_file


@pytest.fixture
def home(tmp_path: Path, monkeypatch: Any) -> Path:
    """A home directory, in which `work` is the working directory."""
    root = Path(os.path.realpath(tmp_path))
    for name, value in {"HOME": root, "XDG_STATE_HOME": root / "state", "XDG_CONFIG_HOME": root / "config"}.items():
        monkeypatch.setenv(name, str(value))
    (root / "work" / ".ferrule").mkdir(parents=True)
    (root / "config" / "ferrule").mkdir(parents=True)
    monkeypatch.chdir(root / "work")
    return root


def project(home: Path, text: str) -> Path:
    file = home / "work" / ".ferrule" / "policy.toml"
    file.write_text(text)
    return file


def trust_elsewhere(file: Path) -> None:
    """Trust the file in another process."""
    trust = f"from ferrule.policy import TrustedFiles; TrustedFiles().trust({str(file)!r})"
    subprocess.run([sys.executable, "-c", trust], check=True, timeout=60)


# -- trust -------------------------------------------------------------------------------------------------------------


def test_the_allows_of_a_project_need_trust(home: Path) -> None:
    file = project(home, 'allow = ["*"]\ndeny = ["write_file"]\nmode = "never_ask"')

    def kinds() -> list[str]:
        calls: list[tuple[Tool, dict[str, Any]]] = [(refund, {"amount": 1}), (write_file, {"path": "a"})]
        return [decided(rules(project=file), made, given).kind for made, given in calls]

    assert kinds() == ["deny", "deny"]
    [found] = rules(project=file).findings
    assert found.level == "warning" and found.line == 1 and f"ferrule policy trust {file}" in found.text
    assert TrustedFiles().trust(file) == rules(project=file).digests[str(file)]
    assert kinds() == ["allow", "deny"] and rules(project=file).findings == ()
    file.write_text('allow = ["*"]\n')
    assert kinds() == ["deny", "deny"]  # by the mode and the deny of the trusted version


@pytest.mark.parametrize("links", [".ferrule/policy.toml", ".ferrule"])
def test_a_link_does_not_inherit_the_trust_of_its_target(links: str, home: Path) -> None:
    other = project(home, 'allow = ["*"]')
    TrustedFiles().trust(other)
    cloned = home / "cloned" / links
    cloned.parent.mkdir(parents=True)
    cloned.symlink_to(home / "work" / links)
    file = home / "cloned" / ".ferrule" / "policy.toml"
    assert decided(rules(project=other), refund, {"amount": 1}).kind == "allow"
    assert decided(rules(project=file), refund, {"amount": 1}).kind == "ask"
    TrustedFiles().trust(file)
    assert decided(rules(project=file), refund, {"amount": 1}).kind == "allow"
    assert TrustedFiles().forget(file) and decided(rules(project=other), refund, {"amount": 1}).kind == "allow"


def test_concurrent_trusting_and_forgetting_loses_nothing(home: Path) -> None:
    files = [home / f"p{at}.toml" for at in range(16)]
    for file in files:
        file.write_text('allow = ["*"]')
    for file in files[:8]:
        TrustedFiles().trust(file)
    with ThreadPoolExecutor(len(files)) as threads:
        changes = [threads.submit(TrustedFiles().forget, file) for file in files[:8]]
        changes += [threads.submit(TrustedFiles().trust, file) for file in files[8:]]
        for change in changes:
            change.result()
    assert set(TrustedFiles().versions()) == {str(file) for file in files[8:]}


def test_the_list_of_trusted_files_is_private(home: Path) -> None:
    file, trusted = project(home, 'allow = ["*"]'), TrustedFiles()
    digest = trusted.trust(file)
    assert trusted.path == str(home / "state" / "ferrule" / "trusted.json")
    assert os.stat(trusted.path).st_mode & 0o777 == 0o600
    assert os.stat(Path(trusted.path).parent).st_mode & 0o777 == 0o700
    assert trusted.versions() == {str(file): (digest, 'allow = ["*"]')}
    assert trusted.forget(file) is True and trusted.forget(file) is False and trusted.versions() == {}
    with pytest.raises(DefinitionError, match="has changed since you read it"):
        trusted.trust(file, "0" * 64)


@pytest.mark.parametrize(("name", "mode"), [("trusted.json", 0o620), ("trusted.json", 0o602), ("", 0o770), ("", 0o777)])
def test_a_list_that_others_may_write_trusts_nothing(name: str, mode: int, home: Path) -> None:
    file = project(home, 'allow = ["*"]')
    TrustedFiles().trust(file)
    os.chmod(home / "state" / "ferrule" / name, mode)
    policy = rules(project=file)
    assert decided(policy, refund, {"amount": 1}).kind == "ask"
    assert "chmod" in policy.findings[0].text


@pytest.mark.parametrize("text", ["[", "[]", '{"a": 1}', "[" * 100_000])
def test_an_unreadable_list_trusts_nothing(text: str, home: Path) -> None:
    file = project(home, 'allow = ["*"]')
    TrustedFiles().trust(file)
    Path(TrustedFiles().path).write_text(text)
    policy = rules(project=file)
    assert decided(policy, refund, {"amount": 1}).kind == "ask" and "cannot be read" in policy.findings[0].text


# -- a file counts in the version that was trusted ---------------------------------------------------------------------


STEPS = st.lists(st.sampled_from(["write a", "write b", "write c", "trust", "forget", "reload"]), max_size=12)


@hypothesis.given(STEPS, st.booleans())
def test_rules_are_those_of_the_start_or_of_a_trusted_version(steps: list[str], trusts_first: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(os.path.realpath(name))
        file, trusted = folder / "policy.toml", TrustedFiles(folder / "state" / "trusted.json")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
            on_disk, of_trust = "a", "a" if trusts_first else None
            file.write_text('deny = ["a"]')
            if trusts_first:
                trusted.trust(file)
            policy, loaded, counted = rules(file, trusted=trusted), "a", {"deny a"}
            for step in steps:
                if step == "trust":
                    trusted.trust(file)
                    of_trust = on_disk
                elif step == "forget":
                    trusted.forget(file)
                    of_trust = None
                elif step == "reload":
                    policy.reload()
                    if on_disk in {loaded, of_trust}:
                        loaded = on_disk
                        counted = {f"deny {on_disk}", f"deny {of_trust or on_disk}"}
                else:
                    on_disk = step[-1]
                    file.write_text(f'deny = ["{on_disk}"]')
                assert {rule.text for rule in policy.rules} == counted


@pytest.mark.parametrize("scope", ["managed", "session"])
def test_a_file_changed_since_it_was_trusted_only_restricts(scope: str, home: Path, caplog: Any) -> None:
    file = project(home, 'allow = ["shell"]\ndeny = ["refund"]')
    TrustedFiles().trust(file)
    (home / "wide.toml").write_text('allow = ["*"]')
    file.write_text('allow = ["*"]\ndeny = ["move"]')
    alone = rules(**{scope: file})
    assert decided(alone, shell, {"command": "ls"}).kind == "ask"
    assert decided(alone, refund, {"amount": 1}).kind == decided(alone, move, {"files": []}).kind == "deny"
    if scope != "managed":
        beside = rules(home / "wide.toml", **{scope: file})
        assert decided(beside, refund, {"amount": 1}).rule == "policy.toml (as trusted):2"
    [found] = [one for one in alone.findings if "since it was trusted" in one.text]
    assert f"ferrule policy trust {file}" in found.text and found.text in caplog.text
    TrustedFiles().trust(file)
    assert decided(rules(**{scope: file}), shell, {"command": "ls"}).kind == "allow"


def test_a_forged_list_trusts_nothing(home: Path) -> None:
    """The list is sealed: a command that writes a file (`sort -oFILE`) cannot make a seal."""
    file = project(home, 'deny = ["refund"]')
    TrustedFiles().trust(file)
    policy = rules(file)
    listed = Path(TrustedFiles().path)
    earlier = listed.read_text()
    TrustedFiles().trust(file)
    file.write_text('allow = ["*"]')
    digest = sha256(file.read_bytes()).hexdigest()
    for forged in (
        json.dumps({str(file): digest}),
        json.dumps({"sealed": {"version": 1, "writes": 9, "values": {str(file): {"digest": digest, "text": ""}}}}),
        earlier.replace(policy.digests[str(file)], digest),
        earlier,
        "",
    ):
        listed.write_text(forged)
        assert any(one.level == "error" for one in policy.reload())
        assert decided(policy, refund, {"amount": 1}).kind == "deny"
        if forged != earlier:  # nothing is known then, so nothing is allowed
            assert decided(rules(file), shell, {"command": "ls"}).kind == "ask"


@pytest.mark.parametrize("was_trusted", [True, False])
def test_a_program_keeps_the_key_it_started_with(was_trusted: bool, home: Path) -> None:
    """Whoever writes policy, list and key, each as a whole, changes nothing in a program that runs."""
    file = project(home, 'deny = ["refund"]')
    if was_trusted:
        TrustedFiles().trust(file)
    policy = rules(file)
    key, listed = home / "config" / "ferrule" / "trusted.key", home / "state" / "ferrule" / "trusted.json"
    key.unlink()
    file.write_text('allow = ["*"]')
    listed.unlink(missing_ok=True)
    trust_elsewhere(file)
    assert key.exists() and listed.exists()
    [found] = policy.reload()
    assert found.level == "error" and decided(policy, refund, {"amount": 1}).kind == "deny"


def test_no_key_is_made_in_the_folder_of_another_account(home: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(home).st_uid + 1)
    rules(project(home, 'deny = ["refund"]'))
    assert not (home / "config" / "ferrule" / "trusted.key").exists()


def test_a_scope_that_needs_trust_allows_nothing_before(home: Path) -> None:
    (home / "p.toml").write_text('allow = ["refund"]')
    policy = Policy([("user", home / "p.toml")], needs_trust=["user"])
    assert decided(policy, refund, {"amount": 1}).kind == "ask"


# -- path parameters of tools, and no words of shell lines -------------------------------------------------------------

NAMES = [
    *(".ferrule/policy.toml", "./x/../.ferrule/policy.toml", ".ferrule", "~/work/.ferrule/policy.toml", "link.toml"),
    *("folder/policy.toml", "hard.toml", "{home}/config/ferrule/policy.toml", "../config"),
    *("{home}/state/ferrule/trusted.json", "../state/ferrule/grants.json", LOCK_FILE),
]


@pytest.fixture
def guarded(home: Path) -> Any:
    """A policy that allows everything, with links to its file."""
    file = project(home, 'allow = ["*"]')
    (home / "work" / "link.toml").symlink_to(file)
    (home / "work" / "folder").symlink_to(".ferrule")
    os.link(file, home / "work" / "hard.toml")
    return rules(session=file, shadow=home / "work" / "hard.toml")


@pytest.mark.parametrize("name", NAMES)
def test_no_changing_tool_gets_a_policy_path(name: str, guarded: Any, home: Path) -> None:
    written = name.format(home=home)

    @tool
    async def edit(changes: dict[str, list[str]], old_files: dict[Path, str] | None = None) -> str:
        return "edited"

    for made, given in (
        (write_file, {"path": written}),
        (edit, {"changes": {"paths": ["a", written]}}),
        (edit, {"changes": {}, "old_files": {written: "text"}}),
    ):
        decision = decided(guarded, made, given)
        assert decision.kind == "deny" and "no tool may change it" in decision.reason
    reads = write_file.replace(read_only=True)
    assert decided(guarded, reads, {"path": written}).kind == "allow"


@pytest.mark.parametrize(
    ("made", "given"),
    [
        (write_file, {"path": ".", "content": ".ferrule/policy.toml"}),
        (write_file, {"path": ".."}),
        (shell, {"command": "ls ~"}),
        (shell, {"command": f"git add {LOCK_FILE}"}),
        (shell, {"command": "cat .ferrule/policy.toml"}),
        (refund, {"amount": 1, "note": "\0"}),
    ],
)
def test_other_paths_and_texts_are_not_refused(made: Any, given: dict[str, Any], guarded: Any) -> None:
    assert decided(guarded, made, given).kind == "allow"


def test_the_policy_of_another_working_directory_is_protected(guarded: Any, home: Path) -> None:
    (home / "other" / ".ferrule").mkdir(parents=True)
    (home / "other" / "folder").symlink_to(".ferrule")
    for name in (".ferrule/policy.toml", "folder/policy.toml"):  # neither is there
        assert decided(guarded, write_file, {"path": name}, working_directory=home / "other").kind == "deny"


def test_a_linked_working_directory_may_be_named(home: Path) -> None:
    (home / "link").symlink_to("work")
    (home / "work" / "p.toml").write_text('allow = ["*"]')
    policy = rules(home / "link" / "p.toml")
    for name in (".", str(home / "work"), str(home / "link"), "src/x"):
        assert decided(policy, write_file, {"path": name}).kind == "allow", name
    assert decided(policy, write_file, {"path": str(home / "link" / "p.toml")}).kind == "deny"


# -- in shadow ---------------------------------------------------------------------------------------------------------


def test_a_shadow_policy_never_counts_and_reports_differences(home: Path, caplog: Any) -> None:
    (home / "next.toml").write_text('allow = ["refund(amount<=10)"]\ndeny = ["refund(amount>100)"]')
    policy = policy_of(home, 'allow = ["refund"]', shadow=home / "next.toml")
    with caplog.at_level("WARNING", "ferrule"):
        decisions = [decided(policy, refund, {"amount": amount}) for amount in (5, 50, 500, 600)]
    assert {one.kind for one in decisions} == {"allow"}
    denied, asked = policy.differences()
    assert (denied.tool, denied.now, denied.shadow, denied.count) == ("refund", "allow", "deny", 2)
    assert (denied.now_rule, denied.shadow_rule, denied.example["amount"]) == ("p0.toml:1", "next.toml:2", 500)
    assert (asked.now, asked.shadow, asked.shadow_rule, asked.count) == ("allow", "ask", None, 1)
    assert len(caplog.records) == 2


def test_a_broken_shadow_policy_breaks_nothing(home: Path) -> None:
    (home / "next.toml").write_text("allow = [")
    policy = policy_of(home, 'allow = ["refund"]', shadow=home / "next.toml")
    assert [(one.level, one.source) for one in policy.findings] == [("warning", "next.toml")]
    assert decided(policy, refund, {"amount": 1}).kind == "allow" and policy.differences() == ()


def test_shadow_differences_are_bounded_and_hide_private_values(home: Path) -> None:
    @tool(private=["tenant"])
    async def pay(amount: int, tenant: str) -> str:
        return "paid"

    (home / "next.toml").write_text('deny = ["*"]')
    policy = policy_of(home, 'allow = ["*"]', shadow=home / "next.toml")
    for at in range(101):
        decided(policy, pay.replace(name=f"pay{at}").bind(tenant="acme"), {"amount": 1})
    found = policy.differences()
    assert len(found) == 100 and "acme" not in repr(found)
