"""Parameters whose types are Python's: Pydantic's strict JSON mode validates them."""

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

from ferrule.arguments.argument_errors import MOST_ERRORS, ArgumentError, ArgumentErrors, from_pydantic
from ferrule.arguments.closing import (
    all_nodes,
    direct,
    is_either,
    read_from_base64,
    root_fields,
    spelled,
    spelled_exactly,
    stop_at_first,
)
from ferrule.arguments.dumping import Dump, NoJudgedForm, first_unlike, is_exact, rewritten_text, runs_code
from ferrule.arguments.parameters import Parameters
from ferrule.arguments.ways import MOST_TOLD, Ways, measured
from ferrule.errors import DefinitionError
from ferrule.values.arguments import Arguments
from ferrule.values.encoded_bytes import dumps_in_base64
from ferrule.values.frozen import JsonObject
from ferrule.values.json_text import SECRET_STARS, SHORT, check_digits, check_repeated_keys, dumps, same

_MOST_WORK = 1_000_000
"""Values that errors may hold copies of, each in a few ways."""
_FEW = 8
_LITTLE = 250
"""Nodes that cannot be written out to too much, where none is referred to."""


class TypedParameters(Parameters):
    """Parameters whose types are Python's, validated by Pydantic in strict JSON mode.

    Args:
        core: The closed core schema: a typed dict of the keyword arguments, or a model.
    """

    def __init__(
        self,
        core: dict[str, Any],
        schema: JsonObject,
        *,
        hidden: frozenset[str] = frozenset(),
        drop_unknown: bool = False,
    ) -> None:
        super().__init__(schema, hidden=hidden, drop_unknown=drop_unknown)
        self._core = core
        nodes = all_nodes(core)
        self._stops = stop_at_first(nodes, True)
        self._reader = self._validator = _validator(core)
        written_out = core["type"] == "definitions" or len(nodes) > _LITTLE
        self._copies = written_out and bool(self._ways.recursive or self._ways.most > _FEW)
        self.keeps_digits = any(node["type"] == "decimal" for node in nodes)
        dated = spelled(nodes)
        self.respells = not any(map(runs_code, nodes))
        self.exact = is_exact(core, dated=dated) and not self._is_unlike(core)
        if self.exact and dated:
            self._validator = _validator(spelled_exactly(core))
        _check_judgeable(nodes)
        if any(encoded := read_from_base64(nodes)):
            self.write = partial(dumps_in_base64, plain=all(encoded))
            _check_bytes(nodes)
        if SECRET_STARS in dumps(self.schema):
            raise DefinitionError("a secret is a default, which guards would be shown: take it from context.secrets")
        fields = root_fields(core)
        wire_names = {name: field.get("validation_alias") or name for name, field in fields.items()}
        self._make = self._validating(self._validator)
        renamed = {name: wire for name, wire in wire_names.items() if wire != name}
        root = core["schema"] if core["type"] == "definitions" else core
        if root["type"] == "typed-dict":
            self.direct = frozenset(
                name for name, wire in wire_names.items() if wire == name and direct(fields[name]["schema"])
            )
        elif not root.get("root_model"):
            filled = {name for name, wire in wire_names.items() if wire in self.defaults}
            self._make = partial(_with_set, self._make, filled)
        if not (hidden or drop_unknown or root.get("root_model")):
            self.quick = self._quick(renamed)

    def _is_unlike(self, core: dict[str, Any]) -> bool:
        """Whether a field of a model has a default that its JSON Schema does not tell; then the dump shows it.

        Raises:
            DefinitionError: where a field is not in it at all.
        """
        root = core["schema"] if core["type"] == "definitions" else core
        if root["type"] == "typed-dict" or root.get("root_model"):
            return False
        fields = {field.get("validation_alias") or name: field["schema"] for name, field in root_fields(core).items()}
        if unlike := fields.keys() ^ self.schema.get("properties", {}).keys():
            raise DefinitionError(f"the field {min(unlike)!r} is only in the type or only in the JSON Schema of it")
        own = {wire: field["default"] for wire, field in fields.items() if "default" in field}
        plain = {wire: default for wire, default in own.items() if isinstance(default, str | int | float)}
        return not own.keys() <= self.defaults.keys() or not all(same(plain[one], self.defaults[one]) for one in plain)

    @cached_property
    def _dump(self) -> Dump:
        return Dump(self._core)

    def _quick(self, renamed: Mapping[str, str]) -> Callable[[str], Any]:
        make, exact, least = self._make, self.keeps_digits, len(self.required)

        def quick(text: str) -> Any:
            if exact:
                check_digits(text)
            values = given = make(text)
            if type(values) is not dict:
                given = {name: values.__dict__.get(name) for name in values.__pydantic_fields_set__}
            if len(text) > SHORT or text.count(",") >= least:
                named = {renamed.get(name, name): value for name, value in given.items()} if renamed else given
                check_repeated_keys(text, named)
            return values

        return quick

    def read(self, text: str) -> tuple[Any, str]:
        if self._reader is not self._validator:
            with suppress(ValidationError):
                return self._make(text), text
            text = self._dump.text(self._told(self._validating(self._reader), text), text)
        return self.values(text), text

    def judged(self, text: str, values: Any) -> Arguments:
        if self.exact:
            return Arguments(text, values, self)
        judged = Arguments(self._dump.text(values, text), values, self)
        if judged.raw not in (text, rewritten_text(text)):  # else they are made of what is judged
            try:
                judged.validated = self.again(judged)
            except ArgumentErrors as wrong:
                name = next(iter(wrong.errors[0].path), None) if wrong.errors else None
                raise NoJudgedForm(self._dump.not_read(name)) from None
        return judged

    def beyond_defaults(self, judged: Arguments) -> JsonObject:
        if self.exact:
            return super().beyond_defaults(judged)
        return from_json(self._dump.text(judged.validated, judged.raw, defaults=False))  # type: ignore[no-any-return]

    def again(self, judged: Arguments) -> Any:
        values = self.values(judged.raw)
        if not self.exact and (written := self._dump.text(values, judged.raw)) != judged.raw:
            raise NoJudgedForm(self._dump.not_read(first_unlike(from_json(judged.raw), from_json(written))))
        return values

    def values(self, text: str) -> Any:
        return self._told(self._make, text)

    def _told(self, make: Callable[[str], Any], text: str) -> Any:
        try:
            return make(text)
        except ArgumentErrors:
            raise
        except ValidationError as error:
            raise ArgumentErrors(self._errors(text, error)) from None
        except Exception as error:  # a validator of the author's own that breaks says no
            raise ArgumentErrors([ArgumentError((), f"cannot be checked: {type(error).__name__}")]) from error

    def fields_of(self, instance: object) -> dict[str, Any]:
        """The JSON of each field of a handler's instance, under the name that a model fills it by.

        Raises:
            NoJudgedForm: where one has none.
        """
        return from_json(self._dump.text(instance, None, checked=False))  # type: ignore[no-any-return]

    @cached_property
    def _ways(self) -> Ways:
        return Ways(self.schema, tagged=True)

    def _validating(self, validator: SchemaValidator) -> Callable[[str], Any]:
        """Validation by it; where errors would hold copies, only of a value that is not too much for its depth."""
        return partial(self._bounded, validator) if self._copies else validator.validate_json

    def _bounded(self, validator: SchemaValidator, text: str) -> Any:
        ways = max(1, self._ways.most // _FEW)
        if ways * (text.count("[") + text.count("{")) * len(text) > _MOST_WORK:
            depth, size = measured(from_json(text))
            if ways * depth * size > _MOST_WORK:
                raise ArgumentErrors([ArgumentError((), "hold too much for how they nest: send less in one call")])
        return validator.validate_json(text)

    def _errors(self, text: str, first: ValidationError) -> list[ArgumentError]:
        """What is wrong: all of it where the values are few enough, else what validation ends at."""
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if self._stops and sum(map(text.count, ",[{")) * self._ways.most <= MOST_TOLD:
            try:
                self._thorough.validate_json(text)
            except ValidationError as error:
                if error.error_count() <= MOST_ERRORS:
                    return from_pydantic(error, value)
        return from_pydantic(first, value)

    @cached_property
    def _thorough(self) -> SchemaValidator:
        """The validator that does not end at the first wrong item, made when it is needed."""
        stop_at_first(all_nodes(self._core), False)
        return _validator(self._core)


def _validator(core: dict[str, Any]) -> SchemaValidator:
    return SchemaValidator(core, CoreConfig(strict=True), _use_prebuilt=False)


def _with_set(make: Callable[[str], Any], names: AbstractSet[str], text: str) -> Any:
    """The model that is made of a text; fields of these names count as set, since guards are shown their defaults."""
    made = make(text)
    made.__pydantic_fields_set__.update(names)
    return made


def _check_bytes(nodes: list[dict[str, Any]]) -> None:
    """Refuse bytes where a string may be something else, and beside what is written as the class of each object says,
    and not as its declared type is read.

    Raises:
        DefinitionError: with the way out.
    """
    for node in nodes:
        if node["type"] in {"union", "tagged-union"} and is_either(node):
            raise DefinitionError("bytes stand beside another type, as in `str | bytes`: take one of both")
        as_any = node.get("serialization", {}).get("type") == "any"
        if as_any or (node.get("config") or {}).get("polymorphic_serialization"):
            raise DefinitionError("bytes beside SerializeAsAny or polymorphic_serialization: take the declared types")


def _check_judgeable(nodes: list[dict[str, Any]]) -> None:
    """Refuse what no JSON would say.

    Raises:
        DefinitionError: with the way out.
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
