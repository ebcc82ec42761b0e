"""Which commands a shell line may run, and whether they are among those that somebody named.

`read_line` reads; `allowed` and `found` compare, in the two directions that a guard needs. For an allow everything has
to be known, and each command that stands in the line to match a pattern word by word. For an ask or a deny what is
asked is whether a command may run, so the arguments of programs that run their arguments are read too, programs count
by the last part of their path, and what cannot be known may be it.
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
from ferrule.security.programs import program_name, risk_of
from ferrule.security.shell_syntax import (
    MOST_CHARACTERS,
    MOST_LEVELS,
    Command,
    Line,
    Redirection,
    is_printable,
    read_syntax,
    words_of,
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
    "allowed",
    "command_text",
    "found",
    "read_argv",
    "read_line",
    "runs_what_it_says",
    "targets",
    "what_is_unknown",
    "without_relative_paths",
]

COMMAND_NAMES: Final = frozenset({"command", "commands", "cmd", "cmds", "commandline", "cmdline", "argv"})
"""The names of parameters that are shell lines, or argument vectors. See docs/guards.md#commands."""

_SETS_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")
MOST_COMMANDS: Final = 100
"""How many commands of a line are read, with those that others run. See docs/guards.md#commands."""
_MOST_WRAPPERS: Final = 8
_QUOTE_LENGTH: Final = 120
_CANNOT_BE_KNOWN: Final = Command((None,))

# -- what bash itself runs, or changes, by the arguments of a builtin --------------------------------------------------

_READS_CODE: Final = words_of(
    ". source eval trap alias unalias set shopt enable hash let bind complete compgen compopt fc getopts mapfile"
    " readarray read unset export declare typeset local readonly"
)
"""Builtins that read an argument as code, or set what the words after them mean (bash 5.2, builtins(1))."""
_READS_CODE_BY_OPTION: Final = {"printf": "v", "wait": "p", "jobs": "x", "test": "vR", "[": "vR"}
"""Those that do with an option: `printf -v 'a[$(touch x)]'` runs `touch`."""
_IN_SHELL: Final = frozenset({"time", "command", "builtin"})
"""What may stand before a builtin."""
_CHANGES_DIRECTORY: Final = frozenset({"cd", "pushd", "popd"})

# -- programs that run their arguments ---------------------------------------------------------------------------------

_SHELLS: Final = words_of("sh bash dash ash zsh ksh mksh fish rbash")
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
"""Programs whose arguments are a command: the letters of their options that take a value, and how many arguments stand
before the command. One that is not here, or is used otherwise, makes an ask all the same (`_may_run`)."""
_FIND_RUNS: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_RUNS_NO_ARGUMENTS: Final = words_of(
    "echo printf true false : cat tac head tail wc grep egrep fgrep cut tr uniq paste nl od ls pwd cd test ["
    " basename dirname realpath readlink stat du df touch mkdir rmdir rm cp mv ln chmod chown tee cmp comm md5sum"
    " sha1sum sha256sum sha512sum sleep seq which type id whoami uname date jq exit return break continue shift"
    " wait pushd popd dirs umask"
)
"""Programs that run nothing of their arguments, whatever these are."""


@lru_cache(maxsize=256)
def read_line(text: str) -> Line:
    """The commands that a shell line may run, and what about it cannot be known. Never raises.
    See docs/guards.md#commands.

        >>> [command.words for command in read_line("git log | head -3").commands]
        [('git', 'log'), ('head', '-3')]
    """
    return _with_what_runs(read_syntax(text))


def read_argv(words: Sequence[str]) -> Line:
    """The same of an argument vector, which no shell reads. See docs/guards.md#commands."""
    unknown = () if all(map(is_printable, words)) else ("characters that are not printable",)
    return _with_what_runs(Line((Command(tuple(words)),), unknown))


