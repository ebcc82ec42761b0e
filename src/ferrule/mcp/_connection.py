"""The connection to one MCP server, owned by one task; calls come from any task of its loop.

    idle ──► starting ──► ready ──► down ──► starting …        closed, from anywhere
                 └──────► down

A call to a server that is down starts it again, once a wait is over: no wait after a connection with an answered call,
then half a second, twice as long each time, at most 30 s. During the wait calls fail at once, and nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any, NamedTuple

import anyio
import mcp_types as types
from mcp import Client
from mcp.client._memory import InMemoryTransport
from mcp.client.session import ClientRequestContext, ClientSession, IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from ferrule import InputRequired, ToolContext, ToolError, __version__
from ferrule.mcp._http import HttpClient
from ferrule.mcp._log import DROPPED, SDK_LOGS, ServerLog
from ferrule.mcp._oauth import make_provider
from ferrule.mcp._questions import accept, format_reason, read_schema
from ferrule.mcp._reach import Reach
from ferrule.mcp._settings import Bearer, Http, Memory, Mode, OAuth, Server, Stdio
from ferrule.mcp._status import State
from ferrule.mcp._stdio import run_program
from ferrule.mcp._tasks import TaskSupport
from ferrule.mcp._users import UserTokens
from ferrule.security.characters import disarm, remove_hidden
from ferrule.security.foreign_text import measure_size, to_one_line

_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.5, 30.0
_MOST_PAGES, _MOST_TOOLS = 100, 1_000
MOST_LIST = 5_000_000
"""Characters of all the definitions in a list."""
_MOST_INFO, _MOST_REASON = 200, 1_600
_MOST_INSTRUCTIONS = 8_000
_DEBOUNCE, _BETWEEN_LISTS = 0.1, 3.0
"""Seconds to wait for further changes, and least seconds between two lists."""
_LEAVE_SECONDS = 2.0
_SHORTEST_LIFETIME, _LONGEST_LIFETIME = 5.0, 86_400.0
"""The range of seconds until a list is read again if the server limits its lifetime."""


_SSE_ALONE = (
    "it speaks only the HTTP+SSE transport of 2024, which MCP has replaced; give the address where the "
    "server speaks Streamable HTTP, often /mcp instead of /sse"
)


class Listing(NamedTuple):
    """The tools that a server listed.

    Attributes:
        tools: The definitions.
        left_out: The name of a tool, or `None` for the list as a whole, with the problem.
        lifetime: Seconds until the list is read again; `None` if the server gives no time.
    """

    tools: list[types.Tool]
    left_out: list[tuple[str | None, str]]
    lifetime: float | None = None


class ToolValidation(NamedTuple):
    """The state of reading a list definition by definition.

    Attributes:
        version: The revision of MCP to validate against.
        left_out: The names of invalid definitions, each with the problem.
    """

    version: str
    left_out: list[tuple[str | None, str]]


class OpenCall:
    """A call under way, and the task that waits for its answer.

    The wait can be ended, as `asyncio.timeout` ends one. This costs each call 8 µs beside the SDK's 100.

    Attributes:
        owner: The connection of the call.
        context: The context of the call; the server may ask its person.
        variables: The context variables of the call: an approver may find the person to ask by them.
    """

    __slots__ = ("_earlier_cancellations", "_is_cancelled_here", "_task", "context", "owner", "variables")

    def __init__(self, owner: Connection, context: ToolContext) -> None:
        self.owner = owner
        self.context = context
        self.variables = contextvars.copy_context()
        task: Any = asyncio.current_task()
        self._task: asyncio.Task[Any] = task
        self._earlier_cancellations = self._task.cancelling()
        self._is_cancelled_here = False

    def cancel(self) -> None:
        """End the wait for the answer, by cancelling the task."""
        if not self._is_cancelled_here:
            self._is_cancelled_here = True
            self._task.cancel()

    def undo_cancellation(self) -> bool:
        """Undo the cancellation by `cancel`. Return whether there was one, and nobody else has cancelled the task."""
        was_cancelled, self._is_cancelled_here = self._is_cancelled_here, False
        return was_cancelled and self._task.uncancel() <= self._earlier_cancellations


OPEN_CALL: ContextVar[OpenCall | None] = ContextVar("ferrule.mcp.call", default=None)
"""The call of the present code. Over HTTP, and in memory, the SDK reads the messages on the stream of an answer in the
context of its call."""


class Connection:
    """One server, and the task that owns the connection to it.

    Args:
        server: The server.
        start_timeout: Seconds for a start, until the tools are listed.
        elicitation: Whether the server may ask a person.
        on_listing: Called with each list of the server, and with a function that returns whether it is late.

    Attributes:
        session: The SDK's session for requests; `None` unless the server is ready.
        state: The state, as in the picture at the top of this module.
        reason: The reason why it is down.
        http: The HTTP client of a server at an address; `None` for other servers.
        users: Signs the requests of each call by itself; `None` without a `Bearer`.
        protocol: The revision that is spoken, once there was a connection.
        server_info: The server's name and version, in its own words.
        instructions: The server's text about its tools as a whole.
        withdrawn: The server's names of tools that are not called: their definitions differ from the accepted ones.
        log: The server's output, and the one way of its texts to errors and logs.
    """

    def __init__(
        self,
        server: Server,
        start_timeout: float,
        elicitation: bool,
        on_listing: Callable[[Listing, Callable[[], bool]], Awaitable[None]],
    ) -> None:
        self.server = server
        self.session: ClientSession | None = None
        self.http: HttpClient | None = None
        self.state: State = "idle"
        self.reason = self.protocol = self.server_info = self.instructions = ""
        self._start_timeout, self._elicitation, self._on_listing = start_timeout, elicitation, on_listing
        auth = getattr(server, "auth", None)
        self.users = UserTokens(auth, server.label) if isinstance(auth, Bearer) else None
        self.log = ServerLog(server.label, server.secrets)
        self._loop = asyncio.get_running_loop()
        self._retry_at, self._failures, self._has_listed = 0.0, 0, False
        self._forgotten = False
        self._cancelled_requests: set[types.RequestId] = set()
        self._validation: ToolValidation | None = None
        self._list_lifetime: float | None = None
        self._start_limit: asyncio.Timeout | None = None
        self._closing = False
        self.withdrawn: frozenset[str] = frozenset()
        self._calls: set[OpenCall] = set()
        self._idle = asyncio.Event()
        self._questions: dict[OpenCall, asyncio.Task[Any]] = {}
        self._start_requested, self._settled, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._stale, self._followed = asyncio.Event(), asyncio.Event()

    # -- for calls -----------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> ClientSession | None:
        """The session for requests, if nothing has to be waited for."""
        return self.session if asyncio.get_running_loop() is self._loop else None

    async def open(self) -> ClientSession:
        """Return the session for requests. Start the server if it may be started.

        Raises:
            ToolError: The server is down or closed, or belongs to another event loop. Nothing was sent.
        """
        if asyncio.get_running_loop() is not self._loop:
            text = f"{self.server.label} belongs to another event loop, in which it was connected"
            raise ToolError(text, executed=False)
        if self.state in ("idle", "down") and self.retry_in <= 0:
            self.start()
        if self.state == "starting":
            await self._settled.wait()
        if self.session is None:
            raise self._make_down_error()
        return self.session

    def _make_down_error(self) -> ToolError:
        label, left = self.server.label, self.retry_in
        if self.state == "closed":
            return ToolError(f"{label} is closed: its connect(…) has ended", executed=False)
        # The reason is in the log and not for a model: the server may have chosen its words.
        return ToolError(f"{label} is down; Ferrule tries again in {left:.1f} s", executed=False, retry_after=left)

    @property
    def retry_in(self) -> float:
        """Seconds until a call may start it again."""
        return max(self._retry_at - self._loop.time(), 0.0) if self.state == "down" else 0.0

    def on_answer(self) -> None:
        """Forget earlier failures, because the server has answered a call."""
        self._failures = 0

    def begin_call(self, context: ToolContext) -> OpenCall:
        """Register a call. The server may ask its person until the call `ends`."""
        call = OpenCall(self, context)
        self._calls.add(call)
        return call

    def end_call(self, call: OpenCall) -> None:
        """Unregister a call, and withdraw the server's question about it."""
        self._calls.discard(call)
        call.undo_cancellation()
        if self._forgotten and not self._calls:
            self._idle.set()
        if self._questions and (question := self._questions.pop(call, None)) is not None:
            question.cancel()

    def start(self) -> None:
        """Have the connection's task start the server."""
        self.state = "starting"
        self._settled.clear()
        self._start_requested.set()

    def mark_lost(self, reason: str) -> None:
        """Mark the connection as lost. Later calls start it again."""
        if self.session is not None:
            self._on_down(reason)
        self._ended.set()

    def mark_forgotten(self, session: ClientSession) -> None:
        """Mark this session as forgotten by the server. Later calls make another one, once the calls under way have
        heard the same, or their time is over."""
        if self.session is session:
            self._forgotten = True
            self.mark_lost("the server has forgotten the session")

    def mark_unreachable(self, reason: str) -> None:
        """Mark the connection as lost after a call could not be sent, unless others are under way."""
        if len(self._calls) <= 1:
            self.mark_lost(reason)

    async def list_again(self) -> bool:
        """List the tools again, because a call may need the headers named in their definitions. Return whether there
        was an answer."""
        session = self.session
        if session is None:
            return False
        try:
            async with asyncio.timeout(self._start_timeout):
                listing = await self._fetch_list(session)
        except (MCPError, ValueError, TimeoutError):
            return False
        await self._pass_listing(listing, self._loop.time() + self._start_timeout)
        return True

    async def _fetch_list(self, session: ClientSession) -> Listing:
        """Return the list. If the SDK refuses all of it for one definition, list once more, and leave out invalid
        definitions."""
        try:
            return await list_tools(session)
        except ValidationError:
            validation = self._validation = ToolValidation(session.protocol_version or "", [])
        try:
            listing = await list_tools(session)
        finally:
            self._validation = None
        return listing._replace(left_out=[*validation.left_out, *listing.left_out])

    async def _pass_listing(self, listing: Listing, deadline: float) -> None:
        """Have tools made of the list. That happens in a thread, so it learns when it is late instead of being
        cancelled."""
        await self._on_listing(listing, lambda: self._closing or self._loop.time() > deadline)
        self._list_lifetime = listing.lifetime

    # -- for who follows -----------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """From now on, report every change of the list, and retry without a call if there never was a list."""
        if not self._followed.is_set():
            self._followed.set()
            if self.state == "down" and not self._has_listed:
                self._loop.call_later(self.retry_in, self._start_if_down)

    def _start_if_down(self) -> None:
        if self.state == "down":
            self.start()

    async def wait_until_settled(self) -> None:
        """Wait until the start has succeeded or failed."""
        await self._settled.wait()

    # -- its task ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Start the server whenever it is wanted, until the connection is closed. This is the task of the
        connection."""
        SDK_LOGS.set(self.log)
        OPEN_CALL.set(None)  # this task may have been made within a call
        try:
            while not self._closing:
                await self._start_requested.wait()
                self._start_requested.clear()
                if not self._closing:
                    await self._run_once()
        finally:
            self.session, self.state = None, "closed"
            self._settled.set()

    def close(self) -> None:
        """Let the task end. It is not cancelled: that would break off the SDK's end of a process under way."""
        self._closing = True
        self._start_requested.set()
        self._ended.set()
        if self.state == "starting" and self._start_limit is not None:
            with contextlib.suppress(RuntimeError):  # it has just started, or is ending already
                self._start_limit.reschedule(self._loop.time())

    async def _run_once(self) -> None:
        """Run one connection, from its start to its end."""
        self._ended.clear()
        self._forgotten = False
        self._cancelled_requests.clear()
        self.log.clear()
        reason, opened = "the connection ended", False
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._start_timeout) as self._start_limit:
                    try:
                        client = await self._connect(stack)
                        listing = await self._fetch_list(client.session)
                    except Exception:
                        if isinstance(self.server, Http) and self.http and await self.http.gets_sse(self.server.url):
                            raise MCPError(types.INVALID_REQUEST, _SSE_ALONE) from None
                        raise
                when = self._start_limit.when() or 0.0
                await self._pass_listing(listing, max(when, self._loop.time() + _LEAVE_SECONDS))
                if self._ended.is_set():  # the server died meanwhile; nothing reports that again
                    raise MCPError(types.CONNECTION_CLOSED, reason)
                opened = True
                self._on_open(client)
                watching = [asyncio.create_task(self._watch(client))]
                stack.push_async_callback(_stop, watching)
                stack.callback(self._leave_calls)
                await self._ended.wait()
                if self._forgotten:
                    await self._wait_for_calls()
        except Exception as error:
            is_late = self._start_limit is not None and self._start_limit.expired()
            reason = (
                f"it did not answer within {self._start_timeout:g} s" if is_late else describe_failure(error, self.log)
            )
            self._log_error("the connection broke", error)
        if self._closing:
            return
        if not (opened and self._ended.is_set()):
            self._on_down(reason)
        elif self.state == "down" and self.log.end not in self.reason:  # with the output that it wrote while it ended
            self.reason = self._add_last_output(self.reason)

    async def _wait_for_calls(self) -> None:
        """Wait a short time until no call of a forgotten session is under way."""
        self._idle.clear()
        if self._calls:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await self._idle.wait()

    def _leave_calls(self) -> None:
        """End the calls under way when the connection is left: in memory, nothing else would."""
        if self._closing:
            for call in self._calls:
                call.cancel()

    def _on_open(self, client: Client) -> None:
        session = client.session
        info = session.server_info
        self.protocol = session.protocol_version or ""
        text = "" if info is None else to_one_line(f"{info.name} {info.version}", _MOST_INFO)
        self.server_info = self.log.clean(text, _MOST_INFO)
        text = disarm(remove_hidden(session.instructions or "")[0]).strip()[:_MOST_INSTRUCTIONS]
        self.instructions = self.log.clean(text, _MOST_INSTRUCTIONS)
        self.session, self.state, self.reason, self._has_listed = session, "ready", "", True
        self.log.write(logging.INFO, f"{self.server.label} is ready: {self.server_info}, MCP {self.protocol}")
        self._settled.set()

    def _on_down(self, reason: str) -> None:
        self.session, self.state = None, "down"
        self.reason = self._add_last_output(reason)
        step = self._failures - self._has_listed
        wait = 0.0 if step < 0 else min(_FIRST_BACKOFF * 2 ** min(step, 10), _LONGEST_BACKOFF)
        self._retry_at = self._loop.time() + wait
        self._failures += 1
        if not self._closing:
            self.log.write(logging.WARNING, f"{self.server.label} is down: {self.reason}")
        if self._followed.is_set() and not self._has_listed:
            self._loop.call_later(self.retry_in, self._start_if_down)
        self._settled.set()

    def _log_error(self, what: str, error: Exception) -> None:
        self.log.write_error(logging.DEBUG, what, error)

    def _warn(self, what: str) -> None:
        self.log.write(logging.WARNING, f"{self.server.label}: {what}")

    def _add_last_output(self, reason: str) -> str:
        return self.log.clean(f"{reason}; its last output: {self.log.end}" if self.log.end else reason, _MOST_REASON)

    async def _connect(self, stack: AsyncExitStack) -> Client:
        """Return the SDK's client, connected. A program that knows only 2025 may end because of the question for its
        revision, as one with an older `rmcp` of Rust does. It is started once more, and not asked."""
        mode = self.server.mode
        try:
            return await stack.enter_async_context(await self._make_client(stack, mode))
        except Exception as error:
            has_ended = getattr(_find_first_error(error), "code", None) == types.CONNECTION_CLOSED
            if not (isinstance(self.server, Stdio) and mode == "auto" and has_ended):
                raise
        self._ended.clear()
        self.log.clear()
        return await stack.enter_async_context(await self._make_client(stack, "legacy"))

    async def _make_client(self, stack: AsyncExitStack, mode: Mode) -> Client:
        """Return the SDK's client for this server."""
        server = self.server
        target: Any
        if isinstance(server, Memory):
            target = server.server
            if mode == "legacy":
                target = self._watch_transport(InMemoryTransport(target))
        elif isinstance(server, Stdio):
            target = self._watch_transport(run_program(server, stack.enter_context(self.log.stderr()), self.log))
        else:
            auth, reach = self.users or server.auth, Reach(server.url, server.authorization_servers)
            if isinstance(auth, OAuth):
                auth = await make_provider(server.url, auth, reach, self._pause_start_limit)
            http = self.http = await stack.enter_async_context(HttpClient(server.headers, auth, reach, self.log))
            transport = streamable_http_client(server.url, http_client=http, max_sse_event_size=None)  # `http` has one
            target = self._watch_transport(transport)
        return Client(
            target,
            mode=mode,
            client_info=types.Implementation(name="ferrule", version=__version__),
            elicitation_callback=self._elicit if self._elicitation else None,
            logging_callback=self._on_log,
            message_handler=self._on_message,
            extensions=[TaskSupport()],
            cache=None,
        )

    @contextlib.contextmanager
    def _pause_start_limit(self) -> Iterator[None]:
        """Pause the time limit of the start while a person is asked to log in: no server can speed that up. The start
        has its full time afterwards."""
        self._move_start_limit(None)
        try:
            yield
        finally:
            self._move_start_limit(self._loop.time() + self._start_timeout)

    def _move_start_limit(self, when: float | None) -> None:
        if self._start_limit is not None and self.state == "starting":
            with contextlib.suppress(RuntimeError):  # the start is over
                self._start_limit.reschedule(when)

    def _watch_transport(self, transport: Any) -> Any:
        return _watched_transport(transport, self._on_stream_end, self._on_sent, self._on_received)

    def _on_stream_end(self) -> None:
        self.mark_lost("the connection ended")

    def _on_sent(self, message: types.JSONRPCMessage) -> None:
        """Remember the cancelled requests: a later question of the server may be about one of them."""
        if isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._cancelled_requests.add((message.params or {})["requestId"])

    def _on_received(self, message: object) -> None:
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id is not None:
            self._cancelled_requests.discard(message.id)
        if self._validation is not None and isinstance(message, types.JSONRPCResponse):
            _remove_invalid_tools(message.result, self._validation)

    # -- what the server sends -----------------------------------------------------------------------------------------

    async def _on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.log.add_line(f"{params.level}: {params.data}", logging.DEBUG if params.level == "debug" else logging.INFO)

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._stale.set()

    async def _elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Ask the person of the call that the question is about."""
        call = self._find_asking_call()
        if isinstance(call, str):
            return self._decline(call)
        try:
            request = InputRequired(format_reason(params, self.server.label), read_schema(params))
        except ValueError as error:
            return self._decline(str(error))
        answering = call.context.ask(request)
        question = self._questions[call] = self._loop.create_task(answering, context=call.variables.copy())
        try:
            await asyncio.wait({question})
        finally:
            self._questions.pop(call, None)
            question.cancel()
        if question.cancelled():  # the call has ended meanwhile
            return types.ElicitResult(action="cancel")
        value = question.result()
        return types.ElicitResult(action="decline") if value is None else accept(params.mode, value)

    def _find_asking_call(self) -> OpenCall | str:
        """Return the call for a question, or the reason why nobody can be asked. It is the call of the stream that the
        question came on or, if no stream belongs to one call, the only call under way."""
        call = OPEN_CALL.get()
        if call is None or call.owner is not self:
            if self._cancelled_requests:
                return "it may be about a cancelled call that has no answer yet"
            if len(self._calls) != 1:
                return f"{len(self._calls)} calls are running, and it does not name one of them"
            call = next(iter(self._calls))
        if call not in self._calls:
            return "its call has ended"
        return "its call already waits for another question" if call in self._questions else call

    def _decline(self, why: str) -> types.ElicitResult:
        self._warn(f"Ferrule declined a question and asked nobody: {why}")
        return types.ElicitResult(action="decline", _meta={"reason": f"Ferrule asked nobody: {why}"})

    async def _watch(self, client: Client) -> None:
        """List the tools again whenever the list changes, or its lifetime is over, if somebody follows the changes."""
        await self._followed.wait()
        listening: list[asyncio.Task[None]] = []
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            self._stale.set()  # earlier changes are not reported
            listening.append(asyncio.create_task(self._listen(client)))
        try:
            while not _is_cancelled():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._list_lifetime):
                        await self._stale.wait()
                await asyncio.sleep(_DEBOUNCE)
                self._stale.clear()
                if not await self.list_again():
                    self._warn("Ferrule could not read its list of tools again")
                await asyncio.sleep(_BETWEEN_LISTS)
        finally:
            await _stop(listening)

    async def _listen(self, client: Client) -> None:
        """Receive changes of the list, as the revision 2026-07-28 sends them. Begin again if that ends."""
        wait = _FIRST_BACKOFF
        while not _is_cancelled():
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    if not changes.honored.tools_list_changed:
                        return
                    wait = _FIRST_BACKOFF
                    async for _ in changes:
                        pass  # each comes to `_on_message` as well
            except MCPError as error:
                if error.code in (types.METHOD_NOT_FOUND, types.INVALID_REQUEST):
                    return  # it reports no changes
            except Exception as error:
                self._log_error("listening for changes ended", error)
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_BACKOFF)
            self._stale.set()


def _remove_invalid_tools(result: dict[str, Any], validation: ToolValidation) -> None:
    """Remove invalid definitions from a list, in place: the SDK would refuse all of it."""
    tools = result.get("tools")
    if not isinstance(tools, list):
        return
    valid = []
    for definition in tools[:_MOST_TOOLS]:
        try:
            with contextlib.suppress(KeyError):  # the revision has no such list
                methods.validate_server_result("tools/list", validation.version, {**result, "tools": [definition]})
            types.Tool.model_validate(definition, by_name=False)
            valid.append(definition)
        except ValidationError as error:
            name = definition.get("name") if isinstance(definition, dict) else None
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"] if part not in ("tools", 0))
            text = f"it is no definition of a tool: {where}: {first['msg']}"
            validation.left_out.append((name if isinstance(name, str) else None, text))
    result["tools"] = valid


async def list_tools(session: ClientSession) -> Listing:
    """Return all pages of the list, bounded.

    Raises:
        MCPError: The server answers with an error.
        ValueError: The answer is no list of tools.
    """
    left_out: list[tuple[str | None, str]] = []
    telling = DROPPED.set(left_out)
    try:
        return await _list_tools(session, left_out)
    finally:
        DROPPED.reset(telling)


async def _list_tools(session: ClientSession, left_out: list[tuple[str | None, str]]) -> Listing:
    found: list[types.Tool] = []
    cursors: set[str] = set()
    cursor: str | None = None
    ttl, room = _LONGEST_LIFETIME * 1000, MOST_LIST
    for _ in range(_MOST_PAGES):
        params = None if cursor is None else types.PaginatedRequestParams(cursor=cursor)
        try:
            page = await session.list_tools(params=params)
        except MCPError as error:
            if error.code == types.METHOD_NOT_FOUND and not found:
                return Listing([], [])
            raise
        found += page.tools
        ttl = min(ttl, page.ttl_ms)
        cursor = page.next_cursor
        if len(found) > _MOST_TOOLS:
            left_out.append((None, f"it has more than {_MOST_TOOLS:,} tools; Ferrule takes the first ones"))
            break
        if cursor is None:
            break
        if cursor in cursors:
            left_out.append((None, "its pages form a circle"))
            break
        room -= await asyncio.to_thread(measure_size, page.tools, room)
        if room < 0:
            left_out.append((None, f"it has more than {MOST_LIST:,} characters; Ferrule takes the first pages"))
            break
        cursors.add(cursor)
    else:
        left_out.append((None, f"it has more than {_MOST_PAGES} pages; Ferrule takes the first ones"))
    return Listing(found[:_MOST_TOOLS], left_out, max(ttl / 1000, _SHORTEST_LIFETIME) if ttl else None)


def _find_first_error(error: BaseException) -> BaseException:
    """Return the first exception inside all groups."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


