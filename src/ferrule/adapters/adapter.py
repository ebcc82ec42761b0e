"""Run a runner's calls from the tools of a framework. All adapters to frameworks share this.

A framework calls each tool itself, and asks a person in its own way. So an adapter has four steps:

    adapter = Adapter(runner, "their name", suspends=True)
    result = await adapter.run(call, context)                        # once for each call id, by the journal
    raise TheirInterrupt(record_from_result(result))                          # if result.pending
    result = await adapter.answer(call, context, True, record)       # with the person's answer

A call is identified by its principal, session, tool, id and sent arguments. An answer is valid for the call whose
record comes with it, or is stored. Without a record, or with one that this runner has not sealed, a no still counts.
Any other answer does not, and the person is asked again, whatever the guards return now.

A runner without a journal gets one in memory, shared by all adapters of that runner. A runner made anew for each
request, also by `runner.replace`, is another runner: give it a journal and a `resume_key`.

`ferrule.testing.AdapterContract` tests an adapter of your own: docs/coming-from.md#your-own-adapter.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from hashlib import sha256
from threading import Lock
from typing import Any, Literal, TypeAlias, TypedDict, TypeGuard, TypeVar
from weakref import WeakKeyDictionary

from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.journal import memory
from ferrule.kernel.results import RESUMED_ALREADY
from ferrule.runner import Runner
from ferrule.stores.store import Store, read_row, replace_row
from ferrule.types import Coro, Guard
from ferrule.values.call import ToolCall
from ferrule.values.call_key import make_call_key
from ferrule.values.content import Media, Text
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, ask, deny
from ferrule.values.event import Event
from ferrule.values.frozen import thaw
from ferrule.values.journal_entry import outcome_from_result, result_from_outcome
from ferrule.values.json_text import is_same_json
from ferrule.values.result import ToolResult

__all__ = ["Adapter", "ProgressFunction", "Record", "result_from_outside_error", "make_call_id", "record_from_result"]

log = logging.getLogger("ferrule")
_T = TypeVar("_T")
_PREFIX = "interop "
_MAX_CALLS_IN_MEMORY = 10_000
"""The most calls in a journal made here."""
_RECORD_IS_GONE = "the record of that question is gone"
_WRONG_SEAL = "the record of that question was changed, or another runner sealed it"
_WRONG_SEAL_HINT = (
    "it was changed, or sealed by a runner with another resume_key. Programs that answer each other's calls need the "
    "same Runner(…, resume_key=…, journal=…); without resume_key, each runner makes its own"
)
_CANNOT_WAIT = deny("a person must be asked, and no call can wait for an answer here")
_STORE_METHODS = ("get", "compare_and_set", "items")
_JOURNAL_LOCK = Lock()
_RUNNERS_WITH_JOURNAL: WeakKeyDictionary[Runner, Runner] = WeakKeyDictionary()
"""The runners that got a journal in memory here. Adapters made anew for each request share them."""


class Record(TypedDict):
    """The data to resume a suspended call, as plain JSON. See docs/coming-from.md#your-own-adapter.

    Attributes:
        pending: The input of `Runner.resume`: sealed, and possibly shown to people.
    """

    pending: dict[str, Any]


ProgressFunction: TypeAlias = Callable[[float, float | None, str | None], Awaitable[object]]
"""A function for progress: the amount done, the total if known, and a text, the arguments of `context.progress`.

