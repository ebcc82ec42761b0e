"""Find the commands that a shell line may run, and compare them with patterns.

`read_line` reads a line. `is_allowed` and `has_match` compare it with patterns, in the two directions of a guard.
`is_allowed` requires that everything is known, and that each command in the line matches a pattern word by word.
`has_match` answers whether a command may run. So it also reads the arguments of programs that run their arguments,
compares programs by the last part of their path, and counts anything unknown as a possible match.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Final, TypeVar, final

from ferrule.errors import DefinitionError
from ferrule.security.programs import find_risk, program_name
from ferrule.security.shell_syntax import (
    MOST_CHARACTERS,
    MOST_LEVELS,
    Command,
    Line,
    Redirection,
    is_printable,
    read_syntax,
    split_words,
)

__all__ = [
    "COMMAND_NAMES",
    "MOST_CHARACTERS",
    "MOST_COMMANDS",
    "MOST_LEVELS",
    "Command",
    "CommandPattern",
    "Line",
    "Redirection",
    "is_allowed",
    "format_command",
    "has_match",
    "read_argv",
    "read_line",
    "is_transparent",
    "match_pieces",
    "find_redirection_targets",
    "find_unknown_part",
    "without_relative_paths",
]

COMMAND_NAMES: Final = frozenset({"command", "commands", "cmd", "cmds", "commandline", "cmdline", "argv"})
"""The names of parameters for shell lines or argument vectors. See docs/guards.md#commands."""

_SETS_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")
MOST_COMMANDS: Final = 100
"""The most commands read from a line, including those run by other commands. See docs/guards.md#commands."""
_MOST_WRAPPERS: Final = 8
_QUOTE_LENGTH: Final = 120
_UNKNOWN_COMMAND: Final = Command((None,))

# -- bash itself: code in the arguments of a builtin, and changes to the shell -----------------------------------------

_CODE_BUILTINS: Final = split_words(
    ". source eval trap alias unalias set shopt enable hash let bind complete compgen compopt fc getopts mapfile"
    " readarray read unset export declare typeset local readonly"
)
"""Builtins that read an argument as code, or change the meaning of the words after them (bash 5.2, builtins(1))."""
_CODE_OPTIONS: Final = {"printf": "v", "wait": "p", "jobs": "x", "test": "vR", "[": "vR"}
"""Builtins that do so with an option: `printf -v 'a[$(touch x)]'` runs `touch`."""
_BUILTIN_PREFIXES: Final = frozenset({"time", "command", "builtin"})
"""The words that may precede a builtin."""
_CHANGES_DIRECTORY: Final = frozenset({"cd", "pushd", "popd"})

# -- programs that run their arguments ---------------------------------------------------------------------------------

_SHELLS: Final = split_words("sh bash dash ash zsh ksh mksh fish rbash")
_WRAPPERS: Final = {
    "env": ("uCa", 0),
    "sudo": ("CDghpRrTtUu", 0),
    "doas": ("aCu", 0),
    "nice": ("n", 0),
    "ionice": ("cnpPu", 0),
    "chrt": ("TPD", 1),
    "taskset": ("", 1),
    "nohup": ("", 0),
    "setsid": ("", 0),
    "time": ("fo", 0),
    "timeout": ("ks", 1),
    "stdbuf": ("ioe", 0),
    "xargs": ("adEeIiLlnPs", 0),
    "command": ("", 0),
    "builtin": ("", 0),
    "exec": ("a", 0),
    "busybox": ("", 0),
    "chroot": ("", 1),
    "flock": ("wE", 1),
    "strace": ("aeEIoOpPsSuUX", 0),
    "watch": ("nd", 0),
    "caffeinate": ("tw", 0),
}
"""Programs whose arguments are a command: the letters of their options with a value, and the number of arguments before
the command. A program missing here, or used in another way, still makes an ask (`_may_run`).
"""
_FIND_EXEC_OPTIONS: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_PLAIN_PROGRAMS: Final = split_words(
    "echo printf true false : cat tac head tail wc grep egrep fgrep cut tr uniq paste nl od ls pwd cd test ["
    " basename dirname realpath readlink stat du df touch mkdir rmdir rm cp mv ln chmod chown tee cmp comm md5sum"
    " sha1sum sha256sum sha512sum sleep seq which type id whoami uname date jq exit return break continue shift"
    " wait pushd popd dirs umask"
)
"""Programs that never run any of their arguments."""


