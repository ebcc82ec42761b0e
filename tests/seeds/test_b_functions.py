"""Tools as plain functions: parameters from the signature, context without an argument, guards over keywords."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from ferrule import (
    CONTEXT,
    DefinitionError,
    Field,
    GuardError,
    HandlerError,
    Runner,
    Tool,
    ValidationError,
)
from waits import BOUND


async def write_file(path: str, content: str) -> str:
    """Write a text to a file."""
    Path(path).write_text(content)
    return f"Wrote {len(content)} bytes to {path}"


async def search(
    query: Annotated[str, Field(description="What to look for")],
    limit: Annotated[int, Field(default=10, ge=1, le=100)] = 10,
) -> str:
    """Look something up."""
    documents: list[str] = list(CONTEXT.get())
    found = [text for text in documents if query.lower() in text.lower()]
    return "\n".join(found[:limit]) or "no results"


async def test_a_function_is_a_tool_as_it_is(tmp_path: Path) -> None:
    tool = Tool(name="write_file", handler=write_file)
    assert tool.description == "Write a text to a file."
    assert tool.handler is write_file
    assert tool.input_schema["required"] == ["path", "content"]
    path = tmp_path / "a.txt"
    assert (await tool(path=str(path), content="hello")) == f"Wrote 5 bytes to {path}"
    assert path.read_text() == "hello"


def test_a_description_of_its_own_wins() -> None:
    assert Tool(name="w", handler=write_file, description="Keep.").description == "Keep."


def test_annotations_say_description_default_and_bounds_and_the_function_stays_as_it_was() -> None:
    tool = Tool(name="search", handler=search)
    assert tool.input_schema["properties"] == {
        "query": {"type": "string", "description": "What to look for"},
        "limit": {"type": "integer", "default": 10, "minimum": 1, "maximum": 100},
    }
    assert tool.input_schema["required"] == ["query"]
    assert search.__defaults__ == (10,)


@pytest.mark.parametrize("limit", [0, 101, "many", 2.5, True, None])
def test_a_value_outside_its_bounds_or_of_another_type_is_refused(limit: Any) -> None:
    tool = Tool(name="search", handler=search, context=["a"])
    if limit is None:  # null for what is optional means absent
        assert asyncio.run(tool(query="a", limit=None)) == "a"
        return
    with pytest.raises(ValidationError, match="'limit'"):
        asyncio.run(tool(query="a", limit=limit))


def test_a_literal_takes_only_its_values() -> None:
    async def paint(colour: Literal["red", "blue"]) -> str:
        return colour

    tool = Tool(name="paint", handler=paint)
    assert asyncio.run(tool(colour="red")) == "red"
    with pytest.raises(ValidationError, match="'red' or 'blue'"):
        asyncio.run(tool(colour="green"))


def test_the_handler_finds_the_context_of_its_tool() -> None:
    tool = Tool(name="search", handler=search, context=["Reading is async", "Writing is not"])
    assert asyncio.run(tool(query="READING")) == "Reading is async"
    assert asyncio.run(tool(query="nothing")) == "no results"


async def test_two_tools_of_one_function_have_each_its_own_context_at_the_same_time() -> None:
    started: list[str] = []

    async def where() -> str:
        started.append("x")
        while len(started) < 2:
            await asyncio.sleep(0)
        return str(CONTEXT.get())

    async def both() -> list[str]:
        tools = [Tool(name="one", handler=where, context="first"), Tool(name="two", handler=where, context="second")]
        return await asyncio.wait_for(asyncio.gather(*(tool() for tool in tools)), BOUND)

    assert (await both()) == ["first", "second"]


def _helper() -> str:
    return str(CONTEXT.get())


async def test_a_helper_that_is_handed_nothing_finds_it_too() -> None:
    async def ping(msg: str) -> str:
        return f"{msg}:{_helper()}"

    assert (await Tool(name="ping", handler=ping, context="ctx-42")(msg="hello")) == "hello:ctx-42"


async def test_a_helper_in_a_thread_finds_it_too() -> None:
    def ping(msg: str) -> str:
        return f"{msg}:{_helper()}"

    assert (await Tool(name="ping", handler=ping, context="ctx-42")(msg="hello")) == "hello:ctx-42"


async def test_without_a_context_it_is_an_empty_mapping() -> None:
    async def ping() -> str:
        return repr(dict(CONTEXT.get()))

    assert (await Tool(name="ping", handler=ping)()) == "{}"


def test_a_context_that_is_false_is_a_context() -> None:
    async def ping() -> str:
        return repr(CONTEXT.get())

    assert asyncio.run(Tool(name="ping", handler=ping, context=0)()) == "0"
    assert asyncio.run(Tool(name="ping", handler=ping, context=None)()) == "None"


class Clamp:
    """A guard over the keywords: it gets the defaults too, and gives back what is to be used."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, dict[str, Any]]] = []

    async def check(self, tool: Tool, **kwargs: Any) -> dict[str, Any]:
        self.seen.append((tool.name, dict(kwargs)))
        return {**kwargs, "limit": min(kwargs["limit"], 1)}


async def test_a_guard_sees_the_tool_and_all_arguments_with_defaults_and_changes_them() -> None:
    clamp = Clamp()
    tool = Tool(name="search", handler=search, guards=(clamp,), context=["a1", "a2", "a3"])
    assert (await tool(query="a")) == "a1"
    assert clamp.seen[0] == ("search", {"query": "a", "limit": 10})


class Named:
    """The form as the seed writes it: `self` and `tool` are names that no argument can have."""

    def check(self, tool: Tool, **kwargs: Any) -> None: ...