def _with_what_runs(line: Line) -> Line:
    """The line, with what its builtins do and the commands that are arguments of others."""
    # Of `find -exec find -exec …` each part may be a command of every one before it: the bound holds while it is read.
    read = tuple(islice((inner for command in line.commands for inner in _unwrapped(command)), MOST_COMMANDS + 1))
    too_many = [f"more than {MOST_COMMANDS} commands"] if len(read) > MOST_COMMANDS else []
    commands = read[:MOST_COMMANDS]
    code = (what for command in commands if _is_run_by_shell(command) for what in _code_of(command))
    whole = Line(commands, (*line.unknown, *code, *too_many))
    return without_relative_paths(whole) if _changes_directory(whole.commands) else whole


def _is_run_by_shell(command: Command) -> bool:
    """Whether it is run by the shell that reads the line, and so may change what comes after it."""
    return _IN_SHELL.issuperset(command.through)


def _code_of(command: Command) -> Iterator[str]:
    """What a builtin reads as code, or sets for what comes after it."""
    name, *arguments = command.words or ("",)
    letters = _READS_CODE_BY_OPTION.get(name or "", "")
    options = arguments[:1] if name == "printf" else arguments
    if name in _READS_CODE or any(_may_have_option(word, letters) for word in options):
        yield f"what {name!r} does with its arguments"


def _may_have_option(word: str | None, letters: str) -> bool:
    return bool(letters) and (word is None or (word[:1] == "-" and any(letter in word for letter in letters)))


def without_relative_paths(line: Line) -> Line:
    """The line where nobody knows in which directory it runs. See docs/guards.md#commands."""
    moved = tuple(map(_without_relative_targets, line.commands))
    programs = (command.words[0] for command in moved if command.words and not command.through)
    unknown = [f"where {program!r} is" for program in programs if program and _is_relative(program)]
    return Line(moved, (*line.unknown, *unknown))


def targets(text: str, elsewhere: bool = False) -> list[str | None]:
    """The files that redirections of a line open; `None` for one that cannot be known. See docs/guards.md#commands.

    Args:
        elsewhere: Whether it runs in a directory that is not known.
    """
    line = without_relative_paths(read_line(text)) if elsewhere else read_line(text)
    opened = [one.target for command in line.commands for one in command.redirections]
    return [*opened, None] if line.unknown and ("<" in text or ">" in text) else opened


def _is_relative(program: str) -> bool:
    return "/" in program and not posixpath.isabs(program)


def _changes_directory(commands: Iterable[Command]) -> bool:
    return any(command.words and command.words[0] in {*_CHANGES_DIRECTORY, None} for command in commands)


def _without_relative_targets(command: Command) -> Command:
    targets = (
        one if one.target is None or posixpath.isabs(one.target) else replace(one, target=None)
        for one in command.redirections
    )
    return replace(command, redirections=tuple(targets)) if command.redirections else command


def _unwrapped(command: Command) -> Iterator[Command]:
    """The command, and what it runs of its arguments."""
    yield command
    if not command.words or command.words[0] is None:
        return
    name = posixpath.basename(command.words[0])
    through = (*command.through, name)
    for inner in _arguments_run_by(name, command.words):
        inner = replace(inner, through=through)
        if len(through) >= _MOST_WRAPPERS:
            yield replace(_CANNOT_BE_KNOWN, through=through)
        else:
            yield from _unwrapped(inner)


def _arguments_run_by(name: str, words: tuple[str | None, ...]) -> Iterator[Command]:
    if name in _SHELLS:
        yield from _run_by_shell(words)
    elif name == "eval":
        yield from _run_as_line(None if None in words else " ".join(word for word in words[1:] if word is not None))
    elif name == "find":
        yield from _run_by_find(words)
    elif name in _WRAPPERS:
        yield from _run_by_wrapper(name, words)


def _run_as_line(text: str | None) -> Iterator[Command]:
    line = Line((), ("",)) if text is None else read_syntax(text)
    yield from line.commands
    if line.unknown or any(what for command in line.commands for what in _code_of(command)):
        yield _CANNOT_BE_KNOWN


def _run_by_shell(words: tuple[str | None, ...]) -> Iterator[Command]:
    """What stands after `-c`; what is in a file, or comes from the standard input, is not known."""
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
        yield from _run_as_line(words[at] if at < len(words) else None)
    elif at >= len(words) or (words[at] or "/dev/").startswith(("/dev/", "/proc/")):
        yield _CANNOT_BE_KNOWN


