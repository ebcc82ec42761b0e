"""Answers that are remembered: a grant covers what a person was shown, and nothing else."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pytest
from pydantic import BaseModel, Field, SecretStr, TypeAdapter

from ferrule import (
    Decision,
    Event,
    InputRequired,
    Journal,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    allow,
    ask,
    deny,
    tool,
)
from ferrule.approval import Answer, Asked, Grants, Offer, remembered
from ferrule.guards import rules
from ferrule.policy import TrustedFiles
from ferrule.stores.store import Memory, SealedFile, Store
from ferrule.testing import ManualClock
from waits import BOUND

T = TypeVar("T")


def go(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on a loop of its own, for a bounded time."""

    async def bounded() -> T:
        async with asyncio.timeout(BOUND):
            return await work

    return asyncio.run(bounded())


class Person:
    """Chooses the offer of this key, once it is offered, and counts how often she is asked."""

    def __init__(self, key: str | None = None, *, narrow: Callable[[Offer], Offer] = lambda offer: offer) -> None:
        self.key = key
        self.narrow = narrow
        self.asked: list[Asked] = []

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return (await self.answer(Asked.of(call, decision, context))).decision

    async def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        chosen = next((self.narrow(offer) for offer in asked.offers if offer.key == self.key), None)
        return Answer(allow(by="ada"), chosen)

    @property
    def keys(self) -> list[str]:
        """What was offered last."""
        return [offer.key for offer in self.asked[-1].offers]


def asks(call: ToolCall, context: ToolContext) -> Decision:
    return ask("really?")


@tool(destructive=False, open_world=False)
async def note(to: str, text: str = "hi", copies: int = 1, kind: Literal["a", "b"] = "a") -> str:
    """Leave a note."""
    return f"{to}: {text}"


@tool
async def shell(command: str, timeout: int = 60) -> str:
    """Run a command."""
    return command


@tool(destructive=False, open_world=False)
async def save(path: str, content: str) -> str:
    """Save a file."""
    return path


@tool(destructive=False)
async def fetch(url: str) -> str:
    """Get a page."""
    return url


NOTE = {"to": "bob", "text": "hello", "copies": 2, "kind": "a"}
SOMEBODY = {"principal": "kim", "session": "s1"}


def runner_of(
    person: Any, *tools: Tool, grants: Grants | None = None, guards: Any = (asks,), **options: Any
) -> tuple[Runner, Grants]:
    kept = Grants() if grants is None else grants
    return Runner(tools, guards=guards, approve=remembered(person, kept), **options), kept


def was_asked(person: Person, runner: Runner, name: str, arguments: Mapping[str, Any], **given: Any) -> bool:
    """Whether the person was asked about this call, which runs."""
    before = len(person.asked)
    assert go(runner.run(name, dict(arguments), ToolContext(**{**SOMEBODY, **given}))).success
    return len(person.asked) > before


# -- what is offered -------------------------------------------------------------------------------------------------


def offers_of(one: Tool, arguments: Mapping[str, Any], **given: Any) -> dict[str, Offer]:
    person = Person()
    runner, _ = runner_of(person, one)
    assert was_asked(person, runner, one.name, arguments, **given)
    return {offer.key: offer for offer in person.asked[-1].offers}


FOUR = ["these in this session", "these", "this session", "always"]


def test_each_argument_is_bounded_by_what_was_shown() -> None:
    offers = offers_of(note, NOTE)
    assert list(offers) == FOUR
    assert offers["always"].arguments == {
        "to": None,
        "text": None,
        "copies": {"at_least": 0, "at_most": 2},
        "kind": {"equals": "a"},
    }
    assert offers["these"].exactly and not offers["these"].arguments
    assert [offer.session for offer in offers.values()] == [True, False, True, False]
    assert {key: offer.seconds for key, offer in offers.items()} == {
        "these in this session": 43_200.0,
        "these": 2_592_000.0,
        "this session": 43_200.0,
        "always": 2_592_000.0,
    }


@pytest.mark.parametrize(
    ("one", "arguments", "name", "condition"),
    [
        (save, {"path": "/notes/deep/a.txt", "content": ""}, "path", {"within": ["/notes/deep"]}),
        (save, {"path": "/a.txt", "content": ""}, "path", {"within": ["/a.txt"]}),
        (save, {"path": "/notes/../b.txt", "content": ""}, "path", {"within": ["/b.txt"]}),
        (save, {"path": "/notes/a", "content": "/etc/passwd"}, "content", {"within": ["/etc"]}),
        (fetch, {"url": "https://example.org/a?b"}, "url", {"hosts": ["example.org:443"]}),
        (fetch, {"url": "http://[2001:db8::1]:8080/"}, "url", {"hosts": ["[2001:db8::1]:8080"]}),
        (note, {**NOTE, "copies": -3}, "copies", {"equals": -3}),
        (note, {**NOTE, "copies": 0}, "copies", {"equals": 0}),
        (note, {**NOTE, "to": "https://example.org/"}, "to", {"hosts": ["example.org:443"]}),
    ],
)
def test_a_path_keeps_to_its_folder_and_a_url_to_its_host(
    one: Tool, arguments: Mapping[str, Any], name: str, condition: object
) -> None:
    assert offers_of(one, arguments)["always"].arguments[name] == condition


def test_of_the_root_of_all_files_nothing_is_offered_for_always() -> None:
    assert "always" not in offers_of(save, {"path": "/", "content": ""})


