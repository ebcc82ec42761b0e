"""The next page of a list: how an OpenAPI document says that there is one, and which arguments or address lead to it.

Ferrule only follows a page if the document makes it certain:

Link         the answer declares the header `Link`: the page with `rel="next"`
address      the body declares a URL: `find_next` with the format `uri`, `next_url`, `nextLink`
cursor       the body declares a cursor for a query parameter: `next_cursor` for `cursor`, `next_token` for both
page number  a query parameter is `page`, and the answer declares where the list ends: `has_more`, `total_pages`
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote, urljoin, urlsplit

from ferrule import DefinitionError
from ferrule.openapi.arguments import Signature, declared_parameters
from ferrule.openapi.document import Document, Node, WholeDocumentError
from ferrule.openapi.operations import Operation
from ferrule.openapi.responses import declared_headers, declared_response, declared_schema
from ferrule.openapi.servers import Server, covers_url

Pointer: TypeAlias = tuple[str, ...]
"""The names that lead to a field in a body."""

_MOST_FIELDS: Final = 1_000
_DEEPEST_FIELD: Final = 3
_MOST_ALTERNATIVES: Final = 20
_NEXT_ADDRESS = re.compile(r"(odata)?next(page)?(url|uri|link|href)")
_PAGE_NAMES: Final = frozenset({"page", "pagenumber", "pageno"})
_MORE_NAMES: Final = frozenset({"hasmore", "hasnext", "hasnextpage"})
_PAGE_COUNTS: Final = frozenset({"totalpages", "pagecount", "lastpage", "numpages", "pages"})
_ITEM_COUNTS: Final = frozenset({"total", "totalcount", "totalitems", "totalresults", "totalrecords"})
_TOTAL_HEADER: Final = "x-total-count"


class NextPage(NamedTuple):
    """The way to a further page. A page on another server has neither attribute.

    Attributes:
        arguments: The arguments that change; `None` if no arguments of the operation lead there.
        address: The URL from the server.
    """

    arguments: dict[str, Any] | None = None
    address: str | None = None

    @property
    def is_here(self) -> bool:
        """Whether it is on the server of the operation."""
        return self.arguments is not None or self.address is not None


class ListAnswer(NamedTuple):
    """The facts of one answer about the list.

    Attributes:
        arguments: The arguments of the request.
        url: The URL of the request.
        links: The URLs of the header `Link`, by `rel`.
        total: The value of the header `X-Total-Count`.
        pages: The pages that were read, this one the last.
    """

    arguments: Mapping[str, Any]
    url: str
    links: Mapping[str, str]
    total: str
    pages: PagedList

    @property
    def body(self) -> Any:
        return self.pages.body


@dataclass(frozen=True, slots=True)
class Paging:
    """How an operation gives a list in pages.

    Attributes:
        names: The arguments in the query, by their names there.
        schemas: The schemas of these arguments.
        has_link: Whether the answer declares the header `Link`.
        address: The place of the next page's URL in the body.
        cursor: The argument for a cursor, and the place of the next cursor in the body.
        page: The argument that is a page number.
        first: The number of the first page.
        current: The place of this page's number in the body.
        more: The place of the flag for further pages in the body.
        pages, total: The places of the number of pages, and of items, in the body. Either may be missing.
        has_total: Whether the answer declares the header `X-Total-Count`.
    """

    names: Mapping[str, str]
    schemas: Mapping[str, Any]
    has_link: bool
    address: Pointer | None
    cursor: tuple[str, Pointer] | None
    page: str | None
    first: int | None
    current: Pointer | None
    more: Pointer | None
    pages: Pointer | None
    total: Pointer | None
    has_total: bool

    def find_next(self, answer: ListAnswer, server: Server) -> NextPage | None:
        """Return the way to the next page; `None` if this is the last one, or the answer does not say."""
        body = answer.body
        if self.more is not None and _get_value(body, self.more) is False:
            return None
        if self.has_link and answer.links:
            return self._follow_address(answer.links.get("next"), answer, server)
        if self.address is not None:
            return self._follow_address(_get_value(body, self.address), answer, server)
        if self.cursor is not None:
            name, place = self.cursor
            value = _to_argument(_get_value(body, place), self.schemas[name])
            return None if value in (None, "") else NextPage({name: value})
        return self._find_next_number(answer)

    def _find_next_number(self, answer: ListAnswer) -> NextPage | None:
        if self.page is None:
            return None
        page = answer.arguments.get(self.page)
        current = _to_integer(page)
        if page is None:
            current = _to_integer(_get_value(answer.body, self.current)) if self.current else None
            current = self.first if current is None else current
        if current is None:
            return None
        first = 1 if self.first is None else self.first
        pages = _to_integer(_get_value(answer.body, self.pages)) if self.pages else None
        total = _to_integer(_get_value(answer.body, self.total)) if self.total else _to_integer(answer.total)
        if self.more is not None:
            goes_on = _get_value(answer.body, self.more) is True
        elif pages is not None:
            goes_on = current - first + 1 < pages
        else:  # nobody knows how many items there are before the first page that was read
            pages_read, new, items_read = answer.pages.counts
            goes_on = total is not None and current - pages_read + 1 == first and new > 0 and items_read < total
        return NextPage({self.page: current + 1}) if goes_on else None

    def _follow_address(self, url: Any, answer: ListAnswer, server: Server) -> NextPage | None:
        if not isinstance(url, str) or not url:
            return None
        try:
            where = urljoin(answer.url, url)
        except ValueError:
            return NextPage()
        return NextPage(self._find_arguments(where, answer), where) if covers_url(server, where) else NextPage()

    def _find_arguments(self, url: str, answer: ListAnswer) -> dict[str, Any] | None:
        """Return the arguments that lead to a URL, beside those of the request; `None` if no arguments do."""
        here, there = urlsplit(answer.url), urlsplit(url)
        if unquote(there.path) != unquote(here.path):
            return None
        sent = parse_qsl(here.query, keep_blank_values=True)
        found: dict[str, Any] = {}
        for wire, text in parse_qsl(there.query, keep_blank_values=True):
            if (wire, text) in sent:
                continue
            name = self.names.get(wire)
            value = None if name is None else _to_argument(text, self.schemas[name])
            if name is None or name in found or value is None:
                return None
            found[name] = value
        return found or None


def find_paging(operation: Operation, document: Document, signature: Signature) -> Paging | None:
    """Return how an operation gives a list in pages; `None` if its document does not say. For any other method than
    `GET` only the headers count: the body after a change is no list."""
    reads = operation.method == "GET"
    try:
        response = declared_response(operation, document, 200)
        schema = declared_schema(response, "application/json", document) if reads else None
        fields = dict(islice(_declared_fields(schema, document), _MOST_FIELDS)) if schema is not None else {}
    except WholeDocumentError:
        raise
    except DefinitionError:  # a reference that leads nowhere
        return None
    headers = {name.lower() for name in declared_headers(response)}
    in_query = [argument for argument in signature.arguments if argument.place == "query"]
    names_by_wire = {argument.wire: argument.name for argument in in_query if argument.encoding.media is None}
    schemas = {
        names_by_wire[one.wire]: document.follow(one.schema).value
        for one in declared_parameters(operation, document, [])
        if one.place == "query" and one.wire in names_by_wire
    }
    page = _single(
        name
        for wire, name in names_by_wire.items()
        if _fold(wire) in _PAGE_NAMES and _takes_type(schemas[name], "integer")
    )
    first = schemas[page] if page and isinstance(schemas[page], Mapping) else {}
    found = Paging(
        names=names_by_wire,
        schemas=schemas,
        has_link="link" in headers,
        address=_single(place for place, one in fields.items() if _is_address(place, one)),
        cursor=_single(_find_cursors(fields, names_by_wire)),
        page=page,
        first=_to_integer(first.get("default", first.get("minimum"))),
        current=_find_field(fields, _PAGE_NAMES | {"currentpage"}, "integer"),
        more=_find_field(fields, _MORE_NAMES, "boolean"),
        pages=_find_field(fields, _PAGE_COUNTS, "integer"),
        total=_find_field(fields, _ITEM_COUNTS, "integer"),
        has_total=_TOTAL_HEADER in headers,
    )
    ends = found.more or found.pages or found.total or found.has_total
    return found if found.has_link or found.address or found.cursor or (page and ends) else None


def _declared_fields(
    node: Node, document: Document, above: Pointer = (), forms: int = 0
) -> Iterator[tuple[Pointer, Node]]:
    """Yield the fields that a body declares, and those of the objects in it."""
    value, base = document.follow(node)
    if not isinstance(value, Mapping) or len(above) == _DEEPEST_FIELD or forms == _DEEPEST_FIELD:
        return
    properties = value.get("properties")
    for name, one in properties.items() if isinstance(properties, Mapping) else ():
        document.spend(10)
        place = (*above, str(name))
        yield place, document.follow(Node(one, base))
        yield from _declared_fields(Node(one, base), document, place)
    for keyword in ("allOf", "anyOf", "oneOf"):
        for one in listed[:_MOST_ALTERNATIVES] if isinstance(listed := value.get(keyword), list) else ():
            yield from _declared_fields(Node(one, base), document, above, forms + 1)


def _find_cursors(fields: Mapping[Pointer, Node], names_by_wire: Mapping[str, str]) -> Iterator[tuple[str, Pointer]]:
    """Yield the cursors of a body with their parameters: `next_cursor` for `cursor`, or one name that begins with
    "next" for both."""
    by_name = {_fold(wire): name for wire, name in names_by_wire.items()}
    for place, field in fields.items():
        name = _fold(place[-1])
        parameter = name if name in by_name else name.removeprefix("next")
        if (
            name.startswith("next")
            and parameter in by_name
            and (_has_type(field.value, "string") or _has_type(field.value, "integer"))
        ):
            yield by_name[parameter], place


def _is_address(place: Pointer, field: Node) -> bool:
    is_url = isinstance(field.value, Mapping) and field.value.get("format") in ("uri", "uri-reference", "url")
    name = _fold(place[-1])
    is_named = any(_NEXT_ADDRESS.fullmatch(one) for one in (name, _fold("".join(place[-2:]))))  # or `next: {href: …}`
    return _has_type(field.value, "string") and (is_named or (name == "next" and is_url))


def _find_field(fields: Mapping[Pointer, Node], names: frozenset[str], kind: str) -> Pointer | None:
    found: Pointer | None = _single(
        place for place, one in fields.items() if _fold(place[-1]) in names and _has_type(one.value, kind)
    )
    return found


def _single(found: Iterator[Any]) -> Any:
    """Return the only element; None without one, or with several, because then none of them is certain."""
    listed = list(found)
    return listed[0] if len(listed) == 1 else None


def _takes_type(schema: Any, kind: str) -> bool:
    """Return whether a parameter takes values of a type; one without any type in its schema does."""
    is_open = isinstance(schema, Mapping) and not schema.keys() & {"type", "anyOf", "oneOf", "allOf", "enum"}
    return is_open or _has_type(schema, kind)


def _has_type(schema: Any, kind: str) -> bool:
    """Return whether a schema is of a type, or of this type and null."""
    if not isinstance(schema, Mapping):
        return False
    types = schema.get("type")
    if types is None and isinstance(forms := schema.get("anyOf", schema.get("oneOf")), list):
        return any(_has_type(one, kind) for one in forms)
    return types == kind or (isinstance(types, list) and kind in types)


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _get_value(body: Any, place: Pointer) -> Any:
    for name in place:
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


def _to_integer(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 16:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _to_argument(value: Any, schema: Any) -> str | int | None:
    """Return a text or a whole number, as in the schema; `None` if the value does not fit."""
    if isinstance(value, str) and _takes_type(schema, "string"):
        return value
    number = _to_integer(value)
    if number is None or _takes_type(schema, "integer"):
        return number
    return str(number) if _takes_type(schema, "string") else None


# -- one list of several pages -----------------------------------------------------------------------------------------


class PagedList:
    """A list that comes in pages.

    Args:
        body: The first page.

    Attributes:
        body: The page that was read last.
        place: The place of the items in a page; `None` if it has no list, or several.
        read: The number of pages read.
    """

    def __init__(self, body: Any) -> None:
        self.body, self.place, self.read = body, _find_list(body), 1
        self._items: list[Any] = [] if self.place is None else [*_get_value(body, self.place)]
        self._new = len(self._items)

    def add(self, body: Any) -> None:
        """Add a further page.

        Raises:
            ValueError: It has no list in the place of the first page's list.
        """
        found = None if self.place is None else _get_value(body, self.place)
        if not isinstance(found, list):
            raise ValueError("it has no list where the first page has one")
        self._items += found
        self.body, self.read, self._new = body, self.read + 1, len(found)

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of pages read, of items in the last one, and of items in all."""
        return self.read, self._new, len(self._items)

    @property
    def output(self) -> Any:
        """The last page, with the items of all."""
        return self.body if self.place is None else _replace_items(self.body, self.place, self._items)


def _find_list(body: Any) -> Pointer | None:
    """Return the place of the items in a body: it is a list, or an object with one list, or an object in it has one."""
    if isinstance(body, list):
        return ()
    if not isinstance(body, Mapping):
        return None
    lists: list[Pointer] = [(name,) for name, one in body.items() if isinstance(one, list)]
    if not lists:
        inner = [(name, one) for name, one in body.items() if isinstance(one, Mapping)]
        lists = [(name, key) for name, one in inner for key, item in one.items() if isinstance(item, list)]
    return lists[0] if len(lists) == 1 else None


def _replace_items(body: Any, place: Pointer, items: list[Any]) -> Any:
    if not place:
        return items
    return {**body, place[0]: _replace_items(body[place[0]], place[1:], items)}
