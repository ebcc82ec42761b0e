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

SERVERS = {
    "SDK": Path(__file__).parent.parent / "tests" / "sources" / "stdio_server.py",
    "waiting": Path(__file__).parent / "waiting_server.py",
}
"""Three servers of the SDK take two seconds of CPU, and share the cores with `ferrule list`. Those that wait for a
second, as on a download or a network, show the part of Ferrule.
"""


async def _start_bare(server: Path) -> float:
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    begin = time.perf_counter()
    target = StdioServerParameters(command=sys.executable, args=[str(server)])
    async with Client(stdio_client(target)) as client:
        await client.list_tools()
        return time.perf_counter() - begin


def _list(file: Path) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "ferrule", "list", "--mcp", str(file)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def measure(rounds: int = 7) -> Iterator[Line]:
    """Wall time: most of it is that of other processes."""
    for kind, server in SERVERS.items():
        work = f"ferrule list on three {kind} servers, + one"
        if importlib.util.find_spec("mcp") is None:
            yield Line(work, "ms", None, 150, note="the package mcp is not installed")
        else:
            bare, ours = _measure_listing(server, rounds)
            added = median(mine - other for mine, other in zip(ours, bare, strict=True)) * 1000
            note = f"{median(ours) * 1000:.0f} ms, one server {median(bare) * 1000:.0f} ms"
            yield Line(work, "ms", added, 150, note=note)


def _measure_listing(server: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of the SDK's client with one server, and of `ferrule list` with three, in turns."""
    one = {"command": sys.executable, "args": [str(server)]}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "mcp.json")
        file.write_text(json.dumps({"mcpServers": dict.fromkeys("abc", one)}), encoding="utf-8")
        bare, ours = [], []
        for _ in range(rounds):
            bare.append(asyncio.run(_start_bare(server)))
            ours.append(_list(file))
    return bare, ours
