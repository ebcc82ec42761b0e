"""Claude Agent SDK: the guards, approver and journal of a runner for each tool call of an agent, and the runner's tools
for it. See docs/frameworks/claude-agent.md.

    async with claude_agent.client(runner, ClaudeAgentOptions(model="claude-sonnet-5")) as client:
        await client.query("Tidy up the notes.")

A hook before each call starts a call of the runner, for a tool of Claude Code a call of its mirror. After the guards,
the approver and the intent in the journal, the `inside` middleware outside all others lets Claude Code go on and waits
until it runs the tool. Read in claude-agent-sdk 0.2.189 with Claude Code 2.1.332.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NotRequired, Required, TypeAlias, get_args, get_origin, get_type_hints

import mcp_types as wire
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookInput,
    HookMatcher,
    Message,
    PermissionResultAllow,
    PermissionResultDeny,
    ResultMessage,
    SdkMcpTool,
    ToolPermissionContext,
    ToolResultBlock,
    UserMessage,
)
from mcp.server import Server
from pydantic import TypeAdapter

from ferrule.adapters.adapter import Adapter, check_context_function, read_tool_list, result_from_outside_error
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError, ToolError, UnknownOutcomeError
from ferrule.mcp.content import make_annotations, to_wire_result
from ferrule.mcp.results import to_result
from ferrule.runner import Runner
from ferrule.stores.store import Store
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision
from ferrule.values.frozen import thaw
from ferrule.values.json_text import is_same_json
from ferrule.values.result import ToolResult

log = logging.getLogger("ferrule")
ContextFunction: TypeAlias = Callable[[HookInput], ToolContext[Any]]
Properties: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The parameters of a tool that guards know, with a JSON Schema each."""

_FRAMEWORK = "Claude Agent SDK"
_SERVER = "ferrule"
_PREFIX = f"mcp__{_SERVER}__"
_CALL_ID = "claudecode/toolUseId"
_HOOK_SECONDS = 86_400
"""A person may take a day to answer in place. Claude Code does not run a call whose hook is late."""
_TEXT: Mapping[str, Any] = {"type": "string"}
_PATH: Mapping[str, Any] = {"type": "string", "format": "path"}
_CHANGING: Mapping[str, Properties] = {
    "Agent": {"prompt": _TEXT, "subagent_type": _TEXT},
    "Bash": {"command": _TEXT},
    "Edit": {"file_path": _PATH, "old_string": _TEXT, "new_string": _TEXT},
    "NotebookEdit": {"notebook_path": _PATH, "new_source": _TEXT},
    "Skill": {"skill": _TEXT},
    "TaskStop": {"task_id": _TEXT},
    "Write": {"file_path": _PATH, "content": _TEXT},
}
_READING: Mapping[str, Properties] = {
    "Glob": {"path": _PATH, "pattern": _TEXT},
    "Grep": {"path": _PATH, "pattern": _TEXT},
    "Read": {"file_path": _PATH},
    "TaskCreate": {},
    "TaskGet": {},
    "TaskList": {},
    "TaskUpdate": {},
    "ToolSearch": {"query": _TEXT},
    "WebFetch": {"url": {"type": "string", "format": "uri"}, "prompt": _TEXT},
    "WebSearch": {"query": _TEXT},
}
"""Tools that only read, or change no more than the agent's own list of tasks."""
_KEY_FORMS = (Required, NotRequired)
_MODES = (None, "default", "plan")
_UNJUDGED = "No guard has judged this call. Nothing was run."
_DENIED_ELSEWHERE = "the permission rules of Claude Code denied it"
_CANNOT_RUN_HERE = "only Claude Code can run it, and no call of Claude Code waits for it here"


@dataclass(frozen=True)
class Question:
    """A call that waits for a person's answer. See docs/frameworks/claude-agent.md.

    Attributes:
        session: The session to resume, `ClaudeAgentOptions(resume=…)`.
        call_id: The key of the answer, `client(runner, answers={…})`.
        tool: The name of the tool.
        arguments: The arguments with which it would run.
        reason: The reason to ask.
    """

    session: str
    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    reason: str