See docs/coming-from.md#your-own-adapter.
"""


class Adapter:
    """A runner for the tools of a framework. See docs/coming-from.md#your-own-adapter.

    Args:
        runner: The runner of the calls. If it has no journal, the newest ten thousand changing calls stay in memory,
            and a warning is logged.
        framework: Its name, for errors and logs.
        suspends: Whether a call can wait in the framework for a person's later answer. A runner without an approver
            then suspends calls that need an answer. Otherwise a call that an approver defers is denied.
        records: The store of records until they are answered; the journal's store by default.

    Attributes:
        runner: The runner that runs the calls.

    Raises:
        DefinitionError: `runner` is no runner, `records` is no store, or a tool may ask and nobody can be asked.
    """

    def __init__(self, runner: Runner, framework: str, *, suspends: bool, records: Store | None = None) -> None:
        check_runner(framework, runner)
        if not (records is None or all(callable(getattr(records, name, None)) for name in _STORE_METHODS)):
            raise DefinitionError(
                f"{framework}: records= takes a store, such as ferrule.stores.SealedFile('records.db'), not {records!r}"
            )
        runner = _add_journal(runner, framework)
        if runner.approve is None and suspends:
            runner = runner.replace(approve=_defer)
        can_answer = runner.approve is not None and (suspends or not has_deferred_answers(runner.approve))
        if not can_answer and (asking := [tool.name for tool in runner.tools if can_ask(runner, tool)]):
            raise DefinitionError(
                f"{framework}: the tool {asking[0]!r} may ask a person, and no call can wait there: give the runner "
                "an approver that answers at once, Runner(…, approve=…)"
            )
        self._suspends = suspends
        self.runner = runner
        self._answering: dict[str, Future[None]] = {}
        assert runner.journal is not None
        self._records = runner.journal.store if records is None else records
        self._waits = getattr(self._records, "waits", True)  # if true, in a thread, for 0.1 to 0.4 ms

    def run(
        self, call: ToolCall, context: ToolContext[Any], on_progress: ProgressFunction | None = None
    ) -> Coro[ToolResult]:
        """Run a call, once for its id, and store its record if it is suspended. Await the result.

        Args:
            on_progress: A function for the call's progress, called step by step before the result is returned.

        Raises:
            Exception: The store cannot keep the record; this is its own exception.
        """
        return self._follow(call, context, on_progress, self.runner.run, call)

    async def answer(
        self,
        call: ToolCall,
        context: ToolContext[Any],
        answer: Decision | bool | ToolResult | Mapping[str, Any],
        record: Any = None,
        on_progress: ProgressFunction | None = None,
        *,
        by: str | None = None,
    ) -> ToolResult:
        """Resume a suspended call.

        Args:
            call: The call as shown to the person.
            answer: The person's answer; or, if the framework passes nothing else, the approved arguments. These may
                differ from the sent ones, and answer only the question whether the call may run.
            record: The record that comes with the framework's answer; by default the stored one.
            on_progress: As for `run`.
            by: The name of the person who approved the arguments.

        Raises:
            Exception: The store cannot be read or written; this is its own exception.
        """
        found = await self._read_record(call, context) if record is None else record
        approved = call.replace(arguments=answer) if isinstance(answer, Mapping) else call
        if not self._is_usable(found, call, context):
            denial, why = answer if _is_denial(answer) else None, _find_mismatch(record, call, context) or _WRONG_SEAL
            if denial is None:
                log.warning(
                    "an answer for a call of tool %r was not used: %s; the person is asked again", call.name, why
                )
            result = await self.ask_again(approved, context, on_progress, denial=denial, why=why)
            answerable = result.pending is None or self.runner.is_sealed(record_from_result(result))
            return result if answerable else _result_without_answer(call)
        record = {"pending": found["pending"]}
        if isinstance(answer, Mapping):
            if found["pending"]["kind"] == "work":
                return await self.run(call, context, on_progress)
            answer = _answer_from_arguments(found["pending"], approved, by)
        key = record["pending"]["key"]
        async with self._hold_answer(key):
            result = await self._follow(call, context, on_progress, self.runner.resume, record, answer)
            return await self._find_outcome(call, context, key, result)

    @asynccontextmanager
    async def _hold_answer(self, key: str) -> AsyncIterator[None]:
        """Hold the only answer to this record in this adapter, and wait for others first.

        If LangGraph retries a node, it answers a record while the first try goes on; the second waits for the outcome
        of the first. If its tools are called in threads, the two are on different loops.
        """
        future: Future[None] = Future()
        while (other := self._answering.setdefault(key, future)) is not future:
            await asyncio.shield(asyncio.wrap_future(other))
        try:
            yield
        finally:
            del self._answering[key]
            future.set_result(None)

    def ask_again(
        self,
        call: ToolCall,
        context: ToolContext[Any],
        on_progress: ProgressFunction | None = None,
        *,
        denial: Decision | Literal[False] | None = None,
        why: str = "",
    ) -> Coro[ToolResult]:
        """Run a call again after its question's record was lost.

        The person is asked again, whatever the guards return now.

        The guards may have lost their own state together with the record. The journal's result is returned as by `run`.
        Await the result.

        Args:
            on_progress: As for `run`.
            denial: The person's answer if it was a no: it answers the new question as well.
            why: The reason not to use the record, if it is not gone.
        """

        def ask_about_lost_record(call: ToolCall, context: ToolContext[Any]) -> Decision:
            return ask(f"it was asked about before, and {why or _RECORD_IS_GONE}")

        async def repeat_denial(call: ToolCall, decision: Decision, context: ToolContext[Any]) -> Decision | bool:
            assert denial is not None
            return denial

        guards = [*self.runner.guards, ask_about_lost_record]
        asking = self.runner.replace(guards=guards, approve=None if denial is None else repeat_denial)
        return self._follow(call, context, on_progress, asking.run, call)

    async def _find_outcome(
        self, call: ToolCall, context: ToolContext[Any], key: str, result: ToolResult
    ) -> ToolResult:
        """Return the outcome of the answer to the record with that key.

        If the record was answered before, that is the earlier outcome.

        The outcome is stored with the record if the journal does not have it: for a no, and for a tool that only reads.
        """
        again = (result.error or "").startswith(RESUMED_ALREADY)
        tool = self.runner.tools.find(call.name)
        in_journal = result.executed is not False and tool is not None and not tool.read_only
        if result.pending is not None or (in_journal and not again):
            return result
        try:
            stored = await self._read_record(call, context)
            if stored is None or stored["pending"]["key"] != key:
                return result
            if again and "outcome" in stored:
                return result_from_outcome(stored["outcome"], call, call.name)
            if not again:
                await self.store_record(call, context, stored | {"outcome": outcome_from_result(result)})
        except Exception:  # the call has ended anyway
            log.exception("the outcome of a call of tool %r could not be read or stored", call.name)
        return result

    async def _follow(
        self,
        call: ToolCall,
        context: ToolContext[Any],
        on_progress: ProgressFunction | None,
        start: Callable[..., Coro[ToolResult]],
        *arguments: object,
    ) -> ToolResult:
        """Return the result of `start(*arguments, context)`.

        Report its progress, and store its record if it is suspended.
        """
        reporter = None if on_progress is None else _ProgressReporter(on_progress)
        options = {} if reporter is None else {"observers": [reporter.observe]}
        try:
            result = await start(*arguments, context, **options)
        except BaseException:
            if reporter is not None:
                reporter.cancel()
            raise
        finally:
            if reporter is not None and reporter.task is not None:
                await asyncio.wait([reporter.task])
        if result.pending is not None and self._suspends:
            await self.store_record(call, context, record_from_result(result))
            return result
        return await self.deny_if_waiting(result, context)

    async def deny_if_waiting(self, result: ToolResult, context: ToolContext[Any]) -> ToolResult:
        """Return the result if no call can wait for a person: a call that waits for one is denied."""
        if result.pending is None or result.pending["kind"] == "work":
            return result
        return await self.runner.resume(record_from_result(result), _CANNOT_WAIT, context)

    async def find_record(self, call: ToolCall, context: ToolContext[Any]) -> Any:
        """Return the stored record of this call with these arguments.

        Returns `None` if there is none that the runner can resume, for example after a restart without a `resume_key`.
        """
        stored = await self._read_record(call, context)
        return stored if self._is_usable(stored, call, context) else None

    def _is_usable(self, record: object, call: ToolCall, context: ToolContext[Any]) -> bool:
        """Return whether this is the record of this very call, sealed as by this runner.

        If only the seal is wrong, the log says what would be right.
        """
        if not is_matching_record(record, call, context):
            return False
        matching: Any = record
        sealed = self.runner.is_sealed({"pending": matching["pending"]})
        if not sealed:
            log.warning("the record of a call of tool %r was not used: %s", call.name, _WRONG_SEAL_HINT)
        return sealed

    async def _read_record(self, call: ToolCall, context: ToolContext[Any]) -> Any:
        key = _record_key(call, context)
        if key is None:
            return None
        return await asyncio.to_thread(self._records.get, key) if self._waits else self._records.get(key)

    async def store_record(self, call: ToolCall, context: ToolContext[Any], record: Record) -> None:
        """Store the record until it expires, in place of an earlier one of this call.

        Without a session, store nothing.
        """
        if (key := _record_key(call, context)) is not None:
            await asyncio.to_thread(_write_record, self._records, key, record)


class _ProgressReporter:
    """A reporter of a call's progress to an async function, in order, in a task that begins with the first step."""

    def __init__(self, on_progress: ProgressFunction) -> None:
        self._on_progress = on_progress
        self._steps: deque[Any] = deque()
        self.task: asyncio.Task[None] | None = None

    def observe(self, event: Event) -> None:
        """Report this event as well."""
        if event.kind != "tool:progress" or "done" not in event.data:
            return
        self._steps.append(event.data)
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._report_all())

    async def _report_all(self) -> None:
        while self._steps:
            step = self._steps.popleft()
            try:
                await self._on_progress(step["done"], step["total"], step["message"])
            except Exception:
                log.exception("the progress of a call could not be reported")

    def cancel(self) -> None:
        """Stop reporting: the receiver may itself wait for a call that was cancelled."""
        if self.task is not None:
            self.task.cancel()


