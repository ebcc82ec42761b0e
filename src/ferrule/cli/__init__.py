"""The command line: lists tools, calls and judges them, lets a model use them, and shows past calls.

`ferrule list · schema · lint · lock · select · policy · decide · grants · call · run · log · explain · serve · worker`.
A file is one command. Each has `options(parser)` and `command(options) -> int`; `program.py` lists them, with a line on
each and the exit codes.
"""

from __future__ import annotations

from ferrule.cli.grant_store import GrantStore
from ferrule.cli.program import main

__all__ = ["GrantStore", "main"]
