"""amplifier: a real session whose orchestrator makes the calls, and its tools and modules in a runner."""

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

from ferrule import Media, Runner, Text, ToolContext, ask, tool
from ferrule.adapters import amplifier
from ferrule.guards import ask_before_changes
from ferrule.middleware import before
from ferrule.testing import BlockingAdapterContract, Framework, FrameworkRun, ModelView, ScriptedCall
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
    """Makes the calls concurrently, as `loop-basic` does; with `emits`, it announces each to the hooks."""

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


class TestWithEmittingOrchestrator(BlockingAdapterContract):
    framework: ClassVar = Amplifier(emits=True)


class TestWithSilentOrchestrator(BlockingAdapterContract):
    framework: ClassVar = Amplifier(emits=False)


@tool
async def pay(to: str, euros: int = 1) -> str:
    return f"paid {euros} EUR to {to}"


def hook_that(**result: Any) -> Any:
    """A hook with this result; `tool_input` replaces the input."""

    async def hook(event: str, data: dict[str, Any]) -> HookResult:
        changed = {"data": {**data, "tool_input": result["tool_input"]}} if "tool_input" in result else {}
        return HookResult(**{name: one for name, one in result.items() if name != "tool_input"}, **changed)

    return hook


@pytest.mark.parametrize("emits", [True, False])
async def test_a_hook_denies_one_call_and_not_the_next(emits: bool) -> None:
    async def no_bob(event: str, data: dict[str, Any]) -> HookResult:
        bob = data["tool_input"]["to"] == "bob"
        return HookResult(action="deny", reason="bob is out") if bob else HookResult(action="continue")

    world = World()
    runner = world.runner(guards=[])
    calls = [ScriptedCall("c1", "pay", {"to": "bob"}), ScriptedCall("c2", "pay", {"to": "ada"})]
    driven = await Amplifier(emits).start_run(runner, *calls, hooks=[("tool:pre", no_bob)])
    assert world.paid == {"ada 1": 1}
    assert driven.results["c1"].failed and driven.results["c2"] == ModelView("paid 1 EUR to ada")
    assert driven.told.count(("tool:post", "pay")) == 1 and driven.told.count(("tool:pre", "pay")) == 2


@pytest.mark.parametrize("inward", [True, False])
async def test_the_input_shown_to_the_person_is_the_input_that_runs(inward: bool) -> None:
    async def asks(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="ask_user", approval_prompt=f"{data['tool_input']}?")

    async def run() -> Any:
        ours = Runner([Theirs()])
        async with amplifier.load(module([], "m") if inward else amplifier.mount(ours), {"as": "half"}) as coordinator:
            coordinator.hooks.register("tool:pre", hook_that(action="modify", tool_input={"n": 4}), 1, "less")
            coordinator.hooks.register("tool:pre", asks, 2, "asks")
            coordinator.approval_system = person
            if inward:
                return (await Runner(coordinator.tools).run("half", {"n": 500})).text
            return (await coordinator.get("tools", "half").execute({"n": 500})).output

    person = Person("Allow")
    assert await run() == '{"half": 2}'
    assert person.asked[0][0] == "{'n': 4}?"


async def test_a_tool_of_an_ended_module_runs_nothing() -> None:
    coordinator, world = MockCoordinator(), World()
    clean_up = await amplifier.mount(world.runner(guards=[]))(coordinator)
    kept = coordinator.get("tools", "pay")
    await clean_up()
    result = await kept.execute({"to": "ada"})
    assert not world.paid
    assert not result.success


async def test_the_model_does_not_read_errors_around_a_call() -> None:
    def context(coordinator: Any) -> ToolContext:
        raise OSError("postgres://ada:secret@db")

    coordinator = MockCoordinator()
    await amplifier.mount(Runner([pay]), context=context)(coordinator)
    result = await coordinator.get("tools", "pay").execute({"to": "ada"})
    assert not result.success and "secret" not in result.model_dump_json()


def legacy(coordinator: Any, id: str) -> None:
    coordinator._tool_dispatch_context = {"tool_call_id": id, "parallel_group_id": "g"}  # as loop-basic does


def by_task(coordinator: Any, id: str) -> None:
    coordinator._tool_dispatch_contexts = {asyncio.current_task(): {"tool_call_id": id}}  # as loop-streaming does


@pytest.mark.parametrize("dispatch", [legacy, by_task])
async def test_a_call_repeated_under_its_dispatch_id_runs_once(dispatch: Any) -> None:
    world = World()
    coordinator = MockCoordinator()
    await amplifier.mount(world.runner(guards=[]))(coordinator)
    for id in ("c1", "c1", "c2"):
        dispatch(coordinator, id)
        await coordinator.get("tools", "pay").execute({"to": "ada"})
    assert world.paid == {"ada 1": 2}


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
async def test_only_allow_from_the_approval_system_runs(answer: object, runs: bool) -> None:
    world, person = World(), Person(answer)
    call = ScriptedCall("c1", "pay", {"to": "ada", "euros": 5})
    driven = await Amplifier(emits=True).start_run(world.runner(), call, approval=person)
    assert (driven.results["c1"] == ModelView("paid 5 EUR to ada")) is runs
    assert bool(world.paid) is runs
    [(prompt, options, _, default)] = person.asked
    assert "pay changes things" in prompt and '"euros":5' in prompt.replace(" ", "")
    assert (options, default) == (["Allow", "Deny"], "deny")


