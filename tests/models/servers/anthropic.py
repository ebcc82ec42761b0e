"""Anthropic's Messages API."""

from __future__ import annotations

import re
from typing import Any

from anthropic.types.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming
from tests.models.servers.fitting import must_fit
from tests.models.servers.serving import Api, Request, Turn, refuse_unless, sse

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID = re.compile(r"[a-zA-Z0-9_-]+")


class Anthropic(Api):
    provider = "anthropic"
    path = "/v1/messages"
    key = ("authorization", "Bearer ")
    ends = 2

    def check(self, request: Request) -> None:
        body = request.body
        refuse_unless("anthropic-version" in request.headers, "anthropic-version: header is required")
        must_fit(body, MessageCreateParamsStreaming if body.get("stream") else MessageCreateParamsNonStreaming, "body")
        names = [tool["name"] for tool in body.get("tools", ())]
        refuse_unless(all(_NAME.fullmatch(name) for name in names), f"tools: a name does not fit {_NAME.pattern}")
        refuse_unless(len(set(names)) == len(names), "tools: Tool names must be unique.")
        for tool in body.get("tools", ()):
            ours = tool.get("type", "custom") == "custom"
            refuse_unless(
                not ours or tool["input_schema"].get("type") == "object", "tools: input_schema.type: Field required"
            )
        _check_history(body["messages"])
        blocks = [block for message in body["messages"] for block in _blocks(message)]
        uses = any(block["type"] in {"tool_use", "tool_result"} for block in blocks)
        refuse_unless(names or not uses, "Requests which include `tool_use` or `tool_result` blocks must define tools.")
        self._check_signed(body["messages"])

    def _check_signed(self, messages: list[dict[str, Any]]) -> None:
        """Thinking goes back as it came, before the calls that it led to."""
        turns = [_blocks(message) for message in messages if message["role"] == "assistant"]
        for turn, number in zip(turns, range(self.answered), strict=False):
            if any(block["type"] == "tool_use" for block in turn):
                refuse_unless(turn[0] == _thinking(number), f"messages: turn {number} must start with its thinking")

    def complete(self, response: dict[str, Any], turn: Turn, number: int) -> None:
        if turn.calls:
            response["content"].insert(0, _thinking(number))

    def stream_error(self, message: str) -> list[bytes]:
        return [sse({"type": "error", "error": {"type": "overloaded_error", "message": message}}, "error")]

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        kind = "rate_limit_error" if status == 429 else "invalid_request_error"
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _check_history(messages: list[dict[str, Any]]) -> None:
    refuse_unless(messages and messages[0]["role"] == "user", "messages: first message must use the 'user' role")
    seen: set[str] = set()
    for place, message in enumerate(messages):
        blocks = _blocks(message)
        last = place == len(messages) - 1
        refuse_unless(blocks, f"messages.{place}: all messages must have non-empty content")
        for block in blocks:
            if block["type"] == "text":
                refuse_unless(block["text"].strip(), f"messages.{place}: text content blocks must be non-empty")
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        refuse_unless(all(map(_ID.fullmatch, calls)), f"messages.{place}: tool_use.id does not fit {_ID.pattern}")
        refuse_unless(not seen & set(calls), f"messages.{place}: `tool_use` ids must be unique")
        seen |= set(calls)
        refuse_unless(not calls or not last, f"messages.{place}: `tool_use` without `tool_result` immediately after")
        _check_results(blocks, _calls_of(messages, place - 1), f"messages.{place}")


def _calls_of(messages: list[dict[str, Any]], place: int) -> list[str]:
    if place < 0 or messages[place]["role"] != "assistant":
        return []
    return [block["id"] for block in _blocks(messages[place]) if block["type"] == "tool_use"]


def _check_results(blocks: list[dict[str, Any]], calls: list[str], where: str) -> None:
    kinds = [block["type"] == "tool_result" for block in blocks]
    refuse_unless(sorted(kinds, reverse=True) == kinds, f"{where}: tool_result blocks come first")
    answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    refuse_unless(len(set(answered)) == len(answered), f"{where}: each tool_use must have a single result")
    refuse_unless(set(answered) <= set(calls), f"{where}: unexpected `tool_use_id` found in `tool_result` blocks")
    refuse_unless(
        set(calls) <= set(answered), f"{where}: `tool_use` ids without `tool_result` blocks immediately after"
    )
    for block in blocks:
        content = block.get("content")
        if block["type"] == "tool_result" and isinstance(content, list):
            texts = [part for part in content if part["type"] == "text"]
            refuse_unless(all(part["text"].strip() for part in texts), f"{where}: text content must be non-empty")
            refuse_unless(
                not block.get("is_error") or (texts and texts == content), f"{where}: an error is text, not empty"
            )


def _thinking(number: int) -> dict[str, Any]:
    return {"type": "thinking", "thinking": "I wonder.", "signature": f"signed{number}=="}
