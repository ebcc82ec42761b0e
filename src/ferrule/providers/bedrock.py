"""Amazon Bedrock's Converse API."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from ferrule.errors import DefinitionError
from ferrule.providers import Stop, Strict
from ferrule.providers._read import (
    COMPLETE,
    DEEPEST,
    answered_call,
    arguments,
    block_text,
    error_text,
    fields_of,
    forced_name,
    ids_of,
    is_null,
    known_id,
    mark_repeats,
    media_type,
    name_in_history,
    name_of,
    non_blank,
    object_value,
    plain_number,
    read,
    read_list,
    read_text,
    split_deferred,
    turn_problem,
)
from ferrule.providers._stream import TurnStream, as_index, describe_api_error, join_chunks, object_or_text
from ferrule.providers._strict import BEDROCK
from ferrule.providers._write import definition, definitions
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, clean, jsonable, to_text
from ferrule.values.frozen import freeze
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

    class Choice(TypedDict):
        """What belongs into the `toolConfig`."""

        toolChoice: dict[str, Any]


_STOPS: dict[str, Stop] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "calls",
    "max_tokens": "cut",
    "model_context_window_exceeded": "cut",
    "guardrail_intervened": "refused",
    "content_filtered": "refused",
    "malformed_model_output": "malformed",
    "malformed_tool_use": "malformed",
}
# botocore's model of bedrock-runtime: ToolUseId, ImageFormat, DocumentFormat, VideoFormat.
_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_IMAGES = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
_OFFICE = "application/vnd.openxmlformats-officedocument"
_DOCUMENTS = {
    "application/pdf": "pdf",
    "application/msword": "doc",
    f"{_OFFICE}.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    f"{_OFFICE}.spreadsheetml.sheet": "xlsx",
}
_VIDEOS = {
    "video/mp4": "mp4",
    "video/webm": "webm",
    "video/quicktime": "mov",
    "video/x-matroska": "mkv",
    "video/x-flv": "flv",
    "video/mpeg": "mpeg",
    "video/x-ms-wmv": "wmv",
    "video/3gpp": "three_gp",
}


def tools(
    toolset: Iterable[Tool], *, strict: Strict = False, cache: bool = False, deferred: Collection[str] = ()
) -> dict[str, Any] | None:
    """The `toolConfig`, `{"tools": [{"toolSpec": {"name", "description", "inputSchema"}}]}`; `None` for no tools,
    as this API refuses an empty one.

    It has to be sent as long as the history holds tool blocks.

    Args:
        strict: Whether the API holds the model to the schema: for all, or for the tools of these names.
        cache: Sets a `cachePoint` behind the last tool that is not deferred.
        deferred: Names of tools that came later. They are placed last, in this order, so that what stands before
            them stays cached. No mark says that they wait: where the model takes them, the `toolAddition` blocks of a
            `system` message, which are yours to write, add tools in the middle of a conversation.

    Raises:
        DefinitionError: where a tool's schema cannot be strict, strict tools are too many, or a name is no tool's.
    """
    first, later = split_deferred(toolset, deferred)
    entries: list[dict[str, Any]] = [{"toolSpec": spec} for spec in definitions(first + later, strict, _spec, BEDROCK)]
    if cache and first:
        entries.insert(len(first), {"cachePoint": {"type": "default"}})
    return {"tools": entries} if entries else None


def _spec(tool: Tool, strict: bool) -> dict[str, Any]:
    spec = definition(tool, "inputSchema", BEDROCK if strict else None)
    spec["inputSchema"] = freeze({"json": spec["inputSchema"]})
    return spec | {"strict": True} if strict else spec


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> Choice:
    """`{"toolChoice": {...}}`, which belongs into the `toolConfig`: `toolConfig=tools(...) | tool_choice(...)`.

    Raises:
        DefinitionError: for `"none"`, `parallel=False` and `only`, which this API cannot say.
    """
    if only is not None:
        raise DefinitionError("Bedrock has no list of allowed tools: offer fewer, tools(toolset.only(...))")
    if not parallel:
        raise DefinitionError(
            "Bedrock has no switch for parallel calls: say it in the model's own words, in additionalModelRequestFields"
        )
    if choice == "none":
        raise DefinitionError("Bedrock has no tool_choice('none'): leave toolConfig out of the request")
    if choice in {"auto", "required"}:
        return {"toolChoice": {"auto" if choice == "auto" else "any": {}}}
    return {"toolChoice": {"tool": {"name": forced_name(choice)}}}


def calls(response: Mapping[str, Any]) -> list[ToolCall]:
    """The calls in a message, in order; those of server tools are not ours."""
    response = fields_of(response)
    requested = _client_tool_uses(response)
    if not requested:
        return []
    problem = None if response.get("stopReason") == "tool_use" else _problem(response)
    found = [
        ToolCall(id, name_of(use), arguments(use.get("input")), problem=problem)
        for id, use in zip(ids_of(response, requested, "toolUseId"), requested, strict=True)
    ]
    return mark_repeats(found, requested, "toolUseId")


def _content_of(response: Any) -> list[Any]:
    content = fields_of(fields_of(fields_of(response).get("output")).get("message")).get("content")
    return content if isinstance(content, list) else []


def _client_tool_uses(response: Any) -> list[dict[str, Any]]:
    return [use for block in _content_of(response) if (use := _client_tool_use(block)) is not None]


def _client_tool_use(block: Any) -> dict[str, Any] | None:
    use = block.get("toolUse") if type(block) is dict else None
    return use if type(use) is dict and use.get("type") != "server_tool_use" else None


def wire_id(id: str) -> str:
    """`id` as this API takes it, `^[a-zA-Z0-9_.:-]{1,64}$`: one that fits stays, another becomes a hash of itself."""
    if _ID.fullmatch(id):
        return id
    return f"call_{hashlib.blake2s(clean(id).encode(), digest_size=16).hexdigest()}"


def _problem(response: Any) -> str | None:
    open_field = "stopReason" if is_null(response, "stopReason") else ""
    return turn_problem(read_text(response, "stopReason"), _STOPS, open_field)


def turn(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`[{"role": "assistant", "content": [...]}]`, reasoning with its signatures and all.

    Bytes (redacted reasoning) stay bytes, as boto3 gives and takes them. Blank text blocks stay behind: this API
    sends them and does not take them.
    """
    ids = iter(ids_of(response, _client_tool_uses(response), "toolUseId"))
    kept = []
    for block in _content_of(response):
        use = _client_tool_use(block)
        if use is None:
            served = block.get("toolUse") if type(block) is dict else None
            sent = {"toolUse": _tool_use_in_history(served)} if type(served) is dict else _plain_with_bytes(block)
        else:
            renamed = {**use, "toolUseId": wire_id(next(ids)), "name": name_in_history(name_of(use))}
            sent = {"toolUse": _tool_use_in_history(renamed)}
        if isinstance(sent, dict) and not _blank(sent):
            kept.append(sent)
    return [{"role": "assistant", "content": kept}] if kept else []


