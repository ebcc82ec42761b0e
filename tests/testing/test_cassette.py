"""`cassette`: what was recorded is given again, in order, and never anything else."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import (
    Deferred,
    DefinitionError,
    Media,
    Runner,
    Text,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    tool,
)
from ferrule.testing import CassetteError, Recorder, cassette
from watched import go

ORDERS = {"4711": 80, "4712": 5}


class Shop:
    """A tool that counts its runs, and gives another answer each time."""

    def __init__(self, **options: Any) -> None:
        self.runs = 0

        async def find_order(order: str, note: str = "") -> dict[str, Any]:
            """Find an order."""
            self.runs += 1
            if order not in ORDERS:
                raise ToolError(f"there is no order {order}")
            return {"paid": ORDERS[order], "asked": self.runs}

        self.tool: Tool = tool(find_order, **options)


def runs(shop: Shop, recorded: Any, *orders: str, **options: Any) -> list[ToolResult]:
    runner = Runner([shop.tool], inside=[recorded], **options)
    return [runner.run_sync("find_order", {"order": order}) for order in orders]


def recorded(path: Path, *orders: str, shop: Shop | None = None, **options: Any) -> list[ToolResult]:
    with cassette(path, "record") as recording:
        return runs(shop or Shop(), recording, *orders, **options)


def told(results: list[ToolResult]) -> list[tuple[Any, ...]]:
    return [(result.status, result.output, result.error, result.content) for result in results]


@pytest.mark.parametrize("mode", ["replay", "strict"])
def test_recordings_are_replayed_in_order(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "orders.json"
    orders = ("4711", "4712", "4711", "none")
    before = recorded(path, *orders)
    shop, seen = Shop(), Recorder()
    with cassette(path, mode) as replayed:
        after = runs(shop, replayed, *orders, observers=[seen])
    assert told(after) == told(before) and before[2].output == {"paid": 80, "asked": 3}
    assert [result.executed for result in after] == [False] * 4 and shop.runs == 0
    assert {result.metadata["cassette"] for result in after} == {"replayed"}
    seen.assert_called(shop.tool, order="4712", times=1)


KERNELS = ("replayed", "resumed_already", "unrecorded", "cassette")
RESULTS = st.builds(
    ToolResult,
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    ),
    metadata=st.dictionaries(st.text(min_size=1).filter(lambda name: name not in KERNELS), st.integers()),
    content=st.none()
    | st.lists(
        st.builds(Text, st.text()) | st.builds(Media, st.just("image"), st.binary(min_size=1), st.just("image/png")),
        max_size=3,
    ),
)


@given(st.lists(RESULTS, min_size=1, max_size=4))
def test_any_result_is_replayed_unchanged(tmp_path_factory: pytest.TempPathFactory, results: list[ToolResult]) -> None:
    path = tmp_path_factory.mktemp("tape") / "any.json"
    given = iter(results)

    @tool
    def anything() -> Any:
        return next(given)

    def all_of(mode: Any) -> list[Any]:
        with cassette(path, mode) as tape:
            runner = Runner([anything], inside=[tape])
            found = [go(runner.run("anything")) for _ in results]
        told = [{**one.metadata} for one in found]
        assert {one.pop("cassette", None) for one in told} == ({None} if mode == "record" else {"replayed"})
        return [(one.status, one.output, one.content, more, one.error) for one, more in zip(found, told, strict=True)]

    assert all_of("record") == all_of("strict")


def test_concurrent_calls_each_get_one_recording(tmp_path: Path) -> None:
    path, shop = tmp_path / "orders.json", Shop(parallel=True)
    calls = [ToolCall(f"c{n}", "find_order", {"order": "4711"}) for n in range(20)]

    def batch(mode: Any) -> Counter[int]:
        with cassette(path, mode) as tape:
            results = go(Runner([shop.tool], inside=[tape]).run_all(calls))
        return Counter(result.output["asked"] for result in results)

    assert batch("record") == batch("strict") == Counter(range(1, 21))


def missed(path: Path, shop: Shop, *orders: str, mode: Any = "replay") -> tuple[list[ToolResult], str]:
    with pytest.raises(CassetteError) as raised, cassette(path, mode) as replayed:
        results = runs(shop, replayed, *orders)
    assert shop.runs == 0
    return results, str(raised.value)


def test_a_call_without_a_recording_runs_nothing(tmp_path: Path) -> None:
    path, shop = tmp_path / "orders.json", Shop()
    recorded(path, "4711")
    results, said = missed(path, shop, "4713")
    assert (results[0].status, results[0].executed, results[0].metadata["cassette"]) == ("failed", False, "missed")
    assert '-  "order": "4711"' in said and '+  "order": "4713"' in said
    assert results[0].error == said


def test_a_changed_tool_has_no_recordings(tmp_path: Path) -> None:
    path = tmp_path / "orders.json"
    recorded(path, "4711")
    _, said = missed(path, Shop(description="Find an order of somebody."), "4711")
    assert "its definition has changed since it was recorded" in said and said.endswith("again: mode='record'.")
    assert '-  "description": "Find an order."' in said
    assert '+  "description": "Find an order of somebody."' in said


def test_strict_requires_order_and_completeness(tmp_path: Path) -> None:
    path = tmp_path / "orders.json"
    recorded(path, "4711", "4712")
    _, said = missed(path, Shop(), "4712", "4711", mode="strict")
    assert "another call of it was recorded before" in said
    with pytest.raises(CassetteError, match="not called with"), cassette(path, "strict") as replayed:
        runs(Shop(), replayed, "4711")
    with cassette(path) as replayed:
        runs(Shop(), replayed, "4712", "4711")


def breaking(path: Path, mode: Any) -> None:
    with cassette(path, mode) as tape:
        runs(Shop(), tape, "4712")
        raise ZeroDivisionError


def test_a_failing_block_leaves_the_file_unchanged_and_has_the_misses_as_notes(tmp_path: Path) -> None:
    path = tmp_path / "orders.json"
    recorded(path, "4711")
    before = path.read_text()
    for mode in ("record", "strict"):
        with pytest.raises(ZeroDivisionError) as raised:
            breaking(path, mode)
    assert "no recording of this call" in "".join(raised.value.__notes__)
    assert path.read_text() == before and [*tmp_path.iterdir()] == [path]


def test_data_that_looks_like_a_medium_is_data(tmp_path: Path) -> None:
    path = tmp_path / "calls.json"

    @tool
    async def look(context: ToolContext) -> dict[str, Any]:
        return {"data": "hello", "mime_type": "text/plain", "note": context.secrets["token"], "count": 4711}

    def once(mode: Any) -> ToolResult:
        with cassette(path, mode) as tape:
            return go(Runner([look], inside=[tape], secrets={"token": "tok-123456", "n": 471100}).run("look"))

    assert once("record").success and "tok-123456" not in path.read_text()
    assert once("strict").output == {"data": "hello", "mime_type": "text/plain", "note": "**********", "count": 4711}


@pytest.mark.parametrize("mode", ["replay", "strict"])
def test_a_nested_call_is_not_recorded_separately(tmp_path: Path, mode: Any) -> None:
    path, shop = tmp_path / "orders.json", Shop()

    @tool(read_only=True)
    async def outer(context: ToolContext) -> Any:
        return (await context.run("find_order", {"order": "4711"})).output

    def both(tape: Any) -> list[Any]:
        inner = Runner([shop.tool], inside=[tape])
        runner = Runner([outer, *inner.as_tools()], inside=[tape])
        return [go(runner.run(*given)).output for given in (("outer",), ("find_order", {"order": "4712"}))]

    with cassette(path, "record") as recording:
        before = both(recording)
    names = [one["tool"] for one in json.loads(path.read_text())["tools"] for _ in one["calls"]]
    assert sorted(names) == ["find_order", "outer"]
    with cassette(path, mode) as replayed:
        assert both(replayed) == before
    assert shop.runs == 2


def test_the_file_is_readable(tmp_path: Path) -> None:
    path, shop = tmp_path / "orders.json", Shop()
    recorded(path, "4711", "none", shop=shop)
    assert json.loads(path.read_text()) == {
        "ferrule": "cassette 1",
        "tools": [
            {
                "tool": "find_order",
                "fingerprint": shop.tool.fingerprint,
                "definition": {"description": "Find an order.", "input_schema": dict(shop.tool.input_schema)},
                "calls": [
                    {"arguments": {"order": "4711", "note": ""}, "result": {"output": {"paid": 80, "asked": 1}}},
                    {
                        "arguments": {"order": "none", "note": ""},
                        "result": {"status": "failed", "output": None, "error": "there is no order none"},
                    },
                ],
            }
        ],
    }
    assert max(map(len, path.read_text().splitlines())) < 100


def test_an_unclosed_cassette_is_written_at_exit(tmp_path: Path) -> None:
    path = tmp_path / "orders.json"
    program = f"""
