"""How a test of a contract kit is run where it has to pass, or to fail for what is broken."""

from __future__ import annotations

import re
from unittest import SkipTest

import pytest


def run_kit_test(contract: object, name: str) -> None:
    """Run it. One that is skipped has looked at nothing: here that is a failure, and no `AssertionError`."""
    try:
        getattr(contract, f"test_{name}")()
    except SkipTest as skipped:
        pytest.fail(f"test_{name} was skipped: {skipped}")


def expect_kit_failure(contract: object, name: str, said: str) -> None:
    """Fail where the test of the kit passes, or fails by another of its checks than the one that says this."""
    with pytest.raises(AssertionError, match=re.escape(said)):
        run_kit_test(contract, name)