def check_runner(framework: str, runner: object) -> None:
    """Raise a `DefinitionError` if `runner` is no runner."""
    if not isinstance(runner, Runner):
        raise DefinitionError(f"{framework}: the first argument must be a Runner, such as Runner([…]), not {runner!r}")


def check_context_function(
    framework: str,
    function: Callable[[_T], ToolContext[Any]] | None,
    default: Callable[[_T], ToolContext[Any]],
) -> Callable[[_T], ToolContext[Any]]:
    """Return the function that makes the context of a call: the `context=` of an adapter, or else its default.

    The result of `function` is checked, because a call without a context would run for nobody.

    Raises:
        DefinitionError: It is no function. The returned function raises it if the result is no `ToolContext`.
    """
    if function is None:
        return default
    if not callable(function):
        raise DefinitionError(
            f"{framework}: context= must be a function of the framework's context that returns a ToolContext, not "
            f"{function!r}: context=lambda theirs: ToolContext(…)"
        )

    def make_context(value: _T) -> ToolContext[Any]:
        context = function(value)
        if not isinstance(context, ToolContext):
            raise DefinitionError(
                f"{framework}: the function context= must return a ToolContext, and returned a "
                f"{type(context).__name__}; it is not awaited"
            )
        return context

    return make_context


def read_tool_list(framework: str, tools: Iterable[_T]) -> list[_T]:
    """Return the argument of `from_tools` as a list.

    Raises:
        DefinitionError: It is no list, or has a tool of Ferrule.
    """
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise DefinitionError(f"{framework}: from_tools takes a list of tools, not {tools!r}: from_tools([…])")
    found = list(tools)
    for tool in found:
        if isinstance(tool, Tool):
            raise DefinitionError(f"{framework}: {tool!r} is a tool of Ferrule; use it as it is, Runner([…])")
    return found


