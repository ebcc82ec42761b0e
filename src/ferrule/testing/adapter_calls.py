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
from ferrule.testing.expected import capture_log, expect, expect_failure, read_seen
from ferrule.testing.framework import Framework, FrameworkRun, ModelView, ScriptedCall
from ferrule.testing.world import PNG, World
from ferrule.values.event import Event

_NAMES = ("ctx", "self", "runtime", "config", "context", "function")
"""Parameter names with a meaning of their own in some frameworks."""
_NO_OVERLAP = "its calls run one after the other"
LOOK = ScriptedCall("c2", "look", {"name": "x"})
ENDS = ("tool:post", "tool:error")


class AdapterCalls:
    """The promises of every adapter, whether or not a call can wait there for a person."""

    framework: ClassVar[Framework]
    """The framework under test."""
    _options: ClassVar[Mapping[str, Any]] = {}
    """Further options of the runners."""

    def start_run(self, world: World, *calls: ScriptedCall, **options: Any) -> FrameworkRun:
        """Return a run of these calls, with options for its runner."""
        return in_time(self._framework().start_run(self._runner(world, **options), *calls))

    # -- results ------------------------------------------------------------------------------------------------------

    def test_a_call_has_the_deps_and_the_session_of_the_framework(self) -> None:
        world = World()
        expect(self.start_run(world, LOOK), c2=ModelView("saw x"))
        assert world.deps == ["DEPS"], f"its deps were {world.deps}, and not ['DEPS']"
        assert all(world.sessions), f"without a session no call is known again; it had {world.sessions}"
        who = "ada" if self.framework.has_principals else None
        assert world.principals == {who}, f"it ran for {world.principals}, and not for {who!r}"

    def test_wrong_arguments_run_nothing_and_the_error_names_the_right_ones(self) -> None:
        world = World()
        driven = self.start_run(world, ScriptedCall("c1", "look", {"nme": "x"}), LOOK)
        expect_failure(driven, "c1", includes="name")
        expect(driven, c2=ModelView("saw x"))
        assert len(world.deps) == 1, f"look ran {len(world.deps)} times, and not once"

    def test_nearly_valid_json_is_repaired(self) -> None:
        self._skip_unless(self.framework.malformed_text, "text that is no JSON does not reach the adapter")
        expect(self.start_run(World(), ScriptedCall("c1", "look", '{"name": "x",}')), c1=ModelView("saw x"))

    def test_a_picture_arrives_as_a_picture(self) -> None:
        seen = read_seen(self.start_run(World(), ScriptedCall("c1", "picture")), "c1")
        assert seen.media == (PNG,) and "a dot" in seen.text, f"of a picture and 'a dot' the model has {seen}"

    def test_an_exception_becomes_a_failure_without_its_text(self) -> None:
        driven = self.start_run(World(), ScriptedCall("c1", "explode"), LOOK)
        expect_failure(driven, "c1", excludes="secret")
        expect(driven, c2=ModelView("saw x"))

    def test_a_call_past_its_deadline_becomes_a_failure(self) -> None:
        driven = self.start_run(World(), ScriptedCall("c1", "late"), LOOK)
        expect_failure(driven, "c1", includes="0.05 s")
        expect(driven, c2=ModelView("saw x"))

    def test_a_call_without_a_slot_becomes_a_failure(self) -> None:
        self._skip_unless(self.framework.overlaps_calls, _NO_OVERLAP)

        def release(event: Event) -> None:
            if event.kind == "tool:error":
                world.released.set()

        world = World()
        calls = (
            ScriptedCall("c1", "hold"),
            ScriptedCall("c2", "hold"),
        )  # the framework decides which of them comes first
        driven = self.start_run(world, *calls, concurrency=1, waits=Waits(slot=0.05), observers=[release])
        read = [read_seen(driven, "c1"), read_seen(driven, "c2")]
        held, refused = sorted(read, key=lambda seen: seen.failed)
        assert held == ModelView("held") and refused.failed and "hold" in refused.text, f"of two the model reads {read}"

    def test_an_unknown_tool_name_runs_nothing(self) -> None:
        world = World()
        driven = self.start_run(world, ScriptedCall("c1", "pays", {"to": "ada"}), LOOK)
        expect(driven, c2=ModelView("saw x"))
        world.expect_paid({})
        assert not driven.questions, f"a person is asked {driven.questions} about a tool that is not there"

    def test_parallel_calls_run_at_the_same_time(self) -> None:
        self._skip_unless(self.framework.overlaps_calls, _NO_OVERLAP)
        driven = self.start_run(
            World(), ScriptedCall("c1", "meet", {"name": "a"}), ScriptedCall("c2", "meet", {"name": "b"})
        )
        expect(driven, c1=ModelView("met a"), c2=ModelView("met b"))

    def test_a_parameter_can_have_any_name(self) -> None:
        for name in _NAMES:
            driven = in_time(
                self._framework().start_run(Runner([_with_parameter(name)]), ScriptedCall("c1", "named", {name: "x"}))
            )
            expect(driven, c1=ModelView(f"{name} is x"))

    def test_progress_from_a_thread_arrives(self) -> None:
        driven = self.start_run(World(), ScriptedCall("c1", "count", {"to": 3}))
        assert not read_seen(driven, "c1").failed, f"of a call that counts the model reads {read_seen(driven, 'c1')}"
        if self.framework.tells_progress:
            steps = [("c1", step, 3, f"step {step}") for step in (1, 2, 3)]
            assert driven.progress == steps, f"told was {driven.progress}, and not {steps}"

    def test_a_cancelled_run_cancels_its_calls(self) -> None:
        async def run() -> list[str]:
            ended, has_ended = list[str](), asyncio.Event()

            def note(event: Event) -> None:
                if event.kind in ENDS:
                    ended.append(event.data["result"].status)
                    has_ended.set()

            runner = self._runner(world, observers=[note])
            task = asyncio.ensure_future(self._framework().start_run(runner, ScriptedCall("c1", "wait")))
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

    def test_the_approver_of_the_runner_answers_at_once(self) -> None:
        world = World()
        driven = self.start_run(
            world, ScriptedCall("c1", "pay", {"to": "ada"}), approve=lambda call, decision, context: True
        )
        expect(driven, c1=ModelView("paid 1 EUR to ada"))

    def test_a_runner_without_a_journal_is_logged(self) -> None:
        with capture_log() as log_lines:
            self.start_run(World(), LOOK)
        assert "no journal" in "\n".join(log_lines), (
            f"the log does not say that there is no journal; it says {log_lines}"
        )

    # -- running ------------------------------------------------------------------------------------------------------

    def _framework(self) -> Framework:
        framework = getattr(self, "framework", None)
        if not isinstance(framework, Framework):
            raise DefinitionError(f"{type(self).__name__} needs an attribute framework = YourFramework()")
        return framework

    def _runner(self, world: World, **options: Any) -> Runner:
        return world.runner(**{**self._options, **options})

    def _skip_unless(self, holds: bool, why_not: str) -> None:
        """Skip a test if the framework has nothing to drive it through."""
        if not holds:
            raise SkipTest(why_not)


def _with_parameter(name: str) -> Tool:
    """Return a tool that returns its one argument. The argument has this name."""

    async def handler(payload: dict[str, Any]) -> str:
        return f"{name} is {payload[name]}"

    schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    return Tool("named", handler, description="Named.", input_schema=schema, read_only=True)
