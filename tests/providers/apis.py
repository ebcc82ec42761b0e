"""How each API writes a response and streams it, how its SDK reads both, and what the tests of several APIs share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from anthropic import _models as anthropic_models
from anthropic.types import Message, RawMessageStreamEvent
from cohere.core.unchecked_base_model import construct_type
from cohere.v2.types.v2chat_response import V2ChatResponse
from cohere.v2.types.v2chat_stream_response import V2ChatStreamResponse
from google.genai._gaos.types.interactions import Interaction, InteractionSSEEvent
from google.genai.types import GenerateContentResponse
from mistralai.client.models import ChatCompletionResponse, CompletionEvent
from ollama import ChatResponse
from openai import _models as openai_models
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from ferrule import Toolset, tool
from ferrule.providers import anthropic, bedrock, cohere, gemini, mistral, ollama, openai_chat, openai_responses
from ferrule.values.call import ToolCall
from ferrule.values.result import ToolResult

Asked = tuple[str | None, str, Any]
"""The id, the name and the arguments of a call."""
Response = dict[str, Any]
Cut = Callable[[str], list[str]]
"""How a text is cut into the chunks of a stream; `list` makes a chunk of each letter."""

ADD: Asked = ("call_a", "add", {"a": 1, "b": 2})
GREET: Asked = ("call_b", "greet", {"name": "Ada"})
USAGE = {"input_tokens": 10, "output_tokens": 5}
CHAT_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
PNG = b"\x89PNG\r\n\x1a\n"
WAYS = ("dict", "sdk", "stream", "sdk stream")


@tool(read_only=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def greet(name: str, greeting: str = "Hello") -> str:
    """Greet somebody."""
    return f"{greeting} {name}"


@tool(name="notes.read")
def read_notes(path: str) -> str:
    """Read a note."""
    return path


TOOLS = Toolset([add, greet, read_notes])


def whole(text: str) -> list[str]:
    return [text]


def _text(arguments: Any) -> Any:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _function_calls(asked: list[Asked]) -> list[Response]:
    """The calls in a message of OpenAI's chat, of Mistral and of Cohere."""
    return [
        {"id": id, "type": "function", "function": {"name": name, "arguments": _text(arguments)}}
        for id, name, arguments in asked
    ]


# Anthropic


def anthropic_dict(text: str, asked: list[Asked], stop: str | None) -> Response:
    content: list[Response] = [{"type": "text", "text": text}] if text else []
    for id, name, arguments in asked:
        content.append({"type": "tool_use", "id": id, "name": name, "input": arguments})
    reason = {"done": "end_turn", "calls": "tool_use", "cut": "max_tokens", "refused": "refusal", None: None}[stop]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": USAGE,
    }


def anthropic_events(response: Response, cut: Cut = whole) -> Iterator[Response]:
    yield {"type": "message_start", "message": {**response, "content": [], "stop_reason": None}}
    fields = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}
    for index, block in enumerate(response["content"]):
        start, deltas = dict(block), []
        if block["type"] == "tool_use":
            start["input"] = {}
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in cut(_text(block["input"]))]
        elif block["type"] in fields:
            kind, field = fields[block["type"]]
            start[field] = ""
            deltas = [{"type": kind, field: piece} for piece in cut(block[field])]
        if "signature" in block:
            start["signature"] = ""
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        yield {"type": "content_block_start", "index": index, "content_block": start}
        yield {"type": "ping"}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    if response["stop_reason"] is not None:
        delta = {"stop_reason": response["stop_reason"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}}
        yield {"type": "message_stop"}


# OpenAI, Responses


def responses_dict(text: str, asked: list[Asked], stop: str | None) -> Response:
    output: list[Response] = []
    if text:
        part = {"type": "output_text", "text": text, "annotations": []}
        output.append({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]})
    for place, (id, name, arguments) in enumerate(asked):
        item = {"type": "function_call", "id": f"fc_{place}", "call_id": id, "name": name, "status": "completed"}
        output.append(item | {"arguments": _text(arguments)})
    reason = {"cut": "max_output_tokens", "refused": "content_filter"}.get(stop or "")
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1.0,
        "model": "m",
        "output": output,
        "status": "in_progress" if stop is None else "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            **USAGE,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 15,
        },
    }


