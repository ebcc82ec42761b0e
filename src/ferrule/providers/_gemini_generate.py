"""Gemini's `generateContent`: what `ferrule.providers.gemini` reads and writes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ferrule.providers._gemini_names import camel, either, function_name
from ferrule.providers._gemini_paths import CallInPieces
from ferrule.providers._read import (
    Stop,
    arguments,
    base64_text,
    block_text,
    call_of,
    error_text,
    given_ids,
    ids_of,
    known_id,
    media_type,
    name_of,
    not_run,
    object_value,
    once,
    plain,
    read,
    read_list,
    read_text,
    view,
    views,
    web_address,
)
from ferrule.providers._stream import TurnStream, joined
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
_WHOLE = ("end", "calls")
# google-genai's FunctionResponsePart, and Gemini's guide to function calling.
_SHOWN = {"image/png", "image/jpeg", "image/webp", "application/pdf"}


def _candidate(response: Any) -> Mapping[str, Any]:
    candidates = view(response).get("candidates")
    return view(candidates[0]) if isinstance(candidates, list) and candidates else {}


def _asked(candidate: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The function calls of a candidate."""
    content = candidate.get("content")
    parts = (content if type(content) is dict else view(content)).get("parts")
    found: list[Mapping[str, Any]] = []
    for part in parts if isinstance(parts, list) else ():
        seen = part if type(part) is dict else view(part)
        call = seen.get("functionCall") or seen.get("function_call")
        if call is not None:
            found.append(call)
    return views(found)


def _ids(response: Any, asked: Sequence[Mapping[str, Any]]) -> list[str]:
    seen = view(response)
    source = seen.get("responseId") or seen.get("response_id")
    if source is None:  # what the calls say has to do
        return ids_of({}, [{key: call.get(key) for key in ("id", "name", "args")} for call in asked], "id")
    return ids_of({"id": source}, [{"id": call.get("id")} for call in asked], "id")


def calls(response: Any) -> list[ToolCall]:
    """The calls in the first candidate, in order."""
    seen = response if type(response) is dict else view(response)
    candidate = _candidate(seen)
    asked = _asked(candidate)
    if not asked:
        return []
    reason = candidate.get("finishReason") or candidate.get("finish_reason")
    problem = None if reason == "STOP" else _problem(candidate)
    found = []
    for id, call in zip(given_ids(asked, "id") or _ids(seen, asked), asked, strict=True):
        why = problem or _unfinished(call)
        found.append(ToolCall(id, name_of(call), arguments(call.get("args")), problem=why))
    return once(found, asked, "id")


def _unfinished(call: Mapping[str, Any]) -> str | None:
    seen = call.get
    if len(call) > 2 and (seen("willContinue") or seen("will_continue") or seen("partialArgs") or seen("partial_args")):
        return not_run("not all of the arguments came")
    return None


def _reason(candidate: Mapping[str, Any]) -> str:
    return _word(candidate.get("finishReason", candidate.get("finish_reason")))


def _word(value: Any) -> str:
    """A text, or what a member of an enum stands for."""
    if type(value) is str:
        return value
    value = getattr(value, "value", value)
    return value if type(value) is str else read_text({"word": value}, "word")


def _problem(candidate: Mapping[str, Any]) -> str | None:
    reason = _reason(candidate)
    found = _STOPS.get(reason)
    if found in _WHOLE:
        return None
    if found == "cut":
        return not_run(f"the turn was cut off ({reason!r})")
    if found == "malformed":
        return not_run(f"the turn was malformed ({reason!r})")
    if found == "refused":
        return not_run(f"the turn was stopped by a filter ({reason!r})")
    if reason:
        return not_run(f"the turn ended for a reason that is not known here ({reason!r})")
    # "If empty, the model has not stopped generating the tokens", says the API of a candidate.
    return not_run("the turn has no end yet (it has no finishReason)")


def turn(response: Any) -> list[dict[str, Any]]:
    """`[{"role": "model", "parts": [...]}]`, each thought signature on its own part."""
    content = _candidate(response).get("content")
    parts = [_part(part) for part in read_list(content, "parts")]
    asked = [part["functionCall"] for part in parts if isinstance(part.get("functionCall"), dict)]
    for id, call in zip(_ids(response, asked), asked, strict=True):
        call["id"] = id
        call["name"] = function_name(name_of(call))
        # What a stream says of its fragments is not taken back.
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
        _as_sent(found)
    for key in ("functionCall", "functionResponse", "inlineData", "fileData"):
        if isinstance(found.get(key), dict):
            found[key] = {camel(name): item for name, item in found[key].items()}
    return found


