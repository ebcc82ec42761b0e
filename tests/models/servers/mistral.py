"""Mistral's chat API."""

from __future__ import annotations

import re
from typing import Any

from mistralai.client.models import ChatCompletionRequestTypedDict, ChatCompletionStreamRequestTypedDict
from tests.models.servers.fitting import must_fit
from tests.models.servers.openai_chat import check_answered
from tests.models.servers.serving import Api, Request, refuse_unless, sse

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID = re.compile(r"[a-zA-Z0-9]{9}")
_END = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
_FAILED = {"id": "0", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [_END]}


class Mistral(Api):
    provider = "mistral"
    path = "/v1/chat/completions"
    key = ("authorization", "Bearer dummy")
    done = (sse("[DONE]"),)

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

    def stream_error(self, message: str) -> list[bytes]:
        return [sse(_FAILED), *self.done]

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        return {"object": "error", "message": message, "type": "invalid_request_error", "param": None, "code": "3230"}
