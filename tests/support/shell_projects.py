"""Projects for lines of a shell, and what a line might reach from there."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

NOBODY = 65534
USERS = ["root", "ordinary"] if os.geteuid() == 0 else ["ordinary"]
"""The users that lines run as: root becomes the owner of a project that is not its own."""


def git(root: Path, *arguments: str) -> str:
    """Run git outside the sandbox, as the owner of a repository."""
    owner = root.stat().st_uid
    user = {"user": owner, "group": owner, "extra_groups": []} if owner != os.geteuid() else {}
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    command = ["git", *identity, "-C", str(root), *arguments]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, **user)  # type: ignore[call-overload]
    return str(done.stdout + done.stderr)


def give_to_nobody(root: Path) -> None:
    for place, folders, files in os.walk(root):
        for name in (".", *folders, *files):
            os.lchown(os.path.join(place, name), NOBODY, NOBODY)


class Banner:
    """A server that answers BANNER: at a port, at an abstract socket, and at a socket in a folder."""

    def __init__(self, place: Path) -> None:
        self.name = f"ferrule-test-{os.getpid()}-{id(self)}"
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        for address in (f"\0{self.name}", str(place / "docker.sock")):
            one = socket.socket(socket.AF_UNIX)
            one.bind(address)
            one.listen()
            self._sockets.append(one)
        (place / "docker.sock").chmod(0o777)
        self.port = self._sockets[0].getsockname()[1]
        for one in self._sockets:
            threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, server: socket.socket) -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                client.sendall(b"BANNER")

    def close(self) -> None:
        for one in self._sockets:
            one.close()


def processes_with(mark: str) -> list[int]:
    """The processes that have inherited `MARK` with this value."""
    found = []
    for place in Path("/proc").iterdir():
        with suppress(OSError):
            if place.name.isdigit() and f"MARK={mark}".encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
    return found
