"""`ferrule test`: the tests of files, each a call or a conversation and its expected outcome."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from ferrule import Toolset
from ferrule.approval import printable
from ferrule.cli import openapi, servers
from ferrule.cli.policy import count_text, print_findings
from ferrule.cli.screen import lay, screen, table_of
from ferrule.cli.test_file import ToolTests, read_tool_tests
from ferrule.cli.test_runs import Ran, ready, run_test
from ferrule.cli.text import one_line
from ferrule.cli.usage import UsageError

_WIDTH_OF_A_NAME = 200
_WRONG_FILE = 2


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the files, and whether tools are live."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file of tests, such as tests.toml")
    parser.add_argument(
        "--live", action="store_true", help="let the tools of files that say live = true run, with what these approve"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")


def command(options: argparse.Namespace) -> int:
    """Print the outcome of each test. Return 1 if one fails, 2 if a file is wrong."""
    files = [_read_file(file) for file in options.files]
    findings = [finding for file in files for finding in file.findings]
    if findings:
        print_findings(screen(), findings)
        print(f"{count_text(len(findings), 'error')}, so no test was run")
        return _WRONG_FILE
    live = [file.source for file in files if file.live]
    if live and not options.live:
        raise UsageError(
            f"{live[0]!r} says live = true: its tools run, and what it approves is done. Say so too, by --live"
        )
    with servers.connected(options, openapi.BUDGET, calls=bool(live)) as (work, more):
        outcomes = _run_all(files, options.tools, more, work)
    if options.json:
        print(json.dumps([_ran_for_programs(one) for one in outcomes], indent=2, ensure_ascii=False))
    else:
        _show_outcomes(outcomes)
    return int(any(one.wrong for one in outcomes))


def _read_file(file: str) -> ToolTests:
    try:
        return read_tool_tests(file)
    except OSError as error:
        raise UsageError(f"the tests of {file!r} cannot be read: {error.strerror or error}") from None


def _run_all(
    files: Sequence[ToolTests], tools: Sequence[str] | None, more: Toolset | None, work: asyncio.Runner
) -> list[Ran]:
    prepared = [ready(file, tools, more) for file in files]
    return [work.run(run_test(test, one)) for one in prepared for test in one.file.tests]


def _ran_for_programs(one: Ran) -> dict[str, object]:
    test = one.test
    return {
        "file": test.source,
        "line": test.line,
        "name": test.name,
        "status": one.status,
        "passed": not one.wrong,
        "wrong": one.wrong,
        "lines": one.lines,
    }


def _show_outcomes(outcomes: Sequence[Ran]) -> None:
    lay(screen(), _tests_table(outcomes))
    failed = [one for one in outcomes if one.wrong]
    for one in failed:
        print(printable(f"\n{one.test.source}:{one.test.line} {one_line(_name(one), _WIDTH_OF_A_NAME)}"))
        for line in (*one.lines, *(f"wrong  {wrong}" for wrong in one.wrong)):
            print(printable("  " + line.replace("\n", "\n         ")))
    count = count_text(len(outcomes), "test")
    print(f"\n{len(failed)} of {count} failed" if failed else f"\n{count} passed")


def _tests_table(outcomes: Sequence[Ran]) -> Table:
    table = table_of("", "test", "name", "status", wrapped={"test", "name"})
    for one in outcomes:
        mark = Text("FAILED", "bold red") if one.wrong else Text("ok", "green")
        place = one_line(f"{one.test.source}:{one.test.line}", _WIDTH_OF_A_NAME)
        table.add_row(mark, place, one_line(_name(one), _WIDTH_OF_A_NAME), one.status)
    return table


def _name(one: Ran) -> str:
    test = one.test
    return test.name or test.call or test.user or ""
