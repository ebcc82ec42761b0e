"""A long batch runs independent calls from any iterable in bounded memory, and can be continued."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import DefinitionError, Runner, ToolCall, ToolError, tool
from ferrule.journal import memory
from ferrule.loop import run_many


class Works:
    """A tool whose calls wait until they are released, and what was taken from a source of calls for it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken = self.at_once = self.most_at_once = 0
        self.began: list[int] = []
        self.released = asyncio.Event()

        @tool
        async def work(n: int) -> int:
            self.began.append(n)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                await self.released.wait()
            finally:
                self.at_once -= 1
            return n

        self.tool = work

    def calls(self) -> Iterator[ToolCall]:
        for n in range(self.count):
            self.taken += 1
            yield ToolCall(f"c{n}", "work", {"n": n})

    async def calls_that_come(self) -> AsyncIterator[ToolCall]:
        for call in self.calls():
            await asyncio.sleep(0)
            yield call

    async def begins(self, count: int) -> None:
        while len(self.began) < count:
            await asyncio.sleep(0)


@given(st.integers(0, 40), st.integers(1, 8), st.booleans())
def test_a_long_batch_holds_no_more_than_its_concurrency(count: int, concurrency: int, is_async: bool) -> None:
    async def main() -> None:
        works, read = Works(count), []
        works.released.set()
        calls = works.calls_that_come() if is_async else works.calls()
        batch = run_many(Runner([works.tool]), calls, concurrency=concurrency)
        async for result in batch:
            read.append(result.output)
            assert works.taken - len(read) <= concurrency  # one is taken ahead
        assert sorted(read) == list(range(count)) and works.most_at_once <= concurrency
        assert batch.summary.counts == ({"ok": count} if count else {})

    asyncio.run(main())


async def test_results_come_while_the_source_waits() -> None:
    works, more = Works(2), asyncio.Event()
    works.released.set()

    async def calls() -> AsyncIterator[ToolCall]:
        for call in works.calls():
            yield call
            await more.wait()

    read = []
    async for result in run_many(Runner([works.tool]), calls(), concurrency=8):
        read.append(result.output)
        more.set()
    assert read == [0, 1]


async def test_a_killed_batch_continues_under_its_session() -> None:
    works, journal = Works(6), memory()
    works.released.set()
    runner = Runner([works.tool], journal=journal)
    async for _ in run_many(runner, list(works.calls())[:3], concurrency=2, session="night"):
        pass
    works.released = asyncio.Event()
    cut_off = asyncio.ensure_future(runner.run(list(works.calls())[3], session="night"))
    await works.begins(4)
    journal.cut_off()
    works.released = asyncio.Event()
    works.released.set()
    batch = run_many(runner, works.calls(), concurrency=2, session="night")
    summary = await batch
    cut_off.cancel()
    assert "4 of them from the journal" in str(summary) and "5 ok" in str(summary) and summary.unknown == ["c3"]
    assert sorted(works.began) == list(range(6))


@pytest.mark.parametrize(
    ("calls", "wrong"),
    [
        ([ToolCall("", "work", {"n": 0})], "call 1 of the batch has no id"),
        ([ToolCall("c0", "work", {"n": 0}), "work"], r"call 2 of the batch must be a ToolCall.*not 'work'"),
    ],
)
async def test_a_wrong_call_ends_the_batch_after_running_calls(calls: Iterable[ToolCall], wrong: str) -> None:
    works = Works(0)
    works.released.set()
    with pytest.raises(DefinitionError, match=wrong):
        await run_many(Runner([works.tool], journal=memory()), calls, concurrency=2)
    assert works.at_once == 0


async def test_a_broken_source_ends_the_batch_after_running_calls() -> None:
    def calls() -> Iterator[ToolCall]:
        yield ToolCall("c0", "work", {"n": 0})
        raise OSError("no more rows")

    works = Works(1)
    works.released.set()
    batch = run_many(Runner([works.tool]), calls(), concurrency=2)
    with pytest.raises(OSError, match="no more rows"):
        await batch
    assert batch.summary.counts == {"ok": 1}


