"""OpenAI's Responses API. See docs/providers/openai-responses.md."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict

from ferrule.definition.toolset import SEARCH_TAG
from ferrule.providers import Strict
from ferrule.providers import _stream as streams
from ferrule.providers import _wire as wire
from ferrule.providers._api import (
    Api,
    End,
    foreign_problem,
    make_stop_readers,
    no_state,
    not_run_problem,
    read_calls,
    resolve_choice,
)
from ferrule.providers._callers import mark_callers
from ferrule.providers._chat import format_choice
from ferrule.providers._plain import PLAIN_OPENAI
from ferrule.providers._stream import Blocks, Readers, TurnStream
from ferrule.providers._strict import OPENAI
from ferrule.providers._write import Definitions
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from openai.types.responses import (
        FunctionToolParam,
        ResponseInputItemParam,
        ResponseStreamEvent,
        ToolParam,
        ToolSearchToolParam,
    )
    from openai.types.responses import Response as OpenAIResponse
    from openai.types.responses.response_create_params import ToolChoice

    from ferrule.definition.tool import Tool
    from ferrule.definition.toolset import Toolset

    Response: TypeAlias = OpenAIResponse | Mapping[str, Any]
    Event: TypeAlias = ResponseStreamEvent | Mapping[str, Any]

    class Choice(TypedDict):
        """Keyword arguments of a request."""

        tool_choice: ToolChoice
        parallel_tool_calls: NotRequired[bool]


_API = Api(
    title="OpenAI",
    end_field="status",
    stops={
        "completed": "end",
        "max_output_tokens": "cut",
        "max_messages": "cut",
        "content_filter": "refused",
    },
    choices={"auto": "auto", "required": "required", "none": "none"},
    narrows=True,
    one_at_a_time=True,
    images=frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"}),
)
_DEFINITIONS = Definitions(
    name="openai_responses",
    plain=PLAIN_OPENAI,
    strict=OPENAI,
    head={"type": "function"},
    plain_mark={"strict": False},
    defers=True,
)
_OWN_TYPES = ("function_call", "custom_tool_call")
_SEARCH, _SEARCH_CALL = "search_tools", "tool_search_call"
"""The API's calls of a client's tool search have no name: a search tool of this name answers them."""
_NAME_IN_NAMESPACE = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def tools(
    toolset: Iterable[Tool], *, strict: Strict = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[FunctionToolParam | ToolSearchToolParam]:
    """Return `[{"type": "function", "name", "description", "parameters", "strict"}]`, deferred tools after the others.

    `strict` is always sent: without it the API tries strict mode, and that changes the model's output. A search tool
    with the name `search_tools` is `{"type": "tool_search", "execution": "client", "description", "parameters"}`; one
    of another name is a function, for models without tool search.

    Args:
        strict: Whether the API holds the model to the schema: for all tools, or for the tools of these names.
        cache: No effect; the API caches an unchanged beginning by itself.
        deferred: The names of tools that the model finds by a tool search.

    Raises:
        DefinitionError: A tool's schema cannot be sent or strict, strict tools are too many, or a name belongs to no
            tool.
    """
    listed = wire.list_tools(toolset)
    first, later = _DEFINITIONS.write(listed, strict, deferred)
    if any(map(is_search, listed)):
        return [_search_definition(one) if one["name"] == _SEARCH else one for one in first + later]
    return first + later


CODE_EXECUTION: ToolParam = {"type": "programmatic_tool_calling"}
"""The API's tool that runs code, for the `tools` of a request with tools of `callable_from_code`."""


def callable_from_code(tools: Iterable[Tool], *only: str, directly: bool = False) -> Toolset:
    """Return the tools, marked as callable from the API's programs. See docs/guides/code-mode.md#code-of-an-api.

    Args:
        only: Globs for the names of the tools to mark; all without one.
        directly: Whether the model may call them itself, too.

    Raises:
        DefinitionError: A glob is no text, or no tool has a name.
    """
    callers = ["programmatic", *(["direct"] if directly else [])]
    return mark_callers("openai_responses", tools, only, callers, has_output_schema=True)


