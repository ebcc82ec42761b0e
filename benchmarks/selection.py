"""How well the right tools are found for a request, and how fast: `ferrule.selection.keyword` beside search engines at
their best settings, and beside the tool search of other libraries.

Run: python benchmarks/selection.py FOLDER            (the measure; hours of CPU time go into the others' settings)
     python benchmarks/selection.py FOLDER --quick    (the others at the settings that were found before)
     python benchmarks/selection.py FOLDER --latency  (times and memory instead; `--haystack` says of which tools)
     python benchmarks/selection.py FOLDER --rank my.module:rank --only ours

FOLDER holds catalogues, each a folder with a tools.jsonl (rows of id, name, description, parameters) and a
queries.jsonl (rows of id, text, relevant ids, perhaps messages), and perhaps a haystack*.jsonl.gz of more tools. Every
catalogue is measured alone and with the haystack behind it, without worked examples and with up to 8 for each tool;
these come from one half of the queries, and the other half is scored.

`--rank` takes a function `rank(catalogue, queries, k) -> lists of ids`: the catalogue as the rows of a tools.jsonl,
each with its "examples" (texts) where there are some; a query is a text, or the messages where there are any.

pip install bm25s PyStemmer tantivy pydantic-ai-slim fastmcp toolregistry numpy
What is not installed is said, and left out.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import selection_baselines
from selection_baselines import LIMIT, Document, Setting, documents, without_stop_words

MOST_EXAMPLES = 8
SAMPLED = 60
"""Queries of each catalogue that settings are tried on; the best few are then compared on all."""
FINALISTS = 4
ROUNDS = 2
OURS = "ours"
LEADS = {"alone": 2.0, "haystack": 4.0}
"""Points that the mean has to be ahead of each engine's by; with worked examples as much again."""

Rank = Callable[[list[dict[str, Any]], list[Any], int], list[list[str]]]


class Labelled(NamedTuple):
    """A row of a queries.jsonl."""

    id: str
    text: str
    relevant: frozenset[str]
    messages: list[dict[str, Any]] | None

    @property
    def asked(self) -> Any:
        return self.text if self.messages is None else self.messages

    @property
    def for_engines(self) -> selection_baselines.Query:
        said = [message.get("content") for message in self.messages or () if message.get("role") == "user"]
        return selection_baselines.Query(self.text, tuple(text for text in said[:-1] if isinstance(text, str)))

    @property
    def gives_examples(self) -> bool:
        return _number(self.id) % 2 == 0


@dataclass(frozen=True)
class Case:
    """One catalogue under one condition: what is ranked, and for which queries."""

    catalogue: str
    rows: list[dict[str, Any]]
    queries: list[Labelled]

    @cached_property
    def docs(self) -> list[Document]:
        return documents(self.rows)

    @cached_property
    def ids(self) -> list[str]:
        return [row["id"] for row in self.rows]

    @cached_property
    def asked(self) -> list[selection_baselines.Query]:
        return [query.for_engines for query in self.queries]

    @cached_property
    def sample(self) -> Sequence[int]:
        """Some of the queries, always the same ones."""
        few = sorted(range(len(self.queries)), key=lambda place: _number(f"sample {self.queries[place].id}"))[:SAMPLED]
        return sorted(few)


class Score(NamedTuple):
    """Points from 0 to 100."""

    recall: float
    ndcg: float


@dataclass
class Outcome:
    """How one contender did under one condition."""

    contender: str
    condition: str
    examples: bool
    scores: dict[str, Score]
    setting: str = ""
    seconds: float = 0.0

    @property
    def mean(self) -> Score:
        return Score(*(math.fsum(column) / len(self.scores) for column in zip(*self.scores.values(), strict=True)))


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


# The data