def _as_sent(part: dict[str, Any]) -> None:
    """The SDK's bytes in the base64 that the API wrote; `plain` writes that for URLs."""
    for inside, key in ((part, "thoughtSignature"), (part.get("inlineData"), "data")):
        if isinstance(inside, dict) and isinstance(inside.get(key), str):
            inside[key] = inside[key].replace("-", "+").replace("_", "/")


def stop(response: Any) -> Stop:
    """Why the model stopped."""
    candidate = _candidate(response)
    if not candidate:
        return "refused" if _blocked(response) else "other"
    found = _STOPS.get(_reason(candidate), "other")
    if found not in _WHOLE:
        return found
    return "calls" if _asked(candidate) else "end"


def _blocked(response: Any) -> str:
    """Why the prompt was blocked; empty where it was not."""
    feedback = either(response, "prompt_feedback", "promptFeedback")
    reason = either(feedback, "block_reason", "blockReason")
    said = either(feedback, "block_reason_message", "blockReasonMessage")
    return ": ".join(_word(part) for part in (reason, said) if part)


def answer(result: ToolResult) -> dict[str, Any]:
    """The `functionResponse` for one result."""
    call = call_of(result)
    found: dict[str, Any] = {"id": call.id, "name": function_name(call.name)}
    if result.status != "ok":
        return found | {"response": {"error": error_text(result)}}
    media = [(block, _media(block)) for block in result.content]
    texts = [block_text(block) for block, part in media if part is None]
    parts = [part for _, part in media if part is not None]
    if not parts:
        return found | {"response": {"output": _structured("\n".join(texts))}}
    said = "\n".join(texts) if texts else "see the parts of this response"
    return found | {"response": {"output": said}, "parts": parts}


def _media(block: Block) -> dict[str, Any] | None:
    kind = media_type(block) if isinstance(block, Media) else None
    if not isinstance(block, Media) or kind not in _SHOWN:
        return None
    if block.data:
        return {"inlineData": {"mimeType": kind, "data": base64_text(block)}}
    address = block.uri if block.uri and block.uri.startswith("gs://") else web_address(block)
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


class _Text:
    """A text, or a thought, in fragments."""

    __slots__ = ("pieces", "thought")

    def __init__(self, thought: bool) -> None:
        self.thought = thought
        self.pieces: list[str] = []

    def whole(self) -> dict[str, Any]:
        text = {"text": joined(self.pieces)}
        return text | {"thought": True} if self.thought else text


_PURE = ({"text"}, {"text", "thought"})
_HEAD = (
    ("response_id", "responseId"),
    ("model_version", "modelVersion"),
    ("create_time", "createTime"),
    ("prompt_feedback", "promptFeedback"),
    ("usage_metadata", "usageMetadata"),
)


