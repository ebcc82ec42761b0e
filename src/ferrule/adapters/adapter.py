"""Run a runner's calls from the tools of a framework. All adapters to frameworks share this.

A framework calls its tools one by one, and asks a person in its own way. So an adapter has four steps:

    adapter = Adapter(runner, "their name", suspends=True)
    result = await adapter.run(call, context)                        # once for each call id, by the journal
    raise TheirInterrupt(record_of(result))                          # if result.pending
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
from ferrule.values.content import Text
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, ask, deny
from ferrule.values.event import Event
from ferrule.values.frozen import thaw
from ferrule.values.journal_entry import outcome_from_result, result_from_outcome
from ferrule.values.json_text import is_same_json
from ferrule.values.result import ToolResult

__all__ = ["Adapter", "Record", "Tell", "failed_outside", "id_of", "record_of"]

log = logging.getLogger("ferrule")
_Theirs = TypeVar("_Theirs")
_PREFIX = "interop "
_MOST_IN_MEMORY = 10_000
"""The most calls in a journal made here."""
_GONE = "the record of that is gone"
_OTHER_SEAL = "the record of that was changed, or another runner has sealed it"
_NOT_SEALED = (
    "it was changed, or sealed by a runner with another resume_key. Every program that answers calls of another has to "
    "have its Runner(…, resume_key=…, journal=…); without a resume_key each runner has one of its own"
)
_NOT_LATER = deny("a person would have to be asked, and no call can wait for an answer here")
_OF_A_STORE = ("get", "compare_and_set", "items")
_MAKES_JOURNALS = Lock()
_KEPT: WeakKeyDictionary[Runner, Runner] = WeakKeyDictionary()
"""The runners that got a journal in memory here. Adapters made anew for each request share them."""


class Record(TypedDict):
    """The data to resume a suspended call, as plain JSON. See docs/coming-from.md#your-own-adapter.

    Attributes:
        pending: The input of `Runner.resume`: sealed, and possibly shown to people.
    """

    pending: dict[str, Any]


Tell: TypeAlias = Callable[[float, float | None, str | None], Awaitable[object]]
"""A function for progress: the amount done, the total if known, and a text, the arguments of `context.progress`.

