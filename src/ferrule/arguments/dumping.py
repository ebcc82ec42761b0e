"""How validated values are written as JSON, and of which parameters that is judged.

Two kinds: exact ones, of which every node of the closed core schema is known to keep what it reads, are judged by what
was sent; of all others the dump is judged, and what runs is made of it, unless it was made of that very JSON already.
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

from ferrule.arguments.closing import (
    KEEPS,
    MAKES_EMPTY,
    READ_AS,
    SPELLED,
    CoreSchema,
    all_nodes,
    nodes_below,
    rewritten,
    root_fields,
    spelled,
)
from ferrule.values.encoded_bytes import is_secret, writer_of
from ferrule.values.frozen import JsonObject
from ferrule.values.json_text import SECRET_STARS, dumps, same, unveiled


class NoJudgedForm(Exception):
    """What guards would be shown of a value cannot be made, or does not say what would run; the message names the
    parameter and the way out."""


_CONSTANT = {str, bool, int, float, complex, bytes, type(None), date, time, datetime, timedelta, UUID, Decimal}
_KEEPING = frozenset(
    {"any", "none", "bool", "int", "float", "literal", "str", "bytes", "enum", "default", "dict"}
    | {"nullable", "definitions", "definition-ref", "list", "tuple", "union", "tagged-union"}
    | {"model", "model-fields", "model-field", "dataclass", "dataclass-args", "dataclass-field"}
    | {"typed-dict", "typed-dict-field", "json-or-python", "lax-or-strict"}
)
"""Kinds of nodes that keep what they read, but for some settings."""
_TEXT_KEYS = frozenset({"type", "ref", "metadata", "strict", "pattern", "regex_engine"}) | {
    *("min_length", "max_length", "ascii_only")
}
"""What may be said of a string that is kept as it is."""
_REWRITING = ("str_strip_whitespace", "str_to_lower", "str_to_upper", "coerce_numbers_to_str")
_OF_SEQUENCE = ("pydantic._internal._serializers", "serialize_sequence_via_list")
"""What writes the list that any `Sequence` is read as."""
_WAY_OUT = "give the type a PlainSerializer whose JSON its validator reads"


def is_exact(node: CoreSchema, config: Mapping[str, object] | None = None, *, dated: bool) -> bool:
    """Whether what is sent for a node is what runs. What it refers to is looked at where it is defined, in the same
    core, which may be `dated`: with dates and times that have several spellings."""
    config = {**(config or {}), **own} if (own := node.get("config")) else config or {}
    kind: str = node["type"]
    ours = (node.get("metadata") or {}).get("ferrule")
    if kind == "chain" and ours in (KEEPS, SPELLED):
        return "serialization" not in node["steps"][-1]
    if dated and kind in {"union", "tagged-union"}:
        below = all_nodes(node)  # the dump of one alternative may be read as another
        if spelled(below) or any(one["type"] == "definition-ref" for one in below):
            return False
    inner = [node[READ_AS[kind]]] if kind in READ_AS else nodes_below(node)
    return (ours is KEEPS or _keeps(node, config)) and all(is_exact(below, config, dated=dated) for below in inner)


def _keeps(node: CoreSchema, config: Mapping[str, object]) -> bool:
    """Whether a node keeps what it reads, apart from the nodes in it."""
    kind = node["type"]
    if kind not in _KEEPING or ("serialization" in node and writer_of(node) != _OF_SEQUENCE):
        return False
    if kind == "str":
        return not any(node[key] for key in node.keys() - _TEXT_KEYS) and not any(map(config.get, _REWRITING))
    if kind == "bytes":
        return config.get("val_json_bytes", "utf8") == "utf8"
    if kind == "dict":  # of numbers, 1 and 01 are one key
        return bool(node.get("keys_schema", {"type": "str"})["type"] == "str")
    if kind == "enum":
        return not runs_code(node) and all(isinstance(one.value, str | int | float | None) for one in node["members"])
    if kind == "default":
        return _keeps_default(node)
    return not any(map(node.get, ("custom_init", "post_init"))) and node.get("extra_behavior") != "ignore"


def _keeps_default(node: CoreSchema) -> bool:
    default = node.get("default")
    is_json = isinstance(default, str | int | float | bytes | Enum | None)
    is_empty = type(default) in MAKES_EMPTY and not default
    kept = is_json or is_empty or (is_constant(default) and node["schema"]["type"] != "any")
    return kept and node.get("default_factory", list) in MAKES_EMPTY and node.get("on_error", "raise") == "raise"


def is_constant(value: object) -> bool:
    """Whether a handler cannot change it, so that all calls may have the same one."""
    if type(value) in (tuple, frozenset):
        return all(map(is_constant, value))  # type: ignore[call-overload]
    return type(value) in _CONSTANT or isinstance(value, Enum | PurePath)


# -- the dump ----------------------------------------------------------------------------------------------------------


class Dump:
    """Writes the validated values of one closed core schema, by the names that a model uses."""

    def __init__(self, core: CoreSchema) -> None:
        self._core = core
        checks = any(map(runs_code, all_nodes(core)))
        written = rewritten(core, partial(_for_writing, checks=checks))
        self._serializer = SchemaSerializer(written, _writing_config({}), _use_prebuilt=False)

    def text(self, values: Any, sent: str | None, *, checked: bool = True, defaults: bool = True) -> str:
        """The JSON text of validated values, each key once.

        Args:
            sent: What they were read from. A secret that does not stand in it was made here, and is not written; for
                `None` all are.
            checked: Whether each value has to be of its declared type.
            defaults: Whether what is as its declared default is written too.

        Raises:
            NoJudgedForm: where there is none.
        """
        try:
            return self._text(values, sent, checked, exclude_defaults=not defaults)
        except Exception as error:  # whatever a type of the author's own raises; its text may quote what is bound
            if _NOT_SENT in str(error):
                what = f"its arguments hold {_NOT_SENT}"
                raise NoJudgedForm(f"{what}: what the program supplies belongs to context.secrets") from None
            told = None if type(error).__module__.startswith("pydantic") else error
            raise NoJudgedForm(f"{self._where(values, sent)} no JSON form to be judged by: {_WAY_OUT}") from told

    def not_read(self, name: str | int | None) -> str:
        """What to say where the JSON of a parameter does not make what it was written of."""
        whose = "its arguments come" if name is None else f"its parameter {name!r} comes"
        return f"{whose} out otherwise than judged when made of its own JSON: {_WAY_OUT}"

    def _text(self, values: Any, sent: str | None, checked: bool, **options: Any) -> str:
        written = self._serializer.to_json(
            values,
            by_alias=True,
            round_trip=True,
            warnings="error" if checked else "none",
            context={} if sent is None else {_SENT_LEAVES: cache(lambda: frozenset(_leaves(from_json(sent))))},
            **options,
        )
        text = rewritten_text(written)
        if sent is not None and SECRET_STARS in text and text.count(SECRET_STARS) > sent.count(SECRET_STARS):
            raise ValueError(_NOT_SENT)
        return text

    def _where(self, values: Any, sent: str | None) -> str:
        for name, field in root_fields(self._core).items():
            try:
                self._text(values, sent, True, include={name})
            except Exception:
                return f"its parameter {field.get('validation_alias') or name!r} has"
        return "its arguments have"


def rewritten_text(text: str | bytes) -> str:
    """The text of the JSON that is read from a text, each key once.

    Raises:
        ValueError: for NaN and infinities.
    """
    return to_json(from_json(text, allow_inf_nan=False)).decode()


def first_unlike(one: JsonObject, other: JsonObject, alike: Callable[[Any, Any], bool] = same) -> str | None:
    """The first key by which two JSON objects differ."""
    return next((key for key in {**one, **other} if not alike(one.get(key, _ABSENT), other.get(key, _ABSENT))), None)


def is_within(part: Any, whole: Any) -> bool:
    """Whether JSON is the same but for keys that only `whole` has."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(is_within(item, whole.get(key, _ABSENT)) for key, item in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(map(is_within, part, whole))
    return part is _ABSENT or same(part, whole)


