#!/usr/bin/env python3
"""Records a terminal and writes docs/assets/terminal.svg, the moving picture of README.md.

    python scripts/picture/picture.py          write the picture anew; `make picture` runs this
    python scripts/picture/picture.py --text   print what the terminal shows

The commands are real: each runs in a pseudo-terminal, in a new folder that has the files of this one. A question is
answered when it is on the screen.
"""

from __future__ import annotations

import html
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
PICTURE = HERE.parent.parent / "docs" / "assets" / "terminal.svg"
COLUMNS, ROWS = 92, 26
BOUND = 60.0
"""Seconds that a command may take."""
LINE_SECONDS, COMMAND_SECONDS, END_SECONDS = 0.25, 1.5, 6.0
"""How long the picture waits after a line of output, before a command, and at the end."""


@dataclass(frozen=True)
class Command:
    """One command of the picture.

    Attributes:
        line: The line that a person types.
        comment: What a person says about it, as a comment of the shell.
        answers: The answers to its questions, each by the text that the terminal shows before it.
    """

    line: str
    comment: str
    answers: dict[str, str] = field(default_factory=dict)


COMMANDS = [
    Command(
        "ferrule run 'Pay I-7, then tidy up.' --tools office.py --policy policy.toml --model scripted:steps.py",
        "A model works with your tools. A policy asks you about payments, and lets nobody delete.",
        {"Allow it? [y/N] ": "y"},
    ),
    Command("python pay.py", "A program of yours pays I-8, and is killed right after the payment."),
    Command("python pay.py", "Start it again: the call began before, so Ferrule does not run it a second time."),
    Command("ferrule log calls.db", "The journal has every call, and how it ended."),
]
_COLOUR = re.compile(r"\x1b\[([\d;]*)m")
_OTHER = re.compile(r"\x1b\[\??[\d;]*[A-Za-ln-z]|\x1b[()][A-B]")
_CLASSES = {"1": "b", "2": "d", "31": "r", "32": "g", "33": "y", "36": "c"}


def record(command: Command, folder: Path) -> str:
    """Run a command in a terminal, answer its questions, and return what the terminal got."""
    shown, waiting = "", dict(command.answers)
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder.parent),
    }
    environment |= {"LOGNAME": "ada", "USER": "ada"}
    for name in ("NO_COLOR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        environment.pop(name, None)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["bash", "-c", command.line], cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    ) as started:  # fmt: skip
        os.close(theirs)
        end = time.monotonic() + BOUND
        while select.select([ours], [], [], max(0.0, end - time.monotonic()))[0]:
            try:
                sent = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not sent:
                break
            shown += sent.decode("utf-8", "replace")
            for question in [text for text in waiting if shown.endswith(text)]:
                os.write(ours, f"{waiting.pop(question)}\n".encode())
        if started.poll() is None and time.monotonic() >= end:
            started.kill()
            raise SystemExit(f"{command.line} had not ended after {BOUND:.0f} seconds; the terminal shows:\n{shown}")
    os.close(ours)
    killed = "Killed\n" if started.returncode in (-9, 137) and "Killed" not in shown else ""
    return shown + killed


def split_lines(shown: str) -> list[str]:
    """Return the lines of a terminal, without movements of the cursor and as wide as the picture."""
    lines: list[str] = []
    for line in _OTHER.sub("", shown.replace("\r\n", "\n")).split("\n"):
        text = line.rpartition("\r")[2]
        while len(_COLOUR.sub("", text)) > COLUMNS:
            at = _find_column(text, COLUMNS)
            lines.append(text[:at])
            text = text[at:]
        lines.append(text)
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _find_column(text: str, column: int) -> int:
    """Return the position in a text with colours after so many characters."""
    at = seen = 0
    while seen < column:
        match = _COLOUR.match(text, at)
        if match:
            at = match.end()
        else:
            at, seen = at + 1, seen + 1
    return at


def record_all() -> list[tuple[float, str]]:
    """Run all commands, and return each line of the picture with the second when it appears."""
    frames: list[tuple[float, str]] = []
    now = 0.5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "shop")  # the home folder lies around it: tools may not reach the journal there
        folder.mkdir()
        for file in ("office.py", "steps.py", "policy.toml", "pay.py"):
            shutil.copy(HERE / file, folder)
        for command in COMMANDS:
            frames.append((now, f"\x1b[2m# {command.comment}\x1b[0m"))
            frames += [(now + 0.4, line) for line in split_lines(f"\x1b[32m$\x1b[0m {command.line}")]
            now += 0.4 + COMMAND_SECONDS
            for line in split_lines(record(command, folder)):
                if any(question in line for question in command.answers):
                    now += COMMAND_SECONDS
                frames.append((now, line))
                now += LINE_SECONDS
            frames.append((now, ""))
            now += COMMAND_SECONDS
    return frames


