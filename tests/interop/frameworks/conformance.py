"""What every adapter to a framework keeps, with the real framework and a scripted model.

A framework's own test file has a `Framework`, which drives it, and `class TestPydanticAI(Conformance)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import multiprocessing
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from ferrule import (
    DefinitionError,
    Event,
    Journal,
    Media,
    Runner,
    Text,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    ask,
    tool,
)
from ferrule.approval import later
from ferrule.guards import ask_before_changes
from ferrule.journal import memory
from ferrule.journal.memory import MemoryJournal
from ferrule.store import Memory, StoreError
from ferrule.values.frozen import thaw

NAMES = ("ctx", "self", "runtime", "config", "context", "function")
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Said:
    """A call as the scripted model makes it; its arguments as a dict, or as the text that it wrote."""

    id: str
    name: str
    arguments: dict[str, Any] | str = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What the model reads of one call."""

    text: str
    failed: bool = False
    media: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Question:
    """What a person is shown of one call."""

    arguments: Mapping[str, Any]
    reason: str = ""


class Driven(ABC):
    """A run of the framework, which has ended or waits for a person.

    Attributes:
        results: What the model reads, by call id, so far.
        questions: What waits, by call id.
        progress: What was told while the calls ran: call id, done, total, message.
    """

    def __init__(self) -> None:
        self.results: dict[str, Seen] = {}
        self.questions: dict[str, Question] = {}
        self.progress: list[tuple[str, float, float | None, str | None]] = []

    @abstractmethod
    async def answer(
        self,
        answers: Mapping[str, bool | dict[str, Any]],
        record: Literal["kept", "changed", "lost"] = "kept",
    ) -> None:
        """Give the answers to the run as it stood when it began to wait, by call id: yes, no, or yes to these arguments
        in place of what was sent. `questions` are then what waits now. The framework brings the record as it was,
        with another amount in it, or not at all. The second time, the same run is answered once more."""


class Framework(ABC):
    """How one framework is driven; each call of `drive` is a conversation of its own."""

    malformed_text: ClassVar[bool] = False
    """Whether text that is no JSON reaches the adapter."""
    edits: ClassVar[bool] = True
    """Whether a person can change the arguments."""
    waits_with_record: ClassVar[bool] = False
    """Whether the call itself waits, and has its record in its hands."""
    holds_yes: ClassVar[bool] = False
    """Whether the framework itself holds a yes to these arguments, so that a call runs by it where no guard asks."""
    brings_record: ClassVar[bool] = True
    """Whether the record travels with the answer."""
    asks_once: ClassVar[bool] = False
    """Whether a person can be asked only once about a call: the model is then told to make it again."""
    asks_about_changes: ClassVar[bool] = True
    """Whether a person is asked about a call that guards have changed: else the model is told what to send."""
    has_principals: ClassVar[bool] = False
    """Whether it knows on whose behalf a run is."""
    knows_calls: ClassVar[bool] = True
    """Whether a call that comes without its record is known to be the same."""
    tells_progress: ClassVar[bool] = True
    stores_data: ClassVar[bool] = False
    """Whether what is stored can be handed to a process as it is, and is no service."""

    @abstractmethod
    async def drive(self, runner: Runner, *calls: Said) -> Driven:
        """A run whose model makes these calls in its first turn, and then ends; with principal "ada" where there are
        principals, and deps "DEPS"."""

    def stored(self, waiting: Any) -> Any:
        """What another process takes the run that waits up from: what the framework stores, and the questions as a
        person has them; `None` where only the process that asked can be answered."""
        return None

    async def elsewhere(self, runner: Runner, stored: Any) -> Driven:
        """The run that waits, as another process that has this runner takes it up."""
        raise NotImplementedError


