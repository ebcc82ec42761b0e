"""The exception tree.

FerruleError
├── ToolError               a call that gave no value; its text is shown to the model
│   ├── ValidationError     the arguments do not fit; nothing was run
│   ├── GuardError          a guard, or nobody to ask, refused; nothing was run
│   ├── HandlerError        the tool was run and raised
│   └── ToolTimeoutError    the deadline came before the tool was done
└── DefinitionError         a programmer's mistake in a tool, a toolset or a runner
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ferrule.core.values import ToolResult


class FerruleError(Exception):
    """Anything that this library raises."""


class ToolError(FerruleError):
    """A call that gave no value.

    A handler may raise it too: its text always reaches the model.

    Args:
        message: What was wrong, what would be right, and whether anything was run.
        result: The result of the call, where there is one.
    """

    def __init__(self, message: str = "", *, result: ToolResult | None = None) -> None:
        super().__init__(message)
        self.result = result


class ValidationError(ToolError):
    """The arguments do not fit the tool's schema; nothing was run."""


class GuardError(ToolError):
    """A guard refused the call; nothing was run."""


class HandlerError(ToolError):
    """The tool was run and raised; `__cause__` is what it raised."""


class ToolTimeoutError(ToolError):
    """The deadline came before the tool was done."""


class DefinitionError(FerruleError):
    """A programmer's mistake; the text says what to change."""
