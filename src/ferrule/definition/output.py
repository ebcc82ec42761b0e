"""What a handler returns: its schema, and the check that it was kept to."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ferrule.arguments import core_schema
from ferrule.arguments.parameters import _schema_validator
from ferrule.definition.function import _UNKNOWN
from ferrule.errors import DefinitionError
from ferrule.values.content import Media, Text, jsonable
from ferrule.values.frozen import FrozenDict, freeze
from ferrule.values.json_text import dumps
from ferrule.values.result import ToolResult

_FREE = (_UNKNOWN, Any, object, ToolResult, Text, Media)
_SCALARS = (str, int, float, bool)


class OutputMismatch(Exception):
    """What the handler returned does not fit the output schema."""


class Output:
    """What one tool returns. Built when first needed: most tools return text, which needs no validator.

    Attributes:
        exact: The class whose instances need no look, or `None`.
        free: Whether anything fits.
    """

    __slots__ = ("_adapter", "_built", "_given", "_name", "_returns", "_schema", "_validator", "exact", "free")

    def __init__(self, name: str, returns: Any, given: Mapping[str, Any] | None) -> None:
        self._name = name
        self._returns = returns
        self._given = given
        self._adapter: TypeAdapter[Any] | None = None
        self._schema: FrozenDict | None = None
        self._validator: Any = None
        self.exact: type | None = returns if given is None and returns in _SCALARS else None
        if given is None and returns is None:
            self.exact = types.NoneType
        self.free = given is None and any(returns is kind for kind in _FREE)
        self._built = self.free
        if given is not None:
            if not isinstance(given, Mapping):
                raise DefinitionError(f"tool {name!r}: output_schema must be a JSON Schema object, not {given!r}")
            if core_schema.too_deep(given):
                raise DefinitionError(f"tool {name!r}: output_schema nests more than {core_schema.MOST_DEPTH} deep")
            self._schema = freeze(given)
            self._validator = _schema_validator(dict(given))
            self._built = True

    @property
    def schema(self) -> FrozenDict | None:
        """The JSON Schema, or `None` where nothing is known."""
        self._build()
        return self._schema

    def _build(self) -> None:
        if self._built:
            return
        self._built = True
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(self._returns)
            self._schema = freeze(core_schema.json_schema_of_output(adapter))
            self._adapter = adapter
        except Exception:  # a return type that JSON cannot carry says nothing about what the model gets
            self.free = True

    def check(self, value: Any) -> None:
        """Raises `OutputMismatch` where `value` does not fit."""
        self._build()
        if self.free or isinstance(value, ToolResult | Text | Media):
            return
        if self._adapter is not None:
            try:
                self._adapter.validate_python(value, strict=True)
                return
            except ValidationError:
                pass
            try:  # another type whose JSON is the same will do, such as a tuple for a list
                self._adapter.validate_json(dumps(value), strict=True)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                raise OutputMismatch(f"{'.'.join(map(str, first['loc']))} {first['msg']}".strip()) from None
            except ValueError as error:
                raise OutputMismatch(str(error)[:300]) from None
        elif self._validator is not None:
            wrong = next(iter(self._validator.iter_errors(jsonable(value))), None)
            if wrong is not None:
                raise OutputMismatch(str(wrong.message)[:300])
