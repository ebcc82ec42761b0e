"""What guards are shown of parameters that validation may change: the JSON of the validated values.

Parameters are *exact* where their closed core schema holds only nodes that are known to keep what they read: there the
decoded JSON is what the handler gets. Of all others the validated values are written down, by a serializer made from
the same core without what hides or decorates.
"""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias

from pydantic import BaseModel, Secret, SecretBytes, SecretStr
from pydantic_core import (
    CoreConfig,
    PydanticSerializationError,
    PydanticSerializationUnexpectedValue,
    SchemaSerializer,
    from_json,
    to_json,
)

from ferrule.arguments.closing import KEEPS, MAKES_EMPTY, NESTED, CoreSchema, all_nodes, nodes_below, root_fields
from ferrule.errors import DefinitionError
from ferrule.values.json_text import SECRET_STARS, dumps

_SECRETS = (Secret, SecretStr, SecretBytes)
_LEAVES = frozenset({"any", "none", "bool", "int", "float", "bytes", "literal", "str", "enum"})
_HOLDING = frozenset(
    {"nullable", "default", "definitions", "definition-ref", "list", "tuple", "dict", "union", "tagged-union"}
    | {"model", "model-fields", "model-field", "dataclass", "dataclass-args", "dataclass-field"}
    | {"typed-dict", "typed-dict-field", "json-or-python", "lax-or-strict"}
)
"""What keeps what it holds; a set does not keep how often, and in which order."""
_TEXT_KEYS = frozenset({"type", "ref", "metadata", "serialization", "strict", "pattern", "regex_engine"}) | {
    *("min_length", "max_length", "ascii_only")
}
"""What may be said of a string that is kept as it is."""
_REWRITING = ("str_strip_whitespace", "str_to_lower", "str_to_upper", "coerce_numbers_to_str")
_READ_AS = {"json-or-python": "json_schema", "lax-or-strict": "strict_schema"}
"""Which part of a node validates strict JSON."""
_VALIDATORS = frozenset({"function-before", "function-after", "function-wrap", "custom-error", "chain"})
"""What may make anything of a value that the node within has read."""
_KNOWN = (_LEAVES - {"any"}) | {
    *("list", "generator", "tuple", "named-tuple", "set", "frozenset", "deque", "dict", "typed-dict", "ordered-dict"),
    *("counter", "frozendict", "model", "dataclass", "definition-ref", "union", "tagged-union", "json"),
    *("date", "time", "datetime", "timedelta", "decimal", "fraction", "uuid", "url", "multi-host-url", "complex"),
    "missing-sentinel",
}
"""Kinds whose values Pydantic writes down by what the schema says of them."""
_WRAPPING = (_HOLDING | _VALIDATORS | {"named-tuple-field"}) - _KNOWN
"""Kinds that leave that to a node within. A value of any other is written down by what it is."""
_CONFIG: CoreConfig = {"ser_json_inf_nan": "constants"}
_SHAPING = {"extra_fields_behavior": "extra_fields_behavior", "val_json_bytes": "ser_json_bytes"}
"""What of a node's configuration a serializer needs to find all fields, and to write bytes as they are read."""


class NoJudgedForm(Exception):
    """What guards would be shown of a value cannot be made; the message names the parameter and the way out."""


