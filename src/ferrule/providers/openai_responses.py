"""OpenAI's Responses API."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ferrule.providers._read import (
    Names,
    Stop,
    allowed_names,
    arguments,
    base64_text,
    block_text,
    call_of,
    chosen_name,
    ids_of,
    in_order,
    known_id,
    left_open,
    marked_error_text,
    media_type,
    name_of,
    not_run,
    object_text,
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
from ferrule.providers._stream import TurnStream, fragment, joined, place, said_of
from ferrule.providers._strict import OPENAI, strict_schema
from ferrule.providers._write import definitions
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

_CALLS = ("function_call", "custom_tool_call")
_CUT = {"max_output_tokens", "max_messages"}
_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_NAME_IN_NAMESPACE = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def tools(
    toolset: Iterable[Tool], *, strict: Names = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[dict[str, Any]]:
    """`[{"type": "function", "name", "description", "parameters", "strict"}]`, deferred tools behind the others.

    `strict` is always said: without it the API tries strict mode, which changes what the model sends.

    Args:
        strict: Whether the API holds the model to the schema: for all, or for the tools of these names.
        cache: Nothing to mark here; the API caches an unchanged beginning by itself.
        deferred: Names of tools that the model finds by a tool search.

    Raises:
        DefinitionError: where a tool's schema cannot be strict, strict tools are too many, or a name is no tool's.
    """
    first, later = in_order(toolset, deferred)
    written = definitions(first + later, strict, _definition, OPENAI)
    for definition in written[len(first) :]:
        definition["defer_loading"] = True
    return written


def _definition(tool: Tool, strict: bool) -> dict[str, Any]:
    definition: dict[str, Any] = {"type": "function", "name": tool.wire_name}
    if tool.description:
        definition["description"] = tool.description
    schema = strict_schema(tool, OPENAI) if strict else tool.input_schema
    return definition | {"parameters": schema, "strict": strict}


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> dict[str, Any]:
    """`{"tool_choice": ...}`, and `"parallel_tool_calls": False` where one call at a time is wanted.

    Raises:
        DefinitionError: for `only` beside `"none"` or a name.
    """
    said: Any = choice
    if only is not None:
        names = allowed_names(choice, only, "OpenAI")
        said = {"type": "allowed_tools", "mode": choice, "tools": [{"type": "function", "name": n} for n in names]}
    elif choice not in {"auto", "required", "none"}:
        said = {"type": "function", "name": chosen_name(choice)}
    return {"tool_choice": said} if parallel else {"tool_choice": said, "parallel_tool_calls": False}


def calls(response: Any) -> list[ToolCall]:
    """The calls in a response, in order. `data` holds the item's kind, its namespace and its caller where the answer
    needs them."""
    said = view(response)
    asked = [item for item in views(said.get("output")) if item.get("type") in _CALLS]
    if not asked:
        return []
    problem = None if said.get("status") == "completed" else _problem(response)
    ids = ids_of(response, asked, "call_id")
    return once([_call(item, id, problem) for id, item in zip(ids, asked, strict=True)], asked, "call_id")


def _call(item: Mapping[str, Any], id: str, problem: str | None) -> ToolCall:
    status, namespace, caller = item.get("status"), item.get("namespace"), item.get("caller")
    if problem is None and status in ("incomplete", "in_progress"):
        problem = not_run(f"the call was cut off (its status is {status!r})")
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
    if status == "completed" or (not status and not left_open(response, "status")):
        return None
    reason = read_text(read(response, "incomplete_details"), "reason") or status or "no status yet"
    return not_run(f"the turn was not completed ({reason!r})")


def _items(response: Any) -> list[dict[str, Any]]:
    items = plain_list(read_list(response, "output"))
    with_ids(response, [item for item in items if item.get("type") in _CALLS], "call_id")
    return items


def turn(response: Any) -> list[dict[str, Any]]:
    """The output's items, reasoning with its encrypted content and all; only what the SDK's `parse` adds is left
    out, which the API does not take."""
    items = _items(response)
    for item in items:
        if item.get("type") in _CALLS:
            item["name"] = _sent_name(name_of(item), item.get("namespace"))
        if item.get("type") == "function_call":
            item["arguments"] = object_text(item.get("arguments"))
            item.pop("parsed_arguments", None)
        for part in read_list(item, "content") if item.get("type") == "message" else ():
            if isinstance(part, dict):
                part.pop("parsed", None)
    return items


def _sent_name(name: str, namespace: Any) -> str:
    return sent_name(name, _NAME_IN_NAMESPACE) if namespace else sent_name(name)


def stop(response: Any) -> Stop:
    """Why the model stopped."""
    status = read_text(response, "status")
    if status == "incomplete":
        reason = read_text(read(response, "incomplete_details"), "reason")
        return "cut" if reason in _CUT else "refused" if reason == "content_filter" else "other"
    if status not in {"completed", ""} or left_open(response, "status"):
        return "other"
    items = read_list(response, "output")
    if any(read(item, "type") in _CALLS for item in items):
        return "calls"
    parts = [part for item in items if read(item, "type") == "message" for part in read_list(item, "content")]
    return "refused" if any(read(part, "type") == "refusal" for part in parts) else "end"


def results(results: Iterable[ToolResult]) -> list[dict[str, Any]]:
    """One `function_call_output` or `custom_tool_call_output` item for each result."""
    return [_result(result) for result in results]


def _result(result: ToolResult) -> dict[str, Any]:
    call = call_of(result)
    data = call.data if isinstance(call.data, dict) else {}
    custom = data.get("type") == "custom_tool_call"
    item: dict[str, Any] = {"type": "custom_tool_call_output" if custom else "function_call_output"}
    item["call_id"] = call.id
    item["output"] = _output(result)
    if data.get("caller"):
        item["caller"] = data["caller"]
    if data.get("namespace") and not custom:
        item |= {"name": _sent_name(call.name, data["namespace"]), "namespace": data["namespace"]}
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
        address = f"data:{kind};base64,{base64_text(block)}" if block.data else web_address(block)
        if address and kind in _IMAGES:
            return {"type": "input_image", "image_url": address}
        if address and kind == "application/pdf":
            if block.data:
                return {"type": "input_file", "filename": block.name or "file.pdf", "file_data": address}
            return {"type": "input_file", "file_url": address}
    return {"type": "input_text", "text": block_text(block)}


_FLAT = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.mcp_call_arguments.delta": "arguments",
    "response.code_interpreter_call_code.delta": "code",
}
_NESTED = {
    "response.output_text.delta": ("content", "content_index", "output_text", "text"),
    "response.refusal.delta": ("content", "content_index", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "content_index", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_index", "summary_text", "text"),
}
_ENDS = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}
_DONE = {"response.function_call_arguments.done": "arguments", "response.custom_tool_call_input.done": "input"}
_BEGUN = {"arguments": "function_call", "input": "custom_tool_call", "code": "code_interpreter_call"}


class Stream(TurnStream, reading=(calls, turn, stop)):
    """The same from a stream: feed it each event. Until the response is completed, every call has a `problem`."""

    __slots__ = ("_by_id", "_by_index", "_end", "_items", "_response")

    def __init__(self) -> None:
        super().__init__()
        self._response: Any = {}
        self._items: list[_Item] = []
        self._by_id: dict[str, _Item] = {}
        self._by_index: dict[int | None, _Item] = {}
        """The newest item under each index, and the newest of all under `None`."""
        self._end: str | None = None

    def _goes_on(self, event: Any) -> bool:
        if type(event) is dict:
            kind, text, item = event["type"], event["delta"], self._by_index[event["output_index"]]
            id = event["item_id"]
            at = None if kind in _FLAT else event[_NESTED[kind][1]]
        else:
            kind, text, item = event.type, event.delta, self._by_index[event.output_index]
            id = event.item_id
            at = None if kind in _FLAT else getattr(event, _NESTED[kind][1])
        if type(text) is str and id == item.id is not None:
            item.fragments[kind, at].append(text)
            return True
        return False

    def _take(self, event: Any) -> None:
        kind = read_text(event, "type")
        if kind in _FLAT or kind in _NESTED:
            at = None if kind in _FLAT else place(read(event, _NESTED[kind][1])) or 0
            self._item_of(event, kind).fragments[kind, at].append(fragment(read(event, "delta")))
        elif kind in _DONE:
            self._item_of(event, kind.replace(".done", ".delta")).said[_DONE[kind]] = read(event, _DONE[kind])
        elif kind == "response.output_item.added":
            self._begin(event, read(event, "item", {}))
        elif kind == "response.output_item.done":
            self._finish(event, read(event, "item", {}))
        elif kind == "response.output_text.annotation.added":
            found = self._item_of(event, "response.output_text.delta")
            found.annotations[place(read(event, "content_index")) or 0].append(read(event, "annotation"))
        elif kind in _ENDS:
            self._end = read_text(read(event, "response"), "status") or _ENDS[kind]
            self._response = read(event, "response", self._response)
            if self._end == "failed":
                self._error = said_of(read(self._response, "error", "the response failed"))
        elif kind in ("response.created", "response.in_progress", "response.queued"):
            self._response = read(event, "response", self._response)
        elif kind == "error":
            self._end = "failed"

    def _begin(self, event: Any, started: Any) -> _Item:
        """The item of this event: the one that has its id and its index, or a new one."""
        id, index = known_id(read(started, "id")), place(read(event, "output_index"))
        item = self._by_id.get(id) if id else None
        if item is None or item.index != index:
            item = _Item(started, id, index)
            self._items.append(item)
        self._by_index[index] = self._by_index[None] = item
        if id:
            self._by_id[id] = item
        return item

    def _known(self, id: str | None, index: int | None) -> _Item | None:
        """The item of this id, and of this index where several have it; else the newest under the index."""
        item = self._by_index.get(index)
        return item if id is None or (item is not None and item.id == id) else self._by_id.get(id, item)

    def _finish(self, event: Any, done: Any) -> None:
        id, index = known_id(read(done, "id")), place(read(event, "output_index"))
        item = self._known(id, index)
        # Some servers make up an item's id anew for each event; the call's own id stays the same.
        if item is None or item.done is not None or not _one_call(item.started, done):
            item = self._begin(event, done)
        item.done = done

    def _item_of(self, event: Any, kind: str) -> _Item:
        id, index = known_id(read(event, "item_id")), place(read(event, "output_index"))
        item = self._known(id, index)
        if item is None:
            began = _BEGUN.get(_FLAT.get(kind, "")) or ("reasoning" if "reasoning" in kind else "message")
            item = self._begin(event, {"type": began, **({"id": id} if id else {})})
        return item

    def _so_far(self) -> dict[str, Any]:
        found = _fields(self._response)
        listed = read_list(self._response, "output")
        # Encrypted content counts as it is in `output_item.done`; the end event fills in only what had none.
        if listed and (not self._items or any(item.done is None for item in self._items)):
            found["output"] = listed
        else:
            found["output"] = [item.whole() for item in self._items]
        found["status"] = self._end or "in_progress"
        return found

    @property
    def reason(self) -> str | None:
        """Why the response is incomplete."""
        return read_text(read(self._response, "incomplete_details"), "reason") or None


class _Item:
    """One item of the output, as it was added, the fragments since then, and as it was when it was done."""

    __slots__ = ("annotations", "done", "fragments", "id", "index", "said", "started")

    def __init__(self, started: Any, id: str | None, index: int | None) -> None:
        self.started = started
        self.id = id
        self.index = index
        self.fragments: defaultdict[tuple[str, int | None], list[str]] = defaultdict(list)
        self.annotations: defaultdict[int, list[Any]] = defaultdict(list)
        self.said: dict[str, Any] = {}
        self.done: Any = None

    def whole(self) -> Any:
        if self.done is not None:
            return self.done
        found = plain_list([self.started])[0] if plain_list([self.started]) else {}
        for (kind, at), fragments in self.fragments.items():
            if at is None:
                found[_FLAT[kind]] = read_text(found, _FLAT[kind]) + joined(fragments)
            else:
                key, _, part, field = _NESTED[kind]
                _part(found, key, at, part)[field] = joined(fragments)
        for at, notes in self.annotations.items():
            _part(found, "content", at, "output_text")["annotations"] = plain(notes)
        found |= self.said
        if found.get("type") in _CALLS:
            found["status"] = "completed" if self.said else "in_progress"
        return found


def _part(item: dict[str, Any], key: str, at: int, kind: str) -> dict[str, Any]:
    """The part at the place `at` of an item's list, which is made longer where it has to be."""
    parts = item[key] = [part for part in read_list(item, key) if isinstance(part, dict)]
    while len(parts) <= min(at, len(parts)):
        parts.append({"type": kind} | ({"text": "", "annotations": []} if kind == "output_text" else {}))
    return parts[min(at, len(parts) - 1)]  # type: ignore[no-any-return]


def _one_call(started: Any, done: Any) -> bool:
    """Whether these may be the same item at its start and at its end."""
    ids = [known_id(read(item, "call_id")) for item in (started, done)]
    return None in ids or ids[0] == ids[1]


def _fields(response: Any) -> dict[str, Any]:
    """What a response says besides its output, which may be long."""
    if isinstance(response, Mapping):
        return dict(response)
    names = getattr(response, "model_fields_set", ())
    extra = getattr(response, "model_extra", None) or {}
    return {name: getattr(response, name) for name in names} | extra
