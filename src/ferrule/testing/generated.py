"""Arguments that fit a tool's input schema, the same ones in every process."""

from __future__ import annotations

import json
from typing import Any

from ferrule.arguments.schema_parameters import JsonSchemaValidator
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.testing.values import NoFittingValue, make_fitting
from ferrule.values.frozen import thaw

_ATTEMPTS = 20


def generate_arguments(tool: Tool) -> list[dict[str, Any]]:
    """Return at most twenty different arguments that fit `tool.input_schema`. Whether the tool accepts them is
    unchecked.

    Raises:
        DefinitionError: No arguments could be made up.
    """
    schema = thaw(tool.input_schema)
    enforced = JsonSchemaValidator(schema, f"the input schema of {tool.name!r}", schema)

    def finish(value: Any) -> dict[str, Any]:
        if enforced.find_errors(value) != ():
            raise NoFittingValue((), f"{value!r:.200} does not fit")
        return value  # type: ignore[no-any-return]

    found: dict[str, dict[str, Any]] = {}
    try:
        for seed in range(_ATTEMPTS):
            made = make_fitting(schema, finish, f"{tool.name} {seed}")
            found.setdefault(json.dumps(made, sort_keys=True), made)
    except NoFittingValue as unmet:
        at = f"at {'.'.join(map(str, unmet.path))!r}" if unmet.path else "as a whole"
        raise DefinitionError(f"no arguments of {tool.name!r} could be made up: {at}, {unmet.why}") from None
    return list(found.values())
