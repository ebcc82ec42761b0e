"""What `benchmarks/selection.py` sets beside `keyword`: search engines with a grid of settings each, and other tool
searches as they are shipped.

Every one answers for a list of documents and a list of queries; equal scores stay in the catalogue's order.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

LIMIT = 10
"""How many places of a ranking are looked at."""
Setting = Mapping[str, Any]
Ranking = list[list[int]]
"""For each query the best documents by their place in the catalogue, the best first."""

# The list that Lucene and tantivy use, and the words that requests to an assistant are full of.
_STOP_WORDS_TEXT = """
    a about also am an and any are as at be been but by can could did do does for from get give had has have help
    how i if in into is it its just let like looking me my need no not of on or our please provide should show so some
    such tell than that the their them then there these they this those to us want was we were what when where which
    who will with would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS_TEXT.split())
_WORD = re.compile(r"\w+")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")


class Document(NamedTuple):
    """One tool, as text for a search engine."""

    name: str
    description: str
    parameters: str
    examples: str
    schema: Mapping[str, Any]

    @property
    def words_of_name(self) -> str:
        """The name, split at case, digits and whatever is no letter."""
        return " ".join(_PARTS.findall(self.name))

    def title(self, names: str) -> str:
        """The name as a setting has it: `raw`, `split` or `both`."""
        if names == "both":
            return f"{self.name} {self.words_of_name}"
        return self.name if names == "raw" else self.words_of_name


_PARTS_OF_TOOL = ("name", "description", "parameters", "examples")


class Query(NamedTuple):
    """One request: its text, and what the user said before it, the oldest first."""

    text: str
    earlier: tuple[str, ...] = ()

    def words(self, history: int) -> str:
        """The text with up to `history` earlier turns."""
        return " ".join([self.text, *self.earlier[-history:]] if history else [self.text])


def documents(rows: Iterable[Mapping[str, Any]]) -> list[Document]:
    """Rows of a tools.jsonl as documents."""
    return [
        Document(
            row["name"],
            row.get("description") or "",
            " ".join(_words_of_schema(row.get("parameters") or {})),
            " ".join(row.get("examples", ())),
            row.get("parameters") or {"type": "object", "properties": {}},
        )
        for row in rows
    ]


def _words_of_schema(schema: Any) -> Iterator[str]:
    """Parameters' names (also split), descriptions and enum values, at every depth."""
    if not isinstance(schema, Mapping):
        return
    for name, part in (schema.get("properties") or {}).items():
        split = " ".join(_PARTS.findall(name))
        yield name if split == name else f"{name} {split}"
        if isinstance(part, Mapping):
            if isinstance(part.get("description"), str):
                yield part["description"]
            yield from (str(value) for value in part.get("enum") or ())
            yield from _words_of_schema(part)
            yield from _words_of_schema(part.get("items"))


def terms(text: str, *, stop: bool) -> list[str]:
    """The distinct words of a query, in lower case, without stop words where `stop` says so."""
    words = dict.fromkeys(_WORD.findall(text.lower()))
    return [word for word in words if not (stop and word in STOP_WORDS)] or list(words)


def without_stop_words(text: str) -> str:
    """A query without its stop words, otherwise as it is; the whole of it where nothing else is left."""
    return " ".join(word for word in text.split() if word.lower().strip(".,;:!?'\"") not in STOP_WORDS) or text


