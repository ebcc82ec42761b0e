"""The record of a suspended call: what is in it, that it is believed only as it was sealed, and that it runs once."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, PlainSerializer, StringConstraints, TypeAdapter
from test_judged_form import BOTH, EXACT, LEAVES, REWRITTEN, plain, taking, wrapped

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
    deny,
    tool,
)
from ferrule.journal import MemoryJournal
from ferrule.kernel import tasks
from ferrule.scheduling.clock import MONOTONIC
from watched import BOUND, Watch, go

KEY, OTHER_KEY = b"k" * 32, b"o" * 40
Ran = list[dict[str, Any]]


def asks(call: ToolCall, context: ToolContext) -> Decision:
    return ask("really?")


def later(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    return ask("not now")


def writing(**options: Any) -> tuple[Tool, Ran]:
    ran: Ran = []

    @tool(**options)
    async def write(n: int, text: str = "t", tenant: str = "", pin: str = "") -> int:
        ran.append({"n": n, "text": text, "tenant": tenant, "pin": pin})
        return n

    return write, ran


def made(tools: Any, **options: Any) -> Runner:
    return Runner(tools, **{"guards": [asks], "approve": later, "resume_key": KEY, **options})


GIVEN = ToolContext(
    session="s", principal="p", working_directory="/w", metadata={"m": [1]}, deps=object(), secrets={"s": "hush"}
)


def suspended(runner: Runner, arguments: Any = None, name: str = "write") -> dict[str, Any]:
    """The record of a suspended call, as another process would read it."""
    call = ToolCall("c1", name, arguments or {"n": 1, "text": "a"}, data={"k": [1, None]}, parent="p1")
    result = go(runner.run(call, GIVEN))
    assert (result.status, result.executed) == ("suspended", False), result.error
    return json.loads(json.dumps(result.record(), allow_nan=False))  # type: ignore[no-any-return]


# -- what is in it -----------------------------------------------------------------------------------------------------


def test_it_holds_the_call_the_context_and_the_question_and_nothing_hidden() -> None:
    write, _ = writing(private=("pin",))
    guards = [asks, lambda call, context: {**call.arguments, "pin": "zero-8-15"}]
    record = suspended(made(Toolset([write]).bind(tenant="four-7-11"), guards=guards))
    pending = record["pending"]
    assert "hush" not in str(record) and "four-7-11" not in str(record) and "zero-8-15" not in str(record)
    assert {key: pending[key] for key in ("version", "kind", "reason", "into")} == {
        "version": 1,
        "kind": "approval",
        "reason": "not now",
        "into": None,
    }
    assert pending["call"] == {"id": "c1", "name": "write", "data": {"k": [1, None]}, "parent": "p1"}
    assert pending["arguments"] == {"n": 1, "text": "a"}
    assert pending["context"] == {
        "session": "s",
        "principal": "p",
        "working_directory": "/w",
        "metadata": {"m": [1]},
    }
    assert pending["expires_at"] - pending["asked_at"] == pytest.approx(86_400)
    assert "resume" not in record["metadata"]


def test_the_page_names_each_of_its_fields() -> None:
    page = (Path(__file__).parents[2] / "docs/approvals.md").read_text(encoding="utf-8")
    table = page.partition("| Field of `pending` |")[2].partition("\n\n")[0]
    named = [name for row in re.findall(r"(?m)^\| (`.*?) \|", table) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(suspended(made([writing()[0]]))["pending"])


async def test_the_result_has_it_too_and_nobody_can_change_it() -> None:
    write, _ = writing()
    result = await made([write]).run("write", {"n": 1})
    assert result.pending == result.record()["pending"]
    with pytest.raises(TypeError):
        result.pending["key"] = "other"  # type: ignore[index]
    assert result.replace(metadata={"seen": True}).pending == result.pending
    assert result.replace(status="denied").pending is None


async def test_a_result_of_any_other_status_has_none() -> None:
    write, _ = writing()
    result = await made([write], guards=[]).run("write", {"n": 1})
    assert result.pending is None and result.record()["pending"] is None


def test_it_holds_arguments_of_any_size_whole() -> None:
    write, ran = writing()
    record = suspended(made([write]), {"n": 1, "text": "x" * 900_000})
    assert go(made([write]).resume(record, True)).success
    assert ran[0]["text"] == "x" * 900_000


# -- what a handler or a middleware makes of it ------------------------------------------------------------------------


def refused(runner: Runner, record: Any) -> str:
    """Why a record is not resumed."""
    try:
        result = go(runner.resume(record, True))
    except DefinitionError as error:
        return str(error)
    assert not result.success and result.executed is False
    return str(result.error)


def test_what_a_handler_writes_is_no_record() -> None:
    write, ran = writing()
    real = suspended(made([write]))

    @tool
    async def forge() -> ToolResult:
        return ToolResult("x", metadata={"resume": real["pending"], "pending": real["pending"]})

    runner = made([forge, write], guards=[])
    result = go(runner.run("forge"))
    assert result.success and result.pending is None
    assert "suspended result" in refused(runner, result.record())
    assert ran == []


@pytest.mark.parametrize("place", ["handler", "around", "cached"])
async def test_the_record_of_another_call_does_not_come_along(place: str) -> None:
    write, ran = writing()
    foreign: list[ToolResult] = []

    @tool
    async def outer(context: ToolContext) -> Any:
        result = await context.run("write", {"n": 1})
        foreign.append(result)
        return result

    async def around(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        result: ToolResult = await next(call, context)
        if call.name != "outer":
            return result
        return foreign[0] if place == "cached" else foreign[0].replace(output=1)

    only_write = lambda call, context: ask("sure?") if call.name == "write" else None  # noqa: E731
    middleware = [] if place == "handler" else [around]
    result = await made([write, outer], guards=[only_write], around=middleware).run("outer")
    assert foreign[0].pending is not None
    assert result.pending is None and result.record()["pending"] is None
    assert ran == []


async def test_a_middleware_that_runs_the_call_after_all_leaves_no_record() -> None:
    write, ran = writing()
    answers = [ask("not now"), True]

    async def around(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        first: ToolResult = await next(call, context)
        assert (await next(call, context)).success
        return first

    result = await made([write], around=[around], approve=lambda *rest: answers.pop(0)).run("write", {"n": 1})
    assert result.pending is None and len(ran) == 1


# -- the seal ----------------------------------------------------------------------------------------------------------


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something is in JSON data, at every depth."""
    if at:
        yield at
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*at, key))


