"""Every part of a frozen value is frozen, however it is taken out."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter
from pydantic_core import from_json, to_json

from ferrule.values.frozen import FrozenDict, FrozenList, freeze, thaw

INNER = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
DICTS = st.dictionaries(st.text(max_size=2), INNER, min_size=1, max_size=3)
LISTS = st.lists(INNER, min_size=1, max_size=3)


# Each gives the parts of a value in a way of its own.
FROM_DICT: dict[str, Callable[[Any], Iterable[Any]]] = {
    "getitem": lambda d: [d[key] for key in d],
    "get": lambda d: [d.get(key) for key in d],
    "values": lambda d: d.values(),
    "items": lambda d: [value for _, value in d.items()],
    "dict": lambda d: dict(d).values(),
    "or": lambda d: (d | {}).values(),
    "or from the right": lambda d: ({} | d).values(),
    "frozen again": lambda d: freeze(d).values(),
}


def changeable(value: Any) -> bool:
    return isinstance(value, dict | list) and not isinstance(value, FrozenDict | FrozenList)


@pytest.mark.large
@pytest.mark.parametrize("way", FROM_DICT)
@given(DICTS)
def test_every_part_of_a_frozen_dict_is_frozen(way: str, value: dict[str, Any]) -> None:
    parts = list(FROM_DICT[way](FrozenDict(from_json(json.dumps({"a": [1], "b": {"c": []}, **value})))))
    assert not any(map(changeable, parts))


@given(LISTS)
def test_the_items_of_a_list_are_frozen_before_anything_reads_them(value: list[Any]) -> None:
    frozen = FrozenList(from_json(json.dumps([*value, [1], {"c": []}])))
    assert not any(changeable(list.__getitem__(frozen, at)) for at in range(len(frozen)))


@given(DICTS, st.booleans())
def test_a_frozen_dict_equals_its_json(value: dict[str, Any], read: bool) -> None:
    frozen = FrozenDict(copy.deepcopy(value))
    if read:
        list(frozen.items())
    assert frozen == value and len(frozen) == len(value) and list(frozen) == list(value)
    assert json.loads(json.dumps(frozen)) == json.loads(to_json(frozen)) == value
    assert json.dumps(frozen, indent=1) == json.dumps(value, indent=1) and repr(frozen) == repr(value)
    assert pickle.loads(pickle.dumps(frozen)) == value and isinstance(pickle.loads(pickle.dumps(frozen)), FrozenDict)
    for plain in (thaw(frozen), copy.deepcopy(frozen)):
        assert plain == value and not isinstance(plain, FrozenDict)
        assert not any(isinstance(part, FrozenDict | FrozenList) for part in plain.values())


def test_freezing_copies_its_input() -> None:
    given: dict[str, Any] = {"a": [1, {"b": 2}], "t": ({"c": []},)}
    frozen = freeze(given)
    given["a"][1]["b"] = 3
    given["t"][0]["c"].append(1)
    assert frozen == {"a": [1, {"b": 2}], "t": [{"c": []}]}


def test_pydantic_cannot_thaw_frozen_parts() -> None:
    class Order(BaseModel):
        lines: list[Any]
        first: dict[str, Any]

    read = FrozenDict(from_json('{"order": {"lines": [{"tags": ["a"]}, [1]], "first": {"tags": ["b"]}}}'))
    order = Order.model_validate(read["order"])
    for part in (order.lines[0], order.lines[1], order.lines[0]["tags"], order.first["tags"]):
        with pytest.raises(TypeError):
            part.clear()
    lines = TypeAdapter(list[dict[str, Any] | list[int]]).validate_python(read["order"]["lines"])
    with pytest.raises(TypeError):
        lines[0]["tags"].append("c")
