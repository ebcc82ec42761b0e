"""`ferrule eval`: measure the choice of tools and arguments by a model, for the requests of a file."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ferrule import Decision, ToolCall, ToolContext, allow
from ferrule.approval import printable
from ferrule.cli import models, servers
from ferrule.cli.runners import make_runner, without_effects
from ferrule.cli.shared_options import OPERATIONS_BUDGET, add_json, add_minimum, add_shared
from ferrule.cli.text import print_json
from ferrule.cli.usage import UsageError, parse_count, read_or_refuse
from ferrule.testing import Case, ToolUse, evaluate, fake, read_cases
from ferrule.testing.scores import SCORES, check_minimums
from ferrule.values.count import format_count

_MOST_WRONG = 10
_FAKES = "the tools are fakes; --live runs the real ones"
_LIVE = "the tools run"


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the cases, the model, and the minimums of its scores."""
    parser.add_argument("cases", metavar="CASES.jsonl", help="a file with one case a line: a request and its calls")
    parser.add_argument("--live", action="store_true", help="run the tools; without it they are fakes")
    parser.add_argument(
        "--at-once", type=parse_count, default=1, metavar="N", help="cases at the same time (default: 1)"
    )
    for name in SCORES:
        add_minimum(parser, f"--min-{name}", f"the score {name!r}")
    add_json(parser)
    add_shared(parser, "--model", "--base-url", "--max-turns", "--yes", "--policy", "--lock", required=["--model"])


def command(options: argparse.Namespace) -> int:
    """Print the scores. Return 1 if a score is too low, or if the model failed in a case."""
    if options.yes and not options.live:
        raise UsageError("--yes needs --live: fake tools run without approval")
    cases = read_or_refuse(read_cases, options.cases)
    least = {name: share for name in SCORES if (share := getattr(options, f"min_{name}")) is not None}
    check_minimums(least, cases)
    use = _run_cases(options, cases, models.make_case_models(options.model, options.base_url))
    missed = use.find_missed(**least)
    if options.json:
        print_json({"model": options.model, "live": options.live, **use.to_json(), "missed": missed})
    else:
        _print_scores(use, options)
        for line in missed:
            print(line)
    return int(bool(missed) or any(outcome.error is not None for outcome in use.outcomes))


def _run_cases(
    options: argparse.Namespace, cases: list[Case], get_model: Callable[[str], models.NamedModel]
) -> ToolUse:
    case_models = {case.id: get_model(case.id) for case in cases}
    with servers.connect_servers(options, OPERATIONS_BUDGET, calls=options.live) as (work, extra):
        runner = make_runner(options, extra)
        if not options.live:
            runner = without_effects(runner, fake(runner.tools), approve=_approve)
        limits = {"max_turns": options.max_turns, "at_once": options.at_once}

        async def ask() -> ToolUse:
            try:
                return await evaluate(cases, lambda case: case_models[case.id], runner, **limits)
            finally:
                for model in dict.fromkeys(case_models.values()):
                    await model.aclose()

        return work.run(ask())


async def _approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    return allow(by="ferrule eval")


def _print_scores(use: ToolUse, options: argparse.Namespace) -> None:
    _print_lines(f"{format_count(len(use.outcomes), 'case')} with the model {options.model}")
    print(_LIVE if options.live else _FAKES)
    print()
    _print_lines(use.table())
    wrong = use.worst(_MOST_WRONG)
    if wrong:
        print("\nNot exactly right, worst first:")
        _print_lines("\n".join(line for outcome in wrong for line in outcome.lines()))


def _print_lines(text: str) -> None:
    for line in text.split("\n"):
        print(printable(line))
