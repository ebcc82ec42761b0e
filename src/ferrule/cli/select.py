"""`ferrule select`: measure how well a ranker finds the right tools, or explain its scores."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from rich.table import Column, Table

from ferrule import Tool
from ferrule.cli import servers
from ferrule.cli.screen import make_console, make_table, number, print_table, wide
from ferrule.cli.selectors import load_selector
from ferrule.cli.shared_options import add_json, add_minimum
from ferrule.cli.text import print_json, to_line
from ferrule.cli.timeline import NAME_WIDTH
from ferrule.cli.usage import UsageError, read_or_refuse
from ferrule.selection import Match, Ranker, evaluate, read_queries, read_tools
from ferrule.selection.evaluation import Evaluation, Ranks
from ferrule.values.count import format_count

_MOST_CONFUSED = 10
_MOST_EXPLAINED = 10
_PARTS_WIDTH = 400
_TOOLS_FILE = ".jsonl"


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the action, its subject, and the ranker."""
    parser.add_argument(
        "action",
        choices=["eval", "why"],
        help="eval: measure the search with labelled queries. why: show why tools are found for one query",
    )
    parser.add_argument("subject", help="eval: the file of queries, QUERIES.jsonl. why: the query, in quotes")
    parser.add_argument(
        "--by",
        default="keyword",
        metavar="RANKER",
        help="keyword, the name of a plug-in, or MODULE_OR_FILE:NAME (default: keyword)",
    )
    add_minimum(parser, "--min-recall5", "recall@5 of eval")
    add_minimum(parser, "--min-ndcg", "NDCG@10 of eval")
    add_json(parser)


def command(options: argparse.Namespace) -> int:
    """Print the measures or the scores. Return 1 if a measure is too low."""
    if options.action == "eval":
        return _evaluate(options)
    if options.min_recall5 is not None or options.min_ndcg is not None:
        raise UsageError("--min-recall5 and --min-ndcg are options of ferrule select eval, not of why")
    return _explain(options)


def _load_tools(options: argparse.Namespace) -> list[Tool]:
    """Return the tools that `--tools`, `--mcp` and `--openapi` name. A place that ends in .jsonl is a file of
    definitions.
    """
    places = options.tools or []
    files = [place for place in places if place.endswith(_TOOLS_FILE)]
    others = [place for place in places if not place.endswith(_TOOLS_FILE)]
    tools = [tool for file in files for tool in read_or_refuse(read_tools, file)]
    options.tools = others or None
    return [*tools, *(servers.load_tools(options) if servers.has_sources(options) or not files else ())]


def _load_ranker(name: str) -> Ranker:
    ranker = load_selector("--by", name)
    if not isinstance(ranker, Ranker):
        raise UsageError(f"--by {name!r} is not a ranker: it has no method rank(tools, query, limit=…)")
    return ranker


# eval


def _evaluate(options: argparse.Namespace) -> int:
    queries = read_or_refuse(read_queries, options.subject)
    evaluation = evaluate(_load_ranker(options.by), _load_tools(options), queries)
    measures = (
        ("recall@5", evaluation.recall[5], options.min_recall5),
        ("NDCG@10", evaluation.ndcg, options.min_ndcg),
    )
    missed = [
        f"{name} is {value:.4f}, below {least:g}"
        for name, value, least in measures
        if least is not None and value < least
    ]
    if options.json:
        print_json(_to_json(evaluation, missed))
    else:
        _print_evaluation(evaluation, options.by)
        for line in missed:
            print(line)
    return int(bool(missed))


def _to_json(evaluation: Evaluation, missed: Sequence[str]) -> dict[str, Any]:
    return {
        "tools": evaluation.tools,
        "queries": len(evaluation.ranks),
        "recall": {str(count): value for count, value in evaluation.recall.items()},
        "ndcg": evaluation.ndcg,
        "estimated_tokens": {
            "all": evaluation.tokens,
            "first": {str(count): value for count, value in evaluation.tokens_of_first.items()},
        },
        "confusable": [pair._asdict() for pair in evaluation.confusable],
        "ranks": [
            {"id": ranks.query.id, "places": dict(ranks.places), "found": list(ranks.found)}
            for ranks in evaluation.ranks
        ],
        "missed": list(missed),
    }


