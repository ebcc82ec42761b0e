"""Google's Gemini API, by generateContent or by Interactions. See docs/providers/gemini.md.

`tools` and `tool_choice` are told which; the other functions see it. Dicts have the names of the JSON (`functionCall`),
which the SDK takes as well; what goes in may have the SDK's own (`function_call`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, overload

from ferrule.errors import DefinitionError
from ferrule.providers import Stop, Strict
from ferrule.providers import _gemini_generate as generate
from ferrule.providers import _gemini_interactions as interactions
from ferrule.providers._api import chosen
from ferrule.providers._plain import PLAIN_GEMINI
from ferrule.providers._read import answered_call, fields_of, read
from ferrule.providers._stream import Readers, TurnStream
from ferrule.providers._write import Definitions
from ferrule.values.call import ToolCall
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from google.genai.interactions import (
        GenerationConfigParam,
        Interaction,
        InteractionSSEEvent,
        StepParam,
        ToolParam,
    )
    from google.genai.types import ContentDict, GenerateContentConfigDict, GenerateContentResponse

    from ferrule.definition.tool import Tool

    Response: TypeAlias = GenerateContentResponse | Interaction | Mapping[str, Any]
    Event: TypeAlias = GenerateContentResponse | InteractionSSEEvent | Mapping[str, Any]

    class InteractionsChoice(TypedDict):
        """Keyword arguments of a request of Interactions."""

        generation_config: GenerationConfigParam


Api: TypeAlias = Literal["generate", "interactions"]
"""Which of the two APIs `tools` and `tool_choice` write for."""

_TABLES = {"generate": generate.API, "interactions": interactions.API}
_STRICT_HINT = "; tool_choice('required'), or 'auto' with only=[...], holds the model to the schemas"
_DEFINITIONS = {
    "generate": Definitions(name="gemini", plain=PLAIN_GEMINI, no_strict_hint=_STRICT_HINT, key="parametersJsonSchema"),
    "interactions": Definitions(
        name="gemini", plain=PLAIN_GEMINI, no_strict_hint=_STRICT_HINT, head={"type": "function"}, defers=True
    ),
}


@overload
def tools(
    toolset: Iterable[Tool],
    *,
    strict: Strict = False,
    cache: bool = False,
    deferred: Collection[str] = (),
    api: Literal["generate"] = "generate",
) -> list[Any]: ...  # the SDK takes a list of its own union alone, which names types of packages that may be absent


@overload
def tools(
    toolset: Iterable[Tool],
    *,
    strict: Strict = False,
    cache: bool = False,
    deferred: Collection[str] = (),
    api: Literal["interactions"],
) -> list[ToolParam]: ...


def tools(
    toolset: Iterable[Tool],
    *,
    strict: Strict = False,
    cache: bool = False,
    deferred: Collection[str] = (),
    api: Api = "generate",
) -> list[Any]:
    """`[{"functionDeclarations": [{"name", "description", "parametersJsonSchema"}]}]`; for Interactions
    `[{"type": "function", "name", "description", "parameters"}]`. Deferred tools stand behind the others.

    Args:
        strict: Nothing that this API has for single tools.
        cache: Nothing to mark here; the API caches an unchanged beginning by itself.
        deferred: Names of tools that came later. Interactions finds them by a tool search; generateContent cannot
            defer: they are placed last, in this order.
        api: Which of the two.

    Raises:
        DefinitionError: where a tool is to be strict, a parameter has a name that this API does not take, or a name
            is no tool's.
    """
    _check_api(api)
    first, later = _DEFINITIONS[api].write(toolset, strict, deferred)
    if api == "interactions" or not first + later:
        return first + later
    return [{"functionDeclarations": first + later}]


def _check_api(api: str) -> None:
    if api not in _TABLES:
        raise DefinitionError(f"api is 'generate' or 'interactions', not {api!r}")


@overload
def tool_choice(
    choice: str = "auto",
    *,
    parallel: bool = True,
    only: Iterable[str] | None = None,
    api: Literal["generate"] = "generate",
) -> GenerateContentConfigDict: ...


@overload
def tool_choice(
    choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None, api: Literal["interactions"]
) -> InteractionsChoice: ...


def tool_choice(
    choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None, api: Api = "generate"
) -> Any:
    """`{"toolConfig": {"functionCallingConfig": {"mode", "allowedFunctionNames"}}}`, for the SDK in its `config`; for
    Interactions `{"generation_config": {"tool_choice": ...}}`.

    Raises:
        DefinitionError: for `parallel=False`, which this API cannot say, and for `only` beside `"none"` or a name.
    """
    _check_api(api)
    word, names = chosen(_TABLES[api], choice, parallel, only)
    if api == "interactions":
        kind = {"allowed_tools": {"mode": word or "any", "tools": names}} if names else word
        return {"generation_config": {"tool_choice": kind}}
    if not names:
        return {"toolConfig": {"functionCallingConfig": {"mode": word}}}
    # Names may stand beside ANY and VALIDATED alone; VALIDATED is AUTO, held to the schemas.
    mode = "VALIDATED" if word == "AUTO" else "ANY"
    return {"toolConfig": {"functionCallingConfig": {"mode": mode, "allowedFunctionNames": names}}}


def _readers_of(response: Any) -> Readers:
    return interactions.READERS if "steps" in fields_of(response) else generate.READERS


def calls(response: Response) -> list[ToolCall]:
    """The calls in the first candidate, or in an interaction, in order. `data` says of the latter that they are."""
    seen = response if type(response) is dict else fields_of(response)
    return interactions.calls(seen) if "steps" in seen else generate.calls(seen)


@overload
def turn(response: GenerateContentResponse) -> list[ContentDict]: ...


@overload
def turn(response: Interaction) -> list[StepParam]: ...


@overload
def turn(response: Mapping[str, Any]) -> list[Any]: ...


def turn(response: Response) -> list[Any]:
    """`[{"role": "model", "parts": [...]}]`, each thought signature on its own part; of an interaction the steps that
    the model made."""
    return _readers_of(response).turn(response)


def text(response: Response) -> str:
    """What the model says, without its thoughts."""
    return _readers_of(response).text(response)


def stop(response: Response, tools: Iterable[Tool] = ()) -> Stop:
    """Why the model stopped. With the tools that it was offered, JSON in its text that calls one is `"malformed"`
    too."""
    return _readers_of(response).stop(response, tools)


def reason(response: Response, tools: Iterable[Tool] = ()) -> str | None:
    """Why there is no answer, or not all of it; `None` where the model ended or made calls."""
    return _readers_of(response).reason(response, tools)


@overload
def state(response: GenerateContentResponse) -> GenerateContentConfigDict: ...


@overload
def state(response: Interaction | Mapping[str, Any]) -> dict[str, Any]: ...


def state(response: Response) -> Any:
    """What goes on with a turn that stopped at the limit of one request, which is a `"pause"`; nothing for any other.

    generateContent: `{"continuation_token": ...}`, a field of `config`; send the same contents again, without this
    turn. Interactions: `{"previous_interaction_id": ..., "continuation_token": ...}`; send no `input`, or, where the
    interaction was not stored, the same input and the token alone. What comes is the rest of the turn.
    """
    return _readers_of(response).state(response)


def results(results: Iterable[ToolResult]) -> list[Any]:
    """`[{"role": "user", "parts": [{"functionResponse": ...}, ...]}]`: one content for all, as this API wants it; for
    the calls of an interaction one `function_result` step for each."""
    parts: list[Any] = []
    steps: list[Any] = []
    for result in results:
        data = answered_call(result).data
        if isinstance(data, dict) and data.get("type") == "function_call":
            steps.append(interactions.function_result(result))
        else:
            parts.append({"functionResponse": generate.function_response(result)})
    return ([{"role": "user", "parts": parts}] if parts else []) + steps


class Stream(TurnStream["Event", Any], readers=Readers(calls, text, turn, stop, reason, state)):
    """The same from a stream: feed it each chunk of generateContent, or each event of an interaction. Until one has a
    `finishReason`, or is `interaction.completed`, every call has a `problem`."""

    __slots__ = ("_stream",)

    def __init__(self) -> None:
        super().__init__()
        self._stream: Any = None
        """The stream of the API whose events these are, from the first one on."""

    def _append_chunk(self, event: Any) -> bool:
        return self._stream._append_chunk(event)  # type: ignore[no-any-return]

    def _apply(self, event: Any) -> None:
        if self._stream is None:
            interaction = read(read(event, "data", event), "event_type") is not None
            self._stream = interactions.Stream() if interaction else generate.Stream()
        self._stream._apply(event)
        self._error = self._error or self._stream.error

    def _assembled(self) -> dict[str, Any]:
        return {} if self._stream is None else self._stream._assembled()

    def partial(self) -> dict[str, Any]:
        """The response so far, as it comes without a stream."""
        return {} if self._stream is None else self._stream.partial()
