"""OpenAI's Chat Completions API."""

from __future__ import annotations

import json
import re
from typing import Any

from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from tests.models.servers.fitting import must_fit
from tests.models.servers.serving import Api, Request, Turn, refuse_unless, sse

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MOST_TOOLS = 128


class OpenAIChat(Api):
    provider = "openai_chat"
    path = "/chat/completions"
    key = ("authorization", "Bearer ")
    ends = 2
    done = (sse("[DONE]"),)

    def check(self, request: Request) -> None:
        body = request.body
        must_fit(
            body, CompletionCreateParamsStreaming if body.get("stream") else CompletionCreateParamsNonStreaming, "body"
        )
        names = [tool["function"]["name"] for tool in body.get("tools", ())]
        refuse_unless(all(_NAME.fullmatch(name) for name in names), f"tools: a name does not fit {_NAME.pattern}")
        refuse_unless(names or "tools" not in body, "[] is too short - 'tools'")
        refuse_unless(len(names) <= _MOST_TOOLS, "tools: array too long")
        check_answered(body["messages"])
        for message in body["messages"]:
            for call in message.get("tool_calls", ()):
                fine = isinstance(call["custom"]["input"], str) if "custom" in call else _is_object(_arguments(call))
                refuse_unless(fine, "tool_calls: arguments are the text of an object, input is text")

    def complete(self, response: dict[str, Any], turn: Turn, number: int) -> None:
        calls = response["choices"][0]["message"].get("tool_calls", [])
        for place, asked in enumerate(turn.calls):
            if asked.custom:
                custom = {"name": asked.name, "input": asked.arguments["input"]}
                calls[place] = {"id": asked.id, "type": "custom", "custom": custom}

    def encode(self, event: dict[str, Any]) -> bytes:
        return sse(event)

    def stream_error(self, message: str) -> list[bytes]:
        return [sse({"error": {"message": message, "type": "server_error", "param": None, "code": None}})]

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        kind = "rate_limit_error" if status == 429 else "invalid_request_error"
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def check_answered(messages: list[dict[str, Any]]) -> None:
    """Every call of an assistant message is answered directly after it, once, and nothing else is."""
    waiting: list[str] = []
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            answers = message["tool_call_id"]
            refuse_unless(
                answers in waiting, f"messages[{place}]: role 'tool' must be a response to a preceding 'tool_calls'"
            )
            waiting.remove(answers)
            continue
        refuse_unless(not waiting, f"messages[{place}]: these tool_call_ids have no response messages: {waiting}")
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
        refuse_unless(len(set(waiting)) == len(waiting), f"messages[{place}]: duplicate tool_call_id")
    refuse_unless(not waiting, f"an assistant message with 'tool_calls' must be followed by tool messages: {waiting}")


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _arguments(call: dict[str, Any]) -> str:
    found: str = call["function"]["arguments"]
    return found
