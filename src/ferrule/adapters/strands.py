"""Strands Agents, both ways: a runner's tools for an agent, and its tools as ours. See docs/frameworks/strands.md.

    agent = Agent(tools=strands.tools(runner))
    tools = strands.from_tools([their_tool])

Read in strands-agents 1.62.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any

from strands import ToolContext as StrandsContext
from strands.interrupt import Interrupt, InterruptException
from strands.tools.decorator import DecoratedFunctionTool
from strands.types.events import ToolResultEvent
from strands.types.tools import AgentTool, ToolSpec, ToolUse

from ferrule.adapters.adapter import Adapter, Tell, context_maker, failed_outside, listed, record_of
from ferrule.definition.signature import read_signature
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError, ToolError
from ferrule.kernel.results import describe_effect
from ferrule.runner import Runner
from ferrule.stores.store import Store
from ferrule.types import Coro
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
_UNFIT_FOR_NAMES = r"[^a-zA-Z0-9 ()\[\]-]"
"""The characters that Bedrock refuses in the name of a document."""
_RESPONSE = {"type": "object", "properties": {"response": {}}, "required": ["response"]}
_OURS = "ferrule "
"""The beginning of the names of interrupts made here."""
_CANCELLED = ToolResult(None, "The call was cancelled.", status="cancelled")
_LOOK_EVERY = 0.05
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
        context: Make the context of a call from a context of Strands; `context_of` by default. A call can only wait for
            a person if it has a `session`.
        records: The store of records until they are answered; the journal's store by default.

    Raises:
        DefinitionError: `runner` is no runner.
    """
    adapter = Adapter(runner, "Strands Agents", suspends=True, records=records)
    made = context_maker("Strands Agents", context, context_of)
    return [_RunnerAgentTool(adapter, tool, made) for tool in adapter.runner.tools]


def context_of(context: StrandsContext) -> ToolContext[Any]:
    """Return a context with the agent's session, and the invocation state as deps; Strands has no principal."""
    return ToolContext(session=getattr(context.agent, "session_id", None), deps=context.invocation_state)


class _RunnerAgentTool(AgentTool):
    def __init__(self, adapter: Adapter, tool: Tool, context_of: Callable[[StrandsContext], ToolContext[Any]]) -> None:
        super().__init__()
        self._adapter, self._tool, self._context_of = adapter, tool, context_of

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
        theirs = kwargs.get("_tool_context") or _context_in(tool_use, invocation_state)
        theirs.tool_use = tool_use  # a middleware may have replaced it
        result = _CANCELLED
        if not theirs.cancel_signal.is_set():
            steps = _Steps()
            work, watch = _begun(self._result(theirs, steps.tell)), None
            try:
                if not work.done():
                    await asyncio.sleep(0)  # before Python 3.12 it begins now, and most calls end: 10 µs less
                if not work.done():
                    work.add_done_callback(steps.wake)
                    watch = _Watch(theirs.cancel_signal, work)
                while steps.told or not work.done():
                    for step in await steps.next():
                        yield step
            finally:
                if watch is not None:
                    watch.end()
                if not work.done():
                    work.cancel()
                    await asyncio.wait([work])
            if not work.cancelled():
                result = work.result()
        yield ToolResultEvent(_strands_result(tool_use, result))

    async def _result(self, theirs: StrandsContext, tell: Tell) -> ToolResult:
        """Return the outcome of the call.

        Raises:
            InterruptException: It waits for a person.
        """
        try:
            return await self._run_or_answer(theirs, tell)
        except InterruptException:
            raise
        except Exception as error:  # Strands would show the model its text
            return failed_outside(self._tool.name, error)

    async def _run_or_answer(self, theirs: StrandsContext, tell: Tell) -> ToolResult:
        call = ToolCall(theirs.tool_use["toolUseId"], self._tool.name, theirs.tool_use["input"])
        context = self._context_of(theirs)
        again = _may_run_again(theirs)
        record = await self._adapter.find(call, context) if again else None
        if record is None:
            interrupt = _last_interrupt(theirs) if again else None
            if interrupt is None:
                result = await self._adapter.run(call, context, tell)
            elif interrupt.response is None:
                result = await self._adapter.ask_again(call, context, tell)
            else:
                result = await self._adapter.answer(call, context, _response_decision(interrupt.response), None, tell)
            record = None if result.pending is None else record_of(result)
        while record is not None:
            if not context.session:
                log.error(
                    "strands: a call of tool %r can only wait for a person in a session: give tools(runner, context=…) "
                    "a function whose ToolContext has one",
                    call.name,
                )
                ran = describe_effect(False if record["pending"]["kind"] == "approval" else None)
                text = f"A person would have to be asked about {call.name}, and cannot be asked here. {ran}"
                return ToolResult(None, text, status="denied")
            response = theirs.interrupt(_OURS + record["pending"]["key"], _interrupt_reason(record["pending"]))
            result = await self._adapter.answer(call, context, _response_decision(response), record, tell)
            record = None if result.pending is None else record_of(result)
        return result


