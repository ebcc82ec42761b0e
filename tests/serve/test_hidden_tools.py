"""A client sees the tools that no guard denies to its principal outright; a hidden one answers like an unknown one."""

from __future__ import annotations

from typing import Any

import mcp_types as wire
import pytest
from connected import ERAS, MODERN, both_eras, client, policy_with
from hypothesis import example, given
from hypothesis import strategies as st
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from test_over_http import connected, listening, post, tokens

from ferrule import Event, Runner, ToolCall, ToolContext, build_tool, deny, serve, tool


@tool(read_only=True)
async def look(place: str) -> str:
    return place


@tool
async def order(article: str, count: int = 1) -> str:
    """Order."""
    return article


@tool(destructive=lambda arguments: arguments["everything"])
async def clear(everything: bool) -> str:
    return "cleared"


@tool(recorded=True)
async def tidy(context: ToolContext) -> str:
    """Tidy up, by other tools alone."""
    return "tidy"


TOOLS = [look, order, clear]


ANN_ORDERS = policy_with(
    """
    [[rule]]
    decide = "deny"
    tools = ["order"]
    principals = ["b*"]

    [[rule]]
    decide = "deny"
    tools = ["look"]
    arguments.place = { equals = "attic" }
    """
)


async def names(runner: Runner, era: str, principal: str | None) -> list[str]:
    async with client(runner, era, context=ToolContext(principal=principal)) as listed:
        return [one.name for one in (await listed.list_tools()).tools]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('deny = ["*"]', []),
        ('ask = ["*"]', ["look", "order", "clear"]),
        ('deny = ["order(count>1)"]', ["look", "order", "clear"]),
        ('mode = "read_only"', ["look"]),
        ('mode = "never_ask"', ["look"]),
        ('mode = "never_ask"\nallow = ["order(count<=1)"]', ["look", "order"]),
        ('mode = "never_ask"\nallow = ["clear"]\nask = ["look", "order(count>1)"]', ["clear"]),
        ('mode = "never_ask"\n[[rule]]\ndecide = "allow"\ntools = ["order"]\nprincipals = ["bob"]', ["look"]),
        ('mode = "never_ask"\n[[rule]]\ndecide = "allow"\ntools = ["order"]\nafter = "look"', ["look", "order"]),
        ('[[rule]]\ndecide = "deny"\ntraits = ["destructive"]', ["look", "clear"]),
    ],
)
async def test_only_what_a_policy_denies_outright_is_hidden(text: str, shown: list[str]) -> None:
    assert await names(Runner(TOOLS, guards=[policy_with(text)]), MODERN, "ann") == shown


@both_eras
async def test_a_hidden_tool_answers_like_an_unknown_one_and_its_call_is_recorded(era: str) -> None:
    errors, events = [], list[Event]()
    runner = Runner(TOOLS, guards=[ANN_ORDERS], observers=[events.append])
    async with client(runner, era, context=ToolContext(principal="bob")) as of_bob:
        for name in ("order", "ordar"):
            with pytest.raises(MCPError) as refused:
                await of_bob.call_tool(name, {"article": "tea"})
            errors.append((refused.value.code, refused.value.message.replace(name, "NAME"), refused.value.data))
    assert errors[0] == errors[1] and errors[0][0] == wire.INVALID_PARAMS
    assert [(one.kind, one.call.name, one.principal) for one in events] == [
        (kind, name, "bob") for name in ("order", "ordar") for kind in ("tool:pre", "tool:error")
    ]
    assert not any(one.call.arguments for one in events)
    results = [one.data["result"] for one in events if one.kind == "tool:error"]
    assert [(one.status, one.executed) for one in results] == [("not_found", False)] * 2


class Staff:
    """A guard of a program's own."""

    def check(self, call: ToolCall, context: ToolContext) -> Any:
        return deny("not for you") if self.denies_tool(call, context) else None

    def denies_tool(self, tool: Any, context: ToolContext) -> bool:
        if context.principal is None:
            raise LookupError("no principal")
        return tool.name == "clear" and context.principal != "ann"


