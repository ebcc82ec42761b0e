"""Amazon Bedrock's Converse API. See docs/providers/bedrock.md."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from ferrule.errors import DefinitionError
from ferrule.providers import Strict
from ferrule.providers import _stream as streams
from ferrule.providers import _wire as wire
from ferrule.providers._api import Api, End, make_stop_readers, no_state, read_calls, resolve_choice
from ferrule.providers._plain import PLAIN_BEDROCK
from ferrule.providers._stream import Blocks, Readers, TurnStream
from ferrule.providers._strict import BEDROCK
from ferrule.providers._write import Definitions
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, clean_text, to_jsonable
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

    class Choice(TypedDict):
        """Options for the `toolConfig`."""

        toolChoice: dict[str, Any]


_API = Api(
    title="Bedrock",
    end_field="stopReason",
    stops={
        "end_turn": "end",
        "stop_sequence": "end",
        "tool_use": "calls",
        "max_tokens": "cut",
        "model_context_window_exceeded": "cut",
        "guardrail_intervened": "refused",
        "content_filtered": "refused",
        "malformed_model_output": "malformed",
        "malformed_tool_use": "malformed",
    },
    choices={"auto": "auto", "required": "any"},
    remedies={
        "none": "leave toolConfig out of the request",
        "parallel": "say it in the model's own words, in additionalModelRequestFields",
    },
    images=frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"}),
)
_DEFINITIONS = Definitions(name="bedrock", plain=PLAIN_BEDROCK, strict=BEDROCK, key="inputSchema")
# botocore's model of bedrock-runtime: ToolUseId, DocumentFormat.
_CALL_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_OFFICE = "application/vnd.openxmlformats-officedocument"
_DOCUMENTS = {
    "application/pdf": "pdf",
    "application/msword": "doc",
    f"{_OFFICE}.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    f"{_OFFICE}.spreadsheetml.sheet": "xlsx",
}


def tools(
    toolset: Iterable[Tool], *, strict: Strict = False, cache: bool = False, deferred: Collection[str] = ()
) -> dict[str, Any] | None:
    """Return the `toolConfig`, `{"tools": [{"toolSpec": {"name", "description", "inputSchema"}}]}`; `None` for no
    tools, because this API refuses an empty one.

    Send it as long as the history holds tool blocks.

    Args:
        strict: Whether the API holds the model to the schema: for all tools, or for the tools of these names.
        cache: Whether to set a `cachePoint` after the last tool that is not deferred.
        deferred: The names of tools that came later. They come last, in this order, so that the part before them stays
            cached. They have no mark. For models that support it, you can add tools in the middle of a conversation
            with `toolAddition` blocks of a `system` message, but you have to write these yourself.

    Raises:
        DefinitionError: A tool's schema cannot be sent or strict, strict tools are too many, or a name belongs to no
            tool.
    """
    first, later = _DEFINITIONS.write(toolset, strict, deferred)
    for spec in first + later:
        spec["inputSchema"] = {"json": spec["inputSchema"]}
    entries: list[dict[str, Any]] = [{"toolSpec": spec} for spec in first + later]
    if cache and first:
        entries.insert(len(first), {"cachePoint": {"type": "default"}})
    return {"tools": entries} if entries else None


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> Choice:
    """Return `{"toolChoice": {...}}`, a part of the `toolConfig`: `toolConfig=tools(...) | tool_choice(...)`.

    Raises:
        DefinitionError: The choice is `"none"`, or there is `parallel=False` or `only`: this API has no such options.
    """
    word, names = resolve_choice(_API, choice, parallel, only)
    return {"toolChoice": {word: {}} if word else {"tool": {"name": names[0]}}}


def calls(response: Mapping[str, Any]) -> list[ToolCall]:
    """Return the calls in a message, in order, without those of server tools."""
    return read_calls(_API, response, _client_tool_uses(response), "toolUseId", _read_call, _read_end)


def _read_call(id: str, use: Any, problem: str | None) -> ToolCall:
    return ToolCall(id, wire.read_name(use), wire.read_arguments(use.get("input")), problem=problem)


def _read_end(response: Mapping[str, Any]) -> End:
    return End(
        wire.read_text(response, "stopReason"),
        open=wire.is_null(response, "stopReason"),
        calls=bool(_client_tool_uses(response)),
    )


def _list_content(response: Any) -> list[Any]:
    content = wire.get_fields(wire.get_fields(wire.get_fields(response).get("output")).get("message")).get("content")
    return content if isinstance(content, list) else []


def _client_tool_uses(response: Any) -> list[dict[str, Any]]:
    return [use for block in _list_content(response) if (use := _client_tool_use(block)) is not None]


def _client_tool_use(block: Any) -> dict[str, Any] | None:
    use = block.get("toolUse") if type(block) is dict else None
    return use if type(use) is dict and use.get("type") != "server_tool_use" else None


def wire_id(id: str) -> str:
    """Return `id` in the form of this API, `^[a-zA-Z0-9_.:-]{1,64}$`: an id that fits stays, another one becomes a hash
    of itself."""
    if _CALL_ID.fullmatch(id):
        return id
    return f"call_{hashlib.blake2s(clean_text(id).encode(), digest_size=16).hexdigest()}"


def turn(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return `[{"role": "assistant", "content": [...]}]`, including reasoning with its signatures.

    Bytes (redacted reasoning) stay bytes, as in boto3. Some blocks are left out, because this API sends them but
    refuses them in a history: blank text blocks, unsigned reasoning, reasoning at the end.
    """
    ids = iter(wire.list_ids(response, _client_tool_uses(response), "toolUseId"))
    kept = []
    for block in _list_content(response):
        use = block.get("toolUse") if type(block) is dict else None
        if type(use) is dict and _client_tool_use(block) is not None:
            # `type` is for the server's own: botocore's ToolUseType.
            use = {
                "toolUseId": wire_id(next(ids)),
                "name": wire.format_name(wire.read_name(use)),
                "input": use.get("input"),
            }
        sent = {"toolUse": _tool_use_in_history(use)} if type(use) is dict else wire.to_plain(block, keep_bytes=True)
        if isinstance(sent, dict) and not _is_blank(sent) and _is_signed(sent):
            kept.append(sent)
    kept = wire.drop_last_thoughts(kept, lambda block: "reasoningContent" in block)
    return [{"role": "assistant", "content": kept}] if kept else []