def _context_in(tool_use: ToolUse, invocation_state: dict[str, Any]) -> StrandsContext:
    agent = invocation_state["agent"]
    signal = getattr(agent, "cancel_signal", None) or threading.Event()
    return StrandsContext(tool_use, agent, invocation_state, signal)


def _may_run_again(theirs: StrandsContext) -> bool:
    """Return whether the call may be one that was interrupted.

    The answer is no if the agent reports that it was not resumed; this saves the search for a record. A context of
    another kind, for a call in the background, is resumed by itself.
    """
    resumed = getattr(getattr(theirs.agent, "_interrupt_state", None), "activated", True)
    return bool(resumed) or type(theirs) is not StrandsContext


def _last_interrupt(theirs: StrandsContext) -> Interrupt | None:
    """Return the newest interrupt of ours that asked about this call."""
    return next((one for one in reversed(_interrupts_of(theirs)) if one.name.startswith(_OURS)), None)


def _interrupts_of(context: StrandsContext) -> list[Interrupt]:
    """Return the interrupts of this call in its agent. The id of an interrupt is made from its call and its name."""
    state = getattr(context.agent, "_interrupt_state", None)
    known = [] if state is None else [*state.interrupts.values()]
    return [one for one in known if one.id == context._interrupt_id(one.name)]


if sys.version_info >= (3, 12):

    def _begun(work: Coro[ToolResult]) -> asyncio.Task[ToolResult]:
        """Return a task that has run until its first wait.

        Most calls have ended by then, one turn of the loop (20 µs) earlier.
        """
        return asyncio.Task(work, loop=asyncio.get_running_loop(), eager_start=True)

else:

    def _begun(work: Coro[ToolResult]) -> asyncio.Task[ToolResult]:
        return asyncio.ensure_future(work)


