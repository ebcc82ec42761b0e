"""Resources and prompts on the wire: list, read, get and complete. Each runs as a read-only call of its function, with
the guards, limits and observers of the served runner."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import mcp_types as wire
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from ferrule import Media, Runner, Tool, ToolResult
from ferrule.journal import memory
from ferrule.mcp.content import make_block
from ferrule.mcp.serve._resources import Library, Resource
from ferrule.values.content import Block, is_text_type
from ferrule.values.frozen import thaw

Request = ServerRequestContext[Any, Any]
_MOST_CHOICES = 100
"""Most values of one completion; a bound of MCP."""
_MOST_SHOWN = 200


class LibraryHandlers:
    """The handlers of the SDK's server for the resources and prompts of a runner.

    Args:
        library: The resources and prompts.
        is_hidden: Returns whether the client of a request does not see the resource or prompt of a tool.
        run: Runs a tool of the library for a request.
        caching: The fields of each result about caches.
    """

    def __init__(
        self,
        library: Library,
        *,
        is_hidden: Callable[[Request, Tool], bool],
        run: Callable[[Request, Tool, Mapping[str, str]], Awaitable[ToolResult]],
        caching: dict[str, Any],
    ) -> None:
        self._library, self._is_hidden, self._run, self._caching = library, is_hidden, run, caching
        self._wire_resources = [(one, _to_wire_resource(one)) for one in library.resources if not one.is_template]
        self._wire_templates = [(one, _to_wire_template(one)) for one in library.resources if one.is_template]
        self._wire_prompts = [(one, _to_wire_prompt(one.name, one.tool)) for one in library.prompts]

    def register(self, server: Server[Any]) -> None:
        """Add the handlers. A server declares only the capabilities that it has handlers for."""
        add: Any = server.add_request_handler
        if self._library.resources:
            add("resources/list", wire.PaginatedRequestParams, self._list_resources)
            add("resources/templates/list", wire.PaginatedRequestParams, self._list_templates)
            add("resources/read", wire.ReadResourceRequestParams, self._read_resource)
        if self._library.prompts:
            add("prompts/list", wire.PaginatedRequestParams, self._list_prompts)
            add("prompts/get", wire.GetPromptRequestParams, self._get_prompt)
        add("completion/complete", wire.CompleteRequestParams, self._complete)

    # -- lists ---------------------------------------------------------------------------------------------------------

    async def _list_resources(self, request: Request, params: wire.PaginatedRequestParams) -> wire.ListResourcesResult:
        return wire.ListResourcesResult(resources=self._shown(request, params, self._wire_resources), **self._caching)

    async def _list_templates(
        self, request: Request, params: wire.PaginatedRequestParams
    ) -> wire.ListResourceTemplatesResult:
        shown = self._shown(request, params, self._wire_templates)
        return wire.ListResourceTemplatesResult(resource_templates=shown, **self._caching)

    async def _list_prompts(self, request: Request, params: wire.PaginatedRequestParams) -> wire.ListPromptsResult:
        return wire.ListPromptsResult(prompts=self._shown(request, params, self._wire_prompts), **self._caching)

    def _shown(self, request: Request, params: wire.PaginatedRequestParams, listed: list[tuple[Any, Any]]) -> list[Any]:
        """Return the entries that this client sees; they are one page."""
        if params.cursor is not None:
            raise MCPError(wire.INVALID_PARAMS, "Unknown cursor: this list has one page")
        return [shown for one, shown in listed if not self._is_hidden(request, one.tool)]

    # -- read, get, complete -------------------------------------------------------------------------------------------

    async def _read_resource(self, request: Request, params: wire.ReadResourceRequestParams) -> wire.ReadResourceResult:
        for one, _ in (*self._wire_resources, *self._wire_templates):
            values = one.match(params.uri)
            if values is not None and not self._is_hidden(request, one.tool):
                result = _check_result(await self._run(request, one.tool, values))
                contents = [_make_contents(block, params.uri, one, result) for block in result.content]
                return wire.ReadResourceResult(contents=contents, **{**self._caching, "ttl_ms": 0})
        shown = params.uri[:_MOST_SHOWN]
        raise MCPError(wire.INVALID_PARAMS, f"Resource not found: {shown!r}", {"uri": shown})

    async def _get_prompt(self, request: Request, params: wire.GetPromptRequestParams) -> wire.GetPromptResult:
        tool = self._find_prompt(request, params.name)
        result = _check_result(await self._run(request, tool, params.arguments or {}))
        blocks = [make_block(block, place) for place, block in enumerate(result.content)]
        messages = [wire.PromptMessage.model_validate({"role": "user", "content": block}) for block in blocks]
        return wire.GetPromptResult(description=tool.description or None, messages=messages)

    async def _complete(self, request: Request, params: wire.CompleteRequestParams) -> wire.CompleteResult:
        ref, begun = params.ref, params.argument.value.casefold()
        if isinstance(ref, wire.PromptReference):
            tool = self._find_prompt(request, ref.name)
        else:
            tool = self._find_template(request, ref.uri)
        choices = [one for one in find_choices(tool, params.argument.name) if one.casefold().startswith(begun)]
        values, total = choices[:_MOST_CHOICES], len(choices)
        return wire.CompleteResult(
            completion=wire.Completion(values=values, total=total, has_more=total > _MOST_CHOICES)
        )

    def _find_prompt(self, request: Request, name: str) -> Tool:
        for one in self._library.prompts:
            if one.name == name and not self._is_hidden(request, one.tool):
                return one.tool
        raise MCPError(wire.INVALID_PARAMS, f"Unknown prompt: {name[:_MOST_SHOWN]!r}")

    def _find_template(self, request: Request, uri: str) -> Tool:
        for one in self._library.resources:
            if one.uri == uri and not self._is_hidden(request, one.tool):
                return one.tool
        shown = uri[:_MOST_SHOWN]
        raise MCPError(wire.INVALID_PARAMS, f"Resource not found: {shown!r}", {"uri": shown})


def make_reader(runner: Runner, tools: list[Tool]) -> Runner:
    """Return the same runner with the functions of a library for tools.

    Its observers and its journal do not hear of the changed tools: the served ones are the same.
    """
    if not tools:
        return runner
    journal = None if runner.journal is None else memory()
    unobserved = runner.replace(tools=tools, observers=[], journal=journal)
    return unobserved.replace(observers=runner.observers, journal=runner.journal)


def find_choices(tool: Tool, name: str) -> list[str]:
    """Return the values of a parameter whose type is an enum or a Literal, as texts; none for any other type."""
    schema: Mapping[str, Any] = tool.input_schema
    found = schema.get("properties", {}).get(name, {})
    return list(dict.fromkeys(_iter_choices(found, schema.get("$defs", {}))))


def _iter_choices(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[str]:
    reference = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if isinstance(definitions.get(reference), Mapping):
        yield from _iter_choices(definitions[reference], {})  # an enum refers to nothing
    for one in (*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])):
        if one is not None:
            yield one if isinstance(one, str) else json.dumps(thaw(one))
    for part in schema.get("anyOf", ()):
        yield from _iter_choices(part, definitions)


def _check_result(result: ToolResult) -> ToolResult:
    """Return a success.

    Raises:
        MCPError: There is none; the text is the one for models.
    """
    if result.status == "ok" and result.content:
        return result
    code = wire.INVALID_PARAMS if result.status == "invalid" else wire.INTERNAL_ERROR
    raise MCPError(code, result.error or f"it waits for a person, and only tools can: {result.status}")


def _make_contents(
    block: Block, uri: str, resource: Resource, result: ToolResult
) -> wire.TextResourceContents | wire.BlobResourceContents:
    if isinstance(block, Media):
        if block.data is None:
            raise MCPError(wire.INTERNAL_ERROR, "the resource has an address in place of its data")
        if is_text_type(block.mime_type):
            return wire.TextResourceContents(
                uri=uri, mime_type=block.mime_type, text=block.data.decode(errors="replace")
            )
        return wire.BlobResourceContents(uri=uri, mime_type=block.mime_type, blob=base64.b64encode(block.data).decode())
    is_text = isinstance(result.output, str) or len(result.content) > 1
    mime_type = resource.mime_type or ("text/plain" if is_text else "application/json")
    return wire.TextResourceContents(uri=uri, mime_type=mime_type, text=block.text)


def _about(tool: Tool) -> dict[str, Any]:
    icons = thaw(tool.metadata.get("icons"))
    return {"title": tool.title, "description": tool.description or None, "icons": icons}


def _to_wire_resource(one: Resource) -> wire.Resource:
    name = one.tool.name.partition(":")[2]
    return wire.Resource(name=name, uri=one.uri, mime_type=one.mime_type, **_about(one.tool))


def _to_wire_template(one: Resource) -> wire.ResourceTemplate:
    name = one.tool.name.partition(":")[2]
    return wire.ResourceTemplate(name=name, uri_template=one.uri, mime_type=one.mime_type, **_about(one.tool))


def _to_wire_prompt(name: str, tool: Tool) -> wire.Prompt:
    properties: Mapping[str, Any] = tool.input_schema.get("properties", {})
    required = tool.input_schema.get("required", ())
    arguments = [
        wire.PromptArgument(name=key, description=schema.get("description"), required=key in required)
        for key, schema in properties.items()
    ]
    return wire.Prompt(name=name, arguments=arguments, **_about(tool))
