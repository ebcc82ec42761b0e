"""A terminal for each test that asks for one, and previews that a loaded machine cannot cut off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from terminals import Terminal

from waits import BOUND


@pytest.fixture(autouse=True, scope="module")
def slow_previews_count() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ferrule.approval.request.PREVIEW_SECONDS", BOUND)
        yield


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()
