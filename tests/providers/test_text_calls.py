"""Calls that a model wrote into its text: which texts are calls, which are answers, and which calls are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from apis import ADD, ALL
from hypothesis import example, given
from hypothesis import strategies as st

from ferrule import Runner, Toolset, tool
from ferrule.providers import openai_chat
from steps import steps

pytestmark = pytest.mark.slow
READING = pytest.mark.parametrize("name", ["openai_chat", "ollama"])
"""The APIs whose servers leave calls in a text, and whose modules read them."""


@tool(read_only=True)
async def weigh(item: str, digits: int = 0) -> str:
    """Weigh an item."""
    return f"{item}: {12:.{digits}f} oz"


TOOLS = Toolset([weigh])
JSON = '{"name": "weigh", "arguments": {"item": "a"}}'
NAMESPACE = "antml:"


def invoked(prefix: str = "") -> str:
    parameter = f'<{prefix}parameter name="item">a</{prefix}parameter>'
    return f'<{prefix}invoke name="weigh">\n{parameter}\n</{prefix}invoke>'


# Each is a call of `weigh` with {"item": "a"}, and is read.
READABLE = {
    "hermes": f"<tool_call>\n{JSON}\n</tool_call>",
    "qwen": "<tool_call>\n<function=weigh>\n<parameter=item>\na\n</parameter>\n</function>\n</tool_call>",
    "llama": '<function=weigh>{"item": "a"}</function>',
    "granite 3.1": f"<tool_call>[{JSON}]</tool_call>",
    "minimax": f"<minimax:tool_call>\n{invoked()}\n</minimax:tool_call>",
    "minimax 1": f"<tool_calls>\n{JSON}\n</tool_calls>",
    "claude": f"<{NAMESPACE}function_calls>\n{invoked(NAMESPACE)}\n</{NAMESPACE}function_calls>",
    "function_calls": f"<function_calls>\n{invoked()}\n</function_calls>",
    "call": '<tool_call name="weigh">{"item": "a"}</tool_call>',
    "tool_use": '<tool_use>{"name": "weigh", "input": {"item": "a"}}</tool_use>',
    "deepseek 3.2": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weigh">\n'
    '<｜DSML｜parameter name="item" string="true">a</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="digits" string="false">0</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "invoke": invoked(),
    "seed": "<seed:tool_call>\n<function=weigh>\n<parameter=item>a</parameter>\n</function>\n</seed:tool_call>",
}
# Each is one only because `weigh` was offered, and is read at the end of a text.
FENCED = {
    "fence": f"```json\n{JSON}\n```",
    "list": f"```json\n[{JSON}]\n```",
    "bare": JSON,
    "parameters": '{"type": "function", "name": "weigh", "parameters": {"item": "a"}}',
    "tool and args": '{"tool": "weigh", "args": {"item": "a"}}',
    "nested": '{"type": "function", "id": "c", "function": {"name": "weigh", "arguments": "{\\"item\\": \\"a\\"}"}}',
    "tool_use block": '{"type": "tool_use", "id": "toolu_1", "name": "weigh", "input": {"item": "a"}}',
    "fenced tool_use block": f"```json\n{JSON.replace('arguments', 'input')}\n```",
    "tool_calls": f'{{"tool_calls": [{JSON}]}}',
    "message": f'{{"role": "assistant", "content": null, "tool_calls": [{{"id": "c", "function": {JSON}}}]}}',
    "functionCall": '{"functionCall": {"name": "weigh", "args": {"item": "a"}}}',
    "ended": f"{JSON};<|eom_id|>",
    "converse": '{"toolUse": {"toolUseId": "t", "name": "weigh", "input": {"item": "a"}}}',
    "action": '{"action": "weigh", "action_input": {"item": "a"}}',
}
# Each is a call that nobody reads with certainty.
MALFORMED = {
    "deepseek 3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weigh\n```json\n"
    '{"item": "a"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek 3.1": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weigh<｜tool▁sep｜>{"item": "a"}<｜tool▁call▁end｜>',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weigh:0<|tool_call_argument_begin|>"
    '{"item": "a"}<|tool_call_end|><|tool_calls_section_end|>',
    "glm": "<tool_call>weigh\n<arg_key>item</arg_key>\n<arg_value>a</arg_value>\n</tool_call>",
    "mistral": f"[TOOL_CALLS] [{JSON}]",
    "lm studio": f"[TOOL_REQUEST]{JSON}[END_TOOL_REQUEST]",
    "granite 2": f"<|tool_calls|>[{JSON}]",
    "mistral 11": '[TOOL_CALLS]weigh{"item": "a"}',
    "llama 3": f"<|python_tag|>{JSON}",
    "llama built-in": '<|python_tag|>weigh.call(item="a")',
    "llama 4": '<|python_start|>[weigh(item="a")]<|python_end|>',
    "llama 4 with JSON": f"<|python_start|>{JSON}<|python_end|>",
    "granite 3": f"<|tool_call|>[{JSON}]",
    "granite 20b": f"<function_call> {JSON}",
    "phi 4": f"functools[{JSON}]",
    "gemma": '<|tool_call>call:weigh{item:<|"|>a<|"|>}<tool_call|>',
    "lfm": '<|tool_call_start|>[weigh(item="a")]<|tool_call_end|>',
    "command": '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weigh"}\n]<|END_ACTION|>',
    "harmony": '<|channel|>commentary to=functions.weigh <|constrain|>json<|message|>{"item": "a"}<|call|>',
    "harmony, role first": '<|start|>assistant to=functions.weigh<|channel|>commentary json<|message|>{"item": "a"}',
    "harmony without its tokens": 'assistantcommentary to=functions.weigh json{"item": "a"}',
    "not closed": f"<tool_call>{JSON}",
}
CALLS = {**READABLE, **FENCED, **MALFORMED}
ANSWERS = [
    "It weighs 12 oz.",
    f"Hermes models write:\n```\n{READABLE['hermes']}\n```",
    f"In markdown:\n~~~\n{READABLE['minimax']}\n~~~\nThat is all.",
    f"They write this:\n\n    {READABLE['llama']}\n",
    f"Mistral writes `{MALFORMED['mistral 11']}`",
    f"> {READABLE['llama']}",
    f"- Llama: {READABLE['llama']}\n- Mistral: {MALFORMED['mistral']}",
    f"| Llama | {READABLE['llama']} |",
    "They write <tool_call>{…}</tool_call> and then stop.",
    "They write it so: <tool_call>name and arguments</tool_call>",
    "DeepSeek begins its calls with <｜tool▁calls▁begin｜>, and each with <｜tool▁call▁begin｜>.",
    "The token <|python_tag|> comes before code, and <|tool_calls_section_begin|> is Kimi's.",
    "A call in harmony is sent to=functions.NAME in the channel commentary.",
    "<|channel|>final<|message|>It weighs 12 oz.",
    "<ul>\n<function>\n</ul>",
    "if a < b:\n    x[functools] = {}",
    f"<think>I could write\n{READABLE['hermes']}\nbut no.</think>It weighs 12 oz.",
    # JSON that calls nothing that was offered
    '```json\n{"name": "paint", "arguments": {"item": "a"}}\n```',
    '```json\n{"name": "weigh", "unit": "oz"}\n```',
    '{"name": "weigh", "arguments": {"item": "a"}, "result": "12 oz"}',
    '{"name": "weigh", "arguments": "none"}',
    "```json\n[]\n```",
    f"```json\n{JSON}\n```\nThat is what I sent.",
    f"It is called like {JSON}",
    f"````\n```json\n{JSON}\n```\n````",
    f"{JSON}\n{{}}",
    f'{{"plan": [{JSON}]}}',
    f'{{"tool_calls": [{JSON}, {{}}]}}',
    '{"tool_calls": [{"name": "paint", "arguments": {"item": "a"}}]}',
    "<tool_use> holds a call, says the page.",
]


def said(text: str, name: str = "openai_chat", end: str | None = "done") -> Any:
    """A response with this text."""
    return ALL[name].write(text, [], end)


@pytest.mark.parametrize("text", CALLS.values(), ids=list(CALLS))
def test_a_call_in_the_text_is_never_an_answer(text: str) -> None:
    assert openai_chat.stop(said(text), TOOLS) == "malformed" and openai_chat.calls(said(text)) == []


@pytest.mark.parametrize("name", ALL)
def test_every_api_tells_a_call_in_a_text_from_an_answer(name: str) -> None:
    api = ALL[name]
    for text, stop in ((READABLE["hermes"], "malformed"), (FENCED["fence"], "malformed"), (ANSWERS[1], "end")):
        for response in (said(text, name), api.feed(api.events(said(text, name))).partial()):
            assert api.module.stop(response, TOOLS) == stop and api.module.calls(response) == []
            reason = api.module.reason(response, TOOLS)
            assert reason is None if stop == "end" else "wrote a call as text" in reason


@pytest.mark.parametrize("text", ANSWERS)
def test_a_text_that_speaks_of_calls_is_an_answer(text: str) -> None:
    assert openai_chat.stop(said(text), TOOLS) == "end" and openai_chat.reason(said(text), TOOLS) is None
    assert openai_chat.with_text_calls(said(text), TOOLS) == said(text)


MARKUP = {**READABLE, **MALFORMED}
WORDS = st.text("abc \n.,:!äß√", max_size=40)


@given(WORDS, st.sampled_from(list(MARKUP.values())))
@example("Let me see.", MARKUP["hermes"])
def test_a_call_counts_at_the_beginning_of_a_line(before: str, text: str) -> None:
    assert openai_chat.stop(said(f"{before}\n{text}")) == "malformed"


@given(WORDS, WORDS, st.sampled_from(list(MARKUP.values())), st.sampled_from(["```", "~~~", "````xml"]))
@example("", "", '<|tool_calls|>[{"name": "weigh", "arguments": {"item": "a"}}]', "```")
def test_no_call_counts_in_a_fence(before: str, after: str, text: str, fence: str) -> None:
    fenced = f"{before}\n{fence}\n{text.replace('```', '')}\n{fence.rstrip('xml')}\n{after}"
    assert openai_chat.stop(said(fenced), TOOLS) == "end"


ESCAPED = '<tool_call>{"name": "weigh", "arguments": "{\\"item\\": \\"a\\"}"}</tool_call>'
READ = [
    *((f"First.\n{text}\n", "First.") for text in {**READABLE, **FENCED}.values()),
    *((text, "") for text in FENCED.values()),
    (f"<think>Hm.</think>{ESCAPED}", ""),
]


@pytest.mark.parametrize(("text", "left"), READ)
@READING
async def test_a_call_that_can_be_read_with_certainty_is_run(name: str, text: str, left: str) -> None:
    read = ALL[name].module
    response = read.with_text_calls(said(text, name), TOOLS)
    (call,) = read.calls(response)
    assert (read.stop(response), call.problem) == ("calls", None)
    assert read.text(response) == left or "<think>" in text
    assert (await Runner([weigh]).run(call)).output == "a: 12 oz"
    assert not any(mark in json.dumps(read.turn(response)) for mark in ("<function", "<tool_call>"))


@pytest.mark.parametrize("text", MALFORMED.values(), ids=list(MALFORMED))
@READING
def test_a_call_that_cannot_be_read_with_certainty_stays_text(name: str, text: str) -> None:
    assert ALL[name].module.with_text_calls(said(text, name), TOOLS) == said(text, name)


@READING
def test_only_the_call_behind_thoughts_and_code_is_read(name: str) -> None:
    call, other = READABLE["hermes"], READABLE["hermes"].replace('"a"', '"b"')
    text = f"<think>\n{other}\n</think>\nAs in\n```\n{other}\n```\nI call\n{call}"
    (found,) = ALL[name].module.calls(ALL[name].module.with_text_calls(said(text, name)))
    assert found.arguments["item"] == "a"


@READING
def test_a_call_in_a_text_that_was_cut_off_does_not_run(name: str) -> None:
    for end in ("cut", None):
        response = ALL[name].module.with_text_calls(said(READABLE["hermes"], name, end))
        (call,) = ALL[name].module.calls(response)
        assert call.problem and ALL[name].module.stop(response) in {"cut", "other"}


@READING
def test_a_response_without_a_message_has_no_call_in_its_text(name: str) -> None:
    for message in (None, "Hello.", ["x"]):
        response = {"message": message, "choices": [{"message": message}]}
        assert ALL[name].module.with_text_calls(response) == response


def test_text_beside_real_calls_is_text() -> None:
    response = ALL["openai_chat"].write(READABLE["hermes"], [ADD], "calls")
    assert openai_chat.with_text_calls(response) == response
    assert openai_chat.stop(response) == "calls" and len(openai_chat.calls(response)) == 1


OTHER = JSON.replace('"a"', '"b"')
TWO = [
    *(f"{JSON}{between}{OTHER}" for between in ("\n", "; ", ";\n", ",\n", "\n\n", "")),
    f"[{JSON}, {OTHER}]",
    f'{{"tool_calls": [{JSON}, {OTHER}]}}',
    f"```json\n{JSON}\n```\n\n```json\n{OTHER}\n```",
    f"<tool_calls>\n{JSON}\n{OTHER}\n</tool_calls>",
    f"<tool_call>{JSON}</tool_call>\n<tool_call>{OTHER}</tool_call>",
]


@pytest.mark.parametrize("text", TWO)
def test_two_calls_are_two_however_they_are_joined(text: str) -> None:
    response = said(f"I shall.\n{text}")
    assert openai_chat.stop(response, TOOLS) == "malformed"
    found = openai_chat.calls(openai_chat.with_text_calls(response, TOOLS))
    assert [call.arguments["item"] for call in found] == ["a", "b"] and found[0].id != found[1].id


DOUBTFUL = [
    '<invoke name="weigh"><parameter name="item">a</parameter><parameter name="item">b</parameter></invoke>',
    '<invoke name="weigh"><parameter name="item">a</parameter> and more</invoke>',
    f"<function_calls>{invoked()}",
    f"<tool_call>[{JSON}, {{}}]</tool_call>",
    f"{invoked()}\nThen I wait.",
    f"The page says: {invoked()}",
    f"<tool_call>{JSON}\n{{}}</tool_call>",
    "<function=weigh><parameter=item>a</function>",
    f"{READABLE['hermes']}\nThen.\n{READABLE['hermes']}",
]


@pytest.mark.parametrize("text", DOUBTFUL)
def test_a_doubtful_call_runs_nothing_and_is_no_answer(text: str) -> None:
    assert openai_chat.with_text_calls(said(text), TOOLS) == said(text)
    assert openai_chat.stop(said(text), TOOLS) == "malformed"


LONG = {
    "in a line": "x <tool_call>{" * 50_000,
    "fences": "```\n" * 100_000 + "<tool_call>{",
    "harmony": "to=functions." * 50_000,
    "json": "{" * 300_000 + "}" * 300_000,
    "JSON calls": f"{JSON};\n" * 10_000 + "{}",
    "parameters": "<tool_call><function=add>" + "<parameter=a>" * 50_000 + "</function></tool_call>",
}


@pytest.mark.large
@pytest.mark.parametrize("text", LONG.values(), ids=list(LONG))
def test_a_long_text_is_judged_in_few_steps_for_each_mark(text: str) -> None:
    assert steps(lambda: openai_chat.stop(openai_chat.with_text_calls(said(text), TOOLS), TOOLS)) < 30 * 100_000
