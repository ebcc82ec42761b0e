"""The contract in one file: what a guard, a middleware, an approver, an observer and a journal are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision
from ferrule.values.event import Event
from ferrule.values.frozen import JsonObject
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool
    from ferrule.definition.toolset import Toolset
    from ferrule.executors import Executor
    from ferrule.journal.sqlite import SQLiteJournal
    from ferrule.stores.store import Store
    from ferrule.values.journal_entry import Intent, JournalEntry

_T = TypeVar("_T")
Coro: TypeAlias = Coroutine[Any, Any, _T]
"""A coroutine of something. See docs/middleware.md."""

Verdict: TypeAlias = Decision | Mapping[str, object] | None
"""The answer of a guard: a decision, changed arguments, or None for no objection. See docs/guards.md."""

GuardFunction: TypeAlias = Callable[[ToolCall, ToolContext[Any]], Verdict | Awaitable[Verdict]]
"""A guard as a function of the call and its context, sync or async. See docs/guards.md."""


class GuardObject(Protocol):
    """A guard as an object with `check`. Its signature decides how Ferrule calls it. See docs/guards.md.

    - `check(call, context)` gets the call.
    - `check(handler)` gets an instance of the handler class, and may change its fields. It works for such tools only.
    - `check(tool, **arguments)` gets the tool and its arguments by name.

    `True` means the same as `None`, and `False` denies. An exception from the last two denies with its text.
    """

    @property
    def check(self) -> Callable[..., object]: ...


Guard: TypeAlias = GuardFunction | GuardObject
"""May this call run? A function of call and context, or an object with `check`. Breaking means deny. Its `asks`, where
it has one, says about which tools it may ask: a bool, or a function of the tool. Its `check_tool`, if it has one, gets
each tool when a runner is made, and raises `DefinitionError` for one that it cannot judge. Its `denies_tool`, if it has
one, gets a tool and a context, and returns whether it denies each such call: MCP clients do not see that tool. The
`check_runner` of a guard or an observer gets the runner itself, and may refuse it in the same way. See
docs/guards.md."""

Next: TypeAlias = Callable[[ToolCall, ToolContext[Any]], Awaitable[ToolResult]]
"""The rest of the path of a call, which a middleware wraps. See docs/middleware.md."""

Middleware: TypeAlias = Callable[[ToolCall, ToolContext[Any], Next], Awaitable[ToolResult]]
"""Goes round a call; the first in a list is the outermost. See docs/middleware.md."""

Approver: TypeAlias = Callable[[ToolCall, Decision, ToolContext[Any]], Decision | bool | Awaitable[Decision | bool]]
"""Answers an ask: `allow(…)` or `True` allows, `ask(…)` suspends, everything else denies. See docs/approvals.md."""

Observer: TypeAlias = Callable[[Event], object]
"""Sees every event; cannot change a call and cannot break one. See docs/events.md."""


class Isolation(Protocol):
    """The value of `isolation=`: it lets handlers run on other machines, or in processes of your own.

    See docs/long-work.md.
    """

    def executor(self, tool: Tool) -> Executor:
        """Return the executor of `tool`. Each runner calls this once for each tool.

        Raises:
            DefinitionError: The handler cannot run there.
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
    """Shares a runner's limits with other programs: `ferrule.stores.share_limits(…)`.

    See docs/limits.md#among-several-programs.
    """

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
"""An element of a list of tools. See docs/forms.md."""


Reconcile: TypeAlias = Callable[
    [ToolCall, ToolContext[Any]], ToolResult | Literal[False] | Awaitable[ToolResult | Literal[False] | None] | None
]
"""Finds the outcome of a call that a crash cut off, for `reconcile=`. See docs/journal.md#after-a-crash."""


class Begun(NamedTuple):
    """The answer of `Journal.begin`. See docs/journal.md.

    Attributes:
        earlier: The unchanged entry of an earlier run of the call, or None if the intent was committed.
        other_arguments: Whether the journal has a call with the same id and other arguments.
    """

    earlier: JournalEntry | None
    other_arguments: bool = False


class Journal(ABC):
    """Records calls, so that a call that changes something runs at most once. See docs/journal.md.

    `Journal.open("calls.db")` and `ferrule.journal.memory()` make one. If you write your own, it has to pass
    `ferrule.testing.JournalContract`. The kernel awaits each method (but `note`, `store` and `close`) for at most 10 s,
    on the loop of the calls. If a method raises before a call has run, the call does not run.
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
        """Record an event soon. This runs on the loop of the calls, does not block and does not raise."""

    @abstractmethod
    async def find(self, key: str, *, wait: bool = False) -> JournalEntry | None:
        """Return the entry of this key, or None. With `wait`, wait first until no living process runs the call."""

    @abstractmethod
    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
        """Commit that a call is about to run, unless its key is there already. This is one step for all programs.

        It replaces an entry with the same `claim`, and the entry `after` if `settle` may change that.
        """

    @abstractmethod
    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        """Commit the outcome of a call, if the entry has its `claim`. `None` withdraws the intent."""

    @abstractmethod
    async def unfinished(self, *, ticket: str | None = None) -> list[JournalEntry]:
        """Return the entries that are cut off or deferred, the oldest first; with `ticket`, only the one with it."""

    @abstractmethod
    async def settle(self, entry: JournalEntry, outcome: JsonObject | None) -> bool:
        """Commit the outcome of a call that was cut off, is deferred, or ended with an outcome that nobody knows
        (`executed` is `None`). Return whether the call still was as `entry` says. `None` forgets the call."""

    @abstractmethod
    async def take(self, key: str, expires_at: float) -> bool:
        """Note that the suspended call of this key is taken up; whether it had not been, in one step for all who share
        the journal. The key is kept until `expires_at`, in seconds since the epoch."""

    @property
    @abstractmethod
    def store(self) -> Store:
        """Other values in the same place, with compare-and-set: grants, for instance."""

    def check_reach(self, roots: Iterable[str]) -> None:  # noqa: B027  # a journal in memory is in no folder
        """Raise `DefinitionError` if the journal lies where tools may write: in one of `roots`, the folders that the
        guards of a runner let paths lead to. A runner calls this when it is made."""

    async def flush(self) -> None:  # noqa: B027  # a journal in memory has nothing to wait for
        """Wait until all events that were noted are committed."""

    def close(self) -> None:  # noqa: B027  # and nothing to let go of
        """Commit all events, and release files and locks."""
