"""What is read from a query: who said what, in the messages of every API, and nothing of what is no message."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from google.genai.types import Content
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Text, ToolCall, ToolResult
from ferrule.providers import anthropic, bedrock, cohere, gemini, mistral, ollama, openai_chat, openai_responses
from ferrule.selection._conversation import Conversation, read_conversation

ASKED, PLAN, FOUND = "Refund the order", "I look for the order.", "order 7 is paid"
ARGUMENTS = {"words": "secret"}


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def chat(module: ModuleType = openai_chat) -> tuple[Any, Any, ToolCall]:
    asked = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"words": "secret"}'}}
    call = ToolCall("call_1", "find", ARGUMENTS)
    return said("user", ASKED), {"role": "assistant", "content": PLAN, "tool_calls": [asked]}, call


def of_anthropic() -> tuple[Any, Any, ToolCall]:
    asked = {"type": "tool_use", "id": "call_1", "name": "find", "input": ARGUMENTS}
    thought = {"type": "thinking", "thinking": "A thought.", "signature": "s"}
    content = [thought, {"type": "text", "text": PLAN}, asked]
    user = {"role": "user", "content": [{"type": "image", "source": {}}, {"type": "text", "text": ASKED}]}
    return user, {"role": "assistant", "content": content}, ToolCall("call_1", "find", ARGUMENTS)


def of_responses() -> tuple[Any, Any, ToolCall]:
    user = {"role": "user", "content": [{"type": "input_text", "text": ASKED}]}
    content = [{"type": "output_text", "text": PLAN, "annotations": []}]
    plan = {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": content}
    return user, plan, ToolCall("call_1", "find", ARGUMENTS, data={"type": "function_call"})


def of_bedrock() -> tuple[Any, Any, ToolCall]:
    asked = {"toolUse": {"toolUseId": "call_1", "name": "find", "input": ARGUMENTS}}
    user = {"role": "user", "content": [{"text": ASKED}]}
    return user, {"role": "assistant", "content": [{"text": PLAN}, asked]}, ToolCall("call_1", "find", ARGUMENTS)


def of_gemini() -> tuple[Any, Any, ToolCall]:
    parts = [{"text": "A thought.", "thought": True}, {"text": PLAN}, {"functionCall": {"name": "find"}}]
    user = {"role": "user", "parts": [{"text": ASKED}]}
    return user, {"role": "model", "parts": parts}, ToolCall("call_1", "find", ARGUMENTS)


def of_gemini_sdk() -> tuple[Any, Any, ToolCall]:
    user, plan, call = of_gemini()
    return Content.model_validate(user), Content.model_validate(plan), call


def of_interactions() -> tuple[Any, Any, ToolCall]:
    user = {"type": "user_input", "content": [{"type": "text", "text": ASKED}]}
    plan = {"type": "model_output", "content": [{"type": "text", "text": PLAN}]}
    return user, plan, ToolCall("call_1", "find", ARGUMENTS, data={"type": "function_call"})


def of_cohere() -> tuple[Any, Any, ToolCall]:
    user, plan, call = chat()
    plan["tool_plan"] = plan.pop("content")
    return user, plan, call


APIS: dict[str, tuple[ModuleType, tuple[Any, Any, ToolCall]]] = {
    "anthropic": (anthropic, of_anthropic()),
    "openai_responses": (openai_responses, of_responses()),
    "openai_chat": (openai_chat, chat()),
    "gemini": (gemini, of_gemini()),
    "gemini sdk": (gemini, of_gemini_sdk()),
    "interactions": (gemini, of_interactions()),
    "bedrock": (bedrock, of_bedrock()),
    "mistral": (mistral, chat()),
    "cohere": (cohere, of_cohere()),
    "ollama": (ollama, chat()),
}


@pytest.mark.parametrize("name", APIS)
def test_messages_of_every_api_are_read(name: str) -> None:
    module, (user, plan, call) = APIS[name]
    results = module.results([ToolResult(FOUND, call=call, content=[Text(FOUND)])])
    messages = [said("system", "Be kind."), user, plan, *results]
    assert read_conversation(messages) == Conversation(ASKED, "", PLAN, FOUND)


def test_the_last_of_each_is_read() -> None:
    messages = [
        *(said("user", "a"), said("assistant", "b"), said("tool", "c")),
        *(said("user", "d"), said("assistant", "e"), said("tool", "f"), said("tool", "g")),
    ]
    assert read_conversation(messages) == Conversation("d", "a", "e", "g")


def test_only_the_last_result_of_a_message_is_read() -> None:
    results = [{"type": "tool_result", "tool_use_id": id, "content": f"result {id}"} for id in "ab"]
    both = {"role": "user", "content": [*results, {"type": "text", "text": "and this?"}]}
    only = {"role": "user", "content": results[:1]}
    assert read_conversation([said("user", "first"), only]) == Conversation("first", "", "", "result a")
    assert read_conversation([said("user", "first"), both]) == Conversation("and this?", "first", "", "result b")


def test_a_structured_result_gives_only_its_strings() -> None:
    response = {"rows": [{"city": "Oslo", "size": 3}, {"city": "Rome"}]}
    part = {"functionResponse": {"name": "find", "response": response}}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}
    result = {"type": "tool_result", "content": [image, {"type": "text", "text": "a picture"}]}
    reference = {"type": "tool_result", "content": [{"type": "tool_reference", "tool_name": "refund"}]}
    assert read_conversation([{"role": "user", "content": [reference]}]).result == ""
    assert read_conversation([{"role": "user", "parts": [part]}]).result == "Oslo\nRome"
    assert read_conversation([{"role": "user", "content": [result]}]).result == "a picture"


def test_both_ends_of_a_long_text_are_kept() -> None:
    long = f"begun {'x' * 9_000} end"
    last, *others = read_conversation([said(role, long) for role in ("user", "user", "assistant", "tool")])
    assert last.startswith("begun x") and last.endswith("x end") and 3_900 < len(last) <= 4_000
    for text in others:
        assert text.startswith("begun x") and text.endswith("x end") and 1_900 < len(text) <= 2_000


@pytest.mark.parametrize(
    "junk",
    [
        *(None, [], [object()], [{"role": "user"}], [{"role": "critic", "content": "x"}], [said("user", "  ")]),
        [{"role": "user", "content": [None, {"type": ["text"], "text": "x"}, {"toolResult": 7}]}],
    ],
)
def test_other_things_than_messages_are_empty(junk: Any) -> None:
    assert read_conversation(junk) == Conversation("", "", "", "")


WORDS = st.sampled_from(["role", "type", "content", "parts", "text", "user", "tool", "model", "output", "toolResult"])
JUNK = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | WORDS | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=30,
)


@given(JUNK)
def test_no_json_breaks_it(junk: Any) -> None:
    assert all(isinstance(text, str) for text in read_conversation(junk))
