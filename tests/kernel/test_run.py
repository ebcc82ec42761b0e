"""One call: one result and exactly one terminal event, whatever happens."""

from __future__ import annotations

import asyncio
import builtins
import json
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typing_extensions import TypedDict

from ferrule import (
    GuardError,
    HandlerError,
    Runner,
    Sizes,
    Text,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    ToolTimeoutError,
    ValidationError,
    ask,
    build_tool,
    deny,
    tool,
)
from waits import BOUND
from watched import Watch, go, plain, run


@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def returning(value: Any, **options: Any) -> Tool:
    async def give() -> Any:
        return value

    return tool(give, **options)


def raising(error: BaseException) -> Tool:
    async def give() -> Any:
        raise error

    return tool(give)


def blocking(error: BaseException, **options: Any) -> Tool:
    def give() -> Any:
        raise error

    return tool(give, **options)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Bounds work that never gives the loop a turn."""

    def late(*_: object) -> None:
        raise AssertionError("it took too long")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- what is answered before anything runs ---------------------------------------------------------------------------


def test_a_call_that_works_has_a_pre_and_a_post_event() -> None:
    result, watch = run(add, "add", {"a": 1, "b": 2})
    assert (result.output, result.status, result.executed, result.call_id) == (3, "ok", True, "c1")
    assert watch.kinds() == ["tool:pre", "tool:post"]
    assert watch.events[-1].data["result"] is result


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    result, watch = run(add, "ad", {"a": 1, "b": 2})
    assert (result.status, result.executed) == ("not_found", False)
    assert "'add'" in str(result.error) and "Nothing was run" in str(result.error)
    assert watch.kinds() == ["tool:pre", "tool:error"]


def test_a_call_with_a_problem_is_answered_and_never_run() -> None:
    result, watch = run(add, ToolCall("c1", "add", {"a": 1, "b": 2}, problem="The turn was cut off."))
    assert (result.status, result.executed) == ("invalid", False)
    assert "cut off" in str(result.error)
    assert watch.kinds() == ["tool:pre", "tool:error"]


@pytest.mark.parametrize(
    "arguments",
    ['{"a": 1', "[1, 2]", '"text"', "5", '{"a": 1}', '{"a": 1, "b": true}', '{"a": 1, "b": 2, "c": 3}', [1, 2], 5],
)
def test_arguments_that_do_not_fit_are_answered_and_never_run(arguments: Any) -> None:
    result, watch = run(add, "add", arguments)
    assert (result.status, result.executed) == ("invalid", False)
    assert "Nothing was run" in str(result.error)
    assert watch.kinds() == ["tool:pre", "tool:error"]


def test_a_denied_call_says_why() -> None:
    result, watch = run(add, "add", {"a": 1, "b": 2}, guards=[lambda call, context: deny("not on Sundays")])
    assert (result.status, result.executed) == ("denied", False)
    assert "not on Sundays" in str(result.error)
    assert watch.ends() == ["tool:error"]


async def test_a_call_without_an_id_gets_one_of_its_own() -> None:
    async def main() -> list[ToolResult]:
        runner = Runner([add])
        return [await runner.run("add", {"a": 1, "b": 1}) for _ in range(2)]

    first, second = await main()
    assert first.call_id and second.call_id and first.call_id != second.call_id


# -- observers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("x"), BaseException("x"), SystemExit(1), asyncio.CancelledError()])
def test_an_observer_that_breaks_neither_breaks_a_call_nor_hides_events_from_others(error: BaseException) -> None:
    def broken(event: Any) -> None:
        raise error

    result, watch = run(add, "add", {"a": 1, "b": 2}, observers=[broken])
    assert result.output == 3
    assert watch.kinds() == ["tool:pre", "tool:post"]


def test_an_observer_cannot_change_a_call() -> None:
    def meddle(event: Any) -> None:
        for change in (
            lambda: event.data["input"].update(a=50),
            lambda: event.call.raw.update(a=50),
            lambda: setattr(event.call, "raw", {"a": 50, "b": 50}),
        ):
            try:
                change()
            except (TypeError, AttributeError):
                pass

    result, _ = run(add, "add", {"a": 1, "b": 2}, observers=[meddle])
    assert result.output == 3


def test_an_event_keeps_what_was_so_when_it_happened() -> None:
    sent = {"items": [1]}

    @tool
    async def count(items: list[int]) -> int:
        items.append(2)
        return len(items)

    result, watch = run(count, "count", sent)
    sent["items"].append(3)
    assert result.output == 2
    assert [dict(event.data["input"]) for event in watch.events] == [{"items": [1]}] * 3


# -- middleware that breaks ------------------------------------------------------------------------------------------


async def _raises(call: Any, context: Any, next: Any) -> Any:
    raise RuntimeError("secret inside")


async def _exits(call: Any, context: Any, next: Any) -> Any:
    raise SystemExit(3)


async def _gives_none(call: Any, context: Any, next: Any) -> Any:
    return None


async def _gives_text(call: Any, context: Any, next: Any) -> Any:
    return "fine"


async def _gives_no_call(call: Any, context: Any, next: Any) -> Any:
    return await next(None, context)


async def _gives_other_id(call: Any, context: Any, next: Any) -> Any:
    return await next(call.replace(id="another"), context)


async def _gives_other_name(call: Any, context: Any, next: Any) -> Any:
    return await next(call.replace(name="another"), context)


async def _gives_own_context(call: Any, context: Any, next: Any) -> Any:
    return await next(call, ToolContext())


async def _cancels_itself(call: Any, context: Any, next: Any) -> Any:
    raise asyncio.CancelledError


def _plainly(call: Any, context: Any, next: Any) -> Any:
    return ToolResult(output=1)


BROKEN = [
    _raises,
    _exits,
    _gives_none,
    _gives_text,
    _gives_no_call,
    _gives_other_id,
    _gives_other_name,
    _gives_own_context,
    _cancels_itself,
    _plainly,
]


@pytest.mark.parametrize("where", ["around", "inside"])
@pytest.mark.parametrize("sent", ['{"a": 1, "b": 2}', {"a": 1, "b": 2}], ids=["text", "mapping"])
@pytest.mark.parametrize("middleware", BROKEN)
def test_a_broken_middleware_fails_its_call_alone(middleware: Any, sent: Any, where: str) -> None:
    """Where `next` was given something wrong, nothing may have run."""
    ran: list[int] = []

    @tool
    async def add(a: int, b: int) -> int:
        ran.append(a)
        return a + b

    result, watch = run(add, "add", sent, **{where: [middleware]})
    assert (result.status, result.call_id, result.tool_name) == ("failed", "c1", "add")
    assert watch.kinds() == ["tool:pre", "tool:error"]
    assert "secret" not in plain(result)
    assert not ran
    assert result.executed is False


def test_a_middleware_that_breaks_after_the_tool_ran_does_not_hide_that_it_ran() -> None:
    async def late(call: Any, context: Any, next: Any) -> Any:
        await next(call, context)
        raise RuntimeError

    result, watch = run(add, "add", {"a": 1, "b": 2}, around=[late])
    assert (result.status, result.executed) == ("failed", True)
    assert "Nothing was run" not in str(result.error)
    assert watch.ends() == ["tool:error"]


def test_a_middleware_that_goes_on_twice_still_gives_one_result_and_one_end() -> None:
    async def twice(call: Any, context: Any, next: Any) -> Any:
        await next(call, context)
        return await next(call, context)

    for where in ("around", "inside"):
        result, watch = run(add, "add", {"a": 1, "b": 2}, **{where: [twice]})
        assert result.output == 3
        assert watch.kinds() == ["tool:pre", "tool:post"]


# -- what handlers raise ---------------------------------------------------------------------------------------------

RAISED: list[Callable[[], BaseException]] = [
    lambda: SystemExit(2),
    asyncio.CancelledError,
    TimeoutError,
    StopIteration,
    StopAsyncIteration,
    lambda: BaseException("x"),
    lambda: ExceptionGroup("several", [ValueError("a"), TypeError("b")]),
    lambda: BaseExceptionGroup("several", [SystemExit(1), KeyError("b")]),
    RecursionError,
    MemoryError,
]


@pytest.mark.parametrize("timeout", [None, BOUND], ids=["no deadline", "deadline"])
@pytest.mark.parametrize("kind", [raising, blocking], ids=["async", "sync"])
@pytest.mark.parametrize("make", RAISED)
def test_whatever_a_handler_raises_is_its_own_failed_result(make: Any, kind: Any, timeout: float | None) -> None:
    result, watch = run(kind(make()), "give", timeout=timeout)
    assert (result.status, result.executed) == ("failed", True)
    assert watch.kinds() == ["tool:pre", "tool:error"]
    assert result.exception is not None


async def test_ctrl_c_inside_a_handler_is_nobody_elses_to_keep() -> None:
    watch = Watch()

    async def main() -> None:
        await Runner([raising(KeyboardInterrupt())], observers=[watch]).run("give")

    with pytest.raises(KeyboardInterrupt):
        await main()
    assert watch.ends() == ["tool:error"]


def test_a_handler_that_raises_was_executed_and_one_that_was_refused_was_not() -> None:
    assert run(raising(ValueError()), "give")[0].executed is True
    assert run(add, "add", {})[0].executed is False


# -- what the model reads of an error --------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("bad colour"), KeyError("bad colour"), OSError("bad colour")])
def test_the_kinds_in_expose_show_their_text(error: Exception) -> None:
    assert "bad colour" in str(run(raising(error), "give")[0].error)


@pytest.mark.parametrize("error", [RuntimeError("password=1"), TypeError("password=1"), SystemExit("password=1")])
def test_of_all_other_exceptions_the_model_sees_only_the_type(error: BaseException) -> None:
    text = str(run(raising(error), "give")[0].error)
    assert type(error).__name__ in text
    assert "password" not in text


def test_a_runner_exposes_the_chosen_exceptions_only() -> None:
    shown = raising(RuntimeError("visible"))
    assert "visible" in str(run(shown, "give", expose=(RuntimeError,))[0].error)
    hidden = raising(ValueError("hidden"))
    assert "hidden" not in str(run(hidden, "give", expose=(RuntimeError,))[0].error)
    assert "hidden" not in str(run(hidden, "give", expose=())[0].error)


def test_the_text_of_a_tool_error_is_shown_whole() -> None:
    text = "x" * 3000
    assert text in str(run(raising(ToolError(text)), "give")[0].error)


def test_an_exposed_text_has_at_most_500_characters() -> None:
    text = str(run(raising(ValueError("é" * 5000)), "give")[0].error)
    assert 400 <= text.count("é") <= 500


@pytest.mark.parametrize(
    "url",
    [
        "https://user:geheim@host/x",
        "postgres://geheim@db",
        "https://user:p@geheim@host",
        "HTTPS://u:geheim@host?q=1",
        "redis://:geheim@host",
    ],
)
def test_credentials_in_addresses_are_masked(url: str) -> None:
    text = str(run(raising(ValueError(f"cannot reach {url}")), "give")[0].error)
    assert "geheim" not in text
    assert "cannot reach" in text and "://" in text


def test_a_secret_is_masked_before_the_text_is_cut() -> None:
    text = str(run(raising(ValueError("x" * 470 + " https://user:geheim" + "g" * 50 + "@host")), "give")[0].error)
    assert "geheim" not in text


def test_masking_takes_no_time_on_long_texts() -> None:
    with at_most(3):
        run(raising(ValueError("a." * 300_000)), "give")


# -- outputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, "", [], None, False, 0.0, {}, ()])
def test_falsy_outputs_stay_what_they_are(value: Any) -> None:
    result, watch = run(returning(value), "give")
    assert result.success
    shown = list(value) if isinstance(value, tuple) else value
    assert result.output == shown and type(result.output) is type(shown)
    assert watch.ends() == ["tool:post"]
    assert json.loads(plain(result) or '""') == shown


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _looped() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def _doubly_looped() -> Any:
    value: list[Any] = []
    value += [value, value]
    return {"a": value}


@pytest.mark.parametrize(
    "make",
    [
        lambda: 10**5000,
        lambda: [10**5000],
        lambda: math.nan,
        lambda: [math.inf, -math.inf],
        lambda: {1, 2},
        lambda: b"\xff\xfe",
        lambda: {"b": b"\xff"},
        lambda: "\ud800",
        lambda: {"\udfff": ["\ud800"]},
        lambda: {("a", 1): 2},
        lambda: object(),
        Odd,
        lambda: [Odd()],
        _looped,
        _doubly_looped,
        lambda: ValueError("as a value"),
        lambda: builtins,
    ],
)
def test_every_output_becomes_json_and_utf_8(make: Any) -> None:
    with at_most(5):
        result, watch = run(returning(make()), "give")
        assert result.success
        plain(result)
    assert watch.ends() == ["tool:post"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: "x" * 5000,
        lambda: ["y" * 100] * 50,
        lambda: {str(n): n for n in range(2000)},
        lambda: "\ud800" * 5000,
        lambda: b"\xff" * 5000,
        lambda: 10**3000,
        lambda: [Text("z" * 900)] * 9,
        lambda: ToolResult(content=[Text("z" * 900)] * 9),
        lambda: ToolResult(error="e" * 5000),
    ],
)
def test_a_result_has_at_most_max_output_characters(make: Any) -> None:
    result, _ = run(returning(make()), "give", sizes=Sizes(output=1000))
    plain(result)
    assert sum(len(block.text) for block in result.content if isinstance(block, Text)) <= 1000
    assert len(result.error or "") <= 1000


def test_what_was_json_is_json_still_when_it_is_cut() -> None:
    result, _ = run(
        returning({"rows": [{"n": n, "text": "x" * 50} for n in range(200)]}), "give", sizes=Sizes(output=800)
    )
    assert set(json.loads(plain(result))) >= {"rows"}


def test_an_output_that_does_not_fit_its_schema_fails_and_says_that_it_ran() -> None:
    class Point(TypedDict):
        x: int

    @tool
    async def where() -> Point:
        return {"x": "left"}  # type: ignore[typeddict-item]

    result, _ = run(where, "where")
    assert (result.status, result.executed) == ("failed", True)
    assert "output schema" in str(result.error)


def test_nothing_needs_no_look_where_nothing_is_returned() -> None:
    async def give() -> None: ...

    assert type(None) in tool(give).output.ready_classes


class Unknown:
    """A class that Pydantic does not know."""


@pytest.mark.parametrize(("returns", "value"), [(list[int], (1, 2)), (Unknown, Unknown())])
async def test_a_value_fits_whose_json_is_the_same_and_any_fits_a_type_without_json(returns: Any, value: Any) -> None:
    async def give():  # type: ignore[no-untyped-def]
        return value

    give.__annotations__["return"] = returns
    assert (await Runner([tool(give)]).run("give")).success


@pytest.mark.parametrize(("hint", "value"), [(int, "5"), (int, True), (str, 5), (list[int], ["5"]), (bool, 1)])
def test_an_output_is_checked_strictly(hint: Any, value: Any) -> None:
    async def give() -> Any:
        return value

    give.__annotations__["return"] = hint
    assert run(tool(give), "give")[0].status == "failed"


def test_a_raw_output_schema_is_enforced() -> None:
    given = tool(lambda: {"x": "left"}, name="where", output_schema={"type": "object", "required": ["y"]})
    assert run(given, "where")[0].status == "failed"


# -- results made by handlers ----------------------------------------------------------------------------------------


def test_a_result_that_a_handler_makes_is_kept_and_bound_to_its_call() -> None:
    made = ToolResult(output={"n": 1}, metadata={"source": "db"}, content=[Text("one")])
    result, watch = run(returning(made), "give")
    assert (result.output, result.metadata["source"], plain(result)) == ({"n": 1}, "db", "one")
    assert (result.call_id, result.tool_name, result.executed) == ("c1", "give", True)
    assert made.call is None
    assert watch.ends() == ["tool:post"]


def test_a_result_with_an_error_is_a_failure() -> None:
    result, watch = run(returning(ToolResult(error="no such row")), "give")
    assert (result.status, result.error) == ("failed", "no such row")
    assert watch.ends() == ["tool:error"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ToolResult(content=["text"]),  # type: ignore[list-item]
        lambda: ToolResult(error=5),  # type: ignore[arg-type]
        lambda: ToolResult(metadata=[1]),  # type: ignore[arg-type]
        lambda: ToolResult(content=[Text(5)]),  # type: ignore[arg-type]
        lambda: ToolResult(content=[Text("\ud800")]),
        lambda: ToolResult(error="\ud800"),
        lambda: ToolResult(output="\ud800"),
        lambda: Text("\ud800"),
    ],
)
def test_a_malformed_result_of_a_handler_breaks_nothing(make: Any) -> None:
    async def give() -> Any:
        return make()

    result, watch = run(tool(give), "give")
    plain(result)
    (result.error or "").encode()
    assert len(watch.ends()) == 1


@pytest.mark.parametrize("status", ["suspended", "cancelled", "denied", "ok"])
def test_a_status_that_a_handler_makes_up_does_not_take_away_the_terminal_event(status: Any) -> None:
    _, watch = run(returning(ToolResult(output=1, status=status)), "give")
    assert watch.kinds() in (["tool:pre", "tool:post"], ["tool:pre", "tool:error"])


async def test_a_result_belongs_to_the_run_that_it_was_made_for() -> None:

    runner = Runner([returning(kept := ToolResult(output="x"))])
    call = ToolCall("one", "give")
    first = await runner.run(call)
    before = first.duration_ms
    second = await runner.run(ToolCall("two", "give"))
    again = await runner.run(call)
    assert [first.call_id, second.call_id, again.call_id] == ["one", "two", "one"]
    assert first.duration_ms == before
    assert kept.call is None


# -- the context -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", [None, "process"])
async def test_whoever_gets_the_context_of_a_call_has_its_tool(isolation: Any) -> None:
    seen: list[Tool] = []

    def guard(call: ToolCall, context: ToolContext) -> None:
        seen.append(context.tool.definition)

    async def round_it(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        seen.append(context.tool.definition)
        return await next(call, context)  # type: ignore[no-any-return]

    asks = Tool("asks", tool_name, isolation=isolation, guards=[guard], around=[round_it], inside=[round_it])
    assert (await Runner([asks]).run("asks")).output == "asks" and [one.name for one in seen] == ["asks"] * 3


def tool_name(context: ToolContext) -> str:
    return context.tool.definition.name


def test_a_context_of_no_call_says_that_it_has_no_tool() -> None:
    with pytest.raises(AttributeError, match=r"context\.tool works inside a call"):
        _ = ToolContext().tool


# -- names -----------------------------------------------------------------------------------------------------------


def test_a_tool_is_found_by_its_wire_name_and_known_by_its_own() -> None:
    named = tool(add.handler, name="math.add")
    seen: list[str] = []

    async def middle(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        seen.append(call.name)
        return await next(call, context)

    def guard(call: ToolCall, context: ToolContext) -> None:
        seen.append(call.name)

    sent = ToolCall("c1", named.wire_name, {"a": 1, "b": 2}, data={"signature": "s"})
    result, watch = run(named, sent, guards=[guard], around=[middle], inside=[middle])
    assert sent.name != "math.add"
    assert seen == ["math.add"] * 3
    assert {event.call.name for event in watch.events} == {"math.add"}
    assert {event.data["tool_name"] for event in watch.events} == {"math.add"}
    assert result.tool_name == result.record()["tool_name"] == "math.add"
    assert result.call is sent


def test_a_failed_call_keeps_what_the_model_sent_too() -> None:
    named = tool(add.handler, name="math.add")
    for arguments in ("{", '{"a": 1}'):
        sent = ToolCall("c1", named.wire_name, arguments, data=object())
        result, _ = run(named, sent)
        assert result.call is sent and result.tool_name == "math.add"


# -- the direct call -------------------------------------------------------------------------------------------------


async def test_a_direct_call_gives_the_raw_value() -> None:
    value = object()

    assert await add(a=1, b=2) == 3
    assert await returning(value)() is value
    assert await returning(ToolResult(output=5, metadata={"m": 1}))() == 5


async def test_a_direct_call_raises_what_stood_in_the_way() -> None:

    with pytest.raises(ValidationError, match="b"):
        await add(a=1)
    with pytest.raises(ValidationError):
        await add(a=1, b=True)
    with pytest.raises(GuardError, match="no"):
        await add.replace(guards=[lambda call, context: deny("no")])(a=1, b=2)
    with pytest.raises(GuardError):
        await add.replace(guards=[lambda call, context: ask("really?")])(a=1, b=2)
    with pytest.raises(GuardError):
        await build_tool({"name": "t", "description": "", "input_schema": {}, "execute": lambda payload: 1})()
    with pytest.raises(HandlerError, match="inner") as caught:
        await raising(KeyError("inner"))()
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.result is not None
    with pytest.raises(HandlerError):
        await returning(ToolResult(error="no"))()
    with pytest.raises(TypeError):
        await add(1, 2, 3)


async def test_a_direct_call_keeps_the_tools_deadline() -> None:
    @tool(timeout=0.02)
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(ToolTimeoutError):
        await wait()


def test_direct_calls_work_at_once_and_on_one_loop_after_the_other() -> None:
    async def main() -> None:
        assert await asyncio.gather(*(add(a=n, b=1) for n in range(50))) == [n + 1 for n in range(50)]

    go(main())
    go(main())
