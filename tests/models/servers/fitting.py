"""Whether JSON data fits the types that an SDK has for a request; what they do not name does not fit."""

from __future__ import annotations

import collections.abc
import enum
import types
import typing
from typing import Any

import typing_extensions
from pydantic import BaseModel
from tests.models.servers.serving import refuse_unless

_LISTS = (list, tuple, collections.abc.Sequence, collections.abc.Iterable)
_MAPPINGS = (dict, collections.abc.Mapping)
_REQUIRED = (typing.Required, typing_extensions.Required)
_NOT_REQUIRED = (typing.NotRequired, typing_extensions.NotRequired)


def must_fit(value: Any, kind: Any, where: str) -> None:
    """Raises `Refused` where `value` does not fit."""
    found = misfit(value, kind, where)
    refuse_unless(found is None, found or "")


def misfit(value: Any, kind: Any, path: str) -> str | None:
    """Where `value` does not fit `kind`, and why; `None` where it does."""
    kind = _opened(kind)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return None
    if origin in {typing.Union, types.UnionType}:
        return _of_several(value, inner, path)
    if origin is typing.Literal:
        return None if value in inner else f"{path}: {value!r} is none of {inner}"
    if origin in _LISTS or kind in _LISTS:
        return _of_list(value, inner[0] if inner else Any, path)
    if origin in _MAPPINGS or kind in _MAPPINGS:
        return _of_mapping(value, inner[1] if inner else Any, path)
    if typing_extensions.is_typeddict(kind):
        return _of_fields(value, _of_typed_dict(kind), path)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _of_fields(value, _of_model(kind), path)
    return _of_scalar(value, kind, path)


def _opened(kind: Any) -> Any:
    """The type without what only says something about it."""
    while True:
        origin = typing.get_origin(kind)
        if hasattr(origin, "__value__"):
            kind = origin.__value__[typing.get_args(kind)]
        elif hasattr(kind, "__value__"):
            kind = kind.__value__
        elif hasattr(kind, "__metadata__"):
            kind = kind.__origin__
        elif hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        elif origin in (*_REQUIRED, *_NOT_REQUIRED):
            kind = typing.get_args(kind)[0]
        else:
            return kind


def _of_several(value: Any, kinds: tuple[Any, ...], path: str) -> str | None:
    found = [misfit(value, kind, path) for kind in kinds]
    if None in found:
        return None
    # The one that fits furthest says most.
    return max((one for one in found if one), key=lambda one: len(one.partition(":")[0]))


def _of_list(value: Any, kind: Any, path: str) -> str | None:
    if not isinstance(value, list):
        return f"{path}: {type(value).__name__} is no list"
    found = (misfit(item, kind, f"{path}[{place}]") for place, item in enumerate(value))
    return next((one for one in found if one), None)


def _of_mapping(value: Any, kind: Any, path: str) -> str | None:
    if not isinstance(value, dict):
        return f"{path}: {type(value).__name__} is no object"
    found = (misfit(item, kind, f"{path}.{key}") for key, item in value.items())
    return next((one for one in found if one), None)


def _of_typed_dict(kind: Any) -> dict[str, tuple[Any, bool]]:
    hints = typing_extensions.get_type_hints(kind, include_extras=True)
    # `__required_keys__` cannot see what stands in annotations that are still text.
    return {
        name: (hint, typing.get_origin(hint) in _REQUIRED or _is_required(kind, name, hint))
        for name, hint in hints.items()
    }


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    return name in kind.__required_keys__ and typing.get_origin(hint) not in _NOT_REQUIRED


def _of_model(kind: type[BaseModel]) -> dict[str, tuple[Any, bool]]:
    fields = {name: (field.annotation, field.is_required()) for name, field in kind.model_fields.items()}
    # Where there is another name, JSON for protocol buffers takes both, and google-genai sends both.
    others = {field.alias: (field.annotation, False) for field in kind.model_fields.values() if field.alias}
    return fields | others


def _of_fields(value: Any, fields: dict[str, tuple[Any, bool]], path: str) -> str | None:
    if not isinstance(value, dict):
        return f"{path}: {type(value).__name__} is no object"
    for name in value:
        if name not in fields:
            return f"{path}.{name}: there is no such field"
    for name, (_, required) in fields.items():
        if required and name not in value:
            return f"{path}.{name}: it is missing"
    found = (misfit(item, fields[name][0], f"{path}.{name}") for name, item in value.items())
    return next((one for one in found if one), None)


def _of_scalar(value: Any, kind: Any, path: str) -> str | None:
    if kind in {None, type(None)}:
        fits = value is None
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        fits = value in [member.value for member in kind]
    elif kind is bytes:
        fits = isinstance(value, str)  # as base64
    elif kind is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        fits = isinstance(kind, type) and isinstance(value, kind) and (kind is not int or not isinstance(value, bool))
    return None if fits else f"{path}: {value!r} does not fit {kind}"
