"""`commands`: shell lines run only the commands that patterns allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from ferrule import Runner, Tool, ToolContext, tool
from ferrule.errors import DefinitionError
from ferrule.guards import commands, within
from ferrule.values.call import ToolCall
from ferrule.values.decision import Decision


def judged(arguments: dict[str, Any], cwd: Path | None = None, **options: Any) -> Decision | None:
    given: dict[str, Any] = {"allow": ["git *", "cd *", "./run"], "ask": ["git push *"], "deny": ["rm *"], **options}
    return commands(**given)(ToolCall("1", "shell", arguments), ToolContext[Any](working_directory=cwd))


def kind(arguments: dict[str, Any], **options: Any) -> str:
    decision = judged(arguments, **options)
    return "none" if decision is None else decision.kind


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        *(({"command": line}, "none") for line in ("git status", None, ["git", "log", "$(x) y"])),
        *(({"command": line}, "ask") for line in ("ls", "git push", "git $x", "", "cd x && ./run", {"program": "rm"})),
        ({"command": ["git", "log", "; rm x"]}, "ask"),
        ({"command": "git log | xargs rm"}, "deny"),
        ({"shellCommand": "rm x"}, "deny"),
        ({"steps": [{"run_cmd": "git log"}, {"run_cmd": "rm x"}]}, "deny"),
        ({"argv": ["rm", "x"]}, "deny"),
        *(({"commands": lines}, "deny") for lines in (["git log", "rm x"], [["git", "log"], ["rm", "x"]])),
        ({"command": "rm", "args": ["x"]}, "deny"),
        *(({"command": "git", "args": more}, "deny") for more in (["log", "; rm x"], "log; rm x")),
        ({"command": "git", "args": {"a": 1}}, "ask"),
        ({"command": "git log", "env": {"PATH": "."}}, "ask"),
        ({"command": "./run", "cwd": "x"}, "ask"),
    ],
)
def test_the_arguments_of_a_command_are_judged(arguments: dict[str, Any], expected: str) -> None:
    assert kind(arguments) == expected


def test_names_may_be_added_and_excluded() -> None:
    assert kind({"script": "rm x"}, parameters=["script"]) == "deny"
    assert kind({"command": "rm x"}, text=["command"]) == "none"


async def test_an_enumerated_command_is_no_shell_line() -> None:
    @tool
    def edit(command: Literal["view", "create"], path: str) -> str:
        """Edit."""
        return command

    runner = Runner([edit], guards=[commands()])
    assert (await runner.run("edit", {"command": "view", "path": "a"})).success


# -- tools that it cannot judge ----------------------------------------------------------------------------------------


def made_with(name: str = "act", guards: Any = (), **properties: Any) -> Tool:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return Tool(name, lambda payload: "ran", description="Act.", input_schema=schema, guards=guards)


TEXT, FLAG, NUMBER = {"type": "string"}, {"type": "boolean"}, {"type": ["number", "null"]}
WORDS = {"type": "array", "items": TEXT}
STEP = {"type": "object", "properties": {"command": TEXT, "shell": TEXT}}
UNSEEN: list[tuple[Tool, str]] = [
    *[(made_with(**{name: WORDS}), name) for name in ("args", "git_arguments")],
    *[(made_with(**{name: TEXT}), name) for name in ("script", "cmd_str", "pythonCode", "cmdstr")],
    (made_with(scripts=WORDS), "scripts"),
    (made_with(job={"type": "object", "properties": {"code": TEXT}}), "code"),
    (made_with("run_shell", input=TEXT), "input"),
    (made_with("bash", text=TEXT, seconds=NUMBER), "text"),
    *[(made_with(name, text=TEXT), "text") for name in ("my_shell", "docker_exec", "exec_in_pod", "run_on_host")],
    (made_with("python_repl_ast", query=TEXT), "query"),
]
CHANGED: list[tuple[Tool, str]] = [
    *[(made_with(command=TEXT, **{name: TEXT}), name) for name in ("executable", "environment_extra", "stdin", "x")],
    *[(made_with(command=TEXT, **{name: FLAG}), name) for name in ("shell", "use_sudo", "disableSandbox", "base64")],
    (made_with(command=TEXT, shell={"enum": ["bash", "pwsh"]}), "shell"),
    (made_with(command=TEXT, options={"type": "array", "items": TEXT}), "options"),
    (made_with(command=TEXT, options={"type": "object"}), "options"),
    (made_with(steps={"type": "array", "items": STEP}), "shell"),
    (made_with(steps={"type": "array", "items": {"type": "object", "properties": {"cmd": TEXT}}}, env=TEXT), "env"),
]


@pytest.mark.parametrize(("made", "name"), UNSEEN, ids=lambda one: getattr(one, "input_schema", one))
def test_an_unrecognized_shell_line_is_refused(made: Tool, name: str) -> None:
    with pytest.raises(DefinitionError, match=rf"no shell line .*'{made.name}'.*parameters=\('{name}',\)"):
        Runner([made], guards=[commands()])
    Runner([made], guards=[commands(parameters=[name])])
    Runner([made], guards=[commands(text=[name])])


@pytest.mark.parametrize(("made", "name"), CHANGED, ids=lambda one: getattr(one, "input_schema", one))
def test_a_tool_with_an_option_that_may_change_what_runs_is_refused(made: Tool, name: str) -> None:
    with pytest.raises(DefinitionError, match=rf"'{name}' may change what its command runs.*harmless=\('{name}',\)"):
        Runner([made], guards=[commands(allow=["git *"])])
    Runner([made], guards=[commands(allow=["git *"], harmless=[name])])


# The parameters of the shell tools of coding agents, as their makers have published them in 2025 and 2026.
PUBLISHED = [
    made_with("Bash", command=TEXT, timeout=NUMBER, description=TEXT, run_in_background=FLAG),
    *(made_with("BashOutput", bash_id=TEXT, filter=TEXT), made_with("KillShell", shell_id=TEXT)),
    made_with("execute_command", command=TEXT, requires_approval=FLAG, timeout=NUMBER),
    made_with("run_command", CommandLine=TEXT, Cwd=TEXT, Blocking=FLAG, WaitMsBeforeAsync=NUMBER, SafeToAutoRun=FLAG),
    made_with("terminal", command=TEXT, cd=TEXT, timeout_ms=NUMBER),
    made_with("flights", departure_terminal=TEXT, loyalty_program=TEXT, country_code=TEXT),
]


@pytest.mark.parametrize("made", PUBLISHED, ids=lambda made: made.name)
def test_published_shell_tools_are_accepted(made: Tool) -> None:
    Runner([made], guards=[commands(allow=["git *"])])


def test_the_own_guard_of_a_tool_must_find_a_line() -> None:
    with pytest.raises(DefinitionError, match="no shell line"):
        Runner([made_with(guards=[commands()], todo=TEXT)])
    Runner([made_with(guards=[commands(parameters=["todo"])], todo=TEXT), made_with("other", todo=TEXT)])


@pytest.mark.parametrize(
    "arguments",
    [
        *({"script": "rm x"}, {"job": {"code": "rm x"}}, {"command": "git log", "shell": True}),
        {"steps": [{"command": "git log"}], "env": {"A": "b"}},
        {"steps": [{"command": "git log"}, {"command": "git log", "options": ["x"]}]},
    ],
)
async def test_an_option_of_an_open_schema_is_asked_about(arguments: dict[str, Any]) -> None:
    made = Tool("act", lambda payload: "ran", description="Act.", input_schema={"type": "object"})
    runner = Runner([made], guards=[commands(allow=["git *"])])
    decision = await runner.decide(ToolCall("1", "act", arguments))
    assert decision.kind == "ask" and "what runs is unknown" in decision.reason


def test_redirections_stay_within_the_allowed_folders(tmp_path: Path) -> None:
    def of(line: str, **more: Any) -> str:
        decision = judged({"command": line, **more}, tmp_path, within=["out"])
        return "none" if decision is None else decision.kind

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link").symlink_to("../x")
    assert of("git log > out/a 2>&1") == of("git log >> ./out/a 2>/dev/null") == "none"
    for target in ("a", "out/../a", "out/link", "$x", "~/a", "out/*", "/etc/x", "out/\\\n/../a"):
        assert of(f"git log > {target}") == "ask"
    assert of("git log > out/a", cwd="x") == "ask"
    assert kind({"command": "git log > out/a"}) == "ask"


@pytest.mark.parametrize(
    ("line", "opens_outside"),
    [
        *((line, True) for line in ("git log > ../a", "cd x && git log > a", "git log > $x", "eval x > a")),
        ("bash -c 'a > /etc/x'", True),
        *((line, False) for line in ("git log > a 2>&1", "git log | wc -l", "case $x in a) ;; esac")),
        ("cd x && git log > {folder}/a", False),
    ],
)
def test_within_judges_the_files_of_redirections(line: str, opens_outside: bool, tmp_path: Path) -> None:
    context = ToolContext[Any](working_directory=tmp_path)
    call = ToolCall("1", "shell", {"command": line.format(folder=tmp_path)})
    refused = within(".")(call, context)
    assert (refused is not None and refused.kind == "deny" and "redirection" in refused.reason) is opens_outside
    assert (refused is None) is not opens_outside
    assert within(".", text=["command"])(call, context) is None
    assert within("/")(ToolCall("1", "shell", {"command": "git log > ../a"}), context) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("git log; ls -l 'a b'", """nothing allows "ls -l 'a b'\""""),
        ("rm x", "commands like 'rm *' are forbidden"),
        ("git push", "this runs 'git push *'"),
        ("git log > x", "nothing allows > 'x'"),
        ("git log `x`", "this may run 'rm *'; unknown is a command in backquotes"),
    ],
)
def test_the_reason_says_which_command_and_why(line: str, reason: str) -> None:
    decision = judged({"command": line})
    assert decision is not None and decision.reason == reason


def test_a_wrong_pattern_is_a_definition_error() -> None:
    for options in ({"allow": "git *"}, {"deny": ["* x"]}, {"within": [""]}, {"parameters": "script"}):
        with pytest.raises(DefinitionError):
            commands(**options)  # type: ignore[arg-type]
