"""Tools from an OpenAPI document: each operation is one, judged by the runner before anything is sent.

    runner = Runner(openapi("api.yaml", server="https://api.example.com"), secrets={"key": token}, guards=[...])

See docs/openapi.md. What reads documents and sends requests is imported when it is called:
`pip install "ferrule[openapi]"`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ferrule import DefinitionError, Tool
from ferrule.characters import inert, visible
from ferrule.patterns import ForeignSchema, Patterns
from ferrule.sources._foreign_text import visible_schema
from ferrule.sources._openapi_document import Document
from ferrule.sources._openapi_operations import Operation, chosen, names_of, operations_of, signature_of
from ferrule.sources._openapi_responses import Responses
from ferrule.sources._openapi_schemas import Schemas
from ferrule.sources._openapi_security import alternatives_of, need_secrets, places_of, schemes_of
from ferrule.sources._openapi_servers import NOWHERE, Server, Servers
from ferrule.sources._report import Imported, LeftOut, Report, Taken, taken
from ferrule.values.content import cut

if TYPE_CHECKING:
    import httpx2

__all__ = ["look", "openapi"]

log = logging.getLogger("ferrule")
_MOST_DESCRIPTION = 8_000
_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "QUERY"})
_IDEMPOTENT = _SAFE | {"PUT", "DELETE"}
"""https://www.rfc-editor.org/rfc/rfc9110#section-9.2, and of QUERY its draft."""


def openapi(
    document: str | os.PathLike[str] | Mapping[str, Any],
    *,
    client: httpx2.AsyncClient | None = None,
    server: str | Iterable[str] | None = None,
    only: str | Iterable[str] = (),
    budget: int | None = 20_000,
    trusted: bool = True,
    roots: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
) -> Imported:
    """The operations of an API as tools. See docs/openapi.md.

        tools = openapi("api.yaml", server="https://api.example.com", only=["GET", "tag:orders"])
        print(tools.report)

    Args:
        document: A file in JSON or YAML, or its data: OpenAPI 3.0, 3.1 or 3.2.
        client: Sends the requests; left out, each call has a connection of its own.
        server: Where the API is, and further servers that operations may name. Credentials go nowhere else. Left out,
            it is the one that the document names, where that is one, public and https.
        only: Which operations: methods (`"GET"`), paths (`"/orders/*"`), both (`"GET /orders/*"`), tags
            (`"tag:orders"`) or ids (`"list*"`); all where it is empty.
        budget: The tokens that the definitions may take together; `None` for any number.
        trusted: Whether to believe the document's methods: that GET only reads, that PUT and DELETE may come twice.
            Otherwise each tool changes things.
        roots: The folders of the files that the document refers to.

    Raises:
        DefinitionError: for a document that cannot be read, a server that is none or is left open, a pattern that names
            nothing, and more tools than the budget has room for.
    """
    read = Document(document, tuple(os.fspath(one) for one in _one_or_more(roots)))
    maker = _ToolMaker(read, Servers(read, _one_or_more(server)), _checked_client(client), trusted)
    return _as_tools(read, maker, only, budget)


def look(
    document: str | os.PathLike[str] | Mapping[str, Any],
    *,
    only: str | Iterable[str] = (),
    roots: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
) -> Imported:
    """The operations of an API as tools to be looked at, which are sent nowhere. See docs/openapi.md#the-report.

    Raises:
        DefinitionError: as `openapi`.
    """
    read = Document(document, tuple(os.fspath(one) for one in _one_or_more(roots)))
    return _as_tools(read, _ToolMaker(read, None, _checked_client(None), trusted=True), only, None)


def _as_tools(read: Document, maker: _ToolMaker, only: str | Iterable[str], budget: int | None) -> Imported:
    found, refused = operations_of(read)
    wanted = chosen(found, patterns) if (patterns := [*_one_or_more(only)]) else found
    tools, entries, left_out = maker.tools(wanted)
    report = Report(
        tuple(entries),
        (*(LeftOut(what, reason) for what, reason in refused), *left_out),
        len(found) - len(wanted),
    )
    _check_budget(report, budget, wanted, read)
    if report.left_out:
        log.warning(
            "%s: %d operations are left out; the report of the toolset says why", read.name, len(report.left_out)
        )
    for one in report.left_out:
        log.info("%s: %s", read.name, one)
    return Imported(tools, report)


def _one_or_more(given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, str | os.PathLike) else tuple(given)


def _checked_client(client: Any) -> Any:
    try:
        import httpx2
    except ImportError as error:
        raise DefinitionError(
            f'OpenAPI needs httpx2, which could not be imported ({error}): pip install "ferrule[openapi]"'
        ) from error
    if client is not None and not isinstance(client, httpx2.AsyncClient):
        raise DefinitionError(f"client= takes an httpx2.AsyncClient, not a {type(client).__name__}")
    return client


