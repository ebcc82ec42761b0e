"""`ferrule policy`: the effect of policy files on tools, their own tests, and trust in a version of a file."""

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

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ferrule import Runner, Tool, ToolCall, ToolContext, Toolset
from ferrule.approval import preview_lines, printable
from ferrule.cli import servers, settings
from ferrule.cli.list import does
from ferrule.cli.policies import FOUND, judged_by, may_match_tool, why
from ferrule.cli.screen import lay, screen, table_of
from ferrule.cli.text import one_line
from ferrule.cli.timeline import NAME_WIDTH, arguments
from ferrule.cli.usage import UsageError, choices
from ferrule.policy import Finding, Policy, PolicyDecision, PolicyTest, Rule, TrustedFiles, find_files
from ferrule.policy.lock import read_lock
from ferrule.policy.policy import read_files
from ferrule.policy.rule import Scope
from ferrule.policy.settings import is_settings_file
from ferrule.policy.standing import Trust
from ferrule.policy.trust import read_trusted_part
from ferrule.values.context import JUDGED_TRAITS
from ferrule.values.decision import Diff

_TEXT = 400
_LEVELS = {"error": "bold red", "warning": "yellow"}


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the action, and its files."""
    parser.add_argument(
        "action",
        help="check tells what is wrong in files and which rules speak of which tool, test runs the tests of files, "
        "trust makes a file count in the version that you are shown",
    )
    parser.add_argument(
        "files",
        nargs="*",
        default=[],
        metavar="FILE",
        help="left out, check and trust look at the files that are found; without --tools or --mcp, check looks at "
        "files by themselves",
    )
    parser.add_argument("--strict", action="store_true", help="check: end with 1 for warnings too")
    parser.add_argument("--list", action="store_true", help="trust: show the files that are trusted")
    parser.add_argument("--forget", action="store_true", help="trust: trust these files no more")


def command(options: argparse.Namespace) -> int:
    """Run the action. Return 1 if there is an error, a test fails or there is none, or nobody agrees to trust."""
    if options.action not in _ACTIONS:
        raise UsageError(f"policy does no {options.action!r}; {choices(options.action, _ACTIONS)}")
    if options.strict and options.action != "check":
        raise UsageError(f"--strict is for policy check, and not for {options.action}")
    if options.action != "trust" and (options.list or options.forget):
        raise UsageError(f"--list and --forget are for policy trust, and not for {options.action}")
    return _ACTIONS[options.action](options)


def _scoped(files: Sequence[str]) -> list[tuple[Scope, str]]:
    """Return the files with their scopes. Files that are found or that trusted settings name keep theirs, others are of
    a session.
    """
    found = find_files()
    scopes: dict[str, Scope] = {os.path.realpath(file): scope for scope, file in found}
    for file in settings.policy_files():
        if scopes.setdefault(os.path.realpath(file), "project") == "project":
            found.append(("project", file))
    if not files:
        return found
    return [(scopes.get(os.path.realpath(file), "session"), file) for file in files]


def _tools(options: argparse.Namespace) -> Toolset | None:
    return servers.tools(options) if options.tools or servers.named(options) else None


# check


def _check_files(options: argparse.Namespace) -> int:
    files = _scoped(options.files)
    if not files:
        raise UsageError("there is no policy file here: ferrule policy check FILE")
    tools = _tools(options)
    policy = Policy(files, tools=tools, needs_trust=FOUND)
    console = screen()
    print_findings(console, policy.findings)
    if modes := policy.modes - {"ask"}:
        print(f"mode: {', '.join(sorted(modes))}\n")
    if tools is not None:
        lay(console, _tools_table(policy, tools))
        print()
    elif policy.rules:
        lay(console, _rules_table(policy.rules))
        print()
    counts = [sum(finding.level == level for finding in policy.findings) for level in _LEVELS]
    said = [count_text(count, level) for count, level in zip(counts, _LEVELS, strict=True) if count]
    print(", ".join(said) or "Nothing found.")
    return int(bool(sum(counts) if options.strict else counts[0]))


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print a table of the findings, if there are any."""
    if not findings:
        return
    table = table_of("level", "where", "what", wrapped={"where", "what"})
    for finding in findings:
        where = one_line(f"{finding.source}:{finding.line}" if finding.line else finding.source, _TEXT)
        table.add_row(Text(finding.level, _LEVELS[finding.level]), where, one_line(finding.text, _TEXT))
    lay(console, table)
    print()


