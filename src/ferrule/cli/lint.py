"""`ferrule lint`: refusals of model APIs, likely confusions of a model, and the cost of each tool."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ferrule.cli import servers
from ferrule.cli.screen import lay, screen
from ferrule.cli.text import one_line
from ferrule.cli.timeline import NAME_WIDTH
from ferrule.cli.usage import UsageError, choices
from ferrule.providers import WHERE_POSSIBLE
from ferrule.providers.lint import LEVELS, LIMITS, Cost, Finding, costs, findings

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
_TEXT = 400
_MOST_PATHS = 4
ESTIMATE = (
    "schema: the characters of the tool's input schema, as compact JSON. Under each provider: tokens. "
    "Tokens are an estimate: a quarter of the bytes of a definition in that provider's form, as compact JSON. "
    "What an API puts before the definitions is not in it."
)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the APIs, strictness, and the output format."""
    parser.add_argument(
        "--provider",
        action="append",
        metavar="NAME",
        help=f"one of {', '.join(LIMITS)}; may be repeated (default: all)",
    )
    parser.add_argument("--strict", action="store_true", help="end with 1 for warnings too")
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="TOOL",
        help="you have read the texts of this tool: what may instruct a model in them is a warning; may be repeated",
    )
    parser.add_argument(
        "--strict-schemas",
        action="store_true",
        help="the tools are to be strict: what cannot be is an error, and not a note",
    )
    parser.add_argument(
        "--strict-where-possible",
        action="store_const",
        const=WHERE_POSSIBLE,
        dest="strict_schemas",
        help="the tools are to be strict as far as they can be: what stays plain is a note, with the reason",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")


def command(options: argparse.Namespace) -> int:
    """Print the findings. Return 1 if there is an error, or with `--strict` a warning."""
    providers = list(dict.fromkeys(options.provider or LIMITS))
    for name in providers:
        if name not in LIMITS:
            raise UsageError(f"there is no provider {name!r}; {choices(name, LIMITS)}")
    tools = servers.tools(options)
    for name in options.accept:
        if tools.find(name) is None:
            raise UsageError(f"--accept: there is no tool {name!r}; {choices(name, [tool.name for tool in tools])}")
    found = [_accepted(one, options.accept) for one in findings(tools, providers, options.strict_schemas)]
    each = costs(tools, providers, options.strict_schemas)
    if options.json:
        print(json.dumps(_for_machines(found, each), indent=2))
    else:
        _for_people(found, each, providers)
    failing = ("error", "warning") if options.strict else ("error",)
    return int(any(finding.level in failing for finding in found))


def _accepted(finding: Finding, tools: Sequence[str]) -> Finding:
    is_read = finding.tool in tools and finding.rule in ("instruction", "hidden")
    return dataclasses.replace(finding, level="warning") if is_read else finding


def _for_machines(found: Sequence[Finding], each: Sequence[Cost]) -> dict[str, Any]:
    return {
        "findings": [dataclasses.asdict(finding) for finding in found],
        "costs": [
            {
                "tool": cost.tool,
                "description_characters": cost.description,
                "schema_characters": cost.schema,
                "estimated_tokens": cost.tokens,
            }
            for cost in each
        ],
    }


def _for_people(found: Sequence[Finding], each: Sequence[Cost], providers: Sequence[str]) -> None:
    console = screen()
    if found:
        lay(console, _findings_table(found, console))
        print()
    if each:
        lay(console, _costs_table(each, providers, console))
        print()
        print(ESTIMATE)
    counts = [sum(finding.level == level for finding in found) for level in LEVELS]
    said = [f"{count} {level}{'s' * (count != 1)}" for count, level in zip(counts, LEVELS, strict=True) if count]
    print(", ".join(said) or "Nothing found.")


def _findings_table(found: Sequence[Finding], console: Console) -> Table:
    """Return a table with one row for equal findings of several providers or at several places."""
    rows: dict[tuple[str, ...], list[Finding]] = {}
    for finding in found:
        text = "parameters have no description" if finding.rule == "no-parameter-description" else finding.text
        rows.setdefault((finding.level, finding.tool, finding.rule, text), []).append(finding)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("level", no_wrap=True)
    table.add_column("tool", no_wrap=True, max_width=console.width // 3)
    table.add_column("what")
    for (level, tool, _, text), same in rows.items():
        said = one_line(f"{_provider_names(finding.provider for finding in same)}{text}{_paths_text(same)}", _TEXT)
        table.add_row(Text(level, _STYLES[level]), one_line(tool, NAME_WIDTH), said)
    return table


def _provider_names(providers: Any) -> str:
    names = [name for name in dict.fromkeys(providers) if name]
    return f"{', '.join(names)}: " if names else ""


def _paths_text(same: Sequence[Finding]) -> str:
    paths = [path for path in dict.fromkeys(finding.path for finding in same) if path]
    more = f" and {len(paths) - _MOST_PATHS} more" if len(paths) > _MOST_PATHS else ""
    return f" (at {', '.join(paths[:_MOST_PATHS])}{more})" if paths else ""


def _costs_table(each: Sequence[Cost], providers: Sequence[str], console: Console) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_footer=True, footer_style="bold")
    table.add_column("tool", "together", no_wrap=True, max_width=console.width // 3)
    table.add_column("schema", f"{sum(cost.schema for cost in each):,}", justify="right")
    for name in providers:
        total = sum(cost.tokens[name] or 0 for cost in each)
        table.add_column(name.replace("_", "\n"), f"{total:,}", justify="right")
    for cost in each:
        tokens = ["–" if count is None else f"{count:,}" for count in cost.tokens.values()]
        table.add_row(one_line(cost.tool, NAME_WIDTH), f"{cost.schema:,}", *tokens)
    return table
