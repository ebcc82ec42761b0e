"""The HTTP client of a connection: a request that fails is an answer to it, and ends no other."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

import httpx2
import mcp_types as types
from mcp.client.streamable_http import MCP_SESSION_ID
from mcp.shared.exceptions import MCPError

from ferrule.values.masking import masked_text

_TIMEOUT = httpx2.Timeout(30.0, read=300.0)
"""As the SDK's own client has it: a server may hold the stream of an answer open."""
_NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_LEAVE_SECONDS = 2.0
_FORGOTTEN, _BROKEN = "forgotten", "broken"
_MOST_BODY = 100_000_000
_OF_THE_BODY = ("content-encoding", "content-length", "transfer-encoding")


class HttpClient(httpx2.AsyncClient):
    """A client whose failures to reach the server are errors in JSON-RPC: the SDK's transport would end with them, and
    every other request with it."""

    def __init__(self, headers: dict[str, str], auth: Any) -> None:
        super().__init__(headers=headers, auth=auth, timeout=_TIMEOUT)
        self._mark = secrets.token_hex(8)

    def was_not_sent(self, error: MCPError) -> bool:
        """Whether this client says, and not the server, that there was no connection to send a request by."""
        data = error.data
        return isinstance(data, dict) and data.get(self._mark) is True

    def has_broken(self, error: MCPError) -> bool:
        """Whether this client says, and not the server, that the connection broke before the answer."""
        data = error.data
        return isinstance(data, dict) and data.get(self._mark) == _BROKEN

    def has_forgotten(self, error: MCPError) -> bool:
        """Whether the server has forgotten the session, and did not look at the request."""
        data = error.data
        return isinstance(data, dict) and data.get(self._mark) == _FORGOTTEN

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; what keeps an answer from coming is one."""
        try:
            async with asyncio.timeout(_LEAVE_SECONDS if request.method == "DELETE" else None):
                response = await super().send(request, **options)
            if response.headers.get("content-type", "").lower().startswith("application/json"):
                response = await self._read(request, response)
        except TimeoutError:  # who leaves a session does not wait for a server that says nothing to it
            return self._error(request, 503, types.CONNECTION_CLOSED, f"no answer within {_LEAVE_SECONDS:g} s")
        except httpx2.RequestError as error:
            not_sent = isinstance(error, _NOT_CONNECTED)
            text = masked_text(error)
            why = f"{type(error).__name__}: {text}" if text else type(error).__name__
            return self._error(request, 503, types.CONNECTION_CLOSED, why, {self._mark: True if not_sent else _BROKEN})
        status = response.status_code
        if status < 400:
            return response
        code = _error_code(response)
        if status == 404 and MCP_SESSION_ID in request.headers and code != types.METHOD_NOT_FOUND:
            await response.aclose()
            return self._error(request, status, types.INVALID_REQUEST, "no such session", {self._mark: _FORGOTTEN})
        if code is not None or status == 404:  # of all others without a code, the SDK makes one text
            return response
        await response.aclose()
        why = f"HTTP {status} {response.reason_phrase}".strip()
        return self._error(request, status, types.INTERNAL_ERROR, why)

    async def _read(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """The response with its whole body, which is bounded here: the SDK reads what comes.

        Raises:
            RequestError: where it breaks off, or cannot be read.
        """
        body = bytearray()
        try:
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > _MOST_BODY:
                    why = f"its answer has more than {_MOST_BODY:,} bytes"
                    return self._error(request, 502, types.INTERNAL_ERROR, why)
        finally:
            await response.aclose()
        kept = [(key, value) for key, value in response.headers.multi_items() if key.lower() not in _OF_THE_BODY]
        return httpx2.Response(response.status_code, headers=kept, content=bytes(body), request=request)

    def _error(
        self, request: httpx2.Request, status: int, code: int, message: str, data: Any = None
    ) -> httpx2.Response:
        error = {"code": code, "message": message, **({} if data is None else {"data": data})}
        body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
        return httpx2.Response(status, headers={"content-type": "application/json"}, content=body, request=request)


def _error_code(response: httpx2.Response) -> object:
    """The code of the error in JSON-RPC that a response holds; `None` where it holds none."""
    try:
        return response.json()["error"]["code"] if response.is_closed else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