class JudgedForm:
    """The JSON of validated values: of keyword arguments, of those that are not exact, and of a model, of the whole.

    Args:
        core: The closed core schema of all parameters: a typed dict or a model.

    Attributes:
        whole: Whether it is of a model, and so all that there is.

    Raises:
        DefinitionError: for an `InitVar`, or further keys of a dataclass, which nobody could be shown.
    """

    def __init__(self, core: CoreSchema) -> None:
        _refuse_hidden(core)
        self._core = core
        root = core["schema"] if core["type"] == "definitions" else core
        self.whole = root["type"] != "typed-dict" or not _keeps(root, {})
        fields = {} if self.whole else root["fields"]
        keeps = all(is_exact(node, {}) for node in core.get("definitions", ()))
        self._exact = {name for name, field in fields.items() if keeps and is_exact(field, {})}

    @cached_property
    def _serializer(self) -> SchemaSerializer:
        # Without code of an author's each value is as it is declared; to look at each model takes three times as long.
        classes: set[type] | None = set() if any(map(_is_authors, all_nodes(self._core))) else None
        return SchemaSerializer(_writing_all(self._core, classes), _CONFIG, _use_prebuilt=False)

    def text(self, values: Any, received: str | None, *, checked: bool = True) -> str:
        """The JSON text of validated values, by the names that a model uses.

        Args:
            received: What they were read from. Secrets that do not stand in it are stars; for `None` none are.
            checked: Whether each value has to be of its declared type.

        Raises:
            NoJudgedForm: where there is none, or a value is not of its declared type.
        """
        warnings = "error" if checked else "none"
        try:
            text = self._json(values, warnings=warnings, context=_NOTHING)
            return self._json(values, warnings=warnings, context=_sent(received)) if SECRET_STARS in text else text
        except PydanticSerializationError:  # its text may quote what is bound
            raise NoJudgedForm(self._why(values)) from None
        except Exception as error:  # whatever a type of the author's own raises
            raise NoJudgedForm(self._why(values)) from error

    def set_fields(self, values: Any, received: str) -> str:
        """The same without what models have filled in by themselves."""
        return self._json(values, warnings="none", exclude_unset=True, context=_sent(received))

    def values(self, values: Any) -> Any:
        """The same as Python values, in which paths are still paths.

        Raises:
            NoJudgedForm: where they cannot be made.
        """
        try:
            return self._serializer.to_python(values, by_alias=True, exclude=self._exact, warnings=False)
        except Exception as error:
            raise NoJudgedForm(self._why(values)) from error

    def _json(self, values: Any, **options: Any) -> str:
        text = self._serializer.to_json(values, by_alias=True, exclude=self._exact, **options).decode()
        if "NaN" in text or "Infinity" in text:
            from_json(text, allow_inf_nan=False)
        return text

    def _why(self, values: Any) -> str:
        where = "its arguments have"
        for name, field in root_fields(self._core).items():
            try:
                self._json(values, warnings="error", include={name})
            except Exception:
                where = f"its parameter {field.get('validation_alias') or name!r} has"
                break
        return f"{where} no JSON form to be judged by: give the type a PlainSerializer"


def _sent(received: str | None) -> frozenset[str] | None:
    """The texts and numbers that were received: the serializer's context, by which it shows secrets that were sent."""
    return None if received is None else frozenset(_leaves(from_json(received)))


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
        yield from value if isinstance(value, dict) else ()
    else:
        yield value if isinstance(value, str) else dumps(value)


# -- which parameters are exact ----------------------------------------------------------------------------------------


def is_exact(node: CoreSchema, config: Mapping[str, object]) -> bool:
    """Whether the value of a node is the JSON that it was read from. What it refers to is looked at where it is
    defined, in the same core."""
    config = {**config, **(node.get("config") or {})}
    inner = [node[_READ_AS[node["type"]]]] if node["type"] in _READ_AS else nodes_below(node)
    return _keeps(node, config) and all(is_exact(below, config) for below in inner)


def _keeps(node: CoreSchema, config: Mapping[str, object]) -> bool:
    """Whether the node itself, without those in it, changes nothing."""
    kind = node["type"]
    if kind == "str":
        return not any(node[key] for key in node.keys() - _TEXT_KEYS) and not any(map(config.get, _REWRITING))
    if kind == "bytes":
        return config.get("val_json_bytes", "utf8") == "utf8"
    if kind == "enum":
        plain = all(isinstance(member.value, str | int | float | None) for member in node["members"])
        return plain and _has_no_missing(node["cls"])
    if kind == "function-before":
        return (node.get("metadata") or {}).get("ferrule") is KEEPS
    if kind == "dict" and node.get("keys_schema", {"type": "str"})["type"] != "str":  # of numbers, 1 and 01 are one
        return False
    if kind == "default" and node.get("default_factory", list) not in MAKES_EMPTY:
        return False
    changes = node.get("custom_init") or node.get("post_init") or node.get("extra_behavior") == "ignore"
    return kind in _LEAVES | _HOLDING and not changes and node.get("on_error", "raise") == "raise"


