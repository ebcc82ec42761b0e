"""The Claude Agent SDK with its own Claude Code, and a model on loopback."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from claude_agent_sdk import ClaudeAgentOptions
from claude_api import ScriptedModel, Turns

from ferrule import Runner, ToolContext, allow
from ferrule.adapters import claude_agent
from ferrule.testing import AdapterContract, Framework, FrameworkRun, Question, ScriptedCall

_OFF = ("DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC")
_OURS = "mcp__ferrule__"
_FOLDER = tempfile.TemporaryDirectory(prefix="ferrule-claude-")
"""The home and working directories of Claude Code."""


@pytest.fixture(autouse=True, scope="module")
def _clean_environment() -> None:
    clean_environment()


def clean_environment() -> None:
    """Claude Code gets the environment of this process: leave no key, proxy or setting in it."""
    for name in [*os.environ]:
        if name.upper().startswith(("ANTHROPIC", "CLAUDE", "AWS_")) or name.upper().endswith("_PROXY"):
            del os.environ[name]


def options_for(model: ScriptedModel, home: str = "", **options: Any) -> ClaudeAgentOptions:
    home = home or _FOLDER.name
    (work := Path(home, "work")).mkdir(exist_ok=True)
    env = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none", "HOME": home, **dict.fromkeys(_OFF, "1")}
    return ClaudeAgentOptions(model="claude-sonnet-4-5", cwd=work, env=env, **options)


class DrivenRun(FrameworkRun):
    """One conversation, in a session of its own."""

    def __init__(self, runner: Runner, home: str = "") -> None:
        super().__init__()
        self.runner, self.home = runner, home or _FOLDER.name
        self.waiting: Any = None
        """The session, its transcript when it began to wait, and the place of that file."""
        self._transcript = ""

    def _context(self, given: Any) -> ToolContext[Any]:
        self._transcript = given["transcript_path"]
        return claude_agent.to_context(given).replace(deps="DEPS")

    async def run(self, turns: Turns = (), answers: Mapping[str, Any] | None = None, **options: Any) -> None:
        """Make the calls of these turns, or resume the session with these answers."""
        with ScriptedModel({"go": turns}) as model:
            options = {"options": options_for(model, self.home, **options), "context": self._context}
            async with claude_agent.client(self.runner, **options, answers=answers) as client:
                if turns:
                    await client.query("go")
                async for _ in client.receive_response():
                    pass
        self.results |= model.results
        self.questions = {}
        if (asked := client.question) is not None:
            self.questions = {asked.call_id: Question(asked.arguments, asked.reason)}
            self.waiting = asked.session, Path(self._transcript).read_text(encoding="utf-8"), self._transcript

    async def answer(
        self,
        answers: Mapping[str, bool | dict[str, Any]],
        record: Literal["unchanged", "changed", "lost"] = "unchanged",
    ) -> None:
        session, transcript, place = self.waiting
        Path(place).write_text(transcript, encoding="utf-8")
        given = {key: allow(arguments=one) if isinstance(one, dict) else one for key, one in answers.items()}
        await self.run(answers=given, resume=session)


class ClaudeAgent(Framework):
    stores_data = True
    brings_record = False
    tells_progress = False  # the SDK drops it

    async def start_run(self, runner: Runner, *calls: ScriptedCall) -> DrivenRun:
        driven = DrivenRun(runner)
        named = [ScriptedCall(call.id, _OURS + call.name, call.arguments) for call in calls]
        await driven.run([named])
        return driven

    def export_run(self, waiting: DrivenRun) -> Any:
        return waiting.home, waiting.waiting

    async def import_run(self, runner: Runner, stored: Any) -> DrivenRun:
        clean_environment()
        home, waiting = stored
        driven = DrivenRun(runner, home)
        driven.waiting = waiting
        return driven


class TestClaudeAgent(AdapterContract):
    framework = ClaudeAgent()
