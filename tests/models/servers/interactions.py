"""Gemini's Interactions."""

from __future__ import annotations

import re
from typing import Any

from google.genai._gaos.types.interactions.createmodelinteraction import CreateModelInteractionParam
from tests.models.servers.fitting import must_fit
from tests.models.servers.serving import Api, Request, Turn, refuse_unless, sse

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")
_LISTED = "gemini-flash-latest"
"""The SDK's type has the models of its day, and the API more."""
_MADE = {"function_call": ("id", "name", "arguments"), "thought": ("signature",), "model_output": ("content",)}


class Interactions(Api):
    provider = "interactions"
    path = "/interactions"
    key = ("x-goog-api-key", "dummy")
    ends = 2
    done = (sse("[DONE]"),)

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

    def complete(self, response: dict[str, Any], turn: Turn, number: int) -> None:
        if turn.calls:
            response["steps"].insert(bool(turn.text), _thought(number))

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