def record_from_result(result: ToolResult) -> Record:
    """Return the record to resume this suspended call. See docs/coming-from.md#your-own-adapter."""
    return {"pending": thaw(result.pending)}


def is_text_only(result: ToolResult) -> bool:
    """Return whether a model gets only `result.text`."""
    content = result.content
    return type(content[0]) is Text if len(content) == 1 else all(isinstance(block, Text) for block in content)


def describe_media(media: Media) -> str:
    """Return the text in place of media that a framework cannot show."""
    return f"[{media.kind} {media.uri or media.name or media.mime_type}]"


def guess_media_kind(mime_type: str) -> Any:
    """Return the kind of media of this type."""
    kind = mime_type.partition("/")[0]
    return kind if kind in ("image", "audio") else "file"


def make_call_id(call_id: str | None, answered_ids: Iterable[str]) -> str:
    """Return the key of a call: its id, and its number among the calls of that id if earlier ones have results.

    Some servers count from `call_0` in each turn. Only successful results of ours count, and no calls: a call that is
    sent again, after a crash or with an answer, has no result yet, or one made up by a framework. See
    docs/coming-from.md#your-own-adapter.

    Args:
        answered_ids: The ids of the calls with such results.
    """
    earlier = [*answered_ids].count(call_id) if call_id else 0
    return f"{call_id} ({earlier + 1})" if earlier else call_id or ""


def result_from_outside_error(name: str, error: Exception) -> ToolResult:
    """Return the result for the model if the program around a call raised, for example a store.

    It is for frameworks that would show the model the text of the exception. The exception is logged. See
    docs/coming-from.md#your-own-adapter.
    """
    log.error("a call of tool %r failed outside its handler", name, exc_info=error)
    text = f"{name} failed. It is unknown whether anything was run."
    return ToolResult(None, text, status="failed")


def _result_without_answer(call: ToolCall) -> ToolResult:
    """Return the result of a call that waits for work and was sealed by another runner.

    Nobody can be asked again about such a call.
    """
    text = f"{call.name} waits for work that ends elsewhere, and the answer could not be used. Nothing was run now."
    return ToolResult(None, text, status="invalid")


