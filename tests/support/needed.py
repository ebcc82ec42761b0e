"""What a test needs besides Python packages (`scripts/needs.py`): where it is, or the end of the test."""

from __future__ import annotations

import needs
import pytest


def needed(name: str) -> dict[str, str]:
    """Where it is. A need that is not there skips the test on a desk, and fails it where FERRULE_NEEDS=all."""
    try:
        return needs.found(name)
    except LookupError as error:
        if needs.required():
            pytest.fail(f"{error}. Or let `python scripts/needs.py {name}` install it", pytrace=False)
        pytest.skip(str(error))