class Step(BaseModel):
    command: str


@tool(destructive=True)
async def erase(name: str) -> str:
    """Erase."""
    return name


@tool
async def unmarked(name: str) -> str:
    """Do something."""
    return name


@tool(destructive=True)
async def danger(command: str) -> str:
    """Run a command as root."""
    return command


@tool(destructive=False)
async def compute(code: str) -> str:
    """Run Python."""
    return code


@tool(destructive=False)
async def several(steps: list[Step]) -> int:
    """Run commands."""
    return len(steps)


@tool(destructive=lambda arguments: arguments["name"] != "x")
async def sometimes(name: str) -> str:
    """Erase all but x."""
    return name


@pytest.mark.parametrize(
    ("one", "arguments"),
    [
        (erase, {"name": "a"}),
        (unmarked, {"name": "a"}),
        (sometimes, {"name": "a"}),
        (danger, {"command": "git status"}),
        (compute, {"code": "1"}),
        (several, {"steps": [{"command": "ls"}]}),
        *[
            (shell, {"command": line})
            for line in (
                "sh -c ls",
                "python x.py",
                "sudo ls",
                "env ls",
                "ls > out",
                "A=1 ls",
                "ls $HOME",
                "eval ls",
                "",
            )
        ],
        (fetch, {"url": "not a URL"}),
        (save, {"path": "a\0b", "content": ""}),
    ],
)
def test_of_what_is_destructive_or_runs_anything_these_arguments_in_this_session_are_all_that_is_offered(
    one: Tool, arguments: Mapping[str, Any]
) -> None:
    assert list(offers_of(one, arguments)) == FOUR[:1]
    assert list(offers_of(one, arguments, session=None)) == []


@tool(destructive=False)
async def bash(input: str) -> str:
    """Run a line."""
    return input


@tool(destructive=False)
async def terminal(cmd_str: str, note: str = "") -> str:
    """Run a line."""
    return cmd_str


async def ignore_payload(payload: dict[str, Any]) -> str:
    return "signed"


def run_by(name: str, kind: Any = str, tool_name: str = "job") -> Tool:
    """A tool that says it destroys nothing, and by no name of its own that it runs the line that it gets."""
    schema = TypeAdapter(kind).json_schema()
    properties = {name: schema, "path": {"type": "string"}, "wait": {"type": "integer"}}
    return Tool(
        tool_name,
        ignore_payload,
        description="Do it.",
        input_schema={"type": "object", "properties": properties, "additionalProperties": False},
        destructive=False,
    )


@pytest.mark.parametrize(
    ("one", "name", "is_list"),
    [
        (shell, "command", False),
        (bash, "input", False),
        (terminal, "cmd_str", False),
        (compute, "code", False),
        (run_by("args"), "args", False),
        (run_by("args", list[str], "git"), "args", True),
        (run_by("options", str, "git_fetch"), "options", False),
        (run_by("options", dict[str, list[str]], "git_fetch"), "options", False),
        (run_by("line"), "line", False),
        (run_by("anything", Any), "anything", True),
        (run_by("line", Literal["status"] | str), "line", False),
        (run_by("line", int | str), "line", False),
    ],
    ids=str,
)
@pytest.mark.parametrize("line", ["git fetch origin", "/bin/ls -l", "https://a.org/x --y", "npm audit"])
def test_no_offer_for_what_may_be_a_shell_line_covers_another_line(
    one: Tool, name: str, is_list: bool, line: str
) -> None:
    def given(text: str) -> Any:
        return (
            text.split(" ")
            if is_list
            else {"all": [text]}
            if "object" in str(one.input_schema["properties"][name])
            else text
        )

    own = {"path": "n/a", "wait": 5} if one.handler is ignore_payload else {}
    for key in offers_of(one, {name: given(line), **own}):
        person = Person(key)
        runner, _ = runner_of(person, one)
        assert was_asked(person, runner, one.name, {name: given(line), **own})
        assert not was_asked(person, runner, one.name, {name: given(line), **own})
        for other in (f"{line} --output=x", f"{line} ", f" {line}", line.upper(), f"{line};x", f"./{line}"):
            assert was_asked(person, runner, one.name, {name: given(other), **own}), (key, other)
        for beside in ({"path": "n/b"}, {"wait": 4}) if own else ():
            assert was_asked(person, runner, one.name, {name: given(line), **own, **beside}), (key, beside)


def test_a_grant_for_a_shell_line_covers_no_other_arguments_and_no_other_folder() -> None:
    person = Person("these")
    runner, _ = runner_of(person, shell)
    assert was_asked(person, runner, "shell", {"command": "git log"})
    assert not was_asked(person, runner, "shell", {"command": "git log", "timeout": 60})
    assert was_asked(person, runner, "shell", {"command": "git log", "timeout": 59})
    assert was_asked(person, runner, "shell", {"command": "git log"}, working_directory="/tmp")


def test_a_grant_of_an_older_version_that_covers_lines_by_a_pattern_answers_nothing() -> None:
    person = Person("these")
    runner, grants = runner_of(person, shell)
    assert was_asked(person, runner, "shell", {"command": "git fetch origin"})
    [key] = grants.store.items()
    kept = grants.store.get(key)
    arguments = {"command": {"commands": ["git fetch origin", "git fetch *"]}, "timeout": {"equals": 60}}
    assert grants.store.compare_and_set(key, kept, {**kept, "exactly": None, "arguments": arguments})
    for line in ("git fetch origin", "git fetch --upload-pack=x"):
        person.key = None
        assert was_asked(person, runner, "shell", {"command": line})


