"""Read a shell line as bash and dash do, and refuse everything that they might read in another way.

This is a recursive descent over the grammar of POSIX (2018, XCU 2.10) with bash's redirections and process
substitutions: simple commands, pipelines, lists, subshells, groups, `if`, `while`, `until`, `for`, functions,
here-documents. Any other syntax (`case`, arithmetic, arrays, backquotes, `${x:-y}`, `$'…'`) ends the reading, and is
named as the unknown part; the commands before it count. A word is known if nothing in it is expanded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NoReturn

MOST_CHARACTERS: Final = 20_000
"""The most characters of a line to read. See docs/guards.md#commands."""
MOST_LEVELS: Final = 30
"""The most levels of nested substitutions, subshells and compound commands in a line. See docs/guards.md#commands."""


@dataclass(frozen=True, slots=True)
class Redirection:
    """A file that a command is connected with. See docs/guards.md#commands.

    Attributes:
        operator: For example `>`, `>>`, `&>` or `<`.
        target: The path as literal text; `None` if it is unknown.
    """

    operator: str
    target: str | None


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command. See docs/guards.md#commands.

    Attributes:
        words: The program and its arguments, with `None` for an unknown part of any number of words. Empty if there are
            only assignments or redirections.
        assignments: The names of variables that it sets, for itself or for the commands after it.
        redirections: The redirections that open files, without `2>&1` and `/dev/null`.
        through: The programs that this command is an argument of, such as `env`, the outermost first.
    """

    words: tuple[str | None, ...]
    assignments: tuple[str, ...] = ()
    redirections: tuple[Redirection, ...] = ()
    through: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """The commands that a shell line may run. See docs/guards.md#commands.

    Attributes:
        commands: All commands that may run, including those in substitutions, functions and arguments.
        unknown: The parts with unknown effects, as text for a person; empty if everything is known.
    """

    commands: tuple[Command, ...]
    unknown: tuple[str, ...] = ()


def split_words(text: str) -> frozenset[str]:
    """Return the words of a table."""
    return frozenset(text.split())


RESERVED: Final = split_words(
    "! { } [[ ]] case coproc do done elif else esac fi for function if in select then time until while"
)
"""Words of bash's grammar. dash has some of them too."""
_NOT_READ: Final = RESERVED - {"time", "in", "]]"}
_UNQUOTED_WORD = re.compile(r"[^ \t\n;&|<>()]+")
_BLANKS = re.compile(r"[ \t]*")
_LETTERS = re.compile(r"[^ \t\n;&|<>()'\"\\$`*?\[{~]+")
_LETTERS_IN_QUOTES = re.compile(r"[^\"\\$`]+")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNS = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_SUBSCRIPT_OR_SUM = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[|\+=)")
_EXPANSION = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]|\{(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])\})")
_REDIRECTION = re.compile(r"([0-9]*)(<<<|<<-|<<|<&|<>|<(?!\()|>>|>&|>\||>(?!\())|()(&>>|&>)")
_DESCRIPTOR = re.compile(r"[0-9]+-?|-")
_PLAIN_TARGET = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./-]*")
_BREAKS: Final = frozenset(" \t\n;&|<>()")
_BASH_ONLY_OPERATORS: Final = frozenset({"&>", "&>>"})
"""`a &>b c` is `a &` and `>b c` for dash."""
_IGNORED_TARGETS: Final = frozenset({"/dev/null"})
_NETWORK_PREFIXES: Final = ("/dev/tcp/", "/dev/udp/")


def read_syntax(text: str) -> Line:
    """Return the commands in a line, without the commands in arguments of others. Never raises.

    See docs/guards.md#commands.
    """
    if len(text) > MOST_CHARACTERS:
        return Line((), (f"a line of more than {MOST_CHARACTERS} characters",))
    reader = _Reader(text)
    unknown = []
    if not is_printable(text):
        unknown.append("characters that are not printable")
    try:
        reader.read_list({""})
    except _ReadingStopped as reason:
        unknown.append(str(reason))
    return Line(tuple(reader.commands), (*unknown, *reader.unknown))


def is_printable(text: str) -> bool:
    """Return whether a person sees all of the text. See docs/guards.md#commands.

    It has no control character except newline and tab, no blank except the plain one, and no change of direction.
    """
    return text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable()


def _make_redirections(operator: str, target: str | None) -> list[Redirection]:
    if target in _IGNORED_TARGETS:
        return []
    is_of_network = target is not None and target.startswith(_NETWORK_PREFIXES)
    return [Redirection(operator, None if is_of_network else target)]


