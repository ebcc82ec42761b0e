"""Bytes in JSON are base64 (RFC 4648, section 4), unless the author of their type says otherwise."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from pydantic_core import PydanticCustomError, SchemaSerializer

from ferrule.values.json_text import SECRET_STARS, format_json

NESTED_SCHEMA_KEYS = frozenset(
    {"schema", "items_schema", "keys_schema", "values_schema", "extras_schema", "extras_keys_schema"}
    | {"choices", "steps", "fields", "definitions", "arguments_schema", "var_args_schema", "var_kwargs_schema"}
    | {"strict_schema", "lax_schema", "json_schema", "python_schema"}
)
"""The keys of a node of Pydantic's core schema with other nodes."""
_HAS_CONFIG = {"model", "dataclass", "typed-dict"}
_MAY_BE_BYTES = {"bytes", "any"}
_SECRET_SERIALIZERS = {("pydantic.types", "_serialize_secret"), ("pydantic.types", "_serialize_secret_field")}


def to_base64(value: Any) -> str:
    """Return bytes as base64."""
    return b64encode(value).decode()


def from_base64(value: Any) -> Any:
    """Return the bytes of a text from `to_base64`. No other text is read, so each value has one text.

    Raises:
        PydanticCustomError: The text is not such base64.
    """
    if isinstance(value, bytes | bytearray):  # from an author's validator
        return value
    try:
        if to_base64(decoded := b64decode(value)) == value:
            return decoded
    except (TypeError, ValueError):
        pass
    raise PydanticCustomError("base64", "Input should be bytes in base64 (with + and /, padded by =)")


def find_serializer_name(node: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the module and name of the function that serializes a node."""
    function = node.get("serialization", {}).get("function")
    return getattr(function, "__module__", None), getattr(function, "__name__", None)


def is_secret(node: Mapping[str, Any]) -> bool:
    """Return whether a node is a secret of Pydantic's."""
    return find_serializer_name(node) in _SECRET_SERIALIZERS


def has_own_bytes_format(node: Mapping[str, Any], inherited: bool) -> bool:
    """Return whether the author of a node chose the format of its bytes, by a model's configuration or a serializer.

    Args:
        inherited: Whether the author of the node around it did.
    """
    if node["type"] in _HAS_CONFIG:  # they do not inherit a configuration
        config, methods = node.get("config") or {}, getattr(node.get("cls"), "__pydantic_decorators__", None)
        serializers = methods is not None and methods.model_serializers
        return bool(serializers or "ser_json_bytes" in config or "val_json_bytes" in config)
    return inherited or ("serialization" in node and find_serializer_name(node)[0] != "pydantic._internal._serializers")


def add_base64_serializers(node: Any, own: bool = False, secrets: bool = False) -> Any:
    """Return a copy of a core schema that writes bytes as base64, unless their author chose a format.

    Args:
        own: Whether the author of the node around it chose a format.
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
    if kind in _HAS_CONFIG and not own:
        copy["config"] = {**(node.get("config") or {}), "ser_json_bytes": "base64"}
    if kind in _MAY_BE_BYTES and not own:
        copy["serialization"] = {"type": "function-wrap", "function": _serialize_bytes}
    elif secrets and is_secret(node):
        copy["serialization"] = {"type": "function-plain", "function": encode_bytes}
    elif "schema" in (serialization := node.get("serialization", {})):
        nested = add_base64_serializers(serialization["schema"], own, secrets)
        copy["serialization"] = {**serialization, "schema": nested}
    if kind == "bytes" and not own:
        metadata = node.get("metadata") or {}
        functions = metadata.get("pydantic_js_functions", ())
        copy["metadata"] = {**metadata, "pydantic_js_functions": [*functions, _export_base64]}
    return copy


def _serialize_bytes(value: Any, handler: Any) -> Any:
    return to_base64(value) if isinstance(value, bytes | bytearray) else handler(value)


def _export_base64(node: Any, handler: Any) -> dict[str, Any]:
    exported: dict[str, Any] = handler(node)
    for key in {"minLength", "maxLength"} & exported.keys():
        exported[key] = -(-exported[key] // 3) * 4
    exported.pop("format", None)
    return exported | {"contentEncoding": "base64"}


@lru_cache(256)
def get_base64_serializer(kind: type, secrets: bool = False) -> SchemaSerializer | None:
    """Return a serializer that writes the bytes of a Pydantic class as base64, or `None` if it is not needed.

    Args:
        secrets: Whether it writes secrets in clear.
    """
    core = getattr(kind, "__pydantic_core_schema__", None)
    core = dict(core) if isinstance(core, Mapping) else None  # this builds a schema that Pydantic deferred
    if core is None or not _has_bytes(core, secrets):
        return None
    return SchemaSerializer(add_base64_serializers(core, secrets=secrets), core.get("config"), _use_prebuilt=False)


def _has_bytes(node: Any, or_secrets: bool) -> bool:
    if isinstance(node, dict):
        is_node = "type" in node
        if is_node and (node["type"] in _MAY_BE_BYTES or (or_secrets and is_secret(node))):
            return True
        return any(
            _has_bytes(item, or_secrets) for key, item in node.items() if not is_node or key in NESTED_SCHEMA_KEYS
        )
    return isinstance(node, list | tuple) and any(_has_bytes(item, or_secrets) for item in node)


# -- Python objects as arguments ---------------------------------------------------------------------------------------


def encode_bytes(value: Any, plain: bool = True) -> Any:
    """Return Python objects as JSON data, with secrets in clear and bytes as base64.

    Args:
        plain: Whether bytes may stand outside an object of a Pydantic class.

    Raises:
        ValueError: Bytes stand at a forbidden place.
    """
    if isinstance(value, bytes | bytearray):
        if value and not plain:
            raise ValueError("bytes without a Pydantic type around them have no JSON form: give a text, such as base64")
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


def format_arguments(value: object) -> str:
    """Return the JSON text of Python objects as arguments, with secrets in clear.

    Raises:
        ValueError: A part of the value has no JSON form.
    """
    text = format_json(value)
    return format_arguments_with_bytes(value) if SECRET_STARS in text else text


def format_arguments_with_bytes(value: object, plain: bool = True) -> str:
    """Return the JSON text of Python objects as arguments, with secrets in clear and bytes as base64.

    Args:
        plain: Whether bytes may stand outside an object of a Pydantic class.

    Raises:
        ValueError: A part of the value has no JSON form.
    """
    try:
        return format_json(encode_bytes(value, plain))
    except RecursionError:
        raise ValueError("no JSON form: it nests too deep") from None