@lru_cache(maxsize=256)
def read_line(text: str) -> Line:
    """Return the commands that a shell line may run, and its unknown parts. Never raises.

    See docs/guards.md#commands.

        >>> [command.words for command in read_line("git log | head -3").commands]
        [('git', 'log'), ('head', '-3')]
    """
    return _expand_line(read_syntax(text))


def read_argv(words: Sequence[str]) -> Line:
    """Return the same for an argument vector, without a shell. See docs/guards.md#commands."""
    unknown = () if all(map(is_printable, words)) else ("characters that are not printable",)
    return _expand_line(Line((Command(tuple(words)),), unknown))


def _expand_line(line: Line) -> Line:
    """Return the line with the effects of its builtins, and with the commands in arguments of other commands."""
    # In `find -exec find -exec …` each part may be a command of every part before it, so the bound holds during the
    # reading.
    read = tuple(islice((inner for command in line.commands for inner in _unwrap_command(command)), MOST_COMMANDS + 1))
    too_many = [f"more than {MOST_COMMANDS} commands"] if len(read) > MOST_COMMANDS else []
    commands = read[:MOST_COMMANDS]
    code = (what for command in commands if _is_run_by_shell(command) for what in _find_code(command))
    whole = Line(commands, (*line.unknown, *code, *too_many))
    return without_relative_paths(whole) if _changes_directory(whole.commands) else whole


def _is_run_by_shell(command: Command) -> bool:
    """Return whether the shell of the line itself runs the command, so that it may change the commands after it."""
    return _BUILTIN_PREFIXES.issuperset(command.through)


def _find_code(command: Command) -> Iterator[str]:
    """Yield the effects of a builtin that reads code, or changes the commands after it."""
    name, *arguments = command.words or ("",)
    letters = _CODE_OPTIONS.get(name or "", "")
    options = arguments[:1] if name == "printf" else arguments
    if name in _CODE_BUILTINS or any(_may_have_option(word, letters) for word in options):
        yield f"what {name!r} does with its arguments"


def _may_have_option(word: str | None, letters: str) -> bool:
    return bool(letters) and (word is None or (word[:1] == "-" and any(letter in word for letter in letters)))


def without_relative_paths(line: Line) -> Line:
    """Return the line as read in an unknown directory. See docs/guards.md#commands."""
    moved = tuple(map(_without_relative_targets, line.commands))
    programs = (command.words[0] for command in moved if command.words and not command.through)
    unknown = [f"where {program!r} is" for program in programs if program and _is_relative(program)]
    return Line(moved, (*line.unknown, *unknown))


def find_redirection_targets(text: str, elsewhere: bool = False) -> list[str | None]:
    """Return the files that redirections of a line open, with `None` for an unknown one. See docs/guards.md#commands.

    Args:
        elsewhere: Whether the line runs in an unknown directory.
    """
    line = without_relative_paths(read_line(text)) if elsewhere else read_line(text)
    opened = [one.target for command in line.commands for one in command.redirections]
    return [*opened, None] if line.unknown and ("<" in text or ">" in text) else opened


def _is_relative(program: str) -> bool:
    return "/" in program and not posixpath.isabs(program)


def _changes_directory(commands: Iterable[Command]) -> bool:
    return any(command.words and command.words[0] in {*_CHANGES_DIRECTORY, None} for command in commands)


def _without_relative_targets(command: Command) -> Command:
    redirections = (
        one if one.target is None or posixpath.isabs(one.target) else replace(one, target=None)
        for one in command.redirections
    )
    return replace(command, redirections=tuple(redirections)) if command.redirections else command


def _unwrap_command(command: Command) -> Iterator[Command]:
    """Yield the command, and the commands that it runs from its arguments."""
    yield command
    if not command.words or command.words[0] is None:
        return
    name = posixpath.basename(command.words[0])
    through = (*command.through, name)
    for inner in _find_inner_commands(name, command.words):
        inner = replace(inner, through=through)
        if len(through) >= _MOST_WRAPPERS:
            yield replace(_UNKNOWN_COMMAND, through=through)
        else:
            yield from _unwrap_command(inner)


