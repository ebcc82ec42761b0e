"""Parameters with a `default_factory`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ferrule.arguments.closing import root_fields
from ferrule.arguments.typed_parameters import TypedParameters
from ferrule.errors import DefinitionError

_CONTAINERS: dict[Any, list[Any] | dict[str, Any]] = {list: [], tuple: [], set: [], frozenset: [], dict: {}}


def with_factories(
    name: str, core: dict[str, Any], schema: dict[str, Any], hidden: frozenset[str], drop_unknown: bool
) -> TypedParameters:
    """Parameters whose `default_factory` Ferrule calls, so that its JSON is judged; Pydantic would call it each time
    that something is validated. An empty container is a default like any other.

    What it makes now stands for what it will make. One that raises now may need what is there only during a call.
    """
    factories: dict[str, Callable[[], Any]] = {}
    made: dict[str, Any] = {}
    for field_name, field in root_fields(core).items():
        node, wire = field["schema"], field.get("validation_alias") or field_name
        factory = node.get("default_factory") if node["type"] == "default" else None
        if factory is None:
            continue
        if node.get("default_factory_takes_data"):
            raise DefinitionError(
                f"tool {name!r}: the default_factory of {wire!r} takes validated data, which there is none of before "
                "validation; make the value in the handler"
            )
        if factory in _CONTAINERS:
            schema["properties"][wire].setdefault("default", _CONTAINERS[factory])
            continue
        factories[wire] = factory
        with suppress(Exception):
            made[wire] = factory()
        field["schema"] = {"type": "default", "schema": node["schema"], "default": made.get(wire)}
    parameters = TypedParameters(core, schema, factories=factories, hidden=hidden, drop_unknown=drop_unknown)
    for wire, value in made.items():
        parameters.check_made(name, wire, value)
    return parameters
