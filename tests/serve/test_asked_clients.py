"""Questions to a client: who is asked, what it is shown, and that nothing it could change or repeat runs anything."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mcp_types as wire
import pytest
from connected import ERAS, Person, call, client, go, text
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage

from ferrule import (
    Decision,
    Event,
    InputRequired,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    ask,
    deny,
    serve,
    tool,
)
from ferrule.guards import ask_before_changes
from ferrule.tools import files

both_eras = pytest.mark.parametrize("era", ERAS)
MODERN = ERAS[0]
YES = {"approve": True}
KEY = b"k" * 32
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
ROME = {"city": "Rome"}
NESTED = {"type": "object", "properties": {"days": {"type": "array", "items": {"type": "integer"}}}}


class Shelf:
    """Tools that ask before they run, and what they have done."""

    def __init__(self, **options: Any) -> None:
        self.removed: list[str] = []

        @tool
        async def remove(name: str) -> str:
            """Remove it."""
            self.removed.append(name)
            return f"removed {name}"

        @tool(read_only=True)
        async def look() -> str:
            """Look."""
            return "a shelf"

        self.tools: list[Tool] = [remove, look]
        self.runner = Runner(self.tools, guards=[ask_before_changes], **options)


def booking(schema: Any) -> Tool:
    @tool
    async def book(city: str, context: ToolContext) -> Any:
        """Book a room."""
        if context.answer is None:
            return InputRequired("Which day?", schema, {"price": 80})
        return f"{city} {json.dumps(dict(context.answer.value))} {context.answer.state['price']}"

    return book


# -- a yes or no -------------------------------------------------------------------------------------------------------


@both_eras
def test_a_person_at_the_client_allows_it_and_sees_the_call(era: str) -> None:
    shelf, person = Shelf(), Person(YES)
    assert text(call(shelf.runner, era, "remove", {"name": "vase"}, person)) == "removed vase"
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
def test_whatever_is_no_yes_denies(answer: Any, error: str, era: str) -> None:
    shelf = Shelf()
    result = call(shelf.runner, era, "remove", {"name": "vase"}, Person(answer))
    assert result.is_error and error in text(result) and shelf.removed == []


def test_a_client_of_2025_that_cannot_ask_is_refused_and_told_so() -> None:
    shelf = Shelf()
    result = call(shelf.runner, "legacy", "remove", {"name": "vase"})
    assert result.is_error and "declares no elicitation" in text(result) and shelf.removed == []


def undeclared(runner: Runner, name: str, arguments: Any = None) -> MCPError:
    async def main() -> MCPError:
        async with client(runner, MODERN) as connected:
            with pytest.raises(MCPError, match="declares no elicitation") as refused:
                await connected.call_tool(name, arguments)
            return refused.value

    return go(main())


def test_a_client_of_2026_that_cannot_ask_is_told_what_it_has_to_declare() -> None:
    shelf = Shelf()
    error = undeclared(shelf.runner, "remove", {"name": "vase"})
    assert error.code == wire.MISSING_REQUIRED_CLIENT_CAPABILITY
    assert error.data == {"requiredCapabilities": {"elicitation": {"form": {}}}}
    assert "Nothing was run" in error.message and shelf.removed == []


def test_so_it_is_where_the_tool_itself_wants_to_know_more() -> None:
    @tool
    async def book(context: ToolContext) -> Any:
        """Book."""
        return "booked" if context.answer else InputRequired("Where to?", {"type": "object"})

    assert undeclared(Runner([book]), "book").code == wire.MISSING_REQUIRED_CLIENT_CAPABILITY


def test_a_handler_refuses_a_client_that_lacks_a_capability() -> None:
    required = {"requiredCapabilities": {"sampling": {}}}

    @tool
    async def summarize() -> str:
        """Summarize."""
        raise MCPError(wire.MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs sampling.", required)

    async def main() -> MCPError:
        async with client(Runner([summarize]), MODERN) as connected:
            with pytest.raises(MCPError) as refused:
                await connected.call_tool("summarize")
            return refused.value

    error = go(main())
    assert (error.code, error.message, error.data) == (-32021, "This tool needs sampling.", required)
    assert call(Runner([summarize]), "legacy", "summarize").is_error


@pytest.mark.parametrize("kind", ["no of its own", "made to a success"])
def test_what_became_of_it_on_the_way_is_the_result(kind: str) -> None:
    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision | bool:
        answer = await serve.ask_client(call, decision, context)
        return deny("the shop is closed") if kind == "no of its own" else answer

    async def forgive(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        result = await next(call, context)
        return result if kind == "no of its own" else ToolResult("forgiven")

    shelf = Shelf(approve=approve, around=[forgive])
    said = text(call(shelf.runner, MODERN, "remove", {"name": "vase"}))
    assert ("the shop is closed" in said or said == "forgiven") and shelf.removed == []


@both_eras
def test_the_runners_own_approver_is_asked_where_there_is_one(era: str) -> None:
    asked: list[str] = []

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        asked.append(call.name)
        return True

    shelf, person = Shelf(approve=approve), Person("decline")
    assert text(call(shelf.runner, era, "remove", {"name": "vase"}, person)) == "removed vase"
    assert (asked, person.asked) == (["remove"], [])


@both_eras
def test_an_approver_may_hand_a_question_on_to_the_client(era: str) -> None:
    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision | bool:
        return call.arguments["name"] == "old" or await serve.ask_client(call, decision, context)

    shelf, person = Shelf(approve=approve), Person(YES)
    for name in ("old", "new"):
        assert not call(shelf.runner, era, "remove", {"name": name}, person).is_error
    assert len(person.asked) == 1 and shelf.removed == ["old", "new"]


def waiting_for_the_boss(runner: Runner, person: Person) -> tuple[bool | None, str]:
    result = call(runner, MODERN, "pay", {}, person)
    return result.is_error, text(result)


def test_a_client_does_not_answer_what_the_approver_has_put_off_for_somebody_else() -> None:
    paid: list[bool] = []

    @tool
    async def pay(context: ToolContext) -> Any:
        """Pay."""
        if context.answer is None:
            told = await context.ask(InputRequired("Which colour?", {"type": "object", "properties": {"c": {}}}))
            assert told is None
            return InputRequired("Boss, may it?")
        paid.append(True)
        return "paid"

    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision | bool:
        return decision if "Boss" in decision.reason else await serve.ask_client(call, decision, context)

    person = Person({**YES, "json": "{}"})
    refused, said = waiting_for_the_boss(Runner([pay], approve=approve), person)
    assert refused and "waits for input: Boss, may it?" in said and (person.asked, paid) == ([], [])


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_question_that_the_approver_has_put_off_itself_is_not_the_clients_although_it_was_asked(kind: str) -> None:
    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    async def asks_and_puts_off(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        await serve.ask_client(call, decision, context)
        return decision

    def plain(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        return asks_and_puts_off(call, decision, context)

    runner = Runner([pay], guards=[ask_before_changes], approve=plain if kind == "plain" else asks_and_puts_off)
    person = Person(YES)
    refused, said = waiting_for_the_boss(runner, person)
    assert refused and "waits for a decision" in said and person.asked == []


def test_what_a_handler_left_running_cannot_put_its_question_in_the_place_of_anothers() -> None:
    paid: list[bool] = []
    suspended, asked = asyncio.Event(), asyncio.Event()
    left: list[asyncio.Task[None]] = []

    @tool
    async def pay(context: ToolContext) -> Any:
        """Pay."""

        async def ask_late() -> None:
            await suspended.wait()
            await context.ask(InputRequired("sure?"))
            asked.set()

        if context.answer is None:
            left.append(asyncio.create_task(ask_late()))
            return InputRequired("Boss, may it?")
        paid.append(True)
        return "paid"

    async def wait_for_it(call: ToolCall, context: ToolContext, next: Any) -> Any:
        result = await next(call, context)
        suspended.set()
        await asked.wait()
        return result

    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision | bool:
        return decision if "Boss" in decision.reason else await serve.ask_client(call, decision, context)

    refused, said = waiting_for_the_boss(Runner([pay], around=[wait_for_it], approve=approve), Person(YES))
    assert refused and "waits for input: Boss, may it?" in said and paid == []


@both_eras
def test_a_plain_approver_may_hand_a_question_on_to_the_client(era: str) -> None:
    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        return call.arguments["name"] == "old" or serve.ask_client(call, decision, context)

    shelf, person = Shelf(approve=approve), Person(YES)
    for name in ("old", "new"):
        assert not call(shelf.runner, era, "remove", {"name": name}, person).is_error
    assert len(person.asked) == 1 and shelf.removed == ["old", "new"]


async def test_outside_a_served_call_the_approver_denies() -> None:
    result = await Shelf(approve=serve.ask_client).runner.run("remove", {"name": "vase"})
    assert result.status == "denied" and "came from no client" in str(result.error)


@both_eras
def test_the_value_of_a_private_parameter_is_never_asked_of_a_client(era: str) -> None:
    @tool(private=["key"])
    async def send(text: str, key: str) -> str:
        """Send."""
        return key

    runner = Runner([send], guards=[lambda call, context: ask("which key?", into="key")])
    person = Person({"key": "k"}, YES)
    result = call(runner, era, "send", {"text": "hi"}, person)
    assert result.is_error and "Ferrule never asks a client" in text(result) and person.asked == []


@both_eras
def test_what_is_bound_is_stars_in_the_question(era: str) -> None:
    @tool
    async def send(text: str, key: str) -> str:
        """Send."""
        return "sent"

    person = Person(YES)
    runner = Runner([send.bind(key="sk-4711")], guards=[ask_before_changes])
    assert text(call(runner, era, "send", {"text": "hi"}, person)) == "sent"
    assert "sk-4711" not in person.asked[0].message and "text = 'hi'" in person.asked[0].message


@both_eras
def test_the_question_shows_the_tools_preview(era: str) -> None:
    @tool(preview=lambda arguments: f"would shred {arguments['name']}")
    async def shred(name: str) -> str:
        """Shred."""
        return "shredded"

    person = Person(YES)
    call(Runner([shred], guards=[ask_before_changes]), era, "shred", {"name": "a"}, person)
    assert "would shred a" in person.asked[0].message


@both_eras
def test_a_client_is_not_asked_about_what_cannot_work(era: str) -> None:
    def cannot(arguments: Any) -> str:
        raise ToolError(f"there is no {arguments['name']}")

    @tool(preview=cannot)
    async def shred(name: str) -> str:
        """Shred."""
        return "shredded"

    person = Person(YES)
    answer = call(Runner([shred], guards=[ask_before_changes]), era, "shred", {"name": "a"}, person)
    assert text(answer) == "Denied: there is no a. Nothing was run."
    assert person.asked == []


class Meanwhile(Person):
    """Who is asked while somebody else writes a file."""

    def __init__(self, path: Path, written: str) -> None:
        super().__init__(YES)
        self.path, self.written = path, written

    async def __call__(self, context: Any, params: Any) -> wire.ElicitResult:
        self.path.write_text(self.written, encoding="utf-8")
        return await super().__call__(context, params)


@both_eras
@pytest.mark.parametrize(("meanwhile", "left"), [("one", "new"), ("other", "other")])
def test_what_changes_while_the_client_asks_is_not_written_over(
    era: str, meanwhile: str, left: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one", encoding="utf-8")
    runner = Runner(files.tools, guards=[ask_before_changes])
    answer = call(runner, era, "write_file", {"path": str(path), "content": "new"}, Meanwhile(path, meanwhile))
    assert path.read_text(encoding="utf-8") == left
    assert ("has changed since it was shown" in text(answer)) is (left == "other")


@both_eras
def test_of_very_much_the_beginning_and_the_end_are_shown(era: str) -> None:
    person = Person("decline")
    call(Shelf().runner, era, "remove", {"name": "begin" + "x" * 50_000 + "end"}, person)
    message = person.asked[0].message
    assert len(message) < 10_000 and "'begin" in message and "end'" in message and "not shown" in message


# -- what a tool wants to know -----------------------------------------------------------------------------------------


@both_eras
def test_flat_properties_are_asked_for_as_a_form_of_what_mcp_knows(era: str) -> None:
    person = Person({"day": "2026-12-24", "guests": 2})
    result = call(Runner([booking(FLAT)]), era, "book", {"city": "Rome"}, person)
    assert text(result) == 'Rome {"day": "2026-12-24", "guests": 2} 80'
    shown = person.asked[0].requested_schema
    assert shown["required"] == ["day"] and shown["properties"] == {
        "day": {"type": "string", "format": "date"},
        "guests": {"type": "integer", "minimum": 1},
        "late": {"type": "boolean"},
        "colour": {"type": "string"},
    }


@both_eras
def test_a_choice_of_several_texts_is_asked_for_as_one(era: str) -> None:
    kinds = {"type": "array", "items": {"type": "string", "enum": ["tea", "milk"]}, "maxItems": 2, "uniqueItems": True}
    person = Person({"kinds": ["tea"]})
    result = call(Runner([booking({"type": "object", "properties": {"kinds": kinds}})]), era, "book", ROME, person)
    assert text(result) == 'Rome {"kinds": ["tea"]} 80'
    del kinds["uniqueItems"]
    assert person.asked[0].requested_schema["properties"] == {"kinds": kinds}


async def test_what_is_wanted_gives_its_title_to_the_question_of_a_result() -> None:
    async def main() -> list[str]:
        found = []
        for schema in (FLAT, {**FLAT, "title": "when"}):
            async with client(Runner([booking(schema)]), MODERN, Person(YES)) as connected:
                asked = await connected.session.call_tool("book", ROME, allow_input_required=True)
                assert isinstance(asked, wire.InputRequiredResult)
                found += asked.input_requests or {}
        return found

    assert (await main()) == ["question", "when"]


@both_eras
def test_the_answer_is_compared_with_the_whole_schema(era: str) -> None:
    result = call(Runner([booking(FLAT)]), era, "book", {"city": "Rome"}, Person({"day": "1999-12-24"}))
    assert result.is_error and "^2026" in text(result)


@both_eras
@pytest.mark.parametrize(
    ("answer", "error"),
    [('{"days": [1, 2]}', None), ('{"days": ["x"]}', "integer"), ("[1]", "not a JSON object"), ("{", "not JSON")],
)
def test_nested_properties_are_asked_for_as_one_text_of_json(answer: str, error: str | None, era: str) -> None:
    person = Person({"json": answer})
    result = call(Runner([booking(NESTED)]), era, "book", {"city": "Rome"}, person)
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
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", **A}}},
        {"additionalProperties": {"type": "string"}, "minProperties": 1},
        {"required": ["a"]},
        {"properties": {"a": {"type": "string", "oneOf": [{"const": "x"}, {"maxLength": 0}]}}},
        {"properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"enum": [1, 2]}}}},
    ],
)
def test_what_no_form_shows_and_no_yes_answers_is_asked_for_as_json(schema: dict[str, Any], era: str) -> None:
    person = Person({"json": '{"a": "x"}'})
    result = call(Runner([booking({"type": "object", **schema})]), era, "book", ROME, person)
    assert text(result) == 'Rome {"a": "x"} 80' and list(person.asked[0].requested_schema["properties"]) == ["json"]


@both_eras
@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"type": "object", "additionalProperties": False}])
def test_what_the_empty_object_fits_is_asked_for_as_a_yes(schema: dict[str, Any], era: str) -> None:
    person = Person(YES)
    assert text(call(Runner([booking(schema)]), era, "book", ROME, person)) == "Rome {} 80"


@both_eras
def test_a_tool_may_be_asked_about_and_ask_more_than_once(era: str) -> None:
    @tool
    async def book(context: ToolContext) -> Any:
        """Book."""
        step = 0 if context.answer is None else context.answer.state
        return InputRequired(f"step {step}?", state=step + 1) if step < 2 else "booked"

    person = Person(YES)
    result = call(Runner([book], guards=[ask_before_changes]), era, "book", {}, person)
    assert text(result) == "booked" and len(person.asked) == 3


@pytest.mark.parametrize(("era", "answered"), [(ERAS[0], False), (ERAS[1], True)])
def test_a_running_handler_can_ask_a_client_of_2025_alone(era: str, answered: bool) -> None:
    @tool
    async def book(context: ToolContext) -> str:
        """Book."""
        found = await context.ask(InputRequired("sure?"))
        return "nobody answered" if found is None else "booked"

    result = call(Runner([book]), era, "book", {}, Person(YES))
    assert text(result) == ("booked" if answered else "nobody answered")


@pytest.mark.parametrize(("era", "status"), [(ERAS[0], "denied"), (ERAS[1], "ok")])
def test_of_a_call_that_a_tool_makes_a_client_of_2025_alone_is_asked(era: str, status: str) -> None:
    shelf = Shelf()

    @tool(read_only=True)
    async def outer(context: ToolContext) -> str:
        """Call another."""
        return (await context.run("remove", {"name": "vase"})).status

    runner = Runner([*shelf.tools, outer], guards=[ask_before_changes])
    assert text(call(runner, era, "outer", {}, Person(YES))) == status


async def test_a_client_of_2025_that_does_not_answer_in_time_is_a_no() -> None:
    async def never(context: Any, params: Any) -> wire.ElicitResult:
        await asyncio.Event().wait()
        raise AssertionError

    async def main() -> str:
        app = serve.mcp(Shelf().runner, answer_within=0.05)
        async with Client(app.server, mode="legacy", elicitation_callback=never) as connected:
            return text(await connected.call_tool("remove", {"name": "vase"}))

    assert "nobody answered within 0.05 s" in (await main())


@pytest.mark.parametrize(
    "answer", [{}, {"roots": []}, {"action": "maybe"}, {"action": "accept", "content": {"approve": {"a": True}}}]
)
def test_an_answer_that_is_none_of_mcps_is_a_no_and_no_fault_of_the_server(
    answer: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Shelf()

    async def main() -> str:
        server = serve.mcp(shelf.runner).server
        hello = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}}
        hello["clientInfo"] = {"name": "client", "version": "1"}
        async with create_client_server_memory_streams() as ((read, write), (served_read, served_write)):
            serving = asyncio.ensure_future(
                server.run(served_read, served_write, server.create_initialization_options())
            )

            async def send(message: Any) -> None:
                await write.send(SessionMessage(message))

            async def received() -> Any:
                message = await read.receive()
                assert isinstance(message, SessionMessage)
                return message.message

            await send(wire.JSONRPCRequest(jsonrpc="2.0", id=1, method="initialize", params=hello))
            await received()
            await send(wire.JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized"))
            params = {"name": "remove", "arguments": {"name": "vase"}}
            await send(wire.JSONRPCRequest(jsonrpc="2.0", id=2, method="tools/call", params=params))
            await send(wire.JSONRPCResponse(jsonrpc="2.0", id=(await received()).id, result=answer))
            said: str = (await received()).result["content"][0]["text"]
            await write.aclose()
            await serving
            return said

    assert "not valid in MCP" in go(main()) and shelf.removed == []
    assert caplog.records == []


# -- what travels in between, 2026 -------------------------------------------------------------------------------------


ANSWER = {"question": wire.ElicitResult(action="accept", content=YES)}
Retry = Callable[..., Awaitable[Any]]


async def question_of(connected: Client, name: str = "remove", arguments: Any = None) -> tuple[str, Retry]:
    """The state of a question, and a function that answers it, perhaps otherwise than it should."""
    given = {"name": "vase"} if arguments is None else arguments
    first = await connected.session.call_tool(name, given, allow_input_required=True)
    assert isinstance(first, wire.InputRequiredResult) and first.request_state is not None

    async def retry(
        state: str, name: str = name, arguments: Any = given, answer: Any = ANSWER, by: Client = connected
    ) -> Any:
        return await by.session.call_tool(
            name, arguments, input_responses=answer, request_state=state, allow_input_required=True
        )

    return first.request_state, retry


def refusals(
    shelf: Shelf, attempt: Callable[[Client, str, Retry], Awaitable[Any]], **options: Any
) -> tuple[int, str, list[str]]:
    """What an attempt is answered with: the code of the protocol's error or 0, the text, and what was done."""

    async def main() -> tuple[int, str, list[str]]:
        async with client(shelf.runner, MODERN, Person(YES), **options) as connected:
            state, retry = await question_of(connected)
            try:
                result = await attempt(connected, state, retry)
            except MCPError as error:
                return error.code, error.message, shelf.removed
            return 0, text(result), shelf.removed

    return go(main())


