"""The contract in one file: what a guard, a middleware, an approver, an observer and a journal are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NamedTuple, Never, Protocol, TypeAlias, TypeVar

from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision
from ferrule.values.event import Event
from ferrule.values.frozen import JsonObject
from ferrule.values.kept import Intent, Kept
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ferrule.definition.tool import Tool
    from ferrule.definition.toolset import Toolset
    from ferrule.executors import Executor
    from ferrule.journal.sqlite import SQLiteJournal
    from ferrule.store import Store

_T = TypeVar("_T")
Coro: TypeAlias = Coroutine[Any, Any, _T]
"""A coroutine of something. See docs/middleware.md."""

Verdict: TypeAlias = Decision | Mapping[str, object] | None
"""What a guard says: a decision, changed arguments, or nothing. See docs/guards.md."""

GuardFunction: TypeAlias = Callable[[ToolCall, ToolContext[Any]], Verdict | Awaitable[Verdict]]
"""A guard as a function of the call and its context, sync or async. See docs/guards.md."""

ChecksCall: TypeAlias = Callable[[ToolCall, ToolContext[Any]], Verdict | bool | Awaitable[Verdict | bool]]
"""It gets the call and its context, as a guard that is a function does. See docs/guards.md."""

ChecksHandler: TypeAlias = (
    "Callable[[Never], Decision | bool | BaseModel | Awaitable[Decision | bool | BaseModel | None] | None]"
)
"""It gets an instance of the tool that it guards, whatever its class is, and gives it back changed, or decides.
See docs/guards.md."""

ChecksArguments: TypeAlias = "Callable[Concatenate[Tool, ...], Verdict | bool | Awaitable[Verdict | bool]]"
"""It knows the arguments of its tools by name. See docs/guards.md."""


class GuardObject(Protocol):
    """A guard as an object with `check`, which is asked by its signature. See docs/guards.md.

    - `check(call, context)` is asked about the call.
    - `check(handler)` is asked about an instance of the handler class, and may change its fields; the runner refuses
      it for other tools.
    - `check(tool, **arguments)` is asked about the tool and, by name, its arguments.

    `True` says what `None` does, and `False` denies. What the last two raise denies with its text.
    """

    @property
    def check(self) -> ChecksCall | ChecksHandler | ChecksArguments: ...


Guard: TypeAlias = GuardFunction | GuardObject
"""May this call run? A function of call and context, or an object with `check`. Breaking means deny. Its `asks`, where
it has one, says about which tools it may ask: a bool, or a function of the tool. Its `check_tool`, if it has one, gets
each tool when a runner is made, and raises `DefinitionError` for one that it cannot judge. See docs/guards.md."""

Next: TypeAlias = Callable[[ToolCall, ToolContext[Any]], Awaitable[ToolResult]]
"""What a middleware goes round. See docs/middleware.md."""

Middleware: TypeAlias = Callable[[ToolCall, ToolContext[Any], Next], Awaitable[ToolResult]]
"""Goes round a call; the first in a list is the outermost. See docs/middleware.md."""

Approver: TypeAlias = Callable[[ToolCall, Decision, ToolContext[Any]], Decision | bool | Awaitable[Decision | bool]]
"""Answers an ask: `allow(…)` or `True` allows, `ask(…)` suspends, everything else denies. See docs/approvals.md."""

Observer: TypeAlias = Callable[[Event], object]
"""Sees every event; cannot change a call and cannot break one. See docs/events.md."""


class Isolation(Protocol):
    """Where the handlers of tools run, for `isolation=`: on other machines, in processes of your own. See
    docs/long-work.md."""

    def executor(self, tool: Tool) -> Executor:
        """What runs the handler of `tool`; made once for each runner that has it.

        Raises:
            DefinitionError: where it cannot run there.
        """
        ...


class Lease(Protocol):
    """The shared slots and keys of one call, acquired like a slot. See docs/limits.md#among-several-programs.

    Attributes:
        outer: None; a `Limiter` may have an outer one.
        busy_reason: Why the lease was not acquired, for a message.
    """

    outer: None
    busy_reason: str

    async def acquire(self, deadline: float | None, group: object, timer: Any) -> bool:
        """Wait for the lease until the deadline of `timer`. Return whether it was acquired.

        Nothing but a cancellation is raised.
        """
        ...

    def release(self) -> object:
        """Return the lease. Any thread may call this."""
        ...


class Leases(Protocol):
    """Where a runner's limits are kept among all programs: `ferrule.limits.shared(…)`. See
    docs/limits.md#among-several-programs."""

    def lease(self, slots: Mapping[str, int], keys: Iterable[str], *, shared: bool) -> Lease:
        """A slot of each of these limits, of so many, and these keys, beside others that share them or alone."""
        ...


