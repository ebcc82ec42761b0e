"""Microsoft Agent Framework, both ways. See docs/frameworks/agent-framework.md.

    agent = Agent(client, context_providers=[agent_framework.context_provider(runner)])
    tools = agent_framework.from_tools([their_function])

Read in agent-framework-core 1.23.0. A function middleware runs the runner's calls, and never calls the rest of the
framework's pipeline for them: the framework checks arguments there, with errors that tell a model nothing.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NoReturn, TypeAlias
from weakref import WeakKeyDictionary

from agent_framework import (
    Content,
    ContextProvider,
    FunctionInvocationContext,
    FunctionMiddleware,
    FunctionTool,
    MiddlewareFailure,
    MiddlewareTermination,
)
from agent_framework.exceptions import UserInputRequiredException

from ferrule.adapters.adapter import (
    Adapter,
    check_context_function,
    describe_media,
    guess_media_kind,
    read_tool_list,
    record_from_result,
    result_from_outside_error,
)
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError, ToolError
from ferrule.runner import Runner
from ferrule.stores.store import Store
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, Text, to_json_text, to_jsonable
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow
from ferrule.values.frozen import thaw
from ferrule.values.json_text import is_same_json
from ferrule.values.result import ToolResult

log = logging.getLogger("ferrule")
_KEY = "ferrule"
"""The key of our data in the `additional_properties` of the framework's contents."""
_CONTROL_FLOW = (MiddlewareFailure, MiddlewareTermination, UserInputRequiredException)
"""The exceptions with which a function or a middleware steers the run."""
MakeContext: TypeAlias = Callable[[FunctionInvocationContext], ToolContext[Any]]


def context_provider(
    runner: Runner,
    *,
    context: MakeContext | None = None,
    records: Store | None = None,
    read_only: Collection[str] = (),
) -> ContextProvider:
    """Return a context provider that gives an agent the runner's tools, and judges the agent's local functions.

    The runner's guards, approver, limits and journal apply to each local function of the agent, too. A call that needs
    a person's answer ends the run with a `function_approval_request`. Its `additional_properties["ferrule"]` is
    `{"reason": …, "arguments": …, "record": …}`, with a `"schema"` if a tool asks a question. The answer of
    `to_function_approval_response` has the same dict: a person changes the call by other `"arguments"`, and answers a
    tool's question there.

    Args:
        runner: The runner of the calls.
        context: Make the context of a call from the framework's; `to_context` by default.
        records: The store of records until they are answered; the journal's store by default.
        read_only: The names of the local functions that change nothing.

    Raises:
        DefinitionError: `runner` is no runner.
    """
    adapter = Adapter(runner, "Agent Framework", suspends=True, records=records)
    return _Provider(adapter, check_context_function("Agent Framework", context, to_context), records, read_only)


def to_context(context: FunctionInvocationContext) -> ToolContext[Any]:
    """Return a context with the session's id, and `function_invocation_kwargs` as deps.

    Agent Framework has no principal.
    """
    deps = {name: value for name, value in context.kwargs.items() if name != "session"}
    return ToolContext(session=context.session and context.session.session_id, deps=deps)


class _RunnerFunction(FunctionTool):
    """A tool of a runner, listed for the model. The middleware of its provider runs it."""

    def __init__(self, adapter: Adapter, tool: Tool) -> None:
        super().__init__(
            name=tool.wire_name,
            description=tool.description or tool.name,
            func=_refuse_listed_call,
            input_model=thaw(tool.input_schema),
        )
        self.adapter, self.tool = adapter, tool


async def _refuse_listed_call(ctx: FunctionInvocationContext, **arguments: Any) -> NoReturn:
    raise RuntimeError(
        "nothing was run: the agent has no context provider of the runner whose tool this is; "
        "Agent(…, context_providers=[ferrule.adapters.agent_framework.context_provider(runner)])"
    )


