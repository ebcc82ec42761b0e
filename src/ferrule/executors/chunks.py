"""A handler that yields: each piece is told as it comes, and all of them together are what it returned."""

from __future__ import annotations

import collections.abc
import inspect
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from typing import Annotated, Any, get_args, get_origin

from ferrule.values.context import CallState

_ITERATORS = (collections.abc.AsyncIterator, collections.abc.AsyncIterable, collections.abc.AsyncGenerator)


async def collected(pieces: AsyncIterator[Any], state: CallState, *, text: bool) -> Any:
    """All that `pieces` yields, joined; each is kept in `state.pieces` and told as a `tool:progress`.

    Where this is cut off, the generator is closed and what it had given stays in `state.pieces`.

    Args:
        text: Whether nothing at all is an empty text, and not an empty list.
    """
    kept: list[Any] = []
    state.pieces = kept
    async with aclosing(_closable(pieces)):
        async for piece in pieces:
            kept.append(piece)
            state.plan.announce(state, {"piece": piece})
    return joined(kept, text=text)


def _closable(pieces: Any) -> Any:
    return pieces if hasattr(pieces, "aclose") else _Open()


class _Open:
    async def aclose(self) -> None: ...


def joined(pieces: Iterable[Any], *, text: bool = False) -> Any:
    """One text where all pieces are texts, else their list."""
    kept = list(pieces)
    return "".join(kept) if all(isinstance(piece, str) for piece in kept) and (kept or text) else kept


def yields(function: Any) -> bool:
    """Whether calling `function` gives an async generator."""
    while hasattr(function, "func") and hasattr(function, "keywords"):
        function = function.func
    if not (inspect.isroutine(function) or inspect.isclass(function)):
        function = getattr(type(function), "__call__", function)  # noqa: B004
    return inspect.isasyncgenfunction(function)


def whole(returns: Any, unknown: Any) -> Any:
    """What an async generator's pieces make together, by its return annotation: `str`, or a list of what it yields.

    An annotation that is none of an async iterator is that of the whole already.
    """
    plain = get_args(returns)[0] if get_origin(returns) is Annotated else returns
    if (get_origin(plain) or plain) not in _ITERATORS:
        return returns
    if not get_args(plain):
        return unknown
    piece = get_args(plain)[0]
    return str if piece is str else list[piece]  # type: ignore[valid-type]
