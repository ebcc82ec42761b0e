"""The result of a line for the model: its end first, then the refusals of the sandbox, then its output."""

from __future__ import annotations

import re
from typing import Final

from ferrule.tools.shell._process import Program
from ferrule.values.content import Text
from ferrule.values.result import ToolResult

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
_REMEDIES: Final = {"network": "`network: true`", "other": '`outside: "why"`'}
_OTHER_REMEDY: Final = '`write: ["the path"]`'


def make_result(program: Program, *, is_sandboxed: bool) -> ToolResult:
    """Return the result of a program that ran."""
    text = program.output.text
    refused = _find_refusals(program, text) if is_sandboxed else {}
    facts = {
        "exit_code": program.exit_code,
        "reason": program.reason,
        "refused": refused,
        "undone": list(program.undone),
        "changed": list(program.changed),
        "omitted_bytes": program.output.omitted,
        "output": text,
    }
    # The notes come first: a line can write anything below them, but nothing above.
    end = "killed" if program.exit_code is None else f"exit code {program.exit_code}"
    cause = "" if program.reason == "exit" else f": {program.reason}"
    notes = [f"{end} after {program.seconds:.1f} s{cause}"]
    notes += [f"The sandbox refused {need}: {why}." for need, why in refused.items()]
    if program.changed:
        notes.append(f"Changed by somebody outside meanwhile: {', '.join(map(repr, program.changed))}.")
    if refused:
        ways = " or ".join(dict.fromkeys(_REMEDIES.get(need, _OTHER_REMEDY) for need in refused))
        notes.append(f"If the task needs it, call again with {ways}; a person may have to allow it.")
    return ToolResult(facts, content=[Text("\n".join([*notes, "", text]))])


def _find_refusals(program: Program, text: str) -> dict[str, str]:
    """Return each need that the sandbox refused, with the evidence: facts first, then the words of programs."""
    refused: dict[str, str] = {}
    if program.undone:
        refused["protected"] = f"it changed {', '.join(map(repr, program.undone))}, which was undone"
    if program.packets_without_route:
        refused["network"] = "the system counted packets without a route"
    for need, pattern in _WORDS.items() if program.exit_code != 0 or program.reason != "exit" else ():
        found = re.search(rf"^.*(?:{pattern}).*$", text, re.MULTILINE)
        if found is not None:
            quote = found[0].strip()[:_MAX_QUOTE]
            name = "protected" if need == "write" and _PROTECTED_NAMES.search(quote) else need
            refused.setdefault(name, f"weak evidence, the words of the program: {quote!r}")
    return refused
