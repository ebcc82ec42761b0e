"""Expectations of a driven framework. A failure quotes the actual values."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ferrule.testing.framework import FrameworkRun, ModelView


def read_seen(driven: FrameworkRun, call_id: str) -> ModelView:
    """Return the model's view of this call."""
    assert call_id in driven.results, (
        f"the model reads nothing of {call_id}; it reads {driven.results}, and a person is asked {driven.questions}"
    )
    return driven.results[call_id]


def expect(driven: FrameworkRun, **expected: ModelView) -> None:
    """Fail if the model reads anything else of these calls."""
    for call_id, seen in expected.items():
        found = read_seen(driven, call_id)
        assert found == seen, f"of {call_id} the model reads {found}, and not {seen}"


def expect_failure(driven: FrameworkRun, call_id: str, includes: str = "", excludes: str | None = None) -> None:
    """Fail if the model reads no failure, if its text lacks `includes`, or if its text includes `excludes`."""
    seen = read_seen(driven, call_id)
    assert seen.failed, f"of {call_id}, which failed, the model reads {seen}"
    assert includes in seen.text, f"of {call_id} the model reads {seen.text!r}, where {includes!r} is not said"
    assert excludes is None or excludes not in seen.text, f"of {call_id} the model reads {seen.text!r}"


@contextmanager
def capture_log() -> Iterator[list[str]]:
    """Yield the messages of Ferrule's log meanwhile."""

    class ListHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    messages: list[str] = []
    handler, log = ListHandler(), logging.getLogger("ferrule")
    log.addHandler(handler)
    try:
        yield messages
    finally:
        log.removeHandler(handler)
