"""Texts have the right form of a noun behind a count."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule import Runner, ToolContext
from ferrule.models import Scripted
from ferrule.tools.files import write_file
from ferrule.values.count import format_count, pluralize


@pytest.mark.parametrize(("count", "text"), [(0, "0 lines"), (1, "1 line"), (2, "2 lines"), (2000, "2,000 lines")])
def test_a_noun_has_its_plural_but_behind_one(count: int, text: str) -> None:
    assert format_count(count, "line") == text
    assert pluralize(count, "differs", "differ") == ("differs" if count == 1 else "differ")


async def test_a_file_of_one_line_has_one_line(tmp_path: Path) -> None:
    context = ToolContext(working_directory=str(tmp_path))
    for text, said in (("a\n", "1 line"), ("a\nb\n", "2 lines")):
        result = await Runner([write_file]).run("write_file", {"path": "a.txt", "content": text}, context)
        assert result.text.endswith(f"'a.txt': {said}")


async def test_a_model_that_was_asked_once_was_asked_one_time() -> None:
    model = Scripted(["a", "b"])
    await model(model.user("?"), Runner([]).tools)
    with pytest.raises(AssertionError, match="1 of 2 steps left over, the model was asked 1 time;"):
        model.assert_done()