def _is_authors(node: CoreSchema) -> bool:
    """Whether code of an author's may have put anything into the value of a node, or into its fields."""
    kind = node["type"]
    if kind == "default":
        default = node.get("default")
        plain = isinstance(default, str | int | float | bytes | Enum | None)
        empty = type(default) in MAKES_EMPTY and not default
        return not (plain or empty) or node.get("default_factory", list) not in MAKES_EMPTY
    if kind in {"model", "dataclass"}:
        return bool(node.get("custom_init") or node.get("post_init"))
    return not _keeps(node, {}) and kind not in _KNOWN | {"chain", "custom-error"}


def _has_no_missing(enum: type[Enum]) -> bool:
    """Whether only the values of its members give a member."""
    return getattr(enum._missing_, "__func__", None) is Enum._missing_.__func__  # type: ignore[attr-defined]


def _refuse_hidden(core: CoreSchema) -> None:
    """Refuse what no serializer sees, or not as what it is."""
    for node in all_nodes(core):
        kind, what = node["type"], None
        if kind == "dataclass-field" and node.get("init_only"):
            what = f"the field {node['name']!r} of a dataclass is an InitVar; make it a field"
        elif kind == "dataclass-args" and node.get("extra_behavior") == "allow":
            what = f"the dataclass {node['dataclass_name']!r} takes keys that it does not declare; make it a model"
        elif kind in {"model", "dataclass"} and issubclass(node["cls"], os.PathLike):
            what = f"the class {node['cls'].__name__!r} has fields and is a path; take a Path"
        elif "extras_keys_schema" in node:
            what = "a validator changes the keys that a model does not declare; take them as they are"
        if what is not None:
            raise DefinitionError(f"guards could not be shown all that a handler gets: {what}")


# -- the serializer ----------------------------------------------------------------------------------------------------


def _writing_all(node: Any, classes: set[type] | None) -> Any:
    """A copy that writes down all that there is, under the names that a model uses.

    Args:
        classes: Where values need not be as they are declared: gets the classes of all models and dataclasses that are.
    """
    if isinstance(node, list | tuple):
        return type(node)(_writing_all(item, classes) for item in node)
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    if not isinstance(kind, str):
        return {key: _writing_all(value, classes) for key, value in node.items()}
    if kind in _READ_AS:
        read = node[_READ_AS[kind]]
        own = {key: node[key] for key in ("ref", "serialization") if key in node and key not in read}
        return _writing_all({**read, **own}, classes)
    copy = {
        key: _writing_all(value, classes) if key in NESTED else value
        for key, value in node.items()
        if key not in _HIDES
    }
    if "validation_alias" in node:
        copy["serialization_alias"] = node["validation_alias"]
    if "config" in node:
        copy["config"] = _writing(node["config"])
    own_form = node.get("serialization")
    if kind not in _KNOWN and (own_form is not None or kind not in _WRAPPING):
        copy = {"type": "any", **({"ref": node["ref"]} if "ref" in node else {})}
        copy["serialization"] = _written_by(_openly(own_form))
    elif kind in {"set", "frozenset"}:
        copy |= {"type": "list", "serialization": _written_by(_sorted)}
    elif classes is None:
        pass
    elif kind in {"model", "dataclass"}:
        classes.add(node["cls"])
        copy["serialization"] = _written_by(_of_class(node["cls"], classes))
    elif kind == "typed-dict" and copy.get("extra_behavior") != "allow":
        copy["serialization"] = _written_by(_with_no_more_than(node["fields"].keys()))
    elif kind == "dict" and node.get("keys_schema", {"type": "str"})["type"] != "str":
        copy["serialization"] = _written_by(_each_key)
    return copy


_HIDES = frozenset({"serialization", "serialization_exclude", "serialization_exclude_if", "computed_fields"}) | {
    "serialization_alias"
}


