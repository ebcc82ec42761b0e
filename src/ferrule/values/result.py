"""`ToolResult`: the outcome of one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, cast, get_args

from ferrule.errors import DefinitionError
from ferrule.values.arguments import Arguments
from ferrule.values.call import ToolCall, input_for_record
from ferrule.values.content import (
    Block,
    ReturnedAlone,
    Text,
    check_blocks,
    clean_text,
    safe_str,
    to_blocks,
    to_jsonable,
    to_output,
)
from ferrule.values.frozen import FrozenDict, JsonObject, freeze, make_frozen_class, thaw
from ferrule.values.json_text import is_same_json

Status: TypeAlias = Literal[
    "ok", "invalid", "not_found", "denied", "suspended", "limited", "timeout", "cancelled", "failed", "unknown"
]
"""The outcome of a call. See docs/talking-to-the-model.md#results."""
_KNOWN_STATUSES = get_args(Status)
_EMPTY: JsonObject = FrozenDict()


KERNEL_METADATA = frozenset({"replayed", "resumed_already", "unrecorded"})
"""Keys of result metadata for the kernel alone. A handler's values under these names are dropped."""
_NO_KERNEL_FACTS = (*[None] * 6, 0.0)


class ToolResult(ReturnedAlone):
    """The outcome of one call; exactly one for every call. See docs/talking-to-the-model.md.

    A handler may build one itself: `ToolResult(output=…, error=…, metadata=…, content=[…])`.

    Attributes:
        call: The call as the model sent it; `None` until the runner has it.
        tool_name: The tool's own name.
        status: `"ok"`, or the reason why there is no value.
        output: The handler's value as plain JSON data (or bytes, or blocks), so that reading it runs no foreign code.
            `await some_tool(…)` gives the value itself. It is not bounded, and providers never read it.
        error: A text for the model (the problem, the remedy, whether anything was run), or `None`.
        executed: Whether the effect may have happened: `True`, `False`, or `None` if nobody knows.
        retryable: Whether the same call may succeed later: `False` for a final answer, `None` if nobody knows.
        repairs: The repairs of the arguments, in words.
        metadata: Facts from the handler or a middleware.
        exception: The exception, for events and logs, never for a model.
    """

    __slots__ = (
        "_content",
        "_kernel_facts",
        "_original",
        "call",
        "error",
        "exception",
        "executed",
        "metadata",
        "output",
        "repairs",
        "retryable",
        "status",
        "tool_name",
    )

    def __init__(
        self,
        output: Any = None,
        error: str | None = None,
        metadata: JsonObject | None = None,
        content: Iterable[Block] | None = None,
        *,
        call: ToolCall | None = None,
        tool_name: str = "",
        status: Status | None = None,
        executed: bool | None = True,
        retryable: bool | None = None,
        repairs: tuple[str, ...] = (),
        duration_ms: float = 0.0,
        exception: BaseException | None = None,
    ) -> None:
        if error is not None and not isinstance(error, str):
            raise TypeError(f"error must be a text, not {error!r}")
        if metadata is not None and not isinstance(metadata, Mapping):
            raise TypeError(f"metadata must be a mapping, not {metadata!r}")
        if status is not None and status not in _KNOWN_STATUSES:
            raise TypeError(f"status must be one of {', '.join(_KNOWN_STATUSES)}, not {status!r}")
        if not (retryable is None or isinstance(retryable, bool)):
            raise TypeError(f"retryable must be True, False or None, not {retryable!r}")
        self.output = output
        self.error = error
        self.metadata = _EMPTY if metadata is None else metadata
        self._content = None if content is None else check_blocks(content)
        self.call = call
        self.tool_name = tool_name
        self.status: Status = status or ("ok" if error is None else "failed")
        self.executed = executed
        self.repairs = repairs
        self._kernel_facts: tuple[Any, ...] = (*_NO_KERNEL_FACTS[:6], duration_ms)
        self.exception = exception
        self.retryable = retryable
        self.__class__ = _FrozenResult

    @property
    def content(self) -> tuple[Block, ...]:
        """The blocks for the model, always valid UTF-8. Without blocks of the handler, they show the output."""
        content = self._content
        if content is None:
            if self.error is not None:
                content = (Text(self.error),)
            elif type(self.output) is str:  # most outputs
                content = (Text(self.output),)
            elif type(self.output) is int and self.output.bit_length() <= 64:  # without looking, 2 µs less
                content = (Text(str(self.output)),)
            else:
                content = to_blocks(to_output(self.output, strict=False))
            set_slot(self, "_content", content)
        return content

    @property
    def pending(self) -> JsonObject | None:
        """The sealed record of a suspended call, for `Runner.resume`; read-only. Only the kernel can make it."""
        return self._kernel_facts[4] if self.status == "suspended" else None

    @property
    def answered_by(self) -> str | None:
        """The name of the person who said yes or no, from `allow(by=…)` or `resume(…, by=…)`."""
        return cast("str | None", self._kernel_facts[5])

    @property
    def duration_ms(self) -> float:
        """Milliseconds from arrival to result."""
        return cast("float", self._kernel_facts[6])

    @property
    def call_id(self) -> str:
        """The id as the model sent it."""
        return self.call.id if self.call is not None else ""

    @property
    def is_replayed(self) -> bool:
        """Whether it comes from the journal, and nothing was run for this call."""
        return self.metadata.get("replayed") is True

    @property
    def success(self) -> bool:
        """Whether `status` is `"ok"`."""
        return self.status == "ok"

    @property
    def text(self) -> str:
        """The content's texts, joined by line breaks."""
        content = self.content
        if len(content) == 1 and type(content[0]) is Text:  # most results
            return content[0].text
        return "\n".join(block.text for block in content if isinstance(block, Text))

    def replace(self, **changes: Any) -> ToolResult:
        """Return a changed copy; `changes` are the constructor's arguments. A new output has new content."""
        fields = {name: getattr(self, name) for name in ToolResult.__slots__ if name[0] != "_"}
        if "output" not in changes and "error" not in changes:
            fields["content"] = self._content
        copy = ToolResult(**{**fields, **changes})
        if "output" not in changes:
            set_slot(copy, "_original", get_original(self))
        set_kernel_facts(copy, (*self._kernel_facts[:6], changes.get("duration_ms", self.duration_ms)))
        return copy

    def copy_with_call(self, call: ToolCall) -> ToolResult:
        """Return a copy with another call for its record, such as a redacted one."""
        copy = self.replace()
        set_kernel_facts(copy, (call, *self._kernel_facts[1:]))
        return copy

    def record(self) -> dict[str, Any]:
        """Return a JSON-safe record of the execution.

        Its keys are the names of the attributes. The result of a runner also has the judged `input`, with stars for
        bound and private values, the `session`, the `principal`, and the time of arrival (`at`, seconds since the
        epoch). `Runner.resume` reads `pending`; it is `None` if the call is not suspended.
        """
        call, session, principal, ended_at, _, answered_by, duration = self._kernel_facts
        given = None if call is None else input_for_record(call)
        return {
            "tool_name": self.tool_name,
            "call_id": self.call_id or None,
            "input": to_jsonable(given.to_dict() if isinstance(given, Arguments) else given),
            "session": session,
            "principal": principal,
            "at": None if ended_at is None else ended_at - duration / 1000,
            "success": self.success,
            "status": self.status,
            "output": to_jsonable(self.output),
            "error": self.error,
            "duration_ms": duration,
            "executed": self.executed,
            "retryable": self.retryable,
            "is_replayed": self.is_replayed,
            "repairs": list(self.repairs),
            "metadata": to_jsonable(dict(self.metadata)),
            "answered_by": answered_by,
            "pending": thaw(self.pending),
        }

    def __repr__(self) -> str:
        shown = safe_str(self.output if self.error is None else self.error, repr)
        return f"<ToolResult {self.tool_name or '?'} {self.status} {shown[:120]}>"


