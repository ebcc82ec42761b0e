"""The file in which the command line saves the grants of a person."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ferrule.cli.usage import UsageError
from ferrule.policy.files import grant_files
from ferrule.stores.store import KEY_BYTES, JsonValue, SealedFile, StoreError, make_key, private_place, read_key

KEY_VARIABLE = "FERRULE_GRANTS_KEY"


class GrantStore:
    """A sealed file in the state folder. Its key is in the configuration folder or in `FERRULE_GRANTS_KEY`. The first
    value creates both files. See docs/command-line.md#ferrule-grants.

    Args:
        apart_from: The folders that tools may reach, in addition to the working directory.
        working_directory: The folder that tools start at; `None` if none runs.

    Raises:
        StoreError: Tools may reach either file.
    """

    def __init__(self, apart_from: Iterable[str] = (), working_directory: str | None = ".") -> None:
        roots = tuple(apart_from)
        self._places = (roots, working_directory)
        self.file, self.key_file = (private_place(file, *self._places) for file in grant_files())
        if os.path.dirname(self.file) == os.path.dirname(self.key_file):
            raise StoreError(
                f"the key {self.key_file!r} is in the folder of the file that it seals: set another XDG_CONFIG_HOME"
            )
        self._sealed = self._open()

    def get(self, key: str) -> JsonValue:
        """Return the value, or `None`."""
        return None if (sealed := self._find_file()) is None else sealed.get(key)

    def items(self, prefix: str = "") -> dict[str, JsonValue]:
        """Return all values under keys with this prefix."""
        return {} if (sealed := self._find_file()) is None else sealed.items(prefix)

    def compare_and_set(self, key: str, old: JsonValue, new: JsonValue) -> bool:
        """Replace `old` by `new`. The key is made for the first value."""
        sealed = self._find_file()
        if sealed is None and old is None:
            make_key(self.key_file)
            sealed = self._find_file()
        return sealed is not None and sealed.compare_and_set(key, old, new)

    def _find_file(self) -> SealedFile | None:
        self._sealed = self._sealed or self._open()
        return self._sealed

    def _open(self) -> SealedFile | None:
        """Return the file if there is a key; `None` if there is neither."""
        key = self._key()
        if key is None and os.path.lexists(self.file):
            raise StoreError(f"{self.file!r} is sealed, and its key {self.key_file!r} is missing")
        if key is None:
            return None
        apart_from, working_directory = self._places
        return SealedFile(self.file, key, apart_from=apart_from, working_directory=working_directory)

    def _key(self) -> bytes | None:
        if text := os.environ.get(KEY_VARIABLE):
            if len(text) < KEY_BYTES:
                raise UsageError(f"{KEY_VARIABLE} has {len(text)} characters; a key needs at least {KEY_BYTES}")
            return text.encode("utf-8", "surrogateescape")
        return read_key(self.key_file)
