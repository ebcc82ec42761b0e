"""Tools from MCP servers: commands, addresses, servers in this process, or an `mcp.json` of several.

    async with mcp.connect(["python", "my_server.py"]) as toolset:
        runner = Runner(toolset)

See docs/mcp.md. The package `mcp` is imported when a connection is made: `pip install "ferrule[mcp]"`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ferrule import DefinitionError, FerruleError, Toolset
from ferrule.mcp._config import parse_servers
from ferrule.mcp._settings import Bearer, Http, Memory, Mode, OAuth, Stdio
from ferrule.mcp._status import LeftOut, ServerStatus
from ferrule.policy.lock import LockFile, lock_tools

if TYPE_CHECKING:
    from ferrule.mcp._connection import Connection, Listing
    from ferrule.mcp._tools import Tools

__all__ = [
    "Bearer",
    "Http",
    "LeftOut",
    "Memory",
    "Mode",
    "OAuth",
    "ServerStatus",
    "Servers",
    "ServersDownError",
    "Stdio",
    "connect",
]


class ServersDownError(FerruleError):
    """No MCP server started, or a required one did not. The text gives the reason. See docs/mcp.md."""


def connect(
    *servers: object,
    name: str | None = None,
    trusted: bool | Collection[str] = False,
    required: bool = False,
    elicitation: bool = True,
    start_timeout: float = 30.0,
    inputs: Mapping[str, str] | None = None,
    longest_description: int = 8_000,
    lock: str | os.PathLike[str] | None = None,
    lazy: bool = False,
) -> Servers:
    """Connect to MCP servers: an async context manager that gives a toolset with all their tools. See docs/mcp.md.

    Args:
        servers: Each a command as a list of texts, an address, a low-level `Server` of the package `mcp`, `Stdio`,
            `Http` or `Memory`; or a path to an `mcp.json`, or its mapping.
        name: The name of the one server, as a prefix for the names of its tools: `name__tool`.
        trusted: Whether to believe the servers' hints about their tools (read-only, safe to repeat), or the names of
            the servers to believe. Each tool of the other servers counts as one that changes things.
        required: Whether each server must start. Otherwise the tools of a server that did not start are missing.
        elicitation: Whether servers may ask a person, through the runner's approver.
        start_timeout: Seconds for the start of a server, until its tools are listed.
        inputs: The values of `${input:id}` in an `mcp.json`, by id.
        longest_description: Characters at which descriptions of tools are cut, with a note. The Chat Completions of
            OpenAI and Azure take 1,024.
        lock: The file for `Toolset.with_lock`, applied to each toolset, also after a list changed. The file is read for
            each of them, and no runner calls a tool that no longer fits. If it cannot be read then, or has changed
            without a person's trust, all tools are quarantined.
        lazy: Whether to start a server only when one of its tools is called, if the lock file has its tools. Their
            definitions come from that file. A tool that the server lists differently then is not called.

    Raises:
        DefinitionError: An argument describes no server or is out of range, or (on entering) the package `mcp` is
            missing or the lock file cannot be read.
        ServersDownError: On entering, no server started, or a required one did not.
    """
    found = parse_servers(servers, name, inputs or {})
    server_names = {server.name for server in found}
    if not isinstance(trusted, bool):
        if not isinstance(trusted, Collection):
            raise DefinitionError(f"trusted must be true, false or names of servers, not {trusted!r}")
        names = {trusted} if isinstance(trusted, str) else set(trusted)
        if unknown := sorted(names - server_names, key=str):
            raise DefinitionError(
                f"trusted={unknown[0]!r} names no server; their names are {sorted(map(str, server_names))}"
            )
        trusted = frozenset(names)
    seconds: object = start_timeout
    if not (isinstance(seconds, int | float) and seconds > 0):
        raise DefinitionError(f"start_timeout must be a number of seconds, not {start_timeout!r}")
    if type(longest_description) is not int or longest_description < 1:
        raise DefinitionError(f"longest_description must be a number of characters, not {longest_description!r}")
    return Servers(found, trusted, required, elicitation, start_timeout, longest_description, lock, lazy)


class Servers:
    """Connections to MCP servers, made by `connect`; entered once. See docs/mcp.md.

    Each is owned by one task, until the context is left. Calls come from any task of that loop.
    """

    def __init__(
        self,
        servers: list[Stdio | Http | Memory],
        trusted: bool | frozenset[str],
        required: bool,
        elicitation: bool,
        start_timeout: float,
        longest_description: int,
        lock: str | os.PathLike[str] | None,
        lazy: bool = False,
    ) -> None:
        self._servers, self._trusted, self._required = servers, trusted, required
        self._elicitation, self._start_timeout = elicitation, start_timeout
        self._longest_description, self._lock = longest_description, None if lock is None else LockFile(lock)
        self._lazy = lazy
        self._connections: list[Connection] = []
        self._tools: list[Tools] = []
        self._seen: list[set[str]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._toolset = self._listed = Toolset([])
        self._left_out: tuple[LeftOut, ...] = ()
        self._version, self._entered, self._closed = 0, False, False
        self._changed = asyncio.Event()

    @property
    def toolset(self) -> Toolset:
        """The tools as they are now. Tools of a lost server stay, because a call of one starts it again."""
        return self._toolset

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The tools that are not offered, each with the reason."""
        return self._left_out

    @property
    def status(self) -> Mapping[str, ServerStatus]:
        """The state of each server, by its name, or by its address if it has no name."""
        if not self._connections:
            return {server.label: ServerStatus(server.label, "idle") for server in self._servers}
        found = {}
        for connection, tools in zip(self._connections, self._tools, strict=True):
            name = connection.server.label
            about = connection.reason, connection.retry_in, connection.protocol, connection.server_info
            found[name] = ServerStatus(name, connection.state, *about, len(tools.tools), connection.instructions)
        return found

    async def changes(self) -> AsyncIterator[Toolset]:
        """Yield the toolset each time it changes: a server's list changed, or a server started. It ends when the
        context is left. A change since the last toolset comes at once; several changes in between come as one."""
        seen = 0
        for connection in self._connections:
            connection.follow()
        while not self._closed:
            if self._version == seen:
                await self._changed.wait()
                continue
            seen = self._version
            yield self._toolset

    async def __aenter__(self) -> Toolset:
        if self._entered:
            raise RuntimeError("connect(…) can be entered once; call connect(…) again for another connection")
        self._entered = True
        if self._lock is not None:
            self._lock.hold_key()
            lock_tools(Toolset([]), self._lock)  # raises if it cannot be read
        try:
            from ferrule.mcp._connection import Connection
            from ferrule.mcp._tools import Tools
        except ImportError as error:
            raise DefinitionError(
                f'MCP needs the package mcp, which could not be imported ({error}): pip install "ferrule[mcp]"'
            ) from error
        for server in self._servers:
            place = len(self._connections)
            connection = Connection(
                server,
                self._start_timeout,
                self._elicitation,
                partial(self._take, place),
            )
            self._connections.append(connection)
            self._tools.append(Tools(connection, self._is_trusted(server), self._longest_description))
            self._seen.append(set())
            if self._lock is not None:  # a tool that changes has to be noticed before its next call
                connection.follow()
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise
        self._version = 0
        return self._toolset

    async def __aexit__(self, *raised: object) -> None:
        await self._close()

    async def _start(self) -> None:
        """Start all servers at once, except for those whose tools are recalled from the lock file.

        Raises:
            ServersDownError: No server started, or a required one did not.
        """
        for place, connection in enumerate(self._connections):
            if not await self._recall(place):
                connection.start()
            self._tasks.append(asyncio.create_task(connection.run(), name=f"mcp {connection.server.label}"))
        for connection in self._connections:
            if connection.state != "idle":
                await connection.wait_until_settled()
        down = [status for status in self.status.values() if status.state == "down"]
        if down and (self._required or len(down) == len(self._connections)):
            raise ServersDownError("; ".join(f"the MCP server {one.name} is down: {one.reason}" for one in down))

    async def _close(self) -> None:
        self._closed = True
        self._changed.set()
        for connection in self._connections:
            connection.close()
        cancelled: asyncio.CancelledError | None = None
        while left := [task for task in self._tasks if not task.done()]:
            try:
                await asyncio.wait(left)
            except asyncio.CancelledError as error:  # a second one would leave processes behind; each wait ends
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def _recall(self, place: int) -> bool:
        """Take over a server's tools from the lock file, if that has them. Return whether it has."""
        if not self._lazy or self._lock is None:
            return False
        from ferrule.mcp._lazy import recall_listing
        from ferrule.mcp._tools import Tools

        connection = self._connections[place]
        probe = Tools(connection, self._is_trusted(connection.server), self._longest_description)
        listing = await recall_listing(connection.server, probe, self._lock.read())
        if listing is None:
            return False
        await self._take(place, listing, lambda: False)
        return True

    def _is_trusted(self, server: Stdio | Http | Memory) -> bool:
        return self._trusted if isinstance(self._trusted, bool) else server.name in self._trusted

    async def _take(self, place: int, listing: Listing, is_late: Callable[[], bool]) -> None:
        """Take over a server's list, and withdraw all tools, of earlier lists too, that are not as accepted."""
        await self._take_over(place, listing, is_late)
        if self._lock is not None:
            from ferrule.mcp._lazy import find_withdrawn

            for connection, tools, seen in zip(self._connections, self._tools, self._seen, strict=True):
                seen.update(tool.metadata["mcp"]["name"] for tool in tools.tools)
                connection.withdrawn = find_withdrawn(seen, tools.tools, self._toolset)

    async def _take_over(self, place: int, listing: Listing, is_late: Callable[[], bool]) -> None:
        """Take over a server's list, as far as there is time."""
        from ferrule.mcp._tools import remove_duplicates

        if not await self._tools[place].take(listing, is_late):
            return
        tools, left_out = remove_duplicates(self._tools)
        self._left_out = tuple(left_out)
        if tools == list(self._listed):
            return
        listed = toolset = self._listed = Toolset(tools)
        if self._lock is not None:
            toolset = await asyncio.to_thread(_locked_or_aside, listed, self._lock)
        if listed is not self._listed:  # there is a later one by now
            return
        self._toolset = toolset
        self._version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _locked_or_aside(tools: Toolset, file: LockFile) -> Toolset:
    try:
        return lock_tools(tools, file)
    except DefinitionError as error:
        return Toolset(tool.with_quarantine(str(error)) for tool in tools)