async def test_a_question_for_a_value_is_denied() -> None:
    @tool(private=("pin",))
    def unlock(pin: str) -> str:
        return "open"

    person = Person("Allow")
    guard = [lambda call, context: ask("the PIN?", into="pin")]
    driven = await Amplifier(emits=True).start_run(
        Runner([unlock], guards=guard), ScriptedCall("c1", "unlock"), approval=person
    )
    assert driven.results["c1"].failed and not person.asked


async def test_the_validator_of_amplifier_accepts_the_module(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text(
        "from ferrule import Runner, tool\nfrom ferrule.adapters import amplifier\n"
        '__amplifier_module_type__ = "tool"\n'
        '@tool\ndef add(a: int, b: int) -> int:\n    """Add."""\n    return a + b\n'
        "mount = amplifier.mount(Runner([add]))\n"
    )
    found = await ToolValidator().validate(tmp_path)
    assert found.passed, found.checks
    assert not [check.message for check in found.checks if not check.passed]


async def test_a_cleanup_leaves_the_tools_of_others() -> None:
    coordinator = MockCoordinator()
    clean_up = await amplifier.mount(Runner([pay, pay.replace(name="pay_later")]))(coordinator)
    await coordinator.mount("tools", SimpleNamespace(name="pay"), name="pay")
    await clean_up()
    assert [*coordinator.get("tools")] == ["pay"]


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


async def test_each_cleanup_runs_in_reverse_order() -> None:
    async def breaks() -> None:
        ended.append("b")
        raise RuntimeError("cannot end")

    ended: list[str] = []
    with pytest.raises(LookupError, match="within"):  # noqa: PT012
        async with amplifier.load(module(ended, "a"), {"as": "a"}) as coordinator:
            await coordinator.load(module(ended, "b", breaks), {"as": "b"})
            await coordinator.load(module(ended, "none", None), {"as": "none"})
            await coordinator.load(module(ended, "plain", lambda: ended.append("plain")), {"as": "plain"})
            await coordinator.load(module(ended, "c"), {"as": "c"})
            assert [tool.name for tool in coordinator.tools] == ["a", "b", "none", "plain", "c"]
            raise LookupError("within")
    assert ended == ["c", "plain", "b", "a"]


async def test_hooks_of_modules_see_calls_and_may_deny() -> None:
    told: list[tuple[str, Any]] = []

    async def hooks_module(coordinator: Any, config: Any = None) -> None:
        async def note(event: str, data: dict[str, Any]) -> HookResult:
            told.append((event, data["tool_input"]["n"]))
            denied = event == "tool:pre" and data["tool_input"]["n"] == 8
            return HookResult(action="deny", reason="no eights") if denied else HookResult(action="continue")

        for event in EVENTS:
            coordinator.hooks.register(event, note, 0, event)

    async with amplifier.load(module([], "a"), {"as": "half"}) as coordinator:
        await coordinator.load(hooks_module)
        runner = Runner(coordinator.tools, around=[before(lambda call, context: None)])
        good, odd, denied = [await runner.run("half", {"n": n}) for n in (4, 3, 8)]
    assert (good.status, odd.status, denied.status, denied.executed) == ("ok", "failed", "denied", False)
    assert "no eights" in denied.text
    pairs = [("tool:pre", 4), ("tool:post", 4), ("tool:pre", 3), ("tool:error", 3), ("tool:pre", 8), ("tool:error", 8)]
    assert told == pairs


async def test_the_approval_system_answers_for_a_runner() -> None:
    async def run(answer: str) -> str:
        given = {"approval_system": Person(answer)}
        async with amplifier.load(module([], "a"), {"as": "half"}, **given) as coordinator:
            approve = amplifier.approver(coordinator)
            runner = Runner(coordinator.tools, guards=[ask_before_changes], approve=approve)
            return (await runner.run("half", {"n": 4})).status

    assert [(await run(answer)) for answer in ("Allow", "Deny")] == ["ok", "denied"]


async def test_pictures_are_converted() -> None:
    class Picture(Theirs):
        input_schema: ClassVar = {}

        async def execute(self, input: dict[str, Any]) -> ToolResult:
            source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"PNG").decode()}
            return ToolResult(output="x", content=[{"type": "text", "text": "a"}, {"type": "image", "source": source}])

    result = await Runner(amplifier.from_tools([Picture()])).run("half", {})
    assert result.content == (Text("a"), Media("image", b"PNG", "image/png"))
