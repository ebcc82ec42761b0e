"""LangChain and LangGraph, both ways: a runner as tools of an agent, and their tools as ours.

See docs/frameworks/langchain.md.

    agent = create_agent(model, tools=langchain.tools(runner), checkpointer=InMemorySaver())

Read in langchain-core 1.8, langchain 1.5 and langgraph 1.2.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Any, get_args, get_type_hints

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool, BaseToolkit, InjectedToolArg, InjectedToolCallId, ToolException
from langchain_core.tools.base import get_all_basemodel_annotations
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.callbacks import GraphCallbackHandler
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.prebuilt import ToolRuntime
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import interrupt
from pydantic import PrivateAttr
from pydantic import ValidationError as TheirValidationError

from ferrule.adapters.adapter import (
    Adapter,
    check_context_function,
    describe_media,
    is_matching_record,
    is_text_only,
    make_call_id,
    read_tool_list,
    record_from_result,
    result_from_outside_error,
)
from ferrule.arguments.parameters import Invalid
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError, ToolError
from ferrule.executors.background_loop import run_on_loop
from ferrule.runner import Runner
from ferrule.stores.store import Store
from ferrule.values.call import ToolCall
from ferrule.values.content import Media, Text, to_jsonable
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, deny
from ferrule.values.frozen import thaw
from ferrule.values.result import ToolResult

log = logging.getLogger("ferrule")
_OURS = "ferrule"
_EXPECTED = "Expected: Command(resume={'decisions': [{'type': 'approve'}]}), with one decision for each action request"
_DECISION_TYPES = ("approve", "edit", "reject", "respond")
_INTERRUPTS = "__pregel_scratchpad"
"""The key under which `interrupt` finds the answers in the configuration. Outside of a graph it raises a `KeyError`
with this key.
"""
_INTERRUPTED = "__interrupt__"
"""The key of the interrupts among a graph's values."""
_SENT_TASK = "__pregel_push"
"""The first part of the path of a task made by a `Send`."""

# -- out: a runner as their tools --------------------------------------------------------------------------------------


def tools(
    runner: Runner,
    *,
    context: Callable[[Runtime[Any]], ToolContext[Any]] | None = None,
    records: Store | None = None,
) -> list[BaseTool]:
    """Return the runner's tools, for `create_agent(tools=…)` or a `ToolNode`.

    Args:
        context: Make the context of the calls from the graph's runtime; `to_context` by default.
        records: The store of the records of suspended calls; the journal's store by default.

    Raises:
        DefinitionError: `runner` is no runner.
    """
    adapter = Adapter(runner, "LangChain", suspends=True, records=records)
    make_context = check_context_function("LangChain", context, to_context)
    return [_to_their_tool(adapter, tool, make_context) for tool in runner.tools]


def to_context(runtime: Runtime[Any]) -> ToolContext[Any]:
    """Return a context from the graph's runtime.

    It has the thread as session, the graph's `context` as `deps`, and the user of a LangGraph server as principal.
    """
    info, server = runtime.execution_info, runtime.server_info
    user = None if server is None else server.user
    return ToolContext(
        session=None if info is None else info.thread_id,
        principal=None if user is None else user.identity,
        deps=runtime.context,
    )


