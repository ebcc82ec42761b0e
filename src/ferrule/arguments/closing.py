"""Pydantic's core schema made strict and closed: what a tool takes, at every depth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

from pydantic_core import PydanticCustomError

from ferrule.errors import DefinitionError
from ferrule.values.encoded_bytes import NESTED, from_base64, says_itself, with_base64
from ferrule.values.frozen import JsonObject
from ferrule.values.json_text import check_finite, same

CoreSchema = dict[str, Any]

CHOICES = "ferrule_choices"
"""Under which key the context of an error has the JSON values that may stand at its place."""
KEEPS = object()
"""In the metadata of our own validators: they refuse, or find a member, and change nothing else."""
SPELLED = object()
"""In the metadata of what keeps the text that it reads where that is spelled as Pydantic writes it."""
MAKES_EMPTY = (list, tuple, set, frozenset, dict)
"""What makes the same default each time; another factory may make another one at the next attempt."""
READ_AS = {"json-or-python": "json_schema", "lax-or-strict": "strict_schema"}
"""Which part of a node validates strict JSON."""
_CLOSABLE = frozenset({"model-fields", "typed-dict", "dataclass-args"})
_CONFIGURED = {"model", "dataclass", "typed-dict"}
_UNIONS = {"union", "tagged-union"}
_GIVE_PYTHON = {"function-before", "function-wrap"}
_WRITTEN_AS_OTHERS = {"set", "frozenset", "tuple", "decimal", "uuid", "bytes", "timedelta", "url", "multi-host-url"}
"""What JSON writes as a list or a string, which strict Python mode does not take for it."""
_ITERATED = {"list", "tuple", "set", "frozenset", "dict"}
_PLAIN = {"int", "str", "bool", "none", "literal"}
_WRITTEN = {
    "datetime": (":", "a date and time, such as 2026-03-01T12:30:00Z"),
    "date": ("^[0-9]{4}-.{5}$", "a date in the format YYYY-MM-DD"),
    "time": (":", "a time, such as 12:30:00"),
}
"""What a string has that strict JSON takes and that is no time stamp, and what is wanted in words."""
_TEXT_AS_IT_CAME = {
    "type": "str",
    "strict": True,
    "regex_engine": "rust-regex",
    "min_length": 0,
    "max_length": 100,
} | dict.fromkeys(("strip_whitespace", "to_lower", "to_upper", "coerce_numbers_to_str"), False)
"""A string as it came, whatever the model round it makes of strings."""
_TIME = (
    r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.([0-9]{5}[1-9]|[0-9]{4}[1-9]0|[0-9]{3}[1-9]00|[0-9]{2}[1-9]000|[0-9][1-9]0000|[1-9]00000))?"
    r"(Z|[+-](0[1-9]|[1-9][0-9]):[0-9]{2}|[+-]00:(0[1-9]|[1-9][0-9]))?$"
)
_SPELLING = {"datetime": rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T{_TIME}", "time": rf"^{_TIME}"}
"""As Pydantic writes them; a date has but one spelling."""


def close(schema: CoreSchema) -> CoreSchema:
    """A copy that is strict at every depth, and in which objects that say nothing about extra keys refuse them.

    Beyond Pydantic's strict JSON: numbers are finite, also where anything is taken; digits are no date; `true` is no 1,
    although Python calls them equal; a field has one name; an iterable is read at once.

    Raises:
        DefinitionError: for an alias that is no plain name.
    """
    return _closed(schema, None, False, False)  # type: ignore[no-any-return]


def _closed(node: object, extra: str | None, read: bool, own: bool) -> Any:
    """The copy of a node; `read` where code of an author's may give it Python values that it has read of the JSON, and
    `own` where an author says how bytes are written."""
    if isinstance(node, list | tuple):
        return type(node)(_closed(item, extra, read, own) for item in node)
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    if not isinstance(kind, str):
        return {key: _closed(item, extra, read, own) for key, item in node.items()}
    own = says_itself(node, own)
    config = node.get("config") or {}
    if kind in _CONFIGURED:
        alone = kind == "model" or getattr(node.get("cls"), "__pydantic_config__", None)
        extra = config.get("extra_fields_behavior") if alone else None  # else it is that of the model which it is in
    inner = read or kind in _GIVE_PYTHON
    copy = {key: _closed(value, extra, inner, own) if key in NESTED else value for key, value in node.items()}
    if config or kind in _CONFIGURED:  # those do not pass on the configuration that they are given
        by_name = {"validate_by_name": False, "validate_by_alias": True} if config.get("validate_by_name") else {}
        copy["config"] = {**config, "strict": True, **by_name}
    if "strict" in copy or kind in _UNIONS:  # a strict union would have all below it strict
        copy["strict"] = kind not in _UNIONS
    if read and kind in _WRITTEN_AS_OTHERS:
        copy["strict"] = False
    if kind in _CLOSABLE or kind == "arguments":
        _name_fields(copy)
    if kind in _CLOSABLE:
        copy["extra_behavior"] = extra or ("allow" if "extras_schema" in copy else "forbid")
        if extra == "allow" and kind == "dataclass-args":
            raise DefinitionError("a dataclass with extra='allow' keeps what nobody checks; make it a model")
        if extra == "allow":
            copy.setdefault("extras_schema", _finite({"type": "any"}))
        if copy["extra_behavior"] == "allow":
            _refuse_names(copy)
    if node.get("custom_init") and "extras_keys_schema" in copy["schema"]:
        whose = f"{node['cls'].__name__} takes further keys by its own __init__"
        raise DefinitionError(f"{whose}, and has a field with an alias: give the field that name")
    if kind == "bytes" and not own:
        return _from_text(copy)
    replace = _REPLACED.get(kind)
    return copy if replace is None else replace(copy)


def _name_fields(node: CoreSchema) -> None:
    """Each field has the one name that is exported, and no two have the same: a guard would not see another one."""
    seen: set[str] = set()
    for name, field in _python_fields(node):
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


def _refuse_names(node: CoreSchema) -> None:
    """Take no further key that is another name of a field with an alias: `model_dump` would give its value."""
    fields = [(field.get("validation_alias", name), name, field) for name, field in _python_fields(node)]
    names = {
        key for wire, name, field in fields for key in (name, field.get("serialization_alias", name)) if key != wire
    }

    def refuse(key: str) -> str:
        if key in names:
            raise PydanticCustomError("extra_forbidden", "Extra inputs are not permitted")
        return key

    if names and node["type"] != "model-fields":
        raise DefinitionError(f"{min(names)!r} has an alias beside further keys; give it the alias as its name")
    if names:
        function = {"type": "no-info", "function": refuse}
        keys = {
            "type": "function-after",
            "function": function,
            "schema": node.get("extras_keys_schema", {"type": "str"}),
        }
        node["extras_keys_schema"] = {**keys, "metadata": {"ferrule": KEEPS}}


def _python_fields(node: CoreSchema) -> list[tuple[str, CoreSchema]]:
    """The fields of a node, with their names in Python."""
    fields: Any = node.get("fields", node.get("arguments_schema"))
    return list(fields.items()) if isinstance(fields, dict) else [(field["name"], field) for field in fields]


def wire_names(node: CoreSchema) -> set[str]:
    """The names by which a model fills the fields of a node that is closed."""
    return {field.get("validation_alias") or name for name, field in _python_fields(node)}


def _before(node: CoreSchema, function: Callable[[Any], Any]) -> CoreSchema:
    """A node whose value goes through `function` first; what refers to it refers to the whole."""
    ref = {"ref": node.pop("ref")} if "ref" in node else {}
    own = {"type": "function-before", "function": {"type": "no-info", "function": function}, "schema": node}
    return {**ref, **own, "metadata": {"ferrule": KEEPS}}


def _from_text(node: CoreSchema) -> CoreSchema:
    """Bytes that are read from base64."""
    written = with_base64(node)
    serialization = written.pop("serialization")
    return {**_before(written, from_base64), "serialization": serialization}


def _first_function(node: CoreSchema) -> Any:
    return node["function"]["function"] if node["type"] == "function-before" else None


def read_from_base64(nodes: Iterable[CoreSchema]) -> list[bool]:
    """Of all bytes among these nodes whether they are."""
    found = {id(node["schema"]) for node in nodes if _first_function(node) is from_base64}
    return [id(node) in found for node in nodes if node["type"] == "bytes"]


def is_either(union: CoreSchema) -> bool:
    """Whether one of several types is bytes in base64: nobody could tell which one a string is of."""
    return any(map(_is_from_base64, nodes_below(union)))


def _is_from_base64(node: CoreSchema) -> bool:
    return _first_function(node) is from_base64 or ("schema" in node and _is_from_base64(node["schema"]))


def _finite(node: CoreSchema) -> CoreSchema:
    """What takes any JSON takes NaN and infinities from Pydantic, which are no JSON."""
    return _before(node, _only_finite)


def _only_finite(value: object) -> Any:
    if isinstance(value, dict | list | float):
        try:
            check_finite(value)
        except ValueError:
            raise PydanticCustomError("finite_number", "Input should hold finite numbers only") from None
    return value


def _written(node: CoreSchema) -> CoreSchema:
    """Digits are a time stamp to Pydantic. The string is looked at first and then read laxly, as no JSON is left."""
    ref = {"ref": node.pop("ref")} if "ref" in node else {}
    pattern, expected = _WRITTEN[node["type"]]
    text = {
        "type": "custom-error",
        "schema": {**_TEXT_AS_IT_CAME, "pattern": pattern},
        "custom_error_type": f"{node['type']}_written",
        "custom_error_message": f"Input should be {expected}",
    }
    metadata = _exported_as(node) | {"ferrule": SPELLED if node["type"] in _SPELLING else KEEPS}
    return {**ref, "type": "chain", "steps": [text, {**node, "strict": False}], "metadata": metadata}


def _exported_as(node: CoreSchema) -> CoreSchema:
    """The metadata of what stands in the place of a node and is exported as that."""
    metadata = dict(node.pop("metadata", {}))
    functions = metadata.get("pydantic_js_functions", ())
    return {**metadata, "pydantic_js_functions": [lambda _, handler: handler(node), *functions]}


def spelled(nodes: Iterable[CoreSchema]) -> bool:
    """Whether dates and times with a time are among these nodes."""
    return any((node.get("metadata") or {}).get("ferrule") is SPELLED for node in nodes)


def spelled_exactly(node: CoreSchema) -> CoreSchema:
    """A copy that takes dates and times as Pydantic writes them, and no other spelling."""
    return rewritten(node, _spelled_exactly)  # type: ignore[no-any-return]


def _spelled_exactly(node: CoreSchema) -> CoreSchema:
    if (node.get("metadata") or {}).get("ferrule") is SPELLED:
        moment = node["steps"][1]
        node["steps"] = [{**_TEXT_AS_IT_CAME, "pattern": _SPELLING[moment["type"]]}, moment]
    return node


def _default(node: CoreSchema) -> CoreSchema:
    """A default of `None` is written and read as null, whatever its type says of it."""
    inner = node["schema"]
    if node.get("default", node) is not None or inner["type"] in {"nullable", "any", "none"}:
        return node
    return {**node, "schema": {"type": "nullable", "schema": inner, "metadata": _exported_as(inner)}}


def _exactly(node: CoreSchema, allowed: list[Any]) -> CoreSchema:
    """A node that takes no `true` for 1 and no `false` for 0, which Python calls equal; and for a member of an enum its
    value, for which strict JSON mode wants the member itself."""
    values = [one.value if isinstance(one, Enum) else one for one in allowed]
    for one in values:
        if isinstance(one, bytes):
            raise DefinitionError(f"{one!r} is no value that JSON has: take the text {one.decode(errors='replace')!r}")
    if not any(isinstance(one, Enum | int | float) for one in allowed):
        return node
    context = {"expected": " or ".join(map(repr, values)), CHOICES: values}

    def exactly(value: object) -> Any:
        for one, known in zip(allowed, values, strict=True):
            if same(value, known):
                return one
        if isinstance(value, int | float | str):
            raise PydanticCustomError("literal_error", "Input should be {expected}", context)
        return value

    return _before(node, exactly)


_REPLACED: dict[str, Callable[[CoreSchema], CoreSchema]] = {
    "float": lambda node: {**node, "allow_inf_nan": False},
    "decimal": lambda node: {**node, "allow_inf_nan": False},
    "any": _finite,
    "function-plain": _finite,
    "generator": lambda node: {**node, "type": "list"},  # checked before anything runs, not while it is read
    "literal": lambda node: _exactly(node, node["expected"]),
    "enum": lambda node: _exactly(node, [member.value for member in node["members"]]),
    "date": _written,
    "datetime": _written,
    "time": _written,
    "default": _default,
}


def rewritten(node: Any, change: Callable[[CoreSchema], CoreSchema]) -> Any:
    """A copy in which each node is what `change` makes of its own copy, the inner ones first."""
    if isinstance(node, list | tuple):
        return type(node)(rewritten(item, change) for item in node)
    if not isinstance(node, dict):
        return node
    is_node = isinstance(node.get("type"), str)
    inner = NESTED if is_node else node.keys()
    copy = {key: rewritten(value, change) if key in inner else value for key, value in node.items()}
    return change(copy) if is_node else copy


def nodes_below(node: CoreSchema) -> Iterator[CoreSchema]:
    """The nodes right below one."""
    waiting = [value for key, value in node.items() if key in NESTED]
    while waiting:
        below = waiting.pop()
        if isinstance(below, dict) and isinstance(below.get("type"), str):
            yield below
        elif isinstance(below, dict | list | tuple):
            waiting.extend(below.values() if isinstance(below, dict) else below)


def all_nodes(node: CoreSchema) -> list[CoreSchema]:
    """A node and all below it."""
    found = [node]
    for one in found:  # which grows
        found.extend(nodes_below(one))
    return found


def stop_at_first(nodes: Iterable[CoreSchema], stop: bool) -> bool:
    """Have the validation of lists and dicts among these nodes end at the first item that is wrong, or go on; whether
    there are any."""
    iterated = [node for node in nodes if node["type"] in _ITERATED]
    for node in iterated:
        node["fail_fast"] = stop
    return bool(iterated)


def root_fields(schema: CoreSchema) -> dict[str, CoreSchema]:
    """The fields of the typed dict or model that it is, by name."""
    referred = {node.get("ref"): node for node in schema.get("definitions", ())}
    while "fields" not in schema:
        if "schema_ref" in schema:
            schema = referred[schema["schema_ref"]]
        elif "schema" in schema:
            schema = schema["schema"]
        else:
            return {}
    return schema["fields"]  # type: ignore[no-any-return]


def direct(schema: JsonObject) -> bool:
    """Whether the validated value is the JSON value that is judged, so that it can be read off."""
    kind = schema.get("type")
    if kind in {"nullable", "default"}:
        return "default_factory" not in schema and direct(schema["schema"])
    if kind == "literal":
        return not any(isinstance(value, Enum) for value in schema["expected"])
    return kind in _PLAIN


def typed_dict(fields: Mapping[str, CoreSchema], extras: CoreSchema | None) -> CoreSchema:
    """A core schema whose validated value is the keyword arguments that were given, and no others."""
    core: CoreSchema = {"type": "typed-dict", "fields": dict(fields), "extra_behavior": "forbid"}
    core["config"] = {"strict": True}
    if extras is not None:
        core |= {"extra_behavior": "allow", "extras_schema": extras}
        _refuse_names(core)
    return core
