"""The credentials of an OpenAPI document: choose those of an operation, and put them on a request."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from ferrule import DefinitionError, ToolError
from ferrule.openapi.arguments import folded_name, may_be_header
from ferrule.openapi.document import Document, Node
from ferrule.openapi.operations import Operation, is_token
from ferrule.openapi.requests import PRINTABLE, Request

log = logging.getLogger("ferrule")
_SchemeKind: TypeAlias = Literal["header", "query", "cookie", "basic", "bearer", "client"]
_PLACES: Final = ("header", "query", "cookie")


class Scheme(NamedTuple):
    """A way to authenticate.

    Attributes:
        name: The name in the document.
        secret: The name in `context.secrets`, from the developer: a document names no secret.
        kind: The place of a key, or the form of a password or a token; `"client"` for certificates, held by the client.
        wire: The name of the header, parameter or cookie.
    """

    name: str
    kind: _SchemeKind
    wire: str = ""
    secret: str = ""


Alternatives: TypeAlias = tuple[tuple[Scheme, ...], ...]
"""Groups of schemes that go together. The first group with secrets for all is used; an empty group is anonymous."""


def schemes_of(document: Document, credentials: Mapping[str, str]) -> dict[str, Scheme]:
    """Return the supported schemes, by name.

    Args:
        credentials: The names in `context.secrets`, by the names of schemes.

    Raises:
        DefinitionError: The document has no such scheme.
    """
    components = document.root.value.get("components")
    listed = components.get("securitySchemes") if isinstance(components, Mapping) else None
    found: dict[str, Scheme] = {}
    for name, value in listed.items() if isinstance(listed, Mapping) else ():
        try:
            node = document.follow(Node(value, document.root.base))
        except DefinitionError:
            continue
        if isinstance(node.value, Mapping) and (scheme := _scheme(str(name), node.value)) is not None:
            found[str(name)] = scheme._replace(secret=credentials.get(str(name), ""))
    if unknown := sorted(credentials.keys() - found.keys()):
        raise DefinitionError(
            f"{document.spelling.credential.format(unknown[0])}: {document.name} has no scheme of this name that is "
            f"known here; it has {sorted(found)}"
        )
    return found


def _scheme(name: str, value: Mapping[str, Any]) -> Scheme | None:
    kind, wire, way = value.get("type"), value.get("name"), value.get("scheme")
    if kind == "apiKey" and isinstance(wire, str):
        place = value.get("in")
        right = may_be_header(wire) if place == "header" else is_token(wire) if place == "cookie" else bool(wire)
        return Scheme(name, place, wire) if place in _PLACES and right else None
    if kind == "http" and isinstance(way, str) and way.lower() in ("basic", "bearer"):
        return Scheme(name, "basic" if way.lower() == "basic" else "bearer")
    if kind in ("oauth2", "openIdConnect"):
        return Scheme(name, "bearer")
    return Scheme(name, "client") if kind == "mutualTLS" else None


def alternatives_of(operation: Operation, document: Document, schemes: Mapping[str, Scheme]) -> Alternatives:
    """Return the credentials of an operation; empty if it needs none.

    Raises:
        DefinitionError: It needs a scheme that is not supported.
    """
    listed = operation.node.value.get("security", document.root.value.get("security"))
    if not isinstance(listed, list) or not listed:
        return ()
    document.spend(10 * len(listed))
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
    """Return whether an operation cannot be called without a secret."""
    return bool(alternatives) and all(any(one.kind != "client" for one in some) for some in alternatives)


def unnamed(alternatives: Alternatives) -> str | None:
    """Return the scheme that `credentials` has to name, if an operation cannot be called without it."""
    for some in alternatives:
        missing = [one.name for one in some if one.kind != "client" and not one.secret]
        if not missing:
            return None
    return missing[0] if alternatives else None


def places_of(schemes: Iterable[Scheme]) -> frozenset[tuple[str, str]]:
    """Return place and name of the keys: none is an argument."""
    return frozenset((one.kind, folded_name(one.kind, one.wire)) for one in schemes if one.kind in _PLACES)


def sign(request: Request, tool: str, alternatives: Alternatives, secrets: Mapping[str, Any]) -> list[str]:
    """Put the credentials on a request. Return them as they may come back.

    Raises:
        ToolError: A credential is missing or invalid; the log names it.
    """
    if not alternatives:
        return []
    for some in alternatives:
        if all(one.kind == "client" or (one.secret and one.secret in secrets) for one in some):
            try:
                return [
                    way for one in some if one.kind != "client" for way in _put_on(request, one, secrets[one.secret])
                ]
            except ValueError as error:
                log.error("tool %r was not called: its credential in secrets %s", tool, error)
                break
    else:
        names = " or ".join(str([one.secret for one in some]) for some in alternatives)
        log.error("tool %r was not called: its API needs %s, by Runner(…, secrets={…}) or the context's", tool, names)
    text = f"{tool} needs a credential that this program does not have. Nothing was sent."
    raise ToolError(text, executed=False, retryable=False)


def _put_on(request: Request, scheme: Scheme, secret: Any) -> list[str]:
    if scheme.kind == "basic":
        user, password = _user_and_password(scheme, secret)
        encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
        request.headers.append(("Authorization", f"Basic {encoded}"))
        return [encoded, password]
    text = _secret_text(scheme, secret)
    if scheme.kind == "query":
        request.query.append(f"{quote(scheme.wire, safe='')}={quote(text, safe='')}")
    elif scheme.kind == "cookie":
        request.cookies.append(f"{scheme.wire}={quote(text, safe='')}")
    elif scheme.kind == "bearer":
        request.headers.append(("Authorization", f"Bearer {text}"))
    else:
        request.headers.append((scheme.wire, text))
    return [text]


def _user_and_password(scheme: Scheme, secret: Any) -> tuple[str, str]:
    if isinstance(secret, tuple | list) and len(secret) == 2:
        return _secret_text(scheme, secret[0]), _secret_text(scheme, secret[1])
    user, colon, password = _secret_text(scheme, secret).partition(":")
    if not colon:
        raise ValueError(f"{scheme.secret!r} is no 'user:password', and no pair of these")
    return user, password


def _secret_text(scheme: Scheme, secret: Any) -> str:
    text = secret.get_secret_value() if hasattr(secret, "get_secret_value") else secret
    if not isinstance(text, str) or not PRINTABLE.fullmatch(text):
        raise ValueError(f"{scheme.secret!r} is no text in printable ASCII")
    return text
