"""`ferrule token`: the bearer tokens of `ferrule serve --tokens`."""

from __future__ import annotations

import argparse
import os
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

from ferrule import DefinitionError, Runner
from ferrule.approval import printable
from ferrule.cli.screen import make_table, print_table, wide
from ferrule.cli.text import warn
from ferrule.cli.usage import UsageError, check_known, parse_count, place_file
from ferrule.mcp.serve._tokens import (
    LIMIT_KEYS,
    Limits,
    Token,
    TokenFile,
    check_name,
    hash_token,
    parse_tokens,
    read_token_file,
)
from ferrule.policy.files import configuration_folder
from ferrule.security.paths import open_directory, resolve_path
from ferrule.stores.store import ReachableError

_TOKENS_FILE = "tokens.toml"
_DAYS = 365


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the action, the token, and its limits."""
    parser.add_argument(
        "action",
        choices=["new", "list", "remove"],
        help="new: make a token, and print it this once. list: show all without their secrets. remove: delete one",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the token")
    parser.add_argument(
        "--tokens",
        metavar="FILE",
        default=_TOKENS_FILE,
        help=f"default: {_TOKENS_FILE}. A name without a folder is a file in the configuration folder",
    )
    group = parser.add_argument_group("new tokens")
    group.add_argument("--principal", metavar="NAME", help="principal of the token (default: its name)")
    group.add_argument("--days", type=parse_count, metavar="N", help=f"days until it expires (default: {_DAYS})")
    for field in LIMIT_KEYS:
        unit = {"concurrency": "calls at the same time", "calls": "calls in total"}.get(field, field.replace("_", " "))
        option = f"--{field.replace('_', '-')}"
        group.add_argument(option, type=parse_count, metavar="N", help=f"most {unit} of the principal")


def command(options: argparse.Namespace) -> int:
    """Create, list or remove tokens."""
    place = resolve_path(place_tokens(options.tokens), ".")
    limits = Limits(*(getattr(options, field) for field in LIMIT_KEYS))
    if options.action != "new" and (options.principal or options.days or any(limits)):
        raise UsageError(f"--principal, --days and limits are options of ferrule token new, not of {options.action}")
    if (options.name is None) is not (options.action == "list"):
        raise UsageError("write ferrule token new NAME, ferrule token remove NAME, or ferrule token list")
    before, text, tokens = _read_tokens(place)
    if options.action == "list":
        _print_tokens(tokens)
    elif options.action == "remove":
        check_known("token", [options.name], tokens)
        heading = rf"^\[ *{re.escape(options.name)} *\].*?(?=^\[|\Z)"
        text = re.sub(heading, "", text, count=1, flags=re.MULTILINE | re.DOTALL)
        _write_tokens(place, before, text, {name: token for name, token in tokens.items() if name != options.name})
        print(f"removed {options.name}")
    else:
        check_name(options.name)
        if options.name in tokens:
            raise UsageError(f"there is already a token {options.name!r}: choose another name, or remove it first")
        secret = f"ferrule_{secrets.token_urlsafe(32)}"
        expires = datetime.now(UTC).replace(microsecond=0) + timedelta(days=options.days or _DAYS)
        token = Token(options.name, hash_token(secret), options.principal or options.name, expires, limits)
        _write_tokens(
            place, before, f"{text.rstrip()}\n\n{_format_entry(token)}".lstrip(), {**tokens, token.name: token}
        )
        warn(f"wrote {token.name!r} to {place}; it expires on {expires:%Y-%m-%d}")
        print(secret)
    return 0


def place_tokens(path: str) -> str:
    """Return the file that `--tokens` names: without a folder, in the configuration folder.

    Raises:
        UsageError: The name without a folder is also that of a file in the working directory.
    """
    return place_file("--tokens", path, configuration_folder(), may_be_here=True)


def check_reach(tokens: TokenFile, runner: Runner) -> None:
    """Refuse a file of tokens that tools of the runner may reach.

    Raises:
        UsageError: They may; the text names a folder that they cannot reach.
    """
    try:
        tokens.check_reach(runner)
    except ReachableError as error:
        raise UsageError(f"--tokens: {error}, such as {str(configuration_folder())!r}") from None


def _read_tokens(place: str) -> tuple[os.stat_result | Literal["nothing"], str, dict[str, Token]]:
    try:
        before = os.stat(place)
        data = read_token_file(place)
        return before, data.decode("utf-8"), parse_tokens(data)
    except FileNotFoundError:
        return "nothing", "", {}
    except (OSError, ValueError, DefinitionError) as error:
        raise UsageError(f"cannot use the tokens in {place!r}: {error}") from None


def _format_entry(token: Token) -> str:
    # TOML has this escape for every character.
    principal = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in token.principal)
    lines = [f"[{token.name}]", f'sha256 = "{token.sha256}"', f'principal = "{"".join(principal)}"']
    if token.expires is not None:
        lines.append(f"expires = {token.expires:%Y-%m-%dT%H:%M:%SZ}")
    lines += [f"{key} = {limit}" for key, limit in _list_limits(token)]
    return "\n".join(lines) + "\n"


def _write_tokens(
    place: str, before: os.stat_result | Literal["nothing"], text: str, tokens: Mapping[str, Token]
) -> None:
    """Replace the file. Only its owner may read it.

    Raises:
        UsageError: The text does not describe exactly these tokens, or the file cannot be written.
    """
    folder, name = os.path.split(place)
    try:
        if parse_tokens(text.encode("utf-8")) != tokens:
            raise ValueError("its headings have an unusual form; edit the file by hand")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open_directory(folder) as directory:
            directory.write(name, text.encode("utf-8"), expected=before, mode=0o600)
    except (OSError, ValueError, DefinitionError) as error:
        raise UsageError(f"{place!r} was not changed: {error}") from None


def _list_limits(token: Token) -> list[tuple[str, int]]:
    return [(key, limit) for key, limit in zip(LIMIT_KEYS, token.limits, strict=True) if limit is not None]


def _print_tokens(tokens: Mapping[str, Token]) -> None:
    if not tokens:
        print("There are no tokens.")
        return
    table = make_table("token", "principal", "expires", wide("limits"))
    for token in tokens.values():
        expires = "never" if token.expires is None else f"{token.expires.astimezone(UTC):%Y-%m-%d}"
        expires += " (expired)" if token.has_expired() else ""
        limits = " ".join(f"{key}={limit}" for key, limit in _list_limits(token))
        table.add_row(*map(printable, (token.name, token.principal, expires, limits or "none")))
    print_table(table)