def _writing(config: Mapping[str, Any]) -> CoreConfig:
    """How a serializer writes what was read with this configuration."""
    return _CONFIG | {ours: config[key] for key, ours in _SHAPING.items() if key in config}  # type: ignore[return-value]


_Write: TypeAlias = Callable[[Any, Callable[[Any], Any], Any], Any]


def _written_by(function: _Write) -> CoreSchema:
    return {"type": "function-wrap", "function": function, "info_arg": True}


def _other(value: Any) -> PydanticSerializationUnexpectedValue:
    """What makes a union try its next branch, and is an error where no other is left."""
    return PydanticSerializationUnexpectedValue(f"a {type(value).__name__} that is not as it is declared")


def _sorted(value: Any, handler: Callable[[Any], Any], info: Any) -> Any:
    """A set has no order of its own, and its JSON is compared. As Python values its items need not be hashable."""
    if not isinstance(value, AbstractSet):
        raise _other(value)
    return sorted(handler(list(value)), key=lambda item: to_json(item, inf_nan_mode="constants", fallback=os.fspath))


def _each_key(value: Any, handler: Callable[[Any], Any], info: Any) -> Any:
    written = handler(value)
    if len(written) != len(value) and SECRET_STARS not in written:
        raise ValueError("two keys are written down as one")
    return written


def _with_no_more_than(names: Collection[str]) -> _Write:
    def write(value: Any, handler: Callable[[Any], Any], info: Any) -> Any:
        if not isinstance(value, dict) or value.keys() - names:
            raise _other(value)
        return handler(value)

    return write


def _of_class(declared: type, classes: set[type]) -> _Write:
    """Write an object of a derived class with all that it holds, and not only with what its base declares; but of a
    class that is declared elsewhere as is said there: it is another one of a union."""

    def write(value: Any, handler: Callable[[Any], Any], info: Any) -> Any:
        if type(value) is declared:
            return handler(value)
        if type(value) in classes or not isinstance(value, declared):
            raise _other(value)
        return _opened(value, info)

    return write


def _openly(own_form: CoreSchema | None) -> _Write:
    """Write a value by what it is; in the author's own form where it has no other."""

    def write(value: Any, handler: Callable[[Any], Any], info: Any) -> Any:
        if info.mode == "python" and isinstance(value, os.PathLike):
            return value
        try:
            opened = _opened(value, info)
            if info.mode == "python":
                to_json(opened)  # where JSON has no form of its own, the author's is wanted here, too
            return _ANY.to_python(opened, mode=info.mode)
        except PydanticSerializationError:
            if own_form is None:
                raise
            own = SchemaSerializer({"type": "any", "serialization": own_form}, _CONFIG)
            return own.to_python(value, mode=info.mode)

    return write


_NOTHING: frozenset[str] = frozenset()
_ANY = SchemaSerializer({"type": "any"}, _CONFIG)


def _opened(value: Any, info: Any) -> Any:
    """A value with all that its objects hold, whatever their classes would write of them."""
    if isinstance(value, _SECRETS):
        secret = _opened(value.get_secret_value(), info)
        sent = info.context is None or info.context.issuperset(_leaves(from_json(to_json(secret))))
        return secret if sent else SECRET_STARS
    if isinstance(value, BaseModel):
        value = _fields(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _opened(item, info) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_opened(item, info) for item in value), key=dumps)
    if isinstance(value, list | tuple | deque):
        return [_opened(item, info) for item in value]
    if isinstance(value, Iterator):
        raise TypeError("what is read to be written down would be gone for the handler")
    return value


def _fields(model: BaseModel) -> dict[str, Any]:
    """What a model holds, by the names that it is filled by."""
    names = {name: field.validation_alias for name, field in type(model).model_fields.items()}
    fields = {alias if isinstance(alias, str) else name: model.__dict__[name] for name, alias in names.items()}
    if twice := fields.keys() & (model.model_extra or {}).keys():
        raise ValueError(f"two fields are called {min(twice)!r}")
    return fields | (model.model_extra or {})
