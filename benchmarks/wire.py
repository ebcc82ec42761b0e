"""What the wire costs: exporting definitions again, reading a call, running what was read, and a stream's events.

Run: python benchmarks/wire.py
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from measure import Block, measure_medians

from ferrule import Runner, ToolCall, Toolset, tool

TOOLS = 1_000
CHUNKS = 10_000
FRESH = 64
Data = dict[str, Any]


def anthropic(given: Any) -> Data:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "tool_use", "id": "toolu_1", "name": "put", "input": given}],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def anthropic_events(text: str, count: int) -> Iterable[Data]:
    yield {"type": "message_start", "message": anthropic({}) | {"content": [], "stop_reason": None}}
    yield {"type": "content_block_start", "index": 0, "content_block": anthropic({})["content"][0]}
    for _ in range(count):
        delta = {"type": "input_json_delta", "partial_json": text}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": USAGE}
    yield {"type": "message_stop"}


USAGE = {"input_tokens": 1, "output_tokens": 1}


def responses(given: Any) -> Data:
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "put", "arguments": json.dumps(given)}
    base = {"id": "resp_1", "object": "response", "created_at": 1.0, "model": "m", "status": "completed"}
    return {**base, "output": [call], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


def responses_events(text: str, count: int) -> Iterable[Data]:
    item, at = responses({})["output"][0], {"item_id": "fc_1", "output_index": 0, "sequence_number": 1}
    yield {"type": "response.output_item.added", "output_index": 0, "sequence_number": 0, "item": item}
    for _ in range(count):
        yield {"type": "response.function_call_arguments.delta", "delta": text, **at}
    yield {"type": "response.completed", "response": responses({}), "sequence_number": 2}


def chat(given: Any) -> Data:
    call = {"id": "call_1", "type": "function", "function": {"name": "put", "arguments": json.dumps(given)}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def chat_events(text: str, count: int) -> Iterable[Data]:
    def chunk(call: Data | None, reason: str | None = None) -> Data:
        choice = {"index": 0, "delta": {"tool_calls": [call]} if call else {}, "finish_reason": reason}
        return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}

    function = {"name": "put", "arguments": ""}
    yield chunk({"index": 0, "id": "call_1", "type": "function", "function": function})
    for _ in range(count):
        yield chunk({"index": 0, "function": {"arguments": text}})
    yield chunk(None, "tool_calls")


def gemini(given: Any) -> Data:
    content = {"role": "model", "parts": [{"functionCall": {"id": "call_1", "name": "put", "args": given}}]}
    return {"responseId": "r", "candidates": [{"content": content, "finishReason": "STOP"}]}


def gemini_events(text: str, count: int) -> Iterable[Data]:
    for _ in range(count):
        content = {"role": "model", "parts": [{"text": text}]}
        yield {"responseId": "r", "candidates": [{"content": content}]}
    yield gemini({})


def bedrock(given: Any) -> Data:
    block = {"toolUse": {"toolUseId": "call_1", "name": "put", "input": given}}
    return {"output": {"message": {"role": "assistant", "content": [block]}}, "stopReason": "tool_use"}


def bedrock_events(text: str, count: int) -> Iterable[Data]:
    yield {"messageStart": {"role": "assistant"}}
    start = {"toolUse": {"toolUseId": "call_1", "name": "put"}}
    yield {"contentBlockStart": {"start": start, "contentBlockIndex": 0}}
    for _ in range(count):
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": text}}, "contentBlockIndex": 0}}
    yield {"contentBlockStop": {"contentBlockIndex": 0}}
    yield {"messageStop": {"stopReason": "tool_use"}}


def mistral(given: Any) -> Data:
    return chat(given) | {"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}


def mistral_events(text: str, count: int) -> Iterable[Data]:
    for _ in range(count):
        choice: Data = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        yield {"id": "c", "created": 1, "model": "m", "choices": [choice]}
    whole = chat({})["choices"][0]["message"]
    yield {"id": "c", "choices": [{"index": 0, "delta": whole, "finish_reason": "tool_calls"}]}


def cohere(given: Any) -> Data:
    message = chat(given)["choices"][0]["message"]
    return {"id": "c", "finish_reason": "TOOL_CALL", "message": message}


def cohere_events(text: str, count: int) -> Iterable[Data]:
    yield {"type": "message-start", "id": "c", "delta": {"message": {"role": "assistant"}}}
    call = {"id": "call_1", "type": "function", "function": {"name": "put", "arguments": ""}}
    yield {"type": "tool-call-start", "index": 0, "delta": {"message": {"tool_calls": call}}}
    for _ in range(count):
        delta = {"message": {"tool_calls": {"function": {"arguments": text}}}}
        yield {"type": "tool-call-delta", "index": 0, "delta": delta}
    yield {"type": "tool-call-end", "index": 0}
    yield {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL"}}


def ollama(given: Any) -> Data:
    message = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "put", "arguments": given}}]}
    return {"model": "m", "created_at": "2026-11-20T10:11:12Z", "message": message, "done": True, "done_reason": "stop"}


def ollama_events(text: str, count: int) -> Iterable[Data]:
    for _ in range(count):
        yield ollama({}) | {"message": {"role": "assistant", "content": text}, "done": False}
    yield ollama({})


def as_sdk(path: str) -> Callable[[Data], Any] | None:
    """What reads a dict as an official SDK does; nothing where that is not installed."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name).model_validate  # type: ignore[no-any-return]
    except ImportError:
        return None


