"""Gemini's `generateContent`."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from google.genai import types
from tests.models.servers.fitting import must_fit
from tests.models.servers.serving import Answer, Api, Request, Turn, refuse_unless, sse

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")
_PARAMETER = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_FIELDS: dict[str, Any] = {
    "contents": list[types.Content],
    "systemInstruction": types.Content,
    "tools": list[types.Tool],
    "toolConfig": types.ToolConfig,
    "generationConfig": types.GenerationConfig,
    "safetySettings": list[types.SafetySetting],
    "cachedContent": str,
}


class Gemini(Api):
    provider = "gemini"
    path = ""
    key = ("x-goog-api-key", "dummy")
    _HOME: ClassVar = re.compile(r"/v1(beta)?/models/[\w.:-]+?:(generateContent|streamGenerateContent\?alt=sse)")

    def is_streamed(self, request: Request) -> bool:
        return "streamGenerateContent" in request.path

    def answer(self, request: Request) -> Answer:
        known = self._HOME.fullmatch(request.path)
        return super().answer(request) if known else self.error(404, f"there is nothing at {request.path}")

    def check(self, request: Request) -> None:
        for name, value in request.body.items():
            refuse_unless(name in _FIELDS, f"Unknown name {name!r}: Cannot find field.")
            must_fit(value, _FIELDS[name], name)
        for tool in request.body.get("tools", ()):
            for function in tool.get("functionDeclarations", ()):
                _check_declared(function)
        _check_history(request.body["contents"])
        self._check_signed(request.body["contents"])

    def _check_signed(self, contents: list[dict[str, Any]]) -> None:
        """Of parallel calls, the first carries the signature."""
        turns = [_of(content, "functionCall") for content in contents if content["role"] == "model"]
        signed = [turn[0].get("thoughtSignature") for turn in turns if turn]
        called = [number for number in range(self.answered) if self.turns[number].calls]
        refuse_unless(
            signed == [_signature(number) for number in called[: len(signed)]],
            "Function call is missing a thought_signature in functionCall parts.",
        )

    def complete(self, response: dict[str, Any], turn: Turn, number: int) -> None:
        parts = response["candidates"][0]["content"]["parts"]
        for part in [part for part in parts if "functionCall" in part][:1]:
            part["thoughtSignature"] = _signature(number)

    def encode(self, event: dict[str, Any]) -> bytes:
        return sse(event)

    def stream_error(self, message: str) -> list[bytes]:
        return [sse({"error": {"code": 503, "message": message, "status": "UNAVAILABLE"}})]

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        kind = "RESOURCE_EXHAUSTED" if status == 429 else "INVALID_ARGUMENT"
        return {"error": {"code": status, "message": message, "status": kind}}


def _check_declared(function: dict[str, Any]) -> None:
    refuse_unless(_NAME.fullmatch(function["name"]), f"Invalid function name {function['name']!r}.")
    schema = function.get("parametersJsonSchema") or function.get("parameters_json_schema") or {}
    refuse_unless(not (schema and "parameters" in function), "parameters and parameters_json_schema exclude each other")
    for name in schema.get("properties", ()):
        refuse_unless(_PARAMETER.fullmatch(name), f"Invalid parameter name {name!r}.")


def _of(content: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [part for part in content.get("parts", ()) if kind in part]


def _check_history(contents: list[dict[str, Any]]) -> None:
    waiting: list[tuple[str | None, str]] = []
    for content in contents:
        refuse_unless(content["role"] in {"user", "model"}, "Please use a valid role: user, model.")
        refuse_unless(content.get("parts"), "contents.parts must not be empty.")
        answers = [part["functionResponse"] for part in _of(content, "functionResponse")]
        refuse_unless(
            len(answers) == len(waiting),
            "Please ensure that the number of function response parts is equal to the number of function call parts",
        )
        found = [(answer.get("id"), answer["name"]) for answer in answers]
        refuse_unless(found == waiting, f"function responses {found} do not answer the function calls {waiting}")
        refuse_unless(not answers or content["role"] == "user", "a function response comes from the user")
        for answer in answers:
            refuse_unless(isinstance(answer.get("response"), dict), "function_response.response must be an object")
        calls = [part["functionCall"] for part in _of(content, "functionCall")]
        waiting = [(call.get("id"), call["name"]) for call in calls]
    refuse_unless(not waiting, "a function call turn comes immediately before a function response turn")


def _signature(number: int) -> str:
    return f"c2lnbmVk{number}A=="
