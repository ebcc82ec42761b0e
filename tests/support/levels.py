"""How many levels of lists and objects Pydantic writes on this platform."""

from __future__ import annotations

import pytest
from pydantic_core import PydanticSerializationError, from_json, to_json


def _writes_all_that_it_reads() -> bool:
    try:
        to_json(from_json("[" * 200 + "]" * 200))
    except PydanticSerializationError:
        return False
    return True


writes_all_levels = pytest.mark.skipif(
    not _writes_all_that_it_reads(),
    reason="Pydantic reads 200 levels, and writes only 99 on Windows and 48 in WebAssembly",
)
