"""amplifier: a real session, whose orchestrator makes the calls; and its tools and modules in a runner."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from amplifier_core import AmplifierSession, HookResult, ModuleLoader, ToolResult
from amplifier_core.approval import ApprovalTimeoutError
from amplifier_core.testing import MockCoordinator
from amplifier_core.validation.tool import ToolValidator

from ferrule import DefinitionError, Media, Runner, Text, ToolCall, ToolContext, ask, tool
from ferrule.adapters import amplifier
from ferrule.guards import ask_before_changes
from ferrule.middleware import before
from ferrule.testing import BlockingAdapterContract, Framework, FrameworkRun, ModelView, ScriptedCall
from ferrule.testing.bounded import in_time
from ferrule.testing.world import World

EVENTS = ("tool:pre", "tool:post", "tool:error")


class Modules(ModuleLoader):
    """A loader whose modules are given."""

    def __init__(self, mounts: Mapping[str, Any]) -> None:
        super().__init__()
        self._mounts = mounts

    async def load(self, module_id: str, config: Any = None, *args: Any, **kwargs: Any) -> Any:
        async def mount(coordinator: Any) -> Any:
            return await self._mounts[module_id](coordinator, config)

        return mount


class Orchestrator:
    """Makes the calls beside each other, as their `loop-basic` does; with `emits`, it tells the hooks of each."""

    def __init__(self, calls: tuple[ScriptedCall, ...], emits: bool) -> None:
        self.calls, self.emits = calls, emits
        self.results: dict[str, ModelView] = {}
        self._task: Any = None

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def execute(self, prompt: str, tools: Any, hooks: Any, coordinator: Any, **others: Any) -> str:
        self._task = asyncio.current_task()
        await hooks.emit("prompt:submit", {"prompt": prompt})
        await asyncio.gather(*(self._call(said, tools.get(said.name), hooks, coordinator) for said in self.calls))
        return "done"

    async def _call(self, said: ScriptedCall, tool: Any, hooks: Any, coordinator: Any) -> None:
        if self.emits:
            sent = {"tool_name": said.name, "tool_input": said.arguments}
            told = await hooks.emit("tool:pre", sent)
            if (await coordinator.process_hook_result(told, "tool:pre", said.name)).action == "deny":
                self.results[said.id] = ModelView("Denied by hook", failed=True)
                return
        if tool is None:
            self.results[said.id] = ModelView("not found", failed=True)
            return
        coordinator._tool_dispatch_context = {"tool_call_id": said.id}
        try:
            result = await tool.execute(said.arguments)
        finally:
            coordinator._tool_dispatch_context = {}
        if self.emits:
            await hooks.emit("tool:post" if result.success else "tool:error", sent)
        self.results[said.id] = seen(result)


def seen(result: ToolResult) -> ModelView:
    images = [block for block in result.content or () if block.type == "image"]
    media = tuple(base64.b64decode(block.source["data"]) for block in images)
    return ModelView(result.get_serialized_output(), not result.success, media)


class DrivenSession(FrameworkRun):
    """A run, with what the hooks of the session were told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, str]] = []


