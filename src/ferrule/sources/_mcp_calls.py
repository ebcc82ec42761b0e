"""One tool of an MCP server: a call goes there, and what comes back is a result or a question."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from ferrule import InputRequired, ToolContext, ToolError
from ferrule.sources._mcp_connection import Connection
from ferrule.sources._mcp_questions import Responses, to_question, to_responses, to_visit
from ferrule.sources._mcp_results import Check, to_result
from ferrule.sources._mcp_text import visible
from ferrule.values.content import cut

_ANSWER: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
_MOST_WAITS = 10
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
"""Seconds between two tries where a server wants no input, but to be asked again; as the SDK's own client waits."""
_VISIT_FIRST = types.URL_ELICITATION_REQUIRED
_PERHAPS = "The call may have been executed all the same: its effect may have happened."
_CLOSED_TEXT = "Connection closed"
"""What the SDK says, with the code -32000, of a connection that ended. A server may use that code for its own."""


class RemoteTool:
    """One tool of a server, whose `call` is the handler.

    Attributes:
        check: Where a value does not fit the output schema; `None` where there is none.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self.check: Check | None = None

    async def call(self, _ferrule_payload: dict[str, Any], /, context: ToolContext) -> object:
        """Send the call, and give its result or what it wants to know.

        Raises:
            ToolError: where there is no answer, or one that says nothing.
        """
        answer = context.answer
        responses, state = (None, None) if answer is None else to_responses(answer)
        wait = _FIRST_PAUSE
        for _ in range(_MOST_WAITS):
            found = await self._sent(_ferrule_payload, responses, state, context)
            if isinstance(found, InputRequired):
                return found
            if isinstance(found, types.CallToolResult):
                self._connection.answered()
                return to_result(found, self.check)
            if found.input_requests:
                return to_question(found, self._connection.server.label)
            responses, state = None, found.request_state
            if not await context.pause(wait):
                break
            wait = min(2 * wait, _LONGEST_PAUSE)
        raise ToolError(f"{self._connection.server.label} did not come to an end, and only asked to be asked again")

    async def _sent(
        self, payload: dict[str, Any], responses: Responses | None, state: str | None, context: ToolContext
    ) -> types.CallToolResult | types.InputRequiredResult | InputRequired:
        """What the server answers; where it did not look at the call, it is sent once more.

        Raises:
            ToolError: where there is no answer.
        """
        request = types.CallToolRequest(
            params=types.CallToolRequestParams(
                name=self._name, arguments=payload, input_responses=responses, request_state=state
            )
        )
        try:
            return await self._exchanged(request, context)
        except MCPError as error:
            asked = to_visit(error, self._connection.server.label) if error.code == _VISIT_FIRST else None
            if asked is not None:
                return asked
            if not await self._mended(error):
                raise self._failure(error) from error
        try:
            return await self._exchanged(request, context)
        except MCPError as error:
            raise self._failure(error) from error

    async def _exchanged(
        self, request: types.CallToolRequest, context: ToolContext
    ) -> types.CallToolResult | types.InputRequiredResult:
        async def tell(progress: float, total: float | None, message: str | None) -> None:
            context.progress(progress, total, visible(message or "")[0])

        connection = self._connection
        session = connection.ready or await connection.opened()
        key = object()
        try:
            async with asyncio.timeout(None) as limit:
                connection.begins(key, context, limit)
                return await session.send_request(request, _ANSWER, progress_callback=tell)
        except TimeoutError:
            if not limit.expired():
                raise
            text = f"the connection to {connection.server.label} was left before its answer. {_PERHAPS}"
            raise ToolError(text, executed=None) from None
        except ValidationError as error:
            kinds = ", ".join(sorted({".".join(map(str, one["loc"][:4])) for one in error.errors()})[:3])
            text = f"{connection.server.label} gave an answer that is none of MCP's: {cut(kinds, 200)}"
            raise ToolError(text, executed=None) from None
        except MCPError as error:
            http = connection.http
            if http is not None and http.has_forgotten(error):
                connection.forgotten(session)
            if http is None or not http.was_not_sent(error):
                raise
            connection.unreachable(error.message)
            text = f"{connection.server.label} could not be reached: {error.message}"
            raise ToolError(text, executed=False) from error
        finally:
            connection.ends(key)

    async def _mended(self, error: MCPError) -> bool:
        """Whether the call was certainly not looked at, and may be sent again by now: the server lost its session, or
        wants headers that only its present list of tools tells."""
        connection = self._connection
        if connection.http is not None and connection.http.has_forgotten(error):
            return True
        if error.code == types.HEADER_MISMATCH and connection.protocol in MODERN_PROTOCOL_VERSIONS:
            return await connection.list_again()
        return False

    def _failure(self, error: MCPError) -> ToolError:
        """What a call comes to that got an error for an answer, or none."""
        label = self._connection.server.label
        ended = error.message == _CLOSED_TEXT or self._connection.http is not None
        if error.code == types.CONNECTION_CLOSED and ended:
            why = self._connection.reason or error.message
            return ToolError(
                f"the connection to {label} ended before its answer: {cut(why, 1000)}. {_PERHAPS}", executed=None
            )
        self._connection.answered()
        text = cut(visible(error.message)[0], 500)
        return ToolError(f"{label} refused the call: {text} (error {error.code})", executed=None)
