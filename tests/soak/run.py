"""`make soak-mixed`: a mixture of calls that uses every part of Ferrule, with faults, for an hour or SECONDS."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path

from mixed_calls import Sample, growth, soak


def show(sample: Sample, ends: Counter[str]) -> None:
    """Print the resources, and how many calls there were."""
    held = f"{sample.threads} threads, {sample.descriptors} descriptors, {sample.tasks} tasks"
    memory = f"{sample.memory / 1e6:.1f} MB, {sample.blocks:,} blocks"
    print(f"{sample.seconds:.0f} s: {memory}, {held}, {sum(ends.values()):,} calls", flush=True)


def main(seconds: float) -> None:
    logging.disable(logging.CRITICAL)  # thousands of calls fail on purpose
    with tempfile.TemporaryDirectory() as folder:
        samples = asyncio.run(soak(Path(folder), seconds, show))
    memory, blocks = (growth([getattr(sample, name) for sample in samples[1:-1]]) for name in ("memory", "blocks"))
    print(f"memory grew by {memory:.1%} after the warm-up, blocks by {blocks:.1%}; tasks left: {samples[-1].tasks - 1}")


if __name__ == "__main__":
    main(float(sys.argv[1]))
