"""What `import ferrule` costs, as a ratio to importing asyncio and Pydantic, and that it brings in no extra; and what
`ferrule --help` costs, as a ratio to `import ferrule`.

Run: python benchmarks/startup.py (from an installed package with byte code)
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

BASE = "import asyncio; from pydantic import BaseModel, TypeAdapter"
HELP = "from ferrule.cli import main; main(['--help'])"
EXTRAS = ("rich", "anthropic", "openai", "mcp", "jsonschema_rs", "httpx", "starlette", "opentelemetry")


def seconds(code: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


if __name__ == "__main__":
    for code in (BASE, HELP):
        seconds(code)
    empty, base, ours, helped = [], [], [], []
    for _ in range(15):
        empty.append(seconds("pass"))
        base.append(seconds(BASE))
        ours.append(seconds("import ferrule"))
        helped.append(seconds(HELP))
    start = statistics.median(empty)
    ratio = statistics.median(o / b for o, b in zip(ours, base, strict=True))
    print(f"Python {sys.version.split()[0]}, starting alone {start * 1000:.0f} ms")
    print(f"  {BASE}  {statistics.median(base) * 1000:.0f} ms")
    print(f"  import ferrule  {statistics.median(ours) * 1000:.0f} ms")
    print(f"  ratio {ratio:.2f} x (asked for: 1.3 x)")
    ratio = statistics.median(h / o for h, o in zip(helped, ours, strict=True))
    print(f"  ferrule --help  {statistics.median(helped) * 1000:.0f} ms")
    print(f"  ratio to import ferrule {ratio:.2f} x (asked for: 1.3 x)")
    loaded = subprocess.run(
        [sys.executable, "-c", f"import sys, ferrule; print([n for n in {EXTRAS!r} if n in sys.modules])"],
        check=True,
        capture_output=True,
        text=True,
    )
    print(f"  extras that it brought in: {loaded.stdout.strip()}")
