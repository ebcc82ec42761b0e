"""Every guard keeps the contract that users run on theirs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolContext, tool
from ferrule.guards import ask_before_changes, commands, flow, hosts, rules, within
from ferrule.testing import ExpectedDecision, GuardContract
from ferrule.tools import files
from ferrule.types import Guard


@tool
def shell(command: str, seconds: int = 60) -> str:
    """Run a shell line."""
    return command


@tool(read_only=True)
def fetch(url: str, retries: int = 0) -> str:
    """Fetch a page."""
    return url


@tool
def refund(order: int, amount: int, currency: str = "EUR") -> str:
    """Pay money back."""
    return f"{amount} {currency}"


class TestAskBeforeChanges(GuardContract):
    def guard(self) -> Guard:
        return ask_before_changes

    def tools(self) -> Iterable[Any]:
        return [fetch, refund]

    def calls(self) -> list[ExpectedDecision]:
        return [
            ("fetch", {"url": "https://example.org"}, "allow"),
            ("refund", {"order": 1, "amount": 5}, "ask"),
            ("refund", {"order": 2, "amount": 5}, "ask"),
        ]


class TestWithin(GuardContract):
    @pytest.fixture(autouse=True)
    def _a_folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        (tmp_path / "notes").mkdir()
        (tmp_path / "notes" / "a.txt").write_text("a")

    def context(self) -> ToolContext[Any]:
        return ToolContext(working_directory=self.folder)

    def world(self) -> Any:
        return super().world(), {file: file.is_file() and file.read_text() for file in self.folder.rglob("*")}

    def guard(self) -> Guard:
        return within(self.folder / "notes")

    def tools(self) -> Iterable[Any]:
        return files.tools

    def calls(self) -> list[ExpectedDecision]:
        return [
            ("read_file", {"path": "notes/a.txt"}, "allow"),
            ("read_file", {"path": "notes/../secret.txt"}, "deny"),
            ("write_file", {"path": str(self.folder / "notes/b.txt"), "content": "b"}, "allow"),
            ("write_file", {"path": "/etc/passwd", "content": "b"}, "deny"),
        ]


class TestCommands(GuardContract):
    def guard(self) -> Guard:
        return commands(allow=["git status", "ls *"], deny=["rm *"])

    def tools(self) -> Iterable[Any]:
        return [shell, fetch]

    def calls(self) -> list[ExpectedDecision]:
        return [
            ("shell", {"command": "git status", "seconds": 5}, "allow"),
            ("shell", {"command": "make", "seconds": 5}, "ask"),
            ("shell", {"command": "git status; rm -rf /", "seconds": 5}, "deny"),
        ]


class TestHosts(GuardContract):
    def guard(self) -> Guard:
        return hosts("*.example.org", ask=["ask.example.org"])

    def tools(self) -> Iterable[Any]:
        return [fetch]

    def calls(self) -> list[ExpectedDecision]:
        return [
            ("fetch", {"url": "https://www.example.org/a", "retries": 2}, "allow"),
            ("fetch", {"url": "https://ask.example.org/a"}, "ask"),
            ("fetch", {"url": "http://169.254.169.254/latest", "retries": 2}, "deny"),
        ]


class TestRules(GuardContract):
    @pytest.fixture(autouse=True)
    def _a_file(self, tmp_path: Path) -> None:
        self.file = tmp_path / "policy.toml"
        self.file.write_text(
            'allow = ["refund(amount<=100)"]\ndeny = ["refund(amount>1000)", "refund(currency=USD)"]\n'
        )

    def guard(self) -> Guard:
        return rules(self.file, trusted=self.file.with_name("trusted.json"))

    def tools(self) -> Iterable[Any]:
        return [refund, fetch]

    def calls(self) -> list[ExpectedDecision]:
        return [
            ("refund", {"order": 1, "amount": 80}, "allow"),
            ("refund", {"order": 1, "amount": 500}, "ask"),
            ("refund", {"order": 1, "amount": 5000}, "deny"),
            ("refund", {"order": 1, "amount": 80, "currency": "USD"}, "deny"),
            ("fetch", {"url": "https://example.org"}, "allow"),
        ]


class TestFlow(GuardContract):
    def guard(self) -> Guard:
        watch = flow(sinks={"refund"}, exempt={"fetch"})
        watch.mark("private", "the user's file")
        return watch

    def tools(self) -> Iterable[Any]:
        return [refund, fetch]

    def calls(self) -> list[ExpectedDecision]:
        return [
            ("fetch", {"url": "https://example.org"}, "allow"),
            ("refund", {"order": 1, "amount": 5}, "ask"),
            ("refund", {"order": 2, "amount": 5}, "ask"),
        ]
