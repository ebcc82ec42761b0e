"""`make soak`: several programs at once on one journal, killed at any step, for as many rounds as are asked for."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from crashes import Forks, soak

ROUNDS_OF_A_FILE = 50


def main(rounds: int) -> None:
    """Print what came of them, as they go on.

    Raises:
        AssertionError: where a law does not hold; the seed that is named then makes the same kills again.
    """
    several, total, begun = [Forks() for _ in range(3)], Counter[str](), time.monotonic()
    try:
        for seed, done in enumerate(range(0, rounds, ROUNDS_OF_A_FILE)):
            with tempfile.TemporaryDirectory() as folder:
                print(f"seed {seed}", end=": ", flush=True)
                total += soak(Path(folder), several, rounds=min(ROUNDS_OF_A_FILE, rounds - done), seed=seed)
            names = ("kills", "calls", "effects", "replayed", "unknown", "doubled", "lost")
            counts = ", ".join(f"{total[name]} {name}" for name in names)
            print(f"{counts} in {time.monotonic() - begun:.0f} s", flush=True)
    finally:
        for one in several:
            one.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
