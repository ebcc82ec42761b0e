"""`ferrule policy trust` at a real terminal: what a person is shown, and who counts as one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ferrule.cli.program import main
from ferrule.policy import TrustedFiles

pytest.importorskip("pty", reason="there are no pseudo-terminals here")

from terminal import Terminal


@pytest.fixture
def here(folder: Path) -> Path:
    (folder / ".ferrule").mkdir()
    return folder


def trust(here: Path, *words: str, answer: str = "{number}") -> tuple[int, str]:
    """The exit code and all that was said, of a person who types an answer."""
    with Terminal("policy", "trust", *words, cwd=here) as terminal:
        terminal.until(", type ")
        terminal.until(": ")
        number = re.findall(r", type (\d{6}):", terminal.said)[-1]
        terminal.type(answer.format(number=number) + "\n")
        return terminal.end(), terminal.said


@pytest.mark.large
def test_a_person_sees_the_file_and_later_its_difference(here: Path) -> None:
    file = here / ".ferrule" / "policy.toml"
    file.write_text('allow = ["refund"]\ndeny = ["shell"]\n')
    code, said = trust(here)
    assert code == 0 and 'allow = ["refund"]' in said and 'deny = ["shell"]' in said
    assert TrustedFiles().versions()[str(file)].text == file.read_text()
    file.write_text('allow = ["*"]\ndeny = ["shell"]\n')
    code, said = trust(here)
    assert code == 0 and '-allow = ["refund"]' in said and '+allow = ["*"]' in said
    assert TrustedFiles().versions()[str(file)].text == file.read_text()
    code, said = trust(here, "--forget")
    assert code == 0 and TrustedFiles().versions() == {}


def test_a_policy_that_settings_name_is_trusted_with_them(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "rules.toml").write_text('allow = ["refund"]\n')
    (here / ".ferrule/settings.toml").write_text('policy = "rules.toml"\n')
    with Terminal("policy", "trust", cwd=here) as terminal:
        for file in (".ferrule/settings.toml", "rules.toml"):
            terminal.until(f"To trust {file} with")
            terminal.until(": ")
            terminal.type(re.findall(r", type (\d{6}):", terminal.said)[-1] + "\n")
        assert terminal.end() == 0
    assert set(TrustedFiles().versions()) == {str(here / "rules.toml"), str(here / ".ferrule/settings.toml")}
    (here / "rules.toml").write_text('allow = ["refund"')
    assert main(["policy", "check"]) == 1
    assert "rules.toml" in capsys.readouterr().out


@pytest.mark.parametrize("answer", ["yes", "", "{number}0"])
def test_only_the_shown_number_trusts_the_file(here: Path, answer: str) -> None:
    (here / "p.toml").write_text('allow = ["refund"]\n')
    code, said = trust(here, "p.toml", answer=answer)
    assert code == 1 and "The file is not trusted." in said and TrustedFiles().versions() == {}
