"""These tests run in the environment of their framework, which `scripts/frameworks.py` makes; elsewhere none is
collected."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

if not os.environ.get("FERRULE_FRAMEWORK"):
    collect_ignore_glob = ["test_*.py"]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """The threads of amplifier-core 2.0.2 now and then crash a Python that ends, of pytest too: this one just stops."""
    if os.environ.get("FERRULE_FRAMEWORK") == "amplifier":
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash.get(STATUS, 3))


@pytest.fixture(autouse=True, scope="session")
def _model_of_the_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The programs of the page of Claude Code find a model that makes their calls, and no key or setting."""
    if os.environ.get("FERRULE_FRAMEWORK") != "claude_agent":
        yield
        return
    from claude_api import ScriptedModel, clean_environment, make_environment
    from ferrule.testing import ScriptedCall

    clean_environment()
    tidy = [ScriptedCall(name, "Bash", {"command": line}) for name, line in (("1", "echo tidy"), ("2", "rm -r notes"))]
    pay = [ScriptedCall("3", "mcp__ferrule__pay", {"to": "ada", "euros": 5})]
    with ScriptedModel({"Tidy up.": [tidy], "Pay Ada.": [pay]}, {"Pay Ada.": "Ada has her money."}) as model:
        os.environ.update(make_environment(model, str(tmp_path_factory.mktemp("home"))))
        yield


STATUS = pytest.StashKey[int]()
