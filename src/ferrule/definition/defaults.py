"""Defaults of a signature: each call gets its own, and defaults without a JSON form are refused."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

from pydantic import ValidationError
from pydantic_core import CoreConfig, SchemaValidator

from ferrule.arguments.argument_errors import from_pydantic
from ferrule.arguments.closed_schema import CoreSchema, make_typed_dict
from ferrule.arguments.dumping import is_immutable
from ferrule.errors import DefinitionError
from ferrule.values.json_text import format_json


def renew_defaults(
    fields: Mapping[str, CoreSchema],
    own: Mapping[str, object],
    exported: Mapping[str, Any],
    core: CoreSchema,
    private: Collection[str],
) -> None:
    """Change the fields so that each call gets a new default if a handler could change it.

    Args:
        fields: The fields of the parameters, by name; changed in place.
        own: The defaults in the function's signature.
        exported: The JSON Schema of each parameter, by wire name.
        core: The core schema around the fields.

    Raises:
        DefinitionError: A default of a parameter for the model has no JSON form, or does not fit its own type.
    """
    given: dict[str, Any] = {}
    for key, field in fields.items():
        node, wire = field["schema"], field.get("validation_alias", key)
        if node["type"] != "default" or "default" not in node:
            continue
        default, shown = node["default"], exported.get(wire, {})
        unjudged = "default" not in shown
        if unjudged and key in private:
            if default is own[key]:  # it is not shown, and may not be copyable
                field["schema"] = node["schema"]
        elif unjudged:
            raise DefinitionError(
                f"the default of {key!r}, {default!r:.80}, has no JSON form to be judged by; write "
                "None, and fill it in the function"
            )
        elif isinstance(default, Hashable) and not is_immutable(default):  # Pydantic copies all others
            del node["default"]
            node["default_factory"] = partial(deepcopy, default)
        if default is not None and key not in private:
            given[wire] = shown["default"]
    if given:
        chosen = {key: field for key, field in fields.items() if field.get("validation_alias", key) in given}
        part = make_typed_dict(chosen, None)
        _check_types({**core, "schema": part} if "definitions" in core else part, given)


def _check_types(core: CoreSchema, given: dict[str, Any]) -> None:
    try:
        SchemaValidator(core, CoreConfig(strict=True), _use_prebuilt=False).validate_json(format_json(given))
    except ValidationError as error:
        wrong = from_pydantic(error, given)[0]
        raise DefinitionError(f"the default of {wrong.path[0]!r} does not fit its type: it {wrong.expected}") from None
