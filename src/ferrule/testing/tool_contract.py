"""`ToolContract`: tests of the promises of every tool, to run on your own."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias
from unittest import SkipTest

from ferrule.arguments.schema_parameters import JsonSchemaValidator
from ferrule.definition.bounds import Sizes
from ferrule.definition.decorator import to_tool
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, ToolError
from ferrule.runner import EXPOSED, Runner
from ferrule.testing.bounded import in_time, make_test
from ferrule.testing.generated import generate_arguments
from ferrule.types import ToolForm
from ferrule.values.call import ToolCall
from ferrule.values.content import count_characters
from ferrule.values.context import ToolContext
from ferrule.values.event import Event
from ferrule.values.frozen import thaw
from ferrule.values.result import ToolResult

CallArguments: TypeAlias = Mapping[str, Any]
"""The arguments of one call. See docs/contracts.md#a-tool."""

_DEADLINE = 0.1
"""Seconds until the deadline of a long call."""
_MAX_ERROR_CHARACTERS = 500
_INTERNALS = re.compile(r"Traceback \(most recent call last\)| at 0x[0-9a-fA-F]{4,}")
_OBJECT = re.compile(r"<[\w.<>]+ object at 0x[0-9a-fA-F]+>")
"""The form in which `repr` writes an object without a `__repr__` of its own."""
_ANY_TYPE: tuple[Any, ...] = ("no such value", 0.5, True, [[{}]], {"no such": {"key": []}})
_POOL_THREADS = ("ferrule-", "asyncio_", "ThreadPoolExecutor-")
_EXPECTED_STATUSES = {"ok", "denied", "suspended", "limited"}


class _Place(NamedTuple):
    """A runner of the one tool, and the folder that its calls may change."""

    tool: Tool
    runner: Runner
    context: ToolContext[Any]
    folder: Path
    events: list[Event]

    async def run(self, arguments: CallArguments, **options: Any) -> ToolResult:
        return await self.runner.run(ToolCall("", self.tool.name, arguments), self.context, **options)


_place_test = make_test(lambda self, check: self._run(check))


