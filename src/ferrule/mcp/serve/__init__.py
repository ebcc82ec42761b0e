"""A runner as an MCP server: over HTTP, as an ASGI app, or over standard input and output.

    asyncio.run(serve.http(Runner([add]), port=8000))
    asyncio.run(serve.stdio(Runner([add])))
    app = serve.mcp(Runner([add]))          # for a server of your own: uvicorn program:app

Every call from a client passes the whole path, with the runner's guards, limits and observers. It needs the package
`mcp`, imported when one of them is called: pip install "ferrule[mcp]". See docs/serving-mcp.md.
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
from ferrule.mcp.icons import Icons, make_icons
from ferrule.mcp.serve._caller import Tokens, ask_client, ask_to_visit
from ferrule.mcp.serve._follow import serve_changes
from ferrule.mcp.serve._listen import allowed_hosts, is_loopback, serve_http
from ferrule.mcp.serve._resources import Prompt, Resource, make_library, prompt, resource

if TYPE_CHECKING:
    from ferrule.mcp.serve._http import MCPApp
    from ferrule.mcp.serve._server import RunnerServer
    from ferrule.types import Middleware

__all__ = [
    "Prompt",
    "Resource",
    "ask_client",
    "ask_to_visit",
    "fixed_token",
    "http",
    "mcp",
    "prompt",
    "resource",
    "stdio",
]

_WITHOUT_MCP = 'serving needs the package mcp, which is not installed: pip install "ferrule[mcp]"'
_LEAST_TOKEN = 16
_HOST = re.compile(r"[^\s/?#@*]+(:\*)?")
_ORIGIN = re.compile(r"[\w+.-]+://[^\s/?#@*]+(:\*)?")


def mcp(
    runner: Runner,
    *,
    name: str = "ferrule",
    version: str = __version__,
    title: str | None = None,
    icons: Icons = (),
    instructions: str | None = None,
    resources: Iterable[Resource] = (),
    prompts: Iterable[Prompt | Callable[..., Any]] = (),
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
    keep_tasks: float = 3_600.0,
    structured: bool = True,
) -> MCPApp:
    """Return a runner as an ASGI app that speaks MCP at `/mcp`, to clients of 2026-07-28 and of the 2025 revisions. See
    docs/serving-mcp.md.

    If the runner has no approver, it asks the client of each call, by `ask_client`. Otherwise it keeps its approver.

    Args:
        name: The server's name for itself.
        version: Its version, shown by clients; if left out, Ferrule's.
        title: Its name for people.
        icons: The address of its icon, or several.
        instructions: How its tools are meant, for the model.
        resources: Resources for clients, made by `resource`. See docs/serving-mcp.md#resources-and-prompts.
        prompts: The prompts that people may choose: functions, or made by `prompt`.
        context: The context of every call, unless `tokens` gives another one.
        tokens: The file of tokens that `ferrule token new` writes, as a `Path`, or as a text that ends in `.toml`; its
            limits hold for each principal, and are counted in the runner's journal. Or a function, sync or async, of
            the bearer token of a request. It returns the principal, or the context of its calls, or `None` for an
            unknown token; such a request is answered with 401. `fixed_token` makes one. If left out, everybody with
            access to the address may call: use an address of the loopback.
        hosts: Names under which the server is reached, besides those of the loopback; other Host headers are refused.
        origins: Origins of web pages that may call it, such as `https://app.example.com`, besides the loopback's.
        state_key: The key to seal questions carried by clients: at least 32 bytes, or a list of such keys; the first
            seals. Several processes need the same one, and `Runner(resume_key=…)` besides; if left out, it is random.
        answer_within: Seconds for a person to answer a question, counted from when it was first asked.
        in_flight: How many calls there may be at once, including those that wait for a slot. As many clients again may
            listen for changes.
        in_flight_each: The same for each principal.
        max_body: Most bytes of a request.
        keep_list: Seconds that a client may keep the list of tools without asking again.
        keep_tasks: Seconds from the start of a background job until its client can no longer ask for it.
        structured: Whether clients get output schemas and structured content.

    Raises:
        DefinitionError: An argument could not work, or `mcp` is not installed.
        ReachableError: The runner's tools may reach the file of tokens.
    """
    _check_numbers(max_body=max_body)
    hosts = _check_forms("hosts", hosts, _HOST, "tools.example.com")
    origins = _check_forms("origins", origins, _ORIGIN, "https://app.example.com")
    find_principal, limit = _read_tokens(tokens, runner)
    served = _make_server(
        runner,
        name=name,
        version=version,
        title=title,
        icons=make_icons(icons, "the server"),
        library=make_library(resources, prompts),
        instructions=instructions,
        context=_check_context(context),
        answer_within=answer_within,
        state_key=state_key,
        in_flight=in_flight,
        in_flight_each=in_flight_each,
        keep_list=keep_list,
        keep_tasks=keep_tasks,
        structured=structured,
        public=find_principal is None,
        limit=limit,
    )
    from ferrule.mcp.serve._http import MCPApp

    return MCPApp(served, tokens=find_principal, hosts=hosts, origins=origins, max_body=max_body)


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
        port: The port, or 0 for a free one.
        tokens: As for `mcp`.
        hosts: As for `mcp`; if left out, `host` itself.
        changes: Toolsets to serve in place of the runner's as they come, such as `servers.changes()` of
            `mcp.connect(…)`, for upstream servers with changing lists.
        ready: Called with the address once it is served.
        stop: Ends serving when it is set, in place of the signals.
        **options: The other arguments of `mcp`.

    Raises:
        DefinitionError: An argument could not work, such as an address in use, or `mcp` is not installed.
        ReachableError: The runner's tools may reach the file of tokens.
    """
    if tokens is None and not is_loopback(host):
        raise DefinitionError(
            f"everybody who reaches {host} could call the tools: give tokens='tokens.toml', or host='127.0.0.1'"
        )
    app = mcp(runner, tokens=tokens, hosts=allowed_hosts(host, hosts), **options)
    async with serve_changes(app, changes):
        await serve_http(app, host, port, ready, stop)


