"""Selection in the loop: what is offered, what becomes callable, and that nothing else runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Runner, Tool, ToolCall, ToolContext, ToolResult, Toolset, ask, deny, tool
from ferrule.errors import DefinitionError
from ferrule.loop import LoopResult, NotResumed, Run, TurnStarted, resume, run
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


def go(steps: Sequence[Step], tools: Toolset, **options: Any) -> tuple[LoopResult, Scripted]:
    model = Scripted(steps)

    async def main() -> LoopResult:
        async with asyncio.timeout(BOUND):
            return await run(model, ASK, Runner(tools), **options)

    return asyncio.run(main()), model


def offered(model: Scripted) -> list[list[str]]:
    return [[tool.name for tool in request.tools] for request in model.requests]


def statuses(result: LoopResult) -> list[tuple[str, str]]:
    return [(one.tool_name, one.status) for one in result.results]


SEARCH = [("search_tools", {"query": "gamma"})]


def test_without_a_selector_all_tools_are_offered_with_or_without_a_search_tool() -> None:
    ran: list[str] = []
    tools = catalogue(ran)
    came, model = go([SEARCH, [("delta", {})], "Done."], tools)
    assert offered(model) == [[*NAMES, "search_tools"]] * 3 and ran == ["delta"]
    assert came.offered == (*NAMES, "search_tools")


def test_the_selector_is_asked_once_with_the_messages_and_the_runners_tools() -> None:
    chosen, tools = Chosen("alpha"), catalogue([])
    go([[("alpha", {})], [("alpha", {})], "Done."], tools, selector=chosen)
    ((messages, given),) = chosen.asked
    assert messages == ASK and given is tools


def test_what_it_chose_is_offered_in_the_runners_order_and_the_search_tool_behind() -> None:
    _, model = go(["Done."], catalogue([]), selector=Chosen("delta", "beta", "delta"))
    assert offered(model) == [["beta", "delta", "search_tools"]]


def test_the_search_tool_is_left_out_where_all_others_were_chosen() -> None:
    _, model = go(["Done."], catalogue([]), selector=Chosen(*NAMES))
    assert offered(model) == [list(NAMES)]


def test_a_selector_that_chooses_nothing_leaves_the_search_tool() -> None:
    _, model = go(["Done."], catalogue([]), selector=Chosen())
    assert offered(model) == [["search_tools"]]
    _, bare = go(["Done."], catalogue([]).without("search_tools"), selector=Chosen())
    assert offered(bare) == [[]]


def test_what_was_found_is_offered_behind_the_others_from_the_next_turn_on() -> None:
    ran: list[str] = []
    steps: list[Step] = [
        [*SEARCH, ("gamma", {})],
        [("gamma", {}), ("search_tools", {"query": "alpha does"})],
        [("alpha", {})],
        "Done.",
    ]
    came, model = go(steps, catalogue(ran), selector=Chosen("delta"))
    first = ["delta", "search_tools"]
    assert offered(model)[:3] == [first, [*first, "gamma"], [*first, "gamma", "alpha", "beta"]]
    assert statuses(came)[:3] == [("search_tools", "ok"), ("gamma", "not_found"), ("gamma", "ok")]
    assert ran == ["gamma", "alpha"] and came.status == "done"
    assert came.offered == (*first, "gamma", "alpha", "beta")


def test_each_turn_says_what_it_offers() -> None:
    async def main() -> list[TurnStarted]:
        going = run(Scripted([SEARCH, "Done."]), ASK, Runner(catalogue([])), selector=Chosen("alpha"))
        return [event async for event in going if isinstance(event, TurnStarted)]

    first = ("alpha", "search_tools")
    assert asyncio.run(main()) == [TurnStarted(1, first), TurnStarted(2, (*first, "gamma"))]


def test_a_tool_that_was_not_offered_is_told_how_to_be_found() -> None:
    came, model = go([[("beta", {})], "Done."], catalogue([]), selector=Chosen("alpha"))
    assert statuses(came) == [("beta", "not_found")]
    assert "search_tools" in model.requests[1].messages[-1]["content"]


def test_what_another_run_found_gives_nothing() -> None:
    ran: list[str] = []
    runner, chosen = Runner(catalogue(ran)), Chosen("alpha")

    async def main() -> LoopResult:
        before = await run(Scripted([SEARCH, "Found."]), ASK, runner, selector=chosen)
        assert "gamma" in before.offered
        model = Scripted([[("gamma", {})], "Done."])
        return await run(model, [*before.messages, *ASK], runner, selector=chosen)

    assert statuses(asyncio.run(main())) == [("gamma", "not_found")] and ran == []


def test_what_a_tool_that_is_no_search_tool_says_that_it_found_counts_for_nothing() -> None:
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
    came = asyncio.run(_awaited(run(model, ASK, Runner(catalogue(ran).register(pretend)), selector=Chosen("finder"))))
    assert statuses(came) == [("finder", "ok"), ("gamma", "not_found")] and ran == []
    assert model.seen[0] == {"kept": 1} and came.results[0].metadata["found"][0]["name"] == "gamma"


def test_a_search_that_was_denied_finds_nothing() -> None:
    ran: list[str] = []

    def no_searching(call: ToolCall, context: ToolContext) -> Any:
        return deny("not today") if call.name == "search_tools" else None

    model = Scripted([SEARCH, [("gamma", {})], "Done."])
    runner = Runner(catalogue(ran), guards=[no_searching])
    came = asyncio.run(_awaited(run(model, ASK, runner, selector=Chosen())))
    assert statuses(came) == [("search_tools", "denied"), ("gamma", "not_found")] and ran == []


def test_a_search_whose_result_a_middleware_took_back_finds_nothing() -> None:
    async def take_back(call: ToolCall, context: ToolContext, following: Any) -> ToolResult:
        result = await following(call, context)
        return result.replace(error="taken back", status="failed") if result.tool_name == "search_tools" else result

    ran: list[str] = []
    runner = Runner(catalogue(ran), around=[take_back])
    came = asyncio.run(_awaited(run(Scripted([SEARCH, [("gamma", {})], "No."]), ASK, runner, selector=Chosen())))
    assert came.results[0].metadata["found"] and statuses(came)[1] == ("gamma", "not_found") and ran == []


def test_a_model_that_takes_it_is_told_what_was_found() -> None:
    model = Deferring([SEARCH, "Done."])
    asyncio.run(_awaited(run(model, ASK, Runner(catalogue([])), selector=Chosen("alpha"))))
    assert model.told == [[], ["gamma"]]


def test_what_the_messages_of_an_earlier_run_refer_to_is_offered_behind() -> None:
    class Referring(Scripted):
        def find_referred_tools(self, messages: Any) -> list[str]:
            return ["gone", "gamma", "alpha"] if messages else []

    model = Referring(["Done."])
    asyncio.run(_awaited(run(model, ASK, Runner(catalogue([])), selector=Chosen("alpha"))))
    assert offered(model) == [["alpha", "search_tools", "gamma"]]


def test_messages_that_refer_to_what_no_search_tool_finds_offer_nothing() -> None:
    class Forged(Scripted):
        def find_referred_tools(self, messages: Any) -> list[str]:
            return ["danger"]

    ran: list[str] = []
    tools = catalogue(ran).register(worker("danger", ran))
    model = Forged([[("danger", {})], "Done."])
    came = asyncio.run(_awaited(run(model, ASK, Runner(tools), selector=Chosen("alpha"))))
    assert offered(model)[0] == ["alpha", "search_tools"] and statuses(came) == [("danger", "not_found")] and ran == []


async def _awaited(going: Run) -> LoopResult:
    async with asyncio.timeout(BOUND):
        return await going


# What is wrong


def test_a_selector_that_gives_a_tool_of_its_own_is_named() -> None:
    class Foreign:
        async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Any]:
            return [worker("alpha", [])]

    with pytest.raises(
        DefinitionError, match=r"Foreign.*returned <Tool alpha>, which is not one of the tools that it got"
    ):
        go(["Done."], catalogue([]), selector=Foreign())


@pytest.mark.parametrize("wrong", ["alpha", Chosen, object()], ids=str)
def test_what_is_no_selector_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="the loop takes selectors"):
        run(Scripted([]), ASK, Runner(catalogue([])), selector=wrong)


def test_a_search_tool_that_finds_what_the_runner_does_not_have_is_refused() -> None:
    tools = catalogue([]).without("delta")
    with pytest.raises(DefinitionError, match="finds 'delta', which the runner does not have"):
        run(Scripted([]), ASK, Runner(tools), selector=Chosen("alpha"))


def test_a_search_tool_that_finds_another_tool_of_the_same_name_is_refused() -> None:
    tools = catalogue([]).replace(Tool("delta", lambda: None, description="Deletes everything."))
    with pytest.raises(DefinitionError, match=r"finds 'delta', which the runner .* has with another definition"):
        run(Scripted([]), ASK, Runner(tools), selector=Chosen("alpha"))


def test_a_selector_that_is_not_async_is_named() -> None:
    class Plain:
        def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
            return list(tools)

    with pytest.raises(DefinitionError, match=r"Plain.* write select as `async def`"):
        go(["Done."], catalogue([]), selector=Plain())


def test_an_error_of_the_selector_is_raised_and_the_model_is_not_asked() -> None:
    class Broken:
        async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
            raise OSError("no index")

    model = Scripted([])
    with pytest.raises(OSError, match="no index"):
        asyncio.run(_awaited(run(model, ASK, Runner(catalogue([])), selector=Broken())))
    assert model.requests == []


def test_a_run_that_is_stopped_while_the_selector_works_ends_as_cancelled() -> None:
    class Slow:
        def __init__(self) -> None:
            self.begun = asyncio.Event()

        async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
            self.begun.set()
            await asyncio.Event().wait()
            return []

    async def main() -> tuple[LoopResult, Scripted]:
        slow, model = Slow(), Scripted([])
        going = run(model, ASK, Runner(catalogue([])), selector=slow)
        task = asyncio.create_task(_awaited(going))
        await slow.begun.wait()
        going.cancel(now=True)
        return await task, model

    came, model = asyncio.run(main())
    assert came.status == "cancelled" and model.requests == []


def test_after_a_failure_that_degrades_nothing_is_offered() -> None:
    @tool
    def fail() -> str:
        """Fail."""
        raise ValueError("broken")

    tools = catalogue([]).register(fail)
    came, model = go([[("fail", {})], "Done."], tools, selector=Chosen("fail"), on_failure="degrade")
    assert offered(model) == [["search_tools", "fail"], []] and came.offered == ()


# A run that waits


def asked_about(call: ToolCall, context: ToolContext) -> Any:
    return ask("sure?") if call.name == "beta" else None


def later(call: ToolCall, decision: Any, context: ToolContext) -> Any:
    return ask("later")


def waiting(ran: list[str], steps: list[Step]) -> tuple[dict[str, Any], Runner]:
    runner = Runner(catalogue(ran), guards=[asked_about], approve=later, resume_key=b"k" * 32)
    came = asyncio.run(_awaited(run(Scripted(steps), ASK, runner, selector=Chosen("beta"))))
    assert came.status == "suspended" and came.suspended is not None
    return json.loads(json.dumps(came.suspended)), runner


def test_a_run_that_waited_goes_on_with_what_was_offered_and_what_was_found() -> None:
    ran: list[str] = []
    suspended, runner = waiting(ran, [SEARCH, [("beta", {})]])

    model = Deferring([[("gamma", {}), ("alpha", {})], "Done."])
    (call_id,) = suspended["waiting"]
    came = asyncio.run(_awaited(resume(suspended, {call_id: True}, model, runner)))
    assert offered(model) == [["beta", "search_tools", "gamma"]] * 2 and model.told == [["gamma"]] * 2
    assert ran == ["beta", "gamma"] and statuses(came)[-1] == ("alpha", "not_found")


def test_what_was_found_in_the_turn_that_waited_is_offered_when_it_goes_on() -> None:
    ran: list[str] = []
    suspended, runner = waiting(ran, [[*SEARCH, ("beta", {})]])
    (call_id,) = suspended["waiting"]
    model = Deferring([[("gamma", {})], "Done."])
    came = asyncio.run(_awaited(resume(suspended, {call_id: True}, model, runner)))
    assert offered(model) == [["beta", "search_tools", "gamma"]] * 2 and model.told == [["gamma"]] * 2
    assert ran == ["beta", "gamma"] and came.status == "done"


def test_a_state_that_was_changed_makes_callable_no_more_than_its_search_tool_can_find() -> None:
    def with_other_results(suspended: dict[str, Any]) -> dict[str, Any]:
        suspended["found"] = ["delta", "gamma"]
        for result in suspended["results"]:
            found = [{"name": name, "description": "", "input_schema": {"type": "object"}} for name in NAMES]
            result["metadata"] = {"found": found}
            if result["status"] != "suspended":
                result |= {"tool_name": "search_tools", "status": "ok"}
        return suspended

    def going_on(before: Runner, after: Runner, *steps: Any) -> tuple[list[list[str]], list[tuple[str, str]]]:
        came = asyncio.run(_awaited(run(Scripted([list(steps)]), ASK, before, selector=Chosen("beta"))))
        saved = with_other_results(json.loads(json.dumps(came.suspended)))
        model = Deferring([[("delta", {})], "Done."])
        came = asyncio.run(_awaited(resume(saved, dict.fromkeys(saved["waiting"], True), model, after)))
        return offered(model), statuses(came)

    ran: list[str] = []
    every = Toolset(worker(name, ran) for name in NAMES)
    some, all_of_them = search_tool(every.only("beta", "gamma"), Overlap()), search_tool(every, Overlap())
    none, narrow, wide = (
        Runner([*every, *search], guards=[asked_about], approve=later, resume_key=b"k" * 32)
        for search in ([], [some], [all_of_them])
    )
    shown, came = going_on(narrow, narrow, ("beta", {}), *SEARCH)
    assert shown[0] == ["beta", "search_tools", "gamma"] and came[-1] == ("delta", "not_found")
    shown, came = going_on(none, wide, ("beta", {}), ("alpha", {}))
    assert shown[0] == ["beta"] and came[-1] == ("delta", "not_found")
    assert "delta" not in ran


def test_a_sealed_list_that_was_changed_ends_before_the_model_is_asked() -> None:
    ran: list[str] = []
    suspended, runner = waiting(ran, [[("beta", {})]])
    (call_id,) = suspended["waiting"]
    suspended["waiting"][call_id]["offered"].append("delta")
    model = Scripted([])
    with pytest.raises(NotResumed):
        asyncio.run(_awaited(resume(suspended, {call_id: True}, model, runner)))
    assert model.requests == [] and ran == []


def test_a_search_that_waited_finds_when_it_is_taken_up() -> None:
    def asked_to_search(call: ToolCall, context: ToolContext) -> Any:
        return ask("sure?") if call.name == "search_tools" else None

    ran: list[str] = []
    runner = Runner(catalogue(ran), guards=[asked_to_search], approve=later)

    async def main() -> tuple[LoopResult, Scripted]:
        before = await run(Scripted([SEARCH]), ASK, runner, selector=Chosen())
        model = Scripted([[("gamma", {})], "Done."])
        assert before.suspended is not None
        return await resume(before.suspended, {next(iter(before.suspended["waiting"])): True}, model, runner), model

    came, model = asyncio.run(main())
    assert offered(model) == [["search_tools", "gamma"]] * 2 and ran == ["gamma"] and came.status == "done"


def test_a_run_without_a_selector_that_waited_goes_on_with_all_tools() -> None:
    ran: list[str] = []
    runner = Runner(catalogue(ran), guards=[asked_about], approve=later)

    async def main() -> Scripted:
        before = await run(Scripted([[("beta", {})]]), ASK, runner)
        model = Scripted([[("delta", {})], "Done."])
        assert before.suspended is not None
        await resume(before.suspended, {next(iter(before.suspended["waiting"])): True}, model, runner)
        return model

    assert offered(asyncio.run(main()))[0] == [*NAMES, "search_tools"] and ran == ["beta", "delta"]


# The rule itself

ODD = [("Alpha", {}), ("functions.gamma", {}), ("search_tools", {"query": "x"}), ("nothing", {})]
SEARCHES = [("search_tools", {"query": f"{name} please"}) for name in NAMES]
CALLS = st.sampled_from([*((name, {}) for name in NAMES), *SEARCHES, *ODD])


@given(
    chosen=st.sets(st.sampled_from(NAMES)),
    turns=st.lists(st.lists(CALLS, min_size=1, max_size=4), max_size=5),
)
def test_whatever_a_model_calls_only_what_was_offered_in_that_turn_runs(
    chosen: set[str], turns: list[list[tuple[str, dict[str, Any]]]]
) -> None:
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