def is_search(tool: Tool) -> bool:
    """Return whether the tool is written as a tool search of the client's: it is a search tool named `search_tools`."""
    return tool.wire_name == _SEARCH and SEARCH_TAG in tool.tags


def _search_definition(written: Mapping[str, Any]) -> Any:
    # The API refuses one without a description, although its types allow that.
    shown = {"description": written.get("description") or "Find tools.", "parameters": written["parameters"]}
    return {"type": "tool_search", "execution": "client", **shown}


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> Choice:
    """Return `{"tool_choice": ...}`, with `"parallel_tool_calls": False` unless `parallel`.

    Raises:
        DefinitionError: There is `only` beside `"none"` or a name.
    """
    word, names = resolve_choice(_API, choice, parallel, only)
    listed = [{"type": "function", "name": name} for name in names]
    fields: Any = word or listed[0]
    if word and listed:
        fields = {"type": "allowed_tools", "mode": word, "tools": listed}
    return format_choice(fields, parallel)  # type: ignore[no-any-return]


def calls(response: Response) -> list[ToolCall]:
    """Return the calls in a response, in order. A tool search of the client's is a call of `search_tools`. Other items
    that the API leaves to the program, such as a shell's commands, have a `problem`. `data` holds the item's kind, its
    namespace and its caller if the answer needs them."""
    requested = [item for item in wire.list_fields(wire.get_fields(response).get("output")) if _is_call(item)]
    return read_calls(_API, response, _add_call_ids(requested), "call_id", _read_call, _read_end)


def _is_call(item: Mapping[str, Any]) -> bool:
    """Return whether the item waits for an answer of the program."""
    kind = item.get("type")
    if kind in _OWN_TYPES:
        return True
    if kind == _SEARCH_CALL:
        return item.get("execution") == "client"
    if kind == "shell_call":
        return bool(wire.read(item.get("environment"), "type", "local") == "local")
    return isinstance(kind, str) and kind in _FOREIGN_CALLS


