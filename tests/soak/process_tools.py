"""The tool of the soak that runs in another process, in a module of its own: a worker imports it for each start."""

from __future__ import annotations

import os

from ferrule import tool


@tool(isolation="process", timeout=60)
def elsewhere(number: int, dies: bool = False) -> int:
    """Square a number in another process."""
    if dies:
        os._exit(3)
    return number * number
