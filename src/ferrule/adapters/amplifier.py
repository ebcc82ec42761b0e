"""amplifier, both ways: a runner as a module of tools, and tools of modules as ours. See docs/frameworks/amplifier.md.

    mount = amplifier.mount(runner)                                     # a module's `mount(coordinator, config)`
    async with amplifier.load(tool_bash.mount, config) as coordinator:  # their module, for a runner
        runner = Runner(coordinator.tools)

The hooks of a coordinator get `tool:pre`, and `tool:post` or `tool:error`, once for each call: from the orchestrator if
it emits its own `tool:pre`, else from here.

Read in amplifier-core 2.0.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, TypeAlias

from amplifier_core import HookResult, ModuleCoordinator
from amplifier_core import ToolResult as TheirResult
from amplifier_core.approval import ApprovalTimeoutError
from amplifier_core.events import PROMPT_SUBMIT, PROVIDER_REQUEST, TOOL_ERROR, TOOL_POST, TOOL_PRE

from ferrule.adapters.adapter import (
    Adapter,
    check_context_function,
    check_runner,
    describe_media,
    is_text_only,
    read_tool_list,
    result_from_outside_error,
)
from ferrule.definition.decorator import to_tool
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.runner import Runner
from ferrule.security.characters import remove_hidden
from ferrule.types import Approver, Executable, Middleware, Next
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, Text, to_json_text
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, deny
from ferrule.values.frozen import thaw
from ferrule.values.result import ToolResult

CleanUp: TypeAlias = Callable[[], Awaitable[None]]
Mount: TypeAlias = Callable[..., Awaitable[Any]]
"""`async mount(coordinator, config)`, which returns a clean-up or `None`."""

PROGRESS = "tool:progress"
"""The event of the hooks for a tool's `context.progress`: `done`, `total` and `message`."""

_ALLOW, _DENY = "Allow", "Deny"
_CONTINUE = HookResult(action="continue")
_RUNS_LAST = 1_000_000
"""The priority of a hook that runs after all others. If an earlier one denies, it ends the chain."""
_INPUTS: ContextVar[list[Any] | None] = ContextVar("ferrule.adapters.amplifier", default=None)
"""For an event emitted from here, the inputs seen by the last hook. Hooks run in the context of the emitter. amplifier
drops the change of one hook if another one asks a person.
"""

_RUNNING: ContextVar[tuple[ModuleCoordinator, ...]] = ContextVar("ferrule.adapters.amplifier.above", default=())
"""The coordinators that are running a tool of ours here. A session within a session has its own coordinator and
dispatches.
"""
_CLAIMED = "claimed by ferrule"
"""The key that marks an orchestrator's dispatch context as taken by a call. Each context is a dict of its own."""


def to_context(coordinator: ModuleCoordinator) -> ToolContext[Any]:
    """Return a context with the coordinator's session, and the coordinator itself as `deps`."""
    return ToolContext(session=coordinator.session_id, deps=coordinator)


def mount(
    runner: Runner, *, context: Callable[[ModuleCoordinator], ToolContext[Any]] | None = None
) -> Callable[..., Awaitable[CleanUp]]:
    """Return the `mount(coordinator, config=None)` of a module with the runner's tools; it returns a clean-up.

    If the runner has no approver, the coordinator's approval system is asked.

    Args:
        context: The function that makes the context of the calls.

    Raises:
        DefinitionError: `runner` is no runner. `mount(coordinator)` raises it if a tool may ask, and neither the runner
            nor the coordinator has anybody to ask.
    """
    check_runner("amplifier", runner)
    make_call_context = check_context_function("amplifier", context, to_context)

    async def mount(coordinator: ModuleCoordinator, config: Mapping[str, Any] | None = None) -> CleanUp:
        asking = runner.approve is None and coordinator.approval_system is not None
        adapter = Adapter(
            runner.replace(approve=approver(coordinator)) if asking else runner, "amplifier", suspends=False
        )
        announced_calls = _AnnouncedCalls(coordinator)
        mounted = [
            _MountedTool(adapter, tool, coordinator, announced_calls, make_call_context) for tool in runner.tools
        ]

        async def clean_up() -> None:
            announced_calls.unregister()
            for one in mounted:
                if coordinator.get("tools", one.name) is one:
                    await coordinator.unmount("tools", name=one.name)

        for one in mounted:
            await coordinator.mount("tools", one, name=one.name)
        return clean_up

    return mount


