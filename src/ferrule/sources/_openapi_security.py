"""The credentials of an OpenAPI document: which an operation needs, and how they are put on a request."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from ferrule import DefinitionError, ToolError
from ferrule.sources._openapi_document import Document, Node
from ferrule.sources._openapi_operations import Operation, is_token, may_be_header
from ferrule.sources._openapi_requests import Request

log = logging.getLogger("ferrule")
_SchemeKind: TypeAlias = Literal["header", "query", "cookie", "basic", "bearer", "client"]
_PLACES: Final = ("header", "query", "cookie")
_PRINTABLE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


class Scheme(NamedTuple):
    """A way to show who calls.

    Attributes:
        name: As the document and `context.secrets` have it.
        kind: Where a key goes, how a password or a token does; `"client"` for certificates, which the client has.
        wire: The name of the header, parameter or cookie.
    """

    name: str
    kind: _SchemeKind
    wire: str = ""


Alternatives: TypeAlias = tuple[tuple[Scheme, ...], ...]
"""The schemes that go together, of which the first is used that there are secrets for; an empty one is nobody's."""


def schemes_of(document: Document) -> dict[str, Scheme]:
    """The schemes that are known here, by name."""
    components = document.root.value.get("components")
    listed = components.get("securitySchemes") if isinstance(components, Mapping) else None
    found: dict[str, Scheme] = {}
    for name, value in listed.items() if isinstance(listed, Mapping) else ():
        node = document.follow(Node(value, document.root.base))
        if isinstance(node.value, Mapping) and (scheme := _scheme(str(name), node.value)) is not None:
            found[str(name)] = scheme
    return found


def _scheme(name: str, value: Mapping[str, Any]) -> Scheme | None:
    kind = value.get("type")
    if kind == "apiKey":
        place, wire = value.get("in"), str(value.get("name", ""))
        right = may_be_header(wire) if place == "header" else is_token(wire) if place == "cookie" else bool(wire)
        return Scheme(name, place, wire) if place in _PLACES and right else None
    if kind == "http" and str(value.get("scheme", "")).lower() in ("basic", "bearer"):
        return Scheme(name, value["scheme"].lower())
    if kind in ("oauth2", "openIdConnect"):
        return Scheme(name, "bearer")
    return Scheme(name, "client") if kind == "mutualTLS" else None


def alternatives_of(operation: Operation, document: Document, schemes: Mapping[str, Scheme]) -> Alternatives:
    """What an operation needs; empty where it needs nothing.

    Raises:
        DefinitionError: where it needs what is not known here.
    """
    listed = operation.node.value.get("security", document.root.value.get("security"))
    if not isinstance(listed, list) or not listed:
        return ()
    found = []
    for one in listed:
        if isinstance(one, Mapping) and all(name in schemes for name in one):
            found.append(tuple(schemes[name] for name in one))
    if not found:
        names = sorted({str(name) for one in listed if isinstance(one, Mapping) for name in one})
        raise DefinitionError(
            f"it needs {names}, and no way to send that is known: apiKey, basic, bearer and oauth2 are"
        )
    return tuple(sorted(found, key=lambda schemes: not schemes))


def need_secrets(alternatives: Alternatives) -> bool:
    """Whether an operation cannot be called without a secret."""
    return bool(alternatives) and all(any(one.kind != "client" for one in some) for some in alternatives)


def places_of(schemes: Iterable[Scheme]) -> frozenset[tuple[str, str]]:
    """Place and name, in small letters, of the keys: none is an argument."""
    return frozenset((one.kind, one.wire.lower()) for one in schemes if one.kind in _PLACES)


def sign(request: Request, tool: str, alternatives: Alternatives, secrets: Mapping[str, Any]) -> list[str]:
    """Put the credentials on a request; in what other texts they stand there.

    Raises:
        ToolError: where there are none; the log says which.
    """
    if not alternatives:
        return []
    for some in alternatives:
        if all(one.kind == "client" or one.name in secrets for one in some):
            try:
                return [_put_on(request, one, secrets[one.name]) for one in some if one.kind != "client"]
            except ValueError as error:
                log.error("tool %r was not called: its credential in secrets %s", tool, error)
                break
    else:
        names = " or ".join(str([one.name for one in some]) for some in alternatives)
        log.error("tool %r was not called: its API needs %s, by Runner(…, secrets={…}) or the context's", tool, names)
    text = f"{tool} needs a credential that this program does not have. Nothing was sent."
    raise ToolError(text, executed=False)


def _put_on(request: Request, scheme: Scheme, secret: Any) -> str:
    if scheme.kind == "basic":
        value = f"Basic {base64.b64encode(_basic(scheme, secret).encode()).decode()}"
        request.headers.append(("Authorization", value))
        return value.partition(" ")[2]
    text = _secret_text(scheme, secret)
    if scheme.kind == "query":
        request.query.append(f"{quote(scheme.wire, safe='')}={quote(text, safe='')}")
    elif scheme.kind == "cookie":
        request.cookies.append(f"{scheme.wire}={quote(text, safe='')}")
    elif scheme.kind == "bearer":
        request.headers.append(("Authorization", f"Bearer {text}"))
    else:
        request.headers.append((scheme.wire, text))
    return text


def _basic(scheme: Scheme, secret: Any) -> str:
    if isinstance(secret, tuple | list) and len(secret) == 2:
        user, password = (_secret_text(scheme, one) for one in secret)
        return f"{user}:{password}"
    text = _secret_text(scheme, secret)
    if ":" not in text:
        raise ValueError(f"{scheme.name!r} is no 'user:password', and no pair of these")
    return text


def _secret_text(scheme: Scheme, secret: Any) -> str:
    text = secret.get_secret_value() if hasattr(secret, "get_secret_value") else secret
    if not isinstance(text, str) or not _PRINTABLE.fullmatch(text):
        raise ValueError(f"{scheme.name!r} is no text in printable ASCII")
    return text
