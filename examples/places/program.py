"""The same tools in this program, in worker processes, on two workers of DBOS, and on Ray, by one changed line.

    PLACE=program   python examples/places/program.py
    PLACE=processes python examples/places/program.py

For DBOS, with `FERRULE_REMOTE_KEY` and the address of a PostgreSQL database in `DBOS_SYSTEM_DATABASE_URL`, start two
workers in this folder, and then the program:

    PLACE=dbos ferrule worker place_tools:TOOLS
    PLACE=dbos python examples/places/program.py

For Ray, which this program starts on this machine: PLACE=ray python examples/places/program.py

What to change first: the tools, and the guard, which judges here wherever handlers run.
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
    told = Counter()
    runner = Runner(TOOLS, guards=[no_empty_texts], observers=[lambda event: told.update([event.kind])], timeout=60)
    counts = await runner.run_all([ToolCall(f"count{n}", "count_words", {"text": t}) for n, t in enumerate(TEXTS)])
    processes = Counter("here" if one.output["process"] == os.getpid() else "elsewhere" for one in counts)
    words = sum(one.output["words"] for one in counts)
    print(printable(f"{words} words were counted {dict(processes)}"))
    print(printable(f"{told['tool:progress']} times a handler told how far it was"))
    for title, count in (("Two", 2), ("Three", 3)):
        published = await runner.run("publish", {"title": title, "words": count})
        print(printable(f"{published.status}: {published.text}"))


if __name__ == "__main__":
    if hasattr(PLACE, "executor") and os.environ.get("PLACE") == "ray":
        import ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    asyncio.run(main())
