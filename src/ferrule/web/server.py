"""The page on the loopback, for the one person who started it."""

from __future__ import annotations

import asyncio
import contextlib
import html
import os
import tempfile
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator

from ferrule import Runner, Toolset
from ferrule.mcp.serve._listen import serve_http
from ferrule.web.page_app import PageApp
from ferrule.web.sign_in import SignIn
from ferrule.web.state import Inspector

HOST = "127.0.0.1"


async def serve_page(
    inspector: Inspector,
    *,
    key: bytes,
    person: str,
    port: int,
    tell: Callable[[str], object],
    open_link: Callable[[str], object] = lambda link: None,
    changes: AsyncIterator[Toolset] | None = None,
    stop: asyncio.Event,
) -> None:
    """Serve the page until `stop` is set.

    Args:
        key: Signs the sessions of browsers.
        port: The port; 0 for any free one.
        tell: Is given each link. Only the person may see it.
        open_link: Is given the first link.
        changes: The tools, whenever they change.
    """
    sign_in = SignIn(key, person, tell)
    app = PageApp(inspector, sign_in.authenticate, sign_in=sign_in)

    def ready(url: str) -> None:
        port_text = url.rpartition(":")[2]
        app.serve_only(f"{name}:{port_text}" for name in (HOST, "localhost"))
        link = sign_in.open(url)
        tell(link)
        open_link(link)

    following = asyncio.ensure_future(_follow(app, changes))
    try:
        await serve_http(app, HOST, port, ready, stop, path="")
    finally:
        following.cancel()
        await asyncio.wait([following])


async def _follow(app: PageApp, changes: AsyncIterator[Toolset] | None) -> None:
    if changes is None:
        return
    async for tools in changes:
        runner: Runner | None = app.inspector.runner
        if runner is not None:
            app.use(runner.replace(tools=tools))


@contextlib.contextmanager
def open_browser(folder: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that opens a link in the person's browser.

    The browser is given a private file that leads to the link: others can read the command line of a program.
    """
    files: list[str] = []

    def open_link(link: str) -> None:
        with contextlib.suppress(OSError, webbrowser.Error):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            descriptor, path = tempfile.mkstemp(".html", "open-", folder)  # its mode is 0600
            files.append(path)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(link)}">')
            webbrowser.open(f"file://{path}")

    try:
        yield open_link
    finally:
        for path in files:
            with contextlib.suppress(OSError):
                os.unlink(path)
