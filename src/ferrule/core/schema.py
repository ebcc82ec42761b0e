"""Pydantic's core schema made strict and closed, and the JSON Schema that says exactly what it enforces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticCustomError

from ferrule.core.errors import DefinitionError

CoreSchema = dict[str, Any]

_NESTED = (
    "schema",
    "items_schema",
    "keys_schema",
    "values_schema",
    "extras_schema",
    "choices",
    "steps",
    "fields",
    "definitions",
    "arguments_schema",
    "var_args_schema",
    "var_kwargs_schema",
    "strict_schema",
    "lax_schema",
    "json_schema",
    "python_schema",
)
_CLOSABLE = {"model-fields", "typed-dict", "dataclass-args"}
_OPAQUE = {"any", "is-instance", "is-subclass", "custom-error", "function-plain", "json", "callable"}
_DEEP = 20
_PLAIN = {"int", "str", "bool", "none", "literal"}


def close(schema: CoreSchema) -> CoreSchema:
    """A copy in which objects that say nothing about extra keys refuse them, floats are finite, and a bool is no int.

    Pydantic's strict JSON mode takes `true` for `Literal[1]` and for an `IntEnum` of 1, because Python calls them
    equal.
    """
    return _closed(schema, None)  # type: ignore[no-any-return]


def _closed(node: Any, extra: str | None) -> Any:
    if isinstance(node, list | tuple):
        return type(node)(_closed(item, extra) for item in node)
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    if not isinstance(kind, str):
        return _named({key: _closed(item, extra) for key, item in node.items()})
    config = node.get("config") or {}
    if kind in {"model", "dataclass", "typed-dict"}:
        extra = config.get("extra_fields_behavior")
    found = _named({key: _closed(value, extra) if key in _NESTED else value for key, value in node.items()})
    if config.get("validate_by_name"):
        found["config"] = {**config, "validate_by_name": False, "validate_by_alias": True}
    if kind in _CLOSABLE:
        found["extra_behavior"] = extra or "forbid"
    elif kind == "float":
        found.setdefault("allow_inf_nan", False)
    elif kind == "generator":  # an iterable is checked before anything runs, not while the handler reads it
        found["type"] = "list"
    elif kind == "literal":
        return _members(_exact(found, found["expected"]), found["expected"])
    elif kind == "enum":
        return _exact(found, [member.value for member in found["members"]])
    return found


def _named(node: CoreSchema) -> CoreSchema:
    """A field has the one name that is exported: under another a guard would not see it."""
    for key in ("alias", "validation_alias"):
        choices = node.get(key)
        if not isinstance(choices, list) or not choices:
            continue
        paths = choices if isinstance(choices[0], list) else [choices]
        plain = [path[0] for path in paths if len(path) == 1]
        if not plain:
            raise DefinitionError(f"the alias path {choices!r} is no name that a model can fill; use a plain alias")
        node[key] = plain[0]
    return node


def _exact(node: CoreSchema, allowed: list[Any]) -> CoreSchema:
    numbers = [value for value in (v.value if isinstance(v, Enum) else v for v in allowed) if isinstance(value, int)]
    if not numbers:
        return node
    expected = " or ".join(repr(value) for value in allowed)

    def exactly(value: Any) -> Any:
        if isinstance(value, int) and not any(n == value and type(n) is type(value) for n in numbers):
            raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})
        return value

    ref = {"ref": node.pop("ref")} if "ref" in node else {}
    return {"type": "function-before", "function": {"type": "no-info", "function": exactly}, "schema": node, **ref}


def _members(node: CoreSchema, allowed: list[Any]) -> CoreSchema:
    """A literal of enum members takes their values: strict JSON mode would want the members themselves."""
    members = [member for member in allowed if isinstance(member, Enum)]
    if not members:
        return node

    def member(value: Any) -> Any:
        fits = (one for one in members if type(one.value) is type(value) and one.value == value)
        return next(fits, value)

    ref = {"ref": node.pop("ref")} if "ref" in node else {}
    return {"type": "function-before", "function": {"type": "no-info", "function": member}, "schema": node, **ref}


def opaque(schema: Any) -> bool:
    """Whether something in it takes any JSON, so that the text itself has to be looked at for NaN and infinities."""
    if isinstance(schema, list | tuple):
        return any(map(opaque, schema))
    if not isinstance(schema, dict):
        return False
    kind = schema.get("type")
    if not isinstance(kind, str):
        return any(map(opaque, schema.values()))
    return kind in _OPAQUE or any(opaque(schema[key]) for key in _NESTED if key in schema)


def flat(schema: CoreSchema) -> bool:
    """Whether its JSON is a single scalar, with no key of its own."""
    kind = schema.get("type")
    if kind in {"nullable", "default", "function-before", "function-after"}:
        return flat(schema["schema"])
    return kind in {"int", "str", "bool", "none", "float", "literal", "enum", "date", "datetime", "time", "timedelta",
                    "decimal", "uuid", "url", "bytes"}  # fmt: skip


def direct(schema: CoreSchema) -> bool:
    """Whether the validated value is the JSON value itself, so that it can be read off."""
    kind = schema.get("type")
    if kind in {"nullable", "default"}:
        return direct(schema["schema"])
    if kind == "literal":
        return not any(isinstance(value, Enum) for value in schema["expected"])
    if kind == "str":
        return not any(schema.get(key) for key in ("strip_whitespace", "to_lower", "to_upper"))
    return kind in _PLAIN


class _Methods(dict[str, Any]):
    """The generator's methods by the kind of core schema, looked up when first used."""

    def __init__(self, generator: GenerateJsonSchema) -> None:
        self._generator = generator

    def __missing__(self, kind: str) -> Any:
        method = self[kind] = getattr(self._generator, f"{kind.replace('-', '_')}_schema")
        return method


