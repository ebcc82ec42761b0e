"""Runners, tools and the loop check the signatures that they are given."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ferrule import DefinitionError, Event, Runner, ToolCall, tool
from ferrule.definition.options import check_callable
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


AROUND_ONLY: dict[str, Any] = {"untrusted": untrusted, "redact": redact(), "sanitize": sanitize(), "trace": trace()}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"guards": [lambda call: None]}, r"each of guards must be callable with \(call, context\)"),
    ({"guards": [before(lambda a: a)]}, "guards must be callable with"),
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


def test_an_async_observer_or_a_batch_of_no_list_is_refused() -> None:
    runner = Runner([double])
    call = ToolCall("1", "double", {"n": 1})
    for run in (lambda **given: runner.batch([call], **given), lambda **given: runner.run(call, **given)):
        with pytest.raises(DefinitionError, match=r"queue\.put_nowait"):
            run(observers=[sees_events])
    for calls in ("double", call, {"name": "double"}):
        with pytest.raises(DefinitionError, match="a list of calls"):
            runner.batch(calls)  # type: ignore[arg-type]


PARAMETERS = st.lists(
    st.sampled_from(["{}", "{}=None", "/", "*args", "*", "{}_only", "{}_only=None", "**kwargs"]), max_size=5
)


@example([], "(event)", "declared")
@given(
    PARAMETERS,
    st.sampled_from(["(call, context)", "(call, context, next)", "(event)"]),
    st.sampled_from(["plain", "object", "method", "partial", "partial by name", "class", "wrapped", "declared"]),
)
def test_exactly_callable_signatures_are_accepted(parts: list[str], form: str, kind: str) -> None:
    written = ", ".join(part.format(f"p{number}") for number, part in enumerate(parts))
    try:
        plain: Callable[..., Any] = eval(f"lambda {written}: 1")
        method: Callable[..., Any] = eval(f"lambda self{', ' if written else ''}{written}: 1")
    except SyntaxError:
        return
    made = type("Made", (), {"__call__": method, "method": method})
    declared: Any = lambda *args: plain(*args)  # noqa: E731
    declared.__signature__ = inspect.signature(plain)
    function: Any = {
        "plain": plain,
        "object": made(),
        "method": made().method,
        "partial": functools.partial(plain, 1),
        "partial by name": functools.partial(plain, p0=1),
        "class": type("Class", (), {"__init__": eval(f"lambda self, {written}: None")}) if "/" not in parts else plain,
        "wrapped": functools.wraps(lambda call: 1)(plain),
        "declared": declared,
    }[kind]
    try:
        inspect.signature(function, follow_wrapped=False)
    except ValueError:  # a partial of a function that takes less than it holds
        return
    try:
        function(*form.split(","))
        works = True
    except TypeError:
        works = False
    try:
        check_callable(form)("it", function)
        let_through = True
    except DefinitionError:
        let_through = False
    assert let_through is works
