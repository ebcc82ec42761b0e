"""Make Pydantic's core schema closed: strict at every depth, and without undeclared keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

from pydantic_core import PydanticCustomError

from ferrule.errors import DefinitionError
from ferrule.values.json_text import format_finite_json, is_same_json

CoreSchema = dict[str, Any]

NESTED_SCHEMA_KEYS = frozenset(
    {"schema", "items_schema", "keys_schema", "values_schema", "extras_schema", "extras_keys_schema"}
    | {"choices", "steps", "fields", "definitions", "arguments_schema", "var_args_schema", "var_kwargs_schema"}
    | {"strict_schema", "lax_schema", "json_schema", "python_schema"}
)
"""The keys of a node of Pydantic's core schema with other nodes."""
CHOICES = "ferrule_choices"
"""The key of the allowed JSON values in the context of an error."""
UNCHANGED = object()
"""Metadata of our own validators: they refuse values, or find an enum's member, and change nothing else."""
CANONICAL_TIME = object()
"""Metadata of times: they stay unchanged if they are spelled as Pydantic writes them."""
EMPTY_FACTORIES = (list, tuple, set, frozenset, dict)
"""Factories that make the same default at each attempt."""
STRICT_BRANCHES = {"json-or-python": "json_schema", "lax-or-strict": "strict_schema"}
"""The part of a node that validates strict JSON."""
_CLOSABLE = frozenset({"model-fields", "typed-dict", "dataclass-args"})
_CONFIGURED = {"model", "dataclass", "typed-dict"}
_UNIONS = {"union", "tagged-union"}
_WITH_PYTHON_INPUT = {"function-before", "function-wrap"}
_WRITTEN_AS_OTHERS = {"set", "frozenset", "tuple", "decimal", "uuid", "bytes", "timedelta", "url", "multi-host-url"}
"""Types that JSON writes as a list or a string. Strict Python input does not accept these for them."""
_CONTAINERS = {"list", "tuple", "set", "frozenset", "dict"}
_SCALARS_OF_JSON = {"int", "str", "bool", "none", "literal"}
_TIME_PATTERNS = {
    "datetime": (":", "a date and time, such as 2026-03-01T12:30:00Z"),
    "date": ("^[0-9]{4}-.{5}$", "a date in the format YYYY-MM-DD"),
    "time": (":", "a time, such as 12:30:00"),
}
"""A pattern that no time stamp has, and what is expected in words."""
_UNCHANGED_TEXT = {
    "type": "str",
    "strict": True,
    "regex_engine": "rust-regex",
    "min_length": 0,
    "max_length": 100,
} | dict.fromkeys(("strip_whitespace", "to_lower", "to_upper", "coerce_numbers_to_str"), False)
"""A string that stays as it is, whatever the model around it does with strings."""
_TIME = (
    r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.([0-9]{5}[1-9]|[0-9]{4}[1-9]0|[0-9]{3}[1-9]00|[0-9]{2}[1-9]000|[0-9][1-9]0000|[1-9]00000))?"
    r"(Z|[+-](0[1-9]|[1-9][0-9]):[0-9]{2}|[+-]00:(0[1-9]|[1-9][0-9]))?$"
)
_CANONICAL_TIMES = {"datetime": rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T{_TIME}", "time": rf"^{_TIME}"}
"""The spelling that Pydantic writes. A date has only one."""


def close_schema(schema: CoreSchema) -> CoreSchema:
    """Return a copy with strict nodes at every depth. Objects refuse extra keys, unless they allow them explicitly.

    It is stricter than Pydantic's strict JSON: numbers are finite, digits are no date, `true` is not 1, a field has one
    name, and an iterable is read at once.

    Raises:
        DefinitionError: An alias is no plain name, or extra keys cannot be checked.
    """
    return _close_node(schema, None, False)  # type: ignore[no-any-return]


def _close_node(node: object, extra: str | None, python_input: bool) -> Any:
    """Return the closed copy of a node.

    Args:
        node: A node, or a list or dict of nodes.
        extra: The handling of extra keys in the model around the node.
        python_input: Whether an author's validator may have made Python values of the JSON before.
    """
    if isinstance(node, list | tuple):
        return type(node)(_close_node(item, extra, python_input) for item in node)
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    if not isinstance(kind, str):
        return {key: _close_node(item, extra, python_input) for key, item in node.items()}
    config = node.get("config") or {}
    if kind in _CONFIGURED:
        has_own_config = kind == "model" or getattr(node.get("cls"), "__pydantic_config__", None)
        extra = config.get("extra_fields_behavior") if has_own_config else None  # else the model around it decides
    inner_input = python_input or kind in _WITH_PYTHON_INPUT
    copy = {
        key: _close_node(value, extra, inner_input) if key in NESTED_SCHEMA_KEYS else value
        for key, value in node.items()
    }
    if config or kind in _CONFIGURED:  # these do not pass on the configuration from outside
        by_name = {"validate_by_name": False, "validate_by_alias": True} if config.get("validate_by_name") else {}
        copy["config"] = {**config, "strict": True, **by_name}
    if "strict" in copy or kind in _UNIONS:  # a strict union would make everything below it strict
        copy["strict"] = kind not in _UNIONS
    if python_input and kind in _WRITTEN_AS_OTHERS:
        copy["strict"] = False
    if kind in _CLOSABLE or kind == "arguments":
        _assign_wire_names(copy)
    if kind in _CLOSABLE:
        _close_extra_keys(copy, extra)
    replace = _REPLACEMENTS.get(kind)
    return copy if replace is None else replace(copy)


def _close_extra_keys(node: CoreSchema, extra: str | None) -> None:
    node["extra_behavior"] = extra or ("allow" if "extras_schema" in node else "forbid")
    if extra == "allow" and node["type"] == "dataclass-args":
        raise DefinitionError("a dataclass with extra='allow' keeps what nobody checks; make it a model")
    if extra == "allow":
        node.setdefault("extras_schema", _require_finite({"type": "any"}))
    if node["extra_behavior"] == "allow":
        _refuse_aliases(node)


def _assign_wire_names(node: CoreSchema) -> None:
    """Give each field one wire name: its name in JSON. Guards would not see another one."""
    seen: set[str] = set()
    for name, field in _list_fields(node):
        key = "alias" if "alias" in field else "validation_alias"
        wire = field.get(key, name)
        if isinstance(wire, list):
            paths = wire if isinstance(wire[0], list) else [wire]
            plain = [path[0] for path in paths if len(path) == 1]
            if not plain:
                raise DefinitionError(f"the alias path {wire!r} is no name that a model can fill; use a plain alias")
            field[key] = wire = plain[0]
        if not wire:
            raise DefinitionError(f"the alias of {name!r} is empty, and no name that a model can fill")
        if wire in seen:
            raise DefinitionError(f"two fields have the name {wire!r} for a model; give each a name of its own")
        seen.add(wire)


def _refuse_aliases(node: CoreSchema) -> None:
    """Refuse aliases beside extra keys: an extra key with the field's other name would stand for the field."""
    for name, field in _list_fields(node):
        wire = field.get("validation_alias", name)
        if not name == wire == field.get("serialization_alias", wire):
            raise DefinitionError(f"{name!r} has an alias beside further keys; give it the alias as its name")


def _list_fields(node: CoreSchema) -> list[tuple[str, CoreSchema]]:
    """Return the fields of a node with their Python names."""
    fields: Any = node.get("fields", node.get("arguments_schema"))
    return list(fields.items()) if isinstance(fields, dict) else [(field["name"], field) for field in fields]


def wire_names(node: CoreSchema) -> set[str]:
    """Return the names by which a model fills the fields of a closed node."""
    return {field.get("validation_alias") or name for name, field in _list_fields(node)}


def _run_before(node: CoreSchema, function: Callable[[Any], Any]) -> CoreSchema:
    """Return a node with `function` before `node`. References to `node` lead to the new one."""
    ref = {"ref": node.pop("ref")} if "ref" in node else {}
    own = {"type": "function-before", "function": {"type": "no-info", "function": function}, "schema": node}
    return {**ref, **own, "metadata": {"ferrule": UNCHANGED}}


def _require_finite(node: CoreSchema) -> CoreSchema:
    """Refuse NaN and infinities, which Pydantic accepts for any JSON."""
    return _run_before(node, _check_finite)


def _check_finite(value: object) -> Any:
    if isinstance(value, dict | list | float):
        try:
            format_finite_json(value)
        except ValueError:
            raise PydanticCustomError("finite_number", "Input should hold finite numbers only") from None
    return value


def _refuse_timestamps(node: CoreSchema) -> CoreSchema:
    """Refuse digits, which Pydantic takes for a time stamp.

    The second step reads the checked string in lax mode, because it is no JSON any more.
    """
    ref = {"ref": node.pop("ref")} if "ref" in node else {}
    pattern, expected = _TIME_PATTERNS[node["type"]]
    text = {
        "type": "custom-error",
        "schema": {**_UNCHANGED_TEXT, "pattern": pattern},
        "custom_error_type": f"{node['type']}_written",
        "custom_error_message": f"Input should be {expected}",
    }
    metadata = _export_metadata(node) | {"ferrule": CANONICAL_TIME if node["type"] in _CANONICAL_TIMES else UNCHANGED}
    return {**ref, "type": "chain", "steps": [text, {**node, "strict": False}], "metadata": metadata}


def _export_metadata(node: CoreSchema) -> CoreSchema:
    """Return the metadata for the replacement of `node`. The JSON Schema of `node` is exported for it."""
    metadata = dict(node.pop("metadata", {}))
    functions = metadata.get("pydantic_js_functions", ())
    return {**metadata, "pydantic_js_functions": [lambda _, handler: handler(node), *functions]}


def has_times(nodes: Iterable[CoreSchema]) -> bool:
    """Return whether `nodes` have dates with a time, or times: these have several spellings."""
    return any((node.get("metadata") or {}).get("ferrule") is CANONICAL_TIME for node in nodes)


def require_canonical_times(node: CoreSchema) -> CoreSchema:
    """Return a copy with times in Pydantic's own spelling only."""
    return map_nodes(node, _require_canonical_time)  # type: ignore[no-any-return]


def _require_canonical_time(node: CoreSchema) -> CoreSchema:
    if (node.get("metadata") or {}).get("ferrule") is CANONICAL_TIME:
        moment = node["steps"][1]
        node["steps"] = [{**_UNCHANGED_TEXT, "pattern": _CANONICAL_TIMES[moment["type"]]}, moment]
    return node


def _allow_null_default(node: CoreSchema) -> CoreSchema:
    """Accept null for a default of None, whatever its type is."""
    inner = node["schema"]
    if node.get("default", node) is not None or inner["type"] in {"nullable", "any", "none"}:
        return node
    return {**node, "schema": {"type": "nullable", "schema": inner, "metadata": _export_metadata(inner)}}


def _require_exact_value(node: CoreSchema, allowed: list[Any]) -> CoreSchema:
    """Refuse `true` for 1 and `false` for 0, which Python calls equal; accept the value of an enum's member.

    Pydantic's strict JSON mode would require the member itself.
    """
    values = [member.value if isinstance(member, Enum) else member for member in allowed]
    if not any(isinstance(member, Enum | int | float) for member in allowed):
        return node
    context = {"expected": " or ".join(map(repr, values)), CHOICES: values}

    def find_choice(value: object) -> Any:
        for member, known in zip(allowed, values, strict=True):
            if is_same_json(value, known):
                return member
        if isinstance(value, int | float | str):
            raise PydanticCustomError("literal_error", "Input should be {expected}", context)
        return value

    return _run_before(node, find_choice)


_REPLACEMENTS: dict[str, Callable[[CoreSchema], CoreSchema]] = {
    "float": lambda node: {**node, "allow_inf_nan": False},
    "decimal": lambda node: {**node, "allow_inf_nan": False},
    "any": _require_finite,
    "function-plain": _require_finite,
    "generator": lambda node: {**node, "type": "list"},  # checked before anything runs, not while it is read
    "literal": lambda node: _require_exact_value(node, node["expected"]),
    "enum": lambda node: _require_exact_value(node, [member.value for member in node["members"]]),
    "date": _refuse_timestamps,
    "datetime": _refuse_timestamps,
    "time": _refuse_timestamps,
    "default": _allow_null_default,
}


def map_nodes(node: Any, change: Callable[[CoreSchema], CoreSchema]) -> Any:
    """Return a copy with each node replaced by `change(copy of the node)`, the inner ones first."""
    if isinstance(node, list | tuple):
        return type(node)(map_nodes(item, change) for item in node)
    if not isinstance(node, dict):
        return node
    is_node = isinstance(node.get("type"), str)
    inner = NESTED_SCHEMA_KEYS if is_node else node.keys()
    copy = {key: map_nodes(value, change) if key in inner else value for key, value in node.items()}
    return change(copy) if is_node else copy


def iter_children(node: CoreSchema) -> Iterator[CoreSchema]:
    """Yield the nodes directly below a node."""
    waiting = [value for key, value in node.items() if key in NESTED_SCHEMA_KEYS]
    while waiting:
        child = waiting.pop()
        if isinstance(child, dict) and isinstance(child.get("type"), str):
            yield child
        elif isinstance(child, dict | list | tuple):
            waiting.extend(child.values() if isinstance(child, dict) else child)


def collect_nodes(node: CoreSchema) -> list[CoreSchema]:
    """Return a node and all nodes below it."""
    found = [node]
    for one in found:  # the list grows meanwhile
        found.extend(iter_children(one))
    return found


def set_fail_fast(nodes: Iterable[CoreSchema], stop: bool) -> bool:
    """Make containers stop at their first wrong item, or not. Return whether `nodes` have any containers."""
    containers = [node for node in nodes if node["type"] in _CONTAINERS]
    for node in containers:
        node["fail_fast"] = stop
    return bool(containers)


def find_root_fields(schema: CoreSchema) -> dict[str, CoreSchema]:
    """Return the fields of a typed dict or model by name, or none if it has no fields."""
    by_ref = {node.get("ref"): node for node in schema.get("definitions", ())}
    while "fields" not in schema:
        if "schema_ref" in schema:
            schema = by_ref[schema["schema_ref"]]
        elif "schema" in schema:
            schema = schema["schema"]
        else:
            return {}
    return schema["fields"]  # type: ignore[no-any-return]


def is_own_json(schema: CoreSchema) -> bool:
    """Return whether each validated value is its own JSON, so that a guard can read it without a dump."""
    kind = schema.get("type")
    if kind in {"nullable", "default"}:
        return "default_factory" not in schema and is_own_json(schema["schema"])
    if kind == "literal":
        return not any(isinstance(value, Enum) for value in schema["expected"])
    return kind in _SCALARS_OF_JSON


def make_typed_dict(fields: Mapping[str, CoreSchema], extras: CoreSchema | None) -> CoreSchema:
    """Return a core schema for a dict of exactly the given keyword arguments."""
    core: CoreSchema = {"type": "typed-dict", "fields": dict(fields), "extra_behavior": "forbid"}
    core["config"] = {"strict": True}
    if extras is not None:
        core |= {"extra_behavior": "allow", "extras_schema": extras}
        _refuse_aliases(core)
    return core
