"""The forms in which a user names an MCP server. Nothing here speaks to any server."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from ferrule import DefinitionError, ToolContext
from ferrule.security.masking import mask_credentials
from ferrule.security.similar_names import lookalike_key

Mode: TypeAlias = Literal["auto", "legacy", "2026-07-28"]
"""The revisions spoken with a server. See docs/mcp.md."""
_LEAST_RANDOM = 20
"""Least characters of letters and digits in a part of an address to count as random."""
_MODES = ("auto", "legacy", "2026-07-28")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The fields of all forms of a server.

    Attributes:
        name: The prefix of its tools' names, before two underscores, and their tag; `None` for no prefix.
        mode: The revisions to speak: `"auto"` asks the server, `"legacy"` is one of those before 2026-07-28.
    """

    name: str | None = None
    mode: Mode = "auto"

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.mode not in _MODES:
            raise DefinitionError(f"mode must be one of {', '.join(map(repr, _MODES))}, not {self.mode!r}")

    @property
    def address(self) -> str:
        """The server's address for people: without arguments, parameters and secrets."""
        raise NotImplementedError

    @property
    def identity(self) -> Sequence[str]:
        """The texts that identify the server: also the parts missing in `address`, but no credentials, because these
        change."""
        raise NotImplementedError

    @property
    def secrets(self) -> Sequence[str]:
        """The texts to hide in everything about the server, as far as they are known before a connection."""
        return ()

    @property
    def label(self) -> str:
        """The name, or else the address."""
        return self.name or self.address


@dataclass(frozen=True)
class Stdio(ServerSettings):
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
        to_texts("the command", [self.command])
        if not self.command.strip():
            raise DefinitionError("the command of an MCP server is empty")
        object.__setattr__(self, "args", to_texts("args", self.args))
        object.__setattr__(self, "env", _to_text_mapping("env", self.env))

    @property
    def address(self) -> str:
        return os.path.basename(self.command)

    @property
    def secrets(self) -> Sequence[str]:
        return [*self.env.values()]

    @property
    def identity(self) -> Sequence[str]:
        return "stdio", self.command, *self.args, "" if self.cwd is None else os.fsdecode(self.cwd)


