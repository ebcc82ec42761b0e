"""FastMCP, both ways: a runner as a provider of a server, and a server's tools as ours. See docs/frameworks/fastmcp.md.

    mcp = FastMCP("shop")
    mcp.add_provider(fastmcp.provider(runner))

A call that needs a person's answer is suspended, and its slots are free. A client of 2026-07-28 is asked by the result
of its call. That result carries the sealed record as `request_state`, and the client sends the call again with the
record and the answer. A client of 2025 is asked by `elicitation/create` while its request waits. Read in FastMCP 4.1.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import anyio
import mcp_types as wire
from fastmcp.exceptions import FastMCPError
from fastmcp.server.context import Context
from fastmcp.server.dependencies import fastmcp_request_ctx, get_access_token, get_context
from fastmcp.server.providers import Provider
from fastmcp.server.server import FastMCP
from fastmcp.tools.base import InputRequiredToolResult
from fastmcp.tools.base import Tool as TheirTool
from fastmcp.tools.base import ToolResult as TheirResult
from mcp.server.auth.provider import principal_components
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import PrivateAttr, ValidationError

from ferrule.adapters.adapter import Adapter, check_context_function, record_from_result, result_from_outside_error
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError, ToolError
from ferrule.mcp.content import has_sendable_schema, make_annotations, to_wire_result, wire_name
from ferrule.mcp.forms import MOST_MESSAGE, Form, elicitation, make_form, to_decision
from ferrule.mcp.results import to_result
from ferrule.runner import Runner
from ferrule.values.call import ToolCall, new_id
from ferrule.values.content import truncate_text
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, deny
from ferrule.values.frozen import thaw
from ferrule.values.json_text import format_json
from ferrule.values.result import ToolResult, find_question

ContextFunction: TypeAlias = Callable[[Context], ToolContext[Any]]
_PROCESS_SESSION = f"mcp_{secrets.token_hex(12)}"
_CALL_COUNTS: WeakKeyDictionary[ServerSession, int] = WeakKeyDictionary()
"""The number of calls made for each request."""
_OVER_HTTP = ("sse", "streamable-http")
_WRAPPED = "x-fastmcp-wrap-result"
_CANNOT_ASK = deny("the client of this call cannot ask anybody: it declares no elicitation by form")
_REQUIRED_CAPABILITIES: dict[str, Any] = {"requiredCapabilities": {"elicitation": {"form": {}}}}


def provider(runner: Runner, *, context: ContextFunction | None = None) -> Provider:
    """Return a provider of the runner's tools, for `FastMCP.add_provider`.

    Args:
        context: Make the context of a call from FastMCP's context; `to_context` by default.

    Raises:
        DefinitionError: `runner` is no runner.
    """
    adapter = Adapter(runner, "FastMCP", suspends=True)
    runner_tool = check_context_function("FastMCP", context, to_context)
    return _RunnerProvider([_to_their_tool(adapter, tool, runner_tool) for tool in runner.tools])


def to_context(ctx: Context) -> ToolContext[Any]:
    """Return a context with the access token's owner as principal, and the result of the server's lifespan as `deps`.

    The session is that of the connection. A client of 2026-07-28 has none, so its user stands for it, or without a user
    the process.
    """
    token = get_access_token()
    principal = None
    if token is not None:
        client, issuer, subject = principal_components(token)
        principal = client if issuer is subject is None else json.dumps([client, issuer, subject])
    return ToolContext(principal=principal, session=_choose_session(ctx, principal), deps=ctx.lifespan_context)


def _choose_session(ctx: Context, principal: str | None) -> str | None:
    if ctx.request_context is None:  # called by the program that has the server
        return _PROCESS_SESSION
    if _is_2026(ctx):
        identity = principal or (None if ctx.transport in _OVER_HTTP else _PROCESS_SESSION)
    else:
        identity = ctx.session_id
    # The id lets its bearer use the session: no event and no record holds it.
    return identity and f"mcp_{sha256(identity.encode()).hexdigest()[:24]}"


def _is_2026(ctx: Context) -> bool:
    return ctx.request_context is not None and ctx.request_context.protocol_version in MODERN_PROTOCOL_VERSIONS


class _RunnerProvider(Provider):
    def __init__(self, tools: Sequence[TheirTool]) -> None:
        super().__init__()
        self._tools = tools

    async def _list_tools(self) -> Sequence[TheirTool]:
        return self._tools


class _RunnerTool(TheirTool):
    _call: Callable[[Mapping[str, Any]], Awaitable[TheirResult]] = PrivateAttr()

    async def run(self, arguments: dict[str, Any]) -> TheirResult:
        return await self._call(arguments)


def _to_their_tool(adapter: Adapter, tool: Tool, to_context: ContextFunction) -> TheirTool:
    schema = tool.output_schema
    has_schema = (
        schema is not None and schema.get("type") == "object" and has_sendable_schema(tool, adapter.runner.around)
    )
    runner_tool = _RunnerTool(
        name=wire_name(tool),
        title=tool.title,
        description=tool.description or None,
        parameters=thaw(tool.input_schema),
        output_schema=thaw(schema) if has_schema else None,
        annotations=make_annotations(tool),
    )

    async def call(arguments: Mapping[str, Any]) -> TheirResult:
        try:
            return await _await_with_grace(_Request(adapter, tool, to_context, arguments).run(has_schema))
        except (FastMCPError, MCPError):
            raise
        except Exception as error:  # FastMCP would show the client its text
            return _to_their_result(result_from_outside_error(tool.name, error), tool, has_schema)

    runner_tool._call = call
    return runner_tool


class _Request:
    """One request of a client."""

    def __init__(self, adapter: Adapter, tool: Tool, to_context: ContextFunction, arguments: Mapping[str, Any]) -> None:
        self._adapter = adapter
        self._ctx = ctx = get_context()
        self._record = None if ctx.request_state is None else _parse_record(ctx.request_state)
        self._tool = tool
        self._sent = ToolCall(self._call_id(), tool.name, arguments)
        self._context = to_context(ctx)
        self._last_progress = float("-inf")

    def _call_id(self) -> str:
        """Return the id of the call.

        For a client of 2025 it is the id of its request, unique in its session, with a number if another tool of the
        server makes several calls for it. For one of 2026-07-28 it is an id of our own, which comes back in
        `request_state`, because these requests have no session.
        """
        if self._record is not None:
            return str(self._record["pending"]["call"]["id"])
        if self._ctx.request_context is None or _is_2026(self._ctx):
            return new_id()
        request = self._ctx.session  # there is one for each request
        runner_tool = _CALL_COUNTS[request] = _CALL_COUNTS.get(request, 0) + 1
        return self._ctx.request_id if runner_tool == 1 else f"{self._ctx.request_id} {runner_tool}"

    async def run(self, has_schema: bool) -> TheirResult:
        if self._record is None:
            result = await self._begin()
        else:
            form = _make_form(self._record["pending"])
            response = (self._ctx.input_responses or {}).get(form.key)
            if not isinstance(response, wire.ElicitResult):  # ask again until there is an answer
                return _make_input_request(form, self._record)
            result = await self._answer(self._read_answer(form, response, self._record["pending"]), self._record)
        while result.pending is not None and result.pending["kind"] != "work":
            record, form = record_from_result(result), _make_form(result.pending)
            obstacle = self._find_obstacle(result.pending)
            if obstacle is None and _is_2026(self._ctx):
                return _make_input_request(form, record)
            answer = await self._elicit(form, result.pending) if obstacle is None else obstacle
            result = await self._answer(answer, record)
            if obstacle is _CANNOT_ASK and _is_2026(self._ctx):  # as that revision requires
                raise MCPError(wire.MISSING_REQUIRED_CLIENT_CAPABILITY, result.text, _REQUIRED_CAPABILITIES)
        return _to_their_result(result, self._tool, has_schema)

    async def _begin(self) -> ToolResult:
        """Run the call. If it brings an answer and has lost its `request_state`, ask again."""
        form = make_form("", None, {})
        response = None if self._ctx.request_state else (self._ctx.input_responses or {}).get(form.key)
        if isinstance(response, wire.ElicitResult):
            answer = to_decision(form, response, self._context.principal, self._sent.arguments)
            return await self._answer(answer, None)
        return await self._adapter.run(self._sent, self._context, self._report_progress)

    async def _answer(self, answer: Decision, record: Any) -> ToolResult:
        return await self._adapter.answer(self._sent, self._context, answer, record, self._report_progress)

    def _find_obstacle(self, pending: Mapping[str, Any]) -> Decision | None:
        """Return the reason that the client cannot be asked, or None."""
        if pending["into"] is not None:
            return deny(f"the value of {pending['into']!r} is never asked of a client")
        capabilities = None if self._ctx.request_context is None else self._ctx.session.client_capabilities
        declared = None if capabilities is None else capabilities.elicitation
        return _CANNOT_ASK if declared is None or (declared.form is None and declared.url is not None) else None

    async def _elicit(self, form: Form, pending: Mapping[str, Any]) -> Decision:
        try:
            response = await self._ctx.session.elicit_form(form.message, form.schema, self._ctx.request_id)
        except MCPError:
            return deny("the client could not ask")
        except ValidationError:
            return deny("the client's answer does not follow MCP")
        return self._read_answer(form, response, pending)

    def _read_answer(self, form: Form, response: wire.ElicitResult, pending: Mapping[str, Any]) -> Decision:
        return to_decision(form, response, self._context.principal, pending["arguments"])

    async def _report_progress(self, done: float, total: float | None, message: str | None) -> None:
        if done > self._last_progress:  # MCP forbids a value that does not increase
            self._last_progress = done
            await self._ctx.report_progress(done, total, message or None)


async def _await_with_grace(run: Any) -> Any:
    """Await `run` in a task of its own. It gets one cancellation, and then its grace.

    AnyIO cancels again at every turn of the loop, and would end the wait for a handler that is cleaning up.
    """
    task = asyncio.ensure_future(run)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # marks the exception as seen
        raise
    return task.result()


def _parse_record(state: str) -> Any:
    """Return the record from a client; `None` if it is none of ours."""
    try:
        record = json.loads(state)
        record["pending"]["call"]["id"]
    except (ValueError, LookupError, TypeError):
        return None
    return record


def _make_form(pending: Mapping[str, Any]) -> Form:
    """Return the question, with the call that it is about. Long texts are cut, so nothing hides behind them."""
    pending = find_question(pending)
    arguments = pending["arguments"]
    limit = MOST_MESSAGE // (2 + len(arguments))
    lines = [f"{name}: {truncate_text(format_json(thaw(value)), limit)}" for name, value in arguments.items()]
    message = "\n".join([truncate_text(pending["reason"], limit), "", pending["call"]["name"], *lines])
    shown = "".join(c if c == "\n" or c.isprintable() else repr(c)[1:-1] for c in message)
    return make_form(truncate_text(shown, MOST_MESSAGE), pending["schema"], {})


def _make_input_request(form: Form, record: Mapping[str, Any]) -> TheirResult:
    asked = wire.InputRequiredResult(input_requests={form.key: elicitation(form)}, request_state=json.dumps(record))
    return InputRequiredToolResult(asked)


def _to_their_result(result: ToolResult, tool: Tool, has_schema: bool) -> TheirResult:
    written = wire.CallToolResult.model_validate(
        to_wire_result(result, tool, schema_listed=has_schema, unlisted_types=(dict,))
    )
    return TheirResult(written.content, written.structured_content, is_error=written.is_error is True)


# -- inward ------------------------------------------------------------------------------------------------------------


async def from_tools(server: FastMCP[Any]) -> Toolset:
    """Return the tools of a server, as it lists them now. Each call uses `server.call_tool`, with its middleware.

    Raises:
        DefinitionError: The object is no server, or a toolset cannot hold a tool.
    """
    unchecked: object = server
    if not isinstance(unchecked, FastMCP):
        raise DefinitionError(
            f"from_tools takes a FastMCP server, not {type(unchecked).__name__}: add single tools to one by "
            "server.add_tool; for a server that a client reaches, use mcp.connect(…)"
        )
    return Toolset([_to_our_tool(server, tool) for tool in await server.list_tools()])


def _to_our_tool(server: FastMCP[Any], tool: TheirTool) -> Tool:
    schema, hints = tool.output_schema, tool.annotations or wire.ToolAnnotations()
    is_wrapped = schema is not None and bool(schema.get(_WRAPPED))
    traits: Any = {
        name: value
        for name in ("destructive", "idempotent", "open_world")
        if (value := getattr(hints, f"{name}_hint")) is not None
    }
    return Tool(
        tool.name,
        partial(_call_server, server, tool.name, is_wrapped),
        description=tool.description or "",
        metadata={"title": title} if (title := tool.title or hints.title) else {},
        input_schema=tool.parameters,
        output_schema=_unwrap_schema(schema) if is_wrapped and schema is not None else schema,
        timeout=tool.timeout,
        tags=tuple(sorted(tool.tags)),
        read_only=hints.read_only_hint is True,
        **traits,
    )


def _unwrap_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of the value that FastMCP puts into `{"result": …}` because it is no object."""
    inner = dict(schema["properties"]["result"])
    return {**inner, "$defs": schema["$defs"]} if "$defs" in schema else inner


