"""What a function's signature and type hints say."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable
from typing import Annotated, get_args, get_origin

from ferrule.errors import DefinitionError
from ferrule.values.context import ToolContext


def refuse_generators(name: str, function: object) -> None:
    if inspect.isgeneratorfunction(function):
        raise DefinitionError(f"tool {name!r} yields: make it an async generator (async def), or return a list")


def signature_of(name: str, function: Callable[..., object]) -> inspect.Signature:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise DefinitionError(
            f"tool {name!r}: {function!r} has no signature ({error}); wrap it in a function"
        ) from None
    fixed: set[str] = set()
    inner = function
    while isinstance(inner, functools.partial):
        fixed |= inner.keywords.keys()
        inner = inner.func
    kept = [parameter for parameter in signature.parameters.values() if parameter.name not in fixed]
    return signature.replace(parameters=kept)


def type_hints(name: str, function: Callable[..., object]) -> dict[str, object]:
    while isinstance(function, functools.partial):
        function = function.func
    target = inspect.unwrap(getattr(function, "__func__", function))
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:  # an annotation is any expression: whatever it raises is looked at one by one
        return _hints_one_by_one(name, target)


def _hints_one_by_one(name: str, function: object) -> dict[str, object]:
    """Each annotation by itself, with the local names of whoever defines the tool; the return type may fail."""
    found: dict[str, object] = {}
    names = {**getattr(function, "__globals__", {}), **caller_locals()}
    for parameter, annotation in getattr(function, "__annotations__", {}).items():
        holder = type("_Holder", (), {"__annotations__": {parameter: annotation}})
        try:
            found[parameter] = typing.get_type_hints(holder, names, names, include_extras=True)[parameter]
        except Exception as error:
            if parameter == "return":
                continue
            raise DefinitionError(
                f"tool {name!r}: the annotation {annotation!r} of {parameter!r} cannot be resolved ({error}); "
                "import what it names at run time, not under TYPE_CHECKING"
            ) from None
    return found


def caller_locals() -> dict[str, object]:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("ferrule."):
        frame = frame.f_back
    return dict(frame.f_locals)


def is_context(hint: object) -> bool:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    origin = get_origin(hint) or hint
    if isinstance(origin, type) and issubclass(origin, ToolContext):
        return True
    return any(is_context(item) for item in get_args(hint) if item is not hint) if _is_union(hint) else False


def _is_union(hint: object) -> bool:
    return get_origin(hint) in {typing.Union, type(int | str)}


def positional_count(name: str, what: str, function: Callable[..., object], least: int, most: int) -> int:
    """How many positional arguments, `least` to `most`, the function takes at the most.

    Raises:
        DefinitionError: where it takes fewer, or needs more.
    """
    signature = signature_of(name, function)
    for count in range(most, least - 1, -1):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count
    raise DefinitionError(f"tool {name!r}: {what} must take {least} to {most} arguments, not {signature}")
