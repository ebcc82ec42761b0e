"""Gemini's `generateContent`: what `ferrule.providers.gemini` reads and writes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ferrule.providers import Stop
from ferrule.providers._gemini_names import camel, either, function_name
from ferrule.providers._gemini_paths import StreamedCall
from ferrule.providers._read import (
    COMPLETE,
    answered_call,
    arguments,
    base64_text,
    block_text,
    error_text,
    fields_of,
    fields_of_each,
    http_url,
    ids_as_sent,
    ids_of,
    known_id,
    mark_repeats,
    media_type,
    name_of,
    not_run_problem,
    object_value,
    plain,
    read,
    read_list,
    read_text,
    turn_problem,
)
from ferrule.providers._stream import TurnStream, join_chunks
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, jsonable, to_text
from ferrule.values.result import ToolResult

_STOPS: dict[str, Stop] = {
    "STOP": "end",
    "MAX_TOKENS": "cut",
    "CONTINUATION": "cut",
    "MALFORMED_FUNCTION_CALL": "malformed",
    "UNEXPECTED_TOOL_CALL": "malformed",
    "TOO_MANY_TOOL_CALLS": "malformed",
    "MISSING_THOUGHT_SIGNATURE": "malformed",
    "MALFORMED_RESPONSE": "malformed",
    "SAFETY": "refused",
    "RECITATION": "refused",
    "BLOCKLIST": "refused",
    "PROHIBITED_CONTENT": "refused",
    "SPII": "refused",
    "ESCALATION": "refused",
    "MODEL_ARMOR": "refused",
    "PUP_LIMITED_DISABLED": "refused",
    "IMAGE_SAFETY": "refused",
    "IMAGE_PROHIBITED_CONTENT": "refused",
    "IMAGE_RECITATION": "refused",
}
# google-genai's FunctionResponsePart, and Gemini's guide to function calling.
_MEDIA_TYPES = {"image/png", "image/jpeg", "image/webp", "application/pdf"}


def _candidate(response: Any) -> Mapping[str, Any]:
    candidates = fields_of(response).get("candidates")
    return fields_of(candidates[0]) if isinstance(candidates, list) and candidates else {}


def _function_calls(candidate: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The function calls of a candidate."""
    content = candidate.get("content")
    parts = (content if type(content) is dict else fields_of(content)).get("parts")
    found: list[Mapping[str, Any]] = []
    for part in parts if isinstance(parts, list) else ():
        seen = part if type(part) is dict else fields_of(part)
        call = seen.get("functionCall") or seen.get("function_call")
        if call is not None:
            found.append(call)
    return fields_of_each(found)


def _call_ids(response: Any, requested: Sequence[Mapping[str, Any]]) -> list[str]:
    seen = fields_of(response)
    source = seen.get("responseId") or seen.get("response_id")
    if source is None:  # what the calls say has to do
        return ids_of({}, [{key: call.get(key) for key in ("id", "name", "args")} for call in requested], "id")
    return ids_of({"id": source}, [{"id": call.get("id")} for call in requested], "id")


def calls(response: Any) -> list[ToolCall]:
    """The calls in the first candidate, in order."""
    seen = response if type(response) is dict else fields_of(response)
    candidate = _candidate(seen)
    requested = _function_calls(candidate)
    if not requested:
        return []
    reason = candidate.get("finishReason") or candidate.get("finish_reason")
    problem = None if reason == "STOP" else _problem(candidate)
    found = []
    for id, call in zip(ids_as_sent(requested, "id") or _call_ids(seen, requested), requested, strict=True):
        why = problem or _unfinished_problem(call)
        found.append(ToolCall(id, name_of(call), arguments(call.get("args")), problem=why))
    return mark_repeats(found, requested, "id")


def _unfinished_problem(call: Mapping[str, Any]) -> str | None:
    seen = call.get
    if len(call) > 2 and (seen("willContinue") or seen("will_continue") or seen("partialArgs") or seen("partial_args")):
        return not_run_problem("not all of the arguments came")
    return None


def _finish_reason(candidate: Mapping[str, Any]) -> str:
    return _enum_text(candidate.get("finishReason", candidate.get("finish_reason")))


def _enum_text(value: Any) -> str:
    """A text, or what a member of an enum stands for."""
    if type(value) is str:
        return value
    value = getattr(value, "value", value)
    return value if type(value) is str else read_text({"word": value}, "word")


def _problem(candidate: Mapping[str, Any]) -> str | None:
    # "If empty, the model has not stopped generating the tokens", says the API of a candidate.
    return turn_problem(_finish_reason(candidate), _STOPS, "finishReason")


def turn(response: Any) -> list[Any]:
    """`[{"role": "model", "parts": [...]}]`, each thought signature on its own part."""
    content = _candidate(response).get("content")
    parts = [_part(part) for part in read_list(content, "parts")]
    requested = [part["functionCall"] for part in parts if isinstance(part.get("functionCall"), dict)]
    for id, call in zip(_call_ids(response, requested), requested, strict=True):
        call["id"] = id
        call["name"] = function_name(name_of(call))
        # The API refuses these fields of a stream in a history.
        call.pop("willContinue", None)
        call.pop("partialArgs", None)
        if "args" in call:
            call["args"] = jsonable(object_value(call["args"]))
    kept = [part for part in parts if part and part != {"text": ""}]
    return [{"role": "model", "parts": kept}] if kept else []