def client(
    runner: Runner,
    options: ClaudeAgentOptions | None = None,
    *,
    theirs: Mapping[str, Properties] | None = None,
    answers: Mapping[str, Decision | bool] | None = None,
    context: ContextFunction | None = None,
    records: Store | None = None,
) -> GuardedClient:
    """Return a client of the SDK whose tool calls all go through the runner: those of the runner's tools, which it
    offers to the model, and those of Claude Code's tools, of MCP servers and in sub-agents.

    Args:
        options: The options of the SDK. Options with which a call could pass the guards are refused.
        theirs: Further tools of Claude Code or of MCP servers, such as `{"mcp__shop__price": {}}`, each with the
            parameters that guards know. All other tools that no guard knows are denied.
        answers: The answers to calls that wait, by call id: `True`, `False`, `deny("reason")` or
            `allow(arguments={…})`. Resume the session with them.
        context: Make the context of a call from the input of its hook; `to_context` by default.
        records: The store of records until they are answered; the journal's store by default.

    Raises:
        DefinitionError: `runner` is no runner, or an option is refused.
    """
    runner = Adapter(runner, _FRAMEWORK, suspends=True, records=records).runner  # with a journal that all clients share
    gate = _Gate(runner, theirs or {}, answers or {}, check_context_function(_FRAMEWORK, context, to_context), records)
    return GuardedClient(gate, _guard_options(options or ClaudeAgentOptions(), gate))


def to_context(given: HookInput) -> ToolContext[Any]:
    """Return a context with the session and the working directory of the agent, and in its metadata the id of the
    sub-agent as `agent`. The SDK has no principal.
    """
    agent = {"agent": given["agent_id"]} if given.get("agent_id") else {}
    return ToolContext(session=given["session_id"], working_directory=given["cwd"], metadata=agent)


class GuardedClient(ClaudeSDKClient):
    """The client of the SDK, from `client`. See docs/frameworks/claude-agent.md."""

    def __init__(self, gate: _Gate, options: ClaudeAgentOptions) -> None:
        super().__init__(options)
        self._gate = gate

    @property
    def question(self) -> Question | None:
        """The call that waits for a person after the run, or None."""
        return self._gate.question

    async def connect(self, prompt: Any = None) -> None:
        """Connect as the SDK does. Claude Code gets the runner's tools after it has the hooks."""
        await super().connect(prompt)
        self._gate.connected.set()

    async def query(self, prompt: Any, session_id: str = "default") -> None:
        """Send a request as the SDK does. An open question is not asked any more."""
        self._gate.question = None
        await super().query(prompt, session_id)

    async def receive_messages(self) -> AsyncIterator[Message]:
        """Yield the messages of the SDK. They settle the calls whose outcome no hook has told."""
        async for message in super().receive_messages():
            await self._gate.read(message)
            yield message

    async def disconnect(self) -> None:
        """Disconnect as the SDK does. The outcome of a call that still runs in Claude Code is unknown then."""
        try:
            await super().disconnect()
        finally:
            await self._gate.close()


