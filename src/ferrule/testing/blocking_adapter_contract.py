"""`BlockingAdapterContract`: tests of the promises of every adapter to a framework in which no call can wait."""

from __future__ import annotations

from typing import ClassVar

from ferrule.approval import later
from ferrule.errors import DefinitionError
from ferrule.runner import Runner
from ferrule.testing.adapter_calls import ENDS, LOOK, AdapterCalls
from ferrule.testing.bounded import in_time
from ferrule.testing.expected import expect, expect_failure
from ferrule.testing.framework import Said, Seen
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

    def test_what_the_approver_says_no_to_does_not_run(self) -> None:
        world = World()
        driven = self.drive(world, Said("c1", "pay", {"to": "bob"}), Said("c2", "pay", {"to": "ada"}))
        expect_failure(driven, "c1")
        expect(driven, c2=Seen("paid 1 EUR to ada"))
        world.expect_paid({"ada 1": 1})

    def test_tools_that_may_ask_are_refused_where_nobody_can_be_asked(self) -> None:
        self._expect_refusal(World().runner())

    def test_so_are_they_where_the_approver_says_that_it_puts_questions_off(self) -> None:
        self._expect_refusal(World().runner(approve=later))

    def test_what_an_approver_puts_off_all_the_same_is_denied_and_has_ended(self) -> None:
        world, kinds = World(), list[str]()
        driven = self.drive(
            world,
            Said("c1", "pay", {"to": "ada"}),
            approve=lambda call, decision, context: decision,
            observers=[lambda event: kinds.append(event.kind)],
        )
        expect_failure(driven, "c1", tells="no call can wait")
        world.expect_paid({})
        ends = [kind for kind in kinds if kind in ENDS]
        assert ends == ["tool:error"], f"the call has ended as {ends}"

    def _expect_refusal(self, runner: Runner) -> None:
        refused = ""
        try:
            in_time(self._framework().drive(runner, LOOK))
        except DefinitionError as error:
            refused = str(error)
        assert "'pay' may ask a person" in refused, (
            f"tools that may ask were taken where nobody can be asked, or the error does not say which: {refused!r}"
        )
