"""What the models over the SDKs share: a turn is one request, and the provider's `Stream` reads its events."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.models import Message, ModelError, Reply

if TYPE_CHECKING:
    from types import TracebackType

    from ferrule.definition.toolset import Toolset
    from ferrule.values.call import ToolCall
    from ferrule.values.result import ToolResult

Messages: TypeAlias = Sequence[Message]
Ask: TypeAlias = "Callable[[Messages, Toolset], AsyncGenerator[Any, None]]"
OnText: TypeAlias = Callable[[str], object]


class Stream(Protocol):
    """A provider's reader of one turn."""

    def feed(self, event: Any, /) -> Any: ...
    def calls(self) -> list[ToolCall]: ...
    def turn(self) -> list[Message]: ...
    @property
    def stop(self) -> Any: ...
    @property
    def error(self) -> str | None: ...
    @property
    def reason(self) -> str | None: ...


class Provider(Protocol):
    """What a model needs of its provider module."""

    @property
    def Stream(self) -> Callable[[], Stream]: ...
    def results(self, results: Iterable[ToolResult], /) -> list[Message]: ...


def user_message(text: str) -> list[Message]:
    """What a user says, in the form that most APIs have."""
    return [{"role": "user", "content": text}]


class Streamed:
    """A model whose turn is one streamed request.

    It keeps the connections of the client that it made until `aclose()`, or the end of `async with`; a client that was
    given to it is closed by whoever made it. One is for one event loop, as the SDKs' clients are.

    Args:
        provider: Reads the events and writes the results.
        ask: Sends one request and gives its events.
        event_text: The text in an event; empty where there is none.
        event_usage: The counts in an event.
        user: The messages that say a text as the user.
        on_text: Called with each chunk of text as it comes.
        close: Ends the client.
    """

    def __init__(
        self,
        provider: Provider,
        ask: Ask,
        event_text: Callable[[Any], str],
        event_usage: Callable[[Any], Mapping[str, Any]],
        *,
        user: Callable[[str], list[Message]] = user_message,
        on_text: OnText | None = None,
        close: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._provider = provider
        self._ask = ask
        self._event_text = event_text
        self._event_usage = event_usage
        self._close = close
        self.user = user
        self.on_text = on_text

    async def __call__(self, messages: Messages, toolset: Toolset, /) -> Reply:
        """One turn.

        Raises:
            ModelError: where the API reports an error in the middle of it.
        """
        stream = self._provider.Stream()
        text: list[str] = []
        usage: dict[str, Any] = {}
        async with aclosing(self._ask(messages, toolset)) as events:
            async for event in events:
                stream.feed(event)
                usage.update(self._event_usage(event))
                if chunk := self._event_text(event):
                    text.append(chunk)
                    if self.on_text is not None:
                        self.on_text(chunk)
        if stream.error is not None:
            raise ModelError(f"the API ended the turn with an error: {stream.error}")
        return Reply("".join(text), stream.calls(), stream.turn(), stream.stop, usage, stream.reason)

    def results(self, results: Iterable[ToolResult], /) -> list[Message]:
        """The messages that answer the calls of a turn."""
        return self._provider.results(results)

    async def aclose(self) -> None:
        """Ends the client, where the model made it."""
        if self._close is not None:
            await self._close()

    async def __aenter__(self) -> Streamed:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


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


def with_tools(request: Mapping[str, Any], definitions: Iterable[Any]) -> dict[str, Any]:
    """The request with these tools before those that it has by itself."""
    tools = [*definitions, *(request.get("tools") or ())]
    rest = {key: value for key, value in request.items() if key != "tools"}
    return {**rest, "tools": tools} if tools else rest  # an empty list is refused


def missing_credentials(model: str, remedy: str) -> DefinitionError:
    """There is nothing to say who asks."""
    return DefinitionError(f"the model {model!r} needs credentials: {remedy}")


def counts(usage: Any, names: Mapping[str, str]) -> dict[str, int]:
    """The counts in the SDK's object `usage`, under our names."""
    found = {ours: getattr(usage, theirs, None) for theirs, ours in names.items()}
    return {name: int(count) for name, count in found.items() if isinstance(count, int | float)}
