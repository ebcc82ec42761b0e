"""Runners, tools and the loop check the signatures that they are given."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from ferrule import DefinitionError, Event, Runner, ToolCall, tool
from ferrule.guards import ask_before_changes
from ferrule.middleware import before, redact, retry, sanitize, trace, untrusted


@tool(read_only=True)
async def double(n: int) -> int:
    return n * 2


async def no_next(call: Any, context: Any) -> Any: ...


async def sees_events(event: Event) -> None: ...


async def yields_events(event: Event) -> Any:
    yield event


class Middleware:
    async def __call__(self, call: Any, context: Any, next: Any) -> Any:
        return await next(call, context)

    def judge(self, call: Any, context: Any) -> None: ...

    def judge_call(self, call: Any) -> None: ...


def declares_one(*args: Any) -> None: ...


declares_one.__signature__ = inspect.signature(sees_events)  # type: ignore[attr-defined]

AROUND_ONLY: dict[str, Any] = {"untrusted": untrusted, "redact": redact(), "sanitize": sanitize(), "trace": trace()}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"guards": [lambda call: None]}, r"each of guards must be callable with \(call, context\)"),
    ({"guards": [before(lambda a: a)]}, "guards must be callable with"),
    ({"guards": [declares_one]}, "guards must be callable with"),
    ({"guards": [Middleware().judge_call]}, "guards must be callable with"),
    ({"guards": [lambda call, context, *, strict: None]}, "guards must be callable with"),
    ({"around": [no_next]}, r"around must be callable with \(call, context, next\)"),
    ({"inside": [no_next]}, "inside must be callable with"),
    ({"around": [Middleware]}, "around must be"),
    ({"inside": [before(lambda a: a)]}, r"before\(…\) belongs in `around`"),
    *(({"inside": [one]}, rf"{name}\S* belongs in `around`") for name, one in AROUND_ONLY.items()),
    ({"around": [retry()]}, r"retry\(…\) belongs in `inside`"),
    ({"guards": [retry()]}, "guards must be callable with"),
    ({"around": [ask_before_changes]}, "around must be callable with"),
    ({"inside": [retry]}, "inside must be callable with"),
]


class SeesLater:
    async def __call__(self, event: object) -> None: ...


OF_A_RUNNER: list[tuple[dict[str, Any], str]] = [
    ({"observers": [lambda: None]}, "each of observers must be a plain function of the event"),
    ({"observers": [lambda event, call: None]}, "observers must be a plain function of the event"),
    ({"observers": [sees_events]}, "queue.put_nowait"),
    ({"observers": [yields_events]}, "queue.put_nowait"),
    ({"observers": [SeesLater()]}, "queue.put_nowait"),
    ({"approve": lambda call: True}, r"approve must be callable with \(call, decision, context\)"),
    ({"approve": "yes"}, "approve must be callable with"),
]


@pytest.mark.parametrize(("given_", "said"), WRONG + OF_A_RUNNER)
def test_a_wrong_signature_is_refused_by_runner_and_tool(given_: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        Runner([double], **given_)
    with pytest.raises(DefinitionError, match=said):
        (Runner([double]) if (given_, said) in OF_A_RUNNER else double).replace(**given_)


def test_a_method_and_a_parameter_with_a_default_are_accepted() -> None:
    def guard(call: Any, context: Any, more: int = 1, *, strict: bool = False) -> None: ...

    Runner([double], guards=[guard, Middleware().judge], around=[Middleware()])


def test_an_async_observer_or_a_batch_of_no_list_is_refused() -> None:
    runner = Runner([double])
    call = ToolCall("1", "double", {"n": 1})
    for run in (lambda **given: runner.batch([call], **given), lambda **given: runner.run(call, **given)):
        with pytest.raises(DefinitionError, match=r"queue\.put_nowait"):
            run(observers=[sees_events])
    for calls in ("double", call, {"name": "double"}):
        with pytest.raises(DefinitionError, match="a list of calls"):
            runner.batch(calls)  # type: ignore[arg-type]
