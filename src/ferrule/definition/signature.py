"""Read the signature and the type hints of a function."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

from typing_extensions import Format, get_annotations

from ferrule.definition.handler import find_called_function, unwrap_partial
from ferrule.errors import DefinitionError
from ferrule.values.context import ToolContext

CONTEXT_NAMES = frozenset({"context", "ctx"})
"""Names of a parameter for the context, if it has no annotation."""


# Since Python 3.14 reading an annotation evaluates it, and raises for a name imported under TYPE_CHECKING.
_UNRESOLVED: dict[str, Any] = {"annotation_format": Format.FORWARDREF} if sys.version_info >= (3, 14) else {}


def read_signature(function: Any, *, follow_wrapped: bool = True) -> inspect.Signature:
    """Return `inspect.signature` of any callable. An annotation that cannot be evaluated is left unresolved.

    Raises:
        TypeError, ValueError: `function` is not callable, or Python does not know its signature.
    """
    return inspect.signature(function, follow_wrapped=follow_wrapped, **_UNRESOLVED)


def read_tool_signature(function: Callable[..., object]) -> inspect.Signature:
    """Return the signature without the parameters that a `functools.partial` has filled by name.

    Raises:
        DefinitionError: The signature or an annotation cannot be read.
    """
    try:
        signature = read_signature(function)
    except ValueError:
        raise DefinitionError("it has no signature that Python can read; wrap it in a function") from None
    except Exception as error:  # Python 3.14 evaluates annotations such as "Node" | None here
        raise DefinitionError(f"its annotations cannot be read: {error}; write them as Python can") from None
    fixed = find_fixed_names(function)
    kept = [parameter for parameter in signature.parameters.values() if parameter.name not in fixed]
    return signature.replace(parameters=kept)


def find_fixed_names(function: Callable[..., object]) -> frozenset[str]:
    """Return the parameters that a `functools.partial` has filled by name, also inside decorators and methods."""
    if isinstance(function, types.MethodType):
        return find_fixed_names(function.__func__)
    if isinstance(function, functools.partial):
        return find_fixed_names(function.func) | function.keywords.keys()
    wrapped = getattr(function, "__wrapped__", None)
    return frozenset() if wrapped is None else find_fixed_names(wrapped)


def read_type_hints(function: Callable[..., object]) -> dict[str, object]:
    """Return the hints as types; without the return hint if it cannot be resolved.

    Raises:
        DefinitionError: The hint of a parameter cannot be resolved.
    """
    target = find_called_function(inspect.unwrap(unwrap_partial(function)))  # type: ignore[arg-type]
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:  # an annotation may name local variables of the code that defines the tool
        names = {**getattr(target, "__globals__", {}), **find_caller_locals()}
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


def find_caller_locals() -> dict[str, object]:
    """Return the local variables of the innermost caller outside Ferrule: the code that defines the tool."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("ferrule."):
        frame = frame.f_back
    return dict(frame.f_locals)


def is_context(hint: object) -> bool:
    """Return whether a hint is a `ToolContext`, by itself or in a union."""
    kind = get_origin(hint) or hint
    if kind in (Annotated, typing.Union, types.UnionType):
        return any(map(is_context, get_args(hint)))
    return isinstance(kind, type) and issubclass(kind, ToolContext)


def has_unfilled_self(function: Any) -> bool:
    """Return whether a function is a method read from its class, so that its `self` has no value."""
    if inspect.isclass(function) or not callable(function):
        return False
    is_plain = inspect.isfunction(function) and not function.__dict__
    if is_plain and _FILLED_BY_PYTHON.isdisjoint(function.__code__.co_varnames):
        return False  # reading the signature would be most of the work of making a toolset
    try:
        first = next(iter(read_tool_signature(function).parameters.values()), None)
    except DefinitionError:
        return False
    return first is not None and first.name in _FILLED_BY_PYTHON and first.annotation is first.empty


_FILLED_BY_PYTHON = frozenset({"self", "cls"})
