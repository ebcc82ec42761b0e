"""What the models over the SDKs share: a turn is one request, and the provider module reads its answer."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from difflib import get_close_matches
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.models import Message, ModelError, Reply
from ferrule.models._errors import model_error, reported_error
from ferrule.providers._read import plain, read
from ferrule.providers._stream import error_in_event

if TYPE_CHECKING:
    from types import TracebackType

    from ferrule.definition.toolset import Toolset
    from ferrule.providers import Stop
    from ferrule.values.call import ToolCall
    from ferrule.values.result import ToolResult

Messages: TypeAlias = Sequence[Message]
State: TypeAlias = Mapping[str, Any]
Request: TypeAlias = dict[str, Any]
OnText: TypeAlias = Callable[[str], object]


class Stream(Protocol):
    """A provider's reader of one turn."""

    def feed(self, event: Any, /) -> Any: ...
    def partial(self) -> dict[str, Any]: ...
    @property
    def error(self) -> str | None: ...


class Provider(Protocol):
    """What a model needs of its provider module."""

    @property
    def Stream(self) -> Callable[[], Stream]: ...
    def text(self, response: Any, /) -> str: ...
    def calls(self, response: Any, /) -> list[ToolCall]: ...
    def turn(self, response: Any, /) -> list[Message]: ...
    def results(self, results: Iterable[ToolResult], /) -> list[Message]: ...
    def stop(self, response: Any, /) -> Stop: ...
    def reason(self, response: Any, /) -> str | None: ...
    def state(self, response: Any, /) -> Mapping[str, Any]: ...


def user_message(text: str) -> list[Message]:
    """What a user says, in the form that most APIs have."""
    return [{"role": "user", "content": text}]


class SdkModel:
    """A model whose turn is one request through an SDK.

    It keeps the connections of the client that it made until `aclose()`, or the end of `async with`; a client that was
    given to it is closed by whoever made it. One is for one event loop, as the SDKs' clients are.

    Args:
        provider: Reads the answers.
        request: The request for these messages and tools, with the state of the turn before.
        events: Sends a request and gives the events of its answer: an async iterator, or an awaitable of one.
        response: Sends a request and gives its answer whole.
        event_text: The text in an event; empty where there is none.
        usage: The counts in a response.
        results: Writes the messages that answer the calls; the provider's own where it is left out.
        user: The messages that say a text as the user.
        stream: Whether the answer comes event by event.
        on_text: Called with each chunk of text as it comes.
        lasting: What of a state holds on where an answer says nothing of it, by name.
        rewrite: What is done to a response before it is read.
        close: Ends the client.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        request: Callable[[Messages, Toolset, State], Request],
        events: Callable[[Request], Any],
        response: Callable[[Request], Awaitable[Any]],
        event_text: Callable[[Any], str],
        usage: Callable[[Any], Mapping[str, Any]],
        results: Callable[[Iterable[ToolResult]], list[Message]] | None = None,
        user: Callable[[str], list[Message]] = user_message,
        stream: bool = True,
        on_text: OnText | None = None,
        lasting: Collection[str] = (),
        rewrite: Callable[[Any], Any] | None = None,
        close: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._provider = provider
        self._results = results or provider.results
        self._request = request
        self._events = events
        self._response = response
        self._event_text = event_text
        self._usage = usage
        self._is_streamed = stream
        self._lasting = lasting
        self._rewrite = rewrite
        self._close = close
        self.user = user
        self.on_text = on_text

    async def __call__(self, messages: Messages, toolset: Toolset, /, *, state: State | None = None) -> Reply:
        """One turn.

        Args:
            state: The `Reply.state` of the turn before.

        Raises:
            RateLimited, Overloaded, ContextTooLong: where that is what the SDK says, with its error as the cause.
            ModelError: where the API reports another error in the middle of a turn.
        """
        request = self._request(messages, toolset, state or {})
        try:
            response = await (self._stream(request) if self._is_streamed else self._whole(request))
        except ModelError:
            raise
        except Exception as error:
            known = model_error(error)
            if known is None:
                raise
            raise known from error
        provider, usage = self._provider, self._usage(response)
        raw = response if self._is_streamed else plain(response)
        if self._rewrite is not None:
            response = self._rewrite(response)
        text = provider.text(response)
        if not self._is_streamed and text and self.on_text is not None:
            self.on_text(text)
        return Reply(
            text,
            provider.calls(response),
            provider.turn(response),
            provider.stop(response),
            usage,
            provider.reason(response),
            {name: value for name, value in (state or {}).items() if name in self._lasting}
            | dict(provider.state(response)),
            raw,
        )

    async def _stream(self, request: Request) -> dict[str, Any]:
        stream = self._provider.Stream()
        async with aclosing(_events_of(self._events(request))) as events:
            async for event in events:
                stream.feed(event)
                if self.on_text is not None and (chunk := self._event_text(event)):
                    self.on_text(chunk)
        if stream.error is not None:
            raise reported_error(stream.error)
        return stream.partial()

    async def _whole(self, request: Request) -> Any:
        response = await self._response(request)
        if (error := error_in_event(response)) is not None:
            raise reported_error(error)
        return response

    def results(self, results: Iterable[ToolResult], /) -> list[Message]:
        """The messages that answer the calls of a turn."""
        return self._results(results)

    async def aclose(self) -> None:
        """Ends the client, where the model made it."""
        if self._close is not None:
            await self._close()

    async def __aenter__(self) -> SdkModel:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def _events_of(opened: Any) -> AsyncGenerator[Any, None]:
    """The events of an SDK's stream, whose connection ends with them."""
    answer = await opened if inspect.isawaitable(opened) else opened
    async with answer if hasattr(answer, "__aexit__") else aclosing(answer):
        async for event in answer:
            yield event


def import_sdk(module: str, extra: str) -> Any:
    """The SDK's `module`.

    Raises:
        DefinitionError: where it is not installed.
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


_NEED_TOOLS = ("tool_choice", "parallel_tool_calls", "strict_tools", "tool_config", "toolConfig")


def with_tools(request: Mapping[str, Any], definitions: Iterable[Any]) -> Request:
    """The request with these tools before those that it has by itself; with none, without what speaks of tools: APIs
    refuse an empty list, and a choice among none."""
    tools = [*definitions, *(request.get("tools") or ())]
    left_out = {"tools"} if tools else {"tools", *_NEED_TOOLS}
    rest = {key: value for key, value in request.items() if key not in left_out}
    return {**rest, "tools": tools} if tools else rest


def parameters_of(send: Any) -> list[str] | None:
    """The names that the SDK's function takes; `None` where nobody can tell, as with one that is wrapped."""
    try:
        parameters = inspect.signature(send).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]


def check_options(model: str, known: Collection[str] | None, options: Iterable[str]) -> None:
    """Whether the SDK knows all these options; no word where it is not known what it knows.

    Raises:
        DefinitionError: with the first that it does not know, and the nearest that it does.
    """
    for option in options:
        if known is not None and option not in known:
            near = get_close_matches(option, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DefinitionError(f"the model {model!r} has no option {option!r}{hint}")


def missing_credentials(model: str, remedy: str) -> DefinitionError:
    """There is nothing to say who asks."""
    return DefinitionError(f"the model {model!r} needs credentials: {remedy}")


def counts(response: Any, names: Mapping[str, str], at: Sequence[str] = ("usage",)) -> dict[str, int]:
    """The counts in a response's record at the path `at`, under our names."""
    record = reduce(read, at, response)
    found = {ours: read(record, theirs) for theirs, ours in names.items()}
    return {name: int(count) for name, count in found.items() if isinstance(count, int | float)}
