"""Pydantic's core schema made strict and closed, and the JSON Schema that says exactly what it enforces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any

from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticCustomError, to_jsonable_python

from ferrule.arguments.argument_errors import show
from ferrule.arguments.tagged import require_tags
from ferrule.errors import DefinitionError

CoreSchema = dict[str, Any]

_NESTED = (
    "schema",
    "items_schema",
    "keys_schema",
    "values_schema",
    "extras_schema",
    "choices",
    "steps",
    "fields",
    "definitions",
    "arguments_schema",
    "var_args_schema",
    "var_kwargs_schema",
    "strict_schema",
    "lax_schema",
    "json_schema",
    "python_schema",
)
_CLOSABLE = {"model-fields", "typed-dict", "dataclass-args"}
_CONFIGURED = {"model", "dataclass", "typed-dict"}
_BEFORE = {"function-before", "function-wrap", "function-plain"}
_OPAQUE = {"any", "is-instance", "is-subclass", "custom-error", "function-plain", "json", "callable"}
_DEEP = 20
_PLAIN = {"int", "str", "bool", "none", "literal"}

_FORM = "ferrule_form"
"""Under this key of its metadata a node that `close` put in the place of another says which."""

_NOTE = "ferrule_note"
_NOTED = "ferrule:noted"
"""Under this key of a JSON Schema is what JSON Schema has no keyword for, until `told` makes it a description."""

_DAY = "[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_SECONDS = r":[0-5][0-9](?:\.[0-9]+)?"
_OFFSET = f"(?:[Zz]|[+-]{_CLOCK})"
_HOURS = r"T(?:[0-9]+[HM])*[0-9]+(?:[HM]|(?:\.[0-9]+)?S)"
_DECIMAL = r"^[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"
_FORMS = {
    "datetime": (f"^{_DAY}[Tt ]{_CLOCK}(?:{_SECONDS})?{_OFFSET}?$", "a date and time, such as 2026-03-01T12:30:00Z"),
    "aware": (f"^{_DAY}[Tt]{_CLOCK}{_SECONDS}{_OFFSET}$", "a date and time with an offset: 2026-03-01T12:30:00Z"),
    "naive": (f"^{_DAY}[Tt ]{_CLOCK}(?:{_SECONDS})?$", "a date and time without an offset: 2026-03-01T12:30:00"),
    "date": (f"^{_DAY}$", "a date in the format YYYY-MM-DD"),
    "time": (f"^{_CLOCK}(?:{_SECONDS}{_OFFSET}?)?$", "a time, such as 12:30:00"),
    "timedelta": (f"^-?P(?:(?:[0-9]+[YMWD])+(?:{_HOURS})?|{_HOURS})$", "a duration in ISO 8601, such as P1DT2H30M"),
    "uuid": ("^[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$", "a UUID of 36 characters"),
    "decimal": (_DECIMAL, "a decimal number, best as a string"),
    "decimal_key": (_DECIMAL, "a decimal number"),
    "complex": (None, "a complex number as a string, such as 1+2j"),
    "key": ("^(?:0|-?[1-9][0-9]*)$", "an integer in digits"),
}
"""The strings that are taken for these types, and what is wanted in words.

