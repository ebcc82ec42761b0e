"""Shell lines run only the commands that you name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.guards._arguments import QUOTE_LENGTH, format_place, has_listed_values, read_names
from ferrule.security.command_arguments import (
    LineParameters,
    Place,
    find_code,
    find_lines,
    find_options,
    is_command_name,
    is_harmless_name,
)
from ferrule.security.commands import CommandPattern, Line, find_unknown_part, format_command, has_match, is_allowed
from ferrule.security.paths import Roots
from ferrule.values import decision
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision

Patterns = tuple[CommandPattern, ...]


def commands(
    allow: Iterable[str] = (),
    ask: Iterable[str] = (),
    deny: Iterable[str] = (),
    *,
    within: Iterable[str | os.PathLike[str]] = (),
    parameters: Iterable[str] = (),
    text: Iterable[str] = (),
    harmless: Iterable[str] = (),
) -> Callable[[ToolCall, ToolContext], Decision | None]:
    """Make a guard for the commands of shell lines. It asks about commands without a pattern.

    See docs/guards.md#commands.

    The guard checks each value under one of `ferrule.security.commands.COMMAND_NAMES` or of `parameters`, at any depth
    and in any tool: text as a shell line, a list of texts as an argument vector. It never allows an unknown command,
    and asks about it if it may match `ask` or `deny`. Deny wins over ask, and ask over allow. The guard has no
    objection to a call without a command.

    A runner refuses this guard for a tool if the guard cannot check it: a parameter has the name of a shell line, such
    as `script`, or a parameter beside a command may change what runs, such as `executable`.

    Args:
        allow: Patterns such as `git status`, `pytest *`. A line runs if each of its commands matches one.
        ask: Patterns of commands to ask a person about.
        deny: Patterns of forbidden commands.
        within: Folders or files for the redirections of an allowed line, to read and write; none by default.
        parameters: More names of parameters for shell lines.
        text: Names of parameters for other text. A parameter with listed values (`enum`) in its schema never is a shell
            line.
        harmless: Names of parameters beside a command without influence on what it runs. Numbers, and names such as
            `description`, are harmless anyway.

    Raises:
        DefinitionError: A pattern, a root or a name is invalid.
    """
    patterns = (_read_patterns("allow", allow), _read_patterns("ask", ask), _read_patterns("deny", deny))
    names, texts, declared = read_names("commands", parameters=parameters, text=text, harmless=harmless)
    roots = (within,) if isinstance(within, str | os.PathLike) else tuple(within)
    files = Roots(*roots, of="commands(within=…)") if roots else None

    def guard(call: ToolCall, context: ToolContext) -> Decision | None:
        directory = context.fields.working_directory

        def may_open(path: str) -> bool:
            return files is not None and _contains(files, path, directory)

        tool = getattr(context, "tool", None)
        schema, hidden = getattr(tool, "input_schema", {}), getattr(tool, "hidden", ())
        visible = {name: value for name, value in call.arguments.items() if name not in hidden}

        def is_command(key: str, place: Place) -> bool:
            return key in names or (is_command_name(key) and key not in texts and not has_listed_values(schema, place))

        def is_harmless(key: str) -> bool:
            return key in declared or (is_harmless_name(key) and key not in names)

        lines = [line for _, line in find_lines(call.arguments, is_command)]
        if not lines:
            possible = (place for place in find_code(visible) if not has_listed_values(schema, place))
            return _ask_what_runs([place for place in possible if place[-1] not in texts | declared])
        answer = _decide_lines(lines, patterns, may_open)
        return _ask_what_runs(find_options(visible, is_command, is_harmless)) if answer is None else answer

    def asks(tool: Tool) -> bool:
        parameters = LineParameters(tool.name, tool.handling.parameters.schema, names, texts, declared)
        return parameters.has_line or parameters.is_open

    def check_tool(tool: Tool) -> None:
        is_tool_guard = any(one is guard for one in tool.guards)
        parameters = LineParameters(tool.name, tool.input_schema, names, texts, declared)
        _check_tool(tool, parameters, is_tool_guard=is_tool_guard)

    vars(guard)["asks"] = asks
    vars(guard)["check_tool"] = check_tool
    guard.__name__ = guard.__qualname__ = "commands"
    return guard


def _read_patterns(option: str, texts: Iterable[str]) -> Patterns:
    if isinstance(texts, str):
        raise DefinitionError(f"commands({option}=…) takes patterns such as ['git status', 'pytest *'], not {texts!r}")
    return tuple(map(CommandPattern, texts))


def _check_tool(tool: Tool, parameters: LineParameters, *, is_tool_guard: bool) -> None:
    """Refuse a tool if its calls may run something hidden from this guard.

    Raises:
        DefinitionError: The tool has such a parameter; the text says how to declare it.
    """
    if parameters.options:
        names = tuple(dict.fromkeys(parameters.options))
        listed = ", ".join(map(repr, names))
        raise DefinitionError(
            f"commands(…) cannot judge {tool.name!r}: {listed} may change what its command runs. "
            f"Remove or bind such a parameter; if it changes nothing, write commands(…, harmless={names!r})"
        )
    possible = parameters.possible_code or (parameters.free_texts if is_tool_guard else [])
    if possible and not parameters.has_line:
        names = tuple(dict.fromkeys(possible))
        raise DefinitionError(
            f"commands(…) finds no shell line among the parameters of {tool.name!r}. If a shell runs {names[0]!r}, "
            f"write commands(…, parameters=({names[0]!r},)); if no shell runs any, write commands(…, text={names!r})"
        )


def _ask_what_runs(places: list[Place]) -> Decision | None:
    """Ask about arguments that are unreadable as a shell line and decide about the command."""
    return decision.ask(f"what runs is unknown because of {format_place(places[0])!r}") if places else None


def _contains(files: Roots, path: str, directory: str | None) -> bool:
    try:
        return files.contains(path, directory)
    except (OSError, ValueError):
        return False


# -- decide on the commands --------------------------------------------------------------------------------------------


def _decide_lines(
    lines: list[Line], patterns: tuple[Patterns, Patterns, Patterns], may_open: Callable[[str], bool]
) -> Decision | None:
    allows, asks, denies = patterns
    for pattern in denies:
        if any(has_match(line, [pattern]) for line in lines):
            return decision.deny(f"commands like {pattern.text!r} are forbidden", rule=f"commands: deny {pattern.text}")
    for pattern in asks:
        if any(has_match(line, [pattern]) for line in lines):
            return decision.ask(f"this runs {pattern.text!r}", rule=f"commands: ask {pattern.text}")
    for pattern in (*denies, *asks):
        for line in lines:
            if has_match(line, [pattern]) is None:
                reason = f"this may run {pattern.text!r}; unknown is {find_unknown_part(line, [pattern])}"
                return decision.ask(reason, rule=f"commands: {pattern.text}")
    for line in lines:
        if not is_allowed(line, allows, may_open):
            return decision.ask(_explain_ask(line, allows, may_open))
    return None


def _explain_ask(line: Line, allows: Patterns, may_open: Callable[[str], bool]) -> str:
    """Return the reason to ask, with the first command, redirection or variable without a pattern."""
    for command in line.commands:
        if not command.through and not is_allowed(Line((command,)), allows, lambda path: True):
            return f"nothing allows {format_command(command)}"
    targets = (one for command in line.commands for one in command.redirections)
    for one in targets:
        if one.target is None or not may_open(one.target):
            return f"nothing allows {one.operator} {(one.target or 'an unknown file')[:QUOTE_LENGTH]!r}"
    with_variables = (format_command(command) for command in line.commands if command.assignments)
    return f"nothing allows {line.unknown[0] if line.unknown else next(with_variables, 'what it runs')}"
