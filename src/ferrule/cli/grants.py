"""`ferrule grants`: list the grants that are in force, or revoke them."""

from __future__ import annotations

import argparse
from datetime import datetime

from ferrule.approval import Grant, Grants
from ferrule.cli.grant_store import GrantStore
from ferrule.cli.text import to_line
from ferrule.cli.usage import UsageError, check_known

_TEXT = 4_000


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the action and the grants."""
    parser.add_argument("action", nargs="?", choices=["list", "revoke"], default="list", help="default: list")
    parser.add_argument("ids", nargs="*", metavar="ID", default=[], help="the grants to revoke")
    parser.add_argument("--all", action="store_true", help="revoke all grants")


def command(options: argparse.Namespace) -> int:
    """List the grants that are in force, or revoke some."""
    grants = Grants(GrantStore(working_directory=None))
    listed = grants.list_active()
    if (bool(options.ids) + options.all) != (options.action == "revoke"):
        raise UsageError("write ferrule grants, ferrule grants revoke ID…, or ferrule grants revoke --all")
    known = [grant.id for grant in listed]
    check_known("grant", options.ids, known)
    if not (options.ids or listed):
        print("There are no grants of the command line.")
    elif options.action == "list":
        for grant in listed:
            _print_grant(grant)
    else:
        for name in options.ids or known:
            grants.revoke(name)
            print(f"revoked {name}")
    return 0


def _print_grant(grant: Grant) -> None:
    """Print two lines. They are not wrapped, so that another program can read whole lines."""
    facts = {
        "in": grant.directory,
        "session": grant.session,
        "for": grant.principal,
        "given by": grant.by,
        "until": datetime.fromtimestamp(grant.expires_at).astimezone().strftime("%Y-%m-%d %H:%M"),
        "uses left:": "any number" if grant.uses is None else str(grant.uses),
    }
    print(f"{grant.id}  {to_line(grant.text, _TEXT)}")
    details = ", ".join(f"{name} {to_line(text, _TEXT)}" for name, text in facts.items() if text)
    print(f"{' ' * len(grant.id)}  {details}")