@contextmanager
def _hide_answers() -> Iterator[None]:
    """Hide the answers and the state of the current request from a tool that asks its client.

    The answers belong to other questions.
    """
    request = fastmcp_request_ctx.get()
    if request is None:
        yield
        return
    token = fastmcp_request_ctx.set(replace(request, _srctx=replace(request._srctx, params=None)))
    try:
        yield
    finally:
        fastmcp_request_ctx.reset(token)


async def _call_server(
    server: FastMCP[Any], name: str, is_wrapped: bool, payload: Mapping[str, Any], context: ToolContext[Any]
) -> ToolResult | str:
    try:
        with _hide_answers():
            response = await server.call_tool(name, thaw(payload))
    except FastMCPError as error:  # as its clients read it: the server masks secrets from them
        cause = error.__cause__
        if str(error) == f"Error calling tool {name!r}: {cause}" and cause is not None:  # of the tool's own exception
            raise cause from None
        raise ToolError(str(error)) from error
    if isinstance(response, InputRequiredToolResult):
        raise ToolError(f"{name} asks its client for input, and there is no client here; nothing more was run")
    structured: Any = response.structured_content
    if structured is None:
        return to_result(wire.CallToolResult(content=response.content, is_error=response.is_error), None)
    if is_wrapped and not response.is_error:
        structured = structured["result"]
    return to_result(
        wire.CallToolResult(content=response.content, structured_content=structured, is_error=response.is_error), None
    )