def can_ask(runner: Runner, tool: Tool) -> bool:
    """Return whether a person may be asked about a call: the tool asks, or a guard has no `asks` that says no."""
    return tool.ask is not False or any(_can_ask(guard, tool) for guard in list_guards(runner, tool))


def has_deferred_answers(approve: object) -> bool:
    """Return whether an approver declares that it lets calls wait."""
    return getattr(approve, "suspends", False) is True


def list_guards(runner: Runner, tool: Tool) -> list[Guard]:
    """Return all guards of a tool's calls, including those of the runners that it is mounted from."""
    mounted = (guard for mount in tool.mounts for guard in mount.settings.guards)
    return [*runner.guards, *mounted, *tool.guards]


def _can_ask(guard: object, tool: Tool) -> bool:
    asks = getattr(guard, "asks", True)
    return bool(asks(tool) if callable(asks) else asks)


def has_sent_arguments(pending: Mapping[str, Any], call: ToolCall) -> bool:
    """Return whether the call has the arguments from the time of its suspension.

    Guards may have changed those in `pending`, which is sealed.
    """
    return bool(make_call_key((), call.raw) == pending["sent"])


async def _defer(call: ToolCall, decision: Decision, context: ToolContext[Any]) -> Decision:
    return decision


def _is_denial(answer: object) -> TypeGuard[Decision | Literal[False]]:
    return answer is False or (isinstance(answer, Decision) and answer.kind == "deny")


def _add_journal(runner: Runner, framework: str) -> Runner:
    """Return the runner with a journal."""
    if runner.journal is not None:
        return runner
    with _JOURNAL_LOCK:
        if (found := _RUNNERS_WITH_JOURNAL.get(runner)) is not None:
            return found
        log.warning(
            "%s: the runner has no journal, so its calls are stored in memory; after a restart, a call that is sent "
            "again runs again. Use Runner(…, journal=Journal.open('calls.db')) to store them in a file",
            framework,
        )
        found = _RUNNERS_WITH_JOURNAL[runner] = runner.replace(journal=memory(most=_MAX_CALLS_IN_MEMORY))
    return found


def _record_key(call: ToolCall, context: ToolContext[Any]) -> str | None:
    if not context.session or not call.id:
        return None
    named = (context.principal, context.session, call.name, call.id)
    digest = sha256(json.dumps(named).encode()).hexdigest()[:32]
    return f"{_PREFIX}{digest} {make_call_key(named, call.raw)}"


def is_matching_record(record: object, call: ToolCall, context: ToolContext[Any]) -> bool:
    """Return whether this is the record of this very call. Its seal shows whether it was changed.

    A yes to another call does not count, for example to one of an earlier turn with the same id: some servers count
    from `call_0` in each turn.
    """
    return _find_mismatch(record, call, context) is None


def _find_mismatch(record: object, call: ToolCall, context: ToolContext[Any]) -> str | None:
    """Return the reason not to use a record for this call, or None if it is the record of this very call.

    Only a record that came with the answer gets a reason of its own; nobody learns here whether another user has one.
    """
    try:
        unchecked: Any = record
        pending = unchecked["pending"]
        sent, asked = pending["call"], pending["context"]
        if (sent["id"], sent["name"]) != (call.id, call.name):
            return _RECORD_IS_GONE
        if asked["principal"] != context.principal:
            return "the record of that question belongs to somebody else"
        if asked["session"] != context.session:
            return "the record of that question belongs to another session"
        return None if has_sent_arguments(pending, call) else "the call had other arguments then"
    except (TypeError, LookupError):
        return _RECORD_IS_GONE


def _answer_from_arguments(pending: dict[str, Any], call: ToolCall, by: str | None) -> Decision:
    """Return the answer of a person who approved these arguments: a yes to the judged ones, or an edit.

    A question of another kind is asked again.
    """
    if pending["kind"] != "approval":
        return ask(pending["reason"])
    now = thaw(call.arguments)
    is_unchanged = has_sent_arguments(pending, call) or is_same_json(now, pending["arguments"])
    return allow(by=by) if is_unchanged else allow(arguments=now, by=by)


def _write_record(records: Store, key: str, record: Record) -> None:
    replace_row(records, key, record)
    if key.endswith("0"):  # one in sixteen checks all
        _delete_expired_records(records, record["pending"]["asked_at"])


def _delete_expired_records(records: Store, now: float) -> None:
    for key, stored in records.items(_PREFIX).items():
        if read_row(stored, lambda row: row["pending"]["expires_at"] <= now) is True:
            records.compare_and_set(key, stored, None)
