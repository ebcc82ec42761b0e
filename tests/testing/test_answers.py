"""The answers of `fake` that are functions: of the tool's own parameters, or of all arguments as one dict."""

from __future__ import annotations

import asyncio
import json
from datetime import date
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from ferrule import Runner, ToolContext, Toolset, tool
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.testing import fake


def never() -> Any:
    raise AssertionError("the real handler was called")


def answered(made: Any, arguments: dict[str, Any], answer: Any) -> Any:
    (one,) = Toolset([made])
    result = Runner(fake(one, answers={one.name: answer})).run_sync(one.name, arguments)
    assert result.success, result.error
    return result.output


@tool(read_only=True)
async def convert(amount: int, currency: str = "EUR", on: date = date(2026, 1, 2)) -> str:
    return str(never())


CALL = {"amount": 10, "currency": "CHF", "on": "2026-05-06"}


async def waiting(amount: float) -> str:
    await asyncio.sleep(0)
    return f"{amount}"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda amount, currency, on: f"{amount} {currency} {on.year}", "10 CHF 2026"),
        (lambda currency: currency, "CHF"),
        (lambda: "none of them", "none of them"),
        (waiting, "10"),
        (lambda *, amount, currency="USD": f"{amount} {currency}", "10 CHF"),
        (partial(lambda rate, amount: f"{amount * rate}", rate=2), "20"),
    ],
)
def test_a_function_gets_the_parameters_that_it_names(answer: Any, text: str) -> None:
    assert answered(convert, CALL, answer) == text


def test_an_omitted_argument_has_the_default_of_the_tool() -> None:
    assert answered(convert, {"amount": 1}, lambda currency, on: f"{currency} {on}") == "EUR 2026-01-02"
    assert answered(convert, {"amount": 1}, lambda currency="USD": currency) == "EUR"


@pytest.mark.parametrize("mock", [Mock(return_value="x"), AsyncMock(return_value="x")])
def test_a_function_of_any_keywords_gets_all_arguments(mock: Any) -> None:
    assert answered(convert, {"amount": 10}, mock) == "x"
    mock.assert_called_once_with(amount=10, currency="EUR", on=date(2026, 1, 2))
    assert answered(convert, CALL, lambda amount, **others: f"{sorted(others)}") == "['currency', 'on']"


async def test_a_function_may_take_the_context() -> None:
    def seen(amount: float, caller: ToolContext) -> str:
        return f"{amount} by {caller.principal}"

    def beside_all(arguments: Any, ctx: Any) -> str:
        return f"{arguments['amount']} by {ctx.principal}"

    for answer in (lambda context, amount: f"{amount} by {context.principal}", seen, beside_all):
        runner = Runner(fake(convert, answers={"convert": answer}))
        assert (await runner.run("convert", {"amount": 1}, principal="ada")).output == "1 by ada"


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"default": "C"}},
    "required": ["city"],
}


def test_properties_of_a_schema_are_parameters() -> None:
    made = Tool("weather", lambda payload: never(), input_schema=SCHEMA)
    assert answered(made, {"city": "Bern", "days": 2}, lambda city, days=1: f"{city} {days}") == "Bern 2"
    assert answered(made, {"city": "Bern"}, lambda unit, city, days=1: f"{city} {days} {unit}") == "Bern 1 C"

    def weather(city: str, days: int = 3, unit: str = "F") -> Any:
        never()

    by_name = Tool("weather", weather, input_schema=SCHEMA)
    assert answered(by_name, {"city": "Bern"}, lambda city, days: f"{city} {days}") == "Bern 3"


@pytest.mark.parametrize("answer", [lambda arguments: arguments["on"], lambda _: _["on"]])
def test_a_single_parameter_may_take_all_arguments(answer: Any) -> None:
    assert answered(convert, CALL, answer) == "2026-05-06"


def test_the_dict_of_arguments_is_complete_and_a_copy() -> None:
    def changed(arguments: Any) -> Any:
        assert type(arguments) is dict
        return json.dumps(arguments | {"amount": arguments.pop("amount") + 1})

    assert json.loads(answered(convert, {"amount": 1}, changed)) == {"amount": 2, "currency": "EUR", "on": "2026-01-02"}
    made = Tool("look", lambda payload: never(), input_schema={"type": "object"})
    assert answered(made, {"n": 4}, dict) == {"n": 4}


@pytest.mark.parametrize(
    ("answer", "name", "hint"),
    [
        (lambda amout: "", "amout", "did you mean 'amount'?"),
        (lambda zzz: "", "zzz", "the tool has 'amount', 'currency', 'on';"),
        (lambda arguments, amount: "", "arguments", "lambda arguments: …"),
        (lambda amount, currency, /: "", "amount", "leave out the /"),
    ],
)
def test_an_unknown_parameter_is_refused_with_the_remedy(answer: Any, name: str, hint: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        fake(convert, answers={"convert": answer})
    assert f"the answer of 'convert' has a parameter {name!r}" in str(caught.value) and hint in str(caught.value)
