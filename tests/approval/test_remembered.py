"""Remembered answers: a grant covers what a person was shown, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import SecretStr, TypeAdapter

from cast import ask_always
from ferrule import Decision, Event, InputRequired, Journal, Runner, Tool, ToolCall, ToolContext, allow, ask, deny, tool
from ferrule.approval import Answer, Asked, Grants, Offer, remembered
from ferrule.guards import rules
from ferrule.policy import TrustedFiles
from ferrule.stores.store import Memory, SealedFile, Store
from ferrule.testing import ManualClock


class Person:
    """Chooses the offer with this key, once it is offered, and remembers the questions."""

    def __init__(self, key: str | None = None, narrow: Callable[[Offer], Offer] = lambda offer: offer) -> None:
        self.key = key
        self.narrow = narrow
        self.asked: list[Asked] = []

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return (await self.answer(Asked.of(call, decision, context))).decision

    async def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        chosen = next((self.narrow(offer) for offer in asked.offers if offer.key == self.key), None)
        return Answer(allow(by="ada"), chosen)


class Answering(Person):
    """Gives the answer that a function makes of a question."""

    def __init__(self, make: Callable[[Asked], Answer]) -> None:
        super().__init__()
        self.make = make

    async def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        return self.make(asked)


def with_(**changes: Any) -> Callable[[Offer], Offer]:
    return lambda offer: replace(offer, **changes)


def with_arguments(**changes: Any) -> Callable[[Offer], Offer]:
    return lambda offer: replace(offer, arguments={**offer.arguments, **changes})


class Desk:
    """A runner of one tool, which asks a person about each call, and her grants."""

    def __init__(self, person: Any, made: Tool, *, grants: Grants | None = None, **options: Any) -> None:
        self.person = Person(person) if isinstance(person, str | None) else person
        self.grants = Grants() if grants is None else grants
        self.name = made.name
        given: dict[str, Any] = {"guards": (ask_always,), **options}
        self.runner = Runner([made], approve=remembered(self.person, self.grants), **given)

    async def run(self, arguments: Mapping[str, Any], **context: Any) -> Any:
        return await self.runner.run(self.name, dict(arguments), ToolContext(**{**SOMEBODY, **context}))

    async def asks(self, arguments: Mapping[str, Any], **context: Any) -> bool:
        """Whether the person is asked about this call, which runs."""
        before = len(self.person.asked)
        assert (await self.run(arguments, **context)).success
        return len(self.person.asked) > before

    async def offers(self, arguments: Mapping[str, Any], **context: Any) -> dict[str, Offer]:
        assert await self.asks(arguments, **context)
        return {offer.key: offer for offer in self.person.asked[-1].offers}


async def do_nothing(payload: dict[str, Any]) -> str:
    return "done"


def made(name: str, *, called: str = "job", kind: Any = str, **marks: Any) -> Tool:
    """A tool with one parameter of this type, and two harmless ones."""
    properties = {name: TypeAdapter(kind).json_schema(), "path": {"type": "string"}, "wait": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return Tool(called, do_nothing, description="Do it.", input_schema=schema, **marks)


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
FOUR = ["these in this session", "these", "this session", "always"]

# -- what is offered ---------------------------------------------------------------------------------------------------


async def test_each_argument_is_bounded_by_what_was_shown() -> None:
    offers = await Desk(None, note).offers(NOTE)
    assert list(offers) == FOUR
    copies, kind = {"at_least": 0, "at_most": 2}, {"equals": "a"}
    assert offers["always"].arguments == {"to": None, "text": None, "copies": copies, "kind": kind}
    assert offers["these"].exactly and not offers["these"].arguments
    assert [offer.session for offer in offers.values()] == [True, False, True, False]
    assert [offer.seconds for offer in offers.values()] == [43_200.0, 2_592_000.0] * 2
    assert list(await Desk(None, note).offers(NOTE, session=None)) == ["these", "always"]


async def test_the_root_folder_and_a_switch_get_no_always() -> None:
    assert "always" not in await Desk(None, save).offers({"path": "/", "content": ""})
    switch = made("on", kind=bool, destructive=False, open_world=False)
    assert list(await Desk(None, switch).offers({"on": True})) == FOUR[:2]  # always would be the same as these


async def test_an_argument_of_a_path_type_keeps_to_its_folder() -> None:
    @tool(destructive=False, open_world=False)
    async def move(thing: Path, note: str) -> str:
        """Move."""
        return note

    always = (await Desk(None, move).offers({"thing": "a/b", "note": "a/b"}))["always"]
    assert always.arguments == {"thing": {"within": [str(Path.cwd() / "a")]}, "note": None}


RISKY = ["sh -c ls", "python x.py", "sudo ls", "env ls", "ls > out", "A=1 ls", "ls $HOME", "eval ls", ""]


@pytest.mark.parametrize(
    ("one", "arguments"),
    [
        (made("name", destructive=lambda arguments: arguments["name"] != "x"), {"name": "a"}),
        (made("command", destructive=True), {"command": "git status"}),
        (made("steps", kind=list[dict[Literal["command"], str]], destructive=False), {"steps": [{"command": "ls"}]}),
        *((shell, {"command": line}) for line in RISKY),
        (made("argv", kind=list[str]), {"argv": ["sh", "-c", "ls"]}),
        (made("commands", kind=list[str], destructive=False), {"commands": ["git log", "sudo ls"]}),
        (fetch, {"url": "not a URL"}),
        (save, {"path": "a\0b", "content": ""}),
    ],
)
async def test_risky_calls_offer_only_these_arguments(one: Tool, arguments: Mapping[str, Any]) -> None:
    assert list(await Desk(None, one).offers(arguments)) == FOUR[:1]
    assert list(await Desk(None, one).offers(arguments, session=None)) == []


@tool(destructive=False)
async def login(user: str, password: SecretStr) -> str:
    """Log in."""
    return user


@tool(destructive=False, open_world=False, private=("token",))
async def post(text: str, token: str = "none") -> str:
    """Post."""
    return text


def supply_token(call: ToolCall, context: ToolContext) -> Mapping[str, Any] | None:
    return None if call.arguments["token"] == "abc" else {**call.arguments, "token": "abc"}


def ask_for_a_value(call: ToolCall, context: ToolContext) -> Decision:
    return ask("the pin?", into="to")


write_only = {"type": "object", "properties": {"key": {"type": "string", "writeOnly": True}}}


@pytest.mark.parametrize(
    ("one", "arguments", "guards"),
    [
        (Tool("signs", do_nothing, destructive=False, input_schema=write_only), {"key": "a"}, (ask_always,)),
        (login, {"user": "a", "password": "b"}, (ask_always,)),
        (note.bind(to="bob"), {}, (ask_always,)),
        (post, {"text": "a"}, (supply_token, ask_always)),
        (note, {"to": "**********"}, (ask_always,)),
        (note, NOTE, (ask_for_a_value,)),
    ],
)
async def test_nothing_is_offered_if_the_person_does_not_see_all_arguments(
    one: Tool, arguments: Mapping[str, Any], guards: Any
) -> None:
    desk = Desk("always", one, guards=guards)
    for _ in range(2):
        await desk.run(arguments)
    assert not any(asked.offers for asked in desk.person.asked)
    assert len(desk.person.asked) == 2 and desk.grants.list_active() == []


async def test_no_grant_answers_a_question_of_a_handler() -> None:
    schema = {"type": "object", "properties": {}}

    @tool(destructive=False, open_world=False)
    async def book(city: str, context: ToolContext) -> str | InputRequired:
        """Book."""
        return InputRequired("which day?", schema) if context.answer is None else "booked"

    desk = Desk("always", book)
    assert [await desk.asks({"city": "Rome"}) for _ in range(2)] == [True, True]
    assert [asked.decision.reason for asked in desk.person.asked] == ["may it?", "which day?", "which day?"]
    assert len(desk.grants.list_active()) == 1


# -- what a grant covers -----------------------------------------------------------------------------------------------


def from_note(**other: Any) -> tuple[Tool, dict[str, Any], dict[str, Any]]:
    return note, NOTE, {**NOTE, **other}


HOST = "http://[2001:db8::1]"


@tool(destructive=False)
async def pay(amount: Decimal) -> str:
    """Pay."""
    return str(amount)


LEADS_ELSEWHERE = [
    *("/etc/passwd", "~/x", "a/../../b", "\u200b/etc/passwd", " 'file:x", " https://evil.example"),
    *("javascript:run()", "http:evil.example", "https:\\\\evil.example"),
]


@pytest.mark.parametrize(
    ("key", "calls", "again"),
    [
        ("these", from_note(), False),
        ("these", from_note(text="other"), True),
        ("always", from_note(text="other", to="eve", copies=0), False),
        ("always", from_note(copies=3), True),
        ("always", from_note(copies=-1), True),
        ("always", from_note(kind="b"), True),
        ("always", from_note(text="10:30 at the gate: bring and/or"), False),
        *(("always", from_note(text=text), True) for text in LEADS_ELSEWHERE),
        ("always", (save, {"path": "/n/a", "content": "../x"}, {"path": "/n/a", "content": "http:evil.example"}), True),
        ("always", (fetch, {"url": f"{HOST}:8080/"}, {"url": f"{HOST}:8081/"}), True),
        *(("always", (pay, {"amount": "5.10"}, {"amount": one}), False) for one in ("5.1", "0.3")),
        ("always", (pay, {"amount": "5.10"}, {"amount": "5.2"}), True),
    ],
)
async def test_a_grant_answers_what_it_covers_and_nothing_else(key: str, calls: Any, again: bool) -> None:
    one, first, second = calls
    desk = Desk(key, one)
    assert await desk.asks(first) and await desk.asks(second) is again


async def test_a_link_that_leads_out_of_the_folder_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path)
    desk = Desk("always", save)
    asked = [await desk.asks({"path": f"{tmp_path}/in/{name}", "content": ""}) for name in ("a", "b", "link/b")]
    assert asked == [True, False, True]


@pytest.mark.parametrize("written", ["notes/a", "{root}/notes/a"])
@pytest.mark.parametrize("key", ["these", "always"])
async def test_a_folder_that_became_a_link_is_asked_about(key: str, written: str, tmp_path: Path) -> None:
    for name in ("notes", "private"):
        (tmp_path / name).mkdir()
    desk = Desk(key, save)
    call, here = {"path": written.format(root=tmp_path), "content": ""}, {"working_directory": str(tmp_path)}
    assert await desk.asks(call, **here) and not await desk.asks(call, **here)
    (tmp_path / "notes").rmdir()
    (tmp_path / "notes").symlink_to(tmp_path / "private")
    assert await desk.asks(call, **here)


@pytest.mark.parametrize(
    ("key", "other", "again"),
    [
        ("always", {"session": "s2"}, False),
        ("this session", {}, False),
        ("this session", {"session": None}, True),
        ("always", {"principal": None}, True),
    ],
)
async def test_a_grant_holds_for_one_principal_directory_and_session(key: str, other: Any, again: bool) -> None:
    desk = Desk(key, note)
    assert await desk.asks(NOTE) and await desk.asks(NOTE, **other) is again


async def substitute(to: str, text: str = "hi", copies: int = 1, kind: Literal["a", "b"] = "a") -> str:
    return "substitute"


CHANGED = [
    note.replace(metadata={"version": "2"}),
    note.replace(idempotent=True),
    note.replace(private=("kind",)),
    note.replace(examples=[{"to": "ada"}]),
    note.with_server("elsewhere"),
    *Runner([note]).as_tools(),
    Tool("note", substitute, description=note.description, destructive=False),  # with the same fingerprint
    made("to", called="note", destructive=False, open_world=False),
]


@pytest.mark.parametrize("changed", CHANGED)
async def test_a_changed_tool_is_asked_about_again(changed: Tool) -> None:
    desk = Desk("always", note)
    assert await desk.asks({"to": "bob"}) and not await desk.asks({"to": "bob"})
    assert not await Desk("always", note.replace(), grants=desk.grants).asks({"to": "bob"})
    assert await Desk("always", changed, grants=desk.grants).asks({"to": "bob"})


async def test_a_call_that_is_destructive_by_its_arguments_is_asked_about() -> None:
    clear = made("name", destructive=lambda arguments: arguments["name"] == "all", open_world=False)
    desk = Desk("always", clear)
    assert [await desk.asks({"name": name}) for name in ("one", "two", "all")] == [True, False, True]


async def test_another_rule_on_the_same_policy_line_is_asked_about(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('ask = ["note(copies>1)", "note(to=boss)"]\nallow = ["note"]\n')
    policy = rules(file)
    desk = Desk("always", note, guards=[policy])
    assert await desk.asks(NOTE) and not await desk.asks({**NOTE, "to": "kim"})
    assert await desk.asks({**NOTE, "to": "boss", "copies": 1})
    assert {grant.rule for grant in desk.grants.list_active()} == {"policy.toml:1"}

    file.write_text('ask = ["note(copies>0)", "note(to=boss)"]\nallow = ["note"]\n')
    TrustedFiles().trust(file)
    policy.reload()
    assert await desk.asks(NOTE)


async def test_a_grant_lifts_no_deny() -> None:
    def deny_eve(call: ToolCall, context: ToolContext) -> Decision | None:
        return deny("not eve") if call.arguments["to"] == "eve" else None

    desk = Desk("always", note, guards=(ask_always, deny_eve))
    assert await desk.asks(NOTE)
    result = await desk.run({**NOTE, "to": "eve"})
    assert (result.status, result.executed, len(desk.person.asked)) == ("denied", False, 1)


# -- for how long, and how often ---------------------------------------------------------------------------------------


async def test_a_grant_ends_by_the_clock_of_the_runner() -> None:
    clock = ManualClock()
    desk = Desk(Person("always", with_(seconds=60.0)), note, clock=clock)
    asked = []
    for seconds in (0, 59.5, 0.5):
        await clock.advance(seconds)
        asked.append(await desk.asks(NOTE))
    assert asked == [True, False, True]
    assert len(desk.grants.list_active(clock)) == 1  # the first is gone, the second answer made another


async def test_a_grant_from_the_future_answers_nothing() -> None:
    later = ManualClock()
    await later.advance(1000)
    desk = Desk("always", note, clock=later)
    assert await desk.asks(NOTE)
    assert await Desk("always", note, grants=desk.grants, clock=ManualClock()).asks(NOTE)


@pytest.mark.parametrize("kept", ["memory", "file", "journal"])
async def test_a_grant_for_one_use_answers_one_of_fifty_concurrent_calls(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    memory = Memory()
    stores: dict[str, Callable[[], Store]] = {
        "memory": lambda: memory,
        "file": lambda: SealedFile(tmp_path / "state" / "grants.json", b"k" * 32),  # as another process opens it
        "journal": lambda: Journal.open(tmp_path / "calls.db").store,
    }
    assert await Desk(Person("always", with_(uses=1)), note, grants=Grants(stores[kept]())).asks(NOTE)
    desk = Desk(lambda *_: False, note, grants=Grants(stores[kept]()), concurrency=50)
    results = await asyncio.gather(*(desk.run(NOTE) for _ in range(50)))
    assert [result.success for result in results].count(True) == 1 and desk.grants.list_active() == []


@pytest.mark.parametrize(("uses", "fits"), [(1, True), (2, True), (3, False), (None, False)])
async def test_no_more_uses_than_offered_may_be_chosen(uses: int | None, fits: bool) -> None:
    def choose(asked: Asked) -> Answer:
        two = replace(asked.offers[-1], uses=2)
        with nullcontext() if fits else pytest.raises(ValueError, match="uses must be at most 2"):
            desk.grants.grant(replace(asked, offers=(two,)), replace(two, uses=uses))
        return Answer(allow())

    desk = Desk(Answering(choose), note)
    assert await desk.asks(NOTE) and bool(desk.grants.list_active()) is fits


async def test_a_revoked_grant_answers_nothing() -> None:
    desk = Desk("always", note)
    assert await desk.asks(NOTE) and not await desk.asks(NOTE)
    [grant] = desk.grants.list_active()
    assert desk.grants.revoke(grant.id) == grant and desk.grants.revoke(grant.id) is None
    assert desk.grants.list_active() == [] and await desk.asks(NOTE)


async def test_events_and_results_name_the_grant_and_its_author() -> None:
    events = list[Event]()
    desk = Desk("always", note, observers=[events.append])
    await desk.asks(NOTE)
    events.clear()
    result = await desk.run(NOTE)
    [grant] = desk.grants.list_active()
    last = [event.data for event in events if event.kind == "tool:decided"][-1]
    assert (last["decision"].kind, last["decision"].rule, last["by"]) == ("allow", f"grant {grant.id}", "ada")
    assert result.answered_by == grant.by == "ada" and grant.principal == "kim"
    assert (grant.tool, grant.session, grant.rule) == ("note", None, "ask_always")
    assert grant.text == desk.person.asked[0].offers[-1].text
    assert grant.text.startswith("note with any to and any text and copies")


async def test_decide_names_the_grant_and_does_not_use_it() -> None:
    desk, call = Desk(Person("always", with_(uses=1)), note), ToolCall("1", "note", NOTE)
    assert (await desk.runner.decide(call, **SOMEBODY)).kind == "ask"
    await desk.asks(NOTE)
    decisions = [await desk.runner.decide(call, **SOMEBODY) for _ in range(3)]
    [grant] = desk.grants.list_active()
    assert [(one.kind, one.rule, one.by) for one in decisions] == [("allow", f"grant {grant.id}", "ada")] * 3
    assert grant.uses == 1 and grant.text in decisions[0].reason


# -- what may be chosen ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "narrow",
    [
        *(with_(key="all"), with_(tool="shell"), lambda offer: replace(offer, seconds=offer.seconds + 1)),
        *(with_(seconds=None), with_(seconds=0.0), with_(seconds=-1.0), with_(seconds=float("nan")), with_(uses=0)),
        *(with_(uses=1.5), with_(uses=True), with_(exactly=True), with_(arguments={}), with_arguments(more=None)),
        *(with_arguments(copies=None), with_arguments(copies={"at_most": 2})),
        *(with_arguments(copies={"at_least": 0, "at_most": 3}), with_arguments(kind={"equals": "b"})),
        *(with_arguments(to={"equals": "/etc"}), with_arguments(to={"one_of": ["a", 1]})),
        *(with_arguments(to={"within": ["/"]}), with_arguments(to={"nothing": 1}), with_arguments(to="bob")),
    ],
)
async def test_an_answer_beyond_the_offer_runs_and_stores_nothing(narrow: Callable[[Offer], Offer]) -> None:
    desk = Desk(Answering(lambda asked: Answer(allow(), narrow(asked.offers[-1]))), note)
    result = await desk.run(NOTE)
    assert (result.status, result.executed) == ("denied", False) and "offer" in result.text
    assert desk.grants.list_active() == []


@pytest.mark.parametrize(
    ("condition", "to", "again"),
    [({"one_of": ["bob", "kim"]}, "kim", False), ({"glob": "b*"}, "eve", True), ({"glob": "/b*"}, "/bob", True)],
)
async def test_a_person_may_narrow_an_offer(condition: object, to: str, again: bool) -> None:
    desk = Desk(Person("always", with_arguments(to=condition)), note)
    assert await desk.asks(NOTE)
    desk.person.key = None
    assert await desk.asks({**NOTE, "to": to}) is again


async def test_always_may_be_narrowed_to_the_session_but_not_widened() -> None:
    desk = Desk(Person("always", with_(session=True)), note)
    assert await desk.asks(NOTE) and [grant.session for grant in desk.grants.list_active()] == ["s1"]
    for person, session in ((Person("this session", with_(session=False)), "s1"), (desk.person, None)):
        refused = Desk(person, note)
        assert (await refused.run(NOTE, session=session)).status == "denied" and refused.grants.list_active() == []


@pytest.mark.parametrize("changed", [{"to": "eve"}, {"copies": True}, {"more": None}, {"copies": ...}, {}])
async def test_edited_arguments_are_not_remembered(changed: dict[str, Any]) -> None:
    def edit(asked: Asked) -> Answer:
        given = {**asked.call.arguments, **changed}
        return Answer(allow({name: value for name, value in given.items() if value is not ...}), asked.offers[-1])

    desk = Desk(Answering(edit), note)
    result = await desk.run({**NOTE, "copies": 1})
    assert (result.status, len(desk.grants.list_active())) == (("denied", 0) if changed else ("ok", 1))
    assert not changed or "changed" in result.text


async def test_a_no_remembers_nothing() -> None:
    desk = Desk(Answering(lambda asked: Answer(deny("no"), asked.offers[-1])), note)
    assert (await desk.run(NOTE)).status == "denied" and desk.grants.list_active() == []


# -- who is asked, and where it is kept --------------------------------------------------------------------------------


async def test_an_async_function_may_stand_inside() -> None:
    async def yes(*asked: Any) -> Decision:
        return allow()

    assert (await Desk(yes, note).run(NOTE)).success


async def test_the_inner_approver_may_foresee_its_answer() -> None:
    class Knows(Person):
        async def foresee(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
            return deny("never")

    assert (await Desk(Knows(), note).runner.decide(ToolCall("1", "note", NOTE))) == deny("never")


async def test_a_broken_store_answers_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Memory):
        def items(self, prefix: str = "") -> dict[str, Any]:
            raise OSError("the disk is gone")

    desk = Desk("always", note, grants=Grants(Broken()))
    assert await desk.asks(NOTE) and await desk.asks(NOTE)
    assert "the disk is gone" in caplog.text
    assert (await desk.runner.decide(ToolCall("1", "note", NOTE), **SOMEBODY)).kind == "ask"


async def test_a_malformed_grant_answers_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = Memory()
    desk = Desk(Person("these", with_(uses=50)), note, grants=Grants(store))
    assert await desk.asks(NOTE)
    [kept] = store.items().values()
    ends_first = kept["expires_at"] - 1
    changes: list[dict[str, Any]] = [
        *({"made_at": None}, {"exactly": None, "arguments": []}, {"uses": "3", "expires_at": ends_first}),
        *({"paths": [1]}, {"exactly": None, "arguments": {"to": {"no": "condition"}, "text": None}}),
    ]
    others: list[Any] = [{"tool": "note"}, 1, "x", [], *[{**kept, "id": "ab", **one} for one in changes]]
    for number, value in enumerate(others):
        store.compare_and_set(f"grant/{value['id'] if number > 3 else number}", None, value)
        assert desk.grants.list_active() and not await desk.asks(NOTE)
        store.compare_and_set("grant/ab", store.get("grant/ab"), None)
    assert await desk.asks({**NOTE, "text": "another"}) and len(desk.grants.list_active()) == 2
    assert "'grant/0' is unreadable" in caplog.text
