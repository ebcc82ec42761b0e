"""Tools as plain functions: parameters from the signature, a context variable, and guards over keywords."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from ferrule import CONTEXT, DefinitionError, Field, GuardError, Runner, Tool, ToolContext, ValidationError, tool


async def search(
    query: Annotated[str, Field(description="What to look for")],
    limit: Annotated[int, Field(default=10, ge=1, le=100)] = 10,
) -> str:
    """Look something up."""
    documents: list[str] = list(CONTEXT.get())
    found = [text for text in documents if query.lower() in text.lower()]
    return "\n".join(found[:limit]) or "no results"


async def test_the_signature_and_its_annotations_define_the_tool() -> None:
    tool = Tool(name="search", handler=search, context=["Reading is async", "Writing is not"])
    assert tool.handler is search and tool.description == "Look something up."
    assert tool.input_schema["properties"] == {
        "query": {"type": "string", "description": "What to look for"},
        "limit": {"type": "integer", "default": 10, "minimum": 1, "maximum": 100},
    }
    assert tool.input_schema["required"] == ["query"]
    assert search.__defaults__ == (10,)
    assert await tool(query="READING") == "Reading is async"
    with pytest.raises(ValidationError, match="'limit'"):
        await tool(query="a", limit=101)


async def test_undeclared_arguments_reach_a_handler_that_takes_any() -> None:
    async def anything(name: str, **rest: Any) -> str:
        return f"{name} {rest}"

    assert await Tool(name="anything", handler=anything)(name="Ada", stray=[1]) == "Ada {'stray': [1]}"
    with pytest.raises(ValidationError, match="'stray'"):
        await Tool(name="search", handler=search)(query="Ada", stray=1)


# The context variable


def read_context() -> str:
    return repr(CONTEXT.get())


async def ping() -> str:
    return read_context()


def ping_in_thread() -> str:
    return read_context()


@pytest.mark.parametrize("handler", [ping, ping_in_thread])
@pytest.mark.parametrize("context", ["ctx-42", 0, None])
async def test_a_helper_reads_the_context_of_the_tool(handler: Any, context: Any) -> None:
    assert await Tool(name="ping", handler=handler, context=context)() == repr(context)


async def test_concurrent_tools_of_one_function_keep_their_contexts() -> None:
    started: list[str] = []

    async def where() -> str:
        started.append("x")
        while len(started) < 2:
            await asyncio.sleep(0)
        return str(CONTEXT.get())

    tools = [Tool(name=name, handler=where, context=name) for name in ("one", "two")]
    assert await asyncio.gather(*(tool() for tool in tools)) == ["one", "two"]


# Guards over keywords


class Clamp:
    def __init__(self) -> None:
        self.seen: list[tuple[Any, dict[str, Any]]] = []

    async def check(self, tool: Tool, **kwargs: Any) -> dict[str, Any]:
        self.seen.append((tool.name, dict(kwargs)))
        return {**kwargs, "limit": min(kwargs["limit"], 1)}


async def test_a_guard_gets_tool_and_defaults_and_changes_arguments() -> None:
    clamp = Clamp()
    tool = Tool(name="search", handler=search, guards=(clamp,), context=["a1", "a2", "a3"])
    with pytest.raises(ValidationError):
        await tool(query=5)
    assert clamp.seen == []  # guards judge valid arguments only
    assert await tool(query="a") == "a1"
    assert clamp.seen[0] == ("search", {"query": "a", "limit": 10})


class Named:
    """Uses the names `self` and `tool`, which no argument can have then."""

    def check(self, tool: Tool, **kwargs: Any) -> None: ...


class Unnamed:
    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def check(self, tool: Tool, /, **kwargs: Any) -> None:
        self.seen.append(kwargs)


def make_tool(name: str, **schema: Any) -> Tool:
    async def take(arguments: Any) -> str:
        return str(arguments[name])

    return Tool("take", take, input_schema={"properties": {name: {"type": "string"}}, **schema})


@pytest.mark.parametrize("name", ["tool", "self"])
async def test_only_positional_names_of_a_guard_are_free_for_arguments(name: str) -> None:
    guard = Unnamed()
    result = await Runner([make_tool(name)], guards=[guard]).run("take", {name: "x"})
    assert (result.output, guard.seen) == ("x", [{name: "x"}])
    for clashing in (make_tool(name), make_tool(name).bind(**{name: "x"})):
        with pytest.raises(DefinitionError, match=rf"'take'.*argument {name!r}.*write check\(self, tool, /"):
            Runner([clashing], guards=[Named()])


async def test_a_static_check_reserves_only_the_name_tool() -> None:
    class Bare:
        @staticmethod
        def check(tool: Tool, **kwargs: Any) -> None: ...

    assert (await Runner([make_tool("self")], guards=[Bare()]).run("take", {"self": "x"})).output == "x"


async def test_a_guard_with_other_parameters_than_the_tool_is_refused() -> None:
    class OfPath:
        def check(self, tool: Tool, *, path: str) -> None: ...

    class OfPathAndMore:
        def check(self, tool: Tool, path: str, mode: str = "r", **kwargs: Any) -> None: ...

    assert (await Runner([make_tool("path")], guards=[OfPath(), OfPathAndMore()]).run("take", {"path": "a"})).success
    for guard in (OfPath(), OfPathAndMore()):
        with pytest.raises(DefinitionError, match=r"does not fit the arguments of 'take': missing .* 'path'"):
            Runner([make_tool("name")], guards=[guard])
    with pytest.raises(DefinitionError, match=r"does not fit the arguments of 'take': .* 'name'"):
        Runner([make_tool("path", properties={"path": {}, "name": {}})], guards=[OfPath()])


async def test_a_guard_that_raises_or_returns_invalid_arguments_denies() -> None:
    class Never:
        async def check(self, tool: Tool, **kwargs: Any) -> dict[str, Any]:
            raise GuardError(f"{tool.name} not today")

    class Push:
        def check(self, tool: Tool, **kwargs: Any) -> dict[str, Any]:
            return {**kwargs, "limit": 1000}

    for guard, message in ((Never(), "search not today"), (Push(), "limit")):
        with pytest.raises(GuardError, match=message):
            await Tool(name="search", handler=search, guards=(guard,))(query="a")


# Handlers over a Pydantic model


class Query(BaseModel):
    """What to look for."""

    text: str = Field(description="The words")
    limit: int = Field(default=3, ge=1, le=10)


@tool(input_schema=Query, read_only=True)
async def look(args: Query) -> str:
    """Look something up."""
    return f"{type(args).__name__}:{args.text}:{args.limit}"


@tool(input_schema=Query)
async def context_second(args: Query, ctx: ToolContext) -> str:
    return f"{args.text}:{ctx.session}"


@tool(input_schema=Query)
def context_first(ctx: ToolContext, args: Query) -> str:
    return f"{args.text}:{ctx.session}"


async def test_a_handler_gets_an_instance_and_the_context_in_any_order() -> None:
    assert (look.name, look.description) == ("look", "Look something up.")
    assert look.input_schema["properties"] == {
        "text": {"type": "string", "description": "The words"},
        "limit": {"type": "integer", "default": 3, "minimum": 1, "maximum": 10},
    }
    runner = Runner([look, context_second, context_first])
    assert (await runner.run("look", {"text": "a"})).output == "Query:a:3"
    assert (await runner.run("look", {"text": "a", "limit": 11})).status == "invalid"
    for name in ("context_first", "context_second"):
        assert (await runner.run(name, {"text": "a"}, ToolContext(session="s1"))).output == "a:s1"
