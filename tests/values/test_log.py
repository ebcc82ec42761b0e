"""No foreign text begins a line of the log or sends escapes to a terminal."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Runner, ToolCall, ToolContext, ToolError, tool
from ferrule.middleware import budget, limit_output
from ferrule.stores import Artifacts
from ferrule.values.log import make_logger

FORGED = "all is well\nCRITICAL forged\r\x1b[2J\x0bCRITICAL\x85CRITICAL\u2028CRITICAL\u202e"
FORMAT = "%(levelname)s %(tool_name)s %(tool_call_id)s %(session)s %(principal)s: %(message)s"


@contextmanager
def log_of(name: str, format: str) -> Iterator[io.StringIO]:
    """Collect what a formatter writes of a logger."""
    logger, written = logging.getLogger(name), io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter(format))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield written
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def check(written: str, begins: str) -> None:
    """Each line is the first of a record, or is indented; and each character is one that a terminal shows."""
    lines = written.removesuffix("\n").split("\n")
    assert lines[0].startswith(begins)
    assert [line for line in lines if not line.startswith((begins, "  "))] == []
    assert all(line.isprintable() for line in lines)


def raising(error: BaseException) -> Any:
    @tool
    async def act(text: str = "") -> str:
        """Act."""
        raise error

    return act


ERRORS = [
    RuntimeError(FORGED),
    ToolError(FORGED),
    ExceptionGroup(FORGED, [ValueError(FORGED), KeyError(FORGED)]),
    SyntaxError("bad", ("file", 1, 1, FORGED)),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("secrets", [{}, {"key": "a-secret-of-the-program"}])
def test_an_exception_cannot_forge_a_log_line(error: BaseException, secrets: dict[str, str]) -> None:
    error.add_note(FORGED)
    call = ToolCall(FORGED, "act", {"text": FORGED})
    with log_of("ferrule", FORMAT) as written:
        Runner([raising(error)], secrets=secrets).run_sync(call, ToolContext(principal=FORGED, session=FORGED))
    levels = ("WARNING act all is well\\n", "INFO act all is well\\n")
    check(written.getvalue(), next(one for one in levels if written.getvalue().startswith(one)))


def raise_other() -> None:
    try:
        raise KeyError("an error of its own")
    except KeyError:
        raise ExceptionGroup("several", [ValueError("broken")])  # noqa: B904


async def test_no_log_of_what_breaks_meanwhile_shows_the_handled_exception() -> None:
    secret = "a-secret-of-the-program"

    @tool(background=True)
    async def tidy() -> None:
        """Tidy."""
        raise_other()

    @tool
    async def act(key: str, context: ToolContext) -> str:
        """Act."""
        try:
            raise RuntimeError(key)
        except RuntimeError:
            context.progress(1)
            return (await context.run("tidy")).text

    def observer(event: Any) -> None:
        raise_other()

    with log_of("ferrule", "%(message)s") as written:
        spending = budget(tokens=9, reserve={"tokens": 1}, usage=observer)
        async with Runner([act.bind(key=secret), tidy], observers=[observer], inside=[spending]) as runner:
            assert (await runner.run("act")).success
    log = written.getvalue()
    assert secret not in log
    assert log.count("KeyError: 'an error of its own'") == log.count("ValueError: broken") > 6
    assert "tool 'tidy' raised" in log and "budget: usage raised" in log


async def test_each_record_names_the_call_that_runs() -> None:
    @tool(read_only=True)
    async def act() -> str:
        """Act."""
        return "x" * 2_000

    artifacts = Artifacts(size=1_000)
    with log_of("ferrule", FORMAT) as written:
        runner = Runner([act], around=[limit_output(1_000, artifacts=artifacts)])
        assert (await runner.run(ToolCall("c1", "act"), principal="ada", session="s1")).success
        make_logger("ferrule").warning("a line of no call")
    first, second = written.getvalue().splitlines()
    assert first.startswith("WARNING act c1 s1 ada: the result of a call")
    assert second == "WARNING None None None None: a line of no call"


@pytest.mark.parametrize("name", ["ferrule", "ferrule.mcp", "ferrule.cli"])
@given(texts=st.lists(st.text(), min_size=3, max_size=3))
def test_no_logged_text_begins_a_line(name: str, texts: list[str]) -> None:
    logger = make_logger(name)
    with log_of(name, "> %(message)s") as written:
        logger.info("%s %r %.5r", *texts)
        logger.info("%(one)s", {"one": texts[0]})
        logger.info(texts[0].replace("%", ""))
        logger.info("%s", KeyError(texts[1]), exc_info=ValueError(texts[2]))
    check(written.getvalue(), ">")