def shape_of(value: Any) -> Any:
    """The objects and arrays of JSON, with null for everything in them that is neither."""
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in value.items()}
    return [shape_of(item) for item in value] if isinstance(value, list) else None


_ABSENT = object()
_SENT_LEAVES = "ferrule"
"""In the serializer's context, which an author's serializers may read, too: what gives the texts and numbers that were
sent, read when a secret is written."""
_NOT_SENT = "a secret that was not sent as it is"


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
        yield from value if isinstance(value, dict) else ()
    else:
        yield value if isinstance(value, str) else dumps(value)


def _for_writing(node: CoreSchema, *, checks: bool) -> CoreSchema:
    """A node that writes fields under the names that a model uses, none left out; secrets as they were sent; and sets
    in one order.

    Args:
        checks: Whether objects may be of other classes than are declared: Pydantic takes any that has attributes.
    """
    kind, is_plain = node["type"], "serialization" not in node
    if kind == "default" and node.get("default_factory", list) not in MAKES_EMPTY:
        own = {key: node[key] for key in ("serialization",) if key in node}
        return {**node["schema"], **own}  # no factory is called to see whether it makes the same
    for key in ("serialization_alias", "serialization_exclude", "serialization_exclude_if"):
        node.pop(key, None)
    if "validation_alias" in node:
        node["serialization_alias"] = node["validation_alias"]
    if "config" in node:
        node["config"] = _writing_config(node["config"])
    if writer_of(node) == _OF_SEQUENCE:
        items = node["json_schema"].get("items_schema", {"type": "any"})
        node["serialization"] = {**node["serialization"], "schema": items}
    elif is_secret(node):
        node["serialization"] = {"type": "function-plain", "function": _sent_secret, "info_arg": True}
    elif is_plain and kind in {"set", "frozenset"}:
        node["serialization"] = {"type": "function-wrap", "function": _in_order}
    elif is_plain and checks and kind in {"model", "dataclass"}:
        node["serialization"] = {"type": "function-wrap", "function": partial(_of_class, node["cls"])}
    if kind in READ_AS:
        return {**node[READ_AS[kind]], **{key: node[key] for key in ("ref", "serialization") if key in node}}
    return node


