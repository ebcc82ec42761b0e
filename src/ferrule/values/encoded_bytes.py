"""Bytes in JSON: base64 (RFC 4648, section 4), unless their model says what else."""

from __future__ import annotations

from base64 import b64encode
from functools import lru_cache
from typing import Any

from pydantic_core import SchemaSerializer

NESTED = frozenset(
    {"schema", "items_schema", "keys_schema", "values_schema", "extras_schema", "extras_keys_schema"}
    | {"choices", "steps", "fields", "definitions", "arguments_schema", "var_args_schema", "var_kwargs_schema"}
    | {"strict_schema", "lax_schema", "json_schema", "python_schema"}
)
"""Under which keys of a node of Pydantic's core schema others are."""
_HAS_CONFIG = {"model", "dataclass", "typed-dict"}
_MAY_BE_BYTES = {"bytes", "any"}


def as_base64(value: Any) -> str:
    """The text of bytes."""
    return b64encode(value).decode()


def with_base64(node: Any, own: bool = False) -> Any:
    """A copy of a core schema that writes bytes as base64, where no model round them says how, by `ser_json_bytes` or
    `val_json_bytes`, and no serializer writes them."""
    if isinstance(node, list | tuple):
        return type(node)(with_base64(item, own) for item in node)
    if not isinstance(node, dict):
        return node
    kind, config = node.get("type"), node.get("config") or {}
    if not isinstance(kind, str):
        return {key: with_base64(item, own) for key, item in node.items()}
    if kind in _HAS_CONFIG:  # which have that of nothing round them
        own = "ser_json_bytes" in config or "val_json_bytes" in config
    copy = {key: with_base64(item, own) if key in NESTED else item for key, item in node.items()}
    if kind in _HAS_CONFIG and not own:  # for what nothing is said of
        copy["config"] = {**config, "ser_json_bytes": "base64"}
    if kind in _MAY_BE_BYTES and not own and "serialization" not in node:
        copy["serialization"] = {"type": "function-wrap", "function": _written_bytes}
    if kind == "bytes" and not own:
        metadata = node.get("metadata") or {}
        functions = metadata.get("pydantic_js_functions", ())
        copy["metadata"] = {**metadata, "pydantic_js_functions": [*functions, _exported]}
    return copy


def _written_bytes(value: Any, handler: Any) -> Any:
    return as_base64(value) if isinstance(value, bytes | bytearray) else handler(value)


def _exported(node: Any, handler: Any) -> dict[str, Any]:
    exported: dict[str, Any] = handler(node)
    for key in {"minLength", "maxLength"} & exported.keys():
        exported[key] = -(-exported[key] // 3) * 4
    exported.pop("format", None)
    return exported | {"contentEncoding": "base64"}


@lru_cache(256)
def serializer_of(kind: type) -> SchemaSerializer | None:
    """What writes objects of a class that is Pydantic's; `None` where its own serializer does."""
    core = kind.__dict__.get("__pydantic_core_schema__")
    if not isinstance(core, dict) or not _has_bytes(core):
        return None
    return SchemaSerializer(with_base64(core), core.get("config"), _use_prebuilt=False)


def _has_bytes(node: Any) -> bool:
    if isinstance(node, dict):
        below: Any = node.values() if "type" not in node else [item for key, item in node.items() if key in NESTED]
        return node.get("type") in _MAY_BE_BYTES or any(map(_has_bytes, below))
    return isinstance(node, list | tuple) and any(map(_has_bytes, node))