class RunnerTool(BaseTool):
    """A tool of a runner. The model's arguments go to the runner unchanged, whatever the names of its parameters."""

    _adapter: Adapter = PrivateAttr()
    _tool: Tool = PrivateAttr()
    _to_context: Callable[[Runtime[Any]], ToolContext[Any]] = PrivateAttr()

    def _to_args_and_kwargs(self, tool_input: Any, tool_call_id: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # No keywords for `_arun`: LangChain would remove those with the names `config` or `run_manager`.
        return (tool_input, tool_call_id), {}

    async def arun(self, *given: Any, **options: Any) -> Any:
        # It counts from here on, before any callback is awaited, so the calls of one message are all known at once.
        async with _enter_execution(_get_runtime()):
            return await super().arun(*given, **options)

    async def _arun(self, arguments: Any, call_id: str | None, /) -> Any:
        return await self._call(arguments, call_id)

    def _run(self, arguments: Any, call_id: str | None, /) -> Any:
        async def call() -> Any:
            async with _enter_execution(_get_runtime()):
                return await self._call(arguments, call_id)

        return run_on_loop(self._adapter.runner.loop_for_sync(), call)

    # LangChain evaluates the texts of annotations in each call, for 0.1 ms.
    _run.__annotations__.clear()
    _arun.__annotations__.clear()

    async def _call(self, arguments: Any, call_id: str | None) -> Any:
        try:
            return await self._run_or_answer(arguments, call_id)
        except (GraphBubbleUp, ToolException):
            raise
        except Exception as error:  # a `ToolNode`, or a retrying middleware, may show the model its text
            return self._to_their_result(result_from_outside_error(self._tool.name, error), call_id)

    async def _run_or_answer(self, arguments: Any, call_id: str | None) -> Any:
        execution, runtime = _get_execution(), _get_runtime() or Runtime()
        key = make_call_id(call_id, () if self._tool.read_only is True else _list_answered_ids())
        call, context = ToolCall(key, self._tool.name, arguments), self._make_call_context(runtime)

        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            step = {"type": "tool_progress", "tool_call_id": call_id, "name": self.name}
            runtime.stream_writer({**step, "done": done, "total": total, "message": message})

        record = None if execution is None else await self._adapter.find_record(call, context)
        result, answer = None, None
        if record is None:
            is_new = execution is None or not self._has_possible_answer()
            with _hide_answers():
                start = self._adapter.run if is_new else self._adapter.ask_again
                result = await start(call, context, on_progress)
        while execution is not None and (result is None or result.pending is not None):
            record = record if result is None else record_from_result(result)
            question = _Question(self._adapter, self.name, call, context, record, after=answer.place if answer else -1)
            answer = await execution.find_answer(question)
            with _hide_answers():
                result = await self._adapter.answer(call, context, answer.decision, answer.record, on_progress)
        assert result is not None
        instead = answer.instead if answer is not None and result.status == "denied" else None
        return self._to_their_result(result, call_id, instead)

    def _to_their_result(self, result: ToolResult, call_id: str | None, instead: str | None = None) -> Any:
        """Return the message of a result, with `instead` as its text for the model.

        If the tool was called as a function, and not with a model's call, return the content.

        Raises:
            ToolException: The result of such a function call is no success.
        """
        if call_id is None:
            if not result.success:
                raise ToolException(result.text)
            return _to_their_content(result)
        return ToolMessage(
            _to_their_content(result) if instead is None else instead,
            tool_call_id=call_id,
            name=self.name,
            status="success" if result.success or instead is not None else "error",
            artifact=_make_artifact(result),
        )

    def _has_possible_answer(self) -> bool:
        """Return whether this call without a record may have been asked about before: its task has answers.

        A `ToolNode` may run several calls in one task, and another of them may be the one asked about. In that case a
        changing call has its result in the journal, and others run again with each answer.
        """
        return _has_answer() and (self._tool.read_only is not True or _is_alone())

    def _make_call_context(self, runtime: Runtime[Any]) -> ToolContext[Any]:
        context = self._to_context(runtime)
        if context.session is None and runtime.execution_info is not None:
            return context.replace(session=runtime.execution_info.thread_id)  # without one, no answer finds its record
        return context


def _to_their_tool(adapter: Adapter, tool: Tool, to_context: Callable[[Runtime[Any]], ToolContext[Any]]) -> RunnerTool:
    schema = {"properties": {}, **thaw(tool.input_schema)}  # `BaseTool.args` reads them
    runner_tool = RunnerTool(
        name=tool.wire_name, description=tool.description, args_schema=schema, metadata={_OURS: tool.name}
    )
    runner_tool._adapter, runner_tool._tool, runner_tool._to_context = adapter, tool, to_context
    return runner_tool


def _get_runtime() -> Runtime[Any] | None:
    """Return the runtime of the graph; `None` outside one."""
    try:
        return get_runtime()
    except (RuntimeError, KeyError):
        return None


@contextmanager
def _hide_answers() -> Iterator[None]:
    """Hide the node's answers from an `interrupt` of a handler, or of a graph that it runs.

    The answers belong to the questions of the node's calls. LangGraph matches answers by their order, so such an
    interrupt is counted apart.
    """
    config = var_child_runnable_config.get()
    tool = None if config is None else config.get("configurable", {}).get(_INTERRUPTS)
    if config is None or tool is None:
        yield
        return
    empty = replace(tool, resume=[], get_null_resume=lambda consume: None, interrupt_counter=count().__next__)
    token = var_child_runnable_config.set({**config, "configurable": {**config["configurable"], _INTERRUPTS: empty}})
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


def _has_answer() -> bool:
    """Return whether the current task has an answer, without using it up."""
    tool = get_config()["configurable"].get(_INTERRUPTS)
    return tool is not None and (bool(tool.resume) or tool.get_null_resume(False) is not None)


def _is_alone() -> bool:
    """Return whether the current task was sent for one call, as `create_agent` does for each call."""
    return bool(get_config().get("metadata", {}).get("langgraph_path", ("",))[0] == _SENT_TASK)


def _list_answered_ids() -> list[str]:
    """Return the ids of the successful calls in the state of the graph, read in the way of a `ToolNode`.

    They are the same in each run of a node, while the id of its task changes if a checkpoint was lost.
    """
    try:
        messages = get_config()["configurable"]["__pregel_read"]("messages") or ()
    except (RuntimeError, KeyError):  # outside of a graph, or the graph's messages have another name
        return []
    return [message.tool_call_id for message in messages if isinstance(message, ToolMessage) and _is_done(message)]


def _is_done(message: ToolMessage) -> bool:
    """Return whether a message is a success of ours.

    A middleware's stand-in for a missing result has no artifact of ours.
    """
    return isinstance(message.artifact, dict) and message.artifact.get("status") == "ok"


def _make_artifact(result: ToolResult) -> dict[str, Any]:
    """Return the message's data for the program, hidden from the model."""
    return {"status": result.status, "metadata": to_jsonable(dict(result.metadata))}


def _to_their_content(result: ToolResult) -> str | list[str | dict[str, Any]]:
    if is_text_only(result):
        return result.text
    return [_to_their_block(block) for block in result.content]


def _to_their_block(block: Text | Media) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    kind = "image" if block.kind == "image" else "file"  # a `ToolNode` makes text of other types
    if block.data is not None:
        data = base64.b64encode(block.data).decode("ascii")
        return {"type": kind, "base64": data, "mime_type": block.mime_type}
    if block.fetch and block.uri:
        return {"type": kind, "url": block.uri, "mime_type": block.mime_type}
    return {"type": "text", "text": describe_media(block)}


# -- asking ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PersonAnswer:
    """A person's answer about a call.

    Attributes:
        decision: The argument for `Adapter.answer`.
        place: Its place among the answers of its node's run.
        record: The record that came with the answer.
        instead: The person's text for the model, in place of the result.
    """

    decision: Decision | bool | ToolResult
    place: int
    record: Any = None
    instead: str | None = None


@dataclass(eq=False)
class _Question:
    """A call that waits for a person.

    Attributes:
        record: The record to resume it. If it was asked before, `record["asked"]` has the place.
        after: The place of its previous answer.
        arrived: Its number among the calls of its node: they are asked about in the order of the message.
        future: The future that ends its wait. The calls of one node may belong to two runners, each on a loop of its
            own.
        problem: Why the values of its last answer do not fit.
    """

    adapter: Adapter
    name: str
    call: ToolCall
    context: ToolContext[Any]
    record: Any
    after: int
    arrived: int = field(default_factory=lambda: _ARRIVED.get())
    future: Future[None] = field(default_factory=Future)
    problem: str = ""

    def parse_answer(self, value: Any, index: int, count: int, place: int) -> _PersonAnswer | None:
        """Return the answer in a value for this call, which was asked about at `index` among `count`.

        Returns `None` if the value cannot be read, or has values that do not fit the question; `problem` says why.
        """
        decisions = value.get("decisions", [value] if count == 1 else None) if isinstance(value, Mapping) else [value]
        if not isinstance(decisions, list) or len(decisions) != count:
            return None
        record = next(iter(_read_records(value)[index:]), None)
        decision, is_work = decisions[index], self.record["pending"]["kind"] == "work"
        if isinstance(decision, bool):
            decision = {"type": "approve" if decision else "reject"}
        self.problem = _find_misfit(self.record["pending"], decision)
        match decision:
            case _ if self.problem:
                return None
            case {"type": "approve"}:
                return _PersonAnswer(True, place, record)
            case {"type": "edit", "edited_action": {"name": self.name, "args": dict(arguments)}} if not is_work:
                return _PersonAnswer(allow(arguments), place, record)
            case {"type": "reject"}:
                reason = decision.get("message")
                has_reason = isinstance(reason, str) and reason.strip() and not is_work
                return _PersonAnswer(deny(reason) if has_reason else False, place, record)
            case {"type": "respond", "message": str(text)} if text.strip():
                if is_work:
                    return _PersonAnswer(ToolResult(text), place, record)
                return _PersonAnswer(deny(text), place, record, instead=text)
        return None


class _Execution:
    """The calls in one run of a node.

    LangGraph runs a node again from its start with each answer, and matches the answers to its `interrupt`s by their
    order. So the calls of a node ask at once, by one `interrupt`, when all others have ended. Each record stores the
    place of its question, and accepts an answer from this place alone. A record made in this run cannot have an answer
    yet: all present answers are skipped.

    In a graph run by `invoke`, the calls come from threads, and may run on more than one loop.
    """

    def __init__(self, task: str) -> None:
        self.task = task
        self._lock = threading.RLock()
        self._running = 0
        self._arrived = 0
        self._answers: list[Any] = []
        self._questions: list[_Question] = []
        self._raised: GraphInterrupt | None = None

    @property
    def is_idle(self) -> bool:
        with self._lock:
            return not self._running and not self._questions

    def enter(self) -> int:
        """Count a call that runs here, and return its number in the node."""
        with self._lock:
            self._running += 1
            self._arrived += 1
            return self._arrived

    async def leave(self) -> None:
        """Remove the call from the count. If it was the last running one, ask about the waiting calls."""
        with self._lock:
            self._running -= 1
        await self._ask_when_all_wait()

    async def find_answer(self, question: _Question) -> _PersonAnswer:
        """Return the person's answer.

        Raises:
            GraphInterrupt: There is no answer yet, and all calls have ended or wait.
        """
        try:
            return self._find_earlier_answer(question)
        except GraphInterrupt:
            with self._lock:
                self._questions.append(question)
        try:
            await self.leave()
            await asyncio.wrap_future(question.future)
        finally:
            with self._lock:
                self._running += 1
                if question in self._questions:
                    self._questions.remove(question)
        raise AssertionError("a question always ends by an interrupt")

    def _find_earlier_answer(self, question: _Question) -> _PersonAnswer:
        asked = question.record.get("asked")
        if asked is not None and asked["task"] == self.task:
            place = asked["place"]
            answer = question.parse_answer(self._read_answer(place), asked["index"], asked["count"], place)
            if answer is not None:
                return answer
            log.warning(
                "the answer about a call of tool %r cannot be used, and the person is asked again. %s",
                question.call.name,
                "Its values do not fit the `args_schema`" if question.problem else _EXPECTED,
            )
        place = question.after + 1
        while True:
            value = self._read_answer(place)
            records = _read_records(value)
            for index, record in enumerate(records):
                if not is_matching_record(record, question.call, question.context):
                    continue
                answer = question.parse_answer(value, index, len(records), place)
                if answer is not None:
                    return answer
            place += 1

    def _read_answer(self, place: int) -> Any:
        """Return the answer in a place. Raise `GraphInterrupt` if there is none."""
        with self._lock:
            while len(self._answers) <= place:
                self._answers.append(interrupt(None))
            return self._answers[place]

    async def _ask_when_all_wait(self) -> None:
        """Ask about all waiting calls if no other call runs."""
        with self._lock:
            if self._running or not self._questions:
                return
            questions, self._questions = sorted(self._questions, key=lambda one: one.arrived), []
        try:
            await self._ask_about(questions)
        finally:
            for one in questions:
                if one.future.set_running_or_notify_cancel():
                    one.future.set_exception(GraphInterrupt(*(self._raised.args if self._raised else ())))

    async def _ask_about(self, questions: list[_Question]) -> None:
        with self._lock:
            if self._raised is not None:  # a run of a node ends by one interrupt; later calls wait for the next run
                return
            self._raised = self._interrupt(_make_question(questions))
            place = len(self._answers)
        for index, one in enumerate(questions):
            asked = {"task": self.task, "place": place, "index": index, "count": len(questions)}
            await one.adapter.store_record(one.call, one.context, one.record | {"asked": asked})

    def _interrupt(self, value: Any) -> GraphInterrupt:
        try:
            while True:
                self._answers.append(interrupt(value))
        except GraphInterrupt as interrupt_error:
            return interrupt_error


def _make_question(questions: list[_Question]) -> dict[str, Any]:
    """Return the data to show to the person, in the form of `HumanInTheLoopMiddleware`.

    Our part may come back with the answer.
    """
    requests, reviews = [], []
    for one in questions:
        pending = one.record["pending"]
        reason = pending["reason"] + (f"\n\nThe last answer does not fit: {one.problem}" if one.problem else "")
        action = {"name": one.name, "args": pending["arguments"], "description": reason}
        decisions = [kind for kind in _DECISION_TYPES if not (kind == "edit" and pending["kind"] == "work")]
        if _find_misfit(pending, {"type": "approve"}):
            decisions.remove("approve")
        wanted = {"args_schema": pending["schema"]} if pending["kind"] == "input" else {}
        requests.append(action)
        reviews.append({"action_name": one.name, "allowed_decisions": decisions, **wanted})
    records = [{"pending": one.record["pending"]} for one in questions]
    return {"action_requests": requests, "review_configs": reviews, _OURS: records}


def _find_misfit(pending: Mapping[str, Any], decision: object) -> str:
    """Return why the values of a decision do not fit a question for input; an empty text if they do."""
    match decision:
        case {"type": "edit", "edited_action": {"args": dict(given)}}:
            pass
        case {"type": "approve"}:
            given = {}
        case _:
            return ""
    if pending["kind"] != "input":
        return ""
    from ferrule.arguments.schema_parameters import SchemaParameters  # for a tool that asks for input

    try:
        SchemaParameters(pending["schema"]).validate_with_repairs("the answer", given)
    except (Invalid, DefinitionError) as error:
        return str(error).partition(" Nothing was run")[0]
    return ""


def _read_records(value: Any) -> list[Any]:
    """Return the records that come with an answer, one for each decision."""
    records = value.get(_OURS) if isinstance(value, Mapping) else None
    return records if isinstance(records, list) else []


_EXECUTIONS: OrderedDict[Any, _Execution] = OrderedDict()
_MOST_EXECUTIONS = 1_000
"""The least number of runs to remember: a call may come after the first calls of its node have ended."""
_LOCK = threading.Lock()
_ARRIVED: ContextVar[int] = ContextVar("ferrule.langchain.arrived", default=0)
"""The number of the current call in its node."""
_SURROUNDING_EXECUTIONS: ContextVar[tuple[_Execution | None, ...]] = ContextVar("ferrule.langchain", default=())
"""The runs of nodes around the current code, the innermost last; `None` for a call outside of a graph."""


def _find_execution(runtime: Runtime[Any] | None) -> _Execution | None:
    """Return the same object for all calls of one run of a node, and a new one for its next run."""
    info = None if runtime is None else runtime.execution_info
    if info is None:
        return None
    key = (info.thread_id, info.checkpoint_ns, info.task_id, info.node_first_attempt_time)
    with _LOCK:
        if (found := _EXECUTIONS.get(key)) is None:
            for oldest in list(islice(_EXECUTIONS, max(0, len(_EXECUTIONS) - _MOST_EXECUTIONS + 1))):
                if _EXECUTIONS[oldest].is_idle:
                    del _EXECUTIONS[oldest]
            found = _EXECUTIONS[key] = _Execution(info.task_id)
        return found


@asynccontextmanager
async def _enter_execution(runtime: Runtime[Any] | None) -> AsyncIterator[None]:
    """Enter a call into the run of its node.

    A call made by a tool of the same node is not counted: that tool could not go on.
    """
    execution, surrounding = _find_execution(runtime), _SURROUNDING_EXECUTIONS.get()
    token = _SURROUNDING_EXECUTIONS.set((*surrounding, execution))
    counted = None if execution in surrounding else execution
    if counted is not None:
        _ARRIVED.set(counted.enter())
    try:
        yield
    finally:
        _SURROUNDING_EXECUTIONS.reset(token)
        if counted is not None:
            await counted.leave()


def _get_execution() -> _Execution | None:
    """Return the run in which the current call may ask a person; `None` if it cannot ask."""
    *surrounding, execution = _SURROUNDING_EXECUTIONS.get() or (None,)
    return None if execution in surrounding else execution


# -- in: their tools as ours -------------------------------------------------------------------------------------------


def from_tools(tools: Iterable[BaseTool] | BaseToolkit) -> Toolset:
    """Return the tools, or those of a toolkit, as tools for a runner.

    Raises:
        DefinitionError: A tool needs the state, the store or the runtime of a graph, or an object is no tool.
    """
    listed = tools.get_tools() if isinstance(tools, BaseToolkit) else tools
    if isinstance(listed, BaseTool):  # a model of Pydantic, which iterates over its fields
        raise DefinitionError(f"LangChain: from_tools takes a list of tools, not {listed!r}: from_tools([…])")
    return Toolset([_to_our_tool(tool) for tool in read_tool_list("LangChain", listed)])


def _to_our_tool(tool: BaseTool) -> Tool:
    if not isinstance(tool, BaseTool):
        raise DefinitionError(f"{tool!r} is no tool of LangChain: from_tools([…]) takes a list of those")
    for name, kind in _find_injected(tool):
        raise DefinitionError(
            f"the tool {tool.name!r} wants {kind} in {name!r}, which only a graph has: give what it needs another "
            "way, as a parameter or in a closure, or leave the tool to the ToolNode of its graph"
        )

    async def handler(payload: dict[str, Any], context: ToolContext[Any]) -> ToolResult:
        assert context.call is not None
        call = {"type": "tool_call", "id": context.call.id, "name": tool.name, "args": dict(payload)}
        # Always a new one: in the configuration of a graph around this runner, `interrupt` finds answers to other
        # questions.
        configurable = {} if context.session is None else {"thread_id": context.session}
        observer = _InterruptObserver()
        config: RunnableConfig = {
            "metadata": dict(context.metadata),
            "configurable": configurable,
            "callbacks": [observer],
        }
        _validate_ahead(tool, payload, context.call.id)
        try:
            answer = await tool.ainvoke(call, config)
        except ToolException as error:
            raise ToolError(str(error)) from error
        except (GraphBubbleUp, KeyError) as error:
            if isinstance(error, KeyError) and error.args != (_INTERRUPTS,):
                raise
            raise ToolError(f"{tool.name} stops its graph here, and is not called by one") from None
        if observer.any and isinstance(answer, ToolMessage) and _INTERRUPTED in answer.text:
            raise ToolError(f"{tool.name} is a graph that was interrupted, and nobody can answer it here")
        return _to_our_result(tool, answer)

    definition = convert_to_openai_tool(tool)["function"]
    return Tool(
        tool.name,
        handler,
        description=tool.description,
        input_schema=definition.get("parameters") or {"type": "object"},
        metadata=to_jsonable(tool.metadata or {}),
    )


class _InterruptObserver(GraphCallbackHandler):
    """A callback that sees whether a graph was interrupted.

    A graph as a tool returns its interrupts as text among its values.
    """

    any = False
    run_inline = True  # no thread is needed: it ignores all other events

    def on_interrupt(self, event: Any) -> None:
        self.any = True


def _validate_ahead(tool: BaseTool, payload: Mapping[str, Any], call_id: str) -> None:
    """Let the tool validate its arguments before it runs. Any later `ValidationError` is then its function's own.

    Raises:
        ToolError: They do not fit, and the tool has no error text of its own.
    """
    if not tool.handle_validation_error:
        try:
            tool._to_args_and_kwargs(dict(payload), call_id)
        except TheirValidationError as error:
            raise ToolError(str(error)) from error


def _find_injected(tool: BaseTool) -> Iterable[tuple[str, str]]:
    """Yield the parameters that neither the model nor we can fill, each with the type that it needs."""
    annotations = dict(get_all_basemodel_annotations(tool.get_input_schema()))
    for function in (getattr(tool, "func", None), getattr(tool, "coroutine", None), tool._run, tool._arun):
        if function is not None:
            try:
                annotations |= get_type_hints(function, include_extras=True)
            except NameError as error:  # under TYPE_CHECKING: it may be one that their run injects
                raise DefinitionError(
                    f"{tool.name!r}: a type of its function cannot be found ({error}): import it also when it runs"
                ) from error
    for name, annotation in annotations.items():
        for one in (annotation, getattr(annotation, "__origin__", None), *get_args(annotation)):
            kind = one if isinstance(one, type) else type(one)
            if issubclass(kind, (InjectedToolArg, ToolRuntime)) and not issubclass(kind, InjectedToolCallId):
                yield name, kind.__name__


def _to_our_result(tool: BaseTool, answer: Any) -> ToolResult:
    if not isinstance(answer, ToolMessage):
        raise ToolError(f"{tool.name} came to a {type(answer).__name__}, which only a graph can follow")
    if answer.status == "error":
        raise ToolError(str(answer.text))
    metadata = {} if answer.artifact is None else {"artifact": to_jsonable(answer.artifact)}
    if isinstance(answer.content, str):
        return ToolResult(answer.content, metadata=metadata)
    return ToolResult(answer.text, content=[_to_our_block(block) for block in answer.content], metadata=metadata)


def _to_our_block(block: str | dict[str, Any]) -> Text | Media:
    if isinstance(block, str):
        return Text(block)
    kind: Any = block.get("type")
    url = block["image_url"].get("url") if kind == "image_url" and isinstance(block.get("image_url"), dict) else None
    if isinstance(url, str) and url.startswith("data:") and ";base64," in url:
        mime_type, _, data = url[5:].partition(";base64,")
        return Media("image", base64.b64decode(data), mime_type)
    if kind in ("image", "audio", "file") and block.get("base64") and block.get("mime_type"):
        return Media(kind, base64.b64decode(block["base64"]), block["mime_type"])
    return Text(block["text"] if kind == "text" else json.dumps(to_jsonable(block), ensure_ascii=False))
