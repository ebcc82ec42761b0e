"""`embedding`: the tools with the texts most similar to the question, by an embedding model."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from ferrule.definition.handler import is_async
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.executors.background_loop import BackgroundLoop, run_on_loop
from ferrule.selection._checks import as_count
from ferrule.selection._conversation import read_conversation
from ferrule.selection._vectors import Disk, Reader, Rows, Vector
from ferrule.selection.matching import Match, Query, Ranker

Vectors: TypeAlias = Iterable[Iterable[float]]
"""The answer of an embedding: a list of lists, or an array of two dimensions. See docs/selection.md#embedding."""
Embed: TypeAlias = Callable[[list[str]], Vectors] | Callable[[list[str]], Awaitable[Vectors]]
"""A function from texts to one vector for each, sync or async. See docs/selection.md#embedding."""

_LONGEST_TEXT = 8_000
_NO_SCHEMAS = frozenset({"default", "const", "enum", "examples"})
_MOST_ASKED = 64
"""The number of questions with cached vectors: a loop asks the same one turn after turn."""


def embedding(
    embed: Embed,
    *,
    limit: int = 8,
    cache: str | os.PathLike[str] | None = None,
    batch: int = 256,
    name: str | None = None,
) -> Ranker:
    """Return a ranker by the cosine between a tool's text and the user's last text. See docs/selection.md#embedding.

    Each tool's text (its name, its description, and its parameters' names and descriptions) is embedded once, and so is
    the question. `select` awaits an async `embed`, and runs a sync one in a thread; `rank` does the same in a loop of
    its own, and waits for it. Scores are rounded to 6 decimals, and ties are in the order of the toolset. numpy (`pip
    install ferrule[selection]`) makes it faster; the answers are the same.

    Args:
        embed: Return a vector for each of a list of texts, sync or async.
        limit: The most tools from `select`.
        cache: An SQLite file for the vectors of tools; several processes may use it at once. User messages are not
            stored there.
        batch: The most texts in one call of `embed`.
        name: The model's name, required with a cache: vectors of another name are not used.

    Raises:
        DefinitionError: `embed` cannot be called, a number is wrong, or there is a `cache` without a `name`.

    Its `select` and `rank` raise `DefinitionError` if `embed` returns anything except one vector for each text, all of
    one length, without NaN or infinity; and if the cache is no SQLite file. An exception from `embed` passes through
    them.
    """
    if not callable(embed):
        raise DefinitionError(f"embedding: embed is a function of a list of texts, not {embed!r}")
    if cache is not None and not name:
        raise DefinitionError(
            "embedding: a cache needs the model's name, such as name='text-embedding-3-small', so that the vectors of "
            "one model are not taken for those of another"
        )
    disk = None if cache is None else Disk(Path(cache), name or "")
    return _Embedding(embed, as_count("embedding", "limit", limit), disk, as_count("embedding", "batch", batch), name)


class _Embedding:
    def __init__(self, embed: Embed, limit: int, disk: Disk | None, batch: int, name: str | None) -> None:
        self._embed: Callable[[list[str]], Any] = embed
        self._is_async = is_async(embed)
        self._limit = limit
        self._disk = disk
        self._batch = batch
        self._name = name or getattr(embed, "__qualname__", type(embed).__qualname__)
        self._reader = Reader(f"embedding: {self._name}")
        self._vectors: WeakKeyDictionary[Tool, Vector] = WeakKeyDictionary()
        self._question_vectors: dict[str, Vector] = {}
        self._rows: tuple[list[Tool], Rows] = ([], Rows([]))
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._background_loop = BackgroundLoop(self)

    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        return [match.tool for match in await self.rank_async(tools, messages, limit=self._limit)]

    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        return run_on_loop(self._background_loop.get(), lambda: self.rank_async(tools, query, limit=limit))

    async def rank_async(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        """Return the same as `rank`, without blocking the loop."""
        every, text = list(dict.fromkeys(tools)), read_conversation(query).user
        if not every or not text:
            return []
        if every != self._rows[0]:
            async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                await self._learn(every)
        return self._nearest(every, await self._embed_question(text), limit)

    async def _learn(self, tools: list[Tool]) -> None:
        """Embed the new tools."""
        texts = {tool: format_tool_text(tool) for tool in tools if tool not in self._vectors}
        if not texts:
            return
        # In a thread: another process may lock the file for seconds.
        vectors = await asyncio.to_thread(self._disk.read, set(texts.values())) if self._disk else {}
        self._keep(texts, vectors)
        left = list(dict.fromkeys(text for text in texts.values() if text not in vectors))
        for start in range(0, len(left), self._batch):
            some = left[start : start + self._batch]
            made = dict(zip(some, await self._embed_texts(some), strict=True))
            if self._disk:
                await asyncio.to_thread(self._disk.write, made)
            self._keep(texts, made)

    def _keep(self, texts: Mapping[Tool, str], vectors: Mapping[str, Vector]) -> None:
        for tool, text in texts.items():
            if text in vectors:
                self._vectors[tool] = self._reader.fitting(vectors[text])

    async def _embed_question(self, text: str) -> Vector:
        """Return the vector of a question."""
        vector = self._question_vectors.get(text)
        if vector is None:
            (vector,) = await self._embed_texts([text])
            if len(self._question_vectors) >= _MOST_ASKED:
                self._question_vectors.clear()
            self._question_vectors[text] = vector
        return vector

    async def _embed_texts(self, texts: list[str]) -> list[Vector]:
        answer = self._embed(texts) if self._is_async else await asyncio.to_thread(self._embed, texts)
        return self._reader.vectors(await answer if inspect.isawaitable(answer) else answer, texts)

    def _nearest(self, tools: list[Tool], asked: Vector, limit: int) -> list[Match]:
        known, rows = self._rows
        if known != tools:
            rows = Rows([self._vectors[tool] for tool in tools])
            self._rows = (tools, rows)
        return [Match(tools[at], score) for at, score in rows.best(asked, limit)]

    def __repr__(self) -> str:
        return f"embedding({self._name}, limit={self._limit})"


def format_tool_text(tool: Tool) -> str:
    """Return the text of a tool to embed: its name, its description, and its parameters, including nested ones."""
    lines = [f"{tool.name}: {tool.description}", *_parameter_lines(tool.input_schema)]
    return "\n".join(lines)[:_LONGEST_TEXT]


def _parameter_lines(schema: Any) -> Iterator[str]:
    if isinstance(schema, list | tuple):
        for item in schema:
            yield from _parameter_lines(item)
    elif isinstance(schema, Mapping):
        for key, value in schema.items():
            if key == "properties" and isinstance(value, Mapping):
                for name, inner in value.items():
                    description = inner.get("description", "") if isinstance(inner, Mapping) else ""
                    yield f"{name}: {description}" if description else name
                    yield from _parameter_lines(inner)
            elif key not in _NO_SCHEMAS:
                yield from _parameter_lines(value)
