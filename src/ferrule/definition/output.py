"""What a handler returns: its schema, and the check that it was kept to."""

from __future__ import annotations

import types
from contextlib import suppress
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from ferrule.arguments.argument_errors import ArgumentError, Path, from_json_schema
from ferrule.arguments.exporting import json_schema_of_output
from ferrule.arguments.schema_parameters import Enforced, plain_schema
from ferrule.definition.handler import UNKNOWN
from ferrule.values.content import Media, NotShowable, Text, is_json
from ferrule.values.deferred import PUT_OFF
from ferrule.values.frozen import FrozenDict, JsonObject, freeze
from ferrule.values.masking import without_credentials
from ferrule.values.result import ToolResult, rendered

_BLOCK_KINDS = (Text, Media)
_FREE = (UNKNOWN, Any, object, ToolResult, bytes, bytearray, *_BLOCK_KINDS, *PUT_OFF)
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
    """The form of one tool's output, built when first needed: most tools return text, which needs no validator.

    Attributes:
        exact: The class of every output, or `None` if its schema says more.
        ready: The classes whose instances are results as they are.
        free: Whether anything fits.
    """

    def __init__(self, returns: Any, given: JsonObject | None) -> None:
        if get_origin(returns) in (Union, types.UnionType):  # what puts the output off is none
            returns = Union[tuple(kind for kind in get_args(returns) if kind not in PUT_OFF)]  # noqa: UP007
        self._returns = returns
        self.exact: type | None = returns if given is None and returns in _SCALARS else None
        self.free = given is None and _is_free(returns)
        self.ready = frozenset(_SCALARS if self.free else (self.exact,)) - {float}  # which may be NaN
        self._schema: FrozenDict | None = None
        self._enforced: Enforced | None = None
        if given is not None:
            plain = plain_schema(given, "output_schema")
            self._schema = freeze(plain)
            self._enforced = Enforced(plain, "output_schema", given)

    @cached_property
    def adapter(self) -> TypeAdapter[Any] | None:
        """Pydantic's adapter of the return type, or None if another schema is given or anything fits."""
        if self.free or self._enforced is not None:
            return None
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(self._returns)
            schema = json_schema_of_output(adapter)
            self._enforced = Enforced(schema, "the return type", schema, formats=False)
            self._schema = freeze(schema)
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
        """Return the value as it is if it needs no look, else a `Shaped` with its JSON compared with the schema.

        Raises:
            BaseException: whatever the methods of the value raise.
        """
        if type(value) in self.ready or type(value) in PUT_OFF:
            return value
        not_finite: list[str] = []
        try:
            result = rendered(value, not_finite)
        except NotShowable as error:
            return Shaped(None, f"it returned {error}")
        return Shaped(result, "" if isinstance(value, ToolResult) else self._problem(result.output, not_finite))

    def misfit(self, output: object) -> str:
        """Say in what JSON data does not fit the schema, without credentials; nothing if it does."""
        errors = self._errors(output)
        return "" if not errors else _describe_misfit(errors[0])

    def _problem(self, output: Any, not_finite: list[str]) -> str:
        errors = self._errors(output)
        if not errors:
            return ""
        if not_finite and _is_null(output, errors[0].path):
            return f"{not_finite[0]} has no JSON form; return None or a string"
        return f"what it returned does not fit its output schema: {_describe_misfit(errors[0])}"

    def _errors(self, output: object) -> list[ArgumentError]:
        _ = self.adapter  # makes what is enforced
        if self._enforced is None or not is_json(output):
            return []
        errors = self._enforced.errors(output)
        if errors is None:
            return [ArgumentError((), "holds too many values to say where it does not fit")]
        return from_json_schema(errors)


def _is_free(returns: Any, free: tuple[Any, ...] = _FREE) -> bool:
    """Whether nothing can be said of the JSON of a type; bytes and blocks are sent as they are."""
    if any(returns is kind for kind in free):
        return True
    origin, kinds = get_origin(returns), get_args(returns)
    if origin in (Union, types.UnionType, Annotated):
        return any(_is_free(kind, free) for kind in kinds)
    return origin in (list, tuple) and any(_is_free(kind, _BLOCK_KINDS) for kind in kinds)


def _is_null(output: Any, path: Path) -> bool:
    with suppress(LookupError):  # of a key that is missing
        for part in path:
            output = output[part]
        return output is None
    return False


def _describe_misfit(error: ArgumentError) -> str:
    place = ".".join(map(str, error.path))
    return without_credentials(f"{place} {error.expected}".strip(), 300)


class Ticket(TypedDict):
    """What a call in the background gives at once."""

    ticket: str
    status: Literal["running"]


TICKET_OUTPUT = Output(Ticket, None)