class Amplifier(Framework):
    has_principals = True

    def __init__(self, emits: bool) -> None:
        self.emits = emits

    async def start_run(
        self, runner: Runner, *calls: ScriptedCall, approval: Any = None, hooks: Any = ()
    ) -> DrivenSession:
        driven, orchestrator = DrivenSession(), Orchestrator(calls, self.emits)

        async def mount_orchestrator(coordinator: Any, config: Any) -> None:
            await coordinator.mount("orchestrator", orchestrator)

        async def mount_others(coordinator: Any, config: Any) -> None:
            await coordinator.mount(*config)

        config = {
            "session": {"orchestrator": "loop", "context": {"module": "other", "config": ["context", object()]}},
            "providers": [{"module": "other", "config": ["providers", object(), "model"]}],
        }
        session = AmplifierSession(config, approval_system=approval)
        session.coordinator.loader = Modules({"loop": mount_orchestrator, "other": mount_others})
        await session.initialize()
        mount = amplifier.mount(
            runner, context=lambda c: ToolContext(session=c.session_id, principal="ada", deps="DEPS")
        )
        session.coordinator.register_cleanup(await mount(session.coordinator))

        async def note(event: str, data: dict[str, Any]) -> HookResult:
            driven.told.append((event, data["tool_name"]))
            return HookResult(action="continue")

        async def progress(event: str, data: dict[str, Any]) -> HookResult:
            driven.progress.append((data["tool_call_id"], data["done"], data["total"], data["message"]))
            return HookResult(action="continue")

        for event in EVENTS:
            session.coordinator.hooks.register(event, note, 0, f"note {event}")
        for event, hook in hooks:
            session.coordinator.hooks.register(event, hook, 1, f"hook {hook.__name__}")
        session.coordinator.hooks.register(amplifier.PROGRESS, progress, 0, "progress")
        try:
            await session.execute("go")
        except asyncio.CancelledError:
            await orchestrator.cancel()  # amplifier-core 2.0.2 lets it go on, beyond its session and the loop
            raise
        finally:
            await session.cleanup()
        assert not session.coordinator.get("tools"), "the clean-up takes the tools away"
        driven.results = orchestrator.results
        return driven


class TestWithAnOrchestratorThatTellsTheHooks(BlockingAdapterContract):
    framework: ClassVar = Amplifier(emits=True)


class TestWithAnOrchestratorThatTellsNobody(BlockingAdapterContract):
    framework: ClassVar = Amplifier(emits=False)


@tool
async def pay(to: str, euros: int = 1) -> str:
    """Pay."""
    return f"paid {euros} EUR to {to}"


# The hooks of the coordinator


@pytest.mark.parametrize("emits", [True, False])
def test_the_hooks_are_told_once_of_each_beginning_and_each_end(emits: bool) -> None:
    calls = [ScriptedCall(f"c{n}", "pay", {"to": "ada"}) for n in range(3)] + [ScriptedCall("c4", "pay", {"to": 5})]
    driven = in_time(Amplifier(emits).start_run(Runner([pay]), *calls))
    told: list[Any] = driven.told
    assert sorted(told) == [("tool:error", "pay")] + [("tool:post", "pay")] * 3 + [("tool:pre", "pay")] * 4


@pytest.mark.parametrize("emits", [True, False])
def test_a_hook_that_denies_lets_nothing_run_and_the_next_call_is_told_of_once(emits: bool) -> None:
    async def no_bob(event: str, data: dict[str, Any]) -> HookResult:
        bob = data["tool_input"]["to"] == "bob"
        return HookResult(action="deny", reason="bob is out") if bob else HookResult(action="continue")

    world = World()
    runner = world.runner(guards=[])
    calls = [ScriptedCall("c1", "pay", {"to": "bob"}), ScriptedCall("c2", "pay", {"to": "ada"})]
    driven = in_time(Amplifier(emits).start_run(runner, *calls, hooks=[("tool:pre", no_bob)]))
    assert world.paid == {"ada 1": 1}
    assert driven.results["c1"].failed and driven.results["c2"] == ModelView("paid 1 EUR to ada")
    told: list[Any] = driven.told
    assert told.count(("tool:post", "pay")) == 1 and told.count(("tool:pre", "pay")) == 2


