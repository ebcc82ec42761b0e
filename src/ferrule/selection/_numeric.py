"""numpy, where it is installed: the extra `ferrule[selection]`."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def numpy() -> Any:
    """The module, or `None`; imported when it is needed, because that takes a tenth of a second."""
    try:
        return import_module("numpy")
    except ImportError:
        return None
