"""One tool of an MCP server: send a call there, and return its result or question."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any, Literal, TypeVar

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Discriminator, Tag, TypeAdapter, ValidationError

from ferrule import InputRequired, ToolContext, ToolError
from ferrule.mcp._connection import OPEN_CALL, Connection
from ferrule.mcp._http import Fate
from ferrule.mcp._log import SDK_LOGS
from ferrule.mcp._questions import Responses, to_question, to_responses, to_visit
from ferrule.mcp._tasks import RemoteTask
from ferrule.mcp.lines import UNREADABLE_ANSWER
from ferrule.mcp.results import Check, to_result
from ferrule.mcp.task_messages import CreatedTask

Answered = types.CallToolResult | types.InputRequiredResult
_ANSWER: TypeAdapter[Answered | CreatedTask] = TypeAdapter(
    Annotated[
        Annotated[Answered, Tag("core")] | Annotated[CreatedTask, Tag("task")],
        Discriminator(lambda answer: "task" if answer.get("resultType") == "task" else "core"),
    ]
)
AnswerT = TypeVar("AnswerT", bound=types.Result)
_MOST_WAITS = 10
_MOST_ERRORS = 100
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
"""Seconds between two tries if a server wants no input, but to be asked again; as the SDK's own client waits."""
_VISIT_REQUIRED = types.URL_ELICITATION_REQUIRED
_MAY_HAVE_RUN = "The call may have been executed all the same: its effect may have happened."
_ENDED_TEXTS = ("Connection closed", "SSE stream ")
"""The beginnings of the SDK's error, with the code -32000, for a connection that ended. A server may use that code for
its own errors."""
_REDIRECTED = "Redirect to "
"""The beginning of the SDK's error for a redirect to another address; the error names the address."""


class _CallRequest(types.Request[Any, Literal["tools/call"]]):
    """A call to send. Its params are JSON already: the SDK's own model would copy them, value by value, in 17 µs for 2
    KB."""

    method: Literal["tools/call"] = "tools/call"
    params: Any

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Return the body of the message, in a new mapping: the session adds the client's identity to it."""
        return {"method": self.method, "params": {**self.params}}


def _make_request(name: str, payload: dict[str, Any], responses: Responses | None, state: str | None) -> _CallRequest:
    params: dict[str, Any] = {"name": name, "arguments": payload}
    if responses is not None:
        dumped = {key: one.model_dump(by_alias=True, mode="json", exclude_none=True) for key, one in responses.items()}
        params["inputResponses"] = dumped
    if state is not None:
        params["requestState"] = state
    return _CallRequest(params=params)


