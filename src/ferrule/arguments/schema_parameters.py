"""Parameters that come as a JSON Schema: the values are plain JSON data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from ferrule.arguments.argument_errors import ArgumentError, ArgumentErrors, Path, from_json_schema, show
from ferrule.arguments.parameters import Parameters
from ferrule.arguments.ways import Ways
from ferrule.errors import DefinitionError
from ferrule.patterns import ForeignSchema
from ferrule.values.frozen import JsonObject, thaw
from ferrule.values.json_text import Malformed, dumps, loads, loads_and_rewrite

_REFERENCE = re.compile(r'"\$(ref|dynamicRef|recursiveRef)"')
_FRACTION = re.compile(rb"\.0[,\]}]")
_EXPONENT = re.compile(rb"e[+0-9](?<=[0-9]e.)")
"""Where an integer may stand that was written as a float, as Pydantic writes floats. It is judged as the integer that
it is. Each begins with one letter, so that 2 KB are searched in 1 µs."""


class Enforced:
    """A JSON Schema as `jsonschema_rs` enforces it.

    Args:
        given: What it was made of, which says whose it is.
        formats: Whether `format` is enforced. Pydantic writes a date and time without a zone, which RFC 3339 requires.

    Raises:
        DefinitionError: for `what` is none, or too large.
    """

    def __init__(self, schema: dict[str, Any], what: str, given: JsonObject, *, formats: bool = True) -> None:
        # Imported on first use: most programs have no tool that comes with a schema.
        import jsonschema_rs

        # Draft 4 takes no empty list, and some servers write null for it.
        schema = {key: item for key, item in schema.items() if item or key != "required"}
        self._foreign = given if isinstance(given, ForeignSchema) else None
        options: dict[str, Any] = {}
        if self._foreign is not None:
            schema, options = self._foreign.enforced(schema), self._foreign.options()
        self._schema = schema
        try:
            self._validator = jsonschema_rs.validator_for(
                schema, validate_formats=formats, offline=True, mask="the value", **options
            )
            if _REFERENCE.search(dumps(schema)) or (self._foreign is not None and self._foreign.size_of_names):
                self._ways  # noqa: B018  # a schema that is too large is refused here
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, TypeError) as error:
            raise DefinitionError(
                f"{what} is not a valid JSON Schema: {_describe_invalid_schema(schema, error)}"
            ) from None

    @cached_property
    def _ways(self) -> Ways:
        return Ways(self._schema)

    def errors(self, value: object) -> Iterable[Any] | None:
        """What is wrong with a value; `None` where something is that it would take too long to tell."""
        foreign = self._foreign
        if foreign is not None and not foreign.begin(value, self._ways.most if foreign.size_of_names else 1):
            return None
        if self._validator.is_valid(value):
            return ()
        if self._ways.are_too_many(value):
            return None
        if foreign is not None:  # it is told with as many patterns as it was judged with
            foreign.begin(value, 1)
        return [*self._validator.iter_errors(value)] or None


def _describe_invalid_schema(schema: JsonObject, error: Any) -> str:
    """Say what is wrong with a schema: the place, the value there, and what would be right."""
    if getattr(error, "instance_path", None):
        first = from_json_schema([error])[0]
        return f"{_place(error.instance_path)} is {show(error.instance)}; it {first.expected}"
    reason = str(error).partition("\n")[0]
    place = next((path for path, reference in _references(schema, ()) if reference.lstrip("#") in reason), None)
    return reason if place is None else f"{_place(place)}: {reason}"


def _place(path: Iterable[str | int]) -> str:
    return f"{'.'.join(map(str, path))!r:.200}"


def _references(node: object, path: Path) -> Iterator[tuple[Path, str]]:
    """The references in a schema, each with its place."""
    if isinstance(node, Mapping):
        for key, below in node.items():
            if key == "$ref" and isinstance(below, str) and len(below) > 1:
                yield (*path, key), below
            yield from _references(below, (*path, key))
    elif isinstance(node, list):
        for index, below in enumerate(node):
            yield from _references(below, (*path, index))


class SchemaParameters(Parameters):
    """Parameters that come as a JSON Schema, validated by `jsonschema_rs`."""

    def __init__(self, schema: JsonObject, *, hidden: frozenset[str] = frozenset(), drop_unknown: bool = False) -> None:
        root = _root(schema)
        self._enforced = Enforced(root, "the input schema", schema)
        super().__init__(root, hidden=hidden, drop_unknown=drop_unknown)
        if hidden:  # which nobody may have filled in yet
            root["required"] = [name for name in root.get("required", ()) if name not in hidden]
            self._enforced = Enforced(root, "the input schema", schema)
        if not (hidden or drop_unknown):
            self.quick = self.values

    def values(self, text: str) -> Any:
        try:
            value, written = loads_and_rewrite(text)
        except Malformed as malformed:
            raise ArgumentErrors([ArgumentError((), f"cannot be read: {malformed}")]) from None
        errors = self._errors(value)
        errors = [e for e in errors if not (e.kind == "missing" and len(e.path) == 1 and e.path[0] in self.hidden)]
        if not errors and (_FRACTION.search(written) or _EXPONENT.search(written)):
            errors = self._floats_for_integers(value)
        if errors:
            raise ArgumentErrors(errors)
        if not self.defaults:
            return value
        return {**value, **{name: thaw(default) for name, default in self.defaults.items() if name not in value}}

    def _errors(self, value: Any) -> list[ArgumentError]:
        """What is wrong, or only that something is."""
        errors = self._enforced.errors(value)
        if errors is None:
            return [ArgumentError((), "do not fit, and hold too many values to say where")]
        return from_json_schema(errors)

    def _floats_for_integers(self, value: object) -> list[ArgumentError]:
        """Where JSON Schema takes 5.0 for an integer: it is repaired below 2^53, beyond it the digits are not known."""
        errors = self._errors(_with_fractions(value))
        expected = "must be an integer with all its digits, not a number in floating point"
        return [ArgumentError(error.path, expected, wants="integer") for error in errors if error.wants == "integer"]


def _with_fractions(value: object) -> Any:
    """A copy of JSON data in which floats that JSON Schema calls integers are none."""
    if isinstance(value, dict):
        return {key: _with_fractions(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_fractions(item) for item in value]
    return 0.5 if isinstance(value, float) and value.is_integer() else value


def _root(schema: JsonObject) -> dict[str, Any]:
    """The schema as a tool's: an object, closed where it names properties and says nothing on other keys."""
    root = plain_schema(schema, "the input schema")
    kind = root.setdefault("type", "object")
    if kind != "object":
        raise DefinitionError(
            f"the input schema must have type 'object', not {kind!r}: a call's arguments are an object"
        )
    others = {"additionalProperties", "patternProperties", "unevaluatedProperties"} & root.keys()
    if "properties" in root and not others:
        composed = {"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"} & root.keys()
        root["unevaluatedProperties" if composed else "additionalProperties"] = False
    root.setdefault("properties", {})
    if root.get("required", ()) is None:
        del root["required"]
    return root


def plain_schema(schema: object, what: str) -> dict[str, Any]:
    """A plain copy of a JSON Schema.

    Raises:
        DefinitionError: for `what` is no object, and no JSON, which nests at most 200 deep.
    """
    if not isinstance(schema, Mapping):
        raise DefinitionError(f"{what} must be a JSON Schema object, not {schema!r}")
    try:
        return loads(dumps(schema))  # type: ignore[no-any-return]
    except ValueError as error:
        raise DefinitionError(f"{what} has no JSON form: {error}") from None
