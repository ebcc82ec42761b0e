"""The pytest fixtures of Ferrule: `fake_tools`, `recorder`, `cassette` and `manual_clock`.

This module is outside the package, and a fixture imports Ferrule only when a test uses it.

See docs/testing.md#fixtures.
"""

from __future__ import annotations

import hashlib
import re
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ferrule import Toolset
    from ferrule.testing import Cassette, ManualClock, Recorder

_LIBRARIES = {"site-packages", "asyncio"}
_HAS_PASSED: pytest.StashKey[bool] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("ferrule").addoption(
        "--cassettes",
        choices=("record", "replay", "strict"),
        default="replay",
        help="the mode of the fixture `cassette`: record the results of the tools, replay them, or replay "
        "them and require all of them in order (default: replay)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the calls of `recorder`, and the calls without a recording in `cassette`, to the report of a failed test."""
    report = yield
    if call.when == "call":
        item.stash[_HAS_PASSED] = report.passed
    if call.when == "call" and report.failed:
        conversation = getattr(_get_fixture(item, "recorder"), "conversation", None)
        if callable(conversation):
            report.sections.append(("calls of the tools (Ferrule)", str(conversation())))
        if misses := getattr(_get_fixture(item, "cassette"), "misses", None):
            report.sections.append(("calls without a recording (Ferrule)", "\n\n".join(map(str, misses))))
        if call.excinfo is not None and _is_of_contract(item):
            report.longrepr = _ContractFailure(call.excinfo)
    return report


def _is_of_contract(item: pytest.Item) -> bool:
    return str(getattr(getattr(item, "function", None), "__module__", "")).startswith("ferrule.testing.")


class _ContractFailure(str):
    """The failure of a contract: its sentence, and the frames of your own code without those of Ferrule."""

    reprcrash: Any

    def __new__(cls, failure: pytest.ExceptionInfo[BaseException]) -> _ContractFailure:
        frames = [frame for frame in traceback.extract_tb(failure.tb) if _is_own_code(Path(frame.filename))]
        text = str(failure.value) if isinstance(failure.value, AssertionError) else failure.exconly()
        failure_text = super().__new__(cls, "\n".join([text, "", *traceback.format_list(frames)]).rstrip())
        failure_text.reprcrash = SimpleNamespace(message=text)
        return failure_text


def _is_own_code(file: Path) -> bool:
    this_file = Path(__file__)
    return this_file != file and this_file.with_name("ferrule") not in file.parents and not _LIBRARIES & {*file.parts}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a passed test if its cassette lacked a recording."""
    __tracebackhide__ = True
    yield
    cassette: Any = _get_fixture(item, "cassette")
    if getattr(cassette, "misses", None):
        cassette.assert_done()


def _get_fixture(item: pytest.Item, fixture: str) -> object:
    return getattr(item, "funcargs", {}).get(fixture)


@pytest.fixture
def recorder() -> Recorder:
    """A `ferrule.testing.Recorder`, for `observers=[recorder]`; a failed test shows its calls."""
    from ferrule.testing import Recorder

    return Recorder()


@pytest.fixture
def fake_tools(request: pytest.FixtureRequest) -> Callable[..., Toolset]:
    """The function `ferrule.testing.fake`, with the same answers in each run of this test: `fake_tools([refund])`."""
    from ferrule.testing import fake

    def make_fakes(tools: Any, *, answers: Mapping[str, Any] | None = None, seed: int | str | None = None) -> Toolset:
        return fake(tools, answers=answers, seed=request.node.name if seed is None else seed)

    return make_fakes


@pytest.fixture
def manual_clock() -> ManualClock:
    """A `ferrule.testing.ManualClock`, for `clock=manual_clock`."""
    from ferrule.testing import ManualClock

    return ManualClock()


@pytest.fixture
def cassette(request: pytest.FixtureRequest) -> Iterator[Cassette]:
    """The `ferrule.testing.cassette` of this test, for `inside=[cassette]`: `cassettes/FILE/TEST.json` beside it.

    `pytest --cassettes=record` records it if the test passes. A call without a recording fails the test.
    """
    from ferrule.testing import cassette as open_cassette

    mode, path = request.config.getoption("--cassettes"), _find_cassette_path(request)
    if mode != "record" and not path.exists():
        pytest.fail(f"there is no recording {str(path)!r}: record it by pytest --cassettes=record", pytrace=False)
    recorded = open_cassette(path, mode)
    recorded.remedy = "pytest --cassettes=record"
    yield recorded
    passed = request.node.stash.get(_HAS_PASSED, False)
    recorded.close(save=passed)
    if passed:  # unused recordings, and later calls
        recorded.assert_done()


def _find_cassette_path(request: pytest.FixtureRequest) -> Path:
    test_name = request.node.nodeid.partition("::")[2]  # with its class
    name = re.sub(r"[^\w.-]+", "-", test_name.replace("::", "."))
    if not re.fullmatch(r"\w+(::\w+)*", test_name):  # two parameters may give the same name
        name += "-" + hashlib.sha256(test_name.encode()).hexdigest()[:8]
    return request.path.parent / "cassettes" / request.path.stem / f"{name}.json"
