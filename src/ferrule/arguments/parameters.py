"""What a tool takes: its schema, and the way from JSON text to validated values.

Two kinds: `TypedParameters` by Pydantic, for what is written in Python, and `SchemaParameters` by JSON Schema, for what
comes as a schema. Both give and enforce the same thing: what is exported is what is enforced, at every depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any

from ferrule.arguments.argument_errors import ArgumentError, ArgumentErrors, explain, show
from ferrule.arguments.judged_form import JudgedForm, NoJudgedForm
from ferrule.arguments.places import find_places
from ferrule.arguments.repair import repair
from ferrule.arguments.schema_walk import declared
from ferrule.errors import DefinitionError
from ferrule.values.arguments import Arguments, Places, starred
from ferrule.values.frozen import FrozenDict, JsonObject, freeze, thaw
from ferrule.values.json_text import SECRET_STARS, Malformed, dumps, loads, same, to_object

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
        exact: Whether a number may stand for a `Decimal`, which keeps more digits than a float.
        form: How what validation may change is written down for those who judge; `None` where it changes nothing.
        whole: Whether that is all that there is.
        quick: Strict validation of a text as it is; raises anything where it does not fit, or where `decode` has more
            to do.
    """

    direct: frozenset[str] = frozenset()
    exact = False
    form: JudgedForm | None = None
    whole = False
    quick: Callable[[str], Any] | None = None

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

    def decode(self, name: str, raw: str | JsonObject | None) -> tuple[Any, str, tuple[str, ...]]:
        """What a model sent: the validated values, the JSON text they were read from, and the repairs.

        Raises:
            Invalid: with the text for the model.
        """
        return self._repaired(name, *self._received(name, raw))

    def read_ahead(self, name: str, raw: str | JsonObject | None) -> Arguments:
        """The arguments of a call that is not decoded yet as they were sent.

        Raises:
            Invalid: with the text for the model.
        """
        values, text, _ = self.decode(name, raw)
        return Arguments(text, values, self)

    def judge(self, name: str, changed: JsonObject, before: Arguments | None = None) -> Arguments:
        """Arguments that a guard or a person gave, in terms of what was judged `before`: hidden parameters may be among
        them. What is unchanged is read from what was received then; what is changed has to come out as it was given.

        Raises:
            Invalid: with a text that says what does not fit.
        """
        given = self._object(name, changed)[0]
        known = given
        if before is not None and before.shown is not None:
            known = _as_received(given, thaw(before), loads(before.raw))
            if dumps(known).count(SECRET_STARS) > before.raw.count(SECRET_STARS):
                raise Invalid("stars stand for a secret that is not shown, and were moved; leave it in its place")

        def other(made: Arguments) -> list[str]:
            """What comes out otherwise; what a model fills in may have been left out."""
            sent = {} if self.form is None else loads(self.form.set_fields(made.validated, made.raw))
            unlike = [key for key, value in given.items() if not same(value, thaw(made.get(key)))]
            return [key for key in unlike if key not in sent or not same(given[key], sent[key])]

        try:
            judged = self.remade(name, known, given, lambda made: not other(made))
        except NoJudgedForm as error:
            raise Invalid(f"{name} could not be run: {error}. Nothing was run.") from error
        for key in () if self.form is None else other(judged):
            change = f"={show(given[key])} would become {show(thaw(judged.get(key)))}"
            raise Invalid(f"{key}{' would become something else' if key in self.hidden else change}")
        return judged

    def remade(
        self, name: str, received: JsonObject, before: JsonObject, fits: Callable[[Arguments], bool]
    ) -> Arguments:
        """What is judged of arguments that were received, with what is bound now. Where that does not fit, what was
        made anew, such as the id of an object, is as it was `before`.

        Raises:
            Invalid: where they do not fit.
            NoJudgedForm: where a value has no JSON form.
        """
        received = {**thaw(self.bound), **thaw(received)}
        values, text, _ = self._repaired(name, received, ())
        made = self.arguments(text, values)
        if self.form is None or fits(made):
            return made
        values, text, _ = self._repaired(name, _completed(received, before), ())
        return self.arguments(text, values)

    def arguments(self, text: str, values: Any) -> Arguments:
        """What is judged: the JSON of `text` with the defaults of the top level filled in, and what validation may have
        changed as it has left it.

        Raises:
            NoJudgedForm: where a value has no JSON form.
        """
        return Arguments(text, values, self, None if self.form is None else self.form.text(values, text))

    def places(self, arguments: Arguments) -> Places:
        """Where judged arguments hold paths; see `find_places`."""
        values = {} if self.form is None else self.form.values(arguments.validated)
        return find_places(self.schema, arguments, values)

    def again(self, judged: Arguments) -> Any:
        """The validated values once more, made of what was received, and with what was made anew, such as the id of an
        object, as it was judged.

        Raises:
            ArgumentErrors: where it does not fit any more.
            NoJudgedForm: where neither gives what was judged.
        """
        values = self.values(judged.raw)
        if self.form is None or judged.shown is None or self.form.text(values, judged.raw) == judged.shown:
            return values
        with suppress(ArgumentErrors):
            text = dumps(_completed(loads(judged.raw), loads(judged.shown)))
            values = self.values(text)
            if self.form.text(values, text) == judged.shown:
                return values
        raise NoJudgedForm("its arguments come out otherwise than they were judged")

    def missing(self, arguments: JsonObject) -> list[str]:
        """Hidden parameters that nobody has filled."""
        return [name for name in sorted(self.hidden) if name in self.required and name not in arguments]

    def with_bound(self, values: JsonObject) -> Parameters:
        """A copy in which `values` are fixed and hidden.

        Raises:
            DefinitionError: where a value does not fit.
        """
        made = copy(self)
        made.bound = freeze({**self.bound, **{name: loads(dumps(value)) for name, value in values.items()}})
        made._hide(self.hidden | values.keys())
        made.quick = None if made.hidden else self.quick
        return made

    def check_bound(self, name: str) -> None:
        """Raise a `DefinitionError` where a bound value does not fit."""
        for key, value in self.bound.items():
            reason = self.refusal(name, key, value)
            if reason:
                raise DefinitionError(f"bind({key}=…): {reason}")

    def check_examples(self, name: str, examples: Iterable[JsonObject]) -> None:
        """Raise a `DefinitionError` where a model could not make a call with one of these arguments."""
        for example in examples:
            try:
                reason = "; ".join(self.decode(name, example)[2])
            except Invalid as wrong:
                reason = str(wrong).partition(". Nothing was run")[0]
            if reason:
                raise DefinitionError(f"tool {name!r}: the example {dict(example)!r} does not fit: {reason}")

    def refusal(self, name: str, key: str, value: object) -> str:
        """Why the JSON of `value` is not taken for one parameter; empty where it is."""
        try:
            self.values(dumps({key: value}))
        except ArgumentErrors as wrong:
            errors = [error for error in wrong.errors if error.path[:1] == (key,)]
            return self._explained(name, errors).partition(". Nothing was run")[0] if errors else ""
        return ""

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
            return to_object(raw, exact=self.exact)
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
            values, text, more = repair(value, self.values, self.schema)
        except ArgumentErrors as wrong:
            raise Invalid(self._explained(name, wrong.errors)) from None
        return values, text, (*repairs, *more)

    def _explained(self, name: str, errors: list[ArgumentError]) -> str:
        """The text for the model, with stars in the place of what it is not to see."""
        hidden = self.hidden

        def told(error: ArgumentError) -> ArgumentError:
            if error.path:
                plain = replace(error, expected=error.expected.partition(": ")[0], got=SECRET_STARS)
                return plain if error.path[0] in hidden else error
            return replace(error, got=starred(error.got, hidden)) if isinstance(error.got, dict) else error

        return explain(name, [told(error) for error in errors] if hidden else errors, self.known)


