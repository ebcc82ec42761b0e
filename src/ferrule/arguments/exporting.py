"""The JSON Schema that says what a closed core schema enforces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticOmit, core_schema

from ferrule.arguments.closing import MAKES_EMPTY, CoreSchema, all_nodes, read_from_base64, wire_names
from ferrule.errors import DefinitionError
from ferrule.values.encoded_bytes import in_base64, with_base64

UNEXPORTABLE = (
    PydanticUserError,
    PydanticOmit,
    TypeError,
    ValueError,
    NameError,
    AttributeError,
    KeyError,
    RecursionError,
)
"""What Pydantic raises for an annotation that it cannot take."""
_AS_IT_IS = {str, int, float, bool, type(None)}
"""What is its own JSON; Pydantic makes an adapter for each default."""


class _Generator(GenerateJsonSchema):
    """Pydantic's generator without noise titles; objects that refuse other keys say so.

    Attributes:
        closed: Whether it is for what a tool takes, of which every field is exported under its one name.
        encoded: Of all bytes of that whether they are read from base64.
    """

    closed = False
    encoded: list[bool] = []  # noqa: RUF012

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def get_defs_ref(self, core_mode_ref: tuple[Any, Any]) -> Any:
        """The shortest name that is free: to compare what six names of each class might stand for, when all is written,
        takes a quarter of the time that a tool takes to be defined."""
        choices = self._prioritized_defsref_choices.pop(super().get_defs_ref(core_mode_ref))
        name = next(one for one in choices if one not in self.defs_to_core_refs)
        self._prioritized_defsref_choices[name] = [name]
        return name

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def model_fields_schema(self, schema: core_schema.ModelFieldsSchema) -> JsonSchemaValue:
        return self._of_fields(super().model_fields_schema(schema), schema)

    def dataclass_args_schema(self, schema: core_schema.DataclassArgsSchema) -> JsonSchemaValue:
        return self._of_fields(super().dataclass_args_schema(schema), schema)

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _without_title(super().model_schema(schema), schema)

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _without_title(super().dataclass_schema(schema), schema)

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _without_title(self._of_fields(super().typed_dict_schema(schema), schema), schema)

    def _of_fields(self, exported: JsonSchemaValue, schema: Any) -> JsonSchemaValue:
        """What is exported of an object: that it refuses other keys, and of all that it takes the names."""
        if (
            self.closed
            and "extra_behavior" in schema
            and (unlike := wire_names(schema) ^ exported.get("properties", {}).keys())
        ):
            raise DefinitionError(f"the field {min(unlike)!r} is only in the type or only in the JSON Schema of it")
        if schema.get("extra_behavior") == "forbid":
            exported["additionalProperties"] = False
        return exported

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return self._or_null(super().float_schema(schema), schema)

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        return self._or_null(super().decimal_schema(schema), schema)

    def _or_null(self, exported: JsonSchemaValue, schema: Mapping[str, Any]) -> JsonSchemaValue:
        """What is written for a number that may be NaN or an infinity, which are written as null."""
        is_between = schema.keys() & {"ge", "gt"} and schema.keys() & {"le", "lt"}
        if self.closed or is_between or schema.get("allow_inf_nan") is False:
            return exported
        return self.get_flattened_anyof([exported, {"type": "null"}])

    def ser_schema(self, schema: Any) -> JsonSchemaValue | None:
        """What a serializer writes: anything, if it does not say what."""
        function = schema.get("function")
        if function is not None and schema.get("return_schema") is None:
            ours = str(getattr(function, "__module__", "")).partition(".")[0] in ("ferrule", "pydantic")
            return None if ours else {}
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
        if factory in MAKES_EMPTY:
            schema = {**schema, "default": factory()}
        elif "default" in schema and self.closed:
            nodes = all_nodes(schema)  # type: ignore[arg-type]
            refers = any(node["type"] == "definition-ref" for node in nodes)
            if any(encoded := self.encoded if refers else read_from_base64(nodes)):
                schema = {**schema, "default": in_base64(schema["default"], plain=all(encoded))}
        return super().default_schema(schema)

    def encode_default(self, dft: object) -> object:
        if type(dft) in MAKES_EMPTY and not dft:
            return {} if type(dft) is dict else []
        return dft if type(dft) in _AS_IT_IS else super().encode_default(dft)

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        return _without_title(super().enum_schema(schema), schema)


def _without_title(exported: JsonSchemaValue, schema: Mapping[str, object]) -> JsonSchemaValue:
    if "title" in exported and exported["title"] == getattr(schema.get("cls"), "__name__", None):
        del exported["title"]
    return exported


def json_schema_of_output(adapter: Any) -> dict[str, Any]:
    """JSON Schema 2020-12 of what a type is written as."""
    return _Generator(by_alias=True).generate(with_base64(adapter.core_schema), mode="serialization")


def json_schema(schema: CoreSchema) -> dict[str, Any]:
    """JSON Schema 2020-12 of what `schema` takes; the root is an object schema, with `$defs` beside it.

    Raises:
        PydanticUserError: where a type has no JSON form.
        DefinitionError: where a field is not exported under the name by which it is taken.
    """
    generator = _Generator(by_alias=True)
    generator.closed, generator.encoded = True, read_from_base64(all_nodes(schema))
    exported = generator.generate(schema, mode="validation")
    _require_tags(exported, exported.get("$defs", {}))
    if "$ref" in exported:  # it refers to itself
        definitions = exported["$defs"]
        exported = {**definitions[exported["$ref"].removeprefix("#/$defs/")], "$defs": definitions}
    return exported


def _require_tags(node: Any, definitions: dict[str, Any]) -> None:
    """Require the tags of unions, also where a branch stands alone: Pydantic exports a tag that has a default as one
    that may be left out, and then finds no branch without it."""
    if isinstance(node, dict):
        if "discriminator" in node and isinstance(node.get("oneOf"), list):
            for branch in _branches(node, definitions):
                _require(branch, node["discriminator"]["propertyName"])
        node = list(node.values())
    for below in node if isinstance(node, list) else ():
        _require_tags(below, definitions)


def _branches(node: dict[str, Any], definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The branches of a union, and those of the unions among them."""
    node = definitions[node["$ref"].removeprefix("#/$defs/")] if "$ref" in node else node
    if "oneOf" not in node:
        yield node
    for branch in node.get("oneOf", ()):
        yield from _branches(branch, definitions)


def _require(node: dict[str, Any], tag: str) -> None:
    if tag in node.get("properties", {}) and tag not in node.get("required", ()):
        node["required"] = [tag, *node.get("required", ())]
        node["properties"][tag].pop("default", None)
