"""Handlers with `isolation="process"`: the seam behind which `ferrule.isolation` stands."""

from __future__ import annotations

from ferrule.definition.tool import Tool
from ferrule.executors import Executor


def in_process(tool: Tool) -> Executor:
    """What runs the handler in worker processes."""
    from ferrule.isolation.executor import InProcess  # 20 ms, for the programs that need it

    return InProcess(tool)
