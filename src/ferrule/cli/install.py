"""The configuration of the usual MCP clients, so that they start `ferrule serve`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SERVER_ADDRESS = re.compile(r"https?://")


def configurations(
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
    """Return the text of `ferrule serve --install`.

    Args:
        name: The clients' name for the server.
        places: The places of the served tools.
        servers: The values of `--mcp`: files, and addresses of servers.
        yes: The tools that are not asked about.
        policies: The values of `--policy`.
        directory: The working directory of the server: a client starts it anywhere.
        lock: The file by which the tools are locked.
        journal: The file of the journal.
        more: Other options.
    """
    connected = [f"--mcp={one if _SERVER_ADDRESS.match(one) else directory / one}" for one in servers]
    allowed = [f"--yes={tool}" for tool in yes]
    started = _started(
        [
            "serve",
            *places,
            *connected,
            *more,
            *allowed,
            *([] if lock is None else [f"--lock={directory / lock}"]),
            *(f"--policy={directory / one}" for one in policies),
            *([] if journal is None else [f"--journal={directory / Path(journal).expanduser()}"]),
            "--directory",
            str(directory),
        ]
    )
    shared = _as_json({"mcpServers": {name: started}})
    typed = _as_json({"servers": {name: {"type": "stdio", **started}}})
    parts = [
        (f"Claude Desktop: {_claude_desktop()}", shared),
        ("Claude Code: .mcp.json in the project's directory", shared),
        (f"Cursor: .cursor/mcp.json in the project's directory, or {Path.home() / '.cursor' / 'mcp.json'}", shared),
        ("VS Code: .vscode/mcp.json in the project's directory", typed),
    ]
    return "\n".join(f"{where}\n{text}\n" for where, text in parts)


def _started(words: list[str]) -> dict[str, Any]:
    """Return the command that starts this very installation."""
    here = Path(sys.executable).absolute().parent
    for script in (here / "ferrule", here / "ferrule.exe"):
        if script.is_file():
            return {"command": str(script), "args": words}
    return {"command": str(Path(sys.executable).absolute()), "args": ["-P", "-m", "ferrule", *words]}


def _claude_desktop() -> str:
    file = "claude_desktop_config.json"
    if sys.platform == "darwin":
        return str(Path.home() / "Library" / "Application Support" / "Claude" / file)
    if sys.platform == "win32":
        return str(Path.home() / "AppData" / "Roaming" / "Claude" / file)
    return str(Path.home() / ".config" / "Claude" / file)


def _as_json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
