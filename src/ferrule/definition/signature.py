"""What a function's signature and type hints say."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

from typing_extensions import Format, get_annotations

from ferrule.definition.handler import called, whole
from ferrule.errors import DefinitionError
from ferrule.values.context import ToolContext

CONTEXT_NAMES = frozenset({"context", "ctx"})
"""What a parameter for the context is called, where no annotation says that it is one."""


# Since Python 3.14 reading an annotation evaluates it, and one that names something from under TYPE_CHECKING raises.
_UNRESOLVED: dict[str, Any] = {"annotation_format": Format.FORWARDREF} if sys.version_info >= (3, 14) else {}


def read_signature(function: Any, *, follow_wrapped: bool = True) -> inspect.Signature:
    """Return `inspect.signature` of any callable. An annotation that cannot be evaluated is left unresolved.

    Raises:
        TypeError, ValueError: if it is not callable, or Python does not know its signature.
    """
    return inspect.signature(function, follow_wrapped=follow_wrapped, **_UNRESOLVED)


def signature_of(function: Callable[..., object]) -> inspect.Signature:
    try:
        signature = read_signature(function)
    except ValueError:
        raise DefinitionError("it has no signature that Python can read; wrap it in a function") from None
    except Exception as error:  # of an annotation such as "Node" | None, which Python 3.14 evaluates here
        raise DefinitionError(f"its annotations cannot be read: {error}; write them as Python can") from None
    fixed = fixed_names(function)
    kept = [parameter for parameter in signature.parameters.values() if parameter.name not in fixed]
    return signature.replace(parameters=kept)


def fixed_names(function: Callable[..., object]) -> frozenset[str]:
    """Return the parameters that a `functools.partial` has filled by name, whatever decorates or binds it."""
    if isinstance(function, types.MethodType):
        return fixed_names(function.__func__)
    if isinstance(function, functools.partial):
        return fixed_names(function.func) | function.keywords.keys()
    wrapped = getattr(function, "__wrapped__", None)
    return frozenset() if wrapped is None else fixed_names(wrapped)


def all_names(function: Callable[..., object]) -> frozenset[str]:
    """Every parameter that might be given by name; those that no signature shows are filled already, as `self` is."""
    target = called(inspect.unwrap(whole(function)))  # type: ignore[arg-type]
    try:
        parameters = read_signature(getattr(target, "__func__", target)).parameters
    except (TypeError, ValueError):  # some that are written in C
        return fixed_names(function)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(name for name, parameter in parameters.items() if parameter.kind in named)


def type_hints(function: Callable[..., object]) -> dict[str, object]:
    """Return the hints as types, without that of the return if only type checkers can resolve it.

    Raises:
        DefinitionError: if the hint of a parameter cannot be resolved.
    """
    target = called(inspect.unwrap(whole(function)))  # type: ignore[arg-type]
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:  # an annotation is any expression, and may name what is local to whoever defines the tool
        names = {**getattr(target, "__globals__", {}), **caller_locals()}
    hints: dict[str, object] = {}
    for name, hint in get_annotations(target, format=Format.FORWARDREF).items():
        holder = type("_Holder", (), {"__annotations__": {name: hint}})
        try:
            hints |= typing.get_type_hints(holder, names, names, include_extras=True)
        except Exception as error:
            if name != "return":
                raise DefinitionError(
                    f"the annotation of {name!r} cannot be resolved: {error}; import what it names at run time, not "
                    "under TYPE_CHECKING"
                ) from None
    return hints


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


def unfilled_self(function: Any) -> bool:
    """Whether the function is a method that was taken off its class: nobody fills its `self`."""
    if inspect.isclass(function) or not callable(function):
        return False
    if inspect.isfunction(function) and not function.__dict__:
        if _FILLED_BY_PYTHON.isdisjoint(function.__code__.co_varnames):
            return False  # without a signature, which would be most of the work of making a toolset
    try:
        first = next(iter(signature_of(function).parameters.values()), None)
    except DefinitionError:
        return False
    return first is not None and first.name in _FILLED_BY_PYTHON and first.annotation is first.empty


_FILLED_BY_PYTHON = frozenset({"self", "cls"})
