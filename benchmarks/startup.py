"""The cost of `import ferrule`, ÷ that of asyncio and Pydantic: in instructions if valgrind is installed, since these
repeat to a tenth of a percent however busy the machine is, or else in CPU time."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from statistics import median

from instructions import count_instructions
from measure import Line

BASE = "import asyncio; from pydantic import BaseModel, TypeAdapter"
OURS = "import ferrule"
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
    seconds(OURS)  # writes byte code
    if shutil.which("valgrind") is not None:
        ours, base = (count_instructions(["-c", code]) for code in (OURS, BASE))
        ratio, note = ours / base, f"{ours / 1e6:.0f} million instructions"
    else:
        times = [(seconds(OURS), seconds(BASE)) for _ in range(rounds)]
        ratio = median(one / other for one, other in times)
        note = f"{median(one for one, _ in times) * 1000:.0f} ms; CPU time, since valgrind is not installed"
    loaded = subprocess.run([sys.executable, "-c", _SHOW_EXTRAS], check=True, capture_output=True, text=True)
    extras = loaded.stdout.strip()
    note += f"; it imports {extras}" if extras else ""
    yield Line("import, ÷ asyncio and Pydantic", "×", ratio, 1.25, note=note)