class World:
    """Tools that change something outside, and count it."""

    def __init__(self) -> None:
        self.paid: Counter[str] = Counter()
        self.deps: list[object] = []
        self.sessions: set[str | None] = set()
        self.principals: set[str | None] = set()
        self.released = asyncio.Event()
        self.entered = asyncio.Event()
        self.cancelled = 0
        self.both = asyncio.Barrier(2)

    def runner(self, **options: Any) -> Runner:
        world = self

        @tool
        async def pay(to: str, euros: int = 1) -> str:
            """Pay.

            Args:
                to: Whom.
                euros: How much.
            """
            world.paid[f"{to} {euros}"] += 1
            return f"paid {euros} EUR to {to}"

        @tool(read_only=True)
        async def look(name: str, context: ToolContext) -> str:
            """Look."""
            world.deps.append(context.deps)
            world.sessions.add(context.session)
            world.principals.add(context.principal)
            return f"saw {name}"

        @tool(read_only=True)
        async def picture() -> ToolResult:
            """A picture."""
            return ToolResult("a dot", content=[Text("a dot"), Media("image", PNG, "image/png")])

        @tool(read_only=True)
        async def meet(name: str) -> str:
            """Ends where two of it run at once."""
            await world.both.wait()
            return f"met {name}"

        @tool(read_only=True)
        async def wait() -> str:
            """Wait."""
            world.entered.set()
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                world.cancelled += 1
                raise
            return "never"

        @tool(read_only=True, timeout=0.05)
        async def late() -> str:
            """Outlives its deadline."""
            await asyncio.get_running_loop().create_future()
            return "never"

        @tool(read_only=True)
        async def hold() -> str:
            """Keeps its slot until it is released."""
            await world.released.wait()
            return "held"

        @tool(read_only=True)
        def count(to: int, context: ToolContext) -> str:
            """Count, in a thread."""
            for step in range(1, to + 1):
                context.progress(step, to, f"step {step}")
            return threading.current_thread().name

        @tool(read_only=True)
        async def explode() -> str:
            """Raises."""
            raise RuntimeError("the secret inside")

        options = {"guards": [ask_before_changes], "timeout": 20, **options}
        return Runner([pay, look, picture, meet, wait, late, hold, count, explode], **options)


def in_time(made: Coroutine[Any, Any, Any]) -> Any:
    """What it gives; a run that hangs fails."""
    return asyncio.run(asyncio.wait_for(made, 60))


def driven_where(holds: bool, why_not: str) -> None:
    """Say that a case is not driven, where a framework has nothing that it could be driven through."""
    if not holds:
        pytest.skip(why_not)


NOT_ELSEWHERE = "only the process that asked can be answered"
PAY = Said("c1", "pay", {"to": "ada", "euros": 5})


def answered_here(framework: Framework, path: Path, stored: Any) -> tuple[dict[str, Seen], Counter[str]]:
    """What the model reads and what was paid, where the call that waits is approved in this process."""

    async def run() -> Driven:
        with contextlib.closing(Journal.open(path)) as journal:
            driven = await framework.elsewhere(world.runner(journal=journal, resume_key=b"k" * 32), stored)
            await driven.answer({"c1": True})
            return driven

    world = World()
    return in_time(run()).results, world.paid


