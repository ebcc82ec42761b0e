"""The values that go through a call: `ToolCall`, `Decision`, `ToolResult` with its blocks, `Event`.

All are frozen. Each is filled as an open class and then becomes its own frozen subclass, which costs a fifth of what
a frozen dataclass does.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from time import time as now
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar, cast

from ferrule.core.arguments import Arguments, Shape
from ferrule.core.content import Block, Media, Text, checked, jsonable, render
from ferrule.core.errors import DefinitionError
from ferrule.core.frozen import FrozenDict

Status: TypeAlias = Literal[
    "ok", "invalid", "not_found", "denied", "suspended", "limited", "timeout", "cancelled", "failed", "unknown"
]
EventKind: TypeAlias = Literal["tool:pre", "tool:decided", "tool:progress", "tool:suspended", "tool:post", "tool:error"]
_T = TypeVar("_T")
_UNSET: Any = object()
log = logging.getLogger("ferrule")
_EMPTY: Mapping[str, Any] = FrozenDict()


def frozen(opened: type[_T]) -> type[_T]:
    """The frozen subclass that instances of `opened` become once they are filled."""

    def refuse(self: object, name: str, value: object = None) -> NoReturn:
        raise AttributeError(f"{opened.__name__} is frozen, {name!r} cannot be set: use .replace(...) for a copy")

    def itself(self: _T, *args: object) -> _T:
        return self

    def reduce(self: object) -> tuple[Any, ...]:
        return _refilled, (opened, {name: getattr(self, name) for name in opened.__slots__ if hasattr(self, name)})  # type: ignore[attr-defined]

    space = {
        "__slots__": (),
        "__setattr__": refuse,
        "__delattr__": refuse,
        "__copy__": itself,
        "__deepcopy__": itself,
        "__reduce__": reduce,
        "__module__": opened.__module__,
        "__qualname__": opened.__qualname__,
        "__doc__": opened.__doc__,
    }
    closed = cast("type[_T]", type(opened.__name__, (opened,), space))
    _CLOSED[opened] = closed
    return closed


_CLOSED: dict[type[Any], type[Any]] = {}


def _refilled(opened: type[_T], state: dict[str, Any]) -> _T:
    value = object.__new__(opened)
    for name, item in state.items():
        setattr(value, name, item)
    value.__class__ = _CLOSED[opened]
    return value


class ToolCall:
    """One request to run one tool.

    Args:
        id: The call's id, as the provider gave it; the runner makes one where it is empty.
        name: The tool's name, as the model wrote it.
        arguments: JSON text, a mapping, or nothing.
        problem: Why the provider already knows that this call must not run (a turn that was cut off).
        data: What the provider needs back verbatim.
        parent: The id of the call whose handler made this one.
    """

    __slots__ = ("_arguments", "data", "id", "name", "parent", "problem", "raw")
    id: str
    name: str
    raw: str | Mapping[str, Any] | None
    """The arguments as they came."""

    def __init__(
        self,
        id: str,
        name: str,
        arguments: str | Mapping[str, Any] | None = None,
        *,
        problem: str | None = None,
        data: Any = None,
        parent: str | None = None,
    ) -> None:
        if not isinstance(id, str) or not isinstance(name, str):  # type: ignore[redundant-expr]
            raise TypeError(f"the id and the name of a call are texts, not {id!r} and {name!r}")
        self.id = id
        self.name = name
        self.raw = arguments
        self.problem = problem
        self.data = data
        self.parent = parent
        self._arguments: Arguments | None = None
        self.__class__ = _FrozenCall

    @property
    def arguments(self) -> Arguments:
        """The arguments as a read-only mapping; empty where they do not decode, which is answered at *decode*."""
        arguments = self._arguments
        if arguments is None:
            arguments = Arguments(self.raw)
            _keep_arguments(self, arguments)
        return arguments

    def replace(self, **changes: Any) -> ToolCall:
        """A changed copy; `changes` are the constructor's arguments."""
        kept: dict[str, Any] = {
            "id": self.id,
            "name": self.name,
            "arguments": self.raw,
            "problem": self.problem,
            "data": self.data,
            "parent": self.parent,
        }
        return ToolCall(**{**kept, **changes})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolCall):
            return NotImplemented
        return (self.id, self.name, self.raw, self.problem, self.data, self.parent) == (
            other.id,
            other.name,
            other.raw,
            other.problem,
            other.data,
            other.parent,
        )

    def __hash__(self) -> int:
        return hash((self.id, self.name))

    def __repr__(self) -> str:
        return f"ToolCall({self.id!r}, {self.name!r}, {self.raw!r})"


