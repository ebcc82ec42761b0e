"""Expectations of a driven framework. A failure quotes the actual values."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ferrule.testing.framework import Driven, Seen


def seen_of(driven: Driven, call_id: str) -> Seen:
    """Return the model's view of this call."""
    assert call_id in driven.results, (
        f"the model reads nothing of {call_id}; it reads {driven.results}, and a person is asked {driven.questions}"
    )
    return driven.results[call_id]


def expect(driven: Driven, **expected: Seen) -> None:
    """Fail if the model reads anything else of these calls."""
    for call_id, seen in expected.items():
        found = seen_of(driven, call_id)
        assert found == seen, f"of {call_id} the model reads {found}, and not {seen}"


def expect_failure(driven: Driven, call_id: str, tells: str = "", hides: str | None = None) -> None:
    """Fail if the model reads no failure, if its text lacks `tells`, or if its text includes `hides`."""
    seen = seen_of(driven, call_id)
    assert seen.failed, f"of {call_id}, which failed, the model reads {seen}"
    assert tells in seen.text, f"of {call_id} the model reads {seen.text!r}, where {tells!r} is not said"
    assert hides is None or hides not in seen.text, f"of {call_id} the model reads {seen.text!r}"


@contextmanager
def logged() -> Iterator[list[str]]:
    """Yield the messages of Ferrule's log meanwhile."""

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    told: list[str] = []
    noting, log = Noting(), logging.getLogger("ferrule")
    log.addHandler(noting)
    try:
        yield told
    finally:
        log.removeHandler(noting)
