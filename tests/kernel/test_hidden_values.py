"""What is bound or private leaves the kernel as stars; guards and the handler see it."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import pytest
from journals import WatchedJournal
from pydantic import AfterValidator, Field

from cast import ask_always
from ferrule import (
    Decision,
    DefinitionError,
    Event,
    Runner,
    ToolCall,
    ToolContext,
    Toolset,
    allow,
    ask,
    deny,
    tool,
)
from watched import Watch

KEY, PIN = "sk-live-4711", "pin-0815"
STARS = "**********"


@tool(private=("pin",))
async def send(text: str, api_key: str, pin: str = "") -> str:
    return f"{text} {len(api_key)} {len(pin)}"


bound = Toolset([send]).bind(api_key=KEY)


def gives_the_pin(call: ToolCall, context: ToolContext) -> dict[str, Any]:
    return {**call.arguments, "pin": PIN}


def shown(event: Event) -> str:
    return (
        f"{event} {dict(event.data)} {event.call} {event.call.raw} {dict(event.call.arguments)} {vars_of(event.call)}"
    )


def vars_of(call: ToolCall) -> str:
    arguments = call.arguments
    return f"{arguments.raw} {arguments.validated}"


@pytest.mark.parametrize("answer", [True, deny("no"), ask("later"), allow({"text": "edited"}), allow({"text": 5})])
@pytest.mark.parametrize("text", ["hi", 5])
async def test_hidden_values_never_leave_the_kernel(answer: Any, text: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    watch, journal, asked = Watch(), WatchedJournal(), []

    def person(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        asked.append(f"{call} {call.raw} {dict(call.arguments)} {vars_of(call)} {decision} {context}")
        return answer

    guards = [gives_the_pin, ask_always]
    runner = Runner(bound, guards=guards, approve=person, observers=[watch], journal=journal)
    result = await runner.run("send", {"text": text})
    seen = [
        *map(shown, watch.events),
        *map(shown, journal.events),
        str(journal.intents),
        str(journal.outcomes),
        *asked,
        str(result.record()),
        str(result.call),
        caplog.text,
    ]
    assert [part for part in seen if KEY in part or PIN in part] == []
    assert [event.kind for event in journal.events] == [event.kind for event in watch.events]
    assert len(journal.intents) == len(journal.outcomes) == (result.executed is True)
    assert asked == [] or all(STARS in part for part in asked)


@pytest.mark.parametrize(
    ("edit", "output"),
    [
        ({"text": "edited"}, f"edited {len(KEY)} {len(PIN)}"),
        ({"api_key": KEY}, f"hi {len(KEY)} {len(PIN)}"),
        ({"api_key": "another"}, None),
    ],
)
async def test_a_person_keeps_hidden_values_and_cannot_change_bound_ones(edit: Any, output: str | None) -> None:
    approve = lambda call, decision, context: allow({**call.arguments, **edit})  # noqa: E731
    result = await Runner(bound, guards=[gives_the_pin, ask_always], approve=approve).run("send", {"text": "hi"})
    assert (result.status, result.output) == ("denied" if output is None else "ok", output)


async def test_a_person_sees_only_the_private_value_that_is_asked_for() -> None:
    asked: list[Any] = []

    def person(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        asked.append(dict(call.arguments))
        return allow({"pin": "new"})

    def guard(call: ToolCall, context: ToolContext) -> Decision:
        return ask("keep it?", into="pin")

    assert (
        await Runner(bound, guards=[guard], approve=person).run("send", {"text": "hi"})
    ).output == f"hi {len(KEY)} 3"
    assert asked == [{"text": "hi", "api_key": STARS, "pin": ""}]


def test_the_error_of_a_bound_value_that_does_not_fit_does_not_show_it() -> None:
    @tool
    async def short(api_key: Annotated[str, Field(max_length=3)]) -> None: ...

    with pytest.raises(DefinitionError, match="at most 3 characters") as caught:
        short.bind(api_key=KEY)
    assert KEY not in str(caught.value)


async def test_the_log_shows_no_hidden_value_that_validation_changes(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def encodes(text: str, api_key: Annotated[str, AfterValidator(str.encode)]) -> None: ...

    runner = Runner(Toolset([encodes]).bind(api_key=KEY), guards=[lambda call, context: None])
    assert (await runner.run("encodes", {"text": "a"})).status == "failed"
    assert "cannot be judged" in caplog.text and KEY not in caplog.text
