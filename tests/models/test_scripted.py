"""The scripted model says what its script says, in OpenAI's chat form."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ferrule import Runner, Toolset, tool
from ferrule.errors import DefinitionError
from ferrule.loop import LoopResult, Run, run
from ferrule.models import Reply, Scripted, Step
from ferrule.values.call import ToolCall
from ferrule.values.result import ToolResult
from steps import steps

NO_TOOLS = Toolset([])


def ask(model: Scripted, messages: list[dict[str, Any]] | None = None) -> Reply:
    return asyncio.run(model(messages or [], NO_TOOLS))


def test_a_text_ends_the_turn() -> None:
    reply = ask(Scripted(["Hello."]))
    assert (reply.text, reply.stop, list(reply.calls)) == ("Hello.", "end", [])
    assert reply.messages == [{"role": "assistant", "content": "Hello."}]


def test_calls_come_with_ids_that_are_unique() -> None:
    model = Scripted([[("add", {"a": 1}), ("add", {"a": 2})], [("add", None)]])
    calls = [*ask(model).calls, *ask(model).calls]
    assert [(call.id, call.raw) for call in calls] == [("call_1", {"a": 1}), ("call_2", {"a": 2}), ("call_3", None)]


def test_a_call_that_has_an_id_keeps_it_and_no_other_gets_it() -> None:
    calls = ask(Scripted([[ToolCall("call_2", "add"), ("add", {}), ("add", {})]])).calls
    assert calls[0].id == "call_2"
    assert len({call.id for call in calls}) == 3


def test_a_text_may_go_before_the_calls() -> None:
    reply = ask(Scripted([("Let me see.", [("add", {"a": 1})])]))
    assert (reply.text, reply.stop) == ("Let me see.", "calls")
    (message,) = reply.messages
    assert message["content"] == "Let me see."
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": 1}


def test_malformed_arguments_reach_the_call_and_not_the_history() -> None:
    reply = ask(Scripted([[("add", '{"a": ')]]))
    assert reply.calls[0].raw == '{"a": '
    assert reply.messages[0]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_a_step_may_depend_on_the_messages() -> None:
    model = Scripted([lambda messages: f"You said {messages[-1]['content']}."])
    assert ask(model, [{"role": "user", "content": "hi"}]).text == "You said hi."


def test_a_step_may_be_a_whole_reply() -> None:
    whole = Reply("", stop="pause", usage={"input_tokens": 2})
    assert ask(Scripted([whole])) is whole


def test_results_are_messages_that_name_their_calls() -> None:
    model = Scripted([[("add", {})]])
    (call,) = ask(model).calls
    assert model.results([ToolResult(3, call=call)]) == [{"role": "tool", "tool_call_id": "call_1", "content": "3"}]


def test_running_out_of_steps_says_so() -> None:
    model = Scripted(["Hello."])
    ask(model)
    with pytest.raises(DefinitionError, match=r"1 steps.*'more'"):
        ask(model, [{"role": "user", "content": "more"}])


@pytest.mark.parametrize("step", [3, ("add", {"a": 1}), None])
def test_a_step_of_another_kind_is_refused(step: Step) -> None:
    with pytest.raises(DefinitionError, match=r"a step is .* a list of calls, such as \[\('add', "):
        ask(Scripted([step]))


@pytest.mark.parametrize("call", ["add", 3, {"name": "add"}, (3, {}), ("add", {}, 3), ()])
def test_a_call_of_a_step_of_another_kind_is_refused(call: Any) -> None:
    with pytest.raises(DefinitionError, match=r"a call of a step is .* \(name, arguments\), such as \('add', "):
        ask(Scripted([[call]]))


@pytest.mark.parametrize("steps", [5, "Hello.", None])
def test_steps_that_are_no_list_are_refused(steps: Any) -> None:
    with pytest.raises(DefinitionError, match="steps"):
        Scripted(steps)


# -- what it was sent -------------------------------------------------------------------------------------------------


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_each_request_is_kept_as_it_was_sent() -> None:
    model, runner = Scripted([[("add", {"a": 1, "b": 2})], "Three."]), Runner([add])
    asyncio.run(finished(run(model, model.user("Add one and two."), runner)))
    first, second = model.requests
    assert first.messages == [{"role": "user", "content": "Add one and two."}]
    assert [message["role"] for message in second.messages] == ["user", "assistant", "tool"]
    assert second.messages[-1]["content"] == "3"
    assert first.tools is second.tools is runner.tools and not first.state


async def finished(going: Run) -> LoopResult:
    return await going


def test_what_becomes_of_the_messages_later_does_not_change_what_was_kept() -> None:
    model = Scripted(["Hello."])
    messages = [{"role": "user", "content": ["hi"]}]
    ask(model, messages)
    messages[0]["content"].append("again")  # type: ignore[attr-defined]
    messages.append({})
    assert model.requests[0].messages == [{"role": "user", "content": ["hi"]}]


def test_the_state_of_the_turn_before_is_kept_too() -> None:
    model = Scripted([Reply("", stop="pause", state={"container": "c1"}), "Done."])
    assert asyncio.run(finished(run(model, model.user("Go."), Runner([])))).status == "done"
    assert [request.state for request in model.requests] == [{}, {"container": "c1"}]


# -- steps that are left over -----------------------------------------------------------------------------------------


def test_a_step_that_is_left_over_is_an_error_that_names_it() -> None:
    model = Scripted(["Hello.", [("add", {"a": 1})], "Bye."])
    ask(model)
    with pytest.raises(AssertionError) as caught:
        model.assert_done()
    left = "2 of 3 steps are left over, the model was asked 1 times; the next is [('add', {'a': 1})]"
    assert str(caught.value) == left


def test_a_step_of_any_length_is_named_in_short() -> None:
    with pytest.raises(AssertionError) as caught:
        Scripted(["x" * 5000]).assert_done()
    assert len(str(caught.value)) < 400


def test_a_model_that_gave_every_step_is_done() -> None:
    model = Scripted(["Hello."])
    ask(model)
    model.assert_done()
    Scripted([]).assert_done()


def test_a_model_that_was_asked_once_more_is_not_done_although_its_error_was_caught() -> None:
    model = Scripted(["Hello."])
    ask(model)
    with pytest.raises(DefinitionError):
        ask(model)
    with pytest.raises(AssertionError, match="the script has 1 steps, and the model was asked 2 times"):
        model.assert_done()


def test_the_end_of_with_looks_for_steps_that_are_left_over() -> None:
    with pytest.raises(AssertionError, match="1 of 1 steps"):
        with Scripted(["Hello."]):
            pass
    with Scripted(["Hello."]) as model:
        ask(model)


def test_the_end_of_async_with_looks_for_steps_that_are_left_over() -> None:
    async def within(asks: bool) -> None:
        async with Scripted(["Hello."]) as model:
            if asks:
                await model([], NO_TOOLS)

    with pytest.raises(AssertionError, match="1 of 1 steps"):
        asyncio.run(within(False))
    asyncio.run(within(True))


async def test_what_the_block_raised_is_not_hidden_by_steps_that_are_left_over() -> None:
    async def within() -> None:
        async with Scripted(["Hello."]):
            raise LookupError("in the block")

    with pytest.raises(LookupError):
        await within()
    with pytest.raises(LookupError), Scripted(["Hello."]):
        raise LookupError("in the block")


async def test_an_answer_that_was_stopped_is_still_to_be_given() -> None:

    model = Scripted(["Hello."], pause=60)
    asking = asyncio.create_task(model([], NO_TOOLS))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    assert len(model.requests) == 1
    with pytest.raises(AssertionError, match="1 of 1 steps"):
        model.assert_done()


def test_a_turn_is_as_little_work_in_a_long_conversation_as_in_a_short_one() -> None:
    said = [{"role": "user", "content": [{"type": "text", "text": str(number)}]} for number in range(640)]

    def third_turn(length: int) -> int:
        model = Scripted(["One.", "Two.", "Three."])
        ask(model, said[: length - 2])
        ask(model, said[: length - 1])
        return steps(lambda: ask(model, said[:length]))

    assert third_turn(640) - third_turn(10) < 10


def test_a_request_has_the_messages_as_they_were_in_its_turn() -> None:
    model, said = Scripted(["One.", "Two.", "Three."]), [{"role": "user", "content": ["a"]}]
    ask(model, said)
    said[0]["content"] = ["cut"]
    ask(model, said)
    ask(model, [*said, {"role": "user", "content": "b"}])
    assert [[one["content"] for one in request.messages] for request in model.requests] == [
        [["a"]],
        [["cut"]],
        [["cut"], "b"],
    ]
