"""A question of an MCP server to a person, as the question of a runner, and the answer on its way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from ferrule import Answer, DefinitionError, InputRequired, ToolError
from ferrule.mcp.visits import find_visit, format_visit, make_visit_schema
from ferrule.security.characters import remove_hidden
from ferrule.security.foreign_text import clean_schema, has_hidden
from ferrule.security.patterns import ForeignSchema
from ferrule.values.content import truncate_text
from ferrule.values.frozen import JsonObject, thaw
from ferrule.values.json_text import format_json, parse_json

_MOST_TEXT = 4000
Responses = types.InputResponses


def to_question(wanted: types.InputRequiredResult, server: str) -> InputRequired:
    """Return the runner's question for a result that wants input. Several requests are one object with a property for
    each.

    Raises:
        ToolError: The server asks for input that this client never offered, or for input that nobody can be shown.
    """
    asked: dict[str, types.ElicitRequestParams] = {}
    for key, request in (wanted.input_requests or {}).items():
        if not isinstance(request, types.ElicitRequest):
            raise ToolError(f"{server} asks for {request.method!r}, which Ferrule did not offer", executed=None)
        asked[key] = request.params
    try:
        return _one_question(asked, wanted.request_state, server)
    except ValueError as error:
        raise ToolError(f"{server} asks a question that cannot be shown: {error}", executed=None) from None


def _one_question(asked: Mapping[str, types.ElicitRequestParams], state: str | None, server: str) -> InputRequired:
    reasons = [format_reason(params, server) for params in asked.values()]
    modes = {key: params.mode for key, params in asked.items()}
    if len(asked) == 1:
        schema = read_schema(next(iter(asked.values())))
    else:
        if unseen := next((key for key in asked if has_hidden(key)), None):
            raise ValueError(f"its question has hidden characters in {ascii(unseen)[:80]}")
        properties = {key: read_schema(params) for key, params in asked.items()}
        schema = {
            "type": "object",
            "properties": properties,
            "required": [key for key, mode in modes.items() if mode == "form"],
            "additionalProperties": False,
        }
    return InputRequired("\n".join(reasons), schema, {"modes": modes, "state": state})


def to_visit(error: MCPError, server: str) -> InputRequired | None:
    """Return the runner's question if a server of the 2025 revisions wants addresses visited before it takes the call.
    Return None if the error names none.

    Raises:
        ToolError: A person cannot be sent to one of them.
    """
    try:
        wanted = types.ElicitationRequiredErrorData.model_validate(error.data).elicitations
    except ValidationError:
        return None
    if not wanted:
        return None
    try:
        reasons = [format_reason(params, server) for params in wanted]
        return InputRequired("\n".join(reasons), read_schema(wanted[0]), {"modes": {}, "state": None})
    except ValueError as unshown:
        raise ToolError(f"{server} asks a question that cannot be shown: {unshown}", executed=False) from None


def format_reason(params: types.ElicitRequestParams, server: str) -> str:
    """Return the question, with the name of the server.

    Raises:
        ValueError: A person cannot be sent to its address.
    """
    message = truncate_text(remove_hidden(params.message)[0].strip() or "(nothing)", _MOST_TEXT)
    if not isinstance(params, types.ElicitRequestURLParams):
        return f"{server} asks: {message}"
    return f"{server} asks: {message}\n{format_visit(params.url)}"


def read_schema(params: types.ElicitRequestParams) -> dict[str, Any]:
    """Return the JSON Schema of the wanted input, without hidden characters; for an address, the schema of a plain yes.

    Raises:
        ValueError: Hidden characters would have to stay, the schema is too deep, patterns are over the bounds, or a
            person cannot be sent to the address.
    """
    if isinstance(params, types.ElicitRequestURLParams):
        return make_visit_schema(params.url)
    schema = parse_json(format_json({"type": "object", **params.requested_schema}))
    shown: dict[str, Any] = clean_schema(schema, _MOST_TEXT)[0]
    try:
        not_enforced = ForeignSchema(shown).not_enforced
    except DefinitionError as error:
        raise ValueError(f"in its question, {error}") from None
    if not_enforced:
        raise ValueError(f"its question has {not_enforced[0]}")
    if find_visit(shown) is not None:
        raise ValueError("its form pretends to be an address to visit, which nobody has checked")
    return shown


def to_responses(answer: Answer) -> tuple[Responses, str | None]:
    """Return a person's answer, and the server's own state, for the way back to the server."""
    modes: Mapping[str, str] = answer.state["modes"]
    value = answer.value
    responses: Responses = {}
    for key, mode in modes.items():
        responses[key] = accept(mode, value if len(modes) == 1 else value.get(key, {}))
    return responses, answer.state["state"]


def accept(mode: str, value: JsonObject) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content=thaw(value) if mode == "form" else None)