def test_argument_vectors_and_lists_of_lines_are_offered_as_they_are() -> None:
    @tool
    async def argv(argv: list[str], stdin: str = "x") -> int:
        """Run a program."""
        return len(argv)

    @tool(destructive=False)
    async def lines(commands: list[str]) -> int:
        """Run lines."""
        return len(commands)

    assert list(offers_of(argv, {"argv": ["git", "log", "-1"], "stdin": ""})) == FOUR[:2]
    assert list(offers_of(argv, {"argv": ["git", "log", "-1"], "stdin": "x"})) == FOUR[:1]
    assert list(offers_of(argv, {"argv": ["sh", "-c", "ls"], "stdin": ""})) == FOUR[:1]
    assert list(offers_of(lines, {"commands": ["git log", "ls"]})) == FOUR[:2]
    assert list(offers_of(lines, {"commands": ["git log", "sudo ls"]})) == FOUR[:1]


def test_without_a_session_nothing_is_offered_for_one() -> None:
    assert list(offers_of(note, NOTE, session=None)) == ["these", "always"]


def test_without_a_session_always_is_remembered_and_cannot_be_narrowed_to_one() -> None:
    person = Person("always")
    runner, _ = runner_of(person, note)
    assert was_asked(person, runner, "note", NOTE, session=None)
    assert not was_asked(person, runner, "note", NOTE, session=None)
    runner, grants = runner_of(Person("always", narrow=lambda offer: replace(offer, session=True)), note)
    assert go(runner.run("note", NOTE, principal="kim")).status == "denied" and grants.list_active() == []


def test_what_has_the_same_bounds_as_these_arguments_is_offered_once() -> None:
    @tool(destructive=False)
    async def switch(on: bool, rooms: list[str], note: str | None = None) -> bool:
        """Switch lights."""
        return on

    assert list(offers_of(switch, {"on": True, "rooms": ["a"]})) == FOUR[:2]


@tool(destructive=False)
async def login(user: str, password: SecretStr) -> str:
    """Log in."""
    return user


@tool(destructive=False, open_world=False, private=("token",))
async def post(text: str, token: str = "none") -> str:
    """Post."""
    return text


def supplies(call: ToolCall, context: ToolContext) -> Mapping[str, Any] | None:
    return None if call.arguments["token"] == "abc" else {**call.arguments, "token": "abc"}


signs = Tool(
    name="signs",
    handler=ignore_payload,
    destructive=False,
    input_schema={"type": "object", "properties": {"key": {"type": "string", "writeOnly": True}}},
)


@pytest.mark.parametrize(
    ("one", "arguments", "guards"),
    [
        (signs, {"key": "a"}, (asks,)),
        (login, {"user": "a", "password": "b"}, (asks,)),
        (note.bind(to="bob"), {}, (asks,)),
        (post, {"text": "a"}, (supplies, asks)),
        (note, {"to": "**********"}, (asks,)),
    ],
)
def test_nothing_is_offered_or_answered_where_the_person_is_not_shown_all(
    one: Tool, arguments: Mapping[str, Any], guards: Any
) -> None:
    person = Person("always")
    runner, grants = runner_of(person, one, guards=guards)
    assert was_asked(person, runner, one.name, arguments) and person.keys == []
    assert was_asked(person, runner, one.name, arguments) and grants.list_active() == []


def test_what_is_private_and_as_the_tool_fills_it_in_itself_does_not_stand_in_the_way() -> None:
    person = Person("always")
    runner, _ = runner_of(person, post)
    assert was_asked(person, runner, "post", {"text": "a"}) and not was_asked(person, runner, "post", {"text": "b"})


async def test_nothing_is_offered_where_a_value_is_asked_for() -> None:
    def for_a_pin(call: ToolCall, context: ToolContext) -> Decision:
        return ask("the pin?", into="to")

    person = Person("always")
    runner, grants = runner_of(person, note, guards=(for_a_pin,))
    await runner.run("note", NOTE, **SOMEBODY)
    assert person.keys == [] and grants.list_active() == []


def test_what_a_handler_wants_to_know_is_answered_by_no_grant() -> None:
    schema = {"type": "object", "properties": {}}

    @tool(destructive=False, open_world=False)
    async def book(city: str, context: ToolContext) -> str | InputRequired:
        """Book."""
        return InputRequired("which day?", schema) if context.answer is None else "booked"

    person = Person("always")
    runner, grants = runner_of(person, book)
    for _ in range(2):
        assert was_asked(person, runner, "book", {"city": "Rome"})
    assert [asked.decision.reason for asked in person.asked] == ["really?", "which day?", "which day?"]
    assert len(grants.list_active()) == 1


def test_what_a_type_says_is_a_path_keeps_to_its_folder() -> None:
    @tool(destructive=False, open_world=False)
    async def move(thing: Path, note: str) -> str:
        """Move."""
        return note

    always = offers_of(move, {"thing": "a/b", "note": "a/b"})["always"]
    assert always.arguments == {"thing": {"within": [str(Path.cwd() / "a")]}, "note": None}