@dataclass(frozen=True)
class Api:
    write: Callable[[Any], Data]
    events: Callable[[str, int], Iterable[Data]]
    response: str = ""
    fragment: str = ""
    inside: str = ""
    """Where the SDK's event has what came."""

    def forms(self, given: Any) -> dict[str, Any]:
        """A response with one call, as a dict and as the SDK's object."""
        found: dict[str, Any] = {"dict": self.write(given)}
        sdk = as_sdk(self.response) if self.response else None
        return found | ({"SDK": sdk(found["dict"])} if sdk else {})

    def streams(self, count: int) -> dict[str, list[Any]]:
        """A stream's events, as dicts and as the SDK's objects.

        The fragments are a few that come again and again, because a program feeds an event that it has just parsed:
        ten thousand of an SDK's objects are a hundred megabytes, and reading them measures the machine's memory.
        """
        found = list(self.events("abcdefgh", count))
        few = found[2:count][:FRESH]
        sdk = as_sdk(self.fragment) if self.fragment else None
        shown: dict[str, list[Any]] = {"dict": few}
        if sdk:
            shown["SDK"] = [sdk({self.inside: event} if self.inside else event) for event in few]
        return {form: [*found[:2], *(events * count)[: count - 2], *found[count:]] for form, events in shown.items()}


APIS = {
    "anthropic": Api(
        anthropic, anthropic_events, "anthropic.types.Message", "anthropic.types.RawContentBlockDeltaEvent"
    ),
    "openai_responses": Api(
        responses,
        responses_events,
        "openai.types.responses.Response",
        "openai.types.responses.ResponseFunctionCallArgumentsDeltaEvent",
    ),
    "openai_chat": Api(chat, chat_events, "openai.types.chat.ChatCompletion", "openai.types.chat.ChatCompletionChunk"),
    "gemini": Api(
        gemini,
        gemini_events,
        "google.genai.types.GenerateContentResponse",
        "google.genai.types.GenerateContentResponse",
    ),
    "bedrock": Api(bedrock, bedrock_events),
    "mistral": Api(
        mistral,
        mistral_events,
        "mistralai.client.models.ChatCompletionResponse",
        "mistralai.client.models.CompletionEvent",
        "data",
    ),
    "cohere": Api(cohere, cohere_events, "cohere.V2ChatResponse", "cohere.ToolCallDeltaV2ChatStreamResponse"),
    "ollama": Api(ollama, ollama_events, "ollama.ChatResponse", "ollama.ChatResponse"),
}


