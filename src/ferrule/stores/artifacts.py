"""`Artifacts`: whole results for later reading, each for one principal and session."""

from __future__ import annotations

import os
import re
import secrets
import sys
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ferrule.errors import DefinitionError
from ferrule.scheduling.clock import MONOTONIC
from ferrule.stores.artifact_places import FolderPlace, Place, Record, StorePlace
from ferrule.stores.store import Memory, Store, private_place
from ferrule.stores.text_rows import describe_text
from ferrule.types import Journal
from ferrule.values.content import Block, Text, is_text_type
from ferrule.values.context import ToolContext
from ferrule.values.count import format_count

_ID = re.compile(r"[0-9a-f]{32}")
DAY = 86_400.0
_SHOWN_MEDIA = 3


@dataclass(frozen=True, slots=True)
class Artifact:
    """A whole result. See docs/guides/large-results.md.

    Attributes:
        id: The id. Nobody can guess it, and no other principal can use it.
        shape: The size and the shape in words: `CSV, 41,203 rows, columns day, euros`.
        size: The number of bytes.
        expires_at: The time when it is removed, in seconds since the epoch.
        content: The blocks of the result, as the model would have read them without a limit.
    """

    id: str
    shape: str
    size: int
    expires_at: float
    content: tuple[Block, ...]

    @property
    def text(self) -> str:
        """The texts of the blocks, joined by line breaks."""
        return join_texts(self.content)


class Artifacts:
    """Keeps large results for `limit_output(…, artifacts=…)` and the tool `read_artifact`.

        artifacts = Artifacts()
        runner = Runner([query, read_artifact(artifacts)], around=[limit_output(16_000, artifacts=artifacts)])

    Any thread may use it, and several programs may share one place. When it is full, the oldest artifacts of the
    principal with the most go. See docs/guides/large-results.md.

    Args:
        place: A folder, a journal, or another `Store`; by default the memory of this process. The files in a folder are
            for a person to open; it lies outside of the working directory and of `apart_from`, and nobody else may
            write to it.
        keep: Seconds until an artifact is removed.
        count: The number of artifacts.
        size: The number of bytes of all artifacts.
        across_sessions: Whether a principal may read its artifacts in its other sessions.
        apart_from: The folders in reach of tools, such as the roots of a `within`; for a folder only.
        working_directory: The folder that tools start in; `None` for a program that runs none.

    Attributes:
        page_limit: The most characters that `read_artifact` returns: the least limit of a `limit_output` for them.

    Raises:
        DefinitionError: A parameter is not valid.
        ReachableError: The folder lies in reach of tools.
    """

    def __init__(
        self,
        place: str | os.PathLike[str] | Journal | Store | None = None,
        *,
        keep: float = DAY,
        count: int = 1_000,
        size: int = 100_000_000,
        across_sessions: bool = False,
        apart_from: Iterable[str | os.PathLike[str]] = (),
        working_directory: str | None = ".",
    ) -> None:
        self._place = _make_place(place, apart_from, working_directory)
        self._keep = float(_check_positive("keep", keep, float))
        self._count = _check_positive("count", count, int)
        self._size = _check_positive("size", size, int)
        self._across_sessions = across_sessions
        self.page_limit = sys.maxsize
        self._lock = threading.Lock()

    def add(self, content: Sequence[Block], context: ToolContext) -> Artifact | None:
        """Keep the blocks for the context's principal and session, or return None if they would take too much room.

        It blocks until they are stored. Expired artifacts are removed.

        Raises:
            StoreError, OSError: The place cannot be read or written.
        """
        blocks, now = tuple(content), _read_now(context)
        record = Record(
            id=secrets.token_hex(16),
            principal=context.principal,
            session=context.session,
            made_at=now,
            expires_at=now + self._keep,
            size=sum(map(_count_bytes, blocks)),
            shape=describe_content(blocks),
        )
        with self._lock:
            found = self._place.list_records()
            expired = [one for one in found if one.expires_at <= now]
            evicted = _choose_evicted([one for one in found if one.expires_at > now], record, self._count, self._size)
            for one in (*expired, *(evicted or ())):
                self._place.remove(one)
            if evicted is None:
                return None
            self._place.add(record, blocks)
        return Artifact(record.id, record.shape, record.size, record.expires_at, blocks)

    def get(self, id: str, context: ToolContext) -> Artifact | None:
        """Return the artifact, or None if it is unknown, expired, or another principal's or session's.

        Raises:
            StoreError: The place cannot be read.
        """
        found = self._place.read(id) if _ID.fullmatch(id) else None
        if found is None:
            return None
        record, blocks = found
        is_own = record.principal == context.principal and (self._across_sessions or record.session == context.session)
        if not is_own or record.expires_at <= _read_now(context):
            return None
        return Artifact(id, record.shape, record.size, record.expires_at, blocks)


