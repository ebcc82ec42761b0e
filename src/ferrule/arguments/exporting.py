"""The JSON Schema that says what a closed core schema enforces."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from ferrule.arguments.closing import CLOSABLE, CoreSchema
from ferrule.arguments.required_tags import require_tags

UNEXPORTABLE = (PydanticUserError, TypeError, ValueError, NameError, AttributeError, KeyError, RecursionError)
"""What Pydantic raises for an annotation that it cannot take."""
MOST_DEPTH = 200
"""So many objects and arrays may stand in each other in a schema, which is read at whatever depth of the stack."""


class _Generator(GenerateJsonSchema):
    """Pydantic's generator without noise titles; objects that refuse other keys say so."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    tagged = False
    """Whether a union is told apart by a tag."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _without_title(super().model_schema(schema), schema)

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _without_title(super().dataclass_schema(schema), schema)

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _without_title(super().typed_dict_schema(schema), schema)

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        exported = super().dict_schema(schema)
        if "patternProperties" in exported:
            exported["additionalProperties"] = False
        return exported

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        self.tagged = True
        return super().tagged_union_schema(schema)

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        exported = super().enum_schema(schema)
        if exported.get("title") == schema["cls"].__name__:
            del exported["title"]
        if exported.get("description") == Enum.__doc__:
            del exported["description"]
        return exported


def _without_title(exported: JsonSchemaValue, schema: Mapping[str, object]) -> JsonSchemaValue:
    if "title" in exported and exported["title"] == getattr(schema.get("cls"), "__name__", None):
        del exported["title"]
    if exported.get("type") == "object" and "additionalProperties" not in exported and _refuses_extra(schema):
        exported["additionalProperties"] = False
    return exported


def _refuses_extra(schema: Mapping[str, object]) -> bool:
    inner: object = schema
    while isinstance(inner, Mapping):
        if inner.get("type") in CLOSABLE:
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
    generator = _Generator(by_alias=True)
    exported = generator.generate(schema, mode="validation")
    if generator.tagged:
        require_tags(exported)
    root = exported.get("$ref")
    if root is not None:
        definitions = exported["$defs"]
        name = root.removeprefix("#/$defs/")
        exported = {**definitions[name], "$defs": definitions}
        if repr(root) not in str(definitions):
            exported["$defs"] = {key: item for key, item in definitions.items() if key != name}
        if not exported["$defs"]:
            del exported["$defs"]
    return exported


def too_deep(schema: Any) -> bool:
    """Whether more than `MOST_DEPTH` objects and arrays stand in each other."""
    level = [schema]
    for _ in range(MOST_DEPTH):
        items = (item for node in level for item in (node.values() if isinstance(node, Mapping) else node))
        level = [item for item in items if isinstance(item, Mapping | list | tuple)]
        if not level:
            return False
    return True
