"""The command line: `ferrule list · schema · lint · select · call · run`; a file is one command.

Each has `options(parser)` and `command(options) -> int`; `program.py` lists them, with what each does and the exit
codes.
"""

from __future__ import annotations

from ferrule.cli.program import main

__all__ = ["main"]
