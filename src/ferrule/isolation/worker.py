"""A worker: the program of a process that runs handlers, one call at a time.

It imports the handler's module, validates the judged text again with the tool's own parameters, so that the handler
gets real objects, and sends back what the handler returned or raised. `supervisor.py` starts it, `workers.py` holds the
other end of the line, and `protocol.py` is the language that they speak.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from socket import socket
from time import monotonic, perf_counter
from typing import Any, NoReturn

from ferrule.arguments.argument_errors import Mistakes
from ferrule.definition.tool import Tool
from ferrule.errors import ToolError
from ferrule.executors.chunks import collected
from ferrule.executors.threads import Raised
from ferrule.isolation import protocol as crossing
from ferrule.isolation.protocol import Crossed, Kind, Line, Transfer, packed, told, unpacked_items
from ferrule.values.call import ToolCall
from ferrule.values.context import CURRENT, UNSET, CallState, new_state

_LEFTOVER_SECONDS = 1.0


def serve(end: socket) -> None:
    """Take calls until the other end is closed."""
    line = Line(end)
    # A forked child of a handler's must neither answer for it nor hold the line when it has died.
    os.register_at_fork(after_in_child=line.abandon)
    crossing.IN_WORKER = True
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    worker = Worker(line)
    while True:
        try:
            for kind, parts in line.receive():
                worker.take(kind, parts)
        except (EOFError, OSError, KeyboardInterrupt):
            return


class Worker:
    """What lasts from one call to the next: the tools that were made, the loop, and where the program stands."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._tools: dict[bytes, Tool] = {}
        self._loop = Loop()
        self._directory: str | None = None

    def take(self, kind: int, parts: list[bytes]) -> None:
        """Do what a frame says."""
        if kind == Kind.PREPARE:
            for recipe in parts:
                with suppress(BaseException):  # the call that needs it will say what is wrong
                    self._tools[recipe] = made(json.loads(recipe))
            self._line.send(Kind.READY)
        elif kind == Kind.CALL:
            self._call(*parts)

    def _call(self, recipe: bytes, surroundings: bytes, head: bytes, body: bytes) -> None:
        answer = Answer(self._line)
        told_of = json.loads(head)
        try:
            self._stand(surroundings)
            tool = self._tools.get(recipe)
            if tool is None:
                tool = made(json.loads(recipe))
                if len(self._tools) >= crossing.RECIPES:
                    self._tools.clear()
                self._tools[recipe] = tool
            values, text = _values(tool, told_of["transfer"], body)
            state = _state(tool, told_of, text, answer)
        except BaseException as error:
            self._line.send(Kind.UNSTARTED, told(error))
            return
        outcome = copy_context().run(self._run, state, values)
        if not isinstance(outcome, Raised):
            try:
                outcome = packed(outcome, told_of["transfer"])
            except Exception as error:
                outcome = Raised(error)
        _flush()
        answer.end(state, outcome)

    def _stand(self, surroundings: bytes) -> None:
        """Be where the program is: directory, path of imports, environment."""
        if surroundings:
            self._directory, sys.path[:], environment = json.loads(surroundings)
            for name in os.environ.keys() - environment.keys():
                del os.environ[name]
            os.environ.update({k: v for k, v in environment.items() if os.environ.get(k) != v})
        if self._directory is not None:
            with suppress(OSError):  # it was removed meanwhile
                os.chdir(self._directory)

    def _run(self, state: CallState, values: Any) -> Any:
        CURRENT.set(state)
        handling = state.plan.tool._handling
        try:
            value = handling.call(values, state.context)
            if handling.streams:
                value = collected(value, state, text=state.plan.tool._output.exact is str)
            return self._loop.run(value, copy_context()) if inspect.isawaitable(value) else value
        except BaseException as error:
            return Raised(error)


class Answer:
    """What goes back from one call: progress, and then how it ended, after which no more is said of it."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def announce(self, state: CallState, what: Mapping[str, Any]) -> None:
        """From any thread of the handler's."""
        frame = json.dumps(dict(what), default=str).encode()
        with suppress(OSError):  # a forked child has no line
            self._line.send(Kind.PROGRESS, frame, unless=lambda: state.ended)

    def end(self, state: CallState, outcome: bytes | Raised) -> None:
        """Send what the handler returned, or what it raised."""
        state.ended = True
        if isinstance(outcome, Raised):
            self._line.send(Kind.RAISED, told(outcome.error))
        else:
            self._line.send(Kind.VALUE, outcome)


