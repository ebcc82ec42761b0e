"""Write validated values as JSON, and find out whether that JSON has to be judged.

Guards judge the sent text if the parameters are exact: each node of the closed core schema keeps its input unchanged.
For all others they judge the dump of the validated values. Then the handler's values are made from the dump, unless
they were made from the very same JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache, partial
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic_core import CoreConfig, PydanticSerializationUnexpectedValue, SchemaSerializer, from_json, to_json

from ferrule.arguments.closed_schema import (
    CANONICAL_TIME,
    EMPTY_FACTORIES,
    STRICT_BRANCHES,
    UNCHANGED,
    CoreSchema,
    collect_nodes,
    find_root_fields,
    has_times,
    iter_children,
    map_nodes,
)
from ferrule.values.frozen import JsonObject
from ferrule.values.json_text import SECRET_STARS, format_json, is_same_json, reveal_secrets


class NotJudgeable(Exception):
    """A value has no JSON form, or its JSON does not make it again. The message names the parameter and the remedy."""


_IMMUTABLE = {str, bool, int, float, complex, bytes, type(None), date, time, datetime, timedelta, UUID, Decimal}
_EXACT_KINDS = frozenset(
    {"any", "none", "bool", "int", "float", "literal", "str", "bytes", "enum", "default", "dict"}
    | {"nullable", "definitions", "definition-ref", "list", "tuple", "union", "tagged-union"}
    | {"model", "model-fields", "model-field", "dataclass", "dataclass-args", "dataclass-field"}
    | {"typed-dict", "typed-dict-field", "json-or-python", "lax-or-strict"}
)
"""Kinds of nodes that keep their input unchanged, apart from some settings."""
_EXACT_STRING_KEYS = frozenset({"type", "ref", "metadata", "strict", "pattern", "regex_engine"}) | {
    *("min_length", "max_length", "ascii_only")
}
"""Settings of a string that do not change it."""
_REWRITING = ("str_strip_whitespace", "str_to_lower", "str_to_upper", "coerce_numbers_to_str")
_SEQUENCE_WRITER = ("pydantic._internal._serializers", "serialize_sequence_via_list")
"""Pydantic's serializer of a `Sequence`."""
_SECRET_WRITERS = {("pydantic.types", "_serialize_secret"), ("pydantic.types", "_serialize_secret_field")}
"""Pydantic's serializers of secrets."""
_REMEDY = "give the type a PlainSerializer whose JSON its validator reads"


def is_exact(node: CoreSchema, config: Mapping[str, object] | None = None, *, timed: bool) -> bool:
    """Return whether a node's validated values equal the sent JSON.

    Args:
        node: A node of a closed core schema. References are checked at their definition.
        config: The configuration of the model around the node.
        timed: Whether the schema has times, with their several spellings.
    """
    config = {**(config or {}), **own} if (own := node.get("config")) else config or {}
    kind: str = node["type"]
    marker = (node.get("metadata") or {}).get("ferrule")
    if kind == "chain" and marker in (UNCHANGED, CANONICAL_TIME):
        return "serialization" not in node["steps"][-1]
    if timed and kind in {"union", "tagged-union"}:
        below = collect_nodes(node)  # the dump of one alternative may be read as another
        if has_times(below) or any(child["type"] == "definition-ref" for child in below):
            return False
    inner = [node[STRICT_BRANCHES[kind]]] if kind in STRICT_BRANCHES else iter_children(node)
    is_own_exact = marker is UNCHANGED or _keeps_value(node, config)
    return is_own_exact and all(is_exact(child, config, timed=timed) for child in inner)


def _keeps_value(node: CoreSchema, config: Mapping[str, object]) -> bool:
    """Return whether a node keeps its input unchanged, apart from the nodes below it."""
    kind = node["type"]
    if kind not in _EXACT_KINDS or ("serialization" in node and find_serializer_name(node) != _SEQUENCE_WRITER):
        return False
    if kind == "str":
        return not any(node[key] for key in node.keys() - _EXACT_STRING_KEYS) and not any(map(config.get, _REWRITING))
    if kind == "bytes":
        return config.get("val_json_bytes", "utf8") == "utf8"
    if kind == "dict":  # for number keys, 1 and 01 are the same
        return bool(node.get("keys_schema", {"type": "str"})["type"] == "str")
    if kind == "enum":
        is_plain = all(isinstance(member.value, str | int | float | None) for member in node["members"])
        return is_plain and not runs_code(node)
    if kind == "default":
        return _keeps_default(node)
    return not any(map(node.get, ("custom_init", "post_init"))) and node.get("extra_behavior") != "ignore"


