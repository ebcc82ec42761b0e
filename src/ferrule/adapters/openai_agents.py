"""OpenAI Agents, both ways: a runner as tools of an agent, and its tools as ours. See docs/frameworks/openai-agents.md.

    agent = Agent("desk", tools=openai_agents.tools(runner))

In the SDK a call can wait for a person only before it begins: the SDK asks `needs_approval`, and calls the tool after
the person's yes. So the call is suspended as soon as `needs_approval` is asked, and its record is stored until the tool
is called. A call without a question, or with other arguments, does not run.

Read in openai-agents 0.24.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from inspect import isawaitable
from typing import Any, Final, get_args
from weakref import WeakKeyDictionary

from agents import (
    FunctionTool,
    RunContextWrapper,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    get_current_trace,
)
from agents.exceptions import ModelBehaviorError
from agents.tool import (
    FunctionToolCustomDataContext,
    ToolOriginType,
    ValidToolOutputPydanticModelsTypeAdapter,
    default_tool_error_function,
    get_function_tool_origin,
    resolve_function_tool_failure_error_function,
    set_function_tool_failure_error_function,
)
from agents.tool_context import ToolContext as TheirContext

from ferrule.adapters.adapter import Adapter, context_maker, guards_of, is_text, listed, may_ask, puts_off
from ferrule.arguments.parameters import Invalid
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError, ToolError
from ferrule.kernel.results import describe_effect
from ferrule.runner import Runner
from ferrule.types import Guard
from ferrule.values.call import ToolCall
from ferrule.values.content import Media, Text
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, ask
from ferrule.values.frozen import thaw
from ferrule.values.input import InputRequired
from ferrule.values.json_text import is_same_json
from ferrule.values.result import ToolResult

log = logging.getLogger("ferrule")
_FRAMEWORK: Final = "OpenAI Agents"
_IN_THE_ITEM: Final = frozenset({"input", "output", "error"})
"""The fields of a result's record that the SDK has in its own items."""
_MOST_CHARACTERS: Final = 10_000
"""The most characters of arguments that the model is asked to send."""
_UNASKED: Final = (
    "%s: a call of tool %r has to be asked about, and a person was not, or about another one, or by a runner with "
    "another resume_key; it was not run. A yes to all calls is none here: ferrule.approval.remembered keeps what a "
    "person grants"
)
_UNASKABLE: Final = (
    "%s: a call of tool %r was not run: a guard asks about it whose `asks` says that it does not, or the approver puts "
    "it off and does not say suspends = True"
)
_DATA_URL: Final = re.compile(r"data:(?P<type>[^;,]+)[^,]*;base64,(?P<data>.*)", re.DOTALL)


# -- a runner as their tools -------------------------------------------------------------------------------------------


def tools(
    runner: Runner, *, context: Callable[[RunContextWrapper[Any]], ToolContext[Any]] | None = None
) -> list[FunctionTool]:
    """Return the runner's tools for an agent.

    A call that needs a person's answer interrupts the agent's run in two cases: the runner has no approver, or its
    approver has `suspends = True`, because it answers at once only what it foresees, like
    `approval.remembered(approval.later)`.

    Args:
        context: Make the context of a call; `context_of` by default. The same call must get the same session from it
            before and after a person was asked, even in another process.

    Raises:
        DefinitionError: `runner` is no runner, or a tool has a private parameter that nobody can fill.
    """
    adapter = Adapter(runner, _FRAMEWORK, suspends=True)
    for tool in runner.tools:
        _check_fillable(runner, tool)
    interrupts = runner.approve is None or puts_off(runner.approve)
    made = context_maker(_FRAMEWORK, context, context_of)
    return [_TheirTool(adapter, tool, made, interrupts).made() for tool in runner.tools]


def context_of(ctx: RunContextWrapper[Any]) -> ToolContext[Any]:
    """Return a context: `RunConfig(group_id=…)` or else the trace's id as session, and the run's context as `deps`.

    Both are kept in a `RunState`. With tracing off there is no session, so nobody can be asked: then `tools(runner,
    context=…)` has to provide one.
    """
    trace: Any = get_current_trace()
    session = None if trace is None or trace.export() is None else trace.export()["group_id"] or trace.trace_id
    return ToolContext(session=session, deps=ctx.context)


