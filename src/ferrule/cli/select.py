"""`ferrule select`: measure how well a ranker finds the right tools, and explain its scores."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ferrule import Tool
from ferrule.cli import servers
from ferrule.cli.screen import lay, screen
from ferrule.cli.selectors import selector_at
from ferrule.cli.text import one_line
from ferrule.cli.timeline import NAME_WIDTH
from ferrule.cli.usage import UsageError, choices, share
from ferrule.selection import Match, Ranker, evaluate, read_queries, read_tools
from ferrule.selection.evaluation import Evaluation, Ranks

_ACTIONS = ("eval", "why")
_MOST_CONFUSED = 10
_MOST_EXPLAINED = 10
_PARTS_WIDTH = 400
_TOOLS_FILE = ".jsonl"


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the action, its subject, and the ranker."""
    parser.add_argument("action", help="eval measures on labelled queries, why explains what is found for one")
    parser.add_argument("subject", help="eval: the file of queries, QUERIES.jsonl; why: the text of one query")
    parser.add_argument(
        "--by",
        default="keyword",
        metavar="NAME",
        help="which ranker: keyword, the name of a plug-in, or a module or file with an attribute that is one, such as "
        "my.module:ranker (default: keyword)",
    )
    for option, what in (("--min-recall5", "recall@5"), ("--min-ndcg", "NDCG@10")):
        parser.add_argument(option, type=share, metavar="SHARE", help=f"eval: end with 1 where {what} is below this")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")


def command(options: argparse.Namespace) -> int:
    """Print the findings. Return 1 if a threshold is missed."""
    if options.action not in _ACTIONS:
        raise UsageError(f"select does no {options.action!r}; {choices(options.action, _ACTIONS)}")
    if options.action == "eval":
        return _evaluate(options)
    if options.min_recall5 is not None or options.min_ndcg is not None:
        raise UsageError("--min-recall5 and --min-ndcg are for select eval: one query has nothing to be measured by")
    return _explain(options)


def _tools(options: argparse.Namespace) -> list[Tool]:
    """Return the tools that `--tools`, `--mcp` and `--openapi` name. A place that ends in .jsonl is a file of
    definitions.
    """
    places = options.tools or []
    files = [place for place in places if place.endswith(_TOOLS_FILE)]
    rest = [place for place in places if not place.endswith(_TOOLS_FILE)]
    found: list[Tool] = []
    for place in files:
        try:
            found += read_tools(place)
        except OSError as error:
            raise UsageError(f"the tools of {place!r} cannot be read: {error.strerror or error}") from None
    if rest or servers.named(options) or not files:
        found += servers.tools(argparse.Namespace(**{**vars(options), "tools": rest or None}))
    return found


def _ranker(name: str) -> Ranker:
    found = selector_at("--by", name)
    if not isinstance(found, Ranker):
        raise UsageError(f"--by {name}: {found!r} is no ranker: it has no rank(tools, query, limit=…) beside select")
    return found


# eval


def _evaluate(options: argparse.Namespace) -> int:
    try:
        queries = read_queries(options.subject)
    except OSError as error:
        raise UsageError(f"the queries of {options.subject!r} cannot be read: {error.strerror or error}") from None
    found = evaluate(_ranker(options.by), _tools(options), queries)
    missed = _missed(found, options)
    if options.json:
        print(json.dumps(_for_programs(found, missed), indent=2, ensure_ascii=False))
    else:
        _show(found, options.by)
        for line in missed:
            print(line)
    return int(bool(missed))


def _missed(found: Evaluation, options: argparse.Namespace) -> list[str]:
    measured = (("recall@5", found.recall[5], options.min_recall5), ("NDCG@10", found.ndcg, options.min_ndcg))
    return [
        f"{name} is {value:.4f}, and at least {least:g} was asked for"
        for name, value, least in measured
        if least is not None and value < least
    ]


def _for_programs(found: Evaluation, missed: Sequence[str]) -> dict[str, Any]:
    return {
        "tools": found.tools,
        "queries": len(found.ranks),
        "recall": {str(few): value for few, value in found.recall.items()},
        "ndcg": found.ndcg,
        "estimated_tokens": {
            "all": found.tokens,
            "first": {str(few): value for few, value in found.tokens_of_first.items()},
        },
        "confusable": [pair._asdict() for pair in found.confusable],
        "ranks": [{"id": one.query.id, "places": dict(one.places), "found": list(one.found)} for one in found.ranks],
        "missed": list(missed),
    }


