"""`ferrule serve`: offer the tools to MCP clients over standard input and output, or HTTP."""

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
from ferrule.cli import journals, openapi, servers, token
from ferrule.cli.client_configs import format_configurations
from ferrule.cli.load import list_objects
from ferrule.cli.runners import make_runner
from ferrule.cli.shared_options import OPERATIONS_BUDGET, add_shared
from ferrule.cli.stopping import run_until_signal
from ferrule.cli.text import to_line, warn
from ferrule.cli.usage import UsageError
from ferrule.mcp.serve._listen import allowed_hosts, is_loopback
from ferrule.mcp.serve._tokens import TokenFile
from ferrule.values.count import format_count

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
    parser.add_argument("places", nargs="*", metavar="FILE_OR_MODULE", default=[], help="tools to serve, as in --tools")
    parser.add_argument("--http", metavar="[HOST:]PORT", help="serve HTTP at /mcp; port 0 takes a free one")
    parser.add_argument(
        "--tokens", metavar="FILE", help="require a bearer token of this file, which `ferrule token new NAME` writes"
    )
    parser.add_argument(
        "--token-env", metavar="NAME", help="require the bearer token that this environment variable holds"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host name of the server; may be repeated",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="an origin of web pages that may call the server; may be repeated",
    )
    parser.add_argument("--directory", metavar="DIR", help="work in this directory")
    parser.add_argument(
        "--install", action="store_true", help="print the configuration for common MCP clients, and serve nothing"
    )
    add_shared(parser, "--yes", "--policy", "--lock", "--journal")


def command(options: argparse.Namespace) -> int:
    """Serve until the client disconnects or a signal comes. Only the protocol goes to standard output."""
    if options.directory is not None:
        _change_directory(options.directory)
    if not options.verbose:  # --verbose prints the whole log
        _print_serving_log()
    options.tools = [*options.places, *(options.tools or ())] or None
    address = None if options.http is None else read_address(options.http)
    if address is None and (options.allow_host or options.allow_origin):
        raise UsageError("--allow-host and --allow-origin need --http")
    tokens = _read_tokens(options, address)
    if address is not None:
        _check_hosts(address, options.allow_host)
    with servers.follow_servers(options, OPERATIONS_BUDGET) as (work, extra, changes):
        _import_server(address)
        runner = make_runner(options, extra, approver=serve.ask_client)
        name = _server_name(options.tools)
        if options.install:
            if address is not None:
                raise UsageError("--install is for clients that start the server themselves: leave out --http")
            journal = None if options.journal is None else journals.place_journal(options.journal)
            sources = (options.tools or (), options.mcp or (), options.yes, Path.cwd())
            rules = (options.lock, options.policy, journal)
            print(format_configurations(name, *sources, *rules, openapi.to_words(options, Path.cwd())), end="")
            return 0
        with journals.open_journal(work, runner, options.journal) as journaled:
            local = [tool for tool in runner.tools if extra is None or extra.find(tool.name) is None]
            merged = changes and servers.merge_changes(changes, Toolset(local), options.lock)
            settings: dict[str, Any] = {"name": name, "changes": merged}
            settings |= {"resources": list_objects(options.tools or (), serve.Resource)}
            settings |= {"prompts": list_objects(options.tools or (), serve.Prompt)}
            if address is None:
                if sys.stdin.isatty():
                    served = format_count(len(runner.tools), "tool")
                    warn(f"serving {served} over standard input and output, to an MCP client that starts this command")
                return work.run(run_until_signal(partial(serve.stdio, journaled, **settings)))
            if isinstance(tokens, TokenFile):
                token.check_reach(tokens, journaled)
            settings |= {"tokens": tokens, "hosts": options.allow_host, "origins": options.allow_origin}
            settings |= {"ready": lambda url: warn(f"serving {url}"), **address._asdict()}
            return work.run(run_until_signal(partial(serve.http, journaled, **settings)))


def _print_serving_log() -> None:
    """Print one line for each message of the server's log, such as a refused client."""
    handler = logging.StreamHandler()
    handler.format = lambda record: "ferrule: " + to_line(record.getMessage(), _LOGGED)  # type: ignore[method-assign]
    logging.getLogger("ferrule.mcp.serve").addHandler(handler)


def _import_server(address: Address | None) -> None:
    """Import the server before the user's tools, whose folder may have a module with the name of one that is missing.

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
        UsageError: The text is not an address.
    """
    found = _HTTP_ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65_535:
        raise UsageError(f"--http {text!r} is not an address: write a port such as 8000, or 127.0.0.1:8000")
    return Address((found["host"] or "127.0.0.1").strip("[]"), int(found["port"]))


def _read_tokens(options: argparse.Namespace, address: Address | None) -> Any:
    """Return `tokens=` for `serve.http`. An address that other machines reach needs tokens."""
    variable: str | None = options.token_env
    if address is None:
        if variable is not None or options.tokens is not None:
            raise UsageError(f"{'--token-env' if options.tokens is None else '--tokens'} needs --http")
        return None
    if options.tokens is not None:
        if variable is not None:
            raise UsageError("--tokens and --token-env exclude each other: leave out one of them")
        return TokenFile(token.place_tokens(options.tokens))
    if variable is None:
        if is_loopback(address.host):
            return None
        raise UsageError(
            f"everybody who reaches {address.host} could call the tools: write --tokens FILE (`ferrule token new` "
            f"creates it), --token-env NAME, or the loopback address --http 127.0.0.1:{address.port}"
        )
    try:
        return serve.fixed_token(os.environ.get(variable, ""), principal="token")
    except DefinitionError as error:
        raise UsageError(f"the environment variable of --token-env: {error}") from None


def _check_hosts(address: Address, hosts: list[str]) -> None:
    try:
        allowed_hosts(address.host, hosts)
    except DefinitionError:
        raise UsageError(
            f"{address.host} stands for every address of this machine: name the host that clients use, such as "
            "--allow-host tools.example.com"
        ) from None


def _change_directory(directory: str) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise UsageError(f"--directory {directory!r}: {error.strerror}") from None


def _server_name(places: list[str] | None) -> str:
    """Return the name of the server: that of its file or module."""
    if not places:
        return "ferrule"
    place = places[0].partition(".py:")[0].removesuffix(".py")
    name = re.sub(r"[^\w-]", "-", Path(place).name.rpartition(":")[0] or Path(place).name.rpartition(".")[2])
    return name or "ferrule"
