"""Questions to an MCP client: a form with a yes or no, with the input that a tool wants, or with one text for its
JSON."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import mcp_types as wire

from ferrule.arguments.schema_parameters import SchemaParameters
from ferrule.mcp.visits import find_visit
from ferrule.values.content import truncate_text
from ferrule.values.decision import Decision, allow, deny
from ferrule.values.frozen import JsonObject, thaw
from ferrule.values.json_text import parse_json

_YES: dict[str, Any] = {
    "type": "object",
    "properties": {"approve": {"type": "boolean", "title": "Approve", "description": "Whether it may run."}},
    "required": ["approve"],
}
_COMMON_KEYS = {"type", "title", "description", "default"}
_TYPE_KEYS = {
    "string": {"enum", "enumNames", "oneOf", "minLength", "maxLength", "format"},
    "number": {"minimum", "maximum"},
    "integer": {"minimum", "maximum"},
    "boolean": set[str](),
    "array": {"items", "minItems", "maxItems"},
}
_QUESTION = "question"
_MOST_KEY = 64
_FORMATS = {"date", "date-time", "email", "uri"}
MOST_MESSAGE = 8_000


class Form(NamedTuple):
    """A form for a person, shown by a client.

    Attributes:
        kind: `"yes"`, `"object"` for the wanted input as it is, `"json"` for one text with it, or `"visit"` for an
            address to visit.
        key: The name of the question among those of a result: the title of the wanted input, if it has one.
        schema: The JSON Schema for the client, with flat properties; for a visit, `{"url": …}`.
        binds: Arguments that bind an allowed call to the shown values.
    """

    kind: str
    key: str
    message: str
    schema: dict[str, Any]
    binds: dict[str, Any] = {}  # noqa: RUF012


def make_form(message: str, wanted: JsonObject | None, binds: JsonObject) -> Form:
    """Return the question as a form. Input that does not fit a form is asked for as JSON.

    Args:
        wanted: The JSON Schema of the wanted input; `None` for a yes.
        binds: Arguments that bind the call to the values in the message.
    """
    if (url := find_visit(wanted)) is not None:
        return Form("visit", _QUESTION, message, {"url": url})
    if wanted is None or (not wanted.get("properties") and _accepts_empty(wanted)):
        return Form("yes", _QUESTION, message, _YES, thaw(binds))
    title = wanted.get("title")
    key = title if isinstance(title, str) and 0 < len(title) <= _MOST_KEY else _QUESTION
    flat = _flatten(wanted)
    if flat is not None:
        return Form("object", key, message, flat)
    text = truncate_text(json.dumps(thaw(wanted), ensure_ascii=False), MOST_MESSAGE)
    field = {"type": "string", "title": "JSON", "description": f"A JSON object that fits this JSON Schema: {text}"}
    return Form("json", key, message, {"type": "object", "properties": {"json": field}, "required": ["json"]})


def elicitation(form: Form) -> wire.ElicitRequest:
    """Return the request that shows the form, or sends a person to an address."""
    if form.kind == "visit":
        identity = secrets.token_hex(16)  # the revisions of 2025 ask for one
        visit = wire.ElicitRequestURLParams(message=form.message, url=form.schema["url"], elicitation_id=identity)
        return wire.ElicitRequest(params=visit)
    params = wire.ElicitRequestFormParams(message=form.message, requested_schema=form.schema)
    return wire.ElicitRequest(params=params)


def to_decision(form: Form, answer: wire.ElicitResult, by: str | None, arguments: JsonObject) -> Decision:
    """Return a person's answer as a decision. `by` is on whose behalf, and `arguments` are those in question."""
    if answer.action != "accept":
        reaction = "declined" if answer.action == "decline" else "left the question without an answer"
        return deny(f"the person who was asked {reaction}")
    content: dict[str, Any] = answer.content or {}
    if form.kind == "yes":
        allowed = allow({**arguments, **form.binds} if form.binds else None, by=by)
        return allowed if content.get("approve") is True else deny("the person who was asked said no")
    if form.kind in ("object", "visit"):
        return allow(content if form.kind == "object" else {}, by=by)
    try:
        value = parse_json(str(content.get("json", "")))
    except ValueError as error:
        return deny(f"the answer is not JSON: {error}")
    return allow(value, by=by) if isinstance(value, dict) else deny("the answer is not a JSON object")


def _flatten(wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the form's part of a schema if all its properties are of a primitive type, else None. The answer is
    compared with the whole schema."""
    properties: Any = thaw(wanted.get("properties"))
    if not properties or not all(isinstance(one, dict) and _is_flat(one) for one in properties.values()):
        return None
    shown = {name: _form_field(one) for name, one in properties.items()}
    required = [name for name in wanted.get("required", ()) if name in shown]
    return {"type": "object", "properties": shown, **({"required": required} if required else {})}


def _accepts_empty(wanted: Mapping[str, Any]) -> bool:
    """Return whether a plain yes is an answer: the empty object fits."""
    try:
        SchemaParameters(wanted).validate_with_repairs("the answer", {})
    except Exception:  # as in the later check of the answer
        return False
    return True


def _is_flat(schema: dict[str, Any]) -> bool:
    """Return whether the type is primitive, or a choice of one or several texts; MCP knows no choice of other
    values."""
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items")
        return isinstance(items, dict) and _are_texts(items.get("enum") or items.get("anyOf"))
    if kind == "string":
        return all(_are_texts(schema[key]) for key in ("enum", "oneOf") if key in schema)
    return kind in ("number", "integer", "boolean")


def _are_texts(choices: Any) -> bool:
    values = [choice.get("const") if isinstance(choice, dict) else choice for choice in choices or ()]
    return bool(values) and all(isinstance(value, str) for value in values)


def _form_field(schema: dict[str, Any]) -> dict[str, Any]:
    keys = _COMMON_KEYS | _TYPE_KEYS[schema["type"]]
    field = {key: value for key, value in schema.items() if key in keys}
    if field.get("format", "date") not in _FORMATS:
        del field["format"]
    return field
