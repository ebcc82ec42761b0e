"""How validated values are written as JSON, and which parameters are judged by that.

exact     what was sent is what is judged: every node of the closed core schema is known to keep what it reads
pydantic  Pydantic's own types: what is judged is their dump, and the values at hand run
author    code of an author's may have made the values: what is judged is their dump, and they are made again of that
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from functools import partial
from pathlib import PurePath
from types import FunctionType
from typing import Any
from uuid import UUID

from pydantic_core import (
    CoreConfig,
    PydanticSerializationUnexpectedValue,
    SchemaSerializer,
    from_json,
    to_json,
)

from ferrule.arguments.closing import (
    KEEPS,
    MAKES_EMPTY,
    NESTED,
    SPELLED,
    CoreSchema,
    all_nodes,
    nodes_below,
    root_fields,
    spelled,
)
from ferrule.values.json_text import SECRET_STARS, dumps, unveiled


class NoJudgedForm(Exception):
    """What guards would be shown of a value cannot be made, or does not say what would run; the message names the
    parameter and the way out."""


class MadeBy(IntEnum):
    """Who made the values, the freest last."""

    NOBODY = 0
    PYDANTIC = 1
    AUTHOR = 2


_CONSTANT = {str, bool, int, float, complex, bytes, type(None), date, time, datetime, timedelta, UUID, Decimal}
_LEAVES = frozenset({"any", "none", "bool", "int", "float", "literal"})
_HOLDING = frozenset(
    {"nullable", "definitions", "definition-ref", "list", "tuple", "union", "tagged-union"}
    | {"model", "model-fields", "model-field", "dataclass", "dataclass-args", "dataclass-field"}
    | {"typed-dict", "typed-dict-field", "json-or-python", "lax-or-strict"}
)
_PYDANTIC = frozenset(
    {"bytes", "date", "time", "datetime", "timedelta", "decimal", "fraction", "uuid", "url", "multi-host-url"}
    | {"set", "frozenset", "deque", "chain", "custom-error", "named-tuple", "named-tuple-field"}
)
"""Kinds of which a property test holds that `validate(dump(value))` is the value."""
_TEXT_KEYS = frozenset({"type", "ref", "metadata", "strict", "pattern", "regex_engine"}) | {
    *("min_length", "max_length", "ascii_only")
}
"""What may be said of a string that is kept as it is."""
_REWRITING = ("str_strip_whitespace", "str_to_lower", "str_to_upper", "coerce_numbers_to_str")
_READ_AS = {"json-or-python": "json_schema", "lax-or-strict": "strict_schema"}
"""Which part of a node validates strict JSON."""
_SECRET_WRITERS = frozenset({"_serialize_secret", "_serialize_secret_field"})
_KNOWN_FUNCTIONS = _SECRET_WRITERS | {
    *("path_validator", "ser_path", "validate_file", "validate_directory", "validate_new", "validate_socket"),
    *("ser_ip", "wrap_val", "serialize_url", "SecretStr", "SecretBytes", "serialize_sequence_via_list"),
}
"""Pydantic's own, of which a property test holds what it holds of kinds."""
_PACKAGES = ("pydantic", "pathlib", "os", "ipaddress", "typing", "builtins")
"""Of the classes that these go round."""
_WAY_OUT = "give the type a PlainSerializer whose JSON its validator reads"


def made_by(node: CoreSchema, config: Mapping[str, object] | None = None) -> MadeBy:
    """Who makes the value of a node. What it refers to is looked at where it is defined, in the same core."""
    config = {**(config or {}), **own} if (own := node.get("config")) else config or {}
    kind = node["type"]
    if kind == "chain" and (node.get("metadata") or {}).get("ferrule") in (KEEPS, SPELLED):
        return MadeBy.NOBODY if _of_node(node["steps"][-1], config) is MadeBy.PYDANTIC else MadeBy.AUTHOR
    inner = [node[_READ_AS[kind]]] if kind in _READ_AS else nodes_below(node)
    found = max((_of_node(node, config), *(made_by(below, config) for below in inner)))
    if kind in {"union", "tagged-union"} and (found is MadeBy.PYDANTIC or spelled(all_nodes(node))):
        return MadeBy.AUTHOR  # the dump of one alternative may be read as another
    return found


