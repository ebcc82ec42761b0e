"""Attacks on logs: each call is one line, which is read back as it was, without secrets."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from sample import CASES

from ferrule import Event, Runner, ToolCall, ToolContext, ToolError, tool
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


async def test_a_declared_secret_is_nowhere_in_events_and_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = CASES["atk094"]["input"]["arg"]
    told: list[Any] = []

    @tool(private=("pin",))
    def act(pin: str, how: str, context: ToolContext) -> str:
        address = f"https://u:{pin}@h.test/?token={pin}"
        context.announce({"at": address})
        context.progress(1, 2, address)
        if how == "exposed":
            raise LookupError(address)
        if how == "hidden":
            raise RuntimeError(address)
        if how == "said":
            raise ToolError(address)
        return "done"

    def observe(event: Event) -> None:
        data = {key: value for key, value in event.data.items() if key != "exception"}  # the very object, for programs
        told.append((event.kind, event.call, dict(event.call.arguments), data, repr(event)))

    log = events.to_file(tmp_path / "log", include=["input", "output", "error", "metadata", "repairs"])
    runner = Runner([act.bind(pin=secret)], observers=[observe, log])
    with log, caplog.at_level(logging.DEBUG):
        for how, status in (("fine", "ok"), ("exposed", "failed"), ("hidden", "failed"), ("said", "failed")):
            result = await runner.run("act", {"how": how}, ToolContext[Any](secrets={"k": secret}))
            assert result.status == status and "positional" not in result.text
            told.append((result.record(), repr(result), repr(result.call), result.text))
    everything = f"{told!r} {(tmp_path / 'log').read_text()} {caplog.text}"
    assert secret not in everything and "****" in everything


@pytest.mark.parametrize("exception", [RuntimeError, ConnectionError, ToolError, KeyError])
async def test_a_credential_in_an_exception_is_masked(
    exception: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    def act() -> str:
        raise exception("cannot reach postgres://u:TOPSECRET@h.test/db")

    with caplog.at_level(logging.DEBUG):
        result = await Runner([act]).run("act")
    assert "TOPSECRET" not in caplog.text and "h.test" in caplog.text
    assert ("TOPSECRET" in str(result.error)) is (exception is ToolError)  # whose text is meant for the model


async def test_content_is_logged_only_on_request(tmp_path: Path) -> None:
    @tool(read_only=True)
    def act(s: str) -> str:
        return f"{s} back"

    with events.to_file(tmp_path / "log") as log:
        await Runner([act], observers=[log]).run("act", {"s": "TOPSECRET"})
    assert not re.search("TOPSECRET|back", (tmp_path / "log").read_text())


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
