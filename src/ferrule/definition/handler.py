"""`Handler`: how one tool is called; and what a function is, as far as its kind tells."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args, get_origin

from ferrule.arguments.parameters import Parameters
from ferrule.values.context import ToolContext

Call: TypeAlias = Callable[[Any, ToolContext], Any]
"""Validated values and the context to the value, or to an awaitable of it."""

UNKNOWN = object()
"""In the place of a return type that nobody wrote."""
_ITERATORS = (collections.abc.AsyncIterator, collections.abc.AsyncIterable, collections.abc.AsyncGenerator)


@dataclass(eq=False, slots=True, kw_only=True)
class Handler:
    """How one tool is called.

    Attributes:
        function: What the developer wrote.
        parameters: What it takes.
        call: `(values, context) -> value`, or an awaitable of it.
        by_keywords: The function itself, where the validated values are just its keyword arguments.
        description: From the docstring.
        returns: The return annotation, of an async generator what its chunks make together; or `UNKNOWN`.
        runs: What is run in the end; `function`, unless something else is given.
        is_async: Whether calling gives a coroutine; all else runs in a thread.
        streams: Whether calling gives an async generator, whose chunks together are the value.
        makes_instance: Whether the values are an object of the developer's class, which `check(handler)` may change.
        positional: The names in JSON of the parameters that may be given by position, in their order.
        aliases: The names in JSON of those parameters that have another name in Python, which is the key.
    """

    function: Callable[..., object]
    parameters: Parameters
    call: Call
    by_keywords: Callable[..., Any] | None = None
    description: str = ""
    returns: object = UNKNOWN
    runs: object = None
    is_async: bool = field(init=False)
    streams: bool = field(init=False)
    makes_instance: bool = False
    positional: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runs = called(self.runs or self.function)
        self.is_async = inspect.iscoroutinefunction(self.runs)
        self.streams = inspect.isasyncgenfunction(self.runs)
        if self.streams:
            self.returns = type_of_chunks(self.returns)

    def arguments(self, name: str, positional: tuple[object, ...], keywords: Mapping[str, object]) -> dict[str, object]:
        """The arguments, under their names in JSON, of a call of the tool `name` that is written in Python.

        Raises:
            TypeError: for more by position than there may be, or one that is given twice.
        """
        given = {self.aliases.get(key, key): value for key, value in keywords.items()}
        if not positional:
            return given
        free = [key for key in self.positional if key not in self.parameters.bound]
        if len(positional) > len(free):
            most = f"at most {len(free)} arguments" if free else "no arguments"
            raise TypeError(f"tool {name!r} takes {most} by position, not {len(positional)}; give them by name")
        by_position = dict(zip(free, positional, strict=False))
        if twice := by_position.keys() & given.keys():
            raise TypeError(f"tool {name!r} was given {min(twice)!r} by position and by name")
        return by_position | given


def is_async(function: object) -> bool:
    """Whether calling `function` gives a coroutine."""
    return inspect.iscoroutinefunction(called(function))


def called(function: object) -> object:
    """Return the function that a call of `function` runs: what a partial holds, or the `__call__` of an object."""
    function = whole(function)
    call = getattr(type(function), "__call__", None)  # noqa: B004
    is_python = call is not None and not isinstance(call, types.WrapperDescriptorType)
    return call if is_python and not inspect.isclass(function) else function


def whole(function: object) -> object:
    """Return the function inside partials. Whatever else is bound is taken off its instance, unless it is a function:
    since Python 3.14 a partial in the body of a class is a method."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType) and not inspect.isfunction(function.__func__):
            function = function.__func__
        else:
            return function


def doc_of(function: object) -> str | None:
    """The docstring of a function, or of an object that is called as one."""
    docs = (inspect.getdoc(one) for one in (whole(function), called(function)))
    return next((doc for doc in docs if doc and not _is_made_by_python(doc, function)), None)


def _is_made_by_python(doc: str, function: object) -> bool:
    """Whether nobody wrote it: of a dataclass or a named tuple it is the signature, with the `repr` of each default,
    and of any callable object that it is called as a function."""
    made = tuple(f"{kind.__name__}(" for kind in type(function).__mro__)
    return doc.startswith(made) or doc == type.__call__.__doc__


def type_of_chunks(returns: object) -> object:
    """What the chunks of an async generator make together, by its return annotation: `str`, or a list.

    An annotation that is none of an async iterator is that of the whole already.
    """
    if (get_origin(returns) or returns) not in _ITERATORS:
        return returns
    chunk = next(iter(get_args(returns)), UNKNOWN)
    return chunk if chunk is str or chunk is UNKNOWN else list[chunk]  # type: ignore[valid-type]
