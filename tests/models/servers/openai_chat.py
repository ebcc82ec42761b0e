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
from tests.models.servers.serving import Api, Asked, Request, Turn, halves, refuse_unless, sse

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MOST_TOOLS = 128


class OpenAIChat(Api):
    path = "/chat/completions"
    key = ("authorization", "Bearer ")

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

    def whole(self, turn: Turn, number: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": turn.text or None, "refusal": None}
        if turn.calls:
            message["tool_calls"] = [_call(call, _text(call)) for call in turn.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _reason(turn)}
        return _response(number, "chat.completion") | {"choices": [choice], "usage": _USAGE}

    def stream(self, turn: Turn, number: int) -> tuple[list[bytes], list[bytes]]:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if turn.text else None, "refusal": None}]
        deltas += [{"content": piece} for piece in halves(turn.text)]
        for index, call in enumerate(turn.calls):
            deltas.append({"tool_calls": [{"index": index, **_call(call, "")}]})
            kind, key = _KEYS[call.custom]
            deltas += [{"tool_calls": [{"index": index, kind: {key: piece}}]} for piece in halves(_text(call))]
        end = [_chunk(number, {}, _reason(turn)), _response(number, "chat.completion.chunk") | {"choices": []}]
        end[-1]["usage"] = _USAGE
        return [sse(_chunk(number, delta, None)) for delta in deltas], [*map(sse, end), sse("[DONE]")]

    def stream_error(self, message: str) -> list[bytes]:
        return [sse({"error": {"message": message, "type": "server_error", "param": None, "code": None}})]

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        kind = "rate_limit_error" if status == 429 else "invalid_request_error"
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}


_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


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


_KEYS = {False: ("function", "arguments"), True: ("custom", "input")}


def _arguments(call: dict[str, Any]) -> str:
    found: str = call["function"]["arguments"]
    return found


def _text(call: Asked) -> str:
    return str(call.arguments["input"]) if call.custom else json.dumps(call.arguments)


def _call(call: Asked, text: str) -> dict[str, Any]:
    kind, key = _KEYS[call.custom]
    return {"id": call.id, "type": kind, kind: {"name": call.name, key: text}}


def _reason(turn: Turn) -> str:
    return "tool_calls" if turn.calls else "stop"


def _response(number: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 1_700_000_000 + number, "model": "gpt"}


def _chunk(number: int, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    return _response(number, "chat.completion.chunk") | {"choices": [choice]}
