"""The command line: `ferrule list · schema · lint · call · run`; a file is one command.

Each has `NAME`, `HELP`, `options(parser)` and `command(options) -> int`; `program.py` lists them.
Exit codes: 0 it worked, 1 the call or the run failed or lint found an error,
2 what was written on the command line cannot be meant, 130 ctrl-C ended it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

WITHOUT_RICH = 'ferrule: the command line needs the package rich, which is not installed: pip install "ferrule[cli]"'


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `argv` is the command line without the program's name."""
    try:
        from ferrule.cli import program  # an extra: the message below is for those who do not have it
    except ImportError as error:
        if (error.name or "").split(".")[0] != "rich":
            raise
        print(WITHOUT_RICH, file=sys.stderr)
        return 2
    return program.main(argv)
