"""A condition on one argument is true, false, or unknown."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ferrule.errors import DefinitionError
from ferrule.policy.conditions import Condition, parse_condition
from ferrule.values.context import ToolContext
from policy.strategies import CONDITIONS, VALUES

NOBODY = ToolContext[Any]()


SUBDOMAINS = {"hosts": ["*.example.org"]}
FOLDERS = {"within": ["/srv/a", "/srv/b"]}
PYTEST = {"commands": ["pytest *"]}


@pytest.mark.parametrize(
    ("table", "answers"),
    [
        ({"equals": 5}, [(5, True), (5.0, True), (6, False), ("5", None)]),
        ({"equals": 2**53 + 1}, [(float(2**53), False)]),
        ({"equals": 1}, [(True, None)]),
        ({"one_of": ["EUR", 5]}, [(5, True), ("USD", False), ("eur", False)]),
        ({"glob": "1*"}, [(12, None)]),
        ({"at_most": 100}, [("100.01", False), *((odd, None) for odd in (True, "1e1", "５", "0x1", "010"))]),
        ({"at_most": 100}, [(math.nan, None), (math.inf, False)]),
        (
            SUBDOMAINS,
            [("https://a.example.org/", True), ("https://b.org/", False), ("https://a.example.org\\@b", None)],
        ),
        (FOLDERS, [("/srv/b/x", True), ("/srv/ab", False), ("file:/srv/a", None), ("~/srv/a", None)]),
        (PYTEST, [("pytest -q | pytest", True), ("pytest -q | rm", False), ("pytest $(", None)]),
        (PYTEST, [(["pytest", "-q"], True), (["rm", "pytest"], False), ([], None)]),
    ],
)
def test_a_value_of_another_kind_is_unknown(table: dict[str, Any], answers: list[tuple[Any, bool | None]]) -> None:
    condition = parse_condition(table)
    assert [(value, condition.matches(value, NOBODY)) for value, _ in answers] == answers


@pytest.mark.parametrize(
    ("table", "value", "answer"),
    [
        ({"hosts": ["*"]}, "http://127.0.0.1/", True),
        ({"commands": ["rm *"]}, "ls && rm x", True),
        ({"commands": ["rm *"]}, "$PROGRAM x", None),
        ({"commands": ["rm *"]}, ["env", "rm", "x"], True),
        ({"commands": ["rm *"]}, 5, None),
    ],
)
def test_an_ask_or_a_deny_finds_any_part_of_a_value(table: dict[str, Any], value: Any, answer: bool | None) -> None:
    assert parse_condition(table).has_match(value, NOBODY) is answer


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"abov": 1}, "did you mean 'above'"),
        ({"above": "1"}, "above takes a number"),
        ({"above": True}, "above takes a number"),
        ({"above": 1, "at_least": 1}, "one lower bound"),
        ({"above": 2, "below": 1}, "never match"),
        ({"equals": math.nan}, "takes a finite number"),
        ({"equals": [1]}, "a value is text, a number, true or false"),
        ({"one_of": []}, "never match"),
        *(({name: "a"}, "takes a list") for name in ("one_of", "within")),
        ({"within": ["~nobody-of-that-name/x"]}, "the home directory in"),
        ({"glob": ""}, "is not a pattern"),
        ({"glob": "a\u202e*"}, "is not a pattern"),
        ({"glob": "a", "equals": "a"}, "cannot have"),
        (5, "a condition is a table"),
    ],
)
def test_a_condition_that_can_never_match_is_refused(table: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        parse_condition(table)


@given(CONDITIONS, CONDITIONS, VALUES)
@example(parse_condition({"glob": "a*"}), parse_condition({"glob": "a*b"}), "ab")
@example(parse_condition({"at_most": 2}), parse_condition({"below": 2}), 1)
@example(
    parse_condition({"commands": ["ls"], "within": ["/a"]}),
    parse_condition({"commands": ["ls"], "within": ["/"]}),
    "ls > /b",
)
def test_a_covering_condition_matches_all_that_the_other_matches(one: Condition, other: Condition, value: Any) -> None:
    if one.covers(other) and other.matches(value, NOBODY) is True:
        assert one.matches(value, NOBODY) is True and one.has_match(value, NOBODY) is True


@given(CONDITIONS)
@example(parse_condition({"glob": "a*"}))
def test_every_condition_covers_itself_survives_json_and_needs_a_value(one: Condition) -> None:
    assert one.covers(one) and parse_condition(one.to_json()) == one
    assert one.matches(None, NOBODY) is False and one.has_match(None, NOBODY) is False


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ({"at_most": 2}, {"above": 0, "below": 2}),
        ({"at_most": 2}, {"one_of": [1, 2]}),
        ({"glob": "a*"}, {"one_of": ["a", "ab"]}),
        ({"one_of": [1, 2]}, {"equals": 2}),
        ({"within": ["/a", "/b"]}, {"within": ["/b/c"]}),
        ({"commands": ["git *"], "within": ["/a"]}, {"commands": ["git log"], "within": ["/a/b"]}),
        ({"hosts": ["*.example.org"]}, {"hosts": ["a.example.org"]}),
    ],
)
def test_a_wide_condition_covers_a_narrow_one_and_not_vice_versa(wide: dict[str, Any], narrow: dict[str, Any]) -> None:
    assert parse_condition(wide).covers(parse_condition(narrow))
    assert not parse_condition(narrow).covers(parse_condition(wide))


@given(st.text("ab*", min_size=1, max_size=6), st.text("ab\n", max_size=6))
@example("*ab*", "ba")
def test_a_glob_has_any_characters_for_each_star(pattern: str, value: str) -> None:
    as_regex = ".*".join(map(re.escape, pattern.split("*")))
    assert parse_condition({"glob": pattern}).matches(value, NOBODY) is (
        re.fullmatch(as_regex, value, re.DOTALL) is not None
    )


BOUNDS = st.none() | st.integers(-1, 1)


@given(BOUNDS, st.booleans(), BOUNDS, st.booleans())
def test_a_range_matches_between_its_bounds_or_is_refused(
    low: int | None, low_is_in: bool, high: int | None, high_is_in: bool
) -> None:
    bounds = {"at_least" if low_is_in else "above": low, "at_most" if high_is_in else "below": high}
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    halves = [half / 2 for half in range(-4, 5)]
    between = [
        one
        for one in halves
        if (low is None or one > low or (one == low and low_is_in))
        and (high is None or one < high or (one == high and high_is_in))
    ]
    if given and between:
        made = parse_condition(given)
        assert [one for one in halves if made.matches(one, NOBODY)] == between
        assert [one for one in halves if made.matches(str(one), NOBODY)] == between
    else:
        with pytest.raises(DefinitionError):
            parse_condition(given)


@pytest.mark.parametrize(("bound", "value"), [(5.1, "5.10"), (0.1, "0.1"), (16.35, "16.35")])
def test_a_bound_is_the_decimal_that_was_written(bound: float, value: str) -> None:
    answers = [
        parse_condition({name: bound}).matches(value, NOBODY) for name in ("at_most", "at_least", "above", "below")
    ]
    assert answers == [True, True, False, False]
