"""Ferrule binds tools to language models: define a tool once, offer it to any model, run each call through one path."""

import ferrule.security.import_path  # noqa: F401  (before all else: what stands first on the path is imported by any other line)

# isort: split
from typing import TYPE_CHECKING

from ferrule.definition.bounds import Sizes, Waits
from ferrule.definition.decorator import build_tool, tool
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import (
    DefinitionError,
    FerruleError,
    GuardError,
    HandlerError,
    NotStartedError,
    RemoteError,
    ToolError,
    ToolTimeoutError,
    UnknownOutcomeError,
    ValidationError,
    WorkerDiedError,
)
from ferrule.runner import Runner
from ferrule.scheduling.clock import Clock
from ferrule.types import Approver, Guard, Journal, Middleware, Observer
from ferrule.values.call import ToolCall
from ferrule.values.content import Media, Text
from ferrule.values.context import CONTEXT, ToolContext
from ferrule.values.decision import Decision, allow, ask, deny
from ferrule.values.event import Event
from ferrule.values.result import Status, ToolResult

if TYPE_CHECKING:
    from pydantic import Field

    from ferrule.definition.handler_class import ToolHandler
    from ferrule.kernel.batch import Batch
    from ferrule.mcp import serve as serve
    from ferrule.values.deferred import Deferred, WaitingFor
    from ferrule.values.diff import Diff
    from ferrule.values.input import Answer, InputRequired

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Approver",
    "CONTEXT",
    "Batch",
    "Clock",
    "Decision",
    "Deferred",
    "DefinitionError",
    "Diff",
    "Event",
    "FerruleError",
    "Field",
    "Guard",
    "GuardError",
    "HandlerError",
    "InputRequired",
    "Journal",
    "Media",
    "Middleware",
    "RemoteError",
    "NotStartedError",
    "Observer",
    "Runner",
    "Sizes",
    "Status",
    "Text",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolHandler",
    "ToolResult",
    "ToolTimeoutError",
    "UnknownOutcomeError",
    "Toolset",
    "ValidationError",
    "WaitingFor",
    "Waits",
    "WorkerDiedError",
    "allow",
    "ask",
    "build_tool",
    "deny",
    "tool",
]


_IMPORTED_LATER = {
    "Answer": "ferrule.values.input.Answer",
    "Batch": "ferrule.kernel.batch.Batch",
    "Deferred": "ferrule.values.deferred.Deferred",
    "Diff": "ferrule.values.diff.Diff",
    "Field": "pydantic.Field",
    "InputRequired": "ferrule.values.input.InputRequired",
    "ToolHandler": "ferrule.definition.handler_class.ToolHandler",
    "WaitingFor": "ferrule.values.deferred.WaitingFor",
    "serve": "ferrule.mcp.serve",
}
"""Each takes long to import, and most programs never use it."""


def __getattr__(name: str) -> object:
    if name in _IMPORTED_LATER:
        from pkgutil import resolve_name

        return resolve_name(_IMPORTED_LATER[name])
    raise AttributeError(f"module 'ferrule' has no attribute {name!r}")