def _part(part: Any) -> dict[str, Any]:
    found = plain(part)
    if not isinstance(found, dict):
        return {}
    found = {camel(key): item for key, item in found.items() if item is not None}
    if not isinstance(part, Mapping):
        _restore_base64(found)
    for key in ("functionCall", "functionResponse", "inlineData", "fileData"):
        if isinstance(found.get(key), dict):
            found[key] = {camel(name): item for name, item in found[key].items()}
    return found


def _restore_base64(part: dict[str, Any]) -> None:
    """The SDK's bytes in the base64 that the API wrote; `plain` writes that for URLs."""
    for inside, key in ((part, "thoughtSignature"), (part.get("inlineData"), "data")):
        if isinstance(inside, dict) and isinstance(inside.get(key), str):
            inside[key] = inside[key].replace("-", "+").replace("_", "/")


def stop(response: Any) -> Stop:
    """Why the model stopped."""
    candidate = _candidate(response)
    if not candidate:
        return "refused" if _blocked(response) else "other"
    found = _STOPS.get(_finish_reason(candidate), "other")
    if found not in COMPLETE:
        return found
    return "calls" if _function_calls(candidate) else "end"


def _blocked(response: Any) -> str:
    """Why the prompt was blocked; empty where it was not."""
    feedback = either(response, "prompt_feedback", "promptFeedback")
    reason = either(feedback, "block_reason", "blockReason")
    message = either(feedback, "block_reason_message", "blockReasonMessage")
    return ": ".join(_enum_text(part) for part in (reason, message) if part)


def function_response(result: ToolResult) -> dict[str, Any]:
    """The `functionResponse` for one result."""
    call = answered_call(result)
    found: dict[str, Any] = {"id": call.id, "name": function_name(call.name)}
    if result.status != "ok":
        return found | {"response": {"error": error_text(result)}}
    media = [(block, _media_part(block)) for block in result.content]
    texts = [block_text(block) for block, part in media if part is None]
    parts = [part for _, part in media if part is not None]
    if not parts:
        return found | {"response": {"output": _structured("\n".join(texts))}}
    output = "\n".join(texts) if texts else "see the parts of this response"
    return found | {"response": {"output": output}, "parts": parts}


def _media_part(block: Block) -> dict[str, Any] | None:
    kind = media_type(block) if isinstance(block, Media) else None
    if not isinstance(block, Media) or kind not in _MEDIA_TYPES:
        return None
    if block.data:
        return {"inlineData": {"mimeType": kind, "data": base64_text(block)}}
    address = block.uri if block.uri and block.uri.startswith("gs://") else http_url(block)
    return {"fileData": {"mimeType": kind, "fileUri": address}} if address else None


_LONG_NUMBER = re.compile(r"\d{16}")


def _structured(text: str) -> Any:
    """What `text` is the JSON of, where that is an object or a list and nothing is lost; else the text.

    All numbers of this API are doubles.
    """
    if text[:1] not in ("{", "[") or _LONG_NUMBER.search(text):
        return text
    try:
        value = json.loads(text)
        return value if to_text(value) == text else text
    except (ValueError, RecursionError):
        return text


class _StreamedText:
    """A text, or a thought, that comes in chunks."""

    __slots__ = ("chunks", "thought")

    def __init__(self, thought: bool) -> None:
        self.thought = thought
        self.chunks: list[str] = []

    def whole(self) -> dict[str, Any]:
        text = {"text": join_chunks(self.chunks)}
        return text | {"thought": True} if self.thought else text


_TEXT_ONLY = ({"text"}, {"text", "thought"})
_HEAD_FIELDS = (
    ("response_id", "responseId"),
    ("model_version", "modelVersion"),
    ("create_time", "createTime"),
    ("prompt_feedback", "promptFeedback"),
    ("usage_metadata", "usageMetadata"),
)


