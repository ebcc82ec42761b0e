"""How cost grows with size, and the chart of it in docs/performance.md.

    python benchmarks/growth.py                    measures all, and writes docs/assets/growth.svg
    python benchmarks/growth.py --calls 10000000   with a journal of ten million calls: an hour, and 16 GB of disk
    python benchmarks/growth.py tools rules        some of them, without the chart

Each cost is CPU time, and the growth is its exponent between the smallest and the largest size: 1 is in proportion. The
loop may be held for 20 ms by what runs in it. A line that grows faster than n log n, or holds the loop longer, says so.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from pathlib import Path

from ferrule import Journal, Runner, Tool, ToolCall, Toolset, tool
from ferrule.guards import rules
from ferrule.journal import Filter, LoggedCall, Reader
from ferrule.providers import anthropic
from ferrule.selection import keyword

CHART = Path(__file__).parent.parent / "docs" / "assets" / "growth.svg"
FASTEST_GROWTH = 1.15
"""Of n log n between ten and a hundred thousand the exponent is 1.17; in the sizes here it is less."""


@dataclass(frozen=True)
class Curve:
    """The cost of one thing by size.

    Attributes:
        points: Pairs of size and cost, in seconds or bytes.
        loop: Whether all of it runs in the event loop without a pause.
        each: Whether the cost is that of one thing among so many, which ought to stay as it is.
    """

    name: str
    points: Sequence[tuple[float, float]]
    unit: str = "s"
    each: bool = False

    @property
    def exponent(self) -> float:
        """The power of the size with which the cost grows, between the third last size and the last."""
        (small, low), (large, high) = self.points[-3 if len(self.points) > 2 else 0], self.points[-1]
        return log(max(high, 1e-9) / max(low, 1e-9)) / log(large / small)


def spend(work: Callable[[], object], rounds: int = 3) -> float:
    """The least CPU seconds of `work`."""
    taken = []
    for _ in range(rounds):
        gc.collect()
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return min(taken)


def make_tools(count: int) -> list[Tool]:
    """Tools of different names with one schema, as most toolsets have a few shapes."""

    def look(query: str, limit: int = 10) -> str:
        """Look something up."""
        return query

    base, verbs, nouns = tool(look, read_only=True), ("get", "set", "list", "find"), ("order", "user", "file", "page")
    return [
        base.replace(name=f"{verbs[n % 4]}_{nouns[n // 4 % 4]}_{n}", description=f"Look up {nouns[n % 4]} {n}.")
        for n in range(count)
    ]


def measure_tools(most: int) -> Iterator[Curve]:
    """Definition, runner, lookup, export, search and memory, of 10 to `most` tools."""
    made: dict[str, list[tuple[float, float]]] = {}
    make_tools(1)  # the first one imports what it needs
    for count in (size for size in (10, 100, 1_000, 10_000, 100_000) if size <= most):
        tracemalloc.start()
        tools = make_tools(count)
        memory = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        toolset = Toolset(tools)
        runner = Runner(toolset)
        anthropic.tools(toolset)
        ranker = keyword()
        ranker.rank(toolset, "find order 7")
        last, call = tools[-1].name, ToolCall("c", tools[-1].name, '{"query": "x"}')
        once = 1 if count > 1_000 else 3
        figures = {
            "tools defined": spend(lambda count=count: make_tools(count), once),
            "runner of tools": spend(lambda toolset=toolset: Runner(toolset), once),
            "tools exported again": spend(lambda toolset=toolset: anthropic.tools(toolset), once),
            "memory of tools": memory,
            "a tool found by name": spend(lambda t=toolset, name=last: [t.get(name) for _ in range(100)]) / 100,
            "an unknown name answered": asyncio.run(spend_call(runner, ToolCall("c", "fnid_ordr_5", "{}"))),
            "a call among tools": asyncio.run(spend_call(runner, call)),
            "search among tools": spend(lambda r=ranker, t=toolset: r.rank(t, "find order 7")),
        }
        for name, figure in figures.items():
            made.setdefault(name, []).append((count, figure))
        del tools, toolset, runner, ranker
    for name, points in made.items():
        yield Curve(name, points, "B" if name == "memory of tools" else "s", each=name.startswith("a"))


async def spend_call(runner: Runner, call: ToolCall, calls: int = 5) -> float:
    await runner.run(call)
    taken = []
    for _ in range(calls):
        begin = time.process_time()
        await runner.run(call)
        taken.append(time.process_time() - begin)
    return min(taken)


def measure_flight() -> Iterator[Curve]:
    """1 to 10,000 calls at once."""

    @tool(read_only=True)
    async def nap() -> None:
        """Wait."""
        await asyncio.sleep(0)

    async def run(count: int) -> None:
        runner = Runner([nap], concurrency=None, timeout=30)
        await runner.run_all([ToolCall(f"c{n}", "nap", "{}") for n in range(count)])

    sizes = (1, 10, 100, 1_000, 10_000)
    yield Curve("calls in flight", [(n, spend(lambda n=n: asyncio.run(run(n)))) for n in sizes])


def measure_sizes() -> Iterator[Curve]:
    """Results of 1 KB to 100 MB, and arguments of 1 KB to 10 MB."""
    from ferrule import Sizes

    @tool(read_only=True)
    async def give(size: int) -> str:
        """Give a text."""
        return texts[size]

    @tool(read_only=True)
    async def take(text: str) -> int:
        """Take a text."""
        return len(text)

    texts = {size: "word " * (size // 5) for size in (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)}
    runner = Runner([give, take], sizes=Sizes(input=20_000_000))
    points = []
    for size in texts:
        points.append((size, asyncio.run(spend_call(runner, ToolCall("c", "give", {"size": size}), 3))))
    yield Curve("a result", points, each=True)
    points = []
    for size in list(texts)[:-1]:
        call = ToolCall("c", "take", json.dumps({"text": texts[size]}))
        points.append((size, asyncio.run(spend_call(runner, call, 3))))
    yield Curve("arguments", points)


def measure_rules() -> Iterator[Curve]:
    """Policies of 10 to 10,000 rules: read, and asked."""

    @tool
    async def pay(to: str, amount: int) -> str:
        """Pay."""
        return to

    read, decided = [], []
    with tempfile.TemporaryDirectory() as folder:
        for count in (10, 100, 1_000, 10_000):
            files = []
            for begin in range(0, count, 1_000):  # the most of one file
                lines = [f"'pay(to=person_{n})'" for n in range(begin, min(begin + 1_000, count))]
                files.append(Path(folder, f"{count}-{begin}.toml"))
                files[-1].write_text(f"allow = [{', '.join(lines)}]\n", encoding="utf-8")
            read.append((count, spend(partial(rules, *files), 1)))
            runner = Runner([pay], guards=[rules(*files)])
            call = ToolCall("c", "pay", {"to": f"person_{count - 1}", "amount": 1})
            decided.append((count, asyncio.run(spend_decision(runner, call))))
    yield Curve("a policy of rules read", read)
    yield Curve("a decision among rules", decided, each=True)


async def spend_decision(runner: Runner, call: ToolCall) -> float:
    await runner.decide(call)
    taken = []
    for _ in range(20):
        begin = time.process_time()
        await runner.decide(call)
        taken.append(time.process_time() - begin)
    return min(taken)


def measure_journal(most: int) -> Iterator[Curve]:
    """Journals of 1,000 to `most` calls: opened, asked for one call, listed, and a call with it."""

    @tool
    async def pay(number: int) -> str:
        """Pay."""
        return "paid"

    async def fill(journal: Journal, start: int, stop: int) -> float:
        runner = Runner([pay], journal=journal, concurrency=64)
        for begin in range(start, stop, 2_000):
            calls = [ToolCall(f"c{n}", "pay", {"number": n}) for n in range(begin, min(begin + 2_000, stop))]
            await runner.run_all(calls, session=f"session {begin // 2_000}")
        await journal.flush()
        again = ToolCall(f"c{stop}", "pay", {"number": stop})
        first = time.process_time()
        await runner.run(again, session=f"last {stop}")
        return time.process_time() - first

    made: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path, done = Path(folder, "calls.db"), 0
        for count in (size for size in (1_000, 10_000, 100_000, 1_000_000, 10_000_000) if size <= most):
            journal = Journal.open(path, durable="normal")
            call = asyncio.run(fill(journal, done, count))
            journal.close()
            done = count
            reader = Reader(path)
            one = Filter(session=f"last {count}")
            figures = {
                "a journal opened": spend(lambda: Journal.open(path, durable="normal").close()),
                "the newest 100 listed": spend(partial(_list_calls, reader, newest=100)),
                "a session listed": spend(partial(_list_calls, reader, one), 1),
                "a call found by its id": spend(partial(reader.call, "c5")),
                "a call with the journal": call,
            }
            for name, figure in figures.items():
                made.setdefault(name, []).append((count, figure))
    for name, points in made.items():
        yield Curve(name, points, each=True)


def _list_calls(reader: Reader, *wanted: Filter, newest: int | None = None) -> list[LoggedCall]:
    return list(reader.calls(*wanted, newest=newest))


def draw(curves: list[Curve]) -> str:
    """The chart: one small plot for each curve, both axes logarithmic, and a line of proportion behind it."""
    wide, high, columns = 218, 128, 4
    rows = -(-len(curves) // columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide * columns} {high * rows}" role="img" '
        'font-family="system-ui, sans-serif" font-size="11">',
        "<title>How cost grows with size</title>",
        "<style>text{fill:#37474f}.axis{stroke:#b0bec5}.even{stroke:#cfd8dc;stroke-dasharray:3 3}"
        ".curve{stroke:#00897b;stroke-width:2;fill:none}circle{fill:#00897b}"
        "@media (prefers-color-scheme:dark){text{fill:#cfd8dc}.axis{stroke:#546e7a}.even{stroke:#455a64}}</style>",
    ]
    for place, curve in enumerate(curves):
        parts += _draw_curve(curve, wide * (place % columns), high * (place // columns), wide, high)
    return "\n".join([*parts, "</svg>\n"])


def _draw_curve(curve: Curve, x: int, y: int, wide: int, high: int) -> Iterator[str]:
    left, right, top, bottom = x + 10, x + wide - 14, y + 38, y + high - 22
    sizes, costs = [log(size, 10) for size, _ in curve.points], [log(max(c, 1e-7), 10) for _, c in curve.points]
    width, lowest = sizes[-1] - sizes[0], min(costs)
    height = max(width, max(costs) - lowest)

    def at(size: float, cost: float) -> str:
        place = left + (size - sizes[0]) / width * (right - left), bottom - (cost - lowest) / height * (bottom - top)
        return f"{place[0]:.1f},{place[1]:.1f}"

    first, last = curve.points[0], curve.points[-1]
    points = [at(size, cost) for size, cost in zip(sizes, costs, strict=True)]
    yield f'<text x="{left}" y="{y + 16}" font-weight="600">{curve.name}</text>'
    ends = f"{format_cost(first[1], curve.unit)} → {format_cost(last[1], curve.unit)}"
    yield f'<text x="{left}" y="{y + 30}">{ends}</text>'
    yield f'<line class="axis" x1="{left}" y1="{bottom}" x2="{right}" y2="{bottom}"/>'
    yield f'<polyline class="even" fill="none" points="{at(sizes[0], lowest)} {at(sizes[-1], lowest + width)}"/>'
    yield f'<polyline class="curve" points="{" ".join(points)}"/>'
    for point in points:
        cx, cy = point.split(",")
        yield f'<circle cx="{cx}" cy="{cy}" r="2.5"/>'
    yield f'<text x="{left}" y="{bottom + 14}">{first[0]:,}</text>'
    yield f'<text x="{right}" y="{bottom + 14}" text-anchor="end">{last[0]:,}</text>'


def format_cost(cost: float, unit: str) -> str:
    """A cost with a unit that reads well."""
    steps = ((1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1, "B"))
    if unit == "s":
        steps = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (0, "µs"))
    size, name = next((step for step in steps if cost >= step[0]), steps[-1])
    return f"{cost / (size or 1e-6):.3g} {name}"


def main() -> None:
    kinds: dict[str, Callable[[], Iterator[Curve]]] = {
        "flight": measure_flight,
        "sizes": measure_sizes,
        "rules": measure_rules,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "kinds", nargs="*", metavar="KIND", help=f"{', '.join(kinds)} tools or journal; all without one"
    )
    parser.add_argument("--tools", type=int, default=100_000, help="of the largest toolset")
    parser.add_argument("--calls", type=int, default=1_000_000, help="of the largest journal")
    options = parser.parse_args()
    kinds["tools"] = lambda: measure_tools(options.tools)
    kinds["journal"] = lambda: measure_journal(options.calls)
    print(f"Python {sys.version.split()[0]}")
    curves: list[Curve] = []
    for kind in options.kinds or kinds:
        for curve in kinds[kind]():
            curves.append(curve)
            shown = "  ".join(f"{size:,}: {format_cost(cost, curve.unit)}" for size, cost in curve.points)
            fast = "  grows too fast" if curve.exponent > (0.5 if curve.each else FASTEST_GROWTH) else ""
            print(f"{curve.name:26} n^{curve.exponent:4.2f}{fast}   {shown}", flush=True)
    if not options.kinds:
        CHART.write_text(draw(curves), encoding="utf-8")


if __name__ == "__main__":
    main()
