"""`ferrule grants`: what was allowed for a while, and what takes it back."""

from __future__ import annotations

import argparse
from datetime import datetime

from rich.table import Table

from ferrule.approval import Grant, Grants, printable
from ferrule.cli.kept import Kept
from ferrule.cli.screen import lay, screen
from ferrule.cli.usage import UsageError, choices


def options(parser: argparse.ArgumentParser) -> None:
    """What is taken back."""
    parser.add_argument(
        "action", nargs="?", choices=["list", "revoke"], default="list", help="what to do (default: list)"
    )
    parser.add_argument("ids", nargs="*", metavar="ID", default=[], help="the grants to revoke")
    parser.add_argument("--all", action="store_true", help="revoke all grants")


def command(options: argparse.Namespace) -> int:
    """List the grants that are in force, or take some back."""
    grants = Grants(Kept(working_directory=None))
    listed = grants.listed()
    if options.action == "list":
        if options.ids or options.all:
            raise UsageError("to take grants back: ferrule grants revoke ID…, or ferrule grants revoke --all")
        _print_table(listed)
        return 0
    if bool(options.ids) is options.all:
        raise UsageError("which grants? ferrule grants revoke ID…, or ferrule grants revoke --all")
    known = [grant.id for grant in listed]
    if unknown := [one for one in options.ids if one not in known]:
        raise UsageError(f"there is no grant {unknown[0]!r}; {choices(unknown[0], known)}")
    for one in options.ids or known:
        grants.revoke(one)
        print(f"revoked {one}")
    if options.all and not known:
        print("there are no grants")
    return 0


def _print_table(listed: list[Grant]) -> None:
    if not listed:
        print("there are no grants")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "tool"):
        table.add_column(name, no_wrap=True)
    table.add_column("for what", overflow="fold")
    table.add_column("in", overflow="fold")
    for name in ("who", "by", "until", "uses"):
        table.add_column(name, no_wrap=True)
    for grant in listed:
        until = datetime.fromtimestamp(grant.expires_at).astimezone().strftime("%Y-%m-%d %H:%M")
        who, by, uses = (
            grant.principal or "nobody named",
            grant.by or "",
            "any" if grant.uses is None else str(grant.uses),
        )
        table.add_row(*map(printable, (grant.id, grant.tool, grant.text, grant.directory, who, by, until, uses)))
    lay(screen(), table)