@tool
async def put(path: str, content: str = "") -> int:
    """Put it there."""
    return len(content)


def best(work: Callable[[], Any], count: int, rounds: int = 9) -> float:
    """The least CPU time of one `work`, in microseconds: what else the machine does is only ever added."""
    found = []
    for _ in range(rounds):
        gc.collect()
        begin = time.process_time()
        for _ in range(count):
            work()
        found.append((time.process_time() - begin) / count * 1e6)
    return min(found)


def export(name: str, module: ModuleType, tools: Toolset) -> None:
    module.tools(tools)
    print(f"  {name:18} {best(lambda: module.tools(tools), 20) / 1000:8.3f} ms")


def reading(name: str, module: ModuleType, api: Api) -> None:
    small, large = {"path": "a"}, {"path": "a", "content": "x" * 1_000_000}
    for given, count, size in ((small, 5_000, "small"), (large, 2_000, "1 MB")):
        for form, response in api.forms(given).items():
            assert module.calls(response)[0].name == "put"
            print(f"  {name:18} {size:6} {form:5} {best(lambda r=response: module.calls(r), count):8.2f} µs")


def runs(call: ToolCall, runner: Runner) -> Block:
    async def block(calls: int) -> None:
        for _ in range(calls):
            await runner.run(call)

    return block


def running(name: str, module: ModuleType, api: Api, runner: Runner) -> None:
    given = {"path": "a", "content": "x" * 100}
    read = module.calls(api.write(given))[0]
    ready = ToolCall("call_1", "put", json.dumps(given) if isinstance(read.raw, str) else dict(given))
    assert asyncio.run(runs_once(read, runner)) == 100
    found = measure_medians({"read": runs(read, runner), "ready": runs(ready, runner)}, calls=4_000, rounds=41)
    percent = (found["read"] / found["ready"] - 1) * 100
    print(f"  {name:18} {found['read']:8.2f} µs, ready {found['ready']:8.2f} µs: {percent:+5.1f} %")


async def runs_once(call: ToolCall, runner: Runner) -> Any:
    return (await runner.run(call)).output


def streaming(name: str, module: ModuleType, api: Api) -> None:
    def fed(events: list[Any]) -> float:
        stream = module.Stream()
        begin = time.process_time()
        for event in events:
            stream.feed(event)
        spent = time.process_time() - begin
        assert stream.calls()
        return spent

    once, twice = api.streams(CHUNKS), api.streams(2 * CHUNKS)
    for form, events in once.items():
        gc.collect()
        # In turns, and the fastest of each: what else the machine does is added to both.
        pairs = [(fed(events), fed(twice[form])) for _ in range(15)]
        first, second = (min(times) for times in zip(*pairs, strict=True))
        each = first / len(events) * 1e6
        print(f"  {name:18} {form:5} {each:6.2f} µs per event, twice the chunks {second / first:4.2f} x")


def there() -> dict[str, ModuleType]:
    """Every provider module there is."""
    found = {}
    for name in APIS:
        try:
            found[name] = importlib.import_module(f"ferrule.providers.{name}")
        except ModuleNotFoundError:
            continue
    return found


if __name__ == "__main__":
    modules = there()
    tools, runner = Toolset([put.replace(name=f"put_{number}") for number in range(TOOLS)]), Runner([put])
    print(f"Python {sys.version.split()[0]}\nexporting {TOOLS} definitions again (asked for: 1 ms)")
    for name, module in modules.items():
        export(name, module, tools)
    print("reading a call (asked for: 3 µs)")
    for name, module in modules.items():
        reading(name, module, APIS[name])
    print("running what was read (asked for: what a ready call costs, ± 3 %)")
    for name, module in modules.items():
        running(name, module, APIS[name], runner)
    print(f"a stream of {CHUNKS} chunks (asked for: 1 µs per event, 2.2 x)")
    for name, module in modules.items():
        streaming(name, module, APIS[name])