def approver(coordinator: ModuleCoordinator, *, timeout: float = 300.0) -> Approver:
    """Return an approver that asks the coordinator's approval system. Any answer except its "Allow" denies.

    Args:
        timeout: The seconds that a person has.
    """

    async def ask_their_system(call: ToolCall, decision: Decision, context: ToolContext[Any]) -> Decision:
        system = coordinator.approval_system
        if system is None:
            return deny("the coordinator has no approval system")
        if decision.into is not None or decision.schema is not None:
            return deny("a value is needed, and the approval system of amplifier answers only yes or no")
        prompt, _ = remove_hidden(f"{decision.reason}\n{call.name} {to_json_text(thaw(call.arguments))}")
        try:
            answer = await system.request_approval(prompt, [_ALLOW, _DENY], timeout, "deny")
        except ApprovalTimeoutError:
            return deny("nobody answered in time")
        return allow() if answer == _ALLOW else deny("a person said no")

    return ask_their_system


def from_tools(theirs: Iterable[object] | Mapping[str, object]) -> Toolset:
    """Return amplifier's tools as ours. A mapping, such as `coordinator.get("tools")`, gives them their names.

    Raises:
        DefinitionError: An object has no name or no `execute`.
    """
    if isinstance(theirs, Mapping):
        return Toolset([_to_our_tool(name, one) for name, one in theirs.items()])
    return Toolset([_to_our_tool(getattr(one, "name", ""), one) for one in read_tool_list("amplifier", theirs)])


class Coordinator(ModuleCoordinator):
    """A coordinator with modules loaded by `load`, without a session of amplifier.

    Args:
        session_id: The session for the modules.
        approval_system: The system that `approver` asks.
    """

    def __new__(cls, session_id: str = "ferrule", approval_system: Any = None) -> Coordinator:
        config = {"session": {"orchestrator": "ferrule", "context": "ferrule"}}
        session = SimpleNamespace(session_id=session_id, parent_id=None, config=config)
        return super().__new__(cls, session, approval_system, None)  # type: ignore[no-any-return]

    def __init__(self, session_id: str = "ferrule", approval_system: Any = None) -> None:
        self.hooks.register(TOOL_PRE, _record_input, _RUNS_LAST, "ferrule input")

    async def load(self, mount: Mount, config: Mapping[str, Any] | None = None) -> None:
        """Mount a module. Its clean-up is called when the coordinator is cleaned up."""
        self.register_cleanup(await mount(self, dict(config or {})))

    @property
    def tools(self) -> Toolset:
        """The mounted tools. The hooks are notified of their calls."""
        hooks = _make_hook_middleware(self)
        return from_tools(self.get("tools")).map(lambda tool: tool.replace(around=(hooks, *tool.around)))


@asynccontextmanager
async def load(
    mount: Mount,
    config: Mapping[str, Any] | None = None,
    *,
    session_id: str = "ferrule",
    approval_system: Any = None,
) -> AsyncIterator[Coordinator]:
    """Return a coordinator with a loaded module. On exit it calls all clean-ups, the last first, even if one fails.

        async with amplifier.load(tool_web.mount, {"timeout": 5}) as coordinator:
            await coordinator.load(tool_bash.mount)
            runner = Runner(coordinator.tools, approve=amplifier.approver(coordinator))

    See docs/frameworks/amplifier.md.
    """
    coordinator = Coordinator(session_id, approval_system)
    try:
        await coordinator.load(mount, config)
        yield coordinator
    finally:
        await coordinator.cleanup()


