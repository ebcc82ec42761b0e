"""Google ADK, both ways: a runner as a toolset of an agent, and its tools as ours. See docs/frameworks/google-adk.md.

    agent = LlmAgent(name="shop", model="gemini-2.5-flash", tools=[google_adk.toolset(runner)])
    tools = google_adk.from_tools([FunctionTool(roll), their_function])

Read in google-adk 2.13.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakSet

from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.adk.tools.tool_context import ToolContext as AdkContext
from google.genai import types

from ferrule.adapters.adapter import (
    Adapter,
    check_context_function,
    describe_media,
    guess_media_kind,
    read_tool_list,
    record_from_result,
)
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError, ToolError
from ferrule.runner import Runner
from ferrule.stores.store import Store
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, Text, to_json_text
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, ask
from ferrule.values.frozen import thaw
from ferrule.values.input import InputRequired
from ferrule.values.result import ToolResult

_RECORD_KEY = "ferrule"
_ARGUMENTS_KEY = "arguments"
_ACTIONS_FOR_CALL = frozenset(
    {
        "state_delta",
        "artifact_delta",
        "requested_auth_configs",
        "requested_tool_confirmations",
        "skip_summarization",
        "render_ui_widgets",
    }
)
"""The fields of ADK's actions about a tool's own call. All others steer the agent."""
_ASKED_ONCE_HINT = " A person is asked once about each call: make the call again, and they are asked about the new one."
"""ADK makes no second confirmation for a call that runs with the answer to its first."""


def toolset(
    runner: Runner,
    *,
    context: Callable[[AdkContext], ToolContext[Any]] | None = None,
    records: Store | None = None,
) -> BaseToolset:
    """Return a toolset of ADK with the runner's tools.

    A call that needs a person's answer asks for ADK's confirmation. Its hint is the reason. Its payload is
    `{"arguments": …, "ferrule": …}`, the arguments to run and the record, and goes back with the answer. A person
    changes the call by other `"arguments"`. If a tool asks a question, the payload has its `"schema"`, and the answer
    goes into `"arguments"`. ADK asks once about a call: if a person would have to be asked again, for example because
    the answer's record is lost, the model is asked to make the call again.

    Args:
        runner: The runner of the calls.
        context: Make the context of a call from ADK's context; `to_context` by default.
        records: The store of records until they are answered; the journal's store by default.

    Raises:
        DefinitionError: `runner` is no runner.
    """
    adapter = Adapter(runner, "Google ADK", suspends=True, records=records)
    make_context = check_context_function("Google ADK", context, to_context)
    return _RunnerToolset([_RunnerTool(adapter, tool, make_context) for tool in adapter.runner.tools])


def to_context(context: AdkContext) -> ToolContext[Any]:
    """Return a context with the user as principal, the session's id, and its state as deps.

    ADK has no place for objects.
    """
    return ToolContext(principal=context.user_id, session=context.session.id, deps=context.state)


class _RunnerToolset(BaseToolset):
    def __init__(self, tools: list[BaseTool]) -> None:
        super().__init__()
        self._tools = tools

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        return self._tools


class _RunnerTool(BaseTool):
    def __init__(self, adapter: Adapter, tool: Tool, to_context: Callable[[AdkContext], ToolContext[Any]]) -> None:
        super().__init__(name=tool.wire_name, description=tool.description)
        self._adapter, self._tool, self._to_context = adapter, tool, to_context

    def _get_declaration(self) -> types.FunctionDeclaration:
        schema = thaw(self._tool.input_schema)
        return types.FunctionDeclaration(name=self.name, description=self.description, parameters_json_schema=schema)

    async def run_async(self, *, args: dict[str, Any], tool_context: AdkContext) -> dict[str, Any]:
        call = ToolCall(tool_context.function_call_id or "", self._tool.name, args)
        context = self._to_context(tool_context)
        if tool_context.tool_confirmation is not None:
            result = await self._answer(call, context, tool_context)
            return _response(result, _ASKED_ONCE_HINT if result.pending is not None else "")
        result = await self._adapter.run(call, context)
        if result.pending is not None:
            tool_context.request_confirmation(hint=result.pending["reason"], payload=_payload(result))
            tool_context.actions.skip_summarization = True  # otherwise the model is asked at once what to do next
        return _response(result)

    async def _answer(self, call: ToolCall, context: ToolContext[Any], tool_context: AdkContext) -> ToolResult:
        confirmation = tool_context.tool_confirmation
        payload = _fields(confirmation.payload)
        record = payload.get(_RECORD_KEY)
        if record is None and (record := await self._adapter.find_record(call, context)) is None:
            record = _find_question(tool_context).get(_RECORD_KEY)
        answer: Decision | bool = confirmation.confirmed
        edited = payload.get(_ARGUMENTS_KEY)
        if answer and edited is not None and edited != _fields(_fields(record).get("pending")).get("arguments"):
            answer = isinstance(edited, Mapping) and allow(arguments=edited)
        return await self._adapter.answer(call, context, answer, record)


def _fields(payload: object) -> Mapping[str, Any]:
    return payload if isinstance(payload, Mapping) else {}


def _find_question(context: AdkContext) -> Mapping[str, Any]:
    """Return the last question about this call in the session, whose events outlive a process."""
    for event in reversed(context.session.events):
        if question := event.actions.requested_tool_confirmations.get(context.function_call_id or ""):
            return _fields(question.payload)
    return {}


def _payload(result: ToolResult) -> dict[str, Any]:
    """Return the data to show to a person. It comes back with the answer."""
    pending = thaw(result.pending)
    shown = {_ARGUMENTS_KEY: pending["arguments"], _RECORD_KEY: record_from_result(result)}
    return {**shown, "schema": pending["schema"]} if pending["schema"] else shown


def _response(result: ToolResult, note: str = "") -> dict[str, Any]:
    texts = [block.text if isinstance(block, Text) else describe_media(block) for block in result.content]
    parts = [_to_genai_part(block) for block in result.content]
    text = "\n".join(text for text, part in zip(texts, parts, strict=True) if part is None) + note
    media = [part for part in parts if part is not None]
    return {"result" if result.success else "error": text, **({"media": media} if media else {})}


def _to_genai_part(block: Block) -> types.Part | None:
    """Return a block as media; `None` for a block that becomes text."""
    if isinstance(block, Text):
        return None
    if block.data is not None:
        return types.Part.from_bytes(data=block.data, mime_type=block.mime_type)
    return types.Part.from_uri(file_uri=block.uri, mime_type=block.mime_type) if block.fetch and block.uri else None


# -- their tools as ours ----------------------------------------------------------------------------------------------


def from_tools(
    tools: Iterable[BaseTool | Callable[..., Any]],
    *,
    app_name: str = "ferrule",
    session_service: BaseSessionService | None = None,
    artifact_service: BaseArtifactService | None = None,
    memory_service: BaseMemoryService | None = None,
) -> Toolset:
    """Return tools of ADK, and functions for its agents, as tools of ours.

    A tool that needs confirmation asks. A tool that asks for it while it runs is run again with the answer, whose value
    is `{"payload": …}`. A returned `{"error": …}` is a failure.

    Args:
        tools: The tools; for a toolset, the result of `await toolset.get_tools()`.
        app_name: The app whose sessions they use.
        session_service: The service to find the session of a call's `context.session` and `context.principal`, and its
            state; in memory by default.
        artifact_service, memory_service: For tools that use them.

    Raises:
        DefinitionError: A tool runs in a model's API or goes on after its call, or an object is no tool.
    """
    services = {"artifact_service": artifact_service, "memory_service": memory_service}
    sessions = InMemorySessionService() if session_service is None else session_service
    if isinstance(tools, BaseToolset):
        raise DefinitionError(
            "from_tools takes a list of tools; for a toolset of ADK, use from_tools(await toolset.get_tools())"
        )
    invocations = _Invocations(app_name, sessions, services)
    return Toolset(_to_our_tool(_to_adk_tool(tool), invocations) for tool in read_tool_list("Google ADK", tools))


def _to_adk_tool(tool: Any) -> BaseTool:
    if not isinstance(tool, BaseTool):
        if not callable(tool):
            raise DefinitionError(f"from_tools takes tools of ADK and functions, not {tool!r}")
        tool = FunctionTool(tool)
    if tool.is_long_running:
        raise DefinitionError(
            f"{tool.name!r} is a long-running tool, whose result comes after its call has ended: make it a tool with "
            "background=True, or one that returns deferred work"
        )
    if type(tool).run_async is BaseTool.run_async or tool._get_declaration() is None:
        raise DefinitionError(f"{tool.name!r} runs in the model's API, not here: pass it to the agent")
    return tool


class _Invocations:
    """A maker of ADK's contexts."""

    def __init__(self, app_name: str, sessions: BaseSessionService, services: dict[str, Any]) -> None:
        self._app_name, self._sessions, self._services = app_name, sessions, services

    async def context(self, context: ToolContext[Any], call: ToolCall | None) -> AdkContext:
        # Without a session, its state is not stored.
        sessions = self._sessions if context.session else InMemorySessionService()
        invocation = InvocationContext(
            session_service=sessions,
            session=await self._session(sessions, context),
            invocation_id=str(uuid.uuid4()),
            **self._services,
        )
        return AdkContext(
            invocation_context=invocation, function_call_id=(call and call.id) or invocation.invocation_id
        )

    async def _session(self, sessions: BaseSessionService, context: ToolContext[Any]) -> Session:
        key = {"app_name": self._app_name, "user_id": context.principal or "user", "session_id": context.session}
        found = await sessions.get_session(**key) if context.session else None
        if found is not None:
            return found
        try:
            return await sessions.create_session(**key)
        except AlreadyExistsError:  # created by another call of this session
            return await sessions.get_session(**key)

    async def save_state(self, context: AdkContext) -> None:
        """Save the tool's changes to the session's state, as ADK does with the event of a result."""
        if context.actions.state_delta:
            invocation = context.get_invocation_context()
            event = Event(author="ferrule", invocation_id=invocation.invocation_id, actions=context.actions)
            await invocation.session_service.append_event(invocation.session, event)


