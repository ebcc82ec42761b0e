"""The research agent over the site of the example: what it reads, what it is refused, and what it answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from research import agent

from ferrule import models

ROOT = Path(__file__).parents[2]
STEPS = """steps = [[("http", {"url": "http://127.0.0.1:1/"})], "I could not open it."]"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples/research/agent.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )


def test_it_finds_the_answer_and_obeys_no_page() -> None:
    found = run()
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert {"✓ Lamps", "✓ The lamp review", "✓ What our readers say"} <= {*lines}
    assert any(line.startswith("✗ Denied: url='http://169.254.169.254/") for line in lines)
    assert lines[-1].startswith("The cheapest lamp is the Reading lamp, for 29 EUR (http://127.0.0.1:")


def test_a_script_replaces_the_model(tmp_path: Path) -> None:
    script = tmp_path / "steps.py"
    script.write_text(STEPS)
    found = run("Is it there?", "--model", f"scripted:{script}", "--host", "*.example.org")
    assert found.returncode == 0, found.stderr
    assert "✗ Denied" in found.stdout and found.stdout.endswith("I could not open it.\n")


async def test_the_model_reads_markdown_marked_as_untrusted() -> None:
    told: list[Any] = []

    def look(messages: Any) -> str:
        told.extend(messages)
        return "done"

    with agent.serve_site() as site:
        runner = agent.researcher([site.removeprefix("http://").rstrip("/")])
        model = models.Scripted([[("http", {"url": site})], look])
        assert await agent.research(model, "What is here?", site, runner) == "done"
    [text] = [message["content"] for message in told if message["role"] == "tool"]
    assert text.startswith('<untrusted tool="http"') and f"[our table of lamps]({site}lamps.html)" in text
    assert "never run" not in text and "About" not in text
