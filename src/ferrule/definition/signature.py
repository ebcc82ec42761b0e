"""What a function's signature and type hints say."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Annotated, get_args, get_origin

from ferrule.definition.handler import called, whole
from ferrule.errors import DefinitionError
from ferrule.values.context import ToolContext


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
    target = called(inspect.unwrap(whole(function)))  # type: ignore[arg-type]
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
    """Whether the hint is a `ToolContext`, by itself or in a union."""
    kind = get_origin(hint) or hint
    if kind in (Annotated, typing.Union, types.UnionType):
        return any(map(is_context, get_args(hint)))
    return isinstance(kind, type) and issubclass(kind, ToolContext)


def unfilled_self(function: object) -> bool:
    """Whether the function is a method that was taken off its class: nobody fills its `self`."""
    if not inspect.isfunction(whole(function)):
        return False
    first = next(iter(signature_of("", function).parameters.values()), None)  # type: ignore[arg-type]
    return first is not None and first.name in {"self", "cls"} and first.annotation is first.empty


def takes_two(name: str, what: str, function: Callable[..., object]) -> bool:
    """Whether the function takes two positional arguments, and not one alone.

    Raises:
        DefinitionError: where it takes neither.
    """
    signature = signature_of(name, function)
    for count in (2, 1):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count == 2
    raise DefinitionError(f"tool {name!r}: {what} must take 1 or 2 arguments, not {signature}")
