"""AFK's policy engine as a guard.

AFK (https://github.com/socioy/afk, `afk-py`) pins other versions of a dozen packages than these tests. So the events
and decisions of its engine are written here after its documentation.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ferrule import Decision, DefinitionError, Runner, ToolCall, ToolContext, tool
from ferrule.adapters import afk


def rule(action: Any, reason: str | None = None, payload: Any = None, arguments: Any = None) -> SimpleNamespace:
    """The decision of a rule."""
    fields = {"reason": reason, "request_payload": {} if payload is None else payload, "updated_tool_args": arguments}
    return SimpleNamespace(action=action, policy_id="r", **fields)


class PolicyEngine:
    """An engine with one rule for each call."""

    def __init__(self, decision: SimpleNamespace | None = None) -> None:
        self.decision = decision or rule("allow")
        self.events: list[Any] = []

    def evaluate(self, event: Any) -> Any:
        assert (event.event_type, event.subagent_name) == ("tool_before_execute", None)
        self.events.append(event)
        return SimpleNamespace(decision=self.decision)


@tool
def pay(to: str, euros: int = 1, pin: str = "") -> str:
    return f"paid {euros} to {to}, {pin!r}"


def run(engine: Any, arguments: Any = None, approve: Any = None, **context: Any) -> Any:
    runner = Runner([pay], guards=[afk.policy(engine)], approve=approve)
    return runner.run_sync("pay", arguments or {"to": "ada"}, ToolContext(**context))


def test_the_engine_gets_the_judged_call() -> None:
    engine = PolicyEngine()
    assert run(engine, session="s1", principal="ada", metadata={"plan": "free"}).output == "paid 1 to ada, ''"
    (event,) = engine.events
    assert (event.event_type, event.tool_name, event.thread_id) == ("tool_before_execute", "pay", "s1")
    assert event.tool_args == {"to": "ada", "euros": 1, "pin": ""}
    assert event.context == {"plan": "free", "user_id": "ada"}
    assert event.metadata["read_only"] is False and event.run_id


@pytest.mark.parametrize(
    ("made", "decision"),
    [
        (rule("allow"), Decision("allow")),
        (rule("deny", reason="no"), Decision("deny", "no")),
        (rule("defer", reason="sure?"), Decision("ask", "sure?")),
        (rule("request_approval"), Decision("ask", "pay needs approval")),
        (
            rule("request_user_input", payload={"prompt": "PIN?", "target_arg": " pin "}),
            Decision("ask", "PIN?", into="pin"),
        ),
        (
            rule("defer", reason="PIN?", payload={"interaction": "Input", "target_arg": "pin"}),
            Decision("ask", "PIN?", into="pin"),
        ),
    ],
)
async def test_each_action_becomes_a_decision_with_its_rule(made: Any, decision: Decision) -> None:
    runner = Runner([pay], guards=[afk.policy(PolicyEngine(made))])
    found = await runner.decide(ToolCall("c1", "pay", {"to": "ada"}))
    assert found == decision
    assert decision.kind == "allow" or found.rule == "r"


@pytest.mark.parametrize(
    "made",
    [
        rule("ALLOW"),
        rule("allow", arguments=["to"]),  # type: ignore[arg-type]
        rule("allow", arguments={"nobody": 1}),
        rule("defer", arguments={"to": "bob"}),
    ],
)
def test_any_other_action_denies(made: Any) -> None:
    asked: list[object] = []
    result = run(PolicyEngine(made), approve=lambda call, decision, context: asked.append(call) or True)
    assert (result.status, result.executed, asked) == ("denied", False, [])


def test_an_engine_that_raises_denies_without_showing_the_error() -> None:
    def breaks(event: Any) -> Any:
        raise ValueError("the database is at 10.0.0.7")

    result = run(breaks)
    assert result.status == "denied" and "10.0.0.7" not in result.error


def test_an_engine_may_be_async() -> None:
    async def role(event: Any) -> Any:
        await asyncio.sleep(0)
        return SimpleNamespace(action="deny" if event.tool_args["euros"] > 5 else "allow", reason="too much")

    assert run(role, arguments={"to": "ada", "euros": 9}).error == "Denied: too much. Nothing was run."
    assert run(role).success
    assert run(lambda event: role(event)).success


def test_arguments_from_the_policy_are_judged_again_and_run() -> None:
    engine = PolicyEngine(rule("allow", arguments={"to": "bob"}))
    assert run(engine, arguments={"to": "ada", "euros": 500}).output == "paid 1 to bob, ''"
    assert [event.tool_args["to"] for event in engine.events] == ["ada", "bob"]


@pytest.mark.parametrize("engine", [None, PolicyEngine, SimpleNamespace(evaluate=5)])
def test_a_wrong_engine_is_refused(engine: Any) -> None:
    with pytest.raises(DefinitionError, match=r"an engine with evaluate\(event\)"):
        afk.policy(engine)