def _to_our_tool(tool: BaseTool, invocations: _Invocations) -> Tool:
    approved: WeakSet[Any] = WeakSet()

    async def needs_confirmation(call: ToolCall, context: ToolContext[Any]) -> Decision:
        adk_context = await invocations.context(context, call)
        if not await tool.check_require_confirmation(thaw(call.arguments), adk_context):
            approved.discard(context.running_call)  # a guard may have changed the arguments since
            return allow()
        approved.add(context.running_call)
        return ask(f"{tool.name} needs confirmation")

    async def handler(payload: dict[str, Any], context: ToolContext[Any]) -> object:
        adk_context = await invocations.context(context, context.call)
        if context.answer is not None:
            adk_context.tool_confirmation = ToolConfirmation(
                confirmed=True, payload=context.answer.value.get("payload")
            )
        elif context.running_call in approved:  # else the tool itself asks, if other calls made that necessary
            adk_context.tool_confirmation = ToolConfirmation(confirmed=True)
        result = await tool.run_async(args=payload, tool_context=adk_context)
        if adk_context.actions.requested_auth_configs:
            raise ToolError(f"{tool.name} asks for a credential, and nobody can provide one here.")
        if question := adk_context.actions.requested_tool_confirmations.get(adk_context.function_call_id):
            schema = {"type": "object", "properties": {"payload": {"default": question.payload}}}
            return InputRequired(question.hint or f"{tool.name} needs confirmation", schema)
        if steered := _describe_steering(adk_context.actions):
            raise ToolError(
                f"{tool.name} steers an agent ({steered}), and there is no agent here: that did not happen."
            )
        await invocations.save_state(adk_context)
        return _result_from_adk(tool, result)

    declared = tool._get_declaration()
    schema = declared.parameters_json_schema
    if schema is None and declared.parameters is not None:
        schema = declared.parameters.json_schema.model_dump(mode="json", exclude_none=True)
    return Tool(
        tool.name,
        handler,
        description=declared.description or tool.description,
        input_schema=schema or {"type": "object", "properties": {}},
        guards=[needs_confirmation] if _may_need_confirmation(tool) else [],
    )


