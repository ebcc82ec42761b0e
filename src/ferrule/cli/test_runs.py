"""Runs the tests of a file: each call or conversation, through the runner of the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ferrule import Decision, DefinitionError, Event, Runner, ToolCall, ToolContext, ToolResult, Toolset, allow, deny
from ferrule.approval import later
from ferrule.cli import find
from ferrule.cli.test_file import Denied, ToolTest, ToolTests
from ferrule.cli.usage import UsageError
from ferrule.journal import memory
from ferrule.loop.agent_loop import run
from ferrule.models import Message, Scripted
from ferrule.policy import Policy
from ferrule.testing import Recorder, fake
from ferrule.testing.comparing import arguments_of, came_to, format_call
from ferrule.testing.fake import find_tool
from ferrule.values.call import new_id


@dataclass
class Ran:
    """The outcome of one test."""

    test: ToolTest
    status: str = ""
    lines: list[str] = field(default_factory=list)
    """The history of the test, line by line."""
    wrong: list[str] = field(default_factory=list)
    """The expectations that were not met."""


@dataclass(frozen=True)
class Ready:
    """A file of tests that is ready to run."""

    file: ToolTests
    runner: Runner
    policy: Policy | None


def ready(file: ToolTests, tools: Sequence[str] | None, more: Toolset | None) -> Ready:
    """Return the runner that the tests of a file need: guards and policy are real, tools are fakes unless the file is
    live.

    Args:
        file: The file, without errors.
        tools: The places to use in place of the file's own.
        more: Tools besides.

    Raises:
        UsageError: There are no tools, or the policy is wrong.
        DefinitionError: An answer does not fit.
    """
    places = tools or file.tools or None
    if places is None and more is None:
        raise UsageError(f'{file.source} does not say where the tools are: tools = ["shop.py"], or --tools')
    policies: list[Policy] = []
    runner = find.runner(places, more=more, policy=lambda tools: _policy(file, tools, policies))
    journal: dict[str, Any] = {} if runner.journal is None else {"journal": memory()}
    runner = runner.replace(tools=_tools_of(file, runner.tools), observers=(), **journal)
    return Ready(file, runner, policies[0] if policies else None)


def _policy(file: ToolTests, tools: Toolset, found: list[Policy]) -> Policy | None:
    if file.policy is None:
        return None
    policy = Policy([("session", file.policy)], tools=tools)
    errors = [one for one in policy.findings if one.level == "error"]
    if errors:
        raise UsageError(f"the policy of {file.source}: {errors[0]}")
    found.append(policy)
    return policy


def _tools_of(file: ToolTests, tools: Toolset) -> Toolset:
    try:
        if not file.live:
            return fake(tools, answers=file.answers)
        for name, answer in file.answers.items():
            tool = find_tool("answers", tools, name)
            tools = tools.replace(*fake(tool, answers={tool.name: answer}))
    except DefinitionError as error:
        raise DefinitionError(f"{file.source}: {error}") from None
    return tools


async def run_test(test: ToolTest, ready: Ready) -> Ran:
    """Run one test, and compare its outcome with the expectations."""
    ran, recorder = Ran(test), Recorder(ready.runner.tools)
    try:
        for name in test.approve if isinstance(test.approve, Mapping) else ():
            find_tool("approve", ready.runner.tools, name)
        runner = ready.runner.replace(approve=_approver(test), observers=[recorder])
        context = ToolContext[Any](principal=test.principal, session=test.session or new_id())
        if test.call is not None:
            await _run_call(ran, test, runner, context)
        else:
            await _run_talk(ran, test, runner, context)
        ran.wrong += _not_as_called(test, recorder)
        ran.wrong += [said for one in test.denied if (said := _not_denied(one, recorder.events, ready))]
    except DefinitionError as error:  # a name that no tool has, or a model that is asked once more than it has turns
        ran.wrong.append(str(error))
    if test.status is not None and ran.status and ran.status != test.status:
        ran.wrong.append(f"the status is {ran.status}, and {test.status} was expected")
    return ran


def _approver(test: ToolTest) -> Callable[..., Any]:
    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        answer = test.approve if isinstance(test.approve, str) else test.approve.get(call.name, "no")
        if answer == "later":
            given: Decision = await later(call, decision, context)
            return given
        return allow(by="the test") if answer == "yes" else deny("a person said no")

    return approve


async def _run_call(ran: Ran, test: ToolTest, runner: Runner, context: ToolContext) -> None:
    call = ToolCall("", str(test.call), test.arguments)
    result = await runner.run(call, context)
    ran.status = result.status
    ran.lines.append(f"call   {_shown_result(call.replace(name=result.tool_name), result, runner)}")
    ran.wrong += _lacking("the result", test.result_contains, _text_of_result(result))


async def _run_talk(ran: Ran, test: ToolTest, runner: Runner, context: ToolContext) -> None:
    model = Scripted(test.model)
    running = run(model, model.user(str(test.user)), runner, context=context)
    reply = ""
    try:
        result = await running
        ran.status, reply = result.status, result.text
        model.assert_done()
    except AssertionError as error:
        ran.wrong.append(str(error))
    except DefinitionError:
        if len(model.requests) <= len(test.model):
            raise
        ran.wrong.append('the model was asked once more than it has turns: let its last one be { say = "…" }')
    finally:
        ran.lines += _talk_lines(running.messages, running.results, runner)
    told = "\n".join(str(one["content"]) for one in running.messages if one["role"] == "tool")
    ran.wrong += _lacking("the reply", test.reply_contains, reply)
    ran.wrong += _lacking("what the model was told", test.told_contains, told)


def _text_of_result(result: ToolResult) -> str:
    return result.error if result.error is not None else result.text


def _lacking(what: str, parts: Sequence[str], text: str) -> list[str]:
    return [f"{what} does not contain {part!r}; it is {text!r:.500}" for part in parts if part not in text]


def _not_as_called(test: ToolTest, recorder: Recorder) -> Iterator[str]:
    checks: list[Callable[[], None]] = [
        lambda one=one: recorder.assert_called(one.name, one.arguments, times=one.times)  # type: ignore[misc]
        for one in test.called
    ]
    checks += [lambda name=name: recorder.assert_not_called(name) for name in test.not_called]  # type: ignore[misc]
    for check in checks:
        try:
            check()
        except AssertionError as error:
            yield str(error)


def _not_denied(wanted: Denied, events: Sequence[Event], ready: Ready) -> str:
    """Describe the missing deny of a tool: no call was denied, or by no rule or reason with the wanted text."""
    name = find_tool("denied", ready.runner.tools, wanted.name).name
    ended = [event.data["result"] for event in events if event.kind == "tool:error" and event.call.name == name]
    if not any(result.status == "denied" for result in ended):
        return f"no call of {name} was denied"
    if not wanted.rule:
        return ""
    reasons = [_reason(event.data["decision"], ready.policy) for event in _denials(events, name)]
    if any(wanted.rule in reason for reason in reasons):
        return ""
    return f"{name} was denied by no rule with {wanted.rule!r}; the reason was {'; '.join(reasons)!r:.500}"


def _denials(events: Sequence[Event], name: str) -> list[Event]:
    decided = [event for event in events if event.kind == "tool:decided" and event.call.name == name]
    return [event for event in decided if event.data["decision"].kind == "deny"]


def _reason(decision: Decision, policy: Policy | None) -> str:
    """Return the rule that spoke, its text if the policy has it, and the reason."""
    rules = () if policy is None else policy.rules
    said = next(((rule.text, rule.reason) for rule in rules if rule.name == decision.rule), ())
    return " ".join(dict.fromkeys(filter(None, (decision.rule, *said, decision.reason))))


def _talk_lines(messages: Sequence[Message], results: Sequence[ToolResult], runner: Runner) -> Iterator[str]:
    came = iter(results)
    for message in messages:
        if message["role"] in ("user", "assistant") and message.get("content"):
            yield f"{'user' if message['role'] == 'user' else 'model':5}  {message['content']}"
        for written in message.get("tool_calls", ()):
            result = next(came, None)
            if result is None or result.call is None:
                yield f"call   {written['function']['name']}"
            else:
                yield f"call   {_shown_result(result.call.replace(name=result.tool_name), result, runner)}"


def _shown_result(call: ToolCall, result: ToolResult, runner: Runner) -> str:
    shown = format_call(call.name, arguments_of(call, runner.tools.find(call.name)))
    given = f": {result.text!r:.200}" if result.status == "ok" else ""
    return f"{shown} → {came_to(result)}{given}"
