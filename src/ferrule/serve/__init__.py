"""A runner as an MCP server: over HTTP, as an ASGI app, or over standard input and output.

    asyncio.run(serve.http(Runner([add]), port=8000))
    asyncio.run(serve.stdio(Runner([add])))
    app = serve.mcp(Runner([add]))          # for a server of your own: uvicorn program:app

Every call from a client passes the whole path, with the runner's guards, limits and observers. It needs the package
`mcp`, which is imported when one of them is called: pip install "ferrule[mcp]". See docs/serving-mcp.md.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import os
import re
import secrets
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ferrule import DefinitionError, Runner, ToolContext, Toolset, __version__
from ferrule.serve._caller import Tokens, ask_client
from ferrule.serve._follow import following
from ferrule.serve._listen import allowed_hosts, is_loopback, serve_http

if TYPE_CHECKING:
    from ferrule.serve._http import MCPApp
    from ferrule.serve._server import RunnerServer
    from ferrule.types import Middleware

__all__ = ["ask_client", "fixed_token", "http", "mcp", "stdio"]

_WITHOUT_MCP = 'serving needs the package mcp, which is not installed: pip install "ferrule[mcp]"'
_LEAST_TOKEN = 16
_HOST = re.compile(r"[^\s/?#@*]+(:\*)?")
_ORIGIN = re.compile(r"[\w+.-]+://[^\s/?#@*]+(:\*)?")


def mcp(
    runner: Runner,
    *,
    name: str = "ferrule",
    version: str = __version__,
    instructions: str | None = None,
    context: ToolContext | None = None,
    tokens: Tokens | str | os.PathLike[str] | None = None,
    hosts: Iterable[str] = (),
    origins: Iterable[str] = (),
    state_key: bytes | Sequence[bytes] | None = None,
    answer_within: float = 600.0,
    in_flight: int = 1_000,
    in_flight_each: int = 100,
    max_body: int = 4 * 1024 * 1024,
    keep_list: float = 0.0,
    structured: bool = True,
) -> MCPApp:
    """A runner as an ASGI app that speaks MCP at `/mcp`, to clients of 2026-07-28 and of the 2025 revisions.
    See docs/serving-mcp.md.

    A runner without an approver asks the client whose call it is, by `ask_client`; one that has an approver keeps it.

    Args:
        name: What the server calls itself.
        version: Its version, as clients show it; left out, Ferrule's.
        instructions: How its tools are meant, for the model.
        context: The context of every call, where `tokens` says no other.
        tokens: The file of tokens that `ferrule token new` writes, as a `Path`, or as a text that ends in `.toml`; its
            limits hold for each principal, and are counted in the runner's journal. Or a function, sync or async, of
            the bearer token of a request, which gives the principal, or the context of its calls, or `None` for a token
            that is not known; such a request is answered with 401. `fixed_token` makes one. Left out, whoever reaches
            the address may call: let it be the loopback's.
        hosts: Names under which the server is reached, besides those of the loopback; other Host headers are refused.
        origins: Origins of web pages that may call it, such as `https://app.example.com`, besides the loopback's.
        state_key: What seals the questions that a client carries: at least 32 bytes, or a list of such keys, of which
            the first seals. Several processes need the same one, and `Runner(resume_key=…)` besides; left out it is a
            random one.
        answer_within: Seconds that a person has to answer a question, from when it was asked first.
        in_flight: How many calls there may be at once, those that wait for a slot too, and how many clients that listen
            for changes besides.
        in_flight_each: The same for each principal.
        max_body: Bytes of a request.
        keep_list: Seconds that a client may keep the list of tools without asking again.
        structured: Whether clients are told output schemas, and given structured content.

    Raises:
        DefinitionError: for what could not work, and where `mcp` is not installed.
        ReachableError: for a file of tokens that the runner's tools may reach.
    """
    _check_numbers(max_body=max_body)
    hosts = _forms("hosts", hosts, _HOST, "tools.example.com")
    origins = _forms("origins", origins, _ORIGIN, "https://app.example.com")
    known, limit = _known_tokens(tokens, runner)
    served = _served(
        runner,
        name=name,
        version=version,
        instructions=instructions,
        context=_context(context),
        answer_within=answer_within,
        state_key=state_key,
        in_flight=in_flight,
        in_flight_each=in_flight_each,
        keep_list=keep_list,
        structured=structured,
        public=known is None,
        limit=limit,
    )
    from ferrule.serve._http import MCPApp

    return MCPApp(served, tokens=known, hosts=hosts, origins=origins, max_body=max_body)


async def http(
    runner: Runner,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    tokens: Tokens | str | os.PathLike[str] | None = None,
    hosts: Iterable[str] = (),
    changes: AsyncIterable[Toolset] | None = None,
    ready: Callable[[str], object] | None = None,
    stop: asyncio.Event | None = None,
    **options: Any,
) -> None:
    """Serve a runner at `http://host:port/mcp` until a signal comes. See docs/serving-mcp.md#a-gateway-in-one-file.

    It starts uvicorn. After the first ctrl-C or SIGTERM it takes no new calls, and waits for those under way as long as
    the runner's `drain`; a second signal stops it and them, a third ends the program.

    Args:
        host: A name or an address of this machine. Beyond the loopback it needs `tokens`.
        port: 0 for one that is free.
        tokens: As for `mcp`.
        hosts: As for `mcp`; left out, `host` itself.
        changes: Toolsets that are served in place of the runner's as they come, such as `servers.changes()` of
            `sources.mcp.connect(…)`, for upstream servers whose lists change.
        ready: Called with the address once it is served.
        stop: Ends serving when it is set, in place of the signals.
        **options: The other arguments of `mcp`.

    Raises:
        DefinitionError: for what could not work, such as an address that is in use, and where `mcp` is not installed.
        ReachableError: for a file of tokens that the runner's tools may reach.
    """
    if tokens is None and not is_loopback(host):
        raise DefinitionError(
            f"whoever reaches {host} could call the tools: give tokens='tokens.toml', or host='127.0.0.1'"
        )
    app = mcp(runner, tokens=tokens, hosts=allowed_hosts(host, hosts), **options)
    async with following(app, changes):
        await serve_http(app, host, port, ready, stop)


async def stdio(
    runner: Runner,
    *,
    name: str = "ferrule",
    version: str = __version__,
    instructions: str | None = None,
    context: ToolContext | None = None,
    answer_within: float = 600.0,
    in_flight: int = 1_000,
    keep_list: float = 0.0,
    structured: bool = True,
    stop: asyncio.Event | None = None,
    changes: AsyncIterable[Toolset] | None = None,
) -> None:
    """Serve a runner to the one client at standard input and output, until that ends. See docs/serving-mcp.md.

    Meanwhile what tools and their programs print goes to standard error, and their standard input is empty. Calls that
    say no session have one of this connection. A cancellation ends it, with the calls under way.

    Args:
        stop: Where it is set, no new calls are taken, those under way are waited for as long as the runner's `drain`
            and answered, and serving ends.
        changes: As for `http`. The other arguments are those of `mcp`.

    Raises:
        DefinitionError: for what could not work, and where `mcp` is not installed.
        RuntimeError: where there is no standard input or output, or another call of this has them.
    """
    context = _context(context)
    served = _served(
        runner,
        name=name,
        version=version,
        instructions=instructions,
        context=context if context.session is not None else context.replace(session=f"mcp_{secrets.token_hex(12)}"),
        answer_within=answer_within,
        state_key=None,
        in_flight=in_flight,
        in_flight_each=in_flight,
        keep_list=keep_list,
        structured=structured,
        public=False,
    )
    from ferrule.serve._stdio import serve_stdio

    async with following(served, changes):
        await serve_stdio(served, stop)


def fixed_token(token: str, principal: str = "client") -> Tokens:
    """For `mcp(tokens=…)`: one token, whose bearer is `principal`; compared in constant time.
    See docs/serving-mcp.md#who-may-call.

    Raises:
        DefinitionError: for a token of less than 16 characters, or an empty principal.
    """
    given: object = token
    if not isinstance(given, str) or len(given.strip()) < _LEAST_TOKEN:
        raise DefinitionError(f"a token has at least {_LEAST_TOKEN} characters: secrets.token_urlsafe() makes one")
    if not principal:
        raise DefinitionError("fixed_token(principal=…) names who has the token")
    expected = token.strip().encode()

    def known(given: str) -> str | None:
        return principal if hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected) else None

    return known


def _known_tokens(
    given: Tokens | str | os.PathLike[str] | None, runner: Runner
) -> tuple[Tokens | None, Middleware | None]:
    """Return what tells whose a token is, and what holds its limits."""
    if given is None:
        return None, None
    from ferrule.serve._tokens import TokenFile, TokenLimits  # half of what serving imports

    if isinstance(given, os.PathLike) or (isinstance(given, str) and given.endswith(".toml")):
        given = TokenFile(given)
    if isinstance(given, TokenFile):
        given.check_reach(runner)
        return given, TokenLimits(given, runner.journal)
    if not callable(given):  # which is not quoted: it may be a token
        raise DefinitionError(
            "tokens is a Path, a text that ends in '.toml' (the path of a file of tokens), or a function of a token; "
            "for a single token, serve.fixed_token(…) makes one"
        )
    return given, None


def _served(runner: Runner, **settings: Any) -> RunnerServer:
    _check_numbers(**{name: settings[name] for name in ("in_flight", "in_flight_each", "answer_within")})
    if settings["keep_list"] != 0:
        _check_numbers(keep_list=settings["keep_list"])
    try:
        from ferrule.serve._server import RunnerServer, Settings
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in {"mcp", "mcp_types"}:
            raise
        raise DefinitionError(_WITHOUT_MCP) from None
    return RunnerServer(runner, Settings(**settings))


def _check_numbers(**given: object) -> None:
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise DefinitionError(f"{name} is a number greater than 0, not {value!r}")


def _context(given: object) -> ToolContext:
    if given is not None and not isinstance(given, ToolContext):
        raise DefinitionError(f"context is a ToolContext, not {type(given).__name__}")
    return given or ToolContext()


def _forms(what: str, given: Iterable[Any], form: re.Pattern[str], example: str) -> list[str]:
    """What is no name of a host, or no origin, would match nothing that a client sends."""
    found = [given] if isinstance(given, str) else [*given]
    for one in found:
        if not isinstance(one, str) or not form.fullmatch(one):
            raise DefinitionError(f"{what}: {one!r} is none; write {example!r}, with ':*' behind it for any port")
    return found