def _tools_table(policy: Policy, tools: Toolset) -> Table:
    table = table_of("tool", "does", "without a rule", "rules that speak of it", wrapped={"rules that speak of it"})
    for tool in tools:
        rules = [rule for rule in policy.rules if may_match_tool(rule, tool)]
        said = "\n".join(_rule_text(rule) for rule in rules) or "none"
        table.add_row(one_line(tool.name, NAME_WIDTH), does(tool), _by_default(policy, tool), said)
    return table


def _by_default(policy: Policy, tool: Tool) -> str:
    if tool.read_only is True:
        return "runs"
    return "is denied" if policy.modes & {"read_only", "never_ask"} else "is asked about"


def _rules_table(rules: Sequence[Rule]) -> Table:
    table = table_of("where", "rule", wrapped={"rule"})
    for rule in rules:
        table.add_row(one_line(rule.name, _TEXT), one_line(rule.text, _TEXT))
    return table


def _rule_text(rule: Rule) -> str:
    return one_line(f"{rule.name} {rule.text}", _TEXT)


# test


@dataclass(frozen=True)
class Outcome:
    """The outcome of one test."""

    test: PolicyTest
    judged: PolicyDecision | None
    wrong: str = ""


def _test_files(options: argparse.Namespace) -> int:
    if not options.files:
        raise UsageError("which file? ferrule policy test FILE")
    tools = _tools(options)
    policy = Policy([("session", file) for file in options.files], tools=tools)
    console = screen()
    errors = [finding for finding in policy.findings if finding.level == "error"]
    print_findings(console, errors)
    if errors:
        print(f"{count_text(len(errors), 'error')}, so no test was run")
        return 1
    with asyncio.Runner() as work:
        outcomes = [work.run(_run_one(policy, test, tools)) for test in policy.tests]
    if outcomes:
        lay(console, _outcomes_table(outcomes))
        print()
    failed = sum(bool(outcome.wrong) for outcome in outcomes)
    examples = sum(len(rule.match) + len(rule.no_match) for rule in policy.rules)
    print(_summary(len(outcomes), failed, examples))
    return int(bool(failed) or not (outcomes or examples))


def _summary(tests: int, failed: int, examples: int) -> str:
    if not tests + examples:
        return "There are no tests: [[test]] in a file holds a call against what comes of it"
    said = f"{failed} of {count_text(tests, 'test')} failed" if failed else f"{count_text(tests, 'test')} passed"
    return f"{said}; {count_text(examples, 'example')} of rules held" if examples else said


def count_text(count: int, what: str) -> str:
    """Return a count with its noun: `1 test`, `2 tests`."""
    return f"{count} {what}{'s' * (count != 1)}"


async def _run_one(policy: Policy, test: PolicyTest, tools: Toolset | None) -> Outcome:
    context = ToolContext(principal=test.principal, session=test.session)
    call = ToolCall("", test.call, test.arguments)
    if tools is None:
        return _held_against(test, policy.decide(call, context, tool=_stand_in(test)))
    if tools.find(test.call) is None:
        return Outcome(test, None, f"there is no tool {test.call!r}; {choices(test.call, [one.name for one in tools])}")
    judged, refused = await judged_by(policy, Runner(tools, guards=[policy]), call, context)
    return _held_against(test, judged) if judged is not None else Outcome(test, None, refused)


def _stand_in(test: PolicyTest) -> SimpleNamespace:
    """Return a stand-in for a tool, with the traits and tags of the test. It takes any arguments."""
    traits: dict[str, Any] = {trait.removeprefix("not "): not trait.startswith("not ") for trait in test.traits}
    like = Tool(test.call, lambda: None, tags=test.tags, **traits)
    return SimpleNamespace(**{name: getattr(like, name) for name in ("name", "tags", *JUDGED_TRAITS)})


def _held_against(test: PolicyTest, judged: PolicyDecision) -> Outcome:
    if _kind_said(judged) != test.expect:
        return Outcome(test, judged, f"expected {test.expect}")
    if test.rule and not any(test.rule in f"{rule.text} {rule.reason}" for rule in judged.deciding_rules):
        return Outcome(test, judged, f"expected it of a rule with {test.rule!r}")
    return Outcome(test, judged)


