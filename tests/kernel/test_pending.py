"""The record of a suspended call."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator
from test_judged_form import LEAVES, containers, make_tool, to_plain

from cast import ask_always
from ferrule import (
    Clock,
    Decision,
    DefinitionError,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    Toolset,
    Waits,
    allow,
    ask,
    tool,
)
from ferrule.journal import MemoryJournal
from ferrule.kernel import tasks
from ferrule.scheduling.clock import MONOTONIC
from watched import BOUND, Watch, go

KEY, OTHER_KEY = b"k" * 32, b"o" * 40
Ran = list[dict[str, Any]]


def make_write(**options: Any) -> tuple[Tool, Ran]:
    ran: Ran = []

    @tool(**options)
    async def write(n: int, text: str = "t", tenant: str = "", pin: str = "") -> int:
        ran.append({"n": n, "text": text, "tenant": tenant, "pin": pin})
        return n

    return write, ran


def make_runner(tools: Any, **options: Any) -> Runner:
    return Runner(
        tools, **{"guards": [ask_always], "approve": lambda *rest: ask("not now"), "resume_key": KEY, **options}
    )


GIVEN = ToolContext(
    session="s", principal="p", working_directory="/w", metadata={"m": [1]}, deps=object(), secrets={"s": "hush"}
)


async def suspend(runner: Runner, arguments: Any = None, name: str = "write") -> dict[str, Any]:
    """Suspend a call and return its record as another process reads it."""
    call = ToolCall("c1", name, arguments or {"n": 1, "text": "a"}, data={"k": [1, None]}, parent="p1")
    result = await runner.run(call, GIVEN)
    assert (result.status, result.executed) == ("suspended", False), result.error
    return json.loads(json.dumps(result.record(), allow_nan=False))  # type: ignore[no-any-return]


async def begin() -> tuple[Runner, dict[str, Any], Ran]:
    """Return a runner, the record of a call that it suspended, and the list of its runs."""
    write, ran = make_write()
    runner = make_runner([write])
    return runner, await suspend(runner), ran


async def test_a_record_holds_the_call_and_the_question_and_nothing_hidden() -> None:
    write, _ = make_write(private=("pin",))
    guards = [ask_always, lambda call, context: {**call.arguments, "pin": "zero-8-15"}]
    record = await suspend(make_runner(Toolset([write]).bind(tenant="four-7-11"), guards=guards))
    pending = record["pending"]
    assert "hush" not in str(record) and "four-7-11" not in str(record) and "zero-8-15" not in str(record)
    said = (pending["version"], pending["kind"], pending["reason"], pending["into"])
    assert said == (1, "approval", "not now", None)
    assert pending["call"] == {"id": "c1", "name": "write", "data": {"k": [1, None]}, "parent": "p1"}
    assert pending["arguments"] == {"n": 1, "text": "a"}
    context = {"session": "s", "principal": "p", "working_directory": "/w", "metadata": {"m": [1]}}
    assert pending["context"] == context
    assert pending["expires_at"] - pending["asked_at"] == pytest.approx(86_400)
    assert "resume" not in record["metadata"]


async def test_each_field_that_the_docs_name_is_in_a_record() -> None:
    page = (Path(__file__).parents[2] / "docs/approvals.md").read_text(encoding="utf-8")
    table = page.partition("| Field of `pending` |")[2].partition("\n\n")[0]
    named = [name for row in re.findall(r"(?m)^\| (`.*?) \|", table) for name in re.findall(r"`(\w+)`", row)]
    assert named and set(named) <= (await suspend(make_runner([make_write()[0]])))["pending"].keys()


async def test_a_suspended_result_has_its_record_which_nobody_can_change() -> None:
    write, _ = make_write()
    result = await make_runner([write]).run("write", {"n": 1})
    assert result.pending == result.record()["pending"]
    with pytest.raises(TypeError):
        result.pending["key"] = "other"  # type: ignore[index]
    assert result.replace(metadata={"seen": True}).pending == result.pending
    assert result.replace(status="denied").pending is None
    ended = await make_runner([write], guards=[]).run("write", {"n": 1})
    assert ended.pending is None and ended.record()["pending"] is None


async def refusal(runner: Runner, record: Any) -> str:
    """Return the reason why the record is not resumed."""
    try:
        result = await runner.resume(record, True)
    except DefinitionError as error:
        return str(error)
    assert not result.success and result.executed is False
    return str(result.error)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every place in JSON data."""
    if at:
        yield at
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*at, key))


