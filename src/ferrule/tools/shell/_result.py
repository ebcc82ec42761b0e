"""The result of a line for the model: its end and the refusals first, then its output."""

from __future__ import annotations

from ferrule.tools.shell._evidence import advise
from ferrule.tools.shell._process import Ended
from ferrule.tools.shell._sandbox import Outcome
from ferrule.values.content import Text
from ferrule.values.result import ToolResult

_REASONS = {
    "deadline": "killed at its deadline",
    "cancelled": "killed because the call was cancelled",
    "memory": "killed because it used too much memory",
    "processes": "killed because it started too many processes",
    "protected": "killed because it went on changing protected paths",
    "cpu": "killed because it used too much time of the processor",
    "file_size": "ended because it wrote too large a file",
}


def make_result(outcome: Outcome) -> ToolResult:
    """Return the result of a program that ran."""
    ended = outcome.ended
    facts = {
        "exit_code": ended.exit_code,
        "reason": ended.reason,
        "refused": dict(outcome.refused),
        "undone": list(outcome.undone),
        "changed": list(outcome.changed),
        "omitted_bytes": ended.output.omitted,
    }
    # The notes come first: a line can write anything below them, but nothing above.
    notes = [_describe_end(ended), *_describe_refusals(outcome)]
    return ToolResult({**facts, "output": outcome.text}, content=[Text("\n".join([*notes, "", outcome.text]))])


def _describe_end(ended: Ended) -> str:
    seconds = f"after {ended.seconds:.1f} s"
    if ended.reason == "exit":
        return f"exit code {ended.exit_code} {seconds}"
    if ended.reason == "signal" and ended.exit_code is not None:
        return f"exit code {ended.exit_code}, as after signal {ended.exit_code - 128}, {seconds}"
    return f"{_REASONS[ended.reason]} {seconds}"


def _describe_refusals(outcome: Outcome) -> list[str]:
    notes = [f"The sandbox refused {need}: {evidence}." for need, evidence in outcome.refused.items()]
    if outcome.changed:
        notes.append(f"Changed by somebody outside meanwhile: {', '.join(map(repr, outcome.changed))}.")
    if omitted := outcome.ended.output.omitted:
        notes.append(f"{omitted} bytes from the middle of the output are left out.")
    advice = advise(dict(outcome.refused))
    return [*notes, advice] if advice else notes
