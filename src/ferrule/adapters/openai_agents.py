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

from ferrule.adapters.adapter import (
    Adapter,
    can_ask,
    check_context_function,
    describe_media,
    has_deferred_answers,
    is_text_only,
    list_guards,
    read_tool_list,
)
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
_NOT_ASKED_WARNING: Final = (
    "%s: a call of tool %r was not run: it needs a person's answer, and has none, or one to another call, or one from "
    "a runner with another resume_key. A yes to all calls of a tool does not count; use ferrule.approval.remembered"
)
_CANNOT_ASK_WARNING: Final = (
    "%s: a call of tool %r was not run: a guard asks about it although its `asks` is false, or the approver defers it "
    "without suspends = True"
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
        context: Make the context of a call; `to_context` by default. The same call must get the same session from it
            before and after a person was asked, even in another process.

    Raises:
        DefinitionError: `runner` is no runner, or a tool has a private parameter that nobody can fill.
    """
    adapter = Adapter(runner, _FRAMEWORK, suspends=True)
    for tool in runner.tools:
        _check_fillable(runner, tool)
    interrupts = runner.approve is None or has_deferred_answers(runner.approve)
    to_tool = check_context_function(_FRAMEWORK, context, to_context)
    return [_RunnerTool(adapter, tool, to_tool, interrupts).to_tool() for tool in runner.tools]


def to_context(ctx: RunContextWrapper[Any]) -> ToolContext[Any]:
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
            f"{_FRAMEWORK}: {tool.name!r} may return an InputRequired, and a running call gets no input there: make "
            "the input a parameter"
        )
    parameters = tool.handling.parameters
    missing = parameters.find_missing_hidden(parameters.bound)
    if missing and not list_guards(runner, tool):
        raise DefinitionError(
            f"{_FRAMEWORK}: no person can fill the private parameter {missing[0]!r} of {tool.name!r} there: bind it, "
            f"tool.bind({missing[0]}=…), or give the runner a guard that supplies it"
        )


class _RunnerTool:
    """One tool of a runner, with the SDK's two steps: the question about a call, and its run."""

    def __init__(
        self,
        adapter: Adapter,
        tool: Tool,
        to_context: Callable[[RunContextWrapper[Any]], ToolContext[Any]],
        interrupts: bool,
    ) -> None:
        self._adapter = adapter
        self._tool = tool
        self._to_context = to_context
        self._interrupts = interrupts and can_ask(adapter.runner, tool)
        self._results: WeakKeyDictionary[TheirContext[Any], ToolResult] = WeakKeyDictionary()

    def to_tool(self) -> FunctionTool:
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
            custom_data_extractor=self.extract_custom_data,
        )

    def extract_custom_data(self, extracted: FunctionToolCustomDataContext) -> dict[str, Any] | None:
        """Return the program's data for `custom_data` of the output's item, beside the model's text."""
        result = self._results.get(extracted.tool_context)
        if result is None:
            return None
        return {"ferrule": {key: value for key, value in result.record().items() if key not in _IN_THE_ITEM}}

    async def needs_approval(self, ctx: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
        """Return whether the run is interrupted for this call. If so, the call is suspended, and its record stored."""
        call, context = ToolCall(call_id, self._tool.name, arguments), self._to_context(ctx)
        if (await self._adapter.runner.decide(call, context)).kind != "ask":
            return False
        if not context.session:
            raise DefinitionError(
                f"{_FRAMEWORK}: a call of {call.name!r} needs a person's answer, and the run has no session to find it "
                "by: turn tracing on, or use tools(runner, context=…) with a ToolContext that has a session"
            )
        result = await self._adapter.run(call, context)
        return result.pending is not None and self._find_misunderstanding(result.pending, call) is None

    async def invoke(self, ctx: TheirContext[Any], arguments: str) -> Any:
        """Return the model's text or content for the call."""
        call, context = ToolCall(ctx.tool_call_id, self._tool.name, arguments), self._to_context(ctx)
        record = await self._find_approved_record(ctx, call, context) if self._interrupts else None
        if record is None:
            result = await self._adapter.runner.run(call, context)
        else:
            result = await self._adapter.answer(call, context, True, record)
        self._results[ctx] = result
        return _to_their_output(result) if result.pending is None else self._describe_missing_answer(result, call)

    async def _find_approved_record(self, ctx: TheirContext[Any], call: ToolCall, context: ToolContext[Any]) -> Any:
        """Return the record of the call that a person approved; `None` if that is not this very call.

        The SDK's approval is not enough: with a yes to all calls of the tool (`always_approve`) nobody was asked about
        this one.
        """
        if not any(ctx.is_tool_approved(name, call.id) for name in (ctx.tool_name, ctx.qualified_tool_name)):
            return None
        record = await self._adapter.find_record(call, context)
        return None if record is None or self._find_misunderstanding(record["pending"], call) else record

    def _find_misunderstanding(self, pending: Mapping[str, Any], call: ToolCall) -> str | None:
        """Return why a person who sees the arguments of this call would not know what they allow.

        The result is `None` if they would.
        """
        if pending["kind"] != "approval":
            return "it needs input while it runs"
        if pending["into"] is not None:
            return "a person must provide a value that no model may know"
        judged = thaw(pending["arguments"])
        if is_same_json(judged, self._validate_arguments(call)):
            return None
        text = json.dumps(judged)
        too_long = "guards change its arguments, and the new ones are too long to show"
        return f"send these arguments: {text}" if len(text) <= _MOST_CHARACTERS else too_long

    def _validate_arguments(self, call: ToolCall) -> Any:
        """Return the arguments to judge if no guard changes them."""
        parameters = self._tool.handling.parameters
        try:
            read = parameters.parse_arguments(self._tool.name, call.raw)
        except Invalid:
            return None
        return {name: thaw(value) for name, value in read.items() if name not in parameters.hidden}

    def _describe_missing_answer(self, result: ToolResult, call: ToolCall) -> str:
        """Return the model's text about a call that would have to wait, which is not possible here."""
        pending: Any = result.pending
        if pending["kind"] == "work":
            return result.text
        why = self._find_misunderstanding(pending, call)
        if why is None:
            why = "call it again, so that a person is asked" if self._interrupts else "nobody can be asked about it"
            log.warning(_NOT_ASKED_WARNING if self._interrupts else _CANNOT_ASK_WARNING, _FRAMEWORK, call.name)
        ran = describe_effect(False if pending["kind"] == "approval" else None)
        return f"{call.name} needs a person's answer, and cannot wait for it ({pending['reason']}): {why}. {ran}"


def _to_their_output(result: ToolResult) -> Any:
    """Return the content of a result in the SDK's form."""
    if not result.success or is_text_only(result):
        return result.text
    return [_to_their_block(block) for block in result.content]


def _to_their_block(block: Text | Media) -> Any:
    if isinstance(block, Text):
        return ToolOutputText(text=block.text)
    data = None if block.data is None else f"data:{block.mime_type};base64,{b64encode(block.data).decode()}"
    address = data or (block.uri if block.fetch else None)
    if address is None or block.kind == "audio":
        return ToolOutputText(text=describe_media(block))
    if block.kind == "image":
        return ToolOutputImage(image_url=address)
    if data is None:
        return ToolOutputFileContent(file_url=address)
    return ToolOutputFileContent(file_data=data, filename=block.name or "file")


# -- their tools as ours -----------------------------------------------------------------------------------------------


def from_tools(tools: Iterable[object]) -> Toolset:
    """Return a toolset of function tools: their names, descriptions, schemas, approval and time-outs.

    A parameter with a default is optional, as in the function, though a strict schema requires it. An exception of a
    handler is a failure, with the text of the tool's own `failure_error_function` if it has one. If a tool is made by
    hand and catches the exceptions of its handler, its text looks like any other result.

    Raises:
        DefinitionError: An object is no function tool, or has settings that only a run of the SDK can apply.
    """
    return Toolset([_to_our_tool(tool) for tool in read_tool_list(_FRAMEWORK, tools)])


def _to_our_tool(tool: object) -> Tool:
    if not isinstance(tool, FunctionTool):
        kind = type(tool).__name__
        raise DefinitionError(
            f"{_FRAMEWORK}: from_tools([…]) takes function tools, and {kind} is none"
            + (": the API itself runs it, or the SDK" if hasattr(tool, "name") else "")
        )
    if problem := _find_run_dependency(tool):
        raise DefinitionError(f"{_FRAMEWORK}: the tool {tool.name!r} {problem}")
    to_tool = copy.copy(tool)
    failure = resolve_function_tool_failure_error_function(tool)
    own_failure = None if failure is None or failure is default_tool_error_function else _raise_failure_text(failure)
    set_function_tool_failure_error_function(to_tool, own_failure)

    async def handler(payload: dict[str, Any], context: ToolContext[Any]) -> Any:
        text = json.dumps(payload)
        try:
            output = await to_tool.on_invoke_tool(_make_their_context(tool, text, context), text)
        except ModelBehaviorError as error:
            if not str(error).startswith(f"Invalid JSON input for tool {tool.name}"):  # its function raised it
                raise
            raise ToolError(str(error)) from error
        return _to_our_output(output) if tool.output_json_schema is None else output

    return Tool(
        tool.name,
        handler,
        description=tool.description,
        input_schema=_make_defaults_optional(tool) if tool.strict_json_schema else tool.params_json_schema,
        output_schema=tool.output_json_schema,
        timeout=tool.timeout_seconds,
        ask=tool.needs_approval is True,
        guards=[_approval_guard(tool, tool.needs_approval)] if callable(tool.needs_approval) else [],
    )


def _find_run_dependency(tool: FunctionTool) -> str | None:
    """Return why a tool cannot be used outside of the SDK, and an alternative; None if it can."""
    if tool.tool_input_guardrails or tool.tool_output_guardrails:
        return "has guardrails, which only an agent's run asks: use guards and middleware of the runner instead"
    if tool.is_enabled is False:
        return "is not enabled: leave it out"
    if tool.is_enabled is not True:
        return "is enabled by a function of an agent's run: set is_enabled=True, and use a guard instead"
    if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
        return "may only be called by programs of the API"
    origin = get_function_tool_origin(tool)
    if origin is not None and origin.type is ToolOriginType.MCP:
        return (
            "belongs to an MCP server, and the SDK reports its failures like results: connect the server by "
            "ferrule.mcp.connect(…)"
        )
    if origin is not None and origin.type is ToolOriginType.AGENT_AS_TOOL:
        return (
            "is an agent, whose own tools may interrupt a run: pass a function that runs it, "
            "async def answer(input: str) -> str: return (await agents.Runner.run(agent, input)).final_output"
        )
    return None


def _make_defaults_optional(tool: FunctionTool) -> dict[str, Any]:
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


def _make_their_context(tool: FunctionTool, arguments: str, context: ToolContext[Any]) -> TheirContext[Any]:
    call: Any = context.call
    return TheirContext(context=context.deps, tool_name=tool.name, tool_call_id=call.id, tool_arguments=arguments)


def _raise_failure_text(failure: Callable[..., Any]) -> Callable[..., Awaitable[str]]:
    """Return a `failure_error_function` whose text is raised, and not returned like a result."""

    async def raise_failure(ctx: RunContextWrapper[Any], error: Exception) -> str:
        text = failure(ctx, error)
        raise ToolError(str(await text if isawaitable(text) else text)) from error

    return raise_failure


def _approval_guard(tool: FunctionTool, needs_approval: Callable[..., Any]) -> Guard:
    async def needs_approval_guard(call: ToolCall, context: ToolContext[Any]) -> Decision | None:
        arguments = thaw(call.arguments)
        needed = needs_approval(_make_their_context(tool, json.dumps(arguments), context), arguments, call.id)
        return ask(f"{call.name} needs approval") if (await needed if isawaitable(needed) else needed) else None

    return needs_approval_guard


def _to_our_output(output: Any) -> Any:
    """Return the output of their tool, as blocks if it is one of theirs or a list of them."""
    blocks = [_parse_block(one) for one in (output if isinstance(output, list) else [output])]
    if not blocks or None in blocks:
        return output
    return ToolResult(content=[_to_our_block(one) for one in blocks])


def _parse_block(output: Any) -> Any:
    """Return a block of theirs, which may be a dict with its type; `None` for anything else."""
    if not isinstance(output, dict) or "type" not in output:
        return output if isinstance(output, ToolOutputText | ToolOutputImage | ToolOutputFileContent) else None
    try:
        return ValidToolOutputPydanticModelsTypeAdapter.validate_python(output)
    except ValueError:
        return None


def _to_our_block(block: Any) -> Text | Media:
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