def _find_inner_commands(name: str, words: tuple[str | None, ...]) -> Iterator[Command]:
    if name in _SHELLS:
        yield from _read_shell_arguments(words)
    elif name == "eval":
        yield from _read_code(None if None in words else " ".join(word for word in words[1:] if word is not None))
    elif name == "find":
        yield from _read_find_arguments(words)
    elif name in _WRAPPERS:
        yield from _read_wrapper_arguments(name, words)


def _read_code(text: str | None) -> Iterator[Command]:
    line = Line((), ("",)) if text is None else read_syntax(text)
    yield from line.commands
    if line.unknown or any(what for command in line.commands for what in _find_code(command)):
        yield _UNKNOWN_COMMAND


def _read_shell_arguments(words: tuple[str | None, ...]) -> Iterator[Command]:
    """Yield the commands of the text after `-c`. The content of a file or of the standard input is unknown."""
    has_line, at = False, 1
    while at < len(words) and (word := words[at]) is not None and word[:1] in {"-", "+"}:
        at += 1
        if word in ("-", "--"):
            break
        if word[:2] != "--":
            has_line = has_line or "c" in word
            at += "o" in word or "O" in word
        elif word in ("--rcfile", "--init-file"):
            at += 1
    if has_line:
        yield from _read_code(words[at] if at < len(words) else None)
    elif at >= len(words) or (words[at] or "/dev/").startswith(("/dev/", "/proc/")):
        yield _UNKNOWN_COMMAND


def _read_find_arguments(words: tuple[str | None, ...]) -> Iterator[Command]:
    for start, word in enumerate(words):
        if word in _FIND_EXEC_OPTIONS:
            end = next((at for at in range(start, len(words)) if words[at] in (";", "+")), len(words))
            yield Command(words[start + 1 : end])


def _read_wrapper_arguments(name: str, words: tuple[str | None, ...]) -> Iterator[Command]:
    with_value, operands = _WRAPPERS[name]
    assignments: list[str] = []
    at, are_options = 1, True
    while at < len(words) and (word := words[at]) is not None:
        if word == "--":
            are_options = False
        elif are_options and word[:1] == "-" and word != "-":
            at += word[:2] != "--" and word[-1] in with_value
        elif is_set := _SETS_VARIABLE.match(word):
            assignments.append(is_set.group(1))
        elif operands:
            operands -= 1
        else:
            break
        at += 1
    inner = words[at:]
    if inner or assignments:
        yield Command(inner + ((None,) if name == "xargs" else ()), tuple(assignments))


# -- patterns ----------------------------------------------------------------------------------------------------------

_Word = tuple[str, ...]
_T = TypeVar("_T")
_ANY_WORDS: Final[_Word] = ("", "")
_PIECE = re.compile(
    r"""'(?P<single>[^']*)'|"(?P<double>(?:[^"\\$`]|\\["\\$`])*)"|\\(?P<escaped>[^\n])|(?P<any>\*)|(?P<blanks>[ \t]+)"""
    r"""|(?P<plain>[^ \t\n'"\\*;&|<>()$`?\[]+)"""
)
_ESCAPED_LETTER = re.compile(r"\\(.)")