class _MountedTool:
    """A tool of the runner for orchestrators."""

    def __init__(
        self,
        adapter: Adapter,
        tool: Tool,
        coordinator: ModuleCoordinator,
        announced_calls: _AnnouncedCalls,
        to_context: Callable[[ModuleCoordinator], ToolContext[Any]],
    ) -> None:
        self.name, self.description = tool.wire_name, tool.description
        self.input_schema: dict[str, Any] = thaw(tool.input_schema)
        self._adapter, self._tool, self._coordinator = adapter, tool, coordinator
        self._announced_calls, self._to_context = announced_calls, to_context

    async def execute(self, input: dict[str, Any]) -> TheirResult:
        id = self._claim_dispatch_id()  # before any wait: orchestrators run calls beside each other
        token = _RUNNING.set((*_RUNNING.get(), self._coordinator))
        try:
            return _to_their_result(await self._execute_call(id, input))
        finally:
            _RUNNING.reset(token)

    def _claim_dispatch_id(self) -> str | None:
        """Return the orchestrator's id of this call, empty if it sets none.

        Returns `None` if a running tool makes this call itself: then the orchestrator's id is for that tool. Each id is
        used once.
        """
        if any(above is self._coordinator for above in _RUNNING.get()):
            return None
        by_task = getattr(self._coordinator, "_tool_dispatch_contexts", None) or {}
        dispatch = (
            by_task.get(asyncio.current_task()) or getattr(self._coordinator, "_tool_dispatch_context", None) or {}
        )
        id = str(dispatch.get("tool_call_id") or "")
        if dispatch.get(_CLAIMED) or self._announced_calls.has_other_tool(self.name, id):
            return None
        if id:
            dispatch[_CLAIMED] = True
        return id

    async def _execute_call(self, id: str | None, input: dict[str, Any]) -> ToolResult:
        call_id = id or ""
        if id is not None and self._announced_calls.claim(self.name, id):
            return await self._run(call_id, input)
        return await _run_with_hooks(
            self._coordinator, self.name, call_id, input, lambda judged: self._run(call_id, judged)
        )

    async def _run(self, id: str, input: dict[str, Any]) -> ToolResult:
        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            data = {"tool_name": self.name, "tool_call_id": id, "done": done, "total": total, "message": message}
            await self._coordinator.hooks.emit(PROGRESS, data)

        call = ToolCall(id, self._tool.name, input)
        try:
            return await self._adapter.run(call, self._to_context(self._coordinator), on_progress)
        except Exception as error:  # an orchestrator would show the model its text
            return result_from_outside_error(self._tool.name, error)


class _AnnouncedCalls:
    """A counter of the calls that an orchestrator has announced to the hooks and not made yet, by tool and id."""

    def __init__(self, coordinator: ModuleCoordinator) -> None:
        self._announced: Counter[tuple[str, str]] = Counter()
        name = f"ferrule {id(self)}"
        self._unregister = [
            coordinator.hooks.register(TOOL_PRE, self._on_call, _RUNS_LAST, f"{name} calls"),
            *(
                coordinator.hooks.register(event, self._on_turn, _RUNS_LAST, f"{name} {event}")
                for event in (PROMPT_SUBMIT, PROVIDER_REQUEST)
            ),
        ]

    async def _on_call(self, event: str, data: dict[str, Any]) -> HookResult:
        if _INPUTS.get() is None:
            self._announced[str(data.get("tool_name")), str(data.get("tool_call_id") or "")] += 1
        return await _record_input(event, data)

    async def _on_turn(self, event: str, data: dict[str, Any]) -> HookResult:
        self._announced.clear()  # calls that a person denied never came
        return _CONTINUE

    def has_other_tool(self, name: str, id: str) -> bool:
        """Return whether an orchestrator has announced this id for a call of another tool, which is running now."""
        return bool(id) and any(key[1] == id and key[0] != name for key in self._announced)

    def claim(self, name: str, id: str) -> bool:
        """Return whether an orchestrator has announced this call, and use the announcement up.

        If either has no id, an announcement of the same tool counts.
        """
        call_id = [key for key in self._announced if key[0] == name and (key[1] in (id, "") or not id)]
        if not call_id:
            return False
        key = max(call_id, key=lambda key: key[1] == id)
        self._announced[key] -= 1
        if not self._announced[key]:
            del self._announced[key]
        return True

    def unregister(self) -> None:
        for unregister in self._unregister:
            unregister()


