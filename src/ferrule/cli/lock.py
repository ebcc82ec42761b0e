"""`ferrule lock`: write down the definitions of the tools, report changes since, and accept a change."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ferrule import Tool, Toolset
from ferrule.approval import preview_lines, printable
from ferrule.cli import find, openapi, servers
from ferrule.cli.usage import UsageError, choices
from ferrule.policy import TrustedFiles, lock
from ferrule.policy.trust import format_trust_command
from ferrule.values.decision import Diff


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the file, and the changes to accept."""
    parser.add_argument("--lock", metavar="FILE", default=lock.LOCK_FILE, help=f"the file (default: {lock.LOCK_FILE})")
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="TOOL",
        help="write how this tool is now, or that it is gone; may be repeated. The others stay as they are in the file",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing, and end with 1 if the file is missing or any tool differs, is new or is gone",
    )


def command(options: argparse.Namespace) -> int:
    """Write the file if it is missing, else the accepted changes. Return 1 if a tool differs from the file."""
    if options.check and options.accept:
        raise UsageError("--check writes nothing: it goes without --accept")
    if not (options.tools or servers.named(options)):
        raise UsageError("whose tools? ferrule lock --tools FILE, or --mcp FILE")
    tools, file = _tools(options), Path(options.lock)
    now = {tool.name: lock.make_definition(tool) for tool in tools}
    if not options.accept and not os.path.lexists(file):
        if not options.check:
            return _begin(options, file, now)
        print(printable(f"there is no {str(file)!r}: write it with `{_command(options)}`, and commit it"))
        return 1
    known = lock.read_lock(file) if os.path.lexists(file) else {}
    why = {name: "is not there any more" for name in known if name not in now} | lock.find_differences(tools, known)
    for name in options.accept:
        if name not in now and name not in known:
            raise UsageError(f"--accept: there is no tool {name!r}; {choices(name, [*why, *now])}")
    for name in why:
        print(printable(f"{name!r} {why[name]}{' (accepted)' if name in options.accept else ''}"))
        for line in _difference_lines(known.get(name, {}), now.get(name, {})):
            print(f"  {printable(line)}")
    written = {name: one for name, one in known.items() if name not in options.accept}
    written |= {name: now[name] for name in options.accept if name in now}
    if written != known:
        _write_lock(file, written)
    left = [name for name in why if name not in options.accept and (options.check or name in now)]
    print(_summary(options, left, len(now)))
    return int(bool(left))


def _command(options: argparse.Namespace, *accepted: str) -> str:
    """Return the command for the same tools and the same file, as it is typed."""
    places = {
        "tools": options.tools,
        "mcp": options.mcp,
        "lock": [] if options.lock == lock.LOCK_FILE else [options.lock],
    }
    words = [word for name, values in places.items() for value in values or () for word in (f"--{name}", value)]
    accept = [word for name in accepted for word in ("--accept", name)]
    return printable(shlex.join(["ferrule", "lock", *words, *openapi.words(options, Path()), *accept]))


def _begin(options: argparse.Namespace, file: Path, now: Mapping[str, lock.Definition]) -> int:
    """Write all tools, except look-alikes that somebody has to tell apart."""
    like = lock.find_lookalikes(now)
    _write_lock(file, {name: one for name, one in now.items() if name not in like})
    print(printable(f"wrote {len(now) - len(like)} tools to {str(file)!r}"))
    for name, other in like.items():
        print(printable(f"left out {name!r}, whose name looks like {other!r}: {_command(options, name)}"))
    return int(bool(like))


def _write_lock(file: Path, definitions: Mapping[str, lock.Definition]) -> None:
    text, place = lock.format_lock(definitions), os.path.abspath(file)
    file.write_text(text, encoding="utf-8", newline="\n")
    trusted = TrustedFiles().versions().get(place)
    if trusted is not None and trusted.text != text:
        print(printable(f"{str(file)!r} is not the version that was trusted: {format_trust_command(place)}"))


def _summary(options: argparse.Namespace, left: list[str], count: int) -> str:
    if not left:
        return f"all {count} tools are as the lock has them"
    differ = "1 tool is" if len(left) == 1 else f"{len(left)} tools are"
    return f"{differ} not as in the lock; if that is right: {_command(options, *left)}"


def _tools(options: argparse.Namespace) -> Toolset:
    """Return the tools that a program locks by this file if it does so; else all of them, none of them locked.

    Raises:
        UsageError: The program locks them by another file.
    """
    noted: list[tuple[str, Toolset]] = []
    with servers.connected(options) as (_, more):
        token = lock.RECORDED_TOOLSETS.set(noted)
        try:
            tools = find.runner(options.tools, more=more).tools
        finally:
            lock.RECORDED_TOOLSETS.reset(token)
    if not noted:
        return tools
    file = os.path.abspath(options.lock)
    mine: list[Tool] = [tool for where, toolset in noted if where == file for tool in toolset]
    if not mine:
        raise UsageError(f"the tools are locked by {noted[0][0]!r}: give --lock {noted[0][0]!r}")
    return Toolset([*dict.fromkeys([*mine, *(more or ())])])


def _difference_lines(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences of the parts, old and new."""
    for part in lock.find_changed_parts(before, after) if after else ():
        old, new = _part_text(before.get(part)), _part_text(after.get(part))
        if old != new:
            yield f"{part}:"
            yield from (f"  {line}" for line in preview_lines(Diff(old, new)))


def _part_text(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return f"{value}\n" if value else ""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