def _add_call_ids(items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the items with the id for their answer. A request for approval is answered under its own id."""
    return [{**item, "call_id": item.get("id")} if item.get("type") == _APPROVAL else item for item in items]


def _read_call(id: str, item: Any, problem: str | None) -> ToolCall:
    kind, status = item["type"], item.get("status")
    if problem is None and status in ("incomplete", "in_progress"):
        problem = not_run_problem(f"the call was cut off (its status is {status!r})")
    data = {key: wire.to_plain(item[key]) for key in ("namespace", "caller") if item.get(key)}
    if kind == "function_call":
        return ToolCall(
            id, wire.read_name(item), wire.read_arguments(item.get("arguments")), problem=problem, data=data or None
        )
    data["type"] = kind
    if kind == "custom_tool_call":
        return ToolCall(id, wire.read_name(item), {"input": wire.read_text(item, "input")}, problem=problem, data=data)
    if kind == _SEARCH_CALL:
        return ToolCall(id, _SEARCH, wire.read_arguments(item.get("arguments")), problem=problem, data=data)
    given = wire.to_plain({key: value for key, value in item.items() if key not in _NOT_ASKED})
    problem = problem or foreign_problem(f"a {kind} of OpenAI's")
    return ToolCall(id, kind, given, problem=problem + _unacknowledged(given), data=data)


def _unacknowledged(given: Mapping[str, Any]) -> str:
    """Return a text about a call's safety checks. `results` never acknowledges one, because that is a consent."""
    checks = [
        wire.read_text(check, "code") or wire.read_text(check, "id")
        for check in wire.read_list(given, "pending_safety_checks")
    ]
    return f" The API takes no answer before somebody acknowledges {', '.join(checks)}." if checks else ""


_APPROVAL = "mcp_approval_request"
_FOREIGN_CALLS = frozenset({"shell_call", "local_shell_call", "computer_call", "apply_patch_call", _APPROVAL})
_NOT_ASKED = frozenset({"id", "type", "call_id", "status", "caller", "namespace"})
"""The fields of an item besides its request."""


def _read_end(response: Response) -> End:
    status = wire.read_text(response, "status")
    items = wire.list_fields(wire.get_fields(response).get("output"))
    error = wire.read(response, "error")
    return End(
        "failed" if error else wire.read_text(wire.read(response, "incomplete_details"), "reason") or status,
        open=status == "in_progress" or wire.is_null(response, "status"),
        calls=any(map(_is_call, items)),
        refused=any(wire.read(part, "type") == "refusal" for part in _message_parts(response)),
        details=streams.describe_api_error(error) if error else "",
    )


def turn(response: Response) -> list[ResponseInputItemParam]:
    """Return the output's items, including reasoning with its encrypted content.

    Fields and items that the API refuses in a history are left out: the additions of the SDK's `parse`, the creator of
    an item, and reasoning at the end ("provided without its required following item").
    """
    items: list[Any] = wire.to_plain_list(wire.read_list(response, "output"))
    items = wire.drop_last_thoughts(items, lambda item: item.get("type") == "reasoning")
    requested = [item for item in items if _is_call(item)]
    for item, id in zip(requested, wire.list_ids(response, _add_call_ids(requested), "call_id"), strict=True):
        if item.get("type") != _APPROVAL:
            item["call_id"] = id
    for item in items:
        item.pop("created_by", None)
        if item.get("type") == "custom_tool_call_output":
            item.pop("status", None)
        if item.get("type") in _OWN_TYPES:
            item["name"] = _name_with_namespace(wire.read_name(item), item.get("namespace"))
        if item.get("type") == "function_call":
            item["arguments"] = wire.to_object_text(item.get("arguments"))
            item.pop("parsed_arguments", None)
        for part in wire.read_list(item, "content") if item.get("type") == "message" else ():
            if isinstance(part, dict):
                part.pop("parsed", None)
    return items


def _name_with_namespace(name: str, namespace: Any) -> str:
    return wire.format_name(name, _NAME_IN_NAMESPACE) if namespace else wire.format_name(name)


def text(response: Response) -> str:
    """Return the model's text, including refusals."""
    return "".join(wire.read_text(part, "text") or wire.read_text(part, "refusal") for part in _message_parts(response))


def _message_parts(response: Any) -> list[Any]:
    items = wire.list_fields(wire.get_fields(response).get("output"))
    return [part for item in items if item.get("type") == "message" for part in wire.read_list(item, "content")]


stop, reason = make_stop_readers(_API, _read_end, text)
state = no_state


def results(results: Iterable[ToolResult]) -> list[ResponseInputItemParam]:
    """Return one item for each result: a `function_call_output` or `custom_tool_call_output`; for a tool search, the
    `tool_search_output` with the definitions of the found tools; for other items left to the program, an answer in
    their own form that nothing was run."""
    return [_result(result) for result in results]


def _result(result: ToolResult) -> Any:
    call = wire.require_call(result)
    data = call.data if isinstance(call.data, dict) else {}
    kind = data.get("type", "function_call")
    if kind in _FOREIGN_CALLS:
        item = _not_run(kind, call.id, wire.format_error(result))
    elif kind == _SEARCH_CALL:
        item = {"type": "tool_search_output", "execution": "client", "status": "completed", "call_id": call.id}
        item["tools"] = _DEFINITIONS.write_found_tools(result)
    else:
        item = {"type": f"{kind}_output", "call_id": call.id, "output": wire.format_text_or_parts(result, _content)}
    if data.get("caller"):
        item["caller"] = data["caller"]
    if data.get("namespace") and kind == "function_call":
        item |= {"name": _name_with_namespace(call.name, data["namespace"]), "namespace": data["namespace"]}
    return item


_NO_PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)


def _not_run(kind: str, id: str, why: str) -> dict[str, Any]:
    """Return the answer to a call that nothing here runs, for each kind in its own form.

    openai.types.responses.response_input_item_param. The type of a local shell's output has `id`, but the server wants
    `call_id` (github.com/openai/openai-agents-python/issues/1855). A computer's answer is a picture and nothing else.
    """
    if kind == _APPROVAL:
        return {"type": "mcp_approval_response", "approval_request_id": id, "approve": False, "reason": why}
    fields: dict[str, dict[str, Any]] = {
        "shell_call": {"output": [{"stdout": "", "stderr": why, "outcome": {"type": "exit", "exit_code": 1}}]},
        "local_shell_call": {"id": id, "output": why},
        "computer_call": {"output": {"type": "computer_screenshot", "image_url": _NO_PICTURE}},
        "apply_patch_call": {"status": "failed", "output": why},
    }
    return {"type": f"{kind}_output", "call_id": id, **fields[kind]}