def _run_by_find(words: tuple[str | None, ...]) -> Iterator[Command]:
    for start, word in enumerate(words):
        if word in _FIND_RUNS:
            end = next((at for at in range(start, len(words)) if words[at] in (";", "+")), len(words))
            yield Command(words[start + 1 : end])


def _run_by_wrapper(name: str, words: tuple[str | None, ...]) -> Iterator[Command]:
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
    """Commands, as a person names them: `git status`, `pytest *`, `git * push *`. See docs/guards.md#commands.

    The first word is the program, as it is written in a line. `*` as a word stands for any words, none too; within a
    word for any characters. Whatever a shell would read otherwise stands in quotes, `*` as itself too.

        >>> CommandPattern("git log *").covers(CommandPattern("git log --oneline *"))
        True

    Raises:
        DefinitionError: where the text is no such pattern.
    """

    text: str
    words: tuple[_Word, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", _read_pattern(self.text))

    def matches(self, words: Sequence[str | None]) -> bool:
        """Whether these words match whatever stands for the unknown ones."""
        return _match(self.words, words, lambda pattern, word: word is not None and _match_word(pattern, word))

    def covers(self, other: CommandPattern) -> bool:
        """Whether this matches whatever `other` matches; `False` where that cannot be told."""
        # No pattern has a NUL, so where `other` has a `*` only a `*` matches.
        return _match(
            self.words, other.words, lambda mine, theirs: theirs != _ANY_WORDS and _match_word(mine, "\0".join(theirs))
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
                f"{text!r} is no pattern of one command: put {text[at:]!r} in quotes where it is meant"
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
        raise DefinitionError(f"{text!r}: the first word of a pattern is a program, without '*'")
    return tuple(tuple(word) for word in words)


def _match(pattern: Sequence[_Word], words: Sequence[_T], one: Callable[[_Word, _T], bool]) -> bool:
    """Whether words match, in steps that grow with the product of both lengths."""
    at, done, star, tried = 0, 0, -1, 0
    while done < len(words):
        if at < len(pattern) and pattern[at] == _ANY_WORDS:
            star, tried = at, done
            at += 1
        elif at < len(pattern) and one(pattern[at], words[done]):
            at, done = at + 1, done + 1
        elif star >= 0:
            tried += 1
            at, done = star + 1, tried
        else:
            return False
    return all(rest == _ANY_WORDS for rest in pattern[at:])


def _match_word(pattern: _Word, word: str) -> bool:
    first, last = pattern[0], pattern[-1]
    if len(pattern) == 1:
        return word == first
    end = len(word) - len(last)
    if not word.startswith(first) or not word.endswith(last) or len(first) > end:
        return False
    at = len(first)
    for piece in pattern[1:-1]:
        at = word.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


# -- comparing ---------------------------------------------------------------------------------------------------------


def allowed(line: Line, patterns: Iterable[CommandPattern], may_write: Callable[[str], bool]) -> bool:
    """Whether all that may run is known and matches some pattern. See docs/guards.md#commands.

    Wrappers count by their own names, and assignments match nothing. `may_write` is asked about the target of each
    redirection, those to be read too.
    """
    patterns = tuple(patterns)
    own = [command for command in line.commands if not command.through]
    if line.unknown or not any(command.words for command in own):
        return False
    if any(command.assignments for command in line.commands if _is_run_by_shell(command)):
        return False
    if not all(one.target is not None and may_write(one.target) for each in line.commands for one in each.redirections):
        return False
    return all(_is_named(command.words, patterns) for command in own if command.words)


def _is_named(words: tuple[str | None, ...], patterns: tuple[CommandPattern, ...]) -> bool:
    return None not in words and any(pattern.matches(words) for pattern in patterns)


def found(line: Line, patterns: Iterable[CommandPattern]) -> bool | None:
    """Whether a command that may run matches some pattern; `None` where that cannot be known.
    See docs/guards.md#commands."""
    patterns = tuple(patterns)
    answers = {_finds(pattern, command) for pattern in patterns for command in line.commands}
    if True in answers:
        return True
    return None if patterns and (line.unknown or None in answers) else False


def what_is_unknown(line: Line, patterns: Iterable[CommandPattern]) -> str:
    """What it is of a line for which `found` answers `None`, as text for a person; empty where it does not."""
    if found(line, patterns := tuple(patterns)) is not None:
        return ""
    commands = (command for command in line.commands if found(Line((command,)), patterns) is None)
    return line.unknown[0] if line.unknown else next(map(command_text, commands), "")


def command_text(command: Command) -> str:
    """A command in quotes, shortened, with what runs it before it; `…` is what is not known."""
    words = ("…" if word is None else shlex.quote(word) for word in command.words)
    text = " ".join([*command.through, *(f"{name}=…" for name in command.assignments), *words])
    return repr(text if len(text) <= _QUOTE_LENGTH else text[: _QUOTE_LENGTH - 1] + "…")


def _finds(pattern: CommandPattern, command: Command) -> bool | None:
    words = command.words
    if not words:
        return None if command.assignments else False
    if words[0] is None:
        return None
    if program_name(words[0]) == _plain_words(pattern)[0]:
        if pattern.matches((pattern.words[0][0], *words[1:])):
            return True
        if _may_be_arranged(pattern, words[1:]):
            return None
    return None if command.assignments or _may_run(pattern, words) else False


def _may_be_arranged(pattern: CommandPattern, arguments: Sequence[str | None]) -> bool:
    """Whether the words of the pattern stand there with others between them. Options are written in many ways (`-rf`,
    `-r -f`, `--force`), so any option may be one of the pattern's."""
    if None in arguments:
        return True
    rest = iter(arguments)
    plain = [word for word in pattern.words[1:] if word != _ANY_WORDS and word[0][:1] != "-"]
    in_order = all(any(_match_word(word, given or "") for given in rest) for word in plain)
    wants_option = any(word[0][:1] == "-" for word in pattern.words[1:])
    return in_order and (not wants_option or any((given or "")[:1] == "-" for given in arguments))


def _may_run(pattern: CommandPattern, words: tuple[str | None, ...]) -> bool:
    """Whether a program may run what the pattern names, which stands in its arguments."""
    if (words[0] or "").removeprefix("/usr").removeprefix("/bin/") in _RUNS_NO_ARGUMENTS:
        return False
    if None in words:
        return True
    text = _arguments_as_read_again(words)
    # Most are not there: to look for the bare text takes a tenth of the time.
    return all(
        word in text and re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])", text) for word in _plain_words(pattern)
    )