@final
@dataclass(frozen=True, slots=True)
class CommandPattern:
    """A pattern of commands, written by a person: `git status`, `pytest *`, `git * push *`.

    See docs/guards.md#commands.

    The first word is the program, as written in a line. `*` as a word matches any number of words, including none;
    within a word it matches any characters. Put characters with a meaning for a shell in quotes, and also a literal
    `*`.

        >>> CommandPattern("git log *").covers(CommandPattern("git log --oneline *"))
        True

    Raises:
        DefinitionError: The text is no such pattern.
    """

    text: str
    words: tuple[_Word, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", _read_pattern(self.text))

    def matches(self, words: Sequence[str | None]) -> bool:
        """Return whether these words match for every possible value of the unknown ones."""
        if not words or words[0] != self.words[0][0]:  # a pattern has its program without a `*`
            return False
        return _match(self.words, words, lambda pattern, word: word is not None and match_pieces(pattern, word))

    def covers(self, other: CommandPattern) -> bool:
        """Return whether this pattern matches everything that `other` matches; `False` if that is uncertain."""
        # No pattern has a NUL, so only a `*` matches a `*` of `other`.
        return _match(
            self.words, other.words, lambda wide, word: word != _ANY_WORDS and match_pieces(wide, "\0".join(word))
        )


def _read_pattern(text: object) -> tuple[_Word, ...]:
    if not isinstance(text, str) or not text.strip() or not is_printable(text):
        raise DefinitionError(f"a pattern of commands is text such as 'pytest *', not {text!r}")
    words: list[list[str]] = []
    at, in_word = 0, False
    while at < len(text):
        match = _PIECE.match(text, at)
        if match is None:
            raise DefinitionError(
                f"{text!r} is not a pattern of one command: put {text[at:]!r} in quotes to mean it literally"
            )
        at = match.end()
        if match["blanks"]:
            in_word = False
            continue
        if not in_word:
            words.append([""])
        in_word = True
        if match["any"]:
            words[-1].append("")
        else:
            words[-1][-1] += _ESCAPED_LETTER.sub(r"\1", match["double"] or "") or match[match.lastgroup or 0]
    program = words[0]
    if len(program) > 1 or not program[0] or _SETS_VARIABLE.match(program[0]):
        raise DefinitionError(f"{text!r} is not a pattern of one command: its first word is a program, without '*'")
    return tuple(tuple(word) for word in words)


def _match(pattern: Sequence[_Word], words: Sequence[_T], match_one: Callable[[_Word, _T], bool]) -> bool:
    """Return whether the words match. The number of steps grows with the product of both lengths."""
    at, done, star, tried = 0, 0, -1, 0
    while done < len(words):
        if at < len(pattern) and pattern[at] == _ANY_WORDS:
            star, tried = at, done
            at += 1
        elif at < len(pattern) and match_one(pattern[at], words[done]):
            at, done = at + 1, done + 1
        elif star >= 0:
            tried += 1
            at, done = star + 1, tried
        else:
            return False
    return all(rest == _ANY_WORDS for rest in pattern[at:])


def match_pieces(pieces: Sequence[str], text: str) -> bool:
    """Return whether a text consists of these pieces, in this order, with any characters between them.

    A single piece must be equal to the text. See docs/guards.md#commands.
    """
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return text == first
    end = len(text) - len(last)
    if not text.startswith(first) or not text.endswith(last) or len(first) > end:
        return False
    at = len(first)
    for piece in pieces[1:-1]:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


# -- comparing ---------------------------------------------------------------------------------------------------------


def is_allowed(line: Line, patterns: Iterable[CommandPattern], may_write: Callable[[str], bool]) -> bool:
    """Return whether all commands that may run are known and match a pattern. See docs/guards.md#commands.

    Wrappers count by their own names, and assignments match nothing. `may_write` decides about the target of each
    redirection, including those that only read.
    """
    patterns = tuple(patterns)
    written = [command for command in line.commands if not command.through]
    if line.unknown or not any(command.words for command in written):
        return False
    if any(command.assignments for command in line.commands if _is_run_by_shell(command)):
        return False
    targets = [redirection.target for command in line.commands for redirection in command.redirections]
    if not all(target is not None and may_write(target) for target in targets):
        return False
    return all(_matches_any(command.words, patterns) for command in written if command.words)


def _matches_any(words: tuple[str | None, ...], patterns: tuple[CommandPattern, ...]) -> bool:
    return None not in words and any(pattern.matches(words) for pattern in patterns)


def has_match(line: Line, patterns: Iterable[CommandPattern]) -> bool | None:
    """Return whether a command that may run matches a pattern; `None` if that is uncertain.

    See docs/guards.md#commands.
    """
    patterns = tuple(patterns)
    answers = {_match_command(pattern, command) for pattern in patterns for command in line.commands}
    if True in answers:
        return True
    return None if patterns and (line.unknown or None in answers) else False


def find_unknown_part(line: Line, patterns: Iterable[CommandPattern]) -> str:
    """Return the part of a line that makes `has_match` uncertain, as text for a person; empty if it is certain."""
    if has_match(line, patterns := tuple(patterns)) is not None:
        return ""
    commands = (command for command in line.commands if has_match(Line((command,)), patterns) is None)
    return line.unknown[0] if line.unknown else next(map(format_command, commands), "")


def format_command(command: Command) -> str:
    """Return a command in quotes, shortened, behind the programs that run it. `…` replaces unknown words."""
    words = ("…" if word is None else shlex.quote(word) for word in command.words)
    text = " ".join([*command.through, *(f"{name}=…" for name in command.assignments), *words])
    return repr(text if len(text) <= _QUOTE_LENGTH else text[: _QUOTE_LENGTH - 1] + "…")


def _match_command(pattern: CommandPattern, command: Command) -> bool | None:
    words = command.words
    if not words:
        return None if command.assignments else False
    if words[0] is None:
        return None
    if program_name(words[0]) == _plain_words(pattern)[0]:
        if pattern.matches((pattern.words[0][0], *words[1:])):
            return True
        if _has_words_in_order(pattern, words[1:]):
            return None
    return None if command.assignments or _may_run(pattern, words) else False


def _has_words_in_order(pattern: CommandPattern, arguments: Sequence[str | None]) -> bool:
    """Return whether the arguments contain the words of the pattern in order, possibly with others between them.

    Options have several spellings (`-rf`, `-r -f`, `--force`), so any option may be one of the pattern's.
    """
    if None in arguments:
        return True
    rest = iter(arguments)
    plain = [word for word in pattern.words[1:] if word != _ANY_WORDS and word[0][:1] != "-"]
    in_order = all(any(match_pieces(word, argument or "") for argument in rest) for word in plain)
    wants_option = any(word[0][:1] == "-" for word in pattern.words[1:])
    return in_order and (not wants_option or any((argument or "")[:1] == "-" for argument in arguments))


def _may_run(pattern: CommandPattern, words: tuple[str | None, ...]) -> bool:
    """Return whether a program may run the pattern's command because its arguments contain the pattern's words."""
    if (words[0] or "").removeprefix("/usr").removeprefix("/bin/") in _PLAIN_PROGRAMS:
        return False
    if None in words:
        return True
    text = _unquote_arguments(words)
    # Most words are absent: a search for the bare text takes a tenth of the time.
    return all(
        word in text and re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])", text) for word in _plain_words(pattern)
    )