class Executable(Protocol):
    """Any object with a `name` and an `execute(payload)` or `execute(payload, context)`. See docs/forms.md."""

    @property
    def name(self) -> str: ...

    @property
    def execute(self) -> Callable[..., object]: ...


ToolForm: TypeAlias = "Tool | Callable[..., object] | Mapping[str, object] | Executable"
"""The forms of one tool: a `Tool`, a function, a handler class, a definition as a dict, an object with `execute`.
See docs/forms.md."""

ToolInput: TypeAlias = "ToolForm | Toolset"
"""What a list of tools may hold. See docs/forms.md."""


Reconcile: TypeAlias = Callable[
    [ToolCall, ToolContext[Any]], ToolResult | Literal[False] | Awaitable[ToolResult | Literal[False] | None] | None
]
"""What came of a call whose outcome is unknown, for `reconcile=`. See docs/journal.md#after-a-crash."""


class Begun(NamedTuple):
    """What `Journal.begin` found. See docs/journal.md.

    Attributes:
        kept: What is kept of the call from before, which was not changed; `None` where the intent was committed.
        other_arguments: Whether there is a call of the same id with other arguments.
    """

    kept: Kept | None
    other_arguments: bool = False


class Journal(ABC):
    """Where calls are kept, so that none that changes something is run twice. See docs/journal.md.

    `Journal.open("calls.db")` and `ferrule.journal.memory()` are two; for one of your own, `JournalContract` of
    `ferrule.testing` is the tests that it has to pass. Its methods but `note`, `store` and `close` are awaited for at
    most 10 s, on the loop of the calls. Where one raises before a call has run, it is not run.
    """

    @staticmethod
    def open(
        path: str | PathLike[str],
        *,
        durable: Literal["full", "normal"] = "full",
        keep: float | None = None,
        within_reach: bool = False,
    ) -> SQLiteJournal:
        """A journal in an SQLite file, of one machine: `ferrule.journal.SQLiteJournal(path, …)`."""
        from ferrule.journal.sqlite import SQLiteJournal  # 10 ms, for the programs that need it

        return SQLiteJournal(path, durable=durable, keep=keep, within_reach=within_reach)

    @abstractmethod
    def note(self, event: Event) -> None:
        """Keep an event, soon. It is called on the loop of the calls, waits for nothing and raises nothing."""

    @abstractmethod
    async def find(self, key: str, *, wait: bool = False) -> Kept | None:
        """What is kept of the call of this key. With `wait`, no earlier than a living process has ended it or died."""

    @abstractmethod
    async def begin(self, intent: Intent, *, after: Kept | None = None) -> Begun:
        """Commit that a call is about to run, in one step for all who share the journal, unless its key is there.

        It replaces what is there under the same `claim`, and what is there as `after` says, where `settle` may do so.
        """

    @abstractmethod
    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        """Commit what the call came to, where what is there has its `claim`; `None` forgets that it was begun."""

    @abstractmethod
    async def unfinished(self, *, ticket: str | None = None) -> list[Kept]:
        """The calls that were cut off and those that are deferred, the oldest first; of one `ticket`, that one."""

    @abstractmethod
    async def settle(self, kept: Kept, outcome: JsonObject | None) -> bool:
        """Commit the outcome of a call that was cut off, is deferred, or ended with an outcome that nobody knows
        (`executed` is `None`). Return whether the call still was as `kept` says. `None` forgets the call."""

    @abstractmethod
    async def take(self, key: str, expires_at: float) -> bool:
        """Note that the suspended call of this key is taken up; whether it had not been, in one step for all who share
        the journal. The key is kept until `expires_at`, in seconds since the epoch."""

    @property
    @abstractmethod
    def store(self) -> Store:
        """What else is kept there, by compare-and-set: grants, for instance."""

    def check_reach(self, roots: Iterable[str]) -> None:  # noqa: B027  # a journal in memory is in no folder
        """Raise `DefinitionError` if the journal lies where tools may write: in one of `roots`, the folders that the
        guards of a runner let paths lead to. A runner calls this when it is made."""

    async def flush(self) -> None:  # noqa: B027  # a journal in memory has nothing to wait for
        """Wait until all events that were noted are committed."""

    def close(self) -> None:  # noqa: B027  # and nothing to let go of
        """Commit what is left, and let go of what it holds."""
