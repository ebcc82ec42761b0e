"""Questions to a client: who is asked, what it is shown, and that nothing it could change or repeat runs anything."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import mcp_types as wire
import pytest
from connected import LEGACY, MODERN, YES, Person, both_eras, call, client, text
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from ferrule import (
    Decision,
    InputRequired,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ask,
    serve,
    tool,
)
from ferrule.guards import ask_before_changes

KEY = b"k" * 32
ROME, VASE = {"city": "Rome"}, {"name": "vase"}


class Shelf:
    """Tools that ask before they run, and the names that were removed."""

    def __init__(self, **options: Any) -> None:
        self.removed: list[str] = []

        @tool
        async def remove(name: str) -> str:
            self.removed.append(name)
            return f"removed {name}"

        @tool(read_only=True)
        async def look() -> str:
            return "a shelf"

        self.tools: list[Tool] = [remove, look]
        self.runner = Runner(self.tools, guards=[ask_before_changes], **options)

    async def remove(self, era: str, person: Person | None = None, name: str = "vase") -> wire.CallToolResult:
        return await call(self.runner, era, "remove", {"name": name}, person)


def booking(schema: Any) -> Tool:
    @tool
    async def book(city: str, context: ToolContext) -> Any:
        if context.answer is None:
            return InputRequired("Which day?", schema, {"price": 80})
        return f"{city} {json.dumps(dict(context.answer.value))} {context.answer.state['price']}"

    return book


async def book(schema: Any, era: str, person: Person) -> wire.CallToolResult:
    return await call(Runner([booking(schema)]), era, "book", ROME, person)


# -- a yes or no -------------------------------------------------------------------------------------------------------


@both_eras
async def test_a_person_at_the_client_sees_the_call_and_allows_it(era: str) -> None:
    shelf, person = Shelf(), Person(YES)
    assert text(await shelf.remove(era, person)) == "removed vase"
    [asked] = person.asked
    assert shelf.removed == ["vase"] and "remove wants to run" in asked.message and "name = 'vase'" in asked.message
    assert asked.requested_schema["properties"]["approve"]["type"] == "boolean"


@both_eras
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("decline", "declined"),
        ("cancel", "without an answer"),
        ({"approve": False}, "said no"),
        ({}, "said no"),
        ({"approve": "true"}, "said no"),
    ],
)
async def test_any_answer_but_yes_denies(answer: Any, error: str, era: str) -> None:
    shelf = Shelf()
    result = await shelf.remove(era, Person(answer))
    assert result.is_error and error in text(result) and shelf.removed == []


async def refusal(runner: Runner, name: str, arguments: Any = None) -> MCPError:
    """The protocol error of a call by a client that declares nothing."""
    async with client(runner, MODERN) as connected:
        with pytest.raises(MCPError) as refused:
            await connected.call_tool(name, arguments)
    return refused.value


async def test_a_client_of_2026_that_cannot_ask_reads_what_it_has_to_declare() -> None:
    @tool
    async def book(context: ToolContext) -> Any:
        return "booked" if context.answer else InputRequired("Where to?", {"type": "object"})

    @tool
    async def summarize() -> str:
        required = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(wire.MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs sampling.", required)

    shelf = Shelf()
    error = await refusal(shelf.runner, "remove", VASE)
    assert error.data == {"requiredCapabilities": {"elicitation": {"form": {}}}}
    assert "declares no elicitation" in error.message and "Nothing was run" in error.message and shelf.removed == []
    asked = await refusal(Runner([book]), "book")
    own = await refusal(Runner([summarize]), "summarize")
    assert {error.code, asked.code, own.code} == {wire.MISSING_REQUIRED_CLIENT_CAPABILITY}
    assert (own.message, own.data) == ("This tool needs sampling.", {"requiredCapabilities": {"sampling": {}}})
    assert (await call(Runner([summarize]), LEGACY, "summarize")).is_error


@both_eras
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_the_approver_of_the_runner_may_hand_a_question_to_the_client(kind: str, era: str) -> None:
    def plain(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        return call.arguments["name"] == "old" or serve.ask_client(call, decision, context)

    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        answer = plain(call, decision, context)
        return answer if answer is True else await answer

    shelf, person = Shelf(approve=plain if kind == "plain" else approve), Person(YES)
    for name in ("old", "new"):
        assert not (await shelf.remove(era, person, name)).is_error
    assert len(person.asked) == 1 and shelf.removed == ["old", "new"]


def leave_to_the_boss(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
    """Put off what the boss is asked, and ask the client about the rest."""
    return decision if "Boss" in decision.reason else serve.ask_client(call, decision, context)


async def test_a_client_does_not_answer_a_question_that_was_put_off_for_somebody_else() -> None:
    paid: list[bool] = []

    @tool
    async def pay(context: ToolContext) -> Any:
        if context.answer is None:
            colour = InputRequired("Which colour?", {"type": "object", "properties": {"c": {}}})
            assert await context.ask(colour) is None
            return InputRequired("Boss, may it?")
        paid.append(True)
        return "paid"

    person = Person({**YES, "json": "{}"})
    result = await call(Runner([pay], approve=leave_to_the_boss), MODERN, "pay", {}, person)
    assert result.is_error and "waits for input: Boss, may it?" in text(result) and (person.asked, paid) == ([], [])


async def test_outside_a_served_call_ask_client_denies() -> None:
    result = await Shelf(approve=serve.ask_client).runner.run("remove", VASE)
    assert result.status == "denied" and "came from no client" in str(result.error)


@both_eras
async def test_a_client_is_never_asked_for_a_private_value(era: str) -> None:
    @tool(private=["key"])
    async def send(text: str, key: str) -> str:
        return key

    runner = Runner([send], guards=[lambda call, context: ask("which key?", into="key")])
    person = Person({"key": "k"}, YES)
    result = await call(runner, era, "send", {"text": "hi"}, person)
    assert result.is_error and "Ferrule never asks a client" in text(result) and person.asked == []


@both_eras
async def test_the_question_shows_the_preview_hides_bound_values_and_is_bounded(era: str) -> None:
    @tool(preview=lambda arguments: f"would shred {arguments['name']}")
    async def shred(name: str, key: str) -> str:
        return "shredded"

    person = Person(YES)
    runner = Runner([shred.bind(key="sk-4711")], guards=[ask_before_changes])
    assert text(await call(runner, era, "shred", {"name": "a"}, person)) == "shredded"
    assert "sk-4711" not in person.asked[0].message and "name = 'a'" in person.asked[0].message
    assert "would shred a" in person.asked[0].message

    await Shelf().remove(era, person, "begin" + "x" * 50_000 + "end")
    message = person.asked[1].message
    assert len(message) < 10_000 and "'begin" in message and "end'" in message and "not shown" in message


@both_eras
async def test_a_client_is_not_asked_about_a_call_that_cannot_work(era: str) -> None:
    def cannot(arguments: Any) -> str:
        raise ToolError(f"there is no {arguments['name']}")

    @tool(preview=cannot)
    async def shred(name: str) -> str:
        return "shredded"

    person = Person(YES)
    answer = await call(Runner([shred], guards=[ask_before_changes]), era, "shred", {"name": "a"}, person)
    assert text(answer) == "Denied: there is no a. Nothing was run." and person.asked == []


# -- what a tool wants to know -----------------------------------------------------------------------------------------

FLAT = {
    "type": "object",
    "properties": {
        "day": {"type": "string", "format": "date", "pattern": "^2026"},
        "guests": {"type": "integer", "minimum": 1, "multipleOf": 1},
        "late": {"type": "boolean"},
        "colour": {"type": "string", "format": "color"},
    },
    "required": ["day"],
}
NESTED = {"type": "object", "properties": {"days": {"type": "array", "items": {"type": "integer"}}}}


@both_eras
async def test_flat_properties_are_asked_for_as_a_form_of_mcp(era: str) -> None:
    person = Person({"day": "2026-12-24", "guests": 2})
    assert text(await book(FLAT, era, person)) == 'Rome {"day": "2026-12-24", "guests": 2} 80'
    shown = person.asked[0].requested_schema
    assert shown["required"] == ["day"] and shown["properties"] == {
        "day": {"type": "string", "format": "date"},
        "guests": {"type": "integer", "minimum": 1},
        "late": {"type": "boolean"},
        "colour": {"type": "string"},
    }
    wrong = await book(FLAT, era, Person({"day": "1999-12-24"}))
    assert wrong.is_error and "^2026" in text(wrong)  # the whole schema counts


@both_eras
@pytest.mark.parametrize(
    ("answer", "error"),
    [('{"days": [1, 2]}', None), ('{"days": ["x"]}', "integer"), ("[1]", "not a JSON object"), ("{", "not JSON")],
)
async def test_nested_properties_are_asked_for_as_one_text_of_json(answer: str, error: str | None, era: str) -> None:
    person = Person({"json": answer})
    result = await book(NESTED, era, person)
    assert result.is_error is (error is not None) and (error or 'Rome {"days": [1, 2]} 80') in text(result)
    field = person.asked[0].requested_schema["properties"]["json"]
    assert field["type"] == "string" and '"days"' in field["description"]


A = {"properties": {"a": {"type": "string"}}, "required": ["a"]}


@both_eras
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": ["string", "null"]}}},
        {"anyOf": [A, {"required": ["b"]}]},
        {"additionalProperties": {"type": "string"}, "minProperties": 1},
        {"required": ["a"]},
        {"properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"enum": [1, 2]}}}},
    ],
)
async def test_an_answer_that_fits_no_form_is_asked_for_as_json(schema: dict[str, Any], era: str) -> None:
    person = Person({"json": '{"a": "x"}'})
    assert text(await book({"type": "object", **schema}, era, person)) == 'Rome {"a": "x"} 80'
    assert list(person.asked[0].requested_schema["properties"]) == ["json"]


@both_eras
@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"type": "object", "additionalProperties": False}])
async def test_an_answer_without_properties_is_asked_for_as_a_yes(schema: dict[str, Any], era: str) -> None:
    assert text(await book(schema, era, Person(YES))) == "Rome {} 80"


@pytest.mark.parametrize(("era", "answered", "status"), [(MODERN, False, "denied"), (LEGACY, True, "ok")])
async def test_only_a_client_of_2025_is_asked_while_a_handler_runs(era: str, answered: bool, status: str) -> None:
    shelf = Shelf()

    @tool(read_only=True)
    async def book(context: ToolContext) -> str:
        return "nobody answered" if await context.ask(InputRequired("sure?")) is None else "booked"

    @tool(read_only=True)
    async def outer(context: ToolContext) -> str:
        return (await context.run("remove", VASE)).status

    runner = Runner([*shelf.tools, book, outer], guards=[ask_before_changes])
    assert text(await call(runner, era, "book", {}, Person(YES))) == ("booked" if answered else "nobody answered")
    assert text(await call(runner, era, "outer", {}, Person(YES))) == status


async def test_a_client_of_2025_that_does_not_answer_in_time_is_a_no() -> None:
    async def never(context: Any, params: Any) -> wire.ElicitResult:
        await asyncio.Event().wait()
        raise AssertionError

    app = serve.mcp(Shelf().runner, answer_within=0.05)
    async with Client(app.server, mode=LEGACY, elicitation_callback=never) as connected:
        assert "nobody answered within 0.05 s" in text(await connected.call_tool("remove", VASE))


# -- the state that a client of 2026 carries ---------------------------------------------------------------------------

ANSWER = {"question": wire.ElicitResult(action="accept", content=YES)}
Retry = Callable[..., Awaitable[Any]]


async def ask_for_state(connected: Client) -> tuple[str, Retry]:
    """The state of a question, and a function that answers it, perhaps otherwise than it should."""
    first = await connected.session.call_tool("remove", VASE, allow_input_required=True)
    assert isinstance(first, wire.InputRequiredResult) and first.request_state is not None

    async def retry(
        state: str, name: str = "remove", arguments: Any = VASE, answer: Any = ANSWER, by: Client = connected
    ) -> Any:
        return await by.session.call_tool(
            name, arguments, input_responses=answer, request_state=state, allow_input_required=True
        )

    return first.request_state, retry


async def attempt(
    shelf: Shelf, answer: Callable[[str, Retry], Awaitable[Any]], **options: Any
) -> tuple[int, str, list[str]]:
    """Ask, and answer like this: the code of the protocol's error or 0, the text, and what was removed."""
    async with client(shelf.runner, MODERN, Person(YES), **options) as connected:
        try:
            result = await answer(*await ask_for_state(connected))
        except MCPError as error:
            return error.code, error.message, shelf.removed
        return 0, text(result), shelf.removed


