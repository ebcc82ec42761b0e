"""Parameters with Python types, validated by Pydantic in strict JSON mode."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import cached_property, partial
from math import isfinite
from typing import Any

from pydantic import ValidationError
from pydantic_core import CoreConfig, SchemaValidator, from_json

from ferrule.arguments.argument_errors import MAX_ERRORS, ArgumentError, ArgumentErrors, from_pydantic
from ferrule.arguments.closed_schema import (
    CoreSchema,
    collect_nodes,
    find_root_fields,
    has_times,
    is_own_json,
    require_canonical_times,
    set_fail_fast,
)
from ferrule.arguments.dumping import (
    Dumper,
    NotJudgeable,
    find_difference,
    has_own_serializer,
    is_exact,
    normalize_json,
    runs_code,
)
from ferrule.arguments.parameters import Parameters
from ferrule.errors import DefinitionError
from ferrule.security.validation_cost import MAX_ERROR_WORK, ValidationCost, measure_value
from ferrule.values.arguments import Arguments
from ferrule.values.frozen import JsonObject
from ferrule.values.json_text import SECRET_STARS, format_json, is_same_json

_MAX_COPIED = 1_000_000
"""The most values that Pydantic's errors may copy, if a few schemas check each."""
_FEW_CHECKS = 8
_SMALL_SCHEMA = 250
"""Nodes of a schema without references that cannot check one value too often."""


