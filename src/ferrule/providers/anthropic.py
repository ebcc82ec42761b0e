"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ferrule.errors import DefinitionError
from ferrule.providers._read import (
    Names,
    Stop,
    arguments,
    as_json_text,
    base64_text,
    block_text,
    call_of,
    chosen_name,
    error_text,
    ids_of,
    in_order,
    known_id,
    left_open,
    media_type,
    name_of,
    not_run,
    object_value,
    once,
    plain,
    plain_list,
    read,
    read_list,
    read_text,
    sent_name,
    view,
    views,
    web_address,
    with_ids,
)
from ferrule.providers._stream import TurnStream, as_object, joined, place
from ferrule.providers._strict import ANTHROPIC, strict_schema
from ferrule.providers._write import definitions
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, clean, jsonable
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

_STOPS: dict[str, Stop] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "calls",
    "pause_turn": "pause",
    "max_tokens": "cut",
    "model_context_window_exceeded": "cut",
    "refusal": "refused",
}
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}


def tools(
    toolset: Iterable[Tool], *, strict: Names = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[dict[str, Any]]:
    """`[{"name", "description", "input_schema"}]`, deferred tools behind the others.

    Args:
        strict: Whether the API holds the model to the schema: for all, or for the tools of these names.
        cache: Marks the last tool that is not deferred, so that the definitions up to it are cached.
        deferred: Names of tools that the model finds by a tool search.

    Raises:
        DefinitionError: where a tool's schema cannot be strict, strict tools are too many, or a name is no tool's.
    """
    first, later = in_order(toolset, deferred)
    written = definitions(first + later, strict, _definition, ANTHROPIC)
    if cache and first:
        written[len(first) - 1]["cache_control"] = {"type": "ephemeral"}
    for definition in written[len(first) :]:
        definition["defer_loading"] = True
    return written


def _definition(tool: Tool, strict: bool) -> dict[str, Any]:
    definition: dict[str, Any] = {"name": tool.wire_name}
    if tool.description:
        definition["description"] = tool.description
    definition["input_schema"] = strict_schema(tool, ANTHROPIC) if strict else tool.input_schema
    return definition | {"strict": True} if strict else definition


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> dict[str, Any]:
    """`{"tool_choice": {...}}`.

    Raises:
        DefinitionError: for `only`, which this API cannot say.
    """
    if only is not None:
        raise DefinitionError("Anthropic has no list of allowed tools: offer fewer, tools(toolset.only(...))")
    kind = _CHOICES.get(choice)
    said: dict[str, Any] = {"type": kind} if kind else {"type": "tool", "name": chosen_name(choice)}
    if not parallel and kind != "none":
        said["disable_parallel_tool_use"] = True
    return {"tool_choice": said}


def calls(response: Any) -> list[ToolCall]:
    """The calls in a message, in order. `data` holds a caller and a toolset's name where they came."""
    said = view(response)
    asked = [block for block in views(said.get("content")) if block.get("type") == "tool_use"]
    if not asked:
        return []
    problem = None if said.get("stop_reason") == "tool_use" else _problem(response)
    found = []
    for id, block in zip(ids_of(response, asked, "id"), asked, strict=True):
        given, data = arguments(block.get("input")), _data(block)
        found.append(ToolCall(id, name_of(block), given, problem=problem, data=data))
    return once(found, asked, "id")


def _data(block: Mapping[str, Any]) -> dict[str, Any] | None:
    caller, toolset = block.get("caller"), block.get("toolset_name")
    if not caller and not toolset:
        return None
    return plain({key: item for key, item in (("caller", caller), ("toolset_name", toolset)) if item})  # type: ignore[no-any-return]


def _problem(response: Any) -> str | None:
    reason = read_text(response, "stop_reason")
    if reason == "pause_turn":
        return not_run("the turn was paused ('pause_turn')")
    if reason == "refusal":
        return not_run("the turn ended in a refusal ('refusal')")
    if _STOPS.get(reason) == "cut":
        return not_run(f"the turn was cut off ({reason!r})")
    if left_open(response, "stop_reason"):
        return not_run("the turn has no end yet (its stop_reason is null)")
    if reason and reason not in _STOPS:
        return not_run(f"the turn ended for a reason that is not known here ({reason!r})")
    return None


def _blocks(response: Any) -> list[dict[str, Any]]:
    content = read(response, "content", [])
    blocks = [{"type": "text", "text": clean(content)}] if isinstance(content, str) else plain_list(content)
    with_ids(response, [block for block in blocks if block.get("type") == "tool_use"], "id")
    return blocks


def turn(response: Any) -> list[dict[str, Any]]:
    """`[{"role": "assistant", "content": [...]}]`, thinking blocks and all.

    Empty text blocks stay behind: this API sends them and does not take them
    (github.com/anthropics/anthropic-sdk-python/issues/461).
    """
    kept = [block for block in _blocks(response) if block.get("type") != "text" or block.get("text")]
    for block in kept:
        ours = block.get("type") == "tool_use"
        if ours:
            block["name"] = sent_name(name_of(block))
        if (ours or "input" in block) and not isinstance(block.get("input"), dict):
            block["input"] = jsonable(object_value(block.get("input")))
    return [{"role": "assistant", "content": kept}] if kept else []


def stop(response: Any) -> Stop:
    """Why the model stopped."""
    reason = read_text(response, "stop_reason")
    found = _STOPS.get(reason, "other")
    if found not in {"end", "calls"} and (reason or left_open(response, "stop_reason")):
        return found
    if any(read(block, "type") == "tool_use" for block in read_list(response, "content")):
        return "calls"
    return "malformed" if found == "calls" else "end"


def results(results: Iterable[ToolResult]) -> list[dict[str, Any]]:
    """`[{"role": "user", "content": [tool_result, ...]}]`: one message for all, as this API wants it."""
    blocks = [_result(result) for result in results]
    return [{"role": "user", "content": blocks}] if blocks else []


def _result(result: ToolResult) -> dict[str, Any]:
    call = call_of(result)
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call.id}
    if result.status == "ok":
        block["content"] = [_content(item) for item in result.content] or [{"type": "text", "text": '""'}]
    else:
        block["content"] = [{"type": "text", "text": error_text(result)}]
        block["is_error"] = True
    if isinstance(call.data, dict) and call.data.get("toolset_name"):
        block["toolset_name"] = call.data["toolset_name"]
    return block