def read_lines(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return [json.loads(line) for line in text.split(b"\n") if line.strip()]


@dataclass(frozen=True)
class Data:
    """A folder of catalogues."""

    catalogues: Mapping[str, tuple[list[dict[str, Any]], list[Labelled]]]
    haystack: list[dict[str, Any]]

    def cases(self, condition: str, examples: bool) -> list[Case]:
        more = self.haystack if condition == "haystack" else []
        cases = []
        for name, (rows, queries) in self.catalogues.items():
            taken = {row["id"] for row in rows} | {row["name"] for row in rows}
            behind = [row for row in more if row["id"] not in taken and row["name"] not in taken]
            if examples:
                rows = with_examples(rows, [query for query in queries if query.gives_examples])
                queries = [query for query in queries if not query.gives_examples]
            cases.append(Case(name, [*rows, *behind], queries))
        return cases


def read(folder: Path, haystack: Path | None, most: int | None) -> Data:
    """The catalogues of a folder, each with at most `most` queries.

    Raises:
        SystemExit: where there are none.
    """
    catalogues = {}
    for tools in sorted(folder.glob("*/tools.jsonl")):
        rows = read_lines(tools)
        queries = [
            Labelled(str(row.get("id", row["text"])), row["text"], frozenset(row["relevant"]), row.get("messages"))
            for row in read_lines(tools.with_name("queries.jsonl"))
        ]
        if most is not None:
            queries = sorted(queries, key=lambda query: _number(query.id))[:most]
        catalogues[tools.parent.name] = (rows, queries)
    if not catalogues:
        raise SystemExit(f"{folder} holds no folder with a tools.jsonl and a queries.jsonl")
    files = [haystack] if haystack else sorted(folder.glob("haystack*.jsonl.gz"))
    return Data(catalogues, [row for file in files for row in read_lines(file)])


def with_examples(rows: Iterable[dict[str, Any]], queries: Iterable[Labelled]) -> list[dict[str, Any]]:
    """The rows, with the first few queries for which each is right."""
    found: dict[str, list[str]] = {}
    for query in queries:
        for label in query.relevant:
            found.setdefault(label, []).append(query.text)
    return [{**row, "examples": found.get(row["id"], [])[:MOST_EXAMPLES]} for row in rows]


def score(answers: Sequence[Sequence[str]], queries: Sequence[Labelled]) -> Score:
    """Recall of the first 5 and NDCG of the first 10, as means over the queries."""
    assert len(answers) == len(queries), f"{len(queries)} queries, and {len(answers)} answers"
    recall = ndcg = 0.0
    for found, query in zip(answers, queries, strict=True):
        first = list(dict.fromkeys(found))[:LIMIT]
        recall += len(query.relevant.intersection(first[:5])) / len(query.relevant)
        gains = (1 / math.log2(place + 2) for place, label in enumerate(first) if label in query.relevant)
        ideal = sum(1 / math.log2(place + 2) for place in range(min(len(query.relevant), LIMIT)))
        ndcg += sum(gains) / ideal
    return Score(100 * recall / len(queries), 100 * ndcg / len(queries))


# Contenders


def rank(catalogue: list[dict[str, Any]], queries: list[Any], k: int) -> list[list[str]]:
    """Ours, in the form that `--rank` takes."""
    from ferrule.selection import keyword

    tools = made_tools(catalogue)
    examples = {row["name"]: row["examples"] for row in catalogue if row.get("examples")}
    ranker = keyword(k, examples=examples) if examples else keyword(k)
    return [[match.tool.metadata["id"] for match in ranker.rank(tools, query, limit=k)] for query in queries]


def made_tools(rows: Iterable[Mapping[str, Any]]) -> Any:
    """A toolset; a list where two names look alike, as they do in some catalogues."""
    from ferrule import DefinitionError, Toolset, build_tool

    def execute(**_: object) -> None: ...

    tools = [
        build_tool(
            {"name": row["name"], "description": row.get("description") or "", "input_schema": row["parameters"]},
            execute,
            metadata={"id": row["id"]},
        )
        for row in rows
    ]
    try:
        return Toolset(tools)
    except DefinitionError:
        return tools


def load_rank(place: str) -> Rank:
    module, _, function = place.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    found: Rank = getattr(importlib.import_module(module), function or "rank")
    return found


def outcome(contender: str, rank: Rank, data: Data, condition: str, examples: bool) -> Outcome:
    begin = time.process_time()
    scores = {
        case.catalogue: score(rank(case.rows, [query.asked for query in case.queries], LIMIT), case.queries)
        for case in data.cases(condition, examples)
    }
    return Outcome(contender, condition, examples, scores, seconds=time.process_time() - begin)


@dataclass
class Search:
    """Looks for the best setting of one engine under one condition."""

    engine: Any
    cases: list[Case]
    grid: Mapping[str, list[Any]]
    tried: dict[tuple[Any, ...], float] = field(default_factory=dict)
    _indexes: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def scores(self, setting: Setting, sampled: bool) -> dict[str, Score]:
        key = tuple(setting[name] for name in self.engine.of_index)
        if self._indexes[0] != key:
            self._indexes = (key, {})
        indexes, found = self._indexes[1], {}
        for case in self.cases:
            if case.catalogue not in indexes:
                indexes[case.catalogue] = self.engine.index(case.docs, setting)
            places = case.sample if sampled else range(len(case.queries))
            answers = self.engine.rank(indexes[case.catalogue], [case.asked[place] for place in places], setting)
            labelled = [case.queries[place] for place in places]
            found[case.catalogue] = score([[case.ids[one] for one in answer] for answer in answers], labelled)
        return found

    def value(self, setting: Setting) -> float:
        key = tuple(setting[name] for name in self.grid)
        if key not in self.tried:
            self.tried[key] = goodness(self.scores(setting, True))
        return self.tried[key]

    def best(self, start: Setting) -> tuple[Setting, dict[str, Score]]:
        """The best for the mean: one part of the setting after the other, until none gets better."""
        setting = dict(start)
        # What needs no new index first: an index is kept while only such parts change.
        order = sorted(self.grid, key=lambda name: name in self.engine.of_index)
        for _ in range(ROUNDS):
            before = dict(setting)
            for name in order:
                setting = max(({**setting, name: value} for value in self.grid[name]), key=self.value)
            if setting == before:
                break
        finalists = sorted(self.tried, key=lambda key: -self.tried[key])[:FINALISTS]
        whole = [dict(zip(self.grid, key, strict=True)) for key in finalists]
        whole += [dict(start)] * (start not in whole)
        found = [(self.scores(each, False), each) for each in whole]
        scores, setting = max(found, key=lambda pair: goodness(pair[0]))
        return setting, scores


def goodness(scores: Mapping[str, Score]) -> float:
    return math.fsum(one.recall + one.ndcg for one in scores.values()) / (2 * len(scores))


def list_choices(engine: Any, start: Setting, examples: bool, turns: bool) -> dict[str, list[Any]]:
    """The choices; one alone for what changes nothing here."""
    idle = (set() if examples else {"examples"}) | (set() if turns else {"history"})
    return {name: [start[name]] if name in idle else values for name, values in engine.grid.items()}


def engine_outcomes(make: type, data: Data, conditions: Sequence[tuple[str, bool]], quick: bool) -> Iterator[Outcome]:
    engine = make()
    turns = any(query.messages for _, queries in data.catalogues.values() for query in queries)
    starts = {condition: dict(setting) for condition, setting in engine.known.items()}
    for condition, examples in conditions:
        begin = time.process_time()
        setting = starts[condition]
        search = Search(engine, data.cases(condition, examples), list_choices(engine, setting, examples, turns))
        if quick:
            scores = search.scores(setting, False)
        else:
            setting, scores = search.best(setting)
            starts[condition] = dict(setting)
        said = ", ".join(f"{name} {value}" for name, value in setting.items())
        yield Outcome(engine.name, condition, examples, scores, said, time.process_time() - begin)


def peer_outcomes(make: type, data: Data, conditions: Sequence[tuple[str, bool]]) -> Iterator[Outcome]:
    """As shipped, and with the query's stop words dropped."""
    peer = make()
    changes = {peer.name: str, f"{peer.name}, no stop words": without_stop_words}
    for condition, examples in conditions:
        outcomes = [Outcome(name, condition, examples, {}) for name in changes]
        for case in data.cases(condition, examples):
            index = peer.index(case.docs)
            for one, change in zip(outcomes, changes.values(), strict=True):
                begin = time.process_time()
                answers = peer.rank(index, [change(query.text) for query in case.queries])
                found = [[case.ids[place] for place in answer] for answer in answers]
                one.scores[case.catalogue] = score(found, case.queries)
                one.seconds += time.process_time() - begin
        yield from outcomes


class Task(NamedTuple):
    """What one process measures."""

    contender: str
    data: Data
    conditions: Sequence[tuple[str, bool]]
    quick: bool


def measure_task(task: Task) -> list[Outcome] | str:
    """All outcomes of one contender, or why there are none."""
    name = task.contender
    makers = {make.name: make for make in (*selection_baselines.ENGINES, *selection_baselines.PEERS)}
    try:
        if name in makers and makers[name] in selection_baselines.ENGINES:
            return list(engine_outcomes(makers[name], task.data, task.conditions, task.quick))
        if name in makers:
            return list(peer_outcomes(makers[name], task.data, task.conditions))
        ranks = rank if name == OURS else load_rank(name)
        return [outcome(name, ranks, task.data, *condition) for condition in task.conditions]
    except ImportError as error:
        return f"{name} is left out: {error}"


# What is said


def table(outcomes: Sequence[Outcome], condition: str, examples: bool) -> list[str]:
    here = [one for one in outcomes if (one.condition, one.examples) == (condition, examples)]
    if not here:
        return []
    ours = next((one for one in here if one.contender == OURS), None)
    names = list(here[0].scores)
    title = "alone" if condition == "alone" else "in the haystack"
    lines = [f"{title}, {'with worked examples' if examples else 'without worked examples'}: recall@5 / NDCG@10"]
    head = "".join(f"{name:>14}" for name in (*names, "mean"))
    lines.append(f"  {'':28}{head}   our lead")
    for one in here:
        cells = "".join(f"{found.recall:8.1f}/{found.ndcg:5.1f}" for found in (*one.scores.values(), one.mean))
        lead = ""
        if ours is not None and one is not ours:
            lead = f"   {ours.mean.recall - one.mean.recall:+.1f}/{ours.mean.ndcg - one.mean.ndcg:+.1f}"
        lines.append(f"  {one.contender:28}{cells}{lead}")
    lines += [f"    {one.contender}: {one.setting}" for one in here if one.setting]
    return [*lines, ""]


def verdicts(outcomes: Sequence[Outcome]) -> list[tuple[bool, str]]:
    """Whether each number that was asked for is reached."""
    found = []
    engines = {make.name for make in selection_baselines.ENGINES}
    for condition, examples in dict.fromkeys((one.condition, one.examples) for one in outcomes):
        here = [one for one in outcomes if (one.condition, one.examples) == (condition, examples)]
        ours = next((one for one in here if one.contender == OURS), None)
        others = [one for one in here if one.contender in engines]
        if ours is None or not others:
            continue
        where = f"{condition}{', with examples' if examples else ''}"
        for name, mine in ours.scores.items():
            for measure in Score._fields:
                best = max(getattr(one.scores[name], measure) for one in others)
                own = getattr(mine, measure)
                found.append((own >= best, f"{where}: {name} {measure} {own:.1f}, the best engine {best:.1f}"))
        least = LEADS[condition] * (2 if examples else 1)
        for one in others:
            for measure in Score._fields:
                lead = getattr(ours.mean, measure) - getattr(one.mean, measure)
                text = f"{where}: the mean {measure} {lead:+.1f} points ahead of {one.contender}, wanted {least:g}"
                found.append((lead >= least, text))
    return found


def report(outcomes: Sequence[Outcome], conditions: Sequence[tuple[str, bool]]) -> None:
    for condition, examples in conditions:
        print("\n".join(table(outcomes, condition, examples)))
    judged = verdicts(outcomes)
    for passed, text in judged:
        if not passed:
            print(f"MISSED  {text}")
    if judged:
        print(f"{sum(passed for passed, _ in judged)} of {len(judged)} numbers reached")


def for_programs(outcomes: Sequence[Outcome], left_out: Sequence[str]) -> dict[str, Any]:
    return {
        "outcomes": [
            {
                "contender": one.contender,
                "condition": one.condition,
                "examples": one.examples,
                "setting": one.setting,
                "cpu_seconds": round(one.seconds, 1),
                "mean": one.mean._asdict(),
                "catalogues": {name: found._asdict() for name, found in one.scores.items()},
            }
            for one in outcomes
        ],
        "verdicts": [{"reached": passed, "what": text} for passed, text in verdicts(outcomes)],
        "left_out": list(left_out),
    }


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("folder", type=Path, help="of catalogues")
    parser.add_argument("--rank", action="append", default=[], metavar="MODULE:FUNCTION", help="one contender more")
    parser.add_argument("--only", help=f"contenders, with commas between: {OURS}, or names of the table")
    parser.add_argument("--haystack", type=Path, help="a .jsonl.gz instead of the folder's haystack*.jsonl.gz")
    parser.add_argument("--condition", choices=("alone", "haystack"), help="this one only")
    parser.add_argument("--examples", choices=("without", "with"), help="these only")
    parser.add_argument("--most", type=int, metavar="N", help="at most N queries of each catalogue, for a quick look")
    parser.add_argument("--quick", action="store_true", help="engines at known settings, and no search for better ones")
    parser.add_argument("--latency", action="store_true", help="measure times and memory instead")
    parser.add_argument(
        "--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[1_000, 10_000, 100_000]
    )
    parser.add_argument("--without-numpy", action="store_true", help="as if numpy were not installed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    options = arguments(words)
    if options.without_numpy:
        sys.modules["numpy"] = None  # type: ignore[assignment]
    data = read(options.folder, options.haystack, options.most)
    if options.latency:
        import selection_latency

        return selection_latency.main(data, options)
    conditions = [
        (condition, examples)
        for examples in (False, True)
        for condition in ("alone", "haystack")
        if options.condition in {None, condition}
        and options.examples in {None, "with" if examples else "without"}
        and (condition == "alone" or data.haystack)
    ]
    others = [make.name for make in (*selection_baselines.ENGINES, *selection_baselines.PEERS)]
    contenders = options.only.split(",") if options.only else [OURS, *others]
    if wrong := set(contenders) - {OURS, *others}:
        raise SystemExit(f"there is no contender {sorted(wrong)[0]!r}; there are {', '.join([OURS, *others])}")
    tasks = [Task(name, data, conditions, options.quick) for name in [*contenders, *options.rank]]
    outcomes, left_out = [], []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for found in pool.map(measure_task, tasks):
            if isinstance(found, str):
                left_out.append(found)
                print(found, file=sys.stderr)
            else:
                outcomes += found
                print(*(f"{one.contender}: {one.seconds:.0f} s" for one in found), sep="\n", file=sys.stderr)
    if options.json:
        print(json.dumps(for_programs(outcomes, left_out), indent=2))
    else:
        report(outcomes, conditions)
    return int(not all(passed for passed, _ in verdicts(outcomes)))


if __name__ == "__main__":
    sys.exit(main())