@lru_cache(maxsize=1024)
def _plain_words(pattern: CommandPattern) -> tuple[str, ...]:
    """Return the program of a pattern, and its other words that are no options and have no `*`."""
    others = (word[0].casefold() for word in pattern.words[1:] if len(word) == 1 and word[0][:1] != "-")
    return (program_name(pattern.words[0][0]), *others)


@lru_cache(maxsize=2 * MOST_COMMANDS)
def _unquote_arguments(words: tuple[str | None, ...]) -> str:
    """Return the arguments of a command for the comparison with each pattern of a policy."""
    return "\n".join(_unquote_word(word) for word in words[1:] if word is not None)


def _unquote_word(word: str) -> str:
    """Return a word without the quotes that a second shell would remove.

    The possible value of an option in it follows on a line of its own.
    """
    text = re.sub(r"['\"\\]", "", word).casefold()
    return f"{text}\n{text[2:]}" if text[:1] == "-" and text[1:2] != "-" else text


def is_transparent(line: Line) -> bool:
    """Return whether the words of a line show everything that it runs.

    Its programs include no shell, interpreter or wrapper, and it has no redirection, no assignment and nothing unknown.
    See docs/approvals.md#remembered-answers.
    """
    return bool(line.commands) and not line.unknown and all(map(_is_transparent_command, line.commands))


def _is_transparent_command(command: Command) -> bool:
    if not command.words or None in command.words or command.redirections or command.assignments or command.through:
        return False
    risk = find_risk(command.words[0] or ".")
    return risk is None or risk.kind not in {"interpreter", "runner"}