def _print_evaluation(evaluation: Evaluation, ranker: str) -> None:
    print(f"{_count_queries(evaluation.ranks)} over {format_count(evaluation.tools, 'tool')}, ranked by {ranker}")
    print()
    table = make_table("tools offered", number("recall"), number("tokens"))
    for count, recall in evaluation.recall.items():
        table.add_row(f"the first {count}", f"{recall:.3f}", f"{evaluation.tokens_of_first[count]:,.0f}")
    table.add_row(f"all {evaluation.tools:,}", "1.000", f"{evaluation.tokens:,}")
    print_table(table)
    print(f"NDCG@10 {evaluation.ndcg:.3f}")
    lost = [ranks for ranks in evaluation.ranks if None in ranks.places.values()]
    if lost:
        query = lost[0].query
        example = f"{to_line(query.id or query.text, NAME_WIDTH)} ({to_line(query.text, NAME_WIDTH)})"
        print(f"{_count_queries(lost)} did not find a right tool, such as {example}")
    if evaluation.confusable:
        print()
        print_table(_confusions_table(evaluation))
    print()
    print("Tokens are an estimate: one quarter of the bytes of a definition as JSON.")


def _count_queries(ranks: Sequence[Ranks]) -> str:
    return format_count(len(ranks), "query", "queries")


def _confusions_table(evaluation: Evaluation) -> Table:
    width = make_console().width // 2 - 6
    names = [Column(title, no_wrap=True, max_width=width) for title in ("right", "ranked above it")]
    table = make_table(*names, number("queries"))
    for pair in evaluation.confusable[:_MOST_CONFUSED]:
        table.add_row(to_line(pair.right, NAME_WIDTH), to_line(pair.wrong, NAME_WIDTH), f"{pair.queries:,}")
    return table


# why


def _explain(options: argparse.Namespace) -> int:
    if not options.subject.strip():
        raise UsageError('the query is empty: write for example ferrule select why "read a file"')
    ranker, tools = _load_ranker(options.by), _load_tools(options)
    rows = _explain_matches(ranker, tools, options.subject)
    if options.json:
        print_json([_row_to_json(*row) for row in rows])
    elif not rows:
        print(f"None of the {format_count(len(tools), 'tool')} matches.")
    else:
        print_table(_scores_table(rows))
        if rows[0][1] is None:
            print(f"{options.by} does not explain its scores: it has no method explain(tools, query, limit=…).")
    return 0


def _explain_matches(ranker: Ranker, tools: Sequence[Tool], query: str) -> list[tuple[Match, Sequence[Any] | None]]:
    """Return the found tools, each with the parts of its score, or None if the ranker does not explain them."""
    explain = getattr(ranker, "explain", None)
    if explain is None:
        return [(match, None) for match in ranker.rank(tools, query, limit=_MOST_EXPLAINED)]
    return [(score.match, score.parts) for score in explain(tools, query, limit=_MOST_EXPLAINED)]


def _scores_table(rows: Sequence[tuple[Match, Sequence[Any] | None]]) -> Table:
    tool = Column("tool", no_wrap=True, max_width=make_console().width // 3)
    table = make_table(number("score"), tool, wide("from"))
    for match, parts in rows:
        table.add_row(f"{match.score:.2f}", to_line(match.tool.name, NAME_WIDTH), _format_parts(parts or ()))
    return table


def _format_parts(parts: Sequence[Any]) -> str:
    """Return `tea 2.10 (name), left 0.31 (description)`: the largest parts first, without parts that round to 0.00."""
    ordered = sorted((part for part in parts if round(part.score, 2)), key=lambda part: -abs(part.score))
    return to_line(", ".join(f"{part.term} {part.score:.2f} ({part.field})".strip() for part in ordered), _PARTS_WIDTH)


def _row_to_json(match: Match, parts: Sequence[Any] | None) -> dict[str, Any]:
    row: dict[str, Any] = {"tool": match.tool.name, "score": match.score}
    if parts is not None:
        row["parts"] = [{"term": part.term, "field": part.field, "score": part.score} for part in parts]
    return row
