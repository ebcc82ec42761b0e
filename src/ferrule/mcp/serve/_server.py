"""A runner behind the SDK's low-level server: list its tools, run a call, ask the client, and report changes.

a request            `RunnerServer._call_tool`: who asks, on whose behalf, and whether there is room for one more
its first time       `runner.run`, with the whole path; a question to a client of 2026-07-28 suspends the call, and
│                    its sealed record travels as `requestState`, encrypted and bound by `RequestStateBoundary`
its next time        `runner.resume`, with the person's answer
the result           `to_wire_result`
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import os
import re
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import mcp_types as wire
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import ValidationError

from ferrule import (
    Decision,
    DefinitionError,
    Event,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    Toolset,
    ask,
    deny,
)
from ferrule.approval import Asked, add_preview
from ferrule.kernel.journal_status import TICKET
from ferrule.kernel.results import NOTHING_RUN
from ferrule.kernel.tasks import start_eagerly
from ferrule.mcp.content import make_outcome, to_wire_result
from ferrule.mcp.forms import MOST_MESSAGE, Form, elicitation, make_form, to_decision
from ferrule.mcp.serve._caller import CALLER, ask_client, report_answers
from ferrule.mcp.serve._hidden import find_hidden, is_hidden
from ferrule.mcp.serve._library import LibraryHandlers, make_reader
from ferrule.mcp.serve._listing import Listing
from ferrule.mcp.serve._resources import Library
from ferrule.mcp.serve._tasks import Tasks, declares_tasks
from ferrule.mcp.serve._tasks import is_modern as _is_modern
from ferrule.mcp.visits import find_visit
from ferrule.scheduling.clock import running_loop
from ferrule.types import Coro, Middleware
from ferrule.values.call import new_id
from ferrule.values.content import clean_text, truncate_text
from ferrule.values.frozen import thaw
from ferrule.values.json_text import MASK, format_json, is_same_json
from ferrule.values.log import make_logger
from ferrule.values.result import find_question

Request = ServerRequestContext[Any, Any]
_Progress = tuple[float, float | None, str]
_MOST_STATE = 1_000_000
_MOST_PROGRESS = 100
_MOST_ANSWERS = 100
_TRACE_KEYS = ("traceparent", "tracestate", "baggage")
_NO_TOOLS = Toolset()
_NO_PROGRESS: deque[_Progress] = deque(maxlen=0)
_LACKED_MODES = {
    mode: deny(f"the client of this call cannot ask a person: it declares no elicitation by {mode}")
    for mode in ("form", "url")
}
_TOO_LARGE = "The call is too large to be asked about: its record has more than 1,000,000 characters."
_MAY_HAVE_RUN = "It had been started, so its effect may have happened."
_TOO_MANY_LISTEN = "Too many clients listen for changes; try again later."
_BUSY = "Too many calls are under way; try again later. Nothing was run."


def _star_session_ids(record: logging.LogRecord) -> bool:
    star = partial(re.sub, r"\b[0-9a-f]{32}\b", MASK)
    record.msg = star(str(record.msg))
    if isinstance(record.args, tuple):
        record.args = tuple(star(one) if isinstance(one, str) else one for one in record.args)
    return True


# The SDK logs messages of clients, and the ids of their sessions. Anybody with such an id can go on with the session.
for _name in [*logging.root.manager.loggerDict]:
    if _name.partition(".")[0] in {"mcp", "sse_starlette", "uvicorn"}:
        make_logger(_name).addFilter(_star_session_ids)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a served runner, for every transport; see `ferrule.mcp.serve.mcp`."""

    name: str
    version: str
    instructions: str | None
    context: ToolContext
    answer_within: float
    state_key: bytes | Sequence[bytes] | None
    in_flight: int
    in_flight_each: int
    keep_list: float
    keep_tasks: float
    structured: bool
    public: bool
    limit: Middleware | None = None
    title: str | None
    icons: Sequence[dict[str, Any]] | None
    library: Library


class Principal(AccessToken):
    """A recognized bearer token. Its `client_id` is the caller's identity, from `make_identity`.

    Attributes:
        name: The principal, or a name in place of one.
        context: The context of its calls.
    """

    name: str = ""
    context: Any = None