class Answers:
    """What every adapter keeps, whether or not a call can wait there for a person."""

    framework: ClassVar[Framework]
    options: ClassVar[Mapping[str, Any]] = {}
    """What the runners have besides."""

    def drive(self, world: World, *calls: Said, **options: Any) -> Driven:
        return in_time(self.framework.drive(world.runner(**{**self.options, **options}), *calls))

    # -- results ------------------------------------------------------------------------------------------------------

    def test_a_call_runs_with_the_deps_and_in_the_session_of_the_framework(self) -> None:
        world = World()
        driven = self.drive(world, Said("c1", "look", {"name": "x"}))
        assert driven.results["c1"] == Seen("saw x")
        assert world.deps == ["DEPS"]
        assert all(world.sessions), "without a session no call is known again"
        assert world.principals == {"ada" if self.framework.has_principals else None}

    def test_wrong_arguments_are_answered_with_what_would_be_right_and_nothing_runs(self) -> None:
        world = World()
        driven = self.drive(world, Said("c1", "look", {"nme": "x"}), Said("c2", "look", {"name": "y"}))
        assert "name" in driven.results["c1"].text and driven.results["c1"].failed
        assert driven.results["c2"] == Seen("saw y")
        assert len(world.deps) == 1

    def test_text_that_is_nearly_json_is_repaired_where_it_reaches_us(self) -> None:
        driven_where(self.framework.malformed_text, "text that is no JSON does not reach the adapter")
        driven = self.drive(World(), Said("c1", "look", '{"name": "x",}'))
        assert driven.results["c1"] == Seen("saw x")

    def test_a_picture_arrives_as_a_picture(self) -> None:
        driven = self.drive(World(), Said("c1", "picture"))
        assert driven.results["c1"].media == (PNG,)
        assert "a dot" in driven.results["c1"].text

    def test_an_exception_is_told_as_a_failure_without_its_text(self) -> None:
        driven = self.drive(World(), Said("c1", "explode"), Said("c2", "look", {"name": "x"}))
        assert driven.results["c1"].failed and "secret" not in driven.results["c1"].text
        assert driven.results["c2"] == Seen("saw x")

    def test_a_call_that_outlives_its_deadline_is_told_as_a_failure(self) -> None:
        driven = self.drive(World(), Said("c1", "late"), Said("c2", "look", {"name": "x"}))
        assert driven.results["c1"].failed and "0.05 s" in driven.results["c1"].text
        assert driven.results["c2"] == Seen("saw x")

    def test_a_call_that_gets_no_slot_is_told_as_a_failure(self) -> None:
        def release(event: Event) -> None:
            if event.kind == "tool:error":
                world.released.set()

        world = World()
        calls = Said("c1", "hold"), Said("c2", "hold")  # which of them comes first is the framework's affair
        driven = self.drive(world, *calls, concurrency=1, queue_timeout=0.05, observers=[release])
        held, refused = sorted(driven.results.values(), key=lambda one: one.failed)
        assert held == Seen("held")
        assert refused.failed and "hold" in refused.text

    def test_a_name_that_no_tool_has_runs_nothing(self) -> None:
        world = World()
        driven = self.drive(world, Said("c1", "pays", {"to": "ada"}), Said("c2", "look", {"name": "x"}))
        assert driven.results["c2"] == Seen("saw x")
        assert not world.paid

    def test_calls_that_may_run_beside_each_other_do(self) -> None:
        driven = self.drive(World(), Said("c1", "meet", {"name": "a"}), Said("c2", "meet", {"name": "b"}))
        assert driven.results == {"c1": Seen("met a"), "c2": Seen("met b")}

    @pytest.mark.parametrize("name", NAMES)
    def test_a_parameter_may_have_any_name(self, name: str) -> None:
        async def handler(payload: dict[str, Any]) -> str:
            return f"{name} is {payload[name]}"

        schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
        runner = Runner([Tool("named", handler, description="Named.", input_schema=schema, read_only=True)])
        driven = in_time(self.framework.drive(runner, Said("c1", "named", {name: "x"})))
        assert driven.results["c1"] == Seen(f"{name} is x")

    def test_progress_from_a_thread_arrives(self) -> None:
        driven = self.drive(World(), Said("c1", "count", {"to": 3}))
        assert not driven.results["c1"].failed
        if self.framework.tells_progress:
            assert driven.progress == [("c1", step, 3, f"step {step}") for step in (1, 2, 3)]

    def test_a_run_that_is_cancelled_cancels_its_calls(self) -> None:
        async def run() -> list[str]:
            ended: list[str] = []

            def note(event: Event) -> None:
                if event.kind in ("tool:post", "tool:error"):
                    ended.append(event.data["result"].status)

            runner = world.runner(**self.options, observers=[note])
            task = asyncio.ensure_future(self.framework.drive(runner, Said("c1", "wait")))
            await world.entered.wait()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await runner.__aexit__()
            return ended

        world = World()
        assert in_time(run()) == ["cancelled"]
        assert world.cancelled == 1

    def test_an_approver_of_the_runner_answers_at_once(self) -> None:
        world = World()
        driven = self.drive(world, Said("c1", "pay", {"to": "ada"}), approve=lambda call, decision, context: True)
        assert driven.results["c1"] == Seen("paid 1 EUR to ada")

    def test_a_runner_without_a_journal_is_told_of(self, caplog: pytest.LogCaptureFixture) -> None:
        self.drive(World(), Said("c1", "look", {"name": "x"}))
        assert "no journal" in caplog.text


