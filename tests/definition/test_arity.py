"""What a runner, a tool and the loop are given is looked at once, where it is given."""

from __future__ import annotations

import functools
import inspect
import queue
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import DefinitionError, Event, Runner, ToolCall, loop, middleware, tool
from ferrule.definition.options import check_callable
from ferrule.guards import ask_before_changes
from ferrule.middleware import after, before, cache, retry, untrusted
from ferrule.models import Scripted


@tool(read_only=True)
async def double(n: int) -> int:
    return n * 2


async def no_next(call: Any, context: Any) -> Any: ...


async def sees_events(event: Event) -> None: ...


async def yields_events(event: Event) -> Any:
    yield event


class Guard:
    def __call__(self, call: Any) -> None: ...


class Middleware:
    async def __call__(self, call: Any, context: Any, next: Any) -> Any:
        return await next(call, context)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"guards": [lambda call: None]}, r"each of guards must be callable with \(call, context\)"),
    ({"guards": [Guard()]}, "guards must be callable with"),
    ({"guards": [Middleware().__call__]}, "guards must be callable with"),
    ({"guards": [functools.partial(lambda call, context: None, context=1)]}, "guards must be callable with"),
    ({"guards": [before(lambda a: a)]}, "guards must be callable with"),
    ({"around": [no_next]}, r"around must be callable with \(call, context, next\)"),
    ({"inside": [no_next]}, "inside must be callable with"),
    ({"around": [Middleware]}, "around must be"),
    ({"inside": [lambda call, context, next, more: None]}, "inside must be callable with"),
    ({"inside": [before(lambda a: a)]}, r"before\(…\) belongs in `around`"),
    ({"inside": [before(lambda a: a), Middleware()]}, r"before\(…\) belongs in `around`"),
    ({"inside": [untrusted]}, "untrusted belongs in `around`"),
    ({"around": [retry()]}, r"retry\(…\) belongs in `inside`"),
    ({"around": [Middleware(), cache()]}, r"cache\(…\) belongs in `inside`"),
    ({"guards": [retry()]}, "guards must be callable with"),
    ({"around": [ask_before_changes]}, "around must be callable with"),
    ({"inside": [retry]}, "inside must be callable with"),
]


class SeesTwo:
    def __call__(self, event: object, call: object) -> None: ...


class SeesLater:
    async def __call__(self, event: object) -> None: ...


OF_A_RUNNER: list[tuple[dict[str, Any], str]] = [
    ({"observers": [lambda: None]}, "each of observers must be a plain function of the event"),
    ({"observers": [lambda event, call: None]}, "observers must be a plain function of the event"),
    ({"observers": [sees_events]}, "queue.put_nowait"),
    ({"observers": [functools.partial(sees_events)]}, "queue.put_nowait"),
    ({"observers": [yields_events]}, "queue.put_nowait"),
    ({"observers": [SeesTwo()]}, "observers must be a plain function of the event"),
    ({"observers": [SeesLater()]}, "queue.put_nowait"),
    ({"approve": lambda call: True}, r"approve must be callable with \(call, decision, context\)"),
    ({"approve": "yes"}, "approve must be callable with"),
]


