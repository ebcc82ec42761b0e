"""What the tables of docs/providers say goes into a request is what the modules write."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ferrule import Media, Runner, ToolCall, ToolError, ToolResult, Toolset, models, tool
from ferrule.providers import NAMES

ROOT = Path(__file__).parent.parent.parent
PAGES = {file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "providers").glob("*.md")}
MODULES = {name: import_module(f"ferrule.providers.{name}") for name in NAMES}
PNG = b"\x89PNG\r\n\x1a\n"
OUTPUTS: dict[str, Any] = {
    "a text": "12 kg",
    "an empty text": "",
    "a JSON value": {"kg": 12},
    "an image": Media("image", PNG, "image/png"),
    "an image at an address": Media("image", None, "image/png", uri="https://a.example/x.png"),
    "an image with `fetch=True`": Media("image", None, "image/png", uri="https://a.example/x.png", fetch=True),
    "a PDF": Media("file", b"%PDF", "application/pdf", name="a.pdf"),
    "a text file": Media("file", b"a,b", "text/csv", name="a.csv"),
    "audio": Media("audio", b"RIFF", "audio/wav"),
    "another file": Media("file", b"PK", "application/zip", name="a.zip"),
    "a failed call": ToolError("there is no scale"),
    "a suspended call": None,
}
"""What the rows of the tables of outputs are about."""
ALWAYS = ("a text", "a JSON value", "an image", "a failed call")
"""The rows that each table has."""


class Row(NamedTuple):
    page: str
    cells: tuple[str, ...]


def rows(head: str) -> list[Row]:
    """The rows of the tables, on all pages, whose first head is this one and whose second begins with that."""
    found = []
    for page, text in sorted(PAGES.items()):
        for table in re.findall(rf"^\| {re.escape(head)}.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE):
            found += [
                Row(page, tuple(cell.strip() for cell in line.strip("|").split(" | "))) for line in table.splitlines()
            ]
    return found


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def module_of(page: str) -> Any:
    return MODULES[page.replace("-", "_")]


def missing(value: Any, cell: str) -> list[str]:
    """The pieces of JSON, and the lines about media, that a cell quotes and `value` does not have; `…` is anything."""
    written = json.dumps(value, default=repr, ensure_ascii=False)
    pieces = [piece for piece in quoted(cell) if piece[0] in '"{[']
    patterns = {piece: ".*".join(map(re.escape, re.split(" *… *", piece))) for piece in pieces}
    return [piece for piece, pattern in patterns.items() if not re.search(pattern, written)]


@tool(read_only=True)
async def weigh(item: str) -> Any:
    """Weigh an item of the stock."""
    if isinstance(OUTPUTS[item], Exception):
        raise OUTPUTS[item]
    return OUTPUTS[item]


@tool(ask=True)
async def pay(item: str) -> str:
    """Pay for an item."""
    return item


def plain_price(item: str) -> str:
    """Look up what an item costs."""
    return item


TOOLSET = Toolset([weigh, tool(plain_price, name="price")])


async def result(output: str) -> ToolResult:
    runner = Runner([weigh, pay], approve=lambda call, decision, context: decision)
    name = "pay" if output == "a suspended call" else "weigh"
    return await runner.run(ToolCall("call_1", name, {"item": output}))


def outputs_on(page: str) -> list[str]:
    return [row.cells[0] for row in rows("A tool returns") if row.page == page]


def test_each_module_has_a_page_with_rows_for_the_common_outputs() -> None:
    assert sorted(module_of(page).__name__.rpartition(".")[2] for page in PAGES) == sorted(NAMES)
    for page in PAGES:
        named = outputs_on(page)
        assert named == [output for output in OUTPUTS if output in named] and set(ALWAYS) <= set(named)


@pytest.mark.parametrize("row", rows("A tool returns"), ids=lambda row: f"{row.page} {row.cells[0]}")
async def test_an_output_goes_where_the_page_says(row: Row) -> None:
    output, where, *interactions = row.cells
    found = await result(output)
    assert quoted(where) and missing(module_of(row.page).results([found]), where) == []
    for cell in interactions:
        assert found.call is not None and quoted(cell)
        step = found.replace(call=found.call.replace(data={"type": "function_call"}))
        assert missing(module_of(row.page).results([step]), cell) == []


def value_of(code: str, module: Any) -> Any:
    """What a cell's code gives: an option of a tool stands for the definition of a tool that has it."""
    if code.startswith("@"):
        made = eval(code.removeprefix("@"), {"tool": tool})(plain_price)
        return module.tools(Toolset([made]))
    return eval(code, {**MODULES, "toolset": TOOLSET})


ASKED = [row for row in rows("You write | In the request") if not row.cells[1].startswith("nothing")]


@pytest.mark.parametrize("row", ASKED, ids=lambda row: " ".join(row.cells[:1]))
def test_an_option_is_in_the_request_as_the_page_says(row: Row) -> None:
    [code], said = quoted(row.cells[0]), row.cells[1]
    assert quoted(said) and missing(value_of(code, module_of(row.page)), said) == []


NAMED = [code for text in PAGES.values() for code in re.findall(r"`(models\.\w+\([^`\n]*)`", text)]


def test_the_models_that_the_pages_name_take_these_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "MISTRAL_API_KEY", "CO_API_KEY"):
        monkeypatch.setenv(name, "dummy")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    assert len(NAMED) > 8
    for code in NAMED:
        assert eval(code.replace("…", '"name"'), {"models": models})