def runs_code(node: CoreSchema) -> bool:
    """Whether validation runs code that is neither ours nor Pydantic's, which may give an object of any class. Of an
    enum that is a `_missing_` of its own, which gives a member for other values."""
    if node["type"] == "enum":
        return getattr(node["cls"]._missing_, "__func__", None) is not vars(Enum)["_missing_"].__func__
    ours = (node.get("metadata") or {}).get("ferrule") is KEEPS
    function = node.get("function")
    while isinstance(function, dict | partial):
        function = function["function"] if isinstance(function, dict) else function.func
    own = function is not None and not str(getattr(function, "__module__", "")).startswith("pydantic.")
    return (own and not ours) or any(map(node.get, ("custom_init", "post_init")))


def _of_class(declared: type, value: Any, handler: Any) -> Any:
    if not isinstance(value, declared):
        raise PydanticSerializationUnexpectedValue(f"no {declared.__name__}")
    return handler(value)


def _writing_config(config: Mapping[str, Any]) -> CoreConfig:
    """A configuration that writes times and bytes as they are read."""
    kept = {key: value for key, value in config.items() if not key.startswith("ser_json")}
    read_as = {"ser_json_bytes": config["val_json_bytes"]} if "val_json_bytes" in config else {}
    return {**kept, **read_as, "ser_json_inf_nan": "constants"}  # type: ignore[typeddict-item]


def _sent_secret(value: Any, info: Any) -> Any:
    if value is None:
        return None
    secret = unveiled(value)
    if _SENT_LEAVES in info.context and not info.context[_SENT_LEAVES]().issuperset(_leaves(from_json(dumps(secret)))):
        raise ValueError(_NOT_SENT)
    return secret


def _in_order(value: Any, handler: Any) -> Any:
    """A set has no order of its own, and its JSON is compared."""
    written = handler(value)
    return sorted(written, key=to_json) if isinstance(value, AbstractSet) else written