VALUES: list[Any] = [None, True, False, 0, 1, 1.0, -1, "", "x", "a", [], [1], {}, {"n": 2}, 4e12, "c2", "\ud800"]


def edit_everywhere(pending: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the record with one value changed, removed or added at every place."""
    for at in list(places(pending)):
        for value in (..., *VALUES):
            edited = copy.deepcopy(pending)
            holder: Any = edited
            for key in at[:-1]:
                holder = holder[key]
            if value is ...:
                del holder[at[-1]]
            elif json.dumps(holder[at[-1]]) == json.dumps(value):
                continue
            else:
                holder[at[-1]] = value
            yield edited
        holder = edited = copy.deepcopy(pending)
        for key in at:
            holder = holder[key]
        if isinstance(holder, dict):
            holder["added"] = 1
            yield edited
        if isinstance(holder, list):
            holder.append(1)
            yield edited
    yield {**pending, "added": None}
    yield {**pending, "seal": pending["seal"].upper()}
    yield {**pending, "seal": pending["seal"].encode()}


async def test_an_edited_record_uses_nothing_up() -> None:
    runner, record, ran = await begin()
    tried = 0
    for edited in edit_everywhere(record["pending"]):
        result = await runner.resume({**record, "pending": edited}, True)
        assert (result.status, result.executed) == ("invalid", False), edited
        assert not runner.is_sealed({**record, "pending": edited})
        tried += 1
    assert tried > 400 and ran == []
    assert runner.is_sealed(record)
    assert (await runner.resume(record, True)).success
    assert len(ran) == 1


@pytest.mark.parametrize("pending", [{}, {"seal": ""}, {1: 2}, {"x": object()}, {"x": float("nan")}, {"seal": "é"}])
async def test_an_unsealed_record_is_not_resumed(pending: Any) -> None:
    assert "resume_key" in await refusal(make_runner([]), {"pending": pending})


async def test_without_a_key_only_the_runner_and_its_replacements_resume() -> None:
    write, ran = make_write()
    runner = make_runner([write], resume_key=None)
    record = await suspend(runner)
    why = await refusal(make_runner([write], resume_key=None), record)
    assert "resume_key" in why and "only the runner" in why and ran == []
    assert (await runner.replace(approve=lambda *rest: ask("not now")).resume(record, True)).success


async def test_the_first_key_signs_and_all_verify() -> None:
    write, ran = make_write()
    old = await suspend(make_runner([write], resume_key=KEY))
    new = await suspend(make_runner([write], resume_key=[OTHER_KEY, KEY]))
    assert (await make_runner([write], resume_key=[OTHER_KEY, KEY]).resume(old, True)).success
    assert (await make_runner([write], resume_key=(OTHER_KEY,)).resume(new, True)).success
    assert "resume_key" in await refusal(make_runner([write], resume_key=KEY), new)
    assert len(ran) == 2


@pytest.mark.parametrize("key", [b"k" * 31, "k" * 32, bytearray(32), [], [KEY, b"short"], {KEY: KEY}])
def test_an_invalid_resume_key_is_refused_and_not_printed(key: Any) -> None:
    with pytest.raises(DefinitionError, match="resume_key must be at least 32 bytes") as caught:
        Runner([], resume_key=key)
    assert "kkk" not in str(caught.value)


async def test_a_call_of_one_tenant_is_not_resumed_for_another() -> None:
    write, ran = make_write()
    record = await suspend(make_runner([write.bind(tenant="A")]))
    for tools in ([write.bind(tenant="B")], [write], [write.bind(tenant="A", pin="1")]):
        assert "what is bound in it has changed" in await refusal(make_runner(tools), record)
    assert ran == []
    assert (await make_runner([write.bind(tenant="A")]).resume(record, True)).success
    assert ran[0]["tenant"] == "A"


@tool(name="write")
async def other_write(n: int, text: str = "u", tenant: str = "", pin: str = "") -> None:
    raise AssertionError("another tool runs")


A, B = "https://a.example", "https://b.example"
CHANGED: dict[str, tuple[Any, Any, str]] = {
    "another server": (lambda one: one.with_server(A), lambda one: one.with_server(B), "its server"),
    "no server": (lambda one: one.with_server(A), lambda one: one, "its server"),
    "the schema": (lambda one: one, lambda one: other_write, "has changed"),
    "read-only": (lambda one: one, lambda one: one.replace(read_only=True), "has changed"),
    "private": (lambda one: one, lambda one: one.replace(private=("pin",)), "has changed"),
    "a trait of these arguments": (
        lambda one: one.replace(read_only=lambda arguments: arguments["n"] > 5),
        lambda one: one.replace(read_only=lambda arguments: arguments["n"] < 5),
        "has changed",
    ),
}


@pytest.mark.parametrize("what", CHANGED)
async def test_a_changed_tool_is_not_resumed(what: str) -> None:
    (write, ran), (before, after, reason) = make_write(), CHANGED[what]
    record = await suspend(make_runner([before(write)]))
    assert reason in await refusal(make_runner([after(write)]), record)
    assert ran == []
    assert (await make_runner([before(write)]).resume(record, True)).success


MOST = {"cents": 100}


async def test_a_resumed_value_that_validates_to_something_else_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    @tool
    async def change(cents: Annotated[int, AfterValidator(lambda cents: min(cents, MOST["cents"]))]) -> None:
        ran.append(cents)

    runner = make_runner([change])
    record = await suspend(runner, {"cents": 5}, "change")
    with monkeypatch.context() as meanwhile:
        meanwhile.setitem(MOST, "cents", 3)
        result = await runner.resume(record, True)
    assert (result.status, ran) == ("failed", []) and "otherwise than they were judged" in str(result.error)
    assert (await runner.resume(record, True)).success and ran == [5]


@given(st.data())
def test_a_resumed_call_of_any_type_gets_the_judged_value(data: st.DataObject) -> None:
    annotation, values = data.draw(st.recursive(st.sampled_from(LEAVES), containers, max_leaves=4))
    sent, way = data.draw(values), data.draw(st.sampled_from(["function", "class", "model"]))
    got: list[Any] = []
    runner = make_runner([make_tool(annotation, way, got)])
    record = go(suspend(runner, json.dumps({"value": sent}), "take"))
    assert go(runner.resume(record, True)).success
    assert go(make_runner([make_tool(annotation, way, got)], guards=[]).run("take", {"value": sent})).success
    assert to_plain(got[0]) == to_plain(got[1])


async def test_guards_supply_private_values_again_and_nothing_else() -> None:
    write, ran = make_write(private=("pin",))
    pins = iter(["1", "2", "3", "4"])

    def supplies(call: ToolCall, context: ToolContext) -> dict[str, Any] | None:
        return None if call.arguments["pin"] else {**call.arguments, "pin": next(pins)}

    runner = make_runner([write], guards=[supplies, ask_always])
    assert (await runner.resume(await suspend(runner), True)).success
    assert [one["pin"] for one in ran] == ["2"]
    record = await suspend(runner)
    also = make_runner([write], guards=[lambda call, context: {**call.arguments, "pin": "5", "n": 99}])
    result = await also.resume(record, True)
    assert result.status == "denied" and "after they were approved" in str(result.error)
    assert len(ran) == 1


async def test_a_guard_cannot_change_what_a_person_gave() -> None:
    write, ran = make_write(private=("pin",))
    wants = lambda call, context: ask("which pin?", into="pin")  # noqa: E731
    record = await suspend(make_runner([write], guards=[wants]))
    overrides = lambda call, context: {**call.arguments, "pin": "the guard's"}  # noqa: E731
    result = await make_runner([write], guards=[overrides]).resume(record, allow({"pin": "mine"}))
    assert (result.status, ran) == ("denied", [])


async def test_a_private_value_of_a_person_is_asked_for_again() -> None:
    write, ran = make_write(private=("pin",))
    wants = lambda call, context: ask("which pin?", into="pin")  # noqa: E731
    runner = make_runner([write], guards=[wants])
    again = await runner.resume(await suspend(runner), Decision("ask", "not yet", arguments={"pin": "zero-8-15"}))
    assert again.pending is not None and again.pending["into"] == "pin" and "zero-8-15" not in str(again.record())
    assert (await runner.resume(again.record(), allow({"pin": "four-7-11"}))).success
    assert [one["pin"] for one in ran] == ["four-7-11"]


class Today(Clock):
    """The machine's time, on a day that a test chooses."""

    time, sleep = staticmethod(MONOTONIC.time), staticmethod(MONOTONIC.sleep)

    def __init__(self) -> None:
        self.today = 1_000_000.0

    def now(self) -> float:
        return self.today


async def test_replacements_in_several_threads_run_the_call_once() -> None:
    runner, record, ran = await begin()
    ready = threading.Barrier(4)

    def resume() -> str:
        mine = runner.replace()
        ready.wait(BOUND)
        return asyncio.run(mine.resume(record, True)).status  # type: ignore[arg-type]

    statuses = await asyncio.gather(*(asyncio.to_thread(resume) for _ in range(4)))
    assert sorted(statuses) == ["invalid", "invalid", "invalid", "ok"] and len(ran) == 1


async def test_a_used_record_is_forgotten_when_it_expires() -> None:
    clock, (write, ran) = Today(), make_write()
    runner = make_runner([write], waits=Waits(resume=10), clock=clock)
    first = await suspend(runner)
    assert (await runner.resume(first, True)).success
    clock.today += 10
    assert (await runner.resume(await suspend(runner), True)).success
    assert len(runner._state.resumed_records._expiries) == 1
    assert (await runner.resume(first, True)).status == "invalid"
    assert len(ran) == 2


class Keeping(MemoryJournal):
    """A journal that several runners share; `answer` instead of its own, or an error."""

    def __init__(self, answer: Any = None) -> None:
        super().__init__()
        self.keys: dict[str, float] = {}
        self.answer = answer

    async def take(self, key: str, expires_at: float) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.keys.setdefault(key, expires_at) is expires_at if self.answer is None else self.answer


async def test_runners_that_share_a_journal_run_the_call_once() -> None:
    write, ran = make_write()
    journal = Keeping()
    record = await suspend(make_runner([write], journal=journal))
    results = [await make_runner([write], journal=journal).resume(record, True) for _ in range(2)]
    assert [result.status for result in results] == ["ok", "ok"] and len(ran) == 1
    assert results[1].metadata == {"replayed": True, "resumed_already": True}
    assert journal.keys == {record["pending"]["key"]: record["pending"]["expires_at"]}


@pytest.mark.parametrize("answer", [OSError("down"), asyncio.CancelledError(), 1, False])
async def test_nothing_runs_unless_the_journal_says_true(answer: Any) -> None:
    write, ran = make_write()
    journal = Keeping(answer)
    record = await suspend(make_runner([write], journal=journal))
    result = await make_runner([write], journal=journal).resume(record, True)
    assert result.status in {"failed", "invalid"} and result.executed is False and ran == []
    assert "down" not in str(result.error)


async def test_nothing_runs_if_the_journal_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "ANSWER_SECONDS", 0.01)
    write, ran = make_write()

    class Hangs(Keeping):
        async def take(self, key: str, expires_at: float) -> Any:
            await asyncio.Event().wait()

    record = await suspend(make_runner([write], journal=Hangs()))
    assert (await make_runner([write], journal=Hangs()).resume(record, True)).status == "failed"
    assert ran == []