class _Generator(GenerateJsonSchema):
    """Pydantic's generator without noise titles; objects that refuse other keys say so."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def build_schema_type_to_method(self) -> Any:
        # Pydantic's own looks up sixty methods for every schema, which takes longer than a small schema itself.
        return _Methods(self)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        return _plain(super().model_schema(schema), schema)

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        return _plain(super().dataclass_schema(schema), schema)

    def typed_dict_schema(self, schema: Any) -> JsonSchemaValue:
        return _plain(super().typed_dict_schema(schema), schema)

    def enum_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().enum_schema(schema)
        if found.get("title") == schema["cls"].__name__:
            del found["title"]
        if found.get("description") == Enum.__doc__:
            del found["description"]
        return found


def _plain(found: JsonSchemaValue, schema: Mapping[str, Any]) -> JsonSchemaValue:
    cls = schema.get("cls")
    if cls is not None and found.get("title") == cls.__name__:
        del found["title"]
    if found.get("type") == "object" and "additionalProperties" not in found and _refuses_extra(schema):
        found["additionalProperties"] = False
    return found


def _refuses_extra(schema: Mapping[str, Any]) -> bool:
    inner: Any = schema
    while isinstance(inner, Mapping):
        if inner.get("type") in _CLOSABLE:
            return inner.get("extra_behavior") == "forbid"
        inner = inner.get("schema")
    return False


def json_schema_of_output(adapter: Any) -> dict[str, Any]:
    """JSON Schema 2020-12 of what a type is written as."""
    return _Generator(by_alias=True).generate(adapter.core_schema, mode="serialization")


def json_schema(schema: CoreSchema) -> dict[str, Any]:
    """JSON Schema 2020-12 of what `schema` takes; the root is an object schema, with `$defs` beside it.

    Raises:
        PydanticUserError: where a type has no JSON form.
    """
    found = _Generator(by_alias=True).generate(schema, mode="validation")
    root = found.get("$ref")
    if root is not None:
        definitions = found["$defs"]
        name = root.removeprefix("#/$defs/")
        found = {**definitions[name], "$defs": definitions}
        if not any(_mentions(item, root) for item in definitions.values()):
            found["$defs"] = {key: item for key, item in definitions.items() if key != name}
        if not found["$defs"]:
            del found["$defs"]
    return found


def _mentions(node: Any, ref: str) -> bool:
    if isinstance(node, dict):
        return node.get("$ref") == ref or any(_mentions(item, ref) for item in node.values())
    return isinstance(node, list) and any(_mentions(item, ref) for item in node)


def declares(schema: Any, path: Sequence[str | int]) -> bool:
    """Whether `path` ends at a property that the schema names, and not at a key that is data."""
    nodes = list(_choices(schema, schema))
    for part in path[:-1]:
        below = [child for node in nodes for child in _below(node, part)]
        nodes = [choice for child in below for choice in _choices(schema, child)]
    return any(path[-1] in node.get("properties", ()) for node in nodes)


def _choices(root: Any, node: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """The schemas that a node is made of: itself, what it refers to, and the branches that it has."""
    if not isinstance(node, Mapping) or depth > _DEEP:
        return
    yield node
    if isinstance(node.get("$ref"), str):
        yield from _choices(root, _resolved(root, node["$ref"]), depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        for branch in node.get(key, ()):
            yield from _choices(root, branch, depth + 1)
    for key in ("then", "else"):
        yield from _choices(root, node.get(key), depth + 1)


def _resolved(root: Any, ref: str) -> Any:
    node = root
    for part in ref.removeprefix("#").strip("/").split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        node = node.get(key) if isinstance(node, Mapping) and key else node
    return node


def _below(node: Mapping[str, Any], part: str | int) -> Iterator[Any]:
    if isinstance(part, str):
        named = node.get("properties", {})
        yield named[part] if part in named else node.get("additionalProperties")
        yield from node.get("patternProperties", {}).values()
        return
    first = node.get("prefixItems", ())
    yield first[part] if part < len(first) else node.get("items")


def typed_dict(fields: Mapping[str, CoreSchema], extras: CoreSchema | None) -> CoreSchema:
    """A core schema whose validated value is the keyword arguments that were given, and no others."""
    found: CoreSchema = {"type": "typed-dict", "fields": dict(fields), "extra_behavior": "forbid"}
    if extras is not None:
        found |= {"extra_behavior": "allow", "extras_schema": extras}
    return found


Errors = (PydanticUserError, TypeError, ValueError, NameError, AttributeError, KeyError, RecursionError)
"""What Pydantic raises for an annotation that it cannot take."""

Function = Callable[..., Any]