def _kind_said(judged: PolicyDecision) -> str:
    return "allow" if judged.decision is None else judged.decision.kind


def _outcomes_table(outcomes: Sequence[Outcome]) -> Table:
    table = table_of("", "test", "call", "says", "by", wrapped={"test", "call", "by"})
    for outcome in outcomes:
        test, judged = outcome.test, outcome.judged
        mark = Text("FAILED", "bold red") if outcome.wrong else Text("ok", "green")
        said = [outcome.wrong, "" if judged is None else why(judged)]
        call = one_line(f"{test.call} {arguments(test.arguments)}", _TEXT)
        says = "" if judged is None else _kind_said(judged)
        table.add_row(mark, f"{test.source}:{test.line}", call, says, one_line(": ".join(filter(None, said)), _TEXT))
    return table


# trust


def _trust_files(options: argparse.Namespace) -> int:
    if options.list:
        return _list_trusted()
    files = options.files or map(os.path.relpath, _files_to_trust())
    codes = list(map(_forget, list(files)) if options.forget else map(_trust, files))
    if not codes:
        raise UsageError("there is no policy file here: ferrule policy trust FILE")
    return max(codes)


def _files_to_trust() -> Iterator[str]:
    """Yield the policy files and settings that are found, then the policy files of settings trusted by then."""
    found = [file for scope, file in find_files() if scope in FOUND]
    yield from found
    yield from settings.found()
    yield from (file for file in settings.policy_files() if file not in found)


def _list_trusted() -> int:
    listed = TrustedFiles().versions()
    for file, version in sorted(listed.items()):
        print(printable(f"{version.digest}  {file}"))
    if not listed:
        print("No file is trusted.")
    return 0


def _forget(file: str) -> int:
    trusted = TrustedFiles()
    if os.path.abspath(os.path.expanduser(file)) not in trusted.versions():
        print(printable(f"{file} was not trusted."))
        return 1
    if not _agreed(f"To trust {file} no more"):
        return 1
    trusted.forget(file)
    print(printable(f"{file} is trusted no more."))
    return 0


def _trust(file: str) -> int:
    """Show the changes of a file, and trust it if a person at a terminal agrees."""
    trusted = TrustedFiles()
    now = read_trusted_part(file)
    before = trusted.versions().get(now.place)
    if before is not None and before.digest == now.digest:
        print(printable(f"{file} is trusted as it is."))
        return 0
    if not _is_right(file, now.text):
        print("A file with errors is not trusted.")
        return 1
    if before is not None:
        print(printable(f"{file} has changed since it was trusted:"))
        lines = preview_lines(Diff(before.text, now.text))
    else:
        what = "all that counts of it" if is_settings_file(file) else "the whole file"
        print(printable(f"{file} was not trusted before. This is {what}:"))
        lines = preview_lines(now.text)
    print()
    for line in lines:
        print(printable(line))
    print()
    if not _agreed(f"To trust {file}, with the digest {now.digest}"):
        print("It is not trusted.")
        return 1
    trusted.trust(file, now.digest)
    print("It is trusted in this version.")
    return 0


def _is_right(file: str, text: str) -> bool:
    """Return whether a policy file, a lock file or settings have no errors. A table of the findings is printed."""
    if is_settings_file(file):  # they were read as a whole
        return True
    if text.lstrip().startswith("{"):
        read_lock(file)
        return True
    said = read_files([("session", file)], None, Trust(TrustedFiles()))
    findings = [finding for finding in said.findings if finding not in said.notices]
    print_findings(screen(), findings)
    return not any(finding.level == "error" for finding in findings)


def _agreed(what: str) -> bool:
    """Return whether a person at a terminal agrees. The number is another one each time, so that it cannot be piped
    in.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("Only a person at a terminal can say so, and there is no terminal here.")
        return False
    number = str(100_000 + secrets.randbelow(900_000))
    try:
        return input(printable(f"{what}, type {number}: ")).strip() == number
    except EOFError:
        print()
        return False


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "check": _check_files,
    "test": _test_files,
    "trust": _trust_files,
}