def _of_node(node: CoreSchema, config: Mapping[str, object]) -> MadeBy:
    """Who makes the value of a node, apart from those in it."""
    kind, written = node["type"], node.get("serialization")
    if (node.get("metadata") or {}).get("ferrule") is KEEPS:
        return MadeBy.NOBODY
    if not _is_pydantics(node.get("function")) or not _is_pydantics(written):
        return MadeBy.AUTHOR
    if kind == "default":
        return _of_default(node)
    if kind in {"model", "dataclass"} and (node.get("custom_init") or node.get("post_init")):
        return MadeBy.AUTHOR
    if kind == "enum":
        plain = all(isinstance(member.value, str | int | float | None) for member in node["members"])
        return MadeBy.NOBODY if plain and _has_no_missing(node["cls"]) else MadeBy.AUTHOR
    if kind == "dict":  # of numbers, 1 and 01 are one key
        return MadeBy.AUTHOR if node.get("keys_schema", {"type": "str"})["type"] != "str" else MadeBy.NOBODY
    if kind == "str":
        kept = not any(node[key] for key in node.keys() - _TEXT_KEYS) and not any(map(config.get, _REWRITING))
        return MadeBy.NOBODY if kept else MadeBy.PYDANTIC
    if kind == "bytes" and config.get("val_json_bytes", "utf8") == "utf8":
        return MadeBy.NOBODY
    if kind in _LEAVES | _HOLDING:
        return MadeBy.PYDANTIC if node.get("extra_behavior") == "ignore" else MadeBy.NOBODY
    known = kind in _PYDANTIC or kind.startswith("function-")
    return MadeBy.PYDANTIC if known else MadeBy.AUTHOR


def _of_default(node: CoreSchema) -> MadeBy:
    default = node.get("default")
    plain = isinstance(default, str | int | float | bytes | Enum | None) or (
        (type(default) in MAKES_EMPTY and not default) or (is_constant(default) and node["schema"]["type"] != "any")
    )
    if not plain or node.get("default_factory", list) not in MAKES_EMPTY:
        return MadeBy.AUTHOR
    return MadeBy.NOBODY if node.get("on_error", "raise") == "raise" else MadeBy.PYDANTIC


def is_constant(value: object) -> bool:
    """Whether a handler cannot change it, so that all calls may have the same one."""
    if type(value) in (tuple, frozenset):
        return all(map(is_constant, value))  # type: ignore[call-overload]
    return type(value) in _CONSTANT or isinstance(value, Enum | PurePath)


def _is_pydantics(given: Any) -> bool:
    """Whether a function of a core schema is one of Pydantic's own that are known, and goes round no other's, or there
    is none; a serialization without a function is not."""
    if given is None:  # mostly
        return True
    while isinstance(given, Mapping):
        given = given.get("function", given.get("type"))
    if isinstance(given, type) and given.__module__ == "ipaddress":
        return True
    inner = [cell.cell_contents for cell in getattr(given, "__closure__", None) or ()]
    own = all(_is_from(one, *_PACKAGES) for one in inner if isinstance(one, type | FunctionType))
    return getattr(given, "__name__", None) in _KNOWN_FUNCTIONS and _is_from(given, "pydantic") and own


def _is_from(given: Any, *packages: str) -> bool:
    return str(given.__module__).partition(".")[0] in packages


def _has_no_missing(enum: type[Enum]) -> bool:
    """Whether only the values of its members give a member."""
    return getattr(enum._missing_, "__func__", None) is Enum._missing_.__func__  # type: ignore[attr-defined]


# -- the dump ----------------------------------------------------------------------------------------------------------