class TypedParameters(Parameters):
    """Parameters with Python types, validated by Pydantic in strict JSON mode.

    Args:
        core: The closed core schema: a typed dict of the keyword arguments, or a model.
    """

    def __init__(self, core: CoreSchema, schema: JsonObject, *, hidden: frozenset[str] = frozenset()) -> None:
        super().__init__(schema, hidden=hidden)
        self._core = core
        nodes = collect_nodes(core)
        self._fails_fast = set_fail_fast(nodes, True)
        self._lenient_validator = self._validator = _make_validator(core)
        may_multiply = core["type"] == "definitions" or len(nodes) > _SMALL_SCHEMA
        self._errors_copy = may_multiply and bool(self._cost.recursive or self._cost.max_checks > _FEW_CHECKS)
        timed = has_times(nodes)
        fields = find_root_fields(core)
        wire_names = {name: field.get("validation_alias") or name for name, field in fields.items()}
        root: CoreSchema = core["schema"] if core["type"] == "definitions" else core
        is_dict, is_root_model = root["type"] == "typed-dict", bool(root.get("root_model"))
        by_wire = {wire_names[name]: field["schema"] for name, field in fields.items()}
        self.respells = not any(runs_code(node) or has_own_serializer(node) for node in nodes)
        self.exact = is_exact(core, timed=timed)
        if self.exact and not (is_dict or is_root_model):
            self.exact = self._has_all_defaults(by_wire)
        if self.exact and timed:
            self._validator = _make_validator(require_canonical_times(core))
        _check_judgeable(nodes)
        if SECRET_STARS in format_json(schema):
            raise DefinitionError("a secret is a default, which guards would be shown: take it from context.secrets")
        self._make = self._bound_validation(self._validator)
        if is_dict:
            self.plain = frozenset(
                name for name, wire in wire_names.items() if wire == name and is_own_json(fields[name]["schema"])
            )
        elif not is_root_model:
            filled = {name for name, wire in wire_names.items() if wire in self.defaults}
            self._make = partial(_mark_as_set, self._make, filled)
        if not (hidden or is_root_model):
            self.validate_strictly = self._make

    def _has_all_defaults(self, fields: Mapping[str, CoreSchema]) -> bool:
        """Return whether the JSON Schema has all defaults of a model's fields. If not, the dump shows them."""
        defaults = {wire: field["default"] for wire, field in fields.items() if "default" in field}
        return defaults.keys() <= self.defaults.keys() and all(
            is_same_json(default, self.defaults[wire])
            for wire, default in defaults.items()
            if isinstance(default, str | int | float)
        )

    @cached_property
    def _dumper(self) -> Dumper:
        return Dumper(self._core)

    @cached_property
    def _cost(self) -> ValidationCost:
        return ValidationCost(self.schema, tagged=True)

    def validate(self, text: str) -> Any:
        return self._validate_with(self._make, text)

    def validate_and_normalize(self, text: str, value: object = None) -> tuple[Any, str]:
        if self._lenient_validator is not self._validator:
            with suppress(ValidationError):
                return self._make(text), text
            values = self._validate_with(self._bound_validation(self._lenient_validator), text, value)
            text, value = self._dumper.dump(values, text), None
        return self._validate_with(self._make, text, value), text

    def judged_arguments(self, text: str, values: Any) -> Arguments:
        if self.exact:
            return Arguments(text, values, self)
        judged = Arguments(self._dumper.dump(values, text), values, self)
        if judged.raw not in (text, normalize_json(text)):  # the values were made from another JSON
            try:
                judged.validated = self.revalidate(judged)
            except ArgumentErrors as wrong:
                name = next(iter(wrong.errors[0].path), None) if wrong.errors else None
                raise NotJudgeable(self._dumper.describe_mismatch(name)) from None
        return judged

    def revalidate(self, judged: Arguments) -> Any:
        values = self.validate(judged.raw)
        if not self.exact and (written := self._dumper.dump(values, judged.raw)) != judged.raw:
            name = find_difference(from_json(judged.raw), from_json(written))
            raise NotJudgeable(self._dumper.describe_mismatch(name))
        return values

    def dump_without_defaults(self, judged: Arguments) -> JsonObject:
        if self.exact:
            return super().dump_without_defaults(judged)
        return from_json(self._dumper.dump(judged.validated, judged.raw, defaults=False))  # type: ignore[no-any-return]

    def dump_fields(self, instance: object) -> dict[str, Any]:
        """Return the JSON of each field of a handler's instance, under its wire name.

        Raises:
            NotJudgeable: A field has no JSON form.
        """
        return from_json(self._dumper.dump(instance, None, checked=False))  # type: ignore[no-any-return]

    def _validate_with(self, make: Callable[[str], Any], text: str, value: object = None) -> Any:
        try:
            return make(text)
        except ArgumentErrors:
            raise
        except ValidationError as error:
            raise ArgumentErrors(self._list_errors(text, value, error)) from None
        except Exception as error:  # an author's validator that breaks refuses the value
            raise ArgumentErrors([ArgumentError((), f"cannot be checked: {type(error).__name__}")]) from error

    def _bound_validation(self, validator: SchemaValidator) -> Callable[[str], Any]:
        """Return the validation; if Pydantic's errors copy values, it refuses values too large for that."""
        return partial(self._validate_if_cheap, validator) if self._errors_copy else validator.validate_json

    def _validate_if_cheap(self, validator: SchemaValidator, text: str) -> Any:
        checks = max(1, self._cost.max_checks // _FEW_CHECKS)
        if checks * (text.count("[") + text.count("{")) * len(text) > _MAX_COPIED:
            depth, size = measure_value(from_json(text))
            if checks * depth * size > _MAX_COPIED:
                raise ArgumentErrors([ArgumentError((), "hold too much for how they nest: send less in one call")])
        return validator.validate_json(text)

    def _list_errors(self, text: str, value: object, first: ValidationError) -> list[ArgumentError]:
        """Return all errors if the values are few enough, else the first ones. `value` is the text's JSON, if known."""
        if value is None:
            with suppress(ValueError):
                value = json.loads(text)
        if self._fails_fast and sum(map(text.count, ",[{")) * self._cost.max_checks <= MAX_ERROR_WORK:
            try:
                self._thorough_validator.validate_json(text)
            except ValidationError as error:
                if error.error_count() <= MAX_ERRORS:
                    return from_pydantic(error, value)
        return from_pydantic(first, value)

    @cached_property
    def _thorough_validator(self) -> SchemaValidator:
        """The validator for all wrong items, not only the first."""
        set_fail_fast(collect_nodes(self._core), False)
        return _make_validator(self._core)


def _make_validator(core: CoreSchema) -> SchemaValidator:
    return SchemaValidator(core, CoreConfig(strict=True), _use_prebuilt=False)


def _mark_as_set(make: Callable[[str], Any], names: AbstractSet[str], text: str) -> Any:
    """Return the model made from a text, with fields of these names set: guards are shown their defaults."""
    made = make(text)
    made.__pydantic_fields_set__.update(names)
    return made


def _check_judgeable(nodes: list[CoreSchema]) -> None:
    """Refuse types and defaults without a JSON form.

    Raises:
        DefinitionError: There is such a type or default.
    """
    for node in nodes:
        kind, default = node["type"], node.get("default")
        if kind in {"model", "dataclass"} and issubclass(node["cls"], os.PathLike):
            raise DefinitionError(f"the class {node['cls'].__name__!r} has fields and is a path; take a Path")
        if hasattr(default, "get_secret_value"):
            raise DefinitionError("a secret is a default, which guards would be shown: take it from context.secrets")
        if isinstance(default, float) and not isfinite(default):
            raise DefinitionError(f"the default {default!r} has no JSON form; take None for it")
        if node.get("init_only"):
            raise DefinitionError(
                f"{node['name']!r} is an InitVar, which no object keeps to be judged by: make it a field"
            )
