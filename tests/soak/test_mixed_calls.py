"""A mixture of all features and faults holds its memory, threads, descriptors and tasks level."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mixed_calls import Sample, growth, soak

SECONDS = float(os.environ.get("FERRULE_SOAK", "75"))
"""An hour is `make soak-mixed`."""
POOL = 30
"""Threads and descriptors that a pool of idle threads and workers may hold more of than before."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.large,
    pytest.mark.time_limit(SECONDS + 600),
    pytest.mark.skipif(sys.platform != "linux", reason="memory and descriptors are read from /proc"),
]


@pytest.fixture
def quiet() -> Iterator[None]:
    """No log: thousands of calls fail on purpose."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


async def test_a_mixture_of_all_features_leaks_nothing(tmp_path: Path, quiet: None) -> None:
    ends: dict[str, int] = {}

    def keep(sample: Sample, counted: dict[str, int]) -> None:
        ends.update(counted)

    before, *between, after = await soak(tmp_path, SECONDS, keep)
    # Every way to end came up, so every part of the mixture has run.
    assert {"ok", "invalid", "denied", "failed", "timeout", "cancelled", "suspended", "not_found"} <= ends.keys()
    assert growth([sample.memory for sample in between]) < 0.02 + 1_000_000 / before.memory
    assert growth([sample.blocks for sample in between]) < 0.10
    assert max(sample.tasks for sample in between) <= before.tasks + POOL
    assert after.tasks == before.tasks
    assert after.threads <= before.threads + POOL and after.descriptors <= before.descriptors + POOL
