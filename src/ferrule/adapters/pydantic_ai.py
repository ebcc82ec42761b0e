"""pydantic-ai, both ways: a runner as a toolset of an agent, and its tools as ours. See docs/frameworks/pydantic-ai.md.

    agent = Agent(model, toolsets=[pydantic_ai.toolset(runner)], output_type=[str, DeferredToolRequests])
    runner = Runner(pydantic_ai.from_tools([their_tool, their_function]))

Read in pydantic-ai 2.68.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, cast

from pydantic_ai import BinaryContent, FunctionToolset, RunContext, ToolReturn
from pydantic_ai import Tool as TheirTool
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed, UserError
from pydantic_ai.messages import (
    AudioUrl,
    CustomEvent,
    DocumentUrl,
    FileUrl,
    ImageUrl,
    ModelRequest,
    ModelResponse,
    TextContent,
    ToolReturnPart,
    UploadedFile,
)
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset, ToolsetTool
from pydantic_ai.usage import RunUsage
from pydantic_core import to_json

from ferrule.adapters.adapter import (
    Adapter,
    check_context_function,
    describe_media,
    guess_media_kind,
    is_matching_record,
    is_text_only,
    make_call_id,
    read_tool_list,
    record_from_result,
)
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError, ToolError
from ferrule.runner import Runner
from ferrule.stores.store import Store
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, Text, to_jsonable
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow
from ferrule.values.deferred import Deferred
from ferrule.values.frozen import thaw
from ferrule.values.input import InputRequired
from ferrule.values.result import ToolResult, find_question

_OURS = "ferrule"
_URLS: dict[str, type[FileUrl]] = {"image": ImageUrl, "audio": AudioUrl}


# -- outward -----------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Progress(CustomEvent):
    """The data of a tool's `context.progress`, among the events of the agent's run."""

    done: float
    total: float | None = None
    message: str | None = None


def toolset(
    runner: Runner,
    *,
    id: str = _OURS,
    context: Callable[[RunContext[Any]], ToolContext[Any]] | None = None,
    records: Store | None = None,
    max_retries: int = 3,
) -> FunctionToolset[Any]:
    """Return a toolset of the runner's tools, for `Agent(toolsets=[…])`.

    A call that waits for a person ends the run as `DeferredToolRequests`: an approval, a question (the handler returned
    an `InputRequired`) or external work (`Deferred`). The metadata of the call has `reason` and, for
    `build_results(metadata=…)` and `answer`, its sealed record; `question` if the answer is for a nested call. Add
    `answered_by` to name the person who answered.

    Args:
        id: The id of the toolset; a durable engine identifies its calls by it.
        context: Make the context of a call; `to_context` by default.
        records: The store of records, instead of the metadata, which are in spans if instrumentation is on.
        max_retries: The number of times that a model may send wrong arguments to one tool before the agent's run fails.

    Raises:
        DefinitionError: `runner` is no runner.
    """
    adapter = Adapter(runner, "pydantic-ai", suspends=True, records=records)
    make_context = check_context_function("pydantic-ai", context, to_context)
    tools = [_to_their_tool(adapter, tool, make_context, records, max_retries) for tool in runner.tools]
    return FunctionToolset(tools, id=id)


def to_context(ctx: RunContext[Any]) -> ToolContext[Any]:
    """Return a context with the conversation as session, and `deps`. The framework has no principal."""
    return ToolContext(session=ctx.conversation_id, deps=ctx.deps)


def _to_their_tool(
    adapter: Adapter,
    tool: Tool,
    to_context: Callable[[RunContext[Any]], ToolContext[Any]],
    records: Store | None,
    max_retries: int,
) -> TheirTool[Any]:
    async def call(ctx: RunContext[Any], /, **arguments: Any) -> Any:
        call_id = make_call_id(ctx.tool_call_id, () if tool.read_only is True else _list_answered_ids(ctx))
        sent, context = ToolCall(call_id, tool.name, arguments), to_context(ctx)
        on_progress = partial(_emit_progress, ctx)
        if ctx.tool_call_approved:
            metadata = ctx.tool_call_metadata or {}
            record = metadata.get(_OURS)
            is_of_sent = (
                is_matching_record(record, sent, context) or await adapter.find_record(sent, context) is not None
            )
            shown = sent if is_of_sent else _find_sent_call(ctx, sent)
            by = metadata.get("answered_by")
            result = await adapter.answer(shown, context, arguments, record, on_progress, by=by)
        else:
            result = await adapter.run(sent, context, on_progress)
            if result.status in ("invalid", "not_found"):
                raise ModelRetry(result.text)
        if result.pending is not None:
            raise _make_deferral(result, ctx.tool_call_id or "", records if context.session else None)
        return _to_their_result(result)

    their_tool = TheirTool.from_schema(
        call,
        tool.wire_name,
        tool.description,
        thaw(tool.input_schema),
        takes_ctx=True,
        sequential=tool.parallel is not True,
    )
    their_tool.max_retries = max_retries
    their_tool.metadata = {_OURS: tool.name}
    return their_tool


def _find_sent_call(ctx: RunContext[Any], sent: ToolCall) -> ToolCall:
    """Return the call with the arguments in the messages.

    These lack a person's `override_args`, and include the changes of a client. The call stays as sent if the messages
    do not have it, or do not exist, as in an activity of Temporal.
    """
    try:
        last = next((one for one in reversed(ctx.messages) if isinstance(one, ModelResponse)), None)
    except UserError:
        return sent
    parts = [] if last is None else [part for part in last.tool_calls if part.tool_call_id == ctx.tool_call_id]
    return sent.replace(arguments=parts[0].args or {}) if len(parts) == 1 else sent


async def _emit_progress(ctx: RunContext[Any], done: float, total: float | None, message: str | None) -> None:
    await ctx.emit(Progress(done=done, total=total, message=message))


def _list_answered_ids(ctx: RunContext[Any]) -> Iterator[str]:
    """Yield the ids of the successful calls. The remains of an aborted run are `"interrupted"`."""
    try:
        messages = ctx.messages
    except UserError:  # an activity of Temporal has none
        return
    for message in messages:
        if isinstance(message, ModelRequest):
            for part in message.parts:
                if isinstance(part, ToolReturnPart) and part.outcome == "success":
                    yield part.tool_call_id


def _make_deferral(result: ToolResult, tool_call_id: str, records: Store | None) -> ApprovalRequired | CallDeferred:
    """Return the exception of a waiting call, with all data for an answer.

    It includes the record, unless that is stored in `records`.
    """
    pending: Any = result.pending
    metadata = {"reason": pending["reason"], "tool": result.tool_name}
    if pending["call"]["id"] != tool_call_id:
        metadata["id"] = pending["call"]["id"]
    if records is None:
        metadata[_OURS] = record_from_result(result)
    asked = find_question(pending)
    if asked is not pending:
        metadata["question"] = {"tool": asked["call"]["name"], "arguments": thaw(asked["arguments"])}
    if pending["kind"] == "input":
        return CallDeferred({**metadata, "schema": thaw(pending["schema"])}, kind="question")
    if pending["kind"] == "work":
        return CallDeferred({**metadata, "ticket": pending["state"]["ticket"]}, kind="external")
    return ApprovalRequired(metadata if pending["into"] is None else {**metadata, "into": pending["into"]})


def _to_their_result(result: ToolResult) -> Any:
    if not result.success:
        raise ToolFailed(result.text)
    if is_text_only(result):
        return result.text
    return ToolReturn([_to_their_block(block) for block in result.content])


def _to_their_block(block: Block) -> Any:
    if isinstance(block, Text):
        return block.text
    if block.data is not None:
        return BinaryContent(block.data, media_type=block.mime_type)
    if block.fetch and block.uri:
        return _URLS.get(block.kind, DocumentUrl)(block.uri, media_type=block.mime_type)
    return describe_media(block)


async def answer(
    runner: Runner,
    requests: DeferredToolRequests,
    tool_call_id: str,
    reply: Mapping[str, Any] | bool | Decision | ToolResult,
    context: ToolContext[Any],
    *,
    records: Store | None = None,
) -> ToolReturn[Any] | ToolFailed:
    """Answer a call of `requests.calls`, and return its outcome for `requests.build_results(calls={tool_call_id: …})`.

    Args:
        requests: The output of the agent's run.
        reply: For a question the object that fits `requests.metadata[tool_call_id]["schema"]`, or `False`. For external
            work its `ToolResult`, `True` to let the handler look again, or `False` to give it up.
        context: As in the run: its session is the run's `conversation_id`.
        records: The same store as for `toolset`.

    Raises:
        CallDeferred: The call waits again; the metadata describe the new question.
        DefinitionError: No such call waits, or the answer does not fit it.
    """
    part = next((part for part in requests.calls if part.tool_call_id == tool_call_id), None)
    if part is None:
        raise DefinitionError(
            f"no call {tool_call_id!r} is in requests.calls; an approval goes to build_results(approvals=…)"
        )
    metadata = requests.metadata.get(tool_call_id) or {}
    adapter = Adapter(runner, "pydantic-ai", suspends=True, records=records)
    call_id = metadata.get("id")
    if not isinstance(call_id, str) or not call_id.startswith(f"{tool_call_id} ("):
        call_id = tool_call_id
    call = ToolCall(call_id, str(metadata.get("tool", part.tool_name)), part.args_as_dict())
    record = metadata.get(_OURS) or await adapter.find_record(call, context)
    if not is_matching_record(record, call, context):
        raise DefinitionError(
            f"there is no record of the call {tool_call_id!r} of {call.name!r} for this principal and session: give "
            "the requests with their metadata, or the same records="
        )
    decision = allow(arguments=reply) if isinstance(reply, Mapping) else reply
    result = await adapter.answer(call, context, decision, record)
    if result.pending is not None:
        raise _make_deferral(result, tool_call_id, records if context.session else None)
    try:
        value = _to_their_result(result)
    except ToolFailed as failed:
        return failed
    return value if isinstance(value, ToolReturn) else ToolReturn(value)


# -- inward ------------------------------------------------------------------------------------------------------------


def from_tools(tools: Iterable[TheirTool[Any] | Callable[..., Any]]) -> Toolset:
    """Return their tools, and functions for their agents, as ours: `Runner(from_tools([…]))`.

    A tool that requires approval asks. A tool that raises `ApprovalRequired` asks that question, and is called again
    after the answer. A tool that raises `CallDeferred` is suspended until it is resumed with its `ToolResult`. There is
    no run: a call that reads `ctx.messages`, `ctx.model` or `ctx.emit` fails.

    Raises:
        DefinitionError: A tool has a `prepare` function, or an object is no tool.
    """
    if isinstance(tools, AbstractToolset):
        raise DefinitionError("from_tools takes a list of tools; for a toolset, use await from_toolset(toolset)")
    try:
        toolset = FunctionToolset(read_tool_list("pydantic-ai", tools))
    except (UserError, TypeError, AttributeError) as error:
        raise DefinitionError(
            f"from_tools takes a list of pydantic-ai's tools and functions, not {tools!r}: {error}"
        ) from error
    _check_leaf(toolset)
    nobody = _make_their_context(None, "", None)
    return Toolset(
        _to_our_tool(toolset, name, toolset.tool_for_tool_def(tool.tool_def, ctx=nobody))
        for name, tool in toolset.tools.items()
    )


async def from_toolset(toolset: AbstractToolset[Any], *, deps: object = None) -> Toolset:
    """Return the tools of any of their toolsets as ours, like `from_tools`; they are listed once, here.

    The toolset is entered for each call, at the cost of its connection if it has one: stay in `async with toolset:`.
    Each call checks again that the toolset has the tool: a tool that `filtered` hides for the call's own `deps` does
    not run.

    Args:
        deps: The `ctx.deps` for wrappers such as `filtered` during the listing.

    Raises:
        DefinitionError: It is a `DynamicToolset`, or a tool has a `prepare` function or runs elsewhere.
    """
    if not isinstance(toolset, AbstractToolset):
        raise DefinitionError(f"from_toolset takes one of pydantic-ai's toolsets, not {toolset!r}")
    toolset.apply(_check_leaf)
    ctx = _make_their_context(None, "", deps)
    async with toolset:
        read_tool_list = await toolset.get_tools(ctx)
    return Toolset([_to_our_tool(toolset, name, found, may_differ=True) for name, found in read_tool_list.items()])


def _check_leaf(leaf: AbstractToolset[Any]) -> None:
    if isinstance(leaf, DynamicToolset):
        raise DefinitionError("a DynamicToolset differs in each run: pass the toolset that its function returns")
    for name, tool in leaf.tools.items() if isinstance(leaf, FunctionToolset) else ():
        if tool.prepare is not None:
            raise DefinitionError(
                f"the tool {name!r} has a prepare function, which may change it at each step of a run: remove the "
                "function, and restrict the tool by run(…, offered=…) or a guard"
            )


def _to_our_tool(
    toolset: AbstractToolset[Any], name: str, found: ToolsetTool[Any], *, may_differ: bool = False
) -> Tool:
    """Return one of their tools as ours.

    Args:
        may_differ: Whether the toolset may have other tools for the context of another call.
    """
    definition = found.tool_def
    if definition.kind not in ("function", "unapproved"):
        raise DefinitionError(f"the tool {name!r} has the kind {definition.kind!r}, which only an agent's run can call")
    asks = definition.kind == "unapproved"

    async def find_offered(ctx: RunContext[Any]) -> ToolsetTool[Any]:
        now = (await toolset.get_tools(ctx)).get(name) if may_differ else found
        if now is None or now.tool_def.kind != definition.kind:
            raise ToolError(f"{name} is not offered to this call", executed=False)
        return replace(now, tool_def=replace(now.tool_def, timeout=None))  # our deadline reports whether something ran

    async def handler(payload: dict[str, Any], context: ToolContext[Any]) -> Any:
        call: Any = context.call
        ctx = _make_their_context(call.id, name, context.deps, session=context.session, max_retries=found.max_retries)
        state: Any = {} if context.answer is None else thaw(context.answer.state)
        ctx.tool_call_approved = asks or "approved" in state  # false when the handler looks at deferred work
        ctx.tool_call_metadata = state.get("approved")
        try:
            async with toolset:
                return _to_our_result(await _validate_and_call(toolset, name, payload, ctx, await find_offered(ctx)))
        except (ModelRetry, ToolFailed) as error:
            raise ToolError(error.message) from error
        except ApprovalRequired as asked:
            state = {"approved": to_jsonable(asked.metadata)}
            return InputRequired(_read_reason(asked, f"{name} wants to be approved"), state=state)
        except CallDeferred as deferred:
            return Deferred(call.id, reason=_read_reason(deferred, f"{name} is done elsewhere"))

    return Tool(
        name,
        handler,
        description=definition.description or name,
        input_schema=definition.parameters_json_schema,
        output_schema=definition.return_schema or None,
        ask=asks,
        timeout=definition.timeout,
        parallel=not definition.sequential,
        metadata=definition.metadata or {},
    )


async def _validate_and_call(
    toolset: AbstractToolset[Any], name: str, payload: dict[str, Any], ctx: RunContext[Any], found: ToolsetTool[Any]
) -> Any:
    arguments = found.args_validator.validate_json(to_json(payload))
    if found.args_validator_func is not None:
        checked = found.args_validator_func(ctx, **arguments)
        if inspect.isawaitable(checked):
            await checked
    return await toolset.call_tool(name, arguments, ctx, found)


class _RunField:
    """A stand-in for a field that exists only in their runs. A call that reads it fails."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: object) -> NoReturn:
        raise ToolFailed(f"The tool reads ctx.{self._name}, and it was not called by a run of pydantic-ai.")

    __iter__ = __len__ = __getitem__ = __contains__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()


