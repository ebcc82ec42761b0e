"""What a tool takes: its schema, and the way from JSON text to validated values.

Two kinds: `TypedParameters` by Pydantic, for what is written in Python, and `SchemaParameters` by JSON Schema, for what
comes as a schema. Both give and enforce the same thing: what is exported is what is enforced, at every depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from typing import Any

from pydantic_core import from_json

from ferrule.arguments.argument_errors import ArgumentError, ArgumentErrors, explain
from ferrule.arguments.dumping import NoJudgedForm, first_unlike, is_within, shape_of
from ferrule.arguments.places import find_places
from ferrule.arguments.repair import repair
from ferrule.arguments.schema_walk import declared
from ferrule.errors import DefinitionError
from ferrule.values.arguments import Arguments, Places, starred
from ferrule.values.frozen import FrozenDict, JsonObject, freeze, thaw
from ferrule.values.json_text import SECRET_STARS, Malformed, dumps, loads, to_object

_MOST_DROPPED = 20
"""Arguments that are named where they are dropped."""


class Invalid(Exception):
    """The arguments cannot be taken; the message is for the model."""


class Parameters:
    """What one tool takes.

    Attributes:
        schema: The JSON Schema of all parameters, hidden ones too; read-only.
        exported: The JSON Schema that a model is shown; read-only.
        hidden: Parameters that a model neither sees nor fills.
        bound: JSON values of hidden parameters that are fixed.
        drop_unknown: Whether arguments that are not declared are dropped, recorded, instead of refused.
        known: The JSON Schema of each parameter that a model may fill.
        required: Parameters without a default.
        defaults: The JSON values of the others, where they have one.
        direct: Parameters whose validated value is their JSON value.
        keeps_digits: Whether a number may stand for a `Decimal`, which keeps more digits than a float.
        respells: Whether validation changes no more of a value than how it is written, since it runs no code of the
            author's.
        exact: Whether what was sent is judged; else the dump of the validated values, and what runs is made of that.
        write: Writes Python objects that are given as arguments as JSON text; raises `ValueError` where there is none.
        quick: Strict validation of a text as it is; raises anything where it does not fit, or where `decode` has more
            to do.
    """

    direct: frozenset[str] = frozenset()
    keeps_digits = False
    exact = True
    respells = True
    quick: Callable[[str], Any]
    write: Callable[[Any], str] = staticmethod(dumps)

    def __init__(
        self,
        schema: JsonObject,
        *,
        hidden: frozenset[str] = frozenset(),
        drop_unknown: bool = False,
    ) -> None:
        self.schema: FrozenDict = freeze(schema)
        self.bound: JsonObject = FrozenDict()
        self.drop_unknown = drop_unknown
        self.quick = _not_as_it_is
        self._hide(hidden)
        properties = self.schema.get("properties", {})
        self.required = frozenset(self.schema.get("required", ()))
        self.defaults: FrozenDict = FrozenDict(
            (name, node["default"])
            for name, node in properties.items()
            if isinstance(node, dict) and "default" in node and name not in self.required
        )

    def _hide(self, hidden: frozenset[str]) -> None:
        self.hidden = hidden
        self.exported = _without_hidden(self.schema, hidden) if hidden else self.schema
        properties = self.schema.get("properties", {})
        self.known: JsonObject = {name: node for name, node in properties.items() if name not in hidden}

    def values(self, text: str) -> Any:
        """The validated values of JSON text.

        Raises:
            ArgumentErrors: what does not fit.
        """
        raise NotImplementedError(type(self))

    def read(self, text: str) -> tuple[Any, str]:
        """The validated values of JSON text, and the text that is judged where nothing is written from the values.

        Raises:
            ArgumentErrors: what does not fit.
        """
        return self.values(text), text

    def decode(self, name: str, raw: str | JsonObject | None) -> tuple[Any, str, tuple[str, ...]]:
        """What a model sent: the validated values, the JSON text they were read from, and the repairs.

        Raises:
            Invalid: with the text for the model.
        """
        return self._repaired(name, *self._received(name, raw))

    def read_ahead(self, name: str, raw: str | JsonObject | None) -> Arguments:
        """The arguments of a call that is not judged yet.

        Raises:
            Invalid: with the text for the model.
        """
        values, text, _ = self.decode(name, raw)
        try:
            return self.judged(text, values)
        except NoJudgedForm as error:
            raise Invalid(f"{name} could not be run: {error}. Nothing was run.") from error

    def judged(self, text: str, values: Any) -> Arguments:
        """What is judged of values that were validated from `text`, with the values that run.

        Raises:
            NoJudgedForm: where a value has no JSON form, or its JSON does not make it again.
        """
        return Arguments(text, values, self)

    def again(self, judged: Arguments) -> Any:
        """The values once more, validated from what was judged.

        Raises:
            ArgumentErrors: where it does not fit any more.
            NoJudgedForm: where they are not what was judged.
        """
        return self.values(judged.raw)

    def changed(self, name: str, given: JsonObject) -> Arguments:
        """The arguments that a guard or a person gave instead of others; hidden parameters may be among them. What is
        left out gets its declared default; all has to come out as it was given, and nothing else beside it. A value of
        Pydantic's own types may come out in another spelling (`1` as `"1"` of a `Decimal`), as a model's does.

        Raises:
            Invalid: with a text that says what does not fit.
        """
        wanted = {**thaw(self.defaults), **thaw(self.bound), **self._object(name, given)[0]}
        try:
            made = self.restored(name, wanted)
            beyond = self.beyond_defaults(made)
        except NoJudgedForm as error:
            raise Invalid(f"{name} could not be run: {error}. Nothing was run.") from error
        judged = from_json(made.raw)
        if self.respells:
            wanted, judged, beyond = map(shape_of, (wanted, judged, beyond))
        altered = first_unlike(wanted, judged, is_within) or first_unlike(beyond, wanted, is_within)
        if altered is not None:
            raise Invalid(f"{altered!r} would come out otherwise than it was given")
        return made

    def beyond_defaults(self, judged: Arguments) -> JsonObject:
        """The JSON that is judged, without what may have been filled in as a declared default."""
        return from_json(judged.raw)  # type: ignore[no-any-return]

    def restored(self, name: str, judged: JsonObject) -> Arguments:
        """What is judged of JSON that was judged before, with what is bound now.

        Raises:
            Invalid: where it does not fit.
            NoJudgedForm: where a value has no JSON form, or its JSON does not make it again.
        """
        values, text, _ = self._repaired(name, {**thaw(self.bound), **thaw(judged)}, ())
        return self.judged(text, values)

    def places(self, arguments: Arguments) -> Places:
        """Where judged arguments hold paths; see `find_places`."""
        return find_places(self.schema, arguments, None if self.exact else arguments.validated)

    def missing(self, arguments: JsonObject) -> list[str]:
        """Hidden parameters that nobody has filled."""
        return [name for name in sorted(self.hidden) if name in self.required and name not in arguments]

    def with_bound(self, values: JsonObject) -> Parameters:
        """A copy in which `values` are fixed and hidden.

        Raises:
            DefinitionError: where a value does not fit.
        """
        made = copy(self)
        made.bound = freeze({**self.bound, **{name: loads(self.write(value)) for name, value in values.items()}})
        made._hide(self.hidden | values.keys())
        made.quick = _not_as_it_is if made.hidden else self.quick
        return made

    def check_bound(self, name: str) -> None:
        """Raise a `DefinitionError` where a bound value does not fit."""
        for key, value in self.bound.items():
            try:
                self.read(dumps({key: value}))
            except ArgumentErrors as wrong:
                if errors := [error for error in wrong.errors if error.path[:1] == (key,)]:
                    reason = self._explained(name, errors).partition(". Nothing was run")[0]
                    raise DefinitionError(f"bind({key}=…): {reason}") from None

    def check_examples(self, name: str, examples: Iterable[JsonObject]) -> None:
        """Raise a `DefinitionError` where a model could not make a call with one of these arguments."""
        for example in examples:
            try:
                reason = "; ".join(self.decode(name, example)[2])
            except Invalid as wrong:
                reason = str(wrong).partition(". Nothing was run")[0]
            if reason:
                raise DefinitionError(f"tool {name!r}: the example {dict(example)!r} does not fit: {reason}")

    def _received(self, name: str, raw: str | JsonObject | None) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What a model sent, without what is dropped and with what is bound, and the repairs of the text."""
        value, repairs = self._object(name, raw)
        dropped = self._dropped(value) if self.drop_unknown else []
        for key in dropped:
            del value[key]
        repairs = (*repairs, *(f"dropped the unknown argument {key[:80]!r}" for key in dropped[:_MOST_DROPPED]))
        if len(dropped) > _MOST_DROPPED:
            repairs = (*repairs, f"dropped {len(dropped) - _MOST_DROPPED} more unknown arguments")
        filled = [ArgumentError((key,), "", kind="unknown") for key in value if key in self.hidden]
        if filled:
            raise Invalid(explain(name, filled, self.known))
        return {**value, **thaw(self.bound)}, repairs

    def _dropped(self, value: dict[str, Any]) -> list[str]:
        """The keys that no part of the schema declares, where other keys are refused."""
        if not any(self.schema.get(key) is False for key in ("additionalProperties", "unevaluatedProperties")):
            return []
        known = declared(self.schema)
        return [key for key in value if key in self.hidden or not (known is None or key in known)]

    def _object(self, name: str, raw: str | JsonObject | None) -> tuple[dict[str, Any], tuple[str, ...]]:
        try:
            return to_object(raw, exact=self.keeps_digits, write=self.write)
        except Malformed as malformed:
            error, reason = None, f": {malformed}"
        except Exception as broken:  # a mapping of the sender's own may raise anything when it is read
            error, reason = broken, ""
        raise Invalid(
            f"The arguments for {name} cannot be read{reason}. "
            "Nothing was run: send the complete arguments as one JSON object."
        ) from error

    def _repaired(self, name: str, value: dict[str, Any], repairs: tuple[str, ...]) -> tuple[Any, str, tuple[str, ...]]:
        try:
            (values, text), more = repair(value, self.read, self.schema)
        except ArgumentErrors as wrong:
            raise Invalid(self._explained(name, wrong.errors)) from None
        return values, text, (*repairs, *more)

    def _explained(self, name: str, errors: list[ArgumentError]) -> str:
        """The text for the model, with stars in the place of what it is not to see."""
        hidden = self.hidden

        def told(error: ArgumentError) -> ArgumentError:
            if error.path:
                plain = error._replace(expected=error.expected.partition(": ")[0], got=SECRET_STARS)
                return plain if error.path[0] in hidden else error
            return error._replace(got=starred(error.got, hidden)) if isinstance(error.got, dict) else error

        return explain(name, [told(error) for error in errors] if hidden else errors, self.known)


def _not_as_it_is(text: str) -> Any:
    raise Invalid("hidden and unknown arguments are looked at first")


def _without_hidden(schema: FrozenDict, hidden: frozenset[str]) -> FrozenDict:
    exported = dict(schema)
    exported["properties"] = FrozenDict((k, v) for k, v in schema.get("properties", {}).items() if k not in hidden)
    required = [name for name in schema.get("required", ()) if name not in hidden]
    exported.pop("required", None)
    if required:
        exported["required"] = freeze(required)
    return FrozenDict(exported)
