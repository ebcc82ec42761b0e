"""The answers that an OpenAPI document declares: their headers and their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ferrule import DefinitionError
from ferrule.openapi.document import Document, Node
from ferrule.openapi.operations import Operation, is_token
from ferrule.security.http_answers import is_json_type

MOST_HEADERS = 50


class Responses:
    """The declared answers of one operation."""

    def __init__(self, operation: Operation, document: Document) -> None:
        self._operation, self._document = operation, document
        self.headers = cache(self._find_headers)

    def _find_headers(self, status: int) -> tuple[str, ...]:
        """Return the names of the headers that the document declares for answers of this status."""
        try:
            return declared_headers(declared_response(self._operation, self._document, status))
        except DefinitionError:
            return ()


def declared_response(operation: Operation, document: Document, status: int) -> Node:
    """Return the response that the document declares for a status; a node without a value if there is none.

    Raises:
        DefinitionError: A reference leads nowhere.
    """
    declared, base = operation.node.value.get("responses"), operation.node.base
    named = {str(key).upper(): one for key, one in declared.items()} if isinstance(declared, Mapping) else {}
    value = next((named[key] for key in (str(status), f"{status // 100}XX", "DEFAULT") if key in named), None)
    return document.follow(Node(value, base))


def declared_headers(response: Node) -> tuple[str, ...]:
    """Return the names of its headers, without `Set-Cookie`, which is a credential."""
    headers = response.value.get("headers") if isinstance(response.value, Mapping) else None
    names = [str(name) for name in headers] if isinstance(headers, Mapping) else []
    return tuple(name for name in names[:MOST_HEADERS] if is_token(name) and name.lower() != "set-cookie")


def declared_schema(response: Node, media: str, document: Document) -> Node | None:
    """Return the schema of its body in a type, or else in JSON.

    Raises:
        DefinitionError: A reference leads nowhere.
    """
    content = response.value.get("content") if isinstance(response.value, Mapping) else None
    if not isinstance(content, Mapping):
        return None
    fits = (one for key, one in content.items() if str(key).partition(";")[0].strip().lower() == media)
    about = next(fits, None) or next((one for key, one in content.items() if is_json_type(str(key))), None)
    about = document.follow(Node(about, response.base))
    if isinstance(about.value, Mapping) and "schema" in about.value:
        return Node(about.value["schema"], about.base)
    return None