def _show(found: Evaluation, by: str) -> None:
    console = screen()
    print(f"{_counted_queries(found.ranks)} over {found.tools:,} tools, ranked by {by}")
    print()
    table = _table("tools offered", "recall", "tokens")
    for few, recall in found.recall.items():
        table.add_row(f"the first {few}", f"{recall:.3f}", f"{found.tokens_of_first[few]:,.0f}")
    table.add_row(f"all {found.tools:,}", "1.000", f"{found.tokens:,}")
    lay(console, table)
    print(f"NDCG@10 {found.ndcg:.3f}")
    lost = [one for one in found.ranks if None in one.places.values()]
    if lost:
        print(f"{_counted_queries(lost)} of which a right tool was not found, such as {_lost_text(lost[0])}")
    if found.confusable:
        print()
        lay(console, _confusions(found, console))
    print()
    print("Tokens are an estimate: a quarter of the bytes of a definition as JSON.")


def _counted_queries(ranks: Sequence[Ranks]) -> str:
    return f"{len(ranks):,} {'query' if len(ranks) == 1 else 'queries'}"


def _lost_text(one: Ranks) -> str:
    return f"{one_line(one.query.id or one.query.text, NAME_WIDTH)} ({one_line(one.query.text, NAME_WIDTH)})"


def _confusions(found: Evaluation, console: Console) -> Table:
    table = _table("right", "stands below", "queries", width=console.width // 2 - 6)
    for pair in found.confusable[:_MOST_CONFUSED]:
        table.add_row(one_line(pair.right, NAME_WIDTH), one_line(pair.wrong, NAME_WIDTH), f"{pair.queries:,}")
    return table


def _table(first: str, *others: str, width: int | None = None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True, max_width=width)
    for name in others:
        is_text = name == "stands below"
        table.add_column(name, no_wrap=True, max_width=width, justify="left" if is_text else "right")
    return table


# why


def _explain(options: argparse.Namespace) -> int:
    if not options.subject.strip():
        raise UsageError('select why takes a query, such as: ferrule select why "read a file"')
    ranker, tools = _ranker(options.by), _tools(options)
    rows = _explained(ranker, tools, options.subject)
    if options.json:
        print(json.dumps([_row_for_programs(*row) for row in rows], indent=2, ensure_ascii=False))
    elif not rows:
        print(f"None of the {len(tools):,} tools fits.")
    else:
        lay(screen(), _scores(rows))
        if rows[0][1] is None:
            print(f"{options.by} does not say what its scores come from: it has no explain(tools, query, limit=…).")
    return 0


def _explained(ranker: Ranker, tools: Sequence[Tool], query: str) -> list[tuple[Match, Sequence[Any] | None]]:
    """Return the found tools, each with the parts of its score; `None` if the ranker does not explain them."""
    explain = getattr(ranker, "explain", None)
    if explain is None:
        return [(match, None) for match in ranker.rank(tools, query, limit=_MOST_EXPLAINED)]
    return [(one.match, one.parts) for one in explain(tools, query, limit=_MOST_EXPLAINED)]


def _scores(rows: Sequence[tuple[Match, Sequence[Any] | None]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("tool", no_wrap=True, max_width=screen().width // 3)
    table.add_column("from")
    for match, parts in rows:
        table.add_row(f"{match.score:.2f}", one_line(match.tool.name, NAME_WIDTH), _parts_text(parts or ()))
    return table


def _parts_text(parts: Sequence[Any]) -> str:
    """Return `tea 2.10 (name), left 0.31 (description)`: the largest parts first, without parts that round to 0.00."""
    ordered = sorted((part for part in parts if round(part.score, 2)), key=lambda part: -abs(part.score))
    told = (f"{part.term} {part.score:.2f} ({part.field})".strip() for part in ordered)
    return one_line(", ".join(told), _PARTS_WIDTH)


def _row_for_programs(match: Match, parts: Sequence[Any] | None) -> dict[str, Any]:
    row: dict[str, Any] = {"tool": match.tool.name, "score": match.score}
    if parts is not None:
        row["parts"] = [{"term": part.term, "field": part.field, "score": part.score} for part in parts]
    return row
