"""What the tables of docs/providers say goes into a request is what the modules write."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ferrule import DefinitionError, Media, Runner, ToolCall, ToolError, ToolResult, Toolset, build_tool, models, tool
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
EVERYWHERE = {
    "a text file": "a,b",
    "audio": r"\[audio of 4 bytes, audio/wav: it cannot be ",
    "another file": r"\[file of 2 bytes named 'a.zip', application/zip: it cannot be ",
    "an image at an address": r"\[image, image/png, at 'https://a.example/x.png': it cannot be ",
    "an image with `fetch=True`": r"\[image, image/png, at 'https://a.example/x.png': it cannot be ",
    "a PDF": r"\[file of 4 bytes named 'a.pdf', application/pdf: it cannot be ",
    "a suspended call": "the call 'call_1' of 'pay' is suspended ",
}
"""What docs/models.md says of every API, unless a page has a row of its own."""


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


@pytest.mark.parametrize("output", EVERYWHERE)
async def test_an_output_without_a_row_is_sent_as_everywhere(output: str) -> None:
    found = await result(output)
    for page in PAGES:
        written = json.dumps(module_of(page).results([found]), default=repr)
        assert output in outputs_on(page) or re.search(EVERYWHERE[output], written), page


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
NO_EXAMPLES = sorted({*NAMES} - {"anthropic"})
"""The APIs that take no examples of arguments."""


@pytest.mark.parametrize("row", ASKED, ids=lambda row: " ".join(row.cells[:1]))
def test_an_option_is_in_the_request_as_the_page_says(row: Row) -> None:
    [code], said = quoted(row.cells[0]), row.cells[1]
    assert quoted(said) and missing(value_of(code, module_of(row.page)), said) == []


@pytest.mark.parametrize("name", NO_EXAMPLES)
def test_examples_change_nothing_where_an_api_takes_none(name: str) -> None:
    made = [Toolset([tool(plain_price, **options)]) for options in ({}, {"examples": [{"item": "anvil"}]})]
    assert MODULES[name].tools(made[0]) == MODULES[name].tools(made[1])


REFUSED = {
    'anthropic.tool_choice("auto", only=["weigh"])': "offer fewer",
    'anthropic.tools(toolset, deferred=["cost"])': "it has ['price', 'weigh']",
    'bedrock.tool_choice("none")': "leave toolConfig out",
    'bedrock.tool_choice("auto", parallel=False)': "additionalModelRequestFields",
    'cohere.tool_choice("price")': "offer the tool alone",
    'cohere.tool_choice("auto", parallel=False)': "leave parallel=False out",
    'cohere.tools(toolset, strict=["weigh"])': "pass strict=True",
    "ollama.tools(toolset, strict=True)": "Leave strict out",
    'ollama.tool_choice("required")': "offer the tools that may be called",
    'ollama.tool_choice("none")': "leave the tools out",
    'openai_chat.tool_choice("none", only=["weigh"])': "leave it out",
    'openai_responses.tool_choice("none", only=["weigh"])': "leave it out",
    'openai_responses.tools(toolset, strict=["cost"])': "strict='where possible' means all that can be",
}
"""What an API cannot say, and what its error says to do instead."""


@pytest.mark.parametrize("code", REFUSED)
def test_a_refused_option_is_an_error_with_the_way_out(code: str) -> None:
    with pytest.raises(DefinitionError, match=re.escape(REFUSED[code])):
        value_of(code, None)


def test_a_name_that_does_not_fit_is_sent_as_the_page_on_models_says() -> None:
    said = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    for module in MODULES.values():
        written = json.dumps(module.tools(Toolset([tool(plain_price, name="stock.weigh")])))
        [name] = re.findall(r'"(stock_weigh_\w+)"', written)
        assert f'`@tool(name="stock.weigh")` is `{name}`, for every API' in said


NAMED = [code for text in PAGES.values() for code in re.findall(r"`(models\.\w+\([^`\n]*)`", text)]


def test_the_models_that_the_pages_name_take_these_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "MISTRAL_API_KEY", "CO_API_KEY"):
        monkeypatch.setenv(name, "dummy")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    assert len(NAMED) > 8
    for code in NAMED:
        assert eval(code.replace("…", '"name"'), {"models": models})


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_page_says_if_a_parameter_may_not_have_any_name(page: str) -> None:
    schema = {"type": "object", "properties": {"the item": {"type": "string"}}}
    odd = build_tool({"name": "odd", "input_schema": schema, "execute": lambda payload, context: "ran"})
    may = "another is a `DefinitionError`" not in PAGES[page]
    with nullcontext() if may else pytest.raises(DefinitionError, match="the item"):
        module_of(page).tools(Toolset([odd]))
