"""Mistral's chat API."""

from __future__ import annotations

import json
import re
from typing import Any

from mistralai.client.models import ChatCompletionRequestTypedDict, ChatCompletionStreamRequestTypedDict
from tests.models.servers.fitting import must_fit
from tests.models.servers.openai_chat import check_answered
from tests.models.servers.serving import Api, Request, Turn, halves, refuse_unless, sse

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID = re.compile(r"[a-zA-Z0-9]{9}")
_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


class Mistral(Api):
    path = "/v1/chat/completions"
    key = ("authorization", "Bearer dummy")

    def check(self, request: Request) -> None:
        body = request.body
        must_fit(
            body, ChatCompletionStreamRequestTypedDict if body.get("stream") else ChatCompletionRequestTypedDict, "body"
        )
        names = [tool["function"]["name"] for tool in body.get("tools") or ()]
        refuse_unless(all(_NAME.fullmatch(name) for name in names), "Function name must be a-z, A-Z, 0-9, _ or -")
        ids = [call["id"] for message in body["messages"] for call in message.get("tool_calls") or ()]
        ids += [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
        refuse_unless(all(map(_ID.fullmatch, ids)), "Tool call id must be a-z, A-Z, 0-9, with a length of 9.")
        check_answered(body["messages"])
        last = body["messages"][-1]["role"]
        refuse_unless(last in {"user", "tool"}, f"Expected last role User or Tool but got {last}")

    def whole(self, turn: Turn, number: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": turn.text, "tool_calls": _calls(turn) or None}
        choice = {"index": 0, "message": message, "finish_reason": _reason(turn)}
        return _response(number, "chat.completion") | {"choices": [choice], "usage": _USAGE}

    def stream(self, turn: Turn, number: int) -> tuple[list[bytes], list[bytes]]:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": piece} for piece in halves(turn.text)]
        # All calls come whole and in the chunk that ends the turn: a stream without it has none.
        last = {"content": ""} | ({"tool_calls": _calls(turn)} if turn.calls else {})
        end = _chunk(number, last, _reason(turn)) | {"usage": _USAGE}
        return [sse(_chunk(number, delta, None)) for delta in deltas], [sse(end), sse("[DONE]")]

    def stream_error(self, message: str) -> list[bytes]:
        return [sse(_chunk(0, {"content": ""}, "error")), sse("[DONE]")]

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        return {"object": "error", "message": message, "type": "invalid_request_error", "param": None, "code": "3230"}


def _calls(turn: Turn) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "function": {"name": call.name, "arguments": json.dumps(call.arguments)}, "index": place}
        for place, call in enumerate(turn.calls)
    ]


def _reason(turn: Turn) -> str:
    return "tool_calls" if turn.calls else "stop"


def _response(number: int, kind: str) -> dict[str, Any]:
    return {"id": f"{number:032x}", "object": kind, "created": 1_700_000_000 + number, "model": "mistral"}


def _chunk(number: int, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return _response(number, "chat.completion.chunk") | {"choices": [choice]}
