"""Programs of a model that call tools as functions."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from cast import Person
from ferrule import (
    Decision,
    DefinitionError,
    Event,
    Media,
    Runner,
    Text,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    allow,
    deny,
    tool,
)
from ferrule.guards import ask_before_changes, flow
from ferrule.journal import memory
from ferrule.middleware import limit_output
from ferrule.selection import search_tool
from ferrule.stores import Artifacts
from ferrule.tools import code
from waits import BOUND

KEY = b"k" * 32
PAID: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def nothing_paid() -> Iterator[None]:
    PAID.clear()
    yield
    PAID.clear()


@tool(read_only=True, open_world=False)
async def price(item: str) -> int:
    """Return the price of an item in euros.

    Args:
        item: Its name.
    """
    if item not in ("tea", "coffee"):
        raise ToolError(f"There is no {item!r}.")
    return {"tea": 4, "coffee": 5}[item]


@tool
async def pay(to: str, euros: int, note: str = "") -> str:
    """Pay somebody."""
    PAID.append((to, euros))
    return f"paid {to} {euros}"


def later(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    return decision


def make_runner(*tools: Tool, approve: Any = later, limits: dict[str, Any] | None = None, **options: Any) -> Runner:
    shop = Runner(tools or [price, pay], guards=[ask_before_changes])
    return Runner([code.tool(shop, **(limits or {}))], approve=approve, resume_key=KEY, **options)


async def run(program: str, *tools: Tool, **options: Any) -> ToolResult:
    return await make_runner(*tools, **{"approve": Person(), **options}).run("run_program", {"program": program})


def sent(result: ToolResult) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(result.record()))
    return copied


# -- programs ----------------------------------------------------------------------------------------------------------


async def test_a_program_calls_tools_as_functions() -> None:
    result = await run("total = sum(price(item=i) for i in ['tea', 'coffee'])\npay(to='ada', euros=total)")
    assert result.output == "paid ada 9"


async def test_printed_text_comes_with_the_result() -> None:
    assert (await run("print('so')\nprice('tea')")).output == {"result": 4, "printed": "so\n"}
    assert (await run("print('so')")).output == "so\n"
    assert "last line" in (await run("x = 1")).text


async def test_positional_arguments_follow_the_stub() -> None:
    assert (await run("pay('ada', 5)")).output == "paid ada 5"
    result = await run("f = eval('pay')\nf('ada', 5, 'x', 'y')")
    assert "pay() takes 3 arguments: pay(to: str, euros: int, note: str = '')" in result.text
    assert "got 'to' twice" in (await run("f = eval('pay')\nf('ada', to='eve')")).text
    assert PAID == [("ada", 5)]


async def test_a_call_can_be_awaited_but_not_gathered() -> None:
    assert (await run("await price('tea')")).output == 4
    result = await run("import asyncio\nawait asyncio.gather(price('tea'), price('tea'))")
    assert "Call the functions directly, or several by at_once" in result.text


async def test_each_inner_call_takes_the_whole_path() -> None:
    events: list[Event] = []
    person = Person()
    runner = make_runner(approve=person, observers=[events.append])
    await runner.run(ToolCall("p", "run_program", {"program": "pay('ada', price('tea'))"}))

    assert [call.name for call in person.questions] == ["pay"]
    inner = [event for event in events if event.call.parent == "p"]
    kinds = ["tool:pre", "tool:decided", "tool:started", "tool:post"]
    assert [event.kind for event in inner if event.call.name == "price"] == kinds
    assert {event.call.id for event in inner} == {"p.1", "p.2"}


async def test_a_failed_call_raises_and_can_be_caught() -> None:
    result = await run("try:\n    price('cake')\nexcept Exception as error:\n    found = str(error)\nfound")
    assert "There is no 'cake'." in result.output

    denied = await run("try:\n    pay('eve', 1)\nexcept PermissionError:\n    found = 'no'\nfound", approve=None)
    assert denied.output == "no" and PAID == []


async def test_a_denied_call_that_is_not_caught_ends_the_program() -> None:
    result = await run("price('tea')\npay('eve', 1)\nprice('tea')", approve=Person(deny("too much")))
    assert result.status == "failed" and result.text.startswith("Line 2, `pay('eve', 1)`: PermissionError: Denied")
    assert result.text.endswith("The program had made these calls: price ×1.")


@pytest.mark.parametrize(
    "program",
    [
        *("open('/etc/passwd').read()", "import os\nos.listdir('/')", "import os\nos.environ['HOME']", "import socket"),
        *("import subprocess", "import ctypes", "import time\ntime.sleep(1)", "import time\ntime.time()"),
        *("import datetime\ndatetime.datetime.now()", "__import__('os').system('true')", "price.__globals__"),
        *("(lambda: 0).__code__", "().__class__.__bases__[0].__subclasses__()", "exec('import socket')"),
    ],
)
async def test_a_program_reaches_nothing_else(program: str) -> None:
    result = await run(program)
    assert result.status == "failed", result.output


async def test_only_the_chosen_tools_can_be_called() -> None:
    result = await run("pay('ada', 1)", limits={"only": "price"})
    assert "`pay` used when not defined" in result.text and PAID == []
    hidden = await run("f = eval('pay')\nf('ada', 1)", limits={"only": ["price"]})
    assert hidden.status == "failed" and PAID == []


@pytest.mark.parametrize("value", ["A()", "print", "deep"])
async def test_an_argument_without_a_json_form_is_refused(value: str) -> None:
    @tool(read_only=True)
    async def show(value: Any) -> str:
        return repr(value)

    program = f"class A: pass\ndeep = []\nfor _ in range(200): deep = [deep]\nshow({value})"
    result = await run(program, show)
    assert "TypeError: an argument is" in result.text and result.executed is False
    assert (await run("show([(1, None), {2}, {'a': True}])", show)).output == "[[1, None], [2], {'a': True}]"


# -- calls at once -----------------------------------------------------------------------------------------------------


async def test_calls_at_once_run_together_and_keep_their_order() -> None:
    together = asyncio.Barrier(3)

    @tool(read_only=True)
    async def meet(number: int) -> int:
        async with asyncio.timeout(BOUND):
            await together.wait()
        return number

    result = await run("at_once([(meet, {'number': n}) for n in range(3)])", meet)
    assert result.output == [0, 1, 2]


async def test_an_error_of_calls_at_once_says_how_many_failed() -> None:
    result = await run("at_once([(price, {'item': i}) for i in ('tea', 'cake', 'soup')])")
    assert "2 of 3 calls failed, the first: There is no 'cake'." in result.text


@pytest.mark.parametrize("calls", ["[price]", "price", "[('nothing', {})]", "[([], {})]", "[(price, 3)]", "[], []"])
async def test_calls_at_once_of_another_form_are_refused(calls: str) -> None:
    result = await run(f"f = eval('at_once')\nf({calls})")
    assert "at_once takes one list of functions and arguments" in result.text


async def test_calls_at_once_wait_and_repeat_nothing() -> None:
    events: list[Event] = []
    calls = "[(price, {'item': 'tea'}), (pay, {'to': 'ada', 'euros': 1}), (pay, {'to': 'eve', 'euros': 2})]"
    result = await make_runner(observers=[events.append]).run("run_program", {"program": f"at_once({calls})"})
    for _ in range(2):
        assert result.status == "suspended"
        result = await make_runner(observers=[events.append]).resume(sent(result), True)

    assert result.output == [4, "paid ada 1", "paid eve 2"] and PAID == [("ada", 1), ("eve", 2)]
    assert [event.call.name for event in events if event.kind == "tool:started"].count("price") == 1


# -- errors ------------------------------------------------------------------------------------------------------------


async def test_a_wrong_call_is_told_before_anything_runs() -> None:
    result = await run("pay('ada', 1)\n\nprise('tea')\npay(too='eve', euros=2)")
    assert PAID == [] and result.executed is False
    assert "Line 3: Name `prise` used when not defined. Did you mean 'price'?" in result.text
    assert "Line 4: Argument `too`" in result.text and "It is pay(to: str, euros: int, note: str = '')" in result.text


async def test_an_error_names_its_line() -> None:
    result = await run("x = 1\n1 / (x - 1)")
    assert "Line 2, `1 / (x - 1)`: ZeroDivisionError: division by zero." in result.text and result.executed is False
    assert "Line 2" in (await run("x = 1\ny = (2 +")).text
    assert "Line 1, `pay('ada', 'x')`: ValueError: Invalid arguments for pay" in (await run("pay('ada', 'x')")).text


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["while True: pass", "try:\n    while True: pass\nexcept BaseException: pass\n1"])
async def test_an_endless_program_is_ended(loop: str) -> None:
    result = await run(f"price('tea')\n{loop}", limits={"seconds": 1})
    assert "computed for more than 1 s" in result.text and "price ×1" in result.text


BOMBS = (
    "'a' * 10**11",
    "10 ** 10 ** 8",
    "[0] * 10**10",
    "x = 'a'\nwhile True: x += x",
)


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_program_has_bounded_memory(bomb: str) -> None:
    result = await run(bomb)
    assert result.status == "failed" and "memory" in result.text


async def test_the_number_of_calls_is_bounded_and_cannot_be_caught() -> None:
    program = "while True:\n    try:\n        price('cake')\n    except BaseException:\n        pass"
    result = await run(program, limits={"calls": 3})
    assert "Line 3: a program makes at most 3 calls." in result.text and "price ×3" in result.text
    result = await run("at_once([(price, {'item': 'tea'})] * 4)", limits={"calls": 3})
    assert "at most 3 calls" in result.text and result.executed is False


@pytest.mark.parametrize("program", ["['x'] * 5000", "print('x' * 5000)", "for i in range(5000): print('x', end='')"])
async def test_only_the_model_reads_less_of_a_large_result(program: str) -> None:
    kept, context = Artifacts(), ToolContext(principal="ada", session="s")
    around = [limit_output(1_000, artifacts=kept)]
    for limits in ({}, {"output": 2_000}):
        runner = make_runner(limits=limits, around=around)
        result = await runner.run("run_program", {"program": program}, context)
        whole = kept.get(result.metadata["artifact"]["id"], context)
        assert whole is not None and whole.text.count("x") == 5_000 == str(result.output).count("x")
        assert len(result.text) <= 1_000
    assert isinstance((await run("['x'] * 5000", limits={"output": 50})).output, list)


async def test_a_guard_that_observes_judges_the_calls_of_a_program() -> None:
    watch = flow(sources={"price": "untrusted"}, sinks={"pay"})
    shop = Runner([price, pay], guards=[watch], observers=[watch])
    runner = Runner([code.tool(shop)], observers=[watch], approve=Person(deny("no")))
    result = await runner.run("run_program", {"program": "pay('ada', price('tea'))"}, session="s")
    assert "Denied: no." in result.text and PAID == []


async def test_a_program_that_prints_too_much_fails() -> None:
    result = await run("for i in range(30): print('x' * 40_000)\n1")
    assert result.status == "failed" and "more than 1,000,000 parts and characters" in result.text


PIXEL = b"\x89PNG\r\n\x1a\n"


@tool(read_only=True)
async def draw() -> ToolResult:
    """Draw a picture."""
    return ToolResult(Media("image", PIXEL, "image/png", name="plot.png"))


async def test_the_model_sees_a_picture_that_a_program_returns() -> None:
    picture = Media("image", PIXEL, "image/png", name="plot.png")
    alone = await run("draw()", draw)
    assert (alone.output, alone.content) == (picture, (picture,))
    beside = await run("print('done')\n{'plots': [draw(), 7]}", draw)
    noted = '{"result": {"plots": ["[image 1, below]", 7]}, "printed": "done\\n"}'
    assert beside.content == (Text(noted), picture)
    assert base64.b64decode(beside.output["result"]["plots"][0]["data"]) == PIXEL


@pytest.mark.parametrize(
    "change", ["'data': 'no base64!'", "'data': 7", "'mime_type': 'x'", "'kind': 'text'", "'more': 1"]
)
async def test_a_dict_that_is_no_picture_stays_a_dict(change: str) -> None:
    result = await run(f"{{**draw(), {change}}}", draw)
    assert isinstance(result.output, dict) and [type(block) for block in result.content] == [Text]


async def test_no_program_lets_an_api_fetch_an_address() -> None:
    result = await run("{**draw(), 'data': None, 'uri': 'https://example.com', 'fetch': True}", draw)
    assert result.content == (Media("image", None, "image/png", "https://example.com", "plot.png"),)


async def test_an_unbounded_number_of_looked_up_names_ends_the_program() -> None:
    result = await run("while True:\n    try:\n        eval('nothing')\n    except NameError:\n        pass")
    assert result.status == "failed"


@pytest.mark.parametrize("value", ["{1, 2}", "(1, 2)", "b'x'", "lambda: 1", "float('nan')", "price", "..."])
async def test_any_value_becomes_json(value: str) -> None:
    result = await run(value)
    assert result.success
    json.dumps(result.record())


async def test_the_deadline_ends_a_program() -> None:
    result = await run("while True: pass", limits={"timeout": 0.2, "seconds": 60})
    assert result.status == "timeout"


# -- suspended programs ------------------------------------------------------------------------------------------------

TWO_PAYMENTS = "total = price('tea')\nprint('a')\nfirst = pay('ada', total)\nprint('b')\n[first, pay('eve', 1)]"


async def test_a_waiting_program_goes_on_elsewhere() -> None:
    events: list[Event] = []
    first = await make_runner().run("run_program", {"program": TWO_PAYMENTS})
    assert first.status == "suspended" and PAID == []
    assert first.pending is not None and "pay(" in first.pending["reason"]

    second = await make_runner(observers=[events.append]).resume(sent(first), True)
    assert second.status == "suspended" and PAID == [("ada", 4)]
    assert "price" not in {event.call.name for event in events}  # it was not run again

    third = await make_runner().resume(sent(second), True)
    assert third.output == {"result": ["paid ada 4", "paid eve 1"], "printed": "a\nb\n"}
    assert PAID == [("ada", 4), ("eve", 1)]


async def test_no_except_of_a_program_catches_the_wait() -> None:
    program = "try:\n    found = await pay('ada', 1)\nexcept BaseException:\n    found = 'no'\nfound"
    first = await make_runner().run("run_program", {"program": program})
    assert first.status == "suspended"
    assert (await make_runner().resume(sent(first), True)).output == "paid ada 1"


async def test_a_person_changes_or_refuses_the_inner_call() -> None:
    first = await make_runner().run("run_program", {"program": "pay('ada', 500)"})
    changed = await make_runner().resume(sent(first), allow(arguments={"to": "ada", "euros": 5, "note": ""}))
    assert changed.output == "paid ada 5"

    first = await make_runner().run("run_program", {"program": "pay('ada', 500)"})
    refused = await make_runner().resume(sent(first), False)
    assert refused.status == "failed" and "PermissionError" in refused.text and PAID == [("ada", 5)]


@settings(max_examples=20, deadline=None)
@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
async def test_a_changed_state_is_never_loaded(place: int, bit: int) -> None:
    record = sent(await make_runner().run("run_program", {"program": "pay('ada', 1)"}))
    dump = bytearray(base64.b64decode(record["pending"]["state"]["program"]))
    dump[place % len(dump)] ^= 1 << bit
    record["pending"]["state"]["program"] = base64.b64encode(bytes(dump)).decode()

    result = await make_runner().resume(record, True)
    assert result.status == "invalid" and PAID == []


@pytest.mark.parametrize(
    "after", ["open('/etc/passwd')", "import datetime\ndatetime.datetime.now()", "while True: pass"]
)
async def test_a_resumed_program_has_the_same_bounds(after: str) -> None:
    limits = {"seconds": 1}
    first = await make_runner(limits=limits).run("run_program", {"program": f"pay('ada', 1)\n{after}"})
    result = await make_runner(limits=limits).resume(sent(first), True)
    assert result.status == "failed" and "pay ×1" in result.text


async def test_a_huge_state_is_refused_before_anybody_is_asked_to_wait() -> None:
    result = await run("x = 'y' * 100_000\npay('ada', 1)", approve=later, limits={"state": 50_000})
    assert result.status == "failed" and PAID == []
    assert "Line 2: the program holds" in result.text and "Keep less in its variables" in result.text


async def test_a_program_is_resumed_once() -> None:
    journal = memory()
    first = await make_runner(journal=journal).run("run_program", {"program": "pay('ada', 1)"}, session="s")
    for _ in range(2):
        result = await make_runner(journal=journal).resume(sent(first), True)
        assert result.output == "paid ada 1" and PAID == [("ada", 1)]
    assert result.metadata["resumed_already"]


SECRET = "tok_1234567890abcdef"


async def test_no_error_of_a_program_shows_a_secret() -> None:
    @tool(read_only=True)
    async def leaks(context: ToolContext) -> str:
        return str(context.secrets["token"])

    result = await run("x = leaks()\nraise ValueError('it is ' + x)", leaks, secrets={"token": SECRET})
    assert result.status == "failed" and SECRET not in result.text and "it is ***" in result.text


# -- secrets -----------------------------------------------------------------------------------------------------------


# -- the definition ----------------------------------------------------------------------------------------------------


class Line(BaseModel):
    item: str
    count: int = 1


async def test_the_description_has_typed_stubs() -> None:
    @tool(name="shop.order-all", read_only=True)
    async def order(lines: list[Line], speed: Literal["slow", "fast"] = "slow", limit: int | None = None) -> Line:
        """Order things.

        Args:
            lines: All of them.
        """
        return lines[0]

    made = code.tool(Runner([price, order]))
    assert "def price(item: str) -> int:" in made.description
    assert '    """Return the price of an item in euros.' in made.description and "item: Its name" in made.description
    parameters = "lines: list[dict[str, Any]], speed: Literal['slow', 'fast'] = 'slow', limit: int | None = None"
    assert f"def shop_order_all({parameters}) -> dict[str, Any]:" in made.description
    assert 'lines: All of them; list[{"item": str, "count"?: int}]' in made.description
    result = await run("shop_order_all([{'item': 'tea'}])['count']", order)
    assert result.output == 1


