"""Gemini's `generateContent`, for `ferrule.providers.gemini`."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ferrule.providers import _wire as wire
from ferrule.providers._api import Api, End, make_stop_readers, not_run_problem, read_calls
from ferrule.providers._gemini_names import GEMINI_NAME, read_either, to_camel_case
from ferrule.providers._stream import Readers, TurnStream, continue_text, merged_value
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, clean_text, to_jsonable
from ferrule.values.result import ToolResult

API = Api(
    title="Gemini",
    end_field="finishReason",
    stops={
        "STOP": "end",
        "MAX_TOKENS": "cut",
        "CONTINUATION": "pause",
        **dict.fromkeys(
            (
                *("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"),
                *("MISSING_THOUGHT_SIGNATURE", "MALFORMED_RESPONSE"),
            ),
            "malformed",
        ),
        **dict.fromkeys(
            (
                *("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "ESCALATION", "MODEL_ARMOR"),
                *("PUP_LIMITED_DISABLED", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"),
            ),
            "refused",
        ),
    },
    choices={"auto": "AUTO", "required": "ANY", "none": "NONE"},
    narrows=True,
    # google-genai's FunctionResponsePart, and Gemini's guide to function calling; PDFs as well.
    images=frozenset({"image/png", "image/jpeg", "image/webp"}),
    names=GEMINI_NAME,
)


def _candidate(response: Any) -> Mapping[str, Any]:
    candidates = wire.get_fields(response).get("candidates")
    return wire.get_fields(candidates[0]) if isinstance(candidates, list) and candidates else {}


def _list_calls(candidate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the function calls of a candidate in one form, so that their derived ids are the same in any spelling."""
    found = []
    for part in wire.read_list(candidate.get("content"), "parts"):
        call = wire.get_fields(read_either(part, "function_call", "functionCall"))
        if call:
            item = {key: call.get(key) for key in ("id", "name", "args")}
            names = ("willContinue", "will_continue", "partialArgs", "partial_args")
            found.append(item | ({"willContinue": True} if any(map(call.get, names)) else {}))
    return found


def _list_ids(response: Mapping[str, Any], requested: Sequence[Any], key: str) -> list[str]:
    """Return the ids of the calls. Missing ones are derived from the response's own."""
    return wire.list_ids({"id": response.get("responseId") or response.get("response_id")}, requested, key)


def calls(response: Any) -> list[ToolCall]:
    """Return the calls in the first candidate, in order."""
    requested = _list_calls(_candidate(response))
    return read_calls(API, wire.get_fields(response), requested, "id", _read_call, _read_end, _list_ids)


def _read_call(id: str, call: Any, problem: str | None) -> ToolCall:
    if "willContinue" in call:
        problem = problem or not_run_problem("the API sent its arguments in parts, which this program does not join")
    return ToolCall(id, wire.read_name(call), wire.read_arguments(call["args"]), problem=problem)


def _read_end(response: Any) -> End:
    candidate = _candidate(response)
    word, blocked = _finish_reason(candidate), "" if candidate else _read_block_reason(response)
    return End(
        word,
        # From the API's reference, about a candidate: "If empty, the model has not stopped generating the tokens".
        open=not word and not blocked,
        calls=bool(_list_calls(candidate)),
        refused=bool(blocked),
        details=blocked or wire.read_text(candidate, "finishMessage") or wire.read_text(candidate, "finish_message"),
    )


def _finish_reason(candidate: Mapping[str, Any]) -> str:
    return _enum_text(candidate.get("finishReason", candidate.get("finish_reason")))


def _enum_text(value: Any) -> str:
    """Return a text, or the value of an enum's member."""
    if type(value) is str:
        return value
    value = getattr(value, "value", value)
    return value if type(value) is str else wire.read_text({"word": value}, "word")


def turn(response: Any) -> list[Any]:
    """Return `[{"role": "model", "parts": [...]}]`, each thought signature on its own part."""
    content = _candidate(response).get("content")
    parts = [_part(part) for part in wire.read_list(content, "parts")]
    requested = [call for part in parts if isinstance(call := part.get("functionCall"), dict) and call]
    ids = _list_ids(wire.get_fields(response), _list_calls({"content": {"parts": parts}}), "id")
    for id, call in zip(ids, requested, strict=True):
        call["id"] = id
        call["name"] = wire.format_name(wire.read_name(call), API.names)
        # The API refuses these fields of a stream in a history.
        call.pop("willContinue", None)
        call.pop("partialArgs", None)
        if "args" in call:
            call["args"] = to_jsonable(wire.to_object(call["args"]))
    kept = [part for part in parts if part and part != {"text": ""}]
    return [{"role": "model", "parts": kept}] if kept else []


def _part(part: Any) -> dict[str, Any]:
    found = wire.to_plain(part)
    if not isinstance(found, dict):
        return {}
    found = {to_camel_case(key): item for key, item in found.items() if item is not None}
    if not isinstance(part, Mapping):
        _restore_base64(found)
    for key in ("functionCall", "functionResponse", "inlineData", "fileData"):
        if isinstance(found.get(key), dict):
            found[key] = {to_camel_case(name): item for name, item in found[key].items()}
    return found


def _restore_base64(part: dict[str, Any]) -> None:
    """Restore the API's own base64 from the SDK's bytes, because `plain` writes base64 for URLs."""
    for inside, key in ((part, "thoughtSignature"), (part.get("inlineData"), "data")):
        if isinstance(inside, dict) and isinstance(inside.get(key), str):
            inside[key] = inside[key].replace("-", "+").replace("_", "/")