REFUSED = (wire.INVALID_PARAMS, "Invalid or expired requestState", [])


@pytest.mark.parametrize("place", [0, 3, 20, -1])
async def test_a_changed_state_runs_nothing(place: int) -> None:
    def change(state: str, retry: Retry) -> Awaitable[Any]:
        letters = list(state)
        letters[place] = "A" if letters[place] != "A" else "B"
        return retry("".join(letters))

    assert await attempt(Shelf(), change) == REFUSED


@pytest.mark.parametrize("other", [{"arguments": {"name": "book"}}, {"name": "look", "arguments": {}}])
async def test_the_state_of_another_call_runs_nothing(other: dict[str, Any]) -> None:
    assert await attempt(Shelf(), lambda state, retry: retry(state, **other)) == REFUSED


async def test_an_expired_state_runs_nothing_and_asking_again_gives_no_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [time.time()]
    monkeypatch.setattr("ferrule.mcp.serve._server.time", SimpleNamespace(time=lambda: now[0]))

    async def answer_late(state: str, retry: Retry) -> Any:
        now[0] += 101
        return await retry(state)

    async def ask_again(state: str, retry: Retry) -> Any:
        now[0] += 99
        state = (await retry(state, answer={})).request_state
        now[0] += 2
        return await retry(state)

    for answer in (answer_late, ask_again):
        assert await attempt(Shelf(), answer, answer_within=100) == REFUSED
        assert await attempt(Shelf(), answer, answer_within=200) == (0, "removed vase", ["vase"])


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_state_that_is_sent_twice_runs_once(at_once: bool) -> None:
    async def send_twice(state: str, retry: Retry) -> Any:
        if at_once:
            first, second = await asyncio.gather(retry(state), retry(state))
            return first if first.is_error else second
        await retry(state)
        return await retry(state)

    code, said, removed = await attempt(Shelf(), send_twice)
    assert code == 0 and "resumed already" in said and removed == ["vase"]


