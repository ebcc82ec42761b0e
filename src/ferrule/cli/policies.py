"""The policy files of a command: the standard files that exist, and the files of `--policy`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ferrule import Runner, Tool, ToolCall, ToolContext, Toolset
from ferrule.approval import printable
from ferrule.cli import settings
from ferrule.cli.text import short
from ferrule.cli.usage import UsageError
from ferrule.policy import Finding, Policy, PolicyDecision, Rule, TrustedFiles, find_files, list_standard_files
from ferrule.policy.checks import find_fit
from ferrule.policy.rule import Scope

_LINE = 500
_HELP = (
    "a file of rules, which hold beside those that are found: /etc/ferrule/policy.toml, ferrule/policy.toml in "
    "$XDG_CONFIG_HOME, and .ferrule/policy.toml here; may be repeated"
)
FOUND: Final[tuple[Scope, ...]] = ("user", "project")
"""The scopes of the standard files in places that a tool may write. These files need trust."""
_SHADOW_HELP = "a file of rules that decides nothing: at the end stands what would have been decided with it as well"


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add the option of the commands that judge calls."""
    parser.add_argument("--policy", action="append", default=[], metavar="FILE", help=_HELP)


def add_shadow(parser: argparse.ArgumentParser) -> None:
    """Add the option of the commands that can report afterwards how another policy would have decided."""
    parser.add_argument("--shadow", metavar="FILE", help=_SHADOW_HELP)


def of(options: argparse.Namespace) -> Callable[[Toolset], Policy | None]:
    """Return a function from the tools of a command to its policy. It returns `None` if there is no file.

    Raises (by the function):
        UsageError: A file is wrong.
    """
    of_project = options.project_policy if hasattr(options, "project_policy") else settings.policy_files()
    return partial(_policy_for, options.policy, of_project, getattr(options, "shadow", None))


def _policy_for(named: Sequence[str], of_project: Sequence[str], shadow: str | None, tools: Toolset) -> Policy | None:
    found = _files_found()
    known = {os.path.realpath(file) for file in (*dict(found).values(), *named)}
    others = {os.path.realpath(file): file for file in of_project}  # trust is in the path as it is written
    others = {real: file for real, file in others.items() if real not in known}
    files: list[tuple[Scope, str]] = [*found, *(("project", file) for file in others.values())]
    files += [("session", name) for name in named]
    if not files and shadow is None:
        return None
    policy = Policy(files, tools=tools, shadow=shadow, needs_trust=FOUND)
    errors = [finding for finding in policy.findings if finding.level == "error"]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise UsageError(f"{_with_path(errors[0], policy)}{more}")
    for notice in policy.notices:
        print(printable(short(f"ferrule: {_with_path(notice, policy)}", _LINE)), file=sys.stderr)
    return policy


def _files_found() -> list[tuple[Scope, str]]:
    """Return the standard files that exist.

    Raises:
        UsageError: A file that a person has trusted is gone, so its denies would be missed.
    """
    found, trusted = find_files(), TrustedFiles().versions()
    for _, file in list_standard_files():
        if file in trusted and file not in dict(found).values():
            raise UsageError(f"{file} was trusted and is gone; if that is right: ferrule policy trust --forget {file}")
    return found


def _with_path(finding: Finding, policy: Policy) -> Finding:
    """Return the finding with the path of its file, from the working directory if it is below that."""
    path = policy.paths.get(finding.source, finding.source)
    return finding._replace(source=path.removeprefix(os.getcwd() + os.sep))


async def judged_by(
    policy: Policy, runner: Runner, call: ToolCall, context: ToolContext
) -> tuple[PolicyDecision | None, str]:
    """Return the verdict of each rule on the call in the form that the guards of `runner` see. If the call is denied
    before the guards, return None and the reason.
    """
    seen: list[PolicyDecision] = []

    def look(call: ToolCall, context: ToolContext) -> None:
        seen.append(policy.decide(call, context))

    said = await runner.replace(guards=[look]).explain(call, context)
    return (seen[0], "") if seen else (None, said[0].reason)


def may_match_tool(rule: Rule, tool: Tool) -> bool:
    """Return whether the rule may apply to a call of the tool."""
    return rule.may_match_tool(tool) and find_fit(rule, tool).applies


def why(judged: PolicyDecision) -> str:
    """Return the rule that decided, or the reason of a decision without one."""
    if judged.decision is None:
        return "it is read-only, and no rule speaks of it"
    return "; ".join(f"{rule.name} {rule.text}" for rule in judged.deciding_rules) or judged.decision.reason
