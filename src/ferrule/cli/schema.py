"""`ferrule schema`: the definitions for one model API."""

from __future__ import annotations

import argparse
import importlib
import json
import sys

from ferrule.approval import printable
from ferrule.cli import servers
from ferrule.cli.shared_options import add_shared
from ferrule.cli.usage import check_known
from ferrule.providers import NAMES


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the API and the lock."""
    parser.add_argument("--provider", required=True, metavar="NAME", help=f"one of {', '.join(NAMES)}")
    parser.add_argument("--strict", action="store_true", help="print the definitions for the provider's strict mode")
    add_shared(parser, "--lock")


def command(options: argparse.Namespace) -> int:
    """Print the definitions."""
    check_known("provider", [options.provider], NAMES)
    provider = importlib.import_module(f"ferrule.providers.{options.provider}")
    text = json.dumps(provider.tools(servers.load_tools(options), strict=options.strict), indent=2, ensure_ascii=False)
    print("".join(map(_escape_character, text)) if sys.stdout.isatty() else text)
    return 0


def _escape_character(character: str) -> str:
    """Return the JSON escape of a character that could move a terminal's cursor."""
    return character if printable(character) == character else json.dumps(character)[1:-1]
