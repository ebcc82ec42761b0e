"""Tools from an OpenAPI document: each operation is one, judged by the runner before anything is sent.

    runner = Runner(openapi("api.yaml", server="https://api.example.com"), secrets={"key": token}, guards=[...])

See docs/openapi.md. The packages for documents and requests are imported when it is called:
`pip install "ferrule[openapi]"`.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ferrule import DefinitionError, Tool
from ferrule.definition.hooks import Hook
from ferrule.openapi.arguments import Signature, folded_name, signature_of
from ferrule.openapi.document import IN_PYTHON, Document, Spelling, WholeDocumentError
from ferrule.openapi.operations import Operation, chosen, names_of, operations_of, told_text
from ferrule.openapi.pages import paging_of
from ferrule.openapi.responses import Responses
from ferrule.openapi.schemas import Schemas
from ferrule.openapi.security import (
    Alternatives,
    alternatives_of,
    need_secrets,
    places_of,
    schemes_of,
    unnamed,
)
from ferrule.openapi.servers import NOWHERE, Server, Servers
from ferrule.openapi.uploads import preview_upload
from ferrule.security.characters import disarm
from ferrule.security.foreign_text import to_one_line
from ferrule.security.patterns import ForeignSchema, Patterns
from ferrule.sources._report import Imported, LeftOut, Report, Taken, taken
from ferrule.values.content import truncate_text

if TYPE_CHECKING:
    import httpx2

__all__ = ["look", "openapi"]

log = logging.getLogger("ferrule")
_MOST_DESCRIPTION = 8_000
_LONGEST_OF_REPORT = 500
_TIMES_THE_BUDGET = 10
"""Most tokens, as a multiple of the budget. Beyond it no more tools are made, and the error gives no exact count."""
_OF_EVERY_CLIENT = {("header", key) for key in ("accept", "accept-encoding", "connection", "user-agent")}
_AN_OPERATION = 1_000
"""The work of one tool beside its schemas."""
_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "QUERY"})
_IDEMPOTENT = _SAFE | {"PUT", "DELETE"}
"""https://www.rfc-editor.org/rfc/rfc9110#section-9.2, and for QUERY its draft."""


def openapi(
    document: str | os.PathLike[str] | Mapping[str, Any],
    *,
    client: httpx2.AsyncClient | None = None,
    server: str | Iterable[str] | None = None,
    credentials: Mapping[str, str] | None = None,
    only: str | Iterable[str] = (),
    budget: int | None = 20_000,
    trusted: bool = True,
    roots: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    pages: int = 1,
) -> Imported:
    """Return the operations of an API as tools. See docs/openapi.md.

        tools = openapi("api.yaml", server="https://api.example.com", only=["GET", "tag:orders"])
        print(tools.report)

    Args:
        document: A file in JSON or YAML, or its data: OpenAPI 3.0, 3.1 or 3.2.
        client: Sends the requests; if left out, each call has a connection of its own. It needs `server`, because its
            headers and its auth go there.
        server: The address of the API, and further servers that operations may name. Credentials go nowhere else. If
            left out, it is the server in the document, if there is exactly one, public and https.
        credentials: A mapping such as `{"bearerAuth": "github_token"}`: for each of the document's `securitySchemes`,
            the name in the context's `secrets`. No document names a secret.
        only: The operations to take: methods (`"GET"`), paths (`"/orders/*"`), both (`"GET /orders/*"`), tags
            (`"tag:orders"`) or ids (`"list*"`); all if it is empty.
        budget: The tokens that the definitions may take together; `None` for any number.
        trusted: Whether to believe the document's methods: GET only reads, PUT and DELETE may be repeated. Otherwise
            each tool changes things.
        roots: The folders of the files that the document refers to.
        pages: Most pages of a list for one call to read. Ferrule follows a list if the document says how.

    Raises:
        DefinitionError: The document cannot be read, a server is invalid or left open, a pattern names nothing, or the
            tools are over the budget.
    """
    return import_operations(
        document,
        client=client,
        server=server,
        credentials=credentials,
        only=only,
        budget=budget,
        trusted=trusted,
        roots=roots,
        pages=pages,
    )


def look(
    document: str | os.PathLike[str] | Mapping[str, Any],
    *,
    only: str | Iterable[str] = (),
    roots: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
) -> Imported:
    """Return the operations of an API as tools to be looked at. Their calls reach no server. See
    docs/openapi.md#the-report.

    Raises:
        DefinitionError: As for `openapi`.
    """
    return import_operations(document, calls=False, only=only, roots=roots)