def find_referred_tools(messages: Iterable[Any]) -> list[str]:
    """Return the names of the tools defined in the messages, because a client's tool search found them, each once. They
    can be called without a definition in the request's `tools`."""
    found: list[str] = []
    for item in wire.list_fields(list(messages)):
        if item.get("type") == "tool_search_output" and item.get("execution") == "client":
            for tool in wire.list_fields(item.get("tools")):
                group = wire.list_fields(tool.get("tools")) if tool.get("type") == "namespace" else [tool]
                found += [wire.read_name(one) for one in group if one.get("type") == "function"]
    return list(dict.fromkeys(found))


def _content(block: Block) -> dict[str, Any]:
    if isinstance(block, Media):
        kind, address = wire.get_media_type(block), wire.format_data_url(block)
        if address and kind in _API.images:
            return {"type": "input_image", "image_url": address}
        if address and kind == "application/pdf":
            if block.data:
                return {"type": "input_file", "filename": block.name or "file.pdf", "file_data": address}
            return {"type": "input_file", "file_url": address}
    return {"type": "input_text", "text": wire.format_block(block)}


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


class Stream(
    TurnStream["Event", "ResponseInputItemParam"], readers=Readers(calls, text, turn, stop, reason, state, _read_end)
):
    """A `Stream`: feed it each event. Until the response is completed, every call has a `problem`."""

    __slots__ = ("_end_status", "_items", "_response")

    def __init__(self) -> None:
        super().__init__()
        self._response: Any = {}
        self._items: Blocks[_StreamedItem] = Blocks()
        self._end_status: str | None = None

    def _read_event(self, event: Any) -> None:
        kind = wire.read_text(event, "type")
        if kind in _ITEM_DELTAS or kind in _PART_DELTAS:
            at = None if kind in _ITEM_DELTAS else streams.as_index(wire.read(event, _PART_DELTAS[kind][1])) or 0
            self._get_item(event, kind).chunks[kind, at].append(streams.chunk_text(wire.read(event, "delta")))
        elif kind in _DONE_EVENTS:
            self._get_item(event, kind.replace(".done", ".delta")).done_fields[_DONE_EVENTS[kind]] = wire.read(
                event, _DONE_EVENTS[kind]
            )
        elif kind == "response.output_item.added":
            self._begin(event, wire.read(event, "item", {}))
        elif kind == "response.output_item.done":
            self._complete_item(event, wire.read(event, "item", {}))
        elif kind == "response.output_text.annotation.added":
            found = self._get_item(event, "response.output_text.delta")
            found.annotations[streams.as_index(wire.read(event, "content_index")) or 0].append(
                wire.read(event, "annotation")
            )
        elif kind in _END_EVENTS:
            self._end_status = wire.read_text(wire.read(event, "response"), "status") or _END_EVENTS[kind]
            self._response = wire.read(event, "response", self._response)
            if self._end_status == "failed":
                self._error = streams.describe_api_error(wire.read(self._response, "error", "the response failed"))
        elif kind in ("response.created", "response.in_progress", "response.queued"):
            if kind == "response.created":
                self._begin_response(self._response, wire.read(event, "response"))
            self._response = wire.read(event, "response", self._response)
        elif kind == "error":
            self._end_status = "failed"

    def _begin(self, event: Any, started: Any) -> _StreamedItem:
        """Return the item of this event: the one with its id and its index, or a new one."""
        id, index = wire.parse_id(wire.read(started, "id")), streams.as_index(wire.read(event, "output_index"))
        return self._items.begin(id, _StreamedItem(started, id, index))

    def _find(self, id: str | None, index: int | None) -> _StreamedItem | None:
        """Return the item of this id, and of this index if several have it; otherwise the newest under the index."""
        item = self._items.by_index.get(index)
        return item if id is None or (item is not None and item.id == id) else self._items.by_id.get(id, item)

    def _complete_item(self, event: Any, done: Any) -> None:
        id, index = wire.parse_id(wire.read(done, "id")), streams.as_index(wire.read(event, "output_index"))
        item = self._find(id, index)
        # Some servers make up an item's id anew for each event; the call's own id stays the same.
        if item is None or item.done is not None or not _same_call_id(item.started, done):
            item = self._begin(event, done)
        item.done = done

    def _get_item(self, event: Any, kind: str) -> _StreamedItem:
        id, index = wire.parse_id(wire.read(event, "item_id")), streams.as_index(wire.read(event, "output_index"))
        item = self._find(id, index)
        if item is None:
            began = _ITEM_TYPES.get(_ITEM_DELTAS.get(kind, "")) or ("reasoning" if "reasoning" in kind else "message")
            item = self._begin(event, {"type": began, **({"id": id} if id else {})})
        return item

    def _assemble(self) -> dict[str, Any]:
        found = _head(self._response)
        listed = wire.read_list(self._response, "output")
        # The `output_item.done` events count, for their encrypted content; the end event only if an item had none.
        whole = self._items and all(item.done is not None for item in self._items)
        found["output"] = listed if listed and not whole else [item.assemble() for item in self._items]
        found["status"] = self._end_status or "in_progress"
        return found


