"""A form for a JSON Schema: `draw_form` makes fields of a draft, and `read_form` makes a draft of what was sent.

A draft is JSON, with two additions: `Unreadable` holds a text that its field could not read, and `Chosen` says which
alternative of a union a value belongs to. `to_json` removes both. The schema is only a guide here: the runner validates
the arguments, as it does those of a model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from ferrule.providers._schemas import follow_pointer
from ferrule.values.frozen import thaw
from ferrule.values.json_text import parse_json

Kind: TypeAlias = Literal["text", "number", "choice", "fixed", "file", "json", "object", "list", "map", "union"]
Sent: TypeAlias = Mapping[str, Sequence[str]]
"""The values of a sent form, by the names of its fields."""
ROOT = "f"
_MOST_LEVELS = 8
_MOST_ITEMS = 500
_MOST_PARTS = 5_000
_MOST_REFERENCES = 20
_PLAIN_TYPES = {"string": "text", "integer": "number", "number": "number", "boolean": "choice", "object": "object"}
_INPUT_TYPES = {"date": "date", "time": "time", "password": "password", "email": "email"}
_LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matches {}",
}


class Missing:
    """The type of `MISSING`: no value is there."""

    def __repr__(self) -> str:
        return "<missing>"


MISSING = Missing()


class Unreadable(str):
    """A text that its field could not read, as it was typed."""


class Chosen(NamedTuple):
    """A value of a union, with the number of its alternative."""

    number: int
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a form, with those inside it.

    Attributes:
        name: The name of its input, unique in the form.
        label: The text beside it, written by the author of the tool.
        value: The text in its input.
        default: The value that the tool takes if the field is empty, as JSON; empty if there is none.
        choices: The values and texts of a choice or a union.
        fields: The fields of an object; the one field of the chosen alternative of a union.
        items: The items of a list or a map: key and field.
        included: Whether an optional object, list, map or union has a value.
        error: The reason why its text cannot be read.
        is_item: Whether it is an item of a list or a map.
    """

    name: str
    label: str
    kind: Kind
    type: str = "text"
    description: str = ""
    hint: str = ""
    required: bool = False
    value: str = ""
    default: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    fields: tuple[Field, ...] = ()
    items: tuple[tuple[str, Field], ...] = ()
    included: bool = True
    error: str = ""
    is_item: bool = False

    @property
    def id(self) -> str:
        """An id for HTML, without spaces."""
        return quote(self.name, safe="")

    @property
    def is_group(self) -> bool:
        """Whether it holds other fields."""
        return self.kind in ("object", "list", "map", "union")


def draw_form(schema: Mapping[str, Any], draft: Any, label: str = "") -> Field:
    """Return the form of a schema, filled with a draft."""
    return _Schema(thaw(schema)).draw(schema, draft, ROOT, label, required=True, level=0)


def read_form(schema: Mapping[str, Any], sent: Sent, action: str = "") -> Any:
    """Return the draft that was sent, after an action: `add NAME` adds an item to a list, `remove NAME` removes it."""
    draft = _Schema(thaw(schema)).read(schema, sent, ROOT, action, required=True, level=0)
    return {} if isinstance(draft, Missing) else draft


def to_json(draft: Any) -> Any:
    """Return a draft as plain JSON."""
    if isinstance(draft, Chosen):
        return to_json(draft.value)
    if isinstance(draft, Unreadable):
        return str(draft)
    if isinstance(draft, Mapping):
        return {key: to_json(value) for key, value in draft.items()}
    return [to_json(item) for item in draft] if isinstance(draft, list) else draft


def find_unreadable(draft: Any) -> list[str]:
    """Return the texts in a draft that their fields could not read."""
    if isinstance(draft, Chosen):
        return find_unreadable(draft.value)
    if isinstance(draft, Unreadable):
        return [str(draft)]
    inner = draft.values() if isinstance(draft, Mapping) else draft if isinstance(draft, list) else ()
    return [text for value in inner for text in find_unreadable(value)]