def import_operations(
    document: str | os.PathLike[str] | Mapping[str, Any],
    *,
    spelling: Spelling = IN_PYTHON,
    calls: bool = True,
    client: httpx2.AsyncClient | None = None,
    server: str | Iterable[str] | None = None,
    credentials: Mapping[str, str] | None = None,
    only: str | Iterable[str] = (),
    budget: int | None = None,
    trusted: bool = True,
    roots: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    pages: int = 1,
) -> Imported:
    """Return the operations of an API as tools, for `openapi`, `look` and the command line. See docs/openapi.md.

    Args:
        spelling: The spelling of options in errors.
        calls: Whether the tools are called, and so the API's address matters.

    Raises:
        DefinitionError: As for `openapi`.
    """
    if type(pages) is not int or pages < 1:
        raise DefinitionError(f"pages must be a whole number of at least 1, not {pages!r}")
    read = Document(document, tuple(os.fspath(one) for one in _one_or_more(roots)), spelling)
    named = _one_or_more(server)
    checked = _checked_client(client)
    if checked is not None and not named:
        raise DefinitionError("client= needs server=, as its headers and its auth go where the requests go")
    servers = Servers(read, named) if calls else None
    maker = _ToolMaker(read, servers, checked, trusted, credentials or {}, budget, pages)
    return _as_tools(read, maker, only, budget)


def _as_tools(read: Document, maker: _ToolMaker, only: str | Iterable[str], budget: int | None) -> Imported:
    found, refused = operations_of(read)
    names, places, left_out = names_of(found), range(len(found)), refused
    if patterns := _one_or_more(only):
        tags = {tag for operation in found for tag in operation.tags}
        chosen_places = chosen([*found, *refused], patterns, tags, read.spelling.only)
        wanted = [place for place in places if place in chosen_places]
        left_out = [one for place, one in enumerate(refused, len(found)) if place in chosen_places]
    else:
        wanted = [*places]
    tools, entries, also = maker.tools([(names[place], found[place]) for place in wanted])
    report = Report(
        tuple(entries), (*(_told_left_out(str(one), one.reason) for one in left_out), *also), len(found) - len(wanted)
    )
    _check_budget(report, budget, [found[place] for place in wanted], read)
    if report.left_out:
        count = len(report.left_out)
        log.warning("%s: %d operations are left out; the report of the toolset says why", read.name, count)
    for one in report.left_out:
        log.info("%s: %s", read.name, one)
    return Imported(tools, report)


def _told_left_out(what: str, reason: str) -> LeftOut:
    """Return the report's entry, in one line each and without hidden characters: a document may hold anything."""
    return LeftOut(to_one_line(what, _LONGEST_OF_REPORT), to_one_line(reason, _LONGEST_OF_REPORT))


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


class MissingCredentialError(DefinitionError):
    """An operation has no credential that it may send; the others go on."""


