"""Which project files a person has trusted, by the digest of what was read."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping

from ferrule.errors import DefinitionError
from ferrule.paths import open_directory, real
from ferrule.policy.files import read_policy_file, state_folder
from ferrule.store import StoreError, locked, read_private


class Trusted:
    """The digests of trusted files, in a file that is the person's alone. See docs/policy.md#scopes.

    Args:
        path: The file; `$XDG_STATE_HOME/ferrule/trusted.json` where it is left out.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = real(os.fspath(state_folder() / "trusted.json" if path is None else path), ".")

    def listed(self) -> Mapping[str, str]:
        """The digests by the path of the file, with no link followed.

        Raises:
            DefinitionError: where others may change the file or its folder, or it is not what this class writes.
        """
        try:
            read = json.loads(read_private(self.path))
        except FileNotFoundError:
            return {}
        except (StoreError, ValueError, RecursionError) as error:
            raise DefinitionError(f"what is trusted cannot be known: {error}") from None
        if isinstance(read, dict) and all(isinstance(digest, str) for digest in read.values()):
            return read
        raise DefinitionError(f"what is trusted cannot be known: {self.path!r} has other than digests by path")

    def has(self, file: str, digest: str) -> bool:
        """Whether the file that was found at this absolute path is trusted as it is with this digest.

        Raises:
            DefinitionError: as for `listed`.
        """
        return self.listed().get(file) == digest

    def trust(self, file: str | os.PathLike[str], digest: str | None = None) -> str:
        """Trust a file as it is; with `digest`, only where it is still what was shown. Gives the digest.

        Raises:
            DefinitionError: where it has changed, cannot be read, or the trust cannot be noted.
        """
        read = read_policy_file(file, "project")
        if digest not in {None, read.digest}:
            raise DefinitionError(f"{read.place} has changed since it was shown, and is not trusted")
        with self._alone():
            self._write({**self.listed(), read.place: read.digest})
        return read.digest

    def forget(self, file: str | os.PathLike[str]) -> bool:
        """Trust a file no more; whether it was trusted.

        Raises:
            DefinitionError: as for `listed`, or where that cannot be noted.
        """
        path = os.path.abspath(os.path.expanduser(os.fspath(file)))
        with self._alone():
            listed = dict(self.listed())
            was_trusted = listed.pop(path, None) is not None
            if was_trusted:
                self._write(listed)
        return was_trusted

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process changes it meanwhile, and brings back what was forgotten."""
        try:
            with locked(self.path):
                yield
        except StoreError as error:
            raise DefinitionError(f"what is trusted cannot be changed: {error}") from None

    def _write(self, listed: Mapping[str, str]) -> None:
        folder, name = os.path.split(self.path)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            with open_directory(folder) as directory:
                directory.write(name, json.dumps(listed, indent=1, sort_keys=True).encode(), mode=0o600)
        except OSError as error:
            raise DefinitionError(f"{self.path} cannot be written: {error}") from None
        self.listed()  # which says where others may change it
