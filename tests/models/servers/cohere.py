"""Cohere's chat API, version 2."""

from __future__ import annotations

import json
from typing import Any

from cohere.types import ChatMessages, ToolV2
from tests.models.servers.fitting import must_fit
from tests.models.servers.openai_chat import check_answered
from tests.models.servers.serving import Api, Request, Turn, halves, refuse_unless, sse

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
_TOKENS = {"input_tokens": 10, "output_tokens": 5}
_USAGE = {"billed_units": _TOKENS, "tokens": _TOKENS}
_PLAN = "I will weigh it and look."


class Cohere(Api):
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

    def whole(self, turn: Turn, number: int) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant"}
        if turn.calls:
            message |= {"tool_plan": _PLAN, "tool_calls": [_call(*one) for one in _calls(turn)]}
        if turn.text:
            message["content"] = [{"type": "text", "text": turn.text}]
        return {"id": f"chat-{number}", "finish_reason": _reason(turn), "message": message, "usage": _USAGE}

    def stream(self, turn: Turn, number: int) -> tuple[list[bytes], list[bytes]]:
        start = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
        events: list[dict[str, Any]] = [
            {"type": "message-start", "id": f"chat-{number}", "delta": {"message": start}},
        ]
        if turn.text:
            events.append(_event("content-start", 0, {"content": {"type": "text", "text": ""}}))
            events += [_event("content-delta", 0, {"content": {"text": chunk}}) for chunk in halves(turn.text)]
            events.append({"type": "content-end", "index": 0})
        if turn.calls:
            plan = [{"type": "tool-plan-delta", "delta": {"message": {"tool_plan": chunk}}} for chunk in halves(_PLAN)]
            events += plan
        for index, (id, name, arguments) in enumerate(_calls(turn)):
            events.append(_event("tool-call-start", index, {"tool_calls": _call(id, name, "")}))
            chunks = [{"tool_calls": {"function": {"arguments": chunk}}} for chunk in halves(arguments)]
            events += [_event("tool-call-delta", index, chunk) for chunk in chunks]
            events.append({"type": "tool-call-end", "index": index})
        end = {"type": "message-end", "delta": {"finish_reason": _reason(turn), "usage": _USAGE}}
        return [sse(event, event["type"]) for event in events], [sse(end, "message-end")]

    def stream_error(self, message: str) -> list[bytes]:
        end = {"type": "message-end", "delta": {"finish_reason": "ERROR", "error": message}}
        return [sse(end, "message-end")]

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        return {"id": "error-1", "message": message}


def _calls(turn: Turn) -> list[tuple[str, str, str]]:
    return [(call.id, call.name, json.dumps(call.arguments)) for call in turn.calls]


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _event(kind: str, index: int, message: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "index": index, "delta": {"message": message}}


def _reason(turn: Turn) -> str:
    return "TOOL_CALL" if turn.calls else "COMPLETE"
