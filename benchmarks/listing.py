"""How long `ferrule list` takes on three MCP servers, beyond the slowest of them."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from measure import Line

SERVER = Path(__file__).parent.parent / "tests" / "sources" / "stdio_server.py"


async def _start_bare() -> float:
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    begin = time.perf_counter()
    target = StdioServerParameters(command=sys.executable, args=[str(SERVER)])
    async with Client(stdio_client(target)) as client:
        await client.list_tools()
        return time.perf_counter() - begin


def _list(file: Path) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "ferrule", "list", "--mcp", str(file)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def measure(rounds: int = 7) -> Iterator[Line]:
    """Wall time: most of it is that of other processes. Three servers share two cores here, the bare one has both."""
    work = "ferrule list on three servers, + the slowest"
    if importlib.util.find_spec("mcp") is None:
        yield Line(work, "ms", None, 150, note="the package mcp is not installed")
        return
    one = {"command": sys.executable, "args": [str(SERVER)]}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "mcp.json")
        file.write_text(json.dumps({"mcpServers": dict.fromkeys("abc", one)}), encoding="utf-8")
        bare, ours = [], []
        for _ in range(rounds):
            bare.append(asyncio.run(_start_bare()))
            ours.append(_list(file))
    added = median(mine - other for mine, other in zip(ours, bare, strict=True)) * 1000
    yield Line(work, "ms", added, 150, note=f"{median(ours) * 1000:.0f} ms, one server {median(bare) * 1000:.0f} ms")
