"""Long calls as tasks, by the extension `io.modelcontextprotocol/tasks` of 2026-07-28. A task is a background job.

tools/call      a call of a background tool is answered by a task, if its client declares the extension
tasks/get       its status, its open questions, its result
tasks/update    the answers to its questions
tasks/cancel    stops its job

The id of a task is the job's ticket, which has 128 random or hashed bits. Only the principal and session of the call
find it, in every process that shares the journal.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import mcp_types as wire
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import decode_header_value
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from ferrule import Decision, Runner, ToolContext, ToolResult, deny
from ferrule.errors import JournalError
from ferrule.kernel.background import BackgroundJob
from ferrule.mcp.content import to_wire_result
from ferrule.mcp.forms import Form, elicitation
from ferrule.mcp.serve._listing import Listing
from ferrule.mcp.task_messages import TASKS
from ferrule.values.log import make_logger

log = make_logger("ferrule.mcp.serve")
Request = ServerRequestContext[Any, Any]
_TICKET = re.compile(r"work_[0-9a-f]{32}")
_POLL_SECONDS = 1.0
_METHODS = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})
_REQUIRED: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
_UNKNOWN = "Unknown task: there is none with this id, or it belongs to somebody else"
_EXPIRED = "The task has expired"


class TaskParams(wire.RequestParams):
    """The parameters of `tasks/get` and `tasks/cancel`."""

    task_id: str


class UpdateParams(TaskParams):
    """The parameters of `tasks/update`."""

    input_responses: dict[str, Any]


class Served(Protocol):
    """The runner that is served, with the list of its tools."""

    runner: Runner
    listing: Listing


@dataclass(eq=False)
class _Question:
    """An open question of a task, and its answer."""

    form: Form
    answer: asyncio.Future[wire.ElicitResult]


@dataclass(eq=False)
class _Progress:
    """The facts about a job that only its server knows.

    Attributes:
        questions: Its open questions. A key is never used again.
        asked: How many questions it has asked.
        shown: The status and the message that were shown last.
        changed_at: The time when these had changed.
    """

    changed_at: float
    questions: dict[str, _Question] = field(default_factory=dict)
    asked: int = 0
    shown: tuple[str, str] = ("working", "")


class Tasks:
    """The tasks of a served runner.

    Args:
        get_served: Returns the runner served at present.
        get_context: Returns the context for the calls of a request's caller.
        keep: Seconds from the start of a job until its task expires.
        answer_within: Seconds for a person's answer.
    """

    def __init__(
        self,
        get_served: Callable[[], Served],
        get_context: Callable[[Request], ToolContext],
        keep: float,
        answer_within: float,
    ) -> None:
        self._get_served, self._get_context = get_served, get_context
        self._keep, self._answer_within = keep, answer_within
        self._progress: WeakKeyDictionary[BackgroundJob, _Progress] = WeakKeyDictionary()

    def register(self, server: Server[Any]) -> None:
        """Add the extension to the SDK's server."""
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", TaskParams, self._get)
        server.add_request_handler("tasks/update", UpdateParams, self._update)
        server.add_request_handler("tasks/cancel", TaskParams, self._cancel)
        server.middleware.append(check_task_request)

    def has_room(self, context: ToolContext, most: float) -> bool:
        """Return whether the principal of a call may begin one more job."""
        jobs = self._get_served().runner.jobs
        return sum(not job.has_ended and job.principal == context.principal for job in jobs) < most

    def to_task(self, request: Request, result: ToolResult) -> dict[str, Any] | None:
        """Return the result of a call that began a job as a task; None if its client gets the ticket."""
        job = self._find_running(result.metadata.get("ticket"))
        if job is None or not is_modern(request) or not declares_tasks(request):
            return None
        return {**self._describe(job, "working", ""), "resultType": "task"}

    async def ask(self, ticket: str, form: Form) -> wire.ElicitResult | Decision:
        """Ask the client of a task while its job waits. Return the answer, or a denial without one."""
        job = self._find_running(ticket)
        if job is None:
            return deny("its task has ended")
        progress = self._progress_of(job)
        progress.asked += 1
        key = f"{form.key}-{progress.asked}"
        question = progress.questions[key] = _Question(form, asyncio.get_running_loop().create_future())
        try:
            return await asyncio.wait_for(question.answer, self._answer_within)
        except TimeoutError:
            return deny(f"nobody answered within {self._answer_within:g} s")
        finally:
            progress.questions.pop(key, None)

    # -- the methods of the extension ---------------------------------------------------------------------------------

    async def _get(self, request: Request, params: TaskParams) -> dict[str, Any]:
        job = await self._find(request, params)
        result, questions = job.result, self._progress_of(job).questions
        if result is not None and job.has_ended:
            status, details = self._describe_end(job, result)
            return {**self._describe(job, status, result.error or ""), **details}
        if questions:
            asked = {key: _dump(elicitation(one.form)) for key, one in questions.items()}
            return {**self._describe(job, "input_required", "It waits for an answer."), "inputRequests": asked}
        message = _format_progress(job.progress) if result is None else "It waits for somebody's approval."
        return self._describe(job, "working", message)

    async def _update(self, request: Request, params: UpdateParams) -> dict[str, Any]:
        questions = self._progress_of(await self._find(request, params)).questions
        answers = {key: answer for key, answer in params.input_responses.items() if key in questions}
        try:
            checked = {key: wire.ElicitResult.model_validate(answer, by_name=False) for key, answer in answers.items()}
        except ValidationError:
            raise MCPError(wire.INVALID_PARAMS, "An answer in inputResponses is no ElicitResult") from None
        for key, answer in checked.items():
            questions.pop(key).answer.set_result(answer)
        return {}

    async def _cancel(self, request: Request, params: TaskParams) -> dict[str, Any]:
        await (await self._find(request, params)).cancel()
        return {}

    async def _find(self, request: Request, params: TaskParams) -> BackgroundJob:
        """Return the job of a task.

        Raises:
            MCPError: The caller has no such task, it has expired, or the journal cannot be read.
        """
        runner, job = self._get_served().runner, None
        if _TICKET.fullmatch(params.task_id):
            try:
                job = await runner.find_job(params.task_id, self._get_context(request))
            except JournalError:
                log.exception("a task could not be looked up")
                raise MCPError(wire.INTERNAL_ERROR, "The task could not be looked up; try again later") from None
        if job is None or runner.tools.find(job.tool_name) is None:
            raise MCPError(wire.INVALID_PARAMS, _UNKNOWN)
        if time.time() >= job.started_at + self._keep:
            raise MCPError(wire.INVALID_PARAMS, _EXPIRED)
        return job

    # -- one task -----------------------------------------------------------------------------------------------------

    def _find_running(self, ticket: object) -> BackgroundJob | None:
        return next((job for job in self._get_served().runner.jobs if job.ticket == ticket), None)

    def _progress_of(self, job: BackgroundJob) -> _Progress:
        return self._progress.setdefault(job, _Progress(job.started_at))

    def _describe(self, job: BackgroundJob, status: str, message: str) -> dict[str, Any]:
        """Return the fields that every status has."""
        progress = self._progress_of(job)
        if progress.shown != (status, message):
            progress.shown, progress.changed_at = (status, message), time.time()
        return {
            "taskId": job.ticket,
            "status": status,
            **({"statusMessage": message} if message else {}),
            "createdAt": _format_time(job.started_at),
            "lastUpdatedAt": _format_time(progress.changed_at),
            "ttlMs": int(self._keep * 1000),
            "pollIntervalMs": int(_POLL_SECONDS * 1000),
        }

    def _describe_end(self, job: BackgroundJob, result: ToolResult) -> tuple[str, dict[str, Any]]:
        """Return the status of an ended job, and its result. It has failed only if its handler raised an error of the
        protocol."""
        if result.status == "cancelled":
            return "cancelled", {}
        if isinstance(result.exception, MCPError):
            # The text is the one for models: the exception may tell of internals.
            return "failed", {"error": {"code": result.exception.code, "message": result.error or "The call failed"}}
        served = self._get_served()
        tool, listing = served.runner.tools.get(job.tool_name), served.listing
        shown = to_wire_result(
            result,
            tool,
            schema_listed=listing.is_structured_task(tool),
            unlisted_types=listing.unlisted_types(modern=True),
        )
        return "completed", {"result": shown}


