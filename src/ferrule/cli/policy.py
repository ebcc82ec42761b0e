"""`ferrule policy`: check policy files, run their tests, and trust a version of a file."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from rich.table import Table
from rich.text import Text

from ferrule import Runner, Tool, ToolCall, ToolContext, Toolset
from ferrule.approval import preview_lines, printable
from ferrule.cli import servers, settings
from ferrule.cli.list import describe_effect
from ferrule.cli.policies import FOUND, format_reason, judge_call, may_apply
from ferrule.cli.screen import make_table, print_table, wide
from ferrule.cli.text import format_arguments, to_line
from ferrule.cli.timeline import NAME_WIDTH
from ferrule.cli.usage import UsageError, suggest
from ferrule.policy import Finding, Policy, PolicyDecision, PolicyTest, Rule, TrustedFiles, find_files
from ferrule.policy.checks import SERVED
from ferrule.policy.conditions import matches_glob
from ferrule.policy.lock import read_lock
from ferrule.policy.policy import read_files
from ferrule.policy.rule import Scope
from ferrule.policy.settings import is_settings_file
from ferrule.policy.standing import Trust
from ferrule.policy.trust import read_trusted_part
from ferrule.values.context import JUDGED_TRAITS
from ferrule.values.count import format_count
from ferrule.values.diff import Diff

_TEXT = 400
_LEVELS = {"error": "bold red", "warning": "yellow"}


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the action, and its files."""
    parser.add_argument(
        "action",
        choices=list(_ACTIONS),
        help="check: report errors, and the rules for each tool. test: run the tests in the files. trust: show a file, "
        "and use this version of it from now on",
    )
    parser.add_argument(
        "files",
        nargs="*",
        default=[],
        metavar="FILE",
        help="without files, check and trust take the standard files that exist",
    )
    parser.add_argument("--strict", action="store_true", help="check: exit with 1 for warnings too")
    parser.add_argument("--list", action="store_true", help="trust: list the trusted files")
    parser.add_argument("--forget", action="store_true", help="trust: end the trust in these files")


def command(options: argparse.Namespace) -> int:
    """Run the action. Return 1 if there is an error, if a test fails or there is none, or if nobody agrees to trust."""
    owners = {"strict": "check", "list": "trust", "forget": "trust"}
    for name, action in owners.items():
        if getattr(options, name) and options.action != action:
            raise UsageError(f"--{name} is an option of ferrule policy {action}, not of {options.action}")
    return _ACTIONS[options.action](options)


def _list_files(files: Sequence[str]) -> list[tuple[Scope, str]]:
    """Return the files with their scopes. A file that nothing but the command line names belongs to the session."""
    found = find_files()
    scopes: dict[str, Scope] = {os.path.realpath(file): scope for scope, file in found}
    for file in settings.list_policy_files():
        if scopes.setdefault(os.path.realpath(file), "project") == "project":
            found.append(("project", file))
    return [(scopes.get(os.path.realpath(file), "session"), file) for file in files] if files else found


def _load_tools(options: argparse.Namespace) -> Toolset | None:
    return servers.load_tools(options) if servers.has_sources(options) else None


# check


def _check_files(options: argparse.Namespace) -> int:
    files = _list_files(options.files)
    if not files:
        raise UsageError("there is no policy file here: ferrule policy check FILE")
    tools = _load_tools(options)
    policy = Policy(files, tools=tools, needs_trust=FOUND)
    print_findings(policy.findings)
    if modes := policy.modes - {"ask"}:
        print(f"mode: {', '.join(sorted(modes))}\n")
    if tools is not None:
        print_table(_tools_table(policy, tools))
        print()
    elif policy.rules:
        print_table(_rules_table(policy.rules))
        print()
    counts = {level: sum(finding.level == level for finding in policy.findings) for level in _LEVELS}
    print(", ".join(format_count(count, level) for level, count in counts.items() if count) or "No findings.")
    return int(bool(sum(counts.values()) if options.strict else counts["error"]))


def print_findings(findings: Sequence[Finding]) -> None:
    """Print a table of the findings, if there are any."""
    if not findings:
        return
    table = make_table("level", wide("where"), wide("finding"))
    for finding in findings:
        where = to_line(f"{finding.source}:{finding.line}" if finding.line else finding.source, _TEXT)
        table.add_row(Text(finding.level, _LEVELS[finding.level]), where, to_line(finding.text, _TEXT))
    print_table(table)
    print()


