"""Cohere's chat API, version 2."""

from __future__ import annotations

import json
from typing import Any

from cohere.types import ChatMessages, ToolV2
from tests.models.servers.fitting import must_fit
from tests.models.servers.openai_chat import check_answered
from tests.models.servers.serving import Api, Request, Turn, refuse_unless, sse

_FIELDS: dict[str, Any] = {
    "model": str,
    "messages": ChatMessages,
    "tools": list[ToolV2],
    "stream": bool,
    "strict_tools": bool,
    "tool_choice": str,
    "temperature": float,
    "max_tokens": int,
}
_PLAN = "I will weigh it and look."


class Cohere(Api):
    provider = "cohere"
    path = "/v2/chat"
    key = ("authorization", "Bearer dummy")

    def check(self, request: Request) -> None:
        body = request.body
        for name, value in body.items():
            refuse_unless(name in _FIELDS, f"unknown field: parameter {name!r} is not a valid field")
            must_fit(value, _FIELDS[name], name)
        for tool in body.get("tools", ()):
            name = tool["function"]["name"]
            refuse_unless(name and not set(name) & set(" ."), f"invalid tool name {name!r}")
        check_answered(body["messages"])
        for message in body["messages"]:
            calls = message.get("tool_calls") or ()
            refuse_unless(not calls or message.get("tool_plan") == _PLAN, "tool_plan: it has to go back")
            refuse_unless(
                all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls),
                "tool_calls.function.arguments: not the text of an object",
            )

    def complete(self, response: dict[str, Any], turn: Turn, number: int) -> None:
        if turn.calls:
            response["message"] |= {"tool_plan": _PLAN, "content": [{"type": "text", "text": turn.text}]}
        if not turn.text:
            response["message"].pop("content", None)

    def stream_error(self, message: str) -> list[bytes]:
        end = {"type": "message-end", "delta": {"finish_reason": "ERROR", "error": message}}
        return [sse(end, "message-end")]

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        return {"id": "error-1", "message": message}
