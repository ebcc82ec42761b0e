"""`tool`, the decorator that makes a `Tool` of a function or a handler class, and what a type checker makes of it; and
what makes one of any other form."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, Unpack, cast, overload

from pydantic import BaseModel

from ferrule.definition.forms import of_others
from ferrule.definition.handler import whole
from ferrule.definition.options import FunctionOptions as Options
from ferrule.definition.options import ToolOptions
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.types import ToolForm
from ferrule.values.context import ToolContext

_DEFINED_ALONE = (type, FunctionType, MethodType, BuiltinFunctionType)
Q = ParamSpec("Q")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Async: TypeAlias = Coroutine[object, object, T]
Leading: TypeAlias = Callable[Concatenate[ToolContext[Any], Q], T]


Placed: TypeAlias = (
    Callable[Concatenate[Any, ToolContext[Any], ...], T]
    | Callable[Concatenate[Any, Any, ToolContext[Any], ...], T]
    | Callable[Concatenate[Any, Any, Any, ToolContext[Any], ...], T]
)
"""What takes the context in the second to the fourth place."""

_NEXT_WORD = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
"""Where a word begins within the name of a class."""


class HandlerInstance(Protocol[T_co]):
    """An object of a handler class, whose constructor has the parameters."""

    def __call__(self) -> Awaitable[T_co]: ...


class Anything:
    """A class that nobody names: only a parameter that takes anything, such as `Any`, takes one of it."""


class ToolDecorator(Protocol):
    """The forms of `tool`. A leading `ToolContext` drops out of the parameters; with one in the second to the fourth
    place the tool takes any, and one further on is a parameter as any other.

    What an async generator yields together is not told to type checkers, nor what the parameters of a function with
    `args_model` or `input_schema` are. Where the first parameter takes anything, nobody can tell whether it is the
    context, and the tool is a plain `Tool`.
    """

    @overload
    def __call__(
        self, fn: Callable[Concatenate[Anything, Q], object], /, name: str | None = ..., **options: Unpack[Options]
    ) -> Tool: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Q, HandlerInstance[T]], /, name: str | None = ..., **options: Unpack[Options]
    ) -> Tool[Q, T]: ...
    @overload
    def __call__(self, fn: type[BaseModel], /, name: str | None = ..., **options: Unpack[Options]) -> Tool: ...
    @overload
    def __call__(
        self, fn: Callable[..., AsyncIterator[object]], /, name: str | None = ..., **options: Unpack[Options]
    ) -> Tool: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Leading[Q, Async[T]], /, name: str | None = ..., **options: Unpack[Options]
    ) -> Tool[Q, T]: ...
    @overload
    def __call__(self, fn: Placed[Async[T]], /, name: str | None = ..., **options: Unpack[Options]) -> Tool[..., T]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Q, Async[T]], /, name: str | None = ..., **options: Unpack[Options]
    ) -> Tool[Q, T]: ...
    @overload
    def __call__(self, fn: Leading[Q, T], /, name: str | None = ..., **options: Unpack[Options]) -> Tool[Q, T]: ...
    @overload
    def __call__(self, fn: Placed[T], /, name: str | None = ..., **options: Unpack[Options]) -> Tool[..., T]: ...
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


def _typed(function: Callable[..., object]) -> ToolDecorator:
    return cast("ToolDecorator", function)


@_typed
def tool(
    handler: Callable[..., object] | None = None, /, name: str | None = None, **options: Unpack[ToolOptions]
) -> object:
    """Make a tool of a function or a handler class: `@tool`, `@tool(read_only=True)`, or `tool(fn, name="…")`.
    See docs/forms.md.

    Without a `name`, the tool of a function has the function's, and that of a handler class the class's in snake_case.
    `options` are the arguments of `Tool`.

    Raises:
        DefinitionError: for whatever could not work, saying what to change.
    """
    if handler is None:
        return partial(tool, name=name, **options)
    if isinstance(handler, staticmethod | classmethod):
        raise DefinitionError("put @staticmethod above @tool's function, or use Toolset.of(...) for a class's methods")
    return Tool(_name_of(handler) if name is None else name, handler, **options)


def _name_of(handler: object) -> str:
    handler = whole(handler)
    if isinstance(handler, type):  # `WriteFile` is write_file, `HTTPGet` http_get
        return re.sub(_NEXT_WORD, "_", handler.__name__).lower()
    name = getattr(handler, "__name__", None) or type(handler).__name__
    if name == "<lambda>":
        raise DefinitionError("a lambda has no name: use tool(fn, name='…')")
    return str(name)


def build_tool(
    definition: Mapping[str, object] | BaseModel,
    handler: Callable[..., object] | None = None,
    **options: Unpack[ToolOptions],
) -> Tool:
    """A tool of a definition and a handler; `options` are those of `Tool`, and go first. See docs/forms.md.

    The definition has `name`, `description`, `input_schema` and other options of `Tool`, or the shape that OpenAI (both
    APIs), Anthropic or MCP has for it. What only one API knows goes into `provider`, MCP's annotations into `metadata`
    (a server says them of itself: what the tool does to the world is for you to say, `read_only=True`), and `strict` is
    left to `tools(…, strict=…)` of a provider.
    The handler gets the payload, payload and context, or the properties by name; it is judged as that of `Tool` is.

    Without a handler, the definition has an `execute(payload, context)` of its own. Every flag that is left out has its
    safest value then: it changes things, runs alone, and without a `check_permissions` each call asks, unless `ask`
    says otherwise.

    Raises:
        DefinitionError: for a key that is missing, unknown or wrong.
    """
    return of_others("from_definition", definition, handler, **options)  # type: ignore[no-any-return]


def as_tool(thing: ToolForm) -> Tool:
    """Whatever a developer put into a toolset, as a `Tool`.

    Raises:
        DefinitionError: for what is none of the forms.
    """
    if isinstance(thing, Tool):
        return thing
    if isinstance(thing, _DEFINED_ALONE):
        return tool(thing)
    return of_others("tool_of", thing)  # type: ignore[no-any-return]
