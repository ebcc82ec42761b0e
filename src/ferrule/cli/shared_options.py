"""The options that several commands share. `--help` shows them in groups."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

from ferrule import models
from ferrule.cli.usage import parse_count, parse_share

MODEL_PROVIDERS: Final = tuple(name.lower() for name in models.NAMES if name != "Scripted")
OPERATIONS_BUDGET: Final = 20_000
_REPEAT: Final[dict[str, Any]] = {"action": "append", "default": []}


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
    return int(text)


_SOURCES: Final[dict[str, dict[str, Any]]] = {
    "--tools": {
        "action": "append",
        "metavar": "WHERE",
        "help": "a Python file, a module, or either with :NAME; may be repeated. A single Runner with guards keeps its "
        "own policy. All other tools stay inside the working directory and ask you before they change anything",
    },
    "--mcp": {
        "action": "append",
        "metavar": "FILE_OR_URL",
        "help": "an mcp.json file, or the URL of an MCP server; may be repeated. Its tools count as destructive, so "
        "Ferrule asks you before each call",
    },
    "--openapi": {"metavar": "FILE", "help": "an OpenAPI document; its operations become tools"},
    "--server": {**_REPEAT, "metavar": "URL", "help": "base URL of that API; required if operations need credentials"},
    "--only": {
        **_REPEAT,
        "metavar": "WHICH",
        "help": "import only these operations: GET, '/orders/*', 'GET /orders/*', tag:orders or an operationId; may be "
        "repeated",
    },
    "--secret": {
        **_REPEAT,
        "metavar": "NAME=VARIABLE",
        "help": "read the credential NAME of the document's securitySchemes from this environment variable; may be "
        "repeated",
    },
    "--root": {**_REPEAT, "metavar": "DIR", "help": "folder of the files that the document refers to; may be repeated"},
    "--budget": {
        "type": _count,
        "metavar": "TOKENS",
        "help": f"most tokens for all operations (default: {OPERATIONS_BUDGET:,} if a model receives them)",
    },
    "--pages": {"type": _count, "metavar": "N", "help": "most pages of a list that one call may read (default: 1)"},
}
_FILE_TOOLS: Final = "the built-in file tools: ferrule.tools.files"
_WITHOUT_SOURCES: Final = MappingProxyType(
    {
        "chat": f"without any of these, the tools of your settings, or else {_FILE_TOOLS}",
        "inspect": "without any of these, only the journal; without --journal, the built-in file tools",
        "lock": "at least one of these is required",
        "policy": "without any of these, the rules are checked and tested without tools",
        "run": f"without any of these, the tools of your settings, or else {_FILE_TOOLS}",
        "test": "without any of these, the tools that the file of tests names",
    }
)
"""The tools of a command whose options name none, if these are not always the file tools."""
_RULES: Final[dict[str, dict[str, Any]]] = {
    "--yes": {
        **_REPEAT,
        "metavar": "TOOL",
        "help": "approve every call of this tool without asking; may be repeated. A denied call stays denied",
    },
    "--policy": {
        **_REPEAT,
        "metavar": "FILE",
        "help": "a policy file; may be repeated. It adds to /etc/ferrule/policy.toml, ferrule/policy.toml in "
        "$XDG_CONFIG_HOME, and .ferrule/policy.toml in the working directory",
    },
    "--shadow": {
        "metavar": "FILE",
        "help": "a policy file to try out: it decides nothing, and the end of the run lists what it would change",
    },
    "--lock": {"metavar": "FILE", "help": "use only the tools that match this file, which `ferrule lock` writes"},
    "--session": {
        "metavar": "NAME",
        "help": "name of the session. An answer that you ask Ferrule to remember holds for this name; without a name "
        "it holds for the working directory",
    },
    "--journal": {
        "metavar": "FILE",
        "help": "record every call in this file; `ferrule log FILE` shows them. A name without a folder is a file in "
        "the state folder",
    },
}
_MODEL: Final[dict[str, dict[str, Any]]] = {
    "--model": {
        "metavar": "MODEL",
        "help": f"PROVIDER:NAME, with one of {', '.join(MODEL_PROVIDERS)}; or scripted:FILE, a Python file that "
        "defines `steps`",
    },
    "--base-url": {
        "metavar": "URL",
        "help": "another address of the provider's API. With openai:NAME, any API that is compatible with Chat "
        "Completions",
    },
    "--max-turns": {
        "type": parse_count,
        "default": 20,
        "metavar": "N",
        "help": "ask the model at most this often (default: 20); the calls of its last turn are not run",
    },
}
_GROUPS: Final = MappingProxyType({"model": _MODEL, "rules and records": _RULES})


def add_sources(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the options of all commands that take tools."""
    parser.add_argument("--verbose", action="store_true", help="print the log, with the traceback of a tool that fails")
    group = parser.add_argument_group("tools", _WITHOUT_SOURCES.get(command, f"without any of these, {_FILE_TOOLS}"))
    for option, settings in _SOURCES.items():
        group.add_argument(option, **settings)


def add_shared(parser: argparse.ArgumentParser, *options: str, required: Sequence[str] = ()) -> None:
    """Add some of the shared options, such as `--yes`, in their groups."""
    for title, settings in _GROUPS.items():
        names = [name for name in settings if name in options]
        group = parser.add_argument_group(title) if names else parser
        for name in names:
            group.add_argument(name, **settings[name], required=name in required)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option of the commands that can print JSON."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_minimum(parser: argparse.ArgumentParser, option: str, score: str) -> None:
    """Add an option that fails the command if a score is too low."""
    parser.add_argument(option, type=parse_share, metavar="SHARE", help=f"exit with 1 if {score} is below this")
