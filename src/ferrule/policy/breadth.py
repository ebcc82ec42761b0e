"""Find allow rules with more effect than they seem to have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from ferrule.policy.checks import make_finding
from ferrule.policy.conditions import Commands, Glob
from ferrule.policy.reading import Finding
from ferrule.policy.rule import Rule
from ferrule.security.command_arguments import LineParameters
from ferrule.security.commands import CommandPattern
from ferrule.security.programs import find_risk, program_name

_MAX_NAMES: Final = 5
_HARMLESS_GIT_COMMANDS: Final = frozenset(
    {"add", "branch", "commit", "describe", "for-each-ref", "ls-files", "ls-tree", "merge-base", "rev-parse", "status"}
)
"""The sub-commands of git without an option for running a program or writing a file."""
_INPUT_ARGUMENTS: Final = frozenset({("-",), ("-s",)})


def check_breadth(rules: Sequence[Rule], tools: Iterable[Any] | None) -> Iterator[Finding]:
    """Warn about rules that allow more than they seem to.

    These are rules that in effect allow everything, names with `*` for harmful tools, and shell lines unseen by a rule.
    """
    listed = [] if tools is None else list(tools)
    stricter = [one for one in rules if one.decide != "allow" and not _is_conditional(one)]
    allowable = [tool for tool in listed if not any(one.may_match_tool(tool) for one in stricter)]
    for rule in rules:
        if rule.decide == "allow":
            matching = [tool for tool in allowable if rule.may_match_tool(tool)]
            yield from _check_patterns(rule)
            yield from _check_globs(rule, matching)
            yield from _check_lines(rule, matching)
        elif rule.has_commands:
            yield from _check_lines(rule, [tool for tool in listed if rule.may_match_tool(tool)])


def _is_conditional(rule: Rule) -> bool:
    return bool(rule.arguments or rule.principals or rule.traits or rule.when)


# -- shell lines -------------------------------------------------------------------------------------------------------


def _check_patterns(rule: Rule) -> Iterator[Finding]:
    patterns = (text for one in rule.arguments.values() if isinstance(one, Commands) for text in one.patterns)
    for text in patterns:
        if reason := _describe_risk(CommandPattern(text)):
            yield make_finding("warning", rule, f"{text!r} allows more than it says: {reason}")


def _describe_risk(pattern: CommandPattern) -> str:
    """Return why a pattern allows everything, or "" if it does not as far as is known."""
    program, *arguments = pattern.words
    risk = find_risk(program[0])
    if risk is None:
        return ""
    if risk.kind == "by options":
        is_open = any(map(_may_be_option, _drop_operands(arguments)))
        if program_name(program[0]) == "git" and arguments and arguments[0][0] in _HARMLESS_GIT_COMMANDS:
            is_open = False
    else:
        is_open = any(len(word) > 1 for word in arguments)
    if risk.kind == "interpreter" and tuple(word[0] for word in arguments if len(word) == 1) in {(), *_INPUT_ARGUMENTS}:
        is_open = True
    return f"{program[0]} {risk.text}" if is_open else ""


def _drop_operands(words: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the words before `--`. No word after it is an option."""
    return words[: words.index(("--",))] if ("--",) in words else words


def _may_be_option(word: tuple[str, ...]) -> bool:
    """Return whether a word of a pattern may stand for options: `*`, `*.c` and `-*` do, and `src/*` does not."""
    return len(word) > 1 and (not word[0] or word[0].startswith("-"))


# -- tools -------------------------------------------------------------------------------------------------------------


def _check_globs(rule: Rule, tools: Iterable[Any]) -> Iterator[Finding]:
    if rule.has_commands or (not rule.tools and (rule.tags or rule.traits)):
        return
    names = [tool.name for tool in tools if tool.name not in rule.tools and _may_do_harm(tool, rule)]
    if names:
        harm = "which may be destructive or reach the open world"
        yield make_finding("warning", rule, f"{rule.text!r} covers {_format_names(names)}, {harm}: name each such tool")


def _check_lines(rule: Rule, tools: Iterable[Any]) -> Iterator[Finding]:
    """Compare a rule with the shell lines of its tools."""
    conditions = {place.rstrip("[]").rpartition(".")[2]: one for place, one in rule.arguments.items()}
    lines = [name for name, one in conditions.items() if isinstance(one, Commands)]
    for tool in tools:
        schema = getattr(tool, "input_schema", None)
        if schema is None:
            continue
        parameters = LineParameters(tool.name, schema, lines)
        options = [name for name in dict.fromkeys(parameters.options) if name not in conditions]
        code = [name for name in dict.fromkeys(parameters.possible_code) if name not in conditions]
        if not rule.has_commands:
            if "sandboxed" in rule.traits:
                continue
            has_glob = any(isinstance(conditions.get(name), Glob) for name in parameters.possible_code)
            if parameters.has_line or code or has_glob:
                yield make_finding("warning", rule, f"{rule.text!r} allows everything that {tool.name} can run")
        elif not parameters.has_line and code:
            text = f"{rule.text!r} reads no shell line of {tool.name}, but {_format_names(code)} may be one"
            yield make_finding("warning", rule, f"{text}: write a [[rule]] with a condition for it")
        elif rule.decide == "allow" and options and not _has_needs(tool):
            text = f"{rule.text!r} allows no call of {tool.name} with {_format_names(options)}"
            yield make_finding("warning", rule, f"{text}, which may change what runs: give the rule a condition for it")


def _has_needs(tool: Any) -> bool:
    """Return whether arguments take calls of a tool out of its sandbox. A rule for a line need not allow them."""
    return callable(getattr(tool, "sandboxed", None))


def _may_do_harm(tool: Any, rule: Rule) -> bool:
    """Return whether a tool may be destructive, or declares `open_world`, in a call allowed by a rule."""
    destructive = tool.destructive is not False and not {"read_only", "not destructive"} & set(rule.traits)
    is_open = getattr(tool, "options", {}).get("open_world")
    return destructive or (bool(is_open) and "not open_world" not in rule.traits)


def _format_names(names: Iterable[str]) -> str:
    listed = [repr(name) for name in names]
    more = len(listed) - _MAX_NAMES
    return ", ".join(listed[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
