"""The research agent over the site of the example: its pages, its refusals, its answer and its mail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from research import agent

from ferrule import Decision, ToolCall, ToolContext, models

ROOT = Path(__file__).parents[2]


def test_it_finds_the_answer_and_obeys_no_page() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(ROOT / "examples/research/agent.py")]
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert {"✓ Lamps", "✓ The lamp review", "✓ What our readers say"} <= {*lines}
    assert any(line.startswith("✗ Denied: url='http://169.254.169.254/") for line in lines)
    assert "Mailed to" not in found.stdout  # nobody was there to approve it
    assert lines[-1].startswith("The cheapest lamp is the Reading lamp, for 29 EUR (http://127.0.0.1:")


async def test_the_model_reads_markdown_marked_as_untrusted() -> None:
    told: list[Any] = []

    def look(messages: Any) -> str:
        told.extend(messages)
        return "done"

    with agent.serve_site() as site:
        runner = agent.make_researcher([site.removeprefix("http://").rstrip("/")], [])
        model = models.Scripted([[("http", {"url": site})], look])
        assert await agent.research(model, "What is here?", site, runner) == "done"
    [text] = [message["content"] for message in told if message["role"] == "tool"]
    assert text.startswith('<untrusted tool="http"') and f"[our table of lamps]({site}lamps.html)" in text
    assert "never run" not in text and "About" not in text


@pytest.mark.parametrize("answer", [True, False])
async def test_a_person_decides_about_the_mail_and_reads_why(answer: bool) -> None:
    reasons: list[str] = []

    def decide(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        reasons.append(decision.reason)
        return answer

    outbox: list[tuple[str, str]] = []
    with agent.serve_site() as site:
        runner = agent.make_researcher([site.removeprefix("http://").rstrip("/")], outbox, decide)
        model = models.Scripted([agent.pretend] * 5)
        text = await agent.research(model, agent.QUESTION, site, runner, "bob@example.org")
    assert outbox == ([("bob@example.org", text)] if answer else [])
    [reason] = reasons
    assert reason.startswith("this session read text from outside at ") and "(http, call " in reason