See docs/coming-from.md#your-own-adapter.
"""


_ToldOf: TypeAlias = tuple[str | None, str | None, str]
"""The principal, the session and the id of a call."""


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
        if not (records is None or all(callable(getattr(records, name, None)) for name in _OF_A_STORE)):
            raise DefinitionError(
                f"{framework}: records= takes a store, such as ferrule.stores.SealedFile('records.db'), not {records!r}"
            )
        runner = _with_journal(runner, framework)
        if runner.approve is None and suspends:
            runner = runner.replace(approve=_later)
        at_once = runner.approve is not None and (suspends or not puts_off(runner.approve))
        if not at_once and (asking := [tool.name for tool in runner.tools if may_ask(runner, tool)]):
            raise DefinitionError(
                f"{framework}: {asking[0]!r} may ask a person, and a call cannot wait there: give the runner an "
                "approver that answers at once, Runner(…, approve=…)"
            )
        self._suspends = suspends
        # One observer of all calls: a separate one for each call would be checked each time, at the cost of a call.
        self.runner = runner.replace(observers=[*runner.observers, self._observe])
        self._told: dict[_ToldOf, _Telling] = {}
        self._answering: dict[str, Future[None]] = {}
        assert runner.journal is not None
        self._records = runner.journal.store if records is None else records
        self._waits = getattr(self._records, "waits", True)  # if true, in a thread, for 0.1 to 0.4 ms

    def run(self, call: ToolCall, context: ToolContext[Any], tell: Tell | None = None) -> Coro[ToolResult]:
        """Run a call, once for its id, and store its record if it is suspended. Await the result.

        Args:
            tell: A function for the call's progress, called step by step before the result is returned.

        Raises:
            Exception: The store cannot keep the record; this is its own exception.
        """
        return self._follow(call, context, tell, self.runner.run, call)

    async def answer(
        self,
        call: ToolCall,
        context: ToolContext[Any],
        answer: Decision | bool | ToolResult | Mapping[str, Any],
        record: Any = None,
        tell: Tell | None = None,
    ) -> ToolResult:
        """Resume a suspended call.

        Args:
            call: The call as shown to the person.
            answer: The person's answer; or, if the framework passes nothing else, the approved arguments. These may
                differ from the sent ones, and answer only the question whether the call may run.
            record: The record that comes with the framework's answer; by default the stored one.
            tell: As for `run`.

        Raises:
            Exception: The store cannot be read or written; this is its own exception.
        """
        found = await self._kept(call, context) if record is None else record
        approved = call.replace(arguments=answer) if isinstance(answer, Mapping) else call
        if not self._takes_up(found, call, context):
            no, why = answer if _is_no(answer) else None, _why_not_taken(record, call, context) or _OTHER_SEAL
            if no is None:
                log.warning("an answer for a call of tool %r: %s; the person is asked again", call.name, why)
            result = await self.ask_again(approved, context, tell, no=no, why=why)
            answerable = result.pending is None or self.runner.is_sealed(record_of(result))
            return result if answerable else _unanswerable(call)
        record = {"pending": found["pending"]}
        if isinstance(answer, Mapping):
            if found["pending"]["kind"] == "work":
                return await self.run(call, context, tell)
            answer = _approved(found["pending"], approved)
        key = record["pending"]["key"]
        async with self._alone(key):
            result = await self._follow(call, context, tell, self.runner.resume, record, answer)
            return await self._came_to(call, context, key, result)

    @asynccontextmanager
    async def _alone(self, key: str) -> AsyncIterator[None]:
        """Hold the only answer to this record in this adapter, and wait for others first.

        If LangGraph retries a node, it answers a record while the first try goes on; the second waits for the outcome
        of the first. If its tools are called in threads, the two are on different loops.
        """
        mine: Future[None] = Future()
        while (other := self._answering.setdefault(key, mine)) is not mine:
            await asyncio.shield(asyncio.wrap_future(other))
        try:
            yield
        finally:
            del self._answering[key]
            mine.set_result(None)

    def ask_again(
        self,
        call: ToolCall,
        context: ToolContext[Any],
        tell: Tell | None = None,
        *,
        no: Decision | Literal[False] | None = None,
        why: str = "",
    ) -> Coro[ToolResult]:
        """Run a call again after its question's record was lost.

        The person is asked again, whatever the guards return now.

        The guards may have lost their own state together with the record. The journal's result is returned as by `run`.
        Await the result.

        Args:
            tell: As for `run`.
            no: The person's answer if it was a no: it answers the new question as well.
            why: The reason not to use the record, if it is not gone.
        """

        def asked_before(call: ToolCall, context: ToolContext[Any]) -> Decision:
            return ask(f"it was asked about before, and {why or _GONE}")

        async def said_no(call: ToolCall, decision: Decision, context: ToolContext[Any]) -> Decision | bool:
            assert no is not None
            return no

        guards = [*self.runner.guards, asked_before]
        asking = self.runner.replace(guards=guards, approve=None if no is None else said_no)
        return self._follow(call, context, tell, asking.run, call)

    async def _came_to(self, call: ToolCall, context: ToolContext[Any], key: str, result: ToolResult) -> ToolResult:
        """Return the outcome of the answer to the record with that key.

        If the record was answered before, that is the earlier outcome.

        The outcome is stored with the record if the journal does not have it: for a no, and for a tool that only reads.
        """
        again = result.error == RESUMED_ALREADY
        tool = self.runner.tools.find(call.name)
        in_journal = result.executed is not False and tool is not None and not tool.read_only
        if result.pending is not None or (in_journal and not again):
            return result
        try:
            kept = await self._kept(call, context)
            if kept is None or kept["pending"]["key"] != key:
                return result
            if again and "came_to" in kept:
                return result_from_outcome(kept["came_to"], call, call.name)
        except Exception:
            log.exception("what a call of tool %r came to could not be looked for", call.name)
            return result
        if not again:
            await self.note(call, context, kept | {"came_to": outcome_from_result(result)})
        return result

    async def _follow(
        self,
        call: ToolCall,
        context: ToolContext[Any],
        tell: Tell | None,
        begin: Callable[..., Coro[ToolResult]],
        *given: object,
    ) -> ToolResult:
        """Return the result of `begin(*given, context)`.

        Report its progress, and store its record if it is suspended.
        """
        fields, known, options = context.fields, None, {}
        telling = None if tell is None else _Telling(tell)
        if telling is not None and fields.session and call.id:
            known = fields.principal, fields.session, call.id
            self._told[known] = telling
        elif telling is not None:  # nothing distinguishes it from another call with its id, perhaps of another user
            options = {"observers": [telling.observe]}
        try:
            result = await begin(*given, context, **options)
        except BaseException:
            if telling is not None:
                telling.give_up()
            raise
        finally:
            if known is not None and self._told.get(known) is telling:
                del self._told[known]
            if telling is not None and telling.task is not None:
                await asyncio.wait([telling.task])
        if result.pending is not None and self._suspends:
            await self.keep(call, context, record_of(result))
            return result
        return await self.ended(result, context)

    async def ended(self, result: ToolResult, context: ToolContext[Any]) -> ToolResult:
        """Return the result if no call can wait for a person: a call that waits for one is denied."""
        if result.pending is None or result.pending["kind"] == "work":
            return result
        return await self.runner.resume(record_of(result), _NOT_LATER, context)

    def _observe(self, event: Event) -> None:
        if event.kind == "tool:progress":
            telling = self._told.get((event.principal, event.session, event.call.id))
            if telling is not None:
                telling.observe(event)

    async def find(self, call: ToolCall, context: ToolContext[Any]) -> Any:
        """Return the stored record of this call with these arguments.

        Returns `None` if there is none that the runner can resume, for example after a restart without a `resume_key`.
        """
        kept = await self._kept(call, context)
        return kept if self._takes_up(kept, call, context) else None

    def _takes_up(self, record: object, call: ToolCall, context: ToolContext[Any]) -> bool:
        """Return whether this is the record of this very call, sealed as by this runner.

        If only the seal is wrong, the log says what would be right.
        """
        if not is_record_of(record, call, context):
            return False
        known: Any = record
        sealed = self.runner.is_sealed({"pending": known["pending"]})
        if not sealed:
            log.warning("the record of a call of tool %r was not used: %s", call.name, _NOT_SEALED)
        return sealed

    async def _kept(self, call: ToolCall, context: ToolContext[Any]) -> Any:
        key = _record_key(call, context)
        if key is None:
            return None
        return await asyncio.to_thread(self._records.get, key) if self._waits else self._records.get(key)

    async def keep(self, call: ToolCall, context: ToolContext[Any], record: Record) -> None:
        """Store the record until it expires, in place of an earlier one of this call.

        Without a session, store nothing.
        """
        if (key := _record_key(call, context)) is not None:
            await asyncio.to_thread(_put, self._records, key, record)

    async def note(self, call: ToolCall, context: ToolContext[Any], record: Record) -> None:
        """Store the record with the outcome of the call.

        A failure to store it is logged, because the call has ended anyway.
        """
        try:
            await self.keep(call, context, record)
        except Exception:
            log.exception("what a call of tool %r came to could not be kept with its record", call.name)


class _Telling:
    """A reporter of a call's progress to an async function, in order, in a task that begins with the first step."""

    __slots__ = ("_steps", "_tell", "task")

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.task: asyncio.Task[None] | None = None

    def observe(self, event: Event) -> None:
        """Report this event as well."""
        if event.kind != "tool:progress" or "done" not in event.data:
            return
        if self.task is None:
            self._steps: deque[Any] = deque()
        self._steps.append(event.data)
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._tell_all())

    async def _tell_all(self) -> None:
        while self._steps:
            step = self._steps.popleft()
            try:
                await self._tell(step["done"], step["total"], step["message"])
            except Exception:
                log.exception("progress of a call could not be told")

    def give_up(self) -> None:
        """Stop reporting: the receiver may itself wait for a call that was cancelled."""
        if self.task is not None:
            self.task.cancel()