class Dump:
    """Writes the validated values of one closed core schema, by the names that a model uses."""

    def __init__(self, core: CoreSchema, made: MadeBy) -> None:
        self._core = core
        self._rewritten = made is MadeBy.AUTHOR
        written = _writing(core, checks=self._rewritten)
        self._serializer = SchemaSerializer(written, _writing_config({}), _use_prebuilt=False)

    def text(self, values: Any, sent: str | None, *, checked: bool = True, defaults: bool = True) -> str:
        """The JSON text of validated values; an author's is written from what is read of it, each key once.

        Args:
            sent: What they were read from. A secret that does not stand in it was made here, and is not written; for
                `None` all are.
            checked: Whether each value has to be of its declared type.
            defaults: Whether what is as a default that is declared is written too.

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
            context={} if sent is None else {_SENT_TEXT: _Sent(sent)},
            **options,
        )
        text = (to_json(from_json(written, allow_inf_nan=False)) if self._rewritten else written).decode()
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


def first_unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first key by which two objects differ."""
    return next((key for key in {**one, **other} if key not in one or one[key] != other.get(key)), None)


_SENT_TEXT = "ferrule"
"""In the serializer's context, which an author's serializers may read, too."""
_NOT_SENT = "a secret that was not sent as it is"


class _Sent:
    """The texts and numbers that were sent, read when a secret is written."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._leaves: frozenset[str] | None = None

    def hold(self, secret: object) -> bool:
        if self._leaves is None:
            self._leaves = frozenset(_leaves(from_json(self._text)))
        return self._leaves.issuperset(_leaves(from_json(dumps(secret))))


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
        yield from value if isinstance(value, dict) else ()
    else:
        yield value if isinstance(value, str) else dumps(value)


def _writing(node: Any, *, checks: bool) -> Any:
    """A copy that writes fields under the names that a model uses, none left out; secrets as they were sent; and sets
    in one order.

    Args:
        checks: Whether objects may be of other classes than are declared: Pydantic takes any that has attributes.
    """
    if isinstance(node, list | tuple):
        return type(node)(_writing(item, checks=checks) for item in node)
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    if not isinstance(kind, str):
        return {key: _writing(value, checks=checks) for key, value in node.items()}
    if kind == "default" and node.get("default_factory", list) not in MAKES_EMPTY:
        return _writing(node["schema"], checks=checks)  # a factory is not called to see whether it makes the same
    if kind in _READ_AS:
        read = node[_READ_AS[kind]]
        kept = {key: node[key] for key in ("ref", "serialization") if key in node}
        return _writing({**read, **kept}, checks=checks)
    copy = {key: _writing(value, checks=checks) if key in NESTED else value for key, value in node.items()}
    for key in ("serialization_alias", "serialization_exclude", "serialization_exclude_if"):
        copy.pop(key, None)
    if "validation_alias" in node:
        copy["serialization_alias"] = node["validation_alias"]
    if "config" in node:
        copy["config"] = _writing_config(node["config"])
    function = node.get("serialization", {}).get("function")
    if getattr(function, "__module__", None) == "pydantic.types" and function.__name__ in _SECRET_WRITERS:
        copy["serialization"] = {"type": "function-plain", "function": _sent_secret, "info_arg": True}
    elif kind in {"set", "frozenset"} and "serialization" not in node:
        copy["serialization"] = {"type": "function-wrap", "function": _in_order}
    elif checks and kind in {"model", "dataclass"} and "serialization" not in node:
        copy["serialization"] = {"type": "function-wrap", "function": partial(_of_class, node["cls"])}
    return copy


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
    if _SENT_TEXT in info.context and not info.context[_SENT_TEXT].hold(secret):
        raise ValueError(_NOT_SENT)
    return secret


def _in_order(value: Any, handler: Any) -> Any:
    """A set has no order of its own, and its JSON is compared."""
    written = handler(value)
    return sorted(written, key=to_json) if isinstance(value, AbstractSet) else written