@lru_cache(maxsize=1024)
def _plain_words(pattern: CommandPattern) -> tuple[str, ...]:
    """The program of a pattern, and its words that are no options and have no `*`."""
    others = (word[0].casefold() for word in pattern.words[1:] if len(word) == 1 and word[0][:1] != "-")
    return (program_name(pattern.words[0][0]), *others)


@lru_cache(maxsize=2 * MOST_COMMANDS)
def _arguments_as_read_again(words: tuple[str | None, ...]) -> str:
    """The arguments of a command, which each pattern of a policy is compared with."""
    return "\n".join(_as_read_again(word) for word in words[1:] if word is not None)


def _as_read_again(word: str) -> str:
    """A word without the quotes that a second shell would take away, and what may be the value of an option in it."""
    text = re.sub(r"['\"\\]", "", word).casefold()
    return f"{text}\n{text[2:]}" if text[:1] == "-" and text[1:2] != "-" else text


def runs_what_it_says(line: Line) -> bool:
    """Whether the words of a line say all that it runs: no shell, interpreter or wrapper is among its programs, no
    redirection, no assignment, and nothing that cannot be known. See docs/approvals.md#remembered-answers."""
    return bool(line.commands) and not line.unknown and all(map(_says_what_it_runs, line.commands))


def _says_what_it_runs(command: Command) -> bool:
    if not command.words or None in command.words or command.redirections or command.assignments or command.through:
        return False
    risk = risk_of(command.words[0] or ".")
    return risk is None or risk.kind not in {"interpreter", "runner"}