def _may_need_confirmation(tool: BaseTool) -> bool:
    if type(tool).check_require_confirmation is BaseTool.check_require_confirmation:
        return False
    # The option of a FunctionTool. Without that attribute, each call is checked.
    return getattr(tool, "_require_confirmation", True) is not False


def _describe_steering(actions: EventActions) -> str:
    """Return the tool's requests to the agent above it, for example to hand over to another one."""
    requests = {name: getattr(actions, name) for name in EventActions.model_fields if name not in _ACTIONS_FOR_CALL}
    return ", ".join(name for name, value in requests.items() if value not in (None, False))


def _result_from_adk(tool: BaseTool, result: Any) -> object:
    if isinstance(result, Mapping) and result.get("error"):
        raise ToolError(_to_text(result["error"]))
    media: list[Media] = []
    rest = _extract_media(result, media)
    # ADK's own tools report failures in other forms to its telemetry, for example an MCP server's `isError`.
    if (is_error := getattr(tool, "_detect_error_in_response", None)) and is_error(result):
        raise ToolError(_to_text(rest))
    return ToolResult(rest, content=[Text(_to_text(rest)), *media]) if media else result


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else to_json_text(value)


def _extract_media(value: Any, media: list[Media]) -> Any:
    """Return the value without the media in it, and add these to `media`."""
    if isinstance(value, types.Part | types.FunctionResponsePart) and (found := value.inline_data or value.file_data):
        media.append(_to_media(found))
        return f"[{found.mime_type}]"
    if isinstance(value, Mapping):
        return {key: _extract_media(item, media) for key, item in value.items()}
    return [_extract_media(item, media) for item in value] if isinstance(value, list | tuple) else value


def _to_media(found: Any) -> Media:
    uri = getattr(found, "file_uri", None)
    return Media(guess_media_kind(found.mime_type), getattr(found, "data", None), found.mime_type, uri)
