"""The CPU time of `import ferrule`, ÷ that of asyncio and Pydantic."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from statistics import median

from measure import Line

BASE = "import asyncio; from pydantic import BaseModel, TypeAdapter"
EXTRAS = ("rich", "anthropic", "openai", "mcp", "jsonschema_rs", "httpx", "starlette", "opentelemetry")
_SHOW_EXTRAS = f"import sys, ferrule; print(*(name for name in {EXTRAS!r} if name in sys.modules))"


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds(code: str) -> float:
    """CPU seconds of a program."""
    begin = _spent()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, env=environment)
    return _spent() - begin


def measure(rounds: int = 21) -> Iterator[Line]:
    """The row, and whether an extra was imported."""
    base, ours = [], []
    seconds("import ferrule")  # writes byte code
    for _ in range(rounds):
        base.append(seconds(BASE))
        ours.append(seconds("import ferrule"))
    ratio = median(one / other for one, other in zip(ours, base, strict=True))
    loaded = subprocess.run([sys.executable, "-c", _SHOW_EXTRAS], check=True, capture_output=True, text=True)
    extras = loaded.stdout.strip()
    note = f"{median(ours) * 1000:.0f} ms" + (f"; it imports {extras}" if extras else "")
    yield Line("import, ÷ asyncio and Pydantic", "×", ratio, 1.25, note=note)
