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
from ferrule.openapi.arguments import Signature, fold_name, make_signature
from ferrule.openapi.document import IN_PYTHON, Document, Spelling, WholeDocumentError
from ferrule.openapi.operations import Operation, clean_description, list_operations, match_patterns, name_operations
from ferrule.openapi.pages import find_paging
from ferrule.openapi.responses import Responses
from ferrule.openapi.schemas import Schemas
from ferrule.openapi.security import (
    Alternatives,
    find_alternatives,
    find_unnamed_scheme,
    list_credential_places,
    read_schemes,
    requires_secrets,
)
from ferrule.openapi.servers import NO_SERVER, Server, Servers
from ferrule.openapi.uploads import preview_upload
from ferrule.security.characters import disarm
from ferrule.security.foreign_text import to_one_line
from ferrule.security.http_answers import IDEMPOTENT_METHODS, SAFE_METHODS, add_answer_metadata
from ferrule.security.patterns import ForeignSchema, Patterns
from ferrule.sources._report import Imported, ImportedTool, LeftOut, Report, make_entry
from ferrule.values.content import truncate_text

if TYPE_CHECKING:
    import httpx2

__all__ = ["openapi"]

log = logging.getLogger("ferrule")
_MOST_DESCRIPTION = 8_000
_LONGEST_ENTRY = 500
_DEFAULT_HEADERS = {("header", key) for key in ("accept", "accept-encoding", "connection", "user-agent")}
_OPERATION_COST = 1_000
"""The work of one tool beside its schemas."""


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
    """Return the operations of an API as tools, for `openapi` and the command line. See docs/openapi.md.

    Args:
        spelling: The spelling of options in errors.
        calls: Whether the tools are called, and so the API's address matters.

    Raises:
        DefinitionError: As for `openapi`.
    """
    if type(pages) is not int or pages < 1:
        raise DefinitionError(f"pages must be a whole number of at least 1, not {pages!r}")
    source = Document(document, tuple(os.fspath(one) for one in _to_tuple(roots)), spelling)
    addresses = _to_tuple(server)
    http_client = _check_client(client)
    if http_client is not None and not addresses:
        raise DefinitionError("client= needs server=, because its headers and its auth go there")
    servers = Servers(source, addresses) if calls else None
    maker = _ToolMaker(source, servers, http_client, trusted, credentials or {}, pages)
    return _make_tools(source, maker, only, budget)


def _make_tools(source: Document, maker: _ToolMaker, only: str | Iterable[str], budget: int | None) -> Imported:
    found, refused = list_operations(source)
    names, places, left_out = name_operations(found), range(len(found)), refused
    if patterns := _to_tuple(only):
        tags = {tag for operation in found for tag in operation.tags}
        chosen_places = match_patterns([*found, *refused], patterns, tags, source.spelling.only)
        wanted = [place for place in places if place in chosen_places]
        left_out = [one for place, one in enumerate(refused, len(found)) if place in chosen_places]
    else:
        wanted = [*places]
    tools, entries, failed = maker.tools([(names[place], found[place]) for place in wanted])
    report = Report(
        tuple(entries), (*(_make_left_out(str(one), one.reason) for one in left_out), *failed), len(found) - len(wanted)
    )
    if budget is not None and report.tokens > budget:
        raise _over_budget(source, [found[place] for place in wanted], report.tokens, budget)
    if report.left_out:
        count = len(report.left_out)
        log.warning("%s: %d operations are left out; the report of the toolset says why", source.name, count)
    for one in report.left_out:
        log.info("%s: %s", source.name, one)
    return Imported(tools, report)


def _make_left_out(what: str, reason: str) -> LeftOut:
    """Return the report's entry, in one line each and without hidden characters: a document may hold anything."""
    return LeftOut(to_one_line(what, _LONGEST_ENTRY), to_one_line(reason, _LONGEST_ENTRY))


def _to_tuple(given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, str | os.PathLike) else tuple(given)


