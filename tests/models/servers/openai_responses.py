"""OpenAI's Responses API."""

from __future__ import annotations

import json
import re
from typing import Any

from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from tests.models.servers.fitting import must_fit
from tests.models.servers.serving import Api, Request, Turn, refuse_unless, sse
from tests.providers.apis import ALL

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class OpenAIResponses(Api):
    provider = "openai_responses"
    path = "/responses"
    key = ("authorization", "Bearer ")

    def check(self, request: Request) -> None:
        body = request.body
        must_fit(
            body, ResponseCreateParamsStreaming if body.get("stream") else ResponseCreateParamsNonStreaming, "body"
        )
        names = [tool["name"] for tool in body.get("tools", ()) if "name" in tool]
        refuse_unless(all(_NAME.fullmatch(name) for name in names), f"tools: a name does not fit {_NAME.pattern}")
        _check_items(body["input"])
        self._check_signed(body["input"])

    def _check_signed(self, items: list[dict[str, Any]]) -> None:
        """Reasoning stands before the item that it led to, as it came."""
        for number in range(self.answered):
            calls = [place for place, item in enumerate(items) if str(item.get("id")).startswith(f"fc_{number}_")]
            if calls:
                before = items[calls[0] - 1] if calls[0] else {}
                refuse_unless(
                    before == _reasoning(number),
                    f"Item 'fc_{number}_0' of type 'function_call' was provided without its required 'reasoning' item",
                )

    def complete(self, response: dict[str, Any], turn: Turn, number: int) -> None:
        output = response["output"]
        for place, asked in enumerate(turn.calls):
            item = output[place - len(turn.calls)]
            item["id"] = f"fc_{number}_{place}"
            if asked.custom:
                del item["arguments"], item["status"]
                item |= {"type": "custom_tool_call", "input": asked.arguments["input"]}
        if turn.calls:
            output.insert(len(output) - len(turn.calls), _reasoning(number))

    def stream_error(self, message: str) -> list[bytes]:
        error = {"code": "server_error", "message": message}
        failed = ALL[self.provider].write("", [], None) | {"status": "failed", "error": error}
        return [sse({"type": "response.failed", "response": failed, "sequence_number": 99}, "response.failed")]

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        kind = "rate_limit_error" if status == 429 else "invalid_request_error"
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}


_OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}


def _check_items(items: list[dict[str, Any]]) -> None:
    calls: dict[str, str] = {}
    answered: list[str] = []
    for item in items:
        kind = item.get("type", "message")
        if kind in _OUTPUTS.values():
            refuse_unless(1 <= len(item["call_id"]) <= 64, "call_id: between 1 and 64 characters")
            refuse_unless(item["call_id"] not in calls, f"duplicate call_id {item['call_id']}")
            text = kind == "custom_tool_call" or isinstance(_json(item["arguments"]), dict)
            refuse_unless(text, "arguments: not the text of an object")
            calls[item["call_id"]] = kind
        if kind in _OUTPUTS:
            known = calls.get(item["call_id"]) == _OUTPUTS[kind]
            refuse_unless(known, f"No tool call found for {kind} {item['call_id']}")
            refuse_unless(item["call_id"] not in answered, f"a second output for {item['call_id']}")
            answered.append(item["call_id"])
    for call in calls:
        refuse_unless(call in answered, f"No tool output found for function call {call}.")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _reasoning(number: int) -> dict[str, Any]:
    return {"id": f"rs_{number}", "type": "reasoning", "summary": [], "encrypted_content": f"sealed{number}"}
