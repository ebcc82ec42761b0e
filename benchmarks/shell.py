"""The cost of the sandbox: a line by `subprocess`, the same line in the sandbox, and 50 lines at once.

    python benchmarks/shell.py [LINES]

All in turns, so that a loaded machine slows all alike. Times are medians.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from ferrule import Runner
from ferrule.tools import shell

AT_ONCE = 50


async def main(lines: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        root = Path(folder, "project")
        root.mkdir()
        subprocess.run(["git", "init", "-q", root], check=True)
        if os.geteuid() == 0:  # as an ordinary user has it; root pays 10 to 15 ms more for its cgroup
            for place, _, files in os.walk(root):
                for name in (".", *files):
                    os.chown(os.path.join(place, name), 65534, 65534)
        runner = Runner([shell.tool(root, memory=256 << 20)])
        plain, boxed = [], []
        for _ in range(lines):
            started = time.perf_counter()
            subprocess.run(["/bin/bash", "-c", "true"], cwd=root, check=True)
            plain.append(time.perf_counter() - started)
            started = time.perf_counter()
            result = await runner.run("shell", {"command": "true"})
            boxed.append(time.perf_counter() - started)
            assert result.output["exit_code"] == 0, result.text
        print(f"subprocess {median(plain) * 1000:.1f} ms, sandbox {median(boxed) * 1000:.1f} ms")
        started = time.perf_counter()
        results = await asyncio.gather(*(runner.run("shell", {"command": "true"}) for _ in range(AT_ONCE)))
        assert all(result.output["exit_code"] == 0 for result in results)
        print(f"{AT_ONCE} lines at once: {(time.perf_counter() - started) * 1000:.0f} ms")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
