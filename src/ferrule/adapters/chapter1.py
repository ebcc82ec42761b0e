"""The registry of "Chapter 1 -- Tool System". Its tools run through a runner.

    registry = ToolRegistry().register(ReadFileTool())
    result = await registry.get("read_file").execute(payload, context)

See docs/coming-from.md#from-chapter-1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Protocol

from ferrule.definition.decorator import to_tool
from ferrule.definition.handler import is_async
from ferrule.definition.options import accepts
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.runner import Runner
from ferrule.types import Executable, ToolForm
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.frozen import thaw
from ferrule.values.result import ToolResult

__all__ = ["Context", "RegisteredTool", "ToolRegistry", "assemble_tool_pool"]

_get_place = attrgetter("session", "principal", "fields.working_directory")
_CONTEXTS: ContextVar[tuple[ToolContext[Any] | None, Any]] = ContextVar(
    "ferrule.adapters.chapter1", default=(None, None)
)
_PROTOCOL_MEMBERS = ("name", "description", "input_schema", "is_read_only", "is_concurrency_safe")


class Context(Protocol):
    """A context of the chapter's own class: its tools get this very object. See docs/coming-from.md#from-chapter-1."""

    @property
    def working_directory(self) -> str: ...

    @property
    def session_id(self) -> str: ...


class ToolRegistry:
    """Tools by their names, and their definitions for each API. It never changes: `register` returns another.

    See docs/coming-from.md#from-chapter-1.

    Args:
        runner: The runner of the tools, with its guards, approver and limits; its own tools are in the registry too. By
            default, a plain one.

    Attributes:
        runner: The runner that has all tools of this registry.
    """

    def __init__(self, runner: Runner | None = None) -> None:
        self.runner = Runner([]) if runner is None else runner

    def register(self, tool: ToolForm) -> ToolRegistry:
        """Return a registry with one more tool, or with another in place of the tool with its name.

        Args:
            tool: An object of the chapter's protocol, or any form of a tool.

        Raises:
            DefinitionError: The object is no tool.
        """
        new, tools = _to_our_form(tool), self.runner.tools
        return ToolRegistry(self.runner.replace(tools=tools.replace(new) if new.name in tools else tools.register(new)))

    def get(self, name: str) -> RegisteredTool:
        """Return the tool of that name, in the form that the chapter's loops call.

        Raises:
            KeyError: There is no such tool.
        """
        return RegisteredTool(self.runner, self.runner.tools.get(name))

    def to_anthropic_tools(self) -> list[dict[str, Any]]:
        """Return the definitions for Anthropic's Messages API."""
        return [{**_describe_tool(tool), "input_schema": thaw(tool.input_schema)} for tool in self.runner.tools]

    def to_openai_tools(self) -> list[dict[str, Any]]:
        """Return the definitions for OpenAI's Responses API.

        They set `strict`, because its default is the strict mode.
        """
        return [
            {"type": "function", **_describe_tool(tool), "parameters": thaw(tool.input_schema), "strict": False}
            for tool in self.runner.tools
        ]


def _describe_tool(tool: Tool) -> dict[str, Any]:
    return {"name": tool.wire_name, "description": tool.description}


