"""What a tool takes: its schema, and the way from JSON text to validated values.

Two kinds: `TypedParameters` by Pydantic, for what is written in Python, and `SchemaParameters` by JSON Schema, for what
comes as a schema. Both give and enforce the same thing: what is exported is what is enforced, at every depth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from pydantic import ValidationError
from pydantic_core import CoreConfig, SchemaValidator, to_jsonable_python

from ferrule.arguments import core_schema
from ferrule.arguments.argument_errors import Mistake, Mistakes, explain, from_json_schema, from_pydantic
from ferrule.arguments.repair import climb, to_object
from ferrule.errors import DefinitionError
from ferrule.values.arguments import Arguments
from ferrule.values.content import jsonable
from ferrule.values.frozen import FrozenDict, freeze, thaw
from ferrule.values.json_text import STARS, Malformed, came_twice, dumps, loads, rounded, same, without_nested

_EMPTY: Mapping[str, Any] = FrozenDict()
_NO_FLOATS: frozenset[float] = frozenset()
_EXACT = 2**53
_FRACTION = re.compile(r"\d[.eE]")
"""Where an integer may stand that was written as a float, which is judged as the integer that it is."""

_Nested = tuple[tuple[str, str, int], ...]


class Invalid(Exception):
    """The arguments cannot be taken; the message is for the model."""


class Settled(str):
    """Judged text that holds what was made for the call, whether or not its JSON says what it is.

    Attributes:
        given: The text without it.
        made: The objects themselves, for whoever reads the text again.
    """

    __slots__ = ("given", "made")

    given: str
    made: core_schema.Made

    def __str__(self) -> Settled:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Settled:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str.__str__(self),)


class Parameters:
    """What one tool takes.

    Attributes:
        schema: The JSON Schema of all parameters, hidden ones too; read-only.
        exported: The JSON Schema that a model is shown; read-only.
        hidden: Parameters that a model neither sees nor fills.
        bound: JSON values of hidden parameters that are fixed.
        drop_unknown: Whether arguments that are not declared are dropped, recorded, instead of refused.
    """

    direct: frozenset[str] = frozenset()
    exact = False
    """Whether a number may stand for a `Decimal`, which keeps more digits than a float."""
    quick: Callable[[str], Any] | None = None
    """Strict validation of a text as it is; raises anything where the ladder has to be climbed."""

    def __init__(
        self,
        schema: dict[str, Any],
        *,
        hidden: frozenset[str] = frozenset(),
        bound: Mapping[str, Any] = _EMPTY,
        drop_unknown: bool = False,
    ) -> None:
        self.schema: FrozenDict = freeze(schema)
        self.hidden = hidden
        self.bound: FrozenDict = freeze(bound)
        self.drop_unknown = drop_unknown
        self.exported = _without(self.schema, hidden) if hidden else self.schema
        properties = self.schema.get("properties", {})
        self.known: Mapping[str, Any] = {name: node for name, node in properties.items() if name not in hidden}
        self.required = frozenset(self.schema.get("required", ()))
        self.defaults: FrozenDict = FrozenDict(
            (name, node["default"])
            for name, node in properties.items()
            if isinstance(node, dict) and "default" in node and name not in self.required
        )
        if hidden or drop_unknown:
            self.quick = None

    def values(self, text: str, lost: Set[float] = _NO_FLOATS) -> Any:
        """The validated values of JSON text; `lost` are floats that are no more what was written.

        Raises:
            Mistakes: what does not fit.
        """
        raise NotImplementedError(type(self))

    def settled(self, values: Any, text: str) -> tuple[Any, str]:
        """The same with defaults that were made for this call written down, so that they are made once."""
        return values, text

    def decode(self, name: str, raw: str | Mapping[str, Any] | None) -> tuple[Any, str, tuple[str, ...]]:
        """What a model sent: the validated values, the JSON text they were read from, and the repairs.

        Raises:
            Invalid: with the text for the model.
        """
        lost: set[float] = set()
        value, repairs = self._object(name, raw, lost)
        for key in self._dropped(value) if self.drop_unknown else ():
            del value[key]
            repairs = (*repairs, f"dropped the unknown argument {key[:80]!r}")
        seen = [key for key in value if key in self.hidden]
        if seen:
            raise Invalid(explain(name, [Mistake((key,), "", kind="unknown") for key in seen], self.known))
        return self._climbed(name, {**value, **thaw(self.bound)}, repairs, lost)

    def foreseen(self, name: str, raw: str | Mapping[str, Any] | None) -> Arguments:
        """What will be judged of a call that is not decoded yet, without the defaults that are made for each call.

        Raises:
            Invalid: with the text for the model.
        """
        if self.quick is not None and isinstance(raw, str):
            try:
                return self.arguments(raw, self.quick(raw))
            except Exception:  # the ladder says what is wrong, or mends it
                pass
        values, text, _ = self.decode(name, raw)
        return self.arguments(text, values)

    def _dropped(self, value: dict[str, Any]) -> list[str]:
        """The keys that nothing declares, where other keys are refused."""
        closed = self.schema.get("additionalProperties") is False
        return [key for key in value if key not in self.known] if closed else []

    def judge(self, name: str, changed: Mapping[str, Any], before: str = "") -> tuple[Any, str, tuple[str, ...]]:
        """Arguments that a guard or a person gave: hidden parameters may be among them.

        `before` is the judged text that they were changed from: what was made for it stays where it is unchanged.

        Raises:
            Invalid: with a text that says what does not fit.
        """
        lost: set[float] = set()
        value, _ = self._object(name, changed, lost)
        return self._climbed(name, {**thaw(self.bound), **value}, (), lost, before)

    def _object(
        self, name: str, raw: str | Mapping[str, Any] | None, lost: set[float]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        try:
            return to_object(raw, lost if self.exact else None)
        except Malformed as malformed:
            error, reason = None, f": {malformed}"
        except Exception as broken:  # a mapping of the sender's own may raise anything when it is read
            error, reason = broken, ""
        raise Invalid(
            f"The arguments for {name} cannot be read{reason}. "
            "Nothing was run: send the complete arguments as one JSON object."
        ) from error

    def _climbed(
        self, name: str, value: dict[str, Any], repairs: tuple[str, ...], lost: set[float], before: str | None = None
    ) -> tuple[Any, str, tuple[str, ...]]:
        validate: Callable[[str], Any] = self.values
        if self.exact:

            def validate(text: str) -> Any:
                return self.values(text, lost)

        def decoded(text: str) -> None:
            lost.update(rounded(text))

        try:
            values, text, more = climb(value, validate, partial(core_schema.declares, self.schema), decoded)
        except Mistakes as mistakes:
            raise Invalid(explain(name, mistakes.found, self.known)) from None
        values, text = self.settled(values, text)
        return values, text, (*repairs, *more)

    def arguments(self, text: str, values: Any) -> Arguments:
        """What is judged: the JSON of `text` with the defaults of the top level filled in."""
        return Arguments(text, values, self)

    def missing(self, arguments: Mapping[str, Any]) -> list[str]:
        """Hidden parameters that nobody has filled."""
        return [name for name in sorted(self.hidden) if name in self.required and name not in arguments]

    def with_bound(self, values: Mapping[str, Any]) -> Parameters:
        """A copy in which `values` are fixed and hidden.

        Raises:
            DefinitionError: where a value does not fit.
        """
        bound = {**self.bound, **{name: loads(dumps(value)) for name, value in values.items()}}
        return self._rebuilt(self.hidden | values.keys(), bound)

    def check_bound(self, name: str) -> None:
        """Raise a `DefinitionError` where a bound value does not fit."""
        for key, value in self.bound.items():
            try:
                self.values(dumps({key: value}))
            except Mistakes as mistakes:
                wrong = [m for m in mistakes.found if m.path[:1] == (key,)]
                if wrong:
                    text = explain(name, wrong, self.known).partition(". Nothing was run")[0]
                    raise DefinitionError(f"bind({key}=…): {text}") from None

    def _rebuilt(self, hidden: frozenset[str], bound: Mapping[str, Any]) -> Parameters:
        raise NotImplementedError(type(self))


def _without(schema: FrozenDict, hidden: frozenset[str]) -> FrozenDict:
    found = dict(schema)
    found["properties"] = FrozenDict((k, v) for k, v in schema.get("properties", {}).items() if k not in hidden)
    required = [name for name in schema.get("required", ()) if name not in hidden]
    found.pop("required", None)
    if required:
        found["required"] = freeze(required)
    return FrozenDict(found)


class TypedParameters(Parameters):
    """Parameters whose types are Python's, validated by Pydantic in strict JSON mode.

    Args:
        core: The closed core schema: a typed dict of the keyword arguments, or a model.
        fields: The core schema of each parameter, by its name in JSON, to tell what is flat and direct.
        made: Names whose default is made for each call.
    """

    def __init__(
        self,
        core: dict[str, Any],
        schema: dict[str, Any],
        fields: Mapping[str, dict[str, Any]],
        *,
        made: Mapping[str, str] = _EMPTY,
        hidden: frozenset[str] = frozenset(),
        bound: Mapping[str, Any] = _EMPTY,
        drop_unknown: bool = False,
    ) -> None:
        self._core = core
        self._fields = fields
        self._made = made
        self._is_dict = core["type"] == "typed-dict" or core.get("schema", {}).get("type") == "typed-dict"
        self._opaque = core_schema.opaque(core)
        self.exact = core_schema.holds(core, "decimal")
        self._root, self._plain = core_schema.root(core)
        self._validator = SchemaValidator(core, CoreConfig(strict=True), _use_prebuilt=False)
        super().__init__(core_schema.told(schema), hidden=hidden, bound=bound, drop_unknown=drop_unknown)
        if self._is_dict:
            self.direct = frozenset(name for name, node in fields.items() if core_schema.direct(node))
        if not hidden and not drop_unknown and not made:
            self.quick = self._quick_reader()

    def _quick_reader(self) -> Callable[[str], Any]:
        read, closed = self._reader(), self.schema.get("additionalProperties") is False
        if not closed or self._opaque or not self._plain:

            def quick_open(text: str) -> Any:
                loads(text)
                return read(text)

            return quick_open

        names = [node.get("validation_alias") or field for field, node in self._root.items()]
        twice = partial(came_twice, keys=[dumps(name) for name in names], escaped=any("/" in name for name in names))
        if not self._is_dict:

            def quick_model(text: str) -> Any:
                values = read(text)
                if twice(text):
                    loads(text)
                return values

            return quick_model

        if all(map(core_schema.flat, self._fields.values())):
            # Flat text has as many colons as keys, and a comma less, or some in a string: then it is looked at.
            def quick_flat(text: str) -> Any:
                values = read(text)
                if text.count(":") != len(values) and text.count(",") >= len(values) and twice(text):
                    loads(text)
                return values

            return quick_flat

        always, counted = self._nested()

        def quick(text: str) -> Any:
            values = read(text)
            outside = without_nested(text, always or counted(values))
            if (outside is None or outside.count(",") >= len(values)) and twice(text):
                loads(text)
            return values

        return quick

    def _nested(self) -> tuple[_Nested | None, Callable[[Any], _Nested]]:
        """How many arrays and objects are among the values of a call, where nothing else can be; first if always."""
        found = {name: (core_schema.container(node["schema"], self._core), node) for name, node in self._root.items()}
        brackets = {name: bracket for name, (bracket, _) in found.items() if bracket}
        sure = all(core_schema.always(node, self._core) for bracket, node in found.values() if bracket)

        def counted(values: Any) -> _Nested:
            given = [bracket for name, bracket in brackets.items() if values.get(name) is not None]
            return ("[", "]", given.count("[")), ("{", "}", given.count("{"))

        return counted(brackets) if sure else None, counted

    def _reader(self) -> Callable[[str], Any]:
        read = self._validator.validate_json
        if not self.exact:
            return read

        def read_exactly(text: str) -> Any:
            context: dict[str, Any] = {}
            values = read(text, context=context)
            if context and not context[core_schema.FLOATS].isdisjoint(rounded(text)):
                raise Malformed("digits would be lost")
            return values

        return read_exactly

    def values(self, text: str, lost: Set[float] = _NO_FLOATS) -> Any:
        if isinstance(text, Settled):
            with core_schema.made_once(text.made):
                return self.values(text.given, lost)
        context: dict[str, Any] | None = {} if self.exact else None
        try:
            if self._opaque:
                loads(text)
            values = self._validator.validate_json(text, context=context)
        except Malformed as malformed:
            raise Mistakes([Mistake((), f"cannot be read: {malformed}")]) from None
        except ValidationError as error:
            try:
                value = json.loads(text)
            except ValueError:
                value = None
            raise Mistakes(from_pydantic(error, value)) from None
        except Exception as error:  # a validator of the author's own that breaks says no
            raise Mistakes([Mistake((), f"cannot be checked: {type(error).__name__}")]) from error
        lost = lost & context.get(core_schema.FLOATS, _NO_FLOATS) if context else _NO_FLOATS
        if lost:
            expected = "must be a string, since a number in floating point does not keep all its digits"
            raise Mistakes([Mistake(path, expected) for path in _places(json.loads(text), lost)])
        return values

    def settled(self, values: Any, text: str) -> tuple[Any, str]:
        if not self._made:
            return values, text
        given = loads(text)
        made = {name: self._value(values, name) for name in self._made if name not in given}
        settled = dumps({**given, **{name: _shown(value) for name, value in made.items()}})
        with suppress(Mistakes):
            read = self.values(settled)
            if all(_is_same(self._value(read, name), value) for name, value in made.items()):
                return read, settled
        return values, self._settled_text(settled, text)

    def _value(self, values: Any, name: str) -> Any:
        field = self._made[name]
        return values.get(field) if self._is_dict else getattr(values, field)

    def _settled_text(self, settled: str, given: str) -> Settled:
        text = Settled(settled)
        text.given, text.made = given, core_schema.made_by_now()
        return text

    def _climbed(
        self, name: str, value: dict[str, Any], repairs: tuple[str, ...], lost: set[float], before: str | None = None
    ) -> tuple[Any, str, tuple[str, ...]]:
        if not self._made:
            return super()._climbed(name, value, repairs, lost)
        kept = before.made if isinstance(before, Settled) else None
        for key in self._unchanged(value, before):
            del value[key]
        with core_schema.made_once(kept):
            return super()._climbed(name, value, repairs, lost)

    def _unchanged(self, value: dict[str, Any], before: str | None) -> list[str]:
        """What was made for the call and is as it was shown; where only stars are left of it, it is made again."""
        if before is None:
            return []
        shown, given = (loads(before), loads(before.given)) if isinstance(before, Settled) else ({}, {})
        made = [name for name in self._made if name in value and name not in given]
        return [name for name in made if value[name] == STARS or (name in shown and same(value[name], shown[name]))]

    def foreseen(self, name: str, raw: str | Mapping[str, Any] | None) -> Arguments:
        if not self._made or not self._plain:
            return super().foreseen(name, raw)
        return self._without_made.foreseen(name, raw)

    @cached_property
    def _without_made(self) -> TypedParameters:
        """The same, where what is not given is left out: no default is made."""
        core = core_schema.given_only(self._root, closed=self.schema.get("additionalProperties") is False)
        if self._core["type"] == "definitions":
            core = {**self._core, "schema": core}
        return TypedParameters(
            core, self.schema, self._fields, hidden=self.hidden, bound=self.bound, drop_unknown=self.drop_unknown
        )

    def _rebuilt(self, hidden: frozenset[str], bound: Mapping[str, Any]) -> Parameters:
        return TypedParameters(
            self._core,
            self.schema,
            self._fields,
            made=self._made,
            hidden=hidden,
            bound=bound,
            drop_unknown=self.drop_unknown,
        )


class SchemaParameters(Parameters):
    """Parameters that come as a JSON Schema: the values are plain JSON data."""

    def __init__(
        self,
        schema: Mapping[str, Any],
        *,
        hidden: frozenset[str] = frozenset(),
        bound: Mapping[str, Any] = _EMPTY,
        drop_unknown: bool = False,
    ) -> None:
        super().__init__(_root(schema), hidden=hidden, bound=bound, drop_unknown=drop_unknown)
        self._validator = _schema_validator(thaw(self.schema))

    def values(self, text: str, lost: Set[float] = _NO_FLOATS) -> Any:
        try:
            value = loads(text)
        except Malformed as malformed:
            raise Mistakes([Mistake((), f"cannot be read: {malformed}")]) from None
        errors = from_json_schema(self._validator.iter_errors(value))
        errors = [m for m in errors if not (m.kind == "missing" and m.path[:1] and m.path[0] in self.hidden)]
        if errors:
            raise Mistakes(errors)
        self._integers(value)
        return value

    def _dropped(self, value: dict[str, Any]) -> list[str]:
        """The keys that the validator itself reports; what it may still take is judged after the repairs.

        Where something else is wrong it also reports keys that a part of the schema declares: these are not dropped.
        """
        hidden = [key for key in value if key in self.hidden] if self._closed else []
        left = {**json.loads(json.dumps(value)), **thaw(self.bound)}
        for key in hidden:
            left.pop(key, None)
        try:
            climb(left, self.values, partial(core_schema.declares, self.schema))
        except Mistakes as mistakes:
            reported = [m.path[0] for m in mistakes.found if m.kind == "unknown" and len(m.path) == 1]
            if len(reported) < len(mistakes.found):
                reported = [key for key in reported if not core_schema.declares(self.schema, (key,))]
            return list(dict.fromkeys([*hidden, *(key for key in reported if key in value)]))
        return hidden

    @property
    def _closed(self) -> bool:
        return any(self.schema.get(key) is False for key in ("additionalProperties", "unevaluatedProperties"))

    def _integers(self, value: Any) -> None:
        """JSON Schema calls 5.0 and 1e30 integers: below 2^53 they become ints, beyond it the digits are not known."""
        places = list(_integral_floats(value, ()))
        if not places:
            return
        probe = json.loads(json.dumps(value))
        for path in places:
            _put(probe, path, 0.5)
        wanted = {m.path for m in from_json_schema(self._validator.iter_errors(probe)) if m.wants == "integer"}
        large = [path for path in places if path in wanted and abs(_at(value, path)) >= _EXACT]
        if large:
            expected = "must be an integer with all its digits, not a number in floating point"
            raise Mistakes([Mistake(path, expected, _at(value, path)) for path in large])
        for path in places:
            if path in wanted:
                _put(value, path, int(_at(value, path)))

    def settled(self, values: Any, text: str) -> tuple[Any, str]:
        missing = {name: thaw(value) for name, value in self.defaults.items() if name not in values}
        if not missing:
            return values, dumps(values) if _FRACTION.search(text) else text
        return {**values, **missing}, dumps({**values, **missing})  # what guards judge is what the handler gets

    def _rebuilt(self, hidden: frozenset[str], bound: Mapping[str, Any]) -> Parameters:
        return SchemaParameters(self.schema, hidden=hidden, bound=bound, drop_unknown=self.drop_unknown)


def _shown(made: Any) -> Any:
    """The JSON of what was made, secrets as stars: as Pydantic writes it, so that most of it can be read back."""
    if isinstance(made, Iterator):  # to read it would leave the handler nothing
        return f"<{type(made).__name__}>"
    try:
        return jsonable(to_jsonable_python(made, inf_nan_mode="constants"))
    except Exception:  # what has no JSON form
        return jsonable(made)


def _is_same(read: Any, made: Any) -> bool:
    try:
        return type(read) is type(made) and bool(read == made)
    except Exception:  # some have no answer, such as arrays of numbers
        return False


def _places(value: Any, floats: Set[float], path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where one of these floats stands."""
    if isinstance(value, float) and value in floats:
        yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        yield from _places(item, floats, (*path, key))


