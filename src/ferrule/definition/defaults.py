"""The defaults of a signature: each call gets its own, and what nobody could judge is refused."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

from pydantic import ValidationError
from pydantic_core import CoreConfig, SchemaValidator

from ferrule.arguments.argument_errors import from_pydantic
from ferrule.arguments.closing import CoreSchema, typed_dict
from ferrule.arguments.dumping import is_constant
from ferrule.errors import DefinitionError
from ferrule.values.json_text import dumps


def keep_defaults(
    fields: Mapping[str, CoreSchema],
    own: Mapping[str, object],
    exported: Mapping[str, Any],
    core: CoreSchema,
    private: Collection[str],
) -> None:
    """Have the defaults of the fields made anew for each call where a handler could change them.

    Args:
        fields: Those of the parameters, by name; they are changed.
        own: The defaults that Python fills in.
        exported: The JSON Schema of each, by the name in JSON.
        core: What they stand in.

    Raises:
        DefinitionError: for a default without a JSON form, or one that its own type refuses, where the model may leave
            the parameter out.
    """
    given: dict[str, Any] = {}
    for key, field in fields.items():
        node, wire = field["schema"], field.get("validation_alias", key)
        if node["type"] != "default" or "default" not in node:
            continue
        default, shown = node["default"], exported.get(wire, {})
        unjudged = "default" not in shown
        if unjudged and key in private:
            if default is own[key]:  # nobody is shown it, and perhaps it cannot be copied
                field["schema"] = node["schema"]
        elif unjudged:
            raise DefinitionError(
                f"the default of {key!r}, {default!r:.80}, has no JSON form to be judged by; write "
                "None, and fill it in the function"
            )
        elif isinstance(default, Hashable) and not is_constant(default):  # Pydantic copies all others
            del node["default"]
            node["default_factory"] = partial(deepcopy, default)
        if default is not None and key not in private:
            given[wire] = shown["default"]
    if given:
        chosen = {key: field for key, field in fields.items() if field.get("validation_alias", key) in given}
        part = typed_dict(chosen, None)
        _check_types({**core, "schema": part} if "definitions" in core else part, given)


def _check_types(core: CoreSchema, given: dict[str, Any]) -> None:
    try:
        SchemaValidator(core, CoreConfig(strict=True), _use_prebuilt=False).validate_json(dumps(given))
    except ValidationError as error:
        wrong = from_pydantic(error, given)[0]
        raise DefinitionError(f"the default of {wrong.path[0]!r} does not fit its type: it {wrong.expected}") from None
