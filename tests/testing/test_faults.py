"""`faults`: as often as they were asked for, the same for the same seed, and dealt with like the real ones."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Event, Runner, ToolCall, Toolset, tool
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, ToolError
from ferrule.testing import ManualClock, faults
from ferrule.testing.clock import wait_until_idle
from ferrule.values.result import ToolResult
from waits import BOUND

RAN: collections.Counter[str] = collections.Counter()


@tool(read_only=True)
async def look(key: str = "") -> str:
    RAN[key] += 1
    return f"found {key}"


@tool
def write(key: str = "") -> str:
    RAN[key] += 1
    return "written"


@tool
async def broken(key: str = "") -> str:
    raise LookupError("of its own")


@pytest.fixture(autouse=True)
def nothing_has_run() -> None:
    RAN.clear()


def called(tools: Any, name: str = "look", arguments: Any = None, **options: Any) -> ToolResult:
    RAN.clear()
    return Runner(tools, **options).run_sync(name, arguments or {})


def outcomes(tools: Toolset, calls: Sequence[tuple[str, str]], **options: Any) -> list[Any]:
    """Return the outcome of each call, with its fault."""
    made = [ToolCall(str(n), name, {"key": key}) for n, (name, key) in enumerate(calls)]
    results = asyncio.run(Runner(tools, **options).run_all(made))
    return [(r.tool_name, r.status, r.error, r.metadata.get("fault")) for r in results]


def test_a_higher_rate_keeps_the_faults_of_a_lower_rate() -> None:
    calls = [("look", str(n)) for n in range(200)]
    more = outcomes(faults(look, errors=0.4, timeouts=0.3), calls)
    for rate in ({"errors": 0.2}, {"timeouts": 0.3}):
        few = outcomes(faults(look, **rate), calls)
        failed = [n for n, outcome in enumerate(few) if outcome[1] == "failed"]
        assert failed and all(more[n] == few[n] for n in failed)


def test_each_kind_of_error_occurs() -> None:
    found = outcomes(faults(look, errors=1, kinds=[OSError("a"), LookupError, ValueError("c")]), [("look", "")] * 60)
    assert {outcome[3]["error"] for outcome in found} == {"OSError: a", "LookupError: ", "ValueError: c"}


def test_without_rates_nothing_is_changed() -> None:
    made = faults(look)
    assert (made.fingerprint, made.get("look").read_only) == (Toolset([look]).fingerprint, True)
    result = called(made, arguments={"key": "a"})
    assert (result.output, dict(result.metadata), result.executed) == ("found a", {}, True)


CALLS = st.lists(st.tuples(st.sampled_from(["look", "write", "broken"]), st.sampled_from("abc")), max_size=12)


def by_call(calls: Sequence[tuple[str, str]], found: list[Any]) -> dict[tuple[str, str], list[Any]]:
    grouped: dict[tuple[str, str], list[Any]] = {}
    for call, outcome in zip(calls, found, strict=True):
        grouped.setdefault(call, []).append(outcome)
    return grouped


@given(calls=CALLS, order=st.randoms(use_true_random=False), seed=st.text(max_size=3))
def test_the_same_seed_makes_the_same_faults_in_any_order(
    calls: list[tuple[str, str]], order: Random, seed: str
) -> None:
    def new() -> Toolset:
        return faults([look, write, broken], seed=seed, errors=0.4, timeouts=0.2)

    other = list(calls)
    order.shuffle(other)
    first, second = outcomes(new(), calls), outcomes(new(), other)
    assert by_call(calls, first) == by_call(other, second)


def test_seed_name_and_arguments_determine_the_faults() -> None:
    def failed(tools: Toolset, name: str = "look", key: str = "") -> list[str]:
        return [outcome[1] for outcome in outcomes(tools, [(name, key)] * 40)]

    first = failed(faults(look, errors=0.5))
    assert first == failed(faults(look, errors=0.5))
    assert first != failed(faults(look, errors=0.5, seed=1))
    assert first != failed(faults(look.replace(name="peek"), errors=0.5), "peek")
    assert first != failed(faults(look, errors=0.5), key="b")


@pytest.mark.parametrize("one", [look, write])
@pytest.mark.parametrize("early", [True, False])
def test_the_model_reads_the_same_error_before_and_after_the_handler(one: Tool, early: bool) -> None:
    tools = faults(one, errors=1, before=float(early), kinds=[OSError("the disk is full")])
    result = called(tools, one.name, {"key": "a"})
    may_have = "" if one is look else " It had been started, so its effect may have happened."
    assert result.error == f"{one.name} failed: OSError: the disk is full.{may_have}"
    assert (result.status, result.executed, result.output) == ("failed", True, None)
    assert RAN["a"] == (not early)
    error = "OSError: the disk is full"
    assert result.metadata["fault"] == {"kind": "error", "seconds": 0.0, "ran": not early, "error": error}


def test_an_error_looks_like_one_of_the_handler() -> None:
    secret = RuntimeError("the password is x")
    result = called(faults(look, errors=1, kinds=[secret]))
    assert result.error == "look failed: RuntimeError." and result.exception is secret
    assert "password" in called(faults(look, errors=1, kinds=[secret]), expose=(RuntimeError,)).error  # type: ignore[operator]
    later = called(faults(look, errors=1, kinds=[ToolError("too many calls", retry_after=3)]))
    assert later.error == "too many calls" and later.metadata["retry_after"] == 3


def test_a_failing_handler_gets_no_fault() -> None:
    result = called(faults(broken, errors=1, before=0), "broken")
    assert "of its own" in str(result.error) and "fault" not in result.metadata


@pytest.mark.parametrize("early", [True, False])
async def test_a_hang_ends_at_the_deadline(early: bool) -> None:
    clock = ManualClock()
    runner = Runner(faults(look, timeouts=1, before=float(early)), clock=clock)
    call = asyncio.ensure_future(runner.run("look", {"key": "a"}, timeout=5))
    await clock.advance(5)
    result = await call
    assert (result.status, result.executed, RAN["a"]) == ("timeout", None, not early)
    assert "It had been started, and changes nothing." in str(result.error)


def test_a_hang_without_a_deadline_fails() -> None:
    result = called(faults(look, timeouts=1))
    assert result.status == "failed" and "it has no deadline" in str(result.error)


async def test_a_cancellation_ends_a_hang() -> None:
    events: list[Event] = []
    runner = Runner(faults(look, timeouts=1), timeout=BOUND, observers=[events.append])
    call = asyncio.ensure_future(runner.run("look"))
    await wait_until_idle()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [event.kind for event in events] == ["tool:pre", "tool:started", "tool:progress", "tool:error"]
    assert events[2].data["fault"]["kind"] == "timeout"


async def test_a_call_waits_for_its_latency() -> None:
    clock = ManualClock()
    runner = Runner(faults(look, latency=(2, 3), clock=clock))
    call = asyncio.ensure_future(runner.run("look", {"key": "slow"}))
    await clock.advance(1.9)
    (due,) = clock.sleeping
    assert 2 <= due <= 3 and not RAN["slow"]
    await clock.advance(1.1)
    assert call.done() and call.result().metadata["fault"] == {"kind": "latency", "seconds": due}


@pytest.mark.parametrize("latency", [4, (4, 4), lambda draw: 4.0 if 0 <= draw.random() < 1 else 0.0])
async def test_a_latency_is_a_number_a_range_or_a_function(latency: Any) -> None:
    clock = ManualClock()
    call = asyncio.ensure_future(Runner(faults(look, latency=latency, errors=1, clock=clock)).run("look"))
    await clock.advance(4)
    assert call.result().metadata["fault"]["seconds"] == 4


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"errors": True}, "errors must be a share"),
        ({"timeouts": float("nan")}, "timeouts must be a share"),
        ({"errors": 0.6, "timeouts": 0.6}, "are shares of all calls, and their sum exceeds 1"),
        ({"latency": -1}, "latency must be in seconds from 0 upwards, not -1"),
        ({"latency": (3, 2)}, "3.0 is more than 2.0"),
        ({"errors": 1, "kinds": ()}, "kinds is empty"),
        ({"kinds": [KeyboardInterrupt]}, "which is no exception that a handler fails with"),
        ({"seed": 1.5}, "faults: seed must be a whole number or a text"),
    ],
)
def test_a_wrong_option_is_refused_with_the_reason(options: dict[str, Any], text: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        faults(look, **options)
    assert text in str(caught.value)