async def test_the_client_cannot_read_the_state_that_it_carries() -> None:
    async with client(Shelf().runner, MODERN, Person(YES)) as connected:
        state, _ = await ask_for_state(connected)
    assert "vase" not in state


@pytest.mark.parametrize("answer", [None, {}, {"other": ANSWER["question"]}])
async def test_without_an_answer_the_question_is_asked_again(answer: Any) -> None:
    shelf = Shelf()
    async with client(shelf.runner, MODERN, Person(YES)) as connected:
        state, retry = await ask_for_state(connected)
        again = await retry(state, answer=answer)
        assert isinstance(again, wire.InputRequiredResult) and shelf.removed == []
        assert text(await retry(again.request_state)) == "removed vase" and shelf.removed == ["vase"]


async def test_an_answer_without_a_question_is_a_new_call_that_asks() -> None:
    shelf = Shelf()
    async with client(shelf.runner, MODERN, Person(YES)) as connected:
        options: Any = {"input_responses": ANSWER, "allow_input_required": True}
        result = await connected.session.call_tool("remove", VASE, **options)
    assert isinstance(result, wire.InputRequiredResult) and shelf.removed == []


async def test_the_answer_to_a_tool_may_come_with_the_call_once_under_the_title_of_its_schema() -> None:
    @tool(read_only=True)
    async def book(context: ToolContext) -> Any:
        days = [] if context.answer is None else [*context.answer.state, context.answer.value["day"]]
        return f"booked {days}" if len(days) == 2 else InputRequired("Which day?", {**FLAT, "title": "when"}, days)

    async with client(Runner([book]), MODERN, Person(YES)) as connected:
        call_tool: Any = connected.session.call_tool
        ahead = {"when": wire.ElicitResult(action="accept", content={"day": "2026-12-24"})}
        answers = {**ahead, "other": wire.ElicitResult(action="decline")}
        asked = await call_tool("book", {}, input_responses=answers, allow_input_required=True)
        assert [*asked.input_requests] == ["when"]
        booked = await call_tool("book", {}, input_responses=ahead, request_state=asked.request_state)
        assert text(booked) == "booked ['2026-12-24', '2026-12-24']"
        wrong = {"when": wire.ElicitResult(action="accept", content={"day": "1999-12-24"})}
        refused = await call_tool("book", {}, input_responses=wrong, allow_input_required=True)
        assert refused.is_error and "^2026" in text(refused)


