"""Amazon Bedrock's Converse API, with its binary event stream."""

from __future__ import annotations

import json
import re
import struct
import zlib
from typing import Any
from urllib.parse import unquote

from botocore.model import Shape
from botocore.session import get_session
from botocore.validate import ParamValidator
from tests.models.servers.serving import Answer, Api, Request, Turn, halves, refuse_unless

_SERVICE = get_session().get_service_model("bedrock-runtime")
_USAGE = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
_KINDS = {400: "ValidationException", 404: "ResourceNotFoundException", 429: "ThrottlingException"}


class Bedrock(Api):
    path = ""
    key = ("authorization", "AWS4-HMAC-SHA256 Credential=dummy/")
    stream_kind = "application/vnd.amazon.eventstream"

    def is_streamed(self, request: Request) -> bool:
        return request.path.endswith("/converse-stream")

    def check(self, request: Request) -> None:
        operation = "ConverseStream" if self.is_streamed(request) else "Converse"
        shape = _SERVICE.operation_model(operation).input_shape
        model = unquote(request.path.split("/")[2])
        given = {"modelId": model, **request.body}
        report = ParamValidator().validate(given, shape)
        refuse_unless(not report.has_errors(), report.generate_report())
        _check_patterns(given, shape, "request")
        body = request.body
        specs = [tool["toolSpec"] for tool in body.get("toolConfig", {}).get("tools", ()) if "toolSpec" in tool]
        names = [spec["name"] for spec in specs]
        refuse_unless(len(set(names)) == len(names), "The tool names must be unique.")
        for spec in specs:
            refuse_unless(spec["inputSchema"]["json"].get("type") == "object", "inputSchema.json.type must be object.")
        _check_history(body["messages"], bool(names))
        self._check_signed(body["messages"])

    def _check_signed(self, messages: list[dict[str, Any]]) -> None:
        turns = [message["content"] for message in messages if message["role"] == "assistant"]
        for turn, number in zip(turns, range(self.answered), strict=False):
            if any("toolUse" in block for block in turn):
                refuse_unless(turn[0] == _reasoning(number), f"messages: turn {number} must start with its reasoning")

    def whole(self, turn: Turn, number: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": _content(turn, number)}
        return {"output": {"message": message}, "stopReason": _reason(turn), "usage": _USAGE, "metrics": _METRICS}

    def stream(self, turn: Turn, number: int) -> tuple[list[bytes], list[bytes]]:
        events: list[tuple[str, dict[str, Any]]] = [("messageStart", {"role": "assistant"})]
        for index, block in enumerate(_content(turn, number)):
            start, deltas = _pieces(block)
            if start:
                events.append(("contentBlockStart", {"contentBlockIndex": index, "start": start}))
            events += [("contentBlockDelta", {"contentBlockIndex": index, "delta": delta}) for delta in deltas]
            events.append(("contentBlockStop", {"contentBlockIndex": index}))
        end = [("messageStop", {"stopReason": _reason(turn)}), ("metadata", {"usage": _USAGE, "metrics": _METRICS})]
        return [framed(*event) for event in events], [framed(*event) for event in end]

    def stream_error(self, message: str) -> list[bytes]:
        return [framed("modelStreamErrorException", {"message": message}, message_type="exception")]

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        return {"message": message}

    def error_headers(self, status: int) -> dict[str, str]:
        return {"x-amzn-ErrorType": _KINDS[status]}

    def answer(self, request: Request) -> Answer:
        known = re.fullmatch(r"/model/[^/]+/converse(-stream)?", request.path)
        return super().answer(request) if known else self.error(404, f"there is nothing at {request.path}")


_METRICS = {"latencyMs": 1}


def framed(kind: str, payload: dict[str, Any], message_type: str = "event") -> bytes:
    """One message of `application/vnd.amazon.eventstream`: lengths and their checksum, headers, payload, checksum."""
    headers = {f":{message_type}-type": kind, ":content-type": "application/json", ":message-type": message_type}
    head = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
        for name, value in headers.items()
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(head) + len(body), len(head))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + head + body
    return message + struct.pack("!I", zlib.crc32(message))


def _check_patterns(value: Any, shape: Shape, path: str) -> None:
    """What botocore knows and does not check: patterns, enums and longest lengths."""
    if shape.type_name == "structure" and not getattr(shape, "is_document_type", False):
        for name, item in value.items():
            _check_patterns(item, shape.members[name], f"{path}.{name}")
    elif shape.type_name == "list":
        for place, item in enumerate(value):
            _check_patterns(item, shape.member, f"{path}[{place}]")
    elif shape.type_name == "string":
        limits = shape.metadata
        refuse_unless(re.fullmatch(limits.get("pattern", "(?s).*"), value), f"{path}: {value!r} does not fit")
        refuse_unless(len(value) <= limits.get("max", len(value)), f"{path}: {value!r} is too long")
        refuse_unless(value in (shape.enum or [value]), f"{path}: {value!r} is none of {shape.enum}")


def _check_history(messages: list[dict[str, Any]], has_tools: bool) -> None:
    refuse_unless(messages[0]["role"] == "user", "A conversation must start with a user message.")
    waiting: list[str] = []
    for place, message in enumerate(messages):
        refuse_unless(message["content"], f"The content field at messages.{place} is empty.")
        answered = [block["toolResult"]["toolUseId"] for block in message["content"] if "toolResult" in block]
        calls = [block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block]
        refuse_unless(
            sorted(answered) == sorted(waiting),
            f"The number of toolResult blocks at messages.{place}.content must be that of toolUse blocks before",
        )
        refuse_unless(message["role"] == "assistant" or not calls, f"messages.{place}: a user cannot call")
        refuse_unless(has_tools or not (calls or answered), "The toolConfig field must be defined")
        for block in message["content"]:
            refuse_unless(block.get("text", "x").strip(), f"messages.{place}: The text field is blank")
            for part in block.get("toolResult", {}).get("content", ()):
                refuse_unless(part.get("text", "x").strip(), f"messages.{place}: a text of a toolResult is blank")
        waiting = calls
    refuse_unless(not waiting, "Expected toolResult blocks for the toolUse blocks of the last turn")


def _reasoning(number: int) -> dict[str, Any]:
    return {"reasoningContent": {"reasoningText": {"text": "I wonder.", "signature": f"signed{number}=="}}}


def _content(turn: Turn, number: int) -> list[dict[str, Any]]:
    said = [{"text": turn.text}] if turn.text else []
    calls = [{"toolUse": {"toolUseId": call.id, "name": call.name, "input": call.arguments}} for call in turn.calls]
    return [_reasoning(number), *said, *calls] if calls else said


def _reason(turn: Turn) -> str:
    return "tool_use" if turn.calls else "end_turn"


def _pieces(block: dict[str, Any]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """A block as it starts (text and reasoning do not), and what then comes."""
    if "text" in block:
        return None, [{"text": chunk} for chunk in halves(block["text"])]
    if "reasoningContent" in block:
        said = block["reasoningContent"]["reasoningText"]
        thought = [{"reasoningContent": {"text": chunk}} for chunk in halves(said["text"])]
        return None, [*thought, {"reasoningContent": {"signature": said["signature"]}}]
    use = block["toolUse"]
    start = {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}
    return start, [{"toolUse": {"input": chunk}} for chunk in halves(json.dumps(use["input"]))]