# -- the gate ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _OpenCall:
    """A call from its first hook until the runner has its result.

    Attributes:
        is_ours: Whether it is of a tool of the runner.
        is_allowed: Whether Claude Code may run it.
        judged: The judged arguments, as soon as the call may run.
        outcome: The outcome of their tool, or an exception; for ours None, when Claude Code calls it.
        task: The call in the runner.
    """

    call: ToolCall
    context: ToolContext[Any]
    is_ours: bool
    judged: asyncio.Future[Mapping[str, Any]]
    outcome: asyncio.Future[Any]
    task: asyncio.Task[ToolResult]
    is_allowed: bool = False

    async def settle(self, outcome: object) -> None:
        """Pass the outcome to the runner, and wait until the journal has it."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)
        await asyncio.wait([self.task])  # a cancelled hook does not cancel the call
        if not self.task.cancelled() and isinstance(error := self.task.exception(), Exception):
            result_from_outside_error(self.call.name, error)


class _Gate:
    """The hooks and the server of one client."""

    def __init__(
        self,
        runner: Runner,
        theirs: Mapping[str, Properties],
        answers: Mapping[str, Decision | bool],
        make_context: ContextFunction,
        records: Store | None,
    ) -> None:
        mirrors = _make_mirrors(theirs, self._run_theirs)
        self._tools = {_PREFIX + tool.wire_name: tool for tool in runner.tools}
        self._names = {**self._tools, **{tool.name: tool for tool in mirrors}}
        guarded = runner.replace(tools=[*runner.tools, *mirrors], inside=[self._wait_for_call, *runner.inside])
        self._adapter = Adapter(guarded, _FRAMEWORK, suspends=True, records=records)
        self._answers, self._make_context = answers, make_context
        self._open: dict[str, _OpenCall] = {}
        self._seen: set[str] = set()
        self._answered: set[str] = set()
        """The calls of this run whose results the model reads."""
        self.question: Question | None = None
        self.connected = asyncio.Event()
        self.server = Server(_SERVER, on_list_tools=self._list_tools, on_call_tool=self._call_tool)

    # -- hooks --

    async def before(self, given: Any, call_id: str | None, _: object) -> Any:
        """Judge a call, and let Claude Code run it, deny it, or end its run until a person has answered."""
        try:
            return await self._judge(given)
        except Exception as error:  # the model would read its text
            return _decide("deny", result_from_outside_error(given["tool_name"], error).text)

    async def _judge(self, given: Any) -> Any:
        name, sent = given["tool_name"], given["tool_input"]
        if (tool := self._names.get(name)) is None:
            return _decide("deny", f"No guard knows the tool {name}. Nothing was run.")
        call = ToolCall(given["tool_use_id"], tool.name, sent)
        opened = self._start(call, self._make_context(given), is_ours=name in self._tools)
        try:
            either: list[asyncio.Future[Any]] = [opened.task, opened.judged]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the run was interrupted while a person was asked
            opened.task.cancel()
            raise
        if not opened.task.done():
            opened.is_allowed, judged = True, opened.judged.result()
            changed = {} if opened.is_ours or is_same_json(judged, sent) else {"updatedInput": thaw(judged)}
            return _decide("allow", "allowed by Ferrule", **changed)
        result = opened.task.result()
        if opened.is_ours and result.success:  # it ran before, and `_call_tool` returns its result
            opened.is_allowed, self._open[call.id] = True, opened
            return _decide("allow", "allowed by Ferrule")
        if given.get("agent_id") or self.question is not None:
            # Claude Code keeps one waiting call of a turn, the last, and none of a sub-agent.
            result = await self._adapter.deny_if_waiting(result, opened.context)
        if (pending := result.pending) is None:
            return _decide("deny", result.text)
        arguments, reason = thaw(pending["arguments"]), pending["reason"] or ""
        self.question = Question(given["session_id"], call.id, tool.name, arguments, reason)
        return _decide("defer", reason)

    def _start(self, call: ToolCall, context: ToolContext[Any], *, is_ours: bool) -> _OpenCall:
        """Start the call in the runner."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._begin(call, context))
        opened = _OpenCall(call, context, is_ours, loop.create_future(), loop.create_future(), task)
        self._open[call.id] = opened
        self._seen.add(call.id)
        task.add_done_callback(lambda _: self._open.pop(call.id, None))
        return opened

    async def _begin(self, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        answer = self._answers.get(call.id)
        if answer is None:
            return await self._adapter.run(call, context)
        return await self._adapter.answer(call, context, answer)

    async def after(self, given: Any, call_id: str | None, _: object) -> Any:
        """Tell the runner the outcome of a tool of Claude Code."""
        opened = self._open.get(given["tool_use_id"])
        if opened is not None and not opened.is_ours:
            await opened.settle(_read_outcome(given))
        elif given["tool_use_id"] not in self._seen:
            log.error("Claude Code ran a call of tool %r that no guard has judged", given["tool_name"])
        return {}

    async def answer_prompt(
        self, name: str, given: dict[str, Any], context: ToolPermissionContext
    ) -> PermissionResultAllow | PermissionResultDeny:
        """Allow the calls that a hook has judged. Claude Code asks about each call, also if its hooks are off."""
        opened = self._open.get(context.tool_use_id or "")
        if opened is not None and opened.is_allowed:
            return PermissionResultAllow()
        return PermissionResultDeny(message=_UNJUDGED)

    # -- handlers --

    async def _wait_for_call(self, call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
        """Let Claude Code go on, and wait until it calls this tool of the runner."""
        opened = self._open.get(call.id)
        if opened is None or not opened.is_ours:
            return await next(call, context)
        await _hand_over(opened, context)
        if opened.outcome.result() is not None:
            return ToolResult(None, f"Claude Code did not start {call.name}. Nothing was run.", status="denied")
        return await next(call, context)

    async def _run_theirs(self, payload: dict[str, Any], context: ToolContext[Any]) -> object:
        """Let Claude Code run its tool, and return the outcome: the handler of the mirror."""
        assert context.call is not None
        opened = self._open.get(context.call.id)
        if opened is None:
            raise ToolError(_CANNOT_RUN_HERE, executed=False)
        await _hand_over(opened, context)
        if isinstance(outcome := opened.outcome.result(), Exception):
            raise outcome
        return outcome

    async def read(self, message: Message) -> None:
        """Settle calls without an outcome at the end of a run: denied by rules of Claude Code, or interrupted."""
        if isinstance(message, UserMessage) and not isinstance(message.content, str):
            self._answered |= {block.tool_use_id for block in message.content if isinstance(block, ToolResultBlock)}
        elif isinstance(message, ResultMessage):
            denied = {denial["tool_use_id"] for denial in message.permission_denials or ()}
            await self._settle_all(denied, ToolError(_DENIED_ELSEWHERE, executed=False))
            await self._settle_all(self._answered, UnknownOutcomeError("it was interrupted"))
            self._answered.clear()

    async def close(self) -> None:
        """Cancel the calls that did not reach Claude Code, and settle those that still run there."""
        for opened in [*self._open.values()]:
            if opened.is_ours or not opened.is_allowed:
                opened.task.cancel()
        await self._settle_all({*self._open}, UnknownOutcomeError("Claude Code has not told its outcome"))

    async def _settle_all(self, call_ids: set[str], outcome: ToolError) -> None:
        for opened in [self._open[call_id] for call_id in call_ids & self._open.keys()]:
            await opened.settle(outcome)

    # -- the runner's tools --

    async def _list_tools(self, ctx: Any, params: object) -> wire.ListToolsResult:
        await self.connected.wait()  # a resumed call waits for the tools: none starts before the hooks are there
        return wire.ListToolsResult(tools=[_to_wire_tool(tool) for tool in self._tools.values()])

    async def _call_tool(self, ctx: Any, params: wire.CallToolRequestParams) -> wire.CallToolResult:
        meta: Mapping[str, Any] = params.meta or {}
        opened, tool = self._open.get(meta.get(_CALL_ID, "")), self._names[_PREFIX + params.name]
        if opened is None or not opened.is_allowed or opened.outcome.done():
            return _to_call_result(ToolResult(None, _UNJUDGED, status="denied"), tool)
        opened.outcome.set_result(None)
        try:
            result = await self._adapter.deny_if_waiting(await opened.task, opened.context)
        except Exception as error:  # the model would read its text
            result = result_from_outside_error(tool.name, error)
        self._open.pop(opened.call.id, None)
        return _to_call_result(result, tool)


async def _hand_over(opened: _OpenCall, context: ToolContext[Any]) -> None:
    """Let Claude Code go on, and wait with the deadline paused: the time of Claude Code is not the tool's own."""
    if not opened.judged.done():
        assert context.call is not None
        opened.judged.set_result(context.call.arguments)
    await context.pause(0, lambda _: asyncio.wait([opened.outcome]), timed=False)


def _read_outcome(given: Mapping[str, Any]) -> object:
    """Return the outcome of a tool of Claude Code, or an exception, from the hook after its call."""
    if "error" not in given:
        return given["tool_response"]
    if given.get("is_interrupt"):
        return UnknownOutcomeError("it was interrupted")
    return ToolError(given["error"])


def _decide(decision: str, reason: str, **more: Any) -> dict[str, Any]:
    about = {"permissionDecision": decision, "permissionDecisionReason": reason, **more}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **about}}