def _as_received(given: Any, judged: Any, received: Any) -> Any:
    """`given` with what was received in the place of what is as it was judged; what was not received is left out, and
    what was received and not shown stays."""
    if isinstance(given, list) and isinstance(judged, list) and isinstance(received, list):
        alike = len(given) == len(judged) == len(received)
        return [_as_received(*items) for items in zip(given, judged, received, strict=True)] if alike else given
    if not (isinstance(given, dict) and isinstance(judged, dict) and isinstance(received, dict)):
        return given
    if same(given, judged):
        return received
    kept = {key for key in given if key in judged and same(given[key], judged[key])}
    changed = {key: _as_received(given[key], judged.get(key), received.get(key)) for key in given if key not in kept}
    return {key: value for key, value in received.items() if key in kept or key not in judged} | changed


def _completed(received: Any, judged: Any) -> Any:
    """`received` with what was judged and not received, but for secrets, of which only stars are known."""
    if isinstance(received, list) and isinstance(judged, list) and len(received) == len(judged):
        return list(map(_completed, received, judged))
    if not (isinstance(received, dict) and isinstance(judged, dict)):
        return received
    made = {key: value for key, value in judged.items() if key not in received and SECRET_STARS not in dumps(value)}
    return made | {key: _completed(value, judged.get(key)) for key, value in received.items()}


def _without_hidden(schema: FrozenDict, hidden: frozenset[str]) -> FrozenDict:
    exported = dict(schema)
    exported["properties"] = FrozenDict((k, v) for k, v in schema.get("properties", {}).items() if k not in hidden)
    required = [name for name in schema.get("required", ()) if name not in hidden]
    exported.pop("required", None)
    if required:
        exported["required"] = freeze(required)
    return FrozenDict(exported)
