"""AFK's policy engine as a guard.

AFK (https://github.com/socioy/afk, `afk-py`) wants Python 3.13 and the very versions of a dozen packages, others than
those of these tests. So its engine is here as its documentation says that it is: rules by priority, of which the first
that fits decides (docs/library/security-model and tool-call-lifecycle of its site).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from types import SimpleNamespace
from typing import Any

import pytest

from ferrule import Decision, DefinitionError, Runner, ToolCall, ToolContext, allow, tool
from ferrule.adapters import afk
from ferrule.testing import ManualClock
from waits import BOUND


@dataclass(frozen=True)
class PolicyRule:
    rule_id: str
    action: Any
    priority: int = 100
    tool_name: str = "*"
    reason: str | None = None
    request_payload: dict[str, Any] = field(default_factory=dict)
    updated_tool_args: dict[str, Any] | None = None
    context_equals: dict[str, Any] = field(default_factory=dict)
    metadata_equals: dict[str, Any] = field(default_factory=dict)

    def applies_to(self, event: Any) -> bool:
        assert (event.event_type, event.subagent_name) == ("tool_before_execute", None)
        return (
            fnmatch(event.tool_name, self.tool_name)
            and all(event.context.get(key) == value for key, value in self.context_equals.items())
            and all(event.metadata.get(key) == value for key, value in self.metadata_equals.items())
        )


class PolicyEngine:
    def __init__(self, rules: Iterable[PolicyRule] = ()) -> None:
        self.rules = sorted(rules, key=lambda rule: (-rule.priority, rule.rule_id))
        self.events: list[Any] = []

    def evaluate(self, event: Any) -> Any:
        self.events.append(event)
        found = next((rule for rule in self.rules if rule.applies_to(event)), None)
        if found is None:
            nothing = PolicyRule("", "allow")
            return SimpleNamespace(decision=SimpleNamespace(**{**vars(nothing), "policy_id": None}))
        return SimpleNamespace(decision=SimpleNamespace(**{**vars(found), "policy_id": found.rule_id}))


@tool
def pay(to: str, euros: int = 1, pin: str = "") -> str:
    """Pay somebody."""
    return f"paid {euros} to {to}, {pin!r}"


@tool(read_only=True)
def balance() -> int:
    """Say what is there."""
    return 7


def run(engine: Any, name: str = "pay", arguments: Any = None, approve: Any = None, **context: Any) -> Any:
    async def bounded() -> Any:
        runner = Runner([pay, balance], guards=[afk.policy(engine)], approve=approve)
        given = {"to": "ada"} if arguments is None and name == "pay" else arguments
        return await asyncio.wait_for(runner.run(name, given, ToolContext(**context)), BOUND)

    return asyncio.run(bounded())


def decided(rule: PolicyRule) -> Decision:
    call = ToolCall("c1", "pay", {"to": "ada"})
    return asyncio.run(Runner([pay], guards=[afk.policy(PolicyEngine([rule]))]).decide(call))


def test_the_engine_is_told_of_the_call_as_it_is_judged() -> None:
    engine = PolicyEngine()
    assert run(engine, session="s1", principal="ada", metadata={"plan": "free"}).output == "paid 1 to ada, ''"
    (event,) = engine.events
    assert (event.event_type, event.tool_name, event.thread_id) == ("tool_before_execute", "pay", "s1")
    assert event.tool_args == {"to": "ada", "euros": 1, "pin": ""}
    assert event.context == {"plan": "free", "user_id": "ada"}
    assert event.metadata["read_only"] is False and event.run_id


def test_rules_by_tool_principal_and_trait_speak() -> None:
    rules = [
        PolicyRule("readers", "allow", 300, metadata_equals={"read_only": True}),
        PolicyRule("eve", "deny", 200, context_equals={"user_id": "eve"}, reason="not eve"),
        PolicyRule("pay", "deny", 100, "p*", reason="nobody pays"),
    ]
    assert run(PolicyEngine(rules), "balance", principal="eve").output == 7
    assert run(PolicyEngine(rules), principal="eve").error == "Denied: not eve. Nothing was run."
    assert run(PolicyEngine(rules), principal="ada").error == "Denied: nobody pays. Nothing was run."


@pytest.mark.parametrize(
    ("rule", "decision"),
    [
        (PolicyRule("r", "allow"), Decision("allow")),
        (PolicyRule("r", "deny"), Decision("deny", "denied by policy")),
        (PolicyRule("r", "deny", reason="no"), Decision("deny", "no")),
        (PolicyRule("r", "defer", reason="sure?"), Decision("ask", "sure?")),
        (PolicyRule("r", "request_approval"), Decision("ask", "pay needs approval")),
        (
            PolicyRule("r", "request_user_input", request_payload={"prompt": "PIN?", "target_arg": " pin "}),
            Decision("ask", "PIN?", into="pin"),
        ),
        (
            PolicyRule("r", "defer", reason="PIN?", request_payload={"interaction": "Input", "target_arg": "pin"}),
            Decision("ask", "PIN?", into="pin"),
        ),
        (PolicyRule("r", "request_user_input"), Decision("ask", "pay needs a value")),
    ],
)
def test_each_action_of_afk_is_a_decision_with_its_rule(rule: PolicyRule, decision: Decision) -> None:
    found = decided(rule)
    assert found == decision
    assert decision.kind == "allow" or found.rule == "r"


@pytest.mark.parametrize(
    "rule",
    [
        PolicyRule("r", "ALLOW"),
        PolicyRule("r", None),
        PolicyRule("r", True),
        PolicyRule("r", ["allow"]),
        PolicyRule("r", "allow", updated_tool_args=["to"]),  # type: ignore[arg-type]
        PolicyRule("r", "allow", updated_tool_args={"nobody": 1}),
        PolicyRule("r", "defer", updated_tool_args={"to": "bob"}),
        PolicyRule("r", "defer", request_payload="soon"),  # type: ignore[arg-type]
        PolicyRule("r", "request_user_input", updated_tool_args={"to": "bob"}),
    ],
)
def test_any_other_action_denies(rule: PolicyRule) -> None:
    asked: list[object] = []
    result = run(PolicyEngine([rule]), approve=lambda call, decision, context: asked.append(call) or True)
    assert (result.status, result.executed, asked) == ("denied", False, [])


@pytest.mark.parametrize("answer", [None, True, "allow", {"action": "allow"}, SimpleNamespace(), Decision("allow")])
def test_what_is_no_answer_of_afk_denies(answer: Any) -> None:
    assert run(lambda event: answer).status == "denied"


def test_an_engine_that_raises_denies_and_the_model_reads_nothing_of_it() -> None:
    def breaks(event: Any) -> Any:
        raise ValueError("the database is at 10.0.0.7")

    result = run(breaks)
    assert result.status == "denied" and "10.0.0.7" not in result.error


@pytest.mark.parametrize("in_thread", [True, False])
async def test_an_engine_that_answers_late_denies(in_thread: bool) -> None:
    async def main() -> None:
        go_on, clock, asked = threading.Event(), ManualClock(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def waits(event: Any) -> Any:
            loop.call_soon_threadsafe(asked.set)
            go_on.wait(BOUND)
            return SimpleNamespace(action="allow")

        async def waits_in_the_loop(event: Any) -> Any:
            asked.set()
            await asyncio.Event().wait()

        engine = SimpleNamespace(evaluate=waits if in_thread else waits_in_the_loop)
        runner = Runner([pay], guards=[afk.policy(engine)], clock=clock)
        running = asyncio.ensure_future(runner.run("pay", {"to": "ada"}))
        await asked.wait()
        while not running.done():
            await clock.advance(5.0)
        go_on.set()
        assert (running.result().status, running.result().executed) == ("denied", False)
        assert "did not answer in time" in str(running.result().error)

    await asyncio.wait_for(main(), BOUND)


def test_a_policy_role_that_awaits_is_an_engine_too() -> None:
    async def role(event: Any) -> Any:
        await asyncio.sleep(0)
        return SimpleNamespace(action="deny" if event.tool_args["euros"] > 5 else "allow", reason="too much")

    assert run(role, arguments={"to": "ada", "euros": 9}).error == "Denied: too much. Nothing was run."
    assert run(role).success


@pytest.mark.parametrize("action", ["allow", "deny"])
def test_a_plain_function_may_give_what_is_awaited(action: str) -> None:
    async def role(event: Any) -> Any:
        return SimpleNamespace(action=action)

    class Engine:
        def evaluate(self, event: Any) -> Any:
            return role(event)

    for engine in (lambda event: role(event), Engine()):
        assert run(engine).success is (action == "allow")


def test_a_person_answers_what_afk_defers_and_gives_the_value_that_it_asks_for() -> None:
    defers = PolicyEngine([PolicyRule("r", "defer", reason="sure?")])
    assert run(defers).status == "denied"  # nobody is there
    assert run(defers, approve=lambda call, decision, context: True).success
    assert run(defers, approve=lambda call, decision, context: False).status == "denied"
    wants = PolicyEngine([PolicyRule("r", "request_user_input", request_payload={"target_arg": "pin"})])
    result = run(wants, approve=lambda call, decision, context: allow({**call.arguments, str(decision.into): "1234"}))
    assert result.output == "paid 1 to ada, '1234'"


def test_arguments_that_the_policy_gives_are_what_runs_and_are_judged_again() -> None:
    engine = PolicyEngine([PolicyRule("r", "allow", updated_tool_args={"to": "bob"})])
    assert run(engine, arguments={"to": "ada", "euros": 500}).output == "paid 1 to bob, ''"
    assert [event.tool_args["to"] for event in engine.events] == ["ada", "bob"]


def test_the_engine_cannot_change_what_is_judged() -> None:
    def changes(event: Any) -> Any:
        event.tool_args["to"] = "eve"
        event.context["user_id"] = "root"
        return SimpleNamespace(action="allow")

    assert run(changes, principal="ada").output == "paid 1 to ada, ''"


@pytest.mark.parametrize("engine", [None, "engine", 5, PolicyEngine, SimpleNamespace(evaluate=5)])
def test_what_is_no_engine_is_an_error(engine: Any) -> None:
    with pytest.raises(DefinitionError, match=r"an engine with evaluate\(event\)"):
        afk.policy(engine)