VALUES: list[Any] = [None, True, False, 0, 1, 1.0, -1, "", "x", "a", [], [1], {}, {"n": 2}, 4e12, "c2", "\ud800"]


def edits(pending: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The record with something changed, left out or added, anywhere in it."""
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


def test_an_edit_anywhere_in_it_runs_nothing_and_uses_nothing_up() -> None:
    write, ran = writing()
    runner = made([write])
    record = suspended(runner, {"n": 1, "text": "a"})

    async def main() -> None:
        tried = 0
        for edited in edits(record["pending"]):
            result = await runner.resume({**record, "pending": edited}, True)
            assert (result.status, result.executed) == ("invalid", False), edited
            assert not runner.is_sealed({**record, "pending": edited})
            tried += 1
        assert tried > 400 and ran == []
        assert runner.is_sealed(record)
        assert (await runner.resume(record, True)).success

    go(main())
    assert len(ran) == 1


def test_edits_outside_of_it_change_nothing() -> None:
    write, ran = writing()
    record = suspended(made([write]))
    lies = {"tool_name": "other", "call_id": "c9", "metadata": {"resume": {}}, "success": True, "more": 1}
    result = go(made([write]).resume({**record, **lies}, True))
    assert result.success and result.call_id == "c1" and ran == [{"n": 1, "text": "a", "tenant": "", "pin": ""}]
    assert go(made([write]).resume({"pending": suspended(made([write]))["pending"]}, True)).success


def test_the_order_of_its_keys_is_nobodys_business() -> None:
    write, _ = writing()
    record = suspended(made([write]))
    turned = {"pending": dict(reversed(record["pending"].items()))}
    assert go(made([write]).resume(turned, True)).success


@pytest.mark.parametrize("pending", [{}, {"seal": ""}, {1: 2}, {"x": object()}, {"x": float("nan")}, {"seal": "é"}])
def test_what_was_never_sealed_is_not_resumed(pending: Any) -> None:
    write, ran = writing()
    assert "resume_key" in refused(made([write]), {"pending": pending})
    assert ran == []


def test_data_without_end_is_not_resumed() -> None:
    nested: Any = {}
    for _ in range(100_000):
        nested = {"a": nested}
    assert "resume_key" in refused(made([]), {"pending": nested})
    while nested:  # or freeing it at once goes as deep
        nested = nested.get("a")
    gc.collect()


def test_without_a_key_only_the_runner_and_its_replacements_resume() -> None:
    write, ran = writing()
    runner = made([write], resume_key=None)
    record = suspended(runner)
    why = refused(made([write], resume_key=None), record)
    assert "resume_key" in why and "only the runner" in why and ran == []
    assert go(runner.replace(approve=later).resume(record, True)).success


def test_the_first_key_signs_and_all_verify() -> None:
    write, ran = writing()
    old = suspended(made([write], resume_key=KEY))
    new = suspended(made([write], resume_key=[OTHER_KEY, KEY]))
    assert go(made([write], resume_key=[OTHER_KEY, KEY]).resume(old, True)).success
    assert go(made([write], resume_key=(OTHER_KEY,)).resume(new, True)).success
    assert "resume_key" in refused(made([write], resume_key=KEY), new)
    assert len(ran) == 2


@pytest.mark.parametrize(
    "key", [b"k" * 31, b"", "k" * 32, bytearray(32), [], [KEY, b"short"], [KEY, None], 5, {KEY: KEY}, {KEY}]
)
def test_what_is_no_key_is_a_programmers_mistake_that_does_not_print_it(key: Any) -> None:
    with pytest.raises(DefinitionError, match="resume_key must be at least 32 bytes") as caught:
        Runner([], resume_key=key)
    assert "kkk" not in str(caught.value)


@pytest.mark.parametrize("within", [0, -1, float("inf"), "day", True])
def test_a_time_that_is_none_is_a_programmers_mistake(within: Any) -> None:
    with pytest.raises(DefinitionError, match="resume=…"):
        Runner([], waits=Waits(resume=within))


# -- the tool and what is bound ----------------------------------------------------------------------------------------


def test_what_was_suspended_for_one_tenant_does_not_run_for_another() -> None:
    write, ran = writing()
    record = suspended(made([write.bind(tenant="A")]))
    for tools in ([write.bind(tenant="B")], [write], [write.bind(tenant="A", pin="1")]):
        assert "what is bound in it has changed" in refused(made(tools), record)
    assert ran == []
    assert go(made([write.bind(tenant="A")]).resume(record, True)).success
    assert ran[0]["tenant"] == "A"


def test_what_was_suspended_for_one_server_does_not_run_on_another() -> None:
    write, ran = writing()
    record = suspended(made([write.with_server("https://a.example")]))
    for other in (write.with_server("https://b.example"), write):
        assert "its server" in refused(made([other]), record)
    assert "its server" in refused(made([write.with_server("https://a.example")]), suspended(made([write])))
    assert ran == []
    assert go(made([write.with_server("https://a.example").replace(timeout=60)]).resume(record, True)).success


def test_a_tool_that_changed_meanwhile_does_not_run_but_its_description_may_change() -> None:
    write, ran = writing()
    record = suspended(made([write]))

    @tool(name="write")
    async def other(n: int, text: str = "u", tenant: str = "", pin: str = "") -> None:
        ran.append({})

    changed = [other, write.replace(read_only=True), write.replace(idempotent=True), write.replace(private=("pin",))]
    for one in changed:
        assert "has changed" in refused(made([one]), record)
    assert ran == []
    assert go(made([write.replace(description="Other words.")]).resume(record, True)).success


def test_traits_that_are_functions_are_compared_for_these_arguments() -> None:
    write, _ = writing(read_only=lambda arguments: arguments["n"] > 5)
    record = suspended(made([write]))
    assert "has changed" in refused(made([write.replace(read_only=lambda arguments: arguments["n"] < 5)]), record)
    assert go(made([write.replace(read_only=lambda arguments: False)]).resume(record, True)).success


def test_another_tool_under_the_name_that_the_model_wrote_does_not_run() -> None:
    write, ran = writing()
    record = suspended(made([write.replace(name="math.write")]), name="math.write")
    assert go(made([write]).resume(record, True)).status in {"invalid", "not_found"}
    assert ran == []


def test_two_records_do_not_tell_whether_the_same_is_bound() -> None:
    write, _ = writing()
    runner = made([write.bind(tenant="A")])
    one, other = (suspended(runner)["pending"] for _ in range(2))
    assert one["tool"] != other["tool"] and one["key"] != other["key"]


# -- what was judged is what runs --------------------------------------------------------------------------------------


@tool
async def pay(
    cents: Annotated[int, AfterValidator(lambda euros: euros * 100), PlainSerializer(lambda cents: cents // 100)],
    to: Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True)],
) -> str:
    return f"{cents} to {to}"


def test_objects_are_made_anew_from_what_was_judged() -> None:
    record = suspended(made([pay]), {"cents": 5, "to": " Ada "}, "pay")
    assert record["pending"]["arguments"] == {"cents": 5, "to": "ada"}
    assert go(made([pay]).resume(record, True)).output == "500 to ada"


def test_a_suspended_call_that_is_suspended_again_is_still_what_was_judged() -> None:
    runner = made([pay])
    again = go(runner.resume(suspended(runner, {"cents": 5, "to": " Ada "}, "pay"), ask("not yet")))
    assert again.status == "suspended"
    assert go(runner.resume(again.record(), True)).output == "500 to ada"


def test_an_edit_of_the_person_is_in_the_terms_of_what_was_judged() -> None:
    record = suspended(made([pay]), {"cents": 5, "to": " Ada "}, "pay")
    assert go(made([pay]).resume(record, allow({"cents": 7, "to": "bob"}))).output == "700 to bob"
    denied = go(made([pay]).resume(record, allow({"cents": 5, "to": "Ada"})))
    assert denied.status == "denied" and "would come out otherwise" in str(denied.error)


MOST = {"cents": 100}


def test_what_comes_out_otherwise_than_it_was_judged_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    @tool
    async def change(cents: Annotated[int, AfterValidator(lambda cents: min(cents, MOST["cents"]))]) -> None:
        ran.append(cents)

    runner = made([change])
    record = suspended(runner, {"cents": 5}, "change")
    with monkeypatch.context() as meanwhile:
        meanwhile.setitem(MOST, "cents", 3)
        result = go(runner.resume(record, True))
    assert (result.status, ran) == ("failed", []) and "otherwise than they were judged" in str(result.error)
    assert go(runner.resume(record, True)).success and ran == [5]


@BOTH
@pytest.mark.parametrize("case", [*REWRITTEN, *EXACT])
def test_what_is_resumed_gets_what_was_judged(case: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRULE_TEST", "etc")
    annotation, sent, *_ = REWRITTEN.get(case) or EXACT[case]
    got: list[Any] = []
    one = taking(annotation, way, got)
    shown: list[Any] = []
    sees = lambda call, context: shown.append(dict(call.arguments))  # noqa: E731
    record = suspended(made([one], guards=[sees, asks]), {"value": sent}, "take")
    result = go(made([one], guards=[sees, asks]).resume(record, True))
    assert result.success, result.error
    assert shown[0] == shown[1] == record["pending"]["arguments"]
    assert go(made([one], guards=[]).run("take", {"value": sent})).success
    resumed, direct = (TypeAdapter(annotation).dump_json(value) for value in got)
    assert resumed == direct or got[0] == got[1]  # a set has no order


@given(st.data())
def test_for_any_type_what_is_resumed_gets_what_was_judged(data: st.DataObject) -> None:
    annotation, values = data.draw(st.recursive(st.sampled_from(LEAVES), wrapped, max_leaves=4))
    sent, way = data.draw(values), data.draw(st.sampled_from(["function", "class", "model"]))
    got: list[Any] = []
    runner = made([taking(annotation, way, got)])
    record = suspended(runner, json.dumps({"value": sent}), "take")
    assert go(runner.resume(record, True)).success
    assert go(made([taking(annotation, way, got)], guards=[]).run("take", {"value": sent})).success
    assert plain(got[0]) == plain(got[1])


# -- private values ----------------------------------------------------------------------------------------------------


def test_guards_supply_their_private_values_again_and_nothing_else() -> None:
    write, ran = writing(private=("pin",))
    pins = iter(["1", "2", "3", "4"])

    def supplies(call: ToolCall, context: ToolContext) -> dict[str, Any] | None:
        return None if call.arguments["pin"] else {**call.arguments, "pin": next(pins)}

    runner = made([write], guards=[supplies, asks])
    assert go(runner.resume(suspended(runner), True)).success
    assert [one["pin"] for one in ran] == ["2"]
    record = suspended(runner)
    also = made([write], guards=[lambda call, context: {**call.arguments, "pin": "5", "n": 99}])
    result = go(also.resume(record, True))
    assert result.status == "denied" and "after they were approved" in str(result.error)
    assert len(ran) == 1


async def test_a_private_value_that_changes_after_a_live_answer_denies() -> None:
    write, ran = writing(private=("pin",))
    pins = iter("12")
    rotates = lambda call, context: {**call.arguments, "pin": next(pins)}  # noqa: E731
    result = await made([write], guards=[rotates, asks], approve=lambda *rest: True).run("write", {"n": 1})
    assert (result.status, ran) == ("denied", [])


def test_what_a_person_gave_is_not_changed_by_a_guard() -> None:
    write, ran = writing(private=("pin",))
    wants = lambda call, context: ask("which pin?", into="pin")  # noqa: E731
    record = suspended(made([write], guards=[wants]))
    overrides = lambda call, context: {**call.arguments, "pin": "the guard's"}  # noqa: E731
    result = go(made([write], guards=[overrides]).resume(record, allow({"pin": "mine"})))
    assert (result.status, ran) == ("denied", [])


def test_what_a_person_gave_before_is_asked_for_again() -> None:
    write, ran = writing(private=("pin",))
    wants = lambda call, context: ask("which pin?", into="pin")  # noqa: E731
    runner = made([write], guards=[wants])
    again = go(runner.resume(suspended(runner), Decision("ask", "not yet", arguments={"pin": "zero-8-15"})))
    assert again.pending is not None and again.pending["into"] == "pin" and "zero-8-15" not in str(again.record())
    assert go(runner.resume(again.record(), allow({"pin": "four-7-11"}))).success
    assert [one["pin"] for one in ran] == ["four-7-11"]


# -- once --------------------------------------------------------------------------------------------------------------


class Today(Clock):
    """The machine's time, on a day that a test chooses."""

    time, sleep = staticmethod(MONOTONIC.time), staticmethod(MONOTONIC.sleep)

    def __init__(self) -> None:
        self.today = 1_000_000.0

    def now(self) -> float:
        return self.today


def test_two_at_once_run_once() -> None:
    write, ran = writing()
    runner = made([write])
    record = suspended(runner)

    async def main() -> list[str]:
        results = await asyncio.gather(*(runner.resume(record, True) for _ in range(5)))
        return sorted(result.status for result in results)

    assert go(main()) == ["invalid"] * 4 + ["ok"]
    assert len(ran) == 1


def test_replacements_in_several_threads_run_it_once() -> None:
    write, ran = writing()
    runner = made([write])
    record, ready = suspended(runner), threading.Barrier(4)

    def resume() -> None:
        mine = runner.replace()
        ready.wait(BOUND)
        asyncio.run(mine.resume(record, True))  # type: ignore[arg-type]

    threads = [threading.Thread(target=resume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert len(ran) == 1


def test_it_stays_used_after_thousands_of_others() -> None:
    write, ran = writing()
    runner = made([write])
    record = suspended(runner)

    async def main() -> ToolResult:
        assert (await runner.resume(record, True)).success
        for number in range(10_001):
            assert await runner._state.resumed_records.take(str(number), 1e12)
        return await runner.resume(record, True)

    assert go(main()).status == "invalid"
    assert len(ran) == 1


def test_what_is_kept_of_it_is_forgotten_when_it_expires() -> None:
    clock, (write, ran) = Today(), writing()
    runner = made([write], waits=Waits(resume=10), clock=clock)
    first = suspended(runner)
    assert go(runner.resume(first, True)).success
    clock.today += 10
    assert go(runner.resume(suspended(runner), True)).success
    assert len(runner._state.resumed_records._expiries) == 1
    assert go(runner.resume(first, True)).status == "invalid"
    assert len(ran) == 2


def test_an_answer_that_comes_too_late_is_refused_and_told() -> None:
    clock, (write, ran), watch = Today(), writing(), Watch()
    runner = made([write], waits=Waits(resume=10), observers=[watch], clock=clock)
    record = suspended(runner)
    clock.today += 10
    result = go(runner.resume(record, True))
    assert (result.status, ran) == ("invalid", []) and "too late" in str(result.error)
    assert watch.kinds()[-1] == "tool:error"


def test_what_is_refused_before_it_is_taken_up_uses_nothing_up() -> None:
    write, ran = writing()
    runner = made([write])
    record = suspended(runner)
    elsewhere = runner.replace()
    runner.disable("write", "not today")
    assert [go(one.resume(record, True)).status for one in (runner, elsewhere)] == ["denied", "denied"]
    runner.enable("write")
    assert go(elsewhere.resume(record, True)).success and len(ran) == 1


@pytest.mark.parametrize("answer", [False, deny("no"), None, ask("not yet")])
def test_every_answer_uses_it_up(answer: Any) -> None:
    write, ran = writing()
    runner = made([write])
    record = suspended(runner)
    assert go(runner.resume(record, answer)).status in {"denied", "suspended"}
    assert go(runner.resume(record, True)).status == "invalid"
    assert ran == []


# -- once, in a journal ------------------------------------------------------------------------------------------------


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


def test_a_journal_that_takes_makes_it_once_for_all_who_share_it() -> None:
    write, ran = writing()
    journal = Keeping()
    record = suspended(made([write], journal=journal))
    results = [go(made([write], journal=journal).resume(record, True)) for _ in range(2)]
    assert [result.status for result in results] == ["ok", "ok"] and len(ran) == 1
    assert results[1].metadata == {"replayed": True, "resumed_already": True}
    assert journal.keys == {record["pending"]["key"]: record["pending"]["expires_at"]}


@pytest.mark.parametrize("answer", [OSError("down"), SystemExit(1), asyncio.CancelledError(), 1, "yes", False])
def test_a_journal_that_breaks_or_says_anything_but_true_runs_nothing(answer: Any) -> None:
    write, ran = writing()
    journal = Keeping(answer)
    record = suspended(made([write], journal=journal))
    result = go(made([write], journal=journal).resume(record, True))
    assert result.status in {"failed", "invalid"} and result.executed is False and ran == []
    assert "down" not in str(result.error)


def test_a_journal_that_hangs_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "ANSWER_SECONDS", 0.01)
    write, ran = writing()

    class Hangs(Keeping):
        async def take(self, key: str, expires_at: float) -> Any:
            await asyncio.Event().wait()

    record = suspended(made([write], journal=Hangs()))
    assert go(made([write], journal=Hangs()).resume(record, True)).status == "failed"
    assert ran == []


def test_a_record_that_expires_while_the_journal_takes_it_does_not_run() -> None:
    clock, (write, ran) = Today(), writing()

    class Slow(Keeping):
        async def take(self, key: str, expires_at: float) -> Any:
            clock.today = expires_at
            return True

    runner = made([write], journal=Slow(), clock=clock)
    assert go(runner.resume(suspended(runner), True)).status == "invalid"
    assert ran == []


# -- who answered ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [True, False, ask("not yet")])
def test_who_answered_is_in_the_event_and_in_the_record(answer: Any) -> None:
    write, _ = writing()
    watch = Watch()
    record = suspended(made([write]))
    result = go(made([write], observers=[watch]).resume(record, answer, by="ada"))
    [decided] = [event for event in watch.events if event.kind == "tool:decided"]
    assert decided.data["by"] == "ada" and decided.data["decision"].kind in {"allow", "deny", "ask"}
    assert result.approved_by == result.record()["approved_by"] == "ada"
    json.dumps(result.record())


def test_where_nobody_says_who_answered_nothing_is_said() -> None:
    write, _ = writing()
    watch = Watch()
    result = go(made([write], observers=[watch]).resume(suspended(made([write])), True))
    assert result.record()["approved_by"] is None
    assert all("by" not in event.data for event in watch.events)


def test_who_answered_is_a_name() -> None:
    write, ran = writing()
    with pytest.raises(DefinitionError, match="by="):
        go(made([write]).resume(suspended(made([write])), True, by=object()))  # type: ignore[arg-type]
    assert ran == []


@pytest.mark.parametrize("place", ["around", "inside"])
def test_a_middleware_cannot_pass_the_suspended_result_of_one_call_off_as_that_of_another(place: str) -> None:
    write, ran = writing()
    first: list[ToolResult] = []

    async def replays(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        result = await next(call, context)
        return first[0] if first else result

    watch = Watch()
    runner = made([write], guards=[lambda call, context: ask("?") if call.arguments["n"] else None], observers=[watch])
    first.append(go(runner.run("write", {"n": 1})))
    replaying = Runner([write], observers=[watch], **{place: [replays]})
    result = go(replaying.run(ToolCall("c2", "write", {"n": 0})))
    assert [one["n"] for one in ran] == [0]
    assert (result.status, result.executed, result.pending) == ("failed", True, None)
    assert "Nothing was run" not in str(result.error)
    assert watch.ends("c2") == ["tool:error"]


async def test_observers_that_are_given_to_resume_see_that_call_and_no_other() -> None:
    write, _ = writing()
    everything: list[Any] = []
    seen: list[Any] = []

    async def main() -> None:
        runner = made([write], observers=[everything.append])
        first, second = [(await runner.run("write", {"n": n})).record() for n in (1, 2)]
        del everything[:]
        await runner.resume(first, True, observers=[seen.append])
        await runner.resume(second, True)

    await main()
    assert [event.kind for event in seen] == ["tool:decided", "tool:started", "tool:post"]
    assert everything[:3] == seen and len(everything) == 6
