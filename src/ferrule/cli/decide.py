"""`ferrule decide`: the decision about a call, and the rule and file behind it. Nothing is run."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ferrule import Decision, Tool, ToolCall, ToolContext, Toolset
from ferrule.approval import printable
from ferrule.cli import find, policies, servers
from ferrule.cli.call import add_call, given_arguments
from ferrule.cli.screen import lay, screen, table_of
from ferrule.cli.text import one_line
from ferrule.policy import Policy, PolicyDecision

CODES = {"allow": 0, "deny": 1, "ask": 3}
_STYLES = {"allow": "green", "ask": "yellow", "deny": "magenta"}
_FITS = {True: "yes", False: "no", None: "cannot be known"}
_TEXT = 400


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the call, its principal and session, and the policy."""
    add_call(parser)
    policies.add_policy(parser)
    find.add_lock(parser)
    parser.add_argument("--principal", metavar="NAME", help="on whose behalf the call would be made")
    parser.add_argument("--session", metavar="NAME", help="the conversation that it would belong to")


def command(options: argparse.Namespace) -> int:
    """Print the decision. The exit code says it, too."""
    with servers.connected(options) as (work, more):
        return _command(options, work, more)


def _command(options: argparse.Namespace, work: asyncio.Runner, more: Toolset | None) -> int:
    judge, scope = policies.of(options), find.scope_of(options)
    runner = find.runner(options.tools, more=more, lock=options.lock, policy=judge, remember=scope)
    tool = find.tool(runner.tools, options.name, options.tools or servers.named(options) or None)
    call = ToolCall("", tool.name, given_arguments(options.arguments, tool))
    context = ToolContext(principal=options.principal, session=options.session)
    decision = work.run(runner.decide(call, context))
    said = work.run(runner.explain(call, context))
    policy = next((guard for guard in runner.guards if isinstance(guard, Policy)), None)
    judged = None if policy is None else work.run(policies.judged_by(policy, runner, call, context))[0]
    console = screen()
    _print_verdict(console, decision)
    if said:
        console.print()
        lay(console, _guards_table(said))
    if judged is not None and any(policies.may_match_tool(rule, tool) for rule, _ in judged.answers):
        console.print()
        lay(console, _rules_table(judged, tool))
    return CODES[decision.kind]


def _print_verdict(console: Console, decision: Decision) -> None:
    said = {"allow": "it would run", "ask": "a person would be asked", "deny": "it would be denied"}[decision.kind]
    console.print(Text(said, style=f"bold {_STYLES[decision.kind]}"))
    facts = [("because", decision.reason), ("by", decision.rule), ("asked for", decision.into)]
    for label, text in facts:
        if text:
            console.print(Text.assemble((f"{label}: ", "dim"), printable(text)))


def _guards_table(said: Sequence[Decision]) -> Table:
    table = table_of("guard or rule", "says", "why", wrapped={"guard or rule", "why"})
    for one in said:
        says = "no objection" if one.kind == "allow" and not one.reason else one.kind
        table.add_row(one_line(one.rule or "", _TEXT), Text(says, _STYLES[one.kind]), one_line(one.reason, _TEXT))
    return table


def _rules_table(judged: PolicyDecision, tool: Tool) -> Table:
    table = table_of("where", "rule", "fits this call", wrapped={"rule"})
    for rule, fits in judged.answers:
        if policies.may_match_tool(rule, tool):
            said = "yes, together" if rule in judged.joint_rules else _FITS[fits]
            style = "dim" if said == _FITS[False] else ""
            table.add_row(one_line(rule.name, _TEXT), one_line(rule.text, _TEXT), Text(said, style))
    return table
