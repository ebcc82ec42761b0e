"""Which shell lines the arguments of a call are, with what stands beside each of them.

One place says so for all who judge commands: the guards, the rules of a policy, and what is remembered of answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from ferrule.commands import COMMAND_NAMES, Line, read_argv, read_line, without_relative_paths
from ferrule.paths import has_name_of

Place: TypeAlias = tuple[str | int, ...]
IsCommand: TypeAlias = Callable[[str, Place], bool]

_LISTS_OF_LINES: Final = frozenset({"commands", "cmds"})
_ARGUMENT_NAMES: Final = frozenset({"args", "arg", "arguments", "argument", "argv", "flags"})
_ENVIRONMENT_NAMES: Final = frozenset(
    {"env", "envs", "environ", "environment", "envvars", "envvariables", "environmentvariables"}
)
_DIRECTORY_NAMES: Final = frozenset({"cwd", "workdir", "dir", "directory", "folder", "workingdir"})


def is_command_name(name: str, place: Place = ()) -> bool:
    """Whether the value of a parameter with this name is a shell line. See docs/guards.md#commands."""
    return has_name_of(name, COMMAND_NAMES)


def lines_in(
    arguments: Any, is_command: IsCommand = is_command_name, place: Place = ()
) -> Iterator[tuple[Place, Line]]:
    """The lines in arguments, at any depth, each with the place where it stands. See docs/guards.md#commands.

    Args:
        is_command: Whether what stands under a key, at a place, is a shell line.
        place: Where `arguments` stand themselves.
    """
    if isinstance(arguments, Mapping):
        for key, value in arguments.items():
            inner = (*place, key)
            if not is_command(key, inner):
                yield from lines_in(value, is_command, inner)
            elif value is not None:
                yield from ((inner, line) for line in lines_of(key, value, arguments, is_command, inner))
    elif isinstance(arguments, list | tuple):
        for at, one in enumerate(arguments):
            yield from lines_in(one, is_command, (*place, at))


def lines_of(
    name: str, value: Any, beside: Mapping[str, Any], is_command: IsCommand = is_command_name, place: Place = ()
) -> list[Line]:
    """The lines that a value is, under this name: text is one, a list of texts an argument vector, under a name such as
    `commands` several; of an object they are what its own names say. At least one. See docs/guards.md#commands.

    Args:
        beside: The object in which it stands. Its `args` are more words; its `env` and `cwd` change what a line does.
    """
    more = {key: one for key, one in beside.items() if key != name and one}
    arguments = [one for key, one in more.items() if has_name_of(key, _ARGUMENT_NAMES)]
    lines = list(_lines_under(name, value, arguments, is_command, place))
    if is_elsewhere(more):
        lines = list(map(without_relative_paths, lines))
    if any(has_name_of(key, _ENVIRONMENT_NAMES) for key in more):
        lines = [replace(line, unknown=(*line.unknown, "what the environment changes")) for line in lines]
    return lines


def _lines_under(name: str, value: Any, arguments: list[Any], is_command: IsCommand, place: Place) -> Iterator[Line]:
    is_line = isinstance(value, str)
    if is_line or (_is_words(value) and not has_name_of(name, _LISTS_OF_LINES)):
        if len(arguments) > 1 or not all(isinstance(one, str) or _is_words(one) for one in arguments):
            yield Line((), ("arguments that are not one list of texts",))
        elif arguments:
            yield from _lines_with_arguments(value, arguments[0])
        else:
            yield read_line(value) if is_line else read_argv(value)
    elif isinstance(value, list | tuple) and value:
        for at, one in enumerate(value):
            yield from _lines_under("", one, arguments, is_command, (*place, at))
    else:
        inner = [line for _, line in lines_in(value, is_command, place)]
        yield from inner or [Line((), ("a command that is neither text nor a list of texts",))]


def _lines_with_arguments(command: str | Iterable[str], arguments: str | Iterable[str]) -> Iterator[Line]:
    """Of a program whose arguments are an argument of their own: as the line that may be made of them, and where they
    are a list, as they are."""
    first = [command] if isinstance(command, str) else list(command)
    words = [arguments] if isinstance(arguments, str) else list(arguments)
    yield read_line(" ".join([*first, *words]))
    if not isinstance(arguments, str):
        yield read_argv([*first, *words])


def _is_words(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(one, str) for one in value)


def is_elsewhere(values: Mapping[str, object]) -> bool:
    """Whether arguments that stand beside a command say in which directory it runs. See docs/guards.md#commands."""
    return any(value and value != "." and has_name_of(name, _DIRECTORY_NAMES) for name, value in values.items())
