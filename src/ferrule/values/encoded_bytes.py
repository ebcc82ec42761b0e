"""Bytes in JSON: base64 (RFC 4648, section 4), read and written, unless their author says what else."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from pydantic_core import PydanticCustomError, SchemaSerializer

from ferrule.values.json_text import format_json

NESTED_SCHEMA_KEYS = frozenset(
    {"schema", "items_schema", "keys_schema", "values_schema", "extras_schema", "extras_keys_schema"}
    | {"choices", "steps", "fields", "definitions", "arguments_schema", "var_args_schema", "var_kwargs_schema"}
    | {"strict_schema", "lax_schema", "json_schema", "python_schema"}
)
"""Under which keys of a node of Pydantic's core schema others are."""
_HAS_CONFIG = {"model", "dataclass", "typed-dict"}
_MAY_BE_BYTES = {"bytes", "any"}
_OF_SECRETS = {("pydantic.types", "_serialize_secret"), ("pydantic.types", "_serialize_secret_field")}


def to_base64(value: Any) -> str:
    """The text of bytes."""
    return b64encode(value).decode()


def from_base64(value: Any) -> Any:
    """The bytes of a text as `to_base64` writes it, so that no two texts are the same bytes.

    Raises:
        PydanticCustomError: where it is none.
    """
    if isinstance(value, bytes | bytearray):  # of an author's validator
        return value
    try:
        if to_base64(made := b64decode(value)) == value:
            return made
    except (TypeError, ValueError):
        pass
    raise PydanticCustomError("base64", "Input should be bytes in base64 (with + and /, padded by =)")


def find_serializer_name(node: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The module and name of the function that writes the value of a node."""
    function = node.get("serialization", {}).get("function")
    return getattr(function, "__module__", None), getattr(function, "__name__", None)


def is_secret(node: Mapping[str, Any]) -> bool:
    """Whether it is a secret of Pydantic's."""
    return find_serializer_name(node) in _OF_SECRETS


def has_own_bytes_format(node: Mapping[str, Any], own: bool) -> bool:
    """Whether the author of a node says how bytes in it are written: by the `ser_json_bytes` or `val_json_bytes` of a
    model, or by a serializer; `own` is what holds round it."""
    if node["type"] in _HAS_CONFIG:  # these have no configuration around them
        config, methods = node.get("config") or {}, getattr(node.get("cls"), "__pydantic_decorators__", None)
        serializers = methods is not None and methods.model_serializers
        return bool(serializers or "ser_json_bytes" in config or "val_json_bytes" in config)
    return own or ("serialization" in node and find_serializer_name(node)[0] != "pydantic._internal._serializers")


def add_base64_serializers(node: Any, own: bool = False, secrets: bool = False) -> Any:
    """A copy of a core schema that writes bytes as base64, where their author does not say how.

    Args:
        secrets: Whether secrets are written in clear.
    """
    if isinstance(node, list | tuple):
        return type(node)(add_base64_serializers(item, own, secrets) for item in node)
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    if not isinstance(kind, str):
        return {key: add_base64_serializers(item, own, secrets) for key, item in node.items()}
    own = has_own_bytes_format(node, own)
    copy = {
        key: add_base64_serializers(item, own, secrets) if key in NESTED_SCHEMA_KEYS else item
        for key, item in node.items()
    }
    if kind in _HAS_CONFIG and not own:  # for what nothing is said of
        copy["config"] = {**(node.get("config") or {}), "ser_json_bytes": "base64"}
    if kind in _MAY_BE_BYTES and not own:
        copy["serialization"] = {"type": "function-wrap", "function": _serialize_bytes}
    elif secrets and is_secret(node):
        copy["serialization"] = {"type": "function-plain", "function": encode_bytes}
    elif "schema" in (writing := node.get("serialization", {})):
        copy["serialization"] = {**writing, "schema": add_base64_serializers(writing["schema"], own, secrets)}
    if kind == "bytes" and not own:
        metadata = node.get("metadata") or {}
        functions = metadata.get("pydantic_js_functions", ())
        copy["metadata"] = {**metadata, "pydantic_js_functions": [*functions, _export_schema]}
    return copy


def _serialize_bytes(value: Any, handler: Any) -> Any:
    return to_base64(value) if isinstance(value, bytes | bytearray) else handler(value)


def _export_schema(node: Any, handler: Any) -> dict[str, Any]:
    exported: dict[str, Any] = handler(node)
    for key in {"minLength", "maxLength"} & exported.keys():
        exported[key] = -(-exported[key] // 3) * 4
    exported.pop("format", None)
    return exported | {"contentEncoding": "base64"}


@lru_cache(256)
def get_base64_serializer(kind: type, secrets: bool = False) -> SchemaSerializer | None:
    """Return a serializer that writes the bytes of a Pydantic class in base64, or `None` if it has no bytes.

    Args:
        secrets: Whether it writes secrets in clear.
    """
    core = getattr(kind, "__pydantic_core_schema__", None)
    core = dict(core) if isinstance(core, Mapping) else None  # one that is built late is built here
    if core is None or not _has_bytes(core):
        return None
    return SchemaSerializer(add_base64_serializers(core, secrets=secrets), core.get("config"), _use_prebuilt=False)


def _has_bytes(node: Any) -> bool:
    if isinstance(node, dict):
        below: Any = (
            node.values() if "type" not in node else [item for key, item in node.items() if key in NESTED_SCHEMA_KEYS]
        )
        return node.get("type") in _MAY_BE_BYTES or any(map(_has_bytes, below))
    return isinstance(node, list | tuple) and any(map(_has_bytes, node))


# -- Python objects that are given as arguments ------------------------------------------------------------------------


def encode_bytes(value: Any, plain: bool = True) -> Any:
    """Return a value as JSON data, with secrets in clear, and bytes in base64 unless their author says otherwise.

    Args:
        plain: Whether bytes may stand outside of an object of a Pydantic class.

    Raises:
        ValueError: Bytes stand where they may not.
    """
    if isinstance(value, bytes | bytearray):
        if value and not plain:
            raise ValueError(
                "bytes stand where nobody can tell how they are read: give the text, for instance in base64"
            )
        return to_base64(value)
    if isinstance(value, Enum):
        return encode_bytes(value.value, plain)
    if isinstance(value, Mapping):
        return {
            encode_bytes(key, plain) if isinstance(key, bytes) else key: encode_bytes(item, plain)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset | deque | Generator):
        return [encode_bytes(item, plain) for item in value]
    if hasattr(value, "get_secret_value"):
        secret = value.get_secret_value()
        return secret.decode() if isinstance(secret, bytes) else encode_bytes(secret, plain)
    kind: Any = type(value)
    if hasattr(kind, "__pydantic_serializer__"):
        serializer = get_base64_serializer(kind, True)
        return value if serializer is None else serializer.to_python(value, mode="json", by_alias=True)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode_bytes(getattr(value, field.name), plain) for field in fields(value)}
    return value


def format_json_with_base64(value: Any, plain: bool = True) -> str:
    """JSON text of arguments, as `encode_bytes` has them.

    Raises:
        ValueError: where something in it has no JSON form.
    """
    try:
        return format_json(encode_bytes(value, plain))
    except RecursionError:
        raise ValueError("no JSON form: it nests too deep") from None
