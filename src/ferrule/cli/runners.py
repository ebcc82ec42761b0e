"""Makes the runner of a command: as its developer made it, or with the policy of the command line."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeAlias

from ferrule import Decision, DefinitionError, Runner, Tool, ToolCall, ToolContext, Toolset, allow
from ferrule.approval import Answer, Asked, Grants, RequestApprover, console, remembered
from ferrule.approval.request import run_blocking
from ferrule.cli import openapi, policies
from ferrule.cli.grant_store import GrantStore
from ferrule.cli.load import load_object
from ferrule.cli.text import warn
from ferrule.cli.usage import UsageError, check_known, suggest
from ferrule.definition.handler import is_async
from ferrule.guards import ask_before_changes, within
from ferrule.journal import memory
from ferrule.middleware import limit_output
from ferrule.sources._objects import to_toolset
from ferrule.stores.store import ReachableError
from ferrule.types import Approver, Guard, Observer

DEFAULT = "ferrule.tools.files"
TIMEOUT = 60.0
OUTPUT = 16_000
Pause: TypeAlias = Callable[[], AbstractContextManager[object]]
Answering: TypeAlias = Callable[[ToolCall, Decision, ToolContext], Awaitable[Any]]
Scope: TypeAlias = Literal["session", "folder"]


def make_runner(options: argparse.Namespace, extra: Toolset | None, **settings: Any) -> Runner:
    """Return the runner that the options of a command describe.

    Args:
        options: The options of the command line.
        extra: The tools of `--mcp` and `--openapi`.
        settings: Other arguments of `join_tools`.
    """
    return join_tools(
        options.tools,
        yes=getattr(options, "yes", ()),
        extra=extra,
        lock=options.lock,
        policy=policies.policy_loader(options),
        secrets=openapi.read_secrets(options),
        **settings,
    )


def join_tools(
    places: Sequence[str] | None,
    *,
    pause: Pause = nullcontext,
    yes: Sequence[str] = (),
    extra: Toolset | None = None,
    approver: Answering | None = None,
    lock: str | None = None,
    policy: Callable[[Toolset], Guard | None] = lambda tools: None,
    remember: Scope | None = None,
    secrets: Mapping[str, str] | None = None,
    resume_key: bytes | None = None,
) -> Runner:
    """Return one runner for the tools in all places.

    A single runner with guards is used unchanged; if it has no approver, the person at the terminal answers. All other
    tools run under the policy of the command line: paths stay in the working directory, and a person approves each
    change. Runners keep their observers. A policy file applies to both: its rules are added to a runner's own guards,
    and replace the question about every change.

    Args:
        places: Files, modules, or either with an attribute.
        pause: Entered while a person is asked, because other text may be written on the same terminal.
        yes: The tools that the person who starts the program approves in advance.
        extra: More tools. Without places, these are all tools.
        approver: The approver of a runner without one; by default the person at the terminal.
        lock: A lock file that the tools must match.
        policy: Returns the policy for the tools, if there is one.
        remember: The smallest scope of a grant by the person at the terminal. By default there are no grants.
        secrets: Secrets for handlers, in addition to those of a runner.
        resume_key: The key that seals suspended calls; a runner that is used unchanged keeps its own.

    Raises:
        UsageError: A place or a tool does not exist, a policy file is wrong, or `yes` would replace the approver of a
            runner with guards.
    """
    found = [(place, load_object(place)) for place in places or ([DEFAULT] if extra is None else [])]
    objects = [item for _, item in found]
    if approver is None:
        person = _PersonAtTerminal(console(), pause)
        approver = _with_grants(person, objects, remember) if remember else person
    if len(found) == 1 and extra is None and isinstance(objects[0], Runner) and objects[0].guards:
        runner = objects[0]
        if runner.approve is not None and yes:
            raise UsageError(f"--yes: the runner in {found[0][0]!r} has its own approver, which has to answer")
        runner = runner if lock is None else runner.replace(tools=apply_lock(runner.tools, lock))
        _check_yes(runner.tools, yes)
        rules = policy(runner.tools)
        return runner.replace(
            guards=[*runner.guards, *([] if rules is None else [rules])],
            approve=_allow_named(yes, approver) if runner.approve is None else _ask_after_events(runner.approve, pause),
        )
    tools = Toolset([]) if extra is None else extra
    for place, item in found:
        try:
            tools = tools + to_toolset(item)
        except DefinitionError as error:
            raise UsageError(f"the tools of {place!r} cannot be used: {error}") from None
    if lock is not None:
        tools = apply_lock(tools, lock)
    _check_yes(tools, yes)
    return Runner(
        tools,
        guards=[within(), policy(tools) or ask_before_changes],
        around=[limit_output(OUTPUT)],
        approve=_allow_named(yes, approver),
        observers=_list_observers(objects),
        secrets=secrets,
        timeout=TIMEOUT,
        resume_key=resume_key,
    )


def find_tool(tools: Toolset, name: str, options: argparse.Namespace | None = None) -> Tool:
    """Return the tool with this name.

    Raises:
        UsageError: There is none. The text names the nearest one.
    """
    tool = tools.find(name)
    if tool is not None:
        return tool
    if (quarantined := tools.find_quarantined_tool(name)) is not None:
        raise UsageError(f"{name!r} is quarantined: it {quarantined.quarantine}")
    is_default = options is not None and not (options.tools or options.mcp or options.openapi)
    if is_default and name.endswith(".py"):
        raise UsageError(f"there is no tool {name!r}; to use the tools in that file, write --tools {name}")
    hint = " (these are built in; --tools FILE_OR_MODULE adds others)" if is_default else ""
    raise UsageError(f"there is no tool {name!r}; {suggest(name, [tool.name for tool in tools])}{hint}")


def apply_lock(tools: Toolset, file: str) -> Toolset:
    """Return the tools that match the lock file. The others are reported on standard error."""
    checked = tools.with_lock(file)
    for tool in checked.quarantined:
        warn(f"{tool.name!r} is quarantined: it {tool.quarantine}")
    return checked


def grant_scope(options: argparse.Namespace) -> Scope:
    """Return the smallest scope of a grant. A session without a name has no later calls."""
    return "session" if options.session else "folder"


def without_effects(runner: Runner, tools: Toolset, **changes: Any) -> Runner:
    """Return the runner with fake tools, for tests: nothing is recorded, and only guards observe, such as a `flow`."""
    journal: dict[str, Any] = {} if runner.journal is None else {"journal": memory()}
    halves = [one for one in runner.observers if hasattr(one, "check_runner")]
    return runner.replace(tools=tools, observers=halves, **journal, **changes)


def list_roots(runners: Sequence[object]) -> list[str]:
    """Return the folders in which the guards of the runners and of their tools allow paths."""
    found = [runner for runner in runners if isinstance(runner, Runner)]
    guards = [
        guard
        for runner in found
        for guard in (*runner.guards, *(guard for tool in runner.tools for guard in tool.guards))
    ]
    return [root for guard in guards for root in getattr(guard, "roots", ())]


class _PersonAtTerminal:
    """The person at the terminal. Questions come one at a time, after the events that lead to them.

    Args:
        approver: Asks the question.
        pause: Entered while the question is on the screen.
    """

    def __init__(self, approver: RequestApprover, pause: Pause) -> None:
        self._approver = approver
        self._pause = pause
        self._lock = asyncio.Lock()
        self.note = ""
        """Printed once, before the first question."""

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return (await self.answer(Asked.of(call, decision, context))).decision

    async def answer(self, question: Asked) -> Answer:
        """Return the answer of the person."""
        async with self._lock:
            await asyncio.sleep(0)
            with self._pause():
                if self.note and sys.stdin is not None and sys.stdin.isatty():
                    warn(self.note)
                    self.note = ""
                return await self._approver.answer(question)


def _with_grants(person: _PersonAtTerminal, objects: Sequence[object], scope: Scope) -> Answering:
    """Return the person with grants. If tools may reach the store of the grants, the person is asked each time.

    Raises:
        StoreError: Somebody changed the stored grants.
    """
    try:
        return remembered(person, Grants(GrantStore(list_roots(objects)), scope=scope))
    except ReachableError as error:
        person.note = f"answers are not remembered here: {error}"
        return person


def _list_observers(objects: Sequence[object]) -> list[Observer]:
    """Return the observers of the runners, each once, so that a program's own log has these calls."""
    observers = [observer for item in objects if isinstance(item, Runner) for observer in item.observers]
    return list({id(observer): observer for observer in observers}.values())


def _check_yes(tools: Toolset, yes: Sequence[str]) -> None:
    check_known("tool", yes, [tool.name for tool in tools], "--yes")


def _allow_named(names: Collection[str], approver: Answering) -> Answering:
    """Return an approver that allows the named tools, and asks about all others."""

    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        is_question = decision.into is None and decision.schema is None
        return allow(by="--yes") if call.name in names and is_question else await approver(call, decision, context)

    return approve if names else approver


def _ask_after_events(approver: Approver, pause: Pause) -> Answering:
    """Return an approver that lets the events before a question appear first.

    Args:
        approver: The approver to ask.
        pause: Entered while it answers.
    """

    async def ask(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        await asyncio.sleep(0)
        with pause():
            if is_async(approver):
                return await approver(call, decision, context)  # type: ignore[misc]
            answer: Any = await run_blocking(lambda: approver(call, decision, context))  # as the runner does
            return await answer if isinstance(answer, Awaitable) else answer

    return ask
