"""The files of a policy. Each is read once, so the trusted bytes are the bytes in use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from ferrule.errors import DefinitionError
from ferrule.policy.rule import Scope
from ferrule.security.paths import read_file, resolve_path

MAX_FILE_BYTES: Final = 262_144
FILE_NAME: Final = "policy.toml"
PROJECT_FILE: Final = os.path.join(".ferrule", FILE_NAME)
"""Relative to the working directory."""


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """The contents of a policy file from one read.

    Attributes:
        path: Its real path.
        place: Its path with no link followed. A link does not inherit the trust in its target.
        digest: The SHA-256 of its bytes, in hexadecimal digits.
    """

    path: str
    place: str
    scope: Scope
    text: str
    digest: str


def read_policy_file(path: str | os.PathLike[str], scope: Scope, *, max_bytes: int = MAX_FILE_BYTES) -> PolicyFile:
    """Read a file once. It has at most `max_bytes` bytes.

    Raises:
        DefinitionError: The file cannot be read, is empty or too large, or is not UTF-8.
    """
    expanded = os.path.expanduser(os.fspath(path))
    try:
        exact = resolve_path(expanded, ".")
        data = read_file(exact, max_bytes)
        if not data.strip():  # another program may be writing it, and its deny rules would be missed
            is_toml = exact.endswith(".toml")
            raise ValueError(f"it is empty{' (a policy without rules has a comment that says so)' if is_toml else ''}")
        return PolicyFile(exact, os.path.abspath(expanded), scope, data.decode("utf-8"), sha256(data).hexdigest())
    except (OSError, ValueError) as error:
        raise DefinitionError(f"it cannot be read: {error}") from None


def configuration_folder() -> Path:
    """Return the folder of a person's own configuration: `$XDG_CONFIG_HOME/ferrule`."""
    return _find_xdg_folder("XDG_CONFIG_HOME", ".config") / "ferrule"


def state_folder() -> Path:
    """Return the folder of a person's stored answers: `$XDG_STATE_HOME/ferrule`."""
    return _find_xdg_folder("XDG_STATE_HOME", ".local/state") / "ferrule"


def grant_files() -> tuple[str, str]:
    """Return the paths of the command line's file of grants and of the key of its seal."""
    return str(state_folder() / "grants.json"), str(configuration_folder() / "grants.key")


def _find_xdg_folder(variable: str, default: str) -> Path:
    """Return the folder in an environment variable. A relative path does not count, as the XDG specification says."""
    folder = os.environ.get(variable, "")
    return Path(folder) if os.path.isabs(folder) else Path(os.path.expanduser("~")) / default


def list_standard_files(working_directory: str | os.PathLike[str] = ".") -> list[tuple[Scope, str]]:
    """Return the files that the command line looks for, with their scopes, whether they exist or not.

    See docs/policy.md#scopes.
    """
    places: list[tuple[Scope, Path]] = [
        ("managed", Path("/etc/ferrule") / FILE_NAME),
        ("user", configuration_folder() / FILE_NAME),
        ("project", Path(working_directory).absolute() / PROJECT_FILE),
    ]
    return [(scope, str(path)) for scope, path in places]


def find_files(working_directory: str | os.PathLike[str] = ".") -> list[tuple[Scope, str]]:
    """Return the standard files that exist, with their scopes. See docs/policy.md#scopes."""
    return [(scope, path) for scope, path in list_standard_files(working_directory) if os.path.lexists(path)]
