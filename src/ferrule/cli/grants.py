"""`ferrule grants`: list the grants that are in force, or revoke them."""

from __future__ import annotations

import argparse
from datetime import datetime

from ferrule.approval import Grant, Grants
from ferrule.cli.kept import Kept
from ferrule.cli.text import one_line
from ferrule.cli.usage import UsageError, choices

_TEXT = 4_000


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the action and the grants."""
    parser.add_argument(
        "action", nargs="?", choices=["list", "revoke"], default="list", help="what to do (default: list)"
    )
    parser.add_argument("ids", nargs="*", metavar="ID", default=[], help="the grants to revoke")
    parser.add_argument("--all", action="store_true", help="revoke all grants")


def command(options: argparse.Namespace) -> int:
    """List the grants that are in force, or revoke some."""
    grants = Grants(Kept(working_directory=None))
    listed = grants.list_active()
    if options.action == "list":
        if options.ids or options.all:
            raise UsageError("to take grants back: ferrule grants revoke ID…, or ferrule grants revoke --all")
        for grant in listed:
            _print_grant(grant)
        if not listed:
            print("there are no grants")
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


def _print_grant(grant: Grant) -> None:
    """Print two lines without line breaks of our own: a terminal breaks them, and another program reads whole lines."""
    until = datetime.fromtimestamp(grant.expires_at).astimezone().strftime("%Y-%m-%d %H:%M")
    given = {
        "in": grant.directory,
        "session": grant.session,
        "for": grant.principal,
        "given by": grant.by,
        "until": until,
        "uses left:": "any number" if grant.uses is None else str(grant.uses),
    }
    print(f"{grant.id}  {one_line(grant.text, _TEXT)}")
    print(" " * len(grant.id), "", ", ".join(f"{name} {one_line(said, _TEXT)}" for name, said in given.items() if said))
