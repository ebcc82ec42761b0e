"""`ferrule lint`: what it finds in tools of which one thing is wrong, and how the program tells it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import preloaded
from ferrule import Field, Tool, ToolContext, Toolset, build_tool, tool
from ferrule.providers import NAMES, anthropic
from ferrule.providers.lint import LIMITS, Finding, _likeness, _pairs, _words, costs, findings
from ferrule.tools import files
from waits import BOUND

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


def taking(**parameters: Any) -> dict[str, Any]:
    return {"type": "object", "properties": parameters, "required": list(parameters), "additionalProperties": False}


def found(rule: str, *tools: Tool, strict: bool = False, of: tuple[str, ...] = tuple(LIMITS)) -> list[Finding]:
    return [finding for finding in findings(Toolset(tools), of, strict) if finding.rule == rule]


def many(count: int, make: Callable[[int], Tool]) -> list[Tool]:
    return [make(number) for number in range(count)]


# What a provider refuses


def test_every_provider_is_asked() -> None:
    assert sorted(LIMITS) == sorted(NAMES)


def test_good_tools_have_no_findings_but_what_cannot_be_strict() -> None:
    assert {finding.rule for finding in findings(Toolset.of(files))} <= {"strict"}
    assert {finding.level for finding in findings(Toolset.of(files))} <= {"note"}


def test_findings_are_errors_first_and_always_the_same() -> None:
    tools = [made("a", schema=taking(**{"x-y": {"type": "string"}})), made("a.b", ""), made("A")]
    levels = [finding.level for finding in findings(tools)]
    assert levels == sorted(levels, key=["error", "warning", "note"].index) and len(set(levels)) == 3
    assert findings(tools) == findings([*tools])


@pytest.mark.parametrize(("provider", "most"), [("openai_chat", 128), ("gemini", 512)])
def test_one_tool_more_than_a_provider_takes_is_an_error_with_the_count(provider: str, most: int) -> None:
    tools = many(most, lambda number: made(f"tool_{number}_x"))
    assert not found("count", *tools, of=(provider,))
    [one] = found("count", *tools, made("one_more"), of=(provider,))
    assert (one.level, one.provider) == ("error", provider)
    assert str(most) in one.text and str(most + 1) in one.text


def test_a_description_longer_than_openai_chat_takes_is_an_error_there_alone() -> None:
    assert not found("description-size", made("fits", "x" * 1024))
    [one] = found("description-size", made("long", "x" * 1025))
    assert (one.level, one.provider, one.tool) == ("error", "openai_chat", "long")
    assert "1,025" in one.text


def test_what_a_provider_module_refuses_is_an_error_in_its_words() -> None:
    [one] = found("definition", made("odd", schema=taking(**{"x-y": {"type": "string"}})))
    assert (one.level, one.provider, one.tool) == ("error", "gemini", "odd")
    assert "'x-y'" in one.text


def test_a_key_that_a_definition_says_itself_is_an_error_there_alone() -> None:
    [one] = found("provider", made("odd").replace(provider={"mistral": {"strict": True}, "cohere": {"fine": True}}))
    assert (one.level, one.provider, one.tool) == ("error", "mistral", "odd")
    assert "'strict'" in one.text and "tools(…)" in one.text
    assert not found("provider", made("odd").replace(provider={"mistral": {"strict": True}}), of=("cohere",))


OPEN = taking(x={"type": "object", "additionalProperties": {"type": "integer"}})


def test_what_cannot_be_strict_is_a_note_and_an_error_where_it_is_to_be() -> None:
    notes = found("strict", made("odd", schema=OPEN))
    assert {finding.level for finding in notes} == {"note"}
    assert {finding.provider for finding in notes} == {
        "anthropic", "bedrock", "mistral", "openai_chat", "openai_responses"
    }  # fmt: skip
    assert {(finding.tool, finding.path) for finding in notes} == {("odd", "$.properties.x")}
    errors = found("strict", made("odd", schema=OPEN), strict=True)
    assert {finding.level for finding in errors} == {"error"}
    assert {finding.provider for finding in errors} == {finding.provider for finding in notes} | {"gemini", "ollama"}


def test_a_strict_limit_of_a_request_is_reported_with_its_count_and_few_names() -> None:
    tools = many(40, lambda number: made(f"tool_{number}_x", schema=taking(x={"type": "string"})))
    said = {finding.provider: finding for finding in found("strict-limit", *tools, strict=True)}
    assert said.keys() == {"anthropic", "bedrock"}
    assert "at most 20" in said["anthropic"].text and "these are 40" in said["anthropic"].text
    assert "'tool_0_x' 1" in said["anthropic"].text and "'tool_20_x'" not in said["anthropic"].text
    assert {finding.level for finding in found("strict-limit", *tools)} == {"note"}


def test_a_tool_that_cannot_be_strict_does_not_count_among_those_that_are() -> None:
    tools = many(20, lambda number: made(f"tool_{number}_x", schema=taking(x={"type": "string"})))
    assert not found("strict-limit", *tools, made("odd", schema=OPEN), of=("anthropic",))


# What a model sees


def test_a_name_that_had_to_be_changed_is_noted_with_what_it_became() -> None:
    [one] = found("wire-name", made("notes.read"), made("fits"))
    assert (one.level, one.tool, one.provider) == ("note", "notes.read", "")
    assert made("notes.read").wire_name in one.text


@pytest.mark.parametrize("name", ["context", "ctx"])
def test_a_context_that_may_be_anything_is_a_warning_that_says_how_to_get_it(name: str) -> None:
    namespace: dict[str, Any] = {"ToolContext": ToolContext, "Any": Any}
    exec(f"def bare({name}: Any): ...\ndef given({name}: ToolContext): ...\ndef text({name}: str): ...", namespace)
    tools = [tool(namespace[one], description="Do it.") for one in ("bare", "given", "text")]
    [one] = found("context-parameter", *tools, made("raw", schema=taking(context=True)))
    assert (one.level, one.tool, one.path) == ("warning", "bare", f"$.properties.{name}")
    assert "annotate it as a ToolContext" in one.text


def test_a_tool_without_a_description_is_a_warning() -> None:
    [one] = found("no-description", made("mute", " "), made("fits"))
    assert (one.level, one.tool) == ("warning", "mute")


def test_a_parameter_without_a_description_is_noted_at_any_depth() -> None:
    inner = taking(deep={"type": "integer"}, said={"type": "integer", "description": "Said."})
    schema = taking(rows={"type": "array", "items": inner, "description": "Rows."}, kind={"const": "a"})
    paths = [finding.path for finding in found("no-parameter-description", made("some", schema=schema))]
    assert paths == ["$.properties.rows.items.properties.deep"]


def test_a_parameter_is_described_by_the_definition_that_it_refers_to() -> None:
    schema = taking(
        one={"$ref": "#/$defs/Said"},
        two={"anyOf": [{"$ref": "#/$defs/Said"}, {"type": "null"}]},
        three={"$ref": "#/$defs/Mute"},
    )
    schema["$defs"] = {"Said": {"type": "string", "description": "Said."}, "Mute": {"type": "string"}}
    paths = [finding.path for finding in found("no-parameter-description", made("some", schema=schema))]
    assert paths == ["$.properties.three"]


@pytest.mark.parametrize(
    ("parameter", "described"),
    [
        ({"$ref": "#/$defs/anything"}, False),
        ({"$ref": "#/$defs/said"}, True),
        ({"$ref": "#/$defs/a~1b"}, True),
        ({"$ref": "#/$defs/said/properties/inner"}, False),
        ({"$ref": "#/properties/other"}, True),
        ({"$ref": "#/$defs/said/anyOf/0"}, False),
        ({"$ref": "#"}, False),
        (True, True),
    ],
)
def test_whatever_a_reference_leads_to_lint_finds_whether_it_is_described(parameter: Any, described: bool) -> None:
    said = {"description": "Said.", "properties": {"inner": True}, "anyOf": [{"type": "object"}]}
    schema = taking(x=parameter, other={"type": "string", "description": "Other."})
    schema["$defs"] = {"anything": True, "said": said, "a/b": {"type": "string", "description": "Both."}}
    one = made("one", schema=schema)
    paths = [finding.path for finding in found("no-parameter-description", one, strict=True)]
    assert ("$.properties.x" not in paths) is described
    assert [cost.tool for cost in costs([one], strict=True)] == ["one"]


def test_a_private_parameter_needs_no_description() -> None:
    @tool(private=("pin",))
    def pay(amount: int = Field(description="Cents."), pin: str = "") -> str:
        """Pay."""
        return pin

    assert not found("no-parameter-description", pay)


# What a model may mix up

TEXT = taking(text={"type": "string"})
TO = taking(channel={"type": "string"}, text={"type": "string"})
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
def test_a_pair_that_says_the_same_is_a_warning_that_names_both(one: Tool, other: Tool) -> None:
    [finding] = found("confusable", one, other)
    assert (finding.level, finding.tool) == ("warning", one.name)
    assert repr(other.name) in finding.text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (made("create_user", "Create a user.", TEXT), made("delete_user", "Delete a user.", TEXT)),
        (made("usd_to_eur", "", TEXT), made("eur_to_usd", "", TEXT)),
        (made("start_service", STARTS, TEXT), made("stop_service", STARTS.replace("Start", "Stop"), TEXT)),
        (made("list_notes", STARTS, TEXT), made("run_notes", f"{STARTS} Once.", taking(other={"type": "string"}))),
        (made("mute_one", ""), made("mute_two", "")),
    ],
)
def test_a_pair_that_a_word_or_its_parameters_tell_apart_is_not_reported(one: Tool, other: Tool) -> None:
    assert not found("confusable", one, other)


@given(st.lists(st.tuples(st.sampled_from(["send", "Sends", "a_b", "ab", "look"]), st.text("abcd ", max_size=14))))
def test_every_pair_of_which_one_may_be_taken_for_the_other_is_found_in_order(said: list[tuple[str, str]]) -> None:
    tools = [made(f"{name}{'_' * place}", description) for place, (name, description) in enumerate(said)]
    words = [_words(one) for one in tools]
    alike = [(one, other) for one, other in combinations(range(len(tools)), 2) if _likeness(words[one], words[other])]
    found = [finding for finding in findings(tools, ()) if finding.rule == "confusable"]
    assert [(finding.tool, finding.text.split("'")[1]) for finding in found] == [
        (tools[one].name, tools[other].name) for one, other in alike
    ]


def test_of_many_tools_only_those_with_a_rare_word_in_common_are_compared() -> None:
    tools = many(
        400, lambda number: made(f"tool_{number}_x", f"Take the thing number{number} from shelf{number % 40}.")
    )
    assert len(list(_pairs([_words(one) for one in tools]))) < 400 * 10


def test_the_file_tools_are_not_taken_for_one_another() -> None:
    assert not found("confusable", *Toolset.of(files))


# What it costs


def test_a_tools_tokens_are_a_quarter_of_its_definitions_bytes() -> None:
    one = made("ö", "Überall.")
    [cost] = costs([one], ["anthropic"])
    text = json.dumps(anthropic.tools([one])[0], ensure_ascii=False, separators=(",", ":"))
    assert cost.tokens == {"anthropic": (len(text.encode()) + 3) // 4}
    assert cost.description == len("Überall.")


def test_each_provider_counts_its_own_form_and_a_refused_one_has_no_cost() -> None:
    [cost] = costs([made("odd", schema=taking(**{"x-y": {"type": "string"}}))])
    assert cost.tokens["gemini"] is None
    assert 0 < (cost.tokens["anthropic"] or 0) < (cost.tokens["openai_chat"] or 0)


def test_strict_definitions_cost_what_they_are_rewritten_to() -> None:
    one = made("one", schema=taking(x={"type": "integer", "minimum": 1, "maximum": 9}))
    [loose], [strict] = costs([one], ["anthropic"]), costs([one], ["anthropic"], strict=True)
    assert (strict.tokens["anthropic"] or 0) > (loose.tokens["anthropic"] or 0)


# The program


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(TOOLS, encoding="utf-8")
    return tmp_path


def lint(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    return preloaded.run([sys.executable, "-m", "ferrule", "lint", *words], cwd=cwd, env=environment, timeout=BOUND)


def test_lint_ends_with_0_where_nothing_would_be_refused(here: Path) -> None:
    done = lint("--tools", "tools.py", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "may be taken for 'sends'" in done.stdout and "estimate" in done.stdout
    assert "\x1b" not in done.stdout


def test_lint_ends_with_1_where_something_would_be_refused(here: Path) -> None:
    done = lint("--tools", "tools.py", "--strict-schemas", "--provider", "anthropic", cwd=here)
    assert done.returncode == 1, done.stderr
    assert "$.properties.options" in done.stdout and "1 error, 2 warnings" in done.stdout


def test_lint_notes_what_stays_plain_of_tools_that_are_strict_where_possible(here: Path) -> None:
    done = lint("--tools", "tools.py", "--strict-where-possible", "--provider", "anthropic", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "stays plain" in done.stdout and "$.properties.options" in done.stdout and "error" not in done.stdout


def test_what_is_the_same_of_several_providers_is_one_row(here: Path) -> None:
    lines = lint("--tools", "tools.py", cwd=here).stdout.splitlines()
    assert sum("cannot be strict" in line for line in lines) == 1


def test_lint_says_the_same_to_machines(here: Path) -> None:
    words = ("--json", "--strict-schemas", "--provider", "mistral", "--provider", "gemini", "--tools", "tools.py")
    done = lint(*words, cwd=here)
    said = json.loads(done.stdout)
    assert done.returncode == 1
    assert {finding["provider"] for finding in said["findings"]} == {"", "mistral", "gemini"}
    assert [cost["tool"] for cost in said["costs"]] == ["send", "sends"]
    assert said["costs"][0]["estimated_tokens"].keys() == {"mistral", "gemini"}
    assert said["costs"][1]["estimated_tokens"]["mistral"] is None


def test_a_provider_that_there_is_not_cannot_be_meant(here: Path) -> None:
    done = lint("--provider", "antropic", cwd=here)
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'anthropic'?" in done.stderr