def test_an_answered_question_runs_the_call() -> None:
    assert refusals(Shelf(), lambda _, state, retry: retry(state)) == (0, "removed vase", ["vase"])


REFUSED = (wire.INVALID_PARAMS, "Invalid or expired requestState", [])


@pytest.mark.parametrize("place", [0, 3, 20, -1])
def test_a_changed_state_runs_nothing(place: int) -> None:
    def attempt(_: Client, state: str, retry: Retry) -> Awaitable[Any]:
        letters = list(state)
        letters[place] = "A" if letters[place] != "A" else "B"
        return retry("".join(letters))

    assert refusals(Shelf(), attempt) == REFUSED


@pytest.mark.parametrize("other", [{"arguments": {"name": "book"}}, {"name": "look", "arguments": {}}])
def test_the_state_of_another_call_runs_nothing(other: dict[str, Any]) -> None:
    assert refusals(Shelf(), lambda _, state, retry: retry(state, **other)) == REFUSED


def test_an_expired_state_runs_nothing() -> None:
    async def attempt(_: Client, state: str, retry: Retry) -> Any:
        reached = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.06, reached.set_result, None)
        await reached
        return await retry(state)

    assert refusals(Shelf(), attempt, answer_within=0.05) == REFUSED


def test_a_state_that_is_sent_twice_runs_once() -> None:
    async def attempt(_: Client, state: str, retry: Retry) -> Any:
        await retry(state)
        return await retry(state)

    code, said, removed = refusals(Shelf(), attempt)
    assert code == 0 and "resumed already" in said and removed == ["vase"]


