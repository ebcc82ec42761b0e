"""axio, both ways: a runner behind an agent, and axio's tools and guards as ours. See docs/frameworks/axio.md.

    agent = Agent(system, transport, tools=axio.tools(runner), before_tools=axio.before_tools(runner))

`before_tools` gets the calls of a turn with their ids and the model's own arguments, before axio checks or drops any of
them. So the tools are listed only for the model, and their handlers run nothing.

Read in axio 0.12.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NoReturn

from axio.blocks import AudioBlock, ContentBlock, ImageBlock, TextBlock, ToolResultBlock, ToolUseBlock
from axio.exceptions import GuardError as TheirGuardError
from axio.exceptions import HandlerError as TheirHandlerError
from axio.permission import PermissionGuard
from axio.tool import Tool as TheirTool

from ferrule.adapters.adapter import (
    Adapter,
    check_context_function,
    check_runner,
    describe_media,
    is_text_only,
    read_tool_list,
    result_from_outside_error,
)
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError, ToolError
from ferrule.runner import Runner
from ferrule.types import GuardFunction, Verdict
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, Text
from ferrule.values.context import ToolContext
from ferrule.values.decision import deny
from ferrule.values.frozen import thaw
from ferrule.values.result import ToolResult

_BLOCKS = {"image": ImageBlock, "audio": AudioBlock}


def before_tools(
    runner: Runner, context: ToolContext[Any] | Callable[[], ToolContext[Any]] | None = None
) -> Callable[[list[ToolUseBlock], int], Awaitable[list[ToolResultBlock]]]:
    """Return a function that answers a turn's calls of the runner's tools. Calls of other tools are left to axio.

    Pass it as `Agent(before_tools=…)`, or as the last of `before_tools_hooks`: if a later hook raises or loads
    instructions, axio tells the model that nothing was run.

    Args:
        context: The context of the calls, or a function that returns a new one for each turn. axio has no session and
            no principal of its own; without a session, a repeated call is not recognized by its id.

    Raises:
        DefinitionError: A tool may ask, and the runner has no approver: no call can wait in axio.
    """
    adapter = Adapter(runner, "axio", suspends=False)
    contexts = check_context_function("axio", _for_each_turn(context), lambda turn: ToolContext())

    async def answer_calls(blocks: list[ToolUseBlock], iteration: int) -> list[ToolResultBlock]:
        calls: dict[str, ToolCall] = {}
        for block in blocks:
            if (tool := runner.tools.find(block.name)) is not None:
                calls.setdefault(block.id, ToolCall(block.id, tool.name, block.input))
        results: Iterable[ToolResult]
        try:
            context = contexts(iteration)
            ran = await adapter.runner.run_all(calls.values(), context)
            results = [await adapter.deny_if_waiting(result, context) for result in ran]
        except Exception as error:  # axio would show the model its text
            results = [result_from_outside_error(call.name, error) for call in calls.values()]
        return [_to_their_result(id, result) for id, result in zip(calls, results, strict=True)]

    return answer_calls


def _for_each_turn(context: Any) -> Any:
    if isinstance(context, ToolContext):
        return lambda turn: context
    return (lambda turn: context()) if callable(context) else context


def tools(runner: Runner) -> list[TheirTool[Any]]:
    """Return the runner's tools, to list them for the model in `Agent(tools=…)` beside `before_tools`.

    Raises:
        DefinitionError: `runner` is no runner.
    """
    check_runner("axio", runner)
    return [_to_listed_tool(tool) for tool in runner.tools]


def from_tools(theirs: Iterable[TheirTool[Any]]) -> Toolset:
    """Return axio's tools as ours: with their schema, guards, context and limit, and read-only by their `access`.

    The guards are asked as guards: a call that one denies is `denied`, and changed arguments are judged again. The
    limit is for the new tool alone; it does not count the calls of an agent of axio.

    Raises:
        DefinitionError: An object is no tool of axio.
    """
    return Toolset([_to_our_tool(one) for one in read_tool_list("axio", theirs)])


def guard(theirs: PermissionGuard) -> GuardFunction:
    """Return a guard of axio for a runner. The text of its `GuardError` is the reason of the deny.

    It is called as axio calls it, with a tool of axio, so a `ConcurrentGuard` keeps its limit and a `PolicyGuard` can
    read the tool.

    Raises:
        DefinitionError: The object is no guard of axio.
    """
    return _to_our_guard(theirs, None)


class _Listed(TheirTool[Any]):
    """A tool that is listed for a model; `before_tools` answers its calls."""

    def __post_init__(self) -> None:
        if self.guards:
            raise DefinitionError(
                f"axio: the tool_guards of an agent are not asked about {self.name!r}, whose calls before_tools "
                "answers: give them to the runner, Runner(…, guards=[axio.guard(…)])"
            )
        super().__post_init__()


async def _refuse_listed_call(**arguments: Any) -> NoReturn:
    raise TheirHandlerError(
        "nothing was run: the agent has no before_tools of the runner whose tool this is; "
        "Agent(…, before_tools=ferrule.adapters.axio.before_tools(runner))"
    )


def _to_listed_tool(tool: Tool) -> TheirTool[Any]:
    schema = MappingProxyType(thaw(tool.input_schema))
    return _Listed(tool.wire_name, _refuse_listed_call, tool.description or tool.name, schema=schema)


def _to_their_result(id: str, result: ToolResult) -> ToolResultBlock:
    if is_text_only(result):
        return ToolResultBlock(id, result.text, is_error=not result.success)
    return ToolResultBlock(id, [_to_their_block(block) for block in result.content], is_error=not result.success)


def _to_their_block(block: Block) -> Any:
    if isinstance(block, Text):
        return TextBlock(block.text)
    if block.data is not None and block.kind in _BLOCKS:
        return _BLOCKS[block.kind](block.mime_type, block.data)
    return TextBlock(describe_media(block))


def _to_our_tool(theirs: object) -> Tool:
    if not isinstance(theirs, TheirTool):
        raise DefinitionError(f"axio.from_tools takes tools of axio, not {theirs!r}")
    access = theirs.access
    bare = replace(theirs, guards=(), concurrency=None)

    async def handler(payload: dict[str, Any]) -> Any:
        try:
            return _to_our_output(await bare(**payload))
        except TheirHandlerError as error:
            cause = error.__cause__
            if cause is None or str(cause) != str(error):  # the author's own words; else axio's text
                raise ToolError(str(error)) from error
            raise cause from None

    def reads_only(arguments: Mapping[str, Any]) -> bool:
        return access is not None and all(one.operation == "read" for one in access(arguments))

    return Tool(
        theirs.name,
        handler,
        description=theirs.description,
        input_schema=theirs.input_schema,
        guards=[_to_our_guard(one, theirs) for one in theirs.guards],
        concurrency=theirs.concurrency,
        read_only=reads_only if access is not None else False,
    )


def _to_our_output(value: Any) -> Any:
    if not (isinstance(value, list) and value and all(isinstance(block, ContentBlock) for block in value)):
        return value
    return ToolResult(content=[_to_our_block(block) for block in value])


def _to_our_block(block: Any) -> Block:
    if isinstance(block, TextBlock):
        return Text(block.text)
    kind = next((kind for kind, made in _BLOCKS.items() if isinstance(block, made)), "file")
    return Media(kind, block.data, block.media_type)  # type: ignore[arg-type]


def _to_our_guard(theirs: PermissionGuard, tool: TheirTool[Any] | None) -> GuardFunction:
    if not isinstance(theirs, PermissionGuard):
        raise DefinitionError(f"axio.guard takes a guard of axio, not {theirs!r}")

    async def ask_guard(call: ToolCall, context: ToolContext[Any]) -> Verdict:
        running: Any = context.running_call
        try:
            answer = await theirs(tool or _to_listed_tool(running.tool), **thaw(call.arguments))
        except TheirGuardError as error:
            return deny(str(error) or "denied")
        if not isinstance(answer, Mapping):
            return deny(f"the guard gave {type(answer).__name__}, and axio wants the arguments back")
        return answer

    ask_guard.__name__ = type(theirs).__name__
    ask_guard.asks = False  # type: ignore[attr-defined]
    return ask_guard