@pytest.mark.parametrize(
    "denied_by", ["a hook", "a person, before the prompt", "a person, before the request", "a person, just now"]
)
def test_a_call_that_never_came_stands_for_no_other_one(denied_by: str) -> None:
    """An orchestrator tells of a call, which is denied; then something else calls the tool, and tells nobody."""
    told: list[str] = []

    async def note(event: str, data: dict[str, Any]) -> HookResult:
        told.append(event)
        return HookResult(action="continue")

    async def no(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="deny", reason="no")

    async def run() -> None:
        coordinator = MockCoordinator()
        await amplifier.mount(Runner([pay]))(coordinator)
        unregister = coordinator.hooks.register("tool:pre", no, 1, "no")
        if denied_by != "a hook":
            unregister()
        id = {"tool_call_id": "c1"} if denied_by == "a person, just now" else {}
        await coordinator.hooks.emit("tool:pre", {"tool_name": "pay", "tool_input": {"to": "ada"}, **id})
        if denied_by == "a hook":
            unregister()
        elif denied_by == "a person, before the prompt":
            await coordinator.hooks.emit("prompt:submit", {"prompt": "go on"})
        elif denied_by == "a person, before the request":
            await coordinator.hooks.emit("provider:request", {"provider": "model"})
        else:
            coordinator._tool_dispatch_context = {"tool_call_id": "c2"}
        for event in EVENTS:
            coordinator.hooks.register(event, note, 0, event)
        assert (await coordinator.get("tools", "pay").execute({"to": "ada"})).success

    in_time(run())
    assert told == ["tool:pre", "tool:post"]


def test_what_a_hook_makes_of_the_input_is_what_is_judged_and_runs() -> None:
    async def less(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="modify", data={**data, "tool_input": {**data["tool_input"], "euros": 4}})

    judged: list[Any] = []

    def look(call: ToolCall, context: ToolContext) -> None:
        judged.append(call.arguments["euros"])

    look.asks = False  # type: ignore[attr-defined]
    call = ScriptedCall("c1", "pay", {"to": "ada", "euros": 500})
    driven = in_time(Amplifier(emits=False).start_run(Runner([pay], guards=[look]), call, hooks=[("tool:pre", less)]))
    assert (driven.results["c1"], judged) == (ModelView("paid 4 EUR to ada"), [4])


@pytest.mark.parametrize("inward", [True, False])
def test_what_runs_is_the_input_that_a_person_was_asked_about_by_a_hook(inward: bool) -> None:
    async def less(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="modify", data={**data, "tool_input": {"n": 4}})

    async def asks(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="ask_user", approval_prompt=f"{data['tool_input']}?")

    async def run() -> Any:
        ours = Runner([Theirs()])
        async with amplifier.load(module([], "m") if inward else amplifier.mount(ours), {"as": "half"}) as coordinator:
            coordinator.hooks.register("tool:pre", less, 1, "less")
            coordinator.hooks.register("tool:pre", asks, 2, "asks")
            coordinator.approval_system = person
            if inward:
                return (await Runner(coordinator.tools).run("half", {"n": 500})).text
            return (await coordinator.get("tools", "half").execute({"n": 500})).output

    person = Person("Allow")
    assert in_time(run()) == '{"half": 2}'
    assert person.asked[0][0] == "{'n': 4}?"


def test_an_input_that_a_hook_made_unfit_runs_nothing() -> None:
    async def spoil(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="modify", data={**data, "tool_input": "everything"})

    world = World()
    call, runner = ScriptedCall("c1", "pay", {"to": "ada"}), world.runner(guards=[])
    assert in_time(Amplifier(emits=False).start_run(runner, call, hooks=[("tool:pre", spoil)])).results["c1"].failed
    assert not world.paid


def test_a_tool_whose_module_was_cleaned_up_runs_nothing() -> None:
    async def run() -> ToolResult:
        coordinator, world = MockCoordinator(), World()
        clean_up = await amplifier.mount(world.runner(guards=[]))(coordinator)
        kept = coordinator.get("tools", "pay")
        await clean_up()
        result = await kept.execute({"to": "ada"})
        assert not world.paid
        return result

    assert not in_time(run()).success


