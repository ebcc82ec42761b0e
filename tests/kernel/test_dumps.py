"""Guards judge the dump of a value of Pydantic's own types, and the handler gets a value that is made of it."""

from __future__ import annotations

import base64
import ipaddress
import uuid
from collections import deque
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    OnErrorOmit,
    SecretStr,
    StringConstraints,
)
from pydantic_core import to_json

import probe
from ferrule import tool
from watched import run


class Ignores(BaseModel):
    model_config = ConfigDict(extra="ignore")
    at: Path


class InBase64(BaseModel):
    model_config = ConfigDict(val_json_bytes="base64")
    data: bytes


class Pair(NamedTuple):
    left: Path
    right: int = 0


TEXT = st.text(max_size=8)
HEX = (
    "[0-9a-fA-F]{8}(-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-|[0-9a-f]{4}4[0-9a-f]{3}[89ab][0-9a-f]{3})[0-9a-f]{12}"
)
OWN: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "path": (Path, st.text("ab./~ ", max_size=6)),
    "url": (AnyUrl, st.sampled_from(["HTTP://EXAMPLE.com", "x:y", "http://a/%7e?q=1#f", "ftp://a:b@c:21/d"])),
    "uuid": (uuid.UUID, st.from_regex(HEX, fullmatch=True)),
    "decimal": (Decimal, st.from_regex(r"-?[0-9]{1,9}(\.[0-9]{1,9})?(e[+-]?[0-9])?", fullmatch=True)),
    "fraction": (Fraction, st.fractions().map(str)),
    "duration": (timedelta, st.sampled_from(["P1D", "PT24H", "P1DT0.5S", "-PT1S", "P1W", "PT0S"])),
    "ip": (ipaddress.IPv6Address, st.ip_addresses(v=6).map(str)),
    "bytes": (bytes, st.binary(max_size=8).map(lambda one: base64.b64encode(one).decode())),
    "bytes as keys": (dict[bytes, int], st.just({"/w==": 1})),
    "bytes in base64": (InBase64, st.sampled_from([{"data": "aGk="}, {"data": "_w=="}, {"data": ""}])),
    "set": (set[int], st.lists(st.integers(0, 99), max_size=9)),
    "deque": (deque[int], st.lists(st.integers(), max_size=3)),
    "stripped": (Annotated[str, StringConstraints(strip_whitespace=True, to_upper=True)], st.text(" aß\t", max_size=5)),
    "named tuple": (Pair, st.sampled_from([["a"], ["a//b", 1]])),
    "ignored keys": (Ignores, st.sampled_from([{"at": "a"}, {"at": "a/./b", "more": 1}])),
    "left out": (list[OnErrorOmit[Annotated[str, Field(max_length=1)]]], st.lists(TEXT, max_size=3)),
    "secret": (SecretStr, TEXT),
    "spelled date and time": (list[datetime], st.lists(st.datetimes().map(lambda one: one.isoformat(" ")), max_size=2)),
}


@pytest.mark.parametrize("kind", OWN)
@given(st.data())
def test_the_dump_of_a_pydantic_type_makes_its_value_again(kind: str, data: st.DataObject) -> None:
    annotation, sent = OWN[kind]
    got: list[Any] = []

    async def take(value: Any) -> None:
        got.append(value)

    take.__annotations__ = {"value": annotation}
    one = tool(take)
    shown: list[Any] = []
    guards = [lambda call, _: shown.append(call.arguments["value"])]
    parameters = probe.parameters(one)
    result, _ = run(one, "take", {"value": data.draw(sent)}, guards=guards)
    assert result.success, result.error
    again = parameters.validate(to_json({"value": shown[0]}).decode())["value"]
    assert again == got[0] and type(again) is type(got[0])


class Yes(Enum):
    YES = True


class One(Enum):
    ONE = 1


@pytest.mark.parametrize(
    ("annotation", "sent", "taken"),
    [
        (Literal[True], 1.0, False),
        (Yes, True, True),
        (Literal[1], True, False),
        (One, 1.0, True),
        (Literal[0, False], 0.0, True),
    ],
)
def test_true_is_never_taken_for_the_number_one(annotation: Any, sent: Any, taken: bool) -> None:
    got: list[Any] = []

    async def take(value: Any) -> None:
        got.append(value.value if isinstance(value, Enum) else value)

    take.__annotations__ = {"value": annotation}
    shown: list[Any] = []
    guards = [lambda call, _: shown.append(call.arguments["value"])]
    result, _ = run(tool(take), "take", {"value": sent}, guards=guards)
    assert (result.status == "ok") is taken, result.error
    assert all(isinstance(one, bool) is isinstance(sent, bool) for one in (*got, *shown))