class LowLevelServer(Server[Any]):
    """The SDK's server. Its handshake always declares that its list of tools may change, and only that."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Return the options of the handshake."""
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)

    def get_capabilities(self, *given: Any, **options: Any) -> wire.ServerCapabilities:
        """Return the declared capabilities. Resources and prompts stay as they are while the server runs."""
        found = super().get_capabilities(*given, **options)
        prompts = found.prompts and wire.PromptsCapability(list_changed=False)
        resources = found.resources and wire.ResourcesCapability(list_changed=False, subscribe=False)
        return found.model_copy(update={"prompts": prompts, "resources": resources})


@dataclass(eq=False)
class _ServedRunner:
    """One runner and its list of tools. A call keeps those that it began with.

    Attributes:
        reader: The same runner with the functions of resources and prompts for tools.
        calls: How many calls of it are under way.
    """

    runner: Runner
    listing: Listing
    reader: Runner
    calls: int = 0


class _Client:
    """The client of one call: ask it, and report progress to it. If there is too much progress, the oldest is dropped.

    Attributes:
        progress_task: The task that reports progress, if there was any.
    """

    def __init__(self, request: Request, settings: Settings, early_answers: Mapping[str, object], tasks: Tasks) -> None:
        self._request = request
        self._settings = settings
        self._tasks = tasks
        self._early_answers = dict(early_answers)
        self._offered: tuple[Decision, Decision, Form] | None = None
        self._open_question: tuple[Decision, Decision, Form] | None = None
        self._lacked_mode: str | None = None
        self._loop = asyncio.get_running_loop()
        self._last_progress = -math.inf
        self._waiting: deque[_Progress] = _NO_PROGRESS  # most calls report no progress
        self.progress_task: asyncio.Task[None] | None = None

    # -- questions ----------------------------------------------------------------------------------------------------

    async def ask(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision | bool:
        """Ask a client of 2025 now, and have one of 2026 asked by the result of its call."""
        modern = _is_modern(self._request)
        in_task = modern and call.id.startswith(TICKET) and declares_tasks(self._request)
        if modern and call.parent is not None and not in_task:
            return deny("a client cannot be asked about a call that another tool makes")
        if modern and context.inside and not in_task:
            return deny("a client of 2026-07-28 cannot be asked while the tool runs")
        capabilities = self._request.session.client_capabilities
        declared = None if capabilities is None else capabilities.elicitation
        mode = "form" if find_visit(decision.schema) is None else "url"
        if declared is None or (getattr(declared, mode) is None and (mode == "url" or declared.url is not None)):
            return _LACKED_MODES[mode]
        asked = await add_preview(Asked.of(call, decision, context))
        if asked.problem is not None:
            return deny(asked.problem)
        form = _make_form(asked)
        if in_task:
            given = await self._tasks.ask(call.id, form)
            name = get_name(_principal(self._request))
            return given if isinstance(given, Decision) else to_decision(form, given, name, call.arguments)
        if not modern:
            return await self._elicit(form, call)
        # Input for a tool may come with the call; a yes is only valid after its question.
        answer = None if form.kind in ("yes", "visit") else self._early_answers.pop(form.key, None)
        if isinstance(answer, wire.ElicitResult):
            return to_decision(form, answer, get_name(_principal(self._request)), call.arguments)
        offered = ask(decision.reason, into=decision.into)  # another object, to recognize it by identity
        self._offered = offered, decision, form
        return offered

    def on_answer(self, call: ToolCall, context: ToolContext, answer: object) -> None:
        """Remember the question if the approver has answered with the very ask from `ask`. An ask of the approver's own
        is not for the client, even if the client was asked before."""
        if call.parent is None and not context.inside:
            offered = self._offered
            self._open_question = offered if offered is not None and answer is offered[0] else None
            self._lacked_mode = next((mode for mode, lacked in _LACKED_MODES.items() if answer is lacked), None)

    def check_declared(self, result: ToolResult) -> None:
        """Refuse a call by the protocol's own error if only a capability that the client lacks has stopped it: an
        approver had nobody to ask, or the handler raised that error. A client of 2025 gets a result with `isError`.

        Raises:
            MCPError: `MISSING_REQUIRED_CLIENT_CAPABILITY`.
        """
        if not _is_modern(self._request):
            return
        raised = result.exception
        if isinstance(raised, MCPError) and raised.code == wire.MISSING_REQUIRED_CLIENT_CAPABILITY:
            raise raised
        if self._lacked_mode is not None and result.status == "denied":
            required: dict[str, Any] = {"requiredCapabilities": {"elicitation": {self._lacked_mode: {}}}}
            reason = result.error or _LACKED_MODES[self._lacked_mode].reason
            raise MCPError(wire.MISSING_REQUIRED_CLIENT_CAPABILITY, reason, required)

    def form_for(self, pending: Mapping[str, Any]) -> Form | None:
        """Return the form for the question of a suspended call, or None if the question is not for the client."""
        if self._open_question is None:
            return None
        _, asked, form = self._open_question
        # Background work of a handler may have asked since.
        is_it = pending["reason"] == clean_text(asked.reason) and is_same_json(
            thaw(pending["schema"]), thaw(asked.schema)
        )
        return form if is_it else None

    async def _elicit(self, form: Form, call: ToolCall) -> Decision | bool:
        try:
            answer = await self._request.session.send_request(
                elicitation(form),
                wire.ElicitResult,
                request_read_timeout_seconds=self._settings.answer_within,
                metadata=ServerMessageMetadata(related_request_id=self._request.request_id),
            )
        except MCPError as error:
            if error.code == wire.REQUEST_TIMEOUT:
                return deny(f"nobody answered within {self._settings.answer_within:g} s")
            return deny("the client could not ask")
        except ValidationError:
            return deny("the client's answer is not valid in MCP")
        return to_decision(form, answer, get_name(_principal(self._request)), call.arguments)

    # -- progress -----------------------------------------------------------------------------------------------------

    def on_progress(self, data: Mapping[str, Any]) -> None:
        """Queue the progress of a `tool:progress` event, from any thread."""
        done: Any = data.get("done")
        total: Any = data.get("total")
        if _is_number(done):
            progress: _Progress = (done, total if _is_number(total) else None, data.get("message") or "")
            if running_loop() is self._loop:
                self._add(progress)
            else:
                self._loop.call_soon_threadsafe(self._add, progress)

    def _add(self, progress: _Progress) -> None:
        if self._waiting is _NO_PROGRESS:
            self._waiting = deque(maxlen=_MOST_PROGRESS)
        self._waiting.append(progress)
        if self.progress_task is None or self.progress_task.done():
            self.progress_task = self._loop.create_task(self._report_progress())

    async def _report_progress(self) -> None:
        while self._waiting:
            done, total, message = self._waiting.popleft()
            if done > self._last_progress:  # MCP forbids progress that does not increase
                self._last_progress = done
                await self._request.session.report_progress(done, total, message or None)

    async def wait_for_progress(self) -> None:
        """Wait until all progress is reported. The result must come after it."""
        if self.progress_task is not None:
            await asyncio.wait({self.progress_task})

    def stop_progress(self) -> None:
        """Report nothing more."""
        if self.progress_task is not None:
            self.progress_task.cancel()


class _Quota:
    """The count of something, of all principals and of each, with its limits."""

    def __init__(self, most: float, most_each: float) -> None:
        self._most = most
        self._most_each = most_each
        self._all = 0
        self._each: dict[str | None, int] = {}

    def enter(self, owner: str | None) -> bool:
        """Count one more, if there is room for it. Return whether there was."""
        each = self._each.get(owner, 0)
        if self._all >= self._most or each >= self._most_each:
            return False
        self._all += 1
        self._each[owner] = each + 1
        return True

    def leave(self, owner: str | None) -> None:
        """Count one less."""
        self._all -= 1
        each = self._each[owner] = self._each[owner] - 1
        if not each:
            del self._each[owner]


class RunnerServer:
    """Serves one runner, and another one in its place after `use`.

    Attributes:
        server: The SDK's low-level server, for its transports.
    """

    def __init__(self, runner: Runner, settings: Settings) -> None:
        self._settings = settings
        self._calls = _Quota(settings.in_flight, settings.in_flight_each)
        self._listeners = _Quota(settings.in_flight, settings.in_flight_each)
        self._earlier: set[_ServedRunner] = set()  # served before, with calls under way
        self._clients: dict[str, _Client] = {}
        self._followed: set[str | int] = set()
        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(self._bus, max_subscriptions=math.ceil(settings.in_flight))
        self._served = self._serve(runner)
        self.runner = runner
        self._tasks = Tasks(
            lambda: self._served,
            lambda request: self._context(request, _principal(request)),
            settings.keep_tasks,
            settings.answer_within,
        )
        self.server = LowLevelServer(
            settings.name,
            version=settings.version,
            title=settings.title,
            icons=None if settings.icons is None else [wire.Icon.model_validate(one) for one in settings.icons],
            instructions=settings.instructions,
            on_list_tools=self._list_tools,
            on_subscriptions_listen=self._listen_for_changes,
            get_tool_input_schema=self._find_input_schema,
        )
        # Results go out as they are, and not as models.
        self.server.add_request_handler("tools/call", wire.CallToolRequestParams, self._call_tool)
        self.server.add_notification_handler("notifications/initialized", wire.NotificationParams, self._follow_changes)
        self._tasks.register(self.server)
        if settings.library.tools:
            caching = {
                "ttl_ms": int(settings.keep_list * 1000),
                "cache_scope": "public" if settings.public else "private",
            }
            LibraryHandlers(
                settings.library, is_hidden=self._is_hidden, run=self._run_reading, caching=caching
            ).register(self.server)
        self.server.middleware.insert(0, check_params)  # before the SDK's own
        security = _security(settings)
        self.server.middleware.append(RequestStateBoundary(security, default_audience=settings.name))

    async def use(self, runner: Runner) -> None:
        """Serve another runner from now on. Calls under way go on, and clients are notified if the tools have
        changed."""
        before, self._served, self.runner = self._served, self._serve(runner), runner
        if before.calls:
            self._earlier.add(before)
        if before.listing.digest != self._served.listing.digest or before.runner.guards != runner.guards:
            await self._bus.publish(ToolsListChanged())

    async def drain(self) -> None:
        """Take no new calls, and wait for those under way, like leaving a runner does. End the streams of clients that
        listen for changes."""
        self._listen.close()
        runners = {runner for served in (self._served, *self._earlier) for runner in (served.runner, served.reader)}
        await asyncio.gather(*map(_leave, runners))

    def _serve(self, runner: Runner) -> _ServedRunner:
        if not isinstance(runner, Runner):
            raise DefinitionError(f"serve a Runner, not {type(runner).__name__}: Runner(tools) makes one")
        settings = self._settings
        listing = Listing(runner, seconds=settings.keep_list, public=settings.public, structured=settings.structured)
        observers = [*runner.observers, self._observe]
        inside = runner.inside if settings.limit is None else (settings.limit, *runner.inside)
        approve = report_answers(runner.approve or ask_client)
        made = runner.replace(approve=approve, observers=observers, inside=inside)
        return _ServedRunner(made, listing, make_reader(made, settings.library.tools))

    # -- what clients send --------------------------------------------------------------------------------------------

    async def _list_tools(self, request: Request, params: wire.PaginatedRequestParams | None) -> wire.ListToolsResult:
        served = self._served
        hidden = find_hidden(served.runner, self._context(request, _principal(request)))
        return served.listing.page(None if params is None else params.cursor, hidden, modern=_is_modern(request))

    def _find_input_schema(self, name: str) -> dict[str, Any] | None:
        """Return the input schema of a tool, for the headers that mirror arguments, unless the caller does not see it.
        The SDK keeps the caller of a request in a context variable of its own."""
        token, served = get_access_token(), self._served
        context: ToolContext = token.context if isinstance(token, Principal) else self._settings.context
        tool = served.runner.tools.find(name)
        if tool is None or is_hidden(tool, served.runner.guards, context):
            return None
        schema: dict[str, Any] = thaw(tool.input_schema)
        return schema

    async def _listen_for_changes(
        self, request: Request, params: wire.SubscriptionsListenRequestParams
    ) -> wire.SubscriptionsListenResult:
        owner = get_name(_principal(request))
        if not self._listeners.enter(owner):
            raise MCPError(wire.INTERNAL_ERROR, _TOO_MANY_LISTEN)
        try:
            return await self._listen(request, params)
        finally:
            self._listeners.leave(owner)

    async def _follow_changes(self, request: Request, params: wire.NotificationParams) -> None:
        """Notify a client of 2025 of changes, as long as its connection lasts: the SDK ends this with it."""
        # Without a session each connection runs the server, and has the context of that run; a client may send
        # `initialize`, and `initialized`, more than once.
        connection = _session_id(request) or id(request.lifespan_context)
        if connection in self._followed:
            return
        self._followed.add(connection)
        changes = asyncio.Event()
        unsubscribe = self._bus.subscribe(lambda event: changes.set())
        try:
            while True:
                await changes.wait()
                changes.clear()
                await request.session.send_tool_list_changed()
        finally:
            unsubscribe()
            self._followed.discard(connection)

    def _is_hidden(self, request: Request, tool: Tool) -> bool:
        return is_hidden(tool, self._served.runner.guards, self._context(request, _principal(request)))

    async def _run_reading(self, request: Request, tool: Tool, arguments: Mapping[str, str]) -> ToolResult:
        """Run the function of a resource or prompt as a call. It asks no client.

        Raises:
            MCPError: There is no room for one more call.
        """
        principal = _principal(request)
        owner = get_name(principal)
        if not self._calls.enter(owner):
            raise MCPError(wire.INTERNAL_ERROR, _BUSY)
        try:
            call = ToolCall(new_id(), tool.name, format_json(arguments))
            return await self._served.reader.run(call, self._context(request, principal))
        finally:
            self._calls.leave(owner)

    async def _call_tool(
        self, request: Request, params: wire.CallToolRequestParams
    ) -> dict[str, Any] | wire.CallToolResult | wire.InputRequiredResult:
        served, principal, modern = self._served, _principal(request), _is_modern(request)
        owner = get_name(principal)
        context = self._context(request, principal)
        tool = served.runner.tools.find(params.name)
        if not self._calls.enter(owner):
            return _busy_call()
        served.calls += 1
        state = params.request_state if modern else None
        early_answers = (params.input_responses or {}) if state is None else {}
        client = _Client(request, self._settings, early_answers, self._tasks)
        try:
            if tool is None or is_hidden(tool, served.runner.guards, context):
                # Rejected and recorded, without arguments: no schema says which of them are private.
                name = params.name[:200]
                await served.runner.run(name, {}, context, offered=_NO_TOOLS)
                raise MCPError(wire.INVALID_PARAMS, f"Unknown tool: {name!r}")
            if tool.background and not self._tasks.has_room(context, self._settings.in_flight_each):
                return _busy_call()
            if state is None:
                call = ToolCall(new_id(), tool.name, format_json(params.arguments or {}))
                result = await self._run(client, call.id, served.runner.run(call, context))
            else:
                form, record = _read_state(state)
                answer = (params.input_responses or {}).get(form.key)
                if not isinstance(answer, wire.ElicitResult):  # asked again, until there is an answer
                    return _question(form, state)
                decision = to_decision(form, answer, owner, find_question(record["pending"])["arguments"])
                run = served.runner.resume(record, decision, context, by=owner)
                result = await self._run(client, record["pending"]["call"]["id"], run)
        finally:
            self._calls.leave(owner)
            served.calls -= 1
            if not served.calls:
                self._earlier.discard(served)
        if result.pending is not None and (asked := client.form_for(result.pending)) is not None:
            return _make_question(asked, result, time.time() + self._settings.answer_within)
        client.check_declared(result)
        if tool.background and (task := self._tasks.to_task(request, result)) is not None:
            return task
        listing = served.listing
        return to_wire_result(
            result,
            tool,
            schema_listed=listing.is_structured(tool, modern=modern),
            unlisted_types=listing.unlisted_types(modern=modern),
        )

    # -- one call -----------------------------------------------------------------------------------------------------

    async def _run(self, client: _Client, call_id: str, run: Coro[ToolResult]) -> ToolResult:
        """Await a run in a task of its own, with its progress. Exactly one cancellation reaches the task, so its
        handler has its grace: AnyIO cancels again at every turn of the loop, and would end the wait for a handler's
        cleanup."""
        self._clients[call_id] = client
        token = CALLER.set(client)
        task: asyncio.Task[ToolResult] = start_eagerly(run, loop=asyncio.get_running_loop())
        try:
            if not task.done():
                await asyncio.wait({task})
            await client.wait_for_progress()
        except asyncio.CancelledError:
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # marked as seen
            raise
        finally:
            CALLER.reset(token)
            client.stop_progress()
            if self._clients.get(call_id) is client:  # a question that was answered twice has one call
                del self._clients[call_id]
        return task.result()

    def _observe(self, event: Event) -> None:
        if event.kind == "tool:progress" and (client := self._clients.get(event.call.id)) is not None:
            client.on_progress(event.data)

    def _context(self, request: Request, principal: Principal | None) -> ToolContext:
        """Return the context of a call: its token's, or the server's own, with the session of its connection."""
        context: ToolContext = self._settings.context if principal is None else principal.context
        if context.session is not None:
            return context
        connection = _session_id(request)
        if connection is None and principal is not None and principal.client_id != context.principal:
            # Jobs and grants are found by principal and session, and others may have the same ones.
            connection = principal.client_id
        if connection is None:
            return context
        # The id lets its bearer use the session: no event and no record holds it.
        return context.replace(session=f"mcp_{hashlib.sha256(connection.encode()).hexdigest()[:24]}")


async def check_params(ctx: Request, call_next: CallNext) -> HandlerResult:
    """Refuse parameters that would break the SDK, with a traceback in the log, or cost it 50 µs of the loop each,
    before any other check. A notification is dropped. A middleware of the SDK's server.

    Raises:
        MCPError: `INVALID_PARAMS`.
    """
    params = ctx.params or {}
    meta, answers, wrong = params.get("_meta"), params.get("inputResponses"), None
    if isinstance(meta, Mapping) and not all(isinstance(meta.get(key, ""), str) for key in _TRACE_KEYS):
        wrong = f"{', '.join(_TRACE_KEYS)} in _meta are texts"
    elif isinstance(answers, Mapping) and len(answers) > _MOST_ANSWERS:
        wrong = f"inputResponses has at most {_MOST_ANSWERS} answers"
    if wrong is None:
        return await call_next(ctx)
    if ctx.request_id is None:
        return None
    raise MCPError(wire.INVALID_PARAMS, f"Invalid request parameters: {wrong}")


async def _leave(runner: Runner) -> None:
    async with runner:
        pass


def _security(settings: Settings) -> RequestStateSecurity:
    key = settings.state_key
    keys = [os.urandom(32)] if key is None else [key] if isinstance(key, bytes) else [*key]
    try:
        return RequestStateSecurity(keys=keys, ttl=settings.answer_within, bind_principal=identity)
    except (TypeError, ValueError) as error:
        raise DefinitionError(f"state_key: {error}") from None


def get_name(principal: Principal | None) -> str | None:
    """Return the name of a caller; `None` if no tokens are asked for."""
    return None if principal is None else principal.name


def identity(request: Request) -> str | None:
    """Return the identity of the caller; `None` if no tokens are asked for."""
    principal = _principal(request)
    return None if principal is None else principal.client_id


def _principal(request: Request) -> Principal | None:
    return None if request.request is None else find_principal(request.request.scope)


def find_principal(scope: Mapping[str, Any]) -> Principal | None:
    """Return the principal of an HTTP request, if its token was recognized."""
    user = scope.get("user")
    token = user.access_token if isinstance(user, AuthenticatedUser) else None
    return token if isinstance(token, Principal) else None


def _session_id(request: Request) -> str | None:
    """Return the session of a client of 2025 over HTTP. The SDK's transport has compared the header with the ids of
    this principal. A client of 2026 has no session, and nobody checks its header."""
    if request.request is None or _is_modern(request):
        return None
    header: str | None = request.request.headers.get("mcp-session-id")
    return header


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _make_question(form: Form, result: ToolResult, until: float) -> wire.CallToolResult | wire.InputRequiredResult:
    """Return the question of a suspended call, with its record."""
    state = json.dumps([form, {"pending": thaw(result.pending)}, until])
    if len(state) <= _MOST_STATE:
        return _question(form, state)
    effect = NOTHING_RUN if result.executed is False else _MAY_HAVE_RUN
    return _refused_call(f"{_TOO_LARGE} {effect}", make_outcome("failed", result.executed))


def _read_state(state: str) -> tuple[Form, dict[str, Any]]:
    """Return the form and the record carried by a client. The SDK has checked their seal. The seal is made anew
    whenever the question is sent again; the time for an answer is not.

    Raises:
        MCPError: That time is over. The text is the SDK's.
    """
    form, record, until = json.loads(state)
    if until <= time.time():
        why = {"reason": "invalid_request_state"}
        raise MCPError(wire.INVALID_PARAMS, "Invalid or expired requestState", why)
    return Form(*form), record


def _make_form(asked: Asked) -> Form:
    message = asked.text.strip()
    if len(message) > MOST_MESSAGE:  # beginnings and ends, so that nothing hides behind much else
        message = truncate_text(asked.question().text.strip(), MOST_MESSAGE)
    return make_form(message, asked.decision.schema, asked.binds)


def _question(form: Form, state: str | None) -> wire.InputRequiredResult:
    return wire.InputRequiredResult(input_requests={form.key: elicitation(form)}, request_state=state)


def _busy_call() -> wire.CallToolResult:
    return _refused_call(_BUSY, make_outcome("limited", False))


def _refused_call(why: str, outcome: dict[str, Any]) -> wire.CallToolResult:
    return wire.CallToolResult(content=[wire.TextContent(text=why)], is_error=True, _meta=outcome)
