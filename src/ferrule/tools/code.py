"""A tool with which a model writes a short Python program that calls other tools as functions.

    from ferrule.tools import code

    shop = Runner([price, pay], guards=[ask_before_changes])
    runner = Runner([code.tool(shop)], approve=…, journal=…)

Ten calls become one turn. `pip install "ferrule[code]"`. See docs/guides/code-mode.md.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import builtins
import difflib
import io
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any, Final, Literal, TypeAlias

from ferrule.definition.options import check_texts, is_positive, make_check
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, ToolError
from ferrule.runner import Runner
from ferrule.selection.keyword import keyword
from ferrule.selection.search_tool import finds_tools
from ferrule.tools._stubs import AT_ONCE, PREAMBLE, SEARCH, Function, make_functions
from ferrule.values.content import Media, Text, to_json_text, to_jsonable, truncate_text
from ferrule.values.context import ToolContext
from ferrule.values.count import format_count
from ferrule.values.deferred import WaitingFor
from ferrule.values.frozen import thaw
from ferrule.values.journal_entry import block_from_dict
from ferrule.values.result import Status, ToolResult

try:
    import pydantic_monty as monty
except ImportError as error:
    raise ImportError(f'code mode needs pydantic-monty ({error}): pip install "ferrule[code]"') from error

__all__ = ["tool"]

if sys.version_info < (3, 14):
    # A thread of the pool may still release its objects when Python ends, and Python before 3.14 aborts it then.
    atexit.register(time.sleep, 0.05)

_AT_ONCE_STUB: Final = f'''def {AT_ONCE}(calls: list[tuple[Any, dict[str, Any]]]) -> list[Any]:
    """Make several calls at the same time: {AT_ONCE}([(function, {{"name": value}}), ...]). Return their results."""
'''
_SEARCH_STUB: Final = f'''def {SEARCH}(query: str) -> str:
    """Find more functions by words. Print the result: it has their definitions, for your next program."""
'''
_check_size: Callable[..., int] = make_check("a whole number of at least 1", lambda value: is_positive(value, int))
_FOUND: Final = 5
_DEEPEST: Final = 90
_LARGEST: Final = 1_000_000  # parts and characters of a value, as many as the characters that a call may have
_NO_JSON: Final = (monty.MontyClassProxy, monty.MontyClassTypeProxy, monty.MontyStdTypeProxy, monty.ExternalModule)
_SUSPENSIONS: Final = 1000  # of the interpreter besides those for calls: looking up names, refused access
_POLICY: Final[monty.OSPolicy] = {"datetime": "call_host", "sleep": "call_host"}
_RULES: Final = """Run a short Python program that calls functions. Use it where you would make several calls: loops, \
conditions and sums run in the program, and only the result comes back.

