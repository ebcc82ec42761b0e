"""Plain mode: a tool's schema without the keywords that an API refuses.

Nothing becomes stricter: a value that the tool accepts also fits the sent schema. There is one exception: keys that one
form of a union at the root declares, and another form leaves open without a word. Looser parts are explained in a
description, and the kernel enforces the original.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from ferrule.arguments.schema_content import SCHEMA_FORMS, SchemaContent
from ferrule.providers import _schemas as schemas
from ferrule.providers._schemas import Inexpressible, Names, Schema, Subset, Walk, Written
from ferrule.security.patterns import MAX_CHARACTERS
from ferrule.values.frozen import FrozenDict


@dataclass(frozen=True, eq=False, kw_only=True)
class PlainRules(Subset):
    """The schemas that one API accepts without strict mode.

    The root is always one object with `type` and `properties`, and with neither a reference nor a union.
    """

    keeps: frozenset[str] | None = None
    """The keywords that it accepts; the others go into the description. `None`: any."""
    root_keeps: frozenset[str] | None = None
    """The keywords that it accepts at the root, if they are fewer; a description is not among them, and
    `additionalProperties` may only be `false`."""
    root_refuses: frozenset[str] = frozenset()
    """The keywords that it refuses at the root only."""
    references: bool = True
    """Whether it follows references. If not, they are written out, and a circle ends at its second round."""
    needs_items: bool = False
    """Whether every array needs one schema for its items."""
    booleans: bool = True
    """Whether it accepts `true` and `false` as schemas."""
    patterns: bool = True
    """Whether it accepts any pattern; if not, Python's patterns without lookarounds."""
    enums: frozenset[type] | None = None
    """The classes that values of an `enum` may have."""

    @cached_property
    def unchanged(self) -> frozenset[str]:
        """The keywords that are sent unchanged, if their content is."""
        kept = _MAY_STAY if self.keeps is None else _MAY_STAY & self.keeps
        return kept - ({"enum"} if self.enums else set()) - (set() if self.references else {"$ref"})

    @cached_property
    def leaves(self) -> frozenset[str]:
        """The unchanged keywords without a schema, reference or pattern in them."""
        return self.unchanged - _LOOKED_INTO

    purpose = "sent to"
    remedy = "Change its schema, or leave the tool out"

    def write(self, root: FrozenDict, content: SchemaContent | None = None) -> Written:
        if _stays(root, self, content or SchemaContent(root)):
            return Written(root)
        found, told = _Loosening(root, self).rewrite()
        return Written(root if found == root else FrozenDict(found), told)