class _ToolMaker:
    """Makes the tools of one document.

    Args:
        servers: The targets of requests; `None` for tools that are only looked at.
    """

    def __init__(
        self,
        document: Document,
        servers: Servers | None,
        client: Any,
        trusted: bool,
        credentials: Mapping[str, str],
        budget: int | None,
        pages: int,
    ) -> None:
        self._document, self._servers, self._client, self._trusted = document, servers, client, trusted
        self._pages = pages
        self._schemas, self._responses = Schemas(document, "request"), Schemas(document, "response")
        self._patterns = Patterns()
        self._schemes = schemes_of(document, credentials)
        self._hidden = places_of(self._schemes.values()) | _headers_of(client)
        self._most = None if budget is None else budget * _TIMES_THE_BUDGET

    def tools(self, operations: list[tuple[str, Operation]]) -> tuple[list[Tool], list[Taken], list[LeftOut]]:
        """Return the tools, their entries in the report, and the left-out operations.

        Raises:
            WholeDocumentError: A problem concerns all of them.
        """
        tools: list[Tool] = []
        entries: list[Taken] = []
        left_out: list[LeftOut] = []
        missing = ""
        tokens = 0
        for name, operation in operations:
            self._document.spend(_AN_OPERATION)
            try:
                tool, notes = self._tool(operation, name)
            except WholeDocumentError:
                raise
            except Exception as error:  # a document may hold anything anywhere, and one operation stops no other
                said = (
                    str(error)
                    if isinstance(error, DefinitionError | ValueError)
                    else f"{type(error).__name__}: {error}"
                )
                left_out.append(_told_left_out(str(operation), said))
                if isinstance(error, MissingCredentialError):
                    missing = missing or f"{left_out[-1].what}: {error}"
                continue
            tools.append(tool)
            entries.append(taken(tool, to_one_line(str(operation), _LONGEST_OF_REPORT), notes))
            tokens += entries[-1].tokens
            if self._most is not None and tokens > self._most:
                raise _over_budget(self._document, operations, f"over {self._most:,}", self._most // _TIMES_THE_BUDGET)
        if missing and not tools:
            raise WholeDocumentError(f"{self._document.name}: {missing}")
        return tools, entries, left_out

    def _tool(self, operation: Operation, name: str) -> tuple[Tool, tuple[str, ...]]:
        from ferrule.openapi.calls import Endpoint, add_answer  # it imports httpx2

        server = NOWHERE if self._servers is None else self._servers.of(operation)
        security = alternatives_of(operation, self._document, self._schemes)
        if need_secrets(security):
            spelling = self._document.spelling
            _check_credentials(server, spelling)
            if self._servers is not None and (scheme := unnamed(security)) is not None:
                raise MissingCredentialError(
                    f"it needs the credential of its scheme {scheme!r}: say which of your secrets that is, "
                    f"{spelling.credential.format(scheme)}"
                )
        elif not (server.named and server.kept_apart):
            security = ()
        signature = signature_of(operation, self._document, self._schemas, self._hidden)
        endpoint = Endpoint(
            name,
            operation.method,
            operation.path,
            server,
            signature,
            security,
            self._client,
            Responses(name, operation, self._document, self._responses),
            paging_of(operation, self._document, signature),
            self._pages if operation.method == "GET" else 1,
        )
        uploads = any(one.is_file for one in signature.arguments)
        value = operation.node.value
        tool: Tool = Tool(
            name,
            endpoint.call,
            description=_description(operation),
            input_schema=ForeignSchema(signature.schema, self._patterns),
            tags=operation.tags,
            inside=[Hook(after=add_answer)],
            preview=partial(preview_upload, operation, server, signature) if uploads else None,
            metadata={
                "openapi": {
                    "operation": str(operation),
                    "id": operation.id,
                    "deprecated": value.get("deprecated") is True,
                }
            },
            **self._traits(operation.method),
        ).with_server(_wire_digest(server, operation, signature, security))
        return tool, signature.notes

    def _traits(self, method: str) -> Any:
        """Return the traits by the method: https://www.rfc-editor.org/rfc/rfc9110#section-9.2"""
        reads = self._trusted and method in _SAFE
        idempotent = self._trusted and method in _IDEMPOTENT
        return {"read_only": reads, "destructive": not reads, "idempotent": idempotent, "open_world": True}


def _headers_of(client: Any) -> frozenset[tuple[str, str]]:
    """Return the headers that a client adds by the developer's choice. A key may be among them, so no argument takes
    their place."""
    named = () if client is None else client.headers.keys()
    return frozenset(("header", folded_name("header", key)) for key in named) - _OF_EVERY_CLIENT


def _wire_digest(server: Server, operation: Operation, signature: Signature, security: Alternatives) -> str:
    """Return one text, different if the same arguments would become another request."""
    wire = (server.url, str(operation), signature.arguments, signature.body, signature.key_header, security)
    return sha256(repr(wire).encode("utf-8", "replace")).hexdigest()


def _check_credentials(server: Server, spelling: Spelling) -> None:
    if not server.named:
        raise MissingCredentialError(
            "it needs credentials, which go only to a server that you name: "
            f"{spelling.server.format(server.url)[:200]}, where that is it"
        )
    if not server.kept_apart:
        raise MissingCredentialError(f"it needs credentials, which go over https alone, and {server.url!r:.200} is not")


def _description(operation: Operation) -> str:
    value = operation.node.value
    said = [told_text(value.get("summary")), told_text(value.get("description"))]
    if value.get("deprecated") is True:
        said.append("Deprecated.")
    return truncate_text("\n\n".join(dict.fromkeys(filter(None, said))), _MOST_DESCRIPTION, "head") or disarm(
        str(operation)
    )


def _check_budget(report: Report, budget: int | None, operations: list[Operation], document: Document) -> None:
    if budget is not None and report.tokens > budget:
        known = [(one.name, operation) for one, operation in zip(report.taken, operations, strict=False)]
        raise _over_budget(document, known, f"about {report.tokens:,}", budget)


def _over_budget(
    document: Document, operations: list[tuple[str, Operation]], tokens: str, budget: int
) -> DefinitionError:
    counts = Counter(tag for _, operation in operations for tag in operation.tags)
    tags = ", ".join(f"{to_one_line(tag, 50)} ({count})" for tag, count in counts.most_common(8))
    return WholeDocumentError(
        f"{document.name}: {len(operations)} operations would take {tokens} tokens of each request, and the budget is "
        f"{budget:,}: choose some, {document.spelling.some}{f'; its tags are {tags}' if tags else ''}; or "
        f"{document.spelling.budget}"
    )
