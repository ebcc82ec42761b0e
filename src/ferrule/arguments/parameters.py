"""What a tool takes: its schema, and the way from JSON text to validated values.

Two kinds: `TypedParameters` by Pydantic, for what is written in Python, and `SchemaParameters` by JSON Schema, for what
comes as a schema. Both give and enforce the same thing: what is exported is what is enforced, at every depth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from ferrule.arguments.argument_errors import ArgumentError, ArgumentErrors, explain
from ferrule.arguments.optional_nulls import declares, without_optional_nulls
from ferrule.arguments.repair import repair
from ferrule.errors import DefinitionError
from ferrule.values.arguments import Arguments
from ferrule.values.frozen import FrozenDict, JsonObject, freeze, thaw
from ferrule.values.json_text import Malformed, dumps, loads, to_object

NOTHING: JsonObject = FrozenDict()


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
        factories: What makes the defaults that are new for each call.
        exact: Whether a number may stand for a `Decimal`, which keeps more digits than a float.
        quick: Strict validation of a text as it is; raises anything where it does not fit, or where `decode` has more
            to do.
    """

    direct: frozenset[str] = frozenset()
    factories: Mapping[str, Callable[[], Any]] = NOTHING
    exact = False
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
        value, repairs = self._received(name, raw)
        return self._repaired(name, {**value, **self._made(name, value)}, repairs)

    def read_ahead(self, name: str, raw: str | JsonObject | None) -> Arguments:
        """What will be judged of a call that is not decoded yet, without the defaults that are made for each call.

        Raises:
            Invalid: with the text for the model.
        """
        if self.quick is not None and isinstance(raw, str):
            try:
                return self.arguments(raw, self.quick(raw))
            except Exception:  # `decode` says what is wrong, or mends it
                pass
        values, text, _ = self._repaired(name, *self._received(name, raw))
        return self.arguments(text, values)

    def judge(self, name: str, changed: JsonObject) -> tuple[Any, str, tuple[str, ...]]:
        """Arguments that a guard or a person gave: hidden parameters may be among them.

        Raises:
            Invalid: with a text that says what does not fit.
        """
        value = {**thaw(self.bound), **self._object(name, changed)[0]}
        return self._repaired(name, {**value, **self._made(name, value)}, ())

    def arguments(self, text: str, values: Any) -> Arguments:
        """What is judged: the JSON of `text` with the defaults of the top level filled in."""
        return Arguments(text, values, self)

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

    def refusal(self, name: str, key: str, value: object) -> str:
        """Why the JSON of `value` is not taken for one parameter; empty where it is."""
        try:
            self.values(dumps({key: value}))
        except ArgumentErrors as wrong:
            errors = [error for error in wrong.errors if error.path[:1] == (key,)]
            return explain(name, errors, self.known).partition(". Nothing was run")[0] if errors else ""
        return ""

    def _received(self, name: str, raw: str | JsonObject | None) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What a model sent, without what is dropped and with what is bound, and the repairs of the text."""
        value, repairs = self._object(name, raw)
        for key in self._dropped(value) if self.drop_unknown else ():
            del value[key]
            repairs = (*repairs, f"dropped the unknown argument {key[:80]!r}")
        filled = [ArgumentError((key,), "", kind="unknown") for key in value if key in self.hidden]
        if filled:
            raise Invalid(explain(name, filled, self.known))
        return {**value, **thaw(self.bound)}, repairs

    def _dropped(self, value: dict[str, Any]) -> list[str]:
        """The keys that no part of the schema declares, where other keys are refused."""
        if not any(self.schema.get(key) is False for key in ("additionalProperties", "unevaluatedProperties")):
            return []
        return [key for key in value if key in self.hidden or not declares(self.schema, key)]

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

    def _made(self, name: str, value: dict[str, Any]) -> dict[str, Any]:
        """The defaults that are made for this call, as their JSON."""
        if not self.factories:
            return {}
        given = without_optional_nulls(value, self.schema)
        try:
            return {key: loads(dumps(make())) for key, make in self.factories.items() if key not in given}
        except Exception as error:  # a factory of the author's own, or what it made
            raise Invalid(f"A default of {name} cannot be made: {type(error).__name__}. Nothing was run.") from error

    def _repaired(self, name: str, value: dict[str, Any], repairs: tuple[str, ...]) -> tuple[Any, str, tuple[str, ...]]:
        try:
            values, text, more = repair(value, self.values, self.schema)
        except ArgumentErrors as wrong:
            raise Invalid(explain(name, wrong.errors, self.known)) from None
        return *self._with_defaults(values, text), (*repairs, *more)

    def _with_defaults(self, values: Any, text: str) -> tuple[Any, str]:
        """The same where validation itself fills in the defaults."""
        return values, text


def _without_hidden(schema: FrozenDict, hidden: frozenset[str]) -> FrozenDict:
    exported = dict(schema)
    exported["properties"] = FrozenDict((k, v) for k, v in schema.get("properties", {}).items() if k not in hidden)
    required = [name for name in schema.get("required", ()) if name not in hidden]
    exported.pop("required", None)
    if required:
        exported["required"] = freeze(required)
    return FrozenDict(exported)