def _make_their_context(call_id: str | None, name: str, deps: object, **fields: Any) -> RunContext[Any]:
    return RunContext(
        deps=deps,
        model=cast("Any", _RunField("model")),
        usage=RunUsage(),
        messages=cast("Any", _RunField("messages")),
        tool_call_id=call_id,
        tool_name=name,
        conversation_id=fields.pop("session", None),
        **fields,
    )


def _read_reason(raised: ApprovalRequired | CallDeferred, otherwise: str) -> str:
    reason = (raised.metadata or {}).get("reason")
    return reason if isinstance(reason, str) and reason.strip() else otherwise


def _to_our_result(value: Any) -> Any:
    """Return the return value of their tool, with their media as ours, and then their extra content for the model."""
    if not isinstance(value, ToolReturn):
        blocks = list(_our_blocks(value))
        return ToolResult(None, content=blocks) if _has_media(blocks) else value
    metadata = value.metadata if isinstance(value.metadata, Mapping) else None
    blocks = [*_our_blocks(value.return_value), *_our_blocks(value.content or [])]
    output = None if _has_media(blocks) else value.return_value
    if not value.content and not _has_media(blocks):
        return ToolResult(output, metadata=metadata)
    return ToolResult(output, metadata=metadata, content=blocks)


def _has_media(blocks: Sequence[Block]) -> bool:
    return any(isinstance(block, Media) for block in blocks)


def _our_blocks(value: Any) -> Iterator[Block]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _our_blocks(item)
    elif isinstance(value, BinaryContent):
        yield Media(guess_media_kind(value.media_type), value.data, value.media_type)
    elif isinstance(value, FileUrl):
        media_type = _guess_media_type(value)
        yield Media(guess_media_kind(media_type), None, media_type, uri=value.url)
    elif isinstance(value, TextContent):
        yield Text(value.content)
    elif isinstance(value, UploadedFile):
        yield Text(f"[file {value.file_id}]")
    else:
        yield Text(value if isinstance(value, str) else to_json(to_jsonable(value)).decode())


def _guess_media_type(url: FileUrl) -> str:
    try:
        return str(url.media_type)
    except ValueError:  # the address does not show its type
        return "application/octet-stream"