def _check_client(client: Any) -> Any:
    try:
        import httpx2
    except ImportError as error:
        raise DefinitionError(
            f'OpenAPI needs httpx2, which cannot be imported ({error}): pip install "ferrule[openapi]"'
        ) from error
    if client is not None and not isinstance(client, httpx2.AsyncClient):
        raise DefinitionError(f"client= must be an httpx2.AsyncClient, not a {type(client).__name__}")
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
        pages: int,
    ) -> None:
        self._document, self._servers, self._client, self._trusted = document, servers, client, trusted
        self._pages = pages
        self._schemas = Schemas(document)
        self._patterns = Patterns()
        self._schemes = read_schemes(document, credentials)
        self._hidden = list_credential_places(self._schemes.values()) | _list_client_headers(client)

    def tools(self, operations: list[tuple[str, Operation]]) -> tuple[list[Tool], list[ImportedTool], list[LeftOut]]:
        """Return the tools, their entries in the report, and the left-out operations.

        Raises:
            WholeDocumentError: A problem concerns all of them.
        """
        tools: list[Tool] = []
        entries: list[ImportedTool] = []
        left_out: list[LeftOut] = []
        missing = ""
        for name, operation in operations:
            self._document.spend(_OPERATION_COST)
            try:
                tool, notes = self._tool(operation, name)
            except WholeDocumentError:
                raise
            except Exception as error:  # a document may hold anything anywhere, and one operation stops no other
                is_expected = isinstance(error, DefinitionError | ValueError)
                reason = str(error) if is_expected else f"{type(error).__name__}: {error}"
                left_out.append(_make_left_out(str(operation), reason))
                if isinstance(error, MissingCredentialError):
                    missing = missing or f"{left_out[-1].item}: {error}"
                continue
            tools.append(tool)
            entries.append(make_entry(tool, to_one_line(str(operation), _LONGEST_ENTRY), notes))
        if missing and not tools:
            raise WholeDocumentError(f"{self._document.name}: {missing}")
        return tools, entries, left_out

    def _tool(self, operation: Operation, name: str) -> tuple[Tool, tuple[str, ...]]:
        from ferrule.openapi.calls import Endpoint  # it imports httpx2

        server = NO_SERVER if self._servers is None else self._servers.choose(operation)
        security = self._choose_security(operation, server)
        signature = make_signature(operation, self._document, self._schemas, self._hidden)
        paging = find_paging(operation, self._document, signature)
        pages = self._pages if operation.method == "GET" else 1
        notes = signature.notes if paging is None or pages == 1 else (*signature.notes, f"reads up to {pages} pages")
        endpoint = Endpoint(
            name,
            operation.method,
            operation.path,
            server,
            signature,
            security,
            self._client,
            Responses(operation, self._document),
            paging,
            pages,
        )
        uploads = any(one.is_file for one in signature.arguments)
        value = operation.node.value
        tool: Tool = Tool(
            name,
            endpoint.call,
            description=_description(operation),
            input_schema=ForeignSchema(signature.schema, self._patterns),
            tags=operation.tags,
            inside=[Hook(after=add_answer_metadata)],
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
        return tool, notes

    def _choose_security(self, operation: Operation, server: Server) -> Alternatives:
        """Return the credentials to send.

        Raises:
            DefinitionError: There are none that may be sent.
        """
        security = find_alternatives(operation, self._document, self._schemes)
        if requires_secrets(security):
            spelling = self._document.spelling
            _check_credentials(server, spelling)
            if self._servers is not None and (scheme := find_unnamed_scheme(security)) is not None:
                raise MissingCredentialError(
                    f"it needs the credential of its scheme {scheme!r}: name your secret for it, "
                    f"{spelling.credential.format(scheme)}{spelling.credential_value}"
                )
        elif not (server.is_named and server.is_secure):
            return ()
        return security

    def _traits(self, method: str) -> Any:
        """Return the traits by the method: https://www.rfc-editor.org/rfc/rfc9110#section-9.2"""
        reads = self._trusted and method in SAFE_METHODS
        idempotent = self._trusted and method in IDEMPOTENT_METHODS
        return {"read_only": reads, "destructive": not reads, "idempotent": idempotent, "open_world": True}


def _list_client_headers(client: Any) -> frozenset[tuple[str, str]]:
    """Return the headers that a client adds by the developer's choice. A key may be among them, so no argument takes
    their place."""
    addresses = () if client is None else client.headers.keys()
    return frozenset(("header", fold_name("header", key)) for key in addresses) - _DEFAULT_HEADERS


def _wire_digest(server: Server, operation: Operation, signature: Signature, security: Alternatives) -> str:
    """Return one text, different if the same arguments would become another request."""
    wire = (server.url, str(operation), signature.arguments, signature.body, signature.key_header, security)
    return sha256(repr(wire).encode("utf-8", "replace")).hexdigest()


def _check_credentials(server: Server, spelling: Spelling) -> None:
    if not server.is_named:
        raise MissingCredentialError(
            f"it needs credentials, which go only to a server that you name: {spelling.server.format(server.url)[:200]}"
        )
    if not server.is_secure:
        raise MissingCredentialError(
            f"it needs credentials, which go over https only, and {server.url!r:.200} is not https"
        )


def _description(operation: Operation) -> str:
    value = operation.node.value
    sentences = [clean_description(value.get("summary")), clean_description(value.get("description"))]
    if value.get("deprecated") is True:
        sentences.append("Deprecated.")
    return truncate_text("\n\n".join(dict.fromkeys(filter(None, sentences))), _MOST_DESCRIPTION, "head") or disarm(
        str(operation)
    )


def _over_budget(document: Document, operations: list[Operation], tokens: int, budget: int) -> DefinitionError:
    counts = Counter(tag for operation in operations for tag in operation.tags)
    tags = ", ".join(f"{to_one_line(tag, 50)} ({count})" for tag, count in counts.most_common(8))
    shown_tags = f"; its tags are {tags}" if tags else ""
    return WholeDocumentError(
        f"{document.name}: {len(operations)} operations need about {tokens:,} tokens in each request, and the budget "
        f"is {budget:,}: choose some, {document.spelling.some}{shown_tags}; or {document.spelling.budget}"
    )