async def check_task_request(ctx: Request, call_next: CallNext) -> HandlerResult:
    """Refuse requests about tasks from clients without the extension, and with headers that name another task. A
    middleware of the SDK's server.

    Raises:
        MCPError: The reason.
    """
    params = ctx.params or {}
    about_tasks = ctx.method in _METHODS
    if about_tasks and not is_modern(ctx):
        raise MCPError(wire.METHOD_NOT_FOUND, "Method not found", ctx.method)
    if about_tasks and ctx.request is not None:
        if decode_header_value(ctx.request.headers.get("mcp-name")) != params.get("taskId"):
            raise MCPError(wire.HEADER_MISMATCH, "The header Mcp-Name must be the taskId of the request")
    wanted = params.get("notifications") if ctx.method == "subscriptions/listen" else None
    listens = isinstance(wanted, Mapping) and "taskIds" in wanted
    if (about_tasks or listens) and not declares_tasks(ctx):
        text = f"Missing required client capability: the extension {TASKS}"
        raise MCPError(wire.MISSING_REQUIRED_CLIENT_CAPABILITY, text, _REQUIRED)
    return await call_next(ctx)


def declares_tasks(request: Request) -> bool:
    """Return whether the client of a request knows tasks."""
    capabilities = request.session.client_capabilities
    return capabilities is not None and TASKS in (capabilities.extensions or {})


def is_modern(request: Request) -> bool:
    """Return whether the client speaks 2026-07-28."""
    return request.protocol_version in MODERN_PROTOCOL_VERSIONS


def _format_progress(data: Mapping[str, Any] | None) -> str:
    if data is None:
        return ""
    message, done, total = str(data.get("message") or ""), data.get("done"), data.get("total")
    count = "" if done is None else f"{done}" if total is None else f"{done} of {total}"
    return f"{message} ({count})" if message and count else message or count


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _dump(model: Any) -> Any:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)