def _tools_table(policy: Policy, tools: Toolset) -> Table:
    table = make_table("tool", "effect", "without a rule", wide("rules"))
    for tool in tools:
        rules = [_format_rule(rule) for rule in policy.rules if may_apply(rule, tool)]
        row = to_line(tool.name, NAME_WIDTH), describe_effect(tool), _default_decision(policy, tool)
        table.add_row(*row, "\n".join(rules) or "none")
    for name in dict.fromkeys(name for rule in policy.rules for name in rule.tools if name.startswith(SERVED)):
        matching = (rule for rule in policy.rules if any(matches_glob(glob, name) for glob in rule.tools or ("*",)))
        rules = [_format_rule(rule) for rule in matching]
        table.add_row(to_line(name, NAME_WIDTH), "read-only", "allow", "\n".join(rules))
    return table


def _default_decision(policy: Policy, tool: Tool) -> str:
    if tool.read_only is True:
        return "allow"
    return "deny" if policy.modes & {"read_only", "never_ask"} else "ask"


def _rules_table(rules: Sequence[Rule]) -> Table:
    table = make_table("where", wide("rule"))
    for rule in rules:
        table.add_row(to_line(rule.name, _TEXT), to_line(rule.text, _TEXT))
    return table


def _format_rule(rule: Rule) -> str:
    return to_line(f"{rule.name} {rule.text}", _TEXT)


# test


@dataclass(frozen=True)
class Outcome:
    """The outcome of one test."""

    test: PolicyTest
    judged: PolicyDecision | None
    wrong: str = ""


def _test_files(options: argparse.Namespace) -> int:
    if not options.files:
        raise UsageError("the file is missing: ferrule policy test FILE")
    tools = _load_tools(options)
    policy = Policy([("session", file) for file in options.files], tools=tools)
    errors = [finding for finding in policy.findings if finding.level == "error"]
    print_findings(errors)
    if errors:
        print(f"{format_count(len(errors), 'error')}; no test was run")
        return 1
    with asyncio.Runner() as work:
        outcomes = [work.run(_run_test(policy, test, tools)) for test in policy.tests]
    if outcomes:
        print_table(_outcomes_table(outcomes))
        print()
    failures = sum(bool(outcome.wrong) for outcome in outcomes)
    examples = sum(len(rule.match) + len(rule.no_match) for rule in policy.rules)
    print(_format_summary(len(outcomes), failures, examples))
    return int(bool(failures) or not (outcomes or examples))


def _format_summary(tests: int, failures: int, examples: int) -> str:
    if not tests + examples:
        return "There are no tests: a [[test]] has a call and the decision that you expect"
    text = (
        f"{failures} of {format_count(tests, 'test')} failed" if failures else f"{format_count(tests, 'test')} passed"
    )
    return f"{text}; {format_count(examples, 'example')} of rules passed" if examples else text


async def _run_test(policy: Policy, test: PolicyTest, tools: Toolset | None) -> Outcome:
    context = ToolContext(principal=test.principal, session=test.session)
    call = ToolCall("", test.call, test.arguments)
    if tools is None:
        facts = policy.imagine_facts(test, lambda name: _make_double(test, name))
        return _compare(test, policy.decide(call, context, _make_double(test, test.call), facts))
    if tools.find(test.call) is None:
        hint = suggest(test.call, [tool.name for tool in tools])
        return Outcome(test, None, f"there is no tool {test.call!r}; {hint}")
    facts = policy.imagine_facts(test, tools.find)
    judged, reason = await judge_call(policy, Runner(tools, guards=[policy]), call, context, facts)
    return _compare(test, judged) if judged is not None else Outcome(test, None, reason)


def _make_double(test: PolicyTest, name: str) -> SimpleNamespace:
    """Return a tool of this name for a test without tools, with the traits and tags of the test.

    It takes any arguments.
    """
    traits: dict[str, Any] = {trait.removeprefix("not "): not trait.startswith("not ") for trait in test.traits}
    tool = Tool(name, lambda: None, tags=test.tags, **traits)
    return SimpleNamespace(**{name: getattr(tool, name) for name in ("name", "tags", "recorded", *JUDGED_TRAITS)})