def test_a_state_that_is_sent_twice_at_once_runs_once() -> None:
    async def attempt(_: Client, state: str, retry: Retry) -> Any:
        first, second = await asyncio.gather(retry(state), retry(state))
        return first if first.is_error else second

    code, said, removed = refusals(Shelf(), attempt)
    assert code == 0 and "resumed already" in said and removed == ["vase"]


async def test_the_client_cannot_read_what_it_carries() -> None:
    async def main() -> str:
        async with client(Shelf().runner, MODERN, Person(YES)) as connected:
            return (await question_of(connected))[0]

    assert "vase" not in (await main())


@pytest.mark.parametrize("answer", [None, {}, {"other": wire.ElicitResult(action="accept", content=YES)}])
async def test_without_an_answer_it_is_asked_again(answer: Any) -> None:
    async def main() -> tuple[str, list[str]]:
        shelf = Shelf()
        async with client(shelf.runner, MODERN, Person(YES)) as connected:
            state, retry = await question_of(connected)
            again = await retry(state, answer=answer)
            assert isinstance(again, wire.InputRequiredResult) and shelf.removed == []
            return text(await retry(again.request_state)), shelf.removed

    assert (await main()) == ("removed vase", ["vase"])


def test_asking_again_gives_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.time()]
    monkeypatch.setattr("ferrule.mcp.serve._server.time", SimpleNamespace(time=lambda: now[0]))

    async def attempt(_: Client, state: str, retry: Retry) -> Any:
        now[0] += 99
        state = (await retry(state, answer={})).request_state
        now[0] += 2
        return await retry(state)

    assert refusals(Shelf(), attempt, answer_within=100) == REFUSED
    assert refusals(Shelf(), attempt, answer_within=200) == (0, "removed vase", ["vase"])