def text(response: Any) -> str:
    """Return the model's text, without its thoughts."""
    parts = map(wire.get_fields, wire.read_list(_candidate(response).get("content"), "parts"))
    return "".join(wire.read_text(part, "text") for part in parts if not part.get("thought"))


stop, reason = make_stop_readers(API, _read_end, text)


def state(response: Any) -> dict[str, Any]:
    """Return `{"continuation_token": token}`, in base64, for a turn that ended with `CONTINUATION`."""
    candidate = _candidate(response)
    token = _as_base64(read_either(candidate, "continuation_token", "continuationToken"))
    known = isinstance(token, str) and _finish_reason(candidate) == "CONTINUATION"
    return {"continuation_token": clean_text(token)} if known else {}


def _as_base64(value: Any) -> Any:
    """Return the SDK's bytes as in the JSON."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _read_block_reason(response: Any) -> str:
    """Return why the prompt was blocked, or an empty text if it was not."""
    feedback = read_either(response, "prompt_feedback", "promptFeedback")
    reason = read_either(feedback, "block_reason", "blockReason")
    message = read_either(feedback, "block_reason_message", "blockReasonMessage")
    return ": ".join(_enum_text(part) for part in (reason, message) if part)


def function_response(result: ToolResult) -> dict[str, Any]:
    """Return the `functionResponse` for one result."""
    call = wire.require_call(result)
    found: dict[str, Any] = {"id": call.id, "name": wire.format_name(call.name, API.names)}
    if result.status != "ok":
        return found | {"response": {"error": wire.format_error(result)}}
    media = [(block, _media_part(block)) for block in result.content]
    texts = [wire.format_block(block) for block, part in media if part is None]
    parts = [part for _, part in media if part is not None]
    if not parts:
        return found | {"response": {"output": _parse_structured("\n".join(texts))}}
    output = "\n".join(texts) if texts else "see the parts of this response"
    return found | {"response": {"output": output}, "parts": parts}


def _media_part(block: Block) -> dict[str, Any] | None:
    kind = wire.get_media_type(block) if isinstance(block, Media) else ""
    if not isinstance(block, Media) or (kind not in API.images and kind != "application/pdf"):
        return None
    if block.data:
        return {"inlineData": {"mimeType": kind, "data": wire.encode_base64(block)}}
    address = wire.get_fetch_address(block, (*wire.WEB, "gs://"))
    return {"fileData": {"mimeType": kind, "fileUri": address}} if address else None


_LONG_NUMBER = re.compile(r"\d{16}")


def _parse_structured(text: str) -> Any:
    """Return the object or list in the JSON `text`, if it loses nothing; otherwise the text.

    All numbers of this API are doubles, and it reads a `$ref` as the name of one of the response's parts
    (github.com/vercel/ai/issues/14369).
    """
    found = None if '"$ref":' in text or _LONG_NUMBER.search(text) else wire.parse_lossless_json(text)
    return text if found is None else found


_TEXT_ONLY = ({"text"}, {"text", "thought"})
_HEAD_FIELDS = frozenset({"responseId", "modelVersion", "createTime", "promptFeedback", "usageMetadata"})


READERS = Readers(calls, text, turn, stop, reason, state, _read_end)


class Stream(TurnStream[Any, Any], readers=READERS):
    """A `Stream` of the chunks of `streamGenerateContent`. Until one has a `finishReason`, every call has a
    `problem`."""

    __slots__ = ("_ending", "_head", "_parts")

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] = {}
        self._parts: list[Any] = []
        """Texts that come in chunks, and all other parts unchanged."""
        self._ending: dict[str, Any] = {}
        """The candidate's fields besides its content."""

    def _read_event(self, event: Any) -> None:
        head = {to_camel_case(key): item for key, item in wire.get_fields(event).items() if item is not None}
        self._head = {key: head[key] for key in _HEAD_FIELDS & head.keys()} | self._head
        if "usageMetadata" in head:
            self._head["usageMetadata"] = head["usageMetadata"]
        candidate = _candidate(event)
        said = {to_camel_case(key): _as_base64(item) for key, item in candidate.items() if item is not None}
        self._ending |= {key: item for key, item in said.items() if key != "content"}
        for part in wire.read_list(candidate.get("content"), "parts"):
            self._add(part)

    def _add(self, part: Any) -> None:
        seen = wire.get_fields(part)
        fields = wire.list_sent_fields(part)
        text = seen.get("text")
        if fields in _TEXT_ONLY and isinstance(text, str):
            continue_text(self._parts, text, {"thought": True} if seen.get("thought") else {})
            return
        call = read_either(part, "function_call", "functionCall")
        continues = call is not None and wire.read(call, "name") is wire.read(call, "args") is None
        if not continues:  # the arguments that come in parts are not joined
            self._parts.append(part)

    def _assemble(self) -> dict[str, Any]:
        """Return the response so far. Parts that came whole are unchanged."""
        parts = [_assemble_part(part) for part in self._parts]
        parts = [part for part in parts if part != {"text": ""}]
        if "promptFeedback" in self._head and not parts and "finishReason" not in self._ending:  # it was blocked
            return dict(self._head)
        content = {"role": "model", "parts": parts}
        return {**self._head, "candidates": [{"finishReason": None, "index": 0, **self._ending, "content": content}]}

    def partial(self) -> dict[str, Any]:
        """Return the response so far, in the form of one without a stream."""
        found = self._assemble()
        for candidate in found.get("candidates", ()):
            candidate["content"]["parts"] = [_part(part) for part in candidate["content"]["parts"]]
            candidate["finishReason"] = _finish_reason(candidate) or None
        return wire.to_plain(found)  # type: ignore[no-any-return]


def _assemble_part(part: Any) -> Any:
    return merged_value(part) if type(part) is dict and "text" in part else part
