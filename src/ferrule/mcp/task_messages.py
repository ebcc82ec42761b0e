"""The name of MCP's extension for tasks, and the messages of a server about one."""

from __future__ import annotations

from typing import Any, Literal

import mcp_types as types

TASKS = "io.modelcontextprotocol/tasks"


class CreatedTask(types.Result):
    """The answer to a call that goes on as a task."""

    result_type: Literal["task"]
    task_id: str
    poll_interval_ms: int | None = None


class TaskState(types.Result):
    """The answer to `tasks/get`."""

    status: Literal["working", "input_required", "completed", "cancelled", "failed"]
    status_message: str | None = None
    poll_interval_ms: int | None = None
    input_requests: types.InputRequests | None = None
    result: types.CallToolResult | None = None
    error: types.ErrorData | None = None


class TaskRequest(types.Request[Any, str]):
    """A request about a task: `tasks/get`, `tasks/update` or `tasks/cancel`."""

    method: str
    params: Any
    name_param = "taskId"