def _make_mirrors(theirs: Mapping[str, Properties], handler: Callable[..., Any]) -> list[Tool]:
    """Return a tool for each tool of Claude Code, with the parameters that guards know. All others may come too."""
    known = {**_CHANGING, **_READING, **theirs}
    return [
        Tool(
            name,
            handler,
            description=f"The tool {name} of Claude Code.",
            input_schema={"type": "object", "properties": properties, "additionalProperties": True},
            read_only=name in _READING and name not in theirs,
            open_world=name in ("Bash", "WebFetch", "WebSearch") or name in theirs,
        )
        for name, properties in known.items()
    ]


def _to_wire_tool(tool: Tool) -> wire.Tool:
    return wire.Tool(
        name=tool.wire_name,
        description=tool.description or None,
        input_schema=thaw(tool.input_schema),
        annotations=make_annotations(tool),
        _meta={"anthropic/alwaysLoad": True},
    )


def _to_call_result(result: ToolResult, tool: Tool) -> wire.CallToolResult:
    sent = to_wire_result(result, tool, schema_listed=False, unlisted_types=())  # the model would read that alone
    return wire.CallToolResult.model_validate(sent)


# -- options -----------------------------------------------------------------------------------------------------------


def _guard_options(options: ClaudeAgentOptions, gate: _Gate) -> ClaudeAgentOptions:
    """Return the options with the gate.

    Raises:
        DefinitionError: With an option, a call could pass the guards.
    """
    for problem in _find_problems(options):
        raise DefinitionError(f"{_FRAMEWORK}: {problem}")
    hooks: dict[Any, list[HookMatcher]] = dict(options.hooks or {})
    hooks["PreToolUse"] = [HookMatcher(hooks=[gate.before], timeout=_HOOK_SECONDS, on_failure="block")]
    for event in ("PostToolUse", "PostToolUseFailure"):
        hooks[event] = [*hooks.get(event, ()), HookMatcher(hooks=[gate.after])]
    server: Any = {"type": "sdk", "name": _SERVER, "instance": gate.server}
    servers: Any = {**options.mcp_servers, _SERVER: server}
    rules = {"deny": _read_denials(options.settings), "ask": ["*"]}  # all that a hook has not judged is denied
    return replace(
        options,
        hooks=hooks,
        can_use_tool=gate.answer_prompt,
        mcp_servers=servers,
        setting_sources=[],
        settings=json.dumps({"permissions": rules}),
    )


