#!/usr/bin/env python3
"""Runs the programs of the pages, each pasted into a file, with no more extras than its page names.

    python scripts/page_extras.py                   all pages; `make test-all` runs it
    python scripts/page_extras.py docs/mcp.md       some of them

A page names its extras in `pip install "ferrule[cli,mcp]" pytest`, with other packages behind. Pages with the same
names share an environment below build/extras, which pip makes once. Pages whose programs need a server, a framework
or pytest run elsewhere (`RUN_BY` in scripts/pages.py). An environment that cannot be made skips its pages with the
reason; with FERRULE_NEEDS=all, as in .ci/run, it fails.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from needs import required, run
from pages import HERE, ROOT, Program, find_pages, find_programs, runner_of

BUILT = ROOT / "build" / "extras"
SECONDS = 120
"""How long one program may take."""
_INSTALLS = re.compile(r"pip install \"ferrule(?:\[([\w,-]+)\])?\"((?: [a-z][\w-]*)*)")


def find_packages(text: str) -> tuple[str, ...]:
    """What pip installs for a page: Ferrule with the extras that it names, and the other packages."""
    found = _INSTALLS.findall(text)
    extras = sorted({extra for named, _ in found for extra in named.split(",") if extra})
    others = sorted({other for _, behind in found for other in behind.split()})
    return f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT), *others


def make_environment(packages: tuple[str, ...]) -> Path:
    """Return the Python of an environment with these packages, which is made if it is not there.

    Raises:
        LookupError: pip could not make it.
    """
    wanted = repr(packages) + "".join((ROOT / name).read_text() for name in ("pyproject.toml", "constraints.txt"))
    folder = BUILT / f"{sys.version_info.minor}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not (folder / "complete").exists():
        print(f"Installing {' '.join(packages).replace(str(ROOT), 'ferrule')} …", file=sys.stderr, flush=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq", "--no-compile"]
        first, *others = packages
        problem = run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(folder)]) or run(
            [*pip, "-c", str(ROOT / "constraints.txt"), "-e", first, *others]
        )
        if problem is not None:
            raise LookupError(problem)
        (folder / "complete").touch()
    return python


def run_program(python: Path, program: Program) -> str | None:
    """Run a program in a folder of its own; return what went wrong."""
    environment = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "SYSTEMROOT", "LANG")}
    environment["PATH"] = os.pathsep.join([os.fspath(python.parent), environment.get("PATH", os.defpath)])
    with tempfile.TemporaryDirectory() as folder:
        command = [os.fspath(python), os.fspath(program.write(Path(folder)))]
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return f"it had not ended after {SECONDS} seconds"
    return done.stderr.decode(errors="replace").strip()[-2000:] or "it failed" if done.returncode else None


def main() -> int:
    pages = {page: text for page, text in find_pages().items() if runner_of(page) == HERE and find_programs(text)}
    if unknown := [name for name in sys.argv[1:] if name not in pages]:
        print(f"{unknown[0]!r} is no page whose programs run here; those are {', '.join(pages)}", file=sys.stderr)
        return 2
    chosen: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for page in sys.argv[1:] or pages:
        chosen[find_packages(pages[page])].append(page)
    failed = 0
    for packages, names in sorted(chosen.items()):
        try:
            python = make_environment(packages)
        except LookupError as error:
            print(f"{'FAILED' if required() else 'SKIPPED'}: {', '.join(names)}: {error}", file=sys.stderr)
            failed += required()
            continue
        programs = [(page, program) for page in names for program in find_programs(pages[page])]
        with ThreadPoolExecutor(2) as pool:
            problems = pool.map(partial(run_program, python), [program for _, program in programs])
            for (page, program), problem in zip(programs, problems, strict=True):
                if problem is not None:
                    failed += 1
                    print(f"FAILED: {page}:{program.block.line}: {problem}", file=sys.stderr)
        print(f"{len(programs)} programs of {len(names)} pages with {' '.join(packages).replace(str(ROOT), 'ferrule')}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
