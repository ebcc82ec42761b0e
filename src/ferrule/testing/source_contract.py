"""`SourceContract`: tests of the promises of every source of tools, to run on your own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ferrule import DefinitionError, Runner, Toolset
from ferrule.definition.tool import to_wire_name

_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool for a source to offer.

    It takes one required text, called `text`, and nothing else. It returns a text that includes it, and changes
    something. See docs/sources.md#your-own.

    Attributes:
        description: The description of the tool.
        is_wrong: Whether it cannot be a tool: its definition refers to nothing, cannot be imported, or is no schema.
        fails: Whether each call of it fails when it runs.
    """

    description: str = "Say something."
    is_wrong: bool = False
    fails: bool = False


Opened: TypeAlias = tuple[Toolset, Sequence[object]]
"""The tools of a source, and its report of those left out. See docs/sources.md#your-own."""

_THREE = {"first": Offer("Say it first."), "second": Offer(), "third": Offer("Say it last.")}


class SourceContract:
    """Tests of the promises of every source of tools. Derive a class, and pytest runs them. See
    docs/sources.md#your-own.

        class TestFolder(SourceContract):
            @asynccontextmanager
            async def opened(self, offers):
                folder = written(offers)
                tools = python(folder)
                yield tools, tools.report.left_out

    Names are letters, digits and `_`. Each test waits for a minute at most.
    """

    same_name: Literal["refused", "left out", "cannot be"] = "cannot be"
    """The treatment of two tools of one name: an error names it, one of them is left out, or there are never two."""

    def opened(self, offers: Mapping[str, Offer]) -> AbstractAsyncContextManager[Opened]:
        """Open the source with these tools, by their names, and in this order if it has one."""
        raise DefinitionError(f"{type(self).__name__} needs a method opened(self, offers) that opens your source")

    def twice(self, name: str) -> AbstractAsyncContextManager[Opened]:
        """Open the source with two tools of this name, if that is possible."""
        raise DefinitionError(f"{type(self).__name__} needs a method twice(self, name), or same_name = 'cannot be'")

    # -- list ---------------------------------------------------------------------------------------------------------

    def test_every_tool_is_there_with_its_name_and_description(self) -> None:
        async def look(tools: Toolset, left_out: Sequence[object]) -> None:
            assert sorted(tool.name for tool in tools) == sorted(_THREE), f"it has {[tool.name for tool in tools]}"
            for name, offer in _THREE.items():
                assert offer.description in tools.get(name).description, f"{name}: {tools.get(name).description!r}"
            assert not left_out, f"it leaves out {[*map(str, left_out)]}"

        self._open(_THREE, look)

    def test_a_source_without_tools_is_empty_or_says_so(self) -> None:
        async def look(tools: Toolset, left_out: Sequence[object]) -> None:
            assert not tools, f"it has {tools!r}"

        self._open({}, look)

    def test_it_lists_the_same_each_time(self) -> None:
        found: list[str] = []

        async def look(tools: Toolset, left_out: Sequence[object]) -> None:
            found.append(tools.fingerprint)

        for _ in range(2):
            self._open(_THREE, look)
        assert found[0] == found[1], "the same tools have another fingerprint, or another order"

    def test_what_has_changed_is_another_tool_and_nothing_else_is(self) -> None:
        found: list[dict[str, str]] = []

        async def look(tools: Toolset, left_out: Sequence[object]) -> None:
            found.append({tool.name: tool.fingerprint for tool in tools})

        self._open(_THREE, look)
        self._open({**_THREE, "second": Offer("Say another thing.")}, look)
        self._open({name: offer for name, offer in _THREE.items() if name != "third"}, look)
        before, changed, fewer = found
        others = {name for name in before if before[name] != changed.get(name)}
        assert others == {"second"}, f"'second' has changed, and {others} have another fingerprint"
        others = {name for name in fewer if fewer[name] != before[name]}
        assert not others, f"'third' is gone, and {others} have another fingerprint"

    def test_a_tool_says_nothing_of_itself_that_it_does_not_know(self) -> None:
        async def look(tools: Toolset, left_out: Sequence[object]) -> None:
            for tool in tools:
                assert tool.read_only is False and tool.parallel is False, (
                    f"{tool.name} says that it only reads, or may run beside others"
                )

        self._open(_THREE, look)

    # -- names --------------------------------------------------------------------------------------------------------

    def test_each_tool_is_found_by_its_name_and_by_the_one_that_every_api_takes(self) -> None:
        names = ("a", "A_9", "_x", "n" * 60)

        async def look(tools: Toolset, left_out: Sequence[object]) -> None:
            runner = Runner(tools)
            for name in names:
                if name in tools:  # a source may have names of its own for some
                    result = await runner.run(to_wire_name(name), {"text": "hello"})
                    assert result.success, f"{name}: {result.text}"
            assert "a" in tools, f"there is no 'a' in {tools!r}"

        self._open(dict.fromkeys(names, Offer()), look)

    def test_two_tools_of_one_name_never_stand_for_each_other(self) -> None:
        if self.same_name == "cannot be":
            return

        async def look(tools: Toolset, left_out: Sequence[object]) -> None:
            if self.same_name == "left out":
                assert any("twin" in str(one) for one in left_out), f"it says only {[*map(str, left_out)]}"

        refused = ""
        try:
            self._run(self.twice("twin"), look)
        except DefinitionError as error:
            refused = str(error)
        assert ("twin" in refused) == (self.same_name == "refused"), (
            f"two tools of one name were to be {self.same_name}, and the error is {refused!r}"
        )

    # -- calls --------------------------------------------------------------------------------------------------------

    def test_a_call_goes_to_its_tool_with_its_arguments(self) -> None:
        async def look(tools: Toolset, left_out: Sequence[object]) -> None:
            runner = Runner(tools)
            for text in ("hello", 'é 文 🙂 " \\ & = % {} \n'):
                result = await runner.run("second", {"text": text})
                assert result.success, f"{result.status}: {result.text}"
                assert text in _all_text_of(result.output), f"of {text!r} it gave {result.output!r}"

        self._open(_THREE, look)

    def test_wrong_and_unknown_arguments_reach_no_tool(self) -> None:
        async def look(tools: Toolset, left_out: Sequence[object]) -> None:
            runner = Runner(tools)
            for arguments in ({}, {"text": 7}, {"text": None}, {"text": ["a"]}, {"text": "a", "more": 1}):
                result = await runner.run("first", arguments)
                assert result.status == "invalid", f"{arguments} gave {result.status}: {result.text}"

        self._open(_THREE, look)

    def test_the_schema_says_what_is_taken_and_that_nothing_else_is(self) -> None:
        async def look(tools: Toolset, left_out: Sequence[object]) -> None:
            for tool in tools:
                schema = tool.input_schema
                assert [*schema["properties"]] == ["text"] and [*schema["required"]] == ["text"], (
                    f"{tool.name} takes {schema}, and not one text that is required"
                )
                assert schema.get("additionalProperties") is False, f"{tool.name} does not say that it is closed"

        self._open(_THREE, look)

    # -- faults -------------------------------------------------------------------------------------------------------

    def test_what_is_wrong_is_left_out_and_told_and_stops_nothing(self) -> None:
        async def look(tools: Toolset, left_out: Sequence[object]) -> None:
            assert {"first", "third"} <= {tool.name for tool in tools}, f"it has {tools!r}"
            assert "broken" not in tools, "it has the one that is wrong"
            assert any("broken" in str(one) for one in left_out), f"it says {[*map(str, left_out)]}"
            result = await Runner(tools).run("third", {"text": "hello"})
            assert result.success, f"beside one that is wrong the third is {result.status}: {result.text}"

        self._open({"first": Offer(), "broken": Offer(is_wrong=True), "third": Offer()}, look)

    def test_a_tool_that_fails_gives_a_failure_and_the_next_call_runs(self) -> None:
        async def look(tools: Toolset, left_out: Sequence[object]) -> None:
            runner = Runner(tools)
            failed = await runner.run("failing", {"text": "hello"})
            assert failed.status == "failed", f"it fails, and is {failed.status}: {failed.text}"
            result = await runner.run("first", {"text": "hello"})
            assert result.success, f"after one that failed the next is {result.status}: {result.text}"

        self._open({"first": Offer(), "failing": Offer(fails=True)}, look)

    # -- running ------------------------------------------------------------------------------------------------------

    def _open(self, offers: Mapping[str, Offer], look: Callable[[Toolset, Sequence[object]], Awaitable[None]]) -> None:
        self._run(self.opened(offers), look)

    def _run(
        self,
        opening: AbstractAsyncContextManager[Opened],
        look: Callable[[Toolset, Sequence[object]], Awaitable[None]],
    ) -> None:
        async def run() -> None:
            async with asyncio.timeout(_SECONDS), opening as (tools, left_out):
                await look(tools, left_out)

        asyncio.run(run())


def _all_text_of(value: Any) -> str:
    """Return all text in a value."""
    if isinstance(value, Mapping):
        return " ".join(map(_all_text_of, value.values()))
    if isinstance(value, list | tuple):
        return " ".join(map(_all_text_of, value))
    return value if isinstance(value, str) else ""