def responses_events(response: Response, cut: Cut = whole) -> Iterator[Response]:
    begun = {**response, "output": [], "status": "in_progress", "incomplete_details": None}
    yield {"type": "response.created", "response": begun, "sequence_number": 0}
    for index, item in enumerate(response["output"]):
        at = {"output_index": index, "item_id": item.get("id"), "sequence_number": index + 1}
        start: Response = {**item, "status": "in_progress"}
        pieces: list[Response] = []
        key = {"function_call": "arguments", "custom_tool_call": "input"}.get(item["type"])
        if key:
            start[key] = ""
            kind = f"response.{'custom_tool_call_input' if key == 'input' else 'function_call_arguments'}.delta"
            pieces = [{"type": kind, "delta": piece, **at} for piece in cut(item[key])]
        elif item["type"] == "message":
            start["content"] = []
            kind, text = "response.output_text.delta", item["content"][0].get("text", "")
            pieces = [{"type": kind, "delta": p, "content_index": 0, "logprobs": [], **at} for p in cut(text)]
        elif item["type"] == "reasoning":
            start = {key: value for key, value in start.items() if key != "status"} | {"encrypted_content": "early"}
        added = {"type": "response.output_item.added", "item": start, **at}
        done = {"type": "response.output_item.done", "item": item, **at}
        yield from (
            {k: v for k, v in e.items() if k != "item_id"} if "item" in e else e for e in (added, *pieces, done)
        )
    if response["status"] != "in_progress":
        yield {"type": f"response.{response['status']}", "response": response, "sequence_number": 9}


# OpenAI, Chat Completions


def chat_dict(text: str, asked: list[Asked], stop: str | None) -> Response:
    message: Response = {"role": "assistant", "content": text or None, "refusal": None}
    if asked:
        message["tool_calls"] = _function_calls(asked)
    reasons = {"done": "stop", "calls": "tool_calls", "cut": "length", "refused": "content_filter", None: None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": reasons[stop], "logprobs": None}],
        "usage": CHAT_USAGE,
    }


