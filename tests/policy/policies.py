"""Policies from the text of files, and calls of small tools that they judge."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from ferrule import Decision, Runner, Tool, ToolCall, ToolContext, tool
from ferrule.guards import rules
from ferrule.policy import Finding, Policy, TrustedFiles
from ferrule.policy.reading import read_document


def findings_of(text: str, scope: Any = "managed", **options: Any) -> list[Finding]:
    """The findings of a policy with this text."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "policy.toml")
        file.write_text(text, encoding="utf-8")
        return list(Policy([(scope, file)], trusted=TrustedFiles(Path(folder, "trusted.json")), **options).findings)


def policy_of(folder: Path, *texts: str, **options: Any) -> Policy:
    """The policy of files with these texts, each of which is right."""
    files = []
    for at, text in enumerate(texts):
        files.append(folder / f"p{at}.toml")
        files[-1].write_text(text, encoding="utf-8")
    return rules(*files, trusted=folder / "state" / "trusted.json", **options)


def rules_of(text: str) -> tuple[Any, ...]:
    """The rules of a text that is right."""
    document = read_document(text, "policy.toml", "managed")
    assert document.findings == ()
    return document.rules


def decided(policy: Any, made: Tool, arguments: dict[str, Any], **context: Any) -> Decision:
    """The decision of a runner with this policy; no objection is an allow."""
    runner = Runner([made], guards=[policy])
    return asyncio.run(runner.decide(ToolCall("c1", made.name, arguments), ToolContext[Any](**context)))


@tool
async def refund(amount: int | float, currency: str = "EUR", note: str | None = None) -> str:
    """Refund."""
    return "refunded"


@tool
async def shell(command: str) -> str:
    """Run a line."""
    return "run"


@tool(read_only=True)
async def fetch(url: str) -> str:
    """Fetch."""
    return "fetched"


@tool
async def write_file(path: str, content: str = "") -> str:
    """Write."""
    return "written"


@tool
async def move(files: list[dict[str, str]]) -> str:
    """Move files."""
    return "moved"