# -- what a grant covers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "other", "again"),
    [
        ("these", {}, False),
        ("these", {"text": "other"}, True),
        ("these", {"copies": 1}, True),
        ("always", {"text": "other", "to": "eve", "copies": 0}, False),
        ("always", {"copies": 3}, True),
        ("always", {"copies": -1}, True),
        ("always", {"kind": "b"}, True),
        ("always", {"text": "/etc/passwd"}, True),
        ("always", {"text": "~/x"}, True),
        ("always", {"text": "a/../../b"}, True),
        ("always", {"text": " 'file:x"}, True),
        ("always", {"text": "https://evil.example"}, True),
        ("always", {"text": "and/or"}, False),
        ("always", {"text": "10:30 at the gate: bring both"}, False),
        ("always", {"text": " https://evil.example"}, True),
        ("always", {"text": "\u200b/etc/passwd"}, True),
        ("always", {"text": "http:evil.example"}, True),
        ("always", {"text": "https:\\\\evil.example"}, True),
        ("always", {"text": "javascript:run()"}, True),
    ],
)
def test_a_grant_answers_what_it_says_and_nothing_else(key: str, other: Mapping[str, Any], again: bool) -> None:
    person = Person(key)
    runner, _ = runner_of(person, note)
    assert was_asked(person, runner, "note", NOTE)
    assert was_asked(person, runner, "note", {**NOTE, **other}) is again


@pytest.mark.parametrize(
    ("one", "first", "second", "again"),
    [
        (save, {"path": "/n/a", "content": ""}, {"path": "/n/b/c", "content": "x"}, False),
        (save, {"path": "/n/a", "content": ""}, {"path": "/n2/a", "content": ""}, True),
        (save, {"path": "/n/a", "content": ""}, {"path": "/n/../m/a", "content": ""}, True),
        (save, {"path": "/n/a", "content": "../x"}, {"path": "/n/a", "content": "http:evil.example"}, True),
        (save, {"path": "/n/a", "content": "http:a.org"}, {"path": "/n/a", "content": "http:evil.example"}, True),
        (fetch, {"url": "https://a.org/x"}, {"url": "https://a.org/y?z"}, False),
        (fetch, {"url": "https://a.org/x"}, {"url": "https://a.org@b.org/"}, True),
        (fetch, {"url": "https://a.org/x"}, {"url": "http://a.org/x"}, True),
    ],
)
def test_paths_and_hosts_are_compared_as_what_they_are(
    one: Tool, first: Mapping[str, Any], second: Mapping[str, Any], again: bool
) -> None:
    person = Person("always")
    runner, _ = runner_of(person, one)
    assert was_asked(person, runner, one.name, first)
    assert was_asked(person, runner, one.name, second) is again


def test_a_link_that_leads_out_of_the_folder_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path)
    person = Person("always")
    runner, _ = runner_of(person, save)
    assert was_asked(person, runner, "save", {"path": f"{tmp_path}/in/a", "content": ""})
    assert not was_asked(person, runner, "save", {"path": f"{tmp_path}/in/b", "content": ""})
    assert was_asked(person, runner, "save", {"path": f"{tmp_path}/in/link/b", "content": ""})


@pytest.mark.parametrize("other", ["before", "private"])
@pytest.mark.parametrize("written", ["notes/a", "{root}/notes/a"])
@pytest.mark.parametrize("key", ["these", "always"])
def test_a_folder_that_became_a_link_after_the_grant_is_asked_about(
    key: str, written: str, other: str, tmp_path: Path
) -> None:
    for name in ("notes", other):
        (tmp_path / name).mkdir()
    person = Person(key)
    runner, _ = runner_of(person, save)
    call = {"path": written.format(root=tmp_path), "content": ""}
    assert was_asked(person, runner, "save", call, working_directory=str(tmp_path))
    assert not was_asked(person, runner, "save", call, working_directory=str(tmp_path))
    (tmp_path / "notes").rmdir()
    (tmp_path / "notes").symlink_to(tmp_path / other)
    assert was_asked(person, runner, "save", call, working_directory=str(tmp_path))


def test_a_folder_that_a_person_narrows_to_is_the_one_that_it_was_then(tmp_path: Path) -> None:
    (tmp_path / "notes" / "own").mkdir(parents=True)
    person = Person("always", narrow=lambda offer: offer.narrow("path", f"within {tmp_path}/notes/own"))
    runner, grants = runner_of(person, save)
    here = {"working_directory": str(tmp_path)}
    assert was_asked(person, runner, "save", {"path": "notes/a", "content": ""}, **here)
    assert grants.list_active()[0].arguments["path"] == {"within": [str((tmp_path / "notes" / "own").resolve())]}
    assert not was_asked(person, runner, "save", {"path": "notes/own/b", "content": ""}, **here)
    (tmp_path / "notes" / "own").rmdir()
    (tmp_path / "notes" / "own").symlink_to(tmp_path)
    assert was_asked(person, runner, "save", {"path": "notes/own/b", "content": ""}, **here)


@pytest.mark.parametrize(("second", "again"), [("5.10", False), ("5.1", False), ("0.3", False), ("5.2", True)])
def test_a_decimal_may_be_as_large(second: str, again: bool) -> None:
    @tool(destructive=False)
    async def pay(amount: Decimal) -> str:
        """Pay."""
        return str(amount)

    person = Person("always")
    runner, _ = runner_of(person, pay)
    assert was_asked(person, runner, "pay", {"amount": "5.10"})
    assert was_asked(person, runner, "pay", {"amount": second}) is again


