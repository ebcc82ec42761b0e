"""What one call costs in instructions, as a ratio to Pydantic's own validate-and-call: they repeat to half a percent
however busy the machine is. Needs valgrind.

Run: python benchmarks/instructions.py                  (all cases, with the interpreter that runs it)
     python benchmarks/instructions.py --case add       (one of them: add, order, nested, text)
     python benchmarks/instructions.py --profile add    (the functions that make up one call; without valgrind)
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from cases import CASES, Case, everything, floor, nothing
from measure import Block, Line

KINDS: dict[str, Callable[[Case], Block]] = {
    "floor": lambda case: floor(case.function, case.text),
    "everything": everything,
    "nothing": nothing,
}
OLDER_GOALS = 16, 6.5  # of two integers, before Python 3.13
_WARM_UP = 64  # Python 3.13 has specialised its byte code by then


def main() -> None:
    cases = {case.key: case for case in CASES}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=cases, help="one case instead of all")
    parser.add_argument("--profile", choices=cases, help="what one call goes through, function by function")
    parser.add_argument("--count", nargs=2, help=argparse.SUPPRESS)  # what runs below valgrind
    options = parser.parse_args()
    if options.count:
        kind, key = options.count
        asyncio.run(between_marks(KINDS[kind](cases[key]), cases[key].calls))
    elif options.profile:
        for kind in ("everything", "nothing"):
            profile(kind, cases[options.profile])
    elif shutil.which("valgrind") is None:
        print("instructions are counted by valgrind, which is not installed (apt-get install valgrind)")
    else:
        report([cases[options.case]] if options.case else CASES)


async def between_marks(block: Block, calls: int) -> None:
    """`calls` calls between two marks, which are calls of a C function that nothing else makes."""
    await block(_WARM_UP)
    os.getppid()
    await block(calls)
    os.getppid()


def count_instructions(program: list[str], *options: str, part: str = "") -> int:
    """The instructions of a Python program: all, or those of one of the parts that the options split it into."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "counts"
        subprocess.run(
            ["valgrind", "--tool=callgrind", *options, f"--callgrind-out-file={written}", sys.executable, *program],
            check=True,
            capture_output=True,
            cwd=folder,  # the folder stands on the path of imports, and its files would count
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        counts = Path(f"{written}{part}").read_text()
    found = re.search(r"^(?:totals|summary): (\d+)", counts, re.MULTILINE)
    assert found is not None, "callgrind wrote no total"
    return int(found[1])


def instructions(kind: str, case: Case) -> float:
    """The instructions of one call, without those of the start: callgrind writes its counts anew at each mark."""
    program = [str(Path(__file__).resolve()), "--count", kind, case.key]
    # .1 is the start, .2 is between the marks
    return count_instructions(program, "--dump-before=getppid", part=".2") / case.calls


def measure() -> Iterator[Line]:
    """The rows of the table. On 3.11 and 3.12, two integers have goals of their own."""
    if shutil.which("valgrind") is None:
        yield Line("instructions of a call", "× floor", None, note="valgrind is not installed")
        return
    for case in CASES:
        base = instructions("floor", case)
        older = OLDER_GOALS if sys.version_info < (3, 13) and case.key == "add" else case.asked
        for kind, goal in zip(("everything", "nothing"), older, strict=True):
            found = instructions(kind, case) / base
            work = f"instructions, {case.key}{', nothing on' if kind == 'nothing' else ''}"
            yield Line(work, "× floor", found, goal, note=f"floor {base:,.0f}")


def report(cases: list[Case] | tuple[Case, ...]) -> None:
    print(f"Python {sys.version.split()[0]}: instructions of one call, as a ratio to validate_json")
    for case in cases:
        base = instructions("floor", case)
        print(f"  {case.title:50} floor {base:10,.0f}", end="", flush=True)
        for kind in ("everything", "nothing"):
            print(f"   {kind} {instructions(kind, case) / base:5.2f}", end="", flush=True)
        print()


def profile(kind: str, case: Case, calls: int = 20) -> None:
    """What one call goes through: the byte code that each function executes, and how often a C function is called."""
    codes: Counter[CodeType] = Counter()
    entered: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if event == "call":
            entered[format_code(frame.f_code)] += 1
        codes[frame.f_code] += event == "opcode"
        frame.f_trace_opcodes = True
        return trace

    def on_call(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call":
            entered[getattr(function, "__qualname__", repr(function))] += 1

    async def run(block: Block) -> None:
        await block(_WARM_UP)
        sys.setprofile(on_call)
        sys.settrace(trace)
        await block(calls)
        sys.settrace(None)
        sys.setprofile(None)

    asyncio.run(run(KINDS[kind](case)))
    executed = {format_code(code): count for code, count in codes.items()}
    print(f"\n{case.title}, {kind}: in one call {sum(executed.values()) / calls:,.0f} steps of byte code")
    print("   times   steps")
    for name in sorted(entered, key=lambda name: (-executed.get(name, 0), -entered[name])):
        if entered[name] >= calls:
            print(f"  {entered[name] / calls:6.1f}  {executed.get(name, 0) / calls:6.0f}  {name}")


def format_code(code: CodeType) -> str:
    return f"{code.co_qualname}  {Path(code.co_filename).name}:{code.co_firstlineno}"


if __name__ == "__main__":
    main()
