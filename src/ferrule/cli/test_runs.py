"""Runs the tests of a file: each call or conversation goes through the runner of the file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ferrule import (
    Clock,
    Decision,
    DefinitionError,
    Event,
    Runner,
    ToolCall,
    ToolContext,
    ToolResult,
    Toolset,
    allow,
    deny,
)
from ferrule.approval import later
from ferrule.cli import runners
from ferrule.cli.test_file import ExpectedDenial, ToolTest, ToolTests
from ferrule.cli.usage import UsageError
from ferrule.loop.agent_loop import run
from ferrule.models import Message, Scripted
from ferrule.policy import Policy
from ferrule.testing import Recorder, fake
from ferrule.testing.comparing import arguments_of, came_to, format_call
from ferrule.testing.fake import find_tool
from ferrule.types import Observer
from ferrule.values.call import new_id


@dataclass
class TestOutcome:
    """The outcome of one test."""

    test: ToolTest
    status: str = ""
    lines: list[str] = field(default_factory=list)
    """What happened, line by line."""
    wrong: list[str] = field(default_factory=list)
    """The expectations that failed."""


@dataclass(frozen=True)
class PreparedFile:
    """A file of tests that is ready to run."""

    file: ToolTests
    runner: Runner
    policy: Policy | None


def prepare_file(file: ToolTests, tools: Sequence[str] | None, extra: Toolset | None) -> PreparedFile:
    """Return the runner for the tests of a file. Guards and policy are real; tools are fakes unless the file is live.

    Args:
        file: The file, without errors.
        tools: Places to use in place of the file's own.
        extra: More tools.

    Raises:
        UsageError: There are no tools, or the policy is wrong.
        DefinitionError: An answer does not fit its tool.
    """
    places = tools or file.tools or None
    if places is None and extra is None:
        raise UsageError(f'{file.source} names no tools: add tools = ["shop.py"] to it, or write --tools')
    policies: list[Policy] = []
    runner = runners.join_tools(places, extra=extra, policy=lambda tools: _load_policy(file, tools, policies))
    runner = runners.without_effects(runner, _fake_tools(file, runner.tools))
    return PreparedFile(file, runner, policies[0] if policies else None)


def _load_policy(file: ToolTests, tools: Toolset, found: list[Policy]) -> Policy | None:
    if file.policy is None:
        return None
    policy = Policy([("session", file.policy)], tools=tools)
    errors = [finding for finding in policy.findings if finding.level == "error"]
    if errors:
        raise UsageError(f"the policy of {file.source}: {errors[0]}")
    found.append(policy)
    return policy


def _fake_tools(file: ToolTests, tools: Toolset) -> Toolset:
    try:
        if not file.live:
            return fake(tools, answers=file.answers)
        for name, answer in file.answers.items():
            tool = find_tool("answers", tools, name)
            tools = tools.replace(*fake(tool, answers={tool.name: answer}))
    except DefinitionError as error:
        raise DefinitionError(f"{file.source}: {error}") from None
    return tools


async def run_test(test: ToolTest, prepared: PreparedFile) -> TestOutcome:
    """Run one test, and compare its outcome with the expectations."""
    outcome, recorder = TestOutcome(test), Recorder(prepared.runner.tools)
    try:
        for name in test.approve if isinstance(test.approve, Mapping) else ():
            find_tool("approve", prepared.runner.tools, name)
        observers: list[Observer] = [*prepared.runner.observers, recorder]
        clock = None if test.at is None else _ClockAt(test.at)
        runner = prepared.runner.replace(approve=_approver(test), observers=observers, clock=clock)
        context = ToolContext[Any](principal=test.principal, session=test.session or new_id())
        if test.call is not None:
            await _run_call(outcome, test, runner, context)
        else:
            await _run_talk(outcome, test, runner, context)
        outcome.wrong += _check_calls(test, recorder)
        errors = (_check_denial(denial, recorder.events, prepared) for denial in test.denied)
        outcome.wrong += filter(None, errors)
    except DefinitionError as error:  # an unknown tool, or a model without a turn left
        outcome.wrong.append(str(error))
    if test.status is not None and outcome.status and outcome.status != test.status:
        outcome.wrong.append(f"the status is {outcome.status}; expected {test.status}")
    return outcome


class _ClockAt(Clock):
    """The clock of the machine, at another date."""

    time = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)

    def __init__(self, moment: float) -> None:
        self._moment = moment

    def now(self) -> float:
        """Return the moment of the test."""
        return self._moment


def _approver(test: ToolTest) -> Callable[..., Any]:
    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        answer = test.approve if isinstance(test.approve, str) else test.approve.get(call.name, "no")
        if answer == "later":
            decided: Decision = await later(call, decision, context)
            return decided
        return allow(by="the test") if answer == "yes" else deny("a person said no")

    return approve


async def _run_call(outcome: TestOutcome, test: ToolTest, runner: Runner, context: ToolContext) -> None:
    call = ToolCall("", str(test.call), test.arguments)
    result = await runner.run(call, context)
    outcome.status = result.status
    outcome.lines.append(f"call   {_format_call(call.replace(name=result.tool_name), result, runner)}")
    outcome.wrong += _check_contains("the result", test.result_contains, _text_of_result(result))


async def _run_talk(outcome: TestOutcome, test: ToolTest, runner: Runner, context: ToolContext) -> None:
    model = Scripted(test.model)
    running = run(model, model.user(str(test.user)), runner, context=context)
    reply = ""
    try:
        result = await running
        outcome.status, reply = result.status, result.text
        model.assert_done()
    except AssertionError as error:
        outcome.wrong.append(str(error))
    except DefinitionError:
        if len(model.requests) <= len(test.model):
            raise
        outcome.wrong.append('the model has too few turns: end them with { say = "…" }')
    finally:
        outcome.lines += _talk_lines(running.messages, running.results, runner)
    results = "\n".join(str(message["content"]) for message in running.messages if message["role"] == "tool")
    outcome.wrong += _check_contains("the reply", test.reply_contains, reply)
    outcome.wrong += _check_contains("the text for the model", test.told_contains, results)


def _text_of_result(result: ToolResult) -> str:
    return result.error if result.error is not None else result.text


def _check_contains(name: str, parts: Sequence[str], text: str) -> list[str]:
    return [f"{name} lacks {part!r}: {text!r:.500}" for part in parts if part not in text]


def _check_calls(test: ToolTest, recorder: Recorder) -> Iterator[str]:
    checks: list[Callable[[], None]] = [
        lambda call=call: recorder.assert_called(call.name, call.arguments, times=call.times)  # type: ignore[misc]
        for call in test.called
    ]
    checks += [lambda name=name: recorder.assert_not_called(name) for name in test.not_called]  # type: ignore[misc]
    for check in checks:
        try:
            check()
        except AssertionError as error:
            yield str(error)


def _check_denial(expected: ExpectedDenial, events: Sequence[Event], prepared: PreparedFile) -> str:
    """Return an error text if no call of the tool was denied, or not by a rule or reason with the expected text."""
    name = find_tool("denied", prepared.runner.tools, expected.name).name
    ended = [event.data["result"] for event in events if event.kind == "tool:error" and event.call.name == name]
    if not any(result.status == "denied" for result in ended):
        return f"no call of {name} was denied"
    if not expected.rule:
        return ""
    reasons = [_reason(event.data["decision"], prepared.policy) for event in _denials(events, name)]
    if any(expected.rule in reason for reason in reasons):
        return ""
    return f"no rule with {expected.rule!r} denied {name}; the reason was {'; '.join(reasons)!r:.500}"


def _denials(events: Sequence[Event], name: str) -> list[Event]:
    decided = [event for event in events if event.kind == "tool:decided" and event.call.name == name]
    return [event for event in decided if event.data["decision"].kind == "deny"]


def _reason(decision: Decision, policy: Policy | None) -> str:
    """Return the rule that decided, its text if the policy has it, and the reason."""
    rules = () if policy is None else policy.rules
    texts = next(((rule.text, rule.reason) for rule in rules if rule.name == decision.rule), ())
    return " ".join(dict.fromkeys(filter(None, (decision.rule, *texts, decision.reason))))


def _talk_lines(messages: Sequence[Message], results: Sequence[ToolResult], runner: Runner) -> Iterator[str]:
    remaining = iter(results)
    for message in messages:
        if message["role"] in ("user", "assistant") and message.get("content"):
            yield f"{'user' if message['role'] == 'user' else 'model':5}  {message['content']}"
        for request in message.get("tool_calls", ()):
            result = next(remaining, None)
            if result is None or result.call is None:
                yield f"call   {request['function']['name']}"
            else:
                yield f"call   {_format_call(result.call.replace(name=result.tool_name), result, runner)}"


def _format_call(call: ToolCall, result: ToolResult, runner: Runner) -> str:
    text = format_call(call.name, arguments_of(call, runner.tools.find(call.name)))
    output = f": {result.text!r:.200}" if result.status == "ok" else ""
    return f"{text} → {came_to(result)}{output}"
