"""What the kernel promises of a call, wherever its handler runs: in a thread, in a process, on DBOS, on Ray."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import far_tools
import pytest
from far_tools import Item
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from workers import cluster, worker

from ferrule import Event, Media, Runner, Sizes, Text, Tool, ToolCall, ToolContext, ToolResult, tool
from ferrule.remote import dbos, ray
from waits import until

KEY = b"e" * 32
ELSEWHERE = ("dbos", "dbos-sqlite", "ray")
PLACES = ("threads", "process", *ELSEWHERE)


@pytest.fixture(scope="module")
def database(databases: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    return lambda place: (
        databases("contract") if place == "dbos" else f"sqlite:///{tmp_path_factory.mktemp('contract')}/contract.sqlite"
    )


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest, database: Callable[[str], str]) -> Iterator[Any]:
    """What `isolation=` takes; the values that no model sees are encrypted."""
    name: str = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FERRULE_ENCRYPT_KEY", KEY.hex())
        if name == "ray":
            with cluster(FERRULE_ENCRYPT_KEY=KEY.hex()):
                yield ray.actors(2, deps=the_workers_deps, secrets=the_workers_secrets)
        elif name.startswith("dbos"):
            url = database(name)
            with worker(url):
                yield dbos.queue("far", url=url)
        else:
            yield None if name == "threads" else name


def the_workers_deps() -> str:
    return "the worker's"


def the_workers_secrets() -> dict[str, str]:
    return {"token": "the worker's"}


@pytest.fixture
def elsewhere(place: object) -> bool:
    """Whether the handlers are on other machines."""
    return place not in (None, "process")


async def run(
    made: Tool | list[Tool], arguments: Any = None, context: ToolContext | None = None, **options: Any
) -> tuple[ToolResult, list[Event]]:
    """One call on a runner of its own: what it came to, and its events."""
    seen: list[Event] = []
    tools = made if isinstance(made, list) else [made]
    runner = Runner(tools, observers=[seen.append], **options)
    return await runner.run(ToolCall("c1", tools[0].name, arguments or {}), context), seen


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**60), 2**60)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=12,
    )
)
def test_any_json_value_comes_back_as_in_a_thread(place: Any, value: object) -> None:
    here, _ = asyncio.run(run(tool(far_tools.echo), {"value": value}))
    there, _ = asyncio.run(run(tool(far_tools.echo, isolation=place), {"value": value}))
    assert (there.status, repr(there.output), there.text) == (here.status, repr(here.output), here.text)


async def test_a_handler_gets_typed_arguments(place: Any) -> None:
    arguments = {"day": date(2026, 11, 28).isoformat(), "item": {"name": "pen", "count": 2}}
    result, _ = await run(tool(far_tools.kinds, isolation=place), arguments)
    assert result.output == ["date", Item.__name__, "2026-11-28", "pen"]


@pytest.mark.parametrize(
    ("kind", "said", "executed"),
    [
        ("own", "none left", True),
        ("not run", "it was never sent", False),
        ("value", "ValueError: the text", True),
        ("runtime", "RuntimeError", True),
        ("exit", "SystemExit", True),
        ("cancelled", "CancelledError", True),
    ],
)
async def test_an_exception_is_a_failure_with_a_safe_text(place: Any, kind: str, said: str, executed: bool) -> None:
    handler = far_tools.fail_async if kind in ("own", "cancelled") else far_tools.fail
    result, _ = await run(tool(handler, isolation=place), {"kind": kind})
    assert result.status == "failed" and result.executed is executed
    assert said in (result.error or "") and (kind != "runtime" or "the text" not in (result.error or ""))
    assert result.metadata.get("retry_after") == (3.0 if kind == "own" else None)


async def test_blocks_and_bytes_come_back_as_content(place: Any) -> None:
    result, _ = await run(tool(far_tools.blocks, isolation=place))
    assert [*result.content] == [Text("one"), Media("image", b"\x00\xff", "image/png")]
    here, _ = await run(tool(far_tools.data))
    there, _ = await run(tool(far_tools.data, isolation=place))
    assert (there.output, there.content) == (here.output, here.content)


async def test_chunks_arrive_in_order_and_are_the_output(place: Any) -> None:
    result, seen = await run(tool(far_tools.chunks, isolation=place), {"count": 5})
    assert result.output == "0 1 2 3 4 "
    assert [event.data["chunk"] for event in seen if event.kind == "tool:progress"] == [f"{n} " for n in range(5)]


@pytest.mark.parametrize("handler", [far_tools.linger, far_tools.linger_in_thread])
async def test_a_deadline_reaches_the_handler(place: Any, handler: Any, tmp_path: Path) -> None:
    began, ended = tmp_path / "began", tmp_path / "ended"
    result, _ = await run(tool(handler, isolation=place), {"began": str(began), "ended": str(ended)}, timeout=1.0)
    assert (result.status, result.executed) == ("timeout", None) and began.exists()
    if place != "process":  # which is killed, and cleans up nothing
        await until(ended.exists)


@pytest.mark.parametrize("handler", [far_tools.linger, far_tools.linger_in_thread])
async def test_a_cancellation_reaches_the_handler(place: Any, handler: Any, tmp_path: Path) -> None:
    began, ended = tmp_path / "began", tmp_path / "ended"
    runner = Runner([tool(handler, isolation=place)])

    call = ToolCall("c1", handler.__name__, {"began": str(began), "ended": str(ended)})
    task = asyncio.ensure_future(runner.run(call))
    await until(began.exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if place != "process":
        await until(ended.exists)


async def test_a_handler_gets_its_context(place: Any) -> None:
    keys = []

    async def noting(call: ToolCall, context: Any, following: Any) -> ToolResult:
        keys.append(context.idempotency_key)
        return await following(call, context)  # type: ignore[no-any-return]

    given = {"session": "s1", "principal": "ann", "metadata": {"tenant": 7}}
    result, _ = await run(
        tool(far_tools.who, isolation=place), timeout=30, inside=[noting], context=ToolContext(**given)
    )
    told = result.output
    assert {name: told[name] for name in given} == given
    assert (told["id"], told["arguments"], told["key"]) == ("c1", {}, keys[0])
    assert 0 < told["remaining"] <= 30 and not math.isclose(told["remaining"], 0)


async def test_deps_and_secrets_are_not_sent_to_other_machines(place: Any, elsewhere: bool) -> None:
    context = ToolContext(deps="the program's", secrets={"token": "the program's"})
    result, _ = await run(tool(far_tools.held, isolation=place), context=context)
    if elsewhere:
        assert result.output == ["the worker's", {"token": "the worker's"}]
    else:
        assert "the worker's" not in result.text


async def test_a_megabyte_is_sent_and_returned(place: Any) -> None:
    text = "é" * 1_000_000
    result, _ = await run(
        tool(far_tools.echo, isolation=place), {"value": text}, sizes=Sizes(input=None, output=2_000_000)
    )
    assert result.output == text


async def test_a_nested_call_runs_here_or_is_refused(place: Any, elsewhere: bool) -> None:
    result, _ = await run([tool(far_tools.nested, isolation=place), tool(far_tools.add)])
    if elsewhere:
        assert result.status == "failed" and "context.run(...) is not available" in (result.error or "")
    else:
        assert result.output == "3"
