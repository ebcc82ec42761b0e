"""The command line: lists tools, calls and judges them, lets a model use them, and shows past calls.

`ferrule list · schema · lint · lock · select · policy · decide · grants · call · run · log · explain · serve · worker`.
A file is one command. Each has `options(parser)` and `command(options) -> int`; `program.py` lists them, with a line on
each and the exit codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.cli.program import main

if TYPE_CHECKING:
    from ferrule.cli.grant_store import GrantStore

__all__ = ["GrantStore", "main"]


def __getattr__(name: str) -> object:
    if name == "GrantStore":  # `ferrule --help` does not need it
        from ferrule.cli.grant_store import GrantStore

        return GrantStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
