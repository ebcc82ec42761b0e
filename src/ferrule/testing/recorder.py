"""`Recorder`: an observer that stores every event, and asserts in a test which tools were called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ferrule.definition.decorator import to_tool
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.security.similar_names import NameIndex
from ferrule.testing.comparing import (
    abbreviate,
    arguments_of,
    came_to,
    check_arguments,
    compute_similarity,
    format_call,
    include_all,
)
from ferrule.testing.fake import find_tool, to_toolset
from ferrule.types import ToolForm
from ferrule.values.event import Event
from ferrule.values.result import ToolResult

_TERMINAL = ("tool:post", "tool:error")
_CALL_EVENTS = ("tool:pre", "tool:suspended", *_TERMINAL)
_MAX_SHOWN = 10


class Recorder:
    """An observer that stores every event, in `events`, and asserts in a test which tools were called.

        recorder = Recorder()
        runner = Runner([delete_note], guards=[only_own_notes], observers=[recorder])
        await run(model, model.user("Delete my note a."), runner)
        recorder.assert_called(delete_note, path="a")

    A tool was called if `executed` is not `False`, or if a cassette stood in its place. A call that was refused,
    suspended, invalid, or answered by another middleware, such as a cache, or from the journal, did not call it; a
    retried call called it once. Failures list these too, the nearest first.

    Arguments without a name here are ignored. Python values stand for their JSON (`on=date(2026, 1, 2)`), and values
    with an `==` of their own, such as `pytest.approx` or `unittest.mock.ANY`, decide by themselves. Arguments whose
    names are no keywords here, such as `times`, go into a dict: `assert_called(repeat, {"times": 3})`.

    Give the tool itself if you can, or the tools to the recorder. Then the validated arguments are compared, with
    defaults filled in, and an argument that the tool lacks is an error. Otherwise calls have the arguments of their
    events: as they were sent, if the runner has neither guard nor journal. `assert_not_called` then accepts only the
    name of an actual call, because it would never fail for a misspelt one.

    Args:
        tools: The runner's tools. With them, an unknown name is an error.
    """

    def __init__(self, tools: Toolset | Iterable[Any] | Any = None) -> None:
        self.events: list[Event] = []
        self._tools = None if tools is None else to_toolset(tools)

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def assert_called(
        self,
        tool: ToolForm | str,
        arguments: Mapping[str, object] | None = None,
        /,
        *,
        times: int | None = None,
        **named: object,
    ) -> None:
        """Check that the tool was called with these arguments: at least once, or exactly `times` times.

        Raises:
            AssertionError: It was not; the error names the actual calls, the nearest first.
            DefinitionError: It is no tool, the tool lacks an argument, or `times` is below 1.
        """
        __tracebackhide__ = True
        if times is not None and (isinstance(times, bool) or not isinstance(times, int) or times < 1):  # type: ignore[redundant-expr]
            raise DefinitionError(f"times is a whole number of at least 1, not {times!r}; for none, assert_not_called")
        wanted = _resolve_call(self._resolve_tool(tool), arguments, named)
        calls = _list_calls(self.events, wanted.tool)
        found = sum(call.was_started and wanted.fits(call) for call in calls)
        if found == times or (found and times is None):
            return
        often = "was not called" if not found else f"was called {_format_times(found)}, not {_format_times(times or 1)}"
        raise AssertionError(f"{wanted} {often}. {_describe_actual(wanted, calls, self.events)}")

    def assert_not_called(
        self, tool: ToolForm | str, arguments: Mapping[str, object] | None = None, /, **named: object
    ) -> None:
        """Check that the tool was never called with these arguments; without any, that it was never called.

        Raises:
            AssertionError: It was called; the error names the calls, including unfinished ones.
            DefinitionError: It is no tool, the tool lacks an argument, or no tool has the name. If the tools are
                unknown: no call had the name.
        """
        __tracebackhide__ = True
        if self._tools is None and isinstance(tool, str):
            _check_seen(tool, self.events)
        wanted = _resolve_call(self._resolve_tool(tool), arguments, named)
        calls = [call for call in _list_calls(self.events, wanted.tool) if call.was_started or call.result is None]
        found = [call for call in calls if wanted.fits(call)]
        if found:
            raise AssertionError(f"{wanted} was called:\n{_format_calls(found)}")

    def conversation(self) -> str:
        """Return all calls in the order in which they came, with their results as the model read them; for a failed
        test.
        """
        calls = _list_calls(self.events, None)
        lines = [f"{call}{_format_answer(call.result)}" for call in calls]
        return "\n".join(lines) or "there was no call"

    def _resolve_tool(self, tool: ToolForm | str) -> ToolForm | str:
        """Return the tool of that name if the tools are known.

        Raises:
            DefinitionError: It is none of them.
        """
        if self._tools is None:
            return tool
        if isinstance(tool, str):
            return find_tool("Recorder", self._tools, tool)
        made = to_tool(tool)
        find_tool("Recorder", self._tools, made.name)
        return made


@dataclass(slots=True)
class _RecordedCall:
    """One call, with its outcome so far."""

    name: str
    arguments: dict[str, Any]
    result: ToolResult | None = None

    @property
    def was_started(self) -> bool:
        if self.result is None or self.was_replayed:
            return False
        return self.result.executed is not False or self.result.metadata.get("cassette") == "replayed"

    @property
    def was_replayed(self) -> bool:
        return self.result is not None and self.result.is_replayed

    @property
    def shown(self) -> str:
        return format_call(self.name, self.arguments)

    def __str__(self) -> str:
        return f"{self.shown} → {came_to(self.result)}"


@dataclass(frozen=True, slots=True)
class _WantedCall:
    """The call that a test asks for."""

    name: str
    arguments: dict[str, object]
    tool: Tool | None = None

    def fits(self, call: _RecordedCall) -> bool:
        """Return whether the call is of the tool, with these arguments."""
        return call.name == self.name and include_all(call.arguments, self.arguments)

    def __str__(self) -> str:
        return format_call(self.name, self.arguments)


def _resolve_call(
    tool: ToolForm | str, arguments: Mapping[str, object] | None, named: Mapping[str, object]
) -> _WantedCall:
    if not isinstance(arguments, Mapping | None):
        raise DefinitionError(f"arguments are a dict, or keywords, not {arguments!r}; how often goes into times=…")
    wanted = {**(arguments or {}), **named}
    if isinstance(tool, str):
        return _WantedCall(tool, wanted)
    made = to_tool(tool)
    aliases = made.handling.aliases
    wanted = {aliases.get(name, name): value for name, value in wanted.items()}
    check_arguments(made, wanted)
    return _WantedCall(made.name, wanted, made)


def _check_seen(name: str, events: Iterable[Event]) -> None:
    """Refuse a name that may be misspelt: an assertion that it was not called could never fail."""
    names = dict.fromkeys(event.call.name for event in list(events) if event.kind in _CALL_EVENTS)
    if name not in names:
        near = NameIndex(names).find_nearest(name, 1)
        meant = f", and the nearest one that was called is {near[0]!r}" if near else ""
        raise DefinitionError(
            f"assert_not_called({name!r}): a recorder that does not know the tools cannot say whether there is one of "
            f"this name{meant}; give the tool itself, or make it Recorder(tools)"
        )


def _list_calls(events: Iterable[Event], tool: Tool | None) -> list[_RecordedCall]:
    """Return the calls in the order in which they came. A call that was suspended and resumed is one call."""
    calls: list[_RecordedCall] = []
    under_way: dict[str, list[_RecordedCall]] = {}
    for event in list(events):
        if event.kind not in _CALL_EVENTS:
            continue
        same_id = under_way.setdefault(event.call.id, [])
        if event.kind == "tool:pre" or not same_id:
            same_id.append(_RecordedCall(event.call.name, {}))
            calls.append(same_id[-1])
        same_id[-1].arguments, same_id[-1].result = arguments_of(event.call, tool), event.data.get("result")
        if event.kind in _TERMINAL:
            same_id.pop()
    return calls


def _describe_actual(wanted: _WantedCall, calls: list[_RecordedCall], events: list[Event]) -> str:
    """Describe the actual calls, the tool's own first, and the most similar to the wanted call first."""
    if not events:
        return "There was no call at all: is the recorder among the observers of the runner?"
    nearest = sorted(calls, key=lambda call: (call.name != wanted.name, -compute_similarity(str(wanted), call.shown)))
    return f"The calls that there were, the nearest first:\n{_format_calls(nearest)}"


def _format_calls(calls: list[_RecordedCall]) -> str:
    more = len(calls) - _MAX_SHOWN
    return "\n".join([f"  {call}" for call in calls[:_MAX_SHOWN]] + ([f"  and {more} more"] if more > 0 else []))


def _format_answer(result: ToolResult | None) -> str:
    """Return the model's text of a success. The text of a failure is in the line already."""
    return f": {abbreviate(result.text)}" if result is not None and result.error is None else ""


def _format_times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
