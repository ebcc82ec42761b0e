"""What a shell line may run, and patterns of commands."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ferrule.errors import DefinitionError
from ferrule.security.commands import (
    _WRAPPERS,
    CommandPattern,
    Redirection,
    find_unknown_part,
    has_match,
    is_allowed,
    is_transparent,
    read_argv,
    read_line,
)
from ferrule.security.shell_syntax import split_words
from steps import lines

GIT = CommandPattern("git status *")
RM = CommandPattern("rm *")


def words(text: str) -> list[tuple[str | None, ...]]:
    return [command.words for command in read_line(text).commands]


def may_run(text: str, *patterns: str) -> bool:
    return is_allowed(read_line(text), map(CommandPattern, patterns), lambda target: target.startswith("out/"))


def finds(text: str, *patterns: str) -> bool | None:
    return has_match(read_line(text), map(CommandPattern, patterns))


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("git status", [("git", "status")]),
        ("  git\tstatus  ", [("git", "status")]),
        ("""git commit -m 'it is' "a \\"b\\"" c\\ d""", [("git", "commit", "-m", "it is", 'a "b"', "c d")]),
        ("g''it st\"at\"us", [("git", "status")]),
        ("a; b & c\nd && e || f | g |& h", [("a",), ("b",), ("c",), ("d",), ("e",), ("f",), ("g",), ("h",)]),
        ("(a; { b; }); ! c", [("a",), ("b",), ("c",)]),
        ("if a; then b; elif c; then d; else e; fi", [("a",), ("b",), ("c",), ("d",), ("e",)]),
        ("while a; do b; done; until c\ndo d\ndone", [("a",), ("b",), ("c",), ("d",)]),
        ("for x in a 'b c'; do d $x; done", [(), ("d", None)]),
        ('a $(b "$(c)") <(d) >(e)', [("c",), ("b", None), ("d",), ("e",), ("a", None, None, None)]),
        ("a \\\n  -b # c\nd", [("a", "-b"), ("d",)]),
        ("a <<'E' <<-F | b\n$(c)\nE\n\td\n\tF\ne", [("a",), ("b",), ("e",)]),
        ("a stash@{0} HEAD~2 {} a=b @ % +x ^", [("a", "stash@{0}", "HEAD~2", "{}", "a=b", "@", "%", "+x", "^")]),
        ('a $b "$c" ${d} $1 $? x$', [("a", None, None, None, None, None, "x$")]),
        ("a *.py b? [c] ~/d {e,f} {1..3}", [("a", None, None, None, None, None, None)]),
        ("[ -f a ]; b {c} [d", [("[", "-f", "a", "]"), ("b", "{c}", "[d")]),
        ("2>&1 a 2>&1 >/dev/null", [("a",)]),
        ("", []),
        ("# a", []),
    ],
)
def test_the_commands_of_a_line_are_read(text: str, expected: list[tuple[str | None, ...]]) -> None:
    assert words(text) == expected
    assert read_line(text).unknown == ()


def test_assignments_and_redirections_are_read_apart_from_words() -> None:
    (command,) = read_line("A=1 B=~/x c 3<in >>'o ut' &>$x >&log").commands
    assert command.words == ("c",)
    assert command.assignments == ("A", "B")
    expected = [("<", "in"), (">>", "o ut"), ("&>", None), (">&", "log")]
    assert command.redirections == tuple(Redirection(*each) for each in expected)


def test_redirections_name_the_files_they_open() -> None:
    def targets_of(text: str) -> list[str | None]:
        return [one.target for command in read_line(text).commands for one in command.redirections]

    assert targets_of("a >/dev/null 2>&1 <&- 3>&2- >&/dev/null") == []
    assert targets_of("a >/dev/tcp/example.org/80") == targets_of("a >&/dev/udp/x/1") == [None]
    assert targets_of("a > >(b)") == [None]
    assert targets_of("(a; b) >c; if d; then e; fi <f") == ["c", "f"]


@pytest.mark.parametrize(
    "text",
    [
        *("a >&'$(b)'", "a 2>& -n"),  # bash expands the one twice, and takes the `-` of the other for itself
        *("a &>b c", "a &>/dev/null b", "a 12>b"),  # other words for dash
        *("a {x}>b", "a >", "a |", "a && ", "a ;; b", "x\\\nm a", "a 'b", 'a "b', "a<(b)", "a(b)", "a() b", "(a) b"),
        *("a `b`", "a ${b:-$(c)}", "a $'b'", 'a $"b"', "a $((1))", "((a))", "a[1]=b", "a=(b)", "a+=b"),
        *("case a in b) ;; esac", "[[ a ]]", "coproc a", "function a { b; }", "select a in b; do c; done"),
        *("time { a; }", "time ! a", "{ a", "(a", "$(a # )\n)", "a() { b; }"),
        *("a <<E\n$(b)\nE", "a <<E\nb", "a <<''\n\nb", "a <<E 'b\nc'\nE", "a <<E $(b)\nE", "$(a <<E\nE\n)"),
        *("a\rb", "a\u00a0b", "a \u202e b", "a\0b"),
        *("eval a", "printf -vx a", "[ -v x ]", "wait -np x", "export A"),
        *("a" * 20_001, "( " * 31 + "a" + ")" * 31),
    ],
)
def test_an_ambiguous_line_is_unknown(text: str) -> None:
    assert read_line(text).unknown


def test_reading_a_line_takes_linear_steps() -> None:
    makes = ["a b " * 40, "a;" * 80, "'a'" * 50, "a\\ " * 50, "$(a) " * 30, '"$a" ' * 30, "a >b " * 30, "env " * 40]
    makes += [
        "a <<E\nx\nE\n" * 12,
        "if a; then b; fi; " * 9,
        "xargs a; " * 16,
        "find -exec a \\; " * 8,
        "eval a; " * 20,
    ]
    for make in makes:
        short, long = (lines(lambda text=make * times: read_line.__wrapped__(text)) for times in (5, 20))  # type: ignore[misc]
        assert long < 5 * short, make


@pytest.mark.large
def test_many_patterns_match_long_lines_in_few_steps() -> None:
    patterns = [CommandPattern(f"program{number} sub{number} *") for number in range(300)]
    for text in ("a;" * 9999, "sh -c " * 3000, "xargs " * 3000, "a/b " * 4999, "env " * 5000, "find -exec " * 1800):
        line = read_line(text)
        first, all_ = (lines(lambda some=some, line=line: has_match(line, some)) for some in (patterns[:1], patterns))  # type: ignore[misc]
        assert (all_ - first) / len(patterns) < 3000, text[:10]


def test_no_more_than_a_hundred_commands_are_read() -> None:
    line = read_line("a;" * 100 + "rm x")
    assert len(line.commands) == 100 and "more than 100 commands" in line.unknown
    assert finds("a;" * 100 + "rm x", "rm *") is None
    assert read_line("a;" * 100).unknown == ()


def test_lines_in_lines_have_a_bound() -> None:
    through = [len(command.through) for command in read_line("env " * 200 + "rm x").commands]
    assert max(through) <= 8
    assert finds("env " * 200 + "rm x", "rm *") is None


# -- patterns ----------------------------------------------------------------------------------------------------------


def test_a_pattern_matches_word_by_word() -> None:
    assert may_run("git status -s 'a b'", "git status *") and may_run("pytest tests/a/b.py", "pytest tests/*")
    assert may_run("echo '*' 'a b'", "echo '*' \"a b\"") and not may_run("echo x", "echo '*'")
    assert not may_run("/bin/git status", "git status *") and not may_run("GIT status", "git status *")


@pytest.mark.parametrize(
    "text",
    ["", " ", "*", "g* status", "'' a", "A=1 b", "git status; rm", "a $b", "a > b", "a [b]", "a 'b", "a\u00a0b", 3],
)
def test_an_invalid_pattern_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError, match="pattern"):
        CommandPattern(text)


def test_a_pattern_covers_narrower_ones() -> None:
    def covers(wide: str, *narrow: str) -> list[bool]:
        return [CommandPattern(wide).covers(CommandPattern(one)) for one in narrow]

    assert covers("git *", "git status *") == covers("a b*", "a bc*") == covers("a *", "a * b *") == [True]
    assert covers("git status *", "git status", "git *") == [True, False]
    assert covers("a * b *", "a * c") == covers("a '*'", "a *") == [False]


TEXTS = st.lists(st.sampled_from(["a", "b", "*", "a*", "*b", "a*b", "'*'", "ab"]), max_size=4).map(
    lambda rest: " ".join(["p", *rest])
)
WORDS = st.lists(st.text("ab*", max_size=3), max_size=4).map(lambda rest: ("p", *rest))


@given(TEXTS, TEXTS, WORDS)
def test_a_covering_pattern_matches_all_of_the_covered_one(
    wide: str, narrow: str, given_words: tuple[str, ...]
) -> None:
    first, second = CommandPattern(wide), CommandPattern(narrow)
    if first.covers(second) and second.matches(given_words):
        assert first.matches(given_words)


AS_REGEX = {
    "a": r"a\0",
    "ab": r"ab\0",
    "'*'": r"\*\0",
    "*": r"(?:[^\0]*\0)*",
    "a*": r"a[^\0]*\0",
    "*b": r"[^\0]*b\0",
    "aa*a": r"aa[^\0]*a\0",
    "a*b*b": r"a[^\0]*b[^\0]*b\0",
    "*b*ab": r"[^\0]*b[^\0]*ab\0",
    "a*a": r"a[^\0]*a\0",
    "*a*b*": r"[^\0]*a[^\0]*b[^\0]*\0",
}


@given(st.lists(st.sampled_from(sorted(AS_REGEX)), max_size=4), WORDS)
@example(["a*a"], ("p", "a"))
@example(["aa*a"], ("p", "aaa"))
@example(["a*b*b"], ("p", "ab"))
@example(["*b*ab"], ("p", "bab"))
@example(["*a*b*"], ("p", "ba"))
@example(["*", "a", "*", "ab"], ("p", "a", "b", "a", "ab"))
def test_a_pattern_matches_what_its_regular_expression_matches(rest: list[str], given_words: tuple[str, ...]) -> None:
    regex = "".join([r"p\0", *map(AS_REGEX.__getitem__, rest)])
    expected = re.fullmatch(regex, "".join(f"{word}\0" for word in given_words)) is not None
    assert CommandPattern(" ".join(["p", *rest])).matches(given_words) is expected


LINES = st.lists(
    st.sampled_from(["rm x", "git log", "git -c a push", "env $x", "$x y", "x=1 ls", "f rm", "`a`", "f " + "rm " * 99]),
    max_size=3,
).map("; ".join)


@given(LINES, st.lists(st.sampled_from([RM, CommandPattern("git push *")])))
@example("f " + "rm " * 99, [RM])
def test_the_unknown_part_of_a_line_is_named_briefly(text: str, patterns: list[CommandPattern]) -> None:
    named = find_unknown_part(read_line(text), patterns)
    assert isinstance(named, str) and len(named) <= 122
    assert bool(named) is (has_match(read_line(text), patterns) is None)


# -- comparing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *("rm x", "/bin/rm x", "RM x", "r''m x", "a; rm x", "a $(rm x)", "env A=1 rm x", "nice -n 5 rm x"),
        *("ionice -c3 rm x", "sudo -u root rm x", "timeout -k 1 5 rm x", "xargs -0 rm", "find . -exec rm {} ;"),
        *("find . -name a -o -execdir rm {} +", "bash -lc 'rm x'", "sh -c 'sh -c \"rm x\"'", "command exec rm x"),
        *("time -p rm x", "eval rm x", "f() { rm x; }; f"),
    ],
)
def test_a_command_is_found_however_it_is_run(text: str) -> None:
    assert finds(text, "rm *") is True
    assert not may_run(text, "git status *")


BEFORE = dict.fromkeys(split_words("env sudo doas nice ionice nohup setsid time stdbuf xargs command builtin exec"), "")
BEFORE |= dict.fromkeys(("busybox", "strace", "watch", "caffeinate"), "")
BEFORE |= {"timeout": "5", "chrt": "10", "taskset": "0x3", "chroot": "/srv", "flock": "/tmp/lock"}
"""What stands between a program and the command that it runs, by the manual page of each."""


def test_a_command_is_found_behind_every_wrapper() -> None:
    assert BEFORE.keys() == _WRAPPERS.keys()
    assert [name for name, given in BEFORE.items() if finds(f"{name} {given} rm x", "rm *") is not True] == []


POSSIBLE = {
    "rm *": ["$x y", "$(echo rm) x", "a `rm x`", "a $x", "frobnicate -x rm y", "ssh host 'r\\m x'", "tar -Irm a"],
    "rm  *": ["perl -e'system(\"rm x\")'", "bash < x", "A=1 b", "printf -v 'a[$(rm x)]' y", ". ./x"],
    "git push *": ["git -c a=b push"],
    "git push --force *": ["git push -f"],
    "rm -rf *": ["rm -r -f x"],
}
ABSENT = {
    "rm *": ["git status", "grep rm a", "docker run --rm a", "ls $x", ""],
    "git push --force *": ["git push origin main"],
    "git push *": ["git status", "git log git"],
    "rm -rf *": ["rm x"],
}


def test_a_possible_match_is_unknown_and_an_absent_command_is_not_found() -> None:
    assert [text for pattern, texts in POSSIBLE.items() for text in texts if finds(text, pattern) is not None] == []
    assert [text for pattern, texts in ABSENT.items() for text in texts if finds(text, pattern) is not False] == []
    assert finds("eval $x") is False  # without any pattern


@pytest.mark.parametrize(
    "text",
    [
        "pytest -q tests/",
        "pytest -q tests/ 2>&1",
        "cd src && pytest",
        "pytest 'a b' > out/x",
        "if pytest; then cd src; fi",
    ],
)
def test_a_line_that_matches_word_by_word_is_allowed(text: str) -> None:
    assert may_run(text, "pytest *", "cd *")


@pytest.mark.parametrize(
    "text",
    [
        *("", "> out/x", "A=1 pytest", "A=1; pytest", "for PATH in x; do pytest; done", "pytest > x", "pytest < x"),
        *("pytest > out/$x", "cd x && pytest > out/x", "pytest $x", "pytest *", "./pytest", "env pytest"),
        *("pytest() { pytest; }; pytest", "export PATH=x; pytest", "time PATH=x; pytest", "time export PATH=x; pytest"),
        *("command eval 'rm x'", "pytest\u00a0x", "pytest \u202e", "pytest\0", "pytest\r"),
    ],
)
def test_a_line_that_is_not_fully_known_is_not_allowed(text: str) -> None:
    assert not may_run(text, "pytest *", "cd *", "export *", "time *", "command *")


def test_a_relative_program_is_not_allowed_after_a_cd() -> None:
    assert may_run("./run", "./run", "cd *")
    assert not may_run("cd x && ./run", "./run", "cd *")


def test_an_argument_vector_is_read_by_no_shell() -> None:
    line = read_argv(["git", "status", "$(rm x)", "; rm x"])
    assert is_allowed(line, [GIT], lambda target: False)
    assert has_match(read_argv(["env", "rm", "x"]), [RM]) is True


def test_shells_interpreters_and_wrappers_are_not_transparent() -> None:
    plain = ["git status", "git log | head '-3 *'", "pytest -q", "printf %s -v"]
    opaque = ["bash x", "python3.11 x", "env git status", "git status > x", "git status $x", "A=1 git status", ""]
    opaque += ["eval git status", "sudo -i", "env", "find .", "bash --version"]
    assert [text for text in [*plain, *opaque] if is_transparent(read_line(text))] == plain


@pytest.mark.parametrize(
    "text", ["sh -c '. ./file'", "sh -c 'set a'", "sh -c '[[ a ]]'", "sh -c", "sh -c $x", "sh <file"]
)
def test_an_unknown_argument_of_a_shell_may_run_anything(text: str) -> None:
    assert finds(text, "rm *") is None


def test_a_denied_command_behind_an_unknown_program_is_unknown() -> None:
    assert finds("some-wrapper git push -f", "git push --force *") is None
    assert finds("some-wrapper git pull -f", "git push --force *") is False