def draw_line(line: str) -> str:
    """Return a line with colours as SVG."""
    parts, classes, at = [], set[str](), 0
    for match in [*_COLOUR.finditer(line), None]:
        text = line[at : match.start() if match else len(line)]
        if text:
            names = " ".join(sorted(classes))
            parts.append(f'<tspan class="{names}">{html.escape(text)}</tspan>' if names else html.escape(text))
        if match:
            at = match.end()
            codes = match[1].split(";")
            if codes in ([""], ["0"]):
                classes.clear()
            classes |= {_CLASSES[code] for code in codes if code in _CLASSES}
    return "".join(parts)


def draw(frames: list[tuple[float, str]]) -> str:
    """Return the picture: each line appears at its time, and the text moves up once the terminal is full."""
    height, width, top = 18, 8.4, 34
    total = frames[-1][0] + END_SECONDS
    lines, moves = [], []
    for number, (second, line) in enumerate(frames):
        percent = 100 * second / total
        steps = f"0%,{percent:.2f}%{{opacity:0}}{percent + 0.01:.2f}%,100%{{opacity:1}}"
        lines.append(
            f'<text y="{top + height * number}" style="animation-name:l{number}">{draw_line(line)}</text>'
            f"<style>@keyframes l{number}{{{steps}}}</style>"
        )
        above = max(0, number + 1 - ROWS)
        moves.append(f"{percent:.2f}%{{transform:translateY(-{above * height}px)}}")
    last = max(0, len(frames) - ROWS) * height
    box = f"{COLUMNS * width + 32:.0f}", f"{ROWS * height + top + 6}"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {box[0]} {box[1]}" role="img"
 aria-label="A terminal: a model's call, a question, a denial, a kill, and the journal">
<style>
svg{{font:14px/1.3 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:#14181d;border-radius:8px}}
text{{fill:#d8dee6;white-space:pre;animation-duration:{total:.1f}s;animation-iteration-count:infinite}}
.b{{font-weight:700;fill:#fff}}.d{{fill:#8b97a5}}.r{{fill:#ff7b72}}.g{{fill:#7ee787}}.y{{fill:#e3b341}}.c{{fill:#79c0ff}}
#all{{animation:up {total:.1f}s step-end infinite}}
@keyframes up{{{"".join(moves)}100%{{transform:translateY(-{last}px)}}}}
@media (prefers-reduced-motion:reduce){{text,#all{{animation:none}}#all{{transform:translateY(-{last}px)}}}}
</style>
<circle cx="18" cy="14" r="5" fill="#ff5f57"/><circle cx="36" cy="14" r="5" fill="#febc2e"/>
<circle cx="54" cy="14" r="5" fill="#28c840"/>
<svg x="16" y="22" width="{COLUMNS * width:.0f}" height="{ROWS * height + 4}"><g id="all" transform="translate(0,-22)">
{chr(10).join(lines)}
</g></svg>
</svg>
"""


def main() -> int:
    frames = record_all()
    if "--text" in sys.argv[1:]:
        print("\n".join(_COLOUR.sub("", line) for _, line in frames))
        return 0
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(frames), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
