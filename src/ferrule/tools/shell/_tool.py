"""Make a tool for lines or programs of a model in a sandbox."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, ToolError
from ferrule.tools.shell._limits import Limits
from ferrule.tools.shell._process import Ended, Output
from ferrule.tools.shell._protection import open_exactly
from ferrule.tools.shell._result import make_result
from ferrule.tools.shell._sandbox import Paths, Run, Sandbox, run_unsandboxed
from ferrule.tools.shell._sessions import LINE_WITH_STATE, VARIABLES_FILE, State, States, read_state
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, ask, deny
from ferrule.values.frozen import JsonObject
from ferrule.values.result import ToolResult

log = logging.getLogger("ferrule")

_SMALLEST: Final = 16 << 20
"""Bytes that bubblewrap itself and every program need."""
_MAX_TEXT: Final = 100_000  # Linux allows 131,072 bytes in one argument
_SECONDS_BETWEEN_REPORTS: Final = 0.25
_SHOWN_CHARACTERS: Final = 2000
PROGRAM_FILE: Final = "/tmp/program.py"

Directory = Annotated[
    str | None,
    Field(description="The folder to start in, relative to the project.", json_schema_extra={"format": "path"}),
]
NetworkNeed = Annotated[bool, Field(description="Needs the network. A person is asked.")]
WriteNeed = Annotated[
    list[Annotated[str, Field(json_schema_extra={"format": "path"})]],
    Field(description="More folders to write in, or protected paths. A person is asked.", max_length=20),
]
OutsideNeed = Annotated[
    str | None, Field(description="Why it must run without the sandbox, as the last resort. A person is asked.")
]


@dataclass(eq=False)
class Place:
    """The place where the calls of one tool run: a sandbox, or the machine itself. See docs/shell.md#options."""

    root: str | os.PathLike[str]
    read: Paths = ()
    write: Paths = ()
    env: Mapping[str, str] = field(default_factory=dict)
    protect: Sequence[str] = ()
    timeout: float = 120
    memory: int = 2 << 30
    processes: int = 256
    file_size: int = 1 << 30
    output: int = 30_000
    scratch: int = 256 << 20
    session: bool = False
    background: bool = False
    sandbox: Literal["bubblewrap"] | None = "bubblewrap"
    ask_needs: bool = True

    def __post_init__(self) -> None:
        self._check()
        self.folder = os.path.realpath(os.path.expanduser(self.root))
        if not os.path.isdir(self.folder):
            raise DefinitionError(f"root must be a folder, not {os.fspath(self.root)!r}")
        sizes = (int(self.memory), int(self.processes), int(self.timeout) + 60, int(self.file_size), int(self.output))
        self.limits = Limits(*sizes, float(self.timeout))
        self._states = States()
        self._box: Sandbox | None = None
        if self.sandbox is not None:
            self._box = Sandbox(
                self.folder, self.read, self.write, protect=self.protect, env=self.env, scratch=int(self.scratch)
            )
        elif not os.path.exists("/bin/bash"):
            raise DefinitionError("there is no /bin/bash on this system: run your program in a Linux container")
        else:
            log.warning("a tool for %r runs lines without a sandbox: they have all rights of this program", self.folder)

    def _check(self) -> None:
        """Raise a DefinitionError for a value that cannot work."""
        if isinstance(self.read, str) or isinstance(self.write, str) or isinstance(self.protect, str):
            raise DefinitionError("read, write and protect are lists of paths, such as read=['/data']")
        if self.sandbox not in ("bubblewrap", None):
            raise DefinitionError(f'sandbox must be "bubblewrap" or None, not {self.sandbox!r}')
        for name in ("timeout", "memory", "processes", "file_size", "output", "scratch"):
            value = getattr(self, name)
            least = _SMALLEST if name in ("memory", "file_size", "scratch") else 1
            if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
                raise DefinitionError(f"{name} must be a number of at least {least}, not {value!r}")
        for one, value in self.env.items():
            if not one or set("=\0") & set(one) or "\0" in value:
                raise DefinitionError(f"env holds names and values without NUL, not {one!r}")
        for path in self.protect:
            if os.path.isabs(path) or ".." in path.split(os.sep):
                raise DefinitionError(f"protect takes paths inside the root, such as 'migrations', not {path!r}")

    def is_sandboxed(self, arguments: JsonObject) -> bool:
        """Return whether a call runs in the sandbox and needs nothing outside it."""
        return self._box is not None and not any(arguments.get(name) for name in ("network", "write", "outside"))

    def judge(self, call: ToolCall, context: ToolContext) -> Decision | None:
        """Ask a person about a call that needs more than the sandbox gives."""
        given = call.arguments
        if self.is_sandboxed(given):
            return None
        reasons = []
        if self._box is None or given.get("outside"):
            why = f"; the model says why: {given['outside']!r}" if given.get("outside") else ""
            reasons.append(f"it runs without a sandbox, with all rights of this program{why}")
        else:
            if given.get("network"):
                reasons.append("it reaches the network, with every service of this machine and its neighbours")
            try:
                reasons += [f"it may write {self._box.resolve_write(path)!r}" for path in given.get("write") or ()]
            except (ValueError, OSError) as error:
                return deny(str(error))
        return ask("; ".join(reasons), rule="the needs of a line") if self.ask_needs else None

    def run(self, run: Run, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Run a program for a call. See `judge` for its needs."""
        remaining = context.remaining()
        seconds = self.timeout if remaining is None else min(self.timeout, remaining * 0.9)
        limits = self.limits._replace(seconds=seconds)
        run = replace(run, limits=limits, is_cancelled=lambda: context.cancelled, on_output=_Reporter(context))
        key = (context.principal, context.session)
        state = self._states.get(key) if self.session else State()
        if run.state_at is not None:
            run = replace(run, files={VARIABLES_FILE: state.variables if self.is_sandboxed(arguments) else b""})
        try:
            ended = self._run(run, arguments, state)
        except (ValueError, OSError) as error:
            raise ToolError(f"Nothing was run: {error}", executed=False) from error
        if ended.reason == "sandbox":
            raise ToolError(
                f"The sandbox could not start, so nothing was run: {ended.output.text[-300:]}", executed=False
            )
        self._states.set(key, read_state(ended.state))
        return make_result(ended, is_sandboxed=self._box is not None and not arguments.get("outside"))

    def _run(self, run: Run, arguments: Mapping[str, Any], state: State) -> Ended:
        cwd, environment = arguments.get("cwd"), {**self.env}
        if self._box is None:
            return run_unsandboxed(replace(run, directory=os.path.join(self.folder, cwd or ".")), environment)
        if self.is_sandboxed(arguments):
            try:
                directory = self._box.resolve_directory(cwd or state.directory or ".")
            except ValueError:  # the session's folder was removed, or lies in the private /tmp
                if cwd is not None:
                    raise
                directory = self.folder
            return self._box.run(replace(run, directory=directory))
        # A person has approved these words, and has not seen the state of the session or the programs in the root.
        run = replace(run, directory=self._box.resolve_directory(cwd or "."))
        environment = {"PATH": self._box.find_fixed_path(), **environment}
        if arguments.get("outside"):
            folder = open_exactly(run.directory)  # another line may swap the path
            try:
                return run_unsandboxed(replace(run, directory=f"/proc/self/fd/{folder}"), environment)
            finally:
                os.close(folder)
        write = tuple(map(self._box.resolve_write, arguments.get("write") or ()))
        return self._box.run(replace(run, network=bool(arguments.get("network")), write=write, variables=environment))


class _Reporter:
    """Reports the output so far as progress of the call, a few times a second."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._next = 0.0
        self._size = 0

    def __call__(self, output: Output) -> None:
        now = time.monotonic()
        if output.size != self._size and now >= self._next:
            self._size, self._next = output.size, now + _SECONDS_BETWEEN_REPORTS
            self._context.progress(output.size, message=output.end(_SHOWN_CHARACTERS))


def make_line_tool(place: Place, name: str) -> Tool:
    """Return the tool for lines of bash."""

    def run_line(
        context: ToolContext,
        command: Annotated[str, Field(max_length=_MAX_TEXT, description="A line of bash, or several.")],
        cwd: Directory = None,
        network: NetworkNeed = False,
        write: WriteNeed = [],  # noqa: B006 - a default of the schema
        outside: OutsideNeed = None,
    ) -> ToolResult:
        needs = {"cwd": cwd, "network": network, "write": write, "outside": outside}
        has_state = place.session and place.sandbox is not None and not outside
        state_at = (lambda number: [LINE_WITH_STATE % number, command]) if has_state else None
        return place.run(Run(['eval -- "$1"', command], place.folder, place.limits, state_at=state_at), context, needs)

    return _make_tool(place, name, run_line, _describe_shell(place))


def make_program_tool(place: Place, name: str, python: str) -> Tool:
    """Return the tool for programs in Python."""

    def run_program(
        context: ToolContext,
        code: Annotated[str, Field(max_length=1_000_000, description="The program. It shows what it prints.")],
        network: NetworkNeed = False,
        write: WriteNeed = [],  # noqa: B006 - a default of the schema
    ) -> ToolResult:
        script = ['exec "$@"', python, PROGRAM_FILE]
        run = Run(script, place.folder, place.limits, files={PROGRAM_FILE: code.encode()})
        return place.run(run, context, {"network": network, "write": write})

    return _make_tool(place, name, run_program, _describe_python(place, python))


def _make_tool(place: Place, name: str, handler: Callable[..., ToolResult], description: str) -> Tool:
    return Tool(
        name,
        handler,
        description=description,
        guards=[place.judge],
        timeout=place.limits.seconds * 1.2 + 15,  # the line's own deadline comes first, and says so
        background=place.background,
        open_world=lambda arguments: not place.is_sandboxed(arguments),
        sandboxed=place.is_sandboxed,
        metadata={"sandbox": "none" if place.sandbox is None else "bubblewrap"},
    )


_INSIDE: Final = (
    "It runs in a sandbox: it may change files in this folder, and has no network. /tmp and the home folder are empty "
    "at the start and lost at the end. Git's configuration and hooks, and settings of editors and agents, cannot be "
    "changed. If the result says that the sandbox refused something that the task needs, call again with that need."
)
_BARE: Final = "It runs without a sandbox, with all rights of the program: change nothing that the task does not need."


def _describe_shell(place: Place) -> str:
    kept = "The working directory and exported variables persist. " if place.session else ""
    boundary = _BARE if place.sandbox is None else _INSIDE
    return f"Run a line in bash in {place.folder}, without input. {kept}{boundary}"


def _describe_python(place: Place, python: str) -> str:
    return f"Run a program with {python} in {place.folder}, without input. {_INSIDE}"