@pytest.mark.parametrize(
    ("key", "other", "again"),
    [
        ("always", {"session": "s2"}, False),
        ("always", {"session": None}, False),
        ("this session", {}, False),
        ("this session", {"session": "s2"}, True),
        ("this session", {"session": None}, True),
        ("these in this session", {}, False),
        ("these in this session", {"session": "s2"}, True),
        ("always", {"principal": "eve"}, True),
        ("always", {"principal": None}, True),
        ("always", {"working_directory": "/tmp"}, True),
    ],
)
def test_a_grant_holds_for_one_principal_in_one_directory_and_where_it_says_so_in_one_session(
    key: str, other: Mapping[str, Any], again: bool
) -> None:
    person = Person(key)
    runner, _ = runner_of(person, note)
    assert was_asked(person, runner, "note", NOTE)
    assert was_asked(person, runner, "note", NOTE, **other) is again


@pytest.mark.parametrize(
    "changes",
    [
        {"description": "Leave a note, and do as it says."},
        {"metadata": {"version": "2"}},
        {"metadata": {"title": "Notes"}},
        {"idempotent": True},
        {"open_world": True},
        {"read_only": True, "destructive": False},
        {"parallel": True},
        {"private": ("kind",)},
        {"output_schema": {"type": "string", "maxLength": 3_000}},
        {"examples": [{"to": "ada"}]},
    ],
    ids=str,
)
def test_a_tool_that_says_something_else_of_itself_is_asked_about_again(changes: dict[str, Any]) -> None:
    person, grants = Person("always"), Grants()
    assert was_asked(person, runner_of(person, note, grants=grants)[0], "note", {"to": "bob"})
    assert not was_asked(person, runner_of(person, note.replace(), grants=grants)[0], "note", {"to": "bob"})
    assert was_asked(person, runner_of(person, note.replace(**changes), grants=grants)[0], "note", {"to": "bob"})
    assert was_asked(person, runner_of(person, note.with_server("elsewhere"), grants=grants)[0], "note", {"to": "bob"})


def test_a_tool_with_another_schema_or_mounted_elsewhere_is_asked_about_again() -> None:
    @tool(name="note", destructive=False, open_world=False)
    async def longer(to: str, text: str = "hi", copies: Annotated[int, Field(le=9)] = 1, kind: str = "a") -> str:
        """Leave a note."""
        return to

    person, grants = Person("always"), Grants()
    assert was_asked(person, runner_of(person, note, grants=grants)[0], "note", NOTE)
    assert was_asked(person, runner_of(person, longer, grants=grants)[0], "note", NOTE)
    assert was_asked(person, runner_of(person, *Runner([note]).as_tools(), grants=grants)[0], "note", NOTE)


def test_what_is_destructive_for_other_arguments_is_asked_about() -> None:
    @tool(destructive=lambda arguments: arguments["name"] == "all", open_world=False)
    async def clear(name: str) -> str:
        """Clear."""
        return name

    person = Person("always")
    runner, _ = runner_of(person, clear)
    assert was_asked(person, runner, "clear", {"name": "one"})
    assert not was_asked(person, runner, "clear", {"name": "two"}) and was_asked(
        person, runner, "clear", {"name": "all"}
    )


def test_a_question_by_another_rule_is_put() -> None:
    def by_another(call: ToolCall, context: ToolContext) -> Decision | None:
        return ask("and this?", rule="new") if call.arguments["to"] == "eve" else None

    person = Person("always")
    runner, _ = runner_of(person, note, guards=(by_another, asks))
    assert was_asked(person, runner, "note", NOTE)
    assert not was_asked(person, runner, "note", {**NOTE, "to": "kim"})
    assert was_asked(person, runner, "note", {**NOTE, "to": "eve"})