def _integral_floats(value: Any, path: tuple[str | int, ...]) -> Any:
    if isinstance(value, float) and value.is_integer():
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _integral_floats(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _integral_floats(item, (*path, index))


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        value = value[part]
    return value


def _put(value: Any, path: tuple[str | int, ...], item: Any) -> None:
    _at(value, path[:-1])[path[-1]] = item


def _root(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema as a tool's: an object, closed where it names properties and says nothing on other keys."""
    if not isinstance(schema, Mapping):
        raise DefinitionError(f"the input schema must be a JSON Schema object, not {type(schema).__name__}")
    try:
        found: dict[str, Any] = loads(dumps(schema))
    except (ValueError, RecursionError) as error:
        raise DefinitionError(f"the input schema has no JSON form: {error}") from None
    if core_schema.too_deep(found):
        raise DefinitionError(f"the input schema nests more than {core_schema.MOST_DEPTH} deep")
    kind = found.setdefault("type", "object")
    if kind != "object":
        raise DefinitionError(
            f"the input schema must have type 'object', not {kind!r}: a call's arguments are an object"
        )
    if not isinstance(found.get("properties", {}), dict):
        raise DefinitionError("the input schema is not a valid JSON Schema: its 'properties' must be an object")
    said = {"additionalProperties", "patternProperties", "unevaluatedProperties"} & found.keys()
    if "properties" in found and not said:
        composed = {"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"} & found.keys()
        found["unevaluatedProperties" if composed else "additionalProperties"] = False
    found.setdefault("properties", {})
    return found


def _schema_validator(schema: dict[str, Any]) -> Any:
    # Imported on first use: most programs have no tool that comes with a schema.
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(schema, validate_formats=True, offline=True)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise DefinitionError(f"the input schema is not a valid JSON Schema: {reason}") from None
