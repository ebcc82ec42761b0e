"""What a tool may say besides its parameters: that it is asked about, what a call would change, how one looks."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

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


class Asked:
    """A person who remembers the questions."""

    def __init__(self, answer: Decision | bool = True) -> None:
        self.answer = answer
        self.questions: list[str] = []

    def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision | bool:
        self.questions.append(decision.reason)
        return self.answer


def run(one: Tool, arguments: Any = None, **options: Any) -> ToolResult:
    given = {"amount": 3} if arguments is None else arguments
    return asyncio.run(Runner([one], **options).run(one.name, given))


# ask


def test_a_tool_with_ask_is_asked_about_by_name() -> None:
    person = Asked()
    assert (run(pay, approve=person).output, person.questions) == (3, ["really run pay?"])


def test_the_reason_of_ask_is_what_the_person_reads() -> None:
    person = Asked(False)
    result = run(pay.replace(ask="this costs money"), approve=person)
    assert (result.status, result.executed, person.questions) == ("denied", False, ["this costs money"])


def test_with_nobody_to_ask_it_does_not_run() -> None:
    result = run(pay)
    assert (result.status, result.executed) == ("denied", False)
    assert "nobody is there to ask (really run pay?)" in (result.error or "")


def test_a_copy_without_ask_is_not_asked_about() -> None:
    assert run(pay.replace(ask=False)).output == 3
    assert (pay.ask, pay.replace(ask=False).ask, tool(name="x")(lambda: 1).ask) == (True, False, False)


async def test_a_direct_call_of_it_is_a_guard_error() -> None:
    with pytest.raises(GuardError, match="really run pay"):
        await pay(amount=3)


def test_a_guard_that_denies_is_stricter_than_ask_and_one_that_allows_is_not() -> None:
    person = Asked()
    assert run(pay, guards=[lambda call, context: deny("no")], approve=person).status == "denied"
    assert person.questions == []
    assert run(pay, guards=[lambda call, context: allow()], approve=person).success
    assert len(person.questions) == 1


async def test_decide_says_that_it_asks() -> None:
    decision = await Runner([pay]).decide(ToolCall("1", "pay", {"amount": 1}))
    assert (decision.kind, decision.reason) == ("ask", "really run pay?")


def test_a_mounted_tool_takes_its_ask_along() -> None:
    person = Asked()
    (mounted,) = Runner([pay]).as_tools()
    assert run(mounted, approve=person).success and person.questions == ["really run pay?"]


class Wire(ToolHandler):
    amount: int

    async def __call__(self) -> int:
        return self.amount


@pytest.mark.parametrize(
    "asked",
    [
        tool(lambda amount: amount, name="x", ask=True),
        tool(Wire, ask=True),
        Tool("x", Wire, ask=True),
        build_tool({"name": "x", "execute": lambda payload: 1, "ask": True, "check_permissions": lambda payload: None}),
        build_tool({"name": "x", "input_schema": {"type": "object"}}, lambda payload: 1, ask=True),
    ],
)
def test_every_way_to_write_a_tool_takes_ask(asked: Tool) -> None:
    assert run(asked).status == "denied" and run(asked, approve=Asked()).success


def test_a_definition_without_permissions_asks_unless_it_says_otherwise() -> None:
    definition = {"name": "x", "execute": lambda payload: 1}
    person = Asked()
    assert run(build_tool(definition), approve=person).success and person.questions == ["x has no check_permissions"]
    assert run(build_tool({**definition, "ask": False})).success
    assert run(build_tool(definition).replace(ask=False)).success


@pytest.mark.parametrize("wrong", [None, "", "  ", 1, lambda call, context: None])
def test_ask_is_true_false_or_a_reason(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match=r"ask must be True, False or the reason as a text \(a guard asks"):
        pay.replace(ask=wrong)


# preview


def test_a_preview_is_kept_and_whoever_is_asked_can_show_it() -> None:
    shown: list[object] = []

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        shown.append(context.tool.preview(call.arguments))
        return True

    one = pay.replace(preview=lambda arguments: Diff("0", str(arguments["amount"]), arguments["to"]))
    assert run(one, approve=approve).output == 3
    assert shown == [Diff("0", "3", "me")]
    assert pay.preview is None and one.replace(timeout=1).preview is one.preview


def test_a_preview_that_is_not_called_costs_nothing_and_cannot_break_a_call() -> None:
    def breaks(arguments: Any) -> str:
        raise RuntimeError

    assert run(pay.replace(preview=breaks), approve=Asked()).output == 3


async def later(arguments: Any) -> str:
    return ""


@pytest.mark.parametrize("wrong", ["text", lambda: "", lambda amount, to: "", later])
def test_a_preview_is_a_plain_function_of_the_arguments(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="preview must be a function of the arguments"):
        pay.replace(preview=wrong)


@pytest.mark.parametrize("option", ["resources", "read_only", "destructive", "idempotent", "open_world", "parallel"])
def test_what_is_asked_of_the_arguments_takes_them_as_one_mapping(option: str) -> None:
    for wrong in (lambda amount, to: [], later):
        with pytest.raises(DefinitionError, match=f"{option} must be .*a function of the arguments, which takes them"):
            pay.replace(**{option: wrong})  # type: ignore[arg-type]


def test_a_diff_is_a_frozen_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Diff("a", "b").before = "c"  # type: ignore[misc]
    assert (Diff("a", "b"), Diff("a", "b").name) == (Diff("a", "b", ""), "")


# examples


def test_examples_that_fit_are_kept() -> None:
    assert pay.replace(examples=[{"amount": 1}, {"amount": 2, "to": "you"}]).examples == (
        {"amount": 1},
        {"amount": 2, "to": "you"},
    )


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
def test_an_example_that_no_model_should_follow_is_refused_where_it_is_defined(
    example: dict[str, Any], said: str, define: Callable[[Any], Tool]
) -> None:
    with pytest.raises(DefinitionError, match=said) as caught:
        define([{"amount": 1}, example])
    assert f"tool 'pay': the example {example!r} does not fit" in str(caught.value)


def test_a_copy_checks_its_examples_anew_where_they_or_its_parameters_change() -> None:
    async def other(name: str) -> str:
        return name

    one = pay.replace(examples=[{"amount": 1}])
    assert one.replace(name="spend").examples == one.examples
    with pytest.raises(DefinitionError, match="does not fit"):
        one.replace(handler=other)
    with pytest.raises(DefinitionError, match="does not fit"):
        one.replace(examples=[{"to": "me"}])


def test_examples_are_part_of_what_a_model_is_shown() -> None:
    assert pay.replace(examples=[{"amount": 1}]).fingerprint != pay.fingerprint == pay.replace(examples=[]).fingerprint


# provider


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("anthropic", "provider must be a dict"),
        (["anthropic"], "provider must be a dict"),
        ({"cache_control": {"type": "ephemeral"}}, "no option 'cache_control'.* options are: anthropic, bedrock, coh"),
        ({5: {}}, "provider: there is no option 5"),
        ({"anthropic": True}, r"provider\['anthropic'\] must be a dict, not True"),
    ],
)
def test_what_is_for_one_provider_is_a_dict_for_each(wrong: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        pay.replace(provider=wrong)


@pytest.mark.parametrize("written", ["strict", "readonly", "asks"])
def test_an_option_that_there_is_not_is_told_with_those_that_there_are(written: str) -> None:
    with pytest.raises(DefinitionError, match=rf"no option '{written}'\. The options are: .*ask, .*read_only, "):
        tool(**{written: "x"})(named)


def named() -> None:
    """A function with a name."""


NOTHING_SAID = object()


@dataclass
class Searcher:
    token: str = "sk-4711"
    limit: object = NOTHING_SAID

    async def __call__(self, query: str) -> str:
        return query


@dataclass
class Explained(Searcher):
    async def __call__(self, query: str) -> str:
        """Search the web."""
        return query


@dataclass
class Written(Searcher):
    """Search (the web, that is)."""


class Pair(NamedTuple):
    first: int = 1

    async def __call__(self, query: str) -> str:
        return query


class Silent:
    async def __call__(self, query: str) -> str:
        return query


@pytest.mark.parametrize(
    ("thing", "description"),
    [
        (Searcher(), ""),
        (Explained(), "Search the web."),
        (Written(), "Search (the web, that is)."),
        (Pair(), ""),
        (Silent(), ""),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_python_writes_in_the_place_of_a_docstring_is_no_description(thing: Any, description: str) -> None:
    """A model would read the defaults of a dataclass by their `repr`, which may be secrets or addresses in memory."""
    assert tool(thing, name="search").description == description
