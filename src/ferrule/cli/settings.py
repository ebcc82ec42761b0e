"""The settings of a project: the policy files for all commands, and defaults for the options of `run` and `chat`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator

from ferrule import DefinitionError
from ferrule.approval import printable
from ferrule.cli.text import short
from ferrule.cli.usage import UsageError
from ferrule.policy import TrustedFiles
from ferrule.policy.settings import (
    Settings,
    iter_settings_paths,
    parse_settings,
    read_settings,
    read_settings_to_trust,
)
from ferrule.policy.trust import format_trust_command

_MOST_OF_A_LINE = 1_000


def found() -> Iterator[str]:
    """Yield the files with settings in the working directory and the folders above it."""
    for place in iter_settings_paths():
        try:
            if os.path.lexists(place) and read_settings(place) is not None:
                yield place
        except DefinitionError:  # `ferrule policy trust FILE` says why
            continue


def fill_in(options: argparse.Namespace) -> None:
    """Fill the options that the command line leaves open from the settings. Policy files of the settings hold in any
    case.

    Raises:
        UsageError: Neither names a model.
    """
    settings = _trusted_settings()
    options.project_policy = _policy_files_of(settings)
    if settings is not None:
        _fill_in(options, settings)
    if options.model is None:
        raise UsageError(
            "--model is missing: write --model anthropic:NAME (or openai:NAME, ollama:NAME, scripted:FILE …), "
            'or model = "anthropic:NAME" in .ferrule/settings.toml'
        )


def policy_files() -> list[str]:
    """Return the policy files that the trusted settings name. They hold for every command."""
    return _policy_files_of(_trusted_settings())


def _policy_files_of(settings: Settings | None) -> list[str]:
    return [] if settings is None else [settings.resolve(file) for file in settings.policy]


def _fill_in(options: argparse.Namespace, settings: Settings) -> None:
    if options.model is None and settings.model is not None:
        kind, _, file = settings.model.partition(":")
        options.model = f"scripted:{settings.resolve(file)}" if kind == "scripted" and file else settings.model
        options.base_url = options.base_url or settings.base_url
    if options.journal is None and settings.journal is not None:
        named = os.path.dirname(settings.journal)  # a name alone is a file of the state folder
        options.journal = settings.resolve(settings.journal) if named else settings.journal
    if not (options.tools or options.mcp or options.openapi):
        options.tools = [_tools_place(settings, where) for where in settings.tools] or None
        options.mcp = [where if "://" in where else settings.resolve(where) for where in settings.mcp] or None


def _tools_place(settings: Settings, where: str) -> str:
    """Return a file's path from the folder of the settings. A module stays as it is, for Python to find by its name."""
    return settings.resolve(where) if where.endswith(".py") or ".py:" in where else where


def _trusted_settings() -> Settings | None:
    """Return the nearest settings that a person has trusted as they are. Unused settings are reported on standard
    error.

    If the nearest trusted ones have changed or are gone since, the policy files that the trusted version names still
    hold, as those of a changed policy do, and nothing else counts.
    """
    versions = TrustedFiles().versions()
    for place in iter_settings_paths():
        is_there = os.path.lexists(place)
        try:
            if place in versions:
                now = read_settings_to_trust(place) if is_there else None
                if now is not None and now.digest == versions[place].digest:
                    return parse_settings(now.text, place)
                changed = "it was trusted and is gone"
                if now is not None:
                    changed = "it, or an MCP file that it names, has changed since it was trusted"
            elif is_there and (read := read_settings(place)) is not None:
                would_set = f"would set: {'; '.join(read[0].lines)}"
                _say(
                    place,
                    "is not used, as nobody has trusted it",
                    f"read it, then {format_trust_command(place)}",
                    would_set,
                )
        except DefinitionError as error:
            changed = str(error)
            if place not in versions:
                _say(place, f"is not used: {error}")
        if place in versions:
            remedy = f"`ferrule policy trust --forget {shlex.quote(place)}`"
            remedy = (
                f"read it, then {format_trust_command(place)}, or {remedy}"
                if is_there
                else f"if that is right, {remedy}"
            )
            _say(place, f"is not used, but for its policy: {changed}", remedy)
            older = parse_settings(versions[place].text, place)
            return Settings(older.folder, policy=older.policy)
    return None


def _say(place: str, *parts: str) -> None:
    """Print one line about one file on standard error."""
    shown = place.removeprefix(os.getcwd() + os.sep)
    print(printable(short(f"ferrule: {shown} {'; '.join(parts)}", _MOST_OF_A_LINE)), file=sys.stderr)