def test_the_text_of_what_fails_round_a_call_is_told_to_no_model() -> None:
    def context(coordinator: Any) -> ToolContext:
        raise OSError("postgres://ada:secret@db")

    async def run() -> ToolResult:
        coordinator = MockCoordinator()
        await amplifier.mount(Runner([pay]), context=context)(coordinator)
        return await coordinator.get("tools", "pay").execute({"to": "ada"})

    result = in_time(run())
    assert not result.success and "secret" not in result.model_dump_json()


# The ids of calls


def legacy(coordinator: Any, id: str) -> None:
    coordinator._tool_dispatch_context = {"tool_call_id": id, "parallel_group_id": "g"}  # as loop-basic does


def by_task(coordinator: Any, id: str) -> None:
    coordinator._tool_dispatch_contexts = {asyncio.current_task(): {"tool_call_id": id}}  # as loop-streaming does


class PaysTwice:
    """A tool that makes two equal calls of another one, after each other or beside each other."""

    name = "twice"
    description = "Pays twice."
    input_schema: ClassVar = {"type": "object"}

    def __init__(self, coordinator: Any, beside: bool) -> None:
        self._coordinator, self._beside = coordinator, beside

    async def execute(self, input: dict[str, Any]) -> Any:
        calls = [self._coordinator.get("tools", "pay").execute({"to": "ada"}) for _ in range(2)]
        return (await asyncio.gather(*calls)) if self._beside else [await call for call in calls]


@pytest.mark.parametrize("dispatch", [legacy, by_task])
def test_a_call_has_the_id_that_its_orchestrator_says_and_runs_once_where_it_comes_again(dispatch: Any) -> None:
    async def run() -> None:
        coordinator = MockCoordinator()
        await amplifier.mount(world.runner(guards=[]))(coordinator)
        for id in ("c1", "c1", "c2"):
            dispatch(coordinator, id)
            await coordinator.get("tools", "pay").execute({"to": "ada"})

    world = World()
    in_time(run())
    assert world.paid == {"ada 1": 2}


@pytest.mark.parametrize("dispatch", [legacy, by_task])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("ours", [False, True])
def test_equal_calls_that_another_tool_makes_while_it_runs_are_calls_of_their_own(
    dispatch: Any, beside: bool, ours: bool
) -> None:
    async def run() -> None:
        coordinator = MockCoordinator()
        twice = PaysTwice(coordinator, beside)
        await amplifier.mount(world.runner(guards=[], observers=[note]))(coordinator)
        if ours:
            await amplifier.mount(Runner([twice]))(coordinator)
        else:
            await coordinator.mount("tools", twice, name="twice")
        dispatch(coordinator, "c1")
        await coordinator.get("tools", "twice").execute({})

    def note(event: Any) -> None:
        ids.add(event.call.id)

    ids: set[str] = set()
    world = World()
    in_time(run())
    assert world.paid == {"ada 1": 2}
    assert not ours or "c1" not in ids


def test_what_the_hooks_were_told_of_other_calls_is_said_of_none_that_a_tool_makes_while_it_runs() -> None:
    async def note(event: str, data: dict[str, Any]) -> HookResult:
        told.append(event)
        return HookResult(action="continue")

    async def run() -> None:
        coordinator = MockCoordinator()
        await amplifier.mount(Runner([pay], observers=[lambda event: ids.add(event.call.id)]))(coordinator)
        for name, id in (("twice", "c1"), ("pay", "c2")):
            await coordinator.hooks.emit("tool:pre", {"tool_name": name, "tool_input": {}, "tool_call_id": id})
        coordinator.hooks.register("tool:pre", note, 0, "note")
        legacy(coordinator, "c1")
        await PaysTwice(coordinator, beside=False).execute({})

    ids: set[str] = set()
    told: list[str] = []
    in_time(run())
    assert ids and not ids & {"c1", "c2"}
    assert told == ["tool:pre", "tool:pre"]


# Their approval system


