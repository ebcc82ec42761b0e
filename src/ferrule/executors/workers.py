"""`Workers`: worker processes that you size and close yourself."""

from __future__ import annotations

from ferrule.definition.options import check_isolation
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.executors import Executor
from ferrule.executors.process.executor import ProcessExecutor
from ferrule.executors.process.pool import WorkerPool
from ferrule.executors.process.transfer import Transfer


class Workers:
    """Worker processes for the tools that have this as `isolation=`. See docs/long-work.md.

    They are separate from the workers of `isolation="process"`. Make them once, where you define the tools. They last
    until `close` or the end of the program.

    Args:
        count: The number of calls that run at once, each in its own process. Other calls wait for a slot.
        transfer: The form of arguments and results on the way: `"json"`, or `"pickle"` for any Python objects. Choose
            `"pickle"` only for handlers that you trust: they can run code in your program.

    Raises:
        DefinitionError: `count` is not a whole number of at least 1, `transfer` is neither of the two, or the platform
            has no process groups.
    """

    def __init__(self, count: int, transfer: Transfer = "json") -> None:
        check_isolation("isolation", "process")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:  # type: ignore[redundant-expr]
            raise DefinitionError(f"Workers(count) takes a whole number of at least 1, not {count!r}")
        if transfer not in ("json", "pickle"):
            raise DefinitionError(f"Workers(transfer=…) takes 'json' or 'pickle', not {transfer!r}")
        self._count, self._transfer = count, transfer
        self._pool = WorkerPool(count)

    def executor(self, tool: Tool) -> Executor:
        """Return the executor that runs the handler of `tool` in one of these processes.

        Raises:
            DefinitionError: Another process could not import the handler.
        """
        return ProcessExecutor(tool, self._pool, self._transfer)

    def close(self) -> None:
        """Kill the processes and everything that they have started. Later calls of their tools fail."""
        self._pool.close()

    def __repr__(self) -> str:
        return f"Workers({self._count})"
