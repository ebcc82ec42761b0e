"""`GuardContract`: tests of the promises of every guard, to run on your own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from inspect import isawaitable
from typing import Any, TypeAlias
from unittest import SkipTest

from ferrule.definition.guard_forms import guard_function
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError, GuardError
from ferrule.runner import Runner
from ferrule.testing.bounded import bounded_test
from ferrule.testing.fake import replace_handler, to_toolset
from ferrule.testing.generated import generate_arguments
from ferrule.types import Approver, Guard, GuardFunction, Observer
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, ask
from ferrule.values.event import Event
from ferrule.values.frozen import thaw

ExpectedDecision: TypeAlias = tuple[str, Mapping[str, Any], str]
"""A call to judge: the tool's name, the arguments, and the expected decision: `"allow"`, `"ask"` or `"deny"`.

It is a `str` because pyright infers no more from a list in a method without hints. See docs/contracts.md#a-guard."""

_DECISION_KINDS = ("allow", "ask", "deny")


class GuardContract:
    """Tests of the promises of every guard. Derive a class, and pytest runs them. See docs/contracts.md#a-guard.

        class TestOnlySmall(GuardContract):
            def guard(self):
                return only_small

            def tools(self):
                return [refund]

            def calls(self):
                return [("refund", {"euros": 20}, "allow"), ("refund", {"euros": 500}, "deny")]

    No handler is run. The tools' own guards, `ask` and middleware are left out: this guard alone judges.
    """

    def guard(self) -> Guard:
        """Make a new guard, in the same way each time."""
        raise DefinitionError(f"{type(self).__name__} needs a method guard(self) that makes your guard")

    def tools(self) -> Iterable[Any]:
        """Return the tools whose calls the guard judges: a toolset, or a list of anything that makes one."""
        raise DefinitionError(f"{type(self).__name__} needs a method tools(self) that gives the tools it judges")

    def calls(self) -> Iterable[ExpectedDecision]:
        """Return calls to judge, each with the expected decision: at least one."""
        raise DefinitionError(
            f"{type(self).__name__} needs a method calls(self) that gives calls, and what is expected"
        )

    def context(self) -> ToolContext[Any]:
        """Return the context of these calls."""
        return ToolContext()

    def world(self) -> Any:
        """Return a comparable value of everything that no guard may change: by default, the environment and the
        process's working directory. Add files, or the contents of `deps`, if the guard could change them.
        """
        return dict(os.environ), os.getcwd()

    # -- answers ------------------------------------------------------------------------------------------------------

    @bounded_test
    async def test_each_call_has_the_expected_decision(self) -> None:
        runner = self._runner()
        for name, arguments, expected in self._calls():
            decision = await runner.decide(_make_call(name, arguments), self.context())
            assert decision.kind == expected, f"{name}({arguments!r}) is to be {expected!r}, and is {decision!r}"

    @bounded_test
    async def test_no_call_and_no_context_makes_it_raise(self) -> None:
        guard, given = self.guard(), self.context()
        known = given.replace(session="a session", principal="a principal", metadata={"key": "value"})
        nobody = given.replace(session=None, principal=None, metadata={})
        for tool, arguments in self._try_arguments():
            for context in (given, known, nobody):
                answers: list[object] = []
                record_answer = tool.replace(guards=[_watch_guard(guard, tool, answers)])
                await Runner([record_answer]).decide(_make_call(tool.name, arguments), context)
                wrong = [one for one in answers if not _is_verdict(one)]
                assert not wrong, f"of {tool.name}({arguments!r}) in {context!r} it says {wrong!r}"

    @bounded_test
    async def test_the_same_call_has_the_same_decision(self) -> None:
        calls = [_make_call(tool.name, arguments) for tool, arguments in self._try_arguments()]
        runner = self._runner()
        first = [await runner.decide(call, self.context()) for call in calls]
        again = [await runner.decide(call, self.context()) for call in calls]
        backwards = [await runner.decide(call, self.context()) for call in calls[::-1]][::-1]
        new = [await self._runner().decide(call, self.context()) for call in calls]
        others = {"once more": again, "in another order": backwards, "by a new guard": new}
        for asked, decisions in others.items():
            for call, one, other in zip(calls, first, decisions, strict=True):
                assert one == other, f"{call!r} is {one!r}, and asked {asked} {other!r}"

    @bounded_test
    async def test_it_changes_nothing(self) -> None:
        before = self.world()
        for tool, arguments in self._try_arguments():
            await self._decide(tool.name, arguments)
            assert self.world() == before, f"judging {tool.name}({arguments!r}) changed what world() gives"

    @bounded_test
    async def test_deciding_runs_nothing_and_predicts_the_call(self) -> None:
        for tool, arguments in self._try_arguments():
            seen: list[Event] = []
            runner, call = self._runner(observers=[seen.append]), _make_call(tool.name, arguments)
            decision = await runner.decide(call, self.context())
            assert not seen, f"judging {call!r} made calls: {[event.kind for event in seen]}"
            result = await runner.run(call, self.context())
            started = [event for event in seen if event.kind == "tool:started"]
            assert len(started) == (decision.kind == "allow"), (
                f"{call!r} is {decision!r}, and {len(started)} calls ran: {result.text}"
            )

    # -- changed arguments --------------------------------------------------------------------------------------------

    @bounded_test
    async def test_arguments_changed_by_another_guard_are_judged(self) -> None:
        for name, arguments, expected in self._calls():
            for start in self._list_other_arguments(name, arguments):
                orders: list[list[Guard]] = [[_make_changing_guard(name, arguments), self.guard()]]
                if (await self._decide(name, start)).kind != "deny":
                    orders.append([self.guard(), _make_changing_guard(name, arguments)])
                for guards in orders:
                    decision = await self._decide(name, start, guards)
                    assert decision.kind == expected, (
                        f"{name}({start!r}) that another guard changes to {arguments!r} is to be {expected!r}, "
                        f"and is {decision!r}"
                    )

    @bounded_test
    async def test_repaired_arguments_are_judged(self) -> None:
        for name, arguments, expected in self._calls():
            for text in _written_texts(arguments):
                call = ToolCall("call", name, text)
                result = await self._runner().run(call, self.context())
                if result.status == "invalid":  # it cannot be repaired
                    continue
                decision = await self._runner().decide(call, self.context())
                assert decision.kind == expected, (
                    f"{name} with the text {text!r} is to be {expected!r}, and is {decision!r}"
                )

    @bounded_test
    async def test_edited_arguments_are_judged(self) -> None:
        """Without another call of the same tool that is allowed or asked about, there is nothing to edit."""
        edits = 0
        for name, arguments, expected in self._calls():
            first_decision = await self._decide(name, arguments)
            edited = thaw(first_decision.arguments) if first_decision.arguments else dict(arguments)
            for start in self._list_other_arguments(name, arguments):
                if (await self._decide(name, start)).kind == "deny":
                    continue
                edits += 1
                runner = self._runner(
                    guards=[self.guard(), _ask_always], approve=lambda *_, edited=edited: allow(edited)
                )
                result = await runner.run(_make_call(name, start), self.context())
                assert bool(result.executed) == (expected != "deny"), (
                    f"{name}({start!r}) that a person changes to {edited!r} is to be {expected!r}, and is "
                    f"{result.status}: {result.text}"
                )
        if not edits:
            raise SkipTest("give two calls of one tool in calls(self), at least one of which is not denied")

    @bounded_test
    async def test_its_own_change_settles(self) -> None:
        for tool, arguments in self._try_arguments():
            decision = await self._decide(tool.name, arguments)
            assert "kept changing the arguments" not in decision.reason, f"{tool.name}({arguments!r}): {decision!r}"
            if decision.arguments is None:
                continue
            again = await self._decide(tool.name, decision.arguments)
            assert again.kind == "allow" and again.arguments is None, (
                f"it makes {decision.arguments!r} of {arguments!r}, and judges that otherwise: {again!r}"
            )

    # -- claims -------------------------------------------------------------------------------------------------------

    @bounded_test
    async def test_it_never_asks_about_a_tool_that_its_asks_excludes(self) -> None:
        asks: Any = getattr(self.guard(), "asks", True)
        assert isinstance(asks, bool) or callable(asks), f"asks is a bool or a function of a tool, not {asks!r}"
        for tool, arguments in self._try_arguments():
            if asks(tool) if callable(asks) else asks:
                continue
            decision = await self._decide(tool.name, arguments)
            assert decision.kind != "ask", f"its asks says never for {tool.name}, and {arguments!r} is {decision!r}"

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _calls(self) -> list[ExpectedDecision]:
        calls = list(self.calls())
        if not calls or any(expected not in _DECISION_KINDS for _, _, expected in calls):
            raise DefinitionError('calls(self) gives (name, arguments, "allow" | "ask" | "deny"), at least one')
        return calls

    def _list_other_arguments(self, name: str, arguments: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the arguments of the other calls of the same tool."""
        yield from (one for other, one, _ in self._calls() if other == name and one != arguments)

    def _try_arguments(self) -> Iterator[tuple[Tool, Mapping[str, Any]]]:
        """Yield the arguments of the calls, and others that fit the tools' input schemas."""
        tools = to_toolset(self.tools())
        yield from ((tools.get(name), arguments) for name, arguments, _ in self._calls())
        for tool in tools:
            with suppress(DefinitionError):  # for some schemas none are made up
                yield from ((tool, arguments) for arguments in generate_arguments(tool))

    def _runner(
        self,
        *,
        guards: Iterable[Guard] | None = None,
        approve: Approver | None = None,
        observers: Iterable[Observer] = (),
    ) -> Runner:
        given = [self.guard()] if guards is None else list(guards)
        halves: list[Any] = [
            one for one in given if callable(one) and hasattr(one, "check") and hasattr(one, "check_runner")
        ]
        return Runner(self._tools(), guards=given, approve=approve, observers=[*observers, *halves])

    def _tools(self) -> Toolset:
        return to_toolset(self.tools()).map(_strip_tool)

    async def _decide(self, name: str, arguments: Mapping[str, Any], guards: Iterable[Guard] | None = None) -> Decision:
        return await self._runner(guards=guards).decide(_make_call(name, arguments), self.context())


def _strip_tool(tool: Tool) -> Tool:
    """Return the tool without guards, middleware or `ask` of its own, and with a handler that does nothing."""
    return replace_handler(tool, lambda values, context: None).replace(guards=(), ask=False, around=(), inside=())


def _make_call(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    return ToolCall("call", name, arguments)


def _watch_guard(guard: Guard, tool: Tool, answers: list[object]) -> GuardFunction:
    """Return the guard, and record its answers and errors in `answers`."""
    function = guard_function(guard, tool)

    async def record_answer(call: ToolCall, context: ToolContext[Any]) -> Any:
        try:
            verdict: Any = function(call, context)
            if not isinstance(verdict, Decision | Mapping) and isawaitable(verdict):
                verdict = await verdict
        except Exception as error:
            answers.append(error)
            raise
        answers.append(verdict)
        return verdict

    return record_answer


def _is_verdict(one: object) -> bool:
    """Return whether a guard may answer or raise it. A `PermissionError` of a system call is a fault."""
    says_no = isinstance(one, GuardError) or (isinstance(one, PermissionError) and one.errno is None)
    return one is None or says_no or isinstance(one, Decision | Mapping)


def _make_changing_guard(name: str, arguments: Mapping[str, Any]) -> Guard:
    """Return a guard that changes the arguments of the first call of a tool to these."""
    done: list[bool] = []

    def changing(call: ToolCall, context: ToolContext[Any]) -> Decision | None:
        if done or call.name != name:
            return None
        done.append(True)
        return allow(arguments)

    return changing


def _ask_always(call: ToolCall, context: ToolContext[Any]) -> Decision:
    return ask("is that right?")


def _written_texts(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield the arguments as models may write them: also with a superfluous comma, and with numbers as texts."""
    text = json.dumps(arguments, indent=1)
    yield from (text, f"{text[:-1]},}}" if arguments else text)
    scalars = {key: json.dumps(value) for key, value in arguments.items() if isinstance(value, bool | int | float)}
    yield json.dumps({**arguments, **scalars})
