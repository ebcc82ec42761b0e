"""Make a tool for lines or programs of a model in a sandbox."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final

from pydantic import Field

from ferrule.definition.tool import Tool
from ferrule.errors import ToolError
from ferrule.tools.shell._options import Options
from ferrule.tools.shell._process import Output, Program, Run
from ferrule.tools.shell._protection import open_exactly
from ferrule.tools.shell._result import make_result
from ferrule.tools.shell._sandbox import Sandbox, run_unsandboxed
from ferrule.tools.shell._sessions import Sessions
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, ask, deny
from ferrule.values.result import ToolResult

log = logging.getLogger("ferrule")

_MAX_TEXT: Final = 100_000  # Linux allows 131,072 bytes in one argument
_SHOWN_CHARACTERS: Final = 2000

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


class Place:
    """The place where the calls of one tool run: a sandbox, or the machine itself.

    Raises:
        DefinitionError: There is no such place here.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._sessions = Sessions(options.folder)
        self._box = Sandbox(options) if options.sandbox is not None else None
        if self._box is None:
            log.warning("lines in %r run without a sandbox, with all rights of this program", options.folder)

    def is_sandboxed(self, arguments: Mapping[str, object]) -> bool:
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
        return ask("; ".join(reasons), rule="the needs of a line") if self.options.ask_needs else None

    def run(self, run: Run, context: ToolContext, needs: Mapping[str, Any]) -> ToolResult:
        """Run a program for a call. See `judge` for its needs."""
        remaining = context.remaining()
        seconds = self.options.timeout if remaining is None else min(self.options.timeout, remaining * 0.9)
        shown = 0

        def look(output: Output) -> str | None:
            nonlocal shown
            if output.size != shown:
                shown = output.size
                context.progress(shown, message=output.end(_SHOWN_CHARACTERS))
            return "cancelled" if context.cancelled else None

        run = replace(run, seconds=seconds, look=look)
        try:
            program = self._run(run, needs, (context.principal, context.session))
        except (ValueError, OSError) as error:
            raise ToolError(str(error), executed=False) from error
        if program.reason is None or program.reason == "sandbox":
            words = program.output.text[-300:]
            raise ToolError(f"the sandbox could not start: {words}", executed=False)
        return make_result(program, is_sandboxed=self._box is not None and not needs.get("outside"))

    def _run(self, run: Run, needs: Mapping[str, Any], session: object) -> Program:
        cwd = needs.get("cwd") or "."
        if self._box is None:
            directory = os.path.join(self.options.folder, cwd)
            return run_unsandboxed(replace(run, directory=directory), self.options)
        run = replace(run, directory=self._box.resolve_directory(cwd))
        if self.is_sandboxed(needs):
            if not self.options.session:
                return self._box.run(run)
            with self._sessions.join(session, run, run.directory if needs.get("cwd") else ".") as run:
                return self._box.run(run)
        # A person has approved these words, and has not seen the programs in the root.
        run = replace(run, variables={"PATH": self._box.find_fixed_path(), **self.options.env})
        if needs.get("outside"):
            folder = open_exactly(run.directory)  # another line may swap the path
            try:
                return run_unsandboxed(replace(run, directory=f"/proc/self/fd/{folder}"), self.options)
            finally:
                os.close(folder)
        write = tuple(map(self._box.resolve_write, needs.get("write") or ()))
        return self._box.run(replace(run, network=bool(needs.get("network")), write=write))


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
        return place.run(Run(['eval -- "$1"', command]), context, needs)

    return _make_tool(place, name, run_line, "a line in bash")


def make_program_tool(place: Place, name: str, python: str) -> Tool:
    """Return the tool for programs in Python."""

    def run_program(
        context: ToolContext,
        code: Annotated[str, Field(max_length=_MAX_TEXT, description="The program. It shows what it prints.")],
        network: NetworkNeed = False,
        write: WriteNeed = [],  # noqa: B006 - a default of the schema
    ) -> ToolResult:
        needs = {"network": network, "write": write}
        return place.run(Run(['exec "$@"', python, "-u", "-c", code]), context, needs)

    return _make_tool(place, name, run_program, f"a program with {python}")


_INSIDE: Final = (
    "It runs in a sandbox: it may change files in this folder, and has no network. /tmp and the home folder are empty "
    "at the start and lost at the end. Git's configuration and hooks, and settings of editors and agents, cannot be "
    "changed. If the result says that the sandbox refused something that the task needs, call again with that need."
)
_BARE: Final = "It runs without a sandbox, with all rights of the program: change nothing that the task does not need."


def _make_tool(place: Place, name: str, handler: Callable[..., ToolResult], what: str) -> Tool:
    options = place.options
    kept = "The working directory and exported variables persist. " if options.session else ""
    boundary = _BARE if options.sandbox is None else _INSIDE
    return Tool(
        name,
        handler,
        description=f"Run {what} in {options.folder}, without input. {kept}{boundary}",
        guards=[place.judge],
        timeout=options.timeout * 1.2 + 15,  # the line's own deadline comes first, and says so
        background=options.background,
        open_world=lambda arguments: not place.is_sandboxed(arguments),
        sandboxed=place.is_sandboxed,
        metadata={"sandbox": options.sandbox or "none"},
    )
