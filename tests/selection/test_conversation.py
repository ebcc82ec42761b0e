"""What is read from a query: who said what, in the messages of every API, and nothing of what is no message."""

from __future__ import annotations

from typing import Any

import pytest
from google.genai.types import Content
from hypothesis import given
from hypothesis import strategies as st
from tests.providers.apis import ALL

from ferrule import Text, ToolResult
from ferrule.selection._conversation import Conversation, read_conversation

ASKED, PLAN, FOUND = "Refund the order", "I look for the order.", "order 7 is paid"


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


# A user's message where it is not `said("user", ASKED)`.
USERS: dict[str, Any] = {
    "anthropic": {"role": "user", "content": [{"type": "image", "source": {}}, {"type": "text", "text": ASKED}]},
    "openai_responses": {"role": "user", "content": [{"type": "input_text", "text": ASKED}]},
    "gemini": {"role": "user", "parts": [{"text": ASKED}]},
    "interactions": {"type": "user_input", "content": [{"type": "text", "text": ASKED}]},
    "bedrock": {"role": "user", "content": [{"text": ASKED}]},
}


@pytest.mark.parametrize("name", ALL)
def test_messages_of_every_api_are_read(name: str) -> None:
    api = ALL[name]
    response = api.write(PLAN, [("call_1", "find", {"words": "secret"})], "calls")
    (call,) = api.module.calls(response)
    results = api.module.results([ToolResult(FOUND, call=call, content=[Text(FOUND)])])
    user = USERS.get(name, said("user", ASKED))
    messages = [said("system", "Be kind."), user, *api.module.turn(response), *results]
    assert read_conversation(messages) == Conversation(ASKED, "", PLAN, FOUND)


def test_thoughts_are_not_read() -> None:
    thought = {"type": "thinking", "thinking": "A thought.", "signature": "s"}
    of_anthropic = {"role": "assistant", "content": [thought, {"type": "text", "text": PLAN}]}
    parts = [{"text": "A thought.", "thought": True}, {"text": PLAN}]
    of_gemini = Content.model_validate({"role": "model", "parts": parts})
    for turn in (of_anthropic, of_gemini):
        assert read_conversation([said("user", ASKED), turn]).assistant == PLAN


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
