"""Notes in a folder, for any client of MCP: reading is free, changes are asked about, and nothing leaves the folder.

    ferrule serve examples/notes_server.py                  # over standard input and output
    ferrule serve examples/notes_server.py --http 8000      # at http://127.0.0.1:8000/mcp
    ferrule serve examples/notes_server.py --install        # what to write into the configuration of a desktop client

The notes are in `notes/` below the working directory, or where NOTES says.

To change first: the tools, and `runner` at the end, whose guards judge each call of every client.
"""

from __future__ import annotations

import os
from pathlib import Path

from ferrule import Diff, Runner, ToolError, tool
from ferrule.guards import ask_before_changes
from ferrule.security.paths import open_inside

NOTES = Path(os.environ.get("NOTES", "notes"))


def text_of(name: str) -> str:
    try:
        with open_inside(NOTES, f"{name}.md", "r") as file:
            return file.read()
    except FileNotFoundError:
        raise ToolError(f"there is no note {name!r}; list_notes says which there are") from None


@tool(read_only=True)
def list_notes() -> list[str]:
    """List the names of the notes."""
    return sorted(path.stem for path in NOTES.glob("*.md"))


@tool(read_only=True)
def read_note(name: str) -> str:
    """Read a note.

    Args:
        name: Its name, without ".md".
    """
    return text_of(name)


def change(arguments: dict[str, str]) -> Diff:
    """What a person is shown before a note is written."""
    try:
        before = text_of(arguments["name"])
    except ToolError:
        before = ""
    return Diff(before, arguments["text"], arguments["name"])


@tool(preview=change)
def write_note(name: str, text: str) -> str:
    """Write a note, over one that has the same name.

    Args:
        name: Its name, without ".md".
        text: The whole of it.
    """
    NOTES.mkdir(exist_ok=True)
    with open_inside(NOTES, f"{name}.md", "w") as file:
        file.write(text)
    return f"{name} has {len(text)} characters now."


runner = Runner([list_notes, read_note, write_note], guards=[ask_before_changes], timeout=10)