async def test_a_parameter_that_is_no_identifier_is_given_by_keywords() -> None:
    async def send(payload: dict[str, Any]) -> str:
        return f"{payload['from']} {payload['user-id']}"

    schema = {
        "type": "object",
        "properties": {"from": {"type": "string"}, "user-id": {"type": "integer"}},
        "required": ["from", "user-id"],
    }
    sending = Tool("send", send, read_only=True, input_schema=schema)
    assert "def send(**others: Any)" in code.tool(Runner([sending])).description
    assert (await run("send(**{'from': 'ada', 'user-id': 3})", sending)).output == "ada 3"


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("list", "list(list_(7))"),
        ("at_once", "at_once([(at_once_, {'n': 7})])[0]"),
        ("2nd", "tool_2nd(7)"),
        ("_last", "tool_last(7)"),
    ],
)
async def test_a_name_that_a_program_has_already_is_changed(name: str, program: str) -> None:
    @tool(name=name, read_only=True)
    async def numbers(n: int) -> list[int]:
        return [n]

    assert (await run(program, numbers)).output == [7]


async def test_programs_search_for_functions_that_are_not_described() -> None:
    @tool(read_only=True)
    async def weather(city: str) -> str:
        """Return the weather in a city."""
        return f"sun in {city}"

    many = [price.replace(name=f"price_{number}") for number in range(100)]
    runner = Runner([code.tool(Runner([*many, weather]), tokens=500)])
    (made,) = runner.tools
    assert len(made.description) < 4_000 and "weather" not in made.description and "more functions" in made.description
    found = await runner.run("run_program", {"program": "search_tools('the weather of a city')"})
    assert "def weather(city: str) -> str:" in found.text
    assert (await runner.run("run_program", {"program": "weather('Rome')"})).output == "sun in Rome"


