"""`ferrule eval`: measure the choice of tools and arguments by a model, for the requests of a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from ferrule import Decision, Runner, ToolCall, ToolContext, allow
from ferrule.approval import printable
from ferrule.cli import find, models, openapi, policies, servers
from ferrule.cli.usage import UsageError, at_least_one, share
from ferrule.journal import memory
from ferrule.testing import Case, ToolUse, evaluate, fake, read_cases
from ferrule.testing.scores import SCORES, check_minimums

_MOST_WRONG = 10
_FAKED = "the tools are faked, and none of them runs (--live runs them)"
_LIVE = "the tools are live"


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the cases, the model, and the minimums of its scores."""
    parser.add_argument("cases", help="the file of cases, CASES.jsonl: a request and the calls that are right, a line")
    parser.add_argument("--model", required=True, metavar="MODEL", help=models.MODEL_HELP)
    parser.add_argument("--base-url", metavar="URL", help=models.ADDRESS_HELP)
    parser.add_argument(
        "--max-turns",
        type=at_least_one,
        default=20,
        metavar="N",
        help="how often the model is asked in a case at most (default: 20); with 1, its first calls are looked at and "
        "not run",
    )
    parser.add_argument(
        "--at-once", type=at_least_one, default=1, metavar="N", help="how many cases run side by side (default: 1)"
    )
    for name in SCORES:
        parser.add_argument(f"--min-{name}", type=share, metavar="SHARE", help=f"end with 1 where {name} is below this")
    parser.add_argument(
        "--live",
        action="store_true",
        help="run the tools, with the policy of ferrule run; without it they are faked, and no question is asked",
    )
    find.add_yes(parser)
    find.add_lock(parser)
    policies.add_policy(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")


def command(options: argparse.Namespace) -> int:
    """Print the scores. Return 1 if a threshold is missed, or the model failed in a case."""
    if options.yes and not options.live:
        raise UsageError("--yes is for --live: of tools that are faked, nothing that is asked about is refused")
    try:
        cases = read_cases(options.cases)
    except OSError as error:
        raise UsageError(f"the cases of {options.cases!r} cannot be read: {error.strerror or error}") from None
    least = {name: given for name in SCORES if (given := getattr(options, f"min_{name}")) is not None}
    check_minimums(least, cases)
    found = _evaluated(options, cases, models.by_case(options.model, options.base_url))
    missed = found.find_missed(**least)
    if options.json:
        told = {"model": options.model, "live": options.live, **found.to_json(), "missed": missed}
        print(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        _show_tool_use(found, options)
        for line in missed:
            print(line)
    return int(bool(missed) or any(one.error is not None for one in found.outcomes))


def _evaluated(options: argparse.Namespace, cases: list[Case], model_of: Callable[[str], models.Named]) -> ToolUse:
    given = {case.id: model_of(case.id) for case in cases}
    with servers.connected(options, openapi.BUDGET, calls=options.live) as (work, more):
        runner = find.runner(
            options.tools,
            yes=options.yes,
            more=more,
            lock=options.lock,
            policy=policies.of(options),
            secrets=openapi.secrets(options),
        )
        used = runner if options.live else _faked(runner)
        turns, at_once = options.max_turns, options.at_once

        async def ask() -> ToolUse:
            try:
                return await evaluate(cases, lambda case: given[case.id], used, max_turns=turns, at_once=at_once)
            finally:
                for model in dict.fromkeys(given.values()):
                    await model.aclose()

        return work.run(ask())


def _faked(runner: Runner) -> Runner:
    """Return the runner with its guards and limits, but with fakes. Nothing runs, nobody is asked, and no record
    remains.
    """
    journal: dict[str, Any] = {} if runner.journal is None else {"journal": memory()}
    return runner.replace(tools=fake(runner.tools), approve=_let_run, observers=(), **journal)


async def _let_run(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    return allow(by="ferrule eval")


def _show_tool_use(found: ToolUse, options: argparse.Namespace) -> None:
    count = len(found.outcomes)
    print(printable(f"{count} {'case' if count == 1 else 'cases'}, asked of {options.model}"))
    print(_LIVE if options.live else _FAKED)
    print()
    _print_lines(found.table())
    wrong = found.worst(_MOST_WRONG)
    if wrong:
        print("\nNot exactly right, the worst first:")
        _print_lines("\n".join(line for one in wrong for line in one.lines()))


def _print_lines(text: str) -> None:
    for line in text.split("\n"):
        print(printable(line))
