"""Options of a tool besides its parameters: `ask`, `preview`, examples and provider options."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from cast import Person
from ferrule import (
    Decision,
    DefinitionError,
    Diff,
    GuardError,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolHandler,
    ToolResult,
    allow,
    build_tool,
    deny,
    tool,
)


@tool(ask=True)
async def pay(amount: int, to: str = "me") -> int:
    """Pay."""
    return amount


def run(one: Tool, arguments: Any = None, **options: Any) -> ToolResult:
    given = {"amount": 3} if arguments is None else arguments
    return asyncio.run(Runner([one], **options).run(one.name, given))


# ask


async def test_a_tool_with_ask_is_asked_about_however_it_is_called() -> None:
    person = Person()
    (mounted,) = Runner([pay]).as_tools()
    for one in (pay, mounted):
        assert (await Runner([one], approve=person).run("pay", {"amount": 3})).output == 3
    assert [one.reason for one in person.decisions] == ["really run pay?"] * 2
    costly = pay.replace(ask="this costs money")
    result = await Runner([costly], approve=Person(deny("no"))).run("pay", {"amount": 3})
    assert (result.status, result.executed) == ("denied", False)
    decision = await Runner([costly]).decide(ToolCall("1", "pay", {"amount": 1}))
    assert (decision.kind, decision.reason) == ("ask", "this costs money")
    with pytest.raises(GuardError, match="really run pay"):
        await pay(amount=3)
    result = await Runner([pay]).run("pay", {"amount": 3})
    assert result.status == "denied" and "nobody is there to ask (really run pay?)" in result.text
    assert (await Runner([pay.replace(ask=False)]).run("pay", {"amount": 3})).output == 3


def test_denying_overrides_ask_and_allowing_does_not() -> None:
    person = Person()
    assert run(pay, guards=[lambda call, context: deny("no")], approve=person).status == "denied"
    assert person.questions == []
    assert run(pay, guards=[lambda call, context: allow()], approve=person).success
    assert len(person.questions) == 1


class Wire(ToolHandler):
    amount: int

    async def __call__(self) -> int:
        return self.amount


def test_a_definition_without_permissions_asks() -> None:
    definition = {"name": "x", "execute": lambda payload: 1}
    person = Person()
    assert (
        run(build_tool(definition), approve=person).success
        and person.decisions[0].reason == "x has no check_permissions"
    )
    assert run(build_tool({**definition, "ask": False})).success
    assert run(build_tool(definition).replace(ask=False)).success


@pytest.mark.parametrize("wrong", [None, "", "  ", 1, lambda call, context: None])
def test_ask_is_true_false_or_a_reason(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match=r"ask must be True, False or the reason as a text \(a guard asks"):
        pay.replace(ask=wrong)


# preview


def test_an_approver_can_show_the_preview() -> None:
    shown: list[object] = []

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        shown.append(context.tool.preview(call.arguments))
        return True

    one = pay.replace(preview=lambda arguments: Diff("0", str(arguments["amount"]), arguments["to"]))
    assert run(one, approve=approve).output == 3
    assert run(pay.replace(preview=lambda arguments: 1 / 0), approve=Person()).output == 3  # it is not called
    assert shown == [Diff("0", "3", "me")]
    assert pay.preview is None and one.replace(timeout=1).preview is one.preview


async def later(arguments: Any) -> str:
    return ""


@pytest.mark.parametrize("wrong", ["text", lambda: "", lambda amount, to: "", later])
def test_a_preview_is_a_plain_function_of_the_arguments(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="preview must be a function of the arguments"):
        pay.replace(preview=wrong)


@pytest.mark.parametrize("option", ["resources", "read_only", "destructive", "idempotent", "open_world", "parallel"])
def test_an_option_function_takes_the_arguments_as_one_mapping(option: str) -> None:
    for wrong in (lambda amount, to: [], later):
        with pytest.raises(DefinitionError, match=f"{option} must be .*a function of the arguments, which takes them"):
            pay.replace(**{option: wrong})  # type: ignore[arg-type]


# examples


SCHEMA = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}


async def spend(amount: int, pin: int = 0) -> int:
    return amount


DEFINED: list[Callable[[Any], Tool]] = [
    lambda examples: tool(spend, name="pay", private=["pin"], examples=examples),
    lambda examples: Tool("pay", Wire, examples=examples),
    lambda examples: build_tool({"name": "pay", "input_schema": SCHEMA, "examples": examples}, lambda payload: 1),
]


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ({"amount": "much"}, "amount"),
        ({}, "'amount' is required"),
        ({"amount": 1, "of": "it"}, "'of' is not a parameter"),
        ({"amount": "3"}, "read the string in 'amount' as integer"),
        ({"amount": 1, "pin": 5}, "pin"),
    ],
)
@pytest.mark.parametrize("define", DEFINED)
def test_an_example_that_does_not_fit_is_refused(
    example: dict[str, Any], said: str, define: Callable[[Any], Tool]
) -> None:
    with pytest.raises(DefinitionError, match=said) as caught:
        define([{"amount": 1}, example])
    assert f"tool 'pay': the example {example!r} does not fit" in str(caught.value)


def test_a_copy_checks_its_examples_again() -> None:
    async def other(name: str) -> str:
        return name

    one = pay.replace(examples=[{"amount": 1}])
    assert one.replace(name="spend").examples == one.examples == ({"amount": 1},)
    assert one.fingerprint != pay.fingerprint == pay.replace(examples=[]).fingerprint
    with pytest.raises(DefinitionError, match="does not fit"):
        one.replace(handler=other)
    with pytest.raises(DefinitionError, match="does not fit"):
        one.replace(examples=[{"to": "me"}])


# provider


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("anthropic", "provider must be a dict"),
        ({"cache_control": {"type": "ephemeral"}}, "no option 'cache_control'.* options are: anthropic, bedrock, coh"),
        ({5: {}}, "provider: there is no option 5"),
        ({"anthropic": True}, r"provider\['anthropic'\] must be a dict, not True"),
    ],
)
def test_provider_options_are_a_dict_per_provider(wrong: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        pay.replace(provider=wrong)


@dataclass
class Searcher:
    token: str = "sk-4711"
    limit: object = None

    async def __call__(self, query: str) -> str:
        return query


@dataclass
class Written(Searcher):
    """Search (the web, that is)."""


def test_a_generated_docstring_is_no_description() -> None:
    """A model would read the defaults of a dataclass by their `repr`, which may be secrets or addresses in memory."""
    assert tool(Searcher(), name="search").description == ""
    assert tool(Written(), name="search").description == "Search (the web, that is)."