class Blocking(Answers):
    """An adapter to a framework where no call can wait for a person."""

    options: ClassVar = {"approve": lambda call, decision, context: call.arguments["to"] == "ada"}

    def test_what_the_approver_says_no_to_does_not_run(self) -> None:
        world = World()
        driven = self.drive(world, Said("c1", "pay", {"to": "bob"}), Said("c2", "pay", {"to": "ada"}))
        assert driven.results["c1"].failed and driven.results["c2"] == Seen("paid 1 EUR to ada")
        assert world.paid == {"ada 1": 1}

    def test_tools_that_may_ask_are_refused_where_nobody_can_be_asked(self) -> None:
        with pytest.raises(DefinitionError, match="'pay' may ask a person"):
            in_time(self.framework.drive(World().runner(), Said("c1", "look", {"name": "x"})))

    def test_so_are_they_where_the_approver_says_that_it_puts_questions_off(self) -> None:
        with pytest.raises(DefinitionError, match="'pay' may ask a person"):
            in_time(self.framework.drive(World().runner(approve=later), Said("c1", "look", {"name": "x"})))

    def test_what_an_approver_puts_off_all_the_same_is_denied_and_has_ended(self) -> None:
        world, kinds = World(), list[str]()
        driven = self.drive(
            world,
            Said("c1", "pay", {"to": "ada"}),
            approve=lambda call, decision, context: decision,
            observers=[lambda event: kinds.append(event.kind)],
        )
        assert driven.results["c1"].failed and "no call can wait" in driven.results["c1"].text
        assert not world.paid
        assert [kind for kind in kinds if kind in ("tool:post", "tool:error")] == ["tool:error"]


