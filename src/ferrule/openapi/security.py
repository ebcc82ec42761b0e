"""The credentials of an OpenAPI document: choose those of an operation, and put them on a request."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from ferrule import DefinitionError, ToolError
from ferrule.openapi.arguments import can_be_header, fold_name
from ferrule.openapi.document import Document, Node
from ferrule.openapi.operations import Operation, is_token
from ferrule.openapi.requests import Request
from ferrule.security.credentials import HOW_TO_PASS, encode_login, read_token

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


def read_schemes(document: Document, credentials: Mapping[str, str]) -> dict[str, Scheme]:
    """Return the supported schemes, by name.

    Args:
        credentials: The names in `context.secrets`, by the names of schemes.

    Raises:
        DefinitionError: The document has no such scheme.
    """
    components = document.root.value.get("components")
    declared = components.get("securitySchemes") if isinstance(components, Mapping) else None
    found: dict[str, Scheme] = {}
    for name, value in declared.items() if isinstance(declared, Mapping) else ():
        try:
            node = document.follow(Node(value, document.root.base))
        except DefinitionError:
            continue
        if isinstance(node.value, Mapping) and (scheme := _scheme(str(name), node.value)) is not None:
            found[str(name)] = scheme._replace(secret=credentials.get(str(name), ""))
    if unknown := sorted(credentials.keys() - found.keys()):
        raise DefinitionError(
            f"{document.spelling.credential.format(unknown[0])}: {document.name} has no supported scheme of "
            f"this name; it has {sorted(found)}"
        )
    return found


def _scheme(name: str, value: Mapping[str, Any]) -> Scheme | None:
    kind, wire, http_scheme = value.get("type"), value.get("name"), value.get("scheme")
    if kind == "apiKey" and isinstance(wire, str):
        place = value.get("in")
        is_valid = can_be_header(wire) if place == "header" else is_token(wire) if place == "cookie" else bool(wire)
        return Scheme(name, place, wire) if place in _PLACES and is_valid else None
    if kind == "http" and isinstance(http_scheme, str) and http_scheme.lower() in ("basic", "bearer"):
        return Scheme(name, "basic" if http_scheme.lower() == "basic" else "bearer")
    if kind in ("oauth2", "openIdConnect"):
        return Scheme(name, "bearer")
    return Scheme(name, "client") if kind == "mutualTLS" else None


def find_alternatives(operation: Operation, document: Document, schemes: Mapping[str, Scheme]) -> Alternatives:
    """Return the credentials of an operation; empty if it needs none.

    Raises:
        DefinitionError: It needs a scheme that is not supported.
    """
    declared = operation.node.value.get("security", document.root.value.get("security"))
    if not isinstance(declared, list) or not declared:
        return ()
    document.spend(10 * len(declared))
    found = []
    for group in declared:
        if isinstance(group, Mapping) and all(name in schemes for name in group):
            found.append(tuple(schemes[name] for name in group))
    if not found:
        names = sorted({str(name) for group in declared if isinstance(group, Mapping) for name in group})
        raise DefinitionError(f"it needs {names}, which is not supported: apiKey, basic, bearer and oauth2 are")
    return tuple(sorted(found, key=lambda schemes: not schemes))


def requires_secrets(alternatives: Alternatives) -> bool:
    """Return whether an operation cannot be called without a secret."""
    return bool(alternatives) and all(any(scheme.kind != "client" for scheme in group) for group in alternatives)


def find_unnamed_scheme(alternatives: Alternatives) -> str | None:
    """Return the scheme that `credentials` has to name, if an operation cannot be called without it."""
    for group in alternatives:
        missing = [scheme.name for scheme in group if scheme.kind != "client" and not scheme.secret]
        if not missing:
            return None
    return missing[0] if alternatives else None


def list_credential_places(schemes: Iterable[Scheme]) -> frozenset[tuple[str, str]]:
    """Return place and name of the keys: none is an argument."""
    return frozenset((scheme.kind, fold_name(scheme.kind, scheme.wire)) for scheme in schemes if scheme.kind in _PLACES)


def add_credentials(request: Request, tool: str, alternatives: Alternatives, secrets: Mapping[str, Any]) -> list[str]:
    """Put the credentials on a request. Return them as they may come back.

    Raises:
        ToolError: A credential is missing or invalid; the log names it.
    """
    if not alternatives:
        return []
    for group in alternatives:
        if all(scheme.kind == "client" or (scheme.secret and scheme.secret in secrets) for scheme in group):
            try:
                return [
                    secret
                    for scheme in group
                    if scheme.kind != "client"
                    for secret in _add_credential(request, scheme, secrets[scheme.secret])
                ]
            except ValueError as error:
                log.error("tool %r was not called: the secret %s", tool, error)
                break
    else:
        # The value of `credentials` is in no log: it may be the secret itself, by mistake.
        names = " or ".join(str([scheme.name for scheme in group]) for group in alternatives)
        log.error("tool %r was not called: its API needs a secret for %.200s: %s", tool, names, HOW_TO_PASS)
    text = f"{tool} needs a credential that this program does not have."
    raise ToolError(text, executed=False, retryable=False)


def _add_credential(request: Request, scheme: Scheme, secret: Any) -> list[str]:
    if scheme.kind == "basic":
        encoded, password = encode_login(scheme.secret, secret)
        request.headers.append(("Authorization", f"Basic {encoded}"))
        return [encoded, password]
    text = read_token(scheme.secret, secret)
    if scheme.kind == "query":
        request.query.append(f"{quote(scheme.wire, safe='')}={quote(text, safe='')}")
    elif scheme.kind == "cookie":
        request.cookies.append(f"{scheme.wire}={quote(text, safe='')}")
    elif scheme.kind == "bearer":
        request.headers.append(("Authorization", f"Bearer {text}"))
    else:
        request.headers.append((scheme.wire, text))
    return [text]