def _keeps_default(node: CoreSchema) -> bool:
    default = node.get("default")
    is_json = isinstance(default, str | int | float | bytes | Enum | None)
    is_empty = type(default) in EMPTY_FACTORIES and not default
    keeps = is_json or is_empty or (is_immutable(default) and node["schema"]["type"] != "any")
    return keeps and node.get("default_factory", list) in EMPTY_FACTORIES and node.get("on_error", "raise") == "raise"


def is_immutable(value: object) -> bool:
    """Return whether a handler cannot change a value. Then all calls may share it."""
    if type(value) in (tuple, frozenset):
        return all(map(is_immutable, value))  # type: ignore[call-overload]
    return type(value) in _IMMUTABLE or isinstance(value, Enum | PurePath)


# -- the dump ----------------------------------------------------------------------------------------------------------


class Dumper:
    """Writes the validated values of one closed core schema as JSON, under the wire names of its fields."""

    def __init__(self, core: CoreSchema) -> None:
        self._core = core
        checks_classes = any(map(runs_code, collect_nodes(core)))
        written = map_nodes(core, partial(_to_writing_node, checks_classes=checks_classes))
        self._serializer = SchemaSerializer(written, _to_writing_config({}), _use_prebuilt=False)

    def dump(self, values: Any, sent: str | None, *, checked: bool = True, defaults: bool = True) -> str:
        """Return the JSON text of validated values, with each key once.

        Args:
            values: The validated values.
            sent: The text that they were read from. A secret of the program's own, which is not in this text, is
                refused. With None, every secret is written.
            checked: Whether each value must have its declared type.
            defaults: Whether values that equal their declared default are written, too.

        Raises:
            NotJudgeable: The values have no JSON form, or hold a secret of the program's own.
        """
        try:
            return self._dump(values, sent, checked, exclude_defaults=not defaults)
        except Exception as error:  # an author's type may raise anything, and its text may quote bound values
            if _NOT_SENT in str(error):
                wrong = f"its arguments hold {_NOT_SENT}"
                raise NotJudgeable(f"{wrong}: what the program supplies belongs to context.secrets") from None
            cause = None if type(error).__module__.startswith("pydantic") else error
            subject = self._find_culprit(values, sent)
            raise NotJudgeable(f"{subject} no JSON form to be judged by: {_REMEDY}") from cause

    def describe_mismatch(self, name: str | int | None) -> str:
        """Return the error text for a parameter whose JSON does not make the same value again."""
        subject = "its arguments come" if name is None else f"its parameter {name!r} comes"
        return f"{subject} out otherwise than judged when made of its own JSON: {_REMEDY}"

    def _dump(self, values: Any, sent: str | None, checked: bool, **options: Any) -> str:
        written = self._serializer.to_json(
            values,
            by_alias=True,
            round_trip=True,
            warnings="error" if checked else "none",
            context={} if sent is None else {_SENT_LEAVES: cache(lambda: frozenset(_iter_leaves(from_json(sent))))},
            **options,
        )
        text = normalize_json(written)
        if sent is not None and SECRET_STARS in text and text.count(SECRET_STARS) > sent.count(SECRET_STARS):
            raise ValueError(_NOT_SENT)
        return text

    def _find_culprit(self, values: Any, sent: str | None) -> str:
        for name, field in find_root_fields(self._core).items():
            try:
                self._dump(values, sent, True, include={name})
            except Exception:
                return f"its parameter {field.get('validation_alias') or name!r} has"
        return "its arguments have"


def normalize_json(text: str | bytes) -> str:
    """Return a JSON text without blanks, and with each key once.

    Raises:
        ValueError: The text has NaN or an infinity.
    """
    return to_json(from_json(text, allow_inf_nan=False)).decode()


def find_difference(one: JsonObject, other: JsonObject, equal: Callable[[Any, Any], bool] = is_same_json) -> str | None:
    """Return the first key with different values in two JSON objects, or None."""
    return next((key for key in {**one, **other} if not equal(one.get(key, _ABSENT), other.get(key, _ABSENT))), None)


