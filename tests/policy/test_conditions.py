"""What a rule says of one argument: true, false, or not to be known."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ferrule.errors import DefinitionError
from ferrule.policy.conditions import Condition, parse_condition
from ferrule.values.context import ToolContext
from policy.strategies import CONDITIONS, VALUES

NOBODY = ToolContext[Any]()


@pytest.mark.parametrize(
    ("table", "value", "answer"),
    [
        ({"equals": 5}, 5, True),
        ({"equals": 5}, 5.0, True),
        ({"equals": 2**53 + 1}, float(2**53), False),
        ({"equals": 5}, "5", None),
        ({"equals": 1}, True, None),
        ({"equals": True}, True, True),
        ({"equals": "EUR"}, "eur", False),
        ({"equals": "EUR"}, None, False),
        ({"equals": "EUR"}, ["EUR"], None),
        ({"one_of": ["EUR", 5]}, "USD", False),
        ({"one_of": ["EUR", "USD"]}, 5, None),
        ({"glob": "a*c"}, "abc", True),
        ({"glob": "a*c"}, "a\nc", True),
        ({"glob": "ab*ba"}, "aba", False),
        ({"glob": "*a*b*"}, "xbxaxb", True),
        ({"glob": "a?"}, "ab", False),
        ({"glob": "1*"}, 12, None),
        ({"at_most": 100}, 100, True),
        ({"at_most": 100}, 100.5, False),
        ({"below": 100}, 100, False),
        ({"above": 100}, 100, False),
        ({"at_least": 100}, 100, True),
        ({"above": 0, "at_most": 10}, 0, False),
        ({"at_most": 100}, True, None),
        ({"at_most": 100}, math.nan, None),
        ({"at_most": 100}, "100.00", True),
        ({"at_most": 100}, "100.01", False),
        ({"at_most": 100}, "1e1", None),
        ({"at_most": 100}, "５", None),
        ({"at_most": 100}, "0x1", None),
        ({"at_most": 100}, "010", None),
        ({"at_most": 100}, [1], None),
        ({"hosts": ["*.example.org"]}, "https://a.example.org/", True),
        ({"hosts": ["*.example.org"]}, "https://example.net/", False),
        ({"hosts": ["*.example.org"]}, "https://a.example.org\\@b.net/", None),
        ({"hosts": ["*.example.org"]}, None, False),
        ({"hosts": ["*.example.org"]}, 5, None),
        ({"within": ["/srv/a", "/srv/b"]}, "/srv/b/x", True),
        ({"within": ["/srv/a"]}, "/srv/ab", False),
        ({"within": ["/srv/a"]}, "file:/srv/a", None),
        ({"within": ["/srv/a"]}, "~/srv/a", None),
        ({"within": ["/srv/a"]}, None, False),
        ({"within": ["/srv/a"]}, 5, None),
        ({"commands": ["pytest *"]}, "pytest -q | pytest", True),
        ({"commands": ["pytest *"]}, "pytest -q | rm", False),
        ({"commands": ["pytest *"]}, "pytest $(", None),
        ({"commands": ["pytest *"]}, ["pytest", "-q"], True),
        ({"commands": ["pytest *"]}, ["rm", "pytest"], False),
        ({"commands": ["pytest *"]}, [], None),
        ({"commands": ["pytest *"]}, [5], None),
        ({"commands": ["pytest *"]}, None, False),
    ],
)
def test_a_value_of_another_kind_is_not_known_and_any_other_is_so_or_not(
    table: dict[str, Any], value: Any, answer: bool | None
) -> None:
    assert parse_condition(table).matches(value, NOBODY) is answer


@pytest.mark.parametrize(
    ("table", "value", "answer"),
    [
        ({"hosts": ["*"]}, "http://127.0.0.1/", True),
        ({"hosts": ["*"]}, None, False),
        ({"hosts": ["*"]}, 5, None),
        ({"commands": ["rm *"]}, "ls && rm x", True),
        ({"commands": ["rm *"]}, "ls", False),
        ({"commands": ["rm *"]}, "$PROGRAM x", None),
        ({"commands": ["rm *"]}, ["env", "rm", "x"], True),
        ({"commands": ["rm *"]}, None, False),
        ({"commands": ["rm *"]}, 5, None),
        ({"at_most": 5}, 5, True),
    ],
)
def test_an_ask_or_a_deny_finds_any_part_of_a_value(table: dict[str, Any], value: Any, answer: bool | None) -> None:
    assert parse_condition(table).has_match(value, NOBODY) is answer


@pytest.mark.parametrize(
    ("one", "other", "covers"),
    [
        ({"commands": ["git *"]}, {"commands": ["git log *", "git status"]}, True),
        ({"commands": ["git log *"]}, {"commands": ["git *"]}, False),
        ({"commands": ["git *"], "within": ["/a"]}, {"commands": ["git log"], "within": ["/a/b"]}, True),
        ({"commands": ["git *"]}, {"commands": ["git log"], "within": ["/a"]}, False),
        ({"hosts": ["*.example.org"]}, {"hosts": ["a.example.org"]}, True),
        ({"hosts": ["a.example.org"]}, {"hosts": ["*.example.org"]}, False),
        ({"hosts": ["a.example.org"]}, {"glob": "a"}, False),
        ({"commands": ["a"]}, {"glob": "a"}, False),
        ({"within": ["a"]}, {"within": ["a/b"]}, False),
    ],
)
def test_hosts_and_commands_are_compared_by_their_patterns(one: Any, other: Any, covers: bool) -> None:
    assert parse_condition(one).covers(parse_condition(other)) is covers


@given(st.integers(), st.integers())
def test_a_range_compares_a_decimal_written_as_text_as_the_number_it_is(bound: int, cents: int) -> None:
    amount = Decimal(cents) / 100
    assert parse_condition({"at_most": bound}).matches(f"{amount:.2f}", NOBODY) is (amount <= bound)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"abov": 1}, "did you mean 'above'"),
        ({"above": "1"}, "above takes a number"),
        ({"above": True}, "above takes a number"),
        ({"above": math.inf}, "above takes a finite number"),
        ({"above": 1, "at_least": 1}, "one lower bound"),
        ({"above": 2, "below": 1}, "never matches|so this can never match"),
        ({"above": 1, "at_most": 1}, "never matches|so this can never match"),
        ({"equals": math.nan}, "takes a finite number"),
        ({"equals": [1]}, "a value is text, a number, true or false"),
        ({"one_of": []}, "never matches|so this can never match"),
        ({"one_of": "EUR"}, "takes a list"),
        ({"within": []}, "never matches|so this can never match"),
        ({"within": "notes"}, "takes a list"),
        ({"within": ["~nobody-of-that-name/x"]}, "the home directory in"),
        ({"glob": ""}, "is not a pattern"),
        ({"glob": "a\u202e*"}, "is not a pattern"),
        ({"glob": "a", "equals": "a"}, "cannot have"),
        ({}, "a condition is a table"),
        (5, "a condition is a table"),
    ],
)
def test_a_table_that_means_nothing_or_nothing_that_can_be_is_refused(table: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        parse_condition(table)


@given(CONDITIONS)
def test_the_json_of_a_condition_makes_it_again(one: Condition) -> None:
    assert parse_condition(one.to_json()) == one


@given(CONDITIONS, CONDITIONS, VALUES)
@example(parse_condition({"glob": "a*"}), parse_condition({"glob": "a*b"}), "ab")
@example(parse_condition({"at_most": 2}), parse_condition({"below": 2}), 1)
@example(
    parse_condition({"commands": ["ls"], "within": ["/a"]}),
    parse_condition({"commands": ["ls"], "within": ["/"]}),
    "ls > /b",
)
def test_what_covers_another_matches_and_finds_whatever_that_one_matches(
    one: Condition, other: Condition, value: Any
) -> None:
    if one.covers(other) and other.matches(value, NOBODY) is True:
        assert one.matches(value, NOBODY) is True and one.has_match(value, NOBODY) is True


@given(CONDITIONS)
def test_a_condition_covers_itself(one: Condition) -> None:
    assert one.covers(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"at_most": 2}, {"at_most": 1}),
        ({"at_most": 2}, {"above": 0, "below": 2}),
        ({"at_most": 2}, {"one_of": [1, 2]}),
        ({"glob": "*"}, {"glob": "a*"}),
        ({"glob": "a*"}, {"one_of": ["a", "ab"]}),
        ({"one_of": [1, 2]}, {"equals": 2}),
        ({"within": ["/a", "/b"]}, {"within": ["/b/c"]}),
    ],
)
def test_a_wider_condition_covers_a_narrower_one_and_not_the_other_way(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert parse_condition(one).covers(parse_condition(other)) and not parse_condition(other).covers(
        parse_condition(one)
    )


@given(CONDITIONS)
def test_no_condition_holds_of_what_is_not_there(one: Condition) -> None:
    assert one.matches(None, NOBODY) is False and one.has_match(None, NOBODY) is False


@given(st.text("ab*", min_size=1, max_size=6), st.text("ab\n", max_size=6))
@example("*ab*", "ba")
def test_a_glob_is_text_with_any_characters_for_each_star(pattern: str, value: str) -> None:
    as_regex = ".*".join(map(re.escape, pattern.split("*")))
    assert parse_condition({"glob": pattern}).matches(value, NOBODY) is (
        re.fullmatch(as_regex, value, re.DOTALL) is not None
    )


BOUNDS = st.none() | st.integers(-1, 1)


@given(BOUNDS, st.booleans(), BOUNDS, st.booleans())
def test_a_range_takes_what_is_between_its_bounds_and_where_nothing_can_be_it_is_refused(
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
