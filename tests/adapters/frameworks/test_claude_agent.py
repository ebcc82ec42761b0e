"""The Claude Agent SDK with its own Claude Code, and a model on loopback."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from claude_agent_sdk import (
    AgentDefinition,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    ToolPermissionContext,
    create_sdk_mcp_server,
)
from claude_agent_sdk import tool as sdk_tool
from mcp import Client

from claude_api import ScriptedModel, Turns, clean_environment, make_environment
from ferrule import (
    DefinitionError,
    InputRequired,
    Journal,
    Media,
    Runner,
    ToolCall,
    ToolContext,
    ToolResult,
    allow,
    ask,
    deny,
    tool,
)
from ferrule.adapters import claude_agent
from ferrule.journal import Reader, memory
from ferrule.testing import AdapterContract, Framework, FrameworkRun, ModelView, Question, ScriptedCall

clean_environment()  # also in another process
_OURS = "mcp__ferrule__"
_FOLDER = tempfile.TemporaryDirectory(prefix="ferrule-claude-", ignore_cleanup_errors=True)
"""The home and working directories of Claude Code."""


def options_for(model: ScriptedModel, home: str = "", **options: Any) -> ClaudeAgentOptions:
    home = home or _FOLDER.name
    (work := Path(home, "work")).mkdir(exist_ok=True)
    return ClaudeAgentOptions(model="claude-sonnet-5", cwd=work, env=make_environment(model, home), **options)


class DrivenRun(FrameworkRun):
    """One conversation, in a session of its own."""

    def __init__(self, runner: Runner, home: str = "", tools: list[str] | None = None, **options: Any) -> None:
        super().__init__()
        self.tools = tools
        self.runner, self.home, self.options = runner, home or _FOLDER.name, options
        self.waiting: Any = None
        """The session, its transcript when it began to wait, and the place of that file."""
        self._transcript = ""

    def _context(self, given: Any) -> ToolContext[Any]:
        self._transcript = given["transcript_path"]
        return claude_agent.to_context(given).replace(deps="DEPS")

    async def run(
        self, turns: Turns = (), answers: Mapping[str, Any] | None = None, sub: Turns = (), **options: Any
    ) -> None:
        """Make the calls of these turns, and those of a sub-agent, or resume the session with these answers."""
        with ScriptedModel({"go": turns, "work": sub}) as model:
            given = {"answers": answers, "context": self._context, **self.options}
            async with claude_agent.client(
                self.runner, options_for(model, self.home, tools=self.tools, **options), **given
            ) as client:
                if turns:
                    await client.query("go")
                async for _ in client.receive_response():
                    pass
        self.results |= model.results
        self.questions = {}
        if (asked := client.question) is not None:
            self.questions = {asked.call_id: Question(asked.arguments, asked.reason)}
            self.waiting = asked.session, Path(self._transcript).read_text(encoding="utf-8"), self._transcript

    async def answer(
        self,
        answers: Mapping[str, bool | dict[str, Any]],
        record: Literal["unchanged", "changed", "lost"] = "unchanged",
    ) -> None:
        session, transcript, place = self.waiting
        Path(place).write_text(transcript, encoding="utf-8")
        given = {key: allow(arguments=one) if isinstance(one, dict) else one for key, one in answers.items()}
        await self.run(answers=given, resume=session)


class ClaudeAgent(Framework):
    stores_data = True
    brings_record = False
    tells_progress = False  # the SDK drops it

    async def start_run(self, runner: Runner, *calls: ScriptedCall) -> DrivenRun:
        driven = DrivenRun(runner, tools=[])
        named = [ScriptedCall(call.id, _OURS + call.name, call.arguments) for call in calls]
        await driven.run([named])
        return driven

    def export_run(self, waiting: DrivenRun) -> Any:
        return waiting.home, waiting.waiting

    async def import_run(self, runner: Runner, stored: Any) -> DrivenRun:
        home, waiting = stored
        driven = DrivenRun(runner, home, tools=[])
        driven.waiting = waiting
        return driven


DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""A picture of one dot: Claude Code decodes pictures."""


