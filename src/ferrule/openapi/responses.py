"""The answers that an OpenAPI document declares: their headers, and whether an answer matches the document. A different
answer is logged, and is no error."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ferrule import DefinitionError
from ferrule.arguments.schema_parameters import JsonSchemaValidator
from ferrule.openapi.bodies import is_json
from ferrule.openapi.document import Document, Node
from ferrule.openapi.operations import Operation, is_token
from ferrule.openapi.schemas import Schemas
from ferrule.security.foreign_text import to_one_line
from ferrule.security.patterns import ForeignSchema

log = logging.getLogger("ferrule")
_DIFFERENCES_TOLD = 3
MOST_HEADERS = 50


class Responses:
    """The answers of one operation. The schema of a status is read with its first answer.

    Args:
        tool: The tool's name.
    """

    def __init__(self, tool: str, operation: Operation, document: Document, schemas: Schemas) -> None:
        self._tool, self._operation, self._document, self._schemas = tool, operation, document, schemas
        self._known: dict[tuple[int, str], JsonSchemaValidator | None] = {}
        self._told: set[int] = set()
        self._headers: dict[int, tuple[str, ...]] = {}

    def check(self, status: int, media: str, value: Any) -> None:
        """Log the first answer of a status that differs from the document."""
        if (status, media) not in self._known:
            self._known[status, media] = self._read(status, media)
        enforced = self._known[status, media]
        if enforced is None or status in self._told:
            return
        try:
            errors = enforced.find_errors(value)
        except (ValueError, RecursionError):  # half of a surrogate pair, or too many levels
            return
        if errors:
            self._told.add(status)
            said = "; ".join(
                f"{'/'.join(map(str, one.instance_path)) or 'it'}: {one.message}"
                for one in [*errors][:_DIFFERENCES_TOLD]
            )
            said = to_one_line(said, 500)
            log.warning("the answer of tool %r (HTTP %d) is not as its document says: %s", self._tool, status, said)

    def headers(self, status: int) -> tuple[str, ...]:
        """Return the names of the headers that the document declares for answers of this status."""
        if status not in self._headers:
            try:
                self._headers[status] = declared_headers(declared_response(self._operation, self._document, status))
            except DefinitionError:
                self._headers[status] = ()
        return self._headers[status]

    def _read(self, status: int, media: str) -> JsonSchemaValidator | None:
        try:
            node = self._schema(status, media)
            if node is None:
                return None
            [schema], defs = self._schemas.bundle(node)
            if isinstance(schema, bool):
                return None
            whole = {**schema, "$defs": defs}
            return JsonSchemaValidator(whole, "the schema of its answer", ForeignSchema(whole))
        except (DefinitionError, ValueError) as error:
            log.warning(
                "the answers of tool %r (HTTP %d) are not compared with its document: %s", self._tool, status, error
            )
            return None

    def _schema(self, status: int, media: str) -> Node | None:
        return declared_schema(declared_response(self._operation, self._document, status), media, self._document)


def declared_response(operation: Operation, document: Document, status: int) -> Node:
    """Return the response that the document declares for a status; a node without a value if there is none.

    Raises:
        DefinitionError: A reference leads nowhere.
    """
    listed, base = operation.node.value.get("responses"), operation.node.base
    named = {str(key).upper(): one for key, one in listed.items()} if isinstance(listed, Mapping) else {}
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
    about = next(fits, None) or next((one for key, one in content.items() if is_json(str(key))), None)
    about = document.follow(Node(about, response.base))
    if isinstance(about.value, Mapping) and "schema" in about.value:
        return Node(about.value["schema"], about.base)
    return None
