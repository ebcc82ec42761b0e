"""Find the refusals of the sandbox: by facts first, then by the words of programs, as weak evidence."""

from __future__ import annotations

import re
from typing import Final

from ferrule.tools.shell._process import Ended

_WORDS: Final = (
    (
        "network",
        r"Network is unreachable|Could not resolve host|Temporary failure in name resolution|ENETUNREACH|EAI_AGAIN"
        r"|Name or service not known|Network unreachable|Connection refused|Failed to connect|ECONNREFUSED",
    ),
    ("write", r"Read-only file system|EROFS|Errno 30\b|Device or resource busy|EBUSY|Invalid cross-device link|EXDEV"),
    (
        "other",
        r"Cannot connect to the Docker daemon|docker\.sock|not been booted with systemd|no new privileges"
        r"|sudo: |No such process|Operation not permitted|[Nn]o such file or directory.*\.sock",
    ),
)
_PROTECTED_NAMES: Final = re.compile(r"\.git\b|\.vscode|\.idea|\.claude|\.cursor|\.codex|\.ferrule|ferrule\.lock|hooks")
_MAX_QUOTE: Final = 200


def find_refusals(ended: Ended, text: str, removed: list[str]) -> dict[str, str]:
    """Return each need that the sandbox refused, with the evidence for it.

    Args:
        text: The cleaned output.
        removed: Protected paths that the line had made or changed.
    """
    refused: dict[str, str] = {}
    if removed:
        refused["protected"] = f"it changed {', '.join(map(repr, removed))}, which was undone"
    if ended.packets_without_route:
        refused["network"] = "the system counted packets without a route"
    if ended.reason == "exit" and ended.exit_code == 0:
        return refused
    for need, pattern in _WORDS:
        found = re.search(rf"^.*(?:{pattern}).*$", text, re.MULTILINE)
        if found is not None:
            quote = found[0].strip()[:_MAX_QUOTE]
            name = "protected" if need == "write" and _PROTECTED_NAMES.search(quote) else need
            refused.setdefault(name, f"weak evidence, the words of the program: {quote!r}")
    return refused


def advise(refused: dict[str, str]) -> str:
    """Return what the model may do about a refusal."""
    remedies = {
        "network": "`network: true`",
        "write": '`write: ["the folder"]`',
        "protected": '`write: ["the path"]`',
        "other": '`outside: "why"`',
    }
    ways = " or ".join(dict.fromkeys(remedies[need] for need in refused))
    return f"If the task needs it, call again with {ways}; a person is asked." if ways else ""
