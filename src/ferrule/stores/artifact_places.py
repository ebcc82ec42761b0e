"""Places for artifacts: a store of values, or a folder with files that a person can open.

A place writes the record of an artifact before its content, and removes it after the content. So a crash leaves no
content without a record, and the record of a broken artifact is removed when it expires. Another program may remove an
artifact while it is added: then whoever sees that the record is gone removes the content.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ferrule.security.paths import Directory
from ferrule.stores.store import BrokenRow, JsonValue, Store, StoreError, open_private_folder, read_private, read_row
from ferrule.values.content import Block, Media, Text, is_text_type
from ferrule.values.journal_entry import block_from_dict, block_to_dict
from ferrule.values.json_text import loads_finite

_RECORD, _CONTENT = "artifact/", "artifact-content/"
_RECORD_FILE = re.compile(r"([0-9a-f]{32})\.json")
_SUFFIX = re.compile(r"[a-z]{3,4}")
_BROKEN = (ValueError, LookupError, TypeError, FileNotFoundError)
"""The errors of an artifact that a crash cut off, or that another program removes."""
_SUFFIXES = {
    "application/pdf": "pdf",
    "image/gif": "gif",
    "image/jpeg": "jpg",
    "image/png": "png",
    "image/webp": "webp",
    "text/csv": "csv",
}


@dataclass(frozen=True, slots=True)
class Record:
    """The facts about an artifact, without its content. Times are seconds since the epoch, sizes are bytes."""

    id: str
    principal: str | None
    session: str | None
    made_at: float
    expires_at: float
    size: int
    shape: str


class Place(Protocol):
    """Keeps artifacts. Its methods may block; any thread may call them."""

    def list_records(self) -> list[Record]:
        """Return the records of all artifacts, in no order."""
        ...

    def read(self, id: str) -> tuple[Record, tuple[Block, ...]] | None:
        """Return an artifact, or None if it is missing or broken."""
        ...

    def add(self, record: Record, content: Sequence[Block]) -> None:
        """Keep a new artifact."""
        ...

    def remove(self, record: Record) -> None:
        """Remove an artifact, if it is there."""
        ...


def _read_record(value: JsonValue) -> Record:
    if not (isinstance(value["expires_at"], int | float) and isinstance(value["size"], int)):
        raise ValueError("it has no size or no end")
    return Record(**value)


class StorePlace:
    """Artifacts in a store of values."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list_records(self) -> list[Record]:
        rows = (read_row(value, _read_record) for value in self._store.items(_RECORD).values())
        return [row for row in rows if not isinstance(row, BrokenRow)]

    def read(self, id: str) -> tuple[Record, tuple[Block, ...]] | None:
        record = read_row(self._store.get(_RECORD + id), _read_record)
        content = read_row(self._store.get(_CONTENT + id), _blocks_from_json)
        return None if isinstance(record, BrokenRow) or isinstance(content, BrokenRow) else (record, content)

    def add(self, record: Record, content: Sequence[Block]) -> None:
        self._set(_RECORD + record.id, asdict(record))
        self._set(_CONTENT + record.id, [block_to_dict(block) for block in content])
        if self._store.get(_RECORD + record.id) is None:
            self.remove(record)

    def remove(self, record: Record) -> None:
        content = _CONTENT + record.id
        for key in (content, _RECORD + record.id, content):
            self._store.compare_and_set(key, self._store.get(key), None)

    def _set(self, key: str, value: JsonValue) -> None:
        if not self._store.compare_and_set(key, None, value):
            raise StoreError(f"{key!r} is there already")


def _blocks_from_json(value: JsonValue) -> tuple[Block, ...]:
    return tuple(block_from_dict(block) for block in value)


class FolderPlace:
    """Artifacts in a folder: for each a record, `ID.json`, and a file for each block, such as `ID-1.csv`.

    Args:
        folder: A canonical path. A missing folder is made.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._records: dict[str, Record] = {}  # those read so far: a record never changes

    def list_records(self) -> list[Record]:
        with self._open() as folder:
            names = {name for name, kind in folder.entries() if kind == "file"}
        ids = {found[1] for name in names if (found := _RECORD_FILE.fullmatch(name))}
        self._records = {id: record for id in ids if (record := self._find_record(id)) is not None}
        return list(self._records.values())

    def read(self, id: str) -> tuple[Record, tuple[Block, ...]] | None:
        try:
            about = self._read_about(id)
            content = tuple(self._read_block(f"{id}-{n}", part) for n, part in enumerate(about["content"], 1))
            return _read_record(about["record"]), content
        except _BROKEN:
            return None

    def add(self, record: Record, content: Sequence[Block]) -> None:
        parts = [_to_part(block, record.shape) for block in content]
        about = {"record": asdict(record), "content": parts}
        with self._open() as folder:
            folder.write(f"{record.id}.json", json.dumps(about, indent=1).encode(), mode=0o600)
            for number, (part, block) in enumerate(zip(parts, content, strict=True), 1):
                data = block.text.encode() if isinstance(block, Text) else block.data
                if data is not None:
                    folder.write(f"{record.id}-{number}.{part['suffix']}", data, mode=0o600)
            is_removed = folder.kind(f"{record.id}.json") is None
        if is_removed:
            self.remove(record)

    def remove(self, record: Record) -> None:
        for beginning in (f"{record.id}-", f"{record.id}.json", f"{record.id}-"):
            with self._open() as folder:
                names = [name for name, _ in folder.entries() if name.startswith(beginning)]
            for name in names:
                with suppress(FileNotFoundError):  # another program removes it, too
                    os.unlink(os.path.join(self._folder, name))

    @contextmanager
    def _open(self) -> Iterator[Directory]:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        with open_private_folder(self._folder) as folder:
            yield folder

    def _read_about(self, id: str) -> Any:
        return loads_finite(read_private(os.path.join(self._folder, f"{id}.json")).decode())

    def _find_record(self, id: str) -> Record | None:
        try:
            return self._records.get(id) or _read_record(self._read_about(id)["record"])
        except _BROKEN:
            return None

    def _read_block(self, name: str, part: Mapping[str, Any]) -> Block:
        suffix, media = part["suffix"], part["media"]
        if suffix is None:
            return Media(data=None, **media)
        if not _SUFFIX.fullmatch(suffix):
            raise ValueError(f"{suffix!r} is no suffix")
        data = read_private(os.path.join(self._folder, f"{name}.{suffix}"))
        return Text(data.decode()) if media is None else Media(data=data, **media)


def _to_part(block: Block, shape: str) -> dict[str, Any]:
    """Return the facts about a block, without its content: the suffix of its file, and the fields of media."""
    if isinstance(block, Text):
        format = shape.partition(",")[0]
        return {"suffix": format.lower() if format in ("CSV", "JSON") else "txt", "media": None}
    media = {name: getattr(block, name) for name in ("kind", "mime_type", "uri", "name", "fetch")}
    unknown = "txt" if is_text_type(block.mime_type) else "bin"
    return {"suffix": None if block.data is None else _SUFFIXES.get(block.mime_type, unknown), "media": media}
