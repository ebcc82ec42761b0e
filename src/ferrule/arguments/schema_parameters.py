"""Parameters with a JSON Schema: their values are plain JSON data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from ferrule.arguments.argument_errors import ArgumentError, ArgumentErrors, format_value, from_json_schema
from ferrule.arguments.parameters import Parameters
from ferrule.arguments.schema_content import find_odd_keyword
from ferrule.errors import DefinitionError
from ferrule.security.patterns import ForeignSchema
from ferrule.security.validation_cost import ValidationCost
from ferrule.values.frozen import JsonObject, thaw
from ferrule.values.json_text import Malformed, format_finite_json, format_json, parse_json

_REFERENCE = re.compile(r'"\$(ref|dynamicRef|recursiveRef)"')
_FRACTION = re.compile(rb"\.0[,\]}]")
_EXPONENT = re.compile(rb"e[+0-9](?<=[0-9]e.)")
"""Patterns for an integer that may have been sent as a float, in the text that Pydantic writes. Both begin with one
letter, so that they search 2 KB in 1 µs."""


class JsonSchemaValidator:
    """A validator by `jsonschema_rs` for one JSON Schema.

    Args:
        schema: The schema to enforce.
        what: The name of the schema in errors.
        given: The schema as given; a `ForeignSchema` has budgets.
        formats: Whether `format` is enforced. Pydantic writes times without the zone of RFC 3339.

    Raises:
        DefinitionError: The schema is invalid or too large.
    """

    def __init__(self, schema: dict[str, Any], what: str, given: JsonObject, *, formats: bool = True) -> None:
        # Imported on first use: most programs have no tool with a JSON Schema.
        import jsonschema_rs

        # Draft 4 takes no empty list, and some servers write null for it.
        schema = {key: item for key, item in schema.items() if item or key != "required"}
        self._foreign = given if isinstance(given, ForeignSchema) else None
        options: dict[str, Any] = {}
        if self._foreign is not None:
            schema, options = self._foreign.drop_refused_patterns(schema), self._foreign.make_validator_options()
        self._schema = schema
        try:
            self._validator = jsonschema_rs.validator_for(
                schema, validate_formats=formats, offline=True, mask="the value", **options
            )
            if (keyword := find_odd_keyword(schema)) is not None:
                raise ValueError(f"{keyword!r} must hold schemas")
            if _REFERENCE.search(format_json(schema)) or (self._foreign is not None and self._foreign.size_of_names):
                self._cost  # noqa: B018  # refuses too large a schema
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, TypeError) as error:
            raise DefinitionError(f"{what} is not a valid JSON Schema: {_describe_invalid_schema(error)}") from None

    @cached_property
    def _cost(self) -> ValidationCost:
        return ValidationCost(self._schema)

    def find_errors(self, value: object) -> Iterable[Any] | None:
        """Return the errors of a value, or None if it has some and it would take too long to list them."""
        foreign = self._foreign
        if foreign is not None and not foreign.start_validation(
            value, self._cost.max_checks if foreign.size_of_names else 1
        ):
            return None
        if self._validator.is_valid(value):
            return ()
        if self._cost.is_too_high(value):
            return None
        if foreign is not None:  # a new budget for the second pass
            foreign.start_validation(value, 1)
        return [*self._validator.iter_errors(value)] or None


def _describe_invalid_schema(error: Any) -> str:
    """Return the place of the mistake in a schema, the value there, and the expectation; or the unknown reference."""
    if getattr(error, "instance_path", None):
        place, first = ".".join(map(str, error.instance_path)), from_json_schema([error])[0]
        return f"{place!r:.200} is {format_value(error.instance)}; it {first.expected}"
    return str(error).partition("\n")[0]


class SchemaParameters(Parameters):
    """Parameters with a JSON Schema, validated by `jsonschema_rs`. Errors call it by the name `what`."""

    def __init__(
        self, schema: JsonObject, *, hidden: frozenset[str] = frozenset(), what: str = "the input schema"
    ) -> None:
        root = _to_root_schema(schema, what)
        self._validator = JsonSchemaValidator(root, what, schema)
        super().__init__(root, hidden=hidden)
        if hidden:  # these may have no value yet
            root["required"] = [name for name in root.get("required", ()) if name not in hidden]
            self._validator = JsonSchemaValidator(root, what, schema)
        if not hidden:
            self.validate_strictly = self.validate

    def validate(self, text: str) -> Any:
        try:
            value = parse_json(text)
        except Malformed as malformed:
            raise ArgumentErrors([ArgumentError((), f"cannot be read: {malformed}")]) from None
        written = format_finite_json(value)
        errors = self._find_errors(value)
        errors = [e for e in errors if not (e.kind == "missing" and len(e.path) == 1 and e.path[0] in self.hidden)]
        if not errors and (_FRACTION.search(written) or _EXPONENT.search(written)):
            errors = self._find_floats_for_integers(value)
        if errors:
            raise ArgumentErrors(errors)
        if not self.defaults:
            return value
        return {**value, **{name: thaw(default) for name, default in self.defaults.items() if name not in value}}

    def _find_errors(self, value: Any) -> list[ArgumentError]:
        errors = self._validator.find_errors(value)
        if errors is None:
            return [ArgumentError((), "do not fit, and hold too many values to say where")]
        return from_json_schema(errors)

    def _find_floats_for_integers(self, value: object) -> list[ArgumentError]:
        """Return an error for each float such as 5.0 in the place of an integer. JSON Schema would accept it.

        A float below 2^53 is then repaired. The digits of a larger one are lost.
        """
        errors = self._find_errors(_make_floats_fractional(value))
        expected = "must be an integer with all its digits, not a number in floating point"
        return [ArgumentError(e.path, expected, json_type="integer") for e in errors if e.json_type == "integer"]


def _make_floats_fractional(value: object) -> Any:
    """Return a copy of JSON data with 0.5 for each whole float, so that JSON Schema refuses it as an integer."""
    if isinstance(value, dict):
        return {key: _make_floats_fractional(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_make_floats_fractional(item) for item in value]
    return 0.5 if isinstance(value, float) and value.is_integer() else value


def _to_root_schema(schema: JsonObject, what: str) -> dict[str, Any]:
    """Return a tool's input schema: an object without other keys, unless the schema says otherwise."""
    root = copy_schema(schema, what)
    kind = root.setdefault("type", "object")
    if kind != "object":
        raise DefinitionError(f"{what} must have type 'object', not {kind!r}: it describes named values")
    says_more = {"additionalProperties", "patternProperties", "unevaluatedProperties"} & root.keys()
    if "properties" in root and not says_more:
        composed = {"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"} & root.keys()
        root["unevaluatedProperties" if composed else "additionalProperties"] = False
    root.setdefault("properties", {})
    if root.get("required", ()) is None:
        del root["required"]
    return root


def copy_schema(schema: object, what: str) -> dict[str, Any]:
    """Return a plain copy of a JSON Schema.

    Raises:
        DefinitionError: `what` is no object or no JSON, or nests more than 200 deep.
    """
    if not isinstance(schema, Mapping):
        raise DefinitionError(f"{what} must be a JSON Schema object, not {schema!r}")
    try:
        return parse_json(format_json(schema))  # type: ignore[no-any-return]
    except ValueError as error:
        raise DefinitionError(f"{what} has no JSON form: {error}") from None