- The value of the last line is the result, with anything that the program prints.
- Call the functions directly. A call that fails raises an exception.
- Standard modules such as json, math, re and datetime can be imported. There are no files, no network and no clock.
"""
_MEDIA_FIELDS: Final = {field.name for field in fields(Media)}
_EXCEPTIONS: Final[Mapping[Status, monty.ExcType]] = {
    "denied": "PermissionError",
    "invalid": "ValueError",
    "timeout": "TimeoutError",
}
_CHECKED_ERRORS: Final = re.compile(
    r"^\S*?:(\d+):\d+: error\[(?:unresolved-reference|missing-argument|unknown-argument|too-many-positional-arguments|"
    r"parameter-already-assigned)\] (.*)$",
    re.MULTILINE,
)
_UNDEFINED: Final = re.compile(r"[Nn]ame [`'](\w+)['`]")


_Call: TypeAlias = tuple[Function, dict[str, Any]]
"""A call of a program: the function, and the arguments as JSON."""
_Answer: TypeAlias = dict[str, Any]
"""The answer to a call, for the interpreter: `return_value`, or `exc_type` and `message`."""


@dataclass(frozen=True, kw_only=True)
class _Limits:
    calls: int
    seconds: int
    memory: int
    state: int


def tool(
    runner: Runner,
    only: str | Iterable[str] = "*",
    *,
    name: str = "run_program",
    tokens: int = 4_000,
    calls: int = 200,
    seconds: int = 5,
    memory: int = 64 << 20,
    output: int = 16_000,
    state: int = 256_000,
    timeout: float | None = None,
) -> Tool:
    """Return a tool that runs programs which call the tools of a runner. See docs/guides/code-mode.md.

    It is mounted, as by `runner.as_tools()`: calls have the guards of this runner and of the one that you give it to,
    whose approver, journal and observers count.

    Args:
        runner: The runner with the tools.
        only: The tools to offer, as one glob or several.
        name: The name of the tool.
        tokens: The most tokens of the functions in its description. Programs search for the others.
        calls: The most calls of one program.
        seconds: The time that one program may compute, without the time of its calls.
        memory: The most bytes of memory of one program.
        output: The most characters of a result that the model reads. Your program and artifacts have the whole.
        state: The most bytes of a program that waits for a person.
        timeout: Seconds for the whole program with its calls, as for any tool.

    Raises:
        DefinitionError: There is no tool to call, two would have one name in Python, or a limit is not valid.
    """
    given: object = runner
    if not isinstance(given, Runner):
        raise DefinitionError(f"code.tool(runner) takes a Runner, whose tools programs call, not {given!r}")
    sizes = {"calls": calls, "seconds": seconds, "memory": memory, "state": state}
    limits = _Limits(**{key: _check_size(key, size) for key, size in sizes.items()})
    globs = check_texts("only", [only] if isinstance(only, str) else only)
    offered = [one for one in runner.tools.only(*globs) if not finds_tools(one)]
    if not offered:
        raise DefinitionError(f"code.tool(only={only!r}): no tool of the runner has such a name")
    functions = make_functions(offered)
    shown, has_more = _choose_stubs(functions.values(), _check_size("tokens", tokens))
    made = Tool(
        name,
        _Programs(functions, limits, has_search=has_more),
        description="\n".join([_RULES, "```python", _AT_ONCE_STUB, *shown, "```"]),
        read_only=all(one.read_only is True for one in offered),
        destructive=any(one.destructive is not False for one in offered),
        open_world=any(one.open_world is not False for one in offered),
        recorded=True,
        timeout=timeout,
    )
    # The runner cuts results after all middleware, so a `limit_output` still keeps the whole one.
    bounds = replace(runner.sizes, output=min(_check_size("output", output), runner.sizes.output))
    mounted = runner.replace(tools=[*runner.tools, made], sizes=bounds).as_tools()
    return next(one for one in mounted if one.name == made.name)


def _choose_stubs(functions: Iterable[Function], tokens: int) -> tuple[list[str], bool]:
    """Return the stubs that fit into the tokens, and whether there are more. Four bytes count as one token."""
    stubs = [function.stub for function in functions]
    left, shown = 4 * tokens, list[str]()
    for stub in stubs:
        left -= len(stub.encode())
        if left < 0:
            more = format_count(len(stubs) - len(shown), "more function", "more functions")
            return [*shown, _SEARCH_STUB, f"# {more}: search for them"], True
        shown.append(stub)
    return shown, False


class _Programs:
    """The handler of the tool."""

    def __init__(self, functions: dict[str, Function], limits: _Limits, *, has_search: bool) -> None:
        self.functions = functions
        self.limits = limits
        own = {AT_ONCE: _AT_ONCE_STUB, **({SEARCH: _SEARCH_STUB} if has_search else {})}
        self.names = [*functions, *own]
        stubs = [function.stub for function in functions.values()]
        self._checked = PREAMBLE + "\n".join([*stubs, *own.values()])

    async def __call__(self, program: str, context: ToolContext) -> ToolResult | WaitingFor:
        """Run a program.

        Args:
            program: The program, in Python.
        """
        run = _Run(self, program, context)
        try:
            async with monty.AsyncMonty(max_processes=1) as pool:
                if context.answer is None:
                    await self._check(pool, program)
                return await run.drive(pool, None if context.answer is None else context.answer.state)
        except monty.MontyError as error:
            raise run.make_error(self._describe(error)) from None

    def read_calls(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[_Call]:
        """Return the calls of a function call in a program: one, or those of `at_once`.

        Raises:
            NameError: There is no such function.
            TypeError: The arguments have another form, or no JSON form.
        """
        if name in self.functions:
            return [(self.functions[name], _to_json(self.functions[name].collect_arguments(args, kwargs)))]
        if name != AT_ONCE:
            raise NameError(f"name {name!r} is not defined")
        given = _to_json([*args, *kwargs.values()])
        if len(given) != 1 or not isinstance(given[0], list) or not all(map(self._is_pair, given[0])):
            raise TypeError(f'{AT_ONCE} takes one list of functions and arguments: [(function, {{"name": value}})]')
        return [(self.functions[called], arguments) for called, arguments in given[0]]

    def _is_pair(self, pair: object) -> bool:
        return (
            isinstance(pair, list)
            and len(pair) == 2
            and isinstance(pair[0], str)
            and pair[0] in self.functions
            and isinstance(pair[1], dict)
        )

    def search(self, query: str) -> str:
        """Return the stubs of the functions that fit a query."""
        tools = {function.tool: function for function in self.functions.values()}
        matches = keyword(least=0.2).rank(list(tools), truncate_text(query, 1000), limit=_FOUND)
        return "\n".join(tools[match.tool].stub for match in matches) or f"No function fits {query!r:.100}."

    async def _check(self, pool: monty.AsyncMonty, program: str) -> None:
        """Check names and parameters before anything runs, and run the program up to its first call.

        Raises:
            ToolError: A name is unknown, or a call has the wrong parameters.
            MontyError: The program failed.
        """
        options: Any = {"type_check": True, "type_check_stubs": self._checked, "type_check_format": "concise"}
        async with pool.checkout(limits=self.interpreter_limits, os_policy=_POLICY, **options) as session:
            try:
                await session.feed_start(program, print_callback=lambda stream, text: None)
            except monty.MontyTypingError as error:
                wrong = [(line, text) for line, text in _CHECKED_ERRORS.findall(str(error)) if not _is_builtin(text)]
                if wrong:
                    lines = [f"Line {line}: {text}.{self._suggest(text)}" for line, text in wrong[:3]]
                    raise ToolError("\n".join(lines), executed=False) from None

    @property
    def interpreter_limits(self) -> monty.ResourceLimits:
        """The limits as the interpreter takes them."""
        return {
            "max_feed_duration_secs": self.limits.seconds,
            "max_memory": self.limits.memory,
            "max_suspensions": 2 * self.limits.calls + _SUSPENSIONS,
        }

    def _suggest(self, text: str) -> str:
        """Return a similar name for an unknown one in an error, or the signature of the function, as a sentence."""
        if unknown := _UNDEFINED.search(text):
            others = [name for name in self.names if name != unknown[1]]
            return "".join(f" Did you mean {near!r}?" for near in difflib.get_close_matches(unknown[1], others, 1))
        called = re.search(r"function `(\w+)`", text)
        return f" It is {self.functions[called[1]].heading}" if called and called[1] in self.functions else ""

    def _describe(self, error: monty.MontyError) -> str:
        """Return an error of the program for the model: its line, the error, and what would be right."""
        raised, frames = error.exception(), list(getattr(error, "traceback", list)())
        text = f"{type(raised).__name__}: {raised}".rstrip(": ")
        if isinstance(error, monty.MontyCrashedError):
            return "The interpreter was stopped, because the program took too long or too much memory."
        if not frames and isinstance(raised, TimeoutError):
            text = f"The program computed for more than {self.limits.seconds} s. Let it do less, or run it in parts"
        elif not frames and isinstance(raised, MemoryError):
            text = f"The program took more than {self.limits.memory:,} bytes of memory. Hold less at a time"
        elif "await" in text:
            text += f". Call the functions directly, or several by {AT_ONCE}; they need no await"
        text = truncate_text(text.replace("Nothing was run", "The call was not run"), 1000).rstrip(".")
        if frames:
            source = truncate_text((frames[-1].source_line or "").strip(), 100)
            text = f"Line {frames[-1].line}, `{source}`: {text}"
        return f"{text}.{self._suggest(text)}"


class _Run:
    """One run of a program, from its start or from its state."""

    def __init__(self, programs: _Programs, program: str, context: ToolContext) -> None:
        self._programs = programs
        self._limits = programs.limits
        self._program = program
        self._context = context
        self._count = 0
        self._answers: list[_Answer | None] = []
        self._made = Counter[str]()
        self._printed = io.StringIO()

    async def drive(self, pool: monty.AsyncMonty, state: Mapping[str, Any] | None) -> ToolResult | WaitingFor:
        """Run the program to its end, or until a call waits for a person.

        Raises:
            MontyError: The program failed.
            ToolError: It reached a limit.
        """
        async with pool.checkout(limits=self._programs.interpreter_limits, os_policy=self._policy) as session:
            if state is None:
                snapshot = await session.feed_start(self._program, print_callback=self._print)
            else:
                self._count, self._made = state["calls"], Counter(state["made"])
                self._answers = thaw(state["answers"])
                self._printed.write(state["printed"])
                dump = base64.b64decode(state["program"])
                snapshot = await session.load_snapshot(dump, print_callback=self._print)
            while not isinstance(snapshot, monty.MontyComplete):
                if isinstance(snapshot, monty.AsyncNameLookupSnapshot):
                    name = snapshot.variable_name
                    known = {"value": _function_value(name)} if name in self._programs.names else {}
                    snapshot = await snapshot.resume(**known)
                elif isinstance(snapshot, monty.AsyncFutureSnapshot):
                    raise self.make_error(f"Call the functions directly, or several by {AT_ONCE}; they need no await.")
                elif snapshot.is_os_function:
                    snapshot = await snapshot.resume_not_handled()
                else:
                    answer = await self._answer(snapshot)
                    if isinstance(answer, WaitingFor):
                        return answer
                    snapshot = await _resume(snapshot, answer)
            return self._make_result(snapshot.output)

    @property
    def _policy(self) -> monty.OSPolicy:
        """The policy of the interpreter: random numbers are the same if the program runs again."""
        return {**_POLICY, "random_start": {"seed": self._context.idempotency_key}}

    async def _answer(self, snapshot: monty.AsyncFunctionSnapshot) -> _Answer | WaitingFor:
        """Run a call of the program. Return its value, an exception for the program, or the wait for a person."""
        name = snapshot.function_name
        if _is_too_large((snapshot.args, snapshot.kwargs)):
            most = f"more than {_LARGEST:,} parts and characters. Give fewer."
            raise self.make_error(f"Line {self._line_of(snapshot)}: the arguments for {name} have {most}")
        if name == SEARCH and name in self._programs.names:
            query = " ".join(map(str, (*snapshot.args, *snapshot.kwargs.values())))
            return {"return_value": self._programs.search(query)}
        try:
            calls = self._programs.read_calls(name, snapshot.args, snapshot.kwargs)
        except NameError as error:
            return {"exc_type": "NameError", "message": str(error)}
        except TypeError as error:
            return {"exc_type": "TypeError", "message": str(error)}
        if self._count + len(calls) > self._limits.calls:
            most = format_count(self._limits.calls, "call", "calls")
            raise self.make_error(f"Line {self._line_of(snapshot)}: a program makes at most {most}. Make fewer.")
        answers: list[_Answer | None] = self._answers or [None] * len(calls)
        self._answers = []
        waiting = await self._run_calls(calls, answers)
        if waiting is not None:
            return self._wait(snapshot, waiting, answers)
        self._count += len(calls)
        ended = [answer for answer in answers if answer is not None]
        return ended[0] if name in self._programs.functions else _combine(ended)

    async def _run_calls(self, calls: list[_Call], answers: list[_Answer | None]) -> ToolResult | None:
        """Run the calls without an answer, those of parallel tools together, and enter their answers.

        Return a suspended result if a call waits for a person. The calls after it have not run then.
        """

        async def run_one(number: int) -> ToolResult | None:
            function, arguments = calls[number]
            result = await self._context.run(function.tool.name, arguments, id=str(self._count + number + 1))
            if result.pending is not None and result.pending["kind"] != "work":
                return result
            if result.executed is not False:
                self._made[function.name] += 1
            answers[number] = _to_answer(result)
            return None

        left = [number for number, answer in enumerate(answers) if answer is None]
        for _, group in groupby(left, lambda number: _get_group(number, *calls[number])):
            results = await asyncio.gather(*map(run_one, group))
            if (waiting := next(filter(None, results), None)) is not None:
                return waiting
        return None

    def _wait(
        self, snapshot: monty.AsyncFunctionSnapshot, result: ToolResult, answers: list[_Answer | None]
    ) -> WaitingFor:
        """Return the wait for a person, with the state of the program.

        Raises:
            ToolError: The state is too large.
        """
        dump = base64.b64encode(snapshot.dump()).decode()
        state = {
            "calls": self._count,
            "answers": answers,
            "made": dict(self._made),
            "printed": self._printed.getvalue(),
        }
        size = len(dump) + len(to_json_text(state))
        if size > self._limits.state:
            held = f"the program holds {size:,} bytes when it must wait for a person, and {self._limits.state:,}"
            raise self.make_error(
                f"Line {self._line_of(snapshot)}: {held} are possible. Keep less in its variables, and print less."
            )
        return WaitingFor(result, {**state, "program": dump})

    def make_error(self, text: str) -> ToolError:
        """Return the error of the program, with the calls that it had made."""
        if not self._made:
            return ToolError(text, executed=False)
        made = ", ".join(f"{name} ×{count}" for name, count in self._made.items())
        return ToolError(f"{text} The program had made these calls: {made}.")

    def _make_result(self, value: object) -> ToolResult:
        printed = self._printed.getvalue()
        if _is_too_large((printed, value)):
            raise self.make_error(f"The result has more than {_LARGEST:,} parts and characters. Return fewer.")
        output = to_jsonable(value)
        if output is None and not printed:
            return ToolResult(
                "The result is null. For another one, write an expression such as `total` into the last line, or print."
            )
        if printed:
            output = printed if output is None else {"result": output, "printed": printed}
        media: list[Media] = []
        shown = _take_media(output, media)
        if not media:
            return ToolResult(output)
        if isinstance(output, dict) and output.keys() == _MEDIA_FIELDS:
            return ToolResult(media[0])
        return ToolResult(output, content=[Text(to_json_text(shown)), *media])

    def _print(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        self._printed.write(text[: max(0, _LARGEST + 1 - self._printed.tell())])

    def _line_of(self, snapshot: monty.AsyncFunctionSnapshot) -> int:
        return self._program.encode()[: snapshot.position.start].count(b"\n") + 1


def _is_too_large(value: object) -> bool:
    """Return whether a value has too many parts and characters. A part counts wherever it stands: with `a = [a, a]` in
    a loop, a few lists in the memory of a program are millions of parts here.
    """
    left, unread = _LARGEST, [value]
    while unread and left >= 0:
        one = unread.pop()
        if isinstance(one, str | bytes):
            left -= len(one)
        elif isinstance(one, Mapping):
            left -= 2 * len(one)
            unread += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            left -= len(one)
            unread += one
        elif isinstance(one, monty.MontyClassProxy):
            unread.append(one.attributes)
    return left < 0


def _to_json(value: object, depth: int = 0) -> Any:
    """Return an argument as JSON.

    Raises:
        TypeError: It has no JSON form, or is nested too deeply.
    """
    if depth > _DEEPEST:
        raise TypeError(f"an argument is nested more than {_DEEPEST} deep")
    if isinstance(value, _NO_JSON):
        raise TypeError(f"an argument is {value!s:.80}: pass texts, numbers, lists and dicts")
    if isinstance(value, Mapping):
        return {str(key): _to_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_json(item, depth + 1) for item in value]
    return to_jsonable(value)


def _take_media(value: Any, media: list[Media]) -> Any:
    """Return JSON with a note in the place of each image, sound or file that a tool had returned, and collect these."""
    if isinstance(value, list):
        return [_take_media(item, media) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == _MEDIA_FIELDS:
        with suppress(TypeError, ValueError):  # a program may write anything
            one = block_from_dict({**value, "fetch": False})
            if isinstance(one, Media):
                media.append(one)
                return f"[{one.kind} {len(media)}, below]"
    return {key: _take_media(item, media) for key, item in value.items()}


def _get_group(number: int, function: Function, arguments: Mapping[str, Any]) -> int:
    """Return the same number for calls that may run together, and another one for each call that runs alone."""
    return -1 if function.tool.trait("parallel", arguments) else number


def _to_answer(result: ToolResult) -> _Answer:
    """Return the answer to a call that has ended, as JSON: the journal would return the same."""
    if result.success:
        return {"return_value": to_jsonable(result.output)}
    return {"exc_type": _EXCEPTIONS.get(result.status, "RuntimeError"), "message": result.text}


def _combine(answers: list[_Answer]) -> _Answer:
    """Return the answer to several calls at once: all values, or the first error."""
    failed = [answer for answer in answers if "exc_type" in answer]
    if not failed:
        return {"return_value": [answer["return_value"] for answer in answers]}
    text = f"{len(failed)} of {len(answers)} calls failed, the first: {failed[0]['message']}"
    return {"exc_type": failed[0]["exc_type"], "message": text}


def _is_builtin(text: str) -> bool:
    """Return whether an error is about a name of Python. The interpreter has some that its checker does not know."""
    unknown = _UNDEFINED.search(text)
    return unknown is not None and hasattr(builtins, unknown[1])


def _function_value(name: str) -> Any:
    """Return a function for a program that reads its name without calling it. The host answers its calls."""

    def function() -> None:
        """Do nothing: no program calls it."""

    function.__name__ = name
    return function


async def _resume(snapshot: monty.AsyncFunctionSnapshot, answer: Any) -> monty.AsyncSnapshot:
    """Give a program the answer to its call, which it may await."""
    if not snapshot.allow_eager_await:
        return await snapshot.resume(answer)
    waiting = await snapshot.resume({"future": ...})
    assert isinstance(waiting, monty.AsyncFutureSnapshot)
    return await waiting.resume({snapshot.call_id: answer})
