"""`Handler`: how one tool is called; and functions to look inside callables."""

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
from ferrule.values.count import format_count

Call: TypeAlias = Callable[[Any, ToolContext], Any]
"""A function of validated values and context that returns the value, or an awaitable."""

UNANNOTATED = object()
"""The return type of a function without a return annotation."""
_ITERATORS = (collections.abc.AsyncIterator, collections.abc.AsyncIterable, collections.abc.AsyncGenerator)


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class Handler:
    """The way to call one tool.

    Attributes:
        function: The developer's function or class.
        parameters: The parameters.
        call: A function of values and context that returns the value, or an awaitable.
        kwargs_call: The function, if the validated values are just its keyword arguments; else None.
        description: From the docstring.
        returns: The return annotation, or `UNANNOTATED`; for an async generator the type of its joined chunks.
        target: The function that runs in the end; found from `function` if not given.
        is_async: Whether a call returns a coroutine. Any other handler runs in a thread.
        streams: Whether a call returns an async generator. Its joined chunks are the value.
        makes_instance: Whether the values are an instance of the developer's class; `check(handler)` may change it.
        positional: The wire names of the positional parameters, in order.
        aliases: The wire names that differ from the Python name, by Python name.
    """

    function: Callable[..., object]
    parameters: Parameters
    call: Call
    kwargs_call: Callable[..., Any] | None = None
    description: str = ""
    returns: object = UNANNOTATED
    target: object = None
    is_async: bool = field(init=False)
    streams: bool = field(init=False)
    makes_instance: bool = False
    positional: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.target = find_called_function(self.target or self.function)
        self.is_async = inspect.iscoroutinefunction(self.target)
        self.streams = inspect.isasyncgenfunction(self.target)
        if self.streams:
            self.returns = get_joined_type(self.returns)

    def collect_arguments(self, name: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Return the arguments of a Python call `name(…)` under their wire names.

        Raises:
            TypeError: There are too many positional arguments, or one is given twice.
        """
        given = {self.aliases.get(key, key): value for key, value in kwargs.items()}
        if not args:
            return given
        free = [key for key in self.positional if key not in self.parameters.bound]
        if len(args) > len(free):
            most = f"at most {format_count(len(free), 'argument')}" if free else "no arguments"
            raise TypeError(f"tool {name!r} takes {most} by position, not {len(args)}; give them by name")
        by_position = dict(zip(free, args, strict=False))
        if twice := by_position.keys() & given.keys():
            raise TypeError(f"tool {name!r} was given {min(twice)!r} by position and by name")
        return by_position | given


def is_async(function: object) -> bool:
    """Return whether a call of `function` returns a coroutine."""
    return inspect.iscoroutinefunction(find_called_function(function))


def find_called_function(function: object) -> object:
    """Return the function that a call runs: the function in a partial, or the `__call__` of an object."""
    function = unwrap_partial(function)
    call = getattr(type(function), "__call__", None)  # noqa: B004
    is_python = call is not None and not isinstance(call, types.WrapperDescriptorType)
    return call if is_python and not inspect.isclass(function) else function


def unwrap_partial(function: object) -> object:
    """Return the function inside partials, and inside bound methods that hold no plain function.

    Since Python 3.14 a partial in the body of a class is such a method.
    """
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType) and not inspect.isfunction(function.__func__):
            function = function.__func__
        else:
            return function


def get_docstring(function: object) -> str | None:
    """Return the docstring of a function or a callable object."""
    docs = (inspect.getdoc(one) for one in (unwrap_partial(function), find_called_function(function)))
    return next((doc for doc in docs if doc and not _is_generated(doc, function)), None)


def _is_generated(doc: str, function: object) -> bool:
    """Return whether Python made the docstring: the signature of a dataclass, or the sentence on callable objects."""
    made = tuple(f"{kind.__name__}(" for kind in type(function).__mro__)
    return doc.startswith(made) or doc == type.__call__.__doc__


def get_joined_type(returns: object) -> object:
    """Return the type of the joined chunks of an async generator: `str`, or a list.

    An annotation other than an async iterator is the type of the whole already.
    """
    if (get_origin(returns) or returns) not in _ITERATORS:
        return returns
    chunk = next(iter(get_args(returns)), UNANNOTATED)
    return chunk if chunk is str or chunk is UNANNOTATED else list[chunk]  # type: ignore[valid-type]
