"""What is expected of a driven framework, said as what was seen where it is not so."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ferrule.testing.framework import Driven, Seen


def seen_of(driven: Driven, call_id: str) -> Seen:
    """What the model reads of this call."""
    assert call_id in driven.results, (
        f"the model reads nothing of {call_id}; it reads {driven.results}, and a person is asked {driven.questions}"
    )
    return driven.results[call_id]


def expect(driven: Driven, **expected: Seen) -> None:
    """Fail where the model reads anything else of these calls."""
    for call_id, seen in expected.items():
        found = seen_of(driven, call_id)
        assert found == seen, f"of {call_id} the model reads {found}, and not {seen}"


def expect_failure(driven: Driven, call_id: str, tells: str = "", hides: str | None = None) -> None:
    """Fail where the model reads of no failure, where what it reads does not have this text, or has the other."""
    seen = seen_of(driven, call_id)
    assert seen.failed, f"of {call_id}, which failed, the model reads {seen}"
    assert tells in seen.text, f"of {call_id} the model reads {seen.text!r}, where {tells!r} is not said"
    assert hides is None or hides not in seen.text, f"of {call_id} the model reads {seen.text!r}"


@contextmanager
def logged() -> Iterator[list[str]]:
    """What Ferrule's log says meanwhile."""

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
