"""What users write, in every form that the library takes; mypy and pyright must find nothing, both in strict mode.

It is checked and never run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, assert_type

from mcp.client import Client, ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult
from pydantic import BaseModel

from ferrule import (
    CONTEXT,
    Approver,
    Clock,
    Decision,
    DefinitionError,
    Diff,
    Event,
    FerruleError,
    Field,
    Guard,
    GuardError,
    HandlerError,
    Middleware,
    NotStartedError,
    Observer,
    Runner,
    Status,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolHandler,
    ToolResult,
    Toolset,
    ToolTimeoutError,
    ValidationError,
    WorkerDiedError,
    allow,
    ask,
    build_tool,
    deny,
    serve,
    tool,
)
from ferrule.adapters.chapter1 import assemble_tool_pool
from ferrule.executors import Executor, StartedCall
from ferrule.executors.process import Recipe, judged_text, make_tool
from ferrule.guards import ask_before_changes, within
from ferrule.loop import run as loop
from ferrule.middleware import limit_output, untrusted
from ferrule.models import Message, Scripted, Step
from ferrule.providers import anthropic
from ferrule.selection import Match, Query, Ranker, ToolSelector, list_found_tools, search_tool
from ferrule.types import ToolInput
from ferrule.values.event import EventKind


@dataclass
class Database:
    """What a user's handlers depend on."""

    rows: dict[str, str]


class Order(BaseModel):
    """A model as a parameter."""

    item: str
    count: int = 1


# 1. Functions and bound methods.


@tool(read_only=True)
async def read_notes(path: str, lines: int = 200) -> str:
    """Read the first lines of a note.

    Args:
        path: File inside the notes folder.
        lines: How many.
    """
    return path * lines


@tool
def delete_note(path: str) -> str:
    """Delete a note."""
    return path


def by_piece(arguments: Mapping[str, Any]) -> bool:
    """A trait that depends on the arguments."""
    return bool(arguments["unit"] == "piece")


def orders(arguments: Mapping[str, Any]) -> list[str]:
    """The keys that a call locks."""
    return [f"order:{arguments['order']['item']}"]


def difference(arguments: Mapping[str, Any]) -> str | Diff:
    """What the order changes."""
    return Diff("", str(arguments["order"]))


@tool(
    name="place_order",
    destructive=True,
    idempotent=False,
    parallel=by_piece,
    resources=orders,
    private=("pin",),
    timeout=5,
    concurrency=2,
    ask="this is paid",
    preview=difference,
    provider={"anthropic": {"eager_input_streaming": True}},
    tags=("shop",),
)
async def order_it(
    order: Order,
    unit: Literal["piece", "box"],
    note: Annotated[str, Field(description="For the courier", max_length=200)],
    context: ToolContext[Database],
    pin: str = "",
) -> Mapping[str, int]:
    """Order something."""
    assert_type(context.deps, Database)
    context.progress(1, 2, "half")
    await context.run("read_notes", {"path": context.deps.rows[note]})
    return {order.item: order.count}


@tool
async def second(path: str, context: ToolContext[Database], lines: int = 1) -> str:
    """The context in the second place."""
    assert_type(context.tool.definition, Tool)
    return path * lines * len(context.deps.rows)


@tool
async def fourth(path: str, lines: int, deep: bool, ctx: ToolContext) -> str:
    """The context in the fourth place."""
    return f"{context_name(ctx)} {path} {lines} {deep}"


def context_name(context: ToolContext) -> str:
    """Inside a call there is always a tool."""
    return context.tool.definition.name


class Sundial:
    """A clock of one's own."""

    def time(self) -> float:
        return 0.0

    async def sleep(self, seconds: float, /) -> None: ...

    def call_at(self, when: float, callback: Callable[..., object], /, *arguments: Any) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(when, callback, *arguments)

    def now(self) -> float:
        return 0.0


def steps_of(clock: Clock) -> list[Step]:
    """A script, and who goes by a clock."""

    def last(messages: Sequence[Message]) -> str:
        return f"{len(messages)} messages at {clock.now()}"

    return ["First.", [("read_notes", {"path": "a.txt"})], last]