class Bm25s:
    """bm25s over one text for each tool. Its stop words are its own English list, or the longer one above."""

    name = "bm25s"
    of_index = ("names", "parameters", "stem", "stop", "method", "k1", "b")
    grid: ClassVar[dict[str, list[Any]]] = {
        "names": ["split", "raw", "both"],
        "parameters": [True, False],
        "stem": [True, False],
        "stop": ["long", "en", ""],
        "history": [0, 1, 9],
        "method": ["lucene", "robertson", "atire", "bm25l", "bm25+"],
        "k1": [1.5, 0.4, 0.8, 1.2, 2.0, 3.0],
        "b": [0.75, 0.2, 0.4, 0.6, 0.9, 1.0],
    }

    known: ClassVar[dict[str, Setting]] = {
        "alone": {
            "names": "both", "parameters": True, "stem": True, "stop": "long", "history": 0, "method": "bm25+",
            "k1": 2.0, "b": 0.9,
        },
        "haystack": {
            "names": "split", "parameters": True, "stem": True, "stop": "long", "history": 0, "method": "bm25+",
            "k1": 3.0, "b": 1.0,
        },
    }  # fmt: skip

    def __init__(self) -> None:
        import bm25s
        import Stemmer

        self.bm25s, self.stemmer = bm25s, Stemmer.Stemmer("english")
        self.vocabulary: dict[str, int] = {}
        self._stored = functools.lru_cache(200_000)(self._ids)

    def _ids(self, text: str, stem: bool, stop: str) -> list[int]:
        (words,) = self.bm25s.tokenize(
            [text],
            stopwords=sorted(STOP_WORDS) if stop == "long" else stop or [],
            stemmer=self.stemmer if stem else None,
            return_ids=False,
            show_progress=False,
        )
        return [self.vocabulary.setdefault(word, len(self.vocabulary)) for word in words]

    def index(self, docs: Sequence[Document], setting: Setting) -> Any:
        find_tools = [
            self._stored(
                " ".join(
                    [
                        doc.title(setting["names"]),
                        doc.description,
                        doc.parameters if setting["parameters"] else "",
                        doc.examples,
                    ]
                ),
                setting["stem"],
                setting["stop"],
            )
            for doc in docs
        ]
        index = self.bm25s.BM25(method=setting["method"], k1=setting["k1"], b=setting["b"])
        index.index(self.bm25s.tokenization.Tokenized(ids=find_tools, vocab=dict(self.vocabulary)), show_progress=False)
        index.words = len(self.vocabulary)
        return index

    def rank(self, index: Any, queries: Sequence[Query], setting: Setting) -> Ranking:
        import numpy as np

        answers: Ranking = []
        for query in queries:
            words = self._stored(query.words(setting["history"]), setting["stem"], setting["stop"])
            known = [word for word in words if word < index.words]
            answers.append(best(np, index.get_scores_from_ids(known)) if known else [])
        return answers


def best(np: Any, scores: Any) -> list[int]:
    """The places of the highest scores above 0; equal ones in their order."""
    few = min(LIMIT, len(scores))
    least = np.partition(scores, len(scores) - few)[len(scores) - few]
    places = np.flatnonzero((scores >= least) & (scores > 0))
    return [int(place) for place in places[np.argsort(-scores[places], kind="stable")][:LIMIT]]


class Fts5:
    """SQLite's own full-text index: a column for each part of a tool, weights for bm25(), terms joined by OR."""

    name = "sqlite fts5"
    of_index = ("names", "tokenizer")
    grid: ClassVar[dict[str, list[Any]]] = {
        "names": ["split", "raw", "both"],
        "tokenizer": ["porter unicode61", "unicode61"],
        "stop": [True, False],
        "history": [0, 1, 9],
        "examples": [1, 2, 0.5],
        # for the name, the description, the parameters
        "weights": [
            (1, 1, 1), (2, 1, 1), (3, 1, 1), (5, 1, 1), (10, 1, 1), (1, 1, 0.5), (2, 1, 0.5), (3, 1, 0.5),
            (5, 1, 0.5), (1, 1, 0.2), (2, 1, 0.2), (3, 1, 0.2), (5, 1, 0.2), (1, 1, 0), (3, 1, 0), (1, 2, 1),
        ],
    }  # fmt: skip

    known: ClassVar[dict[str, Setting]] = {
        "alone": {
            "names": "split", "tokenizer": "porter unicode61", "stop": True, "history": 0, "examples": 1,
            "weights": (2, 1, 0.5),
        },
        "haystack": {
            "names": "raw", "tokenizer": "porter unicode61", "stop": True, "history": 0, "examples": 1,
            "weights": (5, 1, 0.5),
        },
    }  # fmt: skip

    def __init__(self) -> None:
        sqlite3.connect(":memory:").execute("CREATE VIRTUAL TABLE probe USING fts5(a)")

    def index(self, docs: Sequence[Document], setting: Setting) -> sqlite3.Connection:
        base = sqlite3.connect(":memory:")
        base.execute(
            "CREATE VIRTUAL TABLE tools USING fts5(name, description, parameters, examples, "
            f"tokenize = '{setting['tokenizer']}')"
        )
        base.executemany(
            "INSERT INTO tools(rowid, name, description, parameters, examples) VALUES (?, ?, ?, ?, ?)",
            (
                (place, doc.title(setting["names"]), doc.description, doc.parameters, doc.examples)
                for place, doc in enumerate(docs)
            ),
        )
        return base

    def rank(self, index: sqlite3.Connection, queries: Sequence[Query], setting: Setting) -> Ranking:
        name, description, parameters = setting["weights"]
        answers: Ranking = []
        for query in queries:
            words = terms(query.words(setting["history"]), stop=setting["stop"])
            rows = index.execute(
                "SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY bm25(tools, ?, ?, ?, ?), rowid LIMIT ?",
                [" OR ".join(f'"{word}"' for word in words), name, description, parameters, setting["examples"], LIMIT],
            )
            answers.append([place for (place,) in rows])
        return answers