@dataclass(frozen=True)
class RegisteredTool:
    """A tool of a registry. `execute` runs it through the runner, and always asks, even if the caller has asked before.

    See docs/coming-from.md#from-chapter-1.
    """

    _runner: Runner
    _tool: Tool

    @property
    def name(self) -> str:
        """Its name."""
        return self._tool.name

    @property
    def description(self) -> str:
        """Its description for the model."""
        return self._tool.description

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of its parameters; a copy."""
        return thaw(self._tool.input_schema)  # type: ignore[no-any-return]

    async def execute(
        self, payload: Mapping[str, Any], context: Context | ToolContext[Any] | None = None
    ) -> ToolResult:
        """Ask whether the call may run, and run it.

        Returns:
            One result in every case: `output`, `error` and `duration_ms`, as in the chapter. If a middleware made the
                model's text differ from the output's, the output is that text.
        """
        with _pass_context(context) as context:
            result = await self._runner.run(ToolCall("", self.name, payload), context)
        if not result.success or ToolResult(result.output).text == result.text:
            return result
        return result.replace(output=result.text)

    async def check_permissions(
        self, payload: Mapping[str, Any], context: Context | ToolContext[Any] | None = None
    ) -> None:
        """Ask the guards without a run. Wrong arguments are reported by `execute`.

        Raises:
            PermissionError: A guard denies; or one asks, and the runner has no approver.
        """
        with _pass_context(context) as context:
            decision = await self._runner.decide(ToolCall("", self.name, payload), context)
        asks_nobody = decision.kind == "ask" and self._runner.approve is None
        if asks_nobody or (decision.kind == "deny" and decision.rule is not None):
            raise PermissionError(decision.reason)

    def is_read_only(self) -> bool:
        """Return whether it changes nothing, for any arguments."""
        return self._tool.read_only is True

    def is_concurrency_safe(self) -> bool:
        """Return whether it may run beside others, for any arguments."""
        return self._tool.parallel is True


def _to_our_context(original: Context | ToolContext[Any] | None) -> ToolContext[Any]:
    if original is None or isinstance(original, ToolContext):
        return original or ToolContext()
    try:
        return ToolContext(working_directory=original.working_directory, session=original.session_id)
    except AttributeError as error:
        raise DefinitionError(
            f"a context must have a working_directory and a session_id, not {original!r}: {error}"
        ) from None


@contextmanager
def _pass_context(original: Context | ToolContext[Any] | None) -> Iterator[ToolContext[Any]]:
    """Provide our context. Meanwhile, tools of the chapter's protocol get the original one."""
    context = _to_our_context(original)
    token = _CONTEXTS.set((context, original))
    try:
        yield context
    finally:
        _CONTEXTS.reset(token)


def _to_their_context(context: ToolContext[Any]) -> object:
    ours, original = _CONTEXTS.get()
    return context if ours is None or original is None or _get_place(ours) != _get_place(context) else original


def _to_our_form(form: ToolForm) -> Tool:
    if isinstance(form, Tool | Mapping | type) or not hasattr(form, "execute"):
        return to_tool(form)
    members = {key: value for key in _PROTOCOL_MEMBERS if (value := getattr(form, key, None)) is not None}
    for key in ("execute", "check_permissions"):
        if (function := getattr(form, key, None)) is not None:
            members[key] = _pass_their_context(function)
    proxy: Executable = SimpleNamespace(**members)
    return to_tool(proxy)


def _pass_their_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, to be called with the caller's own context."""
    if not accepts(function, "(payload, context)"):
        return function

    def call(payload: Any, context: ToolContext[Any]) -> Any:
        return function(payload, _to_their_context(context))

    async def await_call(payload: Any, context: ToolContext[Any]) -> Any:
        return await function(payload, _to_their_context(context))

    return await_call if is_async(function) else call


def assemble_tool_pool(
    built_in: Iterable[ToolForm], mcp_tools: Iterable[ToolForm], deny_rules: Iterable[str]
) -> Toolset:
    """Return built-in tools and MCP tools as one toolset, in a stable order for prompt caches.

    See docs/coming-from.md#from-chapter-1.

    Each part is sorted by name. Built-in tools come first, and win if an MCP tool has the same name. Tools with a name
    for one of `deny_rules` (names or globs) are left out.
    """
    globs = (deny_rules,) if isinstance(deny_rules, str) else tuple(deny_rules)
    chosen: dict[str, Tool] = {}
    for part in (built_in, mcp_tools):
        for item in sorted(map(to_tool, part), key=lambda item: item.name):
            if not any(fnmatchcase(item.name, glob) for glob in globs):
                chosen.setdefault(item.name, item)
    return Toolset(chosen.values())