class _Provider(ContextProvider, FunctionMiddleware):
    def __init__(
        self, adapter: Adapter, make_context: MakeContext, records: Store | None, read_only: Collection[str]
    ) -> None:
        super().__init__(_KEY)
        self._adapter, self._make_context = adapter, make_context
        self._records, self._read_only = records, frozenset(read_only)
        self._functions = [_RunnerFunction(adapter, tool) for tool in adapter.runner.tools]
        self._judging: WeakKeyDictionary[FunctionTool, tuple[Adapter, Tool]] = WeakKeyDictionary()

    async def before_run(self, *, agent: Any, session: Any, context: Any, state: dict[str, Any]) -> None:
        """Add the tools and the middleware to this run, and close the records of calls that a person has denied."""
        tools = [*(agent.default_options.get("tools") or ()), *context.tools, *self._judging, *self._functions]
        functions = {tool.name: tool for tool in tools if isinstance(tool, FunctionTool)}
        context.extend_tools(self.source_id, self._functions)
        context.extend_middleware(self.source_id, self)
        for content in [content for message in context.input_messages for content in message.contents]:
            if content.type == "function_approval_response" and not content.approved and content.function_call:
                if (function := functions.get(content.function_call.name)) is not None:
                    await self._close_denied(content, function, session.session_id)

    async def _close_denied(self, denial: Content, function: FunctionTool, session_id: str) -> None:
        """Close the record of a denied call, because the framework passes a denial on to nobody.

        A stored copy of the session cannot be resumed with a yes then.
        """
        record: Any = _get_properties(denial).get("record")
        sent: Any = denial.function_call
        try:
            if record is None or record["pending"]["context"]["session"] != session_id:
                return
            adapter, tool = self._find_adapter(function)
            call = ToolCall(sent.id, tool.name, _get_sent_arguments(sent.parse_arguments() or {}, tool))
            context = ToolContext(principal=record["pending"]["context"]["principal"], session=session_id)
            await adapter.answer(call, context, False, record)
        except Exception:  # the call does not run in any case
            log.exception("a no to a call of tool %r could not be recorded", function.name)

    def _find_adapter(self, function: FunctionTool) -> tuple[Adapter, Tool]:
        """Return the adapter that runs the calls of a function, and its tool of ours."""
        if isinstance(function, _RunnerFunction):
            return function.adapter, function.tool
        if (found := self._judging.get(function)) is None:
            reads = function.name in self._read_only
            # A handler that refers to the function would keep it in memory.
            tool = _to_our_tool(function, _run_rest_of_pipeline).replace(ask=False, read_only=reads)
            runner = self._adapter.runner.replace(tools=[tool])
            judging = Adapter(runner, "Agent Framework", suspends=True, records=self._records)
            found = self._judging[function] = judging, tool
        return found

    async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Run a call of a tool of ours, or judge one of a local function."""
        function = context.function
        if isinstance(function, _RunnerFunction) and function.adapter is not self._adapter:
            await call_next()  # another provider runs it
            return
        pipeline = _Pipeline(context, call_next)
        token = _PIPELINE.set(pipeline)
        try:
            result = await self._run_or_answer(context)
        except Exception as error:  # the framework would end the run after three of these
            result = result_from_outside_error(function.name, error)
        finally:
            _PIPELINE.reset(token)
        if pipeline.control_flow is not None:
            raise pipeline.control_flow
        context.result = _to_contents(result) if result.pending is None else _to_request(result, context)

    async def _run_or_answer(self, theirs: FunctionInvocationContext) -> ToolResult:
        adapter, tool = self._find_adapter(theirs.function)
        call = ToolCall(_get_call_id(theirs), tool.name, _get_sent_arguments(theirs.arguments, tool))
        context = self._make_context(theirs)
        response = theirs.metadata.get("approval_response")
        if response is None:
            return await adapter.run(call, context)
        record = _get_properties(response).get("record")
        if record is None and theirs.function.approval_mode == "always_require":
            if await adapter.find_record(call, context) is None:  # the framework asked, and no guard has yet
                return await adapter.run(call, context)
        return await adapter.answer(call, context, _read_answer(_get_properties(response)), record)


def _read_answer(given: Mapping[str, Any]) -> Decision | bool:
    """Return a person's yes: to the arguments of the question, or to others."""
    try:
        asked = given["record"]["pending"]["arguments"]
    except (TypeError, LookupError):
        asked = None
    arguments = given.get("arguments")
    if arguments is None or arguments == asked:
        return True
    return isinstance(arguments, Mapping) and allow(arguments=arguments)


def _get_properties(content: Any) -> Mapping[str, Any]:
    """Return our data in a content of theirs."""
    found = content.additional_properties.get(_KEY)
    return found if isinstance(found, Mapping) else {}


def _get_call_id(context: FunctionInvocationContext) -> str:
    """Return the id of the call, which is unique in the session. A model may send the same `call_id` again."""
    return context.metadata.get("function_call_occurrence_id") or context.metadata.get("call_id") or ""


def _get_sent_arguments(arguments: Any, tool: Tool) -> Any:
    """Return the arguments as the model sent them. Text that is no JSON comes as `{"raw": text}`."""
    if arguments.keys() == {"raw"} and "raw" not in tool.input_schema.get("properties", {}):
        return arguments["raw"]
    return to_jsonable(dict(arguments))


def _to_request(result: ToolResult, context: FunctionInvocationContext) -> Content:
    pending = thaw(result.pending)
    shown = {"reason": pending["reason"], "arguments": pending["arguments"], "record": record_from_result(result)}
    if pending["schema"]:
        shown["schema"] = pending["schema"]
    id, arguments = _get_call_id(context), to_jsonable(dict(context.arguments))
    sent = Content.from_function_call(context.metadata["call_id"], context.function.name, arguments=arguments, id=id)
    return Content.from_function_approval_request(id, sent, additional_properties={_KEY: shown})


