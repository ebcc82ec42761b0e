"""Plain mode: a tool's schema with what an API refuses said in another way.

Nothing is made stricter: a value that the tool takes fits what is sent, but for keys that one form of a union at the
root declares and another, which says nothing of them, leaves open. What is made looser is told in a description, and
the kernel enforces the original.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ferrule.providers._schemas import (
    ANNOTATIONS,
    CLAUDE_NAMES,
    DEFINITIONS,
    NOISE,
    Inexpressible,
    Names,
    Schema,
    Subset,
    Walk,
    as_json,
    children,
    definition_name,
    described,
    distinct,
    kinds_of,
    merge,
    one_of,
    types_of_values,
    with_inner,
)
from ferrule.values.frozen import FrozenDict


@dataclass(frozen=True, eq=False, kw_only=True)
class PlainRules(Subset):
    """What one API takes where it does not hold the model to a schema.

    The root is always one object with `type` and `properties`, and with neither a reference nor a union.
    """

    keeps: frozenset[str] | None = None
    """The keywords that it takes; what others say goes into the description. `None`: any."""
    root_keeps: frozenset[str] | None = None
    """Those that it takes at the root, where they are fewer; a description is not among them."""
    root_refuses: frozenset[str] = frozenset()
    """Those that it refuses at the root, where it takes them elsewhere."""
    references: Literal["any", "alone", "none"] = "any"
    """Which it follows. `"alone"`: with nothing beside them, and in a circle only through a property that may be left
    out. `"none"`: they are written out, and a circle ends where it begins again."""
    needs_items: bool = False
    """Whether every array says in one schema what its items are."""
    ignores: bool = False
    """Whether it passes over what it does not take, which may stay then where it says nothing to a model."""
    booleans: bool = True
    """Whether it takes `true` and `false` as schemas."""
    patterns: bool = True
    """Whether it takes any pattern; if not, those of Python that do not look around."""
    enums: frozenset[type] | None = None
    """The classes that values of an `enum` may have."""

    purpose = "sent to"
    remedy = "Change its schema, or leave the tool out"

    def write(self, root: FrozenDict) -> tuple[Mapping[str, Any], str]:
        found, told = _Loosening(root, self).whole()
        return (root if found == root else found), told


# "input_schema does not support oneOf, allOf, or anyOf at the top level":
# https://github.com/anthropics/claude-code/issues/5319. Draft 2020-12 is checked, and the rest of it passes:
# https://github.com/openclaw/openclaw/issues/98588
PLAIN_ANTHROPIC = PlainRules(provider="Anthropic", names=CLAUDE_NAMES)
# "must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level":
# https://github.com/langchain-ai/langchainjs/issues/9804. "array schema missing items", with prefixItems too:
# https://github.com/AnswerDotAI/fastcore/issues/798. "is not a 'regex'" is Python's re:
# https://github.com/BerriAI/litellm/issues/40485; "regex lookaround is not supported":
# https://github.com/sst/opencode/issues/32073
PLAIN_OPENAI = PlainRules(provider="OpenAI", root_refuses=frozenset({"enum", "not"}), needs_items=True, patterns=False)
# What speaks this API too: Fireworks refuses boolean schemas, https://github.com/grafana/mcp-grafana/issues/597
PLAIN_CHAT = replace(PLAIN_OPENAI, booleans=False)
# google-genai's types: the keywords, references and circles of GenerateContentConfig.response_json_schema, which is
# taken to hold for parameters_json_schema too; the names of FunctionDeclaration.parameters. prefixItems without items:
# https://github.com/AnswerDotAI/fastcore/issues/798
PLAIN_GEMINI = PlainRules(
    provider="Gemini",
    names=Names(re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}"),
                "it wants a letter or '_', then letters, digits and '_', 64 at most"),
    keeps=frozenset(
        [
            *("$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items"),
            *("prefixItems", "minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties"),
            *("additionalProperties", "required", "propertyOrdering"),
        ]
    ),
    references="alone",
    needs_items=True,
    enums=frozenset({str, int, float}),
)  # fmt: skip
# Of the root Nova takes `type`, `properties` and `required` alone: "inputSchema/json: extraneous key [definitions] is
# not permitted", https://github.com/zed-industries/zed/issues/28521, https://github.com/BerriAI/litellm/pull/10062. The
# names are Claude's.
PLAIN_BEDROCK = PlainRules(
    provider="Bedrock",
    names=CLAUDE_NAMES,
    root_keeps=frozenset({"type", "properties", "required"}),
    references="none",
)
# "Grammar error: failed to compile JSON schema" of $id and $schema: https://github.com/BerriAI/litellm/issues/13389
PLAIN_MISTRAL = PlainRules(provider="Mistral", root_refuses=frozenset({"$id", "$schema"}))
# The reference of the API asks for an object at the root: https://docs.cohere.com/reference/chat, "tools"
PLAIN_COHERE = PlainRules(provider="Cohere")
# ollama's api/types.go: ToolFunctionParameters and ToolProperty; what these do not name is dropped unread, and `true`
# is an error: https://github.com/ollama/ollama/issues/11444, https://github.com/ollama/ollama/issues/10328
PLAIN_OLLAMA = PlainRules(
    provider="Ollama",
    keeps=frozenset({"anyOf", "type", "items", "description", "enum", "properties", "required"}),
    root_keeps=frozenset({"type", "properties", "required"}),
    references="none",
    ignores=True,
    needs_items=True,
    booleans=False,
)

_SILENT = NOISE | DEFINITIONS | {"title", "$dynamicAnchor"}
"""What says nothing to a model."""
_DYNAMIC = frozenset({"$dynamicRef", "$recursiveRef"})
_NOT_CHECKED = re.compile(r"\(\?<?[=!]|\[(\\.|[^\]\\])*?(\[|--|&&|~~|\|\|)")
"""What looks around; and sets of which Python warns that it may read them as nested, and other checkers do."""
_MOST_WRITTEN_OUT = 2_000
"""Parts, where references are written out; then one ends in words, as a circle does."""
_MOST_TOLD = 40
"""Forms of one union."""


class _Loosening(Walk):
    """One schema that is rewritten for plain mode."""

    def __init__(self, root: FrozenDict, rules: PlainRules) -> None:
        super().__init__(root, rules)
        self.rules = rules
        self.forms: list[str] = []
        self.dropped: Schema = {}
        """What of the root could not be written into one object."""

    def whole(self) -> tuple[Schema, str]:
        root = self.root
        if root.get("type") != "object" or root.keys() & {"$ref", "anyOf", "oneOf", "allOf"}:
            root = self.folded(root, "$", frozenset({"#"})) or {}
            others = {"if", "dependentSchemas", "additionalProperties"}
            if root.get("unevaluatedProperties") is False and not (self.dropped or root.keys() & others):
                root["additionalProperties"] = root.pop("unevaluatedProperties")
        self.check_names(root.get("properties", {}), "$")
        whole = {"type": "object", "properties": {}, **root}
        words = [*([whole.pop("description")] if "description" in whole else []), *self.forms]
        found = self.node(whole, "$", frozenset({"#"}))
        words += [found.pop("description")] if "description" in found else []
        if self.definitions:
            found["$defs"] = self.definitions
        if self.rules.references == "alone":
            _Circles(found).loosen()
        told = "\n\n".join(words)
        if self.rules.root_keeps is not None:
            return found, told
        return ({**found, "description": told} if told else found), ""

    # The root as one object

    def folded(
        self, given: Any, path: str, inside: frozenset[str], known: frozenset[str] = frozenset()
    ) -> Schema | None:
        """An object that takes every object that `given` takes; `None` where it takes none. `known` are the parameters
        that are declared around it."""
        base: Schema = {}
        unions = []
        parts = [(given, path)]
        followed = set()
        for part, at in parts:
            self.count_part()
            if not _may_be_object(part):
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
                parts.append((self.resolved(reference, at), reference.replace("#", "$").replace("/", ".")))
            base = self.both(base, schema, at)
        for branches, at in unions:
            known |= base.get("properties", {}).keys()
            found = self.joined(branches, at, inside | followed, known)
            if found is None:
                return None
            base = self.both(base, found, at)
        return base

    def both(self, one: Schema, other: Schema, path: str) -> Schema:
        try:
            return merge(one, other, path)
        except Inexpressible:
            self.dropped.setdefault("allOf", []).append(other)
            return one

    def joined(self, branches: list[Any], path: str, inside: frozenset[str], known: frozenset[str]) -> Schema | None:
        """An object that takes what one of the branches takes; which fields go together is told."""
        all_forms = [self.folded(branch, f"{path}[{n}]", inside, known) for n, branch in enumerate(branches)]
        forms = [form for form in all_forms if form is not None]
        if len(forms) < 2:
            return forms[0] if forms else None
        told = distinct([_form_text(form) for form in forms])
        more = f"; and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
        self.forms.append(f"One of these forms, where '?' may be left out: {'; '.join(told[:_MOST_TOLD])}{more}.")
        declared: dict[str, list[Any]] = {name: [] for form in forms for name in form.get("properties", {})}
        for form in forms:
            for name, schemas in declared.items():
                schemas += _said_of(form, name)
        required = [
            name for name in forms[0].get("required", ()) if all(name in form.get("required", ()) for form in forms)
        ]
        others = [form.get("additionalProperties", form.get("unevaluatedProperties")) for form in forms]
        others += [True for form in forms if "patternProperties" in form]
        found: Schema = {
            "properties": {
                name: _either(items)
                for name, items in declared.items()
                if name not in known or len(items) == len(forms)
            }
        }
        if all(other is False for other in others) or any(other not in (None, False) for other in others):
            found["additionalProperties"] = not all(other is False for other in others)
        return found | ({"required": required} if required else {})

    # One node

    def node(self, given: Any, path: str, inside: frozenset[str]) -> Any:
        self.count_part()
        if isinstance(given, bool):
            if self.rules.booleans:
                return given
            given = {} if given else {"not": {}}
        notes: Schema = dict(self.dropped) if path == "$" else {}
        schema = {key: item for key, item in given.items() if key not in DEFINITIONS}
        schema, inside = self.referring(schema, path, inside, notes)
        is_array = "array" in kinds_of(schema) or "prefixItems" in schema
        items = self.array(schema, path, inside, notes) if is_array and self.rules.needs_items else {}
        self.keep(schema, path == "$", notes)
        found = with_inner(schema, path, lambda item, at: self.node(item, at, inside))
        if "$ref" in found:
            found["$ref"] = self.reference(found["$ref"], path)
        return described(found, found | items, notes)

    def array(self, schema: Schema, path: str, inside: frozenset[str], notes: Schema) -> Schema:
        """`items` as one schema, taken out of `schema`."""
        order: Schema = {}
        items = self.items(schema, path, inside, order)
        first = schema.pop("prefixItems", ())
        if schema.pop("items", None) is False:
            schema["maxItems"] = min(len(first), schema.get("maxItems", len(first)))
        if first and isinstance(items, Mapping) and "anyOf" in items:
            notes["prefixItems"] = order["prefixItems"]
        return {"items": items if isinstance(items, Mapping) else {}}

    def referring(
        self, schema: Schema, path: str, inside: frozenset[str], notes: Schema
    ) -> tuple[Schema, frozenset[str]]:
        """With a reference and with `allOf` only as the API takes them."""
        for key in _DYNAMIC & schema.keys():  # what it leads to is found only when a value is checked
            notes[key] = schema.pop(key)
        if "$ref" in schema:
            try:
                self.resolved(schema["$ref"], path)
            except Inexpressible:
                notes["$ref"] = schema.pop("$ref")
        if self.rules.keeps and "allOf" not in self.rules.keeps and len(schema.get("allOf", ())) == 1:
            if not schema.keys() & {"$ref", "anyOf"}:
                schema["anyOf"] = schema.pop("allOf")
        if self.rules.references == "alone" and "$ref" in schema:
            if schema.keys() == {"$ref"}:
                return schema, inside
            if "anyOf" not in schema:
                schema["anyOf"] = [{"$ref": schema.pop("$ref")}]
        written_out = "$ref" in schema and self.rules.references != "any"
        if written_out or ("allOf" in schema and self.rules.keeps is not None):
            return self.flattened(schema, path, inside, notes)
        return schema, inside

    def is_written_out(self, reference: str, inside: frozenset[str]) -> bool:
        return super().is_written_out(reference, inside) or self.parts > _MOST_WRITTEN_OUT

    def circle(self, reference: str, path: str) -> Schema:
        kind = self.resolved(reference, path).get("type")
        return ({"type": kind} if kind else {}) | {"description": _again(reference.rpartition("/")[2])}

    def keep(self, schema: Schema, root: bool, notes: Schema) -> None:
        """Take out of `schema` what the API refuses, and note what that says to the model."""
        rules = self.rules
        keeps = rules.root_keeps if root and rules.root_keeps is not None else rules.keeps
        if keeps is not None and "oneOf" not in keeps and "oneOf" in schema and "anyOf" not in schema:
            schema["anyOf"] = schema.pop("oneOf")
        if keeps is not None and "const" not in keeps and "const" in schema and "enum" not in schema:
            schema["enum"] = [schema.pop("const")]
        refused = set(rules.root_refuses if root else ()) if keeps is None else schema.keys() - keeps
        if rules.enums is not None and any(type(value) not in rules.enums for value in schema.get("enum", ())):
            refused.add("enum")
        if not rules.patterns and not _is_checked(schema.get("pattern", "")):
            refused.add("pattern")
        if not rules.patterns and not all(map(_is_checked, schema.get("patternProperties", ()))):
            refused.add("patternProperties")
        if "patternProperties" in refused & schema.keys():
            refused |= {"additionalProperties", "unevaluatedProperties"}
        if refused & {"enum", "const"} and "type" not in schema and (kinds := types_of_values(schema)):
            schema["type"] = kinds
        for key in [key for key in schema if key in refused]:
            value = schema[key]
            bare = value is None if key == "default" else isinstance(value, bool) and key.endswith("Properties")
            says = key not in _SILENT and not key.startswith("x-") and not bare
            if says:
                notes[key] = value
            if says or not rules.ignores:
                del schema[key]


class _Circles:
    """The definitions of a schema, each of which may lead back to itself only through a property that may be left out.

    Attributes:
        edges: Which definition leads to which through no such property; `"#"` is the root.
    """

    def __init__(self, root: Schema) -> None:
        self.nodes: dict[str, Schema] = {"#": root, **root.get("$defs", {})}
        self.edges: dict[str, set[str]] = {}

    def loosen(self) -> None:
        for name, node in self.nodes.items():
            if self.closes(node, name):
                self.closes(node, name, cut=True)

    def closes(self, node: Schema, within: str, cut: bool = False) -> bool:
        """Whether a circle through `within` closes in `node`. A property that has to be there then may be left out;
        where there is none, the circle is cut if `cut` says so."""
        if "$ref" in node:
            name = "#" if node["$ref"] == "#" else definition_name(node["$ref"])
            if not self.leads(name, within):
                self.edges.setdefault(within, set()).add(name)
                return False
            if cut:
                node.clear()
                node["description"] = _again(name)
            return True
        needed = {name: item for name, item in node.get("properties", {}).items() if name in node.get("required", ())}
        loose = [name for name, item in needed.items() if isinstance(item, dict) and self.closes(item, within)]
        if loose:
            node["required"] = [name for name in node["required"] if name not in loose]
            described(node, node, {"required": loose})
        found = [self.closes(item, within, cut) for item in children({**node, "properties": {}})]
        return any(found)

    def leads(self, one: str, other: str) -> bool:
        reached, fresh = {one}, [one]
        while fresh:
            found = self.edges.get(fresh.pop(), set()) - reached
            reached |= found
            fresh += found
        return other in reached


def _again(name: str) -> str:
    """What is said where a circle begins again."""
    return "all of this again" if name == "#" else f"{name} again, as above"


def _may_be_object(given: Any) -> bool:
    if isinstance(given, bool):
        return given
    values = given.get("enum", [given["const"]] if "const" in given else [{}])
    return "object" in kinds_of(given, "object") and any(isinstance(value, dict) for value in values)


def _said_of(form: Schema, name: str) -> list[Any]:
    """What a form of a union says of a property, also where it does not name it."""
    if name in form.get("properties", {}):
        return [form["properties"][name]]
    others = form.get("additionalProperties", form.get("unevaluatedProperties"))
    return [*form.get("patternProperties", {}).values(), *([others] if isinstance(others, Mapping) else [])]


def _form_text(form: Schema) -> str:
    """One form of a union: its fields, with the values of those that have but one, and what else it says."""
    properties, required = form.get("properties", {}), form.get("required", ())
    fields = []
    for name in dict.fromkeys([*properties, *required]):
        node = properties.get(name)
        values = node.get("enum", [node["const"]] if "const" in node else []) if isinstance(node, Mapping) else []
        fixed = f" = {as_json(values[0])}" if len(values) == 1 else ""
        fields.append(f"{name}{'' if name in required else '?'}{fixed}")
    others = ("properties", "required", "additionalProperties", "unevaluatedProperties", *ANNOTATIONS)
    fields += [f"{key}: {as_json(item)}" for key, item in form.items() if key not in others]
    words = f" ({form['description']})" if "description" in form else ""
    return (", ".join(fields) or "no fields") + words


def _either(schemas: list[Any]) -> Any:
    """What takes all that one of them takes; single values become one `enum`."""
    schemas = distinct(schemas)
    literal = ANNOTATIONS | {"enum", "const", "type"}
    if len(schemas) > 1 and all(
        isinstance(schema, Mapping) and schema.keys() & {"enum", "const"} and schema.keys() <= literal
        for schema in schemas
    ):
        values = [value for schema in schemas for value in schema.get("enum", [schema.get("const")])]
        found: Schema = {"enum": distinct(values)}
        return {"type": types_of_values(found), **found}
    return one_of(schemas)


def _is_checked(pattern: str) -> bool:
    """Whether both of the checkers take the pattern that OpenAI's API has been seen to use."""
    if _NOT_CHECKED.search(pattern):
        return False
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True