Pydantic takes more than it exports: digits are a time stamp to it, `12:30` is twelve hours, `{…}` a UUID. What is
taken beyond a format (RFC 3339 has no time without an offset, and no duration of `PT0.5S`, which Pydantic itself
writes) is exported as the pattern.
"""


def close(schema: CoreSchema) -> CoreSchema:
    """A copy that is strict at every depth, and in which objects that say nothing about extra keys refuse them.

    Strictness stands in the nodes and not in the call, since some of them read a text that was checked before, which
    is lax. Floats are finite, a bool is no int, and what is read from strings has one form. Pydantic's strict JSON
    mode takes `true` for `Literal[1]` and for an `IntEnum` of 1, because Python calls them equal.
    """
    return _closed(schema, None)  # type: ignore[no-any-return]


def _closed(node: Any, extra: str | None) -> Any:
    if isinstance(node, list | tuple):
        return type(node)(_closed(item, extra) for item in node)
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    if not isinstance(kind, str):
        return _named({key: _closed(item, extra) for key, item in node.items()})
    config = node.get("config") or {}
    if kind in _CONFIGURED:
        extra = config.get("extra_fields_behavior")
    found = _named({key: _closed(value, extra) if key in _NESTED else value for key, value in node.items()})
    if config or kind in _CONFIGURED:  # those do not pass on the configuration that they are given
        by_name = {"validate_by_name": False, "validate_by_alias": True} if config.get("validate_by_name") else {}
        found["config"] = {**config, "strict": True, **by_name}
    if "strict" in found or kind in {"union", "tagged-union"}:  # a strict union would have all below it strict
        found["strict"] = kind not in {"union", "tagged-union"}
    if kind in _CLOSABLE:
        found["extra_behavior"] = extra or "forbid"
    replace = _REPLACED.get(kind)
    return found if replace is None else replace(found)


def _finite(node: CoreSchema) -> CoreSchema:
    node.setdefault("allow_inf_nan", False)
    return node


def _listed(node: CoreSchema) -> CoreSchema:
    """An iterable is checked before anything runs, not while the handler reads it."""
    return {**node, "type": "list"}


def _exact_literal(node: CoreSchema) -> CoreSchema:
    return _members(_exact(node, node["expected"]), node["expected"])


def _exact_enum(node: CoreSchema) -> CoreSchema:
    return _exact(node, [member.value for member in node["members"]])


def _keyed(node: CoreSchema) -> CoreSchema:
    """A key is a string: an integer in the one form that it has, since two forms of it would be one key."""
    keys = node.get("keys_schema") or {}
    if keys.get("type") == "int":
        return {**node, "keys_schema": _read(keys, "key")}
    if _form(keys) == "decimal":
        return {**node, "keys_schema": _read(keys["steps"][-1], "decimal_key")}
    return node


def _outside(node: CoreSchema, **more: Any) -> CoreSchema:
    """What a node that goes round another takes over from it."""
    ref = {"ref": node.pop("ref")} if "ref" in node else {}
    return {**ref, **more}


def _read(node: CoreSchema, form: str | None = None) -> CoreSchema:
    """A node whose strings are checked before they are read."""
    if any(key.endswith("functions") for key in node.get("metadata", {})):
        return node  # what is exported is its author's word
    kind = form or str(node["type"])
    if kind == "datetime" and node.get("tz_constraint") is not None:
        kind = "naive" if node["tz_constraint"] == "naive" else "aware"
    pattern, expected = _FORMS[kind]
    text: CoreSchema = {"type": "str", "strict": True}
    if pattern is not None:
        text["pattern"] = pattern
    if kind == "decimal":
        text = {"type": "union", "choices": [text, {"type": "int", "strict": True}, _float_seen()], "strict": False}
    checked = {
        "type": "custom-error",
        "schema": text,
        "custom_error_type": f"{kind}_form",
        "custom_error_message": f"Input should be {expected}",
    }
    outer = _outside(node, type="chain", metadata={_FORM: kind})
    return {**outer, "steps": [checked, {**node, "strict": False}]}


def _float_seen() -> CoreSchema:
    """A JSON float that becomes a `Decimal`: it is told to whoever reads the text, who knows its digits."""

    def seen(value: float, info: Any) -> float:
        if info.context is not None:
            info.context.setdefault(FLOATS, set()).add(value)
        return value

    node = {"type": "float", "strict": True, "allow_inf_nan": False}
    return {"type": "function-after", "function": {"type": "with-info", "function": seen}, "schema": node}


FLOATS = "ferrule_floats"
"""The key of the validation context under which the floats that became a `Decimal` are."""


def _unique(node: CoreSchema) -> CoreSchema:
    """A set, from an array in which nothing came twice: `uniqueItems` is what is exported."""
    make = frozenset if node["type"] == "frozenset" else set

    def unique(items: list[Any]) -> Any:
        try:
            found = make(items)
        except TypeError:
            raise PydanticCustomError("set_item_not_hashable", "Set items should be hashable") from None
        if len(found) != len(items):
            raise PydanticCustomError("not_unique", "Input should have no item twice{equal}", {"equal": _equal(items)})
        return found

    return _after(node, {**node, "type": "list"}, unique)


def _equal(items: list[Any]) -> str:
    """The first two that are equal and look different: who is told of one item twice would not find it."""
    seen: dict[Any, Any] = {}
    for item in items:
        other = seen.setdefault(item, item)
        if show(other, 30) != show(item, 30):
            return f", and {show(item, 30)} equals {show(other, 30)}"
    return ""


def _from_array(node: CoreSchema) -> CoreSchema:
    """A named tuple, from an array alone: an object is not what is exported."""
    cls, items = node["cls"], [field["schema"] for field in node["fields"]]
    return _after(node, {"type": "tuple", "items_schema": items}, lambda values: cls(*values))


def _after(node: CoreSchema, schema: CoreSchema, make: Callable[[Any], Any]) -> CoreSchema:
    metadata = {**node.get("metadata", {}), _FORM: node["type"]}
    inner = {key: value for key, value in schema.items() if key not in {"ref", "metadata", "serialization"}}
    function = {"type": "no-info", "function": make}
    return _outside(node, type="function-after", function=function, schema=inner, metadata=metadata)


def _named(node: CoreSchema) -> CoreSchema:
    """A field has the one name that is exported: under another a guard would not see it."""
    for key in ("alias", "validation_alias"):
        choices = node.get(key)
        if not isinstance(choices, list) or not choices:
            continue
        paths = choices if isinstance(choices[0], list) else [choices]
        plain = [path[0] for path in paths if len(path) == 1]
        if not plain:
            raise DefinitionError(f"the alias path {choices!r} is no name that a model can fill; use a plain alias")
        node[key] = plain[0]
    return node


def _exact(node: CoreSchema, allowed: list[Any]) -> CoreSchema:
    numbers = [value for value in (v.value if isinstance(v, Enum) else v for v in allowed) if isinstance(value, int)]
    if not numbers:
        return node
    expected = " or ".join(repr(value) for value in allowed)

    def exactly(value: Any) -> Any:
        if isinstance(value, int) and not any(n == value and type(n) is type(value) for n in numbers):
            raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})
        return value

    return _outside(node, type="function-before", function={"type": "no-info", "function": exactly}, schema=node)


def _members(node: CoreSchema, allowed: list[Any]) -> CoreSchema:
    """A literal of enum members takes their values: strict JSON mode would want the members themselves."""
    members = [member for member in allowed if isinstance(member, Enum)]
    if not members:
        return node

    def member(value: Any) -> Any:
        fits = (one for one in members if type(one.value) is type(value) and one.value == value)
        return next(fits, value)

    return _outside(node, type="function-before", function={"type": "no-info", "function": member}, schema=node)


_REPLACED: dict[str, Callable[[CoreSchema], CoreSchema]] = {
    "float": _finite,
    "generator": _listed,
    "literal": _exact_literal,
    "enum": _exact_enum,
    "dict": _keyed,
    "set": _unique,
    "frozenset": _unique,
    "named-tuple": _from_array,
    **dict.fromkeys(["datetime", "date", "time", "timedelta", "uuid", "decimal", "complex"], _read),
}


def opaque(schema: Any) -> bool:
    """Whether something in it takes any JSON, so that the text itself has to be looked at for NaN and infinities."""
    if isinstance(schema, list | tuple):
        return any(map(opaque, schema))
    if not isinstance(schema, dict):
        return False
    kind = schema.get("type")
    if not isinstance(kind, str):
        return any(map(opaque, schema.values()))
    if kind == "chain" and _form(schema):
        return False
    return kind in _OPAQUE or any(opaque(schema[key]) for key in _NESTED if key in schema)


def flat(schema: CoreSchema) -> bool:
    """Whether its JSON is a single scalar, with no key of its own."""
    kind = schema.get("type")
    if kind in {"nullable", "default", "function-before", "function-after"}:
        return flat(schema["schema"])
    if kind == "chain":
        return _form(schema) is not None
    return kind in {"int", "str", "bool", "none", "float", "literal", "enum", "url", "bytes"}


def _form(schema: Mapping[str, Any]) -> Any:
    return schema.get("metadata", {}).get(_FORM)


def holds(schema: Any, form: str) -> bool:
    """Whether a type that `close` put another node for, such as `decimal`, is somewhere in it."""
    if isinstance(schema, list | tuple):
        return any(holds(item, form) for item in schema)
    if not isinstance(schema, dict):
        return False
    if not isinstance(schema.get("type"), str):
        return any(holds(item, form) for item in schema.values())
    return _form(schema) == form or any(holds(schema[key], form) for key in _NESTED if key in schema)


def container(schema: CoreSchema, whole: CoreSchema) -> str:
    """The bracket that its JSON begins with, where it is an array or an object for certain; or nothing."""
    kind = schema.get("type")
    if kind in {"nullable", "default"} or (kind == "function-after" and _form(schema)):
        return container(schema["schema"], whole)
    if kind == "definition-ref":
        return container(_defined(whole, schema), whole)
    if kind in {"list", "tuple"}:
        return "["
    inner = schema["schema"].get("type") if kind in {"model", "dataclass"} else kind
    return "{" if inner in {*_CLOSABLE, "dict"} else ""


def always(field: CoreSchema, whole: CoreSchema) -> bool:
    """Whether a field of a typed dict has a value other than `None` in every call."""
    node = field["schema"]
    while node["type"] == "definition-ref" or (node["type"] == "function-after" and _form(node)):
        node = _defined(whole, node) if node["type"] == "definition-ref" else node["schema"]
    return bool(field["required"]) and node["type"] not in {"nullable", "default"}


def _defined(whole: CoreSchema, reference: CoreSchema) -> CoreSchema:
    return next(node for node in whole["definitions"] if node.get("ref") == reference["schema_ref"])


def root(schema: CoreSchema) -> tuple[dict[str, CoreSchema], bool]:
    """The fields of the typed dict or model that it is, and whether nothing of an author's own comes before them."""
    whole, own = schema, False
    if schema["type"] == "definitions":
        schema = schema["schema"]
    while "fields" not in schema:
        own = own or schema["type"] in _BEFORE
        if "schema" not in schema and "schema_ref" not in schema:
            return {}, False
        schema = _defined(whole, schema) if "schema_ref" in schema else schema["schema"]
    return schema["fields"], not own