def _tool_use_in_history(use: dict[str, Any]) -> dict[str, Any]:
    return {
        **wire.to_plain({**use, "input": None}, keep_bytes=True),
        "input": to_jsonable(wire.to_object(use.get("input"))),
    }


def _is_blank(block: dict[str, Any]) -> bool:
    return not block or ("text" in block and not str(block["text"] or "").strip())


def _is_signed(block: dict[str, Any]) -> bool:
    """Return whether the block is no reasoning, or reasoning that a model accepts. DeepSeek and others send reasoning
    as text alone, and refuse it in a history; botocore refuses unknown fields."""
    if "reasoningContent" not in block:
        return True
    thought = block["reasoningContent"]
    return bool(
        wire.read_text(wire.read(thought, "reasoningText"), "signature") or wire.read(thought, "redactedContent")
    )


def text(response: Mapping[str, Any]) -> str:
    """Return the model's text."""
    return "".join(map(_text_of_block, _list_content(response)))


def _text_of_block(block: Any) -> str:
    return wire.read_text(block, "text") or wire.read_content_text(
        wire.read(wire.read(block, "citationsContent"), "content")
    )


stop, reason = make_stop_readers(_API, _read_end, text)
state = no_state


RESULT_MEDIA = ("image", "document")
"""The media that a tool's result may hold, for Claude. Nova accepts no documents there."""


