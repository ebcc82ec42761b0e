"""What the tests with programs of others share: the environment, and a served runner."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from waits import BOUND

ROOT = Path(__file__).parent.parent.parent
TOOLS = Path(__file__).parent / "conformance_tools.py"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}


@contextlib.contextmanager
def serving(*command: str) -> Iterator[str]:
    """The address that a program prints, which serves the tools over HTTP, while it runs."""
    server = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    )
    assert server.stdout is not None
    said = ""
    while not (found := re.search(r"http://\S+/mcp", said)):
        line = server.stdout.readline()
        assert line, f"the server ended: {said}"
        said += line
    try:
        yield found[0]
    finally:
        server.terminate()
        server.communicate(timeout=BOUND)
