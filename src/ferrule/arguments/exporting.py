"""Export a closed core schema as JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticOmit, core_schema

from ferrule.arguments.closed_schema import EMPTY_FACTORIES, CoreSchema, wire_names
from ferrule.errors import DefinitionError
from ferrule.values.frozen import JsonObject

_PYTHON_ERRORS = (TypeError, ValueError, NameError, AttributeError, KeyError, RecursionError)
EXPORT_ERRORS = (PydanticUserError, PydanticOmit, *_PYTHON_ERRORS)
"""Errors that Pydantic raises for an annotation without a JSON Schema."""
_PLAIN_DEFAULTS = {str, int, float, bool, type(None)}
"""Defaults that are their own JSON. For any other, Pydantic makes an adapter."""


class _Generator(GenerateJsonSchema):
    """Pydantic's generator without generated titles, and with `additionalProperties: false` for closed objects.

    Attributes:
        closed: Whether the schema is a tool's input, with each field under its one name.
        has_tags: Whether a union in it has a tag.
        described: The names of the fields of each closed object, and its JSON Schema, which a class may change.
    """

    closed = False
    has_tags = False
    described: list[tuple[AbstractSet[str], JsonSchemaValue]] = []  # noqa: RUF012

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def get_defs_ref(self, core_mode_ref: tuple[Any, Any]) -> Any:
        """Return the shortest free name. Pydantic compares six names for each class at the end. That
        would take a quarter of a tool's definition time."""
        choices = self._prioritized_defsref_choices.pop(super().get_defs_ref(core_mode_ref))
        name = next(one for one in choices if one not in self.defs_to_core_refs)
        self._prioritized_defsref_choices[name] = [name]
        return name

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def model_fields_schema(self, schema: core_schema.ModelFieldsSchema) -> JsonSchemaValue:
        return self._describe_fields(super().model_fields_schema(schema), schema)

    def dataclass_args_schema(self, schema: core_schema.DataclassArgsSchema) -> JsonSchemaValue:
        return self._describe_fields(super().dataclass_args_schema(schema), schema)

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _drop_title(super().model_schema(schema), schema)

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _drop_title(super().dataclass_schema(schema), schema)

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _drop_title(self._describe_fields(super().typed_dict_schema(schema), schema), schema)

    def _describe_fields(self, exported: JsonSchemaValue, schema: Any) -> JsonSchemaValue:
        """Refuse other keys if the type does."""
        if self.closed and "extra_behavior" in schema:
            self.described.append((wire_names(schema), exported))
        if schema.get("extra_behavior") == "forbid":
            exported["additionalProperties"] = False
        return exported

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        self.has_tags = True
        return super().tagged_union_schema(schema)

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return self._allow_null(super().float_schema(schema), schema)

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        return self._allow_null(super().decimal_schema(schema), schema)

    def _allow_null(self, exported: JsonSchemaValue, schema: Mapping[str, Any]) -> JsonSchemaValue:
        """Allow null for an unbounded number, as NaN and infinities are written as null."""
        is_bounded = schema.keys() & {"ge", "gt"} and schema.keys() & {"le", "lt"}
        if self.closed or is_bounded or schema.get("allow_inf_nan") is False:
            return exported
        return self.get_flattened_anyof([exported, {"type": "null"}])

    def ser_schema(self, schema: Any) -> JsonSchemaValue | None:
        """Return the schema of a serializer's output: anything, if it declares no return type."""
        function = schema.get("function")
        if function is not None and schema.get("return_schema") is None:
            is_foreign = str(getattr(function, "__module__", "")).partition(".")[0] not in ("ferrule", "pydantic")
            return {} if is_foreign else None
        return super().ser_schema(schema)

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        exported = super().dict_schema(schema)
        keys: Any = schema.get("keys_schema", {})
        if not self.closed and not all(isinstance(one.value, str) for one in keys.get("members", ())):
            exported.pop("propertyNames", None)  # a number is written as text
        if "patternProperties" in exported:
            exported["additionalProperties"] = False
        return exported

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        factory = schema.get("default_factory")
        if factory in EMPTY_FACTORIES:
            schema = {**schema, "default": factory()}
        return super().default_schema(schema)

    def encode_default(self, dft: object) -> object:
        if type(dft) in EMPTY_FACTORIES and not dft:
            return {} if type(dft) is dict else []
        return dft if type(dft) in _PLAIN_DEFAULTS else super().encode_default(dft)

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        return _drop_title(super().enum_schema(schema), schema)


def _drop_title(exported: JsonSchemaValue, schema: Mapping[str, object]) -> JsonSchemaValue:
    if "title" in exported and exported["title"] == getattr(schema.get("cls"), "__name__", None):
        del exported["title"]
    return exported


def _check_same_fields(names: AbstractSet[str], exported: JsonObject) -> None:
    """Raise a `DefinitionError` if the properties of a JSON Schema are not the names of the type's fields."""
    if unlike := names ^ exported.get("properties", {}).keys():
        raise DefinitionError(f"the field {min(unlike)!r} is only in the type or only in the JSON Schema of it")


def export_output_schema(adapter: Any) -> dict[str, Any]:
    """Return JSON Schema 2020-12 for the written JSON of an adapter's type."""
    return _Generator(by_alias=True).generate(adapter.core_schema, mode="serialization")


def export_schema(schema: CoreSchema) -> dict[str, Any]:
    """Return JSON Schema 2020-12 for the input of a closed core schema; the root is an object, with `$defs` beside it.

    Raises:
        PydanticUserError: A type has no JSON form.
        DefinitionError: A field is not exported under its wire name.
    """
    generator = _Generator(by_alias=True)
    generator.closed, generator.described = True, []
    exported = generator.generate(schema, mode="validation")
    for names, described in generator.described:
        _check_same_fields(names, described)
    if generator.has_tags:
        _require_tags(exported, exported.get("$defs", {}))
    if "$ref" in exported:  # it refers to itself
        definitions = exported["$defs"]
        exported = {**definitions[exported["$ref"].removeprefix("#/$defs/")], "$defs": definitions}
    return exported


def _require_tags(node: Any, definitions: dict[str, Any]) -> None:
    """Require the tag in each branch of a union.

    Pydantic exports a tag with a default as optional, but finds no branch without it.
    """
    if isinstance(node, dict):
        if "discriminator" in node and isinstance(node.get("oneOf"), list):
            for branch in _iter_branches(node, definitions):
                tag = node["discriminator"]["propertyName"]
                if tag in branch.get("properties", {}) and tag not in branch.get("required", ()):
                    branch["required"] = [tag, *branch.get("required", ())]
                    branch["properties"][tag].pop("default", None)
        node = list(node.values())
    for child in node if isinstance(node, list) else ():
        _require_tags(child, definitions)


def _iter_branches(node: dict[str, Any], definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the branches of a union, and those of nested unions."""
    node = definitions[node["$ref"].removeprefix("#/$defs/")] if "$ref" in node else node
    if "oneOf" not in node:
        yield node
    for branch in node.get("oneOf", ()):
        yield from _iter_branches(branch, definitions)
