"""`ferrule lint`: its findings about tools with one fault each, and its output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferrule import Tool, ToolContext, Toolset, build_tool, tool
from ferrule.providers import NAMES
from ferrule.providers.lint import LIMITS, Finding, findings
from ferrule.tools import files

ANY: dict[str, Any] = {"type": "object"}
TOOLS = '''
from ferrule import tool

@tool(read_only=True)
def send(to: str, text: str) -> str:
    """Send a message."""
    return to

@tool(name="sends", read_only=True)
def other(to: str, options: dict[str, int]) -> str:
    return to
'''


def made(name: str, description: str = "Do it.", schema: Any = ANY) -> Tool:
    return build_tool(
        {"name": name, "description": description, "input_schema": schema, "execute": lambda payload: payload}
    )


def schema_of(**parameters: Any) -> dict[str, Any]:
    return {"type": "object", "properties": parameters, "required": list(parameters), "additionalProperties": False}


def found(rule: str, *tools: Tool, strict: bool = False, of: tuple[str, ...] = tuple(LIMITS)) -> list[Finding]:
    return [finding for finding in findings(Toolset(tools), of, strict) if finding.rule == rule]


# What a provider refuses


def test_good_tools_have_at_most_notes_about_strict_schemas() -> None:
    assert {finding.rule for finding in findings(Toolset.of(files))} <= {"strict"}
    assert {finding.level for finding in findings(Toolset.of(files))} <= {"note"}
    assert sorted(LIMITS) == sorted(NAMES)


def test_what_a_provider_refuses_is_an_error_for_it_alone() -> None:
    assert not found("description-size", made("fits", "x" * 1024))
    [one] = found("description-size", made("long", "x" * 1025))
    assert (one.level, one.provider, one.tool) == ("error", "openai_chat", "long") and "1,025" in one.text
    [one] = found("definition", made("odd", schema=schema_of(**{"x-y": {"type": "string"}})))
    assert (one.level, one.provider, one.tool) == ("error", "gemini", "odd") and "'x-y'" in one.text
    [one] = found("provider", made("odd").replace(provider={"mistral": {"strict": True}, "cohere": {"fine": True}}))
    assert (one.level, one.provider, one.tool) == ("error", "mistral", "odd")
    assert "'strict'" in one.text and "tools(…)" in one.text
    assert not found("provider", made("odd").replace(provider={"mistral": {"strict": True}}), of=("cohere",))


OPEN = schema_of(x={"type": "object", "additionalProperties": {"type": "integer"}})


def test_a_schema_that_cannot_be_strict_is_a_note_or_an_error() -> None:
    notes = found("strict", made("odd", schema=OPEN))
    assert {finding.level for finding in notes} == {"note"}
    assert {finding.provider for finding in notes} == {
        "anthropic", "bedrock", "mistral", "openai_chat", "openai_responses"
    }  # fmt: skip
    assert {(finding.tool, finding.path) for finding in notes} == {("odd", "$.properties.x")}
    errors = found("strict", made("odd", schema=OPEN), strict=True)
    assert {finding.level for finding in errors} == {"error"}
    assert {finding.provider for finding in errors} == {finding.provider for finding in notes} | {"gemini", "ollama"}


def test_the_strict_limit_of_a_request_is_reported() -> None:
    tools = [made(f"tool_{number}_x", schema=schema_of(x={"type": "string"})) for number in range(40)]
    said = {finding.provider: finding for finding in found("strict-limit", *tools, strict=True)}
    assert said.keys() == {"anthropic", "bedrock"}
    assert "at most 20" in said["anthropic"].text and "these are 40" in said["anthropic"].text
    assert "'tool_0_x' 1" in said["anthropic"].text and "'tool_20_x'" not in said["anthropic"].text
    assert {finding.level for finding in found("strict-limit", *tools)} == {"note"}


# What a model sees


@pytest.mark.parametrize("name", ["context", "ctx"])
def test_unclear_names_contexts_and_descriptions_are_found(name: str) -> None:
    [one] = found("wire-name", made("notes.read"), made("fits"))
    assert (one.level, one.tool, one.provider) == ("note", "notes.read", "")
    assert made("notes.read").wire_name in one.text
    [one] = found("no-description", made("mute", " "), made("fits"))
    assert (one.level, one.tool) == ("warning", "mute")
    namespace: dict[str, Any] = {"ToolContext": ToolContext, "Any": Any}
    exec(f"def bare({name}: Any): ...\ndef given({name}: ToolContext): ...\ndef text({name}: str): ...", namespace)
    tools = [tool(namespace[one], description="Do it.") for one in ("bare", "given", "text")]
    [one] = found("context-parameter", *tools, made("raw", schema=schema_of(context=True)))
    assert (one.level, one.tool, one.path) == ("warning", "bare", f"$.properties.{name}")
    assert "annotate it as a ToolContext" in one.text


def test_a_parameter_without_a_description_is_a_note_at_any_depth() -> None:
    inner = schema_of(deep={"type": "integer"}, said={"type": "integer", "description": "Said."})
    schema = schema_of(rows={"type": "array", "items": inner, "description": "Rows."}, kind={"const": "a"})
    private = made("pay", schema=schema_of(pin={"type": "string"})).replace(private=("pin",))
    paths = [finding.path for finding in found("no-parameter-description", made("some", schema=schema), private)]
    assert paths == ["$.properties.rows.items.properties.deep"]


# What a model may mix up

TEXT = schema_of(text={"type": "string"})
TO = schema_of(channel={"type": "string"}, text={"type": "string"})
STARTS = "Start the named service on the given host, wait for it, and report its state and its process id."


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (made("get_user", "Look one up."), made("getUsers", "All that there are.")),
        (made("slack_send", "Send a message.", TEXT), made("teams_send", "Send the message", TO)),
        (
            made("fetch_page", "Fetch one page of the web as plain text without scripts.", TEXT),
            made("read_site", "Fetch a page of the web as plain text without any scripts.", TEXT),
        ),
    ],
)
def test_similar_tools_are_a_warning_that_names_both(one: Tool, other: Tool) -> None:
    [finding] = found("confusable", one, other)
    assert (finding.level, finding.tool) == ("warning", one.name)
    assert repr(other.name) in finding.text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (made("create_user", "Create a user.", TEXT), made("delete_user", "Delete a user.", TEXT)),
        (made("start_service", STARTS, TEXT), made("stop_service", STARTS.replace("Start", "Stop"), TEXT)),
        (made("list_notes", STARTS, TEXT), made("run_notes", f"{STARTS} Once.", schema_of(other={"type": "string"}))),
    ],
)
def test_tools_that_differ_in_a_word_or_parameters_are_not_reported(one: Tool, other: Tool) -> None:
    assert not found("confusable", one, other)


# What it costs


# The program


LINT = ("lint", "--tools", "tools.py")


@pytest.fixture(autouse=True)
def tools(folder: Path) -> None:
    (folder / "tools.py").write_text(TOOLS, encoding="utf-8")


def test_lint_ends_with_1_only_if_something_would_be_refused(ferrule: Any) -> None:
    done = ferrule(*LINT)
    assert done.code == 0 and "may be taken for 'sends'" in done.out and "estimate" in done.out
    assert "\x1b" not in done.out
    assert sum("cannot be strict" in line for line in done.out.splitlines()) == 1  # one row for several providers
    done = ferrule(*LINT, "--strict-schemas", "--provider", "anthropic")
    assert done.code == 1 and "$.properties.options" in done.out and "1 error, 2 warnings" in done.out
    done = ferrule(*LINT, "--strict-where-possible", "--provider", "anthropic")
    assert done.code == 0 and "stays plain" in done.out and "error" not in done.out


def test_lint_prints_json(ferrule: Any) -> None:
    done = ferrule(*LINT, "--json", "--strict-schemas", "--provider", "mistral", "--provider", "gemini")
    assert done.code == 1
    assert {finding["provider"] for finding in done.json["findings"]} == {"", "mistral", "gemini"}
    assert [cost["tool"] for cost in done.json["costs"]] == ["send", "sends"]
    assert done.json["costs"][0]["estimated_tokens"].keys() == {"mistral", "gemini"}
    assert done.json["costs"][1]["estimated_tokens"]["mistral"] is None
