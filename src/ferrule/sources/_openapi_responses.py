"""Whether the answers of an API are as its document says: what differs is logged, and is no error."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ferrule import DefinitionError
from ferrule.arguments.schema_parameters import Enforced
from ferrule.patterns import ForeignSchema
from ferrule.sources._foreign_text import one_line
from ferrule.sources._openapi_bodies import is_json
from ferrule.sources._openapi_document import Document, Node
from ferrule.sources._openapi_operations import Operation
from ferrule.sources._openapi_schemas import Schemas

log = logging.getLogger("ferrule")
_DIFFERENCES_TOLD = 3


class Responses:
    """The answers of one operation; the schema of each status is read when the first of it comes.

    Args:
        tool: The tool's name.
    """

    def __init__(self, tool: str, operation: Operation, document: Document, schemas: Schemas) -> None:
        self._tool, self._operation, self._document, self._schemas = tool, operation, document, schemas
        self._known: dict[tuple[int, str], Enforced | None] = {}
        self._told: set[int] = set()

    def check(self, status: int, media: str, value: Any) -> None:
        """Log the first answer of a status that is not as the document says."""
        if (status, media) not in self._known:
            self._known[status, media] = self._read(status, media)
        enforced = self._known[status, media]
        if enforced is None or status in self._told:
            return
        try:
            errors = enforced.errors(value)
        except (ValueError, RecursionError):  # half of a surrogate pair, or what nests too deep
            return
        if errors:
            self._told.add(status)
            said = "; ".join(
                f"{'/'.join(map(str, one.instance_path)) or 'it'}: {one.message}"
                for one in [*errors][:_DIFFERENCES_TOLD]
            )
            said = one_line(said, 500)
            log.warning("the answer of tool %r (HTTP %d) is not as its document says: %s", self._tool, status, said)

    def _read(self, status: int, media: str) -> Enforced | None:
        try:
            node = self._schema(status, media)
            if node is None:
                return None
            [schema], defs = self._schemas.bundle(node)
            if isinstance(schema, bool):
                return None
            whole = {**schema, "$defs": defs}
            return Enforced(whole, "the schema of its answer", ForeignSchema(whole))
        except (DefinitionError, ValueError) as error:
            log.warning(
                "the answers of tool %r (HTTP %d) are not compared with its document: %s", self._tool, status, error
            )
            return None

    def _schema(self, status: int, media: str) -> Node | None:
        listed, base = self._operation.node.value.get("responses"), self._operation.node.base
        if not isinstance(listed, Mapping):
            return None
        named = {str(key).upper(): one for key, one in listed.items()}
        value = next((named[key] for key in (str(status), f"{status // 100}XX", "DEFAULT") if key in named), None)
        node = self._document.follow(Node(value, base))
        content = node.value.get("content") if isinstance(node.value, Mapping) else None
        if not isinstance(content, Mapping):
            return None
        fits = (one for key, one in content.items() if str(key).partition(";")[0].strip().lower() == media)
        about = next(fits, None) or next((one for key, one in content.items() if is_json(str(key))), None)
        about = self._document.follow(Node(about, node.base))
        return (
            Node(about.value["schema"], about.base)
            if isinstance(about.value, Mapping) and "schema" in about.value
            else None
        )
