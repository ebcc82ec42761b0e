"""The turns of the scripted model of `make demo`.

The turns are written in advance, with their mistakes. The note and the answer are not: they come from the results of
the real tools, which are in the messages.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

Messages = list[dict[str, Any]]

NOTES = Path("build/demo-notes.md")
EMPTY = "(nothing noted yet)"
NOUNS = "Tool|Toolset|ToolCall|ToolResult|Decision|Runner|ToolContext|Event"

NOTES.parent.mkdir(exist_ok=True)
NOTES.write_text(f"# Notes of the demo\n\n{EMPTY}\n", encoding="utf-8")


def list_results(messages: Messages, name: str) -> list[str]:
    """Return the results and errors of one tool's calls, in order."""
    made = [call for message in messages for call in message.get("tool_calls") or ()]
    names = {call["id"]: call["function"]["name"] for call in made}
    return [m["content"] for m in messages if m["role"] == "tool" and names[m["tool_call_id"]] == name]


def content_lines(text: str) -> list[str]:
    """Return the lines of a result, without the notes of the tool."""
    return [line for line in text.splitlines() if not line.startswith("[")]


def strip_line_numbers(text: str) -> str:
    """Return the output of `read_file` without line numbers."""
    return re.sub(r"(?m)^\d+\t", "", "\n".join(line for line in text.splitlines() if re.match(r"\d+\t", line)))


def list_dependencies(messages: Messages) -> str:
    """Return the packages that pyproject.toml requires."""
    project = tomllib.loads(strip_line_numbers(list_results(messages, "read_file")[2]))["project"]
    return " and ".join(re.split(r"[<>=~! ]", name)[0] for name in project["dependencies"])


def describe_findings(messages: Messages) -> str:
    """Return the findings, one sentence each."""
    modules, tests = map(content_lines, list_results(messages, "list_files"))
    nouns = content_lines(list_results(messages, "search_files")[0])
    places = [re.sub(r"^(.*?):\d+: class (\w+).*", r"\2 (\1)", line) for line in nouns]
    return (
        f"The package has {len(modules)} Python files and needs {list_dependencies(messages)} alone.\n"
        f"Its nouns are classes that I found here: {', '.join(places)}.\n"
        f"{len(tests)} test files hold it to what it promises."
    )


def note(messages: Messages) -> Any:
    """Return the turn that edits the notes."""
    change = {"path": str(NOTES), "old": EMPTY, "new": describe_findings(messages)}
    return "I will keep that in the notes.", [("edit_file", json.dumps(change))]


def answer(messages: Messages) -> str:
    """Return the last turn, made from the messages."""
    readme = [line for line in strip_line_numbers(list_results(messages, "read_file")[0]).splitlines() if line.strip()]
    title, first = [*readme, "(no title)", "(no text)"][:2]
    outside = list_results(messages, "read_file")[3]
    edited = list_results(messages, "edit_file")[0]
    return "\n".join(
        [
            f"{title.strip('# ')}, as README.md has it: {first}",
            describe_findings(messages),
            f"A file that is none of my business I was not given. {outside.removeprefix('Error: ')}",
            f"My note: {edited.removeprefix('Error: ')}",
        ]
    )


steps = [
    (
        "I will look at the files, the main classes and the README, all at once.",
        [
            ("list_files", {"path": "src/ferrule", "pattern": "*.py", "depth": 4}),
            ("search_files", {"path": "src/ferrule", "glob": "*.py", "pattern": f"^class ({NOUNS})\\b"}),
            ("read_file", {"path": "README.md", "limit": "20"}),  # a number as text: repaired
        ],
    ),
    (
        "Now the dependencies and the tests.",
        [
            ("read_file", {"file_path": "pyproject.toml"}),  # no such parameter: refused, nothing is run
            ("list_files", '{"path": "tests", "pattern": "test_*.py", "depth": 4,}'),  # a comma too many: repaired
        ],
    ),
    (
        "The parameter is called path. And I try a file that is none of my business.",
        [("read_file", {"path": "pyproject.toml"}), ("read_file", {"path": "../../etc/passwd"})],
    ),
    note,
    answer,
]
