"""What it costs to judge a shell line by `guards.commands`: one that was seen before, and one that was not.

Run: python benchmarks/commands.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from ferrule import ToolContext
from ferrule.guards import commands
from ferrule.security.commands import read_line
from ferrule.values.call import ToolCall

LINES = {
    "plain": "git log --oneline -5 | head -3",
    "long": "cd src && pytest -q tests/ 2>&1 | tail -20; " * 20 + "git status",
    "longest": "a b; " * 3_900,
    "wrapped": "env A=1 timeout 5 bash -c 'git status; xargs rm'",
}
GUARD = commands(allow=["git log *", "head *", "pytest *", "cd *", "tail *"], ask=["git push *"], deny=["rm *"])
CONTEXT = ToolContext[None]()


def milliseconds(work: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        begin = time.process_time()
        work()
        taken.append((time.process_time() - begin) * 1000)
    return statistics.median(taken)


def judge(line: str, anew: bool) -> None:
    if anew:
        read_line.cache_clear()
    GUARD(ToolCall("1", "shell", {"command": line}), CONTEXT)


if __name__ == "__main__":
    for name, text in LINES.items():
        times = 10 if name == "longest" else 500
        seen, unseen = (milliseconds(lambda text=text, anew=anew: judge(text, anew), times) for anew in (False, True))  # type: ignore[misc]
        asked = " (asked for: 1 ms seen before)" if name == "plain" else ""
        print(f"{name:8} {len(text):6} characters: {seen:.3f} ms seen before, {unseen:.3f} ms not{asked}")
