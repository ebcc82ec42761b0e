"""`Workers`: worker processes of your own, as many as you say."""

from __future__ import annotations

from ferrule.definition.options import isolating
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.executors import Executor
from ferrule.isolation.executor import InProcess
from ferrule.isolation.pool import WorkerPool


class Workers:
    """Worker processes for the tools that have this as `isolation=`, beside those of `isolation="process"`. See
    docs/long-work.md.

    Make it once, where the tools are defined: the processes last as long as the program, or until `close`.

    Args:
        count: How many calls run at once, each in a process; a call beyond that waits as for any slot.

    Raises:
        DefinitionError: for what is no whole number above 0, and where the platform has no process groups.
    """

    def __init__(self, count: int) -> None:
        isolating("isolation", "process")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:  # type: ignore[redundant-expr]
            raise DefinitionError(f"Workers(count) takes a whole number of at least 1, not {count!r}")
        self._count = count
        self._pool = WorkerPool(count)

    def executor(self, tool: Tool) -> Executor:
        """What runs the handler of `tool` in one of these processes.

        Raises:
            DefinitionError: where another process could not import it.
        """
        return InProcess(tool, self._pool)

    def close(self) -> None:
        """End the processes, with all that they have started; who calls one of the tools then is told so."""
        self._pool.close()

    def __repr__(self) -> str:
        return f"Workers({self._count})"