class Tantivy:
    """tantivy with a field for each part of a tool, and one with all of it."""

    name = "tantivy"
    of_index = ("names", "tokenizer")
    grid: ClassVar[dict[str, list[Any]]] = {
        "names": ["split", "raw", "both"],
        "tokenizer": ["en_stem", "default"],
        "stop": [True, False],
        "history": [0, 1, 9],
        "examples": [1, 2, 0.5, 0],
        # for all in one field, the name, the description, the parameters
        "boosts": [
            (0, 1, 1, 1), (0, 2, 1, 1), (0, 1, 1, 0.5), (0, 2, 1, 0.5), (0, 3, 1, 0.5), (0, 1, 2, 1), (0, 1, 1, 0.2),
            (0, 2, 1, 0.2), (0, 1, 1, 0), (1, 0, 0, 0), (1, 1, 0, 0), (1, 0.5, 0, 0), (1, 0.5, 0.5, 0), (1, 0, 0.5, 0),
        ],
    }  # fmt: skip

    known: ClassVar[dict[str, Setting]] = {
        "alone": {
            "names": "split", "tokenizer": "en_stem", "stop": True, "history": 0, "examples": 1,
            "boosts": (1, 0.5, 0.5, 0),
        },
        "haystack": {
            "names": "raw", "tokenizer": "en_stem", "stop": True, "history": 0, "examples": 1,
            "boosts": (1, 0.5, 0.5, 0),
        },
    }  # fmt: skip

    def __init__(self) -> None:
        import tantivy

        self.tantivy = tantivy

    def index(self, docs: Sequence[Document], setting: Setting) -> Any:
        builder = self.tantivy.SchemaBuilder()
        builder.add_integer_field("place", stored=True)
        for field in ("everything", *_PARTS_OF_TOOL):
            builder.add_text_field(field, tokenizer_name=setting["tokenizer"], index_option="freq")
        index = self.tantivy.Index(builder.build())
        writer = index.writer(heap_size=200_000_000, num_threads=1)
        for place, doc in enumerate(docs):
            parts = {field: getattr(doc, field) for field in _PARTS_OF_TOOL}
            parts["name"] = doc.title(setting["names"])
            row = self.tantivy.Document(everything=" ".join(parts.values()), **parts)
            row.add_integer("place", place)
            writer.add_document(row)
        writer.commit()
        writer.wait_merging_threads()
        index.reload()
        return index

    def rank(self, index: Any, queries: Sequence[Query], setting: Setting) -> Ranking:
        searcher = index.searcher()
        everything, name, description, parameters = setting["boosts"]
        boosts = {
            "everything": everything,
            "name": name,
            "description": description,
            "parameters": parameters,
            "examples": setting["examples"],
        }
        boosts = {field: float(boost) for field, boost in boosts.items() if boost}
        answers: Ranking = []
        for query in queries:
            text = " ".join(terms(query.words(setting["history"]), stop=setting["stop"]))
            parsed, _ = index.parse_query_lenient(text, list(boosts), field_boosts=boosts)
            hits = searcher.search(parsed, 5 * LIMIT, count=False).hits
            find_tools = sorted((-score, searcher.doc(address)["place"][0]) for score, address in hits)
            answers.append([place for _, place in find_tools[:LIMIT]])
        return answers


