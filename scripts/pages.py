"""The programs of the documentation: where they stand, what a page gives each of them, and which test runs them.

A block of Python is a whole program, which a reader pastes into a file. If its first line names its file,
`# shop.py`, later programs of its page may import it. A block of TOML whose first line names its file,
`# policy.toml`, lies beside the later programs.

The tests that run programs, the check of their types, the environments of the extras, and `make docs` read this.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from textwrap import dedent

ROOT = Path(__file__).parent.parent
HERE = "conftest.py"
RUN_BY = {
    "docs/providers/*.md": "tests/models/test_provider_programs.py",  # they ask a server
    "docs/frameworks/*.md": "tests/adapters/frameworks/test_pages.py",
    "docs/testing.md": "tests/testing/test_testing_page.py",  # tests themselves
    "docs/contracts.md": "tests/testing/test_testing_page.py",
    "docs/beyond-one-machine.md": "tests/remote/engines/test_engines_page.py",  # they need DBOS and Ray
    "docs/telemetry.md": "tests/telemetry/test_telemetry_page.py",  # they need exporters
    "README.md": HERE,
    "docs/*.md": HERE,
    "docs/start/*.md": HERE,
    "docs/guides/*.md": HERE,
}
"""The file that runs the programs of a page, by a pattern of its path. The first that fits counts."""

SHOWN = ("console", "text", "json", "yaml")
"""The languages of blocks that nothing reads."""

_BLOCK = re.compile(r"^(?P<mark> *(?:`{3,}|~{3,}))(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=mark) *$", re.M | re.S)
_NAMED = re.compile(r"# (\w+)\.py\b")
_FILE = re.compile(r"# (\w+\.toml)\n")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page. `line` is the page's line of its first line, from 1; `start` and `end` are the
    places of its fences."""

    language: str
    text: str
    line: int
    start: int
    end: int
    mark: str


@dataclass(frozen=True)
class Program:
    """One program of a page."""

    block: Block
    source: str
    """Its text as a file, below empty lines that put it at its line of the page: an error names that line."""
    module: str | None
    """The name by which later programs import it."""
    modules: Mapping[str, Program]
    """The earlier programs that it may import."""
    files: Mapping[str, str]
    """The files that lie beside it."""

    def write(self, folder: Path) -> Path:
        """Write the program and everything that its page has it find; return the file to run."""
        texts = {f"{name}.py": one.source for name, one in self.modules.items()} | dict(self.files)
        if self.module:
            texts[f"{self.module}.py"] = self.source
        texts["program.py"] = f"import {self.module}" if self.module else self.source
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        return folder / "program.py"


def find_pages() -> dict[str, str]:
    """The text of each page by its path from the root of the repository."""
    files = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def find_blocks(text: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("text")) + 1
        yield Block(found["language"].strip(), found["text"], line, *found.span(), found["mark"])


def find_programs(text: str) -> list[Program]:
    """The programs of a page, in their order."""
    programs: list[Program] = []
    modules: dict[str, Program] = {}
    files: dict[str, str] = {}
    for block in find_blocks(text):
        if block.language == "toml" and (file := _FILE.match(block.text)):
            files[file[1]] = block.text
        if block.language != "python":
            continue
        named = _NAMED.match(block.text)
        source = "\n" * (block.line - 1) + block.text
        program = Program(block, source, named and named[1], dict(modules), dict(files))
        programs.append(program)
        if program.module:
            modules[program.module] = program
    return programs


def runner_of(page: str) -> str | None:
    """The file that runs the programs of this page, given as a path from the root; None if nothing does."""
    return next((test for pattern, test in RUN_BY.items() if PurePosixPath(page).match(pattern)), None)


def find_problems(page: str, text: str) -> list[str]:
    """Say which blocks of a page no test would run or read."""
    problems = []
    for block in find_blocks(text):
        if problem := _problem_of(page, block):
            problems.append(f"{page}:{block.line}: {problem}")
    return problems


def _problem_of(page: str, block: Block) -> str | None:
    if block.language == "python":
        if block.mark != "```":
            return f"no test runs Python between fences of {block.mark!r}: write '```python' at the start of its line"
        if runner_of(page) is None:
            return "no test runs the Python of this page: give its folder a line in RUN_BY of scripts/pages.py"
        return None
    if block.language == "toml":
        try:
            tomllib.loads(dedent(block.text))
        except tomllib.TOMLDecodeError as error:
            return f"this is no TOML: {error}"
    elif block.language not in SHOWN:
        return f"the language of a block is one of {', '.join(['python', 'toml', *SHOWN])}, and not {block.language!r}"
    return None
