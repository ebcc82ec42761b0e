"""`ferrule test`: run test files. Each test is a call or a conversation with its expected outcome."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from ferrule.approval import printable
from ferrule.cli import servers
from ferrule.cli.policy import print_findings
from ferrule.cli.screen import make_table, print_table, wide
from ferrule.cli.shared_options import OPERATIONS_BUDGET, add_json
from ferrule.cli.test_file import read_tool_tests
from ferrule.cli.test_runs import TestOutcome, prepare_file, run_test
from ferrule.cli.text import print_json, to_line
from ferrule.cli.usage import UsageError, read_or_refuse
from ferrule.values.count import format_count

_NAME = 200
_WRONG_FILE = 2


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the files, and whether tools run."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file of tests, such as tests.toml")
    parser.add_argument(
        "--live", action="store_true", help="run the tools of files with live = true; without it tools are fakes"
    )
    add_json(parser)


def command(options: argparse.Namespace) -> int:
    """Print the outcome of each test. Return 1 if one fails, 2 if a file is wrong."""
    files = [read_or_refuse(read_tool_tests, file) for file in options.files]
    findings = [finding for file in files for finding in file.findings]
    if findings:
        print_findings(findings)
        print(f"{format_count(len(findings), 'error')}; no test was run")
        return _WRONG_FILE
    live = [file.source for file in files if file.live]
    if live and not options.live:
        raise UsageError(f"{live[0]!r} has live = true, so its tools run: add --live if you want that")
    with servers.connect_servers(options, OPERATIONS_BUDGET, calls=bool(live)) as (work, extra):
        prepared = [prepare_file(file, options.tools, extra) for file in files]
        outcomes = [work.run(run_test(test, file)) for file in prepared for test in file.file.tests]
    if options.json:
        print_json([_to_json(outcome) for outcome in outcomes])
    else:
        _print_outcomes(outcomes)
    return int(any(outcome.wrong for outcome in outcomes))


def _to_json(outcome: TestOutcome) -> dict[str, object]:
    test = outcome.test
    return {
        "file": test.source,
        "line": test.line,
        "name": test.name,
        "status": outcome.status,
        "passed": not outcome.wrong,
        "wrong": outcome.wrong,
        "lines": outcome.lines,
    }


def _print_outcomes(outcomes: Sequence[TestOutcome]) -> None:
    print_table(_outcomes_table(outcomes))
    failures = [outcome for outcome in outcomes if outcome.wrong]
    for outcome in failures:
        print()
        print(f"{_format_place(outcome)} {_format_name(outcome)}")
        for line in (*outcome.lines, *(f"wrong  {text}" for text in outcome.wrong)):
            print(printable("  " + line.replace("\n", "\n         ")))
    count = format_count(len(outcomes), "test")
    print(f"\n{len(failures)} of {count} failed" if failures else f"\n{count} passed")


def _outcomes_table(outcomes: Sequence[TestOutcome]) -> Table:
    table = make_table("", wide("test"), wide("name"), "status")
    for outcome in outcomes:
        mark = Text("FAILED", "bold red") if outcome.wrong else Text("ok", "green")
        table.add_row(mark, _format_place(outcome), _format_name(outcome), outcome.status)
    return table


def _format_place(outcome: TestOutcome) -> str:
    return to_line(f"{outcome.test.source}:{outcome.test.line}", _NAME)


def _format_name(outcome: TestOutcome) -> str:
    test = outcome.test
    return to_line(test.name or test.call or test.user or "", _NAME)