class Person:
    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[tuple[str, list[str], float, str]] = []

    async def request_approval(self, prompt: str, options: list[str], timeout: float, default: str) -> Any:
        self.asked.append((prompt, options, timeout, default))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "runs"),
    [("Allow", True), ("Deny", False), ("allow", False), ({"approved": True}, False), (ApprovalTimeoutError(), False)],
)
def test_the_approval_system_is_asked_and_only_its_allow_runs(answer: object, runs: bool) -> None:
    world, person = World(), Person(answer)
    call = ScriptedCall("c1", "pay", {"to": "ada", "euros": 5})
    driven = in_time(Amplifier(emits=True).start_run(world.runner(), call, approval=person))
    assert (driven.results["c1"] == ModelView("paid 5 EUR to ada")) is runs
    assert bool(world.paid) is runs
    [(prompt, options, _, default)] = person.asked
    assert "pay changes things" in prompt and '"euros":5' in prompt.replace(" ", "")
    assert (options, default) == (["Allow", "Deny"], "deny")


def test_a_question_for_a_value_is_no_yes_or_no_and_is_denied() -> None:
    @tool(private=("pin",))
    def unlock(pin: str) -> str:
        """Unlock."""
        return "open"

    person = Person("Allow")
    guard = [lambda call, context: ask("the PIN?", into="pin")]
    driven = in_time(
        Amplifier(emits=True).start_run(Runner([unlock], guards=guard), ScriptedCall("c1", "unlock"), approval=person)
    )
    assert driven.results["c1"].failed and not person.asked


# The module


