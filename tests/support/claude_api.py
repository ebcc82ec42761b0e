"""A Messages API on loopback for Claude Code: its model makes scripted calls, and keeps what it reads of them."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, TypeAlias

from ferrule.testing import ModelView, ScriptedCall

Turns: TypeAlias = Sequence[Sequence[ScriptedCall]]
ENVIRONMENT = ("DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC")
"""Variables that keep Claude Code from other servers."""
_NUMBERS = count(1)
"""Claude Code makes one message of those with one id."""
_REMINDER = "<system-reminder>"
_USAGE = {"input_tokens": 1, "output_tokens": 1}


def clean_environment() -> None:
    """Remove keys, settings and proxies from the environment of this process, which Claude Code gets."""
    for name in [*os.environ]:
        if name.upper().startswith(("ANTHROPIC", "CLAUDE", "AWS_")) or name.upper().endswith("_PROXY"):
            del os.environ[name]


def make_environment(model: ScriptedModel, home: str) -> dict[str, str]:
    """Return the variables for a Claude Code that talks to this model, and keeps its sessions in `home`."""
    here = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none", "HOME": home}
    return {**here, **dict.fromkeys(ENVIRONMENT, "1")}


class ScriptedModel:
    """A model that makes the calls of a turn after each answer, and ends after the last turn.

    Attributes:
        turns: The turns by the prompt of an agent: a sub-agent has a prompt of its own.
        results: The results that the model reads, by call id.
        last_words: The texts after the last turn, by prompt.
    """

    def __init__(self, turns: Mapping[str, Turns], last_words: Mapping[str, str] | None = None) -> None:
        self.turns, self.last_words = turns, last_words or {}
        self.results: dict[str, ModelView] = {}

    def __enter__(self) -> ScriptedModel:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.model = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the blocks of the next message, and keep the results in the request."""
        messages = [(message["role"], _blocks(message["content"])) for message in request["messages"]]
        for block in (block for _, blocks in messages for block in blocks):
            if block["type"] == "tool_result":
                self.results[block["tool_use_id"]] = _read_result(block)
        asked = [block["text"] for _, blocks in messages for block in blocks if block["type"] == "text"]
        prompt = next((prompt for prompt in self.turns if prompt in asked), "")
        turns = self.turns.get(prompt, ())
        past = sum(role == "assistant" for role, _ in messages)
        calls = turns[past] if past < len(turns) and request.get("tools") else ()
        made = [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in calls]
        return made or [{"type": "text", "text": self.last_words.get(prompt, "done")}]


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def _read_result(block: Mapping[str, Any]) -> ModelView:
    texts, media = [], []
    for part in _blocks(block.get("content")):
        if part["type"] == "text":
            texts.append(part["text"].partition(_REMINDER)[0].rstrip("\n"))
        elif part["type"] == "image":
            media.append(base64.b64decode(part["source"]["data"]))
    return ModelView(" ".join(filter(None, texts)), bool(block.get("is_error")), tuple(media))


def _events(message: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the events of a streamed message."""
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            empty, delta = {"text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty, delta = {"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty}}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": message["stop_reason"]}, "usage": _USAGE}
    yield {"type": "message_stop"}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    model: ScriptedModel

    def handle_error(self, request: object, client_address: object) -> None:
        """A program that was ended has closed its connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *arguments: object) -> None: ...

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.partition("?")[0] != "/v1/messages":
            self._send("application/json", json.dumps({"input_tokens": 1}))
            return
        blocks = self.server.model.answer(request)
        stop = "tool_use" if blocks[0]["type"] == "tool_use" else "end_turn"
        message = {
            "id": f"msg_{next(_NUMBERS)}",
            "type": "message",
            "role": "assistant",
            "model": request["model"],
            "content": blocks,
        }
        message |= {"stop_reason": stop, "stop_sequence": None, "usage": _USAGE}
        if not request.get("stream"):
            self._send("application/json", json.dumps(message))
            return
        lines = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in _events(message, blocks))
        self._send("text/event-stream", "".join(lines))

    def _send(self, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