def _compare(test: PolicyTest, judged: PolicyDecision) -> Outcome:
    if _decision_kind(judged) != test.expect:
        return Outcome(test, judged, f"expected {test.expect}")
    if test.rule and not any(test.rule in f"{rule.text} {rule.reason}" for rule in judged.deciding_rules):
        return Outcome(test, judged, f"expected a rule with {test.rule!r}")
    return Outcome(test, judged)


def _decision_kind(judged: PolicyDecision) -> str:
    return "allow" if judged.decision is None else judged.decision.kind


def _outcomes_table(outcomes: Sequence[Outcome]) -> Table:
    table = make_table("", wide("test"), wide("call"), "decision", wide("reason"))
    for outcome in outcomes:
        test, judged = outcome.test, outcome.judged
        mark = Text("FAILED", "bold red") if outcome.wrong else Text("ok", "green")
        reasons = [outcome.wrong, "" if judged is None else format_reason(judged)]
        call = to_line(f"{test.call} {format_arguments(test.arguments)}", _TEXT)
        decision = "" if judged is None else _decision_kind(judged)
        table.add_row(
            mark, f"{test.source}:{test.line}", call, decision, to_line(": ".join(filter(None, reasons)), _TEXT)
        )
    return table


# trust


def _trust_files(options: argparse.Namespace) -> int:
    if options.list:
        return _print_trust()
    files = options.files or map(os.path.relpath, _files_to_trust())
    codes = list(map(_forget_file, list(files)) if options.forget else map(_trust_file, files))
    if not codes:
        raise UsageError("there is no policy file here: ferrule policy trust FILE")
    return max(codes)


def _files_to_trust() -> Iterator[str]:
    """Yield the policy files and settings that are found, then the policy files of the settings that are trusted by
    then.
    """
    found = [file for scope, file in find_files() if scope in FOUND]
    yield from found
    yield from settings.find_settings()
    yield from (file for file in settings.list_policy_files() if file not in found)


def _print_trust() -> int:
    versions = TrustedFiles().versions()
    for file, version in sorted(versions.items()):
        print(printable(f"{version.digest}  {file}"))
    if not versions:
        print("You trust no file.")
    return 0


def _forget_file(file: str) -> int:
    trusted = TrustedFiles()
    if os.path.abspath(os.path.expanduser(file)) not in trusted.versions():
        print(printable(f"{file} is not trusted."))
        return 1
    if not _confirm(f"To end the trust in {file}"):
        return 1
    trusted.forget(file)
    print(printable(f"{file} is no longer trusted."))
    return 0


def _trust_file(file: str) -> int:
    """Show a file or its changes, and trust it if a person at a terminal agrees."""
    trusted = TrustedFiles()
    now = read_trusted_part(file)
    before = trusted.versions().get(now.place)
    if before is not None and before.digest == now.digest:
        print(printable(f"You already trust this version of {file}."))
        return 0
    if _has_errors(file, now.text):
        print("You cannot trust a file with errors.")
        return 1
    if before is not None:
        print(printable(f"{file} has changed since you trusted it:"))
        lines = preview_lines(Diff(before.text, now.text))
    else:
        part = "settings in" if is_settings_file(file) else "whole content of"
        print(printable(f"You do not trust {file} yet. This is the {part} the file:"))
        lines = preview_lines(now.text)
    print()
    for line in lines:
        print(printable(line))
    print()
    if not _confirm(f"To trust {file} with the digest {now.digest}"):
        print("The file is not trusted.")
        return 1
    trusted.trust(file, now.digest)
    print("You trust this version of the file.")
    return 0


def _has_errors(file: str, text: str) -> bool:
    """Return whether a policy file, a lock file or settings have errors, and print a table of the findings."""
    if is_settings_file(file):  # reading them has checked them
        return False
    if text.lstrip().startswith("{"):
        read_lock(file)
        return False
    policy = read_files([("session", file)], None, Trust(TrustedFiles()))
    findings = [finding for finding in policy.findings if finding not in policy.notices]
    print_findings(findings)
    return any(finding.level == "error" for finding in findings)


def _confirm(action: str) -> bool:
    """Return whether a person at a terminal agrees. The number is random, so that no program can send it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("A person at a terminal has to confirm this, and there is no terminal.")
        return False
    number = str(100_000 + secrets.randbelow(900_000))
    try:
        return input(printable(f"{action}, type {number}: ")).strip() == number
    except EOFError:
        print()
        return False


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "check": _check_files,
    "test": _test_files,
    "trust": _trust_files,
}