def _find_problems(options: ClaudeAgentOptions) -> Iterable[str]:
    """Yield what is wrong with options that let a call pass the guards, or that the gate needs itself."""
    write_rules = "write it as a rule of the runner's policy or as a guard"
    for name in ("allowed_tools", "plugins", "extra_args", "skills", "setting_sources"):
        if value := getattr(options, name):
            yield f"{name}={value!r} could let a call pass the guards; leave it out, and {write_rules}"
    for name in ("can_use_tool", "permission_prompt_tool_name"):
        if getattr(options, name) is not None:
            yield f"{name}= is the runner's: give the runner an approver, Runner(…, approve=…)"
    if options.permission_mode not in _MODES:
        yield f"permission_mode={options.permission_mode!r} decides without the guards; leave it out"
    if options.sandbox and options.sandbox.get("autoAllowBashIfSandboxed", True):
        yield 'sandbox= would allow lines without the guards; add "autoAllowBashIfSandboxed": False'
    for name, agent in (options.agents or {}).items():
        if agent.permissionMode not in _MODES:
            yield f"the agent {name!r} has permissionMode={agent.permissionMode!r}; leave it out"
    if judging := {"PreToolUse", "PermissionRequest"} & set(options.hooks or {}):
        yield f"a hook for {min(judging)!r} could change judged arguments; write it as a guard of the runner"
    if not isinstance(options.mcp_servers, Mapping) or _SERVER in options.mcp_servers:
        yield f"mcp_servers= takes a dict of servers, none of them named {_SERVER!r}"
    if _read_denials(options.settings) is None:
        yield 'settings= takes JSON with rules that deny, such as {"permissions": {"deny": ["Edit(secrets/**)"]}}'