Made = dict[Any, Any]
"""What the factories of a call made, by factory."""

_MADE: ContextVar[Made | None] = ContextVar("ferrule_made", default=None)


@contextmanager
def made_once(made: Made | None = None) -> Iterator[None]:
    """Within it each factory that `keep_made` knows is called at most once, however often is validated; one that is
    among `made` is not called at all."""
    token = _MADE.set(dict(made or {}))
    try:
        yield
    finally:
        _MADE.reset(token)


def made_by_now() -> Made:
    """What was made since `made_once` began."""
    return dict(_MADE.get() or {})


def keep_made(field: CoreSchema) -> None:
    """Have the default factory of a field keep to `made_once`."""
    node = field["schema"]
    factory = node.get("default_factory")
    if factory is None:
        return

    def made(*data: Any) -> Any:
        kept = _MADE.get()
        if kept is None:
            return factory(*data)
        if made not in kept:
            kept[made] = factory(*data)
        return kept[made]

    field["schema"] = {**node, "default_factory": made}


def given_only(fields: Mapping[str, CoreSchema], *, closed: bool) -> CoreSchema:
    """The typed dict of these fields without any default."""
    found = {}
    for name, field in fields.items():
        node, optional = field["schema"], field["schema"]["type"] == "default"
        found[name] = {
            **{key: field[key] for key in ("validation_alias",) if key in field},
            "type": "typed-dict-field",
            "schema": node["schema"] if optional else node,
            "required": field.get("required", True) and not optional,
        }
    return typed_dict(found, None if closed else {"type": "any"})