class PydanticAi:
    """pydantic-ai's `search_tools`, as an agent with deferred tools calls it."""

    name = "pydantic-ai"

    def __init__(self) -> None:
        import pydantic_ai.models.test
        import pydantic_ai.toolsets
        import pydantic_ai.usage
        from pydantic_ai.toolsets._tool_search import ToolSearchToolset

        self.package, self.search = pydantic_ai, ToolSearchToolset

    def index(self, docs: Sequence[Document]) -> Any:
        return asyncio.run(self._toolset(docs)), {doc.name: place for place, doc in enumerate(docs)}

    async def _toolset(self, docs: Sequence[Document]) -> Any:
        shown = [
            self.package.tools.ToolDefinition(
                name=doc.name,
                description=describe_document(doc),
                parameters_json_schema=dict(doc.schema),
                defer_loading=True,
            )
            for doc in docs
        ]
        toolset = self.search(self.package.toolsets.ExternalToolset(shown), max_results=LIMIT)
        context = self.package.RunContext(
            deps=None, model=self.package.models.test.TestModel(), usage=self.package.usage.RunUsage()
        )
        return toolset, context, (await toolset.get_tools(context))["search_tools"]

    def rank(self, index: Any, queries: Sequence[str]) -> Ranking:
        (toolset, context, search), places = index

        async def find_tools(query: str) -> list[int]:
            answer = await toolset.call_tool("search_tools", {"queries": [query]}, context, search)
            return [places[match["name"]] for match in answer["discovered_tools"]]

        async def find_all() -> Ranking:
            return [await find_tools(query) for query in queries]

        return asyncio.run(find_all())


class FastMcp:
    """FastMCP's `BM25SearchTransform`, without its check on every query that the tools are the same as before."""

    name = "fastmcp"

    def __init__(self) -> None:
        from fastmcp.server.transforms.search import base, bm25
        from fastmcp.tools.base import Tool

        self.text, self.make, self.tool = base._extract_searchable_text, bm25._BM25Index, Tool

    def index(self, docs: Sequence[Document]) -> Any:
        index = self.make()
        index.build([self.text(self.tool.model_construct(**_definition(doc))) for doc in docs])
        return index

    def rank(self, index: Any, queries: Sequence[str]) -> Ranking:
        return [index.query(query, LIMIT) for query in queries]


class Toolregistry:
    """toolregistry's `discover_tools`."""

    name = "toolregistry"

    def __init__(self) -> None:
        import toolregistry
        from toolregistry.llm.discovery import ToolDiscoveryTool

        self.package, self.discovery = toolregistry, ToolDiscoveryTool
        logging.getLogger("toolregistry").setLevel(logging.ERROR)

    def index(self, docs: Sequence[Document]) -> Any:
        registry = self.package.ToolRegistry()
        for doc in docs:
            registry.register(self.package.Tool(callable=print, **_definition(doc)))
        return self.discovery(registry), {doc.name: place for place, doc in enumerate(docs)}

    def rank(self, index: Any, queries: Sequence[str]) -> Ranking:
        discovery, places = index
        answers: Ranking = []
        for query in queries:
            hits = sorted((-hit["score"], places[hit["name"]]) for hit in discovery.discover(query, top_k=5 * LIMIT))
            answers.append([place for _, place in hits[:LIMIT]])
        return answers


def describe_document(doc: Document) -> str:
    return f"{doc.description} {doc.examples}".strip()


def _definition(doc: Document) -> dict[str, Any]:
    return {"name": doc.name, "description": describe_document(doc), "parameters": dict(doc.schema)}


ENGINES = (Bm25s, Fts5, Tantivy)
PEERS = (PydanticAi, FastMcp, Toolregistry)