class _Steps:
    """The progress of a call, until Strands takes it."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self._awaited: asyncio.Future[None] | None = None

    async def tell(self, done: float, total: float | None, message: str | None) -> None:
        self.told.append({"done": done, "total": total, "message": message})
        self.wake()

    def wake(self, work: object = None) -> None:
        """End the wait."""
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    async def next(self) -> list[dict[str, Any]]:
        """Return the new steps, as soon as there are some or the call has ended."""
        if not self.told:
            self._awaited = asyncio.get_running_loop().create_future()
            await self._awaited
        told, self.told = self.told, []
        return told


class _Watch:
    """A watch that cancels the work when the signal is set."""

    def __init__(self, signal: threading.Event, work: asyncio.Future[Any]) -> None:
        self._signal, self._work = signal, work
        self._loop = asyncio.get_running_loop()
        self._look()

    def _look(self) -> None:
        if self._signal.is_set():
            self._work.cancel()
        self._next = self._loop.call_later(_LOOK_EVERY, self._look)

    def end(self) -> None:
        self._next.cancel()


def _interrupt_reason(pending: Mapping[str, Any]) -> dict[str, Any]:
    call = pending["call"]
    about = {"call_id": call["id"], "tool": call["name"], "arguments": thaw(pending["arguments"])}
    schema = {"schema": thaw(pending["schema"])} if pending["schema"] else {}
    return {"reason": pending["reason"], **about, **schema}


def _response_decision(response: object) -> Decision | bool:
    if isinstance(response, str):
        return deny(response)
    if isinstance(response, Mapping) and isinstance(arguments := response.get("arguments"), Mapping):
        return allow(arguments=arguments)
    return response is True


def _strands_result(tool_use: ToolUse, result: ToolResult) -> Any:
    status = "success" if result.success else "error"
    content = [_strands_block(block) for block in result.content]
    return {"toolUseId": tool_use["toolUseId"], "status": status, "content": content}


def _strands_block(block: Block) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"text": block.text}
    mime_type = block.mime_type.partition(";")[0]
    if block.data is not None and mime_type in _IMAGE_FORMATS:
        return {"image": {"format": _IMAGE_FORMATS[mime_type], "source": {"bytes": block.data}}}
    if block.data is not None and mime_type in _DOCUMENT_FORMATS:
        name = re.sub(_UNFIT_FOR_NAMES, "-", block.name or "document")
        return {"document": {"format": _DOCUMENT_FORMATS[mime_type], "name": name, "source": {"bytes": block.data}}}
    return {"text": f"[{block.kind} {block.uri or block.name or block.mime_type}]"}


# -- their tools as ours ----------------------------------------------------------------------------------------------


def from_tools(theirs: Iterable[AgentTool], *, agent: Any = None) -> Toolset:
    """Return tools of Strands as tools of ours.

    The stream of a tool becomes progress, and a result with the status `"error"` is a failure. A tool that interrupts
    is run again with the answer, whose value is `{"response": …}`. Annotations are hints of the tool's server, and go
    into `metadata["annotations"]`; use `.replace(read_only=True)` if you trust them.

    Args:
        agent: The agent for tools that take a `ToolContext` or the agent.

    Raises:
        DefinitionError: Such a tool has no agent, or an object is no tool of Strands.
    """
    return Toolset(_from_strands(tool, agent) for tool in listed("Strands Agents", theirs))


def _from_strands(theirs: Any, agent: Any) -> Tool:
    if not isinstance(theirs, AgentTool):
        raise DefinitionError(f"strands.from_tools takes tools of Strands, made with @tool, not {theirs!r}")
    spec = theirs.tool_spec
    schema = spec["inputSchema"].get("json", spec["inputSchema"])
    if agent is None and (needs := _injected(theirs, schema)):
        raise DefinitionError(
            f"{theirs.tool_name!r} takes {needs[0]!r}, which a run of an agent has: from_tools([…], agent=…) gives it "
            "that agent, with its state and messages"
        )

    async def handler(payload: dict[str, Any], context: ToolContext[Any]) -> object:
        state = {**context.deps} if isinstance(context.deps, Mapping) else {"deps": context.deps}
        # No other call of the agent has this id: it is made from the principal, the session and the arguments as well.
        used: ToolUse = {"name": theirs.tool_name, "toolUseId": context.idempotency_key, "input": payload}
        if agent is not None:
            state["agent"] = agent
        answered: list[Any] = []
        if context.answer is not None:
            given = thaw(context.answer.state)
            answered = [*given["answered"], {**given["asked"], "response": thaw(context.answer.value["response"])}]
        own = StrandsContext(used, agent, state)
        try:
            for one in answered:
                _give(own, **one)
            last = await _last_event(theirs, used, state, context)
        finally:
            _forget_interrupts(own)
        if isinstance(last, Interrupt):
            question = last.reason if isinstance(last.reason, str) else to_json_text(last.reason or last.name)
            asked = {"name": last.name, "reason": to_jsonable(last.reason)}
            return InputRequired(question, _RESPONSE, {"answered": answered, "asked": asked})
        return _from_strands_result(last)

    output_schema = spec.get("outputSchema")
    return Tool(
        theirs.tool_name,
        handler,
        description=spec["description"],
        input_schema=schema,
        output_schema=output_schema and output_schema.get("json", output_schema),
        metadata={"annotations": spec["annotations"]} if "annotations" in spec else {},
    )


def _injected(theirs: AgentTool, schema: Mapping[str, Any]) -> list[str]:
    """Return the parameters of a function that Strands fills."""
    if not isinstance(theirs, DecoratedFunctionTool):
        return []
    parameters = read_signature(theirs).parameters.values()
    named = [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    return [name for name in named if name not in (*schema.get("properties", ()), "self", "cls")]


async def _last_event(theirs: AgentTool, used: ToolUse, state: dict[str, Any], context: ToolContext[Any]) -> Any:
    """Return the result of a tool, or its interrupt. Its stream before that is announced."""
    last: Any = None
    try:
        async for event in theirs.stream(used, state):
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


def _give(context: StrandsContext, name: str, reason: object, response: object) -> None:
    """Set the response of the interrupt with this name."""
    try:
        context.interrupt(name, reason, response)
    except InterruptException as known:  # in the process that was interrupted
        known.interrupt.response = response


def _forget_interrupts(context: StrandsContext) -> None:
    """Remove the interrupts of this call from its agent.

    An answer is for the question that was asked, and for no other.
    """
    for one in _interrupts_of(context):
        context.agent._interrupt_state.interrupts.pop(one.id, None)


def _from_strands_result(given: Any) -> object:
    blocks = [block for item in given["content"] for block in _our_blocks(item)]
    text = "\n".join(block.text for block in blocks if isinstance(block, Text))
    if given["status"] == "error":
        raise ToolError(text)
    if "structuredContent" in given:
        return ToolResult(given["structuredContent"], content=blocks)
    found = [item["json"] for item in given["content"] if "json" in item]
    output = found[0] if len(found) == len(given["content"]) == 1 else text
    return ToolResult(output, content=blocks)


def _our_blocks(item: Mapping[str, Any]) -> Iterable[Block]:
    for kind, value in item.items():
        if kind in ("image", "document") and "bytes" in value["source"]:
            mime_type = _MIME_TYPES.get(value["format"], "application/octet-stream")
            data, name = value["source"]["bytes"], value.get("name")
            yield Media("image" if kind == "image" else "file", data, mime_type, name=name)
        else:
            yield Text(value if kind == "text" else to_json_text(value))
