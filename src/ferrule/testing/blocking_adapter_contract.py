"""`BlockingAdapterContract`: tests of the promises of every adapter to a framework in which no call can wait."""

from __future__ import annotations

from typing import ClassVar

from ferrule.approval import later
from ferrule.errors import DefinitionError
from ferrule.runner import Runner
from ferrule.testing.adapter_calls import ENDS, LOOK, AdapterCalls
from ferrule.testing.bounded import in_time
from ferrule.testing.expected import expect, expect_failure
from ferrule.testing.framework import ModelView, ScriptedCall
from ferrule.testing.world import World
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision


def _is_for_ada(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
    return bool(call.arguments["to"] == "ada")


class BlockingAdapterContract(AdapterCalls):
    """Tests of the promises of every adapter to a framework in which no call can wait for a person: `AdapterContract`
    for an adapter made with `Adapter(…, suspends=False)`. Its runners have an approver that answers at once. See
    docs/coming-from.md#your-own-adapter.

        class TestDesk(BlockingAdapterContract):
            framework = Desk()
    """

    _options: ClassVar = {"approve": _is_for_ada}

    def test_a_denied_call_does_not_run(self) -> None:
        world = World()
        driven = self.start_run(
            world, ScriptedCall("c1", "pay", {"to": "bob"}), ScriptedCall("c2", "pay", {"to": "ada"})
        )
        expect_failure(driven, "c1")
        expect(driven, c2=ModelView("paid 1 EUR to ada"))
        world.expect_paid({"ada 1": 1})

    def test_tools_that_may_ask_are_refused_without_an_approver(self) -> None:
        self._expect_refusal(World().runner())

    def test_tools_that_may_ask_are_refused_with_a_deferring_approver(self) -> None:
        self._expect_refusal(World().runner(approve=later))

    def test_a_call_that_the_approver_defers_is_denied(self) -> None:
        world, kinds = World(), list[str]()
        driven = self.start_run(
            world,
            ScriptedCall("c1", "pay", {"to": "ada"}),
            approve=lambda call, decision, context: decision,
            observers=[lambda event: kinds.append(event.kind)],
        )
        expect_failure(driven, "c1", includes="no call can wait")
        world.expect_paid({})
        ends = [kind for kind in kinds if kind in ENDS]
        assert ends == ["tool:error"], f"the call has ended as {ends}"

    def _expect_refusal(self, runner: Runner) -> None:
        refused = ""
        try:
            in_time(self._framework().start_run(runner, LOOK))
        except DefinitionError as error:
            refused = str(error)
        assert "'pay' may ask a person" in refused, (
            f"tools that may ask were taken where nobody can be asked, or the error does not say which: {refused!r}"
        )
