"""Addresses that a person is asked to visit, for secrets and payments: elicitation by URL. Nothing here opens one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule.security.urls import find_host_kind, read_url
from ferrule.values.frozen import JsonObject

_URL_KEY = "x-mcp-url"
"""The key of the address in the schema of a question. Its answer is a plain yes."""
_MOST_URL = 4_000


def find_host(url: str) -> str:
    """Return the host that an address leads to.

    Raises:
        ValueError: A person cannot be sent there: it is not `https:`, nor `http:` to this machine, it could be read in
            two ways, or it has over 4,000 characters.
    """
    if len(url) > _MOST_URL:
        raise ValueError(f"an address to visit has at most {_MOST_URL:,} characters")
    found = read_url(url)
    is_here = found.scheme == "http" and find_host_kind(found.host) == "loopback"
    if found.scheme != "https" and not is_here:
        raise ValueError(f"an address to visit begins with https://, not {found.scheme}://")
    return found.host


def make_visit_schema(url: str) -> dict[str, Any]:
    """Return the schema of a plain yes, for a question that sends a person to an address.

    Raises:
        ValueError: A person cannot be sent there.
    """
    find_host(url)
    return {"type": "object", "properties": {}, "additionalProperties": False, _URL_KEY: url}


def find_visit(schema: JsonObject | None) -> str | None:
    """Return the address that a question sends a person to, or None if it is another question."""
    url = schema.get(_URL_KEY) if isinstance(schema, Mapping) else None
    return url if isinstance(url, str) else None


def format_visit(url: str) -> str:
    """Return the address as a person sees it, with its host.

    Raises:
        ValueError: A person cannot be sent there.
    """
    return f"It wants you to go to {find_host(url)}: {url}\nOpen it yourself, and allow it once you have been there."
