"""The base of the models over SDKs: a turn is one request, and the provider module reads its answer."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from copy import copy
from difflib import get_close_matches
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from ferrule.definition.signature import read_signature
from ferrule.errors import DefinitionError
from ferrule.models import Message, ModelError, Reply
from ferrule.models._errors import to_model_error, to_reported_error
from ferrule.providers import WHERE_POSSIBLE
from ferrule.providers._stream import error_in_event
from ferrule.providers._wire import get_fields, read, read_text, to_plain

if TYPE_CHECKING:
    from types import TracebackType

    from ferrule.definition.toolset import Toolset
    from ferrule.values.result import ToolResult

Messages: TypeAlias = Sequence[Message]
State: TypeAlias = Mapping[str, Any]
Request: TypeAlias = dict[str, Any]
OnText: TypeAlias = Callable[[str], object]
Found: TypeAlias = Sequence[str] | None
"""The wire names of the tools found by search; `None` if the toolset is whole and no part of it was selected."""


class SdkModel:
    """A model over an SDK: each turn is one request.

    It keeps the connections of its own client until `aclose()`, or the end of `async with`. A client from outside is
    closed by its owner. Use a model in one event loop only, as the SDKs' clients.

    A subclass sets `provider`, and defines `stream_events`, `send` and `read_event_text`; the other methods fit most
    SDKs.

    Args:
        name: The model's name in the API.
        client: The SDK's client.
        options: More of each request.
        is_own: Whether the model made the client, and closes it.
        stream: Whether the answer comes event by event.
        tool_options: The options of the provider's `tools`, such as `strict` and `deferred`.
    """

    provider: Any
    """The provider module, which reads the answers."""
    usage_names: ClassVar[Mapping[str, str]] = {"input_tokens": "input_tokens", "output_tokens": "output_tokens"}
    """Ferrule's names for the counts in a response."""
    usage_path: Sequence[str] = ("usage",)
    """The place of the counts in a response."""
    lasting: Collection[str] = ()
    """The names of the state values that stay valid if an answer does not mention them."""
    rewrite: Callable[[Any, Toolset], Any] | None = None
    """Changes a response before it is read, with the offered tools."""

    def __init__(
        self, name: str, client: Any, options: Request, *, is_own: bool, stream: bool, **tool_options: Any
    ) -> None:
        self.name = name
        self.client = client
        self.options = options
        self.stream = stream
        self._is_own = is_own
        self._tool_options = tool_options
        self._is_unforced = False

    def stream_events(self, request: Request) -> Any:
        """Send a request and return the events of its answer: an async iterator, or an awaitable of one."""
        raise NotImplementedError

    def send(self, request: Request) -> Awaitable[Any]:
        """Send a request and return its whole answer."""
        raise NotImplementedError

    def read_event_text(self, event: Any) -> str:
        """Return the text in an event; empty if it has none."""
        raise NotImplementedError

    def read_usage(self, response: Any) -> Mapping[str, Any]:
        """Return the counts in a response."""
        record = reduce(read, self.usage_path, response)
        counts = [(ours, read(record, theirs)) for theirs, ours in self.usage_names.items()]
        return {name: int(count) for name, count in counts if isinstance(count, int | float)}

    def request(self, messages: Messages, toolset: Toolset, state: State, found: Found) -> Request:
        """Make the request from the messages, the tools, the state of the turn before, and the names of the tools found
        since."""
        request = {"model": self.name, "messages": list(messages), **self.options}
        return with_tools(request, self.define_tools(toolset, found))

    def define_tools(self, toolset: Toolset, found: Found) -> Any:
        """Return the definitions for a request. For a selected toolset, leave out the names in the model's own options
        that it does not have."""
        options = self._tool_options
        if found is not None:
            options = {key: _filter_names(value, toolset) for key, value in options.items()}
            options["deferred"] = [*options["deferred"], *found]
        return self.provider.tools(toolset, **options)

    def unforce(self, request: Request, offers: bool) -> Request:
        """Return the request with a choice that forces no call.

        Args:
            offers: Whether the loop offers tools. If not, a choice may name one that is not in the request.
        """
        choice = _unforce_choice(request.get("tool_choice"), offers)
        rest = {key: value for key, value in request.items() if key != "tool_choice"}
        return rest if choice is None else {**rest, "tool_choice": choice}

    def close_client(self) -> Any:
        """Close the client; may return an awaitable."""
        return self.client.close()

    def user(self, text: str, /) -> list[Message]:
        """Return the messages in which the user says a text."""
        return [{"role": "user", "content": text}]

    async def __call__(
        self,
        messages: Messages,
        toolset: Toolset,
        /,
        *,
        state: State | None = None,
        on_text: OnText | None = None,
        deferred: Found = None,
    ) -> Reply:
        """Run one turn.

        Args:
            state: The `Reply.state` of the turn before.
            on_text: A function, called with each chunk of text as it comes; without a stream, with the whole text.
            deferred: The wire names of the tools found by search; they come last in the toolset. Any list, also an
                empty one, means that the toolset was selected: names in the model's own `strict` and `deferred` have no
                effect if the toolset does not have them.

        Raises:
            RateLimited, Overloaded, ContextTooLong: The SDK raised an error of this kind; it is the cause.
            ModelError: The API reported another error in the middle of a turn, or the connection ended early.
        """
        request = self.request(messages, toolset, state or {}, deferred)
        if self._is_unforced:
            request = self.unforce(request, bool(toolset))
        response = await (self._stream_response(request, on_text) if self.stream else self._fetch_response(request))
        provider, usage = self.provider, self.read_usage(response)
        raw = response if self.stream else to_plain(response)
        if self.rewrite is not None:
            response = self.rewrite(response, toolset)
        text = provider.text(response)
        if not self.stream and text and on_text is not None:
            on_text(text)
        return Reply(
            text,
            provider.calls(response),
            provider.turn(response),
            provider.stop(response, toolset),
            usage,
            provider.reason(response, toolset),
            {name: value for name, value in (state or {}).items() if name in self.lasting}
            | dict(provider.state(response)),
            raw,
        )

    async def _stream_response(self, request: Request, on_text: OnText | None) -> dict[str, Any]:
        stream = self.provider.Stream()
        async with aclosing(_iterate_events(self.stream_events, request)) as events:
            async for event in events:
                stream.feed(event)
                if on_text is not None and (chunk := self.read_event_text(event)):
                    on_text(chunk)
        if stream.error is not None:
            raise to_reported_error(stream.error)
        if not stream.has_ended:
            raise ModelError("the connection ended before the model's turn did: ask the model again")
        return stream.partial()  # type: ignore[no-any-return]

    async def _fetch_response(self, request: Request) -> Any:
        with _errors_of_the_sdk():
            response = await self.send(request)
        if (error := error_in_event(response)) is not None:
            raise to_reported_error(error)
        return response

    @property
    def api(self) -> str:
        """The form of its messages, by the name of the provider module."""
        return str(getattr(self.provider, "__name__", "")).rpartition(".")[2]

    def results(self, results: Iterable[ToolResult], /) -> list[Message]:
        """Return the messages that answer the calls of a turn."""
        return self.provider.results(results)  # type: ignore[no-any-return]

    def find_referred_tools(self, messages: Messages) -> list[str]:
        """Return the wire names of the tools to which the messages refer, because an earlier search found them. Only
        some APIs store that."""
        names: Callable[[Messages], list[str]] | None = getattr(self.provider, "find_referred_tools", None)
        return [] if names is None else names(messages)

    def without_forced_choice(self) -> SdkModel:
        """Return this model without a `tool_choice` that forces a call: the model may answer with a text. The loop asks
        it from the second turn on."""
        unforced = copy(self)
        unforced._is_unforced = True
        return unforced

    async def aclose(self) -> None:
        """Close the client, if the model made it."""
        if self._is_own and inspect.isawaitable(closing := self.close_client()):
            await closing

    async def __aenter__(self) -> SdkModel:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


