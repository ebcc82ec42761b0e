"""The log of calls in a file: one line for each, whatever it came to, and no call that breaks by it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ferrule import DefinitionError, Runner, ToolCall, ToolContext, ToolResult, Toolset, allow, ask, deny, tool
from ferrule.journal import events
from ferrule.types import Next

SOURCE = Path(__file__).parent.parent / "src"
KEYS = [
    "time",
    "tool_name",
    "call_id",
    "parent",
    "principal",
    "session",
    "status",
    "executed",
    "duration_ms",
    "approved_by",
]


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


def test_with_decisions_the_file_says_who_allowed_what_by_which_rule(tmp_path: Path) -> None:
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


async def test_each_call_has_one_line_whatever_it_came_to(tmp_path: Path) -> None:
    async def main() -> None:
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
            await runner.run_all(
                [ToolCall("twice", "pay", {"euros": 1}), ToolCall("twice", "pay", {"euros": 2})], context
            )

    file = tmp_path / "calls.jsonl"
    await main()
    found = lines(file)
    assert all(list(line) == KEYS for line in found)
    assert [(line["call_id"], line["status"], line["executed"], line["approved_by"]) for line in found] == [
        ("call 0", "ok", True, None),
        ("call 1", "denied", False, None),
        ("call 2", "invalid", False, None),
        ("call 3", "failed", True, "eve"),
        ("call 4", "suspended", False, None),
        ("call 4", "ok", True, "bob"),
        ("call 6", "not_found", False, None),
        ("twice", "ok", True, None),
        ("twice", "invalid", False, None),
    ]
    assert {(line["principal"], line["session"]) for line in found} == {("ann", "chat 7")}
    assert "paid" not in file.read_text() and "euros" not in file.read_text()


async def test_what_no_middleware_sees_has_its_line(tmp_path: Path) -> None:
    seen: list[str] = []

    async def note(call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        seen.append(call.id)
        return await next(call, context)

    async def main() -> None:
        runner = Runner([pay], around=[note], observers=[events.to_file(tmp_path / "calls")])
        await runner.run(ToolCall("1", "pay", {"euros": 1}))
        await runner.run(ToolCall("unknown", "fly", {}))
        await runner.run(ToolCall("cut off", "pay", {"euros": 1}, problem="the turn was cut off"))
        await runner.run(ToolCall("not offered", "pay", {"euros": 1}), offered=Toolset([]))
        await runner.run_all([ToolCall("2", "pay", {"euros": 1}), ToolCall("2", "pay", {"euros": 2})])
        async with runner:
            pass
        await runner.run(ToolCall("closed", "pay", {"euros": 1}))

    await main()
    assert seen == ["1", "2"]
    assert [(line["call_id"], line["status"]) for line in lines(tmp_path / "calls")] == [
        ("1", "ok"),
        ("unknown", "not_found"),
        ("cut off", "invalid"),
        ("not offered", "not_found"),
        ("2", "ok"),
        ("2", "invalid"),
        ("closed", "cancelled"),
    ]


async def test_a_call_that_a_tool_makes_names_the_one_that_made_it(tmp_path: Path) -> None:
    @tool
    async def outer(context: ToolContext) -> None:
        """Pay twice."""
        await context.run("pay", {"euros": 1})

    with events.to_file(tmp_path / "calls") as log:
        await Runner([outer, pay], observers=[log]).run(ToolCall("1", "outer", {}))
    inner, made_it = lines(tmp_path / "calls")
    assert (inner["tool_name"], inner["parent"], made_it["parent"]) == ("pay", "1", None)


async def test_arguments_and_results_are_there_where_they_are_asked_for_and_what_is_bound_is_stars(
    tmp_path: Path,
) -> None:
    log = events.to_file(tmp_path / "calls", include=["input", "output"])
    await Runner([pay.bind(to="eve's account")], observers=[log]).run("pay", {"euros": 5})
    (line,) = lines(tmp_path / "calls")
    assert line["input"] == {"euros": 5, "to": "*" * 10} and line["output"] == "paid 5 EUR to eve's account"
    with pytest.raises(DefinitionError, match="must be some of 'input', 'output'"):
        events.to_file(tmp_path / "calls", include="arguments")


@pytest.mark.skipif(os.name == "nt", reason="modes of Unix")
async def test_a_new_file_is_for_nobody_else_and_one_that_is_there_is_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / "calls"
    for _ in range(2):
        with events.to_file(file) as log:
            await Runner([pay], observers=[log]).run("pay", {"euros": 5})
    assert file.stat().st_mode & 0o777 == 0o600 and len(lines(file)) == 2
    with pytest.raises(FileNotFoundError):
        events.to_file(tmp_path / "no folder" / "calls")


WRITER = """
import asyncio, sys
from ferrule import Runner, ToolContext, tool
from ferrule.journal import events

@tool
async def note(text: str) -> str:
    "Note."
    return text

async def main():
    runner = Runner([note], observers=[events.to_file(sys.argv[1], include=["input"])])
    print(flush=True)
    input()
    for _ in range(300):
        await runner.run("note", {"text": sys.argv[2] * 10_000}, ToolContext(principal=sys.argv[2]))

asyncio.run(main())
"""


def test_the_lines_of_two_programs_stay_whole(tmp_path: Path) -> None:
    file = tmp_path / "calls"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment}
    started = [subprocess.Popen([sys.executable, "-c", WRITER, str(file), who], **pipes) for who in "ab"]
    for program in started:
        program.stdout.readline()
    for program in started:  # both are ready
        program.stdin.write(b"\n")
        program.stdin.flush()
    for program in started:
        program.communicate(timeout=60)
    assert [program.returncode for program in started] == [0, 0]
    written = lines(file)
    assert sorted(line["principal"] for line in written) == ["a"] * 300 + ["b"] * 300
    assert all(line["input"]["text"] == line["principal"] * 10_000 for line in written)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
async def test_where_the_disk_is_full_calls_go_on_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[bool]:
        runner = Runner([pay], observers=[events.to_file("/dev/full")])
        return [(await runner.run("pay", {"euros": 5})).success for _ in range(3)]

    assert (await main()) == [True] * 3
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "/dev/full cannot be written, so calls have no line there"
    ]


NARROW = """
import asyncio, resource, sys
from ferrule import Runner, tool
from ferrule.journal import events

@tool
async def ping() -> str:
    "Ping."
    return "pong"

async def main():
    runner = Runner([ping], observers=[events.to_file(sys.argv[1])])
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, most))
    for _ in range(4):
        await runner.run("ping")
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    await runner.run("ping")
    await runner.run("ping")

asyncio.run(main())
"""


@pytest.mark.skipif(os.name == "nt", reason="a limit of Unix")
def test_after_a_line_that_was_cut_off_the_next_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "calls"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", NARROW, str(file)], env=environment, capture_output=True, text=True, timeout=60
    )
    whole, cut_off, *after = file.read_text().splitlines()
    assert json.loads(whole)["status"] == "ok" and len(whole) + 1 + len(cut_off) == 400
    assert [json.loads(line)["status"] for line in after] == ["ok", "ok"]
    first, second = done.stderr.splitlines()
    assert "no space for a whole line" in first and "3 calls have no line" in second


async def test_a_file_that_was_closed_takes_no_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    log = events.to_file(tmp_path / "calls")
    log.close()
    log.close()
    assert (await Runner([pay], observers=[log]).run("pay", {"euros": 5})).success
    assert lines(tmp_path / "calls") == [] and "it was closed" in caplog.text
