"""The scripted model says what its script says, in OpenAI's chat form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cast import add
from ferrule import Runner, Toolset
from ferrule.errors import DefinitionError
from ferrule.loop import run
from ferrule.models import Reply, Scripted, Step
from ferrule.values.call import ToolCall

NO_TOOLS = Toolset([])


async def ask(model: Scripted, messages: list[dict[str, Any]] | None = None) -> Reply:
    return await model(messages or [], NO_TOOLS)


async def test_a_step_is_a_text_a_function_or_a_reply() -> None:
    reply = await ask(Scripted(["Hello."]))
    assert (reply.text, reply.stop, list(reply.calls)) == ("Hello.", "end", [])
    assert reply.messages == [{"role": "assistant", "content": "Hello."}]
    model = Scripted([lambda messages: f"You said {messages[-1]['content']}."])
    assert (await ask(model, [{"role": "user", "content": "hi"}])).text == "You said hi."
    whole = Reply("", stop="pause", usage={"input_tokens": 2})
    assert await ask(Scripted([whole])) is whole


async def test_calls_come_with_ids_that_are_unique() -> None:
    model = Scripted([[("add", {"a": 1}), ("add", {"a": 2})], [("add", None)]])
    calls = [*(await ask(model)).calls, *(await ask(model)).calls]
    assert [(call.id, call.raw) for call in calls] == [("call_1", {"a": 1}), ("call_2", {"a": 2}), ("call_3", None)]
    calls = (await ask(Scripted([[ToolCall("call_2", "add"), ("add", {}), ("add", {})]]))).calls
    assert calls[0].id == "call_2" and len({call.id for call in calls}) == 3


async def test_a_text_may_go_before_the_calls() -> None:
    reply = await ask(Scripted([("Let me see.", [("add", {"a": 1})])]))
    assert (reply.text, reply.stop) == ("Let me see.", "calls")
    (message,) = reply.messages
    assert message["content"] == "Let me see."
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": 1}


async def test_running_out_of_steps_says_so() -> None:
    model = Scripted(["Hello."])
    await ask(model)
    with pytest.raises(DefinitionError, match=r"1 step, .*'more'"):
        await ask(model, [{"role": "user", "content": "more"}])


@pytest.mark.parametrize("step", [3, ("add", {"a": 1})])
async def test_a_step_of_another_kind_is_refused(step: Step) -> None:
    with pytest.raises(DefinitionError, match=r"a step is .* a list of calls, such as \[\('add', "):
        await ask(Scripted([step]))


@pytest.mark.parametrize("call", ["add", (3, {}), ("add", {}, 3)])
async def test_a_call_of_a_step_of_another_kind_is_refused(call: Any) -> None:
    with pytest.raises(DefinitionError, match=r"a call of a step is .* \(name, arguments\), such as \('add', "):
        await ask(Scripted([[call]]))


# -- what it was sent -------------------------------------------------------------------------------------------------


async def test_each_request_is_kept_as_it_was_sent() -> None:
    model, runner = Scripted([[("add", {"a": 1, "b": 2})], "Three."]), Runner([add])
    await run(model, model.user("Add one and two."), runner)
    first, second = model.requests
    assert first.messages == [{"role": "user", "content": "Add one and two."}]
    assert [message["role"] for message in second.messages] == ["user", "assistant", "tool"]
    assert second.messages[-1]["content"] == "3"
    assert first.tools is second.tools is runner.tools and not first.state


# -- steps that are left over -----------------------------------------------------------------------------------------


async def test_a_step_that_is_left_over_is_an_error_that_names_it() -> None:
    model = Scripted(["Hello.", [("add", {"a": 1})], "Bye."])
    await ask(model)
    with pytest.raises(AssertionError) as caught:
        model.assert_done()
    left = "2 of 3 steps left over, the model was asked 1 time; the next is [('add', {'a': 1})]"
    assert str(caught.value) == left
    with pytest.raises(AssertionError) as caught:
        Scripted(["x" * 5000]).assert_done()
    assert len(str(caught.value)) < 400


async def test_a_model_that_was_asked_too_often_is_not_done() -> None:
    model = Scripted(["Hello."])
    await ask(model)
    with pytest.raises(DefinitionError):
        await ask(model)
    with pytest.raises(AssertionError, match="the script has 1 step, and the model was asked 2 times"):
        model.assert_done()


async def test_leaving_with_checks_for_steps_that_are_left_over() -> None:
    with pytest.raises(AssertionError, match="1 of 1 step"):
        with Scripted(["Hello."]):
            pass
    with pytest.raises(AssertionError, match="1 of 1 step"):
        async with Scripted(["Hello."]):
            pass
    async with Scripted(["Hello."]) as model:
        await ask(model)


async def test_steps_left_over_do_not_hide_an_error_of_the_block() -> None:
    async def within() -> None:
        async with Scripted(["Hello."]):
            raise LookupError("in the block")

    with pytest.raises(LookupError):
        await within()
    with pytest.raises(LookupError), Scripted(["Hello."]):
        raise LookupError("in the block")


async def test_a_request_has_the_messages_as_they_were_in_its_turn() -> None:
    model, said = Scripted(["One.", "Two.", "Three."]), [{"role": "user", "content": ["a"]}]
    await ask(model, said)
    said[0]["content"] = ["cut"]
    await ask(model, said)
    await ask(model, [*said, {"role": "user", "content": "b"}])
    said[0]["content"].append("again")
    sent = [[one["content"] for one in request.messages] for request in model.requests]
    assert sent == [[["a"]], [["cut"]], [["cut"], "b"]]
