"""How Gemini, Bedrock, Mistral, Cohere and Ollama write a response and stream it, and how their SDKs read both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from cohere.core.unchecked_base_model import construct_type
from cohere.v2.types.v2chat_response import V2ChatResponse
from cohere.v2.types.v2chat_stream_response import V2ChatStreamResponse
from google.genai._gaos.types.interactions import Interaction, InteractionSSEEvent
from google.genai.types import GenerateContentResponse
from mistralai.client.models import ChatCompletionResponse, CompletionEvent
from ollama import ChatResponse
from pydantic import TypeAdapter

from ferrule.providers import bedrock, cohere, gemini, mistral, ollama

Asked = tuple[str | None, str, Any]
Response = dict[str, Any]
Cut = Callable[[str], list[str]]


def whole(text: str) -> list[str]:
    return [text]


def _text(arguments: Any) -> Any:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


# Gemini, generateContent


def gemini_dict(text: str, asked: list[Asked], stop: str | None) -> Response:
    parts: list[Response] = [{"text": text}] if text else []
    for id, name, arguments in asked:
        parts.append({"functionCall": {"id": id, "name": name, "args": arguments}})
    reasons = {"done": "STOP", "calls": "STOP", "cut": "MAX_TOKENS", "refused": "SAFETY", None: None}
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": reasons[stop], "index": 0}
    return {"responseId": "resp_1", "modelVersion": "m", "candidates": [candidate]}


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
    return {"id": "int_1", "status": status, "model": "m", "created": "2026-11-20T00:00:00Z", "steps": steps}


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
    reasons = {
        "done": "end_turn",
        "calls": "tool_use",
        "cut": "max_tokens",
        "refused": "guardrail_intervened",
        None: None,
    }
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": reasons[stop],
        "usage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7},
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
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": _text(arguments)}}
            for id, name, arguments in asked
        ]
    reasons = {"done": "stop", "calls": "tool_calls", "cut": "length", None: None}
    return {
        "id": "cmpl_1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
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
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": _text(arguments)}}
            for id, name, arguments in asked
        ]
    reasons = {"done": "COMPLETE", "calls": "TOOL_CALL", "cut": "MAX_TOKENS", None: None}
    return {"id": "c_1", "finish_reason": reasons[stop], "message": message}


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
        yield {"type": "message-end", "delta": {"finish_reason": response["finish_reason"], "usage": {"tokens": {}}}}


# Ollama


def ollama_dict(text: str, asked: list[Asked], stop: str | None) -> Response:
    """Without ids, as this API has none."""
    message: Response = {"role": "assistant", "content": text}
    if asked:
        message["tool_calls"] = [{"function": {"name": name, "arguments": arguments}} for _, name, arguments in asked]
    response = {"model": "m", "created_at": "2026-11-20T00:00:00.000000001Z", "message": message}
    if stop is None:
        return {**response, "done": False}
    return {**response, "done": True, "done_reason": "length" if stop == "cut" else "stop", "eval_count": 4}


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


# What the suites ask of an API


def _same(id: str) -> str:
    return id


def _merged(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class More:
    """One API: its module, how it writes a response and streams it, and how its SDK reads both."""

    module: ModuleType
    write: Callable[[str, list[Asked], str | None], Response]
    sdk: Callable[[Response], Any]
    events: Callable[..., Iterator[Response]]
    sdk_event: Callable[[Response], Any]
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of `tools` and `tool_choice`."""
    wire_id: Callable[[str], str] = _same
    """A call's id as it stands in `turn` and in `results`."""
    id_key: str | None = "id"
    """Where a response has its own id; `None`: nowhere."""
    call_ids: bool = True
    """Whether calls have ids on the wire at all."""
    text_arguments: bool = False
    """Whether arguments are text in a response that was not streamed."""
    strict: bool = False
    """Whether single tools can be strict."""
    stops: frozenset[str] = frozenset({"done", "calls", "cut"})
    """The words for `stop` that `write` takes, besides `None`."""
    data: Any = None
    """The `data` of an ordinary call."""
    choices: frozenset[str] = frozenset({"auto", "required", "none", "add"})
    """The choices that the API can say."""

    def fed(self, events: Any, form: str = "dict") -> Any:
        """A stream that was fed `events`, as dicts or as the SDK's objects."""
        stream = self.module.Stream()
        for event in events:
            stream.feed(self.sdk_event(event) if form == "sdk" else event)
        return stream

    def read(self, response: Response, form: str) -> Any:
        return self.sdk(response) if form == "sdk" else response

    def definitions(self, toolset: Any, **more: Any) -> list[Response]:
        """The tools' definitions, without what stands round or between them."""
        written = self.module.tools(toolset, **self.options, **more) or []
        if isinstance(written, dict):
            written = [entry["toolSpec"] for entry in written["tools"] if "toolSpec" in entry]
        if written and "functionDeclarations" in written[0]:
            written = written[0]["functionDeclarations"]
        return [item.get("function", item) for item in written]

    def schema(self, definition: Response) -> Any:
        if "inputSchema" in definition:
            return definition["inputSchema"]["json"]
        return definition.get("parametersJsonSchema", definition.get("parameters"))

    def ids(self, turn: list[Response]) -> list[str]:
        """The ids of the calls in an assistant's turn."""
        found = []
        for item in turn:
            if item.get("type") == "function_call":
                found.append(item["id"])
            found += [call["id"] for call in item.get("tool_calls", ()) if "id" in call]
            parts = [part["functionCall"] for part in item.get("parts", ()) if "functionCall" in part]
            found += [call["id"] for call in parts if isinstance(call, dict)]
            for block in item["content"] if self.module is bedrock else ():
                found += [block["toolUse"]["toolUseId"]] if isinstance(block.get("toolUse"), dict) else []
        return found

    def answers(self, messages: list[Response]) -> list[tuple[str, str]]:
        """The ids answered (Ollama: the names) and the text that answers them."""
        found = []
        for message in messages:
            for part in message.get("parts", ()):
                said = part["functionResponse"]["response"]
                found.append((part["functionResponse"]["id"], _merged(said.get("error", said.get("output")))))
            if message.get("type") == "function_result":
                found.append((message["call_id"], message["result"]))
            elif message.get("role") == "tool":
                content = message["content"]
                texts = [content] if isinstance(content, str) else [_shown(block) for block in content]
                found.append((message.get("tool_call_id", message.get("tool_name")), "\n".join(texts)))
            elif self.module is bedrock:
                for block in message["content"]:
                    result = block["toolResult"]
                    found.append((result["toolUseId"], "\n".join(map(_shown, result["content"]))))
        return found


