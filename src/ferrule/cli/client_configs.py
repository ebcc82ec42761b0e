"""Configuration for common MCP clients that lets them start `ferrule serve`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SERVER_ADDRESS = re.compile(r"https?://")


def format_configurations(
    name: str,
    places: Sequence[str],
    servers: Sequence[str],
    yes: Sequence[str],
    directory: Path,
    lock: str | None = None,
    policies: Sequence[str] = (),
    journal: str | None = None,
    more: Sequence[str] = (),
) -> str:
    """Return the text that `ferrule serve --install` prints.

    Args:
        name: The name of the server in the clients.
        places: Where the tools are.
        servers: The values of `--mcp`: files, and addresses of servers.
        yes: The values of `--yes`.
        directory: The working directory of the server. A client starts it anywhere.
        lock: The value of `--lock`.
        policies: The values of `--policy`.
        journal: The file of the journal.
        more: Other options.
    """
    command = _start_command(
        [
            "serve",
            *places,
            *(f"--mcp={server if _SERVER_ADDRESS.match(server) else directory / server}" for server in servers),
            *more,
            *(f"--yes={tool}" for tool in yes),
            *([] if lock is None else [f"--lock={directory / lock}"]),
            *(f"--policy={directory / file}" for file in policies),
            *([] if journal is None else [f"--journal={directory / Path(journal).expanduser()}"]),
            "--directory",
            str(directory),
        ]
    )
    shared = _as_json({"mcpServers": {name: command}})
    vs_code = _as_json({"servers": {name: {"type": "stdio", **command}}})
    parts = [
        (f"Claude Desktop: {_claude_desktop_path()}", shared),
        ("Claude Code: .mcp.json in the project's directory", shared),
        (f"Cursor: .cursor/mcp.json in the project's directory, or {Path.home() / '.cursor' / 'mcp.json'}", shared),
        ("VS Code: .vscode/mcp.json in the project's directory", vs_code),
    ]
    return "\n".join(f"{where}\n{text}\n" for where, text in parts)


def _start_command(words: list[str]) -> dict[str, Any]:
    """Return the command that starts this installation."""
    here = Path(sys.executable).absolute().parent
    for script in (here / "ferrule", here / "ferrule.exe"):
        if script.is_file():
            return {"command": str(script), "args": words}
    return {"command": str(Path(sys.executable).absolute()), "args": ["-P", "-m", "ferrule", *words]}


def _claude_desktop_path() -> str:
    file = "claude_desktop_config.json"
    if sys.platform == "darwin":
        return str(Path.home() / "Library" / "Application Support" / "Claude" / file)
    if sys.platform == "win32":
        return str(Path.home() / "AppData" / "Roaming" / "Claude" / file)
    return str(Path.home() / ".config" / "Claude" / file)


def _as_json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