async def test_an_answer_without_a_question_is_a_new_call_that_asks() -> None:
    async def main() -> tuple[Any, list[str]]:
        shelf = Shelf()
        async with client(shelf.runner, MODERN, Person(YES)) as connected:
            result = await connected.session.call_tool(
                "remove", {"name": "vase"}, input_responses=ANSWER, allow_input_required=True
            )
            return type(result), shelf.removed

    assert (await main()) == (wire.InputRequiredResult, [])


async def test_what_a_tool_wants_to_know_may_be_told_with_the_call_once_and_has_to_fit() -> None:
    @tool(read_only=True)
    async def book(context: ToolContext) -> Any:
        """Book, for two days."""
        days = [] if context.answer is None else [*context.answer.state, context.answer.value["day"]]
        return f"booked {days}" if len(days) == 2 else InputRequired("Which day?", {**FLAT, "title": "when"}, days)

    async def main() -> list[Any]:
        found: list[Any] = []
        async with client(Runner([book]), MODERN, Person(YES)) as connected:
            for day in ("2026-12-24", "1999-12-24"):
                ahead = {"when": wire.ElicitResult(action="accept", content={"day": day})}
                answer = {**ahead, "other": wire.ElicitResult(action="decline")}
                asked = await connected.session.call_tool("book", {}, input_responses=answer, allow_input_required=True)
                if isinstance(asked, wire.InputRequiredResult):
                    asked = await connected.session.call_tool(
                        "book", {}, input_responses=ahead, request_state=asked.request_state
                    )
                found.append((asked.is_error, text(asked)))
        return found

    (_, booked), (refused, why) = await main()
    assert booked == "booked ['2026-12-24', '2026-12-24']" and refused and "^2026" in why


