"""The result of a line for the model: its end first, then the refusals of the sandbox, then its output."""

from __future__ import annotations

import re
from typing import Final

from ferrule.tools.shell._process import Ended
from ferrule.values.content import Text
from ferrule.values.result import ToolResult

_REASONS: Final = {
    "deadline": "killed at its deadline",
    "cancelled": "killed because the call was cancelled",
    "memory": "killed because it used too much memory",
    "processes": "killed because it started too many processes",
    "protected": "killed because it went on changing protected paths",
    "cpu": "killed because it used too much time of the processor",
    "file_size": "ended because it wrote too large a file",
}
_WORDS: Final = {
    "network": r"Network is unreachable|Could not resolve host|Temporary failure in name resolution|ENETUNREACH"
    r"|EAI_AGAIN|Name or service not known|Network unreachable|Connection refused|Failed to connect|ECONNREFUSED",
    "write": r"Read-only file system|EROFS|Errno 30\b|Device or resource busy|EBUSY|Invalid cross-device link|EXDEV",
    "other": r"Cannot connect to the Docker daemon|docker\.sock|not been booted with systemd|no new privileges"
    r"|sudo: |No such process|Operation not permitted|[Nn]o such file or directory.*\.sock",
}
"""The words of programs to which the sandbox refused a need."""
_PROTECTED_NAMES: Final = re.compile(r"\.git\b|\.vscode|\.idea|\.claude|\.cursor|\.codex|\.ferrule|ferrule\.lock|hooks")
_MAX_QUOTE: Final = 200
_REMEDIES: Final = {
    "network": "`network: true`",
    "write": '`write: ["the folder"]`',
    "protected": '`write: ["the path"]`',
    "other": '`outside: "why"`',
}


def make_result(ended: Ended, *, is_sandboxed: bool) -> ToolResult:
    """Return the result of a program that ran."""
    text = ended.output.text
    refused = _find_refusals(ended, text) if is_sandboxed else {}
    facts = {
        "exit_code": ended.exit_code,
        "reason": ended.reason,
        "refused": refused,
        "undone": list(ended.undone),
        "changed": list(ended.changed),
        "omitted_bytes": ended.output.omitted,
        "output": text,
    }
    # The notes come first: a line can write anything below them, but nothing above.
    notes = [_describe_end(ended), *(f"The sandbox refused {need}: {why}." for need, why in refused.items())]
    if ended.changed:
        notes.append(f"Changed by somebody outside meanwhile: {', '.join(map(repr, ended.changed))}.")
    if ended.output.omitted:
        notes.append(f"{ended.output.omitted} bytes from the middle of the output are left out.")
    if refused:
        ways = " or ".join(dict.fromkeys(_REMEDIES[need] for need in refused))
        notes.append(f"If the task needs it, call again with {ways}; a person is asked.")
    return ToolResult(facts, content=[Text("\n".join([*notes, "", text]))])


def _describe_end(ended: Ended) -> str:
    seconds = f"after {ended.seconds:.1f} s"
    if ended.reason == "exit":
        return f"exit code {ended.exit_code} {seconds}"
    if ended.reason == "signal" and ended.exit_code is not None:
        return f"exit code {ended.exit_code}, as after signal {ended.exit_code - 128}, {seconds}"
    return f"{_REASONS[ended.reason]} {seconds}"


def _find_refusals(ended: Ended, text: str) -> dict[str, str]:
    """Return each need that the sandbox refused, with the evidence: facts first, then the words of programs."""
    refused: dict[str, str] = {}
    if ended.undone:
        refused["protected"] = f"it changed {', '.join(map(repr, ended.undone))}, which was undone"
    if ended.packets_without_route:
        refused["network"] = "the system counted packets without a route"
    for need, pattern in _WORDS.items() if ended.exit_code != 0 or ended.reason != "exit" else ():
        found = re.search(rf"^.*(?:{pattern}).*$", text, re.MULTILINE)
        if found is not None:
            quote = found[0].strip()[:_MAX_QUOTE]
            name = "protected" if need == "write" and _PROTECTED_NAMES.search(quote) else need
            refused.setdefault(name, f"weak evidence, the words of the program: {quote!r}")
    return refused