_keep_arguments = cast("Any", ToolCall.__dict__["_arguments"]).__set__
_FrozenCall = frozen(ToolCall)


def judged_call(call: ToolCall, raw: str, given: Any = None, shape: Shape | None = None) -> ToolCall:
    """`call` with the arguments that are judged and run: as the constructors make both, at a third of the cost."""
    arguments = object.__new__(Arguments)
    arguments._raw = raw
    arguments._given = given
    arguments._shape = shape
    arguments._full = None
    judged = object.__new__(ToolCall)
    judged.id = call.id
    judged.name = call.name
    judged.raw = raw
    judged.problem = None
    judged.data = call.data
    judged.parent = call.parent
    judged._arguments = arguments
    judged.__class__ = _FrozenCall
    return judged


class Decision:
    """Allow, ask or deny, with a reason. Made by `allow`, `ask` and `deny`; the stricter wins.

    Attributes:
        kind: `"allow"`, `"ask"` or `"deny"`.
        reason: For the person or the model; empty for a plain allow.
        arguments: For an allow: the arguments that are to be used instead, or `None`.
        into: For an ask: the parameter whose value a person supplies, or `None`.
    """

    __slots__ = ("arguments", "into", "kind", "reason")

    def __init__(
        self,
        kind: Literal["allow", "ask", "deny"],
        reason: str = "",
        *,
        arguments: Mapping[str, Any] | None = None,
        into: str | None = None,
    ) -> None:
        if kind not in _STRICTNESS:
            raise DefinitionError(f"a decision is 'allow', 'ask' or 'deny', not {kind!r}")
        self.kind = kind
        self.reason = reason
        self.arguments = arguments
        self.into = into
        self.__class__ = _FrozenDecision

    def stricter(self, other: Decision) -> Decision:
        """The stricter of the two; this one where they are equal."""
        return other if _STRICTNESS[other.kind] > _STRICTNESS[self.kind] else self

    def __bool__(self) -> NoReturn:
        raise TypeError('a Decision is neither true nor false: compare decision.kind with "allow", "ask" or "deny"')

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Decision):
            return NotImplemented
        return (self.kind, self.reason, self.arguments, self.into) == (
            other.kind,
            other.reason,
            other.arguments,
            other.into,
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.reason, self.into))

    def __repr__(self) -> str:
        shown = [repr(self.reason)] if self.reason else []
        if self.arguments is not None:
            shown.append(f"arguments={dict(self.arguments)!r}")
        if self.into:
            shown.append(f"into={self.into!r}")
        return f"{self.kind}({', '.join(shown)})"


_STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}
_FrozenDecision = frozen(Decision)
ALLOW = Decision("allow")


def allow(arguments: Mapping[str, Any] | None = None) -> Decision:
    """The call may run, with `arguments` instead of its own where they are given (they are judged again)."""
    return ALLOW if arguments is None else Decision("allow", arguments=arguments)


def ask(reason: str, *, into: str | None = None) -> Decision:
    """A person decides; with `into`, a person supplies the value of that parameter."""
    return Decision("ask", reason, into=into)


def deny(reason: str) -> Decision:
    """The call may not run; `reason` is shown to the model."""
    return Decision("deny", reason)