def _check_fillable(runner: Runner, tool: Tool) -> None:
    if InputRequired in (tool.handling.returns, *get_args(tool.handling.returns)):
        raise DefinitionError(
            f"{_FRAMEWORK}: {tool.name!r} may return an InputRequired, and no person can give input to a call that "
            "runs there: take what it asks for as a parameter"
        )
    parameters = tool.handling.parameters
    missing = parameters.find_missing_hidden(parameters.bound)
    if missing and not guards_of(runner, tool):
        raise DefinitionError(
            f"{_FRAMEWORK}: {tool.name!r} has the private parameter {missing[0]!r}, which no person can fill there: "
            f"bind it, tool.bind({missing[0]}=…), or give the runner a guard that supplies it"
        )


class _TheirTool:
    """One tool of a runner, with the SDK's two steps: the question about a call, and its run."""

    def __init__(
        self,
        adapter: Adapter,
        tool: Tool,
        context_of: Callable[[RunContextWrapper[Any]], ToolContext[Any]],
        interrupts: bool,
    ) -> None:
        self._adapter = adapter
        self._tool = tool
        self._context_of = context_of
        self._interrupts = interrupts and may_ask(adapter.runner, tool)
        self._results: WeakKeyDictionary[TheirContext[Any], ToolResult] = WeakKeyDictionary()

    def made(self) -> FunctionTool:
        """Return the tool for the SDK.

        If nothing can ask, arguments that are no JSON reach the runner, which repairs them. For a tool with a callable
        `needs_approval`, the SDK itself would ask a person about them.
        """
        return FunctionTool(
            name=self._tool.wire_name,
            description=self._tool.description,
            params_json_schema=thaw(self._tool.input_schema),
            on_invoke_tool=self.invoke,
            strict_json_schema=False,
            needs_approval=self.needs_approval if self._interrupts else False,
            custom_data_extractor=self.told_to_program,
        )

    def told_to_program(self, extracted: FunctionToolCustomDataContext) -> dict[str, Any] | None:
        """Return the program's data for `custom_data` of the output's item, beside the model's text."""
        result = self._results.get(extracted.tool_context)
        if result is None:
            return None
        return {"ferrule": {key: value for key, value in result.record().items() if key not in _IN_THE_ITEM}}

    async def needs_approval(self, ctx: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
        """Return whether the run is interrupted for this call. If so, the call is suspended, and its record stored."""
        call, context = ToolCall(call_id, self._tool.name, arguments), self._context_of(ctx)
        if (await self._adapter.runner.decide(call, context)).kind != "ask":
            return False
        if not context.session:
            raise DefinitionError(
                f"{_FRAMEWORK}: a person is to be asked about {call.name!r}, and the run has no session that the "
                "answer could be told by: turn tracing on, or give tools(runner, context=…) a function whose "
                "ToolContext has a session"
            )
        result = await self._adapter.run(call, context)
        return result.pending is not None and self._why_not_shown(result.pending, call) is None

    async def invoke(self, ctx: TheirContext[Any], arguments: str) -> Any:
        """Return the model's text or content for the call."""
        call, context = ToolCall(ctx.tool_call_id, self._tool.name, arguments), self._context_of(ctx)
        record = await self._record(ctx, call, context) if self._interrupts else None
        if record is None:
            result = await self._adapter.runner.run(call, context)
        else:
            result = await self._adapter.answer(call, context, True, record)
        self._results[ctx] = result
        return _their_output(result) if result.pending is None else self._not_asked(result, call)

    async def _record(self, ctx: TheirContext[Any], call: ToolCall, context: ToolContext[Any]) -> Any:
        """Return the record of the call that a person approved; `None` if that is not this very call.

        The SDK's approval is not enough: with a yes to all calls of the tool (`always_approve`) nobody was asked about
        this one.
        """
        if not any(ctx.is_tool_approved(name, call.id) for name in (ctx.tool_name, ctx.qualified_tool_name)):
            return None
        record = await self._adapter.find(call, context)
        return None if record is None or self._why_not_shown(record["pending"], call) else record

    def _why_not_shown(self, pending: Mapping[str, Any], call: ToolCall) -> str | None:
        """Return why a person who sees the arguments of this call would not know what they allow.

        The result is `None` if they would.
        """
        if pending["kind"] != "approval":
            return "it needs input while it runs"
        if pending["into"] is not None:
            return "a person has to give a value that no model may know"
        judged = thaw(pending["arguments"])
        if is_same_json(judged, self._validated(call)):
            return None
        text = json.dumps(judged)
        too_long = "guards change its arguments to others, which are too long to be told"
        return f"send these arguments: {text}" if len(text) <= _MOST_CHARACTERS else too_long

    def _validated(self, call: ToolCall) -> Any:
        """Return the arguments to judge if no guard changes them."""
        parameters = self._tool.handling.parameters
        try:
            read = parameters.parse_arguments(self._tool.name, call.raw)
        except Invalid:
            return None
        return {name: thaw(value) for name, value in read.items() if name not in parameters.hidden}

    def _not_asked(self, result: ToolResult, call: ToolCall) -> str:
        """Return the model's text about a call that would have to wait, which is not possible here."""
        pending: Any = result.pending
        if pending["kind"] == "work":
            return result.text
        why = self._why_not_shown(pending, call)
        if why is None:
            why = "call it again, so that a person is asked" if self._interrupts else "nobody can be asked about it"
            log.warning(_UNASKED if self._interrupts else _UNASKABLE, _FRAMEWORK, call.name)
        ran = describe_effect(False if pending["kind"] == "approval" else None)
        return f"{call.name} waits for a person, and cannot wait here ({pending['reason']}): {why}. {ran}"


def _their_output(result: ToolResult) -> Any:
    """Return the content of a result in the SDK's form."""
    if not result.success or is_text(result):
        return result.text
    return [_their_block(block) for block in result.content]


def _their_block(block: Text | Media) -> Any:
    if isinstance(block, Text):
        return ToolOutputText(text=block.text)
    data = None if block.data is None else f"data:{block.mime_type};base64,{b64encode(block.data).decode()}"
    address = data or (block.uri if block.fetch else None)
    if address is None or block.kind == "audio":
        return ToolOutputText(text=f"[{block.kind} {block.uri or block.name or block.mime_type}]")
    if block.kind == "image":
        return ToolOutputImage(image_url=address)
    if data is None:
        return ToolOutputFileContent(file_url=address)
    return ToolOutputFileContent(file_data=data, filename=block.name or "file")


# -- their tools as ours -----------------------------------------------------------------------------------------------


def from_tools(theirs: Iterable[object]) -> Toolset:
    """Return a toolset of function tools: their names, descriptions, schemas, approval and time-outs.

    A parameter with a default is optional, as in the function, though a strict schema requires it. An exception of a
    handler is a failure, with the text of the tool's own `failure_error_function` if it has one. If a tool is made by
    hand and catches the exceptions of its handler, its text looks like any other result.

    Raises:
        DefinitionError: An object is no function tool, or has settings that only a run of the SDK can apply.
    """
    return Toolset([_our_tool(tool) for tool in listed(_FRAMEWORK, theirs)])


def _our_tool(tool: object) -> Tool:
    if not isinstance(tool, FunctionTool):
        kind = type(tool).__name__
        raise DefinitionError(
            f"{_FRAMEWORK}: from_tools([…]) takes function tools, and {kind} is none"
            + (": the API itself runs it, or the SDK" if hasattr(tool, "name") else "")
        )
    if problem := _needs_their_run(tool):
        raise DefinitionError(f"{_FRAMEWORK}: the tool {tool.name!r} {problem}")
    made = copy.copy(tool)
    failure = resolve_function_tool_failure_error_function(tool)
    of_its_own = None if failure is None or failure is default_tool_error_function else _as_failure(failure)
    set_function_tool_failure_error_function(made, of_its_own)

    async def handler(payload: dict[str, Any], context: ToolContext[Any]) -> Any:
        text = json.dumps(payload)
        try:
            output = await made.on_invoke_tool(_their_context(tool, text, context), text)
        except ModelBehaviorError as error:
            if not str(error).startswith(f"Invalid JSON input for tool {tool.name}"):  # its function raised it
                raise
            raise ToolError(str(error)) from error
        return _our_output(output) if tool.output_json_schema is None else output

    return Tool(
        tool.name,
        handler,
        description=tool.description,
        input_schema=_with_optional(tool) if tool.strict_json_schema else tool.params_json_schema,
        output_schema=tool.output_json_schema,
        timeout=tool.timeout_seconds,
        ask=tool.needs_approval is True,
        guards=[_approval_guard(tool, tool.needs_approval)] if callable(tool.needs_approval) else [],
    )


def _needs_their_run(tool: FunctionTool) -> str | None:
    """Return why a tool cannot be used outside of the SDK, and an alternative; None if it can."""
    if tool.tool_input_guardrails or tool.tool_output_guardrails:
        return "has guardrails, which its agent's run asks: give the runner guards and middleware that do the same"
    if tool.is_enabled is False:
        return "is not enabled: leave it out"
    if tool.is_enabled is not True:
        return "is enabled by a function of its agent's run: set is_enabled=True, and say what may run by a guard"
    if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
        return "may be called by programs of the API alone"
    origin = get_function_tool_origin(tool)
    if origin is not None and origin.type is ToolOriginType.MCP:
        return (
            "is of an MCP server, whose failures the SDK tells as if they were results: "
            "ferrule.mcp.connect(…) takes the server"
        )
    if origin is not None and origin.type is ToolOriginType.AGENT_AS_TOOL:
        return (
            "is an agent, whose own tools may interrupt a run: give a function that runs it, "
            "async def answer(input: str) -> str: return (await agents.Runner.run(agent, input)).final_output"
        )
    return None


def _with_optional(tool: FunctionTool) -> dict[str, Any]:
    """Return a strict schema with optional parameters if they have a default.

    Null is the default of a nullable parameter. A strict schema does not say so; here it does, and guards see it.
    """
    schema: dict[str, Any] = copy.deepcopy(tool.params_json_schema)
    properties: dict[str, Any] = schema.get("properties", {})
    for one in properties.values():
        if {"type": "null"} in one.get("anyOf", ()):
            one.setdefault("default", None)
    schema["required"] = [name for name in schema.get("required", ()) if "default" not in properties.get(name, {})]
    return schema


def _their_context(tool: FunctionTool, arguments: str, context: ToolContext[Any]) -> TheirContext[Any]:
    call: Any = context.call
    return TheirContext(context=context.deps, tool_name=tool.name, tool_call_id=call.id, tool_arguments=arguments)


def _as_failure(failure: Callable[..., Any]) -> Callable[..., Awaitable[str]]:
    """Return a `failure_error_function` whose text is raised, and not returned like a result."""

    async def raised(ctx: RunContextWrapper[Any], error: Exception) -> str:
        text = failure(ctx, error)
        raise ToolError(str(await text if isawaitable(text) else text)) from error

    return raised


def _approval_guard(tool: FunctionTool, needs_approval: Callable[..., Any]) -> Guard:
    async def needs_approval_guard(call: ToolCall, context: ToolContext[Any]) -> Decision | None:
        arguments = thaw(call.arguments)
        needed = needs_approval(_their_context(tool, json.dumps(arguments), context), arguments, call.id)
        return ask(f"{call.name} needs approval") if (await needed if isawaitable(needed) else needed) else None

    return needs_approval_guard


def _our_output(output: Any) -> Any:
    """Return the output of their tool, as blocks if it is one of theirs or a list of them."""
    blocks = [_their_own(one) for one in (output if isinstance(output, list) else [output])]
    if not blocks or None in blocks:
        return output
    return ToolResult(content=[_our_block(one) for one in blocks])


def _their_own(output: Any) -> Any:
    """Return a block of theirs, which may be a dict with its type; `None` for anything else."""
    if not isinstance(output, dict) or "type" not in output:
        return output if isinstance(output, ToolOutputText | ToolOutputImage | ToolOutputFileContent) else None
    try:
        return ValidToolOutputPydanticModelsTypeAdapter.validate_python(output)
    except ValueError:
        return None


def _our_block(block: Any) -> Text | Media:
    if isinstance(block, ToolOutputText):
        return Text(block.text)
    is_image = isinstance(block, ToolOutputImage)
    address = block.image_url if is_image else block.file_data or block.file_url
    name = None if is_image else block.filename
    if address is None:
        return Text(f"[{block.type} {block.file_id}]")
    found = _DATA_URL.fullmatch(address)
    if found:
        return Media("image" if is_image else "file", b64decode(found["data"]), found["type"], name=name)
    if not is_image and block.file_data:
        return Media("file", b64decode(block.file_data), "application/octet-stream", name=name)
    return Media("image" if is_image else "file", None, "application/octet-stream", uri=address, name=name)
