"""`ferrule inspect`: a page in the browser with the tools, the questions, the calls and the rules."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import getpass
import hmac
import os
import secrets
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from ferrule import Runner, Toolset, approval, web
from ferrule.cli import journals, servers
from ferrule.cli.journals import find_journal
from ferrule.cli.runners import DEFAULT, list_roots, make_runner
from ferrule.cli.shared_options import add_shared
from ferrule.cli.stopping import run_until_signal
from ferrule.cli.text import warn
from ferrule.cli.usage import UsageError, parse_count
from ferrule.definition.guard_forms import guard_name
from ferrule.errors import DefinitionError
from ferrule.journal import Reader
from ferrule.mcp.serve._listen import bind
from ferrule.policy.files import configuration_folder, state_folder
from ferrule.stores.store import StoreError, make_key, private_place, read_key
from ferrule.values.count import format_count

PORT: Final = 8765
_MOST_PORT = 65_535
_TEMPORARY: Final = "Without --journal, the calls are kept until this server ends."


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the tools, and the person at the page."""
    parser.add_argument(
        "places", nargs="*", metavar="FILE_OR_MODULE", default=[], help="tools or a runner to show, as in --tools"
    )
    parser.add_argument(
        "--port", type=parse_count, metavar="N", help=f"port on this machine (default: {PORT}, or a free one)"
    )
    parser.add_argument("--by", metavar="NAME", help="your name, for the record of answers (default: your login)")
    parser.add_argument("--read-only", action="store_true", help="only show: the page cannot call or approve")
    parser.add_argument("--no-browser", action="store_true", help="print the link, and open no browser")
    add_shared(parser, "--policy", "--lock", "--journal")


def command(options: argparse.Namespace) -> int:
    """Serve the page until ctrl-C."""
    web.check_packages()
    from ferrule.web.server import open_browser, serve_page
    from ferrule.web.state import Inspector

    options.tools = [*options.places, *(options.tools or ())] or None
    port = _choose_port(options.port)
    person = options.by or getpass.getuser()
    settings: dict[str, Any] = {"person": person, "port": port, "tell": lambda link: warn(f"open {link}")}
    folder = os.fspath(state_folder() / "inspect")
    with contextlib.ExitStack() as stack:
        if not options.no_browser:
            settings["open_link"] = stack.enter_context(open_browser(folder))
        if options.journal is not None and not servers.has_sources(options):
            path = find_journal(options.journal)
            Reader(path).newest(limit=1)  # raises if the file is not a journal
            inspector = Inspector(None, journal=path)
            warn(f"journal: {path}")
            settings["key"] = derive_key(load_key([]), "session")
            with asyncio.Runner() as work:
                return work.run(run_until_signal(partial(serve_page, inspector, **settings)))
        work, extra, changes = stack.enter_context(servers.follow_servers(options))
        key = load_key([])
        runner = make_runner(options, extra, approver=approval.later, resume_key=derive_key(key, "resume"))
        settings["key"] = derive_key(load_key(list_roots([runner])), "session")
        journaled, note = stack.enter_context(_open_journal(work, runner, options.journal, folder))
        local = [tool for tool in runner.tools if extra is None or extra.find(tool.name) is None]
        settings["changes"] = changes and servers.merge_changes(changes, Toolset(local), options.lock)
        inspector = Inspector(journaled, read_only=options.read_only, journal_note=note)
        warn(_describe_runner(journaled, options))
        return work.run(run_until_signal(partial(_serve, journaled, serve_page, inspector, settings)))


def _describe_runner(runner: Runner, options: argparse.Namespace) -> str:
    """Return where the tools come from, what guards them, and where their calls are kept."""
    sources = [*(options.tools or ()), *(options.mcp or ()), *filter(None, [options.openapi])] or [DEFAULT]
    tools = format_count(len(runner.tools), "tool")
    guards = ", ".join(dict.fromkeys(map(guard_name, runner.guards))) or "none"
    journal = "none" if runner.journal is None else getattr(runner.journal, "path", "the runner's own")
    return f"{tools} from {', '.join(sources)}; guards: {guards}; journal: {journal}"


async def _serve(runner: Runner, serve: Any, inspector: Any, settings: dict[str, Any], stop: asyncio.Event) -> None:
    async with runner:
        await serve(inspector, **settings, stop=stop)


def _choose_port(wanted: int | None) -> int:
    """Return the port: the wanted one, the usual one, or 0 for a free one."""
    if wanted is not None:
        if wanted > _MOST_PORT:
            raise UsageError(f"--port {wanted} is not a port: write a number up to {_MOST_PORT}")
        return wanted
    try:
        bind("127.0.0.1", PORT).close()
    except DefinitionError:
        return 0
    return PORT


@contextlib.contextmanager
def _open_journal(work: asyncio.Runner, runner: Runner, path: str | None, folder: str) -> Iterator[tuple[Runner, str]]:
    """Yield the runner with a journal, and a note about it. Without `--journal`, a file lives as long as the server."""
    if path is not None or runner.journal is not None:
        with journals.open_journal(work, runner, path) as journaled:
            yield journaled, ""
        return
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as temporary:
        try:
            private_place(os.path.join(temporary, "calls.db"), list_roots([runner]), working_directory=None)
        except StoreError:  # tools may reach it
            yield runner, ""
            return
        with journals.open_journal(work, runner, os.path.join(temporary, "calls.db")) as journaled:
            yield journaled, _TEMPORARY


def load_key(roots: list[str]) -> bytes:
    """Return the key that is kept between two starts; a new one if tools may reach its file."""
    try:
        place = private_place(configuration_folder() / "inspect.key", roots)
        make_key(place)
        return read_key(place) or secrets.token_bytes(32)
    except StoreError:
        return secrets.token_bytes(32)


def derive_key(key: bytes, purpose: str) -> bytes:
    return hmac.digest(key, f"ferrule inspect {purpose}".encode(), "sha256")
