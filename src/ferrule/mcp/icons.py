"""Icons of servers, tools, resources and prompts, as clients show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from ferrule import DefinitionError
from ferrule.values.frozen import thaw

Icons: TypeAlias = str | Mapping[str, object] | Iterable[str | Mapping[str, object]]
"""An icon, or several. Each is its address, or the keys of MCP: `src`, `mimeType`, `sizes` and `theme`."""
_MOST_ICONS, _MOST_ADDRESS = 8, 100_000
_KEYS = {"src", "mimeType", "sizes", "theme"}


def make_icons(icons: Any, owner: str) -> list[dict[str, Any]] | None:
    """Return the icons in the form of MCP, or None without any.

    Raises:
        DefinitionError: An address is no `https:` one and no image in a `data:` one, or a key is unknown.
    """
    listed = [icons] if isinstance(icons, str | Mapping) else [*(icons or ())]
    if len(listed) > _MOST_ICONS:
        raise DefinitionError(f"{owner} has {len(listed)} icons; at most {_MOST_ICONS} are allowed")
    return [_make_icon(one, owner) for one in listed] or None


def keep_icons(icons: Iterable[Mapping[str, object]]) -> list[dict[str, Any]]:
    """Return the icons of a trusted server that clients may be shown."""
    kept: list[dict[str, Any]] = []
    for icon in icons:
        with suppress(DefinitionError):
            kept.append(_make_icon(icon, "a server"))
    return kept[:_MOST_ICONS]


def _make_icon(icon: Any, owner: str) -> dict[str, Any]:
    made: dict[str, Any] = {"src": icon} if isinstance(icon, str) else thaw(icon) if isinstance(icon, Mapping) else {}
    source = made.get("src")
    is_valid = isinstance(source, str) and source.startswith(("https://", "data:image/"))
    if not is_valid or len(str(source)) > _MOST_ADDRESS:
        raise DefinitionError(
            f"an icon of {owner} must be an address such as 'https://example.com/icon.png' or 'data:image/png;base64,…'"
            f" of at most {_MOST_ADDRESS:,} characters, not {str(source)[:80]!r}"
        )
    if unknown := sorted(made.keys() - _KEYS):
        raise DefinitionError(f"an icon of {owner} has the unknown key {unknown[0]!r}; its keys are {sorted(_KEYS)}")
    return made
