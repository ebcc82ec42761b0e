"""Conditions and values as any policy and any call may have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from ferrule.errors import DefinitionError
from ferrule.policy.conditions import Commands, Condition, parse_condition

NUMBERS = st.integers(-3, 3) | st.sampled_from([-0.5, 0.5, 2.5, 1e300, 2**53 + 1])
LINES = st.lists(
    st.sampled_from(["rm x", "git log", "git -c a push", "env rm x", "$x", "ls >a"]), min_size=1, max_size=2
)
TEXTS = (
    st.text("ab*/.", max_size=4)
    | st.sampled_from(["1", "2.50", "NaN", "notes/a", "src", "../x", "https://a.org/"])
    | LINES.map(" && ".join)
)
FOLDERS = st.sampled_from([".", "notes", "notes/sub", "/", "/etc"])
SCALARS = NUMBERS | TEXTS | st.booleans()
VALUES: st.SearchStrategy[Any] = SCALARS | st.none() | st.lists(SCALARS, max_size=2)


def _or_none(given: dict[str, Any]) -> Condition | None:
    try:
        return parse_condition(given)
    except DefinitionError:
        return None


TABLES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"equals": SCALARS}),
    st.fixed_dictionaries({"one_of": st.lists(SCALARS, max_size=3)}),
    st.fixed_dictionaries({"glob": TEXTS}),
    st.fixed_dictionaries({}, optional={"above": NUMBERS, "at_most": NUMBERS}),
    st.fixed_dictionaries({}, optional={"at_least": NUMBERS, "below": NUMBERS}),
    st.fixed_dictionaries({"within": st.lists(FOLDERS, max_size=2)}),
    st.fixed_dictionaries({"hosts": st.lists(st.sampled_from(["a.org", "*.org", "*", "10.0.0.1"]), max_size=2)}),
    st.fixed_dictionaries(
        {"commands": st.lists(st.sampled_from(["rm *", "git *", "git push *", "env *", "ls"]), max_size=3)},
        optional={"within": st.lists(FOLDERS, max_size=2)},
    ),
)


def fitting(decide: str, arguments: Mapping[str, Condition]) -> dict[str, Condition]:
    """The conditions as a rule may have them: where a line may write is for an allow alone."""
    return {
        place: Commands(one.patterns) if decide != "allow" and isinstance(one, Commands) else one
        for place, one in arguments.items()
    }


CONDITIONS: st.SearchStrategy[Condition] = TABLES.map(_or_none).filter(lambda one: one is not None)  # type: ignore[assignment]
