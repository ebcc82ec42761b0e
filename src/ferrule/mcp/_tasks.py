"""A call that an MCP server answers with a task: poll the task until its result, pass on its questions, or cancel it.

The task outlives the connection. If that breaks, or the server is started anew, the polls go on over the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import mcp_types as types
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError

from ferrule import Answer, InputRequired, ToolContext, ToolError
from ferrule.mcp._questions import to_question, to_responses
from ferrule.mcp.task_messages import TASKS, CreatedTask, TaskRequest, TaskState
from ferrule.values.frozen import thaw

if TYPE_CHECKING:
    from ferrule.mcp._calls import RemoteTool

_POLL, _SHORTEST_POLL, _LONGEST_POLL = 1.0, 0.1, 60.0
"""Seconds between two polls if the server names none, and the range of what it may name."""
_RETRIES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each further try if a connection breaks."""
_CANCEL_SECONDS = 0.5
_MOST_ID = 1_000
AnswerT = TypeVar("AnswerT", bound=types.Result)


class TaskSupport(ClientExtension):
    """Declares to servers of 2026-07-28 that calls may be answered with tasks."""

    identifier = TASKS

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """Return the form of such answers. With a claim, the SDK does not declare the extension to older servers."""
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=_leave_unresolved)]


async def _leave_unresolved(task: CreatedTask, context: ClaimContext) -> types.CallToolResult:
    """Refuse to follow a task: only the SDK's own `call_tool` asks for this, and Ferrule never calls it."""
    raise MCPError(types.INTERNAL_ERROR, f"the task {task.task_id!r} is followed by RemoteTool")


class RemoteTask:
    """A task of a server, which began with a call of `tool`.

    Args:
        tool: Sends the requests.
        task_id: The server's id of the task.
        interval: Milliseconds between two polls, as the server wishes.
        answered: The keys of its questions with an answer.
    """

    def __init__(
        self, tool: RemoteTool, task_id: str, interval: int | None = None, answered: Sequence[str] = ()
    ) -> None:
        self._tool, self._id, self._answered = tool, task_id, [*answered]
        self._label = tool.connection.server.label
        self._wait = _POLL
        self._message: str | None = None
        self._set_wait(interval)

    @classmethod
    def from_answer(cls, tool: RemoteTool, answer: Answer) -> RemoteTask | None:
        """Return the task that asked for this answer; None if no task did."""
        earlier = answer.state.get("task")
        return None if earlier is None else cls(tool, earlier["id"], answered=thaw(earlier["answered"]))

    async def wait_for_result(
        self, context: ToolContext, answer: Answer | None = None
    ) -> types.CallToolResult | InputRequired:
        """Poll until the task has a result or a new question. If the call ends earlier, cancel the task.

        Args:
            answer: A person's answer to its last question, to be sent first.

        Raises:
            ToolError: The task has no result.
        """
        try:
            if len(self._id) > _MOST_ID:
                raise ToolError(f"{self._label} gave a task an id of more than {_MOST_ID:,} characters", executed=None)
            if answer is not None:
                await self._send_answer(answer, context)
            state = await self._poll_until_change(context)
            if state.status == "input_required":
                return self._to_question(state)
        except (asyncio.CancelledError, ToolError):
            await self._cancel(context)
            raise
        if state.status == "completed" and state.result is not None:
            return state.result
        if state.status == "failed" and state.error is not None:
            error = state.error
            raise self._tool.make_error(MCPError(error.code, error.message, error.data))
        raise ToolError(f"{self._label} ended the task of the call without a result: {state.status}", executed=None)

    async def _poll_until_change(self, context: ToolContext) -> TaskState:
        """Return the first state with something to do: an end, or a question without an answer."""
        while True:
            await context.pause(self._wait)  # also after `batch.cancel()`, which lets running calls end
            state = await self._send("tasks/get", {}, TaskState, context)
            self._set_wait(state.poll_interval_ms)
            if state.status == "input_required":
                if any(key not in self._answered for key in state.input_requests or {}):
                    return state
            elif state.status != "working":
                return state
            self._report(state, context)

    def _set_wait(self, milliseconds: int | None) -> None:
        if milliseconds is not None:
            self._wait = min(max(milliseconds, _SHORTEST_POLL * 1000), _LONGEST_POLL * 1000) / 1000

    def _report(self, state: TaskState, context: ToolContext) -> None:
        """Report a new message as progress. It extends the idle deadline of the call."""
        if state.status_message and state.status_message != self._message:
            self._message = state.status_message
            context.announce({"message": self._tool.connection.log.clean(self._message)})

    # -- questions ----------------------------------------------------------------------------------------------------

    def _to_question(self, state: TaskState) -> InputRequired:
        """Return the new questions of the task as one for the approver. Its state leads back to the task."""
        asked = {key: one for key, one in (state.input_requests or {}).items() if key not in self._answered}
        question = to_question(types.InputRequiredResult(input_requests=asked), self._label)
        return replace(question, state={**question.state, "task": {"id": self._id, "answered": self._answered}})

    async def _send_answer(self, answer: Answer, context: ToolContext) -> None:
        responses, _ = to_responses(answer)
        dumped = {key: one.model_dump(by_alias=True, mode="json", exclude_none=True) for key, one in responses.items()}
        await self._send("tasks/update", {"inputResponses": dumped}, types.EmptyResult, context)
        self._answered += responses

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _send(self, method: str, params: dict[str, Any], answer: type[AnswerT], context: ToolContext) -> AnswerT:
        """Return the answer to a request about the task. The request is sent again if a connection breaks.

        Raises:
            ToolError: There is no usable answer. The call was begun, so its effect may have happened.
        """
        request = TaskRequest(method=method, params={"taskId": self._id, **params})
        for wait in _RETRIES:
            try:
                return await self._tool.exchange(request, answer, context)
            except MCPError as error:
                if not self._tool.is_lost(error):
                    raise self._tool.make_error(error) from error
            except ToolError as error:
                if error.executed is not False or self._tool.connection.state == "closed":
                    raise ToolError(str(error), executed=None) from error
                wait = max(wait, error.retry_after or 0.0)
            await context.pause(wait)
        text = f"the connection to {self._label} was lost while the call ran there. Its effect may have happened."
        raise ToolError(text, executed=None)

    async def _cancel(self, context: ToolContext) -> None:
        """Ask the server to cancel the task, as far as it can be reached in a short time."""
        with suppress(Exception):
            async with asyncio.timeout(_CANCEL_SECONDS):
                request = TaskRequest(method="tasks/cancel", params={"taskId": self._id})
                await self._tool.exchange(request, types.EmptyResult, context)
