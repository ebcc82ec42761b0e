"""Make a `Tool`: by the decorator `tool` with its types, of a definition as data, or of any form in a toolset."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, Unpack, cast, overload

from pydantic import BaseModel

from ferrule.definition.forms import call_interop
from ferrule.definition.handler import unwrap_partial
from ferrule.definition.options import FunctionOptions as Options
from ferrule.definition.options import ToolOptions
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.types import ToolForm
from ferrule.values.context import ToolContext

_DIRECT_FORMS = (type, FunctionType, MethodType, BuiltinFunctionType)
Q = ParamSpec("Q")
T = TypeVar("T")

if TYPE_CHECKING:
    Async: TypeAlias = Coroutine[object, object, T]
    WithContext: TypeAlias = Callable[Concatenate[ToolContext[Any], Q], T]
    LaterContext: TypeAlias = (
        Callable[Concatenate[Any, ToolContext[Any], ...], T]
        | Callable[Concatenate[Any, Any, ToolContext[Any], ...], T]
        | Callable[Concatenate[Any, Any, Any, ToolContext[Any], ...], T]
    )
    """A function with the context as its second to fourth parameter."""

_WORD_START = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
"""The start of a word within the name of a class."""


class Anything:
    """A class for type checkers: only a parameter of type `Any` or `object` accepts its instances."""


class ToolDecorator(Protocol):
    """The types of `tool`.

    Type checkers drop a leading `ToolContext` from the parameters. With the context in the second to fourth place the
    tool takes any parameters; a later one counts as a parameter. The types say nothing about the joined chunks of an
    async generator, nor about the parameters of a function with an `input_schema`. If the first parameter
    accepts anything, it may be the context, and the tool is a plain `Tool`.
    """

    @overload
    def __call__(
        self, fn: Callable[Concatenate[Anything, Q], object], /, name: str | None = ..., **options: Unpack[Options]
    ) -> Tool: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Q, Callable[[], Awaitable[T]]], /, name: str | None = ..., **options: Unpack[Options]
    ) -> Tool[Q, T]: ...
    @overload
    def __call__(self, fn: type[BaseModel], /, name: str | None = ..., **options: Unpack[Options]) -> Tool: ...
    @overload
    def __call__(
        self, fn: Callable[..., AsyncIterator[object]], /, name: str | None = ..., **options: Unpack[Options]
    ) -> Tool: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: WithContext[Q, Async[T]], /, name: str | None = ..., **options: Unpack[Options]
    ) -> Tool[Q, T]: ...
    @overload
    def __call__(
        self, fn: LaterContext[Async[T]], /, name: str | None = ..., **options: Unpack[Options]
    ) -> Tool[..., T]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Q, Async[T]], /, name: str | None = ..., **options: Unpack[Options]
    ) -> Tool[Q, T]: ...
    @overload
    def __call__(self, fn: WithContext[Q, T], /, name: str | None = ..., **options: Unpack[Options]) -> Tool[Q, T]: ...
    @overload
    def __call__(self, fn: LaterContext[T], /, name: str | None = ..., **options: Unpack[Options]) -> Tool[..., T]: ...
    @overload
    def __call__(self, fn: Callable[Q, T], /, name: str | None = ..., **options: Unpack[Options]) -> Tool[Q, T]: ...
    @overload
    def __call__(self, fn: None = ..., /, name: str | None = ..., **options: Unpack[Options]) -> ToolDecorator: ...
    @overload
    def __call__(
        self, fn: Callable[..., object], /, name: str | None = ..., **options: Unpack[ToolOptions]
    ) -> Tool: ...
    @overload
    def __call__(
        self, fn: None = ..., /, name: str | None = ..., **options: Unpack[ToolOptions]
    ) -> Callable[[Callable[..., object]], Tool]: ...


def _cast_decorator(function: Callable[..., object]) -> ToolDecorator:
    return cast("ToolDecorator", function)


@_cast_decorator
def tool(
    handler: Callable[..., object] | None = None, /, name: str | None = None, **options: Unpack[ToolOptions]
) -> object:
    """Make a tool of a function or a handler class: `@tool`, `@tool(read_only=True)`, or `tool(fn, name="…")`.

    See docs/forms.md.

    Without a `name`, the tool has the name of the function, or of the handler class in snake_case. `options` are the
    arguments of `Tool`.

    Raises:
        DefinitionError: The tool could not work. The message says how to change it.
    """
    if handler is None:
        return partial(tool, name=name, **options)
    if isinstance(handler, staticmethod | classmethod):
        raise DefinitionError("put @staticmethod above @tool's function, or use Toolset.of(...) for a class's methods")
    return Tool(_derive_name(handler) if name is None else name, handler, **options)


def _derive_name(handler: object) -> str:
    handler = unwrap_partial(handler)
    if isinstance(handler, type):  # `WriteFile` is write_file, `HTTPGet` http_get
        return re.sub(_WORD_START, "_", handler.__name__).lower()
    name = getattr(handler, "__name__", None) or type(handler).__name__
    if name == "<lambda>":
        raise DefinitionError("a lambda has no name: use tool(fn, name='…')")
    return str(name)


def build_tool(
    definition: Mapping[str, object] | BaseModel,
    handler: Callable[..., object] | None = None,
    **options: Unpack[ToolOptions],
) -> Tool:
    """Make a tool of a definition and a handler. `options` are those of `Tool`, and take precedence. See docs/forms.md.

    The definition has `name`, `description`, `input_schema` and other options of `Tool`, or the shape of OpenAI (both
    APIs), Anthropic, Gemini, Bedrock or MCP. Keys of one API go into `provider`, MCP's annotations into `metadata`. A
    server's own annotations prove nothing: say yourself if the tool only reads (`read_only=True`). Give `strict` to
    `tools(…, strict=…)` of a provider.
    The handler gets the payload, payload and context, or the properties by name.

    Without a handler, the definition has its own `execute(payload, context)`, and every missing flag its safest value:
    the tool changes things and runs alone, and without `check_permissions` each call asks, unless `ask` says otherwise.

    Raises:
        DefinitionError: A key is missing, unknown or wrong.
    """
    return call_interop("from_definition", definition, handler, **options)  # type: ignore[no-any-return]


def to_tool(thing: ToolForm) -> Tool:
    """Return an item of a toolset as a `Tool`.

    Raises:
        DefinitionError: The item has no known form.
    """
    if isinstance(thing, Tool):
        return thing
    if isinstance(thing, _DIRECT_FORMS):
        return tool(thing)
    return call_interop("tool_from_object", thing)  # type: ignore[no-any-return]