def _read_denials(settings: str | None) -> list[str] | None:
    """Return the rules of settings that only deny, else None. A file could change before Claude Code reads it."""
    try:
        match json.loads(settings or '{"permissions": {"deny": []}}'):
            case {"permissions": {"deny": [*rules], **more}, **others} if not more and not others:
                return rules
    except ValueError:
        pass
    return None


# -- their tools as ours -----------------------------------------------------------------------------------------------


def from_tools(tools: Iterable[SdkMcpTool[Any]]) -> Toolset:
    """Return tools of the SDK, functions with its `@tool`, as tools of ours.

    Annotations are hints, and go into `metadata["annotations"]`; use `.replace(read_only=True)` if you trust them.

    Raises:
        DefinitionError: An object is no tool of the SDK.
    """
    return Toolset(_to_our_tool(tool) for tool in read_tool_list(_FRAMEWORK, tools))


def _to_our_tool(tool: Any) -> Tool:
    if not isinstance(tool, SdkMcpTool):
        raise DefinitionError(f"claude_agent.from_tools takes functions with the SDK's @tool, not {tool!r}")

    async def handler(payload: dict[str, Any]) -> object:
        answer = await tool.handler(payload)
        sent = {"content": answer.get("content", []), "isError": answer.get("is_error", False)}
        return to_result(wire.CallToolResult.model_validate(sent), None)

    hints = tool.annotations or {}
    return Tool(
        tool.name,
        handler,
        description=tool.description,
        input_schema=_read_schema(tool.input_schema),
        metadata={"annotations": hints if isinstance(hints, Mapping) else hints.model_dump(exclude_none=True)},
    )


def _read_schema(given: Any) -> dict[str, Any]:
    """Return the JSON Schema of a JSON Schema, of a dict of types by name, or of a `TypedDict`."""
    if isinstance(given, dict) and isinstance(given.get("type"), str) and "properties" in given:
        return given
    hints = dict(given) if isinstance(given, Mapping) else get_type_hints(given, include_extras=True)
    required = {key for key in getattr(given, "__required_keys__", hints) if get_origin(hints[key]) is not NotRequired}
    required |= {key for key, hint in hints.items() if get_origin(hint) is Required}
    types = {key: get_args(hint)[0] if get_origin(hint) in _KEY_FORMS else hint for key, hint in hints.items()}
    adapters: list[Any] = [(key, "validation", TypeAdapter(hint)) for key, hint in types.items()]
    found, shared = TypeAdapter.json_schemas(adapters)
    properties = {key: {**found[key, "validation"], **_describe(hint)} for key, hint in types.items()}
    return {"type": "object", "properties": properties, "required": sorted(required), **shared}


def _describe(hint: Any) -> dict[str, str]:
    """Return the description in `Annotated[int, "in euros"]`, as the SDK reads it."""
    texts = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, str)]
    return {"description": texts[0]} if texts else {}
