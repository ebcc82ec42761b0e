"""The settings of a project: what counts of them, once a person has trusted them and before."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.cli.program import main
from ferrule.policy import TrustedFiles
from ferrule.policy.settings import Settings, iter_settings_paths, parse_settings

SHOP = """
from pathlib import Path
from ferrule import tool

Path(__file__).with_name("loaded").touch()


@tool(read_only=True)
def stock(article: str) -> str:
    "Say how many there are."
    return "3"


@tool
def order(article: str) -> str:
    "Order more."
    return "ordered"
"""
STEPS = "steps = [[('order', {'article': 'tea'})], lambda messages: messages[-1]['content']]"
SETTINGS = 'model = "scripted:steps.py"\ntools = ["shop.py"]\npolicy = "rules.toml"\n'


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a folder in it, and settings that nobody has trusted."""
    for variable, folder in (("XDG_STATE_HOME", "state"), ("XDG_CONFIG_HOME", "config")):
        monkeypatch.setenv(variable, str(tmp_path / folder))
    project = tmp_path / "project"
    for folder in (".git", ".ferrule", "deep/er"):
        (project / folder).mkdir(parents=True)
    (project / "shop.py").write_text(SHOP, encoding="utf-8")
    (project / "steps.py").write_text(STEPS, encoding="utf-8")
    (project / "rules.toml").write_text('deny = ["order"]\n', encoding="utf-8")
    (project / ".ferrule/settings.toml").write_text(SETTINGS, encoding="utf-8")
    monkeypatch.chdir(project)
    return project


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code of `ferrule run`, and all that was said on both streams."""
    code = main(["run", "go", *words])
    streams = capsys.readouterr()
    return code, streams.out + streams.err


BY_HAND = ("--tools", "shop.py", "--model", "scripted:steps.py", "--yes", "order")


def test_settings_that_nobody_has_trusted_are_shown_and_run_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(capsys)
    assert code == 2 and "--model is missing: write --model anthropic:NAME" in said
    assert "ferrule policy trust" in said and 'would set: model = "scripted:steps.py"' in said
    assert not (project / "loaded").exists()
    code, said = run(capsys, *BY_HAND)  # nor does their policy hold
    assert code == 0 and "order" in said and "allowed by --yes" in said


@pytest.mark.parametrize("folder", [".", "deep/er"])
def test_trusted_settings_are_used_in_their_folder_and_below(
    folder: str, project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    TrustedFiles().trust(project / ".ferrule/settings.toml")
    monkeypatch.chdir(project / folder)
    code, said = run(capsys)
    assert code == 0 and "denied by rules.toml:1" in said and (project / "loaded").exists()


def test_options_win_over_settings_but_their_policy_holds_as_well(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    TrustedFiles().trust(project / ".ferrule/settings.toml")
    (project / "other.py").write_text("steps = ['Hello.']", encoding="utf-8")
    code, said = run(capsys, "--model", "scripted:other.py", "--tools", "ferrule.tools.files")
    assert code == 0 and "Hello." in said and not (project / "loaded").exists()
    code, said = run(capsys, *BY_HAND)
    assert "denied by rules.toml:1" in said


@pytest.mark.parametrize("what", ["changed", "gone", "broken"])
def test_of_settings_that_changed_since_they_were_trusted_their_policy_alone_holds(
    what: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project / ".ferrule/settings.toml"
    TrustedFiles().trust(file)
    if what == "gone":
        file.unlink()
    else:
        file.write_text('model = "scripted:evil.py"' if what == "changed" else "model =", encoding="utf-8")
    code, said = run(capsys)
    assert code == 2 and "--model is missing" in said and "is not used, except for its policy" in said
    code, said = run(capsys, *BY_HAND)
    assert "denied by rules.toml:1" in said


def test_a_nearer_file_that_nobody_has_trusted_hides_no_trusted_one(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    TrustedFiles().trust(project / ".ferrule/settings.toml")
    (project / "deep/pyproject.toml").write_text('[tool.ferrule]\nmodel = "scripted:evil.py"\n', encoding="utf-8")
    monkeypatch.chdir(project / "deep")
    code, said = run(capsys)
    assert code == 0 and "pyproject.toml is not used, because nobody trusts it" in said and "denied by rules" in said


def test_of_a_pyproject_the_table_alone_is_trusted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / ".ferrule/settings.toml").unlink()
    file = project / "pyproject.toml"
    table = f"[tool.ferrule]\n{SETTINGS}"
    file.write_text(f'[project]\nname = "shop"\n{table}', encoding="utf-8")
    TrustedFiles().trust(file)
    file.write_text(f'[project]\nname = "shop"\nversion = "2"\n{table}', encoding="utf-8")
    assert run(capsys)[0] == 0
    file.write_text(f"{table}base_url = 'http://evil.invalid'\n", encoding="utf-8")
    assert run(capsys)[0] == 2


def test_an_mcp_file_that_changes_ends_the_trust(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mcp")
    servers = project / "mcp.json"
    servers.write_text('{"mcpServers": {}}', encoding="utf-8")
    (project / ".ferrule/settings.toml").write_text(f'{SETTINGS}mcp = "mcp.json"\n', encoding="utf-8")
    TrustedFiles().trust(project / ".ferrule/settings.toml")
    touch = {"command": sys.executable, "args": ["-c", "open('started', 'w')"]}
    servers.write_text(json.dumps({"mcpServers": {"evil": touch}}), encoding="utf-8")
    code, said = run(capsys)
    assert code == 2 and "an MCP file that it names, has changed" in said and not (project / "started").exists()


def test_of_files_that_untrusted_settings_name_nothing_is_shown(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project.parent / "secret").write_text("hunter2", encoding="utf-8")
    (project / ".ferrule/settings.toml").write_text('mcp = "../secret"\npolicy = "../secret"', encoding="utf-8")
    assert "hunter2" not in run(capsys)[1] and "hunter2" not in run(capsys, *BY_HAND)[1]


@pytest.mark.parametrize(
    "text",
    ['modle = "x"', "model = 3", 'model = "a\\u001bb"', "model = [", "tools = [[]]", "x = 1\n" * 100_000, "\xff", None],
    ids=str,
)
@pytest.mark.parametrize("name", [".ferrule/settings.toml", "pyproject.toml"])
def test_what_a_repository_brings_stops_no_run(
    text: str | None, name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / ".ferrule/settings.toml").unlink()
    if text is None:
        os.mkfifo(project / name)
    else:
        head = "[tool.ferrule]\n" if name == "pyproject.toml" else ""
        (project / name).write_text(head + text, encoding="latin-1")
    code, said = run(capsys, *BY_HAND)
    assert code == 0 and f"{name} is not used: " in said


def test_outside_of_a_repository_the_working_directory_is_the_only_place(project: Path) -> None:
    inside = [os.path.relpath(place, project) for place in iter_settings_paths(project / "deep")]
    assert inside == ["deep/.ferrule/settings.toml", "deep/pyproject.toml", ".ferrule/settings.toml", "pyproject.toml"]
    assert len(list(iter_settings_paths(project.parent))) == 2


PRINTABLE = st.characters(codec="utf-8", exclude_categories=("C", "Z"), include_characters=" ")
TEXTS = st.text(PRINTABLE, min_size=1, max_size=20)
LISTS = st.lists(TEXTS, max_size=3).map(tuple)


@given(st.fixed_dictionaries({}, optional={"model": TEXTS, "base_url": TEXTS, "mcp": LISTS, "tools": LISTS}))
def test_settings_read_from_their_own_lines_are_the_same(given_settings: dict[str, Any]) -> None:
    settings = Settings("/project", **given_settings)
    assert parse_settings("\n".join(settings.lines), "/project/.ferrule/settings.toml") == settings