class Plan:
    """What a context needs of the kernel: here it is the program, at the other end of the line."""

    __slots__ = ("announce", "tool")

    def __init__(self, tool: Any, answer: Answer) -> None:
        self.tool = tool
        self.announce = answer.announce

    def run_nested(self, state: CallState, name: str, arguments: Any) -> NoReturn:
        """Refuse: guards, approvals and slots are in the program."""
        raise ToolError(
            f"context.run({name!r}) is not available in an isolated process: call other tools from the parent"
        )

    def remaining(self, deadline: float) -> float:
        """Seconds until `deadline`, by the clock that all processes of a machine share."""
        return max(0.0, deadline - monotonic())


class Loop:
    """The event loop of async handlers, reused. What a handler leaves running on it ends with its call."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, awaitable: Any, context: Context) -> Any:
        """What `awaitable` gives.

        Raises:
            BaseException: what it raised.
        """
        if self._runner is None:
            self._runner = asyncio.Runner()
        runner = self._runner
        try:
            outcome = runner.run(_contained(awaitable), context=context)
        finally:
            if runner.get_loop().is_closed():
                self._runner = None
            else:
                self._end_leftovers(runner)
        if isinstance(outcome, Raised):
            raise outcome.error
        return outcome

    def _end_leftovers(self, runner: asyncio.Runner) -> None:
        left = asyncio.all_tasks(runner.get_loop())
        if not left:
            return
        for task in left:
            task.cancel()
        if runner.run(_stubborn(left)):  # the next call gets a loop without them
            self._runner = None


async def _contained(awaitable: Any) -> Any:
    """Nothing is raised out of it: a `SystemExit` in a task would end the loop."""
    try:
        return await awaitable
    except BaseException as error:
        return Raised(error)


async def _stubborn(tasks: set[asyncio.Task[Any]]) -> bool:
    """Whether any of the cancelled tasks goes on."""
    return bool((await asyncio.wait(tasks, timeout=_LEFTOVER_SECONDS))[1])


# -- from a frame to a handler ---------------------------------------------------------------------------------------


def made(recipe: Mapping[str, Any]) -> Tool:
    """The tool of a recipe: made from the handler itself, as the program made its own."""
    options = dict(recipe["options"])
    found = resolved(*recipe["target"])
    if recipe["model"] is not None:
        options["args_model"] = resolved(*recipe["model"])
    if isinstance(found, Tool):
        if found.context is not UNSET:
            options["context"] = found.context
        options |= {name: getattr(found, name) for name in recipe["callables"]}
    tool = Tool(recipe["name"], found.handler if isinstance(found, Tool) else found, **options)
    if recipe["wrap"] is not None:
        wrap: Callable[[Any], Any] = resolved(*recipe["wrap"])
        wrap(tool._handling)
    return tool


def resolved(module: str, qualname: str, file: str | None) -> Any:
    """What is called `qualname` in a module; a decorated function may be the tool that was made of it.

    Raises:
        Exception: whatever the import raises.
    """
    found: Any = _import(module, file)
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


def _import(name: str, file: str | None) -> Any:
    """Import a module, from its file where the program has it under a name that no path leads to."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if file is None or error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _values(tool: Tool, transfer: Transfer, body: bytes) -> tuple[Any, str]:
    """What the handler gets, and the judged text."""
    if transfer == "pickle":
        values, text = pickle.loads(body)
        return values, text
    text = body.decode("utf-8", "surrogatepass")
    try:
        return tool._handling.parameters.values(text), text
    except Mistakes as mistakes:
        wrong = "; ".join(f"{'.'.join(map(str, one.path))} {one.expected}".strip() for one in mistakes.found[:5])
        raise ValueError(f"the arguments do not fit the handler in its module: {wrong}") from None


def _state(tool: Tool, head: dict[str, Any], text: str, answer: Answer) -> CallState:
    """The call as the handler and its helpers see it."""
    transfer = head["transfer"]
    call = ToolCall(head["id"], tool.name, text, parent=head["parent"])
    metadata, secrets = (unpacked_items(head[key], transfer) for key in ("metadata", "secrets"))
    given = (head["session"], head["principal"], head["working_directory"], None, metadata, secrets)
    shown = tool if head["context"] is None else _with_context(tool, unpacked_items(head["context"], transfer))
    state = new_state(given, Plan(shown, answer), call, call, None, perf_counter())
    state.executed = None
    state.deadline = head["deadline"]
    return state


def _with_context(tool: Tool, crossed: Crossed) -> Tool:
    """The tool with the program's `context=`; what could not cross is taken from the module's own."""
    own = tool.context if isinstance(tool.context, Mapping) else {}
    left = {key: why for key, why in crossed.left.items() if key not in own}
    return tool._with(context=Crossed({**own, **crossed}, left))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the handler may have closed or replaced it
            stream.flush()
