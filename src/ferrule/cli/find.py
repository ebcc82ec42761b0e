"""Resolves `--tools`: a runner as its developer made it, or tools under the program's own policy."""

from __future__ import annotations

import argparse
import asyncio
import functools
import re
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, Literal, TypeAlias, TypeVar

from ferrule import Decision, DefinitionError, Runner, Tool, ToolCall, ToolContext, Toolset, allow
from ferrule.approval import Answer, Asked, AskedApprover, Grants, console, printable, remembered
from ferrule.approval.asked import off_the_loop
from ferrule.approval.remembered import Remembered
from ferrule.cli import load
from ferrule.cli.kept import Kept
from ferrule.cli.usage import UsageError, choices
from ferrule.definition.handler import is_async
from ferrule.guards import ask_before_changes, within
from ferrule.middleware import limit_output
from ferrule.sources._objects import to_toolset
from ferrule.stores.store import ReachableError
from ferrule.types import Approver, Guard, Observer

DEFAULT = "ferrule.tools.files"
TIMEOUT = 60.0
OUTPUT = 16_000
_FILE = re.compile(r"(?P<file>.+?\.py)(?::(?P<attribute>[\w.]+))?$")
_MODULE = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?::(?P<attribute>[\w.]+))?$")
_T = TypeVar("_T")
Pause: TypeAlias = Callable[[], AbstractContextManager[object]]
Answering: TypeAlias = Callable[[ToolCall, Decision, ToolContext], Awaitable[Any]]


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add the option of the commands that may ask."""
    parser.add_argument(
        "--yes",
        action="append",
        default=[],
        metavar="TOOL",
        help="run this tool without asking where it would be asked about; may be repeated. What is denied stays denied",
    )


def add_lock(parser: argparse.ArgumentParser) -> None:
    """Add the option of the commands that offer or run tools."""
    parser.add_argument(
        "--lock",
        metavar="FILE",
        help="offer and run only tools that are as `ferrule lock` wrote them into this file",
    )


def add_session(parser: argparse.ArgumentParser) -> None:
    """Add the option of the commands that may remember answers."""
    parser.add_argument(
        "--session",
        metavar="NAME",
        help="the session that the calls belong to: what you allow for it holds when you give its name again. Without "
        "it, what you allow holds for the working directory",
    )


def tool(tools: Toolset, name: str, places: Sequence[str] | None) -> Tool:
    """Return the tool of this name.

    Raises:
        UsageError: There is none; the error names the nearest one.
    """
    found = tools.find(name)
    if found is not None:
        return found
    if (aside := tools.find_quarantined_tool(name)) is not None:
        raise UsageError(f"{name!r} is quarantined: it {aside.quarantine}")
    if places is None and name.endswith(".py"):
        raise UsageError(f"there is no tool {name!r}: the tools in that file are named by --tools {name}")
    more = " (these are built in; --tools FILE_OR_MODULE names others)" if places is None else ""
    raise UsageError(f"there is no tool {name!r}; {choices(name, [tool.name for tool in tools])}{more}")


def runner(
    places: Sequence[str] | None,
    pause: Pause = nullcontext,
    yes: Sequence[str] = (),
    more: Toolset | None = None,
    asked: Answering | None = None,
    lock: str | None = None,
    policy: Callable[[Toolset], Guard | None] = lambda tools: None,
    remember: Literal["session", "folder"] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Runner:
    """Return the one runner for everything that `places` name.

    A runner with guards, found alone, is used as it is; if it has nobody to ask, the person at the terminal is asked.
    Everything else runs under this program's policy: paths stay in the working directory, changes are asked about, and
    denied if there is nobody to ask. Runners keep their observers. A policy file holds for both: its rules stand beside
    a runner's own guards, and replace the question about every change.

    Args:
        places: Files, modules, or either with an attribute.
        pause: Entered while a person is asked, because something else may be written on the person's terminal.
        yes: The tools that the person who starts the program has approved in advance.
        more: Tools besides those; without places, they are all.
        asked: The approver for a runner without one; the person at the terminal if left out.
        lock: The file by which the tools are locked.
        policy: Returns the policy for the tools, if there is one.
        remember: The least scope of a grant by the person at the terminal; if left out, the person cannot grant any.
        secrets: Secrets for handlers, besides those of a runner.

    Raises:
        UsageError: A place or a tool does not exist, a policy file is wrong, or `yes` would answer in place of
            the approver of a runner with guards.
    """
    found = [(place, object_at(place)) for place in places or ([DEFAULT] if more is None else [])]
    alone = found[0][1] if len(found) == 1 and more is None else None
    if asked is None:
        person = _AtTheTerminal(console(), pause)
        asked = _remembering(person, found, remember) if remember else person
    if isinstance(alone, Runner) and alone.guards:
        own = alone.approve
        if own is not None and yes:
            raise UsageError(f"the runner in {found[0][0]!r} has an approver of its own: --yes does not answer for it")
        alone = alone if lock is None else alone.replace(tools=locked_by(alone.tools, lock))
        allowed = _names(alone.tools, yes, places)
        found_policy = policy(alone.tools)
        return alone.replace(
            guards=[*alone.guards, *([] if found_policy is None else [found_policy])],
            approve=_allowing(allowed, asked) if own is None else _asked_last(own, pause),
        )
    tools = Toolset([]) if more is None else more
    for place, what in found:
        try:
            tools = tools + to_toolset(what)
        except DefinitionError as error:
            raise UsageError(f"the tools of {place!r} cannot be used: {error}") from None
    if lock is not None:
        tools = locked_by(tools, lock)
    return Runner(
        tools,
        guards=[within(), policy(tools) or ask_before_changes],
        around=[limit_output(OUTPUT)],
        approve=_allowing(_names(tools, yes, places or (None if more is None else [])), asked),
        observers=_observers([what for _, what in found]),
        secrets=secrets,
        timeout=TIMEOUT,
    )


def locked_by(tools: Toolset, file: str) -> Toolset:
    """Return the tools that match the lock file. The others are reported on standard error."""
    locked = tools.with_lock(file)
    for one in locked.quarantined:
        print(printable(f"ferrule: {one.name!r} is quarantined: it {one.quarantine}"), file=sys.stderr)
    return locked


def scope_of(options: argparse.Namespace) -> Literal["session", "folder"]:
    """Return the least scope of a grant: a session without a name never comes again."""
    return "session" if options.session else "folder"


def _remembering(
    person: _AtTheTerminal, found: Sequence[tuple[str, Any]], scope: Literal["session", "folder"]
) -> Remembered | _AtTheTerminal:
    """Return the person with a memory for grants. If the store cannot be separated from the files that tools may reach,
    the person is asked each time.

    Raises:
        StoreError: The stored grants were changed.
    """
    try:
        kept = Kept(roots_of([what for _, what in found if isinstance(what, Runner)]))
        return remembered(person, Grants(kept, scope=scope))
    except ReachableError as error:
        person.note = f"ferrule: answers are not remembered here: {error}"
        return person


def roots_of(runners: Sequence[Runner]) -> list[str]:
    """Return the folders in which the guards of the runners and of their tools allow paths."""
    guards = [guard for one in runners for guard in (*one.guards, *(own for tool in one.tools for own in tool.guards))]
    return [root for guard in guards for root in getattr(guard, "roots", ())]


class _AtTheTerminal:
    """The person at the terminal. Several questions come one after another, each after the events that announce it are
    shown.

    Args:
        approve: The approver that asks.
        pause: Entered meanwhile.
    """

    def __init__(self, approve: AskedApprover, pause: Pause) -> None:
        self._approve = approve
        self._pause = pause
        self._turn = asyncio.Lock()
        self.note = ""
        """A note to print once, before the first question to a person who is there."""

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return (await self.answer(Asked.of(call, decision, context))).decision

    async def answer(self, asked: Asked) -> Answer:
        """Return the answer of the person."""
        async with self._turn:
            await asyncio.sleep(0)
            with self._pause():
                if self.note and sys.stdin is not None and sys.stdin.isatty():
                    print(printable(self.note), file=sys.stderr)
                    self.note = ""
                return await self._approve.answer(asked)


def _observers(found: Sequence[object]) -> list[Observer]:
    """Return the observers of the runners, each once: a program's own log has these calls too."""
    every = [observer for what in found if isinstance(what, Runner) for observer in what.observers]
    return list({id(observer): observer for observer in every}.values())


