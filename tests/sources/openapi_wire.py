"""A server that records every byte that it hears, and answers with the bytes that it was given."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ferrule import Runner, ToolResult
from ferrule.sources import Imported, openapi

Reply = bytes | Callable[[str], bytes]
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


@cache
def certificate() -> str:
    """The file of a certificate of `localhost` that is made for these tests, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), begin, begin.replace(2126))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    written = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "certificate.pem").write_bytes(made.public_bytes(pem) + written)
    return str(folder / "certificate.pem")


def answer(status: str, body: bytes = b"", **headers: str) -> bytes:
    """An answer as it goes over the wire."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def json_answer(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    return answer(status, body, content_type="application/json", **headers)


class Wire:
    """The server; `port` is where it listens.

    Attributes:
        heard: The requests, each as its bytes.
        answers: What is answered, in turn; the last again and again. A function makes an answer of the request's
            address.
    """

    def __init__(self, *answers: Reply, tls: bool = False) -> None:
        self.heard: list[bytes] = []
        self.answers: list[Reply] = [*answers] or [OK]
        self._tls = tls

    async def __aenter__(self) -> Wire:
        context = None
        if self._tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate())
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{'localhost' if self._tls else '127.0.0.1'}:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(_header(head, b"content-length") or 0)
                self.heard.append(head + await reader.readexactly(length))
                reply = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                given = reply if isinstance(reply, bytes) else reply(head.split(b" ", 2)[1].decode())
                writer.write(given)
                await writer.drain()
                if not given:  # it hangs up without an answer
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @property
    def lines(self) -> list[str]:
        """The first line of each request."""
        return [request.partition(b"\r\n")[0].decode() for request in self.heard]

    def header(self, name: str, request: int = -1) -> str | None:
        """What a request says in a header."""
        found = _header(self.heard[request], name.lower().encode())
        return None if found is None else found.decode()

    def body(self, request: int = -1) -> bytes:
        """What stands below the headers of a request."""
        return self.heard[request].partition(b"\r\n\r\n")[2]


def _header(head: bytes, name: bytes) -> bytes | None:
    for line in head.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip()
    return None


def trusting() -> httpx2.AsyncClient:
    """A client that trusts the certificate of the tests."""
    context = ssl.create_default_context(cafile=certificate())
    return httpx2.AsyncClient(verify=context, trust_env=False)


def document(paths: Mapping[str, Any], version: str = "3.1.0", **more: Any) -> dict[str, Any]:
    """A document with these paths."""
    return {"openapi": version, "info": {"title": "T", "version": "1"}, "paths": paths, **more}


def operation(*parameters: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """An operation called `op`, with these parameters."""
    return {"operationId": "op", "parameters": [*parameters], "responses": {"200": {"description": "ok"}}, **more}


def one(method: str, *parameters: Mapping[str, Any], path: str = "/x", **more: Any) -> dict[str, Any]:
    """A document of OpenAPI 3.2 with one operation."""
    return document({path: {method: operation(*parameters, **more)}}, "3.2.0")


def with_body(media: str, schema: Any, *, required: bool = True, **more: Any) -> dict[str, Any]:
    """A document with one operation that has this body."""
    body = {"required": required, "content": {media: {"schema": schema, **more}}}
    return document({"/x": {"post": operation(requestBody=body)}})


def text_parameter(name: str, place: str = "query", **more: Any) -> dict[str, Any]:
    required = {"required": True} if place == "path" else {}
    return {"in": place, "name": name, "schema": {"type": "string"}, **required, **more}


def properties(**schemas: Any) -> dict[str, Any]:
    """The schema of an object with these properties."""
    return {"type": "object", "properties": schemas}


def run(
    given: Any,
    calls: Callable[[Runner, Wire], Awaitable[Any]],
    *answers: Reply,
    tls: bool = False,
    runner: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Any, Wire]:
    """What `calls` gives, made by a runner with the tools of the document, and the server."""
    named = given.get("components", {}).get("securitySchemes", {}) if isinstance(given, dict) else {}
    options.setdefault("credentials", {name: name for name, scheme in named.items() if "$ref" not in scheme})

    async def main() -> tuple[Any, Wire]:
        async with Wire(*answers, tls=tls) as wire:
            if tls:
                async with trusting() as client:
                    tools = openapi(given, server=wire.url, client=client, **options)
                    return await calls(Runner(tools, **(runner or {})), wire), wire
            return await calls(Runner(openapi(given, server=wire.url, **options), **(runner or {})), wire), wire

    return asyncio.run(asyncio.wait_for(main(), 60))


def called(given: Any, arguments: Mapping[str, Any], *answers: Reply, **options: Any) -> tuple[ToolResult, Wire]:
    """The result of one call of the document's first tool, and the server."""

    async def calls(runner: Runner, wire: Wire) -> ToolResult:
        [tool, *_] = runner.tools
        return await runner.run(tool.name, dict(arguments))

    return run(given, calls, *answers, **options)


def imported(given: Any, **options: Any) -> Imported:
    """The tools of a document, with a server that nobody reaches."""
    return openapi(given, **{"server": "https://api.example.com", **options})
