"""What both type checkers must refuse: where one stops doing so, it reports the comment that allows the line."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from ferrule import Decision, Journal, Runner, Tool, ToolCall, ToolContext, ToolHandler, Toolset, tool


@tool
async def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


@tool
def greet(context: ToolContext, name: str) -> str:
    """Greet."""
    return name


class Write(ToolHandler):
    """Write."""

    path: str

    async def __call__(self) -> int:
        return 1


async def wrong_arguments() -> None:
    """What the handler does not take."""
    await add(a="x")  # type: ignore[arg-type]
    await add(a=1, c=3)  # type: ignore[call-arg]
    await add("x")  # type: ignore[arg-type]
    await add()  # type: ignore[call-arg]
    await add(1, 2, 3)  # type: ignore[call-arg]
    await tool(Write)(path=3)  # type: ignore[arg-type]
    text: str = await add(1)  # type: ignore[assignment]
    print(text)


def takes_one(call: ToolCall) -> Decision | None:
    """Nobody asks a guard so."""


def answers_in_words(call: ToolCall, context: ToolContext) -> str:
    """A text is no decision."""
    return "no"


Runner([add], guards=[42])  # type: ignore[list-item]
Runner([add], guards=[takes_one])  # type: ignore[list-item]
Runner([add], guards=[answers_in_words])  # type: ignore[list-item]
Runner([add], around=[answers_in_words])  # type: ignore[list-item]
Runner([add], approve=answers_in_words)  # type: ignore[arg-type]
Runner([add], observers=[takes_one, 42])  # type: ignore[list-item]
Toolset([1])  # type: ignore[list-item]
Toolset(["add"])  # type: ignore[list-item]
Toolset("add")  # type: ignore[arg-type]
Toolset(add)  # type: ignore[arg-type]
Tool("add", 5)  # type: ignore[arg-type]
tool(add, concurency=2)  # type: ignore[call-overload]
add.replace(concurency=2)  # type: ignore[call-overload]
tool(read_only="yes")  # type: ignore[call-overload]
tool(timeout="3")  # type: ignore[call-overload]


async def offered_by_name() -> None:
    """What is offered is a toolset."""
    runner = Runner([add])
    await runner.run("add", {"a": 1}, offered=["add"])  # type: ignore[arg-type]
    await runner.run_all([ToolCall("1", "add")], offered=["add"])  # type: ignore[arg-type]
    runner.batch([ToolCall("1", "add")], offered={"add"})  # type: ignore[arg-type]
    await runner.decide(ToolCall("1", "add"), offered=runner.tools)  # type: ignore[call-arg]
    await add.run({"a": 1}, offered=runner.tools)  # type: ignore[call-arg]


def say_yes(call: ToolCall, context: ToolContext) -> bool:
    return True


tool(reconcile=say_yes)  # type: ignore[arg-type]
Journal.open("calls.db", durabel="full")  # type: ignore[call-arg]
Journal.open("calls.db", durable="none")  # type: ignore[arg-type]
Journal()  # type: ignore[abstract]
Runner([add], journal="calls.db")  # type: ignore[arg-type]
