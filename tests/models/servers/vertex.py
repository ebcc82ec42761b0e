"""Gemini's `generateContent` on Vertex AI, which streams the arguments of a call chunk by chunk, each with its path."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from tests.models.servers.gemini import Gemini
from tests.models.servers.serving import halves


class Vertex(Gemini):
    _HOME: ClassVar = re.compile(
        r"/v1(beta1)?/publishers/google/models/[\w.:-]+?:(generateContent|streamGenerateContent\?alt=sse)"
    )

    def chunks(self, part: dict[str, Any]) -> list[dict[str, Any]]:
        if "functionCall" not in part:
            return super().chunks(part)
        call = part["functionCall"]
        first = part | {"functionCall": {"id": call["id"], "name": call["name"], "willContinue": True}}
        more = [_fragment(chunk) for key, item in call["args"].items() for chunk in _paths(f"$.{key}", item)]
        return [first, *more, {"functionCall": {}}]


def _fragment(chunk: dict[str, Any]) -> dict[str, Any]:
    return {"functionCall": {"partialArgs": [chunk], "willContinue": True}}


def _paths(path: str, value: Any) -> list[dict[str, Any]]:
    """A value as fragments: a text in chunks, of which the last one is empty, what is nested by its leaves."""
    if isinstance(value, dict):
        return [chunk for key, item in value.items() for chunk in _paths(f"{path}.{key}", item)]
    if isinstance(value, str):
        said: list[dict[str, Any]] = [
            {"jsonPath": path, "stringValue": chunk, "willContinue": True} for chunk in halves(value)
        ]
        return [*said, {"jsonPath": path, "stringValue": ""}]
    return [{"jsonPath": path, "numberValue": value}]