def _to_contents(result: ToolResult) -> list[Content]:
    """Return a result for the model. The framework has no mark for a failure; the program finds its status here."""
    contents = [_to_content(block) for block in result.content] or [Content.from_text("")]
    contents[0].additional_properties[_KEY] = {"status": result.status}
    return contents


def _to_content(block: Block) -> Content:
    if isinstance(block, Text):
        return Content.from_text(block.text)
    if block.data is not None:
        return Content.from_data(block.data, block.mime_type, name=block.name)
    if block.fetch and block.uri:
        return Content.from_uri(block.uri, media_type=block.mime_type, name=block.name)
    return Content.from_text(describe_media(block))


# -- their functions as ours ------------------------------------------------------------------------------------------


class _Pipeline:
    """The rest of the framework's pipeline for one call, and the exception with which it steers the run."""

    def __init__(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        self.context, self.call_next = context, call_next
        self.control_flow: Exception | None = None


_PIPELINE: ContextVar[_Pipeline] = ContextVar("pipeline")


def from_tools(tools: Iterable[FunctionTool]) -> Toolset:
    """Return functions of Agent Framework as tools of ours.

    A function with `approval_mode="always_require"` asks a person.

    Raises:
        DefinitionError: An object is no function of Agent Framework, or is only a declaration.
    """
    return Toolset(_to_our_tool(tool) for tool in read_tool_list("Agent Framework", tools))


def _to_our_tool(function: Any, run: Callable[..., Awaitable[object]] | None = None) -> Tool:
    if not isinstance(function, FunctionTool) or function.declaration_only:
        raise DefinitionError(
            f"agent_framework.from_tools takes functions of Agent Framework that can run, such as those with @tool, "
            f"not {function!r}"
        )

    async def handler(payload: dict[str, Any], context: ToolContext[Any]) -> ToolResult:
        deps = {**context.deps} if isinstance(context.deps, Mapping) else {"deps": context.deps}
        theirs = FunctionInvocationContext(function=function, arguments=payload, kwargs=deps)
        return _to_our_result(
            await function.invoke(arguments=payload, context=theirs, tool_call_id=context.idempotency_key)
        )

    return Tool(
        function.name,
        run or handler,
        description=function.description,
        input_schema=function.parameters(),
        ask=function.approval_mode == "always_require",
    )


async def _run_rest_of_pipeline(payload: dict[str, Any], context: ToolContext[Any]) -> ToolResult:
    """Run a local function with the judged arguments, as the framework would."""
    pipeline = _PIPELINE.get()
    theirs = pipeline.context
    if not _is_unchanged(payload, theirs):
        if "approval_response" in theirs.metadata:  # after a yes, their pipeline runs the sent arguments only
            made = FunctionInvocationContext(
                function=theirs.function, arguments=payload, session=theirs.session, kwargs=theirs.kwargs
            )
            call_id = theirs.metadata.get("call_id")
            return _to_our_result(await theirs.function.invoke(arguments=payload, context=made, tool_call_id=call_id))
        theirs.arguments = payload
    try:
        await pipeline.call_next()
    except _CONTROL_FLOW as error:
        pipeline.control_flow = error
        raise ToolError("The function has ended the run.") from error
    return _to_our_result(theirs.result)


def _is_unchanged(payload: Mapping[str, Any], theirs: FunctionInvocationContext) -> bool:
    """Return whether the judged arguments are the sent ones, with defaults."""
    sent = to_jsonable(dict(theirs.arguments))
    properties = theirs.function.parameters().get("properties", {})
    filled = {name: value for name, value in payload.items() if name not in sent}
    defaults = {name: properties.get(name, {}).get("default") for name in filled}
    return is_same_json(filled, defaults) and is_same_json({**payload, **sent}, dict(payload))


def _to_our_result(value: Any) -> ToolResult:
    """Return the result of a function as one of ours."""
    contents = value if isinstance(value, list) and all(isinstance(one, Content) for one in value) else None
    if contents is None:
        return ToolResult(value if isinstance(value, str) else to_jsonable(value))
    blocks = [_to_our_block(content) for content in contents]
    return ToolResult("\n".join(block.text for block in blocks if isinstance(block, Text)), content=blocks)


def _to_our_block(content: Content) -> Block:
    if content.type == "text":
        return Text(content.text or "")
    if content.type in ("data", "uri") and content.uri is not None and content.media_type:
        kind = guess_media_kind(content.media_type)
        name = content.name
        if content.type == "uri":
            return Media(kind, None, content.media_type, uri=content.uri, name=name)
        return Media(kind, base64.b64decode(content.uri.partition(",")[2]), content.media_type, name=name)
    return Text(to_json_text(to_jsonable(content.to_dict(exclude={"raw_representation"}))))