@dataclass(frozen=True, kw_only=True)
class OAuth:
    """OAuth for a server over HTTP, by the SDK's own client. See docs/mcp.md#a-server-that-wants-to-know-who-you-are.

    Attributes:
        store: The storage of tokens: a file only this user may read, or a `TokenStorage` of the package `mcp`.
        scopes: The scopes to ask for; if left out, those that the server names.
        client_name: The name that the authorization server shows.
        client_metadata_url: The address of this client's own description, for servers that read it instead of
            registering.
        client_id: The id of a client that was registered by hand with the authorization server `issuer`.
        client_secret: The client's secret, if it has one.
        issuer: The authorization server of `client_id`, by its own name. If an MCP server names another one, nobody is
            asked there.
        redirect_port: The port of this machine for the answer, if one was registered: its address is
            `http://127.0.0.1:<port>/callback`. If left out, a free port.
        open_browser: Shows a person the address, a function or a coroutine function of it; if left out, the browser is
            opened.
        timeout: Seconds for a person's answer.
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
        object.__setattr__(self, "scopes", to_texts("scopes", self.scopes))
        if not isinstance(self.store, str | os.PathLike) and not hasattr(self.store, "get_tokens"):
            raise DefinitionError("store= must be a path, or a TokenStorage with get_tokens and set_tokens")
        if self.client_secret is not None and self.client_id is None:
            raise DefinitionError("client_secret= needs client_id=")
        if self.client_id is not None and self.issuer is None:
            raise DefinitionError("client_id= needs its authorization server: issuer='https://…'")
        if self.client_id is not None and self.client_metadata_url is not None:
            raise DefinitionError("give client_id= or client_metadata_url=, not both")


@dataclass(frozen=True)
class Bearer:
    """A bearer token for each call, the token of the call's user. See docs/mcp.md#one-token-for-each-user.

    Attributes:
        token: A function, or a coroutine function, of the call's context, such as `lambda context:
            context.secrets["tickets"]`. If it returns no token, or raises, nothing is sent.
    """

    token: Callable[[ToolContext], str | Awaitable[str | None] | None] = field(repr=False)

    def __post_init__(self) -> None:
        if not callable(self.token):
            raise DefinitionError("Bearer(…) takes a function of the call's context; put a fixed token into headers=")


@dataclass(frozen=True)
class Http(ServerSettings):
    """A server at an address, spoken to by Streamable HTTP. See docs/mcp.md.

    Attributes:
        url: The address, `http://` or `https://`.
        headers: Headers of every request.
        auth: The signer of requests: `mcp.OAuth(…)`, `mcp.Bearer(…)`, or any `Auth` of httpx2.
        authorization_servers: Addresses allowed for requests of `auth` although they are not public, or not `https`. A
            server may not name such addresses otherwise. See docs/mcp.md#a-server-that-wants-to-know-who-you-are.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    auth: Any = field(default=None, repr=False)
    authorization_servers: Sequence[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        to_texts("the address", [self.url])
        if not is_address(self.url):
            raise DefinitionError(f"the address of an MCP server must begin with http:// or https://, not {self.url!r}")
        object.__setattr__(self, "headers", _to_text_mapping("headers", self.headers))
        named = to_texts("authorization_servers", self.authorization_servers)
        if wrong := [address for address in named if not is_address(address)]:
            raise DefinitionError(f"authorization_servers must begin with http:// or https://, not {wrong[0]!r}")
        object.__setattr__(self, "authorization_servers", named)

    @property
    def address(self) -> str:
        return re.split(r"[/?#]", self.url.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]

    @property
    def identity(self) -> Sequence[str]:
        parts = urlsplit(self.url)
        place = parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.rpartition("@")[2].lower(), fragment="")
        return "http", place.geturl()

    @property
    def secrets(self) -> Sequence[str]:
        """The headers' values, the client secret, and the password and the credentials in the address. A part of the
        address counts as a credential by its name, or if it looks like one, or like no word."""
        parts = urlsplit(self.url)
        named = [*parse_qsl(parts.query), *[("", unquote(one)) for one in parts.path.split("/")]]
        found = [value for name, value in named if _is_credential(name, value)]
        client_secret = getattr(self.auth, "client_secret", None)
        passwords = (unquote(parts.password or ""), client_secret if isinstance(client_secret, str) else "")
        return [
            *self.headers.values(),
            *filter(None, passwords),
            *{form for one in found for form in (one, quote(one))},
        ]

    def __repr__(self) -> str:
        return f"Http({self.address!r}, name={self.name!r})"


@dataclass(frozen=True)
class Memory(ServerSettings):
    """A low-level `mcp.server.Server` in this very process, for tests and for servers at hand anyway. See docs/mcp.md.

    Attributes:
        server: The server.
    """

    server: Any

    @property
    def address(self) -> str:
        return str(getattr(self.server, "name", "in memory"))

    @property
    def identity(self) -> Sequence[str]:
        return "memory", self.address


Server: TypeAlias = Stdio | Http | Memory


def _is_credential(name: str, value: str) -> bool:
    """Return whether a part of an address, or a parameter of it, seems to be a credential."""
    text = f"{name}={value}" if name else value
    random = len(value) >= _LEAST_RANDOM and re.search("[0-9]", value) and re.search("[A-Za-z]", value)
    return bool(random) or mask_credentials(text) != text


def is_address(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def check_name(name: object) -> None:
    """Check the name of a server. The names of two servers' tools must never be equal: `name__tool` is split at the
    first two underscores.

    Raises:
        DefinitionError: It is no such name; the text gives the rule.
    """
    if name is None:
        return
    seen = lookalike_key(name) if isinstance(name, str) else ""
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-][\w. -]{0,63}", name) or "__" in seen or seen[-1] == "_":
        raise DefinitionError(
            f"an MCP server's name must be 1 to 64 letters, digits, '.', '-', '_' and spaces, with no two "
            f"underscores in a row and none at its end, not {name!r}: it is a prefix of its tools' names"
        )


def to_texts(what: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise DefinitionError(f"{what} of an MCP server must be a list of texts, not {value!r}")
    found = tuple(value)
    for item in found:
        if not isinstance(item, str):
            raise DefinitionError(f"{what} of an MCP server must be a list of texts, and {item!r} is not a text")
    return found


def _to_text_mapping(what: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise DefinitionError(f"{what} of an MCP server must be a mapping of texts, not {type(value).__name__}")
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, str):  # the value may be a secret
            raise DefinitionError(f"{what} of an MCP server must be a mapping of texts, and {key!r} has another value")
    return dict(value)
