"""Texts have the right form of a noun behind a count."""

from __future__ import annotations

import pytest

from ferrule.values.count import format_count, pluralize


@pytest.mark.parametrize(("count", "text"), [(0, "0 lines"), (1, "1 line"), (2, "2 lines"), (2000, "2,000 lines")])
def test_a_noun_has_its_plural_but_behind_one(count: int, text: str) -> None:
    assert format_count(count, "line") == text
    assert pluralize(count, "differs", "differ") == ("differs" if count == 1 else "differ")
