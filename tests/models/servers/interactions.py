"""Gemini's Interactions."""

from __future__ import annotations

import json
import re
from typing import Any

from google.genai._gaos.types.interactions.createmodelinteraction import CreateModelInteractionParam
from tests.models.servers.fitting import must_fit
from tests.models.servers.serving import Api, Request, Turn, halves, refuse_unless, sse

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")
_LISTED = "gemini-flash-latest"
"""The SDK's type has the models of its day, and the API more."""
_USAGE = {"total_input_tokens": 10, "total_output_tokens": 5, "total_tokens": 15}
_MADE = {"function_call": ("id", "name", "arguments"), "thought": ("signature",), "model_output": ("content",)}


class Interactions(Api):
    path = "/interactions"
    key = ("x-goog-api-key", "dummy")

    def check(self, request: Request) -> None:
        body = request.body
        given = body if isinstance(body.get("input"), list) else {}
        refuse_unless(given, "input: a list of steps is wanted")
        refuse_unless(isinstance(body.get("model"), str), "model: a text is wanted")
        must_fit({**body, "input": "checked below", "model": _LISTED}, CreateModelInteractionParam, "body")
        for tool in body.get("tools", ()):
            refuse_unless(_NAME.fullmatch(tool["name"]), f"Invalid function name {tool['name']!r}.")
        _check_steps(body["input"])
        self._check_signed(body["input"])

    def _check_signed(self, steps: list[dict[str, Any]]) -> None:
        """A thought stands before the calls that it led to, as it came."""
        for number in range(self.answered):
            calls = [place for place, step in enumerate(steps) if step.get("id") in self._ids(number)]
            if calls:
                before = steps[calls[0] - 1] if calls[0] else {}
                refuse_unless(before == _thought(number), f"the thought before the calls of turn {number} is missing")

    def _ids(self, number: int) -> list[str]:
        return [call.id for call in self.turns[number].calls]

    def whole(self, turn: Turn, number: int) -> dict[str, Any]:
        return _head(turn, number) | {"steps": _steps(turn, number), "usage": _USAGE}

    def stream(self, turn: Turn, number: int) -> tuple[list[bytes], list[bytes]]:
        begun = _head(turn, number) | {"status": "in_progress"}
        events: list[dict[str, Any]] = [{"event_type": "interaction.created", "interaction": begun}]
        for index, step in enumerate(_steps(turn, number)):
            start, deltas = _pieces(step)
            events.append({"event_type": "step.start", "index": index, "step": start})
            events += [{"event_type": "step.delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"event_type": "step.stop", "index": index})
        end = {"event_type": "interaction.completed", "interaction": _head(turn, number) | {"usage": _USAGE}}
        return [sse(event, event["event_type"]) for event in events], [sse(end, end["event_type"]), sse("[DONE]")]

    def stream_error(self, message: str) -> list[bytes]:
        return [sse({"event_type": "error", "error": {"code": "unavailable", "message": message}}, "error")]

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        kind = "RESOURCE_EXHAUSTED" if status == 429 else "INVALID_ARGUMENT"
        return {"error": {"code": status, "message": message, "status": kind}}


def _check_steps(steps: list[dict[str, Any]]) -> None:
    waiting: list[str] = []
    for step in steps:
        kind = step.get("type")
        refuse_unless(kind in {*_MADE, "user_input", "function_result"}, f"there is no step of the type {kind!r}")
        if kind == "function_result":
            refuse_unless(step["call_id"] in waiting, f"no function call waits for the result {step['call_id']!r}")
            refuse_unless(isinstance(step["result"], str | list), "result: a text or a list is wanted")
            waiting.remove(step["call_id"])
        elif kind == "function_call":
            refuse_unless(isinstance(step["arguments"], dict), "arguments: an object is wanted")
            waiting.append(step["id"])
        else:
            refuse_unless(not waiting or kind == "model_output", f"the function calls {waiting} are not answered")
        refuse_unless(all(field in step for field in _MADE.get(str(kind), ())), f"a field of {kind!r} is missing")
    refuse_unless(not waiting, f"the function calls {waiting} are not answered")


def _thought(number: int) -> dict[str, Any]:
    return {"type": "thought", "signature": f"c2lnbmVk{number}A=="}


def _steps(turn: Turn, number: int) -> list[dict[str, Any]]:
    said = [{"type": "model_output", "content": [{"type": "text", "text": turn.text}]}] if turn.text else []
    calls = [
        {"type": "function_call", "id": call.id, "name": call.name, "arguments": call.arguments} for call in turn.calls
    ]
    return [*said, _thought(number), *calls] if calls else said


def _head(turn: Turn, number: int) -> dict[str, Any]:
    status = "requires_action" if turn.calls else "completed"
    return {"id": f"interaction{number}", "object": "interaction", "model": "gemini", "status": status}


def _pieces(step: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A step as it starts, and what then comes."""
    if step["type"] == "model_output":
        return {"type": "model_output"}, [{"type": "text", "text": t} for t in halves(step["content"][0]["text"])]
    if step["type"] == "thought":
        return {"type": "thought"}, [{"type": "thought_signature", "signature": step["signature"]}]
    chunks = halves(json.dumps(step["arguments"]))
    return step | {"arguments": {}}, [{"type": "arguments_delta", "arguments": chunk} for chunk in chunks]