# "input_schema does not support oneOf, allOf, or anyOf at the top level":
# https://github.com/anthropics/claude-code/issues/5319. Draft 2020-12 is checked, and the rest of it passes:
# https://github.com/openclaw/openclaw/issues/98588
PLAIN_ANTHROPIC = PlainRules(provider="Anthropic", names=schemas.CLAUDE_NAMES)
# "must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level":
# https://github.com/langchain-ai/langchainjs/issues/9804. "array schema missing items", with prefixItems too:
# https://github.com/AnswerDotAI/fastcore/issues/798. "is not a 'regex'" is Python's re:
# https://github.com/BerriAI/litellm/issues/40485; "regex lookaround is not supported":
# https://github.com/sst/opencode/issues/32073
PLAIN_OPENAI = PlainRules(provider="OpenAI", root_refuses=frozenset({"enum", "not"}), needs_items=True, patterns=False)
# For other servers of this API too: Fireworks refuses boolean schemas,
# https://github.com/grafana/mcp-grafana/issues/597
PLAIN_CHAT = replace(PLAIN_OPENAI, booleans=False)
# google-genai's types: the keywords of GenerateContentConfig.response_json_schema, which are assumed to hold for
# parameters_json_schema too, and its narrow rules for references, which are written out for that reason; the names of
# FunctionDeclaration.parameters. prefixItems without items: https://github.com/AnswerDotAI/fastcore/issues/798
PLAIN_GEMINI = PlainRules(
    provider="Gemini",
    names=Names(re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}"),
                "it wants a letter or '_', then letters, digits and '_', 64 at most"),
    keeps=frozenset(
        [
            *("type", "format", "title", "description", "enum", "items"),
            *("prefixItems", "minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties"),
            *("additionalProperties", "required", "propertyOrdering"),
        ]
    ),
    references=False,
    needs_items=True,
    booleans=False,  # its Schema is a message
    enums=frozenset({str, int, float}),
)  # fmt: skip
# Nova, at the root: "inputSchema/json: extraneous key [definitions] is not permitted":
# https://github.com/zed-industries/zed/issues/28521, https://github.com/BerriAI/litellm/pull/10062. Many clients send
# `additionalProperties: false` there, and Nova accepts it. The names are Claude's.
PLAIN_BEDROCK = PlainRules(
    provider="Bedrock",
    names=schemas.CLAUDE_NAMES,
    root_keeps=frozenset({"type", "properties", "required", "additionalProperties"}),
    references=False,
)
PLAIN_MISTRAL = PlainRules(provider="Mistral")
# The reference of the API asks for an object at the root: https://docs.cohere.com/reference/chat, "tools"
PLAIN_COHERE = PlainRules(provider="Cohere")
# ollama's api/types.go: ToolFunctionParameters and ToolProperty; other keywords are dropped unread, and `true` is an
# error: https://github.com/ollama/ollama/issues/11444, https://github.com/ollama/ollama/issues/10328
PLAIN_OLLAMA = PlainRules(
    provider="Ollama",
    keeps=frozenset({"anyOf", "type", "items", "description", "enum", "properties", "required"}),
    root_keeps=frozenset({"type", "properties", "required"}),
    references=False,
    needs_items=True,
    booleans=False,
)

