"""Resolves `--openapi`: the operations of an API, with the address and the credentials of their calls."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ferrule import Toolset
from ferrule.approval import printable
from ferrule.cli.text import short
from ferrule.cli.usage import UsageError
from ferrule.openapi.document import Spelling
from ferrule.openapi.toolset import import_operations
from ferrule.sources import Imported

BUDGET = 20_000
_LONGEST_TOLD = 500
_REPORTED = 20
_OPTION_SPELLING = Spelling(
    server="--server {}",
    further_server="another --server",
    credential="--secret {}=VARIABLE",
    only="--only {!r}",
    some="--only GET, --only 'tag:…' or --only '/orders/*'",
    roots="--root DIR",
    budget="give a larger --budget",
)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the commands that take tools."""
    parser.add_argument(
        "--openapi",
        metavar="FILE",
        help="an OpenAPI document, whose operations are tools. Without --tools, they are all tools",
    )
    parser.add_argument(
        "--server",
        action="append",
        default=[],
        metavar="URL",
        help="where the API of --openapi is; needed for credentials",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WHICH",
        help="take these operations alone: GET, '/orders/*', 'GET /orders/*', tag:orders or an operationId; may be "
        "repeated",
    )
    parser.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="NAME=VARIABLE",
        help="the credential of this name in the document's securitySchemes is in this environment variable",
    )
    parser.add_argument(
        "--root", action="append", default=[], metavar="DIR", help="the folder of the files that the document refers to"
    )
    parser.add_argument(
        "--budget",
        type=_budget,
        metavar="TOKENS",
        help=f"what the definitions of operations may take together (default: {BUDGET:,} where a model gets them)",
    )


def _budget(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"it is a whole number of tokens, not {text!r}")
    return int(text)


def tools(options: argparse.Namespace, budget: int | None, *, calls: bool) -> Toolset:
    """Return the tools of the document. Operations that are left out are reported on standard error.

    Args:
        budget: The most tokens for their definitions if `--budget` is not set.
        calls: Whether they are called, and not only looked at, so that the address of the API matters.

    Raises:
        DefinitionError: The document cannot be read or used.
        UsageError: An option needs `--openapi`.
    """
    file = options.openapi
    for name in ("server", "only", "secret", "root", "budget"):
        if getattr(options, name) not in (None, []) and file is None:
            raise UsageError(f"--{name} is for --openapi FILE")
    if file is None:
        return Toolset()
    named = {"only": options.only, "roots": options.root, "spelling": _OPTION_SPELLING}
    if calls:
        named |= {
            "server": options.server or None,
            "credentials": {name: name for name in secrets(options, tell=True)},
            "budget": budget if options.budget is None else options.budget,
        }
    imported = import_operations(file, calls=calls, **named)
    _tell_of(file, imported)
    return imported


def secrets(options: argparse.Namespace, *, tell: bool = False) -> dict[str, str]:
    """Return the credentials that `--secret` names, by the names of the schemes.

    Args:
        tell: Whether to report unset variables on standard error. Only the operations that need them are left out.

    Raises:
        UsageError: A word is no pair of names.
    """
    found = {}
    for word in options.secret:
        name, equals, variable = word.partition("=")
        if not (name and equals and variable):
            raise UsageError(f"--secret {word!r} has to be NAME=VARIABLE: of a scheme, and of an environment variable")
        if value := os.environ.get(variable):
            found[name] = value
        elif tell:
            print(
                printable(f"ferrule: --secret {name}: the environment variable {variable!r} is not set"),
                file=sys.stderr,
            )
    return found


def words(options: argparse.Namespace, directory: Path) -> list[str]:
    """Return the options as words for another program, with paths below this directory."""
    return [
        *([] if options.openapi is None else [f"--openapi={directory / options.openapi}"]),
        *(f"--root={directory / folder}" for folder in options.root),
        *(f"--{name}={value}" for name in ("server", "only", "secret") for value in getattr(options, name)),
        *([] if options.budget is None else [f"--budget={options.budget}"]),
    ]


def _tell_of(file: str, imported: Imported) -> None:
    left_out = imported.report.left_out
    for one in left_out[:_REPORTED]:
        print(printable(short(f"ferrule: {file}: {' '.join(str(one).split())}", _LONGEST_TOLD)), file=sys.stderr)
    if len(left_out) > _REPORTED:
        print(f"ferrule: {file}: {len(left_out) - _REPORTED} more are left out", file=sys.stderr)
