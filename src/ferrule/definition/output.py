"""What a handler returns: its schema, and the check that it was kept to."""

from __future__ import annotations

import types
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ferrule.arguments.exporting import MOST_DEPTH, json_schema_of_output, too_deep
from ferrule.arguments.schema_parameters import schema_validator
from ferrule.definition.handler import UNKNOWN
from ferrule.errors import DefinitionError
from ferrule.values.content import Media, Text, jsonable
from ferrule.values.frozen import FrozenDict, JsonObject, freeze
from ferrule.values.json_text import dumps
from ferrule.values.result import ToolResult

_FREE = (UNKNOWN, Any, object, ToolResult, Text, Media)
_SCALARS = (str, int, float, bool)


class OutputMismatch(Exception):
    """What the handler returned does not fit the output schema."""


class Output:
    """What one tool returns. Built when first needed: most tools return text, which needs no validator.

    Attributes:
        exact: The class whose instances need no look, or `None`.
        free: Whether anything fits.
    """

    def __init__(self, name: str, returns: Any, given: JsonObject | None) -> None:
        self._returns = returns
        self.exact: type | None = None
        if given is None and (returns is None or returns in _SCALARS):
            self.exact = types.NoneType if returns is None else returns
        self.free = given is None and any(returns is kind for kind in _FREE)
        self._schema: FrozenDict | None = None
        self._validator: Any = None
        if given is not None:
            if not isinstance(given, Mapping):
                raise DefinitionError(f"tool {name!r}: output_schema must be a JSON Schema object, not {given!r}")
            if too_deep(given):
                raise DefinitionError(f"tool {name!r}: output_schema nests more than {MOST_DEPTH} deep")
            self._schema = freeze(given)
            self._validator = schema_validator(dict(given))

    @cached_property
    def adapter(self) -> TypeAdapter[Any] | None:
        """Pydantic's adapter of the return type, where that is what is checked."""
        if self.free or self._validator is not None:
            return None
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(self._returns)
            self._schema = freeze(json_schema_of_output(adapter))
        except Exception:  # a return type that JSON cannot carry says nothing about what the model gets
            self.free = True
            return None
        return adapter

    @property
    def schema(self) -> FrozenDict | None:
        """The JSON Schema, or `None` where nothing is known."""
        _ = self.adapter  # fills it in
        return self._schema

    def check(self, value: object) -> None:
        """Raises `OutputMismatch` where `value` does not fit."""
        adapter = self.adapter
        if self.free or isinstance(value, ToolResult | Text | Media):
            return
        if adapter is not None:
            try:
                adapter.validate_python(value, strict=True)
                return
            except ValidationError:
                pass
            try:  # another type whose JSON is the same will do, such as a tuple for a list
                adapter.validate_json(dumps(value), strict=True)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                raise OutputMismatch(f"{'.'.join(map(str, first['loc']))} {first['msg']}".strip()) from None
            except ValueError as error:
                raise OutputMismatch(str(error)[:300]) from None
        elif self._validator is not None:
            wrong = next(iter(self._validator.iter_errors(jsonable(value))), None)
            if wrong is not None:
                raise OutputMismatch(str(wrong.message)[:300])
