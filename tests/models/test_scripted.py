"""The scripted model says what its script says, in OpenAI's chat form."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ferrule import Toolset
from ferrule.errors import DefinitionError
from ferrule.models import Reply
from ferrule.models.scripted import Scripted, Step, scripted
from ferrule.values.call import ToolCall
from ferrule.values.result import ToolResult

NO_TOOLS = Toolset([])


def ask(model: Scripted, messages: list[dict[str, Any]] | None = None) -> Reply:
    return asyncio.run(model(messages or [], NO_TOOLS))


def test_a_text_ends_the_turn() -> None:
    reply = ask(scripted(["Hello."]))
    assert (reply.text, reply.stop, list(reply.calls)) == ("Hello.", "end", [])
    assert reply.messages == [{"role": "assistant", "content": "Hello."}]


def test_calls_come_with_ids_that_are_unique() -> None:
    model = scripted([[("add", {"a": 1}), ("add", {"a": 2})], [("add", None)]])
    calls = [*ask(model).calls, *ask(model).calls]
    assert [(call.id, call.raw) for call in calls] == [("call_1", {"a": 1}), ("call_2", {"a": 2}), ("call_3", None)]


def test_a_call_that_has_an_id_keeps_it_and_no_other_gets_it() -> None:
    calls = ask(scripted([[ToolCall("call_2", "add"), ("add", {}), ("add", {})]])).calls
    assert calls[0].id == "call_2"
    assert len({call.id for call in calls}) == 3


def test_a_text_may_go_before_the_calls() -> None:
    reply = ask(scripted([("Let me see.", [("add", {"a": 1})])]))
    assert (reply.text, reply.stop) == ("Let me see.", "calls")
    (message,) = reply.messages
    assert message["content"] == "Let me see."
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": 1}


def test_malformed_arguments_reach_the_call_and_not_the_history() -> None:
    reply = ask(scripted([[("add", '{"a": ')]]))
    assert reply.calls[0].raw == '{"a": '
    assert reply.messages[0]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_a_step_may_depend_on_the_messages() -> None:
    model = scripted([lambda messages: f"You said {messages[-1]['content']}."])
    assert ask(model, [{"role": "user", "content": "hi"}]).text == "You said hi."


def test_a_step_may_be_a_whole_reply() -> None:
    whole = Reply("", stop="pause", usage={"input_tokens": 2})
    assert ask(scripted([whole])) is whole


def test_results_are_messages_that_name_their_calls() -> None:
    model = scripted([[("add", {})]])
    (call,) = ask(model).calls
    assert model.results([ToolResult(3, call=call)]) == [{"role": "tool", "tool_call_id": "call_1", "content": "3"}]


def test_running_out_of_steps_says_so() -> None:
    model = scripted(["Hello."])
    ask(model)
    with pytest.raises(DefinitionError, match=r"1 steps.*'more'"):
        ask(model, [{"role": "user", "content": "more"}])


@pytest.mark.parametrize("step", [3, ("add", {"a": 1}), None])
def test_a_step_of_another_kind_is_refused(step: Step) -> None:
    with pytest.raises(DefinitionError, match="a step is"):
        ask(scripted([step]))


@pytest.mark.parametrize("steps", [5, "Hello.", None])
def test_steps_that_are_no_list_are_refused(steps: Any) -> None:
    with pytest.raises(DefinitionError, match="steps"):
        scripted(steps)
