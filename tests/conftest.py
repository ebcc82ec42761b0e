"""What tests of several folders share, and costs too much to be made for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import postgres


@pytest.fixture(scope="session", autouse=True)
def folders_of_no_person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is trusted is that of the tests alone; a test with a person of its own gives it other folders."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name)))
        yield


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[Callable[[str], str]]:
    """Makes an empty database of a name, and gives its URL: `postgres.server()`, once for a run of tests."""
    with postgres.server() as url_of:
        yield url_of