from ferrule import Runner, tool
from ferrule.testing import cassette

@tool
def look() -> int:
    return 7

Runner([look], inside=[cassette({str(path)!r}, "record")]).run_sync("look")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert json.loads(path.read_text())["tools"][0]["calls"] == [{"arguments": {}, "result": {"output": 7}}]


async def test_cancelled_and_suspended_calls_are_not_recorded(tmp_path: Path) -> None:
    path, begun = tmp_path / "calls.json", asyncio.Event()

    @tool
    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    @tool
    async def hands_over() -> Deferred:
        return Deferred("t1")

    with cassette(path, "record") as tape:
        runner = Runner([waits, hands_over], inside=[tape])
        task = asyncio.create_task(runner.run("waits"))
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        assert (await runner.run("hands_over")).status == "suspended"
    assert [one["calls"] for one in json.loads(path.read_text())["tools"]] == [[], []]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"ferrule": "cassette 1", "tools": [{"tool": "t", "fingerprint": "f", "calls": [call]}]})
        for call in (
            {"arguments": {}, "result": {"status": "bogus"}},
            {"arguments": {}, "result": {"status": "suspended"}},
            {"result": {}},
        )
    ]
    + ["", "[]", '{"ferrule": "cassette 9", "tools": []}', '{"ferrule": "cassette 1", "tools": [{}]}'],
)
def test_a_malformed_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(DefinitionError, match="is no cassette"):
        cassette(path)


def test_a_missing_file_wrong_mode_or_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="mode='record'"):
        cassette(tmp_path / "none.json")
    mode: Any = "rewind"
    with pytest.raises(DefinitionError, match="'record', 'replay' or 'strict'"):
        cassette(tmp_path / "none.json", mode)
    with pytest.raises(DefinitionError, match="belongs in `inside`"):
        Runner([Shop().tool], around=[cassette(tmp_path / "none.json", "record")])