def check_runner(framework: str, runner: object) -> None:
    """Raise a `DefinitionError` if `runner` is no runner."""
    if not isinstance(runner, Runner):
        raise DefinitionError(f"{framework}: tools are made of a Runner, not of {runner!r}: Runner([…])")


def context_maker(
    framework: str,
    given: Callable[[_Theirs], ToolContext[Any]] | None,
    default: Callable[[_Theirs], ToolContext[Any]],
) -> Callable[[_Theirs], ToolContext[Any]]:
    """Return the function that makes the context of a call: the `context=` of an adapter, or else its default.

    The result of a given function is checked, because a call without a context would run for nobody.

    Raises:
        DefinitionError: `given` is no function. The returned function raises it if `given` returns no `ToolContext`.
    """
    if given is None:
        return default
    if not callable(given):
        raise DefinitionError(
            f"{framework}: context= takes a function of the framework's context that gives a ToolContext, not "
            f"{given!r}: context=lambda theirs: ToolContext(…)"
        )

    def made(theirs: _Theirs) -> ToolContext[Any]:
        context = given(theirs)
        if not isinstance(context, ToolContext):
            raise DefinitionError(
                f"{framework}: the function that is context= has to give a ToolContext, and gave a "
                f"{type(context).__name__}; it is called, and not awaited"
            )
        return context

    return made


