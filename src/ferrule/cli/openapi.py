"""Resolves `--openapi`: the operations of an API, with the address and the credentials of their calls."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ferrule import Toolset
from ferrule.cli.text import warn
from ferrule.cli.usage import UsageError

_REPORTED = 20


def load_operations(options: argparse.Namespace, budget: int | None, *, calls: bool) -> Toolset:
    """Return the tools of the document. Operations that are left out are reported on standard error.

    Args:
        budget: The most tokens for their definitions if `--budget` is not set.
        calls: Whether the command calls the tools, and so needs the address of the API.

    Raises:
        DefinitionError: The document cannot be read or used.
        UsageError: An option needs `--openapi`.
    """
    file = options.openapi
    if file is None:
        for name in ("server", "only", "secret", "root", "budget", "pages"):
            if getattr(options, name) not in (None, []):
                raise UsageError(f"--{name} needs --openapi FILE")
        return Toolset()
    from ferrule.openapi.document import Spelling  # no other option needs this room
    from ferrule.openapi.toolset import import_operations

    spelling = Spelling(
        server="--server {}",
        further_server="another --server",
        credential="--secret {}=VARIABLE",
        only="--only {!r}",
        some="--only GET, --only 'tag:…' or --only '/orders/*'",
        roots="--root DIR",
        budget="give a larger --budget",
        credential_value=", with a VARIABLE that is set",
    )
    settings = {"only": options.only, "roots": options.root, "spelling": spelling}
    if calls:
        settings |= {
            "server": options.server or None,
            "credentials": {name: name for name in read_secrets(options, report_missing=True)},
            "budget": budget if options.budget is None else options.budget,
            "pages": 1 if options.pages is None else options.pages,
        }
    imported = import_operations(file, calls=calls, **settings)
    left_out = imported.report.left_out
    for operation in left_out[:_REPORTED]:
        warn(f"{file}: {operation}")
    if len(left_out) > _REPORTED:
        warn(f"{file}: {len(left_out) - _REPORTED} more operations are left out")
    return imported


def read_secrets(options: argparse.Namespace, *, report_missing: bool = False) -> dict[str, str]:
    """Return the credentials that `--secret` names, by the names of the schemes.

    Nothing that may be a secret itself, by mistake, is shown.

    Args:
        report_missing: Whether to report unset variables on standard error.

    Raises:
        UsageError: A value is not a pair of names.
    """
    found = {}
    for word in options.secret:
        name, equals, variable = word.partition("=")
        if not (name and equals and variable):
            raise UsageError(
                "--secret must be NAME=VARIABLE: write the name of a security scheme and of an environment variable"
            )
        if value := os.environ.get(variable):
            found[name] = value
        elif report_missing:
            warn(f"--secret {name}: its environment variable is not set")
    return found


def to_words(options: argparse.Namespace, directory: Path) -> list[str]:
    """Return the options as words of another command line, with paths below this directory."""
    return [
        *([] if options.openapi is None else [f"--openapi={directory / options.openapi}"]),
        *(f"--root={directory / folder}" for folder in options.root),
        *(f"--{name}={value}" for name in ("server", "only", "secret") for value in getattr(options, name)),
        *(f"--{name}={value}" for name in ("budget", "pages") if (value := getattr(options, name)) is not None),
    ]
