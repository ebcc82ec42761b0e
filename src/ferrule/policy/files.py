"""The files of a policy: each is read once, so that the bytes that were trusted are those that are read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from ferrule.errors import DefinitionError
from ferrule.policy.rule import Scope
from ferrule.security.paths import read_file, real

MOST_BYTES: Final = 262_144
FILE_NAME: Final = "policy.toml"
PROJECT_FILE: Final = os.path.join(".ferrule", FILE_NAME)
"""From the working directory."""


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A policy file as it was read.

    Attributes:
        path: Its real path.
        place: Where it was found, with no link followed: a link brings no trust along from where it leads.
        digest: The SHA-256 of its bytes, in hexadecimal digits.
    """

    path: str
    place: str
    scope: Scope
    text: str
    digest: str


def read_policy_file(path: str | os.PathLike[str], scope: Scope, *, most: int = MOST_BYTES) -> PolicyFile:
    """Read a file of at most so many bytes once.

    Raises:
        DefinitionError: where it cannot be read, is empty or too large, or is no UTF-8.
    """
    given = os.path.expanduser(os.fspath(path))
    try:
        exact = real(given, ".")
        data = read_file(exact, most)
        if not data.strip():  # as while another program writes it, whose denies would be missed
            raise ValueError("it is empty (a policy without rules has a comment that says so)")
        return PolicyFile(exact, os.path.abspath(given), scope, data.decode("utf-8"), sha256(data).hexdigest())
    except (OSError, ValueError) as error:
        raise DefinitionError(f"it cannot be read: {error}") from None


def configuration_folder() -> Path:
    """Where a person's own configuration is: `$XDG_CONFIG_HOME/ferrule`."""
    return _given_folder("XDG_CONFIG_HOME", ".config") / "ferrule"


def state_folder() -> Path:
    """Where what a person has answered is kept: `$XDG_STATE_HOME/ferrule`."""
    return _given_folder("XDG_STATE_HOME", ".local/state") / "ferrule"


def files_of_grants() -> tuple[str, str]:
    """Where the command line keeps what a person has allowed for a while, and the key of its seal."""
    return str(state_folder() / "grants.json"), str(configuration_folder() / "grants.key")


def _given_folder(variable: str, default: str) -> Path:
    """The folder of an environment variable; one that is not absolute does not count, as the XDG specification has
    it."""
    given = os.environ.get(variable, "")
    return Path(given) if os.path.isabs(given) else Path(os.path.expanduser("~")) / default


def standard_files(working_directory: str | os.PathLike[str] = ".") -> list[tuple[Scope, str]]:
    """The files that the command line looks for by itself, with their scopes, whether they are there or not.
    See docs/policy.md#scopes."""
    places: list[tuple[Scope, Path]] = [
        ("managed", Path("/etc/ferrule") / FILE_NAME),
        ("user", configuration_folder() / FILE_NAME),
        ("project", Path(working_directory).absolute() / PROJECT_FILE),
    ]
    return [(scope, str(path)) for scope, path in places]


def found_files(working_directory: str | os.PathLike[str] = ".") -> list[tuple[Scope, str]]:
    """Those of them that are there. See docs/policy.md#scopes."""
    return [(scope, path) for scope, path in standard_files(working_directory) if os.path.lexists(path)]