class Conformance(Answers):
    """Every adapter to a framework where a call can wait for a person passes this."""

    def answered(
        self,
        world: World,
        answers: Mapping[str, bool | dict[str, Any]],
        *calls: Said,
        runner: dict[str, Any] | None = None,
        **given: Any,
    ) -> tuple[Driven, Driven]:
        """The run while it waits, and after the answers; with options for its runner."""

        async def run() -> tuple[Driven, Driven]:
            driven = await self.framework.drive(world.runner(**(runner or {})), *calls)
            waiting = copy.copy(driven)
            waiting.questions, waiting.results = dict(driven.questions), dict(driven.results)
            await driven.answer(answers, **given)
            return waiting, driven

        return in_time(run())

    def test_an_ask_waits_for_a_person_and_runs_when_it_is_approved(self) -> None:
        world = World()
        waiting, driven = self.answered(world, {"c1": True}, Said("c1", "pay", {"to": "ada", "euros": 5}))
        assert waiting.questions["c1"].arguments == {"to": "ada", "euros": 5}
        assert "pay changes things" in waiting.questions["c1"].reason
        assert driven.results["c1"] == Seen("paid 5 EUR to ada")
        assert world.paid == {"ada 5": 1}

    def test_a_no_runs_nothing_and_the_model_reads_it(self) -> None:
        world = World()
        _, driven = self.answered(world, {"c1": False}, Said("c1", "pay", {"to": "ada", "euros": 5}))
        assert "paid" not in driven.results["c1"].text
        assert not world.paid

    def test_a_person_may_change_what_runs(self) -> None:
        driven_where(self.framework.edits, "a person cannot change the arguments")
        world = World()
        edit = {"to": "ada", "euros": 4}
        _, driven = self.answered(world, {"c1": edit}, Said("c1", "pay", {"to": "ada", "euros": 5}))
        assert "paid 4 EUR to ada" in driven.results["c1"].text
        assert world.paid == {"ada 4": 1}

    def test_an_edit_that_changes_nothing_is_a_yes(self) -> None:
        driven_where(self.framework.edits, "a person cannot change the arguments")
        world = World()
        same = {"to": "ada", "euros": 5}
        _, driven = self.answered(world, {"c1": same}, Said("c1", "pay", same))
        assert "paid 5 EUR to ada" in driven.results["c1"].text
        assert world.paid == {"ada 5": 1}

    def test_a_yes_is_one_to_what_the_guards_made_of_the_call(self) -> None:
        def capped(call: ToolCall, context: ToolContext) -> Any:
            too_much = call.arguments["euros"] > 100
            return {**call.arguments, "euros": 100} if too_much else ask("it is money")

        world = World()
        call = Said("c1", "pay", {"to": "ada", "euros": 500})
        if not self.framework.asks_about_changes:
            driven = self.drive(world, call, guards=[capped])
            assert '"euros": 100' in driven.results["c1"].text
            assert not driven.questions and not world.paid
            return
        _, driven = self.answered(world, {"c1": True}, call, runner={"guards": [capped]})
        assert driven.results["c1"] == Seen("paid 100 EUR to ada")
        assert world.paid == {"ada 100": 1}

    def test_what_a_person_changes_is_judged_again(self) -> None:
        driven_where(self.framework.edits, "a person cannot change the arguments")
        world = World()
        edit = {"to": "ada", "euros": "many"}
        _, driven = self.answered(world, {"c1": edit}, Said("c1", "pay", {"to": "ada", "euros": 5}))
        assert "paid" not in driven.results.get("c1", Seen("")).text
        assert not world.paid

    async def answered_elsewhere(self, world: World, path: Path, keys: Sequence[bytes], **given: Any) -> Driven | None:
        """The run after a yes that was given once in each process but the first, which asks; each has a runner of its
        own, with this `resume_key`. `None` where no other process can be answered."""
        driven: Any = None
        for number, key in enumerate(keys):
            with contextlib.closing(Journal.open(path)) as journal:
                runner = world.runner(journal=journal, resume_key=key)
                if number == 0:
                    stored = self.framework.stored(await self.framework.drive(runner, PAY))
                    if stored is None:
                        return None
                else:
                    driven = await self.framework.elsewhere(runner, stored)
                    await driven.answer({"c1": True}, **given)
        return driven

    def test_an_answer_that_comes_to_a_process_of_its_own_runs_what_was_asked(self, tmp_path: Path) -> None:
        async def asked() -> Any:
            with contextlib.closing(Journal.open(path)) as journal:
                runner = world.runner(journal=journal, resume_key=b"k" * 32)
                return self.framework.stored(await self.framework.drive(runner, PAY))

        driven_where(self.framework.stores_data, "what is stored is a service")
        world, path = World(), tmp_path / "calls.db"
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as another:
            results, paid = another.submit(answered_here, self.framework, path, in_time(asked())).result(60)
        assert results["c1"] == Seen("paid 5 EUR to ada")
        assert paid == {"ada 5": 1} and not world.paid

    @pytest.mark.parametrize("record", ["kept", "lost"])
    def test_an_answer_that_comes_to_other_processes_runs_once_what_was_asked(
        self, record: str, tmp_path: Path
    ) -> None:
        driven_where(
            record == "kept" or (self.framework.brings_record and self.framework.knows_calls),
            "no record travels, or no call is known without it",
        )
        world, same_key = World(), [b"k" * 32] * 3
        driven = in_time(self.answered_elsewhere(world, tmp_path / "calls.db", same_key, record=record))
        driven_where(driven is not None, NOT_ELSEWHERE)
        assert driven.results["c1"] == Seen("paid 5 EUR to ada")
        assert world.paid == {"ada 5": 1}

    @pytest.mark.parametrize("record", ["kept", "lost"])
    def test_an_answer_that_comes_to_a_process_with_another_resume_key_is_asked_again_and_the_log_says_why(
        self, record: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        driven_where(
            record == "kept" or (self.framework.brings_record and self.framework.knows_calls),
            "no record travels, or no call is known without it",
        )
        world, other_key = World(), [b"k" * 32, b"o" * 32]
        driven = in_time(self.answered_elsewhere(world, tmp_path / "calls.db", other_key, record=record))
        driven_where(driven is not None, NOT_ELSEWHERE)
        assert not world.paid
        assert "resume_key" in caplog.text
        if self.framework.asks_once:
            told = driven.results["c1"].text
            assert "again" in told and "resume_key" not in told
        else:
            assert driven.questions["c1"].arguments == {"to": "ada", "euros": 5}

    def test_an_answer_that_comes_twice_runs_once(self) -> None:
        async def run() -> None:
            driven = await self.framework.drive(world.runner(), Said("c1", "pay", {"to": "ada"}))
            await driven.answer({"c1": True})
            await driven.answer({"c1": True})

        world = World()
        in_time(run())
        assert world.paid == {"ada 1": 1}

    def test_an_answer_with_a_record_that_was_changed_runs_nothing_but_what_was_asked(self) -> None:
        driven_where(self.framework.brings_record, "no record travels with the answer")
        world = World()
        call = Said("c1", "pay", {"to": "ada", "euros": 5})
        _, driven = self.answered(world, {"c1": True}, call, record="changed")
        assert not world.paid, driven.results

    @pytest.mark.parametrize("other", [True, False])
    def test_an_answer_to_a_call_that_somebody_else_has_answered_runs_nothing_more(self, other: bool) -> None:
        """Such as another process that has the same journal."""

        async def run() -> Driven:
            runner = world.runner(journal=memory())
            driven = await self.framework.drive(runner, Said("c1", "pay", {"to": "ada", "euros": 5}))
            [record] = runner.journal.store.items("interop ").values()
            await runner.resume(record, other)
            await driven.answer({"c1": True})
            return driven

        driven_where(self.framework.brings_record, "no record travels with the answer")
        world = World()
        driven = in_time(run())
        assert world.paid == ({"ada 5": 1} if other else {})
        assert ("paid 5 EUR to ada" in driven.results["c1"].text) is other

    def test_an_answer_without_any_record_is_asked_again(self) -> None:
        """One that neither came along nor is kept."""

        async def run() -> Driven:
            runner = world.runner(journal=memory())
            driven = await self.framework.drive(runner, Said("c1", "pay", {"to": "ada", "euros": 5}))
            records = runner.journal.store
            for key, value in records.items("interop ").items():
                assert records.compare_and_set(key, value, None)
            await driven.answer({"c1": True}, record="lost")
            return driven

        driven_where(self.framework.brings_record, "no record travels with the answer")
        world = World()
        driven = in_time(run())
        assert not world.paid
        if self.framework.asks_once:
            assert "make the call again" in driven.results["c1"].text
        else:
            assert "c1" in driven.questions

    @pytest.mark.parametrize("answer", [False, True])
    def test_a_record_that_is_gone_lets_no_call_run_because_the_guards_ask_no_more(self, answer: bool) -> None:
        """What the guards remember may be lost with the record, such as by a restart."""

        async def run() -> Driven:
            runner = world.runner(guards=[lambda call, context: ask("it is tainted") if tainted else None], journal=log)
            driven = await self.framework.drive(runner, PAY)
            tainted.clear()
            for key, value in log.store.items("interop ").items():
                assert log.store.compare_and_set(key, value, None)
            await driven.answer({"c1": answer}, record="lost" if self.framework.brings_record else "kept")
            return driven

        world, tainted, log = World(), {"s"}, memory()
        driven = in_time(run())
        if answer and (self.framework.waits_with_record or self.framework.holds_yes):
            assert driven.results["c1"] == Seen("paid 5 EUR to ada")
            return
        assert not world.paid
        if answer and not self.framework.asks_once:
            assert driven.questions["c1"].arguments == {"to": "ada", "euros": 5}

    def test_an_answer_whose_record_is_kept_here_needs_none_that_comes_along(self) -> None:
        driven_where(self.framework.knows_calls, "no call is known without its record")
        world = World()
        _, driven = self.answered(world, {"c1": True}, Said("c1", "pay", {"to": "ada"}), record="lost")
        assert driven.results["c1"] == Seen("paid 1 EUR to ada")
        assert world.paid == {"ada 1": 1}

    def test_a_yes_is_none_to_another_call_that_had_the_same_id(self) -> None:
        """Such as one of an earlier turn: some servers count from `call_0` in each."""

        async def run() -> Driven:
            runner = world.runner(journal=memory())
            driven = await self.framework.drive(runner, Said("c1", "pay", {"to": "ada", "euros": 5}))
            records = runner.journal.store
            for key, kept in records.items("interop ").items():
                told = kept["pending"]["context"]
                context = ToolContext(principal=told["principal"], session=told["session"])
                earlier = await runner.replace(approve=lambda call, decision, context: decision).run(
                    ToolCall(kept["pending"]["call"]["id"], "pay", {"to": "eve", "euros": 500}), context
                )
                assert records.compare_and_set(key, kept, {**kept, "pending": thaw(earlier.pending)})
            await driven.answer({"c1": True}, record="lost" if self.framework.brings_record else "kept")
            return driven

        world = World()
        driven = in_time(run())
        assert "eve 500" not in world.paid
        assert all(question.arguments["to"] == "ada" for question in driven.questions.values())

    def test_what_goes_wrong_where_records_are_kept_is_told_to_no_model(self) -> None:
        """It ends the run, or is a failure without its text."""

        class Broken(MemoryJournal):
            @property
            def store(self) -> Memory:
                return BrokenStore()

        class BrokenStore(Memory):
            def compare_and_set(self, key: str, old: Any, new: Any) -> bool:
                raise StoreError("the secret place")

        world = World()
        try:
            driven = self.drive(world, Said("c1", "pay", {"to": "ada"}), journal=Broken())
        except Exception:
            return
        assert driven.results["c1"].failed and "secret" not in driven.results["c1"].text
        assert not world.paid and not driven.questions

    def test_each_of_two_answers_reaches_its_own_call_beside_a_sibling_that_has_ended(self) -> None:
        world = World()
        calls = [
            Said("c0", "look", {"name": "x"}),
            Said("c1", "pay", {"to": "ada", "euros": 5}),
            Said("c2", "pay", {"to": "bob", "euros": 6}),
        ]

        async def run() -> Driven:
            driven = await self.framework.drive(world.runner(), *calls)
            for _ in range(3):  # some frameworks ask one after the other
                if driven.questions:
                    await driven.answer({call_id: call_id == "c1" for call_id in driven.questions})
            return driven

        driven = in_time(run())
        assert not driven.questions
        assert driven.results["c0"] == Seen("saw x")
        assert driven.results["c1"] == Seen("paid 5 EUR to ada")
        assert "paid" not in driven.results["c2"].text
        assert world.paid == {"ada 5": 1}

    def test_a_call_that_changed_something_and_ended_is_not_run_again_when_a_sibling_is_answered(self) -> None:
        world = World()

        def for_bob(call: ToolCall, context: ToolContext) -> Any:
            return ask("bob is new") if call.arguments.get("to") == "bob" else None

        async def run() -> Driven:
            runner = world.runner(guards=[for_bob])
            driven = await self.framework.drive(
                runner, Said("c1", "pay", {"to": "ada"}), Said("c2", "pay", {"to": "bob"})
            )
            await driven.answer({"c2": True})
            return driven

        driven = in_time(run())
        assert driven.results == {"c1": Seen("paid 1 EUR to ada"), "c2": Seen("paid 1 EUR to bob")}
        assert world.paid == {"ada 1": 1, "bob 1": 1}
