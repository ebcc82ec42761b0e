"""Serve the notes in a folder to MCP clients: reading is allowed, changes are asked about, other folders are closed.

    ferrule serve examples/notes_server.py                  # over standard input and output
    ferrule serve examples/notes_server.py --http 8000      # at http://127.0.0.1:8000/mcp
    ferrule serve examples/notes_server.py --install        # print the configuration for desktop clients

The notes are in `notes/` in the working directory, or in the folder that NOTES names.

What to change first: the tools, and the guards of `runner`, which judge every call.
"""

from __future__ import annotations

import os
from pathlib import Path

from ferrule import Diff, Runner, ToolError, tool
from ferrule.guards import ask_before_changes
from ferrule.security import open_inside

NOTES = Path(os.environ.get("NOTES", "notes"))


def read_text(name: str) -> str:
    try:
        with open_inside(NOTES, f"{name}.md", "r") as file:
            return file.read()
    except FileNotFoundError:
        raise ToolError(f"there is no note {name!r}; list_notes shows the names") from None


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
    return read_text(name)


def preview_change(arguments: dict[str, str]) -> Diff:
    """Return the change that a person sees before a note is written."""
    try:
        before = read_text(arguments["name"])
    except ToolError:
        before = ""
    return Diff(before, arguments["text"], arguments["name"])


@tool(preview=preview_change)
def write_note(name: str, text: str) -> str:
    """Write a note. It replaces a note with the same name.

    Args:
        name: Its name, without ".md".
        text: The whole note.
    """
    NOTES.mkdir(exist_ok=True)
    with open_inside(NOTES, f"{name}.md", "w") as file:
        file.write(text)
    return f"{name} has {len(text)} characters now."


runner = Runner([list_notes, read_note, write_note], guards=[ask_before_changes], timeout=10)
