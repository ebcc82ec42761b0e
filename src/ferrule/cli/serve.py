"""`ferrule serve`: the tools for MCP clients, over standard input and output or HTTP."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import logging
import os
import re
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ferrule import DefinitionError, Runner, serve
from ferrule.cli import find, journals, openapi, policies, servers
from ferrule.cli.install import configurations
from ferrule.cli.until import until_told
from ferrule.cli.usage import UsageError

if TYPE_CHECKING:
    from ferrule.serve._http import MCPApp

_HTTP_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]/\s]+):)?(?P<port>\d{1,5})")
_STREAMS_END = 1


class Address(NamedTuple):
    """Where HTTP is served.

    Attributes:
        host: A name or an address, without brackets.
        port: 0 for one that is free.
    """

    host: str
    port: int


def options(parser: argparse.ArgumentParser) -> None:
    """What is served, and where."""
    parser.add_argument("places", nargs="*", metavar="FILE_OR_MODULE", default=[], help="as --tools takes it")
    parser.add_argument("--http", metavar="[HOST:]PORT", help="serve HTTP at /mcp there, port 0 for one that is free")
    parser.add_argument(
        "--token-env",
        metavar="NAME",
        help="the environment variable that holds the bearer token which every request needs",
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name under which it is reached by HTTP"
    )
    parser.add_argument(
        "--allow-origin", action="append", default=[], metavar="ORIGIN", help="an origin of web pages that may call it"
    )
    parser.add_argument("--directory", metavar="DIR", help="work in this directory, whoever starts the program")
    parser.add_argument(
        "--install", action="store_true", help="serve nothing: print what to write into the usual clients' files"
    )
    find.add_yes(parser)
    find.add_lock(parser)
    policies.add_policy(parser)
    journals.add_journal(parser)


def command(options: argparse.Namespace) -> int:
    """Serve until the client goes, or a signal comes; nothing but the protocol goes to standard output."""
    if options.directory is not None:
        _change_directory(options.directory)
    places = [*options.places, *(options.tools or ())] or None
    address = None if options.http is None else read_address(options.http)
    if address is None and (options.allow_host or options.allow_origin):
        raise UsageError("--allow-host and --allow-origin are for --http: over standard input nobody is let in")
    known = _known_token(options.token_env, address)
    with servers.connected(options, openapi.BUDGET) as (work, more):
        _import_what_serving_needs(address)
        judge = policies.of(options)
        runner = find.runner(
            places,
            yes=options.yes,
            more=more,
            asked=serve.ask_client,
            lock=options.lock,
            policy=judge,
            secrets=openapi.secrets(options),
        )
        name = _server_name(places)
        if options.install:
            if address is not None:
                raise UsageError("--install is for clients that start the server themselves: leave out --http")
            named = (places or (), options.mcp or (), options.yes)
            more_words = openapi.words(options, Path.cwd())
            journal = None if options.journal is None else journals.file_of(options.journal)
            kept = (options.lock, options.policy, journal)
            print(configurations(name, *named, Path.cwd(), *kept, more_words), end="")
            return 0
        with journals.kept(work, runner, options.journal) as journaled:
            if address is None:
                return work.run(until_told(partial(serve.stdio, journaled, name=name)))
            hosts = _reached_as(address, options.allow_host)
            app = serve.mcp(journaled, name=name, tokens=known, hosts=hosts, origins=options.allow_origin)
            return work.run(until_told(partial(_over_http, app, address)))


def _import_what_serving_needs(address: Address | None) -> None:
    """Before the tools that the user names: their folder is on the path from then on, and holds what is not installed.

    Raises:
        DefinitionError: where `mcp` is missing.
    """
    app = serve.mcp(Runner([]))
    if address is not None:
        import uvicorn  # comes with `mcp`

        uvicorn.Config(app, log_config=None).load()


def read_address(text: str) -> Address:
    """What `--http` says.

    Raises:
        UsageError: where it is no address.
    """
    found = _HTTP_ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65_535:
        raise UsageError(f"--http {text!r} is no address: write a port, such as 8000, or 127.0.0.1:8000")
    return Address((found["host"] or "127.0.0.1").strip("[]"), int(found["port"]))


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _known_token(variable: str | None, address: Address | None) -> Any:
    """The function of the one token; an address that others reach needs one."""
    if address is None:
        if variable is not None:
            raise UsageError("--token-env is for --http: over standard input there is one client, who started it")
        return None
    if variable is None:
        if is_loopback(address.host):
            return None
        raise UsageError(
            f"whoever reaches {address.host} could call the tools: give --token-env NAME, the environment variable "
            "that holds the token which every request needs, or serve on the loopback, --http "
            f"127.0.0.1:{address.port}"
        )
    try:
        return serve.fixed_token(os.environ.get(variable, ""), principal="token")
    except DefinitionError as error:
        raise UsageError(f"--token-env {variable}: {error}") from None


def _reached_as(address: Address, hosts: list[str]) -> list[str]:
    """The names that a Host header may say, besides those of the loopback."""
    if is_loopback(address.host) or hosts:
        return hosts
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(address.host).is_unspecified:
            raise UsageError(
                f"{address.host} is every address of this machine: say under which name it is reached, "
                "--allow-host tools.example.com"
            )
    return [f"[{address.host}]" if ":" in address.host else address.host]


def _change_directory(directory: str) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise UsageError(f"--directory {directory!r}: {error.strerror}") from None


def _server_name(places: list[str] | None) -> str:
    """What the server calls itself: the name of its file or module."""
    if not places:
        return "ferrule"
    place = places[0].partition(".py:")[0].removesuffix(".py")
    name = re.sub(r"[^\w-]", "-", Path(place).name.rpartition(":")[0] or Path(place).name.rpartition(".")[2])
    return name or "ferrule"


# -- over HTTP --------------------------------------------------------------------------------------------------------


async def _over_http(app: MCPApp, address: Address, stop: asyncio.Event) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # they are taken here

    with bound(address) as sock:
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=_STREAMS_END
        )
        server = Server(config)
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        async with app.lifespan():
            serving = asyncio.ensure_future(server.serve(sockets=[sock]))
            stopping = asyncio.ensure_future(stop.wait())
            host = f"[{address.host}]" if ":" in address.host else address.host
            print(f"ferrule: serving http://{host}:{sock.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
            try:
                await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
                await app.drain()
                # Clients of 2025 hold a stream open, which is cancelled below, and uvicorn would report it.
                logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
                server.should_exit = True
                await serving
            except asyncio.CancelledError:
                serving.cancel()
                await asyncio.wait({serving})
                raise
            finally:
                stopping.cancel()


def bound(address: Address) -> socket.socket:
    """The socket that listens there, whose connections send what they have at once.

    Raises:
        UsageError: where it cannot.
    """
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        sock = socket.create_server((address.host, address.port), family=family)
        # An accepted connection has it too; else each answer waits 40 ms for the other side's acknowledgement.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    except OSError as error:
        raise UsageError(f"--http {address.host}:{address.port}: {error.strerror or error}") from None
