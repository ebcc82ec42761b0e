"""Which MCP servers there are: the forms in which a user names one, and `mcp.json`. Nothing here speaks to any."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from ferrule import DefinitionError
from ferrule.arguments.names import as_seen

Mode: TypeAlias = Literal["auto", "legacy", "2026-07-28"]
"""Which revisions are spoken with a server. See docs/mcp.md."""
_MODES = ("auto", "legacy", "2026-07-28")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}")
_MOST_CONFIG = 1_000_000
_KEYS_OF_STDIO = {"command", "args", "env", "cwd"}
_KEYS_OF_HTTP = {"url", "headers"}
_KEYS_OF_BOTH = {"type", "disabled"}
_TYPES = {"stdio": "stdio", "http": "http", "streamable-http": "http", "streamableHttp": "http"}


@dataclass(frozen=True, kw_only=True)
class Named:
    """What all forms of a server have.

    Attributes:
        name: What stands before the names of its tools, with two underscores, and is their tag; `None` for no prefix.
        mode: Which revisions are spoken: `"auto"` asks the server, `"legacy"` is one of those before 2026-07-28.
    """

    name: str | None = None
    mode: Mode = "auto"

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.mode not in _MODES:
            raise DefinitionError(f"mode is one of {', '.join(map(repr, _MODES))}, not {self.mode!r}")

    @property
    def address(self) -> str:
        """What it is, for people: without arguments, parameters and secrets."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """The name, or else what it is."""
        return self.name or self.address


@dataclass(frozen=True)
class Stdio(Named):
    """A server that is a program, spoken to over its standard input and output. See docs/mcp.md.

    Attributes:
        command: The program.
        args: Its arguments.
        env: Environment variables beyond the few that it gets (`PATH`, `HOME` and the like).
        cwd: Its working directory.
    """

    command: str
    args: Sequence[str] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _words_of("the command", [self.command])
        if not self.command.strip():
            raise DefinitionError("the command of an MCP server is empty")
        object.__setattr__(self, "args", _words_of("args", self.args))
        object.__setattr__(self, "env", _text_values("env", self.env))

    @property
    def address(self) -> str:
        return os.path.basename(self.command)


@dataclass(frozen=True, kw_only=True)
class OAuth:
    """OAuth for a server over HTTP, by the SDK's own client. See docs/mcp.md#a-server-that-wants-to-know-who-you-are.

    Attributes:
        store: Where tokens are kept: a file, of which only this user may read, or a `TokenStorage` of the package
            `mcp`.
        scopes: What is asked for; left out, what the server says.
        client_name: As the authorization server shows it.
        client_metadata_url: Where this client describes itself, for servers that read it instead of registering.
        client_id: Of a client that was registered with the authorization server by hand, which is then not asked to.
        client_secret: What it proves that it is that client by, where it was given one.
        issuer: The authorization server that `client_id` is of, as that names itself: an MCP server that names another
            one gets no secret there. Needed with `client_secret`.
        redirect_port: The port of this machine to which the answer comes, where one was registered: its address is
            `http://127.0.0.1:<port>/callback`. Left out, one that is free.
        open_browser: Shows a person the address, a function or a coroutine function of it; left out, the browser is
            opened.
        timeout: Seconds that a person has.
    """

    store: Any = field(repr=False)
    scopes: Sequence[str] = ()
    client_name: str = "Ferrule"
    client_metadata_url: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    issuer: str | None = None
    redirect_port: int | None = None
    open_browser: Callable[[str], object] | None = field(default=None, repr=False)
    timeout: float = 300.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "scopes", _words_of("scopes", self.scopes))
        if not isinstance(self.store, str | os.PathLike) and not hasattr(self.store, "get_tokens"):
            raise DefinitionError("store= is a path, or a TokenStorage with get_tokens and set_tokens")
        if self.client_secret is not None and self.client_id is None:
            raise DefinitionError("client_secret= is of a client_id=, which is missing")
        if self.client_secret is not None and self.issuer is None:
            raise DefinitionError("client_secret= goes to one authorization server: name it by issuer='https://…'")
        if self.client_id is not None and self.client_metadata_url is not None:
            raise DefinitionError("a client is known by client_id= or by client_metadata_url=, not by both")


@dataclass(frozen=True)
class Http(Named):
    """A server at an address, spoken to by Streamable HTTP. See docs/mcp.md.

    Attributes:
        url: The address, `http://` or `https://`.
        headers: Headers of every request.
        auth: What signs requests: `mcp.OAuth(…)`, or any `Auth` of httpx2.
        authorization_servers: Addresses to which requests of `auth` may go though they are not public, or not `https`;
            what the server names may otherwise not. See docs/mcp.md#a-server-that-wants-to-know-who-you-are.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    auth: Any = field(default=None, repr=False)
    authorization_servers: Sequence[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        _words_of("the address", [self.url])
        if not is_address(self.url):
            raise DefinitionError(f"the address of an MCP server begins with http:// or https://, not {self.url!r}")
        object.__setattr__(self, "headers", _text_values("headers", self.headers))
        named = _words_of("authorization_servers", self.authorization_servers)
        if wrong := [address for address in named if not is_address(address)]:
            raise DefinitionError(f"authorization_servers begin with http:// or https://, not {wrong[0]!r}")
        object.__setattr__(self, "authorization_servers", named)

    @property
    def address(self) -> str:
        return re.split(r"[/?#]", self.url.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]

    def __repr__(self) -> str:
        return f"Http({self.address!r}, name={self.name!r})"


@dataclass(frozen=True)
class Memory(Named):
    """A low-level `mcp.server.Server` in this very process, for tests and for what is at hand anyway. See docs/mcp.md.

    Attributes:
        server: The server.
    """

    server: Any

    @property
    def address(self) -> str:
        return str(getattr(self.server, "name", "in memory"))


Server: TypeAlias = Stdio | Http | Memory


def is_address(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def check_name(name: object) -> None:
    """A name from which no two servers' tools can meet: `name__tool` is taken apart at the first two underscores.

    Raises:
        DefinitionError: saying what would be right.
    """
    if name is None:
        return
    seen = as_seen(name) if isinstance(name, str) else ""
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-][\w. -]{0,63}", name) or "__" in seen or seen[-1] == "_":
        raise DefinitionError(
            f"an MCP server's name is 1 to 64 letters, digits, '.', '-', '_' and blanks, with no two underscores in a "
            f"row and none at its end, not {name!r}: it stands before the names of its tools"
        )


def servers_of(given: Sequence[object], name: str | None) -> list[Server]:
    """The servers that a user named, each form as what it is; several have names.

    Raises:
        DefinitionError: for what is no server, and for two of one name.
    """
    found = [server for one in given for server in _servers(one)]
    if name is not None:
        if len(found) != 1:
            raise DefinitionError(f"name={name!r} is for one server, and there are {len(found)}")
        found = [replace(found[0], name=name)]
    if not found and not any(isinstance(one, Mapping | str | os.PathLike) for one in given):
        raise DefinitionError("connect() takes at least one server: a command, an address, or an mcp.json")
    if len(found) > 1 and (unnamed := [server.address for server in found if server.name is None]):
        raise DefinitionError(
            f"of several MCP servers each has a name, which stands before its tools': {unnamed[0]!r} has none; write "
            "mcp.Stdio(…, name='files'), mcp.Http(…, name='web') or mcp.Memory(…, name='own')"
        )
    taken: dict[str, str] = {}
    for server in found:
        if server.name is not None and (other := taken.setdefault(as_seen(server.name), server.name)) != server.name:
            raise DefinitionError(f"two MCP servers are called {other!r} and {server.name!r}, which look the same")
    if len(taken) < sum(server.name is not None for server in found):
        names = [server.name for server in found]
        raise DefinitionError(f"two MCP servers are called {next(n for n in names if names.count(n) > 1)!r}")
    return found


def _servers(one: object) -> list[Server]:
    if isinstance(one, Stdio | Http | Memory):
        return [one]
    if isinstance(one, str) and is_address(one):
        return [Http(one)]
    if isinstance(one, str | os.PathLike):
        return read_config(one)
    if isinstance(one, Mapping):
        return servers_of_config(cast("Mapping[str, Any]", one), "the mapping")
    if isinstance(one, list | tuple):
        if not one:
            raise DefinitionError("the command of an MCP server is a list of texts, and this one is empty")
        words = _words_of("the command", one)
        return [Stdio(words[0], words[1:])]
    if hasattr(one, "create_initialization_options"):
        return [Memory(one)]
    raise DefinitionError(
        f"{one!r} is no MCP server: give a command as a list, an address, a path to an mcp.json or its mapping, or a "
        "low-level Server"
    )


def read_config(path: str | os.PathLike[str]) -> list[Server]:
    """The servers of an `mcp.json`.

    Raises:
        DefinitionError: for what cannot be read, and for every key that says nothing here.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_CONFIG + 1)
        if len(text) > _MOST_CONFIG:
            raise DefinitionError(f"{str(file)!r} is no mcp.json: it has more than {_MOST_CONFIG:,} bytes")
        found = json.loads(text, object_pairs_hook=_each_once)
    except OSError as error:
        raise DefinitionError(f"{str(file)!r} cannot be read: {error.strerror}") from None
    except _Doubled as error:
        raise DefinitionError(f"{str(file)!r}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise DefinitionError(f"{str(file)!r} is no JSON: {error}") from None
    return servers_of_config(found, repr(str(file)))


class _Doubled(ValueError):
    """A key that an object of JSON has twice."""


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object; `json` would keep the last of two keys, and tell nobody."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Doubled(f"{key!r} stands twice in one object, where each server and each key stands once")
        found[key] = value
    return found


def servers_of_config(config: object, where: str) -> list[Server]:
    """The servers of the content of an `mcp.json`, without those that are `disabled`."""
    if not isinstance(config, Mapping) or not isinstance(config.get("mcpServers"), Mapping):
        raise DefinitionError(f'{where} has no servers: an mcp.json is {{"mcpServers": {{"name": {{"command": …}}}}}}')
    if others := sorted(config.keys() - {"mcpServers", "$schema"}):
        raise DefinitionError(f"{where}: {others[0]!r} is not known; an mcp.json has 'mcpServers' alone")
    found = [_server(name, entry, where) for name, entry in config["mcpServers"].items()]
    return [server for server in found if server is not None]


def _server(name: str, entry: object, where: str) -> Server | None:
    about = f"{where}, server {name!r}"
    if not isinstance(entry, Mapping):
        raise DefinitionError(f"{about}: it is an object with 'command' or 'url', not {entry!r}")
    keys = set(entry)
    if ("command" in keys) == ("url" in keys):
        raise DefinitionError(f"{about}: it has either 'command' or 'url'")
    kind = "stdio" if "command" in keys else "http"
    known = _KEYS_OF_BOTH | (_KEYS_OF_STDIO if kind == "stdio" else _KEYS_OF_HTTP)
    if unknown := sorted(keys - known):
        raise DefinitionError(
            f"{about}: {unknown[0]!r} is not known, and would say nothing; the keys are {', '.join(sorted(known))}"
        )
    if "type" in keys and (not isinstance(entry["type"], str) or _TYPES.get(entry["type"]) != kind):
        raise DefinitionError(
            f"{about}: 'type' is {entry['type']!r}; with {'command' if kind == 'stdio' else 'url'!r} it is "
            f"{'stdio' if kind == 'stdio' else 'http'!r}"
        )
    disabled = entry.get("disabled", False)
    if not isinstance(disabled, bool):
        raise DefinitionError(f"{about}: 'disabled' is true or false, not {disabled!r}")
    if disabled:
        return None
    try:
        values = {key: _filled(entry[key], about) for key in keys - _KEYS_OF_BOTH}
        return Stdio(name=name, **values) if kind == "stdio" else Http(name=name, **values)
    except DefinitionError as error:
        raise DefinitionError(f"{about}: {error}") from None if about in str(error) else error


def _filled(value: object, about: str) -> Any:
    """The value with variables of the environment in the place of `${VAR}` and `${VAR:-default}`."""
    if isinstance(value, Mapping):
        return {key: _filled(item, about) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, about) for item in value]
    if not isinstance(value, str):
        return value

    def variable(found: re.Match[str]) -> str:
        name, default = found.groups()
        given = os.environ.get(name)
        if not given and default is not None:  # as a shell does it: an empty one counts as none
            given = default
        if given is None:
            raise DefinitionError(f"the environment has no {name}; write ${{{name}:-default}} for one that may be left")
        return given

    return _VARIABLE.sub(variable, value)


def _words_of(what: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise DefinitionError(f"{what} of an MCP server is a list of texts, not {value!r}")
    found = tuple(value)
    for item in found:
        if not isinstance(item, str):
            raise DefinitionError(f"{what} of an MCP server is a list of texts, and {item!r} is none")
    return found


def _text_values(what: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise DefinitionError(f"{what} of an MCP server is a mapping of texts, not {type(value).__name__}")
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, str):  # the value may be a secret
            raise DefinitionError(f"{what} of an MCP server is a mapping of texts, and that of {key!r} is none")
    return dict(value)
