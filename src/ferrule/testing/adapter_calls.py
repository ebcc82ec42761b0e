"""`AdapterCalls`: the promises about calls that every adapter makes, whether or not a call can wait for a person."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar
from unittest import SkipTest

from ferrule.definition.bounds import Waits
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.runner import Runner
from ferrule.testing.bounded import in_time
from ferrule.testing.expected import expect, expect_failure, logged, seen_of
from ferrule.testing.framework import Driven, Framework, Said, Seen
from ferrule.testing.world import PNG, World
from ferrule.values.event import Event

_NAMES = ("ctx", "self", "runtime", "config", "context", "function")
"""Parameter names with a meaning of their own in some frameworks."""
LOOK = Said("c2", "look", {"name": "x"})
ENDS = ("tool:post", "tool:error")


class AdapterCalls:
    """The promises of every adapter, whether or not a call can wait there for a person."""

    framework: ClassVar[Framework]
    """The framework under test."""
    _options: ClassVar[Mapping[str, Any]] = {}
    """Further options of the runners."""

    def drive(self, world: World, *calls: Said, **options: Any) -> Driven:
        """Return a run of these calls, with options for its runner."""
        return in_time(self._framework().drive(self._runner(world, **options), *calls))

    # -- results ------------------------------------------------------------------------------------------------------

    def test_a_call_runs_with_the_deps_and_in_the_session_of_the_framework(self) -> None:
        world = World()
        expect(self.drive(world, LOOK), c2=Seen("saw x"))
        assert world.deps == ["DEPS"], f"its deps were {world.deps}, and not ['DEPS']"
        assert all(world.sessions), f"without a session no call is known again; it had {world.sessions}"
        who = "ada" if self.framework.has_principals else None
        assert world.principals == {who}, f"it ran for {world.principals}, and not for {who!r}"

    def test_wrong_arguments_are_answered_with_what_would_be_right_and_nothing_runs(self) -> None:
        world = World()
        driven = self.drive(world, Said("c1", "look", {"nme": "x"}), LOOK)
        expect_failure(driven, "c1", tells="name")
        expect(driven, c2=Seen("saw x"))
        assert len(world.deps) == 1, f"look ran {len(world.deps)} times, and not once"

    def test_text_that_is_nearly_json_is_repaired_where_it_reaches_us(self) -> None:
        self._only_where(self.framework.malformed_text, "text that is no JSON does not reach the adapter")
        expect(self.drive(World(), Said("c1", "look", '{"name": "x",}')), c1=Seen("saw x"))

    def test_a_picture_arrives_as_a_picture(self) -> None:
        seen = seen_of(self.drive(World(), Said("c1", "picture")), "c1")
        assert seen.media == (PNG,) and "a dot" in seen.text, f"of a picture and 'a dot' the model has {seen}"

    def test_an_exception_is_told_as_a_failure_without_its_text(self) -> None:
        driven = self.drive(World(), Said("c1", "explode"), LOOK)
        expect_failure(driven, "c1", hides="secret")
        expect(driven, c2=Seen("saw x"))

    def test_a_call_that_outlives_its_deadline_is_told_as_a_failure(self) -> None:
        driven = self.drive(World(), Said("c1", "late"), LOOK)
        expect_failure(driven, "c1", tells="0.05 s")
        expect(driven, c2=Seen("saw x"))

    def test_a_call_that_gets_no_slot_is_told_as_a_failure(self) -> None:
        def release(event: Event) -> None:
            if event.kind == "tool:error":
                world.released.set()

        world = World()
        calls = Said("c1", "hold"), Said("c2", "hold")  # the framework decides which of them comes first
        driven = self.drive(world, *calls, concurrency=1, waits=Waits(slot=0.05), observers=[release])
        read = [seen_of(driven, "c1"), seen_of(driven, "c2")]
        held, refused = sorted(read, key=lambda seen: seen.failed)
        assert held == Seen("held") and refused.failed and "hold" in refused.text, f"of two the model reads {read}"

    def test_a_name_that_no_tool_has_runs_nothing(self) -> None:
        world = World()
        driven = self.drive(world, Said("c1", "pays", {"to": "ada"}), LOOK)
        expect(driven, c2=Seen("saw x"))
        world.expect_paid({})
        assert not driven.questions, f"a person is asked {driven.questions} about a tool that is not there"

    def test_calls_that_may_run_beside_each_other_do(self) -> None:
        driven = self.drive(World(), Said("c1", "meet", {"name": "a"}), Said("c2", "meet", {"name": "b"}))
        expect(driven, c1=Seen("met a"), c2=Seen("met b"))

    def test_a_parameter_may_have_any_name(self) -> None:
        for name in _NAMES:
            driven = in_time(self._framework().drive(Runner([_with_parameter(name)]), Said("c1", "named", {name: "x"})))
            expect(driven, c1=Seen(f"{name} is x"))

    def test_progress_from_a_thread_arrives(self) -> None:
        driven = self.drive(World(), Said("c1", "count", {"to": 3}))
        assert not seen_of(driven, "c1").failed, f"of a call that counts the model reads {seen_of(driven, 'c1')}"
        if self.framework.tells_progress:
            steps = [("c1", step, 3, f"step {step}") for step in (1, 2, 3)]
            assert driven.progress == steps, f"told was {driven.progress}, and not {steps}"

    def test_a_run_that_is_cancelled_cancels_its_calls(self) -> None:
        async def run() -> list[str]:
            ended, has_ended = list[str](), asyncio.Event()

            def note(event: Event) -> None:
                if event.kind in ENDS:
                    ended.append(event.data["result"].status)
                    has_ended.set()

            runner = self._runner(world, observers=[note])
            task = asyncio.ensure_future(self._framework().drive(runner, Said("c1", "wait")))
            entered = asyncio.ensure_future(world.entered.wait())
            await asyncio.wait({task, entered}, return_when=asyncio.FIRST_COMPLETED)
            assert entered.done(), f"the call has not begun; of the run came {(await task).results}"
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await has_ended.wait()  # a protocol between may take a while; a call that goes on meets its deadline
            await runner.__aexit__()
            return ended

        world = World()
        ended = in_time(run())
        assert ended == ["cancelled"], f"the call of a run that was cancelled has ended as {ended}"

    def test_an_approver_of_the_runner_answers_at_once(self) -> None:
        world = World()
        driven = self.drive(world, Said("c1", "pay", {"to": "ada"}), approve=lambda call, decision, context: True)
        expect(driven, c1=Seen("paid 1 EUR to ada"))

    def test_a_runner_without_a_journal_is_told_of(self) -> None:
        with logged() as told:
            self.drive(World(), LOOK)
        assert "no journal" in "\n".join(told), f"the log does not say that there is no journal; it says {told}"

    # -- running ------------------------------------------------------------------------------------------------------

    def _framework(self) -> Framework:
        framework = getattr(self, "framework", None)
        if not isinstance(framework, Framework):
            raise DefinitionError(f"{type(self).__name__} needs an attribute framework = YourFramework()")
        return framework

    def _runner(self, world: World, **options: Any) -> Runner:
        return world.runner(**{**self._options, **options})

    def _only_where(self, holds: bool, why_not: str) -> None:
        """Skip a test if the framework has nothing to drive it through."""
        if not holds:
            raise SkipTest(why_not)


def _with_parameter(name: str) -> Tool:
    """Return a tool that returns its one argument. The argument has this name."""

    async def handler(payload: dict[str, Any]) -> str:
        return f"{name} is {payload[name]}"

    schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    return Tool("named", handler, description="Named.", input_schema=schema, read_only=True)
