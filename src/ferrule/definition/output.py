"""What a handler returns: its schema, and the check that it was kept to."""

from __future__ import annotations

import types
from contextlib import suppress
from functools import cached_property
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ferrule.arguments.exporting import json_schema_of_output
from ferrule.arguments.schema_parameters import Enforced, plain_schema
from ferrule.definition.handler import UNKNOWN
from ferrule.values.content import Media, NotShowable, Text
from ferrule.values.deferred import PUT_OFF
from ferrule.values.frozen import FrozenDict, JsonObject, freeze
from ferrule.values.json_text import dumps
from ferrule.values.masking import without_credentials
from ferrule.values.result import ToolResult, rendered

_FREE = (UNKNOWN, Any, object, ToolResult, Text, Media, *PUT_OFF)
_SCALARS = (str, int, float, bool, types.NoneType)


class Shaped(NamedTuple):
    """What a handler returned, made where it ran: nobody else runs its code.

    Attributes:
        result: The value, rendered; `None` where no result can hold it.
        problem: What is wrong with it, or nothing.
    """

    result: ToolResult | None
    problem: str = ""


class Output:
    """What one tool returns. Built when first needed: most tools return text, which needs no validator.

    Attributes:
        exact: The class that is returned, where that is all there is to say, or `None`.
        ready: The classes whose instances need no look.
        free: Whether anything fits.
    """

    def __init__(self, returns: Any, given: JsonObject | None) -> None:
        if get_origin(returns) in (Union, types.UnionType):  # what puts the output off is none
            returns = Union[tuple(kind for kind in get_args(returns) if kind not in PUT_OFF)]  # noqa: UP007
        self._returns = returns
        self.exact: type | None = returns if given is None and returns in _SCALARS else None
        self.free = given is None and any(returns is kind for kind in _FREE)
        self.ready = frozenset(_SCALARS if self.free else (self.exact,))
        self._schema: FrozenDict | None = None
        self._enforced: Enforced | None = None
        if given is not None:
            plain = plain_schema(given, "output_schema")
            self._schema = freeze(plain)
            self._enforced = Enforced(plain, "output_schema", given)

    @cached_property
    def adapter(self) -> TypeAdapter[Any] | None:
        """Pydantic's adapter of the return type, where that is what is checked."""
        if self.free or self._enforced is not None:
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

    def shape(self, value: Any) -> Any:
        """What the handler returned: as it is where it needs no look, else rendered and compared with the schema.

        Raises:
            BaseException: whatever the methods of the value raise.
        """
        if type(value) in self.ready or type(value) in PUT_OFF:
            return value
        try:
            result = rendered(value)
        except NotShowable as error:
            return Shaped(None, f"it returned {error}")
        misfit = self.misfit(value, result.output)
        return Shaped(result, f"what it returned does not fit its output schema: {misfit}" if misfit else "")

    def misfit(self, value: object, output: object) -> str:
        """Where `value`, whose plain data are `output`, does not fit the schema, without credentials; nothing where it
        does."""
        if self.free or isinstance(value, ToolResult | Text | Media):
            return ""
        if self._enforced is not None:
            errors = self._enforced.errors(output)
            if errors is None:
                return "it holds too many values to say where"
            return next((without_credentials(error.message, 300) for error in errors), "")
        adapter = self.adapter
        if adapter is None:
            return ""
        for one in (value, output):  # a `bytearray` is rendered as bytes
            with suppress(ValidationError):
                adapter.validate_python(one, strict=True)
                return ""
        try:  # another type whose JSON is the same will do, such as a tuple for a list
            adapter.validate_json(dumps(output), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return without_credentials(f"{'.'.join(map(str, first['loc']))} {first['msg']}".strip())
        return ""


class Ticket(TypedDict):
    """What a call in the background gives at once."""

    ticket: str
    status: Literal["running"]


TICKET_OUTPUT = Output(Ticket, None)