class ToolContract:
    """Tests of the promises of every tool. Derive a class, and pytest runs them. See docs/contracts.md#a-tool.

        class TestNotes(ToolContract):
            def tool(self):
                return add_note

            def failing(self):
                return [{"path": "no/such/folder/a.txt", "text": "a"}]

    The calls run for real. Each test has a new folder, which is the working directory meanwhile; its calls may change
    something there. Questions of the tool itself to a person are answered with yes. To leave out a promise that does
    not apply to a tool, set its name: `test_a_call_stops_at_its_deadline = None`.

    Attributes:
        max_output: Characters of a result, as your runner has it.
        seconds: How long the work of a call may go on after its deadline or its cancellation.
    """

    max_output: int = 100_000
    seconds: float = 10.0

    def tool(self) -> ToolForm:
        """Make a new tool, in any form that a toolset takes."""
        raise DefinitionError(f"{type(self).__name__} needs a method tool(self) that makes your tool")

    def context(self, folder: Path) -> ToolContext[Any]:
        """Return the context of the calls. If a tool needs `deps`, make them here, with their data in `folder`."""
        return ToolContext(working_directory=folder)

    def world(self, folder: Path) -> Any:
        """Return a comparable value of everything outside that calls may change: the files in `folder`, with their
        contents.
        """
        files = sorted(folder.rglob("*"))
        return [(str(file.relative_to(folder)), file.read_bytes() if file.is_file() else None) for file in files]

    def arguments(self) -> Iterable[CallArguments]:
        """Return arguments to try: some twenty, made up from the input schema, the same ones each time."""
        return generate_arguments(to_tool(self.tool()))

    def failing(self) -> Iterable[CallArguments]:
        """Return arguments of calls that are to fail."""
        return ()

    def slow(self) -> CallArguments | None:
        """Return the arguments of a call that takes long, at least some seconds; `None` if there is none."""
        return None

    # -- arguments ----------------------------------------------------------------------------------------------------

    @_place_test
    async def test_arguments_that_fit_the_schema_are_accepted(self, place: _Place) -> None:
        result = None
        for arguments in self._arguments():
            result = await place.run(arguments)
            assert result.status != "invalid", f"{arguments!r} fit the schema, and are invalid: {result.error}"
            assert result.status in _EXPECTED_STATUSES or _is_meant_for_model(result), (
                f"{arguments!r} fit the schema, and end as {result.status}: {_describe_error(result)}; raise "
                "ToolError, ValueError, LookupError or OSError for a model"
            )
        assert any(event.kind == "tool:started" for event in place.events), (
            f"none of these calls ran, so nothing is tested: the last is {result and _outcome_text(result)}"
        )

    @_place_test
    async def test_arguments_that_do_not_fit_the_schema_run_nothing(self, place: _Place) -> None:
        for arguments in _iterate_misfits(place.tool, self._arguments()):
            before = self.world(place.folder)
            place.events.clear()
            result = await place.run(arguments)
            if result.repairs:
                continue
            assert result.status == "invalid", f"{arguments!r} do not fit the schema, and are {_outcome_text(result)}"
            assert all(event.kind != "tool:started" for event in place.events), f"{arguments!r} ran"
            assert self.world(place.folder) == before, f"{arguments!r} do not fit, and changed what world() gives"

    # -- claims -------------------------------------------------------------------------------------------------------

    @_place_test
    async def test_a_read_only_call_changes_nothing(self, place: _Place) -> None:
        for arguments in self._list_claiming(place.tool, "read_only"):
            before = self.world(place.folder)
            result = await place.run(arguments)
            after = self.world(place.folder)
            assert after == before, f"{arguments!r} ({_outcome_text(result)}) made {after!r:.300} of {before!r:.300}"

    @_place_test
    async def test_an_idempotent_call_can_be_repeated(self, place: _Place) -> None:
        for arguments in self._list_claiming(place.tool, "idempotent"):
            await place.run(arguments)
            once = self.world(place.folder)
            result = await place.run(arguments)
            twice = self.world(place.folder)
            assert twice == once, f"{arguments!r} twice ({_outcome_text(result)}) made {twice!r:.300} of {once!r:.300}"

    def test_parallel_calls_have_the_same_effect_as_sequential_ones(self) -> None:
        left: list[tuple[Any, list[Any]]] = []

        async def at_once(place: _Place) -> None:
            calls = [ToolCall("", place.tool.name, one) for one in self._list_claiming(place.tool, "parallel")]
            results = await place.runner.run_all(calls, place.context)
            left.append((self.world(place.folder), [result.status for result in results]))

        async def in_order(place: _Place, step: int = 1) -> None:
            results = [await place.run(arguments) for arguments in self._list_claiming(place.tool, "parallel")[::step]]
            left.append((self.world(place.folder), [result.status for result in results][::step]))

        async def backwards(place: _Place) -> None:
            await in_order(place, -1)

        for check in (at_once, in_order, backwards):
            self._run(check)
        together, one_by_one, turned = left
        assert together == one_by_one, f"side by side they leave {together!r:.300}, in order {one_by_one!r:.300}"
        assert turned == one_by_one, f"in another order they leave {turned!r:.300}, not {one_by_one!r:.300}"

    # -- results ------------------------------------------------------------------------------------------------------

    @_place_test
    async def test_outputs_fit_the_output_schema(self, place: _Place) -> None:
        successes = 0
        for arguments in self._arguments():
            result = await place.run(arguments)
            wrong = result.exception is None and f"{place.tool.name} was run, but " in (result.error or "")
            assert not wrong, f"{arguments!r}: {result.error}"
            length = count_characters(result.content)
            assert not _OBJECT.search(result.text), f"{arguments!r} give an object, not data: {result.text!r:.300}"
            assert length <= self.max_output, f"{arguments!r} give {length} characters; max_output cuts them"
            successes += result.success
        if not successes:
            raise SkipTest("give arguments(self) of calls that go well: none of these did")

    @_place_test
    async def test_errors_are_useful_to_a_model(self, place: _Place) -> None:
        failing = [*self.failing()]
        if not failing:
            raise SkipTest("give failing(self): arguments of calls that are to fail")
        for arguments in failing:
            result = await place.run(arguments)
            assert not result.success, f"{arguments!r} are to fail, and give {result.output!r:.200}"
            text = (result.error if result.exception is None else str(result.exception)) or ""
            assert _is_meant_for_model(result) and text.strip(), f"{arguments!r}: the model reads {result.error!r}"
            assert len(text) <= _MAX_ERROR_CHARACTERS, (
                f"{arguments!r}: {len(text)} characters, at most {_MAX_ERROR_CHARACTERS}"
            )
            assert not _INTERNALS.search(text), f"{arguments!r}: a model cannot use {text!r}"

    # -- stopping -----------------------------------------------------------------------------------------------------

    @_place_test
    async def test_a_call_stops_at_its_deadline(self, place: _Place) -> None:
        arguments = self._slow()
        before = _list_active()
        result = await place.run(arguments, timeout=_DEADLINE)
        assert result.status == "timeout", f"{arguments!r} are to take long, and are {_outcome_text(result)}"
        await self._wait_until_idle(place.runner, before, "its deadline")

    @_place_test
    async def test_a_cancelled_call_stops(self, place: _Place) -> None:
        arguments = self._slow()
        started, before = asyncio.Event(), _list_active()
        seen = [lambda event: started.set() if event.kind == "tool:started" else None]
        running = asyncio.create_task(place.run(arguments, observers=seen))
        running.add_done_callback(lambda _: started.set())
        await started.wait()
        running.cancel()
        done, _ = await asyncio.wait([running], timeout=self.seconds)
        assert done, f"{arguments!r} go on {self.seconds:g} s after their cancellation"
        assert running.cancelled(), f"{arguments!r} were cancelled, and are {running.result()!r:.300}"
        await self._wait_until_idle(place.runner, before, "its cancellation")

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _arguments(self) -> list[CallArguments]:
        arguments = [*self.arguments()]
        if not arguments:
            raise DefinitionError(f"{type(self).__name__}.arguments(self) gives none; give at least one, such as {{}}")
        return arguments

    def _list_claiming(self, tool: Tool, trait: str) -> list[CallArguments]:
        """Return the arguments for which the tool has this trait."""
        return [arguments for arguments in self._arguments() if tool.trait(trait, arguments)]

    def _slow(self) -> CallArguments:
        arguments = self.slow()
        if arguments is None:
            raise SkipTest("give slow(self): the arguments of a call that takes long")
        return arguments

    async def _wait_until_idle(self, runner: Runner, before: set[object], after: str) -> None:
        """Wait until none of its calls is left running, and no task or thread is at work that was not before."""
        try:
            async with asyncio.timeout(self.seconds):
                while runner.left_running or _list_active() - before:  # noqa: ASYNC110  # no event marks the end
                    await asyncio.sleep(0.001)
        except TimeoutError:
            left = ", ".join(map(repr, _list_active() - before)) or "its handler"
            raise AssertionError(
                f"its work goes on {self.seconds:g} s after {after}: look at context.cancelled, and end what was begun "
                f"({left:.300})"
            ) from None

    def _run(self, check: Callable[[_Place], Awaitable[Any]]) -> Any:
        events = list[Event]()

        async def run(folder: Path) -> Any:
            tool = to_tool(self.tool())
            runner = Runner([tool], approve=_yes, observers=[events.append], sizes=Sizes(output=1_000_000_000))
            return await check(_Place(tool, runner, self.context(folder), folder, events))

        with TemporaryDirectory() as name, chdir(name):
            return in_time(run(Path(name).resolve()), lambda: _describe_unended(events))


