"""Anthropic's Messages API. See docs/providers/anthropic.md."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from ferrule.providers import Strict
from ferrule.providers import _wire as wire
from ferrule.providers._api import Api, End, foreign_problem, make_stop_readers, read_calls, resolve_choice
from ferrule.providers._callers import mark_callers
from ferrule.providers._plain import PLAIN_ANTHROPIC
from ferrule.providers._stream import Blocks, Readers, TurnStream, as_index, join_arguments, join_chunks
from ferrule.providers._strict import ANTHROPIC
from ferrule.providers._write import Definitions
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, clean_text, to_jsonable
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from anthropic.lib.streaming import ParsedMessageStreamEvent
    from anthropic.types import (
        CodeExecutionTool20260120Param,
        Message,
        MessageParam,
        RawMessageStreamEvent,
        ToolChoiceParam,
        ToolParam,
    )

    from ferrule.definition.tool import Tool
    from ferrule.definition.toolset import Toolset

    Response: TypeAlias = Message | Mapping[str, Any]
    Event: TypeAlias = RawMessageStreamEvent | ParsedMessageStreamEvent[Any] | Mapping[str, Any]

    class Choice(TypedDict):
        """Keyword arguments of a request."""

        tool_choice: ToolChoiceParam

    class State(TypedDict, total=False):
        """Keyword arguments of the next request."""

        container: str


_API = Api(
    title="Anthropic",
    end_field="stop_reason",
    stops={
        "end_turn": "end",
        "stop_sequence": "end",
        "tool_use": "calls",
        "pause_turn": "pause",
        "compaction": "pause",
        "max_tokens": "cut",
        "model_context_window_exceeded": "cut",
        "refusal": "refused",
    },
    choices={"auto": "auto", "required": "any", "none": "none"},
    one_at_a_time=True,
    images=frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"}),
)
_DEFINITIONS = Definitions(
    name="anthropic",
    plain=PLAIN_ANTHROPIC,
    strict=ANTHROPIC,
    key="input_schema",
    defers=True,
    examples="input_examples",
)


def tools(
    toolset: Iterable[Tool], *, strict: Strict = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[ToolParam]:
    """Return `[{"name", "description", "input_schema"}]`, deferred tools after the others.

    The examples of a tool are its `input_examples`, unless a tool is deferred or finds others: this API refuses the two
    together.

    Args:
        strict: Whether the API holds the model to the schema: for all tools, or for the tools of these names.
        cache: Whether to mark the last tool that is not deferred, so that the definitions up to it are cached.
        deferred: The names of tools that the model finds by a tool search.

    Raises:
        DefinitionError: A tool's schema cannot be sent or strict, strict tools are too many, or a name belongs to no
            tool.
    """
    first, later = _DEFINITIONS.write(toolset, strict, deferred)
    if cache and first:
        first[-1].setdefault("cache_control", {"type": "ephemeral"})
    return first + later


CODE_EXECUTION: CodeExecutionTool20260120Param = {"type": "code_execution_20260120", "name": "code_execution"}
"""The API's tool that runs code, for the `tools` of a request with tools of `callable_from_code`."""


def callable_from_code(tools: Iterable[Tool], *only: str, directly: bool = False) -> Toolset:
    """Return the tools, marked as callable from the API's code execution. See docs/guides/code-mode.md#code-of-an-api.

    Args:
        only: Globs for the names of the tools to mark; all without one.
        directly: Whether the model may call them itself, too.

    Raises:
        DefinitionError: A glob is no text, or no tool has a name.
    """
    callers = [CODE_EXECUTION["type"], *(["direct"] if directly else [])]
    return mark_callers("anthropic", tools, only, callers)


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> Choice:
    """Return `{"tool_choice": {...}}`.

    Raises:
        DefinitionError: There is `only`, but this API has no such option.
    """
    word, names = resolve_choice(_API, choice, parallel, only)
    kind: Any = {"type": word} if word else {"type": "tool", "name": names[0]}
    if not parallel and word != "none":
        kind["disable_parallel_tool_use"] = True
    return {"tool_choice": kind}


def calls(response: Response) -> list[ToolCall]:
    """Return the calls in a message, in order. Their `data` holds a caller and a toolset's name if the API sent
    them."""
    blocks = wire.list_fields(wire.get_fields(response).get("content"))
    requested = [block for block in blocks if block.get("type") == "tool_use"]
    return read_calls(_API, response, requested, "id", _read_call, _read_end)


