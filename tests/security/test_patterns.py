"""Foreign regular expressions cost no more than their size says, or are refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ferrule import DefinitionError, Runner, Sizes, Tool, Toolset
from ferrule.security.patterns import BUDGET, MAX_CHARACTERS, ForeignSchema, Pattern, PatternError, Patterns

HEAVY = "([^!]{1,250}a){1,30}!"
_OF_A_STATE = 24
"""Bytes that a step of a text takes at least, one state of those that the engine counts."""


class Node(NamedTuple):
    """A part of a regular expression: its text, and the program of a machine that takes one character at a time.

    Attributes:
        program: Instructions: a set of characters that goes on to the next one, or the distances of those that go on at
            once.
    """

    text: str
    program: tuple[Any, ...]


CHARACTERS = {"a": "a", "[ab]": "ab", "[^!]": "ab ", ".": "ab! ", r"\w": "ab", "!": "!"}


def character(text: str) -> Node:
    return Node(text, (CHARACTERS[text],))


def repeated(node: Node, least: int, more: int | None) -> Node:
    """Written out: `least` times, and then as often as there may be more, each of which may be left out."""
    program = node.program * least
    length = len(node.program)
    if more is None:
        return Node(f"(?:{node.text}){{{least},}}", (*program, [1, length + 2], *node.program, [-length - 1]))
    for left in range(more, 0, -1):
        program += ([1, left * (length + 1)], *node.program)
    return Node(f"(?:{node.text}){{{least},{least + more}}}", program)


def bare(node: Node, least: int, more: int | None) -> Node:
    """One of a single class, as it is mostly written."""
    made = repeated(node, least, more)
    return made._replace(text=made.text.replace(f"(?:{node.text})", node.text))


def either(first: Node, second: Node) -> Node:
    skip, length = [1, len(first.program) + 2], len(second.program)
    return Node(f"(?:{first.text}|{second.text})", (skip, *first.program, [length + 1], *second.program))


def joined(*nodes: Node) -> Node:
    return Node("".join(n.text for n in nodes), tuple(step for n in nodes for step in n.program))


counts = st.sampled_from([0, 1, 2, 5, 30, 120])
many = st.sampled_from([0, 1, 150, 300])
single = st.sampled_from([*CHARACTERS]).map(character)
nested = st.recursive(
    single,
    lambda inner: st.one_of(
        st.builds(joined, inner, inner),
        st.builds(either, inner, inner),
        st.builds(repeated, inner, counts, st.none() | counts),
    ),
    max_leaves=6,
)
flat = st.builds(
    lambda nodes, end: joined(*nodes, end),
    st.lists(single | st.builds(bare, single, many, st.none() | many), min_size=1, max_size=4),
    single,
)
texts = st.text("aab !", min_size=1, max_size=4).map(lambda part: (part * 300)[:300])


def states_used(node: Node, anchored: bool, text: str) -> int:
    """How many states a machine without any cleverness is in, one character after the other, until the pattern is
    found."""
    program = node.program
    used, now = 0, set[int]()
    for at, one in enumerate(text):
        waiting = [0] if at == 0 or not anchored else []
        waiting += now
        reached = set[int]()
        while waiting:
            place = waiting.pop()
            if place in reached or place == len(program):
                reached.add(place)
                continue
            reached.add(place)
            if isinstance(program[place], list):
                waiting += [place + by for by in program[place]]
        used += len(reached)
        if len(program) in reached:
            return used
        now = {place + 1 for place in reached if isinstance(program[place], str) and one in program[place]}
    return used


@pytest.mark.large
@settings(max_examples=400)
@example(joined(bare(character("[ab]"), 150, 150), character("!")), False, "ab" * 150)
@example(joined(bare(character("a"), 0, None), bare(character("."), 1, 300), character("!")), True, "a" * 300)
@given(nested | flat, st.booleans(), texts)
def test_a_pattern_uses_no_more_states_than_its_size_says(node: Node, anchored: bool, text: str) -> None:
    assume(len(node.program) < 20_000)
    try:
        pattern = Pattern("^" * anchored + node.text)
    except PatternError:
        return
    assert states_used(node, anchored, text) * _OF_A_STATE <= pattern.size * (len(text) + 1)
    assert pattern.max_length * pattern.size <= BUDGET


@pytest.mark.parametrize(
    "pattern", [HEAVY, "(a|ab){1,5000}", r"^(\w+\s?){500}$", r"(\p{L}{50}){50}", "((a{999}){999}){999}"]
)
def test_a_heavy_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError, match="too many states") as raised:
        Pattern(pattern)
    assert not raised.value.is_invalid


@pytest.mark.parametrize("pattern", [r"^(?=.*\d)a", "(?<!a)b", r"(a)\1", r"(?<n>a)\k<n>"])
def test_look_around_and_back_references_are_refused(pattern: str) -> None:
    with pytest.raises(PatternError, match="look-around or a back-reference"):
        Pattern(pattern)


def test_an_invalid_pattern_differs_from_a_refused_one() -> None:
    with pytest.raises(PatternError, match="not a regular expression") as raised:
        Pattern("(")
    assert raised.value.is_invalid
    with pytest.raises(PatternError, match="2,001 characters; the most is 2,000") as raised:
        Pattern("a" * (MAX_CHARACTERS + 1))
    assert not raised.value.is_invalid


@pytest.mark.parametrize(
    ("pattern", "fits", "misfits"),
    [
        (r"^[\w-]{1,2048}$", "a-" * 1024, "a-" * 1024 + "a"),
        (r"[ab]{3,2048}", "  bab", "abcab"),
        (r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2})?(Z|[+-]\d{2}:\d{2})$", "2026-11-23T10:00Z", "2026-11-23"),
        (r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}$", "a.b+c@example.org", "a.b@example"),
        (r"^[\p{L}\p{N} _-]+$", "Größe 1", "Größe!"),
    ],
)
def test_common_patterns_are_taken_and_match_correctly(pattern: str, fits: str, misfits: str) -> None:
    taken = Pattern(pattern)
    assert len(fits) <= taken.max_length
    assert taken.matches(fits) and not taken.matches(misfits)


async def echo(payload: dict[str, Any]) -> dict[str, Any]:
    """Give back what it gets."""
    return payload


def echoing(**schemas: Any) -> Runner:
    return Runner(Toolset([Tool("echo", echo, **schemas)]))


def outcome(runner: Runner, **arguments: Any) -> str:
    result = runner.run_sync("echo", arguments)
    return result.error or result.status


def of_property(**schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "string", **schema}, "b": {"pattern": "^x+$"}}}


PLACES: dict[str, dict[str, Any]] = {
    "here": of_property(pattern=HEAVY),
    "behind a reference": {**of_property(**{"$ref": "#/$defs/far"}), "$defs": {"far": {"pattern": HEAVY}}},
    "where nobody looks": {**of_property(**{"$ref": "#/x/0/y"}), "x": [{"y": {"pattern": HEAVY}}]},
    "in one of several": of_property(anyOf=[{"allOf": [{"pattern": HEAVY}]}]),
    "of names": {**of_property(), "propertyNames": {"pattern": HEAVY}},
    "of some names": {**of_property(), "patternProperties": {HEAVY: False}, "additionalProperties": False},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_heavy_pattern_is_shown_but_not_enforced(place: str) -> None:
    schema = ForeignSchema(PLACES[place])
    runner = echoing(input_schema=schema)
    assert [one.partition(":")[0] for one in schema.not_enforced] == [f"the pattern {HEAVY!r}"]
    (tool,) = runner.tools
    assert HEAVY in repr(tool.input_schema)
    assert outcome(runner, a="b", b="xx") == "ok"
    assert "'a' must be a string" in outcome(runner, a=1)
    assert "'b' is wrong: the value does not match '^x+$'" in outcome(runner, b="y")


def test_a_negated_heavy_pattern_is_not_enforced() -> None:
    for turned in ({"not": {"pattern": HEAVY}}, {"oneOf": [{"pattern": HEAVY}, {"type": "string"}]}):
        runner = echoing(input_schema=ForeignSchema(of_property(**turned)))
        assert outcome(runner, a="b") == outcome(runner, a=1, b="y") == "ok"


def test_a_pattern_of_an_output_over_the_bounds_is_not_enforced() -> None:
    schema = ForeignSchema(of_property(pattern=HEAVY))
    runner = echoing(input_schema={"type": "object"}, output_schema=schema)
    assert outcome(runner, a="b") == "ok"
    assert "does not fit its output schema" in outcome(runner, b="y")


def test_each_value_has_its_own_budget_for_patterns() -> None:
    schema = ForeignSchema({"type": "object", "properties": {"a": {"items": {"pattern": "^x*$"}}}})
    runner = echoing(input_schema=schema)
    part = "x" * (Pattern("^x*$").max_length // 2)
    for _ in range(2):
        assert outcome(runner, a=[part, part]) == "ok"
        assert "does not match" in outcome(runner, a=[part, "y"])
        assert outcome(runner, a=[part, part, "y"]) == "ok"


def test_names_over_the_budget_are_refused() -> None:
    schema = {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False}
    runner = Runner([Tool("echo", echo, input_schema=ForeignSchema(schema))], sizes=Sizes(input=None))
    assert outcome(runner, x1=1) == "ok"
    most = Pattern("^x").max_length
    assert outcome(runner, **{"x" * (most - 1): 1}) == "ok"
    assert "too many values" in outcome(runner, **{"x" * (most + 1): 1})


def test_a_developers_own_pattern_is_enforced_and_a_foreign_one_stays_foreign_in_a_copy() -> None:
    runner = echoing(input_schema=of_property(pattern=r"^(?=.*\d)(?=.*[a-z]).{2,}$"))
    assert outcome(runner, a="a1") == "ok" and "does not match" in outcome(runner, a="aa")
    tool = Tool("echo", echo, input_schema=ForeignSchema(of_property(pattern=HEAVY)), description="Echo.")
    assert outcome(Runner([tool.replace(private=["b"])]), a="b") == "ok"


def test_an_invalid_pattern_is_a_definition_error() -> None:
    with pytest.raises(DefinitionError, match=r"the pattern '\(' is not a regular expression"):
        ForeignSchema(of_property(pattern="("))


@pytest.mark.parametrize("name", ["const", "default", "enum", "examples"])
def test_a_property_named_like_a_keyword_has_its_pattern(name: str) -> None:
    runner = echoing(input_schema=ForeignSchema({"type": "object", "properties": {name: {"pattern": "^x+$"}}}))
    assert outcome(runner, **{name: "xx"}) == "ok" and "does not match" in outcome(runner, **{name: "y"})


@pytest.mark.parametrize("name", ["const", "examples"])
@pytest.mark.parametrize("heavy", [{"pattern": HEAVY}, {"patternProperties": {HEAVY: False}}])
def test_a_heavy_pattern_that_may_be_a_value_leaves_only_the_type_enforced(name: str, heavy: Any) -> None:
    properties = {"type": "object", "properties": {name: heavy, "b": {"pattern": "^x+$"}}}
    reference = {**of_property(**{"$ref": f"#/{name}/0"}), name: [heavy]}
    for schema in map(ForeignSchema, (properties, reference)):
        assert [one.partition(":")[0] for one in schema.not_enforced] == [f"the pattern {HEAVY!r}"]
        runner = echoing(input_schema=schema)
        assert outcome(runner, **{name: "b", "b": "y"}) == "ok"


def test_a_value_that_looks_like_a_pattern_and_is_none_changes_nothing() -> None:
    schema = ForeignSchema({**of_property(), "examples": [{"pattern": "**/*.py"}], "default": {"pattern": "("}})
    runner = echoing(input_schema=schema)
    assert not schema.not_enforced
    assert "does not match" in outcome(runner, b="y")


def test_a_parameter_may_be_a_schema_itself() -> None:
    meta = {"$ref": "https://json-schema.org/draft/2020-12/schema"}
    runner = echoing(input_schema=ForeignSchema({"type": "object", "properties": {"a": meta}}))
    assert outcome(runner, a={"$anchor": "here"}) == "ok"
    assert "'a.$anchor' is wrong: the value does not match" in outcome(runner, a={"$anchor": "!"})


def test_a_refused_value_stays_refused_when_its_budget_ends() -> None:
    each = {"items": {"pattern": "^x*$"}}
    runner = echoing(input_schema=ForeignSchema({"type": "object", "properties": {"a": each, "b": {"pattern": "^y$"}}}))
    most = Pattern("^x*$").max_length
    spent = ["x" * (most // 4), *["x" * 100] * (most // 400), *["x"] * 200]
    assert "'b' is wrong: the value does not match '^y$'" in outcome(runner, a=spent, b="z")


def test_each_pattern_is_compiled_once_and_their_number_is_bounded() -> None:
    patterns = Patterns()
    taken = [patterns.compile(f"^.{{1,{size}}}$") for size in range(600, 700)]
    assert 30 < sum(isinstance(one, Pattern) for one in taken) < 70
    assert "the schemas have too many patterns" in str(taken[-1])
    assert patterns.compile("^.{1,600}$") is taken[0]
    again = Patterns(before=patterns)
    assert again.compile("^.{1,600}$") is taken[0]
    assert isinstance(again.compile("^.{1,699}$"), Pattern)


def test_no_pattern_is_compiled_after_the_deadline() -> None:
    schema = ForeignSchema(of_property(pattern="a"), Patterns(is_late=lambda: True))
    assert all("the time for compiling" in one for one in schema.not_enforced)