class Stream(TurnStream[Any, Any], readers=(calls, turn, stop)):
    """The same from the chunks of `streamGenerateContent`. Until one has a `finishReason`, every call has a
    `problem`."""

    __slots__ = ("_by_id", "_finish_message", "_finish_reason", "_head", "_open_call", "_open_text", "_parts", "_usage")

    def __init__(self) -> None:
        super().__init__()
        self._head: Any = None
        self._usage: Any = None
        """The last chunk that has any."""
        self._parts: list[Any] = []
        """Texts and calls that come in chunks, and all other parts as they came."""
        self._open_text: _StreamedText | None = None
        """The text at the end of the parts."""
        self._open_call: StreamedCall | None = None
        self._by_id: dict[str, StreamedCall] = {}
        self._finish_reason: Any = None
        self._finish_message = ""

    def _append_chunk(self, event: Any) -> bool:
        if type(event) is dict:
            taken, usage = self._append_from_dict(event["candidates"][0]), event.get("usageMetadata")
        else:
            taken, usage = self._append_from_sdk(event.candidates[0]), event.usage_metadata
        if taken and usage is not None:
            self._usage = event
        return taken

    def _append_from_dict(self, candidate: Any) -> bool:
        parts = candidate["content"]["parts"]
        part = parts[0]
        if len(parts) > 1 or "finishReason" in candidate:
            return False
        text, last = part.get("text"), self._open_text
        if text is not None:
            thought = part.get("thought") is True
            if last is None or last.thought is not thought or len(part) != 1 + thought or type(text) is not str:
                return False
            last.chunks.append(text)
            return True
        call = part["functionCall"]
        if self._open_call is None or len(call) != 2 or len(part) > 1 or call["willContinue"] is not True:
            return False
        (chunk,) = call["partialArgs"]
        return self._open_call.append_chunk(chunk["jsonPath"], chunk["stringValue"], chunk["willContinue"])

    def _append_from_sdk(self, candidate: Any) -> bool:
        candidate = candidate.__dict__  # a pydantic model's attributes take longer
        parts = candidate["content"].__dict__["parts"]
        part = parts[0]
        if len(parts) > 1 or candidate["finish_reason"] is not None:
            return False
        fields, part = len(part.__pydantic_fields_set__), part.__dict__
        text, last = part["text"], self._open_text
        if text is not None:
            thought = part["thought"] is True
            if last is None or last.thought is not thought or fields != 1 + thought:
                return False
            last.chunks.append(text)
            return True
        call = part["function_call"]
        if self._open_call is None or fields > 1 or call.name or call.id or call.will_continue is not True:
            return False
        (chunk,) = call.partial_args
        return self._open_call.append_chunk(chunk.json_path, chunk.string_value, chunk.will_continue)

    def _apply(self, event: Any) -> None:
        if self._head is None:
            self._head = event
        if either(event, "usage_metadata", "usageMetadata") is not None:
            self._usage = event
        candidate = _candidate(event)
        reason = either(candidate, "finish_reason", "finishReason")
        if reason is not None:
            self._finish_reason = reason
            self._finish_message = read_text(candidate, "finish_message") or read_text(candidate, "finishMessage")
        for part in read_list(candidate.get("content"), "parts"):
            self._add(part)

    def _add(self, part: Any) -> None:
        seen = fields_of(part)
        fields = seen.keys() if type(part) is dict else getattr(part, "model_fields_set", ())
        text = seen.get("text")
        if fields in _TEXT_ONLY and isinstance(text, str):
            self._append_text(text, bool(seen.get("thought")))
            return
        call = either(part, "function_call", "functionCall")
        if call is None or not self._continue(part, call):
            self._parts.append(part)
        self._open_text = None

    def _append_text(self, text: str, thought: bool) -> None:
        if self._open_text is None or self._open_text.thought is not thought:
            self._open_text = _StreamedText(thought)
            self._parts.append(self._open_text)
        self._open_text.chunks.append(text)

    def _continue(self, part: Any, call: Any) -> bool:
        """Adds a chunk of a call; whether it was one, and no whole call."""
        partial, more = either(call, "partial_args", "partialArgs"), either(call, "will_continue", "willContinue")
        id, name = known_id(read(call, "id")), read(call, "name")
        known = self._by_id.get(id) if id else self._open_call
        if known is not None and name and (not known.more if id else name != known.name):
            known = None
        if known is None:
            if not more and not partial:
                return False
            known = StreamedCall(part, id, name if isinstance(name, str) else "")
            self._parts.append(known)
            if id:
                self._by_id[id] = known
        known.add(part, partial, more is True)
        self._open_call = known if more is True else None
        return True

    def _assembled(self) -> dict[str, Any]:
        """The response, with parts as they came where they came whole."""
        parts = [_assembled_part(part) for part in self._parts]
        parts = [part for part in parts if part != {"text": ""}]
        found = {camel: either(self._head, name, camel) for name, camel in _HEAD_FIELDS}
        found["usageMetadata"] = either(self._usage, "usage_metadata", "usageMetadata")
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": self._finish_reason, "index": 0}
        head = {key: item for key, item in found.items() if item is not None}
        if "promptFeedback" in head and not parts and self._finish_reason is None:  # it was blocked
            return head
        return {**head, "candidates": [candidate]}

    def partial(self) -> dict[str, Any]:
        """The response so far, as it comes without a stream."""
        found = self._assembled()
        for candidate in found.get("candidates", ()):
            candidate["content"]["parts"] = [_part(part) for part in candidate["content"]["parts"]]
            candidate["finishReason"] = _finish_reason(candidate) or None
        return plain(found)  # type: ignore[no-any-return]

    @property
    def reason(self) -> str | None:
        """Why the prompt was blocked, or what the API says of an end before the end."""
        return self._finish_message or _blocked(self._head) or None


def _assembled_part(part: Any) -> Any:
    if isinstance(part, _StreamedText):
        return part.whole()
    if not isinstance(part, StreamedCall):
        return part
    signed = {} if part.signature is None else _part(part.signature)
    return {**_part(part.first), **signed, "functionCall": part.assembled()}
