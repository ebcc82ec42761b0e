"""The log file of calls: one line for each call, and no call fails because of the log."""

from __future__ import annotations

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ferrule import DefinitionError, Runner, ToolCall, ToolContext, Toolset, allow, ask, deny, tool
from ferrule.journal import events

KEYS = "time tool_name call_id parent principal session status executed duration_ms answered_by"


@tool
async def pay(euros: int, to: str = "ada") -> str:
    """Pay."""
    if euros > 100:
        raise RuntimeError("the bank is closed")
    return f"paid {euros} EUR to {to}"


def judged(call: ToolCall, context: ToolContext) -> Any:
    euros: Any = call.arguments["euros"]
    return deny("too much") if euros == 7 else ask("is it right?") if euros > 10 else None


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_file_names_decisions_and_their_rules(tmp_path: Path) -> None:
    def rules(call: ToolCall, context: ToolContext) -> Any:
        euros: Any = call.arguments["euros"]
        rule = f"policy.toml:{euros}"
        return deny("too much", rule=rule) if euros == 7 else ask("is it right?", rule=rule) if euros > 10 else None

    file = tmp_path / "calls.jsonl"
    runner = Runner(
        [pay],
        guards=[rules],
        approve=lambda call, decision, context: allow(by="eve"),
        observers=[events.to_file(file, decisions=True)],
    )
    for euros in (5, 7, 20):
        runner.run_sync(ToolCall(str(euros), "pay", {"euros": euros}), ToolContext(principal="ann"))
    said = [
        (line["call_id"], line.get("status") or (line["decision"], line["reason"], line["rule"], line["by"]))
        for line in lines(file)
        if line["principal"] == "ann" and line["tool_name"] == "pay"
    ]
    assert said == [
        ("5", ("allow", "", None, None)),
        ("5", "ok"),
        ("7", ("deny", "too much", "policy.toml:7", None)),
        ("7", "denied"),
        ("20", ("ask", "is it right?", "policy.toml:20", None)),
        ("20", ("allow", "", "policy.toml:20", "eve")),
        ("20", "ok"),
    ]


async def test_each_call_has_one_line(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    approving = Runner(
        [pay],
        guards=[judged],
        approve=lambda call, decision, context: allow(by="eve") if call.arguments["euros"] > 20 else decision,
        observers=[events.to_file(file)],
    )
    async with approving as runner:
        context = ToolContext(principal="ann", session="chat 7")
        waiting = None
        for number, euros in enumerate((5, 7, "x", 500, 20)):
            result = await runner.run(ToolCall(f"call {number}", "pay", {"euros": euros}), context)
            waiting = result.record()
        await runner.resume(waiting, True, by="bob")
        await runner.run(ToolCall("call 6", "fly", {}), context)
        await runner.run(ToolCall("cut off", "pay", {"euros": 1}, problem="the turn was cut off"), context)
        await runner.run(ToolCall("not offered", "pay", {"euros": 1}), context, offered=Toolset([]))
        await runner.run_all([ToolCall("twice", "pay", {"euros": 1}), ToolCall("twice", "pay", {"euros": 2})], context)
    await approving.run(ToolCall("closed", "pay", {"euros": 1}), context)
    found = lines(file)
    assert {" ".join(line) for line in found} == {KEYS}
    assert [(line["call_id"], line["status"], line["executed"], line["answered_by"]) for line in found] == [
        ("call 0", "ok", True, None),
        ("call 1", "denied", False, None),
        ("call 2", "invalid", False, None),
        ("call 3", "failed", True, "eve"),
        ("call 4", "suspended", False, None),
        ("call 4", "ok", True, "bob"),
        ("call 6", "not_found", False, None),
        ("cut off", "invalid", False, None),
        ("not offered", "not_found", False, None),
        ("twice", "ok", True, None),
        ("twice", "invalid", False, None),
        ("closed", "cancelled", False, None),
    ]
    assert {(line["principal"], line["session"]) for line in found} == {("ann", "chat 7")}
    assert "paid" not in file.read_text() and "euros" not in file.read_text()


async def test_arguments_and_results_are_logged_on_request(tmp_path: Path) -> None:
    log = events.to_file(tmp_path / "calls", include=["input", "output"])
    await Runner([pay.bind(to="eve's account")], observers=[log]).run("pay", {"euros": 5})
    (line,) = lines(tmp_path / "calls")
    assert line["input"] == {"euros": 5, "to": "*" * 10} and line["output"] == "paid 5 EUR to eve's account"
    with pytest.raises(DefinitionError, match="must be some of 'input', 'output'"):
        events.to_file(tmp_path / "calls", include="arguments")


@pytest.mark.skipif(os.name == "nt", reason="modes of Unix")
async def test_a_new_file_is_private_and_an_old_one_is_appended_to(tmp_path: Path) -> None:
    file = tmp_path / "calls"
    for _ in range(2):
        with events.to_file(file) as log:
            await Runner([pay], observers=[log]).run("pay", {"euros": 5})
    assert file.stat().st_mode & 0o777 == 0o600 and len(lines(file)) == 2
    with pytest.raises(FileNotFoundError):
        events.to_file(tmp_path / "no folder" / "calls")


def test_two_logs_of_one_file_write_whole_lines(tmp_path: Path) -> None:
    @tool
    async def note(text: str) -> str:
        """Note."""
        return text

    def write(who: str) -> None:
        runner = Runner([note], observers=[events.to_file(tmp_path / "calls", include=["input"])])
        for _ in range(100):
            runner.run_sync("note", {"text": who * 10_000}, ToolContext(principal=who))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, "ab"))
    written = lines(tmp_path / "calls")
    assert sorted(line["principal"] for line in written) == ["a"] * 100 + ["b"] * 100
    assert all(line["input"]["text"] == line["principal"] * 10_000 for line in written)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
async def test_a_full_disk_breaks_no_call_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    runner = Runner([pay], observers=[events.to_file("/dev/full")])
    assert [(await runner.run("pay", {"euros": 5})).success for _ in range(3)] == [True] * 3
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "/dev/full cannot be written, so calls have no line there"
    ]


async def test_a_closed_log_takes_no_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    log = events.to_file(tmp_path / "calls")
    log.close()
    log.close()
    assert (await Runner([pay], observers=[log]).run("pay", {"euros": 5})).success
    assert lines(tmp_path / "calls") == [] and "it was closed" in caplog.text
