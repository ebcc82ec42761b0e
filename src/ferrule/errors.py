"""The exception tree.

FerruleError
├── ToolError               a call that gave no value; its text is shown to the model
│   ├── ValidationError     the arguments do not fit; nothing was run
│   ├── GuardError          a guard, or nobody to ask, refused; nothing was run
│   ├── HandlerError        the tool was run and raised
│   ├── NotStartedError     the thread or process for a tool was not to be had; nothing was run
│   ├── WorkerDiedError     the process of an isolated tool ended before the tool did
│   ├── UnknownOutcomeError the tool was handed to another machine, and nobody knows what came of it
│   └── ToolTimeoutError    the deadline came before the tool was done
├── RemoteError             what an isolated tool raised, where its class is not to be had here
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
    """A call that gave no value. See docs/talking-to-the-model.md.

    A handler may raise it, or one derived from it: its text is `result.error` as it is, without a word on whether the
    tool was run, which `result.executed` says; and the log has one line of it, without a traceback. So it is whatever
    the handler is, an object's `execute` or one in a process of its own, and where the handler called a tool that
    raised it. What a guard or a middleware raises, and a `ToolError` without a text, stands in a sentence of Ferrule's.

    Args:
        message: What was wrong, what would be right, and whether anything was run.
        retry_after: Seconds after which it may go well; a `retry` waits that long.
        result: The result of the call, where there is one.
        executed: Whether the effect may have happened, which a handler of something elsewhere may know: `False` where
            it was certainly not sent, `None` for not known.
        retryable: Whether the same call may succeed later. After `False`, `retry` makes no other attempt.
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
        self.retry_after = retry_after
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
    """What a journal keeps cannot be read or written, such as on a full disk. See docs/journal.md."""


class RemoteError(FerruleError):
    """What an isolated handler raised in its process, unless it is a built-in exception or one of Ferrule's.
    See docs/long-work.md.

    Args:
        text: The exception's own text.
        kinds: The qualified names of its class and of that's bases, such as `"shop.stock.OutOfStock"`, the most derived
            first.
        traceback: The traceback in the other process, as text; it is among the notes, so that logs have it.
        retry_after: Seconds after which it may go well, where the exception said so.

    Attributes:
        executed, retryable: As of a `ToolError`.
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
    """What was raised first: where a handler called a tool, and that tool another one, what the last one's handler
    raised; else `error` itself."""
    for _ in range(_MOST_CALLS):
        result = getattr(error, "result", None) if isinstance(error, ToolError) else None
        cause = getattr(result, "exception", None)
        if not isinstance(cause, BaseException):
            return error
        error = cause
    return RecursionError()