class ToolResult:
    """What one call came to; exactly one for every call.

    A handler may build one itself: `ToolResult(output=…, error=…, metadata=…, content=[…])`.

    Attributes:
        call: The call as the model sent it; `None` until the runner has it.
        tool_name: The tool's own name.
        status: `"ok"` or what stood in the way.
        output: The value as the handler gave it. No middleware has bounded it: providers never read it.
        error: A text for the model (what was wrong, what would be right, whether anything was run), or `None`.
        executed: Whether the effect may have happened: `True`, `False`, or `None` for not known.
        repairs: What was repaired in the arguments, in words.
        metadata: Whatever the handler or a middleware adds.
        duration_ms: From arrival to result, in milliseconds.
        exception: What was raised, for events and logs, never for a model.
    """

    __slots__ = (
        "_content",
        "call",
        "duration_ms",
        "error",
        "exception",
        "executed",
        "metadata",
        "output",
        "repairs",
        "status",
        "tool_name",
    )

    def __init__(
        self,
        output: Any = None,
        error: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        content: Iterable[Block] | None = None,
        *,
        call: ToolCall | None = None,
        tool_name: str = "",
        status: Status | None = None,
        executed: bool | None = True,
        repairs: tuple[str, ...] = (),
        duration_ms: float = 0.0,
        exception: BaseException | None = None,
    ) -> None:
        if error is not None and not isinstance(error, str):
            raise TypeError(f"error must be a text, not {error!r}")
        if metadata is not None and not isinstance(metadata, Mapping):
            raise TypeError(f"metadata must be a mapping, not {metadata!r}")
        self.output = output
        self.error = error
        self.metadata = _EMPTY if metadata is None else metadata
        self._content = None if content is None else checked(content)
        self.call = call
        self.tool_name = tool_name
        self.status: Status = status or ("ok" if error is None else "failed")
        self.executed = executed
        self.repairs = repairs
        self.duration_ms = duration_ms
        self.exception = exception
        self.__class__ = _FrozenResult

    @property
    def content(self) -> tuple[Block, ...]:
        """The blocks that a model gets, always valid UTF-8: of the output where there are no others."""
        content = self._content
        if content is None:
            content = render(self.output) if self.error is None else (Text(self.error),)
            _keep_content(self, content)
        return content

    @property
    def call_id(self) -> str:
        """The id as the model sent it."""
        return self.call.id if self.call is not None else ""

    @property
    def success(self) -> bool:
        """Whether `status` is `"ok"`."""
        return self.status == "ok"

    @property
    def text(self) -> str:
        """The content's texts, joined by line breaks."""
        return "\n".join(block.text for block in self.content if isinstance(block, Text))

    def replace(self, **changes: Any) -> ToolResult:
        """A changed copy; `changes` are the constructor's arguments. A new output has new content."""
        kept = {name: getattr(self, name) for name in ToolResult.__slots__ if name != "_content"}
        if "output" not in changes and "error" not in changes:
            kept["content"] = self._content
        return ToolResult(**{**kept, **changes})

    def record(self) -> dict[str, Any]:
        """A JSON-safe record of the execution.

        It has at least `tool_name`, `tool_call_id`, `success`, `output`, `error` and `latency_ms`. That of a
        suspended call has all that `Runner.resume` needs.
        """
        record: dict[str, Any] = {
            "tool_name": self.tool_name,
            "tool_call_id": self.call_id or None,
            "success": self.success,
            "status": self.status,
            "output": jsonable(self.output),
            "error": self.error,
            "latency_ms": self.duration_ms,
            "executed": self.executed,
            "repairs": list(self.repairs),
            "metadata": jsonable(dict(self.metadata)),
        }
        return record

    def __repr__(self) -> str:
        shown = repr(self.output) if self.error is None else repr(self.error)
        return f"<ToolResult {self.tool_name or '?'} {self.status} {shown[:120]}>"


_keep_content = cast("Any", ToolResult.__dict__["_content"]).__set__
_FrozenResult = frozen(ToolResult)
_keep_duration = cast("Any", ToolResult.__dict__["duration_ms"]).__set__
_keep_repairs = cast("Any", ToolResult.__dict__["repairs"]).__set__


def success(output: Any, call: ToolCall, tool_name: str, repairs: tuple[str, ...], duration_ms: float) -> ToolResult:
    """The result of a handler that returned: as the constructor makes it, at a third of the cost."""
    result = object.__new__(ToolResult)
    result.output = output
    result.call = call
    result.tool_name = tool_name
    result.error = result._content = result.exception = None
    result.metadata = _EMPTY
    result.status = "ok"
    result.executed = True
    result.repairs = repairs
    result.duration_ms = duration_ms
    result.__class__ = _FrozenResult
    return result


