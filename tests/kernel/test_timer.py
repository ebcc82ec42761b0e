"""One timer of the loop wakes all that wait equally long, each when it is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ferrule.scheduling.timer import Timer


class Standing(asyncio.SelectorEventLoop):
    """A loop whose time goes on by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.armed: list[asyncio.TimerHandle] = []
        super().__init__()

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, **options: Any) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, **options)
        self.armed.append(handle)
        return handle

    async def until(self, now: float) -> None:
        """Let the time be `now`, and all that is due by then be woken."""
        self.now = now
        for _ in range(3):
            await asyncio.sleep(0)


def on(story: Callable[[Standing, Timer], Any]) -> None:
    loop = Standing()
    try:
        loop.run_until_complete(story(loop, Timer(loop, 10.0)))
    finally:
        loop.close()


def test_each_is_woken_when_it_is_due_and_not_before() -> None:
    async def story(loop: Standing, timer: Timer) -> None:
        first, second = loop.create_future(), loop.create_future()
        timer.add(first)
        await loop.until(4.0)
        timer.add(second)
        await loop.until(9.9)
        assert not first.done()
        await loop.until(10.0)
        assert first.done() and not second.done()
        await loop.until(14.0)
        assert second.done()

    on(story)


def test_who_is_removed_is_not_woken_and_holds_nobody_up() -> None:
    async def story(loop: Standing, timer: Timer) -> None:
        first, second = loop.create_future(), loop.create_future()
        timer.add(first)
        await loop.until(1.0)
        timer.add(second)
        timer.remove(first)
        await loop.until(10.5)
        assert not first.done() and not second.done()
        await loop.until(11.0)
        assert not first.done() and second.done()

    on(story)


def test_a_thousand_that_wait_need_one_timer_of_the_loop_and_leave_none_behind() -> None:
    async def story(loop: Standing, timer: Timer) -> None:
        waiters = [loop.create_future() for _ in range(1000)]
        for waiter in waiters:
            timer.add(waiter)
        assert len(loop.armed) == 1
        for waiter in waiters:
            timer.remove(waiter)
        assert all(handle.cancelled() for handle in loop.armed)

    on(story)


def test_it_goes_on_after_it_was_idle() -> None:
    async def story(loop: Standing, timer: Timer) -> None:
        first, second = loop.create_future(), loop.create_future()
        timer.add(first)
        timer.remove(first)
        await loop.until(20.0)
        timer.add(second)
        await loop.until(29.0)
        assert not second.done()
        await loop.until(30.0)
        assert second.done()

    on(story)


def test_a_loop_that_rings_early_by_its_own_count_is_believed() -> None:
    async def story(loop: Standing, timer: Timer) -> None:
        waiter = loop.create_future()
        timer.add(waiter)
        loop.now = 9.9999
        loop.armed[0]._run()
        assert waiter.done() and len(loop.armed) == 1

    on(story)