def _make_place(place: Any, apart_from: Iterable[Any], working_directory: str | None) -> Place:
    if place is None:
        return StorePlace(Memory())
    if isinstance(place, str | os.PathLike):
        return FolderPlace(private_place(place, apart_from, working_directory))
    store = place.store if isinstance(place, Journal) else place
    if isinstance(store, type) or not all(
        callable(getattr(store, n, None)) for n in ("get", "compare_and_set", "items")
    ):
        raise DefinitionError(
            "Artifacts(place) must be a folder, a journal, such as Journal.open('calls.db'), or a store with get, "
            f"compare_and_set and items, not {place!r}"
        )
    return StorePlace(store)


def _check_positive(name: str, value: Any, kind: type) -> Any:
    kinds = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < 1e15:
        raise DefinitionError(f"Artifacts({name}) must be a number above 0, not {value!r}")
    return value


def _read_now(context: ToolContext) -> float:
    return (context.clock or MONOTONIC).now()


def _count_bytes(block: Block) -> int:
    return len(block.text.encode()) if isinstance(block, Text) else len(block.data or b"")


def _choose_evicted(records: list[Record], new: Record, count: int, size: int) -> list[Record] | None:
    """Return the records to remove for a new one, or None if there is no room for it.

    The oldest ones of the principal with the most go. So nobody loses any who has less than an equal share.
    """
    if new.size > size:
        return None
    queues: dict[str | None, deque[Record]] = {}
    for record in (*sorted(records, key=lambda one: one.made_at), new):
        queues.setdefault(record.principal, deque()).append(record)
    counts = {principal: len(queue) for principal, queue in queues.items()}
    sizes = {principal: sum(one.size for one in queue) for principal, queue in queues.items()}
    evicted: list[Record] = []
    while (is_too_large := sum(sizes.values()) > size) or sum(counts.values()) > count:
        used = sizes if is_too_large else counts
        principal = max(used, key=lambda one: (used[one], one == new.principal))
        oldest = queues[principal].popleft()
        if oldest is new:
            return None
        counts[principal] -= 1
        sizes[principal] -= oldest.size
        evicted.append(oldest)
    return evicted


def join_texts(blocks: Iterable[Block]) -> str:
    """Return the texts of the blocks, joined by line breaks, with those of media that are texts.

    See docs/guides/large-results.md.
    """
    texts = [
        block.text if isinstance(block, Text) else (block.data or b"").decode("utf-8", "replace")
        for block in blocks
        if _is_text(block)
    ]
    return "\n".join(texts)


def _is_text(block: Block) -> bool:
    return isinstance(block, Text) or (block.data is not None and is_text_type(block.mime_type))


def describe_content(blocks: Sequence[Block]) -> str:
    """Return the size and the shape of the blocks in a short line. See docs/guides/large-results.md."""
    text = join_texts(blocks)
    parts = [describe_text(text)] if text else []
    media = [one for one in blocks if not isinstance(one, Text) and not _is_text(one)]
    parts += [
        f"{one.mime_type.partition(';')[0]}, {format_count(len(one.data or b''), 'byte')}"
        for one in media[:_SHOWN_MEDIA]
    ]
    if len(media) > _SHOWN_MEDIA:
        parts.append(f"{len(media) - _SHOWN_MEDIA:,} more images, sounds or files")
    return "; ".join(parts)
