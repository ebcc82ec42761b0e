"""Selection in the loop: which tools are offered, which become callable, and that no others run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Runner, Tool, ToolCall, ToolContext, ToolResult, Toolset, ask, tool
from ferrule.errors import DefinitionError
from ferrule.loop import LoopResult, Run, TurnStarted, resume, run
from ferrule.models import Reply, Scripted, Step
from ferrule.selection import Query, search_tool
from selection.rankers import Overlap
from waits import BOUND

ASK: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
NAMES = ("alpha", "beta", "gamma", "delta")


class Chosen:
    """Selects by names, and keeps what it was asked."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.asked: list[tuple[list[Mapping[str, Any]], Toolset]] = []

    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        assert isinstance(tools, Toolset) and not isinstance(messages, str)
        self.asked.append((list(messages), tools))
        return [tools.get(name) for name in self.names]


class Deferring(Scripted):
    """Keeps what it is told was found."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__(steps)
        self.told: list[list[str]] = []

    async def __call__(self, messages: Any, toolset: Toolset, /, *, deferred: Any = (), **given: Any) -> Reply:
        self.told.append(list(deferred))
        return await super().__call__(messages, toolset, **given)


def worker(name: str, ran: list[str]) -> Tool:
    def work() -> str:
        ran.append(name)
        return f"{name} has run"

    return Tool(name, work, description=f"Does {name} things.", read_only=True)


def catalogue(ran: list[str]) -> Toolset:
    tools = Toolset(worker(name, ran) for name in NAMES)
    return tools.register(search_tool(tools, Overlap()))


async def go(steps: Sequence[Step], tools: Toolset, **options: Any) -> tuple[LoopResult, Scripted]:
    model = Scripted(steps)
    return await run(model, ASK, Runner(tools), **options), model


def offered(model: Scripted) -> list[list[str]]:
    return [[tool.name for tool in request.tools] for request in model.requests]


def statuses(result: LoopResult) -> list[tuple[str, str]]:
    return [(one.tool_name, one.status) for one in result.results]


SEARCH = [("search_tools", {"query": "gamma"})]


async def test_without_a_selector_all_tools_are_offered() -> None:
    ran: list[str] = []
    tools = catalogue(ran)
    came, model = await go([SEARCH, [("delta", {})], "Done."], tools)
    assert offered(model) == [[*NAMES, "search_tools"]] * 3 and ran == ["delta"]
    assert came.offered == (*NAMES, "search_tools")


@pytest.mark.parametrize(
    ("chosen", "shown"),
    [(["delta", "beta", "delta"], ["beta", "delta", "search_tools"]), (NAMES, [*NAMES]), ([], ["search_tools"])],
)
async def test_chosen_tools_keep_their_order_and_the_search_tool_stands_behind(chosen: Any, shown: list[str]) -> None:
    selector, tools = Chosen(*chosen), catalogue([])
    _, model = await go([[("nothing", {})], "Done."], tools, selector=selector)
    assert offered(model) == [shown, shown]
    ((messages, given_tools),) = selector.asked  # once for the run
    assert messages == ASK and given_tools is tools


async def test_found_tools_are_offered_from_the_next_turn() -> None:
    ran: list[str] = []
    steps: list[Step] = [
        [*SEARCH, ("gamma", {})],
        [("gamma", {}), ("search_tools", {"query": "alpha does"})],
        [("alpha", {})],
        "Done.",
    ]
    came, model = await go(steps, catalogue(ran), selector=Chosen("delta"))
    first = ["delta", "search_tools"]
    assert offered(model)[:3] == [first, [*first, "gamma"], [*first, "gamma", "alpha", "beta"]]
    assert statuses(came)[:3] == [("search_tools", "ok"), ("gamma", "not_found"), ("gamma", "ok")]
    assert ran == ["gamma", "alpha"] and came.status == "done"
    assert came.offered == (*first, "gamma", "alpha", "beta")


async def test_calling_an_unoffered_tool_hints_at_the_search() -> None:
    came, model = await go([[("beta", {})], "Done."], catalogue([]), selector=Chosen("alpha"))
    assert statuses(came) == [("beta", "not_found")]
    assert "search_tools" in model.requests[1].messages[-1]["content"]


async def test_tools_found_in_another_run_are_not_offered() -> None:
    ran: list[str] = []
    runner, chosen = Runner(catalogue(ran)), Chosen("alpha")
    before = await run(Scripted([SEARCH, "Found."]), ASK, runner, selector=chosen)
    assert "gamma" in before.offered
    model = Scripted([[("gamma", {})], "Done."])
    after = await run(model, [*before.messages, *ASK], runner, selector=chosen)
    assert statuses(after) == [("gamma", "not_found")] and ran == []


async def test_only_a_real_search_tool_can_find_tools() -> None:
    ran: list[str] = []
    entry = {"name": "gamma", "description": "", "input_schema": {"type": "object"}}

    @tool(name="finder", tags=["tool_search"], read_only=True)
    def pretend() -> ToolResult:
        """Pretend to find."""
        return ToolResult("gamma", metadata={"found": [entry], "kept": 1})

    class Written(Scripted):
        seen: list[Any] = []

        def results(self, results: Iterable[ToolResult], /) -> list[Any]:
            listed = list(results)
            self.seen += [dict(result.metadata) for result in listed]
            return super().results(listed)

    model = Written([[("finder", {})], [("gamma", {})], "Done."])
    came = await run(model, ASK, Runner(catalogue(ran).register(pretend)), selector=Chosen("finder"))
    assert statuses(came) == [("finder", "ok"), ("gamma", "not_found")] and ran == []
    assert model.seen[0] == {"kept": 1} and came.results[0].metadata["found"][0]["name"] == "gamma"


async def test_tools_that_earlier_messages_refer_to_are_offered() -> None:
    class Referring(Scripted):
        def find_referred_tools(self, messages: Any) -> list[str]:
            return ["gone", "gamma", "alpha"] if messages else []

    model = Referring(["Done."])
    await run(model, ASK, Runner(catalogue([])), selector=Chosen("alpha"))
    assert offered(model) == [["alpha", "search_tools", "gamma"]]


async def test_messages_cannot_refer_to_unsearchable_tools() -> None:
    class Forged(Scripted):
        def find_referred_tools(self, messages: Any) -> list[str]:
            return ["danger"]

    ran: list[str] = []
    tools = catalogue(ran).register(worker("danger", ran))
    model = Forged([[("danger", {})], "Done."])
    came = await run(model, ASK, Runner(tools), selector=Chosen("alpha"))
    assert offered(model)[0] == ["alpha", "search_tools"] and statuses(came) == [("danger", "not_found")] and ran == []


# What is wrong


async def test_a_selector_must_be_async_and_return_given_tools() -> None:
    class Foreign:
        async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Any]:
            return [worker("alpha", [])]

    with pytest.raises(DefinitionError, match=r"Foreign.*returned <Tool alpha>, which is not one of the tools"):
        await go(["Done."], catalogue([]), selector=Foreign())

    class Plain:
        def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
            return list(tools)

    with pytest.raises(DefinitionError, match=r"Plain.* write select as `async def`"):
        await go(["Done."], catalogue([]), selector=Plain())


def test_an_invalid_selector_is_refused() -> None:
    with pytest.raises(DefinitionError, match="the loop takes selectors"):
        run(Scripted([]), ASK, Runner(catalogue([])), selector=Chosen)  # type: ignore[arg-type]


def test_a_search_tool_must_find_the_runners_tools() -> None:
    another = Tool("delta", lambda: None, description="Deletes everything.")
    for tools, said in (
        (catalogue([]).without("delta"), "finds 'delta', which the runner does not have"),
        (catalogue([]).replace(another), r"finds 'delta', which the runner .* has with another definition"),
    ):
        with pytest.raises(DefinitionError, match=said):
            run(Scripted([]), ASK, Runner(tools), selector=Chosen("alpha"))


async def test_a_run_can_be_cancelled_during_selection() -> None:
    class Slow:
        def __init__(self) -> None:
            self.begun = asyncio.Event()

        async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
            self.begun.set()
            await asyncio.Event().wait()
            return []

    slow, model = Slow(), Scripted([])
    going = run(model, ASK, Runner(catalogue([])), selector=slow)
    task = asyncio.ensure_future(going)
    await slow.begun.wait()
    going.cancel(now=True)
    assert (await task).status == "cancelled" and model.requests == []


# A run that waits


def asked_about(call: ToolCall, context: ToolContext) -> Any:
    return ask("sure?") if call.name == "beta" else None


def later(call: ToolCall, decision: Any, context: ToolContext) -> Any:
    return ask("later")


async def waiting(ran: list[str], steps: list[Step]) -> tuple[dict[str, Any], Runner]:
    runner = Runner(catalogue(ran), guards=[asked_about], approve=later, resume_key=b"k" * 32)
    came = await run(Scripted(steps), ASK, runner, selector=Chosen("beta"))
    assert came.status == "suspended" and came.suspended is not None
    return json.loads(json.dumps(came.suspended)), runner


@pytest.mark.parametrize("steps", [[SEARCH, [("beta", {})]], [[*SEARCH, ("beta", {})]]], ids=["before", "in the turn"])
async def test_a_resumed_run_offers_what_was_offered_and_found(steps: list[Step]) -> None:
    ran: list[str] = []
    suspended, runner = await waiting(ran, steps)

    model = Deferring([[("gamma", {}), ("alpha", {})], "Done."])
    (call_id,) = suspended["waiting"]
    came = await resume(suspended, {call_id: True}, model, runner)
    assert offered(model) == [["beta", "search_tools", "gamma"]] * 2 and model.told == [["gamma"]] * 2
    assert ran == ["beta", "gamma"] and statuses(came)[-1] == ("alpha", "not_found")


async def test_an_edited_state_cannot_offer_unsearchable_tools() -> None:
    def with_other_results(suspended: dict[str, Any]) -> dict[str, Any]:
        suspended["found"] = ["delta", "gamma"]
        for result in suspended["results"]:
            found = [{"name": name, "description": "", "input_schema": {"type": "object"}} for name in NAMES]
            result["metadata"] = {"found": found}
            if result["status"] != "suspended":
                result |= {"tool_name": "search_tools", "status": "ok"}
        return suspended

    async def going_on(before: Runner, after: Runner, *steps: Any) -> tuple[list[list[str]], list[tuple[str, str]]]:
        came = await run(Scripted([list(steps)]), ASK, before, selector=Chosen("beta"))
        saved = with_other_results(json.loads(json.dumps(came.suspended)))
        model = Deferring([[("delta", {})], "Done."])
        came = await resume(saved, dict.fromkeys(saved["waiting"], True), model, after)
        return offered(model), statuses(came)

    ran: list[str] = []
    every = Toolset(worker(name, ran) for name in NAMES)
    some, all_of_them = search_tool(every.only("beta", "gamma"), Overlap()), search_tool(every, Overlap())
    none, narrow, wide = (
        Runner([*every, *search], guards=[asked_about], approve=later, resume_key=b"k" * 32)
        for search in ([], [some], [all_of_them])
    )
    shown, came = await going_on(narrow, narrow, ("beta", {}), *SEARCH)
    assert shown[0] == ["beta", "search_tools", "gamma"] and came[-1] == ("delta", "not_found")
    shown, came = await going_on(none, wide, ("beta", {}), ("alpha", {}))
    assert shown[0] == ["beta"] and came[-1] == ("delta", "not_found")
    assert "delta" not in ran


# The rule itself

ODD = [("Alpha", {}), ("functions.gamma", {}), ("search_tools", {"query": "x"}), ("nothing", {})]
SEARCHES = [("search_tools", {"query": f"{name} please"}) for name in NAMES]
CALLS = st.sampled_from([*((name, {}) for name in NAMES), *SEARCHES, *ODD])


@given(chosen=st.sets(st.sampled_from(NAMES)), turns=st.lists(st.lists(CALLS, min_size=1, max_size=4), max_size=5))
def test_only_tools_offered_in_a_turn_run(chosen: set[str], turns: list[list[tuple[str, dict[str, Any]]]]) -> None:
    ran: list[str] = []

    async def main() -> None:
        going = run(Scripted([*turns, "Done."]), ASK, Runner(catalogue(ran)), selector=Chosen(*chosen))
        offers: list[tuple[str, ...]] = []
        async for event in going:
            if isinstance(event, TurnStarted):
                _check(ran, offers, going)
                offers.append(event.offered)
        _check(ran, offers, going)
        for before, after in pairwise(offers):
            assert after[: len(before)] == before

    def _check(ran: list[str], offers: list[tuple[str, ...]], going: Run) -> None:
        """What ran in the turn that has ended was offered in it; what it found was not callable before."""
        if offers:
            assert set(ran) <= set(offers[-1])
            turn = turns[len(offers) - 1] if len(offers) <= len(turns) else []
            asked = {name.lower().removeprefix("functions.") for name, _ in turn}
            assert set(ran) == (asked & set(offers[-1]) & set(NAMES))
        ran.clear()

    asyncio.run(asyncio.wait_for(main(), BOUND))
