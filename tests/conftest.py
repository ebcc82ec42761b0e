"""What tests of several folders share, and costs too much to be made for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import postgres


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[Callable[[str], str]]:
    """Makes an empty database of a name, and gives its URL: `postgres.server()`, once for a run of tests."""
    with postgres.server() as url_of:
        yield url_of