def results(
    results: Iterable[ToolResult], *, status: bool = True, media: Collection[str] = RESULT_MEDIA
) -> list[dict[str, Any]]:
    """Return `[{"role": "user", "content": [{"toolResult": ...}, ...]}]`: one message for all results, as this API
    requires.

    Images and documents are bytes, as in boto3.

    Args:
        results: The results of the calls.
        status: Whether an error is marked by its `status`. According to botocore's model, only Amazon Nova and
            Anthropic's Claude accept this field; for a model that refuses it, the text says that it is an error.
        media: The media that the model accepts in a result: `"image"` and `"document"`. All others are described in
            words.

    Raises:
        DefinitionError: `media` has an unknown name.
    """
    accepted = frozenset([media] if isinstance(media, str) else media)
    if unknown := accepted.difference(RESULT_MEDIA):
        raise DefinitionError(
            f"media has unknown names {sorted(unknown)!r}; a result may hold {', '.join(RESULT_MEDIA)}"
        )
    blocks = [{"toolResult": _result(result, status, accepted)} for result in results]
    return [{"role": "user", "content": blocks}] if blocks else []


def _result(result: ToolResult, status: bool, media: frozenset[str]) -> dict[str, Any]:
    id = wire_id(wire.require_call(result).id)
    if result.status == "ok":
        content = [_content(item, f"{id} {at}", media) for at, item in enumerate(result.content)]
        return {"toolUseId": id, "content": content or [{"text": '""'}]}
    if status:
        return {"toolUseId": id, "content": [{"text": wire.format_error(result)}], "status": "error"}
    return {"toolUseId": id, "content": [{"text": wire.format_marked_error(result)}]}


def _content(block: Block, where: str, media: frozenset[str]) -> dict[str, Any]:
    if isinstance(block, Media) and block.data:
        kind, source = wire.get_media_type(block), {"bytes": block.data}
        if kind in _API.images and "image" in media:
            return {"image": {"format": kind.removeprefix("image/"), "source": source}}
        if kind in _DOCUMENTS and "document" in media:
            name = _make_document_name(block.name, where)
            return {"document": {"format": _DOCUMENTS[kind], "name": name, "source": source}}
    text = wire.format_block(block)
    structured = wire.parse_lossless_json(text)
    return {"json": structured} if isinstance(structured, dict) else {"text": wire.to_non_blank(text)}


def _make_document_name(name: str | None, where: str) -> str:
    """Return a name in the form of this API: letters, digits, single spaces, hyphens, parentheses and square brackets.

    The API refuses a history with two documents of the same name, so this name has a hash of its place too.
    """
    fitting = re.sub(r"[^a-zA-Z0-9()\[\]-]+", " ", name or "").strip()
    mark = hashlib.blake2s(where.encode(), digest_size=4).hexdigest()
    return f"{fitting[:180].strip() or 'document'} {mark}"


_TEXTS_IN = {"toolUse": ("input",), "reasoningContent": ("text", "signature")}
"""The texts that come in chunks. botocore adds unknown fields to a response, and refuses them in a request."""


class _StreamedBlock:
    """One content block of a stream."""

    __slots__ = ("citations", "index", "merged", "redacted", "results", "start")

    def __init__(self, index: Any, start: dict[str, Any]) -> None:
        self.index = index
        self.start = start
        self.redacted: list[bytes] = []
        self.results: list[Any] = []
        self.citations: list[Any] = []
        self.merged: dict[str, Any] = {}
        """The merged content of all other deltas, from `merge_delta`."""

    def add(self, delta: Mapping[str, Any]) -> None:
        """Add a delta of any kind."""
        redacted = wire.read(delta.get("reasoningContent"), "redactedContent")
        if isinstance(redacted, bytes):
            self.redacted.append(redacted)
            return
        self.results += wire.read_list(delta, "toolResult")
        if isinstance(delta.get("citation"), dict):
            self.citations.append(delta["citation"])
        for key, kind in (("text", str), ("image", dict)):
            if isinstance(delta.get(key), kind):
                streams.merge_delta(self.merged, {key: delta[key]})
        for key, names in _TEXTS_IN.items():
            if merged := {name: text for name in names if isinstance(text := wire.read(delta.get(key), name), str)}:
                streams.merge_delta(self.merged, {key: merged})

    def assemble(self) -> list[dict[str, Any]]:
        """Return the block in the form of a message; its input is still text."""
        found: list[dict[str, Any]] = []
        merged = streams.merged_value(self.merged)
        if self.redacted:
            found.append({"reasoningContent": {"redactedContent": b"".join(self.redacted)}})
        if "reasoningContent" in merged:
            found.append({"reasoningContent": {"reasoningText": {"text": "", **merged["reasoningContent"]}}})
        texts = [{"text": merged["text"]}] if "text" in merged else []
        found += [{"citationsContent": {"content": texts, "citations": self.citations}}] if self.citations else texts
        if "toolResult" in self.start:
            found.append({"toolResult": {**self.start["toolResult"], "content": self.results}})
        if "toolUse" in self.start or "toolUse" in merged:
            text = streams.join_arguments(wire.read_list(self.merged.get("toolUse"), "input"))
            found.append({"toolUse": {**self.start.get("toolUse", {}), "input": text or {}}})
        if "image" in self.start or "image" in merged:
            found.append({"image": {**self.start.get("image", {}), **merged.get("image", {})}})
        return found


