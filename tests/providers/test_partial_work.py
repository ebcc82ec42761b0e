"""What a stream says so far takes no more work because more has come, but for copying it."""

from __future__ import annotations

from typing import Any

import pytest

from ferrule.providers import anthropic, bedrock, openai_chat
from steps import calls, steps

CHAT: dict[str, Any] = {"name": "x", "arguments": ""}
BEGUN: dict[Any, list[Any]] = {
    anthropic: [
        {"type": "message_start", "message": {"id": "m", "content": [], "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "x"}},
    ],
    bedrock: [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockStart": {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": "t", "name": "x"}}}},
    ],
    openai_chat: [{"id": "c", "choices": [{"delta": {"tool_calls": [{"index": 0, "id": "t", "function": CHAT}]}}]}],
}


def continued(module: Any, text: str) -> Any:
    if module is anthropic:
        delta = {"type": "input_json_delta", "partial_json": text}
        return {"type": "content_block_delta", "index": 0, "delta": delta}
    if module is bedrock:
        return {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"toolUse": {"input": text}}}}
    return {"id": "c", "choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}}]}


@pytest.mark.parametrize("module", BEGUN, ids=lambda module: module.__name__.rpartition(".")[2])
def test_arguments_that_are_still_to_end_are_not_parsed_each_time_they_are_shown(module: Any) -> None:
    stream = module.Stream()
    for event in [*BEGUN[module], *(continued(module, text) for text in ['{"a": ["b", ', *['"cdefgh", '] * 100])]:
        stream.feed(event)
    called = calls(stream.partial)
    assert called["parse_json"] == called["from_json"] == 0
    before = steps(stream.partial)
    for _ in range(1_000):
        stream.feed(continued(module, '"cdefgh", '))
    assert steps(stream.partial) <= before
    stream.feed(continued(module, '"x"]} '))
    assert '"x"' in str(stream.partial()).replace("'", '"')
