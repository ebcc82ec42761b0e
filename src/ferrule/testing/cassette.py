"""`cassette("orders.json")`: write the results of tools into a file, and replay them without the tools."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias, get_args

from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, FerruleError
from ferrule.kernel.redact import make_call_redactor
from ferrule.middleware.redact import Redaction, check_redaction
from ferrule.security.paths import open_directory, read_file
from ferrule.security.redaction import Redact, redact_value
from ferrule.testing.comparing import compute_json_similarity, format_json_diff
from ferrule.types import Next
from ferrule.values.arguments import redact_hidden
from ferrule.values.call import ToolCall
from ferrule.values.content import to_jsonable
from ferrule.values.context import RunningCall, ToolContext
from ferrule.values.frozen import thaw
from ferrule.values.journal_entry import outcome_from_result, result_from_outcome
from ferrule.values.json_text import loads_finite
from ferrule.values.result import Status, ToolResult

Mode: TypeAlias = Literal["record", "replay", "strict"]
"""The use of a cassette. See docs/testing.md#record-and-replay."""
_CASSETTE_VERSION = "cassette 1"
_MAX_BYTES = 100_000_000
_RECORDED = {*get_args(Status)} - {"suspended"}
_DEFAULT_MEMBERS: dict[str, Any] = {
    "status": "ok",
    "error": None,
    "executed": True,
    "retryable": None,
    "metadata": {},
    "repairs": [],
}
"""The members of a result that a file omits. Its content is then made from its output or error."""


def cassette(path: str | os.PathLike[str], mode: Mode = "replay", *, redact: Redaction | None = None) -> Cassette:
    """Return a middleware that records the results of tools into a file, or replays them, for tests and evaluations
    without side effects. See docs/testing.md#record-and-replay.

        with cassette("orders.json") as recorded:
            runner = Runner(tools, guards=[only_own_orders], inside=[recorded])

    The key of a recording is the tool's name and fingerprint and the judged arguments. Several recordings of one key
    are replayed once each, in order. The cassette stands in `inside`, the outermost: guards, validation and approvals
    go on as ever, and no handler runs. A call without a recording fails, names the nearest one, and runs nothing; the
    end of `with` then raises `CassetteError`. The result of a recorded call includes the calls it makes, so they have
    no recordings of their own. Bound and private values, values of `secrets=`, and texts that `middleware.redact`
    recognizes as credentials are stars in the file, in definitions too. An `after(…)` behind the cassette removes other
    secrets from a result: `inside=[recorded, after(mine)]`.

    Args:
        path: The file, as JSON that can be read in a review.
        mode: `"record"` runs the tools and writes the file anew, at the end, if nothing was raised. `"replay"` runs
            none. `"strict"` also replays, and requires that the calls of each tool come in the recorded order, and that
            all of them come. Calls recorded side by side may come in any order.
        redact: The `middleware.redact(…)` that redacts the file; by default, certain credentials are stars.

    Raises:
        DefinitionError: The mode is unknown, the file does not exist or was not written by a cassette, or the cassette
            stands in `around`.
    """
    if mode not in get_args(Mode):
        raise DefinitionError(f"cassette(mode) is 'record', 'replay' or 'strict', not {mode!r}")
    return Cassette(Path(path), mode, check_redaction("cassette", redact))


class CassetteError(FerruleError, AssertionError):
    """Calls had no recording, or recordings had no call. See docs/testing.md#record-and-replay.

    Attributes:
        misses: A text for each error.
    """

    def __init__(self, misses: Iterable[str]) -> None:
        self.misses = tuple(misses)
        super().__init__("\n\n".join(self.misses))


@dataclass(slots=True)
class _Recording:
    """One call with its result, which is `None` while it runs."""

    arguments: Any = None
    result: dict[str, Any] | None = None
    is_beside: bool = False
    is_open: bool = True
    is_used: bool = False


_TAPING: ContextVar[_Recording | None] = ContextVar("ferrule.taping", default=None)
"""The running call that is being recorded. Its result includes all calls of the present code."""


@dataclass(slots=True)
class _TapedTool:
    """The recordings of one tool, in the order in which the calls began."""

    name: str
    fingerprint: str
    definition: dict[str, Any] = field(default_factory=dict)
    calls: list[_Recording] = field(default_factory=list)
    running: int = 0

    def list_next(self) -> Iterator[_Recording]:
        """Yield the first unused recording, and the unused ones that were made beside it."""
        left = [one for one in self.calls if not one.is_used]
        yield from left[:1]
        yield from takewhile(lambda one: one.is_beside, left[1:])


