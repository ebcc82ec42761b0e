"""JSON values that nobody can change: what guards, hashes, exports and records see."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar, cast


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError(
        "this value is read-only: take copy.deepcopy(value), which gives plain dicts and lists, and change that"
    )


class FrozenDict(dict[str, Any]):
    """A read-only dict. `copy.deepcopy` gives a plain one."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return (freeze, (thaw(self),))


class FrozenList(list[Any]):
    """A read-only list. `copy.deepcopy` gives a plain one."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return (freeze, (thaw(self),))


_READY = frozenset({FrozenDict, FrozenList, str, int, float, bool, type(None)})


def freeze(value: Any) -> Any:
    """A read-only copy of JSON-like data, at every depth."""
    kind = type(value)
    if kind in _READY:
        return value
    if kind is dict:
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    if kind is list:
        return FrozenList([freeze(item) for item in value])
    if isinstance(value, Mapping):
        return FrozenDict((key, freeze(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return FrozenList(freeze(item) for item in value)
    return value


def thaw(value: Any) -> Any:
    """A plain copy of JSON-like data, at every depth."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(item) for item in value]
    return value


_T = TypeVar("_T")


def frozen(opened: type[_T]) -> type[_T]:
    """The frozen subclass that instances of `opened` become once they are filled."""

    def refuse(self: object, name: str, value: object = None) -> NoReturn:
        raise AttributeError(f"{opened.__name__} is frozen, {name!r} cannot be set: use .replace(...) for a copy")

    def itself(self: _T, *args: object) -> _T:
        return self

    def reduce(self: object) -> tuple[Any, ...]:
        return _refilled, (opened, {name: getattr(self, name) for name in opened.__slots__ if hasattr(self, name)})  # type: ignore[attr-defined]

    space = {
        "__slots__": (),
        "__setattr__": refuse,
        "__delattr__": refuse,
        "__copy__": itself,
        "__deepcopy__": itself,
        "__reduce__": reduce,
        "__module__": opened.__module__,
        "__qualname__": opened.__qualname__,
        "__doc__": opened.__doc__,
    }
    closed = cast("type[_T]", type(opened.__name__, (opened,), space))
    _CLOSED[opened] = closed
    return closed


_CLOSED: dict[type[Any], type[Any]] = {}


def _refilled(opened: type[_T], state: dict[str, Any]) -> _T:
    value = object.__new__(opened)
    for name, item in state.items():
        setattr(value, name, item)
    value.__class__ = _CLOSED[opened]
    return value