@pytest.mark.parametrize(("given_", "said"), WRONG + OF_A_RUNNER)
def test_what_cannot_be_called_is_refused_by_the_runner(given_: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        Runner([double], **given_)


@pytest.mark.parametrize(("given_", "said"), WRONG)
def test_what_cannot_be_called_is_refused_by_the_tool(given_: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        double.replace(**given_)


@pytest.mark.parametrize(("given_", "said"), OF_A_RUNNER)
def test_what_cannot_be_called_is_refused_by_a_changed_runner(given_: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        Runner([double]).replace(**given_)


@pytest.mark.parametrize("hook", [before, after])
def test_a_hook_that_cannot_be_called_is_refused(hook: Any) -> None:
    for function in (lambda: None, lambda a, b, c: None, lambda *, a: None):
        with pytest.raises(DefinitionError, match="must take one argument"):
            hook(function)


async def test_the_events_of_one_call_are_seen_by_who_is_given_with_it() -> None:
    seen: list[str] = []
    runner = Runner([double])

    async def story() -> None:
        for call_id in ("1", "2"):
            observers = [lambda event: seen.append(event.call.id)] if call_id == "2" else []
            await runner.run(ToolCall(call_id, "double", {"n": 1}), observers=observers)
        with pytest.raises(DefinitionError, match=r"queue\.put_nowait"):
            runner.run(ToolCall("3", "double", {"n": 1}), observers=[sees_events])

    await story()
    assert set(seen) == {"2"}


def test_a_batch_has_no_observer_that_nothing_awaits_and_is_of_a_list() -> None:
    runner = Runner([double])
    call = ToolCall("1", "double", {"n": 1})
    with pytest.raises(DefinitionError, match=r"queue\.put_nowait"):
        runner.batch([call], observers=[sees_events])
    for calls in ("double", call, {"name": "double"}):
        with pytest.raises(DefinitionError, match="a list of calls"):
            runner.batch(calls)  # type: ignore[arg-type]


def test_the_loop_refuses_a_text_as_messages_and_a_list_as_runner() -> None:
    model = Scripted(["done"])
    for messages in ("hello", b"hello", {"role": "user"}, 5):
        with pytest.raises(DefinitionError, match="messages are a list"):
            loop.run(model, messages, Runner([double]))  # type: ignore[arg-type]
    for runner in ([double], double, None):
        with pytest.raises(DefinitionError, match="needs a Runner"):
            loop.run(model, [], runner)  # type: ignore[arg-type]


async def test_what_can_be_called_is_called() -> None:
    class Everything:
        def guard(self, call: Any, context: Any, *, strict: bool = True) -> None: ...

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            call, context, following = args
            return following(call, context)

    seen: list[Event] = []
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    @functools.wraps(no_next)
    async def wrapper(*args: Any) -> Any:
        return await args[2](*args[:2])

    runner = Runner(
        [double],
        guards=[Everything().guard, functools.partial(lambda more, call, context: None, 1), lambda *a: None],
        around=[Everything(), wrapper, before(lambda a: None), functools.partial(Middleware().__call__)],
        inside=[Middleware(), after(lambda result: None)],
        observers=[seen.append, events.put, lambda *a, **k: None],
        approve=lambda *a: True,
    )
    assert (await runner.run("double", {"n": 2})).output == 4
    assert [event.kind for event in seen][-2:] == ["tool:started", "tool:post"] and len(seen) == events.qsize()


PARAMETERS = st.lists(
    st.sampled_from(["{}", "{}=None", "/", "*args", "*", "{}_only", "{}_only=None", "**kwargs"]), max_size=5
)


@given(
    PARAMETERS,
    st.sampled_from(["(call, context)", "(call, context, next)", "(event)"]),
    st.sampled_from(["plain", "object", "method", "partial", "partial by name", "class", "wrapped"]),
)
def test_what_is_let_through_can_be_called_and_what_is_refused_cannot(parts: list[str], form: str, kind: str) -> None:
    written = ", ".join(part.format(f"p{number}") for number, part in enumerate(parts))
    try:
        plain: Callable[..., Any] = eval(f"lambda {written}: 1")
        method: Callable[..., Any] = eval(f"lambda self{', ' if written else ''}{written}: 1")
    except SyntaxError:
        return
    made = type("Made", (), {"__call__": method, "method": method})
    function: Any = {
        "plain": plain,
        "object": made(),
        "method": made().method,
        "partial": functools.partial(plain, 1),
        "partial by name": functools.partial(plain, p0=1),
        "class": type("Class", (), {"__init__": eval(f"lambda self, {written}: None")}) if "/" not in parts else plain,
        "wrapped": functools.wraps(lambda call: 1)(plain),
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


def test_what_has_no_signature_is_let_through() -> None:
    for function in (dict.fromkeys, max, type, functools.partial(max)):
        check_callable("(call, context)")("it", function)


@pytest.mark.parametrize("name", middleware.__all__)
def test_each_middleware_says_where_it_goes(name: str) -> None:
    doc = inspect.getdoc(getattr(middleware, name)) or ""
    assert re.search(r"(It belongs|Put it) in `(around|inside)`", " ".join(doc.split()))


def test_a_tool_says_which_of_its_middleware_is_in_the_wrong_stage() -> None:
    with pytest.raises(DefinitionError, match=r"^tool 'add': untrusted belongs in `around`"):
        tool(name="add", inside=[untrusted])(lambda: None)