def test_amplifier_s_own_validator_takes_the_module(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text(
        "from ferrule import Runner, tool\nfrom ferrule.adapters import amplifier\n"
        '__amplifier_module_type__ = "tool"\n'
        '@tool\ndef add(a: int, b: int) -> int:\n    """Add."""\n    return a + b\n'
        "mount = amplifier.mount(Runner([add]))\n"
    )
    found = in_time(ToolValidator().validate(tmp_path))
    assert found.passed, found.checks
    assert not [check.message for check in found.checks if not check.passed]


def test_a_clean_up_leaves_a_tool_of_somebody_else_under_its_name() -> None:
    async def run() -> list[str]:
        coordinator = MockCoordinator()
        clean_up = await amplifier.mount(Runner([pay, pay.replace(name="pay_later")]))(coordinator)
        await coordinator.mount("tools", SimpleNamespace(name="pay"), name="pay")
        await clean_up()
        return [*coordinator.get("tools")]

    assert in_time(run()) == ["pay"]


def test_the_context_is_the_coordinator_s_session_and_itself() -> None:
    @tool(read_only=True)
    async def where(context: ToolContext[Any]) -> str:
        """Where am I?"""
        return f"{context.session} {context.deps.session_id}"

    async def run() -> ToolResult:
        coordinator = MockCoordinator()
        await amplifier.mount(Runner([where]))(coordinator)
        return await coordinator.get("tools", "where").execute({})

    assert in_time(run()).output == "test-session test-session"


# Their modules in a runner


class Theirs:
    name = "half"
    description = "Half of a number."
    input_schema: ClassVar = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        if input["n"] % 2:
            return ToolResult(success=False, error={"message": "it is odd"})
        return ToolResult(success=True, output={"half": input["n"] // 2})


def module(ended: list[str], name: str, clean_up: Any = "its own") -> Any:
    async def mount(coordinator: Any, config: Any = None) -> Any:
        await coordinator.mount("tools", Theirs(), name=config["as"])

        async def end() -> None:
            ended.append(name)

        return end if clean_up == "its own" else clean_up

    return mount


def test_the_tools_of_modules_run_in_a_runner_and_failures_are_failures() -> None:
    async def run() -> list[Any]:
        async with amplifier.load(module([], "a"), {"as": "half"}) as coordinator:
            runner = Runner(coordinator.tools)
            return [await runner.run("half", {"n": n}) for n in (4, 3, "x")]

    good, odd, wrong = in_time(run())
    assert (good.status, good.output) == ("ok", {"half": 2})
    assert (odd.status, odd.error) == ("failed", "it is odd")
    assert wrong.status == "invalid"


def test_every_clean_up_is_called_the_last_first_also_where_one_fails_and_where_there_is_none() -> None:
    async def breaks() -> None:
        ended.append("b")
        raise RuntimeError("cannot end")

    async def run() -> None:
        async with amplifier.load(module(ended, "a"), {"as": "a"}) as coordinator:
            await coordinator.load(module(ended, "b", breaks), {"as": "b"})
            await coordinator.load(module(ended, "none", None), {"as": "none"})
            await coordinator.load(module(ended, "plain", lambda: ended.append("plain")), {"as": "plain"})
            await coordinator.load(module(ended, "c"), {"as": "c"})
            assert [tool.name for tool in coordinator.tools] == ["a", "b", "none", "plain", "c"]
            raise LookupError("within")

    ended: list[str] = []
    with pytest.raises(LookupError, match="within"):
        in_time(run())
    assert ended == ["c", "plain", "b", "a"]


def test_a_module_that_cannot_be_mounted_leaves_no_other_behind() -> None:
    async def broken(coordinator: Any, config: Any = None) -> None:
        raise OSError("no disk")

    async def run() -> None:
        async with amplifier.load(module(ended, "a"), {"as": "a"}) as coordinator:
            await coordinator.load(broken)

    ended: list[str] = []
    with pytest.raises(OSError, match="no disk"):
        in_time(run())
    assert ended == ["a"]


def test_hooks_of_modules_are_told_of_calls_in_a_runner_and_may_deny() -> None:
    told: list[tuple[str, Any]] = []

    async def hooks_module(coordinator: Any, config: Any = None) -> None:
        async def note(event: str, data: dict[str, Any]) -> HookResult:
            told.append((event, data["tool_input"]["n"]))
            denied = event == "tool:pre" and data["tool_input"]["n"] == 8
            return HookResult(action="deny", reason="no eights") if denied else HookResult(action="continue")

        for event in EVENTS:
            coordinator.hooks.register(event, note, 0, event)

    async def run() -> list[Any]:
        async with amplifier.load(module([], "a"), {"as": "half"}) as coordinator:
            await coordinator.load(hooks_module)
            runner = Runner(coordinator.tools, around=[before(lambda call, context: None)])
            return [await runner.run("half", {"n": n}) for n in (4, 3, 8)]

    good, odd, denied = in_time(run())
    assert (good.status, odd.status, denied.status, denied.executed) == ("ok", "failed", "denied", False)
    assert "no eights" in denied.text
    pairs = [("tool:pre", 4), ("tool:post", 4), ("tool:pre", 3), ("tool:error", 3), ("tool:pre", 8), ("tool:error", 8)]
    assert told == pairs


def test_their_approval_system_answers_for_a_runner() -> None:
    async def run(answer: str) -> str:
        given = {"approval_system": Person(answer)}
        async with amplifier.load(module([], "a"), {"as": "half"}, **given) as coordinator:
            approve = amplifier.approver(coordinator)
            runner = Runner(coordinator.tools, guards=[ask_before_changes], approve=approve)
            return (await runner.run("half", {"n": 4})).status

    assert [in_time(run(answer)) for answer in ("Allow", "Deny")] == ["ok", "denied"]


def test_pictures_of_a_tool_arrive_as_pictures() -> None:
    class Picture(Theirs):
        input_schema: ClassVar = {}

        async def execute(self, input: dict[str, Any]) -> ToolResult:
            source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"PNG").decode()}
            return ToolResult(output="x", content=[{"type": "text", "text": "a"}, {"type": "image", "source": source}])

    result = in_time(Runner(amplifier.from_tools([Picture()])).run("half", {}))
    assert result.content == (Text("a"), Media("image", b"PNG", "image/png"))


def test_what_is_no_tool_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"no execute\(input\)"):
        amplifier.from_tools([object()])
