"""`ferrule policy`: what policy files say of which tools, their own tests, and trust in a project's file."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ferrule import Runner, Tool, ToolCall, ToolContext, Toolset
from ferrule.approval import printable
from ferrule.cli import servers
from ferrule.cli.list import does
from ferrule.cli.policies import judged_by, speaks_of, why
from ferrule.cli.screen import lay, screen, table_of
from ferrule.cli.text import one_line
from ferrule.cli.timeline import NAME_WIDTH, arguments
from ferrule.cli.usage import UsageError, choices
from ferrule.policy import Finding, Judged, Policy, PolicyTest, Rule, Trusted, found_files, load
from ferrule.policy.rule import Scope
from ferrule.values.context import JUDGED_TRAITS

_TEXT = 400
_LEVELS = {"error": "bold red", "warning": "yellow"}


def options(parser: argparse.ArgumentParser) -> None:
    """What to do, and with which files."""
    parser.add_argument(
        "action",
        help="check tells what is wrong in files and which rules speak of which tool, test runs the tests of files, "
        "trust lets the allow rules of a project's file count",
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="left out, check looks at the files that are found, and trust at .ferrule/policy.toml here; without "
        "--tools or --mcp, files are looked at by themselves",
    )
    parser.add_argument("--digest", metavar="DIGEST", help="trust: the file that has it, where no terminal can ask")
    parser.add_argument("--list", action="store_true", help="trust: show the files that are trusted")
    parser.add_argument("--forget", action="store_true", help="trust: trust these files no more")


def command(options: argparse.Namespace) -> int:
    """Do it; 1 where there is an error, a test fails or there is none, or nobody trusts."""
    if options.action not in _ACTIONS:
        raise UsageError(f"policy does no {options.action!r}; {choices(options.action, _ACTIONS)}")
    if options.action != "trust" and (options.digest or options.list or options.forget):
        raise UsageError(f"--digest, --list and --forget are for policy trust, and not for {options.action}")
    return _ACTIONS[options.action](options)


def _scoped(files: Sequence[str]) -> list[tuple[Scope, str]]:
    """The files with their scopes: those that are found without being named keep theirs, others are of a session."""
    found = found_files()
    if not files:
        return found
    scopes: dict[str, Scope] = {os.path.realpath(file): scope for scope, file in found}
    return [(scopes.get(os.path.realpath(file), "session"), file) for file in files]


def _tools(options: argparse.Namespace) -> Toolset | None:
    return servers.tools(options) if options.tools or servers.named(options) else None


# check


def _check_files(options: argparse.Namespace) -> int:
    files = _scoped(options.files)
    if not files:
        raise UsageError("there is no policy file here: ferrule policy check FILE")
    tools = _tools(options)
    policy = load(files, tools=tools)
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
    return int(bool(counts[0]))


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """A table of what is wrong; nothing where nothing is."""
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
        rules = [rule for rule in policy.rules if speaks_of(rule, tool)]
        said = "\n".join(_rule_text(rule) for rule in rules) or "none"
        table.add_row(one_line(tool.name, NAME_WIDTH), does(tool), _by_default(policy, tool), said)
    return table


def _by_default(policy: Policy, tool: Tool) -> str:
    if tool.read_only is True:
        return "runs"
    return "is denied" if policy.modes & {"read_only", "never_ask"} else "is asked about"


def _rules_table(rules: Sequence[Rule], *, whole: bool = False) -> Table:
    table = table_of("where", "rule", wrapped={"rule"})
    for rule in rules:
        limit = len(rule.text) if whole else _TEXT
        table.add_row(one_line(rule.name, _TEXT), one_line(rule.text, limit))
    return table


def _rule_text(rule: Rule) -> str:
    return one_line(f"{rule.name} {rule.text}", _TEXT)


# test


@dataclass(frozen=True)
class Outcome:
    """What came of one test."""

    test: PolicyTest
    judged: Judged | None
    wrong: str = ""


def _test_files(options: argparse.Namespace) -> int:
    if not options.files:
        raise UsageError("which file? ferrule policy test FILE")
    tools = _tools(options)
    policy = load([("session", file) for file in options.files], tools=tools)
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
    """`1 test`, `2 tests`."""
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
    """A tool that is what the test says, and takes any arguments."""
    traits: dict[str, Any] = {trait.removeprefix("not "): not trait.startswith("not ") for trait in test.traits}
    like = Tool(test.call, lambda: None, tags=test.tags, **traits)
    return SimpleNamespace(**{name: getattr(like, name) for name in ("name", "tags", *JUDGED_TRAITS)})


def _held_against(test: PolicyTest, judged: Judged) -> Outcome:
    if _kind_said(judged) != test.expect:
        return Outcome(test, judged, f"expected {test.expect}")
    if test.rule and not any(test.rule in f"{rule.text} {rule.reason}" for rule in judged.spoke):
        return Outcome(test, judged, f"expected it of a rule with {test.rule!r}")
    return Outcome(test, judged)


def _kind_said(judged: Judged) -> str:
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


def _trust_file(options: argparse.Namespace) -> int:
    if options.list:
        return _list_trusted()
    files = options.files or [os.path.relpath(file) for scope, file in found_files() if scope == "project"]
    if not files:
        raise UsageError("there is no .ferrule/policy.toml here: ferrule policy trust FILE")
    if options.forget:
        return max(_forget(file) for file in files)
    if len(files) > 1:
        raise UsageError("trust is given to one file at a time: ferrule policy trust FILE")
    return _trust_one(files[0], options.digest)


def _list_trusted() -> int:
    listed = Trusted().listed()
    for file, digest in sorted(listed.items()):
        print(printable(f"{digest}  {file}"))
    if not listed:
        print("No file is trusted.")
    return 0


def _forget(file: str) -> int:
    known = Trusted().forget(file)
    print(printable(f"{file} is trusted no more." if known else f"{file} was not trusted."))
    return int(not known)


def _trust_one(file: str, digest: str | None) -> int:
    console = screen()
    policy = load([("session", file)])
    errors = [finding for finding in policy.findings if finding.level == "error"]
    if errors:
        print_findings(console, errors)
        print("A file with errors is not trusted.")
        return 1
    allows = [rule for rule in policy.rules if rule.decide == "allow"]
    if not allows:
        print(printable(f"{file} allows nothing: its other rules count without trust."))
        return 0
    now = policy.digests[file]
    print(printable(f"{file}, with the digest {now}, would allow without a question:"))
    print()
    lay(console, _rules_table(allows, whole=True))
    print()
    if not _agreed(file, now, digest):
        print("It is not trusted.")
        return 1
    Trusted().trust(file, now)
    print("It is trusted as it is now: a change takes that away.")
    return 0


def _agreed(file: str, now: str, digest: str | None) -> bool:
    if digest is not None:
        if digest != now:
            print(printable(f"The digest given is another one: {digest}"))
        return digest == now
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print(printable(f"Nobody is at a terminal to say so: ferrule policy trust {shlex.quote(file)} --digest {now}"))
        return False
    return input("Trust it? [y/N] ").strip().lower() in {"y", "yes"}


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "check": _check_files,
    "test": _test_files,
    "trust": _trust_file,
}
