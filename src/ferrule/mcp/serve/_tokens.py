"""A file of hashed bearer tokens: who may call a served runner, until when, and how much. This module imports nothing
of `mcp`.

[ann]                          # the name of the token
sha256 = "9f86d081884c7d65…"   # of the token, in hexadecimal digits
principal = "ann"              # left out: the token's name
expires = 2027-01-31T00:00:00Z
calls_per_minute = 60
"""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from hashlib import sha256
from typing import Any, NamedTuple

from ferrule import DefinitionError, Runner, ToolCall, ToolContext, ToolResult
from ferrule.middleware import budget, rate
from ferrule.policy.toml_lines import TomlError, read_toml
from ferrule.scheduling.clock import MONOTONIC
from ferrule.security.paths import read_file, resolve_path
from ferrule.security.similar_names import NameIndex
from ferrule.stores.limits import share_limits, wait_for_answer
from ferrule.stores.store import Memory, StoreError, private_place
from ferrule.types import Journal, Middleware, Next
from ferrule.values.log import make_logger

log = make_logger("ferrule.mcp.serve")
MOST_BYTES = 1_048_576
_TOKEN_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_SLOT_WAIT = 60.0  # seconds for a call to wait while too many of its principal run
_DAY_SECONDS = 86_400.0


class Limits(NamedTuple):
    """The limits of one principal; `None` is no limit."""

    calls_per_minute: int | None = None
    calls_per_day: int | None = None
    calls: int | None = None
    """Altogether."""
    concurrency: int | None = None


LIMIT_KEYS = tuple(Limits.__annotations__)


@dataclass(frozen=True, slots=True)
class Token:
    """One entry of a file of tokens."""

    name: str
    sha256: str
    principal: str
    expires: datetime | None
    limits: Limits

    def has_expired(self) -> bool:
        """Return whether the token is past its time."""
        return self.expires is not None and self.expires <= datetime.now(UTC)


def hash_token(token: str) -> str:
    """Return the hash of a token, for a file of tokens. Tokens are random, so no salt and no slow hash is needed."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class TokenFile:
    """The tokens of a file, for `serve.mcp(tokens=…)`. It is read for every request.

    Args:
        path: The file. Everybody with write access to it can let people in, so other users must not have it.

    Raises:
        DefinitionError: The file cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.expanduser(os.fspath(path))
        self._data = b""
        self._tokens: dict[str, Token] = {}
        self._limits: dict[str, Limits] = {}
        self._read()

    def __call__(self, token: str) -> str | None:
        """Return the principal of a token, or None if it is not known or has expired.

        Raises:
            DefinitionError: The file can no longer be used.
        """
        self._read()
        digest, found = hash_token(token), None
        for one in self._tokens.values():  # all of them: the time for this reveals nothing
            if hmac.compare_digest(one.sha256, digest):
                found = one
        if found is not None and found.has_expired():
            log.warning("the token %r expired on %s", found.name, found.expires)
            return None
        return None if found is None else found.principal

    def find_limits(self, principal: str | None) -> Limits:
        """Return the limits of a principal: the smallest of each if several tokens have one."""
        return self._limits.get(principal or "", Limits())

    def check_reach(self, runner: Runner) -> None:
        """Refuse a file that tools of the runner may reach.

        Raises:
            ReachableError: They may; the text names the folder.
        """
        guards = [*runner.guards, *(guard for tool in runner.tools for guard in tool.guards)]
        roots = {root for guard in guards for root in getattr(guard, "roots", ())}
        for place in {self.path, resolve_path(self.path, ".")}:
            private_place(place, roots, working_directory=None)

    def _read(self) -> None:
        try:
            data = read_token_file(self.path)
            if data != self._data:
                self._tokens = parse_tokens(data)
                self._limits = _limits_by_principal(self._tokens.values())
                self._data = data
        except FileNotFoundError:
            raise DefinitionError(f"there is no file {self.path!r}; ferrule token new writes it") from None
        except (OSError, ValueError, DefinitionError) as error:
            raise DefinitionError(f"the tokens in {self.path!r} cannot be used: {error}") from None


def read_token_file(path: str) -> bytes:
    """Return the bytes of a file of tokens.

    Raises:
        OSError, ValueError: The file cannot be read, or others can write to it.
    """
    exact = resolve_path(path, ".")  # once: a link may lead elsewhere a moment later
    if os.name != "nt":
        for place in (exact, os.path.dirname(exact), os.path.dirname(os.path.abspath(path))):
            _check_writers(place, os.stat(place))
    return read_file(exact, MOST_BYTES)


