"""The script of `make demo`: what the model says and calls, turn by turn.

The turns are written in advance, mistakes included. What they say about the repository is not: the note and the answer
are made from what the tools really gave back, which stands in the messages.
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


def answers(messages: Messages, name: str) -> list[str]:
    """What the calls of one tool gave, in order; an error's text too."""
    made = [call for message in messages for call in message.get("tool_calls") or ()]
    names = {call["id"]: call["function"]["name"] for call in made}
    return [m["content"] for m in messages if m["role"] == "tool" and names[m["tool_call_id"]] == name]


def found(text: str) -> list[str]:
    """The lines of an answer, without the tool's own notes."""
    return [line for line in text.splitlines() if not line.startswith("[")]


def unnumbered(text: str) -> str:
    """What `read_file` showed, without its line numbers."""
    return re.sub(r"(?m)^\d+\t", "", "\n".join(line for line in text.splitlines() if re.match(r"\d+\t", line)))


def dependencies(messages: Messages) -> str:
    """The packages that pyproject.toml requires."""
    project = tomllib.loads(unnumbered(answers(messages, "read_file")[2]))["project"]
    return " and ".join(re.split(r"[<>=~! ]", one)[0] for one in project["dependencies"])


def facts(messages: Messages) -> str:
    """What was found out, in one sentence each."""
    modules, tests = map(found, answers(messages, "list_files"))
    nouns = found(answers(messages, "search_files")[0])
    places = [re.sub(r"^(.*?):\d+: class (\w+).*", r"\2 (\1)", line) for line in nouns]
    return (
        f"The package has {len(modules)} Python files and needs {dependencies(messages)} alone.\n"
        f"Its nouns are classes that I found here: {', '.join(places)}.\n"
        f"{len(tests)} test files hold it to what it promises."
    )


def note(messages: Messages) -> Any:
    """The edit, with what was found out."""
    change = {"path": str(NOTES), "old": EMPTY, "new": facts(messages)}
    return "I will keep that in the notes.", [("edit_file", json.dumps(change))]


def answer(messages: Messages) -> str:
    """The last turn: all of it from the messages."""
    readme = [line for line in unnumbered(answers(messages, "read_file")[0]).splitlines() if line.strip()]
    title, first = [*readme, "(no title)", "(no text)"][:2]
    outside = answers(messages, "read_file")[3]
    edited = answers(messages, "edit_file")[0]
    return "\n".join(
        [
            f"{title.strip('# ')}, as README.md has it: {first}",
            facts(messages),
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
