"""The fixtures that pytest has where Ferrule is installed: `fake_tools`, `recorder`, `cassette` and `manual_clock`.

It stands beside the package, and imports of it what a fixture needs when a test asks for that: a run of pytest that
uses none of them does not import Ferrule. See docs/testing.md#fixtures.
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
_PASSED: pytest.StashKey[bool] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("ferrule").addoption(
        "--cassettes",
        choices=("record", "replay", "strict"),
        default="replay",
        help="what the fixture `cassette` does: run the tools and write what they give, give that again, or give it "
        "again and want all of it in order (default: replay)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show beneath a test that failed what its `recorder` has seen, and what its `cassette` did not have."""
    report = yield
    if call.when == "call":
        item.stash[_PASSED] = report.passed
    if call.when == "call" and report.failed:
        shown = getattr(_given(item, "recorder"), "conversation", None)
        if callable(shown):
            report.sections.append(("what the tools were called with (Ferrule)", str(shown())))
        if misses := getattr(_given(item, "cassette"), "misses", None):
            report.sections.append(("calls without a recording (Ferrule)", "\n\n".join(map(str, misses))))
        if call.excinfo is not None and _is_of_contract(item):
            report.longrepr = _ContractFailure(call.excinfo)
    return report


def _is_of_contract(item: pytest.Item) -> bool:
    return str(getattr(getattr(item, "function", None), "__module__", "")).startswith("ferrule.testing.")


class _ContractFailure(str):
    """What a contract found: its sentence, and the frames of your own code. Those of Ferrule say nothing to you."""

    reprcrash: Any

    def __new__(cls, failure: pytest.ExceptionInfo[BaseException]) -> _ContractFailure:
        frames = [frame for frame in traceback.extract_tb(failure.tb) if _is_own_code(Path(frame.filename))]
        text = str(failure.value) if isinstance(failure.value, AssertionError) else failure.exconly()
        made = super().__new__(cls, "\n".join([text, "", *traceback.format_list(frames)]).rstrip())
        made.reprcrash = SimpleNamespace(message=text)
        return made


def _is_own_code(file: Path) -> bool:
    ours = Path(__file__)
    return ours != file and ours.with_name("ferrule") not in file.parents and not _LIBRARIES & {*file.parts}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """A test that passes, and whose cassette did not have what was called, fails."""
    __tracebackhide__ = True
    yield
    cassette: Any = _given(item, "cassette")
    if getattr(cassette, "misses", None):
        cassette.assert_done()


def _given(item: pytest.Item, fixture: str) -> object:
    return getattr(item, "funcargs", {}).get(fixture)


@pytest.fixture
def recorder() -> Recorder:
    """A `ferrule.testing.Recorder`, for `observers=[recorder]`; a test that fails shows what it has seen."""
    from ferrule.testing import Recorder

    return Recorder()


@pytest.fixture
def fake_tools(request: pytest.FixtureRequest) -> Callable[..., Toolset]:
    """`ferrule.testing.fake`, whose answers are the same in each run of this test: `fake_tools([refund])`."""
    from ferrule.testing import fake

    def made(tools: Any, *, answers: Mapping[str, Any] | None = None, seed: int | str | None = None) -> Toolset:
        return fake(tools, answers=answers, seed=request.node.name if seed is None else seed)

    return made


@pytest.fixture
def manual_clock() -> ManualClock:
    """A `ferrule.testing.ManualClock`, for `clock=manual_clock`."""
    from ferrule.testing import ManualClock

    return ManualClock()


@pytest.fixture
def cassette(request: pytest.FixtureRequest) -> Iterator[Cassette]:
    """The `ferrule.testing.cassette` of this test, for `inside=[cassette]`: `cassettes/FILE/TEST.json` beside it.

    `pytest --cassettes=record` records it, where the test passes. A call without a recording fails the test.
    """
    from ferrule.testing import cassette as opened

    mode, path = request.config.getoption("--cassettes"), _path_of(request)
    if mode != "record" and not path.exists():
        pytest.fail(f"there is no recording {path}: make it with pytest --cassettes=record", pytrace=False)
    made = opened(path, mode)
    made.remedy = "pytest --cassettes=record"
    yield made
    passed = request.node.stash.get(_PASSED, False)
    made.close(keep=passed)
    if passed:  # what is left over, and what came since
        made.assert_done()


def _path_of(request: pytest.FixtureRequest) -> Path:
    place = request.node.nodeid.partition("::")[2]  # with its class
    name = re.sub(r"[^\w.-]+", "-", place.replace("::", "."))
    if not re.fullmatch(r"\w+(::\w+)*", place):  # two parameters may come out the same
        name += "-" + hashlib.sha256(place.encode()).hexdigest()[:8]
    return request.path.parent / "cassettes" / request.path.stem / f"{name}.json"
