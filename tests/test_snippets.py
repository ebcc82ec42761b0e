"""Each snippet of the docs runs as a program of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def page(*snippets: str) -> str:
    return "# A page\n\n" + "\n".join(f"```python\n{snippet}\n```\n" for snippet in snippets)


def collected(folder: Path, text: str) -> tuple[int, str]:
    """What pytest says of a page with these snippets: its exit code and what it printed."""
    (folder / "conftest.py").write_text((ROOT / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "docs").mkdir()
    (folder / "docs" / "page.md").write_text(text, encoding="utf-8")
    paths = (ROOT / "tests" / "support", ROOT / "scripts")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.fspath, paths))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "docs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, env=environment)
    return done.returncode, done.stdout


def test_a_snippet_that_awaits_at_its_top_level_or_needs_an_earlier_one_fails(tmp_path: Path) -> None:
    awaits = "async def two():\n    return 2\n\nassert await two() == 2"
    code, output = collected(tmp_path, page("import asyncio", awaits, "number = 2", "assert number == 2", "asyncio"))
    assert code == 1 and "3 failed, 2 passed" in output
    for said in ("'await' outside function", "name 'number' is not defined", "name 'asyncio' is not defined"):
        assert f"{said}: a snippet is a whole program" in re.sub(r" \(program.*?\)", "", output)


PROGRAM = """
from __future__ import annotations
import asyncio
from dataclasses import dataclass
from pathlib import Path

@dataclass
class Order:
    items: list[str]

async def main():
    Path("order.txt").write_text(Order(["a"]).items[0])

if __name__ == "__main__":
    asyncio.run(main())
    assert Path("order.txt").read_text() == "a" and Path(__file__).name == "program.py"
    FAILS
"""


def test_a_snippet_is_run_as_the_file_that_a_reader_makes_of_it(tmp_path: Path) -> None:
    module = "# shop.py: a module\nPRICE = 3"
    imports = "from shop import PRICE\nassert PRICE == 3 and __name__ == '__main__'"
    wrong = PROGRAM.replace("FAILS", "assert False")
    code, output = collected(tmp_path, page(PROGRAM.replace("FAILS", ""), wrong, module, imports, "# no.py\nno"))
    assert code == 1 and "2 failed, 3 passed" in output
    assert "AssertionError: name 'no' is not defined" in output
