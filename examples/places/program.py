"""Run the same tools in this program, in worker processes, on two workers of DBOS, or on Ray, by one changed line.

    PLACE=program   python examples/places/program.py
    PLACE=processes python examples/places/program.py

For DBOS, with `FERRULE_REMOTE_KEY` and the address of a PostgreSQL database in `DBOS_SYSTEM_DATABASE_URL`, start two
workers in this folder, and then the program:

    PLACE=dbos ferrule worker place_tools:TOOLS
    PLACE=dbos python examples/places/program.py

For Ray, which this program starts on this machine: PLACE=ray python examples/places/program.py

It prints where the handlers ran:

    78 words were counted {'elsewhere': 12}
    36 progress reports
    denied: Denied: there is nothing to publish. Nothing was run.
    ok: 'Three', 3 words, is published by process 4711

What to change first: the tools, and the guard. It judges in this program, wherever handlers run.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter

from place_tools import PLACE, TOOLS

from ferrule import Runner, ToolCall, deny
from ferrule.approval import printable

TEXTS = [f"text {number} " + "word " * number for number in range(12)]


def no_empty_texts(call, context):
    return deny("there is nothing to publish") if call.name == "publish" and call.arguments["words"] < 3 else None


async def main() -> None:
    counts_by_kind = Counter()
    observers = [lambda event: counts_by_kind.update([event.kind])]
    runner = Runner(TOOLS, guards=[no_empty_texts], observers=observers, timeout=60)
    counts = await runner.run_all([ToolCall(f"count{n}", "count_words", {"text": t}) for n, t in enumerate(TEXTS)])
    processes = Counter("here" if count.output["process"] == os.getpid() else "elsewhere" for count in counts)
    words = sum(count.output["words"] for count in counts)
    print(printable(f"{words} words were counted {dict(processes)}"))
    print(printable(f"{counts_by_kind['tool:progress']} progress reports"))
    for title, count in (("Two", 2), ("Three", 3)):
        published = await runner.run("publish", {"title": title, "words": count})
        print(printable(f"{published.status}: {published.text}"))


if __name__ == "__main__":
    if hasattr(PLACE, "executor") and os.environ.get("PLACE") == "ray":
        import ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    asyncio.run(main())