def test_another_rule_on_the_same_line_of_a_policy_is_put_and_so_is_one_that_came_in_its_place(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('ask = ["note(copies>1)", "note(to=boss)"]\nallow = ["note"]\n')
    person, policy = Person("always"), rules(file)
    runner, grants = runner_of(person, note, guards=[policy])
    assert was_asked(person, runner, "note", NOTE)
    assert not was_asked(person, runner, "note", {**NOTE, "to": "kim"})
    assert was_asked(person, runner, "note", {**NOTE, "to": "boss", "copies": 1})
    assert {grant.rule for grant in grants.list_active()} == {"policy.toml:1"}

    file.write_text('ask = ["note(copies>0)", "note(to=boss)"]\nallow = ["note"]\n')
    TrustedFiles().trust(file)
    policy.reload()
    assert was_asked(person, runner, "note", NOTE)


def test_another_tool_with_the_same_words_is_asked_about() -> None:
    async def substitute(to: str, text: str = "hi", copies: int = 1, kind: Literal["a", "b"] = "a") -> str:
        return "substitute"

    person = Person("always")
    first, grants = runner_of(person, note)
    other = Tool("note", substitute, description=note.description, destructive=False)
    assert other.fingerprint == note.fingerprint
    second, _ = runner_of(person, other, grants=grants)
    assert was_asked(person, first, "note", NOTE) and not was_asked(person, first, "note", NOTE)
    assert was_asked(person, second, "note", NOTE)


def test_a_grant_lifts_no_deny() -> None:
    def not_eve(call: ToolCall, context: ToolContext) -> Decision | None:
        return deny("not eve") if call.arguments["to"] == "eve" else None

    person = Person("always")
    runner, _ = runner_of(person, note, guards=(asks, not_eve))
    assert was_asked(person, runner, "note", NOTE)
    result = go(runner.run("note", {**NOTE, "to": "eve"}, **SOMEBODY))
    assert (result.status, result.executed, len(person.asked)) == ("denied", False, 1)


# -- for how long, and how often -------------------------------------------------------------------------------------


async def test_a_grant_ends_by_the_clock_of_the_runner_to_the_second() -> None:
    clock = ManualClock()
    person = Person("always", narrow=lambda offer: replace(offer, seconds=60.0))
    runner, grants = runner_of(person, note, clock=clock)

    async def asked_after(seconds: float) -> bool:
        before = len(person.asked)
        await clock.advance(seconds)
        assert (await runner.run("note", NOTE, **SOMEBODY)).success
        return len(person.asked) > before

    async def main() -> list[bool]:
        return [await asked_after(0), await asked_after(59.5), await asked_after(0.5)]

    assert (await main()) == [True, False, True]
    assert len(grants.list_active(clock)) == 1  # the first is gone, the second answer made another


def test_a_grant_that_was_made_later_by_the_clock_answers_nothing() -> None:
    person, grants = Person("always"), Grants()
    later = ManualClock()
    go(later.advance(1000))
    assert was_asked(person, runner_of(person, note, grants=grants, clock=later)[0], "note", NOTE)
    assert was_asked(person, runner_of(person, note, grants=grants, clock=ManualClock())[0], "note", NOTE)


@pytest.mark.parametrize("kept", ["memory", "file", "journal"])
def test_of_fifty_calls_at_once_a_grant_for_one_answers_one(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    stores: dict[str, Callable[[], Store]] = {
        "memory": Memory,
        "file": lambda: SealedFile(tmp_path / "state" / "grants.json", b"k" * 32),
        "journal": lambda: Journal.open(tmp_path / "calls.db").store,
    }
    store = stores[kept]()
    giving = Person("always", narrow=lambda offer: replace(offer, uses=1))
    assert was_asked(giving, runner_of(giving, note, grants=Grants(store))[0], "note", NOTE)

    def no(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        return False

    runner, grants = runner_of(no, note, grants=Grants(store), concurrency=50)

    async def main() -> list[ToolResult]:
        return await asyncio.gather(*(runner.run("note", NOTE, **SOMEBODY) for _ in range(50)))

    assert [result.success for result in go(main())].count(True) == 1
    assert grants.list_active() == []


def test_a_grant_for_two_answers_two() -> None:
    person = Person("these", narrow=lambda offer: replace(offer, uses=2))
    runner, grants = runner_of(person, note)
    assert was_asked(person, runner, "note", NOTE)
    person.key = None
    assert [grant.uses for grant in grants.list_active()] == [2]
    assert [was_asked(person, runner, "note", NOTE) for _ in range(3)] == [False, False, True]


def test_what_ends_anyway_is_used_before_what_is_counted() -> None:
    person, grants = Person("these", narrow=lambda offer: replace(offer, uses=1)), Grants()
    runner, _ = runner_of(person, note, grants=grants)
    was_asked(person, runner, "note", NOTE)
    wider = Person("always")
    was_asked(wider, runner_of(wider, note, grants=grants)[0], "note", {**NOTE, "text": "other"})
    assert not was_asked(person, runner, "note", NOTE)
    assert sorted(str(grant.uses) for grant in grants.list_active()) == ["1", "None"]


def test_the_text_of_a_grant_for_these_arguments_has_them_and_what_has_ended_is_not_kept() -> None:
    clock, person = ManualClock(), Person("these", narrow=lambda offer: replace(offer, seconds=60.0))
    runner, grants = runner_of(person, note, clock=clock)
    assert was_asked(person, runner, "note", NOTE)
    [grant] = grants.list_active(clock)
    assert grant.text == 'note with to="bob", text="hello", copies=2, kind="a", in this folder, for 1m'
    go(clock.advance(60))
    assert grants.list_active(clock) == [] and len(grants.store.items()) == 1
    assert was_asked(person, runner, "note", NOTE) and len(grants.store.items()) == 1


@pytest.mark.parametrize(("uses", "kept"), [(1, True), (2, True), (3, False), (None, False)])
async def test_of_an_offer_for_so_many_uses_no_more_may_be_chosen(uses: int | None, kept: bool) -> None:
    class OfTwo(Person):
        async def answer(self, asked: Asked) -> Answer:
            two = replace(asked.offers[-1], uses=2)
            if kept:
                grants.grant(replace(asked, offers=(two,)), replace(two, uses=uses))
            else:
                with pytest.raises(ValueError, match="uses must be at most 2"):
                    grants.grant(replace(asked, offers=(two,)), replace(two, uses=uses))
            return Answer(allow())

    runner, grants = runner_of(OfTwo(), note)
    assert (await runner.run("note", NOTE, **SOMEBODY)).success and bool(grants.list_active()) is kept


def test_what_was_revoked_is_asked_about_again() -> None:
    person = Person("always")
    runner, grants = runner_of(person, note)
    assert was_asked(person, runner, "note", NOTE) and not was_asked(person, runner, "note", NOTE)
    [grant] = grants.list_active()
    assert grants.revoke(grant.id) == grant and grants.revoke(grant.id) is None and grants.list_active() == []
    assert was_asked(person, runner, "note", NOTE)


# -- what is told ----------------------------------------------------------------------------------------------------


def test_events_and_results_say_which_grant_answered_and_whose_it_is() -> None:
    person, seen = Person("always"), list[Event]()
    runner, grants = runner_of(person, note, observers=[seen.append])
    was_asked(person, runner, "note", NOTE)
    seen.clear()
    result = go(runner.run("note", NOTE, **SOMEBODY))
    [grant] = grants.list_active()
    last = [event.data for event in seen if event.kind == "tool:decided"][-1]
    assert (last["decision"].kind, last["decision"].rule, last["by"]) == ("allow", f"grant {grant.id}", "ada")
    assert result.approved_by == "ada"
    assert (grant.tool, grant.principal, grant.session, grant.rule, grant.by) == ("note", "kim", None, "asks", "ada")
    assert grant.text == person.asked[0].offers[-1].text
    assert grant.text.startswith("note with any to and any text and copies")


def test_decide_says_which_grant_would_answer_and_uses_none_up() -> None:
    person = Person("always", narrow=lambda offer: replace(offer, uses=1))
    runner, grants = runner_of(person, note)
    call = ToolCall("1", "note", NOTE)
    assert go(runner.decide(call, **SOMEBODY)).kind == "ask"
    was_asked(person, runner, "note", NOTE)
    decisions = [go(runner.decide(call, **SOMEBODY)) for _ in range(3)]
    [grant] = grants.list_active()
    assert [(one.kind, one.rule, one.by) for one in decisions] == [("allow", f"grant {grant.id}", "ada")] * 3
    assert grant.uses == 1 and grant.text in decisions[0].reason


# -- what may be chosen ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "narrow",
    [
        lambda offer: replace(offer, key="all"),
        lambda offer: replace(offer, tool="shell"),
        lambda offer: replace(offer, seconds=offer.seconds + 1),
        lambda offer: replace(offer, seconds=None),
        lambda offer: replace(offer, seconds=0.0),
        lambda offer: replace(offer, seconds=-1.0),
        lambda offer: replace(offer, seconds=float("nan")),
        lambda offer: replace(offer, uses=0),
        lambda offer: replace(offer, uses=1.5),
        lambda offer: replace(offer, uses=True),
        lambda offer: replace(offer, exactly=True),
        lambda offer: replace(offer, arguments={}),
        lambda offer: replace(offer, arguments={**offer.arguments, "more": None}),
        lambda offer: replace(offer, arguments={**offer.arguments, "copies": None}),
        lambda offer: replace(offer, arguments={**offer.arguments, "copies": {"at_most": 2}}),
        lambda offer: replace(offer, arguments={**offer.arguments, "copies": {"at_least": 0, "at_most": 3}}),
        lambda offer: replace(offer, arguments={**offer.arguments, "kind": {"equals": "b"}}),
        lambda offer: replace(offer, arguments={**offer.arguments, "to": {"equals": "/etc"}}),
        lambda offer: replace(offer, arguments={**offer.arguments, "to": {"one_of": ["a", 1]}}),
        lambda offer: replace(offer, arguments={**offer.arguments, "to": {"within": ["/"]}}),
        lambda offer: replace(offer, arguments={**offer.arguments, "to": {"nothing": 1}}),
        lambda offer: replace(offer, arguments={**offer.arguments, "to": "bob"}),
    ],
)
async def test_what_is_no_part_of_what_was_offered_is_refused_and_nothing_is_remembered_or_run(
    narrow: Callable[[Offer], Offer],
) -> None:
    class Callback(Person):
        async def answer(self, asked: Asked) -> Answer:
            self.asked.append(asked)
            return Answer(allow(), narrow(asked.offers[-1]))

    person = Callback()
    runner, grants = runner_of(person, note)
    result = await runner.run("note", NOTE, **SOMEBODY)
    assert (result.status, result.executed) == ("denied", False) and "offer" in result.text
    assert grants.list_active() == []


@pytest.mark.parametrize(
    ("condition", "second", "again"),
    [
        ({"equals": "bob"}, {}, False),
        ({"equals": "bob"}, {"to": "eve"}, True),
        ({"one_of": ["bob", "kim"]}, {"to": "kim"}, False),
        ({"glob": "b*"}, {"to": "beth"}, False),
        ({"glob": "b*"}, {"to": "eve"}, True),
        ({"glob": "/b*"}, {"to": "/bob"}, True),
    ],
)
def test_a_person_may_narrow_what_is_offered(condition: object, second: Mapping[str, Any], again: bool) -> None:
    person = Person("always", narrow=lambda offer: replace(offer, arguments={**offer.arguments, "to": condition}))
    runner, _ = runner_of(person, note)
    assert was_asked(person, runner, "note", NOTE)
    person.key = None
    assert was_asked(person, runner, "note", {**NOTE, **second}) is again


def test_a_session_may_be_chosen_where_always_was_offered_and_not_the_other_way_round() -> None:
    person = Person("always", narrow=lambda offer: replace(offer, session=True))
    runner, grants = runner_of(person, note)
    assert was_asked(person, runner, "note", NOTE) and [grant.session for grant in grants.list_active()] == ["s1"]
    person = Person("this session", narrow=lambda offer: replace(offer, session=False))
    runner, grants = runner_of(person, note)
    assert go(runner.run("note", NOTE, **SOMEBODY)).status == "denied" and grants.list_active() == []


@pytest.mark.parametrize("changed", [{"to": "eve"}, {"copies": True}, {"more": None}, {"copies": ...}])
async def test_arguments_that_a_person_has_changed_are_not_remembered(changed: dict[str, Any]) -> None:
    class Editor(Person):
        async def answer(self, asked: Asked) -> Answer:
            given = {**asked.call.arguments, **changed}
            kept = {name: value for name, value in given.items() if value is not ...}
            return Answer(allow(kept), asked.offers[-1])

    runner, grants = runner_of(Editor(), note)
    result = await runner.run("note", {**NOTE, "copies": 1}, **SOMEBODY)
    assert (result.status, grants.list_active()) == ("denied", []) and "changed" in result.text


async def test_arguments_that_a_person_gives_as_they_were_shown_are_remembered() -> None:
    class Editor(Person):
        async def answer(self, asked: Asked) -> Answer:
            return Answer(allow(dict(asked.arguments)), asked.offers[-1])

    runner, grants = runner_of(Editor(), note)
    assert (await runner.run("note", NOTE, **SOMEBODY)).success and len(grants.list_active()) == 1


async def test_a_no_remembers_nothing_whatever_was_chosen_beside_it() -> None:
    class Refuses(Person):
        async def answer(self, asked: Asked) -> Answer:
            return Answer(deny("no"), asked.offers[-1])

    runner, grants = runner_of(Refuses(), note)
    assert (await runner.run("note", NOTE, **SOMEBODY)).status == "denied" and grants.list_active() == []


# -- who is asked, and where it is kept ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["a function", "a coroutine", "a function of a coroutine"])
def test_any_approver_may_stand_inside_and_is_asked_without_offers(kind: str) -> None:
    seen: list[ToolCall] = []

    def function(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        seen.append(call)
        return True

    async def coroutine(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return allow() if function(call, decision, context) else deny("no")

    inner = {"a function": function, "a coroutine": coroutine, "a function of a coroutine": lambda *a: coroutine(*a)}
    runner, _ = runner_of(inner[kind], note)
    assert go(runner.run("note", NOTE, **SOMEBODY)).success and go(runner.run("note", NOTE, **SOMEBODY)).success
    assert len(seen) == 2


async def test_what_the_approver_inside_foresees_is_foreseen() -> None:
    class Knows(Person):
        async def foresee(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
            return deny("never")

    runner, _ = runner_of(Knows(), note)
    assert (await runner.decide(ToolCall("1", "note", NOTE))) == deny("never")


def test_grants_in_a_file_answer_in_another_process_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def grants() -> Grants:
        return Grants(SealedFile(tmp_path / "state" / "grants.json", b"k" * 32))

    person = Person("always")
    assert was_asked(person, runner_of(person, note, grants=grants())[0], "note", NOTE)
    assert not was_asked(person, runner_of(person, note, grants=grants())[0], "note", NOTE)


def test_a_store_that_breaks_answers_nothing_and_the_person_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Memory):
        def items(self, prefix: str = "") -> dict[str, Any]:
            raise OSError("the disk is gone")

    person = Person("always")
    runner, _ = runner_of(person, note, grants=Grants(Broken()))
    assert was_asked(person, runner, "note", NOTE) and was_asked(person, runner, "note", NOTE)
    assert "the disk is gone" in caplog.text
    assert go(runner.decide(ToolCall("1", "note", NOTE), **SOMEBODY)).kind == "ask"


def test_what_is_no_grant_grants_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    store, person = Memory(), Person("these", narrow=lambda offer: replace(offer, uses=50))
    runner, grants = runner_of(person, note, grants=Grants(store))
    assert was_asked(person, runner, "note", NOTE)
    [kept] = store.items().values()
    changes: list[dict[str, Any]] = [
        {"id": 9},
        {"made_at": None},
        {"expires_at": "soon"},
        {"exactly": None, "arguments": []},
        {"uses": "3", "expires_at": kept["expires_at"] - 1},
        {"uses": True, "by": 5},
        {"expires_at": kept["expires_at"] - 1, "text": None},
        {"paths": [1]},
        {"exactly": None, "arguments": {"to": {"no": "condition"}, "text": None}},
    ]
    others: list[Any] = [{"tool": "note"}, 1, "x", [], *[{**kept, "id": "ab", **one} for one in changes]]
    for number, value in enumerate(others):
        store.compare_and_set(f"grant/{value['id'] if number > 3 else number}", None, value)
        assert grants.list_active() and not was_asked(person, runner, "note", NOTE)
        store.compare_and_set("grant/ab", store.get("grant/ab"), None)
    assert was_asked(person, runner, "note", {**NOTE, "text": "another"}) and len(grants.list_active()) == 2
    assert "'grant/0' is unreadable" in caplog.text


@pytest.mark.parametrize("number", ["-1e999", "NaN", "1E400", "1.0e0"])
def test_a_grant_in_another_json_stops_no_other_and_can_be_revoked(number: str, tmp_path: Path) -> None:
    journal, person = Journal.open(tmp_path / "calls.db"), Person("these")
    runner, grants = runner_of(person, note, grants=Grants(journal.store))
    assert was_asked(person, runner, "note", NOTE)
    [kept] = grants.list_active()
    with sqlite3.connect(tmp_path / "calls.db") as connection:
        changed = f"replace(value, '\"expires_at\":{kept.expires_at!r}', '\"expires_at\":{number}')"
        assert connection.execute(f"UPDATE store SET value = {changed} WHERE key LIKE '%grant/%'").rowcount == 1
    assert was_asked(person, runner, "note", {**NOTE, "text": "another"})
    assert len(grants.list_active()) == 1 and len(journal.store.items("grant/")) == 2
    assert grants.revoke(kept.id) is None and len(journal.store.items("grant/")) == 1