def _names(tools: Toolset, yes: Sequence[str], places: Sequence[str] | None) -> set[str]:
    try:
        return {tool(tools, name, places).name for name in yes}
    except UsageError as error:
        raise UsageError(f"--yes: {error}") from None


def _allowing(allowed: Collection[str], asked: Answering) -> Answering:
    """Return an approver that allows the tools named in advance, and asks about all others."""

    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        may = call.name in allowed and decision.into is None and decision.schema is None
        return allow(by="--yes") if may else await asked(call, decision, context)

    return approve if allowed else asked


def _asked_last(approve: Approver, pause: Pause) -> Answering:
    """Return an approver that first lets the display of events show the question's call, before the question appears.

    Args:
        approve: The approver to ask.
        pause: Entered meanwhile.
    """

    async def asked(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        await asyncio.sleep(0)
        with pause():
            if is_async(approve):
                return await approve(call, decision, context)  # type: ignore[misc]
            answer: Any = await off_the_loop(lambda: approve(call, decision, context))  # as the runner does
            return await answer if isinstance(answer, Awaitable) else answer

    return asked


def object_at(place: str) -> Any:
    """Return the runner, toolset, tools, or else the module or object itself.

    Raises:
        UsageError: It does not exist, or cannot be imported.
    """
    module, attribute = _load(place)
    if attribute is None:
        return _best(module, place)
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError:
        raise UsageError(f"there is no {attribute!r} in {place.rpartition(':')[0]!r}") from None
    except Exception as error:  # a property, or a module's own __getattr__
        raise load.broken(place, error) from error


def _best(module: ModuleType, place: str) -> Any:
    for kind in (Runner, Toolset):
        found = _of_kind(module, kind)
        if len(found) > 1:
            names = ", ".join(f"{place}:{name}" for name in found)
            raise UsageError(f"there are several {kind.__name__}s in {place!r}; name one of them: {names}")
        if found:
            return next(iter(found.values()))
    return list(_of_kind(module, Tool).values()) or module


def _of_kind(module: ModuleType, kind: type[_T]) -> dict[str, _T]:
    """Return names and objects, each object once."""
    found: dict[str, _T] = {}
    for name, value in vars(module).items():
        if isinstance(value, kind) and not any(value is other for other in found.values()):
            found[name] = value
    return found


def _load(place: str) -> tuple[ModuleType, str | None]:
    if match := _FILE.match(place):
        return load.load_file(match["file"]), match["attribute"]
    if match := _MODULE.match(place):
        return load.load_module(match["module"]), match["attribute"]
    raise UsageError(f"{place!r} is no place for tools: give a file such as tools.py, a module, or either with :name")
