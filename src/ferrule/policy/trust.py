"""The file versions that a person has trusted: their digests and texts, in a sealed list."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import PurePath
from typing import Final, NamedTuple

from ferrule.errors import DefinitionError
from ferrule.policy.files import PolicyFile, configuration_folder, read_policy_file, state_folder
from ferrule.policy.settings import is_settings_file, read_settings_to_trust
from ferrule.stores.store import SealedFile, StoreError, make_key, private_place, read_key, replace_row

MAX_TRUSTED_BYTES: Final = 16 * 2**20
"""The most bytes of a trusted file. A `ferrule.lock` has the whole schemas of its tools. See docs/policy.md#trust."""
_SHOWN_DIGITS: Final = 12
_held_keys: dict[str, bytes | None] = {}
"""The fixed keys of this process by file; `None` if there was none when it began."""


class TrustedVersion(NamedTuple):
    """A trusted version of a file. See docs/policy.md#trust."""

    digest: str
    """The SHA-256 of its bytes, in hexadecimal digits."""
    text: str


class TrustedFiles:
    """The versions of files that a person has trusted. See docs/policy.md#trust.

    The list is sealed, with a key in `$XDG_CONFIG_HOME/ferrule/trusted.key`. The first trusted file creates the list.

    Args:
        path: The file of the list; `$XDG_STATE_HOME/ferrule/trusted.json` by default.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = os.path.abspath(os.path.expanduser(state_folder() / "trusted.json" if path is None else path))
        self._key_file = str(configuration_folder() / "trusted.key")
        self._list: SealedFile | None = None

    def hold_key(self) -> None:
        """Fix the key in this process, so that it rejects a list sealed later with another key.

        Create the key if there is none, unless its folder belongs to another account.
        """
        if self._key_file in _held_keys:
            return
        try:
            key = self._read_key()
            if key is None and _is_own_folder(self._key_file):
                key = self._make_key()
        except StoreError:
            key = None
        _held_keys.setdefault(self._key_file, key)

    def versions(self) -> Mapping[str, TrustedVersion]:
        """Return the trusted versions by the path of the file, with no link followed.

        Raises:
            DefinitionError: Others may change the list or its folder, or it is not as this class wrote it.
        """
        # An account without access to the folder, such as that of a service, has trusted nothing there.
        if self._list is None and not os.path.lexists(self.path):
            return {}
        try:
            return {place: TrustedVersion(**version) for place, version in self._open_list().items().items()}
        except (StoreError, TypeError) as error:
            remedy = f"To start again, move {self.path!r} away and trust your files again"
            raise DefinitionError(f"the list of trusted files cannot be read: {error}. {remedy}") from None

    def trust(self, file: str | os.PathLike[str], digest: str | None = None) -> str:
        """Trust the current version of a file, and return its digest.

        With `digest`, trust the file only if it still has that digest.

        Raises:
            DefinitionError: The file has changed or cannot be read, or the list cannot be written.
        """
        part = read_trusted_part(file)
        if digest not in {None, part.digest}:
            raise DefinitionError(f"{part.place} has changed since you read it, so it is not trusted: read it again")
        self._set(part.place, TrustedVersion(part.digest, part.text))
        return part.digest

    def forget(self, file: str | os.PathLike[str]) -> bool:
        """Stop trusting a file. Return whether it was trusted.

        Raises:
            DefinitionError: As for `versions`, or the list cannot be written.
        """
        place = os.path.abspath(os.path.expanduser(os.fspath(file)))
        was_trusted = place in self.versions()
        if was_trusted:
            self._set(place, None)
        return was_trusted

    def _set(self, place: str, version: TrustedVersion | None) -> None:
        new = None if version is None else version._asdict()
        try:
            if self._find_key() is None:
                key = self._make_key()
                if self._key_file in _held_keys:
                    _held_keys[self._key_file] = key
            replace_row(self._open_list(), place, new)
        except StoreError as error:
            raise DefinitionError(f"the list of trusted files cannot be written: {error}") from None

    def _open_list(self) -> SealedFile:
        """Return the list. It stays open, so this object rejects an earlier copy of a list it has read."""
        if self._list is None:
            key = self._find_key()
            if key is None:
                is_held = self._key_file in _held_keys
                missing = " did not exist when this program started; start it again" if is_held else " does not exist"
                raise StoreError(f"{self.path!r} is sealed, and its key {self._key_file!r}{missing}")
            self._list = SealedFile(self.path, key, working_directory=None)
        return self._list

    def _find_key(self) -> bytes | None:
        return _held_keys[self._key_file] if self._key_file in _held_keys else self._read_key()

    def _read_key(self) -> bytes | None:
        return read_key(private_place(self._key_file, (), None))

    def _make_key(self) -> bytes | None:
        make_key(private_place(self._key_file, (), None))
        return self._read_key()


def read_trusted_part(file: str | os.PathLike[str]) -> PolicyFile:
    """Read the part of a file for a person to trust: all of a policy or a lock, or the settings of a project.

    Raises:
        DefinitionError: The file cannot be read, or has no settings.
    """
    if not is_settings_file(file):
        return read_policy_file(file, "project", max_bytes=MAX_TRUSTED_BYTES)
    settings = read_settings_to_trust(file)
    if settings is None:
        raise DefinitionError(f"{os.fspath(file)!r} has no table [tool.ferrule]")
    return settings


def _is_own_folder(place: str) -> bool:
    """Return whether the folder of a new file belongs to this account. Under `sudo` it may not."""
    for folder in PurePath(place).parents:
        try:
            return os.name == "nt" or os.stat(folder).st_uid == os.geteuid()
        except FileNotFoundError:
            continue
        except OSError:
            break
    return False


def short_digest(digest: str) -> str:
    """Return a digest in the short form for people. See docs/policy.md#trust."""
    return digest[:_SHOWN_DIGITS]


def format_trust_command(place: str) -> str:
    """Return the command for trusting a file. See docs/policy.md#trust."""
    return f"`ferrule policy trust {shlex.quote(place)}`"
