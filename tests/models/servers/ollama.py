"""Ollama's chat API: a JSON object a line, and no ids."""

from __future__ import annotations

import json
from typing import Any

from ollama._types import Message
from tests.models.servers.fitting import must_fit
from tests.models.servers.serving import Api, Request, Turn, refuse_unless

_FIELDS = {"model", "messages", "tools", "stream", "format", "options", "keep_alive", "think"}


class Ollama(Api):
    provider = "ollama"
    path = "/api/chat"
    key = ("content-type", "application/json")
    stream_kind = "application/x-ndjson"

    def check(self, request: Request) -> None:
        refuse_unless(set(request.body) <= _FIELDS, f"unknown fields {sorted(set(request.body) - _FIELDS)}")
        for tool in request.body.get("tools", ()):
            refuse_unless(set(tool) == {"type", "function"}, "tools: type and function")
            refuse_unless(tool["function"]["parameters"]["type"] == "object", "tools: parameters.type is object")
        messages = [_without_ids(message) for message in request.body["messages"]]
        must_fit(messages, list[Message], "messages")
        waiting: list[str] = []
        for place, message in enumerate(messages):
            refuse_unless(message["role"] in _ROLES, f"invalid role {message['role']!r}")
            if message["role"] == "tool":
                expected = waiting.pop(0) if waiting else None
                refuse_unless(message.get("tool_name") == expected, f"messages[{place}]: it should answer {expected!r}")
                continue
            refuse_unless(not waiting, f"messages[{place}]: calls of {waiting} are not answered")
            waiting = [call["function"]["name"] for call in message.get("tool_calls") or ()]
        refuse_unless(not waiting, f"calls of {waiting} are not answered")

    def complete(self, response: dict[str, Any], turn: Turn, number: int) -> None:
        response["created_at"] = f"2026-11-20T10:00:{number:02}.000Z"  # which ids of calls are made of

    def encode(self, event: dict[str, Any]) -> bytes:
        return json.dumps(event).encode() + b"\n"

    def stream_error(self, message: str) -> list[bytes]:
        return [json.dumps({"error": message}).encode() + b"\n"]

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        return {"error": message}


_ROLES = {"system", "user", "assistant", "tool"}


def _without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """The server knows ids and indexes, the client's types do not."""
    message = {key: value for key, value in message.items() if key != "tool_call_id"}
    if message.get("tool_calls"):
        message["tool_calls"] = [_without_id(call) for call in message["tool_calls"]]
    return message


def _without_id(call: dict[str, Any]) -> dict[str, Any]:
    function = {key: value for key, value in call["function"].items() if key != "index"}
    return {key: value for key, value in call.items() if key not in {"id", "function", "type"}} | {"function": function}
