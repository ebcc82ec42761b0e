"""Every approver keeps the contract that users run on theirs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from terminals import ALLOW, PROMPT, Terminal

from ferrule import Runner, ToolCall, ToolResult, allow, approval
from ferrule.approval import Asked
from ferrule.testing import ApproverContract
from ferrule.types import Approver


class TestCallback(ApproverContract):
    def approver(self) -> Approver:
        self.texts: list[str] = []
        self.answers: dict[str, asyncio.Future[Any]] = {}
        return approval.callback(self._look)

    async def _look(self, asked: Asked) -> Any:
        self.texts.append(asked.text)
        return await self._answer_to(asked.call)

    def _answer_to(self, call: ToolCall) -> asyncio.Future[Any]:
        return self.answers.setdefault(call.id, asyncio.get_running_loop().create_future())

    async def answer(self, approver: Approver, call: ToolCall, yes: bool) -> None:
        self._answer_to(call).set_result(yes)

    async def edit(self, approver: Approver, call: ToolCall, arguments: Mapping[str, Any]) -> None:
        self._answer_to(call).set_result(allow(arguments))

    def read_shown_text(self, approver: Approver) -> str:
        return "\n".join(self.texts)


class TestRemembered(TestCallback):
    def approver(self) -> Approver:
        return approval.remembered(super().approver())


class TestLater(ApproverContract):
    possible_answers = ("later",)
    test_an_edit_is_judged_again = None  # type: ignore[assignment]

    def approver(self) -> Approver:
        return approval.later

    def read_shown_text(self, approver: Approver) -> str:
        return ""


class TestWeb(TestLater):
    """A person sees the text that waits in the queue."""

    def approver(self) -> Approver:
        self.queue = approval.web()
        self.texts: list[str] = []
        return approval.later

    async def resume(self, runner: Runner, suspended: ToolResult, yes: bool) -> ToolResult:
        key = await self.queue.put(suspended)
        [waits] = [one for one in await self.queue.waiting() if one.id == key]
        self.texts.append(waits.text)
        taken = await self.queue.answer(waits.id, waits.digest, yes, by="bob")
        return await runner.resume(taken.record, taken.decision, by=taken.by)

    def read_shown_text(self, approver: Approver) -> str:
        return "\n".join(self.texts)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
class TestConsole(ApproverContract):
    @pytest.fixture(autouse=True)
    def _terminals(self) -> Iterator[None]:
        self.terminals: list[Terminal] = []
        yield
        for terminal in self.terminals:
            terminal.close()

    def approver(self) -> Approver:
        self.terminal = Terminal()
        self.terminals.append(self.terminal)
        self.asked = 0
        self.open: set[str] = set()
        self.reading = asyncio.Lock()
        return approval.console(self.terminal.input, self.terminal.output, by="ann")

    async def answer(self, approver: Approver, call: ToolCall, yes: bool) -> None:
        if call.name == "log_in":
            await self.terminal.answer([("empty to refuse): ", "\n")])
            return
        to = call.arguments["to"]
        self.open.add(to)
        while to in self.open:
            async with self.reading:
                seen = await asyncio.to_thread(self.terminal.until, ALLOW, self.asked + 1)
                question = seen.split(ALLOW)[self.asked]
                whose = {name for name in ("ada", "bob") if f"to = '{name}'" in question} or {to}
                if to in whose:
                    self.terminal.type("y\n" if yes else "n\n")
                    self.open.discard(to)
                if not whose & (self.open - {to}):
                    self.asked += 1
            await asyncio.sleep(0)

    async def edit(self, approver: Approver, call: ToolCall, arguments: Mapping[str, Any]) -> None:
        edits = [(f"\r\n{name}: ", f"{arguments[name]}\n") for name in ("to", "euros")]
        await self.terminal.answer([(PROMPT, "e\n"), *edits, (PROMPT, "y\n")])

    def read_shown_text(self, approver: Approver) -> str:
        return self.terminal.seen