def _shown(block: Response) -> str:
    if "json" in block:
        return json.dumps(block["json"])
    return "".join(block["document"]["data"].values()) if "document" in block else block["text"]


def _mistral_event(event: Response) -> Any:
    return CompletionEvent.model_validate({"data": event})


def _cohere(kind: Any) -> Callable[[Response], Any]:
    return lambda value: construct_type(type_=kind, object_=value)


_GENERATED = GenerateContentResponse.model_validate
_EVERY_STOP = frozenset({"done", "calls", "cut", "refused"})

MORE = {
    "gemini": More(gemini, gemini_dict, _GENERATED, gemini_events, _GENERATED, id_key="responseId", stops=_EVERY_STOP),
    "interactions": More(
        gemini,
        interaction_dict,
        Interaction.model_validate,
        interaction_events,
        TypeAdapter(InteractionSSEEvent).validate_python,
        options={"api": "interactions"},
        data={"type": "function_call"},
    ),
    "bedrock": More(
        bedrock,
        bedrock_dict,
        dict,
        bedrock_events,
        dict,
        wire_id=bedrock.wire_id,
        strict=True,
        stops=_EVERY_STOP,
        id_key=None,
        choices=frozenset({"auto", "required", "add"}),
    ),
    "mistral": More(
        mistral,
        mistral_dict,
        ChatCompletionResponse.model_validate,
        mistral_events,
        _mistral_event,
        wire_id=mistral.wire_id,
        strict=True,
        text_arguments=True,
    ),
    "cohere": More(
        cohere,
        cohere_dict,
        _cohere(V2ChatResponse),
        cohere_events,
        _cohere(V2ChatStreamResponse),
        text_arguments=True,
        choices=frozenset({"auto", "required", "none"}),
    ),
    "ollama": More(
        ollama,
        ollama_dict,
        ChatResponse.model_validate,
        ollama_events,
        ChatResponse.model_validate,
        id_key="created_at",
        call_ids=False,
        choices=frozenset({"auto"}),
    ),
}
