"""The parameters of a tool: their schema, and the way from JSON text to validated values.

`TypedParameters` validate with Pydantic, for tools written in Python. `SchemaParameters` validate with a JSON Schema.
Both enforce their exported schema at every depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from typing import Any

from pydantic_core import from_json

from ferrule.arguments.argument_errors import ArgumentError, ArgumentErrors, explain_errors
from ferrule.arguments.dumping import NotJudgeable, find_difference, is_contained, strip_scalars
from ferrule.arguments.places import find_places
from ferrule.arguments.repair import repair_arguments
from ferrule.arguments.schema_content import SchemaContent
from ferrule.errors import DefinitionError
from ferrule.values.arguments import Arguments, Places, redact_hidden
from ferrule.values.frozen import FrozenDict, JsonObject, freeze, thaw
from ferrule.values.json_text import (
    SECRET_STARS,
    Malformed,
    format_arguments,
    format_json,
    parse_json,
    parse_json_object,
)


class Invalid(Exception):
    """The arguments cannot be used; the message is for the model."""


class Parameters:
    """The parameters of one tool.

    Attributes:
        schema: The JSON Schema of all parameters, hidden ones too; read-only.
        exported: The JSON Schema for the model; read-only.
        content: The keywords in `exported`.
        written: The forms of `exported` for requests, by the rules of an API; `providers/` fills it.
        hidden: Parameters that a model neither sees nor fills.
        bound: The fixed JSON values of hidden parameters.
        visible: The JSON Schema of each parameter for the model to fill.
        required: Parameters without a default.
        defaults: The JSON values of the others, if they have one.
        ordered_defaults: The same in the order of the schema, with `...` for each parameter without a default.
        plain: Parameters with validated values that are their own JSON.
        respells: Whether validation may change the spelling of a value, and nothing else: it runs no author's code.
        exact: Whether guards judge the sent text. If not, they judge the dump of the validated values, and the
            handler's values are made from that dump.
        validate_strictly: Validates a text as it is; raises any error if the text does not fit, or if parameters are
            hidden.
    """

    validate_strictly: Callable[[str], Any]

    def __init__(self, schema: JsonObject, *, hidden: frozenset[str] = frozenset()) -> None:
        self.schema: FrozenDict = freeze(schema)
        self.bound: JsonObject = FrozenDict()
        self.plain: frozenset[str] = frozenset()
        self.exact = self.respells = True
        self.validate_strictly = _refuse_text
        self._hide(hidden)
        properties = self.schema.get("properties", {})
        self.required = frozenset(self.schema.get("required", ()))
        self.defaults: FrozenDict = FrozenDict(
            (name, node["default"])
            for name, node in properties.items()
            if isinstance(node, dict) and "default" in node and name not in self.required
        )
        self.ordered_defaults = {name: self.defaults.get(name, ...) for name in properties}

    def _hide(self, hidden: frozenset[str]) -> None:
        self.hidden = hidden
        self.exported = _drop_hidden(self.schema, hidden) if hidden else self.schema
        self.content = SchemaContent(self.exported)
        self.written: dict[Any, Any] = {}
        properties = self.schema.get("properties", {})
        self.visible: JsonObject = {name: node for name, node in properties.items() if name not in hidden}

    # -- one call ------------------------------------------------------------------------------------------------------

    def validate(self, text: str) -> Any:
        """Return the validated values of a JSON text.

        Raises:
            ArgumentErrors: The text does not fit.
        """
        raise NotImplementedError(type(self))

    def validate_and_normalize(self, text: str, value: object = None) -> tuple[Any, str]:
        """Return the validated values of a JSON text, and the text with times spelled as Pydantic writes them.

        `value` is the JSON of the text, if you have parsed it: errors are then read from it.

        Raises:
            ArgumentErrors: The text does not fit.
        """
        return self.validate(text), text

    def validate_with_repairs(self, name: str, raw: str | JsonObject | None) -> tuple[Any, str, tuple[str, ...]]:
        """Return the validated values of a model's arguments, their text after repairs, and the repairs.

        Raises:
            Invalid: The arguments do not fit. The message is for the model.
        """
        return self._repair(name, *self._read_arguments(name, raw))

    def parse_arguments(self, name: str, raw: str | JsonObject | None) -> Arguments:
        """Validate the arguments of a call with repairs, and return the judged arguments.

        Raises:
            Invalid: The arguments do not fit. The message is for the model.
        """
        values, text, _ = self.validate_with_repairs(name, raw)
        try:
            return self.judged_arguments(text, values)
        except NotJudgeable as error:
            raise Invalid(f"{name} could not be run: {error}. Nothing was run.") from error

    def judged_arguments(self, text: str, values: Any) -> Arguments:
        """Return the judged arguments for the validated values of `text`. They include the values for the handler.

        Raises:
            NotJudgeable: A value has no JSON form, or its JSON does not make it again.
        """
        return Arguments(text, values, self)

    def revalidate(self, judged: Arguments) -> Any:
        """Return the values anew, validated from the judged arguments.

        Raises:
            ArgumentErrors: The arguments do not fit any more.
            NotJudgeable: The values differ from the judged arguments.
        """
        return self.validate(judged.raw)

    def validate_change(self, name: str, given: JsonObject) -> Arguments:
        """Return the judged arguments for arguments from a guard or a person, in place of the call's own.

        They may include hidden parameters. Missing ones get their declared default. Every other value must come out as
        given, and no value may be added.

        Raises:
            Invalid: The arguments do not fit, or would come out otherwise.
        """
        wanted = {**thaw(self.defaults), **thaw(self.bound), **self._to_object(name, given)[0]}
        try:
            made = self.restore_arguments(name, wanted)
            undefaulted = self.dump_without_defaults(made)
        except NotJudgeable as error:
            raise Invalid(f"{name} could not be run: {error}. Nothing was run.") from error
        judged = from_json(made.raw)
        if self.respells:
            wanted, judged, undefaulted = map(strip_scalars, (wanted, judged, undefaulted))
        changed = find_difference(wanted, judged, is_contained) or find_difference(undefaulted, wanted, is_contained)
        if changed is not None:
            raise Invalid(f"{changed!r} would come out otherwise than it was given")
        return made

    def dump_without_defaults(self, judged: Arguments) -> JsonObject:
        """Return the judged JSON; without declared defaults if Ferrule may have filled them in."""
        return from_json(judged.raw)  # type: ignore[no-any-return]

    def restore_arguments(self, name: str, judged: JsonObject) -> Arguments:
        """Return the judged arguments for JSON from an earlier judgement, with the values bound now.

        Raises:
            Invalid: The arguments do not fit any more.
            NotJudgeable: A value has no JSON form, or its JSON does not make it again.
        """
        values, text, _ = self._repair(name, {**thaw(self.bound), **thaw(judged)}, ())
        return self.judged_arguments(text, values)

    def find_places(self, arguments: Arguments) -> Places:
        """Return the places of paths in judged arguments; see `places.find_places`."""
        return find_places(self.schema, arguments, None if self.exact else arguments.validated)

    def find_missing_hidden(self, arguments: JsonObject) -> list[str]:
        """Return the required hidden parameters without a value."""
        return [name for name in sorted(self.hidden) if name in self.required and name not in arguments]

    def _read_arguments(self, name: str, raw: str | JsonObject | None) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return a model's arguments with bound values, and the repairs."""
        value, repairs = self._to_object(name, raw)
        if not self.hidden:  # so nothing is bound
            return value, repairs
        if filled := [ArgumentError((key,), "", kind="unknown") for key in value if key in self.hidden]:
            raise Invalid(explain_errors(name, filled, self.visible))
        return {**value, **thaw(self.bound)}, repairs

    def _to_object(self, name: str, raw: str | JsonObject | None) -> tuple[dict[str, Any], tuple[str, ...]]:
        try:
            return parse_json_object(raw)
        except Malformed as malformed:
            error, reason = None, f": {malformed}"
        except Exception as broken:  # a sender's own mapping may raise anything
            error, reason = broken, ""
        raise Invalid(
            f"The arguments for {name} cannot be read{reason}. "
            "Nothing was run: send the complete arguments as one JSON object."
        ) from error

    def _repair(self, name: str, value: dict[str, Any], repairs: tuple[str, ...]) -> tuple[Any, str, tuple[str, ...]]:
        try:
            (values, text), more = repair_arguments(value, self.validate_and_normalize, self.schema)
        except ArgumentErrors as wrong:
            raise Invalid(self._explain(name, wrong.errors)) from None
        return values, text, (*repairs, *more)

    def _explain(self, name: str, errors: list[ArgumentError]) -> str:
        """Return the text for the model, with stars for hidden values."""
        hidden = self.hidden

        def mask(error: ArgumentError) -> ArgumentError:
            if error.path:
                masked = error._replace(expected=error.expected.partition(": ")[0], received=SECRET_STARS)
                return masked if error.path[0] in hidden else error
            if isinstance(error.received, dict):
                return error._replace(received=redact_hidden(error.received, hidden))
            return error

        return explain_errors(name, [mask(error) for error in errors] if hidden else errors, self.visible)

    # -- the definition ------------------------------------------------------------------------------------------------

    def bind(self, values: JsonObject) -> Parameters:
        """Return a copy in which `values` are fixed and hidden."""
        made = copy(self)
        made.bound = freeze({**self.bound, **parse_json(format_arguments(values))})
        made._hide(self.hidden | values.keys())
        made.validate_strictly = _refuse_text if made.hidden else self.validate_strictly
        return made

    def check_bound(self, name: str) -> None:
        """Raise a `DefinitionError` if a bound value does not fit."""
        for key, value in self.bound.items():
            try:
                self.validate_and_normalize(format_json({key: value}))
            except ArgumentErrors as wrong:
                if errors := [error for error in wrong.errors if error.path[:1] == (key,)]:
                    reason = self._explain(name, errors).partition(". Nothing was run")[0]
                    raise DefinitionError(f"bind({key}=…): {reason}") from None

    def check_examples(self, name: str, examples: Iterable[JsonObject]) -> None:
        """Raise a `DefinitionError` if a model could not call the tool with one of these arguments as they are."""
        for example in examples:
            try:
                reason = "; ".join(self.validate_with_repairs(name, example)[2])
            except Invalid as wrong:
                reason = str(wrong).partition(". Nothing was run")[0]
            if reason:
                raise DefinitionError(f"tool {name!r}: the example {dict(example)!r} does not fit: {reason}")


def _refuse_text(text: str) -> Any:
    raise Invalid("hidden arguments are looked at first")


def _drop_hidden(schema: FrozenDict, hidden: frozenset[str]) -> FrozenDict:
    exported = dict(schema)
    properties = schema.get("properties", {})
    exported["properties"] = FrozenDict((name, node) for name, node in properties.items() if name not in hidden)
    exported.pop("required", None)
    if required := [name for name in schema.get("required", ()) if name not in hidden]:
        exported["required"] = freeze(required)
    return FrozenDict(exported)
