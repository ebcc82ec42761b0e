"""The settings of a project count only once a person has trusted them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.policy import TrustedFiles
from ferrule.policy.settings import Settings, iter_settings_paths, parse_settings

SHOP = """
from pathlib import Path
from ferrule import tool

Path(__file__).with_name("loaded").touch()

@tool
def order(article: str) -> str:
    "Order more."
    return "ordered"
"""
STEPS = "steps = [[('order', {'article': 'tea'})], lambda messages: messages[-1]['content']]"
SETTINGS = 'model = "scripted:steps.py"\ntools = ["shop.py"]\npolicy = "rules.toml"\n'
BY_HAND = ("run", "go", "--tools", "shop.py", "--model", "scripted:steps.py", "--yes", "order")
PLACE = ".ferrule/settings.toml"


@pytest.fixture(autouse=True)
def project(folder: Path) -> Path:
    """A repository with a folder in it, and settings that nobody has trusted."""
    for inner in (".git", ".ferrule", "deep/er"):
        (folder / inner).mkdir(parents=True)
    files = {"shop.py": SHOP, "steps.py": STEPS, "rules.toml": 'deny = ["order"]\n', PLACE: SETTINGS}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_untrusted_settings_are_shown_and_run_nothing(project: Path, ferrule: Any) -> None:
    done = ferrule("run", "go")
    assert done.code == 2 and "--model is missing: write --model anthropic:NAME" in done.text
    assert "ferrule policy trust" in done.text and 'would set: model = "scripted:steps.py"' in done.text
    assert not (project / "loaded").exists()
    done = ferrule(*BY_HAND)  # nor does their policy hold
    assert done.code == 0 and "allowed by --yes" in done.text


@pytest.mark.parametrize("place", [".", "deep/er"])
def test_trusted_settings_hold_in_their_folder_and_below(
    place: str, project: Path, ferrule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    TrustedFiles().trust(PLACE)
    (project / "deep/pyproject.toml").write_text('[tool.ferrule]\nmodel = "scripted:evil.py"\n', encoding="utf-8")
    monkeypatch.chdir(project / place)
    done = ferrule("run", "go")
    assert done.code == 0 and "denied by rules.toml:1" in done.text and (project / "loaded").exists()
    untrusted = "pyproject.toml is not used, because nobody trusts it"  # nearer, and hides no trusted file
    assert (untrusted in done.text) is (place != ".")


def test_options_win_over_settings_but_not_over_their_policy(project: Path, ferrule: Any) -> None:
    TrustedFiles().trust(PLACE)
    (project / "other.py").write_text("steps = ['Hello.']", encoding="utf-8")
    done = ferrule("run", "go", "--model", "scripted:other.py", "--tools", "ferrule.tools.files")
    assert done.code == 0 and "Hello." in done.text and not (project / "loaded").exists()
    assert "denied by rules.toml:1" in ferrule(*BY_HAND).text


@pytest.mark.parametrize("text", ['model = "scripted:evil.py"', "model =", None])
def test_only_the_policy_of_changed_settings_holds(text: str | None, ferrule: Any) -> None:
    TrustedFiles().trust(PLACE)
    if text is None:
        Path(PLACE).unlink()
    else:
        Path(PLACE).write_text(text, encoding="utf-8")
    done = ferrule("run", "go")
    assert done.code == 2 and "--model is missing" in done.text and "is not used, except for its policy" in done.text
    assert "denied by rules.toml:1" in ferrule(*BY_HAND).text


def test_only_the_table_of_a_pyproject_is_trusted(project: Path, ferrule: Any) -> None:
    Path(PLACE).unlink()
    file, table = project / "pyproject.toml", f"[tool.ferrule]\n{SETTINGS}"
    file.write_text(f'[project]\nname = "shop"\n{table}', encoding="utf-8")
    TrustedFiles().trust(file)
    file.write_text(f'[project]\nname = "shop"\nversion = "2"\n{table}', encoding="utf-8")
    assert ferrule("run", "go").code == 0
    file.write_text(f"{table}base_url = 'http://evil.invalid'\n", encoding="utf-8")
    assert ferrule("run", "go").code == 2


def test_a_changed_mcp_file_ends_the_trust(project: Path, ferrule: Any) -> None:
    pytest.importorskip("mcp")
    (project / "mcp.json").write_text('{"mcpServers": {}}', encoding="utf-8")
    Path(PLACE).write_text(f'{SETTINGS}mcp = "mcp.json"\n', encoding="utf-8")
    TrustedFiles().trust(PLACE)
    touch = {"command": sys.executable, "args": ["-c", "open('started', 'w')"]}
    (project / "mcp.json").write_text(json.dumps({"mcpServers": {"evil": touch}}), encoding="utf-8")
    done = ferrule("run", "go")
    assert done.code == 2 and "an MCP file that it names, has changed" in done.text
    assert not (project / "started").exists()


def test_files_that_untrusted_settings_name_are_not_shown(project: Path, ferrule: Any) -> None:
    (project.parent / "secret").write_text("hunter2", encoding="utf-8")
    Path(PLACE).write_text('mcp = "../secret"\npolicy = "../secret"', encoding="utf-8")
    assert "hunter2" not in ferrule("run", "go").text + ferrule(*BY_HAND).text


@pytest.mark.parametrize(
    "text", ['modle = "x"', "model = 3", 'model = "a\\u001bb"', "model = [", "x = 1\n" * 100_000, "\xff", None], ids=str
)
@pytest.mark.parametrize("name", [PLACE, "pyproject.toml"])
def test_broken_settings_of_a_repository_stop_no_run(text: str | None, name: str, project: Path, ferrule: Any) -> None:
    Path(PLACE).unlink()
    if text is None:
        os.mkfifo(project / name)
    else:
        head = "[tool.ferrule]\n" if name == "pyproject.toml" else ""
        (project / name).write_text(head + text, encoding="latin-1")
    done = ferrule(*BY_HAND)
    assert done.code == 0 and f"{name} is not used: " in done.text


def test_outside_a_repository_only_the_working_directory_counts(project: Path) -> None:
    inside = [os.path.relpath(place, project) for place in iter_settings_paths(project / "deep")]
    assert inside == ["deep/.ferrule/settings.toml", "deep/pyproject.toml", PLACE, "pyproject.toml"]
    assert len(list(iter_settings_paths(project.parent))) == 2


PRINTABLE = st.characters(codec="utf-8", exclude_categories=("C", "Z"), include_characters=" ")
TEXTS = st.text(PRINTABLE, min_size=1, max_size=20)
LISTS = st.lists(TEXTS, max_size=3).map(tuple)


@given(st.fixed_dictionaries({}, optional={"model": TEXTS, "base_url": TEXTS, "mcp": LISTS, "tools": LISTS}))
def test_settings_read_from_their_own_lines_are_equal(given_settings: dict[str, Any]) -> None:
    settings = Settings("/project", **given_settings)
    assert parse_settings("\n".join(settings.lines), "/project/.ferrule/settings.toml") == settings
