"""Each test of `MiddlewareContract` passes for a right middleware and fails for a wrong one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import pytest
from kits import expect_kit_failure, run_kit_test

from ferrule import DefinitionError, Middleware, ToolCall, ToolContext, ToolResult
from ferrule.testing import MiddlewareContract
from ferrule.types import Next


async def right(call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
    result = await next(call, context)
    return result.replace(metadata={**result.metadata, "seen": True})


def changing(change: Callable[[ToolResult], ToolResult]) -> Middleware:
    """A middleware that changes results."""

    async def changed(call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
        return change(await next(call, context))

    return changed


gives_the_text_alone = changing(lambda result: ToolResult(result.text) if result.error is None else result)
loses_metadata = changing(lambda result: result.replace(metadata={"seen": True}))
makes_successes_of_errors = changing(
    lambda result: result.replace(status="ok", error=None) if result.status == "failed" else result
)
ends_what_is_suspended = changing(
    lambda result: ToolResult(error="nobody is here") if result.status == "suspended" else result
)


async def makes_results_of_exceptions(call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
    try:
        return await next(call, context)
    except Exception as error:
        return ToolResult(error=str(error), exception=error)


async def strips(call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
    changed = {**call.arguments, "key": call.arguments["key"].strip()}
    return await next(call.replace(arguments=changed), context)


class RunsTwice:
    async def __call__(self, call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
        await next(call, context)
        return await next(call, context)


class Answers:
    """It keeps what it gave, as one that was run."""

    def __init__(self, executed: bool = True) -> None:
        self.kept: dict[str, ToolResult] = {}
        self.executed = executed

    async def __call__(self, call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
        key = f"{call.name} {call.raw}"
        if key in self.kept:
            return ToolResult(self.kept[key].output, executed=self.executed)
        self.kept[key] = await next(call, context)
        return self.kept[key]


class Mixes:
    async def __call__(self, call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
        self.result = await next(call, context)
        await asyncio.sleep(0)
        return self.result


class OfOneLoop:
    def __init__(self) -> None:
        self.one_at_a_time = asyncio.Lock()

    async def __call__(self, call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
        async with self.one_at_a_time:
            return await next(call, context)


class KeepsTheLast:
    async def __call__(self, call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
        self.last = await next(call, context)
        return self.last


async def answers_when_it_is_cancelled(call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
    try:
        return await next(call, context)
    except asyncio.CancelledError:
        return ToolResult(error="it was cancelled")


class KnowsNobody:
    """A cache for all, whoever asks."""

    def __init__(self) -> None:
        self._kept: dict[str, ToolResult] = {}

    async def __call__(self, call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
        if call.name not in self._kept:
            self._kept[call.name] = await next(call, context)
            return self._kept[call.name]
        return self._kept[call.name].replace(executed=False)


WRONG: list[tuple[str, Callable[[], Any], str]] = [
    ("a_success_passes", lambda: gives_the_text_alone, "with it {"),
    ("a_success_passes", lambda: loses_metadata, "the metadata {'unit'} of look_up are lost"),
    ("a_failure_passes", lambda: makes_successes_of_errors, "with it {'status': 'ok'"),
    ("a_suspension_passes_and_can_be_resumed", lambda: ends_what_is_suspended, "asks, and is failed"),
    ("an_exception_of_the_next_middleware_passes", lambda: makes_results_of_exceptions, "it made a result that is"),
    ("the_handler_gets_the_judged_arguments_and_the_context", lambda: strips, "was sent, ["),
    ("the_handler_runs_once", RunsTwice, "ran 2 times, at most 1"),
    ("an_answer_without_a_run_is_marked_as_not_executed", Answers, "says executed=True"),
    ("concurrent_calls_do_not_mix", Mixes, "beside others"),
    ("results_are_not_shared_between_callers", KnowsNobody, "bob in s1 got ok: 'ada in s1'"),
    ("it_works_for_two_runners_in_two_loops", OfOneLoop, "beside others"),
    ("an_ended_call_is_not_kept_in_memory", KeepsTheLast, "it keeps 1"),
    ("a_cancellation_passes_and_the_call_ends", lambda: answers_when_it_is_cancelled, "a result that is failed"),
]
"""A test of the kit, a function that makes a wrong middleware, and the text of the failure."""


def contract_of(make: Callable[[], Middleware], at: Literal["around", "inside"], **said: Any) -> MiddlewareContract:
    class Contract(MiddlewareContract):
        place = at

        def middleware(self) -> Middleware:
            return make()

    vars(contract := Contract()).update(said)
    return contract


def test_each_test_of_the_contract_has_a_middleware_that_fails() -> None:
    tests = {name.removeprefix("test_") for name in vars(MiddlewareContract) if name.startswith("test_")}
    assert tests == {name for name, _, _ in WRONG}


@pytest.mark.parametrize(("name", "make", "said"), WRONG)
def test_a_wrong_middleware_fails(
    name: str, make: Callable[[], Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("around", "inside"):
        run_kit_test(contract_of(lambda: right, place), name)
    monkeypatch.setattr("ferrule.testing.middleware_contract.SECONDS", 0.6)
    expect_kit_failure(contract_of(make, "inside"), name, said)


def test_may_answer_requires_answers_marked_as_not_executed() -> None:
    name = "an_answer_without_a_run_is_marked_as_not_executed"
    honest: Callable[[], Middleware] = lambda: Answers(executed=False)  # noqa: E731
    run_kit_test(contract_of(honest, "inside", may_answer=True), name)
    for make, wrong in ((Answers, "says executed=True"), (lambda: right, "each of 200 equal calls ran")):
        expect_kit_failure(contract_of(make, "inside", may_answer=True), name, wrong)
    expect_kit_failure(contract_of(honest, "inside"), name, "is may_answer = True meant")


def test_a_declared_behaviour_passes() -> None:
    contract_of(RunsTwice, "inside", may_repeat=True).test_the_handler_runs_once()
    contract_of(lambda: gives_the_text_alone, "around", changes_text=True).test_a_failure_passes()
    contract_of(KeepsTheLast, "inside", may_answer=True).test_an_ended_call_is_not_kept_in_memory()


def test_a_missing_hook_is_named() -> None:
    with pytest.raises(DefinitionError, match=r"needs a method middleware\(self\)"):
        MiddlewareContract().test_a_success_passes()