async def test_a_guard_of_your_own_may_hide_tools_and_one_that_raises_hides_all() -> None:
    for runner in (Runner(TOOLS, guards=[Staff()]), Runner([one.replace(guards=[Staff()]) for one in TOOLS])):
        assert await names(runner, MODERN, "ann") == ["look", "order", "clear"]
        assert await names(runner, MODERN, "bob") == ["look", "order"]
        assert await names(runner, MODERN, None) == []


@both_eras
async def test_the_pages_of_a_client_hold_only_its_tools(era: str) -> None:
    many = [look.replace(name=f"{kind}_{number}") for number in range(150) for kind in ("look", "order")]
    app = serve.mcp(Runner(many, guards=[policy_with('deny = ["order_*"]')]), context=ToolContext(principal="ann"))
    async with Client(app.server, mode=era) as listing:
        first = await listing.list_tools()
        second = await listing.list_tools(cursor=first.next_cursor)
        found = [one.name for page in (first, second) for one in page.tools]
        await app.use(Runner(many))
        for wrong in (first.next_cursor, "", "1"):
            with pytest.raises(MCPError) as refused:
                await listing.list_tools(cursor=wrong)
            assert refused.value.code == wire.INVALID_PARAMS
    assert len(first.tools) == 100
    assert found == [f"look_{number}" for number in range(150)] and second.next_cursor is None


async def test_each_token_has_its_own_list_and_no_header_tells_of_a_hidden_tool() -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    made = {"name": "order", "description": "Order.", "input_schema": schema}
    mirrored = build_tool({**made, "execute": lambda payload, context: "there", "check_permissions": lambda *_: None})
    async with listening(serve.mcp(Runner([look, mirrored], guards=[ANN_ORDERS]), tokens=tokens)) as url:
        for era in ERAS:
            for name, shown in (("ann", ["look", "order"]), ("bob", ["look"])):
                async with connected(url, era, f"token of {name}") as of_token:
                    assert [one.name for one in (await of_token.list_tools()).tools] == shown
        answers = []
        for name in ("ann", "bob"):
            headers = {"Authorization": f"Bearer token of {name}", "Mcp-Param-Region": "us"}
            params = {"name": "order", "arguments": {"region": "eu"}}
            answers.append((await post(url, headers, method="tools/call", params=params)).json()["error"]["code"])
    assert answers == [wire.HEADER_MISMATCH, wire.INVALID_PARAMS]


LINES = st.sampled_from(
    [
        'deny = ["order"]',
        'deny = ["*"]',
        'deny = ["look(place=attic)"]',
        'allow = ["*"]',
        'ask = ["c*"]',
        '[[rule]]\ndecide = "deny"\nprincipals = ["b*"]',
        '[[rule]]\ndecide = "deny"\ntraits = ["destructive"]',
        '[[rule]]\ndecide = "deny"\ntraits = ["not read_only"]\nprincipals = ["ann"]',
        '[[rule]]\ndecide = "allow"\ntools = ["order", "clear"]\nprincipals = ["ann"]',
        'mode = "read_only"',
        'mode = "never_ask"',
        'mode = "never_ask"\nallow = ["*"]\nask = ["o*"]',
    ]
)
CALLS: list[tuple[Any, dict[str, Any]]] = [
    (look, {"place": "attic"}),
    (look, {"place": "hall"}),
    (order, {"article": "tea"}),
    (order, {"article": "", "count": 5}),
    (clear, {"everything": True}),
    (clear, {"everything": False}),
    (tidy, {}),
]


@example(['mode = "read_only"'], "ann")
@given(st.lists(LINES, min_size=1, max_size=3, unique=True), st.sampled_from(["ann", "bob", None]))
async def test_calls_of_a_hidden_tool_are_denied(lines: list[str], principal: str | None) -> None:
    policies = [policy_with(line) for line in lines]
    context = ToolContext[Any](principal=principal)
    runner = Runner([*TOOLS, tidy], guards=policies)
    for made, arguments in CALLS:
        if any(policy.denies_tool(made, context) for policy in policies):  # type: ignore[attr-defined]
            decision = await runner.decide(ToolCall("c1", made.name, arguments), context)
            assert decision.kind == "deny"
