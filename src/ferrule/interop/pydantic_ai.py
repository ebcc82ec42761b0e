"""pydantic-ai, both ways: a runner as a toolset of an agent, and its tools as ours. See docs/frameworks/pydantic-ai.md.

    agent = Agent(model, toolsets=[pydantic_ai.toolset(runner)], output_type=[str, DeferredToolRequests])

Read in pydantic-ai 2.68.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic_ai import BinaryContent, FunctionToolset, RunContext, ToolReturn
from pydantic_ai import Tool as TheirTool
from pydantic_ai.exceptions import ApprovalRequired, ModelRetry, ToolFailed
from pydantic_ai.messages import CustomEvent

from ferrule.definition.tool import Tool
from ferrule.interop.adapter import Adapter, record_of
from ferrule.runner import Runner
from ferrule.store import Store
from ferrule.values.call import ToolCall
from ferrule.values.content import Media, Text
from ferrule.values.context import ToolContext
from ferrule.values.frozen import thaw
from ferrule.values.result import ToolResult

_OURS = "ferrule"


@dataclass(kw_only=True)
class Progress(CustomEvent):
    """What a tool has told by `context.progress`, among the events of the agent's run."""

    done: float
    total: float | None = None
    message: str | None = None


def toolset(
    runner: Runner,
    *,
    id: str = _OURS,
    context: Callable[[RunContext[Any]], ToolContext[Any]] | None = None,
    records: Store | None = None,
    max_retries: int = 3,
) -> FunctionToolset[Any]:
    """A toolset whose calls the runner runs."""
    adapter = Adapter(runner, "pydantic-ai", suspends=True, records=records)
    made = [_their_tool(adapter, tool, context or context_of, max_retries) for tool in runner.tools]
    return FunctionToolset(made, id=id)


def context_of(ctx: RunContext[Any]) -> ToolContext[Any]:
    """The conversation as session, and `deps`."""
    return ToolContext(session=ctx.conversation_id, deps=ctx.deps)


def _their_tool(
    adapter: Adapter, tool: Tool, context_of: Callable[[RunContext[Any]], ToolContext[Any]], max_retries: int
) -> TheirTool[Any]:
    async def call(ctx: RunContext[Any], /, **arguments: Any) -> Any:
        async def tell(done: float, total: float | None, message: str | None) -> None:
            await ctx.emit(Progress(done=done, total=total, message=message))

        sent, context = ToolCall(ctx.tool_call_id or "", tool.name, arguments), context_of(ctx)
        if ctx.tool_call_approved:
            record = (ctx.tool_call_metadata or {}).get(_OURS)
            result = await adapter.answer(sent, context, None, record, tell)
        else:
            result = await adapter.run(sent, context, tell)
        if result.pending is not None:
            raise ApprovalRequired(metadata={_OURS: record_of(result), "reason": result.pending["reason"]})
        return _returned(result)

    made = TheirTool.from_schema(
        call,
        tool.wire_name,
        tool.description,
        thaw(tool.input_schema),
        takes_ctx=True,
        sequential=tool.parallel is not True,
    )
    made.max_retries = max_retries
    made.metadata = {_OURS: tool.name}
    return made


def _returned(result: ToolResult) -> Any:
    if result.status == "invalid":
        raise ModelRetry(result.text)
    if not result.success:
        raise ToolFailed(result.text)
    if all(isinstance(block, Text) for block in result.content):
        return result.text
    return ToolReturn([_their_block(block) for block in result.content])


def _their_block(block: Any) -> Any:
    if isinstance(block, Media) and block.data is not None:
        return BinaryContent(block.data, media_type=block.mime_type)
    return block.text if isinstance(block, Text) else f"[{block.kind} {block.uri}]"