class _Schema:
    """The whole schema, for its references, and the length of one form of it."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = _MOST_PARTS

    # -- reading the schema --------------------------------------------------------------------------------------------

    def resolve(self, node: Any) -> dict[str, Any]:
        """Return a schema without references and without an `allOf` of one."""
        for _ in range(_MOST_REFERENCES):
            if not isinstance(node, Mapping):
                return {}
            inner: Any = None
            if isinstance(reference := node.get("$ref"), str) and reference.startswith("#"):
                inner = self._root if reference == "#" else follow_pointer(self._root, reference)
            elif isinstance(several := node.get("allOf"), list) and len(several) == 1:
                inner = several[0]
            if not isinstance(inner, Mapping):
                break
            node = {**inner, **{key: value for key, value in node.items() if key not in ("$ref", "allOf")}}
        return dict(node) if isinstance(node, Mapping) else {}

    def find_alternatives(self, node: Mapping[str, Any]) -> tuple[list[dict[str, Any]], bool]:
        """Return the alternatives of a schema, and whether null is one of them besides."""
        several = node.get("anyOf") or node.get("oneOf")
        if isinstance(several, list) and not node.get("properties"):
            resolved = [self.resolve(one) for one in several]
        elif isinstance(types := node.get("type"), list):
            resolved = [{**node, "type": one} for one in types]
        else:
            return [dict(node)], False
        others = [one for one in resolved if one.get("type") != "null" and one.get("const", "") is not None]
        extra = {key: node[key] for key in ("title", "description", "default") if key in node}
        if len(others) == 1:
            others = [{**others[0], **extra}]
        return others, len(others) < len(resolved)

    def limit(self, found: list[dict[str, Any]], level: int) -> list[dict[str, Any]]:
        """Return the alternatives of the next field, or none if it takes JSON: the form is too long or too deep.

        A few references in a schema can make billions of fields. Drawing and reading come here in the same order.
        """
        node = found[0] if len(found) == 1 else {}
        choices = node.get("enum", found if len(found) > 1 else ())
        self._left -= 1 + (len(choices) if isinstance(choices, Sequence) else 0)
        is_long = bool(choices) or node.get("type") in ("object", "array")
        return [] if (self._left < 0 and is_long) or (len(found) > 1 and level >= _MOST_LEVELS) else found

    def find_kind(self, node: Mapping[str, Any], level: int) -> Kind:
        """Return the kind of field for a schema without alternatives."""
        if "const" in node:
            return "fixed"
        if isinstance(node.get("enum"), list):
            return "choice"
        kind = node.get("type")
        if level >= _MOST_LEVELS or any(word in node for word in ("allOf", "not", "if", "patternProperties")):
            return "json"
        if kind == "array":
            return "list" if isinstance(node.get("items"), Mapping) and "prefixItems" not in node else "json"
        if kind == "object":
            if node.get("properties"):
                return "object"
            return "map" if isinstance(node.get("additionalProperties"), Mapping) else "json" if level else "object"
        if kind == "string" and ("contentEncoding" in node or node.get("format") in ("base64", "byte")):
            return "file"
        return _PLAIN_TYPES.get(str(kind), "json")  # type: ignore[return-value]

    def make_initial(self, node: Any, level: int) -> Any:
        """Return the draft of a field that has just been added."""
        found, _ = self.find_alternatives(self.resolve(node))
        if len(found) > 1:
            return Chosen(0, self.make_initial(found[0], level + 1)) if level < _MOST_LEVELS else MISSING
        node = found[0] if found else {}
        kind = self.find_kind(node, level)
        if "default" in node:
            return node["default"]
        return {"fixed": node.get("const"), "object": {}, "map": {}, "list": []}.get(kind, MISSING)

    def choose(self, found: Sequence[Mapping[str, Any]], value: Any) -> int:
        """Return the number of the alternative that a value fits best."""
        return max(range(len(found)), key=lambda number: (self._score(found[number], value), -number))

    def _score(self, node: Mapping[str, Any], value: Any) -> int:
        if "const" in node or "enum" in node:
            return 4 if value in [node.get("const"), *node.get("enum", ())] else -9
        types: dict[str, Any] = {"string": str, "integer": int, "number": int | float, "boolean": bool, "array": list}
        if isinstance(value, Mapping):
            if node.get("type") != "object":
                return -9
            inner = node.get("properties", {})
            tags = [self._score(one, value[key]) for key, raw in inner.items() if "const" in (one := self.resolve(raw))
                    and key in value]  # fmt: skip
            return 1 + sum(tags) + sum(1 if key in inner else -1 for key in value)
        wanted = types.get(str(node.get("type")))
        is_bool = isinstance(value, bool)
        return 2 if wanted and isinstance(value, wanted) and is_bool == (wanted is bool) else 0

    # -- drawing -------------------------------------------------------------------------------------------------------

    def draw(self, schema: Any, draft: Any, name: str, label: str, *, required: bool, level: int) -> Field:
        """Return the field of a schema with a draft."""
        node = self.resolve(schema)
        found, nullable = self.find_alternatives(node)
        about: dict[str, Any] = {
            "name": name,
            "label": label or str(node.get("title") or ""),
            "description": str(node.get("description") or ""),
            "required": required,
        }
        if "default" in node and node["default"] is not None:
            about["default"] = _write_value(node["default"])
        if draft is None and nullable:
            draft = MISSING
        found = self.limit(found, level)
        if len(found) > 1:
            return self._draw_union(found, draft, about, level, is_open=required and not nullable)
        node = found[0] if found else {}
        kind = self.find_kind(node, level)
        about |= {"kind": kind, "hint": _describe_type(node)}
        if kind in ("object", "list", "map"):
            about["included"] = not isinstance(draft, Missing) or (required and not nullable)
            if not about["included"]:
                return Field(**about)
        if kind == "object":
            return Field(**about, fields=tuple(self._draw_properties(node, draft, name, level)))
        if kind == "list":
            listed = draft if isinstance(draft, list) else []
            items = [(str(number), item) for number, item in enumerate(listed[:_MOST_ITEMS])]
            return Field(**about, items=self._draw_items(node["items"], items, name, level))
        if kind == "map":
            values = list(draft.items())[:_MOST_ITEMS] if isinstance(draft, Mapping) else []
            return Field(**about, items=self._draw_items(node["additionalProperties"], values, name, level))
        return self._draw_plain(node, draft, about)

    def _draw_union(
        self, found: Sequence[dict[str, Any]], draft: Any, about: dict[str, Any], level: int, *, is_open: bool
    ) -> Field:
        choices = tuple((str(number), _describe_alternative(one, number)) for number, one in enumerate(found))
        if isinstance(draft, Missing) and is_open:
            draft = Chosen(0, self.make_initial(found[0], level))
        if isinstance(draft, Missing):
            return Field(**about, kind="union", choices=choices, included=False)
        if not isinstance(draft, Chosen):
            draft = Chosen(self.choose(found, draft), draft)
        number = min(draft.number, len(found) - 1)
        inner = self.draw(
            {**found[number], "description": found[number].get("description", "")},
            draft.value,
            f"{about['name']}/{number}",
            _describe_alternative(found[number], number),
            required=True,
            level=level + 1,
        )
        return Field(**about, kind="union", choices=choices, value=str(number), fields=(inner,))

    def _draw_properties(self, node: Mapping[str, Any], draft: Any, name: str, level: int) -> Iterator[Field]:
        values = draft if isinstance(draft, Mapping) else {}
        required = node.get("required") or ()
        for key, inner in _get_properties(node).items():
            value = values.get(key, MISSING)
            yield self.draw(inner, value, _join(name, key), key, required=key in required, level=level + 1)

    def _draw_items(
        self, schema: Any, items: Sequence[tuple[str, Any]], name: str, level: int
    ) -> tuple[tuple[str, Field], ...]:
        fields = [
            self.draw(schema, item, f"{name}/{number}", f"item {number + 1}", required=True, level=level + 1)
            for number, (_, item) in enumerate(items)
        ]
        return tuple((key, replace(field, is_item=True)) for (key, _), field in zip(items, fields, strict=True))

    def _draw_plain(self, node: Mapping[str, Any], draft: Any, about: dict[str, Any]) -> Field:
        while isinstance(draft, Chosen):  # a union that is too deep, or in a form that is too long
            draft = draft.value
        kind, text = about["kind"], "" if isinstance(draft, Missing) else _write_value(draft)
        if kind == "fixed":
            return Field(**about, value=_write_value(node["const"]))
        if kind == "choice":
            values = node.get("enum", [True, False])
            choices = tuple((json.dumps(value), _write_value(value)) for value in values)
            return Field(**about, choices=choices, value="" if isinstance(draft, Missing) else json.dumps(draft))
        error = ""
        if isinstance(draft, Unreadable):
            error = "Write a number." if kind == "number" else "This is not JSON."
        elif kind == "json" and not isinstance(draft, Missing):
            text = json.dumps(to_json(draft), ensure_ascii=False, indent=2)
        return Field(**about, value=text, error=error, type=_INPUT_TYPES.get(str(node.get("format")), "text"))

    # -- reading what was sent -----------------------------------------------------------------------------------------

    def read(self, schema: Any, sent: Sent, name: str, action: str, *, required: bool, level: int) -> Any:
        """Return the draft of a field, or MISSING."""
        found, nullable = self.find_alternatives(self.resolve(schema))
        empty = None if nullable and required else MISSING
        found = self.limit(found, level)
        if len(found) > 1:
            return self._read_union(found, sent, name, action, level, empty, is_open=required and not nullable)
        node = found[0] if found else {}
        kind = self.find_kind(node, level)
        if kind in ("object", "list", "map"):
            is_on = (required and not nullable) or bool(sent.get(f"{name}#on"))
            if not is_on:
                return empty
            if not required and f"{name}#drawn" not in sent:
                return self.make_initial(node, level)
        if kind == "object":
            return self._read_properties(node, sent, name, action, level)
        if kind == "list":
            return [value for _, value in self._read_items(node["items"], sent, name, action, level)]
        if kind == "map":
            return dict(self._read_items(node["additionalProperties"], sent, name, action, level))
        return self._read_plain(node, kind, sent, name, empty, required=required)

    def _read_union(
        self,
        found: Sequence[dict[str, Any]],
        sent: Sent,
        name: str,
        action: str,
        level: int,
        empty: Any,
        *,
        is_open: bool,
    ) -> Any:
        text = _last_value(sent, name)
        if not text.isdecimal() or len(text) > 9 or int(text) >= len(found):
            return Chosen(0, self.make_initial(found[0], level)) if is_open else empty
        number = int(text)
        if _last_value(sent, f"{name}#drawn") != text:  # the person has chosen another alternative
            return Chosen(number, self.make_initial(found[number], level))
        value = self.read(found[number], sent, f"{name}/{number}", action, required=True, level=level + 1)
        return Chosen(number, value)

    def _read_properties(
        self, node: Mapping[str, Any], sent: Sent, name: str, action: str, level: int
    ) -> dict[str, Any]:
        required = node.get("required") or ()
        values = {
            key: self.read(inner, sent, _join(name, key), action, required=key in required, level=level + 1)
            for key, inner in _get_properties(node).items()
        }
        return {key: value for key, value in values.items() if not isinstance(value, Missing)}

    def _read_items(self, schema: Any, sent: Sent, name: str, action: str, level: int) -> Iterator[tuple[str, Any]]:
        for number in list(sent.get(f"{name}#item", ()))[:_MOST_ITEMS]:
            place = f"{name}/{number}"
            if action != f"remove {place}":
                value = self.read(schema, sent, place, action, required=True, level=level + 1)
                yield _last_value(sent, f"{place}#key"), "" if isinstance(value, Missing) else value
        if action == f"add {name}":
            value = self.make_initial(schema, level + 1)
            yield "", "" if isinstance(value, Missing) else value

    def _read_plain(
        self, node: Mapping[str, Any], kind: Kind, sent: Sent, name: str, empty: Any, *, required: bool
    ) -> Any:
        if kind == "fixed":
            return node["const"] if required or name in sent else MISSING
        text = _last_value(sent, name).replace("\r\n", "\n")
        if not text:
            is_text = required and kind in ("text", "file") and empty is not None
            return "" if is_text and name in sent else empty
        if kind in ("text", "file"):
            return text
        try:
            value = parse_json(text.strip() if kind == "number" else text)
        except ValueError:
            return Unreadable(text)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return Unreadable(text) if kind == "number" and not is_number else value


def _get_properties(node: Mapping[str, Any]) -> Mapping[str, Any]:
    found = node.get("properties")
    return found if isinstance(found, Mapping) else {}


def _join(name: str, key: str) -> str:
    """Return the name of the field of a property, with the escapes of a JSON pointer."""
    return f"{name}/{key.replace('~', '~0').replace('/', '~1').replace('#', '~2')}"


def _last_value(sent: Sent, name: str) -> str:
    found = sent.get(name)
    return found[-1] if found else ""


def _write_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(to_json(value), ensure_ascii=False)


def _describe_alternative(node: Mapping[str, Any], number: int) -> str:
    """Return a short text for an alternative of a union."""
    tags = [str(one["const"]) for one in _get_properties(node).values() if isinstance(one, Mapping) and "const" in one]
    title = node.get("title") or node.get("type")
    return str(node["const"]) if "const" in node else " ".join(tags) or str(title or f"alternative {number + 1}")


def _describe_type(node: Mapping[str, Any]) -> str:
    """Return the type and the limits of a field."""
    kind = "" if "enum" in node or node.get("type") in ("object", "array", "boolean") else str(node.get("type") or "")
    kind = str(node.get("format") or kind) if kind == "string" else kind
    limits = [
        text.format(node[word]) for word, text in _LIMITS.items() if isinstance(node.get(word), str | int | float)
    ]
    return ", ".join(filter(None, ["text" if kind == "string" else kind, *limits]))
