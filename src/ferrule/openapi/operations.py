"""The operations of an OpenAPI document: list them, choose from them, and name them."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from ferrule import DefinitionError
from ferrule.openapi.document import Document, Node, list_texts
from ferrule.security.characters import disarm, remove_hidden
from ferrule.security.foreign_text import has_hidden
from ferrule.security.similar_names import lookalike_key

MOST_OPERATIONS: Final = 10_000
_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "query")
_MOST_TEXT: Final = 8_000
_LONGEST_ID: Final = 1_000
"""Most characters of a path or an id."""
_MOST_TAGS: Final = 50
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
IN_BRACES = re.compile(r"\{([^{}/]*)\}")


class Operation(NamedTuple):
    """One operation of the document.

    Attributes:
        method: The method, in capitals.
        path: The path, with its parameters in braces.
        node: The operation.
        item: The path's item, shared by all its operations.
    """

    method: str
    path: str
    node: Node
    item: Node

    @property
    def id(self) -> str:
        """Its `operationId`; empty if it has none."""
        found = self.node.value.get("operationId")
        return remove_hidden(found[:_LONGEST_ID])[0] if isinstance(found, str) else ""

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that are texts, without hidden characters."""
        declared = self.node.value.get("tags")
        declared = declared[:_MOST_TAGS] if isinstance(declared, list) else None
        return tuple(remove_hidden(tag[:_LONGEST_ID])[0] for tag in list_texts(declared))

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class RefusedOperation(NamedTuple):
    """A part of the document that cannot be read as an operation.

    Attributes:
        method: The method; empty for a whole path.
    """

    method: str
    path: str
    reason: str
    id: str = ""
    tags: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.method} {self.path}".strip()


def list_operations(document: Document) -> tuple[list[Operation], list[RefusedOperation]]:
    """Return all operations, in the document's order, and the unreadable ones, each with the reason.

    Raises:
        DefinitionError: There is no object of paths, or there are too many operations.
    """
    paths = document.root.value.get("paths")
    if not isinstance(paths, Mapping):
        raise DefinitionError(f"{document.name} has no 'paths', and so no operations")
    found: list[Operation] = []
    refused: list[RefusedOperation] = []
    for path, value in paths.items():
        if str(path).startswith("x-"):
            continue
        try:
            item = _path_item(path, Node(value, document.root.base), document)
        except DefinitionError as error:
            refused.append(RefusedOperation("", str(path), str(error)))
            continue
        for method, one in _list_methods(item.value):
            try:
                found.append(_operation(method, path, Node(one, item.base), item, document))
            except DefinitionError as error:
                refused.append(RefusedOperation(method, path, str(error)))
        if len(found) + len(refused) > MOST_OPERATIONS:
            raise DefinitionError(
                f"{document.name} has over {MOST_OPERATIONS:,} operations: cut out those that you need"
            )
    return found, refused


def _path_item(path: Any, node: Node, document: Document) -> Node:
    item = document.follow(node)
    _check_path(path, item.value)
    if item is not node and (beside := [key for key in node.value if key not in ("$ref", "summary", "description")]):
        raise DefinitionError(f"{beside[0]!r} stands beside its $ref, so it is unclear which of them counts")
    return item


def _operation(method: str, path: str, node: Node, item: Node, document: Document) -> Operation:
    if not is_token(method) or method.upper() in {"TRACE", "CONNECT"}:
        raise DefinitionError("this method is not supported")
    operation = document.follow(node)
    if not isinstance(operation.value, Mapping):
        raise DefinitionError("it must be an object")
    return Operation(method, path, operation, item)