def is_contained(part: Any, whole: Any) -> bool:
    """Return whether two JSON values are the same, except for additional keys of `whole`."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(is_contained(item, whole.get(key, _ABSENT)) for key, item in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(map(is_contained, part, whole))
    return part is _ABSENT or is_same_json(part, whole)


def strip_scalars(value: Any) -> Any:
    """Return JSON with null in place of every value that is neither an object nor an array."""
    if isinstance(value, dict):
        return {key: strip_scalars(item) for key, item in value.items()}
    return [strip_scalars(item) for item in value] if isinstance(value, list) else None


_ABSENT = object()
_SENT_LEAVES = "ferrule"
"""The key in the serializer's context of a function that returns the texts and numbers that were sent. An author's
serializers see this context, too. The text is parsed only when a secret is written."""
_NOT_SENT = "a secret that was not sent as it is"


def _iter_leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _iter_leaves(item)
        yield from value if isinstance(value, dict) else ()
    else:
        yield value if isinstance(value, str) else format_json(value)


def _to_writing_node(node: CoreSchema, *, checks_classes: bool) -> CoreSchema:
    """Return a node for writing: all fields under their wire names, secrets in the clear, sets in one order.

    Args:
        node: The copy of a node; this function changes it.
        checks_classes: Whether objects may have another class than declared: Pydantic writes any with the attributes.
    """
    kind, is_plain = node["type"], "serialization" not in node
    if kind == "default" and node.get("default_factory", list) not in EMPTY_FACTORIES:
        own = {key: node[key] for key in ("serialization",) if key in node}
        return {**node["schema"], **own}  # so that no factory is called to compare its default
    for key in ("serialization_alias", "serialization_exclude", "serialization_exclude_if"):
        node.pop(key, None)
    if "validation_alias" in node:
        node["serialization_alias"] = node["validation_alias"]
    if "config" in node:
        node["config"] = _to_writing_config(node["config"])
    if find_serializer_name(node) == _SEQUENCE_WRITER:
        items = node["json_schema"].get("items_schema", {"type": "any"})
        node["serialization"] = {**node["serialization"], "schema": items}
    elif find_serializer_name(node) in _SECRET_WRITERS:
        node["serialization"] = {"type": "function-plain", "function": _write_secret, "info_arg": True}
    elif is_plain and kind in {"set", "frozenset"}:
        node["serialization"] = {"type": "function-wrap", "function": _write_set}
    elif is_plain and checks_classes and kind in {"model", "dataclass"}:
        node["serialization"] = {"type": "function-wrap", "function": partial(_write_instance, node["cls"])}
    if kind in STRICT_BRANCHES:
        return {**node[STRICT_BRANCHES[kind]], **{key: node[key] for key in ("ref", "serialization") if key in node}}
    return node


def find_serializer_name(node: CoreSchema) -> tuple[str | None, str | None]:
    """Return the module and name of the function that serializes a node."""
    function = node.get("serialization", {}).get("function")
    return getattr(function, "__module__", None), getattr(function, "__name__", None)


def runs_code(node: CoreSchema) -> bool:
    """Return whether validation runs an author's code, which may return an object of any class.

    For an enum that is a `_missing_` of its own, which returns a member for other values.
    """
    if node["type"] == "enum":
        return getattr(node["cls"]._missing_, "__func__", None) is not vars(Enum)["_missing_"].__func__
    is_ours = (node.get("metadata") or {}).get("ferrule") is UNCHANGED
    is_foreign = _is_foreign(node.get("function")) and not is_ours
    return is_foreign or any(map(node.get, ("custom_init", "post_init")))


def has_own_serializer(node: CoreSchema) -> bool:
    """Return whether an author's function writes the value."""
    return _is_foreign(node.get("serialization", {}).get("function"))


def _is_foreign(function: Any) -> bool:
    while isinstance(function, dict | partial):
        function = function["function"] if isinstance(function, dict) else function.func
    return function is not None and not str(getattr(function, "__module__", "")).startswith("pydantic.")


def _write_instance(declared: type, value: Any, handler: Any) -> Any:
    if not isinstance(value, declared):
        raise PydanticSerializationUnexpectedValue(f"no {declared.__name__}")
    return handler(value)


def _to_writing_config(config: Mapping[str, Any]) -> CoreConfig:
    """Return a configuration to write times and bytes in the form of the input."""
    others = {key: value for key, value in config.items() if not key.startswith("ser_json")}
    read_as = {"ser_json_bytes": config["val_json_bytes"]} if "val_json_bytes" in config else {}
    return {**others, **read_as, "ser_json_inf_nan": "constants"}  # type: ignore[typeddict-item]


def _write_secret(value: Any, info: Any) -> Any:
    if value is None:
        return None
    secret = reveal_secrets(value)
    find_sent = info.context.get(_SENT_LEAVES)
    if find_sent is not None and not find_sent().issuperset(_iter_leaves(from_json(format_json(secret)))):
        raise ValueError(_NOT_SENT)
    return secret


def _write_set(value: Any, handler: Any) -> Any:
    """Write a set sorted: it has no order of its own, and its JSON is compared."""
    written = handler(value)
    return sorted(written, key=to_json) if isinstance(value, AbstractSet) else written