class Stream(TurnStream, reading=(calls, turn, stop)):
    """The same from the chunks of `streamGenerateContent`. Until one has a `finishReason`, every call has a
    `problem`."""

    __slots__ = ("_by_id", "_finish", "_head", "_message", "_open", "_parts", "_said", "_usage")

    def __init__(self) -> None:
        super().__init__()
        self._head: Any = None
        self._usage: Any = None
        """The last chunk that has any."""
        self._parts: list[Any] = []
        """Texts, calls in fragments, and all other parts as they came."""
        self._said: _Text | None = None
        """The text at the end of the parts."""
        self._open: CallInPieces | None = None
        self._by_id: dict[str, CallInPieces] = {}
        self._finish: Any = None
        self._message = ""

    def _goes_on(self, event: Any) -> bool:
        if type(event) is dict:
            taken, usage = self._more_of_dict(event["candidates"][0]), event.get("usageMetadata")
        else:
            taken, usage = self._more_of_sdk(event.candidates[0]), event.usage_metadata
        if taken and usage is not None:
            self._usage = event
        return taken

    def _more_of_dict(self, candidate: Any) -> bool:
        parts = candidate["content"]["parts"]
        part = parts[0]
        if len(parts) > 1 or "finishReason" in candidate:
            return False
        text, said = part.get("text"), self._said
        if text is not None:
            thought = part.get("thought") is True
            if said is None or said.thought is not thought or len(part) != 1 + thought or type(text) is not str:
                return False
            said.pieces.append(text)
            return True
        call = part["functionCall"]
        if self._open is None or len(call) != 2 or len(part) > 1 or call["willContinue"] is not True:
            return False
        (piece,) = call["partialArgs"]
        return self._open.goes_on(piece["jsonPath"], piece["stringValue"], piece["willContinue"])

    def _more_of_sdk(self, candidate: Any) -> bool:
        candidate = candidate.__dict__  # a pydantic model's attributes take longer
        parts = candidate["content"].__dict__["parts"]
        part = parts[0]
        if len(parts) > 1 or candidate["finish_reason"] is not None:
            return False
        fields, part = len(part.__pydantic_fields_set__), part.__dict__
        text, said = part["text"], self._said
        if text is not None:
            thought = part["thought"] is True
            if said is None or said.thought is not thought or fields != 1 + thought:
                return False
            said.pieces.append(text)
            return True
        call = part["function_call"]
        if self._open is None or fields > 1 or call.name or call.id or call.will_continue is not True:
            return False
        (piece,) = call.partial_args
        return self._open.goes_on(piece.json_path, piece.string_value, piece.will_continue)

    def _take(self, event: Any) -> None:
        if self._head is None:
            self._head = event
        if either(event, "usage_metadata", "usageMetadata") is not None:
            self._usage = event
        candidate = _candidate(event)
        reason = either(candidate, "finish_reason", "finishReason")
        if reason is not None:
            self._finish = reason
            self._message = read_text(candidate, "finish_message") or read_text(candidate, "finishMessage")
        for part in read_list(candidate.get("content"), "parts"):
            self._add(part)

    def _add(self, part: Any) -> None:
        seen = view(part)
        fields = seen.keys() if type(part) is dict else getattr(part, "model_fields_set", ())
        text = seen.get("text")
        if fields in _PURE and isinstance(text, str):
            self._say(text, bool(seen.get("thought")))
            return
        call = either(part, "function_call", "functionCall")
        if call is None or not self._continue(part, call):
            self._parts.append(part)
        self._said = None

    def _say(self, text: str, thought: bool) -> None:
        if self._said is None or self._said.thought is not thought:
            self._said = _Text(thought)
            self._parts.append(self._said)
        self._said.pieces.append(text)

    def _continue(self, part: Any, call: Any) -> bool:
        """Takes a fragment of a call; a call that is whole is none."""
        partial, more = either(call, "partial_args", "partialArgs"), either(call, "will_continue", "willContinue")
        id, name = known_id(read(call, "id")), read(call, "name")
        known = self._by_id.get(id) if id else self._open
        if known is not None and name and (not known.more if id else name != known.name):
            known = None
        if known is None:
            if not more and not partial:
                return False
            known = CallInPieces(part, id, name if isinstance(name, str) else "")
            self._parts.append(known)
            if id:
                self._by_id[id] = known
        known.take(part, partial, more is True)
        self._open = known if more is True else None
        return True

    def _so_far(self) -> dict[str, Any]:
        """The response, with parts as they came where they came whole."""
        parts = [_whole(part) for part in self._parts]
        parts = [part for part in parts if part != {"text": ""}]
        found = {camel: either(self._head, name, camel) for name, camel in _HEAD}
        found["usageMetadata"] = either(self._usage, "usage_metadata", "usageMetadata")
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": self._finish, "index": 0}
        head = {key: item for key, item in found.items() if item is not None}
        if "promptFeedback" in head and not parts and self._finish is None:  # it was blocked
            return head
        return {**head, "candidates": [candidate]}

    def partial(self) -> dict[str, Any]:
        """The response so far, as it comes without a stream."""
        found = self._so_far()
        for candidate in found.get("candidates", ()):
            candidate["content"]["parts"] = [_part(part) for part in candidate["content"]["parts"]]
            candidate["finishReason"] = _reason(candidate) or None
        return plain(found)  # type: ignore[no-any-return]

    @property
    def reason(self) -> str | None:
        """Why the prompt was blocked, or what the API says of an end before the end."""
        return self._message or _blocked(self._head) or None


def _whole(part: Any) -> Any:
    if isinstance(part, _Text):
        return part.whole()
    if not isinstance(part, CallInPieces):
        return part
    signed = {} if part.signature is None else _part(part.signature)
    return {**_part(part.first), **signed, "functionCall": part.whole()}