def listed(framework: str, theirs: Iterable[_Theirs]) -> list[_Theirs]:
    """Return the argument of `from_tools` as a list.

    Raises:
        DefinitionError: It is no list, or has a tool of Ferrule.
    """
    if isinstance(theirs, str) or not isinstance(theirs, Iterable):
        raise DefinitionError(f"{framework}: from_tools takes a list of tools, not {theirs!r}: from_tools([…])")
    given = list(theirs)
    for one in given:
        if isinstance(one, Tool):
            raise DefinitionError(f"{framework}: {one!r} is a tool of Ferrule already: Runner([…]) takes it as it is")
    return given


def record_of(result: ToolResult) -> Record:
    """Return the record to resume this suspended call. See docs/coming-from.md#your-own-adapter."""
    return {"pending": thaw(result.pending)}


def is_text(result: ToolResult) -> bool:
    """Return whether a model gets only `result.text`."""
    content = result.content
    return type(content[0]) is Text if len(content) == 1 else all(isinstance(block, Text) for block in content)


def id_of(call_id: str | None, answered: Iterable[str]) -> str:
    """Return the key of a call: its id, and its number among the calls of that id if earlier ones have results.

    Some servers count from `call_0` in each turn. Only successful results of ours count, and no calls: a call that is
    sent again, after a crash or with an answer, has no result yet, or one made up by a framework. See
    docs/coming-from.md#your-own-adapter.

    Args:
        answered: The ids of the calls with such results.
    """
    earlier = [*answered].count(call_id) if call_id else 0
    return f"{call_id} ({earlier + 1})" if earlier else call_id or ""


def failed_outside(name: str, error: Exception) -> ToolResult:
    """Return the result for the model if the program around a call raised, for example a store.

    It is for frameworks that would show the model the text of the exception. The exception is logged. See
    docs/coming-from.md#your-own-adapter.
    """
    log.error("a call of tool %r failed outside its handler", name, exc_info=error)
    text = f"{name} failed, and it is not known whether anything was run."
    return ToolResult(None, text, status="failed")


def _unanswerable(call: ToolCall) -> ToolResult:
    """Return the result of a call that waits for work and was sealed by another runner.

    Nobody can be asked again about such a call.
    """
    text = f"{call.name} waits for work that is done elsewhere, and the answer could not be used. Nothing was run now."
    return ToolResult(None, text, status="invalid")


def may_ask(runner: Runner, tool: Tool) -> bool:
    """Return whether a person may be asked about a call: the tool asks, or a guard has no `asks` that says no."""
    return tool.ask is not False or any(_asks(guard, tool) for guard in guards_of(runner, tool))


