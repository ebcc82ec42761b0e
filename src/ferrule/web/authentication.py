"""The sign-in of an application, as the page asks it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

Authenticate: TypeAlias = Callable[[Any], "str | None | Awaitable[str | None]"]  # noqa: RUF036
"""Returns the name of the person who made a Starlette `Request`, or None for nobody. An exception counts as nobody. See
docs/inspect.md#in-your-application."""
