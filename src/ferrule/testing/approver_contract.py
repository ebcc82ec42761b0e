"""`ApproverContract`: tests of the promises of every approver, to run on your own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any, Literal, TypeAlias
from unittest import SkipTest

from ferrule.definition.decorator import build_tool
from ferrule.definition.handler import is_async
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.runner import Runner
from ferrule.testing.bounded import SECONDS, bounded_test
from ferrule.types import Approver
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, ask, deny
from ferrule.values.result import ToolResult

ApproverAnswer: TypeAlias = Literal["yes", "no", "later"]
"""An answer of an approver: yes, no, or "not now", which suspends the call. See docs/contracts.md#an-approver."""

_BOUND, _SECRET = "bound-4711-abcd", "secret-4712-efgh"
_MOST_EUROS = 1000
_ENDING = 1.0
"""Seconds in which tasks have to end after a call was cancelled."""
_ODD = ("", "\x1b[2J\x1b]0;title\x07", "line\nline\r", "\u202e\u200b", "é 文 🙂", "x" * 20_000)


class ApproverContract:
    """Tests of the promises of every approver. Derive a class, and pytest runs them. See docs/contracts.md#an-approver.

        class TestDesk(ApproverContract):
            def approver(self):
                self.desk = Desk()
                return self.desk.ask

            async def answer(self, approver, call, yes):
                await self.desk.answer(call.id, yes)

    The calls are of two tools of the kit: `pay(to, euros)` and `log_in(to, euros)`. The second one asks a person for a
    value, a private `token`, and gets none. To leave out a promise that does not apply to an approver, set its name:
    `test_an_edit_is_judged_again = None`.

    Attributes:
        possible_answers: The possible answers. `"later"` suspends the call, and `resume` resumes it.
    """

    possible_answers: tuple[ApproverAnswer, ...] = ("yes", "no")

    def approver(self) -> Approver:
        """Make a new approver, in the loop of its calls."""
        raise DefinitionError(f"{type(self).__name__} needs a method approver(self) that makes your approver")

    async def answer(self, approver: Approver, call: ToolCall, yes: bool) -> None:
        """Have the approver answer this call. The approver was asked about it.

        The method may have to wait until the question is shown. A task of its own answers each of several calls at
        once. Do nothing for an approver that answers by itself.
        """

    async def resume(self, runner: Runner, suspended: ToolResult, yes: bool) -> ToolResult:
        """Resume a suspended call."""
        return await runner.resume(suspended.record(), yes)

    async def edit(self, approver: Approver, call: ToolCall, arguments: Mapping[str, Any]) -> None:
        """Have the approver allow this call with other arguments, as `answer` does, if a person can change them."""
        raise SkipTest("give edit(self, approver, call, arguments): how a person changes the arguments")

    def read_shown_text(self, approver: Approver) -> str:
        """Return the whole text that the approver has shown so far; an empty one if it shows nothing."""
        raise SkipTest("give read_shown_text(self, approver): what it has shown so far, as a text")

    # -- answers ------------------------------------------------------------------------------------------------------

    @bounded_test
    async def test_it_returns_a_decision_or_a_bool(self) -> None:
        for yes in self._answers():
            desk = _Desk(self.approver())
            await self._run_with_answer(desk, desk.call("ada"), yes)
            wrong = [one for one in desk.answers if not isinstance(one, Decision | bool)]
            assert not wrong, f"it gave {desk.answers!r}"

    @bounded_test
    async def test_only_a_yes_runs_the_call(self) -> None:
        for yes in self._answers():
            desk = _Desk(self.approver())
            result = await self._run_with_answer(desk, desk.call("ada"), yes)
            desk.check(result, yes, "ada")

    @bounded_test
    async def test_no_question_makes_it_raise(self) -> None:
        for text in _ODD:
            for yes in self._answers():
                desk = _Desk(self.approver(), reason=text)
                result = await self._run_with_answer(desk, desk.call(text), yes, ToolContext())
                broke = [one for one in desk.answers if isinstance(one, Exception)]
                assert not broke, f"asked about {text!r:.200} it raised {broke!r}"
                desk.check(result, yes, text)

    @bounded_test
    async def test_a_missing_value_is_not_made_up(self) -> None:
        """The question is for a value, `decision.into`, and a yes or a no gives none."""
        for yes in self._answers():
            desk = _Desk(self.approver())
            result = await self._run_with_answer(desk, desk.call("ada", name="log_in"), yes)
            assert result.status == "denied", (
                f"it was asked for a value, given {'a yes' if yes else 'a no'}, and it is {_outcome_text(result)}"
            )

    # -- questions ----------------------------------------------------------------------------------------------------

    @bounded_test
    async def test_bound_and_secret_values_are_not_shown(self) -> None:
        for yes in self._answers():
            desk = _Desk(self.approver(), reason=f"it costs money, by {_SECRET}")
            await self._run_with_answer(desk, desk.call("ada"), yes)
            for what, text in {"says": repr(desk.answers), "shows": self.read_shown_text(desk.approver)}.items():
                for hidden in (_BOUND, _SECRET):
                    assert hidden not in text, f"it {what} {hidden!r}, which is bound or secret: {text!r:.1000}"

    # -- two calls ----------------------------------------------------------------------------------------------------

    @bounded_test
    async def test_two_waiting_calls_each_get_their_own_answer(self) -> None:
        for both in ((True, False), (False, True)):
            answers = [yes if yes in self._answers() else not yes for yes in both]
            desk = _Desk(self.approver())
            answer = zip(("ada", "bob"), answers, strict=True)
            calls = [(to, yes, self._run_with_answer(desk, desk.call(to), yes)) for to, yes in answer]
            results = await asyncio.gather(*(running for _, _, running in calls))
            for (to, yes, _), result in zip(calls, results, strict=True):
                desk.check(result, yes, to)

    @bounded_test
    async def test_a_yes_covers_one_call_only(self) -> None:
        for others in ("bob", "ada"):
            desk = _Desk(self.approver())
            last = self._answers()[-1]
            desk.check(
                await self._run_with_answer(desk, desk.call("ada"), self._answers()[0]), self._answers()[0], "ada"
            )
            desk.paid.clear()
            desk.check(await self._run_with_answer(desk, desk.call(others), last), last, others)

    @bounded_test
    async def test_an_edit_is_judged_again(self) -> None:
        for euros, runs in ((7, True), (_MOST_EUROS + 1, False)):
            desk = _Desk(self.approver())
            call = desk.call("ada")
            running = asyncio.create_task(desk.run(call))
            await desk.wait_for(call, running)
            await self.edit(desk.approver, call, {"to": "eve", "euros": euros})
            result = await running
            assert desk.paid == ([("eve", euros)] if runs else []), (
                f"an edit to {euros} EUR ran {desk.paid!r}, and is {_outcome_text(result)}"
            )

    # -- cancellation -------------------------------------------------------------------------------------------------

    @bounded_test
    async def test_a_cancelled_call_leaves_nothing_waiting(self) -> None:
        for yes in self._answers():
            desk = _Desk(self.approver())
            before, call = asyncio.all_tasks(), desk.call("ada")
            running = asyncio.create_task(desk.run(call))
            await desk.wait_for(call, running)
            if running.done():  # it answers by itself, or has the call suspended
                return
            running.cancel()
            await asyncio.wait([running], timeout=SECONDS / 6)
            assert running.cancelled(), f"its call was cancelled, and is {running!r}"
            left = asyncio.all_tasks() - before
            if left:  # they may be ending
                _, left = await asyncio.wait(left, timeout=_ENDING)
            assert not left, f"after the call was cancelled there are {left!r}"
            result = await self._run_with_answer(desk, desk.call("bob"), yes)
            desk.check(result, yes, "bob")

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _answers(self) -> tuple[bool, ...]:
        """Return the possible answers, yes first."""
        unknown = set(self.possible_answers) - {"yes", "no", "later"}
        if unknown or not self.possible_answers:
            raise DefinitionError(
                f'possible_answers takes some of "yes", "no" and "later", not {self.possible_answers!r}'
            )
        return tuple(yes for yes in (True, False) if {"later", "yes" if yes else "no"} & {*self.possible_answers})

    async def _run_with_answer(
        self, desk: _Desk, call: ToolCall, yes: bool, context: ToolContext[Any] | None = None
    ) -> ToolResult:
        running = asyncio.create_task(desk.run(call, context))
        await desk.wait_for(call, running)
        if not running.done():
            await self.answer(desk.approver, call, yes)
        result = await running
        if result.status == "suspended":
            assert "later" in self.possible_answers, (
                f"it suspends the call, possible_answers is {self.possible_answers!r}"
            )
            return await self.resume(desk.runner, result, yes)
        return result