@pytest.mark.parametrize("place", ["around", "inside"])
async def test_middleware_cannot_return_the_suspended_result_of_another_call(place: str) -> None:
    write, ran = make_write()
    first: list[ToolResult] = []

    async def replays(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        result = await next(call, context)
        return first[0] if first else result

    watch = Watch()
    runner = make_runner(
        [write], guards=[lambda call, context: ask("?") if call.arguments["n"] else None], observers=[watch]
    )
    first.append(await runner.run("write", {"n": 1}))
    replaying = Runner([write], observers=[watch], **{place: [replays]})
    result = await replaying.run(ToolCall("c2", "write", {"n": 0}))
    assert [one["n"] for one in ran] == [0]
    assert (result.status, result.executed, result.pending) == ("failed", True, None)
    assert "Nothing was run" not in str(result.error)
    assert watch.ends("c2") == ["tool:error"]


async def test_observers_of_resume_see_that_call_only() -> None:
    write, _ = make_write()
    everything: list[Any] = []
    seen: list[Any] = []
    runner = make_runner([write], observers=[everything.append])
    first, second = [(await runner.run("write", {"n": n})).record() for n in (1, 2)]
    del everything[:]
    await runner.resume(first, True, observers=[seen.append])
    await runner.resume(second, True)
    assert [event.kind for event in seen] == ["tool:decided", "tool:started", "tool:post"]
    assert everything[:3] == seen and len(everything) == 6