class RemoteTool:
    """One tool of a server, with its handler `call`.

    Attributes:
        connection: The connection to the server.
        check: Describes the misfit of a value and the output schema; `None` without a schema.

    Args:
        trusted: Whether to believe a Ferrule server's word on an unsuccessful call.
    """

    def __init__(self, connection: Connection, name: str, *, trusted: bool) -> None:
        self.connection = connection
        self._trusted = trusted
        self._name = name
        self.check: Check | None = None

    async def call(self, _ferrule_payload: dict[str, Any], context: ToolContext, /) -> object:
        """Send the call, and return its result or its question.

        Raises:
            ToolError: There is no usable answer. The text is without hidden characters and secrets.
        """
        for name in context.tool.hidden:  # the server may repeat bound and private values in its log
            self.connection.log.hide(str(_ferrule_payload.get(name, "")))
        try:
            return await self._wait_for_result(_ferrule_payload, context)
        except Exception as error:  # the server may have chosen its words, whatever it is
            raise self.connection.log.make_error(error) from None

    async def _wait_for_result(self, payload: dict[str, Any], context: ToolContext) -> object:
        answer = context.answer
        if answer is not None and (earlier := RemoteTask.from_answer(self, answer)) is not None:
            return self._to_result(await earlier.wait_for_result(context, answer))
        responses, state = (None, None) if answer is None else to_responses(answer)
        wait = _FIRST_PAUSE
        for _ in range(_MOST_WAITS):
            found = await self._send(payload, responses, state, context)
            if isinstance(found, CreatedTask):
                found = await RemoteTask(self, found.task_id, found.poll_interval_ms).wait_for_result(context)
            if isinstance(found, InputRequired | types.CallToolResult):
                return self._to_result(found)
            if found.input_requests:
                return to_question(found, self.connection.server.label)
            responses, state = None, found.request_state
            if not await context.pause(wait):
                break
            wait = min(2 * wait, _LONGEST_PAUSE)
        raise ToolError(f"{self.connection.server.label} gave no result and only asked to be called again")

    def _to_result(self, found: types.CallToolResult | InputRequired) -> object:
        if isinstance(found, InputRequired):
            return found
        self.connection.on_answer()
        return to_result(found, self.check, trusted=self._trusted)

    async def _send(
        self, payload: dict[str, Any], responses: Responses | None, state: str | None, context: ToolContext
    ) -> Answered | CreatedTask | InputRequired:
        """Return the server's answer. The call is sent once more if the server did not look at it.

        Raises:
            ToolError: There is no answer.
        """
        request = _make_request(self._name, payload, responses, state)
        try:
            return await self.exchange(request, _ANSWER, context)
        except MCPError as error:
            asked = to_visit(error, self.connection.server.label) if error.code == _VISIT_REQUIRED else None
            if asked is not None:
                return asked
            if not await self._can_send_again(error):
                raise self.make_error(error) from error
        try:
            return await self.exchange(request, _ANSWER, context)
        except MCPError as error:
            raise self.make_error(error) from error

    async def exchange(
        self, request: types.Request[Any, Any], answer: TypeAdapter[AnswerT] | type[AnswerT], context: ToolContext
    ) -> AnswerT:
        """Send a request of this call, and return its answer.

        Raises:
            MCPError, ToolError: There is no answer, or it is an error or unreadable.
        """
        connection = self.connection

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            context.progress(progress, total, connection.log.clean(message or ""))

        session = connection.ready or await connection.open()
        if request.method == "tools/call" and self._name in connection.withdrawn:
            text = f"{connection.server.label} no longer has its tool {self._name!r} as a person accepted it"
            raise ToolError(f"{text}.", executed=False)
        users, http, signed = connection.users, connection.http, None
        if users is not None:
            has_session = http is not None and http.has_session
            signed = await users.begin(context, connection.protocol, has_session=has_session)
        call = connection.begin_call(context)
        before = OPEN_CALL.set(call)
        # Over HTTP the SDK reads an answer in the context of its call.
        logs = None if http is None else SDK_LOGS.set(connection.log)
        try:
            return await session.send_request(request, answer, progress_callback=tell)
        except asyncio.CancelledError:
            if not call.undo_cancellation():
                raise
            text = f"the connection to {connection.server.label} was left before its answer. {_MAY_HAVE_RUN}"
            raise ToolError(text, executed=None) from None
        except ValidationError as error:
            errors = error.errors() if error.error_count() <= _MOST_ERRORS else []  # a list of all takes seconds
            kinds = ", ".join(sorted({".".join(map(str, one["loc"][:4])) for one in errors})[:3])
            raise self._make_unreadable_error(f"{UNREADABLE_ANSWER}: {kinds}") from None
        except MCPError as error:
            fate = self._fate(error)
            if fate in ("forgotten", "expired"):
                connection.mark_forgotten(session)
            if fate != "not sent":
                raise
            why = connection.log.clean_error(error)
            connection.mark_unreachable(why)
            text = f"{connection.server.label} could not be reached: {why}"
            raise ToolError(text, executed=False) from error
        finally:
            connection.end_call(call)
            OPEN_CALL.reset(before)
            if users is not None and signed is not None:
                users.end(signed)
            if logs is not None:
                SDK_LOGS.reset(logs)

    async def _can_send_again(self, error: MCPError) -> bool:
        """Return whether the server certainly did not look at the call, and it may be sent again by now: the server
        lost its session, or wants headers known only from its present list of tools."""
        connection = self.connection
        if self._fate(error) == "forgotten":
            return True
        if error.code == types.HEADER_MISMATCH and connection.protocol in MODERN_PROTOCOL_VERSIONS:
            return await connection.list_again()
        return False

    def _fate(self, error: MCPError) -> Fate | None:
        """Return the HTTP client's finding about the request itself; None for a server without an address."""
        http = self.connection.http
        return None if http is None else http.fate(error)

    def _has_ended(self, error: MCPError) -> bool:
        message = self.connection.log.clean_error(error)
        ended = error.code == types.CONNECTION_CLOSED and message.startswith(_ENDED_TEXTS)
        return ended or self._fate(error) == "broken"

    def is_lost(self, error: MCPError) -> bool:
        """Return whether the connection broke before the answer."""
        return self._has_ended(error) or self._fate(error) in ("failed", "forgotten")

    def make_error(self, error: MCPError) -> ToolError:
        """Return the error of a call for an error in place of its answer."""
        label = self.connection.server.label
        message = self.connection.log.clean_error(error)
        fate = self._fate(error)
        has_ended = self._has_ended(error)
        if has_ended or fate == "failed":  # bytes or an address of the server's may stand in the message
            self.connection.log.write(logging.WARNING, f"{label}: a call failed: {message}")
            what = f"connection to {label} ended before its answer" if has_ended else f"request to {label} failed"
            return ToolError(f"the {what}. {_MAY_HAVE_RUN}", executed=None)
        self.connection.on_answer()
        if message.startswith((UNREADABLE_ANSWER, _REDIRECTED)):
            return self._make_unreadable_error(message)
        if message.startswith("HTTP 5"):
            return ToolError(f"{label} failed: {message}. {_MAY_HAVE_RUN}", executed=None)
        return ToolError(f"{label} refused the call: {message} (error {error.code})", executed=None)

    def _make_unreadable_error(self, why: str) -> ToolError:
        """Log the reason, and return the error for the call. The reason is not for the model: the server may have
        chosen its words."""
        label = self.connection.server.label
        self.connection.log.write(logging.WARNING, f"{label}: {why}")
        text = f"The answer of {label!r} could not be read. The call may have been executed."
        return ToolError(text, executed=None)
