"""Parameters whose types are Python's: Pydantic's strict JSON mode validates them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from pydantic import ValidationError
from pydantic_core import CoreConfig, SchemaValidator, from_json

from ferrule.arguments.argument_errors import MOST_ERRORS, ArgumentError, ArgumentErrors, from_pydantic
from ferrule.arguments.closing import all_nodes, direct, holds, root_fields, stop_at_first
from ferrule.arguments.judged_form import JudgedForm, is_exact
from ferrule.arguments.parameters import Parameters
from ferrule.arguments.ways import MOST_WAYS, Ways
from ferrule.values.frozen import JsonObject
from ferrule.values.json_text import SHORT, check_digits, check_repeated_keys

_MOST_WORK = 1_000_000
"""Values that errors may hold copies of."""


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
        stop_at_first(core, True)
        self._validator = _validator(core)
        self._ways: Ways | None = None
        if core["type"] == "definitions" or len(list(all_nodes(core))) > MOST_WAYS:  # else little is written out
            ways = Ways(self.schema, tagged=True)
            self._ways = ways if ways.recursive else None
        self.exact = holds(core, "decimal")
        self._written = JudgedForm(core)
        self.form = None if is_exact(core, {}) else self._written
        self.whole = self._written.whole
        fields = root_fields(core)
        wire_names = {name: field.get("validation_alias") or name for name, field in fields.items()}
        if not self.whole:
            self.direct = frozenset(
                name for name, wire in wire_names.items() if wire == name and direct(fields[name]["schema"])
            )
        if not (hidden or drop_unknown):
            self.quick = self._quick({name: wire for name, wire in wire_names.items() if wire != name})

    def _quick(self, renamed: Mapping[str, str]) -> Callable[[str], Any]:
        read, exact = self._validator.validate_json if self._ways is None else self._read, self.exact

        def quick(text: str) -> Any:
            if exact:
                check_digits(text)
            values = given = read(text)
            if type(values) is not dict:
                given = {name: values.__dict__.get(name) for name in values.__pydantic_fields_set__}
            if len(text) > SHORT or text.count(",") >= len(given):
                named = {renamed.get(name, name): value for name, value in given.items()} if renamed else given
                check_repeated_keys(text, named)
            return values

        return quick

    def values(self, text: str) -> Any:
        try:
            return self._read(text)
        except ArgumentErrors:
            raise
        except ValidationError as error:
            raise ArgumentErrors(self._errors(text, error)) from None
        except Exception as error:  # a validator of the author's own that breaks says no
            raise ArgumentErrors([ArgumentError((), f"cannot be checked: {type(error).__name__}")]) from error

    def fields_of(self, instance: object, received: str | None) -> dict[str, Any]:
        """The JSON of each field of a handler's instance, under the name that a model fills it by; of secrets those
        that were `received`, or all for `None`.

        Raises:
            NoJudgedForm: where one has none.
        """
        return from_json(self._written.text(instance, received, checked=False))  # type: ignore[no-any-return]

    def _read(self, text: str) -> Any:
        """Validated; where a value may hold others of its type, only if it is not too much for how deep it nests."""
        if self._ways is not None and (text.count("[") + text.count("{")) * len(text) > _MOST_WORK:
            if self._ways.work(from_json(text)) > _MOST_WORK:
                raise ArgumentErrors([ArgumentError((), "hold too much for how deep they nest: send less in one call")])
        return self._validator.validate_json(text)

    def _errors(self, text: str, first: ValidationError) -> list[ArgumentError]:
        """What is wrong: all of it where the values are few enough, else what validation ends at."""
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if sum(map(text.count, ",[{")) <= 2 * MOST_ERRORS:
            try:
                self._thorough.validate_json(text)
            except ValidationError as error:
                if error.error_count() <= MOST_ERRORS:
                    return from_pydantic(error, value)
        return from_pydantic(first, value)

    @cached_property
    def _thorough(self) -> SchemaValidator:
        """The validator that does not end at the first wrong item, made when it is needed."""
        stop_at_first(self._core, False)
        return _validator(self._core)


def _validator(core: dict[str, Any]) -> SchemaValidator:
    return SchemaValidator(core, CoreConfig(strict=True), _use_prebuilt=False)
