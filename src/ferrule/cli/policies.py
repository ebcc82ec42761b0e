"""The policy files of a command: the standard files that exist, and the files of `--policy`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ferrule import Runner, Tool, ToolCall, ToolContext, Toolset
from ferrule.cli import settings
from ferrule.cli.text import shorten_path, warn
from ferrule.cli.usage import UsageError
from ferrule.policy import Finding, Policy, PolicyDecision, Rule, TrustedFiles, find_files, list_standard_files
from ferrule.policy.checks import find_fit
from ferrule.policy.rule import Scope
from ferrule.policy.when import SessionFacts

FOUND: Final[tuple[Scope, ...]] = ("user", "project")
"""The scopes of the standard files in places that a tool may write. These files need trust."""


def policy_loader(options: argparse.Namespace) -> Callable[[Toolset], Policy | None]:
    """Return a function from the tools of a command to its policy. It returns `None` if there is no file.

    Raises (by the function):
        UsageError: A file is wrong.
    """
    project = options.project_policy if hasattr(options, "project_policy") else settings.list_policy_files()
    return partial(_load_policy, options.policy, project, getattr(options, "shadow", None))


def _load_policy(session: Sequence[str], project: Sequence[str], shadow: str | None, tools: Toolset) -> Policy | None:
    found = _find_files()
    present = {os.path.realpath(file) for file in (*dict(found).values(), *session)}
    others = {os.path.realpath(file): file for file in project}  # trust belongs to the path as it is written
    files: list[tuple[Scope, str]] = [
        *found,
        *(("project", file) for real, file in others.items() if real not in present),
        *(("session", file) for file in session),
    ]
    if not files and shadow is None:
        return None
    policy = Policy(files, tools=tools, shadow=shadow, needs_trust=FOUND)
    errors = [finding for finding in policy.findings if finding.level == "error"]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise UsageError(f"{_shorten_path(errors[0], policy)}{more}")
    for notice in policy.notices:
        warn(_shorten_path(notice, policy))
    return policy


def _find_files() -> list[tuple[Scope, str]]:
    """Return the standard files that exist.

    Raises:
        UsageError: A file that a person has trusted is missing, and so are its denials.
    """
    found, trusted = find_files(), TrustedFiles().versions()
    for _, file in list_standard_files():
        if file in trusted and file not in dict(found).values():
            raise UsageError(
                f"{file} was trusted and is missing. If you removed it, run: ferrule policy trust --forget {file}"
            )
    return found


def _shorten_path(finding: Finding, policy: Policy) -> Finding:
    """Return the finding with the path of its file, from the working directory if it is below that."""
    return finding._replace(source=shorten_path(policy.paths.get(finding.source, finding.source)))


async def judge_call(
    policy: Policy, runner: Runner, call: ToolCall, context: ToolContext, facts: SessionFacts | None = None
) -> tuple[PolicyDecision | None, str]:
    """Return the verdict of each rule on the call in the form that the guards of `runner` see. If the call is denied
    before the guards, return None and the reason.

    Args:
        facts: The facts about the session, in place of those that the policy remembers.
    """
    seen: list[PolicyDecision] = []

    def look(call: ToolCall, context: ToolContext) -> None:
        seen.append(policy.decide(call, context, facts=facts))

    decisions = await runner.replace(guards=[look], observers=()).explain(call, context)
    return (seen[0], "") if seen else (None, decisions[0].reason)


def may_apply(rule: Rule, tool: Tool) -> bool:
    """Return whether the rule may apply to a call of the tool."""
    return rule.may_match_tool(tool) and find_fit(rule, tool).applies


def format_reason(judged: PolicyDecision) -> str:
    """Return the rule that decided, or the reason of a decision without one."""
    if judged.decision is None:
        return "it is read-only, and no rule applies"
    return "; ".join(f"{rule.name} {rule.text}" for rule in judged.deciding_rules) or judged.decision.reason
