"""A tool and a guard of the support desk keep the contracts of `ferrule.testing`, as those of a reader may."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ferrule import Tool, ToolContext
from ferrule.testing import CallArguments, ExpectedDecision, GuardContract, ToolContract
from ferrule.types import Guard

EXAMPLES = Path(__file__).parents[2] / "examples"


def agent_of(example: str) -> ModuleType:
    """Its `agent.py`, and what that imports, forgotten afterwards: each example has one."""
    folder = EXAMPLES / example
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("agent")
    finally:
        sys.path.remove(str(folder))
        for file in folder.glob("*.py"):
            sys.modules.pop(file.stem, None)


support = agent_of("support_desk")


class TestRefund(ToolContract):
    """It has no call that takes long."""

    test_a_call_stops_at_its_deadline = None  # type: ignore[assignment]
    test_a_cancelled_call_stops = None  # type: ignore[assignment]

    def context(self, folder: Path) -> ToolContext[Any]:
        self.store = support.Store(folder / "desk.db")
        return ToolContext(principal="ada", deps=self.store)

    def world(self, folder: Path) -> Any:
        return [self.store.rows(f"SELECT * FROM {table}") for table in ("orders", "refunds", "cases")]

    def tool(self) -> Tool:
        return support.refund  # type: ignore[no-any-return]

    def arguments(self) -> Iterable[CallArguments]:
        return [*super().arguments(), {"order": 1001, "cents": 950, "reason": "broken"}]

    def failing(self) -> Iterable[CallArguments]:
        return [{"order": 1001, "cents": 3951, "reason": "broken"}, {"order": 7, "cents": 1, "reason": ""}]


class TestWithinWhatWasPaid(GuardContract):
    @pytest.fixture(autouse=True)
    def _a_store(self, tmp_path: Path) -> None:
        self.store = support.Store(tmp_path / "desk.db")

    def context(self) -> ToolContext[Any]:
        return ToolContext(principal="ada", deps=self.store)

    def world(self) -> Any:
        return super().world(), self.store.rows("SELECT * FROM refunds")

    def guard(self) -> Guard:
        return support.within_what_was_paid  # type: ignore[no-any-return]

    def tools(self) -> Iterable[Any]:
        return [support.find_order, support.refund]

    def calls(self) -> list[ExpectedDecision]:
        return [
            ("find_order", {"order": 1003}, "allow"),
            ("refund", {"order": 1001, "cents": 3950, "reason": "broken"}, "allow"),
            ("refund", {"order": 1001, "cents": 3951, "reason": "broken"}, "deny"),
            ("refund", {"order": 1003, "cents": 1, "reason": "another customer's"}, "deny"),
            ("refund", {"order": 7, "cents": 1, "reason": "there is none"}, "deny"),
        ]