def _content(block: Block) -> dict[str, Any]:
    if isinstance(block, Media):
        source, kind = _source(block), media_type(block)
        if source and kind in _IMAGES:
            return {"type": "image", "source": source}
        if source and kind == "application/pdf":
            return {"type": "document", "source": source} | ({"title": block.name} if block.name else {})
    return {"type": "text", "text": as_json_text(block_text(block))}


def _source(block: Media) -> dict[str, Any] | None:
    if block.data:
        return {"type": "base64", "media_type": media_type(block), "data": base64_text(block)}
    address = web_address(block)
    return {"type": "url", "url": address} if address else None


_FRAGMENTS = {
    "input_json_delta": "partial_json",
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}
_KINDS = {"partial_json": "tool_use", "text": "text", "thinking": "thinking", "signature": "thinking"}


class Stream(TurnStream, reading=(calls, turn, stop)):
    """The same from a stream: feed it each event. Until `message_stop`, every call has a `problem`."""

    __slots__ = ("_blocks", "_by_id", "_delta", "_ended", "_message", "_open")

    def __init__(self) -> None:
        super().__init__()
        self._message: dict[str, Any] = {}
        self._blocks: list[_Block] = []
        self._by_id: dict[str, _Block] = {}
        """The newest block of each id."""
        self._open: dict[int | None, _Block] = {}
        """The newest block under each index, and the newest of all under `None`."""
        self._delta: dict[str, Any] = {}
        self._ended = False

    def _goes_on(self, event: Any) -> bool:
        if type(event) is dict:
            delta = event["delta"]
            field = _FRAGMENTS[delta["type"]]
            text, fragments = delta[field], self._open[event["index"]].fragments
        else:
            delta = event.delta
            field = _FRAGMENTS[delta.type]
            text, fragments = getattr(delta, field), self._open[event.index].fragments
        if type(text) is str:
            fragments[field].append(text)
            return True
        return False

    def _take(self, event: Any) -> None:
        kind = read_text(event, "type")
        if kind == "message_start":
            found = plain(read(event, "message"))
            self._message = found if isinstance(found, dict) else {}
        elif kind == "content_block_start":
            self._begin(place(read(event, "index")), plain(read(event, "content_block")))
        elif kind == "content_block_delta":
            self._continue(place(read(event, "index")), plain(read(event, "delta")))
        elif kind == "message_delta":
            self._delta |= _said(plain(read(event, "delta")))
            usage = {**self._delta.get("usage", {}), **_said(plain(read(event, "usage")))}
            self._delta |= {"usage": usage} if usage else {}
        elif kind == "message_stop":
            self._ended = True

    def _begin(self, index: int | None, start: Any) -> None:
        start = start if isinstance(start, dict) else {}
        id = known_id(start.get("id"))
        block = self._by_id.get(id) if id else None
        if block is None or block.index != index:
            block = _Block(start, index)
            self._blocks.append(block)
            if id:
                self._by_id[id] = block
        self._open[index] = self._open[None] = block

    def _continue(self, index: int | None, delta: Any) -> None:
        """A delta of a new kind, or of a block that was never begun."""
        for key, value in _said(delta).items():
            if key == "type":
                continue
            if index not in self._open:
                self._begin(index, {"type": _KINDS.get(key, "text")})
            block = self._open[index]
            if key == "citation":
                block.citations.append(value)
            elif isinstance(value, str):
                block.fragments.setdefault(key, []).append(value)
            else:
                block.start[key] = value

    def _so_far(self) -> dict[str, Any]:
        content = [*plain_list(self._message.get("content")), *(block.whole() for block in self._blocks)]
        found = {**self._message, **self._delta, "content": content}
        usage = {**_said(self._message.get("usage")), **_said(self._delta.get("usage"))}
        if usage:
            found["usage"] = usage
        if not self._ended:
            found["stop_reason"] = None
        return found

    def partial(self) -> dict[str, Any]:
        """The message so far, as it comes without a stream."""
        found: dict[str, Any] = plain(self._so_far())
        for block in found["content"]:
            if "input" in block:
                # What is no JSON is left to *decode*, where the call is ours.
                given = as_object(block["input"])
                block["input"] = given if block.get("type") == "tool_use" else jsonable(object_value(given))
        return found

    def turn(self) -> list[dict[str, Any]]:
        """The assistant's turn so far, signatures and all."""
        return turn(self.partial())

    @property
    def reason(self) -> str | None:
        """What the API says of a refusal."""
        details = self._delta.get("stop_details")
        return read_text(details, "explanation") or read_text(details, "category") or None


class _Block:
    """One block of content, as it came at its start, and the fragments since then."""

    __slots__ = ("citations", "fragments", "index", "start")

    def __init__(self, start: dict[str, Any], index: int | None) -> None:
        self.start = start
        self.index = index
        self.fragments: dict[str, list[str]] = {field: [] for field in _KINDS}
        self.citations: list[Any] = []

    def whole(self) -> dict[str, Any]:
        found = dict(self.start)
        for field, fragments in self.fragments.items():
            if fragments and field != "partial_json":
                found[field] = read_text(found, field) + joined(fragments)
        text = joined(self.fragments["partial_json"])
        if text.strip():
            found["input"] = text
        if self.citations:
            found["citations"] = [*read_list(found, "citations"), *self.citations]
        return found


def _said(value: Any) -> dict[str, Any]:
    """What of a dict is not null."""
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else {}