async def stdio(
    runner: Runner,
    *,
    name: str = "ferrule",
    version: str = __version__,
    title: str | None = None,
    icons: Icons = (),
    instructions: str | None = None,
    resources: Iterable[Resource] = (),
    prompts: Iterable[Prompt | Callable[..., Any]] = (),
    context: ToolContext | None = None,
    answer_within: float = 600.0,
    in_flight: int = 1_000,
    keep_list: float = 0.0,
    keep_tasks: float = 3_600.0,
    structured: bool = True,
    stop: asyncio.Event | None = None,
    changes: AsyncIterable[Toolset] | None = None,
) -> None:
    """Serve a runner to the one client at standard input and output, until the input ends. See docs/serving-mcp.md.

    Meanwhile the output of tools and their programs goes to standard error, and their standard input is empty. Calls
    without a session get one of this connection. A cancellation ends serving, with the calls under way.

    Args:
        stop: Ends serving when it is set: no new calls are taken, and those under way are waited for as long as the
            runner's `drain`, and answered.
        changes: As for `http`. The other arguments are those of `mcp`.

    Raises:
        DefinitionError: An argument could not work, or `mcp` is not installed.
        RuntimeError: There is no standard input or output, or another call of this function has them.
    """
    context = _check_context(context)
    served = _make_server(
        runner,
        name=name,
        version=version,
        title=title,
        icons=make_icons(icons, "the server"),
        library=make_library(resources, prompts),
        instructions=instructions,
        context=context if context.session is not None else context.replace(session=f"mcp_{secrets.token_hex(12)}"),
        answer_within=answer_within,
        state_key=None,
        in_flight=in_flight,
        in_flight_each=in_flight,
        keep_list=keep_list,
        keep_tasks=keep_tasks,
        structured=structured,
        public=False,
    )
    from ferrule.mcp.serve._stdio import serve_stdio

    async with serve_changes(served, changes):
        await serve_stdio(served, stop)


def fixed_token(token: str, principal: str = "client") -> Tokens:
    """Return a function for `mcp(tokens=…)` that knows one token, for `principal`; compared in constant time. See
    docs/serving-mcp.md#who-may-call.

    Raises:
        DefinitionError: The token has less than 16 characters, or the principal is empty.
    """
    value: object = token
    if not isinstance(value, str) or len(value.strip()) < _LEAST_TOKEN:
        raise DefinitionError(f"a token must have at least {_LEAST_TOKEN} characters: use secrets.token_urlsafe()")
    if not principal:
        raise DefinitionError("fixed_token(principal=…) must not be empty")
    expected = token.strip().encode()

    def find_principal(candidate: str) -> str | None:
        return principal if hmac.compare_digest(candidate.encode("utf-8", "surrogatepass"), expected) else None

    return find_principal


def _read_tokens(
    tokens: Tokens | str | os.PathLike[str] | None, runner: Runner
) -> tuple[Tokens | None, Middleware | None]:
    """Return the function that finds a token's principal, and the middleware for its limits."""
    if tokens is None:
        return None, None
    from ferrule.mcp.serve._tokens import TokenFile, TokenLimits  # half of the imports of serving

    if isinstance(tokens, os.PathLike) or (isinstance(tokens, str) and tokens.endswith(".toml")):
        tokens = TokenFile(tokens)
    if isinstance(tokens, TokenFile):
        tokens.check_reach(runner)
        return tokens, TokenLimits(tokens, runner.journal)
    if not callable(tokens):  # do not quote it: it may be a token
        raise DefinitionError(
            "tokens must be a Path, a text that ends in '.toml' (the path of a file of tokens), or a function of a "
            "token; for a single token, use serve.fixed_token(…)"
        )
    return tokens, None


def _make_server(runner: Runner, **settings: Any) -> RunnerServer:
    _check_numbers(**{name: settings[name] for name in ("in_flight", "in_flight_each", "answer_within", "keep_tasks")})
    if settings["keep_list"] != 0:
        _check_numbers(keep_list=settings["keep_list"])
    try:
        from ferrule.mcp.serve._server import RunnerServer, Settings
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in {"mcp", "mcp_types"}:
            raise
        raise DefinitionError(_WITHOUT_MCP) from None
    return RunnerServer(runner, Settings(**settings))


def _check_numbers(**numbers: object) -> None:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise DefinitionError(f"{name} must be a number greater than 0, not {value!r}")


def _check_context(context: object) -> ToolContext:
    if context is not None and not isinstance(context, ToolContext):
        raise DefinitionError(f"context must be a ToolContext, not {type(context).__name__}")
    return context or ToolContext()


def _check_forms(what: str, texts: Iterable[Any], form: re.Pattern[str], example: str) -> list[str]:
    """Return the forms as a list. A malformed host or origin raises: it would never match a client's."""
    found = [texts] if isinstance(texts, str) else [*texts]
    for one in found:
        if not isinstance(one, str) or not form.fullmatch(one):
            raise DefinitionError(f"{what}: {one!r} is invalid; write {example!r}, and ':*' after it for any port")
    return found
