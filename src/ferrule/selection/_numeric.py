"""numpy, if it is installed: the extra `ferrule[selection]`."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def numpy() -> Any:
    """Return the module, or `None`. It is imported on demand, because that takes a tenth of a second."""
    try:
        return import_module("numpy")
    except ImportError:
        return None
