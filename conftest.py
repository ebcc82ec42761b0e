"""Set up every run of pytest.

It runs the programs of README.md and docs/ as tests. `RUN_BY` in scripts/pages.py says which pages' programs run
elsewhere, and the module how a page's programs belong together.

It also sets which examples a property is tried with: always the same ones, so that nobody's change fails by chance, and
with `FERRULE_TESTS=all`, as in `make test-all`, four times as many. `make explore` looks for new ones. And it names
what a run left out by its markers. This file is at the root because pytest asks a conftest.py only
about files below it.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from pages import HERE, RUN_BY, Program, find_programs
from sybil import Document, Example, Region, Sybil

pytest_plugins = ["failed_tests", "time_limit"]

WHOLE = "a snippet is a whole program, with its imports, and awaits in a function that asyncio.run(...) runs"

# How long an example takes, and making it, says how busy the machine is.
PROFILE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("everyday", PROFILE, max_examples=25, derandomize=True)
settings.register_profile("all", PROFILE, max_examples=100, derandomize=True)
settings.register_profile("explore", PROFILE, max_examples=400)
profile_name = os.environ.get("FERRULE_TESTS") or "everyday"
settings.load_profile(profile_name)
if profile_name != "explore":
    # Hypothesis also tries constants of the modules imported so far, so the examples would depend on earlier tests. It
    # has no setting for this.
    providers._get_local_constants = Constants

# Each client of an SDK reads the certificates that its machine trusts, in 25 ms, and no test leaves this machine. This
# is one that nobody has the key of.
os.environ["SSL_CERT_FILE"] = os.fspath(Path(__file__).parent / "tests" / "data" / "certificate.pem")
os.environ.pop("SSL_CERT_DIR", None)

# Of the million objects that the imports of tests make, and keep to the end, none is garbage: looking through them is
# 0.4 s for each `gc.collect()` of a test, and for each that Python begins by itself.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


LEFT_OUT: Counter[str] = Counter()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    LEFT_OUT.update(item.nodeid.partition("[")[0] for item in items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the files of what was left out, with how many cases of each."""
    if not LEFT_OUT or "hypothesis" in config.getoption("markexpr"):
        return
    files = Counter(name.partition("::")[0] for name in LEFT_OUT for _ in range(LEFT_OUT[name]))
    terminalreporter.line(f"left out (`{config.getoption('markexpr')}`; `make test-all` has it):")
    for file, cases in sorted(files.items()):
        terminalreporter.line(f"  {cases:5} of {file}")


def parse(document: Document) -> Iterator[Region]:
    """Find the programs of a page."""
    for program in find_programs(document.text):
        yield Region(program.block.start, program.block.end, program, run)


def run(example: Example) -> None:
    """Run one program as a reader does: from a file of its own, in an empty directory."""
    __tracebackhide__ = True
    program: Program = example.parsed
    imported = [*program.modules, *([program.module] if program.module else [])]
    with tempfile.TemporaryDirectory() as directory, chdir(directory), importing_from(directory, imported):
        file = program.write(Path(directory))
        try:
            runpy.run_path(os.fspath(file), run_name="__main__")
        except (SyntaxError, NameError) as error:
            raise AssertionError(f"{error}: {WHOLE}") from error


@contextmanager
def importing_from(directory: str, names: Sequence[str]) -> Iterator[None]:
    """Let modules be imported from there, as a program's own directory is, and forget them afterwards.

    A test may have imported another module by one of their names: it is put aside meanwhile.
    """
    aside = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    there_before = set(sys.modules)
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path.remove(directory)
        for name in set(sys.modules) - there_before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(directory):
                del sys.modules[name]
        sys.modules.update(aside)


pytest_collect_file = Sybil(
    parsers=[parse],
    patterns=[pattern for pattern, test in RUN_BY.items() if test == HERE],
    excludes=[pattern for pattern, test in RUN_BY.items() if test != HERE],
).pytest()