def _tool_use_in_history(use: dict[str, Any]) -> dict[str, Any]:
    return {**_plain_with_bytes({**use, "input": None}), "input": jsonable(object_value(use.get("input")))}


def _plain_with_bytes(value: Any, levels: int = DEEPEST) -> Any:
    """A copy of `value` that JSON and UTF-8 can hold, but for its bytes; cut off where no parser reads on."""
    if isinstance(value, str):
        return clean(value)
    if not levels and isinstance(value, Mapping | list | tuple):
        return "…"
    if isinstance(value, Mapping):
        return {clean(str(key)): _plain_with_bytes(item, levels - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_with_bytes(item, levels - 1) for item in value]
    if type(value) is int or type(value) is float:
        return plain_number(value)
    return value if isinstance(value, bytes) else jsonable(value)


def _blank(block: dict[str, Any]) -> bool:
    return not block or ("text" in block and not str(block["text"] or "").strip())


def stop(response: Mapping[str, Any]) -> Stop:
    """Why the model stopped."""
    reason = read_text(response, "stopReason")
    found = _STOPS.get(reason, "other")
    if found not in COMPLETE and (reason or is_null(response, "stopReason")):
        return found
    if _client_tool_uses(response):
        return "calls"
    return "malformed" if found == "calls" else "end"


def results(results: Iterable[ToolResult]) -> list[dict[str, Any]]:
    """`[{"role": "user", "content": [{"toolResult": ...}, ...]}]`: one message for all, as this API wants it.

    Images and documents are bytes, as boto3 takes them.
    """
    blocks = [{"toolResult": _result(result)} for result in results]
    return [{"role": "user", "content": blocks}] if blocks else []


def _result(result: ToolResult) -> dict[str, Any]:
    id = wire_id(answered_call(result).id)
    block: dict[str, Any] = {"toolUseId": id}
    if result.status == "ok":
        block["content"] = [_content(item, f"{id} {at}") for at, item in enumerate(result.content)] or [{"text": '""'}]
    else:
        block["content"] = [{"text": error_text(result)}]
        block["status"] = "error"
    return block


def _content(block: Block, where: str) -> dict[str, Any]:
    if isinstance(block, Media):
        media = _media_part(block, where)
        if media:
            return media
    text = block_text(block)
    structured = _lossless_object(text)
    return {"text": non_blank(text)} if structured is None else {"json": structured}


def _lossless_object(text: str) -> dict[str, Any] | None:
    """The object that `text` is the JSON of, where nothing is lost: not a digit, not a key, not a space."""
    if text[:1] != "{":
        return None
    try:
        value = json.loads(text)
        return value if isinstance(value, dict) and to_text(value) == text else None
    except (ValueError, RecursionError):
        return None


def _media_part(block: Media, where: str) -> dict[str, Any] | None:
    source, kind = _source(block), media_type(block)
    if source is None:
        return None
    if kind in _IMAGES:
        return {"image": {"format": _IMAGES[kind], "source": source}}
    if kind in _DOCUMENTS:
        name = _document_name(block.name, where)
        return {"document": {"format": _DOCUMENTS[kind], "name": name, "source": source}}
    if kind in _VIDEOS:
        return {"video": {"format": _VIDEOS[kind], "source": source}}
    return None


def _source(block: Media) -> dict[str, Any] | None:
    if block.data:
        return {"bytes": block.data}
    return {"s3Location": {"uri": block.uri}} if block.uri and block.uri.startswith("s3://") else None


def _document_name(name: str | None, where: str) -> str:
    """A name as this API takes it: letters, digits, single spaces, hyphens, parentheses and square brackets.

    It refuses a history in which two documents have one name, so this one says where it stands as well.
    """
    fitting = re.sub(r"[^a-zA-Z0-9()\[\]-]+", " ", name or "").strip()
    mark = hashlib.blake2s(where.encode(), digest_size=4).hexdigest()
    return f"{fitting[:180].strip() or 'document'} {mark}"


class _StreamedBlock:
    """One content block of a stream."""

    __slots__ = (
        "citations",
        "image",
        "index",
        "input",
        "reasoning",
        "redacted",
        "results",
        "signature",
        "start",
        "text",
    )

    def __init__(self, index: Any) -> None:
        self.index = index
        self.start: dict[str, Any] = {}
        self.text: list[str] = []
        self.input: list[str] = []
        self.reasoning: list[str] = []
        self.signature: list[str] = []
        self.redacted: list[bytes] = []
        self.results: list[Any] = []
        self.citations: list[Any] = []
        self.image: dict[str, Any] = {}

    def add(self, delta: Mapping[str, Any]) -> None:
        """A delta of any kind."""
        for chunks, inside, key in (
            (self.text, delta, "text"),
            (self.input, delta.get("toolUse"), "input"),
            (self.reasoning, delta.get("reasoningContent"), "text"),
            (self.signature, delta.get("reasoningContent"), "signature"),
        ):
            found = read(inside, key)
            if isinstance(found, str):
                chunks.append(found)
        redacted = read(delta.get("reasoningContent"), "redactedContent")
        if isinstance(redacted, bytes):
            self.redacted.append(redacted)
        self.results += read_list(delta, "toolResult")
        if isinstance(delta.get("citation"), dict):
            self.citations.append(delta["citation"])
        if isinstance(delta.get("image"), dict):
            self.image |= delta["image"]

    def assembled(self) -> list[dict[str, Any]]:
        """The block as it stands in a message; its input is still text."""
        found: list[dict[str, Any]] = []
        if self.redacted:
            found.append({"reasoningContent": {"redactedContent": b"".join(self.redacted)}})
        if self.reasoning or self.signature:
            thought = {"text": join_chunks(self.reasoning)}
            if self.signature:
                thought["signature"] = join_chunks(self.signature)
            found.append({"reasoningContent": {"reasoningText": thought}})
        if self.citations:
            text = [{"text": join_chunks(self.text)}] if self.text else []
            found.append({"citationsContent": {"content": text, "citations": self.citations}})
        elif self.text:
            found.append({"text": join_chunks(self.text)})
        if "toolResult" in self.start:
            found.append({"toolResult": {**self.start["toolResult"], "content": self.results}})
        if "toolUse" in self.start or self.input:
            found.append({"toolUse": {**self.start.get("toolUse", {}), "input": join_chunks(self.input) or {}}})
        if self.image or "image" in self.start:
            found.append({"image": {**self.start.get("image", {}), **self.image}})
        return found


class Stream(TurnStream["Mapping[str, Any]", "dict[str, Any]"], readers=(calls, turn, stop)):
    """The same from the events of `converse_stream(...)["stream"]`. Until `messageStop`, every call has a `problem`."""

    __slots__ = ("_blocks", "_by_id", "_metadata", "_open", "_stop_reason")

    def __init__(self) -> None:
        super().__init__()
        self._blocks: list[_StreamedBlock] = []
        self._open: dict[Any, _StreamedBlock] = {}
        """The newest block under each index."""
        self._by_id: dict[str, _StreamedBlock] = {}
        """The newest block of each id."""
        self._metadata: dict[str, Any] = {}
        self._stop_reason: str | None = None

    def _append_chunk(self, event: Any) -> bool:
        given = event["contentBlockDelta"]
        block, delta = self._open[given["contentBlockIndex"]], given["delta"]
        if "text" in delta:
            text, chunks = delta["text"], block.text
        else:
            text, chunks = delta["toolUse"]["input"], block.input
        if type(text) is str:
            chunks.append(text)
            return True
        return False

    def _apply(self, event: Any) -> None:
        for kind, add in (
            ("contentBlockStart", self._start_block),
            ("contentBlockDelta", self._add_delta),
            ("contentBlockStop", self._close),
            ("messageStop", self._finish_message),
            ("metadata", self._metadata.update),
        ):
            found = read(event, kind)
            if isinstance(found, dict):
                add(found)
        for kind, found in event.items() if isinstance(event, dict) else ():
            if isinstance(kind, str) and kind.endswith("Exception"):  # boto3 raises these
                self._error = f"{kind}: {describe_api_error(found)}"

    def _begin(self, index: Any) -> _StreamedBlock:
        block = self._open[index] = _StreamedBlock(index)
        self._blocks.append(block)
        return block

    def _start_block(self, event: dict[str, Any]) -> None:
        index = as_index(event.get("contentBlockIndex"))
        start = {key: item for key, item in _dict_or_empty(event.get("start")).items() if isinstance(item, dict)}
        id = known_id(start.get("toolUse", {}).get("toolUseId"))
        known = self._by_id.get(id) if id is not None else None
        if known is not None and known.index == index:
            self._open[index] = known
            return
        block = self._begin(index)
        block.start = start
        if id is not None:
            self._by_id[id] = block

    def _add_delta(self, event: dict[str, Any]) -> None:
        index = as_index(event.get("contentBlockIndex"))
        (self._open.get(index) or self._begin(index)).add(_dict_or_empty(event.get("delta")))

    def _close(self, event: dict[str, Any]) -> None:
        self._open.pop(as_index(event.get("contentBlockIndex")), None)

    def _finish_message(self, event: dict[str, Any]) -> None:
        self._stop_reason = read_text(event, "stopReason")
        self._metadata |= {key: item for key, item in event.items() if key != "stopReason"}

    def _assembled(self) -> dict[str, Any]:
        content = [assembled for block in self._blocks for assembled in block.assembled()]
        message = {"role": "assistant", "content": content}
        return {**self._metadata, "output": {"message": message}, "stopReason": self._stop_reason}

    def partial(self) -> dict[str, Any]:
        """The response so far, as `converse` gives it."""
        found: dict[str, Any] = _plain_with_bytes(self._assembled())
        for block in _content_of(found):
            use = block.get("toolUse")
            if use is not None:
                # What is no JSON is left to *decode*, where the call is ours.
                given = object_or_text(use["input"])
                use["input"] = jsonable(object_value(given)) if _client_tool_use(block) is None else given
        return found


def _dict_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
