"""The fixtures that pytest has where Ferrule is installed: `fake_tools`, `recorder`, `cassette` and `manual_clock`.

It stands beside the package, and imports of it what a fixture needs when a test asks for that: a run of pytest that
uses none of them does not import Ferrule. See docs/testing.md#fixtures.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ferrule import Toolset
    from ferrule.testing import Cassette, ManualClock, Recorder

_FAILED: pytest.StashKey[bool] = pytest.StashKey()


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
    """Show the conversation beneath a test that failed, where it has the fixture `recorder`."""
    report = yield
    if call.when == "call" and report.failed:
        item.stash[_FAILED] = True
        shown = getattr(getattr(item, "funcargs", {}).get("recorder"), "conversation", None)
        if callable(shown):
            report.sections.append(("what the tools were called with (Ferrule)", str(shown())))
    return report


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

    `pytest --cassettes=record` records it. A call without a recording fails the test at its end, if nothing else did.
    """
    from ferrule.testing import cassette as opened

    mode, path = request.config.getoption("--cassettes"), _path_of(request)
    if mode != "record" and not path.exists():
        pytest.fail(f"there is no recording {path}: make it with pytest --cassettes=record", pytrace=False)
    made = opened(path, mode)
    yield made
    made.close()
    if not request.node.stash.get(_FAILED, False):
        made.assert_done()


def _path_of(request: pytest.FixtureRequest) -> Path:
    name = re.sub(r"[^\w.-]+", "-", request.node.name)
    if name != request.node.name:  # two parameters may come out the same
        name += "-" + hashlib.sha256(request.node.name.encode()).hexdigest()[:8]
    return request.path.parent / "cassettes" / request.path.stem / f"{name}.json"
