"""`python -m ferrule.cli` is `ferrule`."""

from __future__ import annotations

import sys

from ferrule.cli import main

if __name__ == "__main__":
    sys.exit(main())
