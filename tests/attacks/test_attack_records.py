"""Attacks on logs: each call is one line, which is read back as it was, without secrets."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from sample import CASES

from ferrule import Runner, ToolCall, ToolError, tool
from ferrule.journal import events

HOSTILE = [CASES["atk088"]["input"]["args"]["s"], "a\r\nb\u2028c\u2029d\x85e\x0b\x0c", "%s %(a)s {0} {a!r}"]
HOSTILE += ["\"'\\\n", "\x1b[2K\x00"]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
async def test_one_call_is_one_line_of_the_log(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @tool(read_only=True)
    def act(s: str, kind: str) -> str:
        if kind == "raised":
            raise RuntimeError(s)
        if kind == "said":
            raise ToolError(s)
        return s

    calls = [ToolCall(text, "act", {"s": text, "kind": kind}) for kind in ("fine", "raised", "said")]
    calls += [ToolCall("1", text, {"s": text}), ToolCall("2", "act", {text: text}), ToolCall("3", "act", text)]
    log = events.to_file(tmp_path / "log", include=["input", "output", "error"])
    with log, caplog.at_level(logging.DEBUG, "ferrule"):
        runner = Runner([act], observers=[log])
        results = [await runner.run(call) for call in calls]
    written = (tmp_path / "log").read_bytes()
    lines = written.decode().splitlines()
    assert len(lines) == len(calls) and written.isascii() and b"\x1b" not in written
    told = [json.loads(line) for line in lines]
    assert told[0]["input"] == {"s": text, "kind": "fine"} and told[0]["output"] == text
    assert [one["status"] for one in told] == [result.status for result in results]
    for record in caplog.records:
        assert "approval granted\x1b" not in record.getMessage() and "\n2026" not in record.getMessage()


async def test_a_log_cut_at_any_byte_keeps_all_earlier_lines(tmp_path: Path) -> None:
    @tool(read_only=True)
    def act(n: int) -> int:
        return n

    file = tmp_path / "log"
    with events.to_file(file) as log:
        for n in range(3):
            await Runner([act], observers=[log]).run("act", {"n": n})
    whole = file.read_bytes()
    complete = whole.splitlines(keepends=True)
    for cut in range(1, CASES["atk091"]["input"]["cuts"]):
        torn = whole[: len(whole) - cut]
        file.write_bytes(torn)
        with events.to_file(file) as log:
            await Runner([act], observers=[log]).run("act", {"n": 9})
        left = file.read_bytes().splitlines(keepends=True)
        whole_lines = torn.count(b"\n")
        assert left[:whole_lines] == complete[:whole_lines]
        assert json.loads(left[-1])["tool_name"] == "act" and left[-1] not in complete
