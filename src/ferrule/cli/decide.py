"""`ferrule decide`: the decision about a call, with the rule and file behind it. Nothing runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from ferrule import Decision, Tool, ToolContext
from ferrule.approval import printable
from ferrule.cli import policies, servers
from ferrule.cli.call import add_call_arguments, read_call
from ferrule.cli.journals import look_into_journal
from ferrule.cli.runners import find_tool, grant_scope, make_runner
from ferrule.cli.screen import make_console, make_table, print_table, wide
from ferrule.cli.shared_options import add_shared
from ferrule.cli.text import to_line
from ferrule.policy import Policy, PolicyDecision

CODES = {"allow": 0, "deny": 1, "ask": 3}
_VERDICTS = {"allow": "the call would run", "ask": "a person would be asked", "deny": "the call would be denied"}
_STYLES = {"allow": "green", "ask": "yellow", "deny": "magenta"}
_MATCHES = {True: "yes", False: "no", None: "unknown"}
_TEXT = 400


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the call, its principal and session, and the policy."""
    add_call_arguments(parser)
    parser.add_argument("--principal", metavar="NAME", help="the principal of the call")
    parser.add_argument("--session", metavar="NAME", help="the session of the call")
    add_shared(parser, "--policy", "--lock")
    text = "judge rules about earlier calls by this journal; nothing is recorded"
    parser.add_argument("--journal", metavar="FILE", help=text)


def command(options: argparse.Namespace) -> int:
    """Print the decision. The exit code is the decision too."""
    with servers.connect_servers(options) as (work, extra):
        runner = make_runner(options, extra, remember=grant_scope(options))
        call = read_call(options, runner)
        context = ToolContext(principal=options.principal, session=options.session)
        with look_into_journal(runner, options.journal) as runner:
            decision = work.run(runner.decide(call, context))
            reasons = work.run(runner.explain(call, context))
            policy = next((guard for guard in runner.guards if isinstance(guard, Policy)), None)
            judged = None if policy is None else work.run(policies.judge_call(policy, runner, call, context))[0]
    _print_verdict(decision)
    if reasons:
        print()
        print_table(_guards_table(reasons))
    tool = find_tool(runner.tools, call.name)
    if judged is not None and any(policies.may_apply(rule, tool) for rule, _ in judged.answers):
        print()
        print_table(_rules_table(judged, tool))
    return CODES[decision.kind]


def _print_verdict(decision: Decision) -> None:
    console = make_console()
    console.print(Text(_VERDICTS[decision.kind], style=f"bold {_STYLES[decision.kind]}"))
    for label, text in {"reason": decision.reason, "rule": decision.rule, "asks for": decision.into}.items():
        if text:
            console.print(Text.assemble((f"{label}: ", "dim"), printable(text)))


def _guards_table(decisions: Sequence[Decision]) -> Table:
    table = make_table(wide("guard or rule"), "decision", wide("reason"))
    for decision in decisions:
        kind = "no objection" if decision.kind == "allow" and not decision.reason else decision.kind
        row = to_line(decision.rule or "", _TEXT), Text(kind, _STYLES[decision.kind]), to_line(decision.reason, _TEXT)
        table.add_row(*row)
    return table


def _rules_table(judged: PolicyDecision, tool: Tool) -> Table:
    table = make_table("where", wide("rule"), "matches")
    for rule, matches in judged.answers:
        if policies.may_apply(rule, tool):
            text = "yes, with others" if rule in judged.joint_rules else _MATCHES[matches]
            style = "dim" if text == _MATCHES[False] else ""
            table.add_row(to_line(rule.name, _TEXT), to_line(rule.text, _TEXT), Text(text, style))
    return table