async def person(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """Who answers the questions of a server, as the page on serving has it."""
    return ElicitResult(action="accept", content={"approve": bool(params.message)})


class Notes:
    """Methods as tools."""

    @tool
    async def bare(self, word: str, context: ToolContext) -> int:
        """A context whose dependencies are not read."""
        assert_type(context.deps, object)
        return len(word)

    @tool
    async def look(self, words: list[str], context: ToolContext[Database]) -> int:
        """The context of a method, not in the first place."""
        return len(words) + len(context.deps.rows)

    async def search(self, words: list[str]) -> list[str]:
        """Search the notes."""
        return words


@tool(timeout=3)
async def greet(context: ToolContext[Database], name: str, loud: bool = False) -> dict[str, str]:
    """Greet; a leading context is no parameter of the tool."""
    return {name: context.deps.rows[name]} if loud else {}


@tool
async def count(to: int) -> AsyncIterator[int]:
    """Count, number by number."""
    for number in range(to):
        yield number


@tool
async def tell(words: str) -> AsyncIterator[str]:
    """Tell, word by word."""
    for word in words.split():
        yield word


class Counter:
    """Tools on methods belong to their instance."""

    value = 0

    @tool
    async def add(self, step: int = 1) -> int:
        """Count on."""
        self.value += step
        return self.value


# 2. A `Tool` with a handler.


def plain(path: str) -> int:
    """A plain function."""
    return len(path) + len(CONTEXT.get())


class OnlyTexts:
    """A guard with `check`, asked by its signature."""

    def check(self, call: ToolCall, context: ToolContext[Any]) -> Decision | None:
        return None if str(call.arguments.get("path")).endswith(".txt") else deny("only .txt files")


measure = Tool(
    name="measure",
    handler=plain,
    description="Measure a path.",
    guards=(OnlyTexts(),),
    concurrency=4,
    timeout=10,
    context={"unit": "characters"},
)


# 3. A class whose fields are the parameters.


class WriteFile(ToolHandler):
    """Write a file."""

    path: str
    text: str = Field(default="", description="What to write")

    async def __call__(self) -> int:
        return len(self.text)


write_file = Tool(name="write_file", handler=WriteFile, description="Write a file.")


# 4. A model of all arguments.


@tool(input_schema=Order)
async def place(order: Order, context: ToolContext) -> str:
    """Place an order."""
    return f"{order.count} {order.item} for {context.principal}"


# 5. A raw JSON Schema.


async def execute(payload: Mapping[str, Any], context: ToolContext) -> str:
    return f"{payload['city']} {context.session}"


weather = build_tool(
    {
        "name": "weather",
        "description": "Tell the weather.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "execute": execute,
        "is_read_only": lambda: True,
    }
)


def forecast(city: str) -> str:
    return city


listed = build_tool({"name": "forecast", "inputSchema": {"type": "object"}}, forecast, read_only=True, timeout=3)


# 6. An object with the methods of a tool; no base class.


class WallClock:
    """Structural: names and methods are all that counts."""

    name = "clock"
    description = "Tell the time."
    input_schema: Mapping[str, Any] = {"type": "object", "properties": {}}

    async def execute(self, payload: Mapping[str, Any], context: ToolContext) -> str:
        return "noon"

    def is_read_only(self) -> bool:
        return True


# Guards.


def office_hours(call: ToolCall, context: ToolContext[Database]) -> Decision | None:
    """Silence means allow."""
    if call.name == "place_order" and context.principal is None:
        return deny("nobody to bill")
    return ask("a large order", into="pin") if call.arguments["order"]["count"] > 10 else None


async def normalised(call: ToolCall, context: ToolContext[Any]) -> Mapping[str, Any] | None:
    """Changed arguments, as a mapping."""
    return {**call.arguments, "path": str(call.arguments["path"]).strip()}


def renamed(call: ToolCall, context: ToolContext[Any]) -> Decision:
    """Changed arguments, as a decision."""
    return allow(arguments={**call.arguments, "lines": 10})


class OnlyMine:
    """A guard of the context's dependencies."""

    async def check(self, call: ToolCall, context: ToolContext[Database]) -> Decision | None:
        return None if call.name in context.deps.rows else deny("not yours")


class Shortened:
    """A guard of a handler class's own instance, whose fields it changes."""

    def check(self, handler: WriteFile) -> WriteFile:
        handler.text = handler.text[:100]
        return handler


class NotHidden:
    """A guard of the tool and its arguments by name."""

    def check(self, tool: Tool, path: str, text: str = "") -> Decision | None:
        return deny(f"{tool.name} writes no hidden files") if path.startswith(".") else None


class Counted:
    """A guard of any tool's arguments."""

    async def check(self, tool: Tool, /, **arguments: Any) -> Mapping[str, Any] | None:
        return {**arguments, "count": len(arguments)}


class Within:
    """A guard of somebody else's, which answers by a bool."""

    async def check(self, tool: Tool, **arguments: Any) -> bool:
        return tool.name in arguments


def unsure(call: ToolCall, context: ToolContext) -> Decision | None:
    """A guard with a context of any kind."""
    return ask("sure?") if context.deps is None else None


every_guard: Sequence[Guard] = [
    OnlyTexts(), OnlyMine(), Shortened(), NotHidden(), Counted(), Within(), unsure, office_hours, normalised, renamed,
    lambda call, context: None,
]  # fmt: skip
guarded = tool(plain, name="guarded", guards=[OnlyTexts(), OnlyMine(), unsure, lambda call, context: deny("no")])


# Middleware.

Next = Callable[[ToolCall, ToolContext[Any]], Awaitable[ToolResult]]


async def stamped(call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
    """Goes round the call."""
    result = await next(call, context)
    return result.replace(metadata={**result.metadata, "session": context.session})


def make_runner() -> Runner:
    """Everything in one runner."""
    guards: Sequence[Guard] = [within("notes"), ask_before_changes, office_hours, normalised, renamed, OnlyTexts()]
    around: Sequence[Middleware] = [untrusted, limit_output(16_000)]
    tools = Toolset(
        [read_notes, delete_note, order_it, Notes().search, measure, write_file, place, weather, WallClock()]
    )
    tools = tools + Toolset([listed]).only("*") + Toolset.of(Notes(), "my_", skip=True)
    tools = tools + Toolset([plain]).prefixed("x_")
    return Runner(
        tools.without("x_*").only("*").renamed({"clock": "time"}).bind(pin="0000"),
        guards=guards,
        around=around,
        inside=[stamped],
        approve=on_screen,
        observers=[print_event],
        concurrency=8,
        timeout=30,
    )


def on_screen(call: ToolCall, decision: Decision, context: ToolContext[Any]) -> bool:
    """A person's answer."""
    return input(f"{call.name}: {decision.reason} [y/n] ") == "y"


def print_event(event: Event) -> None:
    """An observer."""
    print(event.kind, event.call.name, event.at, event.data["tool_name"])


observer: Observer = print_event
approver: Approver = on_screen


async def answer_later(call: ToolCall, decision: Decision, context: ToolContext[Database]) -> Decision:
    """Not now."""
    return ask(f"{context.deps.rows[call.name]}: {decision.reason}")


approvers: Sequence[Approver] = [on_screen, answer_later, lambda call, decision, context: True]


def about(event: Event) -> str:
    """Every kind of event."""
    kind: EventKind = event.kind
    match event.kind:
        case "tool:pre" | "tool:decided" | "tool:started" | "tool:progress" | "tool:suspended":
            return kind
        case "client:refused":
            return "of no call"
        case "tool:post" | "tool:error":
            return "the end"


# Running, and reading results.


async def turn(client: Any, messages: list[Any]) -> None:
    """One turn with a model."""
    runner = make_runner()
    reply = await client.messages.create(tools=anthropic.tools(runner.tools, cache=True), messages=messages)
    messages += anthropic.turn(reply)
    results = await runner.run_all(anthropic.calls(reply))
    assert_type(results, list[ToolResult])
    messages += anthropic.results(results)


async def read() -> list[str]:
    """What a result has."""
    context = ToolContext(session="s", principal="me", working_directory="notes", deps=Database({}))
    assert_type(context.deps, Database)
    async with make_runner() as runner:
        result = await runner.run("read_notes", {"path": "a.txt"}, context, timeout=3)
        assert_type(result, ToolResult)
        same = await runner.run(ToolCall("1", "read_notes", '{"path": "a.txt"}'))
        decision = await runner.decide(ToolCall("2", "delete_note", {"path": "a.txt"}), context)
        assert_type(decision, Decision)
        if same.status == "suspended":
            pending: Mapping[str, Any] | None = same.pending
            assert pending is not None
            same = await runner.resume(same.record(), True, by="ada")
            assert_type(same.answered_by, str | None)
        return [result.text, str(result.success), *result.repairs, decision.kind, same.error or str(same.output)]


def in_a_script() -> float:
    """Without a loop of one's own."""
    result: ToolResult = make_runner().run_sync("read_notes", {"path": "a.txt"})
    return result.duration_ms


async def direct() -> str:
    """Calling a tool keeps its guards, and raises."""
    try:
        value: str = await read_notes(path="a.txt")
    except (ValidationError, GuardError, HandlerError, ToolTimeoutError, NotStartedError, WorkerDiedError) as error:
        return str(error)
    except ToolError as error:
        status: Status | None = None if error.result is None else error.result.status
        return status or ""
    except (DefinitionError, FerruleError):
        return ""
    return value


async def signatures() -> None:
    """Calling a tool takes what its handler takes, and gives what it returns."""
    assert_type(await read_notes("a.txt", 3), str)
    assert_type(await read_notes("a.txt", lines=3), str)
    assert_type(await second("a.txt", lines=3), str)
    assert_type(await Notes().look(words=["a"]), int)
    assert_type(await Notes().bare(word="a"), int)
    await fourth("a.txt", 3, deep=True)
    Runner([second], clock=Sundial())
    async with Client(serve.mcp(make_runner()).server, elicitation_callback=person) as client:
        await client.list_tools()
    Scripted(steps_of(Sundial()))
    assert_type(await delete_note("a.txt"), str)
    assert_type(await greet("Ada", loud=True), dict[str, str])
    assert_type(await count(3), Any)
    assert_type(await tell("a b"), Any)
    assert_type(await tool(plain)("a.txt"), int)
    assert_type(await tool(Notes().search)(["a"]), list[str])
    assert_type(await tool(WriteFile)(path="a.txt", text="b"), int)
    assert_type(await Counter().add(2), int)
    assert_type(await copied(path="a.txt"), Any)
    assert_type(await read_notes.replace(name="read", timeout=3)("a.txt"), str)
    assert_type(await read_notes.bind(lines=3)("a.txt"), str)
    asynchronous: list[Tool] = [read_notes, delete_note, greet, place, weather, measure, write_file]
    inputs: list[ToolInput] = [
        *asynchronous,
        plain,
        WriteFile,
        WallClock(),
        Toolset(),
        {"name": "x", "execute": execute},
    ]
    everything = Toolset(inputs).register(plain).replace(WallClock()).map(lambda item: item.replace(timeout=3))
    assert_type(everything.get("clock"), Tool)


async def batch(calls: Sequence[ToolCall]) -> list[ToolResult]:
    """The handle of a batch."""
    runner = make_runner()
    offered = runner.tools.only("read_*")
    running = runner.batch(calls, offered=offered)
    running.cancel()
    assert_type(await runner.run_all(calls, principal="ada", offered=offered), list[ToolResult])
    assert_type(await runner.run("read_notes", {"path": "a.txt"}, offered=offered, timeout=3), ToolResult)
    assert_type(await runner.run(calls[0], offered=None), ToolResult)
    assert_type(runner.run_sync(calls[0], ToolContext(), offered=offered), ToolResult)
    assert_type(runner.run_sync("read_notes", {"path": "a.txt"}, offered=offered), ToolResult)
    return [*running.results, *await running]


class First:
    """A selector and a ranker of one's own, without a base class."""

    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        return [match.tool for match in self.rank(tools, messages)]

    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        return [Match(tool, 1.0) for tool in tools][:limit]


async def chosen(runner: Runner, selector: ToolSelector) -> tuple[str, ...]:
    """A part of the tools, and a search tool for the others."""
    ranker: Ranker = First()
    finder = search_tool(runner.tools, ranker, limit=3)
    model = Scripted(["Done."])
    result = await loop(model, model.user("Go."), runner.replace(tools=[*runner.tools, finder]), selector=First())
    await loop(model, result.messages, runner, selector=selector)
    assert_type(list_found_tools(result.results, runner.tools), list[Tool])
    return result.offered


pool: Toolset = assemble_tool_pool([read_notes, weather], [WallClock()], ["clock"])
copied: Tool = read_notes.replace(name="read", timeout=3)


class Elsewhere:
    """Where handlers run, without a base class; and an executor."""

    def executor(self, tool: Tool) -> Executor:
        return There(Recipe(tool))


class There(Executor):
    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    async def run(self, values: object, call: StartedCall) -> object:
        assert_type(judged_text(call.call), str)
        return make_tool(self.recipe.text)


elsewhere: Tool = tool(read_notes.handler, isolation=Elsewhere())
