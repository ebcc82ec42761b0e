"""Parameters whose types are Python's: Pydantic's strict JSON mode validates them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import CoreConfig, SchemaValidator, to_json

from ferrule.arguments.argument_errors import ArgumentError, ArgumentErrors, from_pydantic
from ferrule.arguments.closing import direct, holds, root_fields
from ferrule.arguments.parameters import NOTHING, Parameters
from ferrule.errors import DefinitionError
from ferrule.values.frozen import JsonObject
from ferrule.values.json_text import SECRET_STARS, SHORT, check_digits, check_repeated_keys, loads


class TypedParameters(Parameters):
    """Parameters whose types are Python's, validated by Pydantic in strict JSON mode.

    Args:
        core: The closed core schema: a typed dict of the keyword arguments, or a model.
        factories: What makes the defaults that are new for each call, by the parameter's name in JSON; `core` has
            other defaults in their place.
    """

    def __init__(
        self,
        core: dict[str, Any],
        schema: JsonObject,
        *,
        factories: Mapping[str, Callable[[], Any]] = NOTHING,
        hidden: frozenset[str] = frozenset(),
        drop_unknown: bool = False,
    ) -> None:
        super().__init__(schema, hidden=hidden, drop_unknown=drop_unknown)
        self._validator = SchemaValidator(core, CoreConfig(strict=True), _use_prebuilt=False)
        self.factories = factories
        self.exact = holds(core, "decimal")
        fields = root_fields(core)
        wire_names = {name: field.get("validation_alias") or name for name, field in fields.items()}
        if (core["schema"] if core["type"] == "definitions" else core)["type"] == "typed-dict":
            same_names = (name for name in fields if wire_names[name] == name)
            self.direct = frozenset(name for name in same_names if direct(fields[name]["schema"]))
        if not (hidden or drop_unknown or factories):
            self.quick = self._quick({name: wire for name, wire in wire_names.items() if wire != name})

    def _quick(self, renamed: Mapping[str, str]) -> Callable[[str], Any]:
        read, exact = self._validator.validate_json, self.exact

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
            return self._validator.validate_json(text)
        except ValidationError as error:
            try:
                value = json.loads(text)
            except ValueError:
                value = None
            raise ArgumentErrors(from_pydantic(error, value)) from None
        except Exception as error:  # a validator of the author's own that breaks says no
            raise ArgumentErrors([ArgumentError((), f"cannot be checked: {type(error).__name__}")]) from error

    def check_made(self, name: str, key: str, made: object) -> None:
        """Raise a `DefinitionError` where what a factory made has no JSON form, or one that the parameter refuses."""
        try:
            text = to_json(made, inf_nan_mode="constants").decode()
            loads(text)
            reason = "a secret has none" if SECRET_STARS in text else self.refusal(name, key, made)
        except Exception as error:  # whatever an object of the author's own raises
            reason = f"it has none: {str(error).partition(chr(10))[0]}"
        if reason:
            raise DefinitionError(
                f"tool {name!r}: what the default_factory of {key!r} makes is written down as JSON, and {reason}; "
                "make it in the handler instead"
            )