class _StreamedItem:
    """One item of the output: its start, the chunks since then, and its final form."""

    __slots__ = ("annotations", "chunks", "done", "done_fields", "id", "index", "started")

    def __init__(self, started: Any, id: str | None, index: int | None) -> None:
        self.started = started
        self.id = id
        self.index = index
        self.chunks: defaultdict[tuple[str, int | None], list[str]] = defaultdict(list)
        self.annotations: defaultdict[int, list[Any]] = defaultdict(list)
        self.done_fields: dict[str, Any] = {}
        self.done: Any = None

    def assemble(self) -> Any:
        if self.done is not None:
            return self.done
        found = wire.to_plain_list([self.started])[0] if wire.to_plain_list([self.started]) else {}
        parts = _Parts(found)
        for (kind, at), chunks in self.chunks.items():
            if at is None:
                field = _ITEM_DELTAS[kind]
                join = streams.join_arguments if field == "arguments" else streams.join_chunks
                found[field] = join([wire.read_text(found, field), *chunks])
            else:
                key, _, part, field = _PART_DELTAS[kind]
                continued = parts.at(key, at, part)
                continued[field] = streams.join_chunks([wire.read_text(continued, field), *chunks])
        for at, notes in self.annotations.items():
            parts.at("content", at, "output_text")["annotations"] = wire.to_plain(notes)
        found |= self.done_fields
        if found.get("type") in _OWN_TYPES:
            found["status"] = "completed" if self.done_fields else "in_progress"
        return found


class _Parts:
    """The parts of an item's lists. An unknown index names the next part."""

    def __init__(self, item: dict[str, Any]) -> None:
        self._item = item
        self._places: dict[tuple[str, int], int] = {}

    def at(self, key: str, index: int, kind: str) -> dict[str, Any]:
        """Return the part of this index in the list under `key`; a new one if the index is unknown."""
        if not any(known == key for known, _ in self._places):
            parts = self._item[key] = [part for part in wire.read_list(self._item, key) if isinstance(part, dict)]
            self._places |= {(key, place): place for place in range(len(parts))}
        parts = self._item[key]
        place = self._places.setdefault((key, index), len(parts))
        if place == len(parts):
            parts.append({"type": kind} | ({"text": "", "annotations": []} if kind == "output_text" else {}))
        return parts[place]  # type: ignore[no-any-return]


def _same_call_id(started: Any, done: Any) -> bool:
    """Return whether these may be the same item at its start and at its end."""
    ids = [wire.parse_id(wire.read(item, "call_id")) for item in (started, done)]
    return None in ids or ids[0] == ids[1]


def _head(response: Any) -> dict[str, Any]:
    """Return a response's fields without its output, because that may be long."""
    if isinstance(response, Mapping):
        return dict(response)
    return {name: getattr(response, name) for name in wire.list_sent_fields(response)}