class Unnamed:
    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def check(self, tool: Tool, /, **kwargs: Any) -> None:
        self.seen.append(kwargs)


def taking(name: str, **schema: Any) -> Tool:
    async def take(arguments: Any) -> str:
        return str(arguments[name])

    return Tool("take", take, input_schema={"properties": {name: {"type": "string"}}, **schema})


@pytest.mark.parametrize("name", ["tool", "self"])
async def test_an_argument_may_have_the_name_of_a_guards_own_parameter_that_is_positional_only(name: str) -> None:
    guard = Unnamed()
    result = await Runner([taking(name)], guards=[guard]).run("take", {name: "x"})
    assert (result.output, guard.seen) == ("x", [{name: "x"}])


@pytest.mark.parametrize("name", ["tool", "self"])
@pytest.mark.parametrize("bound", [False, True])
def test_an_argument_that_python_cannot_give_a_guard_is_refused_at_definition(name: str, bound: bool) -> None:
    tool = taking(name).bind(**{name: "x"}) if bound else taking(name)
    with pytest.raises(DefinitionError) as raised:
        Runner([tool], guards=[Named()])
    for said in ("Named", "'take'", f"argument {name!r}", "check(self, tool, /, **arguments)"):
        assert said in str(raised.value)
    Runner([taking("path")], guards=[Named()])


async def test_a_function_as_check_has_one_name_less_to_avoid() -> None:
    class Bare:
        @staticmethod
        def check(tool: Tool, **kwargs: Any) -> None: ...

    assert (await Runner([taking("self")], guards=[Bare()]).run("take", {"self": "x"})).output == "x"
    with pytest.raises(DefinitionError, match="argument 'tool'"):
        Runner([taking("tool")], guards=[Bare()])


def test_an_undeclared_argument_that_python_cannot_give_a_guard_is_denied() -> None:
    tool = taking("path", additionalProperties=True)
    runner = Runner([tool], guards=[Named()])
    result = asyncio.run(runner.run("take", {"path": "a", "self": 1}))
    assert (result.status, result.executed) == ("denied", False)
    assert asyncio.run(runner.run("take", {"path": "a", "other": 1})).output == "a"


async def test_a_guard_that_names_other_arguments_than_the_tool_has_is_refused_at_definition() -> None:
    class OfPath:
        def check(self, tool: Tool, *, path: str) -> None: ...

    class OfPathAndMore:
        def check(self, tool: Tool, path: str, mode: str = "r", **kwargs: Any) -> None: ...

    assert (await Runner([taking("path")], guards=[OfPath(), OfPathAndMore()]).run("take", {"path": "a"})).success
    for guard in (OfPath(), OfPathAndMore()):
        with pytest.raises(DefinitionError, match=r"does not fit the arguments of 'take': missing .* 'path'"):
            Runner([taking("name")], guards=[guard])
    with pytest.raises(DefinitionError, match=r"does not fit the arguments of 'take': .* 'name'"):
        Runner([taking("path", properties={"path": {}, "name": {}})], guards=[OfPath()])


async def test_a_guard_that_raises_denies_and_the_handler_is_not_called() -> None:
    called: list[str] = []

    async def touch(path: str) -> str:
        called.append(path)
        return path

    class Never:
        async def check(self, tool: Tool, **kwargs: Any) -> dict[str, Any]:
            raise GuardError(f"{tool.name} not today")

    with pytest.raises(GuardError, match="touch not today"):
        await Tool(name="touch", handler=touch, guards=(Never(),))(path="a")
    assert called == []


async def test_guards_come_after_validation_so_that_they_never_judge_what_does_not_fit() -> None:
    clamp = Clamp()
    tool = Tool(name="search", handler=search, guards=(clamp,))
    with pytest.raises(ValidationError):
        await tool(query=5)
    assert clamp.seen == []


async def test_what_a_guard_makes_of_the_arguments_is_validated_again() -> None:
    class Push:
        def check(self, tool: Tool, **kwargs: Any) -> dict[str, Any]:
            return {**kwargs, "limit": 1000}

    with pytest.raises(GuardError):
        await Tool(name="search", handler=search, guards=(Push(),))(query="a")


async def test_missing_arguments_get_their_defaults() -> None:
    async def greet(name: str, greeting: str = "Hello", marks: int = 1) -> str:
        return f"{greeting} {name}{'!' * marks}"

    assert (await Tool(name="greet", handler=greet)(name="Ada")) == "Hello Ada!"


async def test_stray_keys_are_refused() -> None:
    async def greet(name: str) -> str:
        return name

    with pytest.raises(ValidationError, match="'stray'"):
        await Tool(name="greet", handler=greet)(name="Ada", stray=1)


async def test_stray_keys_reach_a_handler_that_takes_any() -> None:
    async def anything(name: str, **rest: Any) -> str:
        return f"{name} {rest}"

    tool = Tool(name="anything", handler=anything)
    assert (await tool(name="Ada", stray=[1])) == "Ada {'stray': [1]}"


async def test_any_exception_of_the_handler_is_a_handler_error() -> None:
    async def fail() -> str:
        raise KeyError("gone")

    with pytest.raises(HandlerError, match="gone") as caught:
        await Tool(name="fail", handler=fail)()
    assert isinstance(caught.value.__cause__, KeyError)


async def test_the_limit_counts_runs_and_not_waiting_guards() -> None:
    running = most = 0

    async def slow(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return number

    tool = Tool(name="slow", handler=slow, concurrency=2)

    async def several() -> list[int]:
        return await asyncio.wait_for(asyncio.gather(*(tool(number=n) for n in range(5))), BOUND)

    assert (await several()) == [0, 1, 2, 3, 4]
    assert most == 2
