"""`ferrule serve`: the tools for MCP clients, over standard input and output or HTTP."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ferrule import DefinitionError, Runner, Toolset, serve
from ferrule.cli import find, journals, openapi, policies, servers, token
from ferrule.cli.install import configurations
from ferrule.cli.text import one_line
from ferrule.cli.until import until_told
from ferrule.cli.usage import UsageError
from ferrule.mcp.serve._listen import allowed_hosts, is_loopback
from ferrule.mcp.serve._tokens import TokenFile

_HTTP_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]/\s]+):)?(?P<port>\d{1,5})")
_LOGGED = 1000


class Address(NamedTuple):
    """The address of the HTTP server.

    Attributes:
        host: A name or an address, without brackets.
        port: The port; 0 for any free one.
    """

    host: str
    port: int


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the tools to serve, and the address."""
    parser.add_argument("places", nargs="*", metavar="FILE_OR_MODULE", default=[], help="as --tools takes it")
    parser.add_argument("--http", metavar="[HOST:]PORT", help="serve HTTP at /mcp there, port 0 for one that is free")
    parser.add_argument(
        "--token-env",
        metavar="NAME",
        help="the environment variable that holds the bearer token which every request needs",
    )
    parser.add_argument(
        "--tokens",
        metavar="FILE",
        help="a file of bearer tokens, of which every request needs one; `ferrule token new NAME` writes it",
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
    """Serve until the client goes, or a signal comes. Only the protocol goes to standard output."""
    if options.directory is not None:
        _change_directory(options.directory)
    if not options.verbose:  # verbose shows the whole log
        _print_serving_log()
    places = [*options.places, *(options.tools or ())] or None
    address = None if options.http is None else read_address(options.http)
    if address is None and (options.allow_host or options.allow_origin):
        raise UsageError("--allow-host and --allow-origin are for --http: over standard input nobody is let in")
    known = _tokens_option(options, address)
    if address is not None:
        _check_hosts(address, options.allow_host)
    with servers.followed(options, openapi.BUDGET) as (work, more, changes):
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
            own = [tool for tool in runner.tools if more is None or more.find(tool.name) is None]
            followed = changes and servers.with_others(changes, Toolset(own), options.lock)
            served: dict[str, Any] = {"name": name, "changes": followed}
            if address is None:
                return work.run(until_told(partial(serve.stdio, journaled, **served)))
            served |= {"tokens": known, "hosts": options.allow_host, "origins": options.allow_origin}
            return work.run(until_told(partial(serve.http, journaled, **address._asdict(), ready=_say, **served)))


def _print_serving_log() -> None:
    """Print a line for each log entry of the server itself, such as a client that was refused."""
    handler = logging.StreamHandler()
    handler.format = lambda record: "ferrule: " + one_line(record.getMessage(), _LOGGED)  # type: ignore[method-assign]
    logging.getLogger("ferrule.mcp.serve").addHandler(handler)


def _say(address: str) -> None:
    print(f"ferrule: serving {address}", file=sys.stderr, flush=True)


def _import_what_serving_needs(address: Address | None) -> None:
    """Import the server before the user's tools. Their folder is on the path from then on, and supplies any module
    that is not installed.

    Raises:
        DefinitionError: `mcp` is missing.
    """
    app = serve.mcp(Runner([]))
    if address is not None:
        import uvicorn  # comes with `mcp`

        uvicorn.Config(app, log_config=None).load()


def read_address(text: str) -> Address:
    """Return the address of `--http`.

    Raises:
        UsageError: It is no address.
    """
    found = _HTTP_ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65_535:
        raise UsageError(f"--http {text!r} is no address: write a port, such as 8000, or 127.0.0.1:8000")
    return Address((found["host"] or "127.0.0.1").strip("[]"), int(found["port"]))


def _tokens_option(options: argparse.Namespace, address: Address | None) -> Any:
    """Return `tokens=` for `serve.http`. An address that others reach needs tokens."""
    variable: str | None = options.token_env
    if address is None:
        if variable is not None or options.tokens is not None:
            one = "--token-env" if options.tokens is None else "--tokens"
            raise UsageError(f"{one} is for --http: over standard input there is one client, who started it")
        return None
    if options.tokens is not None:
        if variable is not None:
            raise UsageError("give --tokens or --token-env, not both")
        return TokenFile(token.file_of(options.tokens))
    if variable is None:
        if is_loopback(address.host):
            return None
        raise UsageError(
            f"whoever reaches {address.host} could call the tools: give --tokens FILE, which `ferrule token new` "
            "writes, or --token-env NAME, the environment variable that holds the one token, or serve on the loopback, "
            f"--http 127.0.0.1:{address.port}"
        )
    try:
        return serve.fixed_token(os.environ.get(variable, ""), principal="token")
    except DefinitionError as error:
        raise UsageError(f"--token-env {variable}: {error}") from None


def _check_hosts(address: Address, hosts: list[str]) -> None:
    try:
        allowed_hosts(address.host, hosts)
    except DefinitionError:
        raise UsageError(
            f"{address.host} is every address of this machine: say under which name it is reached, "
            "--allow-host tools.example.com"
        ) from None


def _change_directory(directory: str) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise UsageError(f"--directory {directory!r}: {error.strerror}") from None


def _server_name(places: list[str] | None) -> str:
    """Return the server's name for itself: the name of its file or module."""
    if not places:
        return "ferrule"
    place = places[0].partition(".py:")[0].removesuffix(".py")
    name = re.sub(r"[^\w-]", "-", Path(place).name.rpartition(":")[0] or Path(place).name.rpartition(".")[2])
    return name or "ferrule"
