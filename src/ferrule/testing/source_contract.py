"""`SourceContract`: tests of the promises of every source of tools, to run on your own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ferrule import DefinitionError, Runner, Toolset
from ferrule.definition.tool import to_wire_name
from ferrule.testing.bounded import in_time, make_test


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


OpenSource: TypeAlias = tuple[Toolset, Sequence[object]]
"""The tools of a source, and its report of those left out. See docs/sources.md#your-own."""

_NAMES = ("a", "A_9", "_x", "n" * 60)
_THREE = {"first": Offer("Say it first."), "second": Offer(), "third": Offer("Say it last.")}


def _with_tools(
    offers: Mapping[str, Offer],
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[[Any], None]]:
    """Return a decorator for a test of a source that is open with these tools."""
    return make_test(lambda self, check: self._open(offers, check))


class SourceContract:
    """Tests of the promises of every source of tools. Derive a class, and pytest runs them. See
    docs/sources.md#your-own.

        class TestFolder(SourceContract):
            @asynccontextmanager
            async def open_source(self, offers):
                folder = written(offers)
                tools = python(folder)
                yield tools, tools.report.left_out

    Names are letters, digits and `_`. Each test waits for a minute at most.
    """

    same_name: Literal["refused", "left out", "cannot be"] = "cannot be"
    """The treatment of two tools of one name: an error names it, one of them is left out, or there are never two."""

    def open_source(self, offers: Mapping[str, Offer]) -> AbstractAsyncContextManager[OpenSource]:
        """Open the source with these tools, by their names, and in this order if it has one."""
        raise DefinitionError(f"{type(self).__name__} needs a method open_source(self, offers) that opens your source")

    def open_duplicates(self, name: str) -> AbstractAsyncContextManager[OpenSource]:
        """Open the source with two tools of this name, if that is possible."""
        raise DefinitionError(
            f"{type(self).__name__} needs a method open_duplicates(self, name), or same_name = 'cannot be'"
        )

    # -- list ---------------------------------------------------------------------------------------------------------

    @_with_tools(_THREE)
    async def test_every_tool_is_listed_with_its_name_and_description(
        self, tools: Toolset, left_out: Sequence[object]
    ) -> None:
        assert sorted(tool.name for tool in tools) == sorted(_THREE), f"it has {[tool.name for tool in tools]}"
        for name, offer in _THREE.items():
            assert offer.description in tools.get(name).description, f"{name}: {tools.get(name).description!r}"
        assert not left_out, f"it leaves out {[*map(str, left_out)]}"

    @_with_tools({})
    async def test_a_source_without_tools_is_empty(self, tools: Toolset, left_out: Sequence[object]) -> None:
        assert not tools, f"it has {tools!r}"

    def test_the_list_is_the_same_each_time(self) -> None:
        found: list[str] = []

        async def look(tools: Toolset, left_out: Sequence[object]) -> None:
            found.append(tools.fingerprint)

        for _ in range(2):
            self._open(_THREE, look)
        assert found[0] == found[1], "the same tools have another fingerprint, or another order"

    def test_a_change_of_one_tool_changes_its_fingerprint_alone(self) -> None:
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

    @_with_tools(_THREE)
    async def test_a_tool_claims_no_traits_by_itself(self, tools: Toolset, left_out: Sequence[object]) -> None:
        for tool in tools:
            assert tool.read_only is False and tool.parallel is False, (
                f"{tool.name} says that it only reads, or may run beside others"
            )

    # -- names --------------------------------------------------------------------------------------------------------

    @_with_tools(dict.fromkeys(_NAMES, Offer()))
    async def test_each_tool_is_found_by_its_name_and_its_wire_name(
        self, tools: Toolset, left_out: Sequence[object]
    ) -> None:
        runner = Runner(tools)
        for name in _NAMES:
            if name in tools:  # a source may have names of its own for some
                result = await runner.run(to_wire_name(name), {"text": "hello"})
                assert result.success, f"{name}: {result.text}"
        assert "a" in tools, f"there is no 'a' in {tools!r}"

    def test_two_tools_with_one_name_are_never_confused(self) -> None:
        if self.same_name == "cannot be":
            return

        async def look(tools: Toolset, left_out: Sequence[object]) -> None:
            if self.same_name == "left out":
                assert any("twin" in str(one) for one in left_out), f"it says only {[*map(str, left_out)]}"

        refused = ""
        try:
            self._run(self.open_duplicates("twin"), look)
        except DefinitionError as error:
            refused = str(error)
        assert ("twin" in refused) == (self.same_name == "refused"), (
            f"two tools of one name were to be {self.same_name}, and the error is {refused!r}"
        )

    # -- calls --------------------------------------------------------------------------------------------------------

    @_with_tools(_THREE)
    async def test_a_call_goes_to_its_tool_with_its_arguments(self, tools: Toolset, left_out: Sequence[object]) -> None:
        runner = Runner(tools)
        for text in ("hello", 'é 文 🙂 " \\ & = % {} \n'):
            result = await runner.run("second", {"text": text})
            assert result.success, f"{result.status}: {result.text}"
            assert text in _join_texts(result.output), f"of {text!r} it gave {result.output!r}"

    @_with_tools(_THREE)
    async def test_wrong_and_unknown_arguments_reach_no_tool(self, tools: Toolset, left_out: Sequence[object]) -> None:
        runner = Runner(tools)
        for arguments in ({}, {"text": 7}, {"text": None}, {"text": ["a"]}, {"text": "a", "more": 1}):
            result = await runner.run("first", arguments)
            assert result.status == "invalid", f"{arguments} gave {result.status}: {result.text}"

    @_with_tools(_THREE)
    async def test_the_schema_lists_the_parameters_and_is_closed(
        self, tools: Toolset, left_out: Sequence[object]
    ) -> None:
        for tool in tools:
            schema = tool.input_schema
            assert [*schema["properties"]] == ["text"] and [*schema["required"]] == ["text"], (
                f"{tool.name} takes {schema}, and not one text that is required"
            )
            assert schema.get("additionalProperties") is False, f"{tool.name} does not say that it is closed"

    # -- faults -------------------------------------------------------------------------------------------------------

    @_with_tools({"first": Offer(), "broken": Offer(is_wrong=True), "third": Offer()})
    async def test_a_wrong_tool_is_left_out_and_reported(self, tools: Toolset, left_out: Sequence[object]) -> None:
        assert {"first", "third"} <= {tool.name for tool in tools}, f"it has {tools!r}"
        assert "broken" not in tools, "it has the one that is wrong"
        assert any("broken" in str(one) for one in left_out), f"it says {[*map(str, left_out)]}"
        result = await Runner(tools).run("third", {"text": "hello"})
        assert result.success, f"beside one that is wrong the third is {result.status}: {result.text}"

    @_with_tools({"first": Offer(), "failing": Offer(fails=True)})
    async def test_a_failing_tool_does_not_stop_the_next_call(self, tools: Toolset, left_out: Sequence[object]) -> None:
        runner = Runner(tools)
        failed = await runner.run("failing", {"text": "hello"})
        assert failed.status == "failed", f"it fails, and is {failed.status}: {failed.text}"
        result = await runner.run("first", {"text": "hello"})
        assert result.success, f"after one that failed the next is {result.status}: {result.text}"

    # -- running ------------------------------------------------------------------------------------------------------

    def _open(self, offers: Mapping[str, Offer], look: Callable[[Toolset, Sequence[object]], Awaitable[None]]) -> None:
        self._run(self.open_source(offers), look)

    def _run(
        self,
        opening: AbstractAsyncContextManager[OpenSource],
        look: Callable[[Toolset, Sequence[object]], Awaitable[None]],
    ) -> None:
        async def run() -> None:
            async with opening as (tools, left_out):
                await look(tools, left_out)

        in_time(run())


def _join_texts(value: Any) -> str:
    """Return all text in a value."""
    if isinstance(value, Mapping):
        return " ".join(map(_join_texts, value.values()))
    if isinstance(value, list | tuple):
        return " ".join(map(_join_texts, value))
    return value if isinstance(value, str) else ""
