"""Resources and prompts of a served runner, made from functions. This module imports nothing of `mcp`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, overload
from urllib.parse import unquote

from ferrule import DefinitionError, Tool, tool
from ferrule.mcp.icons import Icons, make_icons

_MOST = 1_000
"""Most resources, and most prompts."""
_MOST_URI = 2_000
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s\x00-\x1f\x7f]+")
_VARIABLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_UNSAFE = re.compile(r"[/\\\x00]")


@dataclass(frozen=True, eq=False)
class Resource:
    """A resource, or a template of resources, made by `serve.resource`. See docs/serving-mcp.md#resources-and-prompts.

    Attributes:
        uri: Its address, with `{name}` for each parameter of the function.
        tool: The function, as a tool that only reads.
        mime_type: The type of its texts, or None.
    """

    uri: str
    tool: Tool
    mime_type: str | None

    @property
    def is_template(self) -> bool:
        """Whether the address has variables."""
        return bool(_VARIABLE.search(self.uri))

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the values of the variables in an address, or None if it is not one of this resource.

        A value is one decoded segment. One that leads elsewhere in a path is no match.
        """
        parts, given = self.uri.split("/"), uri.split("/")
        if len(uri) > _MOST_URI or len(parts) != len(given):
            return None
        values: dict[str, str] = {}
        for part, text in zip(parts, given, strict=True):
            variable = _VARIABLE.fullmatch(part)
            if variable is None:
                if part != text:
                    return None
                continue
            value = _decode(text)
            if value is None:
                return None
            values[variable[1]] = value
        return values


def _decode(segment: str) -> str | None:
    try:
        value = unquote(segment, errors="strict")
    except UnicodeDecodeError:
        return None
    return None if value in ("", ".", "..") or _UNSAFE.search(value) else value


@dataclass(frozen=True, eq=False)
class Prompt:
    """A prompt: `serve.prompt` makes one. See docs/serving-mcp.md#resources-and-prompts.

    Attributes:
        name: Its name for clients.
        tool: The function, as a tool that only reads.
    """

    name: str
    tool: Tool


@overload
def resource(
    uri: str,
    function: Callable[..., Any],
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    mime_type: str | None = None,
    icons: Icons = (),
) -> Resource: ...
@overload
def resource(
    uri: str,
    function: None = None,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    mime_type: str | None = None,
    icons: Icons = (),
) -> Callable[[Callable[..., Any]], Resource]: ...
def resource(
    uri: str,
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    mime_type: str | None = None,
    icons: Icons = (),
) -> Resource | Callable[[Callable[..., Any]], Resource]:
    """Return a resource for `serve.mcp(resources=[…])`; without a function, a decorator. See
    docs/serving-mcp.md#resources-and-prompts.

    Args:
        uri: The address. `{name}` as a whole segment is the parameter of that name: `shop://articles/{article}`.
        function: Sync or async; it changes nothing. It returns a text, `Media`, a `ToolResult`, or a value for JSON.
        name: The name for clients; if left out, the function's. Guards and events see `resource:name`.
        title: The name for people.
        description: If left out, the function's docstring.
        mime_type: The type of its texts; if left out, `text/plain`, or `application/json` for a value.
        icons: Addresses of icons.

    Raises:
        DefinitionError: The address is invalid, or its variables are not the function's parameters.
    """
    if function is None:
        return lambda found: resource(
            uri, found, name=name, title=title, description=description, mime_type=mime_type, icons=icons
        )
    address: object = uri
    if not isinstance(address, str) or len(address) > _MOST_URI or not _URI.fullmatch(address):
        raise DefinitionError(f"{str(uri)[:100]!r} is not the address of a resource; write one like 'shop://hours'")
    made = _make_tool("resource", function, name, title, description, icons)
    variables = [match[1] for part in uri.split("/") if (match := _VARIABLE.fullmatch(part))]
    if "{" in _VARIABLE.sub("", uri) or "}" in _VARIABLE.sub("", uri) or len(variables) != len(_VARIABLE.findall(uri)):
        raise DefinitionError(
            f"{uri!r}: a variable is a whole segment between slashes, such as 'shop://articles/{{name}}'"
        )
    parameters: Mapping[str, Any] = made.input_schema.get("properties", {})
    required = made.input_schema.get("required", ())
    if len({*variables}) != len(variables) or not {*required} <= {*variables} <= {*parameters}:
        raise DefinitionError(
            f"the variables of {uri!r} must be the parameters of its function, each once: {sorted(parameters)}"
        )
    return Resource(uri, made, mime_type)