def _list_methods(item: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((method.upper(), item[method]) for method in (*_METHODS, "trace") if method in item)
    more = item.get("additionalOperations", {})
    yield from ((str(method), one) for method, one in more.items()) if isinstance(more, Mapping) else ()


def _check_path(path: Any, item: Any) -> None:
    if not isinstance(path, str) or not path.startswith("/"):
        raise DefinitionError("a path must begin with '/'")
    if len(path) > _LONGEST_ID:
        raise DefinitionError(f"its path has over {_LONGEST_ID:,} characters")
    if (
        re.search(r"[?#\\\s]|%(?![0-9A-Fa-f]{2})|%2f|%5c", path, re.IGNORECASE)
        or "//" in path
        or not path.isprintable()
        or has_hidden(path)
    ):
        raise DefinitionError("a path must not have '?', '#', '\\', '//' or spaces: use parameters")
    if leads_elsewhere(path):
        raise DefinitionError("its path must not have '.' or '..' as a part")
    if not isinstance(item, Mapping):
        raise DefinitionError("its path item must be an object")


def leads_elsewhere(path: str) -> bool:
    """Return whether a part of a path is `.` or `..`, in any way in which some server reads it."""
    parts = re.split(r"[/\\]", unquote(path))
    return any(part.partition(";")[0] in {".", ".."} for part in parts)


def match_patterns(
    operations: Sequence[Operation | RefusedOperation], only: Iterable[str], tags: Iterable[str], pattern_spelling: str
) -> set[int]:
    """Return the places of the operations that one of the patterns names.

    Args:
        tags: All tags of the document, for the error.
        pattern_spelling: The spelling of a pattern in the error.

    Raises:
        DefinitionError: A pattern names no operation.
    """
    chosen: set[int] = set()
    for pattern in only:
        matched = {place for place, one in enumerate(operations) if _pattern_names(pattern, one)}
        if not matched:
            raise DefinitionError(
                f"{pattern_spelling.format(pattern)} names no operation; write a method (GET), a path (/pets/*), both "
                f"(GET /pets/*), a tag (tag:pets) or an operationId (list*); the tags are {sorted(tags)[:20]}"
            )
        chosen |= matched
    return chosen


def _pattern_names(pattern: str, operation: Operation | RefusedOperation) -> bool:
    if pattern.startswith("tag:"):
        return any(fnmatch.fnmatchcase(tag, pattern[4:].strip()) for tag in operation.tags)
    method, _, path = pattern.rpartition(" ")
    if path.startswith("/"):
        return method.upper() in ("", operation.method) and fnmatch.fnmatchcase(operation.path, path)
    return pattern.upper() == operation.method or fnmatch.fnmatchcase(operation.id, pattern)


def name_operations(operations: Sequence[Operation]) -> list[str]:
    """Return a name for each operation: from its id, or else from method and path. The order of the document does not
    matter: if two names are alike, both operations are named by method and path, and then by a digest."""
    names = [_to_safe_name(operation.id) or _name_by_path(operation) for operation in operations]
    for make in (_name_by_path, _name_by_digest):
        counts = Counter(map(lookalike_key, names))
        pairs = zip(names, operations, strict=True)
        names = [make(one) if counts[lookalike_key(name)] > 1 else name for name, one in pairs]
    return names


def _to_safe_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_-")[:128]


def _name_by_path(operation: Operation) -> str:
    path = IN_BRACES.sub(r"by_\1", operation.path.strip("/"))
    return _to_safe_name(f"{operation.method.lower()}_{path}") or _name_by_digest(operation)


def _name_by_digest(operation: Operation) -> str:
    return f"{_to_safe_name(operation.path)[:100]}_{digest(str(operation))}".lstrip("_-")


def digest(text: str) -> str:
    """Return eight characters that differ between texts."""
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:8]


def clean_description(value: Any) -> str:
    """Return a text of the document, without hidden characters; empty if the value is no text."""
    return disarm(remove_hidden(value[:_MOST_TEXT])[0]).strip() if isinstance(value, str) else ""


def is_token(name: str) -> bool:
    """Return whether it can be the name of a header or a cookie, RFC 9110."""
    return _TOKEN.fullmatch(name) is not None
