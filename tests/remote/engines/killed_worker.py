"""`ferrule worker` that is killed at a named point of a call, where the file says so that FAR_KILL names; once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import started_worker  # noqa: F401

from ferrule.cli import main
from ferrule.remote import _dbos_database, _order_runner, dbos

POINTS = ("claimed", "began", "effect", "told", "recorded")
"""Before the order is read; with the first message written and the handler not begun; with the effect and no word of
it; with the value written; with the step recorded and the workflow not ended."""


def passes(point: str) -> None:
    """Die here, where that is wanted."""
    wanted = Path(os.environ["FAR_KILL"])
    try:
        if wanted.read_text() != point:
            return
        wanted.unlink()  # one worker of several
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def killed_on_its_way() -> None:
    run, pack = _order_runner.OrderRunner.run, _order_runner.pack

    async def told(self: Any, *args: Any, **about: Any) -> AsyncGenerator[str, None]:
        passes("claimed")
        async with aclosing(run(self, *args, **about)) as messages:
            first = True
            async for message in messages:
                yield message
                passes("began" if first else "told")  # it is written once the next is asked for
                first = False

    def packed(*args: Any) -> bytes:
        passes("effect")
        return pack(*args)

    _order_runner.OrderRunner.run, _order_runner.pack = told, packed  # type: ignore[method-assign,assignment]
    dbos_class = dbos.import_dbos().DBOS
    step = dbos_class.run_step_async

    async def recorded(*args: Any) -> Any:
        value = await step(*args)
        passes("recorded")
        return value

    dbos_class.run_step_async = recorded


if __name__ == "__main__":
    _dbos_database.ALIVE_SECONDS = dbos.ALIVE_SECONDS = 1.0
    killed_on_its_way()
    sys.exit(main())