class _ToolMaker:
    """Makes the tools of one document.

    Args:
        servers: Where they go; `None` for tools that are only looked at.
    """

    def __init__(self, document: Document, servers: Servers | None, client: Any, trusted: bool) -> None:
        self._document, self._servers, self._client, self._trusted = document, servers, client, trusted
        self._schemas, self._responses = Schemas(document, "request"), Schemas(document, "response")
        self._patterns = Patterns()
        self._schemes = schemes_of(document)
        self._hidden = places_of(self._schemes.values())

    def tools(self, operations: list[Operation]) -> tuple[list[Tool], list[Taken], list[LeftOut]]:
        """The tools, what the report says of each, and what is left out."""
        tools: list[Tool] = []
        entries: list[Taken] = []
        left_out: list[LeftOut] = []
        for operation, name in zip(operations, names_of(operations), strict=True):
            try:
                tool, notes = self._tool(operation, name)
                tools.append(tool)
                entries.append(taken(tool, str(operation), notes))
            except (DefinitionError, ValueError) as error:
                if isinstance(error, _NotNamedError):
                    raise
                left_out.append(LeftOut(str(operation), str(error)))
        return tools, entries, left_out

    def _tool(self, operation: Operation, name: str) -> tuple[Tool, tuple[str, ...]]:
        from ferrule.sources._openapi_calls import Endpoint  # which imports httpx2

        server = NOWHERE if self._servers is None else self._servers.of(operation)
        security = alternatives_of(operation, self._document, self._schemes)
        if need_secrets(security):
            _check_credentials(server, operation, self._document)
        elif not (server.named and server.kept_apart):
            security = ()
        signature = signature_of(operation, self._document, self._schemas, self._hidden)
        schema, _ = visible_schema(signature.schema, _MOST_DESCRIPTION)
        responses = Responses(name, operation, self._document, self._responses)
        endpoint = Endpoint(
            name, operation.method, operation.path, server, signature, security, self._client, responses.check
        )
        value = operation.node.value
        tool: Tool = Tool(
            name,
            endpoint.call,
            description=_description(operation),
            input_schema=ForeignSchema(schema, self._patterns),
            server=sha256(f"{server.url} {operation}".encode()).hexdigest(),
            tags=operation.tags,
            metadata={
                "openapi": {
                    "operation": str(operation),
                    "id": operation.id,
                    "deprecated": value.get("deprecated") is True,
                }
            },
            **self._traits(operation.method),
        )
        return tool, signature.notes

    def _traits(self, method: str) -> Any:
        """What the method says: https://www.rfc-editor.org/rfc/rfc9110#section-9.2"""
        reads = self._trusted and method in _SAFE
        idempotent = self._trusted and method in _IDEMPOTENT
        return {"read_only": reads, "destructive": not reads, "idempotent": idempotent, "open_world": True}


class _NotNamedError(DefinitionError):
    """Credentials are needed and would go nowhere."""


def _check_credentials(server: Server, operation: Operation, document: Document) -> None:
    if not server.named:
        raise _NotNamedError(
            f"{document.name}: {operation} needs credentials, which go only to a server that you name: "
            f"server={server.url!r:.200}, where that is it"
        )
    if not server.kept_apart:
        raise _NotNamedError(
            f"{document.name}: {operation} needs credentials, which go over https alone, and {server.url!r:.200} is not"
        )


def _description(operation: Operation) -> str:
    value = operation.node.value
    texts = [value.get("summary"), value.get("description")]
    said = [inert(visible(text)[0]).strip() for text in texts if isinstance(text, str)]
    if value.get("deprecated") is True:
        said.append("Deprecated.")
    return cut("\n\n".join(dict.fromkeys(filter(None, said))), _MOST_DESCRIPTION, "head") or str(operation)


def _check_budget(report: Report, budget: int | None, operations: list[Operation], document: Document) -> None:
    if budget is None or report.tokens <= budget:
        return
    counts: dict[str, int] = {}
    for operation in operations:
        for tag in operation.tags:
            counts[tag] = counts.get(tag, 0) + 1
    tags = ", ".join(f"{tag} ({count})" for tag, count in sorted(counts.items(), key=lambda one: -one[1])[:8])
    raise DefinitionError(
        f"{document.name}: {len(report.taken)} operations would take about {report.tokens:,} tokens of each "
        f"request, and the budget is {budget:,}: choose some, only=['GET', 'tag:…', '/orders/*']"
        f"{f'; its tags are {tags}' if tags else ''}; or offer few at a time by a selector of ferrule.selection, and "
        "give budget=None"
    )
