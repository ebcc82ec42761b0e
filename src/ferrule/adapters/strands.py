"""Strands Agents, both ways: a runner's tools for an agent, and its tools as ours. See docs/frameworks/strands.md.

    agent = Agent(tools=strands.tools(runner))
    tools = strands.from_tools([their_tool])

Read in strands-agents 1.62.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any

from strands import ToolContext as StrandsContext
from strands.interrupt import Interrupt, InterruptException
from strands.tools.decorator import DecoratedFunctionTool
from strands.types.events import ToolResultEvent
from strands.types.tools import AgentTool, ToolSpec, ToolUse

from ferrule.adapters.adapter import (
    Adapter,
    ProgressFunction,
    check_context_function,
    describe_media,
    read_tool_list,
    record_from_result,
    result_from_outside_error,
)
from ferrule.definition.signature import read_signature
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError, ToolError
from ferrule.kernel.results import describe_effect
from ferrule.kernel.tasks import start_eagerly
from ferrule.runner import Runner
from ferrule.stores.store import Store
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, Text, to_json_text, to_jsonable
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, deny
from ferrule.values.frozen import thaw
from ferrule.values.input import InputRequired
from ferrule.values.result import ToolResult

log = logging.getLogger("ferrule")
_IMAGE_FORMATS = {f"image/{format}": format for format in ("png", "jpeg", "gif", "webp")}
_OPEN_XML = "application/vnd.openxmlformats-officedocument."
_DOCUMENT_FORMATS = {
    "application/pdf": "pdf",
    "application/msword": "doc",
    "application/vnd.ms-excel": "xls",
    f"{_OPEN_XML}wordprocessingml.document": "docx",
    f"{_OPEN_XML}spreadsheetml.sheet": "xlsx",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
    "text/plain": "txt",
}
_MIME_TYPES = {format: mime_type for mime_type, format in (_IMAGE_FORMATS | _DOCUMENT_FORMATS).items()}
_REFUSED_NAME_CHARACTERS = r"[^a-zA-Z0-9 ()\[\]-]"
"""The characters that Bedrock refuses in the name of a document."""
_RESPONSE = {"type": "object", "properties": {"response": {}}, "required": ["response"]}
_INTERRUPT_PREFIX = "ferrule "
"""The beginning of the names of interrupts made here."""
_CANCELLED_RESULT = ToolResult(None, "The call was cancelled.", status="cancelled")
_POLL_SECONDS = 0.05
"""The seconds between two looks at the agent's cancellation: its signal is an event of threads, and Strands looks as
often.
"""


def tools(
    runner: Runner,
    *,
    context: Callable[[StrandsContext], ToolContext[Any]] | None = None,
    records: Store | None = None,
) -> list[AgentTool]:
    """Return the runner's tools for an agent.

    A call that needs a person's answer interrupts the agent. The reason of the interrupt is `{"reason": …, "call_id":
    …, "tool": …, "arguments": …}`, with a `"schema"` if a tool asks a question. Its response is `True`; or
    `{"arguments": …}`, a yes to other arguments, or the answer to the tool. A text is a no with that reason, and
    everything else a no. An interrupt is for one record: if the record of a question is gone, or the question has
    changed, a yes has no effect, and the person is asked again.

    Args:
        runner: The runner of the calls.
        context: Make the context of a call from a context of Strands; `to_context` by default. A call can only wait for
            a person if it has a `session`.
        records: The store of records until they are answered; the journal's store by default.

    Raises:
        DefinitionError: `runner` is no runner.
    """
    adapter = Adapter(runner, "Strands Agents", suspends=True, records=records)
    make_context = check_context_function("Strands Agents", context, to_context)
    return [_RunnerAgentTool(adapter, tool, make_context) for tool in adapter.runner.tools]


def to_context(context: StrandsContext) -> ToolContext[Any]:
    """Return a context with the agent's session, and the invocation state as deps; Strands has no principal."""
    return ToolContext(session=getattr(context.agent, "session_id", None), deps=context.invocation_state)


class _RunnerAgentTool(AgentTool):
    def __init__(self, adapter: Adapter, tool: Tool, to_context: Callable[[StrandsContext], ToolContext[Any]]) -> None:
        super().__init__()
        self._adapter, self._tool, self._to_context = adapter, tool, to_context

    @property
    def tool_name(self) -> str:
        return self._tool.wire_name

    @property
    def tool_type(self) -> str:
        return "ferrule"

    @property
    def tool_spec(self) -> ToolSpec:
        tool = self._tool
        schema = {"json": thaw(tool.input_schema)}
        return {"name": tool.wire_name, "description": tool.description or tool.name, "inputSchema": schema}

    async def stream(
        self, tool_use: ToolUse, invocation_state: dict[str, Any], **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        # A call in the background has a context of its own, passed in the same way as to tools of Strands.
        ctx = kwargs.get("_tool_context") or _make_strands_context(tool_use, invocation_state)
        ctx.tool_use = tool_use  # a middleware may have replaced it
        result = _CANCELLED_RESULT
        if not ctx.cancel_signal.is_set():
            loop = asyncio.get_running_loop()
            steps: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

            async def on_progress(done: float, total: float | None, message: str | None) -> None:
                steps.put_nowait({"done": done, "total": total, "message": message})

            work = start_eagerly(self._result(ctx, on_progress), loop=loop)
            if not work.done():
                work.add_done_callback(lambda _: steps.put_nowait(None))
                watch = loop.call_later(_POLL_SECONDS, _cancel_on_signal, ctx.cancel_signal, work, loop)
                try:
                    while (step := await steps.get()) is not None:
                        yield step
                finally:
                    watch.cancel()
                    if not work.done():
                        work.cancel()
                        await asyncio.wait([work])
            if not work.cancelled():
                result = work.result()
        yield ToolResultEvent(_to_their_result(tool_use, result))

    async def _result(self, ctx: StrandsContext, on_progress: ProgressFunction) -> ToolResult:
        """Return the outcome of the call.

        Raises:
            InterruptException: It waits for a person.
        """
        try:
            return await self._run_or_answer(ctx, on_progress)
        except InterruptException:
            raise
        except Exception as error:  # Strands would show the model its text
            return result_from_outside_error(self._tool.name, error)

    async def _run_or_answer(self, ctx: StrandsContext, on_progress: ProgressFunction) -> ToolResult:
        call = ToolCall(ctx.tool_use["toolUseId"], self._tool.name, ctx.tool_use["input"])
        context = self._to_context(ctx)
        again = _may_run_again(ctx)
        record = await self._adapter.find_record(call, context) if again else None
        if record is None:
            interrupt = _find_last_interrupt(ctx) if again else None
            if interrupt is None:
                result = await self._adapter.run(call, context, on_progress)
            elif interrupt.response is None:
                result = await self._adapter.ask_again(call, context, on_progress)
            else:
                result = await self._adapter.answer(
                    call, context, _read_response(interrupt.response), None, on_progress
                )
            record = None if result.pending is None else record_from_result(result)
        while record is not None:
            if not context.session:
                log.error(
                    "strands: a call of tool %r cannot wait for a person without a session: tools(runner, context=…) "
                    "takes a function that returns a ToolContext with a session",
                    call.name,
                )
                ran = describe_effect(False if record["pending"]["kind"] == "approval" else None)
                text = f"{call.name} needs a person's answer, and nobody can be asked here. {ran}"
                return ToolResult(None, text, status="denied")
            response = ctx.interrupt(
                _INTERRUPT_PREFIX + record["pending"]["key"], _make_interrupt_reason(record["pending"])
            )
            result = await self._adapter.answer(call, context, _read_response(response), record, on_progress)
            record = None if result.pending is None else record_from_result(result)
        return result


def _make_strands_context(tool_use: ToolUse, invocation_state: dict[str, Any]) -> StrandsContext:
    agent = invocation_state["agent"]
    signal = getattr(agent, "cancel_signal", None) or threading.Event()
    return StrandsContext(tool_use, agent, invocation_state, signal)


def _may_run_again(ctx: StrandsContext) -> bool:
    """Return whether the call may be one that was interrupted.

    The answer is no if the agent reports that it was not resumed; this saves the search for a record. A context of
    another kind, for a call in the background, is resumed by itself.
    """
    resumed = getattr(getattr(ctx.agent, "_interrupt_state", None), "activated", True)
    return bool(resumed) or type(ctx) is not StrandsContext


def _find_last_interrupt(ctx: StrandsContext) -> Interrupt | None:
    """Return the newest interrupt of ours that asked about this call."""
    return next((found for found in reversed(_list_interrupts(ctx)) if found.name.startswith(_INTERRUPT_PREFIX)), None)


def _list_interrupts(context: StrandsContext) -> list[Interrupt]:
    """Return the interrupts of this call in its agent. The id of an interrupt is made from its call and its name."""
    state = getattr(context.agent, "_interrupt_state", None)
    interrupts = [] if state is None else state.interrupts.values()
    return [found for found in interrupts if found.id == context._interrupt_id(found.name)]


def _cancel_on_signal(signal: threading.Event, work: asyncio.Task[Any], loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the work when the signal is set. Look again and again until the work has ended."""
    if signal.is_set():
        work.cancel()
    elif not work.done():
        loop.call_later(_POLL_SECONDS, _cancel_on_signal, signal, work, loop)


def _make_interrupt_reason(pending: Mapping[str, Any]) -> dict[str, Any]:
    call = pending["call"]
    about = {"call_id": call["id"], "tool": call["name"], "arguments": thaw(pending["arguments"])}
    schema = {"schema": thaw(pending["schema"])} if pending["schema"] else {}
    return {"reason": pending["reason"], **about, **schema}


def _read_response(response: object) -> Decision | bool:
    if isinstance(response, str):
        return deny(response)
    if isinstance(response, Mapping) and isinstance(arguments := response.get("arguments"), Mapping):
        return allow(arguments=arguments)
    return response is True


def _to_their_result(tool_use: ToolUse, result: ToolResult) -> Any:
    status = "success" if result.success else "error"
    content = [_to_their_block(block) for block in result.content]
    return {"toolUseId": tool_use["toolUseId"], "status": status, "content": content}


def _to_their_block(block: Block) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"text": block.text}
    mime_type = block.mime_type.partition(";")[0]
    if block.data is not None and mime_type in _IMAGE_FORMATS:
        return {"image": {"format": _IMAGE_FORMATS[mime_type], "source": {"bytes": block.data}}}
    if block.data is not None and mime_type in _DOCUMENT_FORMATS:
        name = re.sub(_REFUSED_NAME_CHARACTERS, "-", block.name or "document")
        return {"document": {"format": _DOCUMENT_FORMATS[mime_type], "name": name, "source": {"bytes": block.data}}}
    return {"text": describe_media(block)}


# -- their tools as ours ----------------------------------------------------------------------------------------------


def from_tools(tools: Iterable[AgentTool], *, agent: Any = None) -> Toolset:
    """Return tools of Strands as tools of ours.

    The stream of a tool becomes progress, and a result with the status `"error"` is a failure. A tool that interrupts
    is run again with the answer, whose value is `{"response": …}`. Annotations are hints of the tool's server, and go
    into `metadata["annotations"]`; use `.replace(read_only=True)` if you trust them.

    Args:
        agent: The agent for tools that take a `ToolContext` or the agent.

    Raises:
        DefinitionError: Such a tool has no agent, or an object is no tool of Strands.
    """
    return Toolset(_to_our_tool(tool, agent) for tool in read_tool_list("Strands Agents", tools))


def _to_our_tool(tool: Any, agent: Any) -> Tool:
    if not isinstance(tool, AgentTool):
        raise DefinitionError(f"strands.from_tools takes tools of Strands, such as functions with @tool, not {tool!r}")
    spec = tool.tool_spec
    schema = spec["inputSchema"].get("json", spec["inputSchema"])
    if agent is None and (needs := _find_injected(tool, schema)):
        raise DefinitionError(
            f"the tool {tool.tool_name!r} takes {needs[0]!r} from the run of an agent: pass the agent, "
            "from_tools([…], agent=…)"
        )

    async def handler(payload: dict[str, Any], context: ToolContext[Any]) -> object:
        state = {**context.deps} if isinstance(context.deps, Mapping) else {"deps": context.deps}
        # No other call of the agent has this id: it is made from the principal, the session and the arguments as well.
        tool_use: ToolUse = {"name": tool.tool_name, "toolUseId": context.idempotency_key, "input": payload}
        if agent is not None:
            state["agent"] = agent
        answered: list[Any] = []
        if context.answer is not None:
            earlier = thaw(context.answer.state)
            answered = [*earlier["answered"], {**earlier["asked"], "response": thaw(context.answer.value["response"])}]
        ctx = StrandsContext(tool_use, agent, state)
        try:
            for interrupt in answered:
                _set_response(ctx, **interrupt)
            last = await _read_last_event(tool, tool_use, state, context)
        finally:
            _forget_interrupts(ctx)
        if isinstance(last, Interrupt):
            question = last.reason if isinstance(last.reason, str) else to_json_text(last.reason or last.name)
            asked = {"name": last.name, "reason": to_jsonable(last.reason)}
            return InputRequired(question, _RESPONSE, {"answered": answered, "asked": asked})
        return _to_our_result(last)

    output_schema = spec.get("outputSchema")
    return Tool(
        tool.tool_name,
        handler,
        description=spec["description"],
        input_schema=schema,
        output_schema=output_schema and output_schema.get("json", output_schema),
        metadata={"annotations": spec["annotations"]} if "annotations" in spec else {},
    )


def _find_injected(tool: AgentTool, schema: Mapping[str, Any]) -> list[str]:
    """Return the parameters of a function that Strands fills."""
    if not isinstance(tool, DecoratedFunctionTool):
        return []
    parameters = read_signature(tool).parameters.values()
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [name for name in names if name not in (*schema.get("properties", ()), "self", "cls")]


async def _read_last_event(tool: AgentTool, tool_use: ToolUse, state: dict[str, Any], context: ToolContext[Any]) -> Any:
    """Return the result of a tool, or its interrupt. Its stream before that is announced."""
    last: Any = None
    try:
        async for event in tool.stream(tool_use, state):
            if "tool_interrupt_event" in event:
                return event["tool_interrupt_event"]["interrupts"][0]
            if "tool_stream_event" in event:
                context.announce({"chunk": to_jsonable(event["tool_stream_event"]["data"])})
            last = event
    except InterruptException as raised:
        return raised.interrupt
    if (error := getattr(last, "exception", None)) is not None:  # a model sees its text only if `expose` says so
        raise error
    return last.get("tool_result", last)


def _set_response(context: StrandsContext, name: str, reason: object, response: object) -> None:
    """Set the response of the interrupt with this name."""
    try:
        context.interrupt(name, reason, response)
    except InterruptException as raised:  # in the process that was interrupted
        raised.interrupt.response = response


def _forget_interrupts(context: StrandsContext) -> None:
    """Remove the interrupts of this call from its agent.

    An answer is for the question that was asked, and for no other.
    """
    for interrupt in _list_interrupts(context):
        context.agent._interrupt_state.interrupts.pop(interrupt.id, None)


def _to_our_result(result: Any) -> object:
    blocks = [block for item in result["content"] for block in _to_our_blocks(item)]
    text = "\n".join(block.text for block in blocks if isinstance(block, Text))
    if result["status"] == "error":
        raise ToolError(text)
    if "structuredContent" in result:
        return ToolResult(result["structuredContent"], content=blocks)
    found = [item["json"] for item in result["content"] if "json" in item]
    output = found[0] if len(found) == len(result["content"]) == 1 else text
    return ToolResult(output, content=blocks)


def _to_our_blocks(item: Mapping[str, Any]) -> Iterable[Block]:
    for kind, value in item.items():
        if kind in ("image", "document") and "bytes" in value["source"]:
            mime_type = _MIME_TYPES.get(value["format"], "application/octet-stream")
            data, name = value["source"]["bytes"], value.get("name")
            yield Media("image" if kind == "image" else "file", data, mime_type, name=name)
        else:
            yield Text(value if kind == "text" else to_json_text(value))
