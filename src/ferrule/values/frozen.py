"""Read-only JSON values, for guards, hashes, exports and records."""

from __future__ import annotations

import copy
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar, cast

JsonObject: TypeAlias = Mapping[str, Any]
"""JSON values by name: the arguments of a call, or a JSON Schema."""


def get_fields(value: object) -> dict[str, Any] | None:
    """Return the fields of a dataclass or a Pydantic model by name, private and extra ones too; None for others."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    if not hasattr(type(value), "__pydantic_fields__"):
        return None
    more = (getattr(value, name) or {} for name in ("__pydantic_extra__", "__pydantic_private__"))
    return {**vars(value), **{name: inner for some in more for name, inner in some.items()}}


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError(
        "this value is read-only: take copy.deepcopy(value), which gives plain dicts and lists, and change that"
    )


_dict_get, _dict_set = dict.__getitem__, dict.__setitem__


class FrozenDict(dict[str, Any]):
    """A read-only dict. `copy.deepcopy` gives a plain one.

    It owns the plain dicts and lists inside, and freezes them when they are read. Because it defines `__iter__`,
    `dict(value)` and `{**value}` use the keys and `__getitem__`.
    """

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __getitem__(self, name: str) -> Any:
        value = _dict_get(self, name)
        kind = _FROZEN_KINDS.get(type(value))
        if kind is None:
            return value
        value = kind(value)
        _dict_set(self, name, value)
        return value

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self)

    def get(self, name: str, default: object = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401  # this is `get`

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        return ValuesView(self)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        return ItemsView(self)

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def __or__(self, other: dict[Any, Any]) -> Any:
        return dict(self) | other

    def __ror__(self, other: dict[Any, Any]) -> Any:
        return other | dict(self)

    def __deepcopy__(self, memo: dict[int, object]) -> dict[str, Any]:
        return copy.deepcopy(dict(dict.items(self)), memo)

    def __reduce__(self) -> tuple[object, ...]:
        return (freeze, (thaw(self),))


class FrozenList(list[Any]):
    """A read-only list. `copy.deepcopy` gives a plain one.

    Its items are frozen when it is made, because C code such as Pydantic reads the items of a list directly.
    """

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__([FrozenDict(i) if type(i) is dict else FrozenList(i) if type(i) is list else i for i in items])

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]

    def __reduce__(self) -> tuple[object, ...]:
        return (freeze, (thaw(self),))


_FROZEN_KINDS: dict[type, Callable[[Any], object]] = {dict: FrozenDict, list: FrozenList}
_WITHOUT_ITEMS = frozenset({str, int, float, bool, type(None)})
_READY = _WITHOUT_ITEMS | {FrozenDict, FrozenList}


def freeze(value: Any) -> Any:
    """Return a read-only copy of JSON-like data, at every depth."""
    if type(value) in _READY:
        return value
    if isinstance(value, dict | Mapping):
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    return FrozenList([freeze(item) for item in value]) if isinstance(value, list | tuple) else value


def thaw(value: object) -> Any:
    """Return a plain copy of JSON-like data, at every depth."""
    if isinstance(value, dict | Mapping):  # in this order, as an abstract class takes ten times as long
        items = dict.items(value) if isinstance(value, dict) else value.items()
        return {key: item if type(item) in _WITHOUT_ITEMS else thaw(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [item if type(item) in _WITHOUT_ITEMS else thaw(item) for item in value]
    return value


_T = TypeVar("_T")


def make_frozen_class(mutable: type[_T]) -> type[_T]:
    """Return the frozen subclass for instances of `mutable`. They get it as their `__class__` once they are filled."""

    def refuse(self: object, name: str, value: object = None) -> NoReturn:
        raise AttributeError(f"{mutable.__name__} is frozen, {name!r} cannot be set: use .replace(...) for a copy")

    def return_self(self: _T, *args: object) -> _T:
        return self

    def reduce(self: object) -> tuple[object, ...]:
        slots: Iterable[str] = mutable.__slots__  # type: ignore[attr-defined]
        return _rebuild, (mutable, {name: getattr(self, name) for name in slots if hasattr(self, name)})

    members = {
        "__slots__": (),
        "__setattr__": refuse,
        "__delattr__": refuse,
        "__copy__": return_self,
        "__deepcopy__": return_self,
        "__reduce__": reduce,
        "__module__": mutable.__module__,
        "__qualname__": mutable.__qualname__,
        "__doc__": mutable.__doc__,
    }
    frozen = cast("type[_T]", type(mutable.__name__, (mutable,), members))
    _FROZEN_CLASSES[mutable] = frozen
    return frozen


_FROZEN_CLASSES: dict[type, type] = {}


def _rebuild(mutable: type[_T], state: dict[str, Any]) -> _T:
    value = object.__new__(mutable)
    for name, item in state.items():
        setattr(value, name, item)
    value.__class__ = _FROZEN_CLASSES[mutable]
    return value
