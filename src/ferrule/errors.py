"""The exception tree.

FerruleError
├── ToolError               a call failed; the model reads its text
│   ├── ValidationError     the arguments do not fit; nothing was run
│   ├── GuardError          a guard, or nobody to ask, refused; nothing was run
│   ├── HandlerError        the tool was run and raised
│   ├── NotStartedError     no thread or process was free for a tool; nothing was run
│   ├── WorkerDiedError     the process of an isolated tool ended before the tool did
│   ├── UnknownOutcomeError nobody knows the outcome, such as of a tool on another machine
│   └── ToolTimeoutError    the deadline passed before the tool ended
├── RemoteError             an isolated tool raised an exception whose class is not known here
└── DefinitionError         a programmer's mistake in a tool, a toolset or a runner
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ferrule.values.result import ToolResult


_MOST_CALLS = 1000  # of tools by tools, in an exception that may be its own result's


class FerruleError(Exception):
    """Anything that this library raises. See docs/talking-to-the-model.md."""


class ToolError(FerruleError):
    """A call that failed. See docs/talking-to-the-model.md.

    A handler may raise it. Its text becomes `result.error`, with secrets masked and, after `executed=False`, with a
    sentence that nothing was run. The log has one line without a traceback.
    This holds for every kind of handler, and for a tool that the handler calls. If a guard or a middleware raises it,
    or it has no text, Ferrule writes a sentence around it.

    Args:
        message: The problem, the remedy, and whether anything was run.
        retry_after: Seconds until the call may succeed; a `retry` waits that long. If left out, that of `result`.
        result: The result of the call, if there is one.
        executed: Whether the effect may have happened: `False` if the request was certainly not sent, `None` if nobody
            knows.
        retryable: Whether the same call may succeed later. After `False`, `retry` stops.
    """

    executed: bool | None = True
    retryable: bool | None = None

    def __init__(
        self,
        message: str = "",
        *,
        retry_after: float | None = None,
        result: ToolResult | None = None,
        executed: bool | None = True,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after = (
            retry_after if result is None or retry_after is not None else result.metadata.get("retry_after")
        )
        self.result = result
        if retryable is not None:
            self.retryable = retryable
        if executed is not True:
            self.executed = executed


class ValidationError(ToolError):
    """The arguments do not fit the tool's schema; nothing was run. See docs/talking-to-the-model.md."""


class GuardError(ToolError):
    """A guard refused the call; nothing was run. See docs/talking-to-the-model.md."""


class HandlerError(ToolError):
    """The tool was run and raised; `__cause__` is what it raised. See docs/talking-to-the-model.md."""


class ToolTimeoutError(ToolError):
    """The deadline came before the tool was done. See docs/long-work.md."""


class NotStartedError(ToolError):
    """The handler was not started, as its executor says; nothing was run. See docs/long-work.md.

    Args:
        limited: Whether it may go well later.
    """

    def __init__(self, message: str = "", *, limited: bool = False) -> None:
        super().__init__(message)
        self.limited = limited


class WorkerDiedError(ToolError):
    """The process that an isolated handler ran in ended before the handler did; its effect may have happened.
    See docs/long-work.md."""

    executed = None


class UnknownOutcomeError(ToolError):
    """The call was handed to another machine, and nobody knows what came of it: the result is `unknown`.
    See docs/beyond-one-machine.md."""

    executed = None


class JournalError(FerruleError):
    """A journal cannot be read or written, for example because the disk is full. See docs/journal.md."""


class RemoteError(FerruleError):
    """An exception of an isolated handler, unless its class is built in or Ferrule's own. See docs/long-work.md.

    Args:
        text: The exception's own text.
        kinds: The qualified names of its class and of the bases, such as `"shop.stock.OutOfStock"`, the class first.
        traceback: The traceback in the other process, as text. It is in the notes, so logs have it.
        retry_after: The exception's `retry_after`, in seconds.

    Attributes:
        executed, retryable: As for `ToolError`.
    """

    executed: bool | None = True
    retryable: bool | None = None

    def __init__(
        self, text: str = "", kinds: tuple[str, ...] = (), traceback: str = "", *, retry_after: float | None = None
    ) -> None:
        super().__init__(text)
        self.kinds = kinds
        self.traceback = traceback
        self.retry_after = retry_after

    @property
    def name(self) -> str:
        """The name of its class, such as `"OutOfStock"`."""
        return self.kinds[0].rpartition(".")[2] if self.kinds else type(self).__name__

    def matches(self, kinds: tuple[type[BaseException], ...]) -> bool:
        """Whether it is one of these classes, by their qualified names."""
        return any(f"{kind.__module__}.{kind.__qualname__}" in self.kinds for kind in kinds)


class DefinitionError(FerruleError):
    """A programmer's mistake; the text says what to change. See docs/forms.md."""


def origin_of(error: BaseException) -> BaseException:
    """Return the first exception of a chain of nested calls: the one that the innermost handler raised."""
    for _ in range(_MOST_CALLS):
        result = getattr(error, "result", None) if isinstance(error, ToolError) else None
        cause = getattr(result, "exception", None)
        if not isinstance(cause, BaseException):
            return error
        error = cause
    return RecursionError()
