"""Anthropic's Messages API where code of the model runs in a container."""

from __future__ import annotations

from typing import Any

from tests.models.servers.anthropic import Anthropic
from tests.models.servers.serving import Request, Turn, refuse_unless, sse


class WithContainer(Anthropic):
    """The first turn's code ran in a container, of which that turn alone speaks; later requests must name it."""

    def check(self, request: Request) -> None:
        container = request.body.get("container")
        if self.answered:
            id = container.get("id") if isinstance(container, dict) else container
            refuse_unless(id == "container_1", "container_id is required when there are pending tool uses")
        super().check(request)

    def whole(self, turn: Turn, number: int) -> dict[str, Any]:
        return super().whole(turn, number) | {"container": self._container(number)}

    def stream(self, turn: Turn, number: int) -> tuple[list[bytes], list[bytes]]:
        body, end = super().stream(turn, number)
        stop = {"stop_reason": "tool_use" if turn.calls else "end_turn", "container": self._container(number)}
        delta = {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 5}}
        return body, [sse(delta, "message_delta"), *end[1:]]

    def _container(self, number: int) -> dict[str, Any] | None:
        named = {"id": "container_1", "expires_at": "2026-11-22T10:00:00Z"}
        return None if number else named
