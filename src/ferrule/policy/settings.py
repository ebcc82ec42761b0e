"""The settings of a project: `.ferrule/settings.toml`, or the table `[tool.ferrule]` of its `pyproject.toml`.

Anybody can write them, because they come with a folder. They decide which code and programs run and where a key is
sent. So only a version that a person has trusted counts (`trust.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from ferrule.errors import DefinitionError
from ferrule.policy.conditions import refuse_unknown_keys
from ferrule.policy.files import MAX_FILE_BYTES, PolicyFile, read_policy_file
from ferrule.policy.toml_lines import TomlError, read_toml
from ferrule.security.paths import read_file

SETTINGS_FILE: Final = os.path.join(".ferrule", "settings.toml")
"""Relative to the folder of the project."""
PROJECT_FILE: Final = "pyproject.toml"
_PLAIN_KEYS: Final = ("model", "base_url", "journal")
_LIST_KEYS: Final = ("policy", "tools", "mcp")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a project. Paths in them start at `folder`. See docs/command-line.md#settings."""

    folder: str
    model: str | None = None
    base_url: str | None = None
    journal: str | None = None
    policy: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()

    def resolve(self, path: str) -> str:
        """Return a path of the settings for a program in any other folder."""
        return os.path.join(self.folder, path)

    @property
    def lines(self) -> list[str]:
        """The settings as lines of TOML."""
        values = ((key, getattr(self, key)) for key in (*_PLAIN_KEYS, *_LIST_KEYS))
        return [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values if value]


def is_settings_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file has the name of a settings file."""
    place = os.path.abspath(os.path.expanduser(path))
    return os.path.basename(place) == PROJECT_FILE or place.endswith(os.sep + SETTINGS_FILE)


def iter_settings_paths(working_directory: str | os.PathLike[str] = ".") -> Iterator[str]:
    """Yield the possible paths of settings files.

    These are in the working directory, then in the folders above it up to the root of the repository. Outside of a
    repository only the working directory counts.
    """
    here = Path(working_directory).absolute()
    above = [here, *here.parents]
    root = next((number for number, folder in enumerate(above) if os.path.lexists(folder / ".git")), 0)
    for folder in above[: root + 1]:
        yield from (str(folder / name) for name in (SETTINGS_FILE, PROJECT_FILE))


def read_settings(path: str | os.PathLike[str]) -> tuple[Settings, PolicyFile] | None:
    """Return the settings in a file and the file itself, or None for a `pyproject.toml` without settings.

    The text of a `pyproject.toml` is reduced to the table `[tool.ferrule]`, as lines of TOML.

    Raises:
        DefinitionError: The file cannot be read, or has invalid settings.
    """
    file = read_policy_file(path, "project")
    if os.path.basename(file.place) != PROJECT_FILE:
        return parse_settings(file.text, file.place), file
    tool = _read_table(file.text).get("tool")
    if not isinstance(tool, Mapping) or "ferrule" not in tool:
        return None
    settings = _make_settings(tool["ferrule"], file.place)
    return settings, replace(file, text="".join(f"{line}\n" for line in settings.lines))


def read_settings_to_trust(path: str | os.PathLike[str]) -> PolicyFile | None:
    """Return the part of settings for a person to trust: their text, and their MCP files as comments in it.

    Return None if the file has no settings. MCP files belong to the part because they name programs to run.

    Raises:
        DefinitionError: As for `read_settings`, or an MCP file cannot be read.
    """
    read = read_settings(path)
    if read is None:
        return None
    settings, file = read
    text, digest = file.text, sha256(file.text.encode())
    for name in settings.mcp:
        if "://" not in name:
            data = _read_mcp_file(settings.resolve(name))
            digest.update(b"\0" + sha256(data).digest())
            text = text.rstrip("\n") + "\n" + "".join(f"# {line}\n" for line in _comment_lines(name, data))
    return replace(file, text=text, digest=digest.hexdigest())


def _read_table(text: str) -> dict[str, Any]:
    try:
        return read_toml(text)[0]
    except TomlError as error:
        raise DefinitionError(str(error)) from None


def _read_mcp_file(path: str) -> bytes:
    try:
        return read_file(path, MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise DefinitionError(f"a file of MCP servers cannot be read: {error}") from None


def _comment_lines(name: str, data: bytes) -> Iterator[str]:
    yield f"{json.dumps(name)}:"
    for line in data.decode("utf-8", "replace").splitlines():
        yield "  " + "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


def parse_settings(text: str, place: str) -> Settings:
    """Return the settings in the text of a file.

    Raises:
        DefinitionError: A key or a value is invalid.
    """
    return _make_settings(_read_table(text), place)


def _make_settings(table: Any, place: str) -> Settings:
    if not isinstance(table, Mapping):
        raise DefinitionError(f"[tool.ferrule] is a table, not {table!r:.200}")
    refuse_unknown_keys(table, (*_PLAIN_KEYS, *_LIST_KEYS), "a file of settings")
    settings: dict[str, Any] = {}
    for key, value in table.items():
        texts = value if isinstance(value, list) and key in _LIST_KEYS else [value]
        if not all(isinstance(one, str) and one and one.isprintable() for one in texts):
            kind = "a text, or a list of texts" if key in _LIST_KEYS else "a text"
            raise DefinitionError(f"{key} is {kind}, not {value!r:.200}")
        settings[key] = tuple(texts) if key in _LIST_KEYS else value
    folder = os.path.dirname(place)
    return Settings(folder if os.path.basename(place) == PROJECT_FILE else os.path.dirname(folder), **settings)