def _read_call(id: str, block: Any, problem: str | None) -> ToolCall:
    toolset = block.get("toolset_name")
    if toolset:
        problem = problem or foreign_problem(f"{wire.read_name(block)!r} of Anthropic's toolset {str(toolset)!r}")
    kept = {key: block[key] for key in ("caller", "toolset_name") if block.get(key)}
    return ToolCall(
        id,
        wire.read_name(block),
        wire.read_arguments(block.get("input")),
        problem=problem,
        data=wire.to_plain(kept) if kept else None,
    )


def _read_end(response: Response) -> End:
    details = wire.read(response, "stop_details")
    return End(
        wire.read_text(response, "stop_reason"),
        open=wire.is_null(response, "stop_reason"),
        calls=any(wire.read(block, "type") == "tool_use" for block in wire.read_list(response, "content")),
        details=wire.read_text(details, "explanation") or wire.read_text(details, "category"),
    )


def turn(response: Response) -> list[MessageParam]:
    """Return `[{"role": "assistant", "content": [...]}]`, including thinking blocks.

    Two things are left out, because this API sends them but refuses them in a history: empty text blocks
    (github.com/anthropics/anthropic-sdk-python/issues/461), and thoughts at the end ("The final block in an assistant
    message cannot be `thinking`").
    """
    content = wire.read(response, "content")
    blocks = (
        [{"type": "text", "text": clean_text(content)}] if isinstance(content, str) else wire.to_plain_list(content)
    )
    wire.fill_ids(response, [block for block in blocks if block.get("type") == "tool_use"], "id")
    kept: list[Any] = [block for block in blocks if block.get("type") != "text" or block.get("text")]
    kept = wire.drop_last_thoughts(kept, lambda block: block.get("type") in _THOUGHTS)
    for block in kept:
        ours = block.get("type") == "tool_use"
        if ours:
            block["name"] = wire.format_name(wire.read_name(block))
        if (ours or "input" in block) and not isinstance(block.get("input"), dict):
            block["input"] = to_jsonable(wire.to_object(block.get("input")))
    return [{"role": "assistant", "content": kept}] if kept else []


_THOUGHTS = ("thinking", "redacted_thinking")


def text(response: Response) -> str:
    """Return the model's text."""
    blocks = wire.list_fields(wire.get_fields(response).get("content"))
    return "".join(wire.read_text(block, "text") for block in blocks if block.get("type") == "text")


stop, reason = make_stop_readers(_API, _read_end, text)


def state(response: Response) -> State:
    """Return `{"container": id}` if code ran in a container. While calls of that code are pending, the API refuses the
    next request without it."""
    id = wire.read(wire.read(response, "container"), "id")
    return {"container": clean_text(id)} if isinstance(id, str) else {}


def results(results: Iterable[ToolResult]) -> list[MessageParam]:
    """Return `[{"role": "user", "content": [tool_result, ...]}]`: one message for all results, as this API requires."""
    blocks: list[Any] = [_result(result) for result in results]
    return [{"role": "user", "content": blocks}] if blocks else []


def _result(result: ToolResult) -> dict[str, Any]:
    call = wire.require_call(result)
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call.id}
    if result.status == "ok":
        references = [{"type": "tool_reference", "tool_name": one["name"]} for one in wire.read_found_tools(result)]
        shown = [_content(item) for item in result.content] or [{"type": "text", "text": '""'}]
        block["content"] = references or shown
    else:
        block["content"] = [{"type": "text", "text": wire.format_error(result)}]
        block["is_error"] = True
    if isinstance(call.data, dict) and call.data.get("toolset_name"):
        block["toolset_name"] = call.data["toolset_name"]
    return block


def find_referred_tools(messages: Iterable[Any]) -> list[str]:
    """Return the names of the tools to which the messages refer because a search found them, each once. This API
    refuses a request without their definitions. The definitions may be deferred."""
    found: list[str] = []
    for message in wire.list_fields(list(messages)):
        for block in wire.list_fields(message.get("content")):
            shown = block.get("content")
            if block.get("type") == "tool_search_tool_result":
                shown = wire.read(shown, "tool_references")
            elif block.get("type") != "tool_result":
                continue
            references = [one for one in wire.list_fields(shown) if one.get("type") == "tool_reference"]
            found += [wire.read_text(one, "tool_name") for one in references]
    return list(dict.fromkeys(found))


def _content(block: Block) -> dict[str, Any]:
    if isinstance(block, Media):
        source, kind = _source(block), wire.get_media_type(block)
        if source and kind in _API.images:
            return {"type": "image", "source": source}
        if source and kind == "application/pdf":
            return {"type": "document", "source": source} | ({"title": block.name} if block.name else {})
    return {"type": "text", "text": wire.to_non_blank(wire.format_block(block))}


