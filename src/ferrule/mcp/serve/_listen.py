"""HTTP at one address: uvicorn on a socket that sends answers at once, until it has to end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from ferrule import DefinitionError

_STREAMS_END = 1


class Served(Protocol):
    """An ASGI app that can end: `MCPApp`, or the page of `ferrule inspect`."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...

    def lifespan(self, app: object = None) -> AbstractAsyncContextManager[None]: ...

    async def drain(self) -> None: ...


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine can reach the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def allowed_hosts(host: str, hosts: Iterable[str]) -> list[str]:
    """Return the names allowed in a Host header, besides those of the loopback.

    Raises:
        DefinitionError: The server can be reached under names that nobody gave.
    """
    names = [hosts] if isinstance(hosts, str) else [*hosts]
    if is_loopback(host) or names:
        return names
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            raise DefinitionError(
                f"{host} is every address of this machine: give the name that clients use, hosts=['tools.example.com']"
            )
    return [f"[{host}]" if ":" in host else host]


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Its connections send their data at once.

    Raises:
        DefinitionError: The address cannot be used.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise DefinitionError(f"cannot serve at {host}:{port}: {getattr(error, 'strerror', None) or error}") from None
    # An accepted connection inherits it; without it each answer waits 40 ms for the other side's acknowledgement.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


async def serve_http(
    app: Served,
    host: str,
    port: int,
    ready: Callable[[str], object] | None,
    stop: asyncio.Event | None,
    *,
    path: str = "/mcp",
) -> None:
    """Serve an app until `stop` is set, or until a signal comes if there is none.

    Args:
        ready: Is given the address, with `path`, once the server listens.
    """
    import uvicorn  # comes with `mcp` and `web`

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # the signals are handled below

    stopped = stop or asyncio.Event()
    with bind(host, port) as sock, stop_on_signals(stopped) if stop is None else contextlib.nullcontext():
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=_STREAMS_END
        )
        server = Server(config)
        async with app.lifespan():
            with _log_level(logging.ERROR):
                serving = asyncio.ensure_future(server.serve(sockets=[sock]))
                stopping = asyncio.ensure_future(stopped.wait())
                try:
                    if ready is not None:
                        ready(f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}{path}")
                    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    await app.drain()
                    # Clients of 2025 hold a stream open. It is cancelled below, and uvicorn would report that.
                    with _log_level(logging.CRITICAL):
                        server.should_exit = True
                        await serving
                except BaseException:
                    serving.cancel()
                    await asyncio.wait({serving})
                    raise
                finally:
                    stopping.cancel()


@contextlib.contextmanager
def _log_level(level: int) -> Iterator[None]:
    """Log uvicorn's messages from this level on."""
    logger = logging.getLogger("uvicorn.error")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def stop_on_signals(stop: asyncio.Event, say: Callable[[int], object] = lambda number: None) -> Iterator[list[int]]:
    """Set `stop` at the first ctrl-C or SIGTERM, and cancel what runs here at the second; the third kills the program.

    Args:
        say: Called with the number of the first signal.

    Yields:
        The numbers of the signals that came.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    signals = (signal.SIGINT, signal.SIGTERM)
    came: list[int] = []

    def restore() -> None:
        for one in signals:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.remove_signal_handler(one)

    def on_signal(number: int) -> None:
        came.append(number)
        if len(came) == 1:
            stop.set()
            say(number)
            return
        restore()
        for one in signals:
            signal.signal(one, signal.SIG_DFL)
        if task is not None:
            task.cancel()

    # Windows has no such handlers, and a thread besides the main one cannot set them.
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        for one in signals:
            loop.add_signal_handler(one, on_signal, one)
    try:
        yield came
    except asyncio.CancelledError:
        if len(came) < 2:
            raise
    finally:
        restore()
