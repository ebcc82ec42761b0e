"""A terminal for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from terminals import Terminal


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()