async def _record_input(event: str, data: dict[str, Any]) -> HookResult:
    if (inputs := _INPUTS.get()) is not None:
        inputs.append(data.get("tool_input"))
    return _CONTINUE


async def _run_with_hooks(
    coordinator: ModuleCoordinator,
    name: str,
    id: str,
    input: dict[str, Any],
    run: Callable[[dict[str, Any]], Awaitable[ToolResult]],
) -> ToolResult:
    """Return the result of `run`, as orchestrators do: hooks may deny the call, ask, or change its input.

    They are notified of its end.
    """
    data = {"tool_name": name, "tool_call_id": id, "tool_input": input}
    decision, inputs = await _emit(coordinator, TOOL_PRE, data)
    if decision.action == "deny" or not inputs:  # there are none after the clean-up of the module
        reason = f"Denied by a hook: {decision.reason or 'no reason given'}. Nothing was run."
        result = ToolResult(error=reason, status="denied", executed=False)
    else:
        data["tool_input"] = inputs[-1]
        try:
            result = await run(inputs[-1])
        except BaseException as error:
            await _emit(coordinator, TOOL_ERROR, data | {"error": {"type": type(error).__name__, "msg": "cancelled"}})
            raise
    if result.status == "suspended":  # it has not ended
        return result
    if result.success:
        await _emit(coordinator, TOOL_POST, data | {"result": _to_their_result(result).model_dump(mode="json")})
    else:
        await _emit(coordinator, TOOL_ERROR, data | {"error": {"type": result.status, "msg": result.text}})
    return result


async def _emit(coordinator: ModuleCoordinator, event: str, data: dict[str, Any]) -> tuple[HookResult, list[Any]]:
    """Return the answer of the hooks, and the input that the last of them got, if none ended the chain."""
    inputs: list[Any] = []
    token = _INPUTS.set(inputs)
    try:
        decision = await coordinator.hooks.emit(event, data)
    finally:
        _INPUTS.reset(token)
    return await coordinator.process_hook_result(decision, event, str(data["tool_name"])), inputs


def _make_hook_middleware(coordinator: ModuleCoordinator) -> Middleware:
    async def notify_hooks(call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
        sent = thaw(call.arguments)

        async def run(input: dict[str, Any]) -> ToolResult:
            return await next(call if input == sent else call.replace(arguments=input), context)

        return await _run_with_hooks(coordinator, call.name, call.id, sent, run)

    return notify_hooks


def _to_their_result(result: ToolResult) -> TheirResult:
    error = None if result.success else {"message": result.text, "type": result.status}
    media = not is_text_only(result)
    content = [_to_their_block(block) for block in result.content] if media else None
    return TheirResult(success=result.success, output=result.text, error=error, content=content)


def _to_their_block(block: Block) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    if block.kind == "image" and block.data is not None:
        data = base64.b64encode(block.data).decode()
        return {"type": "image", "source": {"type": "base64", "media_type": block.mime_type, "data": data}}
    return {"type": "text", "text": describe_media(block)}


def _to_our_tool(name: str, theirs: Any) -> Tool:
    if not callable(execute := getattr(theirs, "execute", None)):
        raise DefinitionError(f"{theirs!r} is no tool of amplifier: it has no execute(input)")

    async def execute_theirs(payload: dict[str, Any]) -> Any:
        return _to_our_result(await execute(payload))

    schema = getattr(theirs, "input_schema", None) or {"type": "object"}
    make_call_context: Executable = SimpleNamespace(name=name, execute=execute_theirs, input_schema=schema)
    return to_tool(make_call_context).replace(description=theirs.description)


def _to_our_result(result: object) -> object:
    if not isinstance(result, TheirResult) or not result.content:
        return result
    return ToolResult(
        result.output,
        None if result.success else str((result.error or {}).get("message") or result.output),
        content=[_to_our_block(block) for block in result.content],
    )


def _to_our_block(block: Any) -> Block:
    if block.type == "text":
        return Text(block.text)
    return Media("image", base64.b64decode(block.source["data"]), block.source["media_type"])
