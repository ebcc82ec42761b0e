"""Rules that look at the session and at the time: `after`, `before`, `within`, `at_most`, `more_than`, `during`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policies import findings_of, policy_of

from cast import Person
from ferrule import (
    DefinitionError,
    InputRequired,
    Journal,
    Runner,
    ToolCall,
    ToolContext,
    ToolError,
    allow,
    approval,
    ask,
    deny,
    tool,
)
from ferrule.journal.memory import MemoryJournal
from ferrule.policy.hours import Hours
from ferrule.policy.when import When
from ferrule.stores.store import Memory, StoreError
from ferrule.testing import ManualClock
from waits import until

MONDAY = datetime(2026, 11, 30, 10, tzinfo=UTC).timestamp()
DEPLOY = '[[rule]]\ndecide = "allow"\ntools = ["deploy"]\n'
BEFORE = '[[rule]]\ndecide = "deny"\ntools = ["deploy"]\nbefore = "run_tests"\n[[rule]]\ndecide = "allow"\n'
ALL = 'tools = ["*"]\n'


@tool(read_only=True)
async def run_tests(outcome: str = "ok") -> str:
    """Run the tests."""
    if outcome != "ok":
        raise ToolError("two tests failed")
    return "all passed"


@tool
async def deploy(place: str = "stage") -> str:
    """Deploy."""
    return f"deployed to {place}"


class Desk:
    """A runner with a policy, and with a clock that a test moves."""

    def __init__(self, folder: Path, *texts: str, journal: Journal | None = None, **options: Any) -> None:
        self.clock = ManualClock(now=MONDAY)
        self.policy = policy_of(folder, *texts)
        self.person = Person(deny("no"))
        given = {"guards": [self.policy], "approve": self.person, "clock": self.clock, **options}
        self.runner = Runner([run_tests, deploy], journal=journal, **given)

    async def status(self, name: str = "deploy", arguments: Any = None, **context: Any) -> str:
        result = await self.runner.run(name, arguments or {}, **{"session": "s", "principal": "ann", **context})
        return str(result.status)

    async def kind(self, **context: Any) -> str:
        call = ToolCall("", "deploy", {})
        return (await self.runner.decide(call, **{"session": "s", "principal": "ann", **context})).kind


# -- after, before, within ---------------------------------------------------------------------------------------------


async def test_an_allow_after_a_tool_needs_its_success_in_this_session(tmp_path: Path) -> None:
    desk = Desk(tmp_path, DEPLOY + 'after = "run_tests"')
    assert await desk.status() == "denied"
    assert await desk.status("run_tests", {"outcome": "bad"}) == "failed"
    assert await desk.status() == "denied"
    assert await desk.status("run_tests") == "ok"
    assert await desk.status() == "ok"
    assert await desk.status(session="other") == await desk.status(principal="eve") == "denied"
    assert await desk.status(session=None, principal=None) == "denied"


async def test_a_result_from_the_journal_is_no_new_run(tmp_path: Path) -> None:
    @tool
    async def release() -> str:
        """Release."""
        return "released"

    journal = Journal.open(tmp_path / "calls.db")
    policy = policy_of(tmp_path, 'allow = ["release"]\n' + DEPLOY + 'after = "release"\nwithin = "1h"')
    clock = ManualClock(now=MONDAY)
    runner = Runner([release, deploy], guards=[policy], journal=journal, clock=clock)
    call, context = ToolCall("7", "release", {}), ToolContext[Any](session="s")
    assert (await runner.run(call, context)).success
    await clock.advance(3601)
    assert (await runner.run(call, context)).is_replayed
    assert (await runner.run("deploy", {}, context)).status == "denied"
    journal.close()


@given(age=st.integers(0, 7200))
async def test_a_run_counts_for_as_long_as_within_says(age: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    desk = Desk(tmp_path_factory.mktemp("p"), DEPLOY + 'after = "run_tests"\nwithin = "1h"')
    await desk.status("run_tests")
    await desk.clock.advance(age)
    assert await desk.status() == ("ok" if age <= 3600 else "denied")


async def test_a_clock_that_goes_back_allows_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path, DEPLOY + 'after = "run_tests"\nwithin = "1h"')
    await desk.status("run_tests")
    earlier = desk.runner
    desk.runner = Runner([deploy], guards=[desk.policy], clock=ManualClock(now=MONDAY - 60))
    assert await desk.status() == "denied"
    desk.runner = earlier
    assert await desk.status() == "ok"


async def test_a_deny_before_a_tool_ends_with_its_success(tmp_path: Path) -> None:
    desk = Desk(tmp_path, BEFORE + ALL)
    assert await desk.status() == "denied"
    await desk.status("run_tests", {"outcome": "bad"})
    assert await desk.status() == "denied"
    await desk.status("run_tests")
    assert await desk.status() == "ok"


@pytest.mark.parametrize(
    "text",
    ['allow = ["*"]\n[[rule]]\ndecide = "deny"\ntools = ["deploy"]\nafter = "run_*"', DEPLOY + 'before = "run_tests"'],
)
async def test_a_deny_after_and_an_allow_before_a_tool_need_only_its_start(text: str, tmp_path: Path) -> None:
    desk = Desk(tmp_path, text)
    assert await desk.status() == "ok"
    await desk.status("run_tests", {"outcome": "bad"})
    assert await desk.status() == "denied"


async def test_a_mounted_tool_is_no_success_of_its_namesake_and_still_denies(tmp_path: Path) -> None:
    inner = Runner([run_tests])
    for text, expected in ((DEPLOY + 'after = "run_tests"', "denied"), (BEFORE + ALL, "denied")):
        desk = Desk(tmp_path, text)
        mounted = [one.replace(name="sub_run_tests") for one in inner.as_tools()]
        desk.runner = Runner([*mounted, deploy], guards=[desk.policy])
        assert await desk.status("sub_run_tests") == "ok"
        assert await desk.status() == expected
    stops = Desk(tmp_path, 'allow = ["*"]\n[[rule]]\ndecide = "deny"\ntools = ["deploy"]\nafter = "run_tests"')
    stops.runner = Runner([*mounted, deploy], guards=[stops.policy])
    await stops.status("sub_run_tests")
    assert await stops.status() == "denied"


# -- counts ------------------------------------------------------------------------------------------------------------


@given(calls=st.integers(1, 12), limit=st.integers(1, 8), per=st.sampled_from(["session", "day"]), denies=st.booleans())
async def test_parallel_calls_never_pass_a_count(
    calls: int, limit: int, per: str, denies: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    key = "more_than" if denies else "at_most"
    decide = 'allow = ["deploy"]\n[[rule]]\ndecide = "deny"' if denies else '[[rule]]\ndecide = "allow"'
    text = f'{decide}\ntools = ["deploy"]\n{key} = {limit}\nper = "{per}"'
    desk = Desk(tmp_path_factory.mktemp("p"), text)
    found = await asyncio.gather(*(desk.status() for _ in range(calls)))
    assert found.count("ok") == min(calls, limit)


@pytest.mark.large
async def test_two_processes_share_a_count(tmp_path: Path) -> None:
    text = DEPLOY + "at_most = 3"
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, sys\nfrom ferrule import Journal, Runner, tool\nfrom ferrule.guards import rules\n"
        "@tool\nasync def deploy() -> str:\n    return 'deployed'\n"
        "async def main():\n"
        "    journal = Journal.open(sys.argv[1])\n"
        "    runner = Runner([deploy], guards=[rules(sys.argv[2])], journal=journal)\n"
        "    many = (runner.run('deploy', {}, session='s') for _ in range(6))\n"
        "    print(sum(one.success for one in await asyncio.gather(*many)))\n"
        "    journal.close()\n"
        "asyncio.run(main())\n"
    )
    (tmp_path / "p.toml").write_text(text)
    command = [sys.executable, program, tmp_path / "calls.db", tmp_path / "p.toml"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    counts = [int((await asyncio.to_thread(one.communicate))[0]) for one in running]
    assert sum(counts) == 3


async def test_a_count_belongs_to_a_principal_and_a_session_or_to_a_day(tmp_path: Path) -> None:
    desk = Desk(tmp_path, DEPLOY + "at_most = 1")
    assert [await desk.status() for _ in range(2)] == ["ok", "denied"]
    assert await desk.status(session="other") == await desk.status(principal="eve") == "ok"

    desk = Desk(tmp_path, DEPLOY + 'at_most = 1\nper = "day"')
    assert [await desk.status(session=one) for one in ("s", "other")] == ["ok", "denied"]
    assert await desk.status(principal="eve") == "ok"
    await desk.clock.advance(86_399)
    assert await desk.status() == "denied"
    await desk.clock.advance(1)
    assert await desk.status() == "ok"


async def test_what_does_not_run_is_not_counted(tmp_path: Path) -> None:
    answers = [deny("first"), ask("later"), None, None]

    def moody(call: ToolCall, context: ToolContext) -> Any:
        return answers.pop(0)

    policy = policy_of(tmp_path, DEPLOY + "at_most = 1")
    runner = Runner([deploy], guards=[policy, moody], approve=Person(deny("no")))
    statuses = [(await runner.run("deploy", {}, session="s")).status for _ in range(4)]
    assert statuses == ["denied", "denied", "ok", "denied"]


async def test_a_suspended_call_is_counted_once_when_it_is_resumed(tmp_path: Path) -> None:
    @tool
    async def book(context: ToolContext) -> str | InputRequired:
        """Book."""
        return "booked" if context.answer is not None else InputRequired("sure?", {"type": "object"})

    text = 'allow = ["book"]\n[[rule]]\ndecide = "deny"\ntools = ["book"]\nmore_than = 1'
    runner = Runner([book], guards=[policy_of(tmp_path, text)], approve=approval.later)
    first = await runner.run("book", {}, session="s")
    assert first.status == "suspended"
    assert (await runner.run("book", {}, session="s")).status == "denied"
    assert (await runner.resume(first, allow({}))).output == "booked"


async def test_changed_arguments_are_counted_by_the_rules_that_they_fit(tmp_path: Path) -> None:
    def to_stage(call: ToolCall, context: ToolContext) -> Any:
        return {"place": "stage"} if call.arguments["place"] == "prod" else None

    text = "".join(
        f'{DEPLOY}arguments = {{ place = {{ equals = "{place}" }} }}\nat_most = 1\n' for place in ("stage", "prod")
    )
    policy = policy_of(tmp_path, text)
    changing = Runner([deploy], guards=[policy, to_stage])
    assert (await changing.run("deploy", {"place": "prod"}, session="s")).output == "deployed to stage"
    plain = Runner([deploy], guards=[policy])
    statuses = [(await plain.run("deploy", {"place": one}, session="s")).status for one in ("prod", "stage")]
    assert statuses == ["ok", "denied"]


async def test_the_memory_of_a_policy_survives_a_restart(tmp_path: Path) -> None:
    text = BEFORE + ALL + '[[rule]]\ndecide = "deny"\ntools = ["deploy"]\nmore_than = 1'
    for expected in (["denied", "ok", "ok"], ["denied", "ok", "denied"]):
        journal = Journal.open(tmp_path / "calls.db")
        desk = Desk(tmp_path, text, journal=journal)
        found = [await desk.status(), await desk.status("run_tests"), await desk.status()]
        assert found == expected
        journal.close()


# -- a store that fails ------------------------------------------------------------------------------------------------


class Broken(Memory):
    """A store that can neither be read nor changed while it is `broken`."""

    broken = True

    def get(self, key: str) -> Any:
        if self.broken:
            raise StoreError("no disk")
        return super().get(key)


def kept_in(store: Memory) -> Journal:
    """A journal with this store."""

    class Kept(MemoryJournal):
        @property
        def store(self) -> Memory:
            return store

    return Kept()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DEPLOY + 'after = "run_tests"', "ask"),
        (DEPLOY + "at_most = 3", "ask"),
        (DEPLOY + 'before = "run_tests"', "ask"),
        ('allow = ["*"]\n[[rule]]\ndecide = "deny"\ntools = ["deploy"]\nmore_than = 3', "ask"),
        ('mode = "never_ask"\n' + DEPLOY + "at_most = 3", "deny"),
    ],
)
async def test_a_rule_without_its_state_never_allows(text: str, expected: str, tmp_path: Path) -> None:
    desk = Desk(tmp_path, text, journal=kept_in(Broken()))
    assert await desk.kind() == expected
    assert await desk.status() == "denied" and len(desk.person.questions) == (expected == "ask")


async def test_a_run_that_cannot_be_stored_still_denies(tmp_path: Path) -> None:
    store, text = Broken(), 'allow = ["*"]\n[[rule]]\ndecide = "deny"\ntools = ["deploy"]\nafter = "run_*"'
    desk = Desk(tmp_path, text, journal=kept_in(store))
    await desk.status("run_tests")
    store.broken = False
    assert await desk.status() == "denied"


# -- hours -------------------------------------------------------------------------------------------------------------


async def test_hours_are_those_of_the_runners_clock(tmp_path: Path) -> None:
    desk = Desk(tmp_path, DEPLOY + 'during = "Mon-Fri 09:00-17:00"')
    assert await desk.status() == "ok"
    await desk.clock.advance(7 * 3600)
    assert await desk.status() == "denied"
    desk = Desk(tmp_path, 'allow = ["*"]\n[[rule]]\ndecide = "deny"\ntools = ["deploy"]\noutside = "09:00-17:00"')
    assert await desk.status() == "ok"
    await desk.clock.advance(7 * 3600)
    assert await desk.status() == "denied"


@given(
    st.integers(0, 10_079), st.integers(0, 6), st.integers(0, 1439), st.integers(0, 1439).filter(lambda end: end % 60)
)
def test_hours_contain_the_minutes_from_their_start_to_their_end(minute: int, day: int, start: int, end: int) -> None:
    if start == end:
        return
    name = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"][day]
    hours = Hours(f"{name} {start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}")
    monday = datetime(2026, 11, 30, tzinfo=UTC).timestamp()
    length = (end - start) % 1440
    assert hours.contains(monday + 60 * minute) == ((minute - day * 1440 - start) % 10_080 < length)


# -- files and tests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('within = "1h"', "goes with after or before"),
        ('per = "day"', "goes with at_most or more_than"),
        ("at_most = 0", "from 1 to 1000"),
        ("at_most = true", "a number of calls"),
        ("more_than = 3", "for decide"),
        ('at_most = 3\n[[rule]]\ndecide = "deny"\ntools = ["deploy"]\nat_most = 3', "write more_than"),
        ('after = "run_tests"\nwithin = "soon"', "no duration"),
        ('at_most = 3\nper = "week"', '"session" or "day"'),
        ('during = "nine to five"', "no hours"),
        ('during = "25:00-26:00"', "times are 00:00 to 24:00"),
        ('during = "09:00-17:00 Mars/Olympus"', "no known time zone"),
        ("after = 3", "after is text"),
    ],
)
def test_a_wrong_condition_is_an_error_with_its_line(line: str, error: str) -> None:
    [finding] = [one for one in findings_of(DEPLOY + line) if one.level == "error"]
    assert error in finding.text and finding.line in (1, 5)


def test_a_run_of_an_unknown_tool_is_a_warning() -> None:
    found = findings_of(DEPLOY + 'after = "run_test"', tools=[deploy, run_tests])
    assert [one.level for one in found] == ["warning"] and "did you mean 'run_tests'" in found[0].text


def test_a_conditional_rule_does_not_make_others_redundant() -> None:
    assert When(after="run_tests") != When(after="run_tests", within=60)
    assert (
        findings_of('allow = ["deploy"]\n[[rule]]\ndecide = "deny"\ntools = ["deploy"]\noutside = "09:00-17:00"') == []
    )


async def test_a_policy_that_cannot_see_the_runs_it_looks_for_is_refused(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, DEPLOY + 'after = "run_tests"')
    guarded = tool(guards=[policy])(deploy.handler)
    with pytest.raises(DefinitionError, match="looks for runs of 'run_tests', and does not guard it"):
        Runner([run_tests, guarded])


async def test_a_count_that_cannot_be_changed_allows_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Full(Memory):
        def compare_and_set(self, key: str, old: Any, new: Any) -> bool:
            raise StoreError("the disk is full")

    desk = Desk(tmp_path, DEPLOY + "at_most = 3", journal=kept_in(Full()))
    assert await desk.status() == "denied"
    assert [one.message for one in caplog.records if "cannot count" in one.message] == [caplog.records[0].message]


async def test_a_background_job_is_no_success_before_it_ends_and_is_counted_once(tmp_path: Path) -> None:
    passes = asyncio.Event()

    @tool(background=True)
    async def check() -> str:
        """Check all."""
        await passes.wait()
        return "all passed"

    text = '[[rule]]\ndecide = "allow"\ntools = ["check"]\nat_most = 2\n' + DEPLOY + 'after = "check"'
    runner = Runner([check, deploy], guards=[policy_of(tmp_path, text)])
    context = ToolContext[Any](session="s")
    assert (await runner.run("check", {}, context)).success
    assert (await runner.run("deploy", {}, context)).status == "denied"
    passes.set()
    await until(lambda: runner.jobs[0].result is not None)
    assert (await runner.run("deploy", {}, context)).success
    assert [(await runner.run("check", {}, context)).status for _ in range(2)] == ["ok", "denied"]
    await runner.__aexit__()