class TestClaudeAgent(AdapterContract):
    framework = ClaudeAgent()

    def test_a_picture_arrives_as_a_picture(self) -> None:
        @tool(read_only=True)
        async def picture() -> ToolResult:
            return ToolResult("a dot", content=[Media("image", DOT, "image/png")])

        driven = asyncio.run(ClaudeAgent().start_run(Runner([picture]), ScriptedCall("c1", "picture")))
        assert len(driven.results["c1"].media) == 1


def bash(call_id: str, command: str) -> ScriptedCall:
    return ScriptedCall(call_id, "Bash", {"command": command})


def outcomes(path: Path) -> dict[str, tuple[str, bool | None]]:
    """The status of each call in a journal, and whether it was executed."""
    return {call.call_id: (call.status, call.executed) for call in Reader(path).calls()}


def judge(call: ToolCall, context: ToolContext) -> Any:
    command = call.arguments.get("command", "")
    if command.startswith("rm"):
        return deny("nothing is removed here")
    if command.startswith("later"):
        return ask("a person decides")
    return {"command": "echo short"} if command == "echo long" else None


@sdk_tool("price", "A price.", {"thing": str})
async def price(given: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": f"{given['thing']} costs 7"}]}


@tool
async def book(city: str) -> InputRequired:
    return InputRequired("Which day?", {"type": "object", "properties": {"day": {"type": "string"}}})


async def test_their_tools_are_judged_and_their_outcomes_are_in_the_journal(tmp_path: Path) -> None:
    shop: Any = create_sdk_mcp_server("shop", tools=[price])
    denied = json.dumps({"permissions": {"deny": ["Edit(settings.txt)"]}})
    turns = [
        [bash("ok", "echo one"), bash("denied", "rm -r /tmp/none"), bash("failed", "false")],
        [bash("changed", "echo long"), bash("elsewhere", "echo x > settings.txt")],
        [ScriptedCall("shop", "mcp__shop__price", {"thing": "tea"}), ScriptedCall("unknown", "CronList")],
        [ScriptedCall("asks", "mcp__ferrule__book", {"city": "Rome"})],
    ]
    with closing(Journal.open(tmp_path / "calls.db")) as journal:
        driven = DrivenRun(Runner([book], guards=[judge], journal=journal), theirs={"mcp__shop__price": {}})
        await driven.run(turns, mcp_servers={"shop": shop}, settings=denied)
    read = driven.results
    assert (read["ok"], read["changed"]) == (ModelView("one"), ModelView("short"))
    assert read["shop"] == ModelView("tea costs 7")
    assert read["failed"].failed and read["elsewhere"].failed
    assert "nothing is removed here" in read["denied"].text
    assert "No guard knows the tool CronList" in read["unknown"].text
    assert "no call can wait" in read["asks"].text
    assert outcomes(tmp_path / "calls.db") == {
        **dict.fromkeys(["ok", "changed", "shop"], ("ok", True)),
        "failed": ("failed", True),
        "denied": ("denied", False),
        "elsewhere": ("failed", False),
        "asks": ("denied", None),
    }


async def test_one_waiting_call_of_a_turn_runs_once_however_often_it_is_answered(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    runner = Runner([], guards=[judge], journal=memory())
    driven = DrivenRun(runner)
    await driven.run([[bash("c1", f"later; echo ran >> {log}"), bash("c2", "later"), bash("c3", "echo three")]])
    assert list(driven.questions) == ["c1"]
    for _ in range(2):  # each time from the transcript in which the call still waits
        await driven.answer({"c1": allow(arguments={"command": f"echo x >> {log}"})})
    assert log.read_text() == "x\n"
    assert driven.results["c3"] == ModelView("three")
    assert "no call can wait" in driven.results["c2"].text


async def test_a_sub_agent_has_the_same_guards_and_cannot_wait() -> None:
    agents = list[Any]()

    def note(call: ToolCall, context: ToolContext) -> None:
        agents.append((call.id, "agent" in context.metadata, context.session))

    run = ScriptedCall("a1", "Agent", {"description": "sub", "prompt": "work", "run_in_background": False})
    sub = [[bash("c1", "echo one"), bash("c2", "later"), bash("c3", "rm -r /tmp/none")]]
    driven = DrivenRun(Runner([], guards=[note, judge], journal=memory()))
    await driven.run([[run]], sub=sub)
    session = agents[0][2]
    assert agents == [("a1", False, session), *((call.id, True, session) for call in sub[0])]
    assert driven.results["c1"] == ModelView("one") and not driven.questions
    assert "no call can wait" in driven.results["c2"].text
    assert "nothing is removed here" in driven.results["c3"].text


async def test_the_outcome_of_an_interrupted_call_is_unknown(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with (
        closing(Journal.open(tmp_path / "calls.db")) as journal,
        ScriptedModel({"go": [[bash("c1", f"cat {pipe}")]]}) as model,
    ):
        async with claude_agent.client(Runner([], journal=journal), options_for(model)) as client:
            await client.query("go")
            end = await asyncio.to_thread(os.open, pipe, os.O_WRONLY)  # when `cat` reads
            await client.interrupt()
            async for _ in client.receive_response():
                pass
            os.close(end)
            assert outcomes(tmp_path / "calls.db") == {"c1": ("unknown", None)}


async def test_without_its_hooks_claude_code_runs_nothing() -> None:
    with ScriptedModel({"go": [[bash("c1", "echo one")]]}) as model:
        options = options_for(model)
        options.env["CLAUDE_CODE_SIMPLE"] = "1"  # also from the environment of the program
        async with claude_agent.client(Runner([], journal=memory()), options) as client:
            await client.query("go")
            async for _ in client.receive_response():
                pass
    assert model.results == {"c1": ModelView("No guard has judged this call. Nothing was run.", failed=True)}


# -- without Claude Code -----------------------------------------------------------------------------------------------


def guarded(runner: Runner | None = None, **options: Any) -> Any:
    return claude_agent.client(runner or Runner([price_of], journal=memory()), ClaudeAgentOptions(**options))


@tool(read_only=True)
async def price_of(thing: str) -> str:
    """A price."""
    return f"{thing} costs 7"


SETTINGS = (
    *("settings.json", "{", "[]", '{"disableAllHooks": true}', '{"permissions": {"allow": ["Bash"]}}'),
    *('{"permissions": {"deny": [], "ask": []}}', '{"permissions": {"deny": []}, "hooks": {}}'),
)
PASSING: list[dict[str, Any]] = [
    {"allowed_tools": ["Bash"]},
    {"setting_sources": ["project"]},
    {"permission_mode": "bypassPermissions"},
    {"permission_mode": "acceptEdits"},
    {"permission_mode": "dontAsk"},
    {"sandbox": {"enabled": True}},
    {"plugins": [{"type": "local", "path": "."}]},
    {"skills": "all"},
    {"extra_args": {"dangerously-skip-permissions": None}},
    {"hooks": {"PreToolUse": [HookMatcher()]}},
    {"can_use_tool": print},
    {"permission_prompt_tool_name": "mcp__shop__ask"},
    {"mcp_servers": "servers.json"},
    {"mcp_servers": {"ferrule": {"command": "true"}}},
    *({"settings": settings} for settings in SETTINGS),
]


async def test_a_mode_of_a_sub_agent_is_refused() -> None:
    with pytest.raises(DefinitionError, match="the agent 'clerk' has permissionMode='bypassPermissions'"):
        guarded(agents={"clerk": AgentDefinition("", "", permissionMode="bypassPermissions")})


@pytest.mark.parametrize("options", PASSING, ids=str)
async def test_an_option_that_lets_calls_pass_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=f"{min(options)}=|a hook for 'PreToolUse'"):
        guarded(**options)


async def test_the_gate_is_in_the_options_beside_other_hooks() -> None:
    stop = HookMatcher()
    options = guarded(hooks={"Stop": [stop]}, settings='{"permissions": {"deny": ["Bash"]}}').options
    assert json.loads(options.settings) == {"permissions": {"deny": ["Bash"], "ask": ["*"]}}
    [before] = options.hooks["PreToolUse"]
    assert before.on_failure == "block" and before.matcher is None
    assert options.hooks["Stop"] == [stop] and options.setting_sources == []


async def test_no_tool_is_listed_before_the_hooks_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claude Code takes up a waiting call of a resumed session after the tools of such servers are listed."""

    async def connect(self: ClaudeSDKClient, prompt: Any = None) -> None:
        """Leave Claude Code out."""

    monkeypatch.setattr(ClaudeSDKClient, "connect", connect)
    client = guarded()
    async with Client(client.options.mcp_servers["ferrule"]["instance"]) as mcp:
        listing = asyncio.create_task(mcp.list_tools())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not listing.done()
        await client.connect()
        assert [found.name for found in (await listing).tools] == ["price_of"]


async def test_a_call_that_no_hook_has_seen_is_denied(caplog: pytest.LogCaptureFixture) -> None:
    options = guarded().options
    async with Client(options.mcp_servers["ferrule"]["instance"]) as mcp:
        result = await mcp.call_tool("price_of", {"thing": "tea"}, meta={"claudecode/toolUseId": "c1"})
    assert result.is_error and "No guard has judged" in str(result.content)
    answer = await options.can_use_tool("Bash", {}, ToolPermissionContext(tool_use_id="c1"))
    assert answer.behavior == "deny"
    ran = {"tool_use_id": "c1", "tool_name": "Bash", "tool_input": {}, "tool_response": ""}
    await options.hooks["PostToolUse"][0].hooks[0](ran, "c1", {})
    assert "a call of tool 'Bash' that no guard has judged" in caplog.text


async def test_an_error_in_the_context_function_runs_nothing() -> None:
    def context(given: Any) -> ToolContext[Any]:
        raise RuntimeError("the secret inside")

    client: Any = claude_agent.client(Runner([price_of], journal=memory()), context=context)
    given = {"tool_use_id": "c1", "tool_name": "Bash", "tool_input": {}}
    decided = (await client.options.hooks["PreToolUse"][0].hooks[0](given, "c1", {}))["hookSpecificOutput"]
    assert decided["permissionDecision"] == "deny" and "secret" not in str(decided)


class Order(TypedDict):
    thing: Annotated[str, "a kind of tea"]
    grams: NotRequired[int]


@sdk_tool("order", "Order tea.", Order)
async def order(given: dict[str, Any]) -> dict[str, Any]:
    if given["thing"] == "none":
        return {"content": [{"type": "text", "text": "there is none"}], "is_error": True}
    raise RuntimeError("the secret inside")


async def test_a_tool_of_the_sdk_keeps_its_schema_and_its_failures() -> None:
    with pytest.raises(DefinitionError, match=r"claude_agent\.from_tools"):
        Runner([price])
    runner = Runner(claude_agent.from_tools([price, order]))
    assert (await runner.run("price", {"thing": "tea"})).text == "tea costs 7"
    schema = runner.tools.get("order").input_schema
    assert schema["properties"]["thing"]["description"] == "a kind of tea"
    assert list(schema["required"]) == ["thing"]
    failed = await runner.run("order", {"thing": "none"})
    assert failed.status == "failed" and "there is none" in failed.text
    assert "secret" not in (await runner.run("order", {"thing": "tea"})).text
