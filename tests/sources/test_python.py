"""Tools of files, folders and modules: loaded by file, and nothing is put on the path of imports."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest

from ferrule import DefinitionError, Runner
from ferrule.sources import python

ORDERS = '''
"""Orders."""
from ferrule import tool

PRICES = {"tea": 4}

@tool(read_only=True)
def price(item: str) -> int:
    """The price of an item."""
    return PRICES[item]

def helper() -> None:
    """No tool, as there are tools."""
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders.py").write_text(ORDERS)
    (tmp_path / "mail.py").write_text(
        'def send(to: str) -> str:\n    """Send."""\n    return to\n\ndef _hidden(): ...\n'
    )
    (tmp_path / "_private.py").write_text("raise RuntimeError('it was loaded')")
    (tmp_path / ".hidden.py").write_text("raise RuntimeError('it was loaded')")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "notes.txt").write_text("no Python")
    return tmp_path


async def test_a_folder_gives_the_tools_of_its_files_and_the_path_stays(folder: Path) -> None:
    before = [*sys.path]
    tools = python(folder)
    assert [tool.name for tool in tools] == ["send", "price"] and tools.get("price").read_only is True
    assert [tool.source for tool in tools.report.tools] == [str(folder / "mail.py"), str(folder / "orders.py")]
    assert (await Runner(tools).run("price", {"item": "tea"})).output == 4
    assert sys.path == before and "orders" not in sys.modules


def test_a_text_is_a_path_if_it_ends_in_a_slash_or_py_and_else_a_module(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [tool.name for tool in python(f"{folder}/")] == ["send", "price"]
    assert [tool.name for tool in python(str(folder / "orders.py"), folder / "mail.py")] == ["price", "send"]
    monkeypatch.chdir(folder)
    assert [tool.name for tool in python("orders.py")] == ["price"]
    with pytest.raises(DefinitionError, match=r"No module named 'orders'; a folder or a file is written 'orders/'"):
        python("orders")
    assert "dedent" in python("textwrap") and "dedent" in python(textwrap)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import nothing_of_the_kind", "No module named 'nothing_of_the_kind'"),
        ("def f(:", "SyntaxError"),
        ("import orders", "No module named 'orders'"),
        ("def f(x: object(), y: int) -> int: ...", "f:"),
        ("raise GeneratorExit('over')", "GeneratorExit: over"),
        ("import sys\ndel sys.modules[__name__]\nraise ValueError('gone')", "ValueError: gone"),
    ],
)
def test_a_broken_file_is_left_out_of_a_folder_and_an_error_by_itself(folder: Path, code: str, why: str) -> None:
    (folder / "broken.py").write_text(code)
    tools = python(folder)
    assert [tool.name for tool in tools] == ["send", "price"]
    [left_out] = tools.report.left_out
    assert left_out.item == str(folder / "broken.py") and why in left_out.reason
    assert f"broken.py is left out: {left_out.reason}" in str(tools.report)
    with pytest.raises(DefinitionError) as raised:
        python(folder / "broken.py")
    assert why in str(raised.value)


async def test_a_changed_file_is_loaded_anew_and_earlier_tools_stay(folder: Path) -> None:
    before = python(folder).get("send")
    (folder / "mail.py").write_text('def send(to: str) -> str:\n    """Send."""\n    return "changed"\n')
    after = python(folder).get("send")
    assert (await before(to="ada"), await after(to="ada")) == ("ada", "changed")


@pytest.mark.slow
async def test_a_tool_of_a_file_runs_in_a_process_of_its_own(folder: Path) -> None:
    code = '@tool(isolation="process")\ndef number() -> int:\n    """Which process."""\n    return os.getpid()\n'
    (folder / "apart.py").write_text(f"import os\nfrom ferrule import tool\n\n{code}")
    async with Runner(python(folder / "apart.py")) as runner:
        assert (await runner.run("number")).output not in (None, os.getpid())