@overload
def prompt(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    icons: Icons = (),
) -> Prompt: ...
@overload
def prompt(
    function: None = None,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    icons: Icons = (),
) -> Callable[[Callable[..., Any]], Prompt]: ...
def prompt(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    icons: Icons = (),
) -> Prompt | Callable[[Callable[..., Any]], Prompt]:
    """Return a prompt for `serve.mcp(prompts=[…])`; without a function, a decorator. See
    docs/serving-mcp.md#resources-and-prompts.

    Args:
        function: Sync or async; it changes nothing. It returns a text, `Media`, or a `ToolResult` with several blocks.
        name: The name for clients; if left out, the function's. Guards and events see `prompt:name`.
        title: The name for people.
        description: If left out, the function's docstring.
        icons: Addresses of icons.

    Raises:
        DefinitionError: The function cannot be called with texts for arguments.
    """
    if function is None:
        return lambda found: prompt(found, name=name, title=title, description=description, icons=icons)
    made = _make_tool("prompt", function, name, title, description, icons)
    return Prompt(made.name.partition(":")[2], made)


def _make_tool(
    kind: str, function: Any, name: str | None, title: str | None, description: str | None, icons: Icons
) -> Tool:
    name = name or str(getattr(function, "__name__", ""))
    if isinstance(function, Tool) or not callable(function) or not name or name == "<lambda>":
        raise DefinitionError(f"a {kind} is a function with a name, not {function!r}")
    about = {"title": title, "icons": make_icons(icons, f"the {kind} {name!r}")}
    metadata = {key: value for key, value in about.items() if value}
    options: dict[str, Any] = {} if description is None else {"description": description}
    made: Tool = tool(function, name=f"{kind}:{name}", read_only=True, metadata=metadata, **options)
    return made


@dataclass(frozen=True)
class Library:
    """The resources and prompts of a server, checked together."""

    resources: tuple[Resource, ...]
    prompts: tuple[Prompt, ...]

    @property
    def tools(self) -> list[Tool]:
        """Their functions, as tools."""
        return [one.tool for one in self.resources] + [one.tool for one in self.prompts]


def make_library(resources: Iterable[object], prompts: Iterable[object]) -> Library:
    """Return the resources and prompts of a server. A plain function is a prompt of its name.

    Raises:
        DefinitionError: There is something else among them, two have one name or address, or there are too many.
    """
    listed: list[Any] = [prompt(one) if callable(one) and not isinstance(one, Tool) else one for one in prompts]
    for one in listed:
        if not isinstance(one, Prompt):
            raise DefinitionError(f"prompts: give functions, or serve.prompt(function), not {one!r}")
    found: list[Any] = [*resources]
    for one in found:
        if not isinstance(one, Resource):
            raise DefinitionError(f"resources: give serve.resource(uri, function), not {one!r}")
    library = Library(tuple(found), tuple(listed))
    if max(len(found), len(listed)) > _MOST:
        raise DefinitionError(f"a server has at most {_MOST:,} resources and {_MOST:,} prompts")
    names = [resource.uri for resource in library.resources] + [made.name for made in library.tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DefinitionError(f"two resources or prompts are called {twice[0]!r}; give one of them another name")
    return library
