"""The table of what Ferrule costs, beside its peers, with the goals. `make bench` prints it.

    python benchmarks/table.py                    all rows, in about ten minutes
    python benchmarks/table.py import journal     some of them
    python benchmarks/table.py --without google_adk --without langchain

Figures are CPU time, medians of at least seven rounds, in turns with the other side within one process. "÷ best" is
ours, with everything on, ÷ the best peer that does a part of it. A goal in µs or ms is that of an idle machine: on a
busy one, read the ratios. Instructions are counted by callgrind, if valgrind is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import decide
import in_flight
import instructions
import listing
import mcp_http
import startup
from measure import Line

import adapters
import journal
from peers import PEERS

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

CALLS = {
    "two integers": ("two integers", "× floor", 18, 6),
    "order": ("order of 2 KB with dates", "× floor", 2.4, 1.5),
    "wrong arguments": ("wrong arguments answered", "µs", 20, None),
    "export": ("first export of 1,000 tools", "ms", 8, None),
    "definition": ("nested tool defined", "ms", 1.7, None),
    "in flight": ("1,000 calls in flight, each", "µs", 24, None),
    "blocking": ("200 blocking calls of 10 ms", "ms", 75, None),
}
"""What the rows of `peers.py` are called, and the goals with everything on and with nothing on."""


def run_peer(name: str, rows: list[str]) -> dict[str, Any]:
    """Return what `peers.py` prints in the environment of a framework, or `{"problem": why not}`."""
    from frameworks import environment

    try:
        python = environment(name)
    except LookupError as error:
        return {"problem": str(error)}
    given = {**os.environ, "FERRULE_PEER": name, "PYTHONPATH": str(ROOT / "src")}
    command = [str(python), str(Path(__file__).parent / "peers.py"), *rows]
    done = subprocess.run(command, env=given, capture_output=True, text=True)
    if done.returncode:
        return {"problem": (done.stderr.strip().splitlines() or ["it ended"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_beside_peers(rows: list[str], without: list[str]) -> Iterator[Line]:
    """The rows of `CALLS`, each peer in its own environment."""
    found = {name: run_peer(name, rows) for name in PEERS if name not in without}
    for name, measured in found.items():
        if "problem" in measured:
            print(f"{name} is left out: {measured['problem']}")
        else:
            print(f"{name} {measured['version']}")
    for row in rows:
        work, unit, goal, bare_goal = CALLS[row]
        figures = {name: one[row] for name, one in found.items() if isinstance(one.get(row), dict)}
        failed = [f"{name}: {one[row][:60]}" for name, one in found.items() if isinstance(one.get(row), str)]
        if not figures:
            yield Line(work, unit, None, goal, note="; ".join(failed) or "no peer is installed")
            continue
        peers = {name: one["peer"] for name, one in sorted(figures.items(), key=lambda item: item[1]["peer"])}
        worst = max(one["ours"] / one["peer"] for one in figures.values())
        ours = median(one["ours"] for one in figures.values())
        yield Line(work, unit, ours, goal, worst, peers, "; ".join(failed))
        if bare_goal is not None:
            bare = median(one["bare"] for one in figures.values())
            yield Line(f"{work}, nothing on", unit, bare, bare_goal)


ROWS: dict[str, Callable[[], Iterable[Line]]] = {
    "memory": in_flight.measure,
    "import": startup.measure,
    "journal": journal.measure,
    "mcp": mcp_http.measure,
    "adapters": adapters.measure,
    "decide": decide.measure,
    "list": listing.measure,
    "instructions": instructions.measure,
}
"""The other rows: each module measures its own."""


def format_line(line: Line) -> str:
    """One line as text."""
    if line.ours is None:
        return f"{line.work:44} {'not measured: ' + line.note}"
    figures = f"{line.ours:9.4g} {line.unit:8}" + (f"{line.goal:8.4g} {line.verdict:7}" if line.goal else " " * 16)
    best = f"{line.ratio:6.2f}" if line.ratio else " " * 6
    peers = ", ".join(f"{name} {figure:.3g}" for name, figure in line.peers.items())
    return f"{line.work:44} {figures} {best}  {peers}{'; ' if peers and line.note else ''}{line.note}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"{', '.join([*CALLS, *ROWS])}; all without one")
    parser.add_argument("--without", action="append", default=[], choices=PEERS, help="leave a peer out")
    options = parser.parse_args()
    chosen = options.rows or [*CALLS, *ROWS]
    if unknown := [row for row in chosen if row not in CALLS and row not in ROWS]:
        parser.error(f"there is no row {unknown[0]!r}: {', '.join([*CALLS, *ROWS])}")
    print(f"Python {sys.version.split()[0]}, load {' '.join(f'{load:.1f}' for load in os.getloadavg())}")
    print(f"{'work':44} {'ours':>9} {'unit':8}{'goal':>8}         ÷ best  peers")
    beside = [row for row in chosen if row in CALLS]
    groups = [partial(measure_beside_peers, beside, options.without)] if beside else []
    for measure in [*groups, *(ROWS[row] for row in chosen if row in ROWS)]:
        for line in measure():
            print(format_line(line), flush=True)


if __name__ == "__main__":
    main()