def direct(schema: Mapping[str, Any]) -> bool:
    """Whether the validated value is the JSON value itself, so that it can be read off."""
    kind = schema.get("type")
    if kind in {"nullable", "default"}:
        return direct(schema["schema"])
    if kind == "literal":
        return not any(isinstance(value, Enum) for value in schema["expected"])
    if kind == "str":
        return not any(schema.get(key) for key in ("strip_whitespace", "to_lower", "to_upper"))
    return kind in _PLAIN


class _Methods(dict[str, Any]):
    """The generator's methods by the kind of core schema, looked up when first used."""

    def __init__(self, generator: GenerateJsonSchema) -> None:
        self._generator = generator

    def __missing__(self, kind: str) -> Any:
        method = self[kind] = getattr(self._generator, f"{kind.replace('-', '_')}_schema")
        return method


class _Generator(GenerateJsonSchema):
    """Pydantic's generator without noise titles; objects that refuse other keys say so."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    noted = False
    """Whether a node has a note."""
    tagged = False
    """Whether a union is told apart by a tag."""

    def build_schema_type_to_method(self) -> Any:
        # Pydantic's own looks up sixty methods for every schema, which takes longer than a small schema itself.
        return _Methods(self)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        found = super().generate_inner(schema)
        note = _note(schema) if self.mode == "validation" else ""
        if not note:
            return found
        self.noted = True
        return {**found, _NOTE: note}

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        return _plain(super().model_schema(schema), schema)

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        return _plain(super().dataclass_schema(schema), schema)

    def typed_dict_schema(self, schema: Any) -> JsonSchemaValue:
        return _plain(super().typed_dict_schema(schema), schema)

    def chain_schema(self, schema: Any) -> JsonSchemaValue:
        form = _form(schema)
        if form is None:
            return super().chain_schema(schema)
        found = self.generate_inner(schema["steps"][-1])
        return _worded(found, form, _FORMS[form][0])

    def function_after_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().function_after_schema(schema)
        form = _form(schema)
        if form in {"set", "frozenset"}:
            found["uniqueItems"] = True
        elif form == "named-tuple":
            least = sum(item["type"] != "default" for item in schema["schema"]["items_schema"])
            found = {key: value for key, value in found.items() if key != "minItems"}
            found |= {"minItems": least} if least else {}
        return found

    def dict_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().dict_schema(schema)
        if "patternProperties" in found:
            found["additionalProperties"] = False
        elif _form(schema.get("keys_schema", {})):
            found["propertyNames"] = self.generate_inner(schema["keys_schema"])
        if "patternProperties" in found and _form(schema["keys_schema"]):
            note = self.generate_inner(schema["keys_schema"]).get(_NOTE)
            found |= {_NOTE: f"each key {note}"} if note else {}
        return found

    def tagged_union_schema(self, schema: Any) -> JsonSchemaValue:
        self.tagged = True
        return super().tagged_union_schema(schema)

    def enum_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().enum_schema(schema)
        if found.get("title") == schema["cls"].__name__:
            del found["title"]
        if found.get("description") == Enum.__doc__:
            del found["description"]
        return found


def _worded(found: JsonSchemaValue, form: str, pattern: str | None) -> JsonSchemaValue:
    """What is exported for strings of a form: the format that every model knows, and the pattern beside it."""
    if form in {"aware", "date", "uuid", "complex"}:
        return found
    text = {"type": "string", "pattern": pattern}
    rest = {key: value for key, value in found.items() if key not in {"type", "format", "anyOf"}}
    if form in {"key", "decimal_key"}:
        return {**text, **{key: value for key, value in rest.items() if key == _NOTE}}
    if form == "naive":
        return {**text, **rest}
    first = found["anyOf"][0] if form == "decimal" else {"type": "string", "format": found["format"]}
    return {"anyOf": [first, text], **rest}


_TIMES = {"gt": "after {}", "ge": "{} or later", "lt": "before {}", "le": "{} or earlier", "now_op": "in the {}"}
_SIZES = {"gt": "more than {}", "ge": "at least {}", "lt": "less than {}", "le": "at most {}"}
_DIGITS = {"max_digits": "at most {} digits", "decimal_places": "at most {} after the point"}
_BOUNDS = {
    **dict.fromkeys(["date", "datetime", "time"], _TIMES),
    "timedelta": _SIZES,
    "decimal": {**_DIGITS, **_SIZES, "multiple_of": "a multiple of {}"},
}
"""What is enforced of a value that is written as a string, for which JSON Schema has no bounds."""


def _note(schema: Mapping[str, Any]) -> str:
    """What of a node JSON Schema has no keyword for."""
    if "metadata" not in schema and schema.get("type") not in _BOUNDS:
        return ""
    if any(key.endswith("functions") for key in schema.get("metadata", {})):
        return ""  # what is exported is its author's word
    if _form(schema) in {"set", "frozenset"} and not _one_form(schema["schema"].get("items_schema", {})):
        return "no two items may be equal, even if they are written differently"
    words = _BOUNDS.get(str(schema.get("type")), {})
    bounds = [(said, schema[key]) for key, said in words.items() if schema.get(key) is not None]
    return ", ".join(said.format(to_jsonable_python(bound)) for said, bound in bounds)


def _one_form(schema: Mapping[str, Any]) -> bool:
    """Whether values that differ as JSON are never equal."""
    kind = schema.get("type")
    if kind == "nullable":
        return _one_form(schema["schema"])
    if kind == "tuple":
        return all(map(_one_form, schema["items_schema"]))
    if kind == "union":
        kinds = {choice.get("type") for choice in schema["choices"] if isinstance(choice, Mapping)}
        return kinds <= {"str", "int", "float", "none"} and all(map(_one_form, schema["choices"]))
    if kind == "str":
        return direct(schema)
    return kind in {"int", "float", "bool", "none", "enum", "bytes"} or _form(schema) == "date" or _literal(schema)


def _literal(schema: Mapping[str, Any]) -> bool:
    while schema.get("type") == "function-before":
        schema = schema["schema"]
    return schema.get("type") in {"literal", "enum"} and all(isinstance(v, str) for v in schema.get("expected", ()))


def told(schema: Mapping[str, Any]) -> Any:
    """A JSON Schema in which what it has no keyword for stands in the descriptions, after what these say already."""
    if _NOTED not in schema:
        return schema
    return _told({key: value for key, value in schema.items() if key != _NOTED})


def _told(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return [_told(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: _told(value) for key, value in schema.items()}
    note = found.get(_NOTE)
    if isinstance(note, str):
        del found[_NOTE]
        found["description"] = f"{found['description']} ({note})" if "description" in found else note
    return found


def _plain(found: JsonSchemaValue, schema: Mapping[str, Any]) -> JsonSchemaValue:
    cls = schema.get("cls")
    if cls is not None and found.get("title") == cls.__name__:
        del found["title"]
    if found.get("type") == "object" and "additionalProperties" not in found and _refuses_extra(schema):
        found["additionalProperties"] = False
    return found


def _refuses_extra(schema: Mapping[str, Any]) -> bool:
    inner: Any = schema
    while isinstance(inner, Mapping):
        if inner.get("type") in _CLOSABLE:
            return inner.get("extra_behavior") == "forbid"
        inner = inner.get("schema")
    return False


def json_schema_of_output(adapter: Any) -> dict[str, Any]:
    """JSON Schema 2020-12 of what a type is written as."""
    return _Generator(by_alias=True).generate(adapter.core_schema, mode="serialization")


def json_schema(schema: CoreSchema) -> dict[str, Any]:
    """JSON Schema 2020-12 of what `schema` takes; the root is an object schema, with `$defs` beside it.

    Raises:
        PydanticUserError: where a type has no JSON form.
    """
    generator = _Generator(by_alias=True)
    found = generator.generate(schema, mode="validation")
    if generator.tagged:
        require_tags(found)
    root = found.get("$ref")
    if root is not None:
        definitions = found["$defs"]
        name = root.removeprefix("#/$defs/")
        found = {**definitions[name], "$defs": definitions}
        if not any(_mentions(item, root) for item in definitions.values()):
            found["$defs"] = {key: item for key, item in definitions.items() if key != name}
        if not found["$defs"]:
            del found["$defs"]
    return {**found, _NOTED: True} if generator.noted else found


def _mentions(node: Any, ref: str) -> bool:
    if isinstance(node, dict):
        return node.get("$ref") == ref or any(_mentions(item, ref) for item in node.values())
    return isinstance(node, list) and any(_mentions(item, ref) for item in node)


MOST_DEPTH = 200
"""So many objects and arrays may stand in each other in a schema, which is read at whatever depth of the stack."""


def too_deep(schema: Any) -> bool:
    """Whether more than `MOST_DEPTH` objects and arrays stand in each other."""
    level = [schema]
    for _ in range(MOST_DEPTH):
        items = (item for node in level for item in (node.values() if isinstance(node, Mapping) else node))
        level = [item for item in items if isinstance(item, Mapping | list | tuple)]
        if not level:
            return False
    return True


def declares(schema: Any, path: Sequence[str | int], *, always: bool = False) -> bool:
    """Whether `path` ends at a property that the schema names, and not at a key that is data: in one of the forms that
    a value may have, or `always`, whichever is meant."""
    nodes = list(_choices(schema, schema))
    for part in path[:-1]:
        below = [child for node in nodes for child in _below(node, part)]
        nodes = [choice for child in below for choice in _choices(schema, child)]
    others = [node for node in nodes if path[-1] not in node.get("properties", ())]
    return len(others) < len(nodes) and not (always and any(map(_takes_data, others)))


def _takes_data(node: Mapping[str, Any]) -> bool:
    return isinstance(node.get("additionalProperties"), Mapping) or bool(node.get("patternProperties"))


def _choices(root: Any, node: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """The schemas that a node is made of: itself, what it refers to, and the branches that it has."""
    if not isinstance(node, Mapping) or depth > _DEEP:
        return
    yield node
    if isinstance(node.get("$ref"), str):
        yield from _choices(root, _resolved(root, node["$ref"]), depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        for branch in node.get(key, ()):
            yield from _choices(root, branch, depth + 1)
    for key in ("then", "else"):
        yield from _choices(root, node.get(key), depth + 1)


def _resolved(root: Any, ref: str) -> Any:
    node = root
    for part in ref.removeprefix("#").strip("/").split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        node = node.get(key) if isinstance(node, Mapping) and key else node
    return node


def _below(node: Mapping[str, Any], part: str | int) -> Iterator[Any]:
    if isinstance(part, str):
        named = node.get("properties", {})
        yield named[part] if part in named else node.get("additionalProperties")
        yield from node.get("patternProperties", {}).values()
        return
    first = node.get("prefixItems", ())
    yield first[part] if part < len(first) else node.get("items")


def typed_dict(fields: Mapping[str, CoreSchema], extras: CoreSchema | None) -> CoreSchema:
    """A core schema whose validated value is the keyword arguments that were given, and no others."""
    found: CoreSchema = {"type": "typed-dict", "fields": dict(fields), "extra_behavior": "forbid"}
    found["config"] = {"strict": True}
    if extras is not None:
        found |= {"extra_behavior": "allow", "extras_schema": extras}
    return found


Errors = (PydanticUserError, TypeError, ValueError, NameError, AttributeError, KeyError, RecursionError)
"""What Pydantic raises for an annotation that it cannot take."""

Function = Callable[..., Any]