def find_pending(caller: str, given: object) -> Mapping[str, Any]:
    """Return the `pending` of a suspended call, from its result, its `pending` or its record.

    Args:
        caller: The name of the calling function, for the error.

    Raises:
        DefinitionError: It is none of these.
    """
    pending = given.pending if isinstance(given, ToolResult) else given
    if isinstance(pending, Mapping) and not {"kind", "call", "key"} <= pending.keys():
        pending = pending.get("pending")
    if isinstance(pending, Mapping):
        return pending
    status = given.get("status") if isinstance(given, Mapping) else getattr(given, "status", None)
    problem = f"with status {status!r}" if isinstance(status, str) else f"of type {type(given).__name__}"
    raise DefinitionError(
        f"{caller} takes a suspended result, its .pending or its .record(); it was given one {problem}"
    )


_FrozenResult = make_frozen_class(ToolResult)
_new_result = ToolResult.__new__
set_slot = object.__setattr__
"""Set a slot of a result. Nobody else may have the result yet."""
set_kernel_facts = cast("Any", ToolResult.__dict__["_kernel_facts"]).__set__
"""Set the kernel's facts of a result: the redacted call, its session and principal, the time of its end, its record if
it is suspended, the name of the person who answered, and the duration. It takes a third of the time of `set_slot`.
"""