async def test_the_traits_are_those_of_the_tools() -> None:
    reads, changes = code.tool(Runner([price])), code.tool(Runner([price, pay]))
    assert (reads.read_only, reads.destructive, reads.open_world) == (True, False, False)
    assert (changes.read_only, changes.destructive, changes.open_world) == (False, True, True)
    assert changes.recorded


@pytest.mark.parametrize(
    "options", [{"only": "nothing_*"}, {"calls": 0}, {"output": 0}, {"seconds": "5"}, {"calls": None}, {"tokens": None}]
)
def test_a_wrong_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=next(iter(options))):
        code.tool(Runner([price]), **options)


def test_only_a_runner_and_clear_names_are_taken() -> None:
    with pytest.raises(DefinitionError, match="takes a Runner"):
        code.tool([price])  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="would both be a_b"):
        code.tool(Runner([price.replace(name="a.b"), price.replace(name="a-b")]))
    with pytest.raises(DefinitionError, match="no tool of the runner"):
        code.tool(Runner([search_tool([price])]))


@pytest.mark.parametrize(
    ("last", "wrong"),
    [
        ("price(item=Box(many))", "the arguments for price have"),
        ("at_once([(price, {'item': many})])", "the arguments for at_once have"),
        ("search_tools(many)", "the arguments for search_tools have"),
        ("Box(many)", "The result has"),
    ],
)
async def test_a_small_value_that_is_huge_outside_of_its_program_ends_the_program(last: str, wrong: str) -> None:
    box = "from dataclasses import dataclass\n@dataclass\nclass Box:\n    inside: object\n"
    program = f"{box}many = ['x']\nfor _ in range(60):\n    many = [many, many]\n{last}"
    many = [price, *(price.replace(name=f"price_{number}") for number in range(40))]  # not all are described
    async with asyncio.timeout(BOUND):
        result = await Runner([code.tool(Runner(many), tokens=200)]).run("run_program", {"program": program})
    assert result.status == "failed" and f"{wrong} more than 1,000,000 parts" in result.text
