"""`ferrule lock`: record the definitions of the tools, report changes, and accept them."""

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
from ferrule.cli import openapi, runners, servers
from ferrule.cli.usage import UsageError, check_known
from ferrule.policy import TrustedFiles, lock
from ferrule.policy.trust import format_trust_command
from ferrule.values.count import format_count
from ferrule.values.diff import Diff


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the file, and the changes to accept."""
    parser.add_argument("--lock", metavar="FILE", default=lock.LOCK_FILE, help=f"default: {lock.LOCK_FILE}")
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="TOOL",
        help="write the current definition of this tool, or its removal, and leave the others unchanged; may be "
        "repeated",
    )
    parser.add_argument(
        "--trusted",
        action="append",
        default=[],
        metavar="SERVER",
        help="record the tools of this server with its hints, as mcp.connect(…, trusted=[…]) has them; may be repeated",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing, and exit with 1 if the file is missing or a tool is new, changed or removed",
    )


def command(options: argparse.Namespace) -> int:
    """Write the file if it is missing, else the accepted changes. Return 1 if a tool differs from the file."""
    if options.check and options.accept:
        raise UsageError("--check writes nothing: leave out --accept")
    if not servers.has_sources(options):
        raise UsageError("the tools are missing: write ferrule lock --tools FILE, or --mcp FILE")
    if options.trusted and not options.mcp:
        raise UsageError("--trusted names servers of --mcp: write --mcp FILE")
    tools, file = _load_tools(options), Path(options.lock)
    now = {tool.name: lock.make_definition(tool) for tool in tools}
    if not options.accept and not os.path.lexists(file):
        if not options.check:
            return _create_lock(options, file, now)
        print(printable(f"there is no file {str(file)!r}: write it with `{_format_command(options)}`, and commit it"))
        return 1
    before = lock.read_lock(file) if os.path.lexists(file) else {}
    changes = {name: "is missing" for name in before if name not in now} | lock.find_differences(tools, before)
    check_known("tool", options.accept, dict.fromkeys([*changes, *now, *before]), "--accept")
    for name, change in changes.items():
        print(printable(f"{name!r} {change}{' (accepted)' if name in options.accept else ''}"))
        for line in _difference_lines(before.get(name, {}), now.get(name, {})):
            print(f"  {printable(line)}")
    after = {name: definition for name, definition in before.items() if name not in options.accept}
    after |= {name: now[name] for name in options.accept if name in now}
    if after != before:
        _write_lock(file, after)
    open_changes = [name for name in changes if name not in options.accept and (options.check or name in now)]
    print(_format_summary(options, open_changes, len(now)))
    return int(bool(open_changes))


def _format_command(options: argparse.Namespace, *accepted: str) -> str:
    """Return the command line for the same tools and the same file."""
    lock_file = [] if options.lock == lock.LOCK_FILE else [options.lock]
    trusted = options.trusted
    values = {"tools": options.tools, "mcp": options.mcp, "trusted": trusted, "lock": lock_file, "accept": accepted}
    words = {name: [word for text in texts or () for word in (f"--{name}", text)] for name, texts in values.items()}
    accept = words.pop("accept")
    sources = [word for option in words.values() for word in option]
    return printable(shlex.join(["ferrule", "lock", *sources, *openapi.to_words(options, Path()), *accept]))


def _create_lock(options: argparse.Namespace, file: Path, now: Mapping[str, lock.Definition]) -> int:
    """Write all tools, except those whose name looks like another one. A person has to accept these."""
    look_alikes = lock.find_lookalikes(now)
    _write_lock(file, {name: definition for name, definition in now.items() if name not in look_alikes})
    print(printable(f"wrote {format_count(len(now) - len(look_alikes), 'tool')} to {str(file)!r}"))
    for name, other in look_alikes.items():
        print(printable(f"left out {name!r}, whose name looks like {other!r}: {_format_command(options, name)}"))
    return int(bool(look_alikes))


def _write_lock(file: Path, definitions: Mapping[str, lock.Definition]) -> None:
    text, place = lock.format_lock(definitions), os.path.abspath(file)
    file.write_text(text, encoding="utf-8", newline="\n")
    trusted = TrustedFiles().versions().get(place)
    if trusted is not None and trusted.text != text:
        print(printable(f"{str(file)!r} differs from the version that you trust: {format_trust_command(place)}"))


def _format_summary(options: argparse.Namespace, changes: list[str], count: int) -> str:
    if not changes:
        return f"{format_count(count, 'tool')}, as in the lock file"
    differ = "1 tool differs" if len(changes) == 1 else f"{len(changes)} tools differ"
    return f"{differ} from the lock file. To accept: {_format_command(options, *changes)}"


def _load_tools(options: argparse.Namespace) -> Toolset:
    """Return the tools that a program locks with this file, or all tools if it locks none.

    Raises:
        UsageError: The program uses another lock file.
    """
    noted: list[tuple[str, Toolset]] = []
    with servers.connect_servers(options) as (_, extra):
        token = lock.RECORDED_TOOLSETS.set(noted)
        try:
            tools = runners.join_tools(options.tools, extra=extra).tools
        finally:
            lock.RECORDED_TOOLSETS.reset(token)
    if not noted:
        return tools
    file = os.path.abspath(options.lock)
    locked: list[Tool] = [tool for place, toolset in noted if place == file for tool in toolset]
    if not locked:
        raise UsageError(f"the program locks its tools with {noted[0][0]!r}: write --lock {noted[0][0]!r}")
    return Toolset([*dict.fromkeys([*locked, *(extra or ())])])


def _difference_lines(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield the changed parts of a definition as a diff."""
    for part in lock.find_changed_parts(before, after) if after else ():
        old, new = _part_text(before.get(part)), _part_text(after.get(part))
        if old != new:
            yield f"{part}:"
            yield from (f"  {line}" for line in preview_lines(Diff(old, new)))


def _part_text(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return f"{value}\n" if value else ""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