def chat_events(response: Response, cut: Cut = whole) -> Iterator[Response]:
    choice = response["choices"][0]
    base = {"id": response["id"], "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def chunk(delta: Response, reason: str | None = None) -> Response:
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    yield chunk({"role": "assistant", "content": None, "refusal": None})
    for piece in cut(choice["message"]["content"]) if choice["message"]["content"] else ():
        yield chunk({"content": piece})
    for index, call in enumerate(choice["message"].get("tool_calls", ())):
        kind, key = ("custom", "input") if call["type"] == "custom" else ("function", "arguments")
        yield chunk({"tool_calls": [{**call, "index": index, kind: {**call[kind], key: ""}}]})
        for piece in cut(call[kind][key]):
            yield chunk({"tool_calls": [{"index": index, kind: {key: piece}}]})
    if choice["finish_reason"]:
        yield chunk({}, choice["finish_reason"])
        yield {**base, "choices": [], "usage": response["usage"]}


# Gemini, generateContent


def gemini_dict(text: str, asked: list[Asked], stop: str | None) -> Response:
    parts: list[Response] = [{"text": text}] if text else []
    for id, name, arguments in asked:
        parts.append({"functionCall": {"id": id, "name": name, "args": arguments}})
    reasons = {"done": "STOP", "calls": "STOP", "cut": "MAX_TOKENS", "refused": "SAFETY", None: None}
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": reasons[stop], "index": 0}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    return {"responseId": "resp_1", "modelVersion": "m", "candidates": [candidate], "usageMetadata": usage}


def gemini_events(response: Response, cut: Cut = whole) -> Iterator[Response]:
    """Texts in pieces and every other part whole; the reason comes with the last chunk."""
    head = {key: item for key, item in response.items() if key != "candidates"}
    candidate = response["candidates"][0]
    parts: list[Response] = []
    for part in candidate["content"]["parts"]:
        parts += [{**part, "text": piece} for piece in cut(part["text"])] if "text" in part else [part]
    for part in parts:
        yield {**head, "candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]}
    if candidate["finishReason"]:
        yield {**head, "candidates": [{"finishReason": candidate["finishReason"], "index": 0}]}


# Gemini, Interactions


def interaction_dict(text: str, asked: list[Asked], stop: str | None) -> Response:
    steps: list[Response] = []
    if text:
        steps.append({"type": "model_output", "content": [{"type": "text", "text": text}]})
    for id, name, arguments in asked:
        steps.append({"type": "function_call", "id": id, "name": name, "arguments": arguments})
    status = {"done": "completed", "calls": "requires_action", "cut": "incomplete", None: "in_progress"}[stop]
    usage = {"total_input_tokens": 10, "total_output_tokens": 5, "total_tokens": 15}
    head = {"id": "int_1", "status": status, "model": "m", "created": "2026-11-20T00:00:00Z", "usage": usage}
    return {**head, "steps": steps}


def interaction_events(response: Response, cut: Cut = whole) -> Iterator[Response]:
    head = {key: item for key, item in response.items() if key != "steps"}
    yield {"event_type": "interaction.created", "interaction": {**head, "status": "in_progress"}}
    for index, step in enumerate(response["steps"]):
        start, deltas = dict(step), []
        if step["type"] == "function_call":
            start["arguments"] = {}
            deltas = [{"type": "arguments_delta", "arguments": piece} for piece in cut(_text(step["arguments"]))]
        elif step["type"] == "model_output":
            del start["content"]
            deltas = [{"type": "text", "text": piece} for item in step["content"] for piece in cut(item["text"])]
        elif step["type"] == "thought":
            start = {"type": "thought"}
            deltas = [{"type": "thought_summary", "content": item} for item in step.get("summary", ())]
            deltas.append({"type": "thought_signature", "signature": step["signature"]})
        yield {"event_type": "step.start", "index": index, "step": start}
        yield from ({"event_type": "step.delta", "index": index, "delta": delta} for delta in deltas)
        yield {"event_type": "step.stop", "index": index}
    if response["status"] != "in_progress":
        yield {"event_type": "interaction.status_update", "interaction_id": head["id"], "status": head["status"]}
        yield {"event_type": "interaction.completed", "interaction": head}


# Bedrock


def bedrock_dict(text: str, asked: list[Asked], stop: str | None) -> Response:
    content: list[Response] = [{"text": text}] if text else []
    for id, name, arguments in asked:
        content.append({"toolUse": {"toolUseId": id, "name": name, "input": arguments}})
    reasons = {"done": "end_turn", "calls": "tool_use", "cut": "max_tokens", None: None}
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": "guardrail_intervened" if stop == "refused" else reasons[stop],
        "usage": {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15},
        "metrics": {"latencyMs": 1},
    }


def bedrock_events(response: Response, cut: Cut = whole) -> Iterator[Response]:
    yield {"messageStart": {"role": "assistant"}}
    for index, block in enumerate(response["output"]["message"]["content"]):
        deltas: list[Response] = []
        if "toolUse" in block:
            start = {key: item for key, item in block["toolUse"].items() if key != "input"}
            yield {"contentBlockStart": {"contentBlockIndex": index, "start": {"toolUse": start}}}
            deltas = [{"toolUse": {"input": piece}} for piece in cut(_text(block["toolUse"]["input"]))]
        elif "text" in block:  # a text has no start
            deltas = [{"text": piece} for piece in cut(block["text"])]
        elif "reasoningText" in block["reasoningContent"]:
            thought = block["reasoningContent"]["reasoningText"]
            deltas = [{"reasoningContent": {"text": piece}} for piece in cut(thought["text"])]
            deltas += [{"reasoningContent": {"signature": thought["signature"]}}]
        else:
            deltas = [{"reasoningContent": block["reasoningContent"]}]
        for delta in deltas:
            yield {"contentBlockDelta": {"contentBlockIndex": index, "delta": delta}}
        yield {"contentBlockStop": {"contentBlockIndex": index}}
    if response["stopReason"]:
        yield {"messageStop": {"stopReason": response["stopReason"]}}
        yield {"metadata": {key: response[key] for key in ("usage", "metrics")}}


# Mistral


def mistral_dict(text: str, asked: list[Asked], stop: str | None) -> Response:
    message: Response = {"role": "assistant", "content": text}
    if asked:
        message["tool_calls"] = _function_calls(asked)
    reasons = {"done": "stop", "calls": "tool_calls", "cut": "length", None: None}
    return {
        "id": "cmpl_1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "usage": CHAT_USAGE,
        "choices": [{"index": 0, "message": message, "finish_reason": reasons[stop]}],
    }


def mistral_events(response: Response, cut: Cut = whole) -> Iterator[Response]:
    """A call comes whole, as this API sends it, or in the pieces that `cut` makes."""
    choice = response["choices"][0]
    base = {"id": response["id"], "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def chunk(delta: Response, reason: str | None = None) -> Response:
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    yield chunk({"role": "assistant", "content": ""})
    content = choice["message"]["content"]
    for piece in cut(content) if isinstance(content, str) else [[item] for item in content]:
        yield chunk({"content": piece})
    for index, call in enumerate(choice["message"].get("tool_calls", ())):
        first, *others = cut(call["function"]["arguments"]) or [""]
        yield chunk({"tool_calls": [{**call, "index": index, "function": {**call["function"], "arguments": first}}]})
        for piece in others:
            yield chunk({"tool_calls": [{"index": index, "function": {"name": "", "arguments": piece}}]})
    if choice["finish_reason"]:
        yield chunk({"content": ""}, choice["finish_reason"]) | {"usage": response["usage"]}


# Cohere


def cohere_dict(text: str, asked: list[Asked], stop: str | None) -> Response:
    message: Response = {"role": "assistant"}
    if text and asked:
        message["tool_plan"] = text
    elif text:
        message["content"] = [{"type": "text", "text": text}]
    if asked:
        message["tool_calls"] = _function_calls(asked)
    reasons = {"done": "COMPLETE", "calls": "TOOL_CALL", "cut": "MAX_TOKENS", None: None}
    return {"id": "c_1", "finish_reason": reasons[stop], "message": message, "usage": {"tokens": USAGE}}


def cohere_events(response: Response, cut: Cut = whole) -> Iterator[Response]:
    message = response["message"]

    def event(kind: str, index: int | None = None, **inner: Any) -> Response:
        at = {} if index is None else {"index": index}
        return {"type": kind, **at, **({"delta": {"message": inner}} if inner else {})}

    yield {"type": "message-start", "id": response["id"], "delta": {"message": {"role": "assistant"}}}
    for piece in cut(message["tool_plan"]) if "tool_plan" in message else ():
        yield event("tool-plan-delta", tool_plan=piece)
    for index, item in enumerate(message.get("content", ())):
        field = item["type"]
        yield event("content-start", index, content={"type": field, field: ""})
        for piece in cut(item[field]):
            yield event("content-delta", index, content={field: piece})
        yield event("content-end", index)
    for index, call in enumerate(message.get("tool_calls", ())):
        yield event("tool-call-start", index, tool_calls={**call, "function": {**call["function"], "arguments": ""}})
        for piece in cut(call["function"]["arguments"]):
            yield event("tool-call-delta", index, tool_calls={"function": {"arguments": piece}})
        yield event("tool-call-end", index)
    if response["finish_reason"]:
        yield {"type": "message-end", "delta": {"finish_reason": response["finish_reason"], "usage": response["usage"]}}


# Ollama


def ollama_dict(text: str, asked: list[Asked], stop: str | None) -> Response:
    """Without ids, as this API has none."""
    message: Response = {"role": "assistant", "content": text}
    if asked:
        message["tool_calls"] = [{"function": {"name": name, "arguments": arguments}} for _, name, arguments in asked]
    response = {"model": "m", "created_at": "2026-11-20T00:00:00.000000001Z", "message": message}
    if stop is None:
        return {**response, "done": False}
    return {
        **response,
        "done": True,
        "done_reason": "length" if stop == "cut" else "stop",
        "prompt_eval_count": 10,
        "eval_count": 5,
    }


def ollama_events(response: Response, cut: Cut = whole) -> Iterator[Response]:
    head = {key: response[key] for key in ("model", "created_at")}
    message = response["message"]
    for key in ("thinking", "content"):
        for piece in cut(message[key]) if message.get(key) else ():
            yield {**head, "message": {"role": "assistant", "content": "", key: piece}, "done": False}
    for call in message.get("tool_calls", ()):
        yield {**head, "message": {"role": "assistant", "content": "", "tool_calls": [call]}, "done": False}
    if response["done"]:
        end = {key: item for key, item in response.items() if key not in ("message", *head)}
        yield {**head, "message": {"role": "assistant", "content": ""}, **end}


# One API


@dataclass(frozen=True)
class Api:
    """One API: its module, how it writes a response and streams it, and how its SDK reads both."""

    module: ModuleType
    write: Callable[[str, list[Asked], str | None], Response]
    """Writes a response with a text, calls, and an end: "done", "calls", "cut", "refused" or None."""
    events: Callable[..., Iterator[Response]]
    sdk: Callable[[Response], Any]
    sdk_event: Callable[[Response], Any]
    options: dict[str, Any] = field(default_factory=dict)
    """The options of `tools` and `tool_choice`."""
    data: Any = None
    """The `data` of an ordinary call."""

    @property
    def call_ids(self) -> bool:
        """Whether calls have ids on the wire."""
        return self.module is not ollama

    @property
    def text_arguments(self) -> bool:
        """Whether arguments are text in a response that was not streamed."""
        return self.module in (openai_responses, openai_chat, mistral, cohere)

    @property
    def strict(self) -> bool:
        """Whether single tools can be strict."""
        return self.module in (anthropic, openai_responses, openai_chat, bedrock, mistral)

    @property
    def in_one(self) -> bool:
        """Whether all results share one message."""
        return self.write in (anthropic_dict, bedrock_dict, gemini_dict)

    def wire_id(self, id: str) -> str:
        """Return a call's id as `turn` and `results` write it."""
        return getattr(self.module, "wire_id", str)(id)

    def feed(self, events: Any, form: str = "dict") -> Any:
        """Return a stream that was fed `events`, as dicts or as the SDK's objects."""
        stream = self.module.Stream()
        for event in events:
            stream.feed(self.sdk_event(event) if form == "sdk" else event)
        return stream

    def in_form(self, response: Response, form: str) -> Any:
        return self.sdk(response) if form == "sdk" else response

    def read(self, response: Response, way: str, cut: Cut = whole) -> tuple[list[ToolCall], list[Response], str]:
        """Return the calls, the turn and the stop of a response, read in one of the `WAYS`."""
        if "stream" in way:
            stream = self.feed(self.events(response, cut), "sdk" if "sdk" in way else "dict")
            return stream.calls(), stream.turn(), stream.stop
        given = self.in_form(response, way)
        return self.module.calls(given), self.module.turn(given), self.module.stop(given)

    def definitions(self, toolset: Any, **more: Any) -> list[Response]:
        """The tools' definitions, without what stands round or between them."""
        written = self.module.tools(toolset, **self.options, **more) or []
        if isinstance(written, dict):
            written = [entry["toolSpec"] for entry in written["tools"] if "toolSpec" in entry]
        if written and "functionDeclarations" in written[0]:
            written = written[0]["functionDeclarations"]
        return [item.get("function", item) for item in written]

    def ids(self, turn: list[Response]) -> list[str]:
        """The ids of the calls in an assistant's turn."""
        found = []
        for item in turn:
            if item.get("type") == "function_call":
                found.append(item.get("call_id") or item["id"])
            found += [call["id"] for call in item.get("tool_calls", ()) if "id" in call]
            parts = [part["functionCall"] for part in item.get("parts", ()) if "functionCall" in part]
            found += [call["id"] for call in parts if isinstance(call, dict)]
            for block in item["content"] if self.module in (anthropic, bedrock) else ():
                found += [block["id"]] if block.get("type") == "tool_use" else []
                found += [block["toolUse"]["toolUseId"]] if isinstance(block.get("toolUse"), dict) else []
        return found

    def answers(self, messages: list[Response]) -> list[tuple[str, str]]:
        """The ids (Ollama: the names) that are answered, each with its text."""
        found = []
        for message in messages:
            for part in message.get("parts", ()):
                said = part["functionResponse"]["response"]
                shown = said.get("error", said.get("output"))
                found.append((part["functionResponse"]["id"], shown if isinstance(shown, str) else json.dumps(shown)))
            if str(message.get("type")).endswith("call_output"):
                found.append((message["call_id"], message["output"]))
            elif message.get("type") == "function_result":
                found.append((message["call_id"], message["result"]))
            elif message.get("role") == "tool":
                content = message["content"]
                texts = [content] if isinstance(content, str) else [_shown(block) for block in content]
                found.append((message.get("tool_call_id", message.get("tool_name")), "\n".join(texts)))
            elif self.module is anthropic:
                found += [(b["tool_use_id"], "".join(c["text"] for c in b["content"])) for b in message["content"]]
            elif self.module is bedrock:
                results = [block["toolResult"] for block in message["content"]]
                found += [(one["toolUseId"], "\n".join(map(_shown, one["content"]))) for one in results]
        return found


def _shown(block: Response) -> str:
    if "json" in block:
        return json.dumps(block["json"])
    return "".join(block["document"]["data"].values()) if "document" in block else block["text"]


def _anthropic_event(event: Response) -> Any:
    known = event["type"] != "ping"
    return anthropic_models.construct_type(type_=RawMessageStreamEvent, value=event) if known else event


def _openai_event(kind: Any) -> Callable[[Response], Any]:
    """How the SDK makes an object of an event: it validates nothing, and keeps what it does not know."""
    return lambda event: openai_models.construct_type(type_=kind, value=event)


def _mistral_event(event: Response) -> Any:
    return CompletionEvent.model_validate({"data": event})


def _cohere(kind: Any) -> Callable[[Response], Any]:
    return lambda value: construct_type(type_=kind, object_=value)


_GENERATED = GenerateContentResponse.model_validate

_RESPONSES_EVENT, _CHAT_EVENT = _openai_event(ResponseStreamEvent), _openai_event(ChatCompletionChunk)

ALL = {
    "anthropic": Api(anthropic, anthropic_dict, anthropic_events, Message.model_validate, _anthropic_event),
    "openai_responses": Api(
        openai_responses, responses_dict, responses_events, OpenAIResponse.model_validate, _RESPONSES_EVENT
    ),
    "openai_chat": Api(openai_chat, chat_dict, chat_events, ChatCompletion.model_validate, _CHAT_EVENT),
    "gemini": Api(gemini, gemini_dict, gemini_events, _GENERATED, _GENERATED),
    "interactions": Api(
        gemini,
        interaction_dict,
        interaction_events,
        Interaction.model_validate,
        TypeAdapter(InteractionSSEEvent).validate_python,
        options={"api": "interactions"},
        data={"type": "function_call"},
    ),
    "bedrock": Api(bedrock, bedrock_dict, bedrock_events, dict, dict),
    "mistral": Api(mistral, mistral_dict, mistral_events, ChatCompletionResponse.model_validate, _mistral_event),
    "cohere": Api(cohere, cohere_dict, cohere_events, _cohere(V2ChatResponse), _cohere(V2ChatStreamResponse)),
    "ollama": Api(ollama, ollama_dict, ollama_events, ChatResponse.model_validate, ChatResponse.model_validate),
}
WITH_IDS = [name for name, api in ALL.items() if api.call_ids]


# What tests compare


def result(call: ToolCall, output: Any = None, **more: Any) -> ToolResult:
    return ToolResult(output, call=call, tool_name=call.name, **more)


def fields_of(calls: list[ToolCall]) -> list[Any]:
    return [(call.id, call.name, dict(call.arguments), call.problem, call.data) for call in calls]


def dicts_in(value: Any) -> Iterator[Response]:
    """Every dict in `value`."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from dicts_in(item)


def broken_at_each_place(value: Any, junk: Any) -> Iterator[Any]:
    """Copies of `value`, each with `junk` at another place."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        for other in [junk, *broken_at_each_place(item, junk)]:
            yield {**value, key: other} if isinstance(value, dict) else [*value[:key], other, *value[key + 1 :]]


def encode(value: Any) -> str:
    """Return `value` as JSON, which must be UTF-8."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode().decode()


def with_index(event: Any, name: str, index: Any) -> Any:
    """The event with `index` under each key of this name."""
    if isinstance(event, list):
        return [with_index(item, name, index) for item in event]
    if not isinstance(event, dict):
        return event
    return {key: index if key == name else with_index(value, name, index) for key, value in event.items()}
