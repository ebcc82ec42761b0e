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
from tests.models.servers.serving import Answer, Api, Request, Turn, refuse_unless

_SERVICE = get_session().get_service_model("bedrock-runtime")
_KINDS = {400: "ValidationException", 404: "ResourceNotFoundException", 429: "ThrottlingException"}


class Bedrock(Api):
    provider = "bedrock"
    path = ""
    key = ("authorization", "AWS4-HMAC-SHA256 Credential=dummy/")
    stream_kind = "application/vnd.amazon.eventstream"
    ends = 2

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

    def complete(self, response: dict[str, Any], turn: Turn, number: int) -> None:
        if turn.calls:
            response["output"]["message"]["content"].insert(0, _reasoning(number))

    def encode(self, event: dict[str, Any]) -> bytes:
        [(kind, payload)] = event.items()
        return framed(kind, payload)

    def stream_error(self, message: str) -> list[bytes]:
        return [framed("modelStreamErrorException", {"message": message}, message_type="exception")]

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        return {"message": message}

    def error_headers(self, status: int) -> dict[str, str]:
        return {"x-amzn-ErrorType": _KINDS[status]}

    def answer(self, request: Request) -> Answer:
        known = re.fullmatch(r"/model/[^/]+/converse(-stream)?", request.path)
        return super().answer(request) if known else self.error(404, f"there is nothing at {request.path}")


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