def _describe_unended(events: Sequence[Event]) -> str:
    """Describe the calls that had not ended by themselves."""
    results = {event.call.id: event.data["result"] for event in events if event.kind in ("tool:post", "tool:error")}
    began = [event.call for event in events if event.kind == "tool:pre"]
    left = [call.arguments for call in began if call.id not in results or results[call.id].status == "cancelled"]
    return f": {', '.join(map(repr, left))} did not end" if left else ""


def _list_active() -> set[object]:
    """Return the tasks of this loop, and all threads but those that wait for others' work."""
    threads = (one for one in threading.enumerate() if not one.name.startswith(_POOL_THREADS))
    return {*asyncio.all_tasks(), *threads}


def _yes(call: object, decision: object, context: object) -> bool:
    return True


def _is_meant_for_model(result: ToolResult) -> bool:
    """Return whether a model may read the error: a returned one, a `ToolError`, or one that is exposed by default."""
    return result.exception is None or isinstance(result.exception, (ToolError, *EXPOSED))


def _describe_error(result: ToolResult) -> str:
    return repr(result.exception) if result.exception is not None else f"{result.error}"


def _outcome_text(result: ToolResult) -> str:
    return f"{result.status}: {result.text:.200}"


def _iterate_misfits(tool: Tool, every: Sequence[CallArguments]) -> Iterator[dict[str, Any]]:
    """Yield arguments that do not fit the input schema: without a required one, with an unknown one, with one of
    another type.
    """
    schema = thaw(tool.input_schema)
    enforced = JsonSchemaValidator(schema, f"the input schema of {tool.name!r}", schema)
    for fitting in every:
        changed: list[dict[str, Any]] = [{**fitting, "no_such_parameter": 1}]
        changed += [{key: fitting[key] for key in fitting if key != name} for name in schema.get("required", ())]
        changed += [{**fitting, name: value} for name in schema.get("properties", ()) for value in _ANY_TYPE]
        yield from (one for one in changed if enforced.find_errors(one))