def describe_failure(error: BaseException, server_log: ServerLog) -> str:
    """Return the reason why a connection broke."""
    error = _find_first_error(error)
    if isinstance(error, FileNotFoundError):
        return f"the program {error.filename!r} does not exist"
    text = server_log.clean_error(error)
    if isinstance(error, MCPError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_cancelled() -> bool:
    """Return whether the present task is to end. If a connection breaks at the same moment, its error hides the
    cancellation."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _WatchedStream:
    """A stream of messages, to or from a server, with a callback for each message and for its end. The SDK's client has
    none."""

    def __init__(self, stream: Any, ended: Callable[[], None], seen: Callable[[Any], None]) -> None:
        self._stream, self._tell, self._seen = stream, ended, seen

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> Any:
        self._tell()
        return await self._stream.__aexit__(*raised)

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            item = await self._stream.__anext__()
        except Exception:  # also at its end
            self._tell()
            raise
        self._seen(getattr(item, "message", None))
        return item

    async def receive(self) -> Any:
        return await self._stream.receive()

    async def send(self, item: Any) -> None:
        self._seen(item.message)
        try:
            await self._stream.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._tell()
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()


@contextlib.asynccontextmanager
async def _watched_transport(
    transport: Any, ended: Callable[[], None], sent: Callable[[Any], None], came: Callable[[Any], None]
) -> AsyncIterator[Any]:
    async with transport as (read, write):
        yield _WatchedStream(read, ended, came), _WatchedStream(write, ended, sent)
