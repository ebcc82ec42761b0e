"""`MiddlewareContract`: tests of the promises of every middleware, to run on your own."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal

from ferrule.definition.decorator import build_tool
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, ToolError
from ferrule.runner import Runner
from ferrule.scheduling.clock import Clock
from ferrule.testing.bounded import SECONDS, bounded_test, in_time
from ferrule.types import Middleware, Next
from ferrule.values.call import ToolCall
from ferrule.values.content import Text
from ferrule.values.context import ToolContext
from ferrule.values.decision import allow
from ferrule.values.frozen import thaw
from ferrule.values.input import InputRequired
from ferrule.values.result import ToolResult

_NAMES = ("look_up", "set_value")
"""A tool that only reads, and one that changes something and may be repeated: some middleware distinguishes them."""
_KEY_AND_COUNT = {
    "type": "object",
    "properties": {"key": {"type": "string"}, "count": {"type": "integer", "default": 1}},
}
_DAY = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}
_MANY = 50
_OCCASIONS = 200

_Behaviour = Callable[[Mapping[str, Any], ToolContext[Any]], Awaitable[Any]]
"""The behaviour of a handler of the kit."""


class MiddlewareContract:
    """Tests of the promises of every middleware. Derive a class, and pytest runs them. See
    docs/contracts.md#a-middleware.

        class TestStamped(MiddlewareContract):
            place = "around"

            def middleware(self):
                return stamped

    The middleware wraps calls of two tools of the kit, one of which only reads. No test waits for a pause that the
    middleware makes by the runner's clock.

    Attributes:
        place: The place of the middleware: `"around"` or `"inside"`.
        may_answer: Whether it answers some calls by itself, as a cache or a limit does.
        may_repeat: Whether it may run a handler again, as a retry does.
        changes_text: Whether it changes the text for the model, as `limit_output` does.
    """

    place: Literal["around", "inside"] = "inside"
    may_answer: bool = False
    may_repeat: bool = False
    changes_text: bool = False

    def middleware(self) -> Middleware:
        """Make a new middleware, in the same way each time."""
        raise DefinitionError(f"{type(self).__name__} needs a method middleware(self) that makes your middleware")

    def context(self) -> ToolContext[Any]:
        """Return the context of the calls."""
        return ToolContext(session="a session", principal="a principal", metadata={"key": "value"})

    # -- results ------------------------------------------------------------------------------------------------------

    @bounded_test
    async def test_a_success_passes(self) -> None:
        made: dict[str, Any] = {"values": [1, 0.5, None, "text", {"key": []}]}
        content = [Text("one"), Text("two")]

        async def gives(arguments: Mapping[str, Any], context: ToolContext[Any]) -> Any:
            return ToolResult(made, metadata={"unit": "m"}, content=content if arguments["count"] > 1 else None)

        await self._compare(gives)

    @bounded_test
    async def test_a_failure_passes(self) -> None:
        errors = (ToolError("there is none; ask for another"), ValueError("no"), RuntimeError("secret"), KeyError(1))
        for error in errors:

            async def fails(arguments: Mapping[str, Any], context: ToolContext[Any], error: Exception = error) -> Any:
                raise error

            await self._compare(fails)

        async def says_so(arguments: Mapping[str, Any], context: ToolContext[Any]) -> Any:
            return ToolResult({"part": 1}, error="not all of it", metadata={"unit": "m"})

        await self._compare(says_so)

    @bounded_test
    async def test_a_suspension_passes_and_can_be_resumed(self) -> None:
        async def asks(arguments: Mapping[str, Any], context: ToolContext[Any]) -> Any:
            if context.answer is None:
                return InputRequired("Which day?", _DAY, state={"price": 80})
            return [context.answer.value["day"], context.answer.state["price"]]

        for name in _NAMES:
            runner = self._runner(asks, approve=_not_now)
            asked = await runner.run(_make_call(name), self.context())
            assert asked.status == "suspended", f"{name} asks, and is {_outcome_text(asked)}"
            result = await runner.resume(asked.record(), allow({"day": "friday"}))
            assert result.output == ["friday", 80], f"{name} was answered, and is {_outcome_text(result)}"

    @bounded_test
    async def test_an_exception_of_the_next_middleware_passes(self) -> None:
        error = RuntimeError("of another middleware")

        async def raise_error(call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
            raise error

        for name in _NAMES:
            ends: list[str] = []
            runner = self._runner(_return_key, before=[_note_ends(ends)], after=[raise_error])
            result = await runner.run(_make_call(name), self.context())
            assert result.exception is error and ends == ["RuntimeError"], (
                f"what follows raised {error!r}, it made {ends[0]} of it, and the call is {_outcome_text(result)}"
            )

    # -- handler ------------------------------------------------------------------------------------------------------

    @bounded_test
    async def test_the_handler_gets_the_judged_arguments_and_the_context(self) -> None:
        got: list[Any] = []

        async def notes(arguments: Mapping[str, Any], context: ToolContext[Any]) -> Any:
            got.append((thaw(arguments), context.session, context.principal, thaw(context.metadata), context.deps))
            return "noted"

        given = self.context()
        same = given.session, given.principal, thaw(given.metadata), given.deps
        for name in _NAMES:
            for key in ("a", " B ", "é 文 🙂"):
                got.clear()
                await self._runner(notes).run(ToolCall("call", name, {"key": key}), given)
                wanted = ({"key": key, "count": 1}, *same)
                assert got and all(one == wanted for one in got), f"{wanted!r} was sent, {got!r} came"

    @bounded_test
    async def test_the_handler_runs_once(self) -> None:
        for name in _NAMES:
            for handler in (_return_key, _fails):
                runs: list[str] = []
                await self._runner(_count_runs(runs, handler)).run(_make_call(name), self.context())
                most = _OCCASIONS if self.may_repeat else 1
                assert 1 <= len(runs) <= most, f"the handler of {name} ran {len(runs)} times, at most {most}"

    @bounded_test
    async def test_an_answer_without_a_run_is_marked_as_not_executed(self) -> None:
        answers = 0
        for name in _NAMES:
            for handler in (_return_key, _fails):
                runs: list[str] = []
                runner = self._runner(_count_runs(runs, handler))
                for _ in range(_OCCASIONS):
                    runs.clear()
                    result = await runner.run(_make_call(name), self.context())
                    if not runs:
                        answers += 1
                        assert result.executed is False, f"it ran nothing, and says executed={result.executed!r}"
        assert self.may_answer or not answers, f"it answered {answers} calls itself; is may_answer = True meant?"
        assert answers or not self.may_answer, f"may_answer is True, and each of {_OCCASIONS} equal calls ran"

    # -- many calls ---------------------------------------------------------------------------------------------------

    @bounded_test
    async def test_concurrent_calls_do_not_mix(self) -> None:
        for name in _NAMES:
            await self._check_own_results(self._runner(_return_key), name)

    @bounded_test
    async def test_results_are_not_shared_between_callers(self) -> None:
        """The same call comes from another principal and from another session."""
        for name in _NAMES:
            runner = self._runner(_return_caller)
            for principal, session in (("ada", "s1"), ("bob", "s1"), ("bob", "s2")):
                context = self.context().replace(principal=principal, session=session)
                result = await runner.run(ToolCall("call", name, {"key": "a"}), context)
                limited = self.may_answer and result.status == "limited"
                wanted = f"{principal} in {session}"
                assert limited or result.output == wanted, f"{wanted} got {_outcome_text(result)} of {name}"

    def test_it_works_for_two_runners_in_two_loops(self) -> None:
        for name in _NAMES:
            middleware = self.middleware()
            for _ in range(2):
                in_time(self._cancel_running_call(middleware, name))
                in_time(self._check_own_results(self._runner(_return_key, middleware=middleware), name))

    def test_an_ended_call_is_not_kept_in_memory(self) -> None:
        """A middleware that may answer by itself may keep its answers."""
        tracked: list[weakref.ref[_Large]] = []

        async def adds(call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
            result = await next(call, context)
            return result.replace(metadata={"large": _make_tracked(tracked)})

        async def run_calls(runner: Runner) -> None:
            for name in _NAMES:
                for key in ("a", "b"):
                    context = self.context().replace(secrets={"large": _make_tracked(tracked)})
                    await runner.run(ToolCall("call", name, {"key": key}), context)

        if self.may_answer:
            return
        middleware = self.middleware()
        in_time(run_calls(self._runner(_return_key, middleware=middleware, after=[adds])))
        gc.collect()
        left = sum(one() is not None for one in tracked)
        assert not left, f"of {len(tracked)} results and contexts it keeps {left} ({middleware!r})"

    # -- stopping -----------------------------------------------------------------------------------------------------

    def test_a_cancellation_passes_and_the_call_ends(self) -> None:
        for name in _NAMES:
            ends = in_time(self._cancel_running_call(self.middleware(), name))
            assert ends == ["CancelledError"], f"a call of {name} was cancelled, and it made {ends} of that"

    # -- helpers ------------------------------------------------------------------------------------------------------

    async def _cancel_running_call(self, middleware: Middleware, name: str) -> list[str]:
        """Return how the middleware ends a call that is cancelled while its handler waits."""
        started, ends = asyncio.Event(), list[str]()

        async def waits(arguments: Mapping[str, Any], context: ToolContext[Any]) -> Any:
            started.set()
            await asyncio.Event().wait()

        runner = self._runner(waits, middleware=middleware, before=[_note_ends(ends)])
        running = asyncio.create_task(runner.run(_make_call(name), self.context()))
        await started.wait()
        running.cancel()
        done, _ = await asyncio.wait([running], timeout=SECONDS / 6)
        assert done, f"a call of {name} was cancelled, and goes on"
        return ends

    async def _check_own_results(self, runner: Runner, name: str) -> None:
        keys = [f"key {number // 2}" for number in range(_MANY)]  # each twice
        calls = (runner.run(ToolCall(f"call {at}", name, {"key": key}), self.context()) for at, key in enumerate(keys))
        for key, result in zip(keys, await asyncio.gather(*calls), strict=True):
            limited = self.may_answer and result.status == "limited"
            assert limited or result.output == key, f"the call of {key!r} got {_outcome_text(result)} beside others"

    async def _compare(self, handler: _Behaviour) -> None:
        """Check that calls have the same outcome with the middleware as without."""
        for name in _NAMES:
            for count in (1, 2):
                call = ToolCall("call", name, {"key": "a", "count": count})
                bare = await Runner(_kit_tools(handler)).run(call, self.context())
                result = await self._runner(handler).run(call, self.context())
                one, other = self._facts(bare), self._facts(result)
                assert one == other, f"without it a call of {name} is {one!r}, with it {other!r}"
                lost = bare.metadata.keys() - result.metadata.keys()
                assert not lost, f"the metadata {lost!r} of {name} are lost"

    def _facts(self, result: ToolResult) -> dict[str, Any]:
        read = {} if self.changes_text else {"text": result.text, "error": result.error, "content": result.content}
        same = {"status": result.status, "executed": result.executed, "exception": result.exception}
        return {**same, **read, "output": None if self.changes_text else result.output}

    def _runner(
        self,
        handler: _Behaviour,
        *,
        middleware: Middleware | None = None,
        before: Iterable[Middleware] = (),
        after: Iterable[Middleware] = (),
        approve: Any = None,
    ) -> Runner:
        chain = [*before, self.middleware() if middleware is None else middleware, *after]
        inside = self.place == "inside"
        return Runner(
            _kit_tools(handler),
            around=[] if inside else chain,
            inside=chain if inside else [],
            approve=approve,
            clock=_NeverWaits(),
        )


class _NeverWaits(Clock):
    """A clock on which every pause is over at once."""

    def __init__(self) -> None:
        self._now = 0.0

    def time(self) -> float:
        return self._now

    async def sleep(self, seconds: float, /) -> None:
        self._now += max(seconds, 0.0)
        await asyncio.sleep(0)


class _Large:
    """An object that no middleware may keep."""


def _make_tracked(tracked: list[weakref.ref[_Large]]) -> _Large:
    made = _Large()
    tracked.append(weakref.ref(made))
    return made


def _kit_tools(handler: _Behaviour) -> list[Tool]:
    async def execute(arguments: Mapping[str, Any], context: ToolContext[Any]) -> Any:
        return await handler(arguments, context)

    reads, changes = (build_tool({"name": name, "input_schema": _KEY_AND_COUNT}, execute) for name in _NAMES)
    return [reads.replace(read_only=True), changes.replace(idempotent=True)]


def _make_call(name: str) -> ToolCall:
    return ToolCall("call", name, {"key": "a"})


async def _return_key(arguments: Mapping[str, Any], context: ToolContext[Any]) -> Any:
    await asyncio.sleep(0)
    return arguments["key"]


async def _return_caller(arguments: Mapping[str, Any], context: ToolContext[Any]) -> Any:
    return f"{context.principal} in {context.session}"


async def _fails(arguments: Mapping[str, Any], context: ToolContext[Any]) -> Any:
    raise ToolError("it cannot be done")


def _count_runs(runs: list[str], handler: _Behaviour) -> _Behaviour:
    async def count_run(arguments: Mapping[str, Any], context: ToolContext[Any]) -> Any:
        runs.append(arguments["key"])
        return await handler(arguments, context)

    return count_run


def _note_ends(ends: list[str]) -> Middleware:
    """Return a middleware that records how the wrapped one ends."""

    async def note_end(call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
        try:
            result = await next(call, context)
        except BaseException as error:
            ends.append(type(error).__name__)
            raise
        ends.append(f"a result that is {result.status}")
        return result

    return note_end


def _not_now(call: ToolCall, decision: Any, context: ToolContext[Any]) -> Any:
    return decision


def _outcome_text(result: ToolResult) -> str:
    return f"{result.status}: {result.text!r:.200}"
