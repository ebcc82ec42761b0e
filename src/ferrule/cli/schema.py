"""`ferrule schema`: the definitions for one model API."""

from __future__ import annotations

import argparse
import importlib
import json
import sys

from ferrule.approval import printable
from ferrule.cli import find, servers
from ferrule.cli.usage import UsageError, choices
from ferrule.providers import NAMES as PROVIDERS


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the API and the lock."""
    find.add_lock(parser)
    parser.add_argument("--provider", required=True, metavar="NAME", help=", ".join(PROVIDERS))
    parser.add_argument("--strict", action="store_true", help="as the provider's strict mode takes them")


def command(options: argparse.Namespace) -> int:
    """Print the definitions."""
    if options.provider not in PROVIDERS:
        raise UsageError(f"there is no provider {options.provider!r}; {choices(options.provider, PROVIDERS)}")
    provider = importlib.import_module(f"ferrule.providers.{options.provider}")
    text = json.dumps(provider.tools(servers.tools(options), strict=options.strict), indent=2, ensure_ascii=False)
    print("".join(map(_json_escaped, text)) if sys.stdout.isatty() else text)
    return 0


def _json_escaped(character: str) -> str:
    """Return the JSON escape of a character that could move a terminal's cursor."""
    return character if printable(character) == character else json.dumps(character)[1:-1]
