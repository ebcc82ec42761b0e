"""`ToolResult`: what one call came to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, cast, get_args

from ferrule.errors import DefinitionError
from ferrule.values.arguments import Arguments
from ferrule.values.call import ToolCall, input_for_record
from ferrule.values.content import Block, Text, check_blocks, clean_text, safe_str, to_blocks, to_jsonable, to_output
from ferrule.values.frozen import FrozenDict, JsonObject, freeze, make_frozen_class, thaw

Status: TypeAlias = Literal[
    "ok", "invalid", "not_found", "denied", "suspended", "limited", "timeout", "cancelled", "failed", "unknown"
]
"""The outcome of a call. See docs/talking-to-the-model.md#results."""
_KNOWN_STATUSES = get_args(Status)
_EMPTY: JsonObject = FrozenDict()


KERNEL_METADATA = frozenset({"replayed", "resumed_already", "other_arguments", "unrecorded"})
"""The keys of result metadata that only the kernel may set. A handler's values under these names are dropped."""
_NO_KERNEL_FACTS = (None,) * 6


class _ResultFields:
    """The slots of a result. A class without `__init__` is filled a third faster (Python 3.13)."""

    __slots__ = (
        "_content",
        "_kernel_facts",
        "_original",
        "_retryable",
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


class ToolResult(_ResultFields):
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
        retryable: Whether the same call may succeed later: `False` for a final answer, `None` if the source of the tool
            does not say.
        repairs: The repairs of the arguments, in words.
        metadata: Anything that the handler or a middleware adds.
        duration_ms: Milliseconds from arrival to result.
        exception: The exception, for events and logs, never for a model.
    """

    __slots__ = ()

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
        self.output = output
        self.error = error
        self.metadata = _EMPTY if metadata is None else metadata
        self._content = None if content is None else check_blocks(content)
        self.call = call
        self.tool_name = tool_name
        self.status: Status = status or ("ok" if error is None else "failed")
        self.executed = executed
        self.repairs = repairs
        self.duration_ms = duration_ms
        self.exception = exception
        if retryable is not None:
            if not isinstance(retryable, bool):
                raise TypeError(f"retryable must be True, False or None, not {retryable!r}")
            self._retryable = retryable
        self.__class__ = _FrozenResult

    @property
    def content(self) -> tuple[Block, ...]:
        """The blocks that a model gets, always valid UTF-8: of the output where there are no others."""
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
        return self._known_facts[4] if self.status == "suspended" else None

    @property
    def approved_by(self) -> str | None:
        """The name of the person who approved, from `allow(by=…)` or `resume(…, by=…)`."""
        return cast("str | None", self._known_facts[5])

    @property
    def _known_facts(self) -> tuple[Any, ...]:
        return getattr(self, "_kernel_facts", _NO_KERNEL_FACTS)

    @property
    def call_id(self) -> str:
        """The id as the model sent it."""
        return self.call.id if self.call is not None else ""

    @property
    def is_replayed(self) -> bool:
        """Whether the journal gave it, so that nothing was run for this call."""
        return self.metadata.get("replayed") is True

    @property
    def retryable(self) -> bool | None:
        """Whether the same call may succeed later; see the class."""
        return cast("bool | None", getattr(self, "_retryable", None))

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
        """A changed copy; `changes` are the constructor's arguments. A new output has new content."""
        kept = {name: getattr(self, name) for name in _ResultFields.__slots__ if name[0] != "_"}
        kept["retryable"] = self.retryable
        if "output" not in changes and "error" not in changes:
            kept["content"] = self._content
        made = ToolResult(**{**kept, **changes})
        if "output" not in changes:
            set_slot(made, "_original", get_original(self))
        set_kernel_facts(made, self._known_facts)
        return made

    def record(self) -> dict[str, Any]:
        """A JSON-safe record of the execution.

        Names are those of the attributes. The result of a runner also has the `input` as it was judged, with stars for
        what is bound or private, the `session`, the `principal`, and when the call arrived (`at`, seconds since the
        epoch). `pending` is what `Runner.resume` reads, or `None` if the call is not suspended.
        """
        told, session, principal, ended_at, _, approved_by = self._known_facts
        given = None if told is None else input_for_record(told)
        return {
            "tool_name": self.tool_name,
            "call_id": self.call_id or None,
            "input": to_jsonable(given.to_dict() if isinstance(given, Arguments) else given),
            "session": session,
            "principal": principal,
            "at": None if ended_at is None else ended_at - self.duration_ms / 1000,
            "success": self.success,
            "status": self.status,
            "output": to_jsonable(self.output),
            "error": self.error,
            "duration_ms": self.duration_ms,
            "executed": self.executed,
            "retryable": self.retryable,
            "is_replayed": self.is_replayed,
            "repairs": list(self.repairs),
            "metadata": to_jsonable(dict(self.metadata)),
            "approved_by": approved_by,
            "pending": thaw(self.pending),
        }

    def __repr__(self) -> str:
        shown = safe_str(self.output if self.error is None else self.error, repr)
        return f"<ToolResult {self.tool_name or '?'} {self.status} {shown[:120]}>"


def find_pending(who: str, given: object) -> Mapping[str, Any]:
    """The `pending` of a suspended call, given as its result, its `pending` or its record.

    Raises:
        DefinitionError: if it is none of these; it says what `who` was given.
    """
    found = given.pending if isinstance(given, ToolResult) else given
    if isinstance(found, Mapping) and not {"kind", "call", "key"} <= found.keys():
        found = found.get("pending")
    if isinstance(found, Mapping):
        return found
    if getattr(given, "results", None):
        raise DefinitionError(f"{who} takes one call: give it one of the .results of this {type(given).__name__}")
    status = given.get("status") if isinstance(given, Mapping) else getattr(given, "status", None)
    what = f"with status {status!r}" if isinstance(status, str) else f"of type {type(given).__name__}"
    raise DefinitionError(f"{who} takes a suspended result, its .pending or its .record(); it was given one {what}")


_FrozenResult = make_frozen_class(ToolResult)
set_slot = object.__setattr__
"""For the kernel and who copies a result: fills in a slot of one that nobody else has."""
set_duration = cast("Any", _ResultFields.__dict__["duration_ms"]).__set__
"""The same for what every call fills in, in a third of the time."""
set_kernel_facts = cast("Any", _ResultFields.__dict__["_kernel_facts"]).__set__
"""Set the facts that only the kernel knows: the redacted call, its session and principal, the time of its end, its
record if it is suspended, and who approved it."""


def set_pending(result: ToolResult, pending: JsonObject | None) -> None:
    """Give a suspended result its record after it was read back. Nobody else may have the result yet."""
    set_kernel_facts(result, (None, None, None, None, freeze(pending), None))


def make_success(output: object, call: ToolCall, tool_name: str) -> ToolResult:
    """Return the result of a handler's value, with text that UTF-8 can hold."""
    result: Any = _ResultFields()
    result.output = output
    if type(output) is str and not output.isascii():
        result.output = clean_text(output)
        result._original = (output, None)
    result.call = call
    result.tool_name = tool_name
    result.error = result._content = result.exception = None
    result.metadata = _EMPTY
    result.status = "ok"
    result.executed = True
    result.repairs = ()
    result.duration_ms = 0.0
    result.__class__ = _FrozenResult
    return result  # type: ignore[no-any-return]


def render_as_result(value: Any, not_finite: list[str] | None = None) -> ToolResult:
    """Return a handler's value as a result whose reading runs none of the handler's code.

    A result that the handler returns is copied whole, with its status. `get_original` finds the value itself.

    Args:
        not_finite: Gets the first NaN or infinity in it, which is null in JSON.

    Raises:
        NotShowable: for a value that no result can hold.
    """
    if not isinstance(value, ToolResult):
        output = to_output(value, not_finite=not_finite)
        made = ToolResult(output, content=to_blocks(output))
        set_slot(made, "_original", (value, None))
        return made
    error, own = value.error, value._content
    metadata = {name: said for name, said in to_jsonable(value.metadata).items() if name not in KERNEL_METADATA}
    given = get_original_value(value)
    output = to_output(given, not_finite=not_finite)
    content = to_blocks(output) if error is None and own is None else own
    made = value.replace(output=output, error=error and clean_text(error), metadata=metadata, content=content)
    set_slot(made, "_original", (given, own))
    return made


def get_original(result: ToolResult) -> tuple[Any, tuple[Block, ...] | None]:
    """Return the value of the handler or of a middleware, and the content that the handler gave with it, or `None`."""
    return getattr(result, "_original", (result.output, None))


def get_original_value(result: ToolResult) -> Any:
    """The first of what `get_original` tells."""
    return get_original(result)[0]
