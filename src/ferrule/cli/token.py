"""`ferrule token`: the bearer tokens that `ferrule serve --tokens` knows."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

from rich.table import Table

from ferrule import DefinitionError
from ferrule.approval import printable
from ferrule.cli.screen import lay, screen
from ferrule.cli.usage import UsageError, at_least_one, choices
from ferrule.mcp.serve._tokens import LIMIT_KEYS, Limits, Token, check_name, hash_token, parse_tokens, read_token_file
from ferrule.policy.files import configuration_folder
from ferrule.security.paths import open_directory, resolve_path

_TOKENS_FILE = "tokens.toml"
_DAYS = 365
_LIMIT_OPTIONS = {field: f"--{field.replace('_', '-')}" for field in LIMIT_KEYS}


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the action, the token, and its limits."""
    parser.add_argument("action", choices=["new", "list", "remove"], help="what to do")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the name of the token")
    parser.add_argument(
        "--tokens",
        metavar="FILE",
        default=_TOKENS_FILE,
        help=f"the file (default: {_TOKENS_FILE}); a name without a folder is one in the configuration folder",
    )
    parser.add_argument("--principal", metavar="NAME", help="whose it is (default: its name)")
    parser.add_argument(
        "--days", type=at_least_one, metavar="N", help=f"until when it is good, from today (default: {_DAYS})"
    )
    for option in _LIMIT_OPTIONS.values():
        words = option.removeprefix("--").replace("-", " ")
        said = "calls at once" if words == "concurrency" else "calls altogether" if words == "calls" else words
        parser.add_argument(option, type=at_least_one, metavar="N", help=f"the most {said} of its principal")


def command(options: argparse.Namespace) -> int:
    """Make, list or remove tokens."""
    place = resolve_path(file_of(options.tokens), ".")
    limits = Limits(*(getattr(options, field) for field in LIMIT_KEYS))
    if options.action != "new" and (options.principal or options.days or any(limits)):
        raise UsageError(f"--principal, --days and limits are for ferrule token new, not for {options.action}")
    if (options.name is None) is not (options.action == "list"):
        raise UsageError("ferrule token new NAME, ferrule token remove NAME, or ferrule token list")
    before, text, tokens = _read_tokens(place)
    if options.action == "list":
        _print_table(tokens)
    elif options.action == "remove":
        if options.name not in tokens:
            raise UsageError(f"there is no token {options.name!r}; {choices(options.name, tokens)}")
        heading = rf"^\[ *{re.escape(options.name)} *\].*?(?=^\[|\Z)"
        text = re.sub(heading, "", text, count=1, flags=re.MULTILINE | re.DOTALL)
        _write_tokens(place, before, text, {name: one for name, one in tokens.items() if name != options.name})
        print(f"removed {options.name}")
    else:
        check_name(options.name)
        if options.name in tokens:
            raise UsageError(f"there is a token {options.name!r}: give another name, or remove that one first")
        secret = f"ferrule_{secrets.token_urlsafe(32)}"
        expires = datetime.now(UTC).replace(microsecond=0) + timedelta(days=options.days or _DAYS)
        made = Token(options.name, hash_token(secret), options.principal or options.name, expires, limits)
        _write_tokens(place, before, f"{text.rstrip()}\n\n{_entry(made)}".lstrip(), {**tokens, made.name: made})
        print(f"ferrule: wrote {made.name!r} to {printable(place)}, good until {expires:%Y-%m-%d}", file=sys.stderr)
        print(secret)
    return 0


def file_of(path: str) -> str:
    """Return the file that `--tokens` names. A name without a folder is a file in the configuration folder, where no
    tools work, unless the working directory has one of that name.
    """
    return path if os.path.dirname(path) or os.path.lexists(path) else str(configuration_folder() / path)


def _read_tokens(place: str) -> tuple[os.stat_result | Literal["nothing"], str, dict[str, Token]]:
    try:
        before = os.stat(place)
        data = read_token_file(place)
        return before, data.decode("utf-8"), parse_tokens(data)
    except FileNotFoundError:
        return "nothing", "", {}
    except (OSError, ValueError, DefinitionError) as error:
        raise UsageError(f"the tokens in {place!r} cannot be used: {error}") from None


def _entry(token: Token) -> str:
    # TOML has this escape for every character.
    principal = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in token.principal)
    lines = [f"[{token.name}]", f'sha256 = "{token.sha256}"', f'principal = "{"".join(principal)}"']
    if token.expires is not None:
        lines.append(f"expires = {token.expires:%Y-%m-%dT%H:%M:%SZ}")
    lines += [f"{key} = {limit}" for key, limit in zip(LIMIT_KEYS, token.limits, strict=True) if limit is not None]
    return "\n".join(lines) + "\n"


def _write_tokens(
    place: str, before: os.stat_result | Literal["nothing"], text: str, tokens: Mapping[str, Token]
) -> None:
    """Put the text in the place of the file, for its owner alone.

    Raises:
        UsageError: The text does not describe exactly these tokens, or cannot be written.
    """
    folder, name = os.path.split(place)
    try:
        if parse_tokens(text.encode("utf-8")) != tokens:
            raise ValueError("its headings are not where they are looked for, so change it by hand")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open_directory(folder) as directory:
            directory.write(name, text.encode("utf-8"), expected=before, mode=0o600)
    except (OSError, ValueError, DefinitionError) as error:
        raise UsageError(f"{place!r} was not changed: {error}") from None


def _print_table(tokens: Mapping[str, Token]) -> None:
    if not tokens:
        print("there are no tokens")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("token", "principal", "until"):
        table.add_column(name, no_wrap=True)
    table.add_column("limits", overflow="fold")
    for token in tokens.values():
        until = "no end" if token.expires is None else f"{token.expires.astimezone(UTC):%Y-%m-%d}"
        until += " (expired)" if token.has_expired() else ""
        limits = [f"{key}={limit}" for key, limit in zip(LIMIT_KEYS, token.limits, strict=True) if limit is not None]
        table.add_row(*map(printable, (token.name, token.principal, until, " ".join(limits) or "none")))
    lay(screen(), table)
