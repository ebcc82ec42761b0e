"""Whose rules count: a project grants itself nothing, and no tool writes what decides about tools."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ferrule import Tool, tool
from ferrule.errors import DefinitionError
from ferrule.guards import rules
from ferrule.lock import LOCK_FILE
from ferrule.policy import Trusted, found_files, load, standard_files
from policy.policies import decided, policy_of, refund, shell, write_file


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


# -- trust -------------------------------------------------------------------------------------------------------------


def test_the_allows_of_a_project_file_count_where_somebody_has_trusted_it_as_it_is(home: Path) -> None:
    file = project(home, 'allow = ["*"]\ndeny = ["write_file"]\nmode = "never_ask"')
    kinds = lambda: [decided(rules(project=file), made, given).kind for made, given in CALLS]  # noqa: E731
    assert kinds() == ["deny", "deny"]
    [found] = rules(project=file).findings
    assert found.level == "warning" and found.line == 1 and f"ferrule policy trust {file}" in found.text
    assert Trusted().trust(file) == rules(project=file).digests[str(file)]
    assert kinds() == ["allow", "deny"] and rules(project=file).findings == ()
    file.write_text(file.read_text() + "\n")
    assert kinds() == ["deny", "deny"]


@pytest.mark.parametrize("links", [".ferrule/policy.toml", ".ferrule"])
def test_a_project_whose_file_is_a_link_has_not_the_trust_of_where_it_leads(links: str, home: Path) -> None:
    other = project(home, 'allow = ["*"]')
    Trusted().trust(other)
    cloned = home / "cloned" / links
    cloned.parent.mkdir(parents=True)
    cloned.symlink_to(home / "work" / links)
    file = home / "cloned" / ".ferrule" / "policy.toml"
    assert decided(rules(project=other), refund, {"amount": 1}).kind == "allow"
    assert decided(rules(project=file), refund, {"amount": 1}).kind == "ask"
    Trusted().trust(file)
    assert decided(rules(project=file), refund, {"amount": 1}).kind == "allow"
    assert Trusted().forget(file) and decided(rules(project=other), refund, {"amount": 1}).kind == "allow"


def test_what_several_trust_and_forget_at_once_is_all_noted(home: Path) -> None:
    files = [home / f"p{at}.toml" for at in range(16)]
    for file in files:
        file.write_text('allow = ["*"]')
    for file in files[:8]:
        Trusted().trust(file)
    changes = [*((Trusted().forget, file) for file in files[:8]), *((Trusted().trust, file) for file in files[8:])]
    with ThreadPoolExecutor(len(changes)) as at_once:
        for done in [at_once.submit(change, file) for change, file in changes]:
            done.result()
    assert set(Trusted().listed()) == {str(file) for file in files[8:]}


CALLS: list[tuple[Tool, dict[str, Any]]] = [(refund, {"amount": 1}), (write_file, {"path": "a"})]


@pytest.mark.parametrize("scope", ["managed", "user", "session"])
def test_the_allows_of_the_other_scopes_count(scope: str, home: Path) -> None:
    (home / "p.toml").write_text('allow = ["refund"]')
    assert decided(rules(**{scope: home / "p.toml"}), refund, {"amount": 1}).kind == "allow"


def test_what_is_trusted_is_that_persons_alone_and_is_what_was_shown(home: Path) -> None:
    file, trusted = project(home, 'allow = ["*"]'), Trusted()
    digest = trusted.trust(file)
    assert trusted.path == str(home / "state" / "ferrule" / "trusted.json")
    assert os.stat(trusted.path).st_mode & 0o777 == 0o600
    assert os.stat(Path(trusted.path).parent).st_mode & 0o777 == 0o700
    assert trusted.listed() == {str(file): digest} and trusted.has(str(file), digest)
    assert trusted.forget(file) is True and trusted.forget(file) is False and trusted.listed() == {}
    with pytest.raises(DefinitionError, match="has changed since it was shown"):
        trusted.trust(file, "0" * 64)


def test_a_file_is_trusted_and_forgotten_beside_others(home: Path) -> None:
    files = [home / "work" / name for name in ("a.toml", "b.toml", "c.toml")]
    for file in files:
        file.write_text(f'allow = ["{file.stem}"]')
        Trusted().trust(file)
    assert Trusted().forget(files[1]) and list(Trusted().listed()) == [str(files[0]), str(files[2])]


@pytest.mark.parametrize(("name", "mode"), [("trusted.json", 0o620), ("trusted.json", 0o602), ("", 0o770), ("", 0o777)])
def test_trust_that_others_may_write_is_no_trust(name: str, mode: int, home: Path) -> None:
    file = project(home, 'allow = ["*"]')
    Trusted().trust(file)
    os.chmod(home / "state" / "ferrule" / name, mode)
    policy = rules(project=file)
    assert decided(policy, refund, {"amount": 1}).kind == "ask"
    assert "chmod" in policy.findings[0].text


@pytest.mark.parametrize("text", ["[", "[]", '{"a": 1}', "[" * 100_000])
def test_trust_that_cannot_be_read_is_no_trust(text: str, home: Path) -> None:
    file = project(home, 'allow = ["*"]')
    Trusted().trust(file)
    Path(Trusted().path).write_text(text)
    policy = rules(project=file)
    assert decided(policy, refund, {"amount": 1}).kind == "ask" and "cannot be known" in policy.findings[0].text


def test_the_files_that_are_found_are_those_that_are_there(home: Path) -> None:
    file = project(home, "")
    assert [scope for scope, _ in standard_files()] == ["managed", "user", "project"]
    assert [found for found in found_files() if found[0] != "managed"] == [("project", str(file))]
    (home / "config" / "ferrule" / "policy.toml").write_text("")
    assert [scope for scope, _ in found_files(home / "work") if scope != "managed"] == ["user", "project"]


def test_a_folder_of_the_environment_that_is_not_absolute_does_not_count(home: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    assert dict(standard_files())["user"] == str(home / ".config" / "ferrule" / "policy.toml")


# -- no tool writes a policy -------------------------------------------------------------------------------------------

NAMES = [
    ".ferrule/policy.toml",
    "./x/../.ferrule/policy.toml",
    ".ferrule",
    "~/work/.ferrule/policy.toml",
    "link.toml",
    "folder/policy.toml",
    "hard.toml",
    "file://{home}/work/.ferrule/policy.toml",
    "{home}/config/ferrule/policy.toml",
    "../config",
    "{home}/state/ferrule/trusted.json",
    "../state/ferrule/grants.json",
    LOCK_FILE,
    "file:.ferrule/policy.toml",
    "file://localhost{home}/work/%2eferrule/policy.toml",
]


@pytest.fixture
def guarded(home: Path) -> Any:
    """A policy that allows everything, with links to its file."""
    file = project(home, 'allow = ["*"]')
    (home / "work" / "link.toml").symlink_to(file)
    (home / "work" / "folder").symlink_to(".ferrule")
    os.link(file, home / "work" / "hard.toml")
    return rules(session=file)


@pytest.mark.parametrize("name", NAMES)
def test_no_call_that_changes_things_names_a_policy_file_or_what_is_trusted(
    name: str, guarded: Any, home: Path
) -> None:
    written = name.format(home=home)

    @tool
    async def edit(change: dict[str, list[str]]) -> str:
        return "edited"

    for made, given in ((write_file, {"path": written}), (edit, {"change": {"to": ["a", written]}})):
        decision = decided(guarded, made, given)
        assert decision.kind == "deny" and "no tool may change it" in decision.reason
    assert decided(guarded, edit, {"change": {written: []}}).kind == "deny"
    reads = write_file.replace(read_only=True)
    assert decided(guarded, reads, {"path": written}).kind == "allow"


@pytest.mark.parametrize(
    "line",
    [
        "echo > .ferrule/policy.toml",
        "rm -r .ferrule",
        "cp a.toml hard.toml",
        "dd of=.ferrule/policy.toml",
        'cat a | tee .ferr"ule"/policy.toml',
        "python -c \"open('.ferrule/policy.toml', 'w')\"",
        "cd .. && mv a work/.ferrule/policy.toml",
        "env A=1 sh -c 'rm .ferrule/policy.toml'",
        "if true; then rm .ferrule/policy.toml; fi",
        f"cp a {LOCK_FILE}",
        "case x in x) rm .ferrule/policy.toml;; esac",
        "cd ..; cd config; tee ferrule/policy.toml",
        "cd /; cd {home}; cd work; tee .ferrule/policy.toml",
        "tee $XDG_CONFIG_HOME/ferrule/policy.toml",
    ],
)
def test_no_shell_line_names_one(line: str, guarded: Any, home: Path) -> None:
    decision = decided(guarded, shell, {"command": line.replace("{home}", str(home))})
    assert decision.kind == "deny" and "no tool may change it" in decision.reason


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "tee policy.toml", "cwd": "folder"},
        {"command": "tee ferrule/policy.toml", "cwd": "../config"},
        {"command": "tee work/.ferrule/policy.toml", "cwd": "{home}"},
        {"path": "state/ferrule/grants.json", "content": "{}", "root": ".."},
        {"path": "home/work/.ferrule/policy.toml", "up": ["../..", ".."]},
    ],
    ids=str,
)
def test_no_call_names_one_from_a_folder_that_it_names_too(arguments: dict[str, Any], guarded: Any, home: Path) -> None:
    @tool
    async def act(**given: Any) -> str:
        return "done"

    given = {
        name: value.replace("{home}", str(home)).replace("home/", f"{home.name}/") if isinstance(value, str) else value
        for name, value in arguments.items()
    }
    decision = decided(guarded, act, given)
    assert decision.kind == "deny" and "no tool may change it" in decision.reason


def test_no_line_names_one_behind_more_folders_than_are_looked_into(guarded: Any, home: Path) -> None:
    for number in range(150):
        (home / "work" / f"d{number}").mkdir()
    folders = "; ".join(f"cd d{number}" for number in range(150))
    line = f"tee work/.ferrule/policy.toml; cd ..; {folders}"
    assert decided(guarded, shell, {"command": line}).kind == "deny"
    assert decided(guarded, shell, {"command": f"tee work/policy.toml; cd ..; {folders}"}).kind == "allow"


@pytest.mark.parametrize("words", [["rm", "-r", ".ferrule"], ["sh", "-c", "rm .ferrule/policy.toml"]])
def test_no_list_of_words_names_one(words: list[str], guarded: Any) -> None:
    @tool
    async def spawn(argv: list[str]) -> str:
        return "run"

    assert decided(guarded, spawn, {"argv": words}).kind == "deny"


@pytest.mark.parametrize(
    ("made", "given"),
    [
        (write_file, {"path": "policy.toml"}),
        (write_file, {"path": ".", "content": "about .ferrule/policy.toml\nand more"}),
        (write_file, {"path": "ferrule/policy.toml"}),
        (write_file, {"path": ".."}),
        (shell, {"command": "ls -a . ..; cat policy.toml"}),
        (refund, {"amount": 1, "note": "\0"}),
    ],
)
def test_what_names_none_is_not_refused(made: Any, given: dict[str, Any], guarded: Any) -> None:
    assert decided(guarded, made, given).kind == "allow"


def test_the_project_file_of_another_working_directory_is_not_written_either(guarded: Any, home: Path) -> None:
    (home / "other" / ".ferrule").mkdir(parents=True)
    (home / "other" / "folder").symlink_to(".ferrule")
    for name in (".ferrule/policy.toml", "folder/policy.toml"):  # neither is there
        assert decided(guarded, write_file, {"path": name}, working_directory=home / "other").kind == "deny"


@pytest.mark.parametrize("name", ["conf", "conf/policy.toml", "out", "out/real.toml", "step", "next.toml"])
def test_no_call_names_what_leads_to_a_policy_file_nor_a_policy_in_shadow(name: str, home: Path) -> None:
    work = home / "work"
    for folder in ("conf", "step", "out"):
        (work / folder).mkdir()
    (work / "out" / "real.toml").write_text('allow = ["*"]')
    (work / "next.toml").write_text('allow = ["*"]')
    (work / "conf" / "policy.toml").symlink_to("../step/link.toml")
    (work / "step" / "link.toml").symlink_to("../out/real.toml")
    policy = rules("conf/policy.toml", shadow="next.toml")
    assert decided(policy, write_file, {"path": name}).kind == "deny"
    assert decided(policy, shell, {"command": f"mv {name} away"}).kind == "deny"
    assert decided(policy, write_file, {"path": "elsewhere"}).kind == "allow"


def test_a_working_directory_that_is_reached_by_a_link_may_be_named(home: Path) -> None:
    (home / "link").symlink_to("work")
    (home / "work" / "p.toml").write_text('allow = ["*"]')
    policy = rules(home / "link" / "p.toml")
    for name in (".", str(home / "work"), str(home / "link"), "src/x"):
        assert decided(policy, write_file, {"path": name}).kind == "allow", name
    assert decided(policy, write_file, {"path": str(home / "link" / "p.toml")}).kind == "deny"


# -- in shadow ---------------------------------------------------------------------------------------------------------


def test_a_policy_in_shadow_never_counts_and_says_where_it_differs(home: Path, caplog: Any) -> None:
    (home / "next.toml").write_text('allow = ["refund(amount<=10)"]\ndeny = ["refund(amount>100)"]')
    policy = policy_of(home, 'allow = ["refund"]', shadow=home / "next.toml")
    with caplog.at_level("WARNING", "ferrule"):
        decisions = [decided(policy, refund, {"amount": amount}) for amount in (5, 50, 500, 600)]
    assert {one.kind for one in decisions} == {"allow"}
    found = [(one.tool, one.now, one.shadow, one.now_rule, one.shadow_rule, one.count) for one in policy.differences()]
    assert found == [
        ("refund", "allow", "deny", "p0.toml:1", "next.toml:2", 2),
        ("refund", "allow", "ask", "p0.toml:1", None, 1),
    ]
    assert policy.differences()[0].example["amount"] == 500
    assert len(caplog.records) == 2


def test_what_is_broken_in_shadow_breaks_nothing(home: Path) -> None:
    (home / "next.toml").write_text("allow = [")
    policy = policy_of(home, 'allow = ["refund"]', shadow=home / "next.toml")
    assert [(one.level, one.source) for one in policy.findings] == [("warning", "next.toml")]
    assert decided(policy, refund, {"amount": 1}).kind == "allow" and policy.differences() == ()


def test_in_shadow_private_values_are_stars_and_kinds_of_differences_have_a_bound(home: Path) -> None:
    @tool(private=["tenant"])
    async def pay(amount: int, tenant: str) -> str:
        return "paid"

    (home / "next.toml").write_text('deny = ["*"]')
    policy = policy_of(home, 'allow = ["*"]', shadow=home / "next.toml")
    for at in range(101):
        decided(policy, pay.replace(name=f"pay{at}").bind(tenant="acme"), {"amount": 1})
    found = policy.differences()
    assert len(found) == 100 and "acme" not in repr(found)


def test_a_policy_that_was_loaded_for_its_findings_is_the_same_guard(home: Path) -> None:
    (home / "p.toml").write_text('deny = ["refund"]')
    policy = load([("user", home / "p.toml")])
    assert policy.__name__ == "rules(p.toml)" and policy.modes == frozenset()
    assert decided(policy, refund, {"amount": 1}).rule == "p.toml:1"