_MAY_STAY = frozenset(
    [
        *("type", "enum", "const", "title", "description", "default", "examples", "format", "pattern", "$ref", "anyOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "multipleOf"),
        *("properties", "required", "additionalProperties", "items", "minItems", "maxItems", "uniqueItems"),
    ]
)
_LOOKED_INTO = frozenset({*SCHEMA_FORMS, "pattern", "$ref"})
_SILENT = schemas.NOISE | {"title"}
"""The keywords that mean nothing to a model."""
_LEANING = frozenset({"$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties"})
"""Keywords that resolve only when a value is checked, or depend on all keywords beside them."""
_MAY_DECLARE = frozenset({"if", "dependentSchemas", "patternProperties"})
"""Keywords that may accept names not listed by an object."""
_NOT_CHECKED = re.compile(r"\(\?<?[=!]|\[(\\.|[^\]\\])*?(\[|--|&&|~~|\|\|)")
"""Lookarounds; and sets that Python may read as nested in future (it warns), as other checkers already do."""
_MOST_WRITTEN_OUT = 2_000
"""The most parts with references written out. After that, a reference becomes words, as in a circle."""
_DEEPEST_WRITTEN_OUT = 32
"""The most references within each other, with the same effect."""
_MOST_TOLD = 40
"""Forms of one union."""


def _stays(root: FrozenDict, rules: PlainRules, found: SchemaContent) -> bool:
    """Return whether rewriting a schema would change nothing, as with most tools."""
    keys, keeps = found.root_keywords, rules.root_keeps
    if not found.is_plain_object or not keys.isdisjoint(rules.root_refuses):
        return False
    if keeps is not None and not (keys <= keeps and root.get("additionalProperties", False) is False):
        return False
    if rules.names and not all(map(rules.names.pattern.fullmatch, found.names)):
        return False
    refused = (found.has_booleans and not rules.booleans) or (found.has_any_items and rules.needs_items)
    if refused or not found.keywords <= rules.unchanged:
        return False
    return rules.patterns or all(map(_is_accepted_pattern, found.patterns))


class _Loosening(Walk[PlainRules]):
    """One schema to rewrite for plain mode."""

    def __init__(self, root: FrozenDict, rules: PlainRules) -> None:
        super().__init__(root, rules)
        self.forms: list[str] = []
        self.undefined: list[str] = []
        """References with unwritten definitions: handled one by one, because long chains would overflow the stack."""
        self.dropped: Schema = {}
        """The parts of the root that could not be merged into one object."""

    def rewrite(self) -> tuple[Schema, str]:
        root = self.root
        if root.get("type") != "object" or root.keys() & {"$ref", "anyOf", "oneOf", "allOf"}:
            root = self.fold(root, "$", frozenset({"#"})) or {}
            others = _MAY_DECLARE | {"additionalProperties"}
            if root.get("unevaluatedProperties") is False and not (self.dropped or root.keys() & others):
                root["additionalProperties"] = False
        self.check_names(root.get("properties", {}), "$")
        schema = {"type": "object", "properties": {}, **root}
        words = [schema.pop("description", ""), *self.forms]
        found = self.node(schema, "$", frozenset({"#"}))
        for reference in self.undefined:  # it grows
            super().define(reference)
        told = "\n\n".join(filter(None, [*words, found.pop("description", "")]))
        if self.definitions:
            found["$defs"] = self.definitions
        if self.rules.root_keeps is not None:
            return found, told
        return ({**found, "description": told} if told else found), ""

    # The root as one object

    def fold(
        self, given: Any, path: str, inside: frozenset[str], known: frozenset[str] | None = frozenset()
    ) -> Schema | None:
        """Return an object that accepts every object that `given` accepts; `None` if that accepts none.

        Args:
            known: The parameters declared around it; `None` if they may be any.
        """
        base: Schema = {}
        unions = []
        parts = [(given, path)]
        followed = set()
        for part, at in parts:
            self.count_part()
            if not _can_be_object(part):
                return None
            schema = {} if part is True else {key: item for key, item in part.items() if key not in _SILENT | {"type"}}
            self.check_names(schema.get("properties", {}), at)
            parts += [(item, f"{at}.allOf[{n}]") for n, item in enumerate(schema.pop("allOf", ()))]
            unions += [(schema.pop(key), f"{at}.{key}") for key in ("anyOf", "oneOf") if key in schema]
            reference = schema.pop("$ref", None)
            if reference in inside:
                return None
            if reference is not None and reference not in followed:
                followed.add(reference)
                parts.append((self.resolve(reference, at), reference.replace("#", "$").replace("/", ".")))
            base = self.merge_or_drop(base, schema, at)
        if len(unions) > 1 or base.keys() & _MAY_DECLARE or isinstance(_get_undeclared(base), Mapping):
            known = None
        for branches, at in unions:
            known = None if known is None else known | base.get("properties", {}).keys()
            found = self.join_branches(branches, at, inside | followed, known)
            if found is None:
                return None
            base = self.merge_or_drop(base, found, at)
        return base

    def merge_or_drop(self, one: Schema, other: Schema, path: str) -> Schema:
        try:
            return schemas.merge(one, other, path)
        except Inexpressible:
            self.dropped.setdefault("allOf", []).append(other)
            return one

    def join_branches(
        self, branches: list[Any], path: str, inside: frozenset[str], known: frozenset[str] | None
    ) -> Schema | None:
        """Return an object that accepts the objects of any branch. A text lists the fields of each form."""
        all_forms = [self.fold(branch, f"{path}[{n}]", inside, known) for n, branch in enumerate(branches)]
        forms = [form for form in all_forms if form is not None]
        if len(forms) < 2:
            return forms[0] if forms else None
        told = schemas.remove_duplicates([_form_text(form) for form in forms])
        more = f"; and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
        self.forms.append(f"One of these forms, where '?' may be left out: {'; '.join(told[:_MOST_TOLD])}{more}.")
        found: Schema = {"properties": {}}
        if self.dropped or any(form.keys() & _MAY_DECLARE for form in forms):
            known = None
        for name in dict.fromkeys(name for form in forms for name in form.get("properties", {})):
            said = [_list_property_schemas(form, name) for form in forms]
            is_narrow = all(said) or (known is not None and name not in known)
            found["properties"][name] = _unite(chain(*said)) if is_narrow else {}
        others = [{} if self.dropped or form.keys() & _MAY_DECLARE else _get_undeclared(form) for form in forms]
        if any(isinstance(one, Mapping) for one in others):
            found["additionalProperties"] = {}
        elif True in others:
            found["additionalProperties"] = True
        elif None not in others:
            found["additionalProperties"] = False
        required = [
            name for name in forms[0].get("required", ()) if all(name in form.get("required", ()) for form in forms)
        ]
        return found | ({"required": required} if required else {})

    # One node

    def node(self, given: Any, path: str, inside: frozenset[str]) -> Any:
        self.count_part()
        if isinstance(given, bool):
            if self.rules.booleans:
                return given
            given = {} if given else {"not": {}}
        if path != "$" and given.keys() <= self.rules.leaves and "array" not in schemas.list_types(given):
            return given
        notes: Schema = dict(self.dropped) if path == "$" else {}
        schema = schemas.bare(given, schemas.ADDRESSES)
        schema, inside = self.rewrite_references(schema, path, inside, notes)
        is_array = "array" in schemas.list_types(schema) or "prefixItems" in schema
        items = self.array(schema, path, inside, notes) if is_array and self.rules.needs_items else {}
        self.remove_refused(schema, path == "$", notes)
        found = schemas.map_inner(schema, path, self.node, inside)
        for key in () if schemas.CONDITIONAL.keys().isdisjoint(found) else schemas.CONDITIONAL:
            beside = schemas.CONDITIONAL[key]
            if key in found and (found[key] != schema[key] or "$ref" in str(schema[key])):
                notes |= {word: schema[word] for word in (key, *beside) if word in schema}
                found = {word: item for word, item in found.items() if word not in notes}
        if "$ref" in found:
            found["$ref"] = self.reference(found["$ref"], path)
        return schemas.add_notes(found | items, notes)

    def array(self, schema: Schema, path: str, inside: frozenset[str], notes: Schema) -> Schema:
        """Return `items` as one schema, and remove it from `schema`."""
        order: Schema = {}
        items = self.items(schema, path, inside, order)
        first = schema.pop("prefixItems", ())
        if schema.pop("items", None) is False:
            schema["maxItems"] = min(len(first), schema.get("maxItems", len(first)))
        if first and isinstance(items, Mapping) and "anyOf" in items:
            notes["prefixItems"] = order["prefixItems"]
        return {"items": items if isinstance(items, Mapping) else {}}

    def rewrite_references(
        self, schema: Schema, path: str, inside: frozenset[str], notes: Schema
    ) -> tuple[Schema, frozenset[str]]:
        """Return the schema with `$ref` and `allOf` only in a form that the API accepts."""
        if self.rules.keeps and "allOf" not in self.rules.keeps and len(schema.get("allOf", ())) == 1:
            if not schema.keys() & {"$ref", "anyOf"}:
                schema["anyOf"] = schema.pop("allOf")
        written_out = "$ref" in schema and not self.rules.references
        if written_out or ("allOf" in schema and self.rules.keeps is not None):
            return self.flatten(schema, path, inside, notes)
        return schema, inside

    def resolve(self, reference: Any, path: str) -> Mapping[str, Any]:
        try:
            return super().resolve(reference, path)
        except Inexpressible:
            return {"description": f"{{$ref: {reference}}}"}

    def define(self, reference: str) -> None:
        self.undefined.append(reference)

    def is_circular(self, reference: str, inside: frozenset[str]) -> bool:
        deep = len(inside) > _DEEPEST_WRITTEN_OUT or self.parts > _MOST_WRITTEN_OUT
        return deep or super().is_circular(reference, inside)

    def end_circle(self, reference: str, path: str) -> Schema:
        kind = self.resolve(reference, path).get("type")
        return ({"type": kind} if kind else {}) | {"description": _format_repetition(reference.rpartition("/")[2])}

    def remove_refused(self, schema: Schema, root: bool, notes: Schema) -> None:
        """Remove the refused keywords from `schema`, and move their meaning for the model into `notes`."""
        rules = self.rules
        keeps = rules.root_keeps if root and rules.root_keeps is not None else rules.keeps
        if keeps is not None and "const" not in keeps and "const" in schema and "enum" not in schema:
            schema["enum"] = [schema.pop("const")]
        refused = schema.keys() & (rules.root_refuses if root else ()) if keeps is None else schema.keys() - keeps
        refused |= schema.keys() & _LEANING
        if root and rules.root_keeps is not None and schema.get("additionalProperties", False) is not False:
            refused.add("additionalProperties")
        if rules.enums is not None and any(type(value) not in rules.enums for value in schema.get("enum", ())):
            refused.add("enum")
        if not rules.patterns and "pattern" in schema and not _is_accepted_pattern(schema["pattern"]):
            refused.add("pattern")
        if not rules.patterns and not all(map(_is_accepted_pattern, schema.get("patternProperties", ()))):
            refused.add("patternProperties")
        if not refused:
            return
        if "patternProperties" in refused:
            refused.add("additionalProperties")
        if refused & {"enum", "const"} and "type" not in schema and (kinds := schemas.infer_types(schema)):
            schema["type"] = kinds
        for key in [key for key in schema if key in refused]:
            value = schema[key]
            empty = value is None if key == "default" else isinstance(value, bool) and key.endswith("Properties")
            if key not in _SILENT and not key.startswith("x-") and not empty:
                notes[key] = value
            del schema[key]


def _format_repetition(name: str) -> str:
    """Return the text at the second round of a circle."""
    return "all of this again" if name == "#" else f"{name} again, as above"


def _can_be_object(given: Any) -> bool:
    if isinstance(given, bool):
        return given
    return "object" in schemas.list_types(given, "object") and any(
        isinstance(value, dict) for value in schemas.list_values(given) or [{}]
    )


def _list_property_schemas(form: Schema, name: str) -> list[Any]:
    """Return the schemas of a property in a form of a union, even if the form does not name it."""
    if name in form.get("properties", {}):
        return [form["properties"][name]]
    others = _get_undeclared(form)
    if form.keys() & {"if", "dependentSchemas"} or not (others is False or isinstance(others, Mapping)):
        return []
    return [*form.get("patternProperties", {}).values(), *([] if others is False else [others])]


def _get_undeclared(form: Schema) -> Any:
    return form.get("additionalProperties", form.get("unevaluatedProperties"))


def _form_text(form: Schema) -> str:
    """Return one form of a union as text: its fields, single values, and other keywords."""
    properties, required = form.get("properties", {}), form.get("required", ())
    fields = []
    for name in dict.fromkeys([*properties, *required]):
        node = properties.get(name)
        values = schemas.list_values(node) if isinstance(node, Mapping) else []
        fixed = f" = {schemas.format_json(values[0])}" if len(values) == 1 else ""
        fields.append(f"{name}{'' if name in required else '?'}{fixed}")
    others = ("properties", "required", "additionalProperties", "unevaluatedProperties", *schemas.ANNOTATIONS)
    fields += [f"{key}: {schemas.format_json(item)}" for key, item in form.items() if key not in others]
    words = f" ({form['description']})" if "description" in form else ""
    return (", ".join(fields) or "no fields") + words


def _unite(forms: Iterable[Any]) -> Any:
    """Return a schema that accepts the values of any of `forms`; single values become one `enum`."""
    forms = schemas.remove_duplicates(forms)
    literal = schemas.ANNOTATIONS | {"enum", "const", "type"}
    if len(forms) > 1 and all(
        isinstance(form, Mapping) and form.keys() & {"enum", "const"} and form.keys() <= literal for form in forms
    ):
        found: Schema = {"enum": schemas.remove_duplicates(chain(*map(schemas.list_values, forms)))}
        return {"type": schemas.infer_types(found), **found}
    return schemas.make_union(forms)


def _is_accepted_pattern(pattern: str) -> bool:
    """Return whether both checkers that OpenAI's API has been seen to use accept the pattern. Long patterns are not
    tried, because Python takes 4 µs to read each character."""
    if len(pattern) > MAX_CHARACTERS or _NOT_CHECKED.search(pattern):
        return False
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True
