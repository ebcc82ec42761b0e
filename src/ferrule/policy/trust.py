"""Which version of a file a person has trusted: its digest and its text, in a sealed list."""

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

MOST_TRUSTED: Final = 16 * 2**20
"""Bytes of a file that is trusted: a `ferrule.lock` holds the whole schemas of its tools. See docs/policy.md#trust."""
_SHOWN_DIGITS: Final = 12
_held_keys: dict[str, bytes | None] = {}
"""The keys that this process goes by, by their files; `None` if there was none when it began."""


class TrustedVersion(NamedTuple):
    """A file as a person has trusted it. See docs/policy.md#trust."""

    digest: str
    """The SHA-256 of its bytes, in hexadecimal digits."""
    text: str


class Trusted:
    """The versions of files that a person has trusted. See docs/policy.md#trust.

    The list is sealed, with a key in `$XDG_CONFIG_HOME/ferrule/trusted.key`. It is made when the first file is trusted.

    Args:
        path: The list; `$XDG_STATE_HOME/ferrule/trusted.json` if it is left out.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = os.path.abspath(os.path.expanduser(state_folder() / "trusted.json" if path is None else path))
        self._key_file = str(configuration_folder() / "trusted.key")
        self._list: SealedFile | None = None

    def hold_key(self) -> None:
        """Keep the key in this process, so that it believes no list that another key seals later.

        Makes the key if there is none, unless its folder belongs to another account.
        """
        if self._key_file in _held_keys:
            return
        try:
            key = self._read_key()
            if key is None and _is_own(self._key_file):
                key = self._make_key()
        except StoreError:
            key = None
        _held_keys.setdefault(self._key_file, key)

    def versions(self) -> Mapping[str, TrustedVersion]:
        """The trusted versions by the path of the file, with no link followed.

        Raises:
            DefinitionError: if others may change the list or its folder, or it is not as this class wrote it.
        """
        # An account that may not enter the folder, such as that of a service, has trusted nothing there.
        if self._list is None and not os.path.lexists(self.path):
            return {}
        try:
            return {place: TrustedVersion(**version) for place, version in self._opened().items().items()}
        except (StoreError, TypeError) as error:
            anew = f"move {self.path!r} away and trust your files again"
            raise DefinitionError(f"what is trusted cannot be known: {error}. To begin anew, {anew}") from None

    def trust(self, file: str | os.PathLike[str], digest: str | None = None) -> str:
        """Trust a file as it is; with `digest`, only if that is still its digest. Returns the digest.

        Raises:
            DefinitionError: if it has changed, cannot be read, or the list cannot be written.
        """
        read = read_trusted_part(file)
        if digest not in {None, read.digest}:
            raise DefinitionError(f"{read.place} has changed since it was shown, and is not trusted")
        self._set(read.place, TrustedVersion(read.digest, read.text))
        return read.digest

    def forget(self, file: str | os.PathLike[str]) -> bool:
        """Trust a file no more. Returns whether it was trusted.

        Raises:
            DefinitionError: as for `versions`, or if the list cannot be written.
        """
        place = os.path.abspath(os.path.expanduser(os.fspath(file)))
        was_trusted = place in self.versions()
        if was_trusted:
            self._set(place, None)
        return was_trusted

    def _set(self, place: str, version: TrustedVersion | None) -> None:
        new = None if version is None else version._asdict()
        try:
            if self._key() is None:
                key = self._make_key()
                if self._key_file in _held_keys:
                    _held_keys[self._key_file] = key
            replace_row(self._opened(), place, new)
        except StoreError as error:
            raise DefinitionError(f"what is trusted cannot be changed: {error}") from None

    def _opened(self) -> SealedFile:
        """The list, which stays open: this object takes no earlier copy of what it has read."""
        if self._list is None:
            key = self._key()
            if key is None:
                since = " was not there when this program started; start it again"
                missing = since if self._key_file in _held_keys else " is not there"
                raise StoreError(f"{self.path!r} is sealed, and its key {self._key_file!r}{missing}")
            self._list = SealedFile(self.path, key, working_directory=None)
        return self._list

    def _key(self) -> bytes | None:
        return _held_keys[self._key_file] if self._key_file in _held_keys else self._read_key()

    def _read_key(self) -> bytes | None:
        return read_key(private_place(self._key_file, (), None))

    def _make_key(self) -> bytes | None:
        make_key(private_place(self._key_file, (), None))
        return self._read_key()


def read_trusted_part(file: str | os.PathLike[str]) -> PolicyFile:
    """Read what a person trusts of a file: all of a policy or a lock, and the settings of a project.

    Raises:
        DefinitionError: if it cannot be read, or has no settings.
    """
    if not is_settings_file(file):
        return read_policy_file(file, "project", most=MOST_TRUSTED)
    settings = read_settings_to_trust(file)
    if settings is None:
        raise DefinitionError(f"{os.fspath(file)!r} has no table [tool.ferrule]")
    return settings


def _is_own(place: str) -> bool:
    """Whether the folder in which a file is to be made belongs to this account: under `sudo` it may not."""
    for folder in PurePath(place).parents:
        try:
            return os.name == "nt" or os.stat(folder).st_uid == os.geteuid()
        except FileNotFoundError:
            continue
        except OSError:
            break
    return False


def short_digest(digest: str) -> str:
    """A digest as people are shown it. See docs/policy.md#trust."""
    return digest[:_SHOWN_DIGITS]


def how_to_trust(place: str) -> str:
    """The command by which a person trusts a file. See docs/policy.md#trust."""
    return f"`ferrule policy trust {shlex.quote(place)}`"