def find_question(pending: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record of the call that the answer is for: the innermost one that waits."""
    while (nested := pending.get("question")) is not None:
        pending = nested
    return pending


def set_pending(result: ToolResult, pending: JsonObject | None) -> None:
    """Set the record of a suspended result that was read back. Nobody else may have the result yet."""
    set_kernel_facts(result, (None, None, None, None, freeze(pending), None, result.duration_ms))


def make_success(output: object, call: ToolCall, tool_name: str) -> ToolResult:
    """Return the result of a handler's value, with valid UTF-8. It is made faster than by the constructor."""
    result: Any = _new_result(ToolResult)
    result.output = output
    if type(output) is str and not output.isascii():
        result.output = clean_text(output)
        result._original = (output, None)
    result.call = call
    result.tool_name = tool_name
    result.error = result.retryable = result._content = result.exception = None
    result.metadata = _EMPTY
    result.status = "ok"
    result.executed = True
    result.repairs = ()
    result._kernel_facts = _NO_KERNEL_FACTS
    result.__class__ = _FrozenResult
    return result  # type: ignore[no-any-return]


def render_as_result(value: Any) -> ToolResult:
    """Return a handler's value as a result. Reading the result runs none of the handler's code.

    If the value is a result, the copy has its status too. `get_original` returns the value itself.

    Raises:
        NotShowable: No result can hold the value.
    """
    if not isinstance(value, ToolResult):
        output = to_output(value)
        result = ToolResult(output, content=to_blocks(output))
        set_slot(result, "_original", (value, None))
        return result
    error, own = value.error, value._content
    metadata = {name: item for name, item in to_jsonable(value.metadata).items() if name not in KERNEL_METADATA}
    original = get_original(value)[0]
    output = to_output(original)
    content = to_blocks(output) if error is None and own is None else own
    result = value.replace(output=output, error=error and clean_text(error), metadata=metadata, content=content)
    set_slot(result, "_original", (original, own))
    return result


def get_original(result: ToolResult) -> tuple[Any, tuple[Block, ...] | None]:
    """Return the original value of the handler or a middleware, and the handler's own content or `None`."""
    return getattr(result, "_original", (result.output, None))


class Suspending(ReturnedAlone):
    """The return value of a handler that has not ended. It suspends the call.

    Attributes:
        waits: The state of the call, in words that follow the name of its tool.
    """

    __slots__ = ()
    waits = "waits for input"

    def _freeze_state(self, given: object) -> None:
        state = to_jsonable(given)
        if not is_same_json(state, thaw(given)):
            raise DefinitionError(f"{type(self).__name__}(state=…) must be plain JSON, not {type(given).__name__}")
        object.__setattr__(self, "state", freeze(state))
