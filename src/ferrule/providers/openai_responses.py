"""OpenAI's Responses API."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict

from ferrule.providers import Stop, Strict
from ferrule.providers._read import (
    allowed_names,
    answered_call,
    arguments,
    base64_text,
    block_text,
    fields_of,
    fields_of_each,
    fill_ids,
    forced_name,
    http_url,
    ids_of,
    is_null,
    known_id,
    mark_repeats,
    marked_error_text,
    media_type,
    name_in_history,
    name_of,
    not_run_problem,
    object_text,
    plain,
    plain_list,
    read,
    read_list,
    read_text,
    split_deferred,
)
from ferrule.providers._stream import TurnStream, as_index, chunk_text, describe_api_error, join_chunks
from ferrule.providers._strict import OPENAI
from ferrule.providers._write import definition, definitions
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from openai.types.responses import FunctionToolParam, ResponseInputItemParam, ResponseStreamEvent
    from openai.types.responses import Response as OpenAIResponse
    from openai.types.responses.response_create_params import ToolChoice

    from ferrule.definition.tool import Tool

    Response: TypeAlias = OpenAIResponse | Mapping[str, Any]
    Event: TypeAlias = ResponseStreamEvent | Mapping[str, Any]

    class Choice(TypedDict):
        """Keyword arguments of a request."""

        tool_choice: ToolChoice
        parallel_tool_calls: NotRequired[bool]


_CALL_TYPES = ("function_call", "custom_tool_call")
_CUT_REASONS = {"max_output_tokens", "max_messages"}
_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_NAME_IN_NAMESPACE = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def tools(
    toolset: Iterable[Tool], *, strict: Strict = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[FunctionToolParam]:
    """`[{"type": "function", "name", "description", "parameters", "strict"}]`, deferred tools behind the others.

    `strict` is always sent: without it the API tries strict mode, which changes what the model sends.

    Args:
        strict: Whether the API holds the model to the schema: for all, or for the tools of these names.
        cache: Nothing to mark here; the API caches an unchanged beginning by itself.
        deferred: Names of tools that the model finds by a tool search.

    Raises:
        DefinitionError: where a tool's schema cannot be strict, strict tools are too many, or a name is no tool's.
    """
    first, later = split_deferred(toolset, deferred)
    written = definitions(first + later, strict, _definition, OPENAI)
    for entry in written[len(first) :]:
        entry["defer_loading"] = True
    return written


def _definition(tool: Tool, strict: bool) -> dict[str, Any]:
    return {"type": "function", **definition(tool, "parameters", OPENAI if strict else None), "strict": strict}


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> Choice:
    """`{"tool_choice": ...}`, and `"parallel_tool_calls": False` where one call at a time is wanted.

    Raises:
        DefinitionError: for `only` beside `"none"` or a name.
    """
    chosen: Any = choice
    if only is not None:
        names = allowed_names(choice, only, "OpenAI")
        chosen = {"type": "allowed_tools", "mode": choice, "tools": [{"type": "function", "name": n} for n in names]}
    elif choice not in {"auto", "required", "none"}:
        chosen = {"type": "function", "name": forced_name(choice)}
    return {"tool_choice": chosen} if parallel else {"tool_choice": chosen, "parallel_tool_calls": False}


def calls(response: Response) -> list[ToolCall]:
    """The calls in a response, in order. `data` holds the item's kind, its namespace and its caller where the answer
    needs them."""
    fields = fields_of(response)
    requested = [item for item in fields_of_each(fields.get("output")) if item.get("type") in _CALL_TYPES]
    if not requested:
        return []
    problem = None if fields.get("status") == "completed" else _problem(response)
    ids = ids_of(response, requested, "call_id")
    return mark_repeats(
        [_call(item, id, problem) for id, item in zip(ids, requested, strict=True)], requested, "call_id"
    )


def _call(item: Mapping[str, Any], id: str, problem: str | None) -> ToolCall:
    status, namespace, caller = item.get("status"), item.get("namespace"), item.get("caller")
    if problem is None and status in ("incomplete", "in_progress"):
        problem = not_run_problem(f"the call was cut off (its status is {status!r})")
    data = {}
    if namespace:
        data["namespace"] = plain(namespace)
    if caller:
        data["caller"] = plain(caller)
    if item["type"] == "custom_tool_call":
        data["type"] = "custom_tool_call"
        return ToolCall(id, name_of(item), {"input": read_text(item, "input")}, problem=problem, data=data)
    return ToolCall(id, name_of(item), arguments(item.get("arguments")), problem=problem, data=data or None)


def _problem(response: Any) -> str | None:
    status = read_text(response, "status")
    if status == "completed" or (not status and not is_null(response, "status")):
        return None
    reason = read_text(read(response, "incomplete_details"), "reason") or status or "no status yet"
    return not_run_problem(f"the turn was not completed ({reason!r})")


def _output_items(response: Any) -> list[Any]:
    items = plain_list(read_list(response, "output"))
    fill_ids(response, [item for item in items if item.get("type") in _CALL_TYPES], "call_id")
    return items


def turn(response: Response) -> list[ResponseInputItemParam]:
    """The output's items, reasoning with its encrypted content and all; only what the SDK's `parse` adds is left
    out, which the API does not take."""
    items = _output_items(response)
    for item in items:
        if item.get("type") in _CALL_TYPES:
            item["name"] = _name_with_namespace(name_of(item), item.get("namespace"))
        if item.get("type") == "function_call":
            item["arguments"] = object_text(item.get("arguments"))
            item.pop("parsed_arguments", None)
        for part in read_list(item, "content") if item.get("type") == "message" else ():
            if isinstance(part, dict):
                part.pop("parsed", None)
    return items


def _name_with_namespace(name: str, namespace: Any) -> str:
    return name_in_history(name, _NAME_IN_NAMESPACE) if namespace else name_in_history(name)


def stop(response: Response) -> Stop:
    """Why the model stopped."""
    status = read_text(response, "status")
    if status == "incomplete":
        reason = read_text(read(response, "incomplete_details"), "reason")
        return "cut" if reason in _CUT_REASONS else "refused" if reason == "content_filter" else "other"
    if status not in {"completed", ""} or is_null(response, "status"):
        return "other"
    items = read_list(response, "output")
    if any(read(item, "type") in _CALL_TYPES for item in items):
        return "calls"
    parts = [part for item in items if read(item, "type") == "message" for part in read_list(item, "content")]
    return "refused" if any(read(part, "type") == "refusal" for part in parts) else "end"


def results(results: Iterable[ToolResult]) -> list[ResponseInputItemParam]:
    """One `function_call_output` or `custom_tool_call_output` item for each result."""
    return [_result(result) for result in results]


def _result(result: ToolResult) -> Any:
    call = answered_call(result)
    data = call.data if isinstance(call.data, dict) else {}
    custom = data.get("type") == "custom_tool_call"
    item: dict[str, Any] = {"type": "custom_tool_call_output" if custom else "function_call_output"}
    item["call_id"] = call.id
    item["output"] = _output(result)
    if data.get("caller"):
        item["caller"] = data["caller"]
    if data.get("namespace") and not custom:
        item |= {"name": _name_with_namespace(call.name, data["namespace"]), "namespace": data["namespace"]}
    return item


def _output(result: ToolResult) -> str | list[dict[str, Any]]:
    if result.status != "ok":
        return marked_error_text(result)
    parts = [_content(block) for block in result.content]
    if all(part["type"] == "input_text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return [part for part in parts if part != {"type": "input_text", "text": ""}]


def _content(block: Block) -> dict[str, Any]:
    if isinstance(block, Media):
        kind = media_type(block)
        address = f"data:{kind};base64,{base64_text(block)}" if block.data else http_url(block)
        if address and kind in _IMAGES:
            return {"type": "input_image", "image_url": address}
        if address and kind == "application/pdf":
            if block.data:
                return {"type": "input_file", "filename": block.name or "file.pdf", "file_data": address}
            return {"type": "input_file", "file_url": address}
    return {"type": "input_text", "text": block_text(block)}


_ITEM_DELTAS = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.mcp_call_arguments.delta": "arguments",
    "response.code_interpreter_call_code.delta": "code",
}
_PART_DELTAS = {
    "response.output_text.delta": ("content", "content_index", "output_text", "text"),
    "response.refusal.delta": ("content", "content_index", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "content_index", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_index", "summary_text", "text"),
}
_END_EVENTS = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}
_DONE_EVENTS = {"response.function_call_arguments.done": "arguments", "response.custom_tool_call_input.done": "input"}
_ITEM_TYPES = {"arguments": "function_call", "input": "custom_tool_call", "code": "code_interpreter_call"}


class Stream(TurnStream["Event", "ResponseInputItemParam"], readers=(calls, turn, stop)):
    """The same from a stream: feed it each event. Until the response is completed, every call has a `problem`."""

    __slots__ = ("_by_id", "_by_index", "_end_status", "_items", "_response")

    def __init__(self) -> None:
        super().__init__()
        self._response: Any = {}
        self._items: list[_StreamedItem] = []
        self._by_id: dict[str, _StreamedItem] = {}
        self._by_index: dict[int | None, _StreamedItem] = {}
        """The newest item under each index, and the newest of all under `None`."""
        self._end_status: str | None = None

    def _append_chunk(self, event: Any) -> bool:
        if type(event) is dict:
            kind, text, item = event["type"], event["delta"], self._by_index[event["output_index"]]
            id = event["item_id"]
            at = None if kind in _ITEM_DELTAS else event[_PART_DELTAS[kind][1]]
        else:
            kind, text, item = event.type, event.delta, self._by_index[event.output_index]
            id = event.item_id
            at = None if kind in _ITEM_DELTAS else getattr(event, _PART_DELTAS[kind][1])
        if type(text) is str and id == item.id is not None:
            item.chunks[kind, at].append(text)
            return True
        return False

    def _apply(self, event: Any) -> None:
        kind = read_text(event, "type")
        if kind in _ITEM_DELTAS or kind in _PART_DELTAS:
            at = None if kind in _ITEM_DELTAS else as_index(read(event, _PART_DELTAS[kind][1])) or 0
            self._item_of(event, kind).chunks[kind, at].append(chunk_text(read(event, "delta")))
        elif kind in _DONE_EVENTS:
            self._item_of(event, kind.replace(".done", ".delta")).done_fields[_DONE_EVENTS[kind]] = read(
                event, _DONE_EVENTS[kind]
            )
        elif kind == "response.output_item.added":
            self._begin(event, read(event, "item", {}))
        elif kind == "response.output_item.done":
            self._complete_item(event, read(event, "item", {}))
        elif kind == "response.output_text.annotation.added":
            found = self._item_of(event, "response.output_text.delta")
            found.annotations[as_index(read(event, "content_index")) or 0].append(read(event, "annotation"))
        elif kind in _END_EVENTS:
            self._end_status = read_text(read(event, "response"), "status") or _END_EVENTS[kind]
            self._response = read(event, "response", self._response)
            if self._end_status == "failed":
                self._error = describe_api_error(read(self._response, "error", "the response failed"))
        elif kind in ("response.created", "response.in_progress", "response.queued"):
            self._response = read(event, "response", self._response)
        elif kind == "error":
            self._end_status = "failed"

    def _begin(self, event: Any, started: Any) -> _StreamedItem:
        """The item of this event: the one that has its id and its index, or a new one."""
        id, index = known_id(read(started, "id")), as_index(read(event, "output_index"))
        item = self._by_id.get(id) if id else None
        if item is None or item.index != index:
            item = _StreamedItem(started, id, index)
            self._items.append(item)
        self._by_index[index] = self._by_index[None] = item
        if id:
            self._by_id[id] = item
        return item

    def _find(self, id: str | None, index: int | None) -> _StreamedItem | None:
        """The item of this id, and of this index where several have it; else the newest under the index."""
        item = self._by_index.get(index)
        return item if id is None or (item is not None and item.id == id) else self._by_id.get(id, item)

    def _complete_item(self, event: Any, done: Any) -> None:
        id, index = known_id(read(done, "id")), as_index(read(event, "output_index"))
        item = self._find(id, index)
        # Some servers make up an item's id anew for each event; the call's own id stays the same.
        if item is None or item.done is not None or not _same_call_id(item.started, done):
            item = self._begin(event, done)
        item.done = done

    def _item_of(self, event: Any, kind: str) -> _StreamedItem:
        id, index = known_id(read(event, "item_id")), as_index(read(event, "output_index"))
        item = self._find(id, index)
        if item is None:
            began = _ITEM_TYPES.get(_ITEM_DELTAS.get(kind, "")) or ("reasoning" if "reasoning" in kind else "message")
            item = self._begin(event, {"type": began, **({"id": id} if id else {})})
        return item

    def _assembled(self) -> dict[str, Any]:
        found = _head(self._response)
        listed = read_list(self._response, "output")
        # Encrypted content counts as it is in `output_item.done`; the end event fills in only what had none.
        if listed and (not self._items or any(item.done is None for item in self._items)):
            found["output"] = listed
        else:
            found["output"] = [item.assembled() for item in self._items]
        found["status"] = self._end_status or "in_progress"
        return found

    @property
    def reason(self) -> str | None:
        """Why the response is incomplete."""
        return read_text(read(self._response, "incomplete_details"), "reason") or None


class _StreamedItem:
    """One item of the output, as it was added, the chunks since then, and as it was when it was done."""

    __slots__ = ("annotations", "chunks", "done", "done_fields", "id", "index", "started")

    def __init__(self, started: Any, id: str | None, index: int | None) -> None:
        self.started = started
        self.id = id
        self.index = index
        self.chunks: defaultdict[tuple[str, int | None], list[str]] = defaultdict(list)
        self.annotations: defaultdict[int, list[Any]] = defaultdict(list)
        self.done_fields: dict[str, Any] = {}
        self.done: Any = None

    def assembled(self) -> Any:
        if self.done is not None:
            return self.done
        found = plain_list([self.started])[0] if plain_list([self.started]) else {}
        for (kind, at), chunks in self.chunks.items():
            if at is None:
                found[_ITEM_DELTAS[kind]] = read_text(found, _ITEM_DELTAS[kind]) + join_chunks(chunks)
            else:
                key, _, part, field = _PART_DELTAS[kind]
                _part_at(found, key, at, part)[field] = join_chunks(chunks)
        for at, notes in self.annotations.items():
            _part_at(found, "content", at, "output_text")["annotations"] = plain(notes)
        found |= self.done_fields
        if found.get("type") in _CALL_TYPES:
            found["status"] = "completed" if self.done_fields else "in_progress"
        return found


def _part_at(item: dict[str, Any], key: str, at: int, kind: str) -> dict[str, Any]:
    """The part at the place `at` of an item's list, which is made longer where it has to be."""
    parts = item[key] = [part for part in read_list(item, key) if isinstance(part, dict)]
    while len(parts) <= min(at, len(parts)):
        parts.append({"type": kind} | ({"text": "", "annotations": []} if kind == "output_text" else {}))
    return parts[min(at, len(parts) - 1)]  # type: ignore[no-any-return]


def _same_call_id(started: Any, done: Any) -> bool:
    """Whether these may be the same item at its start and at its end."""
    ids = [known_id(read(item, "call_id")) for item in (started, done)]
    return None in ids or ids[0] == ids[1]


def _head(response: Any) -> dict[str, Any]:
    """What a response says besides its output, which may be long."""
    if isinstance(response, Mapping):
        return dict(response)
    names = getattr(response, "model_fields_set", ())
    extra = getattr(response, "model_extra", None) or {}
    return {name: getattr(response, name) for name in names} | extra
