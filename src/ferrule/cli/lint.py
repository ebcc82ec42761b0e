"""`ferrule lint`: refusals of model APIs, likely confusions of a model, and the cost of each tool."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from ferrule.cli import servers
from ferrule.cli.screen import make_console, make_table, print_table, wide
from ferrule.cli.shared_options import add_json
from ferrule.cli.text import print_json, to_line
from ferrule.cli.timeline import NAME_WIDTH
from ferrule.cli.usage import check_known
from ferrule.providers import WHERE_POSSIBLE
from ferrule.providers.lint import LEVELS, LIMITS, Cost, Finding, costs, findings
from ferrule.values.count import format_count

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
_TEXT = 400
_MOST_PATHS = 4
ESTIMATE = (
    "schema: characters of the tool's input schema as compact JSON. The other columns are tokens of the definition for "
    "each provider: an estimate, one quarter of its bytes. It excludes the text that an API adds to the definitions."
)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the APIs, strictness, and the output format."""
    parser.add_argument(
        "--provider",
        action="append",
        metavar="NAME",
        help=f"check for this provider only; may be repeated: {', '.join(LIMITS)}",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="TOOL",
        help="you have read the texts of this tool: report instructions and hidden characters in them as notes; may "
        "be repeated",
    )
    parser.add_argument(
        "--strict-schemas",
        action="store_true",
        help="report a schema that strict mode cannot take as an error, not as a note",
    )
    parser.add_argument(
        "--strict-where-possible",
        action="store_const",
        const=WHERE_POSSIBLE,
        dest="strict_schemas",
        help="report each schema that stays non-strict as a note, with the reason",
    )
    add_json(parser)


def command(options: argparse.Namespace) -> int:
    """Print the findings. Return 1 if there is an error, or with `--strict` a warning."""
    providers = list(dict.fromkeys(options.provider or LIMITS))
    check_known("provider", providers, LIMITS)
    tools = servers.load_tools(options)
    check_known("tool", options.accept, [tool.name for tool in tools], "--accept")
    found = [_apply_accept(finding, options.accept) for finding in findings(tools, providers, options.strict_schemas)]
    tool_costs = costs(tools, providers, options.strict_schemas)
    if options.json:
        print_json(_to_json(found, tool_costs))
    else:
        _print_report(found, tool_costs, providers)
    failing = ("error", "warning") if options.strict else ("error",)
    return int(any(finding.level in failing for finding in found))


def _apply_accept(finding: Finding, tools: Sequence[str]) -> Finding:
    is_read = finding.tool in tools and finding.rule in ("instruction", "hidden")
    return dataclasses.replace(finding, level="note") if is_read else finding


def _to_json(found: Sequence[Finding], tool_costs: Sequence[Cost]) -> dict[str, Any]:
    return {
        "findings": [dataclasses.asdict(finding) for finding in found],
        "costs": [
            {
                "tool": cost.tool,
                "description_characters": cost.description,
                "schema_characters": cost.schema,
                "estimated_tokens": cost.tokens,
            }
            for cost in tool_costs
        ],
    }


def _print_report(found: Sequence[Finding], tool_costs: Sequence[Cost], providers: Sequence[str]) -> None:
    if found:
        print_table(_findings_table(found))
        print()
    if tool_costs:
        print_table(_costs_table(tool_costs, providers))
        print()
        print(ESTIMATE)
    counts = {level: sum(finding.level == level for finding in found) for level in LEVELS}
    print(", ".join(format_count(count, level) for level, count in counts.items() if count) or "No findings.")


def _findings_table(found: Sequence[Finding]) -> Table:
    """Return a table with one row for equal findings of several providers or at several places."""
    rows: dict[tuple[str, ...], list[Finding]] = {}
    for finding in found:
        text = "parameters have no description" if finding.rule == "no-parameter-description" else finding.text
        rows.setdefault((finding.level, finding.tool, finding.rule, text), []).append(finding)
    table = make_table("level", _tool_column(), wide("finding"))
    for (level, tool, _, text), same in rows.items():
        full = to_line(f"{_provider_names(finding.provider for finding in same)}{text}{_paths_text(same)}", _TEXT)
        table.add_row(Text(level, _STYLES[level]), to_line(tool, NAME_WIDTH), full)
    return table


def _tool_column(footer: str = "") -> Column:
    return Column("tool", footer, no_wrap=True, max_width=make_console().width // 3)


def _provider_names(providers: Any) -> str:
    names = [name for name in dict.fromkeys(providers) if name]
    return f"{', '.join(names)}: " if names else ""


def _paths_text(same: Sequence[Finding]) -> str:
    paths = [path for path in dict.fromkeys(finding.path for finding in same) if path]
    more = f" and {len(paths) - _MOST_PATHS} more" if len(paths) > _MOST_PATHS else ""
    return f" (at {', '.join(paths[:_MOST_PATHS])}{more})" if paths else ""


def _costs_table(tool_costs: Sequence[Cost], providers: Sequence[str]) -> Table:
    columns = {"schema": sum(cost.schema for cost in tool_costs)}
    columns |= {name.replace("_", "\n"): sum(cost.tokens[name] or 0 for cost in tool_costs) for name in providers}
    sums = [Column(title, f"{total:,}", justify="right") for title, total in columns.items()]
    table = make_table(_tool_column("total"), *sums, show_footer=True, footer_style="bold")
    for cost in tool_costs:
        tokens = ["–" if count is None else f"{count:,}" for count in cost.tokens.values()]
        table.add_row(to_line(cost.tool, NAME_WIDTH), f"{cost.schema:,}", *tokens)
    return table