def limited(error: str, retry_after: float | None = None) -> ToolResult:
    """What a middleware answers where a limit stands in the way: nothing was run.

    Args:
        error: What the limit is; when to try again is added.
        retry_after: Seconds until it may go well; `None` where waiting does not help.
    """
    when = "" if retry_after is None else f" Try again in {_in_words(retry_after)}."
    metadata = None if retry_after is None else {"retry_after": retry_after}
    return ToolResult(None, f"{error} Nothing was run.{when}", metadata, status="limited", executed=False)


def _in_words(seconds: float) -> str:
    return f"{math.ceil(seconds)} s" if seconds < 120 else f"{math.ceil(seconds / 60)} minutes"


def keep_seal(result: ToolResult, duration_ms: float, repairs: tuple[str, ...]) -> None:
    """What the kernel alone fills in, at the end, in a result that it made for this very call."""
    _keep_duration(result, duration_ms)
    if repairs:
        _keep_repairs(result, repairs)


class Event:
    """Something that happened.

    Attributes:
        kind: `tool:pre` (the call arrived), `tool:decided`, `tool:progress`, `tool:suspended`, and exactly one of
            `tool:post` and `tool:error` for every call.
        call: The call, under the tool's own name.
        at: Seconds since the epoch.
    """

    __slots__ = ("_data", "_what", "at", "call", "kind")

    def __init__(self, kind: EventKind, call: ToolCall, what: Any = None) -> None:
        self.kind = kind
        self.call = call
        self.at = now()
        self._what = what
        self._data: Mapping[str, Any] | None = None
        self.__class__ = _FrozenEvent

    @property
    def data(self) -> Mapping[str, Any]:
        """`tool_name` and `input`; then `result`, `error` (the text) and `exception` of a terminal event; the
        `decision` of a `tool:decided` and a `tool:suspended`; of a `tool:progress` `done`, `total` and `message`, or
        the `piece` that the handler yielded, or the `attempt` that failed with its `status`, `error` and `wait`, or the
        `fault` that a test made."""
        data = self._data
        if data is None:
            data = FrozenDict(self._build())
            _keep_data(self, data)
        return data

    def _build(self) -> dict[str, Any]:
        call, what = self.call, self._what
        sent: Any = call.arguments
        if isinstance(call.raw, str) and call.raw.strip() and not sent:
            sent = {} if call.raw.strip() in {"{}", "null"} else call.raw
        data: dict[str, Any] = {"tool_name": call.name, "input": sent}
        if isinstance(what, ToolResult):
            data["result"] = what
            if what.status != "ok":
                data |= {"error": what.error, "exception": what.exception}
        elif isinstance(what, Decision):
            data["decision"] = what
        elif what is not None:
            data |= what
        return data

    def __repr__(self) -> str:
        return f"<Event {self.kind} {self.call.name} {self.call.id}>"


_keep_data = cast("Any", Event.__dict__["_data"]).__set__
_FrozenEvent = frozen(Event)


def emit(observers: tuple[Callable[[Event], object], ...], kind: EventKind, call: ToolCall, what: Any = None) -> None:
    """Tell all observers, who can change nothing and break nothing. The event is filled here, at half the cost."""
    event = object.__new__(Event)
    event.kind = kind
    event.call = call
    event.at = now()
    event._what = what
    event._data = None
    event.__class__ = _FrozenEvent
    for observer in observers:
        try:
            observer(event)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException:
            log.exception("an observer broke on %s of %s", kind, call.name)


__all__ = [
    "ALLOW",
    "Block",
    "Decision",
    "Event",
    "EventKind",
    "Media",
    "Status",
    "Text",
    "ToolCall",
    "ToolResult",
    "allow",
    "ask",
    "deny",
    "emit",
    "frozen",
    "judged_call",
    "keep_seal",
    "limited",
    "success",
]
