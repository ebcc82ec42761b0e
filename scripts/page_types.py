#!/usr/bin/env python3
"""Checks the types of the programs of README.md and docs/, with mypy and pyright, as a reader's editor does.

    python scripts/page_types.py            both; `make types-pages`, and so `make test`, runs it
    python scripts/page_types.py pyright    one of them

Each program becomes a module of build/snippets, so that one run reads all of them. Packages that are not installed
here, such as frameworks, are unknown to both checkers. An error names the page and its line.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pages import ROOT, Program, find_pages, find_programs

PACKAGE = "snippets"
"""pyproject.toml has the settings of mypy for it."""
PYRIGHT = {
    "include": [PACKAGE],
    "pythonVersion": "3.11",
    "typeCheckingMode": "standard",
    "reportMissingImports": False,
    "reportMissingModuleSource": False,
}
"""pyright's own default, but for packages that are not here."""
CHECKERS = ("mypy", "pyright")


def extract(pages: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Write each program as a module of the package in `folder`; return the page of each file."""
    shutil.rmtree(folder / PACKAGE, ignore_errors=True)
    (folder / PACKAGE).mkdir(parents=True)
    (folder / PACKAGE / "__init__.py").touch()
    (folder / f"{PACKAGE}.json").write_text(json.dumps(PYRIGHT), encoding="utf-8")
    written = {}
    for page, text in pages.items():
        for program in find_programs(text):
            file = f"{_module_name(page, program)}.py"
            (folder / PACKAGE / file).write_text(_rename_imports(page, program), encoding="utf-8")
            written[file] = page
    return written


def _module_name(page: str, program: Program) -> str:
    return f"{re.sub(r'[^a-z0-9]+', '_', page.lower().removesuffix('.md'))}_{program.block.line}"


def _rename_imports(page: str, program: Program) -> str:
    """The program, which imports the modules of its page by the names that they have here."""
    source = program.source
    for name, module in program.modules.items():
        here = f"{PACKAGE}.{_module_name(page, module)}"
        source = re.sub(rf"^(\s*)from {name} import ", rf"\1from {here} import ", source, flags=re.M)
        source = re.sub(rf"^(\s*)import {name}$", rf"\1import {here} as {name}", source, flags=re.M)
    return source


def check(checker: str, folder: Path, written: Mapping[str, str]) -> tuple[bool, str]:
    """Whether one checker finds nothing, and what it says, with the page in place of each file."""
    options = {
        "mypy": ["--no-error-summary", os.fspath(folder / PACKAGE)],
        "pyright": ["--pythonpath", sys.executable, "-p", os.fspath(folder / f"{PACKAGE}.json")],
    }
    command = [sys.executable, "-m", checker, *options[checker]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    said = re.sub(rf"\S*\b{PACKAGE}[\\/](\w+\.py)", lambda file: written.get(file[1], file[0]), done.stdout)
    return done.returncode == 0, said + done.stderr


def main() -> int:
    written = extract(find_pages(), ROOT / "build")
    print(f"{len(written)} programs of {len({*written.values()})} pages")
    right = []
    for checker in sys.argv[1:] or CHECKERS:
        passed, said = check(checker, ROOT / "build", written)
        print(said, end="")
        right.append(passed)
    return 0 if all(right) else 1


if __name__ == "__main__":
    raise SystemExit(main())
