"""Edit a text: in the person's own editor, or as one typed line."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from ferrule.values.json_text import json_or_text

_EDITOR_POLL = 0.1
_EDITOR_GRACE = 2.0
LONG_TEXT = 200
"""A text with more characters than this is edited in an editor, if there is one."""


def find_editor() -> list[str] | None:
    """Return the words of `$VISUAL` or `$EDITOR`, or None if both are empty."""
    for name in ("VISUAL", "EDITOR"):
        with contextlib.suppress(ValueError):  # an unclosed quote
            if command := shlex.split(os.environ.get(name, "")):
                return command
    return None


def edit_text(
    text: str, command: list[str], source: TextIO, output: TextIO, on_wait: Callable[[], object] = lambda: None
) -> str:
    """Return `text` after the person has edited it.

    The editor gets a file of mode 0600 in a folder of its own. The folder is removed afterwards, with everything the
    editor has put there.

    Args:
        on_wait: A function to call while the editor runs. If it raises, the editor is ended.

    Raises:
        ValueError: The editor does not run, fails, or leaves text other than UTF-8. The text has the reason.
    """
    with tempfile.TemporaryDirectory(prefix="ferrule-", ignore_cleanup_errors=True) as folder:  # its mode is 0700
        path = os.path.join(folder, "argument.txt")
        try:
            data = text.encode()
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            _run_editor([*command, path], source, output, on_wait)
            with open(path, "rb") as file:
                edited = file.read().decode()
        except UnicodeError:
            raise ValueError("it is not UTF-8 text") from None
        except OSError as error:
            raise ValueError(f"{error.strerror or error}: {command[0]}") from None
    # Most editors add a final line break if there was none.
    return edited if text.endswith("\n") else edited.removesuffix("\n")


def _run_editor(command: list[str], source: TextIO, output: TextIO, on_wait: Callable[[], object]) -> None:
    with subprocess.Popen(command, stdin=source, stdout=output, stderr=output) as process:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(_EDITOR_POLL)
                    break
                on_wait()
        except BaseException:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_EDITOR_GRACE)
            process.kill()
            raise
    if code:
        raise ValueError(f"the editor ended with exit code {code}: {command[0]}")


def parse_typed_value(text: str, node: object) -> Any:
    """Return a typed argument as JSON, or as plain text if the schema wants a text and it is not in quotes.

    The schema decides later whether it fits.
    """
    wants_text = isinstance(node, Mapping) and node.get("type") == "string"
    if wants_text and not (text.startswith('"') and text.endswith('"')):
        return text
    return json_or_text(text)