class _Desk:
    """A runner that asks about its tools, with the answers of its approver."""

    def __init__(self, approver: Approver, reason: str = "it costs money") -> None:
        self.approver = approver
        self.answers: list[object] = []
        self.paid: list[tuple[str, int]] = []
        self._reason = reason
        self._waiting: dict[str, asyncio.Event] = {}
        self._loop = asyncio.get_running_loop()
        pay = self._tool("pay", "api_key").bind(api_key=_BOUND)
        log_in = self._tool("log_in", "token").replace(private=["token"])
        asking = self._make_async_approver() if is_async(approver) else self._ask_approver
        secrets = {"token": _SECRET}
        self.runner = Runner([pay, log_in], guards=[self._judge], approve=asking, secrets=secrets)

    def call(self, to: str, name: str = "pay") -> ToolCall:
        made = ToolCall(f"call {len(self._waiting) + 1}", name, {"to": to, "euros": 5})
        self._waiting[made.id] = asyncio.Event()
        return made

    async def run(self, call: ToolCall, context: ToolContext[Any] | None = None) -> ToolResult:
        return await self.runner.run(call, context or ToolContext(session="a session", principal="ann"))

    async def wait_for(self, call: ToolCall, running: asyncio.Task[ToolResult]) -> None:
        """Wait until the approver is asked about this call, or the call has ended."""
        running.add_done_callback(lambda _: self._waiting[call.id].set())
        await self._waiting[call.id].wait()
        await asyncio.sleep(0)

    def check(self, result: ToolResult, yes: bool, to: str) -> None:
        """Check that the call ended as answered."""
        wanted = "ok" if yes else "denied"
        assert result.status == wanted, f"the answer was {'yes' if yes else 'no'}, and it is {_outcome_text(result)}"
        ran = [one for one in self.paid if one == (to, 5)]
        assert len(ran) == yes, f"the answer was {'yes' if yes else 'no'}, and what ran is {self.paid!r}"

    def _tool(self, name: str, hidden: str) -> Tool:
        properties = {"to": {"type": "string"}, "euros": {"type": "integer"}, hidden: {"type": "string"}}
        schema = {"type": "object", "properties": properties, "required": [*properties]}
        return build_tool({"name": name, "description": "Of the kit.", "input_schema": schema}, self._pay)

    async def _pay(self, arguments: Mapping[str, Any]) -> str:
        self.paid.append((arguments["to"], arguments["euros"]))
        return "paid"

    def _judge(self, call: ToolCall, context: ToolContext[Any]) -> Decision:
        if call.arguments["euros"] > _MOST_EUROS:
            return deny("that is too much")
        return ask(self._reason, into="token" if call.name == "log_in" else None)

    def _mark_asked(self, call: ToolCall) -> None:
        self._loop.call_soon_threadsafe(self._waiting[call.id].set)

    def _make_async_approver(self) -> Callable[[ToolCall, Decision, ToolContext[Any]], Awaitable[Any]]:
        async def ask_approver(call: ToolCall, decision: Decision, context: ToolContext[Any]) -> Any:
            answer = self._ask_approver(call, decision, context)
            return await answer if isawaitable(answer) else answer

        return ask_approver

    def _ask_approver(self, call: ToolCall, decision: Decision, context: ToolContext[Any]) -> Any:
        self._mark_asked(call)
        try:
            answer: Any = self.approver(call, decision, context)
        except Exception as error:
            self.answers.append(error)
            raise
        if isawaitable(answer):
            return self._note_answer(answer)
        self.answers.append(answer)
        return answer

    async def _note_answer(self, answer: Awaitable[Any]) -> Any:
        try:
            answer = await answer
        except Exception as error:
            self.answers.append(error)
            raise
        self.answers.append(answer)
        return answer


def _outcome_text(result: ToolResult) -> str:
    return f"{result.status}: {result.text!r:.200}"