def puts_off(approve: object) -> bool:
    """Return whether an approver declares that it lets calls wait."""
    return getattr(approve, "suspends", False) is True


def guards_of(runner: Runner, tool: Tool) -> list[Guard]:
    """Return all guards of a tool's calls, including those of the runners that it is mounted from."""
    mounted = (guard for mount in tool.mounts for guard in mount.settings.guards)
    return [*runner.guards, *mounted, *tool.guards]


def _asks(guard: object, tool: Tool) -> bool:
    said = getattr(guard, "asks", True)
    return bool(said(tool) if callable(said) else said)


def is_as_sent(pending: Mapping[str, Any], call: ToolCall) -> bool:
    """Return whether the call has the arguments from the time of its suspension.

    Guards may have changed those in `pending`, which is sealed.
    """
    return bool(make_call_key((), call.raw) == pending["sent"])


async def _later(call: ToolCall, decision: Decision, context: ToolContext[Any]) -> Decision:
    return decision


def _is_no(answer: object) -> TypeGuard[Decision | Literal[False]]:
    return answer is False or (isinstance(answer, Decision) and answer.kind == "deny")


def _with_journal(runner: Runner, framework: str) -> Runner:
    """Return the runner with a journal."""
    if runner.journal is not None:
        return runner
    with _MAKES_JOURNALS:
        made = _KEPT.get(runner)
        if made is not None:
            return made
        log.warning(
            "%s: the runner has no journal, so its calls are kept in memory: after a restart, one that is sent again "
            "is run again. Runner(…, journal=Journal.open('calls.db')) keeps them",
            framework,
        )
        made = _KEPT[runner] = runner.replace(journal=memory(most=_MOST_IN_MEMORY))
    return made


def _record_key(call: ToolCall, context: ToolContext[Any]) -> str | None:
    if not context.session or not call.id:
        return None
    named = (context.principal, context.session, call.name, call.id)
    digest = sha256(json.dumps(named).encode()).hexdigest()[:32]
    return f"{_PREFIX}{digest} {make_call_key(named, call.raw)}"


def is_record_of(record: object, call: ToolCall, context: ToolContext[Any]) -> bool:
    """Return whether this is the record of this very call. Its seal shows whether it was changed.

    A yes to another call does not count, for example to one of an earlier turn with the same id: some servers count
    from `call_0` in each turn.
    """
    return _why_not_taken(record, call, context) is None


def _why_not_taken(record: object, call: ToolCall, context: ToolContext[Any]) -> str | None:
    """Return the reason not to use a record for this call, or None if it is the record of this very call.

    Only a record that came with the answer gets a reason of its own; nobody learns here whether another user has one.
    """
    try:
        of: Any = record
        pending = of["pending"]
        sent, told = pending["call"], pending["context"]
        if (sent["id"], sent["name"]) != (call.id, call.name):
            return _GONE
        if told["principal"] != context.principal:
            return "the record of that belongs to somebody else"
        if told["session"] != context.session:
            return "the record of that belongs to another session"
        return None if is_as_sent(pending, call) else "it had other arguments then"
    except (TypeError, LookupError):
        return _GONE


def _approved(pending: dict[str, Any], call: ToolCall) -> Decision | bool:
    """Return the answer of a person who approved these arguments: a yes to the judged ones, or an edit.

    A question of another kind is asked again.
    """
    if pending["kind"] != "approval":
        return ask(pending["reason"])
    now = thaw(call.arguments)
    return True if is_as_sent(pending, call) or is_same_json(now, pending["arguments"]) else allow(arguments=now)


def _put(records: Store, key: str, record: Record) -> None:
    replace_row(records, key, record)
    if key.endswith("0"):  # one in sixteen checks all
        _drop_expired(records, record["pending"]["asked_at"])


def _drop_expired(records: Store, now: float) -> None:
    for key, kept in records.items(_PREFIX).items():
        if read_row(kept, lambda row: row["pending"]["expires_at"] <= now) is True:
            records.compare_and_set(key, kept, None)
