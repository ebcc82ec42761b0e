"""What it costs to define and export 1,000 tools, as a ratio to Pydantic's adapters and schemas of the same functions.

Run: python benchmarks/define.py
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter

from ferrule import Toolset, tool
from ferrule.providers import anthropic

COUNT = 1_000
TYPES = ["str", "int", "float", "bool", "list[str]", "dict[str, int]", "Literal['a', 'b']", "datetime", "str | None"]


def functions(count: int, run: int) -> list[Any]:
    """Functions of distinct signatures, three parameters each, with a docstring that describes them."""
    found = []
    for number in range(count):
        kinds = [TYPES[(number + shift * (number // 9 + 1)) % len(TYPES)] for shift in range(3)]
        name = f"tool_{run}_{number}"
        source = (
            f"async def {name}(first_{number}: {kinds[0]}, second_{number}: {kinds[1]}, "
            f"third: {kinds[2].removesuffix(' | None')} | None = None) -> str:\n"
            f'    """Do thing {number}.\n\n    Args:\n        first_{number}: The first.\n        third: The last.\n'
            f'    """\n    return ""\n'
        )
        space: dict[str, Any] = {}
        preamble = "from datetime import datetime\nfrom typing import Literal\n"
        exec(compile(preamble + source, name, "exec", dont_inherit=True), space)
        found.append(space[name])
    return found


def adapters(made: list[Any]) -> None:
    for function in made:
        TypeAdapter(function).json_schema()


def tools(made: list[Any]) -> None:
    anthropic.tools(Toolset([tool(function) for function in made]))


def measure_time(work: Callable[[list[Any]], None], made: list[Any]) -> float:
    gc.collect()
    begin = time.process_time()
    work(made)
    return time.process_time() - begin


if __name__ == "__main__":
    ratios, ours, theirs = [], [], []
    for run in range(5):
        first, second = functions(COUNT, run), functions(COUNT, run)
        theirs.append(measure_time(adapters, first))
        ours.append(measure_time(tools, second))
        ratios.append(ours[-1] / theirs[-1])
    print(f"{COUNT} tools of distinct signatures, Python {sys.version.split()[0]}")
    print(f"  TypeAdapter(fn) and json_schema()  {statistics.median(theirs) * 1000:7.0f} ms")
    print(f"  tool(fn), Toolset and export       {statistics.median(ours) * 1000:7.0f} ms")
    print(f"  ratio {statistics.median(ratios):.2f} x (asked for: 1.5 x)")
