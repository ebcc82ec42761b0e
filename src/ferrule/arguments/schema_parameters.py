"""Parameters that come as a JSON Schema: the values are plain JSON data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from ferrule.arguments.argument_errors import ArgumentError, ArgumentErrors, Path, from_json_schema
from ferrule.arguments.exporting import MOST_DEPTH, too_deep
from ferrule.arguments.optional_nulls import declares
from ferrule.arguments.parameters import Parameters
from ferrule.arguments.repair import FIRST_INEXACT, repair
from ferrule.errors import DefinitionError
from ferrule.values.frozen import JsonObject, thaw
from ferrule.values.json_text import Malformed, dumps, loads

_FRACTION = re.compile(r"\d[.eE]")
"""Where an integer may stand that was written as a float, which is judged as the integer that it is."""


class SchemaParameters(Parameters):
    """Parameters that come as a JSON Schema, validated by `jsonschema_rs`."""

    def __init__(self, schema: JsonObject, *, hidden: frozenset[str] = frozenset(), drop_unknown: bool = False) -> None:
        super().__init__(_root(schema), hidden=hidden, drop_unknown=drop_unknown)
        self._validator = schema_validator(thaw(self.schema))

    def values(self, text: str) -> Any:
        try:
            value = loads(text)
        except Malformed as malformed:
            raise ArgumentErrors([ArgumentError((), f"cannot be read: {malformed}")]) from None
        errors = from_json_schema(self._validator.iter_errors(value))
        errors = [e for e in errors if not (e.kind == "missing" and e.path[:1] and e.path[0] in self.hidden)]
        if errors:
            raise ArgumentErrors(errors)
        return self._with_integers(value) if _FRACTION.search(text) else value

    def _dropped(self, value: dict[str, Any]) -> list[str]:
        """The keys that the validator itself reports; what it may still take is judged after the repairs.

        Where something else is wrong it also reports keys that a part of the schema declares: these are not dropped.
        """
        hidden = [key for key in value if key in self.hidden] if self._closed else []
        left = {**json.loads(json.dumps(value)), **thaw(self.bound)}
        for key in hidden:
            left.pop(key, None)
        try:
            repair(left, self.values, self.schema)
        except ArgumentErrors as wrong:
            reported = [error.path[0] for error in wrong.errors if error.kind == "unknown" and len(error.path) == 1]
            if len(reported) < len(wrong.errors):
                reported = [key for key in reported if not declares(self.schema, str(key))]
            return list(dict.fromkeys([*hidden, *(str(key) for key in reported if key in value)]))
        return hidden

    @property
    def _closed(self) -> bool:
        return any(self.schema.get(key) is False for key in ("additionalProperties", "unevaluatedProperties"))

    def _with_integers(self, value: object) -> Any:
        """JSON Schema calls 5.0 and 1e30 integers: below 2^53 they become ints, beyond it the digits are not known."""
        probe = _with_floats(value, lambda number, path: 0.5 if number.is_integer() else number)
        if probe == value:
            return value
        wanted = {e.path for e in from_json_schema(self._validator.iter_errors(probe)) if e.wants == "integer"}
        inexact: list[ArgumentError] = []

        def whole(number: float, path: Path) -> float:
            if path in wanted and abs(number) >= FIRST_INEXACT:
                expected = "must be an integer with all its digits, not a number in floating point"
                inexact.append(ArgumentError(path, expected, number))
            return int(number) if path in wanted else number

        value = _with_floats(value, whole)
        if inexact:
            raise ArgumentErrors(inexact)
        return value

    def _with_defaults(self, values: Any, text: str) -> tuple[Any, str]:
        """What guards judge is what the handler gets."""
        missing = {name: thaw(value) for name, value in self.defaults.items() if name not in values}
        if missing or _FRACTION.search(text):
            values = {**values, **missing}
            return values, dumps(values)
        return values, text


def _with_floats(value: object, change: Callable[[float, Path], float], path: Path = ()) -> Any:
    """A copy of JSON data with other numbers in the place of its floats."""
    if isinstance(value, dict):
        return {key: _with_floats(item, change, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_floats(item, change, (*path, place)) for place, item in enumerate(value)]
    return change(value, path) if isinstance(value, float) else value


def _root(schema: JsonObject) -> dict[str, Any]:
    """The schema as a tool's: an object, closed where it names properties and says nothing on other keys."""
    if not isinstance(schema, Mapping):
        raise DefinitionError(f"the input schema must be a JSON Schema object, not {type(schema).__name__}")
    try:
        root: dict[str, Any] = loads(dumps(schema))
    except (ValueError, RecursionError) as error:
        raise DefinitionError(f"the input schema has no JSON form: {error}") from None
    if too_deep(root):
        raise DefinitionError(f"the input schema nests more than {MOST_DEPTH} deep")
    kind = root.setdefault("type", "object")
    if kind != "object":
        raise DefinitionError(
            f"the input schema must have type 'object', not {kind!r}: a call's arguments are an object"
        )
    if not isinstance(root.get("properties", {}), dict):
        raise DefinitionError("the input schema is not a valid JSON Schema: its 'properties' must be an object")
    others = {"additionalProperties", "patternProperties", "unevaluatedProperties"} & root.keys()
    if "properties" in root and not others:
        composed = {"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"} & root.keys()
        root["unevaluatedProperties" if composed else "additionalProperties"] = False
    root.setdefault("properties", {})
    return root


def schema_validator(schema: dict[str, Any]) -> Any:
    # Imported on first use: most programs have no tool that comes with a schema.
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(schema, validate_formats=True, offline=True, mask="the value")
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise DefinitionError(f"the input schema is not a valid JSON Schema: {reason}") from None