def _check_writers(place: str, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise ValueError(f"{place!r} belongs to another user")
    own_files_only = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if found.st_mode & _OTHERS_WRITE and not own_files_only:
        raise ValueError(f"others can write to {place!r}: chmod go-w {place}")


def parse_tokens(data: bytes) -> dict[str, Token]:
    """Return the tokens of a file by name.

    Raises:
        DefinitionError: The text names the token and the problem.
    """
    try:
        found, _ = read_toml(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise DefinitionError("it is not UTF-8") from None
    except TomlError as error:
        raise DefinitionError(str(error)) from None
    return {name: _read_entry(name, entry) for name, entry in found.items()}


def check_name(name: str) -> None:
    """Refuse an invalid name of a token.

    Raises:
        DefinitionError: The name is invalid; the text gives the rule.
    """
    if not _TOKEN_NAME.fullmatch(name):
        raise DefinitionError(f"{name!r} is not a valid name of a token: use at most 100 letters, digits, '_' and '-'")


_ENTRY_KEYS = ("sha256", "principal", "expires", *LIMIT_KEYS)


def _read_entry(name: str, entry: Any) -> Token:
    check_name(name)
    if not isinstance(entry, Mapping):
        raise DefinitionError(f"{name!r} is outside a token: write it below a heading such as [ann]")
    for key in entry:
        if key not in _ENTRY_KEYS:
            near = NameIndex(_ENTRY_KEYS).find_nearest(key, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_ENTRY_KEYS)}"
            raise DefinitionError(f"the token {name!r} has an unknown key {key!r}; {hint}")
    digest, principal, expires = entry.get("sha256"), entry.get("principal", name), entry.get("expires")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise DefinitionError(f"the token {name!r} needs sha256, 64 hexadecimal digits: ferrule token new writes it")
    if not isinstance(principal, str) or not principal:
        raise DefinitionError(f"the principal of the token {name!r} must be a text with a character, not {principal!r}")
    if expires is not None and not (isinstance(expires, datetime) and expires.tzinfo):
        raise DefinitionError(
            f"expires of the token {name!r} must be a time with its offset, such as 2027-01-31T00:00:00Z, not {expires}"
        )
    limits = Limits(**{key: _read_limit(name, key, entry[key]) for key in LIMIT_KEYS if key in entry})
    return Token(name, digest, principal, expires, limits)


def _read_limit(name: str, key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DefinitionError(f"{key} of the token {name!r} must be a whole number of at least 1, not {value!r}")
    return value


def _limits_by_principal(tokens: Iterable[Token]) -> dict[str, Limits]:
    found: dict[str, Limits] = {}
    for token in tokens:
        pairs = zip(found.get(token.principal, Limits()), token.limits, strict=True)
        stated = ([limit for limit in pair if limit is not None] for pair in pairs)
        found[token.principal] = Limits(*(min(limits, default=None) for limits in stated))
    return found


class TokenLimits:
    """A middleware that holds each principal to the limits in its tokens.

    Calls that a tool makes count with the call of the tool.

    Args:
        tokens: The file with the limits.
        journal: The journal to count calls in, so that the counts outlast the program; if left out, they are in memory.
    """

    def __init__(self, tokens: TokenFile, journal: Journal | None) -> None:
        self._tokens = tokens
        # A name of its own: a rate of the runner's in the same journal counts apart.
        self._shared = share_limits(Memory() if journal is None else journal, name="ferrule.tokens")
        self._running: set[str] = set()
        self._middleware_for = cache(self._make_middleware)

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        """Run the call if its principal's limits allow it, or return a result with the limit that is reached."""
        if call.parent not in self._running:
            for middleware in self._middleware_for(self._tokens.find_limits(context.principal)):
                next = _wrap_next(middleware, next)
        self._running.add(call.id)
        try:
            return await next(call, context)
        finally:
            self._running.discard(call.id)

    def _make_middleware(self, limits: Limits) -> list[Middleware]:
        """Return the middleware for these limits, the innermost first. The limit that refuses most often stands
        outermost, so a refused call counts nothing in the others."""
        by_principal: Any = {"by": "principal", "limits": self._shared}
        found: list[Middleware] = []
        if limits.calls is not None:
            found.append(budget(calls=limits.calls, **by_principal))
        if limits.calls_per_day is not None:
            found.append(partial(self._count_day, limits.calls_per_day))
        if limits.calls_per_minute is not None:
            found.append(rate(limits.calls_per_minute, seconds=60.0, **by_principal))
        if limits.concurrency is not None:
            found.append(partial(self._hold_slot, limits.concurrency))
        return found

    async def _count_day(self, most: int, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        """Count a call in its day, of UTC. A sliding window would store the time of each call."""
        now = (context.clock or MONOTONIC).now()
        day, seconds = divmod(now, _DAY_SECONDS)

        def take(value: Any) -> tuple[Any, bool]:
            count = value[1] if value and value[0] == day else 0
            return ([day, count + 1], True) if count < most else (value, False)

        try:
            is_counted = await wait_for_answer(self._shared.order(self._shared.place("day", context.principal), take))
        except StoreError as error:
            log.error("%s did not run, because the count of today's calls cannot be read: %s", call.name, error)
            return _make_limited(call, "the count of today's calls cannot be read")
        text = f"the limit of {most} calls a day for this principal is reached, until 0:00 UTC"
        return await next(call, context) if is_counted else _make_limited(call, text, round(_DAY_SECONDS - seconds, 3))

    async def _hold_slot(self, most: int, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        slot = self._shared.lease({f"token:{context.principal}": most}, (), shared=False)
        has_slot = False

        async def acquire(seconds: float) -> None:
            nonlocal has_slot
            has_slot = await slot.acquire(asyncio.get_running_loop().time() + seconds, None, None)

        try:
            await context.pause(_SLOT_WAIT, acquire, timed=False)
            return await next(call, context) if has_slot else _make_limited(call, slot.busy_reason)
        finally:
            slot.release()


def _wrap_next(middleware: Middleware, next: Next) -> Next:
    return lambda call, context: middleware(call, context, next)


def _make_limited(call: ToolCall, why: str, retry_after: float | None = None) -> ToolResult:
    text = f"{call.name} could not be called: {why}. Nothing was run."
    metadata = None if retry_after is None else {"retry_after": retry_after}
    return ToolResult(None, text, metadata, status="limited", executed=False)