@pytest.mark.parametrize("wrong", [0, True, None])
def test_an_invalid_concurrency_is_refused(wrong: object) -> None:
    with pytest.raises(DefinitionError, match="concurrency"):
        run_many(Runner([]), [], concurrency=wrong)  # type: ignore[arg-type]


async def test_a_long_batch_is_read_once() -> None:
    batch = run_many(Runner([]), [], concurrency=1)
    await batch
    with pytest.raises(RuntimeError, match="is read once"):
        await batch


@pytest.mark.parametrize("how", ["cancel", "break", "cancelled"])
async def test_leaving_a_batch_takes_no_further_call(how: str) -> None:
    works, read = Works(100), list[str]()
    batch = run_many(Runner([works.tool]), works.calls(), concurrency=3)

    async def reads() -> None:
        async for result in batch:
            read.append(result.status)
            if how == "break":
                break

    reading = asyncio.ensure_future(reads())
    await works.begins(3)
    if how == "cancelled":
        reading.cancel()
    elif how == "cancel":
        batch.cancel()
        works.released.set()
    else:
        works.released.set()
    await asyncio.wait({reading})
    while works.at_once:
        await asyncio.sleep(0)
    assert (len(works.began), works.taken) in {(3, 4), (4, 5)}  # one may have begun before the reader left
    assert read == {"cancel": ["ok"] * 3, "break": ["ok"], "cancelled": []}[how]


@pytest.mark.parametrize("now", [True, False])
async def test_a_batch_whose_source_waits_can_be_cancelled(now: bool) -> None:
    works = Works(1)

    async def calls() -> AsyncIterator[ToolCall]:
        for call in works.calls():
            yield call
        await asyncio.Event().wait()

    batch = run_many(Runner([works.tool]), calls(), concurrency=3)
    reading = asyncio.ensure_future(_statuses(batch))
    await works.begins(1)
    batch.cancel(now=now)
    batch.cancel(now=now)
    works.released.set()
    assert (await reading) == ([] if now else ["ok"])


@pytest.mark.parametrize("turns", [None, 0, 1, 2])
async def test_a_batch_that_is_cancelled_before_its_first_call_ends(turns: int | None) -> None:
    works = Works(9)
    works.released.set()
    batch = run_many(Runner([works.tool]), works.calls(), concurrency=3)
    if turns is None:
        batch.cancel()
    reading = asyncio.ensure_future(_statuses(batch))
    for _ in range(turns or 0):
        await asyncio.sleep(0)
    batch.cancel()
    assert len(await reading) <= 3


async def _statuses(batch: object) -> list[str]:
    return [result.status async for result in batch]  # type: ignore[attr-defined]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("raised", [ToolError("stopped", executed=False), ValueError("broken"), None])
async def test_a_batch_that_is_cancelled_at_once_ends_with_what_it_has(raised: Exception | None) -> None:
    begun = asyncio.Event()

    @tool
    async def work(n: int) -> int:
        if not n:
            return n
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if raised is not None:
                raise raised from None
            raise
        return n

    batch = run_many(Runner([work], timeout=60), [ToolCall(f"c{n}", "work", {"n": n}) for n in range(2)], concurrency=2)
    outputs = []
    async for result in batch:
        outputs.append(result.output)
        await begun.wait()
        batch.cancel(now=True)
    assert outputs == [0]


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_progress_is_one_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    screen = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)

    works = Works(20)
    works.released.set()
    await run_many(Runner([works.tool]), list(works.calls()), concurrency=4, progress=True)
    _, *lines = screen.getvalue().split("\r\x1b[K")
    assert bool(lines) is is_terminal
    if is_terminal:
        assert lines[0].startswith("of 20: 1 call in ") and lines[-1] == ""