@pytest.mark.parametrize(
    ("key", "name", "runs"), [(KEY, "shop", True), (b"o" * 32, "shop", False), (KEY, "bank", False)]
)
async def test_another_process_of_the_same_server_goes_on_with_the_same_keys(key: bytes, name: str, runs: bool) -> None:
    async def main() -> list[str]:
        here, there = Shelf(resume_key=KEY), Shelf(resume_key=KEY)
        async with (
            client(here.runner, MODERN, Person(YES), state_key=KEY, name="shop") as first,
            client(there.runner, MODERN, Person(YES), state_key=[key, b"x" * 32], name=name) as second,
        ):
            state, retry = await question_of(first)
            with nullcontext() if runs else pytest.raises(MCPError, match="requestState"):
                await retry(state, by=second)
            return there.removed

    assert (await main()) == (["vase"] if runs else [])


async def test_a_question_survives_that_the_server_gets_other_tools() -> None:
    async def main() -> str:
        shelf = Shelf()
        app = serve.mcp(shelf.runner)
        async with Client(app.server, mode=MODERN, elicitation_callback=Person(YES)) as connected:
            state, retry = await question_of(connected)
            await app.use(app.runner.replace(tools=shelf.tools[:1]))
            return text(await retry(state))

    assert (await main()) == "removed vase"


def test_a_call_that_is_too_large_to_be_carried_is_refused() -> None:
    shelf = Shelf()
    result = call(shelf.runner, MODERN, "remove", {"name": "x" * 999_500}, Person(YES))
    assert result.is_error and "too large to be asked about" in text(result) and shelf.removed == []
    assert text(result).endswith("Nothing was run.")


def test_of_a_call_that_is_too_large_once_it_has_run_that_is_said() -> None:
    @tool
    async def book(context: ToolContext) -> Any:
        """Book."""
        return InputRequired("sure?", state="x" * 1_100_000)

    result = call(Runner([book]), MODERN, "book", {}, Person(YES))
    assert result.is_error and text(result).startswith("The call is too large to be asked about")
    assert text(result).endswith("may have happened.")


def test_the_events_tell_of_the_question_and_of_one_end() -> None:
    events: list[Event] = []
    call(Shelf(observers=[events.append]).runner, MODERN, "remove", {"name": "vase"}, Person(YES))
    kinds = [event.kind for event in events]
    assert kinds == [
        "tool:pre",
        "tool:decided",
        "tool:decided",
        "tool:suspended",
        "tool:decided",
        "tool:started",
        "tool:post",
    ]