def _source(block: Media) -> dict[str, Any] | None:
    if block.data:
        return {"type": "base64", "media_type": wire.get_media_type(block), "data": wire.encode_base64(block)}
    address = wire.get_fetch_address(block)
    return {"type": "url", "url": address} if address else None


_DELTA_LABELS = frozenset({"type", "estimated_tokens"})
"""Fields of a delta that no block has. The SDK's BetaThinkingDelta counts the tokens of a thought so far."""
_FIELD_KINDS = {"partial_json": "tool_use", "text": "text", "thinking": "thinking", "signature": "thinking"}


class Stream(TurnStream["Event", "MessageParam"], readers=Readers(calls, text, turn, stop, reason, state, _read_end)):
    """A `Stream`: feed it each event. Until `message_stop`, every call has a `problem`."""

    __slots__ = ("_blocks", "_delta", "_ended", "_message")

    def __init__(self) -> None:
        super().__init__()
        self._message: dict[str, Any] = {}
        self._blocks: Blocks[_StreamedBlock] = Blocks()
        self._delta: dict[str, Any] = {}
        self._ended = False

    def _read_event(self, event: Any) -> None:
        kind = wire.read_text(event, "type")
        if kind == "message_start":
            found = wire.to_plain(wire.read(event, "message"))
            self._begin_response(self._message, found)
            self._message = found if isinstance(found, dict) else {}
        elif kind == "content_block_start":
            self._begin(as_index(wire.read(event, "index")), wire.to_plain(wire.read(event, "content_block")))
        elif kind == "content_block_delta":
            self._continue(as_index(wire.read(event, "index")), wire.get_fields(wire.read(event, "delta")))
        elif kind == "message_delta":
            self._delta |= _without_nulls(wire.to_plain(wire.read(event, "delta")))
            usage = {**self._delta.get("usage", {}), **_without_nulls(wire.to_plain(wire.read(event, "usage")))}
            self._delta |= {"usage": usage} if usage else {}
        elif kind == "message_stop":
            self._ended = True

    def _begin(self, index: int | None, start: Any) -> None:
        start = start if isinstance(start, dict) else {}
        self._blocks.begin(wire.parse_id(start.get("id")), _StreamedBlock(start, index))

    def _continue(self, index: int | None, delta: Mapping[str, Any]) -> None:
        for key, value in delta.items():
            if value is None or key in _DELTA_LABELS:
                continue
            if index not in self._blocks.by_index:
                self._begin(index, {"type": _FIELD_KINDS.get(key, "text")})
            block = self._blocks.by_index[index]
            if key == "citation":
                block.citations.append(wire.to_plain(value))
            elif isinstance(value, str):
                block.chunks.setdefault(key, []).append(value)
            else:
                block.start[key] = wire.to_plain(value)

    def _assemble(self) -> dict[str, Any]:
        content = [*wire.to_plain_list(self._message.get("content")), *(block.assemble() for block in self._blocks)]
        found = {**self._message, **self._delta, "content": content}
        usage = {**_without_nulls(self._message.get("usage")), **_without_nulls(self._delta.get("usage"))}
        if usage:
            found["usage"] = usage
        if not self._ended:
            found["stop_reason"] = None
        return found

    def partial(self) -> dict[str, Any]:
        """Return the message so far, in the form of one without a stream."""
        found: dict[str, Any] = wire.to_plain(self._assemble())
        for block in found["content"]:
            if "input" in block:
                # For a tool of ours, *decode* handles text that is no JSON.
                given = wire.parse_object_or_text(block["input"])
                block["input"] = given if block.get("type") == "tool_use" else to_jsonable(wire.to_object(given))
        return found

    def turn(self) -> list[MessageParam]:
        """Return the assistant's turn so far, with its signatures."""
        return turn(self.partial())


class _StreamedBlock:
    """One block of content: its start, and the chunks since then."""

    __slots__ = ("chunks", "citations", "index", "start")

    def __init__(self, start: dict[str, Any], index: int | None) -> None:
        self.start = start
        self.index = index
        self.chunks: dict[str, list[str]] = {field: [] for field in _FIELD_KINDS}
        self.citations: list[Any] = []

    def assemble(self) -> dict[str, Any]:
        found = dict(self.start)
        for field, chunks in self.chunks.items():
            if chunks and field != "partial_json":
                found[field] = wire.read_text(found, field) + join_chunks(chunks)
        text = join_arguments(self.chunks["partial_json"])
        if text.strip():
            found["input"] = text
        if self.citations:
            found["citations"] = [*wire.read_list(found, "citations"), *self.citations]
        return found


def _without_nulls(value: Any) -> dict[str, Any]:
    """Return the items of a dict that are not null."""
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else {}
