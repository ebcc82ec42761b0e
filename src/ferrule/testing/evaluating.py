"""`evaluate`: ask a model for each case, by way of the loop, and compare its calls with the right ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

from ferrule.arguments.parameters import Invalid
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.loop.agent_loop import Run, run
from ferrule.models import Message, Model
from ferrule.runner import Runner
from ferrule.testing.cases import Case, ExpectedCall
from ferrule.testing.comparing import arguments_of, check_arguments
from ferrule.testing.fake import find_tool
from ferrule.testing.scores import CallMade, score_case, score_failed_case
from ferrule.testing.tool_use import Outcome, ToolUse
from ferrule.values.call import new_id
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult


async def evaluate(
    cases: Iterable[Case],
    model: Model | Callable[[Case], Model],
    runner: Runner | Callable[[Case], Runner],
    *,
    max_turns: int = 20,
    at_once: int = 1,
    context: ToolContext | None = None,
) -> ToolUse:
    """Ask a model for each case, and score its choice of tools and arguments. See docs/evaluation.md.

        found = await evaluate(read_cases("cases.jsonl"), model, Runner(fake([find_order, refund])))
        found.assert_at_least(chosen=0.9, arguments=0.8)

    The calls run through the runner, guards and all, so the tools have real effects: give the runner fakes, or recorded
    answers. Each case is a run of its own, and a session of its own unless the context has one. If the model raises in
    a case, its outcome has the error, and 0 in its scores; the other cases go on.

    Args:
        cases: See `read_cases`.
        model: A model to ask anew for each case; or a function from the case to a model, as for `Scripted`.
        runner: The runner with the tools; or a function from the case to a runner.
        max_turns: How often the model is asked in a case at most. With 1, its first calls are compared, not run.
        at_once: How many cases run side by side.
        context: The context of the calls.

    Raises:
        DefinitionError: There is no case, two have one id, one names a missing tool or argument, or the model, the
            runner or a limit has the wrong type.
    """
    if not isinstance(at_once, int) or at_once < 1:  # type: ignore[redundant-expr]
        raise DefinitionError(f"at_once is a whole number of at least 1, not {at_once!r}")
    listed = _check_cases(cases)
    prepared_cases = [_prepare_case(case, model, runner, context or ToolContext(), max_turns) for case in listed]
    gate = asyncio.Semaphore(at_once)

    async def in_turn(prepared: _PreparedCase) -> Outcome:
        async with gate:
            return await _run_case(prepared)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(in_turn(prepared)) for prepared in prepared_cases]
    return ToolUse(tuple(task.result() for task in tasks))


@dataclass(frozen=True)
class _PreparedCase:
    """A case that can be run."""

    case: Case
    expected: tuple[ExpectedCall, ...]
    tools: Toolset
    running: Run


def _check_cases(cases: Iterable[Case]) -> Sequence[Case]:
    listed = list(cases)
    if not listed:
        raise DefinitionError("evaluate: there are no cases")
    for case in listed:
        if not isinstance(case, Case):
            raise DefinitionError(f"evaluate: a case is a Case, such as read_cases gives, not {case!r:.80}")
    twice = [name for name, count in Counter(case.id for case in listed).items() if count > 1]
    if twice:
        raise DefinitionError(f"evaluate: two cases have the id {twice[0]!r}")
    return listed


def _prepare_case(case: Case, model: Any, runner: Any, context: ToolContext, max_turns: int) -> _PreparedCase:
    about = f"evaluate: the case {case.id!r}"
    case_runner = runner if isinstance(runner, Runner) or not callable(runner) else runner(case)
    case_model = model if hasattr(model, "results") or not callable(model) else model(case)
    if not isinstance(case_runner, Runner):
        raise DefinitionError(f"{about} needs a Runner, such as Runner(fake([one_tool])), not {case_runner!r:.80}")
    tools = case_runner.tools
    expected = tuple(_resolve_expected(prepared, tools, about) for prepared in case.expected)
    tools.only(*case.never)  # refuses a name that no tool has
    case_context = context if context.session is not None else context.replace(session=new_id())
    running = run(case_model, _make_messages(case, case_model), case_runner, context=case_context, max_turns=max_turns)
    return _PreparedCase(case, expected, tools, running)


def _resolve_expected(wanted: ExpectedCall, tools: Toolset, about: str) -> ExpectedCall:
    """Return the call with the names of the tool and its parameters."""
    tool = find_tool(about, tools, wanted.name)
    aliases = tool.handling.aliases
    arguments = {aliases.get(name, name): value for name, value in wanted.arguments.items()}
    check_arguments(tool, arguments)
    return ExpectedCall(tool.name, arguments)


def _make_messages(case: Case, model: Any) -> list[Message]:
    if not isinstance(case.request, str):
        return list(case.request)
    user = getattr(model, "user", None)
    if not callable(user):
        raise DefinitionError(
            f"the request of the case {case.id!r} is a text, and the model has no user(text) that makes messages of "
            "it: give the messages"
        )
    return cast("list[Message]", user(case.request))


async def _run_case(prepared: _PreparedCase) -> Outcome:
    text, error = "", None
    try:
        text = (await prepared.running).text
    except Exception as raised:  # an error of the model ends its case, and no other
        error = f"{type(raised).__name__}: {raised}"
    replies = tuple(prepared.running.replies)
    missed = [result.error for result in prepared.running.results if result.metadata.get("cassette") == "missed"]
    error = error if error is not None else next(iter(missed), None)
    called = tuple(_describe_call(result, prepared.tools) for result in prepared.running.results)
    if error is not None:
        return Outcome(
            prepared.case, prepared.expected, called, score_failed_case(prepared.case), error=error, replies=replies
        )
    is_restrained = (
        not called if prepared.case.refuses else not any(_is_forbidden(call.name, prepared.case) for call in called)
    )
    return Outcome(
        prepared.case,
        prepared.expected,
        called,
        score_case(prepared.case, prepared.expected, called, is_restrained),
        text,
        replies=replies,
    )


def _is_forbidden(name: str, case: Case) -> bool:
    return any(fnmatchcase(name, glob) for glob in case.never)


def _describe_call(result: ToolResult, tools: Toolset) -> CallMade:
    assert result.call is not None
    tool, call, status = tools.find(result.tool_name), result.call.replace(name=result.tool_name), str(result.status)
    if tool is not None and status == "limited":
        try:
            tool.handling.parameters.parse_arguments(call.name, call.raw)
        except Invalid:
            status = "invalid"
    return CallMade(result.tool_name, arguments_of(call, tool), status, result.error)
