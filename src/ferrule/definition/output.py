"""The output of a tool: its schema, and the check of a handler's value."""

from __future__ import annotations

import types
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from ferrule.arguments.argument_errors import ArgumentError, from_json_schema
from ferrule.arguments.exporting import export_output_schema
from ferrule.definition.handler import UNANNOTATED
from ferrule.security.masking import mask_credentials
from ferrule.values.content import Media, NotShowable, Text, is_json
from ferrule.values.frozen import FrozenDict, JsonObject, freeze
from ferrule.values.result import Suspending, ToolResult, render_as_result

if TYPE_CHECKING:
    from ferrule.arguments.schema_parameters import JsonSchemaValidator

_BLOCK_KINDS = (Text, Media)
_FREE = (UNANNOTATED, Any, object, ToolResult, bytes, bytearray, *_BLOCK_KINDS)
_SCALARS = (str, int, float, bool, types.NoneType)


class RenderedOutput(NamedTuple):
    """A handler's value as a result. It is made where the handler ran, because it runs methods of the value.

    Attributes:
        result: The rendered value, or None if a result cannot hold it.
        problem: The mistake in the value, or an empty text.
    """

    result: ToolResult | None
    problem: str = ""


class EnforcedSchema(NamedTuple):
    """An output schema with its validator, and with Pydantic's adapter if it comes from a return type."""

    schema: FrozenDict
    validator: JsonSchemaValidator
    adapter: TypeAdapter[Any] | None = None


class Output:
    """The schema of one tool's output, built when first needed: most tools return text, and need no validator.

    Attributes:
        is_text: Whether every output is a text.
        ready_classes: The classes of values that need no check.
    """

    def __init__(self, returns: Any, given: JsonObject | None) -> None:
        kinds = get_args(returns) if get_origin(returns) in (Union, types.UnionType) else (returns,)
        kept = [kind for kind in kinds if not (isinstance(kind, type) and issubclass(kind, Suspending))]
        if len(kept) < len(kinds):  # values that put the output off do not count
            returns = Union[tuple(kept or [object])]  # noqa: UP007
        self._returns = returns
        exact = returns if given is None and returns in _SCALARS else None
        is_free = given is None and _is_free(returns)
        self.is_text = exact is str
        self.ready_classes = frozenset(_SCALARS if is_free else (exact,)) - {float}  # a float may be NaN
        if given is not None:
            from ferrule.arguments.schema_parameters import JsonSchemaValidator, copy_schema  # most tools need none

            plain = copy_schema(given, "output_schema")
            self.enforced = EnforcedSchema(freeze(plain), JsonSchemaValidator(plain, "output_schema", given))
        elif is_free:
            self.enforced = None

    @cached_property
    def enforced(self) -> EnforcedSchema | None:
        """The schema that is enforced, or None if any value fits."""
        from ferrule.arguments.schema_parameters import JsonSchemaValidator

        try:
            adapter: TypeAdapter[Any] = TypeAdapter(self._returns)
            schema = export_output_schema(adapter)
            validator = JsonSchemaValidator(schema, "the return type", schema, formats=False)
            return EnforcedSchema(freeze(schema), validator, adapter)
        except Exception:  # a return type without a JSON form describes no JSON
            return None

    @property
    def schema(self) -> FrozenDict | None:
        """The JSON Schema, or None if any value fits."""
        return None if self.enforced is None else self.enforced.schema

    def render(self, value: Any) -> Any:
        """Return the value itself if it needs no check, else a `RenderedOutput` that is checked against the schema.

        Raises:
            BaseException: A method of the value raised it.
        """
        if type(value) in self.ready_classes or issubclass(type(value), Suspending):
            return value
        try:
            result = render_as_result(value)
        except NotShowable as error:
            return RenderedOutput(None, f"it returned {error}")
        misfit = "" if isinstance(value, ToolResult) else self.describe_misfit(result.output)
        return RenderedOutput(result, misfit and f"what it returned does not fit its output schema: {misfit}")

    def describe_misfit(self, output: object) -> str:
        """Return the first mistake in JSON data, without credentials, or an empty text."""
        errors = self._find_errors(output)
        if not errors:
            return ""
        place = ".".join(map(str, errors[0].path))
        return mask_credentials(f"{place} {errors[0].expected}".strip(), 300)

    def _find_errors(self, output: object) -> list[ArgumentError]:
        if self.enforced is None or not is_json(output):
            return []
        errors = self.enforced.validator.find_errors(output)
        if errors is None:
            return [ArgumentError((), "holds too many values to say where it does not fit")]
        return from_json_schema(errors)


def _is_free(returns: Any, free: tuple[Any, ...] = _FREE) -> bool:
    """Return whether a type has no JSON Schema. Bytes and blocks are sent as they are."""
    if any(returns is kind for kind in free):
        return True
    origin, kinds = get_origin(returns), get_args(returns)
    if origin in (Union, types.UnionType, Annotated):
        return any(_is_free(kind, free) for kind in kinds)
    return origin in (list, tuple) and any(_is_free(kind, _BLOCK_KINDS) for kind in kinds)


class Ticket(TypedDict):
    """The immediate output of a call in the background."""

    ticket: str
    status: Literal["running"]


TICKET_OUTPUT = Output(Ticket, None)