@contextmanager
def _errors_of_the_sdk() -> Iterator[None]:
    """Convert an SDK's error raised inside the block, if `to_model_error` knows its kind."""
    try:
        yield
    except Exception as error:
        known = to_model_error(error)
        if known is None:
            raise
        raise known from error


async def _iterate_events(send: Callable[[Request], Any], request: Request) -> AsyncGenerator[Any, None]:
    """Yield the events of an SDK's stream, and close its connection with them."""
    with _errors_of_the_sdk():
        opened = send(request)
        answer = await opened if inspect.isawaitable(opened) else opened
        async with answer if hasattr(answer, "__aexit__") else aclosing(answer):
            async for event in answer:
                yield event


def import_sdk(module: str, extra: str) -> Any:
    """Return the SDK's `module`.

    Raises:
        DefinitionError: The module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        needed = module.split(".")[0] if extra != "gemini" else "google-genai"
        raise DefinitionError(
            f'this model needs the package {needed}, which is not installed: pip install "ferrule[{extra}]"'
        ) from None


def _filter_names(names: Any, toolset: Toolset) -> Any:
    """Return those of the names that the toolset has. Any other value of an option stays."""
    if isinstance(names, bool) or names == WHERE_POSSIBLE:
        return names
    return [name for name in ((names,) if isinstance(names, str) else names) if name in toolset]


_NEED_TOOLS = ("tool_choice", "parallel_tool_calls", "strict_tools", "tool_config", "toolConfig")


def with_tools(request: Mapping[str, Any], definitions: Iterable[Any]) -> Request:
    """Return the request with these tools before its own. If there are none, leave out the options about tools: APIs
    refuse an empty list, and a choice among no tools."""
    tools = [*definitions, *(request.get("tools") or ())]
    left_out = ("tools", *(() if tools else _NEED_TOOLS))
    rest = {key: value for key, value in request.items() if key not in left_out}
    return {**rest, "tools": tools} if tools else rest


def _unforce_choice(choice: Any, offers: bool) -> Any:
    """Return a choice with the other restrictions of `choice`, or None if it has none."""
    word = choice if isinstance(choice, str) else read_text(choice, "type")
    if word.lower() in ("auto", "none"):
        return choice
    fields = get_fields(choice)
    if word == "allowed_tools":  # OpenAI's list of the tools that may be called
        inner = {**get_fields(fields.get("allowed_tools", choice)), "mode": "auto"}
        allowed = {**fields, "allowed_tools": inner} if "allowed_tools" in fields else inner
        return allowed if offers else None
    one_at_a_time = fields.get("disable_parallel_tool_use")  # Anthropic's, which has no other place
    return {"type": "auto", "disable_parallel_tool_use": True} if one_at_a_time else None


def list_parameters(send: Any) -> list[str] | None:
    """Return the parameter names of the SDK's function; `None` if they are unknown, as with a wrapped function."""
    try:
        parameters = read_signature(send).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]


_FOR_CLIENTS = "for a key of your own, make the SDK's client with it and give that as client=…"


def check_options(model: str, known: Collection[str] | None, options: Iterable[str]) -> None:
    """Check that the SDK knows all these options. Do nothing if `known` is None.

    Raises:
        DefinitionError: The SDK does not know an option. The text has the first one and the nearest known name.
    """
    for option in options:
        if known is not None and option not in known:
            near = get_close_matches(option, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DefinitionError(f"the model {model!r} has no option {option!r}{hint}; {_FOR_CLIENTS}")


def missing_credentials(model: str, remedy: str) -> DefinitionError:
    """Return the error for missing credentials. Its note has the way out in Python; the command line leaves it out."""
    error = DefinitionError(f"the model {model!r} needs credentials: {remedy}")
    error.add_note(_FOR_CLIENTS)
    return error


def key_in_environment(model: str, variable: str) -> str:
    """Return the key in this environment variable.

    Raises:
        DefinitionError: The variable is not set.
    """
    key = os.environ.get(variable)
    if not key:
        raise missing_credentials(model, f"set {variable}")
    return key
