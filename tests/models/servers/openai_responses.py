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
from tests.models.servers.serving import Api, Request, Turn, halves, refuse_unless, sse

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 15,
}


class OpenAIResponses(Api):
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

    def whole(self, turn: Turn, number: int) -> dict[str, Any]:
        return _response(number, "completed", _items(turn, number))

    def stream(self, turn: Turn, number: int) -> tuple[list[bytes], list[bytes]]:
        items = _items(turn, number)
        events = [{"type": "response.created", "response": _response(number, "in_progress", [])}]
        for index, item in enumerate(items):
            begun = {**item, **({"status": "in_progress"} if "status" in item else {}), **_EMPTY[item["type"]]}
            events.append({"type": "response.output_item.added", "output_index": index, "item": begun})
            events += [{"output_index": index, "item_id": item["id"], **delta} for delta in _deltas(item)]
            events.append({"type": "response.output_item.done", "output_index": index, "item": item})
        events.append({"type": "response.completed", "response": _response(number, "completed", items)})
        chunks = [sse(event | {"sequence_number": n}, str(event["type"])) for n, event in enumerate(events)]
        return chunks[:-1], chunks[-1:]

    def stream_error(self, message: str) -> list[bytes]:
        error = {"code": "server_error", "message": message}
        failed = _response(0, "failed", []) | {"error": error}
        return [sse({"type": "response.failed", "response": failed, "sequence_number": 99}, "response.failed")]

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        kind = "rate_limit_error" if status == 429 else "invalid_request_error"
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}


_EMPTY: dict[str, dict[str, Any]] = {
    "reasoning": {"encrypted_content": "unfinished"},
    "message": {"content": []},
    "function_call": {"arguments": ""},
    "custom_tool_call": {"input": ""},
}


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


def _items(turn: Turn, number: int) -> list[dict[str, Any]]:
    items = []
    if turn.text:
        part = {"type": "output_text", "text": turn.text, "annotations": [], "logprobs": []}
        message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed"}
        items.append(message | {"content": [part]})
    if turn.calls:
        items.append(_reasoning(number))
    for place, call in enumerate(turn.calls):
        item = {"id": f"fc_{number}_{place}", "call_id": call.id, "name": call.name}
        if call.custom:
            items.append(item | {"type": "custom_tool_call", "input": call.arguments["input"]})
        else:
            given = json.dumps(call.arguments)
            items.append(item | {"type": "function_call", "status": "completed", "arguments": given})
    return items


def _deltas(item: dict[str, Any]) -> list[dict[str, Any]]:
    if item["type"] == "function_call":
        kind, done = "response.function_call_arguments.delta", "response.function_call_arguments.done"
        deltas = [{"type": kind, "delta": chunk} for chunk in halves(item["arguments"])]
        return [*deltas, {"type": done, "arguments": item["arguments"], "name": item["name"]}]
    if item["type"] == "custom_tool_call":
        deltas = [{"type": "response.custom_tool_call_input.delta", "delta": chunk} for chunk in halves(item["input"])]
        return [*deltas, {"type": "response.custom_tool_call_input.done", "input": item["input"]}]
    if item["type"] == "message":
        (part,) = item["content"]
        where = {"content_index": 0}
        texts = [
            {"type": "response.output_text.delta", "delta": chunk, "logprobs": [], **where}
            for chunk in halves(part["text"])
        ]
        return [
            {"type": "response.content_part.added", "part": part | {"text": ""}, **where},
            *texts,
            {"type": "response.output_text.done", "text": part["text"], "logprobs": [], **where},
            {"type": "response.content_part.done", "part": part, **where},
        ]
    return []


def _response(number: int, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_700_000_000 + number,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "gpt",
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": _USAGE if status == "completed" else None,
    }
