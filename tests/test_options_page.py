"""The tables of docs/options.md have each option of the code, and a page that is made those of the commands."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from mkdocs_hooks import command_options

from ferrule import Runner, Sizes, Waits, loop
from ferrule.cli.program import COMMANDS, make_parser
from ferrule.definition.options import DEFAULTS, OPTIONS
from ferrule.runner import EXPOSED, CallOptions

PAGE = (Path(__file__).parent.parent / "docs" / "options.md").read_text(encoding="utf-8")
DERIVED = {"description", "timeout", "idle_timeout", "context", "destructive", "parallel"}
"""The options of a tool whose default comes from elsewhere."""


def rows(title: str) -> list[list[str]]:
    """The cells of the rows below a heading, up to the next heading."""
    section = PAGE.partition(f"# {title}\n")[2].partition("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def written(default: object) -> str:
    """A default as the page writes it."""
    if default is inspect.Parameter.empty:
        return "required"
    if isinstance(default, str):
        return f'`"{default}"`'
    if isinstance(default, Waits | Sizes):
        return f"`{type(default).__name__}()`"
    if default == EXPOSED:
        return f"`({', '.join(kind.__name__ for kind in EXPOSED)})`"
    return f"`{dict(default) if isinstance(default, dict) else default!r}`"


def defaults(function: Any, leave_out: int = 0) -> list[list[str]]:
    named = [one for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD]
    return [[f"`{one.name}`", written(one.default)] for one in named[leave_out:]]


@pytest.mark.parametrize(
    ("title", "function", "leave_out"),
    [("Runner", Runner, 0), ("Waits", Waits, 0), ("Sizes", Sizes, 0), ("The loop", loop.run, 3)],
)
def test_a_table_has_the_parameters_and_their_defaults(title: str, function: Any, leave_out: int) -> None:
    assert [row[:2] for row in rows(title)] == defaults(function, leave_out)


def test_the_table_of_a_tool_has_its_options_and_their_defaults() -> None:
    shown = {name.strip("`"): default for name, default, _ in rows("Tool")}
    assert [*shown] == [*OPTIONS]
    plain = {name: written(default) for name, default in DEFAULTS.items() if name not in DERIVED}
    assert {name: shown[name] for name in plain} == plain


def test_the_table_of_a_call_has_its_options() -> None:
    shown = {name for row in rows("A call") for name in re.findall(r"`(\w+)`", row[0])}
    assert shown == {*inspect.get_annotations(CallOptions)} | {"principal", "session", "deps", "timeout"}


def test_the_page_of_the_commands_has_each_option_of_each_command() -> None:
    sections = dict(re.findall(r"(?ms)^## (.*?)\n(.*?)(?=^## |\Z)", command_options()))
    assert [*sections] == ["Tools", *(f"ferrule {command}" for command in COMMANDS)]
    for command in COMMANDS:
        parser = make_parser(command, importlib.import_module(f"ferrule.cli.{command}"))
        text = sections[f"ferrule {command}"] + (sections["Tools"] if f"`{command}`" in sections["Tools"] else "")
        shown = re.findall(r"(?m)^\| `(--[\w-]+)", text)
        named = {name for name in parser._option_string_actions if name.startswith("--")} - {"--help"}
        assert sorted(shown) == sorted(named) and "%(" not in text
