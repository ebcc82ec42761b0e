"""Real shells run random lines with stubs on the PATH: nothing runs that was not judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.security.commands import read_line
from ferrule.security.shell_syntax import read_syntax
from shell_fuzz import SEEDS, Oracle, fuzz, misses, shells

pytestmark = pytest.mark.skipif(not shells(), reason="there is no bash here")


def test_the_oracle_reports_a_command_that_was_not_read(tmp_path: Path) -> None:
    ran, files = Oracle(tmp_path).run(shells()[0], "aa 'b c' $(bb) >x")
    assert sorted(ran) == [("aa", "b c"), ("bb",)]
    assert files == {"x"}
    assert not misses("aa 'b c' $(bb) >x", ran, files)
    assert misses("aa 'b c' >x", ran, files) == "ran ('bb',)"
    assert misses("aa 'b c' $(bb)", ran, files) == "wrote {'x'}"
    assert misses("aa 'b c' $(bb) >y", ran, files) == "wrote {'x'}"
    assert misses("aa x; bb", [("aa", "y")], set()) == "ran ('aa', 'y')"


def test_lines_that_others_misread_run_nothing_unjudged(tmp_path: Path) -> None:
    oracle = Oracle(tmp_path)
    for shell in dict.fromkeys(shells()):
        for line in SEEDS:
            missed = misses(line, *oracle.run(shell, line)) if "alias" not in line or "bash" in shell else ""
            assert not missed, (shell, line, missed)


def test_a_third_of_the_seed_lines_is_fully_known() -> None:
    known = [line for line in SEEDS if not read_line(line).unknown]
    assert len(known) > len(SEEDS) / 3
    assert [line for line in known if not read_syntax(line).commands] == []


@pytest.mark.parametrize(
    ("count", "seed"), [(200, 1), *(pytest.param(500, seed, marks=pytest.mark.large) for seed in (2, 3, 4, 5))]
)
def test_random_lines_run_nothing_unjudged(count: int, seed: int) -> None:
    assert list(fuzz(count, seed, shells())) == []