class Cassette:
    """The middleware and context manager that `cassette` returns. See docs/testing.md#record-and-replay.

    Attributes:
        misses: The errors so far.
        remedy: How to record the calls again, in words for the errors.
    """

    remedy = "mode='record'"
    only_inside = "a cassette belongs in `inside`: in `around`, a recording would go round the guards"

    def __init__(self, path: Path, mode: Mode, mask: Redact) -> None:
        self.path = path
        self.mode = mode
        self._mask = mask
        self.misses: list[str] = []
        self._tools: dict[tuple[str, str], _TapedTool] = {} if mode == "record" else _read_cassette(path)
        self._lock = threading.Lock()
        self._finish = weakref.finalize(self, _write_cassette, path, self._tools) if mode == "record" else None

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        if context.running_call is None:
            return await next(call, context)
        tool = context.tool.definition
        shown = to_jsonable(thaw(redact_hidden(call.arguments, tool.hidden)))
        if self.mode != "record":
            return self._replay(call, tool, shown, _make_file_redactor(context.running_call, self._mask))
        key = (tool.name, tool.fingerprint)
        outer = _TAPING.get()
        if outer is not None and outer.is_open:
            return await next(call, context)
        recording = self._start_recording(key)
        taping = _TAPING.set(recording)
        try:
            result = await next(call, context)
        finally:
            _TAPING.reset(taping)
            recording.is_open = False
            self._tools[key].running -= 1
        if result.status != "suspended":  # the result of its resumption is good for this call alone
            written = redact_value(
                [shown, _describe_definition(tool), result], _make_file_redactor(context.running_call, self._mask)
            )
            recording.arguments, self._tools[key].definition, redacted = written
            recording.result = _format_result(redacted)
        return result

    def _start_recording(self, key: tuple[str, str]) -> _Recording:
        with self._lock:
            tape = self._tools.setdefault(key, _TapedTool(*key))
            recording = _Recording(is_beside=tape.running > 0)
            tape.calls.append(recording)
            tape.running += 1
            return recording

    def _replay(self, call: ToolCall, tool: Tool, shown: Any, redact: Redact) -> ToolResult:
        arguments = redact_value(shown, redact)
        with self._lock:
            found = self._find_next((tool.name, tool.fingerprint), arguments)
            if found is None or found.result is None:
                miss = f"{self._describe_miss(tool, arguments, redact)}\nRecord it again: {self.remedy}."
                self.misses.append(miss)
                return ToolResult(error=miss, executed=False, metadata={"cassette": "missed"})
            found.is_used = True
        result = _parse_result(found.result, call, tool.name)
        return result.replace(executed=False, metadata={"cassette": "replayed", **result.metadata})

    def _find_next(self, key: tuple[str, str], arguments: Any) -> _Recording | None:
        """Return the first unused recording of this key; in strict mode only if it is the next of its tool."""
        tape = self._tools.get(key, _TapedTool(*key))
        left = tape.list_next() if self.mode == "strict" else (one for one in tape.calls if not one.is_used)
        return next((one for one in left if one.arguments == arguments), None)

    def _describe_miss(self, tool: Tool, arguments: Any, redact: Redact) -> str:
        name = tool.name
        message = f"{self.path}: no recording of this call of {name!r}"
        same_name = [one for one in self._tools.values() if one.name == name]
        candidates = [(one, recording) for one in same_name for recording in one.calls]
        if not candidates:
            names = ", ".join(sorted({repr(one.name) for one in self._tools.values()})) or "none"
            return f"{message}: the tools that it has are {names}."
        tape, nearest = max(candidates, key=lambda pair: compute_json_similarity(pair[1].arguments, arguments))
        if nearest.arguments == arguments:
            if tape.fingerprint != tool.fingerprint:
                changes = format_json_diff(tape.definition, redact_value(_describe_definition(tool), redact))
                return f"{message}: its definition has changed since it was recorded (-), and is now (+):\n{changes}"
            why = "it was given already" if nearest.is_used else "another call of it was recorded before this one"
            return f"{message}, {json.dumps(arguments, ensure_ascii=False)}: {why}."
        return f"{message}. The nearest one (-), and the call (+):\n{format_json_diff(nearest.arguments, arguments)}"

    def assert_done(self) -> None:
        """Check that every call had its recording; in strict mode also that every recording had its call.

        Raises:
            CassetteError: Something is missing; the error names all of it.
        """
        __tracebackhide__ = True
        wrong = list(self.misses)
        if self.mode == "strict":
            for tape in self._tools.values():
                left = [json.dumps(one.arguments, ensure_ascii=False) for one in tape.calls if not one.is_used]
                if left:
                    wrong.append(f"{self.path}: {tape.name!r} was not called with {', then '.join(left)}")
        if wrong:
            raise CassetteError(wrong)

    def close(self, *, save: bool = True) -> None:
        """Write the file when recording, or leave it as it was. An unclosed cassette is written at the end of the
        program.

        Raises:
            OSError: The file cannot be written.
        """
        if self._finish is not None and self._finish.detach() is not None and save:
            _write_cassette(self.path, self._tools)

    def __enter__(self) -> Cassette:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        self.close(save=kind is None)
        if kind is None:
            self.assert_done()
        elif error is not None and self.misses:  # the error may follow from a miss
            error.add_note("\n".join(self.misses))


