"""Times and memory of `keyword`; run by `benchmarks/selection.py --latency`, with numpy and without.

Times are CPU time of the thread that ranks, so that what else the machine does counts little.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import itertools
import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

SIZES = (1_000, 10_000, 100_000)
TRACED = 10_000
"""Tools whose index is built under tracemalloc, which makes that several times slower."""
QUERIES = 200
ADDED = 20
MOST_MS = {1_000: 1.0, 10_000: 5.0, 100_000: 30.0}
"""What the 95th percentile may take."""
MOST_BUILD_SECONDS = 10.0
MOST_BYTES_FOR_A_TOKEN = 200
MOST_ADDING_MS = 1.0


def repeat_rows(rows: Sequence[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    """As many rows; once there are no more, the same again under other names."""
    for number, row in zip(range(count), itertools.cycle(rows), strict=False):
        again = number // len(rows)
        yield {**row, "name": f"{row['name']}_v{again + 1}"} if again else row


def measure_time(work: Callable[[], object]) -> float:
    """Seconds of CPU time."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def percentile(times: Sequence[float], share: float) -> float:
    return sorted(times)[min(int(share * len(times)), len(times) - 1)]


def measure_size(rows: Sequence[dict[str, Any]], queries: Sequence[Any], size: int) -> dict[str, Any]:
    """Build, rank and add at one size."""
    from ferrule import Toolset
    from ferrule.selection import keyword
    from selection import made_tools

    tools = list(made_tools(repeat_rows(rows, size + ADDED)))
    toolset, ranker = Toolset(tools[:size]), keyword()
    gc.collect()
    gc.disable()
    try:
        build = measure_time(lambda: ranker.rank(toolset, "read a file"))
        answers: list[list[str]] = []
        times = [
            measure_time(lambda query=query: answers.append([match.tool.name for match in ranker.rank(toolset, query)]))
            for query in queries
        ]
        adding = []
        for tool in tools[size:]:
            toolset = toolset.register(tool)
            first = measure_time(lambda toolset=toolset: ranker.rank(toolset, "read a file"))
            again = measure_time(lambda toolset=toolset: ranker.rank(toolset, "read a file"))
            adding.append(first - again)
    finally:
        gc.enable()
    return {
        "tools": size,
        "build_seconds": build,
        "p50_ms": percentile(times, 0.5) * 1000,
        "p95_ms": percentile(times, 0.95) * 1000,
        "adding_ms": percentile(adding, 0.5) * 1000,
        "answers": answers,
    }


def bytes_for_a_token(rows: Sequence[dict[str, Any]]) -> float:
    """What the index of the first tools holds, by tracemalloc (numpy's arrays are in it)."""
    from ferrule.selection import definition_tokens, keyword
    from selection import made_tools

    toolset = made_tools(repeat_rows(rows, TRACED))
    keyword().rank(made_tools(rows[:50]), "read a file")  # what is imported and cached once does not count
    ranker = keyword()
    gc.collect()
    tracemalloc.start()
    try:
        ranker.rank(toolset, "read a file")
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return held / sum(map(definition_tokens, toolset))


def report(found: Sequence[dict[str, Any]], memory: float, asked: Sequence[int]) -> list[bool]:
    """Print one run, and say of each number that is asked for whether it is reached."""
    judged = []
    for one in found:
        reached = []
        if one["tools"] in asked:
            reached.append(one["p95_ms"] < MOST_MS[one["tools"]])
        if one["tools"] == SIZES[-1] and one["tools"] in asked:
            reached += [one["build_seconds"] < MOST_BUILD_SECONDS, one["adding_ms"] < MOST_ADDING_MS]
        judged += reached
        print(
            f"  {one['tools']:7,} tools: p50 {one['p50_ms']:7.2f} ms, p95 {one['p95_ms']:7.2f} ms, built in "
            f"{one['build_seconds']:6.2f} s, one tool more {one['adding_ms']:6.2f} ms"
            f"{'' if all(reached) else '  MISSED'}"
        )
    judged.append(memory < MOST_BYTES_FOR_A_TOKEN)
    print(
        f"  {memory:.0f} bytes for each token of {TRACED:,} definitions{'' if judged[-1] else '  MISSED'} "
        "(tracemalloc; a token is four bytes of a definition as JSON)"
    )
    return judged


def one_run(data: Any, options: argparse.Namespace) -> dict[str, Any]:
    rows = data.haystack or [row for found, _ in data.catalogues.values() for row in found]
    asked = [query.asked for _, queries in data.catalogues.values() for query in queries]
    queries = asked[:: max(len(asked) // QUERIES, 1)][:QUERIES]
    found = [measure_size(rows, queries, size) for size in options.sizes]
    return {"sizes": found, "bytes_for_a_token": bytes_for_a_token(rows)}


def main(data: Any, options: argparse.Namespace) -> int:
    """This process with what is installed, another one as if numpy were not."""
    found = one_run(data, options)
    if options.json:
        print(json.dumps(found))
        return 0
    numpy = not options.without_numpy and importlib.util.find_spec("numpy") is not None
    print(f"keyword(), {'with' if numpy else 'without'} numpy, CPU time:")
    judged = report(found["sizes"], found["bytes_for_a_token"], SIZES if numpy else SIZES[:1])
    if numpy:
        words = [str(Path(__file__).with_name("selection.py")), str(options.folder), "--latency", "--json"]
        words += ["--without-numpy", "--sizes", ",".join(map(str, options.sizes))]
        words += ["--haystack", str(options.haystack)] if options.haystack else []
        done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, check=True)
        other = json.loads(done.stdout)
        print("keyword(), without numpy, CPU time:")
        judged += report(other["sizes"], other["bytes_for_a_token"], SIZES[:1])
        same = [one["answers"] for one in found["sizes"]] == [one["answers"] for one in other["sizes"]]
        judged.append(same)
        print(f"the answers with numpy and without are {'the same' if same else 'NOT the same'}")
    print(f"{sum(judged)} of {len(judged)} numbers reached")
    return int(not all(judged))