class Stream(
    TurnStream["Mapping[str, Any]", "dict[str, Any]"],
    readers=Readers(calls, text, turn, stop, reason, state, _read_end),
):
    """A `Stream` of the events of `converse_stream(...)["stream"]`. Until `messageStop`, every call has a `problem`."""

    __slots__ = ("_blocks", "_metadata", "_stop_reason")

    def __init__(self) -> None:
        super().__init__()
        self._blocks: Blocks[_StreamedBlock] = Blocks()
        self._metadata: dict[str, Any] = {}
        self._stop_reason: str | None = None

    def _read_event(self, event: Any) -> None:
        for kind, add in (
            ("contentBlockStart", self._start_block),
            ("contentBlockDelta", self._add_delta),
            ("contentBlockStop", self._close),
            ("messageStop", self._finish_message),
            ("metadata", self._metadata.update),
        ):
            found = wire.read(event, kind)
            if isinstance(found, dict):
                add(found)
        for kind, found in event.items() if isinstance(event, dict) else ():
            if isinstance(kind, str) and kind.endswith("Exception"):  # boto3 raises these
                self._error = f"{kind}: {streams.describe_api_error(found)}"

    def _start_block(self, event: dict[str, Any]) -> None:
        index = streams.as_index(event.get("contentBlockIndex"))
        start = {key: item for key, item in wire.get_fields(event.get("start")).items() if isinstance(item, dict)}
        id = wire.parse_id(start.get("toolUse", {}).get("toolUseId"))
        self._blocks.begin(id, _StreamedBlock(index, start))

    def _add_delta(self, event: dict[str, Any]) -> None:
        index = streams.as_index(event.get("contentBlockIndex"))
        block = self._blocks.by_index.get(index) or self._blocks.begin(None, _StreamedBlock(index, {}))
        block.add(wire.get_fields(event.get("delta")))

    def _close(self, event: dict[str, Any]) -> None:
        self._blocks.by_index.pop(streams.as_index(event.get("contentBlockIndex")), None)

    def _finish_message(self, event: dict[str, Any]) -> None:
        self._stop_reason = wire.read_text(event, "stopReason")
        self._metadata |= {key: item for key, item in event.items() if key != "stopReason"}

    def _assemble(self) -> dict[str, Any]:
        content = [assemble for block in self._blocks for assemble in block.assemble()]
        message = {"role": "assistant", "content": content}
        return {**self._metadata, "output": {"message": message}, "stopReason": self._stop_reason}

    def partial(self) -> dict[str, Any]:
        """Return the response so far, in the form of `converse`."""
        found: dict[str, Any] = wire.to_plain(self._assemble(), keep_bytes=True)
        for block in _list_content(found):
            use = block.get("toolUse")
            if use is not None:
                # For a tool of ours, *decode* handles text that is no JSON.
                given = wire.parse_object_or_text(use["input"])
                use["input"] = to_jsonable(wire.to_object(given)) if _client_tool_use(block) is None else given
        return found