@pytest.mark.parametrize(
    ("key", "name", "runs"), [(KEY, "shop", True), (b"o" * 32, "shop", False), (KEY, "bank", False)]
)
async def test_another_process_of_the_same_server_goes_on_with_the_same_keys(key: bytes, name: str, runs: bool) -> None:
    here, there = Shelf(resume_key=KEY), Shelf(resume_key=KEY)
    async with (
        client(here.runner, MODERN, Person(YES), state_key=KEY, name="shop") as first,
        client(there.runner, MODERN, Person(YES), state_key=[key, b"x" * 32], name=name) as second,
    ):
        state, retry = await ask_for_state(first)
        with nullcontext() if runs else pytest.raises(MCPError, match="requestState"):
            await retry(state, by=second)
    assert there.removed == (["vase"] if runs else [])


async def test_a_call_that_is_too_large_to_be_carried_is_refused() -> None:
    @tool
    async def book(context: ToolContext) -> Any:
        return InputRequired("sure?", state="x" * 1_100_000)

    shelf = Shelf()
    before = await shelf.remove(MODERN, Person(YES), "x" * 999_500)
    assert before.is_error and "too large to be asked about" in text(before) and shelf.removed == []
    assert text(before).endswith("Nothing was run.")
    after = await call(Runner([book]), MODERN, "book", {}, Person(YES))
    assert after.is_error and text(after).startswith("The call is too large to be asked about")
    assert text(after).endswith("may have happened.")