class _ReadingStopped(Exception):
    """The reason to end the reading, as text for a person."""


def _stop_reading(reason: str) -> NoReturn:
    raise _ReadingStopped(reason)


class _Reader:
    """A position in a text, and the results so far. Each `read_` method reads the syntax in its name from there."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.levels = 0
        self.in_substitution = 0
        self.commands: list[Command] = []
        self.unknown: list[str] = []
        self.here_documents: list[tuple[str, str, bool]] = []

    # -- characters ------------------------------------------------------------------------------------------------

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def take(self, operator: str) -> bool:
        taken = self.text.startswith(operator, self.at)
        self.at += len(operator) if taken else 0
        return taken

    def skip_blanks(self) -> None:
        """Skip blanks, a comment, and line ends after a backslash, up to the next token."""
        while True:
            start = self.at
            match = _BLANKS.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.peek(2) == "\\\n" and (start == 0 or self.at > start or self.text[start - 1] == "\n"):
                self.at += 2
                continue
            if self.peek() == "#" and (self.at == 0 or self.text[self.at - 1] in _BREAKS):
                self.skip_comment()
            return

    def skip_comment(self) -> None:
        if self.in_substitution:
            _stop_reading("a comment in a substitution")
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def skip_newlines(self) -> None:
        """Skip everything up to the next token except a newline, including the bodies of here-documents."""
        self.skip_blanks()
        while self.peek() == "\n":
            self.at += 1
            if self.here_documents:
                self.read_bodies()
            self.skip_blanks()

    # -- lists and pipelines -----------------------------------------------------------------------------------------

    def read_list(self, ends: set[str]) -> str:
        """Read commands up to one of `ends` (reserved words or `)`), or up to the end of the text for `""`."""
        needed = False
        while True:
            self.skip_newlines()
            word = self.peek_reserved_word() or self.peek()
            if word in ends:
                if needed:
                    _stop_reading("an operator without a command after it")
                self.at += len(word)
                return word
            self.read_pipeline()
            self.skip_blanks()
            needed = self.take("&&") or self.take("||")
            if not needed and not self.take(";") and not self.take("&") and self.peek() not in ("\n", ")", ""):
                _stop_reading(f"{self.peek()!r} after a command")

    def read_pipeline(self) -> None:
        while self.peek_reserved_word() == "!":
            self.at += 1
            self.skip_blanks()
        self.read_command()
        self.skip_blanks()
        while self.peek() == "|" and self.peek(2) != "||":
            self.at += 2 if self.peek(2) == "|&" else 1
            self.skip_newlines()
            self.read_command()
            self.skip_blanks()

    def peek_reserved_word(self) -> str:
        """Return the reserved word at the position, as the first word of a command; empty if there is none."""
        match = _UNQUOTED_WORD.match(self.text, self.at)
        word = match.group() if match else ""
        return word if word in RESERVED else ""

    def expect(self, word: str) -> None:
        if self.peek_reserved_word() != word:
            _stop_reading(f"a missing {word!r}")
        self.at += len(word)

    # -- commands ----------------------------------------------------------------------------------------------------

    def read_command(self) -> None:
        word = self.peek_reserved_word()
        if self.peek() == "(" or word in _NOT_READ:
            self.read_compound(word)
        else:
            self.read_simple_command()

    def read_compound(self, word: str) -> None:
        self.change_level(+1)
        if self.peek(2) == "((":
            _stop_reading("arithmetic")
        self.at += len(word) or 1
        if not word:
            self.read_list({")"})
        elif word == "{":
            self.read_list({"}"})
        elif word == "if":
            self.read_list({"then"})
            while (end := self.read_list({"elif", "else", "fi"})) != "fi":
                if end == "elif":
                    self.read_list({"then"})
        elif word in ("while", "until"):
            self.read_list({"do"})
            self.read_list({"done"})
        elif word == "for":
            self.read_for_loop()
        else:
            _stop_reading(f"{word!r}")
        self.change_level(-1)
        self.read_redirections()

    def read_for_loop(self) -> None:
        self.skip_blanks()
        name = _IDENTIFIER.match(self.text, self.at)
        if name is None:
            _stop_reading("a 'for' without a name")
        self.at = name.end()
        self.commands.append(Command((), (name.group(),)))
        self.skip_newlines()
        if self.peek_reserved_word() == "in":
            self.at += 2
            self.skip_blanks()
            while self.peek() not in ("\n", ";", ""):
                self.read_word()
                self.skip_blanks()
        self.take(";")
        self.skip_newlines()
        self.expect("do")
        self.read_list({"done"})

    def read_redirections(self) -> None:
        """Read the redirections of a compound command."""
        redirections: list[Redirection] = []
        self.skip_blanks()
        while self.read_redirection(redirections):
            self.skip_blanks()
        if redirections:
            self.commands.append(Command((), (), tuple(redirections)))

    def read_simple_command(self) -> None:
        start = self.at
        words: list[str | None] = []
        assignments: list[str] = []
        redirections: list[Redirection] = []
        is_of_bash = False
        while True:
            self.skip_blanks()
            if operator := self.read_redirection(redirections):
                is_of_bash = is_of_bash or operator in _BASH_ONLY_OPERATORS
                continue
            character = self.peek()
            if character in ("", "\n", ";", "&", "|", ")"):
                break
            if character == "(":
                self.read_function(words, assignments, redirections)
                return
            name = None if words else _ASSIGNS.match(self.text, self.at)
            if name is not None:
                self.at = name.end()
                assignments.append(name.group(1))
                if self.peek() not in _BREAKS and self.peek():
                    self.read_word("=")
                continue
            if is_of_bash:
                _stop_reading("a word after '&>', which is another command for sh")
            words.append(self.read_word())
        if self.at == start:
            _stop_reading("an operator without a command")
        if words[:1] == ["time"] and any(word is None or word in RESERVED for word in words[1:4]):
            _stop_reading("'time' before more than a simple command")
        self.commands.append(Command(tuple(words), tuple(assignments), tuple(redirections)))

    def read_function(self, words: list[str | None], assignments: list[str], redirections: list[Redirection]) -> None:
        self.at += 1
        self.skip_blanks()
        if len(words) != 1 or assignments or redirections or not self.take(")"):
            _stop_reading("a parenthesis within a command")
        self.skip_newlines()
        self.unknown.append(f"a function named {words[0]!r}")
        if self.peek() != "(" and not self.peek_reserved_word():
            _stop_reading("a function without a body")
        self.read_command()

    def change_level(self, step: int) -> None:
        self.levels += step
        if self.levels > MOST_LEVELS:
            _stop_reading(f"more than {MOST_LEVELS} levels")

    # -- redirections ------------------------------------------------------------------------------------------------

    def read_redirection(self, into: list[Redirection]) -> str:
        """Read a redirection at the position and return its operator; empty if there is none."""
        match = _REDIRECTION.match(self.text, self.at)
        if match is None:
            return ""
        if len(match.group(1) or "") > 1:
            _stop_reading("a file descriptor of more than one digit")
        operator: str = match.group(2) or match.group(4)
        blanks = _BLANKS.match(self.text, match.end())
        start = self.at = blanks.end() if blanks else match.end()
        if self.peek() == "#":
            _stop_reading("a redirection without a target")
        target = self.read_word()
        if operator in ("<<", "<<-"):
            self.read_here_document(operator, self.text[start : self.at], target)
        elif operator in ("<&", ">&"):
            self.read_duplication(operator, self.text[start : self.at], into)
        elif operator != "<<<":
            into.extend(_make_redirections(operator, target))
        return operator

    def read_duplication(self, operator: str, written: str, into: list[Redirection]) -> None:
        """Read the target of `>&` or `<&`.

        After `>&` bash removes a lone `-` from the next word, and expands the name of a file twice: `>&'$(a)'` runs
        `a`.
        """
        if _DESCRIPTOR.fullmatch(written):
            return
        if not _PLAIN_TARGET.fullmatch(written):
            _stop_reading(f"what {operator!r} does with {written[:100]!r}")
        into.extend(_make_redirections(operator, written))

    def read_here_document(self, operator: str, written: str, end: str | None) -> None:
        if self.in_substitution:
            _stop_reading("a here-document in a substitution")
        if not end or "\n" in end:
            _stop_reading("a here-document whose end is no plain word")
        self.here_documents.append((operator, end, any(character in written for character in "'\"\\")))

    def read_bodies(self) -> None:
        """Read the bodies of the here-documents of the line before.

        With quotes in the end word, nothing is expanded.
        """
        for operator, end, is_quoted in self.here_documents:
            start = self.at
            while True:
                if self.at >= len(self.text):
                    _stop_reading("a here-document without an end")
                until = self.text.find("\n", self.at)
                until = len(self.text) if until < 0 else until
                line, before = self.text[self.at : until], self.at
                self.at = until + 1
                if (line.lstrip("\t") if operator == "<<-" else line) == end:
                    break
            if not is_quoted and any(character in "$`\\" for character in self.text[start:before]):
                _stop_reading("a here-document in which something is expanded")
        self.here_documents.clear()
        self.at = min(self.at, len(self.text))

    # -- words -------------------------------------------------------------------------------------------------------

    def read_word(self, before: str = "") -> str | None:
        """Return the next word, without its quotes; `None` if it is unknown. `before` is the text right before it."""
        start = self.at
        if _SUBSCRIPT_OR_SUM.match(self.text, self.at):
            _stop_reading("an array, or a '+='")
        value = [before]
        is_known, special = True, set[str]()
        if self.peek(2) in ("<(", ">("):
            self.at += 1
            self.read_substitution()
            is_known = False
        while (character := self.peek()) and character not in _BREAKS:
            if match := _LETTERS.match(self.text, self.at):
                value.append(match.group())
                self.at = match.end()
                continue
            if character in "*?" or (character == "~" and (value[-1] or ":")[-1] in "=:"):
                is_known = False
            special.add(character)
            piece = self.read_special(character)
            is_known = is_known and piece is not None
            value.append(piece or "")
        self.check_word_end(start)
        text = "".join(value)
        if ("{" in special and ("," in text or ".." in text)) or ("[" in special and "]" in text):
            is_known = False
        return text.removeprefix(before) if is_known else None

    def read_special(self, character: str) -> str | None:
        """Return the text of the piece that begins with a character outside of quotes."""
        if character == "'":
            return self.read_single_quotes()
        if character == '"':
            return self.read_double_quotes()
        if character == "$":
            return self.read_expansion(" \t\n")
        if character == "`":
            _stop_reading("a command in backquotes")
        if character != "\\":
            self.at += 1
            return character
        following = self.text[self.at + 1 : self.at + 2]
        if following in ("", "\n"):
            _stop_reading("a backslash before the end of a line, within a word")
        self.at += 2
        return following

    def check_word_end(self, start: int) -> None:
        if self.at == start:
            _stop_reading("an operator in the place of a word")
        if self.peek(2) in ("<(", ">("):
            _stop_reading("a process substitution within a word")
        written = self.text[start : self.at]
        if self.peek() in ("<", ">") and written.startswith("{") and written.endswith("}"):
            _stop_reading("a redirection to a variable")
        if self.here_documents and "\n" in written:
            _stop_reading("a line end in a word before the body of a here-document")

    def read_single_quotes(self) -> str:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            _stop_reading("a quote without an end")
        text = self.text[self.at + 1 : end]
        self.at = end + 1
        return text

    def read_double_quotes(self) -> str | None:
        self.at += 1
        value: list[str] = []
        is_known = True
        while (character := self.peek()) != '"':
            if match := _LETTERS_IN_QUOTES.match(self.text, self.at):
                value.append(match.group())
                self.at = match.end()
                continue
            piece = self.read_special_in_quotes(character)
            is_known = is_known and piece is not None
            value.append(piece or "")
        self.at += 1
        return "".join(value) if is_known else None

    def read_special_in_quotes(self, character: str) -> str | None:
        if character == "$":
            return self.read_expansion('"')
        if character == "`":
            _stop_reading("a command in backquotes")
        following = self.text[self.at + 1 : self.at + 2]
        if not character or following == "":
            _stop_reading("a quote without an end")
        if following == "\n":
            _stop_reading("a backslash before the end of a line, within a word")
        self.at += 2
        return following if following in '$`"\\' else f"\\{following}"

    def read_expansion(self, ends: str) -> str | None:
        """Read an expansion that begins with `$`. Return `$` itself before one of `ends` and at the end of the text."""
        if self.text.startswith("$(", self.at) and not self.text.startswith("$((", self.at):
            self.at += 1
            self.read_substitution()
            return None
        if match := _EXPANSION.match(self.text, self.at):
            self.at = match.end()
            return None
        following = self.text[self.at + 1 : self.at + 2]
        if following not in ends:
            _stop_reading("an expansion other than '$name' and '$(…)'")
        self.at += 1
        return "$"

    def read_substitution(self) -> None:
        """Read from a `(` to its `)`."""
        if self.here_documents:
            _stop_reading("a substitution before the body of a here-document")
        self.at += 1
        self.in_substitution += 1
        self.change_level(+1)
        self.read_list({")"})
        self.change_level(-1)
        self.in_substitution -= 1