def _describe_definition(tool: Tool) -> dict[str, Any]:
    """Return the non-empty parts of a definition that make up its fingerprint."""
    parts = {"description": tool.description, "input_schema": tool.input_schema, "version": tool.version}
    return {name: thaw(value) for name, value in {**parts, "examples": list(tool.examples)}.items() if value}


def _make_file_redactor(running: RunningCall, mask: Redact) -> Redact:
    """Return a function that stars the secrets of a call in a text, and those that `mask` finds."""
    redact = make_call_redactor(running)
    return lambda text: mask(redact(text))


def _format_result(result: ToolResult) -> dict[str, Any]:
    """Return a redacted result in the form of the file, without the members that a reader fills in."""
    written = outcome_from_result(result)
    filled_in = {name for name, value in _DEFAULT_MEMBERS.items() if written[name] == value}
    if _parse_result({**written, "content": None}, ToolCall("", ""), "").content == result.content:
        filled_in.add("content")
    return {name: value for name, value in written.items() if name not in filled_in}


def _format_recording(one: _Recording) -> dict[str, Any]:
    return {"arguments": one.arguments, **({"beside": True} if one.is_beside else {}), "result": one.result}


def _parse_recording(call: Mapping[str, Any]) -> _Recording:
    """Return a recording of a file.

    Raises:
        TypeError, LookupError, ValueError: It is no recording.
    """
    result = {**call["result"]}
    if _parse_result(result, ToolCall("", ""), "").status not in _RECORDED:
        raise ValueError(f"there is no recording of the status {result['status']!r}")
    return _Recording(call["arguments"], result, bool(call.get("beside", False)))


def _parse_result(recorded: Mapping[str, Any], call: ToolCall, tool_name: str) -> ToolResult:
    """Return the recorded result."""
    whole = {"output": None, **_DEFAULT_MEMBERS, **recorded}
    content = whole.get("content")
    result = result_from_outcome({**whole, "content": content or []}, call, tool_name)
    return result if content is not None else result.replace(content=None)


def _read_cassette(path: Path) -> dict[tuple[str, str], _TapedTool]:
    """Return the recordings of a file. Those of one tool may stand in several places, as after a merge.

    Raises:
        DefinitionError: There is no such file, or it is no cassette.
    """
    try:
        read = loads_finite(read_file(path, _MAX_BYTES).decode("utf-8", "surrogatepass"))
        if read["ferrule"] != _CASSETTE_VERSION:
            raise ValueError(f"it says {read['ferrule']!r}, and this reads {_CASSETTE_VERSION!r}")
        tools: dict[tuple[str, str], _TapedTool] = {}
        for one in read["tools"]:
            key = (one["tool"], one["fingerprint"])
            tape = tools.setdefault(key, _TapedTool(*key, one.get("definition", {})))
            tape.calls += [_parse_recording(call) for call in one["calls"]]
    except FileNotFoundError:
        raise DefinitionError(f"there is no {path}: record it, cassette({str(path)!r}, mode='record')") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DefinitionError(f"{path} is no cassette: {type(error).__name__}: {error}") from None
    return tools


def _write_cassette(path: Path, tools: Mapping[tuple[str, str], _TapedTool]) -> None:
    """Write the whole file, or leave it as it is."""
    listed = [
        {
            "tool": name,
            "fingerprint": fingerprint,
            "definition": tape.definition,
            "calls": [_format_recording(one) for one in tape.calls if one.result is not None],
        }
        for (name, fingerprint), tape in sorted(tools.items())
    ]
    written = json.dumps({"ferrule": _CASSETTE_VERSION, "tools": listed}, indent=2, ensure_ascii=False, sort_keys=False)
    with open_directory(os.path.realpath(path.parent), make=True) as directory:
        directory.write(path.name, (written + "\n").encode("utf-8", "surrogatepass"))
