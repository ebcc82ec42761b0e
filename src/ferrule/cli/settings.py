"""The settings of a project: the policy files for all commands, and defaults for the options of `run` and `chat`."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator

from ferrule import DefinitionError
from ferrule.cli.text import shorten_path, warn
from ferrule.cli.usage import UsageError
from ferrule.policy import TrustedFiles
from ferrule.policy.settings import (
    Settings,
    iter_settings_paths,
    parse_settings,
    read_settings,
    read_settings_to_trust,
)
from ferrule.policy.trust import TrustedVersion, format_trust_command


def find_settings() -> Iterator[str]:
    """Yield the files with settings in the working directory and the folders above it."""
    for place in iter_settings_paths():
        try:
            if os.path.lexists(place) and read_settings(place) is not None:
                yield place
        except DefinitionError:  # `ferrule policy trust FILE` says why
            continue


def apply_settings(options: argparse.Namespace) -> None:
    """Fill options that the command line leaves out from the settings. Policy files of the settings always apply.

    Raises:
        UsageError: Neither names a model.
    """
    settings = _trusted_settings()
    options.project_policy = _resolve_policy(settings)
    if settings is not None:
        _fill_options(options, settings)
    if options.model is None:
        raise UsageError(
            "--model is missing: write --model anthropic:NAME (or openai:NAME, ollama:NAME, scripted:FILE …), "
            'or set model = "anthropic:NAME" in .ferrule/settings.toml'
        )


def list_policy_files() -> list[str]:
    """Return the policy files of the trusted settings. They apply to every command."""
    return _resolve_policy(_trusted_settings())


def _resolve_policy(settings: Settings | None) -> list[str]:
    return [] if settings is None else [settings.resolve(file) for file in settings.policy]


def _fill_options(options: argparse.Namespace, settings: Settings) -> None:
    if options.model is None and settings.model is not None:
        kind, _, file = settings.model.partition(":")
        options.model = f"scripted:{settings.resolve(file)}" if kind == "scripted" and file else settings.model
        options.base_url = options.base_url or settings.base_url
    if options.journal is None and settings.journal is not None:
        has_folder = os.path.dirname(settings.journal)  # a name without one is a file of the state folder
        options.journal = settings.resolve(settings.journal) if has_folder else settings.journal
    if not (options.tools or options.mcp or options.openapi):
        options.tools = [_tools_place(settings, where) for where in settings.tools] or None
        options.mcp = [where if "://" in where else settings.resolve(where) for where in settings.mcp] or None


def _tools_place(settings: Settings, where: str) -> str:
    """Return a file's path from the folder of the settings, or the name of a module unchanged."""
    return settings.resolve(where) if where.endswith(".py") or ".py:" in where else where


def _trusted_settings() -> Settings | None:
    """Return the nearest settings that a person trusts. Settings that are not used are reported on standard error."""
    versions = TrustedFiles().versions()
    for place in iter_settings_paths():
        if place in versions:
            return _read_trusted(place, versions[place])
        _report_untrusted(place)
    return None


def _report_untrusted(place: str) -> None:
    try:
        found = read_settings(place) if os.path.lexists(place) else None
    except DefinitionError as error:
        _report(place, f"is not used: {error}")
        return
    if found is not None:
        contents = f"it would set: {'; '.join(found[0].lines)}"
        _report(
            place, "is not used, because nobody trusts it", f"read it, then run {format_trust_command(place)}", contents
        )


def _read_trusted(place: str, version: TrustedVersion) -> Settings:
    """Return trusted settings. If they have changed or are missing, return only the policy files of the trusted
    version, which keep their denials.
    """
    is_there = os.path.lexists(place)
    try:
        now = read_settings_to_trust(place) if is_there else None
        if now is not None and now.digest == version.digest:
            return parse_settings(now.text, place)
        change = "it is missing"
        if now is not None:
            change = "it, or an MCP file that it names, has changed since it was trusted"
    except DefinitionError as error:
        change = str(error)
    forget = f"`ferrule policy trust --forget {shlex.quote(place)}`"
    remedy = (
        f"read it, then run {format_trust_command(place)} or {forget}"
        if is_there
        else f"if you removed it, run {forget}"
    )
    _report(place, f"is not used, except for its policy files: {change}", remedy)
    older = parse_settings(version.text, place)
    return Settings(older.folder, policy=older.policy)


def _report(place: str, *parts: str) -> None:
    warn(f"{shorten_path(place)} {'; '.join(parts)}")
