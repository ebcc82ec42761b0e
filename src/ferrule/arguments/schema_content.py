"""The keywords in a JSON Schema, for the APIs that refuse some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ferrule.values.frozen import JsonObject

SCHEMA_FORMS: dict[str, Literal["named", "listed", "lone"]] = {
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"), "named"),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), "listed"),
    **dict.fromkeys(
        ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"), "lone"
    ),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), "lone"),
}
"""The keywords that hold schemas: by their names, in a list, or one alone."""
BOOLEAN_SETTINGS = frozenset({"additionalProperties", "unevaluatedProperties", "unevaluatedItems"})
"""Keywords under which an API reads `true` and `false` as a setting, and not as a schema."""
_ODD_IN_NAMES = frozenset("~/#")


def find_odd_keyword(root: JsonObject) -> str | None:
    """Return a keyword of the schema that should hold schemas and does not; None if there is none.

    A draft that does not know a keyword lets any value pass there.
    """
    waiting: list[Any] = [root]
    for node in waiting:  # the list grows meanwhile
        if not isinstance(node, Mapping):
            continue
        for key, value in node.items():
            holds = SCHEMA_FORMS.get(key)
            if holds is None:
                continue
            if isinstance(value, Mapping) and holds == "named":
                held = [*value.values()]
            elif isinstance(value, list) and (holds == "listed" or key == "items"):
                held = value
            else:
                held = [value if holds == "lone" else None]
            if not all(isinstance(one, Mapping | bool) for one in held):
                return str(key)
            waiting += held
    return None


class SchemaContent:
    """The parts of a schema that some API refuses.

    Attributes:
        is_plain_object: Whether the root is an object with properties, without a reference, a union or an empty
            description.
        root_keywords: The keywords of the root, without its definitions.
        names: The properties of the root.
        keywords: All keywords. An empty text stands for a value that is no schema, and `"definitions"` for references
            that are not exactly the entries of `$defs`.
        patterns: All values of `pattern`.
        has_booleans: Whether `true` or `false` stands for a schema.
        has_any_items: Whether an array has no schema for its items.
    """

    __slots__ = ("has_any_items", "has_booleans", "is_plain_object", "keywords", "names", "patterns", "root_keywords")

    def __init__(self, root: JsonObject) -> None:
        self.keywords: set[str] = set()
        self.patterns: list[str] = []
        self.has_booleans = self.has_any_items = False
        references = set()
        given: dict[str, Any] = dict(root)
        definitions = given.pop("$defs", {})
        if not isinstance(definitions, dict):
            definitions = {"": definitions}
        is_object = given.get("type") == "object" and given.get("description") != ""
        self.is_plain_object = is_object and given.keys() & {"properties", "$ref", "anyOf"} == {"properties"}
        self.root_keywords = given.keys() - {"definitions"}
        self.names = list(given.get("properties", ()))
        waiting: list[Any] = [given, *(one if isinstance(one, dict) else None for one in dict.values(definitions))]
        for node in waiting:  # the list grows meanwhile
            if not isinstance(node, dict):
                self.has_booleans = True
                self.keywords.update(() if isinstance(node, bool) else ("",))
                continue
            self.keywords |= node.keys()
            for key, value in dict.items(node):
                holds = SCHEMA_FORMS.get(key)
                if key == "type":
                    is_array = value == "array" or (isinstance(value, list) and "array" in value)
                    if is_array and not isinstance(dict.get(node, "items"), dict):
                        self.has_any_items = True
                elif key == "pattern":
                    self.patterns.append(value)
                elif key == "$ref":
                    references.add(str(value))
                elif holds == "named" and isinstance(value, dict):
                    waiting += dict.values(value)
                elif holds == "listed" and isinstance(value, list):
                    waiting += value
                elif holds is not None and not (key in BOOLEAN_SETTINGS and isinstance(value, bool)):
                    waiting.append(value)
        if references != {f"#/$defs/{name}" for name in definitions if _ODD_IN_NAMES.isdisjoint(name)}:
            self.keywords.add("definitions")
