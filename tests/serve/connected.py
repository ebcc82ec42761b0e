"""What the tests of a served runner share: both eras, and clients that answer."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import mcp_types as wire
import pytest
from mcp.client import Client

from ferrule import Runner, serve
from ferrule.guards import rules
from ferrule.policy import TrustedFiles
from ferrule.types import Guard

ERAS = ("2026-07-28", "legacy")
"""What a client is told to speak: the revision in force, and the handshake of the 2025 revisions."""
MODERN, LEGACY = ERAS
YES = {"approve": True}
both_eras = pytest.mark.parametrize("era", ERAS)
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Person:
    """A person at a client, who gives these answers in turn, the last of them again and again."""

    def __init__(self, *answers: dict[str, Any] | str) -> None:
        self.answers = list(answers)
        self.asked: list[wire.ElicitRequestFormParams] = []

    async def __call__(self, context: Any, params: Any) -> wire.ElicitResult:
        self.asked.append(params)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, str):
            return wire.ElicitResult(action=answer)  # type: ignore[arg-type]
        return wire.ElicitResult(action="accept", content=answer)


def client(runner: Runner, era: str, person: Person | None = None, **options: Any) -> Client:
    """A client of the runner in the same process."""
    return Client(serve.mcp(runner, **options).server, mode=era, elicitation_callback=person)


async def call(
    runner: Runner, era: str, name: str, arguments: Any = None, person: Person | None = None, **options: Any
) -> wire.CallToolResult:
    """One call of one client."""
    async with client(runner, era, person, **options) as connected:
        return await connected.call_tool(name, arguments)


def text(result: wire.CallToolResult) -> str:
    """The texts of a result."""
    return "\n".join(block.text for block in result.content if isinstance(block, wire.TextContent))


def policy_with(text: str) -> Guard:
    """A guard of a policy with this text."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "policy.toml")
        file.write_text(text, encoding="utf-8")
        return rules(file, trusted=TrustedFiles(Path(folder, "trusted.json")))
