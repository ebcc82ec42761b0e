"""Real web servers on loopback, names that lead anywhere, and a network of two servers that stands for the Internet."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

TLS = httpx2.create_ssl_context()
PUBLIC = {"93.184.216.34", "2606:4700::1111"}


class Server(ThreadingHTTPServer):
    """A real server that notes the connections, and the host and path of each request, and redirects as it is told."""

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        self.hits: list[str] = []
        self.connections = 0
        self.redirects: dict[str, str] = {}
        super().__init__((address, port), Answering)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def get_request(self) -> tuple[Any, Any]:
        self.connections += 1
        return super().get_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client need not read what it follows
            super().handle_error(request, client_address)


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        url = f"http://{self.headers['host']}{self.path}"
        self.server.hits.append(url)
        location = self.server.redirects.get(url)
        self.send_response(302 if location else 200)
        if location:
            self.send_header("location", location)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *arguments: Any) -> None: ...


def make_neighbours(first: str, second: str) -> tuple[Server, Server]:
    """Make servers of two addresses at one port. Another program may hold the port at the second: then try the next."""
    while True:
        one = Server(first)
        try:
            return one, Server(second, one.port)
        except OSError:
            one.server_close()


@contextmanager
def serving(*servers: Server) -> Iterator[None]:
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


class Names:
    """A resolver: what each name has at successive look-ups, the last from then on."""

    def __init__(self, names: dict[str, list[list[str]]]) -> None:
        self.names = {name: iter(found) for name, found in names.items()}
        self.last: dict[str, list[str]] = {}

    def __call__(self, name: str) -> list[str]:
        if name not in self.names:
            raise socket.gaierror(f"no such name: {name}")
        self.last[name] = next(self.names[name], self.last.get(name, []))
        return self.last[name]


class Internet(httpx2.AsyncHTTPTransport):
    """Every public address is one real server, and every other one is another, whatever the port."""

    def __init__(self, public: Server, other: Server) -> None:
        super().__init__(verify=TLS, limits=httpx2.Limits(max_keepalive_connections=0))
        self.public, self.other = public, other

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        there = self.public if request.url.host in PUBLIC else self.other
        to = request.url.copy_with(scheme="http", host="127.0.0.1", port=there.port)
        return await super().handle_async_request(
            httpx2.Request(request.method, to, headers=request.headers, stream=request.stream)
        )
